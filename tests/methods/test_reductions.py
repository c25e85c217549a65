"""One family: each method is another one in the right corner of its parameters, to 1e-12 along the whole trajectory."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import scipy.linalg
import scipy.stats

import proxskip as ps
from proxskip import theory
from proxskip.methods.registry import step_limits
from proxskip.methods.steps import geometric
from proxskip.support.randomness import stream
from proxskip.types import Array
from support.comparing import close
from support.machine import Machine
from support.methods import NAMED
from support.problems import WEIGHTS, quadratics
from support.tiers import thinned

TOL = 1e-12


def stacked(problem: ps.Problem) -> ps.Quadratic:
    """F(x_1, ..., x_n) = sum_i f_i(x_i): the clients' functions side by side, as one."""
    parts: Any = problem.clients
    return ps.Quadratic(scipy.linalg.block_diag(*(f.H for f in parts)), np.concatenate([f.b for f in parts]))


def trajectory(method: Any, problem: ps.Problem, rounds: int = 40, cohort: Any = None, seed: int = 7) -> Array:
    """All clients' x after every round, from x0 = 1 and h = 0: (rounds, n * d)."""
    machine = Machine(method, problem, cohort, seed=seed)
    x0 = np.ones(problem.d)
    memory = {"x": np.tile(x0, (problem.n, 1))} if "x" in machine.method.remembers else {}
    machine.put(machine.method.start(problem, x0), memory)
    out = []
    for r in range(rounds):
        machine.round(r)
        out.append(machine.x.ravel().copy())
    return np.array(out)


def clients(n: int = 4) -> ps.Problem:
    return ps.Problem(quadratics(n))


def weighted() -> ps.Problem:
    return ps.Problem(quadratics(4, own=True), WEIGHTS)


def composite(n: int = 1) -> ps.Problem:
    return clients(n).with_psi(ps.prox.L1(0.05))


ONE_STEP = {
    "scaffnew": lambda g, n: ps.Scaffnew(g, p=1.0),
    "own-steps": lambda g, n: ps.Scaffnew((g,) * n, p=1.0),
    "scaffold": lambda g, n: ps.Scaffold(g, K=1),
    "scaffold-I": lambda g, n: ps.Scaffold(g, K=1, option="I"),
    "fedlin": lambda g, n: ps.FedLin(g, K=1),
    "local-gd": lambda g, n: ps.LocalGD(g, K=1),
    "s-local-gd": lambda g, n: ps.SLocalGD(g, p=1.0),
    "accelerated": lambda g, n: ps.Accelerated(g, beta=0.0),
    "proxgd": lambda g, n: ps.ProxGD(g),
}


@pytest.mark.parametrize("name", ONE_STEP)
@pytest.mark.parametrize("problem", [clients(), weighted()], ids=["equal", "weighted"])
def test_one_step_a_round_is_gd(name: str, problem: ps.Problem) -> None:
    gamma = 0.9 / problem.L_max
    found = trajectory(ONE_STEP[name](gamma, problem.n), problem, 100)
    assert close(found, trajectory(ps.GD(gamma), problem, 100), TOL)


@pytest.mark.parametrize(("kind", "n"), [(ps.ProxSkip, 1), (ps.SProxSkip, 1), (ps.Scaffnew, 1), (ps.Scaffnew, 4)])
def test_p_one_is_proxgd(kind: Any, n: int) -> None:
    problem = composite(n)
    gamma = 1 / problem.L
    assert close(trajectory(kind(gamma, 1.0), problem, 1000), trajectory(ps.ProxGD(gamma), problem, 1000), TOL)


def test_splitskip_with_p_one_is_loris_and_verhoeven() -> None:
    problem = NAMED["splitskip"].quadratic()
    gamma, D, psi = 1 / problem.L, problem.D, problem.psi
    tau = 0.9 / (gamma * np.linalg.norm(D, 2) ** 2)
    x, y, expected = np.ones(problem.d), np.zeros(len(D)), []
    for _ in range(40):
        half = x - gamma * (problem.gradient(x) + D.T @ y)
        new = ps.prox.conjugate_prox(psi, y + tau * (D @ half), tau)
        x, y = x - gamma * (problem.gradient(x) + D.T @ new), new
        expected.append(x)
    assert close(trajectory(ps.SplitSkip(gamma, 1.0, tau), problem), np.array(expected), TOL)


