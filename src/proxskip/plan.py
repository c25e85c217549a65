"""Which method and which p: short pilots of each candidate, and the seconds of a gradient, a prox and an exchange.

Worst-case theory makes p = 1/sqrt(kappa) optimal whatever things cost, and never prefers ProxSkip to FISTA. So it is
shown beside the plan and does not decide. What decides is measured on the problem itself: every candidate runs for a
few hundred gradients; the slope of its certificate over the last part of the pilot, with the measured seconds of one
gradient and of one prox at the step it is called with, predicts the time to eps. The first part of a run is mostly
faster than the rest, so a short pilot promises too much: whichever candidate looks best runs on, each time twice as far,
until one that has gone a quarter of its predicted way still looks best.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from proxskip import theory
from proxskip.descent import Descent, Task
from proxskip.problems.federated import Problem
from proxskip.prox import inner_state
from proxskip.recipes import prepare, recipe
from proxskip.seam import Array, InputError, UnsafeStepWarning

PILOT = 300
"""Gradients of a first pilot, unless p is so small that it holds fewer than a dozen proxes."""
WORTH = 0.25
"""The part of its predicted iterations that a candidate must have gone before its prediction is believed."""
CLOSE = 1.5
"""Candidates predicted to take at most so many times longer than the best must have gone that far too."""
FEW = 8
"""Points from which a slope is read at least; a first pilot of a method that skips holds so many proxes."""
LEAST = 20
"""Iterations of the shortest pilot."""
RUNGS = 14
TAIL = 0.5
"""The part of a pilot from which its slope is read."""


@dataclass(frozen=True, slots=True)
class Row:
    """One candidate: what was measured, what is predicted, what the worst case says.

    Args:
        name, p: the method, and the probability of a prox (or an exchange) where it skips.
        rate: the certificate falls by exp(-rate) an iteration, at the end of the pilot.
        iterations, calls: predicted iterations, and proxes or exchanges, to eps.
        step_seconds, call_seconds: of one iteration without its prox, and of one prox or exchange.
        seconds: predicted.
        worst_case: iterations by the theorem; nan where there is none.
        pilot: iterations of the pilot; ``reached`` is its last certificate.
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

    @property
    def label(self) -> str:
        """The method with its p."""
        return self.name if self.p is None else f"{self.name}, p = {self.p:.3g}"


@dataclass(frozen=True)
class Plan:
    """The candidates, the fastest first; print it for a table. ``best`` is the choice."""

    rows: tuple[Row, ...]
    eps: float
    call: str
    pilot_seconds: float
    notes: tuple[str, ...] = ()
    ngrad: int = 0
    nprox: int = 0
    run: Any = field(default=None, repr=False, compare=False)

    @property
    def best(self) -> Row:
        """The candidate with the least predicted time."""
        return self.rows[0]

    @property
    def sentence(self) -> str:
        """Which wins, by how much, and over what."""
        best, other = self.best, self._other()
        ratio = best.call_seconds / best.step_seconds if best.step_seconds else math.inf
        cost = f"a {self.call} costs {ratio:.3g} gradients here"
        if other is None or not math.isfinite(best.seconds):
            return f"Take {best.label}; {cost}."
        gain = other.seconds / best.seconds
        if not math.isfinite(gain):
            return f"Take {best.label}; {cost}, and {other.label} did not get anywhere in its pilot."
        skips = "skipping pays" if best.p is not None and best.p < 1 else "skipping does not pay"
        return f"Take {best.label}: {cost}, and {skips}: {other.label} would take {gain:.3g} times as long."

    def _other(self) -> Row | None:
        """The best of the other kind: one that skips against one that does not."""
        skips = self.best.p is not None and self.best.p < 1
        others = [r for r in self.rows if (r.p is not None and r.p < 1) is not skips]
        return others[0] if others else None

    def __str__(self) -> str:
        head = ("method", "iterations", f"{self.call}{'es' if self.call == 'prox' else 's'}", "ms a step", f"ms a {self.call}", "seconds", "worst case", "pilot")
        cells = [
            (
                r.label, _count(r.iterations), _count(r.calls), f"{1e3 * r.step_seconds:.3g}",
                f"{1e3 * r.call_seconds:.3g}", _seconds(r.seconds), _count(r.worst_case), f"{r.pilot}: {r.reached:.1e}",
            )
            for r in self.rows
        ]  # fmt: skip
        widths = [max(len(row[k]) for row in (head, *cells)) for k in range(len(head))]

        def line(row: Sequence[str]) -> str:
            first, *rest = (c.ljust(w) if k == 0 else c.rjust(w) for k, (c, w) in enumerate(zip(row, widths, strict=True)))
            return "  ".join([first, *rest])

        title = f"Predicted costs to a certificate of {self.eps:g} (worst case: iterations by theory; pilot: how far)"
        end = f"The pilots took {self.pilot_seconds:.2g} s."
        return "\n".join([title, line(head), *map(line, cells), self.sentence, *self.notes, end])


class Pilot(Protocol):
    """A candidate under way."""

    name: str
    p: float | None

    def extend(self, iterations: int) -> None: ...
    @property
    def done(self) -> bool: ...
    @property
    def spent(self) -> float: ...
    def row(self, eps: float) -> Row: ...


