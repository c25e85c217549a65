"""The driver of the campaigns: what one of them found, or did not end with, is told from what is well, and kept."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

import chaos

FINE = 'print(\'fine\'); print(\'{"done": 2, "wrong": %d, "most seconds": 1}\', flush=True)'


@pytest.mark.parametrize(
    ("code", "minutes", "said"),
    [
        (FINE % 0, 1, "ok"),
        (FINE % 1 + "; raise SystemExit(1)", 1, "found"),
        ("import subprocess; print('fine', flush=True); subprocess.run(['sleep', '300'])", 0.05, "late"),
        ("print('no figures'); raise SystemExit(1)", 1, "broke"),
    ],
)
def test_how_a_campaign_ends(
    code: str, minutes: float, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start, campaign = time.monotonic(), chaos.Campaign("one", "nothing", "none.py", 2, minutes, folder=tmp_path)
    campaign.run([sys.executable, "-c", code])
    assert time.monotonic() - start < 60
    assert f'"outcome": "{said}"' in (tmp_path / "one.json").read_text()
    assert (campaign.kept() is None) == (said in ("late", "broke"))  # which are made again
    well, line = campaign.row()
    assert well == (said == "ok")
    assert ("| 2 (FOUND) | 1 |" in line, "most seconds 1" in line) == (said == "found", said in ("ok", "found"))
    monkeypatch.setattr(chaos, "package", lambda: "another")
    assert campaign.kept() is None


def test_every_campaign_is_there_and_bounded() -> None:
    scripts = {c.script for c in chaos.CAMPAIGNS}
    assert all((chaos.HERE / script).is_file() for script in scripts)
    assert {p.name for p in chaos.HERE.glob("chaos_*.py")} <= scripts
    assert sum(c.minutes for c in chaos.CAMPAIGNS) <= 15 * 60
    least = {
        "workers": 100, "drivers": 20, "nodes": 10, "supernodes": 20, "wipes": 10, "schedules": 100_000,
        "messages": 100_000, "mutants": len(chaos.MUTANTS), "proofs": 2000, "audit-cpu": 200,
    }  # fmt: skip
    assert {c.name: c.count for c in chaos.CAMPAIGNS}.items() >= least.items()
    assert all(str(c.count) in c.command or c.name == "mutants" for c in chaos.CAMPAIGNS)
    for words, code in ((["nothing"], 2), (["--dry"], 1)):
        done = subprocess.run([sys.executable, chaos.__file__, *words], capture_output=True, timeout=60)
        assert done.returncode == code
        assert code == 2 or b"campaigns, not complete" in done.stdout
