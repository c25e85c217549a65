"""Laws of traces: an append-only table whose numbers survive every format bit by bit."""

from __future__ import annotations

import csv
import doctest
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from conftest import draws
from proxskip.results import trace as trace_module
from proxskip.results.checkpoint import load, save
from proxskip.results.trace import Trace, _cell
from proxskip.types import InputError

SPECIAL = [0.0, -0.0, math.nan, math.inf, -math.inf, 5e-324, -5e-324, 2.2250738585072014e-308, 1e308, 0.1, 1.0, 2.0**53]
SPECIAL += [2.0**53 + 2, -(2.0**53), 1e22, 1e16, 123456789.0, -7.0, 1 / 3, math.nextafter(1, 2), 1e-7]

quick = settings(max_examples=draws(100), suppress_health_check=[HealthCheck.function_scoped_fixture])


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


# ------------------------------------------------------------------------------------------------ the table


def test_append_and_read() -> None:
    trace = Trace(("round", "gap"))
    assert len(trace) == 0
    assert trace["gap"].shape == (0,)
    trace.append({"round": 0, "gap": np.float32(0.5)})
    trace.append({"gap": 1})
    trace.append({})
    assert trace.columns == ("round", "gap")
    assert len(trace) == 3
    np.testing.assert_array_equal(trace["round"], [0, np.nan, np.nan])
    np.testing.assert_array_equal(trace["gap"], [0.5, 1, np.nan])
    assert trace["gap"].dtype == np.float64
    assert list(trace.last()) == ["round", "gap"]
    assert "gap" in trace
    assert "f" not in trace
    assert repr(trace).startswith("Trace: 3 records, 2 columns\n")


@pytest.mark.parametrize("bad", [{"a": 1, "f": 2}, {"a": "1"}, {"a": None}, {"a": b"1"}, {"a": 1j}, {"a": 10**400}])
def test_a_refused_row_leaves_no_part_of_itself(bad: Any) -> None:
    trace = filled([1.0])
    with pytest.raises(InputError):
        trace.append(bad)
    assert len(trace) == 1
    assert trace.last() == {"a": 1.0, "b": 1.0}


def test_unknown_column_names_the_known() -> None:
    trace = filled([1.0])
    with pytest.raises(InputError, match=r"no column 'gap'; there are a, b"):
        trace["gap"]
    with pytest.raises(InputError, match=r"no column 'gap'; there are a, b"):
        trace.append({"gap": 1.0})


def test_columns_read_are_history_and_read_only() -> None:
    trace = filled([1.0] * 16)
    before = trace["a"]
    with pytest.raises(ValueError, match="read-only"):
        before[0] = 2
    for _ in range(100):
        trace.append({"a": 3.0})
    assert before.tolist() == [1.0] * 16
    assert trace["a"][16] == 3.0
    copy = trace.to_arrays()["a"]
    copy[:] = 9
    assert trace["a"][0] == 1.0


def test_append_is_amortised_constant(monkeypatch: pytest.MonkeyPatch) -> None:
    grown, real = [], np.hstack
    monkeypatch.setattr(trace_module.np, "hstack", lambda tables: grown.append(1) or real(tables))  # type: ignore[func-returns-value]
    trace = Trace(("a",))
    for k in range(20_000):
        trace.append({"a": k})
    assert len(grown) < 16
    assert trace["a"].tolist() == list(range(20_000))


def test_last_of_nothing() -> None:
    with pytest.raises(InputError, match="no rows"):
        Trace(("a",)).last()


NO_NAMES = ["", "a b", "=a", "'a", "a/b", "../a", "a\n", "ä", "1", 1, "a" * 65]


@pytest.mark.parametrize("columns", [(), "gap", ("a", "a"), ["a"], None, *((name,) for name in NO_NAMES)])
def test_refused_columns(columns: Any) -> None:
    with pytest.raises(InputError):
        Trace(columns)


# -------------------------------------------------------------------------------------------------- formats


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "trace"


def round_trips(trace: Trace, path: Path) -> None:
    trace.to_csv(path)
    lines = list(csv.reader(path.read_text().splitlines()))
    assert lines[0] == list(trace.columns)
    columns = {name: np.array([float(line[k]) for line in lines[1:]]) for k, name in enumerate(trace.columns)}
    assert same(Trace.from_arrays(columns), trace, nan_bits=False)
    assert same(Trace.from_arrays(trace.to_arrays()), trace)
    assert [p.name for p in path.parent.iterdir()] == [path.name]


def test_special_values_round_trip(path: Path) -> None:
    round_trips(filled(SPECIAL), path)
    round_trips(Trace(("a", "b")), path)
    round_trips(filled([1.0], ("a.b-c", "_")), path)


@quick
@given(values=st.lists(st.floats(allow_subnormal=True), min_size=100, max_size=100))
def test_ten_thousand_floats_round_trip(path: Path, values: list[float]) -> None:
    round_trips(filled(values), path)


def test_ten_thousand_bit_patterns_round_trip(path: Path) -> None:
    values = np.random.default_rng(0).integers(0, 2**64, 10_000, dtype=np.uint64).view(np.float64)
    round_trips(Trace.from_arrays({"a": values, "b": values[::-1]}), path)


def test_a_loaded_trace_goes_on() -> None:
    for length in (0, 20):
        trace = filled([1.0] * length)
        again = Trace.from_arrays(trace.to_arrays())
        again.append({"a": 2.0})
        assert again["a"].tolist() == [1.0] * length + [2.0]
        assert len(trace) == length


def test_inside_a_checkpoint(tmp_path: Path) -> None:
    trace = filled(SPECIAL)
    save(tmp_path, {"x": np.ones((2, 2))} | trace.to_arrays("trace."), {})
    assert same(Trace.from_arrays(load(tmp_path).arrays, "trace."), trace)


def test_csv_text(path: Path) -> None:
    trace = Trace(("round", "gap"))
    trace.append({"round": 3, "gap": -0.1})
    trace.append({"round": -0.0})
    trace.append({"round": 1e300, "gap": -math.inf})
    trace.to_csv(path)
    assert path.read_bytes() == b"round,gap\n3,-0.1\n-0.0,nan\n1e+300,-inf\n"


def test_numbers_are_exact_in_a_csv() -> None:
    for number, text in {-1.0: "-1", -1.5: "-1.5", -math.inf: "-inf", 5.0: "5", -0.0: "-0.0"}.items():
        assert _cell(number) == text
    for number in SPECIAL:
        assert np.float64(_cell(number)).tobytes() == np.float64(number).tobytes()


@pytest.mark.parametrize(
    "arrays",
    [
        {},
        {"a": np.zeros(2, dtype=np.float32)},
        {"a": np.zeros(2, dtype=int)},
        {"a": np.zeros((2, 1))},
        {"a": np.array(1.0)},
        {"a": np.zeros(2), "b": np.zeros(3)},
        {"a b": np.zeros(2)},
    ],
)
def test_refused_arrays(arrays: dict[str, np.ndarray]) -> None:
    with pytest.raises(InputError):
        Trace.from_arrays(arrays)


def test_examples_in_docstrings() -> None:
    result = doctest.testmod(trace_module)
    assert result.attempted > 0
    assert result.failed == 0
