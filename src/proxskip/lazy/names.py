"""Names of a package that are imported on first use."""

from __future__ import annotations

import importlib
import sys
import warnings
from collections.abc import Callable, Mapping
from typing import Any


def lazy_names(package: str, modules: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """``__getattr__`` and ``__dir__`` (PEP 562) of a package whose names these modules define.

    A name must not be that of another submodule of the package: importing that module would replace it.

    Args:
        modules: the names in each module, separated by spaces; ``new=old`` for an alias, and a module's own last name
            for the module itself.
    """
    pairs = ((module, word.partition("=")) for module, words in modules.items() for word in words.split())
    where = {name: (module, original or name) for module, (name, _, original) in pairs}

    def load(name: str) -> Any:
        if name not in where:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        path, original = where[name]
        module = importlib.import_module(path)
        value = module if path.endswith(f".{original}") and original not in vars(module) else getattr(module, original)
        setattr(sys.modules[package], name, value)
        return value

    return load, lambda: sorted({*vars(sys.modules[package]), *where})


def moved(old: str, new: str) -> Callable[[str], Any]:
    """``__getattr__`` of a renamed module: its names still work, with a warning, until 0.4."""

    def load(name: str) -> Any:
        value = getattr(importlib.import_module(new), name)
        warnings.warn(f"{old} is {new} now; the old name goes in 0.4.", DeprecationWarning, stacklevel=2)
        return value

    return load
