"""Write docs/reproduction.md from a reproduction: the claims, the figures and what each of them shows.

Run it as ``python docs/make_reproduction.py report "how it was made"``, where ``report`` is the folder of
``proxskip reproduce``. From a folder of ``proxskip reproduce --networks`` it writes docs/networks.md.
"""

from __future__ import annotations

import json
import re
import sys
import textwrap
from pathlib import Path
from typing import Any

from PIL import Image

from proxskip.experiments import NETWORKS
from proxskip.report import figures
from proxskip.report.figures import Claim, Experiment, ReproductionReport, Table

DOCS = Path(__file__).parent
MAX_PICTURE_BYTES = 300_000
MAX_TABLE_ROWS = 30
"""Tables with this many rows or more are only in results.json."""
WIDTH = 120
"""Columns of a line of prose."""


def main(folder: Path, machine: str = "") -> None:
    """Copy the pictures and write the page."""
    report = figures.from_json(json.loads((folder / "results.json").read_text("utf-8")))
    name = name_of(report)
    (DOCS / name).mkdir(exist_ok=True)
    for e in report.experiments:
        small = DOCS / name / f"{e.id}.png"
        Image.open(folder / "figures" / small.name).convert("RGB").quantize(128).save(small, optimize=True)
        if small.stat().st_size > MAX_PICTURE_BYTES:
            raise SystemExit(f"{small} has {small.stat().st_size} bytes; the limit is {MAX_PICTURE_BYTES}.")
    (DOCS / f"{name}.md").write_text(render(report, machine), encoding="utf-8")


def name_of(report: ReproductionReport) -> str:
    """The page that this report belongs to."""
    return "networks" if {e.id for e in report.experiments} <= set(NETWORKS) else "reproduction"


def render(report: ReproductionReport, machine: str = "") -> str:
    """The page."""
    about = report.about
    counted = {v: sum(c.verdict == v for c in report.claims) for v in ("PASS", "FAIL", "REPORTED", "NOT RUN")}
    words = ", ".join(f"{n} {v}" for v, n in counted.items() if n)
    name = name_of(report)
    lines = [
        "# The paper, reproduced" if name == "reproduction" else f"# {report.title}",
        "",
        *prose(
            f"Made by `{about['command']}` in {about['seconds']:,.0f} seconds on the {about['engine']} engine and "
            "written by `docs/make_reproduction.py`. The folder of the run contains an interactive page with the same "
            "figures, and all numbers in `results.json`."
        ),
        "",
        *([*prose(machine), ""] if machine else []),
        *([*prose(_data(about)), ""] if name == "reproduction" else []),
        "## Claims",
        "",
        f"{words}. PASS and FAIL are verdicts; REPORTED is a measurement where nothing is promised.",
        "",
        "| claim | verdict | expected | measured |",
        "|---|---|---|---|",
        *(claim(c) for c in report.claims),
        "",
    ]
    for e in report.experiments:
        lines += experiment(e, name)
    return "\n".join(lines).rstrip() + "\n"


def _data(about: dict[str, Any]) -> str:
    """The data and its constants in one sentence."""
    return (
        f"Data: {about['data']}, {about['rows']:,} rows, {about['d']} features, {about['clients']} clients split "
        f"by {about['split']}, weights: {about['weights']}; L = {about['L_global']:.6g}, "
        f"max_i L_i = {about['L_max']:.6g}, lambda = {about['lambda']:.6g}, f* = {about['f_star']:.15g}."
    )


def claim(c: Claim) -> str:
    """A row of the table."""
    note = f" ({c.note})" if c.note else ""
    return f"| {c.id} | **{c.verdict}** | {cell(c.text)} | {cell(c.measured + note)} |"


def experiment(e: Experiment, page: str = "reproduction") -> list[str]:
    """A section."""
    lines = [f"## {e.title}", "", *prose(e.sentence), "", f"![{e.title}]({page}/{e.id}.png)", ""]
    lines += [f"`{e.command}`, {e.seconds:,.0f} seconds.", ""]
    lines += [line for note in e.notes for line in prose(note, "- ")] + [""]
    for t in e.tables:
        lines += table(t) if len(t.rows) < MAX_TABLE_ROWS else []
    return lines


def table(t: Table) -> list[str]:
    """A table with its title before and its note after it."""
    head = "| " + " | ".join(map(cell, t.columns)) + " |"
    rows = ["| " + " | ".join(map(cell, row)) + " |" for row in t.rows]
    return [
        f"{t.title}:",
        "",
        head,
        "|" + "---|" * len(t.columns),
        *rows,
        "",
        *([*prose(t.note), ""] if t.note else []),
    ]


def prose(text: str, bullet: str = "") -> list[str]:
    """The lines of a paragraph or of an item of a list."""
    # A line that begins with a sign or a number and a period would begin a list, so they stay with the word before.
    glued = re.sub(r" (?=(?:[-+*#>|]|\d+[.)]) )", "\0", text)
    lines = textwrap.wrap(
        glued,
        WIDTH,
        initial_indent=bullet,
        subsequent_indent=" " * len(bullet),
        break_long_words=False,
        break_on_hyphens=False,
    )
    return [line.replace("\0", " ") for line in lines]


def cell(value: object) -> str:
    """Text that does not break a table."""
    if value is None:
        return "-"
    text = f"{value:.4g}" if isinstance(value, float) else str(value)
    return text.replace("|", "\\|").replace("\n", " ")


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        raise SystemExit('pass the folder of a reproduction: python docs/make_reproduction.py report "how it was made"')
    main(Path(sys.argv[1]), *sys.argv[2:])
