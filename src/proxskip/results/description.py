"""What a run is and what it did, in words and numbers: its configuration, its measurements, its summary."""

from __future__ import annotations

import hashlib
import platform
import re
from collections.abc import Callable
from dataclasses import asdict, fields, is_dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse

from proxskip import methods
from proxskip.cohorts import Bernoulli, Everyone, Given, Participation, Uniform
from proxskip.links import Graph, from_matrix, weighted_sum
from proxskip.problems.federated import Problem
from proxskip.problems.glm import LinearModel
from proxskip.problems.sharded import Remote, add_client, matrix_parts
from proxskip.prox import conjugate_prox
from proxskip.result import Status, Summary
from proxskip.seam import Array, InputError, Method, Vectors
from proxskip.version import __version__

if TYPE_CHECKING:
    from proxskip.loop import Stop

_MISSING = {
    "cohort": "averages over everybody, so it cannot run on cohorts; use scaffnew, scaffold or local-gd",
    "psi": "has no prox step, so it cannot solve a problem with psi; use proxgd, proxskip, accelerated or scaffnew",
    "D": "cannot solve psi(D x); use splitskip",
    "batch": "needs full gradients; leave out the batch",
    "clients": "is for a problem of one function; give a problem with one client, or use scaffnew",
}


def check_fit(method: Method, problem: Problem, everyone: bool) -> None:
    """Refuse what the method is not right for, with one sentence."""
    asked = {
        "cohort": not everyone,
        "psi": problem.psi is not None and problem.D is None,
        "D": problem.D is not None,
        "batch": problem.batch is not None,
        "clients": problem.n > 1,
    }
    for what, wanted in asked.items():
        if wanted and what not in method.handles:
            raise InputError(f"{method.name} {_MISSING[what]}.")
    if not everyone and problem.psi is not None:
        raise InputError("a regulariser at the server needs everybody's h in every round; leave out the cohort or psi.")


# -- configuration -----------------------------------------------------------------------------------------------------
def config(
    method: Method,
    problem: Problem,
    stop: Stop,
    seed: int,
    engine: str,
    participation: Participation,
    spec: dict[str, Any],
) -> dict[str, Any]:
    """Everything that determines a run, as plain data."""
    return {
        "method": method.name,
        "parameters": parameters(method),
        "problem": identity(problem),
        "stop": {k: getattr(stop, k) for k in stop.__slots__},
        "seed": seed,
        "engine": engine,
        "cohort": _cohort(participation),
        "spec": spec,
    }


def parameters(method: Any) -> dict[str, Any]:
    """The method's fields as plain data."""
    if isinstance(method, methods.Decaying):
        return parameters(method.method) | {"decay": _plain(method.decay)}
    out: dict[str, Any] = {}
    for f in fields(method):
        v = getattr(method, f.name)
        if isinstance(v, Graph):
            W = scipy.sparse.coo_array(v.W)
            v = {
                "name": v.name,
                "n": v.n,
                "rows": W.row.tolist(),
                "columns": W.col.tolist(),
                "weights": W.data.tolist(),
            }
        out[f.name] = [float(u) if isinstance(u, float) else int(u) for u in v] if isinstance(v, tuple) else _plain(v)
    return out


def identity(problem: Problem) -> dict[str, Any]:
    """What makes this problem this problem."""
    f = problem.clients[0]
    return {
        "data": problem.info.get("data"),
        "data_sha256": problem.info.get("data_sha256"),
        "split": problem.info.get("split"),
        "weights": problem.info.get("weights", "equal" if np.ptp(problem.weights) == 0 else "given"),
        "clients": problem.n,
        "samples": problem.N,
        "d": problem.d,
        "loss": f.loss if isinstance(f, (LinearModel, Remote)) else type(f).__name__,
        "lambda": problem.l2,
        "dtype": str(f.dtype) if isinstance(f, (LinearModel, Remote)) else "float64",
        "batch": problem.batch,
        "L_kind": problem.L_kind,
        "psi": None if problem.psi is None else re.sub(r" at 0x[0-9a-fA-F]+", "", repr(problem.psi)),
        "D": _operator(problem.D),
        "fingerprint": fingerprint(problem),
    }


def fingerprint(problem: Problem) -> str:
    """A digest of the clients' data and weights (for oracles of unknown make, of L, mu and two gradients)."""
    digest = hashlib.sha256()
    digest.update(np.ascontiguousarray(problem.weights).tobytes())
    for f in problem.clients:
        if isinstance(f, Remote):
            digest.update(f.fact.digest.encode())
        else:
            add_client(digest, f, problem.d)
    return digest.hexdigest()


def _operator(D: Any) -> str | None:
    """The operator D in a word: its digest where it is a matrix, its kind and shape where it is not."""
    if D is None:
        return None
    name = f"{type(D).__name__} of shape {tuple(D.shape)}"
    if not (scipy.sparse.issparse(D) or isinstance(D, np.ndarray)):
        return name
    digest = hashlib.sha256()
    for p in matrix_parts(D):
        digest.update(np.ascontiguousarray(p).tobytes())
    return f"{name}, sha256 {digest.hexdigest()}"


def revive(saved: dict[str, Any]) -> tuple[Method, Participation]:
    """The method and the participation of a saved configuration."""
    given = dict(saved["parameters"])
    if isinstance(given.get("graph"), dict):
        given["graph"] = from_matrix(_mixing(given["graph"]), given["graph"]["name"])
    given = {k: tuple(v) if isinstance(v, list) else v for k, v in given.items()}
    decay = given.pop("decay", None)
    method: Any = methods.named(saved["method"])(**given)
    method = method if decay is None else methods.Decaying(method, decay)
    kind, value = next(iter(saved["cohort"].items()))
    makers: dict[str, Callable[[Any], Participation]] = {
        "everyone": lambda _: Everyone(),
        "uniform": Uniform,
        "bernoulli": Bernoulli,
        "given": Given.of,
    }
    return method, makers[kind](value)


