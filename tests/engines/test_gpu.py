"""The GPU engine against the reference engine, and its data layout, which needs no GPU, against plain numpy."""

import ctypes
import importlib.util
import itertools
import shutil
import subprocess
import threading
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import scipy.sparse
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import proxskip as ps
from proxskip.core.engine import BrokenOff, Request
from proxskip.engines.gpu import cuda, launch
from proxskip.engines.gpu import engine as gpu
from proxskip.engines.gpu.device import Card
from proxskip.engines.gpu.launch import LocalSteps
from proxskip.engines.gpu.tiles import PACK, ClientRows, Layout
from proxskip.running.run import make_engine
from proxskip.running.sweep import sweep
from proxskip.support import randomness
from proxskip.support.randomness import minibatch
from proxskip.support.sums import weighted_sum
from proxskip.types import InputError
from support import methods
from support.comparing import close
from support.methods import Row
from support.problems import LOSSES
from support.tiers import draws, no_card

LEFT_OUT = ("apda", "newton", "random-gossip", "decentralized-failing")
"""Rows whose server, Hessians or links this engine does not have; it says so."""
ROWS = tuple(row for row in methods.METHODS if not any(word in row.name for word in LEFT_OUT))


def on_gpu(test: Any) -> Any:
    return pytest.mark.gpu(pytest.mark.skipif(bool(no_card()), reason=no_card() or "there is a GPU")(test))


quick = settings(max_examples=draws(40), suppress_health_check=list(HealthCheck))


