"""The server's state, and its form on disk."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from itertools import islice
from typing import Any, NamedTuple, Self

import numpy as np

from proxskip.protocol import wire
from proxskip.protocol.replay import Call, Mean
from proxskip.results.result import Status
from proxskip.types import Array, Vectors

NOTES = 1_000
"""The most notes that a state holds."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a ticket, for the clients it counted."""

    settle: str
    vectors: tuple[Array, ...]


class Reply(NamedTuple):
    """The content of an answer, the last ticket its client committed, and the digest of its memory."""

    up: tuple[Array, ...]
    value: float
    committed: int = 0
    digest: bytes = bytes(32)


class Answers(Mapping[int, Reply]):
    """The replies of an exchange by client; adding one takes constant time.

    Successors share one dict of numbered replies, and each ignores later ones.
    """

    def __init__(self, shared: dict[int, tuple[int, Reply]] | None = None, count: int = 0) -> None:
        self._shared, self._count = {} if shared is None else shared, count

    def plus(self, i: int, reply: Reply) -> Answers:
        """These answers and client i's reply, as a new object."""
        shared = self._shared
        if len(shared) > self._count:  # another state already added a reply
            shared = {j: shared[j] for j in self}
        shared[i] = self._count, reply
        return Answers(shared, self._count + 1)

    def __getitem__(self, i: int) -> Reply:
        number, reply = self._shared[i]
        if number >= self._count:
            raise KeyError(i)
        return reply

    def __iter__(self) -> Iterator[int]:
        return islice(self._shared, self._count)

    def __len__(self) -> int:
        return self._count


class Copied:
    """Base of frozen dataclasses that are copied at every event."""

    def but(self, **changes: Any) -> Self:
        """A copy with these fields changed, ten times faster than ``dataclasses.replace``."""
        new = object.__new__(type(self))
        new.__dict__.update(self.__dict__, **changes)
        return new


@dataclass(frozen=True)
class Counts(Copied):
    """What happened to messages and tickets."""

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


