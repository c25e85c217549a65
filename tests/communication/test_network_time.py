"""Runs over a simulated network: what a second is made of, who is missing, and that methods see it as a federation."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import proxskip as ps
from proxskip.networks import NAMED
from proxskip.running.simulated_time import Clock
from proxskip.support.randomness import STREAMS, client_uniforms, philox4x32, stream
from proxskip.types import InputError
from support.lockstep import Wires
from support.methods import METHODS, Row
from support.tiers import thinned

FREE = ps.Network(latency=0.0, bandwidth=math.inf, gradient=0.0)
UNSURE = ps.Network(
    latency=ps.Spread(0.1, 0.4), bandwidth=ps.Spread(1e4, 3e4), gradient=ps.Spread(0.01, 0.03), correlation=0.5,
    lost_before=0.1, lost_after=0.1, deadline=1.0, patience=50,
)  # fmt: skip
served = [row for row in METHODS if "graph" not in row.make(row.quadratic()).handles]


@dataclass(frozen=True)
class Twice(ps.core.Method):
    """Two exchanges, of which the first changes what clients remember: a round that is void between them shows."""

    gamma: float
    about = ps.core.About("twice", handles=frozenset({"clients", "cohort"}), remembers=("m",))

    def round(self, server: Any, exchange: Any) -> Any:
        (g,) = exchange(self.first, server["x"])
        (x,) = exchange(self.second, server["x"], g, K=1)
        return {"x": x}

    def first(self, client: Any, memory: Any, K: Any, x: Any) -> Any:
        g = client.gradient(x)
        return (client.send(g),), {"m": 0.5 * memory["m"] + g}

    def second(self, client: Any, memory: Any, K: Any, x: Any, g: Any) -> Any:
        return (client.send(x - self.gamma * (0.5 * memory["m"] + g)),), {}


def run(row: Row, problem: ps.Problem, **given: Any) -> ps.Result:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ps.run(row.make(problem), problem, cohort=row.cohort, seed=3, allow_unsafe_step=True, **given)


@pytest.fixture(scope="module")
def problem() -> ps.Problem:
    return ps.Problem(ps.random_quadratics(8, 5, L=1.0, mu=0.05, seed=1))


# -- seconds -----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("row", thinned(served, 9))
def test_a_free_network_gives_the_plain_trace(row: Row) -> None:
    quadratics = row.quadratic()
    plain, free = run(row, quadratics, rounds=12), run(row, quadratics, rounds=12, network=FREE)
    assert plain.x.tobytes() == free.x.tobytes()
    for name in set(plain.trace.columns) - {"seconds"}:
        assert plain.trace[name].tobytes() == free.trace[name].tobytes(), name
    assert not free.trace["sim_seconds"].any()
    assert "sim_seconds" not in plain.trace


@pytest.mark.parametrize("row", thinned([row for row in served if isinstance(row.cohort, int | None)], 5))
def test_a_second_is_made_of_ways_bytes_and_gradients(row: Row) -> None:
    quadratics = row.quadratic()
    n, each = quadratics.n, quadratics.n if row.cohort is None else row.cohort
    end = run(row, quadratics, rounds=12, network=ps.Network(0.5, 3.0, up=7.0, gradient=11.0)).trace.last()
    seconds = end["exchanges"] + (end["bytes_down"] / 3.0 + end["bytes_up"] / 7.0) / each
    # on cohorts, and where clients take their own numbers of steps, the slowest client counts and not the mean one
    assert end["sim_seconds"] >= (1 - 1e-9) * (seconds + 11.0 * end["passes"] * n / each)
    every_gradient_counts = row.cohort is None and end["iterations"] * n == end["local_steps"] and not row.masked
    if every_gradient_counts and not row.name.startswith("newton"):  # whose Hessians take time too
        assert end["sim_seconds"] == pytest.approx(seconds + 11.0 * end["passes"])
        assert end["sim_computing"] == pytest.approx(11.0 * end["passes"])


def test_only_sleeping_clients_of_gradskip_are_charged_a_full_gradient() -> None:
    """A round takes as long as the slowest client's steps, with one gradient more for each that fell asleep."""
    problem = ps.Problem([ps.Quadratic(np.full(3, L), np.ones(3)) for L in (40.0, 2.0, 1.0, 0.5)])
    method = ps.GradSkip.theory(problem)
    found = ps.run(method, problem, rounds=30, seed=5, network=ps.Network(0.0, math.inf, gradient=1.0))
    drawn = [method.draw(stream(5, r, "server")) for r in range(30)]
    slowest = [int(np.max(K + asleep)) for K, asleep in drawn]
    assert found.trace["sim_seconds"].tolist() == [0.0, *np.cumsum(slowest)]
    assert found.trace["sim_computing"].tolist() == found.trace["sim_seconds"].tolist()
    assert sum(slowest) < sum(int(np.max(K)) + 1 for K, _ in drawn)


