"""Networks without a server: graphs with a mixing matrix W; a gossip step is  x_i = sum_j W_ij x_j,  ``graph.mix(X)``.

``W`` must be symmetric, doubly stochastic and connected. Its smallest eigenvalue may be negative, as for Metropolis
weights on a ring: the method only needs ``tau <= p / (gamma * lmax)``. A matrix that lacks one of the three properties
usually gives a wrong answer without warning, so it is refused here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import scipy

from proxskip.support.randomness import python_generator
from proxskip.types import Array, Indices, InputError, Matrix

if TYPE_CHECKING:
    import networkx

__all__ = ["Graph", "as_graph", "from_matrix", "graph", "mixing_matrix"]

TOLERANCE = 1e-12
"""The accepted rounding error of symmetry, row sums and non-negative weights; also the smallest delta."""
NAMES = ("ring", "path", "star", "grid", "torus", "hypercube", "complete", "erdos-renyi", "regular")
Step = tuple[Indices | slice, Indices, Array]
"""Step k of mixing: the rows of W with a k-th entry, its column in each row, and its weight."""
MAX_DRAWS = 100
"""The most random graphs drawn to find a connected one."""


@dataclass(frozen=True, slots=True, eq=False)
class Graph:
    """A communication graph with its mixing matrix, checked and read-only.

    Args:
        name: for summaries.
        W: the mixing matrix: symmetric, with rows that sum to one.
        failure: the probability that a link fails in a round, see ``failing``.
    """

    name: str
    W: Array = field(repr=False)
    n: int = field(init=False)
    delta: float = field(init=False)
    """The spectral gap: one minus the second largest eigenvalue of W."""
    lmax: float = field(init=False)
    """The largest eigenvalue of I - W: at most one when W is positive semi-definite, never above two."""
    edges: int = field(init=False)
    """The number of pairs of neighbors."""
    indptr: Indices = field(init=False, repr=False)
    """Row i of W without its zeros: ``indices`` and ``weights`` from ``indptr[i]`` to ``indptr[i + 1]``."""
    indices: Indices = field(init=False, repr=False)
    weights: Array = field(init=False, repr=False)
    _steps: list[Step] = field(init=False, repr=False)
    failure: float = 0.0
    """The probability with which each link fails in a round, independently of all others."""

    def __post_init__(self) -> None:
        W = _dense(self.W)
        _check_weights(W)
        _check_connected(W)
        if not 0 <= self.failure < 1:
            raise InputError(f"the failure probability {self.failure} of the links must lie in [0, 1).")
        # in increasing order; the last one is 1
        eigenvalues = np.linalg.eigvalsh(W)
        # an edge both ways, even if rounding left one of its weights zero
        linked = (W != 0) | (W.T != 0)
        rows = scipy.sparse.csr_array(W)
        derived: dict[str, Any] = {
            "W": W,
            "n": len(W),
            "delta": float(1 - eigenvalues[-2]),
            "lmax": float(1 - eigenvalues[0]),
            "edges": int(np.count_nonzero(np.triu(linked, k=1))),
            "indptr": rows.indptr.astype(np.int64),
            "indices": rows.indices.astype(np.int64),
            "weights": rows.data.copy(),
        }
        derived["_steps"] = _steps(derived["indptr"], derived["indices"], derived["weights"])
        for name, value in derived.items():
            if isinstance(value, np.ndarray):
                value.setflags(write=False)
            object.__setattr__(self, name, value)
        if self.delta < TOLERANCE:
            raise InputError(
                f"the graph is almost disconnected (delta = {self.delta:.1e}), so its parts would get different "
                "answers; give the edges between them larger weights."
            )

    @property
    def sigma(self) -> float:
        """The second largest modulus of W's eigenvalues: the factor by which a gossip step reduces disagreement."""
        return max(1.0 - self.delta, self.lmax - 1.0, 0.0)

    @property
    def directed_edges(self) -> int:
        """The cost of a gossip step: one vector along each edge in each direction."""
        return 2 * self.edges

    messages = directed_edges

    def floats(self, d: int) -> int:
        return self.directed_edges * d

    def failing(self, p: float) -> Graph:
        """The same graph with links that fail independently, each with probability p in every round.

        Both ends notice a failed link, and keep its weight at home in that round.

        >>> graph("ring", 8).failing(0.2).name
        'ring, failing 0.2'
        """
        return Graph(f"{self.name}, failing {p:g}", self.W, failure=p)

    def plain(self) -> dict[str, Any]:
        """Plain data for a run folder."""
        W = scipy.sparse.coo_array(self.W)
        places = {"rows": W.row.tolist(), "columns": W.col.tolist(), "weights": W.data.tolist()}
        return {"name": self.name, "n": self.n, **places} | ({"failure": self.failure} if self.failure else {})

    @staticmethod
    def of(plain: Mapping[str, Any]) -> Graph:
        """From plain data."""
        W = np.zeros((plain["n"], plain["n"]))
        W[plain["rows"], plain["columns"]] = plain["weights"]
        return Graph(plain["name"], W, failure=plain.get("failure", 0.0))

    def mix(self, X: Array) -> Array:
        """One gossip step on an ``(n, d)`` array: row i becomes ``sum_j W_ij X_j``, summed in the order of j."""
        if X.ndim != 2 or len(X) != self.n:
            raise InputError(f"the graph '{self.name}' mixes {self.n} rows, not an array of shape {X.shape}.")
        # a compiled sparse product may fuse multiply and add, which changes the last bit
        mixed = np.zeros_like(X, dtype=np.float64, order="C")
        for at, heard, weights in self._steps:
            mixed[at] += weights * X[heard]
        return mixed


