"""Fewer points for the page: what the eye sees of a long curve, and nothing that was not measured."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from proxskip.figures import Panel, Report, Series
from proxskip.plots import numbers
from proxskip.seam import Array

MOST = 400
"""Points that a curve may have."""
LEAST = 120
BUDGET = 16_000
"""Points of a whole page, beyond which curves get fewer than ``MOST``."""


def thin(report: Report) -> Report:
    """The report with at most ``MOST`` points a curve, each of them one of the curve's own points."""
    long = sum(len(s.y) > LEAST for e in report.experiments for p in e.panels for s in p.series)
    most = min(MOST, max(LEAST, BUDGET // max(long, 1)))
    experiments = [replace(e, panels=[_panel(p, most) for p in e.panels]) for e in report.experiments]
    return replace(report, experiments=experiments)


def _panel(panel: Panel, most: int) -> Panel:
    return replace(panel, series=[thin_series(s, panel, most) for s in panel.series])


def thin_series(s: Series, panel: Panel, most: int = MOST) -> Series:
    """Equal pieces of the x axis, from each the smallest and the largest value (and of the band), and both ends."""
    if len(s.y) <= most:
        return s
    columns = [numbers(v) for v in (s.y, s.low, s.high) if v is not None]
    pieces = max(1, (most - 2) // (2 * len(columns)))
    where = _pieces(numbers(s.x.get(panel.x, [])), len(s.y), pieces, panel.x_scale == "log")
    keep = {0, len(s.y) - 1}
    for v in columns:
        good = np.flatnonzero(np.isfinite(v))
        for order in (v, -v):
            best = good[np.lexsort((order[good], where[good]))]
            keep.update(best[np.unique(where[best], return_index=True)[1]].tolist())
    at = sorted(keep)
    return replace(
        s,
        x={name: [v[k] for k in at] for name, v in s.x.items()},
        y=[s.y[k] for k in at],
        low=None if s.low is None else [s.low[k] for k in at],
        high=None if s.high is None else [s.high[k] for k in at],
    )


def _pieces(x: Array, length: int, pieces: int, log: bool) -> Array:
    """The piece of the axis that each point is in; by its place in the list where x does not rise."""
    with np.errstate(divide="ignore", invalid="ignore"):
        u = np.log(np.maximum(x, np.min(x[x > 0], initial=np.inf))) if log else x
    if len(u) != length or not np.all(np.isfinite(u)) or np.any(np.diff(u) < 0) or u[-1] <= u[0]:
        u = np.arange(length, dtype=np.float64)
    return np.minimum(np.asarray((u - u[0]) / (u[-1] - u[0]) * pieces, dtype=np.int64), pieces - 1)
