"""Checks of the numbers that enter a theorem; a wrong one is refused with one sentence."""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import numpy as np

from proxskip.types import InputError

__all__ = [
    "ROUNDING", "accuracy", "below_two_over_L", "kappa", "known", "nonnegative", "ordered", "positive",
    "probability", "theorem", "whole", "whole_seed",
]  # fmt: skip

ROUNDING = 1e-9
"""Relative tolerance when numbers that were computed separately are compared."""


def positive(name: str, value: float | None) -> float:
    """The value as a float, refused unless it is a positive finite number.

    Args:
        name: for the sentence.
    """
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        raise InputError(f"{name} = {value!r} is not a number; give a positive finite one.") from None
    except OverflowError:  # an integer beyond the largest float
        number = math.inf
    if not (0 < number < math.inf):
        raise InputError(f"{name} = {number:g} must be positive and finite.")
    return number


def nonnegative(name: str, value: float) -> float:
    """The value as a float, refused unless it is zero or a positive finite number.

    Args:
        name: for the sentence.
    """
    if isinstance(value, int | float | np.number) and not 0 <= value < math.inf:
        raise InputError(f"{name} = {value:g} must be zero or positive, and finite.")
    return 0.0 if value == 0 else positive(name, value)


def whole(name: str, value: int, least: int = 1) -> int:
    """The value as an int, refused unless it is a whole number of at least ``least``.

    Args:
        name: for the sentence.
    """
    # True is an int, but no count
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
        raise InputError(f"{name} = {value!r} must be a whole number of at least {least}.")
    return int(value)


def whole_seed(seed: object) -> int:
    """The seed as an int, refused unless it is a whole number below 2^63."""
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or not 0 <= seed < 2**63:
        raise InputError(f"seed = {seed!r} must be a whole number from 0 to 2^63 - 1.")
    return int(seed)


def probability(name: str, value: float) -> float:
    """The value as a float, refused unless it lies in (0, 1].

    Args:
        name: for the sentence.
    """
    number = positive(name, value)
    if number > 1:
        raise InputError(f"{name} = {number:g} must lie in (0, 1].")
    return number


def accuracy(eps: float) -> float:
    """The target accuracy eps as a float, refused unless it lies in (0, 1)."""
    number = positive("eps", eps)
    if number >= 1:
        raise InputError(f"eps = {number:g} must lie in (0, 1): it is the factor by which the error is to be reduced.")
    return number


def known(mu: float | None) -> float:
    """The strong convexity constant mu as a float, refused when it is missing or zero."""
    if mu is None or (isinstance(mu, int | float | np.number) and (mu == 0 or mu != mu)):
        raise InputError(
            f"mu is unknown (mu = {mu}), so there is no rate: pass l2 > 0 without an intercept, or gamma and p."
        )
    return positive("mu", mu)


def ordered(L: float, mu: float | None) -> tuple[float, float]:
    """L and mu as floats, refused unless 0 < mu <= L (Assumption 3.1 of the paper)."""
    L, mu = positive("L", L), known(mu)
    if mu > L * (1 + ROUNDING):
        raise InputError(f"mu = {mu:g} is larger than L = {L:g}, which is impossible; check whether they are swapped.")
    return L, min(mu, L)


def below_two_over_L(gamma: float, L: float) -> float:
    """gamma * L, refused unless 0 < gamma < 2/L: beyond it a gradient step expands."""
    gamma, L = positive("gamma", gamma), positive("L", L)
    if gamma * L >= 2:
        raise InputError(f"gamma = {gamma:g} is too large: it must be below 2/L = {2 / L:g}. Use 1/L = {1 / L:g}.")
    return gamma * L


P = ParamSpec("P")
R = TypeVar("R")
DOMAIN: dict[str, Callable[[str, Any], Any]] = {
    **dict.fromkeys(("gamma", "gamma0", "L", "L_b", "L_max", "tau", "norm2", "lmin_plus", "delta", "lmax"), positive),
    **dict.fromkeys(("p", "prob", "share", "zeta", "chi", "chi_a", "a", "rho"), probability),
    **dict.fromkeys(("omega", "decay"), nonnegative),
    **dict.fromkeys(("n", "m", "b", "c", "s"), whole),
    "k": functools.partial(whole, least=0),
    "mu": lambda name, value: known(value),
    "eps": lambda name, value: accuracy(value),
}
"""What the arguments of a formula must be, by their names."""


def theorem(formula: Callable[P, R]) -> Callable[P, R]:
    """A formula whose arguments are checked by their names, see ``DOMAIN``; L and mu also against each other."""
    signature = inspect.signature(formula)

    @functools.wraps(formula)
    def checked(*args: P.args, **given: P.kwargs) -> R:
        bound = signature.bind(*args, **given)
        values = bound.arguments
        if "L" in values and "mu" in values:
            values["L"], values["mu"] = ordered(values["L"], values["mu"])
        for name, value in values.items():
            is_left_out = value is None and signature.parameters[name].default is None
            if name in DOMAIN and not is_left_out:
                values[name] = DOMAIN[name](name, value)
        return formula(*bound.args, **bound.kwargs)

    return checked


@theorem
def kappa(L: float, mu: float) -> float:
    """The condition number L/mu."""
    if mu * 1e300 < L:
        raise InputError(f"kappa = L/mu overflows with L = {L:g} and mu = {mu:g}; give a larger l2.")
    return L / mu
