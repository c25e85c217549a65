"""Laws of theory.py and table1.py: each rate against the exact mean-square behaviour of its method.

On quadratics every method is a random linear map z+ = M z of its errors, so E[Psi+] is a quadratic form and
its largest eigenvalue against Psi is the rate to the last digit: no run, no statistics.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.linalg
from hypothesis import given, settings
from hypothesis import strategies as st

import proxskip as ps
from conftest import data, draws
from proxskip import theory
from proxskip.registry import step_limits
from proxskip.theory import step_sizes
from proxskip.theory import table1 as t1
from proxskip.theory.step_sizes import check_limits
from proxskip.types import Array, InputError

n, d = 3, 2
kappas = st.floats(1.0, 1e8)
seeds = st.integers(0, 10_000)
few = settings(max_examples=draws(12))
Step = Callable[[Array, Array], tuple[Array, Array]]
Maps = list[tuple[float, Array]]
Cohorts = list[tuple[float, tuple[int, ...]]]


# -- the exact mean-square picture ---------------------------------------------------------------------------
def quadratics(rng: np.random.Generator, clients: int, mus: Any, Ls: Any) -> Array:
    """One d x d Hessian per client whose extreme eigenvalues are exactly mu_i and L_i."""
    Q = np.linalg.qr(rng.normal(size=(clients, d, d)))[0]
    spectra = np.linspace(np.broadcast_to(mus, clients), np.broadcast_to(Ls, clients), d, axis=1)
    return np.einsum("nij,nj,nkj->nik", Q, spectra, Q)


def matrix(step: Step, rows: int, dual: int | None = None) -> Array:
    """The matrix of a linear step (X, H) -> (X+, H+) on stacks of (rows, d) and (dual, d) errors."""
    columns = []
    for e in np.eye((rows + (dual or rows)) * d):
        X, H = step(*np.split(e.reshape(-1, d), [rows]))
        columns.append(np.concatenate([X.ravel(), H.ravel()]))
    return np.array(columns).T


def form(lyapunov: Callable[[Array, Array], float], rows: int, dual: int | None = None) -> Array:
    """The matrix P of a quadratic Lyapunov function, by polarisation."""

    def at(z: Array) -> float:
        return lyapunov(*np.split(z.reshape(-1, d), [rows]))

    E = np.eye((rows + (dual or rows)) * d)
    own = [at(e) for e in E]
    return np.array([[(at(e + g) - own[i] - own[j]) / 2 for j, g in enumerate(E)] for i, e in enumerate(E)])


def zero_sum(clients: int) -> Array:
    """A basis of {(X, H): sum_i h_i = 0}."""
    B = scipy.linalg.null_space(np.ones((1, clients)))
    return scipy.linalg.block_diag(np.eye(clients * d), np.kron(B, np.eye(d)))


def worst(maps: Maps, P: Array, basis: Array | None = None) -> float:
    """The largest eigenvalue of E[Psi+] against Psi."""
    B = np.eye(len(P)) if basis is None else basis
    Q = sum(prob * M.T @ P @ M for prob, M in maps)
    return float(scipy.linalg.eigh(B.T @ Q @ B, B.T @ P @ B, eigvals_only=True)[-1])


def radius(maps: Maps, basis: Array | None = None) -> float:
    """The spectral radius of the map of second moments, z z' -> E[M z z' M']."""
    size = len(maps[0][1])
    B = np.eye(size) if basis is None else basis
    small = [(prob, B.T @ M @ B) for prob, M in maps]
    return float(np.max(np.abs(np.linalg.eigvals(sum(prob * np.kron(M, M) for prob, M in small)))))


def skipping(p: float, step: Callable[[Array, Array, bool], tuple[Array, Array]], rows: int, dual: int = 0) -> Maps:
    """The maps of a step that communicates with probability p."""
    return [(p if talk else 1 - p, matrix(lambda X, H, t=talk: step(X, H, t), rows, dual)) for talk in (True, False)]  # type: ignore[misc]


def scaffnew_maps(A: Array, w: Any, gammas: Any, p: float) -> Maps:
    """Generalised Scaffnew in the prox form."""
    g = np.reshape(np.broadcast_to(gammas, len(A)), (-1, 1))
    c = np.reshape(w, (-1, 1)) / g

    def step(X: Array, H: Array, talk: bool) -> tuple[Array, Array]:
        xhat = X - g * (np.einsum("nij,nj->ni", A, X) - H)
        if not talk:
            return xhat, H
        x = np.sum(c * (xhat - g / p * H), axis=0) / np.sum(c)
        return np.broadcast_to(x, X.shape), H + p / g * (x - xhat)

    return skipping(p, step, len(A))


def cohort_maps(A: Array, gamma: float, p: float, chi: float, cohorts: Cohorts) -> Maps:
    """TAMUNA without compression: average a cohort, give its x to everybody, update h in the cohort only."""

    def step(X: Array, H: Array, cohort: tuple[int, ...] | None) -> tuple[Array, Array]:
        xhat = X - gamma * (np.einsum("nij,nj->ni", A, X) - H)
        if cohort is None:
            return xhat, H
        inside, H = list(cohort), H.copy()
        x = xhat[inside].mean(axis=0)
        H[inside] += p * chi / gamma * (x - xhat[inside])
        return np.broadcast_to(x, X.shape), H

    outcomes = [*((p * prob, S) for prob, S in cohorts), (1 - p, None)]
    return [(prob, matrix(lambda X, H, S=S: step(X, H, S), len(A))) for prob, S in outcomes]  # type: ignore[misc]


