"""Several processes that share the work of one call, or of several threads at once."""

from __future__ import annotations

import multiprocessing
import os
import queue
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from types import FrameType, TracebackType
from typing import Any, Self

from proxskip.types import InputError

_STOPS = (signal.SIGINT, signal.SIGTERM)


class Processes:
    """A pool that calls functions of a module with plain arguments; an interrupt ends its processes too.

    Several threads may use it at once.

    Args:
        shared: sent once to every process, where ``shared`` returns it.
    """

    def __init__(self, count: int, shared: Any = None) -> None:
        # a forked process would share the locks of the threads that are running here
        context = multiprocessing.get_context("spawn")
        self.others = set(multiprocessing.active_children())
        self.count = count
        self.pool = ProcessPoolExecutor(count, mp_context=context, initializer=_begin, initargs=(shared,))

    def each(self, function: Callable[..., Any], items: Sequence[Any]) -> Iterator[tuple[int, Any]]:
        """``function(item)`` for every item: its number and value, in the order in which they end.

        The last items begin first, since lists of parameters mostly run from the cheap to the expensive.
        """
        # a queue and not ``as_completed``, which waits for ever for a future that a closing pool cancels
        ended: queue.SimpleQueue[tuple[int, Future[Any]]] = queue.SimpleQueue()
        try:
            for k in reversed(range(len(items))):
                future = self.pool.submit(_call, function, items[k])
                future.add_done_callback(partial(lambda number, done: ended.put((number, done)), k))
            for _ in items:
                number, future = ended.get()
                yield number, future.result()
        except BrokenProcessPool:
            guard = 'guard the script with  if __name__ == "__main__":'
            raise InputError(f"a process died: use fewer jobs if memory ran out, or {guard}.") from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, at: TracebackType | None) -> None:
        self.pool.shutdown(wait=kind is None, cancel_futures=True)
        if kind is not None:
            # what is running writes its checkpoint and ends
            for process in set(multiprocessing.active_children()) - self.others:
                process.terminate()


# -- in a process of the pool ------------------------------------------------------------------------------------------
_shared: Any = None
_ending = False


def shared() -> Any:
    """What all calls of this process share."""
    return _shared


def _begin(value: Any) -> None:
    """Ctrl-C reaches all processes of a terminal; one that has nothing to do leaves it to the first."""
    global _shared
    _shared = value
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """A killed parent sends no signal, so its children would wait forever."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _call(function: Callable[..., Any], item: Any) -> Any:
    before = {number: signal.getsignal(number) for number in _STOPS}
    try:
        for number in _STOPS:
            signal.signal(number, _interrupt)
        return function(item)
    finally:
        if _ending:  # a pool that breaks tells its processes once, and a process that goes on waits for ever
            os._exit(1)
        for number, handler in before.items():
            signal.signal(number, handler)


def _interrupt(number: int, frame: FrameType | None) -> None:
    """End the call; the first signal to end the process is the only one, so that its checkpoint is written."""
    global _ending
    if _ending:
        return
    _ending = number == signal.SIGTERM
    raise KeyboardInterrupt
