"""Clipping and noise: the sum of the h stays zero, the error has a floor and does not grow, wrong places are refused."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import proxskip as ps
from support import lockstep

pytest.importorskip("flwr", reason="flwr is not installed")

from proxskip.flower import ClientNode, Federated, Noise, Server, Worker, halves
from proxskip.types import Array
from support.grid import Here, app_of
from support.problems import WEIGHTS, quadratics

pytestmark = [pytest.mark.flower, pytest.mark.usefixtures("home")]

STD = 1e-3


def seeded(clip: float, std: float, seed: int = 0) -> Callable[[Array, Array], Array]:
    """Noise of a client that a test can repeat."""
    rng, own = np.random.default_rng(seed), Noise(clip, 0.0)
    return lambda x, point: own(x, point) + std * rng.standard_normal(x.shape)


def federate(method: Any, problem: Any, rounds: int, own: Any = None, **given: Any) -> tuple[Any, float, float]:
    """The server's last state, |x - x*|, and the largest entry of sum_i w_i h_i."""
    given = {"closing": "deadline", "audit": 10, "measure": None, **given}
    server, clients = lockstep.federate(method, problem, rounds, **given)
    state, memories = lockstep.drive(server, [replace(c, noise=own and own(c.worker.i)) for c in clients])
    H = np.array([m.memory.get("h", np.zeros(problem.d)) for m in memories])
    away = float(np.linalg.norm(state.vectors["x"] - problem.solution.x))
    return state, away, float(np.abs(problem.weights @ H).max())


def scaffnew(problem: ps.Problem) -> ps.Scaffnew:
    return ps.Scaffnew(1 / problem.L_max, 0.4)


@pytest.mark.slow
@pytest.mark.parametrize(("closing", "itemsize"), [("deadline", 8), ("deadline", 4), ("everyone", 8)])
def test_noise_at_the_clients_leaves_the_sum_at_zero_and_the_error_at_a_floor(closing: str, itemsize: int) -> None:
    """200 rounds or 800: the same floor, and audits find nothing to set to zero."""
    problem = ps.Problem(quadratics(4), WEIGHTS)
    found = []
    for rounds in (200, 800):
        given = {"closing": closing, "itemsize": itemsize}
        state, away, total = federate(scaffnew(problem), problem, rounds, lambda i: seeded(1e9, STD, i), **given)
        assert (state.verdict[0], state.counts.audits >= 15, state.counts.recentred) == (ps.Status.LIMIT, True, 0)
        assert total <= 1e-12
        found.append(away)
    assert all(1e-5 < away < 20 * STD for away in found)


@pytest.mark.parametrize(
    ("make", "closing"),
    [
        (scaffnew, "deadline"),
        (scaffnew, "everyone"),
        (lambda problem: ps.Scaffold(0.3 / problem.L_max, 3), "everyone"),  # on cohorts it sends more than a point
    ],
)
@pytest.mark.slow
@pytest.mark.release
def test_a_clip_does_not_move_the_solution(make: Any, closing: str) -> None:
    """There every xhat_i is x itself. Plain local steps have no such x."""
    problem = ps.Problem(quadratics(4), WEIGHTS)
    clipped = []

    def send(x: Array, point: Array) -> Array:
        clipped.append(float(np.linalg.norm(point - x)) > 0.05)
        return Noise(0.05, 0.0)(x, point)

    _, away, _ = federate(make(problem), problem, 1500, lambda i: send, closing=closing)
    assert sum(clipped) > 20
    assert away <= 1e-10


def test_what_is_sent_is_no_farther_than_the_clip() -> None:
    x, point = np.array([1.0, 2.0]), np.array([4.0, 6.0])
    assert np.allclose(Noise(2.5, 0.0)(x, point) - x, [1.5, 2.0])
    assert np.array_equal(Noise(5.5, 0.0)(x, point), point)
    assert np.array_equal(Noise(1.0, 0.0)(x, x), x)
    for bad in (np.nan, np.inf):  # for the server to refuse, and nothing to learn from the other entries
        assert np.isnan(Noise(1.0, 0.0)(x, np.array([bad, 1.0]))).all()


def test_the_noise_has_its_standard_deviation_and_nobody_can_repeat_it() -> None:
    draws = np.array([Noise(1.0, 0.5)(np.zeros(50), np.zeros(50)) for _ in range(400)])
    assert abs(draws.std() - 0.5) < 0.02
    assert abs(draws.mean()) < 0.02
    assert len(np.unique(draws)) == draws.size


