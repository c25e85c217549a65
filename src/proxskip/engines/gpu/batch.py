"""Many runs on one GPU at once: each run keeps its own halves and memory, their local steps share launches.

No threads: a half that asks for local steps is broken off (``Suspended``), its question joins the others' in one
launch, and the half is run again from its beginning with the answer at hand. Halves are pure and cheap, so that running
them twice changes nothing. A client's arithmetic does not depend on who shares its launch.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from threading import Event
from typing import Any

import numpy as np

from proxskip.engines.gpu.device import need_cupy
from proxskip.engines.gpu.launch import LocalSteps
from proxskip.engines.gpu.limits import (
    SECONDS_BETWEEN_LOOKS,
    entries_of,
    everywhere,
    only_plain_steps,
    only_plain_vectors,
    rows_taken,
    steps_between_looks,
)
from proxskip.engines.local import Sender
from proxskip.engines.near import NearEngine
from proxskip.links.sums import SUM_BLOCK, weighted_sum
from proxskip.problems.federated import Problem
from proxskip.seam import Request, look
from proxskip.types import Array, Indices, InputError, Vectors


class Suspended(Exception):
    """A half waits for local steps; the question stands in its lane."""


@dataclass(frozen=True)
class Job:
    """One cohort's local steps, or its gradients."""

    members: Indices
    X: Array
    H: Array | float
    gamma: Any
    K: Any
    seed: int
    round: int
    want_gradient: bool


class Batch:
    """One problem's data on the card, and a few streams on which launches follow each other."""

    def __init__(self, problem: Problem, runs: int) -> None:
        need_cupy()
        if not LocalSteps.fit(problem):
            raise InputError('a sweep on the GPU needs linear models of one loss and dtype; use engine="cpu".')
        self.problem, self.entries = problem, entries_of(problem)
        self.local = LocalSteps(problem, runs * problem.n)
        # without minibatches a local step takes the full gradient, so that one kernel serves both
        self.whole: LocalSteps | None = None if problem.batch else self.local

    def steps(self, want_gradient: bool) -> LocalSteps:
        """The kernel for local steps, or that for full gradients."""
        if not want_gradient:
            return self.local
        if self.whole is None:
            # the data are on the card once, whichever kernel reads them
            self.whole = LocalSteps(self.problem, self.local.parallel, full=True, data=self.local.data)
            # its tables were sent on the stream that asked first, and launches on others read them
            need_cupy().cuda.Device().synchronize()
        return self.whole

    def steps_at_first(self, rows: int) -> int:
        """About how many local steps of so many rows are done between two looks."""
        return steps_between_looks(self.entries * rows / self.problem.n)


class Flight:
    """One stream with room for the questions of some runs: ``launch``, then ``land``."""

    def __init__(self, batch: Batch, rows: int, halt: Event | None = None) -> None:
        import cupy  # type: ignore[import-not-found]
        import cupyx  # type: ignore[import-not-found]

        self.batch, self.halt, d = batch, halt, batch.problem.d
        self.stream = cupy.cuda.Stream(non_blocking=not batch.local.grid)
        # eight-byte fields before four-byte ones, so that each of them begins aligned
        fields = {"X": 8 * d, "H": 8 * d, "gamma": 8, "seeds": 8, "K": 4, "members": 4, "order": 4, "rounds": 4}
        kinds = {"seeds": np.uint64, "K": np.int32, "members": np.int32, "order": np.int32, "rounds": np.uint32}
        total = rows * sum(fields.values())
        # one piece of locked memory and one on the card: all fields go there in a single copy
        self.here, self.there = cupyx.empty_pinned(total, np.uint8), cupy.empty(total, np.uint8)
        self.answer = cupyx.empty_pinned((rows, d), np.float64)
        self.mine: dict[str, Any] = {}
        self.card: dict[str, Any] = {}
        at = 0
        for name, size in fields.items():
            span, kind = slice(at, at + rows * size), kinds.get(name, np.float64)
            shape = (rows, d) if name in ("X", "H") else (rows,)
            self.mine[name] = self.here[span].view(kind).reshape(shape)
            self.card[name] = self.there[span].view(kind).reshape(shape)
            at += rows * size
        self.flown: list[tuple[list[Job], Any]] = []
        cupy.cuda.Device().synchronize()

    def launch(self, jobs: list[Job]) -> None:
        """Send the questions and begin; gradients and steps apart."""
        self.flown, first = [], 0
        with self.stream:
            for wanted in (False, True):
                alike = [job for job in jobs if job.want_gradient is wanted]
                if alike:
                    first = self._begin(alike, wanted, first)

    def _begin(self, jobs: list[Job], wanted: bool, first: int) -> int:
        mine, last = self.mine, first
        for job in jobs:
            a, last = last, last + len(job.members)
            mine["X"][a:last] = job.X
            mine["H"][a:last] = job.H
            mine["gamma"][a:last] = np.ravel(job.gamma)
            mine["K"][a:last] = job.K
            mine["members"][a:last] = job.members
            mine["seeds"][a:last] = job.seed
            mine["rounds"][a:last] = job.round
        # the longest first, so that none of them begins when the others are done
        mine["order"][first:last] = np.argsort(-mine["K"][first:last], kind="stable")
        if first == 0:
            # rows of a second launch are written later than this copy, and follow field by field
            self.there.set(self.here, stream=self.stream)
        else:
            for name, v in mine.items():
                self.card[name][first:last].set(v[first:last], stream=self.stream)
        card = {k: v[first:last] for k, v in self.card.items()}
        out = self._steps(mine["K"][first:last].copy(), card, wanted)
        out.get(stream=self.stream, out=self.answer[first:last], blocking=False)
        # ``out`` must live until its copy has landed
        self.flown.append((jobs, out))
        return last

    def _steps(self, K: Indices, card: dict[str, Any], wanted: bool) -> Any:
        """The steps of all rows; of long work all but the last part at once, with a look at ``halt`` between parts.

        A step depends on x and on its number alone, so that the bytes are those of one launch.
        """
        local, x, done, most = self.batch.steps(wanted), card["X"], 0, int(K.max())
        how = {name: card[name] for name in ("members", "order", "seeds", "rounds")}
        count = self.batch.steps_at_first(len(K))
        while most - done > count:
            look(self.halt)
            began = time.perf_counter()
            card["K"].set(np.clip(K - done, 0, count).astype(np.int32), stream=self.stream)
            x = local.descend(len(K), x, card["H"], card["gamma"], card["K"], step0=done, **how)
            self.stream.synchronize()
            took = time.perf_counter() - began
            done, count = done + count, max(1, int(count * min(4.0, SECONDS_BETWEEN_LOOKS / max(took, 1e-9))))
        if done:
            card["K"].set(np.maximum(K - done, 0).astype(np.int32), stream=self.stream)
            how["step0"] = done
        return local.descend(len(K), x, card["H"], card["gamma"], card["K"], want_gradient=wanted, **how)

    def land(self) -> list[tuple[Job, Array]]:
        """Wait for the answers."""
        self.stream.synchronize()
        out, at = [], 0
        for jobs, _ in self.flown:
            for job in jobs:
                out.append((job, self.answer[at : at + len(job.members)].copy()))
                at += len(job.members)
        self.flown = []
        return out


