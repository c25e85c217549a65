"""Theorems as functions: step sizes, probabilities, rates, complexities and Lyapunov functions.

"The paper" is Mishchenko, Malinovsky, Stich, Richtarik: "ProxSkip: Yes! Local Gradient Steps Provably Lead to
Communication Acceleration! Finally!", ICML 2022 (arXiv 2202.09357). Everything here is a pure function of numbers and
arrays. A ``zeta`` is always the contraction per iteration: the expected Lyapunov function shrinks by ``1 - zeta``.

Why ProxSkip works, in two lines (Lemmas 3.4 and 3.5 with ``w = x - gamma * grad f(x)``):

    E Psi+      <=  |w - w*|^2  +  (1 - p^2) (gamma/p)^2 |h - h*|^2     (= if prox is a linear projection),
    |w - w*|^2  <=  (1 - gamma mu) |x - x*|^2       ((1 - gamma mu)^2 if gamma <= 2/(L + mu)),

so x contracts with the step size, h with p^2, and p may fall to sqrt(gamma mu) before it costs anything.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np

from proxskip.theory.minibatches import expected_smoothness_each, smoothness_each, variance_each
from proxskip.theory.numbers import (
    ROUNDING,
    below_two_over_L,
    known,
    nonnegative,
    positive,
    theorem,
)
from proxskip.types import Array, InputError

__all__ = [
    "CohortConstants", "ExpectedSmoothness", "Stochastic", "best_p", "binomial_sizes", "check_tau", "cohort_constants",
    "communications", "decentralized_lyapunov", "expected_smoothness", "falling_step", "gossip_pinv", "iterations",
    "largest_step", "minibatch_smoothness", "minibatch_variance", "nu", "psi_lyapunov", "scaffnew_lyapunov",
    "scaffnew_p", "scaffnew_zeta", "sharp_rate", "sharp_step", "split_lyapunov", "split_p", "split_tau", "split_zeta",
    "stochastic", "tamuna_p", "tamuna_zeta", "tracking_rate", "tracking_step", "uniform_cohort", "zeta",
]  # fmt: skip

Numbers: TypeAlias = float | Sequence[float] | Array


# -- ProxSkip: Theorem 3.6 and Corollary 3.7 -----------------------------------------------------------------
@theorem
def largest_step(L: float) -> float:
    """``gamma = 1/L``, the largest step size of Theorem 3.6 of the paper."""
    return 1 / L


@theorem
def best_p(gamma: float, mu: float) -> float:
    """``p = min(1, sqrt(gamma mu))``: the smallest p that keeps zeta = gamma mu in Theorem 3.6.

    For gamma = 1/L it is 1/sqrt(kappa) (Corollary 3.7). Section 3.5 of the paper prints 1/sqrt(gamma mu), a misprint.
    """
    return min(1.0, math.sqrt(gamma * mu))


@theorem
def zeta(gamma: float, mu: float, p: float) -> float:
    """``zeta = min(gamma mu, p^2)`` of Theorems 3.6 and 5.5, for gamma <= 1/L; else ``sharp_rate``."""
    return min(gamma * mu, p**2)


@theorem
def sharp_rate(gamma: float, mu: float, L: float, p: float) -> float:
    """``1 - max((1 - gamma mu)^2, (gamma L - 1)^2, 1 - p^2)`` for 0 < gamma < 2/L: Theorem 3.6, sharpened.

    Lemma 3.5 bounds |w - w*|^2 by (1 - gamma mu)|x - x*|^2; the gradient step really contracts by max(|1 - gamma mu|,
    |gamma L - 1|), about twice as fast, and for every gamma < 2/L. Attained on quadratics.
    """
    return min(_descent(gamma, mu, L), p**2)


def _descent(gamma: float, mu: float, L: float) -> float:
    """How much of |x - x*|^2 a gradient step takes away."""
    gL = below_two_over_L(gamma, L)
    return min(gamma * mu * (2 - gamma * mu), gL * (2 - gL))


@theorem
def sharp_step(L: float, mu: float) -> float:
    """``gamma = 2/(L + mu)``, at which a gradient step contracts most, by (L - mu)/(L + mu) (see ``sharp_rate``)."""
    return 2 / (L + mu)


@theorem
def iterations(eps: float, zeta: float) -> float:
    """``T = (1/zeta) log(1/eps)``: then (1 - zeta)^T <= eps (below Theorem 3.6)."""
    return math.log(1 / eps) / zeta


@theorem
def communications(eps: float, gamma: float, mu: float, p: float) -> float:
    """``p T = max(p/(gamma mu), 1/p) log(1/eps)``: the expected number of proxes (below Theorem 3.6)."""
    return p * iterations(eps, zeta(gamma, mu, p))


# -- SProxSkip: Theorem 5.5 and Corollary 5.6 ----------------------------------------------------------------
class ExpectedSmoothness(NamedTuple):
    """``E|g(x) - grad f(x*)|^2 <= 2 es_A D_f(x, x*) + es_C`` (Assumption 5.2 of the paper)."""

    es_A: float
    es_C: float


class Stochastic(NamedTuple):
    """What Corollary 5.6 chooses and what it costs.

    Args:
        gamma, p: the parameters.
        iterations, communications: how many are needed.
    """

    gamma: float
    p: float
    iterations: float
    communications: float


def stochastic(eps: float, es_A: float, es_C: float, mu: float | None, psi0: float = 1.0) -> Stochastic:
    """Corollary 5.6: the gamma, p and T that give E Psi_T <= eps (absolute, not relative to psi0 = Psi_0).

    Args:
        es_A, es_C: the constants of expected smoothness.
        mu: the strong convexity.
    """
    eps = positive("eps", eps)
    es_C = nonnegative("es_C", es_C)
    psi0 = positive("psi0", psi0)
    es_A, mu = positive("es_A", es_A), known(mu)
    if mu > es_A * (1 + ROUNDING):
        raise InputError(f"es_A = {es_A:g} is smaller than mu = {mu:g}; expected smoothness needs es_A >= L >= mu.")
    # The second bound makes the noise ball gamma^2 C / (gamma mu) at most eps/2.
    gamma = min(1 / es_A, eps * mu / (2 * es_C)) if es_C > 0 else 1 / es_A
    log = max(0.0, math.log(2 * psi0 / eps))
    return Stochastic(gamma, best_p(gamma, mu), log / (gamma * mu), log / math.sqrt(gamma * mu))


@theorem
def minibatch_smoothness(m: int, b: int, L: float, L_max: float) -> float:
    """``L_b = m(b-1)/(b(m-1)) L + (m-b)/(b(m-1)) L_max``: b of m samples without replacement.

    Gower et al., "SGD: General Analysis and Improved Rates", ICML 2019: E|g(x) - g(x*)|^2 <= 2 L_b D_f(x, x*). L is the
    smoothness of the mean, L_max the largest of one sample. The step size of the paper's stochastic figures is 1/L_b.
    """
    _check_batch(m, b)
    return float(smoothness_each(m, b, L, L_max))


@theorem
def minibatch_variance(m: int, b: int, spread: float) -> float:
    """``sigma*^2 = (m-b)/(b(m-1)) spread``: the variance of a minibatch gradient of b of m samples at x*.

    ``spread`` is mean_j |grad f_j(x*) - grad f(x*)|^2 over the m samples.
    """
    _check_batch(m, b)
    known_spread = spread if math.isnan(spread) else nonnegative("spread", spread)
    return float(variance_each(m, b, known_spread))


@theorem
def expected_smoothness(m: int, b: int, L: float, L_max: float, spread: float) -> ExpectedSmoothness:
    """``A = 2 L_b, C = 2 sigma*^2`` for minibatches of b of m samples without replacement.

    Why 2: g(x) - grad f(x*) = [g(x) - g(x*)] + [g(x*) - grad f(x*)], the two are correlated, and |u + v|^2 <= 2|u|^2 +
    2|v|^2; A = L_b with C = sigma*^2 is false in general. Without noise at x* (b = m, or spread = 0) v = 0 and A = L_b,
    C = 0; for b = m that is A = L, the full gradient. A spread of nan (x* unknown) gives C = nan.

    Args:
        L, L_max: the smoothness of the mean, and the largest of a sample.
    """
    L_b, sigma2 = minibatch_smoothness(m, b, L, L_max), minibatch_variance(m, b, spread)
    A, C = expected_smoothness_each(L_b, sigma2)
    return ExpectedSmoothness(float(A), float(C))


@theorem
def falling_step(k: int, gamma0: float, decay: float) -> float:
    """``1 / (1/gamma0 + decay k)`` in round k."""
    return 1 / (1 / gamma0 + decay * k)


def _check_batch(m: int, b: int) -> None:
    if b > m:
        raise InputError(f"b = {b} is larger than m = {m}; a batch without replacement has at most m samples.")


# -- Scaffnew with weights and own step sizes ----------------------------------------------------------------
@theorem
def scaffnew_zeta(gammas: Numbers, mus: Numbers, p: float) -> float:
    """``min(min_i gamma_i mu_i, p^2)`` for sum_i w_i f_i with gamma_i <= 1/L_i.

    Theorem 3.6 in the inner product <u, v> = sum_i (w_i/gamma_i) <u_i, v_i>, in which the prox of the consensus
    constraint is the (w_i/gamma_i)-weighted mean; the individual step sizes are those of i-Scaffnew, Yi, Condat,
    Richtarik: "Explicit Personalization and Local Training: Double Communication Acceleration", 2023.

    Args:
        gammas, mus: gamma_i and mu_i, numbers or one per client.
    """
    return min(_slowest(gammas, mus), p**2)


def scaffnew_p(gammas: Numbers, mus: Numbers) -> float:
    """``min(1, sqrt(min_i gamma_i mu_i))``; 1/sqrt(max_i L_i/mu_i) for gamma_i = 1/L_i.

    Args:
        gammas, mus: gamma_i and mu_i, numbers or one per client.
    """
    return min(1.0, math.sqrt(_slowest(gammas, mus)))


def _slowest(gammas: Numbers, mus: Numbers) -> float:
    steps, convex = np.asarray(gammas, dtype=np.float64), np.asarray(mus, dtype=np.float64)
    wrong = ~((steps > 0) & np.isfinite(steps))
    if wrong.any():
        i = int(np.argmax(wrong))
        positive(f"gamma of client {i}", steps.ravel()[i])
    unknown = ~(convex > 0)
    if unknown.any():
        i = int(np.argmax(unknown))
        value = convex.ravel()[i]
        raise InputError(
            f"mu is unknown for client {i} (mu = {value:g}): pass l2 > 0 without an intercept, or gamma and p."
        )
    if steps.ndim and convex.ndim and steps.shape != convex.shape:
        raise InputError(f"{steps.size} step sizes and {convex.size} values of mu were given; give one per client.")
    return float(np.min(steps * convex))


# -- SplitSkip (Theorem D.1) and Decentralized Scaffnew (Theorem 5.7) ----------------------------------------
@theorem
def split_tau(gamma: float, p: float, norm2: float) -> float:
    """``tau = p / (gamma ||D D'||)``, the largest of Theorem D.1; norm2 = ||D D'||, for gossip ||I - W||."""
    return p / (gamma * norm2)


@theorem
def check_tau(tau: float, gamma: float, p: float, norm2: float = 1.0) -> float:
    """tau as a float, refused above the bound of Theorems D.1 and 5.7, ``gamma tau <= p / ||D D'||``.

    Args:
        norm2: ||D D'||.
    """
    largest = split_tau(gamma, p, norm2)
    if tau > largest * (1 + ROUNDING):
        raise InputError(f"tau = {tau:.12g} is too large: it must be at most p/(gamma ||D D'||) = {largest:.12g}.")
    return tau


@theorem
def split_zeta(gamma: float, mu: float, p: float, tau: float, lmin_plus: float) -> float:
    """``min(gamma mu, p gamma tau lmin+(D D'))`` of Theorem D.1 (5.7 with lmin_plus = delta).

    For gamma <= 1/L, ``check_tau``, and psi* with subgradients in the range of D (true for D of full row rank).
    """
    return min(gamma * mu, p * gamma * tau * lmin_plus)


@theorem
def split_p(gamma: float, mu: float, norm2: float, lmin_plus: float) -> float:
    """``min(1, sqrt(gamma mu ||D D'|| / lmin+(D D')))``: the smallest p that does not slow it down.

    Args:
        norm2, lmin_plus: the largest and the smallest positive eigenvalue of D D'.
    """
    if lmin_plus > norm2 * (1 + ROUNDING):
        raise InputError(f"lmin_plus = {lmin_plus:g} is larger than norm2 = {norm2:g}; the eigenvalues are swapped.")
    return min(1.0, math.sqrt(gamma * mu * norm2 / lmin_plus))


# -- gradient tracking (DIGing) ------------------------------------------------------------------------------
@theorem
def tracking_rate(gamma: float, mu: float, L: float, sigma: float) -> float:
    """The spectral radius of a 3 x 3 matrix that bounds one step of gradient tracking; below 1 it contracts.

    Qu and Li, "Harnessing smoothness to accelerate distributed optimization", 2018. With W's second largest modulus
    sigma, the vector (disagreement of the y_i, disagreement of the x_i, sqrt(n) |mean x - x*|) is bounded by

        [ sigma + gamma L   L (2 + gamma L)   gamma L^2 ]
        [ gamma             sigma             0         ]    with lam = max(|1 - gamma mu|, |1 - gamma L|)
        [ 0                 gamma L           lam       ]

    times the one before: W contracts disagreement by sigma, the gradients are L-Lipschitz, |(W - I) u| <= 2 |u|, and
    the mean takes a gradient step that is wrong by at most L times the disagreement.
    """
    g = gamma * L
    if not 0 <= sigma < 1:
        raise InputError(f"sigma = {sigma:g} must lie in [0, 1): no other eigenvalue of W may have modulus one.")
    lam = max(abs(1 - g * mu / L), abs(1 - g))
    G = np.array([[sigma + g, 2 + g, g], [g, sigma, 0.0], [0.0, g, lam]])  # in units in which L = 1
    return float(np.abs(np.linalg.eigvals(G)).max())


@theorem
def tracking_step(L: float, mu: float, sigma: float) -> float:
    """The gamma at which ``tracking_rate`` is smallest, to a thousandth.

    Args:
        L, mu: the smoothness and the strong convexity.
        sigma: the second largest absolute eigenvalue of W.
    """
    grid = np.geomspace(1e-9, 2, 400) / L
    for _ in range(4):  # each pass looks more closely between the neighbors of the best point
        rates = [tracking_rate(gamma, mu, L, sigma) for gamma in grid]
        k = int(np.argmin(rates))
        best = float(grid[k])
        grid = np.geomspace(grid[max(k - 1, 0)], grid[min(k + 1, len(grid) - 1)], 12)
    return best


# -- cohorts: TAMUNA -----------------------------------------------------------------------------------------
# Condat, Agarsky, Malinovsky, Richtarik: "TAMUNA: Doubly Accelerated Federated Learning with Local Training,
# Compression, and Partial Participation", 2023. With V = sum_i |xhat_i - mean xhat|^2, a uniform cohort S of
# size s:  E sum_i |x+ - x*|^2 = sum_i |xhat_i - x*|^2 - nu V, E sum_{i in S} |x+ - xhat_i|^2 = (s-1)/(n-1) V.


class CohortConstants(NamedTuple):
    """``a = E[(s-1)+]/(n-1)`` and the largest safe ``chi = E[nu(s)]`` for cohorts of random size s."""

    a: float
    chi: float


@theorem
def nu(n: int, s: int) -> float:
    """``n(s-1)/(s(n-1))``: how much disagreement a uniform cohort of s among n removes; 1 for everybody."""
    return _nu(n, s)


def _nu(n: int, s: int) -> float:
    """Unchecked, for a sum over many sizes."""
    if s > n:
        raise InputError(f"a cohort of {s} is larger than n = {n} clients.")
    return 1.0 if n == s else n * (s - 1) / (s * (n - 1))


@theorem
def cohort_constants(n: int, sizes: Mapping[int, float]) -> CohortConstants:
    """``a`` and ``chi`` for cohorts that are uniform given their size, ``sizes`` = {size: probability}.

    An empty cohort is redrawn, so size 0 is left out and the rest rescaled.

    Args:
        n: the number of clients.
    """
    total = math.fsum(sizes.values())
    if abs(total - 1) > 1e-6 or min(sizes.values()) < 0:
        raise InputError(f"the probabilities of the cohort sizes must be nonnegative with sum 1, not {total:g}.")
    drawn = {s: prob for s, prob in sizes.items() if s != 0 and prob > 0}
    rest = math.fsum(drawn.values())
    if n == 1 and rest > 0:
        return CohortConstants(1.0, 1.0)
    # nu(1) = 0: a cohort of one learns nothing about disagreement
    chi = math.fsum(prob * _nu(n, s) for s, prob in drawn.items())
    if chi <= 0:
        raise InputError(f"cohorts of one among n = {n} clients cannot work: h could never learn; take c >= 2.")
    a = math.fsum(prob * (s - 1) for s, prob in drawn.items()) / (n - 1)
    return CohortConstants(min(1.0, a / rest), min(1.0, chi / rest))


@theorem
def uniform_cohort(n: int, c: int) -> CohortConstants:
    """``cohort_constants`` for c of n clients, uniformly; c = n is everybody, a = chi = 1."""
    return cohort_constants(n, {c: 1.0})


@theorem
def binomial_sizes(n: int, prob: float) -> dict[int, float]:
    """{size: probability} when each client takes part with probability prob, given that at least one does.

    Args:
        n: the number of clients.
    """
    if prob == 1:
        return {n: 1.0}
    # In logarithms, since the binomial coefficients overflow; ``front`` also divides by P[at least one takes part].
    skip = math.log1p(-prob)
    front = math.lgamma(n + 1) - math.log(-math.expm1(n * skip))
    logs = (
        (s, math.log(prob) * s + skip * (n - s) - math.lgamma(s + 1) - math.lgamma(n - s + 1)) for s in range(1, n + 1)
    )
    return {s: math.exp(front + log) for s, log in logs}


@theorem
def tamuna_zeta(gamma: float, mu: float, L: float, p: float, chi: float, a: float) -> float:
    """``1 - max((1 - gamma mu)^2, (gamma L - 1)^2, 1 - p^2 chi a)`` for 0 < gamma < 2/L and chi <= E[nu(s)].

    For equal weights and equal step sizes; the Lyapunov function is ``scaffnew_lyapunov`` with chi_a = chi * a.
    """
    return min(_descent(gamma, mu, L), p**2 * chi * a)


@theorem
def tamuna_p(gamma: float, mu: float, chi: float, a: float) -> float:
    """``min(1, sqrt((1 - (1 - gamma mu)^2) / (chi a)))``: the smallest p that does not slow TAMUNA down."""
    gm = gamma * mu
    if gm > 1 + ROUNDING:
        raise InputError(f"gamma = {gamma:g} is larger than 1/mu = {1 / mu:g}; take gamma = 1/L.")
    return min(1.0, math.sqrt(gm * (2 - gm) / (chi * a)))


# -- Lyapunov functions --------------------------------------------------------------------------------------
@theorem
def psi_lyapunov(x: Array, h: Array, x_star: Array, h_star: Array, gamma: float, p: float) -> float:
    """``Psi = |x - x*|^2 + (gamma/p)^2 |h - h*|^2``, h* = grad f(x*) (section 3.3 of the paper).

    Args:
        x_star, h_star: x* and h*.
    """
    ratio = gamma / p
    return _norm2(x, x_star) + ratio**2 * _norm2(h, h_star)


@theorem
def scaffnew_lyapunov(
    weights: Numbers,
    gammas: Numbers,
    p: float,
    X: Array,
    H: Array,
    x_star: Array,
    H_star: Array,
    chi_a: float = 1.0,
) -> float:
    """``sum_i (w_i/gamma_i) |x_i - x*|^2 + 1/(p^2 chi a) sum_i w_i gamma_i |h_i - h_i*|^2``.

    h_i* = grad f_i(x*). X is (n, d), or (d,) when all clients hold the same x; weights and gammas are numbers
    or one per client. For equal ones it is the paper's Psi divided by n gamma. On cohorts (equal weights and
    steps) chi_a = chi * a, with the chi and a of ``tamuna_zeta``.

    Args:
        X, H: the points and the control variates, one row per client.
        x_star, H_star: the solution, and the control variates there.
    """
    w, steps = _per_client("weights", weights, H), _per_client("gammas", gammas, H)
    dual = p**2 * chi_a
    x2, h2 = _rows2(X, x_star, H), np.sum(np.square(_gap(H, H_star)), axis=1)
    return float(np.sum(w / steps * x2) + np.sum(w * steps * h2) / dual)


@theorem
def split_lyapunov(x: Array, y: Array, x_star: Array, y_star: Array, gamma: float, p: float, tau: float) -> float:
    """``Phi = |x - x*|^2 + gamma/(p tau) |y - y*|^2`` of SplitSkip (before Theorem D.1 of the paper).

    Args:
        x_star, y_star: x* and y*.
    """
    ratio = gamma / (p * tau)
    return _norm2(x, x_star) + ratio * _norm2(y, y_star)


def gossip_pinv(W: Array) -> Array:
    """``(I - W)^+`` for a symmetric doubly stochastic W of a connected graph; compute it once per graph."""
    n = len(W)
    values, vectors = np.linalg.eigh(np.eye(n) - np.asarray(W, dtype=np.float64))
    if n > 1 and values[1] <= 1e-12:
        raise InputError(f"1 - lambda_2(W) = {values[1]:g} is not positive; the graph must be connected.")
    V = vectors[:, 1:]  # without the constant vector, whose eigenvalue is zero
    return np.asarray((V / values[1:]) @ V.T)


@theorem
def decentralized_lyapunov(
    X: Array,
    H: Array,
    x_star: Array,
    H_star: Array,
    gamma: float,
    p: float,
    tau: float,
    W: Array,
    pinv: Array | None = None,
) -> float:
    """``Phi = 1/n (sum_i |x_i - x*|^2 + gamma/(p tau) <H - H*, (I - W)^+ (H - H*)>)`` of Theorem 5.7.

    It is ``split_lyapunov`` with h = -(I - W)^(1/2) y. It cannot see a drift of sum_i h_i, which must be
    zero. Pass ``pinv = gossip_pinv(W)`` when calling it often.

    Args:
        X, H: the points and the control variates, one row per client.
        x_star, H_star: the solution, and the control variates there.
    """
    ratio = gamma / (p * tau)
    x2, E = np.sum(_rows2(X, x_star, H)), _gap(H, H_star)
    # the pseudoinverse drops the mean of H - H*, which is zero
    dual = np.sum(E * ((gossip_pinv(W) if pinv is None else pinv) @ E))
    return float(x2 + ratio * dual) / len(E)


def _gap(u: Array, v: Array) -> Array:
    if np.shape(u) != np.shape(v):
        raise InputError(f"shape {np.shape(u)} is compared with shape {np.shape(v)}; give vectors of one shape.")
    return np.asarray(u - v)


def _norm2(u: Array, v: Array) -> float:
    return float(np.sum(np.square(_gap(u, v))))


def _rows2(U: Array, V: Array, H: Array) -> Array:
    """One squared distance per client; U or V may be one (d,) vector for all of them."""
    for one in (U, V):
        if np.shape(one) not in (np.shape(H), np.shape(H)[1:]):
            raise InputError(f"shape {np.shape(one)} does not fit the clients' h of shape {np.shape(H)}.")
    return np.asarray(np.sum(np.square(np.broadcast_to(U, np.shape(H)) - V), axis=1))


def _per_client(name: str, values: Numbers, H: Array) -> Array:
    numbers = np.asarray(values, dtype=np.float64)
    if numbers.shape not in ((), (len(H),)) or not np.all(numbers > 0):
        raise InputError(f"{name} = {values} must be positive, one number or one for each of {len(H)} clients.")
    return np.broadcast_to(numbers, (len(H),))
