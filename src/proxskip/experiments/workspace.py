"""The workspace of an experiment: problems, runs and values by their content, computed once and found again."""

from __future__ import annotations

import hashlib
import json
import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from proxskip.cores import available_cores
from proxskip.experiments import settings
from proxskip.experiments.progress_estimate import ProgressEstimate, WorkPart
from proxskip.interfaces import Method
from proxskip.links.cohorts import as_participation
from proxskip.loop.stop import Stop
from proxskip.many_runs import RunTask, run_task
from proxskip.problems.federated import Problem
from proxskip.report.figures import Experiment, Panel, Table
from proxskip.results import checkpoint, description, lock
from proxskip.results.atomic import atomic_write_json
from proxskip.results.load import trace_of
from proxskip.results.result import Result, Status
from proxskip.results.trace import Trace
from proxskip.tuning import score, trial_settings
from proxskip.types import Array, InputError, UnsafeStepWarning

if TYPE_CHECKING:
    from proxskip.processes import Processes

VERSION = 1
"""Version of the cached values; a folder of another version is refused."""
PAPER_DATA = "w8a"
"""The data set that the paper's claims are about."""


class Interrupted(KeyboardInterrupt):
    """Ctrl-C or SIGTERM; everything computed so far is kept."""


@dataclass(frozen=True, slots=True)
class RunRequest:
    """One run: the command line's flags for the method, for the problem and for stopping (including ``every``).

    ``flags`` may contain ``cohort``. Steps beyond the method's limits are allowed here; the run's summary warns.
    """

    label: str
    method: str
    flags: Mapping[str, Any] = field(default_factory=dict)
    problem: Mapping[str, Any] = field(default_factory=dict)
    stop: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 0


@dataclass(frozen=True, slots=True)
class CachedRun:
    """A finished run, read from its folder."""

    job: RunRequest
    folder: Path
    summary: dict[str, Any]
    trace: Trace

    @property
    def x(self) -> Array:
        """The last communicated x."""
        return np.asarray(np.load(self.folder / "x.npy", allow_pickle=False))

    def first(self, below: float, x: str = "round") -> float | None:
        """The value of ``x`` in the first record with ``|f - f*| <= below``; None if there is no such record."""
        hit = np.flatnonzero(np.abs(self.trace["gap"]) <= below)
        return float(self.trace[x][hit[0]]) if len(hit) else None


