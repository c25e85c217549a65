"""The report page: one safe file, the numbers of results.json, and in Chromium what a reader does with it."""

from __future__ import annotations

import base64
import copy
import csv
import hashlib
import html
import json
import math
import re
from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from proxskip.methods.registry import title
from proxskip.report import figures, plots
from proxskip.report.document import LEVELS, MAX_POINTS, downsample, downsample_series, headline, page
from proxskip.report.figures import Claim, Experiment, Panel, ReproductionReport, Series, Table, from_json, to_json
from proxskip.report.words import finite, number, sentence
from support import chromium

AXES = ("rounds", "floats", "passes", "seconds")


# -- reports -----------------------------------------------------------------------------------------------------------
def curve(method: str, rate: float, floats: float, band: bool = False) -> Series:
    """exp(-rate r) in 80 rounds."""
    r = np.arange(81.0)
    columns = {"rounds": r, "floats": floats * r, "passes": 4 * r, "seconds": 0.01 * r}
    y = np.exp(-rate * r)
    low, high = ((y / 2).tolist(), (2 * y).tolist()) if band else (None, None)
    x = {name: v.tolist() for name, v in columns.items()}
    return Series(title(method), x, y.tolist(), method, low, high, about={"p": 0.1})


@pytest.fixture(scope="module")
def report() -> ReproductionReport:
    """Curves, a sweep with points and bounds, every verdict."""
    shown = [curve("scaffnew", 0.15, 480, band=True), curve("gd", 0.01, 480), curve("fedlin", 0.04, 960)]
    xs = {x: plots.X_AXES[x][1] for x in AXES}
    curves = Panel("a", "Error", shown, "rounds", xs, "f(x) - f*", y_floor=1e-7)
    kappa = [1e2, 1e3, 1e4]
    sweep = Panel(
        "b", "", [
            Series("gradient descent", {"kappa": kappa}, [700.0, 7100.0, 69000.0], "gd", kind="points"),
            Series("Scaffnew", {"kappa": kappa}, [95.0, None, 930.0], "scaffnew", kind="points"),  # type: ignore[list-item]
            Series("slope 1/2", {"kappa": kappa}, [100.0, 316.0, 1000.0], "scaffnew", kind="bound"),
        ], "kappa", {"kappa": "condition number"}, "rounds", x_scale="log",
    )  # fmt: skip
    long = np.arange(2000.0)
    noisy = np.exp(-long / 200) * (1 + 0.5 * np.sin(long))
    many = Panel("c", "Long", [Series("long", {"t": long.tolist()}, noisy.tolist())], "t", {"t": "t"}, "value")
    table = Table(
        "t", "Slopes", ["method", "theory", "measured"], [["gd", 1, 0.998], ["fedlin", 1, None]], "A dash: not reached."
    )
    claims = [
        Claim("one", "fig1b", "It is fast.", "PASS", "212 rounds", {"rounds": 212.0, "gap": 6.1e-8}),
        Claim("two", "fig1b", "It is slow.", "FAIL", "not slow", {"factor": 1.4999999}),
        Claim(
            "three", "table1", "It may be.", "REPORTED", "0.4971", {"slope": 0.4971, "missing": None}, "On w8a only."
        ),
        Claim("four", "fig9", "It is not here.", "INCONCLUSIVE", "too short"),
    ]
    experiments = [
        Experiment("fig1b", "Figure 1b: theoretical step sizes", "Scaffnew wins.", {"K": 100, "grid": [0.5, 1]}, "proxskip reproduce fig1b", [curves, many], notes=["The paper differs."], seconds=12.5),
        Experiment("table1", "Table 1", "Slopes.", {"eps": 1e-6}, "proxskip reproduce table1", [sweep], [table]),
    ]  # fmt: skip
    about = {"data": "digits", "rows": 1797, "kappa": 10001.0, "versions": {"proxskip": "0.1.0"}, "seconds": 75.0}
    about |= {"quick": True, "command": "proxskip reproduce --quick"}
    return ReproductionReport("A report", about, claims, experiments)


@pytest.fixture(scope="module")
def source(report: ReproductionReport) -> str:
    return page(report)


