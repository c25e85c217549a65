"""Every codec obeys its laws: unbiased, of bounded variance, of exactly its bits, and the same bytes everywhere."""

from __future__ import annotations

import hashlib
import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import proxskip as ps
from proxskip.codecs import Codec, Float32, Identity, Key, L1Selection, Masks, Natural, Ownership, RandK, parse
from proxskip.codecs import read_back as read
from proxskip.codecs.fields import smallest
from support.tiers import draws

TEXTS = (
    "identity", "float32", "natural", "rand-2", "rand-3+float32", "rand-2+natural", "masks-2", "masks-2+natural", "l1-1",
    "l1-3", "l1-2+natural",
)  # fmt: skip
every_text = pytest.mark.parametrize("text", TEXTS)
KEY = Key(7, 3, 1, 1, 3)


def means(codec: Codec, v: Any, keys: Any) -> tuple[Any, float]:
    """The mean of what is read over equally likely keys, and the mean square error."""
    reads = np.array([read(codec, v, key) for key in keys])
    return reads.mean(axis=0), float(np.mean(np.sum((reads - v) ** 2, axis=1)))


class Words(Key):
    """A key whose random words are given."""

    __slots__ = ("given",)

    def __init__(self, words: Any) -> None:
        super().__init__(0, 0, 0)
        object.__setattr__(self, "given", np.array(words, dtype=np.uint64))

    def words(self, count: int, name: str = "codec") -> Any:
        assert count == len(self.given)
        return self.given


# -- unbiased, and the variance ----------------------------------------------------------------------------------------
@pytest.mark.parametrize("k", [1, 2, 4, 5, 9])
def test_random_coordinates_by_enumeration(k: int) -> None:
    """All sets of k are drawn; over them the mean is exact and the variance omega |v|^2, with equality."""
    d, v = 5, np.array([1.0, -2.0, 0.5, 3.0, 0.0])
    by_set = {tuple(RandK(k).chosen(d, key)): key for key in (Key(1, r, 0) for r in range(400))}
    assert set(by_set) == set(itertools.combinations(range(d), min(k, d)))
    mean, error = means(RandK(k), v, by_set.values())
    assert np.allclose(mean, v, rtol=1e-14, atol=1e-14)
    assert error == pytest.approx(RandK(k).omega(d) * float(v @ v), abs=1e-12)


@pytest.mark.parametrize("k", [1, 2, 10, 299, 300])
def test_random_places_are_those_of_the_smallest_words_in_their_order(k: int) -> None:
    for seed in range(5):
        words = np.random.default_rng(seed).integers(2**64, size=300, dtype=np.uint64)
        words[7] = words[200] = words[90]  # a tie
        assert smallest(words, k).tolist() == np.argsort(words >> np.uint64(9), kind="stable")[:k].tolist()


def test_random_coordinates_are_equally_likely_and_every_part_of_a_key_matters() -> None:
    drawn = [tuple(RandK(2).chosen(5, Key(4, r, 0))) for r in range(2000)]
    often = [drawn.count(pair) for pair in itertools.combinations(range(5), 2)]
    assert sum(often) == 2000
    assert max(abs(k - 200) for k in often) < 5 * np.sqrt(200)
    for part in ("client", "vector", "exchange", "attempt"):
        keys = (Key(**{"seed": 4, "round": 0, "client": 0, part: i}) for i in range(80))
        assert len({tuple(RandK(2).chosen(5, key)) for key in keys}) == 10, part


@pytest.mark.parametrize("x", [1.5, -3.3, 1.0, 2.0**-126, -(2.0**-125) * 1.7, 2.0**126 * 1.9, 6.02e23])
def test_natural_compression_rounds_up_for_exactly_as_many_words_as_its_mantissa_says(x: float) -> None:
    """m of the 2^52 words round up, so the mean is exactly x; and the variance is at most x^2/8."""
    low = 2.0 ** np.floor(np.log2(abs(x))) * np.sign(x)
    m = int((abs(x) / abs(low) - 1) * 2**52)
    for word, wanted in ((m - 1, 2 * low), (m, low), (0, 2 * low if m else low), (2**52 - 1, low)):
        if word >= 0:
            assert read(Natural(), np.array([x]), Words([word << 12])) == [wanted]
    up = m / 2**52
    assert low * (1 - up) + 2 * low * up == x
    assert (x - low) ** 2 * (1 - up) + (2 * low - x) ** 2 * up <= x * x / 8 * (1 + 1e-12)


