"""The clients of a problem, and what a problem asks of all of them at once.

``Clients`` asks one client after another, which suits any oracles. ``packed.Packed`` answers for rows of one store.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from proxskip.problems import oracles, spectrum
from proxskip.problems.glm import LinearModel
from proxskip.problems.quadratic import Quadratic
from proxskip.types import Array, Indices, InputError, Oracle


class Clients(Sequence[Oracle]):
    """A sequence of oracles."""

    def distinct(self) -> Sequence[Any]:
        """Oracles whose kinds and abilities are those of all clients; here every client."""
        return self

    def sizes(self) -> Indices | None:
        """Rows of each client; None unless all are finite sums."""
        sums = all(isinstance(f, LinearModel) or oracles.can_sample(f) for f in self.distinct())
        return self.rows() if sums else None

    def rows(self) -> Indices:
        """What a full gradient of each client counts: its rows, or 1."""
        return np.array([oracles.rows_of(f) for f in self], dtype=np.int64)

    def are_one_kind(self) -> bool:
        """Whether all are linear models of the same kind."""
        first, *others = self.distinct()
        return isinstance(first, LinearModel) and all(type(f) is type(first) for f in others)

    def whole(self, weights: Array) -> Any:
        """sum_i w_i f_i as a single oracle, where it has a closed form."""
        if len(self) == 1:
            return self[0]
        if all(isinstance(f, Quadratic) for f in self):
            return Quadratic.average(list(self), weights)  # type: ignore[arg-type]
        return None

    def in_double(self) -> Clients:
        """The same clients with their data in double precision; this very object if they are."""
        clients = [oracles.in_double(f) for f in self]
        return self if all(f is g for f, g in zip(clients, self, strict=True)) else Listed(clients)

    # -- constants -----------------------------------------------------------------------------------------------------
    def L_i(self) -> Array:
        """Smoothness of each client."""
        return np.array([float(f.L) for f in self])

    def mu_i(self) -> Array | None:
        """Strong convexity of each client; None if a client does not know its own."""
        mus = [f.mu for f in self]
        return None if any(m is None for m in mus) else np.array([float(m) for m in mus if m is not None])

    def L_of_sum(self, weights: Array) -> float:
        """Smoothness of sum_i w_i f_i, of linear models of the same kind."""
        models: list[Any] = list(self)
        reg = sum(w * f.reg for w, f in zip(weights, models, strict=True))[: models[0].A.shape[1]]
        parts = [(f.A, w * f.s) for w, f in zip(weights, models, strict=True)]
        return spectrum.largest_of_sum(parts, models[0].curvature, reg)

    def L_rows(self) -> Array:
        """The largest smoothness of the function of one row of each client."""
        largest = [oracles.row_smoothness_of(f) for f in self]
        if None in largest:
            i = largest.index(None)
            _ = self[i].L  # raises its own error where it is unknown
            raise InputError(
                f"client {i} has no L_rows, the largest smoothness of one row; add it for minibatches, or pass a gamma."
            )
        return np.array(largest, dtype=np.float64)

    def spreads(self, x: Array) -> Array:
        """mean_j |grad f_ij(x) - grad f_i(x)|^2  over the rows j of each client; nan where it is unknown."""
        known = [oracles.attribute(f, "gradient_variance") for f in self]
        return np.array([np.nan if variance is None else float(variance(x)) for variance in known])

    # -- values and gradients ------------------------------------------------------------------------------------------
    def gradients(self, x: Array, lo: int, hi: int) -> Array:
        """grad f_i(x) of clients lo to hi - 1 in double precision, one row each."""
        return np.stack([checked_gradient(oracles.in_double(self[i]), x, i) for i in range(lo, hi)])

    def gradient_blocks(self, x: Array) -> Iterator[tuple[slice, Array]]:
        """The gradients of all clients, some at a time: which ones, and one row each."""
        step = max(1, spectrum.NUMBERS_AT_ONCE // len(x))
        for lo in range(0, len(self), step):
            hi = min(lo + step, len(self))
            yield slice(lo, hi), self.gradients(x, lo, hi)


class Listed(tuple[Oracle, ...], Clients):
    """Clients one by one."""


def checked_gradient(f: Oracle, x: Array, i: int) -> Array:
    """The gradient of client i at x as a new ``(d,)`` array; the oracle sees x read-only."""
    if type(f) is Quadratic:  # ours: it leaves x alone, and what follows would take longer than the gradient
        return f.gradient(x)
    x_seen = x.view()
    x_seen.flags.writeable = False
    try:
        g = np.array(f.gradient(x_seen), dtype=np.float64)
    except ValueError as error:
        if "read-only" in str(error):
            raise InputError(f"the gradient of client {i} changes the x it is given; let it work on a copy.") from None
        raise
    if g.shape != x.shape:
        raise InputError(f"the gradient of client {i} has shape {g.shape}; it must have shape {x.shape}.")
    return g


def value_and_gradient(f: Oracle, x: Array, i: int) -> tuple[float, Array]:
    """f_i(x) and the gradient of client i, in double precision."""
    f = oracles.in_double(f)
    kind = type(f)
    if isinstance(f, LinearModel) and kind.value is LinearModel.value and kind.gradient is LinearModel.gradient:
        return f.value_and_gradient(x)
    return float(f.value(x)), checked_gradient(f, x, i)


def checked_dimension(clients: Clients, d: int) -> int:
    """The number of unknowns, from ``d`` if it is given; refuses clients that do not fit together."""
    classes = oracles.attribute(clients.distinct()[0], "classes")
    for i, f in enumerate(clients.distinct()):
        if isinstance(f, type):
            raise InputError(f"client {i} is the class {f.__name__}; give an object of it, with its data.")
        if not oracles.is_oracle(f):
            raise InputError(f"a {type(f).__name__} is not an oracle; it needs value(x), gradient(x), L and mu.")
        own = oracles.dimension_of(f)  # oracles of users need not know it
        d = d or own or 0
        if own not in (None, d):
            raise InputError(f"client {i} has {own} unknowns, not {d}; every shard needs the same dimension.")
        if oracles.attribute(f, "classes") != classes:
            raise InputError(
                f"client {i} has the classes {oracles.attribute(f, 'classes')} and client 0 has {classes}."
            )
        if isinstance(f, LinearModel) or not oracles.knows_L(f):
            continue  # its constants are right and may be expensive, or whoever needs them is refused
        if not (isinstance(f.L, int | float | np.number) and np.isfinite(f.L) and f.L > 0):
            raise InputError(f"client {i} says L = {f.L}; it must be a positive number.")
        if f.mu is not None and not 0 <= f.mu <= f.L * (1 + 1e-9):
            raise InputError(f"client {i} says mu = {f.mu} and L = {f.L}; it must be 0 <= mu <= L.")
    if not d:
        raise InputError("the dimension is unknown; give d, or clients with an attribute d.")
    return d
