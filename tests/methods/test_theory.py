"""Laws of the theory and of Table 1; test_laws.py has the eigenvalues of the Lyapunov functions."""

import itertools
import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import scipy.linalg
from hypothesis import given, settings
from hypothesis import strategies as st

import proxskip as ps
from proxskip import theory
from proxskip.experiments import paper_table as t1
from proxskip.methods.registry import step_limits
from proxskip.participation import Bernoulli, Uniform
from proxskip.theory import minibatches, step_sizes
from proxskip.theory.step_sizes import check_limits
from proxskip.types import Array, InputError
from support.error_maps import ErrorMaps, linear_part, quadratic_form
from support.machine import cohorts_of
from support.problems import data
from support.tiers import draws

n, d = 3, 2
kappas = st.floats(1.0, 1e8)
seeds = st.integers(0, 10_000)
few = settings(max_examples=draws(12))
Maps = list[tuple[float, Array]]


def hessians(L: float, seed: int) -> Array:
    """One for each client, with mu = 1."""
    return np.stack([f.H for f in ps.random_quadratics(n, d, L=L, mu=1.0, seed=seed)])


def radius(maps: Maps) -> float:
    """The spectral radius of the map of second moments, z z' -> E[M z z' M']."""
    return float(np.max(np.abs(np.linalg.eigvals(sum(prob * np.kron(M, M) for prob, M in maps)))))


def scaffnew_maps(L: float, gamma: float, p: float, seed: int = 0) -> Maps:
    """The linear maps of an iteration on some quadratics with mu = 1: with communication, and without it."""
    problem = ps.Problem(ps.random_quadratics(n, d, L=L, mu=1.0, seed=seed))
    law = ErrorMaps(problem, ps.Scaffnew(gamma, p))
    heads, tails = (linear_part(lambda z, k=k: law.step(z, np.arange(n))[k], law.fixed) for k in (0, 1))
    return [(p, heads), (1 - p, tails)]


@given(kappas)
def test_the_best_p_is_one_over_the_root_of_kappa_and_gives_one_over_kappa(k: float) -> None:
    gamma = theory.largest_step(k)
    p = theory.best_p(gamma, 1.0)
    assert p == pytest.approx(1 / math.sqrt(theory.kappa(k, 1.0)), rel=1e-12)
    assert theory.zeta(gamma, 1.0, p) == pytest.approx(1 / k, rel=1e-12)
    assert theory.scaffnew_p(gamma, 1.0) == p
    steps, mus = np.array([gamma, gamma / 3]), np.array([1.0, 2.0])
    assert theory.scaffnew_zeta(steps, mus, theory.scaffnew_p(steps, mus)) == pytest.approx(min(steps * mus))


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


@given(kappas, st.floats(1e-6, 0.9), st.floats(0, 1e3), st.floats(1e-3, 1e3))
def test_the_stochastic_corollary_reaches_eps(A: float, eps: float, C: float, psi0: float) -> None:
    plan = theory.stochastic(eps, A, C, 1.0, psi0)
    zeta = theory.zeta(plan.gamma, 1.0, plan.p)
    bound = psi0 * math.exp(plan.iterations * math.log1p(-zeta) if zeta < 1 else -math.inf)
    assert plan.gamma <= 1 / A
    assert (bound if plan.iterations else min(psi0, eps / 2)) <= eps / 2 * (1 + 1e-9)
    assert plan.gamma**2 * C / zeta <= eps / 2 * (1 + 1e-9)  # the ball that the noise leaves
    assert plan.communications == pytest.approx(plan.p * plan.iterations)


@few
@given(seeds, st.floats(0.2, 1.0))
def test_the_noise_ball_holds_the_stationary_psi(seed: int, p: float) -> None:
    k, sigma2, star = 10.0, 0.7, np.zeros((n, d))
    gamma, C = 1 / k, n * d * sigma2
    maps = scaffnew_maps(k, gamma, p, seed)
    P = quadratic_form(lambda z: theory.psi_lyapunov(*z.reshape(2, n, d), star, star, gamma, p), np.zeros(2 * n * d))
    # noise in the gradient moves xhat by gamma e, and with it x+ and h+
    one, mean = np.eye(n * d), np.kron(np.full((n, n), 1 / n), np.eye(d))
    quiet = [(p, np.vstack([mean, p / gamma * (mean - one)])), (1 - p, np.vstack([one, 0 * one]))]
    noise = sum(q * M @ (gamma**2 * sigma2 * M.T) for q, M in quiet)
    moment = np.linalg.solve(np.eye(P.size) - sum(q * np.kron(M, M) for q, M in maps), noise.ravel())
    stationary = np.trace(P @ moment.reshape(P.shape))
    assert 0 < stationary <= gamma**2 * C / theory.zeta(gamma, 1.0, p) * (1 + 1e-9)


