"""Standard errors, p-values and intervals of a fit: what a statistics package would say of all rows together."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import scipy

from proxskip.methods.newton import Expansion
from proxskip.problems import information, oracles
from proxskip.problems.clients import expansion_length
from proxskip.problems.cox import check_order
from proxskip.problems.information import Information
from proxskip.results.plain_table import Table, Tabled
from proxskip.types import Array, InputError

MODELS = {
    "squared": "Least squares",
    "logistic": "Logistic regression",
    "poisson": "Poisson regression",
    "cox": "Cox regression",
}
"""The losses that are a log likelihood, by the names of their models."""
EXACT_FIT = 1e-20
"""Residuals below this share of the fitted values, both squared, are rounding."""


@dataclass(frozen=True, repr=False)
class Inference(Tabled):
    """The coefficients with their errors, one row each; prints as a table.

    Least squares: sigma^2 is the sum of the squared residuals divided by (rows - coefficients), and p-values and
    intervals are those of Student's t with as many degrees of freedom. For the other models they are asymptotic, those
    of the normal distribution.

    Args:
        names: of the columns.
        estimate: the coefficients, in the order of the columns.
        covariance: of the estimates.
        level: of the intervals.
        degrees: of freedom of Student's t; None for the normal distribution.
        model, rows, clients: what was fitted, and to how many rows on how many clients.
        errors: where the standard errors come from.
    """

    names: tuple[str, ...]
    estimate: Array
    covariance: Array
    level: float
    degrees: int | None
    model: str
    rows: int
    clients: int
    errors: str

    @cached_property
    def standard_error(self) -> Array:
        """The standard deviation of each estimate."""
        return np.sqrt(np.diag(self.covariance))

    @cached_property
    def z(self) -> Array:
        """Each estimate in standard errors; the t statistic of least squares."""
        return self.estimate / self.standard_error

    @cached_property
    def p(self) -> Array:
        """The probability of a larger |z| if the coefficient were zero."""
        beyond = -np.abs(self.z)
        below = scipy.special.ndtr(beyond) if self.degrees is None else scipy.special.stdtr(self.degrees, beyond)
        return np.asarray(2.0 * below)

    @property
    def low(self) -> Array:
        """The lower ends of the intervals."""
        return self.estimate - self._width

    @property
    def high(self) -> Array:
        """The upper ends of the intervals."""
        return self.estimate + self._width

    @cached_property
    def _width(self) -> Array:
        upper = 0.5 + self.level / 2
        quantile = scipy.special.ndtri(upper) if self.degrees is None else scipy.special.stdtrit(self.degrees, upper)
        return np.asarray(quantile * self.standard_error)

    def records(self) -> list[dict[str, Any]]:
        """The table as plain numbers, one dict for each coefficient."""
        columns = {
            "name": self.names, "estimate": self.estimate, "standard_error": self.standard_error, "z": self.z,
            "p": self.p, "low": self.low, "high": self.high,
        }  # fmt: skip
        return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]

    def as_table(self) -> Table:
        where = "" if self.clients == 1 else f" on {self.clients:,} clients"
        title = f"{self.model}: {self.rows:,} rows{where}; {self.errors}"
        statistic = "z" if self.degrees is None else f"t({self.degrees:,})"
        head = ["", "estimate", "std. error", statistic, "p", f"{100 * self.level:.4g}% from", "to"]
        rows = self.records()
        lines = [[name, *(f"{number:.5g}" for number in numbers)] for name, *numbers in (row.values() for row in rows)]
        return Table(title, head, lines, rows)


def inference(
    problem: Any, x: Array, *, level: float = 0.95, robust: bool = False, penalized: bool = False
) -> Inference:
    """The table of the minimizer x, after one more exchange.

    Args:
        problem, level, robust, penalized: as in ``RunResult.inference``.
        x: the minimizer of the problem.
    """
    _check(problem, x)
    told = information.measure(problem, x)
    first: Any = problem.clients[0]
    n, l2 = problem.n, problem.l2
    return of(told, first.loss, n, l2, problem, level=level, robust=robust, penalized=penalized)


def of(
    told: Information,
    loss: str,
    clients: int,
    l2: float | None,
    problem: Any = None,
    *,
    level: float,
    robust: bool,
    penalized: bool,
) -> Inference:
    """The table from what is known of the likelihood; what cannot be said of it is refused.

    Args:
        problem: if its rows are here.
    """
    if not 0 < level < 1:
        raise InputError(f"level = {level} must lie between 0 and 1, such as 0.95.")
    if l2 and not penalized:
        raise InputError(
            f"l2 = {l2:g} shrinks the coefficients, so that the usual errors do not apply: fit with l2=0, or ask for "
            "penalized=True, which takes the penalty for a normal prior."
        )
    d, squares = len(told.x), loss == "squared"
    if told.rows < d or (squares and told.rows == d):
        raise InputError(f"{told.rows} rows are too few for {d} coefficients and their errors; leave columns out.")
    if (doubt := information.collinear(told.first_hessian, told.names)) is not None:
        raise InputError(f"there is no table, because {doubt}; leave it out.")
    dispersion = _dispersion(told) if squares else 1.0
    _check_settled(told, dispersion, problem)
    units = np.sqrt(np.diag(told.hessian))  # of the columns, which the inverse must not mix
    bread = np.asarray(np.linalg.inv(told.hessian / np.outer(units, units)) / np.outer(units, units))
    errors = "errors from the Hessian"
    covariance = dispersion * bread
    if robust:
        covariance, errors = bread @ _meat(told, clients) @ bread, "robust errors, from the clients' scores"
    if l2:
        errors += f", with the penalty l2 = {l2:g} as a normal prior"
    degrees = told.rows - d if squares else None
    return Inference(told.names, told.x, covariance, level, degrees, MODELS[loss], told.rows, clients, errors)


def pooled(means: Array, x: Array, rows: int, names: tuple[str, ...]) -> Information:
    """What a federation knows of all rows together: the means of its clients' expansions at x and at zero."""
    length = expansion_length(len(x))
    here, start = Expansion.of(means[:length], len(x)), Expansion.of(means[length:], len(x))
    return Information(
        x, rows * here.value, rows * here.gradient, rows * here.hessian, rows * start.hessian, rows, names
    )


