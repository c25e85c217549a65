"""The HTML page of a report: header, claims, experiments, and the numbers from which its script draws.

What the page says is computed here; how it looks is in page.html, which Jinja2 fills in, page.css and page.js.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from dataclasses import asdict, replace
from importlib.resources import files
from typing import Any, NamedTuple

import numpy as np

from proxskip.methods.registry import title
from proxskip.report import figures, plots
from proxskip.report.figures import Claim, Experiment, Panel, ReproductionReport, Series, Table, Verdict, first_below
from proxskip.report.plots import X_AXES, curve_styles, numbers, style
from proxskip.report.words import finite, is_measured, number, sentence, words
from proxskip.support.display import duration


class Look(NamedTuple):
    """How a verdict is shown: its icon as an SVG path, its meaning, and the verb of a count."""

    icon: str
    meaning: str
    verb: str


VERDICTS: dict[Verdict, Look] = {
    "PASS": Look("M3 8.5L6.5 12L13 4.5", "the claim holds here", "pass"),
    "FAIL": Look("M4 4L12 12M12 4L4 12", "the claim does not hold here", "fail"),
    "REPORTED": Look("M8 7V12M8 4V4.5", "measured, but not claimed for this data", "are reported"),
    "INCONCLUSIVE": Look("M4 8H12", "the runs are too short to decide", "are inconclusive"),
}
SINGLE_PANEL_SIZE, PANEL_SIZE = (760, 420), (540, 340)
"""Width and height of a single panel, and of one among several; the script fits them to the page."""
PAPER = "https://arxiv.org/abs/2202.09357"
SECTIONS = "https://ar5iv.labs.arxiv.org/html/2202.09357"
"""The paper as a web page with anchors."""
WHERE = {
    "fig1a": ("S6", "Section 6, Figure 1"),
    "fig1b": ("S6", "Section 6, Figure 1"),
    "fig1c": ("S6", "Section 6, Figure 1"),
    "fig2a": ("S6", "Section 6, Figure 2"),
    "fig2b": ("S6", "Section 6, Figure 2"),
    "fig2c": ("S6", "Section 6, Figure 2"),
    "table1": ("S1", "Section 1, Table 1"),
    "skipping": ("S3.SS5", "Section 3.5"),
    "lyapunov": ("S3.SS4", "Section 3.4, Theorem 3.6"),
    "decentralized": ("S5.SS2", "Section 5.2"),
}
"""The part of the paper that an experiment belongs to: its anchor and its name."""
OWN_ANCHORS = ("top", "claims", "results", "styles")
"""Anchors of the page itself."""
LEVELS = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2)
MAX_POINTS, SHORT_CURVE, MAX_NUMBERS = 400, 100, 120_000
"""The most points of a curve, points that every curve may have, and the most numbers in the longer curves."""


def page(report: ReproductionReport) -> str:
    """The page as one HTML file, with the numbers of results.json, but fewer points of long curves.

    It links to the files in the folder ``figures`` beside it.
    """
    from jinja2 import Environment, StrictUndefined  # loaded by those who write a page

    # as a file holds it, so that a page of results.json is the same
    report = figures.from_json(finite(figures.to_json(downsample(report))))
    panels = [p for e in report.experiments for p in e.panels]
    css, script = _file("page.css"), _file("page.js")
    environment = Environment(autoescape=True, undefined=StrictUndefined)
    environment.policies["json.dumps_kwargs"] = {"allow_nan": False, "separators": (",", ":")}
    environment.tests["measured"] = is_measured
    environment.filters |= {
        "sentence": sentence,
        "words": words,
        "duration": duration,
        "title_of_method": title,
        "description": description,
        "remark": remark,
        "anchor": anchor,
        "short": short,
        "ends": plots.legend_order,
        "numeric": numeric,
        "by_experiment": by_experiment,
        "by_verdict": by_verdict,
        "picture": picture,
    }
    html = environment.from_string(_file("page.html")).render(
        report=report,
        headline=headline(report),
        hero=hero(report.experiments),
        axes=shared_axes(panels),
        methods=methods(panels),
        results=figures.to_json(report),
        styles=[[styles(p) for p in e.panels] for e in report.experiments],
        css=css,
        script=script,
        policy=policy(css, script),
        verdict_looks=VERDICTS,
        where_in_paper=WHERE,
        paper=PAPER,
        sections=SECTIONS,
        single_panel_size=SINGLE_PANEL_SIZE,
        panel_size=PANEL_SIZE,
    )
    # a name of a file may have half a character, which no file in UTF-8 can hold
    return html.encode("utf-8", "replace").decode("utf-8")


def _file(name: str) -> str:
    return files("proxskip.report").joinpath(name).read_text("utf-8")


def policy(css: str, script: str) -> str:
    """The policy that allows the page's own script and style, by their hashes, and nothing else."""
    return (
        f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(css)}; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


