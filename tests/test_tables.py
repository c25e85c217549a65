"""Tables: read exactly or refused at a place, in three times the memory of the data; sizes in a file are not believed."""

from __future__ import annotations

import csv
import gzip
import io
import re
import time
import tracemalloc
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import proxskip as ps
from proxskip.data import tables
from proxskip.data.svmlight import DataError
from proxskip.data.tables import Named, read_table
from proxskip.types import InputError

RNG = np.random.default_rng(0)
X, Y, G = RNG.normal(size=(40, 3)), np.arange(40) % 2, np.arange(40) // 10
SLACK = 2**20
"""What Python itself takes."""


# -- what is read and refused -----------------------------------------------------------------------------------------
def written(path: Path, label: str = "label") -> Path:
    names, rows = ["a", "b", "c", label, "site"], np.column_stack([X, Y, G])
    if path.suffix == ".csv":
        with path.open("w", newline="") as file:
            csv.writer(file).writerows([names, *[[repr(float(v)) for v in row] for row in rows]])
    else:
        np.savez(path, **{name: rows[:, k] for k, name in enumerate(names)})
    return path


@pytest.mark.parametrize("ending", [".csv", ".npz"])
def test_tables_are_read_exactly(ending: str, tmp_path: Path) -> None:
    path = written(tmp_path / f"table{ending}")
    data = ps.datasets.load(path, group="site")
    assert np.array_equal(data.A, X)
    assert np.array_equal(data.b, Y)
    assert np.array_equal(data.group, G)  # type: ignore[arg-type]
    assert data.name == "table"
    some = ps.datasets.load(path, label="b", columns=["c", "a"])
    assert np.array_equal(some.A, X[:, [2, 0]])
    assert np.array_equal(some.b, X[:, 1])
    assert some.sha256 == data.sha256


@pytest.mark.parametrize("ending", [".csv", ".npz"])
def test_the_command_line_reads_tables_and_resumes_them(ending: str, tmp_path: Path, call: Any) -> None:
    path, out = written(tmp_path / f"table{ending}", label="ill"), tmp_path / "run"
    flags = ("--data", path, "--label", "ill", "--columns", "a,c", "--group", "site", "--split", "group")
    assert call("run", "scaffnew", *flags, "--rounds", "5", "--out", out)[0] == 0
    assert call("resume", out, "--rounds", "8")[0] == 0
    model = ps.Logistic(X[:, [0, 2]], Y, l2=1e-4, l2_relative=True)
    wanted = ps.run("scaffnew", ps.split(model, by="group", groups=G), rounds=8)
    assert np.array_equal(np.load(out / "x.npy"), wanted.x)


def test_compressed_csv_and_the_matrix_of_an_npz(tmp_path: Path) -> None:
    packed = gzip.compress(written(tmp_path / "table.csv").read_bytes())
    (tmp_path / "table.csv.gz").write_bytes(packed)
    assert np.array_equal(read_table(tmp_path / "table.csv.gz").A[:, :3], X)
    with pytest.raises(InputError, match="max_bytes"):
        read_table(tmp_path / "table.csv.gz", max_bytes=1000)
    np.savez_compressed(tmp_path / "m.npz", X=X, y=Y)
    assert np.array_equal(read_table(tmp_path / "m.npz").A, X)


@pytest.mark.parametrize(("text", "said"), [
    ("", "the file is empty"),
    ("a,label\n", "holds no rows"),
    ("a,label\n1,0\n2\n", "table.csv:3:1: 1 cells under 2 columns"),
    ("a,label\n1,0\n1,\n", "table.csv:3:2: '' in the column 'label'"),
    ("a,label\nnan,0\n", "not a finite number"),
    ("a,label\n1,0\n\"2,1\n", "not CSV"),
    ("a,a,label\n1,2,0\n", "two columns"),
    ("label\n1\n", "no column besides"),
    ("a,label\n\xff,1\n", "UTF-8"),
])  # fmt: skip
def test_bad_csv_is_refused_with_its_place(text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "table.csv").write_text(text, encoding="latin-1")
    with pytest.raises(InputError, match=re.escape(said)):
        read_table(tmp_path / "table.csv")


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_bad_npz_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "bad.npz"
    path.write_bytes(b"PK")
    with pytest.raises(InputError, match="not an NPZ file"):
        read_table(path)
    cases: list[tuple[dict[str, Any], dict[str, int], str]] = [
        ({"X": X, "y": np.array([{}] * 40, dtype=object)}, {}, "not an NPZ file"),
        ({"label": np.ones(3), "a": np.ones(3), "c": np.ones(4)}, {}, "rows"),
        ({"label": np.ones(2), "a": np.ones(3)}, {}, "rows"),
        ({"X": X, "y": Y}, {"max_bytes": 100}, r"would hold .* bytes"),
    ]
    for arrays, limits, said in cases:
        np.savez(path, **arrays)
        with pytest.raises(InputError, match=said):
            read_table(path, **limits)
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("y.npy", archive.read("y.npy"))
    with pytest.raises(InputError, match="two columns with the name 'y'"):
        read_table(path)


