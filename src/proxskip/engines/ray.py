"""The Ray engine: clients in actors on a cluster, the trajectory of the cpu engine bit for bit, and nothing lost.

What a client remembers is a function of the messages it saw. The engine keeps, for every actor, its clients' memory as
of some operation (the snapshot) and the operations since (the log). An actor that dies is made anew, given its shards
and the snapshot, and told the log again; the kernels and the minibatches are deterministic, so it comes to stand where
the dead one stood. Ray never restarts an actor by itself: that would start it with h = 0.

A round of Scaffnew is one call to every actor: what ``settle`` says waits and travels with the next round's message.
With gossip the actors exchange vectors among themselves. A dead one's peers have moved on meanwhile, so there all
actors go back to the last snapshot, which was taken everywhere at the same operation, and redo the rounds since.
"""

from __future__ import annotations

import os
import time
import uuid
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from proxskip.engines import kernels
from proxskip.engines.cpu import balanced
from proxskip.engines.shards import Census
from proxskip.links import SUM_BLOCK, Graph, sum_in_order
from proxskip.problems.federated import LKind, Problem
from proxskip.problems.glm import LinearModel, Logistic
from proxskip.problems.sharded import Files, Remote, Sharded, agree, as_source
from proxskip.seam import Array, ClientHalf, EngineError, Indices, InputError, SettleHalf, Vectors

REPLAY_SECONDS = 5.0
"""Local work after which a snapshot is taken, so that redoing it takes no longer."""


class _Mixed:
    """Stands for the rows that the actors mixed among themselves."""


@dataclass(frozen=True, slots=True)
class Entry:
    """An operation for one actor with the vectors that it needs."""

    op: Any
    vectors: tuple[Array, ...]


