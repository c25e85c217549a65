"""Simulated time: how long each exchange takes over a network, and which clients are missing.

An exchange is decided before any work is done. Client i answers after

    2 latency_i + down_i/bandwidth_i + gradients_i gradient_i + up_i/up_i's bandwidth   seconds,

where no bandwidth exceeds its share of the server's. Clients that are unreachable, lost or late are left out, and
``closing`` decides whether the round counts. Only counted clients work, so a method sees missing clients exactly as in
a federation. Everything is drawn by (seed, round, attempt, client).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from proxskip.codecs import Key
from proxskip.core.dry_run import IdleClient, Route
from proxskip.core.exchange import ClientHalf
from proxskip.core.method import Method
from proxskip.networks import HOUR, Network, Traits
from proxskip.participation import Everyone, Participation, Uniform
from proxskip.problems.federated import Problem
from proxskip.results.result import Status
from proxskip.running.missing_clients import LEAST, commits, fewest, way_to_close
from proxskip.running.stop import Verdict
from proxskip.support.randomness import client_uniforms
from proxskip.types import Array, Counts, Flags, Indices, InputError, Stack

SIM_COLUMNS = ("sim_seconds", "sim_computing", "slowest_seconds", "slowest_client", "late", "lost", "void")
"""Columns of a trace: seconds since the start, seconds in which the slowest client computed, time and number of the
last round's slowest client, and late clients, lost clients and void attempts since the start."""
MOST_HOURS = 168
"""How long a server waits for enough reachable clients: a week."""


class Void(Exception):
    """Too few clients answered; the round is tried again."""