@pytest.mark.parametrize("kind", [ps.LeastSquares, ps.Logistic])
def test_expected_smoothness_needs_its_factor_two(kind: Any) -> None:
    m, largest, naive = 5, 0.0, 0.0
    for seed in range(25):
        rng = np.random.default_rng(seed)
        a, b = rng.normal(size=(m, d)) * rng.uniform(0.2, 3, (m, 1)), rng.normal(size=m)
        f = ps.Logistic(a, b > np.median(b), l2=0.05) if kind is ps.Logistic else ps.LeastSquares(a, b)
        x_star = ps.Problem([f]).solution.x
        spread = f.gradient_variance(x_star)
        points = [x_star + r * rng.normal(size=d) for r in np.geomspace(1e-2, 10, 12)]

        def second(x: Array, size: int, f: Any = f) -> float:
            batches = itertools.combinations(range(m), size)
            return float(np.mean([np.sum(f.minibatch_gradient(x, np.array(S)) ** 2) for S in batches]))

        for size in range(1, m + 1):
            es_A, es_C = theory.expected_smoothness(m, size, f.L, f.L_rows, spread)
            L_b = theory.minibatch_smoothness(m, size, f.L, f.L_rows)
            sigma2 = theory.minibatch_variance(m, size, spread)
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
    steps = [theory.falling_step(k, 0.5, 0.5) for k in range(50)]
    assert steps[0] == 0.5
    assert steps == sorted(steps, reverse=True)
    assert theory.falling_step(10**9, 0.5, 0.5) * 10**9 == pytest.approx(1 / 0.5)
    assert theory.falling_step(10**9, 0.5, 0.0) == 0.5


@given(kappas, st.floats(1e-4, 1.0), st.floats(0.1, 10.0))
def test_split_p_is_the_smallest_that_costs_nothing(k: float, ratio: float, norm2: float) -> None:
    gamma, lmin = 1 / k, ratio * norm2
    p = theory.split_p(gamma, 1.0, norm2, lmin)
    tau = theory.split_tau(gamma, p, norm2)
    assert theory.check_tau(tau, gamma, p, norm2) == tau
    zeta = theory.split_zeta(gamma, 1.0, p, tau, lmin)
    assert zeta == pytest.approx(min(1 / k, ratio), rel=1e-9)
    less = theory.split_zeta(gamma, 1.0, p / 2, theory.split_tau(gamma, p / 2, norm2), lmin)
    assert less < zeta


@given(kappas, st.floats(1e-6, 2.0), st.floats(1.0, 2.0))
def test_the_two_regimes_of_gossip(k: float, delta: float, lmax: float) -> None:
    delta = min(delta, lmax)
    gamma = theory.largest_step(k)
    p = theory.split_p(gamma, 1.0, lmax, delta)
    zeta = theory.split_zeta(gamma, 1.0, p, theory.split_tau(gamma, p, lmax), delta)
    assert zeta == pytest.approx(min(1 / k, delta / lmax), rel=1e-9)
    if abs(k * delta / lmax - 1) > 1e-9:  # on a badly connected graph it is best to communicate always
        assert (p < 1) == (k * delta / lmax > 1)


def disagreement(clients: int, cohorts: Any) -> tuple[float, float]:
    """a and nu by enumeration, from their definitions as expectations over cohorts."""
    x = np.random.default_rng(clients).normal(size=(clients, d))
    V = np.sum((x - x.mean(axis=0)) ** 2)
    means = [(prob, S, x[S].mean(axis=0)) for prob, S in cohorts_of(cohorts, clients)]
    spread = sum(prob * clients * np.sum(mean**2) for prob, _, mean in means)
    a = sum(prob * np.sum((x[S] - mean) ** 2) for prob, S, mean in means)
    return float(a / V), float((np.sum(x**2) - spread) / V)


