"""Divergence and stalling are noticed, without false alarms; success means that the tolerance holds at the returned x."""

from __future__ import annotations

import itertools
import signal
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import proxskip as ps
from proxskip.theory.step_sizes import ROUNDING
from proxskip.types import InputError
from support.methods import METHODS, NAMED, Row
from support.problems import data, model, quadratics
from support.tiers import thinned

pytestmark = pytest.mark.long

DIVERGED, STALLED, CONVERGED = ps.Status.DIVERGED, ps.Status.STALLED, ps.Status.CONVERGED


def squares() -> ps.Problem:
    return ps.split(model("squared", l2=0.01), clients=4, by="label")


def logistic(l2: float = 0.01) -> ps.Problem:
    return ps.split(model("logistic", l2=l2), clients=4, by="label")


def unsafe(method: Any, problem: ps.Problem, **given: Any) -> ps.Result:
    """Run with a step that is refused otherwise; only that warning is expected."""
    with pytest.warns(ps.UnsafeStepWarning, match="the largest known to work"):
        return ps.run(method, problem, allow_unsafe_step=True, **given)


# -- divergence --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("times", [2.1, 3.0, 10.0])
@pytest.mark.parametrize("engine", ["cpu", "reference"])
def test_divergence_on_least_squares_is_noticed(times: float, engine: str) -> None:
    problem = squares()
    for method in (ps.GD(times / problem.L_average), ps.Scaffnew(times / problem.L_max, 0.05)):
        result = unsafe(method, problem, rounds=20_000, engine=engine)
        assert (result.status, result.success, result.summary["success"]) == (DIVERGED, False, False)
        assert result.rounds < 20_000
        assert np.isfinite(result.x).all()


@pytest.mark.parametrize("gamma", [10.0, 1e100])
def test_divergence_between_records_is_noticed_as_soon_as_a_value_is_not_finite(gamma: float) -> None:
    """One record at the end only: the iterate overflows long before, and the summary speaks of the last finite x."""
    problem = squares()
    result = unsafe(ps.GD(gamma / problem.L_average), problem, rounds=100_000, every=100_000)
    summary = result.summary
    assert result.status is DIVERGED
    assert "not finite" in result.message
    assert len(result.trace) == 1  # no record but the first
    assert 1000 > summary["rounds"] == summary["exchanges"] == summary["iterations"] > 1
    with np.errstate(all="ignore"):
        value = problem.value(result.x)
    assert summary["f"] == (value if np.isfinite(value) else None) != result.trace["f"][0]


def poisoned(bad: float, at: int, after: int) -> Any:
    """A client whose gradient is one day not a number."""
    calls = itertools.count()

    def gradient(x: Any) -> Any:
        g = np.array(x)
        if next(calls) >= after:
            g[at] = bad
        return g

    return SimpleNamespace(d=3, L=1.0, mu=1.0, value=lambda x: float(x @ x) / 2, gradient=gradient)


@pytest.mark.parametrize(("bad", "at", "who"), [(np.nan, 0, 1), (np.inf, 1, 2), (-np.inf, 2, 0)])
def test_a_value_that_is_no_number_ends_the_run(bad: float, at: int, who: int) -> None:
    """It is never averaged quietly into an answer: the run is DIVERGED and returns the last finite x."""
    clients: list[Any] = [ps.Quadratic([1.0, 1.0, 1.0], [1.0, 2.0, 3.0]) for _ in range(3)]
    clients[who] = poisoned(bad, at, after=200)
    result = ps.run(ps.Scaffnew(0.5, 0.2), ps.Problem(clients), rounds=500, every=500, engine="reference")
    assert (result.status, result.success) == (DIVERGED, False)
    assert np.isfinite(result.x).all()


@pytest.mark.parametrize("times", [5.0, 100.0])
def test_a_step_far_too_large_on_logistic_loss_is_noticed(times: float) -> None:
    """Gradients are bounded, everything stays finite, and only the lack of a fall tells."""
    problem = logistic()
    for seed in range(2):
        result = unsafe(ps.Scaffnew(times / problem.L_max, 0.1), problem, rounds=20_000, tol=1e-8, seed=seed)
        assert result.status in (STALLED, DIVERGED)
        assert result.rounds < 20_000
    result = unsafe(ps.GD(times / problem.L_average), problem, rounds=50_000)
    assert (result.status, result.success) == (STALLED, False)
    assert "use a smaller gamma" in result.message


