"""Sentences and numbers as a reader of the page sees them."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from numbers import Real
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from markupsafe import Markup

GREEK = "alpha|gamma|delta|kappa|zeta|lambda|sigma|mu|eps|Psi|Phi"
"""Names of letters in sentences and labels, as a pattern."""
DASH = "\N{EN DASH}"
"""What stands for a value that is not there."""
_LONG_EXPONENT = re.compile(r"(\de[-+]?)0(\d)\b")
_LETTER = re.compile(rf"(?<![\w&'-])({GREEK})(?![\w;'-])")


def sentence(value: str) -> Markup:
    """HTML of a sentence: with Greek letters, the star of f*, and 1e-6 in place of Python's 1e-06."""
    from markupsafe import Markup, escape  # loaded by those who write a page

    escaped = str(escape(short_exponents(value)))
    letters = _LETTER.sub(lambda m: f"&{'epsilon' if m[1] == 'eps' else m[1]};", escaped)
    return Markup(re.sub(r"\b([fhx])\*", r"\1&Star;", letters))


def short_exponents(text: str) -> str:
    """1e-6 in place of Python's 1e-06.

    >>> short_exponents("from 1e-06 to 2.5e-12")
    'from 1e-6 to 2.5e-12'
    """
    return _LONG_EXPONENT.sub(r"\1\2", text)


def words(value: Any) -> str:
    """A value of any kind as text."""
    if value is None:
        return DASH
    if isinstance(value, bool):
        return "yes" if value else "no"
    if is_measured(value):
        return number(float(value))
    if isinstance(value, (list, tuple)):
        return ", ".join(words(v) for v in value)
    if isinstance(value, Mapping):
        return "; ".join(f"{k} = {words(v)}" for k, v in value.items())
    return str(value)


def is_measured(value: Any) -> bool:
    """Whether a value is a finite number."""
    return not isinstance(value, bool) and isinstance(value, Real) and math.isfinite(value)


def number(v: float) -> str:
    """A number for readers: 212, 104,857, 0.4971, 6.2e-4, 1.05e8. The script of the page writes numbers alike."""
    if not math.isfinite(v):
        return DASH
    if v == 0:
        return "0"
    if 1e3 <= abs(v) < 1e7 or (v == math.floor(v) and abs(v) < 1e3):
        return f"{v:,.0f}"
    if not 1e-3 <= abs(v) < 1e7:
        digits, exponent = f"{v:.2e}".split("e")
        return f"{digits.rstrip('0').rstrip('.')}e{int(exponent)}"
    return f"{v:.4g}"


def finite(data: Any) -> Any:
    """Plain data: nan and infinities become None, and whole numbers have no point."""
    return json.loads(json.dumps(data, default=float), parse_float=_shortest, parse_constant=lambda _: None)


def _shortest(digits: str) -> float:
    value = float(digits)
    # up to 2^53 nothing is lost
    return int(value) if value.is_integer() and abs(value) < 2**53 else value
