"""Many runs of one problem: step sizes, probabilities, seeds."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from proxskip import theory
from proxskip.links.cohorts import as_participation
from proxskip.links.network import Network
from proxskip.loop.progress import OverallProgress, is_wanted, shown
from proxskip.loop.stop import RUN_RULES, Stop
from proxskip.problems.federated import Problem
from proxskip.results import folder
from proxskip.results.atomic import atomic_write_json
from proxskip.results.result import Result, Results, Status
from proxskip.running import as_method, as_network, as_problem, participants, prepare, run
from proxskip.seam import Method
from proxskip.types import InputError, Oracle, UnsafeStepWarning


@dataclass(frozen=True, slots=True)
class SweepTask:
    """One run of a sweep: its method, seed and folder."""

    method: Method
    seed: int
    out: str | None


def sweep(
    methods: Sequence[Method | type[Method] | str],
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
) -> Results:
    """Every method with every seed, as ``run`` would do it; the results come method by method, seed by seed.

    Args:
        rounds: as in ``run``, and so are the other limits, ``cohort``, ``network``, ``x0``, ``every`` and ``progress``.
        seeds: how many, from 0 on, as on the command line; or the seeds themselves.
        engine: as in ``run``; with "gpu" the data of the problem stay on the card from one run to the next.
        out: a folder with a run folder of each run, such as ``out/0-scaffnew/seed-3``; ``load`` reads it.
        force: overwrite run folders that are there.
        jobs: processes; the threads are shared among them. A script that uses them needs
            ``if __name__ == "__main__":``, and the problem must be one that Python can send to another process.

    >>> import proxskip as ps
    >>> problem = ps.Problem(ps.random_quadratics(4, 3))
    >>> methods = [ps.GD(gamma) for gamma in (0.5, 1.0)]
    >>> [r.rounds for r in ps.sweep(methods, problem, rounds=20, seeds=[0, 1])]
    [20, 20, 20, 20]
    """
    limits = Stop(rounds=rounds, iterations=iterations, seconds=seconds, tol=tol, target=target).rules
    given = {"engine": engine, "cohort": cohort, "x0": x0, "every": every, "force": force, "threads": threads}
    given |= {"allow_unsafe_step": allow_unsafe_step, "network": network, **limits}
    return _swept(methods, problem, given, _seeds(seeds), _Folders(out), jobs, progress)


def compare(
    methods: Sequence[Method | type[Method] | str],
    problem: Problem | Oracle,
    *,
    seeds: int | Sequence[int] = 1,
    out: str | Path | None = None,
    force: bool = False,
    jobs: int = 1,
    progress: bool | None = None,
    **given: Any,
) -> Results:
    """Several methods on one problem, each with the parameters of its theorem where it is given by name.

    Args:
        seeds: how many, from 0 on, or the seeds themselves; ``jobs`` and ``progress`` as in ``sweep``.
        out: a folder as `proxskip compare` makes it, with a run folder for each method and compare.json.
        given: as in ``run``: rounds, iterations, seconds, tol, target, engine, cohort, x0, every, threads,
            allow_unsafe_step, network.

    >>> import proxskip as ps
    >>> problem = ps.Problem(ps.random_quadratics(4, 3))
    >>> [r.status.name for r in ps.compare(["gd", "scaffnew"], problem, tol=1e-6)]
    ['CONVERGED', 'CONVERGED']
    """
    if unknown := sorted(given.keys() - _OF_COMPARE):
        raise InputError(f"compare has no argument {unknown[0]}; it has {', '.join(sorted(_OF_COMPARE))}.")
    drawn = _seeds(seeds)
    folders = _Folders(out, numbered=False, seeded=len(drawn) > 1)
    results = _swept(methods, problem, given | {"force": force}, drawn, folders, jobs, progress)
    if out is not None:
        atomic_write_json(Path(out) / "compare.json", [dict(r.summary()) for r in results])
    return results


_OF_COMPARE = {
    *RUN_RULES,
    "engine",
    "cohort",
    "x0",
    "every",
    "threads",
    "allow_unsafe_step",
    "checkpoint_every",
    "network",
}


@dataclass(frozen=True, slots=True)
class _Folders:
    """Where the runs of a sweep or a comparison are kept."""

    out: str | Path | None
    numbered: bool = True
    seeded: bool = True

    def of(self, methods: Sequence[Method]) -> list[Path | None]:
        """The folder of each method."""
        names = [m.name for m in methods]
        # two methods of one name need a number in any case
        numbered = self.numbered or len(set(names)) < len(names)
        width = len(str(len(names) - 1))
        found = [f"{k:0{width}}-{name}" if numbered else name for k, name in enumerate(names)]
        return [None if self.out is None else Path(self.out) / name for name in found]

    def at(self, path: Path | None, seed: int) -> str | None:
        """The run folder of a seed."""
        if path is None:
            return None
        return str(path / f"seed-{seed}" if self.seeded else path)


def _seeds(seeds: int | Sequence[int]) -> list[int]:
    drawn = seeds if isinstance(seeds, Sequence) else range(theory.whole("seeds", seeds))
    return [theory.whole_seed(s) for s in drawn]


def _swept(
    methods: Sequence[Any], problem: Any, given: dict[str, Any], seeds: list[int], folders: _Folders, jobs: int,
    progress: bool | None,
) -> Results:  # fmt: skip
    """The runs, by whichever way fits the engine and the number of processes."""
    problem = as_problem(problem)
    cohort, engine = given.get("cohort"), given.get("engine", "cpu")
    made = [[as_method(m, problem, cohort, seed) for seed in seeds] for m in methods]
    if not made or not seeds:
        raise InputError("there is nothing to sweep over; give at least one method and one seed.")
    if len(set(seeds)) < len(seeds):
        raise InputError("a seed is given twice; its runs would be the same.")
    where = folders.of([row[0] for row in made])
    tasks = [
        SweepTask(m, seed, folders.at(path, seed))
        for path, row in zip(where, made, strict=True)
        for m, seed in zip(row, seeds, strict=True)
    ]
    for task in tasks:  # all folders, before the first run
        if task.out is not None:
            folder.check(task.out, given["force"], given.get("checkpoint_every"))
    if theory.whole("jobs", jobs) > 1 and engine == "gpu":
        raise InputError("the runs of a sweep on one GPU follow each other; leave out jobs.")
    if theory.whole("jobs", jobs) > 1:
        return Results(_in_processes(tasks, problem, given, jobs, progress))
    return Results(_in_turn(tasks, problem, given, progress))


def _in_turn(
    tasks: Sequence[SweepTask], problem: Problem, given: dict[str, Any], progress: bool | None
) -> list[Result]:
    """One run after the other; an interrupted one is the last."""
    results = []
    for k, task in enumerate(tasks):
        with shown(f"{k + 1}/{len(tasks)} {task.method.name}, seed {task.seed}", progress) as bars:
            more: dict[str, Any] = {"seed": task.seed, "out": task.out, "callbacks": bars, "progress": False}
            results.append(run(task.method, problem, **given, **more))
        if results[-1].status is Status.INTERRUPTED:
            break
    return results


def _in_processes(
    tasks: Sequence[SweepTask], problem: Problem, given: dict[str, Any], jobs: int, progress: bool | None
) -> list[Result]:
    if not isinstance(given.get("engine", "cpu"), str):
        raise InputError("an engine object serves one run at a time; name the engine, or leave out jobs.")
    cohort, network = as_participation(given.get("cohort")), as_network(given.get("network"))
    for task in tasks:  # refused, and warned about, here rather than in the processes
        asked = participants(task.method, problem, cohort, network)
        prepare(task.method, problem, asked, bool(given.get("allow_unsafe_step")))
    Stop(**{k: given.get(k) for k in RUN_RULES}).check(problem)
    if not is_wanted(progress):
        return in_processes(tasks, problem, given, jobs, lambda done: None)
    with OverallProgress() as overall:
        tell = partial(_tell, overall, len(tasks), jobs, time.monotonic())
        return in_processes(tasks, problem, given, jobs, tell)


def _tell(overall: OverallProgress, total: int, jobs: int, began: float, done: int) -> None:
    left = (time.monotonic() - began) * (total - done) / done
    overall(f"{done} of {total} runs done in {jobs} processes", done / total, left)


# -- in several processes, bit by bit what this one would compute ----------------------------------------------------
_PROBLEM: list[tuple[Problem, Mapping[str, Any]]] = []
"""In a worker: the problem, and what all runs share."""


def in_processes(
    tasks: Sequence[SweepTask], problem: Problem, given: Mapping[str, Any], jobs: int, told: Callable[[int], None]
) -> list[Result]:
    """The results of all tasks in their order; without those that an interruption left undone.

    Args:
        told: is called with the number of finished runs.
    """
    # here, since few programs need them
    import multiprocessing
    from concurrent.futures import ProcessPoolExecutor, as_completed
    from concurrent.futures.process import BrokenProcessPool
    from multiprocessing.reduction import ForkingPickler

    problem.solution  # noqa: B018  computed once, and not in every process
    try:
        ForkingPickler.dumps((problem, dict(given), list(tasks)))
    except Exception as error:
        raise InputError(
            f"this problem cannot be sent to other processes ({error}); leave out jobs, or define its functions and "
            "classes at the top of a module."
        ) from None
    # not fork: a forked copy of a process with threads may hang
    context = multiprocessing.get_context("spawn")
    threads = given.get("threads") or max(1, (os.cpu_count() or 1) // jobs)
    shared = problem, {**given, "threads": threads}
    pool = ProcessPoolExecutor(min(jobs, len(tasks)), context, _begin, shared)
    futures = [pool.submit(_one, task) for task in tasks]
    try:
        for done, _ in enumerate(as_completed(futures), start=1):
            told(done)
    except KeyboardInterrupt:
        pass  # the workers were interrupted too, and end their runs as INTERRUPTED
    finally:
        pool.shutdown(cancel_futures=True)
    try:
        return [f.result() for f in futures if not f.cancelled()]
    except BrokenProcessPool:
        raise InputError(
            "a process of the sweep ended without an answer: memory ran out, or the script does not protect its "
            'start with  if __name__ == "__main__":.'
        ) from None


def _begin(problem: Problem, given: Mapping[str, Any]) -> None:
    _PROBLEM[:] = [(problem, given)]


def _one(task: SweepTask) -> Result:
    problem, given = _PROBLEM[0]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UnsafeStepWarning)  # the parent has said it
        return run(task.method, problem, seed=task.seed, out=task.out, progress=False, **given)
