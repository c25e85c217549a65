"""What can happen to the server."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Begin:
    """The clients are there: open the first ticket."""


@dataclass(frozen=True, slots=True)
class Restarted:
    """The server was restored from disk: what was under way is void, and a new ticket does it again."""


@dataclass(frozen=True, slots=True)
class Again:
    """Ask those once more who have not answered."""


@dataclass(frozen=True, slots=True)
class Deadline:
    """The time of this exchange is over."""

    ticket: int
    exchange: int


@dataclass(frozen=True, slots=True)
class Arrived:
    """Bytes came from a client; ``sender`` is who the transport says it is."""

    raw: bytes
    sender: int


Event = Begin | Restarted | Again | Deadline | Arrived
