"""Federations in one process: one that never fails, and one whose messages a test moves by hand, all as bytes."""

import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

import proxskip as ps
from conftest import quadratics
from proxskip.links.cohorts import as_participation
from proxskip.protocol import Arrived, Ask, Begin, Client, ClientState, Deadline, Restarted, Server, ServerState, Worker
from proxskip.protocol.wire import decode, encode

RUN = bytes(range(16))


def drive(server: Any, clients: Any, run: bytes = bytes(16), x0: Any = None) -> tuple[ServerState, list[ClientState]]:
    """Run to the end; the states of the server and of all clients."""
    state, memories = server.start(run, x0), [ClientState.fresh(run) for _ in clients]
    state, asks = server.step(state, Begin())
    while asks:
        batch, asks = asks, []
        for ask in batch:
            i = ask.client
            memories[i], answers = clients[i].step(memories[i], encode(ask, server.limit))
            for raw in answers:
                state, more = server.step(state, Arrived(raw, i))
                asks += more
    return state, memories


def federate(method: Any, problem: ps.Problem, rounds: int = 8, **options: Any) -> tuple[Server, list[Client]]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ps.UnsafeStepWarning)
        options["cohort"] = as_participation(options.get("cohort"))
        server = Server(method, problem, rounds, insist=True, **options)
    size = options.get("itemsize", 8)
    workers = [Worker(f, i, server.seed, problem.batch) for i, f in enumerate(problem.clients)]
    return server, [Client(server.method, w, size) for w in workers]


class Wires:
    """A server and its clients by hand: nothing moves unless a test moves it."""

    def __init__(self, rounds: int = 6, n: int = 4, **options: Any) -> None:
        self.problem = options.pop("problem", None) or ps.Problem(quadratics(n), options.pop("weights", None))
        method = options.pop("method", None) or ps.Scaffnew(1 / self.problem.L_max, 0.4)
        self.server, self.clients = federate(method, self.problem, rounds, **options)
        self.state = self.server.start(RUN)
        self.memory = [ClientState.fresh(RUN) for _ in self.clients]
        self.asks: list[Ask] = []
        self.send(Begin())

    def send(self, event: Any) -> None:
        self.state, asks = self.server.step(self.state, event)
        self.asks = asks or self.asks

    def work(self, ask: Ask) -> list[bytes]:
        i = ask.client
        self.memory[i], raw = self.clients[i].step(self.memory[i], encode(ask))
        return raw

    def deliver(self, but: tuple[int, ...] = (), change: dict[int, Callable[[Any], Any]] | None = None) -> None:
        """All asks, but not to these clients, whose time then runs out; change alters answers on their way."""
        ticket, exchange = self.state.ticket, self.state.exchange
        for ask in self.asks:
            for raw in () if ask.client in but else self.work(ask):
                if change and ask.client in change:
                    raw = encode(change[ask.client](decode(raw, self.problem.d)))
                self.send(Arrived(raw, ask.client))
        self.send(Deadline(ticket, exchange))

    def play(self, rounds: int) -> None:
        while self.state.round < rounds:
            self.deliver()

    def finish(self, but: tuple[int, ...] = ()) -> None:
        for _ in range(500):
            if self.state.over:
                return
            self.deliver(but)
        raise AssertionError("it does not end")

    def restart(self) -> None:
        self.state = ServerState.of(self.state.arrays(), self.state.meta())
        self.send(Restarted())

    def error(self) -> float:
        return float(np.linalg.norm(self.state.vectors["x"] - self.problem.solution.x))

    def wipe(self, i: int) -> None:
        self.memory[i] = ClientState.fresh(RUN)

    def spoil(self, i: int, by: float) -> None:
        """Move a client's h behind its back."""
        memory = self.memory[i].memory
        self.memory[i] = self.memory[i].but(memory={**memory, "h": memory["h"] + by})

    def truth(self) -> np.ndarray:
        """Every client's h once it has heard its verdict."""
        rows = []
        for i, memory in enumerate(self.memory):
            ask = self.asks[0]
            counted = self.state.counted[i]
            owed = self.state.outcomes.get(counted)
            verdict = replace(
                ask, ticket=10**9, exchange=0, client=i, half=".report", down=(), counted=counted,
                upload=self.state.uploads[i], settle=owed.settle if owed else "", outcome=owed.vectors if owed else None,
            )  # fmt: skip
            told, _ = self.clients[i].step(memory, encode(verdict))
            name = self.server.method.about.summed
            rows.append(told.memory[name] if told.memory else np.zeros(self.problem.d))
        return np.array(rows)
