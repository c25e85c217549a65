"""The HTML page: header, claims, experiments, and the numbers from which its script draws."""

from __future__ import annotations

import base64
import hashlib
import math
import re
from collections.abc import Sequence
from dataclasses import asdict
from importlib.resources import files
from typing import Any

from proxskip.report import front, svg
from proxskip.report.downsample import downsample
from proxskip.report.figures import Claim, Experiment, Panel, ReproductionReport, Table, Verdict, to_json
from proxskip.report.mathematics import prose
from proxskip.report.method_styles import style, title
from proxskip.report.plots import X_AXES, CurveStyle, curve_styles, methods_in, numbers
from proxskip.report.text import attribute, block, data, duration, show, text

VERDICTS: dict[Verdict, tuple[str, str]] = {
    "PASS": ("M3 8.5L6.5 12L13 4.5", "the claim holds, by the number measured here"),
    "FAIL": ("M4 4L12 12M12 4L4 12", "the claim does not hold, by the number measured here"),
    "REPORTED": ("M8 7V12M8 4V4.5", "measured on data, or in a setting, for which the claim is not made"),
    "INCONCLUSIVE": ("M4 8H12", "the runs are too short to decide"),
    "NOT RUN": ("M4 8H12", "not run, or not long enough to decide"),
}
"""The icon of each verdict, as an SVG path, and what it means."""
HINT = '<p class="hint">Click a name in any legend to show or hide its method in all figures; with Shift, in one.</p>'
SINGLE_PANEL_SIZE, PANEL_SIZE = (760, 420), (540, 340)
"""Pixels of the static picture: of the only panel of an experiment, and of one among several."""


