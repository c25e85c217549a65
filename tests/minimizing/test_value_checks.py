"""Gradients and proxes that do not belong to their values are noticed by minimize, and right ones are not accused."""

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

import proxskip as ps
from proxskip import prox
from proxskip.problems import gradient_check, sharded
from proxskip.prox import ProxWarning
from proxskip.types import Array, GradientWarning
from support.problems import OwnProx, few_steps, quadratic, scaled


def own(value: Callable[[Array], float], gradient: Callable[[Array], Array], L: float | None = None) -> Any:
    """A function of one's own whose calls are counted, with its L; or the pair, where that is unknown."""
    f = (Mock(side_effect=value), Mock(side_effect=gradient))
    return f if L is None else SimpleNamespace(value=f[0], gradient=f[1], L=L, mu=None)


@dataclass
class Case:
    """f, psi, where to start and how; tol is relative to the slope there."""

    f: Any
    psi: Any
    x0: Array
    given: dict[str, Any]

    def solve(self) -> ps.Minimum:
        gradient = self.f[1] if isinstance(self.f, tuple) else self.f.gradient
        tol = self.given["tol"] * (float(np.linalg.norm(gradient(self.x0))) or 1.0)
        return ps.minimize(self.f, self.psi, self.x0, **{"max_iter": 600, **self.given, "tol": tol})


def smooth(rng: np.random.Generator, dtype: Any = np.float64) -> Any:
    """A linear model or a quadratic of the library, at some scale."""
    d, scale = int(rng.integers(3, 25)), 10.0 ** rng.uniform(-2, 2)
    m = int(rng.integers(5, 60))
    A = rng.standard_normal((m, d)) * np.geomspace(1, 10.0 ** rng.uniform(-2, 0), d) * scale
    b = rng.standard_normal(m) * 10.0 ** rng.uniform(-1, 2)
    l2 = float(rng.choice([1e-3, 0.1])) * scale**2
    kind = rng.integers(3)
    if kind == 0:
        return ps.LeastSquares(A.astype(dtype), b, l2=l2)
    if kind == 1:
        return ps.Logistic(A.astype(dtype), b > np.median(b), l2=l2)
    return ps.Quadratic(A.T @ A / m + l2 * np.eye(d), A.T @ b / m)


def in_single(f: Any, reg: float) -> Any:
    """f computed in single precision behind one's back, with reg/2 |x|^2 in double precision."""

    def low(x: Array) -> Array:
        return x.astype(np.float32).astype(np.float64)

    return own(
        lambda x: float(np.float32(f.value(low(x)))) + reg / 2 * float(x @ x),
        lambda x: f.gradient(low(x)).astype(np.float32) + reg * x,
        None if reg == 0 else f.L + reg,
    )


