"""minimize's "auto" against papc and pdhg on 200 random problems  f(x) + lam |D x|_1  with a LeastSquares f.

python benchmarks/random_split.py              all of them; --every 10 for one of ten
python benchmarks/random_split.py --cpu        with the seconds of the processor, on a busy machine

Each method has its first gradients unmeasured, then three runs in turns with the others; the medians count. Where neither
papc nor pdhg is done within --limit seconds, "auto" is not asked.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import time
from typing import Any

for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"):
    os.environ[variable] = "1"  # before numpy is imported

import numpy as np
import scipy.linalg
import scipy.optimize

import proxskip as ps

PROBLEMS, TOL = 200, 1e-7
SHORTEST = 0.05
"""Problems that take the better of papc and pdhg less count in the median only."""


def problem(seed: int) -> tuple[Any, Any, Any, Any]:
    """f, psi, D and x0 with 10 to 60 unknowns, kappa up to 1e6 and lam from 0.001 to 1.5 times the largest of use."""
    rng = np.random.default_rng(seed)
    d = int(rng.integers(10, 61))
    rows, kappa = int(rng.integers(d, 3 * d + 1)), 10 ** rng.uniform(1, 6)
    U, V = (np.linalg.qr(rng.standard_normal((n, d)))[0] for n in (rows, d))
    A = math.sqrt(rows) * (U * np.geomspace(kappa**-0.5, 1, d)) @ V.T
    b = 10 * rng.standard_normal(rows)
    D = (
        lambda: rng.standard_normal((int(rng.integers(d, 2 * d)), d)),
        lambda: rng.standard_normal((int(rng.integers(d // 2, d)), d)),
        lambda: np.diff(np.eye(d), axis=0),
        lambda: np.vstack([np.eye(d), np.diff(np.eye(d), axis=0)]),
    )[seed % 4]()
    share = math.exp(rng.uniform(math.log(1e-3), math.log(1.5))) if seed % 8 < 4 else rng.uniform(1e-3, 1.5)
    x0 = rng.standard_normal(d) * 10 ** rng.uniform(-1, 1)
    return ps.LeastSquares(A, b), ps.prox.L1(share * largest_lam(A, b, D)), D, x0


def largest_lam(A: Any, b: Any, D: Any) -> float:
    """The smallest lam whose solution has D x = 0: the least max |v| with D'v = -grad f there."""
    N = scipy.linalg.null_space(D)
    x = N @ np.linalg.lstsq(A @ N, b, rcond=None)[0] if N.shape[1] else np.zeros(A.shape[1])
    k, ones = len(D), np.ones((len(D), 1))
    cost, rows = np.r_[np.zeros(k), 1.0], np.block([[np.eye(k), -ones], [-np.eye(k), -ones]])
    equal, right = np.c_[D.T, np.zeros(len(x))], A.T @ (b - A @ x) / len(b)
    found = scipy.optimize.linprog(cost, rows, np.zeros(2 * k), equal, right, [(None, None)] * k + [(0, None)])
    return float(found.x[-1])


def seconds(given: tuple[Any, ...], method: str, **limit: Any) -> tuple[float, Any]:
    """Infinite where it did not converge; and the result."""
    f, psi, D, x0 = given
    then = time.perf_counter()
    found = ps.minimize(f, psi, x0, D=D, method=method, tol=TOL, threads=1, **limit)
    took = time.perf_counter() - then
    return took if found.success else math.inf, found


def judge(seed: int, limit: float) -> tuple[float, float, Any]:
    """The median seconds of the better fixed method and of "auto", and the last result of that."""
    given = problem(seed)
    for method in ("papc", "pdhg", "auto"):
        seconds(given, method, max_grad=300)
    took: dict[str, list[float]] = {"papc": [], "pdhg": [], "auto": []}
    for _ in range(3):
        for method in ("papc", "pdhg"):
            if not took[method] or took[method][-1] < math.inf:
                took[method].append(seconds(given, method, seconds=limit)[0])
        if min(took["papc"][-1], took["pdhg"][-1]) == math.inf:
            return math.inf, math.nan, None
        spent, found = seconds(given, "auto", seconds=20 * limit)
        took["auto"].append(spent)
    papc, pdhg, auto = (statistics.median(t) if math.inf not in t else math.inf for t in took.values())
    return min(papc, pdhg), auto, found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--limit", type=float, default=8.0)
    parser.add_argument("--cpu", action="store_true")
    asked = parser.parse_args()
    if asked.cpu:
        time.perf_counter = time.process_time
    ratios, long = [], []
    for seed in range(0, PROBLEMS, asked.every):
        best, auto, found = judge(seed, asked.limit)
        if best == math.inf:
            print(f"{seed:>4}  neither papc nor pdhg within {asked.limit:g} s", flush=True)
            continue
        ratios.append(auto / best)
        if best >= SHORTEST:
            long.append(auto / best)
        chosen = " ".join(f"{r}:{m}" for r, m in found.choices)
        print(f"{seed:>4}  best {best:.3g} s  auto {auto:.3g} s  {auto / best:.2f}  {chosen}", flush=True)
    print(
        f"{len(ratios)} problems, auto / best: median {statistics.median(ratios):.2f}, {ratios.count(math.inf)} failed."
    )
    if long:
        print(f"{len(long)} of {SHORTEST} s or more: median {statistics.median(long):.2f}, worst {max(long):.2f}.")
