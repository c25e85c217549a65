"""Which tests run where: how many examples are drawn, which rows are slow, and what a machine lacks."""

import os
from collections.abc import Iterable
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any

import pytest

from proxskip.engines.gpu.device import need_cupy
from proxskip.types import InputError

PROFILES = {"dev": 0.1, "ci": 0.2, "thorough": 1.0}
"""The profiles of Hypothesis, and the share of its examples that a test gets there: make quick, test and test-slow."""
PROFILE = os.environ.get("HYPOTHESIS_PROFILE", "ci")


def draws(examples: int) -> int:
    """How many of a test's examples are drawn in this profile."""
    return max(4, round(PROFILES[PROFILE] * examples))


def row_name(value: Any) -> str | None:
    """The name of a row, or of a method's class."""
    about = getattr(value, "about", value)
    return getattr(about, "name", None)


def thinned(values: Iterable[Any], every: int = 4, landing: int = 1) -> list[Any]:
    """All values of a parameter, as rows of which only some run often; the first always does.

    One of ``every`` so many stays out of the slow tier, and one of ``landing`` so many is not left for a release.
    """
    rows = []
    for k, value in enumerate(values):
        marks = [pytest.mark.slow] if k % every else []
        if k % landing:
            marks.append(pytest.mark.release)
        rows.append(pytest.param(value, marks=marks, id=row_name(value)))
    return rows


def needs(package: str) -> pytest.MarkDecorator:
    """Skip a test where an optional package is missing."""
    return pytest.mark.skipif(find_spec(package) is None, reason=f"{package} is not installed")


def module_or_skip(name: str) -> ModuleType:
    """Import a module of the library; skip the test where a package of somebody else is missing."""
    try:
        return import_module(name)
    except ImportError as error:
        if (error.name or "proxskip").startswith("proxskip"):
            raise
        pytest.skip(f"{error.name} is not installed")


TORCH = pytest.param("torch", marks=[pytest.mark.torch, pytest.mark.slow, needs("torch")])
"""The torch engine among the values of a parameter ``engine``."""


def no_card() -> str:
    """Why the gpu engine cannot run here; empty if it can."""
    try:
        need_cupy()
    except InputError as error:
        return str(error)
    return ""


ON_CARD = pytest.param(
    "gpu", marks=[pytest.mark.gpu, pytest.mark.skipif(bool(no_card()), reason=no_card() or "there is a GPU")]
)
"""The gpu engine likewise."""
RAY_WARNS = pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
"""Ray leaves processes and sockets to the garbage collector."""
RAY_CPUS = 6
"""Of the Ray that a module of tests shares."""
