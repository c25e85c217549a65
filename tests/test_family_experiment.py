"""The experiments that compare the methods with each other."""

from __future__ import annotations

import re
from importlib.resources import files
from pathlib import Path

import pytest

from proxskip.experiments.bench import Bench
from proxskip.experiments.catalog import experiment
from proxskip.registry import METHODS


@pytest.mark.slow
@pytest.mark.parametrize(("name", "claims"), [("family", 2), ("bits", 2), ("sleeping", 2), ("minibatches", 1)])
def test_what_the_others_save(name: str, claims: int, tmp_path: Path) -> None:
    made, verdicts = experiment(name).make(Bench(tmp_path, "digits", quick=True, threads=1))
    assert [c.verdict for c in verdicts] == ["PASS"] * claims, [c.measured for c in verdicts]
    assert {"rounds", *(("bits-up", "bits-down") if name == "bits" else ())} <= set(made.panels[0].xs)
    if name == "family":  # one point for each curve that reached eps
        curves, costs = made.panels
        ends = {
            s.label: (s.x["rounds"][-1], s.x["passes"][-1]) for s in curves.series if s.y[-1] <= made.parameters["eps"]
        }
        assert {s.label: (s.x["rounds"][0], s.y[0]) for s in costs.series} == ends


def test_every_method_has_a_marker_on_the_page() -> None:
    script = files("proxskip.report").joinpath("page.js").read_text("utf-8")
    shapes = re.search(r"const SHAPES = \{(.*?)\n\};", script, re.DOTALL)[1]  # type: ignore[index]
    markers = set(re.findall(r'^  "?(.)"?: ', shapes, re.MULTILINE))
    assert {kind.about.style.marker for kind in METHODS.values() if kind.about.style} <= markers
