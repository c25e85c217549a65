"""One trajectory: the same on both engines to 1e-12, the same bits whatever the threads, the same rows in a minibatch."""

import itertools
import math
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse
import scipy.stats

import proxskip as ps
from proxskip.core.engine import Request
from proxskip.engines.cpu import engine as cpu
from proxskip.engines.cpu import kernels, shards
from proxskip.engines.cpu.engine import CpuEngine
from proxskip.engines.local import no_half
from proxskip.results import description
from proxskip.support import randomness
from proxskip.support.randomness import minibatch
from support.comparing import bits, near
from support.elsewhere import Elsewhere
from support.methods import METHODS, NAMED, Row
from support.problems import model, quadratics
from support.runs import run
from support.tiers import thinned

KINDS = [(loss, sparse) for loss in ("logistic", "squared", "softmax") for sparse in (False, True)]


@pytest.mark.parametrize("row", METHODS, ids=lambda row: row.name)
def test_every_method_takes_the_same_way_on_both_engines(row: Row) -> None:
    problem = row.rows()
    near(run(row, problem), run(row, problem, "reference"), 1e-12)


@pytest.mark.parametrize("row", thinned([r for r in METHODS if r.claims("batch")], 3))
@pytest.mark.long
def test_every_method_draws_the_same_minibatches_on_both_engines(row: Row) -> None:
    problem = row.rows(sparse=True).with_batch(6)
    near(run(row, problem, rounds=4), run(row, problem, "reference", rounds=4), 1e-12)


# -- the same bits -----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("row", thinned(METHODS, 3))
@pytest.mark.long
def test_bits_do_not_depend_on_threads_or_on_the_run(row: Row) -> None:
    problem = row.rows(sparse=True)
    runs = [bits(run(row, problem, threads=t)) for t in (1, 2, 3, 1)]
    assert len(set(runs)) == 1


@pytest.mark.parametrize("row", METHODS[::3], ids=lambda row: row.name)
@pytest.mark.slow
def test_bits_do_not_depend_on_whether_a_cohort_counts_as_large(row: Row, monkeypatch: pytest.MonkeyPatch) -> None:
    """Large cohorts run their halves on ranges of members: the same operations on every row."""
    problems = (row.rows(), row.quadratic())
    plain = [bits(run(row, problem, threads=1)) for problem in problems]
    monkeypatch.setattr(cpu, "LARGE", 0)
    monkeypatch.setattr(cpu, "NUMBERS_PER_RANGE", 20)
    for threads in (1, 3):
        assert [bits(run(row, problem, threads=threads)) for problem in problems] == plain


@pytest.mark.parametrize("batch", [None, 5])
@pytest.mark.parametrize(("loss", "sparse"), KINDS)
@pytest.mark.long
def test_bits_of_every_kernel(loss: str, sparse: bool, batch: int | None) -> None:
    problem = NAMED["scaffnew-cohort"].rows(loss, sparse).with_batch(batch)
    assert len({bits(run(NAMED["scaffnew-cohort"], problem, threads=t)) for t in (1, 2, 3, 1)}) == 1


@pytest.mark.parametrize(("m", "n"), [(5, 2), (6, 3), (7, 1), (4, 0)])
def test_every_subset_is_equally_likely(m: int, n: int) -> None:
    """Floyd's algorithm, enumerated: with all numbers that can be drawn, every subset comes equally often."""
    numbers = itertools.product(*(range(m - n + i + 1) for i in range(n)))
    times = Counter(frozenset(randomness._floyd(list(t), m).tolist()) for t in numbers)
    assert len(times) == math.comb(m, n)
    assert len(set(times.values())) == 1


