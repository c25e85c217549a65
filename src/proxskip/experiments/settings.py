"""From flags to a problem and a method; the flags of the problem are kept in the run folder to resume it."""

from __future__ import annotations

import os
import warnings
from argparse import Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import scipy

from proxskip import datasets
from proxskip.core.method import Method
from proxskip.core.method import flags as parameters_of
from proxskip.experiments.flags import PROBLEM, STOPPING, defaults
from proxskip.graphs import as_graph
from proxskip.methods import Decaying
from proxskip.methods.registry import METHODS, named
from proxskip.problems.federated import Problem
from proxskip.problems.glm import MODELS, Logistic
from proxskip.problems.split import split
from proxskip.prox import parse as prox_text
from proxskip.types import InputError, is_sparse

CLIENTS = 20
"""As in the paper's experiments."""
L2_RELATIVE = 1e-4
"""Lambda as a share of the smoothness of the loss, where none is given."""
LIMITS = tuple(flag.name for flag in STOPPING)
"""The flags that say when a run stops."""
PROBLEM_FLAGS = tuple(flag.name for flag in PROBLEM if flag.name not in ("personal", "label", "columns", "group"))
"""The flags that every problem is made from; the others are kept where they were given."""
_OF_A_TABLE = ("label", "columns", "group")


def flags(**values: Any) -> Namespace:
    """These flags of the command line, and the defaults of all others.

    >>> flags(data="digits", K=30).split
    'label'
    """
    known = defaults()
    if unknown := [name for name in values if name not in (*known, "data", "spread")]:
        raise InputError(f"{unknown[0]} is not a flag of a run; the flags are {', '.join(known)}.")
    return with_lambda(Namespace(**known | values))


def flags_taken(name: str) -> tuple[str, ...]:
    """The parameters that a method takes."""
    kind = METHODS[name]
    return (*parameters_of(kind), "D") if "D" in kind.about.handles else parameters_of(kind)


# -- before any work ---------------------------------------------------------------------------------------------------
def method_names(written: Sequence[str]) -> list[str]:
    """The registered names of these methods, each once."""
    names = [named(name).about.name for name in written]
    if repeated := [name for k, name in enumerate(names) if name in names[:k]]:
        raise InputError(f"{repeated[0]} occurs twice; name each method once.")
    return names


def check_flags(names: Sequence[str], o: Namespace) -> None:
    """Refuse flags that do not go together, before the data are read."""
    if all(vars(o)[k] is None for k in LIMITS):
        raise InputError("there is no stopping rule: give --rounds, --iterations, --seconds, --tol or --target.")
    if o.go_on and (o.force or o.out is None):
        raise InputError("--continue resumes the runs in --out, and --force would overwrite them; give one of the two.")
    if o.own_steps and o.gamma is not None:
        raise InputError("--own-steps sets gamma_i = 1/L_i, so leave out --gamma.")
    check_problem_flags(names, o)


def check_problem_flags(names: Sequence[str], o: Namespace) -> None:
    """Refuse flags of a problem that do not go together, or that these methods cannot take."""
    needs_psi = [name for name in names if "D" in METHODS[name].about.handles]
    if o.psi is None and needs_psi:
        raise InputError(f"{needs_psi[0]} solves f(x) + psi(D x) and needs --psi, for example --psi l1:0.01.")
    alone = [name for name in names if _one_function(name)]
    if o.clients is not None and o.clients > 1 and alone:
        raise InputError(f"{alone[0]} minimizes a single function; leave out --clients, or use scaffnew.")
    if o.group is not None and o.split != "group":
        raise InputError("--group is the column of groups for --split group; give both, or leave out --group.")
    if o.psi is not None:
        prox_text.check(o.psi)


def with_lambda(o: Namespace) -> Namespace:
    """The flags, with a lambda where none is given."""
    if o.l2 is not None and o.l2_relative is not None:
        raise InputError("--l2 is lambda, and --l2-relative makes it a share of the smoothness; give one of the two.")
    if o.l2 is None and o.l2_relative is None:
        return Namespace(**vars(o) | {"l2_relative": L2_RELATIVE})
    return o


def check_folder(path: Path) -> None:
    """Refuse a folder that is a file, or cannot be written to."""
    if path.exists() and not path.is_dir():
        raise InputError(f"{path} is a file, not a folder.")
    nearest = next(p for p in (path, *path.absolute().parents) if p.exists())
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise InputError(f"{nearest} cannot be written to; choose another folder.")


def _one_function(name: str) -> bool:
    return "clients" not in METHODS[name].about.handles


