"""Operators with an inner solver: what they certify is true, and their state changes nothing beyond the tolerance."""

import math
import pickle
from unittest.mock import Mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import proxskip as ps
from proxskip import prox
from proxskip.prox import L1, TV1D, TV2D, Blocks, Box, Checked, L2Ball, NonNegative, Polyhedron, Sum, accuracy_of
from proxskip.results import description
from proxskip.types import InputError, Prox
from support.tiers import draws, thinned

SHAPE = (4, 3)
d = 12
G = np.random.default_rng(7).standard_normal((5, d))

MAKERS = {
    "TV2D isotropic": lambda tol: TV2D(0.4, SHAPE, tolerance=tol),
    "TV2D isotropic l1 bounds": lambda tol: TV2D(0.4, SHAPE, l1=0.2, lo=-0.5, hi=2.0, tolerance=tol),
    "TV2D anisotropic": lambda tol: TV2D(0.4, SHAPE, isotropic=False, tolerance=tol),
    "TV2D anisotropic l1 bounds": lambda tol: TV2D(0.4, SHAPE, isotropic=False, l1=0.2, lo=-0.5, tolerance=tol),
    "Sum": lambda tol: Sum(L1(0.3), TV1D(0.5), tolerance=tol),
    "Sum of inexact": lambda tol: Sum(TV2D(0.3, SHAPE), NonNegative(), tolerance=tol),
    "intersection": lambda tol: prox.intersection(NonNegative(), L2Ball(1.5), Box(-math.inf, 1.0), tolerance=tol),
    "Polyhedron": lambda tol: Polyhedron(G, u=1.0, E=np.ones((1, d)), e=[1.0], tolerance=tol),
    "Blocks": lambda tol: Blocks([TV2D(0.4, (3, 3), tolerance=tol), L1(0.1)], [9, 3]),
}


seeds = st.integers(0, 2**32)
steps = st.floats(-1.5, 1.5).map(lambda power: 10.0**power)


def point(seed, scale=2.0):
    rng = np.random.default_rng(seed)
    return np.round(rng.standard_normal(d) * scale, rng.integers(0, 5))


@pytest.mark.parametrize("name", thinned(MAKERS, 2))
@settings(max_examples=draws(6), derandomize=True)  # one hard point may take minutes
@given(seed=seeds, t=steps)
def test_the_certified_accuracy_holds(name, seed, t):
    x, tight = point(seed), MAKERS[name](1e-9)
    best = tight.prox(x, t)
    assert tight.last.accuracy <= 1e-8 + 1e-7 * math.sqrt(1 + t)  # what rounding lets a gap show
    for tol in (1e-1, 1e-3, 1e-5):
        loose, seen = MAKERS[name](tol), []
        for at, step in ((x, t), (point(seed + 1), 3 * t), (x, t)):  # cold, elsewhere, and warm
            y = loose.prox(at, step)
            seen.append(loose.last.accuracy)
            assert loose.last.reached
            assert loose.last.accuracy <= loose.tolerance <= tol * (1 + 1e-12)
            assert at is not x or np.linalg.norm(y - best) <= loose.last.accuracy + tight.last.accuracy + 1e-12
        assert (loose.worst.accuracy, loose.calls, loose.failures) == (max(seen), 3, 0)


@pytest.mark.parametrize("isotropic", [True, False])
def test_a_warm_start_saves_iterations(isotropic):
    """The isotropic solver also from another step."""
    rng = np.random.default_rng(0)
    image = np.cumsum(rng.standard_normal((20, 20)), axis=1)
    warm, cold = (TV2D(1.0, (20, 20), isotropic, tolerance=1e-4, warm=warm) for warm in (True, False))
    counts = np.zeros(2)
    for k in range(6):
        x, t = image + 10.0 ** (-k) * rng.standard_normal((20, 20)), 1 + 0.1 * (isotropic * (k % 2))
        assert np.linalg.norm(warm.prox(x, t) - cold.prox(x, t)) <= 2e-4
        counts += warm.last.iterations, cold.last.iterations
    assert counts[0] < 0.9 * counts[1]


@pytest.mark.parametrize("name", [name for name in MAKERS if name != "Blocks"])
def test_the_same_call_again_starts_where_the_last_one_ended(name):
    psi = MAKERS[name](1e-6)
    first, again = [], []
    for seed in range(6):
        psi.reset()
        x = point(seed)
        y = psi.prox(x, 0.7)
        first.append(psi.last.iterations)
        assert np.linalg.norm(psi.prox(x, 0.7) - y) <= 2e-6
        again.append(psi.last.iterations)
    assert sum(again) <= len(again) + sum(first) / 4 < sum(first)
    psi.warm = False
    psi.reset()
    assert [psi.prox(point(seed), 0.7) is None or psi.last.iterations for seed in range(6)] == first


