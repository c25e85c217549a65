"""The workspace of an experiment: problems, runs and values, each computed once and kept by its content."""

from __future__ import annotations

import hashlib
import json
import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from proxskip.cores import available_cores
from proxskip.experiments import settings
from proxskip.interfaces import Method
from proxskip.links.cohorts import as_participation
from proxskip.loop.stop import Stop
from proxskip.many_runs import RunTask, run_task
from proxskip.problems.federated import Problem
from proxskip.report.figures import Experiment, Panel, Table
from proxskip.results import checkpoint, description, lock
from proxskip.results.atomic import atomic_write_json
from proxskip.results.result import RunResult, Status
from proxskip.tuning import score, trial_settings
from proxskip.types import UnsafeStepWarning

if TYPE_CHECKING:
    from proxskip.processes import Processes

VERSION = 1
"""Version of the cached values; a folder of another version is refused."""
PAPER_DATA = "w8a"
"""The data set that the paper's claims are about."""


@dataclass(frozen=True, slots=True)
class RunRequest:
    """One run, by the flags of its method (and ``cohort``), of its problem, and of its end (and ``every``).

    Step sizes beyond the method's limit are allowed; the run's summary has the warning.
    """

    label: str
    method: str
    flags: Mapping[str, Any] = field(default_factory=dict)
    problem: Mapping[str, Any] = field(default_factory=dict)
    stop: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 0


