"""Poisson regression and Cox's model: values, gradients and Hessians against a plain loop, splits, and refusals."""

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse
from scipy.special import logsumexp

import proxskip as ps
from proxskip.methods.built_in import BUILT_IN
from proxskip.methods.registry import named
from proxskip.problems import oracles, sharded
from proxskip.problems.poisson import LARGEST
from proxskip.results import description
from proxskip.types import Array, InputError

N, D = 60, 4


def covariates(seed: int = 0, rows: int = N) -> Array:
    rng = np.random.Generator(np.random.Philox(seed))
    return rng.standard_normal((rows, D))


def poisson(seed: int = 0, sparse: bool = False, **more: Any) -> Any:
    rng = np.random.Generator(np.random.Philox([seed, 1]))
    A = covariates(seed)
    A = scipy.sparse.csr_matrix(A * (rng.random(A.shape) < 0.7)) if sparse else A
    return ps.Poisson(A, rng.poisson(3.0, N), **more)


def cox(seed: int = 0, times: int = 12, **more: Any) -> Any:
    """With many tied times, events and censored rows at the same time among them."""
    rng = np.random.Generator(np.random.Philox([seed, 2]))
    return ps.Cox(covariates(seed), rng.integers(1, times, N), rng.random(N) < 0.7, **more)


def partial_likelihood(f: Any, x: Array) -> float:
    """-log of the partial likelihood, event by event, as it is written in a textbook."""
    z, total = f.A @ x, 0.0
    for s, t in product(set(f.strata.tolist()), set(f.time[f.event].tolist())):
        risk = (f.strata == s) & (f.time >= t)
        tied = (f.strata == s) & (f.time == t) & f.event
        m = int(tied.sum())
        for place in range(m):
            share = place / m if f.ties == "efron" else 0.0
            total += float(logsumexp(z[risk], b=1.0 - share * tied[risk]))
        total -= float(z[tied].sum())
    return total


def differences(of: Any, x: Array, h: float = 1e-5) -> Array:
    """The derivatives of a function in all coordinates, by central differences."""
    return np.array([(of(x + h * e) - of(x - h * e)) / (2 * h) for e in np.eye(len(x))])


EVERY = [
    pytest.param(lambda: poisson(l2=0.1), id="poisson"),
    pytest.param(lambda: poisson(offset=np.linspace(-1, 2, N), intercept=True, l2=0.1), id="poisson-offset"),
    pytest.param(lambda: poisson(sparse=True, row_weights=np.arange(1.0, N + 1)), id="poisson-sparse"),
    pytest.param(lambda: cox(), id="efron"),
    pytest.param(lambda: cox(ties="breslow", l2=0.1), id="breslow"),
    pytest.param(lambda: cox(strata=np.arange(N) % 3, l2=0.1), id="strata"),
    pytest.param(lambda: cox(times=2), id="one time"),
]


@pytest.mark.parametrize("make", EVERY)
def test_gradient_and_hessian_are_the_derivatives(make: Any) -> None:
    f = make()
    for scale in (0.0, 0.3):
        x = scale * np.random.Generator(np.random.Philox(9)).standard_normal(f.d)
        assert np.allclose(f.gradient(x), differences(f.value, x), rtol=0, atol=1e-7)
        H = f.hessian(x)
        assert np.allclose(H, differences(f.gradient, x), rtol=0, atol=1e-7)
        assert np.array_equal(H, H.T) or np.allclose(H, H.T, rtol=0, atol=1e-15)
        v = np.cos(np.arange(f.d))
        assert np.allclose(f.hessp(x, v), H @ v, rtol=0, atol=1e-12)


def test_poisson_is_the_sum_over_its_rows() -> None:
    offset = np.linspace(-1, 2, N)
    f, x = poisson(offset=offset, l2=0.1), np.array([0.3, -0.2, 0.1, 0.5])
    z = f.A @ x + offset
    plain = sum(np.exp(z[j]) - f.b[j] * z[j] for j in range(N)) / N + 0.05 * float(x @ x)
    assert f.value(x) == pytest.approx(plain, rel=1e-14)
    every = np.arange(N)
    assert np.allclose(f.minibatch_gradient(x, every), f.gradient(x), rtol=0, atol=1e-14)
    halves = [f.minibatch_gradient(x, rows) for rows in (every[::2], every[1::2])]
    assert np.allclose(np.mean(halves, axis=0), f.gradient(x), rtol=0, atol=1e-14)
    even = f.minibatch_gradient(x, every[::2])
    assert np.allclose(even, f.take(every[::2]).gradient(x), rtol=0, atol=1e-14)