def mixing_matrix(graph: networkx.Graph, psd: bool = False) -> Array:
    """Metropolis weights ``W_ij = 1 / (1 + max(deg_i, deg_j))`` on the edges, the rest on the diagonal.

    Client i is node i if the nodes are 0 to n - 1, and otherwise the i-th node. Self-loops are ignored.

    Args:
        graph: an undirected graph of networkx.
        psd: return ``(I + W) / 2``, which has no negative eigenvalue and half the spectral gap.
    """
    if graph.is_directed():
        raise InputError("gossip needs an undirected graph; pass graph.to_undirected().")
    n = len(graph)
    nodes = range(n) if set(graph) == set(range(n)) else list(graph)
    place = {node: i for i, node in enumerate(nodes)}
    linked = np.zeros((n, n), dtype=bool)
    for u, v in graph.edges():
        linked[place[u], place[v]] = linked[place[v], place[u]] = place[u] != place[v]
    # clients can agree on Metropolis weights themselves: they only need the degrees of two neighbors
    degree = linked.sum(axis=1)  # without the client itself
    shares = 1 + np.maximum.outer(degree, degree)
    W = np.where(linked, 1.0 / shares, 0.0)
    np.fill_diagonal(W, [_rest(shares[i, linked[i]]) for i in range(n)])
    return 0.5 * (np.eye(n) + W) if psd else W


def from_matrix(W: npt.ArrayLike, name: str = "given") -> Graph:
    """The graph of a mixing matrix: clients i and j are neighbors where ``W_ij`` is not zero.

    Args:
        W: symmetric, with rows that sum to one.
        name: for summaries.
    """
    return Graph(name, W)  # type: ignore[arg-type]


def graph(name: str, n: int, *, seed: int = 0, psd: bool = False) -> Graph:
    """A graph by name, with Metropolis weights.

    >>> graph("ring", 8).edges, graph("erdos-renyi:0.5", 10, seed=1).n
    (8, 10)

    Args:
        name: ring, path, star, grid, torus, hypercube, complete, erdos-renyi[:probability], regular[:degree].
        seed: of the two random ones, which are drawn until one is connected.
        psd: use ``(I + W) / 2``.
    """
    kind, colon, number = name.partition(":")
    if kind not in NAMES:
        raise InputError(f"there is no graph '{kind}'; use {', '.join(NAMES)}.")
    if n < 2:
        raise InputError(f"a graph needs at least two clients, not {n}.")
    if kind in ("erdos-renyi", "regular"):
        usual = 4.0 if kind == "regular" else min(1.0, 2 * math.log(n) / n)
        network = _random(kind, n, _number(name, number) if colon else usual, seed)
    elif colon:
        raise InputError(f"the graph '{kind}' takes no number; write '{kind}' instead of '{name}'.")
    else:
        network = _fixed(kind, n)
    return from_matrix(mixing_matrix(network, psd), name)


def as_graph(obj: Any, n: int, seed: int = 0) -> Graph:
    """A graph over n clients from a Graph, a name, a networkx graph or a mixing matrix.

    A name may end with ",failing:p".

    Args:
        obj: what describes the graph.
        n: the number of clients.
        seed: of a random graph.
    """
    if isinstance(obj, str):
        name, comma, failing = obj.partition(",failing:")
        g = graph(name, n, seed=seed)
        return g.failing(_number(obj, failing)) if comma else g
    if isinstance(obj, Graph):
        g = obj
    elif hasattr(obj, "is_directed"):  # networkx, without importing it
        g = from_matrix(mixing_matrix(obj), obj.name or "given")
    else:
        g = from_matrix(obj)
    if g.n != n:
        raise InputError(f"the graph '{g.name}' has {g.n} nodes but there are {n} clients.")
    return g


