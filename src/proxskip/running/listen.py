"""Callbacks: what they hear of a run, and how they end it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np

from proxskip.results.result import RunResult
from proxskip.types import Array, InputError


class Record(dict[str, float]):
    """The numbers of one record by the names of the trace's columns, and ``x``, copied where it is asked for.

    >>> record = Record({"round": 3.0, "gap": 0.5}, np.ones(2))
    >>> record["gap"], record.x.tolist()
    (0.5, [1.0, 1.0])
    """

    def __init__(self, numbers: Mapping[str, float], x: Array) -> None:
        super().__init__(numbers)
        self._x = x

    @property
    def x(self) -> Array:
        """A copy of the communicated x."""
        return np.array(self._x)


class Callback:
    """Listens to a run; define any of the four methods. ``raise StopIteration("why")`` in ``on_record`` ends the run.

    Your own class need not derive from this one. After ``on_run_start`` a callback hears exactly one of ``on_run_end``
    and ``on_run_error``.
    """

    def on_run_start(self, config: dict[str, Any]) -> None:
        """The run begins; ``config`` is the content of its spec.json."""

    def on_record(self, step: int, metrics: Record) -> None:
        """A record after ``step`` rounds; ``metrics.x`` is x."""

    def on_run_end(self, result: RunResult) -> None:
        """The run is over; ``result.status`` says how it ended."""

    def on_run_error(self, error: BaseException) -> None:
        """The run, or a callback, raised this error, so there is no result; close what you opened."""


METHODS = ("on_run_start", "on_record", "on_run_end", "on_run_error")
"""What a callback may define."""


def check_callbacks(callbacks: Sequence[object]) -> None:
    """Refuse objects that are not callbacks."""
    if not isinstance(callbacks, Sequence):
        raise InputError("callbacks must be a list, such as [Callback()].")
    for callback in callbacks:
        if isinstance(callback, type):
            raise InputError(f"the callback {callback.__name__} is a class; pass an object, {callback.__name__}(...).")
        if not any(hasattr(callback, name) for name in METHODS):
            name = type(callback).__name__
            raise InputError(f"the callback {name} has none of {', '.join(METHODS)}; define one of them.")


@contextmanager
def listening(callbacks: Sequence[object], config: dict[str, Any]) -> Iterator[None]:
    """Tell the callbacks that a run begins, and tell those that heard it if the run raises."""
    begun: list[object] = []
    try:
        for callback in callbacks:
            begun.append(callback)
            _tell(callback, "on_run_start", config)
        yield
    except BaseException as error:
        _tell_all(begun, "on_run_error", error)
        raise


def tell_record(callbacks: Sequence[object], step: int, record: Record) -> str | None:
    """Tell all callbacks; returns the reason if one of them ends the run, else None."""
    why = None
    for callback in callbacks:
        try:
            _tell(callback, "on_record", step, record)
        except StopIteration as stop:
            why = str(stop.value or "") if why is None else why
    return why


def tell_end(callbacks: Sequence[object], result: object) -> None:
    """Tell all callbacks that the run is over."""
    _tell_all(callbacks, "on_run_end", result)


def _tell_all(callbacks: Sequence[object], name: str, what: object) -> None:
    """Call this method of all callbacks in their order, the later ones too where one raises."""
    with ExitStack() as calls:
        for callback in reversed(callbacks):  # an ExitStack calls the last one first
            calls.callback(_tell, callback, name, what)


def _tell(callback: object, name: str, *what: object) -> None:
    """Call the callback's method of that name, if it has one."""
    method = getattr(callback, name, None)
    if method is not None:
        method(*what)
