"""What must fail, fails: wrong methods stall or diverge as they should, and wrong input is refused before any work."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

import family
import mutants
import proxskip as ps
from conftest import NAMED, WEIGHTS, Machine, data, quadratics
from proxskip.interfaces import Client
from proxskip.links.codecs import Key, Natural, RandK
from proxskip.types import Array, InputError, Vectors

pytestmark = pytest.mark.usefixtures("quiet_steps")


# -- updates that look harmless and are wrong ----------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class LazyScaffnew(ps.Scaffnew):
    """The mistake of two public codes: h is updated when the client comes back, with the server's model of that day."""

    about = replace(ps.Scaffnew.about, name="lazy-h", title="lazy h", remembers=("h", "xhat", "seen"))

    def settle(self, client: Client, memory: Vectors, x: Array) -> Vectors:
        """Nothing but that the client took part."""
        return {"seen": 0.0 * memory["xhat"] + 1.0}

    def local_in_cohort(self, client: Client, memory: Vectors, K: int, x: Array) -> tuple[tuple[Array, ...], Vectors]:
        """The update that was due, too late; then the local steps."""
        eta = self.p * (self.chi or 1.0)
        h = memory["h"] + memory["seen"] * (eta / client.own(self.gamma)) * (x - memory["xhat"])
        xhat = client.descend(x, h, client.own(self.gamma), K)
        return (xhat,), {"xhat": xhat, "h": h}


@dataclass(frozen=True)
class TopK(RandK):
    """The k largest entries, which claims to be unbiased and is not: no error feedback makes up for the rest."""

    unbiased = True

    def decode(self, data: bytes, d: int, key: Key) -> Array:
        """As sent."""
        return np.frombuffer(data).copy()

    def encode(self, v: Array, key: Key) -> bytes:
        """All entries, with zeros for the others."""
        out = np.zeros(len(v))
        largest = np.argsort(-np.abs(v), kind="stable")[: self.k]
        out[largest] = v[largest]
        return out.tobytes()


class UncheckedScaffnew(ps.Scaffnew):
    """Scaffnew with any codec, which ``check`` refuses."""

    def check(self, problem: ps.Problem, insist: bool = False) -> list[str]:
        """Nothing is refused."""
        return []


def hard() -> ps.Problem:
    """n = 6, kappa = 100, heterogeneous."""
    return ps.Problem(ps.random_quadratics(6, 8, L=1.0, mu=0.01, seed=0))


def error(result: ps.Result, problem: ps.Problem) -> float:
    """Relative distance to the solution."""
    assert problem.solution is not None
    return float(np.linalg.norm(result.x - problem.solution.x) / np.linalg.norm(problem.solution.x))


# -- methods that are biased, or diverge where Scaffnew does not -------------------------------------------------------
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.long
def test_local_gd_stalls_at_a_biased_point(seed: int) -> None:
    """It converges, quickly and to the wrong point; K = 1 and equal clients are not biased."""
    problem = ps.Problem(ps.random_quadratics(6, 8, L=1.0, mu=0.01, seed=seed))
    method = ps.LocalGD(1 / problem.L_max, 10)
    late, later = (ps.run(method, problem, rounds=r, allow_unsafe_step=True) for r in (300, 400))
    assert np.allclose(late.x, later.x, rtol=0, atol=1e-9)
    assert error(later, problem) > 1e-2
    assert later.trace.last()["grad_norm"] > 1e-3
    alike = ps.Problem([problem.clients[0]] * 6)
    assert error(ps.run(method, alike, rounds=400, allow_unsafe_step=True), alike) < 1e-9


def test_local_gd_asked_for_a_tolerance_says_that_it_stalled() -> None:
    problem = hard()
    result = ps.run(ps.LocalGD(1 / problem.L_max, 10), problem, tol=1e-8, rounds=5000, allow_unsafe_step=True)
    assert result.status is ps.Status.STALLED
    assert not result.success
    assert "bias" in result.message


@pytest.mark.parametrize("method", [ps.FedLin(1.0, 10), ps.Scaffold(1.0, 10, option="I")], ids=["fedlin", "scaffold-I"])
@pytest.mark.long
def test_anchored_corrections_diverge_at_one_over_L_where_scaffnew_converges(method: Any) -> None:
    problem = hard()
    result = ps.run(method, problem, rounds=400, allow_unsafe_step=True)
    assert result.status is ps.Status.DIVERGED
    assert not result.success
    for good in (ps.Scaffnew(1.0, 0.1), ps.Scaffnew(1.0, 0.1, K=10), ps.Scaffold(1.0, 10)):
        fine = ps.run(good, problem, tol=1e-9, rounds=2000, allow_unsafe_step=True)
        assert fine.success, good
    for small in (ps.FedLin.paper_figure(problem, K=10), ps.FedLin.theory(problem, K=10)):
        assert (
            ps.run(small, problem, rounds=300).trace.last()["gap"]
            < ps.run(small, problem, rounds=1).trace.last()["gap"]
        )


