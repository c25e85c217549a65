"""Run a method on a problem through an engine: everything is checked first, and then the loop goes."""

from __future__ import annotations

import warnings as _warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from proxskip import theory
from proxskip.engines.cpu.engine import CpuEngine
from proxskip.engines.reference import ReferenceEngine
from proxskip.links.cohorts import Everyone, Given, Participation, as_participation
from proxskip.links.sums import weighted_sum
from proxskip.loop import fit
from proxskip.loop.loop import Callback, Loop
from proxskip.loop.stop import RUN_RULES, Stop
from proxskip.problems.federated import Problem
from proxskip.results import description, folder
from proxskip.results.result import Result
from proxskip.seam import Engine, Method
from proxskip.types import Array, InputError, UnsafeStepWarning, Vectors


def run(
    method: Method,
    problem: Problem,
    *,
    rounds: int | None = None,
    iterations: int | None = None,
    seconds: float | None = None,
    tol: float | None = None,
    target: float | None = None,
    seed: int = 0,
    engine: str | Engine = "cpu",
    cohort: Any = None,
    x0: Any = None,
    h0: Any = None,
    warm: Result | None = None,
    every: int | None = None,
    out: str | Path | None = None,
    force: bool = False,
    checkpoint_every: int | None = None,
    callbacks: Sequence[Callback] = (),
    allow_unsafe_step: bool = False,
    threads: int | None = None,
    spec: dict[str, Any] | None = None,
) -> Result:
    """Run a method on a problem through an engine.

    Args:
        rounds: stop after so many communication rounds; likewise ``iterations`` (local steps of a client; the round
            that reaches it is finished) and ``seconds`` (without evaluation).
        tol: stop when the gradient norm (with psi the prox-gradient residual) at the communicated x is below.
        target: stop when f(x) - f* is below.
        cohort: None for everybody, c for uniform cohorts of c clients, a probability below 1 (or one per client), or
            a list of cohorts.
        x0, h0: where to start (zeros); ``warm`` starts from an earlier result's x and h.
        every: record every so many rounds; by default each of the first 100, then ever more rarely.
        out: a run folder; never overwritten unless ``force``.
        checkpoint_every: write a checkpoint every so many rounds (about every 30 seconds if not given).
        allow_unsafe_step: run with step sizes that the method's limits refuse.

    >>> import proxskip as ps
    >>> A, b = ps.datasets.load("digits")
    >>> problem = ps.split(ps.Logistic(A, b, l2=1e-2, l2_relative=True), clients=10, by="label")
    >>> result = ps.run(ps.Scaffnew.theory(problem), problem, tol=1e-6, seed=0)
    >>> result.status.name, result.success
    ('CONVERGED', True)
    """
    stop = Stop(rounds, iterations, seconds, tol, target)
    participation = as_participation(cohort)
    method, notes = prepare(method, problem, participation, allow_unsafe_step)
    stop.check(problem)
    seed = theory.whole_seed(seed)
    loop = Loop(method, problem, stop, seed, participation, make_engine(engine, threads), every, notes)
    loop.config = description.config(method, problem, stop.rules, seed, loop.engine.name, participation, spec or {})
    loop.config["every"] = every
    start = starting_point(method, problem, participation, x0, h0, warm)
    loop.keep = folder.create(out, loop.config, force, checkpoint_every) if out is not None else None
    with loop.closed_on_error():
        loop.start(*start)
    return loop.go(callbacks)


def resume(
    path: str | Path,
    problem: Problem,
    *,
    callbacks: Sequence[Callback] = (),
    threads: int | None = None,
    engine: Engine | None = None,
    **more: Any,
) -> Result:
    """Go on where a run folder's checkpoint stands; the trajectory is bitwise that of the run never interrupted.

    Args:
        path: the run folder.
        problem: the same problem; another one is refused with the list of differences.
        engine: one of the kind that the run was on; by default a new one.
        more: new limits (rounds, iterations, seconds, tol, target) in place of the old ones.
    """
    keep = folder.reopen(Path(path))
    folder.same_run({"problem": keep.config.get("problem")}, {"problem": description.identity(problem)})
    method, participation = description.revive(keep.config)
    limits = {k: keep.config["stop"].get(k) for k in RUN_RULES} | more
    stop = Stop(**limits)
    method, notes = prepare(method, problem, participation, insist=True)
    stop.check(problem)
    engine = engine or make_engine(keep.config["engine"], threads)
    loop = Loop(method, problem, stop, keep.config["seed"], participation, engine, keep.config["every"], notes)
    loop.config = description.config(
        method, problem, stop.rules, loop.seed, engine.name, participation, keep.config.get("spec") or {}
    )
    loop.config["every"] = loop.every
    folder.same_run(keep.config, loop.config)
    keep.config = loop.config
    loop.keep = keep
    with loop.closed_on_error():
        loop.restore(keep.checkpoint)
    return loop.go(callbacks)


