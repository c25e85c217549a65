"""Laws that every proximity operator obeys, for every operator; a new one is one row of OPERATORS."""

import math
import pickle

import numpy as np
import pytest
import scipy.optimize
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from proxskip import prox
from proxskip.prox import Adapted, as_prox, conjugate_prox
from proxskip.types import InputError, Prox
from support.problems import OwnProx
from support.tiers import draws

d = 6


def on_singular_values(change):
    def conjugate(y, t):
        U, s, V = np.linalg.svd(y.reshape(2, 3), full_matrices=False)
        return (U @ np.diag(change(s, t)) @ V).ravel()

    return conjugate


def on_eigenvalues(change, change_rest):
    """Of a 2 x 2 matrix, then two numbers. What is antisymmetric has no bearing on symmetric matrices, and stays."""

    def conjugate(y, t):
        Y = y[:4].reshape(2, 2)
        w, V = np.linalg.eigh((Y + Y.T) / 2)
        return np.concatenate([((V * change(w)) @ V.T + (Y - Y.T) / 2).ravel(), change_rest(y[4:])])

    return conjugate


def chain_conjugate(y, t):
    """The projection onto ``{D'p : |p_i| <= 0.6}`` by bounded least squares."""
    D = np.diff(np.eye(d), axis=0)
    scale = max(1.0, np.abs(y).max())
    found = scipy.optimize.lsq_linear(D.T, y / scale, (-0.6 / scale, 0.6 / scale), method="bvls", tol=1e-16)
    return D.T @ found.x * scale


def cut(y, mass):
    """``min(y, s)`` with s such that what is cut off weighs ``mass``; by bisection."""
    below, above = y.min() - mass, y.max()
    for _ in range(80):
        s = (below + above) / 2
        below, above = (s, above) if np.maximum(y - s, 0).sum() > mass else (below, s)
    return np.minimum(y, above)


def cut_both_sides(y, mass):
    return np.zeros_like(y) if np.abs(y).sum() <= mass else np.sign(y) * cut(np.abs(y), mass)


def support_of_box(lo, hi):
    """The prox of ``sum_i max(lo_i y_i, hi_i y_i)``: each y_i moves towards zero and stops there."""
    return lambda y, t: np.where(y > t * hi, y - t * hi, np.where(y < t * lo, y - t * lo, 0.0))


def elastic_conjugate(y, t):
    return np.where(np.abs(y) <= 0.4, y, (y + np.sign(y) * t * 0.4 / 1.5) / (1 + t / 1.5))


def group_balls(y, t):
    return np.concatenate([prox.L2Ball(0.6).prox(part, t) for part in np.split(y, [1, 4])])


