"""From pilots to a plan: slopes and predicted costs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from proxskip import display
from proxskip.registry import METHODS

MIN_SLOPE_POINTS = 8
"""Points that a slope needs."""
TAIL_SHARE = 0.5
"""The last part of a pilot, which gives its slope."""


@dataclass(frozen=True, slots=True)
class PlanRow:
    """One candidate: measured costs, predicted costs, and the worst case of the theory.

    Args:
        name: the method.
        p: its probability of an exchange, if it skips.
        rate: the gradient norm falls by exp(-rate) per iteration at the end of the pilot; inf if the pilot reached eps.
        iterations: predicted iterations to eps.
        calls: predicted exchanges to eps.
        step_seconds: seconds of one iteration.
        call_seconds: seconds of one exchange with its prox.
        seconds: predicted seconds to eps.
        worst_case: iterations by the theorem; nan if there is none.
        pilot: iterations of the pilot.
        reached: the least gradient norm of the pilot.
        cohort: clients per round; None for all.
        codec: the codec of the clients' vectors, if it was chosen.
    """

    name: str
    p: float | None
    rate: float
    iterations: float
    calls: float
    step_seconds: float
    call_seconds: float
    seconds: float
    worst_case: float
    pilot: int
    reached: float
    cohort: int | None = None
    codec: str = ""

    @property
    def label(self) -> str:
        parts = [self.name, *([] if self.p is None else [f"p = {self.p:.3g}"])]
        parts += [] if self.cohort is None else [f"cohorts of {self.cohort}"]
        return ", ".join([*parts, *([self.codec] if self.codec else [])])

    @property
    def skips(self) -> bool:
        return self.p < 1 if self.p is not None else self.calls < 0.9 * self.iterations


@dataclass(frozen=True)
class Plan:
    """The candidates, fastest first; print it for a table. ``best`` is the choice.

    Args:
        rows: the candidates, the fastest first.
        eps: the gradient norm to reach.
        pilot_seconds: what the pilots took.
        notes: advice in sentences.
    """

    rows: tuple[PlanRow, ...]
    eps: float
    pilot_seconds: float
    notes: tuple[str, ...] = ()

    @property
    def best(self) -> PlanRow:
        """The candidate to choose."""
        return self.rows[0]

    @property
    def sentence(self) -> str:
        """The recommendation, with the cost of an exchange and the margin."""
        best = self.best
        # the best that skips if the best does not, and the other way round
        other = next((r for r in self.rows if r.skips is not best.skips), None)
        if not best.seconds:
            return f"The gradient norm is at most {self.eps:g} at the start; nothing has to be run."
        ratio = best.call_seconds / best.step_seconds if best.step_seconds else math.inf
        cost = f"an exchange costs {ratio:.3g} gradients here"
        if other is None or not math.isfinite(best.seconds):
            return f"Take {best.label}; {cost}."
        gain = other.seconds / best.seconds
        if not math.isfinite(gain):
            return f"Take {best.label}; {cost}, and {other.label} made no progress in its pilot."
        skips = "skipping pays" if best.skips else "skipping does not pay"
        return f"Take {best.label}: {cost}, and {skips}: {other.label} would take {gain:.3g} times as long."

    def __repr__(self) -> str:
        lines = display.columns(*self._table())
        title = f"Predicted costs to a gradient norm of {self.eps:g} (worst case: iterations by theory)"
        end = f"The pilots took {self.pilot_seconds:.2g} s."
        return "\n".join([title, *lines, self.sentence, *self.notes, end])

    def _repr_html_(self) -> str:
        return display.table(*self._table(), self.sentence)

    def _table(self) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
        head = ("method", "iterations", "exchanges", "ms/step", "ms/exchange", "seconds", "worst case", "pilot")
        cells = [
            (
                r.label, display.count(r.iterations), display.count(r.calls), f"{1e3 * r.step_seconds:.3g}",
                f"{1e3 * r.call_seconds:.3g}", f"{r.seconds:.3g}" if math.isfinite(r.seconds) else "never",
                display.count(r.worst_case), f"{r.pilot}: {r.reached:.1e}",
            )
            for r in self.rows
        ]  # fmt: skip
        return head, cells


def together(rows: Sequence[PlanRow]) -> list[PlanRow]:
    """Correct the predictions of skipping methods: a smaller p needs at least the iterations of a larger one."""
    corrected = []
    for row in rows:
        base = METHODS[row.name].about.at_p_one if row.name in METHODS else ""
        kin = [r for r in rows if base and (r.name == base or (r.name == row.name and (r.p or 1.0) > (row.p or 1.0)))]
        # a cohort needs more iterations than all clients
        kin = [r for r in kin if r.cohort in (None, row.cohort)]
        least = max((r.iterations for r in kin if math.isfinite(r.iterations)), default=0.0)
        if row.p is None or row.reached <= 0 or least <= row.iterations or row.rate == math.inf:
            corrected.append(row)
            continue
        calls = row.calls * least / max(row.iterations, 1.0)
        seconds = least * row.step_seconds + calls * row.call_seconds
        corrected.append(replace(row, iterations=least, calls=calls, seconds=seconds))
    return corrected


def predict(
    name: str,
    p: float | None,
    curve: Sequence[tuple[int, float]],
    eps: float,
    *,
    done: int,
    hopeless: bool,
    step: float,
    call: float,
    share: float,
    worst_case: float,
) -> PlanRow:
    """A candidate's row, from the curve of its pilot, the seconds of a step and a call, and the calls per step."""
    reached = min((b for _, b in curve if math.isfinite(b)), default=math.inf)
    rate, level = slope(curve)
    if reached <= eps:  # the pilot got there: nothing is extrapolated
        needed, rate = float(next(k for k, b in curve if b <= eps)), math.inf
    elif hopeless or rate <= 0:
        needed, rate = math.inf, 0.0
    else:
        needed = done + math.log(max(level, eps) / eps) / rate
    calls = share * needed + 1
    return PlanRow(name, p, rate, needed, calls, step, call, needed * step + calls * call, worst_case, done, reached)


def slope(curve: Sequence[tuple[int, float]]) -> tuple[float, float]:
    """The fall of log(gradient norm) per iteration over the tail of a curve, and the level at its end.

    The median slope between pairs of distant points (Theil and Sen); over the whole curve if the tail does not fall.
    """
    points = [(k, math.log(b)) for k, b in curve if math.isfinite(b) and b > 0]
    if len(points) < 3:
        return 0.0, curve[-1][1] if curve else math.inf
    from_here = points[-1][0] * (1 - TAIL_SHARE)
    tail = [q for q in points if q[0] >= from_here]
    fall, level = _theil_sen(tail if len(tail) >= MIN_SLOPE_POINTS else points[-MIN_SLOPE_POINTS:])
    return (fall, level) if fall > 0 else _theil_sen(points)


def _theil_sen(points: Sequence[tuple[int, float]]) -> tuple[float, float]:
    points = points[:: max(1, len(points) // 60)]  # at most about 120 points: all pairs are compared
    k, v = (np.array(c, dtype=np.float64) for c in zip(*points, strict=True))
    i, j = np.triu_indices(len(k), 1)
    apart = (k[j] - k[i]) >= 0.25 * (k[-1] - k[0])
    i, j = i[apart], j[apart]
    fall = float(np.median((v[i] - v[j]) / (k[j] - k[i])))
    # the median of all points, extrapolated to the end of the curve
    level = float(np.exp(np.median(v + fall * (k - k[-1]))))
    return max(fall, 0.0), level
