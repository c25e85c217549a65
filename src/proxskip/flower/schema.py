"""A state as named arrays and plain data, as a file holds them, and back: what is kept follows from its annotations."""

from __future__ import annotations

import types
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from typing import Any, get_args, get_origin, get_type_hints

import numpy as np

from proxskip.results.sealed import AnyArray


def split(value: Any) -> tuple[dict[str, AnyArray], Any]:
    """The arrays of a value by their paths in it, such as ``pending.memory.h``, and the rest as plain data."""
    arrays: dict[str, AnyArray] = {}
    return arrays, _plain(value, "", arrays)


def _plain(value: Any, path: str, arrays: dict[str, AnyArray]) -> Any:
    if isinstance(value, np.ndarray):
        arrays[path] = value.copy()
        return None
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, Enum):
        return value.name
    if is_dataclass(value):
        value = {f.name: getattr(value, f.name) for f in fields(value)}
    if isinstance(value, Mapping):
        return {str(k): _plain(v, _inside(path, k), arrays) for k, v in value.items()}
    if isinstance(value, set):
        value = sorted(value)
    if isinstance(value, list | tuple):
        return [_plain(v, _inside(path, k), arrays) for k, v in enumerate(value)]
    return value


def joined(kind: Any, arrays: Mapping[str, AnyArray], plain: Any, path: str = "") -> Any:
    """The value of this type of which ``split`` made these arrays and this plain data.

    Args:
        path: of the value in what was split.
    """
    form, parts = get_origin(kind), get_args(kind)
    if form is np.ndarray:
        return arrays[path]
    if plain is None:
        return None
    if form is types.UnionType:  # one type or None
        return joined(parts[0], arrays, plain, path)
    if kind is bytes:
        return bytes.fromhex(plain)
    if isinstance(kind, type) and is_dataclass(kind):
        of_field = _annotations(kind)
        return kind(**{name: joined(of_field[name], arrays, v, _inside(path, name)) for name, v in plain.items()})
    if form in (dict, Mapping):
        key, each = parts
        return {key(k): joined(each, arrays, v, _inside(path, k)) for k, v in plain.items()}
    if form in (list, set, tuple):
        kinds = parts[:1] * len(plain) if parts[-1] is Ellipsis or form is not tuple else parts
        paths = (_inside(path, k) for k in range(len(plain)))
        return form(joined(each, arrays, v, at) for each, v, at in zip(kinds, plain, paths, strict=True))
    return kind[plain] if issubclass(kind, Enum) else plain


def _inside(path: str, name: Any) -> str:
    return f"{path}.{name}" if path else str(name)


_annotations = cache(get_type_hints)  # it evaluates text