def test_the_server_is_shared_and_the_slowest_client_is_waited_for(problem: ps.Problem) -> None:
    gradients = tuple(float(i) for i in range(8))
    found = ps.run("gd", problem, rounds=3, network=ps.Network(0.0, math.inf, gradient=gradients, server=80.0))
    # 8 clients with 5 numbers of 8 bytes: half a second for each, at an eighth of 80 bytes per second, both ways
    assert found.trace["sim_seconds"].tolist() == pytest.approx([0.0, 15.0, 30.0, 45.0])
    assert found.trace["slowest_client"][-1] == 7
    assert found.trace["slowest_seconds"][-1] == pytest.approx(15.0)


# -- who is missing ----------------------------------------------------------------------------------------------------
def test_late_clients_are_left_out_and_the_first_ones_are_taken(problem: ps.Problem) -> None:
    latency = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 9.0)
    cut = ps.Network(latency, math.inf, gradient=0.0, deadline=2.0)
    method = ps.Scaffnew.theory(problem)
    found = ps.run(method, problem, rounds=10, network=cut)
    assert found.participation.tolist() == [10] * 7 + [0]
    assert found.trace["late"][-1] == 10
    assert found.trace["sim_seconds"][-1] == pytest.approx(20.0)
    first = ps.run(method, problem, rounds=10, cohort=4, network=ps.Network(latency, math.inf, gradient=0.0, extra=1.0))
    assert first.participation.tolist() == [10] * 4 + [0] * 4
    assert first.trace["sim_seconds"][-1] == pytest.approx(6.0)
    # whoever must have everybody waits for everybody, and gives up if somebody never comes
    gone = ps.run("gd", problem, rounds=10, network=cut)
    assert (gone.status, gone.rounds) == (ps.Status.STALLED, 0)
    assert "failed 6 times" in gone.message
    assert gone.summary["sim_seconds"] == pytest.approx(12.0)


def test_everybody_asked_is_counted_late_or_lost(problem: ps.Problem) -> None:
    found = ps.run("scaffnew", problem, rounds=40, network=UNSURE)
    end = found.trace.last()
    assert end["void"] == 0
    assert found.participation.sum() + end["late"] + end["lost"] == 40 * problem.n
    assert end["late"] > 0 < end["lost"]
    again, other = (ps.run("scaffnew", problem, rounds=40, network=UNSURE, seed=s) for s in (0, 1))
    assert again.trace["sim_seconds"].tobytes() == found.trace["sim_seconds"].tobytes()
    assert other.trace["sim_seconds"].tobytes() != found.trace["sim_seconds"].tobytes()
    slow = ps.run("scaffnew", problem, rounds=40, network=UNSURE, engine="reference")
    assert slow.participation.tolist() == found.participation.tolist()
    assert np.allclose(slow.x, found.x, rtol=1e-12)


def test_a_server_waits_until_enough_can_be_reached(problem: ps.Problem) -> None:
    hours = (1e-9, 1e-9, 1.0, *(1e-9,) * 21)
    found = ps.run("gd", problem, rounds=5, network=ps.Network(0.0, math.inf, gradient=1.0, available=hours))
    assert found.trace["sim_seconds"].tolist() == pytest.approx([0, *(7200 + k for k in range(1, 6))])
    assert found.x.tobytes() == ps.run("gd", problem, rounds=5).x.tobytes()


def federated(wires: Wires, seen: list[Any]) -> Any:
    """The protocol's server, where those answer who were seen (None: a void exchange); void answers come late."""
    for counted in seen:
        now = wires.now
        answers = [(ask.client, raw) for ask in wires.asks for raw in wires.work(ask)]
        for i, raw in answers if counted is not None else answers[:1]:
            if counted is None or i in counted:
                wires.arrive(raw, i)
        wires.end(now)
    return wires.state


