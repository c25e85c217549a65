"""The documentation site: it builds without a warning, every link leads somewhere, and in Chromium it can be read."""

from __future__ import annotations

import ast
import functools
import importlib.util
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from importlib import import_module
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest

import proxskip
from proxskip.methods.built_in import BUILT_IN
from support import chromium

ROOT = Path(__file__).resolve().parents[2]
SITE = ROOT / "docs" / "site"
SKILL = ROOT / "src" / "proxskip" / ".agents" / "skills" / "proxskip" / "SKILL.md"
"""What programs that write code with the library are told; it is part of the package."""
QUICK = ("11_unequal_clients", "3_expensive_prox")

pytestmark = pytest.mark.timeout(900)
"""The build reads every docstring, which takes minutes on a busy machine."""


def with_the_site(test: Any) -> Any:
    """In the browser's tier even if no browser is used, so that the site is built only there, and once."""
    return pytest.mark.slow(pytest.mark.browser(pytest.mark.xdist_group("test_site")(test)))


@pytest.fixture
def site_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    """The modules of docs/site can be imported."""
    monkeypatch.syspath_prepend(str(SITE))


# -- formulas ----------------------------------------------------------------------------------------------------------
def formulas(page: Path) -> list[str]:
    """The formulas of a page in LaTeX, without its code."""
    text = re.sub(r"^```.*?^```$|`[^`\n]*`", "", page.read_text("utf-8"), flags=re.DOTALL | re.MULTILINE)
    return re.findall(r"\$\$(.+?)\$\$|\$([^$\n]+)\$", text, re.DOTALL)


def test_every_formula_becomes_mathml() -> None:
    math = pytest.importorskip("docutils.utils.math.latex2mathml")
    counts = {}
    for page in sorted((ROOT / "docs").glob("*.md")):
        found = [block or inline for block, inline in formulas(page)]
        assert all(math.tex2mathml(formula).startswith("<math") for formula in found), page
        counts[page.name] = len(found)
    assert counts["methods.md"] > 200


# -- notebooks and the gallery -----------------------------------------------------------------------------------------
def test_notebooks_are_stored_without_output() -> None:
    notebooks = list((ROOT / "examples" / "notebooks").glob("*.ipynb"))
    assert len(notebooks) == 4
    for notebook in notebooks:
        cells = json.loads(notebook.read_text("utf-8"))["cells"]
        assert all(not cell.get("outputs") for cell in cells), notebook.name


def test_scripts_of_the_gallery_begin_with_a_title_and_need_little() -> None:
    scripts = list((ROOT / "examples" / "gallery").glob("*.py"))
    assert len(scripts) >= 12
    for script in scripts:
        tree = ast.parse(script.read_text("utf-8"))
        title, underline, *_ = (ast.get_docstring(tree) or "").splitlines()
        assert underline == "=" * len(title), script.name
        roots = {
            (node.module or "").split(".")[0] if isinstance(node, ast.ImportFrom) else node.names[0].name.split(".")[0]
            for node in ast.walk(tree)
            if isinstance(node, ast.Import | ast.ImportFrom)
        }
        assert roots <= {"matplotlib", "networkx", "numpy", "proxskip", "sklearn", "torch", "warnings"}, script.name


def test_every_public_name_has_an_entry_of_the_api() -> None:
    pages = "\n".join(page.read_text("utf-8") for page in (ROOT / "docs" / "api").glob("*.md"))
    entries = set(re.findall(r"^\.\. auto\w+:: (\S+)", pages, re.MULTILINE))
    names = {f"proxskip.{name}" for name in proxskip.__all__}
    assert names <= entries, names - entries


