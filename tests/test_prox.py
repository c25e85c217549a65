"""Laws that every proximity operator obeys, for every operator; a new one is one row of OPERATORS."""

import doctest
import math
import pickle
from typing import NamedTuple

import numpy as np
import pytest
import scipy.optimize
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from conftest import draws, thinned
from proxskip import prox
from proxskip.prox import (
    L1,
    L2,
    TV1D,
    Adapted,
    Blocks,
    Box,
    Consensus,
    Eigenvalues,
    ElasticNet,
    GroupL1,
    Huber,
    L1Ball,
    L2Ball,
    NonNegative,
    NuclearNorm,
    Simplex,
    Singleton,
    SingularValues,
    SquaredL2,
    Zero,
    as_prox,
    conjugate_prox,
    nuclear_ball,
    psd,
    spectral_ball,
)
from proxskip.types import InputError, Prox

d = 6


class Row(NamedTuple):
    psi: Prox
    conjugate: object
    """``prox_{t psi*}(y)`` found without Moreau's identity."""
    times: object = None
    """``c -> c * psi``; None for the indicator of a set, which is its own multiple."""


def clip_singular_values(y, t):
    U, s, V = np.linalg.svd(y.reshape(2, 3), full_matrices=False)
    return (U @ np.diag(np.minimum(s, 0.7)) @ V).ravel()


def on_singular_values(change):
    def conjugate(y, t):
        U, s, V = np.linalg.svd(y.reshape(2, 3), full_matrices=False)
        return (U @ np.diag(change(s, t)) @ V).ravel()

    return conjugate


def on_eigenvalues(y, change):
    """Of the symmetric part; what is antisymmetric has no bearing on symmetric matrices, and stays."""
    Y = y.reshape(2, 2)
    w, V = np.linalg.eigh((Y + Y.T) / 2)
    return ((V * change(w)) @ V.T + (Y - Y.T) / 2).ravel()


def negative_semidefinite(y):
    return on_eigenvalues(y, lambda w: np.minimum(w, 0))


def huber_conjugate(y, t):
    """Of ``lam H``: ``alpha/(2 lam) y^2`` within ``|y| <= lam``."""
    return np.clip(y / (1 + t * 0.3 / 0.7), -0.7, 0.7)


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
    return np.zeros(d) if np.abs(y).sum() <= mass else np.sign(y) * cut(np.abs(y), mass)


def support_of_box(lo, hi):
    """The prox of ``sum_i max(lo_i y_i, hi_i y_i)``: each y_i moves towards zero and stops there."""
    return lambda y, t: np.where(y > t * hi, y - t * hi, np.where(y < t * lo, y - t * lo, 0.0))


def elastic_conjugate(y, t):
    return np.where(np.abs(y) <= 0.4, y, (y + np.sign(y) * t * 0.4 / 1.5) / (1 + t / 1.5))


def group_balls(y, t):
    return np.concatenate([L2Ball(0.6).prox(part, t) for part in np.split(y, [1, 4])])


