"""Problems: their constants, gradients, splits and solutions."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import scipy.sparse
import scipy.special
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse.linalg import aslinearoperator

import proxskip as ps
from conftest import draws
from proxskip import randomness
from proxskip.problems import spectrum
from proxskip.problems.split import arrangement

RNG = np.random.Generator(np.random.Philox(7))


def some_data(N=40, d=6, sparse=False, classes=2, seed=0):
    rng = np.random.Generator(np.random.Philox(seed))
    A = rng.standard_normal((N, d))
    if sparse:
        A = np.where(rng.random((N, d)) < 0.4, A, 0.0)
        A[3] = 0.0
    b = rng.integers(0, classes, N)
    b[:classes] = np.arange(classes)
    return (scipy.sparse.csr_matrix(A) if sparse else A), b.astype(float)


def models(**more):
    for sparse in (False, True):
        A, b = some_data(sparse=sparse)
        yield ps.Logistic(A, b, l2=0.1, **more)
        yield ps.LeastSquares(A, b, l2=0.1, **more)
        A, b = some_data(sparse=sparse, classes=4)
        yield ps.Softmax(A, b, l2=0.1, **more)


@pytest.mark.parametrize("intercept", [False, True])
def test_gradients_and_hessians_are_derivatives(intercept):
    for f in models(intercept=intercept):
        x, v = RNG.standard_normal((2, f.d))
        t = 1e-6
        slope = (f.value(x + t * v) - f.value(x - t * v)) / (2 * t)
        assert slope == pytest.approx(f.gradient(x) @ v, rel=1e-7, abs=1e-8)
        bend = (f.gradient(x + t * v) - f.gradient(x - t * v)) / (2 * t)
        assert np.allclose(bend, f.hessp(x, v), rtol=1e-5, atol=1e-7)
        assert np.allclose(f.hessian(x) @ v, f.hessp(x, v), rtol=1e-10)


def test_minibatch_gradients_average_to_the_gradient():
    for f in models():
        x = RNG.standard_normal(f.d)
        mean = np.mean([f.minibatch_gradient(x, np.array([j])) for j in range(f.N)], axis=0)
        assert np.allclose(mean, f.gradient(x), rtol=1e-12, atol=1e-14)
        spread = np.mean([np.sum((f.minibatch_gradient(x, np.array([j])) - f.gradient(x)) ** 2) for j in range(f.N)])
        assert f.gradient_variance(x) == pytest.approx(spread, rel=1e-10)


def test_L_and_mu_bound_every_curvature_and_are_attained():
    for f in models():
        for x in RNG.standard_normal((5, f.d)):
            w = np.linalg.eigvalsh(f.hessian(x))
            assert f.mu - 1e-12 <= w[0]
            assert w[-1] <= f.L * (1 + 1e-12)
    f = next(models())
    assert np.linalg.eigvalsh(f.hessian(np.zeros(f.d)))[-1] == pytest.approx(f.L, rel=1e-12)  # tight at margin zero
    g = ps.LeastSquares(*some_data())
    w = np.linalg.eigvalsh(g.hessian(np.zeros(g.d)))
    assert (g.mu, g.L) == pytest.approx((w[0], w[-1]), rel=1e-12)


def test_largest_row_smoothness():
    f = next(models())
    rows = [0.25 * np.sum(a**2) + 0.1 for a in f.A]
    assert f.L_rows == pytest.approx(max(rows), rel=1e-14)


def test_smoothness_of_wide_and_of_large_data(monkeypatch):
    A = RNG.standard_normal((15, 60))
    s = np.full(15, 1 / 15)
    exact = np.linalg.eigvalsh(A.T @ A / 15)[-1]
    assert spectrum.largest(A, s, 1.0, np.zeros(60)) == pytest.approx(exact, rel=1e-12)
    monkeypatch.setattr(spectrum, "EXACT_UP_TO", 10)
    bound = spectrum.largest(scipy.sparse.csr_matrix(A), s, 1.0, np.zeros(60))
    assert exact <= bound <= exact * 1.02


@pytest.mark.parametrize(("N", "intercept", "made"), [(40, False, 1), (4, False, 0), (40, True, 2)])
def test_constants_of_least_squares_are_the_same_together_and_one_by_one(monkeypatch, N, intercept, made):
    A, b = some_data(N)
    alone, together = (ps.LeastSquares(A, b, l2=0.1, intercept=intercept) for _ in range(2))
    expected = alone.L, alone.mu
    grams = []
    monkeypatch.setattr(spectrum, "gram", lambda *given, make=spectrum.gram: grams.append(1) or make(*given))
    together.find_constants()
    assert (together.L, together.mu) == expected
    assert len(grams) == made


def test_l2_relative_is_the_smoothness_of_the_whole_whatever_L_says():
    A, b = some_data()
    f = ps.Logistic(A, b, l2=1e-2, l2_relative=True)
    assert f.l2 == pytest.approx(1e-2 * np.linalg.eigvalsh(A.T @ A)[-1] / (4 * len(b)), rel=1e-12)
    for L in ("max", "global"):
        problem = ps.split(f, 4, "label", L=L)
        assert {c.l2 for c in problem.clients} == {f.l2}
        assert (problem.L_max if L == "max" else problem.L_global) == problem.L


def test_extreme_margins_neither_overflow_nor_warn():
    f = ps.Logistic(np.array([[1.0], [1.0]]), [0, 1], l2=0.0)
    for z in (0.0, 1e-300, 745.0, 1e5, 1e308, -1e308):
        x = np.array([z])
        assert np.isfinite(f.gradient(x)).all()
        assert f.value(x) == pytest.approx(abs(z) / 2 + np.log1p(np.exp(-abs(z))), rel=1e-15)


def test_logistic_loss_to_the_last_bits():
    mpmath = pytest.importorskip("mpmath")
    f = ps.Logistic(np.eye(2), [0, 1])
    rng = np.random.Generator(np.random.Philox(1))
    z = np.concatenate([rng.uniform(-40, 40, 300), 10.0 ** rng.uniform(-300, 2.8, 300) * rng.choice([-1, 1], 300)])
    ours, slopes = np.logaddexp(0.0, -z), f.slopes(z, np.ones_like(z))
    with mpmath.workdps(50):
        for v, loss, slope in zip(z, ours, slopes, strict=True):
            e = mpmath.exp(-mpmath.mpf(float(v)))
            true, true_slope = mpmath.log1p(e), -e / (1 + e)
            assert abs(mpmath.mpf(float(loss)) - true) <= 2 * np.spacing(float(true)) + 5e-324
            assert abs(mpmath.mpf(float(slope)) - true_slope) <= 4 * np.spacing(abs(float(true_slope))) + 5e-324


def test_labels_are_mapped_and_the_mapping_is_known():
    A, _ = some_data(4, 2)
    for pair in ((0, 1), (1, 2), (-1, 1), (-3, 7.5)):
        f = ps.Logistic(A, [pair[0], pair[1], pair[0], pair[1]])
        assert f.classes == pair
        assert f.b.tolist() == [-1, 1, -1, 1]


QUADRATIC = ps.Quadratic(np.ones(2), np.ones(2))
LABELS = np.arange(6) % 2
MODEL = ps.Logistic(np.eye(6), LABELS, l2=0.1)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: ps.Logistic(np.eye(3), [0, 1, 2]), "needs two classes of labels but found 3"),
        (lambda: ps.Logistic(np.eye(2), [1, 1]), "nothing to tell apart with one class"),
        (lambda: ps.Logistic(np.eye(2), [0, np.nan]), "label nan of row 1 is not finite"),
        (lambda: ps.Logistic(np.array([[1.0, np.inf], [0, 1]]), [0, 1]), "NaN or infinite"),
        (lambda: ps.Logistic(scipy.sparse.csr_matrix([[np.nan, 0], [0, 1]]), [0, 1]), "NaN or infinite"),
        (lambda: ps.Logistic(np.eye(3), [0, 1]), "A has 3 rows but b has 2"),
        (lambda: ps.Logistic(np.zeros((0, 2)), []), "is empty"),
        (lambda: ps.Logistic(np.ones(3), [0, 1, 1]), "1 dimensions"),
        (lambda: ps.Logistic(np.eye(6), LABELS, l2=-1), "l2 = -1"),
        (lambda: ps.Logistic(np.eye(6), LABELS, dtype=np.int64), "dtype int64"),
        (lambda: ps.Logistic(np.eye(6), LABELS, row_weights=np.zeros(6)), "row_weights"),
        (lambda: ps.LeastSquares(np.eye(2), ["a", "b"]), "not numbers"),
        (lambda: MODEL.take(np.array([], dtype=int)), "at least one row"),
        (lambda: ps.Quadratic(np.array([[1.0, 1.0], [0.0, 1.0]]), np.zeros(2)), "not symmetric"),
        (lambda: ps.Quadratic(np.array([-1.0, 1.0]), np.zeros(2)), "negative eigenvalue"),
        (lambda: ps.Quadratic(np.eye(3), np.zeros(2)), "does not fit"),
        (lambda: ps.split(MODEL, 0), "0 clients cannot share"),
        (lambda: ps.split(MODEL, 7), "7 clients cannot share 6 rows"),
        (lambda: ps.split(MODEL, 3, "colour"), 'split "colour" is not known'),
        (lambda: ps.split(MODEL, 3, weights="heavy"), 'weights = "heavy"'),
        (lambda: ps.split(MODEL, 3, L="min"), 'L = "min"'),
        (lambda: ps.split(MODEL, 3, "dirichlet", alpha=0.0), "alpha = 0.0"),
        (lambda: ps.split(MODEL, 3, batch=20), "batch = 20 is larger than client 0's 2 rows"),
        (lambda: ps.split(MODEL, 2, "group"), "needs a group column"),
        (lambda: ps.split(MODEL, by=np.array(list("aabbcc"))), r'give a column of groups as groups=\.\.\., with by="g'),
        (lambda: ps.split(QUADRATIC, 3), "give other oracles to Problem"),
        (lambda: ps.Problem([QUADRATIC, ps.Quadratic(np.ones(3), np.ones(3))]), "client 1 has 3 unknowns, not 2"),
        (lambda: ps.Problem([]), "at least one client"),
        (lambda: ps.Problem([QUADRATIC, QUADRATIC], weights=[1.0, -1.0]), "2 positive finite numbers"),
        (lambda: ps.Problem([QUADRATIC, "three"]), "is not an oracle"),
        (lambda: ps.Problem([QUADRATIC], D=np.eye(2)), "D was given without psi"),
        (lambda: ps.Problem([QUADRATIC], psi=abs), "psi needs a method prox"),
        (lambda: ps.Problem([Mine(np.zeros(2))]), "dimension is unknown"),
        (lambda: ps.Problem([Mine(np.zeros(2), mu=5.0)], d=2), r"mu = 5\.0 and L = 4\.0"),
        (lambda: ps.Problem([MODEL, ps.Logistic(np.eye(6), LABELS + 1)]), r"classes \(1, 2\)"),
        (lambda: ps.Problem([QUADRATIC]).with_batch(2), r"or functions with N and minibatch_gradient\(x, rows\)"),
    ],
)
def test_bad_input_gets_one_sentence(call, says):
    with pytest.raises(ps.InputError, match=says) as caught:
        call()
    assert "\n" not in str(caught.value)


# -- splits ------------------------------------------------------------------------------------------------------------
@given(
    st.integers(2, 60),
    st.integers(1, 60),
    st.sampled_from(["label", "iid", "contiguous", "dirichlet"]),
    st.integers(0, 5),
)
@settings(max_examples=draws(60))
def test_every_row_goes_to_exactly_one_client(N, n, by, seed):
    A, b = some_data(max(N, 2), 3, seed=seed)
    model = ps.Logistic(A, b, l2=0.1)
    if n > model.N:
        with pytest.raises(ps.InputError, match="cannot share"):
            arrangement(model, n, by)
        return
    try:
        order, row0 = arrangement(model, n, by, seed=seed, alpha=5.0)
    except ps.InputError as error:
        assert "without rows" in str(error)
        return
    sizes = np.diff(row0)
    assert (len(sizes), row0[0], row0[-1]) == (n, 0, model.N)
    assert sorted(order.tolist()) == list(range(model.N))
    assert (sizes > 0).all()
    if by != "dirichlet":
        assert np.ptp(sizes) <= 1


def test_split_by_label_is_stable_and_sorted():
    A, b = some_data(31, 3)
    order, _ = arrangement(ps.Logistic(A, b), 4, "label")
    assert (np.diff(b[order]) >= 0).all()
    for value in (0, 1):
        assert (np.diff(order[b[order] == value]) > 0).all()


def test_split_by_group():
    A, b = some_data(12, 3)
    groups = np.array(list("abcabcabcabc"))
    by_group = ps.split(ps.Logistic(A, b, l2=0.1), by="group", groups=groups)
    assert by_group.n == 3
    assert [f.N for f in by_group.clients] == [4, 4, 4]
    assert ps.split(ps.Logistic(A, b, l2=0.1), 2, "group", groups=groups).n == 2


@pytest.mark.parametrize("clients", [None, 2])
@pytest.mark.parametrize(
    "groups",
    [[None] * 6, ["a", None] * 3, [1, 2, None] * 2, [1.0, np.nan] * 3, ["a", 1] * 3, ["a", np.nan] * 3],
    ids=str,
)
def test_groups_with_missing_or_mixed_values_are_refused(groups: list[Any], clients: int | None) -> None:
    f = ps.Logistic(np.eye(6), [0, 1, 0, 1, 0, 1], l2=0.1)
    with pytest.raises(ps.InputError, match="missing or mixed values; give a number or a text for every row"):
        ps.split(f, clients, by="group", groups=np.array(groups, dtype=object))
    if all(isinstance(g, float) for g in groups):
        with pytest.raises(ps.InputError, match="missing or mixed values"):
            ps.split(f, clients, by="group", groups=groups)


def test_a_column_is_no_word_for_a_split() -> None:
    f = ps.Logistic(np.eye(6), [0, 1, 0, 1, 0, 1], l2=0.1)
    column: Any = np.array(list("aabbcc"))
    pd = pytest.importorskip("pandas", reason="needs pandas")
    for clients in (None, 2):
        with pytest.raises(ps.InputError, match=r'give a column of groups as groups=\.\.\., with by="group"'):
            ps.split(f, clients, by=pd.Series(column))
    assert ps.split(f, by="group", groups=pd.Series(column)).n == 3
    assert ps.split(f, by="group", groups=pd.Series(column, dtype="category")).n == 3
    with pytest.raises(ps.InputError, match="missing or mixed values"):
        ps.split(f, by="group", groups=pd.Series([1, 2, None] * 2, dtype="Int64"))


@pytest.mark.parametrize("weights", ["rows", "equal"])
def test_what_is_evaluated_is_what_is_solved(weights):
    A, b = some_data(37, 5)
    problem = ps.split(ps.Logistic(A, b, l2=0.1), 4, "label", weights=weights)
    x = RNG.standard_normal(5)
    parts = sum(w * f.value(x) for w, f in zip(problem.weights, problem.clients, strict=True))
    assert problem.value(x) == pytest.approx(parts, rel=1e-14)
    mean = np.average(problem.client_gradients(x), axis=0, weights=problem.weights)
    assert np.allclose(problem.gradient(x), mean, rtol=1e-13)
    assert np.linalg.norm(problem.gradient(problem.solution.x)) <= 1e-12
    if weights == "rows":
        assert problem.value(x) == pytest.approx(ps.Logistic(A, b, l2=0.1).value(x), rel=1e-15)


# -- oracles of unknown make, solutions --------------------------------------------------------------------------------
class Mine:
    """The least an oracle can be."""

    L = 4.0

    def __init__(self, center, mu=1.0):
        self.center, self.mu = center, mu

    def value(self, x):
        return float(0.5 * np.sum(np.array([1.0, 4.0]) * (x - self.center) ** 2))

    def gradient(self, x):
        return np.array([1.0, 4.0]) * (x - self.center)


def test_any_object_with_value_gradient_L_mu_is_a_client():
    problem = ps.Problem([Mine(np.array([1.0, 0.0])), Mine(np.array([0.0, 3.0]))], weights=[3, 1], d=2)
    assert problem.solution is not None
    assert np.allclose(problem.solution.x, [0.75, 0.75], atol=1e-9)
    result = ps.run(ps.Scaffnew.theory(problem), problem, tol=1e-9)
    assert result.success
    assert np.allclose(result.x, [0.75, 0.75], atol=1e-8)


def test_without_strong_convexity_nothing_pretends():
    A, b = some_data()
    A[:, 2] = A[:, 1]  # a direction in which nothing changes
    problem = ps.split(ps.Logistic(A, b, l2=0.0), 3, "iid")
    assert problem.mu is None
    assert problem.kappa is None
    assert problem.solution is None
    with pytest.raises(ps.InputError, match="mu"):
        ps.Scaffnew.theory(problem)
    result = ps.run(ps.Scaffnew(gamma=1 / problem.L, p=0.2), problem, rounds=5)
    assert result.summary()["gap"] is None
    assert result.summary()["zeta"] is None


def test_solutions_with_certificates():
    for f in models():
        problem = ps.Problem([f])
        s = problem.solution
        assert s is not None
        assert s.certificate == np.linalg.norm(f.gradient(s.x))
        assert s.certificate <= 1e-12
    quadratics = ps.random_quadratics(4, 6)
    problem = ps.Problem(quadratics, weights=[1, 2, 3, 4])
    H = sum(w * q.H for w, q in zip(problem.weights, quadratics, strict=True))
    b = sum(w * q.b for w, q in zip(problem.weights, quadratics, strict=True))
    assert np.allclose(problem.solution.x, np.linalg.solve(H, b), rtol=1e-12)
    assert np.allclose(problem.weights @ problem.solution.h, 0, atol=1e-13)


def test_solution_with_regulariser_and_with_operator():
    f = ps.Quadratic(np.ones(4), np.array([3.0, -0.5, 0.2, -2.0]))
    problem = ps.Problem([f], psi=ps.prox.L1(1.0))
    assert np.allclose(problem.solution.x, [2.0, 0.0, 0.0, -1.0], atol=1e-12)
    D = np.diff(np.eye(4), axis=0)
    flat = ps.Problem([f], psi=ps.prox.L1(100.0), D=D)  # heavy total variation: the mean
    assert np.allclose(flat.solution.x, f.b.mean(), atol=1e-8)
    y = flat.solution.y
    assert np.allclose(f.gradient(flat.solution.x) + D.T @ y, 0, atol=1e-8)


def test_newton_by_conjugate_gradients_finds_the_same(monkeypatch):
    from proxskip.problems import solve

    A, b = some_data(60, 8)
    x = ps.Problem([ps.Logistic(A, b, l2=0.01)]).solution.x
    monkeypatch.setattr(solve, "MAX_DENSE_HESSIAN", 2)
    assert np.allclose(ps.Problem([ps.Logistic(A, b, l2=0.01)]).solution.x, x, atol=1e-10)


def test_held_out_accuracy():
    A, b = some_data(200, 5)
    f = ps.Logistic(A[:100], b[:100], l2=0.1, intercept=True)
    x = RNG.standard_normal(6)
    assert f.accuracy(x, A[100:], b[100:]) == pytest.approx(np.mean((A[100:] @ x[:5] + x[5] > 0) == (b[100:] == 1)))
    g = ps.Softmax(*some_data(90, 4, classes=3), l2=0.1)
    s = ps.Problem([g]).solution.x
    guess = np.argmax(np.asarray(g.A) @ s.reshape(3, -1).T, axis=1)
    assert g.accuracy(s, g.A, g.b) == pytest.approx(np.mean(guess == g.b))


def test_float32_is_close_and_stays_float64_outside():
    A, b = some_data(50, 5)
    f, g = ps.Logistic(A, b, l2=0.1), ps.Logistic(A, b, l2=0.1, dtype=np.float32)
    x = RNG.standard_normal(5)
    assert g.gradient(x).dtype == np.float64
    assert np.allclose(f.gradient(x), g.gradient(x), atol=1e-6)


# -- minibatches -------------------------------------------------------------------------------------------------------
@given(
    st.integers(1, 300), st.integers(0, 2**40), st.integers(0, 50), st.integers(0, 50), st.integers(0, 50), st.data()
)
@settings(max_examples=draws(80))
def test_minibatches_are_different_rows_and_keyed(m, seed, client, round, step, data):
    b = data.draw(st.integers(1, m))
    rows = randomness.minibatch(seed, client, round, step, m, b)
    assert len(set(rows.tolist())) == b
    assert rows.min() >= 0
    assert rows.max() < m
    assert (rows == randomness.minibatch(seed, client, round, step, m, b)).all()


def test_expected_smoothness_of_full_and_of_minibatch_gradients():
    A, b = some_data(40, 4)
    full = ps.split(ps.Logistic(A, b, l2=0.1), 4, "label")
    assert (full.es_A, full.es_C) == (full.L, 0.0)
    some = full.with_batch(3)
    assert some.es_A > full.L_max
    assert some.es_C > 0
    everything = full.with_batch(10)
    assert everything.es_C == pytest.approx(0.0, abs=1e-20)


# -- data and labels as they are given ---------------------------------------------------------------------------------
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_callers_matrix_is_left_alone(dtype):
    A = scipy.sparse.csr_matrix((np.array([1, 2, 3, 4]), np.array([2, 0, 1, 1]), np.array([0, 2, 4])), shape=(2, 3))
    before = A.toarray().copy(), A.indices.copy(), A.data.copy()
    ps.Logistic(A, [0, 1], dtype=dtype)
    for a, b in zip(before, (A.toarray(), A.indices, A.data), strict=True):
        assert np.array_equal(a, b)


@pytest.mark.parametrize("clients", [1, 3])
def test_split_keeps_row_weights(clients):
    A, b = some_data(60)
    s = np.where(np.arange(60) < 10, 50.0, 1.0)
    model = ps.Logistic(A, b, l2=0.1, row_weights=s)
    problem = ps.split(model, clients, "iid")
    x = ps.run(ps.Scaffnew.theory(problem), problem, tol=1e-11, rounds=20_000).x
    assert np.allclose(x, ps.Problem([model]).solution.x, atol=1e-9)
    with pytest.raises(ps.InputError, match="weight zero"):
        ps.split(ps.Logistic(A, b, row_weights=(np.arange(60) > 30).astype(float)), 4, "contiguous")


@pytest.mark.parametrize("kind", [ps.Logistic, ps.LeastSquares, ps.Softmax])
def test_minibatches_of_weighted_rows_are_unbiased_with_the_constants_of_their_functions(kind):
    A, b = some_data(7)
    f = kind(A, b, l2=0.1, row_weights=np.arange(7.0))
    x = np.cos(np.arange(f.d))
    pairs = [np.array(rows) for rows in itertools.combinations(range(7), 2)]
    assert np.allclose(np.mean([f.minibatch_gradient(x, rows) for rows in pairs], axis=0), f.gradient(x), atol=1e-13)
    singles = np.array([f.minibatch_gradient(x, np.array([j])) for j in range(7)])
    assert np.isclose(f.gradient_variance(x), np.mean(np.sum((singles - f.gradient(x)) ** 2, axis=1)))
    there = np.array([f.minibatch_gradient(x + 1e-3 * f.gradient(x), np.array([j])) for j in range(7)])
    assert np.max(np.linalg.norm(there - singles, axis=1)) <= f.L_rows * 1e-3 * np.linalg.norm(f.gradient(x))


@pytest.mark.parametrize("engine", ["cpu", "reference"])
def test_minibatches_of_weighted_rows_solve_the_weighted_problem(engine):
    A, b = some_data(40)
    model = ps.Logistic(A, b, l2=0.1, row_weights=np.where(np.arange(40) < 8, 30.0, 1.0))
    problem = ps.split(model, 2, "contiguous").with_batch(19)
    far = np.linalg.norm(ps.Problem([ps.Logistic(A, b, l2=0.1)]).solution.x - problem.solution.x)
    result = ps.run(ps.Scaffnew(1.0 / problem.es_A, 0.5), problem, rounds=100, every=100, engine=engine)
    assert np.linalg.norm(result.x - problem.solution.x) < 0.3 * far


def test_eigenvalues_of_matrices_on_which_a_solver_gives_up():
    S = 12 * np.eye(5) / 5
    for i, j in ((0, 3), (1, 3), (2, 4)):
        S[i, j] = S[j, i] = 0.2
    assert np.isclose(spectrum.top_eigenvalue(S), np.linalg.eigvalsh(S)[-1], rtol=1e-14)
    assert np.isclose(spectrum.smallest_eigenvalue(S), np.linalg.eigvalsh(S)[0], rtol=1e-14)


def test_data_that_overflow_or_vanish_are_refused_with_a_sentence():
    A, b = some_data(8)
    for make in (lambda A: A, scipy.sparse.csr_matrix, aslinearoperator):
        with pytest.raises(ps.InputError, match="so large that"):
            ps.LeastSquares(make(1e155 * A), b).L  # noqa: B018
        # the products of an operator are too small to be compared with those of its transpose, unless they are equal
        with pytest.raises(
            ps.InputError, match="L is zero|is not its transpose" if make is aslinearoperator else "L is zero"
        ):
            ps.GD.theory(ps.Problem([ps.LeastSquares(make(1e-170 * A), b)]))
    with pytest.raises(ps.InputError, match="so large that"):
        ps.minimize(ps.Logistic(1e155 * A, b), ps.prox.L1(1.0))


@pytest.mark.parametrize("kind", [ps.Logistic, ps.LeastSquares, ps.Softmax])
def test_the_global_L_of_separate_clients_is_that_of_their_sum(kind):
    A, b = some_data(40, sparse=True)
    whole = kind(A, b, l2=0.1, intercept=True)
    parts = np.array_split(np.arange(40), 4)
    problem = ps.Problem([whole.take(p) for p in parts], [len(p) for p in parts])
    assert problem.whole is None
    assert not problem.L_global_is_bound
    assert np.isclose(problem.L_global, whole.L, rtol=1e-12)
    assert problem.L_global < problem.weights @ problem.L_i
    if kind is not ps.LeastSquares:
        return  # classifiers and other functions do not mix
    mixed = ps.Problem([whole.take(parts[0]), ps.Quadratic(np.ones(whole.d), np.ones(whole.d))])
    assert mixed.L_global_is_bound
    assert mixed.L_global == mixed.weights @ mixed.L_i


def test_minibatch_smoothness_does_not_need_the_solution():
    A, b = some_data()
    known = ps.split(ps.Logistic(A, b, l2=0.1), 4, "label", batch=3)
    unknown = ps.split(ps.Logistic(A, b, l2=0.1), 4, "label", batch=3)
    unknown.__dict__["solution"] = None
    assert unknown.es_A == known.es_A
    assert np.isnan(unknown.es_C)


def test_labels_may_be_words_or_truth_values():
    A, _ = some_data(4, 2)
    f = ps.Logistic(A, ["ham", "spam", "ham", "spam"])
    assert f.classes == ("ham", "spam")
    assert f.b.tolist() == [-1, 1, -1, 1]
    assert f.accuracy(np.zeros(2), A, np.array(["ham", "ham", "spam", "spam"])) == 0.5
    assert ps.Logistic(A, [True, False, True, True]).b.tolist() == [1, -1, 1, 1]
    assert ps.Softmax(A, ["a", "b", "c", "a"]).classes == ("a", "b", "c")


def test_solution_with_an_intercept_and_none_without_a_minimiser():
    A, b = some_data()
    problem = ps.split(ps.Logistic(A, b, l2=0.1, intercept=True), 4, "label")
    assert problem.mu is None
    assert np.linalg.norm(problem.gradient(problem.solution.x)) < 1e-10
    separable = ps.Problem([ps.Logistic(np.array([[1.0], [-1.0]]), [0, 1], l2=0.0)])
    assert separable.solution is None


class RowsOnly:
    """A user's finite sum: least squares with what an oracle may say of itself, and no more."""

    def __init__(self, f: ps.LeastSquares, L_rows: float | None, variance: bool = False) -> None:
        self.f, self.d, self.N, self.L, self.mu = f, f.d, f.N, f.L, f.mu
        if L_rows is not None:
            self.L_rows = L_rows
        if variance:
            self.gradient_variance = f.gradient_variance

    def value(self, x: Any) -> float:
        return self.f.value(x)

    def gradient(self, x: Any) -> Any:
        return self.f.gradient(x)

    def minibatch_gradient(self, x: Any, rows: Any) -> Any:
        return self.f.minibatch_gradient(x, rows)


