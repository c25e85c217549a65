"""Calls that may wait forever, with a limit."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any


def within(seconds: float, act: Callable[[], Any], otherwise: Exception, look: Callable[[], None] | None = None) -> Any:
    """What ``act`` returns, or the error ``otherwise`` if it takes longer; its thread is left behind then.

    Args:
        look: called every second meanwhile; it may raise.
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
    while look is not None and not outcome and until - time.monotonic() > 1.0:
        thread.join(1.0)
        look()
    thread.join(max(0.0, until - time.monotonic()))
    if not outcome:
        raise otherwise
    value, error = outcome[0]
    if error is not None:
        raise error
    return value
