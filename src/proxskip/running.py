"""Run a method on a problem through an engine: everything is checked first, and then the loop goes."""

from __future__ import annotations

import warnings as _warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from proxskip import registry, theory
from proxskip.engines.cpu.engine import CpuEngine
from proxskip.engines.reference import ReferenceEngine
from proxskip.links.cohorts import Everyone, Given, Participation, as_participation
from proxskip.links.network import Network
from proxskip.links.sums import weighted_sum
from proxskip.loop import fit, restored
from proxskip.loop.listen import check_callbacks
from proxskip.loop.loop import Loop, columns_of
from proxskip.loop.progress import shown
from proxskip.loop.simulated_time import Clock, asked_by
from proxskip.loop.stop import RUN_RULES, Stop
from proxskip.problems.federated import Problem
from proxskip.problems.oracles import is_oracle
from proxskip.results import description, folder
from proxskip.results.result import Result
from proxskip.seam import Engine, Method
from proxskip.types import Array, InputError, NoTheoremWarning, Oracle, UnsafeStepWarning, Vectors


def run(
    method: Method | type[Method] | str, problem: Problem | Oracle, *, rounds: int | None = None,
    iterations: int | None = None, seconds: float | None = None, tol: float | None = None, target: float | None = None,
    seed: int = 0, engine: str | Engine = "cpu", cohort: Any = None, x0: Any = None, h0: Any = None,
    warm: Result | None = None, every: int | None = None, out: str | Path | None = None, force: bool = False,
    checkpoint_every: int | None = None, callbacks: Sequence[Any] = (), allow_unsafe_step: bool = False,
    threads: int | None = None, spec: dict[str, Any] | None = None, progress: bool | None = None,
    network: Network | str | None = None,
    memory_limit: int | None = None,
) -> Result:  # fmt: skip
    """Run a method on a problem through an engine.

    Args:
        method: a method; its class or its name means the parameters of its theorem for this problem.
        problem: the problem; a single function, such as a model, is the problem of one client.
        rounds: stop after this many communication rounds; likewise ``iterations`` (local steps of a client; the round
            that reaches it is finished) and ``seconds`` (without evaluation).
        tol: stop when the gradient norm (with psi the prox-gradient residual) at the communicated x is below.
        target: stop when f(x) - f* is below.
        cohort: None for everybody, c for uniform cohorts of c clients, a probability below 1 (or one per client), or
            a list of cohorts.
        x0, h0: where to start (zeros); ``warm`` starts from an earlier result's x and h.
        every: rounds between records; by default each of the first 100, then ever more rarely.
        out: a run folder; never overwritten unless ``force``.
        checkpoint_every: rounds between checkpoints; about every 30 seconds if not given.
        callbacks: objects with any of ``on_run_start``, ``on_record``, ``on_run_end`` (see ``proxskip.callbacks``).
        allow_unsafe_step: run with step sizes that the method's limits refuse.
        progress: show a bar, or lines where there is no terminal; by default in a terminal or a notebook only.
        network: a Network, or the name of one: the trace gains ``sim_seconds``, the simulated time over it, and clients
            that it delays or loses are missing as in a federation.
        memory_limit: for cohorts of many clients, bytes of what they remember that stay in memory (2 GiB); the rest
            is kept in unnamed files, in ``out`` or in the folder for temporary files.

    >>> import proxskip as ps
    >>> A, b = ps.datasets.load("digits")
    >>> problem = ps.split(ps.Logistic(A, b, l2=1e-2, l2_relative=True), clients=10, by="label")
    >>> result = ps.run(ps.Scaffnew.theory(problem), problem, tol=1e-6, seed=0)
    >>> result.status.name
    'CONVERGED'
    """
    stop, seed = Stop(rounds, iterations, seconds, tol, target), theory.whole_seed(seed)
    participation = as_participation(cohort)
    check_callbacks(callbacks)
    problem = as_problem(problem)
    network = as_network(network)
    method = as_method(method, problem, cohort, seed)
    asked = participants(method, problem, participation, network)
    method, notes = prepare(method, problem, asked, allow_unsafe_step)
    stop.check(problem)
    clock = None if network is None else Clock(network, problem, method, seed, participation)
    runs_on = make_engine(engine, threads)
    loop = Loop(method, problem, stop, seed, asked, runs_on, every, notes, clock, memory_limit)
    if network is not None and not network.reliable and loop.engine.name == "ray":
        raise InputError("the actors of Ray cannot lose clients; use another engine, or a network without losses.")
    _warn(loop.notes[len(notes) :])
    loop.config = description.config(method, problem, stop.rules, seed, loop.engine.name, participation, spec or {})
    loop.config |= {"every": every} | _told(network, memory_limit)
    _begin(loop, starting_point(method, problem, asked, x0, h0, warm), out, force, checkpoint_every)
    with shown(method.name, progress) as bars:
        return loop.go((*callbacks, *bars))