LO, HI = np.array([-1, 0, 0.5, -2, -9, -0.1]), np.array([1, 3, 0.5, -1, 9, 0])
OPERATORS = {
    "Zero": Row(Zero(), lambda y, t: np.zeros(d), lambda c: Zero()),
    "L1": Row(L1(0.7), lambda y, t: np.clip(y, -0.7, 0.7), lambda c: L1(0.7 * c)),
    "L2": Row(L2(0.7), L2Ball(0.7).prox, lambda c: L2(0.7 * c)),
    "SquaredL2": Row(SquaredL2(2.5), lambda y, t: y / (1 + t / 2.5), lambda c: SquaredL2(2.5 * c)),
    "ElasticNet": Row(ElasticNet(0.4, 1.5), elastic_conjugate, lambda c: ElasticNet(0.4 * c, 1.5 * c)),
    "GroupL1": Row(GroupL1(0.6, (1, 3, 2)), group_balls, lambda c: GroupL1(0.6 * c, (1, 3, 2))),
    "NuclearNorm": Row(NuclearNorm(0.7, (2, 3)), clip_singular_values, lambda c: NuclearNorm(0.7 * c, (2, 3))),
    "Box": Row(Box(-0.5, 2.0), support_of_box(-0.5, 2.0)),
    "Box by coordinate": Row(Box(tuple(LO), tuple(HI)), support_of_box(LO, HI)),
    "Box half open": Row(Box(-math.inf, 1.0), lambda y, t: np.maximum(y - t, 0)),
    "NonNegative": Row(NonNegative(), lambda y, t: np.minimum(y, 0)),
    "Simplex": Row(Simplex(), lambda y, t: cut(y, t)),
    "Simplex of 30": Row(Simplex(30.0), lambda y, t: cut(y, 30 * t)),
    "L1Ball": Row(L1Ball(1.5), lambda y, t: cut_both_sides(y, 1.5 * t)),
    "L2Ball": Row(L2Ball(1.5), L2(1.5).prox),
    "Singleton": Row(Singleton(), lambda y, t: y),
    "Huber": Row(Huber(0.7, 0.3), huber_conjugate, lambda c: Huber(0.7 * c, 0.3)),
    "TV1D": Row(TV1D(0.6), chain_conjugate, lambda c: TV1D(0.6 * c)),
    "SingularValues": Row(
        SingularValues(ElasticNet(0.4, 1.5), (2, 3)),
        on_singular_values(elastic_conjugate),
        lambda c: SingularValues(ElasticNet(0.4 * c, 1.5 * c), (2, 3)),
    ),
    "spectral ball": Row(spectral_ball(1.5, (2, 3)), on_singular_values(lambda s, t: L1(1.5).prox(s, t))),
    "nuclear ball": Row(nuclear_ball(1.5, (2, 3)), on_singular_values(lambda s, t: s - L1Ball(1.5 * t).prox(s, 1.0))),
    "Blocks": Row(
        Blocks([L1(0.7), SquaredL2(2.5)], [2, 4]),
        lambda y, t: np.concatenate([np.clip(y[:2], -0.7, 0.7), y[2:] / (1 + t / 2.5)]),
        lambda c: Blocks([L1(0.7 * c), SquaredL2(2.5 * c)], [2, 4]),
    ),
    "Blocks of sets": Row(
        Blocks([NonNegative(), L2Ball(1.5)], [2, 4]),
        lambda y, t: np.concatenate([np.minimum(y[:2], 0), L2(1.5).prox(y[2:], t)]),
    ),
    "positive semidefinite, then a set": Row(
        Blocks([psd(2), NonNegative()], [4, 2]),
        lambda y, t: np.concatenate([negative_semidefinite(y[:4]), np.minimum(y[4:], 0)]),
    ),
    "Eigenvalues, then L1": Row(
        Blocks([Eigenvalues(L1(0.7), 2), L1(0.3)], [4, 2]),
        lambda y, t: np.concatenate(
            [on_eigenvalues(y[:4], lambda w: np.clip(w, -0.7, 0.7)), np.clip(y[4:], -0.3, 0.3)]
        ),
        lambda c: Blocks([Eigenvalues(L1(0.7 * c), 2), L1(0.3 * c)], [4, 2]),
    ),
    "Consensus": Row(Consensus(3), lambda y, t: y - np.tile(y.reshape(3, 2).mean(axis=0), 3)),
}
SETS = [name for name, row in OPERATORS.items() if row.times is None]

numbers = st.one_of(st.floats(-100, 100, allow_subnormal=False), st.integers(-3, 3).map(float))
vectors = arrays(np.float64, d, elements=numbers)
steps = st.floats(-3, 3).map(lambda power: 10.0**power)
seeds = st.integers(0, 2**32)


def law(function):
    """For every operator, many random inputs."""
    return pytest.mark.parametrize("name", OPERATORS)(settings(max_examples=draws(25))(function))


def size(*arrays_):
    return 1 + sum(float(np.linalg.norm(a)) for a in arrays_)


def objective(psi, y, x, t):
    return psi(y) + np.sum((y - x) ** 2) / (2 * t)


# the laws


