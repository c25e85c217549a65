"""The figures and tables of the paper: what each of them runs, and what it claims."""

from __future__ import annotations

import importlib
import tomllib
from collections.abc import Callable
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from proxskip.types import InputError

if TYPE_CHECKING:
    from proxskip.experiments.workspace import Workspace
    from proxskip.report.figures import Claim, Experiment

FIGURE = "toml_figures:run"
"""Runs a figure that its TOML file describes completely."""
FUNCTIONS = {
    "fig1a": FIGURE,
    "fig1b": FIGURE,
    "fig1c": FIGURE,
    "fig2a": FIGURE,
    "fig2b": FIGURE,
    "fig2c": FIGURE,
    "table1": "table1:run",
    "lyapunov": "lyapunov:run",
    "decentralized": "decentralized:run",
    "skipping": "prox_skipping:run",
}
"""Every experiment in the order of the report, with the module and function that run it."""
FAMILY = dict.fromkeys(("family", "bits", "sleeping", "minibatches"), FIGURE)
"""Experiments that compare the methods with each other, for ``reproduce --family``."""
ALL = FUNCTIONS | FAMILY


def is_file(name: str) -> bool:
    """Whether this is the TOML file of a figure, not the name of an experiment."""
    return name.endswith(".toml")


def id_of(name: str) -> str:
    """The id of an experiment, or of the figure in a file."""
    return Path(name).stem if is_file(name) else name


def function(name: str) -> Callable[[Workspace], tuple[Experiment, list[Claim]]]:
    """The function that runs the experiment of this name, or the figure of this file."""
    module, _, attribute = (FIGURE if is_file(name) else ALL[name]).partition(":")
    return getattr(importlib.import_module(f"proxskip.experiments.{module}"), attribute)  # type: ignore[no-any-return]


def preset(name: str, quick: bool = False) -> dict[str, Any]:
    """The entries of an experiment's TOML file; with ``quick``, those of its ``[quick]`` table replace others."""
    package = resources.files("proxskip.experiments").joinpath("presets", f"{name}.toml")
    try:
        text = Path(name).read_text("utf-8") if is_file(name) else package.read_text("utf-8")
        entries = tomllib.loads(text)
    except OSError:
        raise InputError(f"there is no file {name}.") from None
    except ValueError as error:
        raise InputError(f"{name} is not a valid TOML file: {error}.") from None
    shorter = entries.pop("quick", {})
    return entries | {"id": id_of(name)} | (shorter if quick else {})
