"""The protocol: the engines' trajectory bit for bit, one commit for each counted ticket, and no harm from any message."""

import itertools
import json
import os
import random
import re
import subprocess
import sys
import time
import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import proxskip as ps
from campaigns.chaos_protocol import LIMIT, campaign, hostile, mutated
from proxskip.flower import Ask, ClientNode, ClientState, Server, ServerState, messages, schema
from proxskip.flower.tickets import Purpose, Ticket
from proxskip.participation import as_participation
from proxskip.results import checkpoint, sealed
from proxskip.results.result import Status
from support.lockstep import CENTRAL, RUN, Wires, drive, federate, forked, forms_of
from support.methods import METHODS, Row
from support.problems import WEIGHTS, quadratics
from support.simulated_federation import simulate
from support.tiers import draws, thinned

# -- the same trajectory as an engine ----------------------------------------------------------------------------------


@pytest.mark.parametrize("batch", [None, 6])
@pytest.mark.parametrize("row", thinned(CENTRAL, 2))
@pytest.mark.long
def test_a_run_without_faults_is_the_cpu_engines_bit_for_bit(row: Row, batch: int | None) -> None:
    """Every method with client halves, full gradients and minibatches, rounds that wait and rounds that close."""
    if batch and not row.claims("batch"):
        pytest.skip("needs full gradients")
    problem = row.rows(sparse=batch is not None).with_batch(batch)
    for closing, cohort in forms_of(row, problem):
        server, clients = federate(row.make(problem), problem, closing=closing, cohort=row.cohort, seed=4)
        state, memories = drive(server, clients)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ps.UnsafeStepWarning)
            judge = ps.run(row.make(problem), problem, rounds=8, seed=4, cohort=cohort, allow_unsafe_step=True)
        assert (state.round, *state.verdict) == (8, ps.Status.LIMIT, "reached the limit of 8 rounds.")
        assert np.array_equal(state.vectors["x"], judge.x)
        for k in {"h", "v"} & {*judge.memory}:
            assert np.array_equal(np.array([m.memory[k] for m in memories]), judge.memory[k])
        assert state.grad_norm == pytest.approx(judge.trace.last()["grad_norm"], rel=1e-9)
        assert state.f == pytest.approx(judge.trace.last()["f"], rel=1e-12)


ALONE = [name for name, kind in ps.core.METHODS.items() if "graph" not in kind.about.handles and name != "tamuna"]


@pytest.mark.parametrize("name", ALONE)
def test_a_federation_of_one_client_is_the_cpu_engines_bit_for_bit(name: str) -> None:
    """Audits and measurements between the rounds change nothing."""
    f, kind = METHODS[0].rows(sparse=False).clients[0], ps.core.METHODS[name]
    D = np.eye(f.d)[:-1] - np.eye(f.d)[1:] if "D" in kind.about.handles else None
    psis = [ps.prox.L1(0.01)] if D is not None else [None, ps.prox.L1(0.01)] if "psi" in kind.about.handles else [None]
    for psi, batch in itertools.product(psis, [None, 4] if "batch" in kind.about.handles else [None]):
        problem = ps.Problem([f], psi=psi, D=D, batch=batch)
        method = kind.theory(problem)
        server, clients = federate(method, problem, 9, closing="everyone", seed=3, audit=2, measure=2)
        state, _ = drive(server, clients)
        assert (state.round, state.verdict[0], state.notes) == (9, ps.Status.LIMIT, [])
        assert state.vectors["x"].tobytes() == ps.run(method, problem, rounds=9, seed=3).x.tobytes()


