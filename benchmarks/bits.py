"""Uplink bits to f - f* = 1e-6: LoCoDL against Scaffnew in float32, and TAMUNA against Scaffnew on the same cohorts.

    python benchmarks/bits.py              on w8a: 20 clients by label; then 200 clients by label in cohorts of 20
    python benchmarks/bits.py --quick      on digits, with fewer clients

All parameters are the theorems'. Every number is the ledger's total over all clients.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import proxskip as ps

TARGET = 1e-6


def problem_of(data: str, clients: int, l2: float) -> ps.Problem:
    """By label, equally weighted."""
    A, b = ps.datasets.load(data)
    return ps.split(ps.Logistic(A, b, l2=l2, l2_relative=True), clients=clients, by="label", weights="equal")


def measure(name: str, method: Any, problem: ps.Problem, cohort: int | None = None) -> float:
    """Print a row of the table; the bits that went up."""
    begin = time.perf_counter()
    result = ps.run(method, problem, target=TARGET, rounds=200_000, cohort=cohort, every=10, seed=0)
    s = result.summary()
    print(
        f"{name:<28}{method.p:>9.4f}{result.rounds:>9,}{s['iterations']:>10,}{s['bits_up'] / 1e6:>12.3f}"
        f"{s['bits_down'] / 1e6:>12.3f}{s['gap']:>10.1e}  {result.status.name} {time.perf_counter() - begin:.0f} s",
        flush=True,
    )
    return float(s["bits_up"])


def main() -> None:
    """Both tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--part", type=int, choices=(1, 2))
    o = parser.parse_args()
    data, l2 = ("digits", 1e-2) if o.quick else ("w8a", 1e-4)
    print(f"{'to f - f* = 1e-6':<28}{'p':>9}{'rounds':>9}{'steps':>10}{'Mbit up':>12}{'Mbit down':>12}{'f - f*':>10}")
    if o.part != 2:
        problem = problem_of(data, 10 if o.quick else 20, l2)
        base = measure("scaffnew float32", ps.Scaffnew.configure(problem, {"codec": "float32"}), problem)
        for codec in (f"rand-{-(-problem.d // problem.n)}+natural", "rand-30+natural", "natural"):
            found = measure(f"locodl {codec}", ps.LoCoDL.theory(problem, codec), problem)
            print(f"{'':28}{found / base:.2f} of the bits of scaffnew")
    if o.part != 1:
        n, c = (50, 10) if o.quick else (200, 20)
        problem = problem_of(data, n, l2)
        base = measure(f"scaffnew cohort {c}", ps.Scaffnew.theory(problem, cohort=c), problem, c)
        for s in (2, 4):
            found = measure(f"tamuna s={s} cohort {c}", ps.Tamuna.theory(problem, cohort=c, s=s), problem, c)
            print(f"{'':28}{found / base:.2f} of the bits of scaffnew")


if __name__ == "__main__":
    main()
