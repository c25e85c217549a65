"""The svmlight reader: good files read exactly, everything else is refused at its line and column."""

from __future__ import annotations

import bz2
import gzip
import hashlib
import pickle
import re
import resource
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_matrix
from sklearn.datasets import load_svmlight_file

from conftest import draws
from proxskip.data import svmlight
from proxskip.data.svmlight import DataError, Dataset, read_svmlight
from proxskip.types import InputError

GOOD = b"+1 1:0.5 3:2\n-1 2:-1e-3\n"


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("svmlight") / "file"


def read(path: Path, text: bytes, **options: int) -> Dataset:
    path.write_bytes(text)
    return read_svmlight(path, **options)


def same(one: Dataset, other: Dataset) -> bool:
    arrays = [(d.A.indptr, d.A.indices, d.A.data, d.b) for d in (one, other)]
    return one.A.shape == other.A.shape and all(map(np.array_equal, *arrays))


# -- what is read ------------------------------------------------------------------------------------------------------
def test_a_file_becomes_a_csr_matrix_and_its_raw_labels(tmp_path: Path) -> None:
    data = read(tmp_path / "toy", GOOD)
    A, b = data
    assert isinstance(A, csr_matrix)
    assert A.dtype == b.dtype == np.float64
    assert A.toarray().tolist() == [[0.5, 0, 2], [0, -1e-3, 0]]
    assert b.tolist() == [1, -1]
    assert (data.name, data.group, data.sha256) == ("toy", None, hashlib.sha256(GOOD).hexdigest())
    assert read(tmp_path / "one", b"1 1:1\n1 1:2\n").b.tolist() == [1, 1]  # one class is left to the problem


@pytest.mark.parametrize(
    "text",
    [
        GOOD.replace(b"\n", b"\r\n"),
        GOOD.rstrip() + b"\r",
        GOOD.replace(b"\n", b" \t \n"),
        b"\n\r\n  \n" + GOOD + b"\n\n",
        b"# a comment, \xff\x00 nan qid:1\n" + GOOD.replace(b"\n", b"# 7:7\n"),
        GOOD.replace(b"\n", b" # CRLF and a comment\r\n"),
        GOOD.replace(b" ", b"\t"),
        b"1 01:.5 2:0 3:2.\n-1.0 1:-0.0 2:-0.1E-2\n",
        gzip.compress(GOOD, mtime=0),  # known by its first bytes and not by its name
        bz2.compress(GOOD),
    ],
)
def test_harmless_variants_read_equal(tmp_path: Path, text: bytes) -> None:
    variant = read(tmp_path / "variant", text)
    assert same(variant, read(tmp_path / "plain.gz", GOOD))
    assert (variant.sha256 == hashlib.sha256(GOOD).hexdigest()) == (text[:2] in (b"\x1f\x8b", b"BZ"))


def test_zeros_are_dropped_and_count_as_columns_and_n_features_fixes_d(tmp_path: Path) -> None:
    A, _ = read(tmp_path / "zeros", b"1 1:0 2:3 5:0.0\n-1 4:-0\n")
    assert A.shape == (2, 5)
    assert A.data.tolist() == [3]
    A, b = read(tmp_path / "empty_rows", b"1\n-1\n1 2:1\n", n_features=7)
    assert (A.shape, b.size) == ((3, 7), 3)


# -- what is refused ---------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("line", "column", "reason"),
    [
        *((line, 3, "is not index:value") for line in (
            b"1 1:nan", b"1 1:inf", b"1 1:-Infinity", b"1 1:1_0", b"1 1_0:1", b"1 -1:1", b"1 +1:1", b"1 1.0:1",
            b"1 1e0:1", b"1 :1", b"1 3:", b"1 1:2:3", b"1 1: 2", b"1 1 :2", b"1 qid:3 1:1", b"1 1:0x10",
            b"1 1:" + b"1" * 2000, b"1 " + b"9" * 5000 + b":1", b"1 1:\xd9\xa1", b"1 1:1\x00", b"1 1:1\r2:1",
        )),
        *((line, 1, "is not a finite") for line in (
            b"nan 1:1", b"-inf 1:1", b"1_0 1:1", b"1:1 2:2", b"1,2 1:1", b"\xef\xbb\xbf1 1:1", b"1\x0b1:1",
        )),
        (b"1 1:1e400", 3, "too large for a 64-bit float"),
        (b"1e400 1:1", 1, "too large for a 64-bit float"),
        (b"1 0:1", 3, "the index 0 must be larger than 0"),
        (b"1 00:1", 3, "the index 0 must be larger than 0"),
        (b"1 2:1 2:3", 7, "the index 2 must be larger than 2"),
        (b"1 2:1 1:3", 7, "the index 1 must be larger than 2"),
        (b"1 2:0 1:3", 7, "the index 1 must be larger than 2"),
        (b"1 10000001:1", 3, "at most max_features = 10000000"),
        (b"1 4294967297:1", 3, "at most max_features"),
        (b"1 1:1 3", 7, "was the line cut"),
        (b"1 1:1 3:-", 7, "was the line cut"),
        (b"1 1:1 3:2e", 7, "was the line cut"),
    ],
)  # fmt: skip
def test_refused_at_its_line_and_column(tmp_path: Path, line: bytes, column: int, reason: str) -> None:
    path = tmp_path / "bad"
    with pytest.raises(DataError) as caught:
        read(path, b"# two lines\n+1 1:0.5\n" + line + b"\n1 1:1\n")
    error = pickle.loads(pickle.dumps(caught.value))
    assert str(error) == str(caught.value)
    assert (error.file, error.line, error.column) == (str(path), 3, column)
    assert reason in error.reason
    assert str(error) == f"{path}:3:{column}: {error.reason}"
    assert "\n" not in str(error)
    assert len(error.reason) < 140


