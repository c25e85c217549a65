"""Fused lasso on a chain and on a grid, where every dual step is a conversation between neighbors.

    min_x  f(x) + lam sum_{edges (i, j)} |x_i - x_j|  =  f(x) + psi(D x)

Stations hold measurements of their own; f is the sum of their squared errors, weighted by precisions from 1e-4 to 1,
and the level changes at a few places only. A gradient needs no talk; a product with D is an exchange along every edge.
SplitSkip makes that step with probability p, PAPC (which is SplitSkip with p = 1) and PDHG in every iteration.

The theorem asks for the subgradients of psi* to lie in the range of D. For a chain D has full row rank and they do. A
graph with cycles has more edges than D has rank; there no rate is claimed, p is a guess, and the second half shows that
the method arrives at the same point all the same.
"""

from __future__ import annotations

from pathlib import Path

import networkx as nx
import numpy as np
import race
import scipy.sparse
from matplotlib.figure import Figure

import proxskip as ps
from proxskip.prox import L1
from proxskip.support import palette


def stations(level: np.ndarray, rng: np.random.Generator) -> ps.Quadratic:
    """f(x) = 1/2 sum_i a_i (x_i - y_i)^2, the noise of y_i as large as its precision a_i tells, up to a limit."""
    a = rng.permutation(np.geomspace(1e-4, 1.0, len(level)))
    y = level + 0.05 * rng.standard_normal(len(level)) / np.sqrt(a).clip(0.05)
    return ps.Quadratic(np.diag(a), a * y)


def incidence(graph: nx.Graph) -> scipy.sparse.csr_matrix:
    """One row an edge, +1 and -1 at its ends."""
    return scipy.sparse.csr_matrix(nx.incidence_matrix(graph, oriented=True).T)


def solve(small: bool = False) -> list[tuple[race.Race, np.ndarray]]:
    """The two races, each with its truth."""
    n, side, tol = (12, 4, 1e-5) if small else (60, 8, 1e-6)
    rng = np.random.default_rng(3)
    steps = np.sort(rng.choice(np.arange(1, n), 4, replace=False))
    chain = np.repeat(rng.uniform(-1, 1, 5), np.diff([0, *steps, n]))
    grid = np.where(np.add.outer(np.arange(side), np.arange(side)) < side, 0.8, -0.4).ravel()
    net = nx.convert_node_labels_to_integers(nx.grid_2d_graph(side, side))
    out = []
    for title, level, graph, skip in (
        (f"A chain of {n}, where the theorem holds", chain, nx.path_graph(n), {}),
        (f"A grid of {side} x {side}, where no rate is claimed", grid, net, {"p": 0.1}),
    ):
        f, psi = stations(level, rng), L1(0.02)
        methods = {"PAPC": ("papc", {}), "PDHG": ("pdhg", {}), "SplitSkip": ("splitskip", skip)}
        common = {"D": incidence(graph), "max_grad": 4_000_000, "seconds": 60 if small else 8}
        size = tol * float(np.linalg.norm(f.gradient(np.zeros(f.d))))
        out.append((race.Race(title, f, psi, np.zeros(f.d), methods, size, common).run(), level))
    return out


def conclusion(done: race.Race) -> str:
    """Where skipping pays."""
    skip, papc = done.results["SplitSkip"], done.results["PAPC"]
    apart = float(np.max(np.abs(skip.x - papc.x)))
    return (
        f"With p = {skip.parameters['p']:.3g} SplitSkip makes {papc.nprox / skip.nprox:.1f} times fewer exchanges than "
        f"PAPC, for {skip.ngrad / papc.ngrad:.1f} times its gradients; the two points differ by {apart:.1e}. On one "
        f"machine the prox costs {done.cost('PAPC'):.1f} gradients, and SplitSkip is "
        f"{done.faster('PAPC', 'SplitSkip')} times as fast. Skipping pays over a network, where an exchange takes far "
        "longer than a gradient; where the gradients of a step cost more than its exchange, it does not.\n"
    )


def draw(found: list[tuple[race.Race, np.ndarray]], out: Path) -> None:
    """One row per graph: the curves, and the levels that were found."""
    figure = Figure(figsize=(11.5, 6.8), layout="constrained")
    for row, (done, truth) in zip(figure.subplots(2, 3), found, strict=True):
        done.curves(row[:2], ("ngrad", "nprox"))
        row[1].set_xlabel("dual steps: exchanges along every edge")
        order = np.argsort(-truth, kind="stable") if "grid" in done.title else np.arange(len(truth))
        for values, style, label in (
            (truth, {"drawstyle": "steps-mid", "color": palette.GREY}, "the truth"),
            (done.f.b / np.diag(done.f.H), {"linestyle": "", "marker": "+", "color": palette.SKY}, "measured"),
            (done.results["SplitSkip"].x, {"linestyle": "", "marker": ".", "color": palette.ORANGE}, "found"),
        ):
            row[2].plot(values[order], label=label, **style)
        row[2].set_ylim(truth.min() - 0.9, truth.max() + 0.7)
        row[2].set_title(done.title, fontsize=9)
        race.dress(row[2], "station" if "chain" in done.title else "station, in the order of the truth")
        row[2].legend(framealpha=0.9, edgecolor="none", fontsize=8, ncols=3, loc="lower center")
    race.save(figure, out)


def main() -> None:
    o = race.arguments(__doc__, "fused_lasso")
    found = solve(o.small)
    for done, _ in found:
        print(done.table(), conclusion(done), sep="\n")
    draw(found, o.out)


if __name__ == "__main__":
    main()
