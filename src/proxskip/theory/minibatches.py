"""Constants of minibatches without replacement, for one client or, with arrays, for each of many at once."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np

from proxskip.theory.numbers import positive
from proxskip.types import Array, Indices, InputError

Number: TypeAlias = float | Array | Indices
"""Of one client, or of each of many."""


def smoothness_each(m: Number, b: int, L: Number, L_max: Number) -> Array:
    """The formula of ``theorems.minibatch_smoothness``; the first client with impossible numbers is refused."""
    for name, values in (("L", L), ("L_max", L_max)):
        positive(name, float(np.min(values)))
        positive(name, float(np.max(values)))
    too_large = np.flatnonzero(np.asarray(L) / L_max > 1 + 1e-6)
    if len(too_large):
        i = too_large[0]
        L, L_max = (float(np.ravel(v)[i]) for v in (L, L_max))
        raise InputError(f"L = {L:g} is larger than L_max = {L_max:g}; a mean is never less smooth than every term.")
    return np.where(m == b, L, (m * (b - 1) * L + (m - b) * L_max) / (b * np.maximum(m - 1, 1)))


def variance_each(m: Number, b: int, spread: Number) -> Array:
    """The formula of ``theorems.minibatch_variance``."""
    return np.where(m == b, 0.0, (m - b) / (b * np.maximum(m - 1, 1)) * spread)


def expected_smoothness_each(L_b: Number, sigma2: float | Array) -> tuple[Array, Array]:
    """A and C of ``theorems.expected_smoothness``, from the smoothness and the variance of a minibatch."""
    return np.where(sigma2 == 0, L_b, 2 * L_b), np.asarray(2 * sigma2)
