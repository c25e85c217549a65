"""All campaigns in parts, each within its time, and one table at the end; ``make chaos``.

    python tests/chaos.py                       all of them
    python tests/chaos.py workers drivers       only these
    python tests/chaos.py --dry                 what there is, and what is left of it
    python tests/chaos.py --minutes 40          begin no part after 40 minutes; the same command goes on
    python tests/chaos.py --page                write the table into docs/reliability.md

What a part found is kept in build/chaos with what it printed. A part is not made again as long as the package is the
same, so that an interrupted run goes on where it was. Exits with 1 unless every campaign is complete and found nothing.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
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

from mutants import MUTANTS

HERE = Path(__file__).resolve().parent
KEPT = HERE.parent / "build" / "chaos"
PAGE = HERE.parent / "docs" / "reliability.md"
WORDS = "{count} --first {first}"
MARKS = ("<!-- chaos: begin -->\n", "<!-- chaos: end -->\n")


def tell(done: int, wrong: int, **more: Any) -> int:
    """The last line of a campaign's script, which is read here; its exit code.

    Of ``more``, what begins with "most" is the largest of the parts' figures; other figures are added up.
    """
    print(json.dumps({"done": done, "wrong": wrong, **more}), flush=True)
    return int(wrong > 0)


@dataclass(frozen=True)
class Campaign:
    """A script, how often it does what it does, in how many parts, and the most minutes it may take on two busy cores.

    Args:
        words: its arguments, with the ``count`` of a part and the number of its ``first``.
        alone: nothing else runs beside it: it starts processes of its own, or measures time.
        needs: packages without which it is left out.
    """

    name: str
    what: str
    script: str
    count: int
    parts: int
    minutes: float
    words: str = WORDS
    alone: bool = False
    needs: tuple[str, ...] = ()

    def commands(self) -> list[list[str]]:
        """One for each part."""
        ends = [self.count * k // self.parts for k in range(self.parts + 1)]
        given = [self.words.format(first=a, count=b - a).split() for a, b in itertools.pairwise(ends)]
        return [[sys.executable, str(HERE / self.script), *words] for words in given]

    @property
    def missing(self) -> str:
        """The packages that are not here."""
        return ", ".join(name for name in self.needs if find_spec(name) is None)


def _audit(engine: str, *numbers: Any, **more: Any) -> Campaign:
    what = f"one update lost, doubled or altered on {engine}: reported by the run"
    return Campaign(f"audit-{engine}", what, "audit_mutants.py", 200, *numbers, f"{WORDS} --engine {engine}", **more)


def _interrupt(engine: str, *numbers: Any, **more: Any) -> Campaign:
    what, words = f"a signal at any moment of a run on {engine}: resumed, the same bytes", f"{WORDS} --engine {engine}"
    return Campaign(f"interrupt-{engine}", what, "chaos_interrupt.py", *numbers, words, alone=True, **more)


RAY, FLOWER, CARD = ("ray",), ("flwr",), ("cupy",)
CAMPAIGNS = (
    Campaign("schedules", "schedules of faults of the protocol: the sum of h, once only, an end", "chaos_protocol.py",
             100_000, 40, 80, "schedules {count} --first {first}"),
    Campaign("messages", "forged messages to a server that waits: none accepted, no crash", "chaos_protocol.py",
             100_000, 4, 10, "messages {count} --first {first}"),
    Campaign("mutants", "bugs put into a copy of the source: killed by the tests named for them", "mutants.py",
             len(MUTANTS), 18, 60, "--part {first} {count}", needs=("pytest", "hypothesis")),
    Campaign("proofs", "random problems: every success is true in 50 digits", "proofs.py", 2000, 40, 120),
    _audit("cpu", 8, 20),
    _audit("reference", 8, 20),
    _audit("torch", 8, 60, needs=("torch",)),
    _interrupt("cpu", 100, 2, 20),
    _interrupt("reference", 100, 2, 20),
    _interrupt("torch", 30, 1, 15, needs=("torch",)),
    _audit("gpu", 2, 10, alone=True, needs=CARD),
    _interrupt("gpu", 100, 2, 10, needs=CARD),
    Campaign("workers", "kill -9 of a Ray worker: the same bytes", "chaos_ray.py", 100, 10, 90,
             "--workers {count} --drivers 0 --nodes 0 --first {first}", alone=True, needs=RAY),
    Campaign("drivers", "kill -9 of the driver on Ray, then resume: the same bytes", "chaos_ray.py", 20, 10, 60,
             "--workers 0 --drivers {count} --nodes 0 --first {first}", alone=True, needs=RAY),
    Campaign("nodes", "a Ray node removed, its actors rebuilt elsewhere: the same bytes", "chaos_ray.py", 10, 5, 40,
             "--workers 0 --drivers 0 --nodes {count} --first {first}", alone=True, needs=RAY),
    _audit("ray", 10, 40, alone=True, needs=RAY),
    _interrupt("ray", 12, 1, 15, needs=RAY),
    Campaign("supernodes", "kill -9 of a SuperNode, restarted with its disk: the tolerance is reached", "chaos_flower.py",
             20, 4, 80, "--kills {count} --wipes 0 --stops 0 --seed {first}", alone=True, needs=FLOWER),
    Campaign("wipes", "the same with its memory wiped: named, and restored", "chaos_flower.py", 10, 2, 60,
             "--kills 0 --wipes {count} --stops 0 --seed {first}", alone=True, needs=FLOWER),
    Campaign("stops", "SIGSTOP of a SuperNode: rounds close at their deadline", "chaos_flower.py", 1, 1, 20,
             "--kills 0 --wipes 0 --stops {count} --seed {first}", alone=True, needs=FLOWER),
)  # fmt: skip


# -- parts -------------------------------------------------------------------------------------------------------------
@cache
def code() -> str:
    """Eight digits of the package's source: figures of another one are made again."""
    seal = hashlib.sha256()
    for path in sorted((HERE.parent / "src").rglob("*.py")):
        seal.update(path.read_bytes())
    return seal.hexdigest()[:8]


