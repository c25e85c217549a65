"""A method's own halves, driven round by round from any state and with any coin."""

import itertools
import warnings
from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from unittest import mock

import numpy as np

import proxskip as ps
from proxskip.core.engine import Request, Work
from proxskip.core.gossip import AwakeLinks, RandomLinks
from proxskip.core.method import Method
from proxskip.engines.reference import ReferenceEngine
from proxskip.participation import Bernoulli, Everyone, Uniform, as_participation
from proxskip.problems.federated import Problem
from proxskip.running.metered_exchange import MeteredExchange
from proxskip.running.run_spec import prepare
from proxskip.types import Array, Indices, UnsafeStepWarning, Vectors


class RowByRow(ReferenceEngine):
    """The reference engine, where a stacked message hands client i its row: the iterates between communications."""

    def run(self, request: Request) -> Work:
        ups, count, asked = [], 0, len(request.cohort)
        for j, i in enumerate(request.cohort):
            down = tuple(v[i] if v.ndim == 2 else v for v in request.down)
            K = request.K if np.ndim(request.K) == 0 else request.K[j : j + 1]
            own = {name: v[j : j + 1] for name, v in request.own.items()}
            one = replace(request, cohort=np.array([i]), down=down, K=K, own=own, first=j, asked=asked)
            work = super().run(one)
            ups.append(work.up)
            count += work.gradients
        return Work(tuple(np.concatenate(column) for column in zip(*ups, strict=True)), count)


class Heads:
    """A coin that always shows heads: K = 1; as told, a number in [0, 1) for each client, and the links awake."""

    def __init__(self, each: tuple[float, ...] = (), links: AwakeLinks | None = None) -> None:
        self.each, self.links = each, links

    def random(self, size: int | None = None) -> Any:
        return 0.0 if size is None else np.array(self.each[:size])


def links_awake(links: RandomLinks, d: int) -> Iterator[tuple[float, AwakeLinks]]:
    """Every set of awake links and of coordinates that they carry, with its probability."""
    i, j = np.nonzero(np.triu(links.graph.W, k=1))
    carried = [np.isin(np.arange(d), some) for some in itertools.combinations(range(d), links.k or d)]
    for state in itertools.product((None, *range(len(carried))), repeat=len(i)):
        up = [e for e, s in enumerate(state) if s is not None]
        chance = links.p ** len(up) * (1 - links.p) ** (len(i) - len(up)) / len(carried) ** len(up)
        mask = np.array([carried[s] for s in state if s is not None], dtype=bool).reshape(len(up), d)
        yield chance, AwakeLinks(i[up], j[up], links.graph.W[i[up], j[up]], mask)


def coins_of(method: Any, n: int, d: int) -> list[tuple[float, Heads]]:
    """Everything that a server half can draw in one iteration besides the coin of p, with its probability."""
    links: Any = getattr(method, "links", None)
    if isinstance(method, ps.RandomGossip):
        links = RandomLinks(method.graph, method.p_e * (1 - method.graph.failure), method.k)
    if isinstance(links, RandomLinks):
        return [(chance, Heads(links=awake)) for chance, awake in links_awake(links, d)]
    if not isinstance(method, ps.GradSkip):
        return [(1.0, Heads())]
    found = []
    for sleeps in itertools.product((True, False), repeat=n):
        chances = [1 - q if asleep else q for q, asleep in zip(method.q, sleeps, strict=True)]
        if np.prod(chances) > 0:
            found.append((float(np.prod(chances)), Heads(tuple(0.0 if asleep else 1 - 1e-9 for asleep in sleeps))))
    return found


class Machine:
    """One method on one problem, round by round, from any state."""

    def __init__(self, method: Method, problem: Problem, cohort: Any = None, engine: Any = None, seed: int = 0):
        participation = as_participation(cohort)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UnsafeStepWarning)
            self.method, _ = prepare(method, problem, participation, allow_unsafe_step=True)
        self.problem, self.seed = problem, seed
        self.engine = engine or RowByRow()
        self.line = MeteredExchange(self.engine, problem, seed, participation)

    def put(self, server: Vectors, memory: Vectors) -> None:
        """Start from here; what is not given starts at zero."""
        zeros = {k: np.zeros((self.problem.n, self.problem.d)) for k in self.method.remembers}
        self.server = server
        self.engine.open(self.problem, zeros | memory, self.seed)

    def put_solution(self) -> None:
        """Start at x*, h_i* = grad f_i(x*), y*."""
        s: Any = self.problem.solution
        server = self.method.start(self.problem, s.x)
        if self.problem.D is not None:
            server["y"] = s.y
        memory = {"x": np.tile(s.x, (self.problem.n, 1)), "h": s.h, "c": s.h}
        if isinstance(self.method, ps.FiveGCS):  # v_i* = grad f_i(x*) - mu x*, and the server holds their sum
            memory["v"] = s.h - self.method.mu * s.x
            server["v"] = self.problem.weights @ memory["v"]
        self.put(server, {k: v.copy() for k, v in memory.items() if k in self.method.remembers})

    def round(self, r: int, cohort: Indices | None = None, rng: Any = None) -> None:
        """One round, with the cohort and the coin it would draw unless they are given."""
        self.line.begin(r)
        self.line.cohort = self.line.cohort if cohort is None else cohort
        if rng is not None:
            self.line._rng = rng
        if isinstance(rng, Heads) and rng.links is not None:
            with mock.patch.object(RandomLinks, "draw", return_value=rng.links):
                self.server = self.method.round(self.server, self.line)
        else:
            self.server = self.method.round(self.server, self.line)

    @property
    def memory(self) -> Vectors:
        return self.engine.memory()

    @property
    def x(self) -> Array:
        """All clients' x, one row each."""
        x = self.server["x"] if "x" in self.server else self.memory["x"]
        return np.broadcast_to(x, (self.problem.n, self.problem.d))


def cohorts_of(participation: Any, n: int) -> list[tuple[float, Indices]]:
    """Every cohort with its probability."""
    if isinstance(participation, Everyone):
        return [(1.0, np.arange(n))]
    if isinstance(participation, Uniform):
        found = [np.array(S) for S in itertools.combinations(range(n), participation.c)]
        return [(1.0 / len(found), S) for S in found]
    assert isinstance(participation, Bernoulli)
    found = [np.array(S) for c in range(1, n + 1) for S in itertools.combinations(range(n), c)]
    q = np.broadcast_to(participation.probability, (n,))
    mass = [float(np.prod(np.where(np.isin(np.arange(n), S), q, 1 - q))) for S in found]
    return [(m / sum(mass), S) for m, S in zip(mass, found, strict=True)]
