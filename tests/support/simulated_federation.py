"""A network, clocks and disks that fail as one seed says, around the real server and clients; every law is checked.

A seed draws the federation, which faults exist in it and how often: messages dropped, delayed, duplicated, reordered or
damaged, clients cut off, clients that crash with and without their disk (also between writing and sending), servers
that restart from disk. From ``CALM`` on nothing fails, and the run must end.

Beside the clients stands a shadow: for each client the h that it must have, computed when the server commits. Checked:

    after every commit  sum_i w_i h_i of the shadow is zero within the audit's tolerance
    whenever a client commits, its memory is bitwise its shadow, and it has not committed that round before
    a client that lost its memory gets back what the shadow kept, if it was alone
    in the calm the run ends, with all rounds done
    where rounds wait for everybody and no memory was lost, the answer is bitwise the one without faults
"""

import copy
import hashlib
import heapq
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np

from proxskip.flower import checks, halves
from proxskip.flower.client import ClientNode, ClientState
from proxskip.flower.messages import Ask, decode, encode
from proxskip.flower.server import Server
from proxskip.flower.worker import Worker
from proxskip.methods import FedLin, FiveGCS, LocalGD, Scaffnew, Scaffold, SLocalGD
from proxskip.participation import Everyone, Participation, Uniform
from proxskip.problems.federated import Problem
from proxskip.problems.quadratic import Quadratic
from proxskip.results.result import Status
from proxskip.running.audit import allowed, rounded_scale
from proxskip.support.randomness import generator, python_generator
from proxskip.types import Array
from support.lockstep import drive, forked

CALM, END, WAIT = 15.0, 150.0, 3.0
"""When faults stop, when the run must be over, and how long an exchange waits for answers."""
ROUNDS, D = 3, 3
FAULTS = ("drop", "duplicate", "delay", "damage", "cut", "crash", "wipe", "restart", "torn")


class Violation(AssertionError):
    """A law does not hold; the message names the seed."""


@dataclass
class SimulatedRun:
    """What a seed did."""

    digest: str
    faults: dict[str, int]
    counts: dict[str, int]


@dataclass
class _Node:
    """A client's process and disk."""

    core: ClientNode
    state: ClientState
    down_until: float = 0.0
    applied: set[int] = field(default_factory=set)
    shadow: Array = field(default_factory=lambda: np.zeros(D))
    history: dict[int, Array] = field(default_factory=dict)
    work: dict[tuple[int, bytes], dict[str, Array]] = field(default_factory=dict)


class _Noisy(Worker):
    """A client that never computes the same twice."""

    def descend(self, *args: Any, **options: Any) -> Any:
        return super().descend(*args, **options) * (1.0 + 1e-3 * math.sin(self.gradients))


def federation(which: int) -> tuple[str, Server, tuple[ClientNode, ...]]:
    """A small federation: six methods in nine forms, two to four clients, equal weights or not."""
    server, workers, itemsize = parts(which)
    kind = f"{server.method.name}, {server.closing}"
    return kind, forked(server), tuple(ClientNode(server.method, w, itemsize) for w in workers)


@cache
def parts(which: int) -> tuple[Server, list[Worker], int]:
    """A server before its first ticket, and the clients' workers."""
    kind = which % 9
    n = 2 + which // 9 % 3
    rng = generator(which)
    H = 0.2 + rng.random((n, D))
    weights = np.ones(n) if which % 2 else 1 + rng.random(n)
    problem = Problem([Quadratic(H[i], 2.0 * rng.standard_normal(D)) for i in range(n)], weights)
    gamma, audit = 1.0 / problem.L_max, 2 if which % 3 else 50
    cohort: Participation = Uniform(max(2, n - 1)) if kind in (1, 8) else Everyone()
    closing = "everyone" if kind == 2 else None
    workers = [(_Noisy if kind == 0 and which >= 9 else Worker)(f, i, which) for i, f in enumerate(problem.clients)]
    method: Any = {
        4: Scaffold(gamma / 2, 2),
        5: FedLin(gamma / 4, 2),
        6: SLocalGD(gamma / 4, 0.5, 0.5),
        7: LocalGD(gamma, 2),
        8: FiveGCS.theory(problem, cohort=cohort, figure=True),
    }.get(kind, Scaffnew(gamma, 0.5))
    itemsize = 4 if kind == 3 else 8
    server = Server(
        method, problem, ROUNDS, seed=which, closing=closing, cohort=cohort, audit=audit, patience=10**6, allow_unsafe_step=True,
        itemsize=itemsize,
    )  # fmt: skip
    server.begin(bytes(16))
    return server, workers, itemsize


