"""What a record keeps is what it says, computed here a second time, on problems where no constant is one."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import proxskip as ps
from proxskip.running.stop import MAX_ROUNDS, Stop
from proxskip.types import Array
from support.problems import difference

STEEP, WEIGHTS = 30.0, (1.0, 2.0, 5.0)
"""L is far from one, so that 1/L is no L, and a gradient's norm is no distance."""


def clients() -> list[Any]:
    return list(ps.random_quadratics(3, 4, L=STEEP, mu=0.7, seed=2))


def gradient(x: Array) -> Array:
    shares = np.array(WEIGHTS) / sum(WEIGHTS)
    return np.asarray(sum(w * (f.H @ x - f.b) for w, f in zip(shares, clients(), strict=True)))


def test_the_residual_with_psi_is_the_prox_gradient_step_over_its_length() -> None:
    problem = ps.Problem(clients(), WEIGHTS, psi=ps.prox.L1(0.3))
    result = ps.run("proxgd", problem, rounds=3)
    L = np.linalg.eigvalsh(sum(w * f.H for w, f in zip(np.array(WEIGHTS) / 8, clients(), strict=True)))[-1]
    v = result.x - gradient(result.x) / L
    step = np.sign(v) * np.maximum(np.abs(v) - 0.3 / L, 0.0) - result.x
    assert result.trace["grad_norm"][-1] == pytest.approx(L * np.linalg.norm(step), rel=1e-9)


def test_the_residual_with_psi_of_Dx_is_that_of_both_equations() -> None:
    D, problem = difference(4), ps.Problem(clients()[:1], psi=ps.prox.L1(0.3), D=difference(4))
    result = ps.run("splitskip", problem, rounds=5)
    x, y, f = result.x, result.server["y"], clients()[0]
    primal = f.H @ x - f.b + D.T @ y
    dual = y - np.clip(y + D @ x, -0.3, 0.3)  # the prox of the conjugate of the l1 norm
    expected = np.linalg.norm(primal) + np.linalg.norm(dual)
    assert result.trace["grad_norm"][-1] == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("resumed", [False, True])
def test_records_of_scaffnew_hold_its_theorem(resumed: bool, tmp_path: Any) -> None:
    """Psi, its bound from the start of the run, f, the gap, the gradient's norm and the sum of the h_i."""
    problem = ps.Problem(clients(), WEIGHTS)
    method = ps.Scaffnew.theory(problem)
    out = tmp_path / "run"
    result = ps.run(method, problem, rounds=4 if resumed else 9, seed=1, out=out)
    if resumed:
        result = ps.resume(out, problem, rounds=9)
    trace, x, shares = result.trace, result.x, np.array(WEIGHTS) / 8
    x_star = np.linalg.solve(
        sum(w * f.H for w, f in zip(shares, clients(), strict=True)),
        sum(w * f.b for w, f in zip(shares, clients(), strict=True)),
    )
    h_star = np.stack([f.H @ x_star - f.b for f in clients()])

    def psi(x: Array, h: Array) -> float:
        drift = shares @ np.sum((h - h_star) ** 2, axis=1)
        return float(np.sum((x - x_star) ** 2) + (method.gamma / method.p) ** 2 * drift)

    assert trace["lyapunov"][0] == pytest.approx(psi(np.zeros(4), np.zeros((3, 4))))
    assert trace["lyapunov"][-1] == pytest.approx(psi(x, result.h), rel=1e-6)
    zeta = min(method.gamma * problem.mu * (2 - method.gamma * problem.mu), method.p**2)
    assert trace["lyapunov_bound"] == pytest.approx(trace["lyapunov"][0] * (1 - zeta) ** trace["iterations"], rel=1e-9)
    values = sum(w * f.value(x) for w, f in zip(shares, clients(), strict=True))
    assert trace["f"][-1] == pytest.approx(values)
    assert trace["gap"][-1] == pytest.approx(0.5 * (x - x_star) @ gradient(x), rel=1e-6)
    assert trace["grad_norm"][-1] == pytest.approx(np.linalg.norm(gradient(x)))
    assert trace["sum_h"][-1] <= 1e-12 * STEEP


def test_the_bound_of_minibatches_ends_at_the_ball_of_the_noise() -> None:
    rng = np.random.default_rng(0)
    model = ps.Logistic(rng.standard_normal((40, 4)) * 3, np.arange(40) % 2, l2=0.5)
    problem = ps.split(model, 4, "contiguous").with_batch(3)
    made = ps.Scaffnew.theory(problem)
    trace = ps.run(made, problem, rounds=6).trace
    zeta = min(made.gamma * problem.mu, made.p**2)
    ball = made.gamma**2 * problem.es_C / zeta
    assert trace["lyapunov_bound"] == pytest.approx(trace["lyapunov"][0] * (1 - zeta) ** trace["iterations"] + ball)


SPENT = SimpleNamespace(iterations=30, local_steps=90, prox_evals=30, seconds=2.0)


@pytest.mark.parametrize(
    ("limits", "reached"),
    [
        ({}, None),
        ({"tol": 1e-3}, None),
        ({"rounds": 30}, "30 rounds"),
        ({"rounds": 31}, None),
        ({"iterations": 30}, "30 iterations"),
        ({"iterations": 31}, None),
        ({"gradients": 90}, "90 gradients"),
        ({"gradients": 91}, None),
        ({"proxes": 30}, "31 proxes"),
        ({"proxes": 31}, None),
        ({"seconds": 2.0}, "2 seconds"),
        ({"seconds": 2.1}, None),
        ({"rounds": 99, "iterations": 12}, "30 iterations"),
    ],
)
def test_a_limit_ends_a_run_once_it_is_reached_and_no_sooner(limits: dict[str, Any], reached: str | None) -> None:
    assert Stop(**limits).limit(30, SPENT) == reached


@pytest.mark.parametrize("limits", [{}, {"tol": 1e-3}, {"proxes": 99}])
def test_what_has_no_limit_ends_after_a_million_rounds(limits: dict[str, Any]) -> None:
    """A limit on what grows with every round is one; a tolerance may never be reached."""
    assert Stop(**limits).limit(MAX_ROUNDS - 1, SPENT) is None
    assert Stop(**limits).limit(MAX_ROUNDS, SPENT) == "1000000 rounds"
    for name in ("iterations", "seconds", "gradients"):
        assert Stop(**limits, **{name: 10**9}).limit(10 * MAX_ROUNDS, SPENT) is None
