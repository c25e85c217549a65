"""The commands: run, compare, resume, plan, reproduce, demo, theory, data, plot, doctor, completion."""

from __future__ import annotations

import importlib
import os
import sys
import traceback
import warnings
from argparse import Namespace
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from proxskip import registry, theory
from proxskip.cli import output, plan_command, runs
from proxskip.cli.flags import parser, plugins
from proxskip.data import datasets
from proxskip.experiments import settings
from proxskip.loop.progress import DownloadProgress, Progress, stage
from proxskip.problems.federated import Problem
from proxskip.report import plots
from proxskip.results import folder, run_text
from proxskip.results.atomic import atomic_write_json
from proxskip.running import resume
from proxskip.theory.table1 import table1
from proxskip.types import EngineError, InputError, UnsafeStepWarning, printable
from proxskip.version import __version__


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code (``proxskip --help`` lists them)."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("always", UnsafeStepWarning)
            warnings.showwarning = _show_warning
            # inside the context: a plugin that is loaded here may warn too
            try:
                o = _parse(sys.argv[1:] if argv is None else argv)
            except SystemExit as end:  # --help and --version
                return end.code if isinstance(end.code, int) else runs.DONE
            return _COMMANDS[o.command](o)
    except SystemExit as end:
        return _fail(f"the method's code ended the program (SystemExit: {end.code}).", runs.UNEXPECTED)
    except InputError as error:
        return _fail(str(error), runs.BAD_INPUT)
    except EngineError as error:
        return _fail(str(error), runs.UNEXPECTED)
    except KeyboardInterrupt:
        return _fail("interrupted.", runs.INTERRUPTED)
    except BrokenPipeError:  # the reader of our output has closed it, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return runs.UNEXPECTED
    except OSError as error:  # a full disk, a folder that was removed
        return _fail(f"{error.filename or 'a file'}: {error.strerror or error}.", runs.UNEXPECTED)
    # anything else is a bug: show where, then the sentence
    except Exception as error:
        traceback.print_exc()
        return _fail(f"unexpected {type(error).__name__}: {error}; this is a bug, please report it.", runs.UNEXPECTED)


def _parse(argv: Sequence[str]) -> Namespace:
    # first, since the methods of a plugin are choices of the parser below
    for path in plugins(argv):
        registry.load_plugin(path)
    top, commands = parser(__version__)
    if not argv:
        top.print_help()
        raise SystemExit(runs.DONE)
    o, extra = top.parse_known_args(argv)
    if extra:
        near = commands[o.command].nearest(extra[0])
        hint = f"did you mean {near}?" if near else f"see `proxskip {o.command} --help`."
        raise InputError(f"{extra[0]} is not an argument of this command; {hint}")
    return o


def _fail(sentence: str, code: int) -> int:
    print(f"proxskip: {printable(' '.join(sentence.split()))}", file=sys.stderr)
    return code


def _show_warning(message: Warning | str, *_: object, **__: object) -> None:
    print(f"warning: {printable(' '.join(str(message).split()))}", file=sys.stderr)


# -- run and compare ---------------------------------------------------------------------------------------------------
def _run(o: Namespace) -> int:
    (outcome,), _, labels = _execute([o.method], o, inside=False)
    if o.json:
        summaries = [s | {"labels": labels} for s in outcome.summaries]
        output.as_json(summaries[0] if o.seeds is None else summaries)
    elif not o.quiet:
        _print_run(outcome, labels, o)
    return outcome.code


def _execute(
    methods: Sequence[str], o: Namespace, inside: bool
) -> tuple[list[runs.MethodResults], Problem, dict[str, int] | None]:
    """Check everything, then run the methods; ``inside`` gives each its own folder inside --out."""
    names = settings.method_names(methods)
    settings.check_flags(names, o)
    out = runs.claim(o.out, o.force or o.go_on)
    spec = settings.spec_of(names, o)
    problem, labels = _problem(spec, o.quiet)
    folders = [out / name if out is not None and inside else out for name in names]
    built = [settings.method_of(name, o, problem) for name in names]
    requests = [runs.MethodRun(*parts) for parts in zip(names, built, folders, strict=True)]
    runs.check(requests, problem, o)
    _solve(problem, o.quiet)
    runs.clear(None if o.go_on else out)  # only now: whatever could be refused has been checked
    return runs.execute(requests, problem, o, spec), problem, labels


