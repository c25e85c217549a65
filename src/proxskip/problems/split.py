"""Splitting the rows of a linear model among clients, which gives a federated problem."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from proxskip.problems.federated import LKind, Problem
from proxskip.problems.glm import LinearModel
from proxskip.randomness import generator
from proxskip.types import Array, Indices, InputError

By = Literal["label", "iid", "dirichlet", "contiguous", "group"]


def split(
    model: LinearModel,
    clients: int | None = None,
    by: By = "label",
    *,
    weights: Literal["rows", "equal"] = "rows",
    L: LKind = "max",
    groups: npt.ArrayLike | None = None,
    alpha: float = 0.5,
    seed: int = 0,
    batch: int | None = None,
    info: dict[str, Any] | None = None,
) -> Problem:
    """Split the rows of a model among clients.

    Args:
        clients: the number of clients.
        by: "label" sorts by label (stable) and cuts, "contiguous" cuts the rows in their order, "iid" shuffles and
            cuts, "dirichlet" splits each label in proportions drawn from Dirichlet(alpha), "group" sorts by ``groups``
            and cuts, or makes one client per group if ``clients`` is not given.
        weights: "rows" weights each client by its rows, so that the problem is that of the whole data set; "equal"
            gives every client the weight 1/n.
        L: which smoothness constant ``problem.L`` is, see ``Problem``.
        groups: an integer per row, for ``by="group"``.
        alpha: the concentration of the Dirichlet split; the smaller, the more the clients differ.
        seed: of the random splits.
        batch: rows of a minibatch, see ``Problem``.

    >>> import numpy as np
    >>> from proxskip.problems.glm import Logistic
    >>> problem = split(Logistic(np.eye(6), [0, 1, 0, 1, 0, 1], l2=0.1), clients=3, by="label")
    >>> [f.N for f in problem.clients], problem.weights.tolist()
    ([2, 2, 2], [0.3333333333333333, 0.3333333333333333, 0.3333333333333333])
    """
    if not isinstance(model, LinearModel):
        raise InputError(
            "split needs a model with rows (Logistic, LeastSquares, Softmax); give other oracles to Problem."
        )
    parts = partition(model, clients, by, groups=groups, alpha=alpha, seed=seed)
    if weights not in ("rows", "equal"):
        raise InputError(f'weights = "{weights}" is not known; use "rows" or "equal".')
    # Counts of rows where all row weights are equal: they are exact, sums of weights are not.
    share = np.array([float(len(p)) if np.ptp(model.s) == 0 else float(model.s[p].sum()) for p in parts])
    if share.min() <= 0:
        raise InputError(f"every row of client {int(np.argmin(share))} has the weight zero; leave these rows out.")
    w = share if weights == "rows" else np.ones(len(parts))
    # The row weights under which the whole is the weighted sum of the shards.
    s = np.empty(model.N)
    for p, wi in zip(parts, w / w.sum(), strict=True):
        s[p] = wi * model.s[p] / model.s[p].sum()
    whole = model if weights == "rows" else model.reweighted(s)
    about = {"split": by, "weights": weights, "l2_relative": model.l2_relative, **(info or {})}
    return Problem(model.deal(parts), w, batch=batch, L_kind=L, whole=whole, info=about)


def partition(
    model: LinearModel,
    clients: int | None,
    by: str,
    *,
    groups: npt.ArrayLike | None = None,
    alpha: float = 0.5,
    seed: int = 0,
) -> list[Indices]:
    """The rows of each client."""
    N = model.N
    if clients is None and by != "group":
        raise InputError("the number of clients is missing.")
    if clients is not None and (isinstance(clients, bool) or not isinstance(clients, (int, np.integer))):
        raise InputError(f"clients = {clients!r} must be a whole number.")
    if clients is not None and not 1 <= clients <= N:
        raise InputError(f"{clients} clients cannot share {N} rows; choose from 1 to {N} clients.")
    rng = generator(seed)
    if by == "group":
        return _by_group(groups, clients, N)
    assert clients is not None
    if by == "label":
        return cut(np.argsort(model.b, kind="stable"), clients)
    if by == "contiguous":
        return cut(np.arange(N), clients)
    if by == "iid":
        # Sorted within each client, so that a client reads its rows in the order of the file.
        return [np.sort(p) for p in cut(rng.permutation(N), clients)]
    if by == "dirichlet":
        return _dirichlet(model.b, clients, alpha, rng)
    raise InputError(f'split "{by}" is not known; use label, iid, dirichlet, contiguous or group.')


def cut(order: Indices, n: int) -> list[Indices]:
    """Contiguous parts of almost equal size: client i has rows floor(i N/n) to floor((i+1) N/n) - 1."""
    N = len(order)
    return [order[i * N // n : (i + 1) * N // n] for i in range(n)]


def _by_group(groups: npt.ArrayLike | None, clients: int | None, N: int) -> list[Indices]:
    """The rows sorted by group, cut between groups or into equal parts."""
    if groups is None:
        raise InputError(
            "split by group needs a group column; this data set has none, so choose label, iid or dirichlet."
        )
    g = np.asarray(groups)
    if g.shape != (N,):
        raise InputError(f"the group column has shape {g.shape} but there are {N} rows.")
    order = np.argsort(g, kind="stable")
    if clients is not None:
        return cut(order, clients)
    _, starts = np.unique(g[order], return_index=True)
    return list(np.split(order, starts[1:]))


def _dirichlet(labels: Array, n: int, alpha: float, rng: np.random.Generator, tries: int = 100) -> list[Indices]:
    """Each label dealt to the clients in random proportions; drawn again if a client gets no rows."""
    if not (np.isfinite(alpha) and alpha > 0):
        raise InputError(f"alpha = {alpha} of the Dirichlet split must be positive.")
    for _ in range(tries):
        parts: list[list[Indices]] = [[] for _ in range(n)]
        for label in np.unique(labels):
            rows = rng.permutation(np.flatnonzero(labels == label))
            # The shares of the clients as cuts of the shuffled rows of this label.
            bounds = np.round(np.cumsum(rng.dirichlet(np.full(n, alpha)))[:-1] * len(rows)).astype(np.int64)
            for part, piece in zip(parts, np.split(rows, bounds), strict=True):
                part.append(piece)
        out = [np.sort(np.concatenate(p)) for p in parts]
        if all(len(p) for p in out):
            return out
    raise InputError(
        f"Dirichlet({alpha:g}) left a client without rows {tries} times; use fewer clients or a larger alpha."
    )
