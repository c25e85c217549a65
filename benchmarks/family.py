"""What the methods that followed ProxSkip save, each against Scaffnew on the same problem, both by their theorems.

    python benchmarks/family.py gradskip     gradients to f - f* = 1e-6 where the clients' L_i differ by 10
    python benchmarks/family.py vr           f - f* with minibatches of 32 rows

Options: --data w8a, --clients 20, --l2 1e-4 (relative to L), --seeds 3.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import numpy as np

import proxskip as ps


def problem_of(o: Any, weights: str = "rows") -> ps.Problem:
    """The data by label."""
    data = ps.datasets.load(o.data)
    return ps.split(ps.Logistic(data.A, data.b, l2=o.l2, l2_relative=True), o.clients, "label", weights=weights)


def scaled(problem: ps.Problem, spread: float) -> ps.Problem:
    """The rows of client i scaled, so that the L_i fall from the largest to a part ``spread`` of it."""
    factors = np.geomspace(1.0, 1.0 / spread, problem.n)
    parts: list[Any] = list(problem.clients)
    largest = max(f.L0 for f in parts)
    made = [
        ps.Logistic(f.A * np.sqrt(t * largest / f.L0), f.b, l2=f.l2, classes=(-1.0, 1.0))
        for t, f in zip(factors, parts, strict=True)
    ]
    return ps.Problem(made, problem.weights)


def show(name: str, result: ps.Result, began: float) -> dict[str, Any]:
    """One line."""
    s = result.summary()
    print(
        f"{name:34} {result.status.name:10} rounds {result.rounds:7}  passes {s['passes']:10.1f}  gap {s['gap']:.2e}  "
        f"floats up {s['floats_up']:.3g}  {time.perf_counter() - began:6.1f} s",
        flush=True,
    )
    return s


def run(name: str, method: Any, problem: ps.Problem, **given: Any) -> dict[str, Any]:
    """Run and show."""
    began = time.perf_counter()
    return show(name, ps.run(method, problem, **given), began)


def gradskip(o: Any) -> None:
    """GradSkip against Scaffnew where the L_i differ by 10."""
    problem = scaled(problem_of(o), 10.0)
    print(f"L_i from {problem.L_i.min():.3g} to {problem.L_max:.3g}, kappa_i from "
          f"{problem.L_i.min() / problem.mu:.3g} to {problem.kappa:.3g}")  # fmt: skip
    totals: dict[str, list[tuple[float, float]]] = {"scaffnew": [], "gradskip": []}
    for seed in range(o.seeds):
        for kind in (ps.Scaffnew, ps.GradSkip):
            s = run(f"{kind.name}, seed {seed}", kind.theory(problem), problem, target=1e-6, seed=seed, every=1)
            totals[kind.name].append((s["rounds"], s["grad_evals"]))
    (r0, g0), (r1, g1) = (np.mean(totals[k], axis=0) for k in ("scaffnew", "gradskip"))
    print(f"gradskip / scaffnew: rounds {r1 / r0:.3f}, gradients {g1 / g0:.3f}")


def vr(o: Any) -> None:
    """Scaffnew-VR against Scaffnew with minibatches of 32 rows."""
    problem = problem_of(o).with_batch(32)
    exact = run("scaffnew-vr", ps.ScaffnewVR.theory(problem), problem, target=1e-10, seed=0)
    plain = ps.Scaffnew.theory(problem)
    run("scaffnew, 1/es_A, same rounds", plain, problem, rounds=exact["rounds"], seed=0)
    same = ps.ScaffnewVR.theory(problem)
    run("scaffnew, the step of VR", ps.Scaffnew(same.gamma, same.p), problem, rounds=exact["rounds"], seed=0)


def main() -> None:
    """Read the options and run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("gradskip", "vr"))
    parser.add_argument("--data", default="w8a")
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--l2", type=float, default=1e-4)
    parser.add_argument("--seeds", type=int, default=3)
    o = parser.parse_args()
    {"gradskip": gradskip, "vr": vr}[o.what](o)


if __name__ == "__main__":
    main()
