"""The Ray engine: the bytes of the cpu engine for any number of actors, whoever is killed, and sentences for the rest."""

import os
import random
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
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
from proxskip.interfaces import Request
from proxskip.types import EngineError

ray = pytest.importorskip("ray", reason="Ray is not installed: pip install 'proxskip[ray]'")

from proxskip.engines.ray import actor_session as ray_talk  # noqa: E402
from proxskip.engines.ray.actor_session import ActorSession  # noqa: E402
from proxskip.engines.ray.cluster import FullClusterWarning, start_here, warn_if_exposed  # noqa: E402
from proxskip.engines.ray.engine import RayEngine  # noqa: E402
from proxskip.engines.ray.worker import ActorWorker, Lost, Message, Op  # noqa: E402
from test_engines import run as run_each  # noqa: E402

pytestmark = [pytest.mark.usefixtures("ray_here"), RAY_WARNS]


Engines = Callable[[int], RayEngine]


@pytest.fixture(scope="module")
def engines(ray_here: None) -> Iterator[Engines]:
    """One engine whose processes are used again for every test, with as many actors as asked."""
    engine = RayEngine(1, stay=True, deadline=120)

    def with_actors(actors: int) -> RayEngine:
        engine.actors, engine.holds, engine.snapshot_every = actors, None, 50
        return engine

    yield with_actors
    engine.shutdown()


run = partial(run_each, every=3)


@pytest.mark.parametrize("row", thinned(METHODS, 24))
@pytest.mark.parametrize("actors", thinned([2, 1, 3]))
def test_every_method_has_the_cpu_engines_bytes(row: Row, actors: int, engines: Engines) -> None:
    problem = row.rows(sparse=actors != 2)
    assert bits(run(row, problem, engines(actors))) == bits(run(row, problem))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "loss", "sparse", "dtype", "batch"),
    [
        *((r.name, "logistic", True, "float64", 6) for r in [r for r in METHODS if r.claims("batch")][::2]),
        ("scaffnew-weighted", "squared", True, "float64", None),
        ("scaffnew-weighted", "softmax", False, "float64", None),
        ("scaffnew-weighted", "softmax", True, "float64", 5),
        ("scaffnew", "logistic", True, "float32", None),
    ],
)
def test_every_kind_of_client_has_the_cpu_engines_bytes(
    name: str, loss: str, sparse: bool, dtype: str, batch: int | None, engines: Engines
) -> None:
    """Rows of a minibatch are drawn by the client's number among all, not by its place in an actor."""
    row = NAMED[name]
    problem = row.rows(loss, sparse, dtype).with_batch(batch)
    assert bits(run(row, problem, engines(3), rounds=4)) == bits(run(row, problem, rounds=4))


@pytest.mark.usefixtures("own_methods")
def test_a_method_that_was_loaded_from_a_file(engines: Engines, tmp_path: Path) -> None:
    """The actors cannot import it by its name; the class travels to them. Its folder is resumed on more of them."""
    (tmp_path / "damped_scaffnew.py").write_text(code_of("authoring.md", 0))
    (kind,) = registry.load_plugin(tmp_path / "damped_scaffnew.py")
    problem = ps.Problem(quadratics(5))
    method = kind.theory(problem)
    a = ps.run(method, problem, rounds=8, cohort=3, engine=engines(2), out=tmp_path / "run")
    assert bits(a) == bits(ps.run(method, problem, rounds=8, cohort=3))
    resumed = ps.resume(tmp_path / "run", problem, rounds=12, engine=engines(3))
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
    K = np.array([3, 5, 2, 4])

    def descended(lo: int, hi: int, *given: Any) -> Any:
        engine = CpuEngine(2)
        engine.open(ps.Problem(problem.clients[lo:hi], batch=batch, d=problem.d), {}, 7, *given)
        out = engine.descend(np.arange(hi - lo), X[lo:hi], H[lo:hi], gamma[lo:hi], K[lo:hi], 9)
        engine.close()
        return out

    for ranges in ([(0, 4)], [(0, 1), (1, 4)], [(0, 2), (2, 3), (3, 4)]):
        census = Census.merged([Census.of(ps.Problem(problem.clients[lo:hi], d=problem.d)) for lo, hi in ranges])
        parts = np.concatenate([descended(lo, hi, lo, census) for lo, hi in ranges])
        assert parts.tobytes() == descended(0, 4).tobytes()


class Watch:
    """What happens at the start of a run and at its records."""

    def __init__(self, start: Any = lambda: None, record: Any = lambda step: None) -> None:
        self.start, self.record = start, record

    def on_run_start(self, config: Any) -> None:
        self.start()

    def on_record(self, step: int, metrics: Any) -> None:
        self.record(step)


class Odd(Exception):
    """Cannot be unpickled."""

    def __init__(self, a: str, b: str) -> None:
        super().__init__(f"{a} {b}")


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
        if self.left < 0 and self.mood == "fails oddly":
            raise Odd("sensor", "broken")
        if self.left < 0 and self.mood == "sleeps":
            time.sleep(600)
        return x - 1.0


