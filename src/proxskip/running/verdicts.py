"""What ends a run: the rules that are asked after every round.

A rule is a function of the run. It returns a ``Verdict``, or None if the run may go on, and it changes nothing. To add
one, write it here and give it a place in ``RULES``. What a rule may look at is listed in ``Standing``. Measurements
belong to this round only if ``is_measured``; a run that ends elsewhere is measured once more, and judged again.

``reached`` and ``exhausted`` are the rules that the user gives (``Stop``), and ``stopped`` is a callback's. The others
compare the run with what its theorem promises (``watch``).
"""

from __future__ import annotations

from collections.abc import Callable
from threading import Event
from typing import Protocol

from proxskip.results.folder import Folder
from proxskip.results.result import Status
from proxskip.running.ledger import Ledger
from proxskip.running.records import Records
from proxskip.running.run_spec import RunSpec
from proxskip.running.simulated_time import Clock
from proxskip.running.stop import Verdict
from proxskip.running.watch import RunWatch, grown
from proxskip.types import Array

MAX_UNDECIDED = 20
"""Records at which rounding may leave a tolerance undecided before the run ends."""


class Standing(Protocol):
    """How a run stands after a round; ``Loop`` is one."""

    spec: RunSpec
    round: int
    """Rounds so far."""
    x: Array
    """The communicated x; between records, where reading it is expensive, that of the last record."""
    records: Records
    watch: RunWatch
    clock: Clock | None
    folder: Folder | None
    interrupted: Event
    broken_off: int | None
    """The round that was broken off, if the run had to go back to an earlier one."""
    stopped: str | None
    """Why a callback ended the run; may be empty."""
    contradiction: str | None
    """Why the gradients of a client prove nothing."""

    @property
    def is_measured(self) -> bool:
        """Whether the last record is of this round."""

    @property
    def ledger(self) -> Ledger: ...


def diverged(run: Standing) -> Verdict | None:
    """The residual is far beyond what the method's transient can make it."""
    residual = run.records.row["grad_norm"]
    if run.is_measured and run.watch.diverged(residual):
        return grown(residual, run.round)
    return None


def corrupted(run: Standing) -> Verdict | None:
    """The control variates do not add up, and the method does not repair that."""
    if run.records.corrupted is None:
        return None
    return Verdict(Status.CORRUPTED, run.records.corrupted)


def reached(run: Standing) -> Verdict | None:
    """All tolerances hold even allowing for rounding, or rounding or the prox keeps them from being confirmed."""
    stop, records = run.spec.stop, run.records
    if not run.is_measured or not stop.reached(records.row):
        return None
    missed = records.missed
    if missed is None:
        return stop.converged(run.round, run.contradiction or doubted(run))
    if not missed.hopeless and len(records.undecided) < MAX_UNDECIDED:
        return None
    if missed.status is Status.PRECISION:
        return Verdict(Status.PRECISION, f"{missed.sentence} after {run.round} rounds{and_so(doubted(run))}")
    return stop.converged(run.round, run.contradiction or missed.sentence)


def doubted(run: Standing, is_claimed: bool = True) -> str | None:
    """What the method has against this end of the run."""
    return run.spec.method.doubt(run.spec.problem, run.x, is_claimed)


def and_so(doubt: str | None) -> str:
    """The end of a sentence, with a doubt if there is one."""
    return "." if doubt is None else f"; {doubt}"


def stalled(run: Standing) -> Verdict | None:
    """The residual no longer falls, although the theorem or the tolerance asks for it."""
    records, watch = run.records, run.watch
    if not run.is_measured or not watch.is_level(records.trace):
        return None
    residual = records.row["grad_norm"]
    if not watch.is_rounding(residual, run.x, records.y):
        return Verdict(
            Status.STALLED,
            f"the gradient norm {residual:.3g} did not decrease over the last {watch.window:.0f} iterations, "
            "where a factor of 12 was expected; use a smaller gamma, or a method without bias.",
        )
    if run.spec.stop.has_tolerance:
        return Verdict(
            Status.PRECISION,
            f"the gradient norm {residual:.3g} is at the level of rounding and no longer decreases; a smaller "
            "tolerance cannot be reached.",
        )
    return None


def too_often_void(run: Standing) -> Verdict | None:
    """Too few clients answered over the simulated network, again and again."""
    if run.clock is None:
        return None
    return run.clock.given_up(run.round)


def interrupted(run: Standing) -> Verdict | None:
    """Ctrl-C, or SIGTERM."""
    if not run.interrupted.is_set():
        return None
    more = "." if run.folder is None else "; resume it from its folder."
    if run.broken_off is None or run.broken_off <= run.round:
        return Verdict(Status.INTERRUPTED, f"interrupted after {run.round} rounds{more}")
    last = f"the result is that of the last record or checkpoint, after {run.round} rounds"
    return Verdict(Status.INTERRUPTED, f"interrupted in round {run.broken_off + 1}; {last}{more}")


def stopped(run: Standing) -> Verdict | None:
    """A callback asked for the end."""
    reason = run.stopped
    if reason is None:
        return None
    why = f": {reason.rstrip('.')}." if reason else "."
    return Verdict(Status.STOPPED, f"stopped by a callback after {run.round} rounds{why}")


def exhausted(run: Standing) -> Verdict | None:
    """A limit of rounds, iterations or seconds is reached."""
    verdict = run.spec.stop.exhausted(run.round, run.ledger)
    if verdict is None:
        return None
    return verdict._replace(message=verdict.message.removesuffix(".") + and_so(doubted(run, is_claimed=False)))


RULES: tuple[Callable[[Standing], Verdict | None], ...] = (
    diverged,
    corrupted,
    reached,
    stalled,
    too_often_void,
    interrupted,
    stopped,
    exhausted,
)
"""In the order in which they are asked: what is wrong comes before what was wanted, and limits come last."""


def verdict_on(run: Standing) -> Verdict | None:
    """The answer of the first rule that ends the run; None to go on."""
    for rule in RULES:
        verdict = rule(run)
        if verdict is not None:
            return verdict
    return None
