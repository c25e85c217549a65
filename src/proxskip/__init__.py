"""Communication-accelerated optimization: run a method on a problem through an engine, get a trace, plot it."""
# ruff: noqa: F403, F405  the methods are named once, in proxskip.methods

from importlib.util import find_spec as _find_spec
from typing import TYPE_CHECKING

from proxskip.lazy.names import lazy_names
from proxskip.version import __version__ as __version__

if TYPE_CHECKING:
    from proxskip import authoring, callbacks, codecs, graphs, participation, prox, theory
    from proxskip import torch as torch
    from proxskip.data import datasets
    from proxskip.engines.ray.engine import RayEngine
    from proxskip.experiments.call import reproduce
    from proxskip.links.network import Network
    from proxskip.links.profiles import Spread
    from proxskip.methods import *
    from proxskip.minimizing import Minimum, minimize
    from proxskip.planner import Plan, plan
    from proxskip.plotting import plot
    from proxskip.problems.federated import Problem
    from proxskip.problems.glm import LeastSquares, Logistic, Softmax
    from proxskip.problems.personal import scafflix
    from proxskip.problems.quadratic import Quadratic, random_quadratics
    from proxskip.problems.split import split
    from proxskip.problems.stored import open_clients, write_clients
    from proxskip.results.load import load
    from proxskip.results.result import Result, RunResult, Status
    from proxskip.results.table import Results
    from proxskip.results.trace import Trace
    from proxskip.running import resume, run
    from proxskip.sweeping import sweep
    from proxskip.tuning import Tuned, tune
    from proxskip.types import EngineError, InputError, NoTheoremWarning, UnsafeStepWarning

__getattr__, _ = lazy_names(__name__, {
    "proxskip.authoring": "authoring",
    "proxskip.callbacks": "callbacks",
    "proxskip.codecs": "codecs",
    "proxskip.graphs": "graphs",
    "proxskip.participation": "participation",
    "proxskip.prox": "prox",
    "proxskip.theory": "theory",
    "proxskip.torch": "torch",
    "proxskip.data.datasets": "datasets",
    "proxskip.engines.ray.engine": "RayEngine",
    "proxskip.experiments.call": "reproduce",
    "proxskip.links.network": "Network",
    "proxskip.links.profiles": "Spread",
    "proxskip.methods": (
        "APDA EXTRA GD PDHG Accelerated Decaying DecentralizedScaffnew DIGing FedLin Fista FiveGCS GradSkip "
        "LocalGD LoCoDL ProxGD ProxSkip ProxSkipVR RandomGossip Scaffnew ScaffnewVR Scaffold SLocalGD "
        "SplitSkip SProxSkip Tamuna"
    ),
    "proxskip.minimizing": "Minimum minimize",
    "proxskip.planner": "Plan plan",
    "proxskip.plotting": "plot",
    "proxskip.problems.federated": "Problem",
    "proxskip.problems.glm": "LeastSquares Logistic Softmax",
    "proxskip.problems.personal": "scafflix",
    "proxskip.problems.quadratic": "Quadratic random_quadratics",
    "proxskip.problems.split": "split",
    "proxskip.problems.stored": "open_clients write_clients",
    "proxskip.results.load": "load",
    "proxskip.results.result": "Result RunResult Status",
    "proxskip.results.table": "Results",
    "proxskip.results.trace": "Trace",
    "proxskip.running": "resume run",
    "proxskip.sweeping": "compare sweep",
    "proxskip.tuning": "Tuned tune",
    "proxskip.types": "EngineError InputError NoTheoremWarning UnsafeStepWarning",
})  # fmt: skip


def __dir__() -> list[str]:
    """Without ``torch`` where PyTorch is not installed: ``help`` asks for every name."""
    return sorted([*__all__, "torch"]) if _find_spec("torch") else sorted(__all__)


__all__ = [
    "APDA", "EXTRA", "GD", "PDHG", "Accelerated", "DIGing", "Decaying", "DecentralizedScaffnew", "EngineError",
    "FedLin", "Fista", "FiveGCS", "GradSkip", "InputError", "LeastSquares", "LoCoDL", "LocalGD", "Logistic", "Minimum",
    "Network", "NoTheoremWarning", "Plan", "Problem", "ProxGD", "ProxSkip", "ProxSkipVR", "Quadratic", "RandomGossip",
    "RayEngine", "Result", "Results", "RunResult", "SLocalGD", "SProxSkip", "Scaffnew", "ScaffnewVR", "Scaffold",
    "Softmax", "SplitSkip", "Spread", "Status", "Tamuna", "Trace", "Tuned", "UnsafeStepWarning", "authoring",
    "callbacks", "codecs", "datasets", "graphs", "load", "minimize", "open_clients", "participation", "plan",
    "plot", "prox", "random_quadratics", "reproduce", "resume", "run", "scafflix", "split", "sweep", "theory", "tune",
    "write_clients",
]  # fmt: skip
