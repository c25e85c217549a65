"""min_x  f(x) + psi(x),  or  psi(D x),  for people without clients: few proxes where the prox is what costs."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields
from enum import IntEnum
from typing import Any

import numpy as np

from proxskip import prox, theory
from proxskip.methods import SProxSkip
from proxskip.plan import plan_task
from proxskip.planning.forecast import Plan
from proxskip.prox import Inner
from proxskip.results import description
from proxskip.results.trace import Trace
from proxskip.seam import Method
from proxskip.solo import functions
from proxskip.solo.descent import Descent, Point, Task
from proxskip.solo.recipes import prepare, recipe
from proxskip.types import Array, InputError

MANY = 10_000_000
"""Gradients after which a run with nothing but a tolerance gives up."""
TRIES = 6
"""How often a certificate may disappoint the bound before an inexact prox is held to be too inexact."""


class End(IntEnum):
    """How a minimisation ended; 0 is success, as in scipy."""

    CONVERGED = 0
    LIMIT = 1
    DIVERGED = 2
    STALLED = 3
    INEXACT = 4


@dataclass(frozen=True)
class Minimum:
    """What ``minimize`` gives back; fields are also keys, as in scipy's OptimizeResult.

    Args:
        x: the point with the smallest certificate, in the shape of x0.
        fun: f(x) + psi(D x) there; with D it may be infinite for the indicator of a set that D x meets only up to tol.
        nit, ngrad, nprox: iterations, gradients (of a minibatch or in full), proxes; certificates are included, and
            with "auto" what the pilots of all candidates cost.
        certificate: |x - prox_{gamma psi}(x - gamma grad f(x))|/gamma at x with gamma = 1/L; for psi(D x)
            |grad f(x) + D'y| + |y - prox_{psi*}(y + D x)|. What an inexact prox may hide is added.
        h: the control variate of ProxSkip, which tends to grad f(x*); -h is then a subgradient of psi at x*.
        y: the dual variable of psi(D x), a subgradient of psi at D x*.
        inner: the worst call of an inexact prox; ``inner_failures`` counts those that missed their tolerance.
        passes: rows differentiated over rows of f; ngrad where f has no rows.
    """

    x: Array
    fun: float
    nit: int
    ngrad: int
    nprox: int
    status: End
    success: bool
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
    plan: Plan | None = field(default=None, repr=False)

    def __getitem__(self, key: str) -> Any:
        if key not in self.keys():
            raise KeyError(key)
        return getattr(self, key)

    def __iter__(self) -> Iterator[str]:
        return self.keys()

    def __contains__(self, key: object) -> bool:
        return key in list(self.keys())

    def keys(self) -> Iterator[str]:
        """The names of the fields."""
        return iter([f.name for f in fields(self)])

    def __str__(self) -> str:
        shown = ("message", "success", "status", "fun", "certificate", "nit", "ngrad", "nprox", "seconds", "method")
        lines = [f"{k:>11}: {_text(getattr(self, k))}" for k in shown]
        given = ", ".join(f"{k} = {_text(v)}" for k, v in self.parameters.items() if v is not None)
        return "\n".join([*lines, f"{'parameters':>11}: {given}", f"{'x':>11}: {np.array2string(self.x, threshold=6)}"])


@dataclass(frozen=True, slots=True)
class Limits:
    """Where to stop without having reached the tolerance."""

    max_iter: int | None = None
    max_grad: int | None = None
    max_prox: int | None = None
    seconds: float | None = None

    def __post_init__(self) -> None:
        for name in ("max_iter", "max_grad", "max_prox"):
            if (value := getattr(self, name)) is not None:
                theory.whole(name, value)
        if self.seconds is not None:
            theory.positive("seconds", self.seconds)

    def reached(self, run: Descent) -> str | None:
        """Which, in words."""
        if self.max_iter is not None and run.solo.iterations >= self.max_iter:
            return f"{run.solo.iterations} iterations"
        if run.client.calls >= (self.max_grad or MANY):
            return f"{run.client.calls} gradients"
        if self.max_prox is not None and run.solo.proxes >= self.max_prox - 1:  # one is kept for the certificate
            return f"{run.solo.proxes} proxes"
        if self.seconds is not None and run.elapsed >= self.seconds:
            return f"{run.elapsed:.3g} seconds"
        return None


def minimize(
    f: Any,
    psi: Any = None,
    x0: Any = None,
    method: str | Method = "proxskip",
    tol: float = 1e-8,
    seed: int = 0,
    *,
    D: Any = None,
    p: float | None = None,
    gamma: float | None = None,
    tau: float | None = None,
    L: float | None = None,
    mu: float | None = None,
    D_norm: float | None = None,
    batch: int | None = None,
    eps: float | None = None,
    max_iter: int | None = None,
    max_grad: int | None = None,
    max_prox: int | None = None,
    seconds: float | None = None,
    dual: Any = None,
    inner_tol: float | None = None,
    track: bool = False,
    callback: Callable[[dict[str, float], Array], Any] | None = None,
    threads: int | None = None,
    allow_unsafe_step: bool = False,
) -> Minimum:
    """Minimise f(x) + psi(x), or f(x) + psi(D x), with as few proxes as the method needs.

    Args:
        f: an object with value(x), gradient(x) and, if known, L and mu; LeastSquares, Logistic, Softmax, Quadratic;
            or a pair of callables (value, gradient).
        psi: an operator of ``proxskip.prox``, of pyproximal, or anything with psi(x) and psi.prox(x, t).
        x0: where to start, in any shape; zeros if f knows its dimension.
        method: "proxskip", "proxgd", "fista" (with mu its strongly convex form, else with restart), "fista-restart",
            "sproxskip" (with batch), for psi(D x) "splitskip", "papc" (splitskip with p = 1), "pdhg"; "auto" lets
            ``plan`` choose; or a method object.
        tol: stop when the certificate is below (see Minimum).
        D: a matrix, sparse matrix or linear operator (scipy, pylops); D_norm an upper bound on its norm, if known.
        p, gamma, tau: the method's parameters, in place of its theorem's.
        L, mu: f's smoothness and strong convexity, in place of its own; without L it is found by backtracking.
        batch: minibatches of so many rows; eps then is the accuracy E Psi of the paper's Corollary 5.6, which sets
            gamma, p and the number of iterations.
        max_iter, max_grad, max_prox, seconds: limits, looked at after each prox and, with full gradients, after some
            hundred gradients in between; a round that a limit cuts short counts for nothing.
        dual: h (or y) to start from, such as an earlier result's.
        inner_tol: the accuracy of an inexact prox; tied to the certificate if not given.
        track: record f + psi in the trace too, which is off the clock.
        callback: called with each record and x; StopIteration ends the run.

    >>> from proxskip.problems.glm import LeastSquares
    >>> from proxskip.prox import L1
    >>> f = LeastSquares(np.diag([1.0, 2.0, 4.0]), [3.0, 1.0, 1.0])
    >>> res = minimize(f, L1(0.5), np.zeros(3))
    >>> res.success, res.x.round(6).tolist()
    (True, [1.5, 0.125, 0.15625])
    """
    limits = Limits(max_iter, max_grad, max_prox, seconds)
    tol = theory.positive("tol", tol)
    if isinstance(method, type) or not (isinstance(method, str) or hasattr(method, "round")):
        raise InputError(f"method = {method!r} is neither a name nor a method object such as ProxSkip(gamma, p).")
    name = method if isinstance(method, str) else method.name
    _only_once(method, p, gamma, tau, dual, eps)
    inner_tol = None if inner_tol is None else theory.positive("inner_tol", inner_tol)
    p = p if isinstance(method, str) else getattr(method, "p", None)
    task, start = prepare(f, psi, x0, name, D=D, L=L, mu=mu, D_norm=D_norm, batch=batch, eps=eps, p=p)
    if not isinstance(method, str):
        _handled(method, task)
    seed, chosen = theory.whole_seed(seed), None
    if name == "auto":
        if any(v is not None for v in (p, gamma, tau, dual, inner_tol, max_iter, max_grad, max_prox, seconds)):
            raise InputError(
                '"auto" runs pilots first and takes no p, gamma, tau, dual, inner_tol and no limits; '
                "name a method to give them."
            )
        chosen = plan_task(task, start, eps=tol, seed=seed, threads=threads)
        name, run = chosen.best.name, chosen.run
    else:
        make = recipe(name, p=p, gamma=gamma, tau=tau) if isinstance(method, str) else lambda problem, smooth: method
        run = Descent(
            task, make, start, seed=seed, dual=_dual(dual, task), tol=tol, inner_tol=inner_tol, threads=threads,
            insist=allow_unsafe_step,
        )  # fmt: skip
    try:
        with np.errstate(all="ignore"):
            run.client.enough = lambda: limits.reached(run) is not None
            stop = Corollary.of(run, eps, limits) if eps is not None else None
            status, message, point, certificate = _loop(run, tol, limits, track, callback, stop)
        return _result(run, name, status, message, point, certificate, chosen)
    finally:
        run.close()


@dataclass(frozen=True, slots=True)
class Corollary:
    """Corollary 5.6 for minibatches: after ``iterations`` steps with this method, E Psi <= eps."""

    iterations: float
    eps: float
    es_C: float

    @staticmethod
    def of(run: Descent, eps: float, limits: Limits) -> Corollary | None:
        """Some passes with gamma = 1/A first, so that the spread of the gradients is measured near x*.

        None if that reaches a limit.
        """
        f, task = run.f, run.task
        while run.client.rows < 20 * f.rows and math.isfinite(run.bound) is False:
            if limits.reached(run) is not None:
                return None
            run.advance()
        g = run.client.gradient(run.x)
        A, C = functions.expected_smoothness(f, task.batch or 1, run.x)
        mu = theory.known(f.mu)
        h = run.dual
        assert h is not None
        chosen = theory.stochastic(eps, A, C, mu)
        # |x - x*| <= |grad f(x) + s|/mu  and  h* = grad f(x*)
        far = min(run.bound, float(np.linalg.norm(g + run.solo.subgradient))) / mu
        off = float(np.linalg.norm(h - g)) + (f.L or 0.0) * far
        psi0 = far**2 + (chosen.gamma / chosen.p * off) ** 2
        chosen = theory.stochastic(eps, A, C, mu, max(psi0, 1e-300))
        run.method, run.gamma = SProxSkip(chosen.gamma, chosen.p), chosen.gamma
        return Corollary(run.solo.iterations + chosen.iterations, eps, C)


def _loop(
    run: Descent, tol: float, limits: Limits, track: bool, callback: Any, stop: Corollary | None
) -> tuple[End, str, Point, float]:
    """Rounds until something says stop: how it ended, and the returned point with its certificate."""
    tries, recorded = 0, 0
    known = math.isfinite(run.best.bound)  # a pilot has gone before
    while True:
        if not known and (limit := limits.reached(run)) is not None:
            return _give_up(run, End.LIMIT, f"stopped after {limit} without reaching the tolerance", tol)
        known = known or run.advance()
        if known and run.round - recorded >= max(1, run.round // 100):
            recorded = run.round
            if _record(run, track, callback):
                return _give_up(run, End.LIMIT, "stopped by the callback", tol)
        if known and run.diverged:
            return _give_up(run, End.DIVERGED, _diverged(run), tol)
        if known and run.bound <= tol:
            certificate = run.certify(run.best)
            if certificate <= tol:
                _record(run, track, callback)
                return _success(run, certificate, tol)
            tries += 1
            if tries > TRIES:
                return _give_up(run, End.INEXACT, "the bound is below tol but the certificate is not", tol, certificate)
        if stop is not None and run.solo.iterations >= stop.iterations:
            point = Point(run.bound, run.x, run.dual, run.solo.iterations)
            said = f"the corollary's iterations are done: E Psi <= {stop.eps:g}, with C = {stop.es_C:.3g} near x*."
            return End.CONVERGED, said, point, run.certify(point)
        if known and run.stalled and limits.reached(run) is None:
            return _give_up(run, *_stalled(run), tol)
        known = False


def _success(run: Descent, certificate: float, tol: float) -> tuple[End, str, Point, float]:
    """Below tol, and by a prox that is one: where its values contradict each other, a certificate proves nothing."""
    checked, gamma = run.solo.checked, 1.0 / (run.f.L or 1.0)
    said = f"the certificate is {certificate:.2e}, at most tol"
    if checked is not None and checked.said and checked.error / gamma > tol:
        return End.INEXACT, f"{said}, but it counts on a prox that is none: {checked.said}", run.best, certificate
    return End.CONVERGED, f"{said}.", run.best, certificate


def _diverged(run: Descent) -> str:
    client = run.client
    if client.at is not None and np.isfinite(client.at).all() and not np.isfinite(client.g).all():
        return "the gradient of f is not finite at a finite x"
    return "the iterates diverge; take a smaller gamma, or a larger L"


def _stalled(run: Descent) -> tuple[End, str]:
    if run.task.batch is not None:
        return (
            End.STALLED,
            "at the noise floor of the minibatches; a smaller gamma or eps, or a larger batch, lowers it",
        )
    if run.solo.inner_failures:
        return End.INEXACT, f"the inner solver of {type(run.task.psi).__name__} does not reach its tolerance"
    if run.solo.inner_tol is not None and run.solo.spoiled > run.tol:
        return (
            End.INEXACT,
            f"inner_tol = {run.solo.inner_tol:g} is too coarse for this tol; leave it out",
        )
    return End.STALLED, "the certificate does not fall any more; tol may be below rounding"


def _give_up(
    run: Descent, end: End, why: str, tol: float, certificate: float | None = None
) -> tuple[End, str, Point, float]:
    """The best certified point, and why it is not good enough (it may be after all)."""
    if not math.isfinite(run.best.bound):
        run.best = Point(math.inf, run.x if end is not End.DIVERGED else run.best.x, run.dual, run.solo.iterations)
    found = run.certify(run.best) if certificate is None else certificate
    if found <= tol and end is not End.DIVERGED:
        return _success(run, found, tol)
    if end is not End.DIVERGED and run.solo.inner_failures and run.solo.inner is not None:
        last = run.solo.inner.last
        if last is not None and not last.reached:
            if end is not End.INEXACT:
                why = f"{why}; the inner solver of {type(run.task.psi).__name__} misses its tolerance"
            end = End.INEXACT
    return end, f"{why} (certificate {found:.2e}).", run.best, found


def _record(run: Descent, track: bool, callback: Any) -> bool:
    """A row of the trace, off the clock; True if the callback asks to stop."""
    row = run.row()
    if track:
        row["fun"] = run.task.value(run.x)
    run.trace.append(row)
    if callback is None:
        return False
    try:
        callback(row, run.x.reshape(run.task.shape).copy())
    except StopIteration:
        return True
    return False


def _result(
    run: Descent, name: str, status: End, message: str, point: Point, certificate: float, plan: Plan | None
) -> Minimum:
    inner, D = run.solo.inner, run.task.D
    dual = point.dual
    lost = (0, 0, 0.0) if plan is None else (plan.ngrad, plan.nprox, plan.pilot_seconds)
    return Minimum(
        x=point.x.reshape(run.task.shape).copy(),
        fun=run.task.value(point.x),
        nit=run.solo.iterations,
        ngrad=run.client.calls + lost[0],
        nprox=run.solo.proxes + lost[1],
        status=status,
        success=status is End.CONVERGED,
        message=message,
        certificate=certificate,
        trace=run.trace,
        h=None if D is not None or dual is None else dual.reshape(run.task.shape).copy(),
        y=None if D is None or dual is None else dual.copy(),
        method=name,
        parameters=description.parameters(run.method) | {"L": run.f.L, "mu": run.f.mu},
        passes=run.client.rows / run.f.rows,
        seconds=run.seconds + lost[2],
        inner=None if inner is None else inner.worst,
        inner_failures=run.solo.inner_failures,
        warnings=(*run.notes, *_doubts(run)),
        plan=plan,
    )


def _doubts(run: Descent) -> list[str]:
    """What is known against the prox."""
    checked, psi = run.solo.checked, run.task.psi
    said = [] if checked is None or not checked.said else [checked.said]
    theirs = getattr(psi, "operator", None)
    if hasattr(theirs, "niter") or hasattr(theirs, "maxiter"):
        said.append(
            f"{type(theirs).__name__} stops after some iterations, and nobody knows how exact its prox is; "
            "the certificate takes it for exact."
        )
        warnings.warn(said[-1], prox.ProxWarning, stacklevel=4)
    return said


def _only_once(method: Any, p: Any, gamma: Any, tau: Any, dual: Any, eps: Any) -> None:
    """Refuse what the method would ignore."""
    if not isinstance(method, str):
        if any(v is not None for v in (p, gamma, tau)):
            raise InputError("a method object has its own p, gamma and tau; leave them out.")
        if eps is not None:
            raise InputError("eps lets the corollary choose p and gamma, which a method object has; leave it out.")
        return
    if eps is not None and (p is not None or gamma is not None):
        raise InputError("eps lets the corollary choose p and gamma; leave them out.")
    if p is not None and method in ("proxgd", "fista", "fista-restart", "papc", "pdhg"):
        raise InputError(f"{method} has no p; leave it out.")
    if tau is not None and method not in ("splitskip", "papc", "pdhg", "auto"):
        raise InputError(f"{method} has no tau; leave it out.")
    if dual is not None and method in ("proxgd", "fista", "fista-restart"):
        raise InputError(f"{method} has no dual variable; leave dual out.")


def _handled(method: Method, task: Task) -> None:
    """Refuse a method object that would leave out a part of the problem."""
    for part, there in (("psi", task.psi), ("D", task.D), ("batch", task.batch)):
        if there is not None and part not in method.handles:
            raise InputError(f"{method.name} has no {part}, and would leave it out; use another method.")
    if task.D is None and "D" in method.handles:
        raise InputError(f"{method.name} is for psi(D x) and no D was given.")


def _dual(dual: Any, task: Task) -> Array | None:
    if dual is None:
        return None
    v = np.array(dual, dtype=np.float64).ravel()
    want = task.f.d if task.D is None else task.D.shape[0]
    if v.shape != (want,) or not np.isfinite(v).all():
        raise InputError(f"dual must be {want} finite numbers; it has shape {np.shape(dual)}.")
    return v


def _text(v: Any) -> str:
    if isinstance(v, IntEnum):
        return f"{int(v)} ({v.name})"
    return f"{v:.6g}" if isinstance(v, float) else str(v)