@dataclass(frozen=True, slots=True)
class HalfCosts:
    """The cost of a client half: ``fixed + per_step K`` gradients, its codecs, and additional bytes."""

    fixed: float | Array
    """One number, or one per client asked; so is ``per_step``."""
    per_step: float | Array
    route: Route = ()
    is_open: bool = False
    varies: bool = False
    """Whether the gradients depend on each client's own numbers."""
    more_bytes: float = 0.0

    @staticmethod
    def of(
        half: ClientHalf,
        remembers: Sequence[str],
        d: int,
        shapes: Sequence[tuple[int, ...]],
        own: Mapping[str, float],
        passes: float,
    ) -> HalfCosts:
        """Measured by running the half on a client that does nothing, with one step and with two."""
        gradients = []
        for K in (1, 2):
            idle = IdleClient(passes=passes)
            memory = {k: np.zeros(d) for k in remembers}
            route = idle.route(half, memory, K, tuple(np.zeros(s) for s in shapes), own)
            gradients.append(idle.gradients)
        per_step = gradients[1] - gradients[0]
        return HalfCosts(gradients[0] - per_step, per_step, route, idle.open, idle.has_where)

    def bytes_up(self, key: Key) -> float:
        """Bytes of one client's answer; of the first client's, if codecs divide the coordinates."""
        bits = [
            64 * trip.length if trip.codec is None else trip.codec.bits(trip.length, replace(key, vector=trip.number))
            for trip in self.route
        ]
        return self.more_bytes + float(sum(-(-b // 8) for b in bits))


@dataclass(frozen=True, slots=True)
class Asked:
    """One exchange under way, before any work is done.

    Args:
        clients: who was asked.
        carried: seconds that each client's messages take.
        reachable: who can be reached; the server knows that of the others.
        answering: who answers in the end; of the others the server knows nothing, and waits.
        whole: the exchange only counts if all of them answer.
    """

    clients: Indices
    traits: Traits
    carried: Array
    reachable: Flags
    answering: Flags
    costs: HalfCosts
    whole: bool

    def gradients(self, steps: Counts) -> Array:
        """Gradients of each client for so many local steps, one number or one each."""
        per_step = self.costs.per_step * np.asarray(steps, dtype=np.float64)
        return np.broadcast_to(self.costs.fixed + per_step, (len(self.clients),))


class Answers(NamedTuple):
    """When each client answers (never: infinity), how long it worked, and whether it is counted."""

    arrival: Array
    working: Array
    counted: Flags


def asked_by(method: Method, problem: Problem, cohort: Participation, network: Network | None) -> Participation:
    """Whom the server asks if clients may be missing, with over-selection as in a federation."""
    if network is None:
        return cohort
    network.check(problem.n)
    if network.gradient is None:
        raise InputError(
            "the network has no time for a local gradient; pass Network(gradient=seconds), or a named network."
        )
    if "graph" in method.handles:
        raise InputError(f"{method.name} has no server, so it cannot run over a network; leave out network=.")
    if network.reliable or way_to_close(method, problem, None, cohort) == "everyone":
        return cohort
    if isinstance(cohort, Everyone):
        return Uniform(problem.n)
    if isinstance(cohort, Uniform) and not method.about.needs_whole_cohort:
        return Uniform(min(problem.n, math.ceil(cohort.c * (1 + network.extra))))
    return cohort


class Clock:
    """The simulated time of a run."""

    def __init__(self, network: Network, problem: Problem, method: Method, seed: int, cohort: Participation) -> None:
        self.network = network
        self.problem = problem
        self.method = method
        self.seed = seed
        # no client may be missing in the method's form for everyone
        asked = asked_by(method, problem, cohort, network)
        self.whole = isinstance(asked, Everyone)
        self.least = fewest(method, LEAST, problem.n)
        wanted = isinstance(cohort, Uniform) and asked != cohort
        self.enough = cohort.c if isinstance(cohort, Uniform) and wanted else None
        self.seconds, self.computing = 0.0, 0.0
        self.slowest_seconds, self.slowest_client = math.nan, math.nan
        self.late = 0
        self.lost = 0
        self.void = 0
        self.attempt, self.first_attempt = 0, 0
        self.now: Asked | None = None
        """The exchange under way."""
        sizes = problem.N / problem.n if problem.N and problem.batch is not None else 1.0
        self.passes = max(1.0, sizes / problem.batch) if problem.batch is not None else 1.0

    # -- an exchange ---------------------------------------------------------------------------------------------------
    def costs_of(self, half: ClientHalf, down: Sequence[Stack], own: Mapping[str, Any], cohort: Indices) -> HalfCosts:
        """The cost of this half for these clients, by dry runs of it."""
        shapes = [v.shape for v in down]

        def costs_with(numbers: Sequence[float]) -> HalfCosts:
            named = dict(zip(own, map(float, numbers), strict=True))
            return HalfCosts.of(half, self.method.remembers, self.problem.d, shapes, named, self.passes)

        costs = costs_with([v[cohort[0]] for v in own.values()])
        if not costs.varies or not own:
            return costs
        rows = np.column_stack([np.asarray(v, dtype=np.float64)[cohort] for v in own.values()])
        different, which = np.unique(rows, axis=0, return_inverse=True)
        each = [costs_with(row) for row in different]
        fixed, per_step = np.array([[c.fixed, c.per_step] for c in each])[which.ravel()].T
        return replace(costs, fixed=fixed, per_step=per_step)

    def ask(
        self, costs: HalfCosts, asked: Indices, steps: Counts, down: Array | float, round: int, exchange: int = 0
    ) -> Indices:
        """The clients that are counted; raises ``Void`` if the round does not count.

        Args:
            steps: local steps, one number or one each.
            down: bytes sent to each client.
        """
        reachable, traits = self._reach(asked, exchange), self.network.traits(self.seed, asked)
        key = Key(self.seed, round, int(asked[0]), 0, len(asked), self.attempt, exchange)
        up = costs.bytes_up(key)
        share = self.network.server / max(1, int(np.count_nonzero(reachable)))
        carried = 2 * traits.latency + down / np.minimum(traits.down, share) + up / np.minimum(traits.up, share)
        fault = client_uniforms(self.seed, "faults", asked, round, self.attempt)[exchange % 4]
        # lost before or after the work: the server cannot know, and waits
        answering = reachable & (fault >= self.network.lost_before + self.network.lost_after)
        whole = self.whole or exchange > 0 or costs.is_open
        now = self.now = Asked(asked, traits, carried, reachable, answering, costs, whole)
        if costs.is_open:
            # a criterion ends the steps, so the time they take is known only after the work of the whole cohort
            at_once = self._answers(now, np.zeros(len(asked)))
            return asked if self._commits(now, at_once) else self._close(now, at_once)
        return self._close(now, self._answers(now, now.gradients(steps)))

    def done(self, steps: Counts | None) -> None:
        """After the work: add its time if a criterion ended the local steps."""
        now, self.now = self.now, None
        if now is not None and now.costs.is_open:
            assert steps is not None  # the half ended its steps by a criterion
            self._close(now, self._answers(now, now.gradients(steps)))

    def _reach(self, asked: Indices, exchange: int) -> Flags:
        """Who is reachable; a server waits until enough clients are."""
        need = len(asked) if self.whole or exchange else min(self.least, len(asked))
        online = self.network.online(self.seed, asked, self.seconds)
        for _ in range(MOST_HOURS):
            if exchange or np.count_nonzero(online) >= need:
                break
            self.seconds = (self.seconds // HOUR + 1) * HOUR
            online = self.network.online(self.seed, asked, self.seconds)
        return online

    def _answers(self, now: Asked, gradients: Array) -> Answers:
        """When the clients answer after this much work, and who of them is counted."""
        working = gradients * now.traits.gradient
        arrival = np.where(now.answering, now.carried + working, np.inf)
        counted = now.answering
        if self.network.deadline is not None:
            counted = arrival <= self.network.deadline
        if self.enough is not None and not now.whole:
            first = np.argsort(arrival, kind="stable")[: self.enough]
            counted = counted & np.isin(np.arange(len(arrival)), first)
        return Answers(arrival, working, counted)

    def _commits(self, now: Asked, answers: Answers) -> bool:
        """Whether the exchange counts."""
        asked, counted = len(now.clients), int(np.count_nonzero(answers.counted))
        return commits(asked, counted, now.whole, min(self.least, asked))

    def _close(self, now: Asked, answers: Answers) -> Indices:
        """Advance the time to the end of the exchange; returns the counted clients in their order."""
        self.seconds += self._duration(now, answers)
        self.lost += int(np.count_nonzero(~now.answering))
        self.late += int(np.count_nonzero(now.answering & ~answers.counted))
        if not self._commits(now, answers):
            self.void += 1
            self.attempt += 1
            raise Void
        last = int(np.argmax(np.where(answers.counted, answers.arrival, -1.0)))
        self.computing += float(answers.working[last])
        self.slowest_seconds, self.slowest_client = float(answers.arrival[last]), float(now.clients[last])
        return now.clients[answers.counted]

    def _duration(self, now: Asked, answers: Answers) -> float:
        """Seconds until all reachable clients or enough of them have answered, at most until the deadline."""
        counted = int(np.count_nonzero(answers.counted))
        has_enough = self.enough is not None and not now.whole and counted >= self.enough
        if not has_enough and np.any(now.reachable & ~answers.counted):
            return self.network.deadline or math.inf
        if counted == 0:
            return 0.0
        return float(answers.arrival[answers.counted].max())

    # -- a round -------------------------------------------------------------------------------------------------------
    def committed(self) -> None:
        """The round counts."""
        self.attempt = self.first_attempt = 0

    def given_up(self, round: int) -> Verdict | None:
        """The end of a run whose round was void too often; None to try again."""
        tried = self.attempt - self.first_attempt
        if tried <= self.network.patience:
            return None
        what = "a client was missing each time" if self.whole else "too few clients answered each time"
        return Verdict(Status.STALLED, f"round {round} failed {tried} times in a row: {what}.")

    def row(self) -> dict[str, float]:
        slowest = self.slowest_seconds, self.slowest_client
        values = self.seconds, self.computing, *slowest, self.late, self.lost, self.void
        return dict(zip(SIM_COLUMNS, map(float, values), strict=True))

    def state(self) -> dict[str, Any]:
        """What a resumed run needs."""
        return {**{k: v if v == v else None for k, v in self.row().items()}, "attempt": self.attempt}

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Restore ``state``; a run that had given up tries again."""
        values = [math.nan if saved[k] is None else float(saved[k]) for k in SIM_COLUMNS]
        self.seconds, self.computing, self.slowest_seconds, self.slowest_client = values[:4]
        self.late, self.lost, self.void = (int(v) for v in values[4:])
        self.attempt = self.first_attempt = int(saved["attempt"])
