"""How objects look at a prompt and in a notebook: numbers, a title with a few lines, a small table."""

from __future__ import annotations

import functools
import math
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.resources import files
from typing import Any

import numpy as np

Rows = Sequence[tuple[str, str]]
SECONDS_BEFORE_A_WORD = 2.0
"""What takes less, such as loading kernels from numba's cache, needs no word."""
SPARK_POINTS = 120
"""A sparkline has at most this many points."""


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
    """A time with two or three digits: 0.53 s, 12 min, 3.4 h, 2.1 days.

    >>> duration(5e8)
    '5,787 days'
    """
    if seconds is None or not math.isfinite(seconds):
        return "-"
    for unit, size, most in (("s", 1.0, 120), ("min", 60.0, 120), ("h", 3600.0, 48)):
        if seconds < most * size:
            return f"{seconds / size:.3g} {unit}"
    days = seconds / 86400
    return f"{days:.3g} days" if days < 1000 else f"{days:,.0f} days"


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


def rounded(value: float) -> str:
    """Three digits of a large or a moderate number, never with a power of ten.

    >>> rounded(15_523.0)
    '15,500'
    """
    return f"{value:.3g}" if value < 999.5 else f"{float(f'{value:.3g}'):,.0f}"


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
    """The same as a small table, with a picture under it, which is HTML already."""
    from markupsafe import Markup  # loaded by notebooks only, as is the template

    return str(_template().described(title, rows, Markup(picture)))


def table(title: str, head: Sequence[str], lines: Sequence[Sequence[str]], remarks: Sequence[str] = ()) -> str:
    """An HTML table with a title, a header, and sentences below it."""
    return str(_template().tabled(title, head, lines, remarks))


@functools.cache
def _template() -> Any:
    """The macros of notebook.html."""
    from jinja2 import Environment

    source = files("proxskip.support").joinpath("notebook.html").read_text("utf-8")
    return Environment(autoescape=True).from_string(source).module


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
    words = f"{label} from {gap(float(y[at[0]]))} to {gap(float(y[at[-1]]))}"
    return str(_template().sparkline(points, words, width, height))


# -- objects that show themselves --------------------------------------------------------------------------------------
class Described:
    """Shows itself as a title with a few lines, at a prompt and in a notebook."""

    __slots__ = ()

    def _described(self) -> tuple[str, Rows]:
        raise NotImplementedError

    def _picture(self) -> str:
        """A picture for a notebook, as HTML."""
        return ""

    def __repr__(self) -> str:
        return text(*self._described())

    def _repr_html_(self) -> str:
        return html(*self._described(), self._picture())
