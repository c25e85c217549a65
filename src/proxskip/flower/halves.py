"""The halves that a message may name: the method's, and the protocol's own for audits, measurements and repairs."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from proxskip import registry
from proxskip.interfaces import Client, Method
from proxskip.types import Array, InputError, Vectors

REPORT, MEASURE, RECENTRE, ADOPT = ".report", ".measure", ".recentre", ".adopt"


def allowed(method: Method) -> dict[str, Callable[..., Any]]:
    """The halves by name: the method's public functions of (client, memory, ...), and the protocol's own."""
    name = method.about.summed
    halves: dict[str, Callable[..., Any]] = {REPORT: partial(report, name), RECENTRE: partial(recentre, name)}
    halves |= {MEASURE: measure, ADOPT: partial(adopt, name)}
    return halves | registry.bound_halves(method)


def report(name: str, client: Client, memory: Vectors, K: int) -> tuple[tuple[Array, ...], Vectors]:
    """Send the vector whose sum the server knows (h, or v of 5gcs)."""
    return (memory[name],), {}


def measure(client: Any, memory: Vectors, K: int, x: Array) -> tuple[tuple[Array, ...], Vectors]:
    """Send the local gradient at x; the value goes with it."""
    return (client.measured_gradient(x),), {}


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
