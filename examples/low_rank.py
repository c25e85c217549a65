"""Low-rank approximation of a matrix whose entries are not equally trusted: every prox is an SVD.

    min_X  1/2 sum_ij w_ij (X_ij - M_ij)^2 + lam |X|_*

M is a matrix of rank 10 with noise of variance 1/w_ij. Rows and columns are instruments and days, good ones and bad
ones, so w_ij = r_i c_j with r and c between 1e-2 and 1. With unequal weights there is no closed form (Srebro and
Jaakkola, "Weighted low-rank approximations", 2003). f is strongly convex with mu = min w and L = max w: kappa = 1e4.
A gradient touches each entry once, a prox takes a singular value decomposition. The theorem's p = 1/sqrt(kappa) = 0.01
is for the worst case; here most singular values are cut off, what is left is better conditioned, and p = 0.1 is right.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import race
from matplotlib.figure import Figure

from proxskip.prox import NuclearNorm
from proxskip.support import palette

SKIP = "ProxSkip, p = 0.1"


class Weighted:
    """1/2 sum_ij w_ij (X_ij - M_ij)^2."""

    def __init__(self, w: np.ndarray, M: np.ndarray) -> None:
        self.w, self.M, self.L, self.mu = w, M, float(w.max()), float(w.min())

    def value(self, X: np.ndarray) -> float:
        return 0.5 * float(np.sum(self.w * (X - self.M) ** 2))

    def gradient(self, X: np.ndarray) -> np.ndarray:
        return self.w * (X - self.M)


def problem(m: int, rank: int) -> tuple[Weighted, NuclearNorm, np.ndarray]:
    """f, psi and the matrix to be found."""
    rng = np.random.default_rng(0)
    truth = rng.standard_normal((m, rank)) @ rng.standard_normal((rank, m)) / np.sqrt(rank)
    r, c = (rng.permutation(np.geomspace(1e-2, 1.0, m)) for _ in range(2))
    w = np.outer(r, c)
    f = Weighted(w, truth + 0.1 * rng.standard_normal((m, m)) / np.sqrt(w))
    return f, NuclearNorm(0.2 * np.sqrt(m * w.mean()), (m, m)), truth


def solve(small: bool = False, size: int | None = None) -> tuple[race.Race, np.ndarray]:
    """The race, and the truth."""
    m, rank = (60, 3) if small else (500, 10)
    m = size or m
    f, psi, truth = problem(m, rank)
    x0 = np.zeros((m, m))
    methods = {
        "ProxGD": ("proxgd", {}),
        "FISTA with restart": ("fista-restart", {}),
        SKIP: ("proxskip", {"p": 0.1}),
    }
    title = f"Weighted low-rank approximation, {m} x {m}, kappa = {f.L / f.mu:,.0f}"
    limit = {"seconds": 150 * max(1.0, (m / 500) ** 3)}
    return race.Race(title, f, psi, x0, methods, 1e-6 * race.start(f, psi, x0), limit).run(), truth


def conclusion(found: tuple[race.Race, np.ndarray]) -> str:
    """What was found, and where skipping pays."""
    done, truth = found
    best, spectrum = done.results[SKIP], np.linalg.svd(done.results[SKIP].x, compute_uv=False)
    rank = int(np.sum(spectrum > 1e-6 * spectrum[0]))
    error, raw = (
        np.linalg.norm(np.sqrt(done.f.w) * (X - truth)) / np.linalg.norm(np.sqrt(done.f.w) * truth)
        for X in (best.x, done.f.M)
    )
    return (
        f"Rank {rank}, weighted error {error:.1%} (of M itself: {raw:.0%}).\n"
        f"A prox costs {done.cost(SKIP):.0f} gradients. ProxSkip takes "
        f"{done.results['ProxGD'].nprox / best.nprox:.1f} times fewer proxes than ProxGD and is "
        f"{done.faster('ProxGD', SKIP)} times as fast, {done.faster('FISTA with restart', SKIP)} times as fast as "
        "FISTA with restart. Skipping pays because an SVD costs so much more than a gradient; where the two cost the "
        "same, FISTA with restart wins."
    )


def draw(found: tuple[race.Race, np.ndarray], out: Path) -> None:
    """The curves, and the singular values."""
    done, truth = found
    figure = Figure(figsize=(11.5, 3.9), layout="constrained")
    axes = figure.subplots(1, 3)
    done.curves(axes[:2])
    count = 3 * int(np.linalg.matrix_rank(truth))
    for X, mark, color, label in (
        (done.f.M, ".", palette.SKY, "of M"),
        (truth, "o", palette.GREY, "of the truth"),
        (done.results[SKIP].x, "x", palette.ORANGE, "found"),
    ):
        values = np.linalg.svd(X, compute_uv=False)
        shown = np.where(values > 1e-8 * values[0], values, np.nan)[:count]
        axes[2].plot(np.arange(1, len(shown) + 1), shown, mark, color=color, label=label)
    axes[2].set_title("The first singular values", fontsize=10)
    axes[2].set_ylim(bottom=0)
    axes[2].legend(frameon=False, fontsize=9)
    race.dress(axes[2], "number")
    figure.suptitle(f"{done.title}; a prox costs {done.cost(SKIP):.0f} gradients", fontsize=11)
    race.save(figure, out)


def main() -> None:
    o = race.arguments(__doc__, "low_rank", "rows and columns of the matrix; default: 500")
    found = solve(o.small, o.size)
    print(found[0].table(), conclusion(found), sep="\n")
    draw(found, o.out)


if __name__ == "__main__":
    main()
