"""Names of a package that are imported on first use."""

from __future__ import annotations

import importlib
import sys
import warnings
from collections.abc import Callable, Mapping
from typing import Any


def lazy_names(
    package: str, modules: Mapping[str, str], moved: Mapping[str, str] | None = None
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """``__getattr__`` and ``__dir__`` of a package (PEP 562) whose names these modules define.

    ``dir`` shows the names of ``__all__``, whatever has been imported since. A name must not be that of another
    submodule of the package: whoever imports that module would replace the name.

    Args:
        modules: by module its names, separated by spaces; ``new=old`` for another name of something, and a module's
            own last name for the module itself.
        moved: the same for names that were in this package before; they work until 0.4, with a warning.
    """
    moved = moved or {}
    pairs = ((m, word.partition("=")) for m, words in [*modules.items(), *moved.items()] for word in words.split())
    where = {name: (module, original or name) for module, (name, _, original) in pairs}
    old_names = {word.partition("=")[0] for words in moved.values() for word in words.split()}

    def load(name: str) -> Any:
        if name not in where:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        path, original = where[name]
        module = importlib.import_module(path)
        value = module if path.endswith(f".{original}") and original not in vars(module) else getattr(module, original)
        if name in old_names:
            message = f"{package}.{name} is {path}.{original} now; the old name goes in 0.4."
            warnings.warn(message, DeprecationWarning, stacklevel=2)
        else:
            setattr(sys.modules[package], name, value)
        return value

    return load, lambda: sorted(sys.modules[package].__all__)


def moved(old: str, new: str) -> Callable[[str], Any]:
    """``__getattr__`` of a renamed module: its names still work, with a warning, until 0.4."""

    def load(name: str) -> Any:
        value = getattr(importlib.import_module(new), name)
        warnings.warn(f"{old} is {new} now; the old name goes in 0.4.", DeprecationWarning, stacklevel=2)
        return value

    return load
