"""Problems: their constants, gradients, splits and solutions."""

import itertools
import sys
import time
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import scipy.sparse
import scipy.special
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse.linalg import aslinearoperator

import proxskip as ps
from proxskip.problems import accuracy, operators, solve, spectrum
from proxskip.problems.operators import smallest_positive
from proxskip.problems.split import arrangement
from proxskip.support import display
from support.pages import Terminal
from support.tiers import draws

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
        for kind, classes in ((ps.Logistic, 2), (ps.LeastSquares, 2), (ps.Softmax, 4)):
            yield kind(*some_data(sparse=sparse, classes=classes), l2=0.1, **more)


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


def test_L_and_mu_bound_every_curvature_and_are_attained():
    for f in models():
        for x in RNG.standard_normal((5, f.d)):
            w = np.linalg.eigvalsh(f.hessian(x))
            assert f.mu - 1e-12 <= w[0]
            assert w[-1] <= f.L * (1 + 1e-12)
    f = next(models())
    assert np.linalg.eigvalsh(f.hessian(np.zeros(f.d)))[-1] == pytest.approx(f.L, rel=1e-12)  # tight at margin zero
    assert f.L_rows == pytest.approx(max(0.25 * np.sum(a**2) + 0.1 for a in f.A), rel=1e-14)
    g = ps.LeastSquares(*some_data())
    w = np.linalg.eigvalsh(g.hessian(np.zeros(g.d)))
    assert (g.mu, g.L) == pytest.approx((w[0], w[-1]), rel=1e-12)


def test_smoothness_of_wide_and_of_large_data(monkeypatch):
    A = RNG.standard_normal((15, 60))
    s = np.full(15, 1 / 15)
    exact = np.linalg.eigvalsh(A.T @ A / 15)[-1]
    assert spectrum.largest(A, s, 1.0, np.zeros(60)) == pytest.approx(exact, rel=1e-12)
    monkeypatch.setattr(spectrum, "EXACT_UP_TO", 10)
    bound = spectrum.largest(scipy.sparse.csr_matrix(A), s, 1.0, np.zeros(60))
    assert exact <= bound <= exact * 1.02


@pytest.mark.parametrize(("N", "intercept"), [(40, False), (4, False), (40, True)])
def test_constants_of_least_squares_are_the_same_together_and_one_by_one(N, intercept):
    alone, together = (ps.LeastSquares(*some_data(N), l2=0.1, intercept=intercept) for _ in range(2))
    together.find_constants()
    assert (together.L, together.mu) == (alone.L, alone.mu)


@pytest.mark.parametrize("smoothness", ["max", "average"])
def test_l2_relative_is_the_smoothness_of_the_whole_whatever_smoothness_says(smoothness):
    A, b = some_data()
    f = ps.Logistic(A, b, l2_relative=1e-2)
    assert f.l2 == pytest.approx(1e-2 * np.linalg.eigvalsh(A.T @ A)[-1] / (4 * len(b)), rel=1e-12)
    problem = ps.split(f, 4, "label", smoothness=smoothness)
    assert {c.l2 for c in problem.clients} == {f.l2}
    assert getattr(problem, f"L_{smoothness}") == problem.L


@pytest.mark.parametrize("pair", [(0, 1), (1, 2), (-1, 1), (-3, 7.5), ("ham", "spam"), (False, True)])
def test_labels_are_mapped_and_the_mapping_is_known(pair):
    A, _ = some_data(4, 2)
    f = ps.Logistic(A, [pair[0], pair[1], pair[0], pair[1]])
    assert f.classes == pair
    assert f.b.tolist() == [-1, 1, -1, 1]
    assert f.accuracy(np.zeros(2), A, np.array([pair[0], pair[0], pair[1], pair[1]])) == 0.5
    assert ps.Softmax(A, ["a", "b", "c", "a"]).classes == ("a", "b", "c")


