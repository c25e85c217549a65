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
    assert all("not within" in row.outcome() and "by then" in row.outcome() for row in found.rows)
    assert [row.reached for row in found.rows] == sorted(row.reached for row in found.rows)
    assert "give more seconds=, or a larger tol=" in str(found)


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


def test_newton_wins_where_a_round_is_dear_and_loses_where_the_way_up_is_thin() -> None:
    rows = ps.Logistic(*ps.datasets.load("breast-cancer"), l2_relative=1e-2)
    problem = ps.split(rows, clients=5, by="iid")
    far, thin = (
        ps.plan(problem, network=network, tol=1e-5, seconds=600)
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
    data = ["--data", "digits", "--l2-relative", "1e-2", "--clients", "3"]
    flags = ["plan", *data, "--tol", "1e-3", "--latency", "0.5"]
    assert main([*flags, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["best"] in {row["label"] for row in found["rows"]}
    assert main(flags) == 0
    shown = capsys.readouterr().out
    assert "scaffnew" in shown
    assert "Take " in shown
