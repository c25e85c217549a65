"""The example of five sites, in CI with two: real SuperNodes, and the table of all rows together."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from support.tiers import needs

pytestmark = [pytest.mark.stats, pytest.mark.flower, pytest.mark.slow, needs("lifelines"), needs("flwr")]
ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.timeout(900)
@pytest.mark.parametrize("count", [2, pytest.param(5, marks=pytest.mark.release)])
def test_the_table_of_the_sites_is_that_of_all_rows_in_every_printed_digit(count: int) -> None:
    script = ROOT / "examples" / "statistics" / "five_sites.py"
    done = subprocess.run(
        [sys.executable, str(script), str(count)], capture_output=True, text=True, timeout=850, env=dict(os.environ)
    )
    assert done.returncode == 0, done.stdout + done.stderr
    head, *lines = [line for line in done.stdout.splitlines() if line.startswith(("Cox", "age", "prio", "The two"))]
    assert re.fullmatch(rf"Cox regression: 432 rows on {count} clients; errors from the Hessian; [4-9] rounds", head)
    *tables, verdict = lines
    assert len(tables) == 4
    assert tables[:2] == tables[2:]
    assert verdict == "The two tables are equal in every printed digit."
