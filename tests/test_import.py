"""Importing the package is cheap: no heavy package, no compilation, little beyond numpy, scipy.sparse and numba."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

import proxskip

HEAVY = (
    "matplotlib",
    "ray",
    "flwr",
    "cupy",
    "torch",
    "sklearn",
    "networkx",
    "rich",
    "jax",
    "scipy.optimize",
    "pandas",
    "pyarrow",
    "tensorboard",
    "mlflow",
    "wandb",
    "IPython",
    "concurrent.futures.process",
)
CLOCK = "import time; t = time.process_time(); import {}; print(time.process_time() - t)"


def python(code: str, **env: str) -> str:
    kept = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=kept | env
    ).stdout


@pytest.mark.long
def test_no_heavy_package_comes_along() -> None:
    loaded = python("import sys, proxskip; print(*sys.modules)").split()
    assert [name for name in HEAVY if name in loaded] == []


@pytest.mark.long
def test_nothing_is_compiled_at_import() -> None:
    count = (
        "from proxskip.engines.cpu import kernels, lazy_kernels, minibatches\n"
        "functions = [f for m in (kernels, lazy_kernels, minibatches) for f in vars(m).values()]\n"
        "print(sum(len(getattr(f, 'overloads', ())) for f in functions))"
    )
    assert python(count).strip() == "0"


@pytest.mark.slow
def test_import_takes_at_most_one_and_a_half_times_its_parts(tmp_path: Path) -> None:
    seconds = {"numpy, scipy.sparse, numba": [], "proxskip": []}
    compiled = {"PYTHONPYCACHEPREFIX": str(tmp_path)}  # as where Python keeps what it compiled
    python("import proxskip", **compiled)
    for _ in range(4):
        for what, times in seconds.items():
            times.append(float(python(CLOCK.format(what), **compiled)))
    parts, ours = (min(times) for times in seconds.values())
    assert ours <= 1.5 * parts, f"{ours:.2f} s against {parts:.2f} s"
    assert ours <= 0.8 or parts > 0.5, f"{ours:.2f} s"  # on a slower machine the ratio says the same


def test_few_calls_ask_an_object_what_it_is() -> None:
    """Optional abilities are Protocols; only users' own oracles, operators and graphs are probed, by adapters."""
    files = Path(proxskip.__file__).parent.rglob("*.py")
    calls = (n.func for f in files for n in ast.walk(ast.parse(f.read_text())) if isinstance(n, ast.Call))
    assert sum(isinstance(f, ast.Name) and f.id in ("hasattr", "getattr") for f in calls) <= 60
