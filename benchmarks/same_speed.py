"""Is this tree as fast as an earlier one? Both time the same jobs in turns, on the same machine, in the same minutes.

    python benchmarks/same_speed.py                               against release 0.2, about 4 minutes
    python benchmarks/same_speed.py --base REV --alternations 40
    python benchmarks/same_speed.py --write                       the table goes to benchmarks/RESULTS.md, too

Three processes stay alive: two with the old package and one with the new. In every alternation each of them does each
job once, in changing order, and their times are divided pair by pair, so that what else the machine does cancels. The
second old process against the first says what equal trees look like: the spread is the middle half of these ratios. A
median beyond 3 % but inside the spread counts as equal; where the spread is wider than 10 % to a side it tells nothing,
and the table says so: measure again when the machine is quiet. The exit status is 1 if a job is slower by more than 3 %
and its median lies outside of the spread.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from run import machine, put
from trees import LAST_RELEASE, ROOT, exported, python

ALLOWED = 0.03
"""By which a median may differ from one."""
WIDE = 0.1
"""To a side: a spread beyond it tells nothing."""
ONCE = 0.1
"""Seconds that a job should take."""
MOST = 1_000_000
RESULTS = ROOT / "benchmarks" / "RESULTS.md"


class Worker:
    """A process that times jobs on one tree."""

    def __init__(self, source: Path) -> None:
        command, environment = python(source, "speed_jobs.py", str(source))
        self.process: Any = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
        )
        self.jobs: list[str] = self._answer()

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.stdin.close()
        self.process.wait()

    def time(self, job: int, repeats: int) -> tuple[float, float]:
        """Seconds a unit, and in all."""
        self.process.stdin.write(f"{job} {repeats}\n")
        self.process.stdin.flush()
        a_unit, seconds = self._answer()
        return a_unit, seconds

    def _answer(self) -> Any:
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"a worker ended with status {self.process.wait()}.")
        return json.loads(line)


@dataclass(frozen=True)
class Row:
    """One job: seconds a unit of the old tree, and ratios to it, one an alternation."""

    name: str
    seconds: float
    new: Sequence[float]
    same: Sequence[float]

    @property
    def median(self) -> float:
        return statistics.median(self.new)

    @property
    def spread(self) -> tuple[float, float]:
        """Between which the middle half of old against old lies."""
        low, high = np.quantile(self.same, [0.25, 0.75])
        return float(low), float(high)

    @property
    def verdict(self) -> str:
        """In words; capitals for what must not be."""
        low, high = self.spread
        if abs(self.median - 1.0) <= ALLOWED:
            return f"within {100 * ALLOWED:g} %"
        if low <= self.median <= high:
            wide = max(1.0 - low, high - 1.0) > WIDE
            return "TOO NOISY TO TELL" if wide else "inside the spread"
        return "faster" if self.median < 1.0 else "SLOWER"

    def __str__(self) -> str:
        low, high = self.spread
        same = statistics.median(self.same)
        cells = (
            f"{1e6 * self.seconds:.2f}",
            f"{self.median:.3f}",
            f"{same:.3f} ({low:.3f} to {high:.3f})",
            self.verdict,
        )
        return f"| {self.name} | {' | '.join(cells)} |"


def repeats_for(worker: Worker, job: int) -> int:
    """So many that the job takes about ``ONCE`` seconds; the first call compiles."""
    repeats = 1
    worker.time(job, repeats)
    while True:
        _, seconds = worker.time(job, repeats)
        if seconds >= ONCE / 2 or repeats >= MOST:
            return repeats
        repeats = min(MOST, repeats * max(2, min(10, int(ONCE / max(seconds, 1e-9)))))


def measure(workers: Sequence[Worker], word: str, alternations: int) -> Iterator[Row]:
    """All jobs with this word in every alternation; ``workers`` are old, new and old again."""
    jobs = [k for k, name in enumerate(workers[0].jobs) if word in name]
    counts = {}
    for job in jobs:
        counts[job] = repeats_for(workers[0], job)
        for other in workers[1:]:
            other.time(job, counts[job])
    found = {job: np.empty((alternations, 3)) for job in jobs}
    for a in range(alternations):
        for job in jobs:
            for k in np.roll(np.arange(3), a):
                found[job][a, k] = workers[k].time(job, counts[job])[0]
    for job in jobs:
        old, new, same = found[job].T
        yield Row(workers[0].jobs[job], float(np.median(old)), (new / old).tolist(), (same / old).tolist())


def page(rows: Sequence[Row], base: str, alternations: int, seconds: float) -> str:
    """The table in Markdown."""
    data = "w8a" if "PROXSKIP_DATA" in os.environ else "digits"
    return "\n".join([
        f"## Speed against {base[:12]}", "",
        "| job | us a unit, old | new / old | old / old (middle half) | |", "|---|---|---|---|---|",
        *map(str, rows), "",
        f"Medians of {alternations} paired ratios, the trees in turns; rows of {data}; {platform.machine()}, "
        f"{os.cpu_count()} cores, BLAS on one thread; {seconds:.0f} seconds.", "",
    ])  # fmt: skip


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--base", default=LAST_RELEASE, metavar="REV", help="the earlier tree (release 0.2)")
    options.add_argument(
        "--new", type=Path, default=ROOT / "src", metavar="SRC", help="the later one (this tree's src)"
    )
    options.add_argument("--alternations", type=int, default=20)
    options.add_argument("--only", default="", metavar="WORD", help="jobs that have this word in their name")
    options.add_argument("--trees", type=Path, help="keep the earlier tree and its compiled kernels in this folder")
    options.add_argument("--write", action="store_true", help="put the table into benchmarks/RESULTS.md")
    o = options.parse_args()
    start = time.perf_counter()
    with exported(o.base, o.trees) as old, ExitStack() as stack:
        workers = [stack.enter_context(Worker(source)) for source in (old, o.new.resolve(), old)]
        rows = list(measure(workers, o.only, o.alternations))
    made = page(rows, o.base, o.alternations, time.perf_counter() - start)
    print(made)
    if o.write:
        put(RESULTS, machine(), "speed", made)
    return 1 if any(row.verdict == "SLOWER" for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
