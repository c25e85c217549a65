"""Gradients and proxes that do not belong to their values are noticed by minimize, and right ones are not accused."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

import proxskip as ps
from conftest import OwnProx
from proxskip import prox
from proxskip.composite.value_checks import MAX_EXTRA_VALUES
from proxskip.prox import ProxWarning
from proxskip.types import Array, GradientWarning


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
        return ps.Logistic(A.astype(dtype), b > 0, l2=l2)
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


@pytest.mark.parametrize("problems", [50, pytest.param(500, marks=pytest.mark.slow)])
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
def test_the_checks_take_five_values_at_most_and_no_gradient_or_prox(method: str, psi: Any, sign: float) -> None:
    f = own(F.value, lambda x: sign * F.gradient(x), F.L)
    counted = None if psi is None else OwnProx(psi.prox, psi)
    res = ps.minimize(f, counted, np.ones(8), method, max_iter=300)
    of_psi = 0 if counted is None else counted.value.call_count - 1
    assert f.value.call_count - 1 + of_psi <= MAX_EXTRA_VALUES
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
            assert ps.minimize(g, None, np.zeros(8), "proxgd", tol=1e-12, max_iter=1000).warnings == ()