def plan(
    f: Any,
    psi: Any = None,
    x0: Any = None,
    *,
    eps: float = 1e-6,
    D: Any = None,
    L: float | None = None,
    mu: float | None = None,
    D_norm: float | None = None,
    seed: int = 0,
    pilot: int = PILOT,
    worth: float = WORTH,
    costs: tuple[float, float] | None = None,
    network: Any = None,
    threads: int | None = None,
) -> Plan:
    """Measure, run pilots, and predict which method and p reach a certificate of eps first.

    Args:
        f, psi, x0, D, L, mu, D_norm: as in ``minimize``; or f a Problem with clients, and ``network`` a Network.
        pilot: gradients of a first pilot.
        worth: the part of its predicted iterations that a candidate must have gone before it is chosen.
        costs: seconds of one gradient and of one prox where they are to be used, in place of those measured here.

    >>> from proxskip.problems.quadratic import Quadratic
    >>> from proxskip.prox import L1
    >>> found = plan(Quadratic(np.geomspace(0.01, 1, 8), np.ones(8)), L1(0.1), eps=1e-4)
    >>> found.best.seconds <= found.rows[-1].seconds
    True
    """
    eps = theory.positive("eps", eps)
    pilot = theory.whole("pilot", pilot)
    if isinstance(f, Problem):
        if any(v is not None for v in (psi, x0, D, L, mu, D_norm)):
            raise InputError("a Problem has its own psi, D, L and mu; give plan the problem and the network alone.")
        from proxskip.pilots import federated_plan

        return federated_plan(f, network, eps=eps, seed=seed, pilot=pilot, worth=worth, threads=threads)
    if network is not None:
        raise InputError("a network is for a Problem with clients; make one with split.")
    task, start = prepare(f, psi, x0, "auto", D=D, L=L, mu=mu, D_norm=D_norm, batch=None, eps=None, p=None)
    made = plan_task(task, start, eps=eps, seed=seed, pilot=pilot, worth=worth, costs=costs, threads=threads)
    made.run.close()
    return made


def plan_task(
    task: Task,
    x0: Array,
    *,
    eps: float,
    seed: int,
    pilot: int = PILOT,
    worth: float = WORTH,
    costs: tuple[float, float] | None = None,
    threads: int | None = None,
) -> Plan:
    """The plan for one function; its ``run`` is the winner's pilot, to go on from."""
    candidates = _candidates(task)
    inner = inner_state(task.psi)
    asked = None if inner is None else inner.tolerance
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore", UnsafeStepWarning)
        pilots = [Lone(task, x0, name, p, eps, seed, threads, costs) for name, p in candidates]
        race(pilots, eps, pilot, worth)
    pairs = sorted(((one.row(eps), one) for one in pilots), key=lambda pair: pair[0].seconds)
    winner = pairs[0][1]
    if asked is not None:
        winner.run.asked = asked
    for _, one in pairs[1:]:
        one.run.close()
    others = [one for one in pilots if one is not winner]
    return Plan(
        tuple(row for row, _ in pairs),
        eps,
        "prox",
        sum(one.spent for one in others),
        () if task.f.mu is not None else ("mu is unknown, so no theorem stands beside the pilots.",),
        sum(one.run.client.calls for one in others),
        sum(one.run.solo.proxes for one in others),
        winner.run,
    )


def _candidates(task: Task) -> list[tuple[str, float | None]]:
    """Methods, and for those that skip some p around the theorem's."""
    if task.f.mu is not None and task.f.L is not None:
        best = theory.best_p(1.0 / task.f.L, task.f.mu)
        grid = sorted({min(1.0, s * best) for s in (1 / 3, 1.0, 3.0)}, reverse=True)
    else:
        grid = [0.3, 0.1, 0.03, 0.01]
    grid = [p for p in grid if p < 0.9]
    if task.D is not None:
        return [("papc", None), ("pdhg", None), *(("splitskip", p) for p in grid)]
    plain: list[tuple[str, float | None]] = [("proxgd", None), ("fista-restart", None)]
    if task.f.mu is not None:
        plain.append(("fista", None))
    return [*plain, *(("proxskip", p) for p in grid)]


def race(pilots: Sequence[Pilot], eps: float, first: int, worth: float) -> None:
    """All a little, at equal cost; then whichever looks best twice as far, until one that has gone far still does."""
    for one in pilots:
        one.extend(LEAST if one.p is None else math.ceil(3 / one.p))
    for one, n in zip(pilots, _first_lengths(pilots, eps, first), strict=True):
        one.extend(n)
    for _ in range(RUNGS * len(pilots)):
        rows = [one.row(eps) for one in pilots]
        best = min(row.seconds for row in rows)
        close = [k for k, row in enumerate(rows) if row.seconds <= CLOSE * best]
        unsure = [k for k in close if not (pilots[k].done or rows[k].pilot >= worth * rows[k].iterations)]
        if not math.isfinite(best):
            unsure = [k for k, one in enumerate(pilots) if not one.done]
        if not unsure:
            return
        k = min(unsure, key=lambda k: rows[k].seconds)
        pilots[k].extend(2 * rows[k].pilot)


