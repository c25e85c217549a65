"""Figures with matplotlib: results and run folders as panels, and panels as PNG, PDF and SVG files.

Nothing here runs a method or changes the global state of matplotlib.
"""

from __future__ import annotations

import io
import itertools
import re
import textwrap
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from proxskip.core.method import Style
from proxskip.methods import registry
from proxskip.report.figures import Panel, Series
from proxskip.report.words import GREEK
from proxskip.results.load import load
from proxskip.results.result import Result, Summary
from proxskip.results.table import OF_A_PROBLEM, grouped
from proxskip.results.trace import Trace
from proxskip.support import palette
from proxskip.support.palette import BLACK
from proxskip.types import Array, InputError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

X_AXES = {
    "rounds": (("round",), "communication rounds"),
    "floats": (("floats_up", "floats_down"), "floats sent, all clients, up and down"),
    "bytes": (("bytes_up", "bytes_down"), "bytes sent, all clients, up and down"),
    "bits_up": (("bits_up",), "bits sent to the server, all clients"),
    "bits_down": (("bits_down",), "bits sent by the server, all clients"),
    "exchanges": (("exchanges",), "exchanges with the server, or gossip steps"),
    "local_steps": (("local_steps",), "local gradient steps, all clients"),
    "passes": (("passes",), "gradient passes over the data"),
    "iterations": (("iterations",), "iterations (local steps of one client)"),
    "prox_evals": (("prox_evals",), "prox evaluations"),
    "nprox": (("nprox",), "prox evaluations"),
    "seconds": (("seconds",), "seconds, without evaluation"),
    "sim_seconds": (("sim_seconds",), "seconds over the simulated network"),
}
"""For each choice of the x axis: the columns of the trace, which are added up, and the axis label."""

Y_AXES = {
    "gap": ("f(x) \N{MINUS SIGN} f*", 1e-16),
    "grad_norm": ("gradient norm at the communicated x", 1e-18),
    "lyapunov": ("Lyapunov function", 1e-32),
    "certificate": ("certificate", 1e-18),
}
"""Columns with a logarithmic y axis: its label, and the floor at which smaller values are drawn. Others are linear."""

_DASHES = ("-", "--", "-.", ":")
CYCLE = tuple(Style(*look) for look in palette.CYCLE)
"""Styles by position, for curves that belong to no method or all to the same one."""
MARKERS_PER_CURVE = 8
LEGEND: dict[str, Any] = {"frameon": False, "fontsize": 9, "handlelength": 3.2}


# -- runs --------------------------------------------------------------------------------------------------------------
def groups_of(results: Any, warn: bool = False) -> dict[str, list[Result]]:
    """The runs of each setting of results, run folders, or a mapping from labels to these.

    Runs that differ only in their seed make one curve. Its label names the settings that differ.

    Args:
        warn: warn if the runs solve different problems.
    """
    if isinstance(results, Mapping):
        groups = {str(label): _flat(runs) for label, runs in results.items()}
        if empty := [label for label, runs in groups.items() if not runs]:
            raise InputError(f'no results for "{empty[0]}".')
    else:
        groups = grouped(_flat(results))
        if not groups:
            raise InputError("no results to plot.")
    if warn:
        _warn_of_problems([runs[0].summary for runs in groups.values()])
    return groups


def _flat(results: Any) -> list[Result]:
    if isinstance(results, Result):
        return [results]
    if isinstance(results, (str, Path)):
        return _flat(load(results))
    if hasattr(results, "trace") or not isinstance(results, Iterable):
        raise InputError(f"cannot plot {type(results).__name__}; give results of run, or run folders.")
    return [result for item in results for result in _flat(item)]


def _warn_of_problems(summaries: Sequence[Summary]) -> None:
    differ = [k for k in OF_A_PROBLEM if len({repr(s.get(k)) for s in summaries}) > 1]
    stars = [s["f_star"] for s in summaries if s.get("f_star") is not None]
    if not differ and len(stars) > 1 and not np.allclose(stars, stars[0], rtol=1e-6, atol=1e-12):
        differ = ["f*"]
    if differ:
        warnings.warn(
            f"these runs solve different problems (they differ in {', '.join(differ)}): do not compare their curves.",
            UserWarning,
            stacklevel=4,
        )