def _print_run(outcome: runs.MethodResults, labels: dict[str, int] | None, o: Namespace) -> None:
    where = None if outcome.request.out is None else str(outcome.request.out)
    print(run_text.report(outcome.summaries[0], labels, where))
    if o.seeds is not None:
        # one row per seed, and the median of all of them
        rows = [(f"seed {s['seed']}", [s]) for s in outcome.summaries]
        output.print_table(output.results("", [*rows, (f"median of {len(rows)}", outcome.summaries)]))


def _compare(o: Namespace) -> int:
    if o.x == "sim_seconds" and o.network is None:
        raise InputError("sim_seconds is the time over a network; give --network, such as --network mobile.")
    outcomes, problem, labels = _execute(o.methods, o, inside=True)
    axes = ("rounds", "floats") if o.x is None else (o.x,)
    files = [] if o.out is None else _keep_comparison(outcomes, Path(o.out), _title(problem), axes)
    if o.json:
        output.as_json([s | {"labels": labels} for outcome in outcomes for s in outcome.summaries])
    elif not o.quiet:
        output.print_table(output.results(_title(problem), [(u.request.name, u.summaries) for u in outcomes]))
        if o.network is not None:
            print(output.fastest([(u.request.name, u.summaries) for u in outcomes], o.network.name))
        _print_files(files)
    return runs.worst([outcome.code for outcome in outcomes])


def _title(problem: Problem) -> str:
    kappa = "" if problem.kappa is None else f", kappa = {problem.kappa:,.0f}"
    return f"{problem.info.get('data')}, {problem.n} clients split by {problem.info.get('split')}{kappa}"


def _keep_comparison(outcomes: Sequence[runs.MethodResults], out: Path, title: str, axes: Sequence[str]) -> list[Path]:
    """Write compare.json, compare.png and compare.pdf; the figure is drawn from the run folders alone."""
    written = out / "compare.json"
    atomic_write_json(written, [s for outcome in outcomes for s in outcome.summaries])
    curves = plots.curves_of([outcome.request.out for outcome in outcomes if outcome.request.out is not None])
    # f* is unknown if the gap is nan in the first record
    y = "gap" if any(t["gap"][0] == t["gap"][0] for c in curves for t in c.traces) else "grad_norm"
    return [written, *plots.save(plots.panel_figure(plots.curve_panels(curves, axes, y), title), out / "compare.png")]


def _print_files(files: Sequence[Path]) -> None:
    if files:
        print("written: " + ", ".join(printable(str(p)) for p in files))


def _problem(spec: dict[str, Any], quiet: bool) -> tuple[Problem, dict[str, int] | None]:
    # one stage for both: reading is quick, but the eigenvalues behind L_i may not be
    with stage(f"reading {spec['data']} and computing L", quiet):
        problem, labels = settings.problem_of(spec)
        problem.L_i  # noqa: B018  computes eigenvalues, which takes time
        return problem, labels


def _solve(problem: Problem, quiet: bool) -> None:
    with stage("computing f*", quiet):
        problem.solution  # noqa: B018


# -- resume ------------------------------------------------------------------------------------------------------------
def _resume(o: Namespace) -> int:
    path = Path(o.folder)
    inside = [p for p in runs.held_runs(path) if p != path]
    if inside and not (path / "checkpoint").exists():
        raise InputError(f"{path} holds {len(inside)} runs; resume one of them, such as {inside[0]}.")
    config = folder.read(path).config
    # runs of the library have no spec: their problem is only in the memory of their caller
    spec = config.get("spec") or {}
    if "data" not in spec:
        raise InputError(f"{path} was not made by the command line; resume it with proxskip.resume(folder, problem).")
    if o.data_dir is not None:
        spec = spec | {"data_dir": o.data_dir}
    problem, labels = _problem(spec, o.quiet)
    _solve(problem, o.quiet)
    with Progress(config["method"], o.quiet) as progress, runs.engine_for(config["engine"], o) as engine:
        limits = {k: vars(o)[k] for k in settings.LIMITS if vars(o)[k] is not None}
        result = resume(path, problem, callbacks=(progress,), engine=engine, progress=False, **limits)
    summary = dict(result.summary())
    if o.json:
        output.as_json(summary | {"labels": labels})
    elif not o.quiet:
        print(run_text.report(summary, labels, str(path)))
    return runs.exit_code(result, progress.has_tolerance)


