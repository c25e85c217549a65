"""Text that is safe inside HTML: names come from data files and may contain anything."""

from __future__ import annotations

import html
import json
import math
import re
import unicodedata
from numbers import Real
from typing import Any

_DIRECTION_MARKS = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")

GREEK = "alpha|gamma|delta|kappa|zeta|lambda|sigma|mu|eps|Psi|Phi"
"""Names of letters in sentences and labels, as a pattern."""
_LONG_EXPONENT = re.compile(r"(\de[-+]?)0(\d)\b")
_LETTER = re.compile(rf"(?<![\w&'-])({GREEK})(?![\w;'-])")


def text(value: str) -> str:
    """Escaped, on one line; characters that hide or reorder what is read become U+FFFD."""
    hidden = {c for c in value if c in _DIRECTION_MARKS or unicodedata.category(c) in ("Cc", "Cs", "Cn", "Co")}
    return html.escape(
        "".join(" " if c.isspace() else "\N{REPLACEMENT CHARACTER}" if c in hidden else c for c in value)
    )


def attribute(value: str) -> str:
    """Escaped for double quotes; a script reads the same characters."""
    plain = "".join("\N{REPLACEMENT CHARACTER}" if c == "\0" or "\ud800" <= c <= "\udfff" else c for c in value)
    return html.escape(plain, quote=True).replace("\r", "&#13;").replace("\n", "&#10;")


def sentence(value: str) -> str:
    """Escaped as by ``text``, with Greek letters, the star of f*, and 1e-6 in place of Python's 1e-06."""
    value = _LONG_EXPONENT.sub(r"\1\2", value)
    letters = _LETTER.sub(lambda m: f"&{'epsilon' if m[1] == 'eps' else m[1]};", text(value))
    return re.sub(r"\b([fhx])\*", r"\1&Star;", letters)


def block(data: Any) -> str:
    """JSON for a script element, which nothing in it can end; nan and infinities become null."""
    plain = json.dumps(finite(data), ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return plain.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def finite(data: Any) -> Any:
    """Plain data: nan and infinities become None, and whole numbers have no point."""
    return json.loads(json.dumps(data, default=float), parse_float=_shortest, parse_constant=lambda _: None)


def _shortest(digits: str) -> float:
    value = float(digits)
    # up to 2^53 nothing is lost
    return int(value) if value.is_integer() and abs(value) < 2**53 else value


def show(value: Any) -> str:
    """A value of any kind as escaped HTML; numbers carry all their digits."""
    if value is None:
        return "\u2013"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Real):
        return data(value, number(float(value))) if math.isfinite(value) else text(str(float(value)))
    if isinstance(value, (list, tuple)):
        return ", ".join(show(v) for v in value)
    if isinstance(value, dict):
        return "; ".join(f"{text(str(k))} = {show(v)}" for k, v in value.items())
    return text(str(value))


def data(value: Any, shown: str) -> str:
    """The short form of a number, with all its digits in an attribute."""
    return f'<data value="{json.dumps(finite(value))}">{shown}</data>'


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
        return f"{digits.rstrip('0').rstrip('.')}e{int(exponent)}"
    return f"{v:.4g}"
