"""What the server remembers: the state that it saves, and the ticket that is under way."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from proxskip.flower import messages
from proxskip.flower.server_half import Call, Mean
from proxskip.results.result import Status
from proxskip.types import Array, Indices, Vectors

Digests = npt.NDArray[np.uint8]
"""The 32 bytes of a sha256 in each row."""
NOTES = 1_000
"""The most notes that a state holds."""


class Purpose(Enum):
    """What a ticket is for."""

    ROUND = "round"
    AUDIT = "audit"
    MEASURE = "measure"
    INFORM = "inform"


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a ticket, for the clients it counted: the half that settles it, and its vectors."""

    settle: str
    vectors: tuple[Array, ...]


class Reply(NamedTuple):
    """The content of an answer, the last ticket its client committed, and the digest of its memory."""

    up: tuple[Array, ...]
    value: float
    committed: int
    digest: bytes


@dataclass
class Ticket:
    """A transaction under way: one exchange after another with clients that can only become fewer.

    Args:
        purpose: what it is for.
        asked: the clients of the exchange under way, in increasing order.
        means: the results of the exchanges that are over.
        call: what the clients are asked.
        answers: the replies so far, by client.
        left_out: clients whose answer does not count.
    """

    purpose: Purpose
    asked: tuple[int, ...]
    means: list[Mean] = field(default_factory=list)
    call: Call | None = None
    answers: dict[int, Reply] = field(default_factory=dict)
    left_out: set[int] = field(default_factory=set)

    @property
    def exchange(self) -> int:
        """The number of the exchange under way."""
        return len(self.means)

    @property
    def missing(self) -> list[int]:
        """The clients that may still answer."""
        return [i for i in self.asked if i not in self.answers and i not in self.left_out]

    @property
    def cohort(self) -> tuple[int, ...]:
        """The clients whose answers count."""
        return tuple(i for i in self.asked if i in self.answers)


@dataclass
class Counts:
    """What happened to messages and tickets.

    Args:
        damaged: messages that are not whole, or of another version.
        foreign: messages of another client or run.
        stale: answers to another exchange, or to an older copy of the server.
        duplicates: second answers.
        rejected: answers that are not what the half sends.
        late: clients that missed a deadline.
        lost: clients that had lost their memory, or had another one.
        repaired: lost memories that were restored.
        void: tickets that counted nobody.
        audits: checks of the sum of the h.
        recentred: how often the sum was set to zero.
    """

    damaged: int = 0
    foreign: int = 0
    stale: int = 0
    duplicates: int = 0
    rejected: int = 0
    late: int = 0
    lost: int = 0
    repaired: int = 0
    void: int = 0
    audits: int = 0
    recentred: int = 0


@dataclass
class ServerState:
    """All that a server must not lose, in types that ``schema`` keeps. Per client, the row is the client's number.

    Args:
        run: 16 bytes that no other run has.
        vectors: the method's server vectors, such as x.
        counted: per client, the last ticket that counted it.
        heard: per client, the last ticket that it is known to have committed.
        participated: per client, the rounds that counted it.
        last: per client, the last round that counted it; -1 for none.
        digests: per client, the digest of its memory when it last answered.
        uploads: per client, the digest of the upload that was counted last.
        outcomes: by ticket, those that some client has yet to hear.
        lost: the clients that have lost their memory.
        counts: what happened to messages and tickets.
        notes: sentences for the result.
        ticket: the number of the last ticket.
        round: the rounds that are done.
        void: the attempts at this round that were void.
        audited, measured: the round of the last audit and the last measurement; 0 and -1 before the first.
        tried: the round in which an audit was last tried; -1 for none.
        recentred: whether the last audit set the sum to zero.
        reached: whether the tolerance is reached.
        at_rounding: whether the tolerance is below rounding, and so is the gradient norm.
        scale: the largest max |h| + (p/gamma) max |x| since the sum of the h was set to zero.
        ceiling: the gradient norm above which the run counts as diverged; set when x0 is measured.
        sum_h, grad_norm, f: the last measurements; nan if unknown.
        verdict: how the run ended; None while it goes on.
    """

    run: bytes
    vectors: Vectors
    counted: Indices
    heard: Indices
    participated: Indices
    last: Indices
    digests: Digests
    uploads: Digests
    outcomes: dict[int, Outcome] = field(default_factory=dict)
    lost: set[int] = field(default_factory=set)
    ticket: int = 0
    round: int = 0
    void: int = 0
    audited: int = 0
    measured: int = -1
    tried: int = -1
    recentred: bool = False
    reached: bool = False
    at_rounding: bool = False
    scale: float = 0.0
    ceiling: float = math.inf
    sum_h: float = math.nan
    grad_norm: float = math.nan
    f: float = math.nan
    counts: Counts = field(default_factory=Counts)
    notes: list[str] = field(default_factory=list)
    verdict: tuple[Status, str] | None = None

    @staticmethod
    def fresh(run: bytes, n: int, vectors: Vectors) -> ServerState:
        """The state of n clients before the first ticket."""
        counted, heard, participated = np.zeros((3, n), dtype=np.int64)
        digests, uploads = np.zeros((2, n, 32), dtype=np.uint8)
        return ServerState(run, vectors, counted, heard, participated, np.full(n, -1), digests, uploads)

    @property
    def over(self) -> bool:
        """Whether the run has ended."""
        return self.verdict is not None

    def note(self, text: str, about: str = "", most: int = NOTES + 1) -> None:
        """Add a sentence for the result, up to ``most`` that start with ``about``, and ``NOTES`` in all."""
        if len(self.notes) > NOTES or sum(t.startswith(about) for t in self.notes) >= most:
            return
        self.notes.append(text if len(self.notes) < NOTES else "further events are not listed.")

    def heed(self, answers: Mapping[int, Reply]) -> None:
        """Those who answered are known to have committed the ticket they named."""
        for i, reply in answers.items():
            self.heard[i], self.digests[i] = reply.committed, np.frombuffer(reply.digest, np.uint8)

    def count(self, answers: Mapping[int, Reply], cohort: Iterable[int], outcome: Outcome) -> None:
        """Count these clients in the ticket under way, with this outcome."""
        for i in cohort:
            self.counted[i] = self.ticket
            self.uploads[i] = np.frombuffer(messages.upload_digest(answers[i].up), np.uint8)
        self.outcomes[self.ticket] = outcome
        self._forget_heard_outcomes()

    def adopt(self, clients: Iterable[int], h: Array) -> None:
        """Have these clients take over this h, each by a ticket of its own."""
        for i in clients:
            self.ticket += 1
            self.counted[i] = self.ticket
            self.outcomes[self.ticket] = Outcome(".adopt", (h,))
        self._forget_heard_outcomes()

    def _forget_heard_outcomes(self) -> None:
        """Keep an outcome only until all its clients have committed it."""
        needed = set(self.counted[self.counted != self.heard].tolist())
        self.outcomes = {t: outcome for t, outcome in self.outcomes.items() if t in needed}
