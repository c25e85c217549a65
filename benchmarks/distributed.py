"""Ray and Flower: a round against the cpu engine and the authors' way, the constants of a cluster, memory, messages.

    python benchmarks/distributed.py                  all of it
    python benchmarks/distributed.py --only task      some of it
    python benchmarks/distributed.py --quick          fewer actors, clients and rounds, to see that it works

Memory is a process's own (USS) and its share of what it has in common with others (PSS), from /proc/PID/smaps_rollup.
"""

from __future__ import annotations

import argparse
import importlib.machinery
import importlib.util
import os
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from types import ModuleType
from typing import Any

for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[variable] = "1"  # before numpy is imported
os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "FLWR_TELEMETRY_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # it would charge the programs below with compiling themselves

import cpu
import numpy as np
import ray
from ray.cluster_utils import Cluster

import proxskip as ps
from proxskip.engines.cpu.engine import CpuEngine
from proxskip.engines.ray.engine import RayEngine
from proxskip.engines.ray.private import on_loopback

ROOT = Path(__file__).resolve().parent.parent
LIMIT = 3000.0
"""Seconds that a federation may take."""


def verdict(holds: bool) -> str:
    return "holds" if holds else "MISSED"


def memory(pid: int | str = "self") -> tuple[float, float]:
    """USS and PSS in MB."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    kilobytes = {name: int(value) for name, value, _ in map(str.split, lines)}
    return (kilobytes["Private_Clean:"] + kilobytes["Private_Dirty:"]) / 1024, kilobytes["Pss:"] / 1024


# -- Ray ---------------------------------------------------------------------------------------------------------------
@contextmanager
def two_nodes(cpus: int) -> Iterator[None]:
    """A cluster of two nodes on this machine."""
    node: dict[str, Any] = {"num_cpus": cpus, "object_store_memory": 300 << 20, "include_dashboard": False}
    node["node_ip_address"] = "127.0.0.1"
    with on_loopback(), warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        cluster = Cluster(initialize_head=True, head_node_args=node)
        cluster.add_node(**node)
        ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
        try:
            yield
        finally:
            ray.shutdown()
            cluster.shutdown()


@ray.remote(num_cpus=0)
class Bare:
    """An actor that does nothing."""

    def answer(self, v: Any) -> Any:
        return v

    def pid(self) -> int:
        return os.getpid()


def bare_trip(d: int, actors: int = 2) -> Callable[[], Any]:
    """One bare Ray round trip to all actors with a vector each way."""
    made, v = [Bare.remote() for _ in range(actors)], np.zeros(d)
    act = lambda: ray.get([a.answer.remote(v) for a in made])  # noqa: E731
    act()
    return act


def authors_way(problem: ps.Problem, K: int) -> Callable[[], Any]:
    """An actor a client, dense numpy, x put in every round."""

    @ray.remote(num_cpus=0.1)
    class Worker:
        def __init__(self, A: Any, b: Any, reg: Any) -> None:
            self.A, self.b, self.reg = A, b, reg

        def go(self, x: Any) -> Any:
            for _ in range(K):
                x = x - 0.5 * (
                    self.A.T @ (-self.b / (1.0 + np.exp(self.b * (self.A @ x))) / len(self.b)) + self.reg * x
                )
            return x

    workers = [Worker.remote(f.A.toarray(), f.b, f.reg) for f in problem.clients]

    def act() -> Any:
        x = ray.put(np.zeros(problem.d))
        return np.mean(ray.get([w.go.remote(x) for w in workers]), axis=0)

    act()
    return act


@two_nodes(cpus=10)
def a_round(quick: bool) -> str:
    """20 clients, 2 actors, 100 local steps, w8a: against the cpu engine, bare trips, and the authors' way."""
    problem, name = cpu.w8a()
    method = ps.Scaffnew(gamma=0.5 / problem.L_max, p=0.01, K=100)
    engine = RayEngine(2)
    rivals = {
        "cpu engine, 2 threads": cpu.rounds_of(CpuEngine(2), problem, method),
        "ray engine, 2 actors": cpu.rounds_of(engine, problem, method),
        "bare Ray round trip, 2 actors": bare_trip(problem.d),
        "authors' way: an actor a client, dense numpy": authors_way(problem, 100),
    }
    best = cpu.in_turns(rivals, 3 if quick else 15)
    engine.close()
    ours, theirs, trip, slow = best.values()
    bar = 1.15 * ours + 2 * trip
    lines = [f"| {what} | {1e3 * t:.2f} |" for what, t in best.items()]
    return "\n".join([
        f"### A round: 20 clients, 100 local steps, {name}, 2 nodes\n", "| what | ms (least of several) |", "|---|---|", *lines, "",
        f"Ray engine: {1e3 * theirs:.2f} ms; 1.15 times the cpu engine plus 2 bare trips: {1e3 * bar:.2f} ms ({verdict(theirs <= bar)}).",
        f"The authors' way takes {slow / theirs:.1f} times as long (bar: 10, {verdict(slow >= 10 * theirs)}).\n",
    ])  # fmt: skip