def _warn(notes: Sequence[str]) -> None:
    for note in notes:
        _warnings.warn(note, NoTheoremWarning, stacklevel=3)


def _told(network: Network | None, memory_limit: int | None) -> dict[str, Any]:
    """What a run's description says of them; nothing where they were not given."""
    said: dict[str, Any] = {} if network is None else {"network": network.plain()}
    return said if memory_limit is None else said | {"memory_limit": memory_limit}


def _begin(
    loop: Loop, start: tuple[Array, Array | None, Vectors], out: str | Path | None, force: bool, every: int | None
) -> None:
    """Start the loop, and make its folder if there is to be one."""
    if out is not None:
        folder.check(out, force, every)
    with loop.closed_on_error():
        loop.start(*start)  # finds f*, which may take long: no folder is left behind by whoever interrupts that
        if out is not None:
            loop.keep = folder.create(out, loop.config, force, every)
            if loop.store is not None:
                loop.store.folder = loop.keep.path
            loop.keep.begin(loop.state())


def resume(
    path: str | Path,
    problem: Problem | Oracle,
    *,
    callbacks: Sequence[Any] = (),
    threads: int | None = None,
    engine: Engine | None = None,
    progress: bool | None = None,
    **more: Any,
) -> Result:
    """Go on where a run folder's checkpoint stands; the trajectory is bitwise that of the run never interrupted.

    Args:
        path: the run folder.
        problem: the same problem; another one is refused with the list of differences.
        engine: one of the kind that the run was on; by default a new one.
        progress: as in ``run``.
        more: new limits (rounds, iterations, seconds, tol, target) in place of the old ones.
    """
    check_callbacks(callbacks)
    problem = as_problem(problem)
    keep = folder.reopen(Path(path))
    try:
        loop = _reopened(keep, problem, threads, engine, more)
    except BaseException:
        keep.close()
        raise
    with loop.closed_on_error():
        assert keep.checkpoint is not None
        loop.restore(keep.checkpoint, restored.rows_of(keep, loop.method, problem, loop.memory_limit))
    with shown(loop.method.name, progress) as bars:
        return loop.go((*callbacks, *bars))


def _reopened(
    keep: folder.Folder, problem: Problem, threads: int | None, engine: Engine | None, more: dict[str, Any]
) -> Loop:
    """The loop of a run folder, if the problem and the new limits fit."""
    with restored.of_a_run():
        restored.check_numbers(keep.config)
        keep.config = description.with_defaults(keep.config)
        description.check_sampling(keep.config["problem"])
        folder.same_run({"problem": keep.config.get("problem")}, {"problem": description.identity(problem)})
        method, participation = description.revive(keep.config)
        limits = {k: keep.config["stop"].get(k) for k in RUN_RULES} | more
        stop = Stop(**limits)
        network = None if keep.config.get("network") is None else Network.of(keep.config["network"])
        asked = participants(method, problem, participation, network)
        method, notes = prepare(method, problem, asked, insist=True)
        stop.check(problem)
        seed, every = theory.whole_seed(keep.config["seed"]), keep.config["every"]
        every = every if every is None else theory.whole("every", every)
        engine = engine or make_engine(keep.config["engine"], threads)
        spec = keep.config.get("spec") or {}
        assert keep.checkpoint is not None
        restored.check(keep.checkpoint, method, problem, columns_of(problem, network is not None))
        clock = None if network is None else Clock(network, problem, method, seed, participation)
    limit = keep.config.get("memory_limit")
    loop = Loop(method, problem, stop, seed, asked, engine, every, notes, clock, limit)
    loop.config = description.config(method, problem, stop.rules, loop.seed, engine.name, participation, spec)
    loop.config |= {"every": loop.every} | _told(network, limit)
    folder.same_run(keep.config, loop.config)
    keep.config = loop.config
    loop.keep = keep
    return loop


