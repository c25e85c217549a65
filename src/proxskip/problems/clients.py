"""The clients of a problem, and what a problem asks of all of them at once.

``Clients`` asks one client after another, which suits any oracles. ``packed.Packed`` answers for linear models of one
kind, whose rows are in one store.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import Protocol

import numpy as np

from proxskip.problems import oracles
from proxskip.problems.cox import Cox, are_alike, stratified
from proxskip.problems.frames import listed
from proxskip.problems.linear_model import LinearModel
from proxskip.problems.quadratic import Quadratic
from proxskip.problems.spectrum import NUMBERS_AT_ONCE
from proxskip.support.display import short
from proxskip.types import Array, Indices, InputError, Oracle


class Clients(Sequence[Oracle]):
    """A sequence of oracles."""

    def distinct(self) -> Sequence[Oracle]:
        """Oracles whose kinds and abilities are those of all clients; here every client."""
        return self

    def sizes(self) -> Indices | None:
        """Rows of each client; None unless all have rows."""
        sums = all(isinstance(f, (LinearModel, Cox)) or oracles.can_sample(f) for f in self.distinct())
        return self.rows() if sums else None

    def rows(self) -> Indices:
        """What a full gradient of each client counts: its rows, or 1."""
        return np.array([oracles.rows_of(f) for f in self], dtype=np.int64)

    def entries(self) -> Array:
        """Roughly how much work a gradient of each client is: the stored numbers of a linear model, 1 for others."""
        return np.array([oracles.stored_numbers(f) or 1 for f in self], dtype=np.float64)

    def whole(self, weights: Array) -> Oracle | None:
        """sum_i w_i f_i as a single oracle, where it has a closed form."""
        if len(self) == 1:
            return self[0]
        if all(isinstance(f, Quadratic) for f in self):
            return Quadratic.average(list(self), weights)  # type: ignore[arg-type]
        return stratified(list(self), weights) if are_alike(self) else None  # type: ignore[arg-type]

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
        step = max(1, NUMBERS_AT_ONCE // len(x))
        for lo in range(0, len(self), step):
            hi = min(lo + step, len(self))
            yield slice(lo, hi), self.gradients(x, lo, hi)


class RemoteValues(Protocol):
    """An engine that computes the values and gradients of the clients it holds."""

    def evaluate(self, x: Array, clients: Sequence[Oracle]) -> tuple[list[float], Array]:
        """f_i(x) and grad f_i(x) of every client."""


class ValuesElsewhere:
    """The values and gradients of clients, computed by an engine that holds them."""

    def __init__(self, holder: RemoteValues, clients: Sequence[Oracle]) -> None:
        self.holder, self.clients = holder, clients
        self._last: tuple[Array, list[float], Array] | None = None

    def values(self, x: Array) -> list[float]:
        """f_i(x) of every client."""
        return self._at(x)[1]

    def gradients(self, x: Array) -> Array:
        """grad f_i(x), one row per client."""
        return self._at(x)[2]

    def _at(self, x: Array) -> tuple[Array, list[float], Array]:
        """The point, the values and the gradients; the last ones are kept, since a record needs both."""
        if self._last is None or not np.array_equal(self._last[0], x):
            self._last = (x.copy(), *self.holder.evaluate(x, self.clients))
        return self._last


class Listed(tuple[Oracle, ...], Clients):
    """Clients one by one."""


def checked_value(f: Oracle, x: Array, i: int) -> float:
    """The value of client i at x as a float."""
    value = f.value(x)
    try:
        return float(value)
    except (TypeError, ValueError):
        raise InputError(f"the value of client {i} is {short(value)}; it must be one number.") from None


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
        if "could not convert" in str(error):
            raise InputError(f"the gradient of client {i} holds what is no number ({error}).") from None
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
    return checked_value(f, x, i), checked_gradient(f, x, i)


def expansion(f: Oracle, x: Array, i: int) -> Array:
    """f_i(x), its gradient and the upper triangle of its Hessian, row by row, as one vector in double precision."""
    value, g = value_and_gradient(f, x, i)
    H = np.asarray(oracles.in_double(f).hessian(x), dtype=np.float64)
    if H.shape != (len(x), len(x)):
        raise InputError(f"the Hessian of client {i} has shape {H.shape}; it must have shape {(len(x), len(x))}.")
    return np.concatenate([[value], g, H[np.triu_indices(len(x))]])


def expansion_length(d: int) -> int:
    """The numbers of an ``expansion`` in d unknowns:  1 + d + d(d + 1)/2."""
    return 1 + d * (d + 3) // 2


def checked_dimension(clients: Clients, d: int) -> int:
    """The number of unknowns, from ``d`` if it is given; refuses clients that do not fit together."""
    classes = oracles.attribute(clients.distinct()[0], "classes")
    named: tuple[int, tuple[str, ...]] | None = None  # the first client whose columns have names
    for i, f in enumerate(clients.distinct()):
        if isinstance(f, type):
            raise InputError(f"client {i} is the class {f.__name__}; give an object of it, with its data.")
        if not oracles.is_oracle(f):
            lacks = ", ".join(name for name in ("value", "gradient", "L", "mu") if not hasattr(f, name))
            raise InputError(f"a {type(f).__name__} is not an oracle: it lacks {lacks} (L and mu may be None).")
        own = oracles.dimension_of(f)  # oracles of users need not know it
        d = d or own or 0
        columns = oracles.given_columns(f)
        differ = "" if columns is None or named is None else _difference(i, columns, *named)
        if own not in (None, d):
            also = f" ({differ})" if differ else ""
            raise InputError(f"client {i} has {own} unknowns, not {d}{also}; every shard needs the same dimension.")
        if differ:
            raise InputError(f"{differ}; give every client the same columns, in the same order.")
        if columns is not None and named is None:
            named = i, columns
        if oracles.attribute(f, "classes") != classes:
            raise InputError(
                f"client {i} has the classes {oracles.attribute(f, 'classes')} and client 0 has {classes}."
            )
        if isinstance(f, (LinearModel, Cox)) or not oracles.knows_L(f):
            continue  # its constants are right and may be expensive, or whoever needs them is refused
        # no integer beyond the largest float: it would be infinite
        if not (isinstance(f.L, int | float | np.number) and 0 < f.L <= sys.float_info.max):
            raise InputError(f"client {i} says L = {short(f.L)}; it must be a positive number.")
        if f.mu is not None and not 0 <= f.mu <= f.L * (1 + 1e-9):
            raise InputError(f"client {i} says mu = {f.mu} and L = {f.L}; it must be 0 <= mu <= L.")
    if not d:
        raise InputError("the dimension is unknown; give d, or clients with an attribute d.")
    return d


def _difference(i: int, columns: tuple[str, ...], first: int, known: tuple[str, ...]) -> str:
    """How the columns of client i differ from those of the first client that has names; empty if they do not."""
    if columns == known:
        return ""
    lacks = [name for name in known if name not in columns]
    start = next((k for k, (own, other) in enumerate(zip(columns, known, strict=False)) if own != other), 0)
    of_i, of_first = (f"{'..., ' if start else ''}{listed(names[start:])}" for names in (columns, known))
    also = f" and lacks {listed(lacks)}" if lacks else ""
    return f"client {i} has the columns {of_i}{also}; client {first} has {of_first}"
