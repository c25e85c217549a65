"""Deconvolution of a curve whose shape is known: least squares over a polyhedron.

    min_x  1/(2N) |A x - b|^2 + mu/2 |x|^2     subject to     x falls, x is convex, 0 <= x <= 1

A survival curve on a grid of ages is seen only through a smearing A (each of N observations averages over a window of
ages) and noise. That it falls and bends upwards is certain, so every estimate should. The projection onto such curves
has no formula: an active-set method finds it, and starts from the active rows of the last one. The normal equations are
formed once, so a gradient is a small product.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import race
import scipy.sparse
from matplotlib.figure import Figure

import proxskip as ps
from proxskip.prox import Polyhedron
from proxskip.support import palette


def shapes(d: int) -> Polyhedron:
    """Falling, convex, between 0 and 1: that is x_1 <= 1, x_d >= 0, the last difference at most 0, second ones >= 0."""
    second = scipy.sparse.diags([1.0, -2.0, 1.0], [0, 1, 2], shape=(d - 2, d))
    rows = scipy.sparse.lil_matrix((3, d))
    rows[0, 0], rows[1, d - 1] = -1.0, 1.0
    rows[2, d - 2], rows[2, d - 1] = 1.0, -1.0
    return Polyhedron(scipy.sparse.vstack([second, rows]).tocsc(), l=np.r_[np.zeros(d - 2), -1.0, 0.0, 0.0])


def smearing(N: int, d: int, rng: np.random.Generator) -> np.ndarray:
    """Each row averages over a window of ages around its own."""
    centre, width = rng.uniform(0, d, N)[:, None], rng.uniform(2, d / 8, N)[:, None]
    A = np.exp(-0.5 * ((np.arange(d) - centre) / width) ** 2)
    return A / A.sum(axis=1, keepdims=True)


def problem(d: int, N: int) -> tuple[ps.Quadratic, Polyhedron, np.ndarray, np.ndarray]:
    """f, psi, the ages and the curve to be found."""
    rng = np.random.default_rng(1)
    ages = np.linspace(0, 5, d)
    truth = 0.6 * np.exp(-3 * ages) + 0.4 * np.exp(-0.4 * ages)
    A = smearing(N, d, rng)
    b = A @ truth + 0.03 * rng.standard_normal(N)
    H = A.T @ A / N
    top = float(np.linalg.eigvalsh(H)[-1])
    return ps.Quadratic(H + 1e-3 * top * np.eye(d), A.T @ b / N), shapes(d), ages, truth


def solve(small: bool = False) -> tuple[race.Race, np.ndarray, np.ndarray]:
    """The race, the ages and the truth."""
    d, N, limit = (30, 300, 60) if small else (80, 4000, 20)
    f, psi, ages, truth = problem(d, N)
    methods = {
        "ProxGD": ("proxgd", {"seconds": limit, "max_prox": 400 if small else None}),
        "FISTA": ("fista", {"seconds": limit}),
        "ProxSkip": ("proxskip", {"seconds": 2 * limit}),
    }
    x0 = np.zeros(d)
    title = f"Shape-constrained deconvolution, d = {d}, kappa = {f.L / f.mu:,.0f}"
    return race.Race(title, f, psi, x0, methods, 1e-6 * race.start(f, psi, x0)).run(), ages, truth


def conclusion(found: tuple[race.Race, np.ndarray, np.ndarray]) -> str:
    """Where skipping pays."""
    done = found[0]
    gd, skip = done.results["ProxGD"], done.results["ProxSkip"]
    return (
        f"A projection costs {done.cost('ProxSkip'):.0f} gradients. ProxSkip takes {gd.nprox / skip.nprox:.1f} times "
        f"fewer of them than ProxGD {'needs' if gd.success else 'made without arriving'} and is "
        f"{done.faster('ProxGD', 'ProxSkip')} times as fast, {done.faster('FISTA', 'ProxSkip')} times as fast as "
        "FISTA. A quadratic program costs more than a product with H, even with the last one's active rows known. Over "
        "a box, whose projection is cheaper than a gradient, skipping would not pay."
    )


def draw(found: tuple[race.Race, np.ndarray, np.ndarray], out: Path) -> None:
    """The curves of the methods, and the curve that was found."""
    done, ages, truth = found
    figure = Figure(figsize=(11.5, 3.9), layout="constrained")
    axes = figure.subplots(1, 3)
    done.curves(axes[:2])
    free = np.linalg.solve(done.f.H, done.f.b)
    axes[2].plot(ages, truth, color=palette.GREY, linewidth=4, alpha=0.6, label="the truth")
    axes[2].plot(ages, free, ":", color=palette.BLUE, label="unconstrained")
    axes[2].plot(ages, done.results["ProxSkip"].x, "--", color=palette.ORANGE, label="decreasing and convex")
    axes[2].set_title("The curve", fontsize=10)
    axes[2].legend(frameon=False, fontsize=9)
    race.dress(axes[2], "age")
    figure.suptitle(f"{done.title}; a projection costs {done.cost('ProxSkip'):.0f} gradients", fontsize=11)
    race.save(figure, out)


def main() -> None:
    o = race.arguments(__doc__, "shape_regression")
    found = solve(o.small)
    print(found[0].table(), conclusion(found), sep="\n")
    draw(found, o.out)


if __name__ == "__main__":
    main()
