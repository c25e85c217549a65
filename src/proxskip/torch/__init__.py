"""PyTorch: training networks on many clients at once, networks as clients, and Scaffnew as an optimizer for torchrun.

Needs the extra ``torch``: ``pip install "proxskip[torch]"``.
"""

try:
    import torch as _torch  # noqa: F401
except ImportError:
    raise ImportError('proxskip.torch needs PyTorch; install it with: pip install "proxskip[torch]"') from None

from typing import TYPE_CHECKING, Any

from proxskip.problems.torch_model import Model
from proxskip.torch.launch import init_process_group
from proxskip.torch.optimizer import ScaffnewOptimizer as Scaffnew
from proxskip.torch.wire import SynchronizationError

if TYPE_CHECKING:
    from proxskip.torch.training import Trained, split, train

__all__ = ["Model", "Scaffnew", "SynchronizationError", "Trained", "init_process_group", "split", "train"]


def __getattr__(name: str) -> Any:
    """``train`` and what belongs to it are imported when they are asked for: ranks under torchrun do without."""
    if name not in ("Trained", "split", "train"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from proxskip.torch import training

    return getattr(training, name)