def test_proxskip_on_the_consensus_constraint_is_scaffnew() -> None:
    problem = clients()
    gamma, p = 1 / problem.L_max, 0.2
    consensus = ps.Problem([stacked(problem)]).with_psi(ps.prox.Consensus(problem.n))
    one, many = Machine(ps.ProxSkip(gamma, p), consensus, seed=7), Machine(ps.Scaffnew(gamma, p), problem, seed=7)
    for machine in (one, many):
        machine.put(machine.method.start(machine.problem, np.ones(machine.problem.d)), {})
    for r in range(60):
        one.round(r)
        many.round(r)
        assert close(one.x.ravel(), many.x.ravel(), TOL)
        assert close(one.memory["h"].ravel(), many.memory["h"].ravel(), TOL)
    assert one.line.ledger.iterations == many.line.ledger.iterations > 60


def test_scaffnew_of_one_client_is_proxskip() -> None:
    problem = composite()
    gamma = 1 / problem.L
    assert close(trajectory(ps.Scaffnew(gamma, 0.2), problem), trajectory(ps.ProxSkip(gamma, 0.2), problem), TOL)


def test_cohorts_of_everybody_are_scaffnew() -> None:
    """TAMUNA with c = n: chi = 1, and the plain mean instead of the prox form, which is the same while sum h = 0."""
    problem = clients()
    method = ps.Scaffnew(1 / problem.L_max, 0.2)
    assert Machine(method, problem, cohort=4).method == replace(method, chi=1.0, a=1.0)
    assert close(trajectory(method, problem, cohort=4), trajectory(method, problem), TOL)


@pytest.mark.parametrize("K", [1, 3, 10])
@pytest.mark.parametrize("problem", [clients(), ps.Problem(quadratics(4), WEIGHTS)], ids=["equal", "weighted"])
def test_scaffold_two_is_scaffnew_with_a_fixed_number_of_steps(K: int, problem: ps.Problem) -> None:
    gamma = 1 / problem.L_max
    scaffnew = ps.Scaffnew(gamma, p=1 / K, K=K)
    assert close(trajectory(ps.Scaffold(gamma, K), problem), trajectory(scaffnew, problem), TOL)


def test_scaffold_two_has_two_equal_forms() -> None:
    """With c_i and c sent (as on cohorts) or with h_i learnt from x+ alone; c = sum_i w_i c_i."""
    problem, method = ps.Problem(quadratics(4), WEIGHTS), ps.Scaffold(0.2, K=5)
    assert close(trajectory(method, problem, cohort=[[0, 1, 2, 3]]), trajectory(method, problem), TOL)
    some = Machine(method, problem, [[0, 1, 2], [1, 3]])
    some.put(method.start(problem, np.ones(problem.d)), {})
    for r in range(20):
        some.round(r)
        assert close(problem.weights @ some.memory["h"] + 1, some.server["c"] + 1, TOL)


@pytest.mark.parametrize("name", ["ring", "path", "star"])
def test_splitskip_with_the_root_of_I_minus_W_is_decentralized_scaffnew(name: str) -> None:
    problem, graph = clients(), ps.graphs.graph(name, 4)
    values, vectors = np.linalg.eigh(np.eye(4) - graph.W)
    root = (vectors * np.sqrt(np.maximum(values, 0.0))) @ vectors.T
    gamma, p = 1 / problem.L_max, 0.3
    tau = 0.95 * p / (gamma * graph.lmax)
    split = ps.Problem([stacked(problem)], psi=ps.prox.Singleton(), D=np.kron(root, np.eye(problem.d)))
    gossip = trajectory(ps.DecentralizedScaffnew(gamma, p, tau, graph), problem)
    assert close(trajectory(ps.SplitSkip(gamma, p, tau), split), gossip, TOL)


@pytest.mark.parametrize("p", [0.2, 1.0])
def test_gossip_with_everybody_is_scaffnew(p: float) -> None:
    problem = clients()
    gamma = 1 / problem.L_max
    gossip = ps.DecentralizedScaffnew(gamma, p, p / gamma, ps.graphs.graph("complete", problem.n))
    assert close(trajectory(gossip, problem), trajectory(ps.Scaffnew(gamma, p), problem), TOL)


