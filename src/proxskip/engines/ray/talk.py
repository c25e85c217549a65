"""One run's talk with the Ray actors: what was told, what is kept of it, and how it is told again.

For every actor there is the snapshot (its clients' memory as of some operation) and the log (the operations since). See
``engines.ray`` for why this is enough.
"""

from __future__ import annotations

import sys
import time
import uuid
from dataclasses import dataclass, replace
from importlib.machinery import PathFinder
from types import MethodType
from typing import Any

import numpy as np
import ray

from proxskip.engines.cpu.shards import Census
from proxskip.engines.ray.pool import ENDED, Died, Parcel, Pool, Tally, recovery, submit_all
from proxskip.engines.ray.worker import MIXED, Message, Op
from proxskip.links.graphs import Graph
from proxskip.problems.federated import Problem
from proxskip.seam import Request
from proxskip.types import Array, EngineError, Indices, Vectors

REPLAY_SECONDS = 5.0
"""Local work after which a snapshot is taken, so that redoing takes no longer than this and one round."""


class MixedThere:
    """Stands for the rows that the actors mixed among themselves."""


@dataclass(frozen=True, slots=True)
class Entry:
    """An operation for one actor with the vectors that it needs."""

    op: Op
    vectors: tuple[Array, ...]


class Talk:
    """From the first operation of a run to its last."""

    def __init__(
        self, pool: Pool, problem: Problem, memory: Vectors, seed: int, census: Census, snapshot_every: int
    ) -> None:
        self.pool, self.problem, self.seed, self.census = pool, problem, seed, census
        self.snapshot_every = snapshot_every
        self.run_id, self.epoch = uuid.uuid4().hex, 0
        self.graph: Graph | None = None
        self.saved = {k: v.copy() for k, v in memory.items()}
        everyone = pool.all
        self.count = dict.fromkeys(everyone, 0)
        self.log: dict[int, list[Entry]] = {a: [] for a in everyone}
        self.queue: dict[int, list[Entry]] = {a: [] for a in everyone}
        self.halves: dict[int, Any] = {}
        self.tokens: dict[Any, int] = {}
        self.next = 0
        self.knows: dict[int, set[int]] = {a: set() for a in everyone}
        self.since, self.worked, self.round, self.asked = 0, 0.0, 0, 0
        self.wall, self.local, self.waiting = 0.0, 0.0, 0.0
        self.busy = dict.fromkeys(everyone, 0.0)
        self.slow = dict.fromkeys(everyone, 0)
        self.ahead: Indices | None = None
        """The next round's cohort, where the actors read its rows from disk."""
        self.at_work: set[int] = set()
        """Actors that were asked for local work in this round."""
        self.recoveries, pool.rebuilt = pool.rebuilt, []
        pool.nodes |= pool.call(self.begin, everyone, "did not begin", self.mend)

    def link(self, graph: Graph) -> None:
        """Let the actors know who hears whom, unless they do."""
        if self.graph is not graph:
            self.memory()  # what was gossiped along another graph is not redone along this one
            self.graph = graph
            self.lay(graph)
            self.pool.call(self.tie, self.pool.all, "did not connect", self.mend)

    def memory(self) -> Vectors:
        """What the clients remember; the snapshot is made new where it is old."""
        stale = {a for a in self.pool.all if self.queue[a] or self.log[a]}
        if self.graph is not None and stale:
            stale = set(self.pool.all)
        if stale:
            self.send({a: [] for a in stale}, snapshot=True)
        return self.saved

    # -- messages ------------------------------------------------------------------------------------------------------
    def token(self, half: Any) -> int:
        """A half's number; it is sent to each actor once."""
        key = (id(half.__self__), half.__func__) if isinstance(half, MethodType) else (None, half)
        if key not in self.tokens:
            send_along(half)
            self.tokens[key] = self.next
            self.halves[self.next] = half
            self.next += 1
        return self.tokens[key]

    def forget(self, used: set[int]) -> None:
        """Keep these halves alone; a number is taken from a half with the half, for its id may come again."""
        self.halves = {k: half for k, half in self.halves.items() if k in used}
        self.tokens = {key: k for key, k in self.tokens.items() if k in used}

    def entries(self, verb: str, request: Request) -> dict[int, Entry]:
        """The operation as each actor with members in the cohort sees it."""
        token, bounds = self.token(request.half), self.pool.bounds
        cohort, K, vectors = request.cohort, request.K, request.down
        mixed = any(isinstance(v, MixedThere) for v in vectors)
        assert not mixed or len(vectors) == 1
        numbers = (MIXED,) if mixed else tuple(range(len(vectors)))
        cuts = np.searchsorted(cohort, bounds)
        found = {}
        for a in self.pool.all:
            lo, hi = int(cuts[a]), int(cuts[a + 1])
            if lo == hi:
                continue
            members = None if hi - lo == bounds[a + 1] - bounds[a] else cohort[lo:hi] - bounds[a]
            down = () if mixed else tuple(v if v.ndim == 1 else v[lo:hi] for v in vectors)
            own = {name: v[lo:hi] for name, v in request.own.items()}
            steps = K if np.ndim(K) == 0 else K[lo:hi]
            op = Op(verb, token, members, numbers, request.round, steps, own, request.exchange, lo, len(cohort))
            found[a] = Entry(op, down)
        return found

    def ask(self, verb: str, request: Request) -> dict[int, Any]:
        """Send an operation with what waits, and time it."""
        entries = self.entries(verb, request)
        self.at_work = set(entries) | (self.at_work if request.exchange else set())
        self.round = request.round
        began = time.perf_counter()
        due = self.since >= self.snapshot_every or self.worked > REPLAY_SECONDS
        news = {a: [e] for a, e in entries.items()}
        if due:  # those that sit this round out have done some of the others
            news |= {a: [] for a in self.pool.all if a not in news and (self.log[a] or self.queue[a])}
        self.pool.halt = request.halt
        try:
            replies = self.send(news, snapshot=due)
        finally:
            self.pool.halt = None
        replies = {a: replies[a] for a in entries}
        wall = time.perf_counter() - began
        seconds = {a: r.seconds for a, r in replies.items()}
        slowest = max(seconds, key=lambda a: seconds[a])
        mean = sum(seconds.values()) / len(seconds)
        self.wall, self.local = self.wall + wall, self.local + mean
        self.waiting += seconds[slowest] - mean
        self.slow[slowest] += 1
        self.since, self.worked, self.asked = self.since + 1, self.worked + seconds[slowest], self.asked + 1
        for a, s in seconds.items():
            self.busy[a] += s
        return replies

    def rewind(self) -> None:
        """Set the actors back to where this round began; what they remembered there is the snapshot."""
        asked = self.at_work | self.pool.halted
        refs = submit_all(lambda a: self.pool.handles[a].rewind.remote(self.round), asked)
        try:
            back = self.pool.gather(refs, time.monotonic() + self.pool.deadline, "did not go back to its last round")
        except Died as end:
            a = sorted(end.who)[0]
            raise EngineError(
                f"the actor with {self.pool.clients(a)} was lost while the run was interrupted; resume it from its "
                "last checkpoint."
            ) from None
        for a, found in back.items():
            if found is None:
                continue
            # those that sat the round out may have heard what waited for them
            heard = found[0] - self.count[a]
            self.queue[a] = [] if a in self.at_work else self.queue[a][heard:]
            (self.count[a], memory), self.log[a] = found, []
            lo, hi = self.pool.bounds[a], self.pool.bounds[a + 1]
            for k, v in memory.items():
                self.saved[k][lo:hi] = v

    def send(self, news: dict[int, list[Entry]], snapshot: bool) -> dict[int, Any]:
        """What waits and what is new to these actors, in one call each; where asked, a snapshot between the two."""
        parcel = Parcel()
        todo = {a: self.queue[a] + new for a, new in news.items()}
        at = {a: len(self.queue[a]) for a in news} if snapshot else {}
        submit = lambda a: self.post(a, todo[a], parcel, at.get(a))  # noqa: E731
        what = f"did not finish round {self.round}"
        told = (*self.log.values(), *self.queue.values(), *news.values()) if snapshot else ()
        used = {entry.op.half for entries in told for entry in entries}
        replies: dict[int, Any] = self.pool.call(submit, news, what, self.mend, self.break_off)
        for a, reply in replies.items():
            self.count[a] += len(todo[a])
            self.queue[a] = []
            if reply.memory is None:
                self.log[a] += todo[a]
                continue
            self.log[a] = todo[a][at[a] :]
            lo, hi = self.pool.bounds[a], self.pool.bounds[a + 1]
            for k, v in reply.memory.items():
                self.saved[k][lo:hi] = v
        if snapshot:
            self.since, self.worked = 0, 0.0
            self.forget(used)
        return replies

    def post(self, a: int, entries: list[Entry], parcel: Any, snapshot: int | None, start: int | None = None) -> Any:
        """Submit a message to one actor."""
        vectors: list[Array] = []
        places: dict[int, int] = {}
        ops = []
        for entry in entries:
            numbers = []
            for number in entry.op.vectors:
                if number == MIXED:
                    numbers.append(MIXED)
                    continue
                v = entry.vectors[number]
                if id(v) not in places:
                    places[id(v)] = len(vectors)
                    vectors.append(v)
                numbers.append(places[id(v)])
            ops.append(replace(entry.op, vectors=tuple(numbers)))
        new = {k: half for k, half in self.halves.items() if k not in self.knows[a]}
        new |= dict.fromkeys(self.knows[a] - self.halves.keys())
        self.knows[a] = set(self.halves)
        start = self.count[a] if start is None else start
        ahead = None
        if self.ahead is not None:
            lo, hi = self.pool.bounds[a], self.pool.bounds[a + 1]
            ahead = self.ahead[slice(*np.searchsorted(self.ahead, (lo, hi)))] - lo
        message = Message(self.run_id, start, tuple(ops), new, snapshot, self.pool.deadline, ahead)
        return self.pool.handles[a].step.remote(message, *(parcel.of(v) for v in vectors))

    # -- faults --------------------------------------------------------------------------------------------------------
    def begin(self, a: int) -> Any:
        """Set an actor to the snapshot."""
        lo, hi = self.pool.bounds[a], self.pool.bounds[a + 1]
        memory = {k: v[lo:hi] for k, v in self.saved.items()}
        start = self.count[a] - len(self.log[a])
        problem = self.problem
        return self.pool.handles[a].begin.remote(
            self.run_id, start, self.seed, problem.d, problem.batch, self.census, memory
        )

    def lay(self, graph: Graph) -> None:
        """Cut the graph along the actors' bounds: who hears which rows of whom."""
        bounds = self.pool.bounds
        self.parts = {a: graph.part(bounds[a], bounds[a + 1]) for a in self.pool.all}
        self.hears: dict[int, dict[int, Indices]] = {}
        for a, part in self.parts.items():
            owner = np.searchsorted(bounds, part.outside, side="right") - 1
            self.hears[a] = {int(b): part.outside[owner == b] - bounds[int(b)] for b in np.unique(owner)}

    def tie(self, a: int) -> Any:
        """Tell an actor its part of the graph, and who its peers are now."""
        gives = {b: heard[a] for b, heard in self.hears.items() if a in heard}
        peers = {b: self.pool.handles[b] for b in gives}
        return self.pool.handles[a].connect.remote(
            self.run_id, self.epoch, self.parts[a], sorted(self.hears[a]), gives, peers
        )

    def break_off(self, at_work: list[int]) -> None:
        """Actors that gossip would wait for the dead one's letters."""
        if self.graph is not None:
            for a in at_work:
                self.pool.handles[a].abort.remote(self.run_id, self.epoch)

    def mend(self, dead: dict[int, str]) -> set[int]:
        """Bring actors back to where they stood; which of them were set back on the way."""
        began, lost, tally = time.perf_counter(), set(dead), Tally(self.pool, "while it was rebuilt", dead)
        died = {a: why for a, why in dead.items() if why}
        while True:
            try:
                back = self.rebuild(died, lost, tally.until)
                break
            except Died as end:  # begin again with all that died so far: who knows how far they got
                tally.add(end.who)
                died |= {a: why for a, why in end.who.items() if why}
                lost |= set(end.who)
        seconds = time.perf_counter() - began
        self.recoveries += [recovery(self.pool, a, self.round, seconds, why) for a, why in sorted(died.items())]
        return back

    def rebuild(self, gone: dict[int, str], lost: set[int], until: float) -> set[int]:
        """New processes for those that are gone; snapshot and log for all that lost their place."""
        pool = self.pool
        if gone:
            away = {pool.nodes[a] for a, why in gone.items() if why != ENDED and a in pool.nodes}
            pool.start(gone, away, until)
            pool.supply(gone, until)
        self.knows |= {a: set() for a in gone}
        back = set(pool.all) if self.graph is not None else lost
        self.epoch += 1
        if self.graph is not None:
            pool.gather(submit_all(self.tie, pool.all), until, "did not connect")
        pool.nodes |= pool.gather(submit_all(self.begin, back), until, "did not begin")
        parcel = Parcel()
        again = lambda a: self.post(a, self.log[a], parcel, None, self.count[a] - len(self.log[a]))  # noqa: E731
        refs = submit_all(again, (a for a in back if self.log[a]))
        pool.gather(refs, until, f"did not redo its part up to round {self.round}", self.break_off)
        return back

    # -- what happened -------------------------------------------------------------------------------------------------
    def pulse(self) -> dict[str, float]:
        """Where the time goes, as shares of the time spent in calls."""
        if not self.wall:
            return {}
        slowest = max(self.slow, key=lambda a: self.busy[a])
        return {
            "share_local": self.local / self.wall,
            "share_waiting": self.waiting / self.wall,
            "share_communication": max(0.0, 1.0 - (self.local + self.waiting) / self.wall),
            "slowest_actor": float(slowest),
        }

    def report(self) -> tuple[dict[str, Any], list[str]]:
        """For the result: the actors, where the time went, and every recovery; the latter also as sentences."""
        pulse = self.pulse()
        slowest = int(pulse.get("slowest_actor", 0))
        mean = sum(self.busy.values()) / len(self.busy)
        about = {
            "actors": len(self.pool.all),
            "rounds_per_second": self.asked / self.wall if self.wall else None,
            **{k: v for k, v in pulse.items() if k != "slowest_actor"},
            "slowest_actor": {
                "actor": slowest,
                "clients": self.pool.clients(slowest),
                "times_the_mean": self.busy[slowest] / mean if mean else None,
                "slowest_in_rounds": self.slow[slowest],
            },
            "recoveries": [dict(r) for r in self.recoveries],
        }
        told = [
            f"the actor with {r['clients']} was lost {_when(r['round'])} ({r['cause']}) and rebuilt in "
            f"{r['seconds']:.1f} seconds; nothing of the trajectory changed."
            for r in self.recoveries
        ]
        return about, told


def _when(round: int | None) -> str:
    return "before the run" if round is None else f"in round {round}"


def send_along(half: Any) -> None:
    """Send a method itself where its module was loaded from a file, so that a worker cannot import it by its name."""
    for kind in type(half.__self__ if isinstance(half, MethodType) else half).__mro__:
        module = sys.modules.get(kind.__module__)
        name = kind.__module__.partition(".")[0]
        if name != "__main__" and hasattr(module, "__file__") and PathFinder.find_spec(name) is None:
            ray.cloudpickle.register_pickle_by_value(module)