def _first_lengths(pilots: Sequence[Pilot], eps: float, first: int) -> list[int]:
    """Iterations of the first pilots: so many as give a skipping one a dozen proxes, the others for the same money."""
    rows = [one.row(eps) for one in pilots]

    def cost(row: Row, n: float) -> float:
        return n * (row.step_seconds + (1.0 if row.p is None else row.p) * row.call_seconds)

    enough = [first if row.p is None else max(first, math.ceil(1.5 * FEW / row.p)) for row in rows]
    skipping = [cost(row, n) for row, n in zip(rows, enough, strict=True) if row.p is not None]
    money = min(skipping, default=math.inf)
    return [
        n if row.p is not None else min(n, max(LEAST, int(money / max(cost(row, 1), 1e-12))))
        for row, n in zip(rows, enough, strict=True)
    ]


class Lone:
    """A pilot of ``minimize``: its run, and the times of its rounds."""

    def __init__(
        self,
        task: Task,
        x0: Array,
        name: str,
        p: float | None,
        eps: float,
        seed: int,
        threads: int | None,
        costs: tuple[float, float] | None,
    ) -> None:
        self.name, self.p, self.eps, self.costs = name, p, eps, costs
        self.run = Descent(task, recipe(name, p=p), x0, seed=seed, tol=eps, threads=threads)
        self.run.solo.prox_times = []
        self.curve: list[tuple[int, float]] = []
        self.steps: list[float] = []

    def extend(self, iterations: int) -> None:
        """On to so many iterations, unless it is done."""
        run = self.run
        times = run.solo.prox_times
        assert times is not None
        while run.solo.iterations < iterations and not self.done:
            then, before, calls = run.seconds, run.solo.iterations, len(times)
            known = run.advance()
            done = run.solo.iterations - before
            if done:
                self.steps.append((run.seconds - then - sum(times[calls:])) / done)
            if known:
                self.curve.append((run.solo.iterations, run.bound))

    @property
    def done(self) -> bool:
        """Converged, or beyond hope."""
        return self.run.best.bound <= self.eps or self.run.diverged or self.run.stalled

    @property
    def spent(self) -> float:
        """Seconds so far."""
        return self.run.seconds

    def _measured(self) -> tuple[float, float]:
        """Medians: of a step, and of a prox over the second half of the pilot."""
        proxes = self.run.solo.prox_times or [0.0]
        return float(np.median(self.steps or [math.nan])), float(np.median(proxes[len(proxes) // 2 :]))

    def row(self, eps: float) -> Row:
        """The prediction."""
        run = self.run
        done, reached = run.solo.iterations, run.best.bound
        rate, level = slope(self.curve)
        if run.diverged or (run.stalled and reached > eps):
            rate = 0.0
        if reached <= eps:
            needed = float(next(k for k, b in self.curve if b <= eps))
        else:
            needed = done + math.log(max(level, eps) / eps) / rate if rate > 0 else math.inf
        step, call = self.costs or self._measured()
        share = self.p if self.p is not None else run.solo.proxes / max(done, 1)
        calls = share * needed + 1
        zeta = run.method.zeta(run.problem) if run.problem.mu is not None else None
        start = self.curve[0][1] if self.curve else math.nan
        worst = 2 * math.log(max(start / eps, 1.0)) / zeta if zeta else math.nan
        return Row(self.name, self.p, rate, needed, calls, step, call, needed * step + calls * call, worst, done, reached)


def slope(curve: Sequence[tuple[int, float]]) -> tuple[float, float]:
    """The fall of log(certificate) an iteration over the tail of a curve, and the level at its end.

    The median of the slopes between pairs of points far apart (Theil and Sen), which a few bad rounds do not move; where
    it does not fall, that over the whole curve.
    """
    points = [(k, math.log(b)) for k, b in curve if math.isfinite(b) and b > 0]
    if len(points) < 3:
        return 0.0, curve[-1][1] if curve else math.inf
    from_here = points[-1][0] * (1 - TAIL)
    tail = [q for q in points if q[0] >= from_here]
    fall, level = _theil_sen(tail if len(tail) >= FEW else points[-FEW:])
    return (fall, level) if fall > 0 else _theil_sen(points)


def _theil_sen(points: Sequence[tuple[int, float]]) -> tuple[float, float]:
    points = points[:: max(1, len(points) // 60)]
    k, v = (np.array(c, dtype=np.float64) for c in zip(*points, strict=True))
    i, j = np.triu_indices(len(k), 1)
    apart = (k[j] - k[i]) >= 0.25 * (k[-1] - k[0])
    i, j = i[apart], j[apart]
    fall = float(np.median((v[i] - v[j]) / (k[j] - k[i])))
    level = float(np.exp(np.median(v + fall * (k - k[-1]))))
    return max(fall, 0.0), level


def _count(v: float) -> str:
    return "-" if not math.isfinite(v) else f"{v:,.0f}"


def _seconds(v: float) -> str:
    return "never" if not math.isfinite(v) else f"{v:.3g}"


