"""The Ray engine where something is wrong: the wrong data, the wrong cluster, a silent one, and who is to be named."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import proxskip as ps
from conftest import RAY_CPUS, RAY_WARNS
from proxskip.loop.loop import Loop
from proxskip.types import EngineError

ray = pytest.importorskip("ray", reason="Ray is not installed: pip install 'proxskip[ray]'")

from proxskip.engines.ray import actor_session as ray_talk  # noqa: E402
from proxskip.engines.ray import cluster as ray_cluster  # noqa: E402
from proxskip.engines.ray import pool as ray_pool  # noqa: E402
from proxskip.engines.ray.actor_session import ActorSession  # noqa: E402
from proxskip.engines.ray.engine import RayEngine  # noqa: E402

pytestmark = [
    pytest.mark.slow,
    pytest.mark.usefixtures("ray_here"),
    RAY_WARNS,
]


@pytest.fixture
def made() -> Iterator[Any]:
    """Engines that are shut down after the test."""
    engines: list[RayEngine] = []

    def make(*given: Any, **named: Any) -> RayEngine:
        engines.append(RayEngine(*given, **{"deadline": 120} | named))
        return engines[-1]

    yield make
    for engine in engines:
        engine.shutdown()


def quadratics(n: int = 4) -> ps.Problem:
    return ps.Problem(ps.random_quadratics(n, 4, L=1.0, mu=0.05, seed=3))


def shard(i: int, k: int = 1) -> Any:
    rows = np.random.default_rng(100 * k + i).standard_normal((20, 3))
    return ps.LeastSquares(rows, rows @ np.ones(3) * k + i, l2=0.1)


def from_file(folder: Path) -> Any:
    """What loads one of four shards from a file."""
    rng = np.random.default_rng(0)
    for k in range(4):
        A = rng.standard_normal((30, 3))
        np.savez(folder / f"{k}.npz", A=A, b=(A[:, 0] + k > 1.5) * 1.0)

    def load_shard(i: int) -> Any:
        with np.load(folder / f"{i}.npz") as part:
            return ps.Logistic(part["A"], part["b"], l2=0.1, classes=[0.0, 1.0])

    return load_shard


def kill(engine: RayEngine, a: int) -> None:
    pid, _ = ray.get(engine.pool.handles[a].where.remote(), timeout=60)
    os.kill(pid, signal.SIGKILL)


class At:
    """Does something at one record, or where a run starts."""

    def __init__(self, round: int, act: Any) -> None:
        self.round, self.act = round, act

    def on_run_start(self, config: Any) -> None:
        if self.round < 0:
            self.act()

    def on_record(self, step: int, metrics: Any) -> None:
        if step == self.round:
            self.act()

    def on_run_end(self, result: Any) -> None: ...


def script(code: str) -> str:
    """What a process with a Ray of its own prints."""
    head = (
        "import os, time, warnings\nimport numpy as np, ray\nimport proxskip as ps\n"
        "from proxskip.engines.ray import cluster as ray_cluster\nfrom proxskip.engines.ray.engine import RayEngine\n"
        "q = ps.Problem(ps.random_quadratics(4, 4, L=1.0, mu=0.05, seed=3))\n"
        "def shard(i):\n    r = np.random.default_rng(i).standard_normal((20, 3))\n"
        "    return ps.LeastSquares(r, r @ np.ones(3) + i, l2=0.1)\n"
    )
    done = subprocess.run([sys.executable, "-c", head + code], capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    return done.stdout


# -- Ray itself --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("who", "named"), [("raylet", "raylet"), ("gcs_server", "head"), ("agent", "raylet")])
def test_a_ray_that_ends_is_named_at_once(who: str, named: str, tmp_path: Path) -> None:
    """Not after the deadline of ten minutes, and not as a fault of an actor; the checkpoint can be resumed."""
    said = script(f"""
import psutil, signal
from proxskip.types import EngineError
class Kill:
    def on_run_start(self, config): ...
    def on_run_end(self, result): ...
    def on_record(self, step, metrics):
        if step == 40:
            pids = {{k: v[0].process.pid for k, v in ray._private.worker._global_node.all_processes.items()}}
            if {who!r} in pids:
                os.kill(pids[{who!r}], signal.SIGKILL)
            else:
                below = psutil.Process(pids["raylet"]).children()
                [c.kill() for c in below if "agent" in " ".join(c.cmdline()).lower()]
            self.at = time.monotonic()
kill, method = Kill(), ps.Scaffnew(0.9, 0.2)
engine = RayEngine(2, deadline=600)
try:
    ps.run(method, q, rounds=10**7, every=20, engine=engine, callbacks=(kill,), out={str(tmp_path / "run")!r})
