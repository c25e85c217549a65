"""Several methods, step sizes and seeds on one problem."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from proxskip import theory
from proxskip.core.gossip import RandomLinks
from proxskip.core.method import Method, flags
from proxskip.methods import Decaying
from proxskip.methods.gossip_methods import GossipMethod
from proxskip.networks import Network
from proxskip.problems.federated import Problem
from proxskip.results.table import Results
from proxskip.running.many_runs import RunTask, folder_of, run_many
from proxskip.running.run import as_method, as_problem
from proxskip.types import InputError, Oracle


def sweep(
    methods: Sequence[Method | type[Method] | str] | Method | type[Method] | str,
    problem: Problem | Oracle,
    *,
    rounds: int | None = None,
    iterations: int | None = None,
    seconds: float | None = None,
    tol: float | None = None,
    target: float | None = None,
    seeds: int | Sequence[int] = 1,
    engine: str = "cpu",
    cohort: Any = None,
    x0: Any = None,
    every: int | None = None,
    out: str | Path | None = None,
    force: bool = False,
    jobs: int = 1,
    threads: int | None = None,
    allow_unsafe_step: bool = False,
    progress: bool | None = None,
    network: Network | str | None = None,
    checkpoint_every: int | None = None,
) -> Results:
    """Run every method with every seed; the results come method by method, seed by seed.

    A method that draws nothing on this problem runs once, with the first seed.

    Args:
        methods: methods, classes or names, as in ``run``; or one of them.
        problem: the problem, the same for all.
        rounds, iterations, seconds, tol, target: when to stop, as in ``run``.
        engine, threads, cohort, network, x0, every, checkpoint_every, allow_unsafe_step, progress: as in ``run``.
        seeds: how many, from 0 on, as on the command line; or the seeds themselves.
        out: a folder with a run folder of each run, such as ``out/scaffnew/seed-3``, and results.csv with a row for
            each run; ``load`` reads it. Call it again to go on after an interruption.
        force: overwrite run folders that are there.
        jobs: processes; the threads are shared among them.

    >>> import proxskip as ps
    >>> problem = ps.Problem(ps.random_quadratics(4, 3))
    >>> found = ps.sweep(["scaffnew", "gd"], problem, rounds=20, seeds=3)
    >>> [(r.summary["method"], r.summary["seed"]) for r in found]
    [('scaffnew', 0), ('scaffnew', 1), ('scaffnew', 2), ('gd', 0)]
    """
    problem = as_problem(problem)
    jobs = theory.whole("jobs", jobs)
    if isinstance(methods, (str, type, Method)):
        methods = [methods]
    made = [as_method(method) for method in methods]
    numbers = seeds_of(seeds)
    if not made or not numbers:
        raise InputError("nothing to run; give at least one method and one seed.")
    if jobs > 1 and engine == "gpu":
        raise InputError("runs on one GPU follow each other; use jobs=1.")
    settings = {
        **{"rounds": rounds, "iterations": iterations, "seconds": seconds, "tol": tol, "target": target},
        **{"engine": engine, "cohort": cohort, "x0": x0, "every": every, "force": force, "threads": threads},
        **{"allow_unsafe_step": allow_unsafe_step, "network": network, "checkpoint_every": checkpoint_every},
    }
    names = [method.name for method in made]
    seeds_each = [seeds_for(method, numbers, problem, cohort, network) for method in made]
    total = sum(len(own) for own in seeds_each)
    tasks: list[RunTask] = []
    for k, method in enumerate(made):
        for seed in seeds_each[k]:
            label = f"{len(tasks) + 1}/{total} {names[k]}, seed {seed}"
            path = None
            if out is not None:
                path = folder_of(out, names, k, seed if len(numbers) > 1 else None)
            tasks.append(RunTask(label, method, seed, path))
    results = Results(run_many(tasks, problem, settings, jobs=jobs, out=out, progress=progress))
    if out is not None:
        results.to_csv(Path(out) / "results.csv")
    return results


def seeds_of(given: Any) -> list[int]:
    """The seeds, or as many from 0 on; each once."""
    numbers = given if np.ndim(given) else range(theory.whole("seeds", given))
    seeds = [theory.whole_seed(seed) for seed in numbers]
    if len(set(seeds)) < len(seeds):
        raise InputError("a seed occurs twice; its runs would be the same.")
    return seeds


def seeds_for(
    method: Method, seeds: Sequence[int], problem: Problem, cohort: Any = None, network: Any = None
) -> Sequence[int]:
    """The seeds of a method's runs: the first alone if all runs would be the same."""
    return seeds if draws(method, problem, cohort, network) else seeds[:1]


def draws(method: Method, problem: Problem, cohort: Any = None, network: Any = None) -> bool:
    """Whether runs with different seeds may differ. Code of others may draw whatever it likes."""
    if isinstance(method, Decaying):
        method = method.method
    if not all(kind.__module__.startswith("proxskip.") for kind in (type(method), *problem.kinds)):
        return True
    if problem.batch is not None or problem.is_random or cohort is not None or network is not None:
        return True
    if isinstance(method, GossipMethod):
        return "p" in flags(type(method)) or isinstance(method.complete(problem).links, RandomLinks)
    return "p" in flags(type(method))