@two_nodes(cpus=8)
def constants(quick: bool) -> str:
    """What a call costs against the number of actors and the size of the vectors."""
    rows = []
    for actors, d in ((1, 300), (2, 300), (4, 300), (8, 300), (1, 10**5), (1, 10**6)) if quick else (
        (1, 300), (2, 300), (4, 300), (8, 300), (16, 300), (1, 10**4), (1, 10**5), (1, 10**6), (4, 10**6),
    ):  # fmt: skip
        rows.append((actors, d, cpu.in_turns({"t": bare_trip(d, actors)}, 5 if quick else 30)["t"]))
    fixed = next(t for a, d, t in rows if (a, d) == (1, 300))
    most = next(t for a, d, t in rows if (a, d) == (8, 300))
    large = next(t for a, d, t in rows if (a, d) == (1, 10**6))
    w, U = np.ones(64) / 64, np.ones((64, 10**5))
    add = cpu.in_turns({"t": lambda: RayEngine.sum(None, w, U)}, 5)["t"]  # type: ignore[arg-type]
    lines = [f"| {a} | {d:,} | {1e3 * t:.2f} |" for a, d, t in rows]
    return "\n".join([
        "### Constants of a call\n", "| actors | d | ms, vector there and back |", "|---|---|---|", *lines, "",
        f"A call: {1e3 * fixed:.2f} ms, and {1e3 * (most - fixed) / 7:.2f} ms for every further actor. Vectors: {2 * 8e6 / max(large - fixed, 1e-9) / 1e9:.2f} GB/s.",
        f"Summing at the driver: {64 * 8e5 / add / 1e9:.2f} GB/s.\n",
    ])  # fmt: skip


