"""A million clients: seconds and peak memory of each phase, from the data to twenty rounds with a thousand of them.

    python benchmarks/million.py                         5 million rows, 300 features, 12 entries a row, 1,000,000 clients
    python benchmarks/million.py --quick                 the same with five rows for each of 20,000 clients

Bars, on two quiet cores: split, L_i, weights and the theory's parameters take at most 60 s, at a peak of at most 4 GB
with the input; 20 rounds of 1,000 clients likewise. "peak GB" is resident memory with mapped files, "anon GB" the most anonymous memory that was seen
meanwhile (Linux).
"""

from __future__ import annotations

import argparse
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.sparse

BARS = {"seconds": 60.0, "GB": 4.0}
COUNTED = ("split", "weights", "L_i", "theory")


def memory(field: str) -> float:
    """GB of this process: VmRSS, VmHWM (the peak) or RssAnon."""
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith(field + ":")) * 1024 / 1e9


def forget_peak() -> None:
    """Let the peak begin anew."""
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")


class Phases:
    """Prints what each phase takes, and keeps it."""

    def __init__(self) -> None:
        self.taken: dict[str, tuple[float, float, float, float]] = {}
        self.anonymous = 0.0
        threading.Thread(target=self._look, daemon=True).start()
        print("## A million clients\n\n| phase | seconds | CPU s | peak GB | anonymous GB |\n|---|---|---|---|---|")

    def _look(self) -> None:
        while True:
            self.anonymous = max(self.anonymous, memory("RssAnon"))
            time.sleep(0.02)

    def __call__(self, name: str, work: Callable[[], Any]) -> Any:
        forget_peak()
        self.anonymous = memory("RssAnon")
        wall, cpu = time.perf_counter(), time.process_time()
        out = work()
        seconds, busy = time.perf_counter() - wall, time.process_time() - cpu
        self.taken[name] = seconds, busy, memory("VmHWM"), max(self.anonymous, memory("RssAnon"))
        print(f"| {name} | " + " | ".join(f"{v:.2f}" for v in self.taken[name]) + " |", flush=True)
        return out


def rows(N: int, d: int, entries: int, seed: int = 0) -> tuple[Any, Any]:
    """A random sparse matrix with this many entries in each row, and labels."""
    rng = np.random.default_rng(seed)
    width = d // entries
    indices = rng.integers(0, width, (N, entries), dtype=np.int32)
    indices += np.arange(entries, dtype=np.int32) * width
    indptr = np.arange(0, N * entries + 1, entries)
    A = scipy.sparse.csr_matrix((rng.standard_normal(N * entries), indices.ravel(), indptr), shape=(N, d))
    return A, rng.integers(0, 2, N)


def in_memory(o: argparse.Namespace) -> None:
    """Everything that a problem is asked for before a run."""
    import proxskip as ps
    from proxskip.engines.cpu.shards import pack
    from proxskip.results.description import fingerprint

    phase = Phases()
    A, b = phase("input", lambda: rows(5 * o.clients, o.features, o.entries))
    model = phase("model", lambda: ps.Logistic(A, b, l2=1e-3))
    problem = phase("split", lambda: ps.split(model, o.clients, by="iid"))
    phase("weights", lambda: (problem.weights.min(), problem.sizes))
    phase("L_i", lambda: problem.L_i)
    phase("theory", lambda: (ps.Scaffnew.theory(problem), ps.Tamuna.theory(problem, cohort=min(1000, o.clients))))
    phase("fingerprint", lambda: fingerprint(problem))
    x = np.ones(problem.d)
    phase("f and its gradient", lambda: (problem.value(x), problem.gradient(x)))
    phase("gradients, in blocks", lambda: sum(len(G) for _, G in problem.gradient_blocks(x)))
    phase("packed for cpu", lambda: pack(problem))
    few = min(1000, o.clients)
    method = ps.Scaffnew.theory(problem, cohort=few)
    problem.__dict__.setdefault("solution", None)
    phase("20 rounds of 1,000", lambda: ps.run(method, problem, cohort=few, rounds=20, progress=False))
    if o.solution:
        phase("solution", lambda: problem.solution)
    seconds = sum(phase.taken[k][0] for k in COUNTED)
    peak = max(phase.taken[k][2] for k in ("input", "model", *COUNTED))
    print(f"\nsplit, weights, L_i, theory: {seconds:.1f} s ({seconds / BARS['seconds']:.2f} of the bar)\n")
    print(f"peak with the input: {peak:.2f} GB ({peak / BARS['GB']:.2f} of the bar)")
    seconds, _, peak, _ = phase.taken["20 rounds of 1,000"]
    bar = f"{seconds / BARS['seconds']:.2f} and {peak / BARS['GB']:.2f} of the bars"
    print(f"20 rounds of 1,000 clients: {seconds:.1f} s, {peak:.2f} GB ({bar})")


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--clients", type=int, default=1_000_000)
    options.add_argument("--features", type=int, default=300)
    options.add_argument("--entries", type=int, default=12, help="of each row")
    options.add_argument("--solution", action="store_true", help="compute x* too")
    options.add_argument("--quick", action="store_true", help="20,000 clients")
    o = options.parse_args()
    o.clients = min(o.clients, 20_000) if o.quick else o.clients
    in_memory(o)


if __name__ == "__main__":
    main()