@pytest.mark.parametrize("name", MAKERS)
def test_inner_state_is_no_part_of_what_the_operator_is(name):
    psi = MAKERS[name](1e-6)
    assert isinstance(psi, prox.Inexact)
    assert isinstance(psi, Prox)
    assert prox.as_prox(psi) is psi
    problem = ps.Problem([ps.Quadratic(np.eye(d), np.ones(d))], psi=psi)
    before = description.identity(problem)
    psi.prox(point(1), 1.0)
    assert description.identity(problem) == before
    assert " at 0x" not in repr(psi)
    copy, fresh = pickle.loads(pickle.dumps(psi)), MAKERS[name](1e-6).prox(point(2), 1.0)
    for used in (copy, psi):
        used.reset()
        assert (used.last, used.worst, used.calls, used.failures) == (None, None, 0, 0)
        assert repr(used) == repr(psi) != repr(MAKERS[name](1e-5))
        assert np.array_equal(used.prox(point(2), 1.0), fresh)


@pytest.mark.parametrize(
    "make",
    [
        lambda **more: TV2D(5.0, SHAPE, tolerance=1e-9, **more),
        lambda **more: TV2D(0.1, SHAPE, isotropic=False, tolerance=1e-9, **more),
        lambda **more: Sum(TV1D(0.1), L2Ball(2.0), L1(0.1), tolerance=1e-9, **more),
        lambda **more: Polyhedron(np.eye(d), l=0.0, **more),
        lambda **more: prox.intersection(L2Ball(1.0), Box(2.0, 3.0), **{"max_iterations": 50, **more}),
    ],
)
def test_an_inner_solver_that_gives_up_says_so(make):
    psi, finished = make(max_iterations=1), make()
    y, best = psi.prox(point(1), 1.0), finished.prox(point(1), 1.0)
    assert np.isfinite(y).all()
    assert not psi.last.reached
    assert psi.failures == psi.calls == 1
    assert psi.worst == psi.last
    assert accuracy_of(psi) == psi.last.accuracy > psi.tolerance
    assert np.linalg.norm(y - best) <= psi.last.accuracy + finished.last.accuracy


def test_accuracies_in_one_number():
    for exact in (L1(1.0), Checked(prox.Zero()), Blocks([L1(1.0)], [3])):
        assert accuracy_of(exact) == 0
    theirs = prox.as_prox(Mock(spec=["prox"]))
    for unknown in (theirs, Checked(theirs), Blocks([L1(1.0), theirs], [3, 1]), Sum(L1(1.0), theirs)):
        assert math.isnan(accuracy_of(unknown))
    assert prox.inner_state(L1(1.0)) is None
    psi = TV2D(1.0, SHAPE)
    assert prox.inner_state(Checked(psi)) is psi


@settings(max_examples=draws(40), derandomize=True)
@given(seed=seeds, n=st.integers(1, 300), t=steps, kind=st.sampled_from(["noise", "walk", "steps", "ramp"]))
def test_tv1d_satisfies_its_optimality_conditions(seed, n, t, kind):
    """x - y = D'p with |p| <= t lam, and p = t lam sign(Dy) at every jump."""
    rng = np.random.default_rng(seed)
    made_of = {
        "noise": rng.standard_normal(n),
        "walk": np.cumsum(rng.standard_normal(n)),
        "steps": rng.integers(-2, 3, n).astype(float),
        "ramp": np.arange(n) * 0.1,
    }
    x = made_of[kind] * 10.0 ** rng.uniform(-3, 3) + rng.choice([0.0, 1e3])
    y = TV1D(0.3).prox(x, t)
    p, jumps, size = -np.cumsum(x - y), np.diff(y), 1e-12 * (1 + np.linalg.norm(x))
    assert abs(p[-1]) <= size
    assert np.abs(p[:-1]).max(initial=0) <= 0.3 * t + size
    real = np.abs(jumps) > size  # where two stretches tie, rounding decides which is the higher
    at_jumps = p[:-1][real] - 0.3 * t * np.sign(jumps[real])
    assert np.abs(at_jumps).max(initial=0) <= size