def read(request: RunRequest, folder: Path) -> CachedRun | None:
    """The finished run of a folder; None if there is none yet."""
    try:
        summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    # such a run is resumed, not read
    if summary["status"] == Status.INTERRUPTED.name:
        return None
    return CachedRun(request, folder, summary, trace_of(folder))


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
    spent: list[float] = field(default_factory=list, repr=False)
    """The CPU seconds of what the processes did for this experiment."""
    lock: Any = field(default_factory=threading.RLock, repr=False)
    """Experiments that run at once read each problem once."""

    @property
    def id(self) -> str:
        """The experiment's name."""
        return str(self.preset.get("id", ""))

    @property
    def inside(self) -> float:
        """The share of the experiment that is done."""
        return self.progress.inside.get(self.id, 0.0)

    def experiment(
        self, id: str, parameters: Mapping[str, Any], panels: Sequence[Panel], tables: Sequence[Table] = ()
    ) -> Experiment:
        """An experiment with the title and the text of its preset."""
        title, shows, notes = self.preset["title"], self.preset.get("shows", ""), self.preset.get("notes", [])
        return Experiment(id, title, shows, dict(parameters), "", list(panels), list(tables), list(notes))

    # -- problems ------------------------------------------------------------------------------------------------------
    def spec(self, method: str = "scaffnew", **flags: Any) -> dict[str, Any]:
        """Everything that defines the problem, as the command line writes it to a run folder."""
        return settings.spec_of([method], settings.flags(**{"data": self.data, **self.base, **flags}))

    @property
    def data_sha256(self) -> str | None:
        """The checksum of the report's data; None for embedded data."""
        checksum = self.problem().info.get("data_sha256")
        return None if checksum is None else str(checksum)

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
                    self.progress.say(self.id, f"reading {spec['data']}, computing L and f*")
                    self.problems[digest(plain)], _ = settings.problem_of(plain)
                self.problems[key] = variant(self.problems[digest(plain)], spec["L"], spec["batch"])
            return self.problems[key]

    def method(self, name: str, problem: Problem, **flags: Any) -> Method:
        """The method with these flags; parameters that are not given follow its theorem."""
        return settings.method_of(name, settings.flags(data=self.data, **flags), problem)

    # -- runs and values -----------------------------------------------------------------------------------------------
    def runs(self, requests: Sequence[RunRequest], upto: float | None = None) -> list[CachedRun]:
        """The requested runs: read from their folders, resumed from a checkpoint, or run now.

        Args:
            upto: the share of the experiment that is done after these runs.
        """
        part = WorkPart(self.progress, self.id, upto, [request.label for request in requests])
        return self._each(_run, requests, part)

    def cached_values(
        self,
        name: str,
        asked: Sequence[Mapping[str, Any]],
        compute: Callable[[Workspace, Mapping[str, Any]], Any],
        upto: float | None = None,
        labels: Sequence[str] | None = None,
    ) -> list[Any]:
        """One JSON value for each of several parameters: computed once, later read from ``out/cache``.

        Args:
            compute: a function of a module.
        """
        labels = labels or [_label(name, a, asked) for a in asked]
        missing = [k for k, a in enumerate(asked) if not self._content(name, a)[1].is_file()]
        kept = [k for k in range(len(asked)) if k not in missing]
        part = WorkPart(self.progress, self.id, upto, [labels[k] for k in (*kept, *missing)])
        for _ in kept:
            part.skip()
        self._each(_compute, [(name, asked[k], compute) for k in missing], part)
        return [json.loads(self._content(name, a)[1].read_text(encoding="utf-8"))["value"] for a in asked]

    def final_gaps(
        self,
        problem: Mapping[str, Any],
        tried: Sequence[tuple[str, Mapping[str, Any]]],
        rounds: int,
        labels: Sequence[str],
        upto: float | None = None,
    ) -> list[float | None]:
        """f - f* of each candidate (a method's name and flags) after these rounds, cached; None if it diverged."""
        asked = [
            {"problem": dict(problem), "method": name, "flags": dict(flags), "rounds": rounds, "engine": self.engine}
            for name, flags in tried
        ]
        return self.cached_values("try", asked, _final_gap, upto, labels)

    def _each(self, function: Callable[..., Any], items: Sequence[Any], part: WorkPart) -> list[Any]:
        """The function of each item, here or in the processes of the pool."""
        if self.pool is None:
            return [function(self, item, part) for item in items]
        values: dict[int, Any] = {}
        # fewer items than processes: each of them has more cores, which changes no byte
        threads = self.threads or max(1, available_cores() // max(1, min(self.pool.count, len(items))))
        about = {"out": self.out, "data": self.data, "preset": dict(self.preset), "base": dict(self.base)}
        about |= {"quick": self.quick, "engine": self.engine, "threads": threads}
        work = [(function, about, item) for item in items]
        if work:
            self.progress.start()
            self.progress.say(self.id, f"{part.labels[-1]} ({len(work)} to do in {self.pool.count} processes)")
        for number, value, seconds in self.pool.each(_there, work, float(self.preset.get("share", 0.0))):
            part.begin()
            part.end()
            values[number] = value
            self.spent.append(seconds)
        return [values[k] for k in range(len(items))]

    def _content(self, name: str, parameters: Mapping[str, Any]) -> tuple[dict[str, Any], Path]:
        """What identifies a value, and its file."""
        data = {"data": self.data, "data_sha256": self.data_sha256, "base": self.base}
        # the checksum of the data too, since a file may change under its name
        content = {"name": name, "parameters": parameters, "version": VERSION, **data}
        return content, self.out / "cache" / f"{checkpoint.safe_name(name)}-{digest(content)}.json"


def variant(problem: Problem, L: Any, batch: int | None) -> Problem:
    """The same problem with another kind of L and other minibatches; it keeps its solution."""
    solution = problem.solution
    other = replace(problem, L_kind=L, batch=batch)
    other.__dict__["solution"] = solution  # neither L nor the batch moves the minimizer
    other.__dict__["weights"] = problem.weights  # the same bits: dividing by their sum again could change the last one
    return other


def digest(content: Any) -> str:
    """Twenty hexadecimal digits that identify plain data."""
    # sorted, so that equal content has one digest
    plain = json.dumps(content, sort_keys=True, default=_plain, allow_nan=True)
    return hashlib.sha256(plain.encode()).hexdigest()[:20]


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, Mapping):
        return dict(value)
    raise InputError(f"{type(value).__name__} cannot be part of a key; give plain data.")