QUADRATIC = ps.Quadratic(np.ones(2), np.ones(2))
LABELS = np.arange(6) % 2
MODEL = ps.Logistic(np.eye(6), LABELS, l2=0.1)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: ps.Logistic(np.eye(2), [1, 1]), "needs rows of two classes"),
        (lambda: ps.Logistic(np.eye(2), [0, np.nan]), "label nan of row 1 is not finite"),
        (lambda: ps.LeastSquares(np.eye(2), [0, np.nan]), "target nan of row 1 is not finite"),
        (lambda: ps.Poisson(np.eye(2), np.array([None, 1])), "some counts are missing"),
        (lambda: ps.Logistic(np.array([[1.0, np.inf], [0, 1]]), [0, 1]), "NaN or infinite"),
        (lambda: ps.Logistic(scipy.sparse.csr_matrix([[np.nan, 0], [0, 1]]), [0, 1]), "NaN or infinite"),
        (lambda: ps.Logistic(np.eye(3), [0, 1]), "A has 3 rows but b has 2"),
        (lambda: ps.Logistic(np.zeros((0, 2)), []), "is empty"),
        (lambda: ps.Logistic(np.ones(3), [0, 1, 1]), "1 dimensions"),
        (lambda: ps.Logistic(np.eye(6), LABELS, l2=-1), "l2 = -1"),
        (lambda: ps.Logistic(np.eye(6), LABELS, dtype=np.int64), "dtype int64"),
        (lambda: ps.Logistic(np.eye(6), LABELS, row_weights=np.zeros(6)), "row_weights"),
        (lambda: MODEL.take(np.array([], dtype=int)), "at least one row"),
        (lambda: ps.Quadratic(np.array([[1.0, 1.0], [0.0, 1.0]]), np.zeros(2)), "not symmetric"),
        (lambda: ps.Quadratic(np.array([-1.0, 1.0]), np.zeros(2)), "negative eigenvalue"),
        (lambda: ps.Quadratic(np.eye(3), np.zeros(2)), "does not fit"),
        (lambda: ps.split(MODEL, 7), "7 clients cannot share 6 rows"),
        (lambda: ps.split(MODEL, 3, "colour"), 'split "colour" is not known'),
        (lambda: ps.split(MODEL, 3, weights="heavy"), 'weights = "heavy"'),
        (lambda: ps.Logistic(*some_data(), l2=0.1, l2_relative=0.1), "give one of the two"),
        (lambda: ps.Logistic(*some_data(), l2_relative=True), "l2_relative = True must be a nonnegative number"),
        (lambda: ps.Logistic(*some_data(), l2_relative=-1.0), "l2_relative = -1.0"),
        (lambda: ps.split(MODEL, 3, smoothness="min"), 'smoothness = "min"'),
        (lambda: ps.split(MODEL, 3, "dirichlet", alpha=0.0), "alpha = 0.0"),
        (lambda: ps.split(MODEL, 3, batch=20), "batch = 20 is larger than client 0's 2 rows"),
        (lambda: ps.split(QUADRATIC, 3), "give other oracles to Problem"),
        (lambda: ps.Problem([QUADRATIC, ps.Quadratic(np.ones(3), np.ones(3))]), "client 1 has 3 unknowns, not 2"),
        (lambda: ps.Problem([]), "at least one client"),
        (lambda: ps.Problem([QUADRATIC, QUADRATIC], weights=[1.0, -1.0]), "2 positive finite numbers"),
        (lambda: ps.Problem([QUADRATIC, "three"]), "is not an oracle: it lacks value, gradient, L, mu"),
        (lambda: ps.Problem([QUADRATIC], D=np.eye(2)), "D was given without psi"),
        (lambda: ps.Problem([mine(np.zeros(2))]), "dimension is unknown"),
        (lambda: ps.Problem([mine(np.zeros(2), mu=5.0)], d=2), r"mu = 5\.0 and L = 4\.0"),
        (lambda: ps.Problem([MODEL, ps.Logistic(np.eye(6), LABELS + 1)]), r"classes \(1, 2\)"),
        (lambda: ps.Problem([QUADRATIC]).with_batch(2), r"or functions with N and minibatch_gradient\(x, rows\)"),
    ],
)
def test_bad_input_gets_one_sentence(call, says):
    with pytest.raises(ps.InputError, match=says) as caught:
        call()
    assert "\n" not in str(caught.value)


