"""From flags to a problem and a method. The problem's part is plain data, so that a run folder can be resumed."""

from __future__ import annotations

import os
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import scipy.sparse

from proxskip import prox, theory
from proxskip.data import datasets
from proxskip.links import cohorts
from proxskip.links.graphs import as_graph
from proxskip.methods import (
    EXTRA,
    GD,
    METHODS,
    PDHG,
    Accelerated,
    Decaying,
    DecentralizedScaffnew,
    DIGing,
    FedLin,
    Fista,
    LocalGD,
    ProxGD,
    ProxSkip,
    Scaffnew,
    Scaffold,
    SLocalGD,
    SplitSkip,
    SProxSkip,
    named,
)
from proxskip.problems import operators
from proxskip.problems.federated import Problem
from proxskip.problems.glm import LeastSquares, Logistic
from proxskip.problems.softmax import Softmax
from proxskip.problems.split import split
from proxskip.seam import Method
from proxskip.types import InputError, Prox

LOSSES: dict[str, Any] = {"logistic": Logistic, "squares": LeastSquares, "softmax": Softmax}
CLIENTS = 20
"""As in the paper's experiments."""

TAKES: dict[str, set[str]] = {
    "gd": {"gamma"},
    "proxgd": {"gamma"},
    "accelerated": {"gamma"},
    "fista": {"gamma"},
    "local-gd": {"gamma", "K"},
    "scaffold": {"gamma", "K", "eta_g", "option"},
    "fedlin": {"gamma", "K"},
    "s-local-gd": {"gamma", "p", "q"},
    "proxskip": {"gamma", "p", "K"},
    "sproxskip": {"gamma", "p"},
    "scaffnew": {"gamma", "p", "K", "own_steps"},
    "decentralized-scaffnew": {"gamma", "p", "K", "tau", "graph"},
    "diging": {"gamma", "graph"},
    "extra": {"gamma", "graph"},
    "splitskip": {"gamma", "p", "K", "tau", "D"},
    "pdhg": {"gamma", "tau", "D"},
}
"""Which of the flags below each method takes."""
DEFAULTS: dict[str, Any] = {
    **{"loss": "logistic", "l2": 1e-4, "l2_relative": True, "intercept": False, "psi": None, "D": None},
    **{"dtype": "float64", "clients": None, "split": "label", "alpha": 0.5, "split_seed": 0, "weights": None},
    **{"L": "max", "batch": None, "data_dir": None, "cohort": None, "allow_unsafe_step": False},
    **{"gamma": None, "p": None, "K": None, "tau": None, "q": None, "eta_g": None, "option": None},
    **{"own_steps": None, "graph": None, "decay": None},
    **{"rounds": None, "iterations": None, "seconds": None, "tol": None, "target": None, "every": None},
}
"""What holds for a flag that is not given."""
_OPTIONAL = ("gamma", "p", "K", "tau", "q", "eta_g", "option", "own_steps", "graph", "D")


def flags(**given: Any) -> Namespace:
    """The command line's flags as values: what is given, and the defaults for the rest.

    >>> flags(data="digits", K=30).split
    'label'
    """
    unknown = [name for name in given if name not in DEFAULTS and name != "data"]
    if unknown:
        raise InputError(f"{unknown[0]} is no flag of a run; the flags are {', '.join(DEFAULTS)}.")
    return Namespace(**DEFAULTS | given)


# -- before any work ---------------------------------------------------------------------------------------------------
def method_names(given: Sequence[str]) -> list[str]:
    """The methods' names as the library writes them, each once."""
    names = [str(named(name).name) for name in given]
    twice = [name for k, name in enumerate(names) if name in names[:k]]
    if twice:
        raise InputError(f"{twice[0]} is named twice; name each method once.")
    return names


def check_flags(names: Sequence[str], o: Namespace) -> None:
    """Refuse flags that none of the methods takes, instead of ignoring them."""
    if all(getattr(o, k) is None for k in ("rounds", "iterations", "seconds", "tol", "target")):
        raise InputError("nothing says when to stop; give --rounds, --iterations, --seconds, --tol or --target.")
    for flag in _OPTIONAL:
        if getattr(o, flag) is not None and not any(flag in TAKES[name] for name in names):
            takers = ", ".join(name for name in METHODS if flag in TAKES[name])
            who = f"{names[0]} does not take" if len(names) == 1 else f"none of {', '.join(names)} takes"
            raise InputError(f"{who} --{flag.replace('_', '-')}; it belongs to {takers}.")
    if o.psi is None and (dual := [name for name in names if "D" in METHODS[name].handles]):
        raise InputError(f"{dual[0]} solves f(x) + psi(D x); give --psi, for example --psi l1:0.01.")
    if o.own_steps and o.gamma is not None:
        raise InputError("--own-steps sets gamma_i = 1/L_i, so leave out --gamma.")
    if o.clients is not None and o.clients > 1 and (alone := [name for name in names if _one_function(name)]):
        raise InputError(f"{alone[0]} is for a problem of one function; leave out --clients, or use scaffnew.")
    if o.psi is not None:
        psi_of(o.psi)


