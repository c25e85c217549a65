"""One family: in the corners of their parameters the methods are one another, or obey their theorem."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from proxskip.experiments import claims
from proxskip.experiments.workspace import Workspace
from proxskip.links.graphs import graph
from proxskip.methods import DecentralizedScaffnew, GradSkip, LoCoDL, RandomGossip, Scaffnew, ScaffnewVR, Tamuna, steps
from proxskip.problems.federated import Problem
from proxskip.randomness import stream
from proxskip.report.figures import Claim, Experiment, Table
from proxskip.run import run as run_method
from proxskip.types import Array

P = 0.2
Ends = dict[int, Array]
"""The communicated x by the number of rounds."""


def ends(method: Any, problem: Problem, rounds: Any) -> Ends:
    """x after each of these numbers of rounds."""
    return {r: run_method(method, problem, rounds=r, every=r, allow_unsafe_step=True).x for r in rounds}


def published_decentralized(problem: Problem, rounds: Any, chi: float) -> Ends:
    """The stochastic decentralized method of arXiv:2310.07983 as published, from the same coins.

    Y. Guo, S. Alghunaim, K. Yuan, L. Condat, J. Cao, 2023:
    z = x - gamma g(x) - y;  with probability p  x+ = (I - (I - W)/(2 chi)) z,  else x+ = z;  y+ = y + p (z - x+).
    """
    W, gamma = graph("ring", problem.n).W, 0.5 / problem.L_max
    x, y, out = np.zeros((problem.n, problem.d)), np.zeros((problem.n, problem.d)), {}
    for r in range(max(rounds)):
        K = steps.geometric(stream(0, r, "server"), P)
        for k in range(K):
            z = x - gamma * np.stack([f.gradient(v) for f, v in zip(problem.clients, x, strict=True)]) - y
            x = z - (z - W @ z) / (2 * chi) if k == K - 1 else z
            y = y + P * (z - x)
        if r + 1 in rounds:
            out[r + 1] = x.mean(axis=0)
    return out


def pairs(problem: Problem, rounds: Any) -> dict[str, tuple[str, Callable[[], tuple[Ends, Ends]]]]:
    """For each reduction: its text, and both sides."""
    n, gamma = problem.n, 1 / problem.L_max
    random = RandomGossip.theory(problem, "ring", p_e=1.0)
    fixed = DecentralizedScaffnew(random.gamma, 1.0, random.tau, random.graph)
    ring = DecentralizedScaffnew(gamma / 2, P, P / (2 * 1.5 * gamma / 2), graph("ring", n))
    scaffnew = Scaffnew(gamma, P)

    def both(a: Any, b: Any) -> Callable[[], tuple[Ends, Ends]]:
        return lambda: (ends(a, problem, rounds), ends(b, problem, rounds))

    return {
        "tamuna": ("TAMUNA with c = s = n is Scaffnew", both(Tamuna(gamma, P, n, 1.0), scaffnew)),
        "gradskip": ("GradSkip with q_i = 1 is Scaffnew", both(GradSkip(gamma, P, (1.0,) * n), scaffnew)),
        "vr": ("Scaffnew-VR with full batches is Scaffnew", both(ScaffnewVR(gamma, P, 0.5), scaffnew)),
        "gossip": ("Random gossip with p_e = 1 and no mask is its deterministic form", both(random, fixed)),
        "stochastic": (
            "The stochastic decentralized method of arXiv:2310.07983 is Decentralized Scaffnew",
            lambda: (published_decentralized(problem, rounds, 1.5), ends(ring, problem, rounds)),
        ),
    }


def difference(a: Ends, b: Ends) -> float:
    """The largest difference, relative to the largest entry."""
    return max(float(np.abs(a[r] - b[r]).max() / np.abs(b[r]).max()) for r in b)


def excess(problem: Problem, seeds: int, rounds: int) -> float:
    """LoCoDL without compression: the largest mean over the seeds of Psi_T/(rate^T Psi_0), at most 1 by its theorem.

    T is the iteration of a communication. Psi_t/rate^t is a supermartingale, so that this holds at such times too.
    """
    method = LoCoDL.theory(problem, "identity")
    zeta = method.claims(problem).zeta
    assert zeta is not None
    ratios = []
    for seed in range(seeds):
        trace = run_method(method, problem, rounds=rounds, seed=seed, every=1).trace
        psi, T = trace["lyapunov"], trace["iterations"]
        ratios.append(psi[1:] / psi[0] * (1 - zeta) ** -T[1:])
    return float(np.mean(ratios, axis=0).max())


def compute(workspace: Workspace, asked: Mapping[str, Any]) -> float:
    """One reduction."""
    problem = workspace.problem(**asked["problem"])
    if asked["name"] == "locodl":
        return excess(problem, asked["seeds"], max(asked["rounds"]))
    _, sides = pairs(problem, asked["rounds"])[asked["name"]]
    return difference(*sides())


def run(workspace: Workspace) -> tuple[Experiment, list[Claim]]:
    """A claim for each of them."""
    asked = workspace.preset
    flags = {k: asked[k] for k in ("l2", "l2_relative", "split", "weights", "clients")}
    about = {"problem": flags, "rounds": asked["rounds"], "seeds": asked["seeds"]}
    texts = {name: text for name, (text, _) in pairs(workspace.problem(**flags), asked["rounds"]).items()}
    found = workspace.cached_values("reductions", [about | {"name": name} for name in (*texts, "locodl")], compute, 1.0)
    made, tolerance = [], asked["tolerance"]
    for (name, text), value in zip(texts.items(), found[:-1], strict=True):
        said, ok = f"The largest difference is {value:.1e}", value <= tolerance
        made.append(claims.claim(f"reductions-{name}", f"{text}, to {tolerance:g}.", ok, said, {name: value}))
    text = "LoCoDL without compression contracts as its theorem says, in the mean over the seeds."
    said = f"Psi is at most {found[-1]:.2f} of the bound"
    made.append(claims.claim("reductions-locodl", text, found[-1] <= 1 + 1e-9, said, {"share of the bound": found[-1]}))
    rows: list[list[Any]] = [[text, value] for text, value in zip(texts.values(), found, strict=False)]
    after = ", ".join(map(str, asked["rounds"]))
    table = Table("reductions", f"Largest relative difference of x after {after} rounds",
                  ["reduction", "difference"], rows)  # fmt: skip
    return claims.with_findings(workspace.experiment("reductions", about | {"tolerance": tolerance}, [], [table]), made)
