"""The cpu engine: local steps against scipy, numpy and C, minibatches, threads, overhead per round, cost of a call.

    python benchmarks/cpu.py                          some minutes
    python benchmarks/cpu.py --only steps threads     some of it
    python benchmarks/cpu.py --quick                  a tenth of the rows where they are random

w8a is read from PROXSKIP_DATA or the cache; without it random rows of its shape take its place.
Times are the least of several runs, taken in turns with their rivals in one process, BLAS on one thread.
"""

from __future__ import annotations

import argparse
import ctypes
import itertools
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse

import proxskip as ps
from proxskip.core.engine import Request
from proxskip.engines.cpu.cohort import Cohort
from proxskip.engines.cpu.engine import CpuEngine, available_cores
from proxskip.engines.cpu.shards import Tiles
from proxskip.engines.local import no_half
from proxskip.participation import Everyone
from proxskip.running.metered_exchange import MeteredExchange

HERE = Path(__file__).parent


def in_turns(rivals: dict[str, Callable[[], Any]], turns: int = 9) -> dict[str, float]:
    """The least time of each, in seconds, one after another so that all see the same machine."""
    best = dict.fromkeys(rivals, np.inf)
    for _ in range(turns):
        for name, act in rivals.items():
            start = time.perf_counter()
            act()
            best[name] = min(best[name], time.perf_counter() - start)
    return best


def steps_of(engine: CpuEngine, problem: ps.Problem, K: int) -> Callable[[], Any]:
    engine.open(problem, {}, 0)
    members, zeros = np.arange(problem.n), np.zeros((problem.n, problem.d))
    client = engine.client(members, Request(no_half, members, 0))
    act = lambda: client.plain_steps(zeros.copy(), zeros, 0.5 / problem.L_max, K, 0, 0.0)  # noqa: E731
    act()
    return act


