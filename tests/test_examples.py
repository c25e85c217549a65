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

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
ROW = re.compile(r"^(\S.*?) {2,}(\d\.\de[+-]\d+) +([\d,]+) +([\d,]+) +[\d.]+ +\d+$", re.MULTILINE)
lines_alike = runpy.run_path(str(EXAMPLES.parent / "docs" / "site" / "gallery.py"))["lines_alike"]
PNG = b"\x89PNG\r\n\x1a\n"


class Took(NamedTuple):
    certificate: float
    proxes: int
    gradients: int


class Run(NamedTuple):
    text: str
    picture: bytes

    @property
    def rows(self) -> dict[str, Took]:
        """The last table that was printed."""
        return {k: Took(float(c), whole(n), whole(g)) for k, c, n, g in ROW.findall(self.text)}


def whole(text: str) -> int:
    return int(text.replace(",", ""))


@pytest.fixture
def example(tmp_path, monkeypatch, capsys):
    """Run one with --small: what it prints, and its picture."""

    def run(name: str) -> Run:
        out = tmp_path / "deep" / f"{name}.png"
        save = Figure.savefig

        def checked(figure: Figure, *given: Any, **more: Any) -> None:
            assert lines_alike(figure) == []
            save(figure, *given, **more)

        monkeypatch.setattr(Figure, "savefig", checked)
        monkeypatch.setattr(sys, "argv", [f"{name}.py", "--small", "--out", str(out)])
        monkeypatch.syspath_prepend(str(EXAMPLES))
        monkeypatch.delitem(sys.modules, "race", raising=False)
        runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
        return Run(capsys.readouterr().out, out.read_bytes())

    yield run
    sys.modules.pop("race", None)


def check_picture(picture: bytes) -> None:
    assert picture.startswith(PNG)
    assert 10_000 < len(picture) < 300_000


def test_every_example_is_tested_and_told() -> None:
    names = {path.stem for path in EXAMPLES.glob("*.py")} - {"race"}
    told = (EXAMPLES.parent / "docs" / "examples.md").read_text("utf-8")
    for name in names:
        assert f"test_{name}" in globals()
        assert f"examples/{name}.py" in told
        assert (EXAMPLES.parent / "docs" / f"{name}.png").stat().st_size < 300_000


@pytest.mark.slow
def test_deblurring(example) -> None:
    pytest.importorskip("skimage", reason="scikit-image, which has the photograph, is not installed")
    run = example("deblurring")
    check_picture(run.picture)
    rows = run.rows
    assert rows["ProxGD"].proxes > 5 * rows["ProxSkip"].proxes
    assert rows["FISTA with restart"].proxes > rows["ProxSkip"].proxes
    assert rows["ProxSkip"].certificate <= 1.1 * max(rows["ProxGD"].certificate, rows["FISTA with restart"].certificate)
    assert rows["SProxSkip"].proxes < rows["SProxSkip"].gradients / 10
    assert re.search(r"A prox costs ProxSkip \d+ gradients", run.text)


@pytest.mark.slow
def test_photograph(example) -> None:
    pytest.importorskip("skimage", reason="scikit-image, which has the photograph, is not installed")
    run = example("photograph")
    check_picture(run.picture)
    rows = run.rows
    assert rows["APDA"].proxes < rows["FISTA with restart"].proxes
    assert re.search(r"The error fell from 1\d\.\d% to \d\.\d%", run.text)


@pytest.mark.slow
def test_low_rank(example) -> None:
    run = example("low_rank")
    check_picture(run.picture)
    rows, skip = run.rows, run.rows["ProxSkip, p = 0.1"]
    assert rows["ProxGD"].proxes > 4 * skip.proxes
    assert rows["FISTA with restart"].proxes > skip.proxes
    told = re.search(r"ProxSkip takes ([\d.]+) times fewer proxes than ProxGD", run.text)
    assert told is not None
    assert float(told[1]) == pytest.approx(rows["ProxGD"].proxes / skip.proxes, abs=0.06)


@pytest.mark.slow
def test_shape_regression(example) -> None:
    run = example("shape_regression")
    check_picture(run.picture)
    rows = run.rows
    assert rows["ProxGD"].proxes > 2 * rows["ProxSkip"].proxes
    assert rows["FISTA"].proxes > rows["ProxSkip"].proxes
    assert "without arriving" in run.text or rows["ProxSkip"].certificate <= 2 * rows["ProxGD"].certificate


@pytest.mark.slow
def test_fused_lasso(example) -> None:
    run = example("fused_lasso")
    check_picture(run.picture)
    told = re.findall(r"SplitSkip makes ([\d.]+) times fewer exchanges than PAPC", run.text)
    assert len(told) == 2
    assert float(told[0]) > 1
    assert float(told[1]) > 5
    apart = [float(v) for v in re.findall(r"the two points differ by ([\d.e+-]+)\.", run.text)]
    assert max(apart) < 1e-2


@pytest.mark.slow
def test_stochastic(example) -> None:
    run = example("stochastic")
    check_picture(run.picture)
    rows = dict(re.findall(r"^\| (\w.*?) \| (\d+|never) \|", run.text, re.MULTILINE))
    assert int(rows["SProxSkip"]) < int(rows["FISTA with restart"])
    assert rows["ProxSGD"] == "never" or int(rows["SProxSkip"]) < int(rows["ProxSGD"]) / 5
    assert re.search(r"A prox costs SProxSkip \d+ gradients of a minibatch", run.text)
