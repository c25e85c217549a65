"""Our operators against cvxpy, pyproximal's as they are, and the check of every prox while it is used."""

import math
import warnings

import numpy as np
import pytest

from proxskip import prox
from proxskip.prox import L1, TV1D, TV2D, Adapted, Box, Checked, L1Ball, L2Ball, ProxWarning, Sum, as_prox
from proxskip.types import InputError
from support.problems import OwnProx

rng = np.random.default_rng(11)
SHAPE = (4, 5)
X = np.round(2 * rng.standard_normal(SHAPE), 2)
G = rng.standard_normal((6, 20))
t = 0.7


def differences(cp, Y):
    down = cp.vstack([Y[1:] - Y[:-1], np.zeros((1, SHAPE[1]))])
    right = cp.hstack([Y[:, 1:] - Y[:, :-1], np.zeros((SHAPE[0], 1))])
    return flat(cp, down), flat(cp, right)


def isotropic(cp, Y):
    return cp.sum(cp.norm(cp.vstack(differences(cp, Y)), 2, axis=0))


def anisotropic(cp, Y):
    return sum(cp.sum(cp.abs(part)) for part in differences(cp, Y))


def chain(cp, Y):
    return cp.sum(cp.abs(cp.diff(flat(cp, Y))))


def flat(cp, Y):
    return cp.reshape(Y, (20,), order="C")


def l1_and_bounds(tv, lo=-1.0, hi=2.0):
    return lambda cp, Y: (tv(cp, Y) + 0.3 * cp.sum(cp.abs(Y)), [lo <= Y, hi >= Y])


