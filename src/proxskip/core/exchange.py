"""Client and Exchange: what a client half and a server half may call."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

import numpy as np

from proxskip.codecs import Codec
from proxskip.core.gossip import Links
from proxskip.problems.federated import Problem
from proxskip.types import Array, Column, Counts, Indices, InputError, Vectors

Pull: TypeAlias = tuple[Column, Array | float]
"""``(tau, centre)``: each step also goes down the gradient of ``tau/2 |z - centre|^2``; fastest with the centre 0.0."""
Anchor: TypeAlias = tuple[Array, Array, float]
"""``(w, gw, q)``: a point, its full gradient, and the probability that a step moves the point (L-SVRG)."""


class Client(Protocol):
    """What a client half may call: on one client with ``(d,)`` vectors, or on a cohort with ``(c, d)`` stacks."""

    def descend(
        self,
        x: Array,
        h: Array | float,
        gamma: Column,
        K: Counts,
        *,
        pull: Pull | None = None,
        momentum: Column = 0.0,
        anchor: Anchor | None = None,
        until: Column | None = None,
    ) -> Any:
        """K times  z = y + momentum (y - y_before);  y <- z - gamma (g(z) - h + tau (z - centre))  from y = x.

        Returns y; with ``anchor`` ``(y, w, gw)``, with ``until`` ``(y, steps)``.

        Args:
            pull: ``(tau, centre)``, see ``Pull``.
            momentum: 0 for plain steps.
            anchor: ``(w, gw, q)``. The gradient is  g_j(z) - g_j(w) + gw  with the same rows j at both points. After
                each step, with probability q, w becomes that step's z and gw the full gradient there. Not with a pull,
                momentum or ``until``.
            until: needs ``pull``; stop at the first z with  |g(z) - h + tau (z - centre)| <= until |z - centre|, at
                most after K steps. A number, or one per client. ``steps`` counts every z at which the gradient was
                computed, including the last.
        """

    def gradient(self, x: Array, where: Column | None = None) -> Array:
        """The full local gradient at x; neither computed nor counted where ``where`` is zero (zeros instead)."""

    def expansion(self, x: Array) -> Array:
        """f_i(x), the local gradient and the upper triangle of the local Hessian at x, row by row.

        It is one vector of  1 + d (d + 3)/2  numbers. In-process engines and federations have it; the ledger counts its
        numbers when it goes up, and one gradient.
        """

    def own(self, values: Any) -> Any:
        """This client's entry of n numbers (or row of ``(n, d)``), shaped to multiply its vectors.

        A single number stays one.
        """

    def send(self, v: Array, codec: Codec | None = None) -> Array:
        """v as the server will read it; the engine counts the codec's bits, and a message carries its bytes.

        Without a codec v goes up unchanged, or as the federation's wire format rounds it. If nothing changes v, the
        same object comes back, so a half may test ``sent is v``.
        """


Sent: TypeAlias = tuple[tuple[Array, ...], Vectors]
"""What a client half returns: the vectors to send up, and the client's new memory."""
ClientHalf = Callable[..., Sent]
"""``half(client, memory, K, *down, **own) -> (up, memory)``"""
SettleHalf = Callable[..., Vectors]
"""``half(client, memory, *outcome) -> memory``"""


def checked_answer(half: ClientHalf, answer: Any) -> Sent:
    """What a half returned, if it has the form of ``Sent``."""
    match answer:
        case (tuple() | list()) as up, dict() as new:
            return tuple(up), new
    name = getattr(half, "__qualname__", half)
    raise InputError(
        f"{name} does not return what goes up and what the client remembers; return two things, a tuple of vectors and "
        'a dictionary, such as  (x,), {"h": h}.'
    )


def as_sent(v: Array, up: Array, sent: Array) -> Array:
    """The memory that belongs to ``sent`` instead of ``up``; v itself if nothing changed."""
    return v if sent is up else v + (sent - up)


class Exchange(Protocol):
    """The connection of one round between the server half and the clients; it counts everything that moves."""

    @property
    def problem(self) -> Problem: ...
    @property
    def rng(self) -> np.random.Generator:
        """Keyed by (seed, round): draw K and coins from it, nothing private."""

    @property
    def everyone(self) -> bool:
        """False if this run averages over cohorts."""

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
        """Send ``down`` to the cohort, run ``half`` there, and return the weighted mean of each vector sent up.

        Args:
            K: local steps, for all clients or for each of the n.
            own: numbers for each of the n clients by name; they travel with the message, are counted, and reach the
                half as keyword arguments.
            weights: instead of the problem's; a ``(k, n)`` array gives k means of each vector.
        """

    def gossip(self, half: ClientHalf, graph: Links, K: int) -> None:
        """Run ``half`` on all clients and mix what it sends along the graph's edges, or those awake.

        ``settle`` then hands each client its rows of the mixed vectors.
        """

    def settle(self, half: SettleHalf, *outcome: Array) -> None:
        """Tell this round's cohort the outcome; this is where ``h`` is updated, exactly once."""

    def prox(self, x: Array, t: float) -> Array:
        """``prox_{t psi}(x)`` with the problem's psi, counted."""

    def prox_conjugate(self, y: Array, t: float) -> Array:
        """``prox_{t psi*}(y)`` by Moreau's identity, counted."""
