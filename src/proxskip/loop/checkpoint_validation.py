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
    """Refuse a state that this run cannot have: every array's shape and type, every number's range."""
    n, d, arrays, meta = problem.n, problem.d, saved.arrays, saved.meta
    with of_a_run():
        counts = meta["line"]
        if "bits_up" not in counts["ledger"]:
            raise CheckpointError("this run folder was made by proxskip 0.1; finish the run with 0.1 or 0.2.")
        outcomes = {k: (v.size,) for k, v in arrays.items() if k.startswith("line.outcome")}
        records = (len(arrays[f"trace.{columns[0]}"]),)
        shapes = {f"server.{k}": v.shape for k, v in method.start(problem, np.zeros(d)).items()}
        shapes |= {"x0": (d,), "x": (d,)} | outcomes | {f"trace.{k}": records for k in columns}
        if meta["best"] is not None:
            shapes["best"] = (d,)
        counted = {}
        if "parts" not in meta:  # otherwise the parts hold what the clients remember, and ``rows_of`` checks them
            shapes |= {"h0": (n, d)} | {f"memory.{k}": (n, d) for k in method.remembers}
            counted = {"line.participated": (n,), "line.owed": (n,)}
        layout = {k: (shape, "float64") for k, shape in shapes.items()}
        layout |= {k: (shape, "int64") for k, shape in counted.items()}
        held = {k: (v.shape, v.dtype.name) for k, v in arrays.items() if not k.startswith("list.")}
        for name in sorted(k for k in held.keys() | layout if held.get(k) != layout.get(k)):
            _refuse(f"{name} is {held.get(name, 'missing')} where this run has {layout.get(name, 'nothing')}")
        _check_numbers("it", {"round": meta["round"], "outcomes": counts["outcomes"], "scale": meta["scale"]})
        if counted:
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
