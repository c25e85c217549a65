"""What the METHODS table claims, proved on the code itself: fixed points, Lyapunov eigenvalues, rates, sum h = 0."""

import itertools
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import scipy.linalg

import proxskip as ps
from proxskip import theory
from proxskip.codecs import Identity, Key
from proxskip.engines import local
from proxskip.types import Array
from support.comparing import close
from support.error_maps import ErrorMaps
from support.machine import Heads, Machine
from support.methods import METHODS, NAMED, Row, claiming
from support.tiers import thinned

SEEDS = 16


def test_every_method_has_a_row() -> None:
    covered = {row.make(row.quadratic()).name for row in METHODS}
    assert covered == set(ps.core.METHODS)


# -- fixed points ------------------------------------------------------------------------------------------------------
def stays(method: Any, problem: ps.Problem, cohort: Any) -> None:
    machine = Machine(method, problem, cohort)
    machine.put_solution()
    for r in range(4):
        machine.round(r)
    assert close(machine.x, np.tile(problem.solution.x, (problem.n, 1)), 1e-10)


@pytest.mark.parametrize("kind", ["quadratic", "logistic"])
@claiming("fixed_point")
def test_solution_is_a_fixed_point(row: Row, kind: str) -> None:
    problem = row.quadratic() if kind == "quadratic" else row.rows()
    stays(row.make(problem), problem, row.cohort)


@pytest.mark.parametrize("cohort", [[[0, 1], [2, 3]], [[0, 1, 2], [1], [0, 3]], [[3], [0, 1, 2, 3]]], ids=str)
@pytest.mark.parametrize("name", ["scaffnew", "scaffnew-weighted", "scaffold-weighted"])
def test_solution_is_a_fixed_point_under_any_cohorts(name: str, cohort: list[list[int]]) -> None:
    problem = NAMED[name].quadratic()
    stays(NAMED[name].make(problem), problem, cohort)


# -- the Lyapunov law, in its eigenvalue form --------------------------------------------------------------------------


