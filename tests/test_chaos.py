"""The driver of the campaigns: what one of them found, or did not end with, is told from what is well."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

import chaos


@pytest.mark.parametrize(
    ("code", "seconds", "said"),
    [
        ("print('fine')", 60, "ok"),
        ("print('fine'); raise SystemExit(1)", 60, "found"),
        ("import subprocess, sys; print('fine', flush=True); subprocess.run(['sleep', '300'])", 3, "late"),
    ],
)
def test_how_a_campaign_ends(code: str, seconds: float, said: str, tmp_path: Path) -> None:
    begin = time.monotonic()
    outcome, _, line = chaos.outcome([sys.executable, "-c", code], tmp_path / "logs" / "x.log", seconds)
    assert (outcome, line) == (said, "fine")
    assert time.monotonic() - begin < 60


def test_every_campaign_is_there_and_bounded() -> None:
    scripts = {c.script for c in chaos.CAMPAIGNS}
    assert all((chaos.HERE / script).is_file() for script in scripts)
    assert {p.name for p in chaos.HERE.glob("chaos_*.py")} <= scripts
    assert sum(c.minutes for c in chaos.CAMPAIGNS) <= 8 * 60
    done = subprocess.run([sys.executable, chaos.__file__, "nothing"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