def test_poisson_stays_finite_and_convex_at_any_margin() -> None:
    f = ps.Poisson(np.ones((1, 1)), [7])
    for z in (1e3, 1e6, 1e12, -1e12):
        x = np.array([z])
        assert np.isfinite([f.value(x), *f.gradient(x), *f.hessian(x).ravel()]).all()
    around = [np.array([LARGEST + step]) for step in (-1e-9, 1e-9)]
    for quantity in (f.value, f.gradient, f.hessian):
        below, above = (np.ravel(quantity(x))[0] for x in around)
        assert above == pytest.approx(below, rel=1e-7)


@pytest.mark.parametrize("ties", ["efron", "breslow"])
@pytest.mark.parametrize("scale", [1.0, 30.0, 1000.0])
def test_cox_is_the_textbook_sum_at_any_margin(ties: Any, scale: float) -> None:
    f = cox(seed=3, ties=ties, strata=np.arange(N) % 2)
    x = scale * np.array([0.3, -0.7, 1.1, 0.2])
    expected = partial_likelihood(f, x) / N
    assert f.value(x) == pytest.approx(expected, rel=1e-12)
    H = f.hessian(x)
    assert np.isfinite(H).all()
    assert np.isfinite(f.gradient(x)).all()
    assert np.linalg.eigvalsh(H)[0] >= -1e-12 * scale


def test_cox_does_not_lose_digits_to_a_shift_of_the_covariates() -> None:
    f = cox()
    moved = ps.Cox(f.A + 1e6, f.time, f.event)
    x = np.array([0.3, -0.7, 1.1, 0.2])
    assert np.allclose(moved.hessian(x), f.hessian(x), rtol=1e-9, atol=0)


def test_cox_is_the_same_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    f, x = cox(), np.array([0.3, -0.7, 1.1, 0.2])
    at_once = f.hessian(x)
    monkeypatch.setattr("proxskip.problems.cox.ROWS_AT_ONCE", 7)
    monkeypatch.setattr("proxskip.problems.cox.SPREAD", 0.1)
    assert np.allclose(f.hessian(x), at_once, rtol=0, atol=1e-14)


def test_L_of_cox_is_a_bound() -> None:
    f = cox(strata=np.arange(N) % 2, l2=0.1)
    rng = np.random.Generator(np.random.Philox(4))
    steepest = max(np.linalg.eigvalsh(f.hessian(s * rng.standard_normal(D)))[-1] for s in (0.0, 1.0, 10.0, 100.0))
    assert steepest <= f.L


def test_a_cox_client_without_events_is_right_data() -> None:
    f = ps.Cox(covariates(), np.arange(N), np.zeros(N), l2=0.1)
    x = np.ones(D)
    assert f.value(x) == 0.05 * D
    assert f.L == 0.1
    assert np.array_equal(f.gradient(x), 0.1 * x)
    assert np.array_equal(f.hessian(x), 0.1 * np.eye(D))


@pytest.mark.parametrize("weights", ["rows", "equal"])
def test_the_sites_of_cox_add_up_to_the_stratified_fit(weights: Any) -> None:
    f = cox(l2=0.1)
    site = np.array(["north", "south", "east"])[np.random.Generator(np.random.Philox(6)).integers(0, 3, N)]
    problem = ps.split(f, by="group", groups=site, weights=weights)
    assert problem.n == 3
    assert problem.N == N
    assert [client.N for client in problem.clients] == [int(np.sum(site == s)) for s in np.unique(site)]
    x = np.array([0.3, -0.7, 1.1, 0.2])
    pooled = ps.Cox(f.A, f.time, f.event, strata=site, l2=0.1)
    if weights == "rows":
        assert problem.smooth_value(x) == pytest.approx(pooled.value(x), rel=1e-13)
        assert np.allclose(problem.gradient(x), pooled.gradient(x), rtol=0, atol=1e-14)
    assert problem.whole.value(x) == pytest.approx(problem.smooth_value(x), rel=1e-13)
    assert np.allclose(problem.whole.gradient(x), problem.gradient(x), rtol=0, atol=1e-14)
    assert problem.solution is not None
    assert problem.solution.certificate < 1e-12


