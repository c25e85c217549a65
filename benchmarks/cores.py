"""How the cpu engine uses the cores of this machine: threads and overhead per round, against their bars.

    python benchmarks/cores.py              everything; some minutes
    python benchmarks/cores.py --quick      a tenth of the rows

Rivals take turns in one process; times are the least of the turns. The exit status is 1 if a bar is missed.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from cpu import in_turns, rounds_of, steps_of, synthetic, w8a

import proxskip as ps
from proxskip.engines.cpu.engine import CpuEngine, available_cores

Line = tuple[str, float, str, bool | None]
"""What was measured, the figure, its bar in words, and whether it is met (None without a bar)."""


def thread_counts() -> list[int]:
    """1, 2, 4, ... up to the cores that there are."""
    cores = available_cores()
    return sorted({1, *(t for t in (2, 4, 8, 16) if t <= cores), min(cores, 16)})


# -- threads -----------------------------------------------------------------------------------------------------------
def speedups(problem: ps.Problem, K: int, counts: list[int]) -> dict[int, float]:
    """Steps of all clients on several threads, over those on one; the median over turns."""
    engines = {t: CpuEngine(t) for t in counts}
    acts = {t: steps_of(engine, problem, K) for t, engine in engines.items()}
    times: dict[int, list[float]] = {t: [] for t in counts}
    for _ in range(11):
        for t, act in acts.items():
            start = time.perf_counter()
            act()
            times[t].append(time.perf_counter() - start)
    for engine in engines.values():
        engine.close()
    return {t: float(np.median(np.array(times[1]) / np.array(v))) for t, v in times.items()}


def threads() -> Iterator[Line]:
    """Whole clients are dealt to the threads: 20 of them keep two threads busy, 16 threads need more, and more to do."""
    bars = {(2, 100): 1.8, (16, 1000): 11.0}
    few, name = w8a()
    many = synthetic(49_749, 300, 12, 160)
    for problem, data, K in ((few, name, 100), (many, "random rows", 100), (many, "random rows", 1000)):
        for t, speedup in speedups(problem, K, thread_counts()).items():
            if t == 1:
                continue
            most = problem.n / -(-problem.n // t)  # the busiest thread has the most clients
            bar = bars.get((t, K), np.inf)
            said = f"at least {bar:g}" if bar <= most else f"at most {most:.1f} is possible"
            yield (
                f"{data}, {problem.n} clients, {K} steps: {t} threads over one",
                speedup,
                said,
                speedup >= bar if bar <= most else None,
            )


# -- overhead ----------------------------------------------------------------------------------------------------------
def overhead(rows: int, n: int) -> float:
    """A round of Scaffnew without its local step, in passes over the state vectors (h and xhat, copied on one thread)."""
    problem = synthetic(rows, 300, 12, n)
    engine = CpuEngine()
    inside = [0.0]
    descend = engine.descend

    def timed(*given: Any, **more: Any) -> Any:
        start = time.perf_counter()
        out = descend(*given, **more)
        inside[0] += time.perf_counter() - start
        return out

    act = rounds_of(engine, problem, ps.Scaffnew(gamma=0.1, p=0.99, K=1))
    engine.descend = timed  # type: ignore[method-assign]
    state, there = np.ones((2, n, problem.d)), np.empty((2, n, problem.d))
    rest, passes = [], []
    for _ in range(15):
        inside[0], start = 0.0, time.perf_counter()
        act()
        rest.append(time.perf_counter() - start - inside[0])
        passes.append(in_turns({"copy": lambda: np.copyto(there, state)}, 2)["copy"])
    engine.close()
    return float(np.min(rest) / np.min(passes))


def overheads(rows: int) -> Iterator[Line]:
    """From 1,000 clients on, at most three passes."""
    for n in (1_000, 10_000, 100_000):
        found = overhead(rows, n)
        yield f"overhead of a round, {n:,} clients, in passes", found, "at most 3", found <= 3.0


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--quick", action="store_true", help="a tenth of the rows")
    options.add_argument("--only", nargs="*", choices=("threads", "overhead"), help="some of the parts")
    o = options.parse_args()
    parts: dict[str, Callable[[], Iterator[Line]]] = {
        "threads": threads,
        "overhead": lambda: overheads(100_000 if o.quick else 1_000_000),
    }
    print(f"## Threads and overhead (load {os.getloadavg()[0]:.1f})\n")
    print("| what | measured | bar | verdict |\n|---|---|---|---|")
    missed = 0
    for name, part in parts.items():
        for what, figure, bar, met in part() if o.only is None or name in o.only else ():
            missed += met is False
            verdict = {True: "met", False: "MISSED", None: ""}[met]
            print(f"| {what} | {figure:.2f} | {bar} | {verdict} |", flush=True)
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