@dataclass
class Workspace:
    """What an experiment computes with; all results are stored below ``out`` and never computed twice.

    Args:
        preset: the experiment's TOML, with ``[quick]`` applied.
        base: the flags of the problem that come with the data, such as the number of clients.
        say: called with what is running.
        problems: the problems in memory, which all experiments share.
        pool: processes that share the work; None to work here.
        lock: held while a problem is read, since several experiments may need it.
    """

    out: Path
    data: str
    preset: Mapping[str, Any] = field(default_factory=dict)
    base: Mapping[str, Any] = field(default_factory=dict)
    quick: bool = False
    engine: str = "cpu"
    threads: int | None = None
    say: Callable[[str], None] = field(default=lambda text: None, repr=False)
    problems: dict[str, Problem] = field(default_factory=dict, repr=False)
    pool: Processes | None = field(default=None, repr=False)
    lock: Any = field(default_factory=threading.RLock, repr=False)

    def experiment(
        self, id: str, parameters: Mapping[str, Any], panels: Sequence[Panel], tables: Sequence[Table] = ()
    ) -> Experiment:
        title, shows, notes = self.preset["title"], self.preset.get("shows", ""), self.preset.get("notes", [])
        return Experiment(id, title, shows, dict(parameters), "", list(panels), list(tables), list(notes))

    # -- problems ------------------------------------------------------------------------------------------------------
    def spec(self, method: str = "scaffnew", **flags: Any) -> dict[str, Any]:
        """What defines the problem, as in the run folders of the command line."""
        return settings.spec_of([method], settings.flags(**{"data": self.data, **self.base, **flags}))

    @property
    def data_sha256(self) -> str | None:
        """The checksum of the report's data; None for embedded data."""
        return self.problem().info.get("data_sha256")

    def problem(self, **flags: Any) -> Problem:
        """The problem of these flags (clients, split, L, batch, l2, ...), on the report's data by default."""
        return self.problem_of(self.spec(**flags))

    def problem_of(self, spec: Mapping[str, Any]) -> Problem:
        """The problem of a specification, read and solved once."""
        # L and the batch do not move the minimizer: all variants share one solution
        plain = {**spec, "L": "max", "batch": None}
        key, plain_key = digest(spec), digest(plain)
        with self.lock:
            if plain_key not in self.problems:
                self.say(f"reading {spec['data']}, computing L and f*")
                self.problems[plain_key], _ = settings.problem_of(plain)
            if key not in self.problems:
                self.problems[key] = variant(self.problems[plain_key], spec["L"], spec["batch"])
            return self.problems[key]

    def method(self, name: str, problem: Problem, **flags: Any) -> Method:
        return settings.method_of(name, settings.flags(data=self.data, **flags), problem)

    # -- runs and values -----------------------------------------------------------------------------------------------
    def runs(self, requests: Sequence[RunRequest]) -> list[RunResult]:
        """The requested runs: read from their folders, resumed from a checkpoint, or run now."""
        return self._each(_run, requests, [request.label for request in requests])

    def cached_values(
        self,
        name: str,
        parameters: Sequence[Mapping[str, Any]],
        compute: Callable[[Workspace, Mapping[str, Any]], Any],
        labels: Sequence[str] = (),
    ) -> list[Any]:
        """One JSON value for each of several parameters, kept in ``out/cache``; ``compute`` must be importable."""
        labels = labels or [name] * len(parameters)
        files = [self._content(name, each)[1] for each in parameters]
        missing = [k for k, path in enumerate(files) if not path.is_file()]
        self._each(_compute, [(name, parameters[k], compute) for k in missing], [labels[k] for k in missing])
        return [json.loads(path.read_text(encoding="utf-8"))["value"] for path in files]

    def _each(self, function: Callable[..., Any], items: Sequence[Any], labels: Sequence[str]) -> list[Any]:
        texts = [f"{label} ({k + 1} of {len(items)})" for k, label in enumerate(labels)]
        if self.pool is None:
            return [function(self, item, text) for item, text in zip(items, texts, strict=True)]
        values: dict[int, Any] = {}
        # with fewer items than processes, each has more cores
        threads = self.threads or max(1, available_cores() // max(1, min(self.pool.count, len(items))))
        about = {"out": self.out, "data": self.data, "preset": dict(self.preset), "base": dict(self.base)}
        about |= {"quick": self.quick, "engine": self.engine, "threads": threads}
        for number, value in self.pool.each(_in_process, [(function, about, item) for item in items]):
            values[number] = value
            self.say(f"{labels[number]} ({len(values)} of {len(items)} done in {self.pool.count} processes)")
        return [values[k] for k in range(len(items))]

    def _content(self, name: str, parameters: Mapping[str, Any]) -> tuple[dict[str, Any], Path]:
        """What identifies a value, with the checksum of the data, and its file."""
        data = {"data": self.data, "data_sha256": self.data_sha256, "base": self.base}
        content = {"name": name, "parameters": parameters, "version": VERSION, **data}
        return content, self.out / "cache" / f"{checkpoint.safe_name(name)}-{digest(content)}.json"


def variant(problem: Problem, L: Any, batch: int | None) -> Problem:
    """The same problem with another kind of L and other minibatches; it keeps its solution."""
    other = replace(problem, L_kind=L, batch=batch)
    # the weights with the same bits, which dividing by their sum again could change
    other.__dict__.update(solution=problem.solution, weights=problem.weights)
    return other


def digest(content: Any) -> str:
    """Twenty hexadecimal digits that identify plain data."""
    plain = json.dumps(content, sort_keys=True, default=_plain, allow_nan=True)
    return hashlib.sha256(plain.encode()).hexdigest()[:20]


def _plain(value: Any) -> Any:
    return dict(value) if isinstance(value, Mapping) else value.tolist()


# -- one piece of work, here or in a process of the pool ---------------------------------------------------------------
_PROBLEMS: dict[str, Problem] = {}
"""In a process of a pool: the problems that it has read."""


def _in_process(work: tuple[Callable[..., Any], Mapping[str, Any], Any]) -> Any:
    function, about, item = work
    return function(Workspace(**about, problems=_PROBLEMS), item, "")


def _run(workspace: Workspace, request: RunRequest, text: str) -> RunResult:
    spec = workspace.spec(request.method, **request.problem)
    problem = workspace.problem_of(spec)
    method = workspace.method(request.method, problem, **request.flags)
    limits = {k: v for k, v in request.stop.items() if k in settings.LIMITS}
    every, cohort, engine = request.stop.get("every"), request.flags.get("cohort"), workspace.engine
    # the folder is named by everything that determines the run, so that figures share their runs
    participation = as_participation(cohort)
    config = description.config(method, problem, Stop(**limits).rules, request.seed, engine, participation, {})
    folder = workspace.out / "runs" / f"{request.method}-{digest(config | {'every': every})}"
    folder.parent.mkdir(parents=True, exist_ok=True)
    # a second experiment that needs this run waits
    with lock.held(folder.parent, patient=True, name=f".{folder.name}.lock"):
        arguments = {**limits, "threads": workspace.threads, "engine": engine, "cohort": cohort, "every": every}
        arguments |= {"allow_unsafe_step": True, "spec": spec}
        task = RunTask(request.label, method, request.seed, folder)
        progress = SimpleNamespace(on_record=lambda step, _: workspace.say(f"{text}, round {step:,}"))
        return _quietly(task, problem, arguments, [progress])


def _compute(workspace: Workspace, work: tuple[str, Mapping[str, Any], Callable[..., Any]], text: str) -> None:
    name, parameters, compute = work
    workspace.say(text)
    content, path = workspace._content(name, parameters)
    value = compute(workspace, parameters)
    path.parent.mkdir(parents=True, exist_ok=True)
    atomic_write_json(path, content | {"value": value})


def final_gap(workspace: Workspace, trial: Mapping[str, Any]) -> float | None:
    """f - f* of one candidate, by the flags of its problem and of its method; None if it diverged."""
    problem = workspace.problem(**trial["problem"])
    method = workspace.method(trial["method"], problem, **trial["flags"])
    arguments = trial_settings(trial["rounds"], workspace.engine, workspace.threads)
    return score(_quietly(RunTask("", method, 0), problem, arguments))


def _quietly(task: RunTask, problem: Problem, arguments: Mapping[str, Any], callbacks: Sequence[Any] = ()) -> RunResult:
    """The run of a task; its summary has the warnings, and an interrupt ends the experiment."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UnsafeStepWarning)
        result = run_task(task, problem, arguments, callbacks)
    if result.status is Status.INTERRUPTED:
        raise KeyboardInterrupt
    return result