@pytest.mark.parametrize(
    ("text", "options", "sentence"),
    [
        *((text, {}, "holds no rows") for text in (b"", b"\n", b"# only a comment", b" \r\n\t\n")),
        (gzip.compress(b"", mtime=0), {}, "holds no rows"),
        (bz2.compress(b""), {}, "holds no rows"),
        (b"1\n-1\n", {}, "give n_features"),
        (b"1 2:1\n1 3:1\n", {"n_features": 2}, ":2:3: the index 3 must be larger than 0 and at most n_features = 2"),
        *((GOOD, {"n_features": n}, "number of features") for n in (0, -1, 2**31)),
        (GOOD, {"max_bytes": len(GOOD) - 1}, "max_bytes"),
    ],
)
def test_a_file_is_refused(tmp_path: Path, text: bytes, options: dict[str, int], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        read(tmp_path / "file", text, **options)


def test_what_is_not_a_file_is_refused_and_the_cap_lets_its_own_size_through(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "missing"):
        with pytest.raises(InputError, match="there is no file"):
            read_svmlight(path)
    assert read(tmp_path / "fits", GOOD, max_bytes=len(GOOD)).b.size == 2


@pytest.mark.parametrize("kind", [gzip, bz2])
def test_damaged_compression_is_refused(tmp_path: Path, kind: ModuleType) -> None:
    packed = kind.compress(GOOD * 500)
    for cut in range(4, len(packed) - 1, max(1, len(packed) // 40)):
        with pytest.raises(DataError, match=r"end early|cannot be read"):
            read(tmp_path / "cut", packed[:cut])
    flipped = bytearray(packed)
    flipped[len(packed) // 2] ^= 0xFF
    with pytest.raises(DataError):
        read(tmp_path / "flipped", bytes(flipped))


@pytest.mark.parametrize(
    ("kind", "line", "megabytes", "options", "sentence"),
    [
        pytest.param(bz2, b"\n", 64, {"max_bytes": 5_000_000}, "more than max_bytes = 5000000", marks=pytest.mark.long),
        (gzip, b" ", 40, {}, "the line is longer than|more than 200 times the size"),
        pytest.param(gzip, b"1\n", 18, {}, "more than 200 times the size", marks=pytest.mark.slow),
    ],
)
def test_a_bomb_is_refused(
    tmp_path: Path, kind: ModuleType, line: bytes, megabytes: int, options: dict[str, int], sentence: str
) -> None:
    packed = kind.compress(line * (2**20 // len(line))) * megabytes
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(DataError, match=sentence):
        read(tmp_path / "bomb", packed, **options)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < (64 if options else 512) * 1024


# -- laws --------------------------------------------------------------------------------------------------------------
spaces = st.sampled_from([b" ", b"  ", b"\t"])
numbers = st.one_of(
    st.floats(allow_nan=False, allow_infinity=False).map(lambda v: repr(v).encode()),
    st.from_regex(rb"[+-]?[0-9]{1,17}\.?[0-9]{0,17}(e[+-]?[0-9]{1,2})?", fullmatch=True),
    st.sampled_from([b"1", b"-1", b"0", b"-0.0", b".5", b"5.", b"9007199254740993", b"0.30000000000000004"]),
)
junk = st.sampled_from([b"nan", b"1e999", b"1_0", b"", b":", b"-", b".", b"\xff", b"qid", b"+-1", b"1e", b"\r", b"0"])


@st.composite
def lines(draw: st.DrawFn) -> bytes:
    token = st.one_of(numbers, junk)
    indices = draw(st.lists(st.integers(1, 30), max_size=6))
    parts = [draw(token)]
    for i in indices if draw(st.booleans()) else sorted(indices):
        parts.append(b"%d:%s" % (i, draw(token)))
    text = draw(spaces).join(parts) + draw(st.sampled_from([b"", b" ", b" # c:1", b"\r"]))
    return draw(st.sampled_from([text, b"", b"#"])) if draw(st.integers(0, 9)) == 0 else text


ends = st.sampled_from([b"", b"\n", b"\r\n"])
files = st.builds(lambda rows, end: b"\n".join(rows) + end, st.lists(lines(), max_size=6), ends)


def plainly(text: bytes) -> list[tuple[float, list[int], list[float]]]:
    """The rows of good text, in three lines of Python."""
    rows = [line.partition(b"#")[0].split() for line in text.replace(b"\r", b"").split(b"\n")]
    pairs = [(float(row[0]), [t.split(b":") for t in row[1:]]) for row in rows if row]
    return [(label, [int(i) for i, _ in entries], [float(v) for _, v in entries]) for label, entries in pairs]


@settings(max_examples=draws(200))
@given(files)
@example(b"1 1:9007199254740993 2:0.1234567890123456 3:123456789012345.6\n")
@example(b"1 +1:1\n")
@example(b"1 0000000000000001:1\n")
@example(b"9999999999999999 1:-9007199254740993 2:.999999999999999 3:99999999999999.9\n")
@example(b"1 1:1\r\r\n")
@example(b"1 1:1\r")
@example(b"1 1:" + b"1" * 300 + b"." + b"2" * 999)
def test_a_block_is_read_bit_for_bit_or_has_an_error_at_a_place(text: bytes) -> None:
    rows = svmlight._parse(text, 10**7)
    if rows is None:
        error = svmlight._first_error("f", text, 1, 10**7, "max_features")
        assert 1 <= error.line <= text.count(b"\n") + 1
        return
    with pytest.raises(AssertionError):  # there is none
        svmlight._first_error("f", text, 1, 10**7, "max_features")
    labels, indices, values = zip(*plainly(text), strict=True) if plainly(text) else ((), (), ())
    A, b = rows
    assert b.tobytes() == np.array(labels, np.float64).tobytes()
    assert np.diff(A.indptr).tolist() == [len(v) for v in indices]
    assert (A.indices + 1).tolist() == [i for v in indices for i in v]
    assert A.data.tobytes() == np.array([v for row in values for v in row], np.float64).tobytes()


@settings(max_examples=draws(200))
@given(st.one_of(st.binary(max_size=60), files), st.integers(1, 40))
def test_errors_or_finite_sorted_rows_come_out_whatever_the_block(scratch: Path, text: bytes, size: int) -> None:
    found: list[Any] = []
    for block in (svmlight._BLOCK, size):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(svmlight, "_BLOCK", block)
            try:
                found.append(read(scratch, text))
            except DataError as error:
                assert error.line <= text.count(b"\n") + 1
                assert re.fullmatch(r"[^\n]*:\d+:\d+: [^\n]+[.?]", str(error))
                found.append(str(error))
    whole, parts = found
    if isinstance(whole, Dataset) and isinstance(parts, Dataset):
        assert same(whole, parts)
        assert whole.sha256 == parts.sha256
        assert whole.b.size == whole.A.shape[0] > 0
        assert np.isfinite([*whole.b, *whole.A.data]).all()
        assert (whole.A.data != 0).all()
        assert whole.A.has_canonical_format
    else:
        assert whole == parts


@pytest.mark.parametrize("name", ["w8a", "mushrooms", "a1a", "heart_scale"])
@pytest.mark.long
def test_real_sets_equal_what_scikit_learn_reads(proxskip_data: Path, name: str) -> None:
    X, y = load_svmlight_file(str(proxskip_data / f"{name}.gz"))
    A, b = read_svmlight(proxskip_data / f"{name}.gz")
    assert A.shape == X.shape
    assert (A != X).nnz == 0
    assert np.array_equal(b, y)


# -- bounded memory ----------------------------------------------------------------------------------------------------
MEASURE = """
import resource, sys
from proxskip.data.svmlight import read_svmlight
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
A, b = read_svmlight(sys.argv[1])
print(A.data.nbytes + A.indices.nbytes + A.indptr.nbytes + b.nbytes)
print(1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="ru_maxrss has other units elsewhere")
@pytest.mark.slow
@pytest.mark.parametrize("odd", [False, True])
def test_one_long_line_takes_no_more_than_three_times_its_data(odd: bool, tmp_path: Path) -> None:
    entries = b" ".join(b"%d:%d" % (k, k % 7 + 1) for k in range(1, 2_000_000))
    path = tmp_path / "long"
    path.write_bytes(b"1 " + entries + (b" 2000001:+.5e0 # odd\n" if odd else b"\n") + b"-1 5:2\n")
    run = [sys.executable, "-c", MEASURE, str(path)]
    data, peak = map(int, subprocess.run(run, capture_output=True, timeout=300, check=True).stdout.split())
    assert data > 20_000_000
    assert peak <= 3 * data + 2**26  # and what Python itself takes


def test_too_many_rows_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(svmlight, "MAX_ROWS", 5)
    with pytest.raises(DataError, match="more than 5 rows; split it"):
        read(tmp_path / "rows", b"1 1:1\n" * 6)
