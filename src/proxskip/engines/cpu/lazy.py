"""Client halves of large cohorts in one parallel kernel, by vectors that record what is to be computed.

Most client halves only add and subtract vectors and scale them by numbers. For thousands of clients numpy would walk
over all vectors once per operation. Here the half gets ``Lazy`` vectors, each a step  a + factor * b  yet to be taken.
A ``Sheet`` turns them into a program of one line per step, and ``lazy_kernels.evaluate`` runs it on a few clients at a
time while their rows are in the cache. Operations and their order are numpy's, so the bytes are too. A half that does
anything else with its vectors gets a ``TypeError`` or ``AttributeError``, and the engine runs it again on plain arrays.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from proxskip.engines.cpu.lazy_kernels import KEPT, LINE, ROW, STACK, evaluate
from proxskip.links.sums import SUM_BLOCK, sum_in_order
from proxskip.types import Array, Indices

MAX_ARRAYS = 8
"""The arrays, and results, of one kernel call: tuples are padded to this length, so one compilation serves all."""
MEMBERS_OF_A_PIECE = 32
"""The fewest members that a thread takes."""
NUMBERS_AT_A_TIME = 2048
"""Numbers per line of a program, so that its result stays in the L1 cache."""


class Lazy:
    """A ``(c, d)`` stack that is yet to be computed.

    ``value`` is an array or, if ``kind`` is LINE, (a, factor, b, divides) for  a + factor * b  or  a + b / factor.
    Without a (None) it is the multiple alone.
    """

    __slots__ = ("kind", "value")
    __array_ufunc__ = None  # numpy leaves mixed operations to us
    ndim = 2

    def __init__(self, kind: int, value: Any) -> None:
        self.kind, self.value = kind, value

    @staticmethod
    def of(v: Any, kept: bool = False) -> Lazy:
        """A stack, or one row for all; ``kept`` for a row per client of the problem."""
        if isinstance(v, Lazy):
            return v
        if np.ndim(v) == 0 or v.shape[-1] == 1:
            raise TypeError("numbers cannot be added in a program.")
        return Lazy(ROW if v.ndim == 1 else KEPT if kept else STACK, v)

    def _plus(self, v: Any, sign: float) -> Lazy:
        """One line rounds the product and then the sum, as numpy does."""
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

    # without these numpy and Python would use the object instead of its numbers
    __array__ = __bool__ = __eq__ = __ne__ = _refuse
    __hash__ = object.__hash__


class Sheet:
    """A program for the kernel: lines, operands, and where the results go.

    Args:
        d: the size of a vector.
        members: each member's row among the kept vectors.
        weights: rows of weights for ``sum``.
    """

    def __init__(self, d: int, members: Indices, weights: tuple[Array, ...] = ()) -> None:
        self.d, self.members, self.summed = d, members, []  # type: int, Indices, list[int]
        self.weights = np.array(weights, np.float64).reshape(-1, len(members))
        self.arrays: list[Any] = [np.full(d, -0.0)]  # adding a multiple to it keeps its bytes
        self.lines: list[list[int]] = []
        self.factors: list[Any] = []
        self.stored: list[tuple[int, int]] = []
        self.targets: list[Array] = []
        self.places: dict[int, tuple[Lazy, int]] = {}  # by id; keeping the vector keeps its id unique

    def store(self, v: Lazy, target: Array, kept: bool) -> None:
        """Compute v into ``target``, with a row per member or, if ``kept``, indexed by the members' rows."""
        self.stored.append((self._line(v), KEPT if kept else STACK))
        self.targets.append(target)

    def sum(self, v: Lazy) -> Callable[[], tuple[Array, ...]]:
        """Compute only the weighted sums of v; the returned function gives them once the work is done."""
        self.summed.append(self._line(v))
        k = len(self.summed) - 1
        return lambda: tuple(map(sum_in_order, self.totals[k]))

    def _line(self, v: Lazy) -> int:
        return self._place(v if v.kind == LINE else v * 1.0)[1]

    def _place(self, v: Lazy | None) -> tuple[int, int]:
        """Kind and place of an operand; each array and line is in the program once."""
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
        """``f(lo, hi)`` that computes pieces lo to hi-1 of the cohort, and the number of pieces."""
        if max(len(self.arrays), len(self.targets)) > MAX_ARRAYS:
            raise TypeError(f"a program has at most {MAX_ARRAYS} arrays.")
        nothing = [np.zeros((0, 0))] * MAX_ARRAYS
        # one type for the kernel: read-only arrays would be another
        arrays = [np.require(np.atleast_2d(v), np.float64, ["C", "W"]) for v in self.arrays]
        inputs, targets = tuple((arrays + nothing)[:MAX_ARRAYS]), tuple((self.targets + nothing)[:MAX_ARRAYS])
        factors = np.array([np.broadcast_to(np.ravel(v), (len(self.members),)) for v in self.factors], np.float64)
        lines, stored = np.array(self.lines, np.int64), np.array(self.stored, np.int64).reshape(-1, 2)
        size = SUM_BLOCK if self.summed else MEMBERS_OF_A_PIECE
        count, summed = -(-len(self.members) // size), np.array(self.summed, np.int64)
        self.totals = totals = np.empty((len(summed), len(self.weights), count, self.d))

        def pieces(lo: int, hi: int) -> None:
            # each call has its own, because several threads may run
            results = np.empty((len(lines), max(1, NUMBERS_AT_A_TIME // self.d), self.d))
            where = lines, factors, self.members, inputs, results, stored, targets
            evaluate(lo, hi, size, *where, summed, self.weights, totals)

        return pieces, count


def _number(v: Any) -> Any:
    """A factor: a number, or a column with one per member."""
    if isinstance(v, float) or np.ndim(v) == 0 or (np.ndim(v) == 2 and v.shape[1] == 1):
        return v
    raise TypeError("a program has no products of vectors.")


def as_stack(v: Array | float, shape: tuple[int, int]) -> Array:
    """v with a row per member; one that has them is not touched, because numpy's views take microseconds."""
    return v if isinstance(v, np.ndarray) and v.shape == shape else np.broadcast_to(v, shape)


def numbers(v: Any, members: int) -> list[float]:
    """One number per member, from a number or a column."""
    return [float(u) for u in np.broadcast_to(np.ravel(v), (members,))]