SPLITS = st.sampled_from(["label", "iid", "contiguous", "dirichlet"])


@given(st.integers(2, 60), st.integers(1, 60), SPLITS, st.integers(0, 5))
@settings(max_examples=draws(60))
def test_every_row_goes_to_exactly_one_client(N, n, by, seed):
    A, b = some_data(N, 3, seed=seed)
    model = ps.Logistic(A, b, l2=0.1)
    try:
        order, row0 = arrangement(model, n, by, seed=seed, alpha=5.0)
    except ps.InputError as error:
        assert "cannot share" in str(error) if n > N else by == "dirichlet" and "without rows" in str(error)
        return
    sizes = np.diff(row0)
    assert (len(sizes), row0[0], row0[-1]) == (n, 0, N)
    assert sorted(order.tolist()) == list(range(N))
    assert (sizes > 0).all()
    assert by == "dirichlet" or np.ptp(sizes) <= 1
    if by == "label":  # sorted, and within a label in the order of the file
        assert order.tolist() == sorted(range(N), key=lambda row: b[row])


@pytest.mark.parametrize("missing", [np.nan, np.inf])
def test_the_dirichlet_split_refuses_rows_without_a_label(missing: float) -> None:
    rows: Any = SimpleNamespace(N=6, b=np.array([0.0, 1.0, missing, 0.0, 1.0, 1.0]))
    with pytest.raises(ps.InputError, match="needs a label for every row"):
        arrangement(rows, 3, "dirichlet")


@pytest.mark.parametrize("weights", ["rows", "equal"])
def test_weights_are_scaled_once(weights: Any) -> None:
    for rows in range(20, 60):
        model = ps.Logistic(*some_data(rows, 2), l2=0.1)
        for clients in (3, 7, 19):
            direct = ps.split(model, clients, weights=weights, batch=1)
            assert np.array_equal(ps.split(model, clients, weights=weights).with_batch(1).weights, direct.weights)
    mine = np.array([0.25, 0.75])
    ps.Problem(ps.random_quadratics(2, 2), weights=mine)
    mine[0] = 0.5  # still the caller's own array


@pytest.mark.parametrize("form", ["array", "Series", "category"])
def test_split_by_group(form):
    groups = np.array(list("abcabc"))
    if form != "array":
        pd = pytest.importorskip("pandas", reason="needs pandas")
        groups = pd.Series(groups, dtype="category" if form == "category" else None)
    assert [f.N for f in ps.split(MODEL, by="group", groups=groups).clients] == [2, 2, 2]
    assert ps.split(MODEL, 2, "group", groups=groups).n == 2
    with pytest.raises(ps.InputError, match=r'give a column of groups as groups=\.\.\., with by="group"'):
        ps.split(MODEL, by=groups)


@pytest.mark.parametrize("clients", [None, 2])
@pytest.mark.parametrize(
    "groups",
    [[None] * 6, ["a", None] * 3, [1, 2, None] * 2, [1.0, np.nan] * 3, ["a", 1] * 3, ["a", np.nan] * 3, "Int64"],
    ids=str,
)
def test_groups_with_missing_or_mixed_values_are_refused(groups: Any, clients: int | None) -> None:
    column = np.array(groups, dtype=None if groups == [1.0, np.nan] * 3 else object)
    if groups == "Int64":
        column = pytest.importorskip("pandas", reason="needs pandas").Series([1, 2, None] * 2, dtype="Int64")
    with pytest.raises(ps.InputError, match="missing or mixed values; give a number or a text for every row"):
        ps.split(MODEL, clients, by="group", groups=column)