def test_s_local_gd_is_not_fedlin() -> None:
    """Its K is drawn, so its trajectory is another one; with q < 1 most rounds cost one exchange, not two."""
    problem = ps.Problem(quadratics(4))
    fedlin = ps.run(ps.FedLin(0.1, 5), problem, rounds=30, every=1)
    whole = ps.run(ps.SLocalGD(0.1, 0.2), problem, rounds=30, every=1)
    other = ps.run(ps.SLocalGD(0.1, 0.2), problem, rounds=30, every=1, seed=1)
    lengths = np.diff(whole.trace["iterations"])
    assert len(set(lengths)) > 3
    assert set(np.diff(fedlin.trace["iterations"])) == {5.0}
    assert not np.allclose(whole.x, fedlin.x, rtol=1e-3)
    assert not np.allclose(whole.x, other.x, rtol=1e-6)
    assert whole.trace.last()["exchanges"] == fedlin.trace.last()["exchanges"] == 60
    cheap = ps.run(ps.SLocalGD(0.1, 0.2, q=0.3), problem, rounds=30)
    assert 30 < cheap.trace.last()["exchanges"] < 45
    good = ps.run(ps.SLocalGD(0.1, 0.2, q=0.3), problem, tol=1e-9, rounds=20_000)
    assert good.success


# -- the wrong ways to average cohorts ---------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class ProxFormOnCohorts(ps.Scaffnew):
    """The form that heals sum h with everybody, used where it must not be."""

    def local_in_cohort(self, client: Client, memory: Vectors, K: int, x: Array) -> Any:
        return self.local(client, memory, K, x)


@dataclass(frozen=True, slots=True)
class IdleUpdate(ps.Scaffnew):
    """Clients that were not averaged update too (here: one of them, by being told)."""

    def round(self, server: Vectors, exchange: Any) -> Vectors:
        out = ps.Scaffnew.round(self, server, exchange)
        exchange.cohort, kept = exchange.all, exchange.cohort
        exchange.settle(self.settle, out["x"])
        exchange.cohort = kept
        return out


@pytest.mark.parametrize("kind", [LazyScaffnew, ProxFormOnCohorts, IdleUpdate])
@pytest.mark.long
def test_wrong_updates_on_cohorts_stall_far_away(kind: Any) -> None:
    problem = hard()
    given: dict[str, Any] = {"rounds": 1500, "cohort": 3, "seed": 0, "every": 50}
    right = ps.run(ps.Scaffnew(1.0, 0.1), problem, **given)
    assert error(right, problem) < 1e-6
    assert right.trace.last()["sum_h"] < 1e-12
    wrong = ps.run(kind(1.0, 0.1), problem, **given)
    assert error(wrong, problem) > 1e-2
    assert not wrong.success


def test_lazy_h_breaks_the_sum() -> None:
    problem = hard()
    wrong = ps.run(LazyScaffnew(1.0, 0.1), problem, rounds=200, cohort=3, every=1)
    assert wrong.trace["sum_h"].max() > 1e-3
    full = ps.run(LazyScaffnew(1.0, 0.1), problem, rounds=600, cohort=[list(range(6))])
    assert error(full, problem) < 1e-6  # with everybody the server's model of that day is that round's


def test_a_wrong_h0_heals_with_everybody_and_is_refused_on_cohorts() -> None:
    problem = ps.Problem(quadratics(4), WEIGHTS)
    method = ps.Scaffnew(1 / problem.L_max, 0.25)
    h0 = np.ones((4, problem.d))
    healed = ps.run(method, problem, rounds=400, h0=h0)
    assert error(healed, problem) < 1e-9
    for given in ({"cohort": 3}, {"cohort": 4}, {"cohort": 0.5}):
        with pytest.raises(InputError, match="must be zero here"):
            ps.run(method, problem, rounds=1, h0=h0, **given)
    with pytest.raises(InputError, match="must be zero here"):
        ps.run(ps.Scaffold(0.1, 5), problem, rounds=1, h0=h0)
    zero_sum = h0 * np.array([4.0, 2.0, -4.0, 1.0])[:, None]
    assert np.abs(problem.weights @ zero_sum).max() < 1e-12
    ps.run(method, problem, rounds=1, h0=zero_sum, cohort=3)


