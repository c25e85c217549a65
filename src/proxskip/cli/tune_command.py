"""`proxskip tune`: the best step size and number of local steps of a method, with a heat map."""

from __future__ import annotations

import math
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from proxskip.cli import output
from proxskip.experiments import settings
from proxskip.experiments.flags import TUNED
from proxskip.methods.registry import METHODS
from proxskip.report import plots
from proxskip.results.plain_table import Table
from proxskip.running.tune import POWERS, Tuned, tune
from proxskip.support import display


def command(o: Namespace) -> int:
    """Search, and print the grid; the heat map goes to the folder, if there is one."""
    (name,) = settings.method_names([o.method])
    settings.check_problem_flags([name], o)
    out = None if o.out is None else Path(o.out)
    if out is not None:
        settings.check_folder(out)
    problem, _ = settings.problem_of(settings.spec_of([name], o))
    kind: Any = METHODS[name]
    kept = {k: vars(o)[k] for k in settings.flags_taken(name) if vars(o).get(k) is not None and k not in TUNED}
    found = tune(
        kind(**kept) if kept else kind, problem, budget=o.budget, powers=_powers(o.powers), steps=o.steps,
        seeds=o.seeds or 1, target=o.target, cohort=o.cohort, engine=o.engine, threads=o.threads, jobs=o.jobs, out=out,
        progress=not o.quiet,
    )  # fmt: skip
    files = [] if out is None else plots.save(_figure(found), out / "tune.png")
    if o.json:
        output.as_json(_plain(found))
    elif not o.quiet:
        _print(found)
        output.print_files(files)
    return 0


def _powers(ends: list[int] | None) -> Sequence[int]:
    """The powers from one to another, or those of ``tune``."""
    if ends is None:
        return POWERS
    return range(ends[0], ends[1] + 1)


def _figure(found: Tuned) -> Any:
    from matplotlib.figure import Figure

    times, steps, _ = found.grid()
    figure = Figure(figsize=(1.6 + 1.1 * len(steps), 1.4 + 0.5 * len(times)), layout="constrained")
    found.plot(figure.add_subplot())
    return figure


def _print(found: Tuned) -> None:
    """The grid in colors, from the smallest f - f* to the largest, and the best candidates."""
    times, steps, rows = found.grid()
    scores = sorted({c.first_score for c in found.candidates if c.first_score < math.inf})
    shades = ("bold green", "green", "yellow", "red")
    styles = {display.gap(v): shades[len(shades) * k // len(scores)] for k, v in enumerate(scores)}
    cells = []
    for t, row in zip(times, rows, strict=True):
        cells.append([f"{t:g}", *("-" if c is None else _cell(c.first_score) for c in row)])
    rounds = min(found.best.gaps)
    title = f"f - f* after {rounds:,} rounds, by gamma L (rows) and local steps (columns)"
    output.print_table(Table(title, ["gamma L", *map(str, steps)], cells), styles)
    print(found)


def _cell(score: float) -> str:
    return "diverged" if score == math.inf else display.gap(score)


def _plain(found: Tuned) -> dict[str, Any]:
    candidates = [
        {"gamma_L": c.times, "steps": c.steps, "gaps": {str(rounds): gap for rounds, gap in c.gaps.items()}}
        for c in found.candidates
    ]
    return {
        "method": found.method.name,
        "parameters": found.method.parameters(),
        "rounds": found.rounds,
        "warnings": list(found.warnings),
        "candidates": candidates,
    }
