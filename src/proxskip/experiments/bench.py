"""The bench of a figure: problems, runs and values, each computed once and kept by its content."""

from __future__ import annotations

import hashlib
import json
import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

from proxskip import theory
from proxskip.core.method import Method
from proxskip.experiments import search, settings
from proxskip.experiments.curves import AXES, Curve, Curves, Values, curve, flags_of, of_runs
from proxskip.methods.registry import METHODS, closest, title
from proxskip.participation import as_participation
from proxskip.problems.federated import Problem
from proxskip.report.figures import Series, Table
from proxskip.report.plots import X_AXES
from proxskip.results import checkpoint, description, lock
from proxskip.results.atomic import atomic_write_json
from proxskip.results.result import RunResult, Status
from proxskip.running import parallel
from proxskip.running.many_runs import RunTask, check, run_task
from proxskip.running.parallel import EndFile
from proxskip.running.stop import Stop
from proxskip.running.sweep import seeds_for
from proxskip.running.tune import Candidate, local_steps_flag, score, trial_settings
from proxskip.support.cores import available_cores
from proxskip.types import InputError, UnsafeStepWarning

VERSION = 1
"""Version of the cached values; a folder of another version is refused."""
PAPER_DATA = "w8a"
"""The data set that the paper's claims are about."""
LONG = 6e9
"""A run that takes gradients of this many rows takes about a minute on two cores."""


Key = TypeVar("Key")


