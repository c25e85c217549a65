"""The commands: run, compare, resume, plan, reproduce, theory, data, plot."""

from __future__ import annotations

import os
import sys
import traceback
import warnings
from argparse import Namespace
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, TextIO

from proxskip import registry
from proxskip.cli import output, plan_command
from proxskip.cli.flags import parser, plugins
from proxskip.cli.progress import DownloadProgress, Progress, stage
from proxskip.cli.runs import (
    BAD_INPUT,
    DONE,
    INTERRUPTED,
    UNEXPECTED,
    MethodResults,
    MethodRun,
    check,
    claim,
    clear,
    engine_for,
    execute,
    exit_code,
    held_runs,
    worst,
)
from proxskip.data import datasets
from proxskip.experiments import settings
from proxskip.problems.federated import Problem
from proxskip.report import plots
from proxskip.results import folder, text
from proxskip.results.atomic import atomic_write_json
from proxskip.run import resume
from proxskip.theory.table1 import table1
from proxskip.types import EngineError, InputError, UnsafeStepWarning, printable
from proxskip.version import __version__


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code (``proxskip --help`` lists them)."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("always", UnsafeStepWarning)
            warnings.showwarning = _show_warning
            o = _parse(sys.argv[1:] if argv is None else argv)
            return _COMMANDS[o.command](o)
    except SystemExit as end:  # --help and --version
        return end.code if isinstance(end.code, int) else DONE
    except InputError as error:
        return _fail(str(error), BAD_INPUT)
    except EngineError as error:
        return _fail(str(error), UNEXPECTED)
    except KeyboardInterrupt:
        return _fail("interrupted.", INTERRUPTED)
    except BrokenPipeError:  # the reader of our output has closed it, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return UNEXPECTED
    except OSError as error:  # a full disk, a folder that was removed
        return _fail(f"{error.filename or 'a file'}: {error.strerror or error}.", UNEXPECTED)
    except Exception as error:
        traceback.print_exc()
        return _fail(f"unexpected {type(error).__name__}: {error}; this is a bug, please report it.", UNEXPECTED)


def _parse(argv: Sequence[str]) -> Namespace:
    for path in plugins(argv):
        registry.load_plugin(path)
    top, commands = parser(__version__)
    o, extra = top.parse_known_args(argv)
    if extra:
        near = commands[o.command].nearest(extra[0])
        hint = f"did you mean {near}?" if near else f"see `proxskip {o.command} --help`."
        raise InputError(f"{extra[0]} is not an argument of this command; {hint}")
    return o


def _fail(sentence: str, code: int) -> int:
    print(f"proxskip: {printable(' '.join(sentence.split()))}", file=sys.stderr)
    return code


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    print(f"warning: {printable(' '.join(str(message).split()))}", file=sys.stderr)


# -- run and compare ---------------------------------------------------------------------------------------------------
def _run(o: Namespace) -> int:
    (name,) = settings.method_names([o.method])
    settings.check_flags([name], o)
    out = claim(o.out, o.force or o.go_on)
    spec = settings.spec_of([name], o)
    problem, labels = _problem(spec, o.quiet)
    request = MethodRun(name, settings.method_of(name, o, problem), out)
    check(request, problem, o)
    _solve(problem, o.quiet)
    clear(None if o.go_on else out)
    (outcome,) = execute([request], problem, o, spec)
    if o.json:
        found = [s | {"labels": labels} for s in outcome.summaries]
        output.as_json(found[0] if o.seeds is None else found)
    elif not o.quiet:
        _print_run(outcome, labels, o)
    return outcome.code


def _print_run(outcome: MethodResults, labels: dict[str, int] | None, o: Namespace) -> None:
    where = None if outcome.request.out is None else str(outcome.request.out)
    print(text.report(outcome.summaries[0], labels, where))
    if o.seeds is not None:
        rows = [(f"seed {s['seed']}", [s]) for s in outcome.summaries]
        output.print_table(output.results("", [*rows, (f"median of {len(rows)}", outcome.summaries)]))


def _compare(o: Namespace) -> int:
    names = settings.method_names(o.methods)
    settings.check_flags(names, o)
    out = claim(o.out, o.force or o.go_on)
    spec = settings.spec_of(names, o)
    problem, labels = _problem(spec, o.quiet)
    requests = [MethodRun(k, settings.method_of(k, o, problem), None if out is None else out / k) for k in names]
    for request in requests:
        check(request, problem, o)
    _solve(problem, o.quiet)
    clear(None if o.go_on else out)
    outcomes = execute(requests, problem, o, spec)
    files = [] if out is None else _keep_comparison(outcomes, out, "compare", ("rounds", "floats"), _title(problem))
    if o.json:
        output.as_json([s | {"labels": labels} for outcome in outcomes for s in outcome.summaries])
    elif not o.quiet:
        output.print_table(output.results(_title(problem), [(u.request.name, u.summaries) for u in outcomes]))
        _print_files(files)
    return worst([outcome.code for outcome in outcomes])


def _title(problem: Problem) -> str:
    kappa = "" if problem.kappa is None else f", kappa = {problem.kappa:,.0f}"
    return f"{problem.info.get('data')}, {problem.n} clients split by {problem.info.get('split')}{kappa}"


