"""What the GPU's local steps cannot do, refused with a sentence; and how many rows they take."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from proxskip.problems.federated import Problem
from proxskip.types import Indices, InputError


def only_plain_steps(options: Mapping[str, Any]) -> None:
    """Refuse what the kernels do not have."""
    # None asks for nothing, and neither does a momentum of zero
    used = [name for name, v in options.items() if v is not None and not (name == "momentum" and not np.any(v))]
    if used:
        raise InputError(f'the gpu engine has no local steps with {used[0]}; use engine="cpu".')


def only_full_gradients(problem: Problem) -> None:
    """Refuse minibatches of functions that are no linear models: the card has only their full gradients."""
    if problem.batch is not None:
        raise InputError(
            'the gpu engine takes minibatches of linear models only; use engine="cpu", or leave the batch out.'
        )


def one_step0(step0: Any) -> int:
    """The number of the first step, which must be the same for all members."""
    numbers = set(np.ravel(step0).tolist())
    if len(numbers) > 1:
        raise InputError('the gpu engine needs the same number of local steps for all clients; use engine="cpu".')
    return int(numbers.pop())


def many(v: Any) -> bool:
    """Whether it has an entry for each member; a number is seen at once, since every round asks many times."""
    return not isinstance(v, (int, float)) and np.ndim(v) > 0


def rows_taken(problem: Problem, rows: Indices, members: Indices, K: Any) -> int:
    """Rows that K steps (a number, or one for each member) differentiate."""
    if many(K):
        return int(np.sum(np.asarray(K) * (problem.batch or rows[members])))
    return int(K) * (problem.batch * len(members) if problem.batch else int(rows[members].sum()))