@pytest.mark.parametrize("kind", thinned([ps.DIGing, ps.EXTRA]))
@pytest.mark.slow
@pytest.mark.parametrize("name", thinned(["ring", "path", "complete", "star"], 4, 4))
def test_gossip_without_skipping_ends_where_it_is_refused(name: str, kind: Any, quiet_steps: None) -> None:
    """On equal quadratics the end of stability is exact: 2 % below it converges, 2 % above it blows up."""
    graph = ps.graphs.graph(name, 6)
    H = np.linspace(0.2, 1.0, 5)
    problem = ps.Problem([ps.Quadratic(H, H * c) for c in np.linspace(-1.0, 1.0, 6)])
    end = step_limits(kind.about.name, 1.0, lmax=graph.lmax, sigma=graph.sigma, mu=0.2).refuse_at
    below = trajectory(kind(0.98 * end, graph), problem, rounds=3000)
    above = trajectory(kind(1.02 * end, graph), problem, rounds=3000)
    assert np.abs(below[-1]).max() < 1e-6 < 1e3 < np.abs(above[-1]).max()
    with pytest.raises(ps.InputError, match="can diverge"):
        kind(1.02 * end, graph).check(problem)


@pytest.mark.slow
def test_tracking_contracts_at_its_proved_step() -> None:
    """The 3 x 3 matrix's radius is below one at the step it picks, and what is measured contracts at least so fast."""
    problem = clients(6)
    graph = ps.graphs.graph("ring", 6)
    method = ps.DIGing.theory(problem, graph=graph)
    rate = theory.tracking_rate(method.gamma, problem.mu, problem.L_max, graph.sigma)
    assert rate < 1
    solution: Any = problem.solution
    error = np.linalg.norm(trajectory(method, problem, rounds=4000) - np.tile(solution.x, 6), axis=1)
    assert error[-1] < error[2000] * rate**2000 * 1.01 + 1e-13
    others = [theory.tracking_rate(f * method.gamma, problem.mu, problem.L_max, graph.sigma) for f in (0.8, 1.25)]
    assert min(others) > rate


@pytest.mark.parametrize("psi", [ps.prox.L1(0.05), ps.prox.SquaredL2(0.3), ps.prox.Box(-0.1, 0.2)], ids=repr)
def test_splitskip_without_D_is_proxskip(psi: Any) -> None:
    problem = ps.Problem(quadratics(1))
    gamma, p = 1 / problem.L, 0.2
    split = ps.SplitSkip(gamma, p, tau=p / gamma)
    plain = trajectory(ps.ProxSkip(gamma, p), problem.with_psi(psi))
    assert close(trajectory(split, problem.with_psi(psi, np.eye(problem.d))), plain, TOL)


WEIGHTED = {
    "accelerated": lambda _: ps.Accelerated(0.2, 0.3),
    "local-gd": lambda _: ps.LocalGD(0.1, 5),
    "scaffold": lambda _: ps.Scaffold(0.1, 5, eta_g=0.7),
    "scaffold-I": lambda _: ps.Scaffold(0.05, 5, option="I"),
    "fedlin": lambda _: ps.FedLin(0.05, 5),
    "s-local-gd": lambda _: ps.SLocalGD(0.05, 0.2, 0.5),
    "scaffnew": lambda _: ps.Scaffnew(0.5, 0.2),
    "own-steps": lambda problem: ps.Scaffnew.theory(problem, own_steps=True),
}


@pytest.mark.parametrize("name", WEIGHTED)
def test_copies_of_half_the_weight_and_another_order_are_the_same_clients(name: str) -> None:
    f, g, h = quadratics(3, own=name == "own-steps")
    problem = ps.Problem((f, g, h), (0.5, 0.2, 0.3))
    expected = trajectory(WEIGHTED[name](problem), problem)[:, : problem.d]
    for other in (ps.Problem((f, f, g, h), (0.25, 0.25, 0.2, 0.3)), ps.Problem((f, h, g), (0.5, 0.3, 0.2))):
        assert close(trajectory(WEIGHTED[name](other), other)[:, : problem.d], expected, TOL)


