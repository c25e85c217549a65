"""The Ray engine where something is wrong: the wrong data, the wrong cluster, a silent one, and who is to be named."""

import dataclasses
import os
import re
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import proxskip as ps
from proxskip.running.loop import Loop
from proxskip.types import EngineError
from support.comparing import close
from support.problems import quadratics
from support.tiers import RAY_CPUS, RAY_WARNS

ray = pytest.importorskip("ray", reason="Ray is not installed: pip install 'proxskip[ray]'")

from proxskip.engines.ray import cluster as ray_cluster  # noqa: E402
from proxskip.engines.ray import pool as ray_pool  # noqa: E402
from proxskip.engines.ray.engine import RayEngine  # noqa: E402
from support.ray_actors import Watch, from_file, kill  # noqa: E402

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("ray_here"), RAY_WARNS]


@pytest.fixture
def make() -> Iterator[Any]:
    """Engines that are shut down after the test."""
    engines: list[RayEngine] = []

    def new_engine(*args: Any, **options: Any) -> RayEngine:
        engines.append(RayEngine(*args, **{"deadline": 120} | options))
        return engines[-1]

    yield new_engine
    for engine in engines:
        engine.shutdown()


def shard(i: int, k: int = 1) -> Any:
    rows = np.random.default_rng(100 * k + i).standard_normal((20, 3))
    return ps.LeastSquares(rows, rows @ np.ones(3) * k + i, l2=0.1)


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


@pytest.mark.release
@pytest.mark.parametrize(("who", "named"), [("gcs_server", "head"), ("agent", "raylet")])
def test_a_ray_that_ends_is_named_at_once(who: str, named: str, tmp_path: Path) -> None:
    """Not after the deadline of ten minutes, and not as a fault of an actor; the checkpoint can be resumed."""
    said = script(f"""
import psutil, signal
from proxskip.types import EngineError
class Kill:
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
print(done.summary["rounds"] > 0, flush=True)
os._exit(0)
""").splitlines()
    lost, seconds, resumed = said[-3:]
    assert lost.startswith("lost Ray: ")
    assert named in lost.partition(",")[0]
    assert "actor with" not in lost
    assert float(seconds) < 120  # the agent's end reaches its raylet first
    assert resumed == "True"


def test_a_shard_that_changed_is_not_taken_for_the_same(tmp_path: Path, make: Any) -> None:
    engine = make(2)
    problem = engine.load(from_file(tmp_path), n=4)
    method = ps.Scaffnew.theory(problem)

    def change() -> None:
        with np.load(tmp_path / "part-0.npz") as held:
            A, b = held["A"], held["b"]
        np.savez(tmp_path / "part-0.npz", A=-3 * A, b=b)
        kill(engine, 0)

    watch = Watch(record=lambda step: step == 20 and change())
    with pytest.raises(EngineError, match=r"^the data of client 0 \(load_shard\(0\)\) have changed"):
        ps.run(method, problem, rounds=60, engine=engine, callbacks=(watch,))
    assert engine.pool is None  # nor is it used by the next run
    with pytest.raises(ps.InputError, match="load these shards again"):
        ps.run(method, problem, rounds=5, engine=engine)


def test_a_shard_that_vanished_leaves_no_empty_actor(tmp_path: Path, make: Any) -> None:
    engine = make(2)
    problem = engine.load(from_file(tmp_path), n=4)
    kill(engine, 1)
    (tmp_path / "part-3.npz").unlink()
    with pytest.raises(ps.InputError, match=r"client 3 \(load_shard\(3\)\) cannot be loaded: No such file"):
        problem.value(np.ones(6))
    with pytest.raises(ps.InputError, match="load these shards again"):
        problem.value(np.ones(6))


def test_a_problem_is_judged_on_its_own_shards(make: Any) -> None:
    engine = make(2)
    first = engine.load(shard, n=4)
    assert np.array_equal(first.gradient(np.ones(3)), first.here().gradient(np.ones(3)))
    kill(engine, 0)
    kill(engine, 1)
    assert np.array_equal(first.gradient(np.full(3, 2.0)), first.here().gradient(np.full(3, 2.0)))
    second = engine.load(lambda i: shard(i, 2), n=4)
    with pytest.raises(ps.InputError, match="loaded other shards"):
        first.gradient(np.zeros(3))
    assert np.array_equal(second.gradient(np.zeros(3)), second.here().gradient(np.zeros(3)))
    engine.shutdown()
    with pytest.raises(ps.InputError, match="was shut down; load these shards again"):
        second.value(np.ones(3))


