"""The driver of the campaigns: what one of them found, or did not end with, is told from what is well, and kept."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

import chaos

FINE = 'print(\'fine\'); print(\'{"done": 2, "wrong": %d, "most seconds": %d}\', flush=True)'


def part_of(code: str, place: Path, limit: float = 60, number: int = 0) -> chaos.Part:
    campaign = chaos.Campaign("one", "nothing", "none.py", 4, 2, 1)
    return chaos.Part(campaign, number, [sys.executable, "-c", code], limit, place)


@pytest.mark.parametrize(
    ("code", "limit", "said"),
    [
        (FINE % (0, 1), 60, "ok"),
        (FINE % (1, 1) + "; raise SystemExit(1)", 60, "found"),
        ("import subprocess; print('fine', flush=True); subprocess.run(['sleep', '300'])", 3, "late"),
        ("print('no figures'); raise SystemExit(1)", 60, "broke"),
    ],
)
def test_how_a_part_ends(code: str, limit: float, said: str, tmp_path: Path) -> None:
    begin, part = time.monotonic(), part_of(code, tmp_path, limit)
    chaos.make([part], 1, float("inf"))
    assert time.monotonic() - begin < 60
    assert f'"outcome": "{said}"' in (tmp_path / "one-0.json").read_text()
    assert (part.found() is None) == (said in ("late", "broke"))  # which are made again


def test_what_was_made_is_not_made_again_unless_the_package_is_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = [part_of(FINE % (0, k), tmp_path, number=k) for k in range(2)]
    chaos.make(parts[:1], 1, float("inf"))
    written = (tmp_path / "one-0.json").stat().st_mtime_ns
    chaos.make(parts, 2, float("inf"))
    assert (tmp_path / "one-0.json").stat().st_mtime_ns == written
    kept = [found for part in parts if (found := part.found())]
    assert chaos.figures(kept) == {"done": 4, "wrong": 0, "most seconds": 1}
    chaos.make([part_of(FINE % (0, 0), tmp_path, number=2)], 1, until=0.0)
    assert not (tmp_path / "one-2.json").exists()  # there is no time to begin it
    monkeypatch.setattr(chaos, "code", lambda: "another")
    assert [part.found() for part in parts] == [None, None]


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
    for c in chaos.CAMPAIGNS:
        counts = [int(word) for command in c.commands() for word in command[2:] if word.isdigit()]
        assert sum(counts) >= c.count
        assert len(c.commands()) == c.parts
    for words, code in ((["nothing"], 2), (["--dry"], None)):
        done = subprocess.run([sys.executable, chaos.__file__, *words], capture_output=True, timeout=60)
        assert done.returncode == code if code else b"campaigns, not complete" in done.stdout
