"""Threads that wait to be called, and are called sooner than those of a ``ThreadPoolExecutor``."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from queue import SimpleQueue


class Help:
    """One piece of work that any number of threads may join.

    Args:
        work: takes what is left to do, until nothing is; a thread that comes too late finds nothing, and nobody waits
            for it.
    """

    def __init__(self, work: Callable[[], None]) -> None:
        self.work = work
        self.came: list[int] = []
        self.left: list[int] = []
        self.failed: list[BaseException] = []
        self.signal: SimpleQueue[None] = SimpleQueue()

    def join(self) -> None:
        """Do some of the work, on a thread that helps."""
        self.came.append(1)
        try:
            self.work()
        except BaseException as error:
            self.failed.append(error)
        self.left.append(1)
        self.signal.put(None)

    def wait(self) -> None:
        """Until all who came have left; it may be interrupted, and called again."""
        while len(self.left) < len(self.came):  # whoever is still here will signal
            self.signal.get()


class Helpers:
    """A few threads, which end with this object, or when it is closed."""

    def __init__(self, count: int) -> None:
        self.calls: SimpleQueue[Help | None] = SimpleQueue()
        self.threads = [
            threading.Thread(target=_serve, args=(self.calls,), name=f"proxskip_{k}", daemon=True) for k in range(count)
        ]
        for thread in self.threads:
            thread.start()
        self.dismiss = weakref.finalize(self, _dismiss, self.calls, count)

    def call(self, help: Help, count: int) -> None:
        """Have up to this many of them join."""
        for _ in range(count):
            self.calls.put(help)

    def close(self) -> None:
        """End the threads."""
        self.dismiss()
        for thread in self.threads:
            thread.join()


def _serve(calls: SimpleQueue[Help | None]) -> None:
    while (help := calls.get()) is not None:
        help.join()
        del help  # what it works on may be large


def _dismiss(calls: SimpleQueue[Help | None], count: int) -> None:
    for _ in range(count):
        calls.put(None)
