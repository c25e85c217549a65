"""Tables: reading one takes at most three times the memory of its data, and what it says of its size is not believed."""

from __future__ import annotations

import io
import time
import tracemalloc
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import proxskip as ps
from proxskip.data import tables
from proxskip.data.tables import Named, read_table

SLACK = 2**20
"""What Python itself takes."""
rng = np.random.Generator(np.random.Philox(1))


def write(folder: Path, kind: str, rows: int = 60_000) -> Path:
    """A table of 8 columns and a label."""
    path, label = folder / ("t.csv" if kind == "csv" else "t.npz"), np.arange(rows) % 2
    if kind == "csv":
        names = ",".join([*(f"c{k}" for k in range(8)), "label"])
        np.savetxt(path, np.column_stack([rng.random((rows, 8)), label]), "%.6f", ",", header=names, comments="")
    elif kind == "columns":
        np.savez(path, label=label, **{f"c{k}": rng.random(rows) for k in range(8)})
    elif kind == "long doubles":
        np.savez(path, label=label, X=rng.random((rows, 8)).astype(np.longdouble))
    elif kind == "others":  # which nobody asked for
        np.savez(path, label=label, X=rng.random((rows, 8)), Z=rng.random((4 * rows, 8)))
    else:
        np.savez_compressed(path, label=label, X=rng.integers(0, 200, (rows, 8)).astype(kind))
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
        with pytest.raises(ps.InputError, match=sentence):
            read_table(path)
    monkeypatch.setattr(tables, "MAX_EXPANSION", 10**6)
    with pytest.raises(ps.InputError, match="more than 2000000 bytes of numbers"):
        # which its own bytes are not, but the numbers they become
        read_table(write(tmp_path, "uint8"), max_bytes=2_000_000)


@pytest.mark.parametrize("given", [{"a": np.ones(3), "c": np.ones(4)}, {"a": np.ones(3), "label": np.ones(2)}])
def test_arrays_of_different_lengths_are_refused(given: dict[str, Any], tmp_path: Path) -> None:
    np.savez(tmp_path / "t.npz", **({"label": np.ones(3)} | given))
    with pytest.raises(ps.InputError, match="rows"):
        read_table(tmp_path / "t.npz")


def test_reading_a_table_takes_time_in_proportion_to_its_columns(tmp_path: Path) -> None:
    """Where every name is compared with all others, this takes minutes; half a second is enough."""
    names = [f"c{k}" for k in range(60_000)]
    path = tmp_path / "t.csv"
    path.write_text(",".join([*names, "label"]) + "\n" + "0.5," * len(names) + "1\n")
    began = time.monotonic()
    data = read_table(path)
    with pytest.raises(ps.InputError, match=r"two columns with the name 'c59999'"):
        Named().chosen([*names, names[-1]], "t.csv")
    assert time.monotonic() - began < 60
    assert data.A.shape == (1, len(names))