class CompressedMaps(ErrorMaps):
    """LoCoDL's: the state is (x_i, u_i, y, v), and the codec's coordinates are enumerated for all clients together."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        s, mu_g = self.problem.solution, self.method.mu_g
        self.fixed = np.concatenate([np.tile(s.x, self.n), (s.h - mu_g * s.x).ravel(), s.x, mu_g * s.x])

    def rounds(self, cohort: Array) -> list[int]:
        codec, found = self.method.codec, {}
        if isinstance(codec, Identity):
            return [1]
        for r in range(1, 2000):
            found.setdefault(tuple(codec.chosen(self.d, Key(0, r, i)).tobytes() for i in range(self.n)), r)
        assert len(found) == math.comb(self.d, codec.k) ** self.n
        return list(found.values())

    def states(self, z: Array) -> tuple[dict[str, Array], dict[str, Array]]:
        X, U = z[: -2 * self.d].reshape(2, self.n, self.d)
        return {"x": z[-2 * self.d : -self.d], "v": z[-self.d :]}, {"x": X, "h": U}

    def step(self, z: Array, cohort: Array, coins: Heads | None = None, r: int = 1) -> tuple[Array, Array]:
        server, memory = self.states(z)
        self.machine.put(server, {k: v.copy() for k, v in memory.items()})
        self.machine.round(r, cohort, Heads())
        kept, now, m = self.machine.memory, self.machine.server, self.method
        heads = np.concatenate([kept["x"].ravel(), kept["h"].ravel(), now["x"], now["v"]])
        (X, U), y, v = memory.values(), server["x"], server["v"]
        slopes = [f.gradient(x) - m.mu_g * x - u for f, x, u in zip(self.problem.clients, X, U, strict=True)]
        X = X - m.gamma * np.array(slopes)
        return heads, np.concatenate([X.ravel(), U.ravel(), y - m.gamma * (m.mu_g * y - v), v])

    def subspace(self) -> Array:
        sums = np.zeros((self.d, len(self.fixed)))
        sums[:, self.n * self.d : -2 * self.d] = np.kron(self.problem.weights, np.eye(self.d))
        sums[:, -self.d :] = np.eye(self.d)
        return scipy.linalg.null_space(sums)


def maps_of(row: Row) -> ErrorMaps:
    problem, kind = row.quadratic(linear=True), CompressedMaps if row.name.startswith("locodl") else ErrorMaps
    return kind(problem, row.make(problem), row.cohort)


@pytest.mark.long
@claiming("lyapunov", slow=("tamuna", "locodl-weighted"))
def test_lyapunov_contracts_by_its_theorem(row: Row) -> None:
    maps = maps_of(row)
    assert close(maps.step(maps.fixed, np.arange(maps.n))[0], maps.fixed, 1e-12)
    assert maps.psi(maps.fixed) <= 1e-24
    assert maps.top() <= 1 - maps.zeta + 1e-10


@pytest.mark.parametrize("row", [r for r in METHODS if r.tight], ids=lambda r: r.name)
def test_lyapunov_eigenvalue_is_the_sharp_rate(row: Row) -> None:
    """With a linear projection nothing is lost: the eigenvalue is max_i (1 - gamma_i mu_i)^2 or 1 - p^2, exactly."""
    sharp_rate_holds(maps_of(row))


def sharp_rate_holds(maps: ErrorMaps) -> None:
    f, p = maps.problem, maps.method.p
    gammas = np.broadcast_to(np.asarray(maps.method.gamma), (f.n,))
    sharp = min(theory.sharp_rate(g, m, L, p) for g, m, L in zip(gammas, f.mu_i, f.L_i, strict=True))
    assert abs(maps.top() - (1 - sharp)) <= 1e-10


@pytest.mark.parametrize("name", ["scaffnew-weighted", "scaffnew-cohort", "scaffnew-bernoulli", "splitskip"])
@pytest.mark.parametrize(("fraction", "p", "less"), [(1.0, 0.4, 0.5), (1.9, 0.2, 1.0), (0.3, 1.0, 0.7)])
def test_lyapunov_contracts_at_other_parameters(name: str, fraction: float, p: float, less: float) -> None:
    """gamma = fraction/L_i (SplitSkip has none above 1/L), and chi or tau a part of its bound."""
    problem, cohort = NAMED[name].quadratic(linear=True), NAMED[name].cohort
    gammas = tuple(fraction / L for L in problem.L_i)
    if name == "scaffnew-weighted":
        return sharp_rate_holds(ErrorMaps(problem, ps.Scaffnew(gammas, p)))
    if name == "splitskip":
        gamma = min(fraction, 1.0) / problem.L
        tau = less * theory.split_tau(gamma, p, np.linalg.norm(problem.D, 2) ** 2)
        maps = ErrorMaps(problem, ps.SplitSkip(gamma, p, tau))
    else:
        method: Any = NAMED[name].make(problem)
        maps = ErrorMaps(problem, replace(method, gamma=min(gammas), p=p, chi=less * method.chi), cohort)
    assert maps.top() <= 1 - maps.zeta + 1e-10


@pytest.mark.parametrize(
    "name",
    ["proxskip", "scaffnew-weighted", "scaffnew-cohort", "scaffnew-bernoulli", "decentralized", "locodl-rand",
     "splitskip", pytest.param("gradskip", marks=pytest.mark.slow),
     pytest.param("tamuna-cohort", marks=pytest.mark.slow)],
)  # fmt: skip
@pytest.mark.long
def test_a_wrong_update_breaks_the_lyapunov_law(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The law sees the sign and the size of the update of h (of x in SplitSkip, where 3/2 of it still contracts)."""
    maps = maps_of(NAMED[name])
    kind, half = type(maps.method), "settle_masked" if name == "tamuna-cohort" else "settle"
    right, key = getattr(kind, half), "x" if name == "splitskip" else "h"
    for factor in (-1.0, 0.5) if key == "x" else (-1.0, 0.5, 1.5):

        def wrong(self: Any, client: Any, memory: Any, *outcome: Array, factor: float = factor) -> Any:
            new = right(self, client, memory, *outcome)
            old = memory.get("hhat", memory["h"]) if key == "h" else memory["xhat"]
            return new | {key: old + factor * (new[key] - old)}

        monkeypatch.setattr(kind, half, wrong)
        assert maps.top() > 1 - maps.zeta + 1e-4, factor


