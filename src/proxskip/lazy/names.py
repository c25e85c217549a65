"""Names of a package that are imported when they are first used, so that a part can be imported alone."""

from __future__ import annotations

import importlib
import sys
import warnings
from collections.abc import Callable, Mapping
from typing import Any


def lazy_names(package: str, modules: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """``__getattr__`` and ``__dir__`` of a package (PEP 562) whose names these modules define.

    A name must not be that of another submodule of the package: whoever imports that module would replace the name.

    Args:
        modules: by module its names, separated by spaces; ``new=old`` for another name of something, and a module's
            own last name for the module itself.
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
    """``__getattr__`` of a module that has another name now: its names are still there, with a warning, until 0.4."""

    def load(name: str) -> Any:
        value = getattr(importlib.import_module(new), name)
        warnings.warn(f"{old} is {new} now; the old name goes in 0.4.", DeprecationWarning, stacklevel=2)
        return value

    return load
