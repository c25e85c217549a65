"""Scaling laws: f -> c f, A -> c A and x -> x/c change constants, steps, iterates and certificates as they must.

No number in the library may be compared with 1. Powers of two scale without rounding, so most laws hold to the last bit.
"""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import scipy.sparse
from scipy.sparse.linalg import aslinearoperator

import proxskip as ps
from proxskip.core.method import flags
from proxskip.methods import registry
from proxskip.results.fields import FIELDS
from support.problems import LOSSES, difference
from support.tiers import thinned

pytestmark = pytest.mark.long

COUNTED = [k for k, field in FIELDS.items() if field.whole and k not in ("late", "lost", "void")]

SCALES = (2.0**-27, 2.0**27)  # about 1e-8 and 1e8
FORMS: dict[str, Callable[[Any], Any]] = {
    "dense": lambda A: A, "sparse": scipy.sparse.csr_matrix, "operator": aslinearoperator,
}  # fmt: skip
MODELS = [(loss, form) for loss in LOSSES for form in FORMS if (loss, form) != ("softmax", "operator")]


def data(rows: int = 24, features: int = 5) -> tuple[Any, Any]:
    rng = np.random.Generator(np.random.Philox(3))
    A = rng.standard_normal((rows, features))
    A[:, 0] *= 20.0
    return A, (A[:, 1] + rng.standard_normal(rows) > 0).astype(float)


def made(loss: str, form: str, c: float = 1.0) -> Any:
    """The function of  A -> c A  with the regulariser in proportion, so that x -> x/c."""
    A, b = data()
    if loss == "quadratic":
        H = A.T @ A / len(A) + 0.1 * np.eye(A.shape[1])
        return ps.Quadratic(c * c * (np.diag(H) if form == "diagonal" else H), c * (A.T @ b))
    return LOSSES[loss](FORMS[form](c * A), b, l2=0.1 * c * c)


def _times(f: Any, c: float) -> Any:
    """c f, as an oracle."""
    return SimpleNamespace(
        L=c * f.L,
        mu=None if f.mu is None else c * f.mu,
        d=f.d,
        value=lambda x: c * f.value(x),
        gradient=lambda x: c * f.gradient(x),
        hessp=lambda x, v: c * f.hessp(x, v),
        hessian=lambda x: c * f.hessian(x),
    )


@pytest.mark.parametrize("c", SCALES)
@pytest.mark.parametrize("case", [*MODELS, ("quadratic", "dense"), ("quadratic", "diagonal")])
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


def pair(name: str, law: str, c: float, batch: int | None = None) -> Any:
    """A problem that the method handles, the same with A -> c A or f -> c f, and what the method asks for besides."""
    A, b = data()
    kind, parts, found = registry.named(name), ps.random_quadratics(3, 4, L=1.0, mu=0.1, seed=1), []
    for s in (1.0, c):
        if law == "data":
            whole: Any = ps.Logistic(s * A, b, l2=0.1 * s * s)
            clients = (
                ps.split(whole, 3, "label", weights="equal").clients if "clients" in kind.about.handles else [whole]
            )
        else:
            clients = [_times(f, s) for f in (parts if "clients" in kind.about.handles else parts[:1])]
        psi = ps.prox.L1(0.02 * s) if "psi" in kind.about.handles else None
        D = difference(clients[0].d) if "D" in kind.about.handles else None
        problem = ps.Problem(clients, psi=psi, D=D, batch=batch)
        if D is not None:
            problem.__dict__["solution"] = None  # not needed here, and it takes long
        given = {"graph": "ring"} if "graph" in flags(kind) else {}
        found.append((problem, kind.theory(problem, **given)))
    return found


