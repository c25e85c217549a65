"""The server: open a ticket, count the clients that answer in time, close it, and tell each client its verdict.

``_purpose`` decides what a new ticket is for and ``_open`` opens it. ``_advance`` asks for its exchanges one after
another, and ``arrived`` judges every answer. When nobody else can answer, or at the deadline, ``_close`` takes the
means (the ticket continues, or ``_commit`` ends it) or ``_void`` discards them. The tables in these methods say what
happens next.
"""

from __future__ import annotations

import math
import warnings
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from proxskip.codecs import Float32, Key
from proxskip.core.dry_run import Route, Trip
from proxskip.core.method import Method
from proxskip.flower import checks, halves, messages, schema
from proxskip.flower.messages import Answer, Ask
from proxskip.flower.server_half import Call, Done, Mean, MeansSoFar, advance
from proxskip.flower.tickets import Outcome, Purpose, Reply, ServerState, Ticket
from proxskip.methods import Decaying
from proxskip.participation import Everyone, Participation, Uniform
from proxskip.problems import gradient_check
from proxskip.problems.federated import Problem
from proxskip.results.load import INFORMATION
from proxskip.results.result import Status
from proxskip.running.audit import rounded_scale
from proxskip.running.ledger import Ledger
from proxskip.running.missing_clients import LEAST, PATIENCE, asked_in, commits, fewest, way_to_close
from proxskip.running.run import checked_x0
from proxskip.running.run_spec import RunSpec
from proxskip.running.stop import Stop
from proxskip.running.watch import not_finite
from proxskip.support.sums import weighted_sum
from proxskip.types import GradientWarning, InputError

HALVES = {Purpose.AUDIT: halves.REPORT, Purpose.MEASURE: halves.MEASURE, Purpose.INFORM: halves.INFORM}
"""What clients are asked for a ticket that is no round."""
NO_COSTS = Ledger()
"""A server stops by rounds and tolerance only; its driver counts the messages."""


