"""Fixtures of the tests of the Flower apps."""

from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The strategy's clock, which moves only when the strategy sleeps."""
    from proxskip.flower import nodes, strategy
    from support.grid import Clock

    clock = Clock()
    right = nodes.Mailbox
    monkeypatch.setattr(strategy.nodes, "Mailbox", lambda grid, pause: right(grid, pause, clock, clock.sleep))
    return clock


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of Flower of its own, and the numbers that Flower would give to this process."""
    from flwr.supercore.task_identity import TaskIdentity

    monkeypatch.setenv("FLWR_HOME", str(tmp_path / "home"))
    for name in ("task", "run", "node"):
        monkeypatch.setattr(TaskIdentity, f"_{name}_id", 7)
    return tmp_path / "home" / "proxskip"
