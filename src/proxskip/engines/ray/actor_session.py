"""One run's session with the Ray actors: it sends them operations, logs these, and replays them after a loss."""

from __future__ import annotations

import sys
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from importlib.machinery import PathFinder
from types import MethodType
from typing import TYPE_CHECKING, Any

import numpy as np
import ray

from proxskip.engines.ray.pool import MIN_STORE_BYTES, Parcel, Pool, submit_all
from proxskip.engines.ray.worker import Message, Op
from proxskip.interfaces import Request
from proxskip.problems.federated import Problem
from proxskip.types import Vectors

if TYPE_CHECKING:
    from proxskip.engines.cpu.shards import Census

REPLAY_SECONDS = 5.0
"""Local work after which a snapshot is taken, which limits the time to replay."""
LOG_BYTES = 1 << 28
"""Bytes of gossiped rows in the logs (or the snapshot's own size) after which a snapshot is taken."""
MAX_HALVES = 64
"""The most halves whose packed form is kept."""


@dataclass(slots=True)
class Log:
    """What one actor was told, and what waits to be told.

    Between two calls of the session:

    * ``done`` are the operations since the actor's snapshot, in order, all answered.
    * ``waiting`` are operations not sent yet: outcomes, which the actor hears with its next message.
    * ``count`` operations were done since the run began; the snapshot stands before operation ``start``.
    * The actor's memory is the snapshot with ``done`` applied. So a new actor that begins with the snapshot and repeats
      ``done`` stands where the lost one stood, before operation ``count``.

    A message is ``waiting`` plus new operations. It enters the log as a whole, once all actors have answered: a call
    that is broken off, or repeated after a loss, finds the log unchanged.
    """

    done: list[Op] = field(default_factory=list)
    waiting: list[Op] = field(default_factory=list)
    count: int = 0

    @property
    def start(self) -> int:
        """The operation before which the snapshot stands."""
        return self.count - len(self.done)

    def answered(self, ops: list[Op], snapshot: bool) -> None:
        """The actor did these operations; with ``snapshot``, its memory after them is the new snapshot."""
        self.count += len(ops)
        self.done = [] if snapshot else self.done + ops
        self.waiting = []