def prepare(method: Method, problem: Problem, participation: Participation, insist: bool) -> tuple[Method, list[str]]:
    """Everything that can be refused is refused here, before any work."""
    if not isinstance(method, Method):
        raise InputError(
            f"{type(method).__name__} is not a method; derive it from proxskip.Method and give it an about."
        )
    participation.check(problem.n)
    fit.check_fit(method, problem, isinstance(participation, Everyone))
    notes = method.check(problem, insist)
    if not isinstance(participation, Everyone):
        method, more = method.for_cohorts(participation, problem.n)
        notes = notes + more
    if isinstance(participation, Given) and len(groups := participation.apart(problem.n)) > 1:
        shown = "; ".join(str(g[:8])[1:-1] + (", ..." if len(g) > 8 else "") for g in groups[:4])
        notes = [*notes, f"these cohorts never bring the clients {shown} together, so each group goes its own way."]
    for note in notes:
        _warnings.warn(note, UnsafeStepWarning, stacklevel=3)
    return method, notes


def make_engine(engine: str | Engine, threads: int | None = None) -> Engine:
    """An engine by its name, or the engine itself."""
    if not isinstance(engine, str):
        if isinstance(engine, type) or not hasattr(engine, "is_far"):
            name = engine.__name__ if isinstance(engine, type) else type(engine).__name__
            raise InputError(f"{name} is not an engine; give an object of a class that derives from seam.Engine.")
        return engine
    if engine == "cpu":
        return CpuEngine(threads)
    if engine == "reference":
        return ReferenceEngine()
    if engine == "gpu":
        from proxskip.engines.gpu.engine import GpuEngine

        return GpuEngine()
    if engine == "ray":
        from proxskip.engines.ray.engine import RayEngine

        return RayEngine()
    raise InputError(f'engine "{engine}" is not known; use "cpu", "gpu", "ray" or "reference".')


def starting_point(
    method: Method, problem: Problem, participation: Participation, x0: Any, h0: Any, warm: Result | None
) -> tuple[Array, Array, Vectors]:
    """x0, h0 and, for a dual method, the server's y, checked; ``warm`` gives what fits of an earlier result."""
    dual: Vectors = {}
    if problem.D is not None:
        if h0 is not None:
            raise InputError("with psi(D x) the control variate is h = -D'y; start from an earlier result with warm.")
        y = None if warm is None else warm.server.get("y")
        if warm is not None and warm.summary()["method"] == method.name and y is not None:
            dual, h0 = {"y": y}, -np.asarray(problem.D.T @ y)
    elif warm is not None and "h" in method.remembers and h0 is None:
        h0 = warm.h
    x0 = warm.x if warm is not None and x0 is None else x0
    x = np.zeros(problem.d) if x0 is None else np.array(x0, dtype=np.float64)
    h = np.zeros((problem.n, problem.d)) if h0 is None else np.atleast_2d(np.array(h0, dtype=np.float64))
    if x.shape != (problem.d,) or not np.isfinite(x).all():
        raise InputError(f"x0 must be {problem.d} finite numbers; it has shape {x.shape}.")
    if h.shape != (problem.n, problem.d) or not np.isfinite(h).all():
        raise InputError(f"h0 must be finite with shape ({problem.n}, {problem.d}); it has shape {h.shape}.")
    if h.any() and "h" not in method.remembers:
        raise InputError(f"{method.name} has no control variates; start it without h0.")
    total = np.abs(weighted_sum(problem.weights, h)).max()
    heals = bool(dual) or (method.about.heals and isinstance(participation, Everyone))
    if not heals and total > 1e-9 * (1.0 + np.abs(h).max()):
        raise InputError(
            f"sum_i w_i h0_i has an entry of {total:.3g}; it must be zero here, or the answer would be wrong."
        )
    return x, h, dual
