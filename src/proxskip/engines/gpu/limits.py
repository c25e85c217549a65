"""What the GPU's local steps cannot do, refused with a sentence; and how many rows they take."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import scipy.sparse

from proxskip.links.codecs import Identity
from proxskip.problems.federated import Problem
from proxskip.problems.glm import LinearModel
from proxskip.problems.packed import stores_of
from proxskip.types import Indices, InputError


def only_plain_steps(more: Mapping[str, Any]) -> None:
    """Refuse what the kernels do not have."""
    # None asks for nothing, and neither does a momentum of zero
    asked = [name for name, v in more.items() if v is not None and not (name == "momentum" and not np.any(v))]
    if asked:
        raise InputError(f'the gpu engine has no local steps with {asked[0]}; use engine="cpu".')


def only_plain_vectors(codec: Any) -> None:
    """Refuse what would have to leave the card."""
    if codec is not None and not isinstance(codec, Identity):
        raise InputError(f'a sweep on the gpu engine cannot send through {codec}; use engine="cpu", or single runs.')


def everywhere(where: Any) -> None:
    """Refuse a gradient of some members only."""
    if where is not None:
        raise InputError('a sweep on the gpu engine has gradients of all clients; use engine="cpu", or single runs.')


def one_step0(step0: Any) -> int:
    """The number of the first step, which must be the same for all members."""
    if np.ndim(step0) and len(set(np.ravel(step0).tolist())) > 1:
        raise InputError('the gpu engine needs the same number of local steps for all clients; use engine="cpu".')
    return int(np.ravel(step0)[0])


def rows_taken(problem: Problem, rows: Indices, members: Indices, K: Any) -> int:
    """Rows that K steps (a number, or one for each member) differentiate."""
    if np.ndim(K):
        return int(np.sum(np.asarray(K) * (problem.batch or rows[members])))
    everyone = len(members) == len(rows)
    return int(K) * (
        problem.batch * len(members) if problem.batch else int((rows if everyone else rows[members]).sum())
    )


def entries_of(problem: Problem) -> float:
    """Stored entries of the clients' data, as far as they are linear models."""
    models = [f for f in stores_of(problem.clients) if isinstance(f, LinearModel)]
    return float(sum(f.A.nnz if scipy.sparse.issparse(f.A) else f.A.size for f in models))
