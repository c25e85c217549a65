"""What the GPU's local steps cannot do, refused with a sentence; how many rows they take, and how long."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import scipy

from proxskip.problems.federated import Problem
from proxskip.problems.glm import LinearModel
from proxskip.problems.packed import stores_of
from proxskip.types import Indices, InputError

SECONDS_BETWEEN_LOOKS = 0.1
"""How long one launch should take at most: after it the engine looks whether the run was interrupted."""
STEP_SECONDS, ENTRIES_PER_SECOND = 5e-6, 1e11
"""A local step on a fast card takes about this long and one over that per stored entry; where this is far off, the
second launch knows better."""


def only_plain_steps(more: Mapping[str, Any]) -> None:
    """Refuse what the kernels do not have."""
    # None asks for nothing, and neither does a momentum of zero
    asked = [name for name, v in more.items() if v is not None and not (name == "momentum" and not np.any(v))]
    if asked:
        raise InputError(f'the gpu engine has no local steps with {asked[0]}; use engine="cpu".')


def only_full_gradients(problem: Problem) -> None:
    """Refuse minibatches of functions that are no linear models: the card has only their full gradients."""
    if problem.batch is not None:
        raise InputError(
            'the gpu engine takes minibatches of linear models only; use engine="cpu", or leave the batch out.'
        )


def one_step0(step0: Any) -> int:
    """The number of the first step, which must be the same for all members."""
    if many(step0) and len(set(np.ravel(step0).tolist())) > 1:
        raise InputError('the gpu engine needs the same number of local steps for all clients; use engine="cpu".')
    return step0 if isinstance(step0, int) else int(np.ravel(step0)[0])


def many(v: Any) -> bool:
    """Whether it has an entry for each member; a number is seen at once, since every round asks many times."""
    return not isinstance(v, (int, float)) and np.ndim(v) > 0


def alike(a: Indices, b: Indices) -> bool:
    """Whether two cohorts have the same members."""
    return a is b or np.array_equal(a, b)


def rows_taken(problem: Problem, rows: Indices, total: int, members: Indices, K: Any) -> int:
    """Rows that K steps (a number, or one for each member) differentiate; everybody has ``total`` of them."""
    if many(K):
        return int(np.sum(np.asarray(K) * (problem.batch or rows[members])))
    if problem.batch:
        return int(K) * problem.batch * len(members)
    return int(K) * (total if len(members) == len(rows) else int(rows[members].sum()))


def entries_of(problem: Problem) -> float:
    """Stored entries of the clients' data, as far as they are linear models."""
    models = [f for f in stores_of(problem.clients) if isinstance(f, LinearModel)]
    return float(sum(f.A.nnz if scipy.sparse.issparse(f.A) else f.A.size for f in models))


def steps_between_looks(entries: float) -> int:
    """About how many local steps on this many stored entries take half the time between two looks."""
    return max(1, int(0.5 * SECONDS_BETWEEN_LOOKS / (STEP_SECONDS + entries / ENTRIES_PER_SECOND)))
