"""The documentation is true: its code runs, its commands parse, its links lead somewhere, its tables are complete."""

from __future__ import annotations

import dataclasses
import doctest
import importlib
import re
import runpy
import shlex
from pathlib import Path
from typing import Any

import pytest

import proxskip as ps
from conftest import module_or_skip, needs
from proxskip.cli import flags as cli_flags
from proxskip.cli import main
from proxskip.results import folder, result

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "proxskip"
PAGES = [
    *sorted(ROOT.glob("*.md")),
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "docs" / "api").glob("*.md")),
]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def blocks(page: Path, language: str) -> list[str]:
    return [code for found, code in BLOCK.findall(page.read_text("utf-8")) if found == language]


def pages_with(language: str) -> list[Any]:
    """Pages with such blocks; what needs flwr, ray or torch is skipped where it is not installed."""
    marks = {
        "docs/flower.md": [needs("flwr"), pytest.mark.flower],
        "docs/conformance.md": [pytest.mark.slow],
        "docs/ray.md": [needs("ray"), pytest.mark.ray, pytest.mark.slow],
        "docs/torch.md": [needs("torch"), pytest.mark.torch, pytest.mark.slow],
    }
    soon = ("README.md", "docs/start.md", "docs/minimize.md", "docs/adding-a-method.md", "docs/adding-an-engine.md")
    marks |= {name: [pytest.mark.slow] for name in map(name_of, PAGES) if name not in (*soon, *marks)}
    marks = marks if language == "python" else {}
    return [
        pytest.param(page, id=name_of(page), marks=marks.get(name_of(page), []))
        for page in PAGES
        if blocks(page, language)
    ]


def rows_of(page: str) -> list[list[str]]:
    """The cells of every table row of a page in docs/."""
    lines = (ROOT / "docs" / page).read_text("utf-8").splitlines()
    return [[cell.strip() for cell in line.strip().strip("|").split("|")] for line in lines if line.startswith("|")]


def letters(page: str) -> set[str]:
    """The names in backticks in the first column of a page's tables."""
    return {word for row in rows_of(page) for word in re.findall(r"`([^`]+)`", row[0])}


# -- names -------------------------------------------------------------------------------------------------------------
def test_every_parameter_column_and_field_is_explained() -> None:
    fields = {f.name for method in ps.authoring.METHODS.values() for f in dataclasses.fields(method)}
    assert fields <= letters("notation.md")
    columns = importlib.import_module("proxskip.loop.loop").COLUMNS
    assert set(columns) <= letters("notation.md") | letters("command-line.md")
    summary = ps.run("scaffnew", ps.Problem(ps.random_quadratics(2, 2)), rounds=0).summary()
    assert set(summary) <= letters("command-line.md")


@pytest.mark.parametrize("name", sorted(ps.authoring.METHODS))
def test_every_method_is_named_and_has_a_section(name: str) -> None:
    for page in ("README.md", "docs/command-line.md"):
        assert f"`{name}`" in (ROOT / page).read_text("utf-8")
    titles = " ".join(re.findall(r"^## (.*)$", (ROOT / "docs" / "methods.md").read_text("utf-8"), re.MULTILINE))
    assert name.replace("-", "") in re.sub("[- ]", "", titles.lower())


