"""Several processes that share the work of one call, or of several threads at once."""

from __future__ import annotations

import heapq
import multiprocessing
import os
import queue
import signal
import threading
import time
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

    Several threads may ask at once. What is asked with a higher priority is begun first.

    Args:
        shared: sent once to every process, where ``shared`` returns it.
    """

    def __init__(self, count: int, shared: Any = None) -> None:
        # a forked process would share the locks of the threads that are running here
        context = multiprocessing.get_context("spawn")
        self.others = set(multiprocessing.active_children())
        self.count = self.free = count
        self.pool = ProcessPoolExecutor(count, mp_context=context, initializer=_begin, initargs=(shared,))
        self.lock = threading.Lock()
        self.waiting: list[tuple[float, int, Any, Any]] = []
        self.asked = 0

    def each(
        self, function: Callable[..., Any], items: Sequence[Any], priority: float = 0.0
    ) -> Iterator[tuple[int, Any, float]]:
        """``function(item)`` for every item: its number, value and CPU seconds, in the order in which they end.

        The last items begin first, since lists of parameters mostly run from the cheap to the expensive.
        """
        ended: queue.SimpleQueue[tuple[int, Future[Any]]] = queue.SimpleQueue()

        def tell(number: int, future: Future[Any]) -> None:
            ended.put((number, future))

        with self.lock:
            for k in reversed(range(len(items))):
                self.asked += 1
                entry = (-priority, self.asked, partial(_call, function, items[k]), partial(tell, k))
                heapq.heappush(self.waiting, entry)
        self._start_waiting()
        for _ in items:
            number, future = ended.get()
            try:
                value, seconds = future.result()
            except BrokenProcessPool:
                raise InputError(
                    "a process ended without an answer: memory ran out (use fewer jobs), or the script does not "
                    'protect its start with  if __name__ == "__main__":.'
                ) from None
            yield number, value, seconds

    def _start_waiting(self) -> None:
        """Start what waits as far as processes are free."""
        while True:
            with self.lock:
                if not self.free or not self.waiting:
                    return
                self.free -= 1
                _, _, work, tell = heapq.heappop(self.waiting)
            try:
                future = self.pool.submit(work)
                future.add_done_callback(self._start_next)
            except RuntimeError as error:  # the pool is closed or broken, and whoever waits is told
                future = Future()
                future.set_exception(error)
                with self.lock:
                    self.free += 1
            future.add_done_callback(tell)

    def _start_next(self, future: Future[Any]) -> None:
        with self.lock:
            self.free += 1
        self._start_waiting()

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
    """A killed parent sends no signal, and nobody would ever ask again."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _call(function: Callable[..., Any], item: Any) -> tuple[Any, float]:
    before = {number: signal.getsignal(number) for number in _STOPS}
    began = time.process_time()
    try:
        for number in _STOPS:
            signal.signal(number, _interrupt)
        return function(item), time.process_time() - began
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
