"""The output of the command line: tables, JSON, and the sentence of an error."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from proxskip.experiments.paper_table import Table1Row
from proxskip.results import fields
from proxskip.results.plain import checked_plain
from proxskip.results.plain_table import Table
from proxskip.support.display import count, duration, rounded
from proxskip.types import printable

LONGEST_NUMBER = 40
"""Cells with more characters are sentences, which may be wrapped."""


def as_json(value: Any) -> None:
    """Print one JSON value; nan and infinities become null."""
    plain = checked_plain(value, "the output", finite=True)
    print(json.dumps(plain, indent=2, allow_nan=False, ensure_ascii=False))


def fail(sentence: str, code: int) -> int:
    """Print why a command failed; returns its exit code."""
    print(f"proxskip: {printable(' '.join(sentence.split()))}", file=sys.stderr)
    return code


# -- tables ------------------------------------------------------------------------------------------------------------
def print_table(content: Table, styles: Mapping[str, str] | None = None) -> None:
    """Print a table, with numbers to the right; ``styles`` has the colors of certain cells.

    A table without sentences is never cut: where it is too wide for the terminal, its rows become columns if that fits.
    """
    from rich import box
    from rich.console import Console
    from rich.table import Table as Drawn
    from rich.text import Text

    head, rows = content.head, content.lines
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else 200
    if not any(len(cell) > LONGEST_NUMBER for row in rows for cell in row):
        turned = [head[0], *(row[0] for row in rows)], [*zip(head[1:], *(row[1:] for row in rows), strict=True)]
        head, rows = turned if _width(*turned) <= width < _width(head, rows) else (head, rows)
        width = max(width, _width(head, rows))
    table = Drawn(title=content.title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for k, name in enumerate(head):
        numbers = k > 0 and all(row[k][:1] in "-0123456789" for row in rows)
        table.add_column(name, justify="right" if numbers else "left", no_wrap=k == 0)
    for row in rows:
        table.add_row(*(Text(cell, style=(styles or {}).get(cell, "")) for cell in row))
    Console(file=sys.stdout, width=width, height=25, highlight=False).print(table)


def _width(head: Sequence[str], rows: Sequence[Sequence[str]]) -> int:
    """The characters of a line, with three between two columns."""
    return sum(max(map(len, column)) + 3 for column in zip(head, *rows, strict=True))


def fastest(groups: Sequence[fields.Group], network: str) -> str:
    """Which method reached the tolerance first over the network."""
    times = [(fields.median(runs, "sim_seconds"), name) for name, runs in groups if all(s["success"] for s in runs)]
    ranked = sorted((t, name) for t, name in times if t is not None)
    if not ranked:
        return f"No method reached a tolerance over the network {network}; give --tol, or more rounds."
    first = f"Fastest over the network {network}: {ranked[0][1]}, {duration(ranked[0][0])} to the tolerance"
    return first + (
        f"; {ranked[1][1]} takes {rounded(ranked[1][0] / ranked[0][0])} times as long."
        if ranked[1:] and ranked[0][0]
        else "."
    )


def print_table1(rows: Sequence[Table1Row], title: str) -> None:
    """Table 1 with numbers; floats are those that one client sends."""
    columns = ("local steps", "floats per round", "step size", "rounds", "formula", "total floats", "better than GD?")
    cells = [
        (
            r.method,
            f"{r.local_steps:.4g}",
            r.floats_formula.split(",")[0] if r.floats_per_round is None else count(r.floats_per_round),
            f"{r.step_formula} = {r.step:.3g}",
            count(r.rounds),
            r.rounds_formula + ("" if r.linear else " (not linear)"),
            count(r.total_floats),
            {None: "-", True: "yes", False: "no"}[r.better_than_gd],
        )
        for r in rows
    ]
    print_table(Table(title, ("method", *columns), cells))


def print_files(files: Sequence[Path]) -> None:
    """Say which files were written."""
    if files:
        print("written: " + ", ".join(printable(str(path)) for path in files))


def print_datasets(rows: Sequence[Any]) -> None:
    """All data sets with a name, one row each, and where their licenses are."""
    cells = [
        (r.name, f"{r.rows:,}", f"{r.features:,}", "-" if r.size is None else f"{r.size / 1e6:.1f} MB", r.where)
        for r in rows
    ]
    print_table(Table("", ("name", "rows", "features", "size", "where"), cells))
    print("Licenses are on the pages of the sources:")
    for page in dict.fromkeys(r.page for r in rows):
        print(f"  {page}")
