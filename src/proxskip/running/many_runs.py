"""Many runs of one problem, for ``sweep``, ``tune``, ``reproduce`` and the command line.

A run with a folder is kept there. Repeating an interrupted call continues it: what is finished is read, what was
interrupted is resumed, and the rest is run. A folder that holds another run is refused.
"""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from proxskip.core.method import Method
from proxskip.methods import Decaying
from proxskip.networks import Network
from proxskip.problems.federated import Problem
from proxskip.results import description, folder, lock, several
from proxskip.results.checkpoint import Checkpoint, in_words
from proxskip.results.load import load
from proxskip.results.result import RunResult, Status
from proxskip.results.trace import Trace
from proxskip.running import parallel
from proxskip.running.interrupts import signals_caught
from proxskip.running.progress import OverallProgress, is_wanted, shown
from proxskip.running.run import checked_x0, go_on, make_engine, run
from proxskip.running.run_spec import RunSpec
from proxskip.running.stop import RUN_RULES, Stop
from proxskip.support.cores import available_cores
from proxskip.types import InputError, UnsafeStepWarning


@dataclass(frozen=True, slots=True)
class RunTask:
    """One run: the label of its progress, its method and seed, and its folder if it is kept."""

    label: str
    method: Method
    seed: int
    folder: Path | None = None


Settings = Mapping[str, Any]
"""Arguments of ``run`` that all tasks share: limits, engine, cohort, x0, every, force, threads, ..."""


def folder_of(out: str | Path, names: Sequence[str], number: int, seed: int | None = None) -> Path:
    """The folder of a run: ``out/method``, numbered if names repeat, and inside it one for the seed."""
    numbered = len(set(names)) < len(names)
    name = f"{number:0{len(str(len(names) - 1))}}-{names[number]}" if numbered else names[number]
    return Path(out, name) if seed is None else Path(out, name, f"seed-{seed}")


def run_many(
    tasks: Sequence[RunTask],
    problem: Problem,
    settings: Settings,
    *,
    jobs: int = 1,
    out: str | Path | None = None,
    progress: bool | None = None,
) -> list[RunResult]:
    """The results in the order of the tasks, the same to the bit for any number of processes.

    An interrupted run is the last one, or missing if it was in another process.

    Args:
        out: the folder that holds those of the tasks; it is locked until the last of them has ended.
        progress: as in ``run``.
    """
    check(tasks, problem, settings, out, quiet=jobs == 1)
    if out is not None:
        with in_words(Path(out)):
            Path(out).mkdir(parents=True, exist_ok=True)
    with nullcontext() if out is None else lock.held(Path(out)):
        if out is not None:
            runs = [task.folder for task in tasks if task.folder is not None]
            several.enter(Path(out), runs, bool(settings.get("force")))
        if jobs > 1:
            return _in_processes(tasks, problem, settings, jobs, progress)
        results = []
        for task in tasks:
            with shown(task.label, progress) as callbacks:
                results.append(run_task(task, problem, settings, callbacks))
            if results[-1].status is Status.INTERRUPTED:
                break
        return results


def check(
    tasks: Sequence[RunTask], problem: Problem, settings: Settings, out: str | Path | None = None, quiet: bool = True
) -> None:
    """Refuse at once what a run would refuse later, and folders that hold another run.

    Args:
        out: the folder that holds those of the tasks.
        quiet: give no warnings, since the runs themselves will.
    """
    stop, unsafe = Stop(**_limits(settings)), bool(settings.get("allow_unsafe_step"))
    shared: dict[str, Any] = {name: settings.get(name) for name in ("cohort", "network", "every")}
    force, engine = bool(settings.get("force")), settings.get("engine", "cpu")
    shared["engine"] = make_engine(engine, settings.get("threads"))
    with warnings.catch_warnings():
        if quiet:
            warnings.simplefilter("ignore")
        for task in tasks:
            spec = RunSpec.of(task.method, problem, stop, seed=task.seed, allow_unsafe_step=unsafe, **shared)
            if task.folder is None:
                continue
            if out is not None:
                several.check_inside(Path(out), task.folder)
            others = (task.folder.parent, *task.folder.glob("*"))
            mixed = [other for other in others if folder.has_begun(other) and not force]
            if mixed:
                raise InputError(
                    f"{mixed[0]} holds another run, which would be mixed with these; choose another folder."
                )
            has_run = folder.has_begun(task.folder) and not force
            folder.check(task.folder, force or has_run, settings.get("checkpoint_every"))
            if has_run:
                name = engine if isinstance(engine, str) else engine.name
                now = description.config(spec.method, problem, {}, task.seed, name, spec.cohort, {})
                _check_kept(task.folder, now, problem, settings, spec.network)


