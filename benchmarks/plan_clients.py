"""How good the planner's forecast for clients is: predicted rounds and gradients against those of the run.

    python benchmarks/plan_clients.py

Over 44 problems, the forecast of 5gcs and that of the chosen method; a case is right if both numbers are within 30 %.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np

import proxskip as ps
from proxskip.planning.pilots import Network, candidates

EPS = 1e-6
NETWORKS = {"slow": Network(latency=0.05, bandwidth=1e6), "fast": Network(latency=1e-4, bandwidth=1e9)}


def problems() -> Iterator[tuple[str, ps.Problem]]:
    """Unlike quadratics, logistic regression on the digits, and on random rows."""
    for kappa in (1e2, 1e3, 1e4):
        for seed in range(4):
            yield f"quadratics {kappa:g} {seed}", ps.Problem(ps.random_quadratics(8, 20, 1.0, 1 / kappa, seed=seed))
    A, b = ps.datasets.load("digits")
    for l2 in (1e-2, 1e-3):
        for by in ("label", "iid", "dirichlet"):
            model = ps.Logistic(A, b, l2=l2, l2_relative=True)
            yield f"digits {l2:g} {by}", ps.split(model, clients=10, by=by, seed=1)
    for seed in range(4):
        rng = np.random.default_rng(seed)
        A = rng.standard_normal((400, 30)) * np.geomspace(1, 0.1, 30)
        model = ps.Logistic(A, A @ rng.standard_normal(30) > 0, l2=1e-3, l2_relative=True)
        yield f"rows {seed}", ps.split(model, clients=8, by="label")


def off(forecast: float, real: float) -> float:
    """The relative error of a forecast."""
    return abs(forecast - real) / max(real, 1.0)


def case(name: str, problem: ps.Problem, network: Network) -> dict[str, tuple[float, float]]:
    """Errors of the forecast of rounds and of gradients, for 5gcs and for the chosen method."""
    made = ps.plan(problem, eps=EPS, network=network, seed=0)
    methods: dict[Any, Any] = {(n, p): m for n, p, m in candidates(problem, network)}
    rows = {"5gcs": next(r for r in made.rows if r.name == "5gcs"), "chosen": made.best}
    out = {}
    for what, row in rows.items():
        run = ps.run(methods[row.name, row.p], problem, tol=EPS, rounds=200_000, seed=1).summary()
        out[what] = off(row.calls, run["exchanges"]), off(row.iterations, run["iterations"])
        print(f"{name:28} {what:7} {row.label:22} rounds {row.calls:7.0f} {run['exchanges']:6}"
              f"   gradients {row.iterations:8.0f} {run['iterations']:7}   {row.seconds:8.3g} s", flush=True)  # fmt: skip
    return out


def main() -> None:
    warnings.simplefilter("ignore")
    errors: dict[str, list[float]] = {"5gcs": [], "chosen": []}
    for name, problem in problems():
        for speed, network in NETWORKS.items():
            for what, found in case(f"{name} {speed}", problem, network).items():
                errors[what].append(max(found))
    for what, found_errors in errors.items():
        right = sum(e <= 0.3 for e in found_errors)
        print(
            f"{what}: {right} of {len(found_errors)} forecasts within 30 %, median error {np.median(found_errors):.0%}"
        )


if __name__ == "__main__":
    main()
