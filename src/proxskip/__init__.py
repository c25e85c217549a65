"""Communication-accelerated optimization: run a method on a problem through an engine, get a trace, plot it."""

from proxskip import callbacks, prox, theory
from proxskip.data import datasets
from proxskip.engines.ray.engine import RayEngine
from proxskip.experiments.call import reproduce
from proxskip.links import codecs
from proxskip.links.cohorts import Bernoulli, Given, Uniform
from proxskip.links.graphs import Graph, from_matrix, graph
from proxskip.methods import (
    APDA,
    EXTRA,
    GD,
    PDHG,
    Accelerated,
    Decaying,
    DecentralizedScaffnew,
    DIGing,
    FedLin,
    Fista,
    FiveGCS,
    GradSkip,
    LocalGD,
    LoCoDL,
    ProxGD,
    ProxSkip,
    ProxSkipVR,
    RandomGossip,
    Scaffnew,
    ScaffnewVR,
    Scaffold,
    SLocalGD,
    SplitSkip,
    SProxSkip,
    Tamuna,
)
from proxskip.minimize import End, Minimum, minimize
from proxskip.plan import plan
from proxskip.planning.forecast import Plan
from proxskip.planning.pilots import Network
from proxskip.plot import plot
from proxskip.problems.federated import Problem
from proxskip.problems.glm import LeastSquares, Logistic
from proxskip.problems.personal import scafflix
from proxskip.problems.quadratic import Quadratic, random_quadratics
from proxskip.problems.softmax import Softmax
from proxskip.problems.split import split
from proxskip.problems.stored import open_clients, write_clients
from proxskip.registry import METHODS, register
from proxskip.results.load import load
from proxskip.results.result import Result, Results, Status
from proxskip.results.trace import Trace
from proxskip.run import resume, run
from proxskip.seam import About, Claims, Method, Style
from proxskip.sweep import compare, sweep
from proxskip.tune import Tuned, tune
from proxskip.types import EngineError, InputError, NoTheoremWarning, UnsafeStepWarning
from proxskip.version import __version__ as __version__

__all__ = [
    "APDA",
    "EXTRA",
    "GD",
    "METHODS",
    "PDHG",
    "About",
    "Accelerated",
    "Bernoulli",
    "Claims",
    "DIGing",
    "Decaying",
    "DecentralizedScaffnew",
    "End",
    "EngineError",
    "FedLin",
    "Fista",
    "FiveGCS",
    "Given",
    "GradSkip",
    "Graph",
    "InputError",
    "LeastSquares",
    "LoCoDL",
    "LocalGD",
    "Logistic",
    "Method",
    "Minimum",
    "Network",
    "NoTheoremWarning",
    "Plan",
    "Problem",
    "ProxGD",
    "ProxSkip",
    "ProxSkipVR",
    "Quadratic",
    "RandomGossip",
    "RayEngine",
    "Result",
    "Results",
    "SLocalGD",
    "SProxSkip",
    "Scaffnew",
    "ScaffnewVR",
    "Scaffold",
    "Softmax",
    "SplitSkip",
    "Status",
    "Style",
    "Tamuna",
    "Trace",
    "Tuned",
    "Uniform",
    "UnsafeStepWarning",
    "callbacks",
    "codecs",
    "compare",
    "datasets",
    "from_matrix",
    "graph",
    "load",
    "minimize",
    "open_clients",
    "plan",
    "plot",
    "prox",
    "random_quadratics",
    "register",
    "reproduce",
    "resume",
    "run",
    "scafflix",
    "split",
    "sweep",
    "theory",
    "tune",
    "write_clients",
]
