"""For authors of methods and engines: the classes to derive from, what they meet in a round, and the registry."""

from proxskip.engines.in_process import NearEngine
from proxskip.engines.local import OneClient
from proxskip.interfaces import (
    About,
    Claims,
    Client,
    Engine,
    Exchange,
    Method,
    Request,
    Size,
    Style,
    Work,
    chosen,
    constant,
    from_solution,
)  # fmt: skip
from proxskip.links.sums import weighted_sum
from proxskip.registry import METHODS, load_plugin, named, register, step_limits
from proxskip.theory.step_sizes import Setting, StepLimits, check_limits
from proxskip.types import Oracle, Prox

__all__ = [
    "METHODS", "About", "Claims", "Client", "Engine", "Exchange", "Method", "NearEngine", "OneClient", "Oracle", "Prox",
    "Request", "Setting", "Size", "StepLimits", "Style", "Work", "check_limits", "chosen", "constant",
    "from_solution", "load_plugin", "named", "register", "step_limits", "weighted_sum",
]  # fmt: skip
