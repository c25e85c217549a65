"""Many runs of one problem at once: step sizes, probabilities, seeds. On a GPU their local steps share launches."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any

import numpy as np

from proxskip import theory
from proxskip.links.cohorts import as_participation
from proxskip.links.network import Network
from proxskip.loop.loop import Loop, catch_signals
from proxskip.loop.progress import OverallProgress, is_wanted, shown
from proxskip.loop.replay import Replay
from proxskip.loop.run_spec import RunSpec
from proxskip.loop.stop import RUN_RULES, Stop
from proxskip.loop.watch import not_finite
from proxskip.problems.federated import Problem
from proxskip.results import description, folder
from proxskip.results.atomic import atomic_write_json
from proxskip.results.result import Result, Results, Status
from proxskip.run import as_method, as_network, as_problem, participants, prepare, run, starting_point
from proxskip.seam import BrokenOff, Method, look
from proxskip.types import InputError, Oracle, UnsafeStepWarning

if TYPE_CHECKING:
    from proxskip.engines.gpu.batch import Batch, Job, Lane


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
        engine: "gpu" runs all of them together on one card; on any other they follow each other.
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
    if engine == "gpu":
        if theory.whole("jobs", jobs) > 1:
            raise InputError("the gpu engine runs all of a sweep at once; leave out jobs.")
        if given.get("network") is not None:
            raise InputError('the gpu engine runs all of a sweep at once, without a network; use run, or engine="cpu".')
        given.pop("network", None)
        return Results(_on_gpu(tasks, problem, given))
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


def _on_gpu(tasks: Sequence[SweepTask], problem: Problem, given: dict[str, Any]) -> list[Result]:
    """All at once; the run folders are written at the end."""
    from proxskip.engines.gpu.batch import Batch, Lane

    if given.get("seconds") is not None:
        raise InputError("on the gpu the runs of a sweep share their seconds; give another limit.")
    stop = Stop(**{k: given.get(k) for k in RUN_RULES})
    stop.check(problem)
    batch = Batch(problem, len(tasks))
    participation = as_participation(given.get("cohort"))
    common = description.config(tasks[0].method, problem, stop.rules, 0, "gpu", participation, {})
    more = given.get("cohort"), given.get("x0"), given.get("every"), bool(given.get("allow_unsafe_step")), common
    runs = [Run(t.method, problem, stop, t.seed, Lane(), *more) for t in tasks]
    for r, t in zip(runs, tasks, strict=True):
        if t.out is not None:
            r.keep = folder.create(t.out, r.loop.config, given["force"], None)
    interrupted = Event()
    restore = catch_signals(interrupted)
    try:
        together(runs, batch, interrupted)
    finally:
        restore()
    return [r.result for r in runs]


def together(runs: list[Run], batch: Batch, interrupted: Event) -> None:
    """All runs to their ends, their local steps in common launches; to their last communications if interrupted."""
    for r in runs:
        r.loop.interrupted = r.loop.line.interrupted = interrupted
    try:
        _fly(runs, batch, interrupted)
    except BrokenOff:
        for r in runs:
            r.break_off()


def _fly(runs: list[Run], batch: Batch, interrupted: Event) -> None:
    from proxskip.engines.gpu.batch import Flight

    # while one half of the runs is on the card, the other half's server and client halves are computed here
    halves = [runs[0::2], runs[1::2]] if len(runs) > 1 and not batch.local.grid else [runs]
    flights = [Flight(batch, len(part) * batch.problem.n, interrupted) for part in halves]
    waiting: list[list[Run]] = [[] for _ in halves]
    active = True
    with np.errstate(all="ignore"):
        while active:
            active = False
            for k, flight in enumerate(flights):
                look(interrupted)
                if waiting[k]:
                    for r, (_, answer) in zip(_by_kind(waiting[k]), flight.land(), strict=True):
                        r.lane.answers.append(answer)
                waiting[k] = [r for r in (waiting[k] or halves[k]) if r.advance()]
                if waiting[k]:
                    flight.launch([r.question for r in waiting[k]])
                    active = True
                else:
                    halves[k] = []


def _by_kind(runs: list[Run]) -> list[Run]:
    """The order in which a flight answers: steps first, then gradients."""
    return [r for wanted in (False, True) for r in runs if r.question.want_gradient is wanted]


class Run:
    """One run, from question to question."""

    def __init__(
        self, method: Method, problem: Problem, stop: Stop, seed: int, lane: Lane, cohort: Any, x0: Any,
        every: int | None, insist: bool, common: dict[str, Any],
    ) -> None:  # fmt: skip
        participation = as_participation(cohort)
        spec = RunSpec.of(
            method, problem, stop, seed=seed, cohort=cohort, engine=lane, every=every, allow_unsafe_step=insist
        )
        method, self.loop = spec.method, Loop(spec)
        own = {"method": method.name, "parameters": description.parameters(method), "seed": seed, "every": every}
        self.loop.config = common | own
        self.loop.start(*starting_point(method, problem, participation, x0, None, None))
        self.loop._record(())
        self.recorded = 0
        self.lane = lane
        self.replay: Replay | None = None
        self.keep: folder.Folder | None = None
        self.result: Result
        self.over = False

    @property
    def question(self) -> Job:
        """What the run waits for."""
        assert self.lane.question is not None
        return self.lane.question

    def advance(self) -> bool:
        """Go on to the next question; False when the run is over."""
        from proxskip.engines.gpu.batch import Suspended

        loop = self.loop
        while True:
            if self.replay is None:
                # the verdict can only be new at a record, or where a limit is reached
                new = self.recorded == loop.round or loop.stop.limit(loop.round, loop.line.ledger)
                verdict = loop._verdict() if new else None
                if verdict is not None:
                    return self._end(*verdict)
                loop.line.begin(loop.round)
                self.replay = Replay(loop.line, loop.spec.seed)
            self.replay.restart()
            try:
                server = loop.line.timed(loop.method.round, loop.server, self.replay)
            except Suspended:
                return True
            self.replay = None
            loop.server = server
            loop.round += 1
            if not loop.looks_finite(loop._is_recorded(loop.round)):
                return self._end(*not_finite(loop.round))
            if loop._is_recorded(loop.round):
                loop._record(())
                self.recorded = loop.round

    def break_off(self) -> None:
        """End where the round under way began."""
        if self.over:
            return
        if self.replay is not None:
            self.loop.line.undo()
            self.replay = None
        self._end(*(self.loop._verdict() or (Status.INTERRUPTED, "interrupted.")))

    def _end(self, status: Status, message: str) -> bool:
        loop = self.loop
        self.over = True
        if loop.trace.last()["round"] < loop.round and status is not Status.DIVERGED:
            loop._record(())
            status, message = loop._verdict() or (status, message)
        self.result = loop._result(status, message)
        if self.keep is not None:
            self.keep.finish(self.result, loop.state())
            self.keep.close()
        loop.close()
        return False


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
