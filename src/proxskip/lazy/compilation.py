"""Compiled functions that load numba at the first call, not at import.

Importing numba takes a third of a second and 15 MB, which a program that only reads results, or a federation's server,
need not spend. After ``without_numba``, workers load kernels as machine code.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import cache, update_wrapper
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any, cast

_ONE_AT_A_TIME = threading.RLock()
_lean = threading.Event()


class _Clock:
    """Stands still while kernels are loaded or compiled, in any thread."""

    def __init__(self) -> None:
        self.lock, self.compiling, self.stopped_at, self.stood = threading.RLock(), 0, 0.0, 0.0

    def compilations(self, change: int) -> None:
        """One more begins (1), or one ends (-1)."""
        with self.lock:
            now = time.perf_counter()
            self.stopped_at = self.stopped_at if self.compiling else now
            self.compiling += change
            self.stood += 0.0 if self.compiling else now - self.stopped_at


_clock = _Clock()


def running_seconds() -> float:
    """The clock of runs and minimizations; it stands still while kernels are loaded or compiled."""
    with _clock.lock:
        return (_clock.stopped_at if _clock.compiling else time.perf_counter()) - _clock.stood


class _Thread(threading.local):
    in_kernel = False


_thread = _Thread()


def _compilation_starts() -> None:
    """One process at a time compiles kernels; users' own functions do not wait."""
    from proxskip.lazy.code_cache import compiler_lock

    _clock.compilations(1)
    try:
        if _thread.in_kernel:
            compiler_lock().__enter__()
    except BaseException:  # interrupted while waiting: numba will not report the end
        _clock.compilations(-1)
        raise


def _compilation_ends() -> None:
    from proxskip.lazy.code_cache import compiler_lock

    if _thread.in_kernel:
        compiler_lock().__exit__(None, None, None)
    _clock.compilations(-1)


def in_notebook() -> bool:
    """Whether this process is a notebook kernel."""
    return type(getattr(sys.modules.get("IPython"), "get_ipython", object)()).__name__ == "ZMQInteractiveShell"


@cache
def _announce() -> None:
    """Say once, where somebody waits at a terminal or a notebook, that kernels are compiled."""
    if sys.stderr.isatty() or in_notebook():
        print("proxskip: compiling kernels, once on this machine (10 to 20 seconds)", file=sys.stderr, flush=True)


def without_numba() -> None:
    """From now on take kernels from files of machine code if possible, unless numba is already loaded."""
    if "numba" not in sys.modules:
        _lean.set()


class Kernel:
    """A function that numba compiles at its first call."""

    def __init__(self, function: Callable[..., Any], options: dict[str, Any], borrows: bool) -> None:
        update_wrapper(self, function)
        self.function, self.options, self.borrows = cast(FunctionType, function), options, borrows
        self.by_numba: Callable[..., Any] | None = None
        self.folder: Path | None = None
        self.without_numba: dict[str, Callable[[Sequence[Any]], None] | None] = {}

    def __call__(self, *args: Any) -> Any:
        function = self.by_numba
        if function is None:
            if _lean.is_set() and (code := self._machine_code(args)) is not None:
                return code(args)
            function = self.make()
            if self.folder is not None and not any(self.folder.rglob("*.nbi")):
                _announce()
        _thread.in_kernel = True
        try:
            return function(*args)
        finally:
            _thread.in_kernel = False

    def make(self) -> Callable[..., Any]:
        """Numba's function, which compiles for the types of its arguments."""
        with _ONE_AT_A_TIME:
            if self.by_numba is None:
                _clock.compilations(1)
                try:
                    from proxskip.lazy import code_cache, numba_internals

                    numba_internals.listen(_compilation_starts, _compilation_ends)
                    self.folder = folder = code_cache.folder_of(self._sources()) if self.options.get("cache") else None
                    options = self.options | {"cache": folder is not None}
                    self.by_numba = numba_internals.njit(self._linked(), options, self.borrows, folder)
                finally:
                    _clock.compilations(-1)
        return self.by_numba

    def _linked(self) -> FunctionType:
        """The function with numba's functions in place of the kernels it calls."""
        f = self.function
        around = f.__globals__ | {name: called.make() for name, called in self._calls()}
        linked = FunctionType(f.__code__, around, f.__name__, f.__defaults__, f.__closure__)
        linked.__qualname__ = f.__qualname__
        return linked

    def _calls(self) -> Iterator[tuple[str, Kernel]]:
        """The kernels that this one calls, by name."""
        for name in sorted(_names(self.function.__code__)):
            called = self.function.__globals__.get(name)
            if isinstance(called, Kernel) and called is not self:
                yield name, called

    def _sources(self) -> set[str]:
        """The source files of this kernel and those it calls."""
        return {self.function.__code__.co_filename}.union(*(called._sources() for _, called in self._calls()))

    def _machine_code(self, args: Sequence[Any]) -> Callable[[Sequence[Any]], None] | None:
        """The kernel for such arguments without numba; None if that is impossible."""
        from proxskip.lazy import code_cache, machine_code

        types = machine_code.types_of(args)
        if types is None:
            return None
        with _ONE_AT_A_TIME:
            if types not in self.without_numba:
                folder = code_cache.folder_of(self._sources())
                path = None if folder is None else folder / machine_code.file_name(self.function.__name__, types)
                self.without_numba[types] = machine_code.kept(
                    path, args, lambda: machine_code.made_by_numba(self._linked(), self.options, self.borrows, args)
                )
        return self.without_numba[types]


def njit(borrows: bool = False, **options: Any) -> Callable[[Callable[..., Any]], Kernel]:
    """``numba.njit`` with these options, at the first call.

    Args:
        borrows: the kernel makes and keeps no array, so reference counts are not needed. Numba counts for each view
            (``X[j]``) and each array of a tuple, by atomic operations on which threads wait for each other.
    """
    return lambda function: Kernel(function, options, borrows)


def _names(code: CodeType) -> set[str]:
    """The global names that a function uses, including functions within it."""
    within = (constant for constant in code.co_consts if isinstance(constant, CodeType))
    return set(code.co_names).union(*map(_names, within))
