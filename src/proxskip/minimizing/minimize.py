"""min_x  f(x) + psi(x),  or  f(x) + psi(D x),  for one function without clients, where the prox is expensive."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from proxskip import prox, theory
from proxskip.core.method import Method
from proxskip.minimizing import setup, value_checks
from proxskip.minimizing.auto import AutoDescent, Choice
from proxskip.minimizing.descent import Descent, Point, Task, skip_probability
from proxskip.minimizing.functions import Smooth
from proxskip.problems.federated import Problem
from proxskip.prox import Inner
from proxskip.results import description
from proxskip.results.result import Result, Status, Summary
from proxskip.results.trace import Trace
from proxskip.running.listen import Record, check_callbacks, listening, tell_end, tell_record
from proxskip.running.progress import MinimizeProgress, is_wanted
from proxskip.running.stop import Stop
from proxskip.types import Array, Matrix

MAX_FAILED_CERTIFICATES = 6
"""How often a certificate may exceed tol although its bound did not, before an inexact prox counts as too inexact."""


@dataclass(frozen=True, eq=False, repr=False)
class Minimum(Result):
    """The result of ``minimize``; its fields are also keys, as in scipy's OptimizeResult.

    Args:
        status, message: how it ended; ``success`` means that the certificate is at most tol.
        trace: a record of every round.
        method, parameters: what ran last.
        seconds: the time that it took.
        warnings: sentences about the run.
        inner_failures: calls of an inexact prox that missed their tolerance.
        x: the point with the smallest certificate, in the shape of x0.
        fun: f(x) + psi(D x) there; it may be infinite for the indicator of a set that D x, or the x of an inexact prox,
            meets only up to tol, or x up to rounding.
        nit, ngrad, nprox: iterations, gradients (full or of a minibatch) and proxes; those of certificates are
            included.
        certificate: |x - prox_{gamma psi}(x - gamma grad f(x))|/gamma at x with gamma = 1/L; for psi(D x)
            |grad f(x) + D'y| + |y - prox_{psi*}(y + D x)|. What an inexact prox may hide is added.
        h: the control variate of ProxSkip and APDA, which tends to grad f(x*); -h is then a subgradient of psi at x*.
        y: the dual variable of psi(D x), a subgradient of psi at D x*.
        inner: the worst call of an inexact prox; ``inner_failures`` counts those that missed their tolerance.
        passes: rows differentiated over rows of f; ngrad where f has no rows.
        choices: with "auto", after how many rounds which method went on, and after how many the run ended.
    """

    x: Array
    fun: float
    nit: int
    ngrad: int
    nprox: int
    status: Status
    message: str
    certificate: float
    trace: Trace = field(repr=False)
    h: Array | None = field(repr=False)
    y: Array | None = field(repr=False)
    method: str
    parameters: dict[str, Any]
    passes: float
    seconds: float
    inner: Inner | None = None
    inner_failures: int = 0
    warnings: tuple[str, ...] = ()
    choices: tuple[Choice, ...] = ()

    axes = ("nprox", "certificate")

    def __getitem__(self, key: str) -> Any:
        if key not in (*vars(self), "success"):
            raise KeyError(key)
        return getattr(self, key)

    def keys(self) -> Iterator[str]:
        """The names of the fields, and ``success``."""
        return iter([*vars(self), "success"])

    __iter__ = keys

    @property
    def summary(self) -> Summary:
        """The method, its parameters, the costs and the end, by name."""
        costs = {k: self[k] for k in ("fun", "certificate", "nit", "ngrad", "nprox", "passes", "seconds")}
        end = {"status": self.status.name, "success": self.success, "message": self.message}
        # L and mu are constants of the problem
        chosen = {"settings": ["method", *(name for name in self.parameters if name not in ("L", "mu"))]}
        about = {"method": self.method, **self.parameters, **costs, **end, "warnings": list(self.warnings)}
        return Summary(about | chosen)

    def rows(self) -> list[tuple[str, str]]:
        shown = ("method", "fun", "certificate", "nit", "ngrad", "nprox", "seconds")
        parameters = ", ".join(f"{k} = {_text(v)}" for k, v in self.parameters.items() if v is not None)
        return [*((k, _text(self[k])) for k in shown), ("parameters", parameters), *super().rows()]


def minimize(
    f: Any, psi: object = None, x0: npt.ArrayLike | None = None, *, method: str | Method = "auto", tol: float = 1e-8,
    seed: int = 0,
    D: Matrix | None = None, p: float | None = None, gamma: float | None = None, tau: float | None = None,
    L: float | None = None, mu: float | None = None, batch: int | None = None,
    max_iter: int | None = None, max_grad: int | None = None, max_prox: int | None = None, seconds: float | None = None,
    dual: npt.ArrayLike | None = None, track: bool = False,
    callbacks: Sequence[object] = (), threads: int | None = None,
    allow_unsafe_step: bool = False, progress: bool | None = None,
) -> Minimum:  # fmt: skip
    """Minimize f(x) + psi(x), or f(x) + psi(D x), with as few proxes as the method needs.

    Args:
        seed: random seed.
        threads: for products with the data; all cores if not given.
        allow_unsafe_step: run with step sizes that the method's limits refuse.
        f: an object with value(x), gradient(x) and, if known, L and mu; LeastSquares, Logistic, Softmax, Quadratic;
            or a pair of callables (value, gradient).
        psi: an operator of ``proxskip.prox`` or pyproximal, or any object with psi(x) and psi.prox(x, t).
        x0: initial point, in any shape; zeros if f knows its dimension.
        method: "auto" measures and chooses while it runs; "apda", "proxskip", "fista", "fista-restart", "proxgd",
            "sproxskip" (with batch); for psi(D x) "apda", "splitskip", "papc", "pdhg"; or a method object.
        tol: stop when the certificate is at most tol (see Minimum).
        D: a matrix, sparse matrix or linear operator (scipy, pylops).
        p, gamma, tau: the method's parameters, in place of its theorem's.
        L, mu: f's smoothness and strong convexity, in place of its own; without L, backtracking finds it.
        batch: rows per minibatch.
        max_iter, max_grad, max_prox, seconds: limits.
        dual: h (or y) to start from, such as an earlier result's.
        track: record f + psi in the trace too (not counted in the seconds).
        callbacks: objects such as those of ``proxskip.callbacks``, as for ``proxskip.run``.
        progress: show it in one line, or in lines without a terminal; by default in a terminal or a notebook only.

    >>> import proxskip as ps
    >>> f = ps.LeastSquares(np.diag([1.0, 2.0, 4.0]), [3.0, 1.0, 1.0])
    >>> res = ps.minimize(f, ps.prox.L1(0.5), np.zeros(3))
    >>> res.success, res.x.round(6).tolist()
    (True, [1.5, 0.125, 0.15625])
    """
    began = time.perf_counter()
    check_callbacks(callbacks)
    stop = Stop.for_minimize(tol, max_iter, max_grad, max_prox, seconds)
    if method == "auto" and any(v is not None for v in (p, gamma, tau, batch)):
        method = "proxskip" if D is None else "splitskip"  # the method whose parameters these are
    setup.check_arguments(method, p, gamma, tau, dual)
    name, p = (method, p) if isinstance(method, str) else (method.name, skip_probability(method))
    task, start = setup.prepare(f, psi, x0, name, D=D, L=L, mu=mu, batch=batch, p=p)
    settings: dict[str, Any] = {
        "seed": theory.whole_seed(seed), "dual": setup.checked_dual(dual, task), "tol": float(tol),
        "threads": threads, "allow_unsafe_step": allow_unsafe_step, "began": began,
    }  # fmt: skip
    if name == "auto":
        run: Descent = AutoDescent(task, start, **settings)
    else:
        run = Descent(task, _maker(method, task, p, gamma, tau), start, **settings)
    limits = {"max_iter": max_iter, "max_grad": max_grad, "max_prox": max_prox, "seconds": seconds}
    config = {"method": name, "seed": settings["seed"], "stop": {"tol": settings["tol"], **limits}}
    with MinimizeProgress(name, quiet=not is_wanted(progress)) as line:
        heard = (*callbacks, line)
        with listening(heard, config):
            result = _finish(run, name, stop, track, heard)
        tell_end(heard, result)
        return result


def _maker(
    method: str | Method, task: Task, p: float | None, gamma: float | None, tau: float | None
) -> Callable[[Problem, Smooth], Method]:
    """A function that makes the method once L is known; a method object keeps the parameters that it was given."""
    if isinstance(method, str):
        return setup.method_maker(method, p=p, gamma=gamma, tau=tau)
    setup.check_method(method, task)
    return lambda problem, smooth: method.complete(problem)


def _finish(run: Descent, name: str, stop: Stop, track: bool, callbacks: Sequence[object]) -> Minimum:
    try:
        with np.errstate(all="ignore"):
            run.client.enough = lambda: stop.limit(run.round, run.ledger) is not None
            status, message, point, certificate = _loop(run, stop, track, callbacks)
        return _result(run, name, status, message, point, certificate)
    finally:
        run.close()


def _loop(run: Descent, stop: Stop, track: bool, callbacks: Sequence[object]) -> tuple[Status, str, Point, float]:
    """Rounds until something says stop: how it ended, and the returned point with its certificate."""
    tol = threshold = run.tol
    failed, recorded = 0, 0
    while True:
        if (limit := stop.limit(run.round, run.ledger)) is not None:
            return _give_up(run, Status.LIMIT, f"reached the limit of {limit} without reaching the tolerance", tol)
        known = run.advance()
        if known and run.round - recorded >= (run.round // 100 or 1):
            recorded = run.round
            why = _record(run, track, callbacks)
            if why is not None:
                words = f": {why.rstrip('.')}" if why else ""
                return _give_up(run, Status.STOPPED, f"stopped by a callback{words}", tol)
        if known and run.watch.diverged(run.bound):
            return _give_up(run, Status.DIVERGED, _diverged(run), tol)
        if known and run.bound <= threshold:
            certificate = run.certify(run.best)
            above = certificate <= tol and _is_above_start(run)
            if above and (at_start := run.certify(_start(run))) <= tol:
                run.best = _start(run)
                certificate = at_start
                above = False
            failed += 1
            if certificate <= tol and (not above or failed > MAX_FAILED_CERTIFICATES):
                _record(run, track, callbacks)
                return _success(run, certificate, tol)
            if failed > MAX_FAILED_CERTIFICATES or run.rounding > tol:
                return _give_up(run, *_not_certified(run), tol, certificate)
            if run.solo.inner is None:  # of rounding, a smaller bound may leave less
                threshold = 0.5 * run.bound
        if known and run.stalled and stop.limit(run.round, run.ledger) is None:
            return _give_up(run, *_stalled(run), tol)


def _is_above_start(run: Descent) -> bool:
    """Whether x0 has a smaller value than the best point, which for psi(D x) a small certificate does not exclude."""
    return run.task.D is not None and run.task.value(run.x0) < run.task.value(run.best.x) < math.inf


def _start(run: Descent) -> Point:
    return Point(math.inf, run.x0, run.best.dual, 0)


def _not_certified(run: Descent) -> tuple[Status, str]:
    """Why the bound is below tol and the certificate is not."""
    if run.probed is not None and run.probed.error > 0.0:
        return Status.INEXACT, f"relative to your prox the tolerance is reached, but {run.probed.inexact}"
    if run.solo.inner is not None or (run.solo.checked is not None and run.solo.checked.said):
        return Status.INEXACT, "the bound is below tol but the certificate is not"
    return Status.PRECISION, _at_rounding(run)


def _at_rounding(run: Descent) -> str:
    single = run.client.eps > 1e-10
    cause = "the data are in single precision; float64 reaches more" if single else "tol is below rounding here"
    return f"{cause}, and no smaller certificate can be relied on"


def _success(run: Descent, certificate: float, tol: float) -> tuple[Status, str, Point, float]:
    """CONVERGED, unless the values of the prox contradict each other, where a certificate proves nothing."""
    checked = run.solo.checked
    sentence = f"the certificate is {certificate:.2e}, at most tol"
    if checked is not None and checked.said:
        why = f"{sentence}, but it relies on an operator that is not a prox: {checked.said}"
        return Status.INEXACT, why, run.best, certificate
    return Status.CONVERGED, f"{sentence}.", run.best, certificate


def _diverged(run: Descent) -> str:
    client = run.client
    if client.at is not None and np.isfinite(client.at).all() and not np.isfinite(client.g).all():
        return "the gradient of f is not finite at a finite x"
    return "the iterates diverge; take a smaller gamma, or a larger L"


def _stalled(run: Descent) -> tuple[Status, str]:
    if run.task.batch is not None:
        return Status.STALLED, "at the noise floor of the minibatches; lower it with a smaller gamma or a larger batch"
    if run.solo.inner_failures:
        return Status.INEXACT, f"the inner solver of {type(run.task.psi).__name__} does not reach its tolerance"
    if run.is_rounding(run.best.bound):
        return Status.PRECISION, _at_rounding(run)
    return Status.STALLED, "the certificate does not fall any more"


def _give_up(
    run: Descent, end: Status, why: str, tol: float, certificate: float | None = None
) -> tuple[Status, str, Point, float]:
    """The best point with its certificate, and why the run ended; CONVERGED if the certificate is good enough."""
    if not math.isfinite(run.best.bound):
        run.best = Point(math.inf, run.x if end is not Status.DIVERGED else run.best.x, run.dual, run.solo.iterations)
    reached = run.certify(run.best) if certificate is None else certificate
    if reached <= tol and end is not Status.DIVERGED:
        return _success(run, reached, tol)
    if _is_above_start(run):
        run.best = _start(run)
        reached = run.certify(run.best)
    if end is not Status.DIVERGED and run.solo.inner_failures and run.solo.inner is not None:
        last = run.solo.inner.last
        if last is not None and not last.reached:
            if end is not Status.INEXACT:
                why = f"{why}; the inner solver of {type(run.task.psi).__name__} misses its tolerance"
            end = Status.INEXACT
    return end, f"{why} (certificate {reached:.2e}).", run.best, reached


def _record(run: Descent, track: bool, callbacks: Sequence[object]) -> str | None:
    """Add a row to the trace (not counted in the seconds); the reason if a callback asks to stop."""
    row = run.row()
    if track:
        row["fun"] = run.task.value(run.x)
    run.trace.append(row)
    return tell_record(callbacks, int(row["iteration"]), Record(row, run.x.reshape(run.task.shape)))


def _result(run: Descent, name: str, status: Status, message: str, point: Point, certificate: float) -> Minimum:
    inner = run.solo.inner
    D = run.task.D
    dual = point.dual
    counts = run.ledger
    f_value, psi_value = run.task.f.value(point.x), run.task.psi_at(point.x)
    contradiction = run.contradiction
    if contradiction is None and (fault := value_checks.fault(run, point, f_value, psi_value)):
        contradiction, kind = fault
        warnings.warn(contradiction, kind, stacklevel=5)
        run.notes.append(contradiction)
    if contradiction is not None:
        # a certificate or an advice on gamma means nothing where f or psi contradicts itself
        message = contradiction if status in (Status.CONVERGED, Status.DIVERGED) else f"{message} {contradiction}"
        status = Status.INEXACT if status is Status.CONVERGED else status
    if dual is None and isinstance(run, AutoDescent) and run.client.at is point.x:
        dual = run.client.g  # FISTA has no h, but what h tends to
    return Minimum(
        x=point.x.reshape(run.task.shape).copy(),
        fun=f_value + psi_value,
        nit=counts.iterations,
        ngrad=counts.local_steps,
        nprox=counts.prox_evals,
        status=status,
        message=message,
        certificate=certificate,
        trace=run.trace,
        h=None if D is not None or dual is None else dual.reshape(run.task.shape).copy(),
        y=None if D is None or dual is None else dual.copy(),
        method=name,
        parameters=description.parameters(run.method) | {"L": run.f.L, "mu": run.f.mu},
        passes=counts.grad_evals / run.f.rows,
        seconds=counts.seconds,
        inner=None if inner is None else inner.worst,
        inner_failures=run.solo.inner_failures,
        warnings=(*run.notes, *_doubts(run, run.tol)),
        choices=(*run.choices, (run.round, "end")) if isinstance(run, AutoDescent) else (),
    )


def _doubts(run: Descent, tol: float) -> list[str]:
    """Reasons not to trust the prox."""
    checked = run.solo.checked
    doubts = [] if checked is None or not checked.said else [checked.said]
    if run.probed is not None and run.probed.error * (run.f.L or 1.0) > tol:
        doubts.append(f"{run.probed.inexact}.")
        warnings.warn(doubts[-1], prox.ProxWarning, stacklevel=6)
    return doubts


def _text(v: object) -> str:
    if isinstance(v, Status):
        return f"{int(v)} ({v.name})"
    return f"{v:.6g}" if isinstance(v, float) else str(v)