def _fixed(kind: str, n: int) -> networkx.Graph:
    """A graph that n determines; a grid or torus is as square as n allows."""
    import networkx as nx

    if kind in ("grid", "torus"):
        a = max(a for a in range(1, math.isqrt(n) + 1) if n % a == 0)
        if a == 1:
            raise InputError(f"a {kind} cannot have a prime number of clients such as {n}; use another number.")
        return nx.grid_2d_graph(a, n // a, periodic=kind == "torus")
    if kind == "hypercube":
        if n.bit_count() != 1:
            raise InputError(f"a hypercube needs a power of two clients, not {n}.")
        return nx.hypercube_graph(n.bit_length() - 1)
    makers = {"ring": nx.cycle_graph, "path": nx.path_graph, "complete": nx.complete_graph}
    return nx.star_graph(n - 1) if kind == "star" else makers[kind](n)


def _random(kind: str, n: int, number: float, seed: int) -> networkx.Graph:
    """A connected random graph of this degree or edge probability."""
    import networkx as nx

    if kind == "regular" and not (number in range(1, n) and n * number % 2 == 0):
        raise InputError(f"no graph on {n} clients has degree {number:g}: use one below n with n * degree even.")
    if kind == "erdos-renyi" and not 0 < number <= 1:
        raise InputError(f"the probability of an edge must lie in (0, 1], not {number:g}.")
    rng = python_generator(seed)
    for _ in range(MAX_DRAWS):
        regular = kind == "regular"
        network = nx.random_regular_graph(int(number), n, rng) if regular else nx.gnp_random_graph(n, number, rng)
        if nx.is_connected(network):
            return network
    enough = "a degree of 3 or more" if kind == "regular" else f"more than log(n)/n = {math.log(n) / n:.2g}"
    raise InputError(f"none of {MAX_DRAWS} draws of '{kind}:{number:g}' on {n} clients was connected; use {enough}.")


def _number(name: str, number: str) -> float:
    try:
        return float(number)
    except ValueError:
        raise InputError(f"in the graph '{name}' the part after the colon must be a number.") from None


def _rest(shares: Indices) -> float:
    """``1 - sum_j 1/shares_j``, rounded only once, so the complete graph has exactly 1/n everywhere."""
    kinds, counts = np.unique(shares, return_counts=True)
    return float(1 - sum(Fraction(int(c), int(k)) for c, k in zip(counts, kinds, strict=True)))


def _steps(indptr: Indices, indices: Indices, weights: Array) -> list[Step]:
    """The CSR rows cut into steps: step k adds the k-th entry of every row that has one."""
    entries = np.diff(indptr)
    steps: list[Step] = []
    for k in range(entries.max()):
        rows = np.flatnonzero(entries > k)
        at = indptr[rows] + k
        steps.append((slice(None) if len(rows) == len(entries) else rows, indices[at], weights[at, None]))
    return steps


def _dense(W: Matrix) -> Array:
    """W, dense or sparse, as a new square float array."""
    values = W.toarray() if hasattr(W, "toarray") else W
    try:
        if values is None or np.iscomplexobj(values):
            raise TypeError
        dense = np.array(values, dtype=np.float64, order="C")
    except (TypeError, ValueError):
        raise InputError(f"a graph is a name, a networkx graph or a real matrix, not {type(W).__name__}.") from None
    if dense.ndim != 2 or dense.shape[0] != dense.shape[1]:
        raise InputError(f"a mixing matrix must be square, not of shape {dense.shape}.")
    return dense


def _check_weights(W: Array) -> None:
    """Refuse a W that is not symmetric, non-negative and stochastic, and say where."""
    if len(W) < 2:
        raise InputError(f"a graph needs at least two clients, not {len(W)}.")
    if not np.isfinite(W).all():
        i, j = np.argwhere(~np.isfinite(W))[0]
        raise InputError(f"W[{i}, {j}] = {W[i, j]} in the mixing matrix; weights must be finite.")
    i, j = np.unravel_index(W.argmin(), W.shape)
    if W[i, j] < -TOLERANCE:
        raise InputError(f"W[{i}, {j}] = {W[i, j]:.6g} in the mixing matrix; no weight may be negative.")
    gap = np.abs(W - W.T)
    i, j = np.unravel_index(gap.argmax(), gap.shape)
    if gap[i, j] > TOLERANCE:
        raise InputError(
            f"the mixing matrix is not symmetric: W[{i}, {j}] = {W[i, j]:.6g}, W[{j}, {i}] = {W[j, i]:.6g}, "
            f"{gap[i, j]:.2e} apart; give each edge the same weight both ways, or the answer is wrong."
        )
    with np.errstate(over="ignore"):  # finite weights may sum to infinity, which is refused below
        sums = W.sum(axis=1)
    row = int(np.abs(sums - 1).argmax())
    if abs(sums[row] - 1) > TOLERANCE:
        raise InputError(
            f"row {row} of the mixing matrix sums to {sums[row]:.15g}, not one; "
            "set each W[i, i] to one minus the rest of its row."
        )


def _check_connected(W: Array) -> None:
    from scipy.sparse import csgraph

    parts, _ = csgraph.connected_components(scipy.sparse.csr_array(W), directed=False)
    if parts > 1:
        raise InputError(
            f"the graph is not connected: its {parts} parts would converge to different, wrong answers; add edges "
            "between them."
        )