@dataclass
class Part:
    """One command of a campaign and what is kept of it."""

    campaign: Campaign
    number: int
    command: list[str]
    limit: float
    place: Path = KEPT
    process: Any = None
    began: float = 0.0

    @property
    def name(self) -> str:
        return f"{self.campaign.name}-{self.number}"

    def found(self, package: str | None = None) -> dict[str, Any] | None:
        """What it found, if it was made with this package (that of now by default) and came to its end."""
        try:
            kept: dict[str, Any] = json.loads((self.place / f"{self.name}.json").read_text())
        except (OSError, ValueError):
            return None
        return kept if kept["code"] == (package or code()) and kept["outcome"] in ("ok", "found") else None

    def start(self) -> None:
        """In a session of its own, so that its Rays and federations end with it."""
        self.place.mkdir(parents=True, exist_ok=True)
        self.began = time.monotonic()
        with (self.place / f"{self.name}.log").open("w", encoding="utf-8") as out:
            self.process = subprocess.Popen(self.command, stdout=out, stderr=subprocess.STDOUT, start_new_session=True)

    def over(self) -> bool:
        """Whether it has ended, or was ended because it is late; what it found is then kept."""
        late = self.process.poll() is None and time.monotonic() - self.began > self.limit
        if self.process.poll() is None and not late:
            return False
        self.end()
        told = self._told()
        outcome = "late" if late else "broke" if told is None else "found" if self.process.returncode else "ok"
        kept = {"outcome": outcome, "seconds": round(time.monotonic() - self.began, 1), "code": code()}
        kept |= {"machine": f"{len(os.sched_getaffinity(0))} cores, {platform.machine()}", "told": told}
        (self.place / f"{self.name}.json").write_text(json.dumps(kept) + "\n")
        return True

    def end(self) -> None:
        """With all that it started: a federation is taken down by its script, if it can."""
        if self.process.poll() is not None:
            return
        self.process.terminate()  # a process in the background may ignore SIGINT
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(20)
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def _told(self) -> dict[str, Any] | None:
        """Its last line; None if it broke before."""
        lines = (self.place / f"{self.name}.log").read_text(encoding="utf-8", errors="replace").splitlines()
        try:
            told = json.loads(lines[-1])
        except (IndexError, ValueError):
            told = None
        return told if isinstance(told, dict) and "done" in told else None


def parts_of(c: Campaign) -> list[Part]:
    """All of them, each with its share of the campaign's time."""
    return [Part(c, k, command, 60 * c.minutes / c.parts) for k, command in enumerate(c.commands())]


