"""Local steps on the CPU: ours against scipy, numpy, C, BLAS, and the way the paper's authors run a round.

    python benchmarks/cpu.py            some minutes; --quick for small sizes

w8a is read from PROXSKIP_DATA or the cache; without it random rows of its shape take its place.
Every figure is the least of several runs, taken in turns with its rivals in one process, BLAS on one thread.
"""

from __future__ import annotations

import argparse
import ctypes
import itertools
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse

import proxskip as ps
from proxskip.engines.cpu.engine import CpuEngine
from proxskip.engines.cpu.shards import Tiles
from proxskip.links.cohorts import Everyone
from proxskip.loop.metered_exchange import MeteredExchange

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
    gamma, count = np.full(problem.n, 0.5 / problem.L_max), np.full(problem.n, K)
    act = lambda: engine.descend(members, zeros.copy(), zeros, gamma, count, 0)  # noqa: E731
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


def local_step(problem: ps.Problem) -> list[tuple[str, float, str]]:
    """One local step of all clients of w8a, in rounds of 100 as in the paper."""
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
    best = {name: t / per.get(name, K) for name, t in in_turns(rivals, 11).items()}
    ours = best["ours, 1 thread"]
    bars = {
        "ours, 2 threads": "two threads at least 1.8 times faster than one",
        "scipy CSR, both orientations": "at least 2.5",
        "numpy dense": "at least 12",
        "C, same layout": "at least 0.8 (ours at most 1.25 times slower)",
    }
    rows = [("ours, 1 thread", ours, "")]
    for name, t in best.items():
        if name != "ours, 1 thread":
            ratio = ours / t if name == "ours, 2 threads" else t / ours
            rows.append((name, t, f"{ratio:.2f} ({bars[name]})"))
    return rows


def minibatches(problem: ps.Problem, K: int) -> list[tuple[str, float, str]]:
    """One step of all clients on minibatches of these rows, against one with the full gradient."""
    bars = {2000: 1.3, 400: 0.75, 32: 0.1}
    acts = {rows: steps_of(CpuEngine(1), problem.with_batch(rows or None), K) for rows in (0, *bars)}
    best = {int(name): t / K for name, t in in_turns({str(rows): act for rows, act in acts.items()}, 15).items()}
    rows = [(f"{b:,} rows", best[b], f"{best[b] / best[0]:.3f} (at most {bar:g})") for b, bar in bars.items()]
    return [("all rows", best[0], ""), *rows]


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


def whole_round(problem: ps.Problem, K: int = 100) -> list[tuple[str, float, str]]:
    """A round of K local steps of all clients: ours, stacked numpy, JAX and the authors' way (Ray actors), where installed."""
    method = ps.Scaffnew(gamma=0.5 / problem.L_max, p=1 / K, K=K)
    ours = in_turns({"t": rounds_of(CpuEngine(), problem, method)}, 7)["t"]
    rows = [("ours", ours, "")]
    for name, make in (
        ("numpy, dense, one client after another", _numpy_round),
        ("JAX, dense, one jit", _jax_round),
        ("authors' way: Ray, an actor a client, dense numpy", _ray_round),
    ):
        made = make(problem, K)
        if made is None:
            rows.append((name, float("nan"), "not installed"))
            continue
        act, finish = made
        t = in_turns({"t": act}, 3)["t"]
        finish()
        rows.append((name, t, f"{t / ours:.1f} times slower"))
    return rows


def _numpy_round(problem: ps.Problem, K: int) -> Any:
    return dense_steps(problem, K), lambda: None


def _jax_round(problem: ps.Problem, K: int) -> Any:
    try:
        import jax
        import jax.numpy as jnp
    except ImportError:
        return None
    jax.config.update("jax_enable_x64", True)
    m = max(f.N for f in problem.clients)
    A, b, s = np.zeros((problem.n, m, problem.d)), np.ones((problem.n, m)), np.zeros((problem.n, m))
    for i, f in enumerate(problem.clients):
        A[i, : f.N], b[i, : f.N], s[i, : f.N] = f.A.toarray(), f.b, 1.0 / f.N
    l2 = problem.l2

    def step(x: Any, A: Any, b: Any, s: Any) -> Any:
        return x - 0.5 * (A.T @ (-b * s / (1.0 + jnp.exp(b * (A @ x)))) + l2 * x)

    @jax.jit
    def go(x: Any, A: Any, b: Any, s: Any) -> Any:
        return jax.lax.fori_loop(0, K, lambda _, X: jax.vmap(step)(X, A, b, s), x).mean(0)

    args = (jnp.zeros((problem.n, problem.d)), jnp.asarray(A), jnp.asarray(b), jnp.asarray(s))
    go(*args).block_until_ready()
    return lambda: go(*args).block_until_ready(), lambda: None


def _ray_round(problem: ps.Problem, K: int) -> Any:
    try:
        import os

        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        import ray
    except ImportError:
        return None
    from proxskip.engines.ray.cluster import start_here

    start_here(num_cpus=2, log_to_driver=False, logging_level="ERROR")
    return authors_way(problem, K), ray.shutdown


def authors_way(problem: ps.Problem, K: int) -> Callable[[], Any]:
    """An actor a client, dense numpy, x put in every round; Ray is running."""
    import ray

    @ray.remote(num_cpus=0.1)
    class Worker:
        def __init__(self, A: Any, b: Any, reg: Any) -> None:
            self.A, self.b, self.reg = A, b, reg

        def go(self, x: Any) -> Any:
            for _ in range(K):
                x = x - 0.5 * (
                    self.A.T @ (-self.b / (1.0 + np.exp(self.b * (self.A @ x))) / len(self.b)) + self.reg * x
                )
            return x

    workers = [Worker.remote(f.A.toarray(), f.b, f.reg) for f in problem.clients]

    def act() -> Any:
        x = ray.put(np.zeros(problem.d))
        return np.mean(ray.get([w.go.remote(x) for w in workers]), axis=0)

    act()
    return act


def w8a() -> tuple[ps.Problem, str]:
    """w8a on 20 clients by label, or random rows of its shape."""
    try:
        A, b = ps.datasets.load("w8a")
    except ps.InputError:
        return synthetic(49_749, 300, 12, 20), "random rows of w8a's shape"
    return ps.split(ps.Logistic(A, b, l2=1e-4, l2_relative=True), clients=20, by="label"), "w8a by label"


def section(title: str, rows: list[tuple[str, float, str]]) -> None:
    """Print a table."""
    print(f"\n## {title}\n\n| what | ms | ratio to ours (bar) |\n|---|---|---|")
    for name, t, note in rows:
        print(f"| {name} | {1e3 * t:.3f} | {note} |", flush=True)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--quick", action="store_true", help="small sizes")
    o = options.parse_args()
    problem, name = w8a()
    section(f"One local step of all 20 clients, {name}, float64", local_step(problem))
    section("A minibatch step on one thread, over a full step", minibatches(problem, 40 if o.quick else 200))
    section(f"A whole round, 20 clients, 100 local steps, {name}", whole_round(problem))


if __name__ == "__main__":
    main()