def test_a_warm_start_goes_on_where_the_run_stopped() -> None:
    """With a fixed K nothing is drawn, so x and h are the whole state."""
    problem = clients()
    method = ps.Scaffnew(1 / problem.L_max, 0.25, K=4)
    straight = ps.run(method, problem, rounds=20)
    first = ps.run(method, problem, rounds=12)
    second = ps.run(method, problem, rounds=8, warm=first)
    assert np.array_equal(second.x, straight.x)
    assert np.array_equal(second.h, straight.h)


def test_the_number_of_local_steps_is_geometric() -> None:
    """The round form is the iteration form: P(K = k) = p (1 - p)^(k - 1)."""
    rng = np.random.Generator(np.random.Philox(0))
    p, draws = 0.3, 20_000
    K = np.array([geometric(rng, p) for _ in range(draws)])
    cells = np.append(np.bincount(K, minlength=12)[1:11], np.count_nonzero(K > 10))
    chances = np.append(p * (1 - p) ** np.arange(10), (1 - p) ** 10)
    assert K.min() == 1
    assert scipy.stats.chisquare(cells, chances * draws).pvalue > 1e-3
    assert {geometric(rng, 1.0) for _ in range(10)} == {1}


@pytest.mark.parametrize("name", ["ring", "path", "star"])
@pytest.mark.parametrize("k", [None, 4])
def test_random_gossip_with_every_link_awake_is_its_deterministic_form(name: str, k: int | None) -> None:
    problem = clients()
    random = ps.RandomGossip.theory(problem, graph=name, p_e=1.0, k=k)
    fixed = ps.DecentralizedScaffnew(random.gamma, 1.0, random.tau, random.graph)
    assert random.omega == 0
    assert close(trajectory(random, problem), trajectory(fixed, problem), TOL)


@pytest.mark.parametrize("chi", [1.0, 3.0])
def test_the_stochastic_decentralized_method_is_decentralized_scaffnew(chi: float) -> None:
    """Guo, Alghunaim, Yuan, Condat, Cao, arXiv:2310.07983, as published, from the same coins.

    z = x - gamma g(x) - y;  with probability p  x+ = (I - (I - W)/(2 chi)) z,  else x+ = z;  y+ = y + p (z - x+).
    """
    problem, p, graph = clients(), 0.4, ps.graphs.graph("ring", 4)
    gamma = 0.5 / problem.L_max
    ours = trajectory(ps.DecentralizedScaffnew(gamma, p, p / (2 * chi * gamma), graph), problem, rounds=25, seed=7)
    x, y, theirs = np.ones((4, 4)), np.zeros((4, 4)), []
    for r in range(25):
        K = geometric(stream(7, r, "server"), p)
        for k in range(K):
            z = x - gamma * stacked(problem).gradient(x.ravel()).reshape(4, 4) - y
            x = z - (np.eye(4) - graph.W) @ z / (2 * chi) if k == K - 1 else z
            y = y + p * (z - x)
        theirs.append(x.ravel().copy())
    assert close(ours, theirs, TOL)


@pytest.mark.parametrize("beta", [1.0, 0.6])
def test_fista_is_its_rule_with_restarts(beta: float) -> None:
    """Long enough to restart a few times, and with a bound on the momentum that binds later than at the first step."""
    f, threshold = quadratics(1, 5, 300.0)[0], 0.02
    problem = ps.Problem([f], psi=ps.prox.L1(threshold))
    gamma = 1 / float(np.linalg.eigvalsh(f.H)[-1])
    x = y = np.zeros(5)
    t, restarts, bounded = 1.0, 0, 0
    for rounds in range(1, 121):
        v = y - gamma * (f.H @ y - f.b)
        new = np.sign(v) * np.maximum(np.abs(v) - gamma * threshold, 0.0)
        if (y - new) @ (new - x) > 0:
            x, y, t, restarts = new, new, 1.0, restarts + 1
        else:
            following = 0.5 + math.sqrt(0.25 + t * t)
            momentum = (t - 1) / following
            bounded += momentum > beta
            x, y, t = new, new + min(momentum, beta) * (new - x), following
        if rounds in (1, 2, 3, 30, 120):
            found = ps.run(ps.Fista(gamma, beta), problem, rounds=rounds).x
            assert close(found, x, 1e-10), rounds
    assert restarts > (1 if beta == 1.0 else -1)
    assert (bounded > 5) == (beta < 1)
