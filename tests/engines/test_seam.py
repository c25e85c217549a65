"""The seam carries the family: every engine and the protocol agree on methods that use all of it, and count it right."""

import struct
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import pytest

import proxskip as ps
from proxskip.codecs import Identity, Key, L1Selection, Natural, read_back
from proxskip.core.engine import Request
from proxskip.engines.cpu import engine as cpu_engine
from proxskip.engines.cpu.engine import CpuEngine
from proxskip.engines.reference import ReferenceEngine
from proxskip.flower import messages
from proxskip.participation import as_participation
from proxskip.support.randomness import anchor_coin, stream
from support import family
from support.comparing import close
from support.family import Float32, Halved, LocalSolver, Masks, Mixture, RandK, Signs
from support.lockstep import Wires, drive, federate
from support.machine import Machine
from support.problems import model, quadratics
from support.tiers import TORCH

pytestmark = pytest.mark.long

ROUNDS, SEED, N = 8, 4, 4
COUNTED = ("vectors", "floats", "bytes", "bits", "grad_evals", "local_steps", "iterations", "exchanges")


# -- the family on small problems --------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Member:
    name: str
    make: Callable[[ps.Problem], ps.core.Method]
    cohort: int | None = None
    batch: bool = True


def rate(problem: ps.Problem) -> float:
    return 1.0 / problem.es_A


STEPS = (1, 3, 0, 2)
FAMILY = (
    Member("tamuna", lambda p: ps.Tamuna(rate(p), 0.4, 2, 0.5), cohort=3),
    Member("compressed-scaffnew", lambda p: ps.Tamuna(rate(p), 0.4, 3, 0.5)),
    Member("locodl", lambda p: ps.LoCoDL.theory(p, codec="rand-2+natural"), batch=False),
    Member("locodl-l1", lambda p: ps.LoCoDL.theory(p, codec="l1-3+float32"), batch=False),
    Member("scaffnew-float32", lambda p: ps.Scaffnew(rate(p), 0.4, codec=Float32()), batch=False),
    Member("gradskip", lambda p: ps.GradSkip(rate(p) / 10, 0.3, (0.5, 0.9, 1.0, 0.2)), batch=False),
    Member("scaffnew-vr", lambda p: ps.ScaffnewVR(rate(p) / 3, 0.3, 0.2)),
    Member("local-solver", LocalSolver.of),
    Member("local-solver-randk", lambda p: LocalSolver.of(p, codec=RandK(2))),
    Member("local-solver-signs", lambda p: LocalSolver.of(p, codec=Signs())),
    Member("local-solver-until", lambda p: LocalSolver.of(p, K=9, until=0.3)),
    Member("local-solver-two", lambda p: LocalSolver.of(p, K=9, until=0.3, first=2)),
    Member("halved", lambda p: Halved(rate(p), 0.4)),
    Member("mixture", lambda p: Mixture(rate(p), STEPS, RandK(2))),
    Member("mixture-cohort", lambda p: Mixture(rate(p), STEPS, Masks(2)), cohort=3),
    Member("mixture-no-anchor", lambda p: Mixture(rate(p), STEPS, Float32(), anchored=False)),
    Member("mixture-no-steps", lambda p: Mixture(rate(p), (0,) * N, Signs(), anchored=False)),
)
NAMED = {m.name: m for m in FAMILY}


@cache
def problem_of(kind: str, batch: int | None = None) -> ps.Problem:
    if kind == "quadratic":
        return ps.Problem(quadratics(N, own=True))
    if kind == "one-unknown":
        return ps.Problem([ps.Quadratic(np.array([[1.0 + i]]), np.array([1.0 - i])) for i in range(N)])
    whole = model("logistic", kind == "sparse", l2=0.1)
    return ps.split(whole, clients=N, by="label", weights="equal").with_batch(batch)


KINDS = (("quadratic", None), ("sparse", 12), ("one-unknown", None), ("sparse", None), ("dense", 4))
"""Without a kernel, and with those for tiles (also of most rows) and for rows; the last ones in the slow tier."""
CASES = [
    pytest.param(
        m, *k, id=f"{m.name}-{k[0]}{k[1] or ''}", marks=[pytest.mark.slow] if (j > 1 and m.batch) or j > 2 else []
    )
    for m in FAMILY
    for j, k in enumerate(KINDS)
    if m.batch or k[1] is None
]
every_case = pytest.mark.parametrize(("member", "kind", "batch"), CASES)