def test_minibatches_of_a_users_oracle() -> None:
    """With ``L_rows`` the steps are those of the theorem and are checked; without it a given gamma is taken."""
    rng = np.random.Generator(np.random.Philox(8))
    ours = [ps.LeastSquares(rng.standard_normal((30, 3)), rng.standard_normal(30), l2=0.1) for _ in range(3)]
    judge = ps.Problem(ours, batch=5)
    known = ps.Problem([RowsOnly(f, f.L_rows, variance=True) for f in ours], batch=5)
    assert (known.es_A, known.es_C) == pytest.approx((judge.es_A, judge.es_C), rel=1e-6)
    for name in ("scaffnew", "scaffnew-vr", "gd"):
        runs = [ps.run(name, problem, rounds=6, seed=2) for problem in (known, judge)]
        assert np.allclose(runs[0].x, runs[1].x, rtol=1e-12, atol=1e-14)
        assert runs[0].summary()["gamma"] == pytest.approx(runs[1].summary()["gamma"])
    with pytest.raises(ps.InputError, match="gamma = 5"):
        ps.run(ps.Scaffnew(5.0, 0.3), known, rounds=6)

    silent = ps.Problem([RowsOnly(f, None) for f in ours], batch=5)
    assert np.isnan(silent.es_C)
    for method in (ps.Scaffnew(0.01, 0.3), ps.GD(0.01), ps.ScaffnewVR(0.01, 0.3, 0.2)):
        found, right = (ps.run(method, problem, rounds=6, seed=2) for problem in (silent, judge))
        assert np.allclose(found.x, right.x, rtol=1e-12, atol=1e-14)
    with pytest.raises(ps.InputError, match="give it L_rows, the largest smoothness of one row, or the method a gamma"):
        ps.run("scaffnew", silent, rounds=6)


