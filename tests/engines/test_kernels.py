"""The compiled kernels against plain numpy, over shapes and edge cases; the same bytes however the work is cut."""

import builtins
import itertools
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import scipy.sparse
import scipy.special
from hypothesis import given, settings
from hypothesis import strategies as st

import proxskip as ps
from proxskip.core.engine import Request
from proxskip.engines import sparse_rows
from proxskip.engines.cpu import cohort as cohorts
from proxskip.engines.cpu import engine as cpu
from proxskip.engines.cpu import kernels, shards
from proxskip.engines.cpu.cohort import Cohort
from proxskip.engines.cpu.engine import CpuEngine
from proxskip.engines.local import OneClient, no_half
from proxskip.engines.reference import ReferenceEngine
from proxskip.engines.sparse_rows import merged_rows
from proxskip.support import compiling, display
from support.problems import LOSSES
from support.tiers import draws

LAYOUTS = ["dense", "sparse", "ones"]


def problem_of(loss, layout, sizes, d, seed=0, dtype=np.float64, batch=None, scale=1.0, l2=0.1):
    rng = np.random.Generator(np.random.Philox(seed))
    N = sum(sizes)
    A = scale * rng.standard_normal((N, d))
    if layout != "dense":
        A = np.where(rng.random((N, d)) < 0.3, 1.0 if layout == "ones" else A, 0.0)
        A[rng.random(N) < 0.2] = 0.0  # empty rows
        A[:, rng.random(d) < 0.2] = 0.0  # empty columns
        A[N // 2] = A[0]  # a row twice
    b = rng.integers(0, 3 if loss == "softmax" else 2, N).astype(float)
    b[: min(3, N)] = np.arange(min(3, N)) % (3 if loss == "softmax" else 2)
    whole = LOSSES[loss](scipy.sparse.csr_matrix(A) if layout != "dense" else A, b, l2=l2, dtype=dtype)
    edges = np.cumsum([0, *sizes])
    parts = [whole.take(np.arange(lo, hi)) for lo, hi in itertools.pairwise(edges)]
    return ps.Problem(parts, weights=sizes, batch=batch)


def descend_on(engine, problem, X, H, gamma, K, seed=3, round=5, step0=0):
    engine.open(problem, {}, seed)
    members = np.arange(problem.n)
    if isinstance(engine, ReferenceEngine):
        alone = [OneClient(problem, i, seed, Request(no_half, members, round)) for i in members]
        return np.stack([client.descend(X[i], H[i], gamma[i], int(K[i])) for i, client in enumerate(alone)])
    client = engine.client(members, Request(no_half, members, round))
    ends = client.plain_steps(X.copy(), H, np.asarray(gamma), np.asarray(K), step0, 0.0)
    engine.close()
    return ends


@given(
    st.sampled_from(list(LOSSES)), st.sampled_from(LAYOUTS), st.lists(st.integers(1, 17), min_size=2, max_size=4),
    st.integers(1, 9), st.lists(st.integers(0, 4), min_size=4, max_size=4), st.integers(0, 1000), st.booleans(),
    st.booleans(), st.sampled_from([np.float64, np.float32]),
)  # fmt: skip
@settings(max_examples=draws(200))
@pytest.mark.long
def test_every_kernel_takes_the_steps_of_the_reference(loss, layout, sizes, d, K, seed, minibatch, gathered, dtype):
    if sum(sizes) < 3:
        return
    problem = problem_of(loss, layout, sizes, d, seed, dtype=dtype, batch=min(sizes) if minibatch else None)
    rng = np.random.Generator(np.random.Philox(seed + 1))
    X, H = rng.standard_normal((2, problem.n, problem.d))
    gamma, K = rng.uniform(0.01, 0.3, problem.n), np.array(K[: problem.n])
    threshold = shards.MIN_ENTRIES_PER_COLUMN
    shards.MIN_ENTRIES_PER_COLUMN = 0.0 if gathered else np.inf
    try:
        ours = descend_on(CpuEngine(2), problem, X, H, gamma, K)
    finally:
        shards.MIN_ENTRIES_PER_COLUMN = threshold
    judge = descend_on(ReferenceEngine(), problem, X, H, gamma, K)
    exact = dtype is np.float64
    assert np.allclose(ours, judge, **({"rtol": 1e-12, "atol": 1e-13} if exact else {"rtol": 1e-4, "atol": 1e-4}))
    assert np.array_equal(ours[K == 0], X[K == 0].astype(dtype))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("size", [1e-300, 1.0, 300.0, 5e3, 1e150])
def test_extreme_margins(layout, size):
    problem = problem_of("logistic", layout, [9, 8], 4, l2=0.0)
    X = size * np.array([[1.0, -1.0, 2.0, 0.5], [-1.0, 1.0, 1.0, -2.0]])
    H = np.zeros((2, 4))
    ours = descend_on(CpuEngine(1), problem, X, H, [0.5, 0.5], [2, 2])
    judge = descend_on(ReferenceEngine(), problem, X, H, [0.5, 0.5], [2, 2])
    assert np.isfinite(ours).all()
    assert np.allclose(ours, judge, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("layout", ["dense", "sparse"])
def test_what_is_not_finite_stays_so(layout):
    problem = problem_of("logistic", layout, [9, 8], 4)
    for bad in (np.nan, np.inf):
        X = np.array([[bad, 1.0, 1.0, 1.0], [1.0, 1.0, 1.0, 1.0]])
        out = descend_on(CpuEngine(1), problem, X, np.zeros((2, 4)), [0.1, 0.1], [3, 3])
        assert not np.isfinite(out[0]).all()
        assert np.isfinite(out[1]).all()


def test_slopes_are_accurate_to_the_last_bits():
    rng = np.random.Generator(np.random.Philox(0))
    z = np.concatenate([rng.uniform(-40, 40, 4001), rng.uniform(-680, 680, 1000), [0.0, -0.0, 1e-300, 690.0, -690.0]])
    b, scale = rng.choice([-1.0, 1.0], len(z)), np.ones(len(z))
    bits = np.zeros(len(z), np.int64)
    expected = -b * scipy.special.expit(-b * z)
    for safe in (True, False):
        ours = z.copy()
        kernels.slopes(kernels.LOGISTIC, ours, b, scale, len(z), safe, bits, bits.view(np.float64))
        assert np.allclose(ours, expected, rtol=4e-15, atol=0)


@pytest.mark.parametrize(("loss", "layout"), [*itertools.product(["logistic"], LAYOUTS), ("softmax", "sparse")])
@pytest.mark.parametrize("batch", [None, 40, 100])
@pytest.mark.parametrize("clients", [1, 4])
def test_large_clients_on_any_number_of_threads(loss, layout, batch, clients, monkeypatch):
    monkeypatch.setattr(shards, "ENTRIES_PER_BLOCK", 16)
    monkeypatch.setattr(shards, "MAX_ROWS_PER_BLOCK", 16)
    monkeypatch.setattr(cohorts, "ENTRIES_PER_START", 1e-9)
    cut, shares = [], Cohort._shares_blocks
    monkeypatch.setattr(Cohort, "_shares_blocks", lambda *args: cut.append(shares(*args)) or cut[-1])
    problem = problem_of(loss, layout, [150, 151, 130, 149][:clients], 6, batch=batch)
    ones = np.ones((clients, problem.d))
    arguments = problem, ones, 0.1 * ones, [0.2] * clients, [7, 5, 6, 3][:clients]
    ends = {descend_on(CpuEngine(k), *arguments).tobytes() for k in (1, 2, 3, 5)}
    assert len(ends) == 1
    assert any(cut)
    judge = descend_on(ReferenceEngine(), *arguments)
    assert np.allclose(np.frombuffer(ends.pop()), judge.ravel(), rtol=1e-12)


@pytest.mark.parametrize("batch", [8, 20])  # row by row, and most rows as tiles
@pytest.mark.parametrize(
    ("loss", "layout"),
    [("logistic", "dense"), ("logistic", "sparse"), ("squared", "ones"), ("softmax", "sparse"), ("softmax", "dense")],
)
@pytest.mark.parametrize("by_blocks", [False, True])
def test_minibatch_steps_are_numbered_on_from_step0(loss, layout, batch, by_blocks, monkeypatch):
    monkeypatch.setattr(Cohort, "_shares_blocks", lambda *_: by_blocks)
    monkeypatch.setattr(shards, "MIN_ENTRIES_PER_COLUMN", 0.0)
    monkeypatch.setattr(shards, "ENTRIES_PER_BLOCK", 4)
    monkeypatch.setattr(shards, "MAX_ROWS_PER_BLOCK", 8)
    problem = problem_of(loss, layout, [40, 41, 42], 6, batch=batch)
    assert isinstance(shards.pack(problem), shards.Tiles) == (layout != "dense" and loss != "softmax" and batch == 20)
    rng = np.random.Generator(np.random.Philox(1))
    start, H = rng.standard_normal((2, problem.n, problem.d))
    gamma, K1, K2 = np.full(problem.n, 0.1), np.array([3, 0, 2]), np.array([2, 4, 3])

    def steps(X, K, step0, threads=1):
        return descend_on(CpuEngine(threads), problem, X, H, gamma, K, step0=step0)

    at_once = steps(start, K1 + K2, 0)
    for threads in (1, 2):
        halfway = steps(start, K1, np.zeros(problem.n, np.int64), threads)
        assert steps(halfway, K2, K1, threads).tobytes() == at_once.tobytes()
        assert steps(halfway, K2, K1 + 1, threads).tobytes() != at_once.tobytes()


@pytest.mark.parametrize("threads", [1, 3])
def test_the_first_range_that_fails_is_told_whoever_meets_it(threads):
    engine, done = CpuEngine(threads), []

    def work(lo, hi):
        if lo in (4, 7):
            time.sleep(0.05 if lo == 4 else 0.0)  # others are done with 7 before
            raise ValueError(f"range {lo}")
        done.append(lo)

    engine.pool = ThreadPoolExecutor(2)
    with pytest.raises(ValueError, match="range 4"):
        engine.spread(work, [(k, k + 1) for k in range(40)])
    engine.close()
    assert {0, 1, 2, 3} <= set(done) < set(range(40))


def test_a_hash_collision_merges_nothing(monkeypatch):
    monkeypatch.setattr(sparse_rows, "_hashes", lambda starts, *words: np.full(len(starts), 7))
    M = scipy.sparse.csr_matrix(np.array([[1.0, 0.0], [0.0, 1.0]]))
    kept, live, group = merged_rows(M.indptr.astype(np.int64), M.indices, M.data, np.zeros(2, int), np.ones(2))
    assert kept.tolist() == live.tolist() == [0, 1]
    assert group.tolist() == [0, 1]


@pytest.mark.parametrize(("loss", "layout"), [("logistic", "dense"), ("logistic", "sparse"), ("softmax", "sparse")])
@pytest.mark.parametrize("batch", [None, 3, 9])
@pytest.mark.long
def test_what_a_run_calls_is_compiled_before_its_clock_runs(loss, layout, batch, monkeypatch):
    """``open`` compiles for the types of a run, with one thread and with several, whatever vectors a half hands over."""
    monkeypatch.setattr(shards, "MAX_ROWS_PER_BLOCK", 8)
    monkeypatch.setattr(shards, "ENTRIES_PER_BLOCK", 8)
    monkeypatch.setattr(cohorts, "ENTRIES_PER_START", 1e-9)

    def versions():
        return {name: len(kernel.signatures) for name, kernel in vars(kernels).items() if hasattr(kernel, "signatures")}

    problem = problem_of(loss, layout, [11, 12, 10], 4, batch=batch)
    shards.pack(problem)
    cpu._make_sums_ready()
    compiled = versions()
    for threads in (1, 2):
        for cohort in (None, 2):
            run = partial(ps.run, problem=problem, rounds=3, seed=2**63 - 1, cohort=cohort, engine=CpuEngine(threads))
            run(ps.Scaffnew(gamma=0.1, p=0.3))
            if batch and cohort is None:
                run(ps.ScaffnewVR.theory(problem))
    assert versions() == compiled


def test_processes_compile_one_at_a_time(tmp_path):
    """Numba numbers its files without a lock, so that two processes may write the same one."""
    kernel, began = SimpleNamespace(stats=SimpleNamespace(cache_path=str(tmp_path))), threading.Event()

    def other():
        with compiling.compiling(kernel):
            began.set()

    with compiling.compiling(kernel):
        waiting = threading.Thread(target=other)
        waiting.start()
        assert not began.wait(0.3)
    assert began.wait(60)
    waiting.join()


@pytest.mark.parametrize("where", ["terminal", "notebook", "file"])
def test_somebody_who_waits_hears_that_kernels_are_compiled(where, monkeypatch, capsys, tmp_path):
    class ZMQInteractiveShell: ...

    monkeypatch.setattr(display, "SECONDS_BEFORE_A_WORD", 0.0)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: where == "terminal", raising=False)
    said = threading.Event()
    monkeypatch.setattr(builtins, "print", lambda words, **_: said.set())
    if where == "notebook":
        monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=ZMQInteractiveShell))
    with compiling.compiling(SimpleNamespace(stats=SimpleNamespace(cache_path=str(tmp_path)))):
        assert said.wait(60 if where != "file" else 0.2) == (where != "file")