def actors(quick: bool) -> str:
    """Many actors on this machine: what each of them holds, and the driver over many rounds."""
    count, n, rounds = (4, 400, 200) if quick else (50, 10_000, 5_000)
    A = np.random.default_rng(0).standard_normal((5 * n, 20))
    problem = ps.split(ps.Logistic(A, np.where(A[:, 0] > 0, 1.0, -1.0), l2=0.1), clients=n)
    engine = RayEngine(count, stay=True, deadline=1800)
    start = time.perf_counter()
    act = cpu.rounds_of(engine, problem, ps.Scaffnew(gamma=0.5 / problem.L_max, p=0.5, K=2))
    act()
    started = time.perf_counter() - start
    bare = Bare.remote()
    idle = memory(ray.get(bare.pid.remote()))[0]
    ray.kill(bare)
    driver, start = [], time.perf_counter()
    for r in range(rounds):
        if r % max(1, rounds // 20) == 0:
            driver.append(memory()[0])
        act()
    seconds = (time.perf_counter() - start) / rounds
    handles = engine.pool.handles  # type: ignore[union-attr]
    held = [memory(pid) for pid, _ in ray.get([h.where.remote() for h in handles])]
    engine.shutdown()
    uss, pss = (statistics.median(values) for values in zip(*held, strict=True))
    half = len(driver) // 2
    grown = max(driver[half:]) / max(driver[1:half]) - 1
    return "\n".join([
        f"### {count} actors on this machine, {n:,} clients, {rounds:,} rounds\n",
        f"An actor holds {uss:.1f} MB of its own (PSS {pss:.1f} MB), {uss - idle:.1f} MB more than an actor of Ray's that "
        f"does nothing ({idle:.1f} MB; bar: 18 MB, {verdict(uss - idle <= 18)}).",
        f"The first round was over after {started:.0f} s; a round takes {1e3 * seconds:.0f} ms. "
        f"The driver's own memory: {driver[1]:.0f} MB early, {driver[-1]:.0f} MB at the end; the peak of the second half is "
        f"{100 * grown:+.2f} % of that of the first (bar: 1 %, {verdict(grown <= 0.01)}).\n",
    ])  # fmt: skip


# -- Flower ------------------------------------------------------------------------------------------------------------
APP = {
    "pyproject.toml": """
[build-system]
requires = ["hatchling>=1.24"]
build-backend = "hatchling.build"
[project]
name = "cost-of-a-task"
version = "1.0.0"
license = { file = "LICENSE" }
dependencies = ["flwr>=1.41,<2"]
[tool.hatch.build.targets.wheel]
packages = ["cost"]
[tool.flwr.app]
publisher = "proxskip"
fab-format-version = 1
flwr-version-target = "1.41.0"
[tool.flwr.app.components]
serverapp = "cost.server:app"
clientapp = "cost.client:app"
[tool.flwr.app.config]
log = ""
tasks = 6
""",
    "LICENSE": "As proxskip's.",
    "cost/__init__.py": "",
    "cost/client.py": """
import time
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.clientapp import ClientApp

def make_oracle(context):
    import numpy as np
    from proxskip.flower import from_arrays
    data = np.load(str(context.node_config["data"]))
    return from_arrays(data["A"], data["b"], l2=0.05)

class Both(ClientApp):
    '''Empty if the message says so, a client of proxskip otherwise; notes the CPU time of its process.'''
    def __call__(self, message, context):
        empty = "empty" in message.content.config_records
        if empty:
            reply = Message(RecordDict({"empty": ConfigRecord({"of": 1})}), reply_to=message)
        else:
            from proxskip.flower import client_app
            reply = client_app(make_oracle)(message, context)
        with open(str(context.run_config["log"]), "a") as log:
            log.write(f"{'empty' if empty else message.metadata.message_type} {time.process_time()}\\n")
        return reply

app = Both()
""",
    "cost/server.py": """
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import ServerApp
import proxskip as ps
from proxskip.flower import Federated

app = ServerApp()

@app.main()
def main(grid, context):
    tasks = int(context.run_config["tasks"])
    for part in range(2):  # in turns
        Federated(ps.Scaffnew(0.3, 0.2), clients=1, wait=300.0, deadline=300.0, audit=0, seed=1).start(
            grid=grid, num_rounds=tasks)
        for _ in range(tasks):
            node = list(grid.get_node_ids())[0]
            grid.send_and_receive([Message(RecordDict({"empty": ConfigRecord({"of": 1})}), node, "train")], timeout=300.0)
""",
}


def federation_script(home: str) -> ModuleType:
    """The example's script as a module, with its files in another folder."""
    os.environ["PROXSKIP_FEDERATION"] = home
    path = str(ROOT / "examples" / "flower" / "federation")
    loader = importlib.machinery.SourceFileLoader("federation", path)
    spec = importlib.util.spec_from_loader("federation", loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


def tasks(quick: bool) -> str:
    """CPU time of a client's process in a real federation with one node: ours, and an empty one."""
    os.environ["PYTHONPATH"] = str(ROOT / "src")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        made = federation_script(f"{folder}/federation")
        log = Path(folder) / "cpu"
        for name, text in APP.items():
            path = Path(folder) / "app" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text.lstrip())
        config = f'log="{log}" tasks={2 if quick else 6}'
        try:
            made.up("127.0.0.1", 1, True, False)
            words = [made.BIN / "flwr", "run", f"{folder}/app", made.NAME, "--stream", "--run-config", config]
            done = subprocess.run(words, env=made.environment(), capture_output=True, text=True, timeout=LIMIT)
        finally:
            made.down()
        if not log.exists():
            return (
                f"### A client's task in a deployed federation\n\nFAILED: {done.stdout[-1500:]} {done.stderr[-500:]}\n"
            )
        rows = [line.split() for line in log.read_text().splitlines()]
    each = {kind: [float(s) for k, s in rows if k == kind] for kind in {k for k, _ in rows}}
    ours, empty = (statistics.median(each[kind]) for kind in ("train", "empty"))
    hello = min(s for kind, values in each.items() if kind.startswith("query") for s in values)
    more = ours - empty
    return "\n".join([
        "### A client's task in a deployed federation\n", "| process of one message | CPU s (median) |", "|---|---|",
        f"| an empty ClientApp | {empty:.2f} |", f"| a round of Scaffnew, 1,797 rows, 64 features | {ours:.2f} |",
        f"| the first message (L is computed) | {hello:.2f} |", "",
        f"A round costs {more:.2f} s above an empty ClientApp (bar: 0.25 s, {verdict(more <= 0.25)}).\n",
    ])  # fmt: skip


PARTS = {"actors": actors, "round": a_round, "constants": constants, "task": tasks}


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--quick", action="store_true", help="small sizes")
    options.add_argument("--only", nargs="*", choices=tuple(PARTS), help="some of it")
    o = options.parse_args()
    print(f"## Ray {ray.__version__} and Flower\n")
    for name in o.only or PARTS:
        with redirect_stdout(sys.stderr):  # where Ray's warnings and the federation's messages go
            part = PARTS[name](o.quick)
        print(part, flush=True)


if __name__ == "__main__":
    main()