class ActorSession:
    """The messages of one run to its actors, from the first operation to the last."""

    def __init__(
        self, pool: Pool, problem: Problem, memory: Vectors, seed: int, census: Census, snapshot_every: int
    ) -> None:
        self.pool, self.problem, self.seed, self.census = pool, problem, seed, census
        self.snapshot_every = snapshot_every
        self.run_id = uuid.uuid4().hex
        self.snapshot = {k: v.copy() for k, v in memory.items()}
        """The clients' memory where each actor's log starts."""
        self.logs = {a: Log() for a in pool.all}
        self.packed = lru_cache(MAX_HALVES)(_packed)
        self.rounds_since, self.seconds_since, self.bytes_since = 0, 0.0, 0  # the last snapshot
        self.round = 0
        self.calls, self.seconds, self.local_seconds, self.waiting_seconds = 0, 0.0, 0.0, 0.0
        self.recoveries = pool.recoveries
        pool.call(self.begin, pool.all, "did not begin")
        pool.run = self

    def memory(self) -> Vectors:
        """The clients' memory, as a fresh snapshot."""
        stale = [a for a, log in self.logs.items() if log.waiting or log.done]
        if stale:
            self.send({a: [] for a in stale}, snapshot=True)
        return self.snapshot

    # -- messages ------------------------------------------------------------------------------------------------------
    def operations(self, verb: str, request: Request) -> dict[int, Op]:
        """The request as each actor with members in the cohort sees it."""
        half, bounds, cohort = self.packed(request.half), self.pool.bounds, request.cohort
        cuts = np.searchsorted(cohort, bounds)
        self.bytes_since += sum(v.nbytes for v in request.down if v.ndim == 2)
        ops = {}
        for a in self.pool.all:
            lo, hi = int(cuts[a]), int(cuts[a + 1])
            if lo == hi:
                continue
            members: Any = None if hi - lo == bounds[a + 1] - bounds[a] else cohort[lo:hi] - bounds[a]
            part = replace(
                request, half=half, cohort=members,
                down=tuple(v if v.ndim == 1 else v[lo:hi] for v in request.down),
                own={name: v[lo:hi] for name, v in request.own.items()},
                K=request.K if np.ndim(request.K) == 0 else request.K[lo:hi],
                first=lo, asked=len(cohort), halt=None, weights=(),
            )  # fmt: skip
            ops[a] = Op(verb, part)
        return ops

    def ask(self, request: Request) -> dict[int, Any]:
        """Send an operation with those waiting, and time it."""
        ops = self.operations("run", request)
        self.round = request.round
        news = {a: [op] for a, op in ops.items()}
        most = max(LOG_BYTES, sum(v.nbytes for v in self.snapshot.values()))
        due = self.rounds_since >= self.snapshot_every or self.seconds_since > REPLAY_SECONDS or self.bytes_since > most
        if due:  # also from actors that sit this round out
            news |= {a: [] for a, log in self.logs.items() if a not in news and (log.done or log.waiting)}
        began = time.perf_counter()
        self.pool.halt = request.halt
        try:
            replies = self.send(news, snapshot=due)
        finally:
            self.pool.halt = None
        seconds = [replies[a].seconds for a in ops]
        mean, slowest = sum(seconds) / len(seconds), max(seconds)
        self.calls, self.seconds = self.calls + 1, self.seconds + time.perf_counter() - began
        self.local_seconds, self.waiting_seconds = self.local_seconds + mean, self.waiting_seconds + slowest - mean
        self.rounds_since, self.seconds_since = self.rounds_since + 1, self.seconds_since + slowest
        return {a: replies[a] for a in ops}

    def tell(self, request: Request) -> None:
        """Queue the outcome: it travels with the next message."""
        for a, op in self.operations("tell", request).items():
            self.logs[a].waiting.append(op)

    def send(self, news: Mapping[int, list[Op]], snapshot: bool) -> dict[int, Any]:
        """Send waiting and new operations to these actors, in one call each; take a snapshot after it if wanted."""
        ops, parcel = {a: self.logs[a].waiting + new for a, new in news.items()}, Parcel()

        def submit(a: int) -> Any:
            return self.post(a, self.logs[a].count, ops[a], parcel, snapshot)

        replies: dict[int, Any] = self.pool.call(submit, news, f"did not finish round {self.round}")
        for a, reply in replies.items():
            self.logs[a].answered(ops[a], snapshot)
            for k, rows in (reply.memory or {}).items():
                self.snapshot[k][self.pool.bounds[a] : self.pool.bounds[a + 1]] = rows
        if snapshot:
            self.rounds_since, self.seconds_since, self.bytes_since = 0, 0.0, 0
        return replies

    def post(self, a: int, start: int, ops: list[Op], parcel: Parcel, snapshot: bool = False) -> Any:
        """Submit a message to one actor."""
        sent = [Op(verb, replace(r, down=tuple(parcel.of(v) for v in r.down))) for verb, r in ops]
        return self.pool.handles[a].step.remote(Message(self.run_id, start, sent, snapshot))

    # -- faults --------------------------------------------------------------------------------------------------------
    def begin(self, a: int) -> Any:
        """Set an actor to the snapshot."""
        lo, hi = self.pool.bounds[a], self.pool.bounds[a + 1]
        memory = {k: v[lo:hi] for k, v in self.snapshot.items()}
        d, batch = self.problem.d, self.problem.batch
        return self.pool.handles[a].begin.remote(
            self.run_id, self.logs[a].start, self.seed, d, batch, self.census, memory
        )

    def restore(self, lost: Mapping[int, str], until: float) -> None:
        """Bring new actors to where the lost ones stood: the snapshot, then the log."""
        self.pool.gather(submit_all(self.begin, lost), until, "did not begin")
        parcel, logs = Parcel(), {a: self.logs[a] for a in lost if self.logs[a].done}
        refs = submit_all(lambda a: self.post(a, logs[a].start, logs[a].done, parcel), logs)
        self.pool.gather(refs, until, f"did not redo its part up to round {self.round}")

    # -- the report ----------------------------------------------------------------------------------------------------
    def report(self) -> tuple[dict[str, Any], list[str]]:
        """For the result: the actors, where the time went, and every recovery, also as sentences."""
        about: dict[str, Any] = {"actors": len(self.pool.all), "recoveries": [dict(r) for r in self.recoveries]}
        if self.seconds:
            local, waiting = self.local_seconds / self.seconds, self.waiting_seconds / self.seconds
            about |= {"rounds_per_second": self.calls / self.seconds, "share_local": local, "share_waiting": waiting}
            about |= {"share_communication": max(0.0, 1.0 - local - waiting)}
        notes = [
            f"the actor with {r['clients']} was lost {_when(r['round'])} ({r['cause']}) and rebuilt in "
            f"{r['seconds']:.1f} seconds; the trajectory did not change."
            for r in self.recoveries
        ]
        return about, notes


def _when(round: int | None) -> str:
    return "before the run" if round is None else f"in round {round}"


def _packed(half: Any) -> Any:
    """A half as bytes, or in the object store if large; its class travels along if workers cannot import it.

    Small halves stay out of the store, because the store is lost with the raylet, and the driver may end with it.
    """
    for kind in type(half.__self__ if isinstance(half, MethodType) else half).__mro__:
        module = sys.modules.get(kind.__module__)
        name = kind.__module__.partition(".")[0]
        if name != "__main__" and hasattr(module, "__file__") and PathFinder.find_spec(name) is None:
            ray.cloudpickle.register_pickle_by_value(module)  # a plugin, loaded from a file
    packed = ray.cloudpickle.dumps(half)
    return packed if len(packed) < MIN_STORE_BYTES else ray.put(half)
