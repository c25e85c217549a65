"""What a run gives back."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from proxskip.results.trace import Trace
from proxskip.types import Array, Indices, Vectors


class Status(Enum):
    """How a run ended."""

    CONVERGED = "converged"
    MAX_ROUNDS = "max-rounds"
    DIVERGED = "diverged"
    STALLED = "stalled"
    INTERRUPTED = "interrupted"


class Summary(dict[str, Any]):
    """The content of summary.json; prints as two columns."""

    def __str__(self) -> str:
        shown = {k: v for k, v in self.items() if v is not None and not isinstance(v, dict)}
        width = max(map(len, shown))
        return "\n".join(f"{k:<{width}}  {_text(v)}" for k, v in shown.items())


@dataclass(frozen=True)
class Result:
    """The last communicated x, and everything that is known about how it came about.

    ``success`` is true only if a tolerance was asked for and holds at this x.
    """

    x: Array
    status: Status
    success: bool
    message: str
    trace: Trace
    h: Array | None
    server: Vectors = field(repr=False)
    memory: Vectors = field(repr=False)
    participation: Indices = field(repr=False)
    warnings: tuple[str, ...] = ()
    about: Summary = field(default_factory=Summary, repr=False)

    def summary(self) -> Summary:
        """All of summary.json: parameters, constants, costs and the end state; print it to read it."""
        return self.about

    @property
    def rounds(self) -> int:
        """Communication rounds done."""
        return int(self.about["rounds"])


def _text(v: Any) -> str:
    return f"{v:.6g}" if isinstance(v, float) else str(v)