@pytest.mark.parametrize("clients", [2, 3, 4, 5])
def test_cohort_constants_match_enumeration(clients: int) -> None:
    for c in range(2, clients + 1):
        assert theory.uniform_cohort(clients, c) == pytest.approx(disagreement(clients, Uniform(c)))
        assert theory.uniform_cohort(clients, c).chi == pytest.approx(theory.nu(clients, c))
    for prob in (0.05, 0.5, 0.9, 1.0):
        assert Bernoulli(prob).constants(clients) == pytest.approx(disagreement(clients, Bernoulli(prob)))
    sizes = {0: 0.5, 1: 0.25, clients: 0.25}
    assert theory.cohort_constants(clients, sizes) == pytest.approx((0.5, 0.5))


def test_constants_of_everybody_and_of_many_clients() -> None:
    assert theory.uniform_cohort(7, 7) == Bernoulli(0.3).constants(1) == (1, 1)
    assert theory.tamuna_zeta(0.1, 1.0, 10.0, 0.3, 1, 1) == theory.sharp_rate(0.1, 1.0, 10.0, 0.3)
    a, chi = Bernoulli(0.01).constants(20_000)
    assert a == pytest.approx(0.01, rel=0.01)
    assert 0.99 < chi < 1


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
    return float(method.p / method.zeta(problem))


