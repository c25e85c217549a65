"""Partial participation: sum_i w_i h_i = 0 under any pattern, one commit a round by exactly the cohort, no divergence."""

import time
import warnings
from typing import Any

import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

import proxskip as ps
from proxskip.engines.reference import ReferenceEngine
from proxskip.participation import Bernoulli, Uniform, as_participation
from proxskip.support.randomness import stream
from proxskip.types import InputError
from support.comparing import close
from support.machine import Machine, cohorts_of
from support.methods import NAMED
from support.problems import quadratics
from support.tiers import draws, thinned

many = settings(max_examples=draws(60))


@st.composite
def patterns(draw: Any) -> tuple[int, tuple[float, ...], list[list[int]], int]:
    """(n, weights, cohorts, seed): any weights, any cohorts, at least one of two clients or more."""
    n = draw(st.integers(2, 6))
    weights = tuple(draw(st.lists(st.floats(0.01, 10.0), min_size=n, max_size=n)))
    some = st.lists(st.integers(0, n - 1), min_size=1, max_size=n, unique=True)
    cohorts = draw(st.lists(some, min_size=1, max_size=6))
    pair = draw(st.lists(st.integers(0, n - 1), min_size=2, max_size=n, unique=True))
    return n, weights, [*cohorts, pair], draw(st.integers(0, 2**32))


def check_sum_h(machine: Machine, slack: float = 1.0) -> None:
    """sum_i w_i h_i is zero up to rounding."""
    method: Any = machine.method
    memory = machine.memory
    h = method.controls(machine.server, memory) if hasattr(method, "controls") else memory["h"]
    p = getattr(method, "p", None) or 1.0 / method.K
    size = np.abs(h).max() + p / np.min(method.gamma) * np.abs(machine.x).max()
    assert np.abs(machine.problem.weights @ h).max() <= slack * 1e-12 * size


@many
@given(patterns(), st.booleans(), st.sampled_from([0.1, 0.4, 1.0]))
def test_scaffnew_keeps_sum_h_zero_under_any_pattern(pattern: Any, own: bool, p: float) -> None:
    n, weights, cohorts, seed = pattern
    problem = ps.Problem(quadratics(n, own=True), weights)
    gamma = tuple(1 / L for L in problem.L_i) if own else 1 / problem.L_max
    machine = Machine(ps.Scaffnew(gamma, p), problem, cohorts, seed=seed)
    machine.put({"x": np.ones(problem.d)}, {})
    for r in range(2 * len(cohorts)):
        before = machine.memory["h"]
        machine.round(r)
        check_sum_h(machine)
        absent = np.setdiff1d(np.arange(n), machine.line.cohort)
        assert np.array_equal(machine.memory["h"][absent], before[absent])


@many
@given(patterns(), st.sampled_from(["I", "II"]), st.sampled_from([0.5, 1.0]))
def test_scaffold_keeps_sum_h_zero_under_any_pattern(pattern: Any, option: Any, eta_g: float) -> None:
    n, weights, cohorts, seed = pattern
    problem = ps.Problem(quadratics(n, own=True), weights)
    machine = Machine(ps.Scaffold(0.2 / problem.L_max, 4, eta_g, option), problem, cohorts, seed=seed)
    machine.put(machine.method.start(problem, np.ones(problem.d)), {})
    for r in range(2 * len(cohorts)):
        machine.round(r)
        check_sum_h(machine)


@many
@given(patterns(), st.sampled_from([0.1, 0.4, 1.0]))
def test_with_everybody_one_round_heals_any_h0(pattern: Any, p: float) -> None:
    """The prox form: whatever sum_i w_i h0_i is, after one communication it is zero."""
    n, weights, _, seed = pattern
    problem = ps.Problem(quadratics(n, own=True), weights)
    machine = Machine(ps.Scaffnew(tuple(1 / L for L in problem.L_i), p), problem, seed=seed)
    rng = np.random.Generator(np.random.Philox(seed))
    machine.put({"x": np.ones(problem.d)}, {"h": 1.0 + rng.standard_normal((n, problem.d))})
    assert np.abs(problem.weights @ machine.memory["h"]).max() > 1e-3
    machine.round(0)
    check_sum_h(machine, slack=10)


# -- the commit --------------------------------------------------------------------------------------------------------
class Witness(ReferenceEngine):
    """Writes down who ran and who was told what."""

    def __init__(self) -> None:
        self.ran: list[list[int]] = []
        self.told: list[tuple[list[int], np.ndarray]] = []

    def run(self, request: Any) -> Any:
        self.ran.append(request.cohort.tolist())
        return super().run(request)

    def tell(self, half: Any, cohort: Any, outcome: Any) -> None:
        self.told.append((cohort.tolist(), outcome[0].copy()))
        super().tell(half, cohort, outcome)