class RayEngine:
    """Clients in Ray actors; the same bytes as the cpu engine's, for any number of actors.

    Args:
        actors: how many; by default one a CPU of the cluster, at most one a client.
        address: of a running cluster, ``"auto"`` for the one this machine belongs to; None starts Ray on this machine
            (or uses the Ray that this process has started already).
        cores: CPUs, and threads, of each actor.
        memory: bytes of data that each actor may hold; a shard that does not fit is refused.
        deadline: seconds after which a call that was not answered ends the run with an EngineError.
        snapshot_every: rounds after which the clients' memory is copied to the driver at the latest.
        stay: keep the actors and their shards after a run for the next one on the same problem, until ``shutdown``.
    """

    name = "ray"
    remote = True

    def __init__(
        self,
        actors: int | None = None,
        address: str | None = None,
        *,
        cores: int = 1,
        memory: int | None = None,
        deadline: float = 600.0,
        snapshot_every: int = 50,
        stay: bool = False,
    ) -> None:
        for what, v in (("actors", actors), ("cores", cores), ("memory", memory), ("snapshot_every", snapshot_every)):
            if v is not None and (isinstance(v, bool) or not isinstance(v, (int, np.integer)) or v < 1):
                raise InputError(f"{what} = {v!r} must be a whole number of at least 1.")
        if not deadline > 0:
            raise InputError(f"deadline = {deadline} must be positive.")
        need_ray()
        self.actors, self.address, self.cores, self.memory_limit = actors, address, cores, memory
        self.deadline, self.snapshot_every, self.stay = float(deadline), snapshot_every, stay
        self.pool: Any = None
        self.holds: Any = None
        self.loaded = self.started = False
        self.graph: Graph | None = None
        self.warned: list[str] = []

    # -- the cluster ---------------------------------------------------------------------------------------------------
    def _connect(self) -> None:
        import ray

        from proxskip.engines import ray_pool

        self.started = ray_pool.connect(self.address) or self.started
        note = ray_pool.exposed(ray.get_runtime_context().gcs_address, os.environ)
        if note is not None and note not in self.warned:
            self.warned.append(note)
            warnings.warn(note, ray_pool.UnsafeClusterWarning, stacklevel=4)

    def _pool(self, load: Array, names: Callable[[int], str] | None) -> Any:
        """Actors over contiguous clients of about equal load, not yet made."""
        import ray

        from proxskip.engines.ray_pool import Pool

        self._connect()
        cpus = int(ray.cluster_resources().get("CPU", 1)) // self.cores
        parts = balanced(load, self.actors or max(1, cpus))
        bounds = [0, *(hi for lo, hi in parts if hi > lo)]
        made = Pool(bounds, self.cores, self.memory_limit, self.deadline, names)
        if self.pool is not None:
            made.adopt(self.pool)
        self.pool, self.holds, self.run_id = made, None, ""
        return made

    def load(
        self,
        shards: Any,
        model: type[LinearModel] = Logistic,
        *,
        n: int | None = None,
        l2: float = 0.0,
        intercept: bool = False,
        dtype: Any = "float64",
        features: int | None = None,
        weights: Any = "rows",
        L: LKind = "max",
        batch: int | None = None,
        psi: Any = None,
    ) -> Sharded:
        """A problem whose shards are loaded by the actors that hold them; no data pass through this process.

        Args:
            shards: a list of svmlight or npz files, one a client, at the same path on every machine; or a function
                ``load_shard(i)`` that gives client i, a linear model or any oracle.
            n: the number of clients, for a function.
            features: columns of the data; without it the largest index that occurs in a file.
            weights: "rows", "equal", or a number a client.
        """
        given = {"model": model, "l2": l2, "intercept": intercept, "dtype": str(np.dtype(dtype)), "features": features}
        source = as_source(shards, n, **({} if callable(shards) else given))
        pool = self._pool(_sizes(source), source.name)
        bounds = pool.bounds
        pool.data = [("look", lambda a: (source, bounds[a], bounds[a + 1]))]
        self.loaded = True
        looks = self._supplied("look")
        width, classes = agree(source, looks)
        pool.data.append(("build", lambda a: (source, width, classes)))
        facts = self._built("build")
        sizes = [f.N for f in facts]
        if isinstance(weights, str):
            if weights not in ("rows", "equal"):
                raise InputError(f'weights = "{weights}" is not known; use "rows" or "equal".')
            weights = sizes if weights == "rows" and None not in sizes else None
        about = {"split": "shards", "data": f"{source.n} shards"}
        made = Sharded([Remote(f) for f in facts], weights, psi, None, batch, L, info=about, holder=self, source=source)
        self.holds = made.clients
        return made

    def _supplied(self, verb: str) -> list[Any]:
        """Start all actors and give them what there is so far; again if some die of it."""
        pool = self.pool
        try:
            pool.start(a for a in pool.all if pool.handles[a] is None)
            found = self._patiently(lambda until: pool.supply(pool.all, until)[verb])
        except BaseException:
            self.shutdown_pool()
            raise
        return [v for a in pool.all for v in found[a]]

    def _built(self, verb: str) -> list[Any]:
        """The last of the calls that give an actor its data, for actors that have had the others."""
        pool = self.pool
        arguments = pool.data[-1][1]

        def go(until: float) -> Any:
            refs = {a: getattr(pool.handles[a], verb).remote(*arguments(a)) for a in pool.all}
            return pool.gather(refs, until, "did not load its shards")

        try:
            found = self._patiently(go, again=lambda until: pool.supply(pool.all, until)[verb])
        except BaseException:
            self.shutdown_pool()
            raise
        return [v for a in pool.all for v in found[a]]

    def _patiently(self, act: Callable[[float], Any], again: Callable[[float], Any] | None = None) -> Any:
        """Before a run: if actors die, all are made anew, a few times."""
        from proxskip.engines.ray_pool import DEATHS, Died

        for _ in range(DEATHS):
            try:
                return act(time.monotonic() + self.deadline)
            except Died as end:
                last = end
                self.pool.start(self.pool.all)
                act = again or act
        a, why = next(iter(last.who.items()))
        raise EngineError(f"the actor with {self.pool.clients(a)} died {DEATHS} times while it was loaded: {why}.")

    def evaluate(self, x: Array) -> tuple[list[float], Array]:
        """f_i(x) and grad f_i(x) of every client of the loaded problem, computed where they are."""
        found = self._call("evaluate", lambda a, parcel: (parcel.of(x), True, True))
        values = [v for a in self.pool.all for v in found[a][0]]
        return values, np.concatenate([found[a][1] for a in self.pool.all])

    def _call(self, verb: str, arguments: Callable[[int, Any], tuple[Any, ...]]) -> dict[int, Any]:
        """Ask every actor something that changes nothing."""
        from proxskip.engines.ray_pool import Parcel

        parcel = Parcel()
        submit = lambda a: getattr(self.pool.handles[a], verb).remote(*arguments(a, parcel))  # noqa: E731
        found: dict[int, Any] = self.pool.call(submit, self.pool.all, "did not answer", self._mend)
        return found

    # -- an engine's verbs ---------------------------------------------------------------------------------------------
    def open(self, problem: Problem, memory: Vectors, seed: int) -> None:
        """Place the clients in actors, unless they are there already, and compile before the clock runs."""
        if isinstance(problem, Sharded) and problem.holder is not self:
            raise InputError("this problem's shards were loaded by another engine; run it with that one.")
        self.run_id, self.graph = "", None
        if self.pool is None or self.holds is not problem.clients:
            if isinstance(problem, Sharded):
                raise InputError("this engine has loaded other shards since; load these again.")
            self._place(problem)
        if isinstance(problem, Sharded):
            census = Census.merged(list(self._call("census", lambda a, _: (problem.d, problem.batch)).values()))
        else:
            census = Census.of(problem)
        self.problem, self.seed, self.census = problem, seed, census
        self.run_id, self.epoch = uuid.uuid4().hex, 0
        everyone = self.pool.all
        self.saved = {k: v.copy() for k, v in memory.items()}
        self.count = dict.fromkeys(everyone, 0)
        self.log: dict[int, list[Entry]] = {a: [] for a in everyone}
        self.queue: dict[int, list[Entry]] = {a: [] for a in everyone}
        self.halves: list[Any] = []
        self.tokens: dict[Any, int] = {}
        self.knows: dict[int, int] = dict.fromkeys(everyone, 0)
        self.since, self.worked, self.round, self.asked = 0, 0.0, 0, 0
        self.wall, self.local, self.waiting = 0.0, 0.0, 0.0
        self.busy = dict.fromkeys(everyone, 0.0)
        self.slow = dict.fromkeys(everyone, 0)
        self.recoveries: list[dict[str, Any]] = []
        self._guarded(lambda: self.pool.call(self._begin, everyone, "did not begin", self._mend))

    def _place(self, problem: Problem) -> None:
        pool = self._pool(_load(problem), None)
        bounds, clients = pool.bounds, problem.clients
        pool.data = [("take", lambda a: (bounds[a], clients[bounds[a] : bounds[a + 1]]))]
        self.holds, self.loaded = problem.clients, False
        pool.start(a for a in pool.all if pool.handles[a] is None)
        try:
            self._patiently(lambda until: pool.supply(pool.all, until))
        except BaseException:
            self.shutdown_pool()
            raise

    def run(
        self, half: ClientHalf, cohort: Indices, round: int, K: Any, down: tuple[Array, ...]
    ) -> tuple[tuple[Array, ...], int]:
        """One call to every actor that holds members of the cohort."""
        replies = self._ask("run", half, cohort, round, K, down)
        order = sorted(replies)
        up = tuple(np.concatenate(column) for column in zip(*(replies[a].up for a in order), strict=True))
        return up, sum(replies[a].gradients for a in order)

    def gossip(self, half: ClientHalf, graph: Graph, round: int, K: int) -> tuple[_Mixed, int]:
        """One call to every actor; the actors post vectors to each other along the graph's edges."""
        if self.graph is not graph:
            self.graph = graph
            self._lay(graph)
            self._guarded(lambda: self.pool.call(self._tie, self.pool.all, "did not connect", self._mend))
        replies = self._ask("gossip", half, np.arange(self.problem.n), round, K, ())
        return _Mixed(), sum(r.gradients for r in replies.values())

    def tell(self, half: SettleHalf, cohort: Indices, outcome: tuple[Array, ...] | tuple[_Mixed]) -> None:
        """Nothing yet: it travels with the next message."""
        for a, entry in self._entries("tell", half, cohort, 0, 0, outcome).items():
            self.queue[a].append(entry)

    def sum(self, w: Array, U: Array) -> Array:
        """In client order."""
        blocks = np.empty((-(-len(U) // SUM_BLOCK), U.shape[1]))
        kernels.block_sums(0, len(blocks), np.ascontiguousarray(w), np.ascontiguousarray(U), SUM_BLOCK, blocks)
        return sum_in_order(blocks)

    def memory(self) -> Vectors:
        """A copy of what the clients remember; it also serves as the snapshot."""
        stale = {a for a in self.pool.all if self.queue[a] or self.log[a]}
        if self.graph is not None and stale:
            stale = set(self.pool.all)
        if stale:
            self._send({a: [] for a in stale}, snapshot=True)
        return {k: v.copy() for k, v in self.saved.items()}

    def close(self) -> None:
        """End the actors, unless they hold loaded shards or are to stay."""
        if not (self.stay or self.loaded):
            self.shutdown_pool()
            self._leave()

    def shutdown_pool(self) -> None:
        """End the actors."""
        if self.pool is not None:
            self.pool.close()
            self.pool, self.holds, self.loaded = None, None, False

    def shutdown(self) -> None:
        """End the actors with their shards, and Ray if this engine started it."""
        self.shutdown_pool()
        self._leave()

    def _leave(self) -> None:
        if self.started:
            from proxskip.engines.ray_pool import shutdown_quietly

            shutdown_quietly()
            self.started = False

    def _guarded(self, act: Callable[[], Any]) -> Any:
        """An error that cannot be mended leaves no actors behind."""
        try:
            return act()
        except BaseException:
            if not self.loaded:
                self.shutdown_pool()
            raise

    # -- messages ------------------------------------------------------------------------------------------------------
    def _token(self, half: Any) -> int:
        """A half's number; it is sent to each actor once."""
        key = (id(getattr(half, "__self__", None)), getattr(half, "__func__", half))
        if key not in self.tokens:
            self.tokens[key] = len(self.halves)
            self.halves.append(half)
        return self.tokens[key]

    def _entries(self, verb: str, half: Any, cohort: Indices, round: int, K: Any, vectors: Any) -> dict[int, Entry]:
        """The operation as each actor with members in the cohort sees it."""
        from proxskip.engines.ray_worker import MIXED, Op

        token, bounds = self._token(half), self.pool.bounds
        mixed = any(isinstance(v, _Mixed) for v in vectors)
        numbers = (MIXED,) if mixed else tuple(range(len(vectors)))
        if len(cohort) == self.problem.n and np.ndim(K) == 0 and all(mixed or v.ndim == 1 for v in vectors):
            entry = Entry(Op(verb, token, None, numbers, round, K), () if mixed else tuple(vectors))
            return dict.fromkeys(self.pool.all, entry)
        cuts = np.searchsorted(cohort, bounds)
        found = {}
        for a in self.pool.all:
            lo, hi = int(cuts[a]), int(cuts[a + 1])
            if lo == hi:
                continue
            members = None if hi - lo == bounds[a + 1] - bounds[a] else cohort[lo:hi] - bounds[a]
            own = () if mixed else tuple(v if v.ndim == 1 else v[lo:hi] for v in vectors)
            found[a] = Entry(Op(verb, token, members, numbers, round, K if np.ndim(K) == 0 else K[lo:hi]), own)
        return found

    def _ask(self, verb: str, half: Any, cohort: Indices, round: int, K: Any, down: Any) -> dict[int, Any]:
        """Send an operation with what waits, and time it."""
        self.round = round
        entries = self._entries(verb, half, cohort, round, K, down)
        began = time.perf_counter()
        due = self.since >= self.snapshot_every or self.worked > REPLAY_SECONDS
        replies = self._send({a: [e] for a, e in entries.items()}, snapshot=due)
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

    def _send(self, news: dict[int, list[Entry]], snapshot: bool) -> dict[int, Any]:
        """What waits and what is new to these actors, in one call each; where asked, a snapshot between the two."""
        from proxskip.engines.ray_pool import Parcel

        parcel = Parcel()
        todo = {a: self.queue[a] + new for a, new in news.items()}
        at = {a: len(self.queue[a]) for a in news} if snapshot else {}
        submit = lambda a: self._post(a, todo[a], parcel, at.get(a))  # noqa: E731
        what = f"did not finish round {self.round}"
        replies: dict[int, Any] = self._guarded(lambda: self.pool.call(submit, news, what, self._mend, self._break_off))
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
        return replies

    def _post(self, a: int, entries: list[Entry], parcel: Any, snapshot: int | None, start: int | None = None) -> Any:
        """Submit a message to one actor."""
        from proxskip.engines.ray_worker import MIXED, Message

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
        new = {k: self.halves[k] for k in range(self.knows[a], len(self.halves))}
        self.knows[a] = len(self.halves)
        start = self.count[a] if start is None else start
        message = Message(self.run_id, start, tuple(ops), new, snapshot, self.deadline)
        return self.pool.handles[a].step.remote(message, *(parcel.of(v) for v in vectors))

    # -- faults --------------------------------------------------------------------------------------------------------
    def _begin(self, a: int) -> Any:
        """Set an actor to the snapshot."""
        lo, hi = self.pool.bounds[a], self.pool.bounds[a + 1]
        memory = {k: v[lo:hi] for k, v in self.saved.items()}
        start = self.count[a] - len(self.log[a])
        return self.pool.handles[a].begin.remote(
            self.run_id, start, self.seed, self.problem.d, self.problem.batch, self.census, memory
        )

    def _lay(self, graph: Graph) -> None:
        """Cut the graph along the actors' bounds: who hears which rows of whom."""
        bounds = self.pool.bounds
        self.parts = {a: graph.part(bounds[a], bounds[a + 1]) for a in self.pool.all}
        self.hears: dict[int, dict[int, Indices]] = {}
        for a, part in self.parts.items():
            owner = np.searchsorted(bounds, part.outside, side="right") - 1
            self.hears[a] = {int(b): part.outside[owner == b] - bounds[int(b)] for b in np.unique(owner)}

    def _tie(self, a: int) -> Any:
        """Tell an actor its part of the graph, and who its peers are now."""
        gives = {b: heard[a] for b, heard in self.hears.items() if a in heard}
        peers = {b: self.pool.handles[b] for b in gives}
        return self.pool.handles[a].connect.remote(
            self.run_id, self.epoch, self.parts[a], sorted(self.hears[a]), gives, peers
        )

    def _break_off(self, at_work: list[int]) -> None:
        """Actors that gossip would wait for the dead one's letters."""
        if self.graph is not None:
            for a in at_work:
                self.pool.handles[a].abort.remote(self.run_id, self.epoch)

    def _mend(self, dead: dict[int, str]) -> set[int]:
        """Bring actors back to where they stood; which of them were set back on the way."""
        from proxskip.engines.ray_pool import DEATHS, Died

        began, lost = time.perf_counter(), set(dead)
        back: set[int] = set()
        died = {a: why for a, why in dead.items() if why}
        for _ in range(DEATHS):
            try:
                back |= self._rebuild(set(died), lost)
                break
            except Died as end:  # begin again with all that died so far: who knows how far they got
                died |= {a: why for a, why in end.who.items() if why}
                lost |= set(end.who)
        else:
            raise EngineError(
                f"{len(died)} actors died again and again while they were rebuilt, among them the one with "
                f"{self.pool.clients(min(died or lost))}; look at their machines."
            )
        seconds = time.perf_counter() - began
        for a, why in sorted(died.items()):
            if self.run_id:
                self.recoveries.append(
                    {"actor": a, "clients": self.pool.clients(a), "round": self.round, "seconds": seconds, "cause": why}
                )
        return back

    def _rebuild(self, gone: set[int], lost: set[int]) -> set[int]:
        """New processes for those that are gone; snapshot and log for all that lost their place."""
        from proxskip.engines.ray_pool import Parcel

        pool, until = self.pool, time.monotonic() + self.deadline
        pool.start(gone)
        if gone:
            pool.supply(gone, until)
        if not self.run_id:
            return lost
        self.knows |= dict.fromkeys(gone, 0)
        back = set(pool.all) if self.graph is not None else lost
        self.epoch += 1
        if self.graph is not None:
            pool.gather({a: self._tie(a) for a in pool.all}, until, "did not connect")
        pool.gather({a: self._begin(a) for a in back}, until, "did not begin")
        parcel = Parcel()
        refs = {
            a: self._post(a, self.log[a], parcel, None, self.count[a] - len(self.log[a])) for a in back if self.log[a]
        }
        pool.gather(refs, until, f"did not redo its part up to round {self.round}", self._break_off)
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
            f"the actor with {r['clients']} was lost in round {r['round']} ({r['cause']}) and rebuilt in "
            f"{r['seconds']:.1f} seconds; nothing of the trajectory changed."
            for r in self.recoveries
        ]
        return about, [*self.warned, *told]


def need_ray() -> None:
    """Ray, or one sentence that says how to get it."""
    try:
        import ray  # noqa: F401
    except ImportError:
        raise InputError('the ray engine needs Ray; install it with pip install "proxskip[ray]".') from None


def _load(problem: Problem) -> Array:
    """About how much work each client is."""
    return np.array(
        [float(getattr(f.A, "nnz", f.A.size)) if isinstance(f, LinearModel) else 1.0 for f in problem.clients]
    )


def _sizes(source: Any) -> Array:
    """About how large each shard is: its file's size, where it can be seen from here."""
    if not isinstance(source, Files):
        return np.ones(source.n)
    found = [float(os.path.getsize(p)) if os.path.isfile(p) else 0.0 for p in source.paths]
    return np.array(found) if min(found) > 0 else np.ones(source.n)
