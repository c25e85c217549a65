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
from proxskip.keywords import check_keywords
from proxskip.links.network import Network
from proxskip.planning.forecast import Plan
from proxskip.planning.pilots import PILOT_GRADIENTS, advice, client_pilots, race
from proxskip.problems.federated import Problem
from proxskip.types import InputError

NO_MU = "mu is unknown, so the pilots cannot be compared with a theorem."


@check_keywords
def plan(
    problem: Problem,
    *,
    eps: float = 1e-6,
    network: Network | None = None,
    seed: int = 0,
    pilot: int = PILOT_GRADIENTS,
    threads: int | None = None,
) -> Plan:
    """Measure, run pilots, and predict which method and p reach a gradient norm of eps first over the network.

    Args:
        eps: the gradient norm to reach.
        network: between the server and the clients; without one, exchanges cost nothing but their vectors.
        seed: of the pilots.
        threads: as in ``run``.
        problem: a problem with clients; for one function, ``minimize`` chooses its method while it runs.
        pilot: gradients of a first pilot.

    >>> import proxskip as ps
    >>> plan = ps.plan(ps.Problem(ps.random_quadratics(4, 3)), eps=1e-4, network=ps.Network(gradient=1e-3))
    >>> plan.best.seconds <= plan.rows[-1].seconds
    True
    """
    eps = theory.positive("eps", eps)
    pilot, seed = theory.whole("pilot", pilot), theory.whole_seed(seed)
    anything: Any = problem
    if not isinstance(anything, Problem) or problem.n == 1 or problem.D is not None:
        raise InputError("plan is for clients; for one function use minimize, which chooses its method while it runs.")
    pilots = client_pilots(problem, network, eps, seed, threads)
    rows = race(pilots, eps, pilot)
    notes = advice(problem) if problem.mu is not None else (NO_MU,)
    if sizes := [row.cohort for row in rows if row.cohort is not None]:
        first = max(one.curve[0][1] for one in pilots)
        notes += (theory.cohort_sentence(problem.n, min(sizes), min(0.5, (eps / first) ** 2)),)
    return Plan(tuple(rows), eps, sum(one.spent for one in pilots), notes)
