"""The examples run on small sizes, end in a picture, and what they print about proxes is so."""

from __future__ import annotations

import re
import runpy
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from matplotlib.figure import Figure

pytestmark = pytest.mark.long

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
NAMES = sorted(path.stem for path in EXAMPLES.glob("*.py") if path.stem != "race")
ROW = re.compile(r"^(\S.*?) {2,}(\d\.\de[+-]\d+) +([\d,]+) +([\d,]+) +[\d.]+ +\d+$", re.MULTILINE)


def lines_alike(figure: Figure) -> list[str]:
    """Labels of lines of the same axes that only their colors tell apart."""
    found = []
    for ax in figure.axes:
        named = [line for line in ax.get_lines() if not str(line.get_label()).startswith("_")]
        looks = [
            (line.get_linestyle(), str(line.get_marker()), line.get_markerfacecolor() == "white") for line in named
        ]
        found += [str(line.get_label()) for line, look in zip(named, looks, strict=True) if looks.count(look) > 1]
    return found


class Took(NamedTuple):
    """A row of the last table that was printed."""

    certificate: float
    proxes: int
    gradients: int


def check_deblurring(text: str, rows: dict[str, Took]) -> None:
    assert rows["ProxGD"].proxes > 5 * rows["ProxSkip"].proxes
    assert rows["FISTA with restart"].proxes > rows["ProxSkip"].proxes
    assert rows["ProxSkip"].certificate <= 1.1 * max(rows["ProxGD"].certificate, rows["FISTA with restart"].certificate)
    assert rows["SProxSkip"].proxes < rows["SProxSkip"].gradients / 10
    assert re.search(r"A prox costs ProxSkip \d+ gradients", text)


def check_photograph(text: str, rows: dict[str, Took]) -> None:
    assert rows["APDA"].proxes < rows["FISTA with restart"].proxes
    assert re.search(r"The error fell from 1\d\.\d% to \d\.\d%", text)


def check_low_rank(text: str, rows: dict[str, Took]) -> None:
    skip = rows["ProxSkip, p = 0.1"]
    assert rows["ProxGD"].proxes > 4 * skip.proxes
    assert rows["FISTA with restart"].proxes > skip.proxes
    (told,) = re.findall(r"ProxSkip takes ([\d.]+) times fewer proxes than ProxGD", text)
    assert float(told) == pytest.approx(rows["ProxGD"].proxes / skip.proxes, abs=0.06)


def check_shape_regression(text: str, rows: dict[str, Took]) -> None:
    assert rows["ProxGD"].proxes > 2 * rows["ProxSkip"].proxes
    assert rows["FISTA"].proxes > rows["ProxSkip"].proxes
    assert "without arriving" in text or rows["ProxSkip"].certificate <= 2 * rows["ProxGD"].certificate


def check_fused_lasso(text: str, rows: dict[str, Took]) -> None:
    first, second = re.findall(r"SplitSkip makes ([\d.]+) times fewer exchanges than PAPC", text)
    assert float(first) > 1
    assert float(second) > 5
    assert max(float(v) for v in re.findall(r"the two points differ by ([\d.e+-]+)\.", text)) < 1e-2


def check_stochastic(text: str, rows: dict[str, Took]) -> None:
    told = dict(re.findall(r"^\| (\w.*?) \| (\d+|never) \|", text, re.MULTILINE))
    assert int(told["SProxSkip"]) < int(told["FISTA with restart"])
    assert told["ProxSGD"] == "never" or int(told["SProxSkip"]) < int(told["ProxSGD"]) / 5
    assert re.search(r"A prox costs SProxSkip \d+ gradients of a minibatch", text)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_an_example_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """With --small: it ends in a picture whose lines can be told apart, and what it prints is so."""
    if name in ("deblurring", "photograph"):
        pytest.importorskip("skimage", reason="scikit-image, which has the photograph, is not installed")
    picture, save = tmp_path / "deep" / f"{name}.png", Figure.savefig

    def checked(figure: Figure, *given: Any, **more: Any) -> None:
        assert lines_alike(figure) == []
        save(figure, *given, **more)

    monkeypatch.setattr(Figure, "savefig", checked)
    monkeypatch.setattr(sys, "argv", [f"{name}.py", "--small", "--out", str(picture)])
    monkeypatch.syspath_prepend(str(EXAMPLES))
    monkeypatch.setitem(sys.modules, "race", None)  # so that it is forgotten after the test
    monkeypatch.delitem(sys.modules, "race")
    runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
    assert picture.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    assert 10_000 < picture.stat().st_size < 300_000
    text = capsys.readouterr().out
    rows = {k: Took(float(c), *(int(v.replace(",", "")) for v in counts)) for k, c, *counts in ROW.findall(text)}
    globals()[f"check_{name}"](text, rows)


@pytest.mark.parametrize("name", NAMES)
def test_every_example_is_told(name: str) -> None:
    docs = EXAMPLES.parent / "docs"
    assert f"examples/{name}.py" in (docs / "examples.md").read_text("utf-8")
    assert (docs / f"{name}.png").stat().st_size < 300_000
