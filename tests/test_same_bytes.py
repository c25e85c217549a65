"""The comparer behind ``benchmarks/same_bytes.py``: one byte is enough, and it is named."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"
OLD = {
    "cpu/gd/x": np.array([[1.0, 2.0], [3.0, np.nan]]),
    "cpu/gd/message": np.frombuffer(b"as asked", np.uint8),
    "cpu/scaffnew/x": np.zeros(3),
    "protocol/scaffnew/rounds": np.array(7),
}


@pytest.fixture(autouse=True)
def benchmarks(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    yield
    sys.modules.pop("same_bytes", None)


def compared(tmp_path: Path, new: dict[str, Any]) -> list[str]:
    import same_bytes

    for name, arrays in (("old", OLD), ("new", new)):
        np.savez(tmp_path / f"{name}.npz", **arrays)
    tallies = same_bytes.compare(*(same_bytes.load(tmp_path / f"{k}.npz") for k in ("old", "new")))
    assert "| all | 3 | 4 | 16 |" in "\n".join(same_bytes.report(tallies))
    return [line for t in tallies.values() for line in t.different]


def test_equal_files_and_new_fields_are_no_difference(tmp_path: Path) -> None:
    assert compared(tmp_path, OLD | {"cpu/gd/column": np.ones(2), "gpu/gd/x": np.ones(1)}) == []


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("cpu/gd/x", np.array([[1.0, 2.0], [np.nextafter(3.0, 4.0), np.nan]]), "1 of 4 numbers, first at [1, 0]"),
        ("cpu/scaffnew/x", np.array([0.0, -0.0, 0.0]), "1 of 3 numbers, first at [1]"),
        ("cpu/gd/message", np.frombuffer(b"as usual", np.uint8), 'is "as asked" in the old tree and "as usual"'),
        ("protocol/scaffnew/rounds", np.array(7.0), "is int64 () in the old tree and float64 ()"),
    ],
)
def test_one_byte_is_named(name: str, value: Any, said: str, tmp_path: Path) -> None:
    (line,) = compared(tmp_path, OLD | {name: value})
    engine, case, array = name.split("/")
    assert line.startswith(f"{engine}/{case}: {array} ")
    assert said in line


def test_what_is_missing_and_what_could_not_be_run_are_named(tmp_path: Path) -> None:
    raised = {"cpu/scaffnew/error": np.frombuffer(b"ValueError: no", np.uint8)}
    without = {k: v for k, v in OLD.items() if k != "cpu/scaffnew/x"}
    assert compared(tmp_path, without) == ["cpu/scaffnew: x is missing in the new tree."]
    assert compared(tmp_path, without | raised)[1] == "cpu/scaffnew: the new tree raised ValueError: no"
