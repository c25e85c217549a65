"""Profiles and markers of all tests, and the fixtures that several folders share."""

import os
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from proxskip import cli
from proxskip.methods import registry
from proxskip.types import UnsafeStepWarning
from support import chromium
from support.tiers import PROFILE, PROFILES, RAY_CPUS

for name, share in PROFILES.items():  # no deadlines: a machine may be busy
    settings.register_profile(name, deadline=None, max_examples=round(100 * share), derandomize=name != "dev")
settings.load_profile(PROFILE)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks that follow from what a test uses."""
    for item in items:
        if getattr(getattr(item, "obj", None), "is_hypothesis_test", False):
            item.add_marker("fuzz")
        if item.path.stem == "test_reproduce" and "made" in getattr(item, "fixturenames", ()):
            item.add_marker("slow")  # all figures are made for it
        for fixture, mark in (("ray_here", "ray"), ("browser", "browser")):
            if fixture in getattr(item, "fixturenames", ()):
                item.add_marker(mark)
                if fixture == "browser":
                    item.add_marker("slow")  # it has a tier of its own
                item.add_marker(pytest.mark.xdist_group(item.path.stem))  # one Ray, one browser
    # groups stay in one process: whichever came last would run alone
    items.sort(key=lambda item: item.get_closest_marker("xdist_group") is None)


@pytest.fixture(scope="session")
def proxskip_data() -> Path:
    """The folder with the data sets: $PROXSKIP_DATA, or shared/data beside the repository; else the test is skipped."""
    beside = Path(__file__).resolve().parents[2] / "shared" / "data"
    folder = Path(os.environ["PROXSKIP_DATA"]) if "PROXSKIP_DATA" in os.environ else beside
    if not folder.is_dir():
        pytest.skip("no data folder: set PROXSKIP_DATA to one that holds w8a.gz and its friends")
    return folder


@pytest.fixture(autouse=True)
def own_plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of methods that a test loads are forgotten after it; the processes of a sweep would load them all."""
    monkeypatch.setattr(registry, "PLUGINS", list(registry.PLUGINS))


@pytest.fixture
def own_methods(monkeypatch: pytest.MonkeyPatch) -> None:
    """Methods that a test makes known are forgotten after it."""
    monkeypatch.setattr(registry.METHODS, "_known", dict(registry.METHODS))


@pytest.fixture
def quiet_steps() -> Iterator[None]:
    """Steps outside the theorem are meant here."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UnsafeStepWarning)
        yield


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Run a command in this process: exit code, stdout, stderr."""

    def run(*argv: Any) -> tuple[int, str, str]:
        code = cli.main([str(a) for a in argv])
        out, err = capsys.readouterr()
        return code, out, err

    return run


@pytest.fixture(scope="module")
def ray_here(request: pytest.FixtureRequest) -> Iterator[None]:
    """One Ray for all tests of a module: on loopback, without dashboard and usage statistics."""
    ray = pytest.importorskip("ray", reason="ray is not installed")
    from proxskip.engines.ray.cluster import start_here

    ray.cloudpickle.register_pickle_by_value(request.module)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        start_here(num_cpus=RAY_CPUS, object_store_memory=150 * 2**20, log_to_driver=False, logging_level="ERROR")
        yield
        ray.shutdown()


@pytest.fixture(scope="module")
def browser() -> Iterator[chromium.Browser]:
    pytest.importorskip("playwright", reason="playwright is not installed")
    program = chromium.find()
    if program is None:
        pytest.skip(f"no browser: none of {', '.join(chromium.NAMES)} is installed")
    with chromium.Browser(program) as found:
        yield found
