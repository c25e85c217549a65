"""Which halves a message may name, and the protocol's own: an audit's, a measurement's, a repair's."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from proxskip import registry
from proxskip.interfaces import Client, Method
from proxskip.types import Array, InputError, Vectors

REPORT, MEASURE, RECENTRE, ADOPT = ".report", ".measure", ".recentre", ".adopt"


def allowed(method: Method) -> dict[str, Callable[..., Any]]:
    """The method's halves by name: its public functions of (client, memory, ...), and nothing else."""
    name = method.about.summed
    halves: dict[str, Callable[..., Any]] = {REPORT: partial(report, name), RECENTRE: partial(recentre, name)}
    halves |= {MEASURE: measure, ADOPT: partial(adopt, name)}
    return halves | registry.bound_halves(method)


def report(name: str, client: Client, memory: Vectors, K: int) -> tuple[tuple[Array, ...], Vectors]:
    """The vector that the server knows the sum of (h, or v of 5gcs) goes up."""
    return (memory[name],), {}


def measure(client: Any, memory: Vectors, K: int, x: Array) -> tuple[tuple[Array, ...], Vectors]:
    """The local gradient at x goes up; the value goes with it."""
    return (client.measured_gradient(x),), {}


def recentre(name: str, client: Client, memory: Vectors, excess: Array) -> Vectors:
    """Subtract that by which the weighted mean over all clients is too large."""
    return {name: memory[name] - excess}


def adopt(name: str, client: Client, memory: Vectors, h: Array) -> Vectors:
    """Take over the vector that was lost here."""
    return {name: h}


def check_points(method: Method, half: str) -> None:
    """Refuse noise for a half that sends anything but the point where its local steps led."""
    if half not in method.about.sends:
        raise InputError(
            f"{method.name} sends more than points in this form, and no noise is defined for that; "
            'use scaffnew, local-gd, or scaffold with closing="everyone".'
        )
