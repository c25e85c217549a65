"""Tuning by successive halving: the same grid and budget for every method; the worst candidates are cut first."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from proxskip.experiments.workspace import CachedRun, Workspace, local_steps_flag
from proxskip.problems.federated import Problem
from proxskip.report.figures import Table
from proxskip.report.method_styles import title


@dataclass(frozen=True, slots=True)
class Candidate:
    """One point of the grid."""

    times: float
    """gamma times L."""
    steps: int
    """Local steps per round, on average if they are drawn."""
    flags: Mapping[str, Any]
    gaps: dict[int, float | None] = field(default_factory=dict)
    """f - f* by the number of rounds; None if the run diverged."""

    @property
    def score(self) -> float:
        """f - f* after the longest run; infinite if it diverged."""
        last = self.gaps[max(self.gaps)] if self.gaps else None
        return math.inf if last is None or math.isnan(last) else last


def grid(name: str, L: float, powers: Sequence[int], steps: Sequence[int], **more: Any) -> list[Candidate]:
    """gamma = 2^k/L for the given k, with each number of local steps if the method takes local steps."""
    out = []
    for K in steps if local_steps_flag(name) else [1]:
        own = local_steps(name, K)
        out += [Candidate(2.0**k, K, {"gamma": 2.0**k / L, **own, **more}) for k in powers]
    return out


def local_steps(name: str, K: int) -> dict[str, float]:
    """The flag for K local steps per round, on average if the method draws their number; none without local steps."""
    flag = local_steps_flag(name)
    return {} if flag is None else {flag: 1 / K if flag == "p" else K}


def tune(
    workspace: Workspace,
    problem: Problem,
    name: str,
    candidates: Sequence[Candidate],
    rungs: Sequence[Sequence[int]],
    upto: float,
) -> list[Candidate]:
    """The finalists, the best first.

    Each rung (rounds, number of survivors) runs the candidates that are left from the start, for more rounds than
    the rung before. A candidate that diverges is cut at the record that shows it.
    """
    start, left = workspace.progress.inside, list(candidates)
    for k, (rounds, keep) in enumerate(rungs):
        methods = [workspace.method(name, problem, **c.flags) for c in left]
        text = f"tuning {title(name)}, {len(left)} candidates for {rounds} rounds"
        gaps = workspace.final_gaps(problem, methods, rounds, text, upto=start + (upto - start) * (k + 1) / len(rungs))
        for c, gap in zip(left, gaps, strict=True):
            c.gaps[rounds] = gap
        # sorting is stable: of equal candidates the earlier one of the grid stays
        left = sorted(left, key=lambda c: c.score)[:keep]
    return left


def grid_table(id: str, tried: Mapping[str, Sequence[Candidate]], won: Mapping[str, Candidate]) -> Table:
    """f - f* of every candidate in its last rung: one row per method and number of local steps, one column per step."""
    times = sorted({c.times for found in tried.values() for c in found})
    rows: list[list[str | float | int | None]] = []
    for name, found in tried.items():
        for K in sorted({c.steps for c in found}):
            cells = {c.times: _cell(c, c is won[name]) for c in found if c.steps == K}
            rows.append([title(name), K, *(cells.get(t, "") for t in times)])
    columns = ["method", "local steps", *(f"gamma L = {t:g}" for t in times)]
    note = "f - f* after the rounds in brackets; the worst candidates are cut at each rung; * marks the winner."
    ends = [title(name) for name, c in won.items() if c.times in (times[0], times[-1])]
    note += "".join(f" The winner of {name} lies at an end of the grid." for name in ends)
    return Table(id, "The grid", columns, rows, note)


def _cell(c: Candidate, winner: bool) -> str:
    rounds = max(c.gaps)
    gap = c.gaps[rounds]
    return (f"{gap:.1e}" if gap is not None else "diverged") + f" ({rounds})" + (" *" if winner else "")


def winners_table(
    id: str, tried: Mapping[str, Sequence[Candidate]], won: Mapping[str, tuple[CachedRun, Candidate]], eps: float
) -> Table:
    """The best parameters of each method, and the number of candidates and rounds that it took to find them."""
    rows: list[list[str | float | int | None]] = []
    for name, (run, c) in won.items():
        spent = sum(sum(t.gaps) for t in tried[name])
        rows.append([title(name), c.times, c.flags["gamma"], c.steps, len(tried[name]), spent])
        rows[-1] += [run.first(eps), run.summary["gap"]]
    columns = ["method", "gamma L", "gamma", "local steps", "candidates", "rounds spent"]
    return Table(id, "The winners", [*columns, f"rounds to {eps:g}", "f - f* at the end"], rows)