@law
@given(x=vectors, t=steps)
def test_moreau_identity(name, x, t):
    psi, conjugate, _ = OPERATORS[name]
    expected = conjugate(x / t, 1 / t)
    np.testing.assert_allclose(psi.prox(x, t) + t * expected, x, rtol=0, atol=1e-12 * size(x))
    np.testing.assert_allclose(conjugate_prox(psi, x, t), conjugate(x, t), rtol=0, atol=1e-12 * size(x))


def firm_excess(psi, x, y, t):
    """Left minus right side of the paper's lemma on firm nonexpansiveness, relative to rounding."""
    P, R = psi.prox(x, t), psi.prox(y, t)
    Q, S = x - P, y - R
    excess = np.sum((P - R) ** 2) + np.sum((Q - S) ** 2) - np.sum((x - y) ** 2)
    return excess / (size(x, y) * (np.linalg.norm(x - y) + np.linalg.norm(P - R) + 1e-300))


@law
@given(x=vectors, y=vectors, t=steps)
def test_firm_nonexpansiveness(name, x, y, t):
    psi = OPERATORS[name].psi
    assert firm_excess(psi, x, y, t) <= 1e-12
    assert firm_excess(psi, x, x + 1e-3 * y, t) <= 1e-12


@pytest.mark.parametrize("name", thinned(OPERATORS, 12))
@pytest.mark.long
def test_moreau_and_firm_nonexpansiveness_on_a_thousand_scales(name):
    psi, conjugate, _ = OPERATORS[name]
    rng = np.random.default_rng(0)
    for _ in range(1000):
        x, y = rng.standard_normal((2, d)) * 10.0 ** rng.uniform(-4, 4, (2, 1))
        t = 10.0 ** rng.uniform(-4, 4)
        assert firm_excess(psi, x, y, t) <= 1e-12
        moved = psi.prox(x, t) + t * conjugate(x / t, 1 / t) - x
        assert np.linalg.norm(moved) <= 1e-12 * size(x)


@law
@given(x=vectors, t=steps, seed=seeds)
def test_no_other_point_has_a_smaller_objective(name, x, t, seed):
    """Strong convexity says by how much: ``objective(z) >= objective(P) + |z - P|^2 / (2 t)``."""
    psi, rng = OPERATORS[name].psi, np.random.default_rng(seed)
    P = psi.prox(x, t)
    least = objective(psi, P, x, t)
    assert math.isfinite(least)
    near = psi.prox(x + rng.standard_normal(d) * 0.1 * size(x), t)
    far = psi.prox(rng.standard_normal(d) * 10.0 ** rng.uniform(-2, 3), t)
    away = P + rng.standard_normal(d) * 10.0 ** rng.uniform(-3, 1)
    for z in (near, far, away, (P + near) / 2, 0.9 * P + 0.1 * far):
        value = objective(psi, z, x, t)
        if math.isfinite(value):
            slack = 1e-12 * (value + least) + prox.INSIDE * size(x) * size(z) / t
            assert value - least >= np.sum((z - P) ** 2) / (2 * t) - slack


@law
@given(x=vectors, t=steps, s=steps)
def test_the_step_taken_is_a_subgradient_for_every_other_step(name, x, t, s):
    """``u = (x - P)/t`` is a subgradient at P, so ``prox(P + s u, s) = P`` for every s."""
    psi = OPERATORS[name].psi
    P = psi.prox(x, t)
    u = (x - P) / t
    np.testing.assert_allclose(psi.prox(P + s * u, s), P, rtol=0, atol=1e-12 * size(x, P, s * u, s * x / t))


@law
@given(x=vectors, t=steps)
def test_a_step_t_on_psi_is_a_unit_step_on_t_times_psi(name, x, t):
    psi, _, times = OPERATORS[name]
    other = times(t) if times else psi
    np.testing.assert_allclose(psi.prox(x, t), other.prox(x, 1.0), rtol=0, atol=1e-13 * size(x))
    if times:
        assert other(x) == pytest.approx(t * psi(x), rel=1e-12)


@law
@given(x=vectors, t=steps)
def test_minimisers_are_the_fixed_points(name, x, t):
    psi = OPERATORS[name].psi
    lowest = psi.prox(x, 1.0) if name in SETS else np.zeros(d)
    np.testing.assert_allclose(psi.prox(lowest, t), lowest, rtol=0, atol=1e-13 * size(lowest))
    assert psi(lowest) == 0
    if psi(x) > 1e-3 * size(x):
        assert not np.array_equal(psi.prox(x, t), x)


