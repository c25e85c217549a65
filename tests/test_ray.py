"""The Ray engine: the bytes of the cpu engine for any number of actors, whoever is killed, and sentences for the rest."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import scipy.sparse

import proxskip as ps
from conftest import METHODS, NAMED, RAY_WARNS, Row, bits, code_of, data, model, quadratics, thinned
from proxskip import registry
from proxskip.engines.cpu import shards
from proxskip.engines.cpu.engine import CpuEngine
from proxskip.engines.cpu.shards import Census
from proxskip.interfaces import BrokenOff, Request
from proxskip.problems.glm import LinearModel
from proxskip.types import EngineError

ray = pytest.importorskip("ray", reason="Ray is not installed: pip install 'proxskip[ray]'")

from proxskip.engines.ray import actor_session as ray_talk  # noqa: E402
from proxskip.engines.ray.actor_session import ActorSession  # noqa: E402
from proxskip.engines.ray.cluster import FullClusterWarning, start_here, warn_if_exposed  # noqa: E402
from proxskip.engines.ray.engine import RayEngine  # noqa: E402
from proxskip.engines.ray.worker import ActorWorker, Lost, Message, Op  # noqa: E402

pytestmark = [
    pytest.mark.usefixtures("ray_here"),
    RAY_WARNS,
]


class Engines:
    """One engine whose processes are used again for every test, with as many actors as asked."""

    def __init__(self) -> None:
        self.engine = RayEngine(1, stay=True, deadline=120)

    def __getitem__(self, actors: int) -> RayEngine:
        self.engine.actors, self.engine.holds, self.engine.snapshot_every = actors, None, 50
        return self.engine


@pytest.fixture(scope="module")
def engines(ray_here: None) -> Iterator[Engines]:
    module_engines = Engines()
    yield module_engines
    module_engines.engine.shutdown()


def run(
    row: Row, problem: ps.Problem, engine: Any = "cpu", rounds: int = 10, every: int = 3, **options: Any
) -> ps.Result:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ps.UnsafeStepWarning)
        options |= {"rounds": rounds, "every": every, "engine": engine, "cohort": row.cohort}
        return ps.run(row.make(problem), problem, seed=4, allow_unsafe_step=True, **options)


# -- one trajectory ----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("row", thinned(METHODS, 24))
@pytest.mark.parametrize("actors", thinned([2, 1, 3]))
def test_every_method_has_the_cpu_engines_bytes(row: Row, actors: int, engines: Engines) -> None:
    problem = row.rows(sparse=actors != 2)
    assert bits(run(row, problem, engines[actors])) == bits(run(row, problem))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "loss", "sparse", "dtype", "batch"),
    [
        *((r.name, "logistic", True, "float64", 6) for r in [r for r in METHODS if r.claims("batch")][::2]),
        *(
            ("scaffnew-weighted", loss, sparse, "float64", batch)
            for loss, sparse in (("squared", True), ("softmax", False), ("softmax", True))
            for batch in (None, 5)
        ),
        ("scaffnew", "logistic", True, "float32", None),
        ("scaffnew", "quadratics", False, "float64", None),
    ],
)
def test_every_kind_of_client_has_the_cpu_engines_bytes(
    name: str, loss: str, sparse: bool, dtype: str, batch: int | None, engines: Engines
) -> None:
    """Rows of a minibatch are drawn by the client's number among all, not by its place in an actor."""
    row = NAMED[name]
    whole = ps.Problem(quadratics(5)) if loss == "quadratics" else row.rows(loss, sparse, dtype)
    problem = whole.with_batch(batch)
    assert bits(run(row, problem, engines[3], rounds=4)) == bits(run(row, problem, rounds=4))


@pytest.mark.usefixtures("own_methods")
def test_a_method_that_was_loaded_from_a_file(engines: Engines, tmp_path: Path) -> None:
    """The actors cannot import it by its name; the class travels to them. Its folder is resumed on more of them."""
    (tmp_path / "damped_scaffnew.py").write_text(code_of("authoring.md", 0))
    (kind,) = registry.load_plugin(tmp_path / "damped_scaffnew.py")
    problem = ps.Problem(quadratics(5))
    method = kind.theory(problem)
    a = ps.run(method, problem, rounds=8, cohort=3, engine=engines[2], out=tmp_path / "run")
    assert bits(a) == bits(ps.run(method, problem, rounds=8, cohort=3))
    resumed = ps.resume(tmp_path / "run", problem, rounds=12, engine=engines[3])
    assert bits(resumed) == bits(ps.run(method, problem, rounds=12, cohort=3))
    with pytest.raises(ps.InputError, match="engine"):
        ps.resume(tmp_path / "run", problem, engine=CpuEngine(), rounds=20)


