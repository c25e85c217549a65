"""The server: Newton's method, and the table that follows from the Hessians at its end."""

import json
from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

import proxskip as ps
from proxskip.flower import Federated

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Fit, and print the table, or keep it where ``out`` says."""
    config = context.run_config
    strategy = Federated(
        ps.Newton(),
        clients=int(config["clients"]),
        weights="rows",
        deadline=float(config["deadline"]),
        wait=float(config["wait"]),
        tol=float(config["tol"]),
        measure=1,
        inference=True,
    )
    result = strategy.start(grid=grid, num_rounds=int(config["rounds"]))
    table = result.inference()
    print(table)
    if config["out"]:
        found = {"rounds": result.summary["rounds"], "title": repr(table).splitlines()[0], "records": table.records()}
        Path(str(config["out"])).write_text(json.dumps(found))