@pytest.mark.slow
def test_a_table_that_unpacks_to_far_more_than_its_size_is_refused(tmp_path: Path) -> None:
    (tmp_path / "bomb.csv.gz").write_bytes(gzip.compress(b"a,label\n" + (b"1." + b"0" * 500 + b",0\n") * 2**16))
    with pytest.raises(DataError, match="times the size"):
        read_table(tmp_path / "bomb.csv.gz")


# -- memory and time ---------------------------------------------------------------------------------------------------
def write(folder: Path, kind: str, rows: int = 60_000) -> Path:
    path, label = folder / ("t.csv" if kind == "csv" else "t.npz"), np.arange(rows) % 2
    if kind == "csv":
        names = ",".join([*(f"c{k}" for k in range(8)), "label"])
        np.savetxt(path, np.column_stack([RNG.random((rows, 8)), label]), "%.6f", ",", header=names, comments="")
    elif kind == "columns":
        np.savez(path, label=label, **{f"c{k}": RNG.random(rows) for k in range(8)})
    elif kind == "long doubles":
        np.savez(path, label=label, X=RNG.random((rows, 8)).astype(np.longdouble))
    elif kind == "others":  # which nobody asked for
        np.savez(path, label=label, X=RNG.random((rows, 8)), Z=RNG.random((4 * rows, 8)))
    else:
        np.savez_compressed(path, label=label, X=RNG.integers(0, 200, (rows, 8)).astype(kind))
    return path


CSV = pytest.param("csv", marks=pytest.mark.slow)


@pytest.mark.parametrize("kind", ["columns", "others", "int64", "uint8", "float64", "long doubles", CSV])
def test_reading_a_file_takes_three_times_its_data(kind: str, tmp_path: Path) -> None:
    path = write(tmp_path, kind)
    tracemalloc.start()
    try:
        found = read_table(path)
        data, peak = found.A.nbytes + found.b.nbytes, tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert data > 3 * SLACK
    assert peak <= 3 * data + (3 if kind == "csv" else 1) * SLACK  # and a block of text


def forged(path: Path, header: bytes) -> None:
    """An NPZ file of an X of 6 entries whose header says this of it, and labels."""
    labels = io.BytesIO()
    np.save(labels, np.array([0.0, 1.0, 1.0]))
    with zipfile.ZipFile(path, "w") as archive:
        size = len(header).to_bytes(2, "little")
        archive.writestr("X.npy", b"\x93NUMPY\x01\x00" + size + header + np.ones(6).tobytes())
        archive.writestr("label.npy", labels.getvalue())


def test_what_an_npz_file_says_of_its_size_is_not_believed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, header = tmp_path / "t.npz", b"{'descr': '<f8', 'fortran_order': False, 'shape': (%d, 2)}\n"
    forged(path, header % 3)
    assert read_table(path).A.shape == (3, 2)
    wrong = [(header % rows, "damaged") for rows in (4, 2**40, 2**62)]
    for broken, sentence in [*wrong, (header.replace(b"<f8", b"|O") % 3, "."), (b"no header\n", "."), (b"{}\n", ".")]:
        forged(path, broken)
        with pytest.raises(InputError, match=sentence):
            read_table(path)
    monkeypatch.setattr(tables, "MAX_EXPANSION", 10**6)
    with pytest.raises(InputError, match="more than 2000000 bytes of numbers"):
        # which its own bytes are not, but the numbers they become
        read_table(write(tmp_path, "uint8"), max_bytes=2_000_000)


def test_reading_a_table_takes_time_in_proportion_to_its_columns(tmp_path: Path) -> None:
    """Where every name is compared with all others, this takes minutes; half a second is enough."""
    names = [f"c{k}" for k in range(60_000)]
    path = tmp_path / "t.csv"
    path.write_text(",".join([*names, "label"]) + "\n" + "0.5," * len(names) + "1\n")
    began = time.monotonic()
    data = read_table(path)
    with pytest.raises(InputError, match=r"two columns with the name 'c59999'"):
        Named().chosen([*names, names[-1]], "t.csv")
    assert time.monotonic() - began < 60
    assert data.A.shape == (1, len(names))