def test_local_steps_without_h_are_disturbed_too() -> None:
    problem = ps.Problem(quadratics(4))
    method = ps.LocalGD(1 / problem.L_max, 3)
    plain, *_ = federate(method, problem, 5)
    noisy, *_ = federate(method, problem, 5, lambda i: seeded(1e9, STD, i))
    assert 1e-5 < np.linalg.norm(noisy.vectors["x"] - plain.vectors["x"]) < 20 * STD


@pytest.mark.usefixtures("clock")
def test_a_federation_with_noise_says_what_an_accountant_must_know() -> None:
    problem = ps.Problem(quadratics(4))
    grid = Here(app_of(problem, noise=Noise(1.0, STD), on_disk=False), 4)
    out = Federated(scaffnew, 4, audit=10).start(grid, num_rounds=50)
    assert out.summary["noise"] == {
        "clients": {f"client-{i}": [1.0, STD] for i in range(4)}, "releases": out.state.ticket,
    }  # fmt: skip
    assert out.state.ticket >= 50
    assert (out.summary["counts"]["recentred"], out.summary["counts"]["audits"]) == (0, 5)
    assert out.summary["grad_norm"] is None
    assert 1e-6 < np.linalg.norm(out.x - problem.solution.x) < 20 * STD
    assert not any(halves.MEASURE.encode() in str(m.content).encode() for m in grid.sent)


FEDLIN = ps.FedLin(0.1, 3)


@pytest.mark.usefixtures("clock")
@pytest.mark.parametrize(
    ("method", "given", "says"),
    [
        (scaffnew, {"tol": 1e-3}, "leave out measure and tol"),
        (scaffnew, {"measure": 5}, "leave out measure and tol"),
        (FEDLIN, {}, "noise cannot be added"),
        (ps.SLocalGD(0.1, 0.5, 0.5), {}, "noise cannot be added"),
        (ps.Scaffold(0.1, 3), {"closing": "deadline"}, "noise cannot be added"),
    ],
)
def test_what_noise_does_not_go_with_is_refused_before_round_zero(method: Any, given: Any, says: str) -> None:
    grid = Here(app_of(ps.Problem(quadratics(4)), noise=Noise(1.0, STD)), 4)
    with pytest.raises(ps.InputError, match=says):
        Federated(method, 4, allow_unsafe_step=True, **given).start(grid, num_rounds=2)
    assert len(grid.sent) == 4  # who they are, and no more


def test_a_client_with_noise_refuses_what_it_cannot_disturb() -> None:
    problem = ps.Problem(quadratics(4))
    with pytest.raises(ps.InputError, match="noise cannot be added"):
        federate(FEDLIN, problem, 3, lambda i: Noise(1.0, STD), closing="everyone")
    server = Server(scaffnew(problem), problem, 2)  # measures at the end
    clients = [ClientNode(server.method, Worker(f, i), noise=Noise(1.0, STD)) for i, f in enumerate(problem.clients)]
    with pytest.raises(ps.InputError, match="does not report gradients"):
        lockstep.drive(server, clients)
    with pytest.raises(ps.InputError, match="tol= needs measurements"):
        Server(scaffnew(problem), problem, 5, measure=None, tol=1e-3)


@pytest.mark.parametrize("words", ["x", [1.0], [1.0, 2.0, 3.0], {"clip": 1}, [0.0, 1.0], [-1.0, 0.0], [1.0, -1.0],
                                   [1.0, float("nan")], [float("inf"), 1.0]])  # fmt: skip
def test_noise_that_is_none_is_refused(words: Any) -> None:
    with pytest.raises(ps.InputError, match=r"client-0 declares noise = .*; give a clip"):
        Noise.of(words, "client-0")
    if len(words) == 2:
        with pytest.raises(ps.InputError):
            Noise(*words)
    assert Noise.of([2, 1], "client-0") == Noise(2.0, 1.0)


def test_a_client_that_adds_noise_reports_no_gradients() -> None:
    problem = ps.Problem(quadratics())
    with pytest.raises(
        ps.InputError, match="this client adds noise, so it does not report gradients; set measure=None"
    ):
        federate(scaffnew(problem), problem, 6, lambda i: seeded(1.0, STD, i), measure=2)
