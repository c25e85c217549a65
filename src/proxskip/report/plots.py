"""Figures from traces: reads run folders, runs nothing, and leaves the global state of matplotlib alone."""

from __future__ import annotations

import json
import textwrap
import warnings
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from proxskip.report.figures import Panel, Series
from proxskip.report.mathematics import mathtext
from proxskip.report.method_styles import CYCLE, PALETTE, style, title
from proxskip.results.trace import Trace
from proxskip.seam import Style
from proxskip.types import Array, InputError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

X_AXES = {
    "rounds": (("round",), "communication rounds"),
    "floats": (("floats_up", "floats_down"), "floats sent, all clients, up and down"),
    "bytes": (("bytes_up", "bytes_down"), "bytes sent, all clients, up and down"),
    "bits-up": (("bits_up",), "bits sent to the server, all clients"),
    "bits-down": (("bits_down",), "bits sent by the server, all clients"),
    "exchanges": (("exchanges",), "exchanges with the server, or gossip steps"),
    "local-steps": (("local_steps",), "local gradient steps, all clients"),
    "passes": (("passes",), "gradient passes over the data"),
    "iterations": (("iterations",), "iterations (local steps of one client)"),
    "prox": (("prox_evals",), "prox evaluations"),
    "seconds": (("seconds",), "seconds, without evaluation"),
    "sim_seconds": (("sim_seconds",), "seconds over the simulated network"),
}
"""For each choice of the x axis: the columns of the trace, which are added up, and the axis label."""

Y_AXES = {
    "gap": ("f(x) \N{MINUS SIGN} f*", 1e-16),
    "grad_norm": ("gradient norm at the communicated x", 1e-18),
    "lyapunov": ("Lyapunov function", 1e-32),
}
"""For each choice of the y axis: its label, and the floor at which smaller values are drawn."""

_DASHES = ("-", "--", "-.", ":")
MARKERS_PER_CURVE = 8
_LEGEND: dict[str, Any] = {"frameon": False, "fontsize": 9, "handlelength": 3.2}


# -- run folders -------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Curve:
    """The runs of one method: one trace per seed."""

    label: str
    traces: tuple[Trace, ...]
    method: str = ""


def load_run(folder: str | Path) -> Curve:
    """The curve of one run folder, or of a folder whose ``seed-...`` folders hold the runs of one method."""
    path = Path(folder)
    if not path.is_dir():
        raise InputError(f"{path} is not a folder; give a run folder.")
    if (path / "trace.npz").is_file():
        method = _method(path)
        return Curve(title(method), (Trace.from_npz(path / "trace.npz"),), method)
    # a folder of one method with several seeds has its runs one level below
    seeds = [load_run(p) for p in _children(path) if p.name.startswith("seed-")]
    if not seeds:
        raise InputError(f"{path} holds no finished run (there is no trace.npz in it); give a run folder.")
    return replace(seeds[0], traces=tuple(t for s in seeds for t in s.traces))


def load_runs(folders: Sequence[str | Path]) -> list[Curve]:
    """The curves of run folders, or of folders that contain run folders; equal labels get the name of their folder."""
    found = [p for folder in folders for p in _run_folders(Path(folder))]
    curves = [load_run(p) for p in found]
    data = [_data(p) for p in found]
    if len(set(data)) > 1:  # curves of different problems are not to be compared unawares
        curves = [replace(c, label=f"{c.label}, {name}") for c, name in zip(curves, data, strict=True)]
    labels = [c.label for c in curves]
    return [
        replace(c, label=f"{c.label} ({p.name})") if labels.count(c.label) > 1 else c
        for c, p in zip(curves, found, strict=True)
    ]


def _run_folders(path: Path) -> list[Path]:
    children = _children(path) if path.is_dir() else []
    if (path / "trace.npz").is_file() or any(_is_seed(p) for p in children):
        return [path]
    inner = [p for p in children if (p / "trace.npz").is_file() or any(_is_seed(s) for s in _children(p))]
    return inner or [path]


