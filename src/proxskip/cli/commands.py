"""The commands: run, sweep, tune, resume, plan, reproduce, demo, theory, data, plot, doctor, completion."""

from __future__ import annotations

import dataclasses
import importlib
import os
import sys
import traceback
import warnings
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from proxskip import datasets, theory
from proxskip.cli import output
from proxskip.cli.parser import OF_METHODS, Parser, parser, plugins
from proxskip.core.engine import Engine
from proxskip.core.method import Method
from proxskip.experiments import flags, settings
from proxskip.experiments.paper_table import table1
from proxskip.methods import registry
from proxskip.methods.registry import METHODS, closest
from proxskip.networks import Network
from proxskip.problems.federated import Problem
from proxskip.prox import parse as prox_text
from proxskip.report import plots
from proxskip.results import fields, folder, lock, run_text
from proxskip.results.load import load
from proxskip.results.result import RunResult, Status
from proxskip.results.table import Results
from proxskip.running import many_runs
from proxskip.running.many_runs import RunTask, run_many
from proxskip.running.plan import plan
from proxskip.running.progress import DownloadProgress, Progress, stage
from proxskip.running.run import make_engine, resume
from proxskip.running.sweep import seeds_for
from proxskip.support.version import __version__
from proxskip.types import EngineError, InputError, UnsafeStepWarning, printable

DONE, UNEXPECTED, BAD_INPUT, NOT_REACHED, DIVERGED, STALLED, FAILED_CLAIM, INTERRUPTED = 0, 1, 2, 3, 4, 5, 6, 130
CORRUPTED = 7
_WORST_FIRST = (INTERRUPTED, CORRUPTED, DIVERGED, STALLED, NOT_REACHED, DONE)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code (``proxskip --help`` lists them)."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("always", UnsafeStepWarning)
            warnings.showwarning = _show_warning
            try:
                o = _parse(sys.argv[1:] if argv is None else argv)
            except SystemExit as end:  # --help and --version
                return end.code if isinstance(end.code, int) else DONE
            return _COMMANDS[o.command](o)
    except SystemExit as end:
        return output.fail(f"the code of a method ended the program (SystemExit: {end.code}).", UNEXPECTED)
    except InputError as error:
        return output.fail(str(error), BAD_INPUT)
    except EngineError as error:
        return output.fail(str(error), UNEXPECTED)
    except KeyboardInterrupt:
        return output.fail("interrupted.", INTERRUPTED)
    except BrokenPipeError:  # as after `| head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return UNEXPECTED
    except OSError as error:  # a full disk, a folder that was removed
        return output.fail(f"{error.filename or 'a file'}: {error.strerror or error}.", UNEXPECTED)
    except Exception as error:  # a bug
        traceback.print_exc()
        return output.fail(f"unexpected {type(error).__name__}: {error}; this is a bug, please report it.", UNEXPECTED)


def _parse(argv: Sequence[str]) -> Namespace:
    # first, since the parser names the methods of plugins
    for path in plugins(argv):
        registry.load_plugin(path)
    top, commands = parser(__version__, argv)
    if not argv:
        top.print_help()
        raise SystemExit(DONE)
    o, extra = top.parse_known_args(argv)
    if extra:
        raise _unknown(extra[0], o, commands[o.command])
    if o.command in OF_METHODS:  # the parser knew the flags of these methods alone
        o = Namespace(**flags.defaults() | vars(o))
    return settings.with_lambda(o) if "l2" in vars(o) else o


def _unknown(word: str, o: Namespace, command: Parser) -> InputError:
    """An argument that is no flag of the command, or of the methods that it names."""
    flag = word.split("=")[0]
    if o.command == "tune" and flag in [f"--{name}" for name in flags.TUNED]:
        return InputError(f"tune searches {flag} itself; give --powers and --steps.")
    if o.command in OF_METHODS:
        names = o.methods if o.command == "sweep" else [o.method]
        takers = [name for name in METHODS if flag in [f.flag for f in flags.of_methods([METHODS[name]])["method"]]]
        if takers:
            who = f"{names[0]} does not take" if len(names) == 1 else f"none of {', '.join(names)} takes"
            return InputError(f"{who} {flag}, which is for {', '.join(takers)}.")
    near = closest(flag, command.flags())
    hint = f"did you mean {near[0]}?" if near else f"see `proxskip {o.command} --help`."
    return InputError(f"unknown argument {word}; {hint}")


