"""Tuning for the reproduction, with the same grid and budget for every method, and its table."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from proxskip.experiments.curves import Curve
from proxskip.methods.registry import METHODS, title
from proxskip.report.figures import Table, first_below
from proxskip.results.result import RunResult
from proxskip.running.tune import Candidate, grid, halve, local_steps

LADDER = (1, 3, 10, 30, 100, 300, 1000, 3000)
"""The numbers of local steps to which a grid grows."""


@dataclass(frozen=True, slots=True)
class Rules:
    """How to search.

    Args:
        powers: gamma = 2^k/L for these k.
        rungs: rounds and survivors of each rung.
        steps: numbers of local steps; those of the curve if not given.
        most_steps: a grid grows where its winner lies at an end, up to so many local steps; no grid grows if 0.
        eps: the fewest rounds to it win; without it, or if none gets there, the smallest f - f* at the end.
    """

    powers: Sequence[int]
    rungs: Sequence[Sequence[int]]
    steps: Sequence[int] | None = None
    most_steps: int = 0
    eps: float | None = None


def tuned(
    id: str,
    curves: Sequence[Curve],
    L: float,
    rules: Rules,
    gaps: Callable[[Sequence[Candidate], int], Sequence[float | None]],
    run: Callable[[Sequence[Curve]], Sequence[RunResult]],
) -> tuple[list[Curve], Table]:
    """Every curve with the best parameters of its grid, and the table of the grids.

    Args:
        id: of the table.
        L: for the step sizes.
        gaps: f - f* of candidates after some rounds.
        run: runs curves to their end.
    """
    by_method = {c.method: c for c in curves}
    grids = {
        name: grid(METHODS[name], L, rules.powers, rules.steps or [_own_steps(c)], **c.parameters)
        for name, c in by_method.items()
    }
    winners: dict[str, Candidate] = {}
    growing = list(by_method)
    while growing:
        finalists = halve([c for name in growing for c in grids[name]], rules.rungs, gaps)
        # the finalists run to the end: the best after few rounds need not be the first at eps
        runs = run([_with_parameters(by_method[c.method], c) for c in finalists])
        by_order = sorted(zip(runs, finalists, strict=True), key=lambda pair: _order(pair[0], rules.eps))
        winners |= {c.method: c for _, c in reversed(by_order)}  # the best of a method is written last
        if not rules.most_steps:
            break
        added = {name: beyond(grids[name], winners[name], L, rules.most_steps) for name in growing}
        for name, new in added.items():
            grids[name] += new
        growing = [name for name, new in added.items() if new]
    best = [_with_parameters(c, winners[c.method]) for c in curves]
    return best, grid_table(id, grids, winners)


def _own_steps(c: Curve) -> int:
    """The number of local steps of a curve."""
    steps: float = c.flags.get("K") or 1 / c.flags.get("p", 1.0)
    return round(steps)


def _with_parameters(c: Curve, found: Candidate) -> Curve:
    about = {**c.about, "gamma_L": found.times, "local_steps": found.steps}
    return replace(c, flags={**c.flags, **found.flags}, about=about)


def _order(run: RunResult, eps: float | None) -> tuple[float, float]:
    """By rounds to eps; if no run gets there, by f - f* at the end."""
    rounds = None if eps is None else first_below(run.trace["round"], run.trace["gap"], eps)
    return rounds or math.inf, run.summary["gap"] or math.inf


def beyond(tried: Sequence[Candidate], winner: Candidate, L: float, most_steps: int) -> list[Candidate]:
    """The candidates next to a winner that lies at an end of its grid; none if it lies inside."""
    open_, steps = ends(tried, winner), sorted({c.steps for c in tried})
    points: list[tuple[float, int]] = []
    if "larger steps" in open_:
        points += [(2 * winner.times, K) for K in steps]
    if "smaller steps" in open_:
        points += [(winner.times / 2, K) for K in steps]
    # with more local steps the best step size is often smaller
    if "fewer local steps" in open_:
        fewer = [K for K in LADDER if winner.steps > K][-1:]
        points += [(winner.times * t, K) for K in fewer for t in (0.5, 1, 2, 4)]
    if "more local steps" in open_:
        further = [K for K in LADDER if winner.steps < K <= most_steps][:1]
        points += [(winner.times * t, K) for K in further for t in (0.25, 0.5, 1, 2)]
    known = {(c.times, c.steps) for c in tried}
    new = [(t, K) for t, K in points if (t, K) not in known]
    name = winner.method
    return [Candidate(name, t, K, {**winner.flags, "gamma": t / L, **local_steps(METHODS[name], K)}) for t, K in new]


def ends(tried: Sequence[Candidate], winner: Candidate) -> list[str]:
    """The directions in which nothing was tried beyond the winner."""
    row = [c.times for c in tried if c.steps == winner.steps]
    open_ = {"larger steps": winner.times >= max(row), "smaller steps": winner.times <= min(row)}
    if len({c.steps for c in tried}) > 1:
        most, least = max(c.steps for c in tried), min(c.steps for c in tried)
        open_ |= {"more local steps": winner.steps >= most, "fewer local steps": winner.steps <= least > 1}
    return [direction for direction, missing in open_.items() if missing]


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
    reached = "diverged" if gap is None else f"{gap:.1e}"
    return f"{reached} ({rounds}) *" if winner else f"{reached} ({rounds})"
