"""Which method and which p for clients behind a network, by pilots on the problem itself.

Every candidate runs for a few hundred gradients. The slope of its gradient norm in the second half and the seconds of
a gradient and of an exchange predict its time to eps. Runs are often faster at the start, so a short pilot is too
optimistic: the best candidate runs on, twice as far each time, until one that has run 40 % of its predicted iterations
is still the best. The theory's worst case is shown, but does not decide.
"""

from __future__ import annotations

from typing import Any

from proxskip import theory
from proxskip.links.network import Network
from proxskip.planning.forecast import Plan
from proxskip.planning.pilots import PILOT_GRADIENTS, advice, client_pilots, race
from proxskip.problems.federated import Problem
from proxskip.types import InputError

NO_MU = "mu is unknown, so there is no theorem to compare with."


def plan(
    problem: Problem,
    *,
    eps: float = 1e-6,
    network: Network | str | None = None,
    seed: int = 0,
    pilot: int = PILOT_GRADIENTS,
    threads: int | None = None,
) -> Plan:
    """Predict which method and p reach a gradient norm of eps first over the network, by short pilots.

    Args:
        problem: a problem with clients; for one function, ``minimize`` chooses its method while it runs.
        eps: the gradient norm to reach.
        network: between the server and the clients, or the name of one; without one, exchanges cost nothing but
            their vectors.
        seed: of the pilots.
        pilot: gradients of a first pilot.
        threads: threads of the pilots; by default one per core.

    >>> import proxskip as ps
    >>> plan = ps.plan(ps.Problem(ps.random_quadratics(4, 3)), eps=1e-4, network=ps.Network(gradient=1e-3))
    >>> plan.best.seconds <= plan.rows[-1].seconds
    True
    """
    eps = theory.positive("eps", eps)
    pilot, seed = theory.whole("pilot", pilot), theory.whole_seed(seed)
    anything: Any = problem
    if not isinstance(anything, Problem) or problem.n == 1 or problem.D is not None:
        raise InputError("plan needs a problem with several clients; for one function use minimize.")
    pilots = client_pilots(problem, network, eps, seed, threads)
    rows = race(pilots, eps, pilot)
    notes = advice(problem) if problem.mu is not None else (NO_MU,)
    if sizes := [row.cohort for row in rows if row.cohort is not None]:
        first = max(one.curve[0][1] for one in pilots)
        notes += (theory.cohort_sentence(problem.n, min(sizes), min(0.5, (eps / first) ** 2)),)
    return Plan(tuple(rows), eps, sum(one.spent for one in pilots), notes)
