"""Which methods are right for which problems: everything else is refused, with one sentence."""

from __future__ import annotations

import numpy as np

from proxskip.problems.federated import Problem
from proxskip.seam import Method
from proxskip.types import InputError

_MISSING = {
    "cohort": "averages over everybody, so it cannot run on cohorts; use scaffnew, scaffold or local-gd",
    "psi": "has no prox step, so it cannot solve a problem with psi; use proxgd, proxskip, accelerated or scaffnew",
    "D": "cannot solve psi(D x); use splitskip",
    "batch": "needs full gradients; leave out the batch",
    "clients": "is for a problem of one function; give a problem with one client, or use scaffnew",
}


def check_parts(method: Method, psi: object, D: object, batch: object, **more: bool) -> None:
    """Refuse the first part of a problem (None where there is none) that the method does not handle."""
    asked = more | {"psi": psi is not None and D is None, "D": D is not None, "batch": batch is not None}
    for what, missing in _MISSING.items():
        if asked.get(what) and what not in method.handles:
            raise InputError(f"{method.name} {missing}.")


def without_theorem(method: Method, problem: Problem, everyone: bool) -> list[str]:
    """Sentences on what is run although no theorem covers it."""
    if everyone or method.about.weighted_cohorts or float(np.ptp(problem.weights)) <= 1e-12:
        return []
    least, most = float(problem.weights.min()), float(problem.weights.max())
    ratio = "and some are zero" if least <= 0 else f"up to a factor of {most / least:.3g}"
    if 0 < most < 1.1 * least:
        ratio = f"by up to {100 * (most / least - 1):.2g} %"
    return [
        f"the clients' weights differ ({ratio}), and no theorem covers {method.name} on cohorts of such clients; "
        'split with weights="equal", take everybody, or use 5gcs.'
    ]


def check_fit(method: Method, problem: Problem, everyone: bool) -> None:
    """Refuse what the method is not right for, with one sentence."""
    check_parts(method, problem.psi, problem.D, problem.batch, cohort=not everyone, clients=problem.n > 1)
    if method.about.equal_weights and float(np.ptp(problem.weights)) > 1e-12:
        raise InputError(f'{method.name} is for equally weighted clients; split with weights="equal".')
    # also for a method that handles both, one at a time
    if not everyone and problem.psi is not None and not method.about.psi_on_cohorts:
        raise InputError(
            "a regularizer at the server needs the h of all clients in every round; leave out the cohort or psi, or "
            "use 5gcs."
        )
