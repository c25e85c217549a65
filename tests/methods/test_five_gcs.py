"""FiveGCS: its two theorems in eigenvalue form, the spectral radius, and what is refused."""

import warnings
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import proxskip as ps
from proxskip import theory
from proxskip.types import Array
from support.comparing import close
from support.error_maps import ErrorMaps, linear_part
from support.machine import Machine
from support.methods import NAMED, UNEVEN
from support.problems import WEIGHTS, quadratics

pytestmark = pytest.mark.long

EXACT = 120
"""Accelerated steps after which the local problems of these tests are solved to rounding."""


class Rounds(ErrorMaps):
    """The linear maps of a round; the state is (z, v_m), and Psi has factor/(L_m - mu) in its dual part."""

    def __init__(self, method: ps.FiveGCS, problem: ps.Problem, cohort: Any = None, factor: float = 1.0) -> None:
        super().__init__(problem, method, cohort)
        L, tau, pi = method._numbers(problem)
        dual = problem.weights / pi * (1.0 / tau + factor / L)
        self.P = np.concatenate([np.full(self.d, 1.0 / method.gamma), np.repeat(dual, self.d)])
        s: Any = problem.solution
        self.fixed = np.concatenate([s.x, (s.h - method.mu * s.x).ravel()])

    def step(self, z: Array, cohort: Array, coins: Any = None, r: int = 0) -> tuple[Array, Array]:
        x, V = z[: self.d], z[self.d :].reshape(self.n, self.d)
        self.machine.put({"x": x, "z": x, "v": self.problem.weights @ V}, {"v": V.copy()})
        self.machine.round(r, cohort)
        assert close(self.machine.server["v"], self.problem.weights @ self.machine.memory["v"], 1e-10)
        return np.append(self.machine.server["z"], self.machine.memory["v"]), z

    def psi(self, z: Array) -> float:
        return float(self.P @ (z - self.fixed) ** 2)

    def top(self) -> float:
        for _, cohort, _ in self.outcomes:
            assert close(self.step(self.fixed, cohort)[0], self.fixed, 1e-9)
        return super().top()


def problem_of(weights: tuple[float, ...] | None = None, own: bool = False, kappa: float = 20.0) -> ps.Problem:
    return ps.Problem(quadratics(3, 2, kappa, own), None if weights is None else weights[:3])


SOME = UNEVEN[:3]
COHORTS = [None, 2, 1, 0.6, SOME]


def exact_rate(method: ps.FiveGCS, problem: ps.Problem) -> float:
    """max( 1/(1 + 2 gamma mu), 1 - pi_m 2 tau_m/(L_m - mu + 2 tau_m) )."""
    L, tau, pi = method._numbers(problem)
    return max(1 / (1 + 2 * method.gamma * method.mu), float(np.max(1 - pi * 2 * tau / (L + 2 * tau))))


@pytest.mark.parametrize("c", [0.5, 1.0, 3.0])
@pytest.mark.parametrize("cohort", COHORTS, ids=str)
def test_exact_local_solves_contract_by_their_theorem(cohort: Any, c: float) -> None:
    problem = problem_of(WEIGHTS, own=True)
    method = ps.FiveGCS.theory(problem, cohort=cohort, c=c, K=EXACT)
    _, tau, pi = method._numbers(problem)
    assert theory.local_sigma(method.gamma, tau, problem.weights, pi, method.rho) == pytest.approx(1.0)
    assert Rounds(method, problem, cohort, factor=2.0).top() <= exact_rate(method, problem) + 1e-10


@pytest.mark.parametrize("cohort", COHORTS, ids=str)
def test_so_many_steps_as_are_sure_contract_by_the_inexact_theorem(cohort: Any) -> None:
    """A fixed K that reaches theta for sure; without it the same K claims nothing."""
    problem = problem_of(WEIGHTS, own=True)
    found = ps.FiveGCS.theory(problem, cohort=cohort)
    method = replace(found, theta=None)
    zeta = method.zeta(problem)
    assert zeta == found.zeta(problem)
    assert Rounds(method, problem, cohort).top() <= 1 - zeta + 1e-10
    assert replace(method, K=2).zeta(problem) is None


@pytest.mark.parametrize("sigma", [0.3, 0.5, 0.8])
def test_the_criterion_contracts_by_the_inexact_theorem_from_any_state(sigma: float) -> None:
    """With theta each client ends its steps by itself, so a round is not linear: many states instead."""
    problem = problem_of(WEIGHTS, own=True)
    method = ps.FiveGCS.theory(problem, sigma=sigma)
    rounds, claims, rng = Rounds(method, problem), method.claims(problem), np.random.default_rng(0)
    for size in (1e-3, 1.0, 1e3) * 5:
        state = rounds.fixed + size * rng.standard_normal(len(rounds.fixed))
        z, V = state[:2], state[2:].reshape(3, 2)
        before: Any = claims.lyapunov(z, {"z": z}, {"v": V})
        rounds.step(state, np.arange(3))
        after: Any = claims.lyapunov(z, rounds.machine.server, rounds.machine.memory)
        assert after <= (1 - claims.zeta) * before  # type: ignore[operator]