# -- ProxSkip and Scaffnew -----------------------------------------------------------------------------------
@given(kappas)
def test_the_best_p_is_one_over_the_root_of_kappa_and_gives_one_over_kappa(k: float) -> None:
    gamma = theory.largest_step(k)
    p = theory.best_p(gamma, 1.0)
    assert p == pytest.approx(1 / math.sqrt(theory.kappa(k, 1.0)), rel=1e-12)
    assert theory.zeta(gamma, 1.0, p) == pytest.approx(1 / k, rel=1e-12)
    assert theory.small_step_p(gamma, 1.0, k) == pytest.approx(p, rel=1e-12)
    assert theory.scaffnew_p(gamma, 1.0) == p


@given(kappas, st.floats(1e-9, 0.9), st.floats(0.01, 1.0))
def test_the_best_p_minimises_communications(k: float, eps: float, fraction: float) -> None:
    gamma = fraction / k
    best = theory.communications(eps, gamma, 1.0, theory.best_p(gamma, 1.0))
    for p in np.geomspace(1e-6, 1.0, 400):
        assert best <= theory.communications(eps, gamma, 1.0, float(p)) * (1 + 1e-12)


@given(st.floats(1e-12, 0.99), st.floats(1e-6, 0.999))
def test_the_iterations_reach_eps(eps: float, zeta: float) -> None:
    assert theory.iterations(eps, zeta) * math.log1p(-zeta) <= math.log(eps) * (1 - 1e-12)


@given(kappas, st.floats(1e-3, 1.0), st.floats(1e-3, 1.0))
def test_the_sharp_rate_is_at_least_the_theorems(k: float, fraction: float, p: float) -> None:
    gamma = fraction / k
    sharp, plain = theory.sharp_rate(gamma, 1.0, k, p), theory.zeta(gamma, 1.0, p)
    assert plain * (1 - 1e-12) <= sharp <= 2 * plain * (1 + 1e-12)


@few
@given(seeds, st.floats(0.1, 1.0), st.floats(0.05, 1.95))
def test_the_sharp_rate_is_exact_with_weights_and_own_steps(seed: int, p: float, fraction: float) -> None:
    rng = np.random.default_rng(seed)
    mus, Ls, w = rng.uniform(0.1, 1, n), rng.uniform(1, 30, n), rng.dirichlet(np.ones(n)) + 0.01
    gammas, x, star = fraction / Ls, np.zeros(d), np.zeros((n, d))
    P = form(lambda X, H: theory.scaffnew_lyapunov(w, gammas, p, X, H, x, star), n)
    zeta = theory.scaffnew_zeta(gammas, mus, p)
    exact = min(theory.sharp_rate(g, m, L, p) for g, m, L in zip(gammas, mus, Ls, strict=True))
    maps = scaffnew_maps(quadratics(rng, n, mus, Ls), w, gammas, p)
    assert worst(maps, P) == pytest.approx(1 - exact, abs=1e-9)
    assert radius(maps) <= 1 - exact + 1e-7
    assert exact >= zeta * (1 - 1e-12) or fraction > 1
    assert theory.scaffnew_zeta(gammas, mus, theory.scaffnew_p(gammas, mus)) == pytest.approx(min(gammas * mus))


def test_a_small_step_is_better_served_by_the_small_step_p() -> None:
    k = 1000.0
    A = quadratics(np.random.default_rng(0), n, 1.0, k)

    def per_decade(gamma: float, p: float) -> float:
        return p * math.log(10) / -math.log(radius(scaffnew_maps(A, 1 / n, gamma, p)))

    for gamma in (0.1 / k, 0.01 / k):
        small, best = theory.small_step_p(gamma, 1.0, k), theory.best_p(gamma, 1.0)
        assert small < best
        assert per_decade(gamma, small) < 0.6 * per_decade(gamma, best)


def test_scaffnews_psi_is_the_papers_divided_by_n_gamma() -> None:
    rng = np.random.default_rng(2)
    X, H, x, S = rng.normal(size=(n, d)), rng.normal(size=(n, d)), rng.normal(size=d), rng.normal(size=(n, d))
    ours = theory.scaffnew_lyapunov(1 / n, 0.2, 0.5, X, H, x, S)
    assert ours * n * 0.2 == pytest.approx(theory.psi_lyapunov(X, H, np.tile(x, (n, 1)), S, 0.2, 0.5))


# -- SProxSkip -----------------------------------------------------------------------------------------------
@given(kappas, st.floats(1e-6, 0.9), st.floats(0, 1e3), st.floats(1e-3, 1e3))
def test_the_stochastic_corollary_reaches_eps(A: float, eps: float, C: float, psi0: float) -> None:
    plan = theory.stochastic(eps, A, C, 1.0, psi0)
    zeta = theory.zeta(plan.gamma, 1.0, plan.p)
    bound = psi0 * math.exp(plan.iterations * math.log1p(-zeta) if zeta < 1 else -math.inf)
    assert plan.gamma <= 1 / A
    assert (bound if plan.iterations else min(psi0, eps / 2)) <= eps / 2 * (1 + 1e-9)
    assert theory.noise_ball(plan.gamma, C, zeta) <= eps / 2 * (1 + 1e-9)
    assert plan.communications == pytest.approx(plan.p * plan.iterations)


