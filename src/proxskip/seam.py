"""The seam: the few types through which methods, problems and engines meet.

A method is two short halves; an engine is one verb.

    The *server half* (``Method.round``) says what to send and what to do with the average.
    The *client half* says which ``h`` to use and what to remember.
    Between them stands ``exchange``; inside the client half stands ``descend(x, h, gamma, K)``,
    which does  ``x <- x - gamma * (g(x) - h)``  K times.  Nothing else crosses.

What follows from it:

* A client half uses only ``+ - * /`` on arrays, so the same lines run on one client's ``(d,)`` vectors
  and on a whole cohort's ``(c, d)`` stack.
* What a client remembers is a pure function of the messages it saw. Communication is counted by the
  engine that moves it, never claimed by the method.
* The server draws everything that is shared (the number of local steps, the cohort, an anchor's coin) from a
  generator keyed by (seed, round). Minibatches are keyed by (seed, client, round, step). Nothing else is random.
* ``settle`` tells exactly the cohort that was averaged what came of it: the update of ``h_i`` belongs to the
  round that averaged client i, with that round's ``x+``, once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Protocol

import numpy as np

from proxskip.links.graphs import Graph
from proxskip.problems.federated import Problem
from proxskip.types import Array, Indices, Vectors


class Client(Protocol):
    """What a client half can do: one client with ``(d,)`` vectors, or a cohort with ``(c, d)`` stacks."""

    def descend(self, x: Array, h: Array | float, gamma: Any, K: Any) -> Array:
        """K times ``x <- x - gamma * (g(x) - h)`` with this client's (stochastic) gradient."""
        ...

    def gradient(self, x: Array) -> Array:
        """The full local gradient at x."""
        ...

    def own(self, values: float | Sequence[float]) -> Any:
        """This client's entry of a per-client sequence, shaped to multiply its vectors; a number stays a number."""
        ...


ClientHalf = Callable[..., tuple[tuple[Array, ...], Vectors]]
"""``half(client, memory, K, *down) -> (up, memory)``"""
SettleHalf = Callable[..., Vectors]
"""``half(client, memory, *outcome) -> memory``"""


class Exchange(Protocol):
    """One round's line between the server half and the clients; the engine stands behind it and counts."""

    @property
    def problem(self) -> Problem: ...
    @property
    def rng(self) -> np.random.Generator:
        """Keyed by (seed, round): draw K, coins and nothing private from it."""
        ...

    @property
    def everyone(self) -> bool:
        """False when this run averages over cohorts."""
        ...

    @property
    def cohort(self) -> Indices:
        """The clients of this round, in increasing order."""
        ...

    @property
    def round(self) -> int:
        """The number of this round, from 0."""
        ...

    def __call__(
        self, half: ClientHalf, *down: Array, K: int | Sequence[int] = 0, weights: Array | None = None
    ) -> tuple[Array, ...]:
        """Send ``down`` to the cohort, run ``half`` there, return the weighted mean of each vector that came up."""
        ...

    def gossip(self, half: ClientHalf, graph: Graph, K: int) -> None:
        """Run ``half`` everywhere and mix each vector that comes up along the graph's edges.

        ``settle`` then hands every client its rows of the mixed vectors.
        """
        ...

    def settle(self, half: SettleHalf, *outcome: Array) -> None:
        """Tell the cohort of this round what came of it; this is where ``h`` is updated, exactly once."""
        ...

    def prox(self, x: Array, t: float) -> Array:
        """One counted evaluation of the problem's ``psi``: ``prox_{t psi}(x)``."""
        ...

    def prox_conjugate(self, y: Array, t: float) -> Array:
        """One counted evaluation of ``prox_{t psi*}(y)`` by Moreau's identity."""
        ...


class Method(Protocol):
    """Two halves and what is known about them. Frozen dataclasses whose fields are the paper's letters."""

    name: ClassVar[str]
    handles: ClassVar[frozenset[str]]
    """Among ``cohort psi D batch graph clients``: what the method is right for; everything else is refused."""
    remembers: ClassVar[tuple[str, ...]]
    """The vectors a client keeps between rounds; they start at zero, ``x`` at x0."""

    @property
    def gamma(self) -> Any:
        """The step size, or one a client."""
        ...

    def check(self, problem: Problem, insist: bool = False) -> list[str]:
        """Raise InputError for parameters the method cannot run with; return warnings for unsafe ones.

        Args:
            insist: run with steps that are refused otherwise.
        """
        ...

    def start(self, problem: Problem, x0: Array) -> Vectors:
        """The server's vectors before the first round."""
        ...

    def round(self, server: Vectors, exchange: Exchange) -> Vectors:
        """One communication round: the server half."""
        ...

    def zeta(self, problem: Problem) -> float | None:
        """The theorem's contraction of the Lyapunov function per iteration; None where no theorem is known."""
        ...

    def lyapunov(self, problem: Problem, x: Array, server: Vectors, memory: Vectors) -> float | None:
        """The theorem's Lyapunov function at a communication; None without one or without a known solution."""
        ...


class Engine(Protocol):
    """Where client halves run. An engine holds the clients' memory, one row a client, and owns nothing else.

    An engine whose vectors live elsewhere may let the server's stay there too. It says so by ``far = True`` after
    ``open``; then ``sum`` returns such vectors (with ``+ - * /``), ``place(v)`` and ``fetch(v)`` carry one there and
    back, and ``wait()`` returns when all is done.

    An engine whose clients can talk to each other has ``gossip(half, graph, round, K)``: run the half everywhere, mix
    along the graph, and return what stands for the mixed rows in ``tell``, the rows differentiated, how many vectors
    went along an edge, and whether all that was mixed is finite. ``judge(problem)`` gives the problem that records are
    made with where values and gradients are to be computed elsewhere. ``report()`` says what happened to it, for the
    result, and ``pulse()`` how it goes, for progress.
    """

    name: str

    def open(self, problem: Problem, memory: Vectors, seed: int) -> None:
        """Take the shards and the clients' initial memory (each entry ``(n, d)``)."""
        ...

    def run(
        self, half: ClientHalf, cohort: Indices, round: int, K: Indices | int, down: tuple[Array, ...]
    ) -> tuple[tuple[Array, ...], int]:
        """Run ``half`` on the cohort and keep its memory; what came up, each ``(c, d)``, and rows differentiated."""
        ...

    def tell(self, half: SettleHalf, cohort: Indices, outcome: tuple[Array, ...]) -> None:
        """Run ``half`` on the cohort with the outcome (each ``(d,)``, or ``(c, d)`` for one row a client)."""
        ...

    def sum(self, w: Array, U: Array) -> Array:
        """``sum_j w_j U_j`` over the cohort's rows, with the bytes of ``links.weighted_sum``."""
        ...

    def memory(self) -> Vectors:
        """A copy of what the clients remember."""
        ...

    def close(self) -> None:
        """Give back threads and machines."""
        ...