def _show_warning(message: Warning | str, *_: object, **__: object) -> None:
    print(f"warning: {printable(' '.join(str(message).split()))}", file=sys.stderr)


# -- run and sweep -----------------------------------------------------------------------------------------------------
def _run(o: Namespace) -> int:
    summaries, _, labels, code = _execute([o.method], o)
    if o.json:
        labelled = [s | {"labels": labels} for s in summaries]
        output.as_json(labelled[0] if o.seeds is None else labelled)
    elif not o.quiet:
        print(run_text.report(summaries[0], labels, o.out))
        if o.seeds is not None:
            rows = [(f"seed {s['seed']}", [s]) for s in summaries]
            output.print_table(fields.table("", [*rows, (f"median of {len(rows)}", summaries)]))
    return code


def _execute(methods: Sequence[str], o: Namespace) -> tuple[list[dict[str, Any]], Problem, dict[str, int] | None, int]:
    """Check everything, then run the methods: their summaries, the problem, its labels, and the exit code."""
    names = settings.method_names(methods)
    settings.check_flags(names, o)
    out = claim(o.out, o.force or o.go_on)
    spec = settings.spec_of(names, o)
    problem, labels = _problem(spec, o.quiet)
    tasks = tasks_of({name: settings.method_of(name, o, problem) for name in names}, problem, out, o)
    with engine_for(o.engine, o) as engine:
        shared = {k: vars(o)[k] for k in flags.passed_on()} | {"engine": engine, "spec": spec}
        several = o.seeds is not None or o.command == "sweep"
        many_runs.check(tasks, problem, shared, out if several else None)
        problem.solution  # noqa: B018  before anything is overwritten, since it may take long
        if out is not None and not o.go_on:
            clear(out)  # only now, since everything has been checked
        # the folder of several runs is locked until the last of them has ended
        results = run_many(tasks, problem, shared, out=o.out if several else None, progress=not o.quiet)
    summaries = [dict(r.summary) for r in results]
    has_tolerance = o.tol is not None or o.target is not None
    return summaries, problem, labels, worst([exit_code(r, has_tolerance) for r in results])


def _sweep(o: Namespace) -> int:
    if o.x == "sim_seconds" and o.network is None:
        raise InputError("--x sim_seconds is the time over a network; give --network, such as --network mobile.")
    summaries, problem, labels, code = _execute(o.methods, o)
    names = dict.fromkeys(s["method"] for s in summaries)
    groups = [(name, [s for s in summaries if s["method"] == name]) for name in names]
    kappa = "" if problem.kappa is None else f", kappa = {problem.kappa:,.0f}"
    title = f"{problem.info.get('data')}, {problem.n} clients split by {problem.info.get('split')}{kappa}"
    axes = ("rounds", "floats") if o.x is None else (o.x,)
    files = [] if o.out is None else _keep_sweep(groups, Path(o.out), title, axes)
    if o.json:
        output.as_json([s | {"labels": labels} for s in summaries])
    elif not o.quiet:
        output.print_table(fields.table(title, groups))
        if o.network is not None:
            print(output.fastest(groups, o.network.name))
        output.print_files(files)
    return code


def _keep_sweep(groups: Sequence[fields.Group], out: Path, title: str, axes: Sequence[str]) -> list[Path]:
    """Write results.csv, sweep.png and sweep.pdf."""
    written = out / "results.csv"
    kept = load(out)
    assert isinstance(kept, Results)
    kept.to_csv(written)
    curves = plots.groups_of([out / name for name, _ in groups])
    y = "gap" if any(plots.has(run, "gap") for runs in curves.values() for run in runs) else "grad_norm"
    return [written, *plots.save(plots.panel_figure(plots.curve_panels(curves, axes, y), title), out / "sweep.png")]


def _problem(spec: dict[str, Any], quiet: bool) -> tuple[Problem, dict[str, int] | None]:
    with stage(f"reading {spec['data']} and computing L", quiet):
        problem, labels = settings.problem_of(spec)
        problem.L_i  # noqa: B018  computes eigenvalues, which takes time
        return problem, labels


# -- runs --------------------------------------------------------------------------------------------------------------
def exit_code(result: RunResult, has_tolerance: bool) -> int:
    """The exit code of one run."""
    return {
        Status.CONVERGED: DONE,
        Status.LIMIT: NOT_REACHED if has_tolerance else DONE,
        Status.STOPPED: NOT_REACHED if has_tolerance else DONE,
        Status.DIVERGED: DIVERGED,
        Status.STALLED: STALLED,
        Status.PRECISION: NOT_REACHED,
        Status.INEXACT: NOT_REACHED,
        Status.CORRUPTED: CORRUPTED,
        Status.INTERRUPTED: INTERRUPTED,
    }[result.status]


