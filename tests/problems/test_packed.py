"""Packed clients are the same clients: constants, gradients, fingerprints and runs, byte for byte, and without a loop."""

import cProfile
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import scipy.sparse

import proxskip as ps
from proxskip.engines.cpu.shards import pack
from proxskip.engines.gpu.tiles import ClientRows
from proxskip.problems import accuracy, packed, spectrum
from proxskip.problems.clients import Listed
from proxskip.problems.packed import Packed
from proxskip.results.description import fingerprint, identity
from support.comparing import close
from support.problems import LOSSES
from support.tiers import thinned

OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {}, "weighted": {"row_weights": 1.0}, "intercept": {"intercept": True}, "single": {"dtype": np.float32},
}  # fmt: skip


def model(loss: str = "logistic", form: str = "sparse", N: int = 90, d: int = 7, **options: Any) -> Any:
    rng = np.random.default_rng(5)
    A = np.where(rng.random((N, d)) < 0.5, rng.standard_normal((N, d)), 0.0)
    b = rng.standard_normal(N) if loss == "squared" else rng.integers(0, 3 if loss == "softmax" else 2, N)
    if "row_weights" in options:
        options["row_weights"] = rng.random(N) + 0.1
    return LOSSES[loss](scipy.sparse.csr_matrix(A) if form == "sparse" else A, b, l2=0.05, **options)


def pair(f: Any, n: int, by: Any = "group", **given: Any) -> tuple[ps.Problem, ps.Problem]:
    """The same split with packed clients and with clients one by one; clients of all sizes if they are groups."""
    if by == "group":
        uneven = np.resize(np.repeat(np.arange(n), 3 + 2 * (np.arange(n) % 6)), f.N)
        given["groups"] = np.random.default_rng(7).permutation(uneven)
    packed = ps.split(f, None if by == "group" else n, by=by, **given)
    assert isinstance(packed.clients, Packed)
    return packed, replace(packed, clients=Listed(packed.clients))


def again(problem: ps.Problem) -> ps.Problem:
    """The same clients, packed from a list of models."""
    return replace(problem, clients=[f.reweighted(f.s) for f in problem.clients])


def same(a: Any, b: Any) -> bool:
    return np.asarray(a).tobytes() == np.asarray(b).tobytes()


@pytest.mark.parametrize("options", thinned(OPTIONS))
@pytest.mark.parametrize("form", ["sparse", "dense"])
@pytest.mark.parametrize("loss", LOSSES)
def test_packed_clients_have_the_bytes_of_clients_one_by_one(loss: str, form: str, options: str) -> None:
    f = model(loss, form, **OPTIONS[options])
    # some clients with fewer rows than features, some with more
    a, b = pair(f, 12, weights="equal" if options == "weighted" else "rows")
    assert min(a.sizes or []) < 7 < max(a.sizes or [])
    x = np.random.default_rng(1).standard_normal(a.d)
    for name in ("weights", "N", "sizes", "rows_each", "by_client"):
        assert same(getattr(a, name), getattr(b, name)), name
    for name in ("L_i", "mu_i", "L_max", "L_average"):
        assert np.allclose(getattr(a, name), getattr(b, name), rtol=1e-12, atol=1e-14), name
    for p, q in ((a.value(x), b.value(x)), (a.gradient(x), b.gradient(x))):
        assert same(p, q)
    # BLAS may add up dense rows in another order where they begin at another place in memory
    tol = 0.0 if form == "sparse" else 1e-6 if options == "single" else 1e-13
    assert close(a.client_gradients(x), b.client_gradients(x), tol)
    assert close(a.client_gradients(x)[3:5], np.concatenate([G for _, G in a.gradient_blocks(x)])[3:5], tol)
    assert fingerprint(a) == fingerprint(b)
    assert identity(a) == identity(b)
    assert repr(a) == repr(b)
    assert [v.A.shape[0] for v in a.clients] == b.sizes  # type: ignore[attr-defined]
    one, two = a.with_batch(2), b.with_batch(2)
    assert np.allclose(one.L_batch_i, two.L_batch_i, rtol=1e-12)
    rtol = 1e-6 if options == "single" else 1e-12  # softmax adds up in single precision where a client is alone
    assert np.allclose(a.clients.spreads(x), b.clients.spreads(x), rtol=rtol)  # type: ignore[attr-defined]
    assert np.allclose(one.es_A_i, two.es_A_i, rtol=1e-12)
    assert np.isclose(one.es_C, two.es_C, rtol=100 * rtol, equal_nan=True)