def test_the_plain_form_does_not_heal() -> None:
    """The same h0 with the plain mean, which the code never uses with everybody: the wrong answer, quietly."""
    problem = ps.Problem(quadratics(4))
    machine = Machine(ps.Scaffnew(1 / problem.L_max, 0.25), problem, cohort=4)
    machine.put({"x": np.zeros(problem.d)}, {"h": np.full((4, problem.d), 0.1)})
    for r in range(200):
        machine.round(r)
    assert problem.solution is not None
    assert np.linalg.norm(machine.server["x"] - problem.solution.x) > 1e-2
    assert np.abs(problem.weights @ machine.memory["h"] - 0.1).max() < 1e-12


# -- gossip ------------------------------------------------------------------------------------------------------------
def test_gossip_refuses_weights_and_large_tau() -> None:
    problem = ps.Problem(quadratics(4), WEIGHTS)
    ring = ps.graph("ring", 4)
    with pytest.raises(InputError, match="equally weighted"):
        ps.run(ps.DecentralizedScaffnew(0.5, 0.5, 0.5, ring), problem, rounds=1)
    equal = ps.Problem(quadratics(4))
    largest = 0.5 / (0.5 * ring.lmax)
    ps.run(ps.DecentralizedScaffnew(0.5, 0.5, largest, ring), equal, rounds=1)
    with pytest.raises(InputError, match="tau"):
        ps.run(ps.DecentralizedScaffnew(0.5, 0.5, 1.01 * largest, ring), equal, rounds=1)
    with pytest.raises(InputError, match="5 nodes but there are 4"):
        ps.run(ps.DecentralizedScaffnew(0.5, 0.5, 0.1, ps.graph("ring", 5)), equal, rounds=1)


# -- refusals before any work ------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: ps.Scaffnew(0.5, 0.0), "p = 0"),
        (lambda: ps.Scaffnew(0.5, 1.5), "p = 1.5"),
        (lambda: ps.Scaffnew(0.0, 0.5), "gamma"),
        (lambda: ps.Scaffnew(-1.0, 0.5), "gamma"),
        (lambda: ps.Scaffnew(float("nan"), 0.5), "gamma"),
        (lambda: ps.Scaffnew((0.5, 0.5), 0.5), "2 entries for 4 clients"),
        (lambda: ps.Scaffnew(0.5, 0.5, K=0), "K = 0"),
        (lambda: ps.Scaffold(0.1, 0), "K = 0"),
        (lambda: ps.Scaffold(0.1, 2, eta_g=0.0), "eta_g"),
        (lambda: ps.Scaffold(0.1, 2, option="III"), "option"),  # type: ignore[arg-type]
        (lambda: ps.FedLin(0.1, (1, 2)), "K = "),
        (lambda: ps.SLocalGD(0.1, 0.5, q=0.0), "q = 0"),
        (lambda: ps.Accelerated(0.5, 1.0), "beta"),
        (lambda: ps.ProxSkip(0.5, 0.5), "one function"),
        (lambda: ps.SplitSkip(0.5, 0.5, 0.5), "one function"),
    ],
)
def test_parameters_out_of_range_are_refused(make: Any, says: str) -> None:
    with pytest.raises(InputError, match=says):
        ps.run(make(), ps.Problem(quadratics(4)), rounds=1)


@pytest.mark.parametrize("name", ["gd", "local-gd", "scaffold", "fedlin", "s-local-gd", "decentralized"])
def test_methods_without_a_prox_refuse_psi(name: str) -> None:
    problem = ps.Problem(quadratics(4))
    with pytest.raises(InputError, match="no prox step"):
        ps.run(NAMED[name].make(problem), problem.with_psi(ps.prox.L1(0.1)), rounds=1)


def test_theory_needs_mu() -> None:
    flat = ps.Problem([ps.Quadratic([1.0, 0.0], [1.0, 0.0])])
    for kind in (ps.Scaffnew, ps.ProxSkip, ps.Accelerated):
        with pytest.raises(InputError, match="mu is unknown"):
            kind.theory(flat)


def test_bad_starts_and_stops_are_refused() -> None:
    problem = ps.Problem(quadratics(4))
    method = ps.Scaffnew(1 / problem.L_max, 0.5)
    bad = [
        {}, {"rounds": -1}, {"tol": 0.0}, {"rounds": 1, "x0": np.zeros(3)}, {"rounds": 1, "x0": [np.nan] * 4},
        {"rounds": 1, "h0": np.zeros((2, 4))}, {"rounds": 1, "seed": -1}, {"rounds": 1, "seed": 0.5},
        {"rounds": 1, "every": 0},
    ]  # fmt: skip
    for given in bad:
        with pytest.raises(InputError):
            ps.run(method, problem, **given)
    with pytest.raises(InputError, match="no control variates"):
        ps.run(ps.GD(0.5), problem, rounds=1, h0=np.ones((4, 4)))


