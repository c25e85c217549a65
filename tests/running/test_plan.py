"""The planner: its candidates, its choice, and what it says of them."""

from __future__ import annotations

import json
import math
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock, patch

import numpy as np
import pytest

import proxskip as ps
from proxskip.cli import main
from proxskip.networks import Network
from proxskip.running.plan import candidates, gradient_seconds
from proxskip.support.display import duration


def test_auto_goes_on_from_the_winner_and_counts_all_pilots() -> None:
    rng = np.random.default_rng(0)
    spectrum = np.geomspace(1e-2, 1, 40)
    f = ps.Quadratic(spectrum, spectrum * rng.standard_normal(40) * (rng.random(40) < 0.4) + 1e-3)
    psi, gradient = ps.prox.L1(1e-3), Mock(side_effect=f.gradient)
    with patch.object(ps.prox.L1, "prox", autospec=True, side_effect=ps.prox.L1.prox) as shrink:
        res = ps.minimize((f.value, gradient), psi, np.zeros(f.d), method="auto", tol=1e-8, L=f.L, mu=f.mu)
    assert res.success
    assert (res.ngrad, res.nprox) == (gradient.call_count, shrink.call_count)
    assert res.choices[-1] == (res.choices[-1][0], "end")
    assert np.abs(res.x - ps.minimize(f, psi, method="fista", tol=1e-10).x).max() < 1e-5


@pytest.fixture(scope="module")
def problem() -> ps.Problem:
    rng = np.random.default_rng(0)
    A = rng.standard_normal((120, 8)) * np.geomspace(1, 0.1, 8)
    return ps.split(ps.Logistic(A, A.sum(axis=1) > 0, l2=1e-2), clients=4, by="label")


def test_a_slow_network_means_local_steps_and_a_fast_one_does_not(problem: ps.Problem) -> None:
    slow = ps.plan(problem, network=Network(latency=1.0), tol=1e-5, seconds=600)
    fast = ps.plan(problem, network=Network(latency=0.0, bandwidth=1e12, gradient=1e-3), tol=1e-5, seconds=600)
    assert slow.best.name == "newton"
    assert next(row.name for row in slow.rows if row.name != "newton") in ("scaffnew", "5gcs")
    assert fast.best.name != "scaffnew"
    assert slow.sentence.startswith(f"Take {slow.best.label}; ")


def test_the_fastest_is_first_and_is_what_a_run_of_its_method_takes(problem: ps.Problem) -> None:
    network = Network(latency=0.1, gradient=1e-3)
    found = ps.plan(problem, network=network, tol=1e-3, seed=3, seconds=600)
    assert [row.seconds for row in found.rows] == sorted(row.seconds for row in found.rows)
    best = found.best
    again = ps.run(best.method, problem, cohort=best.cohort, network=network, tol=1e-3, seed=3)
    assert again.success
    assert best.seconds == again.summary["sim_seconds"]


def test_what_is_not_finished_in_its_time_says_how_far_it_came(problem: ps.Problem) -> None:
    found = ps.plan(problem, tol=1e-9, seconds=0.01)
    assert found.best.seconds == math.inf
    words = [f"not within {duration(row.ran)}; at {row.reached:.0e} by then" for row in found.rows]
    assert [row.outcome() for row in found.rows] == words
    assert [row.reached for row in found.rows] == sorted(row.reached for row in found.rows)
    assert "give more seconds=, or a larger tol=" in str(found)


def test_a_run_that_was_cut_short_is_shown_in_seconds_over_the_network(problem: ps.Problem) -> None:
    """Twelve seconds at least for a round, whatever this machine takes for it."""
    found = ps.plan(problem, tol=1e-9, seconds=0.01, network=Network(latency=6.0, gradient=1e-3))
    row = next(row for row in found.rows if row.name == "gd")
    assert row.seconds == math.inf
    assert row.ran == pytest.approx(row.rounds * 12.001, rel=1e-3)