@law
@given(x=vectors, t=steps)
def test_a_prox_gives_a_new_array_and_leaves_its_input_alone(name, x, t):
    psi = OPERATORS[name].psi
    before = x.copy()
    x.setflags(write=False)
    P = psi.prox(x, t)
    psi(x)
    assert not np.shares_memory(P, x)
    assert P.flags.writeable
    assert np.array_equal(x, before)
    assert P.dtype == np.float64
    assert isinstance(psi(x), float)
    stacked = psi.prox(x.reshape(2, 3), t)
    assert stacked.shape == (2, 3)
    assert np.array_equal(stacked.ravel(), P)
    assert np.array_equal(psi.prox(x.astype(np.float32), t), psi.prox(x.astype(np.float32).astype(float), t))


@pytest.mark.parametrize("name", OPERATORS)
@pytest.mark.parametrize("t", [0, -1.0, math.nan, math.inf])
def test_a_step_must_be_positive(name, t):
    with pytest.raises(InputError, match="positive and finite, not t = "):
        OPERATORS[name].psi.prox(np.ones(d), t)
    with pytest.raises(InputError, match="positive and finite, not t = "):
        conjugate_prox(OPERATORS[name].psi, np.ones(d), t)


@pytest.mark.parametrize("name", OPERATORS)
def test_nothing_hides_a_nan(name):
    x = np.arange(d) - 2.0
    x[1] = math.nan
    if name != "Singleton":
        assert np.isnan(OPERATORS[name].psi.prox(x, 1.0)).any() or name == "Zero"
    if name in SETS:
        assert OPERATORS[name].psi(x) == math.inf


# values


ONE_D = [L1(0.7), L2(0.7), SquaredL2(2.5), ElasticNet(0.4, 1.5), GroupL1(0.6, (1,)), NuclearNorm(0.7, (1, 1))]


@pytest.mark.parametrize("psi", ONE_D, ids=lambda psi: type(psi).__name__)
@settings(max_examples=draws(15))
@given(x=st.floats(-5, 5), t=st.floats(0.05, 5))
def test_on_the_line_a_search_finds_the_same_point(psi, x, t):
    grid = np.linspace(-6, 6, 601)
    values = [psi(np.array([y])) for y in grid] + (grid - x) ** 2 / (2 * t)
    assert abs(psi.prox(np.array([x]), t)[0] - grid[np.argmin(values)]) <= 0.0101


def test_values_by_hand():
    x = np.array([3.0, -4.0, 0.0, 0.0])
    assert L1(2.0)(x) == 14
    assert L2(2.0)(x) == 10
    assert SquaredL2(2.0)(x) == 25
    assert ElasticNet(1.0, 2.0)(x) == 32
    assert GroupL1(2.0, (1, 2, 1))(x) == 14
    assert NuclearNorm(2.0, (2, 2))(x) == pytest.approx(10)
    assert Zero()(x) == 0
    assert L1(1.0).prox(x, 2.0).tolist() == [1, -2, 0, 0]
    assert L2(1.0).prox(x, 2.5).tolist() == [1.5, -2, 0, 0]
    assert Simplex().prox(np.array([0.5, 0.5, -7]), 9.0).tolist() == [0.5, 0.5, 0]
    assert Simplex(3.0).prox(x, 1.0).tolist() == [3, 0, 0, 0]
    assert L1Ball(1.0).prox(x, 1.0).tolist() == [0, -1, 0, 0]
    assert L2Ball(1.0).prox(x, 1.0).tolist() == [0.6000000000000001, -0.8, 0, 0]
    assert Consensus(2).prox(x, 7.0).tolist() == [1.5, -2, 1.5, -2]


