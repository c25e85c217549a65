"""The examples at full size as one Markdown table, with pyproximal's own solvers on two of their problems.

    python benchmarks/examples.py [--quick] [--pictures FOLDER]

Takes some five minutes on two quiet cores. Counts do not depend on the machine; of the times only ratios mean anything.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import sys
import time
from pathlib import Path

import numpy as np

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
sys.path.insert(0, str(EXAMPLES))


class Enough(Exception):
    """Stops a solver that offers a callback only."""


def row(race, slow, quick, skip):
    """One line: what a prox costs, proxes, and how many times faster than two others."""
    gd, fista, best = (race.results[label] for label in (slow, quick, skip))
    seconds = " / ".join(f"{r.seconds:.2f}{'' if r.success else ' (no)'}" for r in (gd, fista, best))
    proxes = " / ".join(f"{r.nprox:,}{'' if r.success else ' (no)'}" for r in (gd, fista, best))
    return (
        f"| {race.title} | {race.cost(skip):.0f} | {slow} / {quick} / {skip} | {proxes} | {best.ngrad:,} | {seconds} | "
        f"{race.faster(slow, skip)} | {race.faster(quick, skip)} |"
    )


def theirs(race, psi, acceleration, limit):
    """Seconds and iterations of pyproximal's ProximalGradient until the certificate, off the clock, is race.tol."""
    from pyproximal.optimization.primal import ProximalGradient

    f, shape = race.f, np.shape(race.x0)
    spent, count, then, left = 0.0, 0, time.perf_counter(), np.inf

    class Smooth:
        def __call__(self, x):
            return f.value(x.reshape(shape))

        def grad(self, x):
            return f.gradient(x.reshape(shape)).ravel()

    def look(x):
        nonlocal spent, count, then, left
        spent, count = spent + time.perf_counter() - then, count + 1
        if count % 10 == 0:
            x = x.reshape(shape)
            left = f.L * float(np.linalg.norm(x - race.psi.prox(x - f.gradient(x) / f.L, 1 / f.L)))
            if left <= race.tol or spent > limit:
                raise Enough
        then = time.perf_counter()

    with contextlib.suppress(Enough):
        ProximalGradient(
            Smooth(), psi, np.ravel(race.x0).copy(), tau=1 / f.L, niter=10**6, acceleration=acceleration, callback=look
        )
    return spent, count, left


def their_primal_dual(race, limit):
    """Seconds and iterations of pyproximal's PrimalDual (Chambolle-Pock) on the deblurring problem."""
    import pylops
    import pyproximal
    from pyproximal.optimization.primaldual import PrimalDual

    f, psi = race.f, race.psi
    spent, count, then, left = 0.0, 0, time.perf_counter(), np.inf
    values, vectors = np.linalg.eigh(f.K)
    both = np.multiply.outer(values, values)

    class Smooth(pyproximal.ProxOperator):
        """1/2 |K x K - b|^2 + mu/2 |x|^2, whose prox is a division in the eigenvectors of K."""

        def __call__(self, x):
            return f.value(x.reshape(f.shape))

        def prox(self, x, tau):
            right = vectors.T @ (x.reshape(f.shape) + tau * f.kb) @ vectors
            return (vectors @ (right / (1 + tau * (both**2 + f.mu))) @ vectors.T).ravel()

    def look(x):
        nonlocal spent, count, then, left
        spent, count = spent + time.perf_counter() - then, count + 1
        if count % 100 == 0:
            x = x.reshape(f.shape)
            left = f.L * float(np.linalg.norm(x - psi.prox(x - f.gradient(x) / f.L, 1 / f.L)))
            if left <= race.tol or spent > limit:
                raise Enough
        then = time.perf_counter()

    psi.tolerance, psi.warm = 0.1 * race.tol, True
    D = pylops.Gradient(f.shape, edge=False, kind="forward", dtype="float64")
    step = 0.99 / np.sqrt(8.0)
    with contextlib.suppress(Enough):
        PrimalDual(
            Smooth(None, False),
            pyproximal.L1(sigma=psi.lam),
            D,
            np.ravel(race.x0).copy(),
            tau=step,
            mu=step,
            niter=10**6,
            callback=look,
        )
    return spent, count, left


def others(name, race, found, skip):
    """A line about a solver of pyproximal."""
    spent, count, left = found
    arrived = left <= race.tol
    faster = f"{'' if arrived else 'more than '}{spent / race.results[skip].seconds:.1f}"
    return f"| {name} | {race.title} | {count:,}{'' if arrived else f' (no, at {left / race.tol:.1g} times the tolerance)'} | {spent:.2f} | {faster} |"


def pyproximal_rows(low, blur, limit):
    try:
        import pyproximal
    except ImportError:
        return ["(pyproximal is not installed)"]
    skip, lines = "ProxSkip, p = 0.1", []
    found = theirs(low, pyproximal.Nuclear(low.psi.shape, low.psi.lam), "fista", limit)
    lines.append(others('`ProximalGradient(acceleration="fista")`, `Nuclear`', low, found, skip))
    lines.append(others("`PrimalDual`, `L1` of `pylops.Gradient`", blur, their_primal_dual(blur, limit), "ProxSkip"))
    return lines


def tables(quick=False, pictures=None):
    """All examples, in Markdown; their pictures too where a folder is given."""
    names = ("deblurring", "low_rank", "shape_regression", "fused_lasso", "stochastic")
    modules = {name: importlib.import_module(name) for name in names}
    found = {}
    for name, module in modules.items():
        begin = time.perf_counter()
        found[name] = module.solve(quick)
        if pictures is not None:
            module.draw(found[name], Path(pictures) / f"{name}.png")
        print(f"({name}: {time.perf_counter() - begin:.0f} seconds)", file=sys.stderr)
    blur, low = found["deblurring"][0], found["low_rank"][0]
    head = "| example | prox/gradient | methods | proxes | gradients of the last | seconds | times faster than the first | than the second |"
    lines = [
        head, "|---|---|---|---|---|---|---|---|",
        row(blur, "ProxGD", "FISTA with restart", "ProxSkip"),
        row(low, "ProxGD", "FISTA with restart", "ProxSkip, p = 0.1"),
        row(found["shape_regression"][0], "ProxGD", "FISTA", "ProxSkip"),
        *(row(race, "PAPC", "PDHG", "SplitSkip") for race, _ in found["fused_lasso"]), "",
        modules["stochastic"].table(found["stochastic"]), "",
        "| solver of pyproximal | problem | iterations | seconds | times slower than ProxSkip |", "|---|---|---|---|---|",
        *pyproximal_rows(low, blur, 5 if quick else 25),
    ]  # fmt: skip
    return "\n".join(lines)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small sizes")
    parser.add_argument("--pictures", type=Path, help="a folder for the examples' pictures, such as docs")
    o = parser.parse_args()
    print(tables(o.quick, o.pictures))
