"""Callbacks: what they hear of a run, and how they end it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from proxskip.results.result import Result
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
    """Listens to a run; define any of the three methods. ``raise StopIteration("why")`` in ``on_record`` ends the run.

    Your own class need not derive from this one.
    """

    def on_run_start(self, config: dict[str, Any]) -> None:
        """The run begins; ``config`` is the content of its spec.toml."""

    def on_record(self, step: int, metrics: Record) -> None:
        """A record after ``step`` rounds; ``metrics.x`` is x."""

    def on_run_end(self, result: Result) -> None:
        """The run is over."""


def heard_by(callbacks: Sequence[Any], name: str) -> list[Callable[..., None]]:
    """This method of the callbacks that have it."""
    return [act for c in callbacks if (act := getattr(c, name, None)) is not None]


def check_callbacks(callbacks: Sequence[Any]) -> None:
    """Refuse objects that are not callbacks."""
    if not isinstance(callbacks, Sequence):
        raise InputError("callbacks must be a list, such as [Callback()].")
    for c in callbacks:
        if isinstance(c, type) or not any(heard_by([c], f"on_{what}") for what in ("run_start", "record", "run_end")):
            name = c.__name__ if isinstance(c, type) else type(c).__name__
            raise InputError(
                f"the callback {name} has none of on_run_start, on_record and on_run_end; define one of them."
            )


def tell_record(callbacks: Sequence[Any], step: int, record: Record) -> str | None:
    """Tell all callbacks; returns the reason if one of them ends the run, else None."""
    why = None
    for tell in heard_by(callbacks, "on_record"):
        try:
            tell(step, record)
        except StopIteration as stop:
            why = str(stop.value or "") if why is None else why
    return why