@few
@given(seeds, st.floats(0.2, 1.0))
def test_the_noise_ball_holds_the_stationary_psi(seed: int, p: float) -> None:
    k, sigma2, star = 10.0, 0.7, np.zeros((n, d))
    gamma, C = 1 / k, n * d * sigma2
    A = quadratics(np.random.default_rng(seed), n, 1.0, k)
    maps = scaffnew_maps(A, 1 / n, gamma, p)
    P = form(lambda X, H: theory.psi_lyapunov(X, H, star, star, gamma, p), n)
    # noise in the gradient moves xhat by gamma e, like an error of x in a step without gradient
    quiet = [(q, M[:, : n * d]) for q, M in scaffnew_maps(np.zeros_like(A), 1 / n, gamma, p)]
    noise = sum(q * M @ (gamma**2 * sigma2 * M.T) for q, M in quiet)
    moment = np.linalg.solve(np.eye(P.size) - sum(q * np.kron(M, M) for q, M in maps), noise.ravel())
    stationary = np.trace(P @ moment.reshape(P.shape))
    assert theory.bounded_variance(k, C) == (k, C)
    assert 0 < stationary <= theory.noise_ball(gamma, C, theory.zeta(gamma, 1.0, p)) * (1 + 1e-9)


@pytest.mark.parametrize("kind", [ps.LeastSquares, ps.Logistic])
def test_expected_smoothness_needs_its_factor_two(kind: Any) -> None:
    m, largest, naive = 5, 0.0, 0.0
    for seed in range(25):
        rng = np.random.default_rng(seed)
        a, b = rng.normal(size=(m, d)) * rng.uniform(0.2, 3, (m, 1)), rng.normal(size=m)
        f = ps.Logistic(a, b > np.median(b), l2=0.05) if kind is ps.Logistic else ps.LeastSquares(a, b)
        solution = ps.Problem([f]).solution
        assert solution is not None
        x_star, spread = solution.x, f.gradient_variance(solution.x)
        points = [x_star + r * rng.normal(size=d) for r in np.geomspace(1e-2, 10, 12)]

        def second(x: Array, size: int, f: Any = f) -> float:
            batches = itertools.combinations(range(m), size)
            return float(np.mean([np.sum(f.minibatch_gradient(x, np.array(S)) ** 2) for S in batches]))

        for size in range(1, m + 1):
            es_A, es_C = theory.expected_smoothness(m, size, f.L, f.L_rows, spread)
            L_b, sigma2 = (
                theory.minibatch_smoothness(m, size, f.L, f.L_rows),
                theory.minibatch_variance(m, size, spread),
            )
            assert second(x_star, size) == pytest.approx(sigma2, abs=1e-12)
            for x in points:
                bregman, moment = f.value(x) - f.value(x_star), second(x, size)
                largest = max(largest, moment / (2 * es_A * bregman + es_C))
                if sigma2 > 0:
                    naive = max(naive, moment / (2 * L_b * bregman + sigma2))
        assert theory.expected_smoothness(m, m, f.L, f.L_rows, spread) == (f.L, 0.0)
    assert largest <= 1 + 1e-6
    assert naive > 1.2


def test_minibatch_smoothness_goes_from_L_max_to_L() -> None:
    values = [theory.minibatch_smoothness(10, b, 1.0, 7.0) for b in range(1, 11)]
    assert (values[0], values[-1]) == (7.0, 1.0)
    assert values == sorted(values, reverse=True)
    m, b, L, top = 2488, 200, 0.66, 3.1  # the authors' way to write it
    other = m / (m - 1) * (1 - 1 / b) * L + (m / b - 1) / (m - 1) * top
    assert theory.minibatch_smoothness(m, b, L, top) == pytest.approx(other)
    assert theory.minibatch_smoothness(1, 1, 2.0, 2.0) == 2.0
    unknown = theory.expected_smoothness(10, 3, 1.0, 7.0, math.nan)
    assert unknown.es_A == 2 * values[2]
    assert math.isnan(unknown.es_C)
    assert theory.expected_smoothness(10, 3, 1.0, 7.0, 0.0) == (values[2], 0.0)


def test_the_decaying_step_starts_at_gamma0_and_falls_like_one_over_k() -> None:
    steps = [theory.decaying_step(k, 0.5, 100, 0.01) for k in range(50)]
    assert steps[0] == 0.5
    assert steps == sorted(steps, reverse=True)
    assert theory.decaying_step(10**9, 0.5, 100, 0.01) * 10**9 == pytest.approx(2 / (100 * 0.01))
    assert theory.decaying_step(10**9, 0.5, 100, 0.0) == 0.5


# -- SplitSkip and gossip ------------------------------------------------------------------------------------
@few
@given(seeds, st.floats(0.1, 1.0), st.floats(0.2, 1.0))
def test_splitskip_contracts_as_its_theorem_says(seed: int, p: float, fraction: float) -> None:
    """x in R^4, D is 2 x 4, psi the indicator of 0."""
    rng, k = np.random.default_rng(seed), 8.0
    A = scipy.linalg.block_diag(*quadratics(rng, 2, 1.0, k))
    D, gamma = rng.normal(size=(d, 2 * d)), 1 / k
    eigenvalues = np.linalg.eigvalsh(D @ D.T)
    largest = theory.split_tau(gamma, p, eigenvalues[-1])
    assert theory.check_tau(largest, gamma, p, eigenvalues[-1]) == largest
    tau = fraction * largest

    def step(X: Array, Y: Array, talk: bool) -> tuple[Array, Array]:
        x, y = X.ravel(), Y.ravel()
        xhat = x - gamma * (A @ x + D.T @ y)
        return (xhat - gamma / p * D.T @ (tau * D @ xhat), y + tau * D @ xhat) if talk else (xhat, y)

    P = form(lambda X, Y: theory.split_lyapunov(X, Y, np.zeros_like(X), np.zeros_like(Y), gamma, p, tau), 2, 1)
    zeta = theory.split_zeta(gamma, 1.0, p, tau, eigenvalues[0])
    assert worst(skipping(p, step, 2, 1), P) <= 1 - zeta + 1e-9