def test_records_are_off_the_clock(engines: Engines) -> None:
    problem = ps.Problem([Moody(seconds=0.2), Moody(seconds=0.2)])
    problem.__dict__["solution"] = None
    seen: list[float] = []
    watch = Watch(record=lambda step: seen.append(time.perf_counter()))
    result = ps.run(ps.Scaffnew(0.5, 0.5), problem, rounds=4, every=1, engine=engines(2), callbacks=(watch,))
    clock = result.trace["seconds"]
    assert len(clock) == len(seen) == 5
    assert clock[-1] - clock[0] <= seen[-1] - seen[0] - 4 * 0.2


def test_a_round_of_scaffnew_is_one_call_to_each_actor(engines: Engines, monkeypatch: Any) -> None:
    engine, problem = engines(2), NAMED["scaffnew"].rows()
    calls: list[Any] = []
    real = ActorSession.post
    monkeypatch.setattr(ActorSession, "post", lambda *a, **k: (calls.append(a[3]), real(*a, **k))[1])
    run(NAMED["scaffnew"], problem, engine, rounds=20, every=20)
    assert len(calls) == 2 * (20 + 1)  # and one for the record, with the last settle
    assert [[op.verb for op in ops] for ops in calls[:4]] == [["run"]] * 2 + [["tell", "run"]] * 2


def test_halves_are_forgotten(engines: Engines, monkeypatch: Any) -> None:
    """With a falling step every round has its own."""
    problem, engine = NAMED["scaffnew"].rows(), engines(2)
    method = ps.Decaying(ps.Scaffnew.theory(problem), 0.02)
    monkeypatch.setattr(ray_talk, "MAX_HALVES", 5)
    ours = ps.run(method, problem, rounds=50, every=50, engine=engine)
    assert engine.session.packed.cache_info().currsize == 5
    assert bits(ours) == bits(ps.run(method, problem, rounds=50, every=50))


# -- faults ------------------------------------------------------------------------------------------------------------
def kill(engine: RayEngine, actor: int) -> None:
    pid, _ = ray.get(engine.pool.handles[actor].where.remote(), timeout=60)
    os.kill(pid, signal.SIGKILL)


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
        actors = range(len(self.engine.pool.handles))
        for actor in actors if self.everyone else [self.rng.choice(actors)]:
            with suppress(Exception):  # it is being rebuilt
                kill(self.engine, actor)
                self.killed += 1


@pytest.mark.parametrize(
    "name", thinned(["scaffnew", "scaffnew-cohort", "scaffold-I", "decentralized", "diging", "scaffnew-decaying"], 6)
)
def test_killed_workers_change_nothing(name: str, engines: Engines) -> None:
    row, everyone = NAMED[name], name == "scaffnew-cohort"
    problem = row.rows(sparse=True).with_batch(6)
    engine = engines(3)
    engine.snapshot_every = 7
    killer = Killer(engine, everyone, seed=len(name))
    result = run(row, problem, engine, rounds=120, every=2, callbacks=(killer,))
    assert killer.killed > 0
    assert bits(result) == bits(run(row, problem, rounds=120, every=2))
    recoveries = result.summary["cluster"]["recoveries"]
    assert recoveries
    assert all(r["cause"] == "its process ended" and r["seconds"] < 120 for r in recoveries)
    assert len([w for w in result.warnings if "was lost in round" in w]) == len(recoveries)


def broken_half(client: Any, memory: Any, K: int, x: Any) -> Any:
    raise ValueError("no")


def test_messages_are_done_in_their_order() -> None:
    """By (run, operation); one that is told twice is refused and changes nothing, one that broke off is not done."""
    w, problem, everyone = ActorWorker(), NAMED["scaffnew"].rows(), None  # type: Any, ps.Problem, Any
    w.take(1, problem.clients[1:])
    w.begin("r", 5, 0, problem.d, None, Census.of(problem), {k: np.zeros((3, problem.d)) for k in ("h", "xhat")})
    method, x = ps.Scaffnew.theory(problem), np.ones(problem.d)
    ops = [
        Op("run", Request(ray.put(method.local), everyone, 3, 7, (x,))),
        Op("tell", Request(ray.put(method.settle), everyone, 0, 0, (ray.put(x),))),
    ]
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
    with pytest.raises(ValueError, match="no"):
        w.step(Message("r", 9, [Op("run", Request(ray.put(broken_half), everyone, 0, 1, (x,)))]))
    with pytest.raises(Lost):
        w.step(Message("r", 9, []))


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


@pytest.mark.slow
def test_no_room_for_an_actor() -> None:
    problem = NAMED["scaffnew"].rows()
    warned = r"^the actors need 100 CPUs and the cluster has 6; some actors wait for mach"
    said = r"^the actor with clients 0 to 3 did not start within 8 seconds; use fewer"
    with pytest.warns(FullClusterWarning, match=warned), pytest.raises(EngineError, match=said):
        run(NAMED["scaffnew"], problem, RayEngine(1, cores=100, deadline=8))