def test_sorted_by_label_all_clients_of_the_digits_but_one_have_a_single_class() -> None:
    """As docs/start.md says. The labels are even and odd, so most clients have five digits."""
    data = ps.datasets.load("digits")
    problem = ps.split(ps.Logistic(data.A, data.b, l2=1e-2), clients=20, by="label")
    assert sorted(len(np.unique(f.b)) for f in problem.clients) == [1] * 19 + [2]
    order, row0 = arrangement(ps.Logistic(data.A, data.b), 20, "label")
    digits = [len(np.unique(data.group[order[lo:hi]])) for lo, hi in itertools.pairwise(row0)]
    assert sorted(digits)[:19] == [5] * 19


class Rows:
    """A finite sum of the user's own, as in docs/problems.md."""

    L, mu, d, N = 1.0, None, 3, 4

    def value(self, x: Any) -> float:
        return float(0.5 * x @ x)

    def gradient(self, x: Any) -> Any:
        return x

    def minibatch_gradient(self, x: Any, rows: Any) -> Any:
        return x


@pytest.mark.parametrize("engine", ["reference", "cpu"])
def test_functions_of_the_user_with_rows_take_minibatches(engine: Any) -> None:
    problem = ps.Problem([Rows(), Rows()]).with_batch(2)
    assert ps.run(ps.Scaffnew(gamma=0.5, p=0.5), problem, rounds=2, engine=engine).rounds == 2
