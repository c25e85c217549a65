"""The experiments that compare the methods with each other, and the processes that share their runs."""

from __future__ import annotations

import multiprocessing
import os
import re
import signal
import time
from importlib.resources import files
from pathlib import Path

import pytest

from proxskip.experiments.bench import Bench
from proxskip.experiments.catalog import experiment
from proxskip.processes import Processes
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


def interrupted(item: Path) -> None:
    if item.name == "first":
        while not item.with_name("begun").exists():
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)
    item.with_name("begun").touch()
    try:
        time.sleep(60)
    finally:
        time.sleep(1)  # a checkpoint is written, and the broken pool tells its processes to end once more
        item.with_name("written").touch()


@pytest.mark.slow
def test_an_interrupt_ends_the_processes(tmp_path: Path) -> None:
    before = set(multiprocessing.active_children())
    with pytest.raises(KeyboardInterrupt), Processes(2) as pool:
        list(pool.each(interrupted, [tmp_path / "first", tmp_path / "second"]))
    deadline = time.monotonic() + 60  # the pool's own thread waits for them too, so that join has no answer
    while set(multiprocessing.active_children()) - before:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert (tmp_path / "written").exists()


def test_every_method_has_a_marker_on_the_page() -> None:
    script = files("proxskip.report").joinpath("page.js").read_text("utf-8")
    shapes = re.search(r"const SHAPES = \{(.*?)\n\};", script, re.DOTALL)[1]  # type: ignore[index]
    markers = set(re.findall(r'^  "?(.)"?: ', shapes, re.MULTILINE))
    assert {kind.about.style.marker for kind in METHODS.values() if kind.about.style} <= markers
