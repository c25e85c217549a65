"""Several processes that work for one experiment, or for several at once."""

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
    """

    def __init__(self, count: int) -> None:
        # a forked process would share the locks of the threads that are running here
        context = multiprocessing.get_context("spawn")
        self.others = set(multiprocessing.active_children())
        self.count = self.free = count
        self.pool = ProcessPoolExecutor(count, mp_context=context, initializer=_wait)
        self.lock = threading.Lock()
        self.waiting: list[tuple[float, int, Any, Any]] = []
        self.asked = 0

    def each(
        self, function: Callable[..., Any], about: Any, items: Sequence[Any], priority: float = 0.0
    ) -> Iterator[tuple[int, Any, float]]:
        """``function(about, item)`` for every item: its number, value and CPU seconds, in the order in which they end.

        The last items begin first, since lists of parameters mostly run from the cheap to the expensive.
        """
        ended: queue.SimpleQueue[tuple[int, Future[Any]]] = queue.SimpleQueue()
        with self.lock:
            for k in reversed(range(len(items))):
                self.asked += 1
                work = partial(_call, function, about, items[k])
                heapq.heappush(self.waiting, (-priority, self.asked, work, partial(_tell, ended, k)))
        self._begin()
        for _ in items:
            number, future = ended.get()
            try:
                value, seconds = future.result()
            except BrokenProcessPool:
                raise InputError(
                    "a process ended without an answer; if memory is short, give fewer --jobs, and run it again."
                ) from None
            yield number, value, seconds

    def _begin(self) -> None:
        """Start what waits as far as processes are free."""
        while True:
            with self.lock:
                if not self.free or not self.waiting:
                    return
                self.free -= 1
                _, _, work, tell = heapq.heappop(self.waiting)
            try:
                future = self.pool.submit(work)
            except RuntimeError as error:  # the pool is closed or broken, and whoever waits is told
                future = Future()
                future.set_exception(error)
                self._release()
            else:
                future.add_done_callback(self._end)
            future.add_done_callback(tell)

    def _release(self) -> None:
        with self.lock:
            self.free += 1

    def _end(self, future: Future[Any]) -> None:
        self._release()
        self._begin()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, at: TracebackType | None) -> None:
        self.pool.shutdown(wait=kind is None, cancel_futures=True)
        if kind is not None:
            # what is running writes its checkpoint and ends
            for process in set(multiprocessing.active_children()) - self.others:
                process.terminate()


def _tell(ended: queue.SimpleQueue[tuple[int, Future[Any]]], number: int, future: Future[Any]) -> None:
    ended.put((number, future))


def _wait() -> None:
    """Ctrl-C reaches all processes of a terminal; one that has nothing to do leaves it to the first."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """A killed parent sends no signal, and nobody would ever ask again."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


_ending = False


def _call(function: Callable[..., Any], about: Any, item: Any) -> tuple[Any, float]:
    before = {number: signal.getsignal(number) for number in _STOPS}
    began = time.process_time()
    try:
        for number in _STOPS:
            signal.signal(number, _interrupt)
        return function(about, item), time.process_time() - began
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
