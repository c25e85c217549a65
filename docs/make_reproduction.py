"""Write docs/reproduction.md from reproductions: the claims on every data set, the figures and what each of them shows.

Run it as ``python docs/make_reproduction.py report report-mushrooms ...`` with the folders of ``proxskip reproduce``;
the figures are those of the first. ``docs/reproduction.toml`` says on what machine they were made, and why some claims
do not hold. From folders of ``proxskip reproduce --networks`` it writes docs/networks.md:
``python docs/make_reproduction.py report-mlp report-cnn "how it was made"``.
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

from proxskip.experiments import NETWORKS
from proxskip.report import figures
from proxskip.report.figures import Claim, Experiment, ReproductionReport, Table

DOCS = Path(__file__).parent
MAX_PICTURE_BYTES = 300_000
MAX_TABLE_ROWS = 30
"""Tables with this many rows or more are only in results.json."""
WIDTH = 120
"""Columns of a line of prose."""


def main(folders: Sequence[Path], machine: str = "") -> None:
    """Copy the pictures and write the page."""
    reports = [figures.from_json(json.loads((f / "results.json").read_text("utf-8"))) for f in folders]
    name = name_of(reports[0])
    (DOCS / name).mkdir(exist_ok=True)
    shown = [(f, e) for f, r in zip(folders, reports, strict=True) for e in r.experiments]
    for folder, e in shown if name == "networks" else shown[: len(reports[0].experiments)]:
        small = DOCS / name / f"{e.id}.png"
        Image.open(folder / "figures" / small.name).convert("RGB").quantize(128).save(small, optimize=True)
        if small.stat().st_size > MAX_PICTURE_BYTES:
            raise SystemExit(f"{small} has {small.stat().st_size} bytes; the limit is {MAX_PICTURE_BYTES}.")
    text = networks(reports, machine) if name == "networks" else several(reports)
    (DOCS / f"{name}.md").write_text(text, encoding="utf-8")


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
    return "\n".join(lines).rstrip() + "\n"


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
        row = [a["data"], f"{a['rows']:,}", a["d"], *(a[k] for k in ("L_global", "L_max", "lambda"))]
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


def name_of(report: ReproductionReport) -> str:
    """The page that this report belongs to."""
    return "networks" if {e.id for e in report.experiments} <= set(NETWORKS) else "reproduction"


def networks(reports: Sequence[ReproductionReport], machine: str = "") -> str:
    """The page on networks."""
    claims = [c for r in reports for c in r.claims]
    counted = {v: sum(c.verdict == v for c in claims) for v in ("PASS", "FAIL", "REPORTED", "INCONCLUSIVE")}
    words = ", ".join(f"{n} {v}" for v, n in counted.items() if n)
    told = tomllib.loads((DOCS / "networks.toml").read_text("utf-8"))
    made = " and ".join(f"`{command(r.about['command'])}` ({r.about['seconds']:,.0f} seconds)" for r in reports)
    lines = [
        f"# {told['title']}",
        "",
        "*A generated page: `docs/make_reproduction.py` writes it from runs and from `docs/networks.toml`.*",
        "",
        *(line for paragraph in told["opening"] for line in [*prose(paragraph), ""]),
        *prose(
            f"Made by {made} on the {reports[0].about['engine']} engine and written by `docs/make_reproduction.py`. "
            "The folder of a run contains an interactive page with the same figures, and all numbers in `results.json`."
        ),
        "",
        *([*prose(machine), ""] if machine else []),
        "## Claims",
        "",
        f"{words}. PASS and FAIL are verdicts; REPORTED is a measurement where nothing is promised.",
        "",
        "| claim | verdict | expected | measured |",
        "|---|---|---|---|",
        *(claim(c) for c in claims),
        "",
    ]
    for r in reports:
        for e in r.experiments:
            lines += experiment(e, "networks")
    return "\n".join(lines).rstrip() + "\n"


def claim(c: Claim) -> str:
    """A row of the table."""
    note = f" ({c.note})" if c.note else ""
    return f"| {c.id} | **{c.verdict}** | {cell(c.text)} | {cell(c.measured + note)} |"


def experiment(e: Experiment, page: str = "reproduction") -> list[str]:
    """A section."""
    lines = [f"## {e.title}", "", *prose(e.sentence), "", f"![{e.title}]({page}/{e.id}.png)", ""]
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
    given = [Path(word) for word in sys.argv[1:]]
    main([f for f in given if f.is_dir()], *(word for word in sys.argv[1:] if not Path(word).is_dir()))
