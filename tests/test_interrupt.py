"""Interruptions: a round of any length is broken off soon, and the run goes on from the last communication."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import chaos_interrupt
import proxskip as ps
from conftest import METHODS, ON_CARD, RAY_WARNS, TORCH, Elsewhere, Row, needs, thinned
from proxskip.engines.cpu import engine as cpu
from proxskip.engines.cpu.engine import CpuEngine
from proxskip.engines.reference import ReferenceEngine
from proxskip.interfaces import BrokenOff, Engine
from proxskip.results.result import Status
from proxskip.types import InputError


def small(**how: Any) -> ps.Problem:
    rng = np.random.default_rng(3)
    A = rng.standard_normal((60, 5)) * (rng.random((60, 5)) < how.pop("density", 1.0))
    y = np.where(rng.random(60) < 0.5, -1.0, 1.0)
    model = how.pop("model", ps.Logistic)
    return ps.split(model(A, y, l2=0.1), clients=4, by="contiguous", **how)


class After(threading.Event):
    """An event that is set by itself after some looks at it."""

    looks = 10**9

    def is_set(self) -> bool:
        """Whether it has been looked at often enough."""
        self.looks -= 1
        return self.looks < 0


@contextmanager
def broken_off(looks: int) -> Iterator[None]:
    """A run that is broken off after so many looks at its event."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(After, "looks", looks)
        patch.setattr("proxskip.loop.loop.Event", After)
        yield


