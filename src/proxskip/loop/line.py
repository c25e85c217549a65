"""The meter: every vector that moves between server and clients passes here, and only here is it counted.

``Line`` is the Exchange of ``seam``: it stands between a method's server half and an engine, draws what is shared,
averages in client order, and writes the ledger. An engine only runs client halves (``Engine.run``) and tells clients
outcomes (``Engine.tell``).

What is counted. Going down, a message to a client holds the vectors of this exchange and, if the client took part in an
earlier round whose outcome it has not heard, that outcome; a vector it needs for both is sent once. So Scaffnew with
everybody costs one vector each way a round, and on cohorts at most two down. x0 is part of the first message.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property, partial
from threading import Event
from typing import Any

import numpy as np

from proxskip.links.cohorts import Everyone, Participation
from proxskip.links.gossip import Links, RandomLinks
from proxskip.loop.closing import asked_in
from proxskip.loop.simulated_time import Clock
from proxskip.on_demand.kernels import running_seconds
from proxskip.problems.federated import Problem
from proxskip.prox import conjugate_prox
from proxskip.randomness import stream
from proxskip.seam import Carrier, ClientHalf, Engine, Request, SettleHalf, Work
from proxskip.types import Array, Indices, InputError, Vectors


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
    bits_up: int = 0
    bits_down: int = 0
    edge_messages: int = 0
    iterations: int = 0
    local_steps: int = 0
    grad_evals: int = 0
    prox_evals: int = 0
    seconds: float = 0.0

    def row(self) -> dict[str, float]:
        """As columns of a trace."""
        return asdict(self)

    @staticmethod
    def of(saved: Mapping[str, Any]) -> Ledger:
        """From a checkpoint; version 0.1 counted no bits, and every number had 64."""
        bits = {f"bits_{way}": 8 * saved[f"bytes_{way}"] for way in ("up", "down")}
        return Ledger(**(bits | dict(saved)))


class Line:
    """One round's Exchange, remade for every round by ``begin``."""

    def __init__(
        self, engine: Engine, problem: Problem, seed: int, participation: Participation, clock: Clock | None = None
    ) -> None:
        self.engine = engine
        self.problem = problem
        self.seed = seed
        self.ledger = Ledger()
        self.cohorts = participation
        self.everyone = isinstance(participation, Everyone)
        self.all = np.arange(problem.n)
        self.cohort: Indices = self.all
        self.round = 0
        # an outcome is not sent at once: a client hears it with its next message, which is when it is counted
        self.owed = np.zeros(problem.n, dtype=np.int64)  # which outcome (by number) a client has yet to hear
        self.alike = True  # whether all owe the same
        self.outcomes = 0
        self.outcome: tuple[Array, ...] = ()
        self.mixed: tuple[Array, ...] | None = None
        self.finite = True  # what was gossiped in this round, where that is at hand
        self.participated = np.zeros(problem.n, dtype=np.int64)
        self.far = engine.is_far()
        carrier: Carrier = engine if self.far else _Here()
        self.place, self.fetch, self.wait = carrier.place, carrier.fetch, carrier.wait
        self.exchanges = 0  # of this round
        self.scaled: tuple[Any, tuple[Array, ...]] = None, ()
        self.clock_stopped = 0.0
        self.coins = stream(seed, 0, "server")
        self.interrupted: Event | None = None  # whoever sets it wants rounds to be broken off
        self.halt: Event | None = None  # the same, in rounds that can be
        self.several = True  # a round may have several exchanges; how many the first has is not known before
        self.rounds_begun = 0
        self.before: Any = None
        self.clock = clock
        self.asked: Indices = self.all
        self.ran = False  # whether anything of this round has run

    def _drawn(self, round: int, void: int = 0) -> Indices:
        return asked_in(self.cohorts, self.seed, round, void, self.problem.n)

    def begin(self, round: int) -> None:
        """Draw this round's cohort and forget the last one's generator."""
        self.round = round
        if not self.everyone:
            self.cohort = self._drawn(round, 0 if self.clock is None else self.clock.attempt)
            self.engine.expect(partial(self._drawn, round + 1))
        self.asked, self.ran = self.cohort, False
        vars(self).pop("rng", None)
        if self.interrupted is not None:
            self._mark()
        self.exchanges = 0
        self.finite = True
        self.participated[self.whom] += 1

    @cached_property
    def rng(self) -> np.random.Generator:
        """This round's generator, keyed when it is first asked for."""
        return stream(self.seed, self.round, "server", self.coins)

    @property
    def whom(self) -> Any:
        """The cohort as an index, which is cheaper as a slice where it is everybody."""
        return slice(None) if self.cohort is self.all else self.cohort

    def _mark(self) -> None:
        if self.rounds_begun == 1:
            self.several = self.exchanges > 1
        self.rounds_begun += 1
        several = self.several or (self.clock is not None and self.clock.rewinds)
        self.halt = self.interrupted if self.engine.mark(several) else None
        self.before = vars(self.ledger).copy(), self.owed[self.asked], self.outcomes, self.outcome

    def undo(self) -> None:
        """Forget the round under way, which was broken off or is void."""
        if self.ran and self.halt is None:
            raise InputError("this engine cannot take back a round that is void; use cpu, or a network without losses.")
        if self.ran:
            self.engine.rewind()
        counted, self.owed[self.asked], self.outcomes, self.outcome = self.before
        self.alike = False
        self.ledger = Ledger(**counted)
        self.participated[self.whom] -= 1
        self.mixed = None

    def __call__(
        self,
        half: ClientHalf,
        *down: Array,
        K: int | Sequence[int] = 0,
        own: Mapping[str, Any] | None = None,
        weights: Array | None = None,
    ) -> tuple[Array, ...]:
        if self.clock is not None:
            self._ask(self.clock, half, K, down, own)
        request = self._request(half, K, down, own, self._shares(self.problem.weights if weights is None else weights))
        self.ran = True
        work = self.engine.run(request)
        if self.clock is not None:
            self.clock.done(work.steps)
        self._count_steps(request.K, work)
        self._count_down(down, len(own or ()))
        self._count_up(work)
        self.ledger.exchanges += 1
        self.exchanges += 1
        return self.engine.sums(request.weights, work.up)

    def _ask(
        self, clock: Clock, half: ClientHalf, K: Any, down: tuple[Array, ...], own: Mapping[str, Any] | None
    ) -> None:
        """Leave only those in the cohort whom the network lets answer; the others do nothing, and keep what is owed."""
        fresh, stale = self._to_hear(down)
        owed, d = self.owed[self.cohort], down[0].shape[0] if down else self.problem.d
        vectors = len(down) + np.where(owed == 0, 0, np.where(owed == self.outcomes, fresh, stale))
        steps = K if np.ndim(K) == 0 else np.asarray(K)[self.cohort]
        sizes = 8.0 * (vectors * d + len(own or ()))
        costs = clock.costs_of(half, down, own or {}, self.cohort)
        counted = clock.ask(costs, self.cohort, steps, sizes, self.round, self.exchanges)
        self.participated[self.cohort] -= 1
        self.cohort = counted
        self.participated[counted] += 1

    def gossip(self, half: ClientHalf, graph: Links, K: int) -> None:
        d = self.problem.d
        links = graph.draw(self.seed, self.round, d) if isinstance(graph, RandomLinks) else graph
        mixed = self.engine.gossip(self._request(half, K, (), None), links)
        self._count_steps(int(K), Work((), mixed.gradients))
        self.mixed, self.finite = mixed.rows, self.finite and mixed.finite
        sent, floats = mixed.vectors * links.messages, mixed.vectors * links.floats(d)
        self.ledger.exchanges += 1
        self.exchanges += 1
        self.ledger.edge_messages += sent
        self._add_up(sent, floats, floats * 8, floats * 64)

    def settle(self, half: SettleHalf, *outcome: Array) -> None:
        if self.mixed is not None:
            self.engine.tell(half, self.cohort, self.mixed)
            self.mixed = None
            return
        self.engine.tell(half, self.cohort, outcome)
        self.outcomes += 1
        self.outcome = outcome
        self._owe(self.outcomes)

    def prox(self, x: Array, t: float) -> Array:
        assert self.problem.psi is not None
        self.ledger.prox_evals += 1
        return self.problem.psi.prox(x, t)

    def prox_conjugate(self, y: Array, t: float) -> Array:
        assert self.problem.psi is not None
        self.ledger.prox_evals += 1
        return conjugate_prox(self.problem.psi, y, t)

    def _shares(self, given: Array) -> tuple[Array, ...]:
        """The cohort's weights, scaled to sum to one; everybody's are kept where they cannot change."""
        if given is self.scaled[0] and self.cohort is self.all:
            return self.scaled[1]
        rows = [given[self.whom]] if given.ndim == 1 else given[:, self.whom]
        found = tuple(w / w.sum() for w in rows)
        if self.cohort is self.all and given.flags.owndata and not given.flags.writeable:
            self.scaled = given, found
        return found

    # -- counting ------------------------------------------------------------------------------------------------------
    def _request(
        self, half: ClientHalf, K: int | Sequence[int], down: tuple[Array, ...], own: Mapping[str, Any] | None,
        weights: tuple[Array, ...] = (),
    ) -> Request:  # fmt: skip
        """K and each client's own numbers, of the cohort."""
        for name, v in (own or {}).items():
            if np.shape(v) != (self.problem.n,):
                raise InputError(
                    f"{name} has shape {np.shape(v)}; give one number for each of {self.problem.n} clients."
                )
        mine = {k: np.asarray(v, dtype=np.float64)[self.cohort] for k, v in (own or {}).items()}
        steps: Any = K
        if not isinstance(K, int):
            steps = int(K) if np.ndim(K) == 0 else np.asarray(K, dtype=np.int64)[self.cohort]  # type: ignore[call-overload]
        if self.exchanges and not self.several:  # what this round's first exchange changed was not marked
            self.several, self.halt = True, None
        void = 0 if self.clock is None else self.clock.attempt
        return Request(
            half, self.cohort, self.round, steps, down, mine, self.exchanges, void, halt=self.halt, weights=weights
        )

    def _count_steps(self, K: Any, work: Work) -> None:
        steps = K if work.steps is None else work.steps
        self.ledger.grad_evals += work.gradients
        self.ledger.local_steps += steps * len(self.cohort) if isinstance(steps, int) else int(steps.sum())
        self.ledger.iterations += steps if isinstance(steps, int) else int(steps.max())

    def _count_down(self, down: tuple[Array, ...], numbers: int) -> None:
        """The vectors of this exchange, an outcome that is owed, and each client's own numbers."""
        c = len(self.cohort)
        fresh, stale = self._to_hear(down)
        new, late = self._owing()
        vectors = len(down) * c + new * fresh + late * stale
        self._owe(0)
        d = down[0].shape[0] if down else self.problem.d
        floats = vectors * d + numbers * c
        self.ledger.vectors_down += vectors
        self.ledger.floats_down += floats
        self.ledger.bytes_down += floats * 8
        self.ledger.bits_down += floats * 64

    def _owing(self) -> tuple[int, int]:
        """How many of the cohort have yet to hear the last outcome, and how many an older one."""
        if self.alike and self.cohort is self.all:
            one, n = int(self.owed[0]), self.problem.n
            return (0, 0) if one == 0 else (n, 0) if one == self.outcomes else (0, n)
        owed = self.owed[self.whom]
        new = int(np.count_nonzero(owed == self.outcomes)) if self.outcomes else 0
        return new, int(np.count_nonzero(owed)) - new

    def _owe(self, outcome: int) -> None:
        """From now on the cohort owes this outcome, or none (0)."""
        self.owed[self.whom] = outcome
        self.alike = self.cohort is self.all

    def _to_hear(self, down: tuple[Array, ...]) -> tuple[int, int]:
        """Vectors of the last outcome, and of an older one, for a client that has yet to hear it."""
        # x+ of the last round is mostly the x of this one, and is sent once
        repeated = [any(o is v or _equal(o, v) for v in down) for o in self.outcome]
        # outcomes of older rounds are not kept, but they have as many vectors as the last one
        return repeated.count(False), max(1, len(self.outcome))

    def _count_up(self, work: Work) -> None:
        c, d = len(self.cohort), self.problem.d
        for k in range(len(work.up)):
            size = work.sizes[k] if work.sizes else None
            # a plain vector: d numbers of 64 bits
            bits, octets, floats = size or (64 * d * c, 8 * d * c, d * c)
            self._add_up(c, floats, octets, bits)

    def _add_up(self, vectors: int, floats: int, octets: int, bits: int) -> None:
        self.ledger.vectors_up += vectors
        self.ledger.floats_up += floats
        self.ledger.bytes_up += octets
        self.ledger.bits_up += bits

    # -- what a checkpoint needs ---------------------------------------------------------------------------------------
    def state(self) -> dict[str, Any]:
        """Everything that a resumed run needs besides the server's vectors and the clients' memory."""
        arrays: dict[str, Any] = {"owed": self.owed, "participated": self.participated}
        arrays |= {f"outcome{k}": self.fetch(v) for k, v in enumerate(self.outcome)}
        return {"arrays": arrays, "meta": {"ledger": asdict(self.ledger), "outcomes": self.outcomes}}

    def restore(self, arrays: dict[str, Any], meta: dict[str, Any]) -> None:
        """Take back what ``state`` gave."""
        self.owed, self.participated = arrays["owed"].copy(), arrays["participated"].copy()
        self.alike = False
        self.outcome = tuple(arrays[k] for k in sorted(k for k in arrays if k.startswith("outcome")))
        self.ledger, self.outcomes = Ledger.of(meta["ledger"]), int(meta["outcomes"])

    def fetched(self, vectors: Vectors) -> Vectors:
        """The server's vectors where numpy can read them."""
        return {k: self.fetch(v) for k, v in vectors.items()}

    def timed(self, act: Any, *args: Any) -> Any:
        """Run on the clock: only what passes here counts as seconds."""
        start = running_seconds()
        out = act(*args)
        self.ledger.seconds += running_seconds() - start
        return out


class _Here(Carrier):
    """The server's vectors are numpy arrays in this process."""


def _equal(a: Any, b: Any) -> bool:
    return isinstance(a, np.ndarray) and isinstance(b, np.ndarray) and np.array_equal(a, b)
