"""When a round with missing clients counts: the rule of the protocol's server, and of runs over a simulated network.

A ticket closes with the clients that answered. It commits if they are enough: they are averaged, and exactly they hear
the outcome. Otherwise it is void: nobody is counted, and the round is tried again, with another cohort where cohorts
are drawn, until it was void too often in a row.
"""

from __future__ import annotations

from proxskip.interfaces import Method
from proxskip.links.cohorts import Everyone, Participation
from proxskip.problems.federated import Problem
from proxskip.randomness import stream
from proxskip.types import Indices, InputError

LEAST = 2
"""Fewest clients that close a round."""
PATIENCE = 5
"""Void attempts in a row after which a run ends."""


def way_to_close(method: Method, problem: Problem, closing: str | None, cohort: Participation) -> str:
    """``deadline`` or ``everyone``: what was asked for, or the first where the method can; a misfit is refused."""
    can = "cohort" in method.handles and (problem.psi is None or method.about.psi_on_cohorts)
    # what heals with everybody, and has nothing that could be restored from the others', must have everybody
    restorable = method.about.summed in method.remembers or not method.about.heals
    # what heals without an h waits for everybody, unless cohorts are drawn
    waits = method.about.heals and "h" not in method.remembers and isinstance(cohort, Everyone)
    rule = closing or ("deadline" if can and restorable and not waits else "everyone")
    if rule == "deadline" and "cohort" in method.handles and not restorable:
        raise InputError(
            f'{method.name} cannot restore what a client lost unless all clients are averaged; use closing="everyone".'
        )
    if rule not in ("deadline", "everyone"):
        raise InputError(f'closing = "{rule}" must be "deadline" or "everyone".')
    if rule == "everyone" and not isinstance(cohort, Everyone):
        raise InputError('cohorts close at their deadline; use closing="deadline".')
    return rule


def fewest(method: Method, least: int, n: int) -> int:
    """The fewest clients that close a round of this method; more than a cohort has means all of it."""
    return n if method.about.needs_whole_cohort else min(least, n)


def asked_in(cohort: Participation, seed: int, round: int, void: int, n: int) -> Indices:
    """Who is asked in this round; others after it was void, since one of them may be gone for good."""
    # without void attempts the draw is that of a run in which nobody fails, bit for bit
    return cohort.draw(stream(seed, round + (void << 40), "cohort"), n, round)


def commits(asked: int, answered: int, whole: bool, least: int) -> bool:
    """Whether a ticket counts that this many of those asked have answered; otherwise it is void.

    Args:
        whole: all of them are needed: always with closing="everyone", and in the second exchange of a round, whose
            cohort is that of the first.
    """
    return 0 < answered >= least and (answered == asked or not whole)
