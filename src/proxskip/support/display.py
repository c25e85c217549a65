"""How objects look at a prompt and in a notebook: numbers, a title with a few lines, a small table."""

from __future__ import annotations

import math
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from html import escape
from typing import Any

import numpy as np

Rows = Sequence[tuple[str, str]]
SECONDS_BEFORE_A_WORD = 2.0
"""What takes less, such as loading kernels from numba's cache, needs no word."""
SPARK_POINTS = 120
"""A sparkline has at most this many points."""
_CELL = "text-align:left;padding:1px 10px 1px 0;vertical-align:top;background:none;border:none"


@contextmanager
def said_if_slow(words: str) -> Iterator[None]:
    """Print these words if what happens within this is slow and a person waits, at a terminal or in a notebook."""
    word = threading.Timer(SECONDS_BEFORE_A_WORD, print, [words], {"file": sys.stderr, "flush": True})
    word.daemon = True  # it must not keep the process alive
    if sys.stderr.isatty() or in_notebook():
        word.start()
    try:
        yield
    finally:
        word.cancel()


def in_notebook() -> bool:
    """Whether this process is a notebook kernel."""
    return type(getattr(sys.modules.get("IPython"), "get_ipython", object)()).__name__ == "ZMQInteractiveShell"


def number(value: float | None) -> str:
    """Three digits, or a dash if the number is missing or not finite."""
    return "-" if value is None or not math.isfinite(value) else f"{value:.3g}"


def duration(seconds: float | None) -> str:
    """A time with two or three digits: 0.53 s, 12 min, 3.4 h, 2.1 days."""
    if seconds is None or not math.isfinite(seconds):
        return "-"
    for unit, size, most in (("s", 1.0, 120), ("min", 60.0, 120), ("h", 3600.0, 48)):
        if seconds < most * size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds / 86400:.3g} days"


def gap(value: float | None) -> str:
    """f - f* and similar small numbers: two digits and a power of ten."""
    return "-" if value is None or not math.isfinite(value) else f"{value:.1e}"


def count(value: float | None) -> str:
    """A count: exact below ten million, otherwise with M or G."""
    if value is None or not math.isfinite(value):
        return "-"
    if abs(value) < 10_000_000:
        return f"{value:,.0f}"
    for unit, size in (("M", 1e6), ("G", 1e9)):
        if abs(value) < 999.5 * size:
            return f"{value / size:.3g}{unit}"
    return f"{value:.2e}"


def short(value: object) -> str:
    """A parameter: its repr, of which a long sequence or text shows the beginning and the end."""
    if isinstance(value, (tuple, list, np.ndarray)) and len(value) > 6:
        ends = [short(v) for v in (*value[:2], value[-1])]
        return f"({ends[0]}, {ends[1]}, ..., {ends[2]}; {len(value)} values)"
    shown = repr(value.item() if isinstance(value, np.generic) else value)
    return shown if len(shown) <= 120 else f"{shown[:80]}...{shown[-30:]}"


def parameter(name: str, value: object) -> str:
    """A parameter with its name; of one that each client has for itself, the range."""
    if isinstance(value, (list, tuple)) and value and all(isinstance(v, float) for v in value):
        return f"{name}_i from {min(value):.4g} to {max(value):.4g}"
    if isinstance(value, dict):
        return f"{name} = " + ", ".join(f"{k} {short(v)}" for k, v in value.items())
    return f"{name} = {value:.4g}" if isinstance(value, float) else f"{name} = {value}"


def text(title: str, rows: Rows) -> str:
    """A title, and one indented line for each row."""
    width = max((len(name) for name, _ in rows), default=0)
    return "\n".join([title, *(f"  {name:<{width}}  {value}" for name, value in rows)])


def html(title: str, rows: Rows, picture: str = "") -> str:
    """The same as a small table, with a picture under it."""
    cells = "".join(
        f'<tr style="background:none"><th style="{_CELL};font-weight:normal;opacity:.7">{escape(name)}</th>'
        f'<td style="{_CELL}">{escape(value)}</td></tr>'
        for name, value in rows
    )
    return (
        f'<div><strong>{escape(title)}</strong><table style="border-collapse:collapse">{cells}</table>{picture}</div>'
    )


def table(head: Sequence[str], rows: Sequence[Sequence[str]], title: str = "") -> str:
    """An HTML table with a header."""
    top = "".join(f'<th style="{_CELL};border-bottom:1px solid #999">{escape(name)}</th>' for name in head)
    cells = ("".join(f'<td style="{_CELL};white-space:nowrap">{escape(cell)}</td>' for cell in row) for row in rows)
    body = "".join(f'<tr style="background:none">{row}</tr>' for row in cells)
    over = f"<strong>{escape(title)}</strong>" if title else ""
    return f'<div>{over}<table style="border-collapse:collapse"><tr>{top}</tr>{body}</table></div>'


def columns(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines of a plain table: the first column to the left, the others to the right."""
    first, *others = (max(map(len, column)) for column in zip(head, *rows, strict=True))
    return [
        "  ".join([row[0].ljust(first), *(cell.rjust(w) for cell, w in zip(row[1:], others, strict=True))]).rstrip()
        for row in (head, *rows)
    ]


def sparkline(values: Any, label: str) -> str:
    """A curve on a logarithmic axis as inline SVG with its first and last value; empty without two positive numbers."""
    width, height = 240, 42
    y = np.asarray(values, dtype=np.float64)
    at = np.flatnonzero(np.isfinite(y) & (y > 0))
    if len(at) < 2:
        return ""
    at = at[np.unique(np.linspace(0, len(at) - 1, min(len(at), SPARK_POINTS)).astype(int))]
    v = np.log(y[at])
    x = 2 + (width - 4) * (at - at[0]) / max(at[-1] - at[0], 1)
    h = height - 4 - (height - 8) * (v - v.min()) / (float(np.ptp(v)) or 1.0)
    points = " ".join(f"{a:.1f},{b:.1f}" for a, b in zip(x, h, strict=True))
    words = escape(f"{label} from {gap(float(y[at[0]]))} to {gap(float(y[at[-1]]))}")
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        f'role="img" aria-label="{words}"><title>{words}</title>'
        f'<polyline points="{points}" fill="none" stroke="#0072B2" stroke-width="1.5"/></svg>'
        f'<span style="font-size:85%;opacity:.7;padding-left:8px">{words}</span>'
    )