# -- the problem -------------------------------------------------------------------------------------------------------
def spec_of(names: Sequence[str], o: Namespace) -> dict[str, Any]:
    """Everything that determines the problem, as plain data; files have absolute paths."""
    is_file = o.data not in datasets.KNOWN and os.path.isfile(o.data)
    clients = 1 if any(_one_function(name) for name in names) else o.clients
    if clients is None and o.split != "group":
        clients = CLIENTS
    # on a graph the methods average without weights
    equal = any("weights" not in METHODS[name].about.handles and not _one_function(name) for name in names)
    return {k: vars(o)[k] for k in PROBLEM_FLAGS} | {
        "data": os.path.abspath(o.data) if is_file else o.data,
        "data_dir": None if o.data_dir is None else os.path.abspath(o.data_dir),
        "D": (o.D or "difference") if any("D" in METHODS[name].about.handles for name in names) else None,
        "clients": clients,
        "weights": o.weights or ("equal" if equal else "rows"),
        **{k: v for k in ("personal", "spread", *_OF_A_TABLE) if (v := vars(o).get(k)) is not None},
    }


def problem_of(spec: Mapping[str, Any]) -> tuple[Problem, dict[str, int] | None]:
    """The problem, and the numbers that stand for its labels if these are not -1 and 1."""
    data = datasets.load(spec["data"], data_dir=spec["data_dir"], **{k: spec.get(k) for k in _OF_A_TABLE})
    data = data.standardized() if spec["standardize"] else data
    of_loss = {k: spec[k] for k in ("l2_relative", "intercept", "dtype")}
    model = MODELS[spec["loss"]](data.A, data.b, spec["l2"] or 0.0, **of_loss)
    if spec["l2_relative"] == L2_RELATIVE:
        _warn_of_scales(model)
    of_split = {k: spec[k] for k in ("weights", "smoothness", "alpha", "batch")}
    info = {"data": data.name or os.path.basename(spec["data"]), "data_sha256": data.sha256}
    groups = data.group if spec["split"] == "group" else None
    problem = split(
        model, spec["clients"], spec["split"], groups=groups, seed=spec["split_seed"], info=info, **of_split
    )
    if spec.get("spread") is not None:
        problem = _scaled(problem, spec["spread"])
    if spec.get("personal") is not None:
        problem = problem.personalized(spec["personal"])
    if spec["psi"] is not None:
        D = operator_of(spec["D"], problem.d)
        problem = problem.with_psi(prox_text.parse(spec["psi"], problem.d if D is None else D.shape[0]), D)
    if spec.get("no_minimum"):
        problem = problem.without_minimum()
    return problem, _labels(model)


def _warn_of_scales(model: Any) -> None:
    """Warn where lambda, which the largest features decide, outweighs the loss in most of the others."""
    A = model.A
    squares = A.multiply(A) if is_sparse(A) else A**2
    curvatures = model.curvature * np.asarray(squares.mean(axis=0), dtype=np.float64).ravel()
    usual = float(np.median(curvatures[curvatures > 0])) if curvatures.any() else 0.0
    if model.l2 > usual:
        warnings.warn(
            f"lambda = {model.l2:.3g} outweighs the loss in most features, whose scales differ much: use "
            "--standardize, or give --l2.",
            UserWarning,
            stacklevel=2,
        )


def _scaled(problem: Problem, spread: float) -> Problem:
    """The problem with the rows of each client scaled, so that the L_i fall from the largest to 1/spread of it."""
    if not all(isinstance(f, Logistic) for f in problem.clients):
        raise InputError("spread= scales the clients of a logistic loss; leave it out, or use loss=logistic.")
    parts: list[Any] = list(problem.clients)
    # L of a logistic loss without l2 grows with the square of its rows
    L = max(f.L0 for f in parts) * np.geomspace(1.0, 1.0 / spread, problem.n)
    clients = [
        Logistic(f.A * np.sqrt(L_i / f.L0), f.b, l2=f.l2, classes=(-1.0, 1.0)) for f, L_i in zip(parts, L, strict=True)
    ]
    return Problem(clients, problem.weights, info=problem.info)


def _labels(model: Any) -> dict[str, int] | None:
    if not isinstance(model, Logistic) or model.classes == (-1.0, 1.0):
        return None
    first, second = (label if isinstance(label, str) else f"{label:g}" for label in model.classes)
    return {first: -1, second: 1}


def operator_of(name: str | None, d: int) -> Any:
    """D of psi(D x): first differences (total variation with l1), or the identity."""
    if name is None:
        return None
    if name == "identity":
        return scipy.sparse.identity(d, format="csr")
    return scipy.sparse.diags([-np.ones(d - 1), np.ones(d - 1)], [0, 1], shape=(d - 1, d), format="csr")


# -- the method --------------------------------------------------------------------------------------------------------
def method_of(name: str, o: Namespace, problem: Problem) -> Method:
    """The method with these flags, and its theorem's parameters for the rest."""
    kind = METHODS[name]
    own = {k: vars(o)[k] for k in parameters_of(kind) if vars(o).get(k) is not None}
    figure = own.get("gamma") == "figure"
    if figure:
        del own["gamma"]
    if "graph" in own:
        own["graph"] = as_graph(own["graph"], problem.n, seed=o.split_seed)
    method: Any = kind.theory(problem, cohort=o.cohort, figure=figure, **own)
    if o.decay is not None:
        method = Decaying(method) if o.decay == "figure" else Decaying(method, o.decay)
        method = method.complete(problem)
    return method  # type: ignore[no-any-return]
