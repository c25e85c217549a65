"""The description of a run as plain data: its configuration, and the summary of what it did."""

from __future__ import annotations

import hashlib
import platform
import re
from collections.abc import Mapping
from dataclasses import fields
from functools import cache
from importlib.metadata import version
from typing import Any

import numpy as np

from proxskip import participation, theory
from proxskip.codecs import BUILT_IN
from proxskip.core.method import Method
from proxskip.graphs import Graph
from proxskip.methods import Decaying, registry
from proxskip.participation import Participation
from proxskip.problems.federated import Problem
from proxskip.problems.linear_model import LinearModel
from proxskip.problems.oracles import dtype_of
from proxskip.problems.packed import Packed
from proxskip.problems.sharded import RemoteClient, add_client, matrix_parts
from proxskip.results.fields import FIELDS, SHOWN
from proxskip.results.result import Status, Summary
from proxskip.support.version import __version__
from proxskip.types import InputError, is_sparse


# -- configuration -----------------------------------------------------------------------------------------------------
def config(
    method: Method,
    problem: Problem,
    limits: Mapping[str, Any],
    seed: int,
    engine: str,
    cohorts: Participation,
    spec: dict[str, Any],
    fingerprinted: bool = True,
) -> dict[str, Any]:
    """Everything that determines a run, as plain data.

    Args:
        fingerprinted: with the digest of the data, which takes as long as many gradients.
    """
    return {
        "method": method.name,
        "parameters": parameters(method),
        "problem": identity(problem) if fingerprinted else _about(problem),
        "stop": dict(limits),
        "seed": seed,
        "engine": engine,
        "cohort": participation.plain(cohorts),
        "spec": spec,
    }


def parameters(method: Method) -> dict[str, Any]:
    """The method's parameters as plain data."""
    return {name: _plain(v) for name, v in method.parameters().items()}


def identity(problem: Problem) -> dict[str, Any]:
    """What identifies a problem: its data, split, weights, constants and a fingerprint."""
    return _about(problem) | {"fingerprint": fingerprint(problem)}


def _about(problem: Problem) -> dict[str, Any]:
    f = problem.clients[0]
    return {
        "data": problem.info.get("data"),
        "data_sha256": problem.info.get("data_sha256"),
        "split": problem.info.get("split"),
        "weights": problem.info.get("weights", weighting(problem)),
        "clients": problem.n,
        "samples": problem.N,
        "d": problem.d,
        "loss": f.loss if isinstance(f, (LinearModel, RemoteClient)) else type(f).__name__,
        "lambda": problem.l2,
        "dtype": str(dtype_of(f)),
        "batch": problem.batch,
        "smoothness": problem.smoothness,
        "psi": None if problem.psi is None else re.sub(r" at 0x[0-9a-fA-F]+", "", repr(problem.psi)),
        "D": _operator(problem.D),
    }


def weighting(problem: Problem) -> str:
    """Whether all clients have the same weight, in a word."""
    return "equal" if np.ptp(problem.weights) == 0 else "given"


def fingerprint(problem: Problem) -> str:
    """A digest of the clients' data and weights (for a user's own oracles, of L, mu and two gradients)."""
    if isinstance(problem.clients, Packed):
        return problem.clients.fingerprint(problem.weights)
    digest = hashlib.sha256()
    # weights first: the same shards with other weights are another problem
    digest.update(np.ascontiguousarray(problem.weights).tobytes())
    for f in problem.clients:
        if isinstance(f, RemoteClient):
            digest.update(f.digest.encode())
        else:
            add_client(digest, f, problem.d)
    return digest.hexdigest()


def _operator(D: Any) -> str | None:
    """The operator D as text: the digest of a matrix, the type and shape of any other operator."""
    if D is None:
        return None
    name = f"{type(D).__name__} of shape {tuple(D.shape)}"
    if not (is_sparse(D) or isinstance(D, np.ndarray)):
        return name
    digest = hashlib.sha256()
    for p in matrix_parts(D):
        digest.update(np.ascontiguousarray(p).tobytes())
    return f"{name}, sha256 {digest.hexdigest()}"


def revive(saved: Mapping[str, Any]) -> tuple[Method, Participation]:
    """The method and the participation of a saved configuration."""
    kind: Any = registry.named(saved["method"])
    own = {f.name for f in fields(kind)}
    values = {name: _revived(v) for name, v in saved["parameters"].items()}
    # a method of its own may have a parameter of this name; otherwise it is that of ``Decaying``
    decay = None if "decay" in own else values.pop("decay", None)
    for name in values:
        if name not in own:
            raise InputError(
                f"{kind.about.name} has no parameter {name}, which this run has; use the code that began it."
            )
    method: Method = kind(**values)
    if decay is not None:
        method = Decaying(method, decay)
    return method, participation.of_plain(saved["cohort"])


