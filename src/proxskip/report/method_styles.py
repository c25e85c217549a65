"""Titles and styles of the methods, as the methods describe themselves, and styles for everything else."""

from __future__ import annotations

from proxskip import registry
from proxskip.display import palette
from proxskip.interfaces import Style
from proxskip.registry import title as title

CYCLE = tuple(Style(*look) for look in palette.CYCLE)
"""Styles by position, for curves that belong to no method or all to the same one."""
PALETTE = tuple(entry.color for entry in CYCLE)


def style(name: str) -> Style | None:
    """A method's own style; None for an unknown method, which is drawn by its position in the figure."""
    kind = registry.METHODS.get(name)
    return None if kind is None else kind.about.style