@pytest.mark.parametrize("batch", [None, 12])
@pytest.mark.parametrize(("loss", "sparse", "ones"), [
    ("logistic", True, False), ("logistic", True, True), ("logistic", False, False), ("softmax", True, False),
])  # fmt: skip
def test_a_part_is_packed_as_in_the_whole(
    loss: str, sparse: bool, ones: bool, batch: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blocks of rows, the layout and left-out ones depend on all clients; an actor sees some of them."""
    monkeypatch.setattr(shards, "ENTRIES_PER_BLOCK", 16)
    monkeypatch.setattr(shards, "MAX_ROWS_PER_BLOCK", 16)
    whole = model(loss, sparse)
    if ones:  # the first half of the clients holds ones only, so that alone they would be stored without values
        A, b = data()
        A = np.where(np.arange(96)[:, None] < 48, np.abs(A) > 0.5, A)
        whole = ps.Logistic(scipy.sparse.csr_matrix(A), b, l2=0.1)
    problem = ps.split(whole, clients=4, by="contiguous", batch=batch)
    rng = np.random.Generator(np.random.Philox(1))
    X, H, gamma = rng.standard_normal((4, problem.d)), rng.standard_normal((4, problem.d)), np.full(4, 0.1)
    K, results = np.array([3, 5, 2, 4]), []
    for ranges in ([(0, 4)], [(0, 1), (1, 4)], [(0, 2), (2, 3), (3, 4)]):
        census = Census.merged([Census.of(ps.Problem(problem.clients[lo:hi], d=problem.d)) for lo, hi in ranges])
        rows = []
        for lo, hi in ranges:
            engine = CpuEngine(2)
            engine.open(ps.Problem(problem.clients[lo:hi], batch=batch, d=problem.d), {}, 7, lo, census)
            rows.append(engine.descend(np.arange(hi - lo), X[lo:hi], H[lo:hi], gamma[lo:hi], K[lo:hi], 9))
            engine.close()
        results.append(np.concatenate(rows).tobytes())
    engine = CpuEngine(2)
    engine.open(problem, {}, 7)
    results.append(engine.descend(np.arange(4), X, H, gamma, K, 9).tobytes())
    engine.close()
    assert len(set(results)) == 1


@pytest.mark.parametrize("name", ["scaffnew", "scaffnew-weighted", "decentralized", "scaffnew-psi"])
@pytest.mark.slow
def test_records_are_computed_by_the_actors(name: str, engines: Engines, monkeypatch: Any) -> None:
    """The driver asks no client for a value or a gradient, and records the cpu engine's bytes."""
    row = NAMED[name]
    problem = row.rows(sparse=True)
    assert problem.solution is not None  # found once, from the arrays that are here
    expected, asked = bits(run(row, problem)), Counter[str]()

    def counted(verb: str, real: Any) -> Any:
        return lambda f, x: (asked.update([verb]), real(f, x))[1]

    for verb in ("value", "gradient"):
        monkeypatch.setattr(LinearModel, verb, counted(verb, getattr(LinearModel, verb)))
    assert bits(run(row, problem, engines[3])) == expected
    assert not asked
    problem.value(np.zeros(problem.d))
    assert asked["value"] > 0  # so the count counts


class Watch:
    """What happens at the start of a run and at its records."""

    def __init__(self, start: Any = lambda: None, record: Any = lambda step: None) -> None:
        self.start, self.record = start, record

    def on_run_start(self, config: Any) -> None:
        self.start()

    def on_record(self, step: int, metrics: Any) -> None:
        self.record(step)


class Moody:
    """A client whose value takes its time, or that fails or sleeps from some gradient on, where it was sent to."""

    L, mu, d = 1.0, 0.5, 2

    def __init__(self, mood: str = "", after: int = 0, seconds: float = 0.0) -> None:
        self.mood, self.left, self.seconds, self.home = mood, after, seconds, os.getpid()

    def value(self, x: Any) -> float:
        time.sleep(self.seconds)
        return 0.5 * float(x @ x)

    def gradient(self, x: Any) -> Any:
        self.left -= os.getpid() != self.home
        if self.left < 0 and self.mood == "fails":
            raise ZeroDivisionError("the data are gone")
        if self.left < 0 and self.mood == "sleeps":
            time.sleep(600)
        return x - 1.0


def test_records_are_off_the_clock(engines: Engines) -> None:
    problem = ps.Problem([Moody(seconds=0.2), Moody(seconds=0.2)])
    problem.__dict__["solution"] = None
    seen: list[float] = []
    watch = Watch(record=lambda step: seen.append(time.perf_counter()))
    result = ps.run(ps.Scaffnew(0.5, 0.5), problem, rounds=4, every=1, engine=engines[2], callbacks=(watch,))
    clock = result.trace["seconds"]
    assert len(clock) == len(seen) == 5
    assert clock[-1] - clock[0] <= seen[-1] - seen[0] - 4 * 0.2


def test_many_small_clients_are_judged_in_one_pass() -> None:
    """On every engine, so that records do not depend on it."""
    A, b = np.tile(data()[0], (4, 1)), np.tile(data()[1], 4)
    few, many = (ps.split(ps.Logistic(A, b, l2=0.1), clients=n) for n in (64, 65))
    assert few.by_client
    assert not many.by_client
    engine = RayEngine(1)
    assert engine.judge(few) is not few
    assert engine.judge(many) is many
    large = ps.split(ps.Logistic(np.tile(A, (26, 65)), np.tile(b, 26), l2=0.1), clients=65)
    assert large.by_client


def test_a_round_of_scaffnew_is_one_call_to_each_actor(engines: Engines, monkeypatch: Any) -> None:
    engine, problem = engines[2], NAMED["scaffnew"].rows()
    calls: list[Any] = []
    real = ActorSession.post
    monkeypatch.setattr(ActorSession, "post", lambda *a, **k: (calls.append(a[3]), real(*a, **k))[1])
    run(NAMED["scaffnew"], problem, engine, rounds=20, every=20)
    assert len(calls) == 2 * (20 + 1)  # and one for the record, with the last settle
    assert [[op.verb for op in ops] for ops in calls[:4]] == [["run"]] * 2 + [["tell", "run"]] * 2


def test_halves_are_forgotten(engines: Engines, monkeypatch: Any) -> None:
    """With a falling step every round has its own."""
    problem, engine = NAMED["scaffnew"].rows(), engines[2]
    method = ps.Decaying(ps.Scaffnew.theory(problem), 0.02)
    monkeypatch.setattr(ray_talk, "MAX_HALVES", 5)
    ours = ps.run(method, problem, rounds=50, every=50, engine=engine)
    assert engine.session.packed.cache_info().currsize == 5
    assert bits(ours) == bits(ps.run(method, problem, rounds=50, every=50))


# -- faults ------------------------------------------------------------------------------------------------------------
class Killer(Watch):
    """Kills workers twice, at a random moment of some rounds: each time one of them, or all."""

    def __init__(self, engine: RayEngine, everyone: bool, seed: int) -> None:
        super().__init__(record=self.recorded)
        self.engine, self.everyone, self.rng, self.killed = engine, everyone, random.Random(seed), 0

    def recorded(self, step: int) -> None:
        if step in (20, 60):
            self.timer = threading.Timer(self.rng.uniform(0.0, 0.3), self.kill)
            self.timer.start()
        time.sleep(0.02)  # the run must outlast the killer, also where that is slow
        if step in (58, 100):
            self.timer.join(120)

    def kill(self) -> None:
        handles = list(self.engine.pool.handles)
        for handle in handles if self.everyone else [self.rng.choice(handles)]:
            try:
                pid, _ = ray.get(handle.where.remote(), timeout=60)
                os.kill(pid, signal.SIGKILL)
                self.killed += 1
            except Exception:
                pass  # it is being rebuilt


@pytest.mark.parametrize(
    ("name", "everyone"),
    [
        ("scaffnew", False),
        pytest.param("scaffnew-cohort", True, marks=pytest.mark.slow),
        *(
            pytest.param(name, False, marks=pytest.mark.slow)
            for name in ("scaffold-I", "decentralized", "diging", "scaffnew-decaying")
        ),
    ],
)
def test_killed_workers_change_nothing(name: str, everyone: bool, engines: Engines) -> None:
    row = NAMED[name]
    problem = row.rows(sparse=True).with_batch(6)
    engine = engines[3]
    engine.snapshot_every = 7
    killer = Killer(engine, everyone, seed=len(name))
    result = run(row, problem, engine, rounds=120, every=2, callbacks=(killer,))
    assert killer.killed > 0
    assert bits(result) == bits(run(row, problem, rounds=120, every=2))
    recoveries = result.summary()["cluster"]["recoveries"]
    assert recoveries
    assert all(r["cause"] == "its process ended" and r["seconds"] < 120 for r in recoveries)
    told = [w for w in result.warnings if "was lost in round" in w]
    assert len(told) == len(recoveries)
    assert f"clients {problem.n - 1}" in " ".join(told) or "client" in told[0]


def worker(first: int = 1, m: int = 3) -> tuple[ActorWorker, ps.Problem]:
    problem = NAMED["scaffnew"].rows()
    part = ps.Problem(problem.clients[first : first + m], d=problem.d)
    actor = ActorWorker()
    actor.take(first, part.clients)
    zeros = {k: np.zeros((m, problem.d)) for k in ("h", "xhat")}
    actor.begin("r", 5, 0, problem.d, None, Census.of(problem), zeros)
    return actor, problem


def operation(verb: str, half: Any, x: Any, round: int = 0, K: int = 0) -> Op:
    """For all clients of an actor."""
    everyone: Any = None
    return Op(verb, Request(ray.put(half), everyone, round, K, (x,)))


def test_messages_are_done_in_their_order() -> None:
    """By (run, operation); a message that is told twice is refused, and changes nothing."""
    w, problem = worker()
    method, x = ps.Scaffnew.theory(problem), np.ones(problem.d)
    ops = [operation("run", method.local, x, 3, 7), operation("tell", method.settle, ray.put(x))]
    reply = w.step(Message("r", 5, ops, snapshot=True))
    memory = {k: v.copy() for k, v in w.engine.kept.items()}
    assert np.abs(memory["h"]).max() > 0
    assert reply.memory is not None
    assert np.array_equal(reply.memory["h"], memory["h"])
    for run_id, start in (("other run", 7), ("r", 5), ("r", 8), ("r", 0)):
        with pytest.raises(Lost):
            w.step(Message(run_id, start, ops))
    assert all(np.array_equal(memory[k], w.engine.kept[k]) for k in memory)
    w.step(Message("r", 7, ops))


def test_a_message_that_broke_off_is_not_taken_for_done() -> None:
    w, problem = worker()

    def broken(client: Any, memory: Any, K: int, x: Any) -> Any:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        w.step(Message("r", 5, [operation("run", broken, np.ones(problem.d), 0, 1)]))
    with pytest.raises(Lost):
        w.step(Message("r", 5, []))


def test_an_interrupted_call_leaves_the_log_as_it_was(engines: Engines) -> None:
    """The actors leave their local work, and stand where they stood once they are asked again."""
    problem, engine = NAMED["scaffnew"].rows(), engines[2]
    method, x, halt = ps.Scaffnew.theory(problem), np.ones(problem.d), threading.Event()
    zeros = {k: np.zeros((problem.n, problem.d)) for k in ("h", "xhat")}
    engine.open(problem, zeros, 0)
    everyone = np.arange(problem.n)
    engine.run(Request(method.local, everyone, 0, 3, (x,)))
    engine.tell(method.settle, everyone, (x,))
    threading.Timer(0.5, halt.set).start()
    started = time.monotonic()
    with pytest.raises(BrokenOff):
        engine.run(Request(method.local, everyone, 1, 10**9, (x,), halt=halt))
    assert time.monotonic() - started < 100
    after = engine.memory()
    cpu = CpuEngine()
    cpu.open(problem, zeros, 0)
    cpu.run(Request(method.local, everyone, 0, 3, (x,)))
    cpu.tell(method.settle, everyone, (x,))
    assert all(np.array_equal(after[k], v) for k, v in cpu.memory().items())
    engine.close()


@pytest.mark.slow
def test_a_killed_driver_is_resumed_to_the_same_bytes(tmp_path: Path) -> None:
    flags = ["--data", "digits", "--clients", "6", "--rounds", "200", "--every", "5", "--quiet"]
    command, here, there = [sys.executable, "-m", "proxskip"], tmp_path / "cpu", tmp_path / "ray"
    at = ["--address", ray.get_runtime_context().gcs_address]
    go = [*command, "run", "scaffnew", *flags]
    ours = [*go, "--out", str(there), "--engine", "ray", *at, "--actors", "2", "--checkpoint-every", "3"]
    with subprocess.Popen(ours, stderr=subprocess.PIPE) as driver:
        until = time.monotonic() + 120
        while time.monotonic() < until and not (there / "checkpoint.previous").exists():
            time.sleep(0.05)
        time.sleep(0.1)
        driver.kill()
    assert driver.returncode == -signal.SIGKILL, driver.stderr
    assert not (there / "summary.json").exists()
    resume = [*command, "resume", str(there), "--actors", "1", *at, "--quiet"]
    again = subprocess.run(resume, capture_output=True, text=True, timeout=240)
    assert again.returncode == 0, again.stderr
    subprocess.run([*go, "--out", str(here)], check=True, timeout=240)
    assert (there / "x.npy").read_bytes() == (here / "x.npy").read_bytes()


# -- what cannot finish ends with a sentence ---------------------------------------------------------------------------
@pytest.mark.slow
def test_no_room_for_an_actor() -> None:
    problem = NAMED["scaffnew"].rows()
    with (
        pytest.warns(
            FullClusterWarning, match=r"^the actors need 100 CPUs and the cluster has 6; some actors wait for mach"
        ),
        pytest.raises(EngineError, match=r"^the actor with clients 0 to 3 did not start within 8 seconds; use fewer"),
    ):
        run(NAMED["scaffnew"], problem, RayEngine(1, cores=100, deadline=8))


@pytest.mark.parametrize(
    ("mood", "sentence"),
    [
        ("fails", r"^client 1 failed with ZeroDivisionError: the data are gone\.$"),
        pytest.param(
            "sleeps",
            r"^the actor with client 1 did not (finish round \d+|answer) within 8 seconds; check its machine",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_client_that_does_not_answer(mood: str, sentence: str) -> None:
    problem = ps.Problem([Moody(), Moody(mood, 60)])
    engine = RayEngine(2, deadline=100)
    impatient = Watch(start=lambda: setattr(engine.pool, "deadline", 8.0))
    with pytest.raises(EngineError, match=sentence):
        ps.run(ps.Scaffnew(0.5, 0.5), problem, rounds=1000, engine=engine, callbacks=(impatient,))
    assert engine.pool is None  # no actor is left behind


def moody_shard(i: int) -> Any:
    if i == 2:
        raise FileNotFoundError(2, "No such file or directory", "part-2")
    return Moody()


@pytest.mark.slow
def test_a_shard_that_cannot_be_loaded_is_named(tmp_path: Path, engines: Engines) -> None:
    engine = engines[1]
    with pytest.raises(
        ps.InputError, match=r"client 2 \(moody_shard\(2\)\) cannot be loaded: No such file or directory"
    ):
        engine.load(moody_shard, n=4)
    bad = tmp_path / "bad.svm"
    bad.write_text("1 1:0.5 2:x\n")
    with pytest.raises(ps.InputError, match=r"client 0 \(.*\) cannot be loaded: .*bad\.svm:1:9: "):
        engine.load(lambda i: ps.Logistic(*ps.datasets.load(bad)), n=2)
    with pytest.raises(ps.InputError, match="client 1 has 4 unknowns, not 3"):
        engine.load(lambda i: ps.LeastSquares(np.ones((3, 3 + i)), np.ones(3)), n=2)


# -- shards that live where they are loaded ----------------------------------------------------------------------------
def from_file(folder: Path, l2: float = 0.05) -> Any:
    """What loads one of four shards of one class each from a file."""
    A, b = data()
    for k, rows in enumerate(np.array_split(np.argsort(b, kind="stable"), 4)):
        np.savez(folder / f"part-{k}.npz", A=A[rows], b=b[rows])

    def load_shard(i: int) -> Any:
        with np.load(folder / f"part-{i}.npz") as part:
            return ps.Logistic(scipy.sparse.csr_matrix(part["A"]), part["b"], l2=l2, classes=np.unique(b))

    return load_shard


@pytest.mark.slow
@pytest.mark.parametrize("batch", [None, 4])
def test_shards_from_files(tmp_path: Path, batch: int | None, engines: Engines) -> None:
    engine = engines[3]
    problem = engine.load(from_file(tmp_path), n=4, batch=batch)
    here = problem.here()
    assert [f.N for f in here.clients] == problem.sizes == [24, 24, 24, 24]
    assert (problem.L_max, problem.mu, problem.d) == (here.L_max, here.mu, here.d)
    method = ps.Scaffnew.theory(problem)
    a, b = (ps.run(method, p, rounds=12, seed=3, every=2, engine=e) for p, e in ((problem, engine), (here, "cpu")))
    assert all(np.array_equal(a.trace[k], b.trace[k]) for k in ("f", "grad_norm", "sum_h", "grad_evals"))
    assert a.x.tobytes() == b.x.tobytes()
    assert a.h is not None
    assert b.h is not None
    assert a.h.tobytes() == b.h.tobytes()
    with pytest.raises(ps.InputError, match="is in a Ray actor"):
        ps.run(method, problem, rounds=1, engine="reference", seed=3)
    if batch is None:
        return
    for handle in engine.pool.handles:  # shards are read again where an actor is rebuilt
        os.kill(ray.get(handle.where.remote(), timeout=60)[0], signal.SIGKILL)
    again = ps.run(method, problem, rounds=12, seed=3, every=2, engine=engine)
    assert again.x.tobytes() == b.x.tobytes()


@pytest.mark.slow
def test_a_sharded_run_is_resumed_only_on_the_same_data(tmp_path: Path, engines: Engines) -> None:
    engine, load_shard = engines[2], from_file(tmp_path)
    problem = engine.load(load_shard, n=4)
    method = ps.Scaffnew.theory(problem)
    ps.run(method, problem, rounds=5, engine=engine, out=tmp_path / "run")
    straight = ps.run(method, problem, rounds=9, engine=engine)
    resumed = ps.resume(tmp_path / "run", problem, engine=engine, rounds=9)
    assert resumed.x.tobytes() == straight.x.tobytes()
    other = engine.load(lambda i: load_shard(3 - i), n=4)
    with pytest.raises(ps.InputError, match="fingerprint"):
        ps.resume(tmp_path / "run", other, engine=engine, rounds=12)


def stored(folder: Path, clients: int, rows: int, entries: int, batch: int | None = None) -> ps.Problem:
    """A folder of clients with rows of 1,000 features."""
    rng = np.random.Generator(np.random.Philox(9))
    N = clients * rows
    indices = np.sort(rng.integers(0, 1000 // entries, (N, entries)) + np.arange(entries) * (1000 // entries))
    indptr = np.arange(0, N * entries + 1, entries)
    A = scipy.sparse.csr_matrix((rng.standard_normal(N * entries), indices.reshape(-1), indptr), shape=(N, 1000))
    ps.write_clients(folder / "store", [(A, rng.integers(0, 2, N), np.arange(N) % clients)])
    return ps.open_clients(folder / "store", l2=0.1, batch=batch)


def mapped_bytes(pid: int, name: str) -> int:
    """What a process has in memory of the files of this name."""
    total, counts = 0, False
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        if "-" in line.split()[0]:
            counts = line.endswith(name)
        elif counts and line.startswith("Rss:"):
            total += int(line.split()[1]) * 1024
    return total


@pytest.mark.slow
@pytest.mark.parametrize("batch", [None, 3])
def test_clients_in_a_folder_have_the_cpu_engines_bytes(
    tmp_path: Path, batch: int | None, engines: Engines, monkeypatch: Any
) -> None:
    problem = stored(tmp_path, clients=80, rows=8, entries=5, batch=batch)
    engine, row = engines[3], NAMED["scaffnew-cohort"]
    assert bits(run(row, problem, engine)) == bits(run(row, problem))
    sent = engine.pool.data[0][1](0)
    assert len(ray.cloudpickle.dumps(sent)) < 1000, "data went through the driver"
    engine.holds = None
    folder, _, *others = sent[1].args
    monkeypatch.setattr(problem.clients, "part", lambda lo, hi: partial(sent[1].func, folder, "other", *others))
    with pytest.raises(ps.InputError, match="holds other clients"):
        run(row, problem, engine)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="needs Linux")
def test_an_actor_reads_the_rows_of_its_own_clients(tmp_path: Path, engines: Engines) -> None:
    problem = stored(tmp_path, clients=40, rows=1000, entries=40)
    whole = (tmp_path / "store" / "data.npy").stat().st_size
    method, engine = ps.Scaffnew(gamma=0.1, p=0.5, K=2), engines[4]
    here = ps.run(method, problem, rounds=4, seed=1, every=2, engine="cpu")

    def pids() -> list[int]:
        return [pid for pid, _ in ray.get([h.where.remote() for h in engine.pool.handles], timeout=60)]

    for _ in range(2):
        there = ps.run(method, problem, rounds=4, seed=1, every=2, engine=engine)
        assert bits(there) == bits(here)
        held = [mapped_bytes(pid, "store/data.npy") for pid in pids()]
        assert 0.9 * whole < sum(held) < 1.2 * whole
        assert max(held) < 0.4 * whole
        for pid in pids():  # those that take their places open the folder again
            os.kill(pid, signal.SIGKILL)


# -- the cluster -------------------------------------------------------------------------------------------------------
def test_a_network_that_loses_clients_is_refused(engines: Engines) -> None:
    with pytest.raises(ps.InputError, match=r'the engine "ray" cannot undo a void round'):
        ps.run("gd", ps.Problem(quadratics(3)), rounds=1, engine=engines[2], network="mobile")


def test_a_ray_that_does_not_start_is_one_sentence(monkeypatch: Any) -> None:
    def too_late(*_: Any, **__: Any) -> None:
        raise Exception("The current node timed out during startup.\nMore.")

    monkeypatch.setattr(ray, "init", too_late)
    with pytest.raises(EngineError, match=r"^Ray did not start on this machine \(The current node timed out"):
        start_here()


@pytest.mark.parametrize(
    ("gcs", "mode", "warned"),
    [
        ("127.0.0.2:6379", None, False),
        ("localhost:6379", None, False),
        ("[::1]:6379", None, False),
        ("10.0.0.5:6379", None, True),
        ("10.0.0.5:6379", "disabled", True),
        ("head.example.org:6379", "token", False),
    ],
)
def test_a_cluster_without_token_is_warned_about(gcs: str, mode: str | None, warned: bool, monkeypatch: Any) -> None:
    monkeypatch.setattr(ray, "get_runtime_context", lambda: SimpleNamespace(gcs_address=gcs))
    monkeypatch.setenv("RAY_AUTH_MODE", mode or "")
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        warn_if_exposed()
    assert ["RAY_AUTH_MODE=token" in str(w.message) for w in told] == [True] * warned


def test_the_example_cluster_is_one_for_rays_launcher() -> None:
    """Checked by Ray's own schema; its start commands ask for the token."""
    util = pytest.importorskip("ray.autoscaler._private.util")
    file = Path(__file__).parents[1] / "examples" / "ray" / "cluster.yaml"
    made = util.prepare_config(pytest.importorskip("yaml").safe_load(file.read_text()))
    util.validate_config(made)
    for who in ("head", "worker"):
        assert "RAY_AUTH_MODE=token" in made[f"{who}_start_ray_commands"][-1]


def test_nothing_listens_beyond_loopback() -> None:
    psutil = pytest.importorskip("psutil")
    bound = set()
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            bound |= {c.laddr.ip for c in process.net_connections("tcp") if c.status == psutil.CONN_LISTEN}
    assert bound
    assert bound <= {"127.0.0.1", "::ffff:127.0.0.1", "::1"}


@pytest.mark.parametrize(
    "option", [{"actors": 0}, {"cores": 0}, {"deadline": 0.0}, {"deadline": float("inf")}, {"snapshot_every": True}]
)
def test_bad_options_are_refused(option: dict[str, Any]) -> None:
    with pytest.raises(ps.InputError, match=next(iter(option))):
        RayEngine(**option)


def test_the_result_says_where_the_time_went(engines: Engines) -> None:
    about = run(NAMED["scaffnew"], NAMED["scaffnew"].rows(), engines[2]).summary()["cluster"]
    assert about["actors"] == 2
    assert about["rounds_per_second"] > 0
    shares = [about[f"share_{k}"] for k in ("local", "waiting", "communication")]
    assert min(shares) >= 0
    assert sum(shares) == pytest.approx(1.0)
