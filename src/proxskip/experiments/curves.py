"""Curves to run, curves that were run, and the panels and tables made of them."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, overload

from proxskip.experiments import claims, settings
from proxskip.methods.registry import named, title
from proxskip.report.figures import Panel, Series, Table, first_below
from proxskip.report.plots import X_AXES, Y_AXES, median_curve
from proxskip.results.result import RunResult
from proxskip.types import InputError

AXES = (
    *("rounds", "exchanges", "floats", "bytes", "bits_up", "bits_down"),
    *("iterations", "local_steps", "passes", "seconds"),
)
"""The x axes for runs with clients."""
Flags = dict[str, Any]
"""Flags as on the command line, with ``_`` for ``-``."""
Values = Mapping[str, Any]
"""Plain data by name, as in JSON: parameters of a measurement, or what was measured."""
HALF_DECADES = (1e2, 316.22776601683796, 1e3, 3162.2776601683795, 1e4, 31622.776601683792, 1e5)
"""Condition numbers from 1e2 to 1e5, two in each decade."""
PROBLEM_VALUES = (*settings.PROBLEM_FLAGS, "spread")
"""``spread`` scales the rows of the clients, so that their L_i differ by this factor."""
RUN_VALUES = (*settings.LIMITS, "every")
_TOOLTIP = ("gamma", "p", "K", "q", "tau", "eta_g", "option", "batch", "clients", "seed")


# -- before a run ------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Curve:
    """A curve to run.

    Args:
        method: the registered name.
        label: its name in the legend.
        flags: as on the command line: of the method, of the problem, and of the end of the run.
        about: more values to show with it.
    """

    method: str
    label: str
    flags: Values = field(default_factory=dict)
    about: Values = field(default_factory=dict)
    seed: int = 0

    @property
    def of_problem(self) -> dict[str, Any]:
        """The flags that define its problem."""
        return {k: v for k, v in self.flags.items() if k in PROBLEM_VALUES}

    @property
    def limits(self) -> dict[str, Any]:
        """The flags that end its run."""
        return {k: v for k, v in self.flags.items() if k in settings.LIMITS}

    @property
    def parameters(self) -> dict[str, Any]:
        """The flags of its method."""
        return {k: v for k, v in self.flags.items() if k not in (*PROBLEM_VALUES, *RUN_VALUES)}


def curve(method: str, label: str = "", about: Values | None = None, **flags: Any) -> Curve:
    """A curve to run, by the name of its method and its flags as on the command line, with ``_`` for ``-``.

    Args:
        method: the name of the method.
        label: its name in the legend; the method's title if not given.
        about: values to show with it, such as the one that differs between curves.
        flags: of the method, of the problem, and limits of the run.
    """
    name = named(method).about.name
    return Curve(name, label or title(name), flags, about or {})


def flags_of(method: str) -> tuple[str, ...]:
    """The flags that a curve of this method may have."""
    return (*PROBLEM_VALUES, *RUN_VALUES, *settings.flags_taken(method), "cohort", "decay")


# -- after it ----------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Curves(Sequence[Series]):
    """Curves that were run; ``curves["gd"]`` finds one by its label or its method.

    Args:
        L: the smoothness constant that each curve's method knew.
    """

    series: tuple[Series, ...]
    L: tuple[float, ...]

    def __len__(self) -> int:
        return len(self.series)

    def __iter__(self) -> Iterator[Series]:
        return iter(self.series)

    @overload
    def __getitem__(self, key: int | str) -> Series: ...
    @overload
    def __getitem__(self, key: slice) -> Curves: ...
    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, slice):
            return Curves(self.series[key], self.L[key])
        if isinstance(key, int):
            return self.series[key]
        return self._named(key)

    def _named(self, name: str) -> Series:
        by_label = [s for s in self.series if s.label == name]
        found = by_label or self.of(name)
        if len(found) > 1:
            raise InputError(f"{len(found)} curves are of {name}; give a label, or use of({name!r}) for all of them.")
        return found[0]

    def of(self, *methods: str) -> list[Series]:
        """All curves of these methods."""
        known = dict.fromkeys(s.method for s in self.series)
        for name in methods:
            if name not in known:
                labels = ", ".join(s.label for s in self.series)
                raise InputError(f'there is no curve "{name}"; there are {labels}.')
        return [s for name in methods for s in self.series if s.method == name]

    def __add__(self, other: Curves) -> Curves:
        return Curves(self.series + other.series, self.L + other.L)


def of_runs(curve: Curve, runs: Sequence[RunResult], axes: Sequence[str] = AXES) -> Series:
    """The runs of a curve, one for each seed, with what its tooltip says."""
    drawn = median_curve(curve.label, curve.method, [run.trace for run in runs], [run.success for run in runs], axes)
    summary = runs[0].summary
    tooltip = {k: summary[k] for k in _TOOLTIP if summary.get(k) is not None} | dict(curve.about)
    status = [run.status.name.lower() for run in runs]
    tooltip["status"] = "diverged" if "diverged" in status else statistics.mode(status)
    if len(runs) > 1:
        tooltip["seeds"] = len(runs)
    return replace(drawn, about=tooltip)


# -- what is shown -----------------------------------------------------------------------------------------------------
def panel(id: str, title: str, curves: Sequence[Series], x: str = "rounds") -> Panel:
    """A panel of f - f*, against ``x`` at first; a reader can switch between the axes of the curves."""
    if not isinstance(title, str):
        raise InputError(f"panel {id} takes its title first, then its curves.")
    label, floor = Y_AXES["gap"]
    xs = {axis: X_AXES[axis][1] for axis in curves[0].x}
    if x not in xs:
        raise InputError(f'panel {id} has the unknown axis "{x}"; choose from {", ".join(xs)}.')
    return Panel(id, title, list(curves), x, xs, label, y_floor=floor)


def log_log(
    id: str, title: str, series: Sequence[Series], xs: Mapping[str, str], y_label: str, note: str = ""
) -> Panel:
    """A panel with two logarithmic axes; ``xs`` are its x axes with their labels, the one shown first in front."""
    return Panel(id, title, list(series), next(iter(xs)), dict(xs), y_label, "log", "log", note=note)


def table(id: str, title: str, curves: Curves, eps: float | None = None, costs: Sequence[str] = ("rounds",)) -> Table:
    """The parameters of every curve, its costs to eps, and where it ends."""
    costs = costs if eps is not None else ()
    columns = ["curve", "gamma", "gamma L", "local steps per round", "rounds run", *(f"{a} to {eps:g}" for a in costs)]
    columns += ["f - f* at the end", "smallest", "largest", "seeds"]
    rows = []
    for s, L in zip(curves, curves.L, strict=True):
        steps = s.about.get("K") or round(1 / s.about.get("p", 1.0), 1)
        gamma = s.about["gamma"]
        row = [s.label, gamma, gamma * L, steps, s.x["rounds"][-1]]
        row += [first_below(s.x[axis], s.y, eps) for axis in costs if eps is not None]
        row += [s.y[-1], (s.low or s.y)[-1], (s.high or s.y)[-1], s.about.get("seeds", 1)]
        rows.append(row)
    return Table(id, title, columns, rows)


def panel_and_table(
    id: str,
    title: str,
    curves: Curves,
    eps: float | None = None,
    costs: Sequence[str] = ("rounds",),
    x: str = "rounds",
) -> tuple[Panel, Table]:
    """The curves, and the table of their parameters and costs."""
    return panel(id, title, curves, x), table(id, title, curves, eps, costs)


def cost_against_cost(id: str, curves: Sequence[Series], eps: float, x: str, y: str) -> Panel:
    """One cost to eps against another: a point for each curve that got there."""
    points = []
    for s in curves:
        across, up = first_below(s.x[x], s.y, eps), first_below(s.x[y], s.y, eps)
        if across is not None and up is not None:
            points.append(Series(s.label, {x: [across]}, [up], s.method, kind="points", about=s.about))
    label = f"{X_AXES[y][1]} to {eps:g}"
    return log_log(id, f"costs to {eps:g}", points, {x: X_AXES[x][1]}, label)


def rounds_against(id: str, curves: Sequence[Series], eps: float, value: str, label: str) -> list[Panel]:
    """Rounds to eps against a value of ``about``; for curves that did not get there, the rounds they ran.

    No panel if fewer than two got there.
    """
    costs = [(float(s.about[value]), claims.cost(s, eps)) for s in curves]
    reached = [(at, cost.low) for at, cost in costs if cost.low == cost.high < math.inf]
    short = [(at, cost.low) for at, cost in costs if cost.low < cost.high]
    if len(reached) < 2:
        return []
    method = curves[0].method
    lines = [_points(title(method), reached, value, method)]
    if short:
        lines.append(_points("not reached within this many rounds", short, value, method))
    heading = f"rounds to {eps:g}"
    return [log_log(id, heading, lines, {value: label}, "communication rounds")]


def _points(label: str, points: Sequence[tuple[float, float]], value: str, method: str) -> Series:
    return Series(label, {value: [x for x, _ in points]}, [y for _, y in points], method, kind="points")
