"""What the GPU engine does on this machine's card: python benchmarks/gpu.py.

Needs w8a (``proxskip.datasets.load`` finds it in $PROXSKIP_DATA or fetches it) and a CUDA GPU with CuPy.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

import proxskip as ps
from proxskip.engines.gpu.device import Card, need_cupy
from proxskip.engines.gpu.launch import LocalSteps

REPEATS = 7


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="only the lines that have a bar")
    options = parser.parse_args()
    warnings.simplefilter("ignore", ps.UnsafeStepWarning)
    cupy = need_cupy()
    card = Card.here()
    A, b = ps.datasets.load("w8a")
    whole = ps.Logistic(A, b, l2_relative=1e-4)
    print(f"## The GPU engine on one {card.name}\n")
    print(
        f"CuPy {cupy.__version__}, CUDA runtime {cupy.cuda.runtime.runtimeGetVersion()}, {card.processors} "
        "multiprocessors. w8a, clients sorted by label, float64, full gradients unless said otherwise; medians of "
        f"{REPEATS}. A *step* is one local step of all clients.\n"
    )
    for section in (steps_table, rounds_table, short_rounds_table, *(() if options.quick else (shapes_table,))):
        print(*section(cupy, whole), "", sep="\n", flush=True)


# -- local steps -------------------------------------------------------------------------------------------------------
def microseconds(cupy: Any, work: Callable[[int], Any], few: int, many: int) -> tuple[float, float]:
    """Microseconds a step (the difference of many and few steps), and those of a launch without its steps."""

    def once(K: int) -> float:
        begin, end = cupy.cuda.Event(), cupy.cuda.Event()
        begin.record()
        work(K)
        end.record()
        end.synchronize()
        return float(cupy.cuda.get_elapsed_time(begin, end)) * 1e3

    for K in (few, many):
        once(K)
    short, long = (float(np.median([once(K) for _ in range(REPEATS)])) for K in (few, many))
    step = (long - short) / (many - few)
    return step, short - few * step


def local(cupy: Any, problem: ps.Problem, few: int = 100, many: int = 1100, **how: Any) -> tuple[LocalSteps, float]:
    steps = LocalSteps(problem, **how)
    x, h = cupy.zeros(problem.d), cupy.zeros((problem.n, problem.d))
    gamma = 1.0 / problem.L_max
    return steps, microseconds(cupy, lambda K: steps.descend(problem.n, x, h, gamma, K), few, many)[0]


def steps_table(cupy: Any, whole: Any) -> list[str]:
    out = ["### Local steps", "", "| clients | us a step | bar | launch | share of the limit |"]
    out += ["|---|---|---|---|---|"]
    clock = cupy.cuda.Device().attributes.get("ClockRate", 1_980_000) * 1e3
    for n, bar in ((20, 3.1), (132, 2.5)):
        problem = ps.split(whole, clients=n, by="label")
        steps, t = local(cupy, problem)
        data = steps.data.merged()
        # every entry: its index and the number it points at, once by rows and once by columns
        traffic = 2 * data.A.nnz * (2 + 8)
        chip = steps.card.processors * 128 * clock * 1e-6
        share = traffic / chip / t
        how = f"{steps.group_size} x {steps.threads} threads a client"
        out.append(f"| {n} | **{t:.2f}** | {bar:g} | {how} | {100 * share:.0f} % |")
    return [
        *out,
        "",
        "The limit is the shared memory: a step needs 2 (2 + 8) bytes for each stored entry (equal rows of a client "
        "count once), against 128 bytes a clock and multiprocessor.",
    ]


# -- whole rounds ------------------------------------------------------------------------------------------------------
def rounds_table(cupy: Any, whole: Any) -> list[str]:
    problem = ps.split(whole, clients=20, by="label")
    method = ps.Scaffnew(gamma=1.0 / problem.L, p=0.01)
    _ = problem.solution
    seconds, walls = [], []
    for _ in range(4):
        began = time.perf_counter()
        result = ps.run(method, problem, rounds=2000, seed=0, engine="gpu", every=2000)
        walls.append(time.perf_counter() - began)
        seconds.append(result.trace["seconds"][-1])
    short = [ps.run(method, problem, rounds=100, seed=0, engine=e, every=100) for e in ("gpu", "gpu", "cpu")]
    same = short[0].x.tobytes() == short[1].x.tobytes()
    apart = float(np.abs(short[0].x - short[2].x).max() / np.abs(short[2].x).max())
    out = ["### Whole rounds, through `proxskip.run`", "", "| | measured | bar |", "|---|---|---|"]
    out.append(f"| 2,000 rounds of Scaffnew, p = 1/100, 20 clients | **{np.median(seconds[1:]):.2f} s** | 0.65 s |")
    out.append(f"| the same with opening, records and summary (wall clock) | {np.median(walls[1:]):.2f} s | |")
    out.append(f"| its local steps | {int(result.trace['iterations'][-1])} | |")
    out.append(f"| from the CPU engine after 100 rounds, relative | {apart:.1e} | 1e-9 |")
    out.append(f"| bitwise the same in two runs | {'yes' if same else 'NO'} | yes |")
    return out


def short_rounds_table(cupy: Any, whole: Any) -> list[str]:
    """Rounds of many and of few local steps."""
    out = ["### Rounds of many and of few steps", "", "| Scaffnew on w8a | us a round |", "|---|---|"]
    for n, K in ((20, 100), (20, 10), (20, 1), (132, 100), (132, 10), (500, 100), (500, 10)):
        problem = ps.split(whole, clients=n, by="label")
        problem.__dict__["solution"] = None
        method = ps.Scaffnew(gamma=1.0 / problem.L, p=1.0 / K, K=K)
        rounds, seconds = max(200, 20_000 // K // n), []
        for _ in range(4):
            result = ps.run(method, problem, rounds=rounds, engine="gpu", every=rounds)
            seconds.append(result.trace["seconds"][-1])
        out.append(f"| {n} clients, K = {K} | {1e6 * np.median(seconds[1:]) / rounds:.0f} |")
    return [
        *out,
        "",
        "Runs of 200 rounds (1,000 where K = 1). Rounds of few steps wait for the host, which has to draw and launch.",
    ]


def shapes_table(cupy: Any, whole: Any) -> list[str]:
    """Other numbers of clients, minibatches, precision and losses."""
    twenty = ps.split(whole, clients=20, by="label")
    single = ps.Logistic(whole.A, whole.b, l2_relative=1e-4, dtype=np.float32)
    soft = ps.Softmax(whole.A, np.arange(whole.N) % 5, l2=1e-3)
    cases = {f"{n} clients": ps.split(whole, clients=n, by="label") for n in (1, 10, 50, 500)}
    cases |= {f"20 clients, minibatches of {b}": twenty.with_batch(b) for b in (2000, 400, 32)}
    cases["20 clients, float32"] = ps.split(single, clients=20, by="label")
    cases["20 clients, softmax over 5 classes"] = ps.split(soft, clients=20)
    lines = ["### Other shapes", "", "| w8a | us a step | launch |", "|---|---|---|"]
    for name, problem in cases.items():
        steps, t = local(cupy, problem, 40, 400)
        lines.append(f"| {name} | {t:.1f} | {steps.describe()} |")
    return lines


if __name__ == "__main__":
    main()
