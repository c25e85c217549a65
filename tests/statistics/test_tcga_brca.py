"""The loader of the breast cancer data, on files that were made up in the same format."""

from __future__ import annotations

import hashlib
import importlib.util
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "tcga_brca.py"


@pytest.fixture
def script() -> Any:
    spec = importlib.util.spec_from_file_location("tcga_brca", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Forty patients, of whom two have no part; a name with a comma is in quotes."""
    rng = np.random.default_rng(0)
    lines = ['pid,age_at_index,"primary_diagnosis_duct, NOS",stage_II,E,T']
    for k in range(40):
        numbers = [30 + k, int(rng.integers(2)), int(rng.integers(2)), float(k % 3 > 0), float(rng.integers(1, 3000))]
        lines.append(",".join([f"TCGA-{k:02d}", *map(str, numbers)]))
    (tmp_path / "brca.csv").write_text("\n".join(lines) + "\n")
    parts = [f"TCGA-{k:02d},{fold},{fold}_{k % 6}" for k in range(38) for fold in ["test" if k % 5 == 0 else "train"]]
    (tmp_path / "train_test_split.csv").write_text("\n".join(["pid,fold,fold2", *parts]) + "\n")
    return tmp_path


def test_the_columns_and_the_regions_are_read(script: Any, folder: Path) -> None:
    patients = script.read(folder)
    assert patients.names == ("age_at_index", "primary_diagnosis_duct, NOS", "stage_II")
    assert patients.A.shape == (38, 3)
    np.testing.assert_array_equal(patients.A[:, 0], 30 + np.arange(38))
    np.testing.assert_array_equal(patients.region, np.arange(38) % 6)
    np.testing.assert_array_equal(patients.is_test, np.arange(38) % 5 == 0)
    np.testing.assert_array_equal(patients.event, np.arange(38) % 3 > 0)
    assert patients.time.min() >= 1


def test_what_is_missing_or_another_file_is_said(script: Any, folder: Path, tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"^not here: .*brca.csv; run with --fetch, or save https://"):
        script.load(tmp_path / "nowhere")
    with pytest.raises(SystemExit, match="another file than that of the benchmark"):
        script.load(folder)
    (folder / "brca.csv").write_text("age,E,T\n1,2,3\n")
    with pytest.raises(SystemExit, match="does not have the columns pid"):
        script.read(folder)


def test_the_table_has_the_published_numbers_beside_it(
    script: Any, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The files stand in for the real ones, with checksums of their own."""
    own = {
        name: (url, hashlib.sha256((folder / name).read_bytes()).hexdigest()) for name, (url, _) in script.FILES.items()
    }
    monkeypatch.setattr(script, "FILES", own)
    monkeypatch.setattr(sys, "argv", ["tcga_brca.py", "--folder", str(folder)])
    script.main()
    head, columns, *rows, published = capsys.readouterr().out.splitlines()
    assert head == "30 patients to train in 6 regions, 8 to test, d = 3"
    assert columns.split()[:3] == ["l2", "rounds", "C-index"]
    assert len(rows) == 5
    assert all(0 < int(row.split()[1]) < 20 and 0 <= float(row.split()[2]) <= 1 for row in rows)
    assert published.startswith("published: pooled 0.704")