except EngineError as error:
    print(error)
print(time.monotonic() - kill.at)
warnings.simplefilter("ignore")
engine.shutdown()
done = ps.resume({str(tmp_path / "run")!r}, q, engine=RayEngine(2), seconds=0.1)
print(done.summary()["rounds"] > 0, flush=True)
os._exit(0)
""").splitlines()
    lost, seconds, resumed = said[-3:]
    assert lost.startswith("Ray was lost: ")
    assert named in lost.partition(",")[0]
    assert "actor with" not in lost
    assert float(seconds) < 120  # the agent's end reaches its raylet first
    assert resumed == "True"


# -- the same data -----------------------------------------------------------------------------------------------------
def test_a_shard_that_changed_is_not_taken_for_the_same(tmp_path: Path, made: Any) -> None:
    engine = made(2)
    problem = engine.load(from_file(tmp_path), n=4)
    method = ps.Scaffnew.theory(problem)

    def change() -> None:
        with np.load(tmp_path / "0.npz") as held:
            A, b = held["A"], held["b"]
        np.savez(tmp_path / "0.npz", A=-3 * A, b=b)
        kill(engine, 0)

    with pytest.raises(
        EngineError, match=r"^the data of client 0 \(load_shard\(0\)\) are not those that were loaded at first"
    ):
        ps.run(method, problem, rounds=60, engine=engine, callbacks=(At(20, change),))
    assert engine.pool is None  # nor is it used by the next run
    with pytest.raises(ps.InputError, match="load these again"):
        ps.run(method, problem, rounds=5, engine=engine)


def test_a_shard_that_vanished_leaves_no_empty_actor(tmp_path: Path, made: Any) -> None:
    engine = made(2)
    problem = engine.load(from_file(tmp_path), n=4)
    kill(engine, 1)
    (tmp_path / "3.npz").unlink()
    with pytest.raises(ps.InputError, match=r"client 3 \(load_shard\(3\)\) cannot be loaded: No such file"):
        problem.value(np.ones(3))
    with pytest.raises(ps.InputError, match="load these again"):
        problem.value(np.ones(3))


def test_a_problem_is_judged_on_its_own_shards(made: Any) -> None:
    engine = made(2)
    first = engine.load(shard, n=4)
    assert np.array_equal(first.gradient(np.ones(3)), first.here().gradient(np.ones(3)))
    second = engine.load(lambda i: shard(i, 2), n=4)
    with pytest.raises(ps.InputError, match="loaded other shards since"):
        first.gradient(np.zeros(3))
    assert np.array_equal(second.gradient(np.zeros(3)), second.here().gradient(np.zeros(3)))
    engine.shutdown()
    with pytest.raises(ps.InputError, match="was shut down; load these again"):
        second.value(np.ones(3))


# -- one rule on every engine ------------------------------------------------------------------------------------------
@pytest.mark.parametrize("every", [1, 500])
def test_gossip_that_overflows_ends_in_the_same_round(every: int, made: Any) -> None:
    q = quadratics()
    method = ps.DecentralizedScaffnew.theory(q, ps.graph("ring", 4))
    method = dataclasses.replace(method, gamma=method.gamma * 40, tau=method.tau / 40)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ps.UnsafeStepWarning)
        ours, cpu, reference = (
            ps.run(method, q, rounds=2000, every=every, seed=2, allow_unsafe_step=True, engine=e)
            for e in (made(2), "cpu", "reference")
        )
    assert cpu.status is ps.Status.DIVERGED
    assert ours.message == cpu.message == reference.message
    assert ours.x.tobytes() == cpu.x.tobytes() == reference.x.tobytes()
    assert np.array_equal(ours.trace["round"], cpu.trace["round"])
    if every == 500:
        assert int(cpu.message.split()[4]) < 500


def test_those_who_sit_out_are_snapshotted_too(made: Any, monkeypatch: Any) -> None:
    engine, q, most = made(6, snapshot_every=10), quadratics(6), [0]
    real = ActorSession.ask

    def ask(self: ActorSession, *given: Any) -> Any:
        replies = real(self, *given)
        most[0] = max(most[0], *(len(log.done) for log in self.logs.values()))
        return replies

    monkeypatch.setattr(ActorSession, "ask", ask)
    method = ps.Scaffnew.theory(q, cohort=2)
    ours = ps.run(method, q, rounds=300, every=300, cohort=2, engine=engine)
    assert 0 < most[0] <= 2 * 11  # two operations a round
    assert ours.x.tobytes() == ps.run(method, q, rounds=300, every=300, cohort=2).x.tobytes()


def test_logs_of_gossip_are_bounded(made: Any, monkeypatch: Any) -> None:
    """Every client has a row of its own in them."""
    engine, q, most = made(2), quadratics(6), [0]
    real = ActorSession.ask

    def ask(self: ActorSession, *given: Any) -> Any:
        replies = real(self, *given)
        most[0] = max(most[0], *(len(log.done) for log in self.logs.values()))
        return replies

    monkeypatch.setattr(ActorSession, "ask", ask)
    monkeypatch.setattr(ray_talk, "LOG_BYTES", 0)
    method = ps.DecentralizedScaffnew.theory(q, ps.graph("ring", 6))
    ours = ps.run(method, q, rounds=40, every=40, engine=engine)
    assert 0 < most[0] <= 8  # as many rows as the snapshot has
    assert ours.x.tobytes() == ps.run(method, q, rounds=40, every=40).x.tobytes()


# -- no wait without a limit -------------------------------------------------------------------------------------------
def test_a_silent_head_is_given_up(monkeypatch: Any) -> None:
    over = threading.Event()
    for call in ("nodes", "cluster_resources"):
        monkeypatch.setattr(ray, call, lambda: over.wait(200))
    pool = ray_pool.Pool([0, 1], 1, None, 0.5, None)
    started = time.monotonic()
    with pytest.raises(EngineError, match=r"^the head of the Ray cluster did not answer within 0.5 seconds"):
        pool.start([0], {"aa" * 28})
    with pytest.raises(EngineError, match=r"^the head of the Ray cluster did not answer"):
        ray_cluster.room(0.5)
    over.set()
    assert time.monotonic() - started < 100


def test_a_port_that_is_no_cluster() -> None:
    said = script(
        "import socket\ns = socket.socket()\ns.bind(('127.0.0.1', 0))\ns.listen(5)\nt = time.monotonic()\n"
        "try:\n    ps.run(ps.Scaffnew.theory(q), q, rounds=1,\n"
        "        engine=RayEngine(1, f'127.0.0.1:{s.getsockname()[1]}', deadline=4))\n"
        "except ps.InputError as e:\n    print(e)\n"
        "print('soon', time.monotonic() - t < 100, flush=True)\nos._exit(0)\n"
    )
    assert "there is no Ray cluster at" in said
    assert "(no answer within 4 seconds)" in said
    assert "soon True" in said


class Failing:
    """The last of four clients fails after some gradients."""

    L, mu, d = 1.0, 0.5, 2

    def __init__(self, i: int) -> None:
        self.i, self.left = i, 40

    def value(self, x: Any) -> float:
        return 0.5 * float(x @ x)

    def gradient(self, x: Any) -> Any:
        self.left -= 1
        if self.i == 3 and self.left < 0:
            raise ZeroDivisionError("gone")
        return x - self.i


# -- deaths ------------------------------------------------------------------------------------------------------------
def test_many_actors_may_die_once(made: Any, monkeypatch: Any) -> None:
    engine, q = made(6), quadratics(6)
    method = ps.DecentralizedScaffnew.theory(q, ps.graph("ring", 6))
    todo, real = [1, 2, 3, 4, 5], ActorSession.rebuild

    def rebuild(self: ActorSession, *given: Any) -> Any:
        if todo:
            raise ray_pool.Died({todo.pop(): ray_pool.ENDED})
        return real(self, *given)

    monkeypatch.setattr(ActorSession, "rebuild", rebuild)
    result = ps.run(method, q, rounds=30, every=10, engine=engine, callbacks=(At(20, lambda: kill(engine, 0)),))
    assert [r["actor"] for r in result.summary()["cluster"]["recoveries"]] == [0, 1, 2, 3, 4, 5]
    assert result.x.tobytes() == ps.run(method, q, rounds=30, every=10).x.tobytes()


def test_deaths_are_counted_by_actor() -> None:
    pool = ray_pool.Pool([0, 1, 2], 1, None, 10.0, None)
    tally = ray_pool.Tally(pool, "in one call")
    for _ in range(ray_pool.MAX_DEATHS):
        tally.add({0: ray_pool.ENDED, 1: ""})  # the other was only broken off
    tally.add({1: ray_pool.ENDED})
    with pytest.raises(EngineError, match=r"^the actor with client 0 died 6 times in one call \(its process ended\)"):
        tally.add({0: ray_pool.ENDED})
    for _ in range(ray_pool.MAX_DEATHS - 1):
        tally.add({1: ""})
    with pytest.raises(EngineError, match=r"^the actor with client 1 died 6 times"):
        tally.add({1: ""})


def test_an_actor_lost_before_the_run_is_told(made: Any) -> None:
    engine = made(2)
    problem = engine.load(shard, n=4)
    kill(engine, 0)
    result = ps.run(ps.Scaffnew.theory(problem), problem, rounds=5, engine=engine)
    (lost,) = result.summary()["cluster"]["recoveries"]
    assert (lost["actor"], lost["round"], lost["cause"]) == (0, None, "its process ended")
    told = r"the actor with clients 0 to 1 (shard(0), ...) was lost before the run (its process ended) and rebuilt"
    assert [w for w in result.warnings if w.startswith(told)]
    again = ps.run(ps.Scaffnew.theory(problem), problem, rounds=5, engine=engine)
    assert again.summary()["cluster"]["recoveries"] == []


# -- who is named ------------------------------------------------------------------------------------------------------
def hanging(i: int) -> Any:
    if i == 3:
        time.sleep(600)
    return shard(i)


def deadly(i: int) -> Any:
    if i == 3:
        os._exit(1)
    return shard(i)


def test_a_shard_that_hangs_or_ends_the_process_is_one_sentence(made: Any) -> None:
    """It names the actor and its clients, also where the engine's own actors hold all CPUs."""
    engine = made(RAY_CPUS)
    engine.load(shard, n=6)  # its processes are there
    engine.deadline = 10.0
    sentence = r"^the actor with client 3 \(hanging\(3\)\) did not load its shards within 10 seconds; check its machine"
    with pytest.raises(EngineError, match=sentence):
        engine.load(hanging, n=6)
    with pytest.raises(EngineError, match=r"^the actor with clients 0 to 5 .* died 6 times while it was loaded \("):
        made(1).load(deadly, n=6)