# -- the Lyapunov law of an estimator, with every minibatch and coin -----------------------------------------------------
class Estimators(ErrorMaps):
    """Scaffnew-VR's on least squares: the state is (x_i, h_i, w_i), and gw_i is the full gradient at w_i.

    A coin is a minibatch of each client, and whether its anchor moves.
    """

    def __init__(self, batch: int, monkeypatch: pytest.MonkeyPatch) -> None:
        rng = np.random.Generator(np.random.Philox(2))
        shards = [ps.LeastSquares(rng.standard_normal((3, 2)), rng.standard_normal(3), l2=0.3) for _ in range(2)]
        problem = ps.Problem(shards, (1.0, 2.0), batch=batch)
        super().__init__(problem, ps.ScaffnewVR.theory(problem))
        rows = [np.array(S) for S in itertools.combinations(range(3), batch)]
        self.coins = [
            (math.prod(self.method.q if m else 1 - self.method.q for m in moved) / len(rows) ** 2, (drawn, moved))
            for drawn in itertools.product(rows, rows)
            for moved in itertools.product((True, False), repeat=2)
        ]
        monkeypatch.setattr(local, "minibatch", lambda seed, i, *_: self.drawn[0][i])
        monkeypatch.setattr(local, "anchor_coin", lambda seed, i, *_: 0.0 if self.drawn[1][i] else 1.0)
        self.fixed = np.concatenate([self.fixed, np.tile(problem.solution.x, 2)])

    def states(self, z: Array) -> tuple[dict[str, Array], dict[str, Array]]:
        x, h, w = z.reshape(3, 2, 2)
        return {"x": x}, {"h": h, "w": w, "gw": self.gradients(w)}

    def gradients(self, w: Array) -> Array:
        return np.stack([f.gradient(v) for f, v in zip(self.problem.clients, w, strict=True)])

    def step(self, z: Array, cohort: Array, coins: Any = None, r: int = 1) -> tuple[Array, Array]:
        self.drawn = coins
        heads, tails = super().step(z, cohort, Heads(), r)
        w = self.machine.memory["w"]
        assert close(self.machine.memory["gw"], self.gradients(w), 1e-12)
        return np.append(heads, w), np.append(tails, w)