# -- no false alarm ----------------------------------------------------------------------------------------------------
def calm(result: ps.Result) -> None:
    assert result.status not in (DIVERGED, STALLED), result.message


@pytest.mark.long
@pytest.mark.parametrize("row", thinned([row for row in METHODS if row.claims("converges")], 40, 8))
def test_no_alarm_at_machine_precision(row: Row) -> None:
    """Many rounds after the end of convergence, where the residual wanders on the last digits."""
    problem = row.quadratic()
    calm(ps.run(row.make(problem), problem, rounds=1500, cohort=row.cohort, every=5, threads=1))


@pytest.mark.parametrize("distance", [1e-3, 1e-6, 1e-9])
def test_no_alarm_for_a_warm_start_with_h_zero(distance: float) -> None:
    """Near x* with h0 = 0 the gradient norm first grows a thousandfold, and then it converges."""
    problem = logistic(l2=1e-3)
    assert problem.solution is not None
    x0 = problem.solution.x + distance / np.sqrt(problem.d)
    result = ps.run(ps.Scaffnew.theory(problem), problem, x0=x0, tol=1e-11, rounds=5000, every=1)
    assert result.success, result.message
    if distance <= 1e-6:
        assert result.trace["grad_norm"].max() > 100 * result.trace["grad_norm"][0]


@pytest.mark.long
@pytest.mark.parametrize("tol", [None, 1e-12])
def test_no_alarm_at_the_noise_floor_or_where_mu_is_unknown(tol: float | None) -> None:
    """Where kappa is huge and nobody says how huge, slow is not stalled."""
    A, b = data()
    flat = ps.split(ps.Logistic(np.hstack([A, A * 1e-3]), b, l2=0.0), clients=4, by="label")
    assert flat.mu is None
    for problem in (logistic().with_batch(6), flat):
        method = ps.Scaffnew(1 / flat.L_max, 0.05) if problem is flat else ps.Scaffnew.theory(problem)
        calm(ps.run(method, problem, rounds=1500, tol=tol, threads=1))


@pytest.mark.parametrize("cohort", thinned([2, 3, 0.5]))
@pytest.mark.long
def test_no_alarm_on_cohorts(cohort: Any) -> None:
    problem = ps.split(model("logistic", l2=0.003), clients=4, by="label", weights="equal")
    for seed in range(3):
        method = ps.Scaffnew.theory(problem, cohort=cohort)
        calm(ps.run(method, problem, rounds=600, seed=seed, cohort=cohort, tol=1e-13, threads=1))


def test_success_needs_a_tolerance_or_a_target_that_holds() -> None:
    problem = ps.Problem(quadratics(4))
    method = ps.Scaffnew.theory(problem)
    for given, said in (({"rounds": 500}, "reached the limit of"), ({"rounds": 5, "tol": 1e-12}, "without reaching")):
        result = ps.run(method, problem, **given)  # type: ignore[arg-type]
        assert (result.status, result.success) == (ps.Status.LIMIT, False)
        assert said in result.message
    result = ps.run(method, problem, target=1e-8)
    assert result.success
    assert problem.solution is not None
    assert problem.value(result.x) - problem.solution.f <= 1e-8
    assert ps.run(method, problem, target=1e-3, tol=1e-9).trace.last()["grad_norm"] <= 1e-9


# -- steps --------------------------------------------------------------------------------------------
SAFE = {
    "gd": lambda p, g: ps.GD(g),
    "proxgd": lambda p, g: ps.ProxGD(g),
    "scaffnew": lambda p, g: ps.Scaffnew(g, 0.5),
    "proxskip": lambda p, g: ps.ProxSkip(g, 0.5),
    "sproxskip": lambda p, g: ps.SProxSkip(g, 0.5),
    "decentralized": lambda p, g: ps.DecentralizedScaffnew(g, 0.5, 0.1 / g, ps.graphs.graph("ring", p.n)),
    "splitskip": lambda p, g: ps.SplitSkip(g, 0.5, 0.1 / g),
}