@pytest.mark.parametrize("side", [3, 2**31 - 1, 2**31 + 12345, 3 * 2**30])
def test_every_number_below_a_side_is_equally_likely(side: int) -> None:
    """Of all 2^32 words, as many lead to each number; the others are drawn again."""
    least = (2**32 - side) % side
    for t in (0, 1, side // 2, side - 2, side - 1):
        first, last = -(-t * 2**32 // side), -(-(t + 1) * 2**32 // side)
        some = range(first, last) if last - first < 10 else (first, first + 1, last - 1)
        kept = [w for w in some if w * side % 2**32 >= least]
        assert all(randomness._redrawn(w * side, side, 0, (0, 0, 0), 0) == t for w in kept)
        assert last - first - (len(some) - len(kept)) == 2**32 // side


def test_numbers_that_are_drawn_again_are_the_plain_ones() -> None:
    """With nearly 2^31 rows every fourth number is drawn again, some of them several times."""
    m = 2**31 - 1
    seen = np.zeros(m, np.uint8)  # pages that are not touched take no memory
    for step in range(6):
        out = np.empty(67, np.uint32)
        kernels.subset(9, 1, 2, step, m, 64, seen, out)
        assert np.array_equal(out[:64], minibatch(9, 1, 2, step, m, 64))


def test_minibatches_of_clients_rounds_steps_and_seeds_differ() -> None:
    base = (1, 2, 3, 4)
    first = minibatch(*base, 1000, 50)
    for k in range(4):
        other = list(base)
        other[k] += 1
        assert not np.array_equal(first, minibatch(*other, 1000, 50))


def test_logistic_loss_at_any_margin() -> None:
    """The value within 2 ulp and the slope within 4 ulp of 50 digits, without a warning."""
    mpmath = pytest.importorskip("mpmath", reason="mpmath is not installed")
    rng = np.random.Generator(np.random.Philox(0))
    spread = np.exp(rng.uniform(-30, 6.5, 600))
    z = np.concatenate([spread, -spread, [0.0, 5e-324, 1e-308, 710.0, 745.2, 800.0, 1e308], [-710.0, -745.2, -1e308]])
    f = ps.Logistic(np.ones((2, 1)), [0, 1])
    ones = np.ones_like(z)
    slopes = f.slopes(z, ones)
    f.b = ones
    losses = f.losses(z)
    with mpmath.workdps(50):
        for k, v in enumerate(z):
            true = mpmath.log1p(mpmath.exp(-mpmath.mpf(float(v))))
            assert abs(mpmath.mpf(float(losses[k])) - true) <= 2 * mpmath.mpf(float(np.spacing(losses[k]))), v
            true = -1 / (1 + mpmath.exp(mpmath.mpf(float(v))))
            ulp = max(abs(np.spacing(slopes[k])), np.finfo(np.float64).tiny / 4)  # below, expit gives zero
            assert abs(mpmath.mpf(float(slopes[k])) - true) <= 4 * mpmath.mpf(float(ulp)), v
    compiled = np.array([kernels.slope(kernels.LOGISTIC, v, 1.0) for v in z])
    assert np.allclose(compiled, slopes, rtol=1e-14, atol=1e-300)


# -- engines whose vectors live elsewhere ------------------------------------------------------------------------------
class FarEngine(Elsewhere, CpuEngine): ...


@pytest.mark.parametrize("kind", [ps.GD, ps.Accelerated, ps.LocalGD, ps.Scaffold, ps.FedLin, ps.SLocalGD, ps.Scaffnew])
def test_the_servers_vectors_may_stay_elsewhere(kind: Any) -> None:
    problem = ps.split(model("logistic", True), clients=4, by="label")
    method, engine = kind.theory(problem), FarEngine(1)
    near = ps.run(method, problem, rounds=9, every=3, threads=1)
    far = ps.run(method, problem, rounds=9, every=3, engine=engine)
    assert bits(far) == bits(near)
    assert far.summary | {"seconds": 0} == near.summary | {"seconds": 0}
    assert engine.fetched <= 8 * 4  # at the start, at three records and at the end


def test_a_far_run_that_blows_up_returns_the_last_finite_x_seen() -> None:
    problem = ps.Problem(ps.random_quadratics(3, 4))
    with pytest.warns(ps.UnsafeStepWarning):
        result = ps.run(ps.GD(50.0), problem, rounds=2000, every=500, engine=FarEngine(1), allow_unsafe_step=True)
    assert result.status is ps.Status.DIVERGED
    assert np.isfinite(result.x).all()


class Shared:
    """An oracle with a buffer that all of them use: fine on one thread only."""

    L, mu = 2.0, 1.0
    buffer = np.empty(50)

    def __init__(self, center):
        self.center = center

    def value(self, x):
        return float(np.sum((x - self.center) ** 2))

    def gradient(self, x):
        np.subtract(x, self.center, out=self.buffer)
        for _ in range(20):
            np.sqrt(np.abs(self.buffer) + 1.0)
        return 2.0 * self.buffer


def test_oracles_of_unknown_make_do_not_run_at_the_same_time() -> None:
    problem = ps.Problem([Shared(np.full(50, float(i))) for i in range(8)], d=50)
    result = ps.run(ps.Scaffnew(0.3, 0.3), problem, rounds=60, threads=4)
    assert np.allclose(result.x, 3.5, atol=1e-6)


def test_oracles_cannot_change_x_and_must_return_vectors() -> None:
    class Greedy(Shared):
        def gradient(self, x):
            x -= self.center
            return x

    class Short(Shared):
        def gradient(self, x):
            return 1.0

    for kind, says in ((Greedy, "changes the x it is given"), (Short, r"has shape \(\)")):
        problem = ps.Problem([kind(np.zeros(50)), kind(np.ones(50))], d=50)
        for engine in ("cpu", "reference"):
            with pytest.raises(ps.InputError, match=says):
                ps.run(ps.Scaffnew(0.3, 0.3), problem, rounds=2, engine=engine)


# -- what a call costs beyond its rounds -------------------------------------------------------------------------------
def test_a_problem_that_is_run_again_is_not_packed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = NAMED["scaffnew"].rows()
    method = ps.Scaffnew.theory(problem)
    packed: list[object] = []
    real = shards._packed

    monkeypatch.setattr(shards, "_packed", lambda *args: packed.append(1) or real(*args))
    first, second = (ps.run(method, problem, rounds=3, seed=0) for _ in range(2))
    assert bits(first) == bits(second)
    assert len(packed) == 1
    ps.run(ps.Scaffnew(0.01, 0.5), problem.with_batch(2), rounds=3, seed=0)  # another layout
    assert len(packed) == 2


@pytest.mark.parametrize("kind", ["sparse", "dense", "own"])
def test_records_have_the_bytes_of_the_plain_problem(kind: str) -> None:
    """Values and gradients of clients are computed together and on threads; the sums are those of ``Problem``."""
    A = np.random.default_rng(0).standard_normal((60, 5))
    f = ps.Logistic(scipy.sparse.csr_matrix(A * (A > 0)) if kind == "sparse" else A, np.arange(60) % 2, l2=0.1)
    problem = ps.split(f, 6)
    if kind == "own":

        class Own(ps.Logistic):
            def value(self, x: Any) -> float:
                return super().value(x) + 1.0

        problem = ps.Problem([Own(A[i::6], np.arange(10) % 2, l2=0.1) for i in range(6)])
    engine = CpuEngine(2)
    engine.open(problem, {}, 0)
    judged = engine.judge(problem)
    for x in np.random.default_rng(1).standard_normal((3, 5)):
        assert judged.value(x) == problem.value(x)
        assert judged.gradient(x).tobytes() == problem.gradient(x).tobytes()
        assert judged.client_gradients(x).tobytes() == problem.client_gradients(x).tobytes()
        # what a method is asked for its claims has variants as any problem
        assert judged.with_smoothness("average").value(x) == pytest.approx(problem.value(x), rel=1e-14)
    engine.close()


def test_a_run_without_a_folder_needs_no_digest_of_the_data(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    problem = NAMED["scaffnew"].rows()
    hashed: list[object] = []
    real = description.fingerprint
    monkeypatch.setattr(description, "fingerprint", lambda problem: hashed.append(1) or real(problem))
    ps.run(ps.Scaffnew.theory(problem), problem, rounds=2)
    assert not hashed
    ps.run(ps.Scaffnew.theory(problem), problem, rounds=2, out=tmp_path / "run")
    assert hashed


def test_full_gradients_of_a_cohort_are_computed_on_several_threads() -> None:
    at_once = threading.Barrier(2, timeout=30)

    class Meets:
        """A quadratic whose gradient waits for that of another client."""

        L = mu = 1.0
        d, thread_safe = 3, True

        def value(self, x: Any) -> float:
            return 0.5 * float(x @ x)

        def gradient(self, x: Any) -> Any:
            if not np.array_equal(x, np.zeros(3)):
                at_once.wait()
            return np.array(x)

    problem = ps.Problem([Meets(), Meets()])
    engine = CpuEngine(2)
    engine.open(problem, {}, 0)
    X = np.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
    client = engine.client(np.arange(2), Request(no_half, np.arange(2), 0))
    assert np.array_equal(client.gradient(X), X)
    at_once.reset()
    assert np.array_equal(client.gradient(0 * X, np.array([True, False])), 0 * X)
    engine.close()


@pytest.mark.parametrize("engine", ["reference", "gpu", "ray", "torch"])
def test_threads_that_an_engine_would_ignore_are_refused_before_any_work(engine: str, tmp_path: Path) -> None:
    problem, folder = ps.Problem(quadratics(4)), tmp_path / "out"
    wrong: Any = {"engine": engine, "threads": 2, "out": folder}
    for call in (
        lambda: ps.run("gd", problem, rounds=2, **wrong),
        lambda: ps.sweep(["gd", "scaffnew"], problem, rounds=2, **wrong),
        lambda: ps.tune("gd", problem, **wrong),
    ):
        with pytest.raises(ps.InputError, match=f'the engine "{engine}" does not take threads='):
            call()
        assert not folder.exists()
    ps.run("gd", problem, rounds=2, out=folder)
    with pytest.raises(ps.InputError, match=f'the engine "{engine}" does not take threads='):
        ps.resume(folder, problem, rounds=4, engine=engine, threads=2)
    assert ps.load(folder).rounds == 2


@pytest.mark.parametrize("wrong", [{"engine": "rey"}, {"engine": "reference", "threads": 2}], ids=str)
def test_a_sweep_by_force_on_an_engine_that_cannot_be_loses_no_older_run(wrong: Any, tmp_path: Path) -> None:
    problem = ps.Problem(quadratics(4))
    ps.sweep(["gd", "scaffnew"], problem, rounds=2, out=tmp_path)
    with pytest.raises(ps.InputError, match="engine"):
        ps.sweep("gd", problem, rounds=3, out=tmp_path, force=True, **wrong)
    assert [r.rounds for r in ps.load(tmp_path)] == [2, 2]  # type: ignore[union-attr]
