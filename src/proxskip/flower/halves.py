"""The halves that a message may name: the method's, and the protocol's own for audits, measurements and repairs."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from proxskip.core.exchange import Client
from proxskip.core.method import Method
from proxskip.methods import registry
from proxskip.types import Array, InputError, Vectors

REPORT, MEASURE, INFORM, RECENTRE, ADOPT = ".report", ".measure", ".inform", ".recentre", ".adopt"


def allowed(method: Method) -> dict[str, Callable[..., Any]]:
    """The halves by name: the method's public functions of (client, memory, ...), and the protocol's own."""
    name = method.about.summed
    halves: dict[str, Callable[..., Any]] = {REPORT: partial(report, name), RECENTRE: partial(recentre, name)}
    halves |= {MEASURE: measure, INFORM: inform, ADOPT: partial(adopt, name)}
    return halves | registry.bound_halves(method)


def report(name: str, client: Client, memory: Vectors, K: int) -> tuple[tuple[Array, ...], Vectors]:
    """Send the vector whose sum the server knows (h, or v of 5gcs)."""
    return (memory[name],), {}


def measure(client: Any, memory: Vectors, K: int, x: Array) -> tuple[tuple[Array, ...], Vectors]:
    """Send the local gradient at x; the value goes with it."""
    return (client.measured_gradient(x),), {}


def inform(client: Client, memory: Vectors, K: int, x: Array) -> tuple[tuple[Array, ...], Vectors]:
    """Send value, gradient and Hessian at x, and at zero for comparison: what a table of errors follows from."""
    return (client.expansion(x), client.expansion(np.zeros_like(x))), {}


def recentre(name: str, client: Client, memory: Vectors, excess: Array) -> Vectors:
    """Subtract the excess of the weighted mean over all clients."""
    return {name: memory[name] - excess}


def adopt(name: str, client: Client, memory: Vectors, h: Array) -> Vectors:
    """Take over a vector that this client lost."""
    return {name: h}


def check_points(method: Method, half: str) -> None:
    """Refuse noise for a half that sends anything but the point its local steps reached."""
    if half not in method.about.sends:
        raise InputError(
            f"noise cannot be added to what {method.name} sends in this form; use scaffnew, local-gd, or scaffold with "
            'closing="everyone".'
        )
