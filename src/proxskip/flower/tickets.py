"""What the server remembers: the state that it saves, and the ticket that is under way."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from enum import Enum
from typing import Any, NamedTuple

import numpy as np

from proxskip.flower import messages
from proxskip.flower.server_half import Call, Mean
from proxskip.results.result import Status
from proxskip.types import Array, Indices, Vectors

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
    """All that a server must not lose. Entries per client are indexed by the client's number.

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
    digests: list[bytes]
    uploads: list[bytes]
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

        def zeros() -> Indices:
            return np.zeros(n, dtype=np.int64)

        nothing = bytes(32)
        return ServerState(run, vectors, zeros(), zeros(), zeros(), zeros() - 1, [nothing] * n, [nothing] * n)

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
            self.heard[i], self.digests[i] = reply.committed, reply.digest

    def count(self, answers: Mapping[int, Reply], cohort: Iterable[int], outcome: Outcome) -> None:
        """Count these clients in the ticket under way, with this outcome."""
        for i in cohort:
            self.counted[i] = self.ticket
            self.uploads[i] = messages.upload_digest(answers[i].up)
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

    # -- on disk -------------------------------------------------------------------------------------------------------
    def arrays(self) -> dict[str, Any]:
        """The vectors, for a file."""
        arrays: dict[str, Any] = {f"server.{k}": v for k, v in self.vectors.items()}
        for ticket, outcome in self.outcomes.items():
            arrays |= {f"outcome.{ticket}.{k}": v for k, v in enumerate(outcome.vectors)}
        arrays |= {name: getattr(self, name).copy() for name in _PER_CLIENT}
        arrays |= {name: np.frombuffer(b"".join(getattr(self, name)), np.uint8) for name in _DIGESTS}
        return arrays

    def meta(self) -> dict[str, Any]:
        """The rest, for a file."""
        outcomes = {str(t): {"settle": o.settle, "vectors": len(o.vectors)} for t, o in self.outcomes.items()}
        return {name: getattr(self, name) for name in _PLAIN} | {
            "run": self.run.hex(),
            "outcomes": outcomes,
            "lost": sorted(self.lost),
            "counts": asdict(self.counts),
            "notes": list(self.notes),
            "verdict": None if self.verdict is None else [self.verdict[0].name, self.verdict[1]],
        }

    @staticmethod
    def of(arrays: Mapping[str, Any], meta: Mapping[str, Any]) -> ServerState:
        """The state that wrote these ``arrays`` and this ``meta``."""
        outcomes = {}
        for ticket, words in meta["outcomes"].items():
            vectors = tuple(arrays[f"outcome.{ticket}.{k}"] for k in range(int(words["vectors"])))
            outcomes[int(ticket)] = Outcome(words["settle"], vectors)
        per_client: dict[str, Any] = {name: arrays[name].astype(np.int64) for name in _PER_CLIENT}
        for name in _DIGESTS:
            per_client[name] = [row.tobytes() for row in arrays[name].reshape(-1, 32)]
        verdict = meta["verdict"]
        return ServerState(
            run=bytes.fromhex(meta["run"]),
            vectors={k.removeprefix("server."): v for k, v in arrays.items() if k.startswith("server.")},
            outcomes=outcomes,
            lost=set(meta["lost"]),
            counts=Counts(**meta["counts"]),
            notes=list(meta["notes"]),
            verdict=None if verdict is None else (Status[verdict[0]], verdict[1]),
            **per_client,
            **{name: meta[name] for name in _PLAIN},
        )


_PER_CLIENT = ("counted", "heard", "participated", "last")
_DIGESTS = ("digests", "uploads")
_PLAIN = tuple(field.name for field in fields(ServerState) if field.type in ("int", "bool", "float"))
"""The fields that are plain numbers, which a file holds as they are."""