def _label(name: str, about: Mapping[str, Any], among: Sequence[Mapping[str, Any]]) -> str:
    """The name with those parameters that tell a value from the others."""
    distinct = [k for k, v in about.items() if isinstance(v, str | int | float) and any(a[k] != v for a in among)]
    return ", ".join([name, *(f"{k} = {about[k]}" for k in distinct)])


# -- one piece of work, here or in a process of the pool ---------------------------------------------------------------
_PROBLEMS: dict[str, Problem] = {}
"""In a process of a pool: the problems that it has read."""


def _there(work: tuple[Callable[..., Any], Mapping[str, Any], Any]) -> Any:
    function, about, item = work
    return function(Workspace(**about, problems=_PROBLEMS), item, WorkPart(ProgressEstimate(), "", None, [""]))


def _run(workspace: Workspace, request: RunRequest, part: WorkPart) -> CachedRun:
    spec = workspace.spec(request.method, **request.problem)
    problem = workspace._problem(spec)
    method = workspace.method(request.method, problem, **request.flags)
    limits = {k: v for k, v in request.stop.items() if k in settings.LIMITS}
    every, cohort, engine = request.stop.get("every"), request.flags.get("cohort"), workspace.engine
    # the folder is named by everything that determines the run, so that figures share their runs
    rules = Stop(**limits).rules
    asked = description.config(method, problem, rules, request.seed, engine, as_participation(cohort), {})
    folder = workspace.out / "runs" / f"{request.method}-{digest(asked | {'every': every})}"
    folder.parent.mkdir(parents=True, exist_ok=True)
    # two experiments may ask for the same run at once: the second waits for the first
    with lock.held(folder.parent, patient=True, name=f".{folder.name}.lock"):
        if (kept := read(request, folder)) is not None:
            part.skip()
            return kept
        part.begin()
        given = {**limits, "threads": workspace.threads, "engine": engine, "cohort": cohort, "every": every}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UnsafeStepWarning)  # they are in the summary
            task = RunTask(request.label, method, request.seed, folder)
            result = run_task(task, problem, given | {"allow_unsafe_step": True, "spec": spec}, [part])
        _raise_if_interrupted(result)
        part.end()
    finished = read(request, folder)
    assert finished is not None
    return finished


def _compute(workspace: Workspace, work: tuple[str, Mapping[str, Any], Callable[..., Any]], part: WorkPart) -> None:
    name, parameters, compute = work
    part.begin()
    content, path = workspace._content(name, parameters)
    value = compute(workspace, parameters)
    path.parent.mkdir(parents=True, exist_ok=True)
    atomic_write_json(path, content | {"value": value})
    part.end()


def _final_gap(workspace: Workspace, asked: Mapping[str, Any]) -> float | None:
    problem = workspace.problem(**asked["problem"])
    method = workspace.method(asked["method"], problem, **asked["flags"])
    given = trial_settings(asked["rounds"], workspace.engine, workspace.threads)
    with warnings.catch_warnings():
        # steps beyond the theorem are the point of the search
        warnings.simplefilter("ignore", UnsafeStepWarning)
        result = run_task(RunTask("", method, 0), problem, given)
    _raise_if_interrupted(result)
    return score(result)


def _raise_if_interrupted(result: Result) -> None:
    if result.status is Status.INTERRUPTED:
        raise Interrupted
