"""Columns of data frames by their names: which are data, and which are targets, times, offsets or strata."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from proxskip.types import Array, InputError, Matrix

SHOWN = 8
"""Names of columns that a message lists."""


def is_frame(A: object) -> bool:
    """Whether A is a data frame, of pandas or polars."""
    return hasattr(A, "columns") and hasattr(A, "__getitem__")


def separated(A: Matrix, given: Mapping[str, Any]) -> tuple[Matrix, tuple[str, ...] | None, dict[str, Any]]:
    """The data without the columns that arguments name, the names of those left, and the arguments with their columns.

    Without a data frame the names are None, and the data and arguments are as they were.

    Args:
        A: the data.
        given: the arguments by name; a text is the name of a column of A.
    """
    chosen = {argument: name for argument, name in given.items() if isinstance(name, str)}
    if not is_frame(A):
        for argument, name in chosen.items():
            raise InputError(f'{argument} = "{name}" names a column, but the data are no data frame; give an array.')
        return A, None, dict(given)
    for argument, name in chosen.items():
        if name not in list(A.columns):
            raise InputError(f'{argument} = "{name}" is no column of the data frame; it has {listed(A.columns)}.')
    for name, times in Counter(A.columns).items():
        if times > 1:
            raise InputError(f'{times} columns have the name "{name}"; give each a name of its own.')
    kept = [name for name in A.columns if name not in chosen.values()]
    if not kept:
        raise InputError("the data frame has no column left for the features.")
    matrix = np.column_stack([_numbers(A[name], name) for name in kept])
    return matrix, tuple(map(str, kept)), {**given, **{argument: A[name] for argument, name in chosen.items()}}


def listed(columns: Iterable[object]) -> str:
    """The first names of columns, for a message."""
    names = [str(name) for name in columns]
    return ", ".join(names[:SHOWN]) + (", ..." if len(names) > SHOWN else "")


def _numbers(column: npt.ArrayLike, name: object) -> Array:
    """A column of a data frame as numbers."""
    try:
        numbers = np.asarray(column, dtype=np.float64)
    except (TypeError, ValueError):
        raise InputError(
            f'the column "{name}" holds something else than numbers; leave it out, or encode it in columns of 0 and 1.'
        ) from None
    if not np.isfinite(numbers).all():
        j = int(np.argmin(np.isfinite(numbers)))
        raise InputError(f'the column "{name}" holds {numbers[j]} in row {j}; remove or repair such rows.')
    return numbers


def names_of(names: tuple[str, ...] | None, features: int, intercept: bool = False) -> tuple[str, ...]:
    """The names of the columns, "x1", "x2", ... where none were given; the intercept comes last."""
    known = tuple(f"x{k + 1}" for k in range(features)) if names is None else names
    return (*known, "intercept") if intercept else known


def numbers_per_row(name: str, values: npt.ArrayLike, N: int) -> Array:
    """One finite number per row."""
    try:
        v = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError):
        raise InputError(f"{name} must be {N} numbers, one per row.") from None
    if v.shape != (N,):
        raise InputError(f"{name} has shape {v.shape}, but there are {N} rows; give one number per row.")
    if not np.isfinite(v).all():
        j = int(np.argmin(np.isfinite(v)))
        raise InputError(f"{name} of row {j} is {v[j]}; remove or repair this row.")
    return v