def test_opening_and_evaluation_do_not_eat_the_seconds_of_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first run compiles and each record evaluates; here both take longer than a share."""
    clock = SimpleNamespace(now=0.0, opened=False)
    limits = []

    def result(method: Any, problem: Any, *, rounds: int | None = None, seconds: float = 0, **more: Any) -> Any:
        if not clock.opened:
            clock.now, clock.opened = clock.now + 100.0, True
        for step in range(rounds or 50):
            clock.now += 0.5  # an evaluation, which seconds= does not count
            if rounds is None:
                try:
                    more["callbacks"][0].on_record(step, None)
                except StopIteration:
                    break
        limits.append((rounds, seconds))
        counts = dict.fromkeys(("rounds", "exchanges", "iterations", "prox_evals", "sim_seconds"), 1)
        return SimpleNamespace(status=ps.Status.STOPPED, trace={"grad_norm": [1.0]}, summary=counts)

    quadratics = ps.Problem(ps.random_quadratics(4, 3))
    monkeypatch.setattr("proxskip.running.plan.run", result)
    monkeypatch.setattr("proxskip.running.plan.time", SimpleNamespace(monotonic=lambda: clock.now))
    found = ps.plan(quadratics, network=Network(gradient=1.0), seconds=60.0)
    assert limits[0] == (1, 0)
    assert limits[1][1] == 60.0 / len(found.rows)
    assert {row.status for row in found.rows} == {"LIMIT"}
    assert all(row.spent <= 1.2 * 60.0 / len(found.rows) + 0.5 for row in found.rows)


def test_where_methods_take_about_as_long_medians_decide(problem: ps.Problem, monkeypatch: pytest.MonkeyPatch) -> None:
    """The accelerated method was lucky with the first coins; Newton is too far behind to be tried again."""
    seconds = {"gd": (10.0, 10.0, 10.0), "accelerated": (9.0, 12.0, 12.0), "newton": (14.0, 1.0, 1.0)}
    seeds = []

    def result(method: Any, problem: Any, *, seed: int, **more: Any) -> Any:
        name = method.about.name
        seeds.append((name, seed))
        took = seconds.get(name, (99.0,))[seed - 5]
        counts = dict.fromkeys(("rounds", "exchanges", "iterations", "prox_evals"), 1)
        status = ps.Status.CONVERGED
        return SimpleNamespace(status=status, trace={"grad_norm": [0.0]}, summary={"sim_seconds": took, **counts})

    monkeypatch.setattr("proxskip.running.plan.run", result)
    found = ps.plan(problem, network=Network(gradient=1.0), seed=5)
    took = {row.name: row.seconds for row in found.rows[:3]}
    assert list(took.items()) == [("gd", 10.0), ("accelerated", 12.0), ("newton", 14.0)]
    assert {seed for name, seed in seeds if name in ("gd", "accelerated")} == {5, 6, 7}
    assert {seed for name, seed in seeds if name not in ("gd", "accelerated")} == {5}


def test_the_margin_has_no_power_of_ten() -> None:
    rows = [SimpleNamespace(name=n, label=n, seconds=t, rounds=9) for n, t in (("a", 2.0), ("b", 31_046.0))]
    assert ps.Plan(tuple(rows), 1e-6).sentence == "Take a; b takes 15,500 times as long."  # type: ignore[arg-type]


def test_newton_wins_where_a_round_is_dear_and_loses_where_the_way_up_is_thin() -> None:
    rows = ps.Logistic(*ps.datasets.load("breast-cancer"), l2_relative=1e-2)
    problem = ps.split(rows, clients=5, by="iid")
    far, thin = (
        ps.plan(problem, network=network, tol=1e-3, seconds=600)
        for network in (Network(latency=1.0, gradient=1e-6), Network(latency=0.0, up=1e3, gradient=1e-6))
    )
    assert far.best.name == "newton"
    assert thin.best.name != "newton"
    assert "newton" in {row.name for row in thin.rows}


def test_counts_have_newton_alone() -> None:
    A = np.random.Generator(np.random.Philox(1)).standard_normal((60, 3))
    problem = ps.split(ps.Poisson(A, np.arange(60) % 7), 3, by="iid")
    assert [row.name for row in ps.plan(problem, network=Network(gradient=1e-3)).rows] == ["newton"]


def test_what_saves_bits_is_tried_where_the_way_up_is_slow(problem: ps.Problem) -> None:
    def names(problem: ps.Problem, network: Network) -> set[str]:
        return {method.about.name for method in candidates(problem, network)}

    equal, slow = ps.Problem(problem.clients), Network(latency=0.01, up=100.0)
    assert not {"locodl", "tamuna", "scaffnew-vr"} & names(problem, Network())
    assert {"locodl", "tamuna"} <= names(equal, slow)
    assert "tamuna" not in names(ps.Problem(problem.clients, [1, 2, 3, 4]), slow)
    assert "scaffnew-vr" in names(problem.with_batch(5), slow)


def test_the_plan_mentions_clients_that_could_sleep() -> None:
    alike = ps.random_quadratics(4, 3, mu=0.2)
    unlike = [ps.Quadratic(2.0**i * f.H, 2.0**i * f.b) for i, f in enumerate(alike)]
    assert ["gradskip" in str(ps.plan(ps.Problem(fs), tol=1e-2)) for fs in (alike, unlike)] == [False, True]


def test_a_gradient_is_measured_unless_the_network_says_its_seconds(problem: ps.Problem) -> None:
    rows = {r.name: r for r in ps.plan(problem, network=Network(latency=0.25, gradient=5.0), tol=1e-2).rows}
    gd = rows["gd"]
    assert gd.seconds == pytest.approx(gd.rounds * (5.0 + 0.5), rel=0.01)
    assert gradient_seconds(problem) > 0


def test_the_command_line_plans(capsys: pytest.CaptureFixture[str]) -> None:
    data = ["--data", "breast-cancer", "--l2-relative", "1e-1", "--clients", "3"]
    flags = ["plan", *data, "--tol", "1e-2", "--latency", "0.5"]
    assert main([*flags, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["best"] in {row["label"] for row in found["rows"]}
    assert main(flags) == 0
    shown = capsys.readouterr().out
    assert "scaffnew" in shown
    assert "Take " in shown
