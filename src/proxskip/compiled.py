"""Compiled functions that load numba when the first of them is called, not when their module is imported.

Importing numba takes a third of a second and 15 MB; a program that only looks at results, or a server of a federation,
compiles nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import update_wrapper
from types import CodeType
from typing import Any

_ONE_AT_A_TIME = threading.RLock()


class Kernel:
    """A function that numba compiles at its first call; it then takes this object's place in its module."""

    def __init__(self, function: Callable[..., Any], options: dict[str, Any]) -> None:
        update_wrapper(self, function)
        self.function, self.options = function, options
        self.made: Callable[..., Any] | None = None

    def __call__(self, *args: Any) -> Any:
        """What the compiled function returns."""
        return (self.made or self.make())(*args)

    def make(self) -> Callable[..., Any]:
        """The numba function; those that it calls are made first, since numba looks them up by their names."""
        with _ONE_AT_A_TIME:
            if self.made is None:
                import numba

                around = self.function.__globals__
                for name in _names(self.function.__code__):
                    called = around.get(name)
                    if isinstance(called, Kernel) and called is not self:
                        around[name] = called.make()
                self.made = numba.njit(**self.options)(self.function)
                if around.get(self.function.__name__) is self:
                    around[self.function.__name__] = self.made
        return self.made


def njit(**options: Any) -> Callable[[Callable[..., Any]], Kernel]:
    """``numba.njit`` with these options, at the first call."""
    return lambda function: Kernel(function, options)


def _names(code: CodeType) -> set[str]:
    """The global names that a function uses, also in functions within it."""
    within = (constant for constant in code.co_consts if isinstance(constant, CodeType))
    return set(code.co_names).union(*map(_names, within))