@cache
def undisturbed(which: int) -> bytes:
    """x without faults."""
    _, server, clients = federation(which)
    return drive(server, clients)[0].vectors["x"].tobytes()


class Simulation:
    """One seed."""

    def __init__(self, seed: int) -> None:
        self.seed, self.rng = seed, python_generator(seed)
        self.which = self.rng.randrange(54)
        self.kind, self.core, clients = federation(self.which)
        self.summed = self.core.method.about.summed
        for c in clients:
            c.worker.gradients = 0
        self.run = seed.to_bytes(16, "little")
        self.nodes = [_Node(c, ClientState(self.run)) for c in clients]
        self.rates = {f: self.rng.uniform(0.0, 0.3) if self.rng.random() < 0.4 else 0.0 for f in FAULTS}
        self.waiting = (0, -1)
        self.disk: tuple[dict[str, Any], dict[str, Any]] | None = None
        self.now, self.order = 0.0, 0
        self.queue: list[tuple[float, int, Any]] = []
        self.faults = dict.fromkeys(FAULTS, 0)
        self.wiped: set[int] = set()
        self.log = hashlib.sha256()

    def go(self) -> SimulatedRun:
        """All events in the order of their time."""
        self._serve(self.core.begin, self.run)
        for at in range(1, int(CALM), 3):
            self._at(float(at) + self.rng.random(), ("trouble", None))
        while self.queue and not self.core.state.over:
            self.now, _, (what, load) = heapq.heappop(self.queue)
            if self.now > END:
                raise self._violation(
                    f"not over at {END}, round {self.core.state.round}, notes {self.core.state.notes[-3:]}"
                )
            if what == "ask":
                self._deliver(load)
            elif what == "trouble":
                self._trouble()
            elif what == "arrived":
                self.log.update(load[0])
                self._serve(self.core.arrived, *load)
            elif what == "deadline":
                self._serve(self.core.deadline, *load)
            else:
                self._serve(self.core.again)
        self._finished()
        return SimulatedRun(self.log.hexdigest(), self.faults, dict(vars(self.core.state.counts)))

    # -- faults --------------------------------------------------------------------------------------------------------
    def _hits(self, fault: str) -> bool:
        rate = self.rates[fault]
        if not rate or self.now >= CALM or self.rng.random() >= rate:
            return False
        self.faults[fault] += 1
        return True

    def _at(self, time: float, what: tuple[str, Any]) -> None:
        self.order += 1
        heapq.heappush(self.queue, (time, self.order, what))

    def _send(self, what: str, message: Ask | bytes, node: _Node) -> None:
        """Onto the network, which may do anything to it."""
        if self._hits("drop") or node.down_until > self.now:
            return
        raw = message if isinstance(message, bytes) else encode(message)
        if self._hits("damage"):
            at = self.rng.randrange(len(raw))
            raw = raw[:at] + bytes([raw[at] ^ (1 << self.rng.randrange(8))]) + raw[at + 1 :]
        for _ in range(2 if self._hits("duplicate") else 1):
            delay = self.rng.uniform(0.1, 1.0) * (12.0 if self._hits("delay") else 1.0)
            self._at(self.now + delay, (what, (raw, node.core.worker.i)))

    def _trouble(self) -> None:
        """A client is cut off or crashes, or the server restarts from its disk."""
        for node in self.nodes:
            if self._hits("cut") or self._hits("crash"):
                node.down_until = min(CALM, self.now + self.rng.uniform(0.5, 15.0))
            if self._hits("wipe"):
                node.state = ClientState(self.run)
                node.applied.clear()
                self.wiped.add(node.core.worker.i)
        if self._hits("restart"):
            self._restart()

    def _restart(self) -> None:
        """The server goes on from its disk, on which there may be nothing yet."""
        if self.disk is None:
            self._serve(self.core.begin, self.run)
        else:
            self._serve(self.core.restore, *copy.deepcopy(self.disk))

    # -- the server ----------------------------------------------------------------------------------------------------
    def _serve(self, event: Callable[..., list[Ask]], *arguments: Any) -> None:
        """The server handles an event, writes its state if a ticket is over, and sends messages."""
        asks = event(*arguments)
        state, disk = self.core.state, self.disk
        if disk is None or state.ticket != disk[1]["ticket"] or state.over:
            if self._hits("torn"):  # it dies before it has written: nothing has happened
                return self._restart()
            self.disk = copy.deepcopy(self.core.save())
            if disk is not None:
                self._committed(disk[0]["counted"])
            if state.verdict is not None and state.verdict[0] is not Status.LIMIT:
                raise self._violation(state.verdict[1])
            if self._hits("torn"):  # it dies after writing: nothing is sent
                return self._restart()
        self._send_asks(asks)
        return None

    def _send_asks(self, asks: list[Ask]) -> None:
        for ask in asks:
            self._send("ask", ask, self.nodes[ask.client])
        under_way = self.core.under_way
        if under_way is not None and (self.core.state.ticket, under_way.exchange) != self.waiting:
            self.waiting = (self.core.state.ticket, under_way.exchange)
            self._at(self.now + WAIT, ("deadline", self.waiting))
            self._at(self.now + WAIT / 2, ("again", None))

    def _committed(self, counted: Array) -> None:
        """The shadow follows the server, and its sum is checked."""
        state = self.core.state
        changed = np.flatnonzero(state.counted != counted).tolist()
        adopted = sum(state.outcomes[int(state.counted[i])].settle == halves.ADOPT for i in changed)
        for i in changed:
            node, mine = self.nodes[i], int(state.counted[i])
            outcome = state.outcomes[mine]
            if outcome.settle == halves.ADOPT:
                h = outcome.vectors[0]
                if adopted == 1 and np.abs(h - node.shadow).max() > 1e-12 * (1.0 + np.abs(h).max()):
                    raise self._violation(f"client {i} got an h that is not the one it lost")
                node.shadow = node.history[mine] = h
                continue
            upload = state.uploads[i].tobytes()
            if (mine, upload) not in node.work:
                raise self._violation(f"ticket {mine} counted an upload that client {i} never made for it")
            memory = {self.summed: node.shadow, **node.work[mine, upload]}
            if outcome.settle:
                memory |= node.core.worker.settle(node.core.allowed[outcome.settle], memory, outcome.vectors)
            node.shadow = node.history[mine] = memory[self.summed]
        if changed and self.core.has_h:
            H = np.array([node.shadow for node in self.nodes])
            method, x = self.core.method, state.vectors["x"]
            total = float(np.abs(checks.excess(method, self.core.problem, state.vectors, range(len(H)), H)).max())
            scale = max(state.scale, rounded_scale(method, state.round, x, H))
            if total > allowed(scale, state.round):
                raise self._violation(f"sum h = {total} before ticket {state.ticket}")

    # -- the clients ---------------------------------------------------------------------------------------------------
    def _deliver(self, load: tuple[bytes, int]) -> None:
        raw, i = load
        node = self.nodes[i]
        if node.down_until > self.now:
            return
        self.log.update(raw)
        before = node.state
        after, answers = node.core.step(before, raw)
        if self._hits("torn") and self.rng.random() < 0.5:
            return  # it dies before it has written
        if after.committed != before.committed:
            self._applied(node, after, raw)
        p = after.pending
        if p is not None and p is not before.pending:
            node.work[p.ticket, p.upload] = dict(p.memory)
        node.state = after
        for answer in answers:
            self._send("arrived", answer, node)

    def _applied(self, node: _Node, after: ClientState, raw: bytes) -> None:
        """A client has committed: once, and to exactly what the shadow says."""
        ask = decode(raw, D)
        assert isinstance(ask, Ask)
        if after.committed in node.applied and self.core.method.remembers:
            raise self._violation(f"client {ask.client} committed ticket {after.committed} twice")
        node.applied.add(after.committed)
        right = node.history.get(after.committed)
        if self.core.has_h and (right is None or not np.array_equal(after.memory.get(self.summed, np.nan), right)):
            raise self._violation(f"client {ask.client} committed another h than ticket {after.committed} gives")

    # -- the end -------------------------------------------------------------------------------------------------------
    def _finished(self) -> None:
        state = self.core.state
        if not state.over or state.round < ROUNDS:
            raise self._violation(f"nothing happens any more in round {state.round}")
        exact = self.core.closing == "everyone" and not state.counts.lost and not self.wiped
        x = state.vectors["x"].tobytes()
        if exact and x != undisturbed(self.which):
            raise self._violation("faults changed the answer")
        self.log.update(x)

    def _violation(self, what: str) -> Violation:
        return Violation(f"seed {self.seed} ({self.kind}): {what}")


def simulate(seed: int) -> SimulatedRun:
    """Run one seed; Violation where a law does not hold."""
    return Simulation(seed).go()
