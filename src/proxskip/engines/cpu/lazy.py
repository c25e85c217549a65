"""Client halves of large cohorts in one parallel kernel: vectors that remember what is to be computed.

Most client halves only add and subtract vectors and multiply or divide them by numbers. For a cohort of thousands of
clients numpy would walk over all of their vectors once for every sign. Here the half is given ``Lazy`` vectors, each
of them a step  a + factor * b  that is yet to be taken. A ``Sheet`` turns these into a program of one line per step,
and ``lazy_kernels.evaluate`` runs it on a few clients at a time while their rows are in the cache. The operations and
their order are numpy's, so the bytes are too. A half that does anything else with its vectors gets a ``TypeError`` or
an ``AttributeError``, and the engine runs it again on plain arrays.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from proxskip.engines.cpu.lazy_kernels import KEPT, LINE, ROW, STACK, evaluate
from proxskip.links.sums import SUM_BLOCK, sum_in_order
from proxskip.types import Array, Indices

MAX_ARRAYS = 8
"""Arrays, and results, that one kernel call takes. The kernel is compiled for tuples of this length, padded if need be,
so that one compilation serves all programs."""
MEMBERS_OF_A_PIECE = 32
"""Those that a thread takes at least."""
NUMBERS_AT_A_TIME = 2048
"""Numbers that one line of a program works on before the next line: its result stays in a core's first cache."""


class Lazy:
    """A ``(c, d)`` stack that is yet to be computed.

    ``value`` is an array or, where ``kind`` is LINE, (a, factor, b, divides) for  a + factor * b  or  a + b / factor.
    Without a (None) it is the multiple alone.
    """

    __slots__ = ("kind", "value")
    __array_ufunc__ = None  # numpy leaves mixed operations to us
    ndim = 2

    def __init__(self, kind: int, value: Any) -> None:
        self.kind, self.value = kind, value

    @staticmethod
    def of(v: Any, kept: bool = False) -> Lazy:
        """A vector of a half: a stack, or one row for all; ``kept`` for a row per client of the problem."""
        if isinstance(v, Lazy):
            return v
        if np.ndim(v) == 0 or v.shape[-1] == 1:
            raise TypeError("numbers cannot be added in a program.")
        return Lazy(ROW if v.ndim == 1 else KEPT if kept else STACK, v)

    def _plus(self, v: Any, sign: float) -> Lazy:
        """One line does  a + factor * b : it rounds the product and then the sum, as numpy does."""
        b = Lazy.of(v)
        if b.kind == LINE and b.value[0] is None:
            _, factor, vector, divides = b.value
            return Lazy(LINE, (self, sign * factor, vector, divides))
        return Lazy(LINE, (self, sign, b, False))

    def __add__(self, v: Any) -> Lazy:
        return self._plus(v, 1.0)

    def __radd__(self, v: Any) -> Lazy:
        return Lazy.of(v)._plus(self, 1.0)

    def __sub__(self, v: Any) -> Lazy:
        return self._plus(v, -1.0)

    def __rsub__(self, v: Any) -> Lazy:
        return Lazy.of(v)._plus(self, -1.0)

    def __mul__(self, factor: Any) -> Lazy:
        return Lazy(LINE, (None, _number(factor), self, False))

    __rmul__ = __mul__

    def __truediv__(self, divisor: Any) -> Lazy:
        return Lazy(LINE, (None, _number(divisor), self, True))

    def __neg__(self) -> Lazy:
        return self * -1.0

    def _refuse(self, *_: Any, **__: Any) -> Any:
        raise TypeError("a program has only + - * /.")

    # without these numpy and Python would go on with the object, and not with its numbers
    __array__ = __bool__ = __eq__ = __ne__ = _refuse
    __hash__ = object.__hash__


