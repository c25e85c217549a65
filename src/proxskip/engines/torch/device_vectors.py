"""Vectors of many clients on a device, with the operators that the halves of methods use."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np
import torch

from proxskip.engines.written import Written

_OPERATORS = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv}


class DeviceVectors(Written):
    """A ``(D,)`` vector for all clients, or a ``(c, D)`` stack; every operation gives a new one.

    ``d`` is the number of unknowns; D is that of the layout, which has gaps of zeros.
    """

    __slots__ = ("d", "tensor")

    def __init__(self, d: int, tensor: torch.Tensor) -> None:
        self.d, self.tensor = d, tensor

    @property
    def shape(self) -> tuple[int, ...]:
        """As numpy's."""
        return (*self.tensor.shape[:-1], self.d)

    def _with(self, sign: str, other: Any, swapped: bool = False) -> DeviceVectors:
        mine, theirs = self.tensor, other
        if isinstance(other, DeviceVectors):
            theirs = other.tensor
        elif not isinstance(other, torch.Tensor):
            theirs = float(other)
        a, b = (theirs, mine) if swapped else (mine, theirs)
        return DeviceVectors(self.d, _OPERATORS[sign](a, b))

    def __neg__(self) -> DeviceVectors:
        return DeviceVectors(self.d, -self.tensor)

    def sum(self, w: torch.Tensor) -> torch.Tensor:
        """sum_j w_j (row j), where the stack is."""
        # one read of the stack by a matrix-vector product: the weighted rows are never stored
        return torch.mv(self.tensor.t(), w.to(self.tensor.device))


def column(values: Any, like: torch.Tensor) -> Any:
    """One number for each client as a ``(c, 1)`` tensor; a single number stays one."""
    if np.ndim(values) == 0:
        return float(values)
    return torch.as_tensor(np.asarray(values, dtype=np.float64)).to(like.device, like.dtype).reshape(-1, 1)
