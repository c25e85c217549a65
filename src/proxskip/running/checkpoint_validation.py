"""A saved state fits a run if its arrays have the names, shapes and types that a fresh state of the run has."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from proxskip.core.method import Method
from proxskip.problems.federated import Problem
from proxskip.results.checkpoint import Checkpoint, CheckpointError
from proxskip.results.folder import Folder
from proxskip.results.journal import NUMBERS, RowsState, read_rows

Form = tuple[tuple[int, ...], str]
"""The shape and the type of an array."""


def check(saved: Checkpoint, method: Method, problem: Problem, columns: Sequence[str]) -> None:
    """Refuse a state that this run cannot have."""
    expected = _fresh(saved, method, problem, columns)
    held = {name: (v.shape, v.dtype.name) for name, v in saved.arrays.items()}
    for name in sorted(expected.keys() | held.keys()):
        has, needs = held.get(name, "missing"), expected.get(name, "nothing")
        if has != needs:
            raise CheckpointError(
                "the checkpoint is intact, but another problem or another version of proxskip wrote it: "
                f"{name} is {has} where this run has {needs}."
            )


def _fresh(saved: Checkpoint, method: Method, problem: Problem, columns: Sequence[str]) -> dict[str, Form]:
    """The arrays of a fresh state; how many records there are, and which lists, is up to the saved one."""
    n, d = problem.n, problem.d
    free = [name for name in saved.arrays if name.startswith(("line.outcome", "list."))]
    form: dict[str, Form] = {name: (saved.arrays[name].shape, saved.arrays[name].dtype.name) for name in free}
    for name, v in method.start(problem, np.zeros(d)).items():
        form[f"server.{name}"] = v.shape, "float64"
    for name in ("x", "x0"):
        form[name] = (d,), "float64"
    if saved.meta["best"] is not None:
        form["best"] = (d,), "float64"
    records = saved.arrays.get(f"trace.{columns[0]}", np.zeros(0)).shape
    for name in columns:
        form[f"trace.{name}"] = records, "float64"
    if "parts" in saved.meta:  # they hold what the clients remember, and the checkpoint has their sha256
        return form
    for name in ("h0", *(f"memory.{k}" for k in method.remembers)):
        form[name] = (n, d), "float64"
    for name in NUMBERS:
        form[f"line.{name}"] = (n,), "int64"
    return form


def rows_of(keep: Folder, method: Method, problem: Problem) -> RowsState | None:
    """The clients' memory from the parts of a checkpoint; None if it has no parts."""
    saved = keep.checkpoint
    assert saved is not None
    parts: dict[str, Any] | None = saved.meta.get("parts")
    if parts is None:
        return None
    if parts["remembers"] != list(method.remembers):
        raise CheckpointError(f"the checkpoint is intact, but clients of {method.name} remember other vectors.")
    return read_rows(keep.path, parts, problem.n, saved.arrays["x0"])
