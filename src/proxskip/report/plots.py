"""Traces in, figures out: run folders are read, nothing is run, and no global state of matplotlib is touched."""

from __future__ import annotations

import json
import textwrap
import warnings
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from proxskip.report.figures import Panel, Series
from proxskip.results.trace import Trace
from proxskip.types import Array, InputError

X_AXES = {
    "rounds": (("round",), "communication rounds"),
    "floats": (("floats_up", "floats_down"), "floats sent, all clients, up and down"),
    "bytes": (("bytes_up", "bytes_down"), "bytes sent, all clients, up and down"),
    "exchanges": (("exchanges",), "exchanges with the server, or gossip steps"),
    "local-steps": (("local_steps",), "local gradient steps, all clients"),
    "passes": (("passes",), "gradient passes over the data"),
    "iterations": (("iterations",), "iterations (local steps of one client)"),
    "prox": (("prox_evals",), "prox evaluations"),
    "seconds": (("seconds",), "seconds, without evaluation"),
}
"""What may stand on the x axis: the trace's columns that are added up, and the axis label."""

Y_AXES = {
    "gap": ("f(x) \N{MINUS SIGN} f*", 1e-16),
    "grad_norm": ("gradient norm at the communicated x", 1e-18),
    "lyapunov": ("Lyapunov function", 1e-32),
}
"""What may stand on the y axis: its label, and the floor at which smaller values are drawn."""

NAMES = {
    "gd": "gradient descent",
    "proxgd": "proximal gradient descent",
    "accelerated": "accelerated gradient (Nesterov)",
    "fista": "FISTA with restart",
    "local-gd": "LocalGD",
    "scaffold": "Scaffold",
    "fedlin": "FedLin",
    "s-local-gd": "S-Local-GD",
    "proxskip": "ProxSkip",
    "sproxskip": "SProxSkip",
    "scaffnew": "Scaffnew",
    "decentralized-scaffnew": "decentralized Scaffnew",
    "diging": "DIGing (gradient tracking)",
    "extra": "EXTRA",
    "splitskip": "SplitSkip",
    "pdhg": "PDHG",
}
"""Methods as a legend calls them."""

# Okabe and Ito's colours, which people with any colour vision can tell apart, and a grey; yellow is left out.
_STYLES = {
    "scaffnew": ("#D55E00", "-", "o"),
    "gd": ("#7F7F7F", "-", "s"),
    "accelerated": ("#000000", "-.", "^"),
    "fista": ("#CC79A7", ":", "D"),
    "local-gd": ("#E69F00", ":", "v"),
    "scaffold": ("#0072B2", "--", "P"),
    "fedlin": ("#009E73", "-.", "X"),
    "s-local-gd": ("#56B4E9", "--", "<"),
    "decentralized-scaffnew": ("#CC79A7", "--", "D"),
    "diging": ("#0072B2", "--", "P"),
    "extra": ("#009E73", "-.", "X"),
    "proxskip": ("#D55E00", "-", "o"),
    "proxgd": ("#7F7F7F", "-", "s"),
    "sproxskip": ("#CC79A7", "--", "D"),
    "splitskip": ("#0072B2", "--", "P"),
    "pdhg": ("#000000", "-.", "^"),
}
PALETTE = ("#D55E00", "#7F7F7F", "#000000", "#E69F00", "#0072B2", "#009E73", "#56B4E9", "#CC79A7")
"""The colours of ``_STYLES``, each once."""
_CYCLE = [next(style for style in _STYLES.values() if style[0] == color) for color in PALETTE]
_DASHES = ("-", "--", "-.", ":")
_HIGHLIGHTED = ("scaffnew", "proxskip")
_MARKERS_PER_CURVE = 8
_LEGEND: dict[str, Any] = {"frameon": False, "fontsize": 9, "handlelength": 3.2}


@dataclass(frozen=True, slots=True)
class Curve:
    """One method's runs: a trace for each seed."""

    label: str
    traces: tuple[Trace, ...]
    method: str = ""


