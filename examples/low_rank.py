"""Low-rank approximation of a matrix whose entries are not equally trusted: every prox is a singular value decomposition.

    min_X  1/2 sum_ij w_ij (X_ij - M_ij)^2 + lam |X|_*

M is a matrix of rank 10 with noise of variance 1/w_ij. Rows and columns are instruments and days, good ones and bad
ones, so w_ij = r_i c_j with r and c between 1e-2 and 1. With unequal weights there is no closed form (Srebro and
Jaakkola, "Weighted low-rank approximations", 2003). f is strongly convex with mu = min w and L = max w: kappa = 1e4.
A gradient touches each entry once, a prox takes an SVD of the whole matrix.
"""

from __future__ import annotations

import numpy as np
import race
from matplotlib.figure import Figure

from proxskip.prox import NuclearNorm


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


def solve(small: bool = False) -> tuple[race.Race, np.ndarray]:
    """The race, and the truth."""
    m, rank = (60, 3) if small else (500, 10)
    f, psi, truth = problem(m, rank)
    x0 = np.zeros((m, m))
    methods = {
        "ProxGD": ("proxgd", {}),
        "FISTA, strongly convex": ("fista", {}),
        "FISTA with restart": ("fista-restart", {}),
        "ProxSkip, p = 0.1": ("proxskip", {"p": 0.1}),
    }
    title = f"Weighted low-rank approximation, {m} x {m}, kappa = {f.L / f.mu:.0f}"
    return race.Race(title, f, psi, x0, methods, 1e-6 * race.start(f, psi, x0), {"seconds": 150}).run(), truth


def main() -> None:
    o = race.arguments(__doc__, "low_rank")
    done, truth = solve(o.small)
    skip, best = "ProxSkip, p = 0.1", done.results["ProxSkip, p = 0.1"]
    print(done.table())
    spectrum = np.linalg.svd(best.x, compute_uv=False)
    rank = int(np.sum(spectrum > 1e-6 * spectrum[0]))
    raw = np.linalg.norm(done.f.M - truth) / np.linalg.norm(truth)
    error = np.linalg.norm(best.x - truth) / np.linalg.norm(truth)
    print(f"rank {rank}, error {error:.1%} (of M itself: {raw:.0%})")
    print(
        f"A prox costs {done.cost(skip):.0f} gradients. ProxSkip takes "
        f"{done.results['ProxGD'].nprox / best.nprox:.1f} times fewer proxes than ProxGD and is "
        f"{done.faster('ProxGD', skip)} times faster, {done.faster('FISTA with restart', skip)} times faster than FISTA "
        "with restart. Skipping pays because an SVD is so much dearer than a gradient; with a matrix so small or a "
        "gradient so dear that the two cost the same, FISTA with restart would win."
    )
    draw(done, truth, spectrum, o.out)


def draw(done: race.Race, truth: np.ndarray, spectrum: np.ndarray, out: race.Path) -> None:
    figure = Figure(figsize=(11.5, 3.9), layout="constrained")
    axes = figure.subplots(1, 3)
    done.curves(axes[:2])
    count = 4 * int(np.linalg.matrix_rank(truth))
    for values, mark, colour, label in (
        (np.linalg.svd(done.f.M, compute_uv=False), ".", "#56B4E9", "of M"),
        (np.linalg.svd(truth, compute_uv=False), "o", "#7F7F7F", "of the truth"),
        (spectrum, "x", "#D55E00", "found"),
    ):
        shown = np.where(values > 1e-8 * values[0], values, np.nan)[:count]
        axes[2].semilogy(np.arange(1, len(shown) + 1), shown, mark, color=colour, label=label)
    axes[2].set_title("singular values", fontsize=10)
    axes[2].legend(frameon=False, fontsize=9)
    race.dress(axes[2], "number")
    figure.suptitle(f"{done.title}; a prox costs {done.cost('ProxSkip, p = 0.1'):.0f} gradients", fontsize=11)
    race.save(figure, out)


if __name__ == "__main__":
    main()
