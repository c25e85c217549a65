"""Minibatches and overlapping groups: a prox that costs many stochastic gradients.

    min_x  1/N sum_j log(1 + exp(-b_j a_j'x)) + mu/2 |x|^2 + lam sum_{3 x 3 windows w} |x_w|

tells even digits from odd ones: the 8 x 8 pictures that come with scikit-learn, each also shifted by a pixel in the
eight directions and turned by 12 degrees to both sides, 48,519 in all. The windows overlap, so neighbors shrink
together (Jenatton, Audibert and Bach, "Structured variable selection with sparsity-inducing norms", 2011), and the prox
has no closed form: the windows fall into nine tilings of the picture, each a group lasso, and Dykstra's algorithm adds
them up. Every prox is asked for the same accuracy, and every method has one thread.

What is compared is the time, and the proxes, until f + psi is within 3 % and 1 % of the way from its value at zero to
its least, for three proxes in a row. Each method is looked at after each of its proxes.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import race
import scipy.ndimage
from matplotlib.figure import Figure
from sklearn.datasets import load_digits

import proxskip as ps
from proxskip.prox import Sum

SIDE, BATCH, LAM, INNER = 8, 256, 1e-3, 1e-3
WITHIN = (0.03, 0.01)
METHODS = {
    "ProxGD": ("proxgd", {"max_prox": 400}),
    "FISTA with restart": ("fista-restart", {"max_prox": 60}),
    "ProxSkip": ("proxskip", {"p": 0.05, "max_prox": 25}),
    "ProxSGD": ("proxgd", {"batch": BATCH, "max_prox": 800}),
    "SProxSkip": ("sproxskip", {"batch": BATCH, "p": 0.03, "max_prox": 40}),
}


class Tiling:
    """lam times the sum of the norms over windows of 3 x 3, from this corner on; those at the edges are cut off."""

    def __init__(self, lam: float, i: int, j: int) -> None:
        self.lam = lam
        rows, columns = (np.arange(SIDE)[:, None] - i) // 3, (np.arange(SIDE)[None, :] - j) // 3
        self.label = np.unique(10 * rows + columns, return_inverse=True)[1].ravel()

    def norms(self, x: np.ndarray) -> np.ndarray:
        return np.sqrt(np.bincount(self.label, np.square(x)))

    def __call__(self, x: np.ndarray) -> float:
        return self.lam * float(self.norms(x).sum())

    def prox(self, x: np.ndarray, t: float) -> np.ndarray:
        size = np.maximum(self.norms(x), 1e-300)
        return x * np.maximum(1 - t * self.lam / size, 0.0)[self.label]


class Watched(Sum):
    """The sum over all nine tilings, which notes when each prox was there, what it took, and the point."""

    def __init__(self, tolerance: float = INNER) -> None:
        self.begun, self.seen = time.perf_counter(), []
        super().__init__(*(Tiling(LAM, i, j) for i in range(3) for j in range(3)), tolerance=tolerance)

    def prox(self, x: np.ndarray, t: float) -> np.ndarray:
        before = time.perf_counter()
        y = super().prox(x, t)
        now = time.perf_counter()
        self.seen.append((now - self.begun, now - before, y.copy()))
        return y


@dataclass
class Seen:
    """One method at each of its proxes: seconds since its start, and what is left of the way to the optimum."""

    seconds: np.ndarray
    left: np.ndarray
    prox_seconds: float
    result: Any

    def until(self, within: float) -> tuple[int, float] | None:
        """Proxes and seconds until it is there and stays for three proxes; None if it never did."""
        inside = self.left <= within
        there = np.flatnonzero(inside[:-2] & inside[1:-1] & inside[2:])
        return (int(there[0]) + 1, float(self.seconds[there[0]])) if len(there) else None


def pictures(small: bool) -> tuple[np.ndarray, np.ndarray]:
    """All digits, turned and shifted; even or odd."""
    digits = load_digits()
    turned = [scipy.ndimage.rotate(digits.images, angle, (1, 2), reshape=False, order=1) for angle in (0, -12, 12)]
    images = [np.roll(t, (i, j), (1, 2)) for t in turned for i in (0, -1, 1) for j in (0, -1, 1)]
    A, b = np.concatenate(images).reshape(-1, SIDE * SIDE) / 16, np.tile(digits.target % 2 == 0, 27)
    return (A[::9], b[::9]) if small else (A, b)


def solve(small: bool = False) -> tuple[ps.Logistic, dict[str, Seen], float]:
    """f, what was seen of each method, and the seconds of a gradient of one minibatch."""
    A, b = pictures(small)
    f = ps.Logistic(A, b, l2_relative=1e-4)
    print(f"Overlapping group lasso, {len(b):,} pictures, minibatches of {BATCH}", flush=True)
    best = ps.minimize(f, Watched(1e-6), method="fista-restart", tol=1e-4 * f.L, max_iter=300).fun
    way = f.value(np.zeros(f.d)) - best
    free = [
        ps.minimize(f, None, method="sproxskip", p=0.03, batch=BATCH, tol=1e-300, max_iter=500, threads=1)
        for _ in range(6)
    ]
    found = {}
    for label, (method, more) in METHODS.items():
        psi = Watched()
        r = ps.minimize(f, psi, np.zeros(f.d), method=method, tol=1e-12, threads=1, **more)
        left = np.array([f.value(x) + psi(x) - best for _, _, x in psi.seen]) / way
        seconds, took = np.array([at for at, _, _ in psi.seen]), np.mean([t for _, t, _ in psi.seen])
        found[label] = Seen(seconds, left, float(took), r)
        print(f"  {label}: {left.min():.1e} of the error left after {r.nprox} proxes", flush=True)
    return f, found, min(r.seconds / r.ngrad for r in free[1:])


def table(solved: tuple[ps.Logistic, dict[str, Seen], float]) -> str:
    """Proxes, seconds and what a prox cost, in Markdown."""
    _, found, gradient = solved
    head = " | ".join(f"proxes to {w:.0%} | seconds" for w in WITHIN)
    lines = [f"| method | {head} | prox / minibatch gradient |", "|---" * (2 + 2 * len(WITHIN)) + "|"]
    for label, seen in found.items():
        cells = [f"{u[0]} | {u[1]:.3f}" if (u := seen.until(w)) else "never | -" for w in WITHIN]
        lines.append(f"| {label} | {' | '.join(cells)} | {seen.prox_seconds / gradient:.0f} |")
    return "\n".join(lines)


def conclusion(solved: tuple[ps.Logistic, dict[str, Seen], float]) -> str:
    """Where skipping pays."""
    _, found, gradient = solved
    mine, fista, sgd = (found[k].until(WITHIN[-1]) for k in ("SProxSkip", "FISTA with restart", "ProxSGD"))
    if mine is None or fista is None:
        return f"SProxSkip or FISTA did not get within {WITHIN[-1]:.0%}."
    return (
        f"A prox costs SProxSkip {found['SProxSkip'].prox_seconds / gradient:.0f} gradients of a minibatch. To "
        f"{WITHIN[-1]:.0%} it is {fista[1] / mine[1]:.1f} times as fast as FISTA with restart, with {mine[0]} proxes "
        f"for {fista[0]}; ProxSGD {'never gets there' if sgd is None else f'takes {sgd[0]}'}. Skipping pays at low "
        "accuracy with many pictures; beyond the noise of the minibatches FISTA wins, and ProxSkip needs the "
        "fewest proxes."
    )


def draw(solved: tuple[ps.Logistic, dict[str, Seen], float], out: Path) -> None:
    """The remaining error over seconds and over proxes, and the weights."""
    f, found, gradient = solved
    figure = Figure(figsize=(11.5, 3.9), layout="constrained")
    *axes, last = figure.subplots(1, 3, width_ratios=(1, 1, 0.85))
    for label, seen in found.items():
        method = METHODS[label][0] if label != "ProxSGD" else label
        style = race.look(method) | {"markevery": race.spread(len(seen.left)), "label": label}
        for ax, x in zip(axes, (seen.seconds, np.arange(1, len(seen.left) + 1)), strict=True):
            ax.loglog(x, np.maximum(seen.left, 1e-4), **style)
    for ax, xlabel in zip(axes, ("seconds", "prox evaluations"), strict=True):
        ax.set_ylim(5e-4, 2)
        race.dress(ax, xlabel)
    axes[0].set_ylabel("remaining error, relative to the start")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=5, frameon=False, fontsize=9)
    w = found["ProxSkip"].result.x.reshape(SIDE, SIDE)
    image = last.imshow(w, cmap="PuOr", vmin=-np.abs(w).max(), vmax=np.abs(w).max())
    figure.colorbar(image, ax=last, shrink=0.8)
    last.set_title("The weights: even against odd", fontsize=10)
    last.axis("off")
    cost = found["SProxSkip"].prox_seconds / gradient
    figure.suptitle(
        f"Overlapping group lasso, {f.N:,} pictures; a prox costs {cost:.0f} gradients of {BATCH} pictures", fontsize=11
    )
    race.save(figure, out)


def main() -> None:
    o = race.arguments(__doc__, "stochastic")
    solved = solve(o.small)
    print("", table(solved), "", conclusion(solved), sep="\n")
    draw(solved, o.out)


if __name__ == "__main__":
    main()
