"""Newton's method: quadratics in one step, large counts, singular Hessians, what it costs, and what it refuses."""

from itertools import pairwise
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import numpy as np
import pytest
import scipy.sparse

import proxskip as ps
from proxskip.engines.reference import ReferenceEngine
from proxskip.methods.newton import Expansion, Pace
from proxskip.problems.clients import expansion, expansion_length
from proxskip.running.run import ENGINES
from proxskip.types import Array, InputError
from support.methods import newton_numbers
from support.problems import quadratics


def counts(seed: int, mean: float, rows: int = 600) -> Any:
    rng = np.random.Generator(np.random.Philox(seed))
    A = rng.standard_normal((rows, 3))
    model = ps.Poisson(A, rng.poisson(mean * np.exp(A @ [0.5, 0.3, -0.2])), intercept=True)
    return ps.split(model, 5, by="iid")


def groups(seed: int) -> Any:
    """Mean counts from 150 to 60,000 in six groups."""
    rng = np.random.default_rng(seed)
    A = np.eye(6)[rng.integers(0, 6, 500)][:, 1:]
    model = ps.Poisson(A, rng.poisson(np.exp(8 + A @ [1, 2, -3, 3, 0])), intercept=True)
    return ps.split(model, 5, by="contiguous")


def labels(A: Array, seed: int = 0) -> Array:
    rng = np.random.Generator(np.random.Philox([seed, 1]))
    return np.asarray(rng.random(len(A)) < 0.5, dtype=np.float64)


# -- the way to the solution -------------------------------------------------------------------------------------------
@pytest.mark.parametrize("weights", [None, (1.0, 2.0, 3.0, 4.0)])
def test_a_quadratic_takes_one_step_from_anywhere(weights: Any) -> None:
    problem = ps.Problem(quadratics(kappa=1e6, own=True), weights)
    for x0 in (None, np.full(problem.d, 1e3)):
        result = ps.run("newton", problem, rounds=1, x0=x0)
        assert np.allclose(result.x, problem.solution.x, rtol=1e-9, atol=0)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    "make",
    [
        lambda seed: counts(seed, 50_000.0),
        lambda seed: counts(seed, 1_000.0),
        lambda seed: counts(seed, 3.0),
        groups,
    ],
)
def test_large_counts_take_twelve_rounds_from_zero(make: Any, seed: int) -> None:
    problem = make(seed)
    first = np.linalg.norm(problem.gradient(np.zeros(problem.d)))
    result = ps.run("newton", problem, rounds=12)
    assert np.linalg.norm(problem.gradient(result.x)) <= 1e-9 * first
    assert np.isfinite(result.trace["f"]).all()
    # further rounds stay there
    assert np.allclose(ps.run("newton", problem, rounds=30).x, result.x, rtol=1e-10, atol=1e-7)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("kind", ["logistic", "poisson", "cox"])
def test_it_gets_there_from_far_away(kind: str, seed: int) -> None:
    """Where full steps overshoot, or the first curvature is almost zero."""
    rng = np.random.Generator(np.random.Philox([seed, 7]))
    A = rng.standard_normal((200, 4))
    model: Any = ps.Logistic(A, labels(A, seed))
    if kind == "poisson":
        model = ps.Poisson(A, rng.poisson(3.0, 200))
    elif kind == "cox":
        model = ps.Cox(A, rng.integers(1, 30, 200), rng.random(200) < 0.7)
    problem = ps.split(model, 4, by="iid")
    found = ps.run("newton", problem, x0=8.0 * rng.standard_normal(4), tol=1e-10, rounds=100)
    assert found.success
    assert np.allclose(found.x, ps.run("newton", problem, tol=1e-10, rounds=100).x, rtol=0, atol=1e-7)


def test_what_is_kept_never_rises() -> None:
    problem = counts(1, 50_000.0)
    kept: list[float] = []
    for rounds in range(2, 12):
        result = ps.run("newton", problem, rounds=rounds)
        kept.append(problem.value(result.server["good"]))
    assert all(after <= before for before, after in pairwise(kept))


@pytest.mark.parametrize("engine", ["cpu", "reference"])
def test_a_run_never_returns_a_trial_that_fails(engine: str, tmp_path: Path) -> None:
    """Where it ends between a trial that fails and the next, the answer is the last good point; it resumes as ever."""
    problem, failed, before = counts(1, 50_000.0), 0, np.inf
    whole = ps.run("newton", problem, rounds=12, engine=engine)
    for rounds in range(12):
        part = ps.run("newton", problem, rounds=rounds, out=tmp_path / str(rounds), engine=engine)
        assert part.summary["f"] == problem.value(part.x) <= before + 1e-12 * abs(before)
        before = part.summary["f"]
        if part.x.tobytes() != part.server["x"].tobytes():
            failed += 1
            assert part.x.tobytes() == part.server["good"].tobytes()
            assert problem.value(part.server["x"]) > before
        resumed = ps.resume(tmp_path / str(rounds), problem, rounds=12)
        assert resumed.x.tobytes() == whole.x.tobytes()
    assert failed > 0


