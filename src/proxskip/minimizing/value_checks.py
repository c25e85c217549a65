"""Whether a user's f and psi are finite where a minimization ends, and the prox belongs to its value.

The gradient of a user's f is compared with its value at the start of a run, see ``problems.gradient_check``.
"""

from __future__ import annotations

import math

import numpy as np

from proxskip.minimizing.descent import Descent, Point
from proxskip.problems import prox_check
from proxskip.prox import ProxWarning
from proxskip.prox.parts import is_ours
from proxskip.types import Array, GradientWarning

Fault = tuple[str, type[UserWarning]]


def fault(run: Descent, point: Point, f_value: float, psi_value: float) -> Fault | None:
    """A sentence on what contradicts its own values, with the kind of warning; None if nothing does."""
    if not math.isfinite(f_value):
        return f"f is {f_value} at the x that is returned; its value must be finite there.", GradientWarning

    def psi(x: Array) -> float:
        return prox_check.value(run.task.psi, x if run.solo.shape is None else x.reshape(run.solo.shape))

    solo = run.solo
    with np.errstate(all="ignore"):
        if not math.isfinite(psi_value):
            # a set that is met only up to a tolerance, by an inner solver or as D x, is missed by about that much
            is_missed = run.task.D is not None or solo.inner is not None
            may_be_outside = is_missed or solo.call is None or prox_check.is_at_edge(psi, solo.call, point.x)
            if psi_value != math.inf or not may_be_outside:
                return prox_check.not_finite(run.task.psi, psi_value), ProxWarning
        checked = solo.checked
        if checked is None or checked.said or is_ours(checked.psi) or solo.call is None:
            return None
        # what moves the certificate by less than tol does not matter
        sentence = prox_check.contradiction(
            run.task.psi, psi, solo.call, solo.earlier,
            off=solo.call_error, allowed=run.tol, may_be_outside=solo.inner is not None,
        )  # fmt: skip
    return None if sentence is None else (sentence, ProxWarning)
