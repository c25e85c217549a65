"""`proxskip doctor`: what is installed, and what works on this machine."""

from __future__ import annotations

import importlib
import os
import platform
import shutil
import time
import warnings
from argparse import Namespace
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec

from proxskip.cli import output
from proxskip.cores import available_cores
from proxskip.data import datasets
from proxskip.problems.federated import Problem
from proxskip.problems.quadratic import random_quadratics
from proxskip.running import run
from proxskip.types import InputError
from proxskip.version import __version__

NEEDED = ("numpy", "scipy", "numba", "scikit-learn", "networkx", "matplotlib", "rich", "filelock", "pooch", "shtab")
OPTIONAL = {
    "pyproximal": "operators of pyproximal as psi (extra prox)",
    "torch": "proxskip.torch (extra torch)",
    "pandas": "trace.to_frame() (extra frames)",
    "pyarrow": "Parquet files (extra frames)",
    "tensorboard": "callbacks.TensorBoard (extra callbacks)",
    "mlflow": "callbacks.MLflow (extra callbacks)",
    "wandb": "callbacks.WandB (extra callbacks)",
}
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome", "firefox")


@dataclass(frozen=True, slots=True)
class Finding:
    """One line: what was looked at, whether it works, and details."""

    what: str
    works: bool
    here: str
    needed: bool = False


def command(o: Namespace) -> int:
    """Print the findings; 0 if everything works that every installation needs, else 1."""
    rows = findings()
    if o.json:
        output.as_json([asdict(f) for f in rows])
    else:
        output.print_table(output.doctor(rows))
    return 0 if all(f.works for f in rows if f.needed) else 1


def findings() -> list[Finding]:
    """All of them; nothing is started that would take long, and nothing is fetched."""
    where = f"Python {platform.python_version()} on {platform.system()} {platform.machine()}"
    rows = [Finding("proxskip", True, f"{__version__}, {where}", needed=True)]
    rows += [_installed(name, "", needed=True) for name in NEEDED]
    rows += [_engine("cpu"), _engine("reference"), _threads(), _gpu()]
    rows.append(_imported("ray", "engine ray", "--engine ray starts it (extra ray)"))
    rows.append(_imported("flwr", "Flower", "proxskip.flower (extra flower)"))
    rows += [_installed(name, use) for name, use in OPTIONAL.items()]
    return [*rows, _browser(), _data()]


def _installed(package: str, use: str, what: str = "", needed: bool = False) -> Finding:
    try:
        here = version(package)
    except PackageNotFoundError:
        return Finding(what or package, False, f"not installed; needed for {use}" if use else "not installed", needed)
    return Finding(what or package, True, f"{here}; {use}" if use else here, needed)


def _imported(module: str, what: str, use: str) -> Finding:
    """Whether it can be imported, which fails where its own dependencies do not fit."""
    if find_spec(module) is None:
        return _installed(module, use, what)

    def act() -> str:
        importlib.import_module(module)
        return f"{version(module)}; {use}"

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return _tried(what, act)


def _tried(what: str, act: Callable[[], str], needed: bool = False) -> Finding:
    """Whether it works, tried; whatever goes wrong is what a doctor is for."""
    try:
        return Finding(what, True, act(), needed)
    except InputError as error:
        return Finding(what, False, str(error), needed)
    except Exception as error:
        return Finding(what, False, f"{type(error).__name__}: {error}", needed)


def _engine(name: str) -> Finding:
    def act() -> str:
        then = time.perf_counter()
        run("scaffnew", Problem(random_quadratics(4, 3)), rounds=3, engine=name, progress=False)
        return f"a small run took {time.perf_counter() - then:.2g} s"

    return _tried(f"engine {name}", act, needed=True)


def _threads() -> Finding:
    cores = os.cpu_count() or 1
    limits = [f"{k} = {os.environ[k]}" for k in ("OMP_NUM_THREADS", "NUMBA_NUM_THREADS") if k in os.environ]
    return Finding("threads", True, ", ".join([f"{available_cores()} of {cores} cores for this process", *limits]))


def _gpu() -> Finding:
    def act() -> str:
        if find_spec("cupy") is None:
            raise InputError("CuPy is not installed; needed for --engine gpu (extra gpu)")
        cupy = importlib.import_module("cupy")
        if int(cupy.arange(4).sum()) != 6:  # a kernel is compiled and run
            raise InputError("CuPy adds wrongly on this device.")
        count = cupy.cuda.runtime.getDeviceCount()
        name = cupy.cuda.runtime.getDeviceProperties(0)["name"].decode()
        return f"CuPy {cupy.__version__}, {count} x {name}"

    return _tried("engine gpu", act)


def _browser() -> Finding:
    browser = next((path for name in BROWSERS if (path := shutil.which(name))), None)
    return Finding("browser", browser is not None, browser or "none was found; reports open in any browser elsewhere")


def _data() -> Finding:
    names = [row.name for row in datasets.available() if row.where != "not downloaded"]
    folder = os.environ.get("PROXSKIP_DATA")
    where = f"; PROXSKIP_DATA = {folder}" if folder else ""
    return Finding("data sets", True, ", ".join(names) + where)
