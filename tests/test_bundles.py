"""Minibatches in bundles of rows: what they are, their constants by enumeration, and the same steps on every engine."""

from __future__ import annotations

import itertools
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse
from hypothesis import given, settings
from hypothesis import strategies as st

import proxskip as ps
from conftest import ON_CARD, TORCH, close, draws
from proxskip.engines.cpu import shards
from proxskip.engines.cpu.drawing import Drawing
from proxskip.engines.cpu.engine import CpuEngine
from proxskip.engines.cpu.minibatches import draw_rows
from proxskip.problems import bundles
from proxskip.problems.packed import Packed
from proxskip.protocol.worker import Worker
from proxskip.randomness import BUNDLES, bundle_share, minibatch
from proxskip.results.description import COUNTED
from proxskip.types import InputError

KINDS: dict[str, Any] = {"logistic": ps.Logistic, "squared": ps.LeastSquares, "softmax": ps.Softmax}
FORMS = [(loss, sparse) for loss in KINDS for sparse in (False, True)]


def model(loss: str, sparse: bool, rows: int = 19, d: int = 5, ones: bool = False, **given: Any) -> Any:
    """Rows of many lengths, some of them without entries."""
    rng = np.random.Generator(np.random.Philox(rows))
    A = rng.standard_normal((rows, d)) * (rng.random((rows, d)) < np.linspace(0.1, 1.0, rows)[:, None])
    A = (A != 0).astype(float) if ones else A
    b = np.arange(rows) % (3 if loss == "softmax" else 2)
    return KINDS[loss](scipy.sparse.csr_matrix(A) if sparse else A, b, l2=0.1, **given)


def problem_of(loss: str, sparse: bool, rows: int, n: int, batch: int, **given: Any) -> ps.Problem:
    return ps.split(model(loss, sparse, rows, **given), n, "contiguous", batch=batch, draw="bundles")


def everything(f: Any, count: int) -> list[np.ndarray]:
    """The rows of all minibatches of so many bundles, by a plain sort."""
    length = np.diff(f.A.indptr) if scipy.sparse.issparse(f.A) else np.zeros(f.N)
    chance = bundles.shuffled(f.N).tolist()
    rows = sorted(range(f.N), key=lambda r: (length[r], chance[r]))
    parts = [np.array(rows[k : k + 8]) for k in range(0, f.N, 8)]
    return [np.concatenate(some) for some in itertools.combinations(parts, count)]


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(("loss", "sparse"), FORMS)
@pytest.mark.parametrize("count", [1, 2])
def test_the_constants_of_bundles_by_enumeration(count: int, loss: str, sparse: bool, weighted: bool) -> None:
    """Unbiased; C is twice the variance at the solution, exactly; and A bounds what it must at other points."""
    weights = 1.0 + 5.0 * (np.arange(19) % 3 == 0) if weighted else None
    f = model(loss, sparse, row_weights=weights)
    problem = ps.Problem([f]).with_batch(8 * count, "bundles")
    found, share = everything(f, count), bundle_share(19, 8 * count)
    assert problem.solution is not None
    rng = np.random.Generator(np.random.Philox(3))
    star = problem.solution.x
    at_star = np.stack([f.minibatch_gradient(star, rows, share) for rows in found])
    assert np.allclose(at_star.mean(axis=0), f.gradient(star), rtol=0, atol=1e-14)
    noise = float(np.mean(np.sum((at_star - at_star.mean(axis=0)) ** 2, axis=1)))
    assert problem.es_C == pytest.approx(2 * noise, rel=1e-9, abs=1e-12)
    assert noise > 1e-6
    for x in 3.0 * rng.standard_normal((20, f.d)):
        g = np.stack([f.minibatch_gradient(x, rows, share) for rows in found])
        assert close(g.mean(axis=0), f.gradient(x), 1e-13)
        bregman = f.value(x) - f.value(star) - f.gradient(star) @ (x - star)
        moved = float(np.mean(np.sum((g - at_star) ** 2, axis=1)))
        assert moved <= 2 * float(problem.L_batch_i[0]) * bregman * (1 + 1e-9)
        whole = float(np.mean(np.sum((g - f.gradient(star)) ** 2, axis=1)))
        assert whole <= (2 * problem.es_A * bregman + problem.es_C) * (1 + 1e-9)


@pytest.mark.parametrize(("loss", "sparse"), FORMS)
def test_the_smoothness_of_a_bundle_is_that_of_its_matrix(loss: str, sparse: bool) -> None:
    """(B/m) sum_r a_r a_r' by its full matrix; for least squares this is the Hessian, and the constant is reached."""
    f = model(loss, sparse)
    A = f.A.toarray() if sparse else f.A
    tops = [np.linalg.eigvalsh(A[rows].T @ A[rows])[-1] for rows in everything(f, 1)]
    assert f.L_bundles == pytest.approx(f.curvature * 3 / 19 * max(tops) + f.l2, rel=1e-12)
    assert f.L_bundles * (1 + 1e-12) >= f.L


