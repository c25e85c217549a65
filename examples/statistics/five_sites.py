"""Five sites, a Flower SuperNode each on this machine, fit Cox's model; beside it the fit of all rows together.

    python examples/statistics/five_sites.py
    python examples/statistics/five_sites.py 3      with three sites

It needs  pip install "proxskip[flower,frames]" lifelines.  The data are the Rossi recidivism data, which come with
lifelines: 432 men were observed for a year after their release. Every site is a stratum of its own.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from lifelines import CoxPHFitter
from lifelines.datasets import load_rossi

HERE = Path(__file__).resolve().parent
SITES = int(sys.argv[1]) if len(sys.argv) > 1 else 5
TO_THE_END = {"precision": 1e-20, "r_precision": 1e-20}
"""lifelines stops earlier unless it is told to go on."""
HEAD = ("estimate", "standard_error", "z", "p", "low", "high")


def rows_by_site() -> Any:
    """The data with a column for the site, which depends on the age: the sites differ."""
    frame = load_rossi().astype(float)
    order = np.argsort(frame["age"], kind="stable")
    frame.loc[order, "site"] = np.arange(len(frame)) * SITES // len(frame)
    return frame


def federation(home: Path) -> Any:
    """The script that starts and stops a federation on this machine, with our app and our data."""
    os.environ["PROXSKIP_FEDERATION"] = str(home)
    loader = importlib.machinery.SourceFileLoader("federation", str(HERE.parent / "flower" / "federation"))
    spec = importlib.util.spec_from_loader("federation", loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    module.make_data = lambda nodes: write_sites(home)
    return module


def write_sites(home: Path) -> None:
    """Every node's own file."""
    for i, rows in rows_by_site().groupby("site"):
        folder = home / f"node-{int(i)}"
        folder.mkdir(parents=True, exist_ok=True)
        own = rows.drop(columns="site")
        np.savez(folder / "data.npz", values=own.to_numpy(), columns=np.array(own.columns, dtype=str))


def federated(home: Path) -> Any:
    """What the server found."""
    script, result = federation(home), home / "table.json"
    try:
        script.up("127.0.0.1", SITES, plain=True, insecure=False)
        settings = f'out="{result}" clients={SITES}'
        words = [script.BIN / "flwr", "run", HERE, script.NAME, "--stream", "--run-config", settings]
        done = subprocess.run([str(w) for w in words], env=script.environment(), capture_output=True, text=True)
    finally:
        script.down()
    if not result.exists():
        sys.exit(f"the federation ended without a table: {(done.stdout + done.stderr)[-2000:]}")
    return json.loads(result.read_text())


def pooled() -> list[list[str]]:
    """The same table from all rows together, by lifelines."""
    theirs = CoxPHFitter().fit(rows_by_site(), "week", "arrest", strata=["site"], fit_options=TO_THE_END).summary
    names = ("coef", "se(coef)", "z", "p", "coef lower 95%", "coef upper 95%")
    return [[str(name), *(f"{theirs.loc[name, column]:.5g}" for column in names)] for name in theirs.index]


def main() -> int:
    """Print both tables, and whether they are equal."""
    with tempfile.TemporaryDirectory() as home:
        found = federated(Path(home))
    ours = [[record["name"], *(f"{record[name]:.5g}" for name in HEAD)] for record in found["records"]]
    print(found["title"], f"; {found['rounds']} rounds", sep="")
    for who, rows in ((f"{SITES} sites", ours), ("all rows, by lifelines", pooled())):
        print(f"\n{who:<24}" + "".join(f"{name:>15}" for name in HEAD))
        for name, *cells in rows:
            print(f"{name:<24}" + "".join(f"{cell:>15}" for cell in cells))
    same = ours == pooled()
    print("\nThe two tables are equal in every printed digit." if same else "\nThe two tables differ.")
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
