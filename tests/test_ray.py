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
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse

import proxskip as ps
from conftest import METHODS, NAMED, RAY_WARNS, Row, code_of, data, model, quadratics, thinned
from proxskip import registry
from proxskip.engines.cpu import shards
from proxskip.engines.cpu.engine import CpuEngine
from proxskip.engines.cpu.shards import Census
from proxskip.interfaces import BrokenOff, Request
from proxskip.problems.glm import LinearModel
from proxskip.types import EngineError

ray = pytest.importorskip("ray", reason="Ray is not installed: pip install 'proxskip[ray]'")

from proxskip.engines.ray import actor_session as ray_talk  # noqa: E402
from proxskip.engines.ray import pool as ray_pool  # noqa: E402
from proxskip.engines.ray import worker as ray_worker  # noqa: E402
from proxskip.engines.ray.actor_session import ActorSession  # noqa: E402
from proxskip.engines.ray.cluster import FullClusterWarning, exposed, start_here  # noqa: E402
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
    made = Engines()
    yield made
    made.engine.shutdown()


def run(
    row: Row, problem: ps.Problem, engine: Any = "cpu", rounds: int = 10, every: int = 3, **given: Any
) -> ps.Result:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ps.UnsafeStepWarning)
        return ps.run(
            row.make(problem), problem, rounds=rounds, cohort=row.cohort, engine=engine, seed=4, allow_unsafe_step=True,
            every=every, **given,
        )  # fmt: skip


def bits(result: ps.Result) -> bytes:
    """Everything that a run computed, and what it counted."""
    parts = [result.x, *(result.memory[k] for k in sorted(result.memory))]
    parts += [result.trace[k] for k in result.trace.columns if k != "seconds"]
    return b"".join(np.ascontiguousarray(v).tobytes() for v in parts)


# -- one trajectory ----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("row", thinned(METHODS, 24))
@pytest.mark.parametrize("actors", thinned([2, 1, 3]))
def test_every_method_has_the_cpu_engines_bytes(row: Row, actors: int, engines: Engines) -> None:
    problem = row.rows(sparse=actors != 2)
    assert bits(run(row, problem, engines[actors])) == bits(run(row, problem))


@pytest.mark.parametrize("row", thinned([r for r in METHODS if r.claims("batch")][::2], 6))
@pytest.mark.slow
def test_the_same_minibatches(row: Row, engines: Engines) -> None:
    """Rows are drawn by the client's number among all, not by its place in an actor."""
    problem = row.rows(sparse=True).with_batch(6)
    assert bits(run(row, problem, engines[3], rounds=4)) == bits(run(row, problem, rounds=4))


@pytest.mark.slow
@pytest.mark.parametrize("batch", [None, 5])
@pytest.mark.parametrize(("loss", "sparse"), [("squared", True), ("softmax", False), ("softmax", True)])
def test_every_loss_and_storage(loss: str, sparse: bool, batch: int | None, engines: Engines) -> None:
    problem = NAMED["scaffnew-weighted"].rows(loss, sparse).with_batch(batch)
    assert bits(run(NAMED["scaffnew-weighted"], problem, engines[3], rounds=4)) == bits(
        run(NAMED["scaffnew-weighted"], problem, rounds=4)
    )


@pytest.mark.usefixtures("own_methods")
def test_a_method_that_was_loaded_from_a_file(engines: Engines, tmp_path: Path) -> None:
    """The actors cannot import it by its name; the class travels to them."""
    (tmp_path / "damped_scaffnew.py").write_text(code_of("adding-a-method.md", 0))
    (kind,) = registry.load_plugin(tmp_path / "damped_scaffnew.py")
    problem = ps.Problem(quadratics(5))
    method = kind.theory(problem)
    a = ps.run(method, problem, rounds=8, cohort=3, engine=engines[2], out=tmp_path / "run")
    assert bits(a) == bits(ps.run(method, problem, rounds=8, cohort=3))
    resumed = ps.resume(tmp_path / "run", problem, rounds=12, engine=engines[3])
    assert bits(resumed) == bits(ps.run(method, problem, rounds=12, cohort=3))