def test_memory_that_no_machine_has(made: Any) -> None:
    with (
        pytest.warns(ray_cluster.FullClusterWarning, match=r"^1 actors need 10000000000000 bytes of memory"),
        pytest.raises(
            EngineError, match=r"did not start within 8 seconds: it needs 10000000000000 bytes of memory and"
        ),
    ):
        made(1, memory=10**13, deadline=8).load(shard, n=2)


class Odd(Exception):
    """Cannot be unpickled."""

    def __init__(self, a: str, b: str) -> None:
        super().__init__(f"{a} {b}")


class Broken(Failing):
    def gradient(self, x: Any) -> Any:
        self.left -= 1
        if self.i == 1 and self.left < 0:
            raise Odd("sensor", "broken")
        return x - self.i


def test_an_error_that_cannot_be_unpickled(made: Any) -> None:
    engine = made(2)
    problem = engine.load(Broken, n=2)
    with pytest.raises(EngineError, match=r"^client 1 \(Broken\(1\)\) failed with .*sensor broken\.$") as caught:
        ps.run(ps.Scaffnew(0.5, 0.5), problem, rounds=300, engine=engine)
    assert "\n" not in str(caught.value)


# -- nothing is left behind --------------------------------------------------------------------------------------------
def failed() -> None:
    raise ZeroDivisionError("a callback's own")


