"""What ``run``, ``minimize``, ``train`` and federations return, and how they may end."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from proxskip.results.trace import Trace, sparkline
from proxskip.support import display
from proxskip.types import Array, Indices, InputError, Vectors

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from proxskip.problems.information import Information
    from proxskip.results.inference import Inference


class Status(IntEnum):
    """How a run or a minimization ended; 0 is success, as in scipy.

    LIMIT: a limit was reached, such as ``rounds`` or ``seconds``. INEXACT: a user's gradient or prox does not belong to
    its value, an inner solver misses its tolerance, or a likelihood grows for ever and has no maximum. Only ``run``
    ends as INTERRUPTED or CORRUPTED. PRECISION: the tolerance is below what rounding allows; the message says which
    accuracy is reached. CORRUPTED: the control variates do not add up, so an update was lost, applied twice or changed.
    STOPPED: a callback stopped it. STALLED: no progress any more; over a simulated network also that too few clients
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

    def __str__(self) -> str:
        return f"Status.{self.name}"

    def __format__(self, spec: str) -> str:
        return format(int(self), spec) if spec else str(self)


class Summary(dict[str, Any]):
    """The content of summary.json; prints as two columns."""

    @property
    def settings(self) -> dict[str, Any]:
        """What was chosen: two runs with the same settings differ in their seed alone."""
        return {name: self[name] for name in self["settings"]}

    def __str__(self) -> str:
        # what does not apply is left out of the print, not out of the file
        shown = {k: v for k, v in self.items() if v is not None and not isinstance(v, dict) and k != "settings"}
        width = max(map(len, shown))
        texts = {k: f"{v:.6g}" if isinstance(v, float) else str(v) for k, v in shown.items()}
        return "\n".join(f"{k:<{width}}  {v}" for k, v in texts.items())


class Result(display.Described):
    """What ``run``, ``minimize`` and ``train`` return: an answer, how it was reached, and at what cost.

    A subclass is a frozen dataclass with the fields below, as fields or properties, and fields of its own. It sets
    ``axes``, and may extend ``rows``, the lines of its repr. It has to give ``eq=False`` and ``repr=False`` to
    ``dataclass``: arrays have no truth value, and the repr is this one.

    Args:
        x: the answer.
        status: how it ended.
        message: how it ended, in a sentence.
        trace: what was recorded, as columns.
        summary: the setting, the end and its costs by name; print it to read it.
        warnings: sentences about doubts.
    """

    axes: ClassVar[tuple[str, str]] = ("rounds", "gap")
    """What ``plot`` draws, and the column of a sparkline."""

    x: Array
    status: Status
    message: str
    trace: Trace
    warnings: tuple[str, ...]

    if TYPE_CHECKING:  # a field of some subclasses, and a property of others

        @property
        def summary(self) -> Summary: ...

    @property
    def success(self) -> bool:
        """Whether a tolerance was given and holds at x."""
        return self.status is Status.CONVERGED

    def plot(self, x: str | None = None, y: str | None = None, ax: Axes | None = None) -> Axes:
        """Draw one column of the trace against another, as ``proxskip.plot`` does.

        Args:
            x, y: as in ``proxskip.plot``; by default what is most telling of such a result.
            ax: axes to draw on; new ones if not given.
        """
        from proxskip.report.plotting import plot  # it is above this module, since it reads run folders too

        return plot(self, x or self.axes[0], y or self.axes[1], ax)

    def rows(self) -> list[tuple[str, str]]:
        """The lines of the repr: a name and a text each."""
        rows = [("x", np.array2string(self.x, precision=4, threshold=6, edgeitems=3))]
        return rows + [("warning", note) for note in self.warnings[:3]]

    def _described(self) -> tuple[str, list[tuple[str, str]]]:
        return f"{type(self).__name__}: {self.status.name}, {self.message}", self.rows()

    def _picture(self) -> str:
        return sparkline(self.trace, self.axes[1], "grad_norm")


@dataclass(frozen=True, eq=False, repr=False)
class RunResult(Result):
    """What ``run`` returns: the last communicated x, how the run ended, its trace and its summary.

    ``success`` is true only if a tolerance was set and holds at this x.

    Args:
        x: the last communicated point.
        status: how the run ended.
        message: how the run ended, in a sentence.
        trace: what was recorded, as columns.
        h: the control variates, one row per client; None for methods without.
        server, memory: the vectors of the server, and of each client.
        participation: in how many rounds each client took part.
        summary: all of summary.json: parameters, constants, costs and the end state; print it to read it.
        warnings: sentences about the run, such as that no theorem covers it.
        information: of a federation that was loaded, what its clients said of their Hessians, if they were asked.
    """

    x: Array
    status: Status
    message: str
    trace: Trace
    h: Array | None
    server: Vectors
    memory: Vectors
    participation: Indices
    summary: Summary = field(default_factory=Summary)
    warnings: tuple[str, ...] = ()
    information: Information | None = None

    @property
    def rounds(self) -> int:
        """Communication rounds done."""
        return int(self.summary["rounds"])

    def inference(
        self, problem: Any = None, *, level: float = 0.95, robust: bool = False, penalized: bool = False
    ) -> Inference:
        """The coefficients' standard errors, p-values and intervals: those of a fit to the rows of all clients.

        It takes one more exchange, in which each client sends its Hessian.

        Args:
            problem: the problem that was run; its clients are Logistic, LeastSquares, Poisson or Cox, weighted by rows.
                A federation with ``inference=True`` that was loaded needs none.
            level: of the intervals.
            robust: take the errors from how the clients differ, with their scores in a sandwich between two inverse
                Hessians; needs more clients than coefficients.
            penalized: with l2 > 0, take the penalty for a normal prior; refused otherwise.
        """
        from proxskip.results import inference  # only where it is asked for

        if problem is not None:
            return inference.inference(problem, self.x, level=level, robust=robust, penalized=penalized)
        if self.information is None:
            raise InputError("the rows are not in the result; pass the problem that was run.")
        loss, clients = str(self.summary["loss"]), int(self.summary["clients"])
        return inference.of(self.information, loss, clients, None, level=level, robust=robust, penalized=penalized)

    def rows(self) -> list[tuple[str, str]]:
        from proxskip.results import run_text  # it names methods and codecs, which a worker has no use for

        rows = [("method", str(self.summary["method"]))]
        if "data" in self.summary:
            rows += run_text.rows(self.summary)
        else:  # a training that was loaded, which has no problem to describe
            rows += run_text.of_training(self.trace.last())
        return rows + super().rows()
