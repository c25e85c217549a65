"""Tuning for the reproduction, with the same grid and budget for every method, and its table."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from proxskip.experiments.workspace import Workspace, final_gap
from proxskip.registry import title
from proxskip.report.figures import Table
from proxskip.tuning import Candidate, local_steps

LADDER = (1, 3, 10, 30, 100, 300, 1000, 3000)
"""The numbers of local steps to which a grid grows."""


def beyond(name: str, tried: Sequence[Candidate], winner: Candidate, L: float, most_steps: int) -> list[Candidate]:
    """The candidates next to a winner that lies at an end of its grid; none if it lies inside."""
    open_, steps = ends(tried, winner), sorted({c.steps for c in tried})
    points: list[tuple[float, int]] = []
    points += [(2 * winner.times, K) for K in steps] if "larger steps" in open_ else []
    points += [(winner.times / 2, K) for K in steps] if "smaller steps" in open_ else []
    # with more local steps the best step size is often smaller
    fewer = [K for K in LADDER if winner.steps > K][-1:]
    further = [K for K in LADDER if winner.steps < K <= most_steps][:1]
    points += [(winner.times * t, K) for K in fewer for t in (0.5, 1, 2, 4)] if "fewer local steps" in open_ else []
    points += [(winner.times * t, K) for K in further for t in (0.25, 0.5, 1, 2)] if "more local steps" in open_ else []
    known = {(c.times, c.steps) for c in tried}
    new = [(t, K) for t, K in points if (t, K) not in known]
    return [Candidate(t, K, {**winner.flags, "gamma": t / L, **local_steps(name, K)}) for t, K in new]


def ends(tried: Sequence[Candidate], winner: Candidate) -> list[str]:
    """The directions in which nothing was tried beyond the winner."""
    row = [c.times for c in tried if c.steps == winner.steps]
    open_ = {"larger steps": winner.times >= max(row), "smaller steps": winner.times <= min(row)}
    if len({c.steps for c in tried}) > 1:
        most, least = max(c.steps for c in tried), min(c.steps for c in tried)
        open_ |= {"more local steps": winner.steps >= most, "fewer local steps": winner.steps <= least > 1}
    return [direction for direction, missing in open_.items() if missing]


def final_gaps(
    workspace: Workspace, problem: Mapping[str, Any], candidates: Sequence[tuple[str, Candidate]], rounds: int
) -> list[float | None]:
    """f - f* of each candidate (with its method's name) after some rounds; None if it diverged."""
    labels = [f"tuning {title(name)} for {rounds} rounds" for name, _ in candidates]
    parameters = [
        {"problem": dict(problem), "method": name, "flags": dict(c.flags), "rounds": rounds, "engine": workspace.engine}
        for name, c in candidates
    ]
    return workspace.cached_values("try", parameters, final_gap, labels)


def grid_table(id: str, tried: Mapping[str, Sequence[Candidate]], won: Mapping[str, Candidate]) -> Table:
    """f - f* of every candidate in its last rung: one row per method and local steps, one column per step size."""
    times = sorted({c.times for candidates in tried.values() for c in candidates})
    rows: list[list[str | float | int | None]] = []
    for name, candidates in tried.items():
        for K in sorted({c.steps for c in candidates}):
            cells = {c.times: _cell(c, c is won[name]) for c in candidates if c.steps == K}
            rows.append([title(name), K, *(cells.get(t, "") for t in times)])
    columns = ["method", "local steps", *(f"gamma L = {t:g}" for t in times)]
    note = "f - f* after the rounds in brackets; each rung drops the worst candidates; * marks the winner."
    for name, c in won.items():
        above = [t for t in tried[name] if t.steps == c.steps and t.times > c.times]
        if open_ := ends(tried[name], c):
            note += f" The winner of {title(name)} lies at an end of the grid, towards {' and '.join(open_)}."
        elif min(above, key=lambda t: t.times).score == math.inf:
            note += f" {title(name)} diverges at the next larger step: its limit of stability ends the grid."
    return Table(id, "The grid", columns, rows, note)


def _cell(c: Candidate, winner: bool) -> str:
    rounds = max(c.gaps)
    gap = c.gaps[rounds]
    return (f"{gap:.1e}" if gap is not None else "diverged") + f" ({rounds})" + (" *" if winner else "")
