"""A time limit for calls that may wait forever."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import TypeVar

T = TypeVar("T")


def within(
    seconds: float, act: Callable[[], T], otherwise: Exception, meanwhile: Callable[[], None] | None = None
) -> T:
    """The result of ``act``, or the error ``otherwise`` if it takes longer; its thread is then abandoned.

    Args:
        meanwhile: called every second while waiting; it may raise.
    """
    outcome: Future[T] = Future()

    def go() -> None:
        try:
            outcome.set_result(act())
        except BaseException as error:
            outcome.set_exception(error)

    # not in a pool: Python would wait for an abandoned thread of one before it ends
    threading.Thread(target=go, daemon=True).start()
    until = time.monotonic() + max(0.0, seconds)
    while meanwhile is not None and not outcome.done() and until - time.monotonic() > 1.0:
        wait([outcome], 1.0)
        meanwhile()
    wait([outcome], max(0.0, until - time.monotonic()))
    if not outcome.done():
        raise otherwise
    return outcome.result()