@pytest.mark.parametrize("batch", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_lyapunov_of_variance_reduction_contracts_by_its_theorem(batch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    law = Estimators(batch, monkeypatch)
    for _, coins in law.coins:
        assert close(law.step(law.fixed, np.arange(2), coins), [law.fixed] * 2, 1e-12)  # no draw moves the solution
    assert law.psi(law.fixed) <= 1e-24
    assert law.zeta > 0
    assert law.top() <= 1 - law.zeta + 1e-10


# -- rates on logistic regression --------------------------------------------------------------------------------------
def traces(method: Any, problem: Any, cohort: Any, rounds: int, seeds: int) -> tuple[Array, Array]:
    """(lyapunov, bound), one row a seed."""
    given = {"rounds": rounds, "cohort": cohort, "every": 1, "threads": 1}
    runs = [ps.run(method, problem, seed=s, **given).trace for s in range(seeds)]
    return np.stack([t["lyapunov"] for t in runs]), np.stack([t["lyapunov_bound"] for t in runs])


RATES = [r for r in METHODS if r.claims("rate")]
VARIANCE_REDUCED = [r for r in METHODS if r.name in ("proxskip-vr", "scaffnew-vr", "scaffnew-vr-psi")]


@pytest.mark.parametrize(
    ("row", "batch", "rounds", "fall"),
    [
        *(pytest.param(*p.values, None, 30, 0.5, marks=p.marks, id=p.id) for p in thinned(RATES, 3)),
        # without a ball
        *(pytest.param(r, 8, 100, 1e-3, marks=pytest.mark.slow, id=f"{r.name}-8") for r in VARIANCE_REDUCED),
    ],
)
@pytest.mark.long
def test_mean_lyapunov_is_below_its_bound(row: Row, batch: int | None, rounds: int, fall: float) -> None:
    """The mean over seeds, with three standard errors; the ratio is a supermartingale, so the law holds at every record."""
    problem = row.rows().with_batch(batch)
    alone = row.name in ("gd", "proxgd")
    psi, bound = traces(row.make(problem), problem, row.cohort, rounds, seeds=1 if alone else SEEDS)
    ratio = psi / bound
    assert np.all(np.isfinite(ratio))
    error = 0.0 if alone else ratio.std(axis=0, ddof=1) / np.sqrt(SEEDS)
    assert np.all(ratio.mean(axis=0) <= 1 + 3 * error + 1e-12)
    assert psi[:, -1].mean() < fall * psi[:, 0].mean()


@pytest.mark.parametrize("name", ["scaffnew-cohort", "sproxskip", "scaffnew", "scaffnew-weighted"])
@pytest.mark.slow
def test_mean_lyapunov_with_minibatches_is_below_its_bound_and_ball(name: str) -> None:
    """Theorem 5.5: (1 - zeta)^T Psi_0 + gamma^2 C / zeta; and the ball is really reached, so the noise is real."""
    row = NAMED[name]
    problem = row.rows().with_batch(8)
    method = ps.Scaffnew.theory(problem) if name == "scaffnew-weighted" else row.make(problem)
    psi, bound = traces(method, problem, row.cohort, rounds=150, seeds=SEEDS)
    excess = psi - bound
    error = excess.std(axis=0, ddof=1) / np.sqrt(SEEDS)
    assert np.all(excess.mean(axis=0) <= 3 * error + 1e-12 * psi[0, 0])
    assert psi[:, 0].mean() > 3 * psi[:, -20:].mean() > 1e-6 * psi[:, 0].mean()


@pytest.mark.slow
def test_rate_on_cohorts_with_minibatches_where_the_noise_ball_is_a_point() -> None:
    """Interpolation (C = 0): the sharp deterministic rate does not hold for stochastic gradients."""
    problem = ps.Problem([ps.LeastSquares(np.eye(20), np.ones(20)) for _ in range(6)], batch=1)
    assert problem.es_C == pytest.approx(0.0, abs=1e-20)
    psi, bound = traces(ps.Scaffnew.theory(problem, cohort=2), problem, 2, rounds=40, seeds=24)
    ratios = psi[:, -1] / bound[:, -1]
    assert np.mean(ratios) <= 1 + 3 * np.std(ratios) / np.sqrt(len(ratios))


# -- convergence, and the sum of h -------------------------------------------------------------------------------------
@pytest.mark.parametrize("row", METHODS, ids=lambda row: row.name)
@pytest.mark.long
def test_it_reaches_the_solution_where_it_claims_to(row: Row) -> None:
    """And success means that the tolerance holds at the returned x."""
    problem, tol = row.quadratic(), 1e-7
    result = ps.run(row.make(problem), problem, tol=tol, rounds=20_000, cohort=row.cohort, every=7, threads=1)
    assert result.success == (result.status is ps.Status.CONVERGED) == row.claims("converges"), result.message
    if result.success:
        assert close(result.x, problem.solution.x, 1e-4)
        assert result.trace.last()["round"] == result.rounds
        assert result.trace.last()["grad_norm"] <= tol
        assert problem.psi is not None or np.linalg.norm(problem.gradient(result.x)) <= tol


@pytest.mark.parametrize("kind", ["quadratic", "logistic"])
@claiming("sum_h")
def test_sum_of_h_stays_zero(row: Row, kind: str) -> None:
    problem = row.quadratic() if kind == "quadratic" else row.rows()
    method: Any = row.make(problem)
    result = ps.run(method, problem, rounds=30, cohort=row.cohort, seed=1, every=1, threads=1)
    p = getattr(method, "p", None) or 1.0 / np.max(getattr(method, "K", 1))
    scale = np.abs(result.h).max() + p / np.min(method.gamma) * np.abs(result.x).max()
    assert np.all(result.trace["sum_h"] <= 1e-12 * scale)
    assert np.abs(result.h).max() > 1e-3


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_no_claim_where_there_is_no_theorem() -> None:
    """A cohort of unequal weights, a step outside its theorem, another momentum, a D without the range condition."""
    weighted, problem = NAMED["scaffnew-weighted"].quadratic(), ps.Problem(ps.random_quadratics(3, 4))
    result = ps.run(ps.Scaffnew.theory(weighted), weighted, rounds=5, cohort=3)
    assert result.summary["zeta"] is None
    assert np.all(np.isnan(result.trace["lyapunov_bound"]))
    fast = ps.run(ps.GD(1.5 / problem.L_average), problem, rounds=5)
    assert np.all(np.isnan(fast.trace["lyapunov_bound"]))
    right = ps.Accelerated.theory(problem)
    assert right.zeta(problem) is not None
    assert ps.Accelerated(right.gamma, 0.0).zeta(problem) is None
    with pytest.raises(ps.InputError, match=r"momentum 0\.99 diverges"):
        ps.run(ps.Accelerated(1.4 / problem.L_average, 0.99), problem, rounds=1)
    f, split = ps.Quadratic([1.0, 2.0, 3.0], [1.0, 0.0, 1.0]), ps.SplitSkip(0.3, 0.5, 0.3)
    cycle = np.array([[1.0, -1.0, 0.0], [0.0, 1.0, -1.0], [-1.0, 0.0, 1.0]])
    assert split.zeta(ps.Problem([f], psi=ps.prox.L1(0.1), D=cycle)) is None
    assert split.zeta(ps.Problem([f], psi=ps.prox.L1(0.1), D=cycle[:2])) is not None
