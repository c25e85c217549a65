"""The code inside a Ray actor: some clients' shards and memory, and the operations on them, each done once.

An actor is told operations in order (``Message``); it counts them, and refuses any other order.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import ray

from proxskip.engines.cpu.engine import CpuEngine
from proxskip.engines.cpu.shards import Census
from proxskip.interfaces import Request, Size, Work, look
from proxskip.problems.clients import checked_gradient
from proxskip.problems.federated import Problem
from proxskip.problems.oracles import in_double
from proxskip.types import Array, Indices, Vectors

if TYPE_CHECKING:  # only actors that load shards need it
    from proxskip.problems.sharded import RemoteClient, Shards

MAX_HALVES = 16
"""The most halves that an actor keeps."""


class Lost(Exception):
    """The actor is out of step with the message, and must be restored first."""


class Op(NamedTuple):
    """One half on some of the actor's clients.

    Args:
        verb: ``run`` or ``tell``.
        request: with its half as bytes or an object reference, its cohort numbered within the actor (None for all), and
            large vectors as references.
    """

    verb: str
    request: Request


@dataclass(frozen=True, slots=True)
class Message:
    """Operations start, start + 1, ... of a run."""

    run: str
    start: int
    ops: Sequence[Op]
    snapshot: bool = False
    """Whether the reply includes the clients' memory after them."""


@dataclass(frozen=True, slots=True)
class Reply:
    """The result of a message: what the last operation sent up, and the cost of all."""

    up: tuple[Array, ...]
    gradients: int
    seconds: float
    memory: Vectors | None
    sizes: tuple[Size | None, ...] = ()
    steps: Indices | None = None


class ActorWorker:
    """Clients ``first`` to ``first + m - 1`` of a problem."""

    def __init__(self, cores: int = 1) -> None:
        self.first, self.clients = 0, []  # type: int, Sequence[Any]
        self.engine = CpuEngine(cores)
        self.packed: Any = None
        self.run, self.done = "", -1
        self.half = lru_cache(MAX_HALVES)(_half)
        self.halted = threading.Event()

    # -- data ----------------------------------------------------------------------------------------------------------
    def take(self, first: int, clients: Sequence[Any] | Callable[[], Any]) -> None:
        """Take clients made elsewhere, or from a folder."""
        self.first, self.packed = first, None
        self.clients = clients() if callable(clients) else list(clients)

    def load(self, source: Shards, first: int, last: int) -> list[RemoteClient]:
        """Load the shards of clients first to last - 1, and describe them."""
        from proxskip.problems import sharded

        pairs = [sharded.loaded(source, i) for i in range(first, last)]
        self.first, self.packed, self.clients = first, None, [f for f, _ in pairs]
        return [about for _, about in pairs]

    def census(self, d: int, batch: int | None) -> Census:
        """The census of this actor's clients."""
        return Census.of(Problem(self.clients, batch=batch, d=d))

    def evaluate(self, x: Array) -> tuple[list[float], Array]:
        """f_i(x) and grad f_i(x) of every client."""
        x = np.array(x)
        with np.errstate(all="ignore"):
            values = [float(in_double(f).value(x)) for f in self.clients]
            rows = [checked_gradient(in_double(f), x, self.first + k) for k, f in enumerate(self.clients)]
        return values, np.stack(rows)

    # -- a run ---------------------------------------------------------------------------------------------------------
    def begin(
        self, run: str, start: int, seed: int, d: int, batch: int | None, census: Census, memory: Vectors
    ) -> None:
        """Stand before operation ``start`` of a run, with this memory."""
        key = (batch, census, seed)
        if self.packed != key:
            problem = Problem(self.clients, batch=batch, d=d)
            self.engine.open(problem, memory, seed, self.first, census)
            self.packed = key
        self.engine.kept = {k: np.array(v) for k, v in memory.items()}
        self.run, self.done = run, start
        self.halted.clear()

    def step(self, message: Message) -> Reply:
        if message.run != self.run or message.start != self.done:
            raise Lost(f"the actor is at operation {self.done}, not {message.start}")
        self.done = -1  # a message that fails halfway must not count as done
        work, gradients = Work((), 0), 0
        ops = [self._received(op) for op in message.ops]
        started = time.perf_counter()
        with np.errstate(all="ignore"):
            for op in ops:
                work = self._do(op)
                gradients += work.gradients
        seconds = time.perf_counter() - started
        self.done = message.start + len(ops)
        memory = self.engine.memory() if message.snapshot else None
        return Reply(work.up, gradients, seconds, memory, work.sizes, work.steps)

    def _received(self, op: Op) -> Op:
        """The operation with its half, and with writable vectors."""
        cohort: Any = op.request.cohort
        if cohort is None:
            cohort = np.arange(len(self.clients))
        down = tuple(np.array(ray.get(v) if isinstance(v, ray.ObjectRef) else v) for v in op.request.down)
        half = self.half(op.request.half)
        return Op(op.verb, replace(op.request, half=half, cohort=cohort, down=down, halt=self.halted))

    def _do(self, op: Op) -> Work:
        request = op.request
        if op.verb == "tell":
            self.engine.tell(request.half, request.cohort, request.down)  # type: ignore[arg-type]
            return Work((), 0)
        look(self.halted)
        return self.engine.run(request)

    # -- while a message is at work ------------------------------------------------------------------------------------
    @ray.method(concurrency_group="signals")
    def halt(self) -> None:
        """Break off the message under way, and all others until ``begin``."""
        self.halted.set()

    @ray.method(concurrency_group="signals")
    def where(self) -> tuple[int, str]:
        """The process and the node."""
        return os.getpid(), str(ray.get_runtime_context().get_node_id())


def _half(packed: Any) -> Any:
    return ray.cloudpickle.loads(packed) if isinstance(packed, bytes) else ray.get(packed)


def actor_class() -> Any:
    """The Ray actor: never restarted by Ray, which would reset h; it hears signals while it works.

    Ray's task events are off: with a call per round they would fill every actor's memory.
    """
    options = {"max_restarts": 0, "max_task_retries": 0, "enable_task_events": False}
    return ray.remote(concurrency_groups={"signals": 1}, **options)(ActorWorker)
