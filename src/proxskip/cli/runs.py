"""Runs of the command line: folders, seeds, progress, exit codes."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from proxskip import many_runs
from proxskip.experiments import settings
from proxskip.interfaces import Engine, Method
from proxskip.loop.progress import Progress
from proxskip.many_runs import RunTask, run_many
from proxskip.problems.federated import Problem
from proxskip.registry import METHODS
from proxskip.results import folder, lock
from proxskip.results.result import Result, Status
from proxskip.running import make_engine
from proxskip.types import InputError

DONE, UNEXPECTED, BAD_INPUT, NOT_REACHED, DIVERGED, STALLED, FAILED_CLAIM, INTERRUPTED = 0, 1, 2, 3, 4, 5, 6, 130
CORRUPTED = 7
_OF_A_RUN = ("cohort", "every", "force", "checkpoint_every", "allow_unsafe_step", "threads", "network")
_WORST_FIRST = (INTERRUPTED, CORRUPTED, DIVERGED, STALLED, NOT_REACHED, DONE)


def exit_code(result: Result, has_tolerance: bool) -> int:
    """The exit code of one run, which may have had a tolerance to reach."""
    return {
        Status.CONVERGED: DONE,
        Status.MAX_ROUNDS: NOT_REACHED if has_tolerance else DONE,
        Status.STOPPED: NOT_REACHED if has_tolerance else DONE,
        Status.DIVERGED: DIVERGED,
        Status.STALLED: STALLED,
        Status.PRECISION: NOT_REACHED,
        Status.CORRUPTED: CORRUPTED,
        Status.INTERRUPTED: INTERRUPTED,
    }[result.status]


@dataclass(frozen=True, slots=True)
class MethodRun:
    """One method to run, once per seed."""

    name: str
    method: Method
    out: Path | None = None


@dataclass(frozen=True, slots=True)
class MethodResults:
    """The results of a method in the order of the seeds, and the worst exit code."""

    request: MethodRun
    results: tuple[Result, ...]
    code: int

    @property
    def summaries(self) -> list[dict[str, Any]]:
        """The summaries of all seeds."""
        return [dict(r.summary()) for r in self.results]


def worst(codes: Sequence[int]) -> int:
    """The exit code of several runs together: the worst of them."""
    return next(code for code in _WORST_FIRST if code in codes)


def check(requests: Sequence[MethodRun], problem: Problem, o: Namespace) -> None:
    """Refuse at once what the runs would refuse later; warnings are left to the runs."""
    engine = engine_of(o.engine, o)
    many_runs.check([task for r in requests for task in _tasks(r, r.name, o)], problem, _settings(o, engine))


def _settings(o: Namespace, engine: Engine) -> dict[str, Any]:
    """What all runs of a command share."""
    return {k: vars(o)[k] for k in (*settings.LIMITS, *_OF_A_RUN)} | {"engine": engine}


def _tasks(request: MethodRun, label: str, o: Namespace) -> list[RunTask]:
    """One task for each seed."""
    if o.seeds is None:
        return [RunTask(label, request.method, o.seed, request.out)]
    return [
        RunTask(f"{label}, seed {seed}", request.method, seed, request.out and request.out / f"seed-{seed}")
        for seed in range(o.seed, o.seed + o.seeds)
    ]


def engine_of(name: str, o: Namespace) -> Engine:
    """The engine of the flags; the actors of Ray stay alive for the next run of this command."""
    # the only engine with flags of its own
    if name == "ray":
        from proxskip.engines.ray.engine import RayEngine

        return RayEngine(o.actors, o.address, stay=True)
    given = [flag for flag in ("address", "actors") if vars(o).get(flag) is not None]
    if given:
        raise InputError(f"--{given[0]} belongs to --engine ray.")
    return make_engine(name, o.threads)


@contextmanager
def engine_for(name: str, o: Namespace) -> Iterator[Engine]:
    """The same engine, shut down at the end of the command."""
    engine = engine_of(name, o)
    try:
        yield engine
    finally:
        if name == "ray":
            from proxskip.engines.ray.engine import RayEngine

            assert isinstance(engine, RayEngine)
            engine.shutdown()
        else:
            engine.close()


def execute(requests: Sequence[MethodRun], problem: Problem, o: Namespace, spec: dict[str, Any]) -> list[MethodResults]:
    """Run every method with every seed; an interrupted run is the last one."""
    labels = [r.name if len(requests) == 1 else f"{k + 1}/{len(requests)} {r.name}" for k, r in enumerate(requests)]
    tasks = [_tasks(request, label, o) for request, label in zip(requests, labels, strict=True)]
    # the folder of several runs is one writer's until the last of them is over
    several = o.out is not None and (o.seeds is not None or o.command == "compare")

    @contextmanager
    def bars(label: str) -> Iterator[tuple[Progress, ...]]:
        with Progress(label, o.quiet) as progress:
            yield (progress,)

    with engine_for(o.engine, o) as engine:
        results = iter(
            run_many(
                [task for group in tasks for task in group], problem, _settings(o, engine) | {"spec": spec},
                out=o.out if several else None, bars=bars,
            )
        )  # fmt: skip
    outcomes = []
    has_tolerance = o.tol is not None or o.target is not None
    for request, group in zip(requests, tasks, strict=True):
        # also of an interrupted method: what it has done so far is reported
        own = tuple(islice(results, len(group)))
        if own:
            outcomes.append(MethodResults(request, own, worst([exit_code(r, has_tolerance) for r in own])))
    return outcomes


# -- folders -----------------------------------------------------------------------------------------------------------
def claim(out: str | None, force: bool) -> Path | None:
    """The output folder, if it can be written to and holds no run (or --force allows to overwrite it)."""
    if out is None:
        return None
    path = Path(out)
    settings.check_folder(path)
    held = held_runs(path)
    for old in {path, *held}:
        lock.refuse_if_held(old)
    if held and not force:
        raise InputError(
            f"{path} already holds a run ({held[0] / _held(held[0])[0]}); choose another folder, resume it, "
            "or continue it with --continue, or overwrite it with --force."
        )
    return path


def clear(path: Path | None) -> None:
    """Remove the runs in the folder: --force was given, and everything else has been checked."""
    for old in [] if path is None else held_runs(path):
        for name in _held(old):
            (old / name).unlink()
        # a folder is removed only if nothing of the user is left in it
        if old != path and not any(old.iterdir()):
            old.rmdir()


def held_runs(path: Path) -> list[Path]:
    """The folder itself and the folders of methods and seeds inside it, as far as they hold a run."""
    if not path.is_dir():
        return []
    # only folders that a run or a comparison makes, so that --force removes nothing else
    inner = [
        p
        for p in sorted(path.iterdir())
        if p.is_dir() and (p.name in METHODS or p.name == "prox" or p.name.startswith("seed-"))
    ]
    return [*([path] if _held(path) else []), *(q for p in inner for q in held_runs(p))]


def _held(path: Path) -> list[str]:
    return [name for name in folder.FILES if (path / name).is_file()]
