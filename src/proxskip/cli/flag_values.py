"""Converters for the values of flags; a wrong value is refused with a sentence."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from typing import Any

from proxskip import theory
from proxskip.types import InputError


def _value(convert: Callable[[str], Any]) -> Callable[[str], Any]:
    """A converter for argparse whose InputError reaches the user unchanged."""

    def parse(text: str) -> Any:
        try:
            return convert(text)
        except InputError as error:
            raise argparse.ArgumentTypeError(str(error).rstrip(".")) from None

    return parse


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise InputError(f"{text!r} is not a number") from None


def positive(name: str, *words: str) -> Callable[[str], Any]:
    """A positive number, or one of the words; "theory" becomes None."""

    def convert(text: str) -> Any:
        if text in words:
            return None if text == "theory" else text
        if words and not _is_number(text):
            raise InputError(f"{text!r} is neither a number nor {' nor '.join(words)}")
        value = _number(text)
        if not (math.isfinite(value) and value > 0):
            raise InputError(f"{name} = {text} must be positive")
        return value

    return _value(convert)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def probability(name: str, *words: str) -> Callable[[str], Any]:
    """A number in (0, 1], or the word "theory", which becomes None."""

    def convert(text: str) -> Any:
        if text in words:
            return None
        if words and not _is_number(text):
            raise InputError(f"{text!r} is neither a number nor {' nor '.join(words)}")
        value = _number(text)
        if not 0 < value <= 1:
            raise InputError(f"{name} = {text} must lie in (0, 1]")
        return value

    return _value(convert)


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
    if _is_number(text):
        return int(text) if text.lstrip("+-").isdigit() else float(text)
    return text


@_value
def cohort(text: str) -> int | float | tuple[float, ...]:
    """A number of clients, a probability below one, or one for each client."""
    if "," in text:
        return tuple(theory.probability("cohort", _number(part)) for part in text.split(","))
    if text.isdigit():
        return theory.whole("cohort", int(text))
    value = _number(text)
    if not 0 < value < 1:
        raise InputError(f"cohort = {text} is neither a whole number of clients nor a probability below 1")
    return value
