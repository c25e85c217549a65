"""Client halves of large cohorts in one parallel kernel: arrays that remember ``+ - * /`` instead of doing them.

Most client halves use only ``+ - * /`` on their vectors. For a cohort of thousands of clients numpy would walk over all
of their vectors once for every sign. Here the half is given ``Lazy`` vectors, which build a tree of the operations
asked of them. A ``Sheet`` turns the trees into a program, one line per operation, and ``lazy_kernels.evaluate`` runs it
on a few clients at a time while their rows are in the cache. The operations and their order are numpy's, so the bytes
are too. A half that does anything else with its vectors gets a ``TypeError`` or an ``AttributeError``, and the engine
runs it again on plain arrays.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from proxskip.engines.cpu import lazy_kernels
from proxskip.engines.cpu.lazy_kernels import (
    ADD,
    ADD_DIFFERENCE,
    ADD_MULTIPLE,
    COLUMN,
    DIVIDE,
    KEPT,
    MULTIPLY,
    NUMBER,
    RESULT,
    ROW,
    STACK,
    SUBTRACT,
    SUBTRACT_MULTIPLE,
    SUM,
    TEMPORARY,
)
from proxskip.links.sums import SUM_BLOCK, sum_in_order
from proxskip.types import Array, Indices

MAX_ARRAYS = 8
"""Arrays, and results, that one kernel call takes. The kernel is compiled for tuples of this length, padded if need be,
so that one compilation serves all programs."""
NOTHING, NO_TOTALS = np.zeros((0, 0)), np.zeros((0, 0, 0, 0))
NONE = (NUMBER, 0)
"""An operand that a line does not have."""
SIGNS = {"+": ADD, "-": SUBTRACT, "*": MULTIPLY, "/": DIVIDE}


class Lazy:
    """A ``(c, d)`` stack that is yet to be computed: a tree of operations over arrays.

    A leaf has a ``value``; an operation has the kind TEMPORARY and two operands.
    """

    __slots__ = ("kind", "left", "op", "right", "value")
    __array_ufunc__ = None  # numpy leaves mixed operations to us
    ndim = 2

    def __init__(self, kind: int, value: Any = None, op: int = 0, left: Any = None, right: Any = None) -> None:
        self.kind, self.value, self.op, self.left, self.right = kind, value, op, left, right

    @staticmethod
    def of(v: Any, kept: bool = False) -> Lazy:
        """Any operand of a half as a leaf: a stack, one row for all, one column, or a number."""
        if isinstance(v, Lazy):
            return v
        if isinstance(v, float) or np.ndim(v) == 0:  # numpy takes long to see that a float has no dimensions
            return Lazy(NUMBER, float(v))
        if np.ndim(v) == 1:
            return Lazy(ROW, np.asarray(v))
        if v.shape[1] == 1:
            return Lazy(COLUMN, v)
        return Lazy(KEPT if kept else STACK, v)

    def _with(self, sign: str, other: Any, swapped: bool = False) -> Lazy:
        """``self sign other``, or with ``swapped`` ``other sign self``: nothing is computed before ``evaluate``."""
        a, b = (Lazy.of(other), self) if swapped else (self, Lazy.of(other))
        return Lazy(TEMPORARY, None, SIGNS[sign], a, b)

    def __add__(self, other: Any) -> Lazy:
        return self._with("+", other)

    def __radd__(self, other: Any) -> Lazy:
        return self._with("+", other, swapped=True)

    def __sub__(self, other: Any) -> Lazy:
        return self._with("-", other)

    def __rsub__(self, other: Any) -> Lazy:
        return self._with("-", other, swapped=True)

    def __mul__(self, other: Any) -> Lazy:
        return self._with("*", other)

    def __rmul__(self, other: Any) -> Lazy:
        return self._with("*", other, swapped=True)

    def __truediv__(self, other: Any) -> Lazy:
        return self._with("/", other)

    def __rtruediv__(self, other: Any) -> Lazy:
        return self._with("/", other, swapped=True)

    def __neg__(self) -> Lazy:
        return self * -1.0

    def _refuse(self, *_: Any, **__: Any) -> Any:
        raise TypeError("only + - * / can be written down.")

    # without these numpy and Python would go on with the object, and not with its numbers
    __array__ = __bool__ = __eq__ = __ne__ = _refuse
    __hash__ = object.__hash__


@dataclass(frozen=True)
class Summed:
    """A stack of which only the weighted sums are computed: number k of those of a sheet."""

    sheet: Sheet
    k: int

    @property
    def sums(self) -> tuple[Array, ...]:
        """One for each row of weights, once the sheet's work is done."""
        return tuple(map(sum_in_order, self.sheet.totals[self.k]))