@pytest.mark.parametrize("kind", ["poisson", "cox"])
def test_a_model_of_each_file_is_the_split_by_site(kind: str, tmp_path: Path) -> None:
    """Files of different lengths, read with pandas where columns go by name."""
    pandas = pytest.importorskip("pandas")
    rng = np.random.Generator(np.random.Philox(7))
    frame = pandas.DataFrame(covariates(), columns=["age", "dose", "sex", "bmi"])
    frame = frame.assign(weeks=rng.integers(1, 9, N), died=(rng.random(N) < 0.5).astype(int))
    site = np.repeat([0, 1, 2], [30, 20, 10])

    def model(rows: Any) -> Any:
        return ps.Cox(rows, time="weeks", event="died") if kind == "cox" else ps.Poisson(rows, "weeks", intercept=True)

    for k in range(3):
        frame[site == k].to_csv(tmp_path / f"{k}.csv", index=False)
    clients = [model(pandas.read_csv(tmp_path / f"{k}.csv")) for k in range(3)]
    apart = ps.Problem(clients, weights=[f.N for f in clients])
    together = ps.split(model(frame), by="group", groups=site)
    one, two = (ps.run("newton", p, tol=1e-11, rounds=30) for p in (apart, together))
    assert one.inference(apart).names == two.inference(together).names == clients[0].columns
    np.testing.assert_allclose(one.inference(apart).covariance, two.inference(together).covariance, rtol=1e-9)


@pytest.mark.parametrize("kind", ["poisson", "cox"])
@pytest.mark.parametrize(
    ("columns", "sentence"),
    [
        (["dose", "age"], "client 2 has the columns dose, age.*; client 1 has age, dose.*; give every client the same"),
        (["age", "bmi"], r"client 2 has the columns \.\.\., bmi.* and lacks dose; client 1 has \.\.\., dose"),
        (["age"], r"client 2 has [12] unknowns, not [23] \(client 2 has the columns .* and lacks dose; client 1 has"),
    ],
)
def test_models_of_files_whose_columns_differ_are_refused(kind: str, columns: list[str], sentence: str) -> None:
    """In names, order or number; a model of an array has no names to compare, wherever it stands."""
    pandas = pytest.importorskip("pandas")

    def model(names: list[str] | None) -> Any:
        rows = pandas.DataFrame(covariates()[:, : len(names or ["", ""])], columns=names)
        weeks, died = np.arange(1, N + 1), np.arange(N) % 2
        A = rows if names else rows.to_numpy()
        return ps.Cox(A, weeks, died) if kind == "cox" else ps.Poisson(A, weeks, intercept=True)

    unnamed, named = model(None), model(["age", "dose"])
    assert ps.Problem([unnamed, named, model(["age", "dose"]), unnamed]).n == 4
    clients = [unnamed, named, model(columns)]
    elsewhere = [sharded.loaded(sharded.Shards(clients.__getitem__, 3), i)[1] for i in range(3)]
    for given in clients, elsewhere:  # here, or as what actors report of the shards that they load
        with pytest.raises(InputError, match=sentence):
            ps.Problem(given)


def test_strata_within_a_client_stay_apart() -> None:
    inner, site = np.arange(N) % 3, np.arange(N) // 20
    f = cox(strata=inner)
    problem = ps.split(f, by="group", groups=site)
    both = ps.Cox(f.A, f.time, f.event, strata=3 * site + inner)
    x = np.array([0.3, -0.7, 1.1, 0.2])
    assert problem.smooth_value(x) == pytest.approx(both.value(x), rel=1e-13)


