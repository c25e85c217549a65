"""A panel as SVG: for readers without scripts, for print, and as the first picture before the script runs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from proxskip.report.axes import Scale, domain
from proxskip.report.figures import Panel, Series
from proxskip.report.mathematics import pieces
from proxskip.report.plots import MARKERS_PER_CURVE, CurveStyle, at_floor, numbers
from proxskip.report.text import attribute, text

LEFT, RIGHT, TOP, BOTTOM = 54, 14, 30, 46
LABELS, LABELS_FROM, MOST_LABELS, LONGEST_LABEL = 128, 480, 8, 19
"""Names at the ends of curves: their room, the least width, and the most curves and letters for which there are any."""
SHAPES = {
    "o": "M0-4A4 4 0 1 1 0 4A4 4 0 1 1 0-4Z",
    "s": "M-3.6-3.6H3.6V3.6H-3.6Z",
    "^": "M0-4.6L4.4 3.4H-4.4Z",
    "v": "M0 4.6L4.4-3.4H-4.4Z",
    "<": "M-4.6 0L3.4-4.4V4.4Z",
    ">": "M4.6 0L-3.4-4.4V4.4Z",
    "p": "M0.0 -4.8L4.6 -1.5L2.8 3.9L-2.8 3.9L-4.6 -1.5Z",
    "8": "M1.8 -4.2L4.2 -1.8L4.2 1.8L1.8 4.2L-1.8 4.2L-4.2 1.8L-4.2 -1.8L-1.8 -4.2Z",
    "P": "M-1.7-4.6H1.7V-1.7H4.6V1.7H1.7V4.6H-1.7V1.7H-4.6V-1.7H-1.7Z",
    "X": "M-4.4-2.1L-2.1-4.4L0-2.2L2.1-4.4L4.4-2.1L2.2 0L4.4 2.1L2.1 4.4L0 2.2L-2.1 4.4L-4.4 2.1L-2.2 0Z",
    "D": "M0-5L5 0L0 5L-5 0Z",
    "*": "M0.0 -5.4L1.3 -1.8L5.1 -1.7L2.1 0.7L3.2 4.4L0.0 2.2L-3.2 4.4L-2.1 0.7L-5.1 -1.7L-1.3 -1.8Z",
    "h": "M0.0 -4.6L4.0 -2.3L4.0 2.3L0.0 4.6L-4.0 2.3L-4.0 -2.3Z",
}
"""Markers around the origin as SVG paths, by matplotlib's letters."""
DASHES = {"-": "", "--": "7 4", "-.": "8 3 2 3", ":": "2 3"}
SHIFTS = {"sup": -4, "sub": 3}
"""Pixels by which a part of a label is lowered."""
Points = list[tuple[float, float]]


def figure(panel: Panel, width: int, height: int, name: str, styles: Sequence[CurveStyle]) -> str:
    """The whole figure; ``name`` is unique on the page."""
    x, y = _scales(panel, width, height)
    parts = [_axes(panel, x, y, width, height), f'<g clip-path="url(#clip-{name})">']
    order = sorted(range(len(styles)), key=lambda k: styles[k].width)  # thick lines on top
    parts += [_band(panel.series[k], panel, styles[k], x, y) for k in order]
    parts += [_curve(panel.series[k], panel, styles[k], x, y) for k in order]
    parts.append("</g>" + _labels(panel, styles, x, y, width, height))
    right = room(panel, width)
    # a little beyond the axes, so that markers at the edge are drawn whole
    box = f'x="{LEFT - 6}" y="{TOP - 6}" width="{width - LEFT - right + 12}" height="{height - TOP - BOTTOM + 12}"'
    return (
        f'<svg class="chart" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img" '
        f'aria-labelledby="title-{name}" aria-describedby="about-{name}">'
        f'<title id="title-{name}">{text(panel.title or panel.y_label)}</title>'
        f'<desc id="about-{name}">{text(describe(panel))}</desc>'
        f'<clipPath id="clip-{name}"><rect {box}/></clipPath>{"".join(parts)}</svg>'
    )


def room(panel: Panel, width: int) -> int:
    """The margin on the right: wide enough for names at the ends of the curves, where there is space for them."""
    # bounds have no name at their end: the legend has them
    named = sum(s.kind != "bound" for s in panel.series)
    return LABELS if width >= LABELS_FROM and 0 < named <= MOST_LABELS else RIGHT