def _check(problem: Any, x: Array) -> None:
    """Refuse a problem whose f is not the mean log likelihood of all rows."""
    if len(x) != problem.d:
        raise InputError(
            f"the result has {len(x)} unknowns and the problem {problem.d}; pass the problem that was solved."
        )
    if problem.elsewhere is not None:
        raise InputError("the rows are in Ray's actors; load all of them with problem.here().")
    if problem.psi is not None:
        raise InputError(f"psi = {problem.psi!r} shrinks the coefficients; there are errors only without psi.")
    if problem.batch is not None:
        raise InputError("with minibatches a run does not end at the minimizer; solve problem.with_batch(None).")
    kinds = {str(oracles.attribute(f, "loss")) for f in problem.clients}
    if len(kinds) > 1 or not kinds <= MODELS.keys():
        raise InputError(
            f"the loss of the clients is {', '.join(sorted(kinds))}; a table needs one of {', '.join(MODELS)}, the "
            "same for all clients."
        )
    if not oracles.has_rows(problem.clients[0]):
        raise InputError("A is an operator, which has no Hessian; give a matrix.")
    check_order(problem.clients)
    weights = [oracles.row_weights_of(f) for f in problem.clients]
    if any((s == 0).any() for s in weights):
        raise InputError("some rows have the weight zero but would be counted; leave them out.")
    each = np.concatenate([w * s for w, s in zip(problem.weights, weights, strict=True)])
    if not np.allclose(each * len(each), 1.0, rtol=1e-9, atol=0.0):
        raise InputError(
            "rows count differently, which is no likelihood; weight clients by their rows, with split(..., "
            'weights="rows") or Problem(clients, weights=[f.N for f in clients]), and give no row_weights.'
        )


def _dispersion(told: Information) -> float:
    """sigma^2 of least squares."""
    residuals = 2.0 * told.loss
    if residuals <= EXACT_FIT * float(told.x @ told.hessian @ told.x):
        raise InputError("the model fits every row exactly, so that no spread is left from which errors would follow.")
    return residuals / (told.rows - len(told.x))


def _check_settled(told: Information, dispersion: float, problem: Any) -> None:
    """Refuse a point from which Newton's step still moves, with the reason; only a problem's rows make it certain."""
    step = information.newton_step(told)
    # rounding may leave less than zero
    moved, at_zero = (
        math.sqrt(max(float(step @ H @ step) / dispersion, 0.0)) for H in (told.hessian, told.first_hessian)
    )
    too_long = max(moved / information.MAX_DECREMENT, at_zero / math.sqrt(information.MAX_MOVE))
    if too_long <= 1:
        return
    reason = None if problem is None else information.endless(problem, told.x)
    if reason is not None:
        raise InputError(f"there is no table, because {reason}; leave such a column out, or give an l2.")
    perhaps = information.separated(told, step) if problem is None and moved < information.ALMOST_THERE else None
    norm = float(np.linalg.norm(told.gradient)) / told.rows
    enough = norm / (2 * too_long)  # half, since a step does not shrink exactly as its gradient
    raise InputError(
        f"the minimizer is still {moved:.1e} standard errors away; run to a smaller tol, until the gradient norm is "
        f"{enough:.0e} in place of {norm:.0e}." + ("" if perhaps is None else f" If that does not help, {perhaps}.")
    )


def _meat(told: Information, clients: int) -> Array:
    """The covariance of the score, from the clients' shares in it."""
    d = len(told.x)
    if told.scores is None:
        raise InputError("robust errors need the score of each client, and only their sum is known here.")
    if clients <= d:
        raise InputError(f"robust errors need more clients than coefficients; there are {clients} and {d}.")
    return np.asarray(told.scores.T @ told.scores)
