"""Sums of operators: over separate blocks of x, as exact as the parts, or of the same x, by an inner solver."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from proxskip.prox.adapted import as_prox
from proxskip.prox.contract import Inexact, Iterative, StoppingRule
from proxskip.prox.parts import as_point, norm, sized
from proxskip.types import Array, InputError, Prox


def _checked(name: str, psis: Sequence[object]) -> tuple[Prox, ...]:
    """The operators, adapted; at least one, and none of them None."""
    parts = [as_prox(psi) for psi in psis]
    if not parts:
        raise InputError(f"{name} needs at least one operator.")
    operators = [part for part in parts if part is not None]
    if len(operators) < len(parts):
        raise InputError(f"{name} was given None as an operator; use Zero() for a part without one.")
    return tuple(operators)


class Blocks(Iterative):
    """``sum_b psi_b(x_b)`` over consecutive blocks of x of the given sizes.

    Args:
        psis: the operators.
        sizes: the length of each block.

    >>> from proxskip.prox import L1, NonNegative
    >>> Blocks([L1(1.0), NonNegative()], [2, 1]).prox(np.array([3.0, -0.5, -7.0]), 1.0)
    array([2., 0., 0.])
    """

    def __init__(self, psis: Sequence[object], sizes: Sequence[int]):
        self.psis, self.sizes = _checked("Blocks", psis), tuple(int(size) for size in sizes)
        if len(self.psis) != len(self.sizes) or min(self.sizes) < 1:
            raise InputError(f"Blocks needs one size for each of its {len(self.psis)} operators, not {self.sizes}.")
        self._cuts = np.cumsum(self.sizes)[:-1]
        self._inner: list[Inexact] = [psi for psi in self.psis if isinstance(psi, Inexact)]
        self.reset()

    def __repr__(self) -> str:
        return f"Blocks({list(self.psis)}, {list(self.sizes)})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Blocks) and (self.psis, self.sizes) == (other.psis, other.sizes)

    def __hash__(self) -> int:
        return hash((self.psis, self.sizes))

    def __call__(self, x: Array) -> float:
        return math.fsum(psi(part) for psi, part in zip(self.psis, self._cut(x), strict=True))

    def prox(self, x: Array, t: float) -> Array:
        x = as_point(x, t)
        y, calls = [], []
        for psi, part in zip(self.psis, self._cut(x), strict=True):
            y.append(np.ravel(psi.prox(part, t)))
            if isinstance(psi, Inexact) and psi.last is not None:  # read at once: the same operator may occur twice
                calls.append(psi.last)
        # blocks do not overlap, so their errors are orthogonal
        accuracy = math.sqrt(math.fsum(call.accuracy**2 for call in calls))
        self._record(accuracy, sum(call.iterations for call in calls), all(call.reached for call in calls))
        return np.concatenate(y).reshape(x.shape)

    def _cut(self, x: Array) -> list[Array]:
        sized(self, x, sum(self.sizes))
        return np.split(np.ravel(x), self._cuts)

    @property
    def tolerance(self) -> float:
        """The accuracy requested of all blocks together; 0 if every block is exact."""
        return math.sqrt(math.fsum(psi.tolerance**2 for psi in self._inner))

    @tolerance.setter
    def tolerance(self, value: float) -> None:
        for psi in self._inner:
            # the squares of the errors of the blocks add up
            psi.tolerance = value / math.sqrt(len(self._inner))


class Sum(Iterative):
    """``psi_1(x) + ... + psi_m(x)``, of sets their intersection, by Dykstra's algorithm; inexact.

    In turn, the last change by each part is undone and its prox is taken again, which is block coordinate ascent on the
    dual (Boyle and Dykstra, 1986, for sets; Bauschke and Combettes, 2008, for functions). Let ``z_i`` be the change by
    part i, which is t times a subgradient at its last value ``y_i``, and ``y = x - sum_i z_i``. Then

        |y - prox|^2 <= sum_i  t psi_i(y) - t psi_i(y_i) - <z_i, y - y_i>

    if every psi_i is finite at y. A set that y misses contributes ``<z_i - z_i*, y_i - y>`` instead, where z_i* is the
    multiplier of the solution; its size is unknown, and twice the present one is used for it. Misses within rounding
    are not counted: y is then exact for sets that are moved by that little.

    Args:
        psis: the operators.
        tolerance: the accuracy that a call asks for.
        max_iterations: of one call.
        warm: start from the last call's solution.
        name: for sentences.
    """

    def __init__(
        self, *psis: object, tolerance: float = 1e-8, max_iterations: int = 10_000, warm: bool = True, name: str = "Sum"
    ):
        self.name = name
        self.psis = _checked(name, psis)
        self._begin(tolerance, max_iterations, warm)
        self._share()

    def _share(self) -> None:
        """Set the tolerances of inexact parts so that their errors fit into the tolerance of the sum."""
        for psi in self.psis:
            if isinstance(psi, Inexact):
                psi.tolerance = self.tolerance / (4 * len(self.psis))

    def __repr__(self) -> str:
        return f"{self.name}({', '.join(map(repr, self.psis))}, tolerance={self.tolerance})"

    def __call__(self, x: Array) -> float:
        return float(sum(psi(x) for psi in self.psis))

    def prox(self, x: Array, t: float) -> Array:
        x = as_point(x, t)
        if not np.isfinite(x).all():
            raise InputError(f"{self.name} was given a point with numbers that are not finite.")
        m = len(self.psis)
        # the changes of the last call, for points of this shape
        known = self.warm and self._kept is not None and self._kept.shape == (m, *x.shape)
        z = t * self._kept if known else np.zeros((m, *x.shape))
        seen = np.empty_like(z)
        y, rule = x - z.sum(axis=0), StoppingRule(self.tolerance, self.max_iterations)
        self._share()  # the tolerance may have been set since the last call
        done = False
        while not done:
            for i, psi in enumerate(self.psis):
                undone = y + z[i]  # y without the last change by part i
                y = psi.prox(undone, t)
                seen[i], z[i] = y, undone - y
            y = x - z.sum(axis=0)  # equal to the last y up to rounding, which would accumulate
            rule.iterations += 1
            done = rule.done(self._accuracy(y, seen, z, t), seen[-1])
        self._kept = z / t if self.warm else None
        self._record(rule.accuracy, rule.iterations)
        return rule.y

    def _accuracy(self, y: Array, seen: Array, z: Array, t: float) -> float:
        """The bound at ``y``, plus its distance to the returned point (the last ``seen``), plus inner errors."""
        total = 0.0
        inner = 0.0
        rounding = 1e-15 * (norm(y) + norm(z))
        for psi, at, change in zip(self.psis, seen, z, strict=True):
            if isinstance(psi, Inexact) and psi.last is not None:
                inner += psi.last.accuracy
            here, before = psi(y), psi(at)
            if math.isfinite(here) and math.isfinite(before) and (here, before) != (0.0, 0.0):
                total += max(t * (here - before) - float(np.vdot(change, y - at)), 0.0)
            else:
                missed = norm(y - at)
                weight = norm(change) or norm(z)  # a set without a multiplier may still get one
                total += 2 * weight * missed if missed > rounding else 0.0
        return math.sqrt(total) + norm(y - seen[-1]) + inner


def intersection(*sets: object, tolerance: float = 1e-8, max_iterations: int = 10_000, warm: bool = True) -> Sum:
    """The intersection of sets, as the ``Sum`` of their indicators.

    Args:
        sets: indicators, such as ``Box(0, 1)``.
        tolerance: the accuracy that a call asks for.
        max_iterations: of one call.
        warm: start from the last call's solution.
    """
    return Sum(*sets, tolerance=tolerance, max_iterations=max_iterations, warm=warm, name="intersection")
