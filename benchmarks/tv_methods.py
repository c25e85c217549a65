"""Seconds of the isotropic total variation's prox, by method, to a relative duality gap, from a cold start on one core.

    python benchmarks/tv_methods.py [SIDE]        an image of SIDE x SIDE pixels, 256 unless told

The gap is that of the best pair each method has: its own primal point, if it has one besides y(p), and its dual point p,
relative to the primal value. Splitting and projected gradients are the library's kernels; the rest is numpy, so that
its iterations are what counts. The gaps are part of the time of TV2D alone.
"""

from __future__ import annotations

import math
import sys
import time

import numpy as np
import scipy.fft
from prox_operators import image

from proxskip.prox import TV2D, kernels

GOALS = (1e-4, 1e-5, 1e-6)


def differences(y):
    both = np.zeros((2, *y.shape))
    both[0, :-1], both[1, :, :-1] = np.diff(y, axis=0), np.diff(y, axis=1)
    return both


def transposed(p):
    y = -p[0] - p[1]
    y[1:] += p[0, :-1]
    y[:, 1:] += p[1, :, :-1]
    return y


def projected(p, lam):
    return p * (lam / np.maximum(lam, np.hypot(*p)))


def gap(x, lam, y, p):
    """P(y) - D(p) over P(y); without a y, that of p."""
    y = x - transposed(p) if y is None else y
    Dy = differences(y)
    variation = lam * np.hypot(*Dy).sum()
    return (variation - np.vdot(p, Dy) + 0.5 * np.sum((y - x + transposed(p)) ** 2)) / (
        variation + 0.5 * np.sum((y - x) ** 2)
    )


def gradients(x, lam):
    """Accelerated projected gradients with restart (Beck and Teboulle, 2009), compiled: what TV2D did before."""
    p, r, new, turn, k = *(np.zeros((2, *x.shape)) for _ in range(3)), np.empty(len(x)), 0
    while True:
        kernels.iso_step(x, lam, 0.0, -np.inf, np.inf, k / (k + 3.0), *p, *r, *new, turn, 0, len(x))
        r, new, k = new, r, k + 1
        if turn.sum() > 0:
            r[:], k = p, 0
        yield None, p


def primal_dual(x, lam):
    """Chambolle and Pock (2011), Algorithm 2, with 0.35 for the strong convexity: at 0.03 better than 0.7."""
    tau, sigma, y, ahead, p = 0.25, 0.5, x, x, np.zeros((2, *x.shape))
    while True:
        p = projected(p + sigma * differences(ahead), lam)
        new = (y + tau * (x - transposed(p))) / (1.0 + tau)
        theta = 1.0 / math.sqrt(1.0 + 0.7 * tau)
        tau, sigma = tau * theta, sigma / theta
        y, ahead = new, new + theta * (new - y)
        yield y, p


def cosines(x, lam, rho=20.0, relax=1.8):
    """ADMM with a fixed penalty, the linear system solved by a cosine transform."""
    waves = [2.0 - 2.0 * np.cos(np.pi * np.arange(n) / n) for n in x.shape]
    divisor = 1.0 + rho * np.add.outer(*waves)
    p, g = np.zeros((2, *x.shape)), np.zeros((2, *x.shape))
    while True:
        y = scipy.fft.idctn(scipy.fft.dctn(x + transposed(g), norm="ortho") / divisor, norm="ortho")
        w = relax * rho * differences(y) + (1.0 - relax) * g + (2.0 - relax) * p
        p = projected(w, lam)
        g = w - 2.0 * p
        yield y, p


def race(method, x, lam, most):
    """The first iteration and second at which each goal was met, looking every tenth iteration."""
    met, seconds, steps = {}, 0.0, method(x, lam)
    for k in range(10, most + 1, 10):
        begin = time.process_time()
        for _ in range(10):
            pair = next(steps)
        seconds += time.process_time() - begin
        least = gap(x, lam, *pair)
        met |= {goal: (k, seconds) for goal in GOALS if least <= goal and goal not in met}
        if len(met) == len(GOALS):
            break
    return met


def library(x, lam, most):
    """TV2D as it is called, ended by its iterations where the gap meets a goal; computing gaps counts in the time."""
    psi = TV2D(lam, x.shape, tolerance=1e-9, max_iterations=most, warm=False, threads=1)
    seen, plain = [], kernels.dr_gap

    def spied(*given):
        plain(*given)
        seen.append(float(given[6].sum() + given[7].sum()))

    kernels.dr_gap = spied
    y = psi.prox(x, 1.0)
    kernels.dr_gap, met = plain, {}
    value = psi(y) + 0.5 * np.sum((y - x) ** 2)
    for goal in GOALS:
        if min(seen) > goal * value:
            continue
        psi.max_iterations, times = 10 * next(k for k, gap in enumerate(seen) if gap <= goal * value), []
        for _ in range(5):
            begin = time.process_time()
            psi.prox(x, 1.0)
            times.append(time.process_time() - begin)
        met[goal] = psi.max_iterations, min(times)
    return met


def row(name, lam, met):
    cells = [f"{met[g][0]:,} / {met[g][1]:.3f}" if g in met else "no" for g in GOALS]
    print(f"| {lam} | {name} | {' | '.join(cells)} |", flush=True)


def main(side):
    x = image(side)
    print(f"| t lam | method | {' | '.join(f'{g:.0e}' for g in GOALS)} |\n|---|---|---|---|---|")
    for lam, most in ((0.03, 500), (0.1, 2000)):
        row("TV2D: splitting, red-black sweeps", lam, library(x, lam, most))
        next(gradients(x, lam))  # compiles
        row("projected gradients, restarted", lam, race(gradients, x, lam, most))
        row("Chambolle-Pock, Algorithm 2 (numpy)", lam, race(primal_dual, x, lam, min(most, 800)))
        row("ADMM, cosine transform, rho = 20 (numpy)", lam, race(cosines, x, lam, min(most, 500)))


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 256)