@pytest.mark.parametrize("clients", [5, 300])
def test_the_sites_of_poisson_add_up_to_the_pooled_fit(clients: int) -> None:
    rng = np.random.Generator(np.random.Philox(8))
    A, offset = covariates(rows=900), rng.random(900)
    f = ps.Poisson(A, rng.poisson(2.0, 900), offset=offset, intercept=True)
    problem = ps.split(f, clients, by="iid")
    x = np.array([0.3, -0.2, 0.1, 0.5, 0.4])
    assert problem.smooth_value(x) == pytest.approx(f.value(x), rel=1e-13)
    mean = problem.weights @ problem.client_gradients(x)
    assert np.allclose(mean, f.gradient(x), rtol=0, atol=1e-13)
    # the offset is part of the data by which a run's folder knows its problem
    other = ps.split(ps.Poisson(A, f.b, offset=offset + 1.0, intercept=True), clients, by="iid")
    assert description.fingerprint(problem) != description.fingerprint(other)
    one_by_one = ps.Problem(list(problem.clients), problem.weights)
    assert description.fingerprint(problem) == description.fingerprint(one_by_one)


def test_every_engine_has_the_poisson_of_reference() -> None:
    problem = ps.split(poisson(sparse=True, offset=np.linspace(0, 1, N)), 4, by="iid", batch=3)
    for batch in (None, 3):
        given = problem.with_batch(batch)
        one, two = (ps.run(ps.Scaffnew(0.02, p=0.2), given, rounds=10, engine=e) for e in ("cpu", "reference"))
        assert np.allclose(one.x, two.x, rtol=1e-12, atol=0)


EVERYWHERE = [m.about.name for m in BUILT_IN if {"clients"} <= m.about.handles and m is not ps.Newton]


@pytest.mark.parametrize("l2", [0.0, 0.1])
@pytest.mark.parametrize("method", EVERYWHERE)
def test_methods_that_need_L_say_that_counts_have_none(method: str, l2: float) -> None:
    for batch in (None, 3):
        problem = ps.split(poisson(l2=l2), 4, by="iid", batch=batch)
        if batch is None or "batch" in named(method).about.handles:
            with pytest.raises(InputError, match="no smoothness constant L: use newton, which needs none, or give g"):
                ps.run(method, problem, rounds=3)
    with pytest.raises(InputError, match="no smoothness constant L"):
        _ = problem.L


class Unknown:
    """A function whose L nobody knows."""

    L_known, mu, d = False, None, 2

    def value(self, x: Array) -> float:
        return 0.5 * float(x @ x)

    def gradient(self, x: Array) -> Array:
        return x


class Unwilling(Unknown):
    @property
    def L(self) -> float:
        raise ValueError("L unknown")


class Wrong(Unknown):
    L = 1.0


@pytest.mark.parametrize("kind", [Unknown, Unwilling, Wrong])
def test_no_step_follows_from_an_L_that_an_oracle_does_not_know(kind: Any) -> None:
    problem = ps.Problem([kind(), kind()])
    for method in ("gd", "scaffnew", "local-gd"):
        with pytest.raises(InputError, match=f"the L of a {kind.__name__} is unknown, so no step .* give gamma"):
            ps.run(method, problem, rounds=3)
    assert ps.run(ps.GD(0.5), problem, tol=1e-6, x0=np.ones(2)).success


def test_gradient_methods_run_with_a_step_that_is_given() -> None:
    problem, curved = (ps.split(poisson(l2=l2), 4, by="iid") for l2 in (0.0, 0.1))
    assert not problem.knows_L
    assert ps.run(ps.GD(gamma=0.05), problem, tol=1e-6).success
    for method in (ps.Accelerated(0.05, beta=0.5), ps.FedLin(0.05, K=3), ps.Scaffnew(0.05)):
        result = ps.run(method, curved, tol=1e-6)
        assert result.success
        assert result.summary["lyapunov_bound"] is None  # no theorem covers the step
    assert ps.run("scaffnew", ps.split(cox(l2=0.1), 3, by="iid"), tol=1e-6).success


def test_a_run_of_counts_with_l2_says_what_is_known_of_the_constants() -> None:
    result = ps.run("newton", ps.split(poisson(l2=0.1), 4, by="iid"), tol=1e-9)
    assert "Poisson loss + lambda/2 |x|^2, lambda = 0.1; L unknown, mu = 0.1\n" in repr(result)
    assert "mu = 0.1" in result._repr_html_()


