"""Which method and which p for clients behind a network: short pilots, and the seconds of a gradient and an exchange.

The worst case of the theory is shown beside the plan and does not decide. What decides is measured on the problem
itself: every candidate runs for a few hundred gradients; the slope of its gradient norm over the last part of the pilot
and the seconds of one gradient and of one exchange predict the time to eps. The first part of a run is mostly faster
than the rest, so a short pilot is too optimistic: the candidate that looks best runs on, each time twice as far, until
one that has run 40 % of its predicted iterations still looks best.
"""

from __future__ import annotations

from typing import Any

from proxskip import theory
from proxskip.links.network import Network
from proxskip.planning.forecast import Plan, together
from proxskip.planning.pilots import MIN_PILOT_SHARE, PILOT_GRADIENTS, advice, client_pilots, extend_until_sure, race
from proxskip.problems.federated import Problem
from proxskip.types import InputError

MIN_SETTLING = 1.0
"""Seconds that a pilot may always take; after the race it goes on for no longer than this, or than the race took."""
FINISH_FACTORS = 1.5, 4.0
"""Candidates within this factor of the best predicted time go on to the end; the second where clients may be away, so
that some more rounds may take many more hours."""
NO_MU = "mu is unknown, so the pilots cannot be compared with a theorem."


def plan(
    problem: Problem,
    *,
    eps: float = 1e-6,
    network: Network | None = None,
    seed: int = 0,
    pilot: int = PILOT_GRADIENTS,
    worth: float = MIN_PILOT_SHARE,
    threads: int | None = None,
) -> Plan:
    """Measure, run pilots, and predict which method and p reach a gradient norm of eps first over the network.

    Args:
        problem: a problem with clients; for one function, ``minimize`` chooses its method while it runs.
        pilot: gradients of a first pilot.
        worth: the share of its predicted iterations that a candidate's pilot must have run before it is chosen.

    >>> import proxskip as ps
    >>> plan = ps.plan(ps.Problem(ps.random_quadratics(4, 3)), eps=1e-4, network=ps.Network(gradient=1e-3))
    >>> plan.best.seconds <= plan.rows[-1].seconds
    True
    """
    eps = theory.positive("eps", eps)
    pilot, seed, worth = theory.whole("pilot", pilot), theory.whole_seed(seed), theory.probability("worth", worth)
    given: Any = problem
    if not isinstance(given, Problem) or problem.n == 1 or problem.D is not None:
        raise InputError("plan is for clients; for one function use minimize, which chooses its method while it runs.")
    pilots = client_pilots(problem, network, eps, seed, threads)
    race(pilots, eps, pilot, worth)
    spent = sum(one.spent for one in pilots)
    for one in pilots:
        # the beginning of 5gcs is faster than the rest, which a short pilot does not show
        budget = max(MIN_SETTLING, spent if one.name == "5gcs" else spent / len(pilots))
        extend_until_sure(one, eps, worth, budget)
    rows = together([one.row(eps) for one in pilots])
    near = FINISH_FACTORS[not pilots[0].network.reliable] * min(row.seconds for row in rows)
    for one, row in zip(pilots, rows, strict=True):
        if row.seconds <= near:
            extend_until_sure(one, eps, 1.0, max(MIN_SETTLING, spent))
    rows = sorted(together([one.row(eps) for one in pilots]), key=lambda row: row.seconds)
    notes = advice(problem) if problem.mu is not None else (NO_MU,)
    if sizes := [row.cohort for row in rows if row.cohort is not None]:
        first = max(one.curve[0][1] for one in pilots)
        notes += (theory.cohort_sentence(problem.n, min(sizes), min(0.5, (eps / first) ** 2)),)
    return Plan(tuple(rows), eps, sum(one.spent for one in pilots), notes)