@pytest.mark.slow
def test_single_precision_and_oracles_without_rows(engines: Engines) -> None:
    for problem in (NAMED["scaffnew"].rows("logistic", True, "float32"), ps.Problem(quadratics(5))):
        assert bits(run(NAMED["scaffnew"], problem, engines[2])) == bits(run(NAMED["scaffnew"], problem))


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
    K, found = np.array([3, 5, 2, 4]), []
    for ranges in ([(0, 4)], [(0, 1), (1, 4)], [(0, 2), (2, 3), (3, 4)]):
        census = Census.merged([Census.of(ps.Problem(problem.clients[lo:hi], d=problem.d)) for lo, hi in ranges])
        rows = []
        for lo, hi in ranges:
            engine = CpuEngine(2)
            engine.open(ps.Problem(problem.clients[lo:hi], batch=batch, d=problem.d), {}, 7, lo, census)
            rows.append(engine.descend(np.arange(hi - lo), X[lo:hi], H[lo:hi], gamma[lo:hi], K[lo:hi], 9))
            engine.close()
        found.append(np.concatenate(rows).tobytes())
    engine = CpuEngine(2)
    engine.open(problem, {}, 7)
    found.append(engine.descend(np.arange(4), X, H, gamma, K, 9).tobytes())
    engine.close()
    assert len(set(found)) == 1


@pytest.mark.parametrize("name", ["scaffnew", "scaffnew-weighted", "decentralized", "scaffnew-psi"])
@pytest.mark.slow
def test_records_are_computed_by_the_actors(name: str, engines: Engines, monkeypatch: Any) -> None:
    """The driver asks no client for a value or a gradient, and records the cpu engine's bytes."""
    row = NAMED[name]
    problem = row.rows(sparse=True)
    assert problem.solution is not None  # found once, from the arrays that are here
    expected = bits(run(row, problem))
    engine, asked = engines[3], [0]

    def counted(real: Any) -> Any:
        return lambda f, x: (asked.__setitem__(0, asked[0] + 1), real(f, x))[1]

    for verb in ("value", "gradient"):
        monkeypatch.setattr(LinearModel, verb, counted(getattr(LinearModel, verb)))
    assert bits(run(row, problem, engine)) == expected
    assert asked == [0]
    problem.value(np.zeros(problem.d))
    assert asked[0] > 0  # so the count counts


class Slow:
    """A client whose value takes its time."""

    L, mu, d = 1.0, 0.5, 2

    def value(self, x: Any) -> float:
        time.sleep(0.2)
        return 0.5 * float(x @ x)

    def gradient(self, x: Any) -> Any:
        return x - 1.0


def test_records_are_off_the_clock(engines: Engines) -> None:
    problem = ps.Problem([Slow(), Slow()])
    problem.__dict__["solution"] = None
    seen: list[float] = []

    class Watch:
        def on_run_start(self, config: Any) -> None: ...
        def on_record(self, step: int, metrics: Any) -> None:
            seen.append(time.perf_counter())

        def on_run_end(self, result: Any) -> None: ...

    result = ps.run(ps.Scaffnew(0.5, 0.5), problem, rounds=4, every=1, engine=engines[2], callbacks=(Watch(),))
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
    assert [[op.verb for op in ops] for ops in calls[:4]] == [
        ["run"],
        ["run"],
        ["tell", "run"],
        ["tell", "run"],
    ]


def test_halves_are_forgotten(engines: Engines, monkeypatch: Any) -> None:
    """With a falling step every round has its own."""
    problem, engine = NAMED["scaffnew"].rows(), engines[2]
    method = ps.Decaying(ps.Scaffnew.theory(problem), 0.02)
    monkeypatch.setattr(ray_talk, "MAX_HALVES", 5)
    ours = ps.run(method, problem, rounds=50, every=50, engine=engine)
    assert engine.session.packed.cache_info().currsize == 5
    assert bits(ours) == bits(ps.run(method, problem, rounds=50, every=50))


def test_an_actor_forgets_halves_too(monkeypatch: Any) -> None:
    w, problem = worker()
    method, x = ps.Scaffnew.theory(problem), np.ones(problem.d)
    monkeypatch.setattr(ray_worker, "MAX_HALVES", 2)
    halves = [ray.put(method.local) for _ in range(3)]
    for k, half in enumerate((halves[0], halves[1], halves[0], halves[2])):
        w.step(Message("r", 5 + k, [Op("run", half, None, (x,), 0, 1)]))
    assert list(w.halves) == [halves[0], halves[2]]


