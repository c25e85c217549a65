"""Runs by their content: what is requested, and the finished run that a folder holds."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from proxskip.results.result import Status
from proxskip.results.trace import Trace
from proxskip.types import Array, InputError


@dataclass(frozen=True, slots=True)
class RunRequest:
    """One run: the command line's flags for the method, for the problem and for stopping (including ``every``).

    ``flags`` may contain ``cohort``. Steps beyond the method's limits are allowed here; the run's summary warns.
    """

    label: str
    method: str
    flags: Mapping[str, Any] = field(default_factory=dict)
    problem: Mapping[str, Any] = field(default_factory=dict)
    stop: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 0


@dataclass(frozen=True, slots=True)
class CachedRun:
    """A finished run, read from its folder."""

    job: RunRequest
    folder: Path
    summary: dict[str, Any]
    trace: Trace

    @property
    def x(self) -> Array:
        """The last communicated x."""
        return np.asarray(np.load(self.folder / "x.npy", allow_pickle=False))

    def first(self, below: float, x: str = "round") -> float | None:
        """The value of ``x`` in the first record with ``|f - f*| <= below``; None if there is no such record."""
        hit = np.flatnonzero(np.abs(self.trace["gap"]) <= below)
        return float(self.trace[x][hit[0]]) if len(hit) else None


def read(job: RunRequest, folder: Path) -> CachedRun | None:
    """The finished run of a folder; None if there is none yet."""
    try:
        summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    # such a run is resumed, not read
    if summary["status"] == Status.INTERRUPTED.name:
        return None
    return CachedRun(job, folder, summary, Trace.from_npz(folder / "trace.npz"))


def digest(content: Any) -> str:
    """Twenty hexadecimal digits that identify plain data."""
    # sorted, so that equal content has one digest
    plain = json.dumps(content, sort_keys=True, default=_plain, allow_nan=True)
    return hashlib.sha256(plain.encode()).hexdigest()[:20]


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, Mapping):
        return dict(value)
    raise InputError(f"{type(value).__name__} cannot be part of a key; give plain data.")
