"""The first ten seconds: the race of the demo."""

from __future__ import annotations

import pytest

from proxskip.cli import commands, demo_command


def test_scaffnew_wins_the_race() -> None:
    *_, (done, state) = demo_command.race(rounds=30)
    gaps = {name: demo_command.gap(result) for name, (_, result) in state.items()}
    assert done == 30
    assert len(gaps) == 4
    assert all(10 * gaps["scaffnew"] < gap for name, gap in gaps.items() if name != "scaffnew")
    assert "After 30 rounds Scaffnew" in demo_command.words(done, state)


def test_the_race_compiles_nothing_and_shows_its_first_picture_after_one_lap() -> None:
    done, state = next(demo_command.race())
    assert (done, list(state)) == (demo_command.LAP, ["scaffnew"])
    assert state["scaffnew"][1].about["engine"] == "reference"


@pytest.mark.slow
def test_the_command_runs_the_race(capsys: pytest.CaptureFixture[str]) -> None:
    assert commands.main(["demo", "--race"]) == 0
    out = capsys.readouterr().out
    assert out.count("round ") >= 3
    assert "After 150 rounds" in out