class Sheet:
    """A program for the kernel: its lines, their operands, and where the results go.

    Args:
        d: the size of a vector.
        members: by member of the cohort, its row among the vectors that are kept.
        weights: rows of weights with which ``sum`` sums.
    """

    def __init__(self, d: int, members: Indices, weights: tuple[Array, ...] = ()) -> None:
        self.d, self.members, self.summed = d, members, []  # type: int, Indices, list[int]
        self.weights = np.array(weights, np.float64).reshape(-1, len(members))
        self.arrays: list[Any] = [np.full(d, -0.0)]  # a multiple alone is added to it, with the same bytes
        self.lines: list[list[int]] = []
        self.factors: list[Any] = []
        self.stored: list[tuple[int, int]] = []
        self.outs: list[Array] = []
        self.places: dict[int, tuple[Lazy, int]] = {}  # by id, with the vector, so that no other gets this id

    def store(self, v: Lazy, out: Array, kept: bool) -> None:
        """Compute v into ``out``, which has a row for each member or, if ``kept``, is read by the members' rows."""
        self.stored.append((self._line(v), KEPT if kept else STACK))
        self.outs.append(out)

    def sum(self, v: Lazy) -> Callable[[], tuple[Array, ...]]:
        """Compute the weighted sums of v, and no stack; the function returns them once the work is done."""
        self.summed.append(self._line(v))
        k = len(self.summed) - 1
        return lambda: tuple(map(sum_in_order, self.totals[k]))

    def _line(self, v: Lazy) -> int:
        return self._place(v if v.kind == LINE else v * 1.0)[1]

    def _place(self, v: Lazy | None) -> tuple[int, int]:
        """Kind and place of an operand; each array and each line is in the program once, however often it occurs."""
        if v is None:
            return ROW, 0
        if id(v) in self.places:
            return v.kind, self.places[id(v)][1]
        if v.kind == LINE:
            a, factor, b, divides = v.value
            self.lines.append([*self._place(a), *self._place(b), divides])
            self.factors.append(factor)
            place = len(self.lines) - 1
        else:
            place = next((k for k, array in enumerate(self.arrays) if array is v.value), len(self.arrays))
            self.arrays += [v.value] if place == len(self.arrays) else []
        self.places[id(v)] = v, place
        return v.kind, place

    def work(self) -> tuple[Any, int]:
        """``f(lo, hi)`` that does pieces lo to hi-1 of the cohort, and how many there are; sums are taken in blocks."""
        if max(len(self.arrays), len(self.outs)) > MAX_ARRAYS:
            raise TypeError(f"a program has at most {MAX_ARRAYS} arrays.")
        nothing = [np.zeros((0, 0))] * MAX_ARRAYS
        # of one type for the kernel: one that cannot be written to would be another
        arrays = [np.require(np.atleast_2d(v), np.float64, ["C", "W"]) for v in self.arrays]
        inputs, outs = tuple((arrays + nothing)[:MAX_ARRAYS]), tuple((self.outs + nothing)[:MAX_ARRAYS])
        factors = np.array([np.broadcast_to(np.ravel(v), (len(self.members),)) for v in self.factors], np.float64)
        lines, stored = np.array(self.lines, np.int64), np.array(self.stored, np.int64).reshape(-1, 2)
        size = SUM_BLOCK if self.summed else MEMBERS_OF_A_PIECE
        count, summed = -(-len(self.members) // size), np.array(self.summed, np.int64)
        self.totals = totals = np.empty((len(summed), len(self.weights), count, self.d))

        def pieces(lo: int, hi: int) -> None:
            # each call's own, since they may run on several threads
            results = np.empty((len(lines), max(1, NUMBERS_AT_A_TIME // self.d), self.d))
            where = lines, factors, self.members, inputs, results, stored, outs
            evaluate(lo, hi, size, *where, summed, self.weights, totals)

        return pieces, count


def _number(v: Any) -> Any:
    """A factor: a number, or a column with one for each member."""
    if isinstance(v, float) or np.ndim(v) == 0 or (np.ndim(v) == 2 and v.shape[1] == 1):
        return v
    raise TypeError("a program has no products of vectors.")


def as_stack(v: Array | float, shape: tuple[int, int]) -> Array:
    """v with a row for each member; what has one already is not touched, because numpy's views take microseconds."""
    return v if isinstance(v, np.ndarray) and v.shape == shape else np.broadcast_to(v, shape)


def numbers(v: Any, members: int) -> list[float]:
    """One number for each member, of a number or a column."""
    return [float(u) for u in np.broadcast_to(np.ravel(v), (members,))]
