"""Client halves of large cohorts in one parallel kernel: arrays that remember ``+ - * /`` instead of doing them.

A client half uses only ``+ - * /`` on its vectors. For a cohort of thousands of clients numpy would walk over all of
their vectors once for every sign. Here the half is given ``Lazy`` vectors, which write down what is asked of them; then
one kernel walks over the clients, a row at a time, and does all of it while the row is in the cache. The operations and
their order are numpy's, so the bytes are too.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from proxskip.engines import kernels
from proxskip.seam import Array, Indices

STACK, KEPT, ROW, TEMPORARY, COLUMN, NUMBER = range(6)
"""Kinds of operands: see ``kernels.evaluate``."""
ADD, SUBTRACT, MULTIPLY, DIVIDE = range(4)
MOST = 8
"""Arrays, and results, that one kernel call takes."""


class Lazy:
    """A ``(c, d)`` stack that is yet to be computed: a tree of operations over arrays."""

    __array_ufunc__ = None  # numpy leaves mixed operations to us
    __slots__ = ("kind", "left", "op", "right", "value")
    ndim = 2

    def __init__(self, kind: int, value: Any = None, op: int = 0, left: Any = None, right: Any = None) -> None:
        self.kind, self.value, self.op, self.left, self.right = kind, value, op, left, right

    @staticmethod
    def of(v: Any, kept: bool = False) -> Lazy:
        """Anything that may stand in a half as a leaf: a stack, one row for all, one column, or a number."""
        if isinstance(v, Lazy):
            return v
        if np.ndim(v) == 0:
            return Lazy(NUMBER, float(v))
        if np.ndim(v) == 1:
            return Lazy(ROW, v)
        if v.shape[1] == 1:
            return Lazy(COLUMN, v)
        return Lazy(KEPT if kept else STACK, v)

    def _with(self, op: int, other: Any, swapped: bool = False) -> Lazy:
        a, b = self, Lazy.of(other)
        return Lazy(TEMPORARY, None, op, b, a) if swapped else Lazy(TEMPORARY, None, op, a, b)

    def __add__(self, other: Any) -> Lazy:
        return self._with(ADD, other)

    def __radd__(self, other: Any) -> Lazy:
        return self._with(ADD, other, swapped=True)

    def __sub__(self, other: Any) -> Lazy:
        return self._with(SUBTRACT, other)

    def __rsub__(self, other: Any) -> Lazy:
        return self._with(SUBTRACT, other, swapped=True)

    def __mul__(self, other: Any) -> Lazy:
        return self._with(MULTIPLY, other)

    def __rmul__(self, other: Any) -> Lazy:
        return self._with(MULTIPLY, other, swapped=True)

    def __truediv__(self, other: Any) -> Lazy:
        return self._with(DIVIDE, other)

    def __rtruediv__(self, other: Any) -> Lazy:
        return self._with(DIVIDE, other, swapped=True)

    def __neg__(self) -> Lazy:
        return self._with(MULTIPLY, -1.0)


class Sheet:
    """A program for the kernel: its lines, their operands, and where the results go."""

    def __init__(self, c: int, d: int, members: Indices) -> None:
        self.c, self.d, self.members = c, d, members
        self.lines: list[tuple[int, ...]] = []
        self.arrays: list[Any] = []
        self.numbers: list[float] = []
        self.source: list[int] = []
        self.out: list[Array] = []
        self.own: list[bool] = []

    def store(self, v: Lazy, out: Array, kept: bool) -> None:
        """Compute v into ``out``, whose rows are the members' own numbers if ``kept``, else their places."""
        if v.kind != TEMPORARY:
            v = v * 1.0
        self.source.append(self._write(v)[1])
        self.out.append(out)
        self.own.append(kept)

    def _write(self, v: Lazy) -> tuple[int, int]:
        if v.kind == TEMPORARY:
            left, right = self._write(v.left), self._write(v.right)
            self.lines.append((v.op, len(self.lines), *left, *right))
            return TEMPORARY, len(self.lines) - 1
        known = self.numbers if v.kind == NUMBER else self.arrays
        at = next((k for k, u in enumerate(known) if u is v.value), len(known))
        if at == len(known):
            known.append(v.value)
        return v.kind, at

    @property
    def fits(self) -> bool:
        """Whether the kernel can take it."""
        return max(len(self.arrays), len(self.out)) <= MOST

    def work(self) -> Any:
        """``f(lo, hi)`` does clients lo to hi-1."""
        nothing = [np.zeros((0, 0))] * MOST
        arrays = [np.ascontiguousarray(np.atleast_2d(v), dtype=np.float64) for v in self.arrays]
        numbers = np.array([*self.numbers, 0.0])[:, None]
        lines, own = np.array(self.lines, dtype=np.int64), np.array(self.own)
        source = np.array(self.source, dtype=np.int64)
        given, made = tuple((arrays + nothing)[:MOST]), tuple((self.out + nothing)[:MOST])

        def rows(lo: int, hi: int) -> None:
            temporary = np.empty((len(self.lines), kernels.LAZY_ROWS, self.d))
            kernels.evaluate(lo, hi, lines, self.members, given, numbers, made, own, source, temporary)

        return rows