class LaneCohort(Sender):
    """A run's cohort as one client: its arithmetic in numpy, its steps on the card."""

    def __init__(self, lane: Lane, members: Indices, round: int) -> None:
        self.lane, self.members, self.round = lane, members, round

    def send(self, v: Any, codec: Any = None) -> Any:
        """As it is."""
        only_plain_vectors(codec)
        return v

    def descend(self, x: Array, h: Array | float, gamma: Any, K: Any, **more: Any) -> Array:
        """K times  x <- x - gamma (g(x) - h),  for every member."""
        only_plain_steps(more)
        self.gradients += rows_taken(self.lane.problem, self.lane.rows, self.lane.row_count, self.members, K)
        return self.lane.ask(Job(self.members, x, h, gamma, K, self.lane.seed, self.round, False))

    def gradient(self, x: Array, where: Any = None) -> Array:
        """The members' full gradients, one row each."""
        everywhere(where)
        self.gradients += int(self.lane.rows[self.members].sum())
        return self.lane.ask(Job(self.members, x, 0.0, 1.0, 1, self.lane.seed, self.round, True))

    def own(self, values: Any) -> Any:
        """The members' entries as a column."""
        return values if np.ndim(values) == 0 else np.asarray(values)[self.members, None]


class Lane(NearEngine):
    """The engine of one run in a batch."""

    name = "gpu"
    together = True
    atomic = True

    def __init__(self) -> None:
        self.answers: list[Array] = []
        self.asked = 0
        self.question: Job | None = None

    def ask(self, job: Job) -> Array:
        """The answer if it is there already; otherwise break off."""
        self.asked += 1
        # the half runs from its beginning again: questions answered before come in the same order
        if self.asked <= len(self.answers):
            return self.answers[self.asked - 1]
        self.question = job
        raise Suspended

    def open(self, problem: Problem, memory: Vectors, seed: int) -> None:
        """Keep the initial memory; the data are on the card already."""
        super().open(problem, memory, seed)
        self.rows = problem.rows_each
        self.row_count = int(self.rows.sum())

    def rewind(self) -> None:
        """The round under way is not to be: neither its memory nor the answers to its questions."""
        super().rewind()
        self.answers, self.question = [], None

    def client(self, members: Indices, request: Request, place: int) -> LaneCohort:
        """The whole cohort; its half is run from its beginning."""
        # counted anew in every attempt; the answers stay until the half has run through
        self.asked = 0
        return LaneCohort(self, members, request.round)

    def _store(self, cohort: Indices, up: Any, memory: Any) -> tuple[Any, ...]:
        """The half ran through: its questions are answered."""
        self.answers = []
        return super()._store(cohort, up, memory)

    def sum(self, w: Array, U: Array) -> Array:
        """In client order, with the bytes of ``links.weighted_sum``."""
        return np.add.reduce(w[:, None] * U, axis=0) if 1 < len(U) <= SUM_BLOCK else weighted_sum(w, U)
