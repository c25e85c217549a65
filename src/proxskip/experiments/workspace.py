"""The workspace of an experiment: problems, runs and values by their content, computed once and found again."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from proxskip.experiments import settings
from proxskip.experiments.progress_estimate import ProgressEstimate, WorkPart
from proxskip.experiments.run_cache import CachedRun, RunRequest, digest, read
from proxskip.links.cohorts import as_participation
from proxskip.loop.stop import Stop
from proxskip.problems.federated import Problem
from proxskip.registry import METHODS
from proxskip.report.figures import Experiment, Panel, Table
from proxskip.results import checkpoint, description
from proxskip.results.atomic import atomic_write_json
from proxskip.results.result import Result, Status
from proxskip.run import resume, run
from proxskip.seam import Method
from proxskip.sweep import sweep
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
            return [self._run(job, part) for job in jobs]

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
        if (found := read(job, folder)) is not None:
            part.skip(job.label)
            return found
        part.begin(job.label)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UnsafeStepWarning)  # they are in the summary
            if (folder / "checkpoint").exists() and (folder / "spec.toml").exists():
                result = resume(folder, problem, callbacks=(part,), threads=self.threads)
            else:
                result = run(
                    method, problem, **limits, seed=job.seed, engine=self.engine, cohort=cohort, every=every,
                    out=folder, force=True, callbacks=(part,), allow_unsafe_step=True, threads=self.threads, spec=spec,
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
        data = {"data": self.data, "data_sha256": self.data_sha256, "base": self.base}
        # the checksum of the data too, since a file may change under its name
        content = {"name": name, "parameters": parameters, "version": VERSION, **data}
        path = self.out / "cache" / f"{checkpoint.safe_name(name)}-{digest(content)}.json"
        with self.progress.part(upto, 1) as part:
            if path.is_file():
                part.skip(name)
                return json.loads(path.read_text(encoding="utf-8"))["value"]
            part.begin(name)
            value = compute()
            path.parent.mkdir(parents=True, exist_ok=True)
            atomic_write_json(path, content | {"value": value})
        return json.loads(path.read_text(encoding="utf-8"))["value"]

    def final_gaps(
        self, problem: Problem, methods: Sequence[Method], rounds: int, text: str, upto: float | None = None
    ) -> list[float | None]:
        """f - f* of each candidate after ``rounds`` rounds, cached one by one; None if it diverged.

        On the gpu engine all candidates that are not cached run together.
        """
        about = {"problem": description.identity(problem), "rounds": rounds, "seed": 0, "engine": self.engine}
        names = [about | {"method": m.name, "parameters": description.parameters(m)} for m in methods]
        at = [self.out / "cache" / f"try-{digest(name)}.json" for name in names]
        missing = [k for k, path in enumerate(at) if not path.is_file()]
        # a group is one call of sweep: on the gpu all of them share launches
        groups = [missing] if self.engine == "gpu" and missing else [[k] for k in missing]
        with self.progress.part(upto, len(methods)) as part:
            for _ in range(len(methods) - len(missing)):
                part.skip(text)
            for group in groups:
                part.begin(text, len(group))
                found = self._sweep([methods[k] for k in group], problem, rounds)
                for k, result in zip(group, found, strict=True):
                    _raise_if_interrupted(result)
                    gap = None if result.status is Status.DIVERGED else result.summary()["gap"]
                    at[k].parent.mkdir(parents=True, exist_ok=True)
                    atomic_write_json(at[k], names[k] | {"gap": gap, "status": result.status.name})
        return [json.loads(path.read_text(encoding="utf-8"))["gap"] for path in at]

    def _sweep(self, methods: Sequence[Method], problem: Problem, rounds: int) -> list[Result]:
        """All candidates at once if the engine can; eight records each, so that a diverging run is noticed early."""
        every = max(1, rounds // 8)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UnsafeStepWarning)
            if self.engine == "gpu":
                return sweep(methods, problem, rounds=rounds, engine="gpu", every=every, allow_unsafe_step=True)
            return [
                run(m, problem, rounds=rounds, engine=self.engine, every=every, allow_unsafe_step=True,
                    threads=self.threads)
                for m in methods
            ]  # fmt: skip


def local_steps_flag(method: str) -> str | None:
    """The flag that sets a method's local steps: p if it draws their number, K if it is fixed, None without any."""
    return next((flag for flag in ("p", "K") if flag in METHODS[method].flags()), None)


def variant(problem: Problem, L: Any, batch: int | None) -> Problem:
    """The same problem with another kind of L and other minibatches; it keeps its solution."""
    solution = problem.solution
    other = replace(problem, L_kind=L, batch=batch)
    other.__dict__["solution"] = solution  # neither L nor the batch moves the minimizer
    other.__dict__["weights"] = problem.weights  # the same bits: dividing by their sum again could change the last one
    return other


def _raise_if_interrupted(result: Result) -> None:
    if result.status is Status.INTERRUPTED:
        raise Interrupted
