"""MNIST's files, and the table of NIID-Bench in its quick form."""

import gzip
import struct
from pathlib import Path
from typing import Any

import pytest

from proxskip import InputError
from proxskip.data import datasets
from proxskip.data.idx import read_idx

HEADER = b"\0\0\x08\x02" + struct.pack(">2I", 2, 3)


def test_idx_files_are_read_plain_and_compressed(tmp_path: Path) -> None:
    for name, content in (("a", HEADER + bytes(range(6))), ("a.gz", gzip.compress(HEADER + bytes(range(6))))):
        (tmp_path / name).write_bytes(content)
        assert read_idx(tmp_path / name).tolist() == [[0, 1, 2], [3, 4, 5]]


BAD = {
    "a": (b"", "no IDX file of unsigned bytes"),
    "b": (b"\0\0\x0d\x01" + bytes(8), "no IDX file of unsigned bytes"),
    "c": (HEADER[:9], "no IDX file of unsigned bytes"),
    "d": (HEADER + bytes(5), "its header says 2 x 3 bytes, and 5 follow"),
    "e": (HEADER + bytes(7), "and 7 follow"),
    "f.gz": (gzip.compress(HEADER + bytes(6))[:-9], "cannot be read"),
    "g.gz": (b"\x1f\x8b" + HEADER, "cannot be read"),
}


@pytest.mark.parametrize("name", list(BAD))
def test_bad_files_get_a_sentence(name: str, tmp_path: Path) -> None:
    content, words = BAD[name]
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=words):
        read_idx(tmp_path / name)
    with pytest.raises(InputError, match="there is no file"):
        read_idx(tmp_path / "missing")


def test_mnist_is_found_and_verified(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("PROXSKIP_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("PROXSKIP_DATA", raising=False)
    with pytest.raises(InputError, match="mnist is not on this machine"):
        datasets.mnist()
    (tmp_path / "mnist").mkdir()
    (tmp_path / "mnist" / "train-images-idx3-ubyte").write_bytes(HEADER + bytes(6))
    with pytest.raises(InputError, match="another checksum"):
        datasets.mnist(data_dir=tmp_path)


@pytest.mark.torch
@pytest.mark.slow
def test_the_table_of_niid_bench_in_its_quick_form(tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    pytest.importorskip("torch")
    monkeypatch.syspath_prepend(str(Path(__file__).resolve().parents[1] / "benchmarks"))
    import niid

    results = {(r["method"], r["split"]): r["accuracy"] for r in niid.main(["--quick", "--out", str(tmp_path)])}
    assert results["FedAvg", "iid"] >= 90
    assert results["AdamW + h", "labels-2"] >= 10 + results["AdamW", "labels-2"]
    assert len(list(tmp_path.glob("*.json"))) == len(results)
    assert "| two labels | 10 | AdamW + h |" in capsys.readouterr().out