@dataclass(frozen=True)
class ServerState(Copied):
    """The server between events."""

    run: bytes
    vectors: Vectors
    counted: tuple[int, ...]
    """Per client, the last ticket that counted it."""
    heard: tuple[int, ...]
    """Per client, the last ticket it is known to have committed."""
    digests: tuple[bytes, ...]
    uploads: tuple[bytes, ...]
    """Per client, the digest of the upload that was counted."""
    participated: tuple[int, ...]
    last: tuple[int, ...]
    """Per client, the last round that counted it, -1 for none."""
    outcomes: Mapping[int, Outcome] = field(default_factory=dict)
    lost: frozenset[int] = frozenset()
    ticket: int = 0
    round: int = 0
    void: int = 0
    audited: int = 0
    tried: int = -1
    measured: int = -1
    broken: bool = False
    reached: bool = False
    at_rounding: bool = False
    """The tolerance is below rounding, and so is the gradient norm."""
    scale: float = 0.0
    """The largest max |h| + (p/gamma) max |x| since sum_i w_i h_i was set to zero."""
    first_x: float = 0.0
    """The larger of |x| at the start and after round 1, to detect divergence."""
    sizes: Mapping[str, float] = field(default_factory=dict)
    """For each half, the largest norm of a counted upload."""
    sum_h: float = math.nan
    grad_norm: float = math.nan
    f: float = math.nan
    ceiling: float = math.inf
    """The gradient norm above which the run counts as diverged; set when x0 is measured."""
    counts: Counts = field(default_factory=Counts)
    notes: tuple[str, ...] = ()
    over: bool = False
    failed: str = ""
    diverged: bool = False
    corrupted: bool = False
    # under way: a restart does it again
    kind: str = ""
    exchange: int = 0
    call: Call | None = None
    asked: tuple[int, ...] = ()
    means: tuple[Mean, ...] = ()
    answers: Answers = field(default_factory=Answers)
    left_out: frozenset[int] = frozenset()
    """Clients whose answer was left out."""

    @staticmethod
    def fresh(run: bytes, n: int, vectors: Vectors) -> ServerState:
        return ServerState(run, vectors, (0,) * n, (0,) * n, (bytes(32),) * n, (bytes(32),) * n, (0,) * n, (-1,) * n)

    def count(self, what: str, by: int = 1) -> ServerState:
        return self.but(counts=self.counts.but(**{what: vars(self.counts)[what] + by}))

    def note(self, text: str, about: str = "", most: int = NOTES + 1) -> ServerState:
        """Add a sentence for the result, up to ``most`` that start with ``about``, and ``NOTES`` in all."""
        if len(self.notes) > NOTES or sum(t.startswith(about) for t in self.notes) >= most:
            return self
        return self.but(notes=(*self.notes, text if len(self.notes) < NOTES else "further events are not listed."))

    def fail(self, verdict: tuple[Status, str]) -> ServerState:
        status, message = verdict
        ended = {"diverged": status is Status.DIVERGED, "corrupted": status is Status.CORRUPTED}
        return self.but(over=True, failed=message, asked=(), **ended)

    def heed(self) -> ServerState:
        """Those who answered are known to have committed the ticket they named."""
        heard, digests = list(self.heard), list(self.digests)
        for i, reply in self.answers.items():
            heard[i], digests[i] = reply.committed, reply.digest
        return self.but(heard=tuple(heard), digests=tuple(digests))

    def commit(self, cohort: tuple[int, ...], outcome: Outcome) -> ServerState:
        """Count these clients in this ticket, with this outcome."""
        members = set(cohort)
        counted = tuple(self.ticket if i in members else t for i, t in enumerate(self.counted))
        mine = self.kind == "round"
        participated = tuple(k + (mine and i in members) for i, k in enumerate(self.participated))
        last = tuple(self.round if mine and i in members else r for i, r in enumerate(self.last))
        uploads = tuple(
            wire.upload_digest(self.answers[i].up) if i in members else u for i, u in enumerate(self.uploads)
        )
        # an outcome is kept until all its clients have committed it
        outcomes = self._owed(counted) | {self.ticket: outcome}
        return self.but(uploads=uploads, counted=counted, participated=participated, last=last, outcomes=outcomes)

    def adopt(self, clients: Iterable[int], h: Array) -> ServerState:
        """Have these clients take over this h, each by a ticket of its own."""
        ticket, counted, outcomes = self.ticket, list(self.counted), dict(self.outcomes)
        for i in clients:
            ticket += 1
            counted[i] = ticket
            outcomes[ticket] = Outcome(".adopt", (h,))
        state = self.but(ticket=ticket, counted=tuple(counted), outcomes=outcomes)
        return state.but(outcomes=state._owed(state.counted))

    def _owed(self, counted: tuple[int, ...]) -> dict[int, Outcome]:
        """The outcomes that some client has yet to hear."""
        needed = {c for c, t in zip(counted, self.heard, strict=True) if c != t}
        return {t: o for t, o in self.outcomes.items() if t in needed}

    # -- on disk -------------------------------------------------------------------------------------------------------
    def arrays(self) -> dict[str, Any]:
        """The vectors, for a file."""
        arrays: dict[str, Any] = {f"server.{k}": v for k, v in self.vectors.items()}
        for t, o in self.outcomes.items():
            arrays |= {f"outcome.{t}.{k}": v for k, v in enumerate(o.vectors)}
        arrays |= {k: np.array(vars(self)[k], dtype=np.int64) for k in _PER_CLIENT}
        arrays |= {k: np.frombuffer(b"".join(vars(self)[k]), dtype="<u8") for k in _DIGESTS}
        return arrays

    def meta(self) -> dict[str, Any]:
        """The rest, for a file."""
        plain = {k: vars(self)[k] for k in _PLAIN}
        floats = {k: repr(vars(self)[k]) for k in _FLOATS}
        return plain | floats | {
            "run": self.run.hex(),
            "sizes": {half: repr(size) for half, size in self.sizes.items()},
            "settles": {str(t): f"{len(o.vectors)} {o.settle}" for t, o in self.outcomes.items()},
            "lost": {str(i): 1 for i in sorted(self.lost)},
            "counts": asdict(self.counts),
            "notes": {str(k): t for k, t in enumerate(self.notes)},
        }  # fmt: skip

    @staticmethod
    def of(arrays: Mapping[str, Any], meta: Mapping[str, Any]) -> ServerState:
        """Rebuild from ``arrays`` and ``meta``, with nothing under way."""
        outcomes = {}
        for t, text in meta["settles"].items():
            count, _, settle = text.partition(" ")
            outcomes[int(t)] = Outcome(settle, tuple(arrays[f"outcome.{t}.{k}"] for k in range(int(count))))
        per_client: Any = {k: tuple(int(v) for v in arrays[k]) for k in _PER_CLIENT}
        per_client |= {k: tuple(row.tobytes() for row in arrays[k].astype("<u8").reshape(-1, 4)) for k in _DIGESTS}

        plain: Any = {k: meta.get(k, False) for k in _PLAIN} | {k: float(meta.get(k, math.inf)) for k in _FLOATS}
        return ServerState(
            run=bytes.fromhex(meta["run"]),
            sizes={half: float(size) for half, size in meta.get("sizes", {}).items()},
            vectors={k.removeprefix("server."): v for k, v in arrays.items() if k.startswith("server.")},
            outcomes=outcomes,
            lost=frozenset(int(i) for i in meta["lost"]),
            counts=Counts(**meta["counts"]),
            notes=tuple(meta["notes"][str(k)] for k in range(len(meta["notes"]))),
            **per_client,
            **plain,
        )


_PER_CLIENT = ("counted", "heard", "participated", "last")
_PLAIN = (
    "ticket", "round", "void", "audited", "tried", "measured", "broken", "reached", "over", "failed", "diverged",
    "corrupted", "at_rounding",
)  # fmt: skip
_FLOATS = ("scale", "first_x", "sum_h", "grad_norm", "f", "ceiling")
_DIGESTS = ("digests", "uploads")
