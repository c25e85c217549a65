"""Tuning by successive halving: one grid and one budget of rounds; every rung drops the worst candidates.

Jamieson and Talwalkar, "Non-stochastic best arm identification and hyperparameter optimization" (2016,
arXiv:1502.07943). The reproduction of the paper's figures tunes with the same functions.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from proxskip import theory
from proxskip.core.method import Method, flags
from proxskip.methods import Decaying, registry
from proxskip.problems.federated import Problem
from proxskip.results.plain_table import Table, Tabled
from proxskip.results.result import RunResult, Status
from proxskip.running.many_runs import RunTask, run_many
from proxskip.running.progress import OverallProgress, is_wanted
from proxskip.running.run import as_problem
from proxskip.running.sweep import seeds_for, seeds_of
from proxskip.support import display
from proxskip.types import InputError, Oracle, UnsafeStepWarning

if TYPE_CHECKING:
    from matplotlib.axes import Axes

POWERS = tuple(range(-4, 4))
"""gamma = 2^k/L for these k, as in the reproduction."""
BEST_SHOWN = 6
"""Candidates that the table of a tuning shows."""
CUT = 3
"""About one in this many candidates survives a rung."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """One point of a method's grid."""

    method: str
    """The name of the method."""
    times: float
    """gamma times L."""
    steps: int
    """Local steps per round, on average if they are drawn."""
    flags: Mapping[str, Any]
    gaps: dict[int, float | None] = field(default_factory=dict)
    """f - f* (f where f* is unknown) by the number of rounds; None if the run diverged."""
    needed: dict[int, float] = field(default_factory=dict)
    """The rounds to the target, by the number of rounds; infinite if it was not reached."""

    @property
    def rank(self) -> tuple[float, float]:
        """What candidates are sorted by: the rounds to the target if there is one, then f - f*."""
        return self.needed.get(max(self.gaps, default=0), math.inf), self.score

    @property
    def score(self) -> float:
        """f - f* after the longest run; infinite if it diverged."""
        return self._after(max(self.gaps, default=0))

    @property
    def first_score(self) -> float:
        """f - f* after the shortest run, which all candidates made."""
        return self._after(min(self.gaps, default=0))

    def _after(self, rounds: int) -> float:
        gap = self.gaps.get(rounds)
        return math.inf if gap is None or math.isnan(gap) else gap


