"""Several processes that work for one experiment."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from types import FrameType, TracebackType
from typing import Any, Self

_STOPS = (signal.SIGINT, signal.SIGTERM)


class Processes:
    """A pool that calls functions of a module with plain arguments; an interrupt ends its processes too."""

    def __init__(self, count: int) -> None:
        # a forked process would share the locks of the threads that are running here
        context = multiprocessing.get_context("spawn")
        self.others = set(multiprocessing.active_children())
        self.pool = ProcessPoolExecutor(count, mp_context=context, initializer=_wait)

    def each(self, function: Callable[..., Any], about: Any, items: Sequence[Any]) -> Iterator[tuple[int, Any]]:
        """``function(about, item)`` for every item, with the item's number, in the order in which they end."""
        numbers = {self.pool.submit(_call, function, about, item): k for k, item in enumerate(items)}
        for done in as_completed(numbers):
            yield numbers[done], done.result()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, at: TracebackType | None) -> None:
        self.pool.shutdown(wait=kind is None, cancel_futures=True)
        if kind is not None:
            # what is running writes its checkpoint and ends
            for process in set(multiprocessing.active_children()) - self.others:
                process.terminate()


def _wait() -> None:
    """Ctrl-C reaches all processes of a terminal; one that has nothing to do leaves it to the first."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _call(function: Callable[..., Any], about: Any, item: Any) -> Any:
    before = {number: signal.signal(number, _interrupt) for number in _STOPS}
    try:
        return function(about, item)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