def _cohort(participation: Any) -> dict[str, Any]:
    if isinstance(participation, Given):
        return {"given": [list(c) for c in participation.cohorts]}
    values = asdict(participation) if is_dataclass(participation) and not isinstance(participation, type) else {}
    return {type(participation).__name__.lower(): next(iter(values.values()), None)}


def _plain(v: Any) -> Any:
    return v.tolist() if isinstance(v, (np.generic, np.ndarray)) else v


# -- measurement -------------------------------------------------------------------------------------------------------
def controls(method: Any, server: Vectors, memory: Vectors) -> Array | None:
    """The control variates h_i, one row a client; None for methods without."""
    if hasattr(method, "controls"):
        return np.asarray(method.controls(server, memory))
    return memory.get("h")


def residual(problem: Problem, x: Array, server: Vectors) -> float:
    """How far x is from optimal: |grad f|, with psi the prox-gradient residual, with D that of (x, y)."""
    if problem.D is None:
        return problem.residual(x, 1.0 / problem.L_global)
    assert problem.psi is not None
    y = server["y"]
    primal = problem.gradient(x) + problem.D.T @ y
    dual = y - conjugate_prox(problem.psi, y + problem.D @ x, 1.0)
    return float(np.linalg.norm(primal) + np.linalg.norm(dual))


def at_point(problem: Problem, x: Array) -> dict[str, float]:
    """f, gap and (but for psi(D x), which needs the dual point too) gradient norm at x alone."""
    f = problem.value(x)
    row = {"f": f} if problem.D is not None else {"f": f, "grad_norm": residual(problem, x, {})}
    return row if problem.solution is None else row | {"gap": f - problem.solution.f}


def measure(method: Method, problem: Problem, x: Array, server: Vectors, memory: Vectors) -> dict[str, float]:
    """f, gap, gradient norm, sum of h and Lyapunov function at the communicated x."""
    row = at_point(problem, x)
    if problem.D is not None:
        row["grad_norm"] = residual(problem, x, server)
    h = controls(method, server, memory)
    if h is not None and problem.psi is None and problem.n > 1:
        row["sum_h"] = float(np.abs(weighted_sum(problem.weights, h)).max())
    psi = method.lyapunov(problem, x, server, memory)
    row["lyapunov"] = np.nan if psi is None else psi
    return row


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
    """The content of summary.json; null where a field does not apply."""
    end: dict[str, Any] = {
        "status": status.name,
        "success": status is Status.CONVERGED,
        "message": message,
        "warnings": list(notes),
        "cluster": cluster,
        "versions": versions(),
        "data_sha256": config["problem"]["data_sha256"],
    }
    return Summary(_asked(config, problem) | {"zeta": zeta} | _found(problem, row) | end)


COUNTED: tuple[str, ...] = (
    *("iterations", "exchanges", "vectors_up", "vectors_down", "floats_up", "floats_down", "bytes_up", "bytes_down"),
    *("edge_messages", "local_steps", "grad_evals", "prox_evals"),
)
MEASURED = ("passes", "seconds", "f", "gap", "grad_norm", "sum_h", "lyapunov", "lyapunov_bound")


def _asked(config: dict[str, Any], problem: Problem) -> dict[str, Any]:
    """What ran: the problem, its constants, the method's parameters."""
    given, about = config["parameters"], config["problem"]
    graph = given.get("graph")
    constants = {k: getattr(problem, k) for k in ("L", "L_kind", "L_max", "L_global", "mu", "kappa")}
    return {
        "method": config["method"],
        **{k: about[k] for k in ("data", "samples", "d", "clients", "split")},
        "engine": config["engine"],
        "seed": config["seed"],
        **constants,
        **{k: about[k] for k in ("weights", "lambda", "loss", "batch", "psi")},
        **{k: given.get(k) for k in ("gamma", "p", "K", "tau", "q", "chi", "eta_g", "option", "beta", "decay")},
        "cohort": None if "everyone" in config["cohort"] else config["cohort"],
        "graph": None if graph is None else graph["name"],
        "delta": None if graph is None else _delta(graph),
    }


def _found(problem: Problem, row: dict[str, float]) -> dict[str, Any]:
    """What came of it: the ledger, and the measurements at the returned x."""
    return {
        "rounds": int(row["round"]),
        **{k: int(row[k]) for k in COUNTED},
        **{k: float(row[k]) if np.isfinite(row[k]) else None for k in MEASURED},
        "f_star": None if problem.solution is None else problem.solution.f,
    }


def _delta(graph: dict[str, Any]) -> float:
    return float(1.0 - np.linalg.eigvalsh(_mixing(graph))[-2])


def _mixing(graph: dict[str, Any]) -> Array:
    W = np.zeros((graph["n"], graph["n"]))
    W[graph["rows"], graph["columns"]] = graph["weights"]
    return W


def versions() -> dict[str, str]:
    """What this was computed with."""
    out = {"python": platform.python_version(), "machine": platform.machine(), "proxskip": __version__}
    for name in ("numpy", "scipy", "numba"):
        try:
            out[name] = version(name)
        except PackageNotFoundError:
            out[name] = "not installed"
    return out