def worst(codes: Sequence[int]) -> int:
    """The exit code of several runs."""
    return next(code for code in _WORST_FIRST if code in codes)


def tasks_of(methods: Mapping[str, Method], problem: Problem, out: Path | None, o: Namespace) -> list[RunTask]:
    """One task for each method and seed, with a folder of its own inside ``out``."""
    tasks = []
    for k, (name, method) in enumerate(methods.items()):
        label = name if len(methods) == 1 else f"{k + 1}/{len(methods)} {name}"
        path = out / name if out is not None and o.command == "sweep" else out
        if o.seeds is None:
            tasks.append(RunTask(label, method, o.seed, path))
            continue
        for seed in seeds_for(method, range(o.seed, o.seed + o.seeds), problem, o.cohort, o.network):
            tasks.append(RunTask(f"{label}, seed {seed}", method, seed, path and path / f"seed-{seed}"))
    return tasks


@contextmanager
def engine_for(name: str, o: Namespace) -> Iterator[Engine]:
    """The engine, for all runs of the command. Each run closes it, but the actors of Ray stay alive between them."""
    if name != "ray":
        if flags := [flag for flag in ("address", "actors") if vars(o).get(flag) is not None]:
            raise InputError(f"--{flags[0]} needs --engine ray.")
        yield make_engine(name, o.threads)
        return
    from proxskip.engines.ray.engine import RayEngine

    ray = RayEngine(o.actors, o.address, stay=True)
    try:
        yield ray
    finally:
        ray.shutdown()


# -- folders -----------------------------------------------------------------------------------------------------------
def claim(out: str | None, force: bool) -> Path | None:
    """The output folder, if it can be written to, and holds no run that would be overwritten."""
    if out is None:
        return None
    path = Path(out)
    settings.check_folder(path)
    held = held_runs(path)
    for old in {path, *held}:
        lock.refuse_if_held(old)
    if held and not force:
        raise InputError(
            f"{path} already holds a run ({held[0] / _files(held[0])[0]}); choose another folder, or use --continue to "
            "resume it, or --force to overwrite it."
        )
    return path


def clear(path: Path) -> None:
    """Remove the runs in the folder."""
    for old in held_runs(path):
        folder.clear(old)
        # what else is in the folder belongs to the user
        if old != path and not any(old.iterdir()):
            old.rmdir()


def held_runs(path: Path) -> list[Path]:
    """The folder and the folders of methods and seeds inside it that hold a run."""
    if not path.is_dir():
        return []
    # only folders that a run or a sweep makes: --force removes nothing else
    inner = [p for p in sorted(path.iterdir()) if p.name in METHODS or p.name.startswith("seed-")]
    return [*([path] if _files(path) else []), *(q for p in inner for q in held_runs(p))]


def _files(path: Path) -> list[str]:
    return [name for name in folder.FILES if (path / name).is_file()]


# -- resume ------------------------------------------------------------------------------------------------------------
def _resume(o: Namespace) -> int:
    path = Path(o.folder)
    inside = [p for p in held_runs(path) if p != path]
    if inside and not (path / "checkpoint").exists():
        raise InputError(f"{path} holds {len(inside)} runs; resume them one by one, such as {inside[0]}.")
    config = folder.read(path).config
    spec = config.get("spec") or {}
    if config["method"] == "proxskip.torch.train":
        raise InputError(f"{path} holds a training of a network; resume it in Python with proxskip.torch.resume.")
    if "data" not in spec:  # a run of the library
        raise InputError(f"{path} was made in Python; resume it there with proxskip.resume(folder, problem).")
    if o.data_dir is not None:
        spec = spec | {"data_dir": o.data_dir}
    problem, labels = _problem(spec, o.quiet)
    problem.solution  # noqa: B018  it may take long
    with Progress(config["method"], o.quiet) as progress, engine_for(config["engine"], o) as engine:
        limits = {k: vars(o)[k] for k in settings.LIMITS if vars(o)[k] is not None}
        result = resume(path, problem, callbacks=(progress,), engine=engine, progress=False, **limits)
    summary = dict(result.summary)
    if o.json:
        output.as_json(summary | {"labels": labels})
    elif not o.quiet:
        print(run_text.report(summary, labels, str(path)))
    return exit_code(result, progress.has_tolerance)


