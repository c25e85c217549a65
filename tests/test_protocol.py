"""The protocol: the engines' trajectory bit for bit, one commit for each counted ticket, and no harm from any message."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import proxskip as ps
from chaos_protocol import LIMIT, campaign, hostile, mutated
from conftest import METHODS, WEIGHTS, Row, draws, quadratics, thinned
from lockstep import drive
from proxskip.links.cohorts import as_participation
from proxskip.protocol import (
    Again,
    Arrived,
    Ask,
    Begin,
    Client,
    ClientState,
    Deadline,
    Restarted,
    Server,
    ServerState,
    WireError,
    Worker,
    audit,
    wire,
)  # fmt: skip
from proxskip.protocol import server as server_module
from proxskip.protocol.replay import Call
from proxskip.protocol.state import Reply
from proxskip.results import checkpoint
from simulated_federation import federation, simulate

RUN = bytes(range(16))
GOSSIP = ("decentralized", "diging", "extra", "random-gossip")
CENTRAL = [
    r for r in METHODS if not r.name.startswith(GOSSIP) and "decaying" not in r.name and not r.split and r.clients > 1
]


def federate(method: Any, problem: ps.Problem, rounds: int = 8, **options: Any) -> tuple[Server, list[Client]]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ps.UnsafeStepWarning)
        options["cohort"] = as_participation(options.get("cohort"))
        server = Server(method, problem, rounds, insist=True, **options)
    size = options.get("itemsize", 8)
    workers = [Worker(f, i, server.seed, problem.batch) for i, f in enumerate(problem.clients)]
    return server, [Client(server.method, w, size) for w in workers]


class Wires:
    """A server and its clients by hand: nothing moves unless a test moves it."""

    def __init__(self, rounds: int = 6, n: int = 4, **options: Any) -> None:
        self.problem = ps.Problem(quadratics(n), options.pop("weights", None))
        method = options.pop("method", None) or ps.Scaffnew(1 / self.problem.L_max, 0.4)
        self.server, self.clients = federate(method, self.problem, rounds, **options)
        self.state = self.server.start(RUN)
        self.memory = [ClientState.fresh(RUN) for _ in self.clients]
        self.asks: list[Ask] = []
        self.send(Begin())

    def send(self, event: Any) -> None:
        self.state, asks = self.server.step(self.state, event)
        self.asks = asks or self.asks

    def work(self, ask: Ask) -> list[bytes]:
        i = ask.client
        self.memory[i], raw = self.clients[i].step(self.memory[i], wire.encode(ask))
        return raw

    def deliver(self, but: tuple[int, ...] = (), change: dict[int, Callable[[Any], Any]] | None = None) -> None:
        """All asks, but not to these clients, whose time then runs out.

        Args:
            change: what becomes of the answer of a client on its way.
        """
        ticket, exchange = self.state.ticket, self.state.exchange
        for ask in self.asks:
            for raw in () if ask.client in but else self.work(ask):
                if change and ask.client in change:
                    raw = wire.encode(change[ask.client](wire.decode(raw, self.problem.d)))
                self.send(Arrived(raw, ask.client))
        self.send(Deadline(ticket, exchange))

    def play(self, rounds: int) -> None:
        while self.state.round < rounds:
            self.deliver()

    def finish(self, but: tuple[int, ...] = ()) -> None:
        for _ in range(500):
            if self.state.over:
                return
            self.deliver(but)
        raise AssertionError("it does not end")

    def restart(self) -> None:
        self.state = ServerState.of(self.state.arrays(), self.state.meta())
        self.send(Restarted())

    def error(self) -> float:
        assert self.problem.solution is not None
        return float(np.linalg.norm(self.state.vectors["x"] - self.problem.solution.x))

    def wipe(self, i: int) -> None:
        self.memory[i] = ClientState.fresh(RUN)

    def truth(self) -> np.ndarray:
        """Every client's h once it has heard its verdict."""
        rows = []
        for i, memory in enumerate(self.memory):
            ask = self.asks[0]
            counted = self.state.counted[i]
            owed = self.state.outcomes.get(counted)
            verdict = replace(
                ask, ticket=10**9, exchange=0, client=i, half=".report", down=(), counted=counted,
                upload=self.state.uploads[i], settle=owed.settle if owed else "", outcome=owed.vectors if owed else None,
            )  # fmt: skip
            told, _ = self.clients[i].step(memory, wire.encode(verdict))
            name = self.server.method.about.summed
            rows.append(told.memory[name] if told.memory else np.zeros(self.problem.d))
        return np.array(rows)


# -- the same trajectory as an engine ----------------------------------------------------------------------------------
@pytest.mark.parametrize("batch", [None, 6])
@pytest.mark.parametrize("row", thinned(CENTRAL, 2))
@pytest.mark.long
def test_a_run_without_faults_is_the_cpu_engines_bit_for_bit(row: Row, batch: int | None) -> None:
    """Every method with client halves, full gradients and minibatches, rounds that wait and rounds that close."""
    if batch and not row.claims("batch"):
        pytest.skip("needs full gradients")
    problem = row.rows(sparse=batch is not None).with_batch(batch)
    forms = ["deadline"] if row.cohort else ["everyone"]
    if not row.name.startswith("5gcs") and not row.cohort and "cohort" in row.make(problem).handles and row.psi is None:
        forms.append("deadline")
    for closing in forms:
        server, clients = federate(row.make(problem), problem, closing=closing, cohort=row.cohort, seed=4)
        state, memories = drive(server, clients)
        cohort = row.cohort or (None if closing == "everyone" else [list(range(problem.n))])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ps.UnsafeStepWarning)
            judge = ps.run(row.make(problem), problem, rounds=8, seed=4, cohort=cohort, allow_unsafe_step=True)
        assert state.round == 8
        assert not state.failed
        assert np.array_equal(state.vectors["x"], judge.x)
        if "h" in judge.memory:
            assert np.array_equal(np.array([m.memory["h"] for m in memories]), judge.memory["h"])
        if "v" in judge.memory:
            assert np.array_equal(np.array([m.memory["v"] for m in memories]), judge.memory["v"])
        assert state.grad_norm == pytest.approx(judge.trace.last()["grad_norm"], rel=1e-9)
        assert state.f == pytest.approx(judge.trace.last()["f"], rel=1e-12)


