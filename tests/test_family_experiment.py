"""The family on two axes: who wins where, the Pareto front, and a small run of it."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

import proxskip as ps
from proxskip import experiments
from proxskip.cli.commands import main
from proxskip.experiments import family
from proxskip.experiments.family import Tried
from proxskip.experiments.workspace import Workspace


def tried(method: str, rounds: float | None, gradients: float | None, proved: bool = True) -> Tried:
    return Tried(method, "", {"rounds": rounds, "gradients": gradients}, proved, {})


def test_nobody_on_the_front_is_beaten_on_both_axes() -> None:
    points = [(1.0, 9.0), (2.0, 5.0), (2.0, 6.0), (3.0, 5.0), (4.0, 1.0), (5.0, 2.0)]
    assert family.pareto(points) == [(1.0, 9.0), (2.0, 5.0), (4.0, 1.0)]


def test_each_axis_has_winners_of_its_own_in_and_outside_the_theorem() -> None:
    runs = [tried("5gcs", 10, 90), tried("5gcs", 30, 30), tried("5gcs", 5, 200, False), tried("gd", None, None)]
    best = {axis: family.winners(runs, axis) for axis in family.AXES}
    assert set(best["rounds"]) == {("5gcs", True), ("5gcs", False)}, "who did not get there wins nothing"
    assert best["rounds"]["5gcs", True].cost("rounds") == 10
    assert best["gradients"]["5gcs", True].cost("rounds") == 30
    assert family.least(best, "5gcs", "rounds") == 5
    assert family.least(best, "gd", "rounds") == math.inf


@pytest.mark.parametrize(("mine", "theirs", "verdict"), [(3, 4, "PASS"), (4, 3, "FAIL"), (4, None, "PASS")])
def test_who_did_not_get_there_within_the_limits_needs_more(mine: float, theirs: float | None, verdict: str) -> None:
    runs = [tried("5gcs", mine, 1), tried("accelerated", theirs, None if theirs is None else 1)]
    best = {axis: family.winners(runs, axis) for axis in family.AXES}
    found = family.fewer("digits", best, "5gcs", "accelerated", "rounds")
    assert found.verdict == verdict


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


def test_the_family_has_experiments_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", "fig1a", "--family", "--out", "nowhere"]) == 2
    assert "name none" in capsys.readouterr().err