@pytest.fixture(scope="module")
def results(report: ReproductionReport) -> Any:
    return json.loads(json.dumps(finite(to_json(report)), allow_nan=False))


class Nodes(HTMLParser):
    """Tags with their attributes' names, the text between them, and the script blocks."""

    def __init__(self, source: str):
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, tuple[str, ...]]] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.words: list[str] = []
        self.blocks: dict[str, str] = {}
        self.script = ""
        self.feed(source)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, tuple(name for name, _ in attrs)))
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        self.script = (dict(attrs).get("id") or "code") if tag in ("script", "style") else ""

    def handle_data(self, data: str) -> None:
        if self.script:
            self.blocks[self.script] = self.blocks.get(self.script, "") + data
        else:
            self.words.append(data)

    def handle_endtag(self, tag: str) -> None:
        self.script = ""

    def handle_comment(self, data: str) -> None:
        self.tags.append(("comment", (data,)))


# -- one safe file -----------------------------------------------------------------------------------------------------
def test_the_page_asks_for_nothing(source: str) -> None:
    links = {v for _, name, v in Nodes(source).attributes if name == "href" and v.startswith("https:")}
    assert all(re.match(r"https://(ar5iv\.labs\.)?arxiv\.org/(abs|html)/2202\.09357(#[\w.]+)?$", v) for v in links)
    for link in links:
        source = source.replace(link, "#paper")  # what a reader may follow; nothing is loaded
    source = re.sub(r"data:image/webp;base64,[A-Za-z0-9+/=]+", "data:,", source)
    assert not re.search(
        r"https?:|//[a-z]|@import|url\((?!#)|\bfetch\(|XMLHttpRequest|WebSocket|EventSource|import\(", source
    )
    for tag, name, value in Nodes(source).attributes:
        assert name not in ("srcset", "action", "poster", "style"), (tag, name)
        assert name != "src" or (tag, value) == ("img", "data:,")
        assert not name.startswith("on")
        if name in ("href", "xlink:href"):
            assert value.startswith(("#", "figures/")) or value == "data:,"


def test_only_the_pages_own_script_and_style_may_run(source: str) -> None:
    policy = html.unescape(re.search(r'Content-Security-Policy" content="([^"]*)"', source)[1])  # type: ignore[index]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    for kind, tag in (("script-src", "script"), ("style-src", "style")):
        code = re.search(rf"<{tag}>(.*?)</{tag}>", source, re.DOTALL)[1]  # type: ignore[index]
        digest = base64.b64encode(hashlib.sha256(code.encode()).digest()).decode()
        assert f"{kind} 'sha256-{digest}'" in policy


def test_the_data_block_is_results_json(report: ReproductionReport, results: Any, source: str) -> None:
    assert page(from_json(results)) == source
    assert "Made by proxskip 0.1.0." in source
    held, whole = json.loads(Nodes(source).blocks["results"]), copy.deepcopy(results)
    assert held == finite(to_json(downsample(report)))
    thinned, long = (r["experiments"][0]["panels"].pop() for r in (held, whole))
    assert thinned["id"] == long["id"] == "c"
    assert len(thinned["series"][0]["y"]) < len(long["series"][0]["y"])
    assert held == whole


def test_no_text_can_leave_its_place(report: ReproductionReport) -> None:
    """Whatever titles, claims, labels, notes and tables say: the nodes are the same, and the data hold the text."""
    text = json.dumps(finite(to_json(report)))
    for words in ("It ", "gradient descent", "theoretical", "paper differs", "Slopes", "f(x)", "Long"):
        assert words in text
        text = text.replace(words, f"</script><img src=x onerror=x>{words}")
    bad, good = Nodes(page(from_json(json.loads(text)))), Nodes(page(report))
    assert bad.tags == good.tags
    assert not re.search("[<>]", bad.blocks["results"])
    assert json.loads(bad.blocks["results"])["claims"] == json.loads(text)["claims"]


