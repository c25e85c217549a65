"""Scales, ticks and numbers as text. ``page.js`` computes the same when it redraws a figure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

_SUPERSCRIPTS = str.maketrans("-0123456789", "\u207b\u2070\u00b9\u00b2\u00b3\u2074\u2075\u2076\u2077\u2078\u2079")
_SUFFIXES = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


@dataclass(frozen=True, slots=True)
class Scale:
    """Maps values in [low, high] to pixels in [start, end]."""

    low: float
    high: float
    start: float
    end: float
    log: bool

    def __call__(self, v: float) -> float:
        """The pixel of v."""
        a, b, u = (math.log10(w) if self.log else w for w in (self.low, self.high, v))
        return self.start + (u - a) / (b - a) * (self.end - self.start)

    def ticks(self, most: int) -> list[tuple[float, str]]:
        """At most about ``most`` round values, with their labels."""
        return _log_ticks(self.low, self.high, most) if self.log else _linear_ticks(self.low, self.high, most)


def domain(values: Sequence[float], log: bool, from_zero: bool = False) -> tuple[float, float]:
    """The range of an axis: that of the values with a margin, from zero if the values begin near zero."""
    good = [v for v in values if math.isfinite(v) and (v > 0 or not log)]
    low, high = (min(good), max(good)) if good else (0.1 if log else 0.0, 1.0)
    if log:
        # three percent of the axis, and something for a single value
        room = max(0.03 * math.log10(high / low), 0.02)
        return low / 10**room, high * 10**room
    if from_zero and 0 <= low <= 0.3 * high:
        return 0.0, high * 1.02 or 1.0
    room = 0.04 * (high - low) or 0.5 * abs(high) or 1.0
    return low - room, high + room


def _log_ticks(low: float, high: float, most: int) -> list[tuple[float, str]]:
    a, b = math.ceil(math.log10(low) - 1e-9), math.floor(math.log10(high) + 1e-9)
    # fewer than three decades: ticks inside a decade too; else powers of ten, some of them skipped
    for inner in ((1, 2, 5), (1, 3)) if b - a < 3 else ():
        fine = [m * 10.0**k for k in range(a - 1, b + 1) for m in inner]
        inside = [(v, short(v)) for v in fine if low <= v <= high]
        if 2 < len(inside) <= most + 1:
            return inside
    if b - a >= 1:
        # every decade, every second one, ... until they fit
        step = next(s for s in (1, 2, 3, 4, 5, 10, 20, 50, 100, 1000) if (b - a) / s < most)
        return [(10.0**k, power(k)) for k in range(math.ceil(a / step) * step, b + 1, step)]
    return _linear_ticks(low, high, most)


def _linear_ticks(low: float, high: float, most: int) -> list[tuple[float, str]]:
    rough = (high - low) / most
    unit = 10.0 ** math.floor(math.log10(rough))
    step = next(m * unit for m in (1, 2, 2.5, 5, 10) if m * unit >= rough * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [(k * step, short(k * step)) for k in range(first, math.floor(high / step + 1e-9) + 1)]


def power(k: int) -> str:
    """10 to the power k, with raised digits."""
    return "10" + str(k).translate(_SUPERSCRIPTS)


def short(v: float) -> str:
    """A tick label: 2.5k, 0.01, 1e-5."""
    for unit, suffix in _SUFFIXES:
        # a tick k * step may lie just below the unit by rounding
        if abs(v) >= unit * 0.9999999:
            return _trim(f"{v / unit:.4g}") + suffix
    return number(v)


def number(v: float) -> str:
    """A value for readers: 212, 104,857, 0.4971, 6.2e-4, 1.05e8."""
    if not math.isfinite(v):
        return "\u2013"
    if v == 0:
        return "0"
    if 1e3 <= abs(v) < 1e7 or (v == math.floor(v) and abs(v) < 1e3):
        return f"{v:,.0f}"
    if not 1e-3 <= abs(v) < 1e7:
        digits, exponent = f"{v:.2e}".split("e")
        return f"{_trim(digits)}e{int(exponent)}"
    return _trim(f"{v:.4g}")


def _trim(text: str) -> str:
    return text.rstrip("0").rstrip(".") if "." in text and "e" not in text else text
