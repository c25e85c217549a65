"""A checkpoint's seal says that its bytes are those that were written, not that a run wrote them: this checks what."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np

from proxskip.interfaces import Method
from proxskip.loop import sparse_memory
from proxskip.loop.ledger import Ledger
from proxskip.loop.simulated_time import SIM_COLUMNS
from proxskip.problems.federated import Problem
from proxskip.results.checkpoint import Checkpoint, CheckpointError
from proxskip.results.folder import Folder
from proxskip.results.journal import RowsState, read_rows
from proxskip.types import InputError

LATER_COLUMNS = ("bits_up", "bits_down")
"""Columns of a trace that version 0.1 did not have."""
LARGEST = 2**62
WRONG_DATA = (
    LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError, StopIteration, AssertionError,
)  # fmt: skip


@contextmanager
def of_a_run() -> Iterator[None]:
    """Whatever goes wrong in here is the checkpoint's fault."""
    try:
        yield
    except InputError:
        raise
    except WRONG_DATA as error:
        why = " ".join(str(error).split())[:120]
        raise CheckpointError(
            f"the checkpoint is intact, but no run wrote it ({type(error).__name__}: {why})."
        ) from None


def check_numbers(data: Any) -> None:
    """Refuse plain data with a whole number that no 64-bit integer can be."""
    for v in data.values() if isinstance(data, Mapping) else data if isinstance(data, list) else ():
        check_numbers(v)
    if isinstance(data, int) and not -(2**63) <= data < 2**63:
        _refuse(f"it holds the number {data:.3g}" if abs(data) < 10**300 else "it holds a number of 300 digits")


def check(saved: Checkpoint, method: Method, problem: Problem, columns: tuple[str, ...]) -> None:
    """Refuse a state that this run cannot have: every array's shape and kind, every number's range."""
    n, d, arrays, meta = problem.n, problem.d, saved.arrays, saved.meta
    with of_a_run():
        vectors = {f"server.{k}": v.shape for k, v in method.start(problem, np.zeros(d)).items()}
        shapes: dict[str, tuple[int, ...]] = {"x0": (d,)}
        counts = {}
        if "parts" not in meta:  # otherwise they are in the parts, which ``rows_of`` checks
            vectors |= {f"memory.{k}": (n, d) for k in method.remembers}
            shapes |= {"h0": (n, d)}
            counts = {"line.participated": (n,), "line.owed": (n,)}
            _check_owed(arrays["line.owed"], meta)
        held = {k for k in arrays if k.startswith(("server.", "memory."))}
        if held != set(vectors):
            _refuse(f"it has the vectors {', '.join(sorted(held)) or 'none'} where the method has {', '.join(vectors)}")
        _check_arrays(arrays, shapes | vectors, "f")
        _check_arrays(arrays, counts, "i")
        if any(v.ndim != 1 or v.dtype.kind != "f" for k, v in arrays.items() if k.startswith("line.outcome")):
            _refuse("an outcome is no vector")
        _check_trace({k.removeprefix("trace."): v for k, v in arrays.items() if k.startswith("trace.")}, columns)
        _check_count("round", meta["round"])
        _check_count("outcomes", meta["line"]["outcomes"])
        if meta["psi0"] is not None and not isinstance(meta["psi0"], (int, float)):
            _refuse(f"psi0 is {meta['psi0']!r}")
        _check_number("scale", meta.get("scale", 0.0))  # version 0.1 kept none
        _check_ledger(meta["line"]["ledger"])
        if set(SIM_COLUMNS) <= set(columns):
            _check_clock(meta["clock"])


def rows_of(keep: Folder, method: Method, problem: Problem, limit: int | None) -> RowsState | None:
    """What the clients remember, from the parts of a checkpoint that has some."""
    saved = keep.checkpoint
    assert saved is not None
    if "parts" not in saved.meta:
        return None
    with of_a_run():
        if saved.meta["parts"]["remembers"] != sparse_memory.lasting(method):
            _refuse(f"clients of {method.name} remember something else")
        rows = read_rows(keep.path, saved.meta["parts"], problem.n, saved.arrays["x0"], limit)
        _check_owed(rows.numbers["owed"], saved.meta)
    return rows


def _check_owed(owed: Any, meta: Mapping[str, Any]) -> None:
    _check_count("outcomes", meta["line"]["outcomes"])
    if np.any(owed > meta["line"]["outcomes"]) or np.any(owed < 0):
        _refuse("a client is owed an outcome that there never was")


def _check_arrays(arrays: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]], kind: str) -> None:
    for name, shape in shapes.items():
        v = arrays[name]
        if v.shape != shape or v.dtype.kind != kind or v.dtype.itemsize != 8:
            _refuse(f"{name} has shape {v.shape} and type {v.dtype}")


def _check_trace(trace: Mapping[str, Any], columns: tuple[str, ...]) -> None:
    if not set(trace) <= set(columns) or not set(columns) - set(LATER_COLUMNS) <= set(trace):
        _refuse("its trace has other columns")
    numbers = all(v.ndim == 1 and v.dtype.kind in "fiu" for v in trace.values())
    if not numbers or len({len(v) for v in trace.values()}) > 1:
        _refuse("the columns of its trace are not alike")


def _check_ledger(ledger: Mapping[str, Any]) -> None:
    fields = set(Ledger.__dataclass_fields__)
    if not set(ledger) <= fields or not fields - set(LATER_COLUMNS) <= set(ledger):
        _refuse("its ledger has other fields")
    for name, value in ledger.items():
        (_check_number if name == "seconds" else _check_count)(name, value)


def _check_clock(clock: Mapping[str, Any]) -> None:
    """The simulated time of a run over a network."""
    if set(clock) != {*SIM_COLUMNS, "attempt"}:
        _refuse("its clock has other fields")
    _check_count("attempt", clock["attempt"])
    for name in SIM_COLUMNS:
        if clock[name] is not None or not name.startswith("slowest"):
            _check_number(name, clock[name])


def _check_count(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < LARGEST:
        _refuse(f"{name} is {str(value)[:40]}")


def _check_number(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < np.inf:
        _refuse(f"{name} is {str(value)[:40]}")


def _refuse(why: str) -> None:
    raise CheckpointError(f"the checkpoint is intact, but no run of this problem wrote it: {why}.")