def test_text_is_escaped_once(report: ReproductionReport) -> None:
    source = page(replace(report, title="<a & 'b'>", experiments=[]))
    assert "<h1>&lt;a &amp; &#39;b&#39;&gt;</h1>" in source
    assert finite([math.nan, math.inf, 1.5, 2.0]) == [None, None, 1.5, 2]


def test_a_report_with_nothing_in_it_is_a_page() -> None:
    nothing = Experiment("e", "E", "", {}, "", [Panel("p", "", [], "x", {}, "y")])
    assert "<h1>empty</h1>" in page(ReproductionReport("empty", {}, [], [nothing]))


# -- numbers, axes, thinning -------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("value", "shown"),
    [(212.0, "212"), (104857.0, "104,857"), (0.4971, "0.4971"), (6.2e-4, "6.2e-4"), (1.05e8, "1.05e8"), (0.0, "0"), (-0.41, "-0.41"), (9486.83, "9,487"), (math.nan, "\u2013"), (1e-300, "1e-300")],
)  # fmt: skip
def test_numbers_to_read(value: float, shown: str) -> None:
    assert number(value) == shown


@pytest.mark.parametrize("scale", ["linear", "log"])
def test_thinning_keeps_ends_extremes_and_only_measured_points(scale: Any) -> None:
    rng = np.random.Generator(np.random.Philox(1))
    x = np.arange(1.0, 20001.0)
    y = np.exp(-x / 3000) * rng.lognormal(size=len(x))
    y[[7000, 7001]] = np.nan, 1e3
    s = Series("s", {"t": x.tolist(), "2t": (2 * x).tolist()}, y.tolist(), low=(y / 2).tolist(), high=(y * 2).tolist())
    out = downsample_series(s, scale == "log")
    assert 150 < len(out.y) <= MAX_POINTS
    at = [int(v) - 1 for v in out.x["t"]]
    assert at == sorted({0, *at, len(x) - 1})
    assert out.y == [s.y[k] for k in at]
    assert out.low == [s.low[k] for k in at]  # type: ignore[index]
    assert out.x["2t"] == [2 * v for v in out.x["t"]]
    assert np.nanmax(out.y) == np.nanmax(y)
    assert np.nanmin(out.y) == np.nanmin(y)
    if scale == "linear":  # the picture's outline: the largest of every piece
        for piece in np.array_split(np.arange(1000, 19000), 12):
            kept = [s.y[k] for k in at if piece[0] <= k <= piece[-1]]
            assert max(kept) >= np.nanmax(y[piece[400:-400]])
    else:
        assert sum(v <= 100 for v in out.x["t"]) > 40


# -- in Chromium -------------------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def file(source: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("report") / "index.html"
    target.write_text(source, encoding="utf-8")
    return target


@pytest.fixture
def opened(browser: chromium.Browser) -> Iterator[Any]:
    """Opens a file in a new tab; at the end no tab has complained."""
    tabs: list[chromium.Page] = []

    def open_file(file: Path, **how: Any) -> chromium.Page:
        tabs.append(browser.page(**how))
        tabs[-1].open(file)
        tabs[-1].settle()
        return tabs[-1]

    yield open_file
    for tab in tabs:
        assert tab.messages() == []
        tab.close()


@pytest.fixture
def tab(opened: Any, file: Path) -> chromium.Page:
    return opened(file)


FIGURE = "document.querySelectorAll('figure.panel')[{}]"


def place(tab: chromium.Page, k: int) -> tuple[float, float, float, float]:
    """Scroll to the k-th figure; where its picture is."""
    tab.js("document.documentElement.style.scrollBehavior = 'auto'")
    tab.js(f"{FIGURE.format(k)}.querySelector('.chart').scrollIntoView({{block: 'center'}})")
    tab.settle()
    x, y, w, h = tab.js(
        f"(r => [r.x, r.y, r.width, r.height])({FIGURE.format(k)}.querySelector('.chart').getBoundingClientRect())"
    )
    return x, y, w, h


