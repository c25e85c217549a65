"""Theorems of the papers that followed ProxSkip: GradSkip, variance reduction, LoCoDL, random gossip, and of cohorts.

Of these papers we could read abstracts and introductions. The statements here were derived again, each in its
docstring's few lines, and the tests check them as eigenvalues with all randomness enumerated.
"""

from __future__ import annotations

import math

import numpy as np

from proxskip.theory.numbers import accuracy, probability, theorem, whole
from proxskip.theory.theorems import Numbers, sharp_rate
from proxskip.types import Array, InputError

__all__ = [
    "cohort_rounds", "cohort_sentence", "gradskip_L", "gradskip_q", "gradskip_zeta", "locodl_p", "locodl_zeta",
    "lsvrg_constants", "lsvrg_q", "lsvrg_step", "random_gossip_omega", "random_gossip_tau",
]  # fmt: skip


# -- GradSkip ----------------------------------------------------------------------------------------------------------
@theorem
def gradskip_q(L_i: Numbers, p: float, L: float | None = None) -> Array:
    """``q_i = (1 - p^2 L/L_i)/(1 - p^2)``, cut at 0 and 1: the smallest that leave gamma = 1/L, with L = max_i L_i.

    For p = 1/sqrt(kappa_max) it is (1 - 1/kappa_i)/(1 - 1/kappa_max), GradSkip's choice. Only p and the ratios of the
    L_i enter, so mu need not be known.
    """
    smooth = np.asarray(L_i, dtype=np.float64)
    largest = float(smooth.max()) if L is None else L
    if p == 1.0:
        return np.ones(len(smooth))
    return np.clip((1.0 - p**2 * largest / smooth) / (1.0 - p**2), 0.0, 1.0)


@theorem
def gradskip_L(L_i: Numbers, q: Numbers, p: float) -> float:
    """``max_i L_i (1 - q_i (1 - p^2))/p^2``: GradSkip's theorem needs gamma <= 1/this.

    With dg_i = grad f_i(x_i) - grad f_i(x*), the mean over both coins is E Psi+ <= sum_i |x_i - x* - gamma dg_i|^2
    + (gamma/p)^2 (1 - p^2) (q_i |h_i - h_i*|^2 + (1 - q_i) |dg_i|^2), and <x_i - x*, dg_i> >= |dg_i|^2/L_i.
    It is never below max_i L_i; the rounding of the q_i, which 1/p^2 magnifies, is forgiven.

    Args:
        q: the probability that a client stays awake, one per client.
    """
    smooth = np.asarray(L_i, dtype=np.float64)
    needed = float(np.max(smooth * (1.0 - np.asarray(q) * (1.0 - p**2)))) / p**2
    return max(float(smooth.max()), needed - 4 * np.finfo(np.float64).eps * float(smooth.max()) / p**2)


@theorem
def gradskip_zeta(gamma: float, mu: float, q: Numbers, p: float) -> float:
    """``min(gamma mu, 1 - q_max (1 - p^2))`` for gamma <= 1/``gradskip_L``.

    Args:
        q: the probability that a client stays awake, one per client.
    """
    return min(gamma * mu, 1.0 - float(np.max(q)) * (1.0 - p**2))


# -- variance reduction by L-SVRG --------------------------------------------------------------------------------------
@theorem
def lsvrg_constants(gamma: float, L_b: float, q: float) -> tuple[float, float]:
    """``(W, q (1 - 2/c))`` with c = 1/(gamma L_b) - 2 and W = c/q: the weight of sigma in Psi, and its contraction.

    sigma = E |g_j(w) - g_j(x*)|^2 over minibatches j. Since g = g_j(x) - g_j(w) + grad f(w),
    E |g - grad f(x*)|^2 <= 4 L_b D_f(x, x*) + 2 sigma, and E sigma+ <= 2 q L_b D_f(x, x*) + (1 - q) sigma. In
    |x - x*|^2 + (gamma/p)^2 |h - h*|^2 + gamma^2 W sigma the terms with D_f cancel if gamma L_b (2 + c) <= 1, and sigma
    contracts by 2/W + 1 - q. At gamma = 1/(6 L_b) this is 1 - q/2; from 1/(4 L_b) on there is no rate, and it is 0.
    """
    c = 1.0 / (gamma * L_b) - 2.0
    q = probability("q", q)
    return (c / q, q * (1.0 - 2.0 / c)) if c > 2 else (0.0, 0.0)


@theorem
def lsvrg_step(L_b: float, mu: float, share: float) -> float:
    """``gamma = 1/((4 + e) L_b)`` with e = min(2, sqrt(mu/(share L_b))): the fewest gradients of the theorem.

    With q = ``lsvrg_q`` an iteration contracts by gamma mu and takes 2 b + q m gradients of m rows, share = b/m; over
    the contraction that is  2 b (4 + e) L_b/mu + m (1 + 2/e).  Rounds fall with e too, up to sqrt(6/4) times from
    gamma = 1/(6 L_b).
    """
    return 1.0 / ((4.0 + min(2.0, math.sqrt(mu / (share * L_b)))) * L_b)


