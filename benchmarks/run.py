"""``make bench``: measure the CPU engine, minimize, the examples and Ray, and write benchmarks/RESULTS.md and its figures.

    python benchmarks/run.py                      all of it, about a quarter of an hour on two cores
    python benchmarks/run.py --only examples      one part of it; the others stay as they are
    python benchmarks/run.py --quick --out DIR    small sizes, to see that it works

w8a is read from PROXSKIP_DATA or the cache; without it a synthetic set of the same shape takes its place, and says so.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[variable] = "1"  # before numpy is imported

import cpu
import numpy as np

import proxskip as ps

HERE = Path(__file__).parent


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--quick", action="store_true", help="small sizes")
    options.add_argument("--out", type=Path, default=HERE, help="where RESULTS.md and the figures go")
    options.add_argument("--only", nargs="*", choices=tuple(PARTS), help="measure these anew and keep the others")
    o = options.parse_args()
    page = o.out / "RESULTS.md"
    kept = parts_of(page.read_text(encoding="utf-8")) if o.only and page.is_file() else {}
    for name in o.only or PARTS:
        start = time.perf_counter()
        made = PARTS[name](o.out, o.quick).strip()
        kept[name] = f"{made}\n\nMeasured in {time.perf_counter() - start:.0f} seconds.\n"
        print(kept[name], flush=True)
        parts = "\n".join(f"<!-- {k} -->\n{kept[k]}" for k in PARTS if k in kept)
        page.write_text(f"{head(o.quick)}\n{parts}", encoding="utf-8")


def parts_of(page: str) -> dict[str, str]:
    """The parts of an earlier page by their names."""
    found = re.split(r"^<!-- (\w+) -->\n", page, flags=re.MULTILINE)[1:]
    return {name: f"{part.strip()}\n" for name, part in zip(found[::2], found[1::2], strict=True)}


def head(quick: bool) -> str:
    command = "python benchmarks/run.py --quick" if quick else "make bench"
    return f"""# Results

Written by `{command}`, part by part (`python benchmarks/run.py --only {" ".join(PARTS)}`). Machine: {platform.machine()},
{os.cpu_count()} cores, {platform.system()}; Python {platform.python_version()}, numpy {np.__version__}. Each time is the least of several, taken in turns
with its rivals; BLAS on one thread. On a shared machine only the ratios mean anything. The GPU engine has a page of its
own, [GPU.md](GPU.md).
"""


def engine(out: Path, quick: bool) -> str:
    """The cpu engine against scipy, numpy, C, BLAS, JAX and Ray, and its growth."""
    problem, name = w8a()
    page = [section(f"One local step of all 20 clients, {name}, float64", *cpu.local_step(problem))]
    page.append(section(f"One step with minibatches of all 20 clients, {name}, 1 thread", *cpu.minibatch_step(problem)))
    shape = (1200, 1000) if quick else (6000, 5000)
    page.append(section(f"One local step on dense data, {shape[0]} x {shape[1]}", *cpu.dense_data(*shape)))
    wide = (4000, 60_000) if quick else (40_000, 60_000)
    page.append(section(f"One local step on sparse data, {wide[0]:,} x {wide[1]:,}, 4 clients", *cpu.wide_data(*wide)))
    page.append(section(f"A whole round, 20 clients, 100 local steps, {name}", *cpu.whole_round(problem)))
    page.append(in_nonzeros(out, 1e6 if quick else 1e8))
    counts = [10, 100, 1000] if quick else [10, 100, 1000, 10_000, 100_000]
    page.append(in_clients(out, 20_000 if quick else 1_000_000, counts))
    return "\n".join(page)


def minimizing(out: Path, quick: bool) -> str:
    """Proxes, and the overhead of the loop."""
    import minimize

    return minimize.report(quick)


def worked(out: Path, quick: bool) -> str:
    """The examples at full size, against FISTA and pyproximal."""
    import examples

    return f"## Worked examples\n\n{examples.tables(quick)}"


def on_ray(out: Path, quick: bool) -> str:
    """The Ray engine against the cpu engine and the authors' way, and what a call costs."""
    import ray_engine

    return f"## Ray, two nodes of a cluster on this machine: time\n\n{ray_engine.report(quick, ('round', 'constants'))}"


def memory_on_ray(out: Path, quick: bool) -> str:
    """More data than an actor may hold, and many rounds."""
    import ray_engine

    return f"## Ray, two nodes of a cluster on this machine: memory\n\n{ray_engine.report(quick, ('larger', 'flat'))}"


def federated(out: Path, quick: bool) -> str:
    """Our strategy and client against Flower's FedAvg."""
    import flower

    return flower.report(quick)


def with_noise(out: Path, quick: bool) -> str:
    """Clipping and noise, and where they may be."""
    import noise

    return noise.report(quick)


def at_size(out: Path, quick: bool) -> str:
    """Many actors, many clients, small processes."""
    import size

    return f"## Ray and Flower at size, and imports\n\n{size.report(quick)}"


