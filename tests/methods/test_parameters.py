"""A parameter that is not given is chosen by the theorem, and in one way only: as a name, a class, an object, a flag."""

import math
from dataclasses import fields
from typing import Any

import numpy as np
import pytest

import proxskip as ps
from proxskip import theory
from proxskip.core.method import Method, flags
from proxskip.participation import as_participation
from support.comparing import bits
from support.problems import difference
from support.tiers import thinned

NAMES = list(ps.core.METHODS)
ON_COHORTS = [name for name in NAMES if "cohort" in ps.core.METHODS[name].about.handles]


def problem_for(name: str) -> ps.Problem:
    """Clients that differ in L; for methods of one function the first of them."""
    handles = ps.core.METHODS[name].about.handles
    parts = [
        ps.Quadratic(s * f.H, s * f.b) for s, f in zip((1, 2, 3, 4), ps.random_quadratics(4, 3, seed=1), strict=True)
    ]
    problem = ps.Problem(parts if "clients" in handles else parts[:1])
    if "psi" not in handles:
        return problem
    return problem.with_psi(ps.prox.L1(0.01), difference(3) if "D" in handles else None)


def ways(name: str, problem: ps.Problem, cohort: Any = None) -> list[Any]:
    kind = ps.core.METHODS[name]
    return [name, kind, kind(), kind.theory(problem, cohort=cohort), kind().complete(problem, as_participation(cohort))]


@pytest.mark.parametrize("wrong", ["a", object(), {"a": 1}, [[1], [1, 2]]], ids=["text", "object", "dict", "ragged"])
@pytest.mark.parametrize("name", NAMES)
def test_a_parameter_of_a_wrong_type_is_refused_in_a_sentence(name: str, wrong: Any) -> None:
    kind = ps.core.METHODS[name]
    for field in fields(kind):
        if field.name != "graph":  # whatever describes one becomes one when the problem is known
            with pytest.raises(ps.InputError, match=rf"^{field.name} .*\.$|^codec \"a\" is not known"):
                kind(**{field.name: wrong})


OUT_OF_RANGE: dict[str, tuple[Any, ...]] = {
    "gamma": (0.0, -1.0, math.nan), "p": (0.0, 2, 1e-300), "p_e": (0.0, 2.0), "K": (0, -1), "s": (0,),
    "eta_g": (0.0, math.inf), "chi": (0.0,), "tau": (0.0, -1.0), "theta": (1.0,), "mu": (-1.0,), "omega": (-1.0,),
    "sigma": (0.0,), "c": (0.0,), "mu_g": (-1.0,),
}  # fmt: skip
"""Values that no method may have, by the letter, which means the same in all of them."""


@pytest.mark.parametrize("name", NAMES)
def test_a_parameter_out_of_its_range_is_refused_by_its_name(name: str) -> None:
    kind = ps.core.METHODS[name]
    for field in fields(kind):
        for wrong in OUT_OF_RANGE.get(field.name, ()):
            with pytest.raises(ps.InputError, match=rf"^{field.name} = .*\.$"):
                kind(**{field.name: wrong})


@pytest.mark.parametrize("name", thinned(NAMES))
def test_all_ways_lead_to_the_same_run(name: str) -> None:
    problem = problem_for(name)
    runs = [ps.run(method, problem, rounds=5, engine="reference") for method in ways(name, problem)]
    assert len({bits(r) for r in runs}) == 1
    assert len({str({k: r.summary[k] for k in ("gamma", "p", "K")}) for r in runs}) == 1


@pytest.mark.parametrize("cohort", [3, 0.6])
@pytest.mark.parametrize("name", ON_COHORTS)
def test_all_ways_lead_to_the_same_run_on_cohorts(name: str, cohort: Any) -> None:
    if name == "tamuna" and cohort == 0.6:
        pytest.skip("it needs cohorts of one size")
    problem = problem_for(name).with_psi(None)
    runs = [
        ps.run(method, problem, rounds=5, cohort=cohort, engine="reference") for method in ways(name, problem, cohort)
    ]
    assert len({bits(r) for r in runs}) == 1


def test_the_step_of_scaffold_on_cohorts_is_that_of_its_theorem() -> None:
    # with many clients and few in a round share/(15 mu K) is the smaller bound
    problem = ps.Problem(ps.random_quadratics(100, 4, L=1.0, mu=0.2, seed=1))
    made = ps.run("scaffold", problem, rounds=1, cohort=2).summary
    assert made["gamma"] == min(1 / (81 * made["K"] * problem.L), 0.02 / (15 * problem.mu * made["K"]))
    assert made["gamma"] < ps.Scaffold.theory(problem).gamma