def curve_panels(groups: Mapping[str, Sequence[Result]], xs: Sequence[str], y: str = "gap") -> list[Panel]:
    """One panel for each x axis, with a curve for each group of runs: its median, and a band over its seeds."""
    for x in xs:
        if x not in X_AXES:
            raise InputError(f'x = "{x}" cannot be drawn; choose one of {", ".join(X_AXES)}.')
    columns = dict.fromkeys(name for runs in groups.values() for run in runs for name in run.trace.columns)
    if y not in columns:
        raise InputError(f'y = "{y}" cannot be drawn; choose one of the columns {", ".join(columns)}.')
    # where f* is unknown, f - f* is nan
    shown = {label: known for label, runs in groups.items() if (known := [r for r in runs if has(r, y)])}
    if not shown:
        raise InputError(f"no run has values of {y}; choose another y, such as grad_norm.")
    notes = []
    if missing := [label for label in groups if label not in shown]:
        notes.append(f"Not shown, for lack of values: {', '.join(missing)}.")
    if max(map(len, shown.values())) > 1:
        notes.append("Lines are medians over the seeds; bands extend from the smallest to the largest value.")
    curves = [
        median_curve(
            label, str(runs[0].summary["method"]), [_finite(r.trace, y) for r in runs], [r.success for r in runs], xs, y
        )
        for label, runs in shown.items()
    ]
    label, floor = Y_AXES.get(y, (y.replace("_", " "), None))
    axis: Any = {"y_scale": "log" if y in Y_AXES else "linear", "y_floor": floor, "note": " ".join(notes)}
    return [Panel(x, "", curves, x, {x: X_AXES[x][1]}, label, **axis) for x in xs]


def has(run: Result, y: str) -> bool:
    """Whether a run has values of this column."""
    return y in run.trace and bool(np.isfinite(run.trace[y]).any())


def _finite(trace: Trace, y: str) -> Trace:
    """The records that have a value of this column."""
    good = np.isfinite(trace[y])
    return Trace.from_arrays({name: values[good] for name, values in trace.to_arrays().items()})


def median_curve(
    label: str, method: str, traces: Sequence[Trace], arrived: Sequence[bool], xs: Sequence[str], y: str = "gap"
) -> Series:
    """One curve: a single run, or the median over seeds with a band from the smallest to the largest.

    Args:
        arrived: whether each run has reached its tolerance: it stays there, at its mean cost per round.
        xs: the axes, of which a curve has its costs; over several seeds they are medians too.
    """
    if len(traces) == 1:  # every record, also two of one iteration
        (only,) = traces
        return Series(label, {x: column(only, x).tolist() for x in xs}, only[y].tolist(), method)
    counts = [t[t.columns[0]] for t in traces]
    rounds = common_rounds(counts, arrived)
    at = [np.minimum(np.searchsorted(count, rounds), len(count) - 1) for count in counts]
    values = np.array([t[y][k] for t, k in zip(traces, at, strict=True)])
    # the costs of seeds differ even at the same round, since they draw their local steps
    longer = [np.maximum(1.0, rounds / max(1, count[-1])) for count in counts]
    costs = {x: [column(t, x)[k] * c for t, k, c in zip(traces, at, longer, strict=True)] for x in xs}
    x = {name: np.median(each, axis=0).tolist() for name, each in costs.items()}
    middle, low, high = (f(values, axis=0).tolist() for f in (np.median, np.min, np.max))
    return Series(label, x, middle, method, low, high)


