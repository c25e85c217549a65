"""Fewer points for the page: a long curve keeps its shape, and every point that remains was measured."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from proxskip.report.figures import Panel, ReproductionReport, Series
from proxskip.report.plots import numbers
from proxskip.types import Array

MAX_POINTS = 400
"""Points per curve, at most."""
SHORT_CURVE = 100
"""A curve with this many points or fewer is never thinned."""
MAX_NUMBERS = 120_000
"""Numbers in all long curves of a page; beyond it, curves get fewer points than ``MAX_POINTS``."""


def downsample(report: ReproductionReport) -> ReproductionReport:
    """The report with at most ``MAX_POINTS`` points per curve, all of them points of the original curve."""
    # short curves stay complete; the long ones share the budget of the page
    long = [s for e in report.experiments for p in e.panels for s in p.series if len(s.y) > SHORT_CURVE]
    columns = sum(len(s.x) + (1 if s.low is None else 3) for s in long)
    most = min(MAX_POINTS, max(SHORT_CURVE, MAX_NUMBERS // max(columns, 1)))

    def fewer(panel: Panel) -> Panel:
        return replace(panel, series=[downsample_series(s, panel, most) for s in panel.series])

    return replace(report, experiments=[replace(e, panels=list(map(fewer, e.panels))) for e in report.experiments])


def downsample_series(s: Series, panel: Panel, most: int = MAX_POINTS) -> Series:
    """Both ends, and the smallest and the largest value (also of the band) in each of many pieces of the x axis."""
    if len(s.y) <= most:
        return s
    columns = [numbers(v) for v in (s.y, s.low, s.high) if v is not None]
    x, log = numbers(s.x.get(panel.x, [])), panel.x_scale == "log"
    # a band often has its extremes where the curve has them, so try with many pieces first
    for share in range(1, len(columns) + 1):
        where = _pieces(x, len(s.y), max(1, (most - 2) // (2 * share)), log)
        at = sorted({0, len(s.y) - 1}.union(*(_extremes(v, where) for v in columns)))
        if len(at) <= most:
            break
    y, low, high = (None if v is None else [v[k] for k in at] for v in (s.y, s.low, s.high))
    return replace(s, x={name: [v[k] for k in at] for name, v in s.x.items()}, y=y or [], low=low, high=high)


def _extremes(v: Array, where: Array) -> set[int]:
    """The indices of the smallest and the largest value of each piece."""
    good = np.flatnonzero(np.isfinite(v))
    indices: set[int] = set()
    for order in (v, -v):
        # sort by piece, then by value: the first point of each piece is its smallest (or largest)
        best = good[np.lexsort((order[good], where[good]))]
        indices.update(best[np.unique(where[best], return_index=True)[1]].tolist())
    return indices


def _pieces(x: Array, length: int, pieces: int, log: bool) -> Array:
    """The piece of the axis that each point lies in; pieces of the list where x does not increase."""
    with np.errstate(divide="ignore", invalid="ignore"):
        u = np.log(np.maximum(x, np.min(x[x > 0], initial=np.inf))) if log else x
    if len(u) != length or not np.all(np.isfinite(u)) or np.any(np.diff(u) < 0) or u[-1] <= u[0]:
        u = np.arange(length, dtype=np.float64)
    return np.minimum(np.asarray((u - u[0]) / (u[-1] - u[0]) * pieces, dtype=np.int64), pieces - 1)
