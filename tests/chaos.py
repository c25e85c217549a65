"""All campaigns one after the other, each within its time, and one table at the end; ``make chaos``.

    python tests/chaos.py                     all of them
    python tests/chaos.py interrupt ray       only these
    python tests/chaos.py --share 0.5         each within half of its time

Exits with 1 if a campaign found something, or did not end in time. What they print goes to build/chaos/NAME.log too.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
LOGS = HERE.parent / "build" / "chaos"


@dataclass(frozen=True)
class Campaign:
    """A script and the most minutes that it may take on two busy cores."""

    name: str
    script: str
    minutes: float


CAMPAIGNS = (
    Campaign("interrupt", "chaos_interrupt.py", 20),
    Campaign("protocol", "chaos_protocol.py", 60),
    Campaign("flower", "chaos_flower.py", 60),
    Campaign("mutants", "mutants.py", 60),
    Campaign("audit", "audit_mutants.py", 30),
    Campaign("proofs", "proofs.py", 45),
    Campaign("ray", "chaos_ray.py", 90),
)
"""Those that need nothing but the package first."""


def outcome(command: list[str], log: Path, seconds: float) -> tuple[str, float, str]:
    """(ok, found, late), the seconds and the last line of a command, which is ended with all that it started."""
    begin = time.monotonic()
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("w", encoding="utf-8") as out:
        # a session of its own, so that its Rays and federations end with it
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, start_new_session=True)
        try:
            said = "ok" if process.wait(seconds) == 0 else "found"
        except subprocess.TimeoutExpired:
            said = "late"
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    lines = [line for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    return said, time.monotonic() - begin, lines[-1] if lines else ""


def main() -> int:
    """Run them and print the table; 1 if one is not ok."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", choices=[[], *(c.name for c in CAMPAIGNS)], metavar="NAME")
    parser.add_argument("--share", type=float, default=1.0, help="of the minutes that each may take")
    o = parser.parse_args()
    rows = []
    for c in (c for c in CAMPAIGNS if not o.names or c.name in o.names):
        print(f"{c.name}: at most {c.minutes * o.share:g} minutes", flush=True)
        rows.append(
            (c.name, *outcome([sys.executable, str(HERE / c.script)], LOGS / f"{c.name}.log", 60 * c.minutes * o.share))
        )
    print(f"\n{'campaign':<12}{'outcome':<10}{'minutes':>8}   its last line")
    for name, said, seconds, line in rows:
        print(f"{name:<12}{said:<10}{seconds / 60:>8.1f}   {line[:100]}")
    bad = [name for name, said, *_ in rows if said != "ok"]
    print(f"{len(rows)} campaigns, not ok: {', '.join(bad) or 'none'}.")
    return int(bool(bad))


if __name__ == "__main__":
    sys.exit(main())
