"""Which method and which p: short pilots of each candidate, and the seconds of a gradient, a prox and an exchange.

In the worst case p = 1/sqrt(kappa) is optimal whatever a prox costs, and ProxSkip is never better than FISTA. So the
theory is shown beside the plan and does not decide. What decides is measured on the problem itself: every candidate
runs for a few hundred gradients; the slope of its certificate over the last part of the pilot and the measured seconds
of one gradient and of one prox predict the time to eps. The first part of a run is mostly faster than the rest, so a
short pilot is too optimistic: the candidate that looks best runs on, each time twice as far, until one that has run
40 % of its predicted iterations still looks best.
"""

from __future__ import annotations

import math
import warnings
from typing import Any

import numpy as np

from proxskip import theory
from proxskip.links.network import Network
from proxskip.planning.forecast import (
    MIN_PILOT_SHARE,
    MIN_SLOPE_POINTS,
    PILOT_GRADIENTS,
    Plan,
    PlanRow,
    predict,
    race,
    settle,
    together,
)
from proxskip.planning.pilots import advice, client_pilots
from proxskip.problems.federated import Problem
from proxskip.prox import inner_state
from proxskip.solo.descent import Descent, Task
from proxskip.solo.setup import method_maker, prepare
from proxskip.types import Array, InputError, UnsafeStepWarning

MIN_SETTLING = 1.0
"""Seconds that a pilot may always take; after the race it goes on for no longer than this, or than the race took."""
FINISH_FACTORS = 1.5, 4.0
"""Candidates within this factor of the best predicted time go on to the end; the second where clients may be away, so
that some more rounds may take many more hours."""
NO_MU = "mu is unknown, so the pilots cannot be compared with a theorem."


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
    pilot: int = PILOT_GRADIENTS,
    worth: float = MIN_PILOT_SHARE,
    costs: tuple[float, float] | None = None,
    network: Any = None,
    threads: int | None = None,
) -> Plan:
    """Measure, run pilots, and predict which method and p reach a certificate of eps first.

    Args:
        f, psi, x0, D, L, mu, D_norm: as in ``minimize``; or f a Problem with clients, and ``network`` a Network.
        pilot: gradients of a first pilot.
        worth: the share of its predicted iterations that a candidate's pilot must have run before it is chosen.
        costs: seconds of one gradient and of one prox on another machine, in place of those measured here.

    >>> from proxskip.problems.quadratic import Quadratic
    >>> from proxskip.prox import L1
    >>> found = plan(Quadratic(np.geomspace(0.01, 1, 8), np.ones(8)), L1(0.1), eps=1e-4)
    >>> found.best.seconds <= found.rows[-1].seconds
    True
    """
    eps = theory.positive("eps", eps)
    pilot, seed, worth = theory.whole("pilot", pilot), theory.whole_seed(seed), theory.probability("worth", worth)
    if costs is not None:
        gradient, call = costs
        costs = theory.positive("the seconds of a gradient", gradient), theory.nonnegative("those of a prox", call)
    if isinstance(f, Problem):
        if any(v is not None for v in (psi, x0, D, L, mu, D_norm)):
            raise InputError("a Problem has its own psi, D, L and mu; give plan the problem and the network alone.")
        return _federated(f, network, eps, seed, pilot, worth, threads)
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
    pilot: int = PILOT_GRADIENTS,
    worth: float = MIN_PILOT_SHARE,
    costs: tuple[float, float] | None = None,
    threads: int | None = None,
) -> Plan:
    """The plan for one function; its ``run`` is the winner's pilot, to go on from."""
    candidates = _candidates(task)
    inner = inner_state(task.psi)
    asked = None if inner is None else inner.tolerance
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore", UnsafeStepWarning)
        how: dict[str, Any] = {"seed": seed, "threads": threads}
        pilots = [FunctionPilot(task, x0, name, p, eps, costs, **how) for name, p in candidates]
        race(pilots, eps, pilot, worth)
    rows = together([one.row(eps) for one in pilots])
    pairs = sorted(zip(rows, pilots, strict=True), key=lambda pair: pair[0].seconds)
    winner, notes = pairs[0][1], () if task.f.mu is not None else (NO_MU,)
    if asked is not None:  # later pilots saw the tolerance that earlier ones had set, not the caller's
        winner.run.asked = asked
    for _, one in pairs[1:]:
        one.run.close()
    others = [one for one in pilots if one is not winner]
    spent, gradients = sum(one.spent for one in others), sum(one.run.client.calls for one in others)
    proxes = sum(one.run.solo.proxes for one in others)
    return Plan(tuple(row for row, _ in pairs), eps, "prox", spent, notes, gradients, proxes, winner.run)


