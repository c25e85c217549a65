"""The server: a method of proxskip as a Flower strategy."""

import json
from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from proxskip.flower import Federated
from proxskip.methods import registry

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the method, and print what came of it, or keep it where ``out`` says."""
    config = context.run_config
    strategy = Federated(
        registry.named(str(config["method"])).theory,
        clients=int(config["clients"]),
        deadline=float(config["deadline"]),
        wait=float(config["wait"]),
        tol=float(config["tol"]),
        measure=int(config["measure"]),
        upload=str(config["upload"]),
        seed=int(config["seed"]),
    )
    outcome = strategy.start(grid=grid, num_rounds=int(config["rounds"]))
    if not config["out"]:
        print(outcome)
    else:
        seconds = [float(m["seconds"]) for m in outcome.train_metrics_clientapp.values()]
        found = {"summary": dict(outcome.summary), "x": outcome.x.tolist(), "seconds": seconds}
        Path(str(config["out"])).write_text(json.dumps(found, indent=2))
