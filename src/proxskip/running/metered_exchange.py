"""The Exchange of a run: every vector between server and clients passes here and is counted.

``MeteredExchange`` stands between a method's server half and an engine: it draws what is shared, and averages in client
order. The engine only runs client halves (``Engine.run``) and tells clients outcomes (``Engine.tell``).
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from threading import Event
from typing import Any

import numpy as np
import numpy.typing as npt

from proxskip.core.engine import Engine, Request
from proxskip.core.exchange import ClientHalf, SettleHalf
from proxskip.core.gossip import Links, RandomLinks
from proxskip.participation import Everyone, Participation
from proxskip.problems.federated import Problem
from proxskip.prox import conjugate_prox
from proxskip.running.ledger import Ledger, Meter, Whom
from proxskip.running.missing_clients import asked_in
from proxskip.running.simulated_time import Clock
from proxskip.support.randomness import stream
from proxskip.types import AnyArray, Array, Counts, Indices, InputError, Stack, Vectors


class MeteredExchange:
    """The Exchange of a run; ``begin`` sets it to the next round.

    Args:
        engine: it must be open.
        clock: the simulated time of a run over a network.
        interrupted: set it to break off the round under way.
    """

    def __init__(
        self, engine: Engine, problem: Problem, seed: int, participation: Participation, clock: Clock | None = None,
        interrupted: Event | None = None,
    ) -> None:  # fmt: skip
        self.engine = engine
        self.problem = problem
        self.seed = seed
        self.participation = participation
        self.clock, self.interrupted = clock, interrupted
        self.journal = engine.journal
        """What this round has changed, in the clients' memory and in the meter."""
        self.meter = Meter(problem.n, problem.d, self.journal)
        self.everyone = isinstance(participation, Everyone)
        self.all = np.arange(problem.n)
        self.cohort: Indices = self.all
        self.far = engine.is_far()
        """Whether the server's vectors lie with the engine, for example on a GPU."""
        self.scaled: tuple[Array, tuple[Array, ...]] = np.empty(0), ()
        """The last weights of all clients, and their ``_shares``, which a far engine need not send again."""
        self.coins = stream(seed, 0, "server")
        # state of this round
        self.round = 0
        self.exchanges = 0
        self._rng: np.random.Generator | None = None
        self.mixed: tuple[Array, ...] | None = None
        """What gossip mixed, until ``settle`` hands it out."""
        self.finite = True
        """Whether all gossiped vectors are finite, as far as that is known."""

    @property
    def ledger(self) -> Ledger:
        return self.meter.ledger

    @property
    def attempt(self) -> int:
        """How often this round was void."""
        return 0 if self.clock is None else self.clock.attempt

    def begin(self, round: int) -> None:
        """Draw the cohort of this round and reset its generator."""
        self.round, self.exchanges = round, 0
        self._rng, self.finite = None, True
        if not self.everyone:
            self.cohort = asked_in(self.participation, self.seed, round, self.attempt, self.problem.n)
        self.journal.begin()
        self.meter.begin(self.whom)
        self.time_before = None if self.clock is None else self.clock.state()

    def undo(self, void: bool = False) -> None:
        """Undo the round under way, because it was broken off or is void; a void round still takes simulated time."""
        self.journal.undo()
        self.meter.undo()
        if self.clock is not None and self.time_before is not None and not void:
            self.clock.restore(self.time_before)
        self.mixed = None

    @property
    def rng(self) -> np.random.Generator:
        """This round's generator, keyed at its first use."""
        if self._rng is None:
            self._rng = stream(self.seed, self.round, "server", self.coins)
        return self._rng

    @property
    def whom(self) -> Whom:
        """The cohort as an index; a slice, which is cheaper, if it is everyone."""
        return slice(None) if self.cohort is self.all else self.cohort

    # -- what a server half uses ---------------------------------------------------------------------------------------
    def __call__(
        self,
        half: ClientHalf,
        *down: Array,
        K: int | Sequence[int] = 0,
        own: Mapping[str, Any] | None = None,
        weights: Array | None = None,
    ) -> tuple[Array, ...]:
        own = own or {}
        if self.clock is not None:
            self._leave_out_missing(self.clock, half, K, down, own)
        request = self._request(half, K, down, own)
        work = self.engine.run(request)
        if self.clock is not None:
            self.clock.done(work.steps)
        self.meter.count(self.whom, len(self.cohort), request.K, down, len(own), work)
        return self.engine.sums(self._shares(weights), work.up)

    def gossip(self, half: ClientHalf, graph: Links, K: int) -> None:
        links = graph.draw(self.seed, self.round, self.problem.d) if isinstance(graph, RandomLinks) else graph
        mixed = self.engine.gossip(self._request(half, K, (), {}), links)
        self.meter.count_gossip(len(self.cohort), int(K), mixed, links)
        self.mixed, self.finite = mixed.rows, self.finite and mixed.finite

    def settle(self, half: SettleHalf, *outcome: Array) -> None:
        if self.mixed is not None:
            self.engine.tell(half, self.cohort, self.mixed)
            self.mixed = None
            return
        self.engine.tell(half, self.cohort, outcome)
        self.meter.settled(self.whom, outcome)

    def prox(self, x: Array, t: float) -> Array:
        assert self.problem.psi is not None
        self.ledger.prox_evals += 1
        return self.problem.psi.prox(x, t)

    def prox_conjugate(self, y: Array, t: float) -> Array:
        assert self.problem.psi is not None
        self.ledger.prox_evals += 1
        return conjugate_prox(self.problem.psi, y, t)

    # -- one exchange --------------------------------------------------------------------------------------------------
    def _leave_out_missing(
        self,
        clock: Clock,
        half: ClientHalf,
        K: int | Sequence[int],
        down: tuple[Array, ...],
        own: Mapping[str, npt.ArrayLike],
    ) -> None:
        """Reduce the cohort to the clients that answer over the network; the others do nothing."""
        steps = self._steps(K)
        sizes = self.meter.bytes_down(self.cohort, down, len(own))
        costs = clock.costs_of(half, down, own, self.cohort)
        answering = clock.ask(costs, self.cohort, steps, sizes, self.round, self.exchanges)
        self.meter.only(self.cohort, answering)
        self.cohort = answering

    def _shares(self, weights: Array | None) -> tuple[Array, ...]:
        """The cohort's weights, scaled to sum to one."""
        weights = self.problem.weights if weights is None else weights
        if self.cohort is self.all and np.array_equal(weights, self.scaled[0]):
            return self.scaled[1]
        rows = [weights[self.whom]] if weights.ndim == 1 else weights[:, self.whom]
        shares = tuple(w / w.sum() for w in rows)
        if self.cohort is self.all:
            self.scaled = np.array(weights), shares
        return shares

    def _steps(self, K: int | Sequence[int]) -> Counts:
        """The local steps of the cohort, one number or one each."""
        if isinstance(K, int):
            return K
        steps = np.asarray(K, dtype=np.int64)
        return int(steps) if steps.ndim == 0 else steps[self.cohort]

    def _request(
        self, half: ClientHalf, K: int | Sequence[int], down: tuple[Array, ...], own: Mapping[str, npt.ArrayLike],
    ) -> Request:  # fmt: skip
        """The request, with K and each client's own numbers cut to the cohort."""
        n, exchange = self.problem.n, self.exchanges
        for name, v in own.items():
            if np.shape(v) != (n,):
                raise InputError(f"{name} has shape {np.shape(v)}; give one number for each of the {n} clients.")
        numbers = {k: np.asarray(v, dtype=np.float64)[self.cohort] for k, v in own.items()}
        self.exchanges = exchange + 1
        return Request(
            half, self.cohort, self.round, self._steps(K), down, numbers, exchange, self.attempt, halt=self.interrupted
        )

    # -- what the loop uses --------------------------------------------------------------------------------------------
    def place(self, v: Array) -> Stack:
        """Move a server vector to where the engine wants it."""
        return self.engine.place(v) if self.far else v

    def fetch(self, v: Stack) -> Array:
        """A server vector as a numpy array."""
        return self.engine.fetch(v) if self.far else np.asarray(v)

    def wait(self) -> None:
        """Wait on the clock of the run until the engine's work is done."""
        if self.far:
            began = time.perf_counter()
            self.engine.wait()
            self.ledger.seconds += time.perf_counter() - began

    def restore(self, server: Vectors, arrays: Mapping[str, AnyArray], meta: Mapping[str, Any]) -> dict[str, Stack]:
        """Go back to these counts, as ``Meter.state`` gave them; returns the server's vectors in their place."""
        self.meter.restore(arrays, meta)
        placed = {name: self.place(v) for name, v in server.items()}

        def its_own(outcome: Array) -> Stack:
            """The server's own object if it has this vector: what is sent for two reasons is then counted once."""
            for name, v in server.items():
                if np.array_equal(outcome, v):
                    return placed[name]
            return outcome

        self.meter.outcome = tuple(its_own(v) for v in self.meter.outcome)
        return placed
