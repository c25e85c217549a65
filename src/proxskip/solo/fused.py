"""ProxGD, FISTA and Nesterov's method for one function, with the vector work of a round in two compiled calls.

These are the rounds of ``methods`` line by line, with the same bits: methods are written with operators, so that their
vectors may be anywhere, and for small vectors numpy takes longer to start its operations than to do them. Only the
sum whose sign decides about a restart is added in another order.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import sqrt
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
        return partial(_fista, method)
    if isinstance(method, Accelerated):
        return partial(_accelerated, method)
    return method.round


def _prox_step(solo: SoloExchange, y: Array, gamma: float) -> Array:
    """prox_{gamma psi}(y - gamma grad f(y)), counted."""
    solo.start = y
    m = np.empty(len(y))
    kernels.plain_step(y, solo.client.gradient(y), gamma, m)
    solo.iterations += 1
    return m if solo.psi is None else solo.prox(m, gamma)


def _fista(method: Fista, server: dict[str, Any], solo: SoloExchange) -> dict[str, Any]:
    y, t = server["y"], server["t"]
    if type(t) is not float:  # the first one; then plain numbers, with which Python is faster than with arrays
        t = t.item()
    x = _prox_step(solo, y, method.gamma)
    later = (1.0 + sqrt(1.0 + 4.0 * t * t)) / 2.0
    new = np.empty(len(x))
    # momentum as in FISTA, up to the cap that a known mu sets
    momentum, beta = (t - 1.0) / later, method.beta
    moved = kernels.look_ahead_or_turn(x, server["x"], y, momentum if momentum < beta else beta, new)
    if moved < 0.0:
        # a negative length says that the momentum points uphill: start again from x without any
        new, moved, later = x, -moved, 1.0
    solo.moved = moved
    return {"x": x, "y": new, "t": later}


def _accelerated(method: Accelerated, server: Vectors, solo: SoloExchange) -> Vectors:
    y, new = server["y"], np.empty(len(server["y"]))
    x = _prox_step(solo, y, method.gamma)
    solo.moved = kernels.look_ahead(x, server["x"], y, method.beta, new)
    return {"x": x, "y": new}