def test_wrong_kinds_of_values_get_one_sentence() -> None:
    A, b = data()
    problem, f = ps.split(ps.Logistic(A, b, l2=0.1), 4, "label"), ps.Quadratic([1.0, 2.0], [1.0, 1.0])
    scaffnew = ps.Scaffnew.theory(problem)
    calls = {
        "rounds = 2.5": lambda: ps.run(scaffnew, problem, rounds=2.5),
        "rounds = '3'": lambda: ps.run(scaffnew, problem, rounds="3"),
        "clients = '3'": lambda: ps.split(ps.Logistic(A, b), "3"),
        "clients = 2.5": lambda: ps.split(ps.Logistic(A, b), 2.5),
        "l2 = 'x'": lambda: ps.Logistic(A, b, l2="x"),
        r"cohort = \[0, 1\]": lambda: ps.run(scaffnew, problem, rounds=1, cohort=[0, 1]),
        "D has shape": lambda: ps.Problem([f], psi=ps.prox.L1(1.0), D=np.eye(3)),
        "p = 1e-300": lambda: ps.run(ps.Scaffnew(0.1, 1e-300), problem, rounds=1),
        "p = 'x'": lambda: ps.run(ps.Scaffnew(0.1, "x"), problem, rounds=1),
    }
    for says, call in calls.items():
        with pytest.raises(ps.InputError, match=says):
            call()
    ps.Problem([f], psi=ps.prox.L1(1.0), D=[[1.0, -1.0]])
    assert ps.run(ps.LocalGD(0.1, np.int64(3)), problem, rounds=2).summary()["iterations"] == 6


# -- the tests themselves ----------------------------------------------------------------------------------------------
@pytest.mark.parametrize("mutant", mutants.MUTANTS, ids=lambda m: m.name)
def test_every_mutant_fits_the_source(mutant: mutants.Mutant) -> None:
    """``python tests/mutants.py`` kills them all; here, that each still changes a line of the code as it is."""
    assert len(mutants.mutated(mutant)) >= 1
    for killer in mutant.killers:
        file, name = killer.split("::")
        assert f"def {name.partition('[')[0]}(" in (mutants.HOME / "tests" / file).read_text()


@pytest.mark.parametrize("name", ["divided-by-n", "sign-of-h"])
@pytest.mark.slow
def test_a_mutant_is_killed(name: str) -> None:
    (mutant,) = (m for m in mutants.MUTANTS if m.name == name)
    assert mutants.kill(mutant) == list(mutant.killers)


# -- compression done wrong --------------------------------------------------------------------------------------------
@pytest.mark.parametrize("codec", [TopK(2), Natural(), RandK(2)], ids=["top-2", "natural", "rand-2"])
@pytest.mark.slow
def test_compressing_models_instead_of_differences_stalls(codec: Any) -> None:
    """Top-k without error feedback, and unbiased codecs without LoCoDL's y: what is compressed does not vanish."""
    problem = hard()
    assert error(ps.run(ps.LoCoDL.theory(problem, "rand-2"), problem, rounds=3000, every=500), problem) < 1e-6
    wrong = ps.run(UncheckedScaffnew(1 / problem.L_max, 0.1, codec=codec), problem, rounds=600, every=100)
    assert error(wrong, problem) > 1e-2
    with pytest.raises(InputError, match="needs an unbiased codec"):
        ps.LoCoDL.theory(problem, family.Signs())


def test_chi_above_its_bound_is_warned_of_and_diverges() -> None:
    problem = ps.Problem(quadratics(3))
    right = ps.Tamuna.theory(problem, s=2)
    wrong = replace(right, chi=2.5)
    assert any("above its bound" in note for note in wrong.check(problem))
    assert not right.check(problem)
    assert ps.run(right, problem, rounds=400).trace.last()["gap"] < 1e-9
    assert ps.run(wrong, problem, rounds=400).trace.last()["gap"] > 1e-3


@pytest.mark.parametrize("codec", ["natural", "rand-2", "l1-2"])
def test_scaffnew_refuses_what_only_locodl_can_compress(codec: str) -> None:
    with pytest.raises(InputError, match=f"scaffnew is wrong with {codec}"):
        ps.run(ps.Scaffnew(0.5, 0.5, codec=codec), ps.Problem(quadratics(4)), rounds=1)
