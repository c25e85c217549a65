"""Plain data: the types that JSON has, its canonical text, and values cut to a readable length."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from proxskip.types import InputError


def canonical(plain: Any) -> bytes:
    """The one text of plain data: sorted keys, no spaces, ASCII."""
    return json.dumps(plain, sort_keys=True, separators=(",", ":")).encode("ascii")


def checked_plain(value: Any, field: str, *, lists: bool = True, finite: bool = False) -> Any:
    """``value`` in the types that JSON has, or InputError that names the ``field``.

    Args:
        lists: whether arrays may become lists.
        finite: whether NaN and infinities become None, since standard JSON has none.
    """
    try:
        return _plain(value, field, lists, finite)
    except RecursionError:
        raise InputError(f"{field} is nested too deeply, or contains itself: flatten it.") from None


def _plain(value: Any, field: str, *how: bool) -> Any:
    lists, finite = how
    # bool before int (it is one), numpy's scalars before Python's
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, (np.bool_, np.integer)):
        return value.item()
    if isinstance(value, float) or (isinstance(value, np.floating) and value.itemsize <= 8):
        return None if finite and not math.isfinite(value) else float(value)
    if isinstance(value, int) and abs(value) < 2**256:
        return int(value)
    if isinstance(value, str) and _is_text(value):
        return value
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str) or not _is_text(key):
                raise InputError(f"{field} has the key {cut(repr(key))}: only text can be a key.")
        return {key: _plain(item, f"{field}.{key}", *how) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item, f"{field}[{k}]", *how) for k, item in enumerate(value)]
    if lists and isinstance(value, np.ndarray):
        return _plain(value.tolist(), field, *how)
    kinds = "numbers (below 2**256), text, None, lists and dicts"
    raise InputError(f"{cut(field)} is a {type(value).__name__} that JSON cannot hold: use {kinds}.")


def _is_text(text: str) -> bool:
    """No lone surrogates: two of them would come back as one character."""
    return not any("\ud800" <= c <= "\udfff" for c in text)


def cut(text: str, around: int = 0) -> str:
    """At most 80 characters of ``text``, containing position ``around``."""
    if len(text) <= 80:
        return text
    start = max(0, around - 30)
    return ("..." if start else "") + text[start : start + 70] + ("..." if start + 70 < len(text) else "")