@pytest.mark.parametrize("cohort", [None, 2, 0.5, [[0, 3], [1, 2, 3], [2]]], ids=str)
def test_h_is_settled_once_a_round_by_exactly_the_cohort_with_that_rounds_x(cohort: Any) -> None:
    problem = ps.Problem(quadratics(4))
    witness = Witness()
    machine = Machine(ps.Scaffnew(1 / problem.L_max, 0.3), problem, cohort, engine=witness, seed=5)
    machine.put({"x": np.ones(problem.d)}, {})
    for r in range(12):
        machine.round(r)
        assert len(witness.ran) == len(witness.told) == r + 1
        told, x = witness.told[-1]
        assert witness.ran[-1] == told == machine.line.cohort.tolist()
        assert np.array_equal(x, machine.server["x"])
        xhat = machine.memory["xhat"]
        assert close(problem.weights[told] @ (x - xhat[told]) + 1, np.ones(problem.d), 1e-12) or cohort is None


def test_bernoulli_cohorts_are_never_empty_and_have_the_binomial_size() -> None:
    n, q, draws = 5, 0.3, 6000
    sizes = [len(Bernoulli(q).draw(stream(2, r, "cohort"), n, r)) for r in range(draws)]
    chances = np.array([scipy.stats.binom.pmf(k, n, q) for k in range(1, n + 1)])
    expected = draws * chances / chances.sum()
    assert scipy.stats.chisquare(np.bincount(sizes, minlength=n + 1)[1:], expected).pvalue > 1e-3


@pytest.mark.parametrize(
    ("name", "cohort", "says"),
    [
        ("scaffnew", 1, "take c >= 2"),
        ("scaffnew", 5, "cannot be drawn from 4"),
        ("scaffnew", [[0, 4]], "different clients"),
        ("scaffnew", [[]], "at least one"),
        ("scaffnew", [], "empty"),
        ("scaffnew", "most", "not understood"),
        ("scaffnew-psi", 2, "needs the h of all clients"),
        *((name, 2, "needs all clients in every round") for name in ("gd", "fedlin", "s-local-gd", "decentralized")),
    ],
    ids=str,
)
def test_impossible_cohorts_are_refused(name: str, cohort: Any, says: str) -> None:
    problem = NAMED[name].quadratic()
    with pytest.raises(InputError, match=says):
        ps.run(NAMED[name].make(problem), problem, rounds=1, cohort=cohort)


def test_chi_above_its_bound_warns_and_two_clients_suffice_for_tamuna() -> None:
    problem = ps.Problem(quadratics(4))
    assert ps.Tamuna.theory(problem, cohort=2).s == 2
    with pytest.warns(ps.UnsafeStepWarning, match="exceeds its bound"):
        ps.run(ps.Scaffnew(1 / problem.L_max, 0.5, chi=1.5), problem, rounds=1, cohort=2)


def test_cohorts_that_never_meet_are_named() -> None:
    problem = NAMED["scaffnew"].rows()
    with pytest.warns(ps.UnsafeStepWarning, match="the groups 0, 1; 2, 3, so"):
        result = ps.run(ps.Scaffnew(0.1, 0.5), problem, rounds=4, cohort=[[0, 1], [2, 3]])
    assert "never combine" in result.warnings[-1]
    assert result.summary["zeta"] is None
    ps.run(ps.Scaffnew(0.1, 0.5), problem, rounds=4, cohort=[[0, 1], [2, 3], [1, 2]])


@pytest.mark.parametrize("dropout", thinned([0.1, 0.3, 0.5, 0.7, 0.9]))
@pytest.mark.long
def test_dropout_never_diverges(dropout: float, proxskip_data: Any) -> None:
    """a1a, 20 clients by label, kappa = 1000: the gradient norm stays within 10 times its start, sum h = 0 all along."""
    A, b = ps.datasets.load("a1a", data_dir=proxskip_data)
    whole = ps.Logistic(A, b, l2_relative=1e-3)
    problem = ps.split(whole, clients=20, by="label", weights="equal")
    method = ps.Scaffnew(1 / problem.L_max, p=problem.mu**0.5 / problem.L_max**0.5)
    rounds = 780 if dropout <= 0.5 else 200
    result = ps.run(method, problem, rounds=rounds, cohort=1 - dropout, seed=0)
    trace, solution = result.trace, problem.solution
    assert trace["grad_norm"].max() <= 10 * trace["grad_norm"][0]
    size = np.abs(result.h).max() + method.p / np.min(method.gamma) * np.abs(result.x).max()
    assert trace["sum_h"].max() <= 1e-12 * size
    if dropout <= 0.5:
        assert np.linalg.norm(result.x - solution.x) <= 1e-6 * np.linalg.norm(solution.x)


