"""PyTorch: training networks on many clients at once, networks as clients, and Scaffnew as an optimizer for torchrun.

Needs the extra ``torch``: ``pip install "proxskip[torch]"``.
"""

import warnings as _warnings

try:
    import torch as _torch
except ImportError:
    raise ImportError(
        'proxskip.torch needs PyTorch; install it with pip install "proxskip[torch]".', name="torch"
    ) from None

from proxskip.support.on_demand import attach_stub

NEWEST_TESTED = (2, 15)
"""The newest version of PyTorch with which the tests pass."""

if tuple(map(int, _torch.__version__.split(".")[:2])) > NEWEST_TESTED:
    _warnings.warn(
        f"PyTorch {_torch.__version__} is newer than {'.'.join(map(str, NEWEST_TESTED))}, the newest that proxskip was "
        "tested with.",
        stacklevel=2,
    )

__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
