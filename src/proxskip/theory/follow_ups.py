"""Theorems of the papers that followed ProxSkip: GradSkip, variance reduction, random gossip.

Of these papers we could read abstracts and introductions. The statements here were derived again, each in its
docstring's few lines, and the tests check them as eigenvalues with all randomness enumerated.
"""

from __future__ import annotations

import numpy as np

from proxskip.theory.numbers import known, positive, probability
from proxskip.theory.theorems import Numbers
from proxskip.types import Array

__all__ = ["gradskip_L", "gradskip_q", "gradskip_zeta"]


# -- GradSkip ----------------------------------------------------------------------------------------------------------
def gradskip_q(L_i: Numbers, p: float, L: float | None = None) -> Array:
    """``q_i = (1 - p^2 L/L_i)/(1 - p^2)``, cut at 0 and 1: the smallest that leave gamma = 1/L, with L = max_i L_i.

    For p = 1/sqrt(kappa_max) it is (1 - 1/kappa_i)/(1 - 1/kappa_max), GradSkip's choice. Only p and the ratios of the
    L_i enter, so mu need not be known.
    """
    smooth, p = np.asarray(L_i, dtype=np.float64), probability("p", p)
    largest = float(smooth.max()) if L is None else positive("L", L)
    if p == 1.0:
        return np.ones(len(smooth))
    return np.clip((1.0 - p**2 * largest / smooth) / (1.0 - p**2), 0.0, 1.0)


def gradskip_L(L_i: Numbers, q: Numbers, p: float) -> float:
    """``max_i L_i (1 - q_i (1 - p^2))/p^2``: GradSkip's theorem needs gamma <= 1/this.

    With dg_i = grad f_i(x_i) - grad f_i(x*), the mean over both coins is E Psi+ <= sum_i |x_i - x* - gamma dg_i|^2
    + (gamma/p)^2 (1 - p^2) (q_i |h_i - h_i*|^2 + (1 - q_i) |dg_i|^2), and <x_i - x*, dg_i> >= |dg_i|^2/L_i.
    It is never below max_i L_i; the rounding of the q_i, which 1/p^2 magnifies, is forgiven.
    """
    smooth, p = np.asarray(L_i, dtype=np.float64), probability("p", p)
    needed = float(np.max(smooth * (1.0 - np.asarray(q) * (1.0 - p**2)))) / p**2
    return max(float(smooth.max()), needed - 4 * np.finfo(np.float64).eps * float(smooth.max()) / p**2)


def gradskip_zeta(gamma: float, mu: float | None, q: Numbers, p: float) -> float:
    """``min(gamma mu, 1 - q_max (1 - p^2))`` for gamma <= 1/``gradskip_L``."""
    return min(positive("gamma", gamma) * known(mu), 1.0 - float(np.max(q)) * (1.0 - probability("p", p) ** 2))
