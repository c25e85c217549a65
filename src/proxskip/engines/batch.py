"""Many runs on one GPU at once: each run keeps its own halves and memory, their local steps fly together.

Every run is an ordinary run with a ``Lane`` for its engine, on a thread of its own. A lane's ``descend`` waits until
some others want to descend too (or nobody else is left), and then one launch does the steps of all of them. A client's
arithmetic does not depend on who flies along, so a run in a batch gives the same bytes as in any other batch.
"""

from __future__ import annotations

import threading
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

from proxskip.engines.gpu import need_cupy
from proxskip.engines.launch import LocalSteps
from proxskip.links import weighted_sum
from proxskip.problems.federated import Problem
from proxskip.seam import Array, ClientHalf, Indices, InputError, SettleHalf, Vectors

PILOTS = 8
"""Launches in the air at the same time."""
SHARE = 6
"""One launch takes at least so large a part of the runs, if there are that many."""


@dataclass
class Job:
    """One cohort's local steps (or gradients), and where its answer goes."""

    members: Indices
    X: Array
    H: Array | None
    gamma: Array
    K: Indices
    seed: int
    round: int
    want_gradient: bool
    answer: Future[Array]


class Batch:
    """The card, shared by lanes."""

    def __init__(self, problem: Problem, runs: int) -> None:
        self.cupy = need_cupy()
        if not LocalSteps.fit(problem):
            raise InputError("a batch on the GPU needs linear models of one loss and dtype; run one after another.")
        self.problem, self.runs = problem, runs
        self.local = LocalSteps(problem, runs * problem.n)
        self.whole = self.local if not problem.batch else LocalSteps(problem, runs * problem.n, full=True)
        self.alone = threading.Lock() if self.local.grid or self.whole.grid else None
        self.change = threading.Condition()
        self.waiting: list[Job] = []
        self.lanes = self.flying = 0
        self.closed = False
        self.pilots = ThreadPoolExecutor(PILOTS, thread_name_prefix="proxskip-launch")
        self.streams = threading.local()
        self.tower = threading.Thread(target=self._direct, name="proxskip-batch", daemon=True)
        self.tower.start()

    def lane(self) -> Lane:
        """An engine for one run."""
        return Lane(self)

    def fly(self, job: Job) -> Array:
        """Wait for the others, then for the answer."""
        with self.change:
            self.waiting.append(job)
            self.change.notify_all()
        return job.answer.result()

    def enter(self, by: int) -> None:
        """A lane comes (+1) or goes (-1)."""
        with self.change:
            self.lanes += by
            self.change.notify_all()

    def close(self) -> None:
        """No more jobs."""
        with self.change:
            self.closed = True
            self.change.notify_all()
        self.tower.join()
        self.pilots.shutdown()

    def _ready(self) -> bool:
        enough = max(1, self.runs // SHARE)
        return self.closed or (
            bool(self.waiting) and (len(self.waiting) >= enough or len(self.waiting) + self.flying >= self.lanes)
        )

    def _direct(self) -> None:
        while True:
            with self.change:
                self.change.wait_for(self._ready)
                if self.closed:
                    return
                jobs, self.waiting = self.waiting, []
                self.flying += len(jobs)
            for kind in (False, True):
                alike = [job for job in jobs if job.want_gradient is kind]
                if alike:
                    self.pilots.submit(self._launch, alike)

    def _launch(self, jobs: list[Job]) -> None:
        try:
            if self.alone is None:
                rows = self._steps(jobs)
            else:
                with self.alone:
                    rows = self._steps(jobs)
            for job, row in zip(jobs, np.split(rows, np.cumsum([len(j.members) for j in jobs])[:-1]), strict=True):
                job.answer.set_result(row)
        except BaseException as error:
            for job in jobs:
                job.answer.set_exception(error)
        finally:
            with self.change:
                self.flying -= len(jobs)
                self.change.notify_all()

    def _steps(self, jobs: list[Job]) -> Array:
        xp = self.cupy
        if not hasattr(self.streams, "own"):
            self.streams.own = xp.cuda.Stream(non_blocking=True)
        d, sizes = self.problem.d, [len(job.members) for job in jobs]
        X = np.concatenate([np.broadcast_to(job.X, (c, d)) for job, c in zip(jobs, sizes, strict=True)])
        H = None
        if any(job.H is not None for job in jobs):
            zero = np.zeros(1)
            H = np.concatenate(
                [np.broadcast_to(zero if job.H is None else job.H, (c, d)) for job, c in zip(jobs, sizes, strict=True)]
            )
        K = np.concatenate([job.K for job in jobs])
        with self.streams.own:
            send = xp.asarray
            out = (self.whole if jobs[0].want_gradient else self.local).descend(
                len(K),
                send(X),
                None if H is None else send(H),
                send(np.concatenate([job.gamma for job in jobs])),
                send(K.astype(np.int32)),
                members=send(np.concatenate([job.members for job in jobs]).astype(np.int32)),
                order=send(np.argsort(-K, kind="stable").astype(np.int32)),
                seeds=send(np.repeat(np.array([job.seed for job in jobs], dtype=np.uint64), sizes)),
                rounds=send(np.repeat(np.array([job.round for job in jobs], dtype=np.uint32), sizes)),
                want_gradient=jobs[0].want_gradient,
            )
            answer: Array = out.get()
        return answer


class LaneStack:
    """A run's cohort as one client, its arithmetic in numpy and its steps on the card."""

    def __init__(self, lane: Lane, members: Indices, round: int) -> None:
        self.lane, self.members, self.round = lane, members, round
        self.gradients = 0

    def descend(self, x: Array, h: Array | float, gamma: Any, K: Any) -> Array:
        """K times  x <- x - gamma (g(x) - h),  for every member."""
        c = len(self.members)
        steps = np.broadcast_to(np.asarray(K, dtype=np.int64), (c,))
        self.gradients += int(np.sum(steps * (self.lane.problem.batch or self.lane.rows[self.members])))
        gammas = np.broadcast_to(np.asarray(gamma, dtype=np.float64).ravel(), (c,))
        H = None if np.ndim(h) == 0 and float(h) == 0.0 else np.asarray(h)
        return self._fly(x, H, gammas, steps, want_gradient=False)

    def gradient(self, x: Array) -> Array:
        """The members' full gradients, one row each."""
        self.gradients += int(self.lane.rows[self.members].sum())
        one = np.ones(len(self.members))
        return self._fly(x, None, one, one.astype(np.int64), want_gradient=True)

    def _fly(self, x: Array, H: Array | None, gammas: Array, steps: Indices, want_gradient: bool) -> Array:
        job = Job(self.members, x, H, gammas, steps, self.lane.seed, self.round, want_gradient, Future())
        return self.lane.batch.fly(job)

    def own(self, values: Any) -> Any:
        """The members' entries as a column."""
        return values if np.ndim(values) == 0 else np.asarray(values)[self.members, None]


class Lane:
    """The engine of one run in a batch."""

    name = "gpu"

    def __init__(self, batch: Batch) -> None:
        self.batch = batch

    def open(self, problem: Problem, memory: Vectors, seed: int) -> None:
        """Keep the initial memory; the data are on the card already."""
        self.problem, self.seed = problem, seed
        self.rows = np.array([getattr(f, "N", 1) for f in problem.clients], dtype=np.int64)
        self.kept = {k: v.copy() for k, v in memory.items()}

    def run(
        self, half: ClientHalf, cohort: Indices, round: int, K: Any, down: tuple[Array, ...]
    ) -> tuple[tuple[Array, ...], int]:
        """The whole cohort in one call of the half."""
        client = LaneStack(self, cohort, round)
        up, memory = half(client, self._of(cohort), K, *down)
        self._keep(cohort, memory)
        return tuple(np.broadcast_to(u, (len(cohort), self.problem.d)) for u in up), client.gradients

    def tell(self, half: SettleHalf, cohort: Indices, outcome: tuple[Array, ...]) -> None:
        """The whole cohort in one call of the half."""
        self._keep(cohort, half(LaneStack(self, cohort, 0), self._of(cohort), *outcome))

    def sum(self, w: Array, U: Array) -> Array:
        """In client order."""
        return weighted_sum(w, U)

    def _of(self, cohort: Indices) -> Vectors:
        everyone = len(cohort) == self.problem.n
        return {k: v if everyone else v[cohort] for k, v in self.kept.items()}

    def _keep(self, cohort: Indices, memory: Vectors) -> None:
        for k, v in memory.items():
            if len(cohort) == self.problem.n and v.shape == self.kept[k].shape:
                self.kept[k] = v
            else:
                self.kept[k][cohort] = v

    def memory(self) -> Vectors:
        """A copy of what the clients remember."""
        return {k: v.copy() for k, v in self.kept.items()}

    def close(self) -> None:
        """Nothing to give back: the batch is."""
