"""Calls in several processes, by joblib: an error or an interrupt ends those of one call, and waits until they ended.

A process that computes is not killed: it gets an interrupt, at which a run writes its checkpoint and ends.
"""

from __future__ import annotations

import _thread
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from proxskip.core.method import Method
from proxskip.methods import registry
from proxskip.types import InputError

Item = TypeVar("Item")
Answer = TypeVar("Answer")
SECONDS_BETWEEN_LOOKS = 0.1
"""How often a process looks whether it is to end."""


@dataclass(frozen=True, slots=True)
class EndFile:
    """An event that other processes see: it is set when its file exists."""

    path: Path

    def set(self) -> None:
        self.path.touch()

    def is_set(self) -> bool:
        return self.path.exists()


@dataclass(frozen=True, slots=True)
class Failed:
    """The error of a call, which is a value here: joblib would end the calls of other threads for it."""

    error: Exception


class Plugins:
    """Loads the parent's plugins in the process that unpickles it, before whatever is pickled after it."""

    def __reduce__(self) -> tuple[Callable[[list[str]], object], tuple[list[str]]]:
        return _load_plugins, ([str(path) for path in registry.PLUGINS],)


def each(
    function: Callable[[Item], Answer],
    items: Sequence[Item],
    jobs: int,
    end: EndFile,
    methods: Iterable[type[Method]] = (),
) -> Iterator[tuple[int, Answer]]:
    """The number and value of ``function(item)`` for each item, in the order in which they end.

    Once ``end`` is set, no call begins, and those under way are interrupted; what they return is still given, without
    those that raise KeyboardInterrupt. The first other error ends the calls too, and is raised when all have ended.

    Args:
        methods: that the function meets by name, and that the user may have registered in this process alone.
    """
    from concurrent.futures.process import BrokenProcessPool

    from joblib import Parallel, delayed  # loaded by those who use processes

    # large arrays are in files that all processes share; what one of them writes there is its own
    parallel = Parallel(jobs, backend="loky", return_as="generator_unordered", batch_size=1, mmap_mode="c")
    known, parent = (Plugins(), list(methods)), os.getpid()
    calls = (delayed(_call)(known, function, item, k, end, parent) for k, item in enumerate(items))
    first: Exception | None = None
    try:
        for number, value in parallel(calls):
            if isinstance(value, Failed):
                end.set()
                first = first or value.error
            elif value is not None:
                yield number, value
    except BrokenProcessPool as error:
        raise InputError("a process died; use fewer jobs if memory ran out.") from error
    if first is not None:
        raise first


# -- in another process ------------------------------------------------------------------------------------------------
def _call(
    known: tuple[object, list[type[Method]]],
    function: Callable[[Item], Answer],
    item: Item,
    number: int,
    end: EndFile,
    parent: int,
) -> tuple[int, Answer | Failed | None]:
    # Ctrl-C reaches all processes of a terminal's group; these leave it to their parent, which sets ``end``
    if hasattr(os, "setpgid"):
        os.setpgid(0, 0)
    over = threading.Event()
    try:
        threading.Thread(target=_interrupt_at, args=(end, parent, over), daemon=True).start()
        _, methods = known  # the plugins are loaded by now
        for kind in methods:
            if registry.METHODS.get(kind.about.name) is not kind:
                registry.register(kind)
        return number, None if end.is_set() else function(item)
    except KeyboardInterrupt:
        return number, None
    except Exception as error:
        return number, Failed(error)
    finally:
        over.set()
        if os.getppid() != parent:
            os._exit(1)  # nobody waits for it


def _interrupt_at(end: EndFile, parent: int, over: threading.Event) -> None:
    """Interrupt the main thread once the calls are to end, or the parent was killed."""
    while not over.wait(SECONDS_BETWEEN_LOOKS):
        if end.is_set() or os.getppid() != parent:
            _thread.interrupt_main()
            return


def _load_plugins(paths: list[str]) -> None:
    known = {str(path) for path in registry.PLUGINS}
    for path in paths:
        if path not in known:
            registry.load_plugin(path)