def test_a_run_that_does_not_begin_leaves_no_actors(made: Any, monkeypatch: Any, tmp_path: Path) -> None:
    q, engine = quadratics(), made(2)
    method = ps.Scaffnew.theory(q)
    ps.run(method, q, rounds=3, engine=engine, out=tmp_path / "run")
    with pytest.raises(ZeroDivisionError):
        ps.run(method, q, rounds=3, engine=engine, callbacks=(At(-1, failed),))
    assert engine.pool is None
    monkeypatch.setattr(Loop, "_prepare_watch", lambda self: failed())
    with pytest.raises(ZeroDivisionError):
        ps.run(method, q, rounds=3, engine=engine)
    assert engine.pool is None
    with pytest.raises(ZeroDivisionError):
        ps.resume(tmp_path / "run", q, engine=engine, rounds=6)
    assert engine.pool is None


def test_a_run_that_cannot_be_written_leaves_no_actors(made: Any, monkeypatch: Any) -> None:
    q, engine = quadratics(), made(2)
    monkeypatch.setattr(Loop, "_result", lambda *given: failed())
    with pytest.raises(ZeroDivisionError):
        ps.run(ps.Scaffnew.theory(q), q, rounds=3, engine=engine)
    assert engine.pool is None


def test_shards_that_do_not_fit_together_leave_no_actors(tmp_path: Path, made: Any) -> None:
    engine, load_shard = made(2), from_file(tmp_path)
    np.savez(tmp_path / "1.npz", A=np.ones((3, 5)), b=[0.0, 1.0, 1.0])
    with pytest.raises(ps.InputError, match="every shard needs the same dimension"):
        engine.load(load_shard, n=4)
    assert engine.pool is None
    with pytest.raises(ps.InputError, match="weights"):
        engine.load(load_shard, n=1, weights=[1.0, 2.0])
    assert engine.pool is None
    with pytest.raises(ps.InputError, match="give a function load_shard"):
        engine.load([tmp_path / "0.npz"])
    with pytest.raises(ps.InputError, match="needs n, the number of clients"):
        engine.load(load_shard)
    with pytest.raises(ps.InputError, match='weights = "size" is not known'):
        engine.load(load_shard, n=1, weights="size")


