"""The Ray engine: clients in actors on a cluster.

A round of Scaffnew is one call to every actor: what ``settle`` says travels with the next round's message. The driver
mixes gossip. If actors die, ``run`` raises ``EngineLost``, and the run opens the engine anew with the clients' memory
of its last record; ``open`` then replaces the actors that are missing. Ray never restarts an actor itself: that would
reset h to 0. The actors are in ``pool``, their code in ``worker``, and Ray itself in ``cluster``.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from importlib.machinery import PathFinder
from types import MethodType
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from proxskip.core.engine import BrokenOff, Engine, EngineLost, Request, Size, Work
from proxskip.core.exchange import ClientHalf, SettleHalf
from proxskip.datasets.stored import Stored
from proxskip.engines.sparse_rows import balanced
from proxskip.problems.federated import Problem, Smoothness
from proxskip.problems.sharded import RemoteClient, Sharded, Shards
from proxskip.types import Array, EngineError, Indices, InputError, Oracle, Prox, Vectors

if TYPE_CHECKING:  # Ray is imported with them
    from proxskip.engines.ray.pool import Pool
    from proxskip.engines.ray.worker import Message

Values: TypeAlias = tuple[list[float], Array]
"""f_i(x) and grad f_i(x) of an actor's clients."""
MOST_LOSSES = 5
"""Losses in a row after which an evaluation outside of a run is given up."""


