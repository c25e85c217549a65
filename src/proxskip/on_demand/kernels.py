"""Compiled functions that load numba when the first of them is called, not when their module is imported.

Importing numba takes a third of a second and 15 MB; a program that only looks at results, or a server of a federation,
compiles nothing. Where ``without_numba`` was called, kernels that the workers need are loaded as machine code.
"""

from __future__ import annotations

import hashlib
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import cache, update_wrapper, wraps
from pathlib import Path
from types import CodeType
from typing import Any

_ONE_AT_A_TIME = threading.RLock()
_lean = threading.Event()
_MADE: dict[int, Kernel] = {}
"""The kernels of numba's functions, by the numbers of these."""


class _Clock:
    """Stands still while kernels are loaded or compiled, in whatever thread."""

    def __init__(self) -> None:
        self.lock, self.compiling = threading.Lock(), 0
        # when it stopped, if it stands, and for how long it stood before; replaced as one, since others read meanwhile
        self.state: tuple[float | None, float] = (None, 0.0)

    def stop(self) -> None:
        with self.lock:
            if self.compiling == 0:
                self.state = (time.perf_counter(), self.state[1])
            self.compiling += 1

    def go_on(self) -> None:
        with self.lock:
            self.compiling -= 1
            stopped, stood = self.state
            if self.compiling == 0 and stopped is not None:
                self.state = (None, stood + time.perf_counter() - stopped)


_clock = _Clock()


def running_seconds() -> float:
    """A clock that stands still while kernels are loaded or compiled: runs and minimizations are measured by it."""
    stopped, stood = _clock.state
    return (time.perf_counter() if stopped is None else stopped) - stood


@cache
def _listen_to_numba() -> None:
    """Stop the clock while numba holds its compiler lock, under which it loads and compiles."""
    from numba.core import event

    class Listener(event.Listener):  # type: ignore[misc]
        def on_start(self, event: Any) -> None:
            _clock.stop()

        def on_end(self, event: Any) -> None:
            _clock.go_on()

    event.register("numba:compiler_lock", Listener())


def without_numba() -> None:
    """From now on take kernels from files of machine code where that is possible, unless numba is loaded already."""
    if "numba" not in sys.modules:
        _lean.set()


class Kernel:
    """A function that numba compiles at its first call; it then takes this object's place in its module."""

    def __init__(self, function: Callable[..., Any], options: dict[str, Any]) -> None:
        update_wrapper(self, function)
        self.function, self.options = function, options
        self.made: Callable[..., Any] | None = None
        self.lean: dict[str, Callable[[Sequence[Any]], None] | None] = {}

    def __call__(self, *args: Any) -> Any:
        """What the compiled function returns."""
        if self.made is None and _lean.is_set() and (code := self.machine_code(args)) is not None:
            return code(args)
        return (self.made or self.make())(*args)

    def make(self) -> Callable[..., Any]:
        """The numba function; those that it calls are made first, since numba looks them up by their names."""
        with _ONE_AT_A_TIME, ExitStack() as stack:
            if self.made is None:
                _clock.stop()
                stack.callback(_clock.go_on)
                import numba

                _listen_to_numba()
                self.make_called()
                self.made = numba.njit(**self.options)(self.function)
                if self.options.get("cache") and self.made is not self.function:  # it is with NUMBA_DISABLE_JIT
                    if may_be_cached(self.made):
                        share_cache(self.made, self.sources())
                    else:
                        self.made = numba.njit(**self.options | {"cache": False})(self.function)
                _MADE[id(self.made)] = self
                around = self.function.__globals__
                if around.get(self.function.__name__) is self:
                    around[self.function.__name__] = self.made
        return self.made

    def make_called(self) -> None:
        """Put numba's functions in the places of the kernels that this one calls."""
        for name, called in self.calls():
            self.function.__globals__[name] = called.make()

    def calls(self) -> Iterator[tuple[str, Kernel]]:
        """The kernels that this one calls, by the names by which it does."""
        for name in sorted(_names(self.function.__code__)):
            found = self.function.__globals__.get(name)
            called = found if isinstance(found, Kernel) else _MADE.get(id(found))
            if called is not None and called is not self:
                yield name, called

    def sources(self) -> set[str]:
        """The files in which this kernel and those that it calls are written."""
        return {self.function.__code__.co_filename}.union(*(called.sources() for _, called in self.calls()))

    def machine_code(self, args: Sequence[Any]) -> Callable[[Sequence[Any]], None] | None:
        """The kernel for such arguments without numba; None where that cannot be."""
        from proxskip.on_demand import machine_code

        types = machine_code.types_of(args)
        with _ONE_AT_A_TIME:
            if types is not None and types not in self.lean:
                path = machine_code.file_of(self.function.__name__, sorted(self.sources()), types)
                self.lean[types] = machine_code.kept(path, args, lambda: self._compiled(args))
        return None if types is None else self.lean[types]

    def _compiled(self, args: Sequence[Any]) -> bytes:
        from proxskip.on_demand import machine_code

        self.make_called()
        return machine_code.made_by_numba(self.function, self.options, args)


