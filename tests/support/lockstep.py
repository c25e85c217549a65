"""Federations in one process: one that never fails, and one whose messages a test moves by hand, all as bytes."""

import copy
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

import proxskip as ps
from proxskip.flower import Ask, ClientNode, ClientState, Server, ServerState, Worker
from proxskip.flower.messages import decode, encode
from proxskip.flower.tickets import Ticket
from proxskip.participation import as_participation
from support.methods import METHODS, Row
from support.problems import quadratics

RUN = bytes(range(16))


def drive(
    server: Server, clients: Any, run: bytes = bytes(16), x0: Any = None
) -> tuple[ServerState, list[ClientState]]:
    """Run to the end; the states of the server and of all clients."""
    memories = [ClientState(run) for _ in clients]
    asks = server.begin(run, x0)
    while asks:
        batch, asks = asks, []
        for ask in batch:
            i = ask.client
            memories[i], answers = clients[i].step(memories[i], encode(ask, server.limit))
            for raw in answers:
                asks += server.arrived(raw, i)
    return server.state, memories


def forked(server: Server) -> Server:
    """A server in the same state, whose events do not reach this one."""
    other = copy.copy(server)
    other.state, other.under_way = copy.deepcopy(server.state), copy.deepcopy(server.under_way)
    return other


def federate(method: Any, problem: ps.Problem, rounds: int = 8, **options: Any) -> tuple[Server, list[ClientNode]]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ps.UnsafeStepWarning)
        options["cohort"] = as_participation(options.get("cohort"))
        server = Server(method, problem, rounds, allow_unsafe_step=True, **options)
    size = options.get("itemsize", 8)
    workers = [Worker(f, i, server.seed, problem.batch) for i, f in enumerate(problem.clients)]
    return server, [ClientNode(server.method, w, size) for w in workers]


class Wires:
    """A server and its clients by hand: nothing moves unless a test moves it."""

    def __init__(self, rounds: int = 6, n: int = 4, **options: Any) -> None:
        self.problem = options.pop("problem", None) or ps.Problem(quadratics(n), options.pop("weights", None))
        method = options.pop("method", None) or ps.Scaffnew(1 / self.problem.L_max, 0.4)
        self.method, self.options = method, {"rounds": rounds, **options}
        self.server, self.clients = federate(method, self.problem, **self.options)
        self.memory = [ClientState(RUN) for _ in self.clients]
        self.asks: list[Ask] = self.server.begin(RUN)

    @property
    def state(self) -> ServerState:
        return self.server.state

    @property
    def ticket(self) -> Ticket:
        """The ticket under way."""
        assert self.server.under_way is not None
        return self.server.under_way

    @property
    def now(self) -> tuple[int, int]:
        """The ticket and the exchange under way."""
        return self.state.ticket, -1 if self.state.over else self.ticket.exchange

    def arrive(self, raw: bytes, i: int) -> None:
        self.asks = self.server.arrived(raw, i) or self.asks

    def end(self, now: tuple[int, int]) -> None:
        """The deadline of this ticket and exchange."""
        self.asks = self.server.deadline(*now) or self.asks

    def work(self, ask: Ask) -> list[bytes]:
        i = ask.client
        self.memory[i], raw = self.clients[i].step(self.memory[i], encode(ask))
        return raw

    def deliver(self, but: tuple[int, ...] = (), change: dict[int, Callable[[Any], Any]] | None = None) -> None:
        """All asks, but not to these clients, whose time then runs out; change alters answers on their way."""
        now = self.now
        for ask in self.asks:
            for raw in () if ask.client in but else self.work(ask):
                if change and ask.client in change:
                    raw = encode(change[ask.client](decode(raw, self.problem.d)))
                self.arrive(raw, ask.client)
        self.end(now)

    def play(self, rounds: int) -> None:
        while self.state.round < rounds:
            self.deliver()

    def finish(self, but: tuple[int, ...] = (), most: int = 500) -> None:
        for _ in range(most):
            if self.state.over:
                return
            self.deliver(but)
        raise AssertionError("it does not end")

    def restart(self, **changed: Any) -> None:
        """A new server, perhaps with other options, goes on from what this one saved."""
        saved = self.server.save()
        self.options |= changed
        self.server, _ = federate(self.method, self.problem, **self.options)
        self.asks = self.server.restore(*saved) or self.asks

    def error(self) -> float:
        return float(np.linalg.norm(self.state.vectors["x"] - self.problem.solution.x))

    def wipe(self, i: int) -> None:
        self.memory[i] = ClientState(RUN)

    def spoil(self, i: int, by: float) -> None:
        """Move a client's h behind its back."""
        memory = self.memory[i].memory
        self.memory[i] = replace(self.memory[i], memory={**memory, "h": memory["h"] + by})

    def truth(self) -> np.ndarray:
        """Every client's h once it has heard its verdict."""
        rows = []
        for i, memory in enumerate(self.memory):
            ask = self.asks[0]
            counted = int(self.state.counted[i])
            owed = self.state.outcomes.get(counted)
            verdict = replace(
                ask, ticket=10**9, exchange=0, client=i, half=".report", down=(), counted=counted,
                upload=self.state.uploads[i].tobytes(), settle=owed.settle if owed else "", outcome=owed.vectors if owed else None,
            )  # fmt: skip
            told, _ = self.clients[i].step(memory, encode(verdict))
            name = self.server.method.about.summed
            rows.append(told.memory[name] if told.memory else np.zeros(self.problem.d))
        return np.array(rows)


CENTRAL = [r for r in METHODS if r.down != 0 and "decaying" not in r.name and not r.split and r.clients > 1]


def forms_of(row: Row, problem: ps.Problem) -> list[tuple[str, Any]]:
    """How the rounds of a method may close, and the cohort of a run that does the same."""
    if row.cohort:
        return [("deadline", row.cohort)]
    both = not row.name.startswith("5gcs") and "cohort" in row.make(problem).handles and row.psi is None
    return [("everyone", None), ("deadline", [list(range(problem.n))])][: 1 + both]