def penalty(rng: np.random.Generator, d: int, lam: float) -> Any:
    """A psi of the library in closed form, which is not zero at its solution."""
    groups = [d // 2, d - d // 2]
    closed = [prox.L1(lam), prox.L2(lam), prox.ElasticNet(lam, lam), prox.GroupL1(lam, groups)]
    return [*closed, prox.Huber(lam, 0.01), prox.TV1D(lam)][int(rng.integers(6))]


def start(rng: np.random.Generator, f: Any, d: int) -> tuple[Array, float]:
    """x0, and a weight of psi that leaves something of x."""
    x0 = np.zeros(d) if rng.integers(2) else rng.standard_normal(d)
    return x0, float(np.abs(f.gradient(np.zeros(d))).mean()) * 10.0 ** rng.uniform(-2, -0.3)


def any_method(rng: np.random.Generator) -> dict[str, Any]:
    method = str(rng.choice(["auto", "fista", "fista-restart", "apda", "proxgd"]))
    return {"method": method, "tol": float(rng.choice([1e-3, 1e-6, 1e-9]))}


def right(seed: int) -> Case:
    """A problem without a mistake."""
    rng = np.random.default_rng([1, seed])
    of_f, of_psi = rng.integers(5), rng.integers(6)
    f = smooth(rng, np.float32 if of_f == 1 else np.float64)
    d = f.d
    x0, lam = start(rng, f, d)
    psi = penalty(rng, d, lam)
    given = any_method(rng)
    if of_psi == 0:
        psi = None
    elif of_psi == 1:
        psi = [prox.NonNegative(), prox.Box(-0.1, 0.2), prox.Simplex(), prox.L1Ball(0.5)][int(rng.integers(4))]
    elif of_psi == 2:
        psi = prox.Sum(prox.TV1D(lam), prox.NonNegative())
    if psi is not None and of_psi != 2 and rng.integers(2):
        psi = OwnProx(psi.prox, psi)
    elif of_psi == 4:
        psi = penalty(rng, d + 2, lam)
        given |= {"D": rng.standard_normal((d + 2, d)), "method": str(rng.choice(["apda", "papc", "pdhg"]))}
    if of_f in (2, 3):
        f = own(f.value, f.gradient, f.L if of_f == 3 else None)
    elif of_f == 4:
        f, given["tol"] = in_single(f, float(rng.choice([0.0, 0.01])) * f.L), 1e-4
    return Case(f, psi, x0, given)


def other_gradient(rng: np.random.Generator, f: Any, d: int) -> Callable[[Array], Array]:
    """The gradient of another function: other data, another scale, a term or a coordinate that was forgotten."""
    shift, forgotten = float(np.linalg.norm(f.gradient(np.zeros(d)))) * rng.standard_normal(d) / d, np.arange(d) > 0
    return [
        lambda x: f.gradient(x) + shift,
        lambda x: 2 * f.gradient(x),
        lambda x: f.gradient(x) + 0.05 * f.L * x,
        lambda x: f.gradient(x) * forgotten,
    ][int(rng.integers(4))]


def wrong_gradient(rng: np.random.Generator, wrong: Callable[..., Callable[[Array], Array]]) -> Case:
    f = smooth(rng)
    x0, lam = start(rng, f, f.d)
    gradient = wrong(rng, f, f.d)
    psi = penalty(rng, f.d, lam) if rng.integers(2) else None
    if psi is not None and rng.integers(2):
        psi = OwnProx(psi.prox, psi)
    return Case(own(f.value, gradient, f.L if rng.integers(2) else None), psi, x0, any_method(rng))


def other_prox(rng: np.random.Generator, f: Any, psi: Any) -> Callable[[Array, float], Array]:
    """The prox of another function, or of another weight."""
    if not rng.integers(2):
        return prox.SquaredL2(f.L).prox
    factor = float(rng.choice([0.5, 2.0]))
    return replace(psi, **{k: factor * getattr(psi, k) for k in ("lam", "l1", "l2") if hasattr(psi, k)}).prox


def wrong_prox(rng: np.random.Generator, wrong: Callable[..., Callable[[Array, float], Array]]) -> Case:
    f = smooth(rng)
    x0, lam = start(rng, f, f.d)
    psi = penalty(rng, f.d, lam)
    mine = OwnProx(wrong(rng, f, psi), psi)
    return Case(own(f.value, f.gradient, f.L) if rng.integers(2) else f, mine, x0, any_method(rng))


MISTAKES: dict[str, Callable[[np.random.Generator], Case]] = {
    "a gradient of another function": lambda rng: wrong_gradient(rng, other_gradient),
    "a gradient with the wrong sign": lambda rng: wrong_gradient(rng, lambda rng, f, d: lambda x: -f.gradient(x)),
    "the prox of another function": lambda rng: wrong_prox(rng, other_prox),
    "a prox that ignores t": lambda rng: wrong_prox(rng, lambda rng, f, psi: lambda x, t: psi.prox(x, 1.0)),
    "the identity": lambda rng: wrong_prox(rng, lambda *_: lambda x, t: x),
}


def noticed(case: Case) -> bool:
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        res = case.solve()
    said = [str(w.message) for w in seen if "does not belong to its value" in str(w.message)]
    assert not (said and res.success)
    assert all(sentence in res.warnings for sentence in said)
    return bool(said)


@pytest.mark.parametrize("mistake", MISTAKES)
@pytest.mark.parametrize("problems", [10, pytest.param(50, marks=pytest.mark.slow)])
def test_a_mistake_is_noticed_in_nine_of_ten_problems(mistake: str, problems: int) -> None:
    place = list(MISTAKES).index(mistake)
    seen = [noticed(MISTAKES[mistake](np.random.default_rng([2, place, k]))) for k in range(problems)]
    assert sum(seen) >= 0.9 * problems


@pytest.mark.parametrize("problems", [50, pytest.param(200, marks=pytest.mark.slow)])
def test_nothing_is_said_about_right_problems(problems: int) -> None:
    for seed in range(problems):
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            right(seed).solve()
        assert [str(w.message) for w in seen] == [], seed


A = np.random.default_rng(0).standard_normal((30, 8))
F = ps.LeastSquares(A, A.sum(axis=1), l2=0.1)
L1 = prox.L1(0.1)


@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize("psi", [L1, OwnProx(L1.prox, L1), OwnProx(lambda x, t: x, L1), None])
@pytest.mark.parametrize("method", ["fista", "apda"])
@pytest.mark.filterwarnings("ignore")
def test_the_checks_take_few_values_and_every_gradient_and_prox_is_counted(method: str, psi: Any, sign: float) -> None:
    f = own(F.value, lambda x: sign * F.gradient(x), F.L)
    counted = None if psi is None else OwnProx(psi.prox, psi)
    res = ps.minimize(f, counted, np.ones(8), method=method, max_iter=300)
    assert f.value.call_count - 1 <= 5
    assert counted is None or counted.value.call_count - 1 <= 5
    assert f.gradient.call_count == res.ngrad
    assert counted is None or counted.prox.call_count == res.nprox


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_value_that_is_not_finite_is_no_success(value: float) -> None:
    with pytest.warns(GradientWarning, match=f"f is {value}"):
        res = ps.minimize((lambda x: value, F.gradient), L1, np.zeros(8))
    assert (res.success, res.status) == (False, ps.Status.INEXACT)
    with pytest.warns(ProxWarning, match=f"OwnProx is {value} at a point that its own prox returned"):
        res = ps.minimize(F, OwnProx(L1.prox, lambda x: value))
    assert (res.success, res.status) == (False, ps.Status.INEXACT)


@pytest.mark.parametrize("known", [True, False])
def test_a_wrong_sign_is_not_answered_with_a_smaller_gamma(known: bool) -> None:
    with pytest.warns(GradientWarning, match="by the gradient, as if its sign were wrong") as seen:
        res = ps.minimize((F.value, lambda x: -F.gradient(x)), L1, np.zeros(8), L=F.L if known else None)
    assert (res.success, res.status) == (False, ps.Status.DIVERGED)
    assert res.message == str(seen[0].message)
    assert res.message in res.warnings


def test_both_numbers_are_named() -> None:
    with pytest.warns(ProxWarning, match=r"is 0\.1 by the values, and at least 0\.3 by the prox"):
        ps.minimize(F, OwnProx(prox.L1(0.3).prox, L1), method="proxgd", x0=np.eye(8)[0], L=1e9, max_iter=1)


def test_a_set_whose_edge_is_missed_by_rounding_is_right() -> None:
    a = np.random.default_rng(3).standard_normal(8)

    def project(x: Array, t: float) -> Array:
        return x - max(0.0, a @ x + 5.0) / (a @ a) * a

    strict = OwnProx(project, lambda x: 0.0 if a @ x < -5.0 else np.inf)
    res = ps.minimize(F, strict, tol=1e-7)
    assert res.success
    assert a @ res.x == pytest.approx(-5.0)
    with pytest.warns(ProxWarning, match="is inf at a point"):
        assert not ps.minimize(F, OwnProx(lambda x, t: x, strict), tol=1e-7).success


def test_rounding_between_close_iterates_is_no_curvature() -> None:
    """Most of b is orthogonal to A: the gradient rounds like b, and is much smaller."""
    for seed in (6, 19, 33):
        rng = np.random.default_rng(seed)
        B = rng.standard_normal((60, 8))
        Q = np.linalg.qr(B, mode="complete")[0]
        b = 1e-3 * B @ rng.standard_normal(8) + Q[:, 8:] @ rng.standard_normal(52) * 10 ** rng.uniform(0, 4)
        f = ps.LeastSquares(B, b)
        for g in (f, own(f.value, f.gradient, f.L)):
            assert ps.minimize(g, None, np.zeros(8), method="proxgd", tol=1e-12, max_iter=1000).warnings == ()


# -- the gradient, in runs with clients --------------------------------------------------------------------------------
class Shifted:
    """.5 |x - c|^2, or with the gradient of .5 |x + c|^2."""

    L = mu = 1.0

    def __init__(self, c: Array, sign: float) -> None:
        self.c, self.sign, self.d = c, sign, len(c)

    def value(self, x: Array) -> float:
        return 0.5 * float((x - self.c) @ (x - self.c))

    def gradient(self, x: Array) -> Array:
        return x - self.sign * self.c


def test_run_does_not_converge_with_the_gradient_of_another_function() -> None:
    with pytest.warns(GradientWarning, match="client 0: the gradient of f does not belong to its value"):
        res = ps.run(ps.GD(0.5), ps.Problem([Shifted(np.ones(4), -1.0)]), tol=1e-8, rounds=500)
    assert (res.status, res.success) == (ps.Status.INEXACT, False)
    assert any("does not belong to its value" in note for note in res.warnings)
    assert np.isnan(res.trace["gap"]).all()  # the minimum is not trusted either
    with pytest.warns(GradientWarning, match=r"client 0.* minimum is therefore unknown"):
        assert ps.Problem([Shifted(np.ones(4), -1.0)]).solution is None
    assert ps.run(ps.GD(0.5), ps.Problem([Shifted(np.ones(4), 1.0)]), tol=1e-8, rounds=500).success


def wrong_l2(f: Any, l2: float) -> Any:
    """f, whose gradient has the wrong sign of l2."""
    return SimpleNamespace(value=f.value, gradient=lambda x: f.gradient(x) - 2 * l2 * x, L=f.L, mu=f.mu, d=f.d)


@pytest.mark.parametrize("l2", [1e-3, 0.1])
@pytest.mark.parametrize("x0", [np.zeros(5), np.ones(5)])
def test_a_wrong_sign_of_l2_on_one_of_six_clients_is_named(x0: Array, l2: float) -> None:
    """At x0 = 0 the gradients are right."""
    rng = np.random.default_rng(0)
    models = [ps.Logistic(rng.standard_normal((30, 5)), np.arange(30) % 2, l2=l2) for _ in range(6)]
    owns = [SimpleNamespace(value=f.value, gradient=f.gradient, L=f.L, mu=f.mu, d=5) for f in models]
    owns[4] = wrong_l2(models[4], l2)
    problem = ps.Problem(owns)
    with pytest.warns(GradientWarning, match="client 4"):
        assert (
            ps.run(ps.Scaffnew.theory(problem), problem, x0=x0, tol=1e-6, rounds=3000).status is not ps.Status.CONVERGED
        )
    assert problem.solution is None


def test_a_shard_whose_gradient_does_not_belong_to_its_value_is_named_by_the_machine_that_loads_it() -> None:
    def load_shard(i: int) -> Any:
        return Shifted(np.ones(4), -1.0 if i == 2 else 1.0)

    known = [sharded.loaded(sharded.Shards(load_shard, 4), i)[1] for i in range(4)]
    assert [f.contradiction is None for f in known] == [True, True, False, True]
    said = gradient_check.of_clients(known, np.zeros(4))
    assert str(said).startswith("client 2 (load_shard(2)): the gradient of f does not belong to its value")


def hidden_single(f: Any) -> Any:
    """f in single precision without saying so, plus a term in double precision."""
    value, gradient = in_single(f, 0.0)
    reg = 0.01 * f.L
    return SimpleNamespace(
        value=lambda x: value(x) + reg / 2 * float(x @ x), gradient=lambda x: gradient(x) + reg * x, L=f.L + reg, d=f.d
    )


def raised(f: Any, offset: float, x: Array) -> float:
    return float(f.value(x)) + offset


@pytest.mark.parametrize("seeds", [range(60), pytest.param(range(60, 300), marks=pytest.mark.slow)])
def test_right_gradients_of_any_scale_and_precision_are_not_accused(seeds: range) -> None:
    for seed in seeds:
        rng = np.random.default_rng([3, seed])
        f = smooth(rng, np.float32 if seed % 3 == 1 else np.float64)
        f = hidden_single(f) if seed % 3 == 2 else f
        offset, far = 10.0 ** rng.uniform(-3, 6), 10.0 ** rng.uniform(-3, 4)
        for x in (np.zeros(f.d), far * rng.standard_normal(f.d)):
            for L in (f.L, 30 * f.L, None):
                fault = gradient_check.contradiction(partial(raised, f, offset), f.gradient, x, f.gradient(x), L)
                assert fault is None, seed


@pytest.mark.parametrize("seed", range(20))
def test_a_right_function_that_is_not_convex_is_not_accused(seed: int) -> None:
    rng = np.random.default_rng([4, seed])
    B, scale = rng.standard_normal((12, 6)), 10.0 ** rng.uniform(-3, 3)
    L = scale * float(np.linalg.norm(B, 2)) ** 2

    def value(x: Array) -> float:
        return scale * float(np.cos(B @ x).sum())

    def gradient(x: Array) -> Array:
        return -scale * B.T @ np.sin(B @ x)

    for x in (np.zeros(6), rng.standard_normal(6), 100 * rng.standard_normal(6)):
        assert gradient_check.contradiction(value, gradient, x, gradient(x), L) is None


# -- proxes that are inexact, or wrong where they are zero -------------------------------------------------------------
@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_a_prox_that_forgets_an_absolute_value_is_noticed(scale: float) -> None:
    """It is right where u is not zero, and wrong where it is; also where x has another unit."""
    half = OwnProx(lambda x, t: np.maximum(x - 0.1 * t / scale, 0.0), lambda x: L1(x) / scale)
    for seed in range(20 if scale == 1.0 else 4):
        rng = np.random.default_rng([5, seed])
        B = rng.standard_normal((50, 20))
        f = ps.LeastSquares(B / scale, B @ rng.standard_normal(20), l2=0.01 / scale**2)
        with pytest.warns(ProxWarning, match="does not belong to its value"):
            assert ps.minimize(f, half, tol=1e-8 / scale).status is ps.Status.INEXACT


@pytest.mark.parametrize("method", ["fista-restart", "apda", "auto"])
@pytest.mark.parametrize("steps", [3, 30, 300])
@pytest.mark.parametrize("scale", [1e-4, 1.0, 1e4])
def test_the_certificate_of_an_inexact_prox_is_not_far_from_the_truth(scale: float, steps: int, method: str) -> None:
    f, exact = scaled(quadratic(30.0, 30), scale), prox.TV1D(0.1 * scale)
    tol = 1e-4 * scale
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        res = ps.minimize(f, few_steps(0.1 * scale, steps), np.zeros(30), method=method, tol=tol, max_prox=3000)
    true = float(np.linalg.norm(res.x - exact.prox(res.x - f.gradient(res.x) / f.L, 1 / f.L))) * f.L
    assert true <= 2 * res.certificate
    if res.success:
        assert true <= 2 * tol
        assert not seen
    elif res.status is ps.Status.INEXACT:
        assert any("inexact, by about" in str(w.message) for w in seen)
        assert any("inexact, by about" in note for note in res.warnings)


def test_a_rounded_prox_is_doubted_where_its_errors_count() -> None:
    """Values on a grid are wrong by up to half of its width, here 1e-5."""
    psi = OwnProx(lambda x, t: 1e-5 * np.round(prox.L1(0.1).prox(x, t) / 1e-5), prox.L1(0.1))
    f = quadratic(100.0, 20)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert ps.minimize(f, psi, np.zeros(20), method="fista", tol=1e-3).success
    with pytest.warns(ProxWarning, match="is not firmly nonexpansive as a prox must be"):
        assert not ps.minimize(f, psi, np.zeros(20), method="fista", tol=1e-8, max_prox=2000).success


def test_an_own_dykstra_that_is_exact_enough_for_tol_is_not_doubted() -> None:
    """Of a box and a half-space; its error of some 1e-13 is no matter at tol = 1e-7, and is one at 1e-12."""
    rng = np.random.default_rng(0)
    a = rng.standard_normal(20)

    def dykstra(x: Array, t: float) -> Array:
        y, p, q = x, 0.0, 0.0
        for _ in range(10_000):
            box = np.clip(y + p, -0.3, 0.3)
            p = y + p - box
            new = box + q - max(0.0, a @ (box + q) - 0.1) / (a @ a) * a
            q = box + q - new
            if np.linalg.norm(new - y) < 4e-13:
                return new
            y = new
        return y

    psi = OwnProx(dykstra, lambda x: 0.0 if np.abs(x).max() < 0.3 + 1e-9 and a @ x < 0.1 + 1e-9 else np.inf)
    for f in (quadratic(100.0, 20, seed=k) for k in range(3)):
        for method in ("auto", "apda", "fista"):
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                assert ps.minimize(f, psi, np.zeros(20), method=method, tol=1e-7).success


def bent(error: float) -> Any:
    """The identity, and near 1 a step back of this size, which no prox takes."""
    return OwnProx(lambda x, t: x - error * (x > 1.0))


@pytest.mark.parametrize(("error", "L", "trusted"), [(1e-9, 1.0, True), (1e-9, 1e4, False), (1e-5, 1e-4, True)])
def test_a_violation_counts_by_what_it_does_to_the_certificate(error: float, L: float, trusted: bool) -> None:
    """An error e of the prox is one of L e in the certificate."""
    f = ps.Quadratic(np.full(3, L), np.full(3, L))
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        res = ps.minimize(f, bent(error), np.array([3.0, 2.0, 0.5]), method="proxgd", gamma=0.6 / L, tol=1e-7)
    assert res.success == trusted
    assert any("firmly nonexpansive" in str(w.message) for w in seen) != trusted


EXACT = {
    "L1": prox.L1(0.05),
    "L2": prox.L2(0.1),
    "ElasticNet": prox.ElasticNet(0.05, 0.1),
    "GroupL1": prox.GroupL1(0.05, (4, 4, 4)),
    "Huber": prox.Huber(0.1, 0.05),
    "NuclearNorm": prox.NuclearNorm(0.05, (4, 3)),
    "SingularValues": prox.SingularValues(prox.L1Ball(1.0), (4, 3)),
    "TV1D": prox.TV1D(0.05, l1=0.01, lo=-1.0, hi=1.0),
    "Box": prox.Box(-0.1, 0.2),
    "NonNegative": prox.NonNegative(),
    "Singleton": prox.Singleton(),
    "Simplex": prox.Simplex(),
    "L1Ball": prox.L1Ball(0.5),
    "L2Ball": prox.L2Ball(0.5),
    "spectral_ball": prox.spectral_ball(0.3, (4, 3)),
    "Consensus": prox.Consensus(3),
    "Blocks": prox.Blocks([prox.L1(0.05), prox.NonNegative(), prox.Simplex()], [4, 4, 4]),
    "Polyhedron": prox.Polyhedron(G=np.random.default_rng(0).standard_normal((5, 12)), u=1.0),
}


@pytest.mark.parametrize("own_operator", [False, True])
@pytest.mark.parametrize("name", EXACT)
def test_an_exact_operator_converges_without_a_warning(name: str, own_operator: bool) -> None:
    """Also as an operator of one's own, whose accuracy is measured."""
    psi = OwnProx(EXACT[name].prox, EXACT[name]) if own_operator else EXACT[name]
    rng = np.random.default_rng(0)
    B, scale = rng.standard_normal((30, 12)), 10.0 ** rng.uniform(-2, 2)
    f = ps.LeastSquares(scale * B, scale * B @ rng.standard_normal(12), l2=0.01 * scale**2)
    slope = float(np.linalg.norm(f.gradient(np.zeros(12))))
    for method in ("auto", "fista", "apda"):
        for tol in (1e-4, 1e-8):
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                found = ps.minimize(f, psi, method=method, tol=tol * slope)
            assert found.status is ps.Status.CONVERGED


# -- the same, in runs with clients ------------------------------------------------------------------------------------
def three_clients(psi: Any, seed: int = 0, scale: float = 1.0) -> ps.Problem:
    """Their solution does not depend on the scale if psi is scaled too."""
    rng, root = np.random.default_rng([6, seed]), math.sqrt(scale)
    x = rng.standard_normal(12)
    pairs = [(B, B @ x + rng.standard_normal(20)) for B in (rng.standard_normal((20, 12)) for _ in range(3))]
    return ps.Problem([ps.LeastSquares(root * B, root * b, l2=0.1 * scale) for B, b in pairs], psi=psi)


def true_residual(problem: ps.Problem, exact: Any, x: Array) -> float:
    gamma = 1 / problem.L_average
    return float(np.linalg.norm(x - exact.prox(x - gamma * problem.gradient(x), gamma))) / gamma


@pytest.mark.parametrize("method", ["proxgd", "scaffnew", "fista"])
@pytest.mark.parametrize("scale", [1e-4, 1.0, 1e4])
@pytest.mark.parametrize("steps", [3, 30])
def test_a_run_with_an_inexact_prox_converges_only_where_its_residual_is_true(
    steps: int, scale: float, method: str
) -> None:
    problem, tol = three_clients(few_steps(0.1 * scale, steps), scale=scale), 1e-4 * scale
    res = ps.run(method, problem, tol=tol, rounds=3000)
    true = true_residual(problem, prox.TV1D(0.1 * scale), res.x)
    assert res.success == (steps == 30)
    assert true <= 1.1 * tol if res.success else true > 10 * tol
    assert (problem.solution is None) == (steps == 3)
    if res.status is ps.Status.INEXACT:
        assert "which proves nothing: the prox of OwnProx is inexact, by about" in res.message
    else:
        assert res.success or res.status is ps.Status.STALLED


@pytest.mark.parametrize("method", ["proxgd", "fista"])
@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
@pytest.mark.parametrize("share", [0.5, 1.3, 4.0])
def test_a_run_goes_on_until_the_error_of_the_prox_fits_into_the_tolerance(
    share: float, scale: float, method: str
) -> None:
    """It ends at once where the error alone is larger than the tolerance: more rounds would not help."""
    error, exact = 1e-3 * scale, prox.L1(0.05 * scale)
    tol = share * error
    off = np.full(12, error / math.sqrt(12)) / three_clients(None, scale=scale).L_average
    problem = three_clients(OwnProx(lambda x, t: exact.prox(x, t) + off, exact), scale=scale)
    res = ps.run(method, problem, tol=tol, rounds=3000, every=1)
    residuals = res.trace["grad_norm"]
    # what is measured of the error is between the error and twice that
    assert residuals[-2] > (tol if share < 1 else tol - 2 * error)
    if share < 1:
        assert res.status is ps.Status.INEXACT
        assert residuals[-1] <= tol
    else:
        assert res.status is ps.Status.CONVERGED
        assert residuals[-1] <= tol - 0.9 * error
        assert true_residual(problem, exact, res.x) <= tol


@pytest.mark.parametrize(
    ("method", "D"),
    [("scaffnew", None), ("proxskip", None), ("pdhg", np.eye(12)), ("pdhg", np.diff(np.eye(12), axis=0))],
)
def test_a_run_does_not_converge_with_a_prox_that_forgets_an_absolute_value(method: str, D: Array | None) -> None:
    half = OwnProx(lambda x, t: np.maximum(x - 0.1 * t, 0.0), L1)
    for seed in range(5):
        clients = three_clients(None, seed).clients
        problem = ps.Problem(clients if method == "scaffnew" else clients[:1], psi=half, D=D)
        with pytest.warns(ProxWarning, match=r"does not belong to its value.* minimum is therefore unknown"):
            res = ps.run(method, problem, tol=1e-6, rounds=20_000)
        assert res.status is ps.Status.INEXACT
        assert "which proves nothing: the prox of OwnProx does not belong to its value" in res.message


@pytest.mark.parametrize("name", EXACT)
def test_a_run_converges_with_an_exact_operator_of_ones_own(name: str) -> None:
    psi = OwnProx(EXACT[name].prox, EXACT[name])
    for seed, scale in enumerate((1e-3, 1.0, 1e3)):
        problem = three_clients(psi, seed, scale)
        for tol in (1e-4, 1e-9):
            assert ps.run("fista", problem, tol=tol * scale, rounds=5000).status is ps.Status.CONVERGED
        assert (problem.solution is None) == (three_clients(EXACT[name], seed, scale).solution is None)
