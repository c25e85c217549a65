"""The first ten seconds: the race of the demo."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from proxskip.cli import commands, demo_command, reproduce_command


def test_scaffnew_wins_the_race() -> None:
    laps = demo_command.race(rounds=30)
    done, state = next(laps)
    assert (done, list(state)) == (demo_command.LAP, ["Scaffnew"])  # the first picture
    assert state["Scaffnew"].summary["engine"] == "reference"  # which compiles nothing
    *_, (done, state) = laps
    gaps = {title: demo_command.gap(result) for title, result in state.items()}
    assert done == 30
    assert len(gaps) == 4
    assert all(10 * gaps["Scaffnew"] < gap for title, gap in gaps.items() if title != "Scaffnew")
    assert "After 30 rounds" in demo_command.words(done, state)


@pytest.mark.slow
def test_the_command_runs_the_race(capsys: pytest.CaptureFixture[str]) -> None:
    assert commands.main(["demo", "--race"]) == 0
    out = capsys.readouterr().out
    assert f"round {demo_command.ROUNDS}" in out
    assert f"After {demo_command.ROUNDS} rounds" in out


def test_after_the_race_comes_the_quick_report(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(demo_command, "race", lambda: iter(()))
    monkeypatch.setattr(demo_command, "_show", lambda frames: None)

    def reproduce(names: Any, options: Any, progress: Any) -> Any:
        asked.append(options)
        raise KeyboardInterrupt

    monkeypatch.setattr(reproduce_command, "reproduce", reproduce)
    assert commands.main(["demo", "--out", str(tmp_path / "d")]) == 130
    assert asked[0].quick
    assert asked[0].out == tmp_path / "d"
