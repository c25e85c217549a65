"""Ctrl-C and SIGTERM within a run: the first asks for an end, the second ends the program."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Protocol


class Interruption(Protocol):
    """An event that is set when somebody wants an end."""

    def set(self) -> None: ...
    def is_set(self) -> bool: ...


@contextmanager
def signals_caught(interrupted: Interruption) -> Iterator[None]:
    """The first SIGINT or SIGTERM sets the event, a second one ends the program; only in the main thread."""

    def caught(number: int, frame: FrameType | None) -> None:
        if interrupted.is_set():
            raise KeyboardInterrupt
        interrupted.set()

    old: dict[signal.Signals, Any] = {}
    if threading.current_thread() is threading.main_thread():
        for which in (signal.SIGINT, signal.SIGTERM):
            # a handler that was not installed from Python reads as None and could not be put back: it stays
            if signal.getsignal(which) is not None:
                old[which] = signal.signal(which, caught)
    try:
        yield
    finally:
        for which, handler in old.items():
            signal.signal(which, handler)
