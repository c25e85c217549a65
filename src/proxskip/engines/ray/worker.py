"""The code inside a Ray actor: the shards and the memory of some clients, on a cpu engine of its own."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import ray

from proxskip.core.engine import Request, Work, look
from proxskip.engines.cpu.engine import CpuEngine
from proxskip.problems.clients import checked_gradient
from proxskip.problems.federated import Problem
from proxskip.problems.oracles import in_double
from proxskip.support.cores import available_cores
from proxskip.types import Array, Indices, Oracle, Vectors

if TYPE_CHECKING:  # only actors that load shards need it
    from proxskip.problems.sharded import RemoteClient, Shards


@dataclass(frozen=True, slots=True)
class Message:
    """What an actor does in one call: hear the outcomes since the last call, and then run a half.

    Halves are pickled, cohorts count from the actor's first client (None for all of them), and large vectors are
    references to Ray's object store.
    """

    outcomes: tuple[Request, ...]
    request: Request | None


@dataclass(frozen=True, slots=True)
class Reply:
    """What a request returned, and the seconds that it took."""

    work: Work
    seconds: float


class ActorWorker:
    """Clients ``first`` to ``first + m - 1`` of a problem.

    Args:
        cores: threads; by default all cores of the machine.
    """

    def __init__(self, cores: int | None = None) -> None:
        self.first, self.clients = 0, []  # type: int, Sequence[Oracle]
        self.engine = CpuEngine(cores or available_cores())
        self.halted = threading.Event()

    # -- data ----------------------------------------------------------------------------------------------------------
    def take(self, first: int, clients: Sequence[Oracle] | Callable[[], Sequence[Oracle]]) -> None:
        """Take clients made elsewhere, or from a folder."""
        self.first = first
        self.clients = clients() if callable(clients) else list(clients)

    def load(self, source: Shards, first: int, last: int) -> list[RemoteClient]:
        """Load the shards of clients first to last - 1, and describe them."""
        from proxskip.problems import sharded

        pairs = [sharded.loaded(source, i) for i in range(first, last)]
        self.first, self.clients = first, [f for f, _ in pairs]
        return [about for _, about in pairs]

    def evaluate(self, x: Array) -> tuple[list[float], Array]:
        """f_i(x) and grad f_i(x) of every client."""
        x = np.array(x)
        with np.errstate(all="ignore"):
            values = [float(in_double(f).value(x)) for f in self.clients]
            rows = [checked_gradient(in_double(f), x, self.first + k) for k, f in enumerate(self.clients)]
        return values, np.stack(rows)

    # -- a run ---------------------------------------------------------------------------------------------------------
    def begin(self, seed: int, d: int, batch: int | None, memory: Vectors) -> None:
        """Begin a run, or go on with one, from this memory."""
        self.halted.clear()
        problem = Problem(self.clients, batch=batch, d=d)
        self.engine.open(problem, {k: np.array(v) for k, v in memory.items()}, seed, self.first)

    def step(self, message: Message) -> Reply | None:
        """Hear the outcomes, and run the half if there is one."""
        started = time.perf_counter()
        with np.errstate(all="ignore"):
            for told in map(self._received, message.outcomes):
                self.engine.tell(told.half, told.cohort, told.down)  # type: ignore[arg-type]
            if message.request is None:
                return None
            look(self.halted)
            work = self.engine.run(self._received(message.request))
        return Reply(work, time.perf_counter() - started)

    def memory(self, message: Message) -> Vectors:
        """What the clients remember after these outcomes."""
        self.step(message)
        return self.engine.memory()

    def _received(self, request: Request) -> Request:
        """The request with its half and clients, and with writable vectors."""
        half: Any = request.half
        cohort: Indices | None = request.cohort
        if cohort is None:
            cohort = np.arange(len(self.clients))
        down = tuple(np.array(ray.get(v) if isinstance(v, ray.ObjectRef) else v) for v in request.down)
        return replace(request, half=ray.cloudpickle.loads(half), cohort=cohort, down=down, halt=self.halted)

    # -- while a message is at work ------------------------------------------------------------------------------------
    @ray.method(concurrency_group="signals")
    def halt(self) -> None:
        """Break off the message under way, and all others until ``begin``."""
        self.halted.set()

    @ray.method(concurrency_group="signals")
    def where(self) -> tuple[int, str]:
        """The process and the machine."""
        return os.getpid(), str(ray.get_runtime_context().get_node_id())


def actor_class() -> Any:
    """The Ray actor: never restarted by Ray, which would reset h; it hears signals while it works.

    Ray's task events are off: with a call per round they would fill every actor's memory.
    """
    options = {"max_restarts": 0, "max_task_retries": 0, "enable_task_events": False}
    return ray.remote(concurrency_groups={"signals": 1}, **options)(ActorWorker)
