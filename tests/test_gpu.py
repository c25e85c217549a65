"""The GPU engine against the reference engine, and its data layout, which needs no GPU, against plain numpy."""

from __future__ import annotations

import ctypes
import importlib.util
import itertools
import operator
import re
import shutil
import subprocess
import warnings
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import scipy.sparse
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import proxskip as ps
from conftest import METHODS as EVERY_METHOD
from conftest import Row, close, draws, no_card
from proxskip import randomness
from proxskip.engines.gpu import cuda, fused
from proxskip.engines.gpu import engine as gpu
from proxskip.engines.gpu.coded import read_there
from proxskip.engines.gpu.launch import Card, Launches, LocalSteps
from proxskip.engines.gpu.tiles import ClientRows, Layout, untangle
from proxskip.links.codecs import Key, Natural, read_back
from proxskip.links.sums import weighted_sum
from proxskip.randomness import minibatch
from proxskip.running import make_engine
from proxskip.sweeping import sweep
from proxskip.types import InputError, UnsafeStepWarning

LEFT_OUT = (
    "vr",
    "apda",
    "random-gossip",
    "decentralized-gossips",
    "decentralized-failing",
)
"""Rows whose local steps or links this engine does not have; it says so."""
METHODS = tuple(row for row in EVERY_METHOD if not any(word in row.name for word in LEFT_OUT))


def on_gpu(test: Any) -> Any:
    """A test that needs a GPU."""
    return pytest.mark.gpu(pytest.mark.skipif(bool(no_card()), reason=no_card() or "there is a GPU")(test))


quick = settings(max_examples=draws(40), suppress_health_check=list(HealthCheck))


