"""What ``run`` returns, and how a run may end."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

from proxskip.results.trace import Trace
from proxskip.types import Array, Indices, Vectors


class Status(IntEnum):
    """How a run or a minimization ended; 0 is success, as in scipy.

    MAX_ROUNDS and LIMIT are one status: a limit was reached. Summaries of runs write it as MAX_ROUNDS. Only
    ``minimize`` ends as INEXACT, and only ``run`` as INTERRUPTED or CORRUPTED. PRECISION: the tolerance is below what
    rounding allows; the message says which accuracy is reached. CORRUPTED: the control variates do not add up, so an
    update was lost, applied twice or changed.
    """

    CONVERGED = 0
    MAX_ROUNDS = 1
    LIMIT = 1
    DIVERGED = 2
    STALLED = 3
    INEXACT = 4
    INTERRUPTED = 5
    PRECISION = 6
    CORRUPTED = 7

    def __str__(self) -> str:
        return f"Status.{self.name}"

    def __format__(self, spec: str) -> str:
        return format(int(self), spec) if spec else str(self)


class Summary(dict[str, Any]):
    """The content of summary.json; prints as two columns."""

    def __str__(self) -> str:
        # what does not apply is left out of the print, not out of the file
        shown = {k: v for k, v in self.items() if v is not None and not isinstance(v, dict)}
        width = max(map(len, shown))
        return "\n".join(f"{k:<{width}}  {_text(v)}" for k, v in shown.items())


@dataclass(frozen=True)
class Result:
    """The last communicated x, how the run ended, its trace and its summary.

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