ALONE = [name for name, kind in ps.METHODS.items() if "graph" not in kind.handles and name != "tamuna"]


@pytest.mark.parametrize("name", ALONE)
def test_a_federation_of_one_client_is_the_cpu_engines_bit_for_bit(name: str) -> None:
    """Audits and measurements between the rounds change nothing."""
    f, kind = METHODS[0].rows(sparse=False).clients[0], ps.METHODS[name]
    D = np.eye(f.d)[:-1] - np.eye(f.d)[1:] if "D" in kind.handles else None
    runs = 0
    for psi in (None, ps.prox.L1(0.01)):
        for batch in (None, 4):
            if (
                (psi and "psi" not in kind.handles)
                or (batch and "batch" not in kind.handles)
                or (D is not None and not psi)
            ):
                continue
            problem = ps.Problem([f], psi=psi, D=D, batch=batch)
            method = kind.theory(problem)
            server, clients = federate(method, problem, 9, closing="everyone", seed=3, audit=2, measure=2)
            state, _ = drive(server, clients)
            judge = ps.run(method, problem, rounds=9, seed=3)
            assert (state.round, state.failed, state.notes) == (9, "", ())
            assert state.vectors["x"].tobytes() == judge.x.tobytes()
            runs += 1
    assert runs


def test_a_half_that_no_message_can_name_is_refused() -> None:
    @dataclass(frozen=True)
    class Borrowed(Plain):
        about = replace(Plain.about, name="borrowed")

        def round(self, server: Any, exchange: Any) -> Any:
            return {"x": exchange(ps.Scaffnew(0.1, 0.5).local_in_cohort, server["x"], K=1)[0]}

    with pytest.raises(
        ps.InputError, match=r'borrowed asks its clients for "local_in_cohort", which is not one of its own'
    ):
        Wires(method=Borrowed())


@pytest.mark.parametrize(
    ("make", "options", "reason"),
    [
        (ps.DecentralizedScaffnew.theory, {}, "has no server"),
        (lambda p: ps.Decaying(ps.Scaffnew.theory(p), 0.1), {}, "decays is not known"),
        (ps.FedLin.theory, {"closing": "deadline"}, "cannot run on cohorts"),
        (ps.Scaffnew.theory, {"closing": "deadline", "psi": ps.prox.L1(0.1)}, "needs the h of all clients"),
        (ps.Scaffnew.theory, {"closing": "everyone", "cohort": 2}, "cohorts close at their deadline"),
        (ps.Scaffnew.theory, {"names": ("a", "b", "a", "c")}, 'two clients have the name "a"'),
    ],
)
def test_federations_that_cannot_be_are_refused(make: Any, options: dict[str, Any], reason: str) -> None:
    problem = ps.Problem(quadratics(4)).with_psi(options.pop("psi", None))
    with pytest.raises(ps.InputError, match=reason):
        federate(make(problem), problem, **options)


# -- commits -----------------------------------------------------------------------------------------------------------
def test_with_dropouts_the_run_still_finds_the_solution() -> None:
    w, rng = Wires(rounds=400), random.Random(1)
    while not w.state.over:
        w.deliver(but=tuple(i for i in range(4) if rng.random() < 0.3))
    assert w.state.round == 400
    assert w.state.counts.recentred == 0
    assert w.error() <= 1e-8


def test_an_outcome_that_was_lost_on_the_way_is_told_again() -> None:
    """Client 2 is counted in round 0 and hears nothing until round 3; its h is then that of round 0."""
    w = Wires()
    w.deliver()
    pending = w.memory[2].pending
    assert pending is not None
    x1 = w.state.vectors["x"]
    w.deliver(but=(2,))
    w.deliver(but=(2,))
    assert w.memory[2].committed == 0
    w.deliver()
    method: Any = w.server.method
    eta = method.p * method.chi / method.gamma
    assert np.array_equal(w.memory[2].memory["h"], 0.0 + eta * (x1 - pending.memory["xhat"]))
    w.finish()
    assert w.state.counts.lost == 0


def test_old_answers_and_those_of_other_runs_are_counted_and_dropped() -> None:
    w = Wires()
    old = [raw for ask in w.asks for raw in w.work(ask)]
    for i, raw in enumerate(old):
        w.send(Arrived(raw, i))
    before = w.state
    for i, raw in enumerate(old):
        w.send(Arrived(raw, i))
    assert w.state.counts.stale == 4
    assert w.state.answers == before.answers
    other = wire.decode(old[0], w.problem.d)
    w.send(Arrived(wire.encode(replace(other, run=bytes(16))), 0))
    w.send(Arrived(old[0], 1))  # somebody else's
    assert w.state.counts.foreign == 2


def test_all_sorts_of_ids_apply_nothing() -> None:
    """Ten thousand forged (run, ticket, exchange, client, round, base): at most the one that is asked for counts."""
    w = Wires()
    (raw,) = w.work(w.asks[1])
    answer = wire.decode(raw, w.problem.d)
    rng = random.Random(5)
    for _ in range(10_000):
        forged = replace(
            answer, run=rng.choice((RUN, rng.randbytes(16))), ticket=rng.choice((0, 1, 2, 2**60)),
            exchange=rng.choice((0, 1, 9)), client=rng.choice((0, 1, 7)), round=rng.choice((0, 1)), base=rng.choice((0, 1)),
        )  # fmt: skip
        after, _ = w.server.step(w.state, Arrived(wire.encode(forged), 1))
        assert (1 in after.answers) == (forged == answer)


