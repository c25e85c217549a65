"""The workspace of an experiment: problems, runs and values by their content, computed once and found again."""

from __future__ import annotations

import json
import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from proxskip.cores import available_cores
from proxskip.experiments import settings
from proxskip.experiments.processes import Processes
from proxskip.experiments.progress_estimate import ProgressEstimate, WorkPart
from proxskip.experiments.run_cache import CachedRun, RunRequest, digest, read
from proxskip.links.cohorts import as_participation
from proxskip.loop.stop import Stop
from proxskip.problems.federated import Problem
from proxskip.report.figures import Experiment, Panel, Table
from proxskip.results import checkpoint, description, lock
from proxskip.results.atomic import atomic_write_json
from proxskip.results.result import Result, Status
from proxskip.running import resume, run
from proxskip.seam import Method
from proxskip.tuning import trials
from proxskip.types import UnsafeStepWarning

__all__ = ["VERSION", "CachedRun", "Interrupted", "RunRequest", "Workspace"]

VERSION = 1
"""Version of the cached values; a folder of another version is refused."""
PAPER_DATA = "w8a"
"""The data set that the paper's claims are about."""


class Interrupted(KeyboardInterrupt):
    """Ctrl-C or SIGTERM; everything computed so far is kept."""


@dataclass
class Workspace:
    """What an experiment computes with. All results are stored below ``out`` and never computed twice.

    Args:
        preset: the experiment's TOML, with the overrides of ``[quick]`` applied.
        base: the flags of the problem that belong to the data, such as the number of clients.
        progress: is told what is running.
    """

    out: Path
    data: str
    preset: Mapping[str, Any] = field(default_factory=dict)
    base: Mapping[str, Any] = field(default_factory=dict)
    quick: bool = False
    engine: str = "cpu"
    threads: int | None = None
    progress: ProgressEstimate = field(default_factory=ProgressEstimate)
    problems: dict[str, Problem] = field(default_factory=dict, repr=False)
    """The problems in memory, which all experiments share."""
    pool: Processes | None = field(default=None, repr=False)
    """Processes that share the work; None to work here."""
    priority: float = 0.0
    """Of several experiments that ask the processes at once, the one with the highest priority is served first."""
    spent: list[float] = field(default_factory=list, repr=False)
    """The CPU seconds of what the processes did for this experiment."""
    lock: Any = field(default_factory=threading.RLock, repr=False)
    """Experiments that run at once read each problem once."""

    @property
    def asserted(self) -> bool:
        """Whether the paper's claims are about this data; on other data they are only reported."""
        return self.data == PAPER_DATA

    def experiment(
        self, id: str, parameters: Mapping[str, Any], panels: Sequence[Panel], tables: Sequence[Table] = ()
    ) -> Experiment:
        """An experiment with the title and the text of its preset."""
        title, shows, notes = self.preset["title"], self.preset["shows"], self.preset.get("notes", [])
        return Experiment(id, title, shows, dict(parameters), "", list(panels), list(tables), list(notes))

    # -- problems ------------------------------------------------------------------------------------------------------
    def spec(self, method: str = "scaffnew", **flags: Any) -> dict[str, Any]:
        """Everything that defines the problem, as the command line writes it to a run folder."""
        return settings.spec_of([method], settings.flags(**{"data": self.data, **self.base, **flags}))

    @property
    def data_sha256(self) -> str | None:
        """The checksum of the report's data; None for embedded data."""
        found = self.problem().info.get("data_sha256")
        return None if found is None else str(found)

    def problem(self, **flags: Any) -> Problem:
        """The problem of these flags (clients, split, L, batch, l2, ...), on the report's data by default."""
        return self._problem(self.spec(**flags))

    def _problem(self, spec: Mapping[str, Any]) -> Problem:
        key = digest(spec)
        with self.lock:
            if key not in self.problems:
                # L and the batch do not move the minimizer: read the data and solve the problem once for all of them
                plain = {**spec, "L": "max", "batch": None}
                if digest(plain) not in self.problems:
                    self.progress.say(f"reading {spec['data']}, computing L and f*")
                    self.problems[digest(plain)], _ = settings.problem_of(plain)
                self.problems[key] = variant(self.problems[digest(plain)], spec["L"], spec["batch"])
            return self.problems[key]

    def method(self, name: str, problem: Problem, **flags: Any) -> Method:
        """The method with these flags; parameters that are not given follow its theorem."""
        return settings.method_of(name, settings.flags(data=self.data, **flags), problem)

    # -- runs ----------------------------------------------------------------------------------------------------------
    def runs(self, jobs: Sequence[RunRequest], upto: float | None = None) -> list[CachedRun]:
        """The requested runs: read from their folders, resumed from a checkpoint, or run now.

        Args:
            upto: the share of the experiment that is done after these runs.
        """
        with self.progress.part(upto, len(jobs)) as part:
            if self.pool is None:
                return [self._run(job, part) for job in jobs]
            return self._spread(_run_there, jobs, [job.label for job in jobs], part)

    def _spread(
        self,
        function: Callable[..., Any],
        items: Sequence[Any],
        labels: Sequence[str],
        part: WorkPart,
        keep: Callable[[int, Any], Any] | None = None,
    ) -> list[Any]:
        """The function of each item, in the processes of the pool; ``keep`` is called as soon as one is there."""
        assert self.pool is not None
        out: dict[int, Any] = {}
        # fewer items than processes: each of them has more cores, which changes no byte
        threads = self.threads or max(1, available_cores() // max(1, min(self.pool.count, len(items))))
        about = {"out": self.out, "data": self.data, "preset": dict(self.preset), "base": dict(self.base)}
        about |= {"quick": self.quick, "engine": self.engine, "threads": threads}
        left = self.pool.each(function, about, items, self.priority)
        while len(out) < len(items):
            part.begin(next(label for k, label in reversed(list(enumerate(labels))) if k not in out))
            number, out[number], seconds = next(left)
            self.spent.append(seconds)
            if keep is not None:
                keep(number, out[number])
        return [out[k] for k in range(len(items))]

    def _run(self, job: RunRequest, part: WorkPart) -> CachedRun:
        spec = self.spec(job.method, **job.problem)
        problem = self._problem(spec)
        method = self.method(job.method, problem, **job.flags)
        limits = {k: v for k, v in job.stop.items() if k in settings.LIMITS}
        every, cohort = job.stop.get("every"), job.flags.get("cohort")
        # the folder is named by everything that determines the run, so that figures share their runs
        asked = description.config(
            method, problem, Stop(**limits).rules, job.seed, self.engine, as_participation(cohort), {}
        )
        folder = self.out / "runs" / f"{job.method}-{digest(asked | {'every': every})}"
        (self.out / "runs").mkdir(parents=True, exist_ok=True)
        # two experiments may ask for the same run at once: the second waits for the first
        with lock.held(self.out / "runs", patient=True, name=f".{folder.name}.lock"):
            if (found := read(job, folder)) is not None:
                part.skip(job.label)
                return found
            part.begin(job.label)
            given: dict[str, Any] = {"callbacks": (part,), "threads": self.threads, "progress": False}
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UnsafeStepWarning)  # they are in the summary
                if (folder / "checkpoint").exists() and (folder / "spec.toml").exists():
                    result = resume(folder, problem, **given)
                else:
                    result = run(
                        method, problem, **limits, **given, seed=job.seed, engine=self.engine, cohort=cohort,
                        every=every, out=folder, force=True, allow_unsafe_step=True, spec=spec,
                    )  # fmt: skip
            _raise_if_interrupted(result)
        made = read(job, folder)
        assert made is not None
        return made

    # -- values --------------------------------------------------------------------------------------------------------
    def cached_value(
        self, name: str, parameters: Mapping[str, Any], compute: Callable[[], Any], upto: float | None = None
    ) -> Any:
        """A JSON value by its name, its parameters and the data: computed once, later read from ``out/cache``."""
        with self.progress.part(upto, 1) as part:
            if (found := self._found(name, parameters)) is not None:
                part.skip(name)
                return found["value"]
            part.begin(name)
            return self._keep(name, parameters, compute())

    def cached_values(
        self,
        name: str,
        asked: Sequence[Mapping[str, Any]],
        compute: Callable[[Workspace, Mapping[str, Any]], Any],
        upto: float | None = None,
    ) -> list[Any]:
        """One cached value for each of several parameters, which the processes share.

        Args:
            compute: a function of a module.
        """
        missing = [a for a in asked if self._found(name, a) is None]
        with self.progress.part(upto, len(asked)) as part:
            for _ in range(len(asked) - len(missing)):
                part.skip(name)
            labels = [_label(name, a, asked) for a in missing]
            if self.pool is not None:
                jobs = [(compute, a) for a in missing]
                self._spread(_compute_there, jobs, labels, part, lambda k, value: self._keep(name, missing[k], value))
            else:
                for a, label in zip(missing, labels, strict=True):
                    part.begin(label)
                    self._keep(name, a, compute(self, a))
        return [self._found(name, a)["value"] for a in asked]

    def _content(self, name: str, parameters: Mapping[str, Any]) -> tuple[dict[str, Any], Path]:
        data = {"data": self.data, "data_sha256": self.data_sha256, "base": self.base}
        # the checksum of the data too, since a file may change under its name
        content = {"name": name, "parameters": parameters, "version": VERSION, **data}
        return content, self.out / "cache" / f"{checkpoint.safe_name(name)}-{digest(content)}.json"

    def _found(self, name: str, parameters: Mapping[str, Any]) -> Any:
        _, path = self._content(name, parameters)
        return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None

    def _keep(self, name: str, parameters: Mapping[str, Any], value: Any) -> Any:
        content, path = self._content(name, parameters)
        path.parent.mkdir(parents=True, exist_ok=True)
        atomic_write_json(path, content | {"value": value})
        return self._found(name, parameters)["value"]

    def final_gaps(
        self,
        problem: Mapping[str, Any],
        tried: Sequence[tuple[str, Mapping[str, Any]]],
        rounds: int,
        labels: Sequence[str],
        upto: float | None = None,
    ) -> list[float | None]:
        """f - f* of each candidate after ``rounds`` rounds, cached one by one; None if it diverged.

        Args:
            problem: the flags of the problem.
            tried: the name of each candidate's method, and its flags.
        """
        at = self._tries(problem, tried, rounds)
        missing = [k for k, (_, path) in enumerate(at) if not path.is_file()]
        with self.progress.part(upto, len(tried)) as part:
            for _ in range(len(tried) - len(missing)):
                part.skip("tuning")
            jobs = [(dict(problem), [tried[k]], rounds) for k in missing]
            if self.pool is not None:
                self._spread(_try_there, jobs, [labels[k] for k in missing], part)
            else:
                for k, job in zip(missing, jobs, strict=True):
                    part.begin(labels[k], 1)
                    self.try_out(*job)
        return [json.loads(path.read_text(encoding="utf-8"))["gap"] for _, path in at]

    def _tries(
        self, problem: Mapping[str, Any], tried: Sequence[tuple[str, Mapping[str, Any]]], rounds: int
    ) -> list[tuple[dict[str, Any], Path]]:
        """What identifies each candidate's trial, and the file that holds its result."""
        made = self.problem(**problem)
        about = {"problem": description.identity(made), "rounds": rounds, "seed": 0, "engine": self.engine}
        methods = [self.method(name, made, **flags) for name, flags in tried]
        names = [about | {"method": m.name, "parameters": description.parameters(m)} for m in methods]
        return [(name, self.out / "cache" / f"try-{digest(name)}.json") for name in names]

    def try_out(self, problem: Mapping[str, Any], tried: Sequence[tuple[str, Mapping[str, Any]]], rounds: int) -> None:
        """Run these candidates, and write their results."""
        made = self.problem(**problem)
        methods = [self.method(name, made, **flags) for name, flags in tried]
        found = trials(methods, made, rounds, self.engine, self.threads)
        for (name, path), result in zip(self._tries(problem, tried, rounds), found, strict=True):
            _raise_if_interrupted(result)
            gap = None if result.status is Status.DIVERGED else result.summary()["gap"]
            path.parent.mkdir(parents=True, exist_ok=True)
            atomic_write_json(path, name | {"gap": gap, "status": result.status.name})