def _revived(v: Any) -> Any:
    """A parameter again, from what ``_plain`` made of it."""
    if isinstance(v, dict):
        return Graph.of(v)
    return tuple(v) if isinstance(v, list) else v


def _plain(v: Any) -> Any:
    """A parameter as plain data: a graph as its matrix, a codec as its text, a tuple as a list."""
    if isinstance(v, Graph):
        return v.plain()
    if isinstance(v, BUILT_IN):
        return str(v)
    if isinstance(v, tuple):
        return [_plain(u) for u in v]
    return v.tolist() if isinstance(v, (np.generic, np.ndarray)) else v


def cohort_floor(config: Mapping[str, Any], first: Mapping[str, float]) -> str | None:
    """The rounds that cohorts need for a run's tolerance whatever p, in words; None where nothing is known of them.

    Args:
        first: the run's first record.
    """
    if "cohort" not in config:
        return None
    kind = registry.METHODS.get(config["method"])  # none for the training of a network
    if kind is None or "h" not in kind.about.remembers:
        return None
    (rule, size), n, stop = next(iter(config["cohort"].items())), config["problem"]["clients"], config["stop"]
    if rule not in ("uniform", "bernoulli") or isinstance(size, list):
        return None
    # the squares of the gradient norm, and f - f* itself, fall as the squared error does
    accuracies = [(stop["tol"] / first["grad_norm"]) ** 2] if stop["tol"] and first["grad_norm"] else []
    accuracies += [stop["target"] / first["gap"]] if stop["target"] and first["gap"] > 0 else []
    eps = min((e for e in accuracies if 0 < e < 1), default=None)
    c = size if rule == "uniform" else n * size
    return None if eps is None or c >= n else theory.cohort_sentence(n, c, eps)


# -- summary -----------------------------------------------------------------------------------------------------------
def summary(
    config: dict[str, Any],
    problem: Problem,
    row: dict[str, float],
    status: Status,
    message: str,
    zeta: float | None,
    notes: tuple[str, ...],
    cluster: dict[str, Any] | None = None,
) -> Summary:
    """The content of summary.json; a field that does not apply is null."""
    chosen = _chosen(config)
    end: dict[str, Any] = {
        "status": status.name,
        "success": status is Status.CONVERGED,
        "message": message,
        "warnings": list(notes),
        "cluster": cluster,
        "versions": versions(),
        "settings": list(chosen),
    }
    constants = _constants(config, problem) | {"seed": config["seed"], "zeta": zeta}
    return Summary(chosen | constants | _measured(problem, row) | end)


def _chosen(config: dict[str, Any]) -> dict[str, Any]:
    """The problem, the method and its parameters, but not the seed: the settings of a summary."""
    parameters, about = config["parameters"], config["problem"]
    graph = parameters.get("graph")
    of_the_problem = ("data", "data_sha256", "samples", "d", "clients", "split", "weights", "lambda", "loss", "batch")
    chosen = {
        "method": config["method"],
        **{k: about[k] for k in (*of_the_problem, "psi", "smoothness")},
        "engine": config["engine"],
        **{k: parameters.get(k) for k in SHOWN},
    }
    # a graph has its name, and ``a`` follows from the cohorts
    chosen |= {k: v for k, v in parameters.items() if k not in chosen and k not in ("graph", "a")}
    if "network" in config:
        chosen["network"] = config["network"].get("name", "given")
    chosen["cohort"] = None if "everyone" in config["cohort"] else config["cohort"]
    chosen["graph"] = None if graph is None else graph["name"]
    return chosen


def _constants(config: dict[str, Any], problem: Problem) -> dict[str, Any]:
    """The constants of the problem, as far as they are known."""
    graph = config["parameters"].get("graph")
    known = {k: getattr(problem, k) if problem.knows_L else None for k in ("L", "L_max", "L_average", "kappa")}
    return known | {"mu": problem.mu, "delta": None if graph is None else _revived(graph).delta}


def _measured(problem: Problem, row: dict[str, float]) -> dict[str, Any]:
    """The last part of a summary: the ledger, and the measurements at the returned x."""
    return {
        "rounds": int(row["round"]),
        **{k: field.plain(row[k]) for k, field in FIELDS.items() if k in row},
        "f_star": None if problem.solution is None else problem.solution.f,
        **{k: float(row[k]) if np.isfinite(row[k]) else None for k in problem.metrics},
    }


def versions() -> dict[str, str]:
    """What this was computed with."""
    own = {"python": platform.python_version(), "machine": platform.machine(), "proxskip": __version__}
    return own | {name: _version(name) for name in ("numpy", "scipy", "numba")}


_version = cache(version)  # reading one takes milliseconds