@pytest.mark.parametrize("weights", ["rows", "equal"])
def test_what_is_evaluated_is_what_is_solved(weights):
    whole = ps.Logistic(*some_data(37, 5), l2=0.1)
    problem = ps.split(whole, 4, "label", weights=weights)
    x = RNG.standard_normal(5)
    assert problem.value(x) == pytest.approx(problem.weights @ [f.value(x) for f in problem.clients], rel=1e-14)
    assert np.allclose(problem.gradient(x), problem.weights @ problem.client_gradients(x), rtol=1e-13)
    assert np.linalg.norm(problem.gradient(problem.solution.x)) <= 1e-12
    if weights == "rows":
        assert problem.value(x) == pytest.approx(whole.value(x), rel=1e-15)


def mine(center, mu=1.0):
    """The least an oracle can be."""
    steep = np.array([1.0, 4.0])
    return SimpleNamespace(
        value=lambda x: 0.5 * float(steep @ (x - center) ** 2), gradient=lambda x: steep * (x - center), L=4.0, mu=mu
    )


def test_any_object_with_value_gradient_L_mu_is_a_client():
    problem = ps.Problem([mine(np.array([1.0, 0.0])), mine(np.array([0.0, 3.0]))], weights=[3, 1], d=2)
    assert np.allclose(problem.solution.x, [0.75, 0.75], atol=1e-9)
    result = ps.run(ps.Scaffnew.theory(problem), problem, tol=1e-9)
    assert result.success
    assert np.allclose(result.x, [0.75, 0.75], atol=1e-8)


def test_problems_are_compared_by_identity():
    clients = ps.random_quadratics(2, 2)
    one, other = ps.Problem(clients), ps.Problem(clients)
    assert one == one
    assert one != other
    assert len({one, other, one}) == 2


def test_without_strong_convexity_nothing_pretends():
    A, b = some_data()
    A[:, 2] = A[:, 1]  # a direction in which nothing changes
    problem = ps.split(ps.Logistic(A, b, l2=0.0), 3, "iid")
    assert (problem.mu, problem.kappa, problem.solution) == (None, None, None)
    with pytest.raises(ps.InputError, match="mu"):
        ps.Scaffnew.theory(problem)
    summary = ps.run(ps.Scaffnew(gamma=1 / problem.L, p=0.2), problem, rounds=5).summary
    assert (summary["gap"], summary["zeta"]) == (None, None)
    assert ps.Problem([ps.Logistic(np.array([[1.0], [-1.0]]), [0, 1], l2=0.0)]).solution is None  # separable


def test_solutions_with_certificates():
    for f in (*models(), next(models(intercept=True))):
        s = ps.Problem([f]).solution
        assert s.certificate == np.linalg.norm(f.gradient(s.x))
        assert s.certificate <= 1e-12
    assert ps.Problem([f]).mu is None  # the intercept has no lambda
    quadratics = ps.random_quadratics(4, 6)
    problem = ps.Problem(quadratics, weights=[1, 2, 3, 4])
    H = sum(w * q.H for w, q in zip(problem.weights, quadratics, strict=True))
    b = sum(w * q.b for w, q in zip(problem.weights, quadratics, strict=True))
    assert np.allclose(problem.solution.x, np.linalg.solve(H, b), rtol=1e-12)
    assert np.allclose(problem.weights @ problem.solution.h, 0, atol=1e-13)


def test_solution_with_regulariser_and_with_operator():
    f = ps.Quadratic(np.ones(4), np.array([3.0, -0.5, 0.2, -2.0]))
    assert np.allclose(ps.Problem([f], psi=ps.prox.L1(1.0)).solution.x, [2.0, 0.0, 0.0, -1.0], atol=1e-12)
    D = np.diff(np.eye(4), axis=0)
    flat = ps.Problem([f], psi=ps.prox.L1(100.0), D=D).solution  # heavy total variation: the mean
    assert np.allclose(flat.x, f.b.mean(), atol=1e-8)
    assert np.allclose(f.gradient(flat.x) + D.T @ flat.y, 0, atol=1e-8)


class Looked(ps.Quadratic):
    """Calls ``look`` whenever its gradient is computed."""

    minimizer = None  # so that f* takes gradients

    def __init__(self, look: Any) -> None:
        super().__init__([1.0, 2.0], [1.0, 1.0])
        self.look = look

    def gradient(self, x: Any) -> Any:
        self.look()
        return super().gradient(x)