LO, HI = np.array([-1, 0, 0.5, -2, -9, -0.1]), np.array([1, 3, 0.5, -1, 9, 0])
FUNCTIONS = {
    "Zero": (prox.Zero(), lambda y, t: np.zeros(d)),
    "L1": (prox.L1(0.7), lambda y, t: np.clip(y, -0.7, 0.7)),
    "L2": (prox.L2(0.7), prox.L2Ball(0.7).prox),
    "SquaredL2": (prox.SquaredL2(2.5), lambda y, t: y / (1 + t / 2.5)),
    "ElasticNet": (prox.ElasticNet(0.4, 1.5), elastic_conjugate),
    "GroupL1": (prox.GroupL1(0.6, (1, 3, 2)), group_balls),
    "NuclearNorm": (prox.NuclearNorm(0.7, (2, 3)), on_singular_values(lambda s, t: np.minimum(s, 0.7))),
    "Huber": (prox.Huber(0.7, 0.3), lambda y, t: np.clip(y / (1 + t * 0.3 / 0.7), -0.7, 0.7)),
    "TV1D": (prox.TV1D(0.6), chain_conjugate),
    "SingularValues": (prox.SingularValues(prox.ElasticNet(0.4, 1.5), (2, 3)), on_singular_values(elastic_conjugate)),
    "Blocks": (
        prox.Blocks([prox.L1(0.7), prox.SquaredL2(2.5)], [2, 4]),
        lambda y, t: np.concatenate([np.clip(y[:2], -0.7, 0.7), y[2:] / (1 + t / 2.5)]),
    ),
    "Eigenvalues, then L1": (
        prox.Blocks([prox.Eigenvalues(prox.L1(0.7), 2), prox.L1(0.3)], [4, 2]),
        on_eigenvalues(lambda w: np.clip(w, -0.7, 0.7), lambda y: np.clip(y, -0.3, 0.3)),
    ),
}
SETS = {
    "Box": (prox.Box(-0.5, 2.0), support_of_box(-0.5, 2.0)),
    "Box by coordinate": (prox.Box(tuple(LO), tuple(HI)), support_of_box(LO, HI)),
    "Box half open": (prox.Box(-math.inf, 1.0), lambda y, t: np.maximum(y - t, 0)),
    "NonNegative": (prox.NonNegative(), lambda y, t: np.minimum(y, 0)),
    "Simplex": (prox.Simplex(), lambda y, t: cut(y, t)),
    "Simplex of 30": (prox.Simplex(30.0), lambda y, t: cut(y, 30 * t)),
    "L1Ball": (prox.L1Ball(1.5), lambda y, t: cut_both_sides(y, 1.5 * t)),
    "L2Ball": (prox.L2Ball(1.5), prox.L2(1.5).prox),
    "Singleton": (prox.Singleton(), lambda y, t: y),
    "spectral ball": (prox.spectral_ball(1.5, (2, 3)), on_singular_values(prox.L1(1.5).prox)),
    "nuclear ball": (prox.nuclear_ball(1.5, (2, 3)), on_singular_values(lambda s, t: cut_both_sides(s, 1.5 * t))),
    "Blocks of sets": (
        prox.Blocks([prox.NonNegative(), prox.L2Ball(1.5)], [2, 4]),
        lambda y, t: np.concatenate([np.minimum(y[:2], 0), prox.L2(1.5).prox(y[2:], t)]),
    ),
    "positive semidefinite, then a set": (
        prox.Blocks([prox.psd(2), prox.NonNegative()], [4, 2]),
        on_eigenvalues(lambda w: np.minimum(w, 0), lambda y: np.minimum(y, 0)),
    ),
    "Consensus": (prox.Consensus(3), lambda y, t: y - np.tile(y.reshape(3, 2).mean(axis=0), 3)),
}
OPERATORS = FUNCTIONS | SETS
"""psi, and ``prox_{t psi*}(y)`` found without Moreau's identity."""

numbers = st.one_of(st.floats(-100, 100, allow_subnormal=False), st.integers(-3, 3).map(float))
vectors = arrays(np.float64, d, elements=numbers)
steps = st.floats(-3, 3).map(lambda power: 10.0**power)
seeds = st.integers(0, 2**32)


def law(function):
    """For every operator, many random inputs."""
    return pytest.mark.parametrize("name", OPERATORS)(settings(max_examples=draws(50))(function))


def size(*arrays_):
    return 1 + sum(float(np.linalg.norm(a)) for a in arrays_)


@law
@given(x=vectors, t=steps)
def test_moreau_identity(name, x, t):
    psi, conjugate = OPERATORS[name]
    np.testing.assert_allclose(psi.prox(x, t) + t * conjugate(x / t, 1 / t), x, rtol=0, atol=1e-12 * size(x))
    np.testing.assert_allclose(conjugate_prox(psi, x, t), conjugate(x, t), rtol=0, atol=1e-12 * size(x))


@law
@given(x=vectors, t=steps, seed=seeds)
def test_no_other_point_has_a_smaller_objective(name, x, t, seed):
    """Strong convexity says by how much: ``objective(z) >= objective(P) + |z - P|^2 / (2 t)``."""
    psi, rng = OPERATORS[name][0], np.random.default_rng(seed)

    def objective(z):
        return psi(z) + np.sum((z - x) ** 2) / (2 * t)

    P = psi.prox(x, t)
    least = objective(P)
    assert math.isfinite(least)
    assert psi(P if name in SETS else np.zeros(d)) == 0
    near = psi.prox(x + rng.standard_normal(d) * 0.1 * size(x), t)
    far = psi.prox(rng.standard_normal(d) * 10.0 ** rng.uniform(-2, 3), t)
    away = P + rng.standard_normal(d) * 10.0 ** rng.uniform(-3, 1)
    for z in (near, far, away, (P + near) / 2, 0.9 * P + 0.1 * far):
        value = objective(z)
        if math.isfinite(value):
            slack = 1e-12 * (value + least) + prox.INSIDE * size(x) * size(z) / t
            assert value - least >= np.sum((z - P) ** 2) / (2 * t) - slack