def test_two_exchanges_a_round_survive_a_client_that_forgets_between_them() -> None:
    w = Wires(method=ps.FedLin(0.02, 3), rounds=3)
    for ask in list(w.asks):
        for raw in w.work(ask):
            w.send(Arrived(raw, ask.client))
    assert w.state.exchange == 1
    w.wipe(2)
    w.deliver()
    w.finish()
    judge, _ = drive(*federate(ps.FedLin(0.02, 3), w.problem, 3))
    assert np.array_equal(w.state.vectors["x"], judge.vectors["x"])
    assert w.state.counts.void >= 1


def test_a_round_that_needs_everybody_is_never_closed_without_one() -> None:
    w = Wires(closing="everyone", patience=3)
    w.deliver()
    x = w.state.vectors["x"]
    for _ in range(3):
        w.deliver(but=(1, 3))
    assert w.state.round == 1
    assert w.state.vectors["x"] is x
    w.deliver(but=(1, 3))
    assert w.state.failed.startswith("have 2 of 4 clients, missing client-1, client-3: round 1")
    a = Wires(closing="everyone")
    a.deliver(but=(1,))
    a.finish()
    b = Wires(closing="everyone")
    b.finish()
    assert np.array_equal(a.state.vectors["x"], b.state.vectors["x"])


# -- lost memory -------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("make", "closing", "cohort"),
    [
        (lambda p: ps.Scaffnew(0.5, 0.4), "deadline", None),
        (lambda p: ps.Scaffnew(0.5, 0.4), "everyone", None),
        (lambda p: ps.Scaffold(0.1, 3), "deadline", None),
        (lambda p: ps.Scaffold(0.1, 3), "everyone", None),
        (lambda p: ps.FedLin(0.05, 3), "everyone", None),
        (lambda p: ps.SLocalGD(0.05, 0.5, 0.3), "everyone", None),
        (lambda p: ps.FiveGCS.practical(p, cohort=3), "deadline", 3),
    ],
)
def test_a_wiped_client_gets_back_exactly_what_it_lost(make: Any, closing: str, cohort: int | None) -> None:
    method = make(ps.Problem(quadratics(4), WEIGHTS))
    w = Wires(rounds=9, method=method, closing=closing, weights=WEIGHTS, cohort=cohort)
    w.play(5)
    truth = w.truth()[2]
    w.wipe(2)
    while w.state.counts.repaired < 1:
        w.deliver()
    assert w.state.counts.lost == 1
    owed = w.state.outcomes[w.state.counted[2]]
    assert owed.settle == ".adopt"
    assert np.abs(owed.vectors[0] - truth).max() <= 1e-14 * (1 + np.abs(truth).max())
    w.finish()
    assert w.state.counts.recentred == 0
    assert any("client-2 has lost its memory at round" in note for note in w.state.notes)


def test_a_client_that_forgets_before_it_was_ever_counted_has_lost_nothing() -> None:
    w = Wires()
    w.deliver(but=(3,))
    w.wipe(3)
    w.finish()
    assert w.state.counts.lost == 0


def test_all_clients_forget_at_once() -> None:
    w = Wires(rounds=200)
    w.play(20)
    for i in range(4):
        w.wipe(i)
    w.finish()
    assert w.state.counts.repaired == 4
    assert w.error() <= 1e-8


def test_lost_memory_waits_until_everybody_else_is_there() -> None:
    """The rounds go on without the client, the others' h stand still in the sum, and the repair is exact when it comes."""
    w = Wires(rounds=30)
    w.play(5)
    w.wipe(2)
    while w.state.round < 12:
        w.deliver(but=(0,) if w.state.kind == "audit" else ())
    assert w.state.lost == {2}
    assert w.state.participated[2] == 5
    w.finish()
    assert w.state.counts.repaired == 1
    assert w.state.counts.recentred == 0
    assert w.state.sum_h <= 1e-12


def test_a_regulariser_heals_a_lost_h() -> None:
    problem = ps.Problem(quadratics(4)).with_psi(ps.prox.L1(0.01))
    server, clients = federate(ps.Scaffnew.theory(problem), problem, 300)
    w = Wires()
    w.problem, w.server, w.clients, w.state = problem, server, clients, server.start(RUN)
    w.send(Begin())
    w.play(20)
    w.wipe(1)
    w.finish()
    assert any("starts again from zero" in note for note in w.state.notes)
    assert w.state.grad_norm <= 1e-8


def test_a_memory_that_was_changed_behind_the_clients_back_is_noticed() -> None:
    """Its digest is not the one that the client had for the same ticket; the h it had is restored."""
    w = Wires(rounds=12)
    w.play(4)
    w.send(Arrived(w.work(w.asks[1])[0], 1))  # the server hears that client 1 has committed round 3
    w.send(Deadline(w.state.ticket, 0))  # and the round is void
    state, truth = w.memory[1], w.truth()[1]
    changed = {**state.memory, "h": state.memory["h"] + 1.0}
    w.memory[1] = ClientState.of(state.but(memory=changed).arrays(), state.meta())
    w.deliver()
    assert any("answers from a memory that is not the one it had" in note for note in w.state.notes)
    while w.state.counts.repaired < 1:
        w.deliver()
    assert np.abs(w.state.outcomes[w.state.counted[1]].vectors[0] - truth).max() <= 1e-14 * (1 + np.abs(truth).max())
    w.finish()
    assert w.state.counts.recentred == 0


def test_an_old_copy_of_the_disk_is_not_taken_for_the_newest() -> None:
    w = Wires(rounds=8)
    w.deliver()
    w.deliver()
    backup = w.memory[0]
    w.deliver()
    w.deliver()
    w.memory[0] = backup
    w.finish()
    assert w.state.counts.lost == 1
    assert w.state.counts.recentred == 0


