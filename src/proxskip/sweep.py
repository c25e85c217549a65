"""Many runs of one problem at once: step sizes, probabilities, seeds. On a GPU their local steps share launches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from proxskip import theory
from proxskip.links.cohorts import as_participation
from proxskip.loop.loop import Loop
from proxskip.loop.replay import Replay
from proxskip.loop.stop import Stop
from proxskip.loop.watch import not_finite
from proxskip.problems.federated import Problem
from proxskip.results import description
from proxskip.results.result import Result, Status
from proxskip.run import as_method, as_problem, prepare, run, starting_point
from proxskip.seam import Method
from proxskip.types import InputError, Oracle

if TYPE_CHECKING:
    from proxskip.engines.gpu.batch import Batch, Job, Lane


def sweep(
    methods: Sequence[Method | type[Method] | str],
    problem: Problem | Oracle,
    *,
    rounds: int | None = None,
    iterations: int | None = None,
    tol: float | None = None,
    target: float | None = None,
    seeds: int | Sequence[int] = 1,
    engine: str = "cpu",
    cohort: Any = None,
    x0: Any = None,
    every: int | None = None,
    allow_unsafe_step: bool = False,
) -> list[Result]:
    """Every method with every seed, as ``run`` would do it; the results come method by method, seed by seed.

    Args:
        rounds: as in ``run``, and so are ``iterations``, ``tol``, ``target``, ``cohort``, ``x0``, ``every``.
        seeds: how many, from 0 on, as on the command line; or the seeds themselves.
        engine: "gpu" runs all of them together on one card; on any other they follow each other.

    >>> import proxskip as ps
    >>> from proxskip.sweep import sweep
    >>> problem = ps.Problem(ps.random_quadratics(4, 3))
    >>> methods = [ps.GD(gamma) for gamma in (0.5, 1.0)]
    >>> [r.rounds for r in sweep(methods, problem, rounds=20, seeds=[0, 1])]
    [20, 20, 20, 20]
    """
    drawn = [
        theory.whole_seed(s) for s in (seeds if isinstance(seeds, Sequence) else range(theory.whole("seeds", seeds)))
    ]
    problem = as_problem(problem)
    tasks = [(as_method(method, problem, cohort, seed), seed) for method in methods for seed in drawn]
    if not tasks:
        raise InputError("there is nothing to sweep over; give at least one method and one seed.")
    stop = Stop(rounds=rounds, iterations=iterations, tol=tol, target=target)
    if engine != "gpu":
        limits = stop.rules
        return [
            run(m, problem, **limits, seed=s, engine=engine, cohort=cohort, x0=x0, every=every,
                allow_unsafe_step=allow_unsafe_step)
            for m, s in tasks
        ]  # fmt: skip
    from proxskip.engines.gpu.batch import Batch, Lane

    stop.check(problem)
    batch = Batch(problem, len(tasks))
    common = description.config(tasks[0][0], problem, stop.rules, 0, "gpu", as_participation(cohort), {})
    runs = [Run(m, problem, stop, s, Lane(), cohort, x0, every, allow_unsafe_step, common) for m, s in tasks]
    _together(runs, batch)
    return [r.result for r in runs]


def _together(runs: list[Run], batch: Batch) -> None:
    """All runs to their ends, their local steps in common launches."""
    from proxskip.engines.gpu.batch import Flight

    # while one half of the runs is on the card, the other half's server and client halves are computed here
    halves = [runs[0::2], runs[1::2]] if len(runs) > 1 and not batch.local.grid else [runs]
    flights = [Flight(batch, len(part) * batch.problem.n) for part in halves]
    waiting: list[list[Run]] = [[] for _ in halves]
    active = True
    with np.errstate(all="ignore"):
        while active:
            active = False
            for k, flight in enumerate(flights):
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
        method, notes = prepare(method, problem, participation, insist)
        self.loop = Loop(method, problem, stop, seed, participation, lane, every, notes)
        own = {"method": method.name, "parameters": description.parameters(method), "seed": seed, "every": every}
        self.loop.config = common | own
        self.loop.start(*starting_point(method, problem, participation, x0, None, None))
        self.loop._record(())
        self.recorded = 0
        self.lane = lane
        self.replay: Replay | None = None
        self.result: Result

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
                self.replay = Replay(loop.line, loop.seed)
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

    def _end(self, status: Status, message: str) -> bool:
        loop = self.loop
        if loop.trace.last()["round"] < loop.round and status is not Status.DIVERGED:
            loop._record(())
            status, message = loop._verdict() or (status, message)
        self.result = loop._result(status, message)
        loop.close()
        return False
