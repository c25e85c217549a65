"""The demo: every method of the paper on the embedded digits, with the same number of communication rounds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from proxskip.problems.federated import Problem

METHODS = (
    ("gd", "theory"),
    ("local-gd", "figure"),
    ("scaffold", "figure"),
    ("fedlin", "figure"),
    ("s-local-gd", "figure"),
    ("accelerated", "theory"),
    ("decentralized-scaffnew", "theory"),
    ("scaffnew", "theory"),
)
"""Each method and where its step size comes from: its theorem, or the paper's Figure 1b."""
GRAPH = "torus"
FLAGS = ("--data", "digits", "--split", "group", "--clients", "20", "--weights", "equal")


PROX_METHODS = (
    ("proxgd", ()),
    ("accelerated", ()),
    ("sproxskip", ("--batch", "700")),
    ("splitskip", ("--D", "identity")),
    ("proxskip", ()),
)
"""The methods for one function and a prox, each with what it takes besides the common flags."""
PROX_FLAGS = ("--data", "digits", "--clients", "1", "--psi", "l1:0.001")
PROX_TITLE = "The same data as one function, with an l1 norm: how often is the prox evaluated?"


def prox_sentences(found: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """What there is to see in the second part."""
    skip, every, noisy = (found[k] for k in ("proxskip", "proxgd", "sproxskip"))
    return [
        f"With a prox in the place of communication, {skip['prox_evals']} evaluations bring ProxSkip within "
        f"{skip['gap']:.1e} of the optimum and proximal gradient descent within {every['gap']:.1e}.",
        f"SplitSkip with D = I is ProxSkip itself; SProxSkip, with minibatches and a constant step size, stops at a "
        f"noise floor ({noisy['gap']:.1e}).",
    ]


def title(problem: Problem) -> str:
    """Of the table and the picture."""
    return f"Even against odd digits, {problem.n} clients sorted by the digit, kappa = {problem.kappa:,.0f}"


def sentences(found: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """What there is to see, with the numbers of this very run."""
    new, gd, fast, local = (found[k] for k in ("scaffnew", "gd", "accelerated", "local-gd"))
    cautious = [found[k]["gap"] for k in ("scaffold", "fedlin", "s-local-gd")]
    return [
        f"After {new['rounds']} communication rounds Scaffnew is within {new['gap']:.1e} of the optimum; gradient "
        f"descent, which sends exactly as many floats, is still {gd['gap']:.1e} away.",
        f"LocalGD, Scaffold, FedLin and S-Local-GD take as many local steps a round as Scaffnew does on average "
        f"({local['K']}), but divide their step size by that number, and so gain nothing over gradient descent "
        f"({min(cautious):.1e} to {max(*cautious, local['gap']):.1e}).",
        f"Nesterov's accelerated gradient method, without local steps, also needs only about sqrt(kappa) rounds: it is "
        f"the yardstick, at {fast['gap']:.1e} here.",
    ]