def _hash(source: str) -> str:
    digest = hashlib.sha256(source.encode("utf-8")).digest()
    return f"'sha256-{base64.b64encode(digest).decode('ascii')}'"


# -- the headline ------------------------------------------------------------------------------------------------------
def hero(experiments: Sequence[Experiment]) -> int | None:
    """The experiment whose first panel is at the top of the page: Figure 1b."""
    return next((k for k, e in enumerate(experiments) if e.id == "fig1b" and e.panels), None)


def headline(report: ReproductionReport) -> str:
    """One sentence: the race of Figure 1b, or the score of the claims without it."""
    at = hero(report.experiments)
    race = "" if at is None else _race(report.experiments[at].panels[0].series)
    if race or not report.claims:
        return race
    score = ", ".join(f"{n} {VERDICTS[verdict].verb}" for verdict, n in by_verdict(report.claims))
    return f"Of {len(report.claims)} claims, {score}."


def _race(series: Sequence[Series]) -> str:
    """The rounds of Scaffnew to the smallest of some levels that it reaches, and those of the best of the others."""
    ours = next((s for s in series if s.method == "scaffnew"), None)
    others = [s for s in series if s.method not in ("", "scaffnew")]
    if ours is None or not others:
        return ""
    arrivals = {level: first_below(ours.x["rounds"], ours.y, level) for level in LEVELS}
    reached = [level for level, rounds in arrivals.items() if rounds is not None]
    if not reached:
        return ""
    level = reached[0]
    start = f"Scaffnew reaches f - f* = {number(level)} after {number(arrivals[level] or 0.0)} communication rounds"
    rivals = {s.label: first_below(s.x["rounds"], s.y, level) for s in others}
    arrived = {label: rounds for label, rounds in rivals.items() if rounds is not None}
    if arrived:
        best = min(arrived, key=lambda label: arrived[label])
        return f"{start}; the best of the other methods, {best}, after {number(arrived[best])}."
    nearest = min(others, key=lambda s: np.nan_to_num(plots.last_value(s), nan=np.inf))
    left, rounds = plots.last_value(nearest), nearest.x["rounds"][-1]
    return f"{start}; the best of the other methods, {nearest.label}, is at {number(left)} after {number(rounds)}."


# -- what acts on all figures ------------------------------------------------------------------------------------------
def shared_axes(panels: Sequence[Panel]) -> list[str]:
    """The x axes that more than one figure can switch to."""
    return [x for x in X_AXES if sum(x in p.xs and len(p.xs) > 1 for p in panels) > 1]


def methods(panels: Sequence[Panel]) -> list[str]:
    """The methods with a style of their own, in the order in which figures draw them."""
    series = [s for p in panels for s in p.series if style(s.method) is not None and s.kind != "bound"]
    return list(dict.fromkeys(s.method for s in series))


def styles(panel: Panel) -> list[dict[str, Any]]:
    """How the script draws the curves of a panel."""
    from matplotlib.colors import to_hex

    return [asdict(look) | {"color": to_hex(look.color)} for look in curve_styles(panel.series)]