def readout(tab: chromium.Page, k: int) -> Any:
    """The tip's name and value, the x that is named, and each legend entry's value by the number of its series."""
    return tab.js(
        f"""(f => ({{
        open: !f.querySelector('.tip').hidden, name: f.querySelector('.tip b')?.textContent,
        value: Number(f.querySelector('.tip data')?.value), at: f.querySelector('.at').textContent,
        values: Object.fromEntries([...f.querySelectorAll('.key')].map(b => [b.dataset.k, Number(b.querySelector('.val').dataset.value)])),
        said: f.querySelector('.live').textContent }}))({FIGURE.format(k)})"""
    )


WINDOWS = [(1280, False), (360, True)] + [
    pytest.param(width, dark, marks=pytest.mark.slow)
    for width, dark in ((768, True), (360, False), (390, False), (390, True), (1400, False), (1400, True))
]


@pytest.mark.parametrize(("width", "dark"), WINDOWS)
def test_the_page_opens_without_a_word_and_fits(opened: Any, file: Path, width: int, dark: bool) -> None:
    tab = opened(file, width=width, height=800, dark=dark, touch=width < 400)
    assert tab.js("document.documentElement.scrollWidth") <= width
    beyond = "!n.closest('.scroll, .many, code, svg, .live, .skip, thead') && n.getBoundingClientRect().right > innerWidth + 1"
    assert tab.js(f"[...document.querySelectorAll('main *')].filter(n => {beyond}).length") == 0
    assert tab.requests() == [file.resolve().as_uri()]


def test_claims_in_the_page_are_those_of_results_json(tab: chromium.Page, results: Any) -> None:
    rows = tab.js(
        """[...document.querySelectorAll('tr[data-claim]')].map(r => ({ id: r.dataset.claim,
        verdict: r.querySelector('.verdict').textContent, measured: r.querySelector('.measured').textContent,
        link: r.querySelector('a')?.hash, numbers: [...r.querySelectorAll('.numbers data')].map(d => Number(d.value)) }))"""
    )
    assert [r["id"] for r in rows] == [c["id"] for c in results["claims"]]
    for row, claim in zip(rows, results["claims"], strict=True):
        assert row["verdict"] == claim["verdict"]
        assert row["measured"] == claim["measured"]
        assert row["numbers"] == [v for v in claim["numbers"].values() if v is not None]
    assert [r.get("link") for r in rows] == ["#fig1b", "#fig1b", "#table1", None]
    assert tab.js("document.querySelector('#table1 h2').textContent") == "Table 1"
    cells = tab.js(
        "[...document.querySelectorAll('#table1 td.n')].map(d => d.querySelector('data')?.value ?? d.textContent)"
    )
    assert cells == ["1", "0.998", "1", "\u2013"]
    # folded by figure, and failures are open
    groups = "[...document.querySelectorAll('#claims > details')].map(d => [d.querySelector('b').textContent, d.open])"
    assert tab.js(groups) == [["Figure 1b", True], ["Table 1", False], ["fig9", False]]


@pytest.mark.parametrize("axis", ["rounds", "floats"])
def test_hovering_shows_the_values_of_results_json(axis: str, tab: chromium.Page, results: Any) -> None:
    panel = results["experiments"][0]["panels"][0]
    tab.js(f"{FIGURE.format(0)}.querySelector('input[value={axis}]').click()")
    x, y, w, h = place(tab, 0)
    for share in (0.3, 0.6, 0.9):
        tab.point(x + share * w, y + 0.5 * h)
        tab.settle()
        read = readout(tab, 0)
        assert read["open"]
        focus = next(s for s in panel["series"] if s["label"] == read["name"])
        at = float(re.fullmatch(rf"at ([\d,]+) {axis}", read["at"])[1].replace(",", ""))  # type: ignore[index]
        assert read["value"] == focus["y"][focus["x"][axis].index(at)]
        for k, value in read["values"].items() if axis == "rounds" else ():  # which all curves have in common
            s = panel["series"][int(k)]
            assert value == s["y"][int(np.argmin(np.abs(np.array(s["x"][axis]) - at)))]
        assert axis != "rounds" or tab.js(f"[...{FIGURE.format(0)}.querySelectorAll('.dot')].length") == 3
    tab.point(5, 5)
    tab.settle()
    assert not readout(tab, 0)["open"]