@pytest.mark.parametrize(
    ("psi", "inside", "outside"),
    [
        (Box(-1.0, 2.0), [-1, 2 + 1e-10], [-1, 2 + 1e-8]),
        (Box((0, 5), (1, 6)), [0.5, 5], [5, 0.5]),
        (NonNegative(), [0, 1, -1e-10], [0, 1, -1e-8]),
        (Simplex(2.0), [0.5, 1.5 + 1e-10], [0.5, 1.6]),
        (Simplex(2.0), [2.0, 0.0], [3.0, -1.0]),
        (L1Ball(2.0), [-0.5, 1.5 + 1e-10], [-0.5, 1.6]),
        (L2Ball(5.0), [3, -4 - 1e-10], [3, -4.1]),
        (L2Ball(1e-12), [1e-12, 0], [2e-12, 0]),
        (Singleton(), [0, 1e-10], [0, 1e-8]),
        (Consensus(2), [1e3, 2, 1e3 + 1e-7, 2], [1, 2, 1, 2 + 1e-8]),
    ],
)
def test_a_set_is_zero_inside_and_infinite_outside(psi, inside, outside):
    assert psi(np.array(inside, dtype=float)) == 0
    assert psi(np.array(outside, dtype=float)) == math.inf


@settings(max_examples=draws(100))
@given(x=vectors, shift=st.floats(-1e8, 1e8))
def test_the_simplex_is_reached_exactly_however_far_away(x, shift):
    P = Simplex().prox(x + shift, 1.0)
    assert (P >= 0).all()
    assert abs(P.sum() - 1) <= 1e-14


def test_no_numbers_at_all():
    for psi in (
        Zero(),
        L1(1.0),
        L2(1.0),
        Box(0, 1),
        NonNegative(),
        L1Ball(),
        L2Ball(),
        Singleton(),
        Consensus(2),
    ):
        assert psi.prox(np.zeros(0), 1.0).shape == (0,)
        assert psi(np.zeros(0)) == 0


# parameters


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: L1(-1.0), "L1 needs a finite lam >= 0, not lam = -1"),
        (lambda: L1(math.nan), "lam = nan"),
        (lambda: L2(-0.1), "L2 needs"),
        (lambda: SquaredL2(math.inf), "SquaredL2 needs"),
        (lambda: ElasticNet(-1.0, 1.0), "l1 = -1"),
        (lambda: ElasticNet(1.0, -1.0), "l2 = -1"),
        (lambda: GroupL1(-1.0, (2,)), "lam = -1"),
        (lambda: GroupL1(1.0, (2, 0)), r"\(2, 0\)"),
        (lambda: GroupL1(1.0, ()), r"\(\)"),
        (lambda: Box(1.0, 0.0), "lo <= hi, .* lo = 1.0 and hi = 0.0"),
        (lambda: Box((0, 3), 2.0), r"lo = 3.0 and hi = 2.0 \(at 1\)"),
        (lambda: Box(math.nan, 1.0), "lo = nan"),
        (lambda: Box(math.inf, math.inf), "lo = inf"),
        (lambda: Box((0, 0), (1, 1, 1)), "2 lower bounds but 3 upper"),
        (lambda: Simplex(0.0), "Simplex needs a finite radius > 0, not radius = 0"),
        (lambda: L1Ball(-1.0), "L1Ball needs"),
        (lambda: L2Ball(math.nan), "L2Ball needs"),
        (lambda: NuclearNorm(-1.0, (2, 2)), "lam = -1"),
        (lambda: NuclearNorm(1.0, (2,)), r"\(2,\)"),
        (lambda: Consensus(0), "n = 0"),
        (lambda: GroupL1(1.0, (2, 2)).prox(np.ones(5), 1.0), "GroupL1 is made for 4 numbers, not for 5"),
        (lambda: Box((0, 0), (1, 1)).prox(np.ones(1), 1.0), "Box is made for 2 numbers, not for 1"),
        (lambda: NuclearNorm(1.0, (2, 2))(np.ones(5)), "NuclearNorm is made for 4 numbers, not for 5"),
        (lambda: NuclearNorm(1.0, (2, 2)).prox(np.ones(5), 1.0), "NuclearNorm is made for 4 numbers"),
        (lambda: Consensus(2).prox(np.ones(5), 1.0), r"Consensus\(2\) cannot cut 5 numbers"),
    ],
)
def test_wrong_parameters_say_what_is_wrong(make, sentence):
    with pytest.raises(InputError, match=sentence):
        make()


