"""Sums of stacks times numbers, written down: a mean of them needs none of them computed, and a sum is one pass."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from proxskip.engines.torch.fused_update import fused_update
from proxskip.engines.written import Written


class Combination(Written):
    """sum_k c_k v_k  with c_k a number or one for each client, and v_k a ``(D,)`` vector or a ``(c, D)`` stack.

    ``d`` is the number of unknowns; D is that of the layout, which has gaps of zeros.
    """

    __slots__ = ("d", "parts")

    def __init__(self, d: int, *parts: tuple[Any, Any]) -> None:
        self.d, self.parts = d, parts
        if (len(parts) > 1 or not _is_one(parts[0][0])) and self.flat:
            # at once: a run that is resumed has the sum alone, and must round as this one does
            self.parts = ((1.0, self.plain()),)

    @property
    def flat(self) -> bool:
        """Whether it is one vector for all clients."""
        return all(v.ndim == 1 and not isinstance(c, torch.Tensor) for c, v in self.parts)

    @property
    def shape(self) -> tuple[int, ...]:
        """As numpy's."""
        return (self.d,) if self.flat else (next(len(t) for p in self.parts for t in p if _is_stack(t)), self.d)

    def _with(self, sign: str, other: Any, swapped: bool = False) -> Combination:
        # a factor changes the coefficients alone; the product of two vectors, or a number over one, has to be computed
        if sign in "*/":
            if not isinstance(other, Combination) and not (swapped and sign == "/"):
                factor = other if isinstance(other, torch.Tensor) else float(other)
                return self._times(factor if sign == "*" else 1.0 / factor)
            mine, theirs = self.plain(), other.plain() if isinstance(other, Combination) else other
            a, b = (theirs, mine) if swapped else (mine, theirs)
            return Combination(self.d, (1.0, a * b if sign == "*" else a / b))
        if not isinstance(other, Combination):
            other = Combination(self.d, (1.0, torch.zeros_like(self.parts[0][1]) + other))
        a, b = (other, self) if swapped else (self, other)
        return Combination(self.d, *a.parts, *(b.parts if sign == "+" else b._times(-1.0).parts))

    def __neg__(self) -> Combination:
        return self._times(-1.0)

    def _times(self, factor: Any) -> Combination:
        return Combination(self.d, *((c * factor, v) for c, v in self.parts))

    def plain(self, out: Any = None) -> torch.Tensor:
        """The sum as a tensor, into ``out`` where it is given."""
        # stacks first: the total then has its final shape at once, and the other terms are added in place
        (c, v), *more = sorted(self.parts, key=lambda part: -part[1].ndim)
        if out is not None:
            out.copy_(v)
            total = out if _is_one(c) else out.mul_(c)
        elif not more and _is_one(c):
            found: torch.Tensor = v
            return found
        elif (whole := self._in_one_pass()) is not None:
            return whole
        elif more and _is_one(c) and isinstance(more[0][0], float):
            # a new tensor here and below, so that adding in place leaves the parts as they are
            total = torch.add(v, more[0][1], alpha=more[0][0])
            more = more[1:]
        else:
            total = v * c
        for k, u in more:
            if isinstance(k, float):
                total = total.add_(u, alpha=k) if total.ndim >= u.ndim else total + k * u
            else:
                total = total.addcmul_(u.expand(len(k), -1), k) if total.ndim > 1 else total + k * u
        return total

    def _in_one_pass(self) -> torch.Tensor | None:
        """A + b B + v  on a card that has a kernel for it, such as the update of h; None otherwise."""
        stacks, flat = ([p for p in self.parts if (p[1].ndim > 1) is several] for several in (True, False))
        if len(stacks) != 2 or not flat or stacks[0][1].device.type != "cuda":
            return None
        (a, A), (b, B) = sorted(stacks, key=lambda part: not _is_one(part[0]))
        if not (_is_one(a) and isinstance(b, float) and b and all(isinstance(c, float) for c, _ in flat)):
            return None
        # A + b B + v0 = A + b (B - v)  with  v = -v0/b,  which is the kernel's form
        v = sum(c / -b * u for c, u in flat)
        update = fused_update(A.device)
        return update.new(A, B, b, v) if update is not None and update.adds(A, B, v) else None

    def mean(self, w: torch.Tensor) -> torch.Tensor:
        """sum_j w_j (row j), without the rows: one pass over each stack."""
        total = 0.0
        for c, v in self.parts:
            weights = w if isinstance(c, float) else w * c[:, 0]
            # what was put aside on the host comes to the device for this pass alone
            v = v.to(w.device, non_blocking=True)
            # one read of the stack by a matrix-vector product: the weighted rows are never stored
            part = torch.mv(v.t(), weights) if v.ndim > 1 else v * weights.sum()
            total = total + (part * c if isinstance(c, float) else part)
        return total


def _is_one(c: Any) -> bool:
    return isinstance(c, float) and c == 1.0


def _is_stack(t: Any) -> bool:
    return isinstance(t, torch.Tensor) and t.ndim > 1


def column(values: Any, like: torch.Tensor) -> Any:
    """One number for each client as a ``(c, 1)`` tensor; a single number stays one."""
    if np.ndim(values) == 0:
        return float(values)
    return torch.as_tensor(np.asarray(values, dtype=np.float64)).to(like.device, like.dtype).reshape(-1, 1)
