"""Converters for the values of flags; a wrong value is refused with a sentence."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Sequence
from typing import Any

from proxskip import theory
from proxskip.links import codecs
from proxskip.links.network import Network
from proxskip.types import InputError


def _value(convert: Callable[[str], Any]) -> Callable[[str], Any]:
    """A converter for argparse whose InputError reaches the user unchanged."""

    def parse(text: str) -> Any:
        try:
            return convert(text)
        except InputError as error:
            # the one exception whose message argparse passes on
            raise argparse.ArgumentTypeError(str(error).rstrip(".")) from None

    return parse


def _number(text: str, words: Sequence[str] = ()) -> float:
    """The text as a number; the sentence that refuses it names the words that are accepted as well."""
    try:
        return float(text)
    except ValueError:
        what = f"neither a number nor {' nor '.join(words)}" if words else "not a number"
        raise InputError(f"{text!r} is {what}") from None


def _within(name: str, words: Sequence[str], fits: Callable[[float], bool], range: str) -> Callable[[str], Any]:
    """A number that fits, or one of the words; "theory" becomes None."""

    def convert(text: str) -> Any:
        if text in words:
            return None if text == "theory" else text
        value = _number(text, words)
        if not fits(value):
            raise InputError(f"{name} = {text} must {range}")
        return value

    return _value(convert)


def positive(name: str, *words: str) -> Callable[[str], Any]:
    """A positive number, or one of the words; "theory" becomes None."""
    return _within(name, words, lambda value: 0 < value < math.inf, "be positive")


def probability(name: str, *words: str) -> Callable[[str], Any]:
    """A number in (0, 1], or the word "theory", which becomes None."""
    return _within(name, words, lambda value: 0 < value <= 1, "lie in (0, 1]")


def whole(name: str, least: int = 1) -> Callable[[str], Any]:
    """A whole number of at least ``least``."""

    def convert(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise InputError(f"{text!r} is not a whole number") from None
        return theory.whole(name, value, least)

    return _value(convert)


def nonnegative(name: str) -> Callable[[str], Any]:
    """Zero or a positive number."""
    return _value(lambda text: theory.nonnegative(name, _number(text)))


@_value
def parameter(text: str) -> int | float | bool | str:
    """A parameter of a method from outside the package: a number, yes or no, or a word."""
    if text in ("yes", "no", "true", "false"):
        return text in ("yes", "true")
    try:
        return int(text) if text.lstrip("+-").isdigit() else float(text)
    except ValueError:
        return text


@_value
def names(text: str) -> list[str]:
    """Names separated by commas."""
    parts = [part.strip() for part in text.split(",")]
    if not all(parts):
        raise InputError(f"{text!r} has an empty name; write the columns as A,B,C")
    return parts


@_value
def network(text: str) -> Network:
    """A named network, with some of its numbers changed: ``mobile``, ``mobile:deadline=30,gradient=0.01``."""
    name, _, more = text.partition(":")
    changes = {}
    for part in filter(None, more.split(",")):
        key, equals, value = part.partition("=")
        if not equals:
            raise InputError(f"{part!r} does not change a network; write NAME:deadline=30,gradient=0.01")
        changes[key.strip()] = theory.whole(key, int(_number(value)), 0) if key == "patience" else _number(value)
    return Network.named(name, **changes)


@_value
def codec(text: str) -> codecs.Codec:
    """A codec by its text form."""
    return codecs.parse(text)


@_value
def cohort(text: str) -> int | float | tuple[float, ...]:
    """A number of clients, a probability below one, or one for each client."""
    if "," in text:
        return tuple(theory.probability("cohort", _number(part)) for part in text.split(","))
    # 1 is one client; as a probability it would be everybody, which is the default
    if text.isdigit():
        return theory.whole("cohort", int(text))
    value = _number(text)
    if not 0 < value < 1:
        raise InputError(f"cohort = {text} is neither a whole number of clients nor a probability below 1")
    return value