def random_problem(
    seed: int, n: int, rows: int, d: int, loss: str = "logistic", density: float = 0.4, scale: float = 1.0, **how: Any
) -> ps.Problem:
    """Clients of 1 to ``rows`` rows with empty rows, empty columns and repeated rows."""
    rng = np.random.Generator(np.random.Philox(seed))
    sizes = rng.integers(1, rows + 1, n)
    N = max(int(sizes.sum()), 3)
    sizes[-1] += N - sizes.sum()
    A = scale * rng.standard_normal((N, d)) * (rng.random((N, d)) < density)
    A[rng.integers(0, N, N // 4)] = A[0]
    A[:, rng.integers(0, d)] = 0.0
    if how.pop("unit", False):
        A = (A != 0).astype(np.float64)
    b = np.arange(N) % (3 if loss == "softmax" else 2) + 0.0
    kind = {"logistic": ps.Logistic, "squared": ps.LeastSquares, "softmax": ps.Softmax}[loss]
    whole = kind(scipy.sparse.csr_matrix(A) if how.pop("sparse", True) else A, b, l2=0.1, **how)
    cuts = np.concatenate([[0], np.cumsum(sizes)])
    return ps.Problem([whole.take(np.arange(a, z)) for a, z in itertools.pairwise(cuts)])


def by_hand(problem: ps.Problem, x: Any, h: Any, gamma: Any, K: Any, seed: int = 0, round: int = 0) -> Any:
    """The local steps, one client and one step at a time."""
    out = []
    for i, f in enumerate(problem.clients):
        y = np.array(x, dtype=np.float64)
        for k in range(int(K[i])):
            if problem.batch:
                g = f.minibatch_gradient(y, minibatch(seed, i, round, k, f.N, problem.batch))  # type: ignore[attr-defined]
            else:
                g = f.gradient(y)
            y = y - gamma[i] * (g - h[i])
        out.append(y)
    return np.stack(out)


def on_card(problem: ps.Problem, x: Any, h: Any, gamma: Any, K: Any, seed: int = 0, round: int = 0, **how: Any) -> Any:
    cupy = gpu.need_cupy()
    local = LocalSteps(problem, problem.n, **how)
    send = cupy.asarray
    return local.descend(
        problem.n, send(x), send(h), send(gamma), send(K.astype(np.int32)), seed=seed, round=round
    ).get(), local


def from_step(problem: ps.Problem, x: Any, h: Any, gamma: Any, K: Any, step0: Any, **how: Any) -> Any:
    """Local steps whose minibatches are numbered from ``step0`` on."""
    cupy = gpu.need_cupy()
    send, local = cupy.asarray, LocalSteps(problem, problem.n, **how)
    steps, first = send(K.astype(np.int32)), send(step0.astype(np.uint32))
    return local.descend(problem.n, send(x), send(h), send(gamma), steps, seed=3, round=2, step0=first).get()


def start(problem: ps.Problem, seed: int, scale: float = 1.0) -> tuple[Any, Any, Any, Any]:
    rng = np.random.Generator(np.random.Philox(seed + 1000))
    n, d = problem.n, problem.d
    return (
        scale * rng.standard_normal(d),
        0.1 * rng.standard_normal((n, d)),
        0.05 + 0.2 * rng.random(n),
        rng.integers(0, 6, n),
    )


REFUSED = {
    **{"5gcs-theory": "until", "5gcs-psi": "until", "5gcs-uneven": "until", "5gcs-auto": "has to see x"},
}
"""Rows that need what the kernels do not have, and a word of the sentence that says so."""
ROWS = [row for row in METHODS if row.name not in REFUSED]


# -- without a GPU -----------------------------------------------------------------------------------------------------
@pytest.mark.skipif(importlib.util.find_spec("cupy") is not None, reason="CuPy is installed here")
def test_without_cupy_the_error_says_what_to_install() -> None:
    with pytest.raises(InputError, match=r"pip install \"proxskip\[gpu\]\""):
        make_engine("gpu")


def gathered(tiles: Any, idx: Any, val: Any, pack: int, s: int, source: Any, outputs: int) -> Any:
    """What the kernel's gather computes for slice s."""
    out = np.full(outputs, np.nan)
    for first, packs, packed, place in tiles.tiles[tiles.tile0[s] : tiles.tile0[s + 1]]:
        at = (tiles.pack0[s] + first) * 32 * pack + np.arange(packs * 32 * pack)
        terms = source[idx[at]] * (1.0 if val is None else val[at])
        lanes = terms.reshape(packs, 32, pack).sum(axis=(0, 2))
        log, count = packed & 7, packed >> 3
        out[place : place + count] = lanes.reshape(32 >> log, 1 << log).sum(axis=1)[:count]
    return out


@quick
@given(
    st.integers(0, 10**6), st.integers(1, 5), st.integers(1, 40), st.integers(1, 30),
    st.integers(1, 4), st.sampled_from([1, 4, 16]), st.sampled_from([2, 4]), st.booleans(),
)  # fmt: skip
def test_tiles_compute_margins_and_gradients(
    seed: int, n: int, rows: int, d: int, G: int, warps: int, pack: int, unit: bool
) -> None:
    problem = random_problem(seed, n, rows, d, unit=unit)
    data = ClientRows.of(list(problem.clients), problem.rows_each)
    layout = Layout.of(data.merged(), G, warps, pack, data.unit, np.float64)
    x = np.random.Generator(np.random.Philox(seed)).standard_normal(d)
    for i, f in enumerate(problem.clients):
        total = np.zeros(d)
        for s in range(i * G, (i + 1) * G):
            m, b0 = int(layout.meta[s, 9]), int(layout.meta[s, 8])
            assert layout.rows.warps[s, -1] == layout.meta[s, 1]
            z = gathered(layout.rows, layout.row_idx, layout.row_val, pack, s, np.append(x, 0.0), m)
            b, w = layout.labels[b0 : b0 + m], layout.shares[b0 : b0 + m]
            slopes = np.append(-b * w / (1.0 + np.exp(b * z)), 0.0)
            g = gathered(layout.columns, layout.col_idx, layout.col_val, pack, s, slopes, d)
            np.add.at(total, layout.colmap[s, :d].astype(np.int64), g)
        assert np.allclose(total + f.reg * x, f.gradient(x), rtol=1e-12, atol=1e-14)  # type: ignore[attr-defined]


def test_equal_rows_become_one() -> None:
    A = scipy.sparse.csr_matrix(np.array([[1.0, 2], [1, 2], [0, 0], [1, 2], [1, 3]]))
    problem = ps.split(ps.Logistic(A, [0, 0, 0, 1, 1], l2=0.1), clients=1)
    merged = ClientRows.of(list(problem.clients), problem.rows_each).merged()
    assert len(merged.labels) == 3
    assert sorted(merged.shares) == pytest.approx([0.2, 0.2, 0.4])


def test_untangled_entries_are_a_permutation_within_their_lane() -> None:
    rng = np.random.Generator(np.random.Philox(3))
    idx = rng.integers(0, 300, 3 * 32 * 4)
    order = untangle(np.array([0, 1]), np.array([1, 2]), idx, 4, 16)
    assert sorted(order) == list(range(idx.size))
    tile, lane = np.searchsorted([32 * 4], np.arange(idx.size), "right"), np.arange(idx.size) // 4 % 32
    assert (tile[order] == tile).all()
    assert (lane[order] == lane).all()


# -- one launch a round, on a card of numpy ----------------------------------------------------------------------------
class NumpySteps:
    """Stands for ``LocalSteps``: does at its launch, in numpy, what a kernel made of the same terms would do."""

    fit = staticmethod(LocalSteps.fit)
    at_once = 1

    def __init__(self, problem: ps.Problem, parallel: int, full: bool = False, **how: Any) -> None:
        self.problem = replace(problem, batch=None) if full else problem
        self.data = None

    def kernel(self, code: Any) -> tuple[None, int]:
        return None, self.at_once

    def launch(self, code: Any, given: Any, count: int, K: Any, out: Any, members: Any = None, **how: Any) -> None:
        Launches.total += 1
        rows = np.arange(count) if members is None else members
        x, h, gamma = (np.broadcast_to(evaluated(v, rows), out.shape) for v in (code.x, code.h, code.gamma))
        new = np.empty_like(out)
        for j, i in enumerate(rows):
            steps, y, f = int(np.broadcast_to(K, (count,))[j]), x[j], self.problem.clients[i]
            for k in range(steps):
                if how.get("want_gradient"):
                    y = f.gradient(y)
                    break
                batch = self.problem.batch
                sample = batch and minibatch(how["seed"], int(i), how["round"], k, f.N, batch)  # type: ignore[attr-defined]
                g = f.minibatch_gradient(y, sample) if batch else f.gradient(y)  # type: ignore[attr-defined]
                y = y - gamma[j] * (g + how.get("pull", 0.0) * y - h[j])
            new[j] = y
        out[...] = new
        for link in code.links:
            U = evaluated(link.up, rows)
            link.out[...] = mixed(link.lists, U) if link.lists else weighted_sum(link.w, U)
        stored(code.outputs, rows)


def mixed(lists: Any, X: Any) -> Any:
    indptr, indices, weights = lists
    return np.stack([sum(weights[e] * X[indices[e]] for e in range(a, z)) for a, z in itertools.pairwise(indptr)])


def natural(v: Any, words: Any) -> Any:
    """The device function in numpy: the same whole numbers."""
    raw, word = (np.ascontiguousarray(u).view(np.uint64) for u in np.broadcast_arrays(v, words))
    exponent, mantissa = raw >> np.uint64(52) & np.uint64(0x7FF), raw & np.uint64((1 << 52) - 1)
    power = exponent + (word >> np.uint64(12) < mantissa)
    with np.errstate(all="ignore"):
        few = (word >> np.uint64(11)) * 2.0**-53 < np.abs(v) * 2.0**126
    power = np.where(exponent <= 896, np.where(few, np.uint64(897), np.uint64(0)), power)
    power = np.where((exponent == 2047) | (power > 1150), np.uint64(2047), power)
    return (raw >> np.uint64(63) << np.uint64(63) | power << np.uint64(52)).view(np.float64)


SIGNS = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv, "natural": natural}


def evaluated(term: Any, rows: Any) -> Any:
    if term.operator:
        return SIGNS[term.operator](evaluated(term.left, rows), evaluated(term.right, rows))
    return term.value[rows] if term.kind in (fused.KEPT, fused.COLUMN) else term.value


def stored(outputs: Any, rows: Any) -> None:
    values = [evaluated(term, rows) + 0.0 for term, _, _ in outputs]
    for (_, array, kept), v in zip(outputs, values, strict=True):
        array[rows if kept else ...] = v


def numpy_compute(outputs: Any, c: int, d: int, members: Any) -> None:
    Launches.total += 1
    stored(outputs, np.arange(c) if members is None else members)


class NumpyCard(SimpleNamespace):
    """As much of CuPy as the engine uses outside its kernels; fresh arrays hold NaN until a launch fills them."""

    asarray, stack, broadcast_to = staticmethod(np.asarray), staticmethod(np.stack), staticmethod(np.broadcast_to)

    @staticmethod
    def empty(shape: Any) -> Any:
        return np.full(shape, np.nan)

    @staticmethod
    def asnumpy(v: Any) -> Any:
        return np.array(v)


@pytest.fixture
def numpy_card(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu._last_used.clear()
    pool = SimpleNamespace(free_all_blocks=lambda: None)
    stream = SimpleNamespace(synchronize=lambda: None)
    there = NumpyCard(get_default_memory_pool=lambda: pool, cuda=SimpleNamespace(get_current_stream=lambda: stream))
    monkeypatch.setattr(gpu, "need_cupy", lambda: there)
    monkeypatch.setattr(gpu, "Card", SimpleNamespace(here=lambda: None))
    monkeypatch.setattr(gpu, "LocalSteps", NumpySteps)
    monkeypatch.setattr(gpu, "compute", numpy_compute)

    def whole(x: Any, h: Any, gamma: Any, links: Any = (), outputs: Any = ()) -> Any:
        ends = bool(links or outputs)
        return SimpleNamespace(x=x, h=h, gamma=gamma, links=links, outputs=outputs, ends=ends), ()

    monkeypatch.setattr(gpu, "whole", whole)


@pytest.mark.usefixtures("quiet_steps", "numpy_card")
@pytest.mark.long
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
@pytest.mark.parametrize(
    ("batch", "every"),
    [pytest.param(None, 1, marks=pytest.mark.slow), (None, 7), pytest.param(5, 3, marks=pytest.mark.slow)],
)
def test_launches_put_off_change_nothing(row: Row, batch: int | None, every: int) -> None:
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
@pytest.mark.parametrize("row", [r for r in METHODS if r.name in REFUSED], ids=lambda row: row.name)
def test_what_the_kernels_do_not_have_is_refused(row: Row) -> None:
    problem = row.rows(sparse=True)
    with pytest.raises(InputError, match=REFUSED[row.name]):
        ps.run(row.make(problem), problem, rounds=2, cohort=row.cohort, engine="gpu")


@pytest.mark.usefixtures("numpy_card")
def test_runs_of_one_problem_send_its_data_once(monkeypatch: pytest.MonkeyPatch) -> None:
    opened = []

    class Counted(NumpySteps):
        def __init__(self, *args: Any, **how: Any) -> None:
            opened.append(args)
            super().__init__(*args, **how)

    monkeypatch.setattr(gpu, "LocalSteps", Counted)
    for _ in range(2):
        problem = random_problem(1, 3, 8, 4)
        methods = [ps.LocalGD(gamma=g, K=2) for g in (0.01, 0.02)]
        results = sweep(methods, problem, rounds=2, seeds=2, engine="gpu", allow_unsafe_step=True)
        assert [r.rounds for r in results] == [2] * 4
    assert len(opened) == 2


def numpy_start(kernel: str, blocks: Any, threads: Any, arguments: Any, shared: int = 0) -> None:
    """The server's two kernels."""
    Launches.total += 1
    *given_, out = arguments
    if kernel == "mix":
        out[...] = mixed(given_[:3], given_[3])
    else:
        out[...] = weighted_sum(given_[0], given_[1])


@pytest.mark.usefixtures("quiet_steps", "numpy_card")
@pytest.mark.parametrize(
    "name", ["scaffold", "scaffold-cohort", "scaffnew-weighted", "scaffnew-cohort", "decentralized"]
)
def test_blocks_that_cannot_meet_leave_the_rest_to_other_launches(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (row,) = (row for row in METHODS if row.name == name)
    monkeypatch.setattr(NumpySteps, "at_once", 0)
    monkeypatch.setattr(gpu, "start", numpy_start)
    monkeypatch.setattr(gpu.cuda, "server", lambda name: name)
    problem = row.rows(sparse=True)
    method = row.make(problem)
    expected, got = (
        ps.run(method, problem, rounds=9, cohort=row.cohort, seed=3, every=4, engine=e) for e in ("reference", "gpu")
    )
    assert close(got.x, expected.x, 1e-12)
    assert all(close(got.memory[k], v, 1e-12) for k, v in expected.memory.items())
    assert launches(row, problem, rounds=5) > 1


GOES_ON = ("accelerated", "scaffold", "scaffold-cohort", "fedlin", "scaffnew", "scaffnew-psi", "decentralized")
LAUNCHES = {"scaffold-I": 2, "fedlin": 2, "fedlin-own": 2, "s-local-gd": 2, "5gcs": 2, "5gcs-weighted": 3}
LAUNCHES |= {"5gcs-cohort": 2, "gradskip": 2, "gradskip-drowsy": 2}
"""Launches a round where it is not one: two passes over the data, two exchanges, or a step with a pull in each."""


def launches(row: Row, problem: ps.Problem, rounds: int = 20) -> float:
    """Launches a round between two records."""
    method = row.make(problem)
    total = []
    for r in (rounds, 2 * rounds):
        before = Launches.total
        ps.run(method, problem, rounds=r, cohort=row.cohort, seed=3, every=r, engine="gpu")
        total.append(Launches.total - before)
    return (total[1] - total[0]) / rounds


EDGES = [0.0, -0.0, 1.0, -3.0, 5e-324, 2.0**-127, -(2.0**-126), 1.5 * 2.0**-126, 3e38, 1.9 * 2.0**127, 1e300, -np.inf]


def any_number() -> Any:
    """Numbers at which natural compression changes its ways, and others of all sizes."""
    rng = np.random.Generator(np.random.Philox(4))
    return np.concatenate([EDGES, [np.nan], rng.standard_normal(400) * 2.0 ** rng.integers(-140, 140, 400)])


@pytest.mark.parametrize("codec", ["natural", "rand-50+natural", "rand-3", "masks-2+natural", "masks-2"])
def test_what_the_card_reads_is_what_the_codec_decodes(codec: str) -> None:
    kind, v, keys = ps.codecs.parse(codec), any_number(), [Key(1, 2, i, i, 3) for i in range(3)]
    v = v[np.abs(v) < 2.0**127]  # infinity times zero is not a number
    term = read_there(np, fused.Term(fused.STACK, np.tile(v, (3, 1))), kind, keys, len(v))
    expected = np.stack([read_back(kind, v, key) for key in keys])
    assert evaluated(term, np.arange(3)).tolist() == expected.tolist()


@on_gpu
def test_natural_compression_on_the_card_is_the_codec() -> None:
    cupy, v, keys = gpu.need_cupy(), any_number(), [Key(1, 2, i) for i in range(3)]
    there = fused.Term(fused.STACK, cupy.asarray(np.tile(v, (3, 1))))
    out = cupy.empty((3, len(v)))
    fused.compute([(read_there(cupy, there, Natural(), keys, len(v)), out, False)], 3, len(v), None)
    expected = np.stack([read_back(Natural(), v, key) for key in keys])
    assert cupy.asnumpy(out).tobytes() == expected.tobytes()


@pytest.mark.usefixtures("numpy_card")
@pytest.mark.parametrize("codec", ["float32", "l1-2", "rand-2+float32"])
def test_other_codecs_are_refused_on_the_card(codec: str) -> None:
    problem = random_problem(3, 4, 9, 6)
    with pytest.raises(InputError, match=f"cannot send through {re.escape(codec)}"):
        ps.run(ps.LoCoDL(0.1, 0.5, codec, 0.01, 9.0, 0.5), problem, rounds=1, engine="gpu")


@pytest.mark.usefixtures("quiet_steps", "numpy_card")
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
@pytest.mark.long
def test_a_round_asks_for_one_launch(row: Row) -> None:
    problem = row.rows(sparse=True)
    found = launches(row, problem)
    if row.name == "s-local-gd-q":
        assert 1.0 < found < 2.0
    else:
        assert found == LAUNCHES.get(row.name, 1)


@dataclass(frozen=True)
class Averaged(ps.Method):
    """Gradient descent with a server that adds up its points and sends the sum to nobody."""

    gamma: float
    about = ps.About("averaged", handles=frozenset({"clients"}))

    def start(self, problem: ps.Problem, x0: Any) -> Any:
        return {"x": x0, "total": 0.0 * x0}

    def round(self, server: Any, exchange: Any) -> Any:
        (x,) = exchange(self.local, server["x"], K=1)
        return {"x": x, "total": server["total"] + 0.5 * x}

    def local(self, client: Any, memory: Any, K: Any, x: Any) -> Any:
        return (client.descend(x, 0.0, self.gamma, K),), {}


@pytest.mark.usefixtures("quiet_steps", "numpy_card")
@pytest.mark.parametrize("name", ["averaged", "locodl", "locodl-identity"])
def test_vectors_that_stay_with_the_server_are_not_written_down_longer_and_longer(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every round would have a kernel of its own, and a thousand of them could not be written down at all."""
    row = next(r for r in METHODS if r.name == ("gd" if name == "averaged" else name))
    problem, forms, whole, compute = row.rows(sparse=True), set(), gpu.whole, gpu.compute
    method = Averaged(0.5 / problem.L_max) if name == "averaged" else row.make(problem)

    def with_steps(x: Any, h: Any, gamma: Any, links: Any = (), outputs: Any = ()) -> Any:
        forms.add(tuple(fused.Leaves([x, h, gamma, *(link.up for link in links), *(o[0] for o in outputs)]).form))
        return whole(x, h, gamma, links, outputs)

    def alone(outputs: Any, *where: Any) -> None:
        forms.add(tuple(fused.Leaves([o[0] for o in outputs]).form))
        compute(outputs, *where)

    monkeypatch.setattr(gpu, "whole", with_steps)
    monkeypatch.setattr(gpu, "compute", alone)
    expected, got = (ps.run(method, problem, rounds=60, seed=3, every=60, engine=e) for e in ("reference", "gpu"))
    assert max(map(len, forms)) < 160
    assert len(forms) <= 12
    assert close(got.x, expected.x, 1e-12)
    for key, v in expected.server.items():
        assert close(got.server[key], v, 1e-12), key


# -- the draws of the CUDA source, compiled for the processor ------------------------------------------------------------
ONE_THREAD = r"""
#include <cstdint>
typedef uint32_t u32;
typedef uint64_t u64;
#define __device__ static
#define __forceinline__
#define DRAWG 0
static void __threadfence_block() {}
static u32 atomicCAS(u32* p, u32 a, u32 b) { u32 old = *p; if (old == a) *p = b; return old; }
static u32 atomicMin(u32* p, u32 v) { u32 old = *p; if (v < old) *p = v; return old; }
"""
ALL_DRAWS = r"""
extern "C" void draw(u32 m, u32 n, u32 size, u32 step, u32 round, u32 client, u64 seed, u32* room, const u32* order,
                     u32* rows, u32* drawn) {
    // the table keeps what earlier steps left, and is made empty every seventh step
    Draws d = {room + size, room, nullptr, size - 1, m, n, 8, 7, step % 7};
    if (d.mark == 0)
        for (u32 s = 0; s < size; ++s) d.table[s] = NOBODY;
    for (u32 k = 0; k < n; ++k) draw_all(d, step, round, client, seed, order[k], n);  // one at a time, in any order
    for (u32 i = 0; i < n; ++i) rows[i] = row_of(d, i);
    for (u32 v = 0; v < m; ++v) drawn[v] = is_drawn(d, v);
}
"""


@pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler")
def test_draws_are_resolved_as_floyds_algorithm_does(tmp_path: Any) -> None:
    """Whatever the order in which threads enter their draws into the table."""
    philox = cuda.SOURCE[cuda.SOURCE.index("__device__ void philox(") : cuda.SOURCE.index("// Floyd's algorithm")]
    draws_ = cuda.SOURCE[cuda.SOURCE.index("#define NOBODY") : cuda.SOURCE.index("// ---- means")]
    (tmp_path / "draws.cpp").write_text(ONE_THREAD + philox + draws_ + ALL_DRAWS)
    library = tmp_path / "draws.so"
    subprocess.run(["g++", "-shared", "-fPIC", "-o", library, tmp_path / "draws.cpp"], check=True)
    draw = ctypes.CDLL(str(library)).draw
    rng = np.random.Generator(np.random.Philox(0))
    size = 512
    room = np.zeros(size + 150, np.uint32)
    for step in range(200):
        m = int(rng.integers(1, 300))
        n = int(rng.integers(0, m // 2 + 1))
        rows, drawn = np.zeros(n, np.uint32), np.zeros(m, np.uint32)
        order = rng.permutation(n).astype(np.uint32)
        numbers = [ctypes.c_uint32(v) for v in (m, n, size, step, 5, 3)]
        draw(
            *numbers, ctypes.c_uint64(2**40 + 3), *(ctypes.c_void_p(v.ctypes.data) for v in (room, order, rows, drawn))
        )
        expected = randomness._subset(2**40 + 3, 3, 5, step, m, n)
        assert np.array_equal(rows, expected)
        assert np.array_equal(np.flatnonzero(drawn), np.sort(expected))


# -- kernels against plain numpy ---------------------------------------------------------------------------------------
@on_gpu
@quick
@given(
    st.integers(0, 10**6), st.integers(1, 9), st.integers(1, 60), st.integers(1, 40),
    st.sampled_from(["logistic", "squared", "softmax"]), st.booleans(), st.booleans(), st.floats(0.02, 1.0),
)  # fmt: skip
def test_any_shape(seed: int, n: int, rows: int, d: int, loss: str, sparse: bool, unit: bool, density: float) -> None:
    problem = random_problem(seed, n, rows, d, loss, density, sparse=sparse, unit=unit)
    given_ = start(problem, seed)
    got, _ = on_card(problem, *given_)
    assert close(got, by_hand(problem, *given_), 1e-11)


@on_gpu
@pytest.mark.parametrize("how", [{"blocks": 1}, {"blocks": 3}, {"blocks": 8}, {"blocks": 7, "grid": True}])
@pytest.mark.parametrize("loss", ["logistic", "squared", "softmax"])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_any_number_of_blocks(how: dict[str, Any], loss: str, dtype: str) -> None:
    problem = random_problem(5, 6, 300, 33, loss, dtype=dtype)
    given_ = start(problem, 5)
    got, local = on_card(problem, *given_, **how)
    assert how["blocks"] == local.G
    assert close(got, by_hand(problem, *given_), 1e-11 if dtype == "float64" else 2e-4)
    again, _ = on_card(problem, *given_, **how)
    assert got.tobytes() == again.tobytes()


@on_gpu
@pytest.mark.parametrize("batch", [None, 20])
@pytest.mark.parametrize("loss", ["logistic", "softmax"])
@pytest.mark.parametrize("shared", [1500, 6000, 12000])
def test_what_does_not_fit_is_streamed(monkeypatch: Any, batch: int | None, loss: str, shared: int) -> None:
    card = Card.here()
    problem = random_problem(6, 3, 400, 90, loss)
    problem = replace(problem, clients=[f for f in problem.clients if f.N >= 20], weights=None, batch=batch)  # type: ignore[attr-defined]
    given_ = start(problem, 6)
    expected = by_hand(problem, *given_)
    monkeypatch.setattr(Card, "here", staticmethod(lambda: replace(card, shared=shared + 64, clusters=False)))
    if batch and shared > 1500:
        monkeypatch.setattr("proxskip.engines.gpu.launch.ROWS_PER_CHUNK", 32)
    if batch and shared == 1500:
        monkeypatch.setattr("proxskip.engines.gpu.launch.ROWS_PER_CHUNK", 8)
    got, local = on_card(problem, *given_)
    assert local.grid or shared > 1500
    assert close(got, expected, 1e-11)


@on_gpu
@pytest.mark.parametrize("loss", ["logistic", "squared", "softmax"])
@pytest.mark.parametrize("batch", [1, 7, 64, 700])
@pytest.mark.parametrize("sparse", [True, False])
def test_minibatches_are_the_same_rows(loss: str, batch: int, sparse: bool) -> None:
    problem = random_problem(7, 5, 2000, 12, loss, sparse=sparse)
    problem = replace(problem, clients=[f for f in problem.clients if f.N >= 700], weights=None, batch=batch)  # type: ignore[attr-defined]
    assert problem.n > 1
    given_ = start(problem, 7)
    got, _ = on_card(problem, *given_, seed=2**40 + 3, round=9)
    assert close(got, by_hand(problem, *given_, seed=2**40 + 3, round=9), 1e-11)


@on_gpu
@pytest.mark.parametrize("how", [{"blocks": 1}, {"blocks": 3}, {"blocks": 2, "grid": True}])
@pytest.mark.parametrize("batch", [5, 40, 150, 600])
@pytest.mark.parametrize(("marks", "places"), [(2, 2**13), (2**31 - 1, 1)])
def test_draws_are_the_same_whatever_their_table(
    monkeypatch: Any, how: dict[str, Any], batch: int, marks: int, places: int
) -> None:
    """Emptied every other step, or with collisions; rows longer than what is staged of them."""
    monkeypatch.setattr("proxskip.engines.gpu.launch.MOST_MARKS", marks)
    monkeypatch.setattr("proxskip.engines.gpu.launch.MOST_PLACES", places)
    small = batch < 150
    problem = random_problem(9, 9, 1500, 90, density=0.7 if small else 0.05)
    problem = replace(problem, clients=[f for f in problem.clients if f.N >= 700], weights=None, batch=batch)  # type: ignore[attr-defined]
    x, h, gamma, K = start(problem, 9)
    got, local = on_card(problem, x, h, gamma, K + 3, seed=11, round=4, **how)
    assert local.by_rows == small
    assert local.macros["STAGED"] == (small and not local.grid)
    assert close(got, by_hand(problem, x, h, gamma, K + 3, seed=11, round=4), 1e-11)


@on_gpu
@pytest.mark.parametrize("how", [{"blocks": 1}, {"blocks": 2}, {"blocks": 3, "grid": True}])
@pytest.mark.parametrize("loss", ["logistic", "softmax"])
def test_minibatch_steps_are_numbered_on_from_step0(loss: str, how: dict[str, Any]) -> None:
    problem = random_problem(4, 5, 50, 20, loss)
    problem = replace(problem, batch=min(f.N for f in problem.clients))  # type: ignore[attr-defined]
    x, h, gamma, first = start(problem, 4)
    zero, more = np.zeros(problem.n), np.arange(problem.n) % 3
    at_once = from_step(problem, x, h, gamma, first + more, zero, **how)
    halfway = from_step(problem, x, h, gamma, first, zero, **how)
    assert from_step(problem, halfway, h, gamma, more, first, **how).tobytes() == at_once.tobytes()


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
def test_many_small_clients_and_one_row_each() -> None:
    for rows in (1, 12):
        problem = random_problem(9, 700, rows, 20)
        given_ = start(problem, 9)
        got, local = on_card(problem, *given_)
        assert local.by_rows
        assert close(got, by_hand(problem, *given_), 1e-11)


@on_gpu
def test_wide_data() -> None:
    rng = np.random.Generator(np.random.Philox(4))
    A = scipy.sparse.random(300, 70_000, 1e-3, random_state=rng, format="csr")
    problem = ps.split(ps.Logistic(A, np.arange(300) % 2, l2=0.1), clients=3)
    for p in (problem, problem.with_batch(20)):
        given_ = start(p, 4)
        got, local = on_card(p, *given_)
        assert local.grid
        assert close(got, by_hand(p, *given_), 1e-11)


# -- the engine --------------------------------------------------------------------------------------------------------
@on_gpu
@pytest.mark.usefixtures("quiet_steps")
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
@pytest.mark.parametrize("batch", [None, 5])
def test_the_trajectory_of_every_method(row: Row, batch: int | None) -> None:
    if batch and not row.claims("batch"):
        pytest.skip("full gradients only")
    problem = row.rows(sparse=True).with_batch(batch)
    method = row.make(problem)
    found = [
        ps.run(method, problem, rounds=12, cohort=row.cohort, seed=3, engine=e) for e in ("reference", "gpu", "gpu")
    ]
    expected, got, again = found
    assert close(got.x, expected.x, 1e-9)
    assert got.x.tobytes() == again.x.tobytes()
    for name, v in expected.memory.items():
        assert close(got.memory[name], v, 1e-9) or np.abs(v).max() < 1e-12
    for column in ("floats_up", "floats_down", "exchanges", "grad_evals", "iterations", "local_steps"):
        assert np.array_equal(got.trace[column], expected.trace[column]), column


@on_gpu
def test_an_oracle_of_any_kind() -> None:
    problem = ps.Problem(ps.random_quadratics(5, 7, seed=2), weights=[1, 2, 3, 4, 5])
    method = ps.Scaffnew.theory(problem)
    expected, got = (ps.run(method, problem, rounds=20, seed=1, engine=e) for e in ("reference", "gpu"))
    assert close(got.x, expected.x, 1e-10)


def test_minibatches_of_an_oracle_of_any_kind_are_refused() -> None:
    """The engine has only its full gradients: it would run another method and count it as minibatches."""

    class Rows:
        L, mu, d, N = 1.0, 1.0, 2, 4

        def value(self, x: Any) -> float:
            return float(0.5 * x @ x)

        def gradient(self, x: Any) -> Any:
            return x

        def minibatch_gradient(self, x: Any, rows: Any) -> Any:
            return x * np.mean(rows)

    engine = object.__new__(gpu.GpuEngine)  # opened without a card
    engine.cupy, engine.blocks, engine.threads = np, None, None
    with pytest.raises(InputError, match="minibatches of linear models only"):
        engine.open(ps.Problem([Rows()], batch=2), {}, 0)


@on_gpu
def test_an_oracle_that_does_not_take_cupy_arrays_is_refused_in_words() -> None:
    class Stubborn:
        L, mu, d = 1.0, 1.0, 2

        def value(self, x: Any) -> float:
            return float(0.5 * np.sum(np.asarray(x) ** 2))

        def gradient(self, x: Any) -> Any:
            return np.asarray(x)

    with pytest.raises(InputError, match="does not work on CuPy arrays"):
        ps.run(ps.GD(0.5), ps.Problem([Stubborn()]), rounds=2, engine="gpu")


@on_gpu
@pytest.mark.parametrize("n", [1, 20, 256, 257, 1000])
def test_sums_have_the_bytes_of_the_cpu(n: int) -> None:
    rng = np.random.Generator(np.random.Philox(n))
    engine = gpu.GpuEngine()
    engine.open(ps.Problem(ps.random_quadratics(2, 3)), {}, 0)
    w, U = rng.random(n), rng.standard_normal((n, 301))
    assert engine.fetch(engine.sum(w, engine.cupy.asarray(U))).tobytes() == weighted_sum(w, U).tobytes()


@on_gpu
def test_gossip_has_the_bytes_of_the_cpu() -> None:
    rng = np.random.Generator(np.random.Philox(5))
    engine = gpu.GpuEngine()
    engine.open(ps.Problem(ps.random_quadratics(2, 3)), {}, 0)
    graph, X = ps.graph("erdos-renyi", 12, seed=1), rng.standard_normal((12, 70))
    assert engine.mix(graph, engine.cupy.asarray(X)).get().tobytes() == graph.mix(X).tobytes()


@on_gpu
@pytest.mark.usefixtures("quiet_steps")
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_a_round_is_one_launch(row: Row) -> None:
    if row.name == "s-local-gd-q":
        pytest.skip("its second exchange is drawn")
    assert launches(row, row.rows(sparse=True), rounds=10) == LAUNCHES.get(row.name, 1)


MANY = {
    "a few": (random_problem, (11, 40, 30, 37)),
    "two sums": (random_problem, (12, 300, 9, 37)),
    "three sums": (random_problem, (16, 600, 9, 37)),
    "more than fit at once": (random_problem, (13, 3000, 3, 37)),
    "softmax": (random_problem, (14, 30, 40, 11, "softmax")),
}


@on_gpu
@pytest.mark.usefixtures("quiet_steps")
@pytest.mark.parametrize("name", [*MANY, "wide", "blocks that meet in global memory"])
def test_whole_rounds_of_any_shape(name: str) -> None:
    if name in MANY:
        make, given_ = MANY[name]
        problem = make(*given_)
    elif name == "wide":
        rng = np.random.Generator(np.random.Philox(4))
        A = scipy.sparse.random(300, 70_000, 1e-3, random_state=rng, format="csr")
        problem = ps.split(ps.Logistic(A, np.arange(300) % 2, l2=0.1), clients=3)
    else:
        problem = random_problem(15, 2, 20_000, 60, density=0.9)
        assert LocalSteps(problem, 2).grid
    problem.__dict__["solution"] = None
    L = float(max(f.L for f in problem.clients))
    methods: list[tuple[Any, int | None]] = [(ps.Scaffnew(gamma=0.5 / L, p=0.4), None)]
    if name in ("a few", "more than fit at once"):
        methods += [(ps.Scaffold(gamma=0.1 / L, K=3, eta_g=0.7), None)]
        methods += [(ps.Scaffnew(gamma=0.5 / L, p=0.4, chi=0.5), 2 * problem.n // 3)]
    for method, cohort in methods:
        how: dict[str, Any] = {"rounds": 8, "seed": 1, "cohort": cohort, "every": 8}
        expected = ps.run(method, problem, engine="cpu", **how)
        before = Launches.total
        got = ps.run(method, problem, engine="gpu", **how)
        assert Launches.total - before <= 8 + 2  # and what the two records ask for
        assert close(got.x, expected.x, 1e-11)
        for key, v in expected.memory.items():
            assert close(got.memory[key], v, 1e-9)
        again = ps.run(method, problem, engine="gpu", **(how | {"every": 1}))
        assert got.x.tobytes() == again.x.tobytes()
        assert all(got.memory[key].tobytes() == again.memory[key].tobytes() for key in got.memory)


@on_gpu
@pytest.mark.usefixtures("quiet_steps")
@pytest.mark.parametrize("row", [r for r in METHODS if r.name in GOES_ON], ids=lambda row: row.name)
def test_a_resumed_run_has_the_same_bytes(row: Row, tmp_path: Any) -> None:
    problem = row.rows(sparse=True)
    method = row.make(problem)
    ps.run(method, problem, rounds=7, cohort=row.cohort, seed=3, engine="gpu", out=tmp_path / "a")
    found = ps.resume(tmp_path / "a", problem, rounds=15)
    expected = ps.run(method, problem, rounds=15, cohort=row.cohort, seed=3, engine="gpu")
    assert found.x.tobytes() == expected.x.tobytes()
    assert found.summary()["vectors_down"] == expected.summary()["vectors_down"]


@on_gpu
@pytest.mark.parametrize("batch", [None, 6])
def test_a_sweep_is_the_runs_it_stands_for(batch: int | None) -> None:
    problem = METHODS[0].rows(sparse=True).with_batch(batch)
    L = problem.es_A
    methods = [ps.Scaffnew(gamma=g / L, p=p) for g in (0.5, 1.0) for p in (0.1, 0.5)]
    methods += [ps.LocalGD(gamma=0.1 / L, K=3), ps.FedLin(gamma=0.1 / L, K=4)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UnsafeStepWarning)
        swept, again = (sweep(methods, problem, rounds=15, seeds=[0, 4], engine="gpu") for _ in range(2))
        alone = sweep(methods, problem, rounds=15, seeds=[0, 4], engine="reference")
    assert len(swept) == 12
    for a, b, c in zip(swept, alone, again, strict=True):
        assert close(a.x, b.x, 1e-9)
        assert a.x.tobytes() == c.x.tobytes()
        assert a.trace["iterations"][-1] == b.trace["iterations"][-1]
