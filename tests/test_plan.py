"""The planner: slopes, predictions, choices, and what it says of them."""

from __future__ import annotations

import json
import math
from unittest.mock import Mock, patch

import numpy as np
import pytest

import proxskip as ps
from proxskip.cli import main
from proxskip.planning.forecast import slope
from proxskip.planning.pilots import Network, candidates, clients_gradient


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


def test_a_slope_is_read_from_the_tail_and_is_not_moved_by_a_few_bad_rounds() -> None:
    curve = [(k, math.exp(-0.5 * k)) for k in range(1, 21)]
    curve += [(k, math.exp(-10 - 0.01 * (k - 20))) for k in range(21, 401)]
    for k in range(210, 400, 20):
        curve[k] = (curve[k][0], 30 * curve[k][1])
    fall, level = slope(curve)
    assert fall == pytest.approx(0.01, rel=0.02)
    assert level == pytest.approx(curve[-1][1], rel=0.1)
    assert slope([(1, 1.0), (2, math.nan)])[0] == 0.0
    assert slope([(k, 1.0) for k in range(50)])[0] == 0.0


@pytest.fixture(scope="module")
def problem() -> ps.Problem:
    rng = np.random.default_rng(0)
    A = rng.standard_normal((120, 8)) * np.geomspace(1, 0.1, 8)
    return ps.split(ps.Logistic(A, A.sum(axis=1) > 0, l2=1e-2), clients=4, by="label")


def test_a_slow_network_means_local_steps_and_a_fast_one_does_not(problem: ps.Problem) -> None:
    slow = ps.plan(problem, network=Network(latency=1.0), eps=1e-5)
    fast = ps.plan(problem, network=Network(latency=0.0, bandwidth=1e12), eps=1e-5)
    assert slow.best.name in ("scaffnew", "5gcs")
    assert slow.best.skips
    assert fast.best.name != "scaffnew"
    assert "an exchange costs" in slow.sentence
    assert "solution" not in problem.__dict__


def test_5gcs_is_forecast_as_well_as_the_choice() -> None:
    problem = ps.Problem(ps.random_quadratics(8, 20, 1.0, 1e-2, seed=0))  # unlike clients, where it is not in question
    row = next(r for r in ps.plan(problem, eps=1e-6, network=Network(1e-4, 1e9)).rows if r.name == "5gcs")
    done = ps.run(ps.FiveGCS.theory(problem, figure=True), problem, tol=1e-6, rounds=10_000, seed=1).summary
    assert row.calls == pytest.approx(done["exchanges"], rel=0.3)
    assert row.iterations == pytest.approx(done["iterations"], rel=0.3)


def test_what_saves_bits_is_planned_where_the_way_up_is_slow(problem: ps.Problem) -> None:
    def names(problem: ps.Problem, network: Network) -> set[str]:
        return {name for name, _, _ in candidates(problem, network)}

    equal, slow = ps.Problem(problem.clients), Network(latency=0.01, up=100.0)
    assert not {"locodl", "tamuna", "scaffnew-vr"} & names(problem, Network())
    assert {"locodl", "tamuna"} <= names(equal, slow)
    assert "tamuna" not in names(ps.Problem(problem.clients, [1, 2, 3, 4]), slow)
    assert "scaffnew-vr" in names(problem.with_batch(5), slow)
    found = {row.name: row for row in ps.plan(equal, network=slow, eps=1e-3).rows}
    assert found["locodl"].call_seconds < 0.8 * found["scaffnew"].call_seconds


def test_the_plan_mentions_clients_that_could_sleep() -> None:
    alike = ps.random_quadratics(4, 3, mu=0.2)
    unlike = [ps.Quadratic(2.0**i * f.H, 2.0**i * f.b) for i, f in enumerate(alike)]
    assert ["gradskip" in str(ps.plan(ps.Problem(fs), eps=1e-2)) for fs in (alike, unlike)] == [False, True]


def test_an_exchange_is_latency_and_bytes(problem: ps.Problem) -> None:
    found = ps.plan(problem, network=Network(latency=0.25, bandwidth=640.0, up=64.0), eps=1e-2)
    accelerated = next(row for row in found.rows if row.name == "accelerated")
    assert accelerated.call_seconds == pytest.approx(0.5 + 64 / 640 + 64 / 64, rel=0.1)
    assert clients_gradient(problem, Network(speed=1e-3)) > clients_gradient(problem, Network(speed=1e3))


def test_the_command_line_plans(capsys: pytest.CaptureFixture[str]) -> None:
    data = ["--data", "digits", "--l2", "1e-2", "--clients", "3"]
    flags = ["plan", *data, "--eps", "1e-3", "--pilot", "40", "--latency", "0.5"]
    assert main([*flags, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["best"].partition(",")[0] in {row["name"] for row in found["rows"]}
    assert main(flags) == 0
    shown = capsys.readouterr().out
    assert "scaffnew" in shown
    assert "Take " in shown
