"""The output of the command line: tables and JSON."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from proxskip.display import count, duration, gap, number
from proxskip.results.text import STATUS_WORDS
from proxskip.theory.table1 import Table1Row

if TYPE_CHECKING:
    from rich.table import Table


def as_json(value: Any) -> None:
    """Print one JSON value; nan and infinities become null."""
    print(json.dumps(_plain(value), indent=2, allow_nan=False, ensure_ascii=False))


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {k: _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    # numpy scalars are no JSON; after item() they may still be nan
    if isinstance(value, np.generic):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value


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


def results(title: str, groups: Sequence[tuple[str, Sequence[Mapping[str, Any]]]]) -> Table:
    """Costs and accuracy, one row per method; with several seeds their medians, and the range of f - f*."""
    columns = ["method", "rounds", "exchanges", "floats", "passes", "f - f*", "|grad f|", "seconds", "status"]
    seeds = max(len(runs) for _, runs in groups)
    timed = any("sim_seconds" in s for _, runs in groups for s in runs)
    if timed:
        columns.insert(-1, "network")
    if seeds > 1:
        columns.insert(6, f"range over {seeds} seeds")
    table = _table(title, *columns)
    for name, runs in groups:
        middle = {k: _median(runs, k) for k in ("rounds", "exchanges", "passes", "gap", "grad_norm", "seconds")}
        # the median of the sums, not the sum of two medians
        floats = _median([{"floats": s["floats_up"] + s["floats_down"]} for s in runs], "floats")
        cells = [name, count(middle["rounds"]), count(middle["exchanges"]), count(floats), count(middle["passes"])]
        cells += [gap(middle["gap"]), *([_range(runs, "gap")] if seeds > 1 else []), gap(middle["grad_norm"])]
        words = sorted({STATUS_WORDS[s["status"]] for s in runs})
        cells += [number(middle["seconds"]), *([duration(_median(runs, "sim_seconds"))] if timed else [])]
        table.add_row(*cells, ", ".join(words))
    return table


def fastest(groups: Sequence[tuple[str, Sequence[Mapping[str, Any]]]], network: str) -> str:
    """Which of the methods reached the tolerance first over the network, in a sentence."""
    good = [(_median(runs, "sim_seconds"), name) for name, runs in groups if all(s["success"] for s in runs)]
    found = sorted((t, name) for t, name in good if t is not None)
    if not found:
        return f"None of them reached a tolerance over the network {network}; give --tol, or more rounds."
    first = f"Fastest over the network {network}: {found[0][1]}, {duration(found[0][0])} to the tolerance"
    return first + (f"; {found[1][1]} takes {found[1][0] / found[0][0]:.3g} times as long." if found[1:] else ".")


def _median(runs: Sequence[Mapping[str, Any]], key: str) -> float | None:
    values = [s[key] for s in runs if s[key] is not None]
    return float(np.median(values)) if values else None


def _range(runs: Sequence[Mapping[str, Any]], key: str) -> str:
    values = [s[key] for s in runs if s[key] is not None]
    return f"{gap(min(values))} to {gap(max(values))}" if len(values) > 1 else ""


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
        "check:   checksum; rows: their number, and the checksum of the copy used first;\n"
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
