"""`proxskip doctor`: the versions, engines and data sets on this machine."""

from __future__ import annotations

import importlib
import os
import platform
import time
import warnings
from argparse import Namespace
from importlib.metadata import PackageNotFoundError, version

from proxskip import datasets
from proxskip.cli import output
from proxskip.problems.federated import Problem
from proxskip.problems.quadratic import random_quadratics
from proxskip.results.plain_table import Table
from proxskip.running.run import run
from proxskip.support.cores import available_cores
from proxskip.support.version import __version__

NEEDED = (
    "numpy",
    "scipy",
    "numba",
    "scikit-learn",
    "networkx",
    "matplotlib",
    "rich",
    "filelock",
    "jinja2",
    "joblib",
    "pooch",
    "shtab",
)
OPTIONAL = ("pyproximal", "torch", "flwr", "pandas", "tensorboard", "mlflow", "wandb")
ENGINES = ("cpu", "reference", "gpu")
START_SLOWLY = ("ray", "torch")
"""Engines that are only imported, from modules of the same names."""
Row = tuple[str, bool, str]
"""A part, whether it works, and details."""


def command(o: Namespace) -> int:
    """Print what works; 0 if all required packages and the cpu and reference engines do, else 1."""
    python = f"Python {platform.python_version()} on {platform.system()} {platform.machine()}"
    names = [row.name for row in datasets.available() if row.where != "not downloaded"]
    needed = [("proxskip", True, f"{__version__}, {python}, {available_cores()} cores"), *map(_package, NEEDED)]
    engines = list(map(_engine, ENGINES))
    rows = [*needed, *engines, *map(_import, START_SLOWLY), *map(_package, OPTIONAL)]
    rows.append(("data sets", True, f"{', '.join(names)}; PROXSKIP_DATA = {os.environ.get('PROXSKIP_DATA')}"))
    if o.json:
        output.as_json([dict(zip(("what", "works", "here"), row, strict=True)) for row in rows])
    else:
        cells = [(part, "yes" if works else "no", details) for part, works, details in rows]
        output.print_table(Table("", ["part", "works", "details"], cells))
    return 0 if all(works for _, works, _ in (*needed, *engines[:2])) else 1


def _package(name: str) -> Row:
    try:
        return name, True, version(name)
    except PackageNotFoundError:
        return name, False, "not installed"


def _import(name: str) -> Row:
    """Whether the module of an engine can be imported."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            importlib.import_module(name)
    except Exception as error:
        return f"engine {name}", False, f"{type(error).__name__}: {error}"
    return f"engine {name}", True, f"{name} {version(name)} can be imported"


def _engine(name: str) -> Row:
    """Whether a small run works."""
    began = time.perf_counter()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            run("scaffnew", Problem(random_quadratics(4, 3)), rounds=3, engine=name, progress=False)
    except Exception as error:
        return f"engine {name}", False, f"{type(error).__name__}: {error}"
    return f"engine {name}", True, f"a small run took {time.perf_counter() - began:.2g} s"