def test_what_blocks_are_taken_changes_no_byte(monkeypatch: pytest.MonkeyPatch) -> None:
    f = model("squared")
    a, b = pair(f, 12)
    monkeypatch.setattr(packed, "NUMBERS_AT_ONCE", 30)
    monkeypatch.setattr(spectrum, "NUMBERS_AT_ONCE", 60)
    x = np.ones(a.d)
    assert np.allclose(a.L_i, b.L_i, rtol=1e-12)
    assert np.allclose(a.mu_i, b.mu_i, rtol=1e-12)
    assert same(a.client_gradients(x), b.client_gradients(x))
    assert fingerprint(a) == fingerprint(b)


@pytest.mark.parametrize("batch", [None, 2])
@pytest.mark.parametrize("engine", ["cpu", "reference"])
@pytest.mark.parametrize("form", ["sparse", "dense"])
def test_runs_have_the_same_bytes(form: str, engine: str, batch: int | None) -> None:
    packed, listed = pair(model("logistic", form), 9, batch=batch)
    problems = packed, listed if engine == "reference" else again(packed)
    one, two = (ps.run(ps.Scaffnew(gamma=0.1, p=0.3), p, rounds=6, engine=engine, seed=2) for p in problems)
    assert same(one.x, two.x)
    assert same(one.h, two.h)
    measured = [c for c in two.trace.columns if "seconds" not in c and c != "lyapunov_bound"]
    assert all(same(one.trace[c], two.trace[c]) for c in measured)
    # it has L and mu, which are eigenvalues that LAPACK rounds differently in another layout
    assert np.allclose(one.trace["lyapunov_bound"], two.trace["lyapunov_bound"], rtol=1e-12)


@pytest.mark.parametrize(("d", "batch"), [(2, None), (7, None), (7, 2)])
def test_the_engine_packs_the_same_arrays(d: int, batch: int | None) -> None:
    a, _ = pair(model(d=d, N=300), 9, batch=batch)
    b = again(a)
    assert a.clients.entries().tolist() == [f.A.nnz for f in b.clients]  # type: ignore[attr-defined]
    rows, other_rows = (vars(ClientRows.of(p.clients.store, p.rows_each)) for p in (a, b))  # type: ignore[attr-defined]
    assert abs(rows.pop("A") - other_rows.pop("A")).nnz == 0
    one, two = pack(a), pack(b)
    assert type(one) is type(two)
    for mine, theirs in ((rows, other_rows), (vars(one), vars(two))):
        for name, v in theirs.items():
            parts = zip(mine[name], v, strict=True) if isinstance(v, tuple) else [(mine[name], v)]
            assert all(same(p, q) for p, q in parts), name


def test_a_client_is_a_view_that_is_made_when_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = pair(model(), 9)
    clients: Any = a.clients
    assert len(clients) == 9
    assert clients[3] is clients[3]
    assert np.shares_memory(clients[3].b, clients.store.b)
    assert same(clients[-1].b, b.clients[8].b)  # type: ignore[attr-defined]
    for part in (slice(2, 5), slice(None, None, 4), slice(2, 2)):
        assert [f.N for f in clients[part]] == [f.N for f in b.clients][part]  # type: ignore[attr-defined]
    assert isinstance(clients[2:5], Packed)
    assert same(ps.Problem(clients[2:5]).L_i, a.L_i[2:5])
    with pytest.raises(IndexError):
        clients[9]
    monkeypatch.setattr(packed, "VIEWS_KEPT", 2)
    assert [f.L for f in clients] == pytest.approx(a.L_i.tolist(), rel=1e-13)
    assert len(clients._views) <= 9