class Quartic:
    """sum (x - c)^4: the Hessian vanishes at the minimum."""

    d = 2
    mu = 0.0
    L = 1e6

    def value(self, x: Array) -> float:
        return float(np.sum((x - 1.0) ** 4))

    def gradient(self, x: Array) -> Array:
        return 4.0 * (x - 1.0) ** 3

    def hessian(self, x: Array) -> Array:
        return np.diag(12.0 * (x - 1.0) ** 2)


class Huber(Quartic):
    """Linear, without any curvature, beyond a distance of 1 from the minimum at 1."""

    L = 1.0

    def value(self, x: Array) -> float:
        far = np.abs(x - 1.0)
        return float(np.sum(np.where(far <= 1.0, 0.5 * far**2, far - 0.5)))

    def gradient(self, x: Array) -> Array:
        return np.clip(x - 1.0, -1.0, 1.0)

    def hessian(self, x: Array) -> Array:
        return np.diag((np.abs(x - 1.0) <= 1.0).astype(np.float64))


@pytest.mark.parametrize(("f", "x0"), [(Quartic(), [5.0, -3.0]), (Huber(), [4.0, 1.5]), (Huber(), [3.5, -6.0])])
def test_functions_with_flat_parts_are_minimized(f: Any, x0: list[float]) -> None:
    result = ps.run("newton", ps.Problem([f]), rounds=60, x0=np.array(x0))
    assert np.allclose(result.x, 1.0, rtol=0, atol=1e-6)


def test_collinear_columns_get_a_minimizer_all_the_same() -> None:
    A = np.random.Generator(np.random.Philox(3)).standard_normal((200, 3))
    A = np.column_stack([A, A[:, 0] + A[:, 1]])
    problem = ps.split(ps.Logistic(A, labels(A)), 4, by="iid")
    result = ps.run("newton", problem, rounds=12)
    assert np.linalg.norm(problem.gradient(result.x)) < 1e-14
    assert np.abs(result.x).max() < 10.0


@pytest.mark.parametrize("scales", [(1e-6, 1.0, 1e6), (1e8, 1e-8, 1.0)])
def test_the_scale_of_a_column_changes_nothing(scales: tuple[float, ...]) -> None:
    A = np.random.Generator(np.random.Philox(4)).standard_normal((300, 3))
    x, scaled = (
        ps.run("newton", ps.split(ps.Logistic(A * s, labels(A)), 4, by="iid"), rounds=8).x
        for s in (1.0, np.array(scales))
    )
    assert np.allclose(scaled * scales, x, rtol=1e-9, atol=0)


def test_single_precision_data_are_solved_in_double_precision() -> None:
    A = np.random.Generator(np.random.Philox(4)).standard_normal((300, 3)).astype(np.float32)
    single = ps.split(ps.Logistic(A, labels(A), l2=0.1, dtype="float32"), 4, by="iid")
    assert ps.run("newton", single, tol=1e-13).rounds < 8


# -- the seam ----------------------------------------------------------------------------------------------------------
def test_an_expansion_is_f_and_its_derivatives() -> None:
    f = quadratics(1, 4)[0]
    x = np.arange(4.0)
    v = expansion(f, x, 0)
    assert len(v) == expansion_length(4) == newton_numbers(4)
    back = Expansion.of(v, 4)
    assert back.value == f.value(x)
    assert np.array_equal(back.gradient, f.gradient(x))
    assert np.array_equal(back.hessian, f.hessian(x))


@pytest.mark.parametrize("engine", ["reference", "cpu"])
def test_a_round_sends_the_triangle_up_and_one_point_down(engine: str) -> None:
    problem = ps.split(ps.Softmax(np.eye(9)[:, :4], np.arange(9) % 3, l2=0.1), 3, by="contiguous")
    s = ps.run("newton", problem, rounds=4, engine=engine).summary
    assert (s["vectors_up"], s["vectors_down"], s["exchanges"]) == (12, 12, 4)
    assert (s["floats_up"], s["bytes_up"]) == (12 * newton_numbers(12), 96 * newton_numbers(12))
    assert s["floats_down"] == 12 * 12
    assert s["grad_evals"] == 4 * 9


def test_a_network_carries_the_triangle() -> None:
    problem = ps.Problem(quadratics(4, 30))
    network = ps.Network(latency=0.0, bandwidth=1000.0, gradient=0.0, server=1e12)
    seconds = ps.run("newton", problem, rounds=2, network=network).trace["sim_seconds"]
    assert seconds[-1] == pytest.approx(2 * 8 * (30 + newton_numbers(30)) / 1000.0)
    slow = ps.Network(latency=0.0, bandwidth=np.inf, gradient=1.0)
    computing = ps.run("newton", problem, rounds=2, network=slow).trace["sim_computing"]
    assert computing[-1] == 2 * (1 + 30 / 4)


