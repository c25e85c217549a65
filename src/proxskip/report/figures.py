"""The content of a report as plain data, as in results.json: series, panels, tables, claims, experiments.

Experiments create these objects, ``plots`` draws panels, and ``document`` writes the HTML page.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from proxskip.results.plain_table import csv_of

Verdict = Literal["PASS", "FAIL", "REPORTED", "INCONCLUSIVE"]
"""REPORTED: measured, but the claim is not made for this data; INCONCLUSIVE: the runs are too short to decide."""


@dataclass(frozen=True, slots=True)
class Series:
    """One curve: y against one of several x, each as long as y."""

    label: str
    x: dict[str, list[float]]
    """By the name of the axis: one of ``plots.X_AXES``, or the panel's own."""
    y: list[float]
    method: str = ""
    """Decides color and dashes; without it the position does."""
    low: list[float] | None = None
    high: list[float] | None = None
    """The band over seeds."""
    kind: Literal["line", "points", "bound"] = "line"
    """``points`` have markers and a thin line; ``bound`` is a theoretical bound, thin and dashed."""
    about: dict[str, Any] = field(default_factory=dict)
    """Parameters for the tooltip and the page: gamma, p, K, ..."""


@dataclass(frozen=True, slots=True)
class Panel:
    """One pair of axes."""

    id: str
    title: str
    series: list[Series]
    x: str
    """The axis shown first."""
    xs: dict[str, str]
    """The axes that a reader can switch to, with their labels."""
    y_label: str
    x_scale: Literal["linear", "log"] = "linear"
    y_scale: Literal["linear", "log"] = "log"
    y_floor: float | None = None
    """Smaller values are drawn at this height, and the figure says so."""
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
    """A statement of the paper (or of this library), and what was measured."""

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
    """Whether it holds here, even if it is only reported; None if that is not decided."""


@dataclass(frozen=True, slots=True)
class Experiment:
    """A figure or table of the paper, with all that a reader needs to judge and repeat it."""

    id: str
    title: str
    sentence: str
    """What it shows, with the numbers of this run."""
    parameters: dict[str, Any]
    command: str
    panels: list[Panel] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """Remarks: where the paper and the measurement differ, and how to read the figure."""
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class ReproductionReport:
    """The content of results.json."""

    title: str
    about: dict[str, Any]
    """Data, sizes, constants, version, machine, engine, command, seconds, quick."""
    claims: list[Claim]
    experiments: list[Experiment]


def to_json(report: ReproductionReport) -> dict[str, Any]:
    """The report as plain data; nan and infinities become None when it is written."""
    return asdict(report)


def to_csv(e: Experiment) -> str:
    """All curves of an experiment, one row per point; axes that a curve lacks are empty."""
    rows = []
    for panel, s in [(p.id, s) for p in e.panels for s in p.series]:
        columns = {**s.x, "y": s.y, "low": s.low or [], "high": s.high or []}
        for k in range(len(s.y)):
            rows.append({"panel": panel, "curve": s.label} | {name: v[k] for name, v in columns.items() if v})
    return csv_of(rows)


def first_below(x: Iterable[float], y: Iterable[float | None], eps: float) -> float | None:
    """The first x at which |y| <= eps; None if there is none."""
    return next((float(a) for a, b in zip(x, y, strict=True) if b is not None and abs(b) <= eps), None)


def from_json(data: dict[str, Any]) -> ReproductionReport:
    """The report from what ``to_json`` returned."""

    def experiment(e: dict[str, Any]) -> Experiment:
        panels = [Panel(**p | {"series": [Series(**s) for s in p["series"]]}) for p in e["panels"]]
        return Experiment(**e | {"panels": panels, "tables": [Table(**t) for t in e["tables"]]})

    claims = [Claim(**c) for c in data["claims"]]
    return ReproductionReport(data["title"], data["about"], claims, [experiment(e) for e in data["experiments"]])
