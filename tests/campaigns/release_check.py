"""What a release must pass, in fresh environments: the wheel on each Python, each extra alone, both ends of the ranges.

    python tests/campaigns/release_check.py [--python 3.11 3.12 3.13 3.14] [--only NAME ...]
    python tests/campaigns/release_check.py --project v0.4.0        only: may this project be released under this tag?

Builds the wheel, and for each row makes a virtual environment, installs the wheel with pip, uses what the row is about
and runs the race of the demo. Prints one row of a Markdown table per environment. pip reads its settings as always:
`PIP_CONSTRAINT=file` with the line `torch==2.13.0` picks that PyTorch for the row `torch`.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
SOLVE = "import proxskip as ps; P = ps.Problem(ps.random_quadratics(4, 3)); r = ps.run('scaffnew', P, rounds=5{}); "
USES = {
    "prox": "import pyproximal, proxskip as ps; f = ps.LeastSquares([[1.0, 0], [0, 2], [1, 1]], [1.0, 0, 1]); "
    "assert ps.minimize(f, ps.prox.as_prox(pyproximal.L1(sigma=0.1)), tol=1e-6).success",
    "docs": "import runpy, sys; sys.argv = ['build.py', '--out', 'site', '--work', 'pages', '--only', 'none']; "
    f"runpy.run_path({str(ROOT / 'docs' / 'site' / 'build.py')!r}, run_name='__main__')",
    "examples": "import skimage.data, skimage.restoration",
    "flower": "from proxskip.flower import Federated, client_app, from_arrays; import proxskip as ps; "
    "client_app(lambda context: None); Federated(ps.Scaffnew.theory, clients=2)",
    "ray": SOLVE.format(", engine=ps.RayEngine(actors=2)") + "r.x.sum()",
    "torch": SOLVE.format(", engine='torch'") + "import proxskip.torch",
    "callbacks": "import mlflow, tensorboard, wandb; from proxskip.callbacks import MLflow, TensorBoard, WandB",
    "frames": SOLVE.format("") + "assert len(r.trace.to_frame())",
    "gpu": "import importlib.util; assert importlib.util.find_spec('cupy')",  # a driver is not needed to install it
}
"""What each extra must allow."""


def interpreter(version: str) -> str | None:
    """A Python of this version: on the path, or installed by pyenv."""
    pyenv = sorted(Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")).glob(f"versions/{version}.*/bin/python"))
    return shutil.which(f"python{version}") if not pyenv else str(pyenv[-1])


def build_wheel(folder: Path) -> Path:
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(folder), str(ROOT)]
    subprocess.run(command, check=True, capture_output=True, text=True)
    return next(folder.glob("*.whl"))


def oldest(python: str, extra: str = "") -> list[str]:
    """The dependencies, or those that an extra adds, each at the oldest version of its range with a wheel for this Python."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    # an extra's own packages may need a newer dependency than the library does
    ranges = project["optional-dependencies"][extra] if extra else project["dependencies"]
    return [f"{name}=={oldest_wheel(python, wanted)}" for wanted in ranges if (name := re.split(r"[<>=]", wanted)[0])]


def oldest_wheel(python: str, wanted: str) -> str:
    """The oldest version in this range that installs from a wheel."""
    pip = [python, "-m", "pip", "--disable-pip-version-check"]
    name = re.split(r"[<>=]", wanted)[0]
    listing = subprocess.run([*pip, "index", "versions", name], capture_output=True, text=True, check=True).stdout
    lower = re.search(r"[>=]=([\d.]+)", wanted)
    least = number(lower[1]) if lower else ()
    versions = re.search(r"Available versions: (.*)", listing)[1].split(", ")  # type: ignore[index]
    for version in sorted((v for v in versions if number(v) >= least), key=number):
        wheel = ["install", "-q", "--dry-run", "--ignore-installed", "--no-deps", "--only-binary=:all:"]
        if subprocess.run([*pip, *wheel, f"{name}=={version}"], capture_output=True).returncode == 0:
            return version
    raise SystemExit(f"no version of {wanted} has a wheel for {python}")


def number(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version))


def faults_of_project(project: dict[str, Any], tag: str) -> list[str]:
    """Why a project with this table in pyproject.toml must not be released under this tag."""
    faults = [
        f'the URL "{name}" in pyproject.toml is a placeholder ({url}); set it'
        for name, url in project["urls"].items()
        if "example.invalid" in url
    ]
    for name in ("Documentation", "Source", "Changelog", "Issues"):
        if name not in project["urls"]:
            faults.append(f'pyproject.toml has no URL "{name}"; set it')
    if tag != f"v{project['version']}":
        faults.append(f"the tag is {tag} but the version is {project['version']}")
    return faults


def check(python: str, wheel: Path, folder: Path, extra: str = "", more: list[str] | None = None) -> str:
    """Install and use it; the versions and seconds, or what went wrong."""
    env = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
    program = str(folder / "bin" / "python")
    start = time.monotonic()
    wanted = f"{wheel}[{extra}]" if extra else str(wheel)
    steps = [
        [python, "-m", "venv", str(folder)],
        [program, "-m", "pip", "install", "-q", "--no-compile", "--disable-pip-version-check", wanted, *(more or [])],
        [program, "-c", f"import proxskip; {USES.get(extra, '')}"],
        [str(folder / "bin" / "proxskip"), "demo", "--race"],
    ]
    for step in steps:
        done = subprocess.run(step, capture_output=True, text=True, env=env, cwd=folder.parent)
        if done.returncode:
            return f"fails: {' '.join((done.stderr or done.stdout).strip().splitlines()[-1:])[:300]}"
    named = "import numpy, scipy, numba; print(numpy.__version__, scipy.__version__, numba.__version__)"
    versions = subprocess.run([program, "-c", named], capture_output=True, text=True, env=env).stdout.split()
    return f"works: numpy {versions[0]}, scipy {versions[1]}, numba {versions[2]}; {time.monotonic() - start:.0f} s"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", nargs="*", default=["3.11", "3.12", "3.13", "3.14"])
    parser.add_argument("--project", metavar="TAG", help="check URLs and version of the project, and nothing else")
    parser.add_argument("--only", nargs="*", help="rows: 3.12, 3.12-oldest, EXTRA or EXTRA-oldest")
    options = parser.parse_args()
    if options.project:
        faults = faults_of_project(
            tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"], options.project
        )
        raise SystemExit("\n".join(faults))
    first = interpreter(options.python[0]) or sys.executable
    with tempfile.TemporaryDirectory() as name:
        wheel = build_wheel(Path(name))
        pythons = {version: interpreter(version) for version in options.python}
        rows = [(version, python, "", False) for version, python in pythons.items()]
        rows += [(f"{version}-oldest", python, "", True) for version, python in pythons.items()]
        rows += [(extra, first, extra, False) for extra in USES]
        rows += [(f"{extra}-oldest", first, extra, True) for extra in USES]
        for k, (row, python, extra, old) in enumerate(rows):
            if options.only and row not in options.only:
                continue
            where = Path(name) / f"env{k}"
            if python is None:
                told = "no such Python here"
            else:
                told = check(python, wheel, where, extra, oldest(python, extra) if old else [])
            print(f"| {row} | {told} |", flush=True)
            shutil.rmtree(where, ignore_errors=True)


if __name__ == "__main__":
    main()
