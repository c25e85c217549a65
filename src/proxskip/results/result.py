"""What ``run`` returns, and how a run may end."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

import numpy as np

from proxskip import display
from proxskip.results import fields
from proxskip.results.trace import Trace
from proxskip.types import Array, Indices, Vectors


class _MaxRounds:
    """The old name of LIMIT, until 0.4."""

    def __get__(self, status: Any, kind: Any) -> Any:
        warnings.warn(
            "Status.MAX_ROUNDS is Status.LIMIT now; the old name goes in 0.4.", DeprecationWarning, stacklevel=2
        )
        return kind.LIMIT


class Status(IntEnum):
    """How a run or a minimization ended; 0 is success, as in scipy.

    LIMIT: a limit was reached, such as ``rounds`` or ``seconds``. Only ``minimize`` ends as INEXACT, and only ``run``
    as INTERRUPTED or CORRUPTED. PRECISION: the tolerance is below what rounding allows; the message says which accuracy
    is reached. CORRUPTED: the control variates do not add up, so an update was lost, applied twice or changed. STOPPED:
    a callback stopped it. STALLED: no progress any more; over a simulated network also that too few clients
    answered, again and again.
    """

    CONVERGED = 0
    LIMIT = 1
    DIVERGED = 2
    STALLED = 3
    INEXACT = 4
    INTERRUPTED = 5
    PRECISION = 6
    CORRUPTED = 7
    STOPPED = 8
    MAX_ROUNDS = _MaxRounds()

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
        texts = {k: f"{v:.6g}" if isinstance(v, float) else str(v) for k, v in shown.items()}
        return "\n".join(f"{k:<{width}}  {v}" for k, v in texts.items())


@dataclass(frozen=True, eq=False)  # arrays have no truth value
class Result:
    """The last communicated x, how the run ended, its trace and its summary.

    ``success`` is true only if a tolerance was set and holds at this x.

    Args:
        x: the last communicated point.
        status: how the run ended.
        success: whether a tolerance was given and holds at x.
        message: how the run ended, in a sentence.
        trace: what was recorded, as columns.
        h: the control variates, one row per client; None for methods without.
        server, memory: the vectors of the server, and of each client.
        participation: in how many rounds each client took part.
        warnings: sentences about the run, such as that no theorem covers it.
        about: the summary.
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

    def __repr__(self) -> str:
        return display.text(*self._described())

    def _repr_html_(self) -> str:
        # f - f* over the records; the gradient norm where f* is unknown
        names = (("gap", "f - f*"), ("grad_norm", "gradient norm"))
        curves = (display.sparkline(self.trace[y], name) for y, name in names if y in self.trace)
        return display.html(*self._described(), next(filter(None, curves), ""))

    def _described(self) -> tuple[str, list[tuple[str, str]]]:
        from proxskip.results import run_text  # here, since a worker has no use for it

        rows = [("method", str(self.about["method"]))] if self.about else []
        rows += run_text.rows(self.about) if "data" in self.about else []  # a training has no problem to describe
        rows.append(("x", np.array2string(self.x, precision=4, threshold=6, edgeitems=3)))
        rows += [("warning", note) for note in self.warnings[:3]]
        return f"Result: {self.status.name}, {self.message}", rows

    def summary(self) -> Summary:
        """All of summary.json: parameters, constants, costs and the end state; print it to read it."""
        return self.about

    @property
    def rounds(self) -> int:
        """Communication rounds done."""
        return int(self.about["rounds"])


class Results(list[Result]):
    """A list of results that prints as a table; the seeds of a method follow each other.

    Args:
        iterable: the results.
    """

    def __repr__(self) -> str:
        return "\n".join([f"{len(self)} results", *display.columns(*self._table())])

    def _repr_html_(self) -> str:
        return display.table(*self._table(), f"{len(self)} results")

    def _table(self) -> tuple[list[str], list[list[str]]]:
        head, rows = fields.table([(str(r.about["method"]), [r.about]) for r in self])
        seeds = [str(r.about["seed"]) for r in self]
        return ["method", "seed", *head[1:]], [[row[0], seed, *row[1:]] for row, seed in zip(rows, seeds, strict=True)]
