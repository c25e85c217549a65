"""``help()`` of every public class and function describes every parameter."""

from __future__ import annotations

import enum
import importlib
import importlib.util
import inspect
import re
from collections.abc import Iterator
from typing import Any

import pytest

import proxskip as ps
from support.tiers import needs

MODULES = (
    *("participation", "graphs", "codecs", "core", "callbacks", "datasets", "prox", "theory"),
    *(("sklearn",) if importlib.util.find_spec("sklearn") else ()),
    *(("torch",) if importlib.util.find_spec("torch") else ()),
    pytest.param("flower", marks=[needs("flwr"), pytest.mark.flower]),
)
CLASS_METHODS = ("theory", "of", "named", "average")
"""Other ways to make one of a class."""


def described(doc: str) -> set[str]:
    lists = re.findall(r"^(?:Args|Attributes):\n((?:[ \t]+.*\n?|\n)*)", doc, re.MULTILINE)
    heads = [head for text in lists for head in re.findall(r"^    ([\w, *]+):", text, re.MULTILINE)]
    names = [name.strip(" *") for head in heads for name in head.split(",")]
    assert len(names) == len(set(names)), f"described twice: {names}"
    return set(names)


def missing(thing: Any, strict: bool) -> list[str]:
    """Parameters without a line, or that are not even mentioned."""
    doc = inspect.getdoc(thing) or ""
    names = [name for name in inspect.signature(thing).parameters if name not in ("self", "problem")]
    known = described(doc)
    return [name for name in names if name not in known and (strict or not re.search(rf"\b{name}\b", doc))]


def public(module: Any) -> Iterator[tuple[str, Any]]:
    for name in getattr(module, "__all__", None) or dir(module):
        thing = getattr(module, name)
        ours = (inspect.isclass(thing) or inspect.isfunction(thing)) and thing.__module__.startswith("proxskip")
        if not ours or name.startswith("_") or getattr(thing, "_is_protocol", False):
            continue
        if inspect.isclass(thing) and issubclass(thing, BaseException | enum.Enum):
            continue
        yield name, thing


@pytest.mark.parametrize("name", ["", *MODULES])
def test_every_parameter_is_described(name: str) -> None:
    optional = name in ("torch", "sklearn", "flower")
    module = importlib.import_module(f"proxskip.{name}") if optional else getattr(ps, name, ps)
    found = {}
    for title, thing in public(module):
        # of functions of one formula, such as those of theory, it is enough that the formula has the letter
        found[title] = missing(thing, strict=name in ("", "flower"))
        for way in CLASS_METHODS if inspect.isclass(thing) else ():
            if isinstance(vars(thing).get(way), classmethod | staticmethod):
                found[f"{title}.{way}"] = missing(getattr(thing, way), strict=False)
    assert {title: names for title, names in found.items() if names} == {}
    assert len(found) > 2