def _one_function(name: str) -> bool:
    return "clients" not in METHODS[name].handles


# -- the problem -------------------------------------------------------------------------------------------------------
def spec_of(names: Sequence[str], o: Namespace) -> dict[str, Any]:
    """Everything that determines the problem, as plain data; files by their absolute path."""
    is_file = o.data not in datasets.KNOWN and os.path.isfile(o.data)
    clients = 1 if any(_one_function(name) for name in names) else o.clients
    if clients is None and o.split != "group":
        clients = CLIENTS
    gossip = any("graph" in METHODS[name].handles for name in names)
    return {
        "data": os.path.abspath(o.data) if is_file else o.data,
        "data_dir": None if o.data_dir is None else os.path.abspath(o.data_dir),
        "loss": o.loss,
        "l2": o.l2,
        "l2_relative": o.l2_relative,
        "intercept": o.intercept,
        "psi": o.psi,
        "D": (o.D or "difference") if any("D" in METHODS[name].handles for name in names) else None,
        "dtype": o.dtype,
        "clients": clients,
        "split": o.split,
        "alpha": o.alpha,
        "split_seed": o.split_seed,
        "weights": o.weights or ("equal" if gossip else "rows"),
        "L": o.L,
        "batch": o.batch,
    }


def problem_of(spec: Mapping[str, Any]) -> tuple[Problem, dict[str, int] | None]:
    """The problem, and which label became which number where that is not plain from the data."""
    data = datasets.load(spec["data"], data_dir=spec["data_dir"])
    model = LOSSES[spec["loss"]](
        data.A,
        data.b,
        l2=spec["l2"],
        l2_relative=spec["l2_relative"],
        intercept=spec["intercept"],
        dtype=np.dtype(spec["dtype"]),
    )
    problem = split(
        model,
        spec["clients"],
        spec["split"],
        weights=spec["weights"],
        L=spec["L"],
        groups=data.group,
        alpha=spec["alpha"],
        seed=spec["split_seed"],
        batch=spec["batch"],
        info={"data": data.name or os.path.basename(spec["data"]), "data_sha256": data.sha256},
    )
    if spec["psi"] is not None:
        problem = problem.with_psi(psi_of(spec["psi"]), operator_of(spec["D"], problem.d))
    return problem, _labels(model)


def _labels(model: Any) -> dict[str, int] | None:
    if not isinstance(model, Logistic) or model.classes == (-1.0, 1.0):
        return None
    return {f"{model.classes[0]:g}": -1, f"{model.classes[1]:g}": 1}


def psi_of(text: str) -> Prox:
    """A regulariser from its name and numbers, ``l1:0.01``."""
    name, _, rest = text.partition(":")
    kinds: dict[str, tuple[Callable[..., Prox], str]] = {
        "l1": (prox.L1, "l1:LAM"),
        "elastic-net": (prox.ElasticNet, "elastic-net:L1,L2"),
        "nonnegative": (prox.NonNegative, "nonnegative"),
        "box": (prox.Box, "box:LO,HI"),
    }
    usable = ", ".join(form for _, form in kinds.values())
    if name not in kinds:
        raise InputError(f'psi "{text}" is not known; use {usable}.')
    make, form = kinds[name]
    try:
        numbers = [float(part) for part in rest.split(",")] if rest else []
    except ValueError:
        raise InputError(f'psi "{text}" holds something that is not a number; write {form}.') from None
    if len(numbers) != form.count(",") + (":" in form):
        raise InputError(f'psi "{text}" has {len(numbers)} numbers; write {form}.')
    return make(*numbers)


def operator_of(name: str | None, d: int) -> Any:
    """D of psi(D x): first differences (total variation with l1), or the identity."""
    if name is None:
        return None
    if name == "identity":
        return scipy.sparse.identity(d, format="csr")
    return scipy.sparse.diags([-np.ones(d - 1), np.ones(d - 1)], [0, 1], shape=(d - 1, d), format="csr")


# -- the method --------------------------------------------------------------------------------------------------------
def method_of(name: str, o: Namespace, problem: Problem) -> Method:
    """The method with what was given, and its theorem's parameters for the rest."""
    made: Any = _MAKE[name](o, problem)
    if o.decay is not None:
        made = Decaying.paper_figure(made, problem) if o.decay == "figure" else Decaying(made, o.decay)
    checked: Method = made
    return checked


def _constructed(cls: Any, o: Namespace, problem: Problem, **given: Any) -> Any:
    """By the theorem or, with --gamma figure, by the paper's figure; a number for gamma replaces theirs."""
    figure = o.gamma == "figure" and hasattr(cls, "paper_figure")
    method = (cls.paper_figure if figure else cls.theory)(problem, **given)
    return replace(method, gamma=o.gamma) if isinstance(o.gamma, float) else method