def test_somebody_who_waits_hears_that_f_star_is_computed(monkeypatch):
    monkeypatch.setattr(display, "SECONDS_BEFORE_A_WORD", 0.0)

    def wait() -> None:
        end = time.monotonic() + 60
        while "computing f*" not in sys.stderr.getvalue() and time.monotonic() < end:
            time.sleep(0.001)

    for terminal in (True, False):
        stream = Terminal()
        monkeypatch.setattr(stream, "isatty", lambda terminal=terminal: terminal)
        monkeypatch.setattr(sys, "stderr", stream)
        assert ps.Problem([Looked(wait if terminal else lambda: None)]).solution is not None
        said = "proxskip: computing f* with 2 unknowns, which problem.without_minimum() leaves out\n"
        assert stream.getvalue() == (said if terminal else "")


def test_a_problem_without_minimum_runs_alike_and_knows_no_gap(monkeypatch, tmp_path):
    A, b = some_data()
    problem = ps.split(ps.Logistic(A, b, l2=0.1), 4)
    known = ps.run("scaffnew", problem, rounds=5)

    def refuse(problem):
        raise AssertionError("f* was computed")

    monkeypatch.setattr(solve, "minimize", refuse)
    unknown = problem.without_minimum()
    found = ps.run("scaffnew", unknown, rounds=3, out=tmp_path / "run")
    assert found.summary["f_star"] is found.summary["gap"] is None
    assert np.isnan(found.trace["gap"]).all()
    assert "f* is unknown" in repr(found)
    assert ps.resume(tmp_path / "run", unknown, rounds=5).x.tobytes() == known.x.tobytes()
    for other in (unknown.with_batch(2), unknown.with_psi(ps.prox.L1(0.1))):
        assert other.solution is None
    with pytest.raises(ps.InputError, match="target= needs the solution"):
        ps.run("scaffnew", unknown, target=1e-3)


def test_small_problems_are_solved_on_one_thread_of_blas(monkeypatch):
    threadpoolctl = pytest.importorskip("threadpoolctl")

    def threads() -> set[int]:
        return {p["num_threads"] for p in threadpoolctl.threadpool_info() if p["user_api"] == "blas"}

    with threadpoolctl.threadpool_limits(2, user_api="blas"):
        outside = threads()
        seen: list[set[int]] = []
        assert ps.Problem([Looked(lambda: seen.append(threads()))]).solution is not None
        assert all(found <= {1} for found in seen)
        assert threads() == outside
        monkeypatch.setattr(solve, "MAX_ONE_THREAD", 1)
        del seen[:]
        assert ps.Problem([Looked(lambda: seen.append(threads()))]).solution is not None
        assert all(found == outside for found in seen)


def test_the_norm_of_a_large_sparse_operator_needs_no_dense_matrix(monkeypatch):
    a, b = np.random.default_rng(0).random((2, 1500))
    D = scipy.sparse.vstack([scipy.sparse.diags_array(a), scipy.sparse.diags_array(b)], format="csr")
    monkeypatch.setattr(operators, "as_matrix", lambda D: pytest.fail("a dense matrix was made"))
    largest = (a**2 + b**2).max()
    for either in (D, D.T):
        assert largest <= operators.operator_norm2(either) <= 1.011 * largest


def test_newton_by_conjugate_gradients_finds_the_same(monkeypatch):
    A, b = some_data(60, 8)
    x = ps.Problem([ps.Logistic(A, b, l2=0.01)]).solution.x
    monkeypatch.setattr("proxskip.problems.solve.MAX_DENSE_HESSIAN", 2)
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
    model = ps.Logistic(A, b, l2=0.1, row_weights=np.where(np.arange(60) < 10, 50.0, 1.0))
    solution = ps.Problem([model]).solution.x
    problem = ps.split(model, clients, "iid")
    x = ps.run(ps.Scaffnew.theory(problem), problem, tol=1e-11, rounds=20_000).x
    assert np.allclose(x, solution, atol=1e-9)
    with pytest.raises(ps.InputError, match="weight zero"):
        ps.split(ps.Logistic(A, b, row_weights=(np.arange(60) > 30).astype(float)), 4, "contiguous")