def test_gossip_that_overflows_ends_in_the_same_round(make: Any) -> None:
    """Between two records: the round is found that was the first to overflow."""
    q = ps.Problem(quadratics())
    method = ps.DecentralizedScaffnew.theory(q, graph=ps.graphs.graph("ring", 4))
    method = dataclasses.replace(method, gamma=method.gamma * 40, tau=method.tau / 40)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ps.UnsafeStepWarning)
        ours, cpu, reference = (
            ps.run(method, q, rounds=2000, every=500, seed=2, allow_unsafe_step=True, engine=e)
            for e in (make(2), "cpu", "reference")
        )
    assert cpu.status is ps.Status.DIVERGED
    assert ours.message == cpu.message == reference.message
    assert close(ours.x, cpu.x, 1e-12)
    assert close(reference.x, cpu.x, 1e-12)
    assert np.array_equal(ours.trace["round"], cpu.trace["round"])
    (number,) = re.findall(r"after round (\d+);", cpu.message)
    assert int(number) < 500


# -- no wait without a limit -------------------------------------------------------------------------------------------
def test_a_silent_head_is_given_up(monkeypatch: Any) -> None:
    over = threading.Event()
    monkeypatch.setattr(ray, "cluster_resources", lambda: over.wait(200))
    pool = ray_pool.Pool([0, 1], 1, 1, 0.5, None)
    pool.actor = SimpleNamespace(options=lambda **_: SimpleNamespace(remote=lambda cores: over.wait(200)))
    started = time.monotonic()
    with pytest.raises(EngineError, match=r"^the head of the Ray cluster did not answer within 0.5"):
        pool.fill()
    with pytest.raises(EngineError, match=r"^the head of the Ray cluster did not answer"):
        ray_cluster.cpus(0.5)
    over.set()
    assert time.monotonic() - started < 100


def test_a_port_that_is_no_cluster() -> None:
    """Nobody listens there, or somebody who says nothing."""
    printed = script("""
import socket
s = socket.socket()
s.bind(('127.0.0.1', 0))
s.listen(5)
t = time.monotonic()
for port in (9, s.getsockname()[1]):
    try:
        ps.run(ps.Scaffnew.theory(q), q, rounds=1, engine=RayEngine(1, f'127.0.0.1:{port}', deadline=4))
    except ps.InputError as e:
        print(e)
print('soon', time.monotonic() - t < 100, flush=True)
os._exit(0)
""")
    assert printed.count("no Ray cluster at") == 2
    assert "(no answer within 4 seconds)" in printed
    assert "soon True" in printed


def test_no_actor_is_placed_on_a_machine_that_failed() -> None:
    """Its raylet is killed, so Ray believes for some more seconds that it lives; the run goes on elsewhere at once."""
    said = script("""
import psutil
from ray.cluster_utils import Cluster
from proxskip.engines.ray.private import on_loopback
about = {"num_cpus": 2, "object_store_memory": 100 * 2**20, "include_dashboard": False, "node_ip_address": "127.0.0.1"}
with on_loopback():
    cluster = Cluster(initialize_head=True, head_node_args={**about, "num_cpus": 0})
    held = [cluster.add_node(**about), cluster.add_node(**about)]
    ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
    engine = RayEngine(deadline=120, stay=True)
    class Remove:
        def on_record(self, step, metrics):
            if step == 40:
                self.node = next(node for node in held if node.node_id == engine.pool.machines[0])
                where = ray.get([handle.where.remote() for handle in engine.pool.handles])
                there = [psutil.Process(pid) for pid, machine in where if machine == self.node.node_id]
                cluster.remove_node(self.node, allow_graceful=False)
                psutil.wait_procs(there, timeout=60)  # a lost actor may live on for some rounds
    remove, method = Remove(), ps.Scaffnew(0.9, 0.2)
    result = ps.run(method, q, rounds=100, every=5, engine=engine, callbacks=(remove,))
    print("said", result.summary["cluster"]["actors"])
    x = ps.run(method, q, rounds=100).x
    print("said", bool(np.abs(result.x - x).max() <= 1e-12 * np.abs(x).max()))
    (lost,) = result.summary["cluster"]["recoveries"]
    print("said", lost["from_round"] >= 40 and engine.pool.avoided == {remove.node.node_id})
    print("said", lost["seconds"], flush=True)
    warnings.simplefilter("ignore")
    engine.shutdown()
    ray.shutdown()
    cluster.shutdown()
os._exit(0)
""").splitlines()
    # not the lines that Ray prints
    actors, same, avoided, seconds = [line.split()[1] for line in said if line.startswith("said ")]
    assert (actors, same, avoided) == ("2", "True", "True")  # an actor for each machine with CPUs
    assert float(seconds) < 60