@given(kappas, st.floats(1e-4, 1.0), st.floats(0.1, 10.0))
def test_split_p_is_the_smallest_that_costs_nothing(k: float, ratio: float, norm2: float) -> None:
    gamma, lmin = 1 / k, ratio * norm2
    p = theory.split_p(gamma, 1.0, norm2, lmin)
    zeta = theory.split_zeta(gamma, 1.0, p, theory.split_tau(gamma, p, norm2), lmin)
    assert zeta == pytest.approx(min(1 / k, ratio), rel=1e-9)
    less = theory.split_zeta(gamma, 1.0, p / 2, theory.split_tau(gamma, p / 2, norm2), lmin)
    assert less < zeta


@given(kappas, st.floats(1e-6, 2.0), st.floats(1.0, 2.0))
def test_the_two_regimes_of_gossip(k: float, delta: float, lmax: float) -> None:
    delta = min(delta, lmax)
    plan = theory.decentralized(k, 1.0, delta, lmax)
    assert plan.regime == ("skip" if plan.p < 1 else "every iteration")
    assert plan.zeta == pytest.approx(min(1 / k, delta / lmax), rel=1e-9)
    if delta / lmax <= (1 - 1e-9) / k:
        assert plan.regime == "every iteration"
    if delta / lmax >= (1 + 1e-9) / k:
        assert plan.regime == "skip"


def test_gossip_pinv_is_the_pseudoinverse() -> None:
    W = ps.graphs.graph("ring", 6).W
    pinv = theory.gossip_pinv(W)
    np.testing.assert_allclose((np.eye(6) - W) @ pinv @ (np.eye(6) - W), np.eye(6) - W, atol=1e-12)
    np.testing.assert_allclose(pinv @ np.ones(6), 0, atol=1e-12)
    assert theory.gossip_pinv(np.ones((1, 1))) == 0
    with pytest.raises(InputError, match="connected"):
        theory.gossip_pinv(np.eye(3))


# -- cohorts -------------------------------------------------------------------------------------------------
def disagreement(clients: int, cohorts: Cohorts) -> tuple[float, float]:
    """a and nu by enumeration, from their definitions as expectations over cohorts."""
    x = np.random.default_rng(clients).normal(size=(clients, d))
    V = np.sum((x - x.mean(axis=0)) ** 2)
    means = [(prob, list(S), x[list(S)].mean(axis=0)) for prob, S in cohorts]
    spread = sum(prob * clients * np.sum(mean**2) for prob, _, mean in means)
    a = sum(prob * np.sum((x[S] - mean) ** 2) for prob, S, mean in means)
    return float(a / V), float((np.sum(x**2) - spread) / V)


def uniform(clients: int, c: int) -> Cohorts:
    sets = list(itertools.combinations(range(clients), c))
    return [(1 / len(sets), S) for S in sets]


def bernoulli(clients: int, prob: float) -> Cohorts:
    sets = [S for c in range(1, clients + 1) for S in itertools.combinations(range(clients), c)]
    weights = np.array([prob ** len(S) * (1 - prob) ** (clients - len(S)) for S in sets])
    return list(zip(weights / weights.sum(), sets, strict=True))


@pytest.mark.parametrize("clients", [2, 3, 4, 5])
def test_cohort_constants_match_enumeration(clients: int) -> None:
    for c in range(2, clients + 1):
        assert theory.uniform_cohort(clients, c) == pytest.approx(disagreement(clients, uniform(clients, c)))
        assert theory.uniform_cohort(clients, c).chi == pytest.approx(theory.nu(clients, c))
    for prob in (0.05, 0.5, 0.9, 1.0):
        expected = disagreement(clients, bernoulli(clients, prob))
        assert theory.bernoulli_cohort(clients, prob) == pytest.approx(expected)
    sizes = {0: 0.5, 1: 0.25, clients: 0.25}
    assert theory.cohort_constants(clients, sizes) == pytest.approx((0.5, 0.5))


def test_everybody_has_constants_one() -> None:
    assert theory.uniform_cohort(7, 7) == theory.bernoulli_cohort(7, 1.0) == theory.uniform_cohort(1, 1) == (1, 1)
    assert theory.bernoulli_cohort(1, 0.3) == (1, 1)
    assert sum(theory.binomial_sizes(30, 0.2).values()) == pytest.approx(1)
    assert theory.tamuna_zeta(0.1, 1.0, 10.0, 0.3, 1, 1) == theory.sharp_rate(0.1, 1.0, 10.0, 0.3)
    a, chi = theory.bernoulli_cohort(20_000, 0.01)
    assert a == pytest.approx(0.01, rel=0.01)
    assert 0.99 < chi < 1


