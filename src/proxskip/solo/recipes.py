"""From what ``minimize`` is given to a problem and a method; everything that can be refused is refused here."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.sparse

from proxskip import theory
from proxskip.methods import PDHG, Accelerated, Fista, ProxGD, ProxSkip, SplitSkip, SProxSkip
from proxskip.problems import operators, oracles
from proxskip.problems.federated import Problem
from proxskip.prox import as_prox
from proxskip.seam import Method
from proxskip.solo import functions
from proxskip.solo.descent import Task
from proxskip.solo.functions import Linear, Smooth
from proxskip.types import Array, InputError

NAMES = (
    "auto", "proxgd", "fista", "fista-restart", "proxskip", "sproxskip", "splitskip", "papc", "pdhg",
)  # fmt: skip
WITH_D = ("auto", "splitskip", "papc", "pdhg")
NEEDS_MU = ("proxskip", "sproxskip", "splitskip")


def prepare(
    f: Any, psi: Any, x0: Any, name: str, *, D: Any, L: Any, mu: Any, D_norm: Any, batch: Any, eps: Any, p: Any
) -> tuple[Task, Array]:
    """Everything that can be refused without work; the problem and where to start."""
    psi = as_prox(psi)
    if name in NAMES:
        _check_name(name, psi, D, batch, eps)
    if x0 is None:
        d = oracles.dimension_of(f)
        if d is None:
            raise InputError("give x0: f does not say how many unknowns there are.")
        x0 = np.zeros(d)
    if scipy.sparse.issparse(x0):
        raise InputError("x0 is sparse; give an array.")
    if np.iscomplexobj(x0):
        raise InputError("x0 is complex; it must be real.")
    start = np.array(x0, dtype=np.float64)
    if not np.isfinite(start).all() or start.size == 0:
        raise InputError("x0 must hold finite numbers, one at least.")
    needed = name not in ("proxgd", "fista-restart", "papc") and not (
        name in NEEDS_MU and p is not None and eps is None
    )
    smooth = functions.as_smooth(f, start.shape, L, mu, mu_needed=needed)
    if name in NEEDS_MU and p is None and smooth.mu is None:
        raise InputError(
            f"mu is unknown, and {name} takes its p from it; give mu, the strong convexity of f, or p, say p = 0.1."
        )
    if name in NEEDS_MU and p is None and smooth.L is None and D is not None:
        raise InputError("L is unknown; splitskip takes its p from L and mu, so give L or p.")
    b = None if batch is None else functions.sampling(smooth, batch)
    operator = None if D is None else Linear(D, smooth.d, D_norm)
    shape = start.shape
    return Task(smooth, psi, operator, shape, b, None if D_norm is None else float(D_norm)), start.ravel()


def _check_name(name: str, psi: Any, D: Any, batch: Any, eps: Any) -> None:
    if D is not None and psi is None:
        raise InputError("D was given without psi; the problem is f(x) + psi(D x).")
    if D is not None and name not in WITH_D:
        raise InputError(f'{name} cannot solve psi(D x); use "splitskip", "papc" or "pdhg".')
    if D is None and name in ("splitskip", "papc", "pdhg"):
        raise InputError(f'{name} is for psi(D x) and no D was given; use "proxskip" for psi(x).')
    if name == "sproxskip" and batch is None:
        raise InputError('sproxskip is for stochastic gradients; give batch, or use "proxskip".')
    if batch is not None and name not in ("proxgd", "proxskip", "sproxskip", "splitskip", "papc"):
        raise InputError(f'{name} needs full gradients; leave out batch, or use "sproxskip".')
    if eps is not None and name != "sproxskip":
        raise InputError("eps is the accuracy of sproxskip's corollary; give tol instead.")


def recipe(
    name: str, *, p: float | None = None, gamma: float | None = None, tau: float | None = None
) -> Callable[[Problem, Smooth], Method]:
    """How to make the method of this name once L is known; what is given goes before its theorem's choice."""
    if name not in NAMES or name == "auto":
        raise InputError(f'method "{name}" is not known; use {", ".join(NAMES)}, or a method object.')

    def make(problem: Problem, f: Smooth) -> Method:
        step = 1.0 / problem.L if gamma is None else gamma
        if name == "proxgd":
            return ProxGD(step)
        if name == "fista" and f.mu is not None:
            root = math.sqrt(min(1.0, step * f.mu))
            return Accelerated(step, (1.0 - root) / (1.0 + root))
        if name in ("fista", "fista-restart"):
            return Fista(step)
        if name in ("proxskip", "sproxskip"):
            q = theory.best_p(step, f.mu) if p is None else p
            return ProxSkip(step, q) if name == "proxskip" else SProxSkip(step, q)
        return _dual_method(name, problem, f, step, p, gamma, tau)

    return make


def _dual_method(
    name: str, problem: Problem, f: Smooth, step: float, p: float | None, gamma: float | None, tau: float | None
) -> Method:
    norm2 = operators.operator_norm2(problem.D)
    if name == "pdhg":
        made = PDHG.theory(problem, accelerate=False)
        step = made.gamma if gamma is None else gamma
        return PDHG(step, max(1.0 / step - problem.L, 0.0) / norm2 if tau is None else tau)
    if name == "papc":
        p = 1.0
    elif p is None:
        lmin = operators.smallest_positive(problem.D)
        if lmin is None:
            raise InputError("the smallest positive eigenvalue of D D' is too expensive to compute here; give p.")
        p = theory.split_p(step, f.mu, norm2, lmin)
    return SplitSkip(step, p, theory.split_tau(step, p, norm2) if tau is None else tau)
