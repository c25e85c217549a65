"""When a round with missing clients counts, in federations and over simulated networks.

A ticket closes with the clients that answered. If they are enough it commits: they are averaged, and exactly they hear
the outcome. Otherwise it is void: nobody is counted, and the round is tried again (with a new cohort if cohorts are
drawn), until it was void too often in a row.
"""

from __future__ import annotations

from proxskip.interfaces import Method
from proxskip.links.cohorts import Everyone, Participation
from proxskip.problems.federated import Problem
from proxskip.randomness import stream
from proxskip.types import Indices, InputError

LEAST = 2
"""The fewest clients that close a round."""
PATIENCE = 5
"""The most void attempts in a row before a run ends."""


def way_to_close(method: Method, problem: Problem, closing: str | None, cohort: Participation) -> str:
    """``deadline`` or ``everyone``: the user's choice, or by default the first where the method allows it."""
    can = "cohort" in method.handles and (problem.psi is None or "cohort+psi" in method.handles)
    # a method that heals but keeps nothing that the others could restore needs all clients
    restorable = method.about.summed in method.remembers or not method.about.heals
    # a method that heals without an h waits for all clients, unless cohorts are drawn
    waits = method.about.heals and "h" not in method.remembers and isinstance(cohort, Everyone)
    rule = closing or ("deadline" if can and restorable and not waits else "everyone")
    if rule == "deadline" and "cohort" in method.handles and not restorable:
        raise InputError(
            f'{method.name} can only restore a lost client by averaging all of them; use closing="everyone".'
        )
    if rule not in ("deadline", "everyone"):
        raise InputError(f'closing = "{rule}" must be "deadline" or "everyone".')
    if rule == "everyone" and not isinstance(cohort, Everyone):
        raise InputError('closing="everyone" cannot be combined with cohorts; use closing="deadline".')
    return rule


def fewest(method: Method, least: int, n: int) -> int:
    """The fewest clients that close a round of this method."""
    return n if method.about.needs_whole_cohort else min(least, n)


def asked_in(cohort: Participation, seed: int, round: int, void: int, n: int) -> Indices:
    """Whom to ask in this round; a new cohort after a void attempt, because a client may be gone for good."""
    # without void attempts, bit for bit the draw of a run in which no client fails
    return cohort.draw(stream(seed, round + (void << 40), "cohort"), n, round)


def commits(asked: int, answered: int, whole: bool, least: int) -> bool:
    """Whether a ticket counts with this many answers; otherwise it is void.

    Args:
        whole: all must answer: with closing="everyone", and in a round's second exchange, whose cohort is that of the
            first.
    """
    return 0 < answered >= least and (answered == asked or not whole)
