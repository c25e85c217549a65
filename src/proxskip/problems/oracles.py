"""Optional attributes of an oracle, beyond value, gradient, L and mu; only this module looks for them.

An oracle needs only the four members of ``types.Oracle``. It is used better if it also has some of these:

======================================  ===========================================================================
Attribute                               Effect
======================================  ===========================================================================
``d``                                   the number of unknowns need not be given
``N``, ``minibatch_gradient(x, rows)``  minibatches; ``L_rows`` gives their step size, ``gradient_variance(x)`` their
                                        noise
``hessp(x, v)``, ``hessian(x)``         the reference solution comes from Newton's method; ``hessian`` is what the
                                        method newton needs
``minimizer``                           the reference solution is read off
``classes``                             must be the same for all clients
``dtype``                               the precision of its gradients; float64 where it is missing
``thread_safe = True``                  its gradients may be computed on several threads at once
``start()``                             runs start there if no x0 is given
``L_known = False``                     it has no L; no step size is derived from it
``metrics``, ``measure(x)``             names, and what they are at x: columns of the trace
``is_random``                           local steps take ``random_gradient(x, rows, key)``, such as with dropout
``fingerprint()``                       bytes that tell its data from others', for a run's folder
``sizes_of_terms(x)``                   how large the terms are that its value and gradient add up, see ``Terms``
======================================  ===========================================================================
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from proxskip.problems.cox import Cox
from proxskip.problems.linear_model import LinearModel
from proxskip.problems.quadratic import Quadratic
from proxskip.problems.spectrum import norm
from proxskip.types import Array, InputError, Oracle

BUILT_IN = (LinearModel, Quadratic, Cox)


def attribute(f: object, name: str, otherwise: Any = None) -> Any:
    """An attribute that an oracle may have."""
    return getattr(f, name, otherwise)


def is_oracle(f: object) -> bool:
    """Whether f has value, gradient, L and mu."""
    # The built-in ones first: a protocol check reads every member, and reading their L would compute it.
    return isinstance(f, BUILT_IN) or not knows_L(f) or isinstance(f, Oracle)


def knows_L(f: object) -> bool:
    """False for an oracle that says so by ``L_known = False``."""
    return bool(attribute(f, "L_known", True))


def check_L(f: Any) -> None:
    """Refuse an oracle that has no L, in words of its own if it has some."""
    if knows_L(f):
        return
    try:
        _ = f.L
    except InputError:
        raise
    except Exception:
        pass
    raise InputError(f"the L of a {type(f).__name__} is unknown, so no step size follows from it; give gamma.")


def start_of(f: object) -> Array | None:
    """The starting point that f suggests, such as a network's weights; None without one."""
    start = attribute(f, "start")
    return start() if callable(start) else None


def is_random(f: object) -> bool:
    """Whether local steps take ``random_gradient(x, rows, (seed, client, round, step))``."""
    return bool(attribute(f, "is_random", False))


def metrics_of(f: object) -> tuple[str, ...]:
    """The names of what f measures."""
    return tuple(attribute(f, "metrics", ()) or ())


def measured(clients: Sequence[Any], weights: Array, x: Array) -> dict[str, float]:
    """The weighted means of what the clients measure at x; what several share is computed once."""
    total: dict[str, float] = {}
    shared: dict[int, dict[str, float]] = {}
    for w, f in zip(weights, clients, strict=True):
        test = attribute(f, "test")
        measures = f.measure(x) if test is None else shared.get(id(test)) or shared.setdefault(id(test), f.measure(x))
        for name, v in measures.items():
            total[name] = total.get(name, 0.0) + float(w) * v
    return total


def dimension_of(f: object) -> int | None:
    """The number of unknowns, where f knows it."""
    d = attribute(f, "d")
    return None if d is None else int(d)


def names_of(f: object, d: int) -> tuple[str, ...]:
    """The names of the unknowns: those of the columns, where f knows them."""
    known: tuple[str, ...] | None = attribute(f, "columns")
    return known or tuple(f"x{j + 1}" for j in range(d))


def given_columns(f: object) -> tuple[str, ...] | None:
    """The names of the columns, if somebody gave them; those of a model without a data frame only count."""
    if isinstance(f, (LinearModel, Cox)) and f.names is None:
        return None
    columns = attribute(f, "columns")
    return None if columns is None else tuple(columns)


def dtype_of(f: object) -> np.dtype[Any]:
    """The precision of the data of f."""
    return getattr(f, "dtype", np.dtype(np.float64))


def in_double(f: Any) -> Any:
    """f with its data in double precision: a certificate must not depend on the rounding of single precision."""
    return f.double() if isinstance(f, LinearModel) and f.dtype != np.dtype(np.float64) else f


def is_thread_safe(f: object) -> bool:
    """Whether several threads may compute gradients of f at once."""
    return isinstance(f, BUILT_IN) or bool(attribute(f, "thread_safe", False))


def has_hessian(f: object) -> bool:
    """Whether f has a dense Hessian; one on another machine says so, and a linear model on an operator has none."""
    return bool(attribute(f, "has_hessian", attribute(f, "hessian") is not None and has_rows(f)))


def stored_numbers(f: object) -> int:
    """The size of the data matrix (or the Hessian) of f, a measure of what an evaluation costs."""
    return int(np.size(attribute(f, "A", attribute(f, "H", 0))))


class Terms(NamedTuple):
    """The sizes of what is added up in a value and in a gradient, and may cancel there; rounding is relative to it."""

    of_value: float
    of_gradient: float


def sizes_of_terms(f: Oracle, x: Array) -> Terms:
    """What f says about its terms at x; of an f that says nothing, a gradient has a term of L |x|."""
    own = attribute(f, "sizes_of_terms")
    if own is not None:
        return Terms(*own(x))
    return Terms(0.0, float(f.L) * norm(x) if knows_L(f) else 0.0)


# -- rows --------------------------------------------------------------------------------------------------------------
def rows_of(f: object) -> int:
    """The number of terms if f is a finite sum, otherwise 1."""
    return int(attribute(f, "N", 1))


def row_weights_of(f: Any) -> Array:
    """What each row of a statistical model counts; all the same where it does not say."""
    weights = attribute(f, "s")
    return np.full(f.N, 1.0 / f.N) if weights is None else np.asarray(weights)


def has_rows(f: object) -> bool:
    """False for a linear model on an operator, whose rows cannot be taken apart."""
    return bool(attribute(f, "has_rows", True))


def can_sample(f: object) -> bool:
    """Whether gradients of some rows of f can be computed."""
    return attribute(f, "minibatch_gradient") is not None and hasattr(f, "N") and has_rows(f)


def row_smoothness_of(f: object) -> float | None:
    """``L_rows``, the largest smoothness of one row, where f knows it."""
    return getattr(f, "L_rows", None)