# -- the audit ---------------------------------------------------------------------------------------------------------
class Careless(Client):
    """Applies each h update twice."""

    def _commit(self, state: ClientState, ask: Ask, memory: Any) -> ClientState:
        once = super()._commit(state, ask, memory)
        twice = once.memory["h"] + (once.memory["h"] - memory["h"]) if ask.settle == "settle" else once.memory["h"]
        return once.but(memory={**once.memory, "h": twice})


def test_the_audit_sets_a_broken_sum_to_zero_and_says_so() -> None:
    w = Wires(rounds=300, audit=10)
    w.play(15)
    state = w.memory[1]
    w.memory[1] = state.but(memory={**state.memory, "h": state.memory["h"] + 0.5})  # the digest is still the old one
    w.finish()
    assert w.state.counts.recentred == 1
    assert any(note.startswith("sum_i w_i h_i was 0.1") for note in w.state.notes)
    assert not w.state.failed
    assert w.error() <= 1e-8


def test_a_sum_that_breaks_again_ends_the_run() -> None:
    w = Wires(rounds=100, audit=5)
    w.clients[2] = Careless(w.server.method, w.clients[2].worker)
    w.finish()
    assert "again after it was set to zero" in w.state.failed
    kept = ServerState.of(w.state.arrays(), w.state.meta())
    assert w.server.verdict(kept) == (ps.Status.CORRUPTED, w.state.failed)


def test_a_run_that_fails_after_its_sum_was_mended_is_not_called_corrupted() -> None:
    w = Wires(rounds=100, audit=5, least=4, patience=2)
    w.play(7)
    state = w.memory[1]
    w.memory[1] = state.but(memory={**state.memory, "h": state.memory["h"] + 0.5})
    while not w.state.broken:
        w.deliver()
    w.finish(but=(0,))
    assert w.state.broken
    assert w.server.verdict(w.state) == (ps.Status.INTERRUPTED, w.state.failed)


def test_the_audit_has_no_false_alarm_at_large_constants() -> None:
    """L = 1e8: rounding is far above 1e-12 in absolute terms, and far below the tolerance."""
    clients = [ps.Quadratic(f.H * 1e8, f.b * 1e8) for f in quadratics(4)]
    problem = ps.Problem(clients)
    state, _ = drive(*federate(ps.Scaffnew.theory(problem), problem, 60, audit=3))
    assert state.counts.audits >= 20
    assert state.counts.recentred == 0


# -- float32 -----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("closing", ["deadline", "everyone"])
@pytest.mark.parametrize(
    "method",
    [ps.Scaffnew(0.5, 0.4), ps.Scaffold(0.1, 3), ps.Scaffold(0.1, 3, option="I"), ps.FedLin(0.05, 3), ps.SLocalGD(0.05, 0.5, 0.3)],
    ids=["scaffnew", "scaffold", "scaffold-I", "fedlin", "s-local-gd"],
)  # fmt: skip
def test_float32_uploads_keep_the_sum_at_zero(method: Any, closing: str) -> None:
    """h is updated from the vector as it was sent, so rounding moves x and not the sum."""
    if closing == "deadline" and "cohort" not in method.handles:
        pytest.skip("waits for everybody")
    problem = ps.Problem(quadratics(4), WEIGHTS)
    server, clients = federate(method, problem, 40, closing=closing, itemsize=4, audit=4)
    state, _ = drive(server, clients)
    exact, _ = drive(*federate(method, problem, 40, closing=closing))
    assert state.counts.audits == 10
    assert state.counts.recentred == 0
    away = np.abs(state.vectors["x"] - exact.vectors["x"]).max()
    assert 0 < away <= 1e-6


# -- bad updates -------------------------------------------------------------------------------------------------------
def with_entry(k: int, number: float) -> Callable[[Any], Any]:
    """An answer with another number in its vector."""

    def change(answer: Any) -> Any:
        up = answer.up[0].copy()
        up[k] = number
        return replace(answer, up=(up,))

    return change


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize(("i", "k"), [(0, 0), (1, 3), (2, 1), (3, 3)])
def test_a_bad_number_leaves_the_others_as_if_the_client_were_absent(i: int, k: int, bad: float) -> None:
    a, b = Wires(), Wires()
    a.deliver()
    b.deliver()
    a.deliver(change={i: with_entry(k, bad)})
    b.deliver(but=(i,))
    assert a.state.counts.rejected == 1
    assert f"client-{i}, round 1: entry {k} of vector 0 is {bad}" in a.state.notes[-1]
    assert np.array_equal(a.state.vectors["x"], b.state.vectors["x"])
    assert a.state.counted == b.state.counted


@pytest.mark.parametrize("rounds_before", [0, 1, 3])
@pytest.mark.parametrize("size", [1e308, 1e12])
def test_an_upload_out_of_proportion_is_left_out_and_its_sender_named(size: float, rounds_before: int) -> None:
    a, b = Wires(), Wires()
    a.play(rounds_before)
    b.play(rounds_before)
    a.deliver(change={2: lambda answer: replace(answer, up=(np.full(a.problem.d, size),))})
    b.deliver(but=(2,))
    assert a.state.counts.rejected == 1
    assert f"client-2, round {rounds_before}: its upload has the norm" in a.state.notes[-1]
    assert np.array_equal(a.state.vectors["x"], b.state.vectors["x"])
    assert a.state.counted == b.state.counted
    # and what was counted is known after a restart too
    again = ServerState.of(a.state.arrays(), a.state.meta())
    assert again.sizes == a.state.sizes
    assert again.first_x == a.state.first_x


def test_a_federation_that_diverges_says_so() -> None:
    w = Wires(rounds=2000, method=ps.GD(3.0 / ps.Problem(quadratics(4)).L_global), audit=0)
    w.finish()
    assert w.state.round < 2000
    assert "take a smaller gamma" in w.state.failed
    assert np.abs(w.state.vectors["x"]).max() < 1e100


