"""Laws of traces: an append-only table whose numbers survive every format bit by bit."""

import csv
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from proxskip.results.trace import Trace
from proxskip.running.progress import clock
from proxskip.support import display
from proxskip.types import InputError

SPECIAL = [0.0, -0.0, math.nan, math.inf, -math.inf, 5e-324, -5e-324, 2.2250738585072014e-308, 1e308, 0.1, 1.0, 2.0**53]
SPECIAL += [2.0**53 + 2, -(2.0**53), 1e22, 1e16, 123456789.0, -7.0, 1 / 3, math.nextafter(1, 2), 1e-7]


def filled(values: Any, columns: tuple[str, ...] = ("a", "b")) -> Trace:
    """A trace whose columns hold ``values`` and its reverse."""
    trace = Trace(columns)
    for x, y in zip(values, reversed(list(values)), strict=True):
        trace.append({columns[0]: x, columns[1]: y})
    return trace


def same(a: Trace, b: Trace, nan_bits: bool = True) -> bool:
    def bits(array: np.ndarray) -> bytes:
        return (array if nan_bits else np.where(np.isnan(array), np.nan, array)).tobytes()

    return a.columns == b.columns and len(a) == len(b) and all(bits(a[c]) == bits(b[c]) for c in a.columns)


def test_append_and_read() -> None:
    trace = Trace(("round", "gap"))
    assert len(trace) == 0
    assert trace["gap"].shape == (0,)
    with pytest.raises(InputError, match="no rows"):
        trace.last()
    trace.append({"round": 0, "gap": np.float32(0.5)})
    trace.append({"gap": 1})
    trace.append({})
    assert trace.columns == ("round", "gap")
    np.testing.assert_array_equal(trace["round"], [0, np.nan, np.nan])
    np.testing.assert_array_equal(trace["gap"], [0.5, 1, np.nan])
    assert trace["gap"].dtype == np.float64
    assert list(trace.last()) == ["round", "gap"]
    assert "gap" in trace
    assert "f" not in trace


@pytest.mark.parametrize("bad", [{"a": 1, "f": 2}, {"a": "1"}, {"a": None}, {"a": b"1"}, {"a": 1j}, {"a": 10**400}])
def test_a_refused_row_leaves_no_part_of_itself(bad: Any) -> None:
    trace = filled([1.0])
    with pytest.raises(InputError):
        trace.append(bad)
    assert len(trace) == 1
    assert trace.last() == {"a": 1.0, "b": 1.0}


def test_unknown_column_names_the_known() -> None:
    trace = filled([1.0])
    for act in (lambda: trace["gap"], lambda: trace.append({"gap": 1.0})):
        with pytest.raises(InputError, match=r"no column 'gap'; there are a, b"):
            act()


def test_columns_read_are_history_and_read_only() -> None:
    trace = filled([1.0] * 16)
    before = trace["a"]
    with pytest.raises(ValueError, match="read-only"):
        before[0] = 2
    for _ in range(100):
        trace.append({"a": 3.0})
    assert before.tolist() == [1.0] * 16
    assert trace["a"].tolist() == [1.0] * 16 + [3.0] * 100
    trace.to_arrays()["a"][:] = 9
    assert trace["a"][0] == 1.0


def test_special_values_and_bit_patterns_round_trip(tmp_path: Path) -> None:
    patterns = np.random.default_rng(0).integers(0, 2**64, 10_000, dtype=np.uint64).view(np.float64)
    for trace in (filled(SPECIAL), Trace(("a", "b")), filled([1.0], ("a.b-c", "_")), filled(patterns.tolist())):
        trace.to_csv(tmp_path / "trace")
        lines = list(csv.reader((tmp_path / "trace").read_text().splitlines()))
        assert lines[0] == list(trace.columns)
        columns = {name: np.array([float(line[k]) for line in lines[1:]]) for k, name in enumerate(trace.columns)}
        assert same(Trace.from_arrays(columns), trace, nan_bits=False)
        assert same(Trace.from_arrays({"x": np.ones((2, 2))} | trace.to_arrays("t."), "t."), trace)


def test_csv_text(tmp_path: Path) -> None:
    filled([3, -0.0, 1e300, -math.inf, math.nan, -0.1]).to_csv(tmp_path / "trace")
    assert (tmp_path / "trace").read_bytes() == b"a,b\n3,-0.1\n-0.0,nan\n1e+300,-inf\n-inf,1e+300\nnan,-0.0\n-0.1,3\n"


NO_NAMES = ["", "a b", "=a", "'a", "a/b", "../a", "a\n", "ä", "1", 1, "a" * 65]
NO_ARRAYS = [{}, {"a": np.zeros(2, dtype=int)}, {"a": np.zeros((2, 1))}, {"a": np.zeros(2), "b": np.zeros(3)}]


@pytest.mark.parametrize(
    ("make", "given"),
    [
        *((Trace, columns) for columns in [(), "gap", ("a", "a"), ["a"], None, *((name,) for name in NO_NAMES)]),
        *((Trace.from_arrays, arrays) for arrays in NO_ARRAYS),
    ],
)
def test_refused_columns_and_arrays(make: Any, given: Any) -> None:
    with pytest.raises(InputError):
        make(given)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.4, "0 s"), (59.4, "59 s"), (59.6, "1:00 min"), (61, "1:01 min"), (3599, "59:59 min"), (3600, "1:00 h"),
     (3661, "1:01 h"), (86_340, "23:59 h"), (360_000, "100:00 h")],
)  # fmt: skip
def test_a_clock_carries_at_sixty(seconds: float, text: str) -> None:
    assert clock(seconds) == text


def test_a_long_parameter_shows_its_ends() -> None:
    assert display.short([1, 2, 3, 4, 5, 6]) == "[1, 2, 3, 4, 5, 6]"
    assert display.short([1, 2, 3, 4, 5, 6, 7]) == "(1, 2, ..., 7; 7 values)"
    assert display.short("a" * 118) == repr("a" * 118)
    long = "b" * 60 + "c" * 60
    assert display.short(long) == f"'{long[:79]}...{long[-29:]}'"
