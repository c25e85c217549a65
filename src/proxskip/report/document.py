"""The HTML page: header, claims, experiments, and the numbers from which its script draws."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Sequence
from dataclasses import asdict, replace
from importlib.resources import files
from typing import Any

import numpy as np

from proxskip.display import duration
from proxskip.registry import title
from proxskip.report import figures, plots
from proxskip.report.figures import Claim, Experiment, Panel, ReproductionReport, Series, Table, Verdict, first_below
from proxskip.report.method_styles import style
from proxskip.report.plots import X_AXES, curve_styles, methods_in, numbers
from proxskip.report.safe_html import attribute, block, data, number, sentence, show, text

VERDICTS: dict[Verdict, tuple[str, str, str]] = {
    "PASS": ("M3 8.5L6.5 12L13 4.5", "the claim holds here", "pass"),
    "FAIL": ("M4 4L12 12M12 4L4 12", "the claim does not hold here", "fail"),
    "REPORTED": ("M8 7V12M8 4V4.5", "measured, but not claimed for this data", "are reported"),
    "INCONCLUSIVE": ("M4 8H12", "the runs are too short to decide", "are inconclusive"),
}
"""The icon of each verdict as an SVG path, its meaning, and the verb of a count."""
SWATCH = '<svg class="swatch" viewBox="0 0 34 16" width="34" height="16" aria-hidden="true"></svg>'
"""A piece of a curve beside its name, drawn by the script."""
HINT = '<p class="hint">Click a name in any legend to show or hide its method in all figures; with Shift, in one.</p>'
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
LEVELS = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2)
MAX_POINTS, SHORT_CURVE, MAX_NUMBERS = 400, 100, 120_000
"""The most points of a curve, points that every curve may have, and the most numbers in the longer curves."""


def page(report: ReproductionReport, files_beside: bool = False) -> str:
    """The page as one HTML file, with the numbers of results.json, but fewer points of long curves.

    Args:
        files_beside: link to the files in the folder ``figures`` beside the page.
    """
    from matplotlib.colors import to_hex

    shown = downsample(report)
    css, script = (files("proxskip.report").joinpath(name).read_text("utf-8") for name in ("page.css", "page.js"))
    anchors = _anchors([e.id for e in shown.experiments])
    # allows the page's own script and style, by their hashes, and nothing else
    policy = (
        f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(css)}; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    styles = [
        [
            [asdict(look) | {"color": to_hex(look.color)} for look in curve_styles(p.series, methods_in(e.panels))]
            for p in e.panels
        ]
        for e in shown.experiments
    ]
    body = [
        _bar(shown, anchors),
        '<main id="top">',
        _header(shown),
        _claims(shown, anchors),
        *(_experiment(e, k, anchors[k], shown, files_beside) for k, e in enumerate(shown.experiments)),
        "</main>",
        _footer(shown),
        f'<script type="application/json" id="results">{block(figures.to_json(shown))}</script>',
        f'<script type="application/json" id="styles">{block(styles)}</script>',
    ]
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n<meta name="referrer" content="no-referrer">\n'
        f'<title>{text(shown.title)}</title>\n<link rel="icon" href="data:,">\n<style>{css}</style>\n'
        f"<script>{script}</script>\n</head>\n<body>\n" + "\n".join(body) + "\n</body>\n</html>\n"
    )


def _hash(source: str) -> str:
    digest = hashlib.sha256(source.encode("utf-8")).digest()
    return f"'sha256-{base64.b64encode(digest).decode('ascii')}'"


def _anchors(ids: Sequence[str]) -> list[str]:
    """Ids that are plain words, used once and not by the page itself; numbers for the others."""
    own = {name for name in ids if re.fullmatch(r"[a-z0-9-]+", name) and ids.count(name) == 1}
    own -= {"top", "claims", "results", "styles"}
    return [name if name in own else f"experiment.{k + 1}" for k, name in enumerate(ids)]


def _short(e: Experiment) -> str:
    head = e.title.split(":")[0].strip()
    return head if 0 < len(head) <= 40 else e.id


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
    counts = {words: sum(c.verdict == v for c in report.claims) for v, (_, _, words) in VERDICTS.items()}
    score = ", ".join(f"{n} {words}" for words, n in counts.items() if n)
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


# -- the top -----------------------------------------------------------------------------------------------------------
def _bar(report: ReproductionReport, anchors: Sequence[str]) -> str:
    links = "".join(f'<a href="#{a}">{text(_short(e))}</a>' for a, e in zip(anchors, report.experiments, strict=True))
    skip = '<a class="skip" href="#claims">Skip to the claims</a>' if report.claims else ""
    claims = '<a href="#claims">Claims</a>' if report.claims else ""
    return (
        f'{skip}<header class="bar"><a class="brand" href="#top">proxskip</a>'
        f'<nav aria-label="Contents">{claims}{links}</nav>'
        '<button type="button" class="theme" hidden>Dark</button></header>'
    )


def _header(report: ReproductionReport) -> str:
    about = dict(report.about)
    command = about.pop("command", "")
    quick = '<span class="tag">quick run</span>' if about.pop("quick", False) else ""
    facts = "".join(
        f'<div class="{"wide" if len(str(v)) > 24 and not isinstance(v, float) else "fact"}">'
        f"<dt>{text(str(k).replace('_', ' '))}</dt><dd>{_fact(k, v)}</dd></div>"
        for k, v in about.items()
        if v is not None
    )
    return (
        f'<section class="head"><h1>{text(report.title)}</h1>{quick}'
        f'<p class="headline">{sentence(headline(report))}</p>{_tally(report)}{_hero(report)}'
        f'<details class="about"><summary>About this run</summary><dl class="facts">{facts}</dl>'
        f"{_command(str(command))}</details></section>"
    )


def _hero(report: ReproductionReport) -> str:
    """What acts on all figures, and Figure 1b."""
    e = hero(report.experiments)
    if e is None:
        return _controls(report)
    panel = _panel(report.experiments[e].panels[0], f"{e}-0", SINGLE_PANEL_SIZE)
    return f'{_controls(report)}<div class="panels one hero">{panel}</div>'


def _controls(report: ReproductionReport) -> str:
    """The x axis and the methods of all figures; hidden without the script."""
    panels = [p for e in report.experiments for p in e.panels]
    axes = [x for x in X_AXES if sum(x in p.xs and len(p.xs) > 1 for p in panels) > 1]
    choices = "".join(
        f'<label><input type="radio" name="x-all" value="{attribute(x)}">'
        f"<span>{text(x.replace('-', ' '))}</span></label>"
        for x in axes
    )
    series = [s for p in panels for s in p.series if style(s.method) is not None and s.kind != "bound"]
    keys = "".join(
        f'<button type="button" class="key" aria-pressed="true" data-method="{attribute(m)}">{SWATCH}'
        f'<span class="name">{text(title(m))}</span></button>'
        for m in dict.fromkeys(s.method for s in series)
    )
    return (
        '<div class="everywhere" hidden>'
        + (f'<fieldset class="switch all"><legend>All figures against</legend>{choices}</fieldset>' if choices else "")
        + (f'<div class="methods" role="group" aria-label="Methods in all figures">{keys}</div>{HINT}' if keys else "")
        + "</div>"
    )


def _fact(key: str, value: Any) -> str:
    if key == "seconds" and isinstance(value, (int, float)):
        return data(value, duration(value))
    if isinstance(value, dict):
        return '<span class="list">' + ", ".join(f"{text(str(k))}&nbsp;{show(v)}" for k, v in value.items()) + "</span>"
    return show(value)


def _command(command: str) -> str:
    if not command:
        return ""
    return (
        f'<div class="command"><code tabindex="0">{text(command)}</code>'
        '<button type="button" class="copy" hidden>Copy</button></div>'
    )


# -- claims ------------------------------------------------------------------------------------------------------------
def _tally(report: ReproductionReport) -> str:
    """The number of claims with each verdict."""
    counts = {v: sum(c.verdict == v for c in report.claims) for v in VERDICTS}
    tally = "".join(
        f'<li>{_badge(v)}<b><data value="{n}">{n}</data></b><span>{text(VERDICTS[v][1])}</span></li>'
        for v, n in counts.items()
        if n
    )
    return f'<ul class="tally">{tally}</ul>' if tally else ""


def _claims(report: ReproductionReport, anchors: Sequence[str]) -> str:
    """The claims, folded by figure; groups with a failed claim are open."""
    if not report.claims:
        return ""
    where = {e.id: (a, e) for a, e in zip(anchors, report.experiments, strict=True)}
    head = "".join(f'<th scope="col">{h}</th>' for h in ("Verdict", "Claim", "Measured", "Where"))
    groups = []
    for name in dict.fromkeys(c.experiment for c in report.claims):
        own = [c for c in report.claims if c.experiment == name]
        rows = "".join(_claim(c, where.get(name)) for c in own)
        badges = "".join(f"<i>{_badge(v)} {n}</i>" for v in VERDICTS if (n := sum(c.verdict == v for c in own)))
        groups.append(
            f'<details class="group"{" open" if any(c.verdict == "FAIL" for c in own) else ""}>'
            f"<summary><b>{text(_short(where[name][1]) if name in where else name)}</b>{badges}</summary>"
            f'<table class="claims"><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></details>'
        )
    return f'<section id="claims"><h2>Claims</h2>{"".join(groups)}</section>'


def _badge(verdict: str) -> str:
    # an unknown verdict, as in files of earlier versions, looks like an open one
    known = verdict if verdict in VERDICTS else "INCONCLUSIVE"
    return (
        f'<span class="verdict {known.lower()}"><svg viewBox="0 0 16 16" width="14" height="14" aria-hidden="true">'
        f'<path d="{VERDICTS[known][0]}"/></svg>{text(verdict)}</span>'
    )


def _claim(c: Claim, where: tuple[str, Experiment] | None) -> str:
    values = "".join(f"<span>{text(k)} <b>{show(v)}</b></span>" for k, v in c.numbers.items())
    exact = f'<details><summary>numbers</summary><span class="numbers">{values}</span></details>' if values else ""
    note = f'<span class="aside">{sentence(c.note)}</span>' if c.note else ""
    link = f'<a href="#{where[0]}">{text(_short(where[1]))}</a>' if where else text(c.experiment)
    return (
        f'<tr data-claim="{attribute(c.id)}"><td>{_badge(c.verdict)}</td><td>{sentence(c.text)}</td>'
        f'<td><span class="measured">{sentence(c.measured)}</span>{note}{exact}</td><td>{link}</td></tr>'
    )


# -- experiments -------------------------------------------------------------------------------------------------------
def _experiment(e: Experiment, index: int, anchor: str, report: ReproductionReport, files_beside: bool) -> str:
    size = SINGLE_PANEL_SIZE if len(e.panels) == 1 else PANEL_SIZE
    at_top = hero(report.experiments) == index
    drawn = [_panel(p, f"{index}-{k}", size) for k, p in enumerate(e.panels) if k > 0 or not at_top]
    moved = '<p class="note moved">Its first panel is <a href="#top">at the top of the page</a>.</p>' if at_top else ""
    counted = "".join(_badge(c.verdict) for c in report.claims if c.experiment == e.id)
    verdicts = f'<a class="verdicts" href="#claims">{counted}</a>' if counted else ""
    links = (_paper_link(e), _downloads(e) if files_beside else "")
    parts = [
        f'<section class="experiment" id="{anchor}"><h2>{sentence(e.title)}</h2>',
        f'<p class="lead">{sentence(e.sentence)}</p>',
        f'<p class="own">{verdicts}{"".join(links)}</p>',
        moved,
        picture(e),
        f'<div class="panels {"one" if len(drawn) == 1 else "many"}">{"".join(drawn)}</div>' if drawn else "",
        *(_table(t) for t in e.tables),
        _notes(e.notes),
        _command(e.command),
        _parameters(e),
        "</section>",
    ]
    return "".join(parts)


def _paper_link(e: Experiment) -> str:
    anchor, name = WHERE.get(e.id, ("", ""))
    return f'<a class="paper" href="{SECTIONS}#{anchor}" rel="noreferrer">{text(name)} of the paper</a>' if name else ""


def _downloads(e: Experiment) -> str:
    """Links to the files beside the page, if the id is a plain file name."""
    if not e.panels or not re.fullmatch(r"[a-z0-9][a-z0-9-]*", e.id):
        return ""
    links = "".join(f'<a href="figures/{e.id}.{kind}" download>{kind.upper()}</a>' for kind in ("svg", "pdf", "csv"))
    return f'<span class="files">Download {links}</span>'


def picture(e: Experiment) -> str:
    """The panels of an experiment for readers without scripts."""
    if not e.panels:
        return ""
    source = base64.b64encode(plots.picture(plots.panel_figure(e.panels))).decode("ascii")
    description = " ".join(_describe(p) for p in e.panels)
    return f'<noscript><img alt="{text(description)}" src="data:image/webp;base64,{source}"></noscript>'


def _describe(panel: Panel) -> str:
    """A sentence for screen readers."""
    scales = {"log": "logarithmic", "linear": "linear"}
    return (
        f"{panel.y_label} ({scales[panel.y_scale]}) against {panel.xs.get(panel.x, panel.x)} ({scales[panel.x_scale]}) "
        f"for {', '.join(s.label for s in panel.series)}."
    )


def _panel(p: Panel, name: str, size: tuple[int, int]) -> str:
    """The frame, labels and legend of a figure; the script draws the curves."""
    e, k = name.split("-")
    title = f"<h3>{sentence(p.title)}</h3>" if p.title else ""
    notes = [p.note] if p.note else []
    if p.y_floor is not None and any((numbers(s.y) < p.y_floor).any() for s in p.series):
        notes.append(f"Values below {p.y_floor:g} are drawn at {p.y_floor:g}.")
    note = f'<p class="note">{sentence(" ".join(notes))}</p>' if notes else ""
    return (
        f'<figure class="panel" data-e="{e}" data-p="{k}"><figcaption>{title}{_switch(p, name)}</figcaption>'
        f'<div class="body"><div class="plot"><svg class="chart" viewBox="0 0 {size[0]} {size[1]}" role="img" '
        f'data-x="{sentence(p.xs.get(p.x, p.x))}" data-y="{sentence(p.y_label)}" '
        f'aria-labelledby="title.{name}" aria-describedby="about.{name}">'
        f'<title id="title.{name}">{text(p.title or p.y_label)}</title>'
        f'<desc id="about.{name}">{text(_describe(p))}</desc><clipPath id="clip.{name}"><rect/></clipPath></svg>'
        f'<div class="tip" hidden></div></div><div class="side"><p class="at">at the end</p>'
        f'<ul class="legend {"few" if len(p.series) < 5 else "more"}">{_legend(p)}</ul></div></div>'
        f'<p class="live" aria-live="polite"></p>{note}</figure>'
    )


def _switch(p: Panel, name: str) -> str:
    if len(p.xs) < 2:
        return ""
    choices = "".join(
        f'<label title="{sentence(label)}"><input type="radio" name="x-{name}" value="{attribute(x)}"'
        f"{' checked' if x == p.x else ''}><span>{text(x.replace('-', ' '))}</span></label>"
        for x, label in p.xs.items()
    )
    return f'<fieldset class="switch" hidden><legend>Against</legend>{choices}</fieldset>'


def _legend(p: Panel) -> str:
    """The curves with their last values, the largest first."""
    return "".join(
        f'<li><button type="button" class="key" aria-pressed="true" data-k="{k}" '
        f'data-name="{sentence(p.series[k].label)}" title="{_about(p.series[k].about)}">'
        f'{SWATCH}<span class="name">{sentence(p.series[k].label)}</span>'
        f'<span class="val">{show(last) if last == last else "&ndash;"}</span></button></li>'
        for k, last in plots.legend_order(p)
    )


def _about(about: dict[str, Any]) -> str:
    return re.sub(r"<[^>]*>", "", "; ".join(f"{text(str(k))} = {show(v)}" for k, v in about.items() if v is not None))


def _table(t: Table) -> str:
    # a column with a word in it is text
    numeric = [all(not isinstance(row[k], str) for row in t.rows if k < len(row)) for k in range(len(t.columns))]
    css = ['class="n"' if n else "" for n in numeric]
    head = "".join(f'<th scope="col" {c}>{sentence(h)}</th>' for c, h in zip(css, t.columns, strict=True))
    rows = "".join(
        "<tr>" + "".join(f"<td {c}>{show(v)}</td>" for c, v in zip(css, r, strict=False)) + "</tr>" for r in t.rows
    )
    note = f'<p class="note">{sentence(t.note)}</p>' if t.note else ""
    return (
        f'<details class="table"><summary>Table: {sentence(t.title)}</summary>'
        '<div class="scroll" tabindex="0" role="region" '
        f'aria-label="{attribute(t.title)}"><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>{note}</details>'
    )


def _notes(notes: Sequence[str]) -> str:
    if not notes:
        return ""
    items = "".join(f"<li>{sentence(n)}</li>" for n in notes)
    return f'<details class="notes"><summary>Remarks</summary><ul>{items}</ul></details>'


def _parameters(e: Experiment) -> str:
    rows = "".join(f"<div><dt>{text(str(k))}</dt><dd>{show(v)}</dd></div>" for k, v in e.parameters.items())
    seconds = f"<div><dt>seconds</dt><dd>{_fact('seconds', e.seconds)}</dd></div>" if e.seconds else ""
    return f"<details><summary>Parameters</summary><dl>{rows}{seconds}</dl></details>" if rows or seconds else ""


def _footer(report: ReproductionReport) -> str:
    version = f"proxskip {report.about.get('versions', {}).get('proxskip', '')}".strip()
    return (
        f"<footer>Made by {text(version)}. The paper: ProxSkip, "
        f'<a href="{PAPER}" rel="noreferrer">arXiv:2202.09357</a>. All numbers of this page are in results.json '
        "beside it; the page keeps the ends and extremes of long curves.</footer>"
    )


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
