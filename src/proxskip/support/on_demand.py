"""Names of a package that are imported on first use, from the stub beside it (SPEC 1 of Scientific Python)."""

from __future__ import annotations

import ast
import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any


def attach_stub(package: str, file: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """``__getattr__``, ``__dir__`` and ``__all__`` of a package, which type checkers read in the same stub.

    A name must not be that of another submodule of the package: whoever imports that module would replace the name.

    Args:
        file: of the package; the stub has the same name and ends in ``.pyi``.
    """
    where: dict[str, tuple[str, str]] = {}
    for node in ast.parse(Path(file).with_suffix(".pyi").read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ImportFrom):
            where |= {a.asname or a.name: (str(node.module), a.name) for a in node.names}

    def load(name: str) -> Any:
        if name not in where:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module, original = where[name]
        found = sys.modules[package] if module == package else importlib.import_module(module)
        value = vars(found).get(original)
        if value is None:  # a module
            value = importlib.import_module(f"{module}.{original}")
        setattr(sys.modules[package], name, value)
        return value

    names = sorted(where)
    return load, lambda: sorted(sys.modules[package].__all__), names
