"""The wheel: it builds, installs into a fresh environment by pip alone, and runs the demo there."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

from campaigns import release_check

ROOT = Path(__file__).resolve().parents[2]
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
    for data in ("report/page.css", "report/page.js", "py.typed", ".agents/skills/proxskip/SKILL.md"):
        assert f"proxskip/{data}" in names
    assert not [name for name in names if "/test_" in name or "tests/" in name or name.endswith(".pyc")]


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_the_wheel_runs_the_demo_in_a_fresh_environment(wheel: Path, tmp_path: Path) -> None:
    told = release_check.check(sys.executable, wheel, tmp_path / "env")
    if any(word in told for word in OFFLINE):
        pytest.skip(f"pip reaches no registry: {told}")
    assert told.startswith("works"), told


def test_every_extra_is_checked_before_a_release() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert set(project["optional-dependencies"]) - {"test", "dev", "bench", "stats"} == set(release_check.USES)
    supported = {c.split(" :: ")[-1] for c in project["classifiers"] if "Python :: 3." in c}
    workflow = (ROOT / ".github" / "workflows" / "tests.yml").read_text("utf-8")
    tested = re.search(r"python: \[(.*)\]\n        system: \[ubuntu", workflow)
    assert tested is not None
    assert set(re.findall(r"3\.\d+", tested[1])) == supported


def test_every_tier_of_the_tests_runs_in_a_workflow() -> None:
    tiers = set(re.findall(r"^(test[a-z-]*):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)) - {"test-all"}
    workflow = (ROOT / ".github" / "workflows" / "tests.yml").read_text("utf-8")
    assert {tier for tier in tiers if not re.search(rf"(make |[\[ ]){tier}[,\]\n]", workflow)} == set()


@pytest.mark.parametrize("name", [".readthedocs.yaml", ".github/workflows/tests.yml"])
def test_the_site_is_published_with_its_pages_about_torch(name: str) -> None:
    steps = (ROOT / name).read_text("utf-8")
    assert re.search(r"""pip install -e "\.\[(docs,)?torch\]".*\n.*(docs/site/build\.py|make docs)""", steps)


def test_a_release_with_placeholders_for_urls_or_another_version_is_refused() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    tag = f"v{project['version']}"
    own = project | {"urls": {name: f"https://proxskip.org/{name}" for name in project["urls"]}}
    assert release_check.faults_of_project(own, tag) == []
    assert len(release_check.faults_of_project(own, "v9.9.9")) == 1
    for name in ("Documentation", "Source", "Changelog", "Issues"):
        placeholder = own["urls"] | {name: "https://example.invalid/x"}
        (fault,) = release_check.faults_of_project(own | {"urls": placeholder}, tag)
        assert name in fault
        missing = {other: url for other, url in own["urls"].items() if other != name}
        (fault,) = release_check.faults_of_project(own | {"urls": missing}, tag)
        assert name in fault


def test_the_conda_recipe_has_the_version_and_the_dependencies_of_the_project() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    recipe = (ROOT / "packaging" / "conda" / "meta.yaml").read_text("utf-8")
    assert f'set version = "{project["version"]}"' in recipe
    run = recipe.split("  run:\n")[1].split("\n\n")[0]
    # conda-forge has matplotlib without its Qt windows under a name of its own
    needed = {line.strip("- ").replace(" ", "").replace("matplotlib-base", "matplotlib") for line in run.splitlines()}
    assert needed == {f"python{project['requires-python']}", *project["dependencies"]}


def test_actions_of_workflows_are_pinned_by_the_hash_of_a_commit() -> None:
    for workflow in (ROOT / ".github" / "workflows").glob("*.yml"):
        for action in re.findall(r"uses: (\S+)", workflow.read_text("utf-8")):
            assert re.fullmatch(r"[\w/-]+@[0-9a-f]{40}", action), f"{workflow.name}: {action}"
