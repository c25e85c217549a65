"""A time limit for calls that may wait forever."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any


def within(
    seconds: float, act: Callable[[], Any], otherwise: Exception, meanwhile: Callable[[], None] | None = None
) -> Any:
    """The result of ``act``, or the error ``otherwise`` if it takes longer; its thread is then abandoned.

    Args:
        meanwhile: called every second while waiting; it may raise.
    """
    outcome: list[tuple[Any, BaseException | None]] = []

    def go() -> None:
        try:
            outcome.append((act(), None))
        except BaseException as error:
            outcome.append((None, error))

    thread = threading.Thread(target=go, daemon=True)
    thread.start()
    until = time.monotonic() + max(0.0, seconds)
    while meanwhile is not None and not outcome and until - time.monotonic() > 1.0:
        thread.join(1.0)
        meanwhile()
    thread.join(max(0.0, until - time.monotonic()))
    if not outcome:
        raise otherwise
    value, error = outcome[0]
    if error is not None:
        raise error
    return value
