"""Runs in several processes of this machine; each is bit by bit the run that this process would have made."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from proxskip.problems.federated import Problem
from proxskip.results.result import Result
from proxskip.run import run
from proxskip.seam import Method
from proxskip.types import InputError, UnsafeStepWarning


@dataclass(frozen=True, slots=True)
class Task:
    """One run of a sweep: its method, seed and folder."""

    method: Method
    seed: int
    out: str | None


_PROBLEM: list[tuple[Problem, Mapping[str, Any]]] = []
"""In a worker: the problem, and what all runs share."""


def in_processes(
    tasks: Sequence[Task], problem: Problem, given: Mapping[str, Any], jobs: int, told: Callable[[int], None]
) -> list[Result]:
    """The results of all tasks in their order; without those that an interruption left undone.

    Args:
        told: is called with the number of finished runs.
    """
    # here, since few programs need them
    import multiprocessing
    from concurrent.futures import ProcessPoolExecutor, as_completed
    from concurrent.futures.process import BrokenProcessPool
    from multiprocessing.reduction import ForkingPickler

    problem.solution  # noqa: B018  computed once, and not in every process
    try:
        ForkingPickler.dumps((problem, dict(given), list(tasks)))
    except Exception as error:
        raise InputError(
            f"this problem cannot be handed to other processes ({error}); leave out jobs, or define its functions and "
            "classes at the top of a module."
        ) from None
    # not fork: a forked copy of a process with threads may hang
    context = multiprocessing.get_context("spawn")
    threads = given.get("threads") or max(1, (os.cpu_count() or 1) // jobs)
    shared = problem, {**given, "threads": threads}
    pool = ProcessPoolExecutor(min(jobs, len(tasks)), context, _begin, shared)
    futures = [pool.submit(_one, task) for task in tasks]
    try:
        for done, _ in enumerate(as_completed(futures), start=1):
            told(done)
    except KeyboardInterrupt:
        pass  # the workers were interrupted too, and end their runs as INTERRUPTED
    finally:
        pool.shutdown(cancel_futures=True)
    try:
        return [f.result() for f in futures if not f.cancelled()]
    except BrokenProcessPool:
        raise InputError(
            "a process of the sweep ended without an answer: memory is short, or the script does not protect its "
            'start with  if __name__ == "__main__":.'
        ) from None


def _begin(problem: Problem, given: Mapping[str, Any]) -> None:
    _PROBLEM[:] = [(problem, given)]


def _one(task: Task) -> Result:
    problem, given = _PROBLEM[0]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UnsafeStepWarning)  # the parent has said it
        return run(task.method, problem, seed=task.seed, out=task.out, progress=False, **given)
