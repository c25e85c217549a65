"""Cox's proportional hazards model:  the log partial likelihood of right-censored times, stratified.

D. R. Cox, Regression Models and Life-Tables, 1972; ties by B. Efron, The Efficiency of Cox's Likelihood Function for
Censored Data, 1977, or N. Breslow, Covariance Analysis of Censored Survival Data, 1974.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import ClassVar, Literal, Self

import numpy as np
import numpy.typing as npt

from proxskip.problems.frames import names_of, numbers_per_row, separated
from proxskip.problems.model_inputs import check_l2, matrix_of
from proxskip.types import Array, Indices, InputError, Matrix, is_sparse

Flags = npt.NDArray[np.bool_]
Ties = Literal["efron", "breslow"]
SPREAD = 300.0
"""Sums of exponentials are taken over rows whose running maxima differ by no more: none overflows or vanishes."""
ROWS_AT_ONCE = 1 << 16
"""Rows whose running sums are held at a time."""


class Cox:
    """The negative log partial likelihood per row, plus  lambda/2 |x|^2.

        f(x) = -1/N sum over events j of  [ a_j'x - log sum over k at risk of exp(a_k'x) ] + lambda/2 |x|^2

    Only rows of the same stratum are compared. With clients weighted by their rows, as ``split`` does by default, the
    weighted sum of the clients' functions is that of all rows, with every client as a stratum of its own.

    Args:
        X: the covariates, one row per subject: an array, or a data frame.
        time: until the event, or until the subject was last seen; with a data frame also the name of a column.
        event: 1 where the event happened at that time, 0 where the subject was still without it; or a column's name.
        ties: how events at the same time are treated, "efron" or "breslow".
        strata: a number or text per row; the baseline hazard may differ between strata. Or a column's name.
        l2: the coefficient lambda of  lambda/2 |x|^2.

    >>> f = Cox([[0.0], [1.0], [2.0]], time=[3, 2, 1], event=[1, 1, 0])
    >>> round(f.value(np.zeros(1)), 6), f.gradient(np.zeros(1)).tolist()
    (0.231049, [-0.16666666666666666])
    """

    loss: ClassVar[str] = "cox"

    def __init__(
        self,
        X: Matrix,
        time: npt.ArrayLike | str,
        event: npt.ArrayLike | str,
        ties: Ties = "efron",
        strata: npt.ArrayLike | str | None = None,
        l2: float = 0.0,
    ) -> None:
        if ties not in ("efron", "breslow"):
            raise InputError(f'ties = "{ties}" is not known; use "efron" or "breslow".')
        check_l2(l2)
        X, names, given = separated(X, {"time": time, "event": event, "strata": strata})
        matrix = matrix_of(X.toarray() if is_sparse(X) else X, False, np.dtype(np.float64))
        if not isinstance(matrix, np.ndarray):
            raise InputError("X is an operator without rows; Cox needs a matrix.")
        self.A: Array = matrix
        self.ties = ties
        self.l2 = float(l2)
        self.names = names
        N = self.N
        self.time = numbers_per_row("time", given["time"], N)
        if self.time.min() < 0:
            j = int(np.argmin(self.time))
            raise InputError(f"time of row {j} is {self.time[j]:g}; times cannot be negative.")
        self.event = _events(given["event"], N)
        self.strata = _strata(given["strata"], N)
        self.scale: Array = np.full(int(self.strata.max()) + 1, 1.0 / N)
        """The factor of each stratum's likelihood."""

    def __repr__(self) -> str:
        return (
            f"Cox({self.N:,} rows, {int(self.event.sum()):,} events, {self.d:,} covariates, "
            f"{len(self.scale):,} strata, ties={self.ties!r}, l2={self.l2:g})"
        )

    @property
    def N(self) -> int:
        """The number of rows."""
        return int(self.A.shape[0])

    @property
    def d(self) -> int:
        """The number of unknowns."""
        return int(self.A.shape[1])

    @property
    def has_order(self) -> bool:
        """Whether some event happened before the time of another row: otherwise nobody is compared with anybody."""
        return any(s.has_order for _, s in self._parts())

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the covariates."""
        return names_of(self.names, self.d)

    @property
    def mu(self) -> float:
        """Strong convexity, from the regularizer alone."""
        return self.l2

    @cached_property
    def L(self) -> float:
        """An upper bound on the smoothness.

        The Hessian sums up variances of the covariates among the rows at risk, and a variance is at most the largest
        squared distance from any center.
        """
        return self.l2 + float(sum(w * s.largest_variances() for w, s in self._parts()))

    @cached_property
    def _stratum_rows(self) -> list[Indices]:
        order = np.argsort(self.strata, kind="stable")
        return np.split(order, np.cumsum(np.bincount(self.strata))[:-1])

    @cached_property
    def _strata(self) -> list[_Stratum]:
        """The strata, each sorted by time."""
        efron = self.ties == "efron"
        return [_Stratum(self.A[rows], self.time[rows], self.event[rows], efron) for rows in self._stratum_rows]

    def _parts(self) -> list[tuple[float, _Stratum]]:
        """The strata with events, and their factors."""
        return [(float(w), s) for w, s in zip(self.scale, self._strata, strict=True) if s.has_events]

    def value(self, x: Array) -> float:
        """f(x)."""
        return float(sum(w * s.value(x) for w, s in self._parts()) + 0.5 * self.l2 * (x @ x))

    def gradient(self, x: Array) -> Array:
        """The gradient of f at x."""
        return np.asarray(sum((w * s.gradient(x) for w, s in self._parts()), self.l2 * x))

    def hessian(self, x: Array) -> Array:
        """The dense Hessian at x."""
        return np.asarray(sum((w * s.hessian(x) for w, s in self._parts()), self.l2 * np.eye(self.d)))

    def hessp(self, x: Array, v: Array) -> Array:
        """Hessian times vector."""
        return np.asarray(self.hessian(x) @ v)

    def take(self, rows: Indices) -> Self:
        """The client with these rows, whose function is that of its own rows alone."""
        client = object.__new__(type(self))
        client.ties = self.ties
        client.l2 = self.l2
        client.names = self.names
        client.A = self.A[rows]
        client.time = self.time[rows]
        client.event = self.event[rows]
        client.strata = _strata(self.strata[rows], len(rows))
        client.scale = np.full(int(client.strata.max()) + 1, 1.0 / len(rows))
        return client

    def fingerprint(self) -> bytes:
        """The data as bytes, to tell them from others."""
        parts = (self.A, self.time, self.event, self.strata, self.scale, np.array([self.l2]))
        return self.ties.encode() + b"".join(np.ascontiguousarray(v).tobytes() for v in parts)


def stratified(clients: Sequence[Cox], weights: Array) -> Cox:
    """sum_i w_i f_i  as one model, with every client's strata as strata of their own."""
    first = clients[0]
    whole = object.__new__(Cox)
    whole.ties = first.ties
    whole.l2 = first.l2
    whole.names = first.names
    whole.A = np.concatenate([f.A for f in clients])
    whole.time, whole.event = np.concatenate([f.time for f in clients]), np.concatenate([f.event for f in clients])
    before = np.cumsum([0, *(len(f.scale) for f in clients)])
    whole.strata = np.concatenate([f.strata + start for f, start in zip(clients, before[:-1], strict=True)])
    whole.scale = np.concatenate([w * f.scale for w, f in zip(weights, clients, strict=True)])
    return whole


