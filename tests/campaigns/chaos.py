"""All campaigns one after another, each within its time, and one table at the end; ``make chaos``.

    python tests/campaigns/chaos.py                       all of them
    python tests/campaigns/chaos.py workers drivers       only these
    python tests/campaigns/chaos.py --dry                 what there is, and what is left of it
    python tests/campaigns/chaos.py --page                write the table into docs/reliability.md

What a campaign found is kept in build/chaos with what it printed. It is not made again as long as the package is the
same, so that an interrupted run goes on where it was. Exits with 1 unless every campaign ended and found nothing.
"""

import argparse
import hashlib
import json
import os
import platform
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # for campaigns and support

from campaigns.mutants import MUTANTS

HERE = Path(__file__).resolve().parent
PAGE = HERE.parents[1] / "docs" / "reliability.md"
MARKS = ("<!-- chaos: begin -->\n", "<!-- chaos: end -->\n")


def tell(done: int, wrong: int, **more: Any) -> int:
    """The last line of a campaign's script, which is read here; its exit code."""
    print(json.dumps({"done": done, "wrong": wrong, **more}), flush=True)
    return int(wrong > 0)


@cache
def package() -> str:
    """Eight digits of the package's source: campaigns with another one are made again."""
    seal = hashlib.sha256()
    for path in sorted((HERE.parents[1] / "src").rglob("*.py")):
        seal.update(path.read_bytes())
    return seal.hexdigest()[:8]


@dataclass(frozen=True)
class Campaign:
    """A script, how often it does what it does, and the most minutes it may take on two busy cores.

    Args:
        words: its arguments, with the ``count``.
        needs: a package without which it is left out.
    """

    name: str
    what: str
    script: str
    count: int
    minutes: float
    words: str = "{count}"
    needs: str = ""
    folder: Path = HERE.parents[1] / "build" / "chaos"

    @property
    def command(self) -> list[str]:
        return [sys.executable, str(HERE / self.script), *self.words.format(count=self.count).split()]

    @property
    def missing(self) -> bool:
        return bool(self.needs) and find_spec(self.needs) is None

    def kept(self) -> dict[str, Any] | None:
        """What it found, if it was made with the package of now and came to its end."""
        try:
            found: dict[str, Any] = json.loads((self.folder / f"{self.name}.json").read_text())
        except (OSError, ValueError):
            return None
        return found if found["package"] == package() and found["outcome"] in ("ok", "found") else None

    def run(self, command: list[str] | None = None) -> None:
        """In a session of its own, so that its Rays and federations end with it; what it found is kept."""
        self.folder.mkdir(parents=True, exist_ok=True)
        start, log, late = time.monotonic(), self.folder / f"{self.name}.log", False
        print(f"{time.strftime('%H:%M:%S')} {self.name}: at most {self.minutes:g} minutes", flush=True)
        with log.open("w", encoding="utf-8") as out:
            process = subprocess.Popen(
                command or self.command, stdout=out, stderr=subprocess.STDOUT, start_new_session=True
            )
            try:
                process.wait(60 * self.minutes)
            except subprocess.TimeoutExpired:
                late = True
            finally:
                end(process)
        told = last_line(log)
        outcome = "late" if late else "broke" if told is None else "found" if process.returncode else "ok"
        found = {"outcome": outcome, "seconds": round(time.monotonic() - start, 1), "package": package(), "told": told}
        found["machine"] = f"{len(os.sched_getaffinity(0))} cores, {platform.machine()}"
        (self.folder / f"{self.name}.json").write_text(json.dumps(found) + "\n")

    def row(self) -> tuple[bool, str]:
        """Whether it ended and is well, and its line of the table."""
        found = self.kept()
        if found is None:
            missing = f": needs {self.needs}" if self.missing else ""
            return False, f"| {self.what} | {self.count:,} | not run{missing} | | | | |"
        told = found["told"]
        done, wrong = told.pop("done"), told.pop("wrong")
        said = f"{done:,}" if found["outcome"] == "ok" else f"{done:,} (FOUND)"
        rest = ", ".join(f"{k} {v:,}" if isinstance(v, int) else f"{k} {v:.3g}" for k, v in told.items())
        cells = (self.what, f"{self.count:,}", said, wrong, f"{found['seconds'] / 60:.1f}", found["machine"], rest)
        return found["outcome"] == "ok", f"| {' | '.join(map(str, cells))} |"


def end(process: subprocess.Popen[bytes]) -> None:
    """With all that it started: a federation is taken down by its script, if it can."""
    if process.poll() is None:
        process.terminate()  # a process in the background may ignore SIGINT
        with suppress(subprocess.TimeoutExpired):
            process.wait(20)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def last_line(log: Path) -> dict[str, Any] | None:
    """What a script told; None if it broke before."""
    try:
        told = json.loads(log.read_text(encoding="utf-8", errors="replace").splitlines()[-1])
    except (IndexError, ValueError):
        return None
    return told if isinstance(told, dict) and "done" in told else None