def page(report: ReproductionReport, files_beside: bool = False) -> str:
    """The whole page as one HTML file; long curves have fewer points, everything else is as in results.json.

    Args:
        files_beside: link to the figures' files in the folder ``figures`` beside the page.
    """
    shown = downsample(report)
    css, script = (files("proxskip.report").joinpath(name).read_text("utf-8") for name in ("page.css", "page.js"))
    # ids of experiments may be any text, anchors are plain words
    anchors = _anchors([e.id for e in shown.experiments])
    # the policy names the page's own script and style by their hashes, and forbids everything else
    policy = (
        f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(css)}; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    styles = {
        "shapes": svg.SHAPES,
        "dashes": svg.DASHES,
        "panels": [[[asdict(look) for look in styles] for styles in _styles(e)] for e in shown.experiments],
    }
    # the static page first; its script replaces the pictures when it runs
    body = [
        _bar(shown, anchors),
        '<main id="top">',
        _header(shown),
        _claims(shown, anchors),
        *(_experiment(e, k, anchors[k], shown, files_beside) for k, e in enumerate(shown.experiments)),
        "</main>",
        _footer(shown),
        f'<script type="application/json" id="results">{block(to_json(shown))}</script>',
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
    """Anchors for links: the ids if they are plain words, each used once."""
    out: list[str] = []
    for k, name in enumerate(ids):
        plain = re.sub(r"[^a-z0-9-]+", "-", name.lower()).strip("-")[:40]
        # ids that the page uses itself
        taken = plain in (*out, "top", "claims", "results", "styles") or re.match(
            r"(title|about|clip|experiment)-\d", plain
        )
        out.append(plain if plain and not taken else f"experiment-{k + 1}")
    return out


def _short(e: Experiment) -> str:
    """The title up to its colon."""
    head = e.title.split(":")[0].strip()
    return head if 0 < len(head) <= 40 else e.id


# -- the top -----------------------------------------------------------------------------------------------------------
def _bar(report: ReproductionReport, anchors: Sequence[str]) -> str:
    links = "".join(f'<a href="#{a}">{text(_short(e))}</a>' for a, e in zip(anchors, report.experiments, strict=True))
    return (
        '<a class="skip" href="#claims">Skip to the claims</a>'
        '<header class="bar"><a class="brand" href="#top">proxskip</a>'
        f'<nav aria-label="Contents"><a href="#claims">Claims</a>{links}</nav>'
        '<button type="button" class="theme" hidden>Dark</button></header>'
    )


def _header(report: ReproductionReport) -> str:
    about = dict(report.about)
    command = about.pop("command", "")
    # these two facts have a place of their own at the top
    quick = '<span class="tag">quick run</span>' if about.pop("quick", False) else ""
    facts = "".join(
        f'<div class="{"wide" if len(str(v)) > 24 and not isinstance(v, float) else "fact"}">'
        f"<dt>{text(str(k).replace('_', ' '))}</dt><dd>{_fact(k, v)}</dd></div>"
        for k, v in about.items()
        if v is not None
    )
    return (
        f'<section class="head"><h1>{text(report.title)}</h1>{quick}'
        f'<p class="headline">{prose(text(front.headline(report)))}</p>{_tally(report)}{_hero(report)}'
        f'<details class="about"><summary>About this run</summary><dl class="facts">{facts}</dl>'
        f"{_command(str(command))}</details></section>"
    )


def _hero(report: ReproductionReport) -> str:
    """Figure 1b at the top, and what acts on all figures at once."""
    at = front.hero(report.experiments)
    if at is None:
        return _controls(report)
    e, k = at
    experiment = report.experiments[e]
    panel = _panel(experiment.panels[k], f"{e}-{k}", SINGLE_PANEL_SIZE, _styles(experiment)[k])
    return f'{_controls(report)}<div class="panels one hero">{panel}</div>'


def _controls(report: ReproductionReport) -> str:
    """For all figures at once: the x axis, and which methods are drawn. Both need the script, so they are hidden."""
    panels = [p for e in report.experiments for p in e.panels]
    axes = [x for x in X_AXES if sum(x in p.xs and len(p.xs) > 1 for p in panels) > 1]
    choices = "".join(
        f'<label><input type="radio" name="x-all" value="{attribute(x)}">'
        f"<span>{text(x.replace('-', ' '))}</span></label>"
        for x in axes
    )
    looks: dict[str, tuple[str, str]] = {}
    for e in report.experiments:
        for p, styles in zip(e.panels, _styles(e), strict=True):
            for s, look in zip(p.series, styles, strict=True):
                if style(s.method) is not None and s.kind != "bound":
                    looks.setdefault(s.method, (svg.swatch(look, s.kind), title(s.method)))
    keys = "".join(
        f'<button type="button" class="key" aria-pressed="true" data-method="{attribute(m)}">{swatch}'
        f'<span class="name">{text(name)}</span></button>'
        for m, (swatch, name) in looks.items()
    )
    return (
        '<div class="everywhere" hidden>'
        + (f'<fieldset class="switch all"><legend>All figures against</legend>{choices}</fieldset>' if choices else "")
        + (f'<div class="methods" role="group" aria-label="Methods in all figures">{keys}</div>{HINT}' if keys else "")
        + "</div>"
    )


def _fact(key: str, value: Any) -> str:
    # raw seconds stay in the data element, readers see minutes or hours
    if key == "seconds" and isinstance(value, (int, float)):
        return data(value, duration(value))
    if isinstance(value, float) and math.isfinite(value) and 1e-3 <= abs(value) < 1e3:
        return data(value, f"{value:.8g}")
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
    """The score, in the order of VERDICTS, without verdicts that no claim has."""
    counts = {v: sum(c.verdict == v for c in report.claims) for v in VERDICTS}
    tally = "".join(
        f'<li>{_badge(v)}<b><data value="{n}">{n}</data></b><span>{text(VERDICTS[v][1])}</span></li>'
        for v, n in counts.items()
        if n
    )
    return f'<ul class="tally">{tally}</ul>' if tally else ""


def _claims(report: ReproductionReport, anchors: Sequence[str]) -> str:
    """The claims, folded by figure; a group with a claim that fails is open."""
    where = {e.id: (a, e) for a, e in zip(anchors, report.experiments, strict=True)}
    head = "".join(f'<th scope="col">{h}</th>' for h in ("Verdict", "Claim", "Measured", "Where"))
    groups = []
    for name in dict.fromkeys(c.experiment for c in report.claims):
        own = [c for c in report.claims if c.experiment == name]
        # a claim links to its experiment, if that is part of this report
        rows = "".join(_claim(c, where.get(name)) for c in own)
        badges = "".join(f"<i>{_badge(v)} {n}</i>" for v in VERDICTS if (n := sum(c.verdict == v for c in own)))
        groups.append(
            f'<details class="group"{" open" if any(c.verdict == "FAIL" for c in own) else ""}>'
            f"<summary><b>{text(_short(where[name][1]) if name in where else name)}</b>{badges}</summary>"
            f'<table class="claims"><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></details>'
        )
    return f'<section id="claims"><h2>Claims</h2>{"".join(groups)}</section>'


def _badge(verdict: str) -> str:
    path, _ = VERDICTS.get(verdict, VERDICTS["NOT RUN"])  # type: ignore[call-overload]
    # a verdict that this version does not know looks like one that was not run
    css = verdict.lower().replace(" ", "-") if verdict in VERDICTS else "not-run"
    return (
        f'<span class="verdict {css}"><svg viewBox="0 0 16 16" width="14" height="14" aria-hidden="true">'
        f'<path d="{path}"/></svg>{text(verdict)}</span>'
    )


def _claim(c: Claim, where: tuple[str, Experiment] | None) -> str:
    values = "".join(f"<span>{text(k)} <b>{show(v)}</b></span>" for k, v in c.numbers.items())
    exact = f'<details><summary>numbers</summary><span class="numbers">{values}</span></details>' if values else ""
    note = f'<span class="aside">{prose(text(c.note))}</span>' if c.note else ""
    link = f'<a href="#{where[0]}">{text(_short(where[1]))}</a>' if where else text(c.experiment)
    return (
        f'<tr data-claim="{attribute(c.id)}"><td>{_badge(c.verdict)}</td><td>{prose(text(c.text))}</td>'
        f'<td><span class="measured">{prose(text(c.measured))}</span>{note}{exact}</td><td>{link}</td></tr>'
    )


# -- experiments -------------------------------------------------------------------------------------------------------
def _experiment(e: Experiment, index: int, anchor: str, report: ReproductionReport, files_beside: bool) -> str:
    # a single panel fills the width of the page
    size = SINGLE_PANEL_SIZE if len(e.panels) == 1 else PANEL_SIZE
    at_top = front.hero(report.experiments)
    drawn = [
        _panel(p, f"{index}-{k}", size, styles)
        for k, (p, styles) in enumerate(zip(e.panels, _styles(e), strict=True))
        if (index, k) != at_top
    ]
    moved = (
        '<p class="note">Its first panel is <a href="#top">at the top of the page</a>.</p>'
        if at_top and at_top[0] == index
        else ""
    )
    counted = "".join(_badge(c.verdict) for c in report.claims if c.experiment == e.id)
    verdicts = f'<a class="verdicts" href="#claims">{counted}</a>' if counted else ""
    links = (front.paper_link(e), front.downloads(e) if files_beside else "")
    parts = [
        f'<section class="experiment" id="{anchor}"><h2>{prose(text(e.title))}</h2>',
        f'<p class="lead">{prose(text(e.sentence))}</p>',
        f'<p class="own">{verdicts}{"".join(links)}</p>',
        moved,
        f'<div class="panels {"one" if len(drawn) == 1 else "many"}">{"".join(drawn)}</div>' if drawn else "",
        *(_table(t) for t in e.tables),
        _notes(e.notes),
        _command(e.command),
        _parameters(e),
        "</section>",
    ]
    return "".join(parts)


def _styles(e: Experiment) -> list[list[CurveStyle]]:
    """The style of every series of every panel."""
    return [curve_styles(p.series, methods_in(e.panels)) for p in e.panels]


def _panel(p: Panel, name: str, size: tuple[int, int], styles: Sequence[CurveStyle]) -> str:
    e, k = name.split("-")
    title = f"<h3>{prose(text(p.title))}</h3>" if p.title else ""
    notes = [p.note] if p.note else []
    if p.y_floor is not None and any((numbers(s.y) < p.y_floor).any() for s in p.series):
        notes.append(f"Values below {p.y_floor:g} are drawn at {p.y_floor:g}.")
    note = f'<p class="note">{prose(text(" ".join(notes)))}</p>' if notes else ""
    return (
        f'<figure class="panel" data-e="{e}" data-p="{k}"><figcaption>{title}{_switch(p, name)}</figcaption>'
        f'<div class="body"><div class="plot">{svg.figure(p, *size, name, styles)}<div class="tip" hidden></div></div>'
        f'<div class="side"><p class="at">at the end</p><ul class="legend {"few" if len(p.series) < 5 else "more"}">'
        f"{_legend(p, styles)}</ul></div></div>"
        f'<p class="live" aria-live="polite"></p>{note}</figure>'
    )


def _switch(p: Panel, name: str) -> str:
    """The choice of the x axis, if there is one."""
    if len(p.xs) < 2:
        return ""
    choices = "".join(
        f'<label title="{text(label)}"><input type="radio" name="x-{name}" value="{attribute(x)}"'
        f"{' checked' if x == p.x else ''}><span>{text(x.replace('-', ' '))}</span></label>"
        for x, label in p.xs.items()
    )
    return f'<fieldset class="switch" hidden><legend>Against</legend>{choices}</fieldset>'


def _legend(p: Panel, styles: Sequence[CurveStyle]) -> str:
    """The curves with their last values, in the order of these values; bounds at the end."""
    # nan never equals itself: the last value that can be drawn
    last = [next((v for v in reversed(numbers(s.y).tolist()) if v == v), float("nan")) for s in p.series]
    order = sorted(range(len(last)), key=lambda k: (p.series[k].kind == "bound", -last[k] if last[k] == last[k] else 0))
    return "".join(
        f'<li><button type="button" class="key" aria-pressed="true" data-k="{k}" '
        f'data-name="{text(p.series[k].label)}" title="{_about(p.series[k].about)}">'
        f'{svg.swatch(styles[k], p.series[k].kind)}<span class="name">{prose(text(p.series[k].label))}</span>'
        f'<span class="val">{show(last[k]) if last[k] == last[k] else "&ndash;"}</span></button></li>'
        for k in order
    )


def _about(about: dict[str, Any]) -> str:
    return re.sub(r"<[^>]*>", "", "; ".join(f"{text(str(k))} = {show(v)}" for k, v in about.items() if v is not None))


def _table(t: Table) -> str:
    # a column with one word in it is set as text
    numeric = [all(not isinstance(row[k], str) for row in t.rows if k < len(row)) for k in range(len(t.columns))]
    css = ['class="n"' if n else "" for n in numeric]
    head = "".join(f'<th scope="col" {c}>{prose(text(h))}</th>' for c, h in zip(css, t.columns, strict=True))
    rows = "".join(
        "<tr>" + "".join(f"<td {c}>{show(v)}</td>" for c, v in zip(css, r, strict=False)) + "</tr>" for r in t.rows
    )
    note = f'<p class="note">{prose(text(t.note))}</p>' if t.note else ""
    return (
        f'<details class="table"><summary>Table: {prose(text(t.title))}</summary>'
        '<div class="scroll" tabindex="0" role="region" '
        f'aria-label="{attribute(t.title)}"><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>{note}</details>'
    )


def _notes(notes: Sequence[str]) -> str:
    if not notes:
        return ""
    items = "".join(f"<li>{prose(text(n))}</li>" for n in notes)
    return f'<details class="notes"><summary>Remarks</summary><ul>{items}</ul></details>'


def _parameters(e: Experiment) -> str:
    rows = "".join(f"<div><dt>{text(str(k))}</dt><dd>{show(v)}</dd></div>" for k, v in e.parameters.items())
    seconds = f"<div><dt>seconds</dt><dd>{_fact('seconds', e.seconds)}</dd></div>" if e.seconds else ""
    return f"<details><summary>Parameters</summary><dl>{rows}{seconds}</dl></details>" if rows or seconds else ""


def _footer(report: ReproductionReport) -> str:
    made = f"proxskip {report.about.get('versions', {}).get('proxskip', '')}".strip()
    return (
        f"<footer>Made by {text(made)}. The paper: ProxSkip, "
        f'<a href="{front.PAPER}" rel="noreferrer">arXiv:2202.09357</a>. All numbers of this page are in results.json '
        "beside it; for long curves the page keeps both ends and the extremes.</footer>"
    )
