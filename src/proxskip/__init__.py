"""Communication-accelerated optimization: run a method on a problem through an engine, get a trace, plot it."""

from importlib.util import find_spec as _find_spec

from proxskip.support.on_demand import attach_stub as _attach_stub
from proxskip.support.version import __version__ as __version__

__getattr__, _, __all__ = _attach_stub(__name__, __file__)
__all__ = [name for name in __all__ if name not in ("__version__", "torch")]


def __dir__() -> list[str]:
    """Without ``torch`` where PyTorch is not installed: ``help`` asks for every name."""
    return sorted([*__all__, "torch"]) if _find_spec("torch") else sorted(__all__)
