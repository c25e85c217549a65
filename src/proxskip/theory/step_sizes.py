"""Step sizes: what is known about one, when it is refused, and Nesterov's momentum with its end of stability."""

from __future__ import annotations

import math
from dataclasses import dataclass

from proxskip.theory.numbers import kappa, ordered, positive, probability, theorem, whole
from proxskip.types import InputError


@dataclass(frozen=True, slots=True)
class StepLimits:
    """What is known about a method's step size gamma.

    Args:
        theorem: the largest with a proof we can cite; None where we can cite none.
        figure: the one behind the paper's Figure 1b and Table 1.
        warn_above: larger ones run with a warning.
        refuse_at: this and larger ones are refused unless the caller insists.
        source: where ``theorem`` comes from, and what is only measured.
    """

    theorem: float | None
    figure: float
    warn_above: float
    refuse_at: float
    source: str

    @staticmethod
    def one_over_L(L: float, source: str) -> StepLimits:
        """Proved up to 1/L, refused from 2/L on."""
        return StepLimits(1 / L, 1 / L, 1 / L, 2 / L, source)


@dataclass(frozen=True, slots=True)
class Setting:
    """What a step size depends on: the smoothness L, and what else a method's limit needs.

    Args:
        K: the number of local steps of LocalGD, Scaffold and FedLin.
        p: of S-Local-GD.
        eta_g, share: Scaffold's global step, and the part of the clients that takes part in a round.
        mu: of Scaffold's cohorts and of the accelerated method (without it the limit for every mu).
        lmax, sigma: the largest eigenvalue of I - W, and the second largest modulus of an eigenvalue of W.
    """

    L: float
    K: int = 1
    p: float = 1.0
    eta_g: float = 1.0
    mu: float | None = None
    share: float = 1.0
    lmax: float = 1.0
    sigma: float = 0.0

    @staticmethod
    def of(
        L: float,
        K: int = 1,
        p: float = 1.0,
        eta_g: float = 1.0,
        mu: float | None = None,
        n: int = 1,
        cohort: int | None = None,
        lmax: float = 1.0,
        sigma: float = 0.0,
    ) -> Setting:
        """The same, checked: L, K, p, eta_g, mu, lmax and sigma; a cohort of n clients gives the share."""
        n, cohort = whole("n", n), whole("cohort", n if cohort is None else cohort)
        if cohort > n:
            raise InputError(f"a cohort of {cohort} is larger than n = {n} clients.")
        # mu = 0 means unknown, and the limit is then the one for every mu
        L, mu = (positive("L", L), None) if mu is None or mu == 0 else ordered(L, mu)
        K = whole("K", K)
        p = probability("p", p)
        eta_g = positive("eta_g", eta_g)
        return Setting(L, K, p, eta_g, mu, cohort / n, lmax, sigma)


ROUNDING = 1e-12
"""By how much (relative) a step may exceed its limit: another way to compute L changes its last digits."""


def check_limits(
    method: str, gamma: float, limits: StepLimits | None, L: float | None = None, allow_unsafe_step: bool = False
) -> list[str]:
    """Refuse gamma at or above ``refuse_at`` unless the caller insists; return a warning where one is due.

    L only serves the sentence, which then also gives step sizes in units of 1/L.

    Args:
        method: its name, for the sentence.
        gamma: the step size.
        limits: what is known about it; None if nothing is.
        L: the smoothness, for the sentence.
        allow_unsafe_step: warn instead of refusing.
    """
    gamma = positive("gamma", gamma)
    if limits is None:
        return []
    # all digits where the two numbers would look equal
    digits = "g" if f"{gamma:g}" != f"{limits.warn_above:g}" else ".17g"

    def shown(step: float) -> str:
        return f"{step:{digits}}" + ("" if L is None else f" ({step * positive('L', L):.3g}/L)")

    if gamma >= limits.refuse_at and not allow_unsafe_step:
        raise InputError(
            f"gamma = {shown(gamma)} is too large: {method} can diverge from {shown(limits.refuse_at)} on. "
            f"Use {shown(limits.figure)}, or pass allow_unsafe_step=True."
        )
    if gamma > limits.warn_above * (1 + ROUNDING):
        return [f"gamma = {shown(gamma)} is above {shown(limits.warn_above)}, the largest known to work for {method}."]
    return []


# -- Nesterov's method -------------------------------------------------------------------------------------------------
def nesterov_momentum(L: float, mu: float) -> float:
    """``beta = (sqrt(kappa) - 1)/(sqrt(kappa) + 1)`` for x+ = y - gamma grad f(y), y+ = x+ + beta (x+ - x).

    Nesterov, "Lectures on Convex Optimization", 2018, section 2.2: with gamma = 1/L, f - f* plus mu/2 times a
    squared distance contracts by 1 - 1/sqrt(kappa) per iteration.
    """
    root = math.sqrt(kappa(L, mu))
    return (root - 1) / (root + 1)


@theorem
def nesterov_limit(L: float, beta: float) -> float:
    """``(2 + 2 beta)/((1 + 2 beta) L)``: the exact end of stability of constant momentum on quadratics.

    Along an eigenvalue l the iteration has the polynomial z^2 - s(1 + beta) z + s beta with s = 1 - gamma l;
    by Jury's test its roots lie inside the unit circle iff -1/(1 + 2 beta) < s < 1. The limit is 2/L for
    beta = 0 and falls to 4/(3L) for beta = 1.
    """
    if not 0 <= beta <= 1:
        raise InputError(f"beta = {beta:g} must lie in [0, 1].")
    return (2 + 2 * beta) / ((1 + 2 * beta) * L)