def test_natural_compression_below_its_smallest_power() -> None:
    """0 or 2^-126, with the probability that makes the mean right to 2^-179."""
    tiny = 2.0**-126
    for x in (tiny / 2, -tiny / 4, tiny * (1 - 2.0**-52), 5e-324, 1e-300):
        m = int(np.ceil(abs(x) / tiny * 2**53))
        assert read(Natural(), np.array([x]), Words([(m - 1) << 11])) == [np.sign(x) * tiny]
        assert read(Natural(), np.array([x]), Words([m << 11])) == [0.0]
        assert abs(m / 2**53 * tiny - abs(x)) <= 2.0**-179


@pytest.mark.parametrize("k", [1, 2])
def test_selection_by_size_by_enumeration(k: int) -> None:
    """|x|_1 = 8, so eight words at equal distances draw every coordinate as often as its size says."""
    v = np.array([1.0, -2.0, 0.0, 5.0])
    keys = [Words([w << 61 for w in pick]) for pick in itertools.product(range(8), repeat=k)]
    mean, error = means(L1Selection(k), v, keys)
    assert np.array_equal(mean, v)
    assert error == pytest.approx((64 - float(v @ v)) / k)
    assert error <= L1Selection(k).omega(4) * float(v @ v)
    flat = np.array([2.0, -2.0, 2.0, 2.0])
    assert means(L1Selection(k), flat, keys)[1] == pytest.approx(L1Selection(k).omega(4) * 16)  # the bound is reached


def test_masks_by_enumeration() -> None:
    """Every coordinate has s owners; over the permutations the mean of one client's is exact, omega asked/s - 1."""
    codec, d, v = Masks(2), 5, np.arange(1.0, 6.0)
    by_masks = {}
    for r in range(200):
        keys = [Key(4, r, 10 + j, j, 3) for j in range(3)]
        owned = np.array([codec.owned(d, key) for key in keys])
        assert (owned.sum(axis=0) == 2).all()
        assert sum(codec.floats(d, key) for key in keys) == 2 * d
        assert np.array_equal([read(Ownership(2), v, key) for key in keys], owned)
        assert np.allclose(np.mean([read(codec, v, key) for key in keys], axis=0), v, rtol=1e-15)
        by_masks[owned.tobytes()] = keys[0]
    assert len(by_masks) == 6
    mean, error = means(codec, v, by_masks.values())
    assert np.allclose(mean, v, rtol=1e-14)
    assert error == pytest.approx((3 / 2 - 1) * float(v @ v))


@pytest.mark.parametrize("text", ["rand-2+natural", "rand-3+float32", "l1-2+natural"])
def test_the_mean_and_the_variance_of_compositions(text: str) -> None:
    """Within five standard errors; what a composition adds is (1 + omega_1)(1 + omega_2) - 1."""
    codec, v = parse(text), np.array([1.5, -2.7, 0.3, 0.0, 5.1, -0.4])
    reads = np.array([read(codec, v, Key(5, r, 0)) for r in range(1000)])
    error = reads.std(axis=0, ddof=1) / np.sqrt(len(reads))
    assert np.all(np.abs(reads.mean(axis=0) - v) <= 5 * error + 2.0**-24 * np.abs(v))
    squares = np.sum((reads - v) ** 2, axis=1)
    bound = codec.omega(len(v)) * float(v @ v)
    assert squares.mean() <= bound + 5 * squares.std() / np.sqrt(len(reads))


@pytest.mark.parametrize(("text", "unbiased"), [("float32", False), ("rand-2+float32", False), ("rand-2", True)])
def test_locodl_takes_codecs_that_round_to_nearest_and_claims_no_rate(text: str, unbiased: bool) -> None:
    problem = ps.Problem(ps.random_quadratics(3, 4, seed=1))
    method = ps.LoCoDL.theory(problem, codec=text)
    assert parse(text).unbiased == unbiased
    assert method.check(problem) == []
    assert (method.zeta(problem) is not None) == unbiased