# -- claims and experiments --------------------------------------------------------------------------------------------
def anchor(experiment: str) -> str:
    """Where an experiment is on the page, by its id; some words are anchors of the page itself."""
    return f"experiment-{experiment}" if experiment in OWN_ANCHORS else experiment


def short(e: Experiment) -> str:
    """The title of an experiment for links."""
    head = e.title.split(":")[0].strip()
    return head if 0 < len(head) <= 40 else e.id


def by_verdict(claims: Sequence[Claim]) -> list[tuple[Verdict, int]]:
    """The verdicts of these claims, and how many have each."""
    counts = [(verdict, sum(c.verdict == verdict for c in claims)) for verdict in VERDICTS]
    return [(verdict, n) for verdict, n in counts if n]


def by_experiment(claims: Sequence[Claim]) -> dict[str, list[Claim]]:
    """The claims of each experiment."""
    groups: dict[str, list[Claim]] = {}
    for c in claims:
        groups.setdefault(c.experiment, []).append(c)
    return groups


def picture(panels: Sequence[Panel]) -> str:
    """The panels of an experiment for readers without scripts, as base64."""
    return base64.b64encode(plots.picture(plots.panel_figure(panels))).decode("ascii")


def description(panel: Panel) -> str:
    """A sentence for screen readers."""
    scales = {"log": "logarithmic", "linear": "linear"}
    return (
        f"{panel.y_label} ({scales[panel.y_scale]}) against {panel.xs.get(panel.x, panel.x)} ({scales[panel.x_scale]}) "
        f"for {', '.join(s.label for s in panel.series)}."
    )


def remark(panel: Panel) -> str:
    """The note of a panel, and the floor at which values are drawn."""
    notes = [panel.note] if panel.note else []
    if panel.y_floor is not None and any((numbers(s.y) < panel.y_floor).any() for s in panel.series):
        notes.append(f"Values below {panel.y_floor:g} are drawn at {panel.y_floor:g}.")
    return " ".join(notes)


def numeric(table: Table) -> list[bool]:
    """Whether each column has numbers alone; a column with a word in it is text."""
    return [all(not isinstance(row[k], str) for row in table.rows if k < len(row)) for k in range(len(table.columns))]


# -- fewer points ------------------------------------------------------------------------------------------------------
def downsample(report: ReproductionReport) -> ReproductionReport:
    """The report with fewer points in long curves, which share the budget of the page."""
    long = [s for e in report.experiments for p in e.panels for s in p.series if len(s.y) > SHORT_CURVE]
    columns = sum(len(s.x) + (1 if s.low is None else 3) for s in long)
    most = min(MAX_POINTS, max(SHORT_CURVE, MAX_NUMBERS // max(columns, 1)))

    def fewer(panel: Panel) -> Panel:
        return replace(panel, series=[downsample_series(s, panel.x_scale == "log", most) for s in panel.series])

    return replace(report, experiments=[replace(e, panels=list(map(fewer, e.panels))) for e in report.experiments])


def downsample_series(s: Series, log: bool = False, most: int = MAX_POINTS) -> Series:
    """Both ends, and the smallest and the largest value in each of many pieces of the curve."""
    if len(s.y) <= most:
        return s
    y = numbers(s.y)
    ends = (np.geomspace if log else np.linspace)(1, len(y), most // 2)
    indices = {0, len(y) - 1}
    for piece in np.split(np.arange(len(y)), np.unique(ends.astype(int))[:-1]):
        if np.isfinite(y[piece]).any():
            indices |= {int(piece[np.nanargmin(y[piece])]), int(piece[np.nanargmax(y[piece])])}
    kept = sorted(indices)
    low, high = (None if v is None else [v[k] for k in kept] for v in (s.low, s.high))
    x = {name: [v[k] for k in kept] for name, v in s.x.items()}
    return replace(s, x=x, y=[s.y[k] for k in kept], low=low, high=high)