@theorem
def lsvrg_q(gamma: float, L_b: float, mu: float) -> float:
    """``gamma mu max(2, c/(c - 2))``, at most 1: then sigma contracts by gamma mu (see ``lsvrg_constants``).

    From gamma = 1/(4 L_b) on, where there is no rate, it is 2 gamma mu.
    """
    c = 1.0 / (gamma * L_b) - 2.0
    return min(1.0, gamma * mu * (max(2.0, c / (c - 2.0)) if c > 2.0 else 2.0))


# -- random gossip by RandProx -----------------------------------------------------------------------------------------
@theorem
def random_gossip_tau(gamma: float, omega: float, lmax: float, w: float) -> float:
    """``tau = 1/(gamma (lmax + 2 omega w))``, with the largest weight w of a link.

    In the link variables u, with h = -B'u, B'B = I - W and independent unbiased masks R of variance omega, a round is
    xhat = x - gamma (grad f + B'u), D = R(tau B xhat), u+ = u + D/(1 + omega), x+ = xhat - gamma B'D. A row of B has
    the squared norm 2 W_ij, so E |B'(D - tau B xhat)|^2 <= 2 omega w |tau B xhat|^2. Then |x - x*|^2 +
    gamma (1 + omega)/tau |u - u*|^2, u in the range of B, contracts by max((1 - gamma mu)^2, (gamma L - 1)^2,
    1 - gamma tau delta/(1 + omega)).
    """
    return 1.0 / (gamma * (lmax + 2.0 * omega * w))


@theorem
def random_gossip_omega(gamma: float, mu: float, delta: float, lmax: float, w: float) -> float:
    """The largest omega for which the links' part of the rate is not below gamma mu; 0 if there is none.

    (1 + omega)(lmax + 2 omega w) <= delta/(gamma mu), a quadratic inequality.
    """
    goal = delta / (gamma * mu)
    b = lmax + 2.0 * w
    return max(0.0, (math.sqrt(b * b + 8.0 * w * max(goal - lmax, 0.0)) - b) / (4.0 * w))


# -- LoCoDL: arXiv:2403.04348, with the weights w_i, and a codec of variance omega -------------------------------------
@theorem
def locodl_zeta(gamma: float, mu: float, L: float, p: float, omega: float, rho: float) -> float:
    """``1 - max((1 - gamma mu)^2, (gamma L - 1)^2, 1 - p^2 rho/(1 + 2 omega))``, for rho <= 1/(1 + omega max_i w_i).

    mu and L are those of the functions F_i and of g.
    """
    share = rho / (1.0 + 2.0 * omega)
    return sharp_rate(gamma, mu, L, p * math.sqrt(share))


@theorem
def locodl_p(gamma: float, mu: float, omega: float, rho: float) -> float:
    """The p that balances the two parts of ``locodl_zeta``, at most 1.

    Args:
        gamma: the step size.
        mu: the strong convexity.
        omega, rho: of the codec.
    """
    gm = min(1.0, gamma * mu)
    both = gm * (2.0 - gm)  # 1 - (1 - gm)^2 without cancellation
    return min(1.0, math.sqrt(both * (1.0 + 2.0 * omega) / rho))


# -- cohorts: how many rounds they need whatever the method's parameters are -------------------------------------------
def cohort_rounds(n: int, c: float, eps: float) -> float:
    """``log(1/eps) / -log(1 - c/n)``, about (n/c) log(1/eps): rounds in which |h - h*|^2 can fall by eps, whatever p.

    With uniform cohorts of c of n clients, a client is in none of R cohorts with probability (1 - c/n)^R. What it
    remembers (its h_i) has not changed until then, so the mean of |h_i - h_i*|^2 is at least (1 - c/n)^R of what it was
    at the start. No choice of p or gamma changes that. It bounds h, not x, and says nothing where h begins at h*, as
    zero does for identical clients. 0 for c = n.

    Args:
        c: clients per round, or their mean number.
    """
    n = whole("n", n)
    if not 0 < c <= n:
        raise InputError(f"a cohort of {c:g} cannot be drawn from {n} clients; choose from 1 to {n}.")
    return math.log(1.0 / accuracy(eps)) / -math.log1p(-c / n) if c < n else 0.0


def cohort_sentence(n: int, c: float, eps: float) -> str:
    """``cohort_rounds`` in words.

    Args:
        n: the number of clients.
        c: the size of a cohort.
        eps: the factor by which the error is to be reduced.
    """
    return (
        f"Cohorts of {c:g} of {n:,} clients need about (n/c) log(1/eps) rounds for any p, here "
        f"{math.ceil(cohort_rounds(n, c, eps)):,} to reduce the squared error of h by {eps:.2g}: the h of a client "
        "changes only when it takes part. Only clients that are alike need fewer."
    )