@pytest.mark.parametrize("weights", [None, np.arange(7.0)], ids=["equal", "weighted"])
@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("kind", [ps.Logistic, ps.LeastSquares, ps.Softmax])
def test_minibatches_are_unbiased_with_the_constants_of_their_functions(kind, sparse, weights):
    A, b = some_data(7, sparse=sparse)
    f = kind(A, b, l2=0.1, row_weights=weights)
    x = np.cos(np.arange(f.d))
    for size in (1, 2):
        all_rows = [np.array(rows) for rows in itertools.combinations(range(7), size)]
        mean = np.mean([f.minibatch_gradient(x, rows) for rows in all_rows], axis=0)
        assert np.allclose(mean, f.gradient(x), rtol=1e-12, atol=1e-14)
    singles, there = (
        np.array([f.minibatch_gradient(y, np.array([j])) for j in range(7)]) for y in (x, x + 1e-3 * f.gradient(x))
    )
    spread = np.mean(np.sum((singles - f.gradient(x)) ** 2, axis=1))
    assert f.gradient_variance(x) == pytest.approx(spread, rel=1e-10)
    assert np.max(np.linalg.norm(there - singles, axis=1)) <= f.L_rows * 1e-3 * np.linalg.norm(f.gradient(x))


def test_eigenvalues_of_matrices_on_which_a_solver_gives_up():
    S = 12 * np.eye(5) / 5
    for i, j in ((0, 3), (1, 3), (2, 4)):
        S[i, j] = S[j, i] = 0.2
    assert np.isclose(spectrum.top_eigenvalue(S), np.linalg.eigvalsh(S)[-1], rtol=1e-14)
    assert np.isclose(spectrum.smallest_eigenvalue(S), np.linalg.eigvalsh(S)[0], rtol=1e-14)


@pytest.mark.parametrize("make", [np.asarray, scipy.sparse.csr_matrix, aslinearoperator])
def test_data_that_overflow_or_vanish_are_refused_with_a_sentence(make):
    A, b = some_data(8)
    with pytest.raises(ps.InputError, match="so large that"):
        ps.LeastSquares(make(1e155 * A), b).L  # noqa: B018
    with pytest.raises(ps.InputError, match="so large that"):
        ps.minimize(ps.Logistic(make(1e155 * A), b), ps.prox.L1(1.0))
    # the products of an operator are too small to be compared with those of its transpose, unless they are equal
    vanishes = "L is zero|is not the transpose" if make is aslinearoperator else "L is zero"
    with pytest.raises(ps.InputError, match=vanishes):
        ps.GD.theory(ps.Problem([ps.LeastSquares(make(1e-170 * A), b)]))


@pytest.mark.parametrize("kind", [ps.Logistic, ps.LeastSquares, ps.Softmax])
def test_the_global_L_of_separate_clients_is_that_of_their_sum(kind):
    whole = kind(*some_data(40, sparse=True), l2=0.1, intercept=True)
    parts = np.array_split(np.arange(40), 4)
    problem = ps.Problem([whole.take(p) for p in parts], [len(p) for p in parts])
    assert not problem.L_average_is_bound
    assert np.isclose(problem.L_average, whole.L, rtol=1e-12)
    assert problem.L_average < problem.weights @ problem.L_i


def test_the_global_L_of_unlike_clients_is_a_bound():
    squares = ps.LeastSquares(*some_data(10), l2=0.1)
    mixed = ps.Problem([squares, ps.Quadratic(np.ones(squares.d), np.ones(squares.d))])
    assert mixed.L_average_is_bound
    assert mixed.L_average == mixed.weights @ mixed.L_i


