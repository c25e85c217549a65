"""The experiments by name, in the order of the report; their modules are imported when they are needed."""

from __future__ import annotations

import importlib

from proxskip.experiments.figures import Figure

PAPER = {
    "fig1a": "figure1",
    "fig1b": "figure1",
    "fig1c": "figure1",
    "fig2a": "figure2",
    "fig2b": "figure2",
    "fig2c": "figure2",
    "table1": "table1",
    "lyapunov": "lyapunov",
    "decentralized": "decentralized",
    "skipping": "prox_skipping",
}
"""The paper's figures and tables, with the modules that define them."""
FAMILY = dict.fromkeys(("family", "bits", "sleeping", "minibatches"), "family")
"""Experiments that compare the methods with each other, for ``reproduce --family``."""
ALL = PAPER | FAMILY


def experiment(name: str) -> Figure:
    """The experiment of this name."""
    module = importlib.import_module(f"proxskip.experiments.{ALL[name]}")
    figure: Figure = vars(module)[name]
    return figure
