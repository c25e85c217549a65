"""Write docs/reproduction.md from a reproduction: its claims, what each figure shows, and the figures.

Run it as ``python docs/make_reproduction.py report "how it was made"``, where ``report`` is the folder of
``proxskip reproduce``.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from PIL import Image

from proxskip.report import figures
from proxskip.report.figures import Claim, Experiment, Report, Table

PAGE = Path(__file__).with_name("reproduction.md")
PICTURES = Path(__file__).with_name("reproduction")
LARGEST = 300_000
"""Bytes of a picture."""
LONG = 30
"""Rows from which a table stays in results.json."""


def main(folder: Path, machine: str = "") -> None:
    """Copy the pictures and write the page."""
    report = figures.from_json(json.loads((folder / "results.json").read_text("utf-8")))
    PICTURES.mkdir(exist_ok=True)
    for e in report.experiments:
        small = PICTURES / f"{e.id}.png"
        Image.open(folder / "figures" / small.name).convert("RGB").quantize(128).save(small, optimize=True)
        if small.stat().st_size > LARGEST:
            raise SystemExit(f"{small} has {small.stat().st_size} bytes; at most {LARGEST} are wanted here.")
    PAGE.write_text(render(report, machine), encoding="utf-8")


def render(report: Report, machine: str = "") -> str:
    """The page."""
    about = report.about
    counted = {v: sum(c.verdict == v for c in report.claims) for v in ("PASS", "FAIL", "REPORTED", "NOT RUN")}
    words = ", ".join(f"{n} {v}" for v, n in counted.items() if n)
    lines = [
        "# The paper, reproduced",
        "",
        f"Made by `{about['command']}` in {about['seconds']:,.0f} seconds on the {about['engine']} engine",
        "and written down by `docs/make_reproduction.py`. The folder of the run holds a page with the same figures to",
        "explore, and all of its numbers in `results.json`.",
        "",
        *([machine, ""] if machine else []),
        f"Data: {about['data']}, {about['rows']:,} rows, {about['d']} features, {about['clients']} clients",
        f"split by {about['split']}, weights: {about['weights']}; L = {about['L_global']:.6g},",
        f"max_i L_i = {about['L_max']:.6g}, lambda = {about['lambda']:.6g}, f* = {about['f_star']:.15g}.",
        "",
        "## Claims",
        "",
        f"{words}. PASS and FAIL are verdicts; REPORTED is a measurement where nothing is promised.",
        "",
        "| claim | verdict | what must be seen | what was measured |",
        "|---|---|---|---|",
        *(claim(c) for c in report.claims),
        "",
    ]
    for e in report.experiments:
        lines += experiment(e)
    return "\n".join(lines).rstrip() + "\n"


def claim(c: Claim) -> str:
    """A row of the table."""
    note = f" ({c.note})" if c.note else ""
    return f"| {c.id} | **{c.verdict}** | {cell(c.text)} | {cell(c.measured + note)} |"


def experiment(e: Experiment) -> list[str]:
    """A section."""
    lines = [f"## {e.title}", "", e.sentence, "", f"![{e.title}](reproduction/{e.id}.png)", ""]
    lines += [f"`{e.command}`, {e.seconds:,.0f} seconds.", ""]
    lines += [f"- {note}" for note in e.notes] + [""]
    for t in e.tables:
        lines += table(t) if len(t.rows) < LONG else []
    return lines


def table(t: Table) -> list[str]:
    """A table with its title before and its note after it."""
    head = "| " + " | ".join(map(cell, t.columns)) + " |"
    rows = ["| " + " | ".join(map(cell, row)) + " |" for row in t.rows]
    return [f"{t.title}:", "", head, "|" + "---|" * len(t.columns), *rows, "", *([t.note, ""] if t.note else [])]


def cell(value: object) -> str:
    """Text that does not break a table."""
    if value is None:
        return "-"
    text = f"{value:.4g}" if isinstance(value, float) else str(value)
    return text.replace("|", "\\|").replace("\n", " ")


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        raise SystemExit('give the folder of a reproduction: python docs/make_reproduction.py report "how it was made"')
    main(Path(sys.argv[1]), *sys.argv[2:])
