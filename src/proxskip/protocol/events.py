"""The events that the server handles."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Begin:
    """The clients are connected: open the first ticket."""


@dataclass(frozen=True, slots=True)
class Restarted:
    """The server was restored from disk: what was under way is void and will be repeated."""


@dataclass(frozen=True, slots=True)
class Again:
    """Ask again those who have not answered."""


@dataclass(frozen=True, slots=True)
class Deadline:
    """The time for this exchange is up."""

    ticket: int
    exchange: int


@dataclass(frozen=True, slots=True)
class Arrived:
    """Bytes came from a client; ``sender`` is the transport's word."""

    raw: bytes
    sender: int


Event = Begin | Restarted | Again | Deadline | Arrived
