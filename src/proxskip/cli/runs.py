"""Runs of the command line: folders, seeds, engines, progress, exit codes."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

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


def worst(codes: Sequence[int]) -> int:
    """The exit code of several runs together: the worst of them."""
    return next(code for code in _WORST_FIRST if code in codes)


def settings_of(o: Namespace, engine: Engine, spec: dict[str, Any]) -> dict[str, Any]:
    """What all runs of a command share."""
    return {k: vars(o)[k] for k in (*settings.LIMITS, *_OF_A_RUN)} | {"engine": engine, "spec": spec}


def tasks_of(methods: Mapping[str, Method], out: Path | None, o: Namespace) -> list[RunTask]:
    """One task for each method and seed, with a folder of its own inside ``out``."""
    tasks = []
    for k, (name, method) in enumerate(methods.items()):
        label = name if len(methods) == 1 else f"{k + 1}/{len(methods)} {name}"
        path = out / name if out is not None and o.command == "compare" else out
        if o.seeds is None:
            tasks.append(RunTask(label, method, o.seed, path))
        for seed in range(o.seed, o.seed + (o.seeds or 0)):
            tasks.append(RunTask(f"{label}, seed {seed}", method, seed, path and path / f"seed-{seed}"))
    return tasks


@contextmanager
def engine_for(name: str, o: Namespace) -> Iterator[Engine]:
    """The engine of the flags, until the end of the command; the actors of Ray stay alive between its runs."""
    if name == "ray":  # the only engine with flags of its own
        from proxskip.engines.ray.engine import RayEngine

        ray = RayEngine(o.actors, o.address, stay=True)
        try:
            yield ray
        finally:
            ray.shutdown()
        return
    if flags := [flag for flag in ("address", "actors") if vars(o).get(flag) is not None]:
        raise InputError(f"--{flags[0]} belongs to --engine ray.")
    engine = make_engine(name, o.threads)
    try:
        yield engine
    finally:
        engine.close()


def execute(tasks: Sequence[RunTask], problem: Problem, o: Namespace, shared: dict[str, Any]) -> list[Result]:
    """Run all tasks; an interrupted run is the last one."""

    @contextmanager
    def bars(label: str) -> Iterator[tuple[Progress, ...]]:
        with Progress(label, o.quiet) as progress:
            yield (progress,)

    # the folder of several runs is one writer's until the last of them is over
    several = o.seeds is not None or o.command == "compare"
    return run_many(tasks, problem, shared, out=o.out if several else None, bars=bars)


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
            f"{path} already holds a run ({held[0] / _files(held[0])[0]}); choose another folder, resume it, "
            "or continue it with --continue, or overwrite it with --force."
        )
    return path


def clear(path: Path) -> None:
    """Remove the runs in the folder: --force was given, and everything else has been checked."""
    for old in held_runs(path):
        for name in _files(old):
            (old / name).unlink()
        # a folder is removed only if nothing of the user is left in it
        if old != path and not any(old.iterdir()):
            old.rmdir()


def held_runs(path: Path) -> list[Path]:
    """The folder itself and the folders of methods and seeds inside it, as far as they hold a run."""
    if not path.is_dir():
        return []
    # only folders that a run or a comparison makes, so that --force removes nothing else
    inner = [p for p in sorted(path.iterdir()) if p.name in METHODS or p.name == "prox" or p.name.startswith("seed-")]
    return [*([path] if _files(path) else []), *(q for p in inner for q in held_runs(p))]


def _files(path: Path) -> list[str]:
    return [name for name in folder.FILES if (path / name).is_file()]
