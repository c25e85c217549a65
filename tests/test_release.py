"""The wheel: it builds, installs into a fresh environment by pip alone, and runs the demo there."""

from __future__ import annotations

import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

import release_check

ROOT = Path(__file__).resolve().parents[1]
OFFLINE = ("No matching distribution", "Could not find a version", "Temporary failure", "Connection", "Max retries")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    try:
        return release_check.build_wheel(tmp_path_factory.mktemp("wheel"))
    except subprocess.CalledProcessError as error:
        if any(word in error.stderr for word in OFFLINE):
            pytest.skip("pip reaches no registry, from which the build backend comes")
        raise AssertionError(error.stderr[-2000:]) from None


@pytest.mark.slow
def test_the_wheel_has_the_package_and_nothing_else(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0].split("-")[0] for name in names} == {"proxskip"}
    for data in ("report/page.css", "report/page.js", "experiments/presets/fig1b.toml"):
        assert f"proxskip/{data}" in names
    assert not [name for name in names if "test" in name or name.endswith(".pyc")]


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_the_wheel_runs_the_demo_in_a_fresh_environment(wheel: Path, tmp_path: Path) -> None:
    told = release_check.check(sys.executable, wheel, tmp_path / "env")
    if any(word in told for word in OFFLINE):
        pytest.skip(f"pip reaches no registry: {told}")
    assert told.startswith("works"), told


def test_every_extra_is_checked_before_a_release() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert set(project["optional-dependencies"]) - {"test", "dev", "bench"} == set(release_check.USES)
    supported = {c.split(" :: ")[-1] for c in project["classifiers"] if "Python :: 3." in c}
    assert supported == {"3.11", "3.12", "3.13"}  # those that were tested, see CONTRIBUTING.md
