"""Which halves a message may name, and the protocol's own: an audit's, a measurement's, a repair's."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from proxskip.types import Array, InputError, Vectors

REPORT, MEASURE, RECENTRE, ADOPT = ".report", ".measure", ".recentre", ".adopt"


def allowed(method: Any) -> dict[str, Callable[..., Any]]:
    """The method's halves by name: its public functions of (client, memory, ...), and nothing else."""
    found: dict[str, Callable[..., Any]] = {REPORT: report, MEASURE: measure, RECENTRE: recentre, ADOPT: adopt}
    for name in dir(type(method)):
        half = None if name.startswith("_") else getattr(type(method), name)
        if inspect.isfunction(half) and list(inspect.signature(half).parameters)[1:3] == ["client", "memory"]:
            found[name] = getattr(method, name)
    return found


def report(client: Any, memory: Vectors, K: int) -> tuple[tuple[Array, ...], Vectors]:
    """h goes up."""
    return (memory["h"],), {}


def measure(client: Any, memory: Vectors, K: int, x: Array) -> tuple[tuple[Array, ...], Vectors]:
    """The local gradient at x goes up; the value goes with it."""
    return (client.gradient(x),), {}


def recentre(client: Any, memory: Vectors, excess: Array) -> Vectors:
    """Take the weighted mean off h."""
    return {"h": memory["h"] - excess}


def adopt(client: Any, memory: Vectors, h: Array) -> Vectors:
    """Take over an h that was lost here."""
    return {"h": h}


SENT: dict[str, dict[str, tuple[str, int]]] = {
    "scaffnew": {"local": ("xhat", 0), "local_in_cohort": ("xhat", 0)},
    "scaffold": {"local": ("y", 0), "local_with_c": ("h", 1)},
    "fedlin": {"anchor": ("h", 0), "local": ("", 0)},
    "s-local-gd": {"anchor": ("h", 0), "local": ("", 0), "local_anchored": ("", 0)},
}
"""Which remembered vector moves with which vector that goes up, half by half ("" for none)."""


def as_sent(name: str, half: str, up: tuple[Array, ...], sent: tuple[Array, ...], memory: Vectors) -> Vectors:
    """The memory that belongs to the vectors as they were transmitted, rounded, not as they were computed."""
    if not memory:
        return memory
    key, k = SENT[name][half]
    return memory | {key: memory[key] + (sent[k] - up[k])} if key else memory


POINTS: dict[str, dict[str, str]] = {
    "scaffnew": {"local": "xhat", "local_in_cohort": "xhat"},
    "scaffold": {"local": "y"},
    "local-gd": {"local": ""},
}
"""Halves that send where their local steps led, and the name under which they remember it ("" for not at all).

What else they send (Scaffnew's ``-(gamma/p) h``) is known to a server that has seen the earlier rounds.
"""


def disturb(
    method: Any, half: str, x: Array, up: tuple[Array, ...], change: Vectors, noise: Callable[[Array, Array], Array]
) -> tuple[tuple[Array, ...], Vectors]:
    """What goes up, and what is remembered, with the point of the local steps as ``noise(x, point)`` makes it."""
    check_points(method, half)
    key = POINTS[method.name][half]
    point = change[key] if key else up[0]
    moved = noise(x, point) - point
    return (up[0] + moved, *up[1:]), change | {key: point + moved} if key else change


def check_points(method: Any, half: str) -> None:
    """Refuse noise for a half that sends anything but the point where its local steps led."""
    if half not in POINTS.get(method.name, {}):
        raise InputError(
            f"{method.name} sends more than points in this form, and no noise is defined for that; "
            'use scaffnew, local-gd, or scaffold with closing="everyone".'
        )


def check_rounding(method: Any) -> None:
    """Refuse float32 uploads for a method of which it is not known what must be rounded with them."""
    if method.remembers and method.name not in SENT:
        raise InputError(
            f"{method.name} cannot send float32: nobody said which of its vectors must be rounded with what it sends."
        )