def test_columns_go_by_their_names() -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(covariates(), columns=["age", "dose", "sex", "bmi"])
    rng = np.random.Generator(np.random.Philox(5))
    outcome = {"weeks": rng.integers(1, 9, N), "died": rng.random(N) < 0.5, "visits": rng.poisson(2.0, N)}
    full = frame.assign(**outcome)

    survival = ps.Cox(full.drop(columns="visits"), time="weeks", event="died")
    assert survival.columns == ("age", "dose", "sex", "bmi")
    x = np.array([0.3, -0.7, 1.1, 0.2])
    assert survival.value(x) == ps.Cox(frame.to_numpy(), outcome["weeks"], outcome["died"]).value(x)

    counts = ps.Poisson(full.drop(columns=["died"]), "visits", offset="weeks", intercept=True)
    assert counts.columns == ("age", "dose", "sex", "bmi", "intercept")
    assert counts.take(np.arange(10)).columns == counts.columns
    plain = ps.Poisson(frame.to_numpy(), outcome["visits"], offset=outcome["weeks"], intercept=True)
    assert counts.value(np.append(x, 0.1)) == plain.value(np.append(x, 0.1))

    assert ps.Logistic(full.drop(columns="visits"), "died").columns == ("age", "dose", "sex", "bmi", "weeks")
    assert ps.LeastSquares(frame.to_numpy(), outcome["weeks"]).columns == ("x1", "x2", "x3", "x4")

    with pytest.raises(InputError, match='time = "months" is no column of the data frame; it has age, dose'):
        ps.Cox(full, time="months", event="died")
    with pytest.raises(InputError, match='the column "site" holds something else than numbers'):
        ps.Poisson(full.assign(site="north"), "visits")
    gaps = full.assign(sex=np.where(np.arange(N) % 5 == 3, np.nan, 1.0))
    for make in (lambda: ps.Poisson(gaps, "visits"), lambda: ps.Cox(gaps, "weeks", "died")):
        with pytest.raises(InputError, match='the column "sex" holds nan in row 3; remove or repair such rows'):
            make()
    twice = full.rename(columns={"bmi": "age"})
    for make in (lambda: ps.Poisson(twice, "visits"), lambda: ps.Cox(twice, "weeks", "died")):
        with pytest.raises(InputError, match='2 columns have the name "age"; give each a name of its own'):
            make()
    with pytest.raises(InputError, match='y = "visits" names a column, but the data are no data frame'):
        ps.Poisson(frame.to_numpy(), "visits")


REFUSED = {
    "counts cannot be negative": lambda: ps.Poisson(covariates(), np.arange(-1, N - 1)),
    "offset has shape": lambda: poisson(offset=np.zeros(3)),
    "offset of row 1 is nan": lambda: poisson(offset=np.where(np.arange(N) == 1, np.nan, 0.0)),
    "times cannot be negative": lambda: ps.Cox(covariates(), -np.arange(N), np.ones(N)),
    "time of row 3 is nan": lambda: ps.Cox(covariates(), np.where(np.arange(N) == 3, np.nan, 1.0), np.ones(N)),
    "event = 2 is neither 0 nor 1": lambda: ps.Cox(covariates(), np.arange(N), 2 * (np.arange(N) == 3)),
    "event has shape": lambda: ps.Cox(covariates(), np.arange(N), np.ones(3)),
    'ties = "exact" is not known': lambda: cox(ties="exact"),
    "strata has shape": lambda: cox(strata=np.zeros(3)),
    "strata has missing or mixed values": lambda: cox(strata=[None, *range(N - 1)]),
    "l2 = -1 must be a nonnegative number": lambda: cox(l2=-1),
    "minibatches need linear models": lambda: ps.split(cox(), 3, by="iid", batch=2),
    "A is an operator without rows": lambda: ps.Poisson(scipy.sparse.linalg.aslinearoperator(covariates()), np.ones(N)),
}


@pytest.mark.parametrize("sentence", REFUSED)
def test_wrong_data_are_refused(sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        REFUSED[sentence]()


def test_they_are_oracles_with_a_hessian() -> None:
    assert all(oracles.is_oracle(f) and oracles.has_hessian(f) for f in (poisson(), cox()))
