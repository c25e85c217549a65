"""Personalised objectives: Scaffnew with own steps on them is Scafflix, and obeys Scaffnew's laws."""

import numpy as np
import pytest

import proxskip as ps
from proxskip.methods.steps import geometric
from proxskip.support.randomness import stream
from support.comparing import close
from support.error_maps import ErrorMaps
from support.machine import Machine
from support.problems import model, quadratics

ALPHA = (0.3, 1.0, 0.6, 0.1)


def problem_of(alpha: object = ALPHA) -> ps.Problem:
    return ps.Problem(quadratics(4, own=True)).personalized(alpha)


def own_steps(problem: ps.Problem) -> ps.Scaffnew:
    return ps.Scaffnew.theory(problem, own_steps=True)


def test_lyapunov_contracts_by_its_theorem() -> None:
    maps = ErrorMaps(problem_of(), own_steps(problem_of()))
    assert maps.psi(maps.fixed) <= 1e-20
    assert maps.top() <= 1 - maps.zeta + 1e-10


def test_it_is_scafflix_as_published() -> None:
    """x~_i = a_i x_i + (1 - a_i) x_i*;  xhat_i = x_i - (gamma_i/a_i)(g_i(x~_i) - h_i);  with probability p
    x = gamma mean_j (a_j^2/gamma_j) xhat_j,  h_i += (p a_i/gamma_i)(x - xhat_i);  gamma_i = 1/L_i."""
    parts = quadratics(4, own=True)
    problem, seed = problem_of(), 3
    method = own_steps(problem)
    a, p = np.array(ALPHA), method.p
    gamma = np.array([1 / f.L for f in parts])
    own = np.stack([np.linalg.solve(np.diag(f.H) if np.ndim(f.H) == 1 else f.H, f.b) for f in parts])
    assert close([f.own for f in problem.clients], own, 1e-10)
    machine = Machine(method, problem, seed=seed)
    machine.put({"x": np.ones(4)}, {})
    x, h = np.ones((4, 4)), np.zeros((4, 4))
    for r in range(25):
        machine.round(r)
        for _ in range(geometric(stream(seed, r, "server"), p)):
            mine = a[:, None] * x + (1 - a[:, None]) * own
            g = np.stack([f.gradient(v) for f, v in zip(parts, mine, strict=True)])
            xhat = x = x - (gamma / a)[:, None] * (g - h)
        mean = (a**2 / gamma) @ xhat / np.sum(a**2 / gamma)
        h = h + (p * a / gamma)[:, None] * (mean - xhat)
        x = np.tile(mean, (4, 1))
        assert np.abs(a @ h).max() <= 1e-12 * np.abs(h).max()
        assert close(machine.server["x"], mean, 1e-12)
        assert close(machine.memory["h"], a[:, None] * h, 1e-12)


def test_alpha_one_is_the_problem_itself_and_small_alpha_is_everyones_own() -> None:
    plain = ps.Problem(quadratics(4, own=True))
    same = problem_of(1.0)
    a, b = (ps.run(own_steps(q), q, rounds=20, seed=1).x for q in (plain, same))
    assert close(a, b, 1e-12)
    personal = problem_of(1e-3)
    x = ps.run(own_steps(personal), personal, rounds=50).x
    for f, g in zip(personal.clients, plain.clients, strict=True):
        assert g.value(f.model(x)) - g.value(f.own) < 1e-4


@pytest.mark.parametrize("kind", ["quadratic", "logistic"])
def test_engines_agree_and_it_reaches_the_solution(kind: str) -> None:
    whole = ps.split(model(l2=0.1), clients=4, by="label", weights="equal")
    problem = problem_of() if kind == "quadratic" else whole.personalized(0.4)
    method = own_steps(problem)
    a, b = (ps.run(method, problem, rounds=10, seed=2, engine=e) for e in ("cpu", "reference"))
    assert close(a.x, b.x, 1e-12)
    assert close(a.memory["h"], b.memory["h"], 1e-12)
    assert ps.run(method, problem, tol=1e-9, rounds=5000).success
    x, v = np.ones(problem.d), np.arange(1.0, 1.0 + problem.d)
    f = problem.clients[0]
    slope = (f.gradient(x + 1e-6 * v) - f.gradient(x - 1e-6 * v)) / 2e-6
    assert close(f.hessp(x, v), slope, 1e-6)


def test_what_makes_no_sense_is_refused() -> None:
    plain = ps.split(model(), clients=4, by="label", weights="equal")
    for alpha in (0.0, 1.5, (0.1, 0.2, 0.3, 0.0), np.ones((2, 2))):
        with pytest.raises(ps.InputError, match="must lie in"):
            plain.personalized(alpha)
    with pytest.raises(ps.InputError, match="no minibatches"):
        plain.with_batch(4).personalized(0.5)
    with pytest.raises(ps.InputError, match="own has shape"):
        plain.personalized(0.5, np.zeros((4, 2)))
