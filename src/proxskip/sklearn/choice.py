"""Newton or Scaffnew: which of them takes less time over a network."""

from __future__ import annotations

import math
from typing import Any

from proxskip.networks import Network
from proxskip.problems.federated import Problem
from proxskip.sklearn.conventions import Networks

NEWTON_ROUNDS = 10
"""About as many rounds as Newton's method needs from zero, whatever the accuracy."""
FLOPS = 1e9
"""Operations a second that a client is trusted with."""


def chosen(problem: Problem, tol: float, network: Networks, cohort: Any) -> tuple[str, str]:
    """The name of a method, and a sentence that says why.

    Newton's method needs few rounds, in which each client computes a Hessian and sends the half of it. Scaffnew needs
    about sqrt(L/mu) log(1/tol) rounds, with sqrt(L/mu) gradients and one vector each (its theorem).

    Args:
        problem: with its constants.
        tol: the gradient to reach, relative to that at the start.
        network: that the time is for, or the name of one.
        cohort: who takes part in a round; None for everyone.
    """
    if cohort is not None:
        return "scaffnew", "scaffnew, since newton needs every client in every round"
    if not problem.knows_L or problem.kappa is None:
        return "newton", "newton, since no theorem gives scaffnew its parameters without L and mu"
    if not isinstance(network, Network):
        network = Network.named(network)
    d, rows, root = problem.d, int(problem.rows_each.max()), math.sqrt(problem.kappa)
    rounds = max(1, math.ceil(root * math.log(1.0 / tol)))
    triangle = 8.0 * (d * (d + 3) / 2 + 1)
    newton = NEWTON_ROUNDS * (network.exchange(8.0 * d, triangle) + (rows * d**2 + d**3) / FLOPS)
    scaffnew = rounds * (network.exchange(8.0 * d, 8.0 * d) + root * 4.0 * rows * d / FLOPS)
    told = {
        "newton": f"newton takes about {NEWTON_ROUNDS} rounds and {newton:.2g} s",
        "scaffnew": f"scaffnew takes about {rounds} rounds and {scaffnew:.2g} s",
    }
    names = sorted(told, key={"newton": newton, "scaffnew": scaffnew}.__getitem__)
    return names[0], f"{names[0]}: over this network {told[names[0]]}, {told[names[1]]}"