def _labels(panel: Panel, styles: Sequence[CurveStyle], x: Scale, y: Scale, width: int, height: int) -> str:
    """The name of each curve at its end, moved apart where they would overlap."""
    if room(panel, width) == RIGHT:
        return ""
    ends: list[tuple[float, float, int, str]] = []
    for s, look in zip(panel.series, styles, strict=True):
        every = [point for piece in _points(s, s.y, panel, x, y) for point in piece]
        if every and s.kind != "bound":
            name = (
                s.label if len(s.label) <= LONGEST_LABEL else s.label[: LONGEST_LABEL - 1] + "\N{HORIZONTAL ELLIPSIS}"
            )
            # a curve that leaves the figure has its name at the edge where it left
            ends.append((min(max(every[-1][1], TOP), height - BOTTOM), every[-1][0], look.slot, name))
    ends.sort(key=lambda end: end[0])
    places = [v for v, *_ in ends]
    # from top to bottom: a line of text is 14 pixels high
    for k in range(1, len(places)):
        places[k] = max(places[k], places[k - 1] + 14)
    # what was pushed below the axis comes back up
    limit = float(height - BOTTOM)
    for k in reversed(range(len(places))):
        places[k] = min(places[k], limit)
        limit = places[k] - 14
    return "".join(
        f'<text class="end c{slot}" x="{u + 8:.1f}" y="{v + 4:.1f}">{label(name)}</text>'
        for v, (_, u, slot, name) in zip(places, ends, strict=True)
    )


def label(plain: str) -> str:
    """A name with its letters in italics; stars and indices are raised and lowered, and the line goes on as before."""
    out, moved = "", 0
    for kind, word in pieces(plain):
        shift = SHIFTS.get(kind, 0)
        css = f' class="{kind}"' if kind else ""
        dy = f' dy="{shift - moved}"' if shift != moved else ""
        out += f"<tspan{css}{dy}>{text(word)}</tspan>" if css or dy else text(word)
        moved = shift
    return out


def describe(panel: Panel) -> str:
    """The figure in a sentence, for screen readers."""
    names = ", ".join(s.label for s in panel.series)
    scales = {"log": "logarithmic", "linear": "linear"}
    return (
        f"{panel.y_label} ({scales[panel.y_scale]}) against {panel.xs.get(panel.x, panel.x)} ({scales[panel.x_scale]}) "
        f"for {names}."
    )


def drawn(values: Sequence[float | None], panel: Panel) -> list[float]:
    """Values as they are drawn: at the floor if they are below it, nan if they cannot be drawn."""
    return [float(v) for v in at_floor(numbers(values), panel)]


def swatch(look: CurveStyle, kind: str) -> str:
    """A short piece of the line, for the legend."""
    line = _path([(1, 8), (33, 8)], look, kind)
    mark = "" if kind == "bound" else _marks([(17, 8)], look)
    return f'<svg class="swatch" viewBox="0 0 34 16" width="34" height="16" aria-hidden="true">{line}{mark}</svg>'


def y_domain(panel: Panel, shown: Iterable[Series]) -> tuple[float, float]:
    """The range of the measured values; bounds may widen it by half (or three decades) at each end."""
    measured, theory = list[float](), list[float]()
    for s in shown:
        columns = [s.y, s.low or [], s.high or []]
        (theory if s.kind == "bound" else measured).extend(v for c in columns for v in drawn(c, panel))
    log = panel.y_scale == "log"
    # theory alone is drawn in full; next to measurements it must not squeeze them into a corner
    low, high = domain(measured or theory, log, from_zero=True)
    if measured and theory:
        least, most = domain(theory, log, from_zero=True)
        if log:
            # half of the range in decades, but three decades at least
            half = max(math.sqrt(high / low), 1e3)
            return max(min(low, least), low / half), min(max(high, most), high * half)
        half = (high - low) / 2
        return max(min(low, least), low - half), min(max(high, most), high + half)
    return low, high


