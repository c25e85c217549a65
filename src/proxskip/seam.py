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
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from proxskip.links import Graph
    from proxskip.problems.federated import Problem

Array = npt.NDArray[np.float64]
Indices = npt.NDArray[np.int64]
Vectors = dict[str, Array]
"""Named vectors: what the server holds (each ``(d,)``), or what clients remember (each ``(d,)`` or ``(c, d)``)."""


class InputError(ValueError):
    """Something the caller gave cannot be used; the message is one sentence that says what and what to do."""


class EngineError(RuntimeError):
    """The machines behind an engine failed and could not be mended; the message is one sentence that says which."""


class UnsafeStepWarning(UserWarning):
    """A parameter lies outside what the method's theorem allows, and the run goes on because it was asked to."""


@runtime_checkable
class Oracle(Protocol):
    """A smooth convex function: anything with these four is a client (``d`` is asked for where it is missing)."""

    @property
    def L(self) -> float: ...
    @property
    def mu(self) -> float | None: ...
    def value(self, x: Array) -> float: ...
    def gradient(self, x: Array) -> Array: ...


@runtime_checkable
class Prox(Protocol):
    """A convex function with a proximity operator: ``prox(x, t) = argmin_y  psi(y) + |y - x|^2 / (2 t)``."""

    def __call__(self, x: Array) -> float: ...
    def prox(self, x: Array, t: float) -> Array: ...


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