@dataclass(frozen=True, repr=False)
class Tuned(Tabled):
    """What ``tune`` found: the best method, and all candidates, the best first.

    Args:
        method: the best one, with its parameters.
        candidates: all of them, the best first.
        rounds: spent, over all candidates and seeds.
        warnings: what the table does not show.
        target: as it was given.
    """

    method: Method
    candidates: tuple[Candidate, ...]
    rounds: int
    warnings: tuple[str, ...] = ()
    target: float | None = None

    @property
    def best(self) -> Candidate:
        """The candidate that ``method`` was made from."""
        return self.candidates[0]

    def grid(self) -> tuple[list[float], list[int], list[list[Candidate | None]]]:
        """The step sizes (times L), the numbers of local steps, and the candidates in rows of one step size each."""
        times, steps = (sorted({getattr(c, name) for c in self.candidates}) for name in ("times", "steps"))
        found = {(c.times, c.steps): c for c in self.candidates}
        return times, steps, [[found.get((t, K)) for K in steps] for t in times]

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw a heat map of f - f* after the first rounds, which all candidates ran; a star marks the best one.

        Args:
            ax: axes to draw on; new ones if not given.
        """
        from proxskip.support.heat_map import heat_map  # most programs draw nothing

        times, steps, cells = self.grid()
        values = [[math.inf if c is None else c.first_score for c in row] for row in cells]
        star = (steps.index(self.best.steps), times.index(self.best.times))
        rounds = min(self.best.gaps)
        return heat_map(values, steps, times, star, "local steps", "gamma L", f"f - f* after {rounds:,} rounds", ax)

    def as_table(self) -> Table:
        """The best candidates; its records are all of them."""
        given = self.method.parameters()
        chosen = [display.parameter(k, v) for k, v in given.items() if v is not None and v is not False]
        method = ", ".join([registry.title(self.method.name), *chosen])
        title = f"Tuned: {method}; {len(self.candidates)} candidates, {self.rounds:,} rounds"
        head = ["gamma L", "local steps", "rounds", "f - f*"]
        if self.target is not None:
            head.append(f"to {self.target:g}")
        rows, lines = [], []
        for c in self.candidates:
            rounds, needed = max(c.gaps), c.rank[0]
            gap = "diverged" if c.score == math.inf else f"{c.score:.2e}"
            line = [f"{c.times:g}", str(c.steps), str(rounds), gap, "-" if needed == math.inf else f"{needed:g}"]
            lines.append(line[: len(head)])
            rows.append(dict(zip(head, (c.times, c.steps, rounds, c.score, needed), strict=False)))
        return Table(title, head, lines[:BEST_SHOWN], rows, self.warnings)


def tune(
    method: Method | type[Method] | str,
    problem: Problem | Oracle,
    *,
    budget: int = 2000,
    powers: Sequence[int] = POWERS,
    steps: Sequence[int] | None = None,
    seeds: int | Sequence[int] = 1,
    target: float | None = None,
    cohort: Any = None,
    engine: str = "cpu",
    threads: int | None = None,
    jobs: int = 1,
    out: str | Path | None = None,
    progress: bool | None = None,
) -> Tuned:
    """The best gamma = 2^k/L and number of local steps for a method, by successive halving.

    Args:
        problem: the problem, or a single function.
        cohort, engine, threads, progress: as in ``run``.
        method: a method, its class or its name; other parameters than the tuned ones are kept, or those of its theorem.
        budget: communication rounds over all candidates, for each seed; every candidate has the same share of a rung.
        powers: the k of gamma = 2^k/L, with L that of the average.
        steps: the numbers of local steps; a quarter, one and four times the theorem's if not given.
        seeds: as in ``sweep``; a candidate is judged by its median.
        target: f - f*, with which the fewest rounds to it win; without it, the smallest f - f* wins.
        jobs: processes, as in ``sweep``.
        out: a folder that keeps all runs; repeating an interrupted call continues it.

    >>> import proxskip as ps
    >>> problem = ps.Problem(ps.random_quadratics(4, 3))
    >>> tuned = ps.tune("gd", problem, budget=200)
    >>> ps.run(tuned.method, problem, tol=1e-6).success
    True
    """
    problem = as_problem(problem)
    kind, more = _kind(method)
    registry.check(kind)
    if steps is None:
        steps = _around_theory(kind, problem)
    steps = [theory.whole("steps", K) for K in steps]
    target = None if target is None else theory.positive("target", target)
    candidates = grid(kind, problem.L_average, powers, steps, **more)
    rungs = rungs_of(len(candidates), theory.whole("budget", budget))
    first = kind.theory(problem, cohort=cohort, **candidates[0].flags)
    numbers = seeds_for(first, seeds_of(seeds), problem, cohort)
    total, jobs = sum(n for n, _, _ in rungs), theory.whole("jobs", jobs)
    places = {id(c): k for k, c in enumerate(candidates)}

    def measured(trials: Sequence[Candidate], rounds: int) -> list[float | None]:
        done = sum(len(c.gaps) for c in candidates)
        show(f"tuning {kind.about.name}, {len(trials)} candidates for {rounds} rounds", done / total)
        tasks = []
        for c in trials:
            method = kind.theory(problem, cohort=cohort, **c.flags)
            name = f"{places[id(c)]}-{c.method}"
            path = None if out is None else Path(out) / f"{rounds}-rounds" / name
            for seed in numbers:
                own = path if path is None or len(numbers) == 1 else path / f"seed-{seed}"
                tasks.append(RunTask("", method, seed, own))
        settings = trial_settings(rounds, engine, threads) | {"cohort": cohort, "target": target}
        if target is not None:
            settings["every"] = max(1, rounds // 100)  # the rounds to it are counted in records
        results = run_many(tasks, problem, settings, jobs=jobs, out=out, progress=False)
        # Ctrl-C ends the search, and not only this candidate
        if len(results) < len(tasks) or results[-1].status is Status.INTERRUPTED:
            raise KeyboardInterrupt
        of_each = [results[k : k + len(numbers)] for k in range(0, len(results), len(numbers))]
        for c, runs in zip(trials, of_each, strict=True):
            reached = [run.rounds if run.status is Status.CONVERGED else math.inf for run in runs]
            c.needed[rounds] = float(np.median(reached))
        return [median_score(runs) for runs in of_each]

    with OverallProgress(quiet=not is_wanted(progress)) as show, warnings.catch_warnings():
        # steps beyond the theorem are the point of the search
        warnings.simplefilter("ignore", UnsafeStepWarning)
        halve(candidates, [(rounds, keep) for _, rounds, keep in rungs], measured)
    # those that ran longest come first: gaps after different numbers of rounds cannot be compared
    by_rank = sorted(candidates, key=lambda c: (-max(c.gaps), c.rank))
    best = by_rank[0]
    if best.score == math.inf:
        raise InputError(f"every candidate of {kind.about.name} diverged; use smaller powers, such as range(-12, -4).")
    spent = len(numbers) * sum(sum(c.gaps) for c in candidates)
    found = kind.theory(problem, cohort=cohort, **best.flags)
    return Tuned(found, tuple(by_rank), spent, _ends(best, candidates), target)


def _ends(best: Candidate, candidates: Sequence[Candidate]) -> tuple[str, ...]:
    """Where the best candidate lies at an end of the grid, something better may lie beyond it."""
    times, steps = {c.times for c in candidates}, {c.steps for c in candidates}
    notes = []
    if len(times) > 1 and best.times in (min(times), max(times)):
        notes.append(f"The best gamma L = {best.times:g} lies at an end of the grid; try more powers.")
    if len(steps) > 1 and best.steps in (min(steps), max(steps)):
        notes.append(f"The best number of local steps, {best.steps}, lies at an end of the grid; try more steps.")
    return tuple(notes)


# -- the grid ----------------------------------------------------------------------------------------------------------
def local_steps_flag(kind: type[Method]) -> str | None:
    """The flag that sets a method's local steps: p if it draws their number, K if it is fixed, None without any."""
    return next((flag for flag in ("p", "K") if flag in flags(kind)), None)