def test_keys_read_values_too(tab: chromium.Page, results: Any) -> None:
    panel = results["experiments"][1]["panels"][0]
    tab.js(f"{FIGURE.format(2)}.querySelector('.chart').focus()")
    tab.press("End")
    first = readout(tab, 2)
    assert first["name"] == "gradient descent"
    assert first["value"] == panel["series"][0]["y"][-1]
    tab.press("ArrowLeft")
    assert readout(tab, 2)["value"] == panel["series"][0]["y"][-2]
    tab.press("ArrowDown")
    read = readout(tab, 2)
    assert read["name"] == "Scaffnew"
    assert read["said"].startswith("Scaffnew")
    tab.press("End")
    assert readout(tab, 2)["value"] == panel["series"][1]["y"][-1]
    tab.press("Home")
    assert readout(tab, 2)["value"] == panel["series"][1]["y"][0]
    tab.press("Escape")
    assert not readout(tab, 2)["open"]


def test_a_touch_reads_values_and_the_page_still_scrolls(opened: Any, file: Path) -> None:
    tab = opened(file, width=360, height=740, touch=True)
    x, y, w, h = place(tab, 0)
    tab.tap(x + 0.6 * w, y + 0.5 * h)
    tab.settle()
    assert readout(tab, 0)["open"]
    assert tab.js(f"getComputedStyle({FIGURE.format(0)}.querySelector('.chart')).touchAction") == "pan-y"
    box = tab.js(f"(r => [r.left, r.right])({FIGURE.format(0)}.querySelector('.tip').getBoundingClientRect())")
    assert box[0] >= 0
    assert box[1] <= 360