@pytest.mark.parametrize("mood", thinned(["fails", "fails oddly", "sleeps"]))
def test_a_client_that_does_not_answer(mood: str) -> None:
    sentence = {
        "fails": r"^client 1 failed with ZeroDivisionError: the data are gone\.$",
        "fails oddly": r"^client 1 failed with [^\n]*sensor broken\.$",
        "sleeps": r"^the actor with client 1 did not (finish round \d+|answer) within 8 seconds; check its machine",
    }[mood]
    problem = ps.Problem([Moody(), Moody(mood, 60)])
    engine = RayEngine(2, deadline=100)
    impatient = Watch(start=lambda: setattr(engine.pool, "deadline", 8.0))
    with pytest.raises(EngineError, match=sentence):
        ps.run(ps.Scaffnew(0.5, 0.5), problem, rounds=1000, engine=engine, callbacks=(impatient,))
    assert engine.pool is None  # no actor is left behind


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
    engine = engines(3)
    problem = engine.load(from_file(tmp_path), n=4, batch=batch)
    here = problem.here()
    assert [f.N for f in here.clients] == problem.sizes == [24, 24, 24, 24]
    assert (problem.L_max, problem.mu, problem.d) == (here.L_max, here.mu, here.d)
    method = ps.Scaffnew.theory(problem)
    a, b = (ps.run(method, p, rounds=12, seed=3, every=2, engine=e) for p, e in ((problem, engine), (here, "cpu")))
    assert all(np.array_equal(a.trace[k], b.trace[k]) for k in ("f", "grad_norm", "sum_h", "grad_evals"))
    assert a.x.tobytes() == b.x.tobytes()
    assert np.array_equal(a.memory["h"], b.memory["h"])
    with pytest.raises(ps.InputError, match="is in a Ray actor"):
        ps.run(method, problem, rounds=1, engine="reference", seed=3)
    if batch is None:
        return
    for actor in range(3):  # shards are read again where an actor is rebuilt
        kill(engine, actor)
    again = ps.run(method, problem, rounds=12, seed=3, every=2, engine=engine)
    assert again.x.tobytes() == b.x.tobytes()


@pytest.mark.slow
def test_a_sharded_run_is_resumed_only_on_the_same_data(tmp_path: Path, engines: Engines) -> None:
    engine, load_shard = engines(2), from_file(tmp_path)
    problem = engine.load(load_shard, n=4)
    method = ps.Scaffnew.theory(problem)
    ps.run(method, problem, rounds=5, engine=engine, out=tmp_path / "run")
    straight = ps.run(method, problem, rounds=9, engine=engine)
    resumed = ps.resume(tmp_path / "run", problem, engine=engine, rounds=9)
    assert resumed.x.tobytes() == straight.x.tobytes()
    other = engine.load(lambda i: load_shard(3 - i), n=4)
    with pytest.raises(ps.InputError, match="fingerprint"):
        ps.resume(tmp_path / "run", other, engine=engine, rounds=12)


@pytest.mark.slow
@pytest.mark.parametrize("batch", [None, 3])
def test_clients_in_a_folder_have_the_cpu_engines_bytes(
    tmp_path: Path, batch: int | None, engines: Engines, monkeypatch: Any
) -> None:
    A, b = data(rows=640, features=40)
    ps.write_clients(tmp_path / "store", [(scipy.sparse.csr_matrix(A), b, np.arange(640) % 80)])
    problem = ps.open_clients(tmp_path / "store", l2=0.1, batch=batch)
    engine, row = engines(3), NAMED["scaffnew-cohort"]
    assert bits(run(row, problem, engine)) == bits(run(row, problem))
    kill(engine, 1)  # the one that takes its place opens the folder again
    assert bits(run(row, problem, engine)) == bits(run(row, problem))
    sent = engine.pool.data[0][1](0)
    assert len(ray.cloudpickle.dumps(sent)) < 1000, "data went through the driver"
    engine.holds = None
    folder, _, *others = sent[1].args
    monkeypatch.setattr(problem.clients, "part", lambda lo, hi: partial(sent[1].func, folder, "other", *others))
    with pytest.raises(ps.InputError, match="holds other clients"):
        run(row, problem, engine)


# -- the cluster -------------------------------------------------------------------------------------------------------
def test_a_network_that_loses_clients_is_refused(engines: Engines) -> None:
    with pytest.raises(ps.InputError, match=r'the engine "ray" cannot undo a void round'):
        ps.run("gd", ps.Problem(quadratics(3)), rounds=1, engine=engines(2), network="mobile")


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
    about = run(NAMED["scaffnew"], NAMED["scaffnew"].rows(), engines(2)).summary["cluster"]
    assert about["actors"] == 2
    assert about["rounds_per_second"] > 0
    shares = [about[f"share_{k}"] for k in ("local", "waiting", "communication")]
    assert min(shares) >= 0
    assert sum(shares) == pytest.approx(1.0)