def by_hand(method: ps.FiveGCS, problem: ps.Problem, rounds: int) -> tuple[Array, int]:
    """x and the local steps of all clients after some rounds of the rule as it is written, without the library."""
    L, tau, _ = method._numbers(problem)
    z, V, taken = np.zeros(problem.d), np.zeros((problem.n, problem.d)), 0
    beta = theory.local_momentum(L, tau)
    for _ in range(rounds):
        x = (z - method.gamma * problem.weights @ V) / (1 + method.gamma * method.mu)
        before = V.copy()
        for m, f in enumerate(problem.clients):
            y = last = x
            for _ in range(method.K):
                at = y + beta[m] * (y - last)
                e = f.gradient(at) - method.mu * at - V[m] + tau[m] * (at - x)
                taken += 1
                if np.linalg.norm(e) <= method.theta * tau[m] * np.linalg.norm(at - x):
                    y = at
                    break
                last, y = y, at - e / (L[m] + tau[m])
            V[m] += tau[m] * (x - y)
        z = x - method.gamma * problem.weights @ (V - before)
    return x, taken


@pytest.mark.parametrize("engine", ["reference", "cpu"])
def test_local_steps_end_by_the_theorems_criterion(engine: str) -> None:
    """|e_m| <= theta tau_m |y - xhat|, also for clients whose tau_m is below mu."""
    problem = ps.Problem(
        [ps.Quadratic(np.geomspace(0.1, L, 6), np.arange(6.0) - m) for m, L in enumerate((0.3, 1, 10))]
    )
    method = ps.FiveGCS.theory(problem)
    assert np.min(method.tau) < method.mu < np.max(method.tau)
    x, taken = by_hand(method, problem, 20)
    result = ps.run(method, problem, rounds=20, engine=engine)
    summary = result.summary
    assert summary["local_steps"] == summary["grad_evals"] == taken < 20 * 3 * method.K / 2
    assert close(result.x, x, 1e-12)


def test_the_bound_falls_by_the_theorems_rate_in_every_round() -> None:
    problem = problem_of(WEIGHTS, own=True)
    method = ps.FiveGCS.theory(problem)
    L, tau, pi = method._numbers(problem)
    sigma = theory.local_sigma(method.gamma, tau, problem.weights, pi, method.rho)
    rate = theory.inexact_rate(method.gamma, method.mu, L, tau, pi, sigma, method.theta)  # type: ignore[arg-type]
    trace = ps.run(method, problem, rounds=40, every=1, threads=1).trace
    assert np.allclose(trace["lyapunov_bound"], trace["lyapunov"][0] * rate ** np.arange(41), rtol=1e-9)
    assert np.all(trace["lyapunov"] <= trace["lyapunov_bound"] * (1 + 1e-12))


@pytest.mark.parametrize("kappa", [1e2, 1e3])
@pytest.mark.parametrize("alike", [False, True])
def test_theory_promises_and_takes_fewer_rounds_than_at_c_one_and_sigma_one_half(kappa: float, alike: bool) -> None:
    clients = ps.random_quadratics(6, 8, mu=1 / kappa, seed=2)
    problem = ps.Problem([ps.Quadratic(clients[0].H, f.b) for f in clients] if alike else clients)
    new, old = ps.FiveGCS.theory(problem), ps.FiveGCS.theory(problem, c=1.0, sigma=0.5)
    promised = [np.log1p(-m.zeta(problem)) for m in (new, old)]  # type: ignore[operator]
    assert promised[0] < 1.5 * promised[1] < 0
    taken = [ps.run(m, problem, target=1e-6, rounds=3000, every=1, threads=1).summary for m in (new, old)]
    for count in ("rounds", "grad_evals"):
        assert taken[0][count] <= taken[1][count], count


