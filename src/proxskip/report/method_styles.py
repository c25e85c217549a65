"""Styles of the methods, as the methods describe themselves, and styles for everything else."""

from __future__ import annotations

from proxskip.core.method import Style
from proxskip.methods import registry
from proxskip.support import palette

CYCLE = tuple(Style(*look) for look in palette.CYCLE)
"""Styles by position, for curves that belong to no method or all to the same one."""


def style(name: str) -> Style | None:
    """A method's own style; None for an unknown method, which is drawn by its position in the figure.

    A method that describes none takes a place in ``CYCLE``, whose colors no method has: the first that did so the first
    place.
    """
    kind = registry.METHODS.get(name)
    if kind is None or kind.about.style is not None:
        return None if kind is None else kind.about.style
    plain = [known for known, other in registry.METHODS.items() if other.about.style is None]
    return CYCLE[plain.index(name) % len(CYCLE)]