# -- theory, data, plot ------------------------------------------------------------------------------------------------
def _theory(o: Namespace) -> int:
    floor = None if o.cohort is None else theory.cohort_sentence(o.n, o.cohort, o.eps)
    rows = table1(o.L, o.mu, o.eps, o.n, o.d, o.G2, o.K, o.p, o.q)
    if o.json:
        more = {} if floor is None else {"cohort_rounds": theory.cohort_rounds(o.n, o.cohort, o.eps)}
        output.as_json([asdict(r) | more for r in rows])
        return runs.DONE
    kappa = o.L / o.mu
    title = f"Table 1 of the paper: L = {o.L:g}, mu = {o.mu:g}, kappa = {kappa:g}, eps = {o.eps:g}, n = {o.n}"
    output.print_table(output.table1(rows, title))
    print("Rounds: the expression inside the O of the paper's table, with the logarithm; floats: sent by one client.")
    missing = [f for f, v in (("--d to see the floats", o.d), ("--G2 to see the rounds of LocalGD", o.G2)) if v is None]
    if missing:
        print(f"Give {' and '.join(missing)}.")
    if floor is not None:
        print(floor)
    return runs.DONE


def _data(o: Namespace) -> int:
    if o.act == "list":
        rows = datasets.available(data_dir=o.data_dir)
        if o.json:
            output.as_json([r._asdict() | {"labels": _with_text_keys(r.labels)} for r in rows])
        else:
            output.print_table(output.datasets(rows))
            print(output.sources(rows))
        return runs.DONE
    with DownloadProgress(f"fetching {o.name}", o.quiet) as download:
        path = datasets.fetch(o.name, data_dir=o.data_dir, progress=download)
    if o.json:
        output.as_json({"name": o.name, "path": str(path)})
    elif not o.quiet:
        print(f"{o.name} is at {printable(str(path))}.")
    return runs.DONE


def _with_text_keys(labels: dict[float, int] | None) -> dict[str, int] | None:
    return None if labels is None else {str(label): count for label, count in labels.items()}


def _plot(o: Namespace) -> int:
    # here, since most commands do without the experiments
    from proxskip.experiments import reproduce

    report = any(reproduce.is_reproduction(Path(p)) for p in o.folders)
    files = _plot_report(o, reproduce.redraw) if report else _plot_runs(o)
    if o.json:
        output.as_json([str(p) for p in files])
    elif not o.quiet:
        _print_files(files)
    return runs.DONE


def _plot_runs(o: Namespace) -> list[Path]:
    if o.out is None and len(o.folders) > 1:
        raise InputError("several folders are plotted into one figure; give --out FILE, a .png or .pdf.")
    out = o.out or Path(o.folders[0]) / f"{o.y}-{o.x}.png"
    panels = plots.curve_panels(plots.curves_of(o.folders), (o.x,), o.y)
    return plots.save(plots.panel_figure(panels, o.title), out)


def _plot_report(o: Namespace, redraw: Callable[..., list[Path]]) -> list[Path]:
    if len(o.folders) > 1 or o.y != "gap" or o.title:
        raise InputError(
            "a reproduction is plotted alone, with its own titles and y axes; give only its folder and --x."
        )
    return redraw(Path(o.folders[0]), o.x, None if o.out is None else Path(o.out))


# -- commands with a module of their own -------------------------------------------------------------------------------
def _command_of(module: str) -> Callable[[Namespace], int]:
    """The command of a module, which is loaded only for it: most commands do without."""

    def command(o: Namespace) -> int:
        result = importlib.import_module(f"proxskip.cli.{module}").command(o)
        code, sentence = result if isinstance(result, tuple) else (result, "")
        return _fail(sentence, code) if sentence else code

    return command


_COMMANDS: dict[str, Callable[[Namespace], int]] = {
    "run": _run,
    "compare": _compare,
    "resume": _resume,
    "plan": plan_command.run,
    "theory": _theory,
    "data": _data,
    "plot": _plot,
    "reproduce": _command_of("reproduce_command"),
    "doctor": _command_of("doctor"),
    "completion": _command_of("completion"),
    "demo": _command_of("demo_command"),
}
