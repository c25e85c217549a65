"""Every formula of the theory against the papers', at numbers where no factor is one.

The laws of test_theory.py choose mu = 1 or gamma = 1/L, where a product looks like a quotient. Here each formula is
written a second time, in other words than the library's, and both sides of every minimum are met.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import proxskip as ps
from proxskip import theory
from proxskip.theory import follow_ups, local_solver, step_sizes, theorems
from proxskip.types import Array
from support.problems import difference, quadratics

L, mu, gamma, p = 7.0, 0.3, 0.11, 0.35
gm, gL = gamma * mu, gamma * L
SMALL_P = 0.1
"""Here p^2 is the smaller side of min(gamma mu, p^2)."""
LARGE_STEP = 0.28
"""Close to 2/L, where the largest curvature slows a gradient step down."""
eps = 0.01
m, b = 11, 3
norm2, delta, lmax, w = 2.3, 0.17, 1.4, 0.15
L_i, gammas, mus = np.array([7.0, 2.5, 0.9]), np.array([0.11, 0.2, 0.5]), np.array([0.3, 0.2, 0.7])
weights = np.array([0.2, 0.5, 0.3])
q = 0.23

rng = np.random.default_rng(4)
X, H, H_star = rng.standard_normal((3, 3, 2))
x, h, x_star, h_star = rng.standard_normal((4, 2))
W = np.array([[0.6, 0.4, 0.0], [0.4, 0.3, 0.3], [0.0, 0.3, 0.7]])
PINV = np.linalg.pinv(np.eye(3) - W)

# the local problems of FiveGCS
L_F, tau, pi = np.array([6.7, 2.2, 0.6]), np.array([0.4, 0.9, 0.35]), np.array([0.5, 0.8, 0.3])
rho = 0.83
sigma, theta = 0.6, 0.02


def contraction(step: float) -> float:
    """What is left of |x - x*|^2 by a gradient step, whose slowest direction is one of the two ends."""
    return max((1 - step * mu) ** 2, (1 - step * L) ** 2)


def squared(v: Array) -> float:
    return float(np.linalg.norm(v) ** 2)


def tracking_matrix(sigma: float) -> Array:
    lam = max(abs(1 - gm), abs(1 - gL))
    return np.array([[sigma + gL, L * (2 + gL), gamma * L**2], [gamma, sigma, 0.0], [0.0, gL, lam]])


def smallest_sigma() -> float:
    """The largest eigenvalue of gamma E|sum_S a_m/pi_m|^2 relative to sum_m |a_m|^2/(w_m tau_m)."""
    second_moments = np.full((3, 3), rho)
    np.fill_diagonal(second_moments, 1 / pi)
    root = np.sqrt(weights * tau)
    return float(np.linalg.eigvalsh(gamma * second_moments * np.outer(root, root))[-1])


def reached(K: int) -> float:
    """theta after K accelerated steps: |e|^2 <= 2 (L + tau) gap, |y - y*|^2 <= 2 gap/tau, both beside |xhat - y*|."""
    found = []
    for l, t in zip(L_F, tau, strict=True):
        rate = 1 - math.sqrt(t / (l + t))
        far = math.sqrt((l + 2 * t) / t * rate**K)  # |y - y*| as a share of |xhat - y*|
        slope = math.sqrt((l + t) * (l + 2 * t) * rate**K)
        found.append(slope / (t * (1 - far)) if far < 1 else math.inf)
    return max(found)


def of_nothing_at_all(n: int, prob: float) -> float:
    return (1 - prob) ** n


log = math.log(1 / eps)
A, C = 2 * theory.minibatch_smoothness(m, b, L, 3 * L), 0.8
small_gamma = eps * mu / (2 * 50.0)
c_of_lsvrg = 1 / (0.02 * L) - 2

FORMULAS: dict[str, list[tuple[Callable[[], Any], Any]]] = {
    "kappa": [(lambda: theory.kappa(L, mu), L / mu)],
    # the paper: Theorem 3.6, Corollary 3.7, and below them
    "largest_step": [(lambda: theory.largest_step(L), 1 / L)],
    "best_p": [(lambda: theory.best_p(gamma, mu), math.exp(0.5 * math.log(gm))), (lambda: theory.best_p(4.0, mu), 1.0)],
    "zeta": [(lambda: theory.zeta(gamma, mu, p), gm), (lambda: theory.zeta(gamma, mu, SMALL_P), SMALL_P * SMALL_P)],
    "sharp_rate": [
        (lambda: theory.sharp_rate(gamma, mu, L, p), 1 - (1 - gm) ** 2),
        (lambda: theory.sharp_rate(gamma, mu, L, SMALL_P), SMALL_P * SMALL_P),
        (lambda: theory.sharp_rate(LARGE_STEP, mu, L, p), 1 - (LARGE_STEP * L - 1) ** 2),
    ],
    "sharp_step": [(lambda: theory.sharp_step(L, mu), 1 / ((L + mu) / 2))],
    "iterations": [(lambda: theory.iterations(eps, q), log / q)],
    "communications": [
        (lambda: theory.communications(eps, gamma, mu, p), p / gm * log),
        (lambda: theory.communications(eps, gamma, mu, SMALL_P), log / SMALL_P),
    ],
    # Theorem 5.5 and Corollary 5.6
    "stochastic": [
        (
            lambda: theory.stochastic(eps, A, 50.0, mu, 3.0),
            (
                small_gamma,
                math.sqrt(small_gamma * mu),
                math.log(6 / eps) / (small_gamma * mu),
                math.log(6 / eps) / math.sqrt(small_gamma * mu),
            ),
        ),
        (
            lambda: theory.stochastic(eps, A, 1e-9, mu, 3.0),
            (1 / A, math.sqrt(mu / A), math.log(6 / eps) * A / mu, math.log(6 / eps) * math.sqrt(A / mu)),
        ),
    ],
    "minibatch_smoothness": [
        (
            lambda: theory.minibatch_smoothness(m, b, L, 3 * L),
            m / (m - 1) * (1 - 1 / b) * L + (m / b - 1) / (m - 1) * 3 * L,
        ),
    ],
    "minibatch_variance": [(lambda: theory.minibatch_variance(m, b, 5.0), (m / b - 1) / (m - 1) * 5.0)],
    "expected_smoothness": [
        (lambda: theory.expected_smoothness(m, b, L, 3 * L, 5.0), (A, 2 * (m / b - 1) / (m - 1) * 5.0)),
        (lambda: theory.expected_smoothness(m, b, L, 3 * L, 0.0), (A / 2, 0.0)),
    ],
    "falling_step": [(lambda: theory.falling_step(5, gamma, C), gamma / (1 + 5 * C * gamma))],
    # weights and own step sizes
    "scaffnew_zeta": [
        (lambda: theory.scaffnew_zeta(gammas, mus, p), 0.11 * 0.3),
        (lambda: theory.scaffnew_zeta(gammas, mus, SMALL_P), SMALL_P * SMALL_P),
    ],
    "scaffnew_p": [(lambda: theory.scaffnew_p(gammas, mus), math.sqrt(0.11 * 0.3))],
    # Theorems D.1 and 5.7
    "split_tau": [(lambda: theory.split_tau(gamma, p, norm2), p / gamma / norm2)],
    "check_tau": [(lambda: theory.check_tau(1.3, gamma, p, norm2), 1.3)],
    "split_zeta": [
        (lambda: theory.split_zeta(gamma, mu, p, 1.3, 0.9), gm),
        (lambda: theory.split_zeta(gamma, mu, p, 1.3, 0.4), 0.35 * 0.11 * 1.3 * 0.4),
    ],
    "split_p": [(lambda: theory.split_p(gamma, mu, norm2, 0.4), math.sqrt(gm / (0.4 / norm2)))],
    "tracking_rate": [
        (
            lambda: theory.tracking_rate(gamma, mu, L, 0.4),
            float(np.max(np.abs(np.linalg.eigvals(tracking_matrix(0.4))))),
        ),
    ],
    "gossip_pinv": [
        (lambda: theory.gossip_pinv(W), PINV),
        # the least graph there is has two nodes, and one weight
        (lambda: theory.gossip_pinv(np.array([[0.8, 0.2], [0.2, 0.8]])), np.array([[1.25, -1.25], [-1.25, 1.25]])),
        (lambda: theory.gossip_pinv(np.eye(1)), np.zeros((1, 1))),
    ],
    # cohorts
    "nu": [(lambda: theory.nu(9, 4), 9 / 8 * (1 - 1 / 4)), (lambda: theory.nu(9, 9), 1.0)],
    "cohort_constants": [
        (
            lambda: theory.cohort_constants(9, {0: 0.2, 2: 0.3, 4: 0.5}),
            ((0.3 * 1 + 0.5 * 3) / 0.8 / 8, (0.3 * 9 * 1 / (2 * 8) + 0.5 * 9 * 3 / (4 * 8)) / 0.8),
        ),
    ],
    "uniform_cohort": [(lambda: theory.uniform_cohort(9, 4), (3 / 8, 27 / 32))],
    "binomial_sizes": [
        (
            lambda: list(theory.binomial_sizes(5, q).values()),
            [math.comb(5, s) * q**s * (1 - q) ** (5 - s) / (1 - of_nothing_at_all(5, q)) for s in range(1, 6)],
        ),
    ],
    "tamuna_zeta": [
        (lambda: theory.tamuna_zeta(gamma, mu, L, 0.9, 0.8, 0.4), 1 - (1 - gm) ** 2),
        (lambda: theory.tamuna_zeta(gamma, mu, L, p, 0.8, 0.4), 0.35 * 0.35 * 0.8 * 0.4),
        (lambda: theory.tamuna_zeta(0.2857, mu, L, 0.9, 0.8, 0.4), 1 - (0.2857 * L - 1) ** 2),
    ],
    "tamuna_p": [(lambda: theory.tamuna_p(gamma, mu, 0.8, 0.4), math.sqrt((1 - (1 - gm) ** 2) / 0.8 / 0.4))],
    # Lyapunov functions
    "psi_lyapunov": [
        (
            lambda: theory.psi_lyapunov(x, h, x_star, h_star, gamma, p),
            squared(x - x_star) + squared(gamma / p * (h - h_star)),
        ),
    ],
    "scaffnew_lyapunov": [
        (
            lambda: theory.scaffnew_lyapunov(weights, gammas, p, X, H, x_star, H_star, 0.6),
            sum(
                weights[i] / gammas[i] * squared(X[i] - x_star)
                + weights[i] * gammas[i] / (p * p * 0.6) * squared(H[i] - H_star[i])
                for i in range(3)
            ),
        ),
    ],
    "split_lyapunov": [
        (
            lambda: theory.split_lyapunov(x, h, x_star, h_star, gamma, p, 1.3),
            squared(x - x_star) + gamma / p / 1.3 * squared(h - h_star),
        ),
    ],
    "decentralized_lyapunov": [
        (
            lambda: theory.decentralized_lyapunov(X, H, x_star, H_star, gamma, p, 1.3, W),
            (squared(X - x_star) + gamma / p / 1.3 * float(np.sum((H - H_star) * (PINV @ (H - H_star))))) / 3,
        ),
    ],
    # GradSkip, L-SVRG, LoCoDL and random gossip
    "gradskip_q": [
        (
            lambda: theory.gradskip_q(L_i, p),
            [1.0, (1 - p * p * 7 / 2.5) / (1 - p * p), (1 - p * p * 7 / 0.9) / (1 - p * p)],
        ),
        (
            lambda: theory.gradskip_q(L_i, p, 14.0),
            [(1 - p * p * 2) / (1 - p * p), (1 - p * p * 5.6) / (1 - p * p), 0.0],
        ),
    ],
    "gradskip_L": [
        (
            lambda: theory.gradskip_L(L_i, [0.9, 0.5, 0.2], p),
            max(
                7 * (1 - 0.9 * (1 - p * p)) / (p * p),
                2.5 * (1 - 0.5 * (1 - p * p)) / (p * p),
                0.9 * (1 - 0.2 * (1 - p * p)) / (p * p),
            ),
        ),
    ],
    "gradskip_zeta": [
        (lambda: theory.gradskip_zeta(gamma, mu, [0.9, 0.5], p), gm),
        (lambda: theory.gradskip_zeta(gamma, mu, [0.999, 0.5], SMALL_P), 1 - 0.999 * 0.99),
    ],
    "lsvrg_constants": [
        (lambda: theory.lsvrg_constants(0.02, L, q), (c_of_lsvrg / q, q * (1 - 2 / c_of_lsvrg))),
        (lambda: theory.lsvrg_constants(0.04, L, q), (0.0, 0.0)),
    ],
    "lsvrg_step": [
        (lambda: theory.lsvrg_step(L, mu, 0.2), 1 / (4 * L + math.sqrt(mu * L / 0.2))),
        (lambda: theory.lsvrg_step(L, mu, 0.001), 1 / (6 * L)),
    ],
    "lsvrg_q": [
        (lambda: theory.lsvrg_q(0.02, L, mu), 2 * 0.02 * mu),
        (lambda: theory.lsvrg_q(0.03, L, mu), 0.03 * mu * (1 / (0.03 * L) - 2) / (1 / (0.03 * L) - 4)),
    ],
    "random_gossip_tau": [(lambda: theory.random_gossip_tau(gamma, 1.7, lmax, w), 1 / gamma / (lmax + 2 * 1.7 * w))],
    "random_gossip_omega": [
        # the positive root of 2 w omega^2 + (lmax + 2 w) omega + lmax - delta/(gamma mu)
        (
            lambda: theory.random_gossip_omega(gamma, mu, delta, lmax, w),
            float(np.roots([2 * w, lmax + 2 * w, lmax - delta / gm]).max()),
        ),
    ],
    "locodl_zeta": [
        (lambda: theory.locodl_zeta(gamma, mu, L, 0.9, 1.7, 0.6), 1 - (1 - gm) ** 2),
        (lambda: theory.locodl_zeta(gamma, mu, L, p, 1.7, 0.6), p * p * 0.6 / (1 + 2 * 1.7)),
        (lambda: theory.locodl_zeta(0.2857, mu, L, 0.9, 1.7, 0.6), 1 - (0.2857 * L - 1) ** 2),
    ],
    "locodl_p": [(lambda: theory.locodl_p(gamma, mu, 1.7, 0.6), math.sqrt((1 - (1 - gm) ** 2) / 0.6 * (1 + 2 * 1.7)))],
    "cohort_rounds": [(lambda: theory.cohort_rounds(9, 4, eps), math.log(eps) / math.log(5 / 9))],
    # the local solver of FiveGCS
    "local_dual_steps": [
        # in proportion to (L_m - mu)/pi_m if everybody takes part for sure, and with equality in the condition
        (
            lambda: theory.local_dual_steps(gamma, L_F, weights, np.ones(3), 1.0, sigma),
            sigma * L_F / (gamma * float(weights @ L_F)),
        ),
        (
            lambda: theory.local_dual_steps(gamma, L_F, weights, pi, rho, sigma),
            sigma
            / (rho * gamma * float(weights @ (L_F / pi)) * pi / L_F + gamma * weights / pi - gamma * weights * rho),
        ),
    ],
    "local_sigma": [(lambda: theory.local_sigma(gamma, tau, weights, pi, rho), smallest_sigma())],
    "local_momentum": [
        (
            lambda: theory.local_momentum(L_F, tau),
            (np.sqrt(L_F / tau + 1) - 1) / (np.sqrt(L_F / tau + 1) + 1),
        ),
    ],
    "local_accuracy": [(lambda K=K: theory.local_accuracy(L_F, tau, K), reached(K)) for K in (1, 14, 40)],
    "local_theta": [
        # the positive root of (sigma/(gamma mu) + 2 max tau/L) theta^2 + 2 theta - (1 - sigma)
        (
            lambda: theory.local_theta(gamma, mu, L_F, tau, sigma),
            float(np.roots([sigma / gm + 2 * 0.35 / 0.6, 2.0, sigma - 1.0]).max()),
        ),
    ],
    "local_steps_for": [
        (lambda: theory.local_steps_for(theta, L_F, tau), next(K for K in range(1, 999) if reached(K) <= theta))
    ],
    "inexact_rate": [
        (
            lambda: theory.inexact_rate(gamma, mu, L_F, tau, pi, sigma, theta),
            max(1 / (1 + gm), *(1 - pi * tau / (L_F + tau))),
        ),
        # steps of the clients so long that the server's is what holds them up
        (
            lambda: theory.inexact_rate(gamma, mu, L_F, 90 * L_F, pi, 0.3, 1e-3),
            1 / (1 + gm),
        ),
    ],
    # Nesterov's momentum
    "nesterov_momentum": [
        (
            lambda: step_sizes.nesterov_momentum(L, mu),
            (math.sqrt(L) - math.sqrt(mu)) / (math.sqrt(L) + math.sqrt(mu)),
        )
    ],
    "nesterov_limit": [(lambda: step_sizes.nesterov_limit(L, 0.4), 2 * 1.4 / (1.8 * L))],
}
ELSEWHERE = {
    "cohort_sentence": "cohort_rounds in words",
    "local_radius": "its eigenvalues are those of a round, in test_five_gcs.py",
    "tracking_step": "a minimum, below",
}
"""Names of the theory without a row, and why."""


@pytest.mark.parametrize("name", FORMULAS)
def test_a_formula_is_that_of_its_paper_where_no_factor_is_one(name: str) -> None:
    for call, value in FORMULAS[name]:
        np.testing.assert_allclose(call(), value, rtol=1e-9, atol=1e-12)


def test_every_formula_has_its_row() -> None:
    names = {*theorems.__all__, *follow_ups.__all__, *local_solver.__all__}
    functions = {name for name in names if not isinstance(getattr(theory, name), type)}
    assert functions - set(FORMULAS) == set(ELSEWHERE)


def test_no_other_step_of_gradient_tracking_has_a_smaller_bound() -> None:
    best = theory.tracking_step(L, mu, 0.4)
    rates = [theory.tracking_rate(float(step), mu, L, 0.4) for step in best * np.geomspace(0.01, 20, 200)]
    assert theory.tracking_rate(best, mu, L, 0.4) <= min(rates) + 1e-9
    # it has the unit of 1/L
    assert theory.tracking_step(10 * L, 10 * mu, 0.4) == pytest.approx(best / 10, rel=1e-3)


@pytest.mark.parametrize("share", [None, 0.9, 0.4])
@pytest.mark.parametrize("kind", [ps.SplitSkip, ps.PDHG, ps.DecentralizedScaffnew, ps.RandomGossip])
def test_the_tau_that_is_chosen_is_the_largest_that_its_theorem_allows(kind: Any, share: float | None) -> None:
    """With a step size of one's own too: a hair more is refused."""
    if "D" in kind.about.handles:
        problem = ps.Problem(quadratics(1, 5)).with_psi(ps.prox.L1(0.01), difference(5))
    else:
        problem = ps.Problem(quadratics(5, 3, own=True))
    given = {} if share is None else {"gamma": share * kind.theory(problem).gamma}
    method = kind.theory(problem, **given)
    assert method.check(problem) == []
    with pytest.raises(ps.InputError, match="tau"):
        replace(method, tau=method.tau * (1 + 1e-6)).check(problem)
