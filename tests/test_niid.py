"""MNIST's files, and the table of NIID-Bench in its quick form."""

import gzip
import hashlib
import importlib
import struct
from pathlib import Path
from typing import Any

import pytest

from proxskip import InputError

HEADER = b"\0\0\x08\x02" + struct.pack(">2I", 2, 3)


@pytest.fixture
def read_idx(monkeypatch: Any) -> Any:
    monkeypatch.syspath_prepend(str(Path(__file__).resolve().parents[1] / "benchmarks"))
    return importlib.import_module("mnist").read_idx


@pytest.mark.parametrize("name", ["a", "a.gz"])
def test_idx_files_are_read_plain_and_compressed(name: str, tmp_path: Path, read_idx: Any) -> None:
    content = HEADER + bytes(range(6))
    sha256 = hashlib.sha256(content).hexdigest()
    (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    assert read_idx(tmp_path / name, sha256).tolist() == [[0, 1, 2], [3, 4, 5]]
    with pytest.raises(InputError, match="another checksum"):
        read_idx(tmp_path / name, "0" * 64)


@pytest.mark.parametrize("content", [gzip.compress(HEADER)[:-9], b"<html>please log in</html>"], ids=["cut", "page"])
def test_a_damaged_download_is_one_sentence(content: bytes, tmp_path: Path, read_idx: Any) -> None:
    (tmp_path / "a.gz").write_bytes(content)
    with pytest.raises(InputError, match=r"cannot be read .*; remove it"):
        read_idx(tmp_path / "a.gz", "0" * 64)


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