PARTS: dict[str, Callable[[Path, bool], str]] = {
    "engine": engine,
    "minimize": minimizing,
    "examples": worked,
    "ray": on_ray,
    "ray_memory": memory_on_ray,
    "flower": federated,
    "size": at_size,
    "noise": with_noise,
}


def w8a() -> tuple[ps.Problem, str]:
    try:
        A, b = ps.datasets.load("w8a")
    except ps.InputError as why:
        print(f"w8a is not here ({why}); a synthetic set of its shape is used.", file=sys.stderr)
        return cpu.synthetic(49_749, 300, 12, 20), "synthetic data of w8a's shape"
    return ps.split(ps.Logistic(A, b, l2=1e-4, l2_relative=True), clients=20, by="label"), "w8a by label"


def section(title: str, *rows: tuple[str, float, str]) -> str:
    lines = [f"| {name} | {1e3 * t:.3f} | {note} |" for name, t, note in rows]
    return "\n".join([f"## {title}\n", "| what | ms | ratio to ours (bar) |", "|---|---|---|", *lines, ""])


def in_nonzeros(out: Path, largest: float) -> str:
    rows = cpu.growth_in_nonzeros(largest)
    nnz, seconds = np.array(rows).T
    past = nnz >= 3e5  # beyond it the shards of 20 clients no longer fit the first cache
    slope = float(np.sum(nnz[past] * seconds[past]) / np.sum(nnz[past] ** 2)) if past.any() else float("nan")
    rate = float(np.exp(np.mean(np.log(seconds[past] / nnz[past]))))
    worst = float(np.max(np.abs(seconds[past] / (rate * nnz[past]) - 1)))
    figure(
        out / "growth-nonzeros",
        nnz,
        [("one local step, 1 thread", seconds), (f"{1e9 * rate:.2f} ns a nonzero", rate * nnz)],
        "stored nonzeros",
        "seconds",
    )
    lines = [f"| {int(n):,} | {1e3 * t:.3f} | {1e9 * t / n:.3f} |" for n, t in rows]
    return "\n".join([
        "## Growth in nonzeros (20 clients, d = 300, 12 entries a row, 1 thread)\n",
        "| nonzeros | ms a local step | ns a nonzero |", "|---|---|---|", *lines, "",
        f"Past 300,000 nonzeros (15,000 a client: beyond the first cache) every point lies within {100 * worst:.0f} % of the line",
        f"through the origin with {1e9 * rate:.3f} ns a nonzero (bar: 20 %; least squares slope {1e9 * slope:.3f} ns).", "",
        "![](growth-nonzeros.png)\n",
    ])  # fmt: skip


def in_clients(out: Path, rows: int, counts: list[int]) -> str:
    found = cpu.growth_in_clients(rows, counts)
    lines, overhead = [], []
    for r in found:
        extra = max(0.0, r["round"] - r["step"])
        overhead.append(extra)
        lines.append(
            f"| {r['clients']:,} | {1e3 * r['step']:.2f} | {1e3 * r['round']:.2f} | {1e6 * extra / r['clients']:.3f} | {1e3 * r['pass']:.2f} | {extra / r['pass']:.2f} | {r['memory']:.2f} |"
        )
    n = np.array([r["clients"] for r in found], dtype=float)
    curves = [
        ("round, one local step", np.array([r["round"] for r in found])),
        ("local step alone", np.array([r["step"] for r in found])),
        ("3 passes over the state vectors", np.array([3 * r["pass"] for r in found])),
    ]
    figure(out / "growth-clients", n, curves, "clients", "seconds")
    return "\n".join([
        f"## Growth in clients ({rows:,} rows, d = 300, 12 entries a row, all cores)\n",
        "| clients | ms a local step | ms a round of Scaffnew with it | overhead, us a client | ms a pass | overhead in passes | kernel data / CSR input |",
        "|---|---|---|---|---|---|---|", *lines, "",
        "A pass reads and writes the state vectors of all clients once (h and xhat; numpy copy on one thread). The overhead is the round,",
        "averaging and the update of h included, less the local step. Bars: at most 3 passes beyond 1,000 clients, data at most 2.2.", "",
        "![](growth-clients.png)\n",
    ])  # fmt: skip


def figure(path: Path, x: np.ndarray, curves: Sequence[tuple[str, np.ndarray]], xlabel: str, ylabel: str) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    fig = Figure(figsize=(5.5, 3.8), layout="constrained")
    FigureCanvasAgg(fig)
    axes = fig.add_subplot()
    for (label, y), style in zip(curves, ("o-", "s-", "--"), strict=False):
        axes.loglog(x, y, style, label=label, markersize=4)
    axes.set(xlabel=xlabel, ylabel=ylabel)
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    fig.savefig(path.with_suffix(".png"), dpi=130)


if __name__ == "__main__":
    main()
