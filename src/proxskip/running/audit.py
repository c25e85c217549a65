"""The audit: the control variates of a method must add up to what its theorem says.

A lost, doubled or altered update leaves x finite and the answer wrong. It shows in the sum of the h_i, which is zero
after every round (with psi, minus a subgradient of psi at x; with psi(D x), h = -D'y), and for 5gcs in the sum of the
v_i, which is v. Rounding leaves at most some units of the largest h and of the largest (p/gamma) x so far, because h is
updated with differences of x. A run audits itself at every record (``Audit``), a federation's server every few rounds
(``flower.checks``).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from proxskip.core.method import Method
from proxskip.support.sums import largest
from proxskip.types import Array

TOLERANCE = 1e-12
"""The allowed sum in the first rounds, relative to the largest h and (p/gamma) x so far."""
DOUBLE = float(np.finfo(np.float64).eps)
ROUNDS_PER_TOLERANCE = 10_000
"""Rounding adds up like a random walk: the tolerance doubles after this many rounds."""


def rounded_scale(method: Method, round: int, x: Array, h: Array | None = None) -> float:
    """max |h| + (p/gamma) max |x|: the size of the rounded terms, since h moves by (p/gamma) (x+ - xhat).

    Args:
        round: the number of rounds so far; a decaying gamma depends on it.
    """
    size_of_h = 0.0 if h is None else largest(h)
    return size_of_h + method.dual_step(round) * float(np.abs(x).max(initial=0.0))


def allowed(scale: float, rounds: int, unit: float = DOUBLE) -> float:
    """The largest sum that rounding explains.

    Args:
        scale: the largest ``rounded_scale`` so far.
        unit: the unit roundoff of the clients' memory.
    """
    return TOLERANCE * (unit / DOUBLE) * scale * (1.0 + math.sqrt(rounds / ROUNDS_PER_TOLERANCE))


@dataclass(slots=True)
class Audit:
    """The largest scale of a run so far."""

    scale: float = 0.0

    def limit(self, method: Method, round: int, x: Array, h: Array | None, unit: float = DOUBLE) -> float:
        """The largest sum that rounding explains after this round; infinite where there is nothing to audit.

        Args:
            h: the client vectors that add up to it.
        """
        if h is None:
            return math.inf
        now = rounded_scale(method, round, x, h)
        if math.isfinite(now):
            self.scale = max(self.scale, now)
        # the first round may repair h0
        return math.inf if round == 0 else allowed(self.scale, round, unit)
