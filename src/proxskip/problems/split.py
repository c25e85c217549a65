"""Splitting the rows of a linear model among clients, which gives a federated problem."""

from __future__ import annotations

from typing import Literal

import numpy as np
import numpy.typing as npt

from proxskip import theory
from proxskip.problems.cox import Cox
from proxskip.problems.federated import Problem, Smoothness
from proxskip.problems.linear_model import LinearModel
from proxskip.problems.packed import Packed, sums
from proxskip.support.randomness import generator
from proxskip.types import Array, Indices, InputError

By = Literal["label", "iid", "dirichlet", "contiguous", "group"]


def split(
    model: LinearModel | Cox,
    clients: int | None = None,
    by: By = "label",
    *,
    weights: Literal["rows", "equal"] = "rows",
    smoothness: Smoothness = "max",
    groups: npt.ArrayLike | None = None,
    alpha: float = 0.5,
    seed: int = 0,
    batch: int | None = None,
    info: dict[str, object] | None = None,
) -> Problem:
    """Split the rows of a model among clients.

    Args:
        model: the whole data set: Logistic, LeastSquares, Softmax, Poisson or Cox.
        info: more to write into the summaries of runs, by name.
        clients: the number of clients.
        by: "label" sorts by label (stable; Cox by time) and cuts, "contiguous" cuts the rows in their order, "iid"
            shuffles and cuts, "dirichlet" splits each label in proportions drawn from Dirichlet(alpha), "group" sorts
            by ``groups`` and cuts, or makes one client per group if ``clients`` is not given.
        weights: "rows" weights each client by its rows, so that the problem is that of the whole data set; "equal"
            gives every client the weight 1/n. With Cox and "rows" it is that of all rows, stratified by client.
        smoothness: which constant ``problem.L`` is, see ``Problem``.
        groups: a number or a text per row, such as its site, for ``by="group"``.
        alpha: the concentration of the Dirichlet split; the smaller, the more the clients differ.
        seed: of the random splits.
        batch: rows of a minibatch, see ``Problem``.

    >>> import numpy as np
    >>> from proxskip.problems.glm import Logistic
    >>> problem = split(Logistic(np.eye(6), [0, 1, 0, 1, 0, 1], l2=0.1), clients=3, by="label")
    >>> [f.N for f in problem.clients], problem.weights.tolist()
    ([2, 2, 2], [0.3333333333333333, 0.3333333333333333, 0.3333333333333333])
    """
    if not isinstance(model, (LinearModel, Cox)):
        raise InputError("split needs a linear model or Cox; give other oracles to Problem.")
    order, row0 = arrangement(model, clients, by, groups=groups, alpha=alpha, seed=seed)
    if weights not in ("rows", "equal"):
        raise InputError(f'weights = "{weights}" is not known; use "rows" or "equal".')
    sizes = np.diff(row0)
    if isinstance(model, Cox):
        models = [model.take(np.sort(rows)) for rows in np.split(order, row0[1:-1])]
        about = {"split": by, "weights": weights, **(info or {})}
        w = sizes if weights == "rows" else np.ones(len(sizes))
        return Problem(models, w / w.sum(), batch=batch, smoothness=smoothness, info=about)
    # Counts of rows where all row weights are equal: they are exact, sums of weights are not.
    total = sums(model.s[order], row0)
    share = sizes.astype(np.float64) if np.ptp(model.s) == 0 else total
    if share.min() <= 0:
        raise InputError(f"every row of client {int(np.argmin(share))} has the weight zero; leave these rows out.")
    w = share if weights == "rows" else np.ones(len(sizes))
    whole = model
    if weights == "equal":  # the row weights under which the whole is the weighted sum of the shards
        s = np.empty(model.N)
        s[order] = np.repeat(w / w.sum(), sizes) * model.s[order] / np.repeat(total, sizes)
        whole = model.reweighted(s)
    about = {"split": by, "weights": weights, **(info or {})}
    return Problem(Packed.of(model, order, row0), w, batch=batch, smoothness=smoothness, whole=whole, info=about)