def test_tv1d_takes_time_proportional_to_the_length():
    n = 200_000
    for x in (np.arange(n) * 1.0, np.sqrt(np.arange(n)), np.tile([0.0, 1.0], n // 2)):
        y = TV1D(1e3).prox(x, 1.0)
        assert abs(y.sum() - x.sum()) <= 1e-9 * np.abs(x).sum()


def test_tv_of_images_by_hand():
    image = np.array([[1.0, 3.0], [4.0, 7.0]])
    assert TV2D(2.0, (2, 2))(image) == pytest.approx(2 * (math.hypot(3, 2) + 4 + 3))
    assert TV2D(2.0, (2, 2), isotropic=False)(image) == 2 * (3 + 4 + 2 + 3)
    assert TV2D(1.0, (2, 2), l1=2.0)(image) == pytest.approx(TV2D(1.0, (2, 2))(image) + 30)
    assert TV2D(1.0, (2, 2), hi=6.0)(image) == math.inf
    assert TV1D(2.0, l1=1.0)(np.array([1.0, -2.0, 0.0])) == 2 * 5 + 3
    assert TV1D(1.0, lo=0.0)(np.array([1.0, -2.0])) == math.inf
    flat = TV2D(100.0, (2, 2), tolerance=1e-10).prox(image, 1.0)
    np.testing.assert_allclose(flat, 3.75, atol=1e-9)


@pytest.mark.parametrize("isotropic", [True, False])
@pytest.mark.parametrize("shape", [(1, d), (d, 1)])
def test_one_row_or_one_column_is_one_dimensional(isotropic, shape):
    y = TV2D(0.7, shape, isotropic, tolerance=1e-9).prox(point(5), 1.3)
    np.testing.assert_allclose(y, TV1D(0.7).prox(point(5), 1.3), atol=2e-9)


@pytest.mark.parametrize("isotropic", [True, False])
def test_the_bytes_do_not_depend_on_the_threads(isotropic, monkeypatch):
    monkeypatch.setattr(prox.tv, "MIN_PIXELS_FOR_THREADS", 1)
    x = np.random.default_rng(0).standard_normal((23, 37))
    one, two, three = (TV2D(0.5, (23, 37), isotropic, threads=k).prox(x, 1.0).tobytes() for k in (1, 2, 3))
    assert one == two == three


def some_polyhedron(rng):
    """Rows that may repeat, be zero, hold at one point, and depend on each other, around a point inside."""
    size, rows = int(rng.integers(1, 16)), int(rng.integers(1, 30))
    M = rng.standard_normal((rows, size)) if rng.random() < 0.5 else rng.integers(-1, 2, (rows, size)).astype(float)
    M[rng.integers(rows)] = M[rng.integers(rows)]
    inside, one = rng.standard_normal(size), rng.standard_normal((1, size))
    E = np.vstack([one, 2 * one])
    far = rng.choice([0.0, 0.1, 1.0, math.inf], (2, rows))
    return Polyhedron(M, M @ inside - far[0], M @ inside + far[1], E, E @ inside), inside


@settings(max_examples=draws(60), derandomize=True)
@given(seed=seeds)
def test_the_active_rows_give_the_projection(seed):
    rng = np.random.default_rng(seed)
    psi, inside = some_polyhedron(rng)
    for scale in (10.0, 1.0, 1.0, 0.01):
        x = inside + scale * rng.standard_normal(psi.d)
        y = psi.prox(x, 1.0)
        assert psi.last.accuracy <= 1e-9
        assert psi(y) == 0
        # the multipliers have the right signs, and the row of each is on its bound: the conditions of the projection
        solver = psi._kept
        v = solver.P.T @ (y - x)
        np.testing.assert_allclose(x + solver.N_active.T @ v, y, atol=1e-9 * (1 + np.linalg.norm(x)))
        assert np.all(v >= -1e-12 * (1 + np.linalg.norm(x)))
        np.testing.assert_allclose(solver.N_active @ y, solver.b[solver.active], atol=1e-9)
        # a warm start changes nothing
        cold = Polyhedron(psi.A, psi.l, psi.u)
        assert np.linalg.norm(cold.prox(x, 1.0) - y) <= psi.last.accuracy + cold.last.accuracy + 1e-12


def test_a_warm_start_keeps_the_active_rows():
    slope = np.diff(np.eye(60), axis=0)
    psi = Polyhedron(np.vstack([slope, -np.diff(slope, axis=0)]), l=0.0)  # increasing and concave
    rng = np.random.default_rng(0)
    x = np.sqrt(np.arange(60.0)) + 0.1 * rng.standard_normal(60)
    psi.prox(x, 1.0)
    assert psi.last.iterations >= 20
    psi.prox(x + 1e-9 * rng.standard_normal(60), 1.0)
    assert psi.last.iterations == 0
    assert psi.last.reached


def test_blocks_with_an_inexact_block():
    psi = Blocks([TV2D(1.0, (3, 3), tolerance=1e-3), TV2D(1.0, (1, 3), tolerance=1e-3)], [9, 3])
    psi.tolerance = 1e-5
    assert psi.tolerance == pytest.approx(1e-5)
    y = psi.prox(point(1), 1.0)
    assert psi.last.accuracy == pytest.approx(math.hypot(*(part.last.accuracy for part in psi.psis)))
    assert psi.last.accuracy <= 1e-5
    assert y.shape == (d,)
    assert np.allclose(y[9:], TV1D(1.0).prox(point(1)[9:], 1.0), atol=1e-5)
    unfinished = TV2D(0.5, (8, 8), max_iterations=5, tolerance=1e-10, warm=False)  # once more, with nothing to do
    both = Blocks([unfinished] * 2, [64, 64])
    both.prox(np.concatenate([10 * np.random.default_rng(0).standard_normal(64), np.zeros(64)]), 1.0)
    assert both.last.accuracy > 0


@pytest.mark.slow
def test_a_part_without_a_multiplier_is_no_proof():
    both = prox.intersection(Box((0.0, 1.0), (2.0, 6.0)), prox.Consensus(2))
    assert np.abs(both.prox(np.array([0.0, 6.0]), 1.0) - 2.0).max() < 1e-7
    rng = np.random.default_rng(0)
    for _ in range(60):
        lo = rng.normal(size=3)
        both = prox.intersection(Box(tuple(lo), tuple(lo + 3 * rng.random(3))), prox.Consensus(3))
        y = both.prox(np.clip(3 * rng.normal(size=3), lo, lo + 1), 1.0)
        assert not both.last.reached or np.isfinite(both(y)) or not (np.max(lo) < np.min(lo + 3))


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: TV1D(-1.0), "TV1D needs a finite lam >= 0, not lam = -1"),
        (lambda: TV1D(1.0, l1=-1.0), "l1 = -1"),
        (lambda: TV1D(1.0, lo=2.0, hi=1.0), "TV1D needs lo <= hi"),
        (lambda: TV2D(1.0, (3,)), r"TV2D needs the shape of a matrix, not \(3,\)"),
        (lambda: TV2D(1.0, SHAPE, tolerance=0.0), "TV2D needs a finite tolerance > 0, not tolerance = 0"),
        (lambda: TV2D(1.0, SHAPE, max_iterations=0), "max_iterations >= 1, not 0"),
        (lambda: TV2D(1.0, SHAPE).prox(np.ones(5), 1.0), "TV2D is made for 12 numbers, not for 5"),
        (lambda: TV2D(1.0, SHAPE).prox(np.full(12, np.nan), 1.0), "TV2D was given an image with numbers that are not"),
        (lambda: Sum(), "Sum needs at least one operator"),
        (lambda: Sum(None), "None as an operator"),
        (lambda: prox.intersection(L2Ball()).prox(np.array([np.inf]), 1.0), "not finite"),
        (lambda: Blocks([], []), "Blocks needs at least one"),
        (lambda: Blocks([prox.Zero()], [2, 3]), r"Blocks needs one size for each of its 1 operators, not \(2, 3\)"),
        (lambda: Blocks([prox.Zero()], [2]).prox(np.ones(3), 1.0), "Blocks is made for 2 numbers, not for 3"),
        (lambda: Polyhedron(), "needs G with l or u, or E with e"),
        (lambda: Polyhedron(E=G), "or E with e"),
        (lambda: Polyhedron(E=G, e=np.ones(5), u=1.0), "needs G with l or u"),
        (lambda: Polyhedron(G, u=np.ones(4)), "5 rows but 4 numbers in u"),
        (lambda: Polyhedron(G, l=1.0, u=0.0), r"l <= u, not l = 1.0 and u = 0.0 \(row 0\)"),
        (lambda: Polyhedron(G * np.nan, u=0.0), "finite numbers in G"),
        (lambda: Polyhedron(G, u=1.0, E=np.ones((1, 3)), e=[0.0]), "G with 12 columns but E with 3"),
        (lambda: Polyhedron(np.ones((2, 1)), l=[2.0, -np.inf], u=[np.inf, 1.0]).prox(np.zeros(1), 1.0), "is empty"),
        (lambda: prox.psd(0), "Eigenvalues needs n >= 1"),
        (lambda: prox.SingularValues(NonNegative(), (2, 2)), "needs a psi that ignores signs and order"),
        (lambda: prox.Eigenvalues(TV1D(1.0), 2), "Eigenvalues needs a psi that ignores the order"),
        (lambda: prox.spectral_ball(-1.0, (2, 2)), "radius > 0"),
    ],
)
def test_wrong_parameters_say_what_is_wrong(make, sentence):
    with pytest.raises(InputError, match=sentence):
        make()