@pytest.mark.parametrize("k", [10.0, 1e3])
def test_theory_of_tamuna_and_locodl_promises_the_fewest_rounds(k: float) -> None:
    """Clients that are alike: no other gamma with its best p is promised fewer, and gamma = 1/L needs 1.4 times more."""
    like = ps.random_quadratics(6, 4, mu=1 / k, seed=1)[0].H
    problem = ps.Problem([ps.Quadratic(like, np.arange(4.0) + i) for i in range(6)])
    L, mu = problem.L_max, problem.mu
    tamuna, locodl = ps.Tamuna.theory(problem, s=3), ps.LoCoDL.theory(problem, codec="natural")
    assert tamuna.gamma == 2 / (L + mu)
    assert locodl.gamma == 2 / L
    for method, at in (
        (tamuna, lambda g: ps.Tamuna.theory(problem, gamma=float(g), s=3)),
        (locodl, lambda g: ps.LoCoDL.theory(problem, gamma=float(g), codec="natural")),
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
    assert 2 * unlike.L_average < unlike.L_max
    rows, figures = (
        ps.split(ps.Logistic(*data(), l2=0.05), clients=4, by="label", weights="equal", smoothness=kind)
        for kind in ("max", "average")
    )
    assert 2 * rows.L_average > rows.L_max
    for problem in (unlike, figures):
        assert ps.Tamuna.theory(problem).gamma == 1 / problem.L
        assert ps.LoCoDL.theory(problem).gamma == 1 / problem.L
    assert ps.Tamuna.theory(rows).gamma > 1.5 / rows.L
    assert ps.Tamuna.theory(rows.with_batch(4)).gamma == 1 / rows.with_batch(4).es_A
    assert ps.Tamuna.theory(rows, figure=True).gamma == 1 / rows.L


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
    beta = step_sizes.nesterov_momentum(k, 1.0)
    assert max(momentum_radius(1 - l / k, beta) for l in np.geomspace(1.0, k, 9)) <= 1 - 1 / math.sqrt(k) + 1e-6


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
    assert check_limits(method, math.nextafter(limits.warn_above, math.inf), limits) == []  # L by another way
    assert len(check_limits(method, (limits.warn_above + limits.refuse_at) / 2, limits)) == 1
    with pytest.raises(InputError, match="diverge"):
        check_limits(method, limits.refuse_at, limits)
    (warning,) = check_limits(method, limits.refuse_at, limits, L=4.0, allow_unsafe_step=True)
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
    A = hessians(k, seed)
    F = A.mean(axis=0)

    def one_round(gamma: float) -> Array:
        Y = np.tile(np.eye(d), (n, 1, 1))
        for _ in range(K):
            Y = Y - gamma * (A @ Y - (A - F))
        return Y.mean(axis=0)

    limits = step_limits("FedLin", k, K=K)
    M = one_round(limits.theorem)
    assert scipy.linalg.eigh(M.T @ F @ M, F, eigvals_only=True)[-1] <= 1 - 1 / (6 * k) + 1e-9
    assert np.max(np.abs(np.linalg.eigvals(one_round(limits.figure)))) < 1


@few
@given(seeds, st.floats(2.0, 30.0), st.floats(0.05, 1.0), st.floats(0.3, 1.0))
def test_s_local_gd_converges_at_the_steps_called_measured(seed: int, k: float, p: float, q: float) -> None:
    A = hessians(k, seed)
    figure = step_limits("S-Local-GD", k, p=p).figure
    for gamma in (figure, figure / 4):

        def step(z: Array, talk: bool, refresh: bool, gamma: float = gamma) -> Array:
            X, w = z[:-d].reshape(n, d), z[-d:]
            X = X - gamma * (np.einsum("nij,nj->ni", A, X - w) + A.mean(axis=0) @ w)
            X = np.tile(X.mean(axis=0), (n, 1)) if talk else X
            return np.concatenate([X.ravel(), X[0] if refresh else w])

        coins = ((p * q, True, True), (p * (1 - q), True, False), (1 - p, False, False))
        maps = [(prob, linear_part(lambda z, c=c: step(z, *c), np.zeros((n + 1) * d))) for prob, *c in coins]
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
            assert row.total_floats == pytest.approx(row.rounds * row.floats_per_round)


def test_table1_counts_vectors_and_exchanges() -> None:
    rows = {r.method: r for r in t1.table1(100.0, 1.0, 1e-3, 20, d=10, G2=4.0, K=5, q=0.25)}
    assert (rows["S-Local-GD"].floats_per_round, rows["S-Local-GD"].exchanges_per_round) == (12.5, 1.25)
    assert rows["LocalGD"].rounds == pytest.approx(4 / (20 * 5 * 1e-3))
    assert rows["LocalGD"].step == pytest.approx(1 / 500)
    assert rows["LocalGD"].better_than_gd is False
    assert {r.local_steps for r in t1.table1(100.0, 1.0, 1e-3, 20)[2:]} == {10}
    assert t1.table1(100.0, 1.0, 1e-3, 20)[0].floats_per_round is None


x2, h4 = np.zeros(2), np.zeros((4, 2))
REFUSED: list[tuple[Callable[[], object], str]] = [
    (lambda: theory.kappa(1.0, 2.0), r"mu = 2 is larger than L = 1"),
    (lambda: theory.kappa(1.0, None), r"mu is unknown .* pass l2 > 0 without an intercept, or gamma and p"),
    (lambda: theory.kappa(1.0, 0.0), r"mu is unknown"),
    (lambda: theory.kappa(1.0, math.nan), r"mu is unknown"),
    (lambda: theory.kappa(0.0, 1.0), r"L = 0 must be positive"),
    (lambda: theory.kappa(math.inf, 1.0), r"L = inf must be positive and finite"),
    (lambda: theory.kappa("big", 1.0), r"L = 'big' is not a number"),  # type: ignore[arg-type]
    (lambda: theory.kappa(1e10, 1e-310), r"kappa = L/mu overflows"),
    (lambda: theory.zeta(0.1, 1.0, 1.5), r"p = 1.5 must lie in \(0, 1\]"),
    (lambda: theory.sharp_rate(2.0, 0.5, 1.0, 0.5), r"gamma = 2 is too large: it must be below 2/L = 2"),
    (lambda: theory.iterations(1.0, 0.5), r"eps = 1 must lie in \(0, 1\)"),
    (lambda: theory.stochastic(0.1, 0.5, 1.0, 1.0), r"es_A = 0.5 is smaller than mu = 1"),
    (lambda: theory.stochastic(0.1, 1.0, math.nan, 1.0), r"es_C = nan must be zero or positive"),
    (lambda: theory.minibatch_smoothness(5, 6, 1.0, 2.0), r"b = 6 is larger than m = 5"),
    (lambda: theory.minibatch_smoothness(5, 2, 2.0, 1.0), r"L = 2 is larger than L_max = 1"),
    (lambda: theory.falling_step(-1, 0.1, 0.0), r"k = -1 must be a whole number"),
    (lambda: theory.scaffnew_zeta([0.1, 0.2], [1.0, 0.0], 0.5), r"mu is unknown for client 1"),
    (lambda: theory.scaffnew_zeta([0.1, -0.2], [1.0, 1.0], 0.5), r"gamma of client 1 = -0.2"),
    (lambda: theory.scaffnew_p([0.1, 0.2], [1.0, 1.0, 1.0]), r"2 step sizes and 3 values of mu"),
    (lambda: theory.check_tau(6.0, 0.1, 0.5), r"tau = 6 is too large: it must be at most p/\(gamma \|\|D D'\|\|\) = 5"),
    (lambda: theory.check_tau(1.0000001, 1, 1, 1), r"tau = 1.0000001 is too large: it must be at most .* = 1\."),
    (lambda: theory.split_p(0.1, 1.0, 1.0, 2.0), r"lmin_plus = 2 is larger than norm2 = 1"),
    (lambda: theory.gossip_pinv(np.eye(3)), r"the graph must be connected"),
    (lambda: theory.gossip_pinv(np.eye(2)), r"the graph must be connected"),
    (lambda: theory.uniform_cohort(5, 1), r"h could never learn"),
    (lambda: theory.uniform_cohort(5, 6), r"a cohort of 6 is larger than n = 5"),
    (lambda: theory.cohort_constants(5, {0: 1.0}), r"h could never learn"),
    (lambda: theory.cohort_constants(5, {2: 0.5}), r"sum 1, not 0.5"),
    (lambda: theory.tamuna_p(3.0, 1.0, 1.0, 1.0), r"gamma = 3 is larger than 1/mu = 1"),
    (lambda: theory.psi_lyapunov(x2, x2, np.zeros(3), x2, 0.1, 0.5), r"shape \(2,\) is compared with shape \(3,\)"),
    (lambda: theory.scaffnew_lyapunov(1, 1, 1, np.zeros(3), h4, x2, h4), r"does not fit"),
    (lambda: theory.scaffnew_lyapunov([1], 1, 1, x2, h4, x2, h4), r"each of 4 clients"),
    (lambda: step_sizes.nesterov_limit(1.0, 1.5), r"beta = 1.5 must lie in \[0, 1\]"),
    (lambda: step_limits("Scaffold", 1.0, n=3, cohort=4), r"a cohort of 4 is larger than n = 3"),
    (lambda: t1.table1(1.0, None, 0.1, 2), r"mu is unknown"),
]


@given(st.floats(1e-18, 1.0), st.floats(0.0, 100.0))
def test_locodl_p_balances_the_two_parts_of_the_rate(gm: float, omega: float) -> None:
    # exact fractions: 1 - (1 - gm)^2 in floating point is 0 where gm is below the unit roundoff
    rho = 1.0 / (1.0 + omega)
    exact = Fraction(gm) * (2 - Fraction(gm)) * (1 + 2 * Fraction(omega)) / Fraction(rho)
    assert theory.locodl_p(gm, 1.0, omega, rho) == pytest.approx(min(1.0, math.sqrt(exact)), rel=1e-12)


@given(st.floats(1e-4, 1.0), st.floats(0.01, 1.0), st.floats(0.1, 2.0), st.floats(0.01, 0.5))
def test_random_gossip_omega_is_the_largest_that_costs_nothing(gm: float, delta: float, lmax: float, w: float) -> None:
    omega = theory.random_gossip_omega(gm, 1.0, delta, lmax, w)

    def links_part(omega: float) -> float:  # gamma tau delta/(1 + omega), of the contraction per round
        return gm * theory.random_gossip_tau(gm, omega, lmax, w) * delta / (1.0 + omega)

    assert omega == 0.0 or links_part(omega) == pytest.approx(gm, rel=1e-9)
    assert links_part(omega + 1e-3) < gm


@pytest.mark.parametrize(("call", "message"), REFUSED)
def test_bad_numbers_are_refused_in_one_sentence(call: Callable[[], object], message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        call()
    assert str(caught.value).endswith(".")
    assert "\n" not in str(caught.value)


def test_rounding_between_L_and_mu_is_forgiven() -> None:
    assert theory.kappa(1.0, 1.0 + 1e-12) == 1.0


@pytest.mark.parametrize("bad", [0.0, -1.0, math.inf, math.nan])
@pytest.mark.parametrize("place", [0, 1, 2])
def test_impossible_constants_of_any_client_are_refused(place: int, bad: float) -> None:
    for wrong in range(2):
        L = [np.array([1.0, 2.0, 3.0]), np.array([2.0, 4.0, 6.0])]
        L[wrong][place] = bad
        with pytest.raises(InputError, match="positive"):
            minibatches.smoothness_each(np.full(3, 8), 2, *L)
