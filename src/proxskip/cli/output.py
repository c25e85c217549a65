"""The output of the command line: tables and JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from proxskip.display import count, duration
from proxskip.results import fields
from proxskip.results.plain import checked_plain
from proxskip.results.run_text import STATUS_WORDS
from proxskip.theory.table1 import Table1Row

if TYPE_CHECKING:
    from rich.table import Table


def as_json(value: Any) -> None:
    """Print one JSON value; nan and infinities become null."""
    plain = checked_plain(value, "the output", finite=True)
    print(json.dumps(plain, indent=2, allow_nan=False, ensure_ascii=False))


# -- tables ------------------------------------------------------------------------------------------------------------
def print_table(table: Table) -> None:
    """Print a table, as wide as it needs to be if stdout is not a terminal."""
    from rich.console import Console

    # rich would cut a table at 80 columns if the output goes to a file or a pipe
    terminal = sys.stdout.isatty()
    Console(file=sys.stdout, width=None if terminal else 200, highlight=False).print(table)


def _table(title: str, *columns: str) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for k, name in enumerate(columns):
        # text to the left, numbers to the right
        words = k == 0 or name in ("step size", "formula", "where", "check", "status", "license", "works", "here")
        table.add_column(name, justify="left" if words else "right", no_wrap=k == 0)
    return table


def results(title: str, groups: Sequence[fields.Group]) -> Table:
    """Costs and accuracy, one row per method; with several seeds their medians, and the range of f - f*."""
    head, rows = fields.table(groups, STATUS_WORDS.__getitem__)
    table = _table(title, *head)
    for row in rows:
        table.add_row(*row)
    return table


def fastest(groups: Sequence[fields.Group], network: str) -> str:
    """Which of the methods reached the tolerance first over the network, in a sentence."""
    times = [(fields.median(runs, "sim_seconds"), name) for name, runs in groups if all(s["success"] for s in runs)]
    ranked = sorted((t, name) for t, name in times if t is not None)
    if not ranked:
        return f"None of them reached a tolerance over the network {network}; give --tol, or more rounds."
    first = f"Fastest over the network {network}: {ranked[0][1]}, {duration(ranked[0][0])} to the tolerance"
    return first + (f"; {ranked[1][1]} takes {ranked[1][0] / ranked[0][0]:.3g} times as long." if ranked[1:] else ".")


def table1(rows: Sequence[Table1Row], title: str) -> Table:
    """Table 1 with numbers; floats are those that one client sends."""
    columns = ("local steps", "floats per round", "step size", "rounds", "formula", "total floats", "better than GD?")
    table = _table(title, "method", *columns)
    for r in rows:
        better = {None: "-", True: "yes", False: "no"}[r.better_than_gd]
        floats = r.floats_formula.split(",")[0] if r.floats_per_round is None else count(r.floats_per_round)
        step = f"{r.step_formula} = {r.step:.3g}"
        steps = f"{r.local_steps:.4g}"
        linear = "" if r.linear else " (not linear)"
        table.add_row(
            r.method, steps, floats, step, count(r.rounds), r.rounds_formula + linear, count(r.total_floats), better
        )
    return table


def datasets(rows: Sequence[Any]) -> Table:
    """All data sets with a name, one row each."""
    table = _table("", "name", "rows", "features", "size", "where", "check", "license")
    for r in rows:
        source = "see (1)" if r.where == "embedded" else "see (2)"
        size = "-" if r.size is None else _bytes(r.size)
        table.add_row(r.name, f"{r.rows:,}", f"{r.features:,}", size, r.where, _checked(r), source)
    return table


def sources(rows: Sequence[Any]) -> str:
    """Where the pages are that the column of licenses names."""
    uci = "\n         ".join(r.page for r in rows if r.where == "embedded")
    libsvm = next(r.page for r in rows if r.where != "embedded")
    return (
        f"(1) UCI: {uci}\n(2) LIBSVM: {libsvm}\n"
        "size:    of the unpacked file, or of the numbers of an embedded set; - if unknown\n"
        "check:   checksum; rows: the number of rows and of labels;\n"
        "         package: comes with scikit-learn\n"
        "license: what the page of the source says"
    )


def _bytes(size: int) -> str:
    return f"{size / 1e6:.1f} MB" if size >= 1e6 else f"{size / 1e3:.0f} kB"


def doctor(findings: Sequence[Any]) -> Table:
    """What was found on this machine, one row each."""
    table = _table("", "what", "works", "here")
    for f in findings:
        table.add_row(f.what, "yes" if f.works else "no", f.here)
    return table


def _checked(row: Any) -> str:
    if row.where == "embedded":
        return "package"
    return "checksum" if row.verified else "rows"