def common_rounds(counts: Sequence[Array], arrived: Sequence[bool]) -> Array:
    """The rounds recorded in all traces that have not arrived yet, until more than half of the traces have ended."""
    last = [count[-1] for count in counts]
    every = np.unique(np.concatenate(counts))
    every = every[every <= sorted(last)[len(last) // 2]]
    known = [
        np.isin(every, count) | (done & (every > end)) for count, done, end in zip(counts, arrived, last, strict=True)
    ]
    return np.asarray(every[np.all(known, axis=0)])


def column(trace: Trace, x: str) -> Array:
    """The values of an x axis for each record of a trace."""
    if missing := [column for column in X_AXES[x][0] if column not in trace]:
        why = ", since it had no network" if x == "sim_seconds" else ""
        raise InputError(f"a run has no {missing[0]}{why}; choose another x.")
    return np.asarray(np.sum([trace[column] for column in X_AXES[x][0]], axis=0))


# -- panels of a report ------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class CurveStyle:
    """How one series is drawn: ``color`` on a light background; the rest tells equal colors apart."""

    color: str
    dashes: str
    marker: str
    width: float
    hollow: bool = False


def style(name: str) -> Style | None:
    """A method's own style; None for an unknown method, which is drawn by its position in the figure.

    A method that describes none takes a place in ``CYCLE``, whose colors no method has: the first that did so the first
    place.
    """
    kind = registry.METHODS.get(name)
    if kind is None or kind.about.style is not None:
        return None if kind is None else kind.about.style
    plain = [known for known, other in registry.METHODS.items() if other.about.style is None]
    return CYCLE[plain.index(name) % len(CYCLE)]


def curve_styles(series: Sequence[Series]) -> list[CurveStyle]:
    """Each method in its own color; curves of a single method by position; a bound looks like the curve it bounds.

    Beside methods, curves without a style of their own have hollow markers.
    """
    measured = [s for s in series if s.kind != "bound"]
    by_method = len(measured) == 1 or len({s.method for s in measured}) > 1
    own = [style(s.method) if by_method else None for s in measured]
    # first the places that no plugin of the panel has
    taken = {look.color for look in own if look is not None}
    places = itertools.cycle(sorted(CYCLE, key=lambda look: look.color in taken))
    drawn: list[CurveStyle] = []
    for look in own:
        drawn.append(_among(drawn, look or next(places), look, hollow=bool(taken)))
    first_of = {s.method: look for s, look in reversed([*zip(measured, drawn, strict=True)]) if s.method}
    curves, dashes = iter(drawn), itertools.cycle(_DASHES[1:])
    styles = []
    for s in series:
        if s.kind != "bound":
            styles.append(next(curves))
        elif s.method in first_of:
            styles.append(replace(first_of[s.method], dashes="--", marker="", width=1.1))
        else:  # black, told apart by their dashes
            styles.append(CurveStyle(BLACK, next(dashes), "", 1.1))
    return styles


def _among(drawn: Sequence[CurveStyle], look: Style, own: Style | None, hollow: bool) -> CurveStyle:
    """The style of a curve after those of its color: each has other dashes, and all but the first hollow markers.

    Args:
        own: the style of its method, if that has one.
        hollow: whether a curve without a style of its own has hollow markers.
    """
    alike = [other for other in drawn if other.color == look.color]
    first = alike[0].dashes if alike else look.dashes
    place = _DASHES.index(first) if first in _DASHES else 0
    dashes = _DASHES[(place + len(alike)) % len(_DASHES)]
    is_thick = own is not None and own.highlighted and not alike
    is_hollow = bool(alike) or (hollow and own is None)
    return CurveStyle(look.color, dashes, look.marker, 2.4 if is_thick else 1.6, is_hollow)


def numbers(values: Sequence[float | None]) -> Array:
    """A list of results.json as an array; what is not finite becomes nan, which leaves a gap in a curve."""
    v = np.array([np.nan if u is None else u for u in values], dtype=np.float64)
    return np.where(np.isfinite(v), v, np.nan)


def panel_figure(panels: Sequence[Panel], heading: str = "") -> Figure:
    """The panels of one experiment, two in a row, each with its legend outside the axes."""
    from matplotlib.figure import Figure

    if not panels:
        raise InputError("no panel to draw.")
    across = min(len(panels), 2)
    down = -(-len(panels) // across)
    # panels with the same curves share one legend
    shared = len({tuple((s.label, s.method, s.kind) for s in p.series) for p in panels}) == 1
    width = 4.9 * across + (2.6 if shared else 0.0)
    tallest = 0 if shared else max(len(p.series) for p in panels)
    figure = Figure(figsize=(width, down * (3.9 + 0.2 * -(-tallest // 2))), layout="constrained")
    axes = figure.subplots(down, across, squeeze=False).ravel()
    notes: list[str] = []
    for ax, panel in zip(axes, panels, strict=False):
        notes += [n for n in draw_panel(ax, panel) if n not in notes]
        if len(panels) > 1:
            ax.set_title(mathtext(textwrap.fill(_plain(panel.title), 60)), fontsize=10)
        if not shared:
            below = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.16), "ncols": 2, "columnspacing": 1.2}
            ax.legend(*_entries(ax, panel, 26), **below, **LEGEND)
    for ax in axes[len(panels) :]:
        ax.set_visible(False)
    if shared:
        figure.legend(*_entries(axes[0], panels[0], 34), loc="outside right center", **LEGEND)
    if heading:
        figure.suptitle(_plain(heading), fontsize=11)
    if notes:
        lines = [line for n in notes for line in textwrap.wrap(_plain(n), int(15 * width))]
        figure.supxlabel("\n".join(lines), fontsize=8, color="#444444")
    return figure


def draw_panel(ax: Axes, panel: Panel, own: Mapping[str, Mapping[str, Any]] | None = None) -> list[str]:
    """Draw the series and the axes; returns the notes for the figure.

    Args:
        own: keywords of matplotlib for some lines, by their label or their method.
    """
    from matplotlib.ticker import EngFormatter

    chosen = _own_styles(panel.series, own or {})

    notes = [panel.note] if panel.note else []
    floored = False
    for k, (s, curve_style) in enumerate(zip(panel.series, curve_styles(panel.series), strict=True)):
        x, y = numbers(s.x.get(panel.x, [None] * len(s.y))), numbers(s.y)
        floored |= panel.y_floor is not None and bool(np.any(y < panel.y_floor))
        low, high = (None if v is None else at_floor(numbers(v), panel) for v in (s.low, s.high))
        line = {"label": _plain(s.label)} | _line(k, s, curve_style) | chosen[k]
        if low is not None and high is not None:
            ax.fill_between(x, low, high, color=line["color"], alpha=0.18, linewidth=0, zorder=1)
        ax.plot(x, at_floor(y, panel), **line)
    if floored:
        notes.append(f"Values below {panel.y_floor:g} are drawn at {panel.y_floor:g}.")
    ax.set_xscale(panel.x_scale)
    ax.set_yscale(panel.y_scale)
    ax.set_xlabel(mathtext(_plain(panel.xs.get(panel.x, panel.x))))
    ax.set_ylabel(mathtext(_plain(panel.y_label)))
    if panel.x_scale == "linear":
        ax.set_xlim(left=min(0.0, ax.get_xlim()[0]) if ax.dataLim.xmin < 0 else 0.0)
        if panel.x != "seconds":
            ax.xaxis.set_major_formatter(EngFormatter(sep=""))
    ax.grid(True, which="major", color="#DDDDDD", linewidth=0.6)
    ax.set_axisbelow(True)
    ax.spines[["top", "right"]].set_visible(False)
    return notes


def _own_styles(series: Sequence[Series], own: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """What the caller wants of each line, with the long names of matplotlib's keywords."""
    from matplotlib.cbook import normalize_kwargs
    from matplotlib.lines import Line2D

    names = list(dict.fromkeys(name for s in series for name in (s.label, s.method) if name))
    unknown = [name for name in own if name not in names]
    if unknown:
        raise InputError(f"style has {unknown[0]!r}, which is no line; there are {', '.join(names)}.")
    chosen = []
    for s in series:
        keywords = normalize_kwargs({**own.get(s.method, {}), **own.get(s.label, {})}, Line2D)
        if "color" in keywords:
            keywords = {"markerfacecolor": keywords["color"], **keywords}
        chosen.append(keywords)
    return chosen


def at_floor(y: Array, panel: Panel) -> Array:
    """Values as they are drawn: at least the floor; nan where a logarithmic axis has no place."""
    if panel.y_floor is not None:
        return np.maximum(y, panel.y_floor)
    return np.where(y > 0, y, np.nan) if panel.y_scale == "log" else y


def _line(k: int, s: Series, curve_style: CurveStyle) -> dict[str, Any]:
    """The style of the k-th line as matplotlib's keywords; thick lines are drawn on top."""
    # each curve starts its markers elsewhere, so that they do not hide one another
    spread = max(1, len(s.y) // MARKERS_PER_CURVE)
    points = s.kind == "points"
    return {
        "color": curve_style.color,
        "linestyle": curve_style.dashes,
        "linewidth": 0.9 if points else curve_style.width,
        "marker": curve_style.marker,
        "markersize": 6.0 if points else 5.0,
        "markerfacecolor": "white" if curve_style.hollow else curve_style.color,
        "markevery": None if points else ((k % MARKERS_PER_CURVE * spread) // MARKERS_PER_CURVE, spread),
        "zorder": 4 if curve_style.width > 2 else 3,
    }


def last_value(s: Series) -> float:
    """The last finite value of a curve; nan if there is none."""
    return next((v for v in reversed(numbers(s.y).tolist()) if v == v), np.nan)


def legend_order(panel: Panel) -> list[tuple[int, float]]:
    """The curves by their last value, the largest first, each with that value; bounds come last."""
    ends = [(k, last_value(s)) for k, s in enumerate(panel.series)]
    return sorted(ends, key=lambda end: (panel.series[end[0]].kind == "bound", -np.nan_to_num(end[1])))


def _entries(ax: Axes, panel: Panel, width: int) -> tuple[list[Line2D], list[str]]:
    order = [k for k, _ in legend_order(panel)]
    return [ax.lines[k] for k in order], [mathtext(textwrap.fill(_plain(panel.series[k].label), width)) for k in order]


def _plain(text: str) -> str:
    """Text on one line, which matplotlib takes neither for mathematics nor for a hidden label."""
    shown = " ".join("".join(c if c.isprintable() else " " for c in text).split()).replace("$", r"\$")
    return f" {shown}" if shown.startswith("_") else shown


_LETTER = re.compile(rf"(?<![\w'-])({GREEK}|lmax|[fhpqtxIKLMW])(?![\w'-])([*\u22c6]?)")
_NAMES = {"lmax": r"\lambda_\mathrm{max}", "eps": r"\epsilon"}


def mathtext(label: str) -> str:
    """A label with its letters as mathematics; one with a dollar sign stays as it is."""

    def typeset(match: re.Match[str]) -> str:
        letter = _NAMES.get(match[1], match[1] if len(match[1]) == 1 else f"\\{match[1]}")
        return f"${letter}^\\star$" if match[2] else f"${letter}$"

    return label if "$" in label else _LETTER.sub(typeset, label)


# -- files -------------------------------------------------------------------------------------------------------------
def save(figure: Figure, path: str | Path, svg: bool = False) -> list[Path]:
    """Write a PNG and a PDF, and on request an SVG; equal figures give equal files."""
    target = Path(path)
    if target.suffix.lower() not in ("", ".png", ".pdf"):
        raise InputError(f"{target} must end in .png or .pdf; both are written.")
    target.parent.mkdir(parents=True, exist_ok=True)
    written = [target.with_suffix(f".{kind}") for kind in ("png", "pdf", *(["svg"] if svg else []))]
    metadata = ({"Software": "proxskip"}, {"CreationDate": None}, {"Date": None})
    for file, fields in zip(written, metadata, strict=False):
        _write(figure, file, dpi=160 if file.suffix == ".png" else "figure", metadata=fields)
    return written


def picture(figure: Figure) -> bytes:
    """A figure as a small WebP image."""
    image = io.BytesIO()
    _write(figure, image, format="webp", pil_kwargs={"quality": 80})
    return image.getvalue()


def _write(figure: Figure, target: Path | BinaryIO, **how: Any) -> None:
    import matplotlib

    with matplotlib.rc_context({"pdf.fonttype": 42, "svg.hashsalt": "proxskip"}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing")  # the file shows a box in its place
        figure.savefig(target, **how)
