"""Noise against a curious server, put where the sum of the h survives it.

A client that clips and disturbs its own point learns h from the point as it was sent, so ``sum_i w_i h_i`` stays zero
whatever the noise was. Its h is computed from vectors that the server has seen, so that audits and repairs tell the
server nothing new.
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
    """A client sends  x + min(1, clip/|xhat - x|) (xhat - x) + std z  in the place of its xhat, z standard normal.

    Each upload is a Gaussian mechanism: for the same x, those of any two data sets differ by at most ``2 clip`` before
    the noise. Take epsilon from an accountant, with one release for every ticket of the run (a round that was void and
    tried again is two). The generator is seeded by the operating system for every upload.

    Args:
        clip: the longest way from x to what is sent, in the Euclidean norm.
        std: standard deviation of the noise in every coordinate.
    """

    clip: float
    std: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "clip", theory.positive("clip", self.clip))
        object.__setattr__(self, "std", theory.nonnegative("std", self.std))

    def __call__(self, x: Array, point: Array) -> Array:
        """What is sent in the place of the point that was reached from x."""
        way = point - x
        length = float(np.linalg.norm(way))
        if not math.isfinite(length):
            return np.full_like(x, math.nan)  # which the server refuses, and learns nothing from
        near = x + (self.clip / length) * way if length > self.clip else point
        return np.asarray(near + self.std * np.random.default_rng(secrets.randbits(256)).standard_normal(x.shape))

    @staticmethod
    def of(words: Any, name: str) -> Noise | None:
        """From what a node says of itself."""
        if words is None:
            return None
        try:
            clip, std = words
            return Noise(clip, std)
        except (TypeError, ValueError, InputError):
            raise InputError(f"{name} says noise = {words!r}; it must be a clip and a standard deviation.") from None