# -- faults ------------------------------------------------------------------------------------------------------------
class Killer(threading.Thread):
    """Kills workers while a run goes on: each time one of them, or all."""

    def __init__(self, engine: RayEngine, times: int, everyone: bool, seed: int) -> None:
        super().__init__(daemon=True)
        self.engine, self.times, self.everyone = engine, times, everyone
        self.rng, self.over, self.killed = random.Random(seed), threading.Event(), 0
        self.struck = threading.Event()

    def on_run_start(self, config: Any) -> None:
        self.start()

    def on_record(self, step: int, metrics: Any) -> None:
        time.sleep(0.02)  # the run must outlast the killer, also where that is slow
        if step >= 80:
            self.struck.wait(120)

    def on_run_end(self, result: Any) -> None:
        self.over.set()
        self.join(120)

    def run(self) -> None:
        try:
            self.kill()
        finally:
            self.struck.set()

    def kill(self) -> None:
        for _ in range(self.times):
            if self.over.wait(self.rng.uniform(0.05, 0.5)):
                return
            handles = list(self.engine.pool.handles)
            for handle in handles if self.everyone else [self.rng.choice(handles)]:
                try:
                    pid, _ = ray.get(handle.where.remote(), timeout=60)
                    os.kill(pid, signal.SIGKILL)
                    self.killed += 1
                    self.struck.set()
                except Exception:
                    pass  # it is being rebuilt


@pytest.mark.parametrize(
    ("name", "everyone"),
    [
        ("scaffnew", False),
        pytest.param("scaffnew-cohort", True, marks=pytest.mark.slow),
        pytest.param("scaffold-I", False, marks=pytest.mark.slow),
        pytest.param("decentralized", False, marks=pytest.mark.slow),
        pytest.param("diging", False, marks=pytest.mark.slow),
        pytest.param("scaffnew-decaying", False, marks=pytest.mark.slow),
    ],
)
def test_killed_workers_change_nothing(name: str, everyone: bool, engines: Engines) -> None:
    row = NAMED[name]
    problem = row.rows(sparse=True).with_batch(6)
    engine = engines[3]
    engine.snapshot_every = 7
    killer = Killer(engine, times=2, everyone=everyone, seed=len(name))
    result = run(row, problem, engine, rounds=120, every=2, callbacks=(killer,))
    assert killer.killed > 0
    assert bits(result) == bits(run(row, problem, rounds=120, every=2))
    recoveries = result.summary()["cluster"]["recoveries"]
    assert recoveries
    assert all(r["cause"] == "its process ended" and r["seconds"] < 120 for r in recoveries)
    told = [w for w in result.warnings if "was lost in round" in w]
    assert len(told) == len(recoveries)
    assert f"clients {problem.n - 1}" in " ".join(told) or "client" in told[0]


@pytest.mark.slow
def test_a_killed_actor_gets_its_memory_back_not_zeros(engines: Engines) -> None:
    row = NAMED["scaffnew"]
    problem = row.rows()
    engine = engines[2]
    engine.snapshot_every = 1000
    run(row, problem, engine, rounds=12, every=100)
    before = engine.memory()
    assert np.abs(before["h"]).min(axis=1).max() > 0
    for handle in engine.pool.handles:
        os.kill(ray.get(handle.where.remote(), timeout=60)[0], signal.SIGKILL)
    held = engine._call("evaluate", lambda parcel: (parcel.of(np.zeros(problem.d)),))
    assert len(held) == 2
    engine.session.send({a: [] for a in engine.pool.all}, snapshot=True)
    after = engine.memory()
    assert all(np.array_equal(before[k], after[k]) for k in before)


def worker(first: int = 1, m: int = 3) -> tuple[ActorWorker, ps.Problem]:
    problem = NAMED["scaffnew"].rows()
    part = ps.Problem(problem.clients[first : first + m], d=problem.d)
    made = ActorWorker(0)
    made.take(first, part.clients)
    zeros = {k: np.zeros((m, problem.d)) for k in ("h", "xhat")}
    made.begin("r", 5, 0, problem.d, None, Census.of(problem), zeros)
    return made, problem


