"""Small pictures for notebooks, as SVG that needs no script."""

from __future__ import annotations

from html import escape
from typing import Any

import numpy as np

from proxskip.display.words import gap
from proxskip.types import Array

SPARK_POINTS = 120
"""A sparkline has at most this many points."""
_COLOR = "#0072B2"


def sparkline(
    values: Any, label: str, *, log: bool = True, width: int = 240, height: int = 42, caption: bool = True
) -> str:
    """A curve as inline SVG with its first and last value; empty if there are fewer than two numbers.

    Args:
        log: a logarithmic axis, on which values that are not positive are left out.
        caption: write the values beside it too, and not only for those who cannot see it.
    """
    y = np.asarray(values, dtype=np.float64)
    good = np.isfinite(y) & ((y > 0) | (not log))
    if good.sum() < 2:
        return ""
    at = np.flatnonzero(good)
    at = at[np.unique(np.linspace(0, len(at) - 1, min(len(at), SPARK_POINTS)).astype(int))]
    v = np.log(y[at]) if log else y[at]
    x = 2 + (width - 4) * (at - at[0]) / max(at[-1] - at[0], 1)
    span = float(np.ptp(v)) or 1.0
    h = height - 4 - (height - 8) * (v - v.min()) / span
    points = " ".join(f"{a:.1f},{b:.1f}" for a, b in zip(x, h, strict=True))
    line = f'<polyline points="{points}" fill="none" stroke="{_COLOR}" stroke-width="1.5"/>'
    words = f"{label} from {gap(float(y[at[0]]))} to {gap(float(y[at[-1]]))}"
    return _svg(line, words, width, height, caption)


def bars(values: Array, label: str, *, width: int = 240, height: int = 42) -> str:
    """Nonnegative numbers as bars; those of many clients are averaged in groups."""
    parts = np.array_split(np.asarray(values, dtype=np.float64), min(len(values), 60))
    v = np.array([part.mean() for part in parts])
    if not v.max() > 0:
        return ""
    wide = (width - 4) / len(v)
    drawn = "".join(
        f'<rect x="{2 + k * wide:.1f}" y="{height - 2 - (height - 6) * one / v.max():.1f}" '
        f'width="{0.8 * wide:.1f}" height="{(height - 6) * one / v.max():.1f}" fill="{_COLOR}"/>'
        for k, one in enumerate(v)
    )
    return _svg(drawn, label, width, height)


def _svg(inside: str, label: str, width: int, height: int, caption: bool = True) -> str:
    named = escape(label, quote=True)
    beside = f'<span style="font-size:85%;opacity:.7;padding-left:8px">{escape(label)}</span>' if caption else ""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" role="img" aria-label="{named}"><title>{escape(label)}</title>{inside}</svg>'
        + beside
    )
