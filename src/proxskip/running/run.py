"""``run`` and ``resume``: check everything first, then start the loop."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import numpy as np
import numpy.typing as npt

from proxskip import theory
from proxskip.core.engine import Engine
from proxskip.core.method import Method
from proxskip.networks import Network
from proxskip.participation import CohortLike, Everyone, Participation
from proxskip.problems.federated import Problem
from proxskip.results import description, folder
from proxskip.results.result import RunResult
from proxskip.running import checkpoint_validation
from proxskip.running.listen import check_callbacks, tell_end
from proxskip.running.loop import Loop
from proxskip.running.progress import shown
from proxskip.running.records import columns_of
from proxskip.running.run_spec import RunSpec, as_method, as_problem
from proxskip.running.stop import RUN_RULES, Stop
from proxskip.support.sums import weighted_sum
from proxskip.types import Array, InputError, NoTheoremWarning, Oracle, Vectors

__all__ = ["as_method", "as_problem", "checked_x0", "make_engine", "real_numbers", "resume", "run", "starting_point"]


def run(
    method: Method | type[Method] | str, problem: Problem | Oracle, *, rounds: int | None = None,
    iterations: int | None = None, seconds: float | None = None, tol: float | None = None, target: float | None = None,
    seed: int = 0, engine: str | Engine = "cpu", cohort: CohortLike = None, x0: npt.ArrayLike | None = None,
    h0: npt.ArrayLike | None = None,
    warm: RunResult | None = None, every: int | None = None, out: str | Path | None = None, force: bool = False,
    checkpoint_every: int | None = None, callbacks: Sequence[object] = (), allow_unsafe_step: bool = False,
    threads: int | None = None, spec: dict[str, Any] | None = None, progress: bool | None = None,
    network: Network | str | None = None,
) -> RunResult:  # fmt: skip
    """Run a method on a problem through an engine.

    Args:
        method: a method; its class or its name means the parameters of its theorem for this problem.
        problem: the problem; a single function, such as a model, is the problem of one client.
        rounds: stop after this many communication rounds.
        iterations: stop after this many local steps of a client; the round that reaches it is finished.
        seconds: stop after this time, without evaluation.
        tol: stop when the gradient norm (with psi the prox-gradient residual) at the communicated x is below.
        target: stop when f(x) - f* is below.
        seed: random seed; one engine on one machine repeats a run bit for bit.
        engine: "cpu", "reference", "gpu", "ray", "torch", or an engine object such as ``RayEngine``.
        cohort: None for everybody, c for uniform cohorts of c clients, a probability below 1 (or one per client), or
            a list of cohorts.
        x0, h0: initial model and control variates; zeros by default.
        warm: an earlier result, from whose x and h to start.
        every: rounds between records; by default each of the first 100, then ever more rarely.
        out: a run folder; ``load`` reads it, and ``resume`` goes on with it.
        force: overwrite a run that is in the folder already.
        checkpoint_every: rounds between checkpoints; about every 30 seconds if not given.
        callbacks: objects with any of the methods of ``proxskip.callbacks.Callback``.
        allow_unsafe_step: run with step sizes that the method's limits refuse.
        threads: how many the engine uses; all cores if not given.
        spec: metadata stored with the run.
        progress: show it in one line, or in lines without a terminal; by default in a terminal or a notebook only.
        network: a Network, or the name of one: the trace gains ``sim_seconds``, the simulated time over it, and clients
            that it delays or loses are missing as in a federation.

    >>> import proxskip as ps
    >>> A, b = ps.datasets.load("digits")
    >>> problem = ps.split(ps.Logistic(A, b, l2_relative=1e-2), clients=10, by="label")
    >>> result = ps.run(ps.Scaffnew.theory(problem), problem, tol=1e-6, seed=0)
    >>> result.status.name
    'CONVERGED'
    """
    check_callbacks(callbacks)
    stop = Stop(rounds=rounds, iterations=iterations, seconds=seconds, tol=tol, target=target)
    described = RunSpec.of(
        method, problem, stop, seed=seed, cohort=cohort, network=network, engine=make_engine(engine, threads),
        every=every, allow_unsafe_step=allow_unsafe_step, source=spec,
        fingerprinted=out is not None or bool(callbacks),
    )  # fmt: skip
    for note in described.uncovered:
        warnings.warn(note, NoTheoremWarning, stacklevel=3)
    start = starting_point(described.method, described.problem, described.asked, x0, h0, warm)
    if out is not None:
        folder.check(out, force, checkpoint_every)
    with shown(described.method.name, progress) as bars:
        listeners = (*callbacks, *bars)
        with Loop(described) as loop:
            loop.start(*start)  # finding f* may take long: an interrupt until here leaves no folder
            if out is not None:
                loop.keep_in(folder.create(out, loop.config, force, checkpoint_every))
            result = loop.go(listeners)
        tell_end(listeners, result)
    return result


def resume(
    path: str | Path,
    problem: Problem | Oracle,
    *,
    rounds: int | None = None,
    iterations: int | None = None,
    seconds: float | None = None,
    tol: float | None = None,
    target: float | None = None,
    checkpoint_every: int | None = None,
    callbacks: Sequence[object] = (),
    threads: int | None = None,
    engine: str | Engine | None = None,
    progress: bool | None = None,
) -> RunResult:
    """Continue a run folder from its checkpoint; the trajectory is bitwise that of an uninterrupted run.

    Args:
        path: the run folder.
        problem: the same problem; another one is refused with the list of differences.
        rounds, iterations, seconds, tol, target: limits in place of the old ones; those not given stay as they were.
        checkpoint_every, callbacks, progress: as in ``run``.
        threads: as in ``run``; the number may change.
        engine: one of the kind that the run was on; by default a new one.
    """
    given = {"rounds": rounds, "iterations": iterations, "seconds": seconds, "tol": tol, "target": target}
    limits = {name: limit for name, limit in given.items() if limit is not None}
    return go_on(
        path, problem, limits, checkpoint_every=checkpoint_every, callbacks=callbacks, threads=threads, engine=engine,
        progress=progress,
    )  # fmt: skip


def go_on(
    path: str | Path,
    problem: Problem | Oracle,
    limits: Mapping[str, float],
    *,
    checkpoint_every: int | None,
    callbacks: Sequence[object],
    threads: int | None,
    engine: str | Engine | None,
    progress: bool | None,
) -> RunResult:
    """``resume`` with these limits in place of the old ones; None takes a limit away."""
    check_callbacks(callbacks)
    problem = as_problem(problem)
    folder.check_every(checkpoint_every)
    with closing(folder.reopen(Path(path))) as keep:
        described = _saved(keep, problem, threads, engine, limits)
        config = described.plain()
        folder.same_run(keep.config, config)
        keep.config, keep.every = config, checkpoint_every
        assert keep.checkpoint is not None
        rows = checkpoint_validation.rows_of(keep, described.method, problem)
        with shown(described.method.name, progress) as bars:
            listeners = (*callbacks, *bars)
            with Loop(described, keep) as loop:
                loop.restore(keep.checkpoint, rows)
                result = loop.go(listeners)
            tell_end(listeners, result)
    return result


def _saved(
    keep: folder.Folder, problem: Problem, threads: int | None, engine: str | Engine | None, limits: Mapping[str, float]
) -> RunSpec:
    """The spec of a saved run, if the problem and the new limits fit."""
    assert keep.checkpoint is not None
    config = keep.config
    folder.same_run({"problem": config.get("problem")}, {"problem": description.identity(problem)})
    method, cohort = description.revive(config)
    network = None if config.get("network") is None else Network.of(config["network"])
    described = RunSpec.of(
        method, problem, Stop(**{k: config["stop"].get(k) for k in RUN_RULES} | dict(limits)), seed=config["seed"],
        cohort=cohort, network=network, engine=make_engine(engine or config["engine"], threads),
        every=config["every"], allow_unsafe_step=True, source=config.get("spec"),
    )  # fmt: skip
    checkpoint_validation.check(keep.checkpoint, described.method, problem, columns_of(problem, network is not None))
    return described


ENGINES = {
    "cpu": "cpu.engine:CpuEngine",
    "gpu": "gpu.engine:GpuEngine",
    "ray": "ray.engine:RayEngine",
    "reference": "reference:ReferenceEngine",
    "torch": "torch.engine:TorchEngine",
}
"""Where each engine is in ``proxskip.engines``; its module is imported on first use."""


def make_engine(engine: object, threads: int | None = None) -> Engine:
    """An engine by its name, or the engine itself."""
    if threads is not None:
        theory.whole("threads", threads)
        if isinstance(engine, Engine):
            raise InputError("an engine that is an object has its own threads; leave out threads=.")
        if engine != "cpu":
            raise InputError(f'the engine "{engine}" does not take threads=; leave it out, or use engine="cpu".')
    if isinstance(engine, Engine):
        return engine
    if not isinstance(engine, str):
        name = engine.__name__ if isinstance(engine, type) else type(engine).__name__
        raise InputError(
            f'{name} is not an engine; pass a name such as "cpu", or an object derived from proxskip.core.Engine.'
        )
    if engine not in ENGINES:
        raise InputError(f'engine "{engine}" is not known; use "cpu", "gpu", "ray", "reference" or "torch".')
    try:
        kind: Callable[..., Engine] = resolve_name(f"proxskip.engines.{ENGINES[engine]}")
    except ImportError:
        if engine != "torch":
            raise
        raise InputError(
            'engine "torch" needs PyTorch, which is not installed; run  pip install "proxskip[torch]"  or use '
            'engine="cpu".'
        ) from None
    return kind(threads) if engine == "cpu" else kind()


def starting_point(
    method: Method,
    problem: Problem,
    participation: Participation,
    x0: npt.ArrayLike | None,
    h0: npt.ArrayLike | None,
    warm: RunResult | None,
) -> tuple[Array, Array | None, Vectors]:
    """x0, h0 (None for zeros) and a dual method's y, checked; ``warm`` supplies what fits of an earlier result."""
    dual: Vectors = {}
    if warm is not None and not isinstance(warm, RunResult):
        raise InputError("warm must be a result of run.")
    if problem.D is not None:
        if h0 is not None:
            raise InputError("with psi(D x), h is -D'y and cannot be given; start from an earlier result with warm=.")
        y = None if warm is None else warm.server.get("y")
        if warm is not None and warm.summary["method"] == method.name and y is not None:
            dual, h0 = {"y": y}, -np.asarray(problem.D.T @ y)
    elif warm is not None and "h" in method.remembers and h0 is None:
        h0 = warm.h
    x = checked_x0(problem, warm.x if warm is not None and x0 is None else x0)
    if h0 is None:
        return x, None, dual
    h = np.atleast_2d(real_numbers("h0", h0))
    if h.shape != (problem.n, problem.d) or not np.isfinite(h).all():
        raise InputError(f"h0 must be a finite array of shape ({problem.n}, {problem.d}), not {h.shape}.")
    if h.any() and "h" not in method.remembers:
        raise InputError(f"{method.name} has no control variates; leave out h0.")
    total = np.abs(weighted_sum(problem.weights, h)).max()
    heals = bool(dual) or (method.about.heals and isinstance(participation, Everyone))
    if not heals and total > 0 and total > 1e-9 * (np.abs(h).max() + np.abs(problem.client_gradients(x)).max()):
        raise InputError(f"sum_i w_i h0_i must be zero, or the answer is wrong; its largest entry is {total:.3g}.")
    return x, h, dual


def checked_x0(problem: Problem, x0: npt.ArrayLike | None) -> Array:
    """x0 as d finite numbers; by default the clients' own starting point, or zeros."""
    start = problem.own_start() if x0 is None else x0  # such as a network's weights
    x = np.zeros(problem.d) if start is None else real_numbers("x0", start)
    if x.shape != (problem.d,) or not np.isfinite(x).all():
        raise InputError(f"x0 must be {problem.d} finite numbers, not an array of shape {x.shape}.")
    return x


def real_numbers(name: str, values: npt.ArrayLike) -> Array:
    """A copy in float64, refused unless it holds real numbers."""
    with suppress(TypeError, ValueError):  # rows of unequal length, or objects that are no numbers
        array = np.array(values)
        if array.dtype.kind in "biufO":
            return array.astype(np.float64)
    raise InputError(f"{name} must be real numbers, not {values!r:.40}.")