@pytest.mark.parametrize(
    ("method", "cohort"),
    [
        (ps.Scaffnew(0.9, 0.4), None),
        (ps.Scaffnew(0.9, 0.4), 4),
        pytest.param(ps.Scaffold(0.3, 2), None, marks=pytest.mark.slow),
        pytest.param(ps.FedLin(0.2, 2), None, marks=pytest.mark.slow),
        (Twice(0.2), 4),
        (ps.Tamuna(0.9, 0.4, chi=0.5, s=2), 3),
        pytest.param(ps.GD(0.9), None, marks=pytest.mark.slow),
    ],
    ids=lambda v: getattr(v, "name", str(v)),
)
def test_a_method_sees_missing_clients_as_in_the_protocol(
    problem: ps.Problem, method: Any, cohort: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask, seen = Clock.ask, []

    def noted(clock: Clock, *given: Any) -> Any:
        seen.append(None)
        seen[-1] = ask(clock, *given)
        return seen[-1]

    monkeypatch.setattr(Clock, "ask", noted)
    network = ps.Network(0.1, math.inf, gradient=0.01, lost_before=0.05, lost_after=0.1, deadline=1.0, patience=60)
    given: dict[str, Any] = {"rounds": 15, "cohort": cohort, "seed": 4, "allow_unsafe_step": True}
    found = ps.run(method, problem, network=network, **given)
    assert found.rounds == 15
    assert found.trace["lost"][-1] > 0
    wires = Wires(15, method=method, problem=problem, cohort=cohort, seed=4, audit=0, measure=None, patience=60)
    state = federated(wires, seen)
    assert (state.round, state.over) == (15, True)
    assert state.counts.void == found.trace["void"][-1]
    # a void attempt counts no exchange: of Twice it is the second one, and the first is taken back
    assert found.trace["exchanges"][-1] == (30 if isinstance(method, (Twice, ps.FedLin)) else 15)
    assert found.trace["void"][-1] or not isinstance(method, Twice)
    assert list(state.participated) == found.participation.tolist()
    assert state.vectors["x"].tobytes() == found.x.tobytes()
    if found.trace["void"][-1] and cohort is not None:  # a void attempt draws other clients
        assert ps.run(method, problem, **given).participation.tolist() != found.participation.tolist()


def test_a_resumed_run_goes_on_in_simulated_time(problem: ps.Problem, tmp_path: Path) -> None:
    given: dict[str, Any] = {"network": UNSURE, "cohort": 5}
    whole = ps.run("scaffnew", problem, rounds=30, **given)
    ps.run("scaffnew", problem, rounds=13, out=tmp_path / "a", **given)
    found = ps.resume(tmp_path / "a", problem, rounds=30)
    assert found.x.tobytes() == whole.x.tobytes()
    for name in ("sim_seconds", "sim_computing", "late", "lost", "void", "slowest_client"):
        assert found.trace[name].tobytes() == whole.trace[name].tobytes()
    assert ps.load(tmp_path / "a").summary["sim_seconds"] == whole.summary["sim_seconds"]  # type: ignore[union-attr]


def test_a_run_that_gave_up_tries_other_attempts_when_it_is_resumed(problem: ps.Problem, tmp_path: Path) -> None:
    """As often as it takes, it ends like a run with more patience."""
    given: dict[str, Any] = {"rounds": 10, "seed": 2}
    unlucky = ps.Network(0.1, math.inf, gradient=0.0, lost_before=0.2, deadline=1.0, patience=0)
    whole = ps.run("gd", problem, network=replace(unlucky, patience=1000), **given)
    found = ps.run("gd", problem, network=unlucky, out=tmp_path / "run", **given)
    assert (found.status, whole.status) == (ps.Status.STALLED, ps.Status.LIMIT)
    for _ in range(1000):
        if found.rounds == whole.rounds:
            break
        found = ps.resume(tmp_path / "run", problem, rounds=10)
    assert found.x.tobytes() == whole.x.tobytes()
    for name in ("sim_seconds", "lost", "void"):
        assert found.trace[name][-1] == whole.trace[name][-1] > 0


# -- networks ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", NAMED)
def test_named_networks_are_plain_data(name: str, problem: ps.Problem) -> None:
    for network in (ps.Network.named(name), FREE):
        assert ps.Network.of(network.plain()) == network
    found = ps.run("scaffnew", problem, rounds=5, network=name)
    assert 0 < found.trace["sim_computing"][-1] < found.trace["sim_seconds"][-1]


def test_clients_are_drawn_one_by_one() -> None:
    clients = np.array([3, 7, 2**31])
    words = client_uniforms(2**40 + 5, "faults", clients, 9, 2) * 2**32 - 0.5
    for i, found in zip(clients, words.T, strict=True):
        assert tuple(found) == philox4x32((0x80000000 | STREAMS["faults"], 2, 9, int(i)), 2**40 + 5)
    even = ps.Network(
        latency=ps.Spread(1.0, 4.0), up=ps.Spread(5.0, 9.0), gradient=ps.Spread(1.0, 4.0), correlation=1.0
    )
    traits = even.traits(0, np.arange(4000))
    assert np.quantile(traits.latency, (0.1, 0.5, 0.9)) == pytest.approx((0.25, 1.0, 4.0), rel=0.1)
    # the slowest device has the slowest link
    assert np.allclose(traits.gradient, traits.latency)
    assert (np.argsort(traits.latency) == np.argsort(-traits.up)).all()
    apart = ps.Network(latency=ps.Spread(1.0, 4.0), gradient=ps.Spread(1.0, 4.0)).traits(0, np.arange(4000))
    assert abs(np.corrcoef(np.log(apart.latency), np.log(apart.gradient))[0, 1]) < 0.1


def test_an_exchange_is_two_ways_and_the_bytes_of_each() -> None:
    one = ps.Network(latency=0.5, bandwidth=100.0, up=10.0)
    assert one.exchange(0, 0) == 2 * 0.5
    assert one.exchange(300, 50) == 2 * 0.5 + 300 / 100 + 50 / 10
    spread = ps.Network(latency=ps.Spread(0.5, 4.0), bandwidth=ps.Spread(100.0, 400.0))
    assert spread.exchange(300, 50) == 2 * 0.5 + 350 / 100


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda p: ps.Network.named("moon"), "not known"),
        (lambda p: ps.Network(lost_after=0.1), "deadline"),
        (lambda p: ps.Network(available=0.0), "available"),
        (lambda p: ps.Network(available=(0.5, 0.5)), "24"),
        (lambda p: ps.Network(correlation=2.0), "correlation"),
        (lambda p: ps.Network(lost_before=0.5, lost_after=0.5, deadline=1.0), "must be below 1"),
        (lambda p: ps.Network(deadline=1e-6, patience=10**9), "at most 1,000"),
        (lambda p: ps.Network(latency="fast"), "latency"),
        (lambda p: ps.Spread(2.0, 1.0), "p90"),
        (lambda p: ps.run("gd", p, rounds=1, network=3), "network"),
        (lambda p: ps.run("gd", p, rounds=1, network=ps.Network()), "no time for a local gradient"),
        (lambda p: ps.run("gd", p, rounds=1, network=ps.Network((1.0, 2.0), gradient=1.0)), "2 numbers for 8 clients"),
        (lambda p: ps.run("diging", p, rounds=1, network="mobile"), "no server"),
        (lambda p: ps.run(ps.FiveGCS.theory(p, figure=True), p, cohort=4, rounds=1, network="mobile"), "other cohorts"),
        (lambda p: ps.theory.cohort_rounds(4, 5, 0.1), "from 1 to 4"),
    ],
)
def test_bad_input(problem: ps.Problem, call: Any, said: str) -> None:
    with pytest.raises(InputError, match=said):
        call(problem)