CASES = {  # ours; its value and constraints in the words of cvxpy. Closed forms have Moreau's identity in test_prox
    "TV2D isotropic": (lambda: TV2D(0.4, SHAPE, tolerance=1e-8), lambda cp, Y: (0.4 * isotropic(cp, Y), [])),
    "TV2D isotropic l1 bounds": (
        lambda: TV2D(0.4, SHAPE, l1=0.3, lo=-1.0, hi=2.0, tolerance=1e-8),
        l1_and_bounds(lambda cp, Y: 0.4 * isotropic(cp, Y)),
    ),
    "TV2D anisotropic": (lambda: TV2D(0.4, SHAPE, False, tolerance=1e-8), lambda cp, Y: (0.4 * anisotropic(cp, Y), [])),
    "TV2D anisotropic l1 bounds": (
        lambda: TV2D(0.4, SHAPE, False, l1=0.3, lo=-1.0, hi=2.0, tolerance=1e-8),
        l1_and_bounds(lambda cp, Y: 0.4 * anisotropic(cp, Y)),
    ),
    "TV1D l1 bounds": (
        lambda: TV1D(0.8, l1=0.3, lo=-0.2, hi=1.0),
        l1_and_bounds(lambda cp, Y: 0.8 * chain(cp, Y), -0.2, 1.0),
    ),
    "Sum": (
        lambda: Sum(TV1D(0.5), L2Ball(3.0), tolerance=1e-9),
        lambda cp, Y: (0.5 * chain(cp, Y), [cp.norm(flat(cp, Y)) <= 3]),
    ),
    "Sum of inexact": (
        lambda: Sum(TV2D(0.4, SHAPE), prox.NonNegative(), tolerance=1e-8),
        lambda cp, Y: (0.4 * isotropic(cp, Y), [Y >= 0]),
    ),
    "intersection": (
        lambda: prox.intersection(L1Ball(4.0), Box(-0.5, 1.0)),
        lambda cp, Y: (0, [cp.norm1(flat(cp, Y)) <= 4, Y >= -0.5, Y <= 1]),
    ),
    "Polyhedron": (
        lambda: prox.Polyhedron(G, l=-0.5, u=0.5, E=np.ones((1, 20)), e=[1.0]),
        lambda cp, Y: (0, [cp.abs(G @ flat(cp, Y)) <= 0.5, cp.sum(Y) == 1]),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_against_cvxpy(name):
    cp = pytest.importorskip("cvxpy", reason="cvxpy is not installed")
    make, terms = CASES[name]
    psi, Y = make(), cp.Variable(SHAPE)
    value, constraints = terms(cp, Y)
    problem = cp.Problem(cp.Minimize(value + cp.sum_squares(Y - X) / (2 * t)), constraints)
    with warnings.catch_warnings():  # how exact the solver is depends on the machine, and it says so
        warnings.filterwarnings("ignore", "Solution may be inaccurate")
        problem.solve(solver="CLARABEL", tol_gap_abs=1e-10, tol_gap_rel=1e-10, tol_feas=1e-10)
    ours = psi.prox(X, t)
    assert math.isfinite(psi(ours))
    np.testing.assert_allclose(ours, Y.value, atol=1e-4)
    assert psi(ours) + np.sum((ours - X) ** 2) / (2 * t) <= problem.value + 1e-6


def pyproximal():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip("pyproximal", reason="pyproximal is not installed")


def pylops(name, *given):
    import pylops

    return getattr(pylops, name)(*given)


d = 20
A = rng.standard_normal((4, d))
EXACT = 1e-6
"""Theirs has no inner iterations. How exact its linear algebra is depends on the machine."""
THEIRS = {  # how to make it; ours, where there is one; how far off its prox is
    "AffineSet": (lambda p: p.AffineSet(pylops("MatrixMult", A), np.ones(4), 50), None, 1e-4),
    "Box": (lambda p: p.Box(-1.0, 0.5), lambda: Box(-1.0, 0.5), EXACT),
    "Euclidean": (lambda p: p.Euclidean(0.7), lambda: prox.L2(0.7), EXACT),
    "EuclideanBall": (lambda p: p.EuclideanBall(np.zeros(d), 1.5), lambda: L2Ball(1.5), EXACT),
    "HalfSpace": (lambda p: p.HalfSpace(np.ones(d), 0.5), None, EXACT),
    "Hankel": (lambda p: p.Hankel((4, 5)), None, EXACT),
    "HuberCircular": (lambda p: p.HuberCircular(0.5), None, EXACT),
    "Intersection": (lambda p: p.Intersection(4, 5, 0.5), None, 1e-3),
    "GenericIntersectionProx": (
        lambda p: p.GenericIntersectionProx([lambda x: np.maximum(x, 0), lambda x: np.minimum(x, 1)]),
        lambda: Box(0.0, 1.0),
        1e-5,
    ),
    "L1": (lambda p: p.L1(0.3), lambda: L1(0.3), EXACT),
    "L1Ball": (lambda p: p.L1Ball(d, 2.0), lambda: L1Ball(2.0), 1e-4),
    "L2": (lambda p: p.L2(sigma=0.6), lambda: prox.SquaredL2(0.6), EXACT),
    "L2 with Op": (lambda p: p.L2(Op=pylops("MatrixMult", A), b=np.ones(4), niter=50), None, 1e-4),
    "L21": (lambda p: p.L21(2, 0.4), None, EXACT),
    "L21_plus_L1": (lambda p: p.L21_plus_L1(0.5, 0.3), None, EXACT),
    "L2Convolve": (lambda p: p.L2Convolve(np.array([1.0, 0.5, 0.2]), np.ones(d), nfft=d), None, 1e-6),
    "Nuclear": (lambda p: p.Nuclear((4, 5), 0.8), lambda: prox.NuclearNorm(0.8, (4, 5)), EXACT),
    "NuclearBall": (lambda p: p.NuclearBall((4, 5), 2.0), lambda: prox.nuclear_ball(2.0, (4, 5)), 1e-3),
    "Orthogonal": (lambda p: p.Orthogonal(p.L1(0.3), pylops("Identity", d)), lambda: L1(0.3), EXACT),
    "Quadratic": (lambda p: p.Quadratic(Op=pylops("MatrixMult", A.T @ A), b=np.ones(d), niter=60), None, 1e-4),
    "Simplex": (lambda p: p.Simplex(d, 2.0), lambda: prox.Simplex(2.0), 1e-5),
    "Sum": (lambda p: p.Sum([p.L1(0.3), p.Box(0.0, 1.0)]), lambda: Sum(L1(0.3), Box(0.0, 1.0)), 1e-5),
    "TV": (lambda p: p.TV((4, 5), 0.4, 5000, 1e-14), lambda: TV2D(0.4, (4, 5), tolerance=1e-8), 1e-4),
    "VStack": (
        lambda p: p.VStack([p.L1(0.3), p.Box(-1.0, 1.0)], [8, 12]),
        lambda: prox.Blocks([L1(0.3), Box(-1.0, 1.0)], [8, 12]),
        EXACT,
    ),
}


@pytest.mark.parametrize("name", THEIRS)
def test_operators_of_pyproximal_as_they_are(name):
    p = pyproximal()
    make, ours, off = THEIRS[name]
    psi = as_prox(make(p))
    assert isinstance(psi, Adapted)
    x = X.ravel()
    before = x.copy()
    P = psi.prox(X, t)
    assert P.shape == SHAPE
    assert P.dtype == np.float64
    assert np.array_equal(x, before)
    assert isinstance(psi(x), float)
    if ours is not None:
        assert np.linalg.norm(P.ravel() - ours().prox(x, t)) <= off
        inside = ours().prox(x, t)
        if psi(inside) != math.inf:  # an inexact indicator may find the exact projection outside
            assert psi(inside) == pytest.approx(ours()(inside), abs=max(off, EXACT))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ProxWarning)
        checked = Checked(psi)
        for k in range(4):
            checked.prox(x + 10.0**-k * np.cos(np.arange(d) + k), t)
    assert checked.error <= off


def test_the_wrong_huber_is_refused_also_in_a_sum_and_ours_is_right():
    p = pyproximal()
    for psi in (p.Huber(0.5), p.VStack([p.L1(), p.Huber(0.5)], [1, 2]), p.Sum([p.L1(), p.Huber(0.5)])):
        with pytest.raises(InputError, match=r"pyproximal's Huber is wrong; use proxskip.prox.Huber"):
            as_prox(psi)
    assert prox.Huber(1.0, 0.5).prox(np.array([0.9]), 1.0)[0] == pytest.approx(0.3)
    assert prox.Huber(1.0, 0.5)(np.array([0.9, -0.2])) == pytest.approx(p.Huber(0.5)(np.array([0.9, -0.2])))

    class Mended(p.Huber):
        def prox(self, x, tau):
            return x - x * tau / np.maximum(np.abs(x), tau + self.alpha)

    Mended.__module__, Mended.__name__ = "pyproximal.proximal.Huber", "Huber"
    assert as_prox(Mended(0.5)).prox(np.array([0.9]), 1.0)[0] == pytest.approx(0.3)


def test_the_value_of_a_stack_with_an_indicator_and_a_warning_of_what_is_not_convex():
    """The value of theirs has 1 more for a point inside."""
    p = pyproximal()
    psi = as_prox(p.VStack([p.L1(2.0), p.Box(0.0, 1.0)], [2, 1]))
    assert psi(np.array([1.0, -1.0, 0.5])) == 4
    assert psi(np.array([1.0, -1.0, 2.0])) == math.inf
    with pytest.warns(ProxWarning, match="L0 is not convex"):
        as_prox(p.L0(0.5))


def test_a_prox_that_is_not_firmly_nonexpansive_is_a_warning_once():
    psi, x = Checked(as_prox(OwnProx(lambda x, t: -x))), X.ravel()
    psi.prox(x, 1.0)
    with pytest.warns(ProxWarning, match="OwnProx is not firmly nonexpansive"):
        psi.prox(2 * x, 1.0)
    psi.prox(3 * x, 1.0)
    assert "not firmly nonexpansive" in psi.said
    # P(x) = -x, and the nearest right values are 0: each of the two is off by half of what is between them
    assert 0 < psi.error <= np.linalg.norm(x)
    psi.reset()
    assert psi.error == 0


def test_the_error_is_a_lower_bound_on_the_true_one():
    """Noise of size 1e-3 on a soft threshold: what the lemma shows is never more than what was done."""
    noise = np.random.default_rng(0)
    psi = Checked(
        as_prox(OwnProx(lambda x, t: L1(0.5).prox(x, t) + 1e-3 * noise.standard_normal(d) / math.sqrt(d) / 2))
    )
    points = X.ravel() + 1e-4 * noise.standard_normal((50, d))
    with pytest.warns(ProxWarning, match="off by"):
        _ = [psi.prox(point, 1.0) for point in points]
    assert 1e-5 < psi.error <= 1e-3


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_wrong_answers_are_refused_by_name(bad):
    with pytest.raises(InputError, match="the prox of OwnProx gave numbers that are not finite"):
        Checked(as_prox(OwnProx(lambda x, t: np.where(x > 0, bad, x)))).prox(X.ravel(), 1.0)
    with pytest.raises(InputError, match="at a point that is not finite itself"):
        Checked(L1(1.0)).prox(np.array([np.nan]), 1.0)
    assert np.isfinite(Checked(L1(1.0)).prox(np.array([1e200]), 1.0)).all()


def test_a_checked_operator_is_the_same_operator():
    psi = prox.GroupL1(0.5, (10, 10))
    checked = Checked(Checked(psi))
    assert checked.psi is psi
    assert repr(checked) == repr(psi)
    assert as_prox(checked) is checked
    assert checked(X) == psi(X)
    assert np.array_equal(checked.prox(X, t), psi.prox(X, t))
    assert Checked(prox.NonNegative()).prox(X, t).min() >= 0
