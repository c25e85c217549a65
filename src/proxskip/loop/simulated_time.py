"""Simulated time: how long each exchange of a run takes over a network, and who is missing in it.

An exchange is decided before any work is done. Client i answers after

    2 latency_i + down_i/bandwidth_i + gradients_i gradient_i + up_i/up_i's bandwidth   seconds,

where no bandwidth exceeds its share of the server's. Those who cannot be reached, are lost, or are late are left out,
and ``loop.closing`` says whether the rest commits or the round is void. Only those who are counted do the work, so that
a method sees missing clients exactly as in a federation. Everything is drawn by (seed, round, attempt, client).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from proxskip.interfaces import ClientHalf, Method
from proxskip.interfaces.dry_run import IdleClient, Route
from proxskip.links.codecs import Key
from proxskip.links.cohorts import Everyone, Participation, Uniform
from proxskip.links.network import HOUR, Network, Traits
from proxskip.loop.closing import LEAST, asked_in, commits, fewest, way_to_close
from proxskip.problems.federated import Problem
from proxskip.randomness import client_uniforms
from proxskip.results.result import Status
from proxskip.types import Array, Indices, InputError

Flags = npt.NDArray[np.bool_]

SIM_COLUMNS = ("sim_seconds", "sim_computing", "slowest_seconds", "slowest_client", "late", "lost", "void")
"""Columns of a trace: seconds since the start, those in which the slowest client computed, the seconds and the number
of the slowest client of the last round, and how many clients were late or lost, and attempts void, since the start."""
MOST_HOURS = 168
"""How long a server waits until enough of those that it asks can be reached: a week."""


class Void(Exception):
    """Too few clients answered: the round is tried again."""


@dataclass(frozen=True, slots=True)
class HalfCosts:
    """What a client half costs: gradients ``fixed + per_step K``, the codecs of what it sends, and bytes besides."""

    fixed: Any
    """One number, or one for each client that is asked; ``per_step`` too."""
    per_step: Any
    route: Route = ()
    is_open: bool = False
    varies: bool = False
    """Whether the gradients depend on the numbers that each client is sent."""
    more_bytes: float = 0.0

    @staticmethod
    def of(
        half: ClientHalf, remembers: Sequence[str], d: int, shapes: Any, own: Mapping[str, float], passes: float
    ) -> HalfCosts:
        """Found out by running the half on a client that does nothing, with one step and with two."""
        gradients = []
        for K in (1, 2):
            idle = IdleClient(passes=passes)
            memory = {k: np.zeros(d) for k in remembers}
            route = idle.route(half, memory, K, tuple(np.zeros(s) for s in shapes), own)
            gradients.append(idle.gradients)
        per_step = gradients[1] - gradients[0]
        return HalfCosts(gradients[0] - per_step, per_step, route, idle.open, idle.has_where)

    def bytes_up(self, d: int, key: Key) -> float:
        """Bytes of one client's answer; where codecs divide the coordinates, those of the first client."""
        bits = [64 * d if codec is None else codec.bits(d, replace(key, vector=v)) for codec, v in self.route]
        return self.more_bytes + float(sum(-(-b // 8) for b in bits))


@dataclass
class Exchanged:
    """One exchange under way: who was asked, what they are like, and what does not depend on their steps."""

    asked: Indices
    traits: Traits
    carried: Array
    alive: Array
    costs: HalfCosts
    whole: bool


def asked_by(method: Method, problem: Problem, cohort: Participation, network: Network | None) -> Participation:
    """Whom the server asks where clients may be missing: as in a federation, and more of them with over-selection."""
    if network is None:
        return cohort
    network.check(problem.n)
    if network.gradient is None:
        raise InputError(
            "a run over a network needs the seconds of a local gradient; give Network(gradient=...), or name a network."
        )
    if "graph" in method.handles:
        raise InputError(f"{method.name} has no server, and a network is one between a server and clients.")
    if network.reliable or way_to_close(method, problem, None, cohort) == "everyone":
        return cohort
    if isinstance(cohort, Everyone):
        return Uniform(problem.n)
    if isinstance(cohort, Uniform) and not method.about.needs_whole_cohort:
        return Uniform(min(problem.n, math.ceil(cohort.c * (1 + network.extra))))
    return cohort


class Duration(NamedTuple):
    """Seconds of an exchange: those in which the slowest client computes, and the others."""

    computing: float
    waiting: float


def mean_exchange(
    clock: Clock, asked: Participation, costs: HalfCosts, steps: float, down: float, exchanges: int
) -> Duration:
    """The mean over that many exchanges from now on, without any work: infinite where a round is given up.

    Args:
        costs, steps, down: of one exchange, as in ``Clock.ask``.
    """
    done = 0
    while done < exchanges:
        try:
            clock.ask(costs, asked_in(asked, clock.seed, done, clock.attempt, clock.problem.n), steps, down, done)
        except Void:
            if clock.given_up(done) is not None:
                return Duration(0.0, math.inf)
            continue
        clock.committed()
        done += 1
    return Duration(clock.computing / done, (clock.seconds - clock.computing) / done)


class Clock:
    """The simulated time of one run."""

    def __init__(self, network: Network, problem: Problem, method: Method, seed: int, cohort: Participation) -> None:
        self.network, self.problem, self.method, self.seed = network, problem, method, seed
        # with everybody in the method's form for that, nobody may be missing
        asked = asked_by(method, problem, cohort, network)
        self.whole = isinstance(asked, Everyone)
        self.least = fewest(method, LEAST, problem.n)
        wanted = isinstance(cohort, Uniform) and asked != cohort
        self.enough = cohort.c if isinstance(cohort, Uniform) and wanted else None
        self.costs: dict[str, HalfCosts] = {}
        self.seconds = self.computing = 0.0
        self.slowest_seconds, self.slowest_client = math.nan, math.nan
        self.late = self.lost = self.void = 0
        self.attempt = self.first_attempt = 0
        self.now: Exchanged | None = None
        sizes = problem.N / problem.n if problem.N and problem.batch is not None else 1.0
        self.passes = max(1.0, sizes / problem.batch) if problem.batch is not None else 1.0

    # -- an exchange ---------------------------------------------------------------------------------------------------
    def costs_of(self, half: ClientHalf, down: Sequence[Any], own: Mapping[str, Any], cohort: Indices) -> HalfCosts:
        """What this half costs these clients with such vectors; found out once, unless it varies with their numbers."""
        name = (half.func if isinstance(half, partial) else half).__name__
        shapes = [v.shape for v in down]

        def costs_with(numbers: Sequence[float]) -> HalfCosts:
            named = dict(zip(own, map(float, numbers), strict=True))
            return HalfCosts.of(half, self.method.remembers, self.problem.d, shapes, named, self.passes)

        if name not in self.costs:
            self.costs[name] = costs_with([v[cohort[0]] for v in own.values()])
        costs = self.costs[name]
        if not costs.varies or not own:
            return costs
        rows = np.column_stack([np.asarray(v, dtype=np.float64)[cohort] for v in own.values()])
        different, which = np.unique(rows, axis=0, return_inverse=True)
        each = [costs_with(row) for row in different]
        fixed, per_step = np.array([[c.fixed, c.per_step] for c in each])[which.ravel()].T
        return replace(costs, fixed=fixed, per_step=per_step)

    def ask(
        self, costs: HalfCosts, asked: Indices, steps: Any, down: Array | float, round: int, exchange: int = 0
    ) -> Indices:
        """Who of these is counted; raises ``Void`` where the round does not count.

        Args:
            steps: local steps, one number or one each.
            down: bytes to each of them.
        """
        online, traits = self._reach(asked, exchange), self.network.traits(self.seed, asked)
        key = Key(self.seed, round, int(asked[0]), 0, len(asked), self.attempt, exchange)
        up = costs.bytes_up(self.problem.d, key)
        share = self.network.server / max(1, int(np.count_nonzero(online)))
        carried = 2 * traits.latency + down / np.minimum(traits.down, share) + up / np.minimum(traits.up, share)
        fault = client_uniforms(self.seed, "faults", asked, round, self.attempt)[exchange % 4]
        # lost before or after the work: the server learns of neither, and waits
        stays = fault >= self.network.lost_before + self.network.lost_after
        alive = np.where(online, np.where(stays, 1, 0), -1)
        # what a criterion ends is known after the work, which cannot then be done for fewer
        whole = self.whole or exchange > 0 or costs.is_open
        self.now = Exchanged(asked, traits, carried, alive, costs, whole)
        return self._close(self._gradients(steps, len(asked)), final=not costs.is_open)

    def done(self, steps: Any) -> None:
        """The work is done; where a criterion ended the local steps, it is known only now how long they took."""
        if self.now is not None and self.now.costs.is_open:
            self._close(self._gradients(steps, len(self.now.asked)), final=True)
        self.now = None

    def _gradients(self, steps: Any, c: int) -> Array:
        assert self.now is not None
        costs = self.now.costs
        return np.broadcast_to(costs.fixed + costs.per_step * np.asarray(steps, dtype=np.float64), (c,))

    def _reach(self, asked: Indices, exchange: int) -> Flags:
        """Who can be reached; a server begins when enough of those it asks are there."""
        need = len(asked) if self.whole or exchange else min(self.least, len(asked))
        online = self.network.online(self.seed, asked, self.seconds)
        for _ in range(MOST_HOURS):
            if exchange or np.count_nonzero(online) >= need:
                break
            self.seconds = (self.seconds // HOUR + 1) * HOUR
            online = self.network.online(self.seed, asked, self.seconds)
        return online

    def _close(self, gradients: Array, final: bool) -> Indices:
        """The clients that are counted, in their order; the time goes on if this is ``final``."""
        now, deadline = self.now, self.network.deadline or math.inf
        assert now is not None
        working = gradients * now.traits.gradient if final else np.zeros(len(now.asked))
        arrival = np.where(now.alive == 1, now.carried + working, np.inf)
        in_time = arrival <= deadline if math.isfinite(deadline) else now.alive == 1
        if self.enough is not None and not now.whole and np.count_nonzero(in_time) > self.enough:
            first = np.argsort(arrival, kind="stable")[: self.enough]
            in_time = np.isin(np.arange(len(arrival)), first)
        counted = int(np.count_nonzero(in_time))
        good = commits(len(now.asked), counted, now.whole, min(self.least, len(now.asked)))
        if not final and good:
            return now.asked[in_time]
        filled = self.enough is not None and not now.whole and counted >= self.enough
        # over once everybody who can be reached has answered, or enough have; else at the deadline
        last = int(np.argmax(np.where(in_time, arrival, -1.0)))
        waits = not filled and bool(np.any((now.alive >= 0) & ~in_time))
        self.seconds += deadline if waits else float(arrival[last]) if counted else 0.0
        self.lost += int(np.count_nonzero(now.alive < 1))
        self.late += int(np.count_nonzero((now.alive == 1) & ~in_time))
        if not good:
            self.void, self.attempt = self.void + 1, self.attempt + 1
            raise Void
        self.computing += float(working[last])
        self.slowest_seconds, self.slowest_client = float(arrival[last]), float(now.asked[last])
        return now.asked[in_time]

    # -- a round -------------------------------------------------------------------------------------------------------
    def committed(self) -> None:
        """The round counts."""
        self.attempt = self.first_attempt = 0

    def given_up(self, round: int) -> tuple[Status, str] | None:
        """How a run ends whose round was void too often; None to try again."""
        tried = self.attempt - self.first_attempt
        if tried <= self.network.patience:
            return None
        what = "one of the clients was missing each time" if self.whole else "too few clients answered each time"
        return Status.STALLED, f"round {round} could not be closed in {tried} attempts: {what}."

    def row(self) -> dict[str, float]:
        slowest = self.slowest_seconds, self.slowest_client
        values = self.seconds, self.computing, *slowest, self.late, self.lost, self.void
        return dict(zip(SIM_COLUMNS, map(float, values), strict=True))

    def state(self) -> dict[str, Any]:
        """What a resumed run needs."""
        return {**{k: v if v == v else None for k, v in self.row().items()}, "attempt": self.attempt}

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Take back what ``state`` gave; a run that had given up tries again."""
        values = [math.nan if saved[k] is None else float(saved[k]) for k in SIM_COLUMNS]
        self.seconds, self.computing, self.slowest_seconds, self.slowest_client = values[:4]
        self.late, self.lost, self.void = (int(v) for v in values[4:])
        self.attempt = self.first_attempt = int(saved["attempt"])