@pytest.mark.parametrize("large", [False, True])
def test_the_bits_do_not_depend_on_threads(large: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if large:  # the cohort is worked on in ranges
        monkeypatch.setattr("proxskip.engines.cpu.engine.LARGE", 1)
        monkeypatch.setattr("proxskip.engines.cpu.engine.NUMBERS_PER_RANGE", 8)
    problem = counts(0, 20.0)
    one, two = (ps.run("newton", problem, rounds=5, threads=threads).x for threads in (1, 3))
    assert one.tobytes() == two.tobytes()
    assert np.allclose(ps.run("newton", problem, rounds=5, engine="reference").x, one, rtol=1e-12, atol=0)


# -- what it refuses ---------------------------------------------------------------------------------------------------
class NoHessian(Quartic):
    hessian = None  # type: ignore[assignment]


def many(d: int) -> Any:
    return ps.Problem([ps.Quadratic(np.ones(d), np.ones(d))])


REFUSED = {
    "newton needs the Hessian of every client": lambda: ps.run("newton", ps.Problem([NoHessian()]), rounds=1),
    r"newton would send 12,512,503 numbers \(100 MB\) from each of 1 clients": lambda: ps.run(
        "newton", many(5001), rounds=1
    ),
    "newton has no prox step": lambda: ps.run("newton", many(3).with_psi(ps.prox.L1(0.1)), rounds=1),
    "newton needs full gradients": lambda: ps.run("newton", counts(0, 3.0).with_batch(2), rounds=1),
    "newton needs all clients": lambda: ps.run("newton", counts(0, 3.0), rounds=1, cohort=2),
    "gamma = 2 of newton must be one number of at most 1": lambda: ps.Newton(2),
    "gamma = .* of newton must be one number": lambda: ps.Newton((0.5, 1.0)),
}


@pytest.mark.parametrize("sentence", REFUSED)
def test_what_it_cannot_do_is_refused(sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        REFUSED[sentence]()


class GradientsAlone(ReferenceEngine):
    name, has_hessians = "plain", False


def test_an_engine_without_hessians_is_refused_before_any_file_changes(tmp_path: Path) -> None:
    problem, old, new = counts(0, 3.0), tmp_path / "old", tmp_path / "new"
    ps.run("newton", problem, rounds=2, out=old)
    before = {path: path.read_bytes() for path in old.rglob("*") if path.is_file()}
    refused = 'newton needs Hessians, which the engine "plain" does not compute; use engine="cpu"'
    for out in (old, new):
        with pytest.raises(InputError, match=refused):
            ps.run("newton", problem, rounds=3, engine=GradientsAlone(), out=out, force=True)
    assert {path: path.read_bytes() for path in old.rglob("*") if path.is_file()} == before
    assert not new.exists()
    engine: Any = GradientsAlone()
    with pytest.raises(InputError, match=refused):  # nor does the first of several methods run
        ps.sweep([ps.GD(0.01), "newton"], problem, rounds=2, engine=engine, out=new)
    assert not new.exists()


@pytest.mark.parametrize(("name", "has"), [("cpu", True), ("reference", True), ("gpu", False), ("torch", False)])
def test_engines_say_whether_they_give_hessians(name: str, has: bool) -> None:
    try:
        kind = resolve_name(f"proxskip.engines.{ENGINES[name]}")
    except ImportError:
        pytest.skip(f"the engine {name} needs a package that is not installed")
    assert kind.has_hessians is has


def test_an_operator_without_rows_has_no_hessian() -> None:
    A = scipy.sparse.linalg.aslinearoperator(np.eye(4))
    with pytest.raises(InputError, match="newton needs the Hessian"):
        ps.run("newton", ps.LeastSquares(A, np.ones(4)), rounds=1)


def test_a_hessian_of_another_shape_is_refused() -> None:
    class Wrong(Quartic):
        def hessian(self, x: Array) -> Array:
            return np.ones(2)

    with pytest.raises(InputError, match="the Hessian of client 0 has shape"):
        ps.run("newton", ps.Problem([Wrong()]), rounds=1)


def test_a_failed_step_is_at_least_halved() -> None:
    one = Expansion(0.0, np.array([-1.0]), np.eye(1))
    for value, slope, curvature in ((5.0, 3.0, 2.0), (5.0, 1e9, 1e12), (np.inf, np.nan, np.nan), (1.0, -1.0, 1e-9)):
        here = Expansion(value, np.array([slope]), np.array([[curvature]]))
        for t in (1.0, 1e-3):
            shorter = Pace(t, 0.0).after_failure(one, here, np.ones(1))
            assert 0 < shorter.t <= t / 2