def _keep_comparison(
    outcomes: Sequence[MethodResults], out: Path, name: str, xs: Sequence[str], title: str, note: str = ""
) -> list[Path]:
    """Write NAME.json, NAME.png and NAME.pdf; the figure is drawn from the run folders alone."""
    written = out / f"{name}.json"
    atomic_write_json(written, [s for outcome in outcomes for s in outcome.summaries])
    curves = plots.load_runs([outcome.request.out for outcome in outcomes if outcome.request.out is not None])
    return [written, *_draw(curves, xs, title, note, out / f"{name}.png")]


def _draw(curves: list[plots.Curve], xs: Sequence[str], title: str, note: str, path: Path) -> list[Path]:
    y = "gap" if any(t["gap"][0] == t["gap"][0] for c in curves for t in c.traces) else "grad_norm"
    return plots.save(plots.panels(curves, xs, y, title, note), path)


def _print_files(files: Sequence[Path]) -> None:
    if files:
        print("written: " + ", ".join(printable(str(p)) for p in files))


def _problem(spec: dict[str, Any], quiet: bool) -> tuple[Problem, dict[str, int] | None]:
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
    inside = [p for p in held_runs(path) if p != path]
    if inside and not (path / "checkpoint").exists():
        raise InputError(f"{path} holds {len(inside)} runs; resume one of them, such as {inside[0]}.")
    config = folder.read(path).config
    spec = config.get("spec") or {}
    if "data" not in spec:
        raise InputError(f"{path} was not made by the command line; resume it with proxskip.resume(folder, problem).")
    if o.data_dir is not None:
        spec = spec | {"data_dir": o.data_dir}
    given = {k: vars(o)[k] for k in ("rounds", "iterations", "seconds", "tol", "target")}
    problem, labels = _problem(spec, o.quiet)
    _solve(problem, o.quiet)
    with Progress(config["method"], o.quiet) as progress, engine_for(config["engine"], o) as engine:
        limits = {k: v for k, v in given.items() if v is not None}
        result = resume(path, problem, callbacks=(progress,), engine=engine, **limits)
    summary = dict(result.summary())
    if o.json:
        output.as_json(summary | {"labels": labels})
    elif not o.quiet:
        print(text.report(summary, labels, str(path)))
    return exit_code(result, progress.has_tolerance)


# -- theory, data, plot ------------------------------------------------------------------------------------------------
def _theory(o: Namespace) -> int:
    rows = table1(o.L, o.mu, o.eps, o.n, o.d, o.G2, o.K, o.p, o.q)
    if o.json:
        output.as_json([asdict(r) for r in rows])
        return DONE
    kappa = o.L / o.mu
    title = f"Table 1 of the paper: L = {o.L:g}, mu = {o.mu:g}, kappa = {kappa:g}, eps = {o.eps:g}, n = {o.n}"
    output.print_table(output.table1(rows, title))
    print("Rounds: the expression inside the O of the paper's table, with the logarithm; floats: sent by one client.")
    missing = [f for f, v in (("--d to see the floats", o.d), ("--G2 to see the rounds of LocalGD", o.G2)) if v is None]
    if missing:
        print(f"Give {' and '.join(missing)}.")
    return DONE


def _data(o: Namespace) -> int:
    if o.act == "list":
        rows = datasets.available(data_dir=o.data_dir)
        if o.json:
            output.as_json([r._asdict() for r in rows])
        else:
            output.print_table(output.datasets(rows))
        return DONE
    download = DownloadProgress(o.name, o.quiet)
    try:
        path = datasets.fetch(o.name, data_dir=o.data_dir, progress=download)
    finally:
        download.close()
    if o.json:
        output.as_json({"name": o.name, "path": str(path)})
    elif not o.quiet:
        print(f"{o.name} is at {printable(str(path))}.")
    return DONE


def _plot(o: Namespace) -> int:
    from proxskip.experiments import reproduce

    made = any(reproduce.is_reproduction(Path(p)) for p in o.folders)
    files = _plot_report(o, reproduce.redraw) if made else _plot_runs(o)
    if o.json:
        output.as_json([str(p) for p in files])
    elif not o.quiet:
        _print_files(files)
    return DONE


def _plot_runs(o: Namespace) -> list[Path]:
    if o.out is None:
        raise InputError("give --out FILE, a .png or .pdf.")
    return plots.save(plots.curves(plots.load_runs(o.folders), o.x, o.y, o.title), o.out)


def _plot_report(o: Namespace, redraw: Callable[..., list[Path]]) -> list[Path]:
    if len(o.folders) > 1 or o.y != "gap" or o.title:
        raise InputError(
            "a reproduction is plotted alone, with its own titles and y axes; give only its folder and --x."
        )
    return redraw(Path(o.folders[0]), o.x, None if o.out is None else Path(o.out))


# -- reproduce ---------------------------------------------------------------------------------------------------------
def _reproduce(o: Namespace) -> int:
    from proxskip.cli import reproduce_command

    code, sentence = reproduce_command.command(o)
    return _fail(sentence, code) if sentence else code


_COMMANDS: dict[str, Callable[[Namespace], int]] = {
    "run": _run,
    "compare": _compare,
    "resume": _resume,
    "plan": plan_command.run,
    "theory": _theory,
    "data": _data,
    "plot": _plot,
    "reproduce": _reproduce,
}