@pytest.mark.parametrize("name", OPERATORS)
def test_operators_are_values(name):
    psi = OPERATORS[name].psi
    assert pickle.loads(pickle.dumps(psi)) == psi
    assert hash(psi) == hash(pickle.loads(pickle.dumps(psi)))
    assert isinstance(psi, Prox)
    assert as_prox(psi) is psi


# operators of others


class HalfSquare:
    """In the manner of pyproximal: its own precision, value a numpy scalar; x is seen in its own shape."""

    def __call__(self, x):
        assert x.shape == (2, 2)
        return np.float32(np.sum(x**2) / 2)

    def prox(self, x, tau):
        assert x.shape == (2, 2)
        x /= 1 + tau
        return x.astype(np.float32)


class Ball:
    """In the manner of pyproximal's indicators: the value is a bool."""

    def __call__(self, x):
        return np.linalg.norm(x) <= 1

    def prox(self, x, tau):
        return x / max(1, np.linalg.norm(x))


class Wrong(Ball):
    def __init__(self, answer):
        self.answer = answer

    def prox(self, x, tau):
        return self.answer


def test_operators_of_others_are_adapted():
    x = np.array([[1.0, -2.0], [3.0, 0.5]])
    before = x.copy()
    psi = as_prox(HalfSquare())
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


def test_indicators_of_others_are_zero_or_infinite():
    psi = as_prox(Ball())
    assert psi(np.array([0.6, 0.8])) == 0.0
    assert psi(np.array([0.6, 0.9])) == math.inf
    np.testing.assert_allclose(psi.prox(np.array([3.0, 4.0]), 1.0), [0.6, 0.8])


def test_what_an_operator_returns_is_never_shared():
    buffer = np.zeros(3)
    psi = as_prox(Wrong(buffer))
    psi.prox(np.ones(3), 1.0)[0] = 5
    assert buffer[0] == 0


@pytest.mark.parametrize("answer", [np.zeros(3), 1.0, np.zeros((4, 1)), 1j * np.ones(4), None])
def test_a_prox_of_another_shape_or_kind_is_refused(answer):
    with pytest.raises(InputError, match="the prox of Wrong gave"):
        as_prox(Wrong(answer)).prox(np.ones(4), 1.0)


@pytest.mark.parametrize(
    ("obj", "sentence"),
    [
        (np.abs, r"needs a method prox\(x, t\), which ufunc"),
        (3.0, "which float does not have"),
        (L1, r"the class L1 and not an operator; write L1\(\.\.\.\)"),
        (type("NoValue", (), {"prox": lambda self, x, t: x})(), "NoValue cannot be called"),
    ],
)
def test_what_is_no_operator_is_refused(obj, sentence):
    with pytest.raises(InputError, match=sentence):
        as_prox(obj)


def test_none_stays_none():
    assert as_prox(None) is None


def test_examples_in_docstrings_run():
    assert doctest.testmod(prox).failed == 0


def test_numbers_that_are_whole_or_huge():
    assert prox.TV1D(1.0)(np.array([1, 0], np.uint8)) == 1.0
    assert np.allclose(prox.L2Ball().prox(np.array([1e200, 0.0]), 1.0), [1.0, 0.0])


def test_values_of_small_integers_do_not_overflow():
    x = np.array([100, -128, 100, 100], dtype=np.int8)
    for psi in (prox.L1(0.5), prox.L2(0.5), prox.GroupL1(0.5, (2, 2)), prox.Huber(0.5, 1.0), prox.SquaredL2(0.5)):
        assert psi(x) == psi(x.astype(np.float64))


@pytest.mark.parametrize("groups", [[[0, 1], [2, 3]], [[0, 1], [2]], 5, [], [2, 0], [1.5, 2.5], "ab"])
def test_groups_that_are_no_sizes_get_a_sentence(groups):
    with pytest.raises(InputError, match="needs group sizes"):
        prox.GroupL1(0.5, groups)


def test_a_matrix_of_the_transposed_shape_is_refused():
    with pytest.raises(InputError, match="made for shape"):
        prox.NuclearNorm(0.5, (2, 3)).prox(np.zeros((3, 2)), 1.0)