def test_other_wrong_updates_are_named() -> None:
    w = Wires()
    (raw,) = w.work(w.asks[0])
    answer = wire.decode(raw, w.problem.d)
    for wrong, said in (
        ({"up": ()}, "holds 0 vectors instead of 1"),
        ({"up": answer.up * 2}, "holds 2 vectors instead of 1"),
        ({"up": (answer.up[0].astype(np.float32).tobytes(),)}, "bytes that are not of its format"),
        ({"value": np.nan}, "its value is nan"),
        ({"round": 7}, "it says round 7"),
    ):
        after, _ = w.server.step(w.state, Arrived(wire.encode(replace(answer, **wrong)), 0))
        assert said in after.notes[-1]
        assert 0 not in after.answers


def test_every_flipped_bit_is_refused_and_asked_for_again() -> None:
    w = Wires()
    (raw,) = w.work(w.asks[1])
    for k in range(8 * len(raw)):
        flipped = bytearray(raw)
        flipped[k // 8] ^= 1 << k % 8
        after, _ = w.server.step(w.state, Arrived(bytes(flipped), 1))
        assert not after.answers
        assert after.counts.damaged == 1
    w.send(Again())
    assert [a.client for a in w.asks] == [0, 1, 2, 3]
    w.send(Arrived(raw, 1))
    w.send(Again())
    assert [a.client for a in w.asks] == [0, 2, 3]


@pytest.mark.slow
def test_hostile_messages_are_all_refused() -> None:
    found = hostile(5_000, seed=1)
    assert found.crashes == []
    assert found.accepted == 0
    assert min(found.refused[k] for k in ("damaged", "rejected", "foreign", "stale")) > 0
    assert LIMIT // 2 < found.most <= 2 * LIMIT  # messages as large as the cap were read, and not twice


def test_damaged_asks_do_not_disturb_clients() -> None:
    """Bits flipped, cut, or for another client or run: nothing changes and nothing is answered."""
    w = Wires()
    w.deliver()
    raw, rng, before = wire.encode(w.asks[1]), random.Random(2), w.memory[1]
    for _ in range(2_000):
        message = mutated(rng, raw, kinds=4)
        assert w.clients[1].step(before, message) == (before, [])
    for ask in (w.asks[0], replace(w.asks[1], run=bytes(16))):
        assert w.clients[1].step(before, wire.encode(ask)) == (before, [])


def test_names_that_are_no_halves_run_nothing() -> None:
    w = Wires()
    for name in ("round", "check", "theory", "zeta", "lyapunov", "for_cohorts", "paper_figure"):
        _, answers = w.clients[0].step(w.memory[0], wire.encode(replace(w.asks[0], half=name)))
        assert answers == []
    with pytest.raises(WireError):
        wire.encode(replace(w.asks[0], half="__init__"))


def test_the_limit_holds_to_the_byte() -> None:
    w = Wires()
    size = len(wire.encode(w.asks[0]))
    assert len(wire.encode(w.asks[0], size)) == size
    with pytest.raises(ps.InputError, match=f"{size} bytes is over the limit of {size - 1}"):
        wire.encode(w.asks[0], size - 1)
    raw = wire.encode(w.asks[0])
    assert wire.decode(raw, w.problem.d, size)
    with pytest.raises(WireError, match="over the limit"):
        wire.decode(raw, w.problem.d, size - 1)


@settings(max_examples=draws(200))
@given(data=st.data())
def test_what_is_sent_is_what_arrives(data: st.DataObject) -> None:
    d = data.draw(st.integers(1, 5))
    number = st.floats(allow_nan=False, allow_infinity=False)
    vector = st.lists(number, min_size=d, max_size=d).map(np.array)
    count = st.integers(0, 2**60)
    small = st.integers(0, 2**32 - 1)
    down = tuple(data.draw(st.lists(vector, min_size=1, max_size=4)))
    outcome = data.draw(st.none() | st.lists(vector, max_size=3).map(tuple))
    ask = Ask(
        data.draw(st.binary(min_size=16, max_size=16)), data.draw(count), data.draw(count), data.draw(small),
        data.draw(small), "local_in_cohort", data.draw(small), down, data.draw(count),
        data.draw(st.sampled_from(["", "settle"])), outcome,
    )  # fmt: skip
    back = wire.decode(wire.encode(ask), d)
    assert isinstance(back, Ask)
    assert all(
        getattr(ask, k) == getattr(back, k)
        for k in ("run", "ticket", "round", "exchange", "client", "half", "K", "counted", "settle")
    )
    assert [v.tobytes() for v in back.down] == [v.tobytes() for v in down]
    assert (back.outcome is None) == (outcome is None)
    assert [v.tobytes() for v in back.outcome or ()] == [v.tobytes() for v in outcome or ()]


def test_a_vector_needed_twice_is_sent_once() -> None:
    """Scaffnew with everybody: one vector down, which is the outcome of the last round as well."""
    w = Wires()
    first = len(wire.encode(w.asks[0]))
    w.deliver()
    assert w.asks[0].outcome is not None
    assert len(wire.encode(w.asks[0])) == first == wire.HEADER + 8 * w.problem.d


# -- restarts and notes ------------------------------------------------------------------------------------------------
def test_states_read_back_from_their_arrays() -> None:
    w = Wires(rounds=12, audit=3)
    while not w.state.over:
        w.deliver(but=(w.state.ticket % 5,) if w.state.ticket % 2 else ())
        back = ServerState.of(w.state.arrays(), w.state.meta())
        assert back.meta() == w.state.meta()
        assert all(np.array_equal(v, back.arrays()[k]) for k, v in w.state.arrays().items())
        for k, memory in enumerate(w.memory):
            w.memory[k] = ClientState.of(memory.arrays(), memory.meta())
            assert w.memory[k].digest == memory.digest
            assert w.memory[k].meta() == memory.meta()


def test_a_client_that_never_comes_is_named_in_the_result() -> None:
    w = Wires(rounds=10)
    w.finish(but=(3,))
    assert w.state.notes[-1] == "the answer leaves out client-3: absent from the last half of the rounds."
    assert w.state.participated == (10, 10, 10, 0)
    assert any("client-3 missed the deadline of round 0" in note for note in w.state.notes)


def test_it_stops_at_the_tolerance() -> None:
    w = Wires(rounds=1000, measure=5, tol=1e-6)
    w.finish()
    assert w.state.reached
    assert w.state.grad_norm <= 1e-6
    assert w.state.round % 5 == 0
    assert w.state.round < 1000


def test_a_federation_that_diverges_says_what_a_run_says() -> None:
    """GD beyond 2/L, measured in every round: the same verdict in the same round, also after a restart."""
    w = Wires(rounds=1000, method=ps.GD(4.0), measure=1)
    while not w.state.over:
        w.deliver()
        if w.state.round == 1:
            w.restart()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ps.UnsafeStepWarning)
        judge = ps.run(ps.GD(4.0), w.problem, rounds=1000, every=1, allow_unsafe_step=True)
    assert judge.status is ps.Status.DIVERGED
    assert w.server.verdict(w.state) == (judge.status, judge.message)
    assert np.array_equal(w.state.vectors["x"], judge.x)


