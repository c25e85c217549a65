"""Operators from a text, as the command line and run folders write them: ``l1:0.01``, ``tv2d:0.1,28x28``."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from proxskip.prox import blocks, norms, sets, spectral, tv
from proxskip.types import InputError, Prox


@dataclass(frozen=True, slots=True)
class _Form:
    """How an operator is written, and what makes it: of its numbers and, if ``sized``, the number of unknowns."""

    words: str
    make: Callable[..., Prox]
    least: int
    """The arguments that cannot be left out."""
    sized: bool = False

    @property
    def most(self) -> int:
        """All arguments."""
        return self.words.count(",") + (":" in self.words)


def _groups(d: int, lam: float, size: float) -> Prox:
    size = _whole(size, "SIZE")
    if d % size:
        raise InputError(f"groups of {size} do not divide {d} unknowns; choose a divisor of {d}.")
    return norms.GroupL1(lam, (size,) * (d // size))


def _whole(value: float, name: str) -> int:
    if not (value >= 1 and value == int(value)):
        raise InputError(f"{name} = {value:g} must be a whole number of at least 1.")
    return int(value)


FORMS: dict[str, _Form] = {
    "l1": _Form("l1:LAM", norms.L1, 1),
    "l2": _Form("l2:LAM", norms.L2, 1),
    "squared-l2": _Form("squared-l2:LAM", norms.SquaredL2, 1),
    "elastic-net": _Form("elastic-net:L1,L2", norms.ElasticNet, 2),
    "huber": _Form("huber:LAM,ALPHA", norms.Huber, 2),
    "group": _Form("group:LAM,SIZE", _groups, 2, sized=True),
    "tv": _Form("tv:LAM,L1", tv.TV1D, 1),
    "tv2d": _Form("tv2d:LAM,HxW", tv.TV2D, 2),
    "nuclear": _Form("nuclear:LAM,HxW", spectral.NuclearNorm, 2),
    "nonnegative": _Form("nonnegative", sets.NonNegative, 0),
    "box": _Form("box:LO,HI", sets.Box, 2),
    "simplex": _Form("simplex:R", sets.Simplex, 0),
    "l1-ball": _Form("l1-ball:R", sets.L1Ball, 0),
    "l2-ball": _Form("l2-ball:R", sets.L2Ball, 0),
    "nuclear-ball": _Form("nuclear-ball:R,HxW", spectral.nuclear_ball, 2),
    "spectral-ball": _Form("spectral-ball:R,HxW", spectral.spectral_ball, 2),
    "psd": _Form("psd:N", lambda n: spectral.psd(_whole(n, "N")), 1),
    "consensus": _Form("consensus:N", lambda n: sets.Consensus(_whole(n, "N")), 1),
    "singleton": _Form("singleton", sets.Singleton, 0),
    "zero": _Form("zero", norms.Zero, 0),
}
"""All operators that a text can name."""
_SHAPE = re.compile(r"([0-9]{1,9})x([0-9]{1,9})")
_PLUS = re.compile(r"\+(?=[a-z])")
"""Between operators, and not in 1e+3."""


def forms() -> str:
    """How to write each of them; arguments that may be left out in brackets."""
    return ", ".join(_shown(form) for form in FORMS.values()) + "; several joined by +"


def _shown(form: _Form) -> str:
    name, colon, rest = form.words.partition(":")
    parts = rest.split(",") if rest else []
    needed, more = ",".join(parts[: form.least]), ",".join(parts[form.least :])
    return name + (colon + needed if needed else "") + (f"[{',' if needed else ':'}{more}]" if more else "")


def check(text: str) -> None:
    """Refuse what is wrong whatever the number of unknowns."""
    for part in _PLUS.split(text):
        form, arguments = _arguments(part)
        if not form.sized:
            form.make(*arguments)


def parse(text: str, d: int) -> Prox:
    """The operator for d unknowns; several, joined by ``+``, are their sum.

    >>> parse("l1:0.5", 3), parse("group:0.1,2", 4)
    (L1(lam=0.5), GroupL1(lam=0.1, groups=(2, 2)))
    """
    operators = []
    for part in _PLUS.split(text):
        form, arguments = _arguments(part)
        if any(isinstance(v, tuple) and v[0] * v[1] != d for v in arguments):
            raise InputError(f'psi "{part}" is for another number of unknowns; here there are {d}.')
        operators.append(form.make(d, *arguments) if form.sized else form.make(*arguments))
    return operators[0] if len(operators) == 1 else blocks.Sum(*operators)


def _arguments(text: str) -> tuple[_Form, list[Any]]:
    name, _, rest = text.partition(":")
    if name not in FORMS:
        raise InputError(f'psi "{text}" is not known; use {forms()}.')
    form = FORMS[name]
    parts = rest.split(",") if rest else []
    if not form.least <= len(parts) <= form.most:
        raise InputError(f'psi "{text}" has {len(parts)} numbers; write {_shown(form)}.')
    return form, [_argument(part, text, form, k) for k, part in enumerate(parts)]


def _argument(part: str, text: str, form: _Form, place: int) -> float | tuple[int, int]:
    names = form.words.partition(":")[2].split(",")
    shape = _SHAPE.fullmatch(part)
    if names[place] == "HxW":
        if shape is None:
            raise InputError(f'psi "{text}" needs a shape such as 28x28; write {_shown(form)}.')
        return int(shape[1]), int(shape[2])
    try:
        return float(part)
    except ValueError:
        raise InputError(f'psi "{text}" holds something that is not a number; write {_shown(form)}.') from None
