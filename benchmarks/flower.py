"""What our strategy and client cost over Flower's FedAvg with the same payload, in Flower's simulation.

    python benchmarks/flower.py [--rounds 20] [--clients 4] [--d 20000]

Both send d float64 numbers each way a round and do the same local work (one gradient step on a quadratic). Printed: the
median time of a round, its difference, and the bytes of a message. Needs flwr[simulation].
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

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
        Federated(method, clients=n, audit=0, wait=300.0).start(
            grid=grid, initial_arrays=start, num_rounds=rounds, evaluate_fn=lambda r, a: marks.append(time.perf_counter()))

if __name__ == "__main__":
    run_simulation(server, client, num_supernodes=n, backend_config={"client_resources": {"num_cpus": 1}})
    Path(out).write_text(json.dumps({"marks": marks, "sizes": sizes}))
"""


def measured(which: str, given: argparse.Namespace) -> dict[str, float]:
    """Median seconds of a round (the first two left out) and bytes of a reply."""
    with tempfile.TemporaryDirectory() as folder:
        job, out = Path(folder) / "job.py", Path(folder) / "out.json"
        job.write_text(JOB)
        environment = os.environ | {
            "FLWR_HOME": folder, "FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0", "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
        }  # fmt: skip
        words = [sys.executable, str(job), which, str(out), *map(str, (given.clients, given.d, given.rounds))]
        done = subprocess.run(words, env=environment, capture_output=True, text=True, cwd=folder)
        if not out.exists():
            raise SystemExit(done.stderr[-3000:])
        found = json.loads(out.read_text())
    times = sorted(b - a for a, b in zip(found["marks"][2:-1], found["marks"][3:], strict=True))
    return {"seconds": times[len(times) // 2], "bytes": float(sorted(found["sizes"])[len(found["sizes"]) // 2])}


def main() -> None:
    """Three runs, one after another."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("rounds", 20), ("clients", 4), ("d", 20_000)):
        parser.add_argument(f"--{name}", type=int, default=default)
    given = parser.parse_args()
    base = measured("fedavg", given)
    print(f"FedAvg     {base['seconds']:.3f} s a round, {base['bytes']:.0f} bytes a reply")
    for which in ("local-gd", "scaffnew"):
        ours = measured(which, given)
        print(
            f"{which:<10} {ours['seconds']:.3f} s a round ({ours['seconds'] - base['seconds']:+.3f} s; Flower looks every "
            f"0.1 s), {ours['bytes']:.0f} bytes a reply ({100 * (ours['bytes'] / base['bytes'] - 1):+.2f} %)"
        )


if __name__ == "__main__":
    main()