def _check_kept(path: Path, now: dict[str, Any], problem: Problem, settings: Settings, network: Network | None) -> None:
    """Refuse to continue a run that began with other settings."""
    kept = folder.read(path)
    assert kept.checkpoint is not None
    saved = kept.config
    folder.same_run(saved, now)
    before = None if saved.get("network") is None else Network.of(saved["network"]).plain()
    same = {
        "x0": np.array_equal(kept.checkpoint.arrays.get("x0", []), checked_x0(problem, settings.get("x0"))),
        "every": settings.get("every") in (None, saved.get("every")),
        "network": before == (None if network is None else network.plain()),
    }
    wanted = Stop(**_limits(settings))
    if _rules_of(saved) != wanted.rules and _went_beyond(kept.checkpoint, wanted):
        raise InputError(
            f"{path} holds a run that went on after these limits were reached; choose another folder, or overwrite it."
        )
    if differing := [name for name, is_same in same.items() if not is_same]:
        raise InputError(f"{path} holds a run with another {differing[0]}; choose another folder, or overwrite it.")


def _rules_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """The stopping rules of a run folder; a rule that its release did not have is None."""
    saved = config.get("stop") or {}
    return {name: saved.get(name) for name in RUN_RULES}


def _went_beyond(checkpoint: Checkpoint, stop: Stop) -> bool:
    """Whether a run with these rules would have ended before this checkpoint; a new rule needs its line here."""
    counts = checkpoint.meta["line"]["ledger"]
    spent = ((stop.rounds, checkpoint.meta["round"]), (stop.iterations, counts["iterations"]))
    if any(most is not None and count > most for most, count in spent):
        return True
    trace = Trace.from_arrays(checkpoint.arrays, "trace.")
    before = np.flatnonzero(trace["round"] < checkpoint.meta["round"])
    return any(stop.reached({"grad_norm": trace["grad_norm"][k], "gap": trace["gap"][k]}) for k in before)


def _limits(settings: Settings) -> dict[str, Any]:
    return {k: settings.get(k) for k in RUN_RULES}


def run_task(task: RunTask, problem: Problem, settings: Settings, callbacks: Sequence[Any] = ()) -> RunResult:
    """The run of a task: read from its folder, resumed, or run now."""
    show: dict[str, Any] = {"callbacks": tuple(callbacks), "progress": False}
    path = task.folder
    if path is None or settings.get("force") or not folder.has_begun(path):
        return run(task.method, problem, seed=task.seed, out=path, **settings, **show)
    kept = finished(task, settings)
    if kept is not None:
        return kept
    engine, every = settings.get("engine"), settings.get("checkpoint_every")
    show |= {"threads": settings.get("threads"), "engine": None if isinstance(engine, str) else engine}
    return go_on(path, problem, _limits(settings), checkpoint_every=every, **show)


def finished(task: RunTask, settings: Settings) -> RunResult | None:
    """The result of a task that has ended with these limits, from its folder; None if there is none."""
    path = task.folder
    if path is None or settings.get("force") or not folder.has_begun(path):
        return None
    kept = folder.read(path)
    assert kept.checkpoint is not None
    ended = kept.checkpoint.meta["summary"]["status"] != Status.INTERRUPTED.name
    if not ended or _rules_of(kept.config) != Stop(**_limits(settings)).rules:
        return None
    result = load(path)
    assert isinstance(result, RunResult)
    if not (path / "summary.json").is_file():  # the process was killed before it wrote one
        folder.export(path, result.x, result.trace, result.summary)
    return result


# -- in several processes ----------------------------------------------------------------------------------------------
def _in_processes(
    tasks: Sequence[RunTask], problem: Problem, settings: Settings, jobs: int, progress: bool | None
) -> list[RunResult]:
    if not isinstance(settings.get("engine", "cpu"), str):
        raise InputError("an engine object serves one run at a time; give the engine's name, or jobs=1.")
    if settings.get("engine", "cpu") == "cpu" and settings.get("threads") is None:
        settings = {**settings, "threads": max(1, available_cores() // jobs)}
    results = {number: kept for number, task in enumerate(tasks) if (kept := finished(task, settings)) is not None}
    left = [number for number in range(len(tasks)) if number not in results]
    if left:
        problem.solution  # noqa: B018  computed once, and not in every process
    calls = [(tasks[number], problem, settings) for number in left]
    methods = (task.method for task, _, _ in calls)
    kinds = {type(method.method if isinstance(method, Decaying) else method) for method in methods}
    with tempfile.TemporaryDirectory() as place, OverallProgress(quiet=not is_wanted(progress)) as overall:
        end = parallel.EndFile(Path(place) / "end")
        with signals_caught(end):
            for k, result in parallel.each(_run_elsewhere, calls, min(jobs, max(1, len(left))), end, kinds):
                results[left[k]] = result
                overall(f"{len(results)} of {len(tasks)} runs done in {jobs} processes", len(results) / len(tasks))
    return [results[number] for number in sorted(results)]


def _run_elsewhere(call: tuple[RunTask, Problem, Settings]) -> RunResult:
    task, problem, settings = call
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UnsafeStepWarning)  # the parent has said it
        return run_task(task, problem, settings)