def contrast(a: str, b: str) -> float:
    def light(color: str) -> float:
        parts = [float(v) / 255 for v in re.findall(r"[\d.]+", color)[:3]]
        linear = [v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in parts]
        return float(np.dot(linear, (0.2126, 0.7152, 0.0722)))

    high, low = sorted((light(a), light(b)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def test_light_and_dark_by_the_system_and_by_the_button(opened: Any, file: Path) -> None:
    colors = "['body', '.facts dt', '.tick', '.at'].map(q => { const s = getComputedStyle(document.querySelector(q)); return q === '.tick' ? s.fill : s.color; })"
    badges = "[...document.querySelectorAll('.verdict')].map(n => [getComputedStyle(n).color, getComputedStyle(n).backgroundColor])"
    ground = "getComputedStyle(document.body).backgroundColor"
    for system in (True, False):
        tab = opened(file, dark=system)
        found = []
        for step in range(3):
            found.append(tab.js(ground))
            assert all(contrast(c, found[step]) >= 4.5 for c in tab.js(colors)), step
            assert all(contrast(*pair) >= 4.5 for pair in tab.js(badges)), step
            tab.js("document.querySelector('.theme').click()")
        light, dark = (found[1], found[0]) if system else (found[0], found[1])
        assert found[2] == found[0]
        assert light == "rgb(255, 255, 255)"
        assert contrast(dark, light) > 12
        tab.open(file)  # the choice is kept
        assert tab.js(ground) == found[1]


def test_without_scripts_the_figures_are_there(browser: chromium.Browser, file: Path) -> None:
    tab = browser.page(scripts=False)
    tab.open(file)
    shown = "[...document.querySelectorAll('noscript img')].map(n => n.naturalWidth > 400 && n.width > 400)"
    assert tab.js(shown) == [True, True]
    assert tab.js("document.querySelector('noscript img').alt").startswith("f(x) - f* (logarithmic) against ")
    assert tab.js("[...document.querySelectorAll('.panel')].every(n => n.getBoundingClientRect().height === 0)")
    assert tab.js("[...document.querySelectorAll('.switch, .copy, .theme')].every(n => n.hidden)")
    tab.close()


def test_the_script_writes_numbers_as_python_does_and_ticks_are_round_and_inside(tab: chromium.Page) -> None:
    values = [0.0, 1.0, 212.0, -3.5, 104857.0, 0.4971, 6.2e-4, 1.05e8, 9486.83, 1e-300, 0.001, 999.96, 1e7, 2.5e-16]
    assert tab.js(f"{values}.map(number)") == [number(v) for v in values]
    assert tab.js("[2500, 0.01, 1e-5, 999999.99999].map(short)") == ["2.5k", "0.01", "1e-5", "1M"]
    ticks = "scale([{}, {}], 0, 1, {}).ticks({})"
    linear, logarithmic = [(0.0, 612.0), (-3.0, 5.0)], [(1e-16, 0.7), (95.0, 7e4), (0.2, 0.9), (3e-5, 4e-5)]
    for log, (low, high) in [*((False, ends) for ends in linear), *((True, ends) for ends in logarithmic)]:
        shown = tab.js(ticks.format(low, high, str(log).lower(), 6))
        assert 2 <= len(shown) <= 9
        assert all(low * (1 - 1e-9) - 1e-12 <= v <= high * (1 + 1e-9) for v, _ in shown)
        assert len({label for _, label in shown}) == len(shown)
    assert [label for _, label in tab.js(ticks.format(0, 612, "false", 6))] == ["0", "200", "400", "600"]
    powers = ["10\u207b\u2076", "10\u207b\u2074", "10\u207b\u00b2", "10\u2070"]
    assert [label for _, label in tab.js(ticks.format(1e-6, 2, "true", 4))] == powers
    assert tab.js("domain([5, 10, NaN], false)") == [4.8, 10.2]
    assert tab.js("domain([1, 10], false, true)[0]") == 0


# -- the top of the page, and what acts on all figures ------------------------------------------------------------------
def test_the_headline_is_computed_from_the_run(report: ReproductionReport) -> None:
    panel = report.experiments[0].panels[0]
    ours = next(s for s in panel.series if s.method == "scaffnew")
    told = headline(report)
    level = next(v for v in LEVELS if min(ours.y) <= v)
    first = next(x for x, y in zip(ours.x["rounds"], ours.y, strict=True) if y <= level)
    assert f"= {number(level)} after {number(first)} communication rounds" in told
    best = min((s for s in panel.series if s.method not in ("", "scaffnew")), key=lambda s: s.y[-1])
    assert f"; the best of the other methods, {best.label}, " in told
    told = headline(replace(report, experiments=[]))
    assert told == "Of 4 claims, 1 pass, 1 fail, 1 are reported, 1 are inconclusive."


def test_a_page_without_claims_does_not_speak_of_them(report: ReproductionReport) -> None:
    assert "#claims" in page(report)
    bare = page(replace(report, claims=[]))
    assert '<section id="claims">' not in bare
    assert 'href="#claims"' not in bare


@pytest.mark.long
def test_the_name_of_a_curve_that_ends_early_lies_on_no_other(opened: Any, tmp_path: Path) -> None:
    x = [float(k) for k in range(0, 101)]
    short = Series("early", {"t": x[:31]}, [10.0 ** (-k / 50) for k in x[:31]])
    # they pass to the right of its end, at its height and a little above
    others = [Series(f"long {k}", {"t": x}, [10.0 ** (-0.6 - 0.02 * k)] * len(x)) for k in range(2)]
    drawn = Panel("p", "", [short, *others], "t", {"t": "t"}, "value")
    e = Experiment("e", "E", "", {}, "", [drawn])
    (tmp_path / "index.html").write_text(page(ReproductionReport("R", {}, [], [e])), encoding="utf-8")
    tab = opened(tmp_path / "index.html")
    find = "(c, t) => [...document.querySelectorAll('figure.panel ' + c)].filter(n => !t || n.textContent === t)"
    name = tab.js(f"(({find})('.end', 'early').map(n => n.getBBox())[0])['y']")
    height = tab.js(f"(({find})('.end', 'early').map(n => n.getBBox())[0])['height']")
    lines = tab.js(f"({find})('.line').slice(1).map(n => n.getBBox()['y'])")
    assert not [y for y in lines if name < y < name + height]


@pytest.mark.long
def test_axes_and_methods_are_switched_everywhere(opened: Any, report: ReproductionReport, tmp_path: Path) -> None:
    first = report.experiments[0]
    twice = replace(report, experiments=[first, replace(first, id="again", panels=first.panels[:1])])
    (tmp_path / "index.html").write_text(page(twice), encoding="utf-8")
    tab = opened(tmp_path / "index.html")
    tab.js("document.querySelector('.everywhere input[value=passes]').click()")
    tab.settle()
    labels = tab.js("[...document.querySelectorAll('figure.panel .x-label')].map(n => n.textContent)")
    assert labels == [plots.X_AXES["passes"][1], "t", plots.X_AXES["passes"][1]]
    lines = "[...document.querySelectorAll('figure.panel')].map(f => f.querySelectorAll('.series').length)"
    ends = "[...document.querySelectorAll('figure.panel')].map(f => f.querySelectorAll('.end').length)"
    assert (tab.js(lines), tab.js(ends)) == ([3, 1, 3], [3, 1, 3])  # each line has its name at its end
    for shown in ([2, 1, 2], [3, 1, 3]):
        tab.js("document.querySelector('.everywhere .key[data-method=gd]').click()")
        assert tab.js(lines) == tab.js(ends) == shown
    # the legend of one figure acts on all of them, and with Shift on its own alone
    click = "document.querySelectorAll('figure.panel')[0].querySelector('.key[data-name=\"{}\"]').dispatchEvent(new MouseEvent('click', {{shiftKey: {}}}))"
    pressed = (
        "[...document.querySelectorAll('[data-method=gd], [data-name=\"gradient descent\"]')].map(b => b.ariaPressed)"
    )
    for shown, state in (([2, 1, 2], "false"), ([3, 1, 3], "true")):
        tab.js(click.format("gradient descent", "false"))
        assert (tab.js(lines), set(tab.js(pressed))) == (shown, {state})
    tab.js(click.format("gradient descent", "true"))
    assert (tab.js(lines), tab.js(pressed)) == ([2, 1, 3], ["true", "false", "true"])


def test_a_figure_can_be_downloaded(report: ReproductionReport, source: str) -> None:
    for kind in ("svg", "pdf", "csv"):
        assert f'href="figures/fig1b.{kind}" download' in source
    rows = list(csv.DictReader(figures.to_csv(report.experiments[0]).splitlines()))
    ours = [r for r in rows if r["curve"] == "Scaffnew" and r["panel"] == "a"]
    series = next(s for s in report.experiments[0].panels[0].series if s.method == "scaffnew")
    assert [float(r["y"]) for r in ours] == series.y
    assert [float(r["floats"]) for r in ours] == series.x["floats"]


@pytest.mark.parametrize(
    ("text", "shown"), [("1e-06 and 2.5e-04", "1e-6 and 2.5e-4"), ("1e+06", "1e+6"), ("1e-10, e-06", "1e-10, e-06")]
)
def test_exponents_are_written_in_one_way(text: str, shown: str) -> None:
    assert sentence(text) == shown


def test_letters_are_typeset() -> None:
    for words, told in {
        "with gamma = 1/L f - f* falls <b>, eps too.": "with \u03b3 = 1/L f - f\u22c6 falls <b>, \u03b5 too.",
        "a gammaray and =1 with-kappa-in-it &mu;": "a gammaray and =1 with-kappa-in-it &mu;",
    }.items():
        assert html.unescape(sentence(words)) == told
    assert plots.mathtext("f(x) \N{MINUS SIGN} f*") == "$f$($x$) \N{MINUS SIGN} $f^\\star$"
    assert plots.mathtext("1/p of gamma L") == "1/$p$ of $\\gamma$ $L$"
    assert plots.mathtext("$x$ of x") == "$x$ of x"


def test_the_command_is_copied(opened: Any, file: Path) -> None:
    tab = opened(file, permissions=("clipboard-read", "clipboard-write"))
    tab.js("document.querySelector('#fig1b .copy').click()")
    tab.js("new Promise(done => setTimeout(done, 100))")
    assert tab.js("document.querySelector('#fig1b .copy').textContent") == "Copied"
    assert tab.js("navigator.clipboard.readText()") == "proxskip reproduce fig1b"