def _candidates(task: Task) -> list[tuple[str, float | None]]:
    """Methods, and for those that skip several p, mostly above the theorem's: f may be better than its mu says."""
    if task.f.mu is not None and task.f.L is not None:
        best = theory.best_p(1.0 / task.f.L, task.f.mu)
        grid = sorted({min(1.0, s * best) for s in (1 / 3, 1.0, 3.0, 10.0)}, reverse=True)
    else:
        grid = [0.3, 0.1, 0.03, 0.01]
    grid = [p for p in grid if p < 0.9]
    if task.D is not None:
        return [("papc", None), ("pdhg", None), *(("splitskip", p) for p in grid)]
    plain: list[tuple[str, float | None]] = [("proxgd", None), ("fista-restart", None)]
    if task.f.mu is not None:
        plain.append(("fista", None))
    return [*plain, *(("proxskip", p) for p in grid)]


def _federated(
    problem: Problem, network: Network | None, eps: float, seed: int, pilot: int, worth: float, threads: int | None
) -> Plan:
    """The plan for clients: the same race, with exchanges over the network in the place of proxes."""
    pilots = client_pilots(problem, network, eps, seed, threads)
    race(pilots, eps, pilot, worth)
    spent = sum(one.spent for one in pilots)
    for one in pilots:
        # the beginning of 5gcs is faster than the rest, which a short pilot does not show
        settle(one, eps, worth, max(MIN_SETTLING, spent if one.name == "5gcs" else spent / len(pilots)))
    rows = together([one.row(eps) for one in pilots])
    near = FINISH_FACTORS[not pilots[0].network.reliable] * min(row.seconds for row in rows)
    for one, row in zip(pilots, rows, strict=True):
        if row.seconds <= near:
            settle(one, eps, 1.0, max(MIN_SETTLING, spent))
    rows = sorted(together([one.row(eps) for one in pilots]), key=lambda row: row.seconds)
    notes = advice(problem) if problem.mu is not None else (NO_MU,)
    if drawn := [row.cohort for row in rows if row.cohort is not None]:
        first = max(one.curve[0][1] for one in pilots)
        notes += (theory.cohort_sentence(problem.n, min(drawn), min(0.5, (eps / first) ** 2)),)
    return Plan(tuple(rows), eps, "exchange", sum(one.spent for one in pilots), notes)


class FunctionPilot:
    """A pilot of one function: a minimization under way, with the seconds of its steps and proxes."""

    def __init__(
        self,
        task: Task,
        x0: Array,
        name: str,
        p: float | None,
        eps: float,
        costs: tuple[float, float] | None,
        **how: Any,
    ) -> None:
        self.name, self.p, self.eps, self.costs = name, p, eps, costs
        self.run = Descent(task, method_maker(name, p=p), x0, tol=eps, **how)
        self.run.solo.prox_times = []
        self.curve: list[tuple[int, float]] = []
        self.steps: list[float] = []
        self.zeta: tuple[Any, float | None] | None = None

    def extend(self, iterations: int) -> None:
        """Run to this many iterations and enough points for a slope, unless the pilot is done."""
        run = self.run
        times = run.solo.prox_times
        assert times is not None
        while (run.solo.iterations < iterations or len(self.curve) < MIN_SLOPE_POINTS) and not self.done:
            then, before, calls = run.seconds, run.solo.iterations, len(times)
            known = run.advance()
            done = run.solo.iterations - before
            if done:  # a step is what remains of a round without its proxes
                self.steps.append((run.seconds - then - sum(times[calls:])) / done)
            if known:
                self.curve.append((run.solo.iterations, run.bound))

    @property
    def done(self) -> bool:
        """Whether the pilot converged or failed."""
        return self.run.best.bound <= self.eps or self.run.diverged or self.run.stalled

    @property
    def spent(self) -> float:
        """Seconds so far."""
        return self.run.seconds

    def _measured(self) -> tuple[float, float]:
        """Median seconds of a step, and of a prox over the second half of the pilot (its cost depends on x)."""
        proxes = self.run.solo.prox_times or [0.0]
        return float(np.median(self.steps or [math.nan])), float(np.median(proxes[len(proxes) // 2 :]))

    def row(self, eps: float) -> PlanRow:
        """The prediction."""
        run = self.run
        step, call = self.costs or self._measured()
        done = run.solo.iterations
        if self.zeta is None or self.zeta[0] is not run.method:  # an eigenvalue problem for some methods
            self.zeta = run.method, run.method.zeta(run.problem) if run.problem.mu is not None else None
        zeta = self.zeta[1]
        start = self.curve[0][1] if self.curve else math.nan
        return predict(
            self.name,
            self.p,
            self.curve,
            eps,
            done=done,
            hopeless=run.diverged or run.stalled,
            step=step,
            call=call,
            share=self.p if self.p is not None else run.solo.proxes / max(done, 1),
            worst_case=2 * math.log(max(start / eps, 1.0)) / zeta if zeta else math.nan,
        )