def test_a_message_told_twice_is_done_once() -> None:
    """By (run, operation): the same message gives the same reply, any other order is refused."""
    w, problem = worker()
    method = ps.Scaffnew.theory(problem)
    x = np.ones(problem.d)
    ops = [Op("run", ray.put(method.local), None, (x,), 3, 7), Op("tell", ray.put(method.settle), None, (ray.put(x),))]
    message = Message("r", 5, ops, snapshot=True)
    first = w.step(message)
    memory = {k: v.copy() for k, v in w.engine.kept.items()}
    again = w.step(message)
    assert again is first
    assert all(np.array_equal(memory[k], w.engine.kept[k]) for k in memory)
    assert np.abs(memory["h"]).max() > 0
    assert first.memory is not None
    assert np.array_equal(first.memory["h"], memory["h"])
    for other in (Message("other run", 7, ops), Message("r", 5, ops[:1]), Message("r", 8, ops), Message("r", 0, ops)):
        with pytest.raises(Lost):
            w.step(other)
    w.step(Message("r", 7, ops))
    with pytest.raises(Lost):
        w.step(message)  # an older message that was answered long ago


def test_a_message_that_broke_off_is_not_taken_for_done() -> None:
    w, problem = worker()

    def broken(client: Any, memory: Any, K: int, x: Any) -> Any:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        w.step(Message("r", 5, [Op("run", ray.put(broken), None, (np.ones(problem.d),), 0, 1)]))
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


