"""Engine: where client halves run, in one class whose abilities have defaults."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from threading import Event
from typing import Any, ClassVar, NamedTuple

import numpy as np

from proxskip.interfaces.exchange import ClientHalf, SettleHalf
from proxskip.links.gossip import Mixer
from proxskip.links.rows import RowStore
from proxskip.links.sums import weighted_sum
from proxskip.problems.federated import Problem
from proxskip.types import Array, Indices, Vectors


@dataclass(slots=True)
class Request:
    """One exchange as an engine sees it: which half runs on which clients, with what.

    Args:
        K: local steps, one number or one per member of the cohort.
        down: the vectors that go down.
        own: numbers by name, one per member of the cohort.
        exchange: its number within the round.
        attempt: how often the round was void before; with it a federation's codecs are keyed anew.
        first, asked: the place of the first member among all that were asked, and how many they are, where the cohort
            is only a part of them (an actor's).
        halt: set when the run is interrupted; long local work looks at it, see ``look``.
        weights: if not empty, all that is wanted of what goes up is ``sums`` with these rows of weights of the cohort,
            so that ``up`` may hold anything that the engine's own ``sums`` understands.
    """

    half: ClientHalf
    cohort: Indices
    round: int
    K: Any = 0
    down: tuple[Array, ...] = ()
    own: Mapping[str, Array] = field(default_factory=dict)
    exchange: int = 0
    attempt: int = 0
    first: int = 0
    asked: int | None = None
    halt: Event | None = None
    weights: tuple[Array, ...] = ()


class BrokenOff(Exception):
    """The run was interrupted in the middle of a round, of which nothing counts."""


def look(halt: Event | None) -> None:
    """Leave the round if the run was interrupted; called between pieces of local work, at least every second."""
    if halt is not None and halt.is_set():
        raise BrokenOff


class Size(NamedTuple):
    """What a vector that went through a codec took on its way up, all clients together.

    Args:
        bits: of the code.
        bytes: of the message.
        floats: the numbers in it.
    """

    bits: int
    bytes: int
    floats: int

    @staticmethod
    def total(sizes: Iterable[Size | None]) -> Size | None:
        """The sum of these ``sizes``; None where the vector traveled as it was."""
        # all clients run the same half, so either all sizes are known or none
        known = [s for s in sizes if s is not None]
        return Size(*map(sum, zip(*known, strict=True))) if known else None


@dataclass(slots=True)
class Work:
    """What came of a request.

    Args:
        up: what came up, each ``(c, d)``; whatever ``sums`` takes, where the request has weights.
        gradients: rows differentiated.
        sizes: of each vector that went through a codec, and None for plain ones.
        steps: the local steps really taken, one per member, where these are not the request's K.
    """

    up: tuple[Any, ...]
    gradients: int
    sizes: tuple[Size | None, ...] = ()
    steps: Indices | None = None


@dataclass(slots=True)
class Mixed:
    """What came of gossip: what stands for the mixed rows in ``tell``, and the costs.

    Args:
        vectors: how many went along an edge.
        finite: whether all that was mixed is finite, as far as that is at hand.
    """

    rows: tuple[Any, ...]
    gradients: int
    vectors: int
    finite: bool


class Engine(ABC):
    """Where client halves run. An engine holds the clients' memory, one row per client, and owns nothing else.

    Four functions are needed: ``open``, ``run``, ``tell`` and ``memory``; the others have defaults.
    ``engines.in_process.NearEngine`` writes everything but ``client`` for an engine whose clients are in this process.
    """

    name: str
    rewinds: ClassVar[bool] = False
    """Whether ``mark`` and ``rewind`` can take back a round: needed for networks that lose clients. Without it, a round
    that is broken off ends the run at its last record."""

    # -- a run ---------------------------------------------------------------------------------------------------------
    @abstractmethod
    def open(self, problem: Problem, memory: Vectors, seed: int) -> None:
        """Take the shards and the clients' initial memory (each entry ``(n, d)``)."""

    @abstractmethod
    def run(self, request: Request) -> Work:
        """Run a half on its cohort and keep its memory; raise ``BrokenOff`` once ``request.halt`` is set."""

    @abstractmethod
    def tell(self, half: SettleHalf, cohort: Indices, outcome: tuple[Any, ...]) -> None:
        """Run ``half`` on the cohort with the outcome (each ``(d,)``, or ``(c, d)`` for one row per client)."""

    @abstractmethod
    def memory(self) -> Vectors:
        """A copy of what the clients remember."""

    def close(self) -> None:
        """Give back threads and machines."""
        return None

    def shutdown(self) -> None:
        """Give back what outlives a run too."""
        self.close()

    # -- sums ----------------------------------------------------------------------------------------------------------
    def sum(self, w: Array, U: Any) -> Any:
        """``sum_j w_j U_j`` over the cohort's rows, with the bytes of ``links.sums.weighted_sum``."""
        return weighted_sum(w, U)

    def sums(self, rows: Sequence[Array], up: Sequence[Any]) -> tuple[Any, ...]:
        """The sums of every stack of rows with each of these weights."""
        return tuple(self.sum(w, U) for U in up for w in rows)

    def mix(self, graph: Mixer, U: Any) -> Any:
        """One gossip step on a stack that came up."""
        return graph.mix(U)

    def gossip(self, request: Request, graph: Mixer) -> Mixed:
        """Run the half everywhere and mix what comes up."""
        work = self.run(request)
        rows = tuple(self.mix(graph, U) for U in work.up)
        return Mixed(rows, work.gradients, len(rows), all(bool(np.isfinite(U).all()) for U in rows))

    # -- where the server's vectors live: here, as numpy arrays --------------------------------------------------------
    def is_far(self) -> bool:
        """Whether the server's vectors live elsewhere; asked after ``open``."""
        return False

    def place(self, v: Array) -> Any:
        """A vector of the server's there."""
        return v

    def fetch(self, v: Any) -> Array:
        here: Array = v
        return here

    def wait(self) -> None:
        """Return when all work is done."""
        return None

    # -- what is known of the machines ---------------------------------------------------------------------------------
    def judge(self, problem: Problem) -> Problem:
        """The problem that records are evaluated with, where values and gradients are computed elsewhere."""
        return problem

    def rounding(self) -> float:
        """The unit of rounding of what the clients remember."""
        return float(np.finfo(np.float64).eps)

    def report(self) -> tuple[dict[str, Any] | None, list[str]]:
        """What happened to the machines: for the result's summary, and as sentences."""
        return None, []

    # -- rounds that do not count, and rows of those alone who took part -----------------------------------------------
    def mark(self, several: bool) -> None:
        """A round begins, which may have several exchanges; only called where ``rewinds``."""
        return None

    def rewind(self) -> None:
        """Forget everything since ``mark``."""
        return None

    def keeps_rows(self) -> bool:
        """Whether ``keep_rows`` may be called after ``open``."""
        return False

    def keep_rows(self, store: RowStore) -> None:
        """Keep what the clients remember in this store; ``memory`` then returns its views."""
        return None