def c_steps(problem: ps.Problem, K: int) -> Callable[[], Any] | None:
    """The C kernel on our packed arrays, or None without a compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        return None
    library = Path(tempfile.mkdtemp()) / "step.so"
    flags = ["-O3", "-march=native", "-fno-math-errno", "-shared", "-fPIC"]
    subprocess.run([compiler, *flags, "-o", str(library), str(HERE / "step.c")], check=True)
    lib, packed, d = ctypes.CDLL(str(library)), Tiles(problem), problem.d
    H = np.zeros((problem.n, d))
    x, z, g = np.empty(d + 1), np.empty(packed.room), np.empty(d)
    held = packed.data
    tiles = (held.groups, held.row_start, held.row_index, held.column_start, held.column_index)
    fixed = (*tiles, held.b, held.scale, packed.reg, x, z, g)
    pointers = [ctypes.c_void_p(v.ctypes.data) for v in fixed]
    gamma = ctypes.c_double(0.5 / problem.L_max)

    def act() -> Any:
        X = np.zeros((problem.n, d))
        data = (ctypes.c_void_p(X.ctypes.data), ctypes.c_void_p(H.ctypes.data))
        lib.descend(ctypes.c_int64(problem.n), ctypes.c_int64(d), *data, gamma, ctypes.c_int64(K), *pointers)
        return X if fixed else None  # which also keeps the arrays alive

    return act


def scipy_steps(problem: ps.Problem, K: int) -> Callable[[], Any]:
    """Both orientations stored: A @ x and At @ c."""
    both = [(f.A, scipy.sparse.csr_matrix(f.A.T), f.b, f.reg) for f in problem.clients]

    def act() -> None:
        for A, At, b, reg in both:
            x = np.zeros(problem.d)
            for _ in range(K):
                x = x - 0.5 * (At @ (-b / (1.0 + np.exp(b * (A @ x))) / len(b)) + reg * x)

    return act


def dense_steps(problem: ps.Problem, K: int) -> Callable[[], Any]:
    """numpy on dense shards."""
    dense = [(np.asarray(f.A.todense()) if scipy.sparse.issparse(f.A) else f.A, f.b, f.reg) for f in problem.clients]

    def act() -> None:
        for A, b, reg in dense:
            x = np.zeros(problem.d)
            for _ in range(K):
                x = x - 0.5 * (A.T @ (-b / (1.0 + np.exp(b * (A @ x))) / len(b)) + reg * x)

    return act


# -- what is measured --------------------------------------------------------------------------------------------------
def local_step(quick: bool) -> Iterator[str]:
    """One local step of all clients of w8a, in rounds of 100 as in the paper."""
    problem, name = w8a()
    K = 100
    rivals = {
        "ours, 1 thread": steps_of(CpuEngine(1), problem, K),
        "ours, 2 threads": steps_of(CpuEngine(2), problem, K),
        "scipy CSR, both orientations": scipy_steps(problem, K // 5),
        "numpy dense": dense_steps(problem, K // 10),
    }
    per = {"scipy CSR, both orientations": K // 5, "numpy dense": K // 10}
    in_c = c_steps(problem, K)
    if in_c is not None:
        rivals["C, same layout"] = in_c
        assert np.allclose(in_c(), rivals["ours, 1 thread"](), rtol=1e-12, atol=1e-15)
    best = {what: t / per.get(what, K) for what, t in in_turns(rivals, 11).items()}
    ours = best.pop("ours, 1 thread")
    bars = {"ours, 2 threads": 1 / 1.8, "scipy CSR, both orientations": 2.5, "numpy dense": 12, "C, same layout": 0.8}
    yield f"| {name}, 20 clients, a local step on one thread: us | {1e6 * ours:.0f} | | |"
    for what, t in best.items():
        yield row(f"{what}, over this", t / ours, bars[what], least="2 threads" not in what)


def minibatches(quick: bool) -> Iterator[str]:
    """One step of all clients on minibatches of these rows, against one with the full gradient."""
    problem, name = w8a()
    bars, K = {2000: 1.3, 400: 0.75, 32: 0.1}, 40 if quick else 200
    acts = {str(rows): steps_of(CpuEngine(1), problem.with_batch(rows or None), K) for rows in (0, *bars)}
    best = in_turns(acts, 15)
    for rows, bar in bars.items():
        yield row(f"{name}, a step on minibatches of {rows:,} rows, over a full one", best[str(rows)] / best["0"], bar)


def threads(quick: bool) -> Iterator[str]:
    """Whole clients are dealt to the threads: 20 of them keep two threads busy, 16 threads need more, and more to do."""
    bars, cores = {(2, 100): 1.8, (16, 1000): 11.0}, available_cores()
    counts = sorted({1, *(t for t in (2, 4, 8, 16) if t <= cores), min(cores, 16)})
    many = synthetic(49_749, 300, 12, 160)
    for problem, data, K in ((*w8a(), 100), (many, "random rows", 100), (many, "random rows", 1000)):
        engines = {t: CpuEngine(t) for t in counts}
        best = in_turns({str(t): steps_of(engine, problem, K) for t, engine in engines.items()}, 11)
        for engine in engines.values():
            engine.close()
        for t in counts[1:]:
            most = problem.n / -(-problem.n // t)  # the busiest thread has the most clients
            bar = bars.get((t, K), np.inf)
            what = f"{data}, {problem.n} clients, {K} steps: {t} threads over one (at most {most:.1f} is possible)"
            yield row(what, best["1"] / best[str(t)], bar if bar <= most else None, least=True)


def overhead(quick: bool) -> Iterator[str]:
    """A round of Scaffnew without its local step on one thread, in passes over the state vectors (copies of h and xhat)."""
    plain_steps = Cohort.plain_steps
    for n in (1_000, 10_000, 100_000):
        problem, engine, inside = synthetic(100_000 if quick else 1_000_000, 300, 12, n), CpuEngine(1), [0.0]

        def timed(*given: Any, inside: list[float] = inside, **more: Any) -> Any:
            start = time.perf_counter()
            points = plain_steps(*given, **more)
            inside[0] += time.perf_counter() - start
            return points

        act = rounds_of(engine, problem, ps.Scaffnew(gamma=0.1, p=0.99, K=1))
        Cohort.plain_steps = timed  # type: ignore[method-assign]
        state, copy = np.ones((2, n, problem.d)), np.empty((2, n, problem.d))
        rest, passes = [], []
        for _ in range(15):
            inside[0], start = 0.0, time.perf_counter()
            act()
            rest.append(time.perf_counter() - start - inside[0])
            passes.append(in_turns({"copy": lambda: np.copyto(copy, state)}, 2)["copy"])  # noqa: B023
        Cohort.plain_steps = plain_steps  # type: ignore[method-assign]
        engine.close()
        yield row(f"overhead of a round, {n:,} clients, in passes", float(np.min(rest) / np.min(passes)), 4.8)


def calls(quick: bool) -> Iterator[str]:
    """What ``ps.run`` costs beside its rounds: on a problem that has not been run yet, again, and with its records."""

    def seconds(problem: ps.Problem, rounds: int, **how: Any) -> float:
        method = ps.Scaffnew.theory(problem)
        start = time.perf_counter()
        ps.run(method, problem, rounds=rounds, progress=False, **how)
        return time.perf_counter() - start

    for make in (w8a, lambda: (synthetic(5000, 300, 12, 1000), "1,000 clients of 5 rows")):
        for _ in range(2):  # the first time compiles
            problem, name = make()
            _ = problem.solution, problem.L_i
            first = seconds(problem, 1)
        rivals = {
            "one": lambda: seconds(problem, 1),  # noqa: B023
            "recorded": lambda: seconds(problem, 20),  # noqa: B023
            "plain": lambda: seconds(problem, 20, every=20),  # noqa: B023
        }
        best = in_turns(rivals, 7)
        yield row(f"{name}: first run of one round, ms", 1e3 * first)
        yield row(f"{name}: the same again, ms", 1e3 * best["one"])
        yield row(
            f"{name}: 20 rounds with the default records, over those without", best["recorded"] / best["plain"], 1.5
        )


def synthetic(rows: int, d: int, per_row: int, clients: int, ones: bool = True, seed: int = 0) -> ps.Problem:
    """Random sparse rows with about ``per_row`` entries, columns of very different weight, split as they come."""
    rng = np.random.Generator(np.random.Philox(seed))
    lengths = np.clip(rng.poisson(per_row, rows), 1, d)
    columns = np.minimum((d * rng.random(int(lengths.sum())) ** 2).astype(np.int32), d - 1)
    M = scipy.sparse.csr_matrix(
        (np.ones(len(columns)), columns, np.concatenate([[0], np.cumsum(lengths)])), shape=(rows, d)
    )
    M.sum_duplicates()
    M.data[:] = 1.0 if ones else rng.standard_normal(M.nnz)
    model = ps.Logistic(M, rng.choice([-1.0, 1.0], rows), l2=1e-3)
    bounds = [i * rows // clients for i in range(clients + 1)]
    parts = [_with_L(model.take(np.arange(lo, hi))) for lo, hi in itertools.pairwise(bounds)]
    return ps.Problem(parts, weights=np.diff(bounds), whole=_with_L(model))


def _with_L(f: Any) -> Any:
    """Any L does for timing; the exact one of large data takes longer than the benchmark."""
    f.__dict__["L"] = f.__dict__["L0"] = 1.0
    return f


class Own:
    """An oracle that only its user knows: clients one by one, and no kernels."""

    def __init__(self, f: Any) -> None:
        self.f, self.L, self.mu, self.d = f, f.L, f.mu, f.d

    def value(self, x: Any) -> float:
        return float(self.f.value(x))

    def gradient(self, x: Any) -> Any:
        return self.f.gradient(x)


def own_oracles(quick: bool) -> Iterator[str]:
    """A run on oracles of a user: what the cpu engine takes over "reference"; with 200 rows that is its start alone."""
    for n, rows in ((1, 20_000), (1, 200), (20, 1000)):
        whole = synthetic(n * rows // (10 if quick else 1), 100, 12, n)
        problem = ps.Problem([Own(f) for f in whole.clients])
        problem.__dict__["solution"] = None
        method: Any = ps.GD(0.5 / whole.L_max) if n == 1 else ps.Scaffnew(0.5 / whole.L_max, 0.1, K=10)
        run = lambda engine: ps.run(method, problem, rounds=60, every=60, engine=engine)  # noqa: B023, E731
        best = in_turns({"cpu": lambda: run("cpu"), "reference": lambda: run("reference")})  # noqa: B023
        what = "one oracle" if n == 1 else f"{n} oracles"
        yield row(
            f"{what} of a user, {rows:,} rows each: cpu over reference",
            best["cpu"] / best["reference"],
            None if rows < 1000 else 1.1,
        )


def rounds_of(engine: Any, problem: ps.Problem, method: Any) -> Callable[[], None]:
    """One round a call."""
    shape = (problem.n, problem.d)
    engine.open(problem, {k: np.zeros(shape) for k in method.remembers}, 0)
    line = MeteredExchange(engine, problem, 0, Everyone())
    state = {"server": method.start(problem, np.zeros(problem.d)), "round": 0}

    def act() -> None:
        line.begin(state["round"])
        state["server"] = method.round(state["server"], line)
        state["round"] += 1

    act()
    return act


def w8a() -> tuple[ps.Problem, str]:
    """w8a on 20 clients by label, or random rows of its shape."""
    try:
        A, b = ps.datasets.load("w8a")
    except ps.InputError:
        return synthetic(49_749, 300, 12, 20), "random rows of w8a's shape"
    return ps.split(ps.Logistic(A, b, l2_relative=1e-4), clients=20, by="label"), "w8a by label"


def row(what: str, figure: float, bar: float | None = None, least: bool = False) -> str:
    """A line of the table; ``bar`` is the most that the figure may be, or the least."""
    if bar is None:
        return f"| {what} | {figure:.3g} | | |"
    met = figure >= bar if least else figure <= bar
    return f"| {what} | {figure:.3g} | at {'least' if least else 'most'} {bar:.3g} | {'met' if met else 'MISSED'} |"


PARTS = {
    "steps": local_step, "minibatches": minibatches, "threads": threads, "overhead": overhead, "calls": calls,
    "own": own_oracles,
}  # fmt: skip


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--quick", action="store_true", help="small sizes")
    options.add_argument("--only", nargs="*", choices=tuple(PARTS), help="some of the parts")
    o = options.parse_args()
    print(f"## The cpu engine (load {os.getloadavg()[0]:.1f})\n")
    print("| what | measured | bar | verdict |\n|---|---|---|---|")
    for name in o.only or PARTS:
        for line in PARTS[name](o.quick):
            print(line, flush=True)


if __name__ == "__main__":
    main()
