"""Figures are pure functions of traces."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from proxskip.methods import registry
from proxskip.methods.registry import METHODS, title
from proxskip.report import plots
from proxskip.report.figures import Panel, Series
from proxskip.report.plots import CYCLE, style
from proxskip.results.trace import Trace
from proxskip.types import InputError

pytestmark = pytest.mark.long

COLUMNS = tuple({c: None for names, _ in plots.X_AXES.values() for c in names} | dict.fromkeys(plots.Y_AXES))


def trace(gaps, pace=1.0, **other) -> Trace:
    made = Trace(COLUMNS)
    for r, gap in enumerate(gaps):
        row = dict.fromkeys(COLUMNS, pace * r) | {"round": r, "gap": gap, "grad_norm": abs(gap), "lyapunov": gap**2}
        made.append(row | other)
    return made


def group(*traces, method=""):
    """The runs of one setting, as far as a figure reads them."""
    return [SimpleNamespace(trace=t, summary={"method": method}, success=False) for t in traces]


def figure_of(curves, x="rounds", y="gap", heading=""):
    return plots.panel_figure(plots.curve_panels(curves, (x,), y), heading)


DECAY = 0.5 ** np.arange(30)


def test_every_method_has_a_name_and_a_style_of_its_own():
    assert all(title(m) != m and style(m) for m in METHODS)
    assert title("new-method") == "new-method"
    assert style("new-method") is None
    federated = [m for m in METHODS if "clients" in METHODS[m].about.handles and m != "proxgd"]
    gossip = [m for m in federated if "graph" in METHODS[m].about.handles]
    for group in ([m for m in federated if m not in gossip], gossip):
        assert len({style(m).marker for m in group}) == len(group)
    assert len(CYCLE) == len({look.marker for look in CYCLE})


def test_a_method_has_one_color_in_all_figures():
    alone = {m: plots.curve_styles([line(m, m)])[0].color for m in METHODS}
    together = plots.curve_styles([line(m, m) for m in METHODS])
    assert alone == {m: style(m).color for m in METHODS} == dict(zip(METHODS, [s.color for s in together], strict=True))


def test_a_plugin_without_a_style_takes_a_color_that_no_method_has(monkeypatch):
    plain = type("Plain", (METHODS["scaffnew"],), {"about": replace(METHODS["scaffnew"].about, style=None)})
    others = [style(m).color for m in METHODS]
    monkeypatch.setattr(registry, "METHODS", {**METHODS, "plain": plain, "other": plain})
    found = plots.curve_styles([line(m, m) for m in ("plain", "scaffnew", "other")] + [line("nameless")])
    assert len({look.color for look in found}) == 4
    assert {look.color for look in found} & set(others) == {style("scaffnew").color}
    assert plots.curve_styles([line("alone", "other")])[0].color == found[2].color


def test_curves_are_semilogarithmic_and_labelled():
    runs = {"Scaffnew": group(trace(DECAY), method="scaffnew"), "GD": group(trace(DECAY**0.2), method="gd")}
    figure = figure_of(runs, "floats", "gap", "a title")
    (ax,) = figure.axes
    assert ax.get_yscale() == "log"
    assert ax.get_xlabel() == "floats sent, all clients, up and down"
    assert ax.get_ylabel() == plots.mathtext("f(x) \N{MINUS SIGN} f*")
    x, y = ax.lines[0].get_data()
    assert np.allclose(x, 2.0 * np.arange(30))
    assert np.allclose(y, DECAY, rtol=1e-12)
    (legend,) = figure.legends
    assert [t.get_text() for t in legend.get_texts()] == ["GD", "Scaffnew"]
    assert len({line.get_color() for line in ax.lines}) == 2
    assert "below" not in figure.get_supxlabel()


@pytest.mark.parametrize("x", plots.X_AXES)
def test_every_pair_of_axes(x):
    for y in plots.Y_AXES:
        assert len(figure_of({"a": group(trace(DECAY))}, x, y).axes[0].lines) == 1


def test_a_gap_of_zero_or_less_is_drawn_at_a_floor_that_is_stated():
    figure = figure_of({"a": group(trace([1.0, 1e-20, 0.0, -1e-17]))})
    y = figure.axes[0].lines[0].get_ydata()
    assert np.allclose(y, [1.0, 1e-16, 1e-16, 1e-16])
    assert "below 1e-16" in figure.get_supxlabel()


def test_seeds_make_a_median_and_a_band():
    runs = {"a": group(*(trace(c * DECAY) for c in (1.0, 4.0, 2.0)))}
    (drawn,) = plots.curve_panels(runs, ["rounds"])[0].series
    assert drawn.x["rounds"] == list(range(30))
    for line, factor in ((drawn.y, 2.0), (drawn.low, 1.0), (drawn.high, 4.0)):
        assert np.allclose(line, factor * DECAY)
    figure = figure_of(runs)
    assert len(figure.axes[0].collections) == 1
    assert "medians over the seeds" in figure.get_supxlabel()
    # of costs that differ too, the median of each round
    runs = {"a": group(trace(DECAY), trace(DECAY, pace=2.0))}
    (drawn,) = plots.curve_panels(runs, ["iterations"])[0].series
    assert np.allclose(drawn.x["iterations"], 1.5 * np.arange(30))
    assert np.allclose(drawn.y, DECAY)
    # records without a value are left out, and a run that has arrived stays there
    gappy = np.where(np.arange(30) % 2 == 0, DECAY, np.nan)
    runs = {"a": [*group(trace(gappy), trace(DECAY)), *group(trace(DECAY[:11]))]}
    runs["a"][2].success = True
    (drawn,) = plots.curve_panels(runs, ["iterations"])[0].series
    assert drawn.x["iterations"] == list(range(0, 29, 2))
    assert drawn.high[-1] == DECAY[10]
    assert drawn.y[-1] == drawn.low[-1] == DECAY[28]


def test_curves_without_a_value_are_left_out_and_none_is_refused():
    unknown = {"unknown": group(trace(DECAY, gap=np.nan))}
    figure = figure_of({"a": group(trace(DECAY)), **unknown})
    assert len(figure.axes[0].lines) == 1
    assert figure.get_supxlabel() == "Not shown, for lack of values: unknown."
    with pytest.raises(InputError, match="no run has values of gap"):
        figure_of(unknown)
    with pytest.raises(InputError, match='x = "time" cannot be drawn'):
        figure_of(unknown, x="time")


@pytest.mark.slow
def test_save_writes_png_and_pdf_the_same_every_time(tmp_path):
    runs = {"Scaffnew": group(trace(DECAY), method="scaffnew")}

    def saved(name):
        panels = plots.curve_panels(runs, ("rounds", "floats"))
        return plots.save(plots.panel_figure(panels, "t"), tmp_path / name)

    first, again = saved("a.b.png"), saved("again")
    assert [p.name for p in (*first, *again)] == ["a.b.png", "a.b.pdf", "again.png", "again.pdf"]
    for p, q in zip(first, again, strict=True):
        assert p.read_bytes() == q.read_bytes()
    with pytest.raises(InputError, match="must end in"):
        saved("a.svg")


# -- panels of a report ------------------------------------------------------------------------------------------------
def line(label, method="", kind="line", y=(1.0, 0.1, 0.01), **more) -> Series:
    return Series(label, {"r": [1.0, 2.0, 3.0], "s": [2.0, 4.0, 6.0]}, list(y), method, kind=kind, **more)


def panel(*series: Series, **more) -> Panel:
    return Panel("id", "a title", list(series), "r", {"r": "rounds", "s": "seconds"}, "error", **more)


def test_a_series_looks_like_its_method_and_a_bound_like_what_it_bounds():
    bounds = [line("c", "fedlin", "bound"), line("d", "", "bound"), line("e", kind="bound")]
    found = plots.curve_styles([line("a", "fedlin"), line("b", "scaffnew"), *bounds])
    assert [look.color for look in found[:3]] == [style("fedlin").color, style("scaffnew").color, style("fedlin").color]
    assert found[1].width > found[0].width > found[2].width
    assert found[2].dashes == found[3].dashes == "--" != found[4].dashes
    assert plots.curve_styles([line("a", "local-gd")])[0].color == style("local-gd").color
    # beside methods, what has no name has hollow markers
    named = panel(line("a", "scaffnew"), line("b", "fedlin"), line("c"))
    assert [look.hollow for look in plots.curve_styles(named.series)] == [False, False, True]
    assert not any(look.hollow for look in plots.curve_styles([line("a"), line("b")]))


@pytest.mark.parametrize(
    "methods",
    [
        ["scaffnew"] * 8, [""] * 8, list(METHODS), ["fedlin", "extra", "scaffold", "diging"],
        ["scaffnew", "scaffnew", "gd", "gd"], ["x", "y"], [""] * 14,
    ],
)  # fmt: skip
def test_no_two_series_of_a_panel_look_the_same(methods):
    found = plots.curve_styles([line(str(k), m) for k, m in enumerate(methods)])
    assert len({(look.color, look.dashes, look.hollow) for look in found}) == len(methods)
    several = len(set(methods)) > 1
    assert len({look.color for look in found}) == (len(set(methods)) if several else min(len(methods), len(CYCLE)))


def test_a_panel_is_drawn_as_it_says():
    band = line("a", low=[0.5, 0.05, 0.005], high=[2.0, 0.2, 0.02])
    figure = plots.panel_figure([panel(band, line("b", kind="bound"), y_floor=0.05, note="A note.")], "Whole")
    ax = figure.axes[0]
    assert [ax.get_xlabel(), ax.get_ylabel(), ax.get_yscale(), ax.get_xscale()] == ["rounds", "error", "log", "linear"]
    assert ax.lines[0].get_ydata().tolist() == [1.0, 0.1, 0.05]
    assert ax.get_xlim()[0] == 0.0
    assert len(ax.collections) == 1
    assert "A note." in figure.get_supxlabel()
    assert "Values below 0.05 are drawn at 0.05." in figure.get_supxlabel()
    assert figure.get_suptitle() == "Whole"
    assert [t.get_text() for t in figure.legends[0].get_texts()] == ["a", "b"]


def test_panels_stand_two_in_a_row_with_legends_of_their_own_where_they_differ():
    same = [panel(line("a"), line("b"), x_scale="log") for _ in range(3)]
    assert len(plots.panel_figure(same).legends) == 1
    figure = plots.panel_figure([*same, panel(line("c"))])
    assert figure.legends == []
    assert [[t.get_text() for t in ax.get_legend().get_texts()] for ax in figure.axes] == [["a", "b"]] * 3 + [["c"]]
    figure.draw_without_rendering()
    boxes = [ax.get_window_extent() for ax in figure.axes]
    assert all(box.width > 0.3 * figure.bbox.width for box in boxes)
    assert boxes[2].y0 == pytest.approx(boxes[3].y0, abs=5)
    assert figure.axes[0].get_title() == "a title"
    assert figure.axes[0].get_xscale() == "log"
    with pytest.raises(InputError, match="no panel"):
        plots.panel_figure([])


def test_what_is_missing_or_strange_is_drawn_around(tmp_path):
    strange = ["$x^2", "_hidden", "a\nb\u202e", "\u4e2d\U0001f600", "$\\frac$", ""]
    series = [line(name, y=(None, float("nan"), 0.1)) for name in strange]
    odd = Series("no such axis", {}, [1.0, 2.0])
    figure = plots.panel_figure([panel(*series, odd, line("negative", y=(-1.0, 0.0, 1.0)))], "$t$ _")
    plots.save(figure, tmp_path / "f")
    assert np.isnan(figure.axes[0].lines[0].get_ydata()[:2].astype(float)).all()
    assert np.isnan(figure.axes[0].lines[-1].get_ydata()[:2].astype(float)).all()


# Machado, Oliveira, Fernandes (2009), severity 1: what dichromats see, in linear RGB
SEEN_BY = {
    "everybody": np.eye(3),
    "protanopes": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopes": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "tritanopes": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}


def lab(rgb):
    """CIELAB of linear RGB, where a distance of 2.3 is just noticed."""
    to_xyz = np.array([[0.4125, 0.3576, 0.1804], [0.2127, 0.7152, 0.0722], [0.0193, 0.1192, 0.9503]])
    t = to_xyz @ np.clip(rgb, 0, 1) / np.array([0.9505, 1.0, 1.0888])
    x, y, z = np.where(t > 0.008856, np.cbrt(t), 7.787 * t + 16 / 116)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


@pytest.mark.parametrize("who", SEEN_BY)
def test_any_color_vision_tells_all_colors_apart(who):
    colors = [look.color for look in (*(style(m) for m in METHODS), *CYCLE)]
    values = np.array([[int(color[k : k + 2], 16) / 255 for k in (1, 3, 5)] for color in colors])
    linear = np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)
    seen = [lab(np.asarray(SEEN_BY[who]) @ color) for color in linear]
    apart = [np.linalg.norm(a - b) for k, a in enumerate(seen) for b in seen[:k]]
    assert min(apart) > 9
