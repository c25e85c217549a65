"""The package is typed for its users too: their programs pass mypy, and what is misspelt or of a wrong type does not."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import typed_program

pytest.importorskip("mypy")
PROGRAM = Path(__file__).parent / "typed_program.py"


def mypy(folder: Path, *programs: Path) -> str:
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(folder / "cache"), *map(str, programs)]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True).stdout


@pytest.mark.slow
def test_a_program_of_a_user_passes_mypy_in_strict_mode_and_faults_in_it_are_found(tmp_path: Path) -> None:
    text = PROGRAM.read_text("utf-8")
    right, wrong = tmp_path / "right.py", tmp_path / "wrong.py"
    right.write_text(text, "utf-8")
    wrong.write_text(
        text.replace("rounds=20, seed=1", "rounds=20, sede=1").replace("ps.GD.theory(own)", "ps.GD.theory(3)"), "utf-8"
    )
    faults = mypy(tmp_path, right, wrong)
    assert '"sede"' in faults
    assert 'Argument 1 to "theory"' in faults
    assert "Found 2 errors in 1 file (checked 2 source files)" in faults


def test_the_program_runs() -> None:
    assert typed_program.main() > 1.0
