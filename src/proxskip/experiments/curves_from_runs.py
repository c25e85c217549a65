"""Curves from finished runs: all x axes from the same traces, with medians and bands over seeds."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from proxskip.experiments.workspace import RunRequest, Workspace
from proxskip.report.figures import Panel, Series
from proxskip.report.plots import X_AXES, Y_AXES, column
from proxskip.results.result import RunResult
from proxskip.results.trace import Trace
from proxskip.tuning import local_steps_flag
from proxskip.types import Array

AXES = (
    *("rounds", "exchanges", "floats", "bytes", "bits-up", "bits-down"),
    *("iterations", "local-steps", "passes", "seconds"),
)
"""The x axes for runs with clients."""
LONG = 6e9
"""A run that takes gradients of this many rows takes about a minute on two cores."""
_TOOLTIP = ("gamma", "p", "K", "q", "tau", "eta_g", "option", "batch", "clients", "seed")


def series(label: str, runs: Sequence[RunResult], axes: Sequence[str] = AXES, **about: Any) -> Series:
    """One curve: a single run, or the median over seeds with a band from the smallest to the largest.

    A run that has reached its target stays there, at its mean cost per round.
    """
    traces, status = [run.trace for run in runs], [run.status.name.lower() for run in runs]
    rounds = common_rounds(traces, [word == "converged" for word in status])
    at = [np.minimum(np.searchsorted(t["round"], rounds), len(t["round"]) - 1) for t in traces]
    values = np.array([t["gap"][k] for t, k in zip(traces, at, strict=True)])
    # the costs of seeds differ even at the same round, since they draw their local steps
    longer = [np.maximum(1.0, rounds / max(1, t["round"][-1])) for t in traces]
    costs = {a: [column(t, a)[k] * c for t, k, c in zip(traces, at, longer, strict=True)] for a in axes}
    x = {a: np.median(columns, axis=0).tolist() for a, columns in costs.items()}
    s = runs[0].summary
    tooltip = {k: s[k] for k in _TOOLTIP if s.get(k) is not None} | about
    tooltip["status"] = "diverged" if "diverged" in status else statistics.mode(status)
    if len(runs) == 1:
        return Series(label, x, values[0].tolist(), s["method"], about=tooltip)
    tooltip["seeds"] = len(runs)
    low, high = values.min(axis=0).tolist(), values.max(axis=0).tolist()
    return Series(label, x, np.median(values, axis=0).tolist(), s["method"], low, high, about=tooltip)


def common_rounds(traces: Sequence[Trace], arrived: Sequence[bool]) -> Array:
    """The rounds recorded in all traces that have not arrived yet, until more than half of the traces have ended."""
    last = [t["round"][-1] for t in traces]
    every = np.unique(np.concatenate([t["round"] for t in traces]))
    every = every[every <= sorted(last)[len(last) // 2]]
    known = [
        np.isin(every, t["round"]) | (done & (every > end)) for t, done, end in zip(traces, arrived, last, strict=True)
    ]
    return np.asarray(every[np.all(known, axis=0)])


def with_seeds(workspace: Workspace, requests: Sequence[RunRequest]) -> list[list[RunResult]]:
    """Each request with the preset's ``seeds`` or ``seeds_of_long_runs``; once if nothing is random."""
    preset = workspace.preset
    first = workspace.runs(requests)
    rest = []
    for request, run in zip(requests, first, strict=True):
        rows = run.summary["iterations"] * (workspace.problem(**request.problem).N or 0)
        is_long = rows > LONG and "seeds_of_long_runs" in preset
        count = preset["seeds_of_long_runs"] if is_long else preset.get("seeds", 1)
        draws = local_steps_flag(request.method) == "p" or request.problem.get("batch") is not None
        rest.append([replace(request, seed=k) for k in range(1, count if draws else 1)])
    others = iter(workspace.runs([request for more in rest for request in more]))
    return [[run, *(next(others) for _ in more)] for run, more in zip(first, rest, strict=True)]


def panel(id: str, title: str, curves: Sequence[Series], x: str = "rounds", axes: Sequence[str] = AXES) -> Panel:
    """A panel of f - f*; a reader can switch between the axes."""
    label, floor = Y_AXES["gap"]
    return Panel(id, title, list(curves), x, {a: X_AXES[a][1] for a in axes}, label, y_floor=floor)