@pytest.mark.parametrize(
    ("make", "options", "reason"),
    [
        (ps.DecentralizedScaffnew.theory, {}, "has no server"),
        (lambda p: ps.Decaying(ps.Scaffnew.theory(p), 0.1), {}, "needs a fixed step size"),
        (ps.FedLin.theory, {"closing": "deadline"}, "needs all clients in every round"),
        (ps.Scaffnew.theory, {"closing": "deadline", "psi": ps.prox.L1(0.1)}, "needs the h of all clients"),
        (ps.Scaffnew.theory, {"closing": "everyone", "cohort": 2}, "cannot be combined with cohorts"),
        (ps.Scaffnew.theory, {"names": ("a", "b", "a", "c")}, 'two clients have the name "a"'),
        (lambda p: Borrowed(), {}, 'asks its clients for "local_in_cohort", which a message cannot name'),
    ],
)
def test_federations_that_cannot_be_are_refused(make: Any, options: dict[str, Any], reason: str) -> None:
    problem = ps.Problem(quadratics(4)).with_psi(options.pop("psi", None))
    with pytest.raises(ps.InputError, match=reason):
        Wires(problem=problem, method=make(problem), **options)


def test_the_solution_is_found_with_dropouts_and_after_all_clients_forget() -> None:
    w, rng = Wires(rounds=100), random.Random(1)
    w.play(20)
    for i in range(4):
        w.wipe(i)
    while not w.state.over:
        w.deliver(but=tuple(i for i in range(4) if w.state.counts.repaired == 4 and rng.random() < 0.3))
    assert (w.state.round, w.state.counts.repaired, w.state.counts.recentred) == (100, 4, 0)
    assert w.error() <= 1e-8


def test_all_sorts_of_ids_apply_nothing() -> None:
    """Every mixture of right and wrong (run, ticket, exchange, client, round, base): the one that is asked for counts."""
    w = Wires()
    (raw,) = w.work(w.asks[1])
    answer = messages.decode(raw, w.problem.d)
    names = ("run", "ticket", "exchange", "client", "round", "base")
    forms = ((RUN, bytes(range(1, 17))), (0, 1, 2, 2**60), (0, 1, 9), (0, 1, 7), (0, 1), (0, 1))
    applied = 0
    for values in itertools.product(*forms):
        forged = replace(answer, **dict(zip(names, values, strict=True)))
        server = forked(w.server)
        server.arrived(messages.encode(forged), 1)
        counts = server.state.counts
        applied += 1 in server.under_way.answers
        assert (1 in server.under_way.answers) == (forged == answer)
        assert counts.foreign == (forged.run != RUN or forged.client != 1)
        if not counts.foreign and (forged.ticket, forged.exchange) != (answer.ticket, 0):
            assert counts.stale == 1
    assert applied == 1


def test_two_exchanges_a_round_survive_a_client_that_forgets_between_them() -> None:
    w = Wires(method=ps.FedLin(0.02, 3), rounds=3)
    for ask in list(w.asks):
        for raw in w.work(ask):
            w.arrive(raw, ask.client)
    assert w.ticket.exchange == 1
    w.wipe(2)
    w.deliver()
    w.finish()
    judge, _ = drive(*federate(ps.FedLin(0.02, 3), w.problem, 3))
    assert np.array_equal(w.state.vectors["x"], judge.vectors["x"])
    assert w.state.counts.void >= 1


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
        (lambda p: ps.FiveGCS.theory(p, cohort=3, figure=True), "deadline", 3),
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
    owed = w.state.outcomes[int(w.state.counted[2])]
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


def test_lost_memory_waits_until_everybody_else_is_there() -> None:
    w = Wires(rounds=30)
    w.play(5)
    w.wipe(2)
    while w.state.round < 12:
        w.deliver(but=(0,) if w.ticket.purpose is Purpose.AUDIT else ())
    assert (w.state.lost, w.state.participated[2]) == ({2}, 5)
    w.finish()
    assert (w.state.counts.repaired, w.state.counts.recentred) == (1, 0)
    assert w.state.sum_h <= 1e-12


