"""Checks that a checkpoint is one a run could have written; its seal only proves that its bytes are intact."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
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

FRACTIONS = {"seconds", "scale", *SIM_COLUMNS}
LARGEST = 2**62
WRONG_DATA = (
    LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError, StopIteration, AssertionError,
)  # fmt: skip


@contextmanager
def of_a_run() -> Iterator[None]:
    """Blame the checkpoint for anything that goes wrong in here."""
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
    """Refuse plain data with an integer beyond 64 bits."""
    for v in data.values() if isinstance(data, Mapping) else data if isinstance(data, list) else ():
        check_numbers(v)
    if isinstance(data, int) and not -(2**63) <= data < 2**63:
        _refuse(f"it holds the number {data:.3g}" if abs(data) < 10**300 else "it holds a number of 300 digits or more")


def check(saved: Checkpoint, method: Method, problem: Problem, columns: tuple[str, ...]) -> None:
    """Refuse a state that this run cannot have: shapes and types of arrays, ranges of numbers."""
    n, d, arrays, meta = problem.n, problem.d, saved.arrays, saved.meta
    in_parts = "parts" in meta  # they hold the clients' memory, which ``rows_of`` checks
    with of_a_run():
        counts = meta["line"]
        if "bits_up" not in counts["ledger"]:
            raise CheckpointError("this run folder is from proxskip 0.1; finish the run with 0.1 or 0.2.")
        vectors = {f"server.{k}": v.shape for k, v in method.start(problem, np.zeros(d)).items()}
        vectors |= {} if in_parts else {f"memory.{k}": (n, d) for k in method.remembers}
        held = {k for k in arrays if k.startswith(("server.", "memory."))}
        if held != set(vectors):
            _refuse(f"it holds the vectors {', '.join(sorted(held)) or 'none'} instead of {', '.join(vectors)}")
        numbers = {} if in_parts else {"line.participated": (n,), "line.owed": (n,)}
        _check_arrays(arrays, vectors | {"x0": (d,)} | ({} if in_parts else {"h0": (n, d)}), "f")
        _check_arrays(arrays, numbers, "i")
        if any(v.ndim != 1 or v.dtype.kind != "f" for k, v in arrays.items() if k.startswith("line.outcome")):
            _refuse("an outcome is not a vector")
        _check_trace({k.removeprefix("trace."): v for k, v in arrays.items() if k.startswith("trace.")}, columns)
        _check_numbers("it", {"round": meta["round"], "outcomes": counts["outcomes"], "scale": meta["scale"]})
        if not in_parts:
            _check_owed(arrays["line.owed"], meta)
        if meta["psi0"] is not None and not isinstance(meta["psi0"], (int, float)):
            _refuse(f"psi0 is {meta['psi0']!r}")
        _check_numbers("its ledger", counts["ledger"], Ledger.__dataclass_fields__)
        if set(SIM_COLUMNS) <= set(columns):
            # no client is the slowest before the first exchange
            clock = {k: 0.0 if v is None and k.startswith("slowest") else v for k, v in meta["clock"].items()}
            _check_numbers("its clock", clock, (*SIM_COLUMNS, "attempt"))


def rows_of(keep: Folder, method: Method, problem: Problem) -> RowsState | None:
    """The clients' memory from the parts of a checkpoint; None if it has no parts."""
    saved = keep.checkpoint
    assert saved is not None
    if "parts" not in saved.meta:
        return None
    with of_a_run():
        if saved.meta["parts"]["remembers"] != sparse_memory.lasting(method):
            _refuse(f"clients of {method.name} remember other vectors")
        rows = read_rows(keep.path, saved.meta["parts"], problem.n, saved.arrays["x0"])
        _check_owed(rows.numbers["owed"], saved.meta)
    return rows


def _check_owed(owed: Any, meta: Mapping[str, Any]) -> None:
    if np.any(owed > meta["line"]["outcomes"]) or np.any(owed < 0):
        _refuse("a client waits for an outcome that never existed")


def _check_arrays(arrays: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]], kind: str) -> None:
    for name, shape in shapes.items():
        v = arrays[name]
        if v.shape != shape or v.dtype.kind != kind or v.dtype.itemsize != 8:
            _refuse(f"{name} has shape {v.shape} and type {v.dtype}")


def _check_trace(trace: Mapping[str, Any], columns: tuple[str, ...]) -> None:
    if set(trace) != set(columns):
        _refuse("its trace has other columns")
    numbers = all(v.ndim == 1 and v.dtype.kind in "fiu" for v in trace.values())
    if not numbers or len({len(v) for v in trace.values()}) > 1:
        _refuse("the columns of its trace differ in length or type")


def _check_numbers(what: str, numbers: Mapping[str, Any], names: Iterable[str] | None = None) -> None:
    """Exactly these names, no negative number, and integers except for ``FRACTIONS``."""
    if names is not None and set(numbers) != set(names):
        _refuse(f"{what} has other fields")
    for name, value in numbers.items():
        kinds, most = ((int, float), np.inf) if name in FRACTIONS else (int, LARGEST)
        if isinstance(value, bool) or not isinstance(value, kinds) or not 0 <= value < most:
            _refuse(f"{name} is {str(value)[:40]}")


def _refuse(why: str) -> None:
    raise CheckpointError(f"the checkpoint is intact, but no run of this problem wrote it: {why}.")
