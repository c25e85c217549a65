"""What a report shows, as plain data: series, panels, tables, claims, experiments. Nothing here runs or draws.

An experiment fills these in; ``plots`` makes PNG and PDF of a panel and ``report`` a page, both from the same numbers,
and ``results.json`` holds them all, so that a figure can be drawn again without running anything.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Verdict = Literal["PASS", "FAIL", "REPORTED", "NOT RUN"]
"""REPORTED: measured on data or with a setting for which nothing is promised."""


@dataclass(frozen=True, slots=True)
class Series:
    """One curve: y over several possible x, which have the same length as y."""

    label: str
    x: dict[str, list[float]]
    """By the name of the axis (``plots.X_AXES``, or the panel's own): one list each."""
    y: list[float]
    method: str = ""
    """Decides colour and dashes; empty: by the position in the panel."""
    low: list[float] | None = None
    high: list[float] | None = None
    """A band, over seeds."""
    kind: Literal["line", "points", "bound"] = "line"
    """points: measured values with markers and a thin line; bound: what the theory says, dashed and thin."""
    about: dict[str, Any] = field(default_factory=dict)
    """Parameters for the hover and the page: gamma, p, K, ..."""


@dataclass(frozen=True, slots=True)
class Panel:
    """One pair of axes."""

    id: str
    title: str
    series: list[Series]
    x: str
    """The axis shown first."""
    xs: dict[str, str]
    """Axes that may be switched to, with their labels."""
    y_label: str
    x_scale: Literal["linear", "log"] = "linear"
    y_scale: Literal["linear", "log"] = "log"
    y_floor: float | None = None
    """Smaller values are drawn there, and the figure says so."""
    note: str = ""


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of text and numbers."""

    id: str
    title: str
    columns: list[str]
    rows: list[list[str | float | int | None]]
    note: str = ""


@dataclass(frozen=True, slots=True)
class Claim:
    """What the paper (or we) say must be seen, and what was seen."""

    id: str
    experiment: str
    text: str
    """The claim in one sentence."""
    verdict: Verdict
    measured: str
    """What was measured, in words with its numbers."""
    numbers: dict[str, float | None] = field(default_factory=dict)
    note: str = ""
    holds: bool | None = None
    """Whether it was seen, also where nothing is promised; None where that cannot be told."""


@dataclass(frozen=True, slots=True)
class Experiment:
    """A figure or a table of the paper, with everything that a reader needs to judge and repeat it."""

    id: str
    title: str
    sentence: str
    """What it shows, with the numbers of this run."""
    parameters: dict[str, Any]
    command: str
    panels: list[Panel] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """Where the paper and the measurement differ, and what to know."""
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class ReproductionReport:
    """All of results.json."""

    title: str
    about: dict[str, Any]
    """Data, sizes, constants, version, machine, engine, command, seconds, quick."""
    claims: list[Claim]
    experiments: list[Experiment]


def to_json(report: ReproductionReport) -> dict[str, Any]:
    """Plain data; nan and infinities become None when it is written."""
    return asdict(report)


def from_json(data: dict[str, Any]) -> ReproductionReport:
    """What ``to_json`` gave."""
    return ReproductionReport(
        data["title"],
        data["about"],
        [Claim(**c) for c in data["claims"]],
        [
            Experiment(**{**e, "panels": [_panel(p) for p in e["panels"]], "tables": [Table(**t) for t in e["tables"]]})
            for e in data["experiments"]
        ],
    )


def _panel(p: dict[str, Any]) -> Panel:
    return Panel(**{**p, "series": [Series(**s) for s in p["series"]]})