def load_run(folder: str | Path) -> Curve:
    """The curve of one run folder, or of a folder whose ``seed-...`` folders hold the runs of one method."""
    path = Path(folder)
    if not path.is_dir():
        raise InputError(f"{path} is not a folder; give a run folder.")
    if (path / "trace.csv").is_file():
        method = _method(path)
        return Curve(NAMES.get(method, method), (Trace.from_csv(path / "trace.csv"),), method)
    seeds = [load_run(p) for p in _children(path) if p.name.startswith("seed-")]
    if not seeds:
        raise InputError(f"{path} holds no finished run (there is no trace.csv in it); give a run folder.")
    return replace(seeds[0], traces=tuple(t for s in seeds for t in s.traces))


def load_runs(folders: Sequence[str | Path]) -> list[Curve]:
    """The curves of run folders, and of folders that hold run folders; equal labels get their folder's name."""
    found = [p for folder in folders for p in _run_folders(Path(folder))]
    curves = [load_run(p) for p in found]
    labels = [c.label for c in curves]
    return [
        replace(c, label=f"{c.label} ({p.name})") if labels.count(c.label) > 1 else c
        for c, p in zip(curves, found, strict=True)
    ]


def _run_folders(path: Path) -> list[Path]:
    children = _children(path) if path.is_dir() else []
    if (path / "trace.csv").is_file() or any(_is_seed(p) for p in children):
        return [path]
    inner = [p for p in children if (p / "trace.csv").is_file() or any(_is_seed(s) for s in _children(p))]
    return inner or [path]


def _is_seed(path: Path) -> bool:
    return path.name.startswith("seed-") and (path / "trace.csv").is_file()


def _children(path: Path) -> list[Path]:
    return sorted((p for p in path.iterdir() if p.is_dir()), key=lambda p: (len(p.name), p.name))


