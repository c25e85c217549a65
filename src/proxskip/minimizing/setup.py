"""From what ``minimize`` is given to a problem and a method by name; everything that can be refused is refused here."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from proxskip import theory
from proxskip.core.method import Method
from proxskip.methods import APDA, PDHG, Accelerated, Fista, ProxGD, ProxSkip, SplitSkip, SProxSkip
from proxskip.methods.apda import SplitAPDA
from proxskip.minimizing import functions
from proxskip.minimizing.descent import Task
from proxskip.minimizing.functions import Linear, Smooth
from proxskip.problems import operators, oracles
from proxskip.problems.federated import Problem
from proxskip.prox import as_prox
from proxskip.running.run import real_numbers
from proxskip.running.run_spec import check_parts
from proxskip.types import Array, InputError, Matrix, is_sparse

METHODS = {
    "auto": {"psi(x)", "psi(D x)", "p", "dual", "mu"},
    "proxgd": {"psi(x)", "batch"},
    "fista": {"psi(x)", "mu"},
    "fista-restart": {"psi(x)"},
    "proxskip": {"psi(x)", "p", "dual", "mu", "batch"},
    "sproxskip": {"psi(x)", "p", "dual", "mu", "batch"},
    "apda": {"psi(x)", "psi(D x)", "dual", "mu"},
    "splitskip": {"psi(D x)", "p", "tau", "dual", "mu", "batch"},
    "papc": {"psi(D x)", "tau", "dual", "batch"},
    "pdhg": {"psi(D x)", "tau", "dual", "mu"},
}
"""What each method solves, which parameters it has, and whether it uses mu and minibatches."""


# -- the problem -------------------------------------------------------------------------------------------------------
def prepare(
    f: Any,
    psi: object,
    x0: npt.ArrayLike | None,
    name: str,
    D: Matrix | None = None,
    L: float | None = None,
    mu: float | None = None,
    batch: int | None = None,
    p: float | None = None,
) -> tuple[Task, Array]:
    """The problem and where to start; raises for all that can be refused without work."""
    if isinstance(f, Problem) and (f.psi is not None or f.batch is not None):
        raise InputError("minimize takes the smooth part alone; give psi, D and batch as arguments, or use run.")
    if isinstance(f, type):
        raise InputError(f"f is the class {f.__name__}; give an object of it, with its data.")
    psi = as_prox(psi)
    if name in METHODS:
        _check_name(name, psi, D, batch)
    start = _start(f, x0)
    # computing mu may cost an eigenvalue problem, so it is read only for methods that use it
    has = METHODS.get(name, {"mu"})
    takes_p = "p" in has and p is None and name != "auto"
    uses_mu = "mu" in has and (p is None or "p" not in has)
    smooth = functions.as_smooth(f, start.shape, L, mu, mu_needed=uses_mu, hurry=name == "auto")
    if takes_p and smooth.mu is None:
        raise InputError(f"mu is unknown, and {name} takes its p from it; give mu (strong convexity), or p, say 0.1.")
    if takes_p and smooth.L is None and D is not None:
        raise InputError("L is unknown; splitskip takes its p from L and mu, so give L or p.")
    b = None if batch is None else functions.sampling(smooth, batch)
    return Task(smooth, psi, None if D is None else Linear(D, smooth.d), start.shape, b), start.ravel()


def _start(f: object, x0: npt.ArrayLike | None) -> Array:
    if x0 is None:
        d = oracles.dimension_of(f)
        if d is None:
            raise InputError("pass x0: f has no attribute d, the number of unknowns.")
        x0 = np.zeros(d)
    if is_sparse(x0):
        raise InputError("x0 is sparse; give an array.")
    start = real_numbers("x0", x0)
    if not np.isfinite(start).all() or start.size == 0:
        raise InputError("x0 must hold finite numbers, one at least.")
    return start


def _check_name(name: str, psi: object, D: Matrix | None, batch: int | None) -> None:
    """Refuse a named method for a problem that it does not solve."""
    if D is not None and psi is None:
        raise InputError("D was given without psi; the problem is f(x) + psi(D x).")
    if D is not None and "psi(D x)" not in METHODS[name]:
        raise InputError(f'{name} cannot solve psi(D x); use "apda", "splitskip", "papc" or "pdhg".')
    if D is None and "psi(x)" not in METHODS[name]:
        raise InputError(f'{name} is for psi(D x) and no D was given; use "proxskip" for psi(x).')
    if name == "sproxskip" and batch is None:
        raise InputError('sproxskip is for stochastic gradients; give batch, or use "proxskip".')
    if batch is not None and "batch" not in METHODS[name]:
        raise InputError(f'{name} needs full gradients; leave out batch, or use "sproxskip".')


# -- the method --------------------------------------------------------------------------------------------------------
def check_arguments(method: object, p: object, gamma: object, tau: object, dual: object) -> None:
    """Refuse what is no method, and arguments that the method would ignore."""
    if not isinstance(method, (str, Method)):
        raise InputError(f"method = {method!r} is neither a name nor a method object such as ProxSkip(gamma, p).")
    if not isinstance(method, str):
        if any(v is not None for v in (p, gamma, tau)):
            raise InputError("a method object has its own p, gamma and tau; leave them out.")
        return
    for name, value in (("p", p), ("tau", tau), ("dual", dual)):
        if value is not None and name not in METHODS.get(method, {name}):
            raise InputError(f"{method} has no {'dual variable' if name == 'dual' else name}; leave {name} out.")


def check_method(method: Method, task: Task) -> None:
    """Refuse a method object that would leave out a part of the problem."""
    check_parts(method, task.psi, task.D, task.batch)
    if task.D is None and "D" in method.handles:
        raise InputError(f"{method.name} is for psi(D x) and no D was given.")


def checked_dual(dual: npt.ArrayLike | None, task: Task) -> Array | None:
    """h or y to start from, as a flat vector of the right length."""
    if dual is None:
        return None
    v = real_numbers("dual", dual).ravel()
    want = task.f.d if task.D is None else task.D.shape[0]
    if v.shape != (want,) or not np.isfinite(v).all():
        raise InputError(f"dual must be {want} finite numbers; it has shape {np.shape(dual)}.")
    return v


def method_maker(
    name: str, *, p: float | None = None, gamma: float | None = None, tau: float | None = None
) -> Callable[[Problem, Smooth], Method]:
    """A function that makes the method of this name once L is known; arguments override its theorem's choices."""
    if name not in METHODS or name == "auto":
        raise InputError(f'method "{name}" is not known; use {", ".join(METHODS)}, or a method object.')

    def make(problem: Problem, f: Smooth) -> Method:
        step = 1.0 / problem.L if gamma is None else gamma
        if name == "proxgd":
            return ProxGD(step)
        if name == "fista" and f.mu is not None:
            root = math.sqrt(min(1.0, step * f.mu))
            return Accelerated(step, (1.0 - root) / (1.0 + root))
        if name in ("fista", "fista-restart"):
            return Fista(step)
        if name == "apda":
            return apda(problem, gamma)
        if name in ("proxskip", "sproxskip"):
            q = theory.best_p(step, theory.known(f.mu)) if p is None else p
            return ProxSkip(step, q) if name == "proxskip" else SProxSkip(step, q)
        if name == "pdhg":
            completed: Method = PDHG.theory(problem, gamma=gamma, tau=tau, mu=0.0)
            return completed
        return _splitskip(problem, f, step, 1.0 if name == "papc" else p, tau)

    return make


def apda(problem: Problem, gamma: float | None = None) -> Method:
    """APDA for psi(x) or for psi(D x), with this first gamma or its theorem's."""
    kind = APDA if problem.D is None else SplitAPDA
    method: Method = kind.theory(problem, gamma=gamma)
    return method


def _splitskip(problem: Problem, f: Smooth, step: float, p: float | None, tau: float | None) -> SplitSkip:
    """SplitSkip with this p, or with the p of its theorem."""
    norm2 = operators.operator_norm2(problem.D)
    if p is None:
        lmin = operators.smallest_positive(problem.D)
        if lmin is None:
            raise InputError("the smallest positive eigenvalue of D D' is too expensive to compute here; give p.")
        p = theory.split_p(step, theory.known(f.mu), norm2, lmin)
    return SplitSkip(step, p, theory.split_tau(step, p, norm2) if tau is None else tau)
