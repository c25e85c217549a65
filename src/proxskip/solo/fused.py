"""ProxGD, FISTA and Nesterov's method for one function, with the vector work of a round in two compiled calls.

These are the rounds of ``methods`` line by line, with the same bits: methods are written with operators, so that their
vectors may be anywhere, and for small vectors numpy takes longer to start its operations than to do them. Only the
sum whose sign decides about a restart is added in another order.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from proxskip.methods import Accelerated, Fista, ProxGD
from proxskip.seam import Method
from proxskip.solo import kernels
from proxskip.solo.exchange import SoloExchange
from proxskip.types import Array, Vectors

Round = Callable[[Vectors, Any], Vectors]


def round_of(method: Method) -> Round:
    """The round of this method, fused where that is possible."""
    if isinstance(method, ProxGD):
        return lambda server, solo: {"x": _prox_step(solo, server["x"], method.gamma)}
    if isinstance(method, Fista):
        return lambda server, solo: _fista(method, server, solo)
    if isinstance(method, Accelerated):
        return lambda server, solo: _accelerated(method, server, solo)
    return method.round


def _prox_step(solo: SoloExchange, y: Array, gamma: float) -> Array:
    """prox_{gamma psi}(y - gamma grad f(y)), counted."""
    solo.start = y
    m: Array = kernels.plain_step(y, solo.client.gradient(y), gamma)
    solo.iterations += 1
    return m if solo.psi is None else solo.prox(m, gamma)


def _fista(method: Fista, server: Vectors, solo: SoloExchange) -> Vectors:
    y, t = server["y"], server["t"].item()
    x = _prox_step(solo, y, method.gamma)
    ahead = (1.0 + math.sqrt(1.0 + 4.0 * t * t)) / 2.0
    new, solo.moved, turned = kernels.look_ahead(x, server["x"], y, min(method.beta, (t - 1.0) / ahead), True)
    return {"x": x, "y": new, "t": np.float64(1.0 if turned else ahead)}


def _accelerated(method: Accelerated, server: Vectors, solo: SoloExchange) -> Vectors:
    y = server["y"]
    x = _prox_step(solo, y, method.gamma)
    new, solo.moved, _ = kernels.look_ahead(x, server["x"], y, method.beta, False)
    return {"x": x, "y": new}