@settings(max_examples=draws(200))
@given(seed=st.integers(0, 2**40), step=st.integers(0, 999), m=st.integers(8, 3000), share=st.floats(0.0, 1.0))
def test_compiled_bundles_are_the_plain_ones(seed: int, step: int, m: int, share: float) -> None:
    b = max(8, int(share * m) // 8 * 8)
    plain = minibatch(seed, 5, 6, step, m, b, BUNDLES)
    assert len(set(plain.tolist())) == len(plain) > b - 8
    place = np.random.Generator(np.random.Philox(seed)).permutation(m).astype(np.uint32)
    drawing = Drawing(BUNDLES, b, m, place)
    out, room = drawing.picks(), drawing.room()
    count = draw_rows(seed, 5, 6, step, 0, m, b, out, room)
    assert np.array_equal(np.sort(out[:count]), np.sort(place[plain]))
    assert not room[6].any()  # ready for the next draw
    assert not room[7].any()


def test_bundles_are_drawn_as_rows_are() -> None:
    for step in range(50):
        drawn = np.unique(minibatch(1, 2, 3, step, 77, 24, BUNDLES) // 8)
        assert np.array_equal(drawn, np.sort(minibatch(1, 2, 3, step, 10, 3)))


def both(method: Any, problem: ps.Problem, engine: Any = "cpu", rounds: int = 8, **given: Any) -> list[ps.Result]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return [
            ps.run(method, problem, rounds=rounds, seed=2, engine=e, allow_unsafe_step=True, **given)
            for e in (engine, "reference")
        ]


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize(("rows", "batch"), [(57, 8), (57, 16), (203, 40), (203, 64), (64, 64)])
@pytest.mark.parametrize(("loss", "sparse", "ones"), [(*form, False) for form in FORMS] + [("logistic", True, True)])
def test_steps_are_those_of_the_reference(
    loss: str, sparse: bool, ones: bool, rows: int, batch: int, dtype: str
) -> None:
    """Few and most of the rows, the shorter last bundle among them or not, stored values and none."""
    problem = problem_of(loss, sparse, rows, 3 if rows > 100 else 1, batch, ones=ones, dtype=dtype)
    got, want = both(ps.Scaffnew(0.3 / problem.es_A, 0.3), problem)
    assert close(got.x, want.x, 1e-4 if dtype == "float32" else 1e-10)
    assert {k: got.summary()[k] for k in COUNTED} == {k: want.summary()[k] for k in COUNTED}


def test_every_layout_was_met() -> None:
    """Of the test before: bundles side by side, tiles with weights, and rows."""
    few, most = problem_of("logistic", True, 203, 3, 8), problem_of("logistic", True, 203, 3, 64)
    assert isinstance(packed := shards.pack(few), shards.Rows)
    assert packed.tiles is not None
    assert isinstance(shards.pack(most), shards.Tiles)
    dense = shards.pack(problem_of("logistic", False, 203, 3, 64))
    assert isinstance(dense, shards.Rows)
    assert dense.tiles is None


@pytest.mark.parametrize("sparse", [False, True])
def test_anchored_steps_are_those_of_the_reference(sparse: bool) -> None:
    problem = problem_of("logistic", sparse, 171, 3, 16)
    got, want = both(ps.ScaffnewVR.theory(problem), problem, rounds=20)
    assert close(got.x, want.x, 1e-10)
    assert got.trace["lyapunov"][-1] == pytest.approx(want.trace["lyapunov"][-1], rel=1e-8)


def test_row_weights_and_a_cohort() -> None:
    f = model("logistic", True, 120, row_weights=1.0 + np.arange(120) % 4)
    problem = ps.split(f, 5, "contiguous", batch=16, draw="bundles")
    got, want = both(ps.Scaffnew(0.3 / problem.es_A, 0.3), problem, cohort=2)
    assert close(got.x, want.x, 1e-10)


def test_many_packed_clients_have_the_constants_of_listed_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    f = model("softmax", True, 400)
    order = np.arange(400)
    row0 = np.concatenate([[0], np.cumsum([30, 17, 8, 9, 36] * 4)])
    few = Packed.of(f, order, row0)
    listed = ps.Problem(tuple(few), batch=8, sampling=BUNDLES)
    monkeypatch.setattr("proxskip.problems.packed.NUMBERS_AT_ONCE", 500)  # in several parts
    packed = ps.Problem(few, batch=8, sampling=BUNDLES)
    assert close(packed.es_A_i, listed.es_A_i, 1e-12)
    assert packed.es_C == pytest.approx(listed.es_C, rel=1e-9)
    method = ps.Scaffnew(0.3 / listed.es_A, 0.3)
    a, b = (ps.run(method, problem, rounds=4, seed=1) for problem in (packed, listed))
    assert a.x.tobytes() == b.x.tobytes()


@pytest.mark.parametrize(("sparse", "batch"), [(False, 64), (True, 64), (True, 32), (False, 16)])
def test_threads_and_large_clients_give_the_same_bytes(
    sparse: bool, batch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("proxskip.engines.cpu.shards.ENTRIES_PER_BLOCK", 40)  # several blocks for each client
    monkeypatch.setattr("proxskip.engines.cpu.shards.MAX_ROWS_PER_BLOCK", 32)
    problem = problem_of("logistic", sparse, 210, 2, batch)
    method = ps.Scaffnew(0.3 / problem.es_A, 0.3)
    one, two = (ps.run(method, problem, rounds=5, seed=1, engine=CpuEngine(t)) for t in (1, 3))
    monkeypatch.setattr("proxskip.engines.cpu.engine.ENTRIES_PER_START", 1)
    monkeypatch.setattr(CpuEngine, "_by_blocks", lambda *_: True)
    blocks = ps.run(method, problem, rounds=5, seed=1, engine=CpuEngine(2))
    assert one.x.tobytes() == two.x.tobytes() == blocks.x.tobytes()
    assert close(one.x, ps.run(method, problem, rounds=5, seed=1, engine="reference").x, 1e-10)


@pytest.mark.parametrize("loss", KINDS)
def test_a_client_of_a_federation_takes_the_same_steps(loss: str) -> None:
    problem = problem_of(loss, True, 140, 4, 16)
    x, h = np.full(problem.d, 0.1), np.zeros(problem.d)
    for i in (0, 3):
        f: Any = problem.clients[i]
        worker = Worker(f, i, 5, 16, sampling=BUNDLES)
        got = worker.descend(x, h, 0.1, 7)
        want = x
        for k in range(7):
            rows = f.bundle_order[minibatch(5, i, 0, k, f.N, 16, BUNDLES)]
            want = want - 0.1 * f.minibatch_gradient(want, rows, bundle_share(f.N, 16))
        assert close(got, want, 1e-11)


# -- what is said ------------------------------------------------------------------------------------------------------
def test_bundles_that_cannot_be_are_refused() -> None:
    f = model("logistic", True, 57)
    with pytest.raises(InputError, match=r"batch = 30 is no number of whole bundles of 8 rows"):
        ps.split(f, 1, batch=30, draw="bundles")
    with pytest.raises(InputError, match=r'draw = "pairs" is not known; use "rows" or "bundles"'):
        ps.split(f, 1, batch=8, draw="pairs")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="larger than client 0's 57 rows"):
        ps.split(f, 1, batch=64, draw="bundles")

    class Own:
        N, d, L, mu = 40, 2, 1.0, 1.0

        def value(self, x: Any) -> float:
            return 0.5 * float(x @ x)

        def gradient(self, x: Any) -> Any:
            return x

        def minibatch_gradient(self, x: Any, rows: Any) -> Any:
            return x

    with pytest.raises(InputError, match='"bundles" is for linear models'):
        ps.Problem([Own()]).with_batch(8, "bundles")


@pytest.mark.parametrize("engine", [TORCH, ON_CARD])
def test_engines_that_draw_row_by_row_refuse_bundles(engine: str) -> None:
    problem = problem_of("logistic", True, 57, 1, 8)
    with pytest.raises(InputError, match=f"the {engine} engine draws minibatches row by row"):
        ps.run(ps.GD(0.1), problem, rounds=1, engine=engine)


def test_a_problem_says_how_it_draws() -> None:
    problem = problem_of("logistic", True, 57, 1, 8)
    assert "minibatches of 8 in bundles" in repr(problem)
    assert "bundles" not in repr(problem.with_batch(8, "rows"))
    assert problem.with_batch(16).sampling == BUNDLES
    assert problem.with_batch(None, "bundles").es_C == 0
    rows = problem.with_sampling(2)
    assert rows.es_A == problem.with_batch(8, "rows").es_A != problem.es_A


def test_a_run_goes_on_with_bundles_and_with_nothing_else(tmp_path: Path) -> None:
    problem = problem_of("logistic", True, 171, 3, 16)
    method = ps.Scaffnew(0.3 / problem.es_A, 0.3)
    whole = ps.run(method, problem, rounds=8, seed=4)
    ps.run(method, problem, rounds=3, seed=4, out=tmp_path / "run")
    assert "sampling = 3" in (tmp_path / "run" / "spec.toml").read_text()
    rows = problem.with_batch(16, "rows")
    with pytest.raises(InputError, match="sampling"):
        ps.resume(tmp_path / "run", rows, rounds=8)
    ps.run(method, rows, rounds=3, seed=4, out=tmp_path / "other")
    with pytest.raises(InputError, match="sampling"):
        ps.resume(tmp_path / "other", problem, rounds=8)
    assert ps.resume(tmp_path / "run", problem, rounds=8).x.tobytes() == whole.x.tobytes()