def local_steps(kind: type[Method], K: int) -> dict[str, float]:
    """The flag for K local steps per round, on average if the method draws their number; none without local steps."""
    flag = local_steps_flag(kind)
    if flag is None:
        return {}
    return {flag: 1 / K if flag == "p" else K}


def grid(kind: type[Method], L: float, powers: Sequence[int], steps: Sequence[int], **more: Any) -> list[Candidate]:
    """gamma = 2^k/L for the given k, with each number of local steps if the method takes local steps."""
    return [
        Candidate(kind.about.name, 2.0**k, K, {"gamma": 2.0**k / L, **local_steps(kind, K), **more})
        for K in (steps if local_steps_flag(kind) else [1])
        for k in powers
    ]


def _kind(method: Any) -> tuple[type[Method], dict[str, Any]]:
    """The class, and the parameters of a method object that stay as they are."""
    if isinstance(method, Decaying):
        raise InputError("tune cannot search with a falling step size; tune its method, then add Decaying.")
    if isinstance(method, str):
        return registry.named(method), {}
    if isinstance(method, Method):
        kept = {k: v for k, v in method.given().items() if k in flags(type(method)) and k not in ("gamma", "p", "K")}
        return type(method), kept
    return method, {}


def _around_theory(kind: type[Method], problem: Problem) -> list[int]:
    # without mu there is no theorem to begin from
    if problem.mu is None:
        return [1, 10, 100]
    K = 1.0 / kind.theory(problem).pace
    return sorted({max(1, round(K * s)) for s in (0.25, 1.0, 4.0)})


# -- halving -----------------------------------------------------------------------------------------------------------
def rungs_of(candidates: int, budget: int) -> list[tuple[int, int, int]]:
    """(candidates, rounds of each, survivors) of every rung; the rungs cost about the same number of rounds."""
    counts = [candidates]
    # down to CUT at most, of which the last rung keeps one
    while counts[-1] > CUT:
        counts.append(-(-counts[-1] // CUT))
    if not candidates:
        raise InputError("nothing to search; give at least one power and one number of steps.")
    if budget < candidates * len(counts):
        raise InputError(
            f"budget = {budget} rounds is too small for {candidates} candidates; use at least "
            f"{candidates * len(counts)}, or a smaller grid."
        )
    return [(n, budget // (len(counts) * n), after) for n, after in zip(counts, [*counts[1:], 1], strict=True)]


def halve(
    candidates: Sequence[Candidate],
    rungs: Sequence[Sequence[int]],
    measured: Callable[[Sequence[Candidate], int], Sequence[float | None]],
) -> list[Candidate]:
    """The finalists, method by method, the best of each first.

    Args:
        candidates: of one method or of several, which are halved each by itself, and run together.
        rungs: rounds and survivors of each method; every rung runs its candidates from the start, longer than the rung
            before.
        measured: f - f* of candidates after some rounds; None if one diverged.
    """
    left = list(candidates)
    for rounds, keep in rungs:
        for c, gap in zip(left, measured(left, rounds), strict=True):
            c.gaps[rounds] = gap
        left = [c for name in dict.fromkeys(c.method for c in left) for c in ranked(left, name)[:keep]]
    return left


def ranked(candidates: Sequence[Candidate], method: str) -> list[Candidate]:
    """Those of a method, the best first; of equal ones the earlier one of the grid."""
    return sorted((c for c in candidates if c.method == method), key=lambda c: c.rank)


def trial_settings(rounds: int, engine: str, threads: int | None = None) -> dict[str, Any]:
    """The settings of a candidate's run: eight records, so that it ends early if it diverges."""
    every = max(1, rounds // 8)
    return {"rounds": rounds, "engine": engine, "every": every, "threads": threads, "allow_unsafe_step": True}


def score(result: RunResult) -> float | None:
    """f - f* at the end (f where f* is unknown); None if the run diverged."""
    if result.status is Status.DIVERGED:
        return None
    gap: float | None = result.summary["gap"]
    return result.summary["f"] if gap is None else gap


def median_score(runs: Sequence[RunResult]) -> float | None:
    """The median of the scores of several seeds; None if one of them diverged."""
    scores = [score(run) for run in runs]
    known = [value for value in scores if value is not None]
    return float(np.median(known)) if len(known) == len(scores) else None
