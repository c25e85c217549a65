"""The Ray engine: clients in actors on a cluster, with the trajectory of the cpu engine bit for bit.

For every actor the engine keeps its clients' memory at some operation (the snapshot) and the operations since (the
log). If an actor dies, a new one gets its shards, the snapshot and the log; kernels and minibatches are deterministic,
so it ends up where the dead one stood. Ray never restarts an actor itself: that would reset h to 0.

A round of Scaffnew is one call to every actor: what ``settle`` says travels with the next round's message. The driver
mixes gossip. The actors are in ``pool``, their code in ``worker``, a run's messages in ``actor_session``, and Ray
itself in ``cluster``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from proxskip.engines.sparse_rows import balanced
from proxskip.interfaces import BrokenOff, Engine, Request, SettleHalf, Size, Work
from proxskip.links.sums import SUM_BLOCK, sum_in_order
from proxskip.problems.federated import LKind, Problem
from proxskip.problems.glm import LinearModel
from proxskip.problems.packed import Packed
from proxskip.problems.sharded import Elsewhere, Sharded, Shards
from proxskip.problems.stored import Stored
from proxskip.types import Array, Indices, InputError, Vectors

if TYPE_CHECKING:
    from proxskip.engines.cpu.shards import Census


class RayEngine(Engine):
    """Clients in Ray actors; the same bytes as the cpu engine's, for any number of actors.

    Args:
        actors: how many; by default one per CPU of the cluster, at most one per client.
        address: of a running cluster, ``"auto"`` for the one this machine belongs to; None starts Ray on this machine,
            with a CPU for each that the actors need (or uses the Ray that this process has started already).
        cores: CPUs, and threads, of each actor.
        deadline: seconds after which a call that was not answered ends the run with an EngineError.
        snapshot_every: rounds after which the clients' memory is copied to the driver at the latest.
        stay: keep the actors and their shards after a run for the next one on the same problem, until ``shutdown``.
    """

    name = "ray"

    def __init__(
        self,
        actors: int | None = None,
        address: str | None = None,
        *,
        cores: int = 1,
        deadline: float = 600.0,
        snapshot_every: int = 50,
        stay: bool = False,
    ) -> None:
        for what, v in (("actors", actors), ("cores", cores), ("snapshot_every", snapshot_every)):
            if v is not None and (isinstance(v, bool) or not isinstance(v, (int, np.integer)) or v < 1):
                raise InputError(f"{what} = {v!r} must be a whole number of at least 1.")
        if not 0 < deadline < float("inf"):
            raise InputError(f"deadline = {deadline} must be positive and finite.")
        need_ray()
        self.actors, self.address, self.cores = actors, address, cores
        self.deadline, self.snapshot_every, self.stay = float(deadline), snapshot_every, stay
        self.pool: Any = None
        self.holds: Any = None
        self.loaded = False
        self.session: Any = None

    # -- the cluster ---------------------------------------------------------------------------------------------------
    def _pool(self, load: Array, names: Callable[[int], str] | None) -> Any:
        """Actors over contiguous clients of about equal load, not yet started."""
        from proxskip.engines.ray import cluster
        from proxskip.engines.ray.pool import Pool

        self._check_pool()
        cluster.connect(self.address, self, (self.actors or 1) * self.cores, self.deadline)
        cluster.warn_if_exposed()
        cpus = cluster.cpus(self.deadline)
        parts = balanced(load, self.actors or max(1, int(cpus) // self.cores))
        pool = Pool([0, *(hi for lo, hi in parts if hi > lo)], self.cores, self.deadline, names)
        cluster.check_room(len(pool.all) * self.cores, cpus)
        if self.pool is not None:
            pool.adopt(self.pool)
        self.pool, self.holds, self.session = pool, None, None
        return pool

    def load(
        self,
        load_shard: Callable[[int], Any],
        n: int = 0,
        *,
        weights: Any = "rows",
        L: LKind = "max",
        batch: int | None = None,
        psi: Any = None,
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
            problem = Sharded(facts, weights, psi, None, batch, L, info=about, holder=self, source=source)
        except BaseException:
            self.shutdown_pool()
            raise
        self.holds, self.loaded = problem.clients, True
        return problem

    def _facts(self, source: Any) -> list[Any]:
        """Let the actors load their shards and describe them."""
        pool = self._pool(np.ones(source.n), source.name)
        bounds = pool.bounds
        facts: list[Any] = pool.supply("load", lambda a: (source, bounds[a], bounds[a + 1]))
        pool.digests = [f.digest for f in facts]
        return facts

    def evaluate(self, x: Array, clients: Any) -> tuple[list[float], Array]:
        """f_i(x) and grad f_i(x) of these clients, computed by their actors."""
        self._still_holds(clients)
        answers = self._guarded(lambda: self._call("evaluate", lambda parcel: (parcel.of(x),)))
        values = [v for a in self.pool.all for v in answers[a][0]]
        return values, np.concatenate([answers[a][1] for a in self.pool.all])

    def _still_holds(self, clients: Any) -> None:
        self._check_pool()
        if self.pool is None or self.holds is not clients:
            raise InputError("this engine has loaded other shards or was shut down; load these shards again.")

    def _check_pool(self) -> None:
        """Forget actors whose Ray has ended."""
        if self.pool is not None and not self.pool.is_there():
            self.shutdown_pool()

    def judge(self, problem: Problem) -> Problem:
        return Elsewhere.of(problem, self) if problem.by_client and not isinstance(problem, Sharded) else problem

    def _call(self, verb: str, arguments: Callable[[Any], tuple[Any, ...]]) -> dict[int, Any]:
        """Ask every actor something that changes nothing."""
        from proxskip.engines.ray.pool import Parcel

        parcel = Parcel()
        submit = lambda a: getattr(self.pool.handles[a], verb).remote(*arguments(parcel))  # noqa: E731
        answers: dict[int, Any] = self.pool.call(submit, self.pool.all, "did not answer")
        return answers

    # -- the Engine interface ------------------------------------------------------------------------------------------
    def open(self, problem: Problem, memory: Vectors, seed: int) -> None:
        if isinstance(problem, Sharded) and problem.holder is not self:
            raise InputError("another engine loaded the shards of this problem; run it with that engine.")
        from proxskip.engines.ray.actor_session import ActorSession

        self.session = None
        self._check_pool()
        if isinstance(problem, Sharded):
            self._still_holds(problem.clients)
        elif self.pool is None or self.holds is not problem.clients:
            self._place(problem)
        self.pool.run = None
        self.session = self._guarded(
            lambda: ActorSession(self.pool, problem, memory, seed, self._census(problem), self.snapshot_every)
        )

    def _census(self, problem: Problem) -> Census:
        from proxskip.engines.cpu.shards import Census  # with the kernels, and numba

        if not isinstance(problem, Sharded):
            return Census.of(problem)
        return Census.merged(list(self._call("census", lambda _: (problem.d, problem.batch)).values()))

    def _place(self, problem: Problem) -> None:
        pool = self._pool(_load(problem), None)
        bounds, clients = pool.bounds, problem.clients
        some = clients.part if isinstance(clients, Stored) else lambda lo, hi: clients[lo:hi]
        self.holds, self.loaded = problem.clients, False
        try:
            pool.supply("take", lambda a: (bounds[a], some(bounds[a], bounds[a + 1])))
        except BaseException:
            self.shutdown_pool()
            raise

    def run(self, request: Request) -> Work:
        answers = self._guarded(lambda: self.session.ask(request))
        replies = [answers[a] for a in sorted(answers)]
        up = tuple(np.concatenate(column) for column in zip(*(r.up for r in replies), strict=True))
        sizes = tuple(map(Size.total, zip(*(r.sizes for r in replies), strict=True)))
        steps = None if replies[0].steps is None else np.concatenate([r.steps for r in replies])
        return Work(up, sum(r.gradients for r in replies), sizes, steps)

    def tell(self, half: SettleHalf, cohort: Indices, outcome: tuple[Any, ...]) -> None:
        self.session.tell(Request(half, cohort, 0, down=outcome))  # type: ignore[arg-type]

    def sum(self, w: Array, U: Array) -> Array:
        from proxskip.engines.cpu import kernels

        blocks = np.empty((-(-len(U) // SUM_BLOCK), U.shape[1]))
        kernels.block_sums(0, len(blocks), np.ascontiguousarray(w), np.ascontiguousarray(U), SUM_BLOCK, blocks)
        return sum_in_order(blocks)

    def memory(self) -> Vectors:
        return {k: v.copy() for k, v in self._guarded(self.session.memory).items()}

    def close(self) -> None:
        """End the actors, unless they hold loaded shards or are to stay."""
        if not (self.stay or self.loaded):
            self.shutdown()
        elif self.pool is not None:
            self.pool.recoveries = []  # a new list for the next run

    def shutdown_pool(self) -> None:
        if self.pool is not None:
            self.pool.close()
            self.pool, self.holds, self.loaded = None, None, False

    def shutdown(self) -> None:
        """End the actors, and Ray if it was started here and no other engine uses it."""
        from proxskip.engines.ray.cluster import leave

        self.shutdown_pool()
        leave(self)

    def _guarded(self, act: Callable[[], Any]) -> Any:
        """End the actors after an error, unless they hold loaded shards."""
        try:
            return act()
        except BrokenOff:
            raise
        except BaseException:
            if not self.loaded or None in self.pool.handles:
                self.shutdown_pool()
            raise

    # -- the report ----------------------------------------------------------------------------------------------------
    @property
    def recoveries(self) -> list[dict[str, Any]]:
        """The actors lost in this run, when and why, and the seconds it took to rebuild them."""
        recoveries: list[dict[str, Any]] = self.session.recoveries
        return recoveries

    def report(self) -> tuple[dict[str, Any], list[str]]:
        report: tuple[dict[str, Any], list[str]] = self.session.report()
        return report


def need_ray() -> None:
    """Refuse to go on without Ray."""
    try:
        import ray  # noqa: F401
    except ImportError:
        raise InputError('the ray engine needs Ray; install it with pip install "proxskip[ray]".') from None


def _load(problem: Problem) -> Array:
    """Roughly how much work each client is."""
    if isinstance(problem.clients, Packed):
        return problem.clients.entries().astype(np.float64)
    return np.array(
        [float(getattr(f.A, "nnz", f.A.size)) if isinstance(f, LinearModel) else 1.0 for f in problem.clients]
    )
