"""Seconds of one prox, ours against pyproximal's and scikit-image's, at the accuracy each of them reaches.

    python benchmarks/prox_operators.py [SIDE]        an image of SIDE x SIDE pixels, 512 unless told

The reference is our own prox at the best accuracy its certificate can show. Ratios within one run are what counts.
pyproximal, scikit-image and osqp are used where they are installed.
"""

from __future__ import annotations

import importlib
import sys
import time
from functools import partial

import numpy as np
import scipy.ndimage

from proxskip.prox import TV1D, TV2D, L1Ball, NuclearNorm, Polyhedron, Simplex


def timed(call, least=3, seconds=2.0):
    """The result and the fastest of some calls; the first is not counted."""
    result, times = call(), []
    while len(times) < least or (sum(times) < seconds and len(times) < 50):
        begin = time.perf_counter()
        result = call()
        times.append(time.perf_counter() - begin)
    return result, min(times)


def row(what, seconds, error, more=""):
    print(f"{what:<52} {seconds * 1e3:10.2f} ms   error {error:8.1e}   {more}", flush=True)


def optional(name):
    try:
        return importlib.import_module(name)
    except ImportError:
        print(f"({name} is not installed)")
        return None


def image(side):
    """Discs and a ramp with noise: edges, flat parts and a slope."""
    i, j = np.mgrid[:side, :side] / side
    clean = 0.3 * i + 0.5 * ((i - 0.4) ** 2 + (j - 0.5) ** 2 < 0.05) + 0.4 * ((i - 0.7) ** 2 + (j - 0.7) ** 2 < 0.02)
    return scipy.ndimage.uniform_filter(clean, 3) + 0.1 * np.random.default_rng(0).standard_normal((side, side))


def total_variation(side):
    x = image(side)
    theirs, skimage = optional("pyproximal"), optional("skimage.restoration")
    for lam in (0.03, 0.1):
        for isotropic in (True, False):
            kind = "isotropic" if isotropic else "anisotropic"
            print(f"\nTV of {side} x {side}, {kind}, t lam = {lam}, |x| = {np.linalg.norm(x):.0f}")
            exact = TV2D(lam, x.shape, isotropic, tolerance=1e-6, warm=False, max_iterations=20_000)
            best = exact.prox(x, 1.0)
            print(f"  reference certified to {exact.last.accuracy:.1e} in {exact.last.iterations} iterations")
            for tolerance in (1e-1, 1e-2, 1e-3, 1e-4):
                psi = TV2D(lam, x.shape, isotropic, tolerance=tolerance, warm=False)
                y, seconds = timed(lambda psi=psi: psi.prox(x, 1.0), least=1, seconds=1.0)
                note = f"certified {psi.last.accuracy:.1e}, {psi.last.iterations} iterations"
                row(f"  ours, tolerance {tolerance:g}", seconds, np.linalg.norm(y - best), note)
            psi = TV2D(lam, x.shape, isotropic, tolerance=1e-3)
            psi.prox(x, 1.0)
            near = x + 1e-5 * np.cos(np.arange(x.size)).reshape(x.shape)
            begin = time.perf_counter()
            psi.prox(near, 1.0)
            print(f"  warm, 3e-3 away: {(time.perf_counter() - begin) * 1e3:.2f} ms, {psi.last.iterations} iterations")
            if isotropic:
                others(x, lam, best, theirs, skimage)


def others(x, lam, best, theirs, skimage):
    for count in (50, 200, 1000) if theirs else ():
        psi = theirs.TV(x.shape, lam, niter=count, rtol=0.0)
        y, seconds = timed(lambda psi=psi: psi.prox(x.ravel(), 1.0), least=1, seconds=0.0)
        row(f"  pyproximal TV, {count} iterations", seconds, np.linalg.norm(y.reshape(x.shape) - best))
    for count in (50, 200, 1000) if skimage else ():
        call = partial(skimage.denoise_tv_chambolle, x, weight=lam, eps=0.0, max_num_iter=count)
        y, seconds = timed(call, least=1, seconds=0.0)
        row(f"  scikit-image Chambolle, {count} iterations", seconds, np.linalg.norm(y - best))


def the_rest():
    rng, theirs = np.random.default_rng(1), optional("pyproximal")
    print()
    walk = np.cumsum(rng.standard_normal(1_000_000))
    _, seconds = timed(lambda: TV1D(10.0).prox(walk, 1.0))
    row("TV1D of 1,000,000", seconds, 0.0, "exact")
    M = rng.standard_normal((500, 500))
    _, seconds = timed(lambda: NuclearNorm(10.0, M.shape).prox(M, 1.0))
    row("NuclearNorm of 500 x 500", seconds, 0.0, "exact")
    v = rng.standard_normal(100_000)
    for name, ours in (("Simplex", Simplex(5.0)), ("L1Ball", L1Ball(5.0))):
        right, seconds = timed(lambda ours=ours: ours.prox(v, 1.0))
        row(f"{name} of 100,000", seconds, 0.0, "exact")
        if theirs:
            psi = getattr(theirs, name)(v.size, 5.0)
            y, seconds = timed(lambda psi=psi: psi.prox(v.copy(), 1.0), seconds=1.0)
            row(f"  pyproximal {name}", seconds, np.linalg.norm(y - right))
    if optional("osqp"):
        psi = Polyhedron(rng.standard_normal((100, 300)), u=-np.ones(100))
        points = [3 * rng.standard_normal(300) for _ in range(20)]
        psi.prox(points[0], 1.0)
        begin = time.perf_counter()
        for x in points:
            psi.prox(x, 1.0)
        row("Polyhedron, 100 rows, d = 300, warm", (time.perf_counter() - begin) / 20, psi.worst.accuracy, "certified")


if __name__ == "__main__":
    total_variation(int(sys.argv[1]) if len(sys.argv) > 1 else 512)
    the_rest()
