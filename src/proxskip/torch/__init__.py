"""PyTorch: networks as clients, and Scaffnew as an optimizer for torchrun.

Needs the extra ``torch``: ``pip install "proxskip[torch]"``.
"""

try:
    import torch as _torch  # noqa: F401
except ImportError:
    raise ImportError('proxskip.torch needs PyTorch; install it with: pip install "proxskip[torch]"') from None

from proxskip.problems.torch_model import Model
from proxskip.torch.launch import init_process_group
from proxskip.torch.optimizer import ScaffnewOptimizer as Scaffnew
from proxskip.torch.wire import SynchronizationError

__all__ = ["Model", "Scaffnew", "SynchronizationError", "init_process_group"]