def run(member: Member, problem: ps.Problem, engine: Any = "cpu", rounds: int = ROUNDS) -> ps.Result:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ps.UnsafeStepWarning)
        return ps.run(
            member.make(problem), problem, rounds=rounds, seed=SEED, cohort=member.cohort, engine=engine, every=rounds
        )


def counts(result: ps.Result) -> dict[str, float]:
    return {k: v for k, v in result.trace.last().items() if k.startswith(COUNTED)}


def everything(result: ps.Result) -> bytes:
    parts = [result.x, *(result.memory[k] for k in sorted(result.memory)), *(result.server[k] for k in result.server)]
    return b"".join(np.ascontiguousarray(v).tobytes() for v in parts) + repr(counts(result)).encode()


def waiting(cohort: int | None) -> dict[str, Any]:
    """Rounds in which everybody who is asked must answer."""
    return {"seed": SEED} | ({"closing": "everyone"} if cohort is None else {"cohort": cohort, "least": cohort})


def by_hand(method: ps.core.Method, cohort: int | None = None) -> Wires:
    return Wires(ROUNDS, problem=problem_of("quadratic"), method=method, **waiting(cohort))


@every_case
@pytest.mark.long
def test_engines_agree(member: Member, kind: str, batch: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """cpu = reference to 1e-12; its bytes do not depend on the threads, nor on whether halves run on ranges of members."""
    problem = problem_of(kind, batch)
    judge, found = run(member, problem, "reference"), run(member, problem, CpuEngine(1))
    assert close(found.x, judge.x, 1e-12)
    for k in judge.memory:
        assert close(found.memory[k], judge.memory[k], 1e-12), k
    assert counts(found) == counts(judge)
    assert everything(run(member, problem, CpuEngine(2))) == everything(found)
    monkeypatch.setattr(cpu_engine, "LARGE", 0)
    monkeypatch.setattr(cpu_engine, "NUMBERS_PER_RANGE", 20)
    for threads in (1, 2):
        assert everything(run(member, problem, CpuEngine(threads))) == everything(found)


@every_case
def test_a_federation_computes_the_bytes_of_the_cpu_engine(member: Member, kind: str, batch: int | None) -> None:
    problem = problem_of(kind, batch)
    judge = run(member, problem)
    state, memories = drive(*federate(member.make(problem), problem, ROUNDS, **waiting(member.cohort)))
    assert (state.round, state.verdict[0]) == (ROUNDS, ps.Status.LIMIT)
    for k, v in judge.server.items():
        assert np.array_equal(state.vectors[k], v), k
    for k, rows in judge.memory.items():
        assert np.array_equal(np.array([m.memory[k] for m in memories]), rows), k


def test_a_federation_that_sends_float32_is_the_codec_everywhere() -> None:
    problem = problem_of("dense", 4)
    judge = run(Member("", lambda p: LocalSolver.of(p, codec=Float32())), problem)
    state, memories = drive(*federate(LocalSolver.of(problem), problem, ROUNDS, itemsize=4, **waiting(None)))
    assert np.array_equal(state.vectors["x"], judge.x)
    assert np.array_equal(np.array([m.memory["v"] for m in memories]), judge.memory["v"])


# -- what the methods are ----------------------------------------------------------------------------------------------
@pytest.fixture(params=["reference", "cpu", TORCH])
def engine(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.parametrize(
    ("kind", "method"),
    [
        ("dense", lambda gamma: ps.Tamuna(gamma, 0.3, N, 1.0)),
        ("quadratic", lambda gamma: ps.GradSkip(gamma, 0.3, (1.0,) * N)),
        ("sparse", lambda gamma: ps.ScaffnewVR(gamma, 0.3, 0.5)),
    ],
    ids=["tamuna that masks nothing", "gradskip that never sleeps", "variance reduction of full gradients"],
)
def test_it_is_scaffnew(engine: str, kind: str, method: Any) -> None:
    problem = problem_of(kind)
    a, b = (
        ps.run(m, problem, rounds=20, seed=1, engine=engine)
        for m in (method(rate(problem)), ps.Scaffnew(rate(problem), 0.3))
    )
    assert close(a.x, b.x, 1e-12)
    assert close(a.memory["h"], b.memory["h"], 1e-12)
    assert a.trace.last()["grad_evals"] == b.trace.last()["grad_evals"] or kind == "sparse"


@pytest.mark.parametrize("batch", [None, 4])
def test_tamuna_without_masks_has_the_bytes_of_scaffnew_on_cohorts(engine: str, batch: int | None) -> None:
    problem = problem_of("dense", batch)
    tamuna = Member("", lambda p: ps.Tamuna(rate(p), 0.4, 3, 0.6), cohort=3)
    scaffnew = Member("", lambda p: ps.Scaffnew(rate(p), 0.4, chi=0.6), cohort=3)
    a, b = (run(m, problem, engine, rounds=20) for m in (tamuna, scaffnew))
    assert a.x.tobytes() == b.x.tobytes()
    assert a.memory["h"].tobytes() == b.memory["h"].tobytes()
    assert counts(a) == counts(b)


def test_two_descents_are_one_of_their_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytes: minibatches are numbered through a half, on every engine and in a federation."""
    for kind, batch in (("quadratic", None), ("sparse", 12), ("dense", 4)):
        problem = problem_of(kind, batch)
        whole = Member("", lambda p: Halved(rate(p), 0.4, cut=False))
        for engine in ("reference", CpuEngine(1), CpuEngine(2)):
            assert everything(run(NAMED["halved"], problem, engine)) == everything(run(whole, problem, engine))
        with monkeypatch.context() as patched:
            patched.setattr(cpu_engine, "LARGE", 0)
            patched.setattr(cpu_engine, "NUMBERS_PER_RANGE", 20)
            assert everything(run(NAMED["halved"], problem)) == everything(run(whole, problem))
        ends = [
            drive(*federate(m.make(problem), problem, ROUNDS, **waiting(None)))[0].vectors["x"]
            for m in (NAMED["halved"], whole)
        ]
        assert np.array_equal(*ends)


def test_the_ledger_of_an_anchor(engine: str) -> None:
    """Two minibatches a step, a full gradient at first and whenever the coin of the step moves the anchor."""
    problem = problem_of("dense", 4)
    row, m = run(NAMED["scaffnew-vr"], problem, engine).trace.last(), problem.rows_each
    Ks = [family.steps.geometric(stream(SEED, r, "server"), 0.3) for r in range(ROUNDS)]
    moved = [[sum(anchor_coin(SEED, i, r, k) < 0.2 for k in range(K)) for i in range(N)] for r, K in enumerate(Ks)]
    assert np.sum(moved) > 0
    assert row["grad_evals"] == sum(Ks) * N * 8 + int(m.sum()) + int((np.array(moved) @ m).sum())
    assert row["local_steps"] == N * sum(Ks)


@pytest.mark.parametrize(
    ("name", "bits", "floats"),
    [
        ("local-solver-randk", 64 * 2, 2),
        ("local-solver-signs", 64 + 6, 1),
        ("mixture", 64 * (2 + 6 + 2 + 2), 2 + 6 + 2 + 2),  # one coded vector, then a plain one and two coded ones
    ],
)
def test_the_ledger_of_a_codec(engine: str, name: str, bits: int, floats: int) -> None:
    problem = problem_of("dense")
    row = run(NAMED[name], problem, engine).trace.last()
    assert problem.d == 6
    assert row["bits_up"] == ROUNDS * N * bits
    assert row["bytes_up"] == ROUNDS * N * -(-bits // 8)
    assert row["floats_up"] == ROUNDS * N * floats


def members(kind: str, problem: ps.Problem) -> Iterator[tuple[int, Any]]:
    """Every client by itself, or all of them together."""
    made: Any = ReferenceEngine() if kind == "reference" else CpuEngine(1)
    made.open(problem, {}, SEED)
    request = Request(lambda *_: None, np.arange(problem.n), 0)  # type: ignore[arg-type,return-value]
    if kind == "cpu":
        yield -1, made.client(request.cohort, request, 0)
    else:
        for i in range(problem.n):
            yield i, made.client(np.array([i]), request, i)


def test_a_criterion_stops_at_the_first_point_where_it_holds(engine: str) -> None:
    """Against the plain loop; two descents of one half are counted together."""
    problem = problem_of("quadratic")
    x, h, tau, gamma, beta, until = np.ones(4), 0.1, 0.5, 0.1, 0.3, 0.4

    def plain(f: Any) -> tuple[Any, int]:
        y = before = x
        for k in range(50):
            z = y + beta * (y - before)
            slope = f.gradient(z) - h + tau * (z - 2 * x)
            if np.linalg.norm(slope) <= until * np.linalg.norm(z - 2 * x):
                return z, k + 1
            before, y = y, z - gamma * slope
        return y, 50

    wanted = [plain(f) for f in problem.clients]
    assert 1 < max(k for _, k in wanted) < 50
    for i, client in members(engine, problem):
        for twice in (1, 2):
            y, k = client.descend(x, h, gamma, 50, pull=(tau, 2 * x), momentum=beta, until=until)
            assert np.array_equal(np.ravel(k), [w[1] for w in wanted] if i < 0 else [wanted[i][1]])
            assert np.array_equal(np.ravel(client.step), twice * np.ravel(k))
            assert close(y, [w[0] for w in wanted] if i < 0 else wanted[i][0], 1e-12)


def test_descents_that_do_not_exist_are_refused(engine: str) -> None:
    problem = problem_of("quadratic")
    x = np.ones(4)
    for _, client in members(engine, problem):
        for more in ({"pull": (1.0, x)}, {"momentum": 0.5}):
            with pytest.raises(ps.InputError, match="cannot be combined with a pull"):
                client.descend(x, 0.0, 0.1, 2, anchor=(x, x, 0.5), **more)
        with pytest.raises(ps.InputError, match="give both"):
            client.descend(x, 0.0, 0.1, 2, until=0.5)


# -- codecs ------------------------------------------------------------------------------------------------------------
CODECS = (
    Identity(), Float32(), Natural(), RandK(2), RandK(3, Natural()), Masks(2), Masks(2, Float32()), L1Selection(3, Natural()),
    Signs(),
)  # fmt: skip
every_codec = pytest.mark.parametrize("codec", CODECS, ids=str)


@dataclass(frozen=True)
class Echo(ps.core.Method):
    """Every client sends a row of its own, and remembers what the server read and whether it was the very same."""

    gamma: float
    codec: Any

    about = ps.core.About("echo", handles=frozenset({"clients", "cohort"}), remembers=("read", "same"))

    def round(self, server: Any, exchange: Any) -> Any:
        (x,) = exchange(self.say, server["x"])
        return {"x": x}

    def say(self, client: Any, memory: Any, K: int, x: Any) -> Any:
        v = client.own(said(len(x))) + 0.0 * x
        sent = client.send(v, self.codec)
        return (sent,), {"read": sent, "same": 0.0 * v + float(sent is v)}


def said(d: int = 4) -> Any:
    return np.random.Generator(np.random.Philox(7)).standard_normal((N, d))


@every_codec
@pytest.mark.parametrize("cohort", [None, 3])
def test_what_is_read_is_decoded_from_what_was_encoded(codec: Any, cohort: int | None) -> None:
    """On every engine, and by the server of a federation, from the keys that everybody can compute."""
    problem, method = problem_of("quadratic"), Echo(0.1, codec)
    wanted, last = np.zeros((N, problem.d)), np.zeros(problem.d)
    for r in range(3):
        asked = as_participation(cohort).draw(stream(SEED, r, "cohort"), N, r)
        for place, i in enumerate(asked):
            wanted[i] = read_back(codec, said()[i], Key(SEED, r, int(i), place, len(asked)))
        last = wanted[asked].mean(axis=0)
    taken = np.any(wanted != 0, axis=1) if cohort else np.ones(N, bool)
    for engine in ("reference", "cpu"):
        found = ps.run(method, problem, rounds=3, seed=SEED, cohort=cohort, engine=engine)
        assert np.array_equal(found.memory["read"], wanted)
        assert close(found.x, last, 1e-14)
        assert np.all(found.memory["same"][taken] == isinstance(codec, Identity))
    state, memories = drive(*federate(method, problem, 3, **waiting(cohort)))
    assert close(state.vectors["x"], last, 1e-14)
    for i, m in enumerate(memories):
        if m.memory:
            assert np.array_equal(m.memory["read"], wanted[i])
            assert np.all(m.memory["same"] == isinstance(codec, Identity))


@every_codec
def test_the_payload_is_exactly_its_bits(codec: Any) -> None:
    """In bytes rounded up; the ledger's bytes are those of the wire, without the fields of a message."""
    f, total = by_hand(Echo(0.1, codec)), 0
    for place, ask in enumerate(f.asks):
        (raw,), key = f.work(ask), Key(SEED, 0, place, place, N)
        (data,) = answer_of(raw).up
        assert isinstance(data, memoryview) is not isinstance(codec, Identity)
        assert isinstance(codec, Identity) or data == codec.encode(said()[place], key)
        size = -(-codec.bits(4, key) // 8)
        assert (data.nbytes if isinstance(codec, Identity) else len(data)) == size
        total += size
    assert ps.run(Echo(0.1, codec), f.problem, rounds=1, seed=SEED).trace.last()["bytes_up"] == total


# -- attempts, places, and what a server must not read -----------------------------------------------------------------
def answer_of(raw: bytes) -> messages.Answer:
    answer = messages.decode(raw, 4)
    assert isinstance(answer, messages.Answer)
    return answer


@pytest.mark.parametrize("codec", [Masks(2), RandK(2)], ids=str)
@pytest.mark.parametrize("cohort", [None, 3])
def test_a_void_round_draws_other_masks(codec: Any, cohort: int | None) -> None:
    """An answer is lost, twice; each attempt has another key on both sides, with the places of those asked then."""
    f = by_hand(Echo(0.1, codec), cohort)
    c = cohort or N
    for attempt in (0, 1):
        assert [(a.attempt, a.place, a.asked, a.round) for a in f.asks] == [(attempt, j, c, 0) for j in range(c)]
        for ask in f.asks[1:]:
            f.arrive(*f.work(ask), ask.client)
        f.end(f.now)
        assert (f.state.round, f.state.counts.void) == (0, attempt + 1)
    masks, wanted = set(), []
    for j, ask in enumerate(f.asks):
        keys = [Key(SEED, 0, ask.client, j, c, attempt) for attempt in (0, 1, 2)]
        reads = [read_back(codec, said()[ask.client], key) for key in keys]
        masks |= {(j, (read != 0).tobytes()) for read in reads}
        wanted.append(reads[2])
        (raw,) = f.work(ask)
        assert (ask.attempt, answer_of(raw).up) == (2, (codec.encode(said()[ask.client], keys[2]),))
        f.arrive(raw, ask.client)
    assert len(masks) > c
    assert f.state.round == 1
    assert close(f.state.vectors["x"], np.mean(wanted, axis=0), 1e-14)


@pytest.mark.parametrize(
    ("codec", "change", "sentence"),
    [
        (RandK(2), lambda up: (up[0][:-1],), "vector 0 has 15 bytes instead of 16"),
        (RandK(2), lambda up: (np.zeros(4),), "the 32 bytes of vector 0 are in the wrong format"),
        (RandK(2), lambda up: (struct.pack("<dd", np.nan, 1.0),), "of vector 0 is nan"),
        (None, lambda up: (bytes(32),), "the 32 bytes of vector 0 are in the wrong format; the update was left out."),
    ],
)
def test_another_payload_is_rejected_by_name(codec: Any, change: Any, sentence: str) -> None:
    f = by_hand(Echo(0.1, codec))
    answer = answer_of(*f.work(f.asks[1]))
    f.arrive(messages.encode(replace(answer, up=change(answer.up))), 1)
    assert f.state.counts.rejected == 1
    (note,) = f.state.notes
    assert note.startswith("client-1, round 0: ")
    assert sentence in note


def test_own_numbers_of_another_length_are_refused() -> None:
    line = Machine(ps.GD(0.1), ps.Problem(ps.random_quadratics(3, 2))).line
    line.begin(0)
    with pytest.raises(ps.InputError, match="weight has shape"):
        line(lambda *_: None, np.zeros(2), K=1, own={"weight": [1.0, 2.0]})