def test_cohorts_of_unequal_weights_are_warned_about() -> None:
    parts = ps.random_quadratics(5, 4, L=1.0, mu=0.1, seed=0)
    unequal, equal = ps.Problem(parts, [1.0, 2.0, 3.0, 4.0, 5.0]), ps.Problem(parts)
    said = r"no theorem covers scaffnew on cohorts of clients with different weights"
    with pytest.warns(ps.NoTheoremWarning, match=said):
        found = ps.run(ps.Scaffnew(0.9, 0.3), unequal, rounds=4000, target=1e-12, cohort=2, threads=1)
    assert found.summary["warnings"] == list(found.warnings)
    assert len(found.warnings) == 1
    assert found.summary["zeta"] is None
    assert found.summary["gap"] <= 1e-12  # its fixed point is the solution all the same
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert ps.run(ps.Scaffnew(0.9, 0.3), equal, rounds=3, cohort=2).warnings == ()
        assert ps.run(ps.Scaffnew(0.9, 0.3), unequal, rounds=3).warnings == ()
        assert ps.run(ps.FiveGCS.theory(unequal, cohort=2, figure=True), unequal, rounds=3, cohort=2).warnings == ()


def test_own_steps_may_be_an_array() -> None:
    problem = ps.Problem(ps.random_quadratics(4, 3, L=1.0, mu=0.1, seed=0))
    gammas = (0.5, 0.4, 0.3, 0.2)
    one, other = (ps.run(ps.Scaffnew(g, 0.5), problem, rounds=5, cohort=2) for g in (gammas, np.array(gammas)))
    assert one.x.tobytes() == other.x.tobytes()


@pytest.mark.parametrize(
    "rule", [Uniform(1), Uniform(2), Uniform(5), Bernoulli(0.3), Bernoulli((0.2, 0.9, 0.5, 1.0, 0.4))]
)
def test_inclusion_is_the_probability_of_one_client_and_of_two(rule: Any) -> None:
    n = 5
    one, two = np.zeros(n), np.zeros((n, n))
    for chance, cohort in cohorts_of(rule, n):
        member = np.isin(np.arange(n), cohort)
        one += chance * member
        two += chance * np.outer(member, member)
    pi, rho = rule.inclusion(n)
    assert pi == pytest.approx(one, rel=1e-12)
    apart = ~np.eye(n, dtype=bool)
    assert (rho * np.outer(pi, pi))[apart] == pytest.approx(two[apart], rel=1e-12)


@many
@given(st.integers(1, 12), st.data())
def test_groups_that_never_meet(n: int, draw: Any) -> None:
    some = st.lists(st.integers(0, n - 1), min_size=1, max_size=n, unique=True)
    cohorts = draw.draw(st.lists(some, min_size=1, max_size=6))
    found = as_participation(cohorts).apart(n)
    assert sorted(i for group in found for i in group) == list(range(n))
    group_of = {i: k for k, group in enumerate(found) for i in group}
    # no cohort joins two groups, and no group can be cut in two without cutting a cohort
    assert all(len({group_of[i] for i in c}) == 1 for c in cohorts)
    for group in found:
        reached = {group[0]}
        while more := {i for c in cohorts if reached & set(c) for i in c} - reached:
            reached |= more
        assert reached == set(group)


def test_two_thousand_cohorts_are_looked_through_at_once() -> None:
    # one chain: the labels of a client would change two thousand times
    links = [[k, k + 1, k + 10] for k in range(2000)]
    cohorts = as_participation(links)
    begun = time.process_time()
    assert cohorts.apart(2010) == [list(range(2010))]
    mine = time.process_time() - begun

    begun, parent = time.process_time(), list(range(2010))

    def root(i: int) -> int:
        while parent[i] != i:
            parent[i] = parent[parent[i]]
            i = parent[i]
        return i

    for first, *others in links:
        for i in others:
            parent[root(i)] = root(first)
    assert mine <= 10 * (time.process_time() - begun)  # relabeling all clients for each cohort takes 50 to 100 times


def test_probabilities_may_make_one_cohort_in_a_thousand_and_no_fewer() -> None:
    for n, probability, refused in ((1, 1e-3, False), (1, 0.999e-3, True), (4, 2.5e-4, False), (4, 2.4e-4, True)):
        if refused:
            with pytest.raises(InputError, match=f"almost every cohort of {n} clients is empty"):
                Bernoulli(probability).check(n)
        else:
            Bernoulli(probability).check(n)
