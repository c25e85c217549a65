"""The meter: every vector that moves between server and clients passes here, and only here is it counted.

``Line`` is the Exchange of ``seam``: it stands between a method's server half and an engine, draws what is shared,
averages in client order, and writes the ledger. An engine only runs client halves (``Engine.run``) and tells clients
outcomes (``Engine.tell``).

What is counted. Going down, a message to a client holds the vectors of this exchange and, if the client took part in an
earlier round whose outcome it has not heard, that outcome; a vector it needs for both is sent once. So Scaffnew with
everybody costs one vector each way a round, and on cohorts at most two down. x0 is part of the first message.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from proxskip.links.cohorts import Everyone, Participation
from proxskip.links.graphs import Graph
from proxskip.problems.federated import Problem
from proxskip.prox import conjugate_prox
from proxskip.randomness import stream
from proxskip.seam import ClientHalf, Engine, SettleHalf
from proxskip.types import Array, Indices, Vectors


@dataclass
class Ledger:
    """Totals over all clients since the run began."""

    exchanges: int = 0
    vectors_up: int = 0
    vectors_down: int = 0
    floats_up: int = 0
    floats_down: int = 0
    bytes_up: int = 0
    bytes_down: int = 0
    edge_messages: int = 0
    iterations: int = 0
    local_steps: int = 0
    grad_evals: int = 0
    prox_evals: int = 0
    seconds: float = 0.0

    def row(self) -> dict[str, float]:
        """As columns of a trace."""
        return asdict(self)


class Line:
    """One round's Exchange, remade for every round by ``begin``."""

    def __init__(self, engine: Engine, problem: Problem, seed: int, participation: Participation) -> None:
        self.engine = engine
        self.problem = problem
        self.seed = seed
        self.ledger = Ledger()
        self.cohorts = participation
        self.everyone = isinstance(participation, Everyone)
        self.all = np.arange(problem.n)
        self.cohort: Indices = self.all
        self.round = 0
        self.owed = np.zeros(problem.n, dtype=np.int64)  # which outcome (by number) a client has yet to hear
        self.outcomes = 0
        self.outcome: tuple[Array, ...] = ()
        self.mixed: tuple[Array, ...] | None = None
        self.finite = True  # what was gossiped in this round, where that is at hand
        self.participated = np.zeros(problem.n, dtype=np.int64)
        self.far = bool(getattr(engine, "far", False))
        carrier: Any = engine if self.far else _Near
        self.place: Callable[[Array], Array] = carrier.place
        self.fetch: Callable[[Array], Array] = carrier.fetch
        self.wait: Callable[[], None] = carrier.wait
        self.clock_stopped = 0.0
        self.coins = stream(seed, 0, "server")

    def begin(self, round: int) -> None:
        """Draw this round's cohort and key its generator."""
        self.round = round
        if not self.everyone:
            self.cohort = self.cohorts.draw(stream(self.seed, round, "cohort"), self.problem.n, round)
        self.rng = stream(self.seed, round, "server", self.coins)
        self.steps_this_round = 0
        self.finite = True
        self.participated[self.cohort] += 1

    @property
    def chi_bound(self) -> float:
        """The largest chi of TAMUNA's rule that the theory allows for these cohorts."""
        return self.cohorts.constants(self.problem.n)[1]

    def __call__(
        self, half: ClientHalf, *down: Array, K: int | Sequence[int] = 0, weights: Array | None = None
    ) -> tuple[Array, ...]:
        up = self._run(half, K, down)
        w = (self.problem.weights if weights is None else weights)[self.cohort]
        self._count_down(down)
        self._count_up(len(up), len(self.cohort))
        self.ledger.exchanges += 1
        return tuple(self.engine.sum(w / w.sum(), U) for U in up)

    def gossip(self, half: ClientHalf, graph: Graph, K: int) -> None:
        if hasattr(self.engine, "gossip"):  # the clients talk to each other, and no vector passes here
            self.mixed, gradients, vectors, finite = self.engine.gossip(half, graph, self.round, K)
            self._count_steps(K, gradients)
        else:
            up = self._run(half, K, ())
            mix = self.engine.mix if hasattr(self.engine, "mix") else Graph.mix
            self.mixed, vectors = tuple(mix(graph, U) for U in up), len(up)
            finite = mix is not Graph.mix or all(bool(np.isfinite(U).all()) for U in self.mixed)
        self.finite = self.finite and finite
        sent = vectors * graph.directed_edges
        self.ledger.exchanges += 1
        self.ledger.edge_messages += sent
        self.ledger.vectors_up += sent
        self.ledger.floats_up += sent * self.problem.d
        self.ledger.bytes_up += sent * self.problem.d * 8

    def settle(self, half: SettleHalf, *outcome: Array) -> None:
        if self.mixed is not None:
            self.engine.tell(half, self.cohort, self.mixed)
            self.mixed = None
            return
        self.engine.tell(half, self.cohort, outcome)
        self.outcomes += 1
        self.outcome = outcome
        self.owed[self.cohort] = self.outcomes

    def prox(self, x: Array, t: float) -> Array:
        assert self.problem.psi is not None
        self.ledger.prox_evals += 1
        return self.problem.psi.prox(x, t)

    def prox_conjugate(self, y: Array, t: float) -> Array:
        assert self.problem.psi is not None
        self.ledger.prox_evals += 1
        return conjugate_prox(self.problem.psi, y, t)

    # -- counting ------------------------------------------------------------------------------------------------------
    def _run(self, half: ClientHalf, K: int | Sequence[int], down: tuple[Array, ...]) -> tuple[Array, ...]:
        steps = int(K) if np.ndim(K) == 0 else np.asarray(K, dtype=np.int64)[self.cohort]  # type: ignore[arg-type]
        up, gradients = self.engine.run(half, self.cohort, self.round, steps, down)
        self._count_steps(steps, gradients)
        return up

    def _count_steps(self, steps: Any, gradients: int) -> None:
        self.ledger.grad_evals += gradients
        self.ledger.local_steps += steps * len(self.cohort) if isinstance(steps, int) else int(steps.sum())
        self.ledger.iterations += steps if isinstance(steps, int) else int(steps.max())

    def _count_down(self, down: tuple[Array, ...]) -> None:
        c = len(self.cohort)
        owed = self.owed[self.cohort]
        repeated = [any(o is v or _equal(o, v) for v in down) for o in self.outcome]
        new = int(np.count_nonzero(owed == self.outcomes)) if self.outcomes else 0
        late = int(np.count_nonzero(owed)) - new
        vectors = len(down) * c + new * repeated.count(False) + late * max(1, len(self.outcome))
        self.owed[self.cohort] = 0
        d = down[0].shape[0] if down else self.problem.d
        self.ledger.vectors_down += vectors
        self.ledger.floats_down += vectors * d
        self.ledger.bytes_down += vectors * d * 8

    def _count_up(self, vectors: int, clients: int) -> None:
        sent, d = vectors * clients, self.problem.d
        self.ledger.vectors_up += sent
        self.ledger.floats_up += sent * d
        self.ledger.bytes_up += sent * d * 8

    # -- what a checkpoint needs ---------------------------------------------------------------------------------------
    def state(self) -> dict[str, Any]:
        """Everything that a resumed run needs besides the server's vectors and the clients' memory."""
        arrays: dict[str, Any] = {"owed": self.owed, "participated": self.participated}
        arrays |= {f"outcome{k}": self.fetch(v) for k, v in enumerate(self.outcome)}
        return {"arrays": arrays, "meta": {"ledger": asdict(self.ledger), "outcomes": self.outcomes}}

    def restore(self, arrays: dict[str, Any], meta: dict[str, Any]) -> None:
        """Take back what ``state`` gave."""
        self.owed, self.participated = arrays["owed"].copy(), arrays["participated"].copy()
        self.outcome = tuple(arrays[k] for k in sorted(k for k in arrays if k.startswith("outcome")))
        self.ledger, self.outcomes = Ledger(**meta["ledger"]), int(meta["outcomes"])

    def fetched(self, vectors: Vectors) -> Vectors:
        """The server's vectors where numpy can read them."""
        return {k: self.fetch(v) for k, v in vectors.items()}

    def timed(self, act: Any, *args: Any) -> Any:
        """Run on the clock: only what passes here counts as seconds."""
        start = time.perf_counter()
        out = act(*args)
        self.ledger.seconds += time.perf_counter() - start
        return out


class _Near:
    """What carrying vectors means where they are at hand already."""

    @staticmethod
    def place(v: Array) -> Array:
        return v

    @staticmethod
    def fetch(v: Array) -> Array:
        return v

    @staticmethod
    def wait() -> None:
        pass


def _equal(a: Any, b: Any) -> bool:
    return isinstance(a, np.ndarray) and isinstance(b, np.ndarray) and np.array_equal(a, b)
