"""The trace of a run: an append-only table of numbers. A checkpoint holds it; its CSV file is for people."""

from __future__ import annotations

import contextlib
import re
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from proxskip.results.atomic import atomic_write_text
from proxskip.results.plain_table import frame_of
from proxskip.support import display
from proxskip.types import Array, InputError

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,63}")
_FIRST = ("round", "iteration", "iterations", "nprox", "f", "fun", "gap", "grad_norm", "certificate", "seconds")
"""Columns that a repr shows, where the trace has them."""


def _cell(value: float) -> str:
    """A number that reads back exactly, whole ones without a point."""
    return str(int(value)) if value.is_integer() and abs(value) < 2**53 and repr(value) != "-0.0" else repr(value)


class Trace(display.Described):
    """An append-only table of float64 columns.

    Args:
        columns: the names of the columns.

    >>> trace = Trace(("round", "gap"))
    >>> trace.append({"round": 0, "gap": 1.5})
    >>> trace.append({"round": 1})
    >>> trace["gap"]
    array([1.5, nan])
    >>> len(trace), trace.last()
    (2, {'round': 1.0, 'gap': nan})
    """

    __slots__ = ("_length", "_position", "_table")

    def __init__(self, columns: tuple[str, ...]) -> None:
        if not isinstance(columns, tuple) or not columns:
            raise InputError("a trace needs a tuple with at least one column name.")
        for name in columns:
            if not isinstance(name, str) or not _NAME.fullmatch(name):
                raise InputError(f"{name!r:.80} cannot be a column: use letters, digits, _ . - after a letter.")
        self._position = {name: k for k, name in enumerate(columns)}
        if len(self._position) != len(columns):
            raise InputError(f"column names must differ, and {', '.join(columns)} do not.")
        self._table: Array = np.empty((len(columns), 16))
        self._length = 0

    @property
    def columns(self) -> tuple[str, ...]:
        """The names, in order."""
        return tuple(self._position)

    def __len__(self) -> int:
        return self._length

    def __contains__(self, column: object) -> bool:
        return column in self._position

    def __getitem__(self, column: str) -> Array:
        """A column so far, as a read-only view; rows appended later do not change it."""
        if column not in self._position:
            raise InputError(f"there is no column {column!r}; there are {', '.join(self._position)}.")
        view = self._table[self._position[column], : self._length]
        view.flags.writeable = False
        return view

    def _picture(self) -> str:
        return sparkline(self, "gap", "grad_norm", "certificate")

    def _described(self) -> tuple[str, list[tuple[str, str]]]:
        """The columns that people look at first, from the first record to the last; the names of all columns."""
        shown = [name for name in _FIRST if name in self and np.isfinite(self[name]).any()]
        ends = [(name, f"{self[name][0]:.6g} ... {self[name][-1]:.6g}") for name in shown]
        names = textwrap.shorten(", ".join(self._position), 100, placeholder=" ...")
        return f"Trace: {self._length} records, {len(self._position)} columns", [*ends, ("columns", names)]

    def to_frame(self) -> Any:
        """The trace as a pandas DataFrame, one row per record."""
        return frame_of(self.to_arrays())

    def append(self, row: Mapping[str, float]) -> None:
        """Add one row; columns it does not name become nan."""
        values = [float("nan")] * len(self._position)
        for name, value in row.items():
            if name not in self._position:
                raise InputError(f"there is no column {name!r}; there are {', '.join(self._position)}.")
            values[self._position[name]] = _number(name, value)
        if self._length == self._table.shape[1]:  # full: double it, so that appending costs O(1) on average
            self._table = np.hstack([self._table, np.empty((len(values), max(16, self._length)))])
        self._table[:, self._length] = values
        self._length += 1

    def last(self) -> dict[str, float]:
        """The newest row."""
        if not self._length:
            raise InputError("the trace has no rows yet.")
        # in one go, since a run looks at it after every round; the columns are in the order of their positions
        return dict(zip(self._position, self._table[:, self._length - 1].tolist(), strict=True))

    # -- arrays --------------------------------------------------------------------------------------------------------
    def to_arrays(self, prefix: str = "") -> dict[str, Array]:
        """A copy of each column by name, for a checkpoint."""
        return {prefix + name: self[name].copy() for name in self._position}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, npt.NDArray[Any]], prefix: str = "") -> Trace:
        """The trace whose ``to_arrays(prefix)`` is among ``arrays``."""
        columns = {name.removeprefix(prefix): a for name, a in arrays.items() if name.startswith(prefix)}
        trace = cls(tuple(columns))
        for name, array in columns.items():
            if array.dtype != np.float64 or array.ndim != 1:
                raise InputError(f"column {name} must be 1-D float64, and it is {array.ndim}-D {array.dtype}.")
        if len(lengths := {len(array) for array in columns.values()}) != 1:
            raise InputError(f"columns must have one length, and these have {sorted(lengths)}.")
        trace._table, trace._length = np.stack(list(columns.values())), lengths.pop()
        return trace

    # -- CSV -----------------------------------------------------------------------------------------------------------
    def to_csv(self, path: Path) -> None:
        """Write a header and one line per row; every number reads back as the same float."""
        # a name has no comma or quote, and begins like no formula of a spreadsheet
        lines = [self._position, *(map(_cell, row) for row in self._table[:, : self._length].T.tolist())]
        atomic_write_text(Path(path), "".join(",".join(line) + "\n" for line in lines))


def sparkline(trace: Trace, *columns: str) -> str:
    """A small picture of the first of these columns that has positive numbers, as HTML; empty if none has."""
    pictures = (display.sparkline(trace[name], name) for name in columns if name in trace)
    return next(filter(None, pictures), "")


def _number(name: str, value: Any) -> float:
    if not isinstance(value, (str, bytes, bytearray)):
        with contextlib.suppress(TypeError, ValueError, OverflowError):
            return float(value)
    raise InputError(f"column {name} takes a number, not {value!r:.80}.")