@pytest.mark.parametrize(
    ("clients", "cohorts"),
    [(3, uniform(3, 2)), (4, uniform(4, 2)), (4, uniform(4, 3)), (3, bernoulli(3, 0.6)), (3, uniform(3, 3))],
)
@pytest.mark.parametrize(("k", "fraction", "p"), [(5.0, 1.0, 0.4), (20.0, 1.7, 0.2), (3.0, 0.5, 1.0)])
@pytest.mark.parametrize("less", [1.0, 0.5])
def test_tamuna_contracts_by_its_zeta(
    clients: int, cohorts: Cohorts, k: float, fraction: float, p: float, less: float
) -> None:
    a, bound = np.minimum(disagreement(clients, cohorts), 1.0)
    x, S, gamma, chi = np.zeros(d), np.zeros((clients, d)), fraction / k, less * bound
    A = quadratics(np.random.default_rng(int(k)), clients, 1.0, k)
    P = form(lambda X, H: theory.scaffnew_lyapunov(1 / clients, gamma, p, X, H, x, S, chi * a), clients)
    maps, basis = cohort_maps(A, gamma, p, chi, cohorts), zero_sum(clients)
    zeta = theory.tamuna_zeta(gamma, 1.0, k, p, chi, a)
    assert worst(maps, P, basis) <= 1 - zeta + 1e-9
    if clients == 3:
        assert radius(maps, basis) <= 1 - zeta + 1e-7


@given(st.integers(2, 40), st.floats(1.0, 1e6))
def test_tamuna_p_is_the_smallest_that_costs_nothing(c: int, k: float) -> None:
    a, chi = theory.uniform_cohort(40, c)
    gamma = 1 / k
    p = theory.tamuna_p(gamma, 1.0, chi, a)
    best = theory.tamuna_zeta(gamma, 1.0, k, 1.0, chi, a)
    assert theory.tamuna_zeta(gamma, 1.0, k, p, chi, a) == pytest.approx(best, rel=1e-9)
    assert theory.tamuna_zeta(gamma, 1.0, k, p / 2, chi, a) < best


def rounds_promised(method: Any, problem: ps.Problem) -> float:
    """The theorem's rounds per digit, up to a constant."""
    zeta = method.zeta(problem)
    assert zeta is not None
    return float(method.p / zeta)


@pytest.mark.parametrize("k", [10.0, 1e3])
def test_theory_of_tamuna_and_locodl_promises_the_fewest_rounds(k: float) -> None:
    """Clients that are alike: no other gamma with its best p is promised fewer, and gamma = 1/L needs 1.4 times more."""
    like = ps.random_quadratics(6, 4, mu=1 / k, seed=1)[0].H
    problem = ps.Problem([ps.Quadratic(like, np.arange(4.0) + i) for i in range(6)])
    L, mu = problem.L_max, problem.mu
    assert mu is not None
    tamuna, locodl = ps.Tamuna.theory(problem, s=3), ps.LoCoDL.theory(problem, "natural")
    assert tamuna.gamma == 2 / (L + mu)
    assert locodl.gamma == 2 / L
    for method, at in (
        (tamuna, lambda g: ps.Tamuna.configure(problem, {"gamma": float(g), "s": 3})),
        (locodl, lambda g: ps.LoCoDL.configure(problem, {"gamma": float(g), "codec": "natural"})),
    ):
        assert method.check(problem) == []
        promised = rounds_promised(method, problem)
        others = [rounds_promised(at(t / L), problem) for t in np.linspace(0.1, 1.99, 40)]
        assert promised <= min(others) * (1 + 1e-9)
        assert rounds_promised(at(1 / L), problem) > (1.4 if k > 100 else 1.1) * promised
        with pytest.raises(InputError, match="diverge"):
            at(2 / (L - mu / 2)).check(problem)


def test_unlike_clients_minibatches_and_the_figures_keep_their_steps() -> None:
    unlike = ps.Problem([ps.Quadratic(np.roll([1.0, 0.01, 0.01, 0.01], i), np.ones(4)) for i in range(4)])
    assert 2 * unlike.L_global < unlike.L_max
    rows = ps.split(ps.Logistic(*data(), l2=0.05), clients=4, by="label", weights="equal")
    assert 2 * rows.L_global > rows.L_max
    figures = ps.split(ps.Logistic(*data(), l2=0.05), clients=4, by="label", weights="equal", L="global")
    for problem in (unlike, figures):
        assert ps.Tamuna.theory(problem).gamma == 1 / problem.L
        assert ps.LoCoDL.theory(problem).gamma == 1 / problem.L
    assert ps.Tamuna.theory(rows).gamma > 1.5 / rows.L
    assert ps.Tamuna.theory(rows.with_batch(4)).gamma == 1 / rows.with_batch(4).es_A
    # what the user gives is taken
    assert ps.Tamuna.configure(rows, {"gamma": 0.5}).gamma == 0.5
    assert ps.Tamuna.configure(rows, {"gamma": "figure"}).gamma == 1 / rows.L
    assert ps.Tamuna.configure(rows, {}) == ps.Tamuna.theory(rows)
    assert ps.LoCoDL.configure(rows, {}) == ps.LoCoDL.theory(rows)


