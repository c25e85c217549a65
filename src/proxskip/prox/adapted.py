"""Operators of others: pyproximal, and anyone with the same two verbs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from proxskip.prox.parts import Operator, start
from proxskip.seam import Array, InputError, Prox


@dataclass(frozen=True, slots=True)
class Adapted(Operator):
    """Someone else's operator: it sees flat copies, a bool says inside or not, and its prox is checked."""

    operator: Any

    def __call__(self, x: Array) -> float:
        value = self.operator(np.array(x, dtype=np.float64).ravel())
        if isinstance(value, (bool, np.bool_)):
            return 0.0 if value else math.inf
        return float(value)

    def prox(self, x: Array, t: float) -> Array:
        flat = start(x, t).flatten()
        result = np.asarray(self.operator.prox(flat, t))
        if result.shape != flat.shape or np.iscomplexobj(result):
            raise InputError(
                f"the prox of {type(self.operator).__name__} gave {result.dtype} values of shape "
                f"{result.shape} where it must give {flat.size} real ones."
            )
        return result.astype(np.float64).reshape(np.shape(x))


def as_prox(obj: Any) -> Prox | None:
    """Ours as it is, anyone's with ``psi(x)`` and ``psi.prox(x, t)`` as ``Adapted``, None as None.

    >>> from proxskip.prox import L1
    >>> as_prox(L1(0.5)).prox(np.array([2.0, -0.1]), 1.0)
    array([1.5, 0. ])
    """
    if obj is None or isinstance(obj, Operator):
        return obj
    if isinstance(obj, type):
        raise InputError(f"psi is the class {obj.__name__} and not an operator; write {obj.__name__}(...).")
    if not callable(getattr(obj, "prox", None)):
        raise InputError(f"psi needs a method prox(x, t), which {type(obj).__name__} does not have.")
    if not callable(obj):
        raise InputError(f"psi must give its value as psi(x), but {type(obj).__name__} cannot be called.")
    return Adapted(obj)