def variant(problem: Problem, L: Any, batch: int | None) -> Problem:
    """The same problem with another kind of L and other minibatches; it keeps its solution."""
    solution = problem.solution
    other = replace(problem, L_kind=L, batch=batch)
    other.__dict__["solution"] = solution  # neither L nor the batch moves the minimizer
    other.__dict__["weights"] = problem.weights  # the same bits: dividing by their sum again could change the last one
    return other


def _label(name: str, about: Mapping[str, Any], among: Sequence[Mapping[str, Any]]) -> str:
    """The name with those parameters that tell a value from the others."""
    told = [k for k, v in about.items() if isinstance(v, str | int | float) and any(a[k] != v for a in among)]
    return ", ".join([name, *(f"{k} = {about[k]}" for k in told)])


_PROBLEMS: dict[str, Problem] = {}
"""In a process of a pool: the problems that it has read."""


def _run_there(about: Mapping[str, Any], job: RunRequest) -> CachedRun:
    """A run in a process of a pool."""
    (made,) = Workspace(**about, problems=_PROBLEMS).runs([job])
    return made


def _try_there(about: Mapping[str, Any], job: tuple[Any, ...]) -> None:
    """Trials in a process of a pool."""
    Workspace(**about, problems=_PROBLEMS).try_out(*job)


def _compute_there(about: Mapping[str, Any], job: tuple[Callable[..., Any], Mapping[str, Any]]) -> Any:
    """A value in a process of a pool."""
    compute, parameters = job
    return compute(Workspace(**about, problems=_PROBLEMS), parameters)


def _raise_if_interrupted(result: Result) -> None:
    if result.status is Status.INTERRUPTED:
        raise Interrupted
