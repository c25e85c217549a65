"""Newton's method against what statisticians and the paper use.

    python benchmarks/exact.py            both tables; the first needs statsmodels (pip install '.[stats]')
    python benchmarks/exact.py --quick    small sizes, to see that it works

First, the table of estimates and errors from rows on ten clients, beside statsmodels on all rows: the seconds of both on
this machine, and the numbers that have to travel. Second, Newton's method, Scaffnew and 5GCS on w8a with the paper's
lambda: rounds, numbers, local gradients, and simulated seconds on the four networks.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from unknowns import shown, table

import proxskip as ps
from proxskip.networks import NAMED

CLIENTS = 10
TIMES = 5
"""The least of so many seconds counts."""
EPS = 1e-6
"""f - f* of the second table."""
MODELS = {"Logistic": ps.Logistic, "Poisson": ps.Poisson}


# -- beside statsmodels ------------------------------------------------------------------------------------------------
def rows_of(kind: str, rows: int, d: int) -> tuple[Any, Any]:
    """Covariates with a constant, and classes or counts of a model that is not far from them."""
    rng = np.random.default_rng(d)
    A = np.column_stack([rng.standard_normal((rows, d - 1)), np.ones(rows)])
    margins = A @ (rng.standard_normal(d) / d**0.5)
    return A, rng.poisson(np.exp(margins)) if kind == "Poisson" else rng.logistic(size=rows) < margins


def ours(kind: str, A: Any, y: Any) -> tuple[Any, int]:
    """The table from rows on clients, and the numbers that they send for it."""
    problem = ps.split(MODELS[kind](A, y), CLIENTS, by="contiguous")
    result = ps.run(ps.Newton(), problem, tol=1e-12, rounds=40, progress=False)
    d = problem.d
    for_the_table = CLIENTS * (1 + d * (d + 2))  # one value, one gradient and two triangles
    return result.inference(problem), result.summary["floats_up"] + for_the_table


def pooled(kind: str, A: Any, y: Any) -> Any:
    """The fit of statsmodels, to the same accuracy."""
    import statsmodels.api as sm

    family = sm.families.Poisson() if kind == "Poisson" else sm.families.Binomial()
    return sm.GLM(y, A, family=family).fit(tol=1e-13, maxiter=100)


def least_seconds(call: Callable[[], Any]) -> tuple[float, Any]:
    """The least seconds of several calls, and what the last returned."""
    seconds = []
    for _ in range(TIMES):
        start = time.perf_counter()
        found = call()
        seconds.append(time.perf_counter() - start)
    return min(seconds), found


def beside_statsmodels(quick: bool) -> Iterator[Sequence[str]]:
    """The rows of the first table."""
    sizes = [(500, 5)] if quick else [(2_000, 12), (20_000, 30), (200_000, 30), (20_000, 200)]
    for rows, d in sizes:
        for kind in MODELS:
            A, y = rows_of(kind, rows, d)
            theirs, fit = least_seconds(lambda k=kind, X=A, z=y: pooled(k, X, z))
            mine, (found, sent) = least_seconds(lambda k=kind, X=A, z=y: ours(k, X, z))
            apart = max(
                float(np.max(np.abs(found.estimate - fit.params) / fit.bse)),
                float(np.max(np.abs(found.standard_error / fit.bse - 1))),
            )
            cells = [f"{rows:,} x {d}", f"{theirs:.3f}", f"{mine:.3f}", f"{A.size + rows:,}", f"{sent:,}"]
            yield [kind, *cells, f"{apart:.0e}"]


# -- on w8a ------------------------------------------------------------------------------------------------------------
def on_w8a(quick: bool) -> Iterator[Sequence[str]]:
    """The rows of the second table: all methods by theorem, and with the settings of docs/choosing.md."""
    data, l2 = ("digits", 1e-2) if quick else ("w8a", 1e-4)
    problem = ps.split(ps.Logistic(*ps.datasets.load(data), l2_relative=l2), clients=20, by="label")
    times = 1.5 if quick else 8
    methods: dict[str, Any] = {
        "Newton": ps.Newton(),
        f"Scaffnew, gamma = {times}/L, p = 1/30": ps.Scaffnew(gamma=times / problem.L, p=1 / 30),
        "Scaffnew, theorem": ps.Scaffnew.theory(problem),
        "5GCS, c = 3, K = 10": ps.FiveGCS(c=3.0, K=10),
        "5GCS, K = 2": ps.FiveGCS(K=2),
        "5GCS, theorem": ps.FiveGCS.theory(problem),
    }
    for label, method in methods.items():
        runs = [
            ps.run(method, problem, target=EPS, rounds=4_000, network=name, allow_unsafe_step=True, progress=False)
            for name in NAMED
        ]
        spent = runs[0].summary  # nothing is lost over the first network
        counts = [spent["rounds"], spent["floats_up"] // problem.n, spent["grad_evals"] // problem.N]
        seconds = [float(r.summary["sim_seconds"]) if r.success else np.inf for r in runs]
        yield [label, *(f"{count:,}" for count in counts), *map(shown, seconds)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small sizes")
    quick = parser.parse_args().quick
    warnings.simplefilter("ignore")
    print("## Newton: exact, and in few rounds\n")
    print(f"Tables of estimates and errors: statsmodels on all rows, and rows on {CLIENTS} clients.\n")
    head = ["model", "rows", "statsmodels (s)", "proxskip (s)", "numbers to pool the rows", "numbers sent"]
    table([*head, "largest difference in standard errors"], beside_statsmodels(quick))
    where = "The digits" if quick else "w8a"
    print(f"{where}, 20 clients by label, to f - f* = {EPS:g}; simulated seconds.\n")
    table(["method", "rounds", "numbers up per client", "gradients per client", *NAMED], on_w8a(quick))


if __name__ == "__main__":
    main()