class Server:
    """A method's server half over clients that may fail.

    ``begin`` or ``restore`` starts it. Every event (``arrived``, ``deadline``, ``again``) returns the messages to send;
    save the server before they are sent, whenever ``state.ticket`` or ``state.over`` has changed.

    Args:
        method: any method with client halves.
        problem: its weights, psi and constants; the clients' functions are not called.
        rounds: how many.
        seed: random seed.
        closing: "deadline" closes a round with the clients that answered, in the method's form for cohorts;
            "everyone" waits for all and voids a round that misses one. None takes the first where the method can.
        cohort: who is asked in a round; everyone if not given.
        audit: check sum_i w_i h_i every this many rounds, 0 for never.
        measure: ask for gradients at x every this many rounds, 0 for only at the end, None for never.
        inform: at the end ask for Hessians, from which a table of standard errors follows.
        tol: stop when the gradient norm is below.
        least: fewest clients that close a round; the whole cohort for a method that needs it.
        patience: void rounds in a row after which the run fails.
        itemsize: 8, or 4 where clients send float32.
        limit: the largest message in bytes.
        names: of the clients, for messages.
        allow_unsafe_step: accept step sizes that are refused otherwise.
    """

    state: ServerState
    """What it saves; there from ``begin`` or ``restore`` on."""

    def __init__(
        self,
        method: Method,
        problem: Problem,
        rounds: int,
        *,
        seed: int = 0,
        closing: str | None = None,
        cohort: Participation | None = None,
        audit: int = 50,
        measure: int | None = 0,
        inform: bool = False,
        tol: float | None = None,
        least: int = LEAST,
        patience: int = PATIENCE,
        itemsize: int = 8,
        limit: int = messages.LIMIT,
        names: tuple[str, ...] = (),
        allow_unsafe_step: bool = False,
    ) -> None:
        self.problem, self.rounds, self.seed, self.patience = problem, rounds, seed, patience
        self.audit, self.measure, self.itemsize, self.limit = audit, measure, itemsize, limit
        self.inform = inform
        self.cohort: Participation = Everyone() if cohort is None else cohort
        self.stop = Stop(rounds=rounds, tol=tol)
        self.closing = way_to_close(method, problem, closing, self.cohort)
        self.names = names or tuple(f"client-{i}" for i in range(problem.n))
        self._check(method)
        # rounds that close early are cohorts, even if everyone is asked
        averages_all = isinstance(self.cohort, Everyone) and self.closing == "everyone"
        counted = self.cohort if averages_all or not isinstance(self.cohort, Everyone) else Uniform(problem.n)
        spec = RunSpec.of(method, problem, self.stop, seed=seed, cohort=counted, allow_unsafe_step=allow_unsafe_step)
        self.method = spec.method
        self.unsafe = spec.unsafe
        self.least = fewest(self.method, least, problem.n)
        self.has_h = self._has_h()
        self.contradiction = gradient_check.of_clients(problem.clients, np.zeros(problem.d))
        """Why the gradients of a client prove nothing."""
        self.under_way: Ticket | None = None
        plain = (Trip(None, 0, problem.d),)
        self._routes: dict[str, Route] = {halves.REPORT: plain, halves.MEASURE: plain}

    def _check(self, method: Method) -> None:
        """Refuse what a federation cannot run."""
        if "graph" in method.handles:
            raise InputError(f"{method.name} has no server; use scaffnew in a federation.")
        if isinstance(method, Decaying):
            raise InputError("a federation needs a fixed step size; leave out decay.")
        if self.measure is None and self.stop.has_tolerance:
            raise InputError("tol= needs measurements; give measure= a number of rounds, or 0 for only at the end.")
        if len(self.names) != self.problem.n:
            raise InputError(f"there are {len(self.names)} names for {self.problem.n} clients; give one each.")
        if len(set(self.names)) < len(self.names):
            twice = next(name for k, name in enumerate(self.names) if name in self.names[:k])
            raise InputError(f'two clients have the name "{twice}"; give each its own.')

    def _has_h(self) -> bool:
        """Whether clients keep an h (5gcs: v) whose weighted sum is known, and which does not heal by itself."""
        about = self.method.about
        if about.summed not in about.remembers or (self.problem.psi is not None and "cohort+psi" not in about.handles):
            return False
        if about.summed != "h" and self.closing == "everyone":
            return False
        start = self.method.start(self.problem, np.zeros(self.problem.d))
        return self.method.known_sum(self.problem, start) is not None

    # -- events --------------------------------------------------------------------------------------------------------
    def begin(self, run: bytes, x0: Any = None) -> list[Ask]:
        """Open the first ticket of a new run.

        Args:
            run: 16 bytes, unique to this run.
            x0: initial model; zeros if not given.
        """
        if len(run) != 16:
            raise InputError(f"a run id must have 16 bytes, not {len(run)}.")
        vectors = self.method.start(self.problem, checked_x0(self.problem, x0))
        self.state = ServerState.fresh(run, self.problem.n, vectors)
        if self.contradiction is not None:
            warnings.warn(self.contradiction, GradientWarning, stacklevel=2)
            self.state.note(self.contradiction)
        self._update_scale()
        return self._open()

    def restore(self, arrays: Mapping[str, Any], meta: Mapping[str, Any]) -> list[Ask]:
        """Go on from what ``save`` returned. The ticket that was under way then is void, and is repeated."""
        self.state = state = schema.joined(ServerState, arrays, meta)
        self.under_way = None
        # tolerance and rounds may differ from those of the saved run
        known = state.measured == state.round and self.stop.reached({"grad_norm": state.grad_norm})
        state.reached, state.at_rounding = state.reached and known, False
        if self._may_reopen():
            obsolete = self._absent()
            state.notes = [text for text in state.notes if text not in obsolete]
            state.verdict, state.void = None, 0
        return [] if state.over else self._open()

    def save(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """The state as arrays and plain data, for ``restore``."""
        return schema.split(self.state)

    def again(self) -> list[Ask]:
        """The messages to those who have not answered yet."""
        return [] if self.under_way is None else self._asks(self.under_way)

    def deadline(self, ticket: int, exchange: int) -> list[Ask]:
        """The time for this exchange is up."""
        t = self.under_way
        if t is None or (ticket, exchange) != (self.state.ticket, t.exchange):
            return []
        for i in t.missing:
            self.state.counts.late += 1
            about = f"{self.names[i]} missed"
            self.state.note(f"{about} the deadline of round {self.state.round}.", about=about, most=1)
        return self._close(t)

    def _may_reopen(self) -> bool:
        """Whether a run that is over stopped for lack of clients, or now has more rounds or a smaller tolerance."""
        if self.state.verdict is None:
            return False
        status, _ = self.state.verdict
        if status is Status.INTERRUPTED:
            return True
        return status not in (Status.DIVERGED, Status.CORRUPTED) and not self._enough()

    # -- a ticket opens ------------------------------------------------------------------------------------------------
    def _open(self) -> list[Ask]:
        """Open the next ticket; none once the run is over."""
        state = self.state
        self.under_way = None
        if state.lost and not self.has_h:
            state.adopt(sorted(state.lost), np.zeros(self.problem.d))
            state.counts.repaired += len(state.lost)
            state.lost = set()
        purpose = self._purpose()
        if purpose is None:
            state.notes += self._absent()
            return self._end(*self._verdict_on_enough())
        state.ticket += 1
        asked = tuple(i for i in self._wanted(purpose) if i not in state.lost)
        self.under_way = Ticket(purpose, asked)
        return self._advance(self.under_way)

    def _purpose(self) -> Purpose | None:
        """The purpose of the next ticket: the first line that holds.

        ==========================================================================================  =======
        an h is lost, and restoring it was not tried in this round, or cannot wait for another one  audit
        the sum of the h is due: every ``audit`` rounds, and at the end                             audit
        the gradient is due: every ``measure`` rounds, and at the end                               measure
        the Hessians are due: at the end                                                            inform
        the run has enough rounds, or reached its tolerance                                         none
        otherwise                                                                                   round
        ==========================================================================================  =======
        """
        state, enough = self.state, self._enough()
        cannot_wait = state.tried != state.round or enough or self.closing == "everyone"
        if state.lost and cannot_wait and state.void <= self.patience:
            return Purpose.AUDIT
        is_new = state.round and state.round not in (state.audited, state.tried)
        if self.has_h and is_new and self.audit and (enough or state.round % self.audit == 0):
            return Purpose.AUDIT
        measures = self.measure is not None and state.measured != state.round
        if measures and (enough or (self.measure and state.round % self.measure == 0)):
            return Purpose.MEASURE
        if enough and self.inform and INFORMATION not in state.vectors:
            return Purpose.INFORM
        return None if enough else Purpose.ROUND

    def _enough(self) -> bool:
        """Whether no further round is needed."""
        return self.state.reached or self.state.at_rounding or self.stop.limit(self.state.round, NO_COSTS) is not None

    def _verdict_on_enough(self) -> tuple[Status, str]:
        """How a run ends that needs no further round, in the words of ``run``."""
        state = self.state
        if state.reached:
            return self.stop.converged(state.round, self.contradiction)
        if state.at_rounding:
            return Status.PRECISION, (
                f"the gradient norm {state.grad_norm:.3g} is at the level of rounding after {state.round} rounds; a "
                "smaller tolerance cannot be reached."
            )
        limit = self.stop.exhausted(state.round, NO_COSTS)
        assert limit is not None
        return limit

    def verdict(self) -> tuple[Status, str]:
        """How the run ended, in the words of ``run``."""
        return self.state.verdict or (Status.INTERRUPTED, f"interrupted after {self.state.round} rounds.")

    def _end(self, status: Status, message: str) -> list[Ask]:
        self.state.verdict = status, message
        self.under_way = None
        return []

    def _wanted(self, purpose: Purpose) -> tuple[int, ...]:
        """Whom a ticket asks: all clients, or a round's cohort, redrawn after a void attempt."""
        if purpose is not Purpose.ROUND or isinstance(self.cohort, Everyone):
            return tuple(range(self.problem.n))
        drawn = asked_in(self.cohort, self.seed, self.state.round, self.state.void, self.problem.n)
        return tuple(int(i) for i in drawn)

    def _advance(self, ticket: Ticket) -> list[Ask]:
        """Ask for the next exchange, or end the ticket.

        =======  ================================================  ====================================================
        ticket   asks for                                          at its end
        =======  ================================================  ====================================================
        audit    the h of all that are not lost, if any are left   restore those that are, or check the sum
        measure  gradient and value at x                           the norm decides whether the run goes on
        inform   values, gradients and Hessians at x and at zero   their means are kept with the state
        round    what the server half asks for, one after another  the cohort is counted
        =======  ================================================  ====================================================
        """
        if ticket.purpose is Purpose.ROUND:
            everyone = self.closing == "everyone"
            exchange = MeansSoFar(self.problem, self.seed, self.state.round, everyone, ticket.asked, ticket.means)
            due = advance(self.method, self.state.vectors, exchange)
            return self._ask(ticket, due) if isinstance(due, Call) else self._commit(ticket, due)
        is_audit = ticket.purpose is Purpose.AUDIT
        if not ticket.means and (ticket.asked or not is_audit):
            down = () if is_audit else (self.state.vectors["x"],)
            return self._ask(ticket, Call(HALVES[ticket.purpose], down, 0, self.problem.weights))
        fault = None
        if is_audit:
            fault = checks.audited(self.method, self.problem, self.names, self.state, ticket)
        elif ticket.purpose is Purpose.MEASURE:
            fault = checks.measured(self.method, self.problem, self.stop, self.state, ticket)
        else:
            self.state.vectors[INFORMATION] = np.concatenate(ticket.means[-1].vectors)
        return self._open() if fault is None else self._end(*fault)

    def _ask(self, ticket: Ticket, call: Call) -> list[Ask]:
        ticket.call, ticket.answers, ticket.left_out = call, {}, set()
        self._route(call)  # refuses a half that a message cannot name, before anybody is asked
        return self._asks(ticket) if ticket.asked else self._void(ticket)

    def _asks(self, ticket: Ticket) -> list[Ask]:
        state, call = self.state, ticket.call
        assert call is not None
        # the key only travels if a codec uses it: a repeated ask must have the same bytes
        keyed = any(trip.codec is not None and trip.codec.keyed for trip in self._route(call))
        asks = []
        for i in ticket.missing:
            counted = int(state.counted[i])
            owes = not ticket.exchange and state.heard[i] != counted
            owed = state.outcomes.get(counted) if owes else None
            key = (state.void, bisect_left(ticket.asked, i), len(ticket.asked)) if keyed else ()
            asks.append(
                Ask(
                    state.run, state.ticket, state.round, ticket.exchange, i, call.half, call.steps(i), call.down,
                    counted, owed.settle if owed else "", owed.vectors if owed else None, state.uploads[i].tobytes(),
                    call.numbers(i), *key,
                )
            )  # fmt: skip
        return asks

    # -- answers arrive ------------------------------------------------------------------------------------------------
    def arrived(self, raw: bytes, sender: int) -> list[Ask]:
        """Bytes came from a client; the transport says which one. What becomes of them: the first line that holds.

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
        state, ticket, i = self.state, self.under_way, sender
        try:
            answer = messages.decode(raw, self.problem.d, self.limit)
        except messages.WireError:
            state.counts.damaged += 1
            return []
        if not isinstance(answer, Answer) or (answer.client, answer.run) != (i, state.run):
            state.counts.foreign += 1
            return []
        is_due = ticket is not None and (answer.ticket, answer.exchange) == (state.ticket, ticket.exchange)
        if ticket is None or not is_due or not _is_in(i, ticket.asked):
            state.counts.stale += 1
            return []
        if i in ticket.answers or i in ticket.left_out:
            state.counts.duplicates += 1
            return []
        if answer.status != messages.OK:
            what = "is ahead of the server" if answer.status == messages.AHEAD else "has lost its memory"
            self._lost(ticket, i, what)
            return self._close_if_complete(ticket)
        up, reason = checks.read(answer, state.round, self._route(ticket.call), self._key(ticket, i))
        if reason is not None:
            self._reject(ticket, i, reason)
        elif answer.base != state.counted[i]:
            state.counts.stale += 1
            return []
        elif state.heard[i] == answer.base and state.digests[i].tobytes() != answer.digest and self.has_h:
            self._lost(ticket, i, "answered from another memory than before")
        else:
            ticket.answers[i] = Reply(up, answer.value, answer.base, answer.digest)
        return self._close_if_complete(ticket)

    def _route(self, call: Call | None) -> Route:
        """How each vector of this exchange travels."""
        assert call is not None
        if call.half not in self._routes:
            codec = Float32() if self.itemsize == 4 else None
            self._routes[call.half] = checks.route_of(self.method, call, self.problem.d, codec)
        return self._routes[call.half]

    def _key(self, ticket: Ticket, i: int) -> Key:
        """The key of the codecs of client i's message."""
        place = bisect_left(ticket.asked, i)
        return Key(self.seed, self.state.round, i, place, len(ticket.asked), self.state.void, ticket.exchange)

    def _lost(self, ticket: Ticket, i: int, what: str) -> None:
        """Client i has another memory than it should: leave its answer out, and have it repaired."""
        remedy = "is restored from the others" if self.has_h else "restarts from zero, which the prox form repairs"
        name = self.method.about.summed
        self.state.counts.lost += 1
        self.state.note(f"{self.names[i]} {what} at round {self.state.round}; its {name} {remedy}.")
        self.state.lost.add(i)
        ticket.left_out.add(i)

    def _reject(self, ticket: Ticket, i: int, reason: str) -> None:
        """Leave out the update of client i, and note why."""
        about = f"{self.names[i]}, round"
        self.state.counts.rejected += 1
        self.state.note(f"{about} {self.state.round}: {reason}; the update was left out.", about=about, most=20)
        ticket.left_out.add(i)

    def _close_if_complete(self, ticket: Ticket) -> list[Ask]:
        """Close the exchange once nobody else can answer."""
        waiting = len(ticket.answers) + len(ticket.left_out) < len(ticket.asked)
        return [] if waiting else self._close(ticket)

    # -- a ticket closes -----------------------------------------------------------------------------------------------
    def _close(self, ticket: Ticket) -> list[Ask]:
        """Take the means of the clients that answered, or void the ticket: ``closing.commits`` decides."""
        self.state.heed(ticket.answers)
        call, cohort = ticket.call, ticket.cohort
        assert call is not None
        is_round = ticket.purpose is Purpose.ROUND
        # the first exchange's means are final, so the second needs the same cohort
        whole = self.closing == "everyone" or not is_round or ticket.exchange > 0
        least = min(self.least, len(self._wanted(Purpose.ROUND))) if is_round else 1
        if not commits(len(ticket.asked), len(cohort), whole, least):
            return self._void(ticket)
        weights = np.atleast_2d(call.weights)[:, list(cohort)]
        columns = [np.stack(column) for column in zip(*(ticket.answers[i].up for i in cohort), strict=True)]
        means = tuple(weighted_sum(w / w.sum(), U) for U in columns for w in weights)
        ticket.means.append(Mean(cohort, means))
        ticket.asked = cohort
        return self._advance(ticket)

    def _void(self, ticket: Ticket) -> list[Ask]:
        """Count nobody. What follows:

        =======  ===========================================================================================
        round    it is tried again, and given up after ``patience`` attempts in a row
        audit    the same if a round cannot go on without the h that is lost; otherwise it waits for another
                 round, or at the end is tried again
        measure  the gradient of this round stays unknown
        inform   it is tried again, and given up after ``patience`` attempts
        =======  ===========================================================================================
        """
        state, wanted = self.state, self._wanted(ticket.purpose)
        missing = ", ".join(self.names[i] for i in wanted if i not in ticket.answers)
        few = f"have {len(ticket.answers)} of {len(wanted)} clients, missing {missing}"
        state.counts.void += 1
        is_vital = ticket.purpose is Purpose.ROUND
        if ticket.purpose is Purpose.ROUND:
            state.void, state.tried = state.void + 1, -1
        elif ticket.purpose is Purpose.AUDIT:
            is_vital = self.closing == "everyone" and bool(state.lost)
            state.void += is_vital or self._enough()
            state.tried, state.sum_h = state.round, math.nan
        elif ticket.purpose is Purpose.INFORM:
            state.void, is_vital = state.void + 1, True
        else:
            state.measured, state.grad_norm, state.f = state.round, math.nan, math.nan
            if self._enough():
                state.note(f"the gradient at the answer is unknown: {few}.")
        if is_vital and state.void > self.patience:
            last = f" ({state.notes[-1]})" if state.notes else ""
            reason = f"{few}: round {state.round} failed {state.void} times in a row{last}."
            return self._end(Status.INTERRUPTED, reason)
        return self._open()

    def _commit(self, ticket: Ticket, done: Done) -> list[Ask]:
        """Count the cohort of this round with this outcome, irrevocably."""
        state, cohort = self.state, list(ticket.means[-1].cohort)
        if not all(np.isfinite(v).all() for v in done.vectors.values()):
            return self._end(*not_finite(state.round + 1))
        state.count(ticket.answers, cohort, Outcome(done.settle, done.outcome))
        state.participated[cohort] += 1
        state.last[cohort] = state.round
        state.vectors = {name: v for name, v in done.vectors.items() if name != INFORMATION}
        state.round, state.void = state.round + 1, 0
        self._update_scale()
        return self._open()

    def _update_scale(self) -> None:
        state = self.state
        if self.has_h:
            state.scale = max(state.scale, rounded_scale(self.method, state.round, state.vectors["x"]))

    def _absent(self) -> list[str]:
        """Notes on clients about which the answer knows nothing, or nothing recent."""
        state = self.state
        if not state.round:
            return []
        # a client that left early only contributes an old h
        away = self._named(np.flatnonzero(state.last < state.round // 2).tolist())
        lost = self._named(sorted(state.lost))
        notes = [f"the answer leaves out {away}: absent from the second half of the rounds."] if away else []
        notes += [f"{lost} could not be restored, because other clients were missing."] if lost else []
        return notes

    def _named(self, clients: Iterable[int]) -> str:
        return ", ".join(self.names[i] for i in clients)


def _is_in(i: int, cohort: tuple[int, ...]) -> bool:
    """Whether client i is in this sorted cohort."""
    place = bisect_left(cohort, i)
    return place < len(cohort) and cohort[place] == i