def _method(path: Path) -> str:
    try:
        return str(json.loads((path / "summary.json").read_text(encoding="utf-8"))["method"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path / 'summary.json'} does not say which method ran ({type(error).__name__}).") from None


# -- curves ------------------------------------------------------------------------------------------------------------
def curves(runs: Sequence[Curve], x: str = "rounds", y: str = "gap", title: str = "") -> Any:
    """One panel: y on a logarithmic axis over x, for each curve the median of its seeds and a band from min to max."""
    return panels(runs, (x,), y, title)


def panels(runs: Sequence[Curve], xs: Sequence[str], y: str = "gap", title: str = "", note: str = "") -> Any:
    """Panels side by side over different x with one y axis and one legend, the worst curve first as in the picture."""
    from matplotlib.figure import Figure

    for x in xs:
        _known(x, X_AXES, "x")
    _known(y, Y_AXES, "y")
    shown = [c for c in runs if any(np.isfinite(t[y]).any() for t in c.traces)]
    if not shown:
        raise InputError(f"no run has a value of {y}; take another --y, such as grad_norm.")
    figure = Figure(figsize=(4.6 * len(xs) + 2.6, 4.1), layout="constrained")
    axes = figure.subplots(1, len(xs), sharey=True, squeeze=False)[0]
    styles = _styles(shown)
    floor = Y_AXES[y][1]
    for ax, x in zip(axes, xs, strict=True):
        for k, curve in enumerate(shown):
            _draw(ax, curve, x, y, floor, styles[k], k / len(shown))
        _dress(ax, x, X_AXES[x][1])
    axes[0].set_ylabel(Y_AXES[y][0])
    _legend(figure, axes[-1], shown, y)
    if title:
        figure.suptitle(title, fontsize=11)
    notes = [note] if note else []
    if missing := [c.label for c in runs if c not in shown]:
        notes.append(f"Without a value: {', '.join(missing)}.")
    if max(len(c.traces) for c in shown) > 1:
        notes.append("Lines are medians over the seeds, bands reach from the smallest to the largest.")
    if any(np.nanmin(t[y]) < floor for c in shown for t in c.traces if np.isfinite(t[y]).any()):
        notes.append(f"Values below {floor:g}, which rounding decides, are drawn at {floor:g}.")
    if notes:
        figure.supxlabel("\n".join(notes), fontsize=8, color="#444444")
    return figure


def median_and_band(curve: Curve, x: str, y: str, floor: float) -> tuple[Array, Array, Array, Array]:
    """(x, median, min, max) over the seeds, on the x that all seeds reached; interpolated in log y where x differs."""
    lines = [_line(t, x, y, floor) for t in curve.traces]
    lines = [(u, v) for u, v in lines if len(u)]
    end = min(u[-1] for u, _ in lines)
    grid = np.unique(np.concatenate([u for u, _ in lines]))
    grid = grid[grid <= end]
    logs = np.stack([np.interp(grid, u, v) for u, v in lines])
    return grid, *(np.exp(f(logs, axis=0)) for f in (np.median, np.min, np.max))


def _line(trace: Trace, x: str, y: str, floor: float) -> tuple[Array, Array]:
    u = np.sum([trace[column] for column in X_AXES[x][0]], axis=0)
    good = np.isfinite(trace[y])
    return u[good], np.log(np.maximum(trace[y][good], floor))


def _draw(ax: Any, curve: Curve, x: str, y: str, floor: float, style: dict[str, Any], shift: float) -> None:
    u, middle, low, high = median_and_band(curve, x, y, floor)
    spread = max(1, len(u) // _MARKERS_PER_CURVE)
    ax.semilogy(u, middle, markevery=(int(shift * spread), spread), **style)
    if len(curve.traces) > 1:
        ax.fill_between(u, low, high, color=style["color"], alpha=0.18, linewidth=0, zorder=1)


def _styles(shown: Sequence[Curve]) -> list[dict[str, Any]]:
    names = [c.method for c in shown]
    alike = len({_STYLES.get(n, ("",))[0] for n in names} - {""}) < len(names)
    out = []
    for k, name in enumerate(names):
        color, dashes, marker = _CYCLE[k % len(_CYCLE)] if alike else _STYLES[name]
        strong = name in _HIGHLIGHTED and not alike
        out.append(
            {
                "color": color,
                "linestyle": dashes,
                "marker": marker,
                "markersize": 5.0,
                "markerfacecolor": "white" if k >= len(_CYCLE) else color,
                "linewidth": 2.4 if strong else 1.5,
                "zorder": 4 if strong else 3,
            }
        )
    return out


def _dress(ax: Any, x: str, label: str, scale: str = "linear") -> None:
    from matplotlib.ticker import EngFormatter

    ax.set_xlabel(label)
    if scale == "linear":
        ax.set_xlim(left=min(0.0, ax.get_xlim()[0]) if ax.dataLim.xmin < 0 else 0.0)
    if x != "seconds" and scale == "linear":
        ax.xaxis.set_major_formatter(EngFormatter(sep=""))
    ax.grid(True, which="major", color="#DDDDDD", linewidth=0.6)
    ax.set_axisbelow(True)
    ax.spines[["top", "right"]].set_visible(False)


def _legend(figure: Any, ax: Any, shown: Sequence[Curve], y: str) -> None:
    """Outside the data, in the order in which the curves end."""
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
    """How one series is drawn: the slot decides the colour (``PALETTE``), the rest tells equal colours apart."""

    slot: int
    dashes: str
    marker: str
    width: float
    hollow: bool = False

    @property
    def color(self) -> str:
        """For light paper."""
        return PALETTE[self.slot]


def methods_in(panels: Sequence[Panel]) -> set[str]:
    """The methods that some panel of a figure shows in their own looks."""
    return {key for p in panels for key in _keys([s for s in p.series if s.kind != "bound"]) if key in _STYLES}


def curve_styles(series: Sequence[Series], figure: Collection[str] = ()) -> list[CurveStyle]:
    """Colour by the method, or by the position where one method is shown alone; bounds like what they bound.

    Args:
        figure: the methods that the whole figure shows in their own looks: series by position are hollow beside them.
    """
    measured = [s for s in series if s.kind != "bound"]
    keys = _keys(measured)
    named = {*figure, *keys} & set(_STYLES)
    slots = _slots(keys, named)
    out, seen, by_method = [], list[str](), dict[str, CurveStyle]()
    for s, key in zip(measured, keys, strict=True):
        slot, again = slots[key] % len(PALETTE), seen.count(key)
        _, dashes, marker = _STYLES[key] if key in _STYLES else _CYCLE[slot]
        strong = key in _HIGHLIGHTED and not again
        repeated = _DASHES[(_DASHES.index(dashes) + again + slots[key] // len(PALETTE)) % len(_DASHES)]
        hollow = again > 0 or slots[key] >= len(PALETTE) or (bool(named) and key not in _STYLES)
        look = CurveStyle(slot, repeated, marker, 2.4 if strong else 1.6, hollow)
        seen.append(key)
        by_method.setdefault(s.method or s.label, look)
        out.append(look)
    given, loose = iter(out), (CurveStyle(2, _DASHES[1 + k % 3], "", 1.1) for k in range(len(series)))
    return [
        next(given)
        if s.kind != "bound"
        else replace(by_method[s.method], dashes="--", marker="", width=1.1)
        if s.method in by_method
        else next(loose)
        for s in series
    ]


def _keys(measured: Sequence[Series]) -> list[str]:
    """The method of each, or its position."""
    several = len(measured) == 1 or len({s.method for s in measured}) > 1
    return [s.method if several and s.method in _STYLES else str(k) for k, s in enumerate(measured)]


def _slots(keys: Sequence[str], named: Collection[str]) -> dict[str, int]:
    """Methods keep their own colour where it is free; the others take what is left, those of no method first."""
    out: dict[str, int] = {}
    theirs = {PALETTE.index(_STYLES[name][0]) for name in named}
    order = [*sorted(range(len(PALETTE)), key=theirs.__contains__), *range(len(PALETTE), len(PALETTE) + len(keys))]
    for key in dict.fromkeys(keys):
        own = PALETTE.index(_STYLES[key][0]) if key in _STYLES else -1
        if own >= 0 and own not in out.values():
            out[key] = own
    for key in dict.fromkeys(keys):
        if key not in out:
            out[key] = next(k for k in order if k not in out.values())
    return out


def numbers(values: Sequence[float | None]) -> Array:
    """A list out of results.json, where None stands for what is not finite."""
    v = np.array([np.nan if u is None else u for u in values], dtype=np.float64)
    v[~np.isfinite(v)] = np.nan
    return v


def panel_figure(panels: Sequence[Panel], title: str = "") -> Any:
    """The panels of one experiment side by side, two in a row, each with its legend outside the data."""
    from matplotlib.figure import Figure

    if not panels:
        raise InputError("there is no panel to draw.")
    across = min(len(panels), 2)
    down = -(-len(panels) // across)
    shared = len({tuple((s.label, s.method, s.kind) for s in p.series) for p in panels}) == 1
    width = 4.9 * across + (2.6 if shared else 0.0)
    tallest = 0 if shared else max(len(p.series) for p in panels)
    figure = Figure(figsize=(width, down * (3.9 + 0.2 * -(-tallest // 2))), layout="constrained")
    # a legend below its panel has a part of the figure to itself: it takes height from the axes, and never width
    parts = [figure] if shared else figure.subfigures(down, across, squeeze=False).ravel()
    axes = [
        ax for part in parts for ax in part.subplots(*((down, across) if shared else (1, 1)), squeeze=False).ravel()
    ]
    notes: list[str] = []
    for k, (ax, panel) in enumerate(zip(axes, panels, strict=False)):
        notes += [n for n in _draw_panel(ax, panel, methods_in(panels)) if n not in notes]
        if len(panels) > 1:
            ax.set_title(textwrap.fill(_plain(panel.title), 60), fontsize=10)
        if not shared:
            beside = panels[k - k % across : k - k % across + across]
            entries = _padded(*_entries(ax, panel), max(len(p.series) for p in beside))
            parts[k].legend(*entries, loc="outside lower center", ncols=2, columnspacing=1.2, **_LEGEND)
    for ax in axes[len(panels) :]:
        ax.set_visible(False)
    if shared:
        figure.legend(*_entries(axes[0], panels[0]), loc="outside right center", **_LEGEND)
    if title:
        figure.suptitle(_plain(title), fontsize=11)
    if notes:
        lines = [line for n in notes for line in textwrap.wrap(_plain(n), int(15 * width))]
        figure.supxlabel("\n".join(lines), fontsize=8, color="#444444")
    return figure


def _draw_panel(ax: Any, panel: Panel, figure: Collection[str]) -> list[str]:
    """Draw the series and dress the axes; what the reader must be told comes back."""
    notes = [panel.note] if panel.note else []
    floored = False
    for s, look in zip(panel.series, curve_styles(panel.series, figure), strict=True):
        x, y = numbers(s.x.get(panel.x, [None] * len(s.y))), numbers(s.y)
        floored |= panel.y_floor is not None and bool(np.any(y < panel.y_floor))
        low, high = (None if v is None else _at_floor(numbers(v), panel) for v in (s.low, s.high))
        if low is not None and high is not None:
            ax.fill_between(x, low, high, color=look.color, alpha=0.18, linewidth=0, zorder=1)
        ax.plot(x, _at_floor(y, panel), **_line_style(s, look, len(y)))
    ax.set_xscale(panel.x_scale)
    ax.set_yscale(panel.y_scale)
    _dress(ax, panel.x, _plain(panel.xs.get(panel.x, panel.x)), panel.x_scale)
    ax.set_ylabel(_plain(panel.y_label))
    if floored:
        notes.append(f"Values below {panel.y_floor:g} are drawn at {panel.y_floor:g}.")
    return notes


def _at_floor(y: Array, panel: Panel) -> Array:
    """Values as they are drawn: nothing below the floor, and nothing that a logarithmic axis cannot show."""
    if panel.y_floor is not None:
        return np.maximum(y, panel.y_floor)
    return np.where(y > 0, y, np.nan) if panel.y_scale == "log" else y


def _line_style(s: Series, look: CurveStyle, points: int) -> dict[str, Any]:
    style: dict[str, Any] = {
        "color": look.color,
        "linestyle": look.dashes,
        "linewidth": look.width,
        "marker": look.marker,
        "markersize": 5.0,
        "markerfacecolor": "white" if look.hollow else look.color,
        "zorder": 4 if look.width > 2 else 3,
    }
    if s.kind == "points":
        style |= {"linewidth": 0.9, "markersize": 6.0, "markevery": None}
    else:
        spread = max(1, points // _MARKERS_PER_CURVE)
        style["markevery"] = ((look.slot * spread) // len(PALETTE), spread)
    return style


def _entries(ax: Any, panel: Panel) -> tuple[list[Any], list[str]]:
    """Lines and labels in the order in which the curves end, bounds last."""
    last = [_last(numbers(s.y)) for s in panel.series]
    order = sorted(range(len(last)), key=lambda k: (panel.series[k].kind == "bound", -last[k]))
    return [ax.lines[k] for k in order], [textwrap.fill(_plain(panel.series[k].label), 34) for k in order]


def _padded(handles: list[Any], labels: list[str], count: int) -> tuple[list[Any], list[str]]:
    """Empty entries in the end, so that legends side by side are of one height and the axes above them too."""
    from matplotlib.lines import Line2D

    missing = 2 * -(-count // 2) - len(handles)
    nothing: list[Any] = [Line2D([], [], linestyle="none") for _ in range(missing)]
    return handles + nothing, [textwrap.fill(label.replace("\n", " "), 26) for label in labels] + [" "] * missing


def _plain(text: str) -> str:
    """Text that is neither mathematics nor a hidden label to matplotlib, on one line."""
    shown = " ".join("".join(c if c.isprintable() else " " for c in text).split()).replace("$", r"\$")
    return f" {shown}" if shown.startswith("_") else shown


# -- files -------------------------------------------------------------------------------------------------------------
def save(figure: Any, path: str | Path) -> list[Path]:
    """Write a PNG and a PDF with vector text beside it; equal figures give equal files."""
    import matplotlib

    target = Path(path)
    if target.suffix.lower() not in ("", ".png", ".pdf"):
        raise InputError(f"{target} must end in .png or .pdf; both are written.")
    target.parent.mkdir(parents=True, exist_ok=True)
    stem = target.with_suffix("") if target.suffix else target
    written = [stem.with_name(stem.name + ending) for ending in (".png", ".pdf")]
    with matplotlib.rc_context({"pdf.fonttype": 42}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing")  # a box stands for it
        figure.savefig(written[0], dpi=160, metadata={"Software": "proxskip"})
        figure.savefig(written[1], metadata={"CreationDate": None})
    return written
