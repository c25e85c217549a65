"""Interruptions: a round of any length is broken off soon, and the run goes on from the last communication."""

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

import proxskip as ps
from campaigns import chaos_interrupt
from proxskip.core.engine import Request
from proxskip.engines.cpu import cohort
from proxskip.engines.cpu.engine import CpuEngine
from proxskip.engines.local import no_half
from proxskip.engines.reference import ReferenceEngine
from proxskip.results.folder import Folder
from proxskip.results.result import Status
from proxskip.types import InputError
from support.comparing import same
from support.elsewhere import Elsewhere
from support.methods import METHODS, NAMED, Row
from support.tiers import ON_CARD, RAY_WARNS, TORCH, thinned

pytestmark = pytest.mark.long

small = NAMED["scaffnew"].rows


class After(threading.Event):
    """An event that is set by itself after some looks at it."""

    looks = 10**9

    def is_set(self) -> bool:
        self.looks -= 1
        return self.looks < 0


@contextmanager
def broken_off(looks: int) -> Iterator[None]:
    """A run that is broken off after so many looks at its event."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(After, "looks", looks)
        patch.setattr("proxskip.running.loop.Event", After)
        yield


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(
    ("loss", "batch"),
    [("logistic", None), ("logistic", 3), ("squared", None), ("softmax", None), ("softmax", 4)],
)
def test_local_steps_in_many_calls_have_the_bytes_of_one(
    loss: str, batch: int | None, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem, K = small(loss).with_batch(batch), np.array([7, 0, 123, 64])
    rng = np.random.default_rng(0)
    X, H = rng.standard_normal((2, 4, problem.d))

    def steps() -> bytes:
        engine = CpuEngine(threads)
        engine.open(problem, {}, 5)
        client = engine.client(np.arange(4), Request(no_half, np.arange(4), 2, halt=threading.Event()))
        out = client.plain_steps(X, H, 0.3, K, np.array([0, 3, 1, 2]), 0.0)
        engine.close()
        return out.tobytes()

    one = steps()
    for short in (1.0, 300.0, 2000.0):
        monkeypatch.setattr(cohort, "SHORT_WORK", short)
        assert steps() == one


ROWS_AND_ENGINES = [
    *thinned([(row, ("cpu", "reference")[k % 2]) for k, row in enumerate(METHODS)], 5),
    *(pytest.param((row, "torch"), marks=TORCH.marks) for row in METHODS[::8]),
]


@pytest.mark.parametrize("row_and_engine", ROWS_AND_ENGINES, ids=lambda both: f"{both[0].name}-{both[1]}")
def test_a_broken_round_leaves_no_trace(
    row_and_engine: tuple[Row, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    row, engine = row_and_engine
    problem = row.quadratic()
    given = {"rounds": 6, "engine": engine, "seed": 1, "cohort": row.cohort, "allow_unsafe_step": True}
    whole = ps.run(row.make(problem), problem, **given)
    monkeypatch.setattr(cohort, "SHORT_WORK", 1.0)
    for k, looks in enumerate((4, 29)):
        out = tmp_path / str(k)
        with broken_off(looks):
            part = ps.run(row.make(problem), problem, out=out, **given)
        again = ps.resume(out, problem) if part.status is Status.INTERRUPTED else part
        assert same(again, whole)


# -- engines that cannot take back a round: the last record or checkpoint is returned ----------------------------------
class StuckEngine(Elsewhere, ReferenceEngine):
    """The server's vectors live elsewhere, and no round can be taken back."""

    name, rewinds = "far", False


@pytest.mark.parametrize(("every", "saved"), [(2, None), (4, None), (100, 3)])
def test_a_round_that_cannot_be_taken_back_ends_at_the_last_record_or_checkpoint(
    every: int, saved: int | None, tmp_path: Path
) -> None:
    problem = small()
    method = ps.FedLin.theory(problem, K=9) if every == 4 else ps.Scaffnew(0.3, 0.1)
    given: dict[str, Any] = {"every": every, "seed": 2, "cohort": None}
    whole = ps.run(method, problem, rounds=8, engine=StuckEngine(), **given)
    back = 0
    for looks in range(5, 400, 23):
        out = tmp_path / str(looks)
        with broken_off(looks):
            part = ps.run(method, problem, rounds=8, engine=StuckEngine(), out=out, checkpoint_every=saved, **given)
        if part.status is not Status.INTERRUPTED:
            continue
        until = ps.run(method, problem, rounds=part.rounds, engine=StuckEngine(), **given)
        assert part.x.tobytes() == until.x.tobytes()
        assert all(part.memory[k].tobytes() == v.tobytes() for k, v in until.memory.items())
        assert all(part.server[k].tobytes() == v.tobytes() for k, v in until.server.items())
        assert part.participation.tolist() == until.participation.tolist()
        counted = ("rounds", "iterations", "grad_evals", "floats_up", "floats_down", "exchanges", "gap", "grad_norm")
        assert [part.summary[c] for c in counted] == [until.summary[c] for c in counted]
        if "last record or checkpoint" in part.message:
            back += 1
            assert part.rounds % (saved or every) == 0
        with broken_off(looks % 50):  # and once more, before the first record of the resumed run
            again = ps.resume(out, problem, engine=StuckEngine())
        again = ps.resume(out, problem, engine=StuckEngine()) if again.status is Status.INTERRUPTED else again
        assert same(again, whole)
    assert back > 1


def test_a_network_with_losses_needs_an_engine_that_takes_back_void_rounds() -> None:
    problem, network = small(), ps.Network(gradient=1e-3, deadline=10.0, lost_before=0.1)
    with pytest.raises(InputError, match='cannot undo a void round; use engine="cpu", or a network with'):
        ps.run("scaffnew", problem, rounds=3, network=network, engine=StuckEngine())
    ps.run("scaffnew", problem, rounds=3, network=ps.Network(gradient=1e-3), engine=StuckEngine())


def test_a_round_that_was_broken_off_takes_no_simulated_time(tmp_path: Path) -> None:
    problem, method, network = small(), ps.Scaffnew(0.3, 0.1), ps.Network(gradient=1e-3)
    whole = ps.run(method, problem, rounds=5, network=network, engine="reference")
    with broken_off(60):
        part = ps.run(method, problem, rounds=5, network=network, engine="reference", out=tmp_path / "a")
    assert part.status is Status.INTERRUPTED
    assert ps.resume(tmp_path / "a", problem).summary["sim_seconds"] == whole.summary["sim_seconds"]


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


def test_a_handler_that_is_not_pythons_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python reads a handler that C code installed as None, and cannot put it back."""
    installed: list[Any] = []
    install = signal.signal

    def watched(number: int, handler: Any) -> Any:
        installed.append((number, handler))
        before = install(number, handler)
        return None if number == signal.SIGTERM else before

    before = signal.getsignal
    monkeypatch.setattr(signal, "getsignal", lambda number: None if number == signal.SIGTERM else before(number))
    monkeypatch.setattr(signal, "signal", watched)
    assert ps.run("scaffnew", small(), rounds=2).status is Status.LIMIT
    assert {number for number, _ in installed} == {signal.SIGINT}


def test_an_interrupt_while_the_result_is_written_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    finish = Folder.finish

    def interrupted(*args: Any) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        finish(*args)

    monkeypatch.setattr(Folder, "finish", interrupted)
    q = ps.Problem(ps.random_quadratics(4, 5, seed=1))
    result = ps.run("scaffnew", q, rounds=20, out=tmp_path / "run")
    assert result.status is Status.LIMIT
    assert ps.load(tmp_path / "run").x.tobytes() == result.x.tobytes()