# -- L-SVRG --------------------------------------------------------------------------------------------------
@given(st.floats(1.0, 1e6), st.floats(1e-3, 1.0))
def test_the_step_of_lsvrg_takes_the_fewest_gradients_of_its_theorem(k: float, share: float) -> None:
    """Among steps from 1/(6 L_b) on: never more rounds than there, and with q anchors keep pace with x."""

    def cost(gamma: float) -> float:
        return float((2 * share + theory.lsvrg_q(gamma, k, 1.0)) / gamma)

    gamma = theory.lsvrg_step(k, 1.0, share)
    q = theory.lsvrg_q(gamma, k, 1.0)
    assert 1 / (6 * k) * (1 - 1e-12) <= gamma < 1 / (4 * k)
    assert 0 < q < 1
    assert theory.lsvrg_constants(gamma, k, q)[1] >= gamma * (1 - 1e-9)
    others = [1 / ((4 + e) * k) for e in np.geomspace(1e-4, 2, 60)]
    others = [g for g in others if theory.lsvrg_q(g, k, 1.0) < 1]  # otherwise anchors are too slow
    assert cost(gamma) <= min(cost(g) for g in others) * (1 + 1e-9)


def test_q_of_lsvrg_is_twice_gamma_mu_up_to_the_papers_step() -> None:
    for gamma, factor in ((0.01, 2.0), (1 / 6, 2.0), (1 / 5, 3.0), (0.24, 13.0), (0.25, 2.0), (1.0, 2.0)):
        assert theory.lsvrg_q(gamma, 1.0, 0.01) == pytest.approx(min(1.0, factor * gamma * 0.01))
    problem = ps.split(ps.Logistic(*data(), l2=0.05), clients=3).with_batch(4)
    method = ps.ScaffnewVR.theory(problem)
    assert method.check(problem) == []
    assert method.gamma * float(problem.L_batch_i.max()) > 1 / 6
    assert method.zeta(problem) == pytest.approx(method.gamma * problem.mu)


# -- step sizes and Table 1 ----------------------------------------------------------------------------------
def momentum_radius(s: float, beta: float) -> float:
    """Of Nesterov's step along an eigenvector that a gradient step shrinks by s."""
    return float(np.max(np.abs(np.linalg.eigvals([[s * (1 + beta), -s * beta], [1.0, 0.0]]))))


@given(st.floats(0.0, 1.0), st.floats(0.1, 10.0))
def test_nesterovs_limit_is_exact_on_quadratics(beta: float, L: float) -> None:
    limit = step_sizes.nesterov_limit(L, beta)
    below = 1 - limit * (1 - 1e-4) * np.linspace(1e-3 * L, L, 30)
    assert max(momentum_radius(s, beta) for s in below) < 1
    assert momentum_radius(1 - limit * (1 + 1e-4) * L, beta) > 1


@given(kappas)
def test_nesterovs_momentum_gives_its_rate(k: float) -> None:
    beta, zeta = step_sizes.nesterov_momentum(k, 1.0), step_sizes.nesterov_zeta(k, 1.0)
    assert max(momentum_radius(1 - l / k, beta) for l in np.geomspace(1.0, k, 9)) <= 1 - zeta + 1e-6


STEPPING = "GD ProxGD ProxSkip Scaffnew SplitSkip accelerated LocalGD Scaffold FedLin S-Local-GD DIGing EXTRA"


@pytest.mark.parametrize("method", [*STEPPING.split(), "Decentralized-Scaffnew"])
@pytest.mark.parametrize(("K", "eta_g"), [(1, 1.0), (2, 1.0), (100, 0.1)])
def test_step_limits_are_in_order(method: str, K: int, eta_g: float) -> None:
    limits = step_limits(method, L=4.0, K=K, p=1 / K, eta_g=eta_g, mu=1.0, n=10, cohort=5)
    assert limits.warn_above < limits.refuse_at <= 2 / 4.0
    assert limits.figure <= max(limits.warn_above, 1 / (4.0 * K * eta_g)) + 1e-15
    if limits.theorem is not None:
        assert 0 < limits.theorem <= limits.figure
    assert check_limits(method, limits.warn_above, limits) == []
    assert len(check_limits(method, (limits.warn_above + limits.refuse_at) / 2, limits)) == 1
    with pytest.raises(InputError, match="diverge"):
        check_limits(method, limits.refuse_at, limits)
    (warning,) = check_limits(method, limits.refuse_at, limits, L=4.0, insist=True)
    assert f"{limits.refuse_at * 4.0:.3g}/L" in warning


def test_step_limits_by_name() -> None:
    assert step_limits("s_local_gd", 2.0, p=0.1) == step_limits("S-Local-GD", 2.0, p=0.1)
    assert step_limits("s_local_gd", 2.0, p=0.1).theorem is None
    assert step_limits("LocalGD", 1.0, K=1).theorem == 1 / 4
    assert step_limits("LocalGD", 1.0, K=5).theorem == 1 / 32
    assert step_limits("Scaffold", 1.0, K=5).theorem == pytest.approx(1 / 405)
    few_of_many = step_limits("Scaffold", 1.0, K=5, mu=1.0, n=1000, cohort=1).theorem
    assert few_of_many == pytest.approx(1 / (15 * 5 * 1000))
    assert step_limits("accelerated", 1.0).refuse_at == pytest.approx(4 / 3)
    assert step_limits("accelerated", 1.0, mu=1.0).refuse_at == 2.0
    with pytest.raises(InputError, match="adam"):
        step_limits("adam", 1.0)


