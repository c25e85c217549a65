"""Operators of other packages: pyproximal, and anything with psi(x) and psi.prox(x, t)."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from proxskip.prox.contract import Inexact, ProxWarning
from proxskip.prox.parts import Operator, as_point, max_abs, name_of
from proxskip.types import Array, InputError, Prox

NOT_CONVEX = frozenset({
    "ETP", "Geman", "L0", "L01Ball", "L0Ball", "L10Ball", "Log", "Log1", "QuadraticEnvelopeCard", "RED", "SCAD",
    "QuadraticEnvelopeCardIndicator", "QuadraticEnvelopeRankL2", "RelaxedMumfordShah", "SingularValuePenalty",
})  # fmt: skip
"""Operators of pyproximal 0.13 whose function is not convex (RED is no function at all)."""


@dataclass(frozen=True, slots=True)
class Adapted(Operator):
    """An operator of another package. A bool as its value means inside or outside, and its prox must be real.

    The accuracy of its prox is unknown; ``Checked`` detects some errors. Operators of pyproximal see flat copies.
    """

    _exact: ClassVar[bool] = False
    operator: Any

    def _seen(self, x: Array) -> Array:
        x = np.array(x, dtype=np.float64)
        return x.ravel() if _is_pyproximal(self.operator) else x

    def __call__(self, x: Array) -> float:
        return _value(self.operator, self._seen(x))

    def prox(self, x: Array, t: float) -> Array:
        flat = self._seen(as_point(x, t))
        # a copy, since some operators work in place
        result = np.asarray(self.operator.prox(flat.copy(), t))
        if result.shape != flat.shape or (np.iscomplexobj(result) and max_abs(result.imag) > 1e-9 * max_abs(result)):
            kind = f"{result.dtype} of shape {result.shape}"
            raise InputError(f"the prox of {name_of(self)} gave {kind}; it must give {flat.size} real numbers.")
        return result.real.astype(np.float64).reshape(np.shape(x))


def _value(operator: Any, x: Array) -> float:
    """psi(x), with True and False as 0 and infinity; the VStack of pyproximal would count them as 1 and 0."""
    if _is_pyproximal(operator) and type(operator).__name__ == "VStack":
        if hasattr(operator, "restr"):  # parts given by restriction operators, otherwise by sizes
            parts = [restriction.matvec(x) for restriction in operator.restr]
        else:
            parts = np.split(x, operator.xend[:-1])
        return math.fsum(_value(op, part) for op, part in zip(operator.ops, parts, strict=True))
    value = operator(x)
    if isinstance(value, (bool, np.bool_)):
        return 0.0 if value else math.inf
    is_number = np.size(value) == 1 and np.asarray(value).dtype.kind in "iufc"
    if not is_number or (np.iscomplexobj(value) and max_abs(np.imag(value)) > 0):
        raise InputError(f"{type(operator).__name__} gave {value!r} where psi(x) is one real number.")
    return float(np.real(np.asarray(value)).item())


def _is_pyproximal(obj: object) -> bool:
    return type(obj).__module__.partition(".")[0] == "pyproximal"


def as_prox(obj: object) -> Prox | None:
    """An operator from ``obj``: ours and those with the contract of ``Inexact`` as they are, others as ``Adapted``.

    >>> from proxskip.prox import L1
    >>> as_prox(L1(0.5)).prox(np.array([2.0, -0.1]), 1.0)
    array([1.5, 0. ])
    """
    if isinstance(obj, type):
        raise InputError(f"psi is the class {obj.__name__} and not an operator; write {obj.__name__}(...).")
    if obj is None or isinstance(obj, (Operator, Inexact)):
        return obj
    if not callable(getattr(obj, "prox", None)):
        raise InputError(f"psi needs a method prox(x, t), which {type(obj).__name__} does not have.")
    if not callable(obj):
        raise InputError(f"psi must give its value as psi(x), but {type(obj).__name__} cannot be called.")
    _known_faults(obj)
    return Adapted(obj)


def _known_faults(obj: Any) -> None:
    """Refuse the one wrong operator of pyproximal and warn about those that are not convex, also inside sums."""
    if not _is_pyproximal(obj):
        return
    # sums and stacks hold their parts in ops, wrappers in f
    for part in (*getattr(obj, "ops", ()), getattr(obj, "f", None)):
        _known_faults(part)
    name = type(obj).__name__
    if name == "Huber":  # refused only in versions with the error
        a = float(obj.alpha)
        if not abs(float(obj.prox(np.array([1.5 * a]), a)[0]) - 0.75 * a) <= 1e-6 * a:
            raise InputError("the prox of this pyproximal's Huber is wrong; use proxskip.prox.Huber.")
    if name in NOT_CONVEX:
        warnings.warn(f"{name} is not convex, so no theorem here covers its prox.", ProxWarning, stacklevel=4)