@dataclass(frozen=True)
class Plain(ps.Method):
    """LocalGD that remembers an h which is no control variate."""

    gamma: float = 0.1
    about = ps.About("plain", handles=frozenset({"clients", "cohort"}), remembers=("h",))

    def round(self, server: Any, exchange: Any) -> Any:
        (x,) = exchange(self.local, server["x"], K=2)
        return {"x": x}

    def local(self, client: Any, memory: Any, K: int, x: Any) -> Any:
        xhat = client.descend(x, 0.0, self.gamma, K)
        return (xhat,), {"h": xhat}

    def controls(self, server: Any, memory: Any) -> None:
        return None


@dataclass(frozen=True)
class Masked(Plain):
    about = replace(Plain.about, name="masked", needs_whole_cohort=True)


def test_an_h_that_is_no_control_variate_is_not_audited() -> None:
    w = Wires(rounds=4, method=Plain(), audit=1)
    w.finish()
    assert (w.state.round, w.state.counts.audits, w.state.failed) == (4, 0, "")


@pytest.mark.parametrize("cohort", [None, 3])
def test_a_method_that_needs_its_whole_cohort_closes_no_round_without_it(cohort: int | None) -> None:
    for method, counted in ((Plain(), 1), (Masked(), 0)):
        w = Wires(method=method, cohort=as_participation(cohort))
        w.deliver(but=(w.asks[0].client,))
        assert (w.state.round, w.state.counts.void) == (counted, 1 - counted)


def test_steps_do_not_change_what_they_are_given() -> None:
    """Pure: the same state and event, the same result, whatever came in between."""
    w = Wires()
    w.deliver()
    raws = [raw for ask in w.asks for raw in w.work(ask)]
    once, _ = w.server.step(w.state, Arrived(raws[0], 0))
    w.server.step(once, Arrived(raws[1], 1))
    again, _ = w.server.step(w.state, Arrived(raws[0], 0))
    assert once.meta() == again.meta()
    assert set(once.answers) == set(again.answers) == {0}
    assert set(w.state.answers) == set()
    second, _ = w.server.step(once, Arrived(raws[1], 1))
    third, _ = w.server.step(once, Arrived(raws[2], 2))
    assert [list(s.answers) for s in (once, second, third)] == [[0], [0, 1], [0, 2]]
    assert [(len(s.answers), 1 in s.answers, 2 in s.answers) for s in (second, third)] == [
        (2, True, False), (2, False, True),
    ]  # fmt: skip


def test_a_round_takes_a_time_in_proportion_to_its_clients() -> None:
    """Eight times as many clients take eight times as long, not 64 times: the server's own time, the best of several."""

    class Crowd:
        def __init__(self, n: int) -> None:
            problem = ps.Problem([ps.Quadratic(np.ones(2), np.ones(2))] * n)
            self.server = Server(ps.Scaffnew(0.5, 0.5), problem, 100, audit=0, measure=None)
            self.state, self.asks = self.server.step(self.server.start(RUN), Begin())

        def round(self) -> float:
            answers = [
                Arrived(wire.encode(wire.Answer(a.run, a.ticket, a.round, 0, a.client, a.counted, bytes(32), a.down)),
                        a.client) for a in self.asks
            ]  # fmt: skip
            start = time.process_time()
            for answer in answers:
                self.state, self.asks = self.server.step(self.state, answer)
            return time.process_time() - start

    few, many = Crowd(500), Crowd(4_000)
    times = [(few.round(), many.round()) for _ in range(5)]
    assert few.state.round == many.state.round == 5
    assert set(many.state.participated) == {5}
    assert min(t for _, t in times) <= 18 * min(t for t, _ in times)


@pytest.mark.parametrize(
    ("norms", "before", "left_out"),
    [
        ([1.0, 1.0, 9e5], 0.0, []),
        ([1.0, 1.0, 2e6], 0.0, [2]),
        ([1.0, 1.0, 2e6], 1e5, []),
        ([1.0, 3e6, 2e6], 0.0, []),  # the median of the others is a million
        ([0.0, 0.0, 5.0], 0.0, []),
        ([2.0], 1e-6, [0]),
        ([1.7e308, 1.7e308, 1.0], 1.0, []),
        ([1.0, 1.7e308, 1.0], 1.0, [1]),
    ],
)
def test_uploads_are_judged_by_the_median_of_the_others(norms: list[float], before: float, left_out: list[int]) -> None:
    n = len(norms)
    state = ServerState.fresh(RUN, n, {}).but(
        answers={i: Reply((np.full(2, v),), 0.0) for i, v in enumerate(norms)},
        sizes={"local": before * 2**0.5}, call=Call("local", (), 0, np.ones(n)),
    )  # fmt: skip
    assert list(audit.out_of_proportion(state)) == left_out