def python_blocks(text: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


def test_what_programs_are_told_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = SKILL.read_text("utf-8")
    assert text.startswith("---\nname: proxskip\ndescription: ")
    for name in re.findall(r"\bps((?:\.[A-Za-z]\w*)+)", text):
        if not name.startswith(".torch"):
            functools.reduce(getattr, name[1:].split("."), proxskip)
    blocks, names = python_blocks(text), dict[str, Any]()
    assert len(blocks) == 12
    for block in blocks:
        if "import torch" in block:
            pytest.importorskip("torch")
        exec(block, names)


RETURNED = {"Minimum", "Plan", "Result", "RunResult", "Trace", "Trained", "Tuned"}
"""Classes that a program is handed and never names."""


def test_what_programs_are_told_names_everything_public() -> None:
    """A new name of the package, or a new function of proxskip.torch, has to be told here, or returned by one."""
    text = SKILL.read_text("utf-8")
    of_torch = (ROOT / "docs" / "api" / "proxskip-torch.md").read_text("utf-8")
    functions = set(re.findall(r"autofunction:: proxskip\.torch\.(\w+)", of_torch))
    names = (set(proxskip.__all__) | functions) - RETURNED
    assert {name for name in names if not re.search(rf"`{name}`|\bps\.(torch\.)?{name}\b", text)} == set()


@pytest.mark.usefixtures("site_modules")
def test_every_method_has_a_page_whose_code_stands_alone() -> None:
    text = (ROOT / "docs" / "methods.md").read_text("utf-8")
    pages = import_module("method_pages").pages(text)
    for kind in BUILT_IN:
        (page,) = [page for page in pages.values() if f"The fields of `ps.{kind.__name__}`" in page]
        assert all(part in page for part in ("$$", "**When to use it.**", "autoclass::", "\n## Its curve\n"))
        assert page.count("Parameters") == page.count("\n## Parameters\n") == 1, kind  # said once
        blocks = python_blocks(page.replace("```{code-cell} python\n", "```python\n"))
        assert len(blocks) >= 2, kind
        assert all("import proxskip as ps" in code for code in (blocks[0], blocks[-1])), kind


@pytest.mark.usefixtures("site_modules")
def test_both_front_pages_lead_to_what_a_newcomer_looks_for() -> None:
    named = [
        "alternatives",
        "choosing",
        "first-model",
        "messages",
        "problems",
        "start",
        "statistics",
        "torch",
        "torchrun",
    ]
    readme = (ROOT / "README.md").read_text("utf-8")
    assert [name for name in named if f"(docs/{name}.md)" not in readme] == []
    assert [name for name in named if f"({name}.md)" not in import_module("build").LINKS] == []


@pytest.mark.usefixtures("site_modules")
def test_the_contents_of_the_site_are_pages_that_exist() -> None:
    named = {name for names in import_module("contents").CONTENTS.values() for name in names}
    staged = {page.removesuffix(".md") for page in import_module("build").PROJECT.values()} - {"index"}
    ours = {page.stem for page in (ROOT / "docs").glob("*.md")} - {"index"}
    made = {"flags", "gallery/index", "notebooks/index"}
    assert named == staged | ours | made


# -- the site ----------------------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    missing = [
        name for name in ("sphinx", "myst_nb", "sphinx_gallery", "furo") if importlib.util.find_spec(name) is None
    ]
    if missing:
        pytest.skip(f"{', '.join(missing)} not installed: pip install '.[docs]'")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, str(SITE / "build.py"), "--out", str(folder / "html"), "--work", str(folder / "source")]
    env = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run([*command, "--only", *QUICK], capture_output=True, text=True, env=env, cwd=folder)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return folder / "html"


class Page(HTMLParser):
    """The links, the anchors and the files that a page loads."""

    def __init__(self, source: str):
        super().__init__()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.anchors: set[str] = {"", "top"}
        self.feed(source)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {k: v or "" for k, v in attrs}
        self.anchors |= {given[k] for k in ("id", "name") if k in given}
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        if tag in ("img", "script") and "src" in given:
            self.loaded.append(given["src"])
        if tag == "link" and given.get("rel") in ("stylesheet", "icon"):
            self.loaded.append(given["href"])


@with_the_site
def test_no_link_is_broken_and_nothing_comes_from_elsewhere(site: Path) -> None:
    pages = {path: Page(path.read_text("utf-8")) for path in site.rglob("*.html")}
    assert len(pages) > 60
    for path, page in pages.items():
        for link in (*page.links, *page.loaded):
            parts = urlsplit(link)
            if parts.scheme:
                assert parts.scheme in ("https", "data"), (path.name, link)
                assert link in page.links, (path.name, link)
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            assert target.is_file(), (path.name, link)
            if target.suffix == ".html" and target in pages:
                assert unquote(parts.fragment) in pages[target].anchors, (path.name, link)


@with_the_site
def test_methods_are_typeset_names_are_links_and_the_start_page_is_short(site: Path) -> None:
    assert sum(page.read_text("utf-8").count("<math") for page in (site / "methods").glob("*.html")) > 200
    assert 'href="api/running.html#proxskip.run"' in (site / "results.html").read_text("utf-8")
    body = re.search(r"<article.*?</article>", (site / "index.html").read_text("utf-8"), re.DOTALL)
    assert body is not None
    links = [link for link in Page(body[0]).links if not link.startswith("#")]
    assert len(links) <= 16
    assert "pip install" in re.sub(r"<[^>]*>", "", body[0])
    assert (site / "llms.txt").is_file()


