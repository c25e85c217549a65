"""Noise for differential privacy, added so that the sum of the h stays zero.

A client clips its point, adds noise, and updates h from the point as sent, so ``sum_i w_i h_i`` stays zero. Its h
depends only on vectors that the server has seen, so audits and repairs reveal nothing new.
"""

from __future__ import annotations

import math
import secrets
from dataclasses import dataclass
from typing import Any

import numpy as np

from proxskip import theory
from proxskip.types import Array, InputError


@dataclass(frozen=True, slots=True)
class Noise:
    """A client sends  x + min(1, clip/|xhat - x|) (xhat - x) + std z  instead of its xhat, with z standard normal.

    Each upload is a Gaussian mechanism: for the same x, the uploads of any two data sets differ by at most ``2 clip``
    before the noise. Compute epsilon with a privacy accountant, with one release per ticket of the run (a round that
    failed and was repeated counts twice). The operating system seeds the generator for every upload.

    Args:
        clip: the largest distance from x to what is sent before the noise, in the Euclidean norm.
        std: the standard deviation of the noise in every coordinate.
    """

    clip: float
    std: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "clip", theory.positive("clip", self.clip))
        object.__setattr__(self, "std", theory.nonnegative("std", self.std))

    def __call__(self, x: Array, point: Array) -> Array:
        """What is sent instead of the point reached from x."""
        step = point - x
        length = float(np.linalg.norm(step))
        if not math.isfinite(length):
            return np.full_like(x, math.nan)  # refused by the server, and reveals nothing
        # clipped around x, because the displacement vanishes at the solution
        near = x + (self.clip / length) * step if length > self.clip else point
        return np.asarray(near + self.std * np.random.default_rng(secrets.randbits(256)).standard_normal(x.shape))

    @staticmethod
    def of(words: Any, name: str) -> Noise | None:
        """The noise that the node of this name declares in these words; None if it adds none."""
        if words is None:
            return None
        try:
            clip, std = words
            return Noise(clip, std)
        except (TypeError, ValueError, InputError):
            raise InputError(f"{name} declares noise = {words!r}; give a clip and a standard deviation.") from None
