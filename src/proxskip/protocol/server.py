"""The server: open a ticket, count the clients that answer in time, close it, and tell each client its verdict.

``_next`` decides what a new ticket is for and ``_open`` opens it. ``_advance`` asks for its exchanges one after
another, and ``_arrived`` judges every answer. When nobody else can answer, or at the deadline, ``_close`` takes the
means (the ticket continues, or ``_commit`` ends it) or ``_void`` discards them. The tables in these methods say what
happens next.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from proxskip.interfaces import Method
from proxskip.interfaces.dry_run import Route
from proxskip.links.codecs import Float32, Key
from proxskip.links.cohorts import Everyone, Participation, Uniform
from proxskip.links.sums import weighted_sum
from proxskip.loop.audit import rounded_scale
from proxskip.loop.closing import LEAST, PATIENCE, asked_in, commits, fewest, way_to_close
from proxskip.loop.ledger import Ledger
from proxskip.loop.run_spec import RunSpec
from proxskip.loop.stop import Stop
from proxskip.loop.watch import not_finite
from proxskip.methods import Decaying
from proxskip.problems.federated import Problem
from proxskip.protocol import allowed_halves, audit, wire
from proxskip.protocol.events import Again, Arrived, Begin, Deadline, Event, Restarted
from proxskip.protocol.replay import Call, Done, Mean, MeansSoFar, advance
from proxskip.protocol.state import Answers, Outcome, Reply, ServerState
from proxskip.protocol.wire import Answer, Ask
from proxskip.results.result import Status
from proxskip.running import checked_x0
from proxskip.types import InputError

Step = tuple[ServerState, list[Ask]]
NO_COSTS = Ledger()
"""A server stops by rounds and tolerance only; its driver counts the messages."""


@dataclass(frozen=True)
class Server:
    """A method's server half over clients that may fail.

    Args:
        method: any method with client halves.
        problem: its weights, psi and constants; the clients' functions are not called.
        rounds: how many.
        closing: "deadline" closes a round with the clients that answered, in the method's form for cohorts;
            "everyone" waits for all and voids a round that misses one. None takes the first where the method can.
        cohort: who is asked in a round.
        audit: check sum_i w_i h_i every this many rounds, 0 for never.
        measure: ask for gradients at x every this many rounds, 0 for only at the end, None for never.
        tol: stop when the gradient norm is below.
        least: fewest clients that close a round; the whole cohort for a method that needs it.
        patience: void rounds in a row after which the run fails.
        itemsize: 8, or 4 where clients send float32.
    """

    method: Method
    problem: Problem
    rounds: int
    seed: int = 0
    closing: str | None = None
    cohort: Participation = field(default_factory=Everyone)
    audit: int = 50
    measure: int | None = 0
    tol: float | None = None
    least: int = LEAST
    patience: int = PATIENCE
    itemsize: int = 8
    limit: int = wire.LIMIT
    names: tuple[str, ...] = ()
    insist: bool = False
    unsafe: tuple[str, ...] = field(default=(), init=False)
    """Warnings of ``Method.check``."""

    def __post_init__(self) -> None:
        closing = way_to_close(self.method, self.problem, self.closing, self.cohort)
        if "graph" in self.method.handles:
            raise InputError(f"{self.method.name} has no server; use scaffnew in a federation.")
        if isinstance(self.method, Decaying):
            raise InputError("a federation needs a fixed step size; leave out decay.")
        if self.measure is None and self.stop.has_tolerance:
            raise InputError("tol= needs measurements; give measure= a number of rounds, or 0 for only at the end.")
        whole = isinstance(self.cohort, Everyone)
        who = self.cohort if not whole or closing == "everyone" else Uniform(self.problem.n)
        spec = RunSpec.of(
            self.method, self.problem, self.stop, seed=self.seed, cohort=who, allow_unsafe_step=self.insist
        )
        names = self.names or tuple(f"client-{i}" for i in range(self.problem.n))
        if len(names) != self.problem.n:
            raise InputError(f"there are {len(names)} names for {self.problem.n} clients; give one each.")
        if len(set(names)) < len(names):
            twice = next(a for k, a in enumerate(names) if a in names[:k])
            raise InputError(f'two clients have the name "{twice}"; give each its own.')
        ready = {"closing": closing, "method": spec.method, "names": names, "unsafe": spec.unsafe}
        for k, v in (ready | {"least": fewest(spec.method, self.least, self.problem.n)}).items():
            object.__setattr__(self, k, v)

    @cached_property
    def stop(self) -> Stop:
        """The stopping rules that a server can judge."""
        return Stop(rounds=self.rounds, tol=self.tol)

    @cached_property
    def has_h(self) -> bool:
        """Whether clients keep an h (5gcs: v) whose weighted sum is known, and which does not heal by itself."""
        about = self.method.about
        if about.summed not in about.remembers or (self.problem.psi is not None and "cohort+psi" not in about.handles):
            return False
        if about.summed != "h" and self.closing == "everyone":
            return False
        start = self.method.start(self.problem, np.zeros(self.problem.d))
        return self.method.known_sum(self.problem, start) is not None

    def start(self, run: bytes, x0: Any = None) -> ServerState:
        """The state before the first ticket.

        Args:
            run: 16 bytes, unique to this run.
        """
        if len(run) != 16:
            raise InputError(f"a run id must have 16 bytes, not {len(run)}.")
        vectors = self.method.start(self.problem, checked_x0(self.problem, x0))
        return self._sized(ServerState.fresh(run, self.problem.n, vectors))

    def step(self, state: ServerState, event: Event) -> Step:
        """Handle an event; returns the new state and the messages to send."""
        if isinstance(event, Arrived):
            return self._arrived(state, event)
        if isinstance(event, Restarted):
            state = self._revived(state)
        if state.over or (isinstance(event, Begin) and state.ticket):
            return state, []
        if isinstance(event, Again):
            return state, self._asks(state) if state.asked else []
        if isinstance(event, Deadline):
            if (event.ticket, event.exchange) != (state.ticket, state.exchange):
                return state, []
            return self._close(self._late(state))
        return self._open(state)

    def _revived(self, state: ServerState) -> ServerState:
        """Reopen a run that stopped for lack of clients, or that now has more rounds or a smaller tolerance."""
        # tolerance and rounds may differ from those of the saved run
        known = state.measured == state.round and self.stop.reached({"grad_norm": state.grad_norm})
        state = state.but(reached=state.reached and known, at_rounding=False)
        stuck = bool(state.failed and state.void)
        if not state.over or (state.failed and not stuck) or (self._enough(state) and not stuck):
            return state
        obsolete = self._absent(state)
        return state.but(over=False, failed="", void=0, notes=tuple(t for t in state.notes if t not in obsolete))

    # -- a ticket opens ------------------------------------------------------------------------------------------------
    def _open(self, state: ServerState) -> Step:
        if state.over:
            return state, []
        if state.lost and not self.has_h:
            state = state.adopt(sorted(state.lost), np.zeros(self.problem.d))
            state = state.count("repaired", len(state.lost)).but(lost=frozenset())
        kind = self._next(state)
        if kind == "end":
            return state.but(over=True, kind=kind, asked=(), notes=state.notes + self._absent(state)), []
        asked = tuple(i for i in self._wanted(state, kind) if i not in state.lost)
        state = state.but(ticket=state.ticket + 1, kind=kind, exchange=0, means=(), answers=Answers(), call=None)
        return self._advance(state.but(asked=asked, left_out=frozenset()))

    def _next(self, state: ServerState) -> str:
        """The purpose of the next ticket: the first line that holds.

        ==========================================================================================  =======
        an h is lost, and restoring it was not tried in this round, or cannot wait for another one  audit
        the sum of the h is due: every ``audit`` rounds, and at the end                             audit
        the gradient is due: every ``measure`` rounds, and at the end                               measure
        the run has enough rounds, or reached its tolerance                                         end
        otherwise                                                                                   round
        ==========================================================================================  =======
        """
        r, enough = state.round, self._enough(state)
        if state.lost and (state.tried != r or enough or self.closing == "everyone") and state.void <= self.patience:
            return "audit"
        if self.has_h and r and r not in (state.audited, state.tried) and _is_due(self.audit, r, enough):
            return "audit"
        if self.measure is not None and state.measured != r and (enough or _is_due(self.measure, r)):
            return "measure"
        return "end" if enough else "round"

    def _enough(self, state: ServerState) -> bool:
        return state.reached or state.at_rounding or self.stop.limit(state.round, NO_COSTS) is not None

    def verdict(self, state: ServerState) -> tuple[Status, str]:
        """How the run ended, in the words of ``run``."""
        if state.failed:
            known = Status.CORRUPTED if state.corrupted else Status.DIVERGED if state.diverged else Status.INTERRUPTED
            return known, state.failed
        if state.reached:
            return self.stop.converged(state.round)
        if state.at_rounding:
            return Status.PRECISION, (
                f"the gradient norm {state.grad_norm:.3g} is at the level of rounding after {state.round} rounds; a "
                "smaller tolerance cannot be reached."
            )
        unfinished = Status.INTERRUPTED, f"interrupted after {state.round} rounds."
        return self.stop.exhausted(state.round, NO_COSTS) or unfinished

    def _wanted(self, state: ServerState, kind: str) -> tuple[int, ...]:
        """Whom a ticket asks: all clients, or a round's cohort, redrawn after a void attempt."""
        if kind != "round" or isinstance(self.cohort, Everyone):
            return tuple(range(self.problem.n))
        drawn = asked_in(self.cohort, self.seed, state.round, state.void, self.problem.n)
        return tuple(int(i) for i in drawn)

    def _advance(self, state: ServerState) -> Step:
        """Ask for the next exchange, or end the ticket.

        =======  ================================================  ====================================================
        ticket   asks for                                          at its end
        =======  ================================================  ====================================================
        audit    the h of all that are not lost, if any are left   restore those that are, or check the sum
        measure  gradient and value at x                           the norm decides whether the run goes on
        round    what the server half asks for, one after another  the cohort is counted
        =======  ================================================  ====================================================
        """
        if state.kind == "round":
            everyone = self.closing == "everyone"
            exchange = MeansSoFar(self.problem, self.seed, state.round, everyone, state.asked, state.means)
            due = advance(self.method, state.vectors, exchange)
            return self._ask(state, due) if isinstance(due, Call) else self._commit(state, due)
        if state.kind == "audit":
            if state.means or not state.asked:
                return self._open(audit.audited(self.method, self.problem, self.names, state))
            return self._ask(state, Call(allowed_halves.REPORT, (), 0, self.problem.weights))
        if state.means:
            return self._open(audit.measured(self.method, self.problem, self.stop, state))
        return self._ask(state, Call(allowed_halves.MEASURE, (state.vectors["x"],), 0, self.problem.weights))

    def _ask(self, state: ServerState, call: Call) -> Step:
        self._route(call)  # cached now, before answers arrive
        state = state.but(call=call, exchange=len(state.means), answers=Answers(), left_out=frozenset())
        if not state.asked:
            return self._void(state)
        return state, self._asks(state)

    def _asks(self, state: ServerState) -> list[Ask]:
        call = state.call
        assert call is not None
        # the key only travels if a codec uses it: a repeated ask must have the same bytes
        keyed = any(codec is not None and codec.keyed for codec, _ in self._route(call))
        asks = []
        for k, i in enumerate(state.asked):
            if i in state.answers or i in state.left_out:
                continue
            counted = state.counted[i]
            owed = state.outcomes.get(counted) if not state.exchange and state.heard[i] != counted else None
            asks.append(
                Ask(
                    state.run, state.ticket, state.round, state.exchange, i, call.half, call.steps(i), call.down,
                    counted, owed.settle if owed else "", owed.vectors if owed else None, state.uploads[i],
                    call.numbers(i), *((state.void, k, len(state.asked)) if keyed else ()),
                )
            )  # fmt: skip
        return asks

    # -- answers arrive ------------------------------------------------------------------------------------------------
    def _arrived(self, state: ServerState, event: Arrived) -> Step:
        """How to treat received bytes: the first line that holds.

        ==============================================================  ==========
        no sound message of this version                                damaged
        no answer, or one of another client or run                      foreign
        of another exchange, or from a client that was not asked in it  stale
        the client has answered already                                 duplicates
        the client says that it lost its memory, or is ahead            lost
        its vectors or its value are not what its half sends            rejected
        an answer to an older copy of this server                       stale
        from a memory that is not the one that the client had           lost
        otherwise                                                       counted
        ==============================================================  ==========
        """
        i = event.sender
        try:
            answer = wire.decode(event.raw, self.problem.d, self.limit)
        except wire.WireError:
            return state.count("damaged"), []
        if not isinstance(answer, Answer) or (answer.client, answer.run) != (i, state.run):
            return state.count("foreign"), []
        under_way = (answer.ticket, answer.exchange) == (state.ticket, state.exchange)
        if state.over or not under_way or not _is_in(i, state.asked):
            return state.count("stale"), []
        if i in state.answers or i in state.left_out:
            return state.count("duplicates"), []
        if answer.status != wire.OK:
            is_ahead = answer.status == wire.AHEAD
            return self._lost(state, i, "is ahead of the server" if is_ahead else "has lost its memory")
        up, reason = audit.read(answer, state.round, self._route(state.call), self.problem.d, self._key(state, i))
        if reason is not None:
            return self._settled(self._rejected(state, {i: reason}))
        if answer.base != state.counted[i]:
            return state.count("stale"), []
        if state.heard[i] == answer.base and state.digests[i] != answer.digest and self.has_h:
            return self._lost(state, i, "answered from another memory than before")
        reply = Reply(up, answer.value, answer.base, answer.digest)
        return self._settled(state.but(answers=state.answers.plus(i, reply)))

    def _route(self, call: Call | None) -> Route:
        """The codec of each vector of this exchange."""
        assert call is not None
        if call.half not in self._known:
            codec = Float32() if self.itemsize == 4 else None
            self._known[call.half] = audit.route_of(self.method, call, self.problem.d, codec)
        return self._known[call.half]

    @cached_property
    def _known(self) -> dict[str, Route]:
        return {allowed_halves.REPORT: ((None, 0),), allowed_halves.MEASURE: ((None, 0),)}

    def _key(self, state: ServerState, i: int) -> Key:
        """The key of the codecs of client i's message."""
        place = bisect_left(state.asked, i)
        return Key(self.seed, state.round, i, place, len(state.asked), state.void, state.exchange)

    def _lost(self, state: ServerState, i: int, what: str) -> Step:
        remedy = "is restored from the others" if self.has_h else "restarts from zero, which the prox form repairs"
        name = self.method.about.summed
        state = state.count("lost").note(f"{self.names[i]} {what} at round {state.round}; its {name} {remedy}.")
        state = state.but(left_out=state.left_out | {i}, lost=state.lost | {i})
        return self._settled(state)

    def _settled(self, state: ServerState) -> Step:
        """Close the exchange once nobody else can answer."""
        if len(state.answers) + len(state.left_out) < len(state.asked):
            return state, []
        return self._close(state)

    # -- a ticket closes -----------------------------------------------------------------------------------------------
    def _late(self, state: ServerState) -> ServerState:
        for i in state.asked:
            if i not in state.answers and i not in state.left_out:
                state = state.count("late").note(f"{self.names[i]} missed the deadline of round {state.round}.",
                                                 about=f"{self.names[i]} missed", most=1)  # fmt: skip
        return state

    def _close(self, state: ServerState) -> Step:
        """Take the means of the clients that answered, or void the ticket: ``closing.commits`` decides."""
        state = self._without_outliers(state.heed())
        call, cohort = state.call, tuple(i for i in state.asked if i in state.answers)
        assert call is not None
        is_round = state.kind == "round"
        # the first exchange's means are final, so the second needs the same cohort
        whole = self.closing == "everyone" or not is_round or state.exchange > 0
        least = min(self.least, len(self._wanted(state, "round"))) if is_round else 1
        if not commits(len(state.asked), len(cohort), whole, least):
            return self._void(state)
        counted = max(audit.size(state.answers[i].up) for i in cohort)
        state = state.but(sizes={**state.sizes, call.half: max(counted, state.sizes.get(call.half, 0.0))})
        weights = np.atleast_2d(call.weights)[:, list(cohort)]
        columns = [np.stack(column) for column in zip(*(state.answers[i].up for i in cohort), strict=True)]
        means = tuple(weighted_sum(w / w.sum(), U) for U in columns for w in weights)
        return self._advance(state.but(means=(*state.means, Mean(cohort, means)), asked=cohort))

    def _without_outliers(self, state: ServerState) -> ServerState:
        """Leave out uploads that are out of proportion, and note whose they are."""
        outliers = audit.out_of_proportion(state)
        if not outliers:
            return state
        answers = Answers()
        for i, reply in state.answers.items():
            answers = answers if i in outliers else answers.plus(i, reply)
        return self._rejected(state, outliers).but(answers=answers)

    def _rejected(self, state: ServerState, reasons: Mapping[int, str]) -> ServerState:
        """Leave out the updates of these clients, and note why."""
        for i, reason in reasons.items():
            note = f"{self.names[i]}, round {state.round}: {reason}; the update was left out."
            state = state.count("rejected").note(note, about=f"{self.names[i]}, round", most=20)
        return state.but(left_out=state.left_out | reasons.keys())

    def _void(self, state: ServerState) -> Step:
        """Count nobody. What follows:

        =======  ===========================================================================================
        round    it is tried again, and given up after ``patience`` attempts in a row
        audit    the same if a round cannot go on without the h that is lost; otherwise it waits for another
                 round, or at the end is tried again
        measure  the gradient of this round stays unknown
        =======  ===========================================================================================
        """
        wanted = self._wanted(state, state.kind)
        missing = ", ".join(self.names[i] for i in wanted if i not in state.answers)
        few = f"have {len(state.answers)} of {len(wanted)} clients, missing {missing}"
        state = state.count("void")
        vital = state.kind == "round" or (state.kind == "audit" and self.closing == "everyone" and bool(state.lost))
        if state.kind == "round":
            state = state.but(void=state.void + 1, tried=-1)
        elif state.kind == "audit":
            state = state.but(tried=state.round, void=state.void + (vital or self._enough(state)), sum_h=math.nan)
        else:
            state = state.but(measured=state.round, grad_norm=math.nan, f=math.nan)
            if self._enough(state):
                state = state.note(f"the gradient at the answer is unknown: {few}.")
        if vital and state.void > self.patience:
            last = f" ({state.notes[-1]})" if state.notes else ""
            reason = f"{few}: round {state.round} failed {state.void} times in a row{last}."
            return state.fail((Status.INTERRUPTED, reason)), []
        return self._open(state)

    def _commit(self, state: ServerState, done: Done) -> Step:
        """Count these clients with this outcome, irrevocably."""
        cohort = state.means[-1].cohort
        if not all(np.isfinite(v).all() for v in done.vectors.values()):
            return state.fail(not_finite(state.round + 1)), []
        x = done.vectors["x"]
        if state.round == 0:
            state = state.but(first_x=max(audit.size([x]), audit.size([state.vectors["x"]])))
        if (reason := audit.diverges(state, x)) is not None:
            return state.fail((Status.DIVERGED, reason)), []
        state = state.commit(cohort, Outcome(done.settle, done.outcome))
        state = state.but(vectors=dict(done.vectors), round=state.round + 1, void=0)
        return self._open(self._sized(state))

    def _sized(self, state: ServerState) -> ServerState:
        if not self.has_h:
            return state
        return state.but(scale=max(state.scale, rounded_scale(self.method, state.round, state.vectors["x"])))

    def _absent(self, state: ServerState) -> tuple[str, ...]:
        """Notes on clients about which the answer knows nothing, or nothing recent."""
        # a client that left early only contributes an old h
        away = [self.names[i] for i in range(self.problem.n) if state.last[i] < state.round // 2]
        notes = [f"the answer leaves out {', '.join(away)}: absent from the second half of the rounds."] if away else []
        lost = [self.names[i] for i in sorted(state.lost)]
        notes += [f"{', '.join(lost)} could not be restored, because other clients were missing."] if lost else []
        return tuple(notes) if state.round else ()


def _is_due(every: int, round: int, at_end: bool = False) -> bool:
    """Whether an action every so many rounds is due; 0 is never."""
    return bool(every) and (at_end or round % every == 0)


def _is_in(i: int, cohort: Sequence[int]) -> bool:
    """Whether client i is in this sorted cohort."""
    place = bisect_left(cohort, i)
    return place < len(cohort) and cohort[place] == i
