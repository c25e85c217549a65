"""An engine that loses its machines: the run goes on from its last record, whenever it happens, and ends as if undisturbed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import proxskip as ps
from proxskip.core.engine import EngineLost
from proxskip.engines.reference import ReferenceEngine
from proxskip.running.loop import MOST_LOSSES
from proxskip.types import EngineError
from support.comparing import bits
from support.methods import NAMED, Row
from support.tiers import thinned

EVERY, ROUNDS = 3, 8


class Fragile(ReferenceEngine):
    """The reference engine as if on other machines, which are lost at the calls with these numbers."""

    name = "fragile"
    rewinds = False

    def __init__(self, *lost: int) -> None:
        super().__init__()
        self.lost, self.calls = lost, 0
        self.worked: list[int] = []
        """The round of every request."""

    def _answer(self) -> None:
        self.calls += 1
        if self.calls - 1 in self.lost:
            self.kept = {}
            raise EngineLost("a machine was lost")

    def open(self, problem: ps.Problem, memory: Any, seed: int) -> None:
        self._answer()
        super().open(problem, memory, seed)

    def run(self, request: Any) -> Any:
        self._answer()
        self.worked.append(request.round)
        return super().run(request)

    def tell(self, half: Any, cohort: Any, outcome: Any) -> None:
        self._answer()
        super().tell(half, cohort, outcome)

    def memory(self) -> Any:
        self._answer()
        return super().memory()

    def judge(self, problem: ps.Problem) -> ps.Problem:
        return problem.evaluated_by(self)

    def evaluate(self, x: Any, clients: Any) -> Any:
        self._answer()
        return [f.value(x) for f in clients], np.stack([f.gradient(x) for f in clients])

    def report(self) -> Any:
        return {}, []


def run(row: Row, engine: Any, **more: Any) -> Any:
    problem = row.quadratic()
    return ps.run(
        row.make(problem), problem, rounds=ROUNDS, every=EVERY, cohort=row.cohort, seed=2, engine=engine,
        allow_unsafe_step=True, **more,
    )  # fmt: skip


NAMES = ["scaffnew", "scaffnew-cohort", "scaffold-I", "decentralized", "scaffnew-vr", "5gcs-theory"]


@pytest.mark.parametrize("name", thinned(NAMES, 3))
@pytest.mark.parametrize("folder", [False, True])
def test_a_loss_at_any_call_costs_the_rounds_since_the_last_record(name: str, folder: bool, tmp_path: Path) -> None:
    row = NAMED[name]
    quiet = Fragile()
    whole = run(row, quiet)
    assert bits(whole) == bits(run(row, "reference"))
    for at in range(quiet.calls):
        engine = Fragile(at)
        out = {"out": tmp_path / str(at), "checkpoint_every": 3} if folder else {}
        result = run(row, engine, **out)
        assert bits(result) == bits(whole), at
        again = len(engine.worked) - len(quiet.worked)
        assert 0 <= again <= EVERY * len(quiet.worked) / ROUNDS, at
        assert len(result.summary["cluster"]["recoveries"]) <= 1


@pytest.mark.parametrize("name", ["scaffnew", "scaffnew-cohort"])
def test_simulated_time_goes_back_with_the_rounds(name: str) -> None:
    """The seconds of rounds that are made again count once, and the same client is the slowest."""
    seconds = ps.Spread(0.01, 0.5)
    network = ps.Network(seconds, 1e6, gradient=seconds)
    columns = ("sim_seconds", "sim_computing", "slowest_client")
    quiet = Fragile()
    whole = run(NAMED[name], quiet, network=network)
    assert whole.trace["sim_seconds"][-1] > 0
    for at in range(0, quiet.calls, 3):
        result = run(NAMED[name], Fragile(at), network=network)
        assert bits(result) == bits(whole), at
        assert all(result.trace[c].tobytes() == whole.trace[c].tobytes() for c in columns), at


def test_the_result_says_what_was_lost() -> None:
    engine = Fragile(20)
    result = run(NAMED["scaffnew"], engine)
    (told,) = result.summary["cluster"]["recoveries"]
    lost = engine.worked[next(k for k in range(1, ROUNDS + EVERY) if engine.worked[k] <= engine.worked[k - 1]) - 1]
    assert told["from_round"] == EVERY * (lost // EVERY)
    assert told["from_round"] <= told["round"]
    assert told["cause"] == "a machine was lost"
    (note,) = [note for note in result.warnings if "lost" in note]
    assert note == f"a machine was lost in round {told['round']}; the run went on from round {told['from_round']}."


def test_machines_that_are_lost_again_and_again_end_the_run() -> None:
    with pytest.raises(
        EngineError, match=rf"^a machine was lost, {MOST_LOSSES + 1} times .*; its machine may be short"
    ):
        run(NAMED["scaffnew"], Fragile(*range(5, 500)))
    with pytest.raises(EngineError, match=rf"^a machine was lost, {MOST_LOSSES + 1} times while it began"):
        run(NAMED["scaffnew"], Fragile(*range(500)))
    # one loss between any two records is no reason to give up
    engine = Fragile(*range(8, 400, 16))
    assert bits(run(NAMED["scaffnew"], engine)) == bits(run(NAMED["scaffnew"], "reference"))


def test_a_run_that_is_resumed_recovers_too(tmp_path: Path) -> None:
    row = NAMED["scaffnew-cohort"]
    problem = row.quadratic()
    run(row, Fragile(), out=tmp_path / "a")
    whole = ps.resume(tmp_path / "a", problem, rounds=2 * ROUNDS, engine=Fragile())
    for at in range(0, 40, 3):
        folder = tmp_path / str(at)
        run(row, Fragile(), out=folder)
        assert bits(ps.resume(folder, problem, rounds=2 * ROUNDS, engine=Fragile(at))) == bits(whole)


def test_lost_time_is_counted() -> None:
    """The clock does not go back with the rounds, or a limit in seconds would never be reached."""
    engine = Fragile(*range(20, 40, 9))
    seconds: list[float] = []

    class Listen:
        def on_record(self, step: int, metrics: Any) -> None:
            seconds.append(metrics["seconds"])

    run(NAMED["scaffnew"], engine, callbacks=[Listen()])
    assert seconds == sorted(seconds)
