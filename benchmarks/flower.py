"""What our strategy and client cost over Flower's FedAvg with the same payload, in Flower's simulation.

    python benchmarks/flower.py [--rounds 30] [--clients 4] [--d 20000]
    python benchmarks/run.py --only flower        the same, into RESULTS.md

Both send d float64 numbers each way a round and do the same local work (one gradient step on a quadratic). Printed: the
median time of a round, its difference, and the bytes of a message. Needs flwr[simulation].
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

PULL = 0.1
"""Seconds between two looks of Flower's simulation for replies: its pull interval."""
LIMIT = 600.0
"""Seconds that one simulation may take, from its start to its end."""

JOB = """
import json, sys, time
from pathlib import Path
import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
import proxskip as ps
from proxskip.flower import Federated, client_app

which, out, n, d, rounds = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), int(sys.argv[5])
oracle = lambda i: ps.Quadratic(np.full(d, 1.0 + i), np.ones(d))
start = ArrayRecord({"x": Array(np.zeros(d))})
server, marks, sizes = ServerApp(), [], []

def size(message):
    return sum(len(a.data) for r in message.content.array_records.values() for a in r.values()) + len(
        "".join(str(dict(r)) for r in message.content.config_records.values()))

class Plain(FedAvg):
    def aggregate_train(self, r, replies):
        replies = list(replies)
        sizes.extend(size(m) for m in replies)
        marks.append(time.perf_counter())
        return super().aggregate_train(r, replies)

if which == "fedavg":
    client = ClientApp()
    @client.train()
    def train(message, context):
        f = oracle(int(context.node_config["partition-id"]))
        x = message.content["arrays"]["x"].numpy()
        x = x - 0.1 * f.gradient(x)
        return Message(RecordDict({"arrays": ArrayRecord({"x": Array(x)}), "metrics": MetricRecord({"num-examples": 1})}),
                       reply_to=message)
    @server.main()
    def main(grid, context):
        strategy = Plain(fraction_train=1.0, fraction_evaluate=0.0, min_train_nodes=n, min_available_nodes=n)
        strategy.start(grid=grid, initial_arrays=start, num_rounds=rounds)
else:
    client = client_app(lambda context: oracle(int(context.node_config["partition-id"])))
    @server.main()
    def main(grid, context):
        from proxskip.flower import strategy as module
        reply = module._Run._reply
        def noted(self, node, message):
            if not message.has_error():
                sizes.append(size(message))
            return reply(self, node, message)
        module._Run._reply = noted
        method = ps.LocalGD(0.1, 1) if which == "local-gd" else ps.Scaffnew(0.1, 1.0)
        Federated(method, clients=n, audit=0, wait=120.0, deadline=60.0).start(
            grid=grid, initial_arrays=start, num_rounds=rounds, evaluate_fn=lambda r, a: marks.append(time.perf_counter()))

if __name__ == "__main__":
    run_simulation(server, client, num_supernodes=n, backend_config={"client_resources": {"num_cpus": 1}})
    Path(out).write_text(json.dumps({"marks": marks, "sizes": sizes}))
"""


def measured(which: str, given: argparse.Namespace) -> dict[str, Any]:
    """The seconds of all rounds but the first two, and the median bytes of a reply."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        job, out, log = (Path(folder) / name for name in ("job.py", "out.json", "log"))
        job.write_text(JOB)
        environment = os.environ | {
            "FLWR_HOME": folder, "FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0", "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1", "RAY_ADDRESS": "local",  # or Ray waits for a cluster that died here
        }  # fmt: skip
        words = [sys.executable, str(job), which, str(out), *map(str, (given.clients, given.d, given.rounds))]
        with log.open("wb") as lines:  # not a pipe, which Ray's daemons would hold open
            process = subprocess.Popen(
                words, env=environment, stdout=lines, stderr=lines, cwd=folder, start_new_session=True
            )
            try:
                process.wait(LIMIT)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        if not out.exists():
            raise SystemExit(f"{which} gave nothing within {LIMIT:g} s:\n{log.read_text(errors='replace')[-3000:]}")
        found = json.loads(out.read_text())
    times = [b - a for a, b in zip(found["marks"][2:-1], found["marks"][3:], strict=True)]
    return {"seconds": times, "bytes": median(found["sizes"])}


def median(values: list[float]) -> float:
    return float(sorted(values)[len(values) // 2])


def report(quick: bool = False, given: argparse.Namespace | None = None) -> str:
    """The runs in turns, twice each, as a table with the bars."""
    given = given or argparse.Namespace(rounds=8 if quick else 30, clients=4, d=20_000)
    names = {
        "fedavg": "Flower's FedAvg",
        "local-gd": "LocalGD with K = 1 (the same arithmetic)",
        "scaffnew": "Scaffnew",
    }
    runs = [{which: measured(which, given) for which in names} for _ in range(1 if quick else 2)]
    seconds = {which: median([t for run in runs for t in run[which]["seconds"]]) for which in names}
    size = {which: median([run[which]["bytes"] for run in runs]) for which in names}
    lines = [
        f"| {label} | {seconds[which]:.3f} | {seconds[which] - seconds['fedavg']:+.3f} | {size[which]:,.0f} | "
        f"{100 * (size[which] / size['fedavg'] - 1):+.2f} % |"
        for which, label in names.items()
    ]
    return "\n".join([
        f"## Flower: a round in its simulation, {given.clients} clients, {given.d:,} unknowns\n",
        "| what | s a round | over FedAvg | bytes a reply | over FedAvg |", "|---|---|---|---|---|", *lines, "",
        f"Medians of {len(runs)} x {given.rounds - 2} rounds, the runs in turns. Bars: at most one pull interval of Flower's simulation more"
        f" ({PULL:g} s), and bytes within 2 %.",
    ])  # fmt: skip


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("rounds", 30), ("clients", 4), ("d", 20_000)):
        parser.add_argument(f"--{name}", type=int, default=default)
    print(report(given=parser.parse_args()))


if __name__ == "__main__":
    main()