@few
@given(seeds, st.floats(2.0, 50.0), st.integers(1, 20))
def test_fedlins_theorem_step_contracts_as_proved(seed: int, k: float, K: int) -> None:
    A = quadratics(np.random.default_rng(seed), n, 1.0, k)
    F = A.mean(axis=0)

    def one_round(gamma: float) -> Array:
        Y = np.tile(np.eye(d), (n, 1, 1))
        for _ in range(K):
            Y = Y - gamma * (A @ Y - (A - F))
        return Y.mean(axis=0)

    limits = step_limits("FedLin", k, K=K)
    assert limits.theorem is not None
    M = one_round(limits.theorem)
    assert scipy.linalg.eigh(M.T @ F @ M, F, eigvals_only=True)[-1] <= 1 - 1 / (6 * k) + 1e-9
    assert np.max(np.abs(np.linalg.eigvals(one_round(limits.figure)))) < 1


@few
@given(seeds, st.floats(2.0, 30.0), st.floats(0.05, 1.0), st.floats(0.3, 1.0))
def test_s_local_gd_converges_at_the_steps_called_measured(seed: int, k: float, p: float, q: float) -> None:
    A = quadratics(np.random.default_rng(seed), n, 1.0, k)
    figure = step_limits("S-Local-GD", k, p=p).figure
    for gamma in (figure, figure / 4):

        def step(X: Array, w: Array, talk: bool, refresh: bool, gamma: float = gamma) -> tuple[Array, Array]:
            X = X - gamma * (np.einsum("nij,nj->ni", A, X - w) + A.mean(axis=0) @ w[0])
            X = np.broadcast_to(X.mean(axis=0), X.shape) if talk else X
            return X, X[:1] if refresh else w

        coins = ((p * q, True, True), (p * (1 - q), True, False), (1 - p, False, False))
        maps = [(prob, matrix(lambda X, w, c=c: step(X, w, *c), n, 1)) for prob, *c in coins]  # type: ignore[misc]
        assert radius(maps) < 1


@given(st.floats(1.0, 1e6), st.floats(1e-8, 0.5), st.floats(1e-3, 1.0))
def test_table1_says_what_the_paper_says(k: float, eps: float, p: float) -> None:
    table = t1.table1(k, 1.0, eps, 10, d=7, p=p)
    rows = {r.method.split(",")[0] + ("*" if "sqrt" in r.method else ""): r for r in table}
    assert ",".join(rows) == "GD,accelerated GD,LocalGD,Scaffold,S-Local-GD,FedLin,Scaffnew,Scaffnew*"
    gd, best, ours, local = rows["GD"], rows["Scaffnew*"], rows["Scaffnew"], rows["LocalGD"]
    best_p = theory.best_p(1 / k, 1.0)
    for row, its_p in ((gd, 1.0), (best, best_p), (ours, p)):
        assert row.rounds == pytest.approx(theory.communications(eps, 1 / k, 1.0, its_p))
    assert best.local_steps == pytest.approx(1 / best_p)
    for name in ("GD", "Scaffold", "S-Local-GD", "FedLin"):
        assert rows[name].better_than_gd is rows[name].paper_better is False
    if k > 1.01:
        assert best.better_than_gd
    if abs(math.log(p * k)) > 1e-6 and p < 0.999:
        assert ours.better_than_gd == ours.paper_better
    assert local.rounds is local.better_than_gd is local.total_floats is None
    assert [r.method for r in table if not r.linear] == ["LocalGD"]
    for row in table:
        if row.rounds is not None:
            assert row.floats_per_round is not None
            assert row.total_floats == pytest.approx(row.rounds * row.floats_per_round)


def test_table1_counts_vectors_and_exchanges() -> None:
    rows = {r.method: r for r in t1.table1(100.0, 1.0, 1e-3, 20, d=10, G2=4.0, K=5, q=0.25)}
    assert (rows["FedLin"].floats_per_round, rows["FedLin"].exchanges_per_round) == (20, 2)
    assert (rows["S-Local-GD"].floats_per_round, rows["S-Local-GD"].exchanges_per_round) == (12.5, 1.25)
    assert (rows["Scaffold"].floats_per_round, rows["Scaffold"].exchanges_per_round) == (20, 1)
    assert rows["LocalGD"].rounds == pytest.approx(4 / (20 * 5 * 1e-3))
    assert rows["LocalGD"].step == pytest.approx(1 / 500)
    assert rows["LocalGD"].better_than_gd is False
    assert {r.local_steps for r in t1.table1(100.0, 1.0, 1e-3, 20)[2:]} == {10}
    assert t1.table1(100.0, 1.0, 1e-3, 20)[0].floats_per_round is None


# -- refusals ------------------------------------------------------------------------------------------------

