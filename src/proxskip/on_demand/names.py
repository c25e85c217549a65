"""Packages whose public names are imported when they are first asked for, so that a part can be imported alone."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from types import ModuleType
from typing import Any


class PackageOnDemand(ModuleType):
    """A package that knows in which modules its names are defined.

    Where a name is that of a submodule too (``proxskip.run`` is a function in a module of that name), it stands for
    what the module defines, whoever imported the module first.
    """

    _where: Mapping[str, tuple[str, str]]

    def __getattr__(self, name: str) -> Any:
        if name not in self._where:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        module, its_name = self._where[name]
        found = importlib.import_module(module)
        is_the_module = module.endswith(f".{its_name}") and its_name not in vars(found)
        value = vars(self)[name] = found if is_the_module else getattr(found, its_name)
        return value

    def __setattr__(self, name: str, value: object) -> None:
        if not (isinstance(value, ModuleType) and name in vars(self).get("_where", ())):
            super().__setattr__(name, value)

    def __reduce__(self) -> tuple[Any, ...]:
        """A module travels by its name, also within a function of a user's that goes to another process."""
        return importlib.import_module, (self.__name__,)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *self._where})


def define(package: str, modules: Mapping[str, str]) -> None:
    """Let a package have the names that these modules define.

    Args:
        modules: by module its names, separated by spaces; ``new=old`` for another name of something.
    """
    here = sys.modules[package]
    pairs = ((module, word.partition("=")) for module, words in modules.items() for word in words.split())
    vars(here)["_where"] = {name: (module, old or name) for module, (name, _, old) in pairs}
    here.__class__ = PackageOnDemand