def test_a_disk_wiped_again_before_the_repair_arrives_loses_nothing() -> None:
    """The restored h is still owed, so the second wipe is no second loss: the client gets it with its next ask."""
    w = Wires(rounds=12)
    w.deliver()
    w.deliver()
    before = w.truth()
    w.wipe(1)
    while not w.state.counts.repaired:
        w.deliver()
    w.wipe(1)
    assert np.allclose(w.truth().sum(axis=0), 0.0, atol=1e-12)
    assert np.abs(before[1]).max() > 0
    w.finish()
    assert (w.state.counts.lost, w.state.counts.repaired, w.state.counts.recentred) == (1, 1, 0)
    assert w.state.sum_h <= 1e-12


# -- the simulator -----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("seeds", [40, pytest.param(2000, marks=pytest.mark.slow)])
@pytest.mark.long
def test_seeds_of_faults(seeds: int) -> None:
    bad, faults, counts = campaign(0, seeds)
    assert bad == []
    assert min(faults.values()) > 0
    assert all(counts[k] > 0 for k in ("damaged", "stale", "duplicates", "late", "lost", "repaired", "void", "audits"))
    assert counts["recentred"] == 0


@pytest.mark.slow
def test_a_seed_replays_identically() -> None:
    """In this process, and in another one with another order of its sets: every message has the same bytes."""
    first = [simulate(seed) for seed in range(40)]
    assert [simulate(seed) for seed in reversed(range(40))] == first[::-1]
    code = "from simulated_federation import simulate; print(*(simulate(s).digest for s in range(40)))"
    options: Any = {"env": os.environ | {"PYTHONHASHSEED": "7"}, "cwd": Path(__file__).parent}
    there = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, **options)
    assert there.stdout.split() == [out.digest for out in first], there.stderr
    assert len({out.digest for out in first}) == 40


def broken_verdict(self: Any, state: Any, ask: Any) -> Any:
    """Commits what is pending, whatever ticket it was made for."""
    return replaced(self, state, replace(ask, counted=state.pending.ticket) if state.pending and ask.outcome else ask)


def broken_forgetful(self: Any, state: Any, ask: Any) -> Any:
    """Takes an empty memory for a fresh one."""
    state, status = replaced(self, state, ask)
    return (state.but(committed=ask.counted, pending=None), 0) if status else (state, status)


def broken_upload(self: Any, state: Any, ask: Any) -> Any:
    """Does not compare its pending work with what was counted."""
    p = state.pending
    return replaced(self, state, replace(ask, upload=wire.upload_digest(p.up)) if p else ask)


replaced: Callable[..., Any] = Client._heed


@pytest.mark.parametrize(
    "bug",
    [
        broken_verdict,
        broken_forgetful,
        pytest.param(broken_upload, marks=[pytest.mark.slow, pytest.mark.timeout(1200)]),  # rare: thousands of seeds
    ],
    ids=lambda f: f.__name__,
)
def test_the_simulator_finds_bugs_in_clients(bug: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Client, "_heed", bug)
    assert campaign(0, 12_000 if bug is broken_upload else 1200, first=True)[0]


def test_the_simulator_finds_a_server_that_counts_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that averages everybody it asked with the answers of an older ticket."""
    right = server_module.Server._arrived

    def late(self: Any, state: Any, event: Any) -> Any:
        try:
            answer = wire.decode(event.raw, self.problem.d, self.limit)
        except WireError:
            return right(self, state, event)
        if isinstance(answer, wire.Answer) and answer.ticket < state.ticket and answer.up:
            event = Arrived(
                wire.encode(replace(answer, ticket=state.ticket, round=state.round, exchange=state.exchange)),
                event.sender,
            )
        return right(self, state, event)

    monkeypatch.setattr(server_module.Server, "_arrived", late)
    assert campaign(0, 300, first=True)[0]


def test_the_simulator_finds_a_partial_round_in_the_prox_form(monkeypatch: pytest.MonkeyPatch) -> None:
    """Closing a round of the everyone form with those who came is wrong: the answer changes."""
    right = server_module.Server._close

    def partial(self: Any, state: Any) -> Any:
        if self.closing == "everyone" and state.kind == "round" and len(state.answers) >= 2:
            state = state.but(asked=tuple(i for i in state.asked if i in state.answers))
        return right(self, state)

    monkeypatch.setattr(server_module.Server, "_close", partial)
    assert campaign(0, 400, first=True)[0]


def test_every_form_is_in_the_simulator() -> None:
    kinds = {federation(k)[0] for k in range(54)}
    assert "scaffnew, everyone" in kinds
    assert "scaffnew, deadline" in kinds
    assert {k.split(",")[0] for k in kinds} == {"scaffnew", "scaffold", "fedlin", "s-local-gd", "local-gd", "5gcs"}
    assert "5gcs, deadline" in kinds


# -- found by hostile reading ------------------------------------------------------------------------------------------
@pytest.mark.parametrize("audit", thinned([20, 10, 50]))
def test_an_h_that_goes_to_zero_leaves_its_rounding_behind(audit: int) -> None:
    """Equal minima: h and x fall to nothing, and what was rounded off when they were large is no client's fault."""
    rng = np.random.Generator(np.random.Philox(0))
    problem = ps.Problem([ps.Quadratic(1 + rng.random(5), np.zeros(5)) for _ in range(4)])
    server, clients = federate(ps.Scaffnew(1 / problem.L_max, 0.7), problem, 200, audit=audit)
    state, _ = drive(server, clients, RUN, 3.0 * np.ones(5))
    assert np.abs(state.vectors["x"]).max() < 1e-15
    assert not state.failed
    assert state.counts.recentred == 0
    assert state.counts.audits == 200 // audit