# -- which Ray ---------------------------------------------------------------------------------------------------------
def test_another_cluster_than_the_one_in_use_is_refused(made: Any) -> None:
    q, here = quadratics(), ray.get_runtime_context().gcs_address
    with pytest.raises(ps.InputError, match=rf'^this process uses the Ray at "{here}" already, not "10\.255'):
        ps.run(ps.Scaffnew.theory(q), q, rounds=1, engine=made(1, "10.255.255.1:6379"))
    for same in (here, "auto"):
        assert ps.run(ps.Scaffnew.theory(q), q, rounds=1, engine=made(1, same)).status is ps.Status.MAX_ROUNDS


def test_a_cluster_that_is_too_small_is_told_at_once(monkeypatch: Any) -> None:
    has = {"CPU": 2.0, "memory": 100.0}
    assert ray_cluster.check_room(2, 1, 50, has) is None
    note = ray_cluster.check_room(3, 1, None, has)
    assert note == "3 actors need 3 CPUs and the cluster has 2; some wait for machines to join, until the deadline."
    monkeypatch.setattr(ray_cluster.Started, "runs", lambda self: True)
    with pytest.raises(ps.InputError, match=r"^3 actors need 3 CPUs and the cluster has 2; use fewer actors"):
        ray_cluster.check_room(3, 1, None, has)


def test_engines_share_the_ray_that_was_started_here() -> None:
    said = script(
        "ray_cluster.available_cores = lambda: 2\n"
        "a, b = RayEngine(3, deadline=120), RayEngine(1, deadline=120)\n"
        "pa, pb = a.load(shard, n=2), b.load(shard, n=2)\n"
        "print('cpus', int(ray.cluster_resources()['CPU']))\n"
        "a.shutdown()\nprint('shared', ray.is_initialized())\n"
        "print(ps.run(ps.Scaffnew.theory(pb), pb, rounds=3, engine=b).status.name)\n"
        "print('kept', ray.is_initialized())\n"
        "try:\n    RayEngine(4, deadline=120).load(shard, n=4)\nexcept ps.InputError as e:\n    print(e)\n"
    )
    assert said.splitlines()[:4] == ["cpus 3", "shared True", "MAX_ROUNDS", "kept True"]
    assert "4 actors need 4 CPUs and the cluster has 3; use fewer actors" in said


def test_a_ray_that_does_not_end_is_killed(monkeypatch: Any) -> None:
    over, killed = threading.Event(), []  # type: Any, list[Any]
    node = type("Node", (), {"kill_all_processes": lambda self, **how: killed.append(how)})()
    monkeypatch.setattr(ray._private.worker, "_global_node", node)
    monkeypatch.setattr(ray, "shutdown", lambda: over.wait(200))
    ray_cluster._end(0.2)
    over.set()
    assert killed == [{"check_alive": False, "allow_graceful": False}]


def test_ray_that_was_shut_down_does_not_start_itself() -> None:
    said = script(
        "e, stays = RayEngine(1, deadline=120), RayEngine(1, deadline=120, stay=True)\n"
        "ray_cluster.available_cores = lambda: 2\np = e.load(shard, n=2)\n"
        "ps.run(ps.Scaffnew.theory(q), q, rounds=1, engine=stays)\n"
        "ray.shutdown()\n"
        "try:\n    p.value(np.ones(3))\nexcept ps.InputError as x:\n    print(x)\n"
        "print(ray.is_initialized())\n"
        "print(ps.run(ps.Scaffnew.theory(q), q, rounds=2, engine=stays).status.name)\n"
        "stays.shutdown()\nprint(ray.is_initialized())\n"
    )
    lines = said.splitlines()
    assert "load these again" in lines[0]
    assert lines[1:] == ["False", "MAX_ROUNDS", "False"]