def _is_seed(path: Path) -> bool:
    return path.name.startswith("seed-") and (path / "trace.npz").is_file()


def _children(path: Path) -> list[Path]:
    # by length first, so that seed-10 follows seed-9
    return sorted((p for p in path.iterdir() if p.is_dir()), key=lambda p: (len(p.name), p.name))


def _data(path: Path) -> str:
    """The data set of a run folder, or of its first seed's."""
    for p in (path, *_children(path)):
        try:
            return str(json.loads((p / "summary.json").read_text(encoding="utf-8"))["data"])
        except (OSError, ValueError, KeyError, TypeError):
            continue
    return "unknown data"


def _method(path: Path) -> str:
    try:
        return str(json.loads((path / "summary.json").read_text(encoding="utf-8"))["method"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path / 'summary.json'} does not say which method ran ({type(error).__name__}).") from None


# -- curves ------------------------------------------------------------------------------------------------------------
def curves(runs: Sequence[Curve], x: str = "rounds", y: str = "gap", heading: str = "") -> Figure:
    """One panel with a logarithmic y axis: for each curve the median over its seeds, and a band from min to max."""
    return panels(runs, (x,), y, heading)


def panels(runs: Sequence[Curve], xs: Sequence[str], y: str = "gap", heading: str = "", note: str = "") -> Figure:
    """Panels side by side with different x axes, one y axis and one legend, which lists the highest curve first."""
    from matplotlib.figure import Figure

    for x in xs:
        _known(x, X_AXES, "x")
    _known(y, Y_AXES, "y")
    # f - f* is nan everywhere if f* is unknown
    shown = [c for c in runs if any(np.isfinite(t[y]).any() for t in c.traces)]
    if not shown:
        raise InputError(f"no run has a value of {y}; choose another --y, such as grad_norm.")
    figure = Figure(figsize=(4.6 * len(xs) + 2.6, 4.1), layout="constrained")
    # one y axis for all panels, so that heights can be compared
    axes = figure.subplots(1, len(xs), sharey=True, squeeze=False)[0]
    styles = _styles(shown)
    floor = Y_AXES[y][1]
    for ax, x in zip(axes, xs, strict=True):
        for k, curve in enumerate(shown):
            _draw(ax, curve, x, y, floor, styles[k], k / len(shown))
        _dress(ax, x, X_AXES[x][1])
    axes[0].set_ylabel(mathtext(Y_AXES[y][0]))
    _legend(figure, axes[-1], shown, y)
    if heading:
        figure.suptitle(heading, fontsize=11)
    notes = [note] if note else []
    if missing := [c.label for c in runs if c not in shown]:
        notes.append(f"Not shown, since there are no values: {', '.join(missing)}.")
    if max(len(c.traces) for c in shown) > 1:
        notes.append("Lines are medians over the seeds; bands extend from the smallest to the largest value.")
    if any(np.nanmin(t[y]) < floor for c in shown for t in c.traces if np.isfinite(t[y]).any()):
        notes.append(f"Values below {floor:g}, which are rounding errors, are drawn at {floor:g}.")
    if notes:
        figure.supxlabel("\n".join(notes), fontsize=8, color="#444444")
    return figure


def draw_on(ax: Axes, runs: Sequence[Curve], x: str, y: str) -> None:
    """The curves on axes of the caller, with labels and a legend inside."""
    _known(x, X_AXES, "x")
    _known(y, Y_AXES, "y")
    shown = [c for c in runs if any(np.isfinite(t[y]).any() for t in c.traces)]
    if not shown:
        raise InputError(f'no run has a value of {y}; choose another y, such as "grad_norm".')
    styles, floor = _styles(shown), Y_AXES[y][1]
    for k, curve in enumerate(shown):
        _draw(ax, curve, x, y, floor, styles[k] | {"label": _plain(curve.label)}, k / len(shown))
    _dress(ax, x, X_AXES[x][1])
    ax.set_ylabel(mathtext(Y_AXES[y][0]))
    ax.legend(**_LEGEND)


def median_and_band(curve: Curve, x: str, y: str, floor: float) -> tuple[Array, Array, Array, Array]:
    """(x, median, min, max) over the seeds, up to the last x that all reached; interpolated in log y if x differ."""
    lines = [_line(t, x, y, floor) for t in curve.traces]
    lines = [(u, v) for u, v in lines if len(u)]
    end = min(u[-1] for u, _ in lines)
    # every x at which some seed has a record; between records the others are interpolated
    grid = np.unique(np.concatenate([u for u, _ in lines]))
    grid = grid[grid <= end]
    logs = np.stack([np.interp(grid, u, v) for u, v in lines])
    return grid, *(np.exp(f(logs, axis=0)) for f in (np.median, np.min, np.max))


def _line(trace: Trace, x: str, y: str, floor: float) -> tuple[Array, Array]:
    if x == "sim_seconds" and x not in trace:
        raise InputError(
            "a run has no sim_seconds, the time over a network; run it with network=, or choose another x."
        )
    u = np.sum([trace[column] for column in X_AXES[x][0]], axis=0)
    good = np.isfinite(trace[y])
    return u[good], np.log(np.maximum(trace[y][good], floor))


def _draw(ax: Axes, curve: Curve, x: str, y: str, floor: float, line: dict[str, Any], shift: float) -> None:
    # markers of different curves are shifted against each other, so that they do not hide one another
    u, middle, low, high = median_and_band(curve, x, y, floor)
    spread = max(1, len(u) // MARKERS_PER_CURVE)
    ax.semilogy(u, middle, markevery=(int(shift * spread), spread), **line)
    if len(curve.traces) > 1:
        ax.fill_between(u, low, high, color=line["color"], alpha=0.18, linewidth=0, zorder=1)


def _styles(shown: Sequence[Curve]) -> list[dict[str, Any]]:
    own = [entry for c in shown if (entry := style(c.method)) is not None]
    # every method its own style, or all by position where two would have the same color
    distinct = len({entry.color for entry in own}) == len(shown)
    return [
        _look(entry, 2.4 if entry.highlighted else 1.5, not distinct and k >= len(CYCLE))
        for k, entry in enumerate(own if distinct else [CYCLE[k % len(CYCLE)] for k in range(len(shown))])
    ]


def _look(given: Style | CurveStyle, width: float, hollow: bool) -> dict[str, Any]:
    """The style of a line as matplotlib's keywords; thick lines are drawn on top."""
    look = {"color": given.color, "linestyle": given.dashes, "marker": given.marker, "markersize": 5.0}
    face = "white" if hollow else given.color
    return look | {"markerfacecolor": face, "linewidth": width, "zorder": 4 if width > 2 else 3}


def _dress(ax: Axes, x: str, label: str, scale: str = "linear") -> None:
    from matplotlib.ticker import EngFormatter

    ax.set_xlabel(mathtext(label))
    if scale == "linear":
        # costs start at zero, where every curve begins
        ax.set_xlim(left=min(0.0, ax.get_xlim()[0]) if ax.dataLim.xmin < 0 else 0.0)
    if x != "seconds" and scale == "linear":
        ax.xaxis.set_major_formatter(EngFormatter(sep=""))
    ax.grid(True, which="major", color="#DDDDDD", linewidth=0.6)
    ax.set_axisbelow(True)
    ax.spines[["top", "right"]].set_visible(False)


def _legend(figure: Figure, ax: Axes, shown: Sequence[Curve], y: str) -> None:
    """Outside the axes, in the order of the curves' last values."""
    # the legend in the order in which the curves end
    last = [np.median([_last(t[y]) for t in c.traces]) for c in shown]
    order = np.argsort(-np.asarray(last), kind="stable")
    handles = [ax.lines[i] for i in order]
    labels = [shown[i].label for i in order]
    figure.legend(handles, labels, loc="outside right center", **_LEGEND)


def _last(v: Array) -> float:
    good = v[np.isfinite(v)]
    return float(good[-1]) if len(good) else np.inf


def _known(given: str, axes: dict[str, Any], name: str) -> None:
    if given not in axes:
        raise InputError(f'{name} = "{given}" cannot be drawn; choose one of {", ".join(axes)}.')


# -- panels of a report ------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class CurveStyle:
    """How one series is drawn: ``slot`` is its color in ``PALETTE``, the rest tells equal colors apart."""

    slot: int
    dashes: str
    marker: str
    width: float
    hollow: bool = False

    @property
    def color(self) -> str:
        """On a light background."""
        return PALETTE[self.slot]


def methods_in(panels: Sequence[Panel]) -> set[str]:
    """The methods that some panel of a figure draws in their own style."""
    return {key for p in panels for key in _keys([s for s in p.series if s.kind != "bound"]) if style(key)}


def curve_styles(series: Sequence[Series], figure: Collection[str] = ()) -> list[CurveStyle]:
    """Colors by method, or by position where a single method is shown; a bound looks like the curve it bounds.

    Args:
        figure: the methods that the whole figure draws in their own style; series by position have hollow markers
            beside them.
    """
    measured = [s for s in series if s.kind != "bound"]
    keys = _keys(measured)
    named = {name for name in (*figure, *keys) if style(name)}
    slots = _slots(keys, named)
    out, seen, by_method = list[CurveStyle](), list[str](), dict[str, CurveStyle]()
    for s, key in zip(measured, keys, strict=True):
        slot, again = slots[key] % len(PALETTE), seen.count(key)
        own = style(key)
        base = own or CYCLE[slot]
        strong = own is not None and own.highlighted and not again
        # the second curve of a method, and a second turn through the palette, get other dashes and hollow markers
        first = _DASHES.index(base.dashes) if base.dashes in _DASHES else 0
        dashes = _DASHES[(first + again + slots[key] // len(PALETTE)) % len(_DASHES)]
        hollow = again > 0 or slots[key] >= len(PALETTE) or (bool(named) and own is None)
        look = _unlike(CurveStyle(slot, dashes, base.marker, 2.4 if strong else 1.6, hollow), out)
        if s.hollow is not None:
            look = replace(look, hollow=s.hollow)
        seen.append(key)
        by_method.setdefault(s.method or s.label, look)
        out.append(look)
    # bounds without a curve of their own are black, told apart by their dashes
    given, loose = iter(out), (CurveStyle(2, _DASHES[1 + k % 3], "", 1.1) for k in range(len(series)))
    return [
        next(given)
        if s.kind != "bound"
        else replace(by_method[s.method], dashes="--", marker="", width=1.1)
        if s.method in by_method
        else next(loose)
        for s in series
    ]


def _unlike(look: CurveStyle, others: Sequence[CurveStyle]) -> CurveStyle:
    """The same, or with other dashes and hollow markers where one of the others looks like it."""
    used = {(other.slot, other.dashes, other.hollow) for other in others}
    first = _DASHES.index(look.dashes) if look.dashes in _DASHES else 0
    for hollow in (look.hollow, True):
        for dashes in (*_DASHES[first:], *_DASHES[:first]):
            if (look.slot, dashes, hollow) not in used:
                return replace(look, dashes=dashes, hollow=hollow)
    return look


def _keys(measured: Sequence[Series]) -> list[str]:
    """The method of each series, or its position."""
    several = len(measured) == 1 or len({s.method for s in measured}) > 1
    return [s.method if several and style(s.method) else str(k) for k, s in enumerate(measured)]


def _slots(keys: Sequence[str], named: Collection[str]) -> dict[str, int]:
    """Methods keep their own color where it is free; the others take what is left, unused colors first."""
    out: dict[str, int] = {}
    own = {
        name: PALETTE.index(entry.color)
        for name in (*keys, *named)
        if (entry := style(name)) and entry.color in PALETTE
    }
    # colors of methods elsewhere in the figure are used last
    theirs = {own[name] for name in named if name in own}
    order = [*sorted(range(len(PALETTE)), key=theirs.__contains__), *range(len(PALETTE), len(PALETTE) + len(keys))]
    for key in dict.fromkeys(keys):
        if key in own and own[key] not in out.values():
            out[key] = own[key]
    for key in dict.fromkeys(keys):
        if key not in out:
            out[key] = next(k for k in order if k not in out.values())
    return out


def numbers(values: Sequence[float | None]) -> Array:
    """A list from results.json as an array; None, which stands for infinities and nan, becomes nan."""
    v = np.array([np.nan if u is None else u for u in values], dtype=np.float64)
    # a curve has a gap where a value is not finite
    v[~np.isfinite(v)] = np.nan
    return v


def panel_figure(panels: Sequence[Panel], heading: str = "") -> Figure:
    """The panels of one experiment, two in a row, each with its legend outside the axes."""
    from matplotlib.figure import Figure

    if not panels:
        raise InputError("there is no panel to draw.")
    across = min(len(panels), 2)
    down = -(-len(panels) // across)
    # panels with the same curves share one legend
    shared = len({tuple((s.label, s.method, s.kind) for s in p.series) for p in panels}) == 1
    width = 4.9 * across + (2.6 if shared else 0.0)
    tallest = 0 if shared else max(len(p.series) for p in panels)
    figure = Figure(figsize=(width, down * (3.9 + 0.2 * -(-tallest // 2))), layout="constrained")
    # a legend below its panel has a subfigure to itself, so that it takes height from the axes and never width
    parts = [figure] if shared else figure.subfigures(down, across, squeeze=False).ravel()
    axes = [
        ax for part in parts for ax in part.subplots(*((down, across) if shared else (1, 1)), squeeze=False).ravel()
    ]
    notes: list[str] = []
    for k, (ax, panel) in enumerate(zip(axes, panels, strict=False)):
        notes += [n for n in _draw_panel(ax, panel, methods_in(panels)) if n not in notes]
        if len(panels) > 1:
            ax.set_title(mathtext(textwrap.fill(_plain(panel.title), 60)), fontsize=10)
        if not shared:
            beside = panels[k - k % across : k - k % across + across]
            entries = _padded(*_entries(ax, panel), max(len(p.series) for p in beside))
            parts[k].legend(*entries, loc="outside lower center", ncols=2, columnspacing=1.2, **_LEGEND)
    for ax in axes[len(panels) :]:
        ax.set_visible(False)
    if shared:
        figure.legend(*_entries(axes[0], panels[0]), loc="outside right center", **_LEGEND)
    if heading:
        figure.suptitle(_plain(heading), fontsize=11)
    if notes:
        lines = [line for n in notes for line in textwrap.wrap(_plain(n), int(15 * width))]
        figure.supxlabel("\n".join(lines), fontsize=8, color="#444444")
    return figure


def _draw_panel(ax: Axes, panel: Panel, figure: Collection[str]) -> list[str]:
    """Draw the series and the axes; returns the notes that the figure must print."""
    notes = [panel.note] if panel.note else []
    floored = False
    for s, look in zip(panel.series, curve_styles(panel.series, figure), strict=True):
        x, y = numbers(s.x.get(panel.x, [None] * len(s.y))), numbers(s.y)
        floored |= panel.y_floor is not None and bool(np.any(y < panel.y_floor))
        low, high = (None if v is None else at_floor(numbers(v), panel) for v in (s.low, s.high))
        if low is not None and high is not None:
            ax.fill_between(x, low, high, color=look.color, alpha=0.18, linewidth=0, zorder=1)
        ax.plot(x, at_floor(y, panel), **_line_style(s, look, len(y)))
    ax.set_xscale(panel.x_scale)
    ax.set_yscale(panel.y_scale)
    _dress(ax, panel.x, _plain(panel.xs.get(panel.x, panel.x)), panel.x_scale)
    ax.set_ylabel(mathtext(_plain(panel.y_label)))
    _plain_counts(ax)
    if floored:
        notes.append(f"Values below {panel.y_floor:g} are drawn at {panel.y_floor:g}.")
    return notes


def _plain_counts(ax: Axes) -> None:
    """Whole numbers, not powers of ten, on logarithmic axes over a few decades of them."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    both = (ax.xaxis, ax.get_xscale(), ax.get_xlim()), (ax.yaxis, ax.get_yscale(), ax.get_ylim())
    for axis, scale, (low, high) in both:
        if scale == "log" and low >= 5 and high < 1e3 * low:
            axis.set_major_locator(LogLocator(subs=(1.0, 1.5, 2.0, 3.0, 5.0) if high < 8 * low else (1.0, 2.0, 5.0)))
            axis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:,.0f}"))
            axis.set_minor_formatter(NullFormatter())


def at_floor(y: Array, panel: Panel) -> Array:
    """Values as they are drawn: at least the floor; nan where a logarithmic axis cannot show them."""
    if panel.y_floor is not None:
        return np.maximum(y, panel.y_floor)
    return np.where(y > 0, y, np.nan) if panel.y_scale == "log" else y


def _line_style(s: Series, look: CurveStyle, points: int) -> dict[str, Any]:
    line = _look(look, look.width, look.hollow)
    if s.kind == "points":
        line |= {"linewidth": 0.9, "markersize": 6.0, "markevery": None}
    else:
        spread = max(1, points // MARKERS_PER_CURVE)
        line["markevery"] = ((look.slot * spread) // len(PALETTE), spread)
    return line


def _entries(ax: Axes, panel: Panel) -> tuple[list[Line2D], list[str]]:
    """Lines and labels in the order of the curves' last values, bounds at the end."""
    last = [_last(numbers(s.y)) for s in panel.series]
    order = sorted(range(len(last)), key=lambda k: (panel.series[k].kind == "bound", -last[k]))
    return [ax.lines[k] for k in order], [mathtext(textwrap.fill(_plain(panel.series[k].label), 34)) for k in order]


def _padded(handles: list[Line2D], labels: list[str], count: int) -> tuple[list[Line2D], list[str]]:
    """Empty entries at the end, so that legends side by side, and the axes above them, are equally tall."""
    from matplotlib.lines import Line2D

    missing = 2 * -(-count // 2) - len(handles)
    nothing = [Line2D([], [], linestyle="none") for _ in range(missing)]
    return handles + nothing, [textwrap.fill(label.replace("\n", " "), 26) for label in labels] + [" "] * missing


def _plain(text: str) -> str:
    """Text on one line that matplotlib takes neither for mathematics nor for a hidden label."""
    shown = " ".join("".join(c if c.isprintable() else " " for c in text).split()).replace("$", r"\$")
    return f" {shown}" if shown.startswith("_") else shown


# -- files -------------------------------------------------------------------------------------------------------------
def save(figure: Figure, path: str | Path, svg: bool = False) -> list[Path]:
    """Write a PNG, and a PDF (and an SVG, if asked) beside it; equal figures give equal files."""
    import matplotlib

    target = Path(path)
    if target.suffix.lower() not in ("", ".png", ".pdf"):
        raise InputError(f"{target} must end in .png or .pdf; both are written.")
    target.parent.mkdir(parents=True, exist_ok=True)
    stem = target.with_suffix("") if target.suffix else target
    written = [stem.with_name(stem.name + ending) for ending in (".png", ".pdf", *([".svg"] if svg else []))]
    said = ({"Software": "proxskip"}, {"CreationDate": None}, {"Date": None})
    with matplotlib.rc_context({"pdf.fonttype": 42, "svg.hashsalt": "proxskip"}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing")  # the file shows a box in its place
        for file, metadata in zip(written, said, strict=False):
            figure.savefig(file, dpi=160 if file.suffix == ".png" else "figure", metadata=metadata)
    return written
