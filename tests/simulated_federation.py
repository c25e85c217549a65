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

import hashlib
import heapq
import math
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np

from lockstep import drive
from proxskip.links.cohorts import Everyone, Participation, Uniform
from proxskip.loop.audit import allowed, rounded_scale
from proxskip.methods import FedLin, FiveGCS, LocalGD, Scaffnew, Scaffold, SLocalGD
from proxskip.problems.federated import Problem
from proxskip.problems.quadratic import Quadratic
from proxskip.protocol import allowed_halves, audit
from proxskip.protocol.client import ClientNode, ClientState
from proxskip.protocol.events import Again, Arrived, Begin, Deadline, Event, Restarted
from proxskip.protocol.server import Server
from proxskip.protocol.state import ServerState
from proxskip.protocol.wire import Ask, decode, encode, upload_digest
from proxskip.protocol.worker import Worker
from proxskip.randomness import generator, python_generator
from proxskip.types import Array

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


@cache
def federation(which: int) -> tuple[str, Server, tuple[ClientNode, ...]]:
    """A small federation: six methods in nine forms, two to four clients, equal weights or not."""
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
        method, problem, ROUNDS, seed=which, closing=closing, cohort=cohort, audit=audit, patience=10**6, insist=True,
        itemsize=itemsize,
    )  # fmt: skip
    return f"{method.name}, {server.closing}", server, tuple(ClientNode(server.method, w, itemsize) for w in workers)


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
        self.nodes = [_Node(c, ClientState.fresh(self.run)) for c in clients]
        self.rates = {f: self.rng.uniform(0.0, 0.3) if self.rng.random() < 0.4 else 0.0 for f in FAULTS}
        self.state = self.core.start(self.run)
        self.disk = self.state
        self.now, self.order, self.waiting = 0.0, 0, (0, -1)
        self.queue: list[tuple[float, int, Any]] = []
        self.faults = dict.fromkeys(FAULTS, 0)
        self.wiped: set[int] = set()
        self.log = hashlib.sha256()

    def go(self) -> SimulatedRun:
        """All events in the order of their time."""
        self._serve(Begin())
        for at in range(1, int(CALM), 3):
            self._at(float(at) + self.rng.random(), ("trouble", None))
        while self.queue and not self.state.over:
            self.now, _, (what, load) = heapq.heappop(self.queue)
            if self.now > END:
                raise self._violation(f"not over at {END}, round {self.state.round}, notes {self.state.notes[-3:]}")
            if what == "ask":
                self._deliver(load)
            elif what == "trouble":
                self._trouble()
            else:
                self._serve(load)
        self._finished()
        return SimulatedRun(self.log.hexdigest(), self.faults, dict(vars(self.state.counts)))

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

    def _send(self, what: str, make: Any, message: Ask | bytes, node: _Node) -> None:
        """Onto the network, which may do anything to it."""
        if self._hits("drop") or node.down_until > self.now:
            return
        raw = message if isinstance(message, bytes) else encode(message)
        if self._hits("damage"):
            at = self.rng.randrange(len(raw))
            raw = raw[:at] + bytes([raw[at] ^ (1 << self.rng.randrange(8))]) + raw[at + 1 :]
        for _ in range(2 if self._hits("duplicate") else 1):
            delay = self.rng.uniform(0.1, 1.0) * (12.0 if self._hits("delay") else 1.0)
            self._at(self.now + delay, (what, make(raw)))

    def _trouble(self) -> None:
        """A client is cut off or crashes, or the server restarts from its disk."""
        for node in self.nodes:
            if self._hits("cut") or self._hits("crash"):
                node.down_until = min(CALM, self.now + self.rng.uniform(0.5, 15.0))
            if self._hits("wipe"):
                node.state = ClientState.fresh(self.run)
                node.applied.clear()
                self.wiped.add(node.core.worker.i)
        if self._hits("restart"):
            self._restart()

    def _restart(self) -> None:
        self.state = ServerState.of(self.disk.arrays(), self.disk.meta())
        self._serve(Restarted())

    # -- the server ----------------------------------------------------------------------------------------------------
    def _serve(self, event: Event) -> None:
        before = self.state
        if isinstance(event, Arrived):
            self.log.update(event.raw)
        after, asks = self.core.step(before, event)
        turned = (after.ticket, after.over) != (before.ticket, before.over)
        if turned:
            if self._hits("torn"):  # it dies before it has written: nothing has happened
                return self._restart()
            self.disk = after
            self._committed(before, after)
        self.state = after
        if after.failed:
            raise self._violation(after.failed)
        if turned and self._hits("torn"):  # it dies after writing: nothing is sent
            return self._restart()
        for ask in asks:
            self._send("ask", lambda raw, i=ask.client: (i, raw), ask, self.nodes[ask.client])
        if (after.ticket, after.exchange) != self.waiting:
            self.waiting = (after.ticket, after.exchange)
            self._at(self.now + WAIT, ("server", Deadline(after.ticket, after.exchange)))
            self._at(self.now + WAIT / 2, ("server", Again()))
        return None

    def _committed(self, before: ServerState, after: ServerState) -> None:
        """The shadow follows the server, and its sum is checked."""
        changed = [i for i, (a, b) in enumerate(zip(before.counted, after.counted, strict=True)) if a != b]
        adopted = sum(after.outcomes[after.counted[i]].settle == allowed_halves.ADOPT for i in changed)
        for i in changed:
            node, ticket = self.nodes[i], after.counted[i]
            outcome = after.outcomes[ticket]
            if outcome.settle == allowed_halves.ADOPT:
                h = outcome.vectors[0]
                if adopted == 1 and np.abs(h - node.shadow).max() > 1e-12 * (1.0 + np.abs(h).max()):
                    raise self._violation(f"client {i} got an h that is not the one it lost")
                node.shadow = node.history[ticket] = h
                continue
            if (ticket, after.uploads[i]) not in node.work:
                raise self._violation(f"ticket {ticket} counted an upload that client {i} never made for it")
            memory = {self.summed: node.shadow, **node.work[ticket, after.uploads[i]]}
            if outcome.settle:
                memory |= node.core.worker.settle(node.core.allowed[outcome.settle], memory, outcome.vectors)
            node.shadow = node.history[ticket] = memory[self.summed]
        if changed and self.core.has_h:
            H = np.array([node.shadow for node in self.nodes])
            core = self.core
            total = float(np.abs(audit.excess(core.method, core.problem, after, range(len(H)), H)).max())
            scale = max(after.scale, rounded_scale(core.method, after.vectors["x"], H))
            if total > allowed(scale, after.round):
                raise self._violation(f"sum h = {total} after ticket {before.ticket}")

    # -- the clients ---------------------------------------------------------------------------------------------------
    def _deliver(self, load: tuple[int, bytes]) -> None:
        i, raw = load
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
            node.work[p.ticket, upload_digest(p.up)] = dict(p.memory)
        node.state = after
        for answer in answers:
            self._send("answer", lambda raw, i=i: Arrived(raw, i), answer, node)

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
        if not self.state.over or self.state.round < ROUNDS:
            raise self._violation(f"nothing happens any more in round {self.state.round}")
        exact = self.core.closing == "everyone" and not self.state.counts.lost and not self.wiped
        x = self.state.vectors["x"].tobytes()
        if exact and x != undisturbed(self.which):
            raise self._violation("faults changed the answer")
        self.log.update(x)

    def _violation(self, what: str) -> Violation:
        return Violation(f"seed {self.seed} ({self.kind}): {what}")


def simulate(seed: int) -> SimulatedRun:
    """Run one seed; Violation where a law does not hold."""
    return Simulation(seed).go()
