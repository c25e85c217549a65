"""Data on five sites, and their minimizers by a few lines of their own."""

from __future__ import annotations

from typing import Any

import numpy as np

import proxskip as ps
from proxskip.results.inference import Inference, inference
from proxskip.types import Array

_RNG = np.random.default_rng(5)
A = _RNG.standard_normal((120, 3))
SITE = np.repeat([0, 1, 2, 3, 4], [40, 30, 25, 15, 10])
Y = A @ [1.0, -0.5, 0.0] + _RNG.standard_normal(120)
CLASS = (Y + _RNG.standard_normal(120) > 0).astype(int)


def minimizer(problem: ps.Problem, steps: int = 60) -> Array:
    """Newton's method with halvings, in a few lines of its own; it ends anywhere where there is no minimum."""
    x = np.zeros(problem.d)
    for _ in range(steps):
        hessian = sum(w * f.hessian(x) for w, f in zip(problem.weights, problem.clients, strict=True))
        scale = 1 / np.sqrt(np.maximum(np.diag(hessian), 1e-300))
        step = -scale * np.linalg.lstsq(hessian * np.outer(scale, scale), scale * problem.gradient(x), rcond=1e-14)[0]
        before, t = problem.smooth_value(x), 1.0
        while problem.smooth_value(x + t * step) > before + 1e-14 * abs(before) and t > 1e-9:
            t /= 2
        x = x + t * step
    return x


def table(problem: ps.Problem, **options: Any) -> Inference:
    return inference(problem, minimizer(problem), **options)


def sites(model: Any) -> ps.Problem:
    return ps.split(model, by="group", groups=SITE)