def njit(borrows: bool = False, **options: Any) -> Callable[[Callable[..., Any]], Kernel]:
    """``numba.njit`` with these options, at the first call.

    Args:
        borrows: the kernel makes no array and keeps none, so that nobody counts who uses one. Numba counts for each
            view (``X[j]``) and each array of a tuple, by atomic operations for which threads wait for each other.
    """
    if borrows:
        options["_nrt"] = False
    return lambda function: Kernel(function, options)


# -- numba's cache on disk ---------------------------------------------------------------------------------------------
def may_be_cached(made: Any) -> bool:
    """Whether nobody else may write to the folder of a function's cache, or to the one that this is in."""
    from proxskip.on_demand import machine_code

    folder = Path(made._cache.cache_path)
    return all(map(machine_code.may_keep_code, (folder.parent, folder)))


def share_cache(made: Any, sources: set[str]) -> None:
    """Make a function's cache safe for processes that share it, and for sources that change.

    Numba numbers the files of a function's overloads without a lock, so that of two processes which compile different
    ones at a time both may write the same file, and a third may load the wrong one and crash (numba issue 4807). It
    looks at the function's own file for changes, but not at those of the functions that it calls.
    """
    kept = made._cache
    file = kept._cache_file
    file._source_stamp = (file._source_stamp, *(_digest(source) for source in sorted(sources)))
    for name in ("load_overload", "save_overload"):
        setattr(kept, name, _alone(getattr(kept, name), kept.cache_path))


def _alone(act: Callable[..., Any], folder: str) -> Callable[..., Any]:
    @wraps(act)
    def locked(*args: Any, **given: Any) -> Any:
        # a lock of its own: numba's is held here, and whoever holds the one above may wait for numba's
        with _IN_THE_CACHE, _lock(Path(folder)):
            return act(*args, **given)

    return locked


_IN_THE_CACHE = threading.RLock()
_held: list[Path] = []


@contextmanager
def _lock(folder: Path) -> Iterator[None]:
    """Alone among all processes that use this folder; where no file can be locked, go on without."""
    from proxskip.on_demand import machine_code

    with ExitStack() as stack:
        if folder not in _held:  # a process must not wait for itself
            _held.append(folder)
            stack.callback(_held.remove, folder)
            with suppress(OSError):
                folder.mkdir(parents=True, exist_ok=True)
            stack.enter_context(machine_code.alone(folder / "proxskip-kernels.lock"))
        yield


@cache
def _digest(source: str) -> str:
    return hashlib.sha256(Path(source).read_bytes()).hexdigest()


def _names(code: CodeType) -> set[str]:
    """The global names that a function uses, also in functions within it."""
    within = (constant for constant in code.co_consts if isinstance(constant, CodeType))
    return set(code.co_names).union(*map(_names, within))