def deadly(i: int, seconds: float = 0.0) -> Any:
    if i == 3:
        time.sleep(seconds)
        os._exit(1)
    return shard(i)


def hanging(i: int) -> Any:
    return deadly(i, 600)


@pytest.mark.release
def test_a_shard_that_hangs_or_ends_the_process_is_one_sentence(make: Any) -> None:
    """It names the actor and its clients, also where the engine's own actors hold all CPUs."""
    engine = make(RAY_CPUS)
    engine.load(shard, n=6)  # its processes are there
    engine.deadline = 10.0
    sentence = r"^the actor with client 3 \(hanging\(3\)\) did not load its shards within 10 seconds; check its machine"
    with pytest.raises(EngineError, match=sentence):
        engine.load(hanging, n=6)
    with pytest.raises(EngineError, match=r"^the actor with clients 0 to 5 .* was lost .* while it loaded its shards"):
        make(1).load(deadly, n=6)


# -- nothing is left behind --------------------------------------------------------------------------------------------
def failed(*args: Any) -> None:
    raise ZeroDivisionError("a callback's own")


@pytest.mark.release
def test_a_run_that_fails_on_the_driver_leaves_no_actors(make: Any, monkeypatch: Any, tmp_path: Path) -> None:
    q, engine = ps.Problem(quadratics()), make(2)
    method = ps.Scaffnew.theory(q)
    ps.run(method, q, rounds=3, engine=engine, out=tmp_path / "run")

    with pytest.raises(ZeroDivisionError):
        ps.run(method, q, rounds=3, engine=engine, callbacks=(Watch(start=failed),))
    assert engine.pool is None
    for step in ("_result", "_prepare"):
        monkeypatch.setattr(Loop, step, failed)
        with pytest.raises(ZeroDivisionError):
            ps.run(method, q, rounds=3, engine=engine)
        assert engine.pool is None
    with pytest.raises(ZeroDivisionError):
        ps.resume(tmp_path / "run", q, engine=engine, rounds=6)
    assert engine.pool is None


def test_shards_that_do_not_fit_together_leave_no_actors(tmp_path: Path, make: Any) -> None:
    engine, load_shard = make(2), from_file(tmp_path)
    np.savez(tmp_path / "part-1.npz", A=np.ones((3, 5)), b=[0.0, 1.0, 1.0])
    with pytest.raises(ps.InputError, match="every shard needs the same dimension"):
        engine.load(load_shard, n=4)
    assert engine.pool is None
    for given, options, said in (
        (load_shard, {"n": 1, "weights": [1.0, 2.0]}, "weights"),
        ([tmp_path / "part-0.npz"], {}, "give a function load_shard"),
        (load_shard, {}, "needs n, the number of clients"),
        (load_shard, {"n": 1, "weights": "size"}, 'weights = "size" is not known'),
    ):
        with pytest.raises(ps.InputError, match=said):
            engine.load(given, **options)
        assert engine.pool is None


def test_another_cluster_than_the_one_in_use_is_refused(make: Any) -> None:
    q, here = ps.Problem(quadratics()), ray.get_runtime_context().gcs_address
    with pytest.raises(ps.InputError, match=rf'^this process already uses the Ray at "{here}", not "10\.255'):
        ps.run(ps.Scaffnew.theory(q), q, rounds=1, engine=make(1, "10.255.255.1:6379"))
    for same in (here, "auto"):
        assert ps.run(ps.Scaffnew.theory(q), q, rounds=1, engine=make(1, same)).status is ps.Status.LIMIT


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
    assert said.splitlines()[:4] == ["cpus 3", "shared True", "LIMIT", "kept True"]
    assert "the actors need 4 CPUs and the cluster has 3; use fewer actors" in said


def test_a_ray_that_does_not_end_is_killed(monkeypatch: Any) -> None:
    over, killed = threading.Event(), []  # type: Any, list[Any]
    node = type("Node", (), {"kill_all_processes": lambda self, **how: killed.append(how)})()
    monkeypatch.setattr(ray._private.worker, "_global_node", node)
    monkeypatch.setattr(ray, "shutdown", lambda: over.wait(200))
    ray_cluster._end(0.2)
    over.set()
    assert killed == [{"check_alive": False, "allow_graceful": False}]


@pytest.mark.release
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
    assert "load these shards again" in lines[0]
    assert lines[1:] == ["False", "LIMIT", "False"]