def follows(name: str, law: str, c: float, batch: int | None = None) -> None:
    """Step sizes, trajectories, what is remembered, residuals, reference solutions and statuses."""
    (one, method), (other, scaled) = pair(name, law, c, batch)
    x, f, g = {"data": (1 / c, 1.0, c), "function": (1.0, c, c)}[law]  # how these scale; gamma as x / g
    a, z = ps.run(method, one, rounds=40, seed=2), ps.run(scaled, other, rounds=40, seed=2)
    assert (a.status, a.rounds) == (z.status, z.rounds)
    # newton's is a share of its step, which has a scale of its own
    gamma_scale = 1.0 if name == "newton" else x / g
    assert np.allclose(np.asarray(scaled.gamma), np.asarray(method.gamma) * gamma_scale, rtol=1e-9)
    assert [z.summary.get(k) for k in COUNTED] == [a.summary.get(k) for k in COUNTED]
    size = float(np.abs(a.x).max())
    assert np.allclose(z.x / x, a.x, rtol=1e-7, atol=1e-9 * size)
    if a.h is not None:
        assert np.allclose(z.h / g, a.h, rtol=1e-6, atol=1e-8 * float(np.abs(a.h).max()))
    if one.D is None:
        assert np.isclose(z.summary["grad_norm"], g * a.summary["grad_norm"], rtol=1e-4, atol=1e-9 * g)
    else:  # the residual adds what scales like D'y and what scales like D x
        assert np.allclose(z.server["y"] / g, a.server["y"], rtol=1e-7, atol=1e-9 * float(np.abs(a.server["y"]).max()))
    assert [note.split("=")[0] for note in a.warnings] == [note.split("=")[0] for note in z.warnings]
    if one.solution is not None:
        assert np.allclose(other.solution.x / x, one.solution.x, rtol=1e-7, atol=1e-9)
        assert np.isclose(other.solution.f, f * one.solution.f, rtol=1e-9)


METHODS = [name for name, kind in registry.METHODS.items() if kind.__module__.startswith("proxskip.")]
SAMPLED = [name for name in METHODS if "batch" in registry.named(name).about.handles]
LAWS = [
    *(("data", None, name) for name in METHODS),
    *(("function", None, name) for name in METHODS[2:] + METHODS[:2]),  # the steps are divided by c, x stays
    *(("data", 2, name) for name in SAMPLED),
]


@pytest.mark.parametrize("c", thinned(SCALES))
@pytest.mark.parametrize("case", thinned(LAWS), ids=str)
def test_runs_of_every_method_follow(case: tuple[str, int | None, str], c: float) -> None:
    law, batch, name = case
    follows(name, law, c, batch)


@pytest.mark.parametrize("c", SCALES)
@pytest.mark.parametrize(("name", "form"), [("splitskip", "dense"), *(("pdhg", form) for form in FORMS)])
def test_primal_dual_runs_follow_the_data(name: str, c: float, form: str) -> None:
    """x -> x/c with D -> c D leaves D x and the dual y as they are."""
    psi, results = ps.prox.L1(0.05), []
    for s in (1.0, c):
        problem = ps.Problem([made("squared", "dense", s)], psi=psi, D=FORMS[form](s * difference(5)))
        problem.__dict__["solution"] = None  # not needed here, and it takes long
        results.append(ps.run(name, problem, rounds=30))
    a, z = results
    assert np.allclose(c * z.x, a.x, rtol=1e-6, atol=1e-9)
    assert np.allclose(z.server["y"], a.server["y"], rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("cohort", [2, 4, 0.5])
@pytest.mark.parametrize("c", [1e-8, 1e8])
def test_a_wrong_sum_of_h0_is_refused_at_any_scale(c: float, cohort: float) -> None:
    problem = ps.Problem([_times(f, c) for f in ps.random_quadratics(4, 3, seed=1)])
    h0 = np.zeros((4, 3))
    h0[0] = 1e-3 * c
    with pytest.raises(ps.InputError, match="must be zero"):
        ps.run(ps.Scaffnew(0.5 / c, 0.5), problem, rounds=1, cohort=cohort, h0=h0)