# -- code that runs ----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("page", pages_with("python"))
@pytest.mark.long
@pytest.mark.usefixtures("own_methods")
def test_python_blocks_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One page is one namespace: later blocks see the names of earlier ones."""
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "docs"}
    for number, code in enumerate(blocks(page, "python")):
        if page.name == "README.md" and "import torch" in code:
            continue  # see below
        exec(compile(code, f"{name_of(page)}, python block {number + 1}", "exec", dont_inherit=True), names)


@needs("torch")
@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
def test_the_readme_trains_a_network_with_h_and_fails_without(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MPLBACKEND", "Agg")
    (code,) = [code for code in blocks(ROOT / "README.md", "python") if "import torch" in code]
    seeded = code.replace("manual_seed(0)", f"manual_seed({seed})").replace("seed=0", f"seed={seed}")
    names: dict[str, Any] = {"__name__": "docs"}
    exec(compile(seeded, "README.md", "exec", dont_inherit=True), names)
    with_h, alone = (result.trace["accuracy"][-1] for result in names["results"].values())
    assert with_h >= 0.93
    assert alone <= 0.85


def modules_with_examples() -> list[str]:
    """Names of modules whose source has examples. They are read, not imported: a package may be missing."""
    files = sorted(path for path in SOURCE.rglob("*.py") if ">>> " in path.read_text("utf-8"))
    names = [".".join(path.relative_to(SOURCE.parent).with_suffix("").parts) for path in files]
    return [name.removesuffix(".__init__") for name in names]


@pytest.mark.parametrize("name", modules_with_examples())
def test_examples_in_docstrings_run(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    runner = doctest.DocTestRunner(verbose=False)
    for test in doctest.DocTestFinder(exclude_empty=True).find(module_or_skip(name)):
        runner.run(test)
    assert runner.summarize(verbose=False).attempted > 0
    assert runner.summarize(verbose=False).failed == 0


# -- commands that parse -----------------------------------------------------------------------------------------------
def commands(page: Path) -> list[str]:
    return [line[2:] for code in blocks(page, "console") for line in code.splitlines() if line.startswith("$ ")]


@pytest.mark.parametrize("page", pages_with("console"))
def test_commands_parse(page: Path) -> None:
    parser, _ = cli_flags.parser(ps.__version__)
    for command in commands(page):
        program, *words = shlex.split(command)
        if program == "proxskip":
            parser.parse_args(words)
        elif program == "make":
            targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)
            assert set(words) <= set(targets), command
        else:
            assert program == ".venv/bin/python", command
            assert (ROOT / words[0]).is_file(), command


@pytest.mark.parametrize("page", ["start.md", "codecs.md"])
def test_runs_and_plots_of_a_page_work_one_after_the_other(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    asked = [shlex.split(command)[1:] for command in commands(ROOT / "docs" / page)]
    asked = [words for words in asked if words[0] in ("run", "plot")]
    assert [words[0] for words in asked] == ["run", "plot"]
    for words in asked:
        few = ["--rounds", "3"] if words[0] == "run" else []  # of a flag that is given twice, the second counts
        assert main([*words, *few, "--quiet"]) == 0
    assert list(tmp_path.glob("runs/*/gap-*.png"))


def test_every_command_and_flag_is_documented() -> None:
    text = (ROOT / "docs" / "command-line.md").read_text("utf-8")
    _, subcommands = cli_flags.parser(ps.__version__)
    for name, parser in subcommands.items():
        assert re.search(rf"^\$ proxskip {name}\b", text, re.MULTILINE), name
        flags = {flag for flag in parser._option_string_actions if flag.startswith("--")} - {"--help"}
        missing = [flag for flag in flags if f"`{flag}" not in text]
        assert not missing, f"{name}: {missing}"


def test_exit_codes_are_those_of_the_help() -> None:
    helped = re.findall(r"^  (\d+) ", cli_flags.EXIT_CODES, re.MULTILINE)
    told = [row[0] for row in rows_of("command-line.md") if row[0].isdigit()]
    assert told == helped == ["0", "1", "2", "3", "4", "5", "6", "7", "130"]


def test_every_file_of_a_run_folder_and_every_status_is_documented() -> None:
    text = (ROOT / "docs" / "command-line.md").read_text("utf-8")
    for name in folder.FILES:
        assert f"`{name}`" in text
    for status in set(result.Status) - {result.Status.INEXACT}:  # which only minimize gives
        assert status.name in text


# -- links -------------------------------------------------------------------------------------------------------------
def anchors(page: Path) -> set[str]:
    """The anchors that GitHub makes of the headings."""
    prose = BLOCK.sub("", page.read_text("utf-8"))
    titles = re.findall(r"^#+ (.*)$", prose, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", [pytest.param(page, id=name_of(page)) for page in PAGES])
def test_links_lead_somewhere(page: Path) -> None:
    for link in LINK.findall(re.sub("`[^`\n]*`", "code", BLOCK.sub("", page.read_text("utf-8")))):
        if re.match(r"https://", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.is_relative_to(ROOT), link
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


def test_every_page_is_in_the_index() -> None:
    linked = LINK.findall((ROOT / "docs" / "index.md").read_text("utf-8"))
    assert {page.name for page in (ROOT / "docs").glob("*.md")} - {"index.md"} <= set(linked)


# -- the API page ------------------------------------------------------------------------------------------------------
def test_the_api_page_is_up_to_date() -> None:
    make_api = runpy.run_path(str(ROOT / "docs" / "make_api.py"))
    assert make_api["stale"]() == [], "run: python docs/make_api.py"
    assert all(len(text) < 40_000 for text in make_api["render"]().values()), "a page is too long to read"


# -- who made it -------------------------------------------------------------------------------------------------------
def test_the_version_is_one_number() -> None:
    written = re.findall(r"^version: (.*)$", (ROOT / "CITATION.cff").read_text("utf-8"), re.MULTILINE)
    changed = re.findall(r"^## \[(.*?)\]", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.MULTILINE)
    assert written == changed[:1] == [ps.__version__]