def _audit(engine: str, minutes: float, needs: str = "") -> Campaign:
    what = f"one update lost, doubled or altered on {engine}: reported by the run"
    return Campaign(f"audit-{engine}", what, "audit_mutants.py", 200, minutes, f"{{count}} --engine {engine}", needs)


def _interrupt(engine: str, count: int, minutes: float, needs: str = "") -> Campaign:
    what, words = (
        f"a signal at any moment of a run on {engine}: resumed, the same bytes",
        f"{{count}} --engine {engine}",
    )
    return Campaign(f"interrupt-{engine}", what, "chaos_interrupt.py", count, minutes, words, needs)


CAMPAIGNS = (
    Campaign("schedules", "schedules of faults of the protocol: the sum of h, once only, an end", "chaos_protocol.py",
             100_000, 80, "schedules {count}"),
    Campaign("messages", "forged messages to a server that waits: none accepted, no crash", "chaos_protocol.py",
             100_000, 10, "messages {count}"),
    Campaign("mutants", "bugs put into a copy of the source: killed by the tests named for them", "mutants.py",
             len(MUTANTS), 60, "", "hypothesis"),
    Campaign("proofs", "random problems: every success is true in 50 digits", "proofs.py", 2000, 120),
    _audit("cpu", 20),
    _audit("reference", 20),
    _audit("torch", 60, "torch"),
    _interrupt("cpu", 100, 20),
    _interrupt("reference", 100, 20),
    _interrupt("torch", 30, 15, "torch"),
    _audit("gpu", 10, "cupy"),
    _interrupt("gpu", 100, 10, "cupy"),
    Campaign("workers", "kill -9 of a Ray worker: the same x to 1e-12", "chaos_ray.py", 100, 90,
             "--workers {count} --drivers 0 --nodes 0", "ray"),
    Campaign("drivers", "kill -9 of the driver on Ray, then resume: the same x to 1e-12", "chaos_ray.py", 20, 60,
             "--workers 0 --drivers {count} --nodes 0", "ray"),
    Campaign("nodes", "a Ray node removed, its actors replaced elsewhere: the same x to 1e-12", "chaos_ray.py", 10, 40,
             "--workers 0 --drivers 0 --nodes {count}", "ray"),
    _audit("ray", 40, "ray"),
    _interrupt("ray", 12, 15, "ray"),
    Campaign("supernodes", "kill -9 of a SuperNode, restarted with its disk: the tolerance is reached", "chaos_flower.py",
             20, 80, "--kills {count} --wipes 0 --stops 0", "flwr"),
    Campaign("wipes", "the same with its memory wiped: named, and restored", "chaos_flower.py", 10, 60,
             "--kills 0 --wipes {count} --stops 0", "flwr"),
    Campaign("stops", "SIGSTOP of a SuperNode: rounds close at their deadline", "chaos_flower.py", 1, 20,
             "--kills 0 --wipes 0 --stops {count}", "flwr"),
)  # fmt: skip


def main() -> int:
    """Run them and print the table; 1 unless all have ended and are well."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", choices=[[], *(c.name for c in CAMPAIGNS)], metavar="NAME")
    parser.add_argument("--dry", action="store_true", help="run nothing, show what is kept and what each may take")
    parser.add_argument("--page", action="store_true", help="run nothing, write the table into docs/reliability.md")
    o = parser.parse_args()
    chosen = [c for c in CAMPAIGNS if not o.names or c.name in o.names]
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # what has been started is ended
    for c in chosen:
        if o.dry:
            print(f"{c.name:<20}{c.count:>8}, at most {c.minutes:g} minutes: {c.what}")
        elif not o.page and not c.missing and c.kept() is None:
            c.run()
    rows = {c.name: c.row() for c in chosen}
    table = "\n".join([
        f"The package whose source has the SHA-256 {package()}..., in the table that `python tests/campaigns/chaos.py --page` writes:\n",
        "| campaign | asked | done | wrong | minutes | machine | besides |",
        "|---|---|---|---|---|---|---|",
        *(line for _, line in rows.values()),
    ])  # fmt: skip
    if o.page:
        begin, last = MARKS
        text = PAGE.read_text(encoding="utf-8")
        new = re.sub(f"{begin}.*{last}", lambda _: f"{begin}{table}\n{last}", text, flags=re.DOTALL)
        PAGE.write_text(new, encoding="utf-8")
        return 0
    bad = [name for name, (well, _) in rows.items() if not well]
    print(f"\n{table}\n{len(chosen)} campaigns, not complete or not well: {', '.join(bad) or 'none'}.")
    return int(bool(bad))


if __name__ == "__main__":
    sys.exit(main())
