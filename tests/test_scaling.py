"""Scaling laws: f -> c f, A -> c A and x -> x/c change constants, steps, iterates and certificates as they must.

No number in the library may be compared with 1. Powers of two scale without rounding, so most laws hold to the last bit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.sparse
from scipy.sparse.linalg import aslinearoperator

import proxskip as ps
from proxskip.problems.operators import operator_norm2

SCALES = (2.0**-27, 2.0**-13, 2.0**13, 2.0**27)  # about 1e-8, 1e-4, 1e4, 1e8
FORMS: dict[str, Callable[[Any], Any]] = {
    "dense": lambda A: A, "sparse": scipy.sparse.csr_matrix, "operator": aslinearoperator,
}  # fmt: skip
KINDS = {"logistic": ps.Logistic, "squared": ps.LeastSquares, "softmax": ps.Softmax}


def data(rows: int = 24, features: int = 5) -> tuple[Any, Any]:
    rng = np.random.Generator(np.random.Philox(3))
    A = rng.standard_normal((rows, features))
    A[:, 0] *= 20.0
    return A, (A[:, 1] + rng.standard_normal(rows) > 0).astype(float)


def models() -> list[Any]:
    found = [(loss, form) for loss in KINDS for form in FORMS if (loss, form) != ("softmax", "operator")]
    return [*found, ("quadratic", "dense"), ("quadratic", "diagonal")]


def made(loss: str, form: str, c: float = 1.0) -> Any:
    """The function of  A -> c A  with the regulariser in proportion, so that x -> x/c."""
    A, b = data()
    if loss == "quadratic":
        H = A.T @ A / len(A) + 0.1 * np.eye(A.shape[1])
        return ps.Quadratic(c * c * (np.diag(H) if form == "diagonal" else H), c * (A.T @ b))
    return KINDS[loss](FORMS[form](c * A), b, l2=0.1 * c * c)


def _times(f: Any, c: float) -> Any:
    """c f, as an oracle."""

    class Scaled:
        L, mu, d = c * f.L, None if f.mu is None else c * f.mu, f.d

        def value(self, x: Any) -> float:
            return c * f.value(x)

        def gradient(self, x: Any) -> Any:
            return c * f.gradient(x)

        def hessp(self, x: Any, v: Any) -> Any:
            return c * f.hessp(x, v)

        def hessian(self, x: Any) -> Any:
            return c * f.hessian(x)

    return Scaled()


@pytest.mark.parametrize("c", SCALES)
@pytest.mark.parametrize(("case"), models())
def test_constants_iterates_and_certificates_follow_the_data(case: tuple[str, str], c: float) -> None:
    one, other = made(*case), made(*case, c)
    assert np.isclose(other.L, c * c * one.L, rtol=1e-9)
    assert np.isclose(other.mu, c * c * one.mu, rtol=1e-6)
    given: dict[str, Any] = {"method": "fista", "max_iter": 60}
    a = ps.minimize(one, ps.prox.L1(0.01), tol=1e-6, **given)
    b = ps.minimize(other, ps.prox.L1(0.01 * c), tol=1e-6 * c, **given)
    assert (a.status, a.nit) == (b.status, b.nit)
    assert np.allclose(c * b.x, a.x, rtol=1e-6, atol=1e-9 * np.abs(a.x).max())
    assert np.isclose(b.certificate, c * a.certificate, rtol=1e-3)
    assert a.warnings == b.warnings == ()


@pytest.mark.parametrize("c", SCALES)
@pytest.mark.parametrize("name", ["gd", "scaffnew", "scaffold", "fedlin", "local-gd", "accelerated", "s-local-gd"])
def test_runs_follow_the_data(name: str, c: float) -> None:
    """Step sizes, trajectories, residuals, reference solutions and statuses."""
    A, b = data()
    one, other = (ps.split(ps.Logistic(s * A, b, l2=0.1 * s * s), 3, "label") for s in (1.0, c))
    a, z = (ps.run(name, p, rounds=40) for p in (one, other))
    assert a.status is z.status
    assert np.isclose(z.summary()["gamma"] * c * c, a.summary()["gamma"], rtol=1e-9)
    assert np.allclose(c * z.x, a.x, rtol=1e-8, atol=1e-10)
    assert np.isclose(z.summary()["grad_norm"], c * a.summary()["grad_norm"], rtol=1e-5)
    assert other.solution is not None
    assert np.allclose(c * other.solution.x, one.solution.x, rtol=1e-7, atol=1e-9)
    assert np.isclose(other.solution.f, one.solution.f, rtol=1e-12)


@pytest.mark.parametrize("c", SCALES)
@pytest.mark.parametrize("name", ["gd", "scaffnew", "proxgd"])
def test_runs_follow_the_function(name: str, c: float) -> None:
    """f -> c f: the steps are divided by c, and the iterates stay where they are."""
    parts = ps.random_quadratics(4, 3, L=1.0, mu=0.1, seed=1)
    psi = [ps.prox.L1(0.02 * s) if name == "proxgd" else None for s in (1.0, c)]
    one, other = (ps.Problem([_times(f, s) for f in parts], psi=q) for s, q in zip((1.0, c), psi, strict=True))
    a, z = (ps.run(name, p, tol=1e-7 * s, rounds=4000) for p, s in ((one, 1.0), (other, c)))
    assert (a.status, a.rounds) == (z.status, z.rounds)
    assert a.success
    assert np.allclose(a.x, z.x, rtol=1e-9, atol=1e-12)
    assert np.isclose(z.summary()["grad_norm"], c * a.summary()["grad_norm"], rtol=1e-4)
    assert np.allclose(other.solution.x, one.solution.x, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("c", SCALES)
def test_operator_norms_scale(form: str, c: float) -> None:
    D = np.diff(np.eye(6), axis=0)
    assert np.isclose(operator_norm2(FORMS[form](c * D)), c * c * operator_norm2(FORMS[form](D)), rtol=1e-9)


@pytest.mark.parametrize("c", SCALES)
@pytest.mark.parametrize("name", ["splitskip", "pdhg"])
def test_primal_dual_runs_follow_the_data(name: str, c: float) -> None:
    """x -> x/c with D -> c D leaves D x and the dual y as they are."""
    A, b = data()
    D = np.diff(np.eye(5), axis=0)
    one, other = (
        ps.Problem([ps.LeastSquares(s * A, b, l2=0.1 * s * s)], psi=ps.prox.L1(0.05), D=s * D) for s in (1.0, c)
    )
    for p in (one, other):
        p.__dict__["solution"] = None  # not needed here, and it takes long
    a, z = (ps.run(name, p, rounds=30) for p in (one, other))
    assert np.allclose(c * z.x, a.x, rtol=1e-6, atol=1e-9)
    assert np.allclose(z.server["y"], a.server["y"], rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("c", [1e-8, 1e8])
def test_a_wrong_sum_of_h0_is_refused_at_any_scale(c: float) -> None:
    problem = ps.Problem([_times(f, c) for f in ps.random_quadratics(4, 3, seed=1)])
    h0 = np.zeros((4, 3))
    h0[0] = 1e-3 * c
    with pytest.raises(ps.InputError, match="must be zero"):
        ps.run(ps.Scaffnew(0.5 / c, 0.5), problem, rounds=1, cohort=2, h0=h0)
