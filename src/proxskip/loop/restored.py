"""A checkpoint's seal says that its bytes are those that were written, not that a run wrote them: this checks what."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np

from proxskip.loop import by_rows
from proxskip.loop.ledger import Ledger
from proxskip.loop.simulated_time import SIM_COLUMNS
from proxskip.problems.federated import Problem
from proxskip.results.checkpoint import Checkpoint, CheckpointError
from proxskip.results.folder import Folder
from proxskip.results.journal import Journal, RowsState
from proxskip.seam import Method
from proxskip.types import InputError

LATER_COLUMNS = ("bits_up", "bits_down")
"""Columns of a trace that version 0.1 did not have."""
LARGEST = 2**62


@contextmanager
def of_a_run() -> Iterator[None]:
    """Whatever goes wrong in here is the checkpoint's fault."""
    try:
        yield
    except InputError:
        raise
    except (
        KeyError,
        TypeError,
        ValueError,
        AttributeError,
        IndexError,
        ArithmeticError,
        RecursionError,
        StopIteration,
        AssertionError,
    ) as error:
        said = " ".join(str(error).split())[:120]
        raise CheckpointError(
            f"the checkpoint is intact, but no run wrote it ({type(error).__name__}: {said})."
        ) from None


def check_numbers(data: Any) -> None:
    """Refuse plain data with a whole number that no 64-bit integer can be."""
    for v in data.values() if isinstance(data, Mapping) else data if isinstance(data, list) else ():
        check_numbers(v)
    if isinstance(data, int) and not -(2**63) <= data < 2**63:
        _refuse(f"it holds the number {data:.3g}" if abs(data) < 10**300 else "it holds a number of 300 digits")


def check(saved: Checkpoint, method: Method, problem: Problem, columns: tuple[str, ...]) -> None:
    """Refuse a state that this run cannot have: every array's shape and kind, every number's range."""
    n, d = problem.n, problem.d
    with of_a_run():
        if "parts" not in saved.meta:  # otherwise they are in the parts, which ``rows_of`` checks
            _shapes(saved.arrays, "memory.", dict.fromkeys(method.remembers, (n, d)))
            _array(saved.arrays, "h0", (n, d))
            _array(saved.arrays, "line.participated", (n,), "i")
            _array(saved.arrays, "line.owed", (n,), "i")
            _owed(saved.arrays["line.owed"], saved.meta)
        _shapes(saved.arrays, "server.", {k: v.shape for k, v in method.start(problem, np.zeros(d)).items()})
        _array(saved.arrays, "x0", (d,))
        _trace(saved.arrays, columns)
        meta = saved.meta
        _count("round", meta["round"])
        if meta["psi0"] is not None and not isinstance(meta["psi0"], (int, float)):
            _refuse(f"psi0 is {meta['psi0']!r}")
        scale = meta.get("scale", 0.0)  # version 0.1 kept none
        if isinstance(scale, bool) or not isinstance(scale, (int, float)) or not 0 <= scale < np.inf:
            _refuse(f"scale is {str(scale)[:40]}")
        _count("outcomes", meta["line"]["outcomes"])
        _ledger(meta["line"]["ledger"])
        if set(SIM_COLUMNS) <= set(columns):
            _clock(meta["clock"])
        names = sorted(k for k in saved.arrays if k.startswith("line.outcome"))
        if any(saved.arrays[k].ndim != 1 or saved.arrays[k].dtype.kind != "f" for k in names):
            _refuse("an outcome is no vector")


def _clock(found: Mapping[str, Any]) -> None:
    """The simulated time of a run over a network."""
    if set(found) != {*SIM_COLUMNS, "attempt"}:
        _refuse("its clock has other fields")
    _count("attempt", found["attempt"])
    for name in SIM_COLUMNS:
        v = found[name]
        if v is None and name.startswith("slowest"):
            continue
        if isinstance(v, bool) or not isinstance(v, (int, float)) or not 0 <= v < np.inf:
            _refuse(f"{name} is {str(v)[:40]}")


def rows_of(keep: Folder, method: Method, problem: Problem, limit: int | None) -> RowsState | None:
    """What the clients remember, from the parts of a checkpoint that has some."""
    saved = keep.checkpoint
    assert saved is not None
    if "parts" not in saved.meta:
        return None
    with of_a_run():
        if saved.meta["parts"]["remembers"] != by_rows.lasting(method):
            _refuse(f"clients of {method.name} remember something else")
        keep.journal = Journal(keep.path)
        rows = keep.journal.read(saved.meta["parts"], problem.n, saved.arrays["x0"], limit)
        _owed(rows.numbers["owed"], saved.meta)
    return rows


def _owed(owed: Any, meta: Mapping[str, Any]) -> None:
    _count("outcomes", meta["line"]["outcomes"])
    if np.any(owed > meta["line"]["outcomes"]) or np.any(owed < 0):
        _refuse("a client is owed an outcome that there never was")


def _ledger(found: Mapping[str, Any]) -> None:
    fields = set(Ledger.__dataclass_fields__)
    if not set(found) <= fields or not fields - set(LATER_COLUMNS) <= set(found):
        _refuse("its ledger has other fields")
    for name, value in found.items():
        if name != "seconds":
            _count(name, value)
        elif not isinstance(value, (int, float)) or not 0 <= value < np.inf:
            _refuse(f"seconds is {value!r}")


def _trace(arrays: Mapping[str, Any], columns: tuple[str, ...]) -> None:
    found = {k.removeprefix("trace."): v for k, v in arrays.items() if k.startswith("trace.")}
    if not set(found) <= set(columns) or not set(columns) - set(LATER_COLUMNS) <= set(found):
        _refuse("its trace has other columns")
    if (
        any(v.ndim != 1 or v.dtype.kind not in "fiu" for v in found.values())
        or len({len(v) for v in found.values()}) > 1
    ):
        _refuse("the columns of its trace are not alike")


def _shapes(arrays: Mapping[str, Any], prefix: str, wanted: Mapping[str, tuple[int, ...]]) -> None:
    found = {k.removeprefix(prefix) for k in arrays if k.startswith(prefix)}
    if found != set(wanted):
        _refuse(f"it has the vectors {', '.join(sorted(found)) or 'none'} where the method has {', '.join(wanted)}")
    for name, shape in wanted.items():
        _array(arrays, prefix + name, shape)


def _array(arrays: Mapping[str, Any], name: str, shape: tuple[int, ...], kind: str = "f") -> None:
    v = arrays[name]
    if v.shape != shape or v.dtype.kind != kind or v.dtype.itemsize != 8:
        _refuse(f"{name} has shape {v.shape} and type {v.dtype}")


def _count(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < LARGEST:
        _refuse(f"{name} is {str(value)[:40]}")


def _refuse(why: str) -> None:
    raise CheckpointError(f"the checkpoint is intact, but no run of this problem wrote it: {why}.")