# -- plans -------------------------------------------------------------------------------------------------------------
@pytest.mark.slow
def test_a_plan_is_the_simulation(problem: ps.Problem) -> None:
    network = ps.Network(latency=ps.Spread(0.05, 0.1), bandwidth=1e4, gradient=ps.Spread(0.01, 0.02), deadline=5.0)
    made = ps.plan(problem, network=network, tol=1e-4, seconds=600)
    assert {row.cohort for row in made.rows} == {None, 4}
    assert "cohorts of 4" in str(made)
    for row in (made.best, next(r for r in made.rows if r.name == "accelerated")):
        real = ps.run(row.method, problem, cohort=row.cohort, network=network, tol=1e-4).summary
        assert row.seconds == real["sim_seconds"]


def test_cohorts_have_a_floor_whatever_p(problem: ps.Problem) -> None:
    for n, c, eps in ((20, 5, 1e-6), (1000, 10, 1e-3), (3, 1, 0.5)):
        needed = math.ceil(ps.theory.cohort_rounds(n, c, eps))
        # a client is in none of R cohorts with probability (1 - c/n)^R, and until then remembers what it did
        assert (1 - c / n) ** needed <= eps < (1 - c / n) ** (needed - 1)
        assert ps.theory.cohort_rounds(n, c, eps) == pytest.approx(n / c * math.log(1 / eps), rel=1.5 * c / n)
        assert f"{needed:,}" in ps.theory.cohort_sentence(n, c, eps)
    assert ps.theory.cohort_rounds(4, 4, 0.1) == 0
    found = ps.run("scaffnew", problem, cohort=2, tol=1e-4)
    first = found.trace["grad_norm"][0]
    floor = ps.theory.cohort_rounds(8, 2, (1e-4 / first) ** 2)
    assert f"here {math.ceil(floor)} " in found.summary["forecast"]
    assert found.rounds > floor / 2
    assert "forecast" not in ps.run("scaffnew", problem, tol=1e-4).summary
    assert "forecast" not in ps.run("local-gd", problem, rounds=3, cohort=2, tol=1e-4).summary


