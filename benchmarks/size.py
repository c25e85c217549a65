"""Ray and Flower at size: each bar with its verdict.

    python benchmarks/size.py                       all of it
    python benchmarks/size.py --only task           some of it
    python benchmarks/size.py --quick               fewer actors, clients and rounds, to see that it works

Memory is a process's own (USS) and its share of what it has in common with others (PSS), from /proc/PID/smaps_rollup.
"""

from __future__ import annotations

import argparse
import importlib.machinery
import importlib.util
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[variable] = "1"
os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "FLWR_TELEMETRY_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # it would charge the programs below with compiling themselves

ROOT = Path(__file__).resolve().parent.parent
LIMIT = 3000.0
"""Seconds that a job may take."""


def verdict(holds: bool) -> str:
    return "holds" if holds else "MISSED"


def memory(pid: int | str = "self") -> tuple[float, float]:
    """USS and PSS in MB."""
    found = {}
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]:
        name, value, _ = line.split()
        found[name] = int(value) / 1024
    return found["Private_Clean:"] + found["Private_Dirty:"], found["Pss:"]


def job(code: str, *args: object, seconds: float = LIMIT, **env: str) -> str:
    """What a script of its own process prints; its daemons end with it."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        script, log = Path(folder) / "job.py", Path(folder) / "log"
        script.write_text(code)
        with log.open("wb") as lines:  # not a pipe, which Ray's daemons would hold open
            process = subprocess.Popen(
                [sys.executable, str(script), *map(str, args)], stdout=lines, stderr=lines, cwd=folder,
                env=os.environ | {"PYTHONPATH": f"{ROOT / 'src'}:{ROOT / 'benchmarks'}", "FLWR_HOME": folder} | env,
                start_new_session=True,
            )  # fmt: skip
            try:
                process.wait(seconds)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        said = log.read_text(errors="replace")
        found = [line[5:] for line in said.splitlines() if line.startswith("SAID ")]
        return found[-1] if found else json.dumps({"failed": said[-1500:]})


# -- Ray ---------------------------------------------------------------------------------------------------------------
ACTORS = """
import json, os, sys, time
import numpy as np, ray
import proxskip as ps
import cpu
from proxskip.engines.ray.engine import RayEngine
from size import memory
actors, n, rounds = map(int, sys.argv[1:4])
rng = np.random.default_rng(0)
A = rng.standard_normal((5 * n, 20))
problem = ps.split(ps.Logistic(A, np.where(A[:, 0] > 0, 1.0, -1.0), l2=0.1), clients=n)
engine = RayEngine(actors, stay=True, deadline=1800)
began = time.perf_counter()
act = cpu.rounds_of(engine, problem, ps.Scaffnew(gamma=0.5 / problem.L_max, p=0.5, K=2))
act()
started = time.perf_counter() - began
pids = [p for p, _ in ray.get([h.where.remote() for h in engine.pool.handles])]
@ray.remote(num_cpus=0)
class Bare:
    def pid(self):
        return os.getpid()
bare = Bare.remote()
alone = memory(ray.get(bare.pid.remote()))
ray.kill(bare)
seen, began = [], time.perf_counter()
for r in range(rounds):
    if r % max(1, rounds // 20) == 0:
        seen.append(memory()[0])
    act()
seconds = (time.perf_counter() - began) / rounds
found = [memory(p) for p in pids]
engine.shutdown()
print("SAID", json.dumps({"started": started, "actors": found, "bare": alone, "driver": seen, "round": seconds}))
"""


def actors(quick: bool) -> str:
    """Many actors on this machine: what each of them holds, and the driver over many rounds."""
    count, n, rounds = (4, 400, 200) if quick else (50, 10_000, 5_000)
    found = json.loads(job(ACTORS, count, n, rounds))
    if "failed" in found:
        return f"### {count} actors, {n:,} clients\n\nFAILED: {found['failed']}\n"
    uss, pss = (statistics.median(values) for values in zip(*found["actors"], strict=True))
    above = uss - found["bare"][0]
    driver = found["driver"]
    half = len(driver) // 2
    grown = max(driver[half:]) / max(driver[1:half]) - 1
    return "\n".join([
        f"### {count} actors on this machine, {n:,} clients, {rounds:,} rounds\n",
        f"An actor holds {uss:.1f} MB of its own (PSS {pss:.1f} MB), {above:.1f} MB more than an actor of Ray's that does "
        f"nothing ({found['bare'][0]:.1f} MB; bar: 18 MB, {verdict(above <= 18)}).",
        f"The first round was over after {found['started']:.0f} s; a round takes {1e3 * found['round']:.0f} ms. "
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


PARTS = {"actors": actors, "task": tasks}


def report(quick: bool, only: Sequence[str] | None = None) -> str:
    """These of the parts."""
    return "\n".join(["## Ray and Flower at size\n", *(PARTS[name](quick) for name in only or PARTS)])


def main() -> None:
    options: Any = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--quick", action="store_true", help="small sizes")
    options.add_argument("--only", nargs="*", choices=tuple(PARTS), help="some of it")
    given = options.parse_args()
    for name in given.only or PARTS:
        began = time.perf_counter()
        print(PARTS[name](given.quick), flush=True)
        print(f"({name}: {time.perf_counter() - began:.0f} s)\n", flush=True)


if __name__ == "__main__":
    main()
