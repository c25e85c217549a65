"""The comparer behind ``benchmarks/same_bytes.py``: one byte is enough, and it is named."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

OLD = {
    "cpu/gd/x": np.array([[1.0, 2.0], [3.0, np.nan]]),
    "cpu/gd/message": np.frombuffer(b"as asked", np.uint8),
    "cpu/scaffnew/x": np.zeros(3),
    "protocol/scaffnew/rounds": np.array(7),
}
RAISED, MISSING = np.frombuffer(b"ValueError: no", np.uint8), "cpu/scaffnew: x is missing in the new tree."


@pytest.mark.parametrize(
    ("new", "said"),
    [
        ({"cpu/gd/column": np.ones(2), "gpu/gd/x": np.ones(1)}, []),  # new fields are no difference
        (
            {"cpu/gd/x": np.array([[1.0, 2.0], [np.nextafter(3.0, 4.0), np.nan]])},
            ["cpu/gd: x | 1 of 4 numbers, first at [1, 0]"],
        ),
        ({"cpu/scaffnew/x": np.array([0.0, -0.0, 0.0])}, ["cpu/scaffnew: x | 1 of 3 numbers, first at [1]"]),
        (
            {"cpu/gd/message": np.frombuffer(b"as usual", np.uint8)},
            ['cpu/gd: message | is "as asked" in the old tree and "as usual"'],
        ),
        (
            {"protocol/scaffnew/rounds": np.array(7.0)},
            ["protocol/scaffnew: rounds | is int64 () in the old tree and float64 ()"],
        ),
        ({"cpu/scaffnew/x": None}, [MISSING]),
        (
            {"cpu/scaffnew/x": None, "cpu/scaffnew/error": RAISED},
            [MISSING, "cpu/scaffnew: the new tree raised ValueError: no"],
        ),
    ],
)
def test_one_byte_is_named(new: dict[str, Any], said: list[str], tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).resolve().parents[1] / "benchmarks"))
    import same_bytes

    for name, arrays in (("old", OLD), ("new", OLD | new)):
        np.savez(tmp_path / f"{name}.npz", **{k: v for k, v in arrays.items() if v is not None})
    tallies = same_bytes.compare(*(same_bytes.load(tmp_path / f"{k}.npz") for k in ("old", "new")))
    assert "| all | 3 | 4 | 16 |" in "\n".join(same_bytes.report(tallies))
    lines = [line for t in tallies.values() for line in t.different]
    assert len(lines) == len(said)
    for line, words in zip(lines, said, strict=True):
        begin, _, rest = words.partition("| ")
        assert line.startswith(begin)
        assert rest in line