def arrangement(
    model: LinearModel | Cox,
    clients: int | None,
    by: str,
    *,
    groups: npt.ArrayLike | None = None,
    alpha: float = 0.5,
    seed: int = 0,
) -> tuple[Indices, Indices]:
    """(order, row0): client i has rows order[row0[i]] to order[row0[i + 1] - 1]."""
    N, labels = model.N, model.time if isinstance(model, Cox) else model.b
    if not isinstance(by, str):
        raise InputError('by is a word such as "label"; give a column of groups as groups=..., with by="group".')
    if groups is not None and by != "group":
        raise InputError(f'groups= needs by="group", but by is "{by}".')
    if clients is None and by != "group":
        raise InputError("the number of clients is missing; give clients=.")
    if clients is not None and theory.whole("clients", clients) > N:
        raise InputError(f"{clients} clients cannot share {N} rows; choose from 1 to {N} clients.")
    rng = generator(theory.whole_seed(seed))
    if by == "group":
        return _by_group(groups, clients, N)
    assert clients is not None
    row0 = even_cuts(N, clients)
    if by == "label":
        return np.argsort(labels, kind="stable"), row0
    if by == "contiguous":
        return np.arange(N), row0
    if by == "iid":
        owner = np.empty(N, np.int64)
        owner[rng.permutation(N)] = np.repeat(np.arange(clients), np.diff(row0))
        return _by_owner(owner, clients)
    if by == "dirichlet":
        return _dirichlet(labels, clients, alpha, rng)
    raise InputError(f'split "{by}" is not known; use label, iid, dirichlet, contiguous or group.')


def even_cuts(N: int, n: int) -> Indices:
    """Parts of almost equal size: client i has rows floor(i N/n) to floor((i+1) N/n) - 1."""
    return np.asarray(np.arange(n + 1) * N // n, dtype=np.int64)


def _by_owner(owner: Indices, n: int) -> tuple[Indices, Indices]:
    """The rows of each client in the order of the file."""
    counts = np.bincount(owner, minlength=n)
    return np.argsort(owner, kind="stable"), np.concatenate([[0], np.cumsum(counts)])


def _by_group(groups: npt.ArrayLike | None, clients: int | None, N: int) -> tuple[Indices, Indices]:
    """The rows sorted by group, cut between groups or into equal parts."""
    if groups is None:
        raise InputError("split by group needs groups=, one for each row; without them choose label, iid or dirichlet.")
    g = np.asarray(groups)
    if g.shape != (N,):
        raise InputError(f"the group column has shape {g.shape} but there are {N} rows.")
    try:
        missing = bool(np.any(g != g))
        order = np.argsort(g, kind="stable")
    except TypeError:  # None, or text beside numbers
        missing = True
    if missing:
        raise InputError("the group column has missing or mixed values; give a number or a text for every row.")
    if clients is not None:
        return order, even_cuts(N, clients)
    _, starts = np.unique(g[order], return_index=True)
    return order, np.append(starts, N)


def _dirichlet(
    labels: Array, n: int, alpha: float, rng: np.random.Generator, tries: int = 100
) -> tuple[Indices, Indices]:
    """Each label dealt to the clients in random proportions; drawn again if a client gets no rows."""
    if not (np.isfinite(alpha) and alpha > 0):
        raise InputError(f"alpha = {alpha} of the Dirichlet split must be positive.")
    if not np.isfinite(labels).all():
        raise InputError("the Dirichlet split needs a label for every row, and some are nan or infinite.")
    owner = np.empty(len(labels), np.int64)
    for _ in range(tries):
        for label in np.unique(labels):
            rows = rng.permutation(np.flatnonzero(labels == label))
            # the shares of the clients as cuts of the shuffled rows of this label.
            bounds = np.round(np.cumsum(rng.dirichlet(np.full(n, alpha)))[:-1] * len(rows)).astype(np.int64)
            owner[rows] = np.searchsorted(bounds, np.arange(len(rows)), side="right")
        if np.bincount(owner, minlength=n).all():
            return _by_owner(owner, n)
    raise InputError(f"Dirichlet({alpha:g}) left a client without rows; use fewer clients or a larger alpha.")
