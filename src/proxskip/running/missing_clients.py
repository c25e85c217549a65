"""When a round with missing clients counts, in federations and over simulated networks.

A ticket closes with the clients that answered. If they are enough it commits: they are averaged, and exactly they hear
the outcome. Otherwise it is void: nobody is counted, and the round is tried again (with a new cohort if cohorts are
drawn), until it was void too often in a row.
"""

from __future__ import annotations

from proxskip.core.method import Method
from proxskip.participation import Everyone, Participation
from proxskip.problems.federated import Problem
from proxskip.support.randomness import stream
from proxskip.types import Indices, InputError

LEAST = 2
"""The fewest clients that close a round."""
PATIENCE = 5
"""The most void attempts in a row before a run ends."""


def way_to_close(method: Method, problem: Problem, closing: str | None, cohort: Participation) -> str:
    """``deadline`` or ``everyone``: the user's choice, or by default the first where the method allows it."""
    if closing is None:
        closing = "deadline" if _may_miss_clients(method, problem, cohort) else "everyone"
    elif closing not in ("deadline", "everyone"):
        raise InputError(f'closing = "{closing}" must be "deadline" or "everyone".')
    elif closing == "deadline" and "cohort" in method.handles and not _can_restore(method):
        raise InputError(
            f'{method.name} can only restore a lost client by averaging all of them; use closing="everyone".'
        )
    if closing == "everyone" and not isinstance(cohort, Everyone):
        raise InputError('closing="everyone" cannot be combined with cohorts; use closing="deadline".')
    return closing


def _may_miss_clients(method: Method, problem: Problem, cohort: Participation) -> bool:
    """Whether a round of this method counts, by default, without the clients that did not answer."""
    if "cohort" not in method.handles or not _can_restore(method):
        return False
    if problem.psi is not None and "cohort+psi" not in method.handles:
        return False
    # a method that repairs itself with all clients, and keeps no h, has no reason to go on without some of them
    repairs_without_h = method.about.heals and "h" not in method.remembers
    return not (repairs_without_h and isinstance(cohort, Everyone))


def _can_restore(method: Method) -> bool:
    """Whether a client that lost its memory can have it back from what the others remember."""
    return method.about.summed in method.remembers or not method.about.heals


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