def test_a_regulariser_heals_a_lost_h() -> None:
    problem = ps.Problem(quadratics(4)).with_psi(ps.prox.L1(0.01))
    w = Wires(rounds=100, problem=problem, method=ps.Scaffnew.theory(problem))
    w.play(20)
    w.wipe(1)
    w.finish()
    assert any("restarts from zero" in note for note in w.state.notes)
    assert w.state.grad_norm <= 1e-8


def test_a_memory_that_was_changed_behind_the_clients_back_is_noticed() -> None:
    w = Wires(rounds=12)
    w.play(4)
    w.arrive(w.work(w.asks[1])[0], 1)  # the server hears that client 1 has committed round 3
    w.end(w.now)  # and the round is void
    truth = w.truth()[1]
    w.spoil(1, 1.0)
    w.memory[1] = schema.joined(ClientState, *schema.split(w.memory[1]))
    w.deliver()
    assert any("answered from another memory than before" in note for note in w.state.notes)
    while w.state.counts.repaired < 1:
        w.deliver()
    assert np.abs(w.state.outcomes[int(w.state.counted[1])].vectors[0] - truth).max() <= 1e-14 * (
        1 + np.abs(truth).max()
    )
    w.finish()
    assert w.state.counts.recentred == 0


def test_an_old_copy_of_the_disk_is_not_taken_for_the_newest() -> None:
    w = Wires(rounds=8)
    w.play(2)
    backup = w.memory[0]
    w.play(4)
    w.memory[0] = backup
    w.finish()
    assert (w.state.counts.lost, w.state.counts.recentred) == (1, 0)


# -- the audit ---------------------------------------------------------------------------------------------------------
def test_the_audit_sets_a_broken_sum_to_zero_and_says_so() -> None:
    w = Wires(rounds=120, audit=10)
    w.play(15)
    w.spoil(1, 0.5)  # the digest is still the old one
    w.finish()
    assert w.state.counts.recentred == 1
    assert any(note.startswith("sum_i w_i h_i was 0.1") for note in w.state.notes)
    assert w.state.verdict[0] is ps.Status.LIMIT
    assert w.error() <= 1e-8


@pytest.mark.parametrize("again", [True, False])
def test_a_sum_that_breaks_again_ends_the_run(again: bool) -> None:
    """A run that fails for another reason after its sum was mended is not called corrupted."""
    w = Wires(rounds=100, audit=5, least=4, patience=2)
    w.play(7)
    w.spoil(2, 0.5)
    while not w.state.recentred:
        w.deliver()
    if again:
        w.spoil(2, 0.5)
    w.finish(but=() if again else (0,))
    status, message = w.state.verdict
    assert ("again after it was set to zero" in message) == again
    assert status is (ps.Status.CORRUPTED if again else ps.Status.INTERRUPTED)
    kept = schema.joined(ServerState, *w.server.save())
    assert kept.verdict == (status, message)