# -- the command line --------------------------------------------------------------------------------------------------
EASY = ["--data", "digits", "--clients", "8", "--l2-relative", "1e-1"]


@pytest.mark.slow
def test_compare_over_a_network(tmp_path: Path, call: Any) -> None:
    flags = ["--rounds", "30", "--network", "cross-silo:gradient=0.1", "--tol", "1e-1", "--x", "sim_seconds"]
    code, out, _ = call("sweep", "gd", "scaffnew", *EASY, *flags, "--out", tmp_path / "a")
    assert (code, "Fastest over the network cross-silo" in out) == (0, True)
    assert (tmp_path / "a" / "sweep.png").is_file()


def test_the_command_line(call: Any) -> None:
    flags = ["--rounds", "5", "--weights", "equal", "--cohort", "4", "--network", "mobile"]
    code, out, _ = call("run", "scaffnew", *EASY, *flags)
    assert (code, "network    mobile" in out) == (0, True)
    code, out, _ = call("theory", "--L", "1", "--mu", "0.1", "--n", "100", "--cohort", "5")
    assert (code, "Cohorts of 5 of 100 clients" in out) == (0, True)


@dataclass(frozen=True)
class Nameless(ps.core.Method):
    """Two exchanges whose halves have one and the same ``__name__``: the first is cheap, the second is not."""

    gamma: float
    about = ps.core.About("nameless", handles=frozenset({"clients"}))

    def round(self, server: Any, exchange: Any) -> Any:
        exchange(lambda client, memory, K, x: ((client.send(x),), {}), server["x"])
        step = lambda client, memory, K, x: ((client.send(client.descend(x, 0.0, self.gamma, K)),), {})  # noqa: E731
        (x,) = exchange(step, server["x"], K=4)
        return {"x": x}


def test_halves_of_one_name_have_their_own_costs(problem: ps.Problem) -> None:
    second_per_gradient = ps.Network(latency=0.0, bandwidth=math.inf, gradient=25.0)
    end = ps.run(Nameless(0.1), problem, rounds=3, network=second_per_gradient).trace.last()
    assert end["sim_seconds"] == pytest.approx(3 * 4 * 25.0)


def test_callbacks_hear_the_last_record_of_a_run_that_gives_up() -> None:
    class Heard:
        def __init__(self) -> None:
            self.rounds: list[int] = []

        def on_record(self, step: int, metrics: Any) -> None:
            self.rounds.append(step)

    q = ps.Problem(ps.random_quadratics(12, 5, L=1.0, mu=0.1, seed=1))
    network = ps.Network(gradient=0.01, lost_before=0.1, lost_after=0.1, deadline=2.0, available=0.6, patience=1)
    heard = Heard()
    method = ps.Tamuna.theory(q, cohort=4)
    result = ps.run(method, q, rounds=400, cohort=4, network=network, every=1000, callbacks=[heard])
    assert result.status is ps.Status.STALLED
    assert heard.rounds == result.trace["round"].tolist() == [0, result.rounds]
    assert result.rounds > 0