@pytest.mark.parametrize("kind", ["quadratic", "rows"])
@pytest.mark.parametrize("name", SAFE)
def test_one_over_L_is_silent_the_next_number_warns_and_two_over_L_is_refused(name: str, kind: str) -> None:
    problem = getattr(NAMED[name], kind)()
    L = problem.L_average if name in ("gd", "proxgd") else problem.L_max
    assert SAFE[name](problem, 1 / L).check(problem) == []
    next_up = (1 + 2 * ROUNDING) / L
    (note,) = SAFE[name](problem, next_up).check(problem)
    assert "/L" in note
    with pytest.warns(ps.UnsafeStepWarning, match=r"gamma = .*/L\) is above"):
        ps.run(SAFE[name](problem, next_up), problem, rounds=1)
    with pytest.raises(InputError, match="can diverge"):
        SAFE[name](problem, 2 / L).check(problem)
    assert SAFE[name](problem, 2 / L).check(problem, allow_unsafe_step=True)


def test_own_steps_are_checked_client_by_client() -> None:
    problem = NAMED["scaffnew-weighted"].quadratic()
    gammas = 1 / np.asarray(problem.L_i)
    assert ps.Scaffnew(tuple(gammas), 0.5).check(problem) == []
    for who in range(4):
        over = np.where(np.arange(4) == who, (1 + 2 * ROUNDING) * gammas, gammas)
        assert len(ps.Scaffnew(tuple(over), 0.5).check(problem)) == 1
        with pytest.raises(InputError, match="can diverge"):
            ps.Scaffnew(tuple(np.where(np.arange(4) == who, 2 * gammas, gammas)), 0.5).check(problem)


def test_the_figures_L_counts_as_asking() -> None:
    problem = ps.split(model(), clients=4, by="label", smoothness="average")
    assert problem.L_average < problem.L_max
    with pytest.warns(ps.UnsafeStepWarning):
        ps.run(ps.Scaffnew(2.5 / problem.L_max, 0.5), problem, rounds=1)


@pytest.mark.parametrize("batch", [None, 6, 24])
@pytest.mark.parametrize("name", sorted(ps.core.METHODS))
def test_theory_never_warns_about_itself(name: str, batch: int | None) -> None:
    row = next(r for r in METHODS if r.make(r.quadratic()).name == name)
    kind = ps.core.METHODS[name]
    for problem in (row.quadratic(), row.rows(), row.rows().with_batch(batch)):
        if problem.batch is None or "batch" in kind.about.handles:
            assert kind.theory(problem).check(problem) == []
    if name == "scaffnew":
        problem = NAMED["scaffnew-weighted"].rows().with_batch(batch)
        assert ps.Scaffnew.theory(problem, own_steps=True).check(problem) == []


def test_iterations_alone_have_no_hidden_limit_on_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proxskip.running.stop.MAX_ROUNDS", 10)
    problem = logistic()
    assert ps.run(ps.GD.theory(problem), problem, iterations=25).rounds == 25
    unreachable = ps.run(ps.GD.theory(problem), problem, tol=1e-300)
    assert unreachable.rounds == 10
    assert "without reaching" in unreachable.message


def interrupting(at: int) -> ps.callbacks.Callback:
    class Stop(ps.callbacks.Callback):
        def on_record(self, step: int, metrics: dict[str, float]) -> None:
            if step == at:
                signal.raise_signal(signal.SIGINT)

    return Stop()


@pytest.mark.parametrize(
    "given",
    [
        {"rounds": 7}, {"rounds": 7, "every": 1}, {"rounds": 7, "every": 3}, {"rounds": 7, "every": 7},
        {"rounds": 400, "every": 1000}, {"iterations": 30, "every": 2}, {"tol": 1e-2}, {"tol": 1e-2, "every": 50},
        {"tol": 1e-16, "rounds": 5000, "every": 17}, {"target": 1e-4, "every": 4}, {"rounds": 0},
        {"rounds": 9, "every": 2, "callbacks": [interrupting(4)]},
    ],
)  # fmt: skip
def test_however_a_run_ends_each_recorded_round_is_recorded_once_and_the_last_is_the_end(given: dict[str, Any]) -> None:
    result = ps.run("scaffnew", logistic(), engine="reference", **given)
    rounds = result.trace["round"]
    assert rounds[0] == 0
    assert (np.diff(rounds) > 0).all()
    assert rounds[-1] == result.rounds == result.summary["rounds"]
