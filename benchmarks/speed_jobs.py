"""A worker of ``same_speed.py``: times jobs on the package that is imported, as the parent asks for them.

It says which jobs there are, then reads lines ``JOB REPEATS`` and answers each with seconds a unit and seconds in all.
Only public names are used. What is timed lies between two records of the run, so reading and packing of data are not in it.
"""

from __future__ import annotations

import json
import os
import sys
import time
import warnings
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[variable] = "1"  # before numpy is imported

import numpy as np
import trees

import proxskip as ps
from proxskip.links.graphs import graph  # releases before 0.3 run this too


class Between:
    """The time from the first record to the last."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def on_run_start(self, config: Any) -> None: ...

    def on_record(self, step: int, metrics: Any) -> None:
        self.times.append(time.perf_counter())

    def on_run_end(self, result: Any) -> None: ...


@cache
def rows() -> Any:
    """w8a where its folder is known, else digits, on 20 clients by label."""
    name = "w8a" if "PROXSKIP_DATA" in os.environ else "digits"
    A, b = ps.datasets.load(name)
    return ps.split(ps.Logistic(A, b, l2=1e-3, l2_relative=True), clients=20, by="label")


@cache
def small(n: int = 20, d: int = 10) -> Any:
    """Quadratics so small that a round is nothing but its overhead."""
    return ps.Problem(ps.random_quadratics(n, d, L=1.0, mu=1e-4, seed=0))


def steps(repeats: int, K: int = 100, batch: int | None = None, **given: Any) -> tuple[float, int]:
    """Rounds of K local steps of all clients on one thread; units are steps."""
    problem = rows() if batch is None else rows().with_batch(batch)
    seconds, rounds = rounds_of(problem, ps.Scaffnew(0.1 / problem.L_max, 1 / K, K=K), repeats, **given)
    return seconds, rounds * K


def rounds_of(problem: Any, method: Any, repeats: int, **given: Any) -> tuple[float, int]:
    """Rounds, from the record before the first to the record after the last."""
    clock = Between()
    ps.run(
        method, problem, rounds=repeats, every=repeats, threads=1, callbacks=[clock], allow_unsafe_step=True, **given
    )
    return clock.times[-1] - clock.times[0], repeats


def overhead(repeats: int, cohort: Any = None, engine: str = "cpu") -> tuple[float, int]:
    """Rounds of Scaffnew with one local step on small quadratics."""
    return rounds_of(small(), ps.Scaffnew(0.5, 0.9, K=1), repeats, cohort=cohort, engine=engine)


def gossip(repeats: int) -> tuple[float, int]:
    """Rounds along a ring."""
    problem = small()
    return rounds_of(problem, ps.DecentralizedScaffnew.theory(problem, graph("ring", problem.n)), repeats)


def large(repeats: int) -> tuple[float, int]:
    """Rounds of clients whose stack has more than 2^18 entries."""
    return rounds_of(_wide(), ps.Scaffnew(0.5, 0.9, K=1), repeats)


@cache
def _wide() -> Any:
    rng = np.random.Generator(np.random.Philox(8))
    return ps.Problem([ps.Quadratic(0.5 + rng.random(3000), rng.standard_normal(3000)) for _ in range(100)])


def minimizing(method: str, repeats: int, **given: Any) -> tuple[float, int]:
    """Iterations of ``minimize`` on a small quadratic that is far from solved."""
    start = time.perf_counter()
    found = ps.minimize(_ill(), ps.prox.L1(1e-3), method=method, tol=1e-14, max_iter=repeats, threads=1, **given)
    return time.perf_counter() - start, found.nit


@cache
def _ill() -> Any:
    return ps.Quadratic(np.geomspace(1e-7, 1.0, 12), np.ones(12))


def sweeping(repeats: int) -> tuple[float, int]:
    """Rounds of four runs that follow each other, so many that their setting up does not count; on one thread."""
    problem = small()
    methods = [ps.Scaffnew(0.5, 0.9, K=1), ps.GD(0.5)]
    start = time.perf_counter()
    long = {"rounds": 50 * repeats, "every": 50 * repeats}
    ps.sweep(methods, problem, **long, seeds=[0, 1], engine="reference", allow_unsafe_step=True)
    return time.perf_counter() - start, 200 * repeats


JOBS: dict[str, Callable[[int], tuple[float, int]]] = {
    "local step, 20 clients, K = 100": steps,
    "round, 20 clients, K = 1": partial(steps, K=1),
    "minibatch step, 20 clients, 32 rows": partial(steps, batch=32),
    "round of small quadratics": overhead,
    "round of small quadratics, cohorts of 5": partial(overhead, cohort=5),
    "round of small quadratics, reference engine": partial(overhead, engine="reference"),
    "round along a ring": gossip,
    "round of large stacks": large,
    "iteration of minimize, proxskip, p = 0.1": partial(minimizing, "proxskip", p=0.1),
    "iteration of minimize, proxgd": partial(minimizing, "proxgd"),
    "iteration of minimize, fista": partial(minimizing, "fista"),
    "iteration of minimize, fista-restart": partial(minimizing, "fista-restart"),
    "round of a sweep": sweeping,
}


CARD_JOBS: dict[str, Callable[[int], tuple[float, int]]] = {
    f"gpu: {name}": partial(job, engine="gpu")
    for name, job in {
        "local step, 20 clients, K = 100": steps,
        "local step, 20 clients, K = 10": partial(steps, K=10),
        "round, 20 clients, K = 1": partial(steps, K=1),
        "minibatch step, 20 clients, 32 rows": partial(steps, batch=32),
        "round of small quadratics": overhead,
        "round of small quadratics, cohorts of 5": partial(overhead, cohort=5),
    }.items()
}
"""For a machine with a card."""


def has_card() -> bool:
    """Whether CuPy is there and finds a card."""
    try:
        import cupy

        return bool(cupy.cuda.is_available())
    except ImportError:
        return False


def main() -> None:
    trees.insist_on(Path(sys.argv[1]))
    warnings.simplefilter("ignore")
    JOBS.update(CARD_JOBS if has_card() else {})
    names = list(JOBS)
    print(json.dumps(names), flush=True)
    for line in sys.stdin:
        job, repeats = map(int, line.split())
        seconds, units = JOBS[names[job]](repeats)
        print(json.dumps([seconds / units, seconds]), flush=True)


if __name__ == "__main__":
    main()