@law
@given(x=vectors, t=steps)
def test_a_prox_gives_a_new_array_and_leaves_its_input_alone(name, x, t):
    psi, before = OPERATORS[name][0], x.copy()
    x.setflags(write=False)
    P = psi.prox(x, t)
    assert isinstance(psi(x), float)
    assert not np.shares_memory(P, x)
    assert P.flags.writeable
    assert np.array_equal(x, before)
    assert P.dtype == np.float64
    stacked = psi.prox(x.reshape(2, 3), t)
    assert stacked.shape == (2, 3)
    assert np.array_equal(stacked.ravel(), P)
    assert np.array_equal(psi.prox(x.astype(np.float32), t), psi.prox(x.astype(np.float32).astype(float), t))


@pytest.mark.parametrize("name", OPERATORS)
@pytest.mark.parametrize("t", [0, -1.0, math.nan, math.inf])
def test_a_step_must_be_positive(name, t):
    psi, _ = OPERATORS[name]
    for act in (psi.prox, lambda x, t: conjugate_prox(psi, x, t)):
        with pytest.raises(InputError, match="positive and finite, not t = "):
            act(np.ones(d), t)


@pytest.mark.parametrize("name", OPERATORS)
def test_nothing_hides_a_nan(name):
    psi, x = OPERATORS[name][0], np.arange(d) - 2.0
    x[1] = math.nan
    assert np.isnan(psi.prox(x, 1.0)).any() or name == "Singleton"
    assert name not in SETS or psi(x) == math.inf


@pytest.mark.parametrize(
    ("psi", "inside", "outside"),
    [
        (prox.Box(-1.0, 2.0), [-1, 2 + 1e-10], [-1, 2 + 1e-8]),
        (prox.Simplex(2.0), [0.5, 1.5 + 1e-10], [0.5, 1.6]),
        (prox.Simplex(2.0), [2.0, 0.0], [3.0, -1.0]),
        (prox.L2Ball(5.0), [3, -4 - 1e-10], [3, -4.1]),
        (prox.L2Ball(1e-12), [1e-12, 0], [2e-12, 0]),
        (prox.psd(2), [1, 0.5, 0.5, 1], [1, 0.5, 0.4, 1]),
        (prox.psd(2), [1, 0, 0, 0], [1, 0, 0, -1]),
        (prox.Consensus(2), [1e3, 2, 1e3 + 1e-7, 2], [1, 2, 1, 2 + 1e-8]),
    ],
)
def test_a_set_is_zero_inside_and_infinite_outside(psi, inside, outside):
    assert psi(np.array(inside, dtype=float)) == 0
    assert psi(np.array(outside, dtype=float)) == math.inf


@settings(max_examples=draws(100))
@given(x=vectors, shift=st.floats(-1e8, 1e8))
def test_the_simplex_is_reached_exactly_however_far_away(x, shift):
    P = prox.Simplex().prox(x + shift, 1.0)
    assert (P >= 0).all()
    assert abs(P.sum() - 1) <= 1e-14


