"""Client and Exchange: what a client half can do, and what the server half can ask for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

import numpy as np

from proxskip.links.codecs import Codec
from proxskip.links.gossip import Links
from proxskip.problems.federated import Problem
from proxskip.types import Array, Indices, Vectors

Pull: TypeAlias = tuple[Any, Array | float]
"""``(tau, centre)``: each step also goes down the gradient of ``tau/2 |z - centre|^2``; fastest with the centre 0.0."""
Anchor: TypeAlias = tuple[Array, Array, float]
"""``(w, gw, q)``: a point, the full gradient there, and the probability that a step moves it (L-SVRG)."""


class Client(Protocol):
    """What a client half can do: one client with ``(d,)`` vectors, or a cohort with ``(c, d)`` stacks."""

    def descend(
        self,
        x: Array,
        h: Array | float,
        gamma: Any,
        K: Any,
        *,
        pull: Pull | None = None,
        momentum: Any = 0.0,
        anchor: Anchor | None = None,
        until: Any = None,
    ) -> Any:
        """K times  z = y + momentum (y - y_before);  y <- z - gamma (g(z) - h + tau (z - centre))  from y = x.

        Returns y. With ``anchor`` it returns ``(y, w, gw)``, with ``until`` it returns ``(y, steps)``.

        Args:
            pull: ``(tau, centre)``, see ``Pull``.
            momentum: 0 for plain steps.
            anchor: ``(w, gw, q)``. The gradient is  g_j(z) - g_j(w) + gw  with the same rows j at both points; after a
                step, with probability q, w becomes that step's z and gw the full gradient there. Not together with
                a pull, momentum or ``until``.
            until: with ``pull``, stop at the first z with  |g(z) - h + tau (z - centre)| <= until |z - centre|, at the
                latest after K steps; a number, or one for each client. The steps really taken come back, and these
                are counted: one for every z at which the gradient was computed, the last one included.
        """

    def gradient(self, x: Array, where: Any = None) -> Array:
        """The full local gradient at x; only computed, and counted, where ``where`` is not zero (zeros elsewhere)."""

    def own(self, values: Any) -> Any:
        """This client's entry of n numbers (or row of ``(n, d)``), shaped to multiply its vectors.

        A single number stays a number.
        """

    def send(self, v: Array, codec: Codec | None = None) -> Array:
        """v as the server will read it; the engine counts the codec's bits, and a wire carries its bytes.

        Without a codec v goes up as it is, or as the federation's wire format rounds it. What is not changed on
        the way comes back as the very same object, so that a half may ask ``sent is v``.
        """


Sent: TypeAlias = tuple[tuple[Array, ...], Vectors]
"""What a client half returns: the vectors that go up, and what the client remembers."""
ClientHalf = Callable[..., Sent]
"""``half(client, memory, K, *down, **own) -> (up, memory)``"""
SettleHalf = Callable[..., Vectors]
"""``half(client, memory, *outcome) -> memory``"""


def as_sent(v: Array, up: Array, sent: Array) -> Array:
    """The remembered v that belongs to ``sent`` instead of ``up``; the same object where nothing was changed."""
    return v if sent is up else v + (sent - up)


class Exchange(Protocol):
    """One round's line between the server half and the clients; the engine stands behind it and counts."""

    @property
    def problem(self) -> Problem: ...
    @property
    def rng(self) -> np.random.Generator:
        """Keyed by (seed, round): draw K, coins and nothing private from it."""

    @property
    def everyone(self) -> bool:
        """False when this run averages over cohorts."""

    @property
    def cohort(self) -> Indices:
        """The clients of this round, in increasing order."""

    @property
    def round(self) -> int:
        """The number of this round, from 0."""

    def __call__(
        self,
        half: ClientHalf,
        *down: Array,
        K: int | Sequence[int] = 0,
        own: Mapping[str, Any] | None = None,
        weights: Array | None = None,
    ) -> tuple[Array, ...]:
        """Send ``down`` to the cohort, run ``half`` there, return the weighted mean of each vector that came up.

        Args:
            K: local steps, for all clients or for each of the n.
            own: numbers for each of the n clients by name; they travel with the message, are counted, and reach the
                half as keyword arguments.
            weights: in place of the problem's; a ``(k, n)`` array gives k means of each vector.
        """

    def gossip(self, half: ClientHalf, graph: Links, K: int) -> None:
        """Run ``half`` everywhere and mix each vector that comes up along the graph's edges, or those awake.

        ``settle`` then hands every client its rows of the mixed vectors.
        """

    def settle(self, half: SettleHalf, *outcome: Array) -> None:
        """Tell the cohort of this round what came of it; this is where ``h`` is updated, exactly once."""

    def prox(self, x: Array, t: float) -> Array:
        """One counted evaluation of the problem's ``psi``: ``prox_{t psi}(x)``."""

    def prox_conjugate(self, y: Array, t: float) -> Array:
        """One counted evaluation of ``prox_{t psi*}(y)`` by Moreau's identity."""
