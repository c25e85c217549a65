"""PyTorch: training networks on many clients at once, networks as clients, and Scaffnew as an optimizer for torchrun.

Needs the extra ``torch``: ``pip install "proxskip[torch]"``.
"""

try:
    import torch as _torch  # noqa: F401
except ImportError:
    raise ImportError(
        'proxskip.torch needs PyTorch; install it with pip install "proxskip[torch]".', name="torch"
    ) from None

from proxskip.on_demand import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
