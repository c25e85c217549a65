"""What runs inside a Ray actor: some clients' shards and memory, and the operations asked of them, each done once.

An actor is told operations in order (``Message``). It counts them, refuses any other order, and gives the reply of the
last message again if it is asked again, so that a retried call changes nothing.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import ray

from proxskip.engines.cpu.engine import CpuEngine
from proxskip.engines.cpu.shards import Census
from proxskip.interfaces import Request, Size, Work, look
from proxskip.lazy.compilation import without_numba
from proxskip.problems.clients import checked_gradient
from proxskip.problems.federated import Problem
from proxskip.problems.oracles import in_double
from proxskip.types import Array, Indices, Vectors

if TYPE_CHECKING:  # an actor that is given its clients reads no shards, and does without what reads them
    from proxskip.problems.sharded import RemoteClient, Shards

MAX_HALVES = 16
"""Halves that an actor keeps; it fetches one that it has forgotten again."""


class Lost(Exception):
    """The actor is not where the message takes it to be; it has to be set there first."""


@dataclass(frozen=True, slots=True)
class Op:
    """One half on some of the actor's clients."""

    verb: str
    """``run`` or ``tell``."""
    half: Any
    """The half: bytes, or a reference into the object store."""
    members: Indices | None
    """The clients, numbered within the actor; None for all."""
    vectors: tuple[Any, ...] = ()
    """What goes down; in a message, large vectors are references into the object store."""
    round: int = 0
    K: Any = 0
    own: Mapping[str, Array] = field(default_factory=dict)
    """Numbers of each member by name."""
    exchange: int = 0
    first: int = 0
    asked: int | None = None
    """As in ``interfaces.Request``: the first member's place among all that were asked, and how many they are."""


@dataclass(frozen=True, slots=True)
class Message:
    """Operations start, start + 1, ... of a run."""

    run: str
    start: int
    ops: Sequence[Op]
    snapshot: bool = False
    """Whether the reply is to have a copy of what the clients remember after them."""


@dataclass(frozen=True, slots=True)
class Reply:
    """What came of a message: what the last operation sent up, and what all of them cost."""

    up: tuple[Array, ...]
    gradients: int
    seconds: float
    memory: Vectors | None
    sizes: tuple[Size | None, ...] = ()
    steps: Indices | None = None


class ActorWorker:
    """Clients ``first`` to ``first + m - 1`` of a problem."""

    def __init__(self, number: int, cores: int = 1) -> None:
        without_numba()
        self.number = number
        self.first, self.clients = 0, []  # type: int, Sequence[Any]
        self.engine = CpuEngine(cores)
        self.packed: Any = None
        self.run, self.done = "", -1
        self.answered: tuple[int, int] = (-1, 0)
        self.reply: Reply | None = None
        self.halves: dict[Any, Any] = {}
        self.halted = threading.Event()

    # -- data ----------------------------------------------------------------------------------------------------------
    def take(self, first: int, clients: Sequence[Any] | Callable[[], Any]) -> None:
        """Clients that were made elsewhere, or that are in a folder."""
        self.first, self.packed = first, None
        self.clients = clients() if callable(clients) else list(clients)

    def load(self, source: Shards, first: int, last: int) -> list[RemoteClient]:
        """Load the shards of clients first to last - 1, and say what the problem needs to know about them."""
        from proxskip.problems import sharded

        pairs = [sharded.loaded(source, i) for i in range(first, last)]
        self.first, self.packed, self.clients = first, None, [f for f, _ in pairs]
        return [about for _, about in pairs]

    def census(self, d: int, batch: int | None) -> Census:
        """Counts behind the kernels' layout."""
        return Census.of(Problem(self.clients, batch=batch, d=d))

    def evaluate(self, x: Array) -> tuple[list[float], Array]:
        """f_i(x) and grad f_i(x) of every client."""
        x = np.array(x)
        with np.errstate(all="ignore"):
            values = [float(in_double(f).value(x)) for f in self.clients]
            rows = [checked_gradient(in_double(f), x, self.first + k) for k, f in enumerate(self.clients)]
        return values, np.stack(rows)

    # -- a run ---------------------------------------------------------------------------------------------------------
    def begin(self, run: str, start: int, seed: int, d: int, batch: int | None, census: Census, memory: Vectors) -> str:
        """Stand before operation ``start`` of a run, with this memory; on which machine."""
        key = (batch, census, seed)
        if self.packed != key:
            problem = Problem(self.clients, batch=batch, d=d)
            self.engine.open(problem, memory, seed, self.first, census)
            self.packed = key
        self.engine.kept = {k: np.array(v) for k, v in memory.items()}
        self.engine.spare = None
        self.run, self.done, self.answered, self.reply = run, start, (-1, 0), None
        self.halted.clear()
        return str(ray.get_runtime_context().get_node_id())

    def step(self, message: Message) -> Reply:
        """Do the operations, or give the last reply again if they are done."""
        span = message.start, len(message.ops)
        if message.run == self.run and span == self.answered and self.reply is not None:
            return self.reply
        if message.run != self.run or message.start != self.done:
            raise Lost(f"actor {self.number} is at operation {self.done}, not {message.start}")
        self.done = -1  # until all is done: a half-done message must not be taken for a done one
        work, gradients = Work((), 0), 0
        ops = [self._received(op) for op in message.ops]
        started = time.perf_counter()
        with np.errstate(all="ignore"):
            for op in ops:
                work = self._do(op)
                gradients += work.gradients
        seconds = time.perf_counter() - started
        self.done, self.answered = message.start + len(ops), span
        memory = self.engine.memory() if message.snapshot else None
        self.reply = Reply(work.up, gradients, seconds, memory, work.sizes, work.steps)
        return self.reply

    def _received(self, op: Op) -> Op:
        """The operation with its half, and with vectors of its own that may be written to."""
        half = self.halves.pop(op.half, None)
        if half is None:
            half = ray.cloudpickle.loads(op.half) if isinstance(op.half, bytes) else ray.get(op.half)
        self.halves[op.half] = half  # the most recent one is the last
        if len(self.halves) > MAX_HALVES:
            del self.halves[next(iter(self.halves))]
        vectors = tuple(np.array(ray.get(v) if isinstance(v, ray.ObjectRef) else v) for v in op.vectors)
        return replace(op, half=half, vectors=vectors)

    def _do(self, op: Op) -> Work:
        members = np.arange(len(self.clients)) if op.members is None else op.members
        if op.verb == "tell":
            self.engine.tell(op.half, members, op.vectors)
            return Work((), 0)
        look(self.halted)
        return self.engine.run(
            Request(
                op.half, members, op.round, op.K, op.vectors, op.own, op.exchange, 0, op.first, op.asked, self.halted
            )
        )

    # -- while a message is at work ------------------------------------------------------------------------------------
    @ray.method(concurrency_group="signals")
    def halt(self) -> None:
        """Break off the message at work, and any other, until ``begin``."""
        self.halted.set()

    @ray.method(concurrency_group="signals")
    def where(self) -> tuple[int, str]:
        """The process and the node."""
        return os.getpid(), str(ray.get_runtime_context().get_node_id())


def actor_class() -> Any:
    """The Ray actor: never restarted by Ray, which would forget h; signals are heard while a message is worked on.

    Ray keeps no list of its calls (``ray list tasks``): every round has one, and the list takes memory of every actor.
    """
    options = {"max_restarts": 0, "max_task_retries": 0, "enable_task_events": False}
    return ray.remote(concurrency_groups={"signals": 1}, **options)(ActorWorker)