SCRIPT = """
import os, sys, proxskip as ps
from proxskip.cli import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.slow
def test_a_killed_driver_is_resumed_to_the_same_bytes(tmp_path: Path) -> None:
    flags = ["--data", "digits", "--clients", "6", "--rounds", "200", "--every", "5", "--quiet"]
    go = [sys.executable, "-c", SCRIPT, "run", "scaffnew", *flags]
    at = ["--address", ray.get_runtime_context().gcs_address]
    ours = [*go, "--out", str(tmp_path / "ray"), "--engine", "ray", *at, "--actors", "2", "--checkpoint-every", "3"]
    with subprocess.Popen(ours, stderr=subprocess.PIPE) as driver:
        until = time.monotonic() + 120
        while time.monotonic() < until and not (tmp_path / "ray" / "checkpoint.previous").exists():
            time.sleep(0.05)
        time.sleep(0.1)
        driver.kill()
    assert driver.returncode == -signal.SIGKILL, driver.stderr
    assert not (tmp_path / "ray" / "summary.json").exists()
    resume = [sys.executable, "-c", SCRIPT, "resume", str(tmp_path / "ray"), "--actors", "1", *at, "--quiet"]
    again = subprocess.run(resume, capture_output=True, text=True, timeout=240)
    assert again.returncode == 0, again.stderr
    subprocess.run([*go, "--out", str(tmp_path / "cpu")], check=True, timeout=240)
    assert (tmp_path / "ray" / "x.npy").read_bytes() == (tmp_path / "cpu" / "x.npy").read_bytes()


def test_resume_from_a_folder(tmp_path: Path, engines: Engines) -> None:
    row = NAMED["decentralized"]
    problem = row.rows()
    run(row, problem, engines[3], rounds=6, out=tmp_path / "a")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ps.UnsafeStepWarning)
        result = ps.resume(tmp_path / "a", problem, engine=engines[2], rounds=15)
        assert bits(result) == bits(run(row, problem, rounds=15))
        with pytest.raises(ps.InputError, match="engine"):
            ps.resume(tmp_path / "a", problem, engine=CpuEngine(), rounds=20)


# -- what cannot finish ends with a sentence ---------------------------------------------------------------------------
@pytest.mark.slow
def test_no_room_for_an_actor() -> None:
    problem = NAMED["scaffnew"].rows()
    with (
        pytest.warns(
            FullClusterWarning, match=r"^1 actors need 100 CPUs and the cluster has 6; some wait for machines"
        ),
        pytest.raises(
            EngineError, match=r"^the actor with clients 0 to 3 did not start within 8 seconds: it needs 100 CPU"
        ),
    ):
        run(NAMED["scaffnew"], problem, RayEngine(1, cores=100, deadline=8))


def test_a_full_object_store(engines: Engines, monkeypatch: Any) -> None:
    def full(value: Any) -> Any:
        raise ray.exceptions.ObjectStoreFullError("no room")

    problem, engine = NAMED["scaffnew"].rows(), engines[2]
    monkeypatch.setattr(ray_pool, "MIN_STORE_BYTES", 8)
    monkeypatch.setattr(ray, "put", full)
    with pytest.raises(EngineError, match=r"^the object store of the driver's machine is full"):
        run(NAMED["scaffnew"], problem, engine)


def test_a_lost_machine_gets_no_new_actors(monkeypatch: Any) -> None:
    """Ray takes it for alive some time longer."""
    made: list[Any] = []

    class Fake:
        def options(self, **options: Any) -> Any:
            made.append(options.get("scheduling_strategy"))
            return type("Made", (), {"remote": lambda self, *given: None})()

    def node(name: str, alive: bool = True, cpus: float = 4.0) -> dict[str, Any]:
        return {"NodeID": name * 28, "Alive": alive, "Resources": {"CPU": cpus}}

    monkeypatch.setattr(ray, "nodes", lambda: [node("aa"), node("bb"), node("cc", alive=False), node("dd", cpus=0.0)])
    pool = ray_pool.Pool([0, 1, 2], 1, None, 10.0, None)
    pool.actor = Fake()
    pool.start([0, 1], {"aa" * 28})
    assert [s.node_id for s in made] == ["bb" * 28] * 2
    assert all(s.soft for s in made)  # if there is no room on it, anywhere will do
    pool.start([0, 1])
    pool.start([0, 1], {"aa" * 28, "bb" * 28})
    assert made[2:] == [None] * 4
    gone = ray.exceptions.ActorUnavailableError("RpcError", None)
    assert ray_pool.reason(gone) == "it could not be reached"


class Moody:
    """A client that fails, or sleeps, from some gradient on, where it was sent to."""

    L, mu, d = 1.0, 0.5, 2

    def __init__(self, mood: str, after: int) -> None:
        self.mood, self.left, self.home = mood, after, os.getpid()

    def value(self, x: Any) -> float:
        return 0.5 * float(x @ x)

    def gradient(self, x: Any) -> Any:
        self.left -= os.getpid() != self.home
        if self.left < 0 and self.mood == "fails":
            raise ZeroDivisionError("the data are gone")
        if self.left < 0 and self.mood == "sleeps":
            time.sleep(600)
        return x - 1.0


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
    problem = ps.Problem([Moody("", 0), Moody(mood, 60)])
    engine = RayEngine(2, deadline=100)

    class Impatient:
        def on_run_start(self, config: Any) -> None:
            engine.pool.deadline = 8.0

        def on_record(self, step: int, metrics: Any) -> None: ...
        def on_run_end(self, result: Any) -> None: ...

    with pytest.raises(EngineError, match=sentence):
        ps.run(ps.Scaffnew(0.5, 0.5), problem, rounds=1000, engine=engine, callbacks=(Impatient(),))
    assert engine.pool is None  # no actor is left behind


def moody_shard(i: int) -> Any:
    if i == 2:
        raise FileNotFoundError(2, "No such file or directory", "part-2")
    return Moody("", 0)


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


def slow_shard(i: int) -> Any:
    time.sleep(600)


@pytest.mark.slow
def test_a_shard_that_takes_too_long_is_named() -> None:
    engine = RayEngine(1, deadline=120)
    engine.load(lambda i: Moody("", 0), n=2)  # its process is there
    engine.deadline = 5.0
    with pytest.raises(
        EngineError,
        match=r"^the actor with clients 0 to 1 \(slow_shard\(0\), ...\) did not load its shards within 5 sec",
    ):
        engine.load(slow_shard, n=2)


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
    with pytest.raises(ps.InputError, match="lie in Ray actors"):
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
    with pytest.raises(ps.InputError, match="loaded other shards since"):
        ps.run(method, problem, rounds=5, engine=engine)


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
    with pytest.raises(ps.InputError, match=r'the engine "ray" cannot take back a round that is void'):
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
def test_a_cluster_without_token_is_warned_about(gcs: str, mode: str | None, warned: bool) -> None:
    note = exposed(gcs, {} if mode is None else {"RAY_AUTH_MODE": mode})
    assert (note is not None) == warned
    if note is not None:
        assert "RAY_AUTH_MODE=token" in note


def test_the_example_cluster_is_one_for_rays_launcher() -> None:
    """Checked by Ray's own schema; its start commands ask for the token."""
    util = pytest.importorskip("ray.autoscaler._private.util")
    file = Path(__file__).parents[1] / "examples" / "ray" / "cluster.yaml"
    made = util.prepare_config(pytest.importorskip("yaml").safe_load(file.read_text()))
    util.validate_config(made)
    for who in ("head", "worker"):
        assert "RAY_AUTH_MODE=token" in made[f"{who}_start_ray_commands"][-1]