@dataclass
class Bench:
    """What a figure computes with; all results are stored below ``out`` and never computed twice.

    Args:
        base: the flags of the problem that come with the data, such as the number of clients.
        say: called with what is running.
        problems: the problems in memory, which all figures share.
        jobs: processes that share the work.
        end: set if they are to stop.
        lock: held while a problem is read, since several figures may need it.
    """

    out: Path
    data: str
    base: Values = field(default_factory=dict)
    quick: bool = False
    engine: str = "cpu"
    threads: int | None = None
    say: Callable[[str], None] = field(default=lambda text: None, repr=False)
    problems: dict[str, Problem] = field(default_factory=dict, repr=False)
    jobs: int = 1
    end: EndFile | None = field(default=None, repr=False)
    lock: AbstractContextManager[bool] = field(default_factory=threading.RLock, repr=False)

    # -- for figures ---------------------------------------------------------------------------------------------------
    def run(
        self,
        curves: Sequence[str | Curve],
        *,
        seeds: int = 1,
        seeds_of_long_runs: int | None = None,
        axes: Sequence[str] = AXES,
        **common: Any,
    ) -> Curves:
        """Run curves; each is kept in a folder, and never run twice.

        Args:
            curves: names of methods, or what ``curve`` returns.
            seeds: a curve that draws anything is the median over so many runs.
            seeds_of_long_runs: so many for runs of more than about a minute.
            axes: what its costs are counted in.
            common: flags for the curves whose methods take them.
        """
        asked = self.complete(curves, common)
        labels = [c.label for c in asked]
        if repeated := [label for k, label in enumerate(labels) if label in labels[:k]]:
            raise InputError(f'two curves have the label "{repeated[0]}"; give each its own.')
        if unknown := [axis for axis in axes if axis not in X_AXES]:
            raise InputError(f'"{unknown[0]}" is no axis; choose from {", ".join(X_AXES)}.')
        return self._measured(asked, seeds, seeds_of_long_runs or seeds, axes)

    def complete(self, curves: Sequence[str | Curve], common: Values) -> list[Curve]:
        """The curves with the common flags that their methods take; of p and K, the one that sets the local steps."""
        if isinstance(curves, str | Curve):
            raise InputError('a bench takes a list of curves, such as ["gd", curve("scaffnew", p=0.1)].')
        done = []
        for asked in curves:
            c = curve(asked) if isinstance(asked, str) else asked
            known = flags_of(c.method)
            if unknown := [flag for flag in c.flags if flag not in known]:
                if unknown[0] in ("seeds", "seeds_of_long_runs", "axes"):
                    raise InputError(f"all curves of a call share {unknown[0]}=; give it to bench.run.")
                raise InputError(f"{c.method} takes no {unknown[0]}=; it may have {', '.join(known)}.")
            idle = {"p", "K"} - {local_steps_flag(METHODS[c.method])}
            taken = {k: v for k, v in common.items() if k in known and k not in idle}
            done.append(replace(c, flags={**taken, **c.flags}))
        if unused := [flag for flag in common if not any(flag in c.flags for c in done)]:
            near = closest(unused[0], {flag for c in done for flag in flags_of(c.method)})
            hint = f"; did you mean {near[0]}=?" if near else "."
            raise InputError(f"no curve takes {unused[0]}={hint}")
        return done

    def tune(
        self,
        id: str,
        curves: Sequence[str | Curve],
        *,
        powers: Sequence[int],
        rungs: Sequence[Sequence[int]],
        steps: Sequence[int] | None = None,
        most_steps: int = 0,
        eps: float | None = None,
        **common: Any,
    ) -> tuple[list[Curve], Table]:
        """Every curve with its best step size (and local steps) of one grid, and the table of the grid.

        Args:
            id: of the table.
            curves: of one problem, with different methods.
            powers: gamma = 2^k/L for these k, with L that of the average.
            rungs: rounds and survivors of each rung of successive halving; the last survivors run to their end.
            steps: the numbers of local steps to try.
            most_steps: a grid grows where its winner lies at an end, up to so many local steps.
            eps: the fewest rounds to it win; otherwise, the smallest f - f* at the end.
            common: as in ``run``.
        """
        rules = search.Rules(powers, rungs, steps, most_steps, eps)
        return self._searched(id, self.complete(curves, common), rules)

    def smoothness(self, **flags: Any) -> float:
        """L of the average of a problem; with minibatches L_b made from it instead of the clients' L."""
        return smoothness(self.problem(**flags))

    def constants(self, **flags: Any) -> dict[str, Any]:
        """The constants of a problem, for the page."""
        problem = self.problem(**flags)
        shown: dict[str, Any] = {"lambda": problem.l2, "L (average)": problem.L_average, "max_i L_i": problem.L_i.max()}
        if problem.batch is not None:
            shown |= {"L_b": smoothness(problem), "batch": problem.batch, "A": problem.es_A, "C": problem.es_C}
            shown["rows of the smallest client"] = min(problem.sizes or [0])
        return shown

    def measured(
        self, name: str, compute: Callable[[Bench, Values], Any], cases: Mapping[Key, Values]
    ) -> dict[Key, Any]:
        """What ``compute`` finds for the parameters of each case; as in ``cached_values``."""
        return dict(zip(cases, self.cached_values(name, list(cases.values()), compute), strict=True))

    def rehearsal(self) -> Rehearsal:
        """The same bench, on which nothing runs."""
        return Rehearsal(self.out, self.data, self.base, self.quick, self.engine, problems=self.problems)

    def _measured(self, curves: Sequence[Curve], seeds: int, long_seeds: int, axes: Sequence[str]) -> Curves:
        runs = self.with_seeds(curves, seeds, long_seeds)
        drawn = [of_runs(c, r, axes) for c, r in zip(curves, runs, strict=True)]
        return Curves(tuple(drawn), tuple(r[0].summary["L"] for r in runs))

    def _searched(self, id: str, curves: Sequence[Curve], rules: search.Rules) -> tuple[list[Curve], Table]:
        problem = curves[0].of_problem
        return search.tuned(id, curves, self.smoothness(**problem), rules, partial(self.final_gaps, problem), self.runs)

    def with_seeds(self, curves: Sequence[Curve], seeds: int, long_seeds: int) -> list[list[RunResult]]:
        """Each curve with so many seeds; once if nothing is random."""
        first = self.runs(curves)
        rest = []
        for c, run in zip(curves, first, strict=True):
            problem = self._problem_of(c)
            is_long = run.summary["iterations"] * (problem.N or 0) > LONG
            asked = range(long_seeds if is_long else seeds)
            method = self.method(c.method, problem, **c.flags)
            _, *more = seeds_for(method, asked, problem, c.flags.get("cohort"))
            rest.append([replace(c, seed=k) for k in more])
        others = iter(self.runs([c for more in rest for c in more]))
        return [[run, *(next(others) for _ in more)] for run, more in zip(first, rest, strict=True)]

    # -- problems ------------------------------------------------------------------------------------------------------
    def spec(self, method: str = "scaffnew", **flags: Any) -> dict[str, Any]:
        """What defines the problem, as in the run folders of the command line."""
        return settings.spec_of([method], settings.flags(**{"data": self.data, **self.base, **flags}))

    @property
    def data_sha256(self) -> str | None:
        """The checksum of the report's data; None for embedded data."""
        return self.problem().info.get("data_sha256")

    def problem(self, **flags: Any) -> Problem:
        """The problem of these flags (clients, split, smoothness, batch, l2, ...), on the report's data by default."""
        return self.problem_of(self.spec(**flags))

    def problem_of(self, spec: Values) -> Problem:
        """The problem of a specification, read and solved once."""
        # L and the batch do not move the minimizer: all variants share one solution
        plain = {**spec, "smoothness": "max", "batch": None}
        key, plain_key = digest(spec), digest(plain)
        with self.lock:
            if plain_key not in self.problems:
                self.say(f"reading {spec['data']}, computing L and f*")
                self.problems[plain_key], _ = settings.problem_of(plain)
                self.problems[plain_key].solution  # noqa: B018  computed once, and not in every thread
            if key not in self.problems:
                problem = self.problems[plain_key].with_smoothness(spec["smoothness"])
                self.problems[key] = problem.with_batch(spec["batch"])
            return self.problems[key]

    def method(self, name: str, problem: Problem, **flags: Any) -> Method:
        return settings.method_of(name, settings.flags(data=self.data, **flags), problem)

    def _spec_of(self, c: Curve) -> dict[str, Any]:
        return self.spec(c.method, **c.of_problem)

    def _problem_of(self, c: Curve) -> Problem:
        return self.problem_of(self._spec_of(c))

    def _arguments(self, c: Curve) -> dict[str, Any]:
        """What ``run`` takes besides the method; its step may be beyond the limit, which the summary says."""
        shared = {"engine": self.engine, "threads": self.threads, "allow_unsafe_step": True}
        return {**c.limits, **shared, "cohort": c.flags.get("cohort"), "every": c.flags.get("every")}

    # -- runs and values -----------------------------------------------------------------------------------------------
    def runs(self, curves: Sequence[Curve]) -> list[RunResult]:
        """The runs of these curves: read from their folders, resumed from a checkpoint, or run now."""
        return self._each(_run, curves, [c.label for c in curves])

    def final_gaps(self, problem: Values, candidates: Sequence[Candidate], rounds: int) -> list[float | None]:
        """f - f* of each candidate after some rounds; None if it diverged."""
        labels = [f"tuning {title(c.method)} for {rounds} rounds" for c in candidates]
        shared = {"problem": dict(problem), "rounds": rounds, "engine": self.engine}
        parameters = [shared | {"method": c.method, "flags": dict(c.flags)} for c in candidates]
        return self.cached_values("try", parameters, final_gap, labels)

    def cached_values(
        self,
        name: str,
        parameters: Sequence[Values],
        compute: Callable[[Bench, Values], Any],
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
        if self.jobs == 1 or self.end is None:
            return [function(self, item, text) for item, text in zip(items, texts, strict=True)]
        threads = self.threads
        if threads is None and self.engine == "cpu":  # with fewer items than processes, each has more cores
            threads = max(1, available_cores() // max(1, min(self.jobs, len(items))))
        there = {**self._plain(), "threads": threads}
        own = [kind for kind in METHODS.values() if not kind.__module__.startswith("proxskip.")]
        elsewhere = partial(_elsewhere, function, there)
        # the last items begin first, since lists of parameters mostly run from the cheap to the expensive
        last_first = range(len(items) - 1, -1, -1)
        values: dict[int, Any] = {}
        for number, value in parallel.each(elsewhere, [items[k] for k in last_first], self.jobs, self.end, own):
            k = last_first[number]
            values[k] = value
            self.say(f"{labels[k]} ({len(values)} of {len(items)} done in {self.jobs} processes)")
        if len(values) < len(items):
            raise KeyboardInterrupt
        return [values[k] for k in range(len(items))]

    def _plain(self) -> dict[str, Any]:
        """What another process needs to make the same bench."""
        names = ("out", "data", "base", "quick", "engine", "threads")
        return {name: getattr(self, name) for name in names}

    def _content(self, name: str, parameters: Values) -> tuple[dict[str, Any], Path]:
        """What identifies a value, with the checksum of the data, and its file."""
        data = {"data": self.data, "data_sha256": self.data_sha256, "base": self.base}
        content = {"name": name, "parameters": parameters, "version": VERSION, **data}
        return content, self.out / "cache" / f"{checkpoint.safe_name(name)}-{digest(content)}.json"


def smoothness(problem: Problem) -> float:
    """L of the average; with minibatches L_b made from it instead of the clients' L, as in the notebook."""
    if problem.batch is None:
        return problem.L_average
    assert problem.sizes is not None
    rows = max(float(f.L_rows) for f in problem.clients)  # type: ignore[attr-defined]
    return theory.minibatch_smoothness(min(problem.sizes), problem.batch, problem.L_average, rows)


def digest(content: Any) -> str:
    """Twenty hexadecimal digits that identify plain data."""
    plain = json.dumps(content, sort_keys=True, default=_plain, allow_nan=True)
    return hashlib.sha256(plain.encode()).hexdigest()[:20]


def _plain(value: Any) -> Any:
    return dict(value) if isinstance(value, Mapping) else value.tolist()


# -- a rehearsal -------------------------------------------------------------------------------------------------------
@dataclass
class Rehearsal(Bench):
    """A bench that runs nothing: every curve falls from 1 to 1e-16 in two rounds.

    A figure that is made on it shows its mistakes before any work.
    """

    def _measured(self, curves: Sequence[Curve], seeds: int, long_seeds: int, axes: Sequence[str]) -> Curves:
        drawn, constants = [], []
        for c in curves:
            problem = self._problem_of(c)
            method: Any = self.method(c.method, problem, **c.flags)
            check([RunTask(c.label, method, c.seed)], problem, self._arguments(c))
            about = {"gamma": method.gamma, "status": "limit", **c.about}
            x = {axis: [0.0, 1.0, 2.0] for axis in axes}
            drawn.append(Series(c.label, x, [1.0, 1e-8, 1e-16], c.method, about=about))
            constants.append(problem.L)
        return Curves(tuple(drawn), tuple(constants))

    def _searched(self, id: str, curves: Sequence[Curve], rules: search.Rules) -> tuple[list[Curve], Table]:
        return list(curves), search.grid_table(id, {}, {})


# -- one piece of work, here or in another process ---------------------------------------------------------------------
_PROBLEMS: dict[str, Problem] = {}
"""In another process: the problems that it has read."""


def _elsewhere(function: Callable[..., Any], bench: Values, item: Any) -> Any:
    """Call the function in another process."""
    return function(Bench(**bench, problems=_PROBLEMS), item, "")


def _run(bench: Bench, c: Curve, text: str) -> RunResult:
    spec = bench._spec_of(c)
    problem = bench.problem_of(spec)
    method = bench.method(c.method, problem, **c.flags)
    # the folder is named by everything that determines the run, so that figures share their runs
    cohort = as_participation(c.flags.get("cohort"))
    config = description.config(method, problem, Stop(**c.limits).rules, c.seed, bench.engine, cohort, {})
    folder = bench.out / "runs" / f"{c.method}-{digest(config | {'every': c.flags.get('every')})}"
    folder.parent.mkdir(parents=True, exist_ok=True)
    # a second experiment that needs this run waits
    with lock.held(folder.parent, patient=True, name=f".{folder.name}.lock"):
        task = RunTask(c.label, method, c.seed, folder)
        progress = SimpleNamespace(on_record=lambda step, _: bench.say(f"{text}, round {step:,}"))
        return _quietly(task, problem, bench._arguments(c) | {"spec": spec}, [progress])


def _compute(bench: Bench, work: tuple[str, Values, Callable[..., Any]], text: str) -> Path:
    name, parameters, compute = work
    bench.say(text)
    content, path = bench._content(name, parameters)
    value = compute(bench, parameters)
    path.parent.mkdir(parents=True, exist_ok=True)
    atomic_write_json(path, content | {"value": value})
    return path


def final_gap(bench: Bench, trial: Values) -> float | None:
    """f - f* of one candidate, by the flags of its problem and of its method; None if it diverged."""
    problem = bench.problem(**trial["problem"])
    method = bench.method(trial["method"], problem, **trial["flags"])
    arguments = trial_settings(trial["rounds"], bench.engine, bench.threads)
    return score(_quietly(RunTask("", method, 0), problem, arguments))


def _quietly(task: RunTask, problem: Problem, arguments: Values, callbacks: Sequence[Any] = ()) -> RunResult:
    """The run of a task; its summary has the warnings, and an interrupt ends the experiment."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UnsafeStepWarning)
        result = run_task(task, problem, arguments, callbacks)
    if result.status is Status.INTERRUPTED:
        raise KeyboardInterrupt
    return result
