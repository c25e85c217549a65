"""The rate that a method claims is its theorem's, up to the boundary of the theorem and not beyond it."""

import math
import warnings

import numpy as np
import pytest

import proxskip as ps
from proxskip import theory
from proxskip.types import UnsafeStepWarning
from support.problems import data

QUADRATICS = ps.Problem(ps.random_quadratics(4, 3, L=1.0, mu=0.1, seed=1))
ROWS = ps.split(ps.Logistic(*data(), l2=0.05), clients=4, by="iid", weights="equal")


def test_fedlin_claims_its_rate_up_to_the_theorems_step() -> None:
    largest = 1 / (6 * 5 * QUADRATICS.L_max)
    assert ps.FedLin(largest, 5).zeta(QUADRATICS) == largest * QUADRATICS.mu
    assert ps.FedLin(largest / 2, 5).zeta(QUADRATICS) == largest / 2 * QUADRATICS.mu
    assert ps.FedLin(largest * (1 + 1e-9), 5).zeta(QUADRATICS) is None


def test_scaffnew_on_cohorts_claims_the_sharp_rate_with_full_gradients_alone() -> None:
    for problem in (ROWS, ROWS.with_batch(4)):
        made = ps.Scaffnew.theory(problem, cohort=2)
        method = ps.Scaffnew(0.5 / problem.L, 0.9, chi=made.chi, a=made.a)  # where gamma mu is what binds
        chi, a = min(made.chi, 1.0), made.a
        plain = min(method.gamma * problem.mu, method.p**2 * chi * a)
        sharp = theory.tamuna_zeta(method.gamma, problem.mu, problem.L_max, method.p, chi, a)
        assert method.zeta(problem) == (plain if problem.batch else sharp)
        assert plain < sharp
    assert ps.Scaffnew(2 / ROWS.L_max, 0.1, chi=0.5).zeta(ROWS) is None
    assert ps.Scaffnew(1.999 / ROWS.L_max, 0.1, chi=0.5).zeta(ROWS) is not None


def test_scaffnew_vr_without_minibatches_claims_what_scaffnew_claims() -> None:
    gamma, p = 1 / ROWS.L_max, 0.2
    assert ps.ScaffnewVR(gamma, p).zeta(ROWS) == ps.Scaffnew(gamma, p).zeta(ROWS)


def test_5gcs_with_K_steps_claims_the_inexact_rate_of_the_accuracy_that_is_sure() -> None:
    method = ps.FiveGCS.theory(QUADRATICS, K=120)
    assert method.theta is None
    L, tau, pi = method._numbers(QUADRATICS)
    sure = theory.local_accuracy(L, tau, 120)
    sigma = theory.local_sigma(method.gamma, tau, QUADRATICS.weights, pi, method.rho)
    rate = theory.inexact_rate(method.gamma, method.mu, L, tau, pi, sigma, sure)
    assert rate is None or method.zeta(QUADRATICS) == 1.0 - rate
    half = ps.FiveGCS.theory(QUADRATICS, K=120, sigma=0.5, c=1.0)
    assert half.zeta(QUADRATICS) is not None


def test_5gcs_is_said_to_be_unstable_above_c_one_alone() -> None:
    problem = ps.Problem(ps.random_quadratics(4, 3, L=1.0, mu=0.01, seed=1))
    for c, notes in ((1.0, 0), (1.1, 1)):
        method = ps.FiveGCS.theory(problem, K=3, c=c)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UnsafeStepWarning)
            said = method.check(problem, allow_unsafe_step=True)
            assert ["may be unstable" in note for note in said] == [True] * notes, said


def test_locodl_needs_mu_g_below_mu() -> None:
    mu = QUADRATICS.mu
    assert mu is not None
    method = ps.LoCoDL.theory(QUADRATICS, codec="rand-1")
    for mu_g in (mu, 2 * mu):
        with pytest.raises(ps.InputError, match="must lie between 0 and mu"):
            ps.run(ps.LoCoDL.theory(QUADRATICS, codec="rand-1", mu_g=mu_g), QUADRATICS, rounds=1)
    below = ps.LoCoDL.theory(QUADRATICS, codec="rand-1", mu_g=math.nextafter(mu, 0.0))
    below.check(QUADRATICS)
    assert method.omega == method.codec.omega(QUADRATICS.d)


def test_the_map_of_a_round_of_5gcs_is_that_of_its_two_lines() -> None:
    """xhat = (z - gamma v)/(1 + gamma mu), then z and v move by the same multiple of l xhat - v."""
    rng = np.random.default_rng(0)
    for _ in range(200):
        gamma, mu, L, tau, l = np.exp(rng.uniform(-3, 3, 5))
        K = int(rng.integers(1, 6))
        l = min(l, L)  # an eigenvalue, less mu
        # K steps of Nesterov's momentum on  .5 l y^2 + tau/2 y^2  leave the share P of the distance
        beta = float(theory.local_momentum(np.asarray(L), np.asarray(tau)))
        left, before, P = 1.0 - (l + tau) / (L + tau), 1.0, 1.0
        for _ in range(K):
            before, P = P, left * ((1 + beta) * P - beta * before)
        g = tau * (1.0 - P) / (l + tau)

        def after(z: float, v: float, gamma: float, mu: float, l: float, g: float) -> tuple[float, float]:
            xhat = (z - gamma * v) / (1.0 + gamma * mu)
            return xhat - gamma * g * (l * xhat - v), v + g * (l * xhat - v)

        columns = [after(*e, gamma, mu, l, g) for e in ((1.0, 0.0), (0.0, 1.0))]
        radius = max(np.abs(np.linalg.eigvals(np.transpose(columns))).max(), abs(1.0 - g))
        found = theory.local_radius(gamma, mu, L, tau, K, np.array([mu + l]))
        assert found == pytest.approx(radius, rel=1e-6, abs=1e-9)