# -- theory, data, plot ------------------------------------------------------------------------------------------------
def _theory(o: Namespace) -> int:
    floor = None if o.cohort is None else theory.cohort_sentence(o.n, o.cohort, o.eps)
    rows = table1(o.L, o.mu, o.eps, o.n, o.d, o.G2, o.K, o.p, o.q)
    if o.json:
        more = {} if floor is None else {"cohort_rounds": theory.cohort_rounds(o.n, o.cohort, o.eps)}
        output.as_json([asdict(r) | more for r in rows])
        return DONE
    title = f"Table 1 of the paper: L = {o.L:g}, mu = {o.mu:g}, kappa = {o.L / o.mu:g}, eps = {o.eps:g}, n = {o.n}"
    output.print_table1(rows, title)
    print("Rounds: the expression inside the paper's O(...), with the logarithm. Floats: sent by one client.")
    missing = [f for f, v in (("--d to see the floats", o.d), ("--G2 to see the rounds of LocalGD", o.G2)) if v is None]
    if missing:
        print(f"Give {' and '.join(missing)}.")
    if floor is not None:
        print(floor)
    return DONE


def _data(o: Namespace) -> int:
    if o.act == "list":
        rows = datasets.available(data_dir=o.data_dir)
        if o.json:
            labels = [None if r.labels is None else {str(k): n for k, n in r.labels.items()} for r in rows]
            output.as_json([r._asdict() | {"labels": keys} for r, keys in zip(rows, labels, strict=True)])
        elif not o.quiet:
            output.print_datasets(rows)
        return DONE
    with DownloadProgress(f"fetching {o.name}", o.quiet) as download:
        path = datasets.fetch(o.name, data_dir=o.data_dir, progress=download)
    if o.json:
        output.as_json({"name": o.name, "path": str(path)})
    elif not o.quiet:
        print(f"{o.name} is at {printable(str(path))}.")
    return DONE


def _plot(o: Namespace) -> int:
    if o.out is None and len(o.folders) > 1:
        raise InputError("several folders make one figure; say where it goes with --out FILE (.png or .pdf).")
    panels = plots.curve_panels(plots.groups_of(o.folders), (o.x,), o.y)
    files = plots.save(plots.panel_figure(panels, o.title), o.out or Path(o.folders[0]) / f"{o.y}-{o.x}.png")
    if o.json:
        output.as_json([str(p) for p in files])
    elif not o.quiet:
        output.print_files(files)
    return DONE


# -- plan --------------------------------------------------------------------------------------------------------------
def _plan(o: Namespace) -> int:
    if o.clients == 1 or o.D is not None:
        raise InputError("plan needs several clients; for one function use proxskip.minimize in Python.")
    if o.psi is not None:
        prox_text.check(o.psi)  # before the data are read
    problem, _ = settings.problem_of(settings.spec_of(["scaffnew"], o))
    # the flags have the names of the network's numbers
    numbers = {field.name: vars(o).get(field.name) for field in dataclasses.fields(Network)}
    network = replace(o.network or Network(), **{k: v for k, v in numbers.items() if v is not None})
    with stage("the candidates", o.quiet or o.json):
        found = plan(problem, tol=o.tol, seed=o.seed, seconds=o.seconds, network=network, threads=o.threads)
    if o.json:
        rows = [row.plain() for row in found.rows]
        output.as_json({"best": found.best.label, "sentence": found.sentence, "tol": found.tol, "rows": rows})
    elif not o.quiet:
        print(found)
    return DONE if found.best.seconds < float("inf") else NOT_REACHED


# -- commands with a module of their own -------------------------------------------------------------------------------
def _command_of(module: str) -> Callable[[Namespace], int]:
    """The command of a module that is loaded only for it."""
    return lambda o: int(importlib.import_module(f"proxskip.cli.{module}").command(o))


_COMMANDS: dict[str, Callable[[Namespace], int]] = {
    "run": _run,
    "sweep": _sweep,
    "resume": _resume,
    "plan": _plan,
    "theory": _theory,
    "data": _data,
    "plot": _plot,
    "reproduce": _command_of("reproduce_command"),
    "tune": _command_of("tune_command"),
    "doctor": _command_of("doctor"),
    "completion": _command_of("completion"),
    "demo": _command_of("demo_command"),
}
