"""The contract of operators with an inner solver, and the checks of every operator while it is used.

An inexact operator is called like any other: ``prox(x, t)`` returns a point y. In addition it promises
``|y - prox(x, t)| <= tolerance``, records the accuracy of each call, and starts each call where the last one ended.
Nothing is raised when an inner solver gives up: the call is recorded as a failure, with the accuracy it reached.

The certificate is a duality gap. The objective ``psi(y) + |y - x|^2/(2t)`` is 1/t-strongly convex, so a gap g between
the value at y and a lower bound on the minimum means ``|y - prox(x, t)| <= sqrt(2 t g)``. If y is the primal point of
the dual point behind the bound, it is ``sqrt(t g)``, since the dual objective is as strongly concave in that y.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np

from proxskip.prox.parts import Operator, as_point, name_of, norm
from proxskip.types import Array, InputError, Prox


class ProxWarning(UserWarning):
    """An operator does not behave like a prox."""


@dataclass(frozen=True, slots=True)
class Inner:
    """One call of an inner solver, with ``|y - prox(x, t)| <= accuracy`` certified; NaN if nothing is known.

    Args:
        accuracy: the certified bound.
        tolerance: what was asked for.
        iterations: of the call.
    """

    accuracy: float
    tolerance: float
    iterations: int

    @property
    def reached(self) -> bool:
        """Whether the accuracy is within the tolerance."""
        return self.accuracy <= self.tolerance


@runtime_checkable
class Inexact(Protocol):
    """The interface of a prox with an inner solver."""

    tolerance: float
    """The requested bound on ``|y - prox(x, t)|``; may be set between calls."""
    last: Inner | None
    """The last call."""
    worst: Inner | None
    """The least accurate call since the last reset."""
    calls: int
    failures: int
    """Calls that did not reach their tolerance."""

    def __call__(self, x: Array) -> float: ...
    def prox(self, x: Array, t: float) -> Array: ...
    def reset(self) -> None:
        """Forget the warm start and the record, as if no call had been made."""


class Iterative(Operator):
    """The base of inexact operators: a record and a warm start.

    A subclass calls ``_record`` at the end of a prox, and keeps in ``_kept`` what its next call starts from.
    """

    tolerance: float
    max_iterations: int
    warm: bool

    def _begin(self, tolerance: float, max_iterations: int, warm: bool) -> None:
        if not 0 < tolerance < math.inf:
            raise InputError(f"{type(self).__name__} needs a finite tolerance > 0, not tolerance = {tolerance}.")
        if max_iterations < 1:
            raise InputError(f"{type(self).__name__} needs max_iterations >= 1, not {max_iterations}.")
        self.tolerance = float(tolerance)
        self.max_iterations = int(max_iterations)
        self.warm = bool(warm)
        self.reset()

    def reset(self) -> None:
        """Forget the warm start and the record, as if no call had been made."""
        self.last: Inner | None = None
        self.worst: Inner | None = None
        self.calls = self.failures = 0
        self._kept: Any = None
        for part in self.psis:
            if isinstance(part, Inexact):
                part.reset()

    def _record(self, accuracy: float, iterations: int, reached: bool | None = None) -> None:
        self.last = Inner(float(accuracy), self.tolerance, int(iterations))
        self.calls += 1
        self.failures += not (self.last.reached if reached is None else reached)
        if self.worst is None or not self.last.accuracy <= self.worst.accuracy:  # also if it is NaN
            self.worst = self.last


class StoppingRule:
    """When an inner solver stops: at the tolerance, at the iteration limit, or when its accuracy no longer improves."""

    def __init__(self, tolerance: float, most: int):
        self.tolerance, self.most = tolerance, most
        self.iterations = 0
        self.accuracy = math.inf
        self.improved = 0
        self.mark = math.inf
        self.y: Array = np.empty(0)

    def done(self, accuracy: float, y: Array) -> bool:
        """Record the accuracy of y, keep the best point so far, and return whether to stop."""
        if accuracy < self.accuracy or not self.y.size:
            self.accuracy, self.y = accuracy, y.copy()
        # Stalled: no improvement by ten percent for a third of all iterations, and for at least 200.
        if self.accuracy <= 0.9 * self.mark:
            self.mark, self.improved = self.accuracy, self.iterations
        stalled = self.iterations - self.improved > max(200, self.iterations // 3)
        return self.accuracy <= self.tolerance or self.iterations >= self.most or stalled


ROUNDING = 1e-12
"""The error of an exact prox by rounding, relative to its points."""


class Checked(Operator):
    """psi with every prox checked: right shape, finite, and firmly nonexpansive against the last one at this step.

    The paper's lemma, ``|P(x) - P(y)|^2 + |Q(x) - Q(y)|^2 <= |x - y|^2`` with ``Q(x) = x - P(x)``, is the same as
    ``<P(x) - P(y), Q(x) - Q(y)> >= 0``. If it is -v, one of the two points is wrong by at least
    ``v / (2 |(P(x) - P(y)) - (Q(x) - Q(y))|)``. The largest such error is kept as ``error``; the first that neither
    rounding nor a certified accuracy explains, and that is larger than ``allowed``, raises a warning.

    Args:
        psi: the operator.
        allowed: an error that does not matter.
    """

    MAX_STEPS_KEPT = 4
    """For how many different steps t the last prox is kept."""

    def __init__(self, psi: Prox, allowed: float = 0.0):
        self.psi: Prox = psi.psi if isinstance(psi, Checked) else psi  # never checked twice
        self.allowed = allowed
        self._inner = self.psi if isinstance(self.psi, Inexact) else None
        self.reset()

    def reset(self) -> None:
        """Forget all earlier calls, also the record of psi."""
        self.error = 0.0
        self.said = ""
        """The warning that was given, if any."""
        self._earlier: dict[float, tuple[Array, Array, float]] = {}
        if self._inner is not None:
            self._inner.reset()

    def forgive(self) -> None:
        """Forget the errors so far, but not the calls."""
        self.error, self.said = 0.0, ""

    def __repr__(self) -> str:
        return repr(self.psi)

    def __call__(self, x: Array) -> float:
        return self.psi(x)

    def prox(self, x: Array, t: float) -> Array:
        x = as_point(x, t)
        before = x.copy()
        P = np.asarray(self.psi.prox(x, t))
        if not np.array_equal(before, x, equal_nan=True):
            raise InputError(f"the prox of {name_of(self.psi)} changes the x it is given; let it work on a copy.")
        if P.shape != x.shape:
            raise InputError(f"the prox of {name_of(self.psi)} gave shape {P.shape} for a point of shape {x.shape}.")
        if not (math.isfinite(np.vdot(P, P)) or np.isfinite(P).all()):  # the first test is fast, but may overflow
            known = "" if np.isfinite(x).all() else ", at a point that is not finite itself"
            raise InputError(f"the prox of {name_of(self.psi)} gave numbers that are not finite{known}.")
        last = None if self._inner is None else self._inner.last
        self._compare(before, P, t, 0.0 if last is None else last.accuracy)
        return P

    def _compare(self, x: Array, P: Array, t: float, certified: float) -> None:
        """Compare P with the last value at the same step, and keep it for the next comparison."""
        before = self._earlier.pop(t, None)
        if before is not None:
            y, R, also = before
            dP, dx = P - R, x - y
            v = -float(np.vdot(dP, dx - dP))  # <P(x) - P(y), Q(x) - Q(y)> = -v must not be negative
            if v > 0:
                error = v / (2 * norm(2 * dP - dx))
                self.error = max(self.error, error)
                explained = ROUNDING * (norm(x) + norm(y)) + certified + also
                if error > explained + self.allowed and not self.said:
                    self.said = (
                        f"{name_of(self.psi)} is not firmly nonexpansive as a prox must be: at step {t:.3g} one of its "
                        f"last two values is off by {error:.2g} at least, because its formula is wrong or its inner "
                        "solver stops early."
                    )
                    warnings.warn(self.said, ProxWarning, stacklevel=3)
        # the oldest step goes; a step that is used again moved to the end
        elif len(self._earlier) >= self.MAX_STEPS_KEPT:
            del self._earlier[next(iter(self._earlier))]
        self._earlier[t] = (x, P.copy(), certified)


def accuracy_of(psi: Prox | None) -> float:
    """The largest certified error of the prox of psi so far: 0 for a closed form, NaN if nothing is known."""
    psi = psi.psi if isinstance(psi, Checked) else psi
    if isinstance(psi, Operator) and any(math.isnan(accuracy_of(part)) for part in psi.psis):
        return math.nan
    if isinstance(psi, Inexact):
        return 0.0 if psi.worst is None else psi.worst.accuracy
    return 0.0 if isinstance(psi, Operator) and psi._exact else math.nan


def inner_state(psi: Prox | None) -> Inexact | None:
    """psi if it is an inexact operator (without its checks), otherwise None; blocks may all be exact."""
    psi = psi.psi if isinstance(psi, Checked) else psi
    if not isinstance(psi, Inexact) or accuracy_of(psi) == psi.tolerance == 0.0:
        return None
    return psi
