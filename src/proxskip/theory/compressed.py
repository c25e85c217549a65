"""LoCoDL: the rate and the best p with a codec of variance omega (arXiv:2403.04348, with the weights w_i)."""

from __future__ import annotations

import math

from proxskip.theory.numbers import nonnegative, probability
from proxskip.theory.theorems import best_p, sharp_rate

__all__ = ["locodl_p", "locodl_zeta"]


def locodl_zeta(gamma: float, mu: float, L: float, p: float, omega: float, rho: float) -> float:
    """``1 - max((1 - gamma mu)^2, (gamma L - 1)^2, 1 - p^2 rho/(1 + 2 omega))``, for rho <= 1/(1 + omega max_i w_i).

    mu and L are those of the functions F_i and of g.
    """
    share = probability("rho", rho) / (1.0 + 2.0 * nonnegative("omega", omega))
    return sharp_rate(gamma, mu, L, probability("p", p) * math.sqrt(share))


def locodl_p(gamma: float, mu: float, omega: float, rho: float) -> float:
    """The p that balances the two parts of ``locodl_zeta``, at most 1."""
    both = 1.0 - (1.0 - best_p(gamma, mu) ** 2) ** 2
    return min(1.0, math.sqrt(both * (1.0 + 2.0 * nonnegative("omega", omega)) / probability("rho", rho)))
