"""One run's session with the Ray actors: what they were told, what is kept of it, and how it is told again."""

from __future__ import annotations

import sys
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from importlib.machinery import PathFinder
from types import MethodType
from typing import Any

import numpy as np
import ray

from proxskip.engines.cpu.shards import Census
from proxskip.engines.ray.pool import ENDED, MIN_STORE_BYTES, Parcel, Pool, put, submit_all
from proxskip.engines.ray.worker import Message, Op
from proxskip.interfaces import Request
from proxskip.problems.federated import Problem
from proxskip.types import Vectors

REPLAY_SECONDS = 5.0
"""Local work after which a snapshot is taken, so that redoing takes no longer than this and one round."""
LOG_BYTES = 1 << 28
"""Rows of gossip that the logs hold before a snapshot is taken, or as much as the snapshot itself has."""
MAX_HALVES = 64
"""Halves whose references are kept; one that is used again later is put into the object store again."""


@dataclass(slots=True)
class Log:
    """What one actor was told, and what waits to be told.

    Between two calls of the session:

    * ``done`` are the operations since the actor's snapshot, in their order, all of them answered.
    * ``waiting`` are operations that were not sent yet: outcomes, which the actor hears with its next message.
    * ``count`` operations were done since the run began; the snapshot stands before operation ``start``.
    * What the actor's clients remember is the snapshot with ``done`` applied to it. So an actor that begins with the
      snapshot and does ``done`` again stands where the lost one stood, before operation ``count``.

    A message is ``waiting`` and what is new. It enters the log as a whole, and only when all actors have answered
    theirs: a call that is broken off, or tried again after a loss, finds the log as it was.
    """

    done: list[Op] = field(default_factory=list)
    waiting: list[Op] = field(default_factory=list)
    count: int = 0

    @property
    def start(self) -> int:
        """The operation before which the snapshot stands."""
        return self.count - len(self.done)

    def answered(self, ops: list[Op], snapshot: bool) -> None:
        """The actor did these, the waiting ones first; with ``snapshot``, its memory after them is the snapshot now."""
        self.count += len(ops)
        self.done = [] if snapshot else self.done + ops
        self.waiting = []


class Timing:
    """Where the time of the calls went.

    Args:
        actors: how many there are.
    """

    def __init__(self, actors: int) -> None:
        self.calls, self.wall, self.local, self.waiting = 0, 0.0, 0.0, 0.0
        self.busy, self.slowest_in = np.zeros(actors), np.zeros(actors, dtype=np.int64)

    def add(self, wall: float, seconds: Mapping[int, float]) -> float:
        """Count a call by the local work of each actor that was asked; that of the slowest."""
        slowest = max(seconds, key=lambda a: seconds[a])
        mean = sum(seconds.values()) / len(seconds)
        self.calls, self.wall, self.local = self.calls + 1, self.wall + wall, self.local + mean
        self.waiting += seconds[slowest] - mean
        self.slowest_in[slowest] += 1
        for a, s in seconds.items():
            self.busy[a] += s
        return seconds[slowest]

    def shares(self) -> dict[str, float]:
        """Of the time spent in calls."""
        if not self.wall:
            return {}
        return {
            "share_local": self.local / self.wall,
            "share_waiting": self.waiting / self.wall,
            "share_communication": max(0.0, 1.0 - (self.local + self.waiting) / self.wall),
        }


