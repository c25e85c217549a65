"""Tuning by successive halving: every method the same grid and the same budget, the worst candidates cut first."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from proxskip.experiments.workspace import CachedRun, Workspace
from proxskip.problems.federated import Problem
from proxskip.report.figures import Table
from proxskip.report.plots import NAMES

STEPLESS = ("gd", "accelerated")
"""Methods without local steps."""
DRAWN = ("scaffnew", "s-local-gd")
"""Methods that draw their number of local steps with a probability p."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """One point of the grid."""

    times: float
    """gamma times L."""
    steps: int
    """Local steps a round, in the mean where they are drawn."""
    flags: Mapping[str, Any]
    gaps: dict[int, float | None] = field(default_factory=dict)
    """f - f* after so many rounds; None: it diverged."""

    @property
    def score(self) -> float:
        """f - f* after the most rounds; infinite where it diverged."""
        last = self.gaps[max(self.gaps)] if self.gaps else None
        return math.inf if last is None or math.isnan(last) else last


def grid(name: str, L: float, powers: Sequence[int], steps: Sequence[int], **more: Any) -> list[Candidate]:
    """gamma = 2^k/L for the given k, with each number of local steps where the method takes any."""
    out = []
    for K in [1] if name in STEPLESS else steps:
        own: dict[str, Any] = {} if name in STEPLESS else {"p": 1 / K} if name in DRAWN else {"K": K}
        out += [Candidate(2.0**k, K, {"gamma": 2.0**k / L, **own, **more}) for k in powers]
    return out


def tune(
    workspace: Workspace,
    problem: Problem,
    name: str,
    candidates: Sequence[Candidate],
    rungs: Sequence[Sequence[int]],
    upto: float,
) -> list[Candidate]:
    """The finalists, the best first: each rung (rounds, how many go on) runs those left from the start, for longer.

    A candidate that diverges is cut at the record that shows it.
    """
    start, left = workspace.progress.inside, list(candidates)
    for k, (rounds, keep) in enumerate(rungs):
        methods = [workspace.method(name, problem, **c.flags) for c in left]
        text = f"tuning {NAMES[name]}, {rounds} rounds of {len(left)}"
        gaps = workspace.tries(problem, methods, rounds, text, upto=start + (upto - start) * (k + 1) / len(rungs))
        for c, gap in zip(left, gaps, strict=True):
            c.gaps[rounds] = gap
        left = sorted(left, key=lambda c: c.score)[:keep]
    return left


def grid_table(id: str, tried: Mapping[str, Sequence[Candidate]], won: Mapping[str, Candidate]) -> Table:
    """f - f* of every candidate in its last rung: a row a method and number of local steps, a column a step size."""
    times = sorted({c.times for found in tried.values() for c in found})
    rows: list[list[str | float | int | None]] = []
    for name, found in tried.items():
        for K in sorted({c.steps for c in found}):
            cells = {c.times: _cell(c, c is won[name]) for c in found if c.steps == K}
            rows.append([NAMES[name], K, *(cells.get(t, "") for t in times)])
    columns = ["method", "local steps", *(f"gamma L = {t:g}" for t in times)]
    note = "f - f* after the rounds in brackets; the worst were cut at each rung; * marks the winner."
    ends = [NAMES[name] for name, c in won.items() if c.times in (times[0], times[-1])]
    note += "".join(f" The winner of {name} lies at the end of the grid." for name in ends)
    return Table(id, "The grid", columns, rows, note)


def _cell(c: Candidate, winner: bool) -> str:
    rounds = max(c.gaps)
    gap = c.gaps[rounds]
    return (f"{gap:.1e}" if gap is not None else "diverged") + f" ({rounds})" + (" *" if winner else "")


def winners_table(
    id: str, tried: Mapping[str, Sequence[Candidate]], won: Mapping[str, tuple[CachedRun, Candidate]], eps: float
) -> Table:
    """What each method won with, and from how many candidates and rounds."""
    rows: list[list[str | float | int | None]] = []
    for name, (run, c) in won.items():
        spent = sum(sum(t.gaps) for t in tried[name])
        rows.append([NAMES[name], c.times, c.flags["gamma"], c.steps, len(tried[name]), spent])
        rows[-1] += [run.first(eps), run.summary["gap"]]
    columns = ["method", "gamma L", "gamma", "local steps", "candidates", "rounds spent"]
    return Table(id, "The winners", [*columns, f"rounds to {eps:g}", "f - f* at the end"], rows)