def _scales(panel: Panel, width: int, height: int) -> tuple[Scale, Scale]:
    log = panel.x_scale == "log"
    values = [float(v) for s in panel.series for v in numbers(s.x.get(panel.x, []))]
    x = Scale(*domain(values, log, from_zero=True), LEFT, width - room(panel, width), log)
    # pixels count downwards, so that the axis of y runs from the bottom up
    return x, Scale(*y_domain(panel, panel.series), height - BOTTOM, TOP, panel.y_scale == "log")


def _axes(panel: Panel, x: Scale, y: Scale, width: int, height: int) -> str:
    bottom, right, out = height - BOTTOM, width - room(panel, width), list[str]()
    # about one label every 44 pixels upwards, and every 86 along, where labels are wider
    for v, tick in y.ticks(max(3, (bottom - TOP) // 44)):
        out.append(f'<path class="grid" d="M{LEFT} {y(v):.1f}H{right}"/>')
        out.append(f'<text class="tick" x="{LEFT - 8}" y="{y(v) + 4:.1f}" text-anchor="end">{tick}</text>')
    for v, tick in x.ticks(max(3, (right - LEFT) // 86)):
        out.append(f'<path class="grid" d="M{x(v):.1f} {TOP}V{bottom}"/>')
        out.append(f'<text class="tick" x="{x(v):.1f}" y="{bottom + 18}" text-anchor="middle">{tick}</text>')
    out.append(f'<path class="axis-line" d="M{LEFT} {bottom}H{right}"/>')
    out.append(f'<text class="label y-label" x="2" y="14">{label(panel.y_label)}</text>')
    below = label(panel.xs.get(panel.x, panel.x))
    out.append(f'<text class="label x-label" x="{right}" y="{height - 6}" text-anchor="end">{below}</text>')
    return "".join(out)


def _points(s: Series, values: Sequence[float | None], panel: Panel, x: Scale, y: Scale) -> list[Points]:
    """The pixels of a curve, in pieces between values that cannot be drawn."""
    pieces: list[Points] = [[]]
    for u, v in zip(numbers(s.x.get(panel.x, [])), drawn(values, panel), strict=False):
        # a logarithmic axis has no place for x = 0, where costs begin
        if math.isfinite(u) and math.isfinite(v) and (u > 0 or not x.log):
            pieces[-1].append((x(float(u)), y(v)))
        elif pieces[-1]:
            pieces.append([])
    return [p for p in pieces if p]


def _curve(s: Series, panel: Panel, look: CurveStyle, x: Scale, y: Scale) -> str:
    pieces = _points(s, s.y, panel, x, y)
    every = [point for piece in pieces for point in piece]
    if s.kind == "bound":
        marked: Points = []
    elif s.kind == "points":
        marked = every
    else:
        # by its color each curve starts its markers elsewhere, so that they do not hide one another
        spread = max(1, len(every) // MARKERS_PER_CURVE)
        marked = every[look.slot * spread // 8 :: spread]
    return "".join(_path(piece, look, s.kind) for piece in pieces) + _marks(marked, look)


def _path(points: Points, look: CurveStyle, kind: str) -> str:
    width = {"bound": 1.2, "points": 1.0}.get(kind, look.width)
    dashes = f' stroke-dasharray="{DASHES[look.dashes]}"' if DASHES[look.dashes] else ""
    return f'<path class="line c{look.slot}" stroke-width="{width:g}"{dashes} d="{_d(points)}"/>'


def _marks(points: Points, look: CurveStyle) -> str:
    css = attribute(f"mark c{look.slot}{' hollow' if look.hollow else ''}")
    shape = SHAPES.get(look.marker, "")
    return "".join(f'<path class="{css}" transform="translate({u:.1f} {v:.1f})" d="{shape}"/>' for u, v in points)


def _band(s: Series, panel: Panel, look: CurveStyle, x: Scale, y: Scale) -> str:
    if s.low is None or s.high is None:
        return ""
    low, high = (_points(s, v, panel, x, y) for v in (s.low, s.high))
    # along the upper edge and back along the lower one
    pairs = zip(low, high, strict=False)
    return "".join(f'<path class="band c{look.slot}" d="{_d(b + a[::-1])}Z"/>' for a, b in pairs)


def _d(points: Points) -> str:
    return "M" + "L".join(f"{u:.1f} {v:.1f}" for u, v in points)
