"""A server half that can be left and entered again: it is run from its beginning with what was answered so far.

``Method.round`` is a pure function of the server's vectors, of a generator keyed by (seed, round) and of what its
exchanges give. So nothing need be kept of one that was left in the middle: run it again, give it the known answers, and
leave it where it asks for one that is not known. Federations leave it while messages are on their way.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from proxskip.links.gossip import Links
from proxskip.randomness import stream
from proxskip.seam import ClientHalf, Exchange, SettleHalf
from proxskip.types import Array, Indices


class Replay:
    """An Exchange in front of another one, which is asked for nothing twice.

    Args:
        exchange: whoever answers; it may raise to leave the server half.
        seed: keys the generator, which begins anew with the half.
        answers: what is known already, in the order in which the half asks.
        pure: the other exchange only answers ``exchange(half, ...)``; its other verbs change nothing, and are simply
            asked again.
    """

    def __init__(self, exchange: Exchange, seed: int, answers: tuple[Any, ...] = (), pure: bool = False) -> None:
        self.exchange, self.seed, self.answers, self.pure = exchange, seed, list(answers), pure
        self.problem, self.everyone, self.round = exchange.problem, exchange.everyone, exchange.round
        self.coins, self.at, self.fresh = exchange.rng, 0, True

    def restart(self) -> None:
        """The server half begins again."""
        self.at, self.fresh = 0, self.fresh and self.at == 0

    @property
    def rng(self) -> np.random.Generator:
        """The round's generator, set back to its beginning where the half begins again."""
        # set back only when the half draws, which many do not
        if not self.fresh:
            self.coins, self.fresh = stream(self.seed, self.round, "server", self.coins), True
        return self.coins

    @property
    def cohort(self) -> Indices:
        """As the other exchange has it now."""
        return self.exchange.cohort

    def _once(self, act: Callable[..., Any], *args: Any, **named: Any) -> Any:
        self.at += 1
        if self.at > len(self.answers):
            self.answers.append(act(*args, **named))
        return self.answers[self.at - 1]

    def _again(self, act: Callable[..., Any], *args: Any) -> Any:
        return act(*args) if self.pure else self._once(act, *args)

    def __call__(self, half: ClientHalf, *down: Array, **named: Any) -> Any:
        """Ask the clients, or remember what they said."""
        return self._once(self.exchange, half, *down, **named)

    def gossip(self, half: ClientHalf, graph: Links, K: int) -> None:
        """Once."""
        self._again(self.exchange.gossip, half, graph, K)

    def settle(self, half: SettleHalf, *outcome: Array) -> None:
        """Once."""
        self._again(self.exchange.settle, half, *outcome)

    def prox(self, x: Array, t: float) -> Array:
        """Once."""
        return np.asarray(self._again(self.exchange.prox, x, t))

    def prox_conjugate(self, y: Array, t: float) -> Array:
        """Once."""
        return np.asarray(self._again(self.exchange.prox_conjugate, y, t))