NO_SIZES = [[[0, 1], [2, 3]], [[0, 1], [2]], 5, [1.5, 2.5], "ab"]


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: prox.L1(-1.0), "L1 needs a finite lam >= 0, not lam = -1"),
        (lambda: prox.L2(-0.1), "L2 needs"),
        (lambda: prox.SquaredL2(math.inf), "SquaredL2 needs"),
        (lambda: prox.ElasticNet(-1.0, 1.0), "l1 = -1"),
        (lambda: prox.ElasticNet(1.0, -1.0), "l2 = -1"),
        (lambda: prox.GroupL1(-1.0, (2,)), "lam = -1"),
        (lambda: prox.GroupL1(1.0, (2, 0)), r"\(2, 0\)"),
        (lambda: prox.Box(1.0, 0.0), "lo <= hi, .* lo = 1.0 and hi = 0.0"),
        (lambda: prox.Box((0, 3), 2.0), r"lo = 3.0 and hi = 2.0 \(at 1\)"),
        (lambda: prox.Box(math.nan, 1.0), "lo = nan"),
        (lambda: prox.Box((0, 0), (1, 1, 1)), "2 lower bounds but 3 upper"),
        (lambda: prox.Simplex(0.0), "Simplex needs a finite radius > 0, not radius = 0"),
        (lambda: prox.L1Ball(-1.0), "L1Ball needs"),
        (lambda: prox.L2Ball(math.nan), "L2Ball needs"),
        (lambda: prox.NuclearNorm(-1.0, (2, 2)), "lam = -1"),
        (lambda: prox.NuclearNorm(1.0, (2,)), r"\(2,\)"),
        (lambda: prox.Consensus(0), "n = 0"),
        (lambda: prox.GroupL1(1.0, (2, 2)).prox(np.ones(5), 1.0), "GroupL1 is made for 4 numbers, not for 5"),
        (lambda: prox.Box((0, 0), (1, 1)).prox(np.ones(1), 1.0), "Box is made for 2 numbers, not for 1"),
        (lambda: prox.NuclearNorm(1.0, (2, 2))(np.ones(5)), "NuclearNorm is made for 4 numbers, not for 5"),
        (lambda: prox.NuclearNorm(0.5, (2, 3)).prox(np.zeros((3, 2)), 1.0), "made for shape"),
        (lambda: prox.Consensus(2).prox(np.ones(5), 1.0), r"Consensus\(2\) cannot cut 5 numbers"),
        *((lambda groups=groups: prox.GroupL1(0.5, groups), "needs group sizes") for groups in NO_SIZES),
        (lambda: as_prox(np.abs), r"needs a method prox\(x, t\), which ufunc"),
        (lambda: as_prox(prox.L1), r"the class L1 and not an operator; write L1\(\.\.\.\)"),
        (lambda: as_prox(type("NoValue", (), {"prox": lambda self, x, t: x})()), "NoValue cannot be called"),
    ],
)
def test_wrong_parameters_say_what_is_wrong(make, sentence):
    with pytest.raises(InputError, match=sentence):
        make()


@pytest.mark.parametrize("name", OPERATORS)
def test_operators_are_values(name):
    psi, _ = OPERATORS[name]
    copy = pickle.loads(pickle.dumps(psi))
    assert copy == psi
    assert hash(copy) == hash(psi)
    assert isinstance(psi, Prox)
    assert as_prox(psi) is psi


def test_operators_of_others_are_adapted():
    """One with its own precision, which changes the x it is given; its value is a numpy scalar."""

    def halve(x, tau):
        assert x.shape == (2, 2)
        x /= 1 + tau
        return x.astype(np.float32)

    x = np.array([[1.0, -2.0], [3.0, 0.5]])
    before = x.copy()
    psi = as_prox(OwnProx(halve, lambda x: np.float32(np.sum(x**2) / 2)))
    assert isinstance(psi, Adapted)
    assert as_prox(psi) is psi
    assert psi(x) == 7.125
    assert type(psi(x)) is float
    assert np.array_equal(psi.prox(x, 1.0), x / 2)
    assert psi.prox(x, 1.0).dtype == np.float64
    assert np.array_equal(x, before)
    np.testing.assert_allclose(conjugate_prox(psi, x, 1.0), x / 2)
    with pytest.raises(InputError, match="positive"):
        psi.prox(x, 0.0)
    assert as_prox(None) is None


def test_indicators_of_others_are_zero_or_infinite_and_their_answers_are_copied():
    buffer = np.zeros(2)
    psi = as_prox(OwnProx(lambda x, tau: buffer, lambda x: np.linalg.norm(x) <= 1))
    assert psi(np.array([0.6, 0.8])) == 0.0
    assert psi(np.array([0.6, 0.9])) == math.inf
    psi.prox(np.ones(2), 1.0)[0] = 5
    assert buffer[0] == 0


@pytest.mark.parametrize("answer", [np.zeros(3), 1.0, np.zeros((4, 1)), 1j * np.ones(4), None])
def test_a_prox_of_another_shape_or_kind_is_refused(answer):
    with pytest.raises(InputError, match="the prox of OwnProx gave"):
        as_prox(OwnProx(lambda x, tau: answer)).prox(np.ones(4), 1.0)


def test_numbers_that_are_whole_or_huge():
    """Values of small integers do not overflow."""
    assert prox.TV1D(1.0)(np.array([1, 0], np.uint8)) == 1.0
    assert np.allclose(prox.L2Ball().prox(np.array([1e200, 0.0]), 1.0), [1.0, 0.0])
    x = np.array([100, -128, 100, 100], dtype=np.int8)
    for psi in (prox.L1(0.5), prox.L2(0.5), prox.GroupL1(0.5, (2, 2)), prox.Huber(0.5, 1.0), prox.SquaredL2(0.5)):
        assert psi(x) == psi(x.astype(np.float64))
