"""Partitions of labeled rows among clients, from iid to one label each, and a picture of them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from proxskip import theory
from proxskip.problems.split import arrangement
from proxskip.support.randomness import generator
from proxskip.types import Array, Indices, InputError

OF_LABELS = ("label", "labels", "dirichlet")
"""Partitions that look at the labels."""


def split(
    X: Tensor | npt.ArrayLike,
    y: Tensor | npt.ArrayLike,
    clients: int | None = None,
    by: str = "label",
    *,
    groups: npt.ArrayLike | None = None,
    alpha: float = 0.5,
    labels: int = 2,
    minimum: int = 1,
    seed: int = 0,
) -> list[tuple[Tensor, Tensor]]:
    """Split rows among clients: the (inputs, targets) of each.

    Args:
        X, y: tensors or arrays with one row per sample; y holds the labels.
        clients: the number of clients.
        by: "label" sorts by label and cuts; "labels" gives client i the label i and others,
            ``labels`` of them in all, whose rows are shared equally (NIID-Bench); "dirichlet" deals each label in
            proportions drawn from Dirichlet(alpha); "quantity" deals all rows in such proportions; "power" deals rows
            so that the k-th client has a share proportional to k^-alpha; "iid" shuffles and cuts; "contiguous" cuts the
            rows in their order; "group" goes by ``groups``.
        groups: a number for each row: one client per group, or ``clients`` equal parts of the rows sorted by it.
        alpha: of Dirichlet and the power law. For Dirichlet, the smaller, the more the clients differ.
        labels: labels of each client, for ``by="labels"``.
        minimum: rows that each client has at least; those that have fewer get rows of the largest, drawn at random.
        seed: of the random partitions.
    """
    inputs, targets = torch.as_tensor(X), torch.as_tensor(y)
    if not len(inputs) or len(inputs) != len(targets):
        raise InputError(f"there are {len(inputs)} inputs and {len(targets)} targets; give the same number of both.")
    if by in OF_LABELS and targets.ndim != 1:
        raise InputError(f'by = "{by}" needs one label per row, and y has the shape {tuple(targets.shape)}.')
    if by in OF_LABELS and not bool(torch.isfinite(targets).all()):
        raise InputError(f'by = "{by}" needs a label for every row, and y has values that are not finite.')
    theory.whole("minimum", minimum)
    theory.positive("alpha", alpha)
    rows = _rows(targets.cpu().numpy(), clients, by, groups, alpha, labels, theory.whole_seed(seed))
    rows = _with_minimum(rows, minimum, generator(seed))
    picks = [torch.as_tensor(some, device=inputs.device) for some in rows]
    return [(inputs[some], targets[some.to(targets.device)]) for some in picks]


def _rows(
    y: Array, clients: int | None, by: str, groups: npt.ArrayLike | None, alpha: float, labels: int, seed: int
) -> list[Indices]:
    """The rows of each client."""
    if by not in ("labels", "quantity", "power") or groups is not None:
        model: Any = SimpleNamespace(N=len(y), b=y)
        order, row0 = arrangement(model, clients, by, groups=groups, alpha=alpha, seed=seed)
        return [order[lo:hi] for lo, hi in pairwise(row0)]
    if clients is None or theory.whole("clients", clients) > len(y):
        raise InputError(f"clients = {clients} must be a number from 1 to {len(y)}, the number of rows.")
    rng = generator(seed)
    if by == "labels":
        return _k_labels(y, clients, theory.whole("labels", labels), rng)
    if by == "quantity":
        shares = rng.dirichlet(np.full(clients, alpha))
    else:
        shares = np.arange(1.0, clients + 1) ** -alpha
    cuts = np.round(np.cumsum(shares / shares.sum())[:-1] * len(y)).astype(np.int64)
    return np.split(rng.permutation(len(y)), cuts)


def _k_labels(y: Array, clients: int, k: int, rng: np.random.Generator) -> list[Indices]:
    """NIID-Bench's partition by numbers of labels."""
    kinds = np.unique(y)
    if k > len(kinds):
        raise InputError(f"labels = {k} is more than the {len(kinds)} labels that there are.")
    owners: list[list[int]] = [[] for _ in kinds]
    for i in range(clients):
        first = i % len(kinds)
        others = rng.permutation([j for j in range(len(kinds)) if j != first])[: k - 1]
        for j in (first, *others):
            owners[int(j)].append(i)
    rows: list[list[Indices]] = [[] for _ in range(clients)]
    for label, mine in zip(kinds, owners, strict=True):
        if not mine:
            raise InputError(f"{clients} clients with {k} labels each leave out the label {label}; use more of either.")
        parts = np.array_split(rng.permutation(np.flatnonzero(y == label)), len(mine))
        for i, part in zip(mine, parts, strict=True):
            rows[i].append(part)
    return [np.concatenate(parts) for parts in rows]


def _with_minimum(rows: list[Indices], minimum: int, rng: np.random.Generator) -> list[Indices]:
    """The same rows after those with the most gave some to those that have too few."""
    if minimum * len(rows) > sum(map(len, rows)):
        raise InputError(
            f"{len(rows)} clients cannot have {minimum} rows each; use fewer clients or a smaller minimum."
        )
    rows = list(rows)
    for i in range(len(rows)):
        while len(rows[i]) < minimum:
            largest = int(np.argmax([len(some) for some in rows]))
            count = min(minimum - len(rows[i]), len(rows[largest]) - minimum)
            given = rng.permutation(len(rows[largest]))[:count]
            rows[i] = np.append(rows[i], rows[largest][given])
            rows[largest] = np.delete(rows[largest], given)
    return rows


def plot_split(clients: Sequence[tuple[Tensor, Tensor]], ax: Any = None) -> Any:
    """Draw how many rows of each label each client has; the axes.

    Args:
        clients: what ``split`` returned, or any list of (inputs, targets) with one label per row.
        ax: axes to draw on.
    """
    import matplotlib.pyplot as plt

    labels = [np.asarray(torch.as_tensor(targets).cpu()) for _, targets in clients]
    kinds = np.unique(np.concatenate(labels))
    counts = np.array([[np.count_nonzero(mine == kind) for kind in kinds] for mine in labels])
    axes = plt.subplots()[1] if ax is None else ax
    client, kind = np.nonzero(counts)
    axes.scatter(client, kind, s=150.0 * counts[client, kind] / counts.max())
    axes.set_xlabel("client")
    axes.set_ylabel("label")
    axes.set_yticks(range(len(kinds)), [f"{v:g}" for v in kinds])
    return axes