class ActorSession:
    """From the first operation of a run to its last."""

    def __init__(
        self, pool: Pool, problem: Problem, memory: Vectors, seed: int, census: Census, snapshot_every: int
    ) -> None:
        self.pool, self.problem, self.seed, self.census = pool, problem, seed, census
        self.snapshot_every = snapshot_every
        self.run_id = uuid.uuid4().hex
        self.snapshot = {k: v.copy() for k, v in memory.items()}
        """What the clients of each actor remember where its log starts."""
        self.logs = {a: Log() for a in pool.all}
        self.packed = lru_cache(MAX_HALVES)(_packed)
        self.rounds_since, self.seconds_since, self.bytes_since = 0, 0.0, 0  # the last snapshot
        self.round = 0
        self.timing = Timing(len(pool.all))
        self.recoveries, pool.rebuilt = pool.rebuilt, []
        pool.nodes |= pool.call(self.begin, pool.all, "did not begin", self.mend)

    def memory(self) -> Vectors:
        """What the clients remember; the snapshot is made new where it is old."""
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
            members = None if hi - lo == bounds[a + 1] - bounds[a] else cohort[lo:hi] - bounds[a]
            vectors = tuple(v if v.ndim == 1 else v[lo:hi] for v in request.down)
            own = {name: v[lo:hi] for name, v in request.own.items()}
            steps = request.K if np.ndim(request.K) == 0 else request.K[lo:hi]
            ops[a] = Op(verb, half, members, vectors, request.round, steps, own, request.exchange, lo, len(cohort))
        return ops

    def ask(self, request: Request) -> dict[int, Any]:
        """Send an operation with what waits, and time it."""
        ops = self.operations("run", request)
        self.round = request.round
        news = {a: [op] for a, op in ops.items()}
        most = max(LOG_BYTES, sum(v.nbytes for v in self.snapshot.values()))
        due = self.rounds_since >= self.snapshot_every or self.seconds_since > REPLAY_SECONDS or self.bytes_since > most
        if due:  # those that sit this round out have done some of the others
            news |= {a: [] for a, log in self.logs.items() if a not in news and (log.done or log.waiting)}
        began = time.perf_counter()
        self.pool.halt = request.halt
        try:
            replies = self.send(news, snapshot=due)
        finally:
            self.pool.halt = None
        seconds = {a: replies[a].seconds for a in ops}
        self.seconds_since += self.timing.add(time.perf_counter() - began, seconds)
        self.rounds_since += 1
        return {a: replies[a] for a in ops}

    def tell(self, request: Request) -> None:
        """Nothing yet: it travels with the next message."""
        for a, op in self.operations("tell", request).items():
            self.logs[a].waiting.append(op)

    def send(self, news: Mapping[int, list[Op]], snapshot: bool) -> dict[int, Any]:
        """What waits and what is new to these actors, in one call each; where asked, they are snapshotted after it."""
        ops, parcel = {a: self.logs[a].waiting + new for a, new in news.items()}, Parcel()

        def submit(a: int) -> Any:
            return self.post(a, self.logs[a].count, ops[a], parcel, snapshot)

        replies: dict[int, Any] = self.pool.call(submit, news, f"did not finish round {self.round}", self.mend)
        for a, reply in replies.items():
            self.logs[a].answered(ops[a], snapshot)
            for k, rows in (reply.memory or {}).items():
                self.snapshot[k][self.pool.bounds[a] : self.pool.bounds[a + 1]] = rows
        if snapshot:
            self.rounds_since, self.seconds_since, self.bytes_since = 0, 0.0, 0
        return replies

    def post(self, a: int, start: int, ops: list[Op], parcel: Parcel, snapshot: bool = False) -> Any:
        """Submit a message to one actor."""
        sent = [replace(op, vectors=tuple(parcel.of(v) for v in op.vectors)) for op in ops]
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

    def mend(self, dead: dict[int, str]) -> set[int]:
        """Bring actors back to where they stood; which."""
        lost, records = self.pool.persist(self.rebuild, "while it was rebuilt", dead, self.round)
        self.recoveries += records
        return lost

    def rebuild(self, lost: Mapping[int, str], until: float) -> None:
        """New processes for those that died; the snapshot and the log for all that lost their place."""
        pool, died = self.pool, {a: why for a, why in lost.items() if why}
        if died:
            away = {pool.nodes[a] for a, why in died.items() if why != ENDED and a in pool.nodes}
            pool.start(died, away, until)
            pool.supply(died, until)
        pool.nodes |= pool.gather(submit_all(self.begin, lost), until, "did not begin")
        parcel, logs = Parcel(), {a: self.logs[a] for a in lost if self.logs[a].done}
        refs = submit_all(lambda a: self.post(a, logs[a].start, logs[a].done, parcel), logs)
        pool.gather(refs, until, f"did not redo its part up to round {self.round}")

    # -- what happened -------------------------------------------------------------------------------------------------
    def pulse(self) -> dict[str, float]:
        """Where the time goes, as shares of the time spent in calls."""
        shares = self.timing.shares()
        return shares | {"slowest_actor": float(np.argmax(self.timing.busy))} if shares else {}

    def report(self) -> tuple[dict[str, Any], list[str]]:
        """For the result: the actors, where the time went, and every recovery; the latter also as sentences."""
        timing = self.timing
        slowest, mean = int(np.argmax(timing.busy)), float(timing.busy.mean())
        about = {
            "actors": len(self.pool.all),
            "rounds_per_second": timing.calls / timing.wall if timing.wall else None,
            **timing.shares(),
            "slowest_actor": {
                "actor": slowest,
                "clients": self.pool.clients(slowest),
                "times_the_mean": float(timing.busy[slowest]) / mean if mean else None,
                "slowest_in_rounds": int(timing.slowest_in[slowest]),
            },
            "recoveries": [dict(r) for r in self.recoveries],
        }
        notes = [
            f"the actor with {r['clients']} was lost {_when(r['round'])} ({r['cause']}) and rebuilt in "
            f"{r['seconds']:.1f} seconds; nothing of the trajectory changed."
            for r in self.recoveries
        ]
        return about, notes


def _when(round: int | None) -> str:
    return "before the run" if round is None else f"in round {round}"


def _packed(half: Any) -> Any:
    """A half as bytes, or in the object store where it is large; its class travels with it if no worker can import it.

    What is in the store is lost with the raylet, and a driver that has something there may end with it.
    """
    for kind in type(half.__self__ if isinstance(half, MethodType) else half).__mro__:
        module = sys.modules.get(kind.__module__)
        name = kind.__module__.partition(".")[0]
        if name != "__main__" and hasattr(module, "__file__") and PathFinder.find_spec(name) is None:
            ray.cloudpickle.register_pickle_by_value(module)  # its module was loaded from a file
    packed = ray.cloudpickle.dumps(half)
    return packed if len(packed) < MIN_STORE_BYTES else put(half)