@every_text
@given(d=st.integers(1, 70), seed=st.integers(0, 2**64 - 1), client=st.integers(0, 9))
@settings(max_examples=draws(60))
def test_a_message_has_exactly_its_bits(text: str, d: int, seed: int, client: int) -> None:
    codec, key = parse(text), Key(seed, 5, client, client % 3, 3)
    v = np.random.Generator(np.random.Philox(d)).standard_normal(d)
    data, bits = codec.encode(v, key), codec.bits(d, key)
    assert len(data) == -(-bits // 8)
    if bits % 8:
        assert data[-1] & ((1 << (-bits % 8)) - 1) == 0
    found = codec.decode(data, d, key)
    assert (found.shape, found.dtype) == ((d,), np.float64)
    assert np.isfinite(found).all()
    assert codec.encode(v, key) == data


@pytest.mark.parametrize(
    ("text", "bits", "omega"),
    [
        ("natural", 90, 1 / 8),
        ("rand-20", 640, 0.0),
        ("rand-3+natural", 27, 10 / 3 * 9 / 8 - 1),
        ("l1-2+natural", 19, None),
        ("masks-2", None, np.inf),  # it depends on how many are asked
    ],
)
def test_sizes_and_variances_for_ten_unknowns(text: str, bits: int | None, omega: float | None) -> None:
    assert bits is None or parse(text).bits(10, KEY) == bits
    assert omega is None or parse(text).omega(10) == pytest.approx(omega, abs=1e-12)


FORMAT = "a274b13651393af1cf52e9726e98590cf69daa3d9099ebf5c37f7814ede24f34"
"""The format of the messages: with another one, two releases could not talk to each other."""


def test_messages_are_the_same_on_every_platform() -> None:
    rng = np.random.Philox(key=11).random_raw(400)
    v = ((rng >> np.uint64(12)) * 2.0**-52 - 0.5) * np.repeat([1.0, 1e-30, 1e30, 1e-45], 100)
    digest = hashlib.sha256()
    for text in TEXTS:
        for key in (KEY, Key(2**63, 2**31, 12345, 0, 7, 1, 2, 3)):
            data = parse(text).encode(v, key)
            digest.update(data)
            digest.update(parse(text).decode(data, len(v), key).astype("<f8").tobytes())
    assert digest.hexdigest() == FORMAT


# -- numbers that are none, and messages that nobody sent --------------------------------------------------------------
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("text", ["identity", "float32", "natural", "rand-3", "rand-3+natural", "l1-2", "l1-2+natural"])
def test_what_is_not_finite_is_read_as_such(text: str, bad: float) -> None:
    v = np.array([bad, bad, bad])
    assert not np.isfinite(read(parse(text), v, KEY)).any() or text.startswith("l1")
    assert not np.isfinite(read(parse(text), v, KEY)).all()


def test_zero_is_zero_and_signs_stay() -> None:
    for text in TEXTS:
        assert not read(parse(text), np.zeros(6), KEY).any(), text
    assert np.signbit(read(Natural(), np.array([-0.0, 0.0, -5e-324]), KEY)).tolist() == [True, False, True]
    assert np.isinf(read(Natural(), np.array([1.7e308, -3e38]), Words([0, 0]))).all()
    assert np.isinf(read(Float32(), np.array([1e300]), KEY)).all()


@pytest.mark.parametrize("text", [t for t in TEXTS if t != "identity"])
@given(junk=st.binary(min_size=40, max_size=40), d=st.integers(1, 9))
@settings(max_examples=draws(60))
def test_any_bytes_of_the_right_length_are_read_as_some_vector(text: str, junk: bytes, d: int) -> None:
    codec = parse(text)
    size = -(-codec.bits(d, KEY) // 8)
    found = codec.decode(junk[:size] + bytes(max(0, size - 40)), d, KEY)
    assert (found.shape, found.dtype) == ((d,), np.float64)
    for wrong in (junk[: size - 1] if size else b"x", junk[:size] + b"\0" * 9):
        if len(wrong) != size:
            with pytest.raises(ps.InputError, match="bytes"):
                codec.decode(wrong, d, KEY)


def test_messages_that_no_encoder_writes_are_no_numbers() -> None:
    signaling = bytes.fromhex("0000817f")
    assert np.isnan(Float32().decode(signaling, 1, KEY)).all()
    data = Identity().encode(np.array([1.0]), KEY) + bytes([0b01110000])  # sign 0, index 7 of 5 coordinates
    assert np.isnan(L1Selection(1).decode(data, 5, KEY)).all()


@every_text
def test_text_and_back(text: str) -> None:
    assert str(parse(text)) == text
    assert ps.codecs.as_codec(text) == parse(text) == ps.codecs.as_codec(parse(text))
    assert parse("rand-2+identity") == RandK(2)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: parse("top-2"), 'codec "top-2" is not known; use identity'),
        *((lambda text=text: parse(text), "is not known") for text in ("", "rand", "rand--1", "natural+rand-2")),
        (lambda: parse("rand-0"), "rand-0 is invalid"),
        (lambda: RandK(2, RandK(1)), "cannot send its numbers as rand-1"),
        (lambda: Masks(True), "is invalid"),
    ],
)
def test_other_codecs_are_refused(make: Any, says: str) -> None:
    with pytest.raises(ps.InputError, match=says):
        make()
