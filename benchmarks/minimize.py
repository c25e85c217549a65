"""minimize: proxes against ProxGD, and the overhead of the loop.

python benchmarks/minimize.py            all of it, some minutes; --quick for a taste
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from typing import Any

import numpy as np

import proxskip as ps
from proxskip import prox
from proxskip.solo.descent import Descent
from proxskip.solo.setup import method_maker, prepare

EPS = 1e-7
RATIOS = (0.3, 1.0, 10.0, 30.0, 100.0, 1000.0)


def quadratic(kappa: float, d: int = 100, seed: int = 0, noise: float = 1e-2) -> ps.Quadratic:
    rng = np.random.default_rng(seed)
    Q, _ = np.linalg.qr(rng.standard_normal((d, d)))
    H = (Q * np.geomspace(1 / kappa, 1, d)) @ Q.T
    H = (H + H.T) / 2
    truth = np.where(rng.random(d) < 0.2, rng.standard_normal(d), 0.0)
    return ps.Quadratic(H, H @ truth + noise * rng.standard_normal(d))


# -- proxes ------------------------------------------------------------------------------------------------------------
def proxes(kappa: float = 1e4, tol: float = 1e-8) -> list[str]:
    """Evaluations to a certificate of tol, those of certificates included."""
    f, psi = quadratic(kappa, 200, noise=1e-3), ps.prox.L1(1e-3)
    found = {m: ps.minimize(f, psi, np.zeros(200), method=m, tol=tol) for m in ("proxgd", "fista", "fista-restart")}
    skip = [ps.minimize(f, psi, np.zeros(200), method="proxskip", tol=tol, seed=s) for s in range(5)]
    lines = [f"## Proxes to a certificate of {tol:g}: l1 least squares, kappa = {kappa:g}", ""]
    lines += ["| method | gradients | proxes | ProxGD's proxes over these |", "|---|---|---|---|"]
    base = found["proxgd"].nprox
    for name, res in found.items():
        assert res.success
        lines.append(f"| {name} | {res.ngrad:,} | {res.nprox:,} | {base / res.nprox:.1f} |")
    middle = [int(statistics.median(getattr(r, k) for r in skip)) for k in ("ngrad", "nprox")]
    bar = math.sqrt(kappa) / 3
    lines.append(
        f"| proxskip, median of 5 seeds | {middle[0]:,} | {middle[1]:,} | {base / middle[1]:.1f} (bar: {bar:.0f}) |"
    )
    return lines


# -- overhead ----------------------------------------------------------------------------------------------------------
class Free:
    """A function that costs nothing."""

    L, mu = 1.0, 1e-4

    def __init__(self, d: int) -> None:
        self.d, self.zero = d, np.zeros(d)

    def value(self, x: Any) -> float:
        return 0.0

    def gradient(self, x: Any) -> Any:
        return self.zero


class Nothing(prox.Operator):
    """A prox that costs nothing."""

    def __call__(self, x: Any) -> float:
        return 0.0

    def prox(self, x: Any, t: float) -> Any:
        return x


def overhead(d: int = 100) -> list[str]:
    """Microseconds of an iteration whose gradient and prox are free; the least of several, the methods in turns."""
    runs, best = {}, dict.fromkeys(("proxskip", "proxgd", "fista", "fista-restart", "apda"), math.inf)
    for name in best:
        task, x0 = prepare(
            Free(d), Nothing(), np.ones(d), name, D=None, L=None, mu=None, D_norm=None, batch=None, eps=None, p=None
        )  # fmt: skip
        runs[name] = Descent(task, method_maker(name), x0)
    for _ in range(40):
        for name, run in runs.items():
            done, then = run.solo.iterations, time.process_time()
            for _ in range(20 if name == "proxskip" else 100 if name == "apda" else 1000):
                run.advance()
            best[name] = min(best[name], (time.process_time() - then) / (run.solo.iterations - done))
    for run in runs.values():
        run.close()
    return [
        f"## Overhead of the loop (f and prox free, d = {d})",
        "",
        "| method | us of CPU an iteration (bar: 15) | over ProxSkip's (bar: 2) |",
        "|---|---|---|",
        *(f"| {name} | {1e6 * us:.1f} | {us / best['proxskip']:.2f} |" for name, us in best.items()),
    ]


def report(quick: bool = False) -> str:
    """Everything, as Markdown."""
    with np.errstate(all="ignore"):
        parts = [proxes(), overhead()]
    return "\n\n".join("\n".join(lines) for lines in parts) + "\n"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    print(report(parser.parse_args().quick))
