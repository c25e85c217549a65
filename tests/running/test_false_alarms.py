"""A sound run is never accused: over all methods, cohorts, decays, codecs and weights, down to the level of rounding."""

import warnings
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import proxskip as ps
from proxskip.results.trace import Trace
from proxskip.running.watch import RunWatch
from support.methods import METHODS, Row
from support.problems import difference
from support.tiers import thinned

BIASED = ("local-gd", "local-gd-cohort")
"""Rows whose method has no solution to reach, so that a run of them may say that it stalled."""
WEIGHTED = ("scaffnew", "scaffnew-psi", "scaffold", "scaffold-cohort", "fedlin", "5gcs", "locodl", "scaffnew-vr")
"""Rows to try with random weights too."""
DECAYING = (
    "gd",
    "scaffnew",
    "scaffnew-cohort",
    "scaffold-cohort",
    "gradskip",
    "tamuna-cohort",
    "extra",
    "decentralized",
)
"""Rows to try with a step size that falls."""


CODECS = ("identity", "natural", "rand-1", "rand-2", "rand-2+natural", "l1-2")
ROUNDS = 40
"""Rounds per unit of kappa, besides 100, in which most methods fall to rounding."""
MOST_ROUNDS = 800
"""More would take too long; runs of a large kappa end before they reach their rounding."""


def check(result: ps.Result, what: Any) -> None:
    """The run went to its end: its status is that of the limit, and no note speaks of lost updates."""
    assert result.status is ps.Status.LIMIT, (what, result.message)
    assert not any("lost" in note for note in result.warnings), (what, result.warnings)


def drawn(row: Row, kappa: float, rng: np.random.Generator) -> tuple[ps.Problem, Any, dict[str, Any], str, bool]:
    """A random problem for this row, its method, further arguments of ``run``, and whether rounding is within reach."""
    n, d = row.clients, 4
    L = 10.0 ** rng.integers(-3, 5)
    parts = ps.random_quadratics(n, d, L=L, mu=L / kappa, seed=int(rng.integers(2**31)))
    weights = row.weights
    if row.name in WEIGHTED and rng.random() < 0.5:
        weights = tuple(rng.uniform(0.1, 1.0, n))
    problem = row._dress(ps.Problem(parts, weights), linear=False)
    method: Any = row.make(problem)
    if isinstance(method, ps.Tamuna):
        method = ps.Tamuna.theory(problem, s=int(rng.integers(2, (row.cohort or n) + 1)), cohort=row.cohort)
    elif isinstance(method, ps.LoCoDL):
        method = ps.LoCoDL.theory(problem, codec=str(rng.choice(CODECS)))
    falls = row.name not in BIASED
    what = f"{row.name}, L = {L:g}, kappa = {kappa:g}, weights = {weights}"
    if row.name in DECAYING and rng.random() < 0.5:
        decay = L * 10.0 ** rng.integers(-3, 3)
        method, what, falls = ps.Decaying(method, decay), f"{what}, decay = {decay:g}", False
    elif row.name.startswith("scaffold") and rng.random() < 0.5:
        eta_g = 10.0 ** rng.integers(-6, 1)
        method, what = ps.Scaffold(0.5 / (method.K * L), method.K, eta_g, method.option), f"{what}, eta_g = {eta_g:g}"
        falls = eta_g == 1.0
    if isinstance(method, ps.Scaffnew) and rng.random() < 0.3:
        method, what, falls = replace(method, codec="float32"), f"{what}, float32", False
    start = rng.standard_normal(d) * float(rng.choice([0.0, 1.0, 1e6]))
    given = {"x0": start, "cohort": row.cohort, "seed": int(rng.integers(2**31))}
    return problem, method, given, f"{what}, {method}, x0 = {start}, seed = {given['seed']}", falls


@pytest.mark.slow
@pytest.mark.parametrize("part", thinned(range(25), 1, 8))
def test_500_sound_runs_are_not_accused(part: int) -> None:
    rng = np.random.Generator(np.random.Philox(part))
    ends = []
    for k in range(20):
        row = METHODS[(20 * part + k) % len(METHODS)]
        engine = "reference" if k % 4 == 0 else "cpu"
        kappa = float(rng.choice([2.0, 10.0, 100.0]))
        problem, method, given, what, falls = drawn(row, kappa, rng)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ps.NoTheoremWarning)
            warnings.simplefilter("ignore", ps.UnsafeStepWarning)
            rounds = int(100 + ROUNDS * kappa)
            limits = {"rounds": min(rounds, MOST_ROUNDS), "iterations": 8_000}
            result = ps.run(method, problem, **limits, engine=engine, allow_unsafe_step=True, **given)
        if row.name in BIASED and result.status is ps.Status.STALLED:
            continue
        check(result, f"{what}, {engine}")
        if falls and rounds <= MOST_ROUNDS:
            norms = result.trace["grad_norm"]
            ends.append(norms[-1] <= 1e-10 * norms.max())
    assert np.mean(ends) > 0.5  # the others are slower


def test_a_decaying_step_on_cohorts_is_not_called_a_lost_update() -> None:
    # h moves by p/gamma of the differences of x, and gamma falls: so does what rounding leaves in the sum of the h_i grow
    problem = ps.Problem(ps.random_quadratics(6, 5, L=1.0, mu=0.1, seed=1))
    method = ps.Scaffnew.theory(problem, cohort=3)
    for decay, rounds in ((1.0, 900), (30.0, 300)):
        check(ps.run(ps.Decaying(method, decay), problem, rounds=rounds, cohort=3), decay)


def test_a_small_step_of_the_server_is_not_called_a_lost_update() -> None:
    # Scaffold's clients solve for the mean of the y_i, which divides the rounding of x by eta_g
    problem = ps.Problem(ps.random_quadratics(6, 5, L=1.0, mu=0.1, seed=1))
    for eta_g in (1e-2, 1e-5):
        check(ps.run(ps.Scaffold(0.05, 5, eta_g), problem, rounds=300, x0=np.full(5, 100.0)), eta_g)


def test_a_falling_step_is_slow_and_has_not_stalled() -> None:
    problem = ps.Problem(ps.random_quadratics(4, 3, L=1.0, mu=0.1, seed=1))
    result = ps.run(ps.Decaying(ps.GD.theory(problem), decay=1.0), problem, rounds=1000, tol=1e-9)
    check(result, "gd")
    norms = result.trace["grad_norm"]
    assert norms[-1] < norms[len(norms) // 2]


def test_a_residual_that_rests_for_a_window_has_not_stalled() -> None:
    watch = RunWatch(np.inf, window=100.0, noise=0.0, L=0.0)
    t = np.arange(0.0, 1000.0, 5.0)

    def level(residual: Any) -> bool:
        return watch.is_level(Trace.from_arrays({"iterations": t, "grad_norm": residual}))

    falling = np.exp(-t / 40.0)
    assert not level(falling)
    for rest, stalled in ((150.0, False), (250.0, True)):
        assert level(np.exp(-np.minimum(t, t[-1] - rest) / 40.0)) is stalled


def test_a_dual_residual_at_rounding_has_not_stalled() -> None:
    # clients with small gradients: what rounding leaves is that of y, which is of the size of psi
    f = ps.random_quadratics(1, 4, L=1e-6, mu=1e-6 / 30, seed=3)[0]
    problem = ps.Problem([f]).with_psi(ps.prox.L1(100.0), difference(4))
    check(ps.run("splitskip", problem, rounds=3000, engine="reference"), "splitskip")