class Sheet:
    """A program for the kernel: its lines, their operands, and where the results go.

    Args:
        weights: of the members, for sums.
    """

    def __init__(self, d: int, members: Indices, weights: Sequence[Array] = ()) -> None:
        self.d, self.members = d, members
        self.weights = weights
        self.summed = 0
        self.lines: list[list[int]] = []
        self.arrays: list[Any] = []
        self.numbers: list[float] = []
        self.out: list[Array] = []
        self.final: list[tuple[int, int]] = []

    def store(self, v: Lazy, out: Array, kept: bool) -> None:
        """Compute v into ``out``, which has a row per client of the problem if ``kept``, else one per member."""
        self.final.append((self._own_line(v), KEPT if kept else STACK))
        self.out.append(out)

    def sum(self, v: Lazy) -> Summed:
        """Compute the weighted sums of v, and no stack."""
        kind, at = self._write(v)
        if kind == TEMPORARY and self.lines[at][0] in (ADD_MULTIPLE, SUBTRACT_MULTIPLE):
            self.lines[at][1:3] = [SUM, self.summed]
        else:
            self.lines.append([MULTIPLY, SUM, self.summed, kind, at, *NONE, *NONE, *NONE])
        self.summed += 1
        return Summed(self, self.summed - 1)

    def _own_line(self, v: Lazy) -> int:
        # a leaf is no line of its own; multiplied by one it is, with the same bytes
        return self._write(v if v.kind == TEMPORARY else v * 1.0)[1]

    def _write(self, v: Lazy) -> tuple[int, int]:
        if v.kind == TEMPORARY:
            return self._line(v)
        # each array and each number is given to the kernel once, however often it occurs
        known = self.numbers if v.kind == NUMBER else self.arrays
        at = next((k for k, u in enumerate(known) if u is v.value), len(known))
        if at == len(known):
            known.append(v.value)
        return v.kind, at

    def _line(self, v: Lazy) -> tuple[int, int]:
        """The operands' lines, then one line; for  a + s b,  a - s b  and  a + s (b - c)  one line does it all."""
        op, right, factor, last = v.op, v.right, NONE, NONE
        # numpy rounds the product and then the sum, and so does the line that does both: no bytes change
        if op in (ADD, SUBTRACT) and v.left.kind <= TEMPORARY and right.op == MULTIPLY and right.kind == TEMPORARY:
            number, vector = (right.left, right.right) if right.left.kind >= COLUMN else (right.right, right.left)
            if number.kind >= COLUMN and vector.kind <= TEMPORARY:
                # ADD -> ADD_MULTIPLE, SUBTRACT -> SUBTRACT_MULTIPLE
                op, right, factor = op + ADD_MULTIPLE, vector, self._write(number)
        between_vectors = right.op == SUBTRACT and max(right.left.kind, right.right.kind) <= TEMPORARY
        if op == ADD_MULTIPLE and between_vectors:
            op, right, last = ADD_DIFFERENCE, right.left, self._write(right.right)
        left, other = self._write(v.left), self._write(right)
        self.lines.append([op, TEMPORARY, len(self.lines), *left, *other, *factor, *last])
        return TEMPORARY, len(self.lines) - 1

    def _finished(self) -> list[list[int]]:
        """The lines, with results going into their arrays instead of temporaries.

        A result whose array a later line may still read, or that other lines use, is copied at the end instead.
        """
        lines, late = [list(line) for line in self.lines], []
        used = {u[k + 1] for u in lines for k in (3, 5, 9) if u[k] == TEMPORARY}
        for k, (line, kind) in enumerate(self.final):
            # a member's row is computed line by line, so that only lines after this one could still read the old row
            read_later = any(a is self.out[k] for a in self.arrays) and line < len(lines) - 1
            if read_later or line in used:
                late.append([MULTIPLY, kind, k, TEMPORARY, line, NUMBER, len(self.numbers), *NONE, *NONE])
            else:
                lines[line][1:3] = [kind, k]
                op, a = lines[line][0], lines[line][3:5]
                if op >= ADD_MULTIPLE and a[0] == kind and self.arrays[a[1]] is self.out[k]:
                    lines[line][3] = RESULT
        return lines + late

    def work(self) -> Any:
        """``f(lo, hi)`` does members lo to hi-1 or, if there are sums, blocks lo to hi-1 of SUM_BLOCK members."""
        if max(len(self.arrays), len(self.out)) > MAX_ARRAYS:
            raise TypeError(f"only {MAX_ARRAYS} arrays can be written down.")
        nothing = [NOTHING] * MAX_ARRAYS
        arrays = [np.ascontiguousarray(v if v.ndim == 2 else v[None], dtype=np.float64) for v in self.arrays]
        numbers = np.array([*self.numbers, 1.0])[:, None]  # the last, one, is the factor of late copies
        lines = np.array(self._finished(), dtype=np.int64)
        inputs, results = tuple((arrays + nothing)[:MAX_ARRAYS]), tuple((self.out + nothing)[:MAX_ARRAYS])

        # each call has temporaries of its own, since calls may run on several threads
        def rows(lo: int, hi: int) -> None:
            temporary = np.empty((len(self.lines), lazy_kernels.MEMBERS_AT_A_TIME, self.d))
            lazy_kernels.evaluate(lo, hi, lines, self.members, inputs, numbers, results, temporary, NOTHING, NO_TOTALS)

        def blocks(lo: int, hi: int) -> None:
            temporary = np.empty((len(self.lines), lazy_kernels.MEMBERS_AT_A_TIME, self.d))
            lazy_kernels.evaluate_sums(
                lo, hi, SUM_BLOCK, lines, self.members, inputs, numbers, results, temporary, weights, self.totals
            )

        if not self.summed:
            return rows
        weights = np.array(self.weights, np.float64)
        self.totals = np.empty((self.summed, len(weights), -(-len(self.members) // SUM_BLOCK), self.d))
        return blocks


def as_stack(v: Array | float, shape: tuple[int, int]) -> Array:
    """v with a row for each member; what has one already is not touched, because numpy's views take microseconds."""
    return v if isinstance(v, np.ndarray) and v.shape == shape else np.broadcast_to(v, shape)


def numbers(v: Any, members: int) -> list[float]:
    """One number for each member, of a number or a column."""
    return [float(u) for u in np.broadcast_to(np.ravel(v), (members,))]