@pytest.mark.parametrize("wrong", ["dual", "primal", "pi"])
def test_a_wrong_round_breaks_the_theorem(wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    problem, cohort = problem_of(), (0.5, 0.6, 0.9)
    method = ps.FiveGCS.theory(problem, cohort=cohort, K=EXACT)
    solve, start = ps.FiveGCS._solve, ps.FiveGCS.round
    if wrong == "dual":
        monkeypatch.setattr(ps.FiveGCS, "_solve", lambda self, *given: 3.0 * solve(self, *given))
    elif wrong == "primal":
        monkeypatch.setattr(
            ps.FiveGCS, "round", lambda self, s, e: (new := start(self, s, e)) | {"z": 2 * new["x"] - new["z"]}
        )
    rounds = Rounds(method, problem, cohort, factor=2.0)
    if wrong == "pi":
        object.__setattr__(rounds.machine.method, "pi", (1.0, 1.0, 0.5))
    assert rounds.top() > exact_rate(method, problem) + 1e-3


@pytest.mark.parametrize(("c", "K"), [(1.0, 1), (1.0, 2), (1.0, 7), (3.0, 5), (5.0, 40)])
def test_the_spectral_radius_is_exact(c: float, K: int) -> None:
    """Two like clients: the eigenvalues of a round, of the modes together and of those that differ."""
    eigenvalues = np.array([0.01, 0.05, 0.3, 1.0])
    problem = ps.Problem([ps.Quadratic(np.diag(eigenvalues), b) for b in (np.ones(4), np.arange(4.0))])
    method = ps.FiveGCS.theory(problem, c=c, K=K)
    rounds = Rounds(method, problem)
    M = linear_part(lambda z: rounds.step(z, np.arange(2))[0], rounds.fixed)
    L, tau = method.L - method.mu, method.tau  # type: ignore[operator]
    found = theory.local_radius(method.gamma, method.mu, L, tau, K, eigenvalues)  # type: ignore[arg-type]
    assert float(np.abs(np.linalg.eigvals(M)).max()) == pytest.approx(found, rel=1e-7)


def test_settings_that_diverge_are_refused_and_those_nearby_are_warned_of() -> None:
    problem = ps.Problem([ps.Quadratic(np.diag(np.geomspace(1 / 1.8e4, 1.0, 40)), np.ones(40))] * 2)
    with pytest.raises(ps.InputError, match="diverges on quadratics"):
        ps.run(ps.FiveGCS.theory(problem, c=3, K=9), problem, rounds=1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        wild = ps.run(ps.FiveGCS.theory(problem, c=3, K=9), problem, rounds=4000, allow_unsafe_step=True)
    assert wild.status is ps.Status.DIVERGED, "the watch on the residual catches what was insisted on"
    with pytest.warns(ps.UnsafeStepWarning, match="may be unstable"):
        ps.run(ps.FiveGCS.theory(problem, c=3, K=3), problem, rounds=1)
    *_, note = replace(ps.FiveGCS.theory(problem, figure=True), mu=1.5 * problem.mu).check(problem)
    assert "exceeds the problem's" in note
    for given in ({"K": 1}, {"K": 9}, {"K": 40}, {"c": 3, "K": 9, "sigma": 0.5}, {"c": 3, "K": 400}):
        assert ps.FiveGCS.theory(problem, **given).check(problem) == [], given


@pytest.mark.parametrize(
    ("make", "given", "match"),
    [
        (lambda p: ps.FiveGCS.theory(p, sigma=1.5, figure=True), {}, "times its bound"),
        (lambda p: ps.FiveGCS.theory(p, theta=2.0), {}, "theta = 2"),
        (lambda p: ps.FiveGCS.theory(p, K=0), {}, "K = 0"),
        (lambda p: ps.FiveGCS.theory(p, sigma=1.0), {}, "sigma = 1"),
        (lambda p: ps.FiveGCS.theory(p, cohort=1, figure=True), {"cohort": 2}, "made for other cohorts"),
        (lambda p: ps.FiveGCS.theory(p, cohort=[[0, 1], [1, 2]], figure=True), {}, "needs random cohorts"),
        (lambda p: ps.Scaffnew.theory(p, cohort=SOME), {}, "use 5gcs"),
        (lambda p: ps.FiveGCS.theory(p, cohort=(0.5, 0.5), figure=True), {}, "2 probabilities"),
        (lambda p: ps.FiveGCS.theory(p, gamma="large"), {}, "gamma = 'large' is not a number"),
        (lambda p: ps.FiveGCS.theory(p, tau="small"), {}, "tau = 'small' is not a number"),
        (lambda p: replace(ps.FiveGCS.theory(p, figure=True), mu=-1.0), {}, "mu = -1"),
    ],
)
def test_what_has_no_theorem_is_refused(make: Any, given: dict[str, Any], match: str) -> None:
    problem = problem_of()
    with pytest.raises(ps.InputError, match=match):
        ps.run(make(problem), problem, rounds=1, **given)


def test_minibatches_and_an_unknown_mu_are_refused() -> None:
    """But a given gamma needs no mu: the solutions are fixed points of the rule for mu = 0 too."""
    rows = NAMED["scaffnew"].rows()
    with pytest.raises(ps.InputError, match="full gradients"):
        ps.run(ps.FiveGCS.theory(rows, figure=True), rows.with_batch(4), rounds=1)
    A, b = np.eye(6), np.arange(6.0)
    unknown = ps.Problem([ps.LeastSquares(A[i:], b[i:]) for i in range(2)])
    with pytest.raises(ps.InputError, match="mu"):
        ps.FiveGCS.theory(unknown)
    method = ps.FiveGCS.theory(unknown, gamma=10.0)
    assert (method.mu, method.claims(unknown).zeta) == (0.0, None)
    assert close(ps.run(method, unknown, rounds=800).x, b, 1e-6)


def test_it_heals_from_any_v_with_everybody() -> None:
    """A client that lost its v_m: the server takes the sum anew, and the limit does not change."""
    problem = problem_of()
    machine, s = Machine(ps.FiveGCS.theory(problem, figure=True), problem), problem.solution
    machine.put_solution()
    kept = machine.memory
    kept["v"][1] = 0.0
    machine.put(machine.server, kept)
    errors = []
    for r in range(400):
        machine.round(r)
        errors.append(np.abs(machine.server["x"] - s.x).max() / np.abs(s.x).max())  # type: ignore[union-attr]
    assert errors[3] > 1e-3
    assert errors[-1] < 1e-9
