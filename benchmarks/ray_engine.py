"""The Ray engine's numbers: ratios to the cpu engine and to the authors' way, and the constants of a cluster.

    python benchmarks/ray_engine.py                  all of it
    python benchmarks/ray_engine.py --only round     some of it
    python benchmarks/ray_engine.py --quick          small sizes, to see that it works

Everything runs on a cluster of two Ray nodes on this machine.
"""

from __future__ import annotations

import argparse
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[variable] = "1"  # before numpy is imported
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")

import cpu
import numpy as np
import ray
from ray.cluster_utils import Cluster

import proxskip as ps
from proxskip.engines.cpu.engine import CpuEngine
from proxskip.engines.ray.engine import RayEngine
from proxskip.engines.ray.private import on_loopback

MB = 2**20


@contextmanager
def two_nodes(cpus: int = 2, store: int = 300 * MB) -> Iterator[Cluster]:
    """A cluster of two nodes on this machine."""
    with on_loopback(), warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        cluster = Cluster(initialize_head=True, head_node_args=node(cpus, store))
        cluster.add_node(**node(cpus, store))
        ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
        try:
            yield cluster
        finally:
            ray.shutdown()
            cluster.shutdown()


def node(cpus: int, store: int, **more: Any) -> dict[str, Any]:
    return {
        "num_cpus": cpus,
        "object_store_memory": store,
        "include_dashboard": False,
        "node_ip_address": "127.0.0.1",
        **more,
    }


@ray.remote(num_cpus=0)
class Bare:
    """An actor that does nothing."""

    def answer(self, v: Any) -> Any:
        return v


def bare_trip(d: int, actors: int = 2) -> Callable[[], Any]:
    """One bare Ray round trip to all actors with a vector each way."""
    made, v = [Bare.remote() for _ in range(actors)], np.zeros(d)
    act = lambda: ray.get([a.answer.remote(v) for a in made])  # noqa: E731
    act()
    return act


# -- speed -------------------------------------------------------------------------------------------------------------
def a_round(quick: bool) -> str:
    """20 clients, 2 actors, 100 local steps, w8a: against the cpu engine, bare trips, and the authors' way."""
    problem, name = cpu.w8a()
    method = ps.Scaffnew(gamma=0.5 / problem.L_max, p=0.01, K=100)
    engine = RayEngine(2)
    made = cpu.authors_way(problem, 100)
    rivals = {
        "cpu engine, 2 threads": cpu.rounds_of(CpuEngine(2), problem, method),
        "ray engine, 2 actors": cpu.rounds_of(engine, problem, method),
        "bare Ray round trip, 2 actors": bare_trip(problem.d),
        "authors' way: an actor a client, dense numpy": made,
    }
    best = cpu.in_turns(rivals, 3 if quick else 15)
    engine.close()
    ours, theirs, trip, slow = best.values()
    bar = 1.15 * ours + 2 * trip
    lines = [f"| {what} | {1e3 * t:.2f} |" for what, t in best.items()]
    return "\n".join([
        f"### A round: 20 clients, 100 local steps, {name}, 2 nodes\n", "| what | ms (least of several) |", "|---|---|", *lines, "",
        f"Ray engine: {1e3 * theirs:.2f} ms; 1.15 times the cpu engine plus 2 bare trips: {1e3 * bar:.2f} ms ({'holds' if theirs <= bar else 'MISSED'}).",
        f"The authors' way takes {slow / theirs:.1f} times as long (bar: 10, {'holds' if slow >= 10 * theirs else 'MISSED'}).\n",
    ])  # fmt: skip


# -- constants for the arithmetic of a large cluster -------------------------------------------------------------------
def constants(quick: bool) -> str:
    """What a call costs against the number of actors and the size of the vectors."""
    rows = []
    for actors, d in ((1, 300), (2, 300), (4, 300), (8, 300), (1, 10**5), (1, 10**6)) if quick else (
        (1, 300), (2, 300), (4, 300), (8, 300), (16, 300), (1, 10**4), (1, 10**5), (1, 10**6), (4, 10**6),
    ):  # fmt: skip
        rows.append((actors, d, cpu.in_turns({"t": bare_trip(d, actors)}, 5 if quick else 30)["t"]))
    fixed = next(t for a, d, t in rows if (a, d) == (1, 300))
    most = next(t for a, d, t in rows if (a, d) == (8, 300))
    large = next(t for a, d, t in rows if (a, d) == (1, 10**6))
    w, U = np.ones(64) / 64, np.ones((64, 10**5))
    add = cpu.in_turns({"t": lambda: RayEngine.sum(None, w, U)}, 5)["t"]  # type: ignore[arg-type]
    lines = [f"| {a} | {d:,} | {1e3 * t:.2f} |" for a, d, t in rows]
    return "\n".join([
        "### Constants of a call\n", "| actors | d | ms, vector there and back |", "|---|---|---|", *lines, "",
        f"A call: {1e3 * fixed:.2f} ms, and {1e3 * (most - fixed) / 7:.2f} ms for every further actor. Vectors: {2 * 8e6 / max(large - fixed, 1e-9) / 1e9:.2f} GB/s.",
        f"Summing at the driver: {64 * 8e5 / add / 1e9:.2f} GB/s.\n",
    ])  # fmt: skip


PARTS = {"round": a_round, "constants": constants}


def report(quick: bool, only: Sequence[str] | None = None) -> str:
    """These of the parts, each on a cluster of its own."""
    page = []
    for name in only or PARTS:
        with two_nodes(cpus=10 if name == "round" else 8):
            page.append(PARTS[name](quick))
    return "\n".join(["## Ray, two nodes of a cluster on this machine\n", *page, f"Ray {ray.__version__}."])


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--quick", action="store_true", help="small sizes")
    options.add_argument("--only", nargs="*", choices=tuple(PARTS), help="some of it")
    o = options.parse_args()
    print(report(o.quick, o.only))


if __name__ == "__main__":
    main()
