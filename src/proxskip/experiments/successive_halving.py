"""The reproduction's tuning, with the same grid and budget for every method, and its tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from proxskip.experiments.workspace import CachedRun, Workspace
from proxskip.problems.federated import Problem
from proxskip.report.figures import Table
from proxskip.report.method_styles import title
from proxskip.tune import Candidate, halve


def tune(
    workspace: Workspace,
    problem: Problem,
    name: str,
    candidates: Sequence[Candidate],
    rungs: Sequence[Sequence[int]],
    upto: float,
) -> list[Candidate]:
    """The finalists, the best first; every run is kept in the workspace, and none is made twice."""
    start, k = workspace.progress.inside, 0

    def measured(left: Sequence[Candidate], rounds: int) -> list[float | None]:
        nonlocal k
        k += 1
        methods = [workspace.method(name, problem, **c.flags) for c in left]
        text = f"tuning {title(name)}, {len(left)} candidates for {rounds} rounds"
        return workspace.final_gaps(problem, methods, rounds, text, upto=start + (upto - start) * k / len(rungs))

    return halve(candidates, rungs, measured)


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
