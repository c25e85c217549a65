"""The family on two axes: who wins where, the Pareto front, and a small run of it."""

from __future__ import annotations

import math
import multiprocessing
import os
import re
import signal
import time
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

import proxskip as ps
from proxskip import experiments
from proxskip.cli.commands import main
from proxskip.experiments import family
from proxskip.experiments.curves_from_runs import panel, series
from proxskip.experiments.family import Tried
from proxskip.experiments.workspace import RunRequest, Workspace
from proxskip.processes import Processes
from proxskip.registry import METHODS
from proxskip.report import plots


def tried(method: str, rounds: float | None, gradients: float | None, proved: bool = True) -> Tried:
    return Tried(method, "", {"rounds": rounds, "gradients": gradients}, proved, {})


def best_of(*runs: Tried) -> Any:
    return {axis: family.winners(runs, axis) for axis in family.AXES}


def test_nobody_on_the_front_is_beaten_on_both_axes() -> None:
    points = [(1.0, 9.0), (2.0, 5.0), (2.0, 6.0), (3.0, 5.0), (4.0, 1.0), (5.0, 2.0)]
    assert family.pareto(points) == [(1.0, 9.0), (2.0, 5.0), (4.0, 1.0)]


def test_each_axis_has_winners_of_its_own_in_and_outside_the_theorem() -> None:
    best = best_of(tried("5gcs", 10, 90), tried("5gcs", 30, 30), tried("5gcs", 5, 200, False), tried("gd", None, None))
    assert set(best["rounds"]) == {("5gcs", True), ("5gcs", False)}, "who did not get there wins nothing"
    assert best["rounds"]["5gcs", True].cost("rounds") == 10
    assert best["gradients"]["5gcs", True].cost("rounds") == 30
    assert family.least(best, "5gcs", "rounds") == 5
    assert family.least(best, "gd", "rounds") == math.inf


@pytest.mark.parametrize(("mine", "theirs", "verdict"), [(3, 4, "PASS"), (4, 3, "FAIL"), (4, None, "PASS")])
def test_who_did_not_get_there_within_the_limits_needs_more(mine: float, theirs: float | None, verdict: str) -> None:
    best = best_of(tried("5gcs", mine, 1), tried("accelerated", theirs, None if theirs is None else 1))
    assert family.fewer("digits", best, "5gcs", "accelerated", "rounds").verdict == verdict


def test_every_method_for_clients_takes_part_with_the_same_budget() -> None:
    problem = ps.Problem(ps.random_quadratics(3, 4))
    names = family.members()
    assert {"gd", "accelerated", "fista", "scaffold", "fedlin", "s-local-gd", "scaffnew", "5gcs"} <= set(names)
    for name in names:
        found = family.grid(name, problem, 4)
        assert 1 <= len(found) <= 4
        assert [g for k, g in enumerate(found) if g in found[:k]] == []


@pytest.mark.slow
def test_a_small_run_draws_a_panel_and_judges(tmp_path: Path) -> None:
    preset = experiments.preset("family", quick=True) | {"candidates": 1, "rounds": 60, "iterations": 200, "eps": 0.1}
    made, found = family.run(Workspace(tmp_path, "digits", preset=preset, threads=1))
    assert [p.id for p in made.panels] == ["digits-rounds-gradients"]
    assert made.panels[0].series[-1].label == "Pareto front"
    assert [c.id for c in found] == ["family-digits-rounds", "family-digits-gradients", "family-digits-front"]


def test_the_other_data_sets_belong_to_w8a(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    seen: list[str] = []
    monkeypatch.setattr(family, "on_data", lambda workspace, data: seen.append(data) or [tried("gd", 1, 1)])
    for data in ("w8a", "digits", "my.svm"):
        family.run(Workspace(tmp_path, data, preset=experiments.preset("family")))
    assert seen == ["w8a", "mushrooms", "a1a", "digits", "digits", "my.svm"]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "claims"), [("bits", 2), ("sleeping", 1), ("minibatches", 1)])
def test_what_the_others_save(name: str, claims: int, tmp_path: Path) -> None:
    preset = experiments.preset(name, quick=True)
    made, found = experiments.function(name)(Workspace(tmp_path, "digits", preset=preset, threads=1))
    assert [c.verdict for c in found] == ["PASS"] * claims, [c.measured for c in found]
    assert {"rounds", *(("bits-up", "bits-down") if name == "bits" else ())} <= set(made.panels[0].xs)


def test_a_curve_of_the_report_has_the_bits_of_its_run(tmp_path: Path) -> None:
    flags, stop = {"clients": 4, "weights": "equal"}, {"rounds": 5, "every": 1}
    job = RunRequest("LoCoDL", "locodl", {"codec": "rand-2+natural"}, flags, stop)
    (run,) = Workspace(tmp_path, "digits", threads=1).runs([job])
    drawn = panel("bits", "", [series("LoCoDL", [run])], "bits-up")
    (curve,) = drawn.series
    assert curve.x["bits-up"] == [4 * 18 * r for r in range(6)]
    assert curve.x["bits-down"][-1] == run.summary["bits_down"]
    assert "bits sent to the server" in plots.panel_figure([drawn]).axes[0].get_xlabel()


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


def test_what_no_theorem_covers_is_hollow() -> None:
    panel = family.draw("digits", best_of(tried("5gcs", 10, 90, False), tried("gd", 30, 30)), 1e-6)
    assert [look.hollow for look in plots.curve_styles(panel.series)[:2]] == [True, False]


def test_the_family_has_experiments_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", "fig1a", "--family", "--out", "nowhere"]) == 2
    assert "give no names" in capsys.readouterr().err
