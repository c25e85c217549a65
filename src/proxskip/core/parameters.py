"""The parameters of methods: what each must be, by its letter, which means the same in all methods."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from proxskip.support import display
from proxskip.theory.numbers import nonnegative, positive, whole
from proxskip.types import Array, InputError

SMALLEST_P = 1e-8
"""The smallest probability of communicating: below it a round would hardly ever end."""
LARGEST_K = 10**8
"""The largest number of local steps in a round, likewise."""


def plain(value: Any) -> Any:
    """A number of numpy as one of Python; several of them as a tuple."""
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, list | tuple):
        return tuple(plain(v) for v in value)
    return value


def check_probability(name: str, value: float) -> None:
    """Refuse anything but a probability in (0, 1]."""
    if isinstance(value, bool) or not (isinstance(value, (int, float, np.number)) and 0 < value <= 1):
        raise InputError(f"{name} = {value!r} must lie in (0, 1].")
    if value < SMALLEST_P:
        raise InputError(f"{name} = {value:g} asks for {1 / value:.0e} steps at a time; take at least {SMALLEST_P:g}.")


def numbers_of(name: str, value: object) -> Array:
    """One number or several, as an array."""
    try:
        return np.atleast_1d(np.asarray(value, dtype=np.float64))
    except (TypeError, ValueError):
        raise InputError(f"{name} = {value!r} is not a number, nor one for each client.") from None


def check_all_positive(name: str, value: object) -> None:
    """A positive finite number, or several."""
    numbers = numbers_of(name, value)
    if not numbers.size or not np.isfinite(numbers).all() or numbers.min() <= 0:
        raise InputError(f"{name} = {display.short(value)} must be positive and finite.")


def check_none_negative(name: str, value: object) -> None:
    """A finite number of at least zero, or several."""
    numbers = numbers_of(name, value)
    if not numbers.size or not np.isfinite(numbers).all() or numbers.min() < 0:
        raise InputError(f"{name} = {display.short(value)} must be zero or positive, and finite.")


def check_switch(name: str, value: object) -> None:
    """True or False."""
    if not isinstance(value, bool):
        raise InputError(f"{name} = {display.short(value)} must be True or False.")


def check_count(name: str, value: object) -> None:
    """A whole number of at least one, or several."""
    numbers_of(name, value)
    counts = np.atleast_1d(np.asarray(value))
    if not counts.size or counts.dtype.kind not in "iu" or counts.min() < 1:
        raise InputError(f"{name} = {value} must be a whole number of at least 1, or one for each client.")
    if counts.max() > LARGEST_K:
        raise InputError(f"{name} = {int(counts.max())} is too many steps at a time; take at most {LARGEST_K:,}.")


CHECKS: dict[str, Callable[[str, Any], object]] = {
    **dict.fromkeys(("gamma", "tau", "L", "pi"), check_all_positive),
    **dict.fromkeys(("beta", "rho", "omega", "a", "q"), check_none_negative),
    **dict.fromkeys(("p", "p_e"), check_probability),
    **dict.fromkeys(("chi", "eta_g", "c", "sigma", "theta"), positive),
    **dict.fromkeys(("mu", "mu_g", "decay"), nonnegative),
    **dict.fromkeys(("s", "k"), whole),
    **dict.fromkeys(("own_steps", "balance"), check_switch),
    "K": check_count,
}
"""What a parameter must be, by its letter, which means the same in all methods."""