def as_network(given: Any) -> Network | None:
    """A network as it is; one by its name."""
    if isinstance(given, str):
        return Network.named(given)
    if given is not None and not isinstance(given, Network):
        raise InputError(f"network is of type {type(given).__name__}; give a proxskip.Network, or the name of one.")
    found: Network | None = given
    return found


def participants(method: Method, problem: Problem, cohort: Participation, network: Network | None) -> Participation:
    """Whom the server asks: the cohort, or what becomes of it where the network may lose clients."""
    return cohort if not isinstance(method, Method) else asked_by(method, problem, cohort, network)


def as_problem(given: Any) -> Problem:
    """A problem as it is; a single function as the problem of one client."""
    if isinstance(given, Problem):
        return given
    if isinstance(given, type) or not is_oracle(given):
        name = f"the class {given.__name__}" if isinstance(given, type) else f"of type {type(given).__name__}"
        raise InputError(f"the problem is {name}; give a proxskip.Problem, or a function such as a Logistic model.")
    return as_problem(Problem([given]))


def as_method(given: Any, problem: Problem, cohort: Any, seed: int) -> Method:
    """A method as it is; one by its class or its name with the parameters of its theorem."""
    # a plugin's method is known by its name too, once it is registered
    kind = registry.named(given) if isinstance(given, str) else given
    if not (isinstance(kind, type) and issubclass(kind, Method)):
        found: Method = given
        return found
    registry.check(kind)
    made: Method = kind.configure(problem, {"seed": seed} | ({} if cohort is None else {"cohort": cohort}))
    return made


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
    if engine == "torch":
        return _torch_engine()
    raise InputError(f'engine "{engine}" is not known; use "cpu", "gpu", "ray", "reference" or "torch".')


def _torch_engine() -> Engine:
    try:
        from proxskip.engines.torch.engine import TorchEngine
    except ImportError:
        raise InputError(
            'engine "torch" needs PyTorch, which is not installed; run  pip install "proxskip[torch]"  or use '
            'engine="cpu".'
        ) from None
    return TorchEngine()


def own_start(problem: Problem) -> Array:
    """Where the clients want to be started, such as at a network's weights; zeros if they do not say."""
    first = problem.own_start()
    return np.zeros(problem.d) if first is None else np.array(first, dtype=np.float64)


def starting_point(
    method: Method, problem: Problem, participation: Participation, x0: Any, h0: Any, warm: Result | None
) -> tuple[Array, Array | None, Vectors]:
    """x0, h0 (None for zeros) and, for a dual method, the server's y, checked; ``warm`` gives what fits of a result."""
    dual: Vectors = {}
    if problem.D is not None:
        if h0 is not None:
            raise InputError("with psi(D x) the control variate is h = -D'y; start from an earlier result with warm.")
        y = None if warm is None else warm.server.get("y")
        if warm is not None and warm.summary()["method"] == method.name and y is not None:
            dual, h0 = {"y": y}, -np.asarray(problem.D.T @ y)
    elif warm is not None and "h" in method.remembers and h0 is None:
        h0 = warm.h
    x = checked_x0(problem, warm.x if warm is not None and x0 is None else x0)
    if h0 is None:
        return x, None, dual
    h = np.atleast_2d(np.array(h0, dtype=np.float64))
    if h.shape != (problem.n, problem.d) or not np.isfinite(h).all():
        raise InputError(f"h0 must be finite with shape ({problem.n}, {problem.d}); it has shape {h.shape}.")
    if h.any() and "h" not in method.remembers:
        raise InputError(f"{method.name} has no control variates; start it without h0.")
    total = np.abs(weighted_sum(problem.weights, h)).max()
    heals = bool(dual) or (method.about.heals and isinstance(participation, Everyone))
    if not heals and total > 0 and total > 1e-9 * (np.abs(h).max() + np.abs(problem.client_gradients(x)).max()):
        raise InputError(
            f"sum_i w_i h0_i has an entry of {total:.3g}; it must be zero here, or the answer would be wrong."
        )
    return x, h, dual


def checked_x0(problem: Problem, x0: Any) -> Array:
    """x0, or where the clients want to be started if it is None, as d finite numbers."""
    x = own_start(problem) if x0 is None else np.array(x0, dtype=np.float64)
    if x.shape != (problem.d,) or not np.isfinite(x).all():
        raise InputError(f"x0 must be {problem.d} finite numbers; it has shape {x.shape}.")
    return x