def random_problem(seed, n, rows, d, loss="logistic", density=0.4, **how) -> ps.Problem:
    """Clients of 1 to ``rows`` rows with empty rows, empty columns and repeated rows."""
    rng = np.random.Generator(np.random.Philox(seed))
    sizes = rng.integers(1, rows + 1, n)
    N = max(int(sizes.sum()), 3)
    sizes[-1] += N - sizes.sum()
    A = rng.standard_normal((N, d)) * (rng.random((N, d)) < density)
    A[rng.integers(0, N, N // 4)] = A[0]
    A[:, rng.integers(0, d)] = 0.0
    if how.pop("unit", False):
        A = (A != 0).astype(np.float64)
    b = np.arange(N) % (3 if loss == "softmax" else 2) + 0.0
    whole = LOSSES[loss](scipy.sparse.csr_matrix(A) if how.pop("sparse", True) else A, b, l2=0.1, **how)
    cuts = np.concatenate([[0], np.cumsum(sizes)])
    return ps.Problem([whole.take(np.arange(a, z)) for a, z in itertools.pairwise(cuts)])


def by_hand(problem: ps.Problem, x: Any, h: Any, gamma: Any, K: Any, seed: int = 0, round: int = 0) -> Any:
    """The local steps, one client and one step at a time."""
    how = {"members": None, "seed": seed, "round": round, "step0": 0, "pull": 0.0}
    return NumpySteps(problem).descend(problem.n, x, h, gamma[:, None], K, **how)


def on_card(problem: ps.Problem, x: Any, h: Any, gamma: Any, K: Any, seed: int = 0, round: int = 0, **how: Any) -> Any:
    steps = LocalSteps(problem, **how)
    return stepped(steps, x, h, gamma, K, seed=seed, round=round), steps


def stepped(steps: LocalSteps, x: Any, h: Any, gamma: Any, K: Any, **more: Any) -> Any:
    """Local steps of all clients, from and to the host."""
    send = gpu.need_cupy().asarray
    return steps.descend(steps.n, send(x), send(h), send(gamma), K, **more).get()


def start(problem: ps.Problem, seed: int, scale: float = 1.0) -> tuple[Any, Any, Any, Any]:
    rng = np.random.Generator(np.random.Philox(seed + 1000))
    x, h = scale * rng.standard_normal(problem.d), 0.1 * rng.standard_normal((problem.n, problem.d))
    return x, h, 0.05 + 0.2 * rng.random(problem.n), rng.integers(0, 6, problem.n)


@pytest.mark.skipif(importlib.util.find_spec("cupy") is not None, reason="CuPy is installed here")
def test_without_cupy_the_error_says_what_to_install() -> None:
    with pytest.raises(InputError, match=r"pip install \"proxskip\[gpu\]\""):
        make_engine("gpu")


def gathered(tiles: Any, s: int, source: Any, outputs: int) -> Any:
    """What the kernel's gather computes for slice s."""
    out = np.full(outputs, np.nan)
    for first, packs, packed, place in tiles.tiles[tiles.tile0[s] : tiles.tile0[s + 1]]:
        at = (tiles.pack0[s] + first) * 32 * PACK + np.arange(packs * 32 * PACK)
        terms = source[tiles.idx[at]] * tiles.val[at]
        lanes = terms.reshape(packs, 32, PACK).sum(axis=(0, 2))
        log, count = packed & 7, packed >> 3
        out[place : place + count] = lanes.reshape(32 >> log, 1 << log).sum(axis=1)[:count]
    return out


@quick
@given(
    st.integers(0, 10**6), st.integers(1, 5), st.integers(1, 40), st.integers(1, 30),
    st.integers(1, 4), st.sampled_from([1, 4, 16]), st.booleans(),
)  # fmt: skip
def test_tiles_compute_margins_and_gradients(seed, n, rows, d, G, warps, unit) -> None:
    problem = random_problem(seed, n, rows, d, unit=unit)
    data = ClientRows.of(problem.clients.store, problem.rows_each)
    layout = Layout.of(data.merged(), G, warps, np.float64)
    x = np.random.Generator(np.random.Philox(seed)).standard_normal(d)
    for i, f in enumerate(problem.clients):
        total = np.zeros(d)
        for s in range(i * G, (i + 1) * G):
            m, b0 = int(layout.meta[s, 9]), int(layout.meta[s, 8])
            assert layout.rows.warps[s, -1] == layout.meta[s, 1]
            z = gathered(layout.rows, s, np.append(x, 0.0), m)
            b, w = layout.labels[b0 : b0 + m], layout.shares[b0 : b0 + m]
            slopes = np.append(-b * w / (1.0 + np.exp(b * z)), 0.0)
            g = gathered(layout.columns, s, slopes, d)
            np.add.at(total, layout.colmap[s, :d].astype(np.int64), g)
        assert np.allclose(total + f.reg * x, f.gradient(x), rtol=1e-12, atol=1e-14)  # type: ignore[attr-defined]


class NumpySteps:
    """Stands for ``LocalSteps``: what its kernels compute, in numpy."""

    fit = staticmethod(LocalSteps.fit)

    def __init__(self, problem: ps.Problem) -> None:
        self.clients, self.batch = problem.clients, problem.batch

    def descend(self, count: int, X: Any, H: Any, gamma: Any, K: Any, **how: Any) -> Any:
        shape = (count, X.shape[-1])
        out, H, gammas = (np.broadcast_to(0.0 if v is None else v, shape).copy() for v in (X, H, gamma))
        members = range(count) if how["members"] is None else how["members"]
        for j, (i, steps) in enumerate(zip(members, np.broadcast_to(K, count), strict=True)):
            f: Any = self.clients[i]
            for k in range(int(steps)):
                step = how["step0"] + k
                rows = self.batch and minibatch(how["seed"], int(i), how["round"], step, f.N, self.batch)
                g = f.minibatch_gradient(out[j], rows) if self.batch else f.gradient(out[j])
                out[j] = out[j] - gammas[j] * (g + how["pull"] * out[j] - H[j])
        return out

    def step_gradient(self, count: int, X: Any, wanted: Any, **how: Any) -> Any:
        how |= {"step0": how.pop("step"), "pull": 0.0}
        return np.where(np.reshape(wanted, (-1, 1)), X - self.descend(count, X, None, 1.0, wanted, **how), X)

    def gradient(self, count: int, X: Any, wanted: Any, *, members: Any) -> Any:
        X, wanted = np.broadcast_to(X, (count, X.shape[-1])), np.broadcast_to(wanted, count)
        numbers = range(count) if members is None else members
        return np.stack([self.clients[i].gradient(X[j]) if wanted[j] else X[j] for j, i in enumerate(numbers)])


def numpy_mixed(indptr: Any, indices: Any, weights: Any, X: Any) -> Any:
    return np.stack([sum(weights[e] * X[indices[e]] for e in range(a, z)) for a, z in itertools.pairwise(indptr)])


@pytest.fixture
def numpy_card(monkeypatch: pytest.MonkeyPatch) -> None:
    """As much of CuPy as the engine uses outside its kernels."""
    pool = SimpleNamespace(free_all_blocks=lambda: None)
    stream = SimpleNamespace(synchronize=lambda: None)
    card = SimpleNamespace(
        get_default_memory_pool=lambda: pool, cuda=SimpleNamespace(get_current_stream=lambda: stream)
    )
    for name in ("array", "asarray", "ascontiguousarray", "broadcast_to", "full", "stack", "where"):
        setattr(card, name, getattr(np, name))
    card.asnumpy = np.array
    monkeypatch.setattr(gpu, "need_cupy", lambda: card)
    monkeypatch.setattr(launch, "_last_used", [])
    monkeypatch.setattr(launch, "LocalSteps", NumpySteps)
    monkeypatch.setattr(gpu, "weighted_sum", weighted_sum)
    monkeypatch.setattr(gpu, "mixed", numpy_mixed)


@pytest.mark.usefixtures("numpy_card")
@pytest.mark.parametrize("form", ["sent", "computed", "number", "zero"])
def test_gradients_may_be_wanted_of_some_members(form: str) -> None:
    """The same gradients and counts on every engine, however the half says where it wants them."""
    forms = {"sent": lambda awake: awake, "computed": lambda awake: awake * 1.0, "number": lambda _: 1.0}

    def half(client: Any, memory: Any, K: Any, x: Any, awake: Any) -> Any:
        return (client.gradient(x, where=forms.get(form, lambda _: 0)(awake)),), memory

    problem = random_problem(1, 4, 6, 3)
    awake, x = {"awake": np.array([1.0, 0.0, 1.0, 0.0])}, np.array([0.5, -1.0, 2.0])
    works = []
    for name in ("reference", "cpu", "gpu"):
        engine = make_engine(name)
        engine.open(problem, {}, 0)
        works.append(engine.run(Request(half, np.arange(4), 0, 0, (x,), awake)))
        engine.close()
    judge = works[0]
    for work in works[1:]:
        assert close(work.up[0], judge.up[0], 1e-12)
        assert work.gradients == judge.gradients


@pytest.mark.usefixtures("quiet_steps", "numpy_card")
@pytest.mark.long
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
@pytest.mark.parametrize(
    ("batch", "every"),
    [pytest.param(None, 1, marks=pytest.mark.slow), (None, 7), pytest.param(5, 3, marks=pytest.mark.slow)],
)
def test_the_engine_around_its_kernels(row: Row, batch: int | None, every: int) -> None:
    if batch and not row.claims("batch"):
        pytest.skip("full gradients only")
    problem = row.rows(sparse=True).with_batch(batch)
    method = row.make(problem)
    expected, got = (
        ps.run(method, problem, rounds=7, cohort=row.cohort, seed=3, every=every, engine=e)
        for e in ("reference", "gpu")
    )
    assert close(got.x, expected.x, 1e-12)
    for name, v in expected.memory.items():
        assert close(got.memory[name], v, 1e-12) or np.abs(v).max() < 1e-12
    for column in ("f", "floats_up", "floats_down", "exchanges", "grad_evals", "iterations", "local_steps"):
        assert close(got.trace[column], expected.trace[column], 1e-12), column
    assert got.trace["bits_up"].tolist() == expected.trace["bits_up"].tolist()


@pytest.mark.usefixtures("numpy_card")
def test_what_the_kernels_do_not_have_is_refused() -> None:
    mixed = [ps.Logistic(np.eye(2), [0, 1], l2=0.1, dtype=dtype) for dtype in ("float64", "float32")]
    for clients in (ps.random_quadratics(5, 7), mixed):
        with pytest.raises(InputError, match="the gpu engine only runs linear models"):
            ps.run(ps.GD(0.1), ps.Problem(clients), rounds=2, engine="gpu")


@pytest.mark.usefixtures("numpy_card")
def test_runs_of_one_problem_send_its_data_once(monkeypatch: pytest.MonkeyPatch) -> None:
    opened = []

    class Counted(NumpySteps):
        def __init__(self, *args: Any, **how: Any) -> None:
            opened.append(args)
            super().__init__(*args, **how)

    monkeypatch.setattr(launch, "LocalSteps", Counted)
    for _ in range(2):
        problem = random_problem(1, 3, 8, 4)
        methods = [ps.LocalGD(gamma=g, K=2) for g in (0.01, 0.02)]
        results = sweep(methods, problem, rounds=2, engine="gpu", allow_unsafe_step=True)
        assert [r.rounds for r in results] == [2, 2]
    assert len(opened) == 2


ONE_THREAD = r"""
#include <cmath>
#include <cstring>
#define __global__
#define __device__ static
#define __shared__
#define __align__(n) alignas(n)
#define __syncthreads()
static struct { int x, y; } blockIdx, gridDim, blockDim = {1, 1}, threadIdx = {0, 0};
static double __dadd_rn(double a, double b) { return a + b; }
static double __dmul_rn(double a, double b) { return a * b; }
unsigned int memory[1024];
"""
ALL_BLOCKS = r"""
#define LAUNCH(kernel) \
    gridDim = {gx, gy}; \
    for (blockIdx.y = 0; blockIdx.y < gy; ++blockIdx.y) \
        for (blockIdx.x = 0; blockIdx.x < gx; ++blockIdx.x) kernel
"""
RUN_DRAW = r"""
extern "C" void run(int gx, int gy, const i64* row0, const i64* indptr, const int* members, i64 batch, u64 seed,
                    u32 round, u32 step, DrawnRow* rows, u32* masks, int words, int use_shared) {
    LAUNCH(draw(row0, indptr, members, batch, seed, round, step, rows, masks, words, use_shared);)
}
"""
RUN_SERVER = r"""
extern "C" void sums(int gx, int gy, const double* w, const double* U, int n, int d, int block, double* out) {
    LAUNCH(block_sums(w, U, n, d, block, out);)
}
extern "C" void mixes(int gx, int gy, const long long* indptr, const long long* indices, const double* weights,
                      const double* X, int n, int d, double* out) {
    LAUNCH(mix(indptr, indices, weights, X, n, d, out);)
}
"""
needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler")


def compiled(folder: Any, file: str, run: str) -> Any:
    """A CUDA source as a library for this processor."""
    (folder / "kernel.cpp").write_text(ONE_THREAD + cuda.source(file) + ALL_BLOCKS + run)
    command = ["g++", "-std=c++17", "-w", "-ffp-contract=off", "-shared", "-fPIC", "-DDRAWS_AT_ONCE=7"]
    subprocess.run([*command, "-o", folder / "kernel.so", folder / "kernel.cpp"], check=True)
    return ctypes.CDLL(str(folder / "kernel.so"))


def at(v: Any) -> Any:
    return None if v is None else ctypes.c_void_p(v.ctypes.data)


@needs_compiler
@pytest.mark.parametrize("use_shared", [True, False])
def test_drawn_rows_are_those_of_the_plain_form(tmp_path: Any, use_shared: bool) -> None:
    """As lists and as masks, for batches of less and of more than half of the rows."""
    run, seed, round = compiled(tmp_path, "draw", RUN_DRAW).run, 2**40 + 3, 5
    rng = np.random.Generator(np.random.Philox(0))
    sizes = np.array([40, 9, 300, 77, 8])
    row0 = np.append(0, np.cumsum(sizes))
    indptr = np.append(0, np.cumsum(rng.integers(0, 5, sizes.sum())))
    members, words, steps = np.array([2, 0, 4, 3], dtype=np.int32), 10, 6
    for batch, step in itertools.product((1, 3, 5, 8), (0, 40, 2**32 - 6)):
        rows = np.zeros((steps, len(members), batch, 2), dtype=np.int64)
        masks = np.zeros((steps, len(members), words), dtype=np.uint32)
        room = masks if not use_shared else None
        for lists, bits in ((rows, room), (None, masks)):
            run(
                len(members), steps, at(row0), at(indptr), at(members), ctypes.c_int64(batch), ctypes.c_uint64(seed),
                round, ctypes.c_uint32(step), at(lists), at(bits), words, use_shared,
            )  # fmt: skip
        for (k, j), i in np.ndenumerate(np.tile(members, (steps, 1))):
            expected = randomness.minibatch(seed, int(i), round, step + k, int(sizes[i]), batch)
            assert (rows[k, j, :, 1] >> 32).tolist() == expected.tolist()
            first, length = indptr[row0[i] + expected], np.diff(indptr)[row0[i] + expected]
            assert rows[k, j, :, 0].tolist() == first.tolist()
            assert (rows[k, j, :, 1] & 0xFFFFFFFF).tolist() == length.tolist()
            bits = np.unpackbits(masks[k, j].view(np.uint8), bitorder="little")[: sizes[i]]
            assert np.flatnonzero(bits).tolist() == sorted(expected)


@needs_compiler
def test_sums_and_gossip_have_the_bytes_of_numpy(tmp_path: Any) -> None:
    library = compiled(tmp_path, "server", RUN_SERVER)
    rng = np.random.Generator(np.random.Philox(5))
    w, U, d = rng.random(600), rng.standard_normal((600, 7)), 7
    blocks, total = np.zeros((3, d)), np.zeros(d)
    library.sums(d, 3, at(w), at(U), 600, d, 256, at(blocks))
    library.sums(d, 1, None, at(blocks), 3, d, 3, at(total))
    assert total.tobytes() == weighted_sum(w, U).tobytes()
    graph, X, out = ps.graphs.graph("erdos-renyi", 12, seed=1), np.ascontiguousarray(U[:12]), np.zeros((12, d))
    library.mixes(d, 12, at(graph.indptr), at(graph.indices), at(graph.weights), at(X), 12, d, at(out))
    assert out.tobytes() == graph.mix(X).tobytes()


@on_gpu
@quick
@given(
    st.integers(0, 10**6), st.integers(1, 9), st.integers(1, 60), st.integers(1, 40),
    st.sampled_from(["logistic", "squared", "softmax"]), st.booleans(), st.booleans(), st.floats(0.02, 1.0),
)  # fmt: skip
def test_any_shape(seed: int, n: int, rows: int, d: int, loss: str, sparse: bool, unit: bool, density: float) -> None:
    problem = random_problem(seed, n, rows, d, loss, density, sparse=sparse, unit=unit)
    arguments = start(problem, seed)
    got, _ = on_card(problem, *arguments)
    assert close(got, by_hand(problem, *arguments), 1e-11)


@on_gpu
@pytest.mark.parametrize("how", [{"blocks": 1}, {"blocks": 3}, {"blocks": 8}, {"blocks": 7, "grid": True}])
@pytest.mark.parametrize("loss", ["logistic", "squared", "softmax"])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_any_number_of_blocks(how: dict[str, Any], loss: str, dtype: str) -> None:
    problem = random_problem(5, 6, 300, 33, loss, dtype=dtype)
    arguments = start(problem, 5)
    got, local = on_card(problem, *arguments, **how)
    assert how["blocks"] == local.group_size
    assert close(got, by_hand(problem, *arguments), 1e-11 if dtype == "float64" else 2e-4)
    again, _ = on_card(problem, *arguments, **how)
    assert got.tobytes() == again.tobytes()


@on_gpu
@pytest.mark.parametrize("batch", [None, 20])
@pytest.mark.parametrize("loss", ["logistic", "softmax"])
@pytest.mark.parametrize("shared", [1500, 6000, 12000])
def test_what_does_not_fit_is_streamed(monkeypatch: Any, batch: int | None, loss: str, shared: int) -> None:
    card = Card.here()
    problem = random_problem(6, 3, 400, 90, loss)
    problem = replace(problem, clients=[f for f in problem.clients if f.N >= 20], weights=None, batch=batch)  # type: ignore[attr-defined]
    arguments = start(problem, 6)
    expected = by_hand(problem, *arguments)
    monkeypatch.setattr(Card, "here", staticmethod(lambda: replace(card, shared=shared + 64, clusters=False)))
    if batch:
        monkeypatch.setattr(launch, "ROWS_PER_CHUNK", 32 if shared > 1500 else 8)
    got, local = on_card(problem, *arguments)
    assert local.grid or shared > 1500
    assert close(got, expected, 1e-11)


@on_gpu
@pytest.mark.parametrize("how", [{"blocks": 1}, {"blocks": 3}, {"blocks": 2, "grid": True}])
@pytest.mark.parametrize("batch", [5, 40, 150, 600])
@pytest.mark.parametrize(("steps", "mask_bytes"), [(2, 40 * 1024), (32, 0)])
def test_draws_are_the_same_however_they_are_made(monkeypatch, how, batch, steps, mask_bytes) -> None:
    """Of few steps at a time, or with masks in global memory."""
    monkeypatch.setattr(launch, "STEPS_DRAWN", steps)
    monkeypatch.setattr(launch, "MASK_BYTES", mask_bytes)
    small = batch < 150
    problem = random_problem(9, 9, 1500, 90, density=0.7 if small else 0.05)
    problem = replace(problem, clients=[f for f in problem.clients if f.N >= 700], weights=None, batch=batch)  # type: ignore[attr-defined]
    x, h, gamma, K = start(problem, 9)
    got, local = on_card(problem, x, h, gamma, K + 3, seed=11, round=4, **how)
    assert local.by_rows == small
    assert close(got, by_hand(problem, x, h, gamma, K + 3, seed=11, round=4), 1e-11)


@on_gpu
@pytest.mark.parametrize("how", [{"blocks": 1}, {"blocks": 2}, {"blocks": 3, "grid": True}])
@pytest.mark.parametrize("loss", ["logistic", "softmax"])
@pytest.mark.parametrize("batch", [True, False])
def test_steps_do_not_depend_on_how_they_are_cut(loss: str, batch: bool, how: Any, monkeypatch: Any) -> None:
    problem = random_problem(4, 5, 50, 20, loss)
    if batch:
        problem = replace(problem, batch=min(f.N for f in problem.clients))  # type: ignore[attr-defined]
    x, h, gamma, K = start(problem, 4)
    steps = LocalSteps(problem, **how)
    whole = stepped(steps, x, h, gamma, K + 4, seed=3, round=2)
    first = stepped(steps, x, h, gamma, np.full(problem.n, 4), seed=3, round=2)
    assert stepped(steps, first, h, gamma, K, seed=3, round=2, step0=4).tobytes() == whole.tobytes()
    monkeypatch.setattr(launch, "LAUNCH_SECONDS", 1e-5)  # a launch for one or two steps
    assert stepped(steps, x, h, gamma, K + 4, seed=3, round=2).tobytes() == whole.tobytes()
    halt = threading.Event()
    halt.set()
    with pytest.raises(BrokenOff):
        stepped(steps, x, h, gamma, K + 4, seed=3, round=2, halt=halt)


@on_gpu
@pytest.mark.parametrize("scale", [1e-300, 1e3, 1e150])
@pytest.mark.parametrize("loss", ["logistic", "softmax"])
def test_extreme_margins(scale: float, loss: str) -> None:
    problem = random_problem(8, 4, 50, 9, loss)
    x, h, gamma, K = start(problem, 8, scale)
    got, _ = on_card(problem, x, h, gamma, np.ones_like(K))
    with np.errstate(all="ignore"):
        assert close(got, by_hand(problem, x, h, gamma, np.ones_like(K)), 1e-11)


@on_gpu
@pytest.mark.usefixtures("quiet_steps")
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
@pytest.mark.parametrize("batch", [None, 5])
def test_the_trajectory_of_every_method(row: Row, batch: int | None) -> None:
    if batch and not row.claims("batch"):
        pytest.skip("full gradients only")
    problem = row.rows(sparse=True).with_batch(batch)
    method = row.make(problem)
    expected, got, again = (
        ps.run(method, problem, rounds=12, cohort=row.cohort, seed=3, engine=e) for e in ("reference", "gpu", "gpu")
    )
    assert close(got.x, expected.x, 1e-9)
    assert got.x.tobytes() == again.x.tobytes()
    for name, v in expected.memory.items():
        assert close(got.memory[name], v, 1e-9) or np.abs(v).max() < 1e-12
    for column in ("floats_up", "floats_down", "exchanges", "grad_evals", "iterations", "local_steps"):
        assert np.array_equal(got.trace[column], expected.trace[column]), column


@on_gpu
@pytest.mark.parametrize("n", [1, 20, 256, 257, 1000])
def test_sums_have_the_bytes_of_the_cpu(n: int) -> None:
    rng = np.random.Generator(np.random.Philox(n))
    engine = gpu.GpuEngine()
    engine.open(random_problem(1, 2, 4, 3), {}, 0)
    w, U = rng.random(n), rng.standard_normal((n, 301))
    assert engine.fetch(engine.sum(w, engine.cupy.asarray(U))).tobytes() == weighted_sum(w, U).tobytes()


MANY: dict[str, Any] = {
    "a few": (11, 40, 30, 37),
    "two sums": (12, 300, 9, 37),
    "three sums": (16, 600, 9, 37),
    "more than fit at once": (13, 3000, 3, 37),
    "softmax": (14, 30, 40, 11, "softmax"),
}


@on_gpu
@pytest.mark.usefixtures("quiet_steps")
@pytest.mark.parametrize("name", [*MANY, "blocks that meet in global memory"])
def test_whole_rounds_of_any_shape(name: str) -> None:
    if name in MANY:
        problem = random_problem(*MANY[name])
    else:
        problem = random_problem(15, 2, 20_000, 60, density=0.9)
        assert LocalSteps(problem).grid
    problem.__dict__["solution"] = None
    L = float(max(f.L for f in problem.clients))
    methods: list[tuple[Any, int | None]] = [(ps.Scaffnew(gamma=0.5 / L, p=0.4), None)]
    if name in ("a few", "more than fit at once"):
        methods += [(ps.Scaffold(gamma=0.1 / L, K=3, eta_g=0.7), None)]
        methods += [(ps.Scaffnew(gamma=0.5 / L, p=0.4, chi=0.5), 2 * problem.n // 3)]
    for method, cohort in methods:
        how: dict[str, Any] = {"rounds": 8, "seed": 1, "cohort": cohort, "every": 8}
        expected = ps.run(method, problem, engine="cpu", **how)
        got = ps.run(method, problem, engine="gpu", **how)
        assert close(got.x, expected.x, 1e-11)
        for key, v in expected.memory.items():
            assert close(got.memory[key], v, 1e-9)
        again = ps.run(method, problem, engine="gpu", **(how | {"every": 1}))
        assert got.x.tobytes() == again.x.tobytes()
        assert all(got.memory[key].tobytes() == again.memory[key].tobytes() for key in got.memory)


@on_gpu
@pytest.mark.usefixtures("quiet_steps")
@pytest.mark.parametrize("name", ["accelerated", "scaffold-cohort", "scaffnew-psi", "decentralized"])
def test_a_resumed_run_has_the_same_bytes(name: str, tmp_path: Any) -> None:
    row = methods.NAMED[name]
    problem = row.rows(sparse=True)
    method = row.make(problem)
    ps.run(method, problem, rounds=7, cohort=row.cohort, seed=3, engine="gpu", out=tmp_path / "a")
    resumed = ps.resume(tmp_path / "a", problem, rounds=15)
    expected = ps.run(method, problem, rounds=15, cohort=row.cohort, seed=3, engine="gpu")
    assert resumed.x.tobytes() == expected.x.tobytes()
    assert resumed.summary["vectors_down"] == expected.summary["vectors_down"]
