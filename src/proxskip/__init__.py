"""Communication-accelerated optimization: run a method on a problem through an engine, get a trace, plot it."""
# ruff: noqa: F403, F405  the methods are named once, in proxskip.methods

from importlib.util import find_spec as _find_spec
from typing import TYPE_CHECKING

from proxskip.lazy.names import lazy_names
from proxskip.version import __version__ as __version__

if TYPE_CHECKING:
    from proxskip import callbacks, prox, theory
    from proxskip import torch as torch
    from proxskip.data import datasets
    from proxskip.engines.ray.engine import RayEngine
    from proxskip.experiments.call import reproduce
    from proxskip.interfaces import About, Claims, Method, Style
    from proxskip.links import codecs
    from proxskip.links.cohorts import Bernoulli, Given, Uniform
    from proxskip.links.graphs import Graph, from_matrix, graph
    from proxskip.links.network import Network
    from proxskip.links.profiles import Spread
    from proxskip.methods import *
    from proxskip.minimizing import End, Minimum, minimize
    from proxskip.planner import plan
    from proxskip.planning.forecast import Plan
    from proxskip.plotting import plot
    from proxskip.problems.federated import Problem
    from proxskip.problems.glm import LeastSquares, Logistic, Softmax
    from proxskip.problems.personal import scafflix
    from proxskip.problems.quadratic import Quadratic, random_quadratics
    from proxskip.problems.split import split
    from proxskip.problems.stored import open_clients, write_clients
    from proxskip.registry import METHODS, register
    from proxskip.results.load import load
    from proxskip.results.result import Result, Results, Status
    from proxskip.results.trace import Trace
    from proxskip.running import resume, run
    from proxskip.sweeping import compare, sweep
    from proxskip.tuning import Tuned, tune
    from proxskip.types import EngineError, InputError, NoTheoremWarning, UnsafeStepWarning

__getattr__, _names = lazy_names(__name__, {
    "proxskip.callbacks": "callbacks",
    "proxskip.prox": "prox",
    "proxskip.theory": "theory",
    "proxskip.torch": "torch",
    "proxskip.data.datasets": "datasets",
    "proxskip.engines.ray.engine": "RayEngine",
    "proxskip.experiments.call": "reproduce",
    "proxskip.links.codecs": "codecs",
    "proxskip.links.cohorts": "Bernoulli Given Uniform",
    "proxskip.links.graphs": "Graph from_matrix graph",
    "proxskip.links.network": "Network",
    "proxskip.links.profiles": "Spread",
    "proxskip.methods": (
        "APDA EXTRA GD PDHG Accelerated Decaying DecentralizedScaffnew DIGing FedLin Fista FiveGCS GradSkip "
        "LocalGD LoCoDL ProxGD ProxSkip ProxSkipVR RandomGossip Scaffnew ScaffnewVR Scaffold SLocalGD "
        "SplitSkip SProxSkip Tamuna"
    ),
    "proxskip.minimizing": "End Minimum minimize",
    "proxskip.planner": "plan",
    "proxskip.planning.forecast": "Plan",
    "proxskip.plotting": "plot",
    "proxskip.problems.federated": "Problem",
    "proxskip.problems.glm": "LeastSquares Logistic Softmax",
    "proxskip.problems.personal": "scafflix",
    "proxskip.problems.quadratic": "Quadratic random_quadratics",
    "proxskip.problems.split": "split",
    "proxskip.problems.stored": "open_clients write_clients",
    "proxskip.registry": "METHODS register",
    "proxskip.results.load": "load",
    "proxskip.results.result": "Result Results Status",
    "proxskip.results.trace": "Trace",
    "proxskip.running": "resume run",
    "proxskip.interfaces": "About Claims Method Style",
    "proxskip.sweeping": "compare sweep",
    "proxskip.tuning": "Tuned tune",
    "proxskip.types": "EngineError InputError NoTheoremWarning UnsafeStepWarning",
})  # fmt: skip


def __dir__() -> list[str]:
    """Without ``torch`` where PyTorch is not installed: ``help`` asks for every name."""
    installed = _find_spec("torch") is not None
    return [name for name in _names() if installed or name != "torch"]


__all__ = [
    "APDA", "EXTRA", "GD", "METHODS", "PDHG", "About", "Accelerated", "Bernoulli", "Claims", "DIGing", "Decaying",
    "DecentralizedScaffnew", "End", "EngineError", "FedLin", "Fista", "FiveGCS", "Given", "GradSkip", "Graph",
    "InputError", "LeastSquares", "LoCoDL", "LocalGD", "Logistic", "Method", "Minimum", "Network",
    "NoTheoremWarning", "Plan", "Problem", "ProxGD", "ProxSkip", "ProxSkipVR", "Quadratic", "RandomGossip",
    "RayEngine", "Result", "Results", "SLocalGD", "SProxSkip", "Scaffnew", "ScaffnewVR", "Scaffold", "Softmax",
    "SplitSkip", "Spread", "Status", "Style", "Tamuna", "Trace", "Tuned", "Uniform", "UnsafeStepWarning",
    "callbacks", "codecs", "compare", "datasets", "from_matrix", "graph", "load", "minimize", "open_clients",
    "plan", "plot", "prox", "random_quadratics", "register", "reproduce", "resume", "run", "scafflix", "split",
    "sweep", "theory", "tune", "write_clients",
]  # fmt: skip