def _gamma(o: Namespace, problem: Problem) -> float:
    """1/L, and 1/A with minibatches, unless given."""
    if isinstance(o.gamma, float):
        return o.gamma
    return theory.largest_step(problem.es_A)


def _p(o: Namespace, best: Callable[[], float]) -> float:
    """As given, or 1/K for a fixed K, or the theorem's for this gamma."""
    if o.p is not None:
        return float(o.p)
    return best() if o.K is None else 1.0 / int(o.K)


def _scaffold(o: Namespace, problem: Problem) -> Scaffold:
    made: Scaffold = _constructed(Scaffold, o, problem, K=o.K, option=o.option or "II")
    if o.eta_g is None:
        return made
    gamma = made.gamma if isinstance(o.gamma, float) else made.gamma / o.eta_g
    return replace(made, eta_g=o.eta_g, gamma=gamma)


def _proxskip(o: Namespace, problem: Problem) -> ProxSkip:
    gamma = _gamma(o, problem)
    return ProxSkip(gamma, _p(o, lambda: theory.best_p(gamma, problem.mu)), o.K)


def _sproxskip(o: Namespace, problem: Problem) -> SProxSkip:
    gamma = _gamma(o, problem)
    return SProxSkip(gamma, theory.best_p(gamma, problem.mu) if o.p is None else o.p)


def _scaffnew(o: Namespace, problem: Problem) -> Scaffnew:
    if o.own_steps:
        gammas = tuple(1.0 / float(A) for A in problem.es_A_i)
        own = lambda: Scaffnew.theory(problem, own_steps=True, cohort=o.cohort).p  # noqa: E731
        return Scaffnew(gammas, _p(o, own), o.K)
    figure = o.gamma == "figure" and problem.batch is None
    gamma = 1.0 / problem.L_global if figure else _gamma(o, problem)
    participation = cohorts.as_participation(o.cohort)
    participation.check(problem.n)
    a, chi = participation.constants(problem.n)
    p = _p(o, lambda: Scaffnew.at(gamma, problem, a, chi).p)
    return Scaffnew(gamma, p, o.K) if a == 1.0 else Scaffnew(gamma, p, o.K, chi, a)


def _decentralized(o: Namespace, problem: Problem) -> DecentralizedScaffnew:
    link = as_graph(o.graph or "ring", problem.n, seed=o.split_seed)
    gamma = _gamma(o, problem)
    p = _p(o, lambda: theory.split_p(gamma, problem.mu, link.lmax, link.delta))
    tau = theory.split_tau(gamma, p, link.lmax) if o.tau is None else o.tau
    return DecentralizedScaffnew(gamma, p, tau, link, o.K)


def _over_graph(cls: Any) -> Callable[[Namespace, Problem], Any]:
    return lambda o, problem: _constructed(cls, o, problem, graph=o.graph or "ring", seed=o.split_seed)


def _splitskip(o: Namespace, problem: Problem) -> SplitSkip:
    if o.gamma is None and o.p is None and o.K is None and o.tau is None:
        return SplitSkip.theory(problem)
    gamma, norm2 = _gamma(o, problem), operators.operator_norm2(problem.D)
    p = _p(o, lambda: theory.split_p(gamma, problem.mu, norm2, operators.smallest_positive(problem.D) or 0.0))
    return SplitSkip(gamma, p, theory.split_tau(gamma, p, norm2) if o.tau is None else o.tau, o.K)


def _pdhg(o: Namespace, problem: Problem) -> PDHG:
    made = PDHG.theory(problem)
    gamma = o.gamma if isinstance(o.gamma, float) else made.gamma
    tau = PDHG.largest_tau(problem, gamma, made.mu) if o.tau is None else o.tau
    return PDHG(gamma, tau, made.mu)


_MAKE: dict[str, Callable[[Namespace, Problem], Any]] = {
    "gd": lambda o, problem: _constructed(GD, o, problem),
    "proxgd": lambda o, problem: _constructed(ProxGD, o, problem),
    "accelerated": lambda o, problem: _constructed(Accelerated, o, problem),
    "fista": lambda o, problem: _constructed(Fista, o, problem),
    "local-gd": lambda o, problem: _constructed(LocalGD, o, problem, K=o.K),
    "scaffold": _scaffold,
    "fedlin": lambda o, problem: _constructed(FedLin, o, problem, K=o.K),
    "s-local-gd": lambda o, problem: _constructed(SLocalGD, o, problem, p=o.p, q=1.0 if o.q is None else o.q),
    "proxskip": _proxskip,
    "sproxskip": _sproxskip,
    "scaffnew": _scaffnew,
    "decentralized-scaffnew": _decentralized,
    "diging": _over_graph(DIGing),
    "extra": _over_graph(EXTRA),
    "splitskip": _splitskip,
    "pdhg": _pdhg,
}