@pytest.mark.parametrize(
    ("scale", "b", "p", "audit"), [(1e8, 1.0, None, 3), *((1.0, 0.0, 0.7, every) for every in (10, 50))]
)
def test_the_audit_has_no_false_alarm(scale: float, b: float, p: float | None, audit: int) -> None:
    """L = 1e8, and equal minima, where h falls to nothing and what was rounded off while it was large stays behind."""
    problem = ps.Problem([ps.Quadratic(f.H * scale, f.b * scale * b) for f in quadratics(4, kappa=2.0)])
    method = ps.Scaffnew(1 / problem.L_max, p) if p else ps.Scaffnew.theory(problem)
    state, _ = drive(*federate(method, problem, 200, audit=audit), RUN, 3.0 * np.ones(problem.d))
    assert b or np.abs(state.vectors["x"]).max() < 1e-15
    found = (state.verdict[0], state.counts.audits, state.counts.recentred)
    assert found == (ps.Status.LIMIT, -(-200 // audit), 0)


@pytest.mark.parametrize(
    ("method", "closings"),
    [
        (ps.Scaffnew(0.5, 0.4), ("deadline", "everyone")),
        (ps.Scaffold(0.1, 3), ("deadline", "everyone")),
        (ps.Scaffold(0.1, 3, option="I"), ("deadline", "everyone")),
        (ps.FedLin(0.05, 3), ("everyone",)),
        (ps.SLocalGD(0.05, 0.5, 0.3), ("everyone",)),
    ],
)
def test_float32_uploads_keep_the_sum_at_zero(method: Any, closings: tuple[str, ...]) -> None:
    """h is updated from the vector as it was sent, so rounding moves x and not the sum."""
    problem = ps.Problem(quadratics(4), WEIGHTS)
    for closing in closings:
        state, _ = drive(*federate(method, problem, 20, closing=closing, itemsize=4, audit=4))
        exact, _ = drive(*federate(method, problem, 20, closing=closing))
        assert (state.counts.audits, state.counts.recentred) == (5, 0)
        assert 0 < np.abs(state.vectors["x"] - exact.vectors["x"]).max() <= 1e-6


# -- bad updates -------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("rounds_before", [0, 1, 3])
@pytest.mark.parametrize(
    ("change", "said"),
    [
        *((lambda a, k=k, bad=bad: replace(a, up=(np.where(np.arange(4) == k, bad, a.up[0]),)),
           f": entry {k} of vector 0 is {bad}") for k, bad in ((0, np.nan), (3, np.inf), (1, -np.inf))),
        (lambda a: replace(a, up=(np.zeros(5),)), ": vector 0 has 5 numbers instead of 4"),
    ],
)  # fmt: skip
def test_a_bad_upload_leaves_the_others_as_if_the_client_were_absent(
    change: Any, said: str, rounds_before: int
) -> None:
    a, b = Wires(), Wires()
    a.play(rounds_before)
    b.play(rounds_before)
    a.deliver(change={2: change})
    b.deliver(but=(2,))
    assert (a.state.counts.rejected, a.state.counts.damaged) == (1, 0)
    assert f"client-2, round {rounds_before}{said}" in a.state.notes[-1]
    assert np.array_equal(a.state.vectors["x"], b.state.vectors["x"])
    assert a.state.counted.tolist() == b.state.counted.tolist()


def test_other_wrong_updates_are_named() -> None:
    w = Wires()
    (raw,) = w.work(w.asks[0])
    answer = messages.decode(raw, w.problem.d)
    for wrong, said in (
        ({"up": ()}, "holds 0 vectors instead of 1"),
        ({"up": answer.up * 2}, "holds 2 vectors instead of 1"),
        ({"up": (answer.up[0].astype(np.float32).tobytes(),)}, "are in the wrong format"),
        ({"value": np.nan}, "its value is nan"),
        ({"round": 7}, "it says round 7"),
    ):
        server = forked(w.server)
        server.arrived(messages.encode(replace(answer, **wrong)), 0)
        assert said in server.state.notes[-1]
        assert 0 not in server.under_way.answers


def test_every_flipped_bit_is_refused_and_asked_for_again() -> None:
    w = Wires()
    (raw,) = w.work(w.asks[1])
    for k in range(8 * len(raw)):
        flipped = bytearray(raw)
        flipped[k // 8] ^= 1 << k % 8
        w.arrive(bytes(flipped), 1)
        assert not w.ticket.answers
        assert w.state.counts.damaged == k + 1
    assert [a.client for a in w.server.again()] == [0, 1, 2, 3]
    w.arrive(raw, 1)
    assert [a.client for a in w.server.again()] == [0, 2, 3]


@pytest.mark.slow
def test_hostile_messages_are_all_refused() -> None:
    found = hostile(5_000, seed=1)
    assert found.crashes == []
    assert found.accepted == 0
    assert min(found.refused[k] for k in ("damaged", "rejected", "foreign", "stale")) > 0
    # messages as large as the cap were read, and their vectors copied at most twice
    assert LIMIT // 2 < found.most <= 2.0 * LIMIT


def test_asks_that_are_damaged_or_name_no_half_do_nothing() -> None:
    w = Wires()
    w.deliver()
    raw, rng, before = messages.encode(w.asks[1]), random.Random(2), w.memory[1]
    forged = [w.asks[0], replace(w.asks[1], run=bytes(16))]
    for message in [messages.encode(ask) for ask in forged] + [mutated(rng, raw, kinds=4) for _ in range(2_000)]:
        assert w.clients[1].step(before, message) == (before, [])
    for name in ("round", "check", "theory", "complete", "zeta", "lyapunov"):
        assert w.clients[1].step(before, messages.encode(replace(w.asks[1], half=name)))[1] == []
    with pytest.raises(messages.WireError):
        messages.encode(replace(w.asks[1], half="__init__"))


def test_the_limit_holds_to_the_byte() -> None:
    """A message is measured by what it unpacks to: float32 becomes float64, twice the bytes."""
    w = Wires()
    raw = messages.encode(w.asks[0])
    size = len(raw)
    assert messages.encode(w.asks[0], size) == raw
    assert messages.decode(raw, w.problem.d, size)
    with pytest.raises(ps.InputError, match=f"{size} bytes exceeds the limit of {size - 1}"):
        messages.encode(w.asks[0], size - 1)
    with pytest.raises(messages.WireError, match="over the limit"):
        messages.decode(raw, w.problem.d, size - 1)
    short = np.ones(1_000, dtype="<f4").tobytes()
    raw = messages.encode(messages.Answer(RUN, 1, 0, 0, 1, 0, bytes(32), (short,) * 8))
    with pytest.raises(messages.WireError, match=f"over the limit of {len(raw)} bytes in float64"):
        messages.decode(raw, 1_000, len(raw))


@settings(max_examples=draws(200))
@given(data=st.data())
def test_what_is_sent_is_what_arrives(data: st.DataObject) -> None:
    d = data.draw(st.integers(1, 5))
    number = st.floats(allow_nan=False, allow_infinity=False)
    vectors = st.lists(st.lists(number, min_size=d, max_size=d).map(np.array), max_size=3).map(tuple)
    count, small = st.integers(0, 2**60), st.integers(0, 2**32 - 1)
    run, settle = st.binary(min_size=16, max_size=16), st.sampled_from(["", "settle"])
    half, down, outcome = st.just("local_in_cohort"), vectors.filter(len), st.none() | vectors
    ask = data.draw(st.builds(Ask, run, count, count, small, small, half, small, down, count, settle, outcome))
    back = messages.decode(messages.encode(ask), d)
    assert isinstance(back, Ask)
    assert [v.tobytes() for v in back.down] == [v.tobytes() for v in ask.down]
    assert (back.outcome is None) == (ask.outcome is None)
    assert [v.tobytes() for v in back.outcome or ()] == [v.tobytes() for v in ask.outcome or ()]
    assert replace(back, down=(), outcome=None) == replace(ask, down=(), outcome=None)


# -- restarts and notes ------------------------------------------------------------------------------------------------
def test_states_read_back_from_their_arrays() -> None:
    w = Wires(rounds=12, audit=3)
    while not w.state.over:
        w.deliver(but=(w.state.ticket % 5,) if w.state.ticket % 2 else ())
        arrays, meta = w.server.save()
        back = schema.joined(ServerState, arrays, meta)
        assert set(map(type, back.outcomes)) <= {int}
        assert back.verdict is None or isinstance(back.verdict[0], Status)
        again, meta_again = schema.split(back)
        # as text, since nan is not nan
        assert repr(meta_again) == repr(meta)
        assert all(np.array_equal(v, again[k]) for k, v in arrays.items())
        for k, memory in enumerate(w.memory):
            arrays, meta = schema.split(memory)
            w.memory[k] = schema.joined(ClientState, arrays, json.loads(json.dumps(meta)))
            assert w.memory[k].digest == memory.digest
            assert repr(w.memory[k]) == repr(memory)


def test_a_federation_that_diverges_says_what_a_run_says() -> None:
    """GD beyond 2/L, measured in every round: the same verdict in the same round, also after a restart."""
    w = Wires(rounds=1000, method=ps.GD(4.0), measure=1)
    w.play(1)
    w.restart()
    w.finish()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ps.UnsafeStepWarning)
        judge = ps.run(ps.GD(4.0), w.problem, rounds=1000, every=1, allow_unsafe_step=True)
    assert judge.status is ps.Status.DIVERGED
    assert w.server.verdict() == (judge.status, judge.message)
    assert np.array_equal(w.state.vectors["x"], judge.x)
    w = Wires(rounds=1000, method=ps.GD(300.0 / w.problem.L_average), audit=0)
    w.finish(most=1000)  # without measurements it ends once no upload is finite, and the last finite x is kept
    assert w.state.round < 1000
    assert re.search("entry . of vector 0 is (inf|-inf|nan)", w.server.verdict()[1])
    assert np.isfinite(w.state.vectors["x"]).all()


@dataclass(frozen=True)
class Plain(ps.core.Method):
    """LocalGD that remembers an h which is no control variate."""

    gamma: float = 0.1
    about = ps.core.About("plain", handles=frozenset({"clients", "cohort"}), remembers=("h",))

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


@dataclass(frozen=True)
class Wrong(Plain):
    """A half with a mistake of its author's."""

    def local(self, client: Any, memory: Any, K: int, x: Any) -> Any:
        raise TypeError("a mistake of the author's")


@dataclass(frozen=True)
class Later(Plain):
    """The same method in a later version, whose half takes one vector more."""

    def local(self, client: Any, memory: Any, K: int, x: Any, v: Any) -> Any:  # type: ignore[override]
        raise AssertionError


@dataclass(frozen=True)
class Borrowed(Plain):
    def round(self, server: Any, exchange: Any) -> Any:
        return {"x": exchange(ps.Scaffnew(0.1, 0.5).local_in_cohort, server["x"], K=1)[0]}


def test_an_h_that_is_no_control_variate_is_not_audited() -> None:
    w = Wires(rounds=4, method=Plain(), audit=1)
    w.finish()
    assert (w.state.round, w.state.counts.audits, w.state.verdict[0]) == (4, 0, ps.Status.LIMIT)


def test_two_versions_of_a_method_get_a_sentence_and_a_mistake_in_a_half_stays_what_it_is() -> None:
    w = Wires(method=Plain())
    ask = messages.encode(w.asks[0])
    client = w.clients[w.asks[0].client]
    with pytest.raises(
        ps.InputError, match=r'half "local" does not take 1 vectors: .*; install the same method on both'
    ):
        replace(client, method=Later()).step(ClientState(RUN), ask)
    with pytest.raises(TypeError, match=r"^a mistake of the author's$"):
        replace(client, method=Wrong()).step(ClientState(RUN), ask)


@pytest.mark.parametrize("cohort", [None, 3])
def test_a_method_that_needs_its_whole_cohort_closes_no_round_without_it(cohort: int | None) -> None:
    for method, counted in ((Plain(), 1), (Masked(), 0)):
        w = Wires(method=method, cohort=as_participation(cohort))
        w.deliver(but=(w.asks[0].client,))
        assert (w.state.round, w.state.counts.void) == (counted, 1 - counted)


def test_a_round_takes_a_time_in_proportion_to_its_clients() -> None:
    """Eight times as many clients take eight times as long, not 64 times: the server's own time, the best of several."""

    def seconds_of_a_round(w: Wires) -> float:
        answers = [(raw, ask.client) for ask in w.asks for raw in w.work(ask)]
        start = time.process_time()
        for answer in answers:
            w.arrive(*answer)
        return time.process_time() - start

    f = ps.Quadratic(np.ones(2), np.ones(2))
    few, many = (Wires(100, problem=ps.Problem([f] * n), audit=0, measure=None) for n in (100, 800))
    times = [(seconds_of_a_round(few), seconds_of_a_round(many)) for _ in range(4)]
    assert few.state.round == many.state.round == 4
    assert set(many.state.participated) == {4}
    assert min(t for _, t in times) <= 18 * min(t for t, _ in times)


@pytest.mark.parametrize("seeds", [40, pytest.param(600, marks=pytest.mark.slow)])
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
    code = "from support.simulated_federation import simulate; print(*(simulate(s).digest for s in range(40)))"
    options: Any = {"env": os.environ | {"PYTHONHASHSEED": "7"}, "cwd": Path(__file__).parents[1]}
    there = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, **options)
    assert there.stdout.split() == [out.digest for out in first], there.stderr
    assert len({out.digest for out in first}) == 40


def broken_verdict(heed: Any, self: Any, state: Any, ask: Any) -> Any:
    """Commits what is pending, whatever ticket it was made for."""
    return heed(self, state, replace(ask, counted=state.pending.ticket) if state.pending and ask.outcome else ask)


def closes_in_part(close: Any, self: Any, ticket: Ticket) -> Any:
    """Closes a round of the everyone form with those who came: the answer changes."""
    if self.closing == "everyone" and ticket.purpose is Purpose.ROUND and len(ticket.answers) >= 2:
        ticket.asked = ticket.cohort
    return close(self, ticket)


@pytest.mark.parametrize(
    ("kind", "verb", "bug", "seeds"),
    [
        (ClientNode, "_heed", broken_verdict, 1200),
        (Server, "_close", closes_in_part, 400),
    ],
)
def test_the_simulator_finds_bugs(kind: Any, verb: str, bug: Any, seeds: int, monkeypatch: pytest.MonkeyPatch) -> None:
    right = getattr(kind, verb)
    monkeypatch.setattr(kind, verb, lambda *given: bug(right, *given))
    assert campaign(0, seeds, first=True)[0]


def test_a_client_that_is_gone_ends_only_runs_that_always_ask_it() -> None:
    """A void round draws other clients; those who are missing are some who were asked."""
    w = Wires(n=5, rounds=20, cohort=2, audit=0, measure=None)
    w.finish(but=(3,))
    assert (w.state.verdict[0], w.state.round, w.state.participated[3]) == (ps.Status.LIMIT, 20, 0)
    assert w.state.counts.void > 0
    w = Wires(n=5, rounds=20, cohort=[[1, 3]], audit=0, measure=None)
    w.finish(but=(3,))
    assert "have 1 of 2 clients, missing client-3: round 0" in w.state.verdict[1]


def test_a_last_measurement_that_fails_is_not_an_older_one() -> None:
    w = Wires(rounds=6, measure=2, audit=3)
    while not w.state.over:
        last = w.state.round == 6
        w.deliver(but=(1,) if last else ())
    assert np.isnan([w.state.grad_norm, w.state.f, w.state.sum_h]).all()
    assert "the gradient at the answer is unknown: have 3 of 4 clients, missing client-1." in w.state.notes


def test_a_run_that_missed_clients_goes_on_when_they_are_back() -> None:
    w = Wires(rounds=6, patience=2)
    w.deliver()
    w.finish(but=(0, 1, 2))
    assert "have 1 of 4 clients" in w.state.verdict[1]
    w.restart()
    w.finish()
    assert (w.state.verdict[0], w.state.round) == (ps.Status.LIMIT, 6)


def test_more_rounds_or_a_smaller_tolerance_go_on_from_the_end() -> None:
    w = Wires(rounds=40, tol=1e-1, measure=5)
    w.finish()
    done = [w.state.round]
    for rounds, tol in ((40, 1e-4), (60, None), (80, None)):
        assert w.state.reached == w.server.stop.has_tolerance
        assert not w.state.reached or w.state.grad_norm <= w.server.stop.tol
        w.restart(rounds=rounds, tol=tol)
        w.finish()
        done.append(w.state.round)
    assert 0 < done[0] < done[1] < done[2] == 60
    assert not any(r % 5 for r in done)
    whole = Wires(rounds=80, measure=5)
    whole.finish()
    assert np.array_equal(w.state.vectors["x"], whole.state.vectors["x"])


@pytest.mark.parametrize("options", [{"closing": "everyone", "n": 3}, {"n": 2}])
def test_a_client_that_always_says_lost_ends_the_run(options: dict[str, Any]) -> None:
    w = Wires(rounds=5, patience=3, **options)
    w.deliver()
    for _ in range(100):
        w.deliver(change={1: lambda answer: replace(answer, status=messages.LOST, up=())})
    assert "missing client-1: round 1 failed 4 times in a row" in w.state.verdict[1]


def test_a_question_asked_again_gets_the_stored_bytes_and_another_of_its_number_gets_none() -> None:
    w = Wires(rounds=3)
    ask = w.asks[1]
    (raw,) = w.work(ask)
    gradients = w.clients[1].worker.gradients
    w.memory[1] = schema.joined(ClientState, *schema.split(w.memory[1]))  # it came back from its file
    assert w.work(ask) == [raw]
    (other,) = w.work(replace(ask, down=tuple(v + 1.0 for v in ask.down)))
    answer = messages.decode(other, w.problem.d)
    assert (answer.status, answer.up) == (messages.AHEAD, ())
    assert w.clients[1].worker.gradients == gradients


@pytest.mark.parametrize(
    ("name", "value"),
    [("K", -1), ("K", 2**63), ("round", True), ("half", "No"), ("settle", "No"), ("upload", "00"), ("down", [9]),
     ("down", [-1]), ("outcome", [True]), ("own", {"a": 1}), ("own", {"No": 1.0})],
)  # fmt: skip
def test_an_ask_with_a_wrong_field_is_no_ask(name: str, value: Any) -> None:
    arrays, meta, _ = sealed.unseal(messages.encode(Wires().asks[0]))
    forged = b"".join(sealed.seal(arrays, meta | {name: value}))
    with pytest.raises(messages.WireError, match=f'a wrong "{name}"|a vector that is missing'):
        messages.decode(forged, 4)


def test_an_h_to_adopt_is_adopted_whatever_its_number() -> None:
    """An older copy of the server came back, and counts tickets that the client has seen otherwise."""
    w = Wires(rounds=9, audit=0)
    for _ in range(3):
        w.deliver()
    memory, ask = w.memory[1], next(a for a in w.asks if a.client == 1)
    (memory, _) = w.clients[1].step(memory, messages.encode(ask))
    h = np.arange(4.0)
    told = replace(ask, ticket=ask.ticket + 1, counted=memory.committed, settle=".adopt", outcome=(h,))
    for ticket in (1, 2):
        memory, (raw,) = w.clients[1].step(memory, messages.encode(replace(told, ticket=ask.ticket + ticket)))
        assert np.array_equal(memory.memory["h"], h)
        answer = messages.decode(raw, w.problem.d)
        assert (answer.status, answer.digest) == (messages.OK, memory.digest)


@pytest.mark.slow
def test_the_state_of_many_clients_fits_its_file(tmp_path: Path) -> None:
    problem = ps.Problem([ps.Quadratic(np.ones(2), np.full(2, float(i))) for i in range(20_000)])
    server = Server(ps.Scaffnew(1.0, 0.5), problem, 3)
    server.begin(RUN)
    server.state.digests = np.random.default_rng(0).integers(0, 256, (20_000, 32), dtype=np.uint8)
    arrays, meta = server.save()
    checkpoint.save(tmp_path, arrays, {"state": meta}, name="server")
    saved = checkpoint.load(tmp_path, name="server")
    back = schema.joined(ServerState, saved.arrays, saved.meta["state"])
    assert np.array_equal(back.digests, server.state.digests)
