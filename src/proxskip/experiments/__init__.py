"""The figures and tables of the paper: what each of them runs, and what it claims."""

from __future__ import annotations

import importlib
import tomllib
from collections.abc import Callable
from importlib import resources
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from proxskip.experiments.workspace import Workspace
    from proxskip.report.figures import Claim, Experiment

FUNCTIONS = {
    "fig1a": "fig1a:run",
    "fig1b": "fig1b:run",
    "fig1c": "fig1c:run",
    "fig2a": "fig2:tuned",
    "fig2b": "fig2:theoretical",
    "fig2c": "fig2:clients",
    "table1": "table1:run",
    "lyapunov": "lyapunov:run",
    "decentralized": "decentralized:run",
    "skipping": "prox_skipping:run",
}
"""Every experiment, in the order of the report: its module in this package, and the function that runs it."""
FAMILY = {
    "family": "family:run",
    "bits": "family_savings:bits",
    "sleeping": "family_savings:sleeping",
    "minibatches": "family_savings:minibatches",
}
"""Experiments that compare the family's methods with each other, for ``reproduce --family``."""
NETWORKS = {"mlp": "networks.page:mlp", "cnn": "networks.page:cnn", "text": "networks.page:text"}
"""Experiments with networks, for ``reproduce --networks``; they need PyTorch."""


def function(name: str) -> Callable[[Workspace], tuple[Experiment, list[Claim]]]:
    """The function that runs the experiment of this name."""
    module, _, function = (FUNCTIONS | FAMILY | NETWORKS)[name].partition(":")
    found: Callable[[Workspace], tuple[Experiment, list[Claim]]] = getattr(
        importlib.import_module(f"proxskip.experiments.{module}"), function
    )
    return found


def preset(name: str, quick: bool = False) -> dict[str, Any]:
    """The preset of an experiment; with ``quick`` the entries of its ``[quick]`` table replace the others."""
    text = resources.files("proxskip.experiments").joinpath("presets", f"{name}.toml").read_text(encoding="utf-8")
    found = tomllib.loads(text)
    # whole entries are replaced, tables too: [quick] repeats what it keeps of a table
    short = found.pop("quick", {})
    return found | short if quick else found