def rows_only(f: ps.LeastSquares, *says: str) -> SimpleNamespace:
    """A user's finite sum: least squares with what an oracle may say of itself, and no more."""
    names = ("d", "N", "L", "mu", "value", "gradient", "minibatch_gradient", *says)
    return SimpleNamespace(**{name: getattr(f, name) for name in names})


@pytest.mark.parametrize("engine", ["reference", "cpu"])
def test_minibatches_of_a_users_oracle(engine: Any) -> None:
    """With ``L_rows`` the steps are those of the theorem and are checked; without it a given gamma is taken."""
    rng = np.random.Generator(np.random.Philox(8))
    ours = [ps.LeastSquares(rng.standard_normal((30, 3)), rng.standard_normal(30), l2=0.1) for _ in range(3)]
    judge = ps.Problem(ours, batch=5)
    known = ps.Problem([rows_only(f, "L_rows", "gradient_variance") for f in ours], batch=5)
    silent = ps.Problem([rows_only(f) for f in ours]).with_batch(5)
    assert (known.es_A, known.es_C) == pytest.approx((judge.es_A, judge.es_C), rel=1e-6)
    assert np.isnan(silent.es_C)
    given = (ps.Scaffnew(0.01, 0.3), ps.GD(0.01), ps.ScaffnewVR(0.01, 0.3, 0.2))
    for problem, methods in ((known, ("scaffnew", "scaffnew-vr", "gd")), (silent, given)):
        for method in methods:
            found, right = (ps.run(method, p, rounds=6, seed=2, engine=engine) for p in (problem, judge))
            assert np.allclose(found.x, right.x, rtol=1e-12, atol=1e-14)
            assert found.summary["gamma"] == pytest.approx(right.summary["gamma"])
    with pytest.raises(ps.InputError, match="gamma = 5"):
        ps.run(ps.Scaffnew(5.0, 0.3), known, rounds=6)
    with pytest.raises(ps.InputError, match="no L_rows, the largest smoothness of one row; add it for minibatches"):
        ps.run("scaffnew", silent, rounds=6)


def test_sorted_by_label_all_clients_of_the_digits_but_one_have_a_single_class() -> None:
    """As docs/start.md says. The labels are even and odd, so most clients have five digits."""
    data = ps.datasets.load("digits")
    order, row0 = arrangement(ps.Logistic(data.A, data.b), 20, "label")
    parts = np.split(order, row0[1:-1])
    assert sorted(len(np.unique(data.b[rows])) for rows in parts) == [1] * 19 + [2]
    assert sorted(len(np.unique(data.group[rows])) for rows in parts)[:19] == [5] * 19


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_the_smallest_positive_eigenvalue_is_above_rounding_and_no_other(scale):
    for smallest in (1e-4, 0.5, 3.0):  # of D, whose squares are the eigenvalues
        Q, _ = np.linalg.qr(RNG.standard_normal((6, 6)))
        for values in ([smallest, 4.0, 9.0, 0.0, 0.0, 0.0], [smallest] * 2 + [9.0] * 4, [smallest] * 6):
            found = smallest_positive(scale * Q * np.array(values) @ Q.T)
            assert found == pytest.approx((scale * smallest) ** 2, rel=1e-4)


def test_the_gap_is_bounded_also_by_a_rough_minimum(monkeypatch: pytest.MonkeyPatch) -> None:
    """f* is known to |grad f|^2/(2 mu) at most."""
    problem = ps.Problem([ps.Quadratic(np.array([1.0, 0.01]), np.zeros(2))])
    rough = np.array([0.0, 0.1])
    certificate = float(np.linalg.norm(problem.gradient(rough)))
    assert problem.solution is not None
    solution = replace(problem.solution, x=rough, f=problem.value(rough), certificate=certificate)
    monkeypatch.setitem(vars(problem), "solution", solution)
    for x in (rough, np.array([0.1, 0.2]), np.zeros(2)):
        found = accuracy.gap(problem, x)
        assert found.most >= problem.value(x)  # f* is 0
        assert found.value == pytest.approx(problem.value(x) - problem.value(rough))
