"""PyTorch: training networks on many clients at once, networks as clients, and Scaffnew as an optimizer for torchrun.

Needs the extra ``torch``: ``pip install "proxskip[torch]"``.
"""

try:
    import torch as _torch  # noqa: F401
except ImportError:
    raise ImportError('proxskip.torch needs PyTorch; install it with pip install "proxskip[torch]".') from None

from typing import TYPE_CHECKING

from proxskip.lazy.names import lazy_names
from proxskip.problems.torch_model import Model
from proxskip.torch.launch import init_process_group
from proxskip.torch.optimizer import ScaffnewOptimizer as Scaffnew
from proxskip.torch.wire import SynchronizationError

if TYPE_CHECKING:
    from proxskip.torch.partitions import plot_split, split
    from proxskip.torch.training import Trained, train

__all__ = ["Model", "Scaffnew", "SynchronizationError", "Trained", "init_process_group", "plot_split", "split", "train"]

# ranks under torchrun do not need it
__getattr__, __dir__ = lazy_names(
    __name__, {"proxskip.torch.partitions": "plot_split split", "proxskip.torch.training": "Trained train"}
)
