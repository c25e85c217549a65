"""Every benchmark can be loaded; in RESULTS.md a run of them replaces its own parts and loses no other."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture
def runner(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("run")


@pytest.mark.torch
@pytest.mark.parametrize("name", sorted(path.stem for path in BENCHMARKS.glob("*.py")))
def test_a_script_finds_all_that_it_imports(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as missing:
        if missing.name is None or missing.name.startswith("proxskip"):
            raise
        pytest.skip(f"needs {missing.name}")


def test_a_run_replaces_its_own_part_and_loses_no_other(runner: ModuleType, tmp_path: Path) -> None:
    page = tmp_path / "new" / "RESULTS.md"
    runner.put(page, "machine A, 2 cores", "engine", "### Steps\n\n| a |\n|---|\n| 1 |")
    runner.put(page, "machine B, 16 cores", "engine", "### Steps\n\n| b |")
    runner.put(page, "machine A, 2 cores", "noise", "### Noise")
    runner.put(page, "machine A, 2 cores", "engine", "### Steps\n\n| c |")
    sections = runner.sections_of(page.read_text(encoding="utf-8"))
    assert sections["machine B, 16 cores"] == {"engine": "### Steps\n\n| b |"}
    assert sections["machine A, 2 cores"]["engine"] == "### Steps\n\n| c |"
    assert "### Noise" in sections["machine A, 2 cores"]["noise"]


def test_the_page_that_is_here_is_read_and_written_whole_and_every_part_is_a_script(runner: ModuleType) -> None:
    text = (BENCHMARKS / "RESULTS.md").read_text(encoding="utf-8")
    assert runner.page_of(runner.sections_of(text)) == text
    assert {command[0] for command in runner.PARTS.values()} <= {p.name for p in BENCHMARKS.glob("*.py")}
    assert runner.PARTS.keys() >= runner.QUICK | runner.NEEDS.keys()
