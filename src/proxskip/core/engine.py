"""Engine: the base class of everything that runs client halves."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from threading import Event
from typing import ClassVar, NamedTuple

import numpy as np

from proxskip.core.exchange import ClientHalf, SettleHalf
from proxskip.core.gossip import Mixer
from proxskip.problems.federated import Problem
from proxskip.support.rows import Journal
from proxskip.support.sums import weighted_sum
from proxskip.types import Array, Counts, EngineError, Indices, Stack, Vectors


@dataclass(slots=True)
class Request:
    """One exchange as an engine sees it: a half, its clients and its inputs.

    Args:
        K: local steps, one number or one per member of the cohort.
        down: the vectors that go down.
        own: numbers by name, one per member of the cohort.
        exchange: its number within the round.
        attempt: how often the round was void before; codecs draw anew in each attempt.
        first, asked: the place of the first member among all clients asked, and how many there are, where the cohort is
            only a part of them (an actor's).
        halt: set when the run is interrupted; long local work checks it with ``look``.
    """

    half: ClientHalf
    cohort: Indices
    round: int
    K: Counts = 0
    down: tuple[Array, ...] = ()
    own: Mapping[str, Array] = field(default_factory=dict)
    exchange: int = 0
    attempt: int = 0
    first: int = 0
    asked: int | None = None
    halt: Event | None = None


class BrokenOff(Exception):
    """The run was interrupted within a round; nothing of that round counts."""


class EngineLost(EngineError):
    """What the clients remember is lost, with their machines; the message says whose, and why.

    The run then opens the engine anew with the memory of its last record, and goes on from there. It has such a record
    only of engines that do not rewind: the others lie in this process.
    """


def look(halt: Event | None) -> None:
    """Leave the round if the run was interrupted; call it at least every second of local work."""
    if halt is not None and halt.is_set():
        raise BrokenOff


class Size(NamedTuple):
    """The total size, over all clients, of one vector that went up through a codec.

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
        """The sum over clients; None for a plain vector."""
        # all clients run the same half, so all sizes are known or none is
        known = [s for s in sizes if s is not None]
        return Size(*map(sum, zip(*known, strict=True))) if known else None


@dataclass(slots=True)
class Work:
    """The result of a request.

    Args:
        up: the vectors sent up, each ``(c, length)``.
        gradients: rows differentiated.
        sizes: the size of each vector that went through a codec, None for plain ones.
        steps: local steps taken by each member, where they differ from the request's K.
    """

    up: tuple[Stack, ...]
    gradients: int
    sizes: tuple[Size | None, ...] = ()
    steps: Indices | None = None


@dataclass(slots=True)
class Mixed:
    """The result of gossip.

    Args:
        rows: what ``tell`` passes on as the mixed rows.
        vectors: how many went along each edge.
        finite: whether all mixed rows are finite, as far as that is known.
    """

    rows: tuple[Stack, ...]
    gradients: int
    vectors: int
    finite: bool


class Engine(ABC):
    """Where client halves run. An engine holds the clients' memory, one row per client, and nothing else.

    Define ``open``, ``run``, ``tell`` and ``memory``; everything else has a default. If the clients are in this
    process, derive from ``engines.in_process.NearEngine`` and define only ``client``.
    """

    name: str
    rewinds: ClassVar[bool] = False
    """Whether memory is written through ``journal``, so that a round can be taken back, as networks that lose clients
    need. Without it, an interrupted run ends at its last record."""
    has_hessians: ClassVar[bool] = False
    """Whether its clients have ``expansion``, which Newton's method needs."""

    @cached_property
    def journal(self) -> Journal:
        """What the round under way has changed; the run begins it anew in every round."""
        return Journal()

    # -- a run ---------------------------------------------------------------------------------------------------------
    @abstractmethod
    def open(self, problem: Problem, memory: Vectors, seed: int) -> None:
        """Take the shards and the clients' initial memory (each entry ``(n, d)``)."""

    @abstractmethod
    def run(self, request: Request) -> Work:
        """Run a half on its cohort and keep its memory; raise ``BrokenOff`` once ``request.halt`` is set."""

    @abstractmethod
    def tell(self, half: SettleHalf, cohort: Indices, outcome: tuple[Stack, ...]) -> None:
        """Run ``half`` on the cohort with the outcome (each ``(d,)``, or ``(c, d)`` for one row per client)."""

    @abstractmethod
    def memory(self) -> Vectors:
        """A copy of what the clients remember."""

    def close(self) -> None:
        """Release threads and machines."""
        return None

    def shutdown(self) -> None:
        """Also release what outlives a run."""
        self.close()

    # -- sums ----------------------------------------------------------------------------------------------------------
    def sum(self, w: Array, U: Stack) -> Stack:
        """``sum_j w_j U_j`` over the cohort's rows, with the bytes of ``support.sums.weighted_sum``."""
        return weighted_sum(w, U)

    def sums(self, rows: Sequence[Array], up: Sequence[Stack]) -> tuple[Stack, ...]:
        """The sums of every stack of rows with each of these weights."""
        return tuple(self.sum(w, U) for U in up for w in rows)

    def mix(self, graph: Mixer, U: Stack) -> Stack:
        """One gossip step on a stack that came up."""
        return graph.mix(U)

    def gossip(self, request: Request, graph: Mixer) -> Mixed:
        """Run the half on all clients and mix what it sends."""
        work = self.run(request)
        rows = tuple(self.mix(graph, U) for U in work.up)
        return Mixed(rows, work.gradients, len(rows), all(bool(np.isfinite(U).all()) for U in rows))

    # -- server vectors: numpy arrays by default -----------------------------------------------------------------------
    def is_far(self) -> bool:
        """Whether the server's vectors live elsewhere; asked after ``open``."""
        return False

    def place(self, v: Array) -> Stack:
        """Move a server vector there."""
        return v

    def fetch(self, v: Stack) -> Array:
        here: Array = v
        return here

    def wait(self) -> None:
        """Block until all work is done."""
        return None

    # -- evaluation and reports ----------------------------------------------------------------------------------------
    def judge(self, problem: Problem) -> Problem:
        """The problem to evaluate records with, for engines that compute values and gradients elsewhere."""
        return problem

    def rounding(self) -> float:
        """The unit roundoff of the clients' memory."""
        return float(np.finfo(np.float64).eps)

    def report(self) -> tuple[dict[str, object] | None, list[str]]:
        """What happened to the machines: data for the result's summary, and sentences."""
        return None, []
