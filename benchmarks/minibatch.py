"""What a step with a minibatch costs, over a step with the full gradient, on w8a with 20 clients of 2,487 rows each.

    python benchmarks/minibatch.py                   the cpu engine, one thread
    python benchmarks/minibatch.py --engine gpu      needs CuPy and an NVIDIA GPU

Full steps and minibatches take turns, so that all see the same machine; a ratio is that of the least times. Without
w8a (``proxskip.datasets.load``) random rows of its shape take its place. The exit status is 1 if a bar is missed.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from cpu import w8a

import proxskip as ps

BARS: dict[str, dict[int, float]] = {"cpu": {2000: 1.3, 400: 0.75, 32: 0.1}, "gpu": {2000: 1.6, 400: 1.6, 32: 1.3}}
"""The most that a step may cost, by the rows of the minibatch."""


def on_cpu(problem: ps.Problem, K: int) -> tuple[Callable[[], Any], str]:
    """K steps of all clients on one thread."""
    from cpu import steps_of

    from proxskip.engines.cpu.engine import CpuEngine

    engine = CpuEngine(1)
    act = steps_of(engine, problem, K)
    return act, type(engine.shards).__name__.lower()


def on_gpu(problem: ps.Problem, K: int) -> tuple[Callable[[], Any], str]:
    """K steps of all clients, waited for."""
    import cupy  # type: ignore[import-not-found]

    from proxskip.engines.gpu.launch import LocalSteps

    local = LocalSteps(problem)
    x, gamma = cupy.zeros(problem.d), 0.5 / problem.L_max

    def act() -> None:
        local.descend(problem.n, x, None, gamma, K, seed=1, round=2)
        cupy.cuda.Device().synchronize()

    act()
    return act, local.describe()


def seconds(act: Callable[[], Any], clock: Callable[[], float]) -> float:
    start = clock()
    act()
    return clock() - start


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--engine", choices=BARS, default="cpu")
    options.add_argument("--steps", type=int, default=200, metavar="K", help="steps of a call (200)")
    options.add_argument("--turns", type=int, default=15, help="of which the least time counts (15)")
    options.add_argument("--batches", type=int, nargs="*", help="other sizes of minibatches, without a bar")
    o = options.parse_args()
    full, name = w8a()
    bars = dict.fromkeys(o.batches, np.inf) if o.batches else BARS[o.engine]
    make = on_gpu if o.engine == "gpu" else on_cpu
    acts, kinds = {}, {}
    for b in (0, *bars):
        acts[b], kinds[b] = make(full.with_batch(b or None), o.steps)
    times = {b: np.array([]) for b in acts}
    clock = time.perf_counter if o.engine == "gpu" else time.thread_time  # on a busy machine, the time of this thread
    for _ in range(o.turns):
        for b, act in acts.items():
            times[b] = np.append(times[b], seconds(act, clock) / o.steps)
    print(f"{name}, {full.n} clients, engine {o.engine}: a step of all clients, the least of {o.turns} turns\n")
    print("| rows | us per step | of a full step | at most | verdict | layout |\n|---|---|---|---|---|---|")
    print(f"| all | {1e6 * times[0].min():.2f} | | | | {kinds[0]} |")
    missed = 0
    for b, bar in bars.items():
        ratio = float(times[b].min() / times[0].min())
        missed += ratio > bar
        said = ("", "") if np.isinf(bar) else (f"{bar:g}", "MISSED" if ratio > bar else "met")
        print(f"| {b:,} | {1e6 * times[b].min():.2f} | {ratio:.3f} | {said[0]} | {said[1]} | {kinds[b]} |")
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
