"""The audit acts: a lost, doubled or altered update is reported by the run itself, and an engine serves one run."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import proxskip as ps
from campaigns.audit_mutants import FAULTS, broken, cases
from proxskip.engines.cpu.engine import CpuEngine
from proxskip.engines.ray.engine import RayEngine
from proxskip.results.result import Status
from proxskip.running.audit import rounded_scale
from support.tiers import ON_CARD, RAY_WARNS, TORCH, thinned

pytestmark = pytest.mark.long

NAMES = [name for name, _ in cases()]


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("name", thinned(NAMES, 3))
def test_one_broken_update_is_reported(name: str, fault: str) -> None:
    for seed, engine in enumerate(("cpu", "reference", "cpu")):
        check(name, fault, seed, engine)


@pytest.mark.parametrize("engine", [TORCH, ON_CARD])
@pytest.mark.parametrize("name", NAMES)
def test_one_broken_update_is_reported_by_other_engines(name: str, engine: str) -> None:
    for seed, fault in enumerate(FAULTS):
        check(name, fault, seed, engine)


@RAY_WARNS
@pytest.mark.slow
def test_one_broken_update_is_reported_by_a_cluster(ray_here: None) -> None:
    engine = RayEngine(2, stay=True)
    for seed, name in enumerate(NAMES):
        check(name, FAULTS[seed % len(FAULTS)], seed, engine)
    engine.shutdown()


def check(name: str, fault: str, seed: int, engine: Any) -> None:
    """A run with this fault says so, unless the fault could not be made."""
    try:
        result, what = broken(dict(cases())[name], fault, seed, engine)
    except ps.InputError as error:
        assert engine in ("torch", "gpu"), error  # which do not run every method
        pytest.skip(str(error))
    if result is not None:
        heals = ps.core.METHODS[result.summary["method"]].about.heals and result.summary["cohort"] is None
        if heals:
            assert any("repairs" in note for note in result.warnings), what
        else:
            assert (result.status, result.success) == (Status.CORRUPTED, False), what
            assert "lost, applied twice or changed" in result.message


@pytest.mark.parametrize("name", NAMES)
def test_a_sound_run_is_not_accused(name: str) -> None:
    method, problem, given = dict(cases())[name](5)
    result = ps.run(method, problem, rounds=150, every=1, seed=5, allow_unsafe_step=True, **given)
    assert result.status is not Status.CORRUPTED, result.message
    assert not any("lost" in note for note in result.warnings)


def test_the_largest_h_is_remembered_across_a_resume(tmp_path: Any) -> None:
    # all clients have the same minimum: h and x go to zero, and the sum keeps what was rounded off before
    problem = ps.Problem([ps.Quadratic(np.array([1.0, 0.3]) * (i + 1), np.zeros(2)) for i in range(4)])
    method, given = ps.Scaffnew(0.2, 0.3), {"cohort": 3, "x0": np.array([1e8, 3.0])}
    ps.run(method, problem, rounds=600, out=tmp_path / "run", **given)
    result = ps.resume(tmp_path / "run", problem, rounds=900)
    assert result.status is Status.LIMIT, result.message


def test_an_engine_serves_one_run_at_a_time_and_is_free_again() -> None:
    problem = ps.Problem(ps.random_quadratics(6, 4))
    engine, method = CpuEngine(1), ps.Scaffnew.theory(problem)
    refused: list[str] = []

    class Second:
        def on_record(self, step: int, metrics: dict[str, float]) -> None:
            if step == 5:
                with ThreadPoolExecutor() as other:
                    run = other.submit(ps.run, method, problem, rounds=40, cohort=3, engine=engine)
                refused.append(str(run.exception()))

    alone = ps.run(method, problem, rounds=40, cohort=3)
    for callbacks in ([Second()], []):
        found = ps.run(method, problem, rounds=40, cohort=3, engine=engine, callbacks=callbacks)
        assert found.x.tobytes() == alone.x.tobytes()
    assert refused == ["this engine is in use by another run; give each concurrent run its own engine."]


def test_a_run_that_cannot_begin_gives_its_engine_back() -> None:
    class Broken(CpuEngine):
        def open(self, *given: Any, **more: Any) -> None:
            raise RuntimeError("no")

    engine, problem = Broken(1), ps.Problem(ps.random_quadratics(2, 2))
    for _ in range(2):
        with pytest.raises(RuntimeError, match="no"):
            ps.run("gd", problem, rounds=1, engine=engine)


@pytest.mark.parametrize("method", [ps.Scaffnew(0.5, 0.2), ps.Scaffold(0.1, 5), ps.GD(0.1)])
def test_what_rounding_may_leave_grows_with_the_numbers(method: Any) -> None:
    """In other units the sum of the h_i is judged alike; there is no size of its own that hides a lost update."""
    x, h = np.array([1.0, -2.0]), np.array([[3.0, 0.5], [-3.0, -0.5]])
    for some in (h, None):
        once = rounded_scale(method, 3, x, some)
        for factor in (1e-200, 1e-3, 1e200):
            scaled = rounded_scale(method, 3, factor * x, None if some is None else factor * some)
            assert scaled == pytest.approx(factor * once, rel=1e-12)
    assert rounded_scale(method, 3, 0 * x) == 0.0
