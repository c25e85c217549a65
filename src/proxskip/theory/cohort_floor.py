"""How many rounds cohorts need whatever the method's parameters are."""

from __future__ import annotations

import math

from proxskip.theory.numbers import accuracy, whole
from proxskip.types import InputError

__all__ = ["cohort_rounds", "cohort_sentence"]


def cohort_rounds(n: int, c: float, eps: float) -> float:
    """``log(1/eps) / -log(1 - c/n)``, about (n/c) log(1/eps): rounds in which |h - h*|^2 can fall by eps, whatever p.

    With uniform cohorts of c of n clients, a client is in none of R cohorts with probability (1 - c/n)^R. What it
    remembers (its h_i) has not changed until then, so the mean of |h_i - h_i*|^2 is at least (1 - c/n)^R of what it was
    at the start. No choice of p or gamma changes that. It bounds h, not x, and says nothing where h begins at h*, as
    zero does for identical clients. 0 for c = n.

    Args:
        c: clients per round, or their mean number.
    """
    n = whole("n", n)
    if not 0 < c <= n:
        raise InputError(f"a cohort of {c:g} cannot be drawn from {n} clients; choose from 1 to {n}.")
    return math.log(1.0 / accuracy(eps)) / -math.log1p(-c / n) if c < n else 0.0


def cohort_sentence(n: int, c: float, eps: float) -> str:
    """``cohort_rounds`` in words."""
    return (
        f"With cohorts of {c:g} of {n:,} clients the squared error of what clients remember takes about "
        f"(n/c) log(1/eps) rounds whatever p, here {math.ceil(cohort_rounds(n, c, eps)):,} to fall by {eps:.2g}: it "
        "changes only when a client takes part. Only clients that are alike need fewer."
    )