x2, h4 = np.zeros(2), np.zeros((4, 2))
REFUSED: list[tuple[Callable[[], object], str]] = [
    (lambda: theory.kappa(1.0, 2.0), r"mu = 2 is larger than L = 1"),
    (lambda: theory.kappa(1.0, None), r"mu is unknown .* pass l2 > 0 without an intercept, or gamma and p"),
    (lambda: theory.kappa(1.0, 0.0), r"mu is unknown"),
    (lambda: theory.kappa(1.0, math.nan), r"mu is unknown"),
    (lambda: theory.kappa(1.0, -1.0), r"mu = -1 must be positive"),
    (lambda: theory.kappa(0.0, 1.0), r"L = 0 must be positive"),
    (lambda: theory.kappa(math.inf, 1.0), r"L = inf must be positive and finite"),
    (lambda: theory.kappa("big", 1.0), r"L = 'big' is not a number"),  # type: ignore[arg-type]
    (lambda: theory.kappa(1e10, 1e-310), r"kappa = L/mu overflows"),
    (lambda: theory.best_p(0.0, 1.0), r"gamma = 0 must be positive"),
    (lambda: theory.best_p(0.1, None), r"mu is unknown"),
    (lambda: theory.zeta(0.1, 1.0, 0.0), r"p = 0 must be positive"),
    (lambda: theory.zeta(0.1, 1.0, 1.5), r"p = 1.5 must lie in \(0, 1\]"),
    (lambda: theory.sharp_rate(2.0, 0.5, 1.0, 0.5), r"gamma = 2 is too large: it must be below 2/L = 2"),
    (lambda: theory.iterations(1.0, 0.5), r"eps = 1 must lie in \(0, 1\)"),
    (lambda: theory.stochastic(0.1, 0.5, 1.0, 1.0), r"es_A = 0.5 is smaller than mu = 1"),
    (lambda: theory.stochastic(0.1, 1.0, -1.0, 1.0), r"es_C = -1 must be zero or positive"),
    (lambda: theory.stochastic(0.1, 1.0, math.nan, 1.0), r"es_C = nan must be zero or positive"),
    (lambda: theory.minibatch_smoothness(5, 6, 1.0, 2.0), r"b = 6 is larger than m = 5"),
    (lambda: theory.minibatch_smoothness(5, 0, 1.0, 2.0), r"b = 0 must be a whole number"),
    (lambda: theory.minibatch_smoothness(5, 2, 2.0, 1.0), r"L = 2 is larger than L_max = 1"),
    (lambda: theory.decaying_step(-1, 0.1, 1, 0.0), r"k = -1 must be a whole number"),
    (lambda: theory.scaffnew_zeta([0.1, 0.2], [1.0, 0.0], 0.5), r"mu is unknown for client 1"),
    (lambda: theory.scaffnew_zeta([0.1, -0.2], [1.0, 1.0], 0.5), r"gamma of client 1 = -0.2"),
    (lambda: theory.scaffnew_p([0.1, 0.2], [1.0, 1.0, 1.0]), r"2 step sizes and 3 values of mu"),
    (lambda: theory.check_tau(6.0, 0.1, 0.5), r"tau = 6 is too large: it must be at most p/\(gamma \|\|D D'\|\|\) = 5"),
    (lambda: theory.split_zeta(0.1, 1.0, 0.5, 0.0, 1.0), r"tau = 0 must be positive"),
    (lambda: theory.split_p(0.1, 1.0, 1.0, 2.0), r"lmin_plus = 2 is larger than norm2 = 1"),
    (lambda: theory.decentralized(1.0, 0.1, 0.0), r"lmin_plus = 0 must be positive"),
    (lambda: theory.uniform_cohort(5, 1), r"h could never learn"),
    (lambda: theory.uniform_cohort(5, 6), r"a cohort of 6 is larger than n = 5"),
    (lambda: theory.uniform_cohort(0, 0), r"must be a whole number"),
    (lambda: theory.cohort_constants(5, {0: 1.0}), r"h could never learn"),
    (lambda: theory.cohort_constants(5, {2: 0.5}), r"sum 1, not 0.5"),
    (lambda: theory.bernoulli_cohort(5, 0.0), r"prob = 0 must be positive"),
    (lambda: theory.tamuna_zeta(0.1, 1.0, 5.0, 0.5, 1.2, 0.5), r"chi = 1.2 must lie in \(0, 1\]"),
    (lambda: theory.tamuna_p(3.0, 1.0, 1.0, 1.0), r"gamma = 3 is larger than 1/mu = 1"),
    (lambda: theory.psi_lyapunov(x2, x2, np.zeros(3), x2, 0.1, 0.5), r"shape \(2,\) is compared with shape \(3,\)"),
    (lambda: theory.scaffnew_lyapunov(1, 1, 1, np.zeros(3), h4, x2, h4), r"does not fit"),
    (lambda: theory.scaffnew_lyapunov(1, 1, 1, x2, h4, x2, x2), r"is compared with shape \(2,\)"),
    (lambda: theory.scaffnew_lyapunov([1], 1, 1, x2, h4, x2, h4), r"each of 4 clients"),
    (lambda: step_sizes.nesterov_limit(1.0, 1.5), r"beta = 1.5 must lie in \[0, 1\]"),
    (lambda: step_limits("Scaffold", 1.0, K=0), r"K = 0 must be a whole number"),
    (lambda: step_limits("Scaffold", 1.0, n=3, cohort=4), r"a cohort of 4 is larger than n = 3"),
    (lambda: step_limits("GD", 1.0, mu=2.0), r"mu = 2 is larger than L = 1"),
    (lambda: t1.table1(1.0, 0.1, 0.1, 0), r"n = 0 must be a whole number"),
    (lambda: t1.table1(1.0, 0.1, 0.1, 2, d=0), r"d = 0 must be a whole number"),
    (lambda: t1.table1(1.0, 0.1, 2.0, 2), r"eps = 2 must lie in \(0, 1\)"),
    (lambda: t1.table1(1.0, None, 0.1, 2), r"mu is unknown"),
]


@pytest.mark.parametrize(("call", "message"), REFUSED)
def test_bad_numbers_are_refused_in_one_sentence(call: Callable[[], object], message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        call()
    assert str(caught.value).endswith(".")
    assert "\n" not in str(caught.value)


def test_rounding_between_L_and_mu_is_forgiven() -> None:
    assert theory.kappa(1.0, 1.0 + 1e-12) == 1.0
    assert theory.decentralized(1.0, 1.0 + 1e-12, 1.0).zeta == 1.0
