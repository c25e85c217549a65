"""The driver of the campaigns: what one of them found, or did not end with, is told from what is well, and kept."""

import subprocess
import sys
from pathlib import Path

import pytest

from campaigns import chaos

pytestmark = pytest.mark.long

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
def test_how_a_campaign_ends(code: str, minutes: float, said: str, tmp_path: Path) -> None:
    campaign = chaos.Campaign("one", "nothing", "none.py", 2, minutes, folder=tmp_path)
    campaign.run([sys.executable, "-c", code])
    assert f'"outcome": "{said}"' in (tmp_path / "one.json").read_text()
    assert (campaign.kept() is None) == (said in ("late", "broke"))  # which are made again
    assert campaign.row()[0] == (said == "ok")


def test_every_campaign_is_there_and_bounded() -> None:
    scripts = {c.script for c in chaos.CAMPAIGNS}
    assert all((chaos.HERE / script).is_file() for script in scripts)
    assert {p.name for p in chaos.HERE.glob("chaos_*.py")} <= scripts
    assert sum(c.minutes for c in chaos.CAMPAIGNS) <= 15 * 60
    done = subprocess.run([sys.executable, chaos.__file__, "--dry"], capture_output=True, timeout=60)
    assert (done.returncode, b"campaigns, not complete" in done.stdout) == (1, True)
