"""Operators from a text, as the command line and run folders write them: ``l1:0.01``, ``tv2d:0.1,28x28``."""

from __future__ import annotations

import re
from collections.abc import Callable

from proxskip.prox import blocks, norms, sets, spectral, tv
from proxskip.types import InputError, Prox


def _groups(d: int, lam: float, size: float) -> Prox:
    size = _whole(size, "SIZE")
    if d % size:
        raise InputError(f"groups of {size} do not divide {d} unknowns; choose a divisor of {d}.")
    return norms.GroupL1(lam, (size,) * (d // size))


def _whole(value: float, name: str) -> int:
    if not (value >= 1 and value == int(value)):
        raise InputError(f"{name} = {value:g} must be a whole number of at least 1.")
    return int(value)


FORMS: dict[str, tuple[str, Callable[..., Prox]]] = {
    "l1": ("l1:LAM", norms.L1),
    "l2": ("l2:LAM", norms.L2),
    "squared-l2": ("squared-l2:LAM", norms.SquaredL2),
    "elastic-net": ("elastic-net:L1,L2", norms.ElasticNet),
    "huber": ("huber:LAM,ALPHA", norms.Huber),
    "group": ("group:LAM,SIZE", _groups),
    "tv": ("tv:LAM[,L1]", tv.TV1D),
    "tv2d": ("tv2d:LAM,HxW", tv.TV2D),
    "nuclear": ("nuclear:LAM,HxW", spectral.NuclearNorm),
    "nonnegative": ("nonnegative", sets.NonNegative),
    "box": ("box:LO,HI", sets.Box),
    "simplex": ("simplex[:R]", sets.Simplex),
    "l1-ball": ("l1-ball[:R]", sets.L1Ball),
    "l2-ball": ("l2-ball[:R]", sets.L2Ball),
    "nuclear-ball": ("nuclear-ball:R,HxW", spectral.nuclear_ball),
    "spectral-ball": ("spectral-ball:R,HxW", spectral.spectral_ball),
    "psd": ("psd:N", lambda n: spectral.psd(_whole(n, "N"))),
    "consensus": ("consensus:N", lambda n: sets.Consensus(_whole(n, "N"))),
    "singleton": ("singleton", sets.Singleton),
    "zero": ("zero", norms.Zero),
}
"""How each operator is written, with optional arguments in brackets, and what makes it of its numbers."""
_SHAPE = re.compile(r"([0-9]{1,9})x([0-9]{1,9})")
_NAMES = re.compile(r"[A-Z]\w*")
"""The arguments of a form."""
_PLUS = re.compile(r"\+(?=[a-z])")
"""Between operators, and not in 1e+3."""


def forms() -> str:
    """How to write each of them."""
    return ", ".join(form for form, _ in FORMS.values()) + "; several joined by +"


def check(text: str) -> None:
    """Refuse what is wrong whatever the number of unknowns."""
    for part in _PLUS.split(text):
        make, arguments = _arguments(part)
        if make is not _groups:
            make(*arguments)


def parse(text: str, d: int) -> Prox:
    """The operator for d unknowns; several, joined by ``+``, are their sum.

    >>> parse("l1:0.5", 3), parse("group:0.1,2", 4)
    (L1(lam=0.5), GroupL1(lam=0.1, groups=(2, 2)))
    """
    operators = []
    for part in _PLUS.split(text):
        make, arguments = _arguments(part)
        if any(isinstance(v, tuple) and v[0] * v[1] != d for v in arguments):
            raise InputError(f'psi "{part}" does not fit the {d} unknowns of the problem; change its shape.')
        operators.append(make(d, *arguments) if make is _groups else make(*arguments))
    return operators[0] if len(operators) == 1 else blocks.Sum(*operators)


def _arguments(text: str) -> tuple[Callable[..., Prox], list[object]]:
    name, _, rest = text.partition(":")
    if name not in FORMS:
        raise InputError(f'psi "{text}" is not known; use {forms()}.')
    form, make = FORMS[name]
    names = _NAMES.findall(form)
    least, parts = len(_NAMES.findall(form.partition("[")[0])), rest.split(",") if rest else []
    if not least <= len(parts) <= len(names):
        raise InputError(f'psi "{text}" has {len(parts)} numbers; write {form}.')
    return make, [_argument(part, text, form, kind) for part, kind in zip(parts, names, strict=False)]


def _argument(part: str, text: str, form: str, kind: str) -> float | tuple[int, int]:
    if kind == "HxW":
        shape = _SHAPE.fullmatch(part)
        if shape is None:
            raise InputError(f'psi "{text}" needs a shape such as 28x28; write {form}.')
        return int(shape[1]), int(shape[2])
    try:
        return float(part)
    except ValueError:
        raise InputError(f'psi "{text}" holds {part!r:.40}, which is not a number; write {form}.') from None