class RayEngine(Engine):
    """Clients in Ray actors.

    Args:
        actors: how many; by default one per machine of the cluster, at most one per client.
        address: of a running cluster, ``"auto"`` for the one this machine belongs to; None starts Ray on this machine
            (or uses the Ray that this process has started already).
        cores: CPUs, and threads, of each actor. By default an actor has all cores of its machine if ``actors`` is not
            given either, and else one; Ray then sets one CPU aside for it.
        deadline: seconds after which a call that was not answered ends the run with an EngineError.
        stay: keep the actors and their shards after a run for the next one on the same problem, until ``shutdown``.
    """

    name = "ray"
    has_hessians = True

    def __init__(
        self,
        actors: int | None = None,
        address: str | None = None,
        *,
        cores: int | None = None,
        deadline: float = 600.0,
        stay: bool = False,
    ) -> None:
        for what, v in (("actors", actors), ("cores", cores)):
            if v is not None and (isinstance(v, bool) or not isinstance(v, (int, np.integer)) or v < 1):
                raise InputError(f"{what} = {v!r} must be a whole number of at least 1.")
        if not 0 < deadline < float("inf"):
            raise InputError(f"deadline = {deadline} must be positive and finite.")
        need_ray()
        self.actors = actors
        self.address = address
        self.cores = cores
        self.deadline, self.stay = float(deadline), stay
        self.pool: Any = None
        self.holds: Sequence[Oracle] | None = None
        """The clients that the actors hold."""
        self.loaded = False
        """Whether the actors have loaded them, so that they exist nowhere else."""
        self.in_run = False
        self.waiting: dict[int, list[Request]] = {}
        """Outcomes that each actor hears with its next message."""
        self.times = Times()

    # -- the cluster ---------------------------------------------------------------------------------------------------
    def _pool(self, load: Array, names: Callable[[int], str] | None) -> Pool:
        """Actors over contiguous clients of about equal load, not yet started."""
        from proxskip.engines.ray import cluster
        from proxskip.engines.ray.pool import Pool

        self._check_pool()
        each = self.cores or 1
        cluster.connect(self.address, self, (self.actors or 1) * each, self.deadline)
        cluster.warn_if_exposed()
        parts = balanced(load, self.actors or cluster.machines(self.deadline))
        bounds = [0, *(hi for lo, hi in parts if hi > lo)]
        threads = self.cores
        if threads is None and self.actors is not None:
            threads = 1
        pool = Pool(bounds, threads, each, self.deadline, names)
        cluster.check_room(len(pool.all) * each, cluster.cpus(self.deadline))
        if self.pool is not None:
            pool.adopt(self.pool)
        self.pool = pool
        self.holds = None
        self.loaded = False
        return pool

    def load(
        self,
        load_shard: Callable[[int], Oracle],
        n: int = 0,
        *,
        weights: Any = "rows",
        smoothness: Smoothness = "max",
        batch: int | None = None,
        psi: Prox | None = None,
    ) -> Sharded:
        """A problem whose shards are loaded by the actors that hold them; no data pass through this process.

        Args:
            load_shard: a function that makes client i, a linear model or any oracle, from data that its actor reads.
            n: the number of clients.
            weights: "rows", "equal", or a number a client.
        """
        if isinstance(weights, str) and weights not in ("rows", "equal"):
            raise InputError(f'weights = "{weights}" is not known; use "rows" or "equal".')
        source = Shards(load_shard, n)
        try:
            facts = self._facts(source)
            if isinstance(weights, str):
                weights = [f.N for f in facts] if weights == "rows" and all(f.has_rows for f in facts) else None
            about = {"split": "shards", "data": f"{source.n} shards"}
            problem = Sharded(facts, weights, psi, None, batch, smoothness, info=about, holder=self, source=source)
        except BaseException:
            self.shutdown_pool()
            raise
        self.holds, self.loaded = problem.clients, True
        return problem

    def _facts(self, source: Shards) -> list[RemoteClient]:
        """Let the actors load their shards and describe them."""
        pool = self._pool(np.ones(source.n), source.name)
        pool.supply = "load", lambda a: (source, pool.bounds[a], pool.bounds[a + 1])
        try:
            answers = pool.fill(pool.all)
        except EngineLost as lost:
            raise EngineError(f"{lost} while it loaded its shards; its machine may be short of memory.") from None
        facts = [fact for a in pool.all for fact in answers[a]]
        pool.digests = [fact.digest for fact in facts]
        return facts

    def evaluate(self, x: Array, clients: Sequence[Oracle]) -> tuple[list[float], Array]:
        """f_i(x) and grad f_i(x) of these clients, computed by their actors."""
        self._check_pool()
        if self.pool is None or self.holds is not clients:
            raise InputError("this engine has loaded other shards or was shut down; load these shards again.")
        answers = self._guarded(self._evaluated if self.in_run else self._evaluated_after_losses, x)
        values = [v for a in self.pool.all for v in answers[a][0]]
        return values, np.concatenate([answers[a][1] for a in self.pool.all])

    def _evaluated(self, x: Array) -> dict[int, Values]:
        from proxskip.engines.ray.pool import Parcel

        sent = Parcel().of(x)
        answers: dict[int, Values] = self.pool.ask("evaluate", lambda a: (sent,), self.pool.all, "did not answer")
        return answers

    def _evaluated_after_losses(self, x: Array) -> dict[int, Values]:
        """Outside of a run nobody else replaces the actors that are lost."""
        for _ in range(MOST_LOSSES):
            try:
                self.pool.fill()
                return self._evaluated(x)
            except EngineLost as error:
                lost = error
        raise lost

    def _check_pool(self) -> None:
        """Forget actors whose Ray has ended."""
        if self.pool is not None and not self.pool.is_there():
            self.shutdown_pool()

    def judge(self, problem: Problem) -> Problem:
        return problem.evaluated_by(self) if problem.by_client and not isinstance(problem, Sharded) else problem

    # -- the Engine interface ------------------------------------------------------------------------------------------
    def open(self, problem: Problem, memory: Vectors, seed: int) -> None:
        if isinstance(problem, Sharded) and problem.holder is not self:
            raise InputError("another engine loaded the shards of this problem; run it with that engine.")
        self._check_pool()
        if self.pool is None or self.holds is not problem.clients:
            if isinstance(problem, Sharded):
                raise InputError("this engine has loaded other shards or was shut down; load these shards again.")
            self._place(problem)
        self.problem, self.seed = problem, seed
        self.in_run, self.waiting = True, {a: [] for a in self.pool.all}
        self._guarded(self._begin, memory)

    def _place(self, problem: Problem) -> None:
        """Actors for a problem whose data are in this process, or in a folder that they open."""
        pool = self._pool(problem.work_each, None)
        bounds, clients = pool.bounds, problem.clients
        some = clients.part if isinstance(clients, Stored) else lambda lo, hi: clients[lo:hi]
        pool.supply = "take", lambda a: (bounds[a], some(bounds[a], bounds[a + 1]))
        self.holds = clients
        self._guarded(pool.fill, pool.all)

    def _begin(self, memory: Vectors) -> None:
        """Replace missing actors, and give all of them their clients' memory."""
        pool = self.pool
        bounds = self.pool.bounds
        problem = self.problem
        pool.fill()

        def beginning(a: int) -> tuple[object, ...]:
            rows = {k: v[bounds[a] : bounds[a + 1]] for k, v in memory.items()}
            return self.seed, problem.d, problem.batch, rows

        pool.ask("begin", beginning, pool.all, "did not begin")

    def run(self, request: Request) -> Work:
        parts = self._parts(request)
        messages = self._messages(parts)
        began = time.perf_counter()
        what = f"did not finish round {request.round}"
        replies = self._guarded(self.pool.ask, "step", lambda a: (messages[a],), parts, what, request.halt)
        self.times.add(time.perf_counter() - began, [r.seconds for r in replies.values()])
        self._heard(parts)
        works = [replies[a].work for a in sorted(replies)]
        up = tuple(np.concatenate(column) for column in zip(*(w.up for w in works), strict=True))
        sizes = tuple(map(Size.total, zip(*(w.sizes for w in works), strict=True)))
        steps = None if works[0].steps is None else np.concatenate([w.steps for w in works])
        return Work(up, sum(w.gradients for w in works), sizes, steps)

    def tell(self, half: SettleHalf, cohort: Indices, outcome: tuple[Array, ...]) -> None:
        """Keep the outcome until the next message."""
        request = Request(half, cohort, 0, down=outcome)  # type: ignore[arg-type]
        for a, part in self._parts(request).items():
            self.waiting[a].append(part)

    def memory(self) -> Vectors:
        everyone = self.pool.all
        messages = self._messages(dict.fromkeys(everyone))
        answers = self._guarded(self.pool.ask, "memory", lambda a: (messages[a],), everyone, "did not answer")
        self._heard(everyone)
        return {k: np.concatenate([answers[a][k] for a in everyone]) for k in answers[0]}

    # -- messages ------------------------------------------------------------------------------------------------------
    def _parts(self, request: Request) -> dict[int, Request]:
        """The request as each actor with members in the cohort sees it."""
        import ray

        _send_class(request.half)
        half = ray.cloudpickle.dumps(request.half)
        bounds = self.pool.bounds
        cohort = request.cohort
        cuts = np.searchsorted(cohort, bounds)
        parts = {}
        for a in self.pool.all:
            lo, hi = int(cuts[a]), int(cuts[a + 1])
            if lo == hi:
                continue
            all_of_them = hi - lo == bounds[a + 1] - bounds[a]
            members: Any = None if all_of_them else cohort[lo:hi] - bounds[a]
            parts[a] = replace(
                request, half=half, cohort=members,
                down=tuple(v if v.ndim == 1 else v[lo:hi] for v in request.down),
                own={name: v[lo:hi] for name, v in request.own.items()},
                K=request.K if isinstance(request.K, int) else request.K[lo:hi],
                first=lo, asked=len(cohort), halt=None,
            )  # fmt: skip
        return parts

    def _messages(self, parts: Mapping[int, Request | None]) -> dict[int, Message]:
        """A message to each actor: the outcomes that wait for it, and its part of the request."""
        from proxskip.engines.ray.pool import Parcel
        from proxskip.engines.ray.worker import Message

        parcel = Parcel()

        def sent(part: Request) -> Request:
            return replace(part, down=tuple(map(parcel.of, part.down)))

        return {
            a: Message(tuple(map(sent, self.waiting[a])), None if part is None else sent(part))
            for a, part in parts.items()
        }

    def _heard(self, who: Iterable[int]) -> None:
        """These actors have heard what waited for them."""
        for a in who:
            self.waiting[a] = []

    def close(self) -> None:
        """End the actors, unless they hold loaded shards or are to stay."""
        self.in_run, self.times = False, Times()
        if not (self.stay or self.loaded):
            self.shutdown()

    def shutdown_pool(self) -> None:
        if self.pool is not None:
            self.pool.close()
            self.pool = None
            self.holds = None
            self.loaded = False

    def shutdown(self) -> None:
        """End the actors, and Ray if it was started here and no other engine uses it."""
        from proxskip.engines.ray.cluster import leave

        self.shutdown_pool()
        leave(self)

    def _guarded(self, act: Callable[..., Any], *arguments: Any) -> Any:
        """Call it; after an error that ends the run, end the actors, unless they hold loaded shards."""
        try:
            return act(*arguments)
        except (BrokenOff, EngineLost):
            raise
        except BaseException:
            if not self.loaded or None in self.pool.handles:
                self.shutdown_pool()
            raise

    def report(self) -> tuple[dict[str, object], list[str]]:
        """The number of actors, and where the time went."""
        return {"actors": len(self.pool.all), **self.times.shares()}, []