@with_the_site
def test_the_gallery_has_no_card_that_cannot_run(site: Path) -> None:
    assert (site / "gallery" / "15_networks.html").is_file() == (importlib.util.find_spec("torch") is not None)


FLAGS_IN_LINES = """[...document.querySelectorAll('article p code .pre, article li code .pre, article td code .pre')]
.filter(e => e.textContent.startsWith('--')).map(e => [e.textContent, e.getBoundingClientRect().height /
parseFloat(getComputedStyle(e).fontSize)])"""


@pytest.mark.slow
@pytest.mark.parametrize("width", [390, 1400])
def test_a_flag_is_never_broken(site: Path, browser: chromium.Browser, width: int) -> None:
    page = browser.page(width, 900)
    for name in ("flags", "command-line", "choosing", "network-time"):
        page.open(site / f"{name}.html")
        flags = page.js(FLAGS_IN_LINES)
        assert flags, name
        assert [flag for flag, lines in flags if lines > 2.5] == [], name
    page.close()


@pytest.mark.slow
def test_figures_are_dark_in_dark_mode(site: Path, browser: chromium.Browser) -> None:
    page = browser.page(1400, 900, dark=True)
    for name in ("index", "gallery/index", "reproduction", "gallery/11_unequal_clients"):
        page.open(site / f"{name}.html")
        filters = page.js("[...document.querySelectorAll('article img')].map(i => getComputedStyle(i).filter)")
        assert filters, name
        assert all("invert" in value for value in filters), name
    page.close()


@pytest.fixture(scope="module")
def tab(browser: chromium.Browser) -> Iterator[chromium.Page]:
    page = browser.page(390, 844, touch=True)
    yield page
    page.close()


@pytest.mark.slow
def test_no_page_is_wider_than_a_phone(site: Path, tab: chromium.Page) -> None:
    wide = {}
    for path in sorted(site.rglob("*.html")):
        tab.open(path)
        width = tab.js("document.documentElement.scrollWidth")
        if width > 390:
            wide[path.name] = width
    assert wide == {}
    assert [m for m in tab.messages() if "search.html" not in m] == []


@pytest.mark.slow
def test_search_works_from_a_file(site: Path, tab: chromium.Page) -> None:
    tab.open(site / "search.html", "?q=drift")
    found = tab.js(
        "new Promise(done => { const t = setInterval(() => { const n = document.querySelectorAll('ul.search li').length;"
        "if (n > 2) { clearInterval(t); done(n); } }, 100); setTimeout(() => done(0), 60000); })"
    )
    assert found > 2


RACE = """(() => { const race = new Race({given}); for (let k = 0; k < {rounds}; k++) race.step();
const last = race.errors[race.round]; return [last.local, last.scaffnew, last.h, race.K]; })()"""


def race(tab: chromium.Page, rounds: int, **given: float) -> list[float]:
    return tab.js(RACE.replace("{given}", json.dumps(given)).replace("{rounds}", str(rounds)))


@pytest.mark.slow
def test_the_playground_shows_drift_and_its_cure(site: Path, tab: chromium.Page) -> None:
    tab.open(site / "examples.html")
    for n in (2, 3):
        local, scaffnew, h, _ = race(tab, 200, n=n, distance=1, p=0.2, gamma=0.9)
        assert local > 0.05  # LocalGD drifts
        assert max(scaffnew, h) < 1e-8  # Scaffnew lands on the solution, and h is learned
    assert race(tab, 200, n=2, distance=0, p=0.2, gamma=0.9)[0] < 1e-8  # no distance, no drift
    local, scaffnew, _, steps = race(tab, 300, n=2, distance=1, p=1, gamma=0.9)
    assert (max(local, scaffnew) < 1e-8, steps) == (True, 1)  # p = 1 is gradient descent
    assert race(tab, 200, n=2, distance=1, p=0.2, gamma=2.1)[0] > 1e3  # beyond 2/L
    before = tab.js("document.querySelector('#playground .said').textContent")
    tab.js("document.querySelectorAll('#playground button')[1].click()")
    assert tab.js("document.querySelector('#playground .said').textContent") != before
    tab.js(
        "(() => { const i = document.getElementById('play-p'); i.value = 0.5; i.dispatchEvent(new Event('input')); })()"
    )
    assert tab.js("document.getElementById('playground').race.p") == 0.5
    assert tab.js("document.querySelectorAll('#playground svg path').length") > 10