def test_nothing_listens_beyond_loopback() -> None:
    own = {inode for pid in ray_processes() for inode in sockets(pid)}
    bound = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            place, state, inode = (line.split()[k] for k in (1, 3, 9))
            if state == "0A" and inode in own:
                bound.add(place.split(":")[0])
    assert bound
    assert all(place.endswith("0100007F") for place in bound)  # 127.0.0.1, also as an IPv6 address


def ray_processes() -> list[int]:
    """This test's Ray: what was started below this process, and its children."""
    parents = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                parents[int(folder.name)] = int((folder / "stat").read_text().rsplit(")", 1)[1].split()[1])
            except OSError:
                continue
    found, frontier = set(), {os.getpid()}
    while frontier:
        frontier = {p for p, parent in parents.items() if parent in frontier} - found
        found |= frontier
    return sorted(found)


def sockets(pid: int) -> set[str]:
    try:
        links = [os.readlink(f) for f in Path(f"/proc/{pid}/fd").iterdir()]
    except OSError:
        return set()
    return {link[8:-1] for link in links if link.startswith("socket:[")}


@pytest.mark.slow
def test_there_is_no_cluster_at_that_address() -> None:
    code = (
        "import proxskip as ps\nfrom proxskip.engines.ray.engine import RayEngine\n"
        "p = ps.Problem(ps.random_quadratics(2, 2))\n"
        "try:\n    ps.run(ps.Scaffnew.theory(p), p, rounds=1, engine=RayEngine(address='127.0.0.1:9'))\n"
        "except ps.InputError as e:\n    print(e)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=240)
    assert 'there is no Ray cluster at "127.0.0.1:9"' in done.stdout, done.stderr


@pytest.mark.parametrize(
    "given",
    [
        {"actors": 0},
        {"cores": 0},
        {"deadline": 0.0},
        {"deadline": float("inf")},
        {"memory": 1.5},
        {"snapshot_every": True},
    ],
)
def test_bad_options_are_refused(given: dict[str, Any]) -> None:
    with pytest.raises(ps.InputError, match=next(iter(given))):
        RayEngine(**given)


def test_the_result_says_where_the_time_went(engines: Engines) -> None:
    heard: list[dict[str, float]] = []

    class Listener:
        def on_run_start(self, config: Any) -> None: ...
        def on_record(self, step: int, metrics: dict[str, float]) -> None:
            heard.append(dict(metrics))

        def on_run_end(self, result: Any) -> None: ...

    A, b = data()
    sizes = [4, 4, 4, 84]  # the last client has most of the rows
    groups = np.repeat(np.arange(4), sizes)
    problem = ps.split(ps.Logistic(np.tile(A, (1, 40)), b, l2=0.5), by="group", groups=groups)
    engine = engines[2]
    # kernels are compiled before, and steps enough that a busy core is not mistaken for a slow client
    ps.run(ps.Scaffnew(0.01, 0.001, K=4), problem, rounds=1, engine=engine, allow_unsafe_step=True)
    result = ps.run(
        ps.Scaffnew(0.01, 0.001, K=4000),
        problem,
        rounds=10,
        engine=engine,
        callbacks=(Listener(),),
        allow_unsafe_step=True,
    )
    about = result.summary()["cluster"]
    assert about["actors"] == 2
    assert about["rounds_per_second"] > 0
    shares = [about[f"share_{k}"] for k in ("local", "waiting", "communication")]
    assert all(0 <= s <= 1 for s in shares)
    assert sum(shares) == pytest.approx(1.0)
    assert about["slowest_actor"]["actor"] == 1
    assert about["slowest_actor"]["clients"] == "client 3"
    assert {"share_local", "slowest_actor"} <= set(heard[-1])
    assert "share_local" not in result.trace.columns
