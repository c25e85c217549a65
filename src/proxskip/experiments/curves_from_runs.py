"""Curves from finished runs: all x axes from the same traces, with medians and bands over seeds."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any

import numpy as np

from proxskip.experiments.workspace import CachedRun
from proxskip.report.figures import Panel, Series
from proxskip.report.plots import X_AXES, Y_AXES
from proxskip.results.trace import Trace
from proxskip.types import Array

AXES = (
    *("rounds", "exchanges", "floats", "bytes", "bits-up", "bits-down"),
    *("iterations", "local-steps", "passes", "seconds"),
)
"""The x axes for runs with clients."""
_TOOLTIP = ("gamma", "p", "K", "q", "tau", "eta_g", "option", "batch", "clients", "seed")


def series(label: str, runs: Sequence[CachedRun], y: str = "gap", axes: Sequence[str] = AXES, **about: Any) -> Series:
    """One curve: a single run, or the median over several seeds with a band from the smallest to the largest."""
    traces = [run.trace for run in runs]
    # seeds may have records at different rounds: compare them at those that all have
    rounds = common_rounds(traces)
    at = [np.searchsorted(t["round"], rounds) for t in traces]
    values = np.array([t[y][k] for t, k in zip(traces, at, strict=True)])
    # seeds draw their local steps, so that their costs differ even at the same round
    x = {a: _plain(np.median([column(t, a)[k] for t, k in zip(traces, at, strict=True)], axis=0)) for a in axes}
    s = runs[0].summary
    told = {k: s[k] for k in _TOOLTIP if s.get(k) is not None} | {"status": s["status"].lower()} | about
    if len(runs) == 1:
        return Series(label, x, _plain(values[0]), s["method"], about=told)
    told["seeds"] = len(runs)
    low, high = _plain(values.min(axis=0)), _plain(values.max(axis=0))
    return Series(label, x, _plain(np.median(values, axis=0)), s["method"], low, high, about=told)


def column(trace: Trace, axis: str) -> Array:
    """The values of an x axis for each record of a trace."""
    return np.asarray(sum(trace[name] for name in X_AXES[axis][0]))


def common_rounds(traces: Sequence[Trace]) -> Array:
    """The rounds that all traces have a record of."""
    return np.asarray(reduce(np.intersect1d, (t["round"] for t in traces)))


def panel(
    id: str,
    title: str,
    drawn: Sequence[Series],
    x: str = "rounds",
    axes: Sequence[str] = AXES,
    y: str = "gap",
    **more: Any,
) -> Panel:
    """A panel over rounds; a reader can switch to the other axes."""
    label, floor = Y_AXES[y]
    return Panel(id, title, list(drawn), x, {a: X_AXES[a][1] for a in axes}, label, y_floor=floor, **more)


def _plain(values: Any) -> list[float]:
    return [float(v) for v in values]