def test_no_python_function_is_called_for_each_client() -> None:
    n, d = 1100, 6
    A = scipy.sparse.random_array((2 * n, d), density=0.5, rng=np.random.default_rng(0), format="csr")
    f = ps.Logistic(A, np.arange(2 * n) % 2, 0.1)

    def everything() -> None:
        problem = ps.split(f, n, by="iid")
        assert problem.L_max >= problem.mu  # type: ignore[operator]
        repr(problem)
        identity(problem)
        x = np.zeros(d)
        assert problem.value(x) >= problem.solution.f
        problem.residual(x, 1.0)
        sum(len(G) for _, G in problem.gradient_blocks(x))
        ps.Scaffnew.theory(problem)
        ps.Tamuna.theory(problem.with_batch(1), cohort=30)
        assert problem.own_start() is None
        pack(problem)

    everything()  # compiles
    profile = cProfile.Profile(builtins=False)
    profile.runcall(everything)
    assert max(entry.callcount for entry in profile.getstats()) < n / 2


@pytest.mark.parametrize("form", ["sparse", "dense"])
def test_many_clients_with_an_intercept_get_a_bound(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    f = model("logistic", form, N=40, d=11, intercept=True)
    a, b = pair(f, 10)
    monkeypatch.setattr(spectrum, "MAX_DENSE_WORK", 0.0)
    assert (b.L_i <= a.L_i * (1 + 1e-12)).all()
    assert (a.L_i <= (b.L_i + 0.05) * (1 + 1e-12)).all()  # lambda is 0.05
    squares, one_by_one = pair(model("squared", form, N=40, d=11, intercept=True), 10)
    assert (squares.mu_i <= one_by_one.mu_i + 1e-15).all()  # type: ignore[operator]


def test_a_large_gram_matrix_is_the_small_one(monkeypatch: pytest.MonkeyPatch) -> None:
    f = model(N=200, d=30)
    expected = spectrum.gram(f.A, f.s)
    monkeypatch.setattr(spectrum, "MAX_SPARSE_PRODUCT", 0)
    found = spectrum.gram(f.A, f.s)
    assert same(found, found.T)
    assert np.allclose(found, expected, rtol=1e-13, atol=1e-16)
    monkeypatch.setattr(spectrum, "available_cores", lambda: 1)
    assert same(spectrum.gram(f.A, f.s), found)


def test_solutions_and_their_gaps_agree() -> None:
    a, b = pair(model(N=300), 70, "iid")
    assert same(a.solution.x, b.solution.x)
    assert same(a.solution.h, b.solution.h)
    x = a.solution.x + 0.1
    one, two = accuracy.gap(a, x), accuracy.gap(b, x)
    assert abs(one.value - two.value) <= one.error + two.error
    assert abs(one.value - (a.value(x) - a.solution.f)) <= one.error + 1e-12
    assert accuracy.residual(a, x).most >= np.linalg.norm(a.gradient(x))


def test_a_problem_of_packed_clients_alone_knows_their_sum() -> None:
    a, b = pair(model("logistic", "sparse"), 9)
    alone, listed = ps.Problem(a.clients, a.weights), ps.Problem(Listed(b.clients), b.weights)
    x = np.ones(a.d)
    assert np.isclose(alone.whole.value(x), listed.value(x), rtol=1e-13)
    assert np.isclose(alone.L_average, ps.Problem(list(b.clients), b.weights).L_average, rtol=1e-12)
    assert alone.L_average <= listed.L_average  # which is a bound
    with pytest.raises(ps.InputError, match="unknowns"):
        ps.Problem(a.clients, d=3)
