"""Write docs/reproduction.md from reproductions: the claims on every data set, the figures and what each of them shows.

Run it as ``python docs/make_reproduction.py report report-mushrooms ...`` with the folders of ``proxskip reproduce``;
the figures are those of the first. ``docs/reproduction.toml`` says on what machine they were made, and why some claims
do not hold.
"""

from __future__ import annotations

import json
import re
import sys
import textwrap
import tomllib
from collections.abc import Sequence
from pathlib import Path

from PIL import Image

from proxskip.report import figures
from proxskip.report.figures import Claim, Experiment, ReproductionReport, Table
from proxskip.report.words import short_exponents

DOCS = Path(__file__).parent
MAX_PICTURE_BYTES = 300_000
MAX_TABLE_ROWS = 30
"""Tables with this many rows or more are only in results.json."""
WIDTH = 120
"""Columns of a line of prose."""


def main(folders: Sequence[Path]) -> None:
    """Copy the pictures of the first folder and write the page."""
    reports = [figures.from_json(json.loads((f / "results.json").read_text("utf-8"))) for f in folders]
    for e in reports[0].experiments:
        small = DOCS / "reproduction" / f"{e.id}.png"
        Image.open(folders[0] / "figures" / small.name).convert("RGB").quantize(128).save(small, optimize=True)
        if small.stat().st_size > MAX_PICTURE_BYTES:
            raise SystemExit(f"{small} has {small.stat().st_size} bytes; the limit is {MAX_PICTURE_BYTES}.")
    (DOCS / "reproduction.md").write_text(several(reports), encoding="utf-8")


def several(reports: Sequence[ReproductionReport]) -> str:
    """The page of the paper: its claims on every data set, then the figures of the first."""
    told = tomllib.loads((DOCS / "reproduction.toml").read_text("utf-8"))
    names = [r.about["data"] for r in reports]
    lines = ["# The paper, reproduced", ""]
    lines += [*prose("Made by `proxskip reproduce` and written by `docs/make_reproduction.py`. " + told["made"]), ""]
    lines += [*runs(reports), ""]
    lines += [line for note in told["notes"] for line in [*prose(note), ""]]
    lines += ["## Claims", "", *prose(told["claims"]), ""]
    lines += [f"| claim | expected | {' | '.join(names)} |", "|---|---|" + "---|" * len(names)]
    by_id = [{c.id: c for c in r.claims} for r in reports]
    lines += [
        f"| {c.id} | {cell(c.text)} | " + " | ".join(f"**{verdict(found[c.id])}**" for found in by_id) + " |"
        for c in reports[0].claims
    ]
    lines += ["", "## What does not hold, and why", ""]
    lines += [line for c in reports[0].claims for line in contradicted(c.id, names, by_id, told["why"])]
    lines += ["", "## Measured", "", "| claim | data | measured |", "|---|---|---|"]
    for c in reports[0].claims:
        for data, found in zip(names, by_id, strict=True):
            lines.append(f"| {c.id} | {data} | {cell(found[c.id].measured)} |")
    lines += ["", f"The figures and tables below are those of {names[0]}.", ""]
    for e in reports[0].experiments:
        lines += experiment(e)
    return short_exponents("\n".join(lines).rstrip() + "\n")


def contradicted(id: str, names: Sequence[str], by_id: Sequence[dict[str, Claim]], why: dict[str, str]) -> list[str]:
    """An item for a claim that does not hold, or is not decided, on some data set; nothing for the others."""
    open_ = [name for name, found in zip(names, by_id, strict=True) if verdict(found[id]) in ("FAIL", "does not hold")]
    short = [name for name, found in zip(names, by_id, strict=True) if found[id].verdict == "INCONCLUSIVE"]
    if not open_ and not short:
        return []
    if id not in why:
        raise SystemExit(f"docs/reproduction.toml does not say why {id} does not hold on {', '.join(open_ + short)}.")
    words = [f"does not hold on {', '.join(open_)}"] if open_ else []
    words += [f"is not decided on {', '.join(short)}"] if short else []
    return prose(f"`{id}` {' and '.join(words)}. {why[id]}", "- ")


def runs(reports: Sequence[ReproductionReport]) -> list[str]:
    """A table of the data sets and of what their runs took."""
    columns = ["data", "rows", "features", "L", "max_i L_i", "lambda", "f*", "command", "engine"]
    columns += ["processes", "seconds"]
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    for r in reports:
        a = r.about
        row = [a["data"], f"{a['rows']:,}", a["d"], *(a[k] for k in ("L_average", "L_max", "lambda"))]
        row += [f"{a['f_star']:.12g}", f"`{command(a['command'])}`", a["engine"], a["jobs"]]
        row += [f"{a['seconds']:,.0f}"]
        lines.append("| " + " | ".join(map(cell, row)) + " |")
    return lines


def command(words: str) -> str:
    """A command with the usual folder in place of one of some machine."""
    return re.sub(r" --out /\S+", " --out report", words)


def verdict(c: Claim) -> str:
    """The verdict, and for a claim that is only reported whether it holds."""
    if c.verdict != "REPORTED":
        return c.verdict
    return "measured" if c.holds is None else "holds" if c.holds else "does not hold"


def experiment(e: Experiment) -> list[str]:
    """A section."""
    lines = [f"## {e.title}", "", *prose(e.sentence), "", f"![{e.title}](reproduction/{e.id}.png)", ""]
    lines += [f"`{command(e.command)}`, {e.seconds:,.0f} seconds.", ""]
    lines += [line for note in e.notes for line in prose(note, "- ")] + [""]
    for t in e.tables:
        lines += table(t) if len(t.rows) < MAX_TABLE_ROWS else []
    return lines


def table(t: Table) -> list[str]:
    """A table with its title before and its note after it."""
    head = "| " + " | ".join(map(cell, t.columns)) + " |"
    rows = ["| " + " | ".join(map(cell, row)) + " |" for row in t.rows]
    return [
        f"**{t.title}**",
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
    if len(sys.argv) < 2:
        raise SystemExit("pass the folders of reproductions: python docs/make_reproduction.py report report-mushrooms")
    main([Path(word) for word in sys.argv[1:]])