def are_alike(clients: Sequence[object]) -> bool:
    """Whether all clients are Cox models that can be added up to one."""
    first = clients[0]
    return isinstance(first, Cox) and all(
        isinstance(f, Cox) and (f.ties, f.l2, f.d) == (first.ties, first.l2, first.d) for f in clients
    )


def check_order(clients: Iterable[object]) -> None:
    """Refuse Cox models in none of which a row is compared with another."""
    if all(isinstance(f, Cox) and not f.has_order for f in clients):
        raise InputError("no client has an event while another of its rows was still at risk: nobody is compared.")


class _Stratum:
    """Rows that are compared with each other, from the latest time to the earliest.

    The rows at risk at a time are then the first ones. Tied events share the rows at risk; by Efron the l-th of m tied
    events counts them without l/m of the tied ones, whose share is ``left_out``.
    """

    def __init__(self, A: Array, time: Array, event: Flags, efron: bool) -> None:
        order = np.argsort(-time, kind="stable")
        # A common shift of the covariates changes nothing, and would cancel in the Hessian. After the first of the two
        # a column that is constant is exactly zero.
        shifted = A[order] - A[0]
        self.A, self.order = shifted - shifted.mean(axis=0), order
        times = -time[order]
        self.events: Indices = np.flatnonzero(event[order])
        """The rows with events."""
        _, self.first, deaths = np.unique(times[self.events], return_index=True, return_counts=True)
        # one group for each time with events: ``first`` is the place of its first event among the events
        self.at_risk: Indices = np.searchsorted(times, times[self.events][self.first], side="right")
        """How many rows are at risk, for each group."""
        self.group: Indices = np.repeat(np.arange(len(deaths)), deaths)
        """The group of each event."""
        place = np.arange(len(self.events)) - np.repeat(self.first, deaths)
        self.left_out: Array = place / np.repeat(deaths, deaths) if efron else np.zeros(len(self.events))
        self.first_at_risk: Indices = np.searchsorted(self.at_risk, np.arange(len(A)), side="right")
        """The first group at which each row is at risk; all later ones follow."""

    @property
    def has_events(self) -> bool:
        return len(self.events) > 0

    @property
    def has_order(self) -> bool:
        """Whether an event has rows at risk that do not share it."""
        return bool(np.any(self.at_risk > np.bincount(self.group)))

    def _log_sums(self, z: Array) -> tuple[Array, Array, Array]:
        """For each group the logarithm of the sum over the rows at risk, and the share of the tied ones in it; for each
        event the logarithm of its own sum."""
        log_risk = np.logaddexp.accumulate(z)[self.at_risk - 1]
        log_tied = np.logaddexp.reduceat(z[self.events], self.first)
        share = np.minimum(np.exp(log_tied - log_risk), 1.0)
        return log_risk, share, log_risk[self.group] + np.log1p(-self.left_out * share[self.group])

    def value(self, x: Array) -> float:
        z = self.A @ x
        _, _, log_sums = self._log_sums(z)
        return float(np.sum(log_sums - z[self.events]))

    def _expected(self, z: Array, log_sums: Array) -> Array:
        """The expected number of events of each row."""
        # of one group: of the rows at risk without an event there, and of the tied ones, which are left out in part
        untied = np.logaddexp.reduceat(-log_sums, self.first)
        tied = np.logaddexp.reduceat(np.log1p(-self.left_out) - log_sums, self.first)
        # later rows of the order are at risk in fewer groups: from the last group on
        from_group = np.append(np.logaddexp.accumulate(untied[::-1])[::-1], -np.inf)
        log_hazard = from_group[self.first_at_risk]
        log_hazard[self.events] = np.logaddexp(tied[self.group], from_group[self.group + 1])
        return np.asarray(np.exp(z + log_hazard))

    def gradient(self, x: Array) -> Array:
        z = self.A @ x
        _, _, log_sums = self._log_sums(z)
        residual = self._expected(z, log_sums)
        residual[self.events] -= 1.0
        return np.asarray(self.A.T @ residual)

    def hessian(self, x: Array) -> Array:
        """The sum over events of the covariance of the covariates among the rows at risk."""
        z = self.A @ x
        log_risk, share, log_sums = self._log_sums(z)
        squares = self.A.T @ (self._expected(z, log_sums)[:, None] * self.A)
        tied = np.exp(z[self.events] - log_risk[self.group])[:, None] * self.A[self.events]
        means = self._risk_means(z, log_risk)[self.group]
        means -= self.left_out[:, None] * np.add.reduceat(tied, self.first)[self.group]
        means /= (1.0 - self.left_out * share[self.group])[:, None]
        return np.asarray(squares - means.T @ means)

    def _risk_means(self, z: Array, log_risk: Array) -> Array:
        """The mean covariates of the rows at risk, weighted by exp(z), for each group."""
        means = np.empty((len(log_risk), self.A.shape[1]))
        top = np.maximum.accumulate(z)
        total, before = np.zeros(self.A.shape[1]), float(top[0])
        for lo, hi in self._blocks(top):
            shift = float(top[hi - 1])
            sums = np.cumsum(np.exp(z[lo:hi] - shift)[:, None] * self.A[lo:hi], axis=0)
            sums += total * np.exp(before - shift)
            here = (self.at_risk > lo) & (self.at_risk <= hi)
            means[here] = sums[self.at_risk[here] - 1 - lo] * np.exp(shift - log_risk[here])[:, None]
            total, before = sums[-1], shift
        return means

    def _blocks(self, top: Array) -> list[tuple[int, int]]:
        """Ranges of rows whose running maxima are close, and which are not too many."""
        level = np.floor((top - top[0]) / SPREAD) if np.isfinite(top).all() else np.zeros(len(top))
        cuts = np.union1d(np.flatnonzero(np.diff(level)) + 1, np.arange(ROWS_AT_ONCE, len(top), ROWS_AT_ONCE))
        ends = [0, *cuts.astype(np.int64).tolist(), len(top)]
        return list(itertools.pairwise(ends))

    def largest_variances(self) -> float:
        """The sum over events of an upper bound on the variance among the rows at risk."""
        squares = np.einsum("ij,ij->i", self.A, self.A)
        return float(np.sum(np.maximum.accumulate(squares)[self.at_risk - 1][self.group]))


def _events(given: npt.ArrayLike, N: int) -> Flags:
    """Whether each row has the event."""
    event = numbers_per_row("event", given, N)
    strange = event[(event != 0) & (event != 1)]
    if len(strange):
        raise InputError(f"event = {strange[0]:g} is neither 0 nor 1; give 1 for an event and 0 for a censored row.")
    return np.asarray(event == 1)


def _strata(given: npt.ArrayLike | None, N: int) -> Indices:
    """The number of each row's stratum, from 0."""
    if given is None:
        return np.zeros(N, dtype=np.int64)
    g = np.asarray(given)
    if g.shape != (N,):
        raise InputError(f"strata has shape {g.shape}, but there are {N} rows; give a number or a text per row.")
    try:
        missing = bool(np.any(g != g))
        _, which = np.unique(g, return_inverse=True)
    except TypeError:  # None, or text beside numbers
        missing = True
    if missing:
        raise InputError("strata has missing or mixed values; give a number or a text for every row.")
    return np.asarray(which, dtype=np.int64)