def test_a_client_that_is_gone_does_not_end_a_run_with_drawn_cohorts() -> None:
    """A void round draws other clients."""
    w = Wires(n=5, rounds=20, cohort=2, audit=0, measure=None)
    w.finish(but=(3,))
    assert not w.state.failed
    assert w.state.round == 20
    assert w.state.counts.void > 0
    assert w.state.participated[3] == 0


def test_who_is_missing_in_a_cohort_is_somebody_who_was_asked() -> None:
    w = Wires(n=5, rounds=20, cohort=[[1, 3]], audit=0, measure=None)
    w.finish(but=(3,))
    assert "have 1 of 2 clients, missing client-3: round 0" in w.state.failed


def test_a_last_measurement_that_fails_is_not_an_older_one() -> None:
    w = Wires(rounds=6, measure=2, audit=3)
    while not w.state.over:
        last = w.state.round == 6
        w.deliver(but=(1,) if last else ())
    assert np.isnan([w.state.grad_norm, w.state.f, w.state.sum_h]).all()
    assert "the gradient at the answer is not known: have 3 of 4 clients, missing client-1." in w.state.notes


def test_a_run_that_missed_clients_goes_on_when_they_are_back() -> None:
    w = Wires(rounds=6, patience=2)
    w.deliver()
    w.finish(but=(0, 1, 2))
    assert "have 1 of 4 clients" in w.state.failed
    w.restart()
    w.finish()
    assert not w.state.failed
    assert w.state.round == 6


def test_more_rounds_or_a_smaller_tolerance_go_on_from_the_end() -> None:
    w = Wires(rounds=5, tol=1e-1, measure=1)
    w.finish()
    at = w.state.round
    assert w.state.reached
    for rounds, tol in ((40, 1e-2), (60, None), (70, None)):
        w.server = replace(w.server, rounds=rounds, tol=tol, names=w.server.names)
        w.restart()
        w.finish()
        assert w.state.round > at
        at = w.state.round
        assert w.state.reached == (tol is not None)
    assert at == 70
    whole = Wires(rounds=70, measure=1)
    whole.finish()
    assert np.array_equal(w.state.vectors["x"], whole.state.vectors["x"])


def test_an_update_of_another_length_is_damaged() -> None:
    w = Wires()
    w.deliver(change={0: lambda answer: replace(answer, up=(np.zeros(w.problem.d + 1),))})
    assert w.state.counts.damaged == 1
    assert w.state.participated == (0, 1, 1, 1)


def test_every_rejection_is_named() -> None:
    w = Wires(rounds=60, audit=0)
    for r in range(30):
        w.deliver(change={1: with_entry(r % 4, np.nan)})
    assert w.state.counts.rejected == 30
    notes = [note.split(";")[0] for note in w.state.notes if note.startswith("client-1, round")]
    assert notes == [f"client-1, round {r}: entry {r % 4} of vector 0 is nan" for r in range(20)]


@pytest.mark.parametrize("options", [{"closing": "everyone", "n": 3}, {"n": 2}])
def test_a_client_that_always_says_lost_ends_the_run(options: dict[str, Any]) -> None:
    w = Wires(rounds=5, patience=3, **options)
    w.deliver()
    for _ in range(100):
        w.deliver(change={1: lambda answer: replace(answer, status=wire.LOST, up=())})
    assert "missing client-1: round 1 could not be closed in 4 attempts" in w.state.failed


def test_notes_have_an_end() -> None:
    state = Wires().state
    for k in range(2_000):
        state = state.note(f"note {k}")
    assert len(state.notes) == 1_001
    assert state.notes[-1] == "further events are not listed."


def test_a_message_is_measured_by_what_it_unpacks_to() -> None:
    """float32 becomes float64: twice the bytes."""
    d = 1_000
    short = np.ones(d, dtype="<f4").tobytes()
    answer = wire.Answer(RUN, 1, 0, 0, 1, 0, bytes(32), (short,) * 8)
    raw = wire.encode(answer)
    with pytest.raises(wire.WireError, match=f"over the limit of {len(raw)} bytes in float64"):
        wire.decode(raw, d, len(raw))


def test_an_h_to_adopt_is_adopted_whatever_its_number() -> None:
    """An older copy of the server came back, and counts tickets that the client has seen otherwise."""
    w = Wires(rounds=9, audit=0)
    for _ in range(3):
        w.deliver()
    memory, ask = w.memory[1], next(a for a in w.asks if a.client == 1)
    (memory, _) = w.clients[1].step(memory, wire.encode(ask))
    h = np.arange(4.0)
    told = replace(ask, ticket=ask.ticket + 1, counted=memory.committed, settle=".adopt", outcome=(h,))
    for ticket in (1, 2):
        memory, (raw,) = w.clients[1].step(memory, wire.encode(replace(told, ticket=ask.ticket + ticket)))
        assert np.array_equal(memory.memory["h"], h)
        answer = wire.decode(raw, w.problem.d)
        assert (answer.status, answer.digest) == (wire.OK, memory.digest)


@pytest.mark.slow
def test_the_state_of_many_clients_fits_its_file(tmp_path: Path) -> None:
    problem = ps.Problem([ps.Quadratic(np.ones(2), np.full(2, float(i))) for i in range(20_000)])
    server = Server(ps.Scaffnew(1.0, 0.5), problem, 3)
    state = server.start(RUN)
    state = state.but(digests=tuple(i.to_bytes(32, "big") for i in range(20_000)))
    checkpoint.save(tmp_path, state.arrays(), {"state": state.meta()}, name="server")
    saved = checkpoint.load(tmp_path, name="server")
    assert ServerState.of(saved.arrays, saved.meta["state"]).digests == state.digests