@pytest.mark.parametrize("name", NAMES)
def test_what_is_given_is_never_replaced_and_what_is_complete_stays(name: str) -> None:
    kind, problem = ps.core.METHODS[name], problem_for(name)
    best = kind.theory(problem)
    assert best.complete(problem) == best
    assert best.complete(problem, figure=True) == best
    for field in fields(kind):
        value = getattr(best, field.name)
        if field.name in flags(kind) and isinstance(value, float):
            other = 0.9 * value
            given = {field.name: other}
            if name == "5gcs" and field.name in ("c", "sigma", "mu"):
                continue  # sums of rounding; the others follow from them
            assert getattr(kind.theory(problem, **given), field.name) == other
            assert getattr(kind(**given).complete(problem, figure=True), field.name) == other


def test_the_rest_follows_from_what_is_given() -> None:
    problem = problem_for("scaffnew").with_psi(None)
    gamma = 0.5 / problem.L
    assert ps.Scaffnew.theory(problem, gamma=gamma).p == theory.best_p(gamma, problem.mu)
    assert ps.Scaffnew.theory(problem, K=4).p == 0.25
    assert ps.Scaffnew.theory(problem, own_steps=True).gamma == tuple(1 / problem.L_i)
    assert ps.Scaffnew.theory(problem, figure=True).gamma == 1 / problem.L_average
    a, chi = theory.uniform_cohort(4, 2)
    on_two = ps.Scaffnew.theory(problem, cohort=2)
    assert (on_two.chi, on_two.p) == (chi, theory.tamuna_p(1 / problem.L, problem.mu, chi, a))
    link = ps.DecentralizedScaffnew.theory(problem, p=0.5)
    assert link.tau == theory.split_tau(1 / problem.L, 0.5, link.graph.lmax)
    assert ps.FedLin.theory(problem, K=(1, 2, 3, 4)).gamma == tuple(1 / (K * problem.L) / 6 for K in (1, 2, 3, 4))
    assert ps.FiveGCS.theory(problem, K=7).theta is None


def test_own_numbers_may_be_arrays() -> None:
    problem = ps.Problem(ps.random_quadratics(3, 2, seed=1))
    one, other = (ps.run(ps.FedLin(0.05, K), problem, rounds=3) for K in ((2, 3, 2), np.array([2, 3, 2])))
    assert one.x.tobytes() == other.x.tobytes()


def test_a_decay_that_is_not_given_is_that_of_the_experiments() -> None:
    problem = ps.split(ps.Logistic(np.eye(8), np.arange(8) % 2, l2=0.1), 2)
    chosen = ps.Decaying(ps.LocalGD(0.1, 7)).complete(problem)
    assert chosen.decay == 7 * 0.1 / 2
    assert ps.run(ps.Decaying(ps.LocalGD(K=7)), problem, rounds=2).summary["decay"] == 7 * 0.1 / 2


OF_A_FIXED_STEP = {
    "claims": "no theorem covers a falling step",
    "zeta": "of claims",
    "lyapunov": "of claims",
    "pace": "of the parameters, which are handed on",
    "limits": "the method checks its first step itself",
    "smoothness": "likewise",
    "check_steps": "likewise",
    "check_lengths": "likewise",
    "check_parameters": "the method has checked its own",
    "theory": "of complete",
    "given": "of the fields",
    "name": "of about",
    "handles": "of about",
    "remembers": "of about",
}


def test_decaying_hands_on_whatever_a_method_may_define() -> None:
    """What a method overrides would otherwise be lost without a word."""
    may_define = {name for name in vars(Method) if not name.startswith("_")} - {"gamma", "about"}
    assert may_define - set(vars(ps.Decaying)) == set(OF_A_FIXED_STEP)


@pytest.mark.parametrize("kind", [ps.ProxSkip, ps.ProxGD, ps.Accelerated, ps.Fista, ps.APDA, ps.SplitSkip, ps.PDHG])
def test_minimize_chooses_what_a_method_leaves_open(kind: Any) -> None:
    f = ps.LeastSquares(np.vander(np.linspace(0.1, 1.0, 6), 4), np.ones(6), l2=0.1)
    D = difference(4) if "D" in kind.about.handles else None
    problem = ps.Problem([f]).with_psi(ps.prox.L1(0.01), D)
    open_, chosen = (ps.minimize(f, ps.prox.L1(0.01), D=D, method=m, tol=1e-6) for m in (kind(), kind.theory(problem)))
    assert open_.success
    assert open_.x.tobytes() == chosen.x.tobytes()
