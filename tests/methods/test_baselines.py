"""The baselines without rates of their own, against independent transcriptions of published update rules.

Those are in the form in which others publish them; the library keeps differences h_i instead.
"""

from typing import Any

import numpy as np
import pytest

import proxskip as ps
from proxskip.methods.steps import geometric
from proxskip.support.randomness import stream
from support.comparing import close

pytestmark = pytest.mark.long

N, D = 6, 5
ROUNDS = (1, 2, 30)
COHORTS = [[0, 1, 2], [2, 3, 4, 5], [0, 4]]


def problem() -> Any:
    return ps.Problem(ps.random_quadratics(N, D, L=1.0, mu=0.05, heterogeneity=3.0, seed=4))


def gradients(problem: Any, X: Any) -> Any:
    """Row i is grad f_i of row i."""
    return np.stack([f.gradient(x) for f, x in zip(problem.clients, X, strict=True)])


def scaffold(problem: Any, gamma: float, K: int, eta_g: float, option: str, cohorts: Any, rounds: int) -> Any:
    """Algorithm 1 of Karimireddy et al., with c and c_i as in the released implementations."""
    x, c, c_i = np.zeros(D), np.zeros(D), np.zeros((N, D))
    for r in range(rounds):
        S, moved, learnt = cohorts[r % len(cohorts)], [], []
        for i in S:
            y, f = x.copy(), problem.clients[i]
            for _ in range(K):
                y = y - gamma * (f.gradient(y) - c_i[i] + c)
            new = f.gradient(x) if option == "I" else c_i[i] - c + (x - y) / (K * gamma)
            moved.append(y - x)
            learnt.append(new - c_i[i])
            c_i[i] = new
        x = x + eta_g * np.mean(moved, axis=0)
        c = c + len(S) / N * np.mean(learnt, axis=0)
    return x


def s_local_gd(problem: Any, gamma: float, p: float, q: float, rounds: int, seed: int) -> Any:
    """Gorbunov, Hanzely and Richtarik's estimator g_i(y) - g_i(z) + g(z), one step after the other."""
    x, z = np.zeros(D), np.zeros(D)
    for r in range(rounds):
        K = geometric(rng := stream(seed, r, "server"), p)
        if rng.random() < q or r == 0:
            z = x
        own = gradients(problem, np.tile(z, (N, 1)))
        Y = np.tile(x, (N, 1))
        for _ in range(K):
            Y = Y - gamma * (gradients(problem, Y) - own + own.mean(axis=0))
        x = Y.mean(axis=0)
    return x


def diging(problem: Any, gamma: float, W: Any, rounds: int) -> Any:
    """x+ = W x - gamma y,  y+ = W y + g(x+) - g(x)  from y = g(x0)."""
    X = np.zeros((N, D))
    G = Y = gradients(problem, X)
    for _ in range(rounds):
        X = W @ X - gamma * Y
        new = gradients(problem, X)
        Y, G = W @ Y + new - G, new
    return X


def extra(problem: Any, gamma: float, W: Any, rounds: int) -> Any:
    """x^1 = W x^0 - gamma g(x^0),  x^{k+2} = (I + W) x^{k+1} - (I + W)/2 x^k - gamma (g(x^{k+1}) - g(x^k))."""
    before, G = np.zeros((N, D)), gradients(problem, np.zeros((N, D)))
    X = W @ before - gamma * G
    for _ in range(rounds - 1):
        new = gradients(problem, X)
        X, before = X + W @ X - (before + W @ before) / 2 - gamma * (new - G), X
        G = new
    return X


@pytest.mark.parametrize("rounds", ROUNDS)
@pytest.mark.parametrize(("option", "eta_g", "whole"), [("II", 1.0, True), ("II", 0.7, True), ("I", 0.7, True),
                                                       ("II", 0.7, False), ("I", 1.0, False)])  # fmt: skip
def test_scaffold(option: Any, eta_g: float, whole: bool, rounds: int) -> None:
    p, cohorts = problem(), [list(range(N))] if whole else COHORTS
    method = ps.Scaffold(0.1, 5, eta_g, option)
    found = ps.run(method, p, rounds=rounds, cohort=None if whole else cohorts, threads=1)
    assert close(found.x, scaffold(p, 0.1, 5, eta_g, option, cohorts, rounds), 1e-12)


@pytest.mark.parametrize("rounds", ROUNDS)
@pytest.mark.parametrize("q", [1.0, 0.3])
def test_s_local_gd(q: float, rounds: int) -> None:
    p = problem()
    found = ps.run(ps.SLocalGD(0.1, 0.25, q), p, rounds=rounds, seed=7, threads=1)
    assert close(found.x, s_local_gd(p, 0.1, 0.25, q, rounds, 7), 1e-12)


@pytest.mark.parametrize("rounds", ROUNDS)
@pytest.mark.parametrize(("kind", "rule"), [(ps.DIGing, diging), (ps.EXTRA, extra)])
def test_on_a_graph(kind: Any, rule: Any, rounds: int) -> None:
    p, graph = problem(), ps.graphs.graph("ring", N)
    found = ps.run(kind(0.02, graph), p, rounds=rounds, threads=1)
    assert close(found.memory["x"], rule(p, 0.02, np.asarray(graph.W), rounds), 1e-12)