class Times:
    """Where the time of a run's calls went."""

    def __init__(self) -> None:
        self.calls = 0
        self.seconds = 0.0
        self.local = 0.0
        self.waiting = 0.0

    def add(self, seconds: float, of_actors: list[float]) -> None:
        """One call, and how long each actor was at work."""
        mean = sum(of_actors) / len(of_actors)
        self.calls += 1
        self.seconds += seconds
        self.local += mean
        self.waiting += max(of_actors) - mean

    def shares(self) -> dict[str, float]:
        """Calls per second, and the shares of local work, of waiting for the slowest actor, and of communication."""
        if not self.seconds:
            return {}
        local, waiting = self.local / self.seconds, self.waiting / self.seconds
        return {
            "rounds_per_second": self.calls / self.seconds,
            "share_local": local,
            "share_waiting": waiting,
            "share_communication": max(0.0, 1.0 - local - waiting),
        }


def _send_class(half: ClientHalf) -> None:
    """Let the class of a half travel with it if actors cannot import it, as that of a plugin."""
    for kind in type(half.__self__ if isinstance(half, MethodType) else half).__mro__:
        _send_module(kind.__module__)


@cache
def _send_module(name: str) -> None:
    import ray

    module, package = sys.modules.get(name), name.partition(".")[0]
    if package != "__main__" and hasattr(module, "__file__") and PathFinder.find_spec(package) is None:
        ray.cloudpickle.register_pickle_by_value(module)


def need_ray() -> None:
    """Refuse to go on without Ray."""
    try:
        import ray  # noqa: F401
    except ImportError:
        raise InputError('the ray engine needs Ray; install it with pip install "proxskip[ray]".') from None
