"""Personalised objectives: every client mixes the common model with its own."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from proxskip.problems import oracles
from proxskip.types import Array, InputError


class Personal:
    """f(alpha x + (1 - alpha) own): what a client sees of x if it uses a mixture of x and its own model.

    Args:
        f: the client's function.
        alpha: in (0, 1]; 1 is f itself.
        own: the client's own model.
    """

    def __init__(self, f: Any, alpha: float, own: Array) -> None:
        self.f = f
        self.alpha = alpha
        self.own = own
        self.d = len(own)
        self.L = alpha**2 * float(f.L)
        self.mu = None if f.mu is None else alpha**2 * float(f.mu)
        self.thread_safe = oracles.is_thread_safe(f)

    def model(self, x: Array) -> Array:
        """The model that this client uses."""
        return np.asarray(self.alpha * x + (1.0 - self.alpha) * self.own)

    def value(self, x: Array) -> float:
        return float(self.f.value(self.model(x)))

    def gradient(self, x: Array) -> Array:
        return np.asarray(self.alpha * self.f.gradient(self.model(x)))

    def hessp(self, x: Array, v: Array) -> Array:
        return np.asarray(self.alpha**2 * self.f.hessp(self.model(x), v))


def shares(alpha: npt.ArrayLike, n: int) -> Array:
    """How much of the common model each of n clients uses."""
    fits = np.shape(alpha) in ((), (1,), (n,))
    alphas = np.broadcast_to(np.asarray(alpha, dtype=np.float64), (n,)) if fits else np.zeros(1)
    if not (np.all(alphas > 0) and np.all(alphas <= 1)):
        raise InputError(f"alpha = {alpha!r} must lie in (0, 1]: one number, or one for each of {n} clients.")
    return alphas


def models(own: npt.ArrayLike, n: int, d: int) -> Array:
    """The clients' own models, one row each."""
    rows = np.asarray(own, dtype=np.float64)
    if rows.shape != (n, d):
        raise InputError(f"own has shape {rows.shape}; give one model of length {d} for each client.")
    if not np.isfinite(rows).all():
        raise InputError("own must be finite numbers.")
    return rows