def make(parts: list[Part], jobs: int, until: float) -> None:
    """Those that are not kept, so many at once, and none that begins after ``until``."""
    waiting, going = [part for part in parts if part.found() is None], []  # type: list[Part], list[Part]
    try:
        while (waiting and time.monotonic() < until) or going:
            while waiting and len(going) < jobs and time.monotonic() < until:
                going.append(waiting.pop(0))
                going[-1].start()
                print(f"{time.strftime('%H:%M:%S')} {going[-1].name}: at most {going[-1].limit:.0f} s", flush=True)
            time.sleep(0.2)
            going = [part for part in going if not part.over()]
    finally:
        for part in going:
            part.end()


# -- the summary -------------------------------------------------------------------------------------------------------
def figures(kept: list[dict[str, Any]]) -> dict[str, Any]:
    """The figures of all parts together."""
    total: dict[str, Any] = {}
    for one in kept:
        for name, v in one["told"].items():
            total[name] = max(total.get(name, v), v) if name.startswith("most") else total.get(name, 0) + v
    return total


def row(c: Campaign, package: str) -> tuple[bool, str]:
    """Whether a campaign is complete and well, and its line of the table, as far as it is kept."""
    parts = parts_of(c)
    kept = [found for part in parts if (found := part.found(package)) is not None]
    if not kept:
        missing = f": needs {c.missing}" if c.missing else ""
        return False, f"| {c.what} | {c.count:,} | not run{missing} | | | | |"
    total = figures(kept)
    done, wrong = total.pop("done"), total.pop("wrong")
    said = f"{done:,}"
    if wrong or any(one["outcome"] != "ok" for one in kept):
        said += " (FOUND)"
    elif len(kept) < len(parts):
        said += f" ({len(kept)} of {len(parts)} parts)"
    minutes = sum(one["seconds"] for one in kept) / 60
    machine = "; ".join(sorted({one["machine"] for one in kept}))
    rest = ", ".join(f"{k} {v:,}" if isinstance(v, int) else f"{k} {v:.3g}" for k, v in total.items())
    return "(" not in said, f"| {c.what} | {c.count:,} | {said} | {wrong} | {minutes:.1f} | {machine} | {rest} |"


def table(chosen: list[Campaign], package: str) -> tuple[str, list[str]]:
    """The table of what is kept, and the names of the campaigns that are not complete or not well."""
    rows = {c.name: row(c, package) for c in chosen}
    lines = [
        f"The package whose source has the SHA-256 {package}..., in the table that `python tests/chaos.py --page` writes:\n",
        "| campaign | asked | done | wrong | minutes | machine | besides |",
        "|---|---|---|---|---|---|---|",
        *(line for _, line in rows.values()),
    ]
    return "\n".join(lines) + "\n", [name for name, (well, _) in rows.items() if not well]


def main() -> int:
    """Run them and print the table; 1 unless all are complete and well."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", choices=[[], *(c.name for c in CAMPAIGNS)], metavar="NAME")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="begin no part after so many")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)), help="parts at once; default: a core")
    parser.add_argument("--dry", action="store_true", help="run nothing, show what is kept and what each may take")
    parser.add_argument("--page", action="store_true", help="run nothing, write the table into docs/reliability.md")
    parser.add_argument("--package", default=code(), help="show what was made with this one; default: %(default)s")
    o = parser.parse_args()
    chosen = [c for c in CAMPAIGNS if not o.names or c.name in o.names]
    if o.page:
        begin, end = MARKS
        made = begin + table(list(CAMPAIGNS), o.package)[0] + end
        text = PAGE.read_text(encoding="utf-8")
        PAGE.write_text(re.sub(f"{begin}.*{end}", lambda _: made, text, flags=re.DOTALL), encoding="utf-8")
        return 0
    if o.dry:
        for c in chosen:
            print(f"{c.name:<20}{c.count:>8} in {c.parts:>2} parts, at most {c.minutes:g} minutes: {c.what}")
    else:
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # what has been started is ended
        until = time.monotonic() + 60 * o.minutes
        for alone in (False, True):
            here = [c for c in chosen if c.alone is alone and not c.missing]
            make([part for c in here for part in parts_of(c)], 1 if alone else o.jobs, until)
    text, bad = table(chosen, o.package)
    print(f"\n{text}{len(chosen)} campaigns, not complete or not well: {', '.join(bad) or 'none'}.")
    return int(bool(bad))


if __name__ == "__main__":
    sys.exit(main())