# -- the same bytes ----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(
    "how",
    [{}, {"batch": 3}, {"model": ps.LeastSquares}, {"model": ps.Softmax}, {"model": ps.Softmax, "batch": 4}],
    ids=str,
)
def test_local_steps_in_many_calls_have_the_bytes_of_one(
    how: dict[str, Any], threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem, K = small(**how), np.array([7, 0, 123, 64])
    rng = np.random.default_rng(0)
    X, H = rng.standard_normal((2, 4, problem.d))

    def steps() -> bytes:
        engine = CpuEngine(threads)
        engine.open(problem, {}, 5)
        out = engine.descend(np.arange(4), X, H, np.full(4, 0.3), K, 2, np.array([0, 3, 1, 2]), threading.Event())
        engine.close()
        return out.tobytes()

    one = steps()
    for short in (1.0, 300.0, 2000.0):
        monkeypatch.setattr(cpu, "SHORT_WORK", short)
        assert steps() == one


@pytest.mark.parametrize("threads", [1, 2])
def test_a_halt_ends_a_descent_soon(threads: int) -> None:
    problem, halt = small(), threading.Event()
    engine = CpuEngine(threads)
    engine.open(problem, {}, 0)
    zeros, timer = np.zeros((4, problem.d)), threading.Timer(0.2, halt.set)
    timer.start()
    began = time.monotonic()
    with pytest.raises(BrokenOff):
        engine.descend(np.arange(4), zeros, zeros, np.ones(4), np.full(4, 10**8), 0, 0, halt)
    assert time.monotonic() - began < 60
    engine.close()


# -- any method, anywhere in a round -----------------------------------------------------------------------------------
@pytest.mark.parametrize("engine", ["cpu", "reference", TORCH])
@pytest.mark.parametrize("row", thinned(METHODS, 5), ids=lambda row: row.name)
def test_a_broken_round_leaves_no_trace(row: Row, engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if engine == "torch" and METHODS.index(row) % 8:
        pytest.skip("every eighth method will do for a third engine")
    problem = row.quadratic()
    whole = ps.run(
        row.make(problem), problem, rounds=6, engine=engine, seed=1, cohort=row.cohort, allow_unsafe_step=True
    )
    monkeypatch.setattr(cpu, "SHORT_WORK", 1.0)
    for k, looks in enumerate((4, 29)):
        out, given = tmp_path / str(k), {"rounds": 6, "engine": engine, "seed": 1, "cohort": row.cohort}
        with broken_off(looks):
            part = ps.run(row.make(problem), problem, allow_unsafe_step=True, out=out, **given)
        again = ps.resume(out, problem) if part.status is Status.INTERRUPTED else part
        assert again.x.tobytes() == whole.x.tobytes()
        assert all(again.memory[k].tobytes() == v.tobytes() for k, v in whole.memory.items())
        mine, theirs = again.summary(), whole.summary()
        counted = ("rounds", "iterations", "grad_evals", "floats_up", "floats_down", "exchanges")
        assert [mine[c] for c in counted] == [theirs[c] for c in counted]
        assert again.participation.tolist() == whole.participation.tolist()


def test_a_method_of_two_exchanges_goes_back_before_the_first(tmp_path: Path) -> None:
    problem = small()
    method = ps.FedLin.theory(problem, K=50)
    whole = ps.run(method, problem, rounds=4, engine="reference")
    broken = 0
    for looks in range(5, 800, 97):
        with broken_off(looks):
            part = ps.run(method, problem, rounds=4, engine="reference", out=tmp_path / str(looks))
        if part.status is not Status.INTERRUPTED:
            continue
        broken += 1
        assert part.summary()["exchanges"] == 2 * part.rounds
        assert ps.resume(tmp_path / str(looks), problem).x.tobytes() == whole.x.tobytes()
    assert broken > 3


# -- engines that cannot take back a round: the last record or checkpoint is returned ----------------------------------
class StuckEngine(Elsewhere, ReferenceEngine):
    """The server's vectors live elsewhere, and no round can be taken back."""

    name, rewinds = "far", False
    mark, rewind = Engine.mark, Engine.rewind


def torch_engine() -> Any:
    from proxskip.engines.torch.engine import TorchEngine

    class Torch(TorchEngine):
        """Its rounds cannot be taken back."""

        rewinds = False
        mark, rewind = Engine.mark, Engine.rewind

    return Torch()


@pytest.mark.parametrize("make", [StuckEngine, pytest.param(torch_engine, marks=[needs("torch"), pytest.mark.torch])])
@pytest.mark.parametrize("every", [2, 4])
def test_a_round_that_cannot_be_taken_back_ends_at_the_last_record(make: Any, every: int, tmp_path: Path) -> None:
    problem = small()
    method = ps.FedLin.theory(problem, K=9) if every == 4 else ps.Scaffnew(0.3, 0.1)
    given: dict[str, Any] = {"every": every, "seed": 2, "cohort": None}
    whole = ps.run(method, problem, rounds=8, engine=make(), **given)
    back = 0
    for looks in range(5, 400, 23) if make is StuckEngine else range(3, 17):  # torch looks once an exchange
        out = tmp_path / str(looks)
        with broken_off(looks):
            part = ps.run(method, problem, rounds=8, engine=make(), out=out, **given)
        if part.status is not Status.INTERRUPTED:
            continue
        same = ps.run(method, problem, rounds=part.rounds, engine=make(), **given)
        assert part.x.tobytes() == same.x.tobytes()
        assert all(part.memory[k].tobytes() == v.tobytes() for k, v in same.memory.items())
        assert all(part.server[k].tobytes() == v.tobytes() for k, v in same.server.items())
        assert part.participation.tolist() == same.participation.tolist()
        counted = ("rounds", "iterations", "grad_evals", "floats_up", "floats_down", "exchanges", "gap", "grad_norm")
        assert [part.summary()[c] for c in counted] == [same.summary()[c] for c in counted]
        if "last record or checkpoint" in part.message:
            back += 1
            assert part.rounds % every == 0
        with broken_off(looks % 50):  # and once more, before the first record of the resumed run
            again = ps.resume(out, problem, engine=make())
        again = ps.resume(out, problem, engine=make()) if again.status is Status.INTERRUPTED else again
        assert again.x.tobytes() == whole.x.tobytes()
        assert all(
            again.trace[k].tobytes() == v.tobytes() for k, v in whole.trace.to_arrays().items() if k != "seconds"
        )
    assert back > 1


def test_a_checkpoint_that_is_newer_than_the_last_record_is_returned(tmp_path: Path) -> None:
    problem, method = small(), ps.Scaffnew(0.3, 0.1)
    rounds = set()
    for looks in range(100, 400, 31):
        with broken_off(looks):
            out = tmp_path / str(looks)
            part = ps.run(method, problem, rounds=8, every=100, engine=StuckEngine(), out=out, checkpoint_every=3)
        rounds.add(part.rounds if "last record or checkpoint" in part.message else None)
    assert rounds - {None}
    assert rounds <= {None, 3, 6}


@pytest.mark.parametrize("make", [StuckEngine, pytest.param(torch_engine, marks=[needs("torch"), pytest.mark.torch])])
def test_a_network_with_losses_needs_an_engine_that_takes_back_void_rounds(make: Any) -> None:
    problem, network = small(), ps.Network(gradient=1e-3, deadline=10.0, lost_before=0.1)
    with pytest.raises(InputError, match='cannot undo a void round; use engine="cpu", or a network with'):
        ps.run("scaffnew", problem, rounds=3, network=network, engine=make())
    ps.run("scaffnew", problem, rounds=3, network=ps.Network(gradient=1e-3), engine=make())


def test_a_round_that_was_broken_off_takes_no_simulated_time(tmp_path: Path) -> None:
    problem, method, network = small(), ps.Scaffnew(0.3, 0.1), ps.Network(gradient=1e-3)
    whole = ps.run(method, problem, rounds=5, network=network, engine="reference")
    with broken_off(60):
        part = ps.run(method, problem, rounds=5, network=network, engine="reference", out=tmp_path / "a")
    assert part.status is Status.INTERRUPTED
    assert ps.resume(tmp_path / "a", problem).summary()["sim_seconds"] == whole.summary()["sim_seconds"]


# -- signals -----------------------------------------------------------------------------------------------------------
class Kill:
    """Sends a signal to this process a while after the run began."""

    def __init__(self, number: signal.Signals) -> None:
        self.number, self.sent = number, 0.0

    def on_run_start(self, config: dict[str, Any]) -> None:
        def send() -> None:
            self.sent = time.monotonic()
            os.kill(os.getpid(), self.number)

        threading.Timer(0.3, send).start()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("engine", ["cpu", "reference", TORCH])
def test_a_signal_ends_a_round_of_ten_million_steps(engine: str, number: signal.Signals, tmp_path: Path) -> None:
    problem, kill = small(), Kill(number)
    result = ps.run(
        ps.Scaffnew(1.0 / problem.L, 1e-8), problem, rounds=3, engine=engine, out=tmp_path / "a", callbacks=[kill]
    )
    assert result.status is Status.INTERRUPTED
    assert result.rounds == 0
    assert time.monotonic() - kill.sent < 60
    assert {"checkpoint", "summary.json"} <= {p.name for p in (tmp_path / "a").iterdir()}


def test_more_steps_than_anybody_waits_for_are_refused() -> None:
    problem = small()
    for method in (lambda: ps.Scaffold.theory(problem, K=2**62), lambda: ps.LocalGD(0.1, 10**9)):
        with pytest.raises(InputError, match="too many steps at a time; take at most 100,000,000"):
            method()


@pytest.mark.parametrize("engine", [pytest.param("cpu", marks=pytest.mark.slow), TORCH, ON_CARD])
def test_random_interruptions_change_nothing(engine: str, tmp_path: Path) -> None:
    assert chaos_interrupt.campaign(6, tmp_path, 1, engine)[0] == []


@RAY_WARNS
@pytest.mark.slow
def test_random_interruptions_of_a_cluster_change_nothing(ray_here: None, tmp_path: Path) -> None:
    assert chaos_interrupt.campaign(3, tmp_path, 0, "ray")[0] == []
