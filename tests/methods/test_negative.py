"""What must fail, fails: wrong methods stall or diverge as they should, and wrong input is refused before any work."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

import proxskip as ps
from campaigns import mutants
from proxskip.codecs import Key, Natural, RandK
from proxskip.types import Array, InputError
from support import family
from support.methods import NAMED
from support.problems import WEIGHTS, data, quadratics

pytestmark = pytest.mark.usefixtures("quiet_steps")


@dataclass(frozen=True)
class TopK(RandK):
    """The k largest entries, which claims to be unbiased and is not: no error feedback makes up for the rest."""

    unbiased = True

    def decode(self, data: bytes, d: int, key: Key) -> Array:
        return np.frombuffer(data).copy()

    def encode(self, v: Array, key: Key) -> bytes:
        out = np.zeros(len(v))
        largest = np.argsort(-np.abs(v), kind="stable")[: self.k]
        out[largest] = v[largest]
        return out.tobytes()


class UncheckedScaffnew(ps.Scaffnew):
    """Scaffnew with any codec, which ``check`` refuses."""

    def check(self, problem: ps.Problem, allow_unsafe_step: bool = False, cohorts: Any = None) -> list[str]:
        return []


HARD = ps.Problem(ps.random_quadratics(6, 8, L=1.0, mu=0.01, seed=0))
"""n = 6, kappa = 100, heterogeneous."""


def error(result: ps.Result, problem: ps.Problem) -> float:
    """Relative distance to the solution."""
    assert problem.solution is not None
    return float(np.linalg.norm(result.x - problem.solution.x) / np.linalg.norm(problem.solution.x))


# -- methods that are biased, or diverge where Scaffnew does not -------------------------------------------------------
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.long
def test_local_gd_stalls_at_a_biased_point_and_says_so(seed: int) -> None:
    """Where all clients are equal it is not biased."""
    problem = ps.Problem(ps.random_quadratics(6, 8, L=1.0, mu=0.01, seed=seed))
    method = ps.LocalGD(1 / problem.L_max, 10)
    result = ps.run(method, problem, tol=1e-8, rounds=5000, allow_unsafe_step=True)
    assert (result.status, result.success) == (ps.Status.STALLED, False)
    assert "bias" in result.message
    assert error(result, problem) > 1e-2
    alike = ps.Problem([problem.clients[0]] * 6)
    assert error(ps.run(method, alike, rounds=400, allow_unsafe_step=True), alike) < 1e-9


@pytest.mark.parametrize("method", [ps.FedLin(1.0, 10), ps.Scaffold(1.0, 10, option="I")], ids=["fedlin", "scaffold-I"])
@pytest.mark.long
def test_anchored_corrections_diverge_at_one_over_L_where_scaffnew_converges(method: Any) -> None:
    result = ps.run(method, HARD, rounds=400, allow_unsafe_step=True)
    assert (result.status, result.success) == (ps.Status.DIVERGED, False)
    for good in (ps.Scaffnew(1.0, 0.1), ps.Scaffnew(1.0, 0.1, K=10), ps.Scaffold(1.0, 10)):
        assert ps.run(good, HARD, tol=1e-9, rounds=2000, allow_unsafe_step=True).success, good
    for small in (ps.FedLin.theory(HARD, K=10, figure=True), ps.FedLin.theory(HARD, K=10)):
        gap = ps.run(small, HARD, rounds=300, every=1).trace["gap"]
        assert gap[-1] < gap[1]


# -- refusals before any work ------------------------------------------------------------------------------------------
def gossip(tau: float, n: int = 4) -> ps.core.Method:
    return ps.DecentralizedScaffnew(0.5, 0.5, tau, ps.graphs.graph("ring", n))


PLAIN, WEIGHTED = ps.Problem(quadratics(4)), ps.Problem(quadratics(4), WEIGHTS)
FLAT, ROUND = ps.Problem([ps.Quadratic([1.0, 0.0], [1.0, 0.0])]), ps.Quadratic([1.0, 2.0], [1.0, 1.0])


@pytest.mark.parametrize(
    ("call", "says"),
    [
        # parameters out of range, where they are given
        (lambda: ps.Scaffnew((0.5, 0.0), 0.5), "gamma"),
        (lambda: ps.Scaffold(0.1, 2, option="III"), "option"),
        (lambda: ps.SLocalGD(0.1, 0.5, q=0.0), "q = 0"),
        (lambda: ps.ScaffnewVR(0.1, 0.5, q=2.0), "q = 2"),
        (lambda: ps.Accelerated(0.5, 1.0), "beta"),
        (lambda: ps.LoCoDL(0.1, 0.5, "natural", 0.1, 0.125, 0.0), "rho = 0"),
        (lambda: ps.Decaying(ps.GD(0.1), -1.0), "decay = -1"),
        # that do not fit the problem
        (lambda: ps.run(ps.Scaffnew((0.5, 0.5), 0.5), PLAIN, rounds=1), "2 entries for 4 clients"),
        (lambda: ps.run(ps.Scaffnew(0.5, 0.5, codec="natural"), PLAIN, rounds=1), "wrong answers with the codec natural"),
        (lambda: ps.run(ps.Scaffnew(0.5, 0.5, codec="rand-2"), PLAIN, rounds=1), "wrong answers with the codec rand-2"),
        (lambda: ps.run(ps.FedLin(0.1, (1, 2)), PLAIN, rounds=1), "2 entries for 4 clients"),
        (lambda: ps.run(ps.ProxSkip(0.5, 0.5), PLAIN, rounds=1), "a single function"),
        (lambda: ps.run(ps.SplitSkip(0.5, 0.5, 0.5), PLAIN, rounds=1), "a single function"),
        (lambda: ps.run(gossip(1.01 / ps.graphs.graph("ring", 4).lmax), PLAIN, rounds=1), "tau"),
        (lambda: ps.run(gossip(0.1, 5), PLAIN, rounds=1), "5 nodes but there are 4"),
        (lambda: ps.run(gossip(0.5), WEIGHTED, rounds=1), "equally weighted"),
        (lambda: ps.run(ps.GD(0.5), WEIGHTED, rounds=1, h0=np.ones((4, 4))), "no control variates"),
        (lambda: ps.run(ps.Scaffold(0.1, 5), WEIGHTED, rounds=1, h0=np.ones((4, 4))), "must be zero, or the answer"),
        (lambda: ps.LoCoDL.theory(HARD, codec=family.Signs()), "needs an unbiased codec"),
        *((lambda kind=kind: kind.theory(FLAT), "by mu, which is unknown") for kind in (ps.Scaffnew, ps.ProxSkip, ps.Accelerated)),
        *((lambda name=name: ps.run(NAMED[name].make(PLAIN), PLAIN.with_psi(ps.prox.L1(0.1)), rounds=1), "no prox step")
          for name in ("gd", "local-gd", "scaffold", "fedlin", "s-local-gd", "decentralized")),
        # starts and stops
        *((lambda given=given: ps.run(ps.Scaffnew(0.5, 0.5), PLAIN, **given), says) for given, says in (
            ({}, "rounds"),
            ({"rounds": -1}, "rounds = -1"),
            ({"rounds": "3"}, "rounds = '3'"),
            ({"tol": 0.0}, "tol"),
            ({"rounds": 1, "x0": np.zeros(3)}, "x0"),
            ({"rounds": 1, "x0": [np.nan] * 4}, "x0"),
            ({"rounds": 1, "h0": np.zeros((2, 4))}, "h0"),
            ({"rounds": 1, "seed": -1}, "seed"),
            ({"rounds": 1, "every": 0}, "every"),
            ({"rounds": 1, "cohort": [0, 1]}, r"cohort = \[0, 1\]"),
        )),
        # problems
        (lambda: ps.split(ps.Logistic(*data()), "3"), "clients = '3'"),
        (lambda: ps.Logistic(*data(), l2="x"), "l2 = 'x'"),
        (lambda: ps.Problem([ROUND], psi=ps.prox.L1(1.0), D=np.eye(3)), "D has shape"),
    ],
)  # fmt: skip
def test_wrong_values_get_one_sentence_before_any_work(call: Any, says: str) -> None:
    with pytest.raises(InputError, match=says):
        call()


def test_the_largest_tau_numbers_of_numpy_and_lists_are_taken() -> None:
    ps.run(gossip(1.0 / ps.graphs.graph("ring", 4).lmax), PLAIN, rounds=1)
    assert ps.run(ps.LocalGD(0.1, np.int64(3)), PLAIN, rounds=2).summary["iterations"] == 6
    ps.Problem([ROUND], psi=ps.prox.L1(1.0), D=[[1.0, -1.0]])


@pytest.mark.parametrize("mutant", mutants.MUTANTS, ids=lambda m: m.name)
def test_every_mutant_fits_the_source(mutant: mutants.Mutant) -> None:
    """``python tests/campaigns/mutants.py`` kills them all; here, that each still changes a line of the code as it is."""
    assert len(mutants.mutated(mutant)) >= 1
    for killer in mutant.killers:
        file, name = killer.split("::")
        assert f"def {name.partition('[')[0]}(" in (mutants.HOME / "tests" / file).read_text()


@pytest.mark.parametrize("codec", [TopK(2), Natural(), RandK(2)], ids=["top-2", "natural", "rand-2"])
@pytest.mark.slow
def test_compressing_models_instead_of_differences_stalls(codec: Any) -> None:
    """Top-k without error feedback, and unbiased codecs without LoCoDL's y: what is compressed does not vanish."""
    assert error(ps.run(ps.LoCoDL.theory(HARD, codec="rand-2"), HARD, rounds=3000, every=500), HARD) < 1e-6
    wrong = ps.run(UncheckedScaffnew(1 / HARD.L_max, 0.1, codec=codec), HARD, rounds=600, every=100)
    assert error(wrong, HARD) > 1e-2


def test_chi_above_its_bound_is_warned_of_and_diverges() -> None:
    problem = ps.Problem(quadratics(3))
    right = ps.Tamuna.theory(problem, s=2)
    wrong = replace(right, chi=2.5)
    assert any("exceeds its bound" in note for note in wrong.check(problem))
    assert not right.check(problem)
    assert ps.run(right, problem, rounds=400).trace.last()["gap"] < 1e-9
    assert ps.run(wrong, problem, rounds=400).trace.last()["gap"] > 1e-3


@pytest.mark.parametrize("name", ["divided-by-n", "sign-of-h"])
@pytest.mark.slow
def test_a_mutant_is_killed(name: str) -> None:
    (mutant,) = (m for m in mutants.MUTANTS if m.name == name)
    assert mutants.kill(mutant) == list(mutant.killers)
