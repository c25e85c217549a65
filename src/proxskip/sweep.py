"""Many runs of one problem at once: step sizes, probabilities, seeds. On a GPU their local steps share launches."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from proxskip.problems.federated import Problem
from proxskip.result import Result
from proxskip.run import run
from proxskip.seam import InputError, Method

AT_ONCE = 256
"""Runs in flight; the others wait for their turn."""


def sweep(
    methods: Sequence[Method],
    problem: Problem,
    *,
    rounds: int | None = None,
    seeds: int | Sequence[int] = 0,
    engine: str = "cpu",
    every: int | None = None,
    **more: Any,
) -> list[Result]:
    """Every method with every seed, as ``run`` would do it; the results come method by method, seed by seed.

    Args:
        rounds: as in ``run``, and so are ``more`` (iterations, tol, target, cohort, x0, allow_unsafe_step, ...).
        engine: "gpu" runs all of them together on one card; on "cpu" they follow each other.
        every: record every so many rounds; by default, if ``rounds`` are given, only the start and the end.

    >>> import proxskip as ps
    >>> from proxskip.sweep import sweep
    >>> problem = ps.Problem(ps.random_quadratics(4, 3))
    >>> methods = [ps.GD(gamma) for gamma in (0.5, 1.0)]
    >>> [r.rounds for r in sweep(methods, problem, rounds=20, seeds=[0, 1])]
    [20, 20, 20, 20]
    """
    if "out" in more:
        raise InputError("a sweep writes no run folders; give out to run, one run at a time.")
    drawn = [seeds] if isinstance(seeds, int) else list(seeds)
    tasks = [(method, seed) for method in methods for seed in drawn]
    if not tasks:
        raise InputError("there is nothing to sweep over; give at least one method and one seed.")
    more |= {"rounds": rounds, "every": rounds if every is None and rounds else every}
    if engine != "gpu":
        return [run(method, problem, seed=seed, engine=engine, **more) for method, seed in tasks]
    return _together(tasks, problem, more)


def _together(tasks: list[tuple[Method, int]], problem: Problem, more: dict[str, Any]) -> list[Result]:
    from proxskip.engines.batch import Batch

    for constant in ("solution", "L_i", "mu", "L_global"):  # once, before the threads would each compute them
        getattr(problem, constant)
    workers = min(len(tasks), AT_ONCE)
    batch = Batch(problem, workers)

    def one(task: tuple[Method, int]) -> Result:
        batch.enter(1)
        try:
            return run(task[0], problem, seed=task[1], engine=batch.lane(), **more)
        finally:
            batch.enter(-1)

    try:
        with ThreadPoolExecutor(workers, thread_name_prefix="proxskip-run") as pool:
            return list(pool.map(one, tasks))
    finally:
        batch.close()
