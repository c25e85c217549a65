"""What runs inside a Ray actor: some clients' shards and memory, and the operations asked of them, each done once.

An actor is told operations in order (``Message``). It counts them, refuses any other order, and gives the reply of the
last message again if it is asked again, so that a retried call changes nothing. Between actors only gossip passes: an
actor posts the rows that its peers need into their mailboxes and waits for theirs.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import ray
from ray.experimental import internal_kv

from proxskip.engines.cpu.engine import CpuEngine
from proxskip.engines.cpu.shards import Census
from proxskip.links.graphs import GraphRows
from proxskip.on_demand.kernels import without_numba
from proxskip.problems import spectrum
from proxskip.problems.clients import checked_gradient
from proxskip.problems.federated import Problem
from proxskip.problems.oracles import in_double
from proxskip.problems.stored import StoredPart
from proxskip.seam import Request, Size, Work, look
from proxskip.types import Array, Indices, Vectors

if TYPE_CHECKING:  # an actor that is given its clients reads no shards, and does without what reads them
    from proxskip.problems.sharded import Fact, ShardSummary, Source

MIXED = -1
"""In the place of a vector's number: the rows that gossip mixed, of every vector."""


class Lost(Exception):
    """The actor is not where the message takes it to be; it has to be set there first."""


class Aborted(Exception):
    """A gossip step that cannot end was broken off."""


@dataclass(frozen=True, slots=True)
class Op:
    """One half on some of the actor's clients."""

    verb: str
    """``run``, ``gossip`` or ``tell``."""
    half: int
    members: Indices | None
    """The clients, numbered within the actor; None for all."""
    vectors: tuple[int, ...] = ()
    """Which of the message's vectors go down, or ``MIXED``."""
    round: int = 0
    K: Any = 0
    own: Mapping[str, Array] = field(default_factory=dict)
    """Numbers of each member by name."""
    exchange: int = 0
    first: int = 0
    asked: int | None = None
    """As in ``seam.Request``: the first member's place among all that were asked, and how many they are."""


@dataclass(frozen=True, slots=True)
class Message:
    """Operations start, start + 1, ... of a run."""

    run: str
    start: int
    ops: tuple[Op, ...]
    halves: Mapping[int, Any] = field(default_factory=dict)
    """Halves that this actor has not met yet, and None for those that it may forget."""
    snapshot: int | None = None
    """Before which of the ops to copy the clients' memory into the reply; ``len(ops)`` for after them all."""
    patience: float = 600.0
    """Seconds to wait for peers."""
    ahead: Indices | None = None
    """The clients of the next cohort, numbered within the actor, if their rows are on disk."""


@dataclass(frozen=True, slots=True)
class Reply:
    """What came of a message."""

    up: tuple[Array, ...]
    gradients: int
    seconds: float
    """In local work, without waiting for peers."""
    memory: Vectors | None
    mixed: int = 0
    """Vectors that the last gossip mixed."""
    finite: bool = True
    """Whether their entries here are."""
    sizes: tuple[Size | None, ...] = ()
    steps: Indices | None = None


class ActorWorker:
    """Clients ``first`` to ``first + m - 1`` of a problem."""

    def __init__(self, number: int, cores: int = 1, memory: int | None = None, mark: str = "") -> None:
        without_numba()
        self.most = None
        if memory is not None:
            from proxskip.problems import sharded

            spectrum.top_eigenvalue(np.eye(256) @ np.eye(256))  # BLAS takes its buffers at first use; they are no data
            self.most = sharded.data_held() + memory
        self.number, self.cores, self.mark = number, cores, mark
        self.first, self.clients = 0, []  # type: int, Sequence[Any]
        self.raw: list[Any] = []
        self.engine = CpuEngine(cores)
        self.packed: Any = None
        self.run, self.epoch, self.done = "", 0, -1
        self.answered: tuple[int, int] = (-1, 0)
        self.reply: Reply | None = None
        self.mixed: tuple[Array, ...] = ()
        self.post = threading.Condition()
        self.letters: dict[tuple[str, int, int], dict[int, Array]] = {}
        self.broken: tuple[str, int] | None = None
        self.waits = False
        self.halted = threading.Event()
        self.marked: tuple[int, int, Vectors] = (-1, 0, {})

    # -- data ----------------------------------------------------------------------------------------------------------
    def take(self, first: int, clients: Sequence[Any] | StoredPart) -> None:
        """Clients that were made elsewhere, or that are in a folder."""
        self.first, self.packed = first, None
        self.clients = clients.open() if isinstance(clients, StoredPart) else list(clients)

    def look(self, source: Source, first: int, last: int) -> list[ShardSummary]:
        """Read the shards of clients first to last - 1, and say what they hold."""
        from proxskip.problems import sharded

        self.first, self.packed = first, None
        with sharded.no_more_than(self.most):
            self.raw = []
            for i in range(first, last):
                write_mark(self.mark, i)
                self.raw.append(sharded.look_at(source, i))
        write_mark(self.mark, None)
        return [look for _, look in self.raw]

    def build(self, source: Source, d: int, classes: tuple[Any, ...] | None) -> list[Fact]:
        """Make clients of what was read, and say what the problem needs to know about them."""
        from proxskip.problems import sharded

        made: list[Any] = []
        self.clients = made
        with sharded.no_more_than(self.most):
            known = []
            for k in range(len(self.raw)):
                write_mark(self.mark, self.first + k)
                data, self.raw[k] = self.raw[k][0], None
                made.append(sharded.load_client(source, self.first + k, data, d, classes))
                known.append(sharded.fact(source, self.first + k, made[-1]))
        write_mark(self.mark, None)
        return known

    def census(self, d: int, batch: int | None) -> Census:
        """Counts behind the kernels' layout."""
        return Census.of(Problem(self.clients, batch=batch, d=d))

    def evaluate(self, x: Array, values: bool, gradients: bool) -> tuple[list[float], Array | None]:
        """f_i(x) and grad f_i(x) of every client, as asked."""
        x = np.array(x)
        with np.errstate(all="ignore"):
            found = [float(in_double(f).value(x)) for f in self.clients] if values else []
            each = enumerate(self.clients if gradients else ())
            rows = [checked_gradient(in_double(f), x, self.first + k) for k, f in each]
        return found, np.stack(rows) if gradients else None

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
        if run != self.run:
            self.halves: dict[int, Any] = {}
        self.run, self.done, self.answered, self.reply, self.mixed = run, start, (-1, 0), None, ()
        self.marked = (-1, 0, {})
        self.halted.clear()
        return str(ray.get_runtime_context().get_node_id())

    def step(self, message: Message, *vectors: Array) -> Reply:
        """Do the operations, or give the last reply again if they are done."""
        if message.run == self.run:
            self.halves = {k: half for k, half in {**self.halves, **message.halves}.items() if half is not None}
        if message.run == self.run and (message.start, len(message.ops)) == self.answered and self.reply is not None:
            return self.reply
        if message.run != self.run or message.start != self.done:
            raise Lost(f"actor {self.number} is at operation {self.done}, not {message.start}")
        if (ahead := message.ahead) is not None:
            self.engine.expect(lambda: ahead)
        own = [np.array(v) for v in vectors]
        self.done = -1  # until all is done: a half-done message must not be taken for a done one
        work, gradients, memory, self.waited = Work((), 0), 0, None, 0.0  # type: Work, int, Vectors | None, float
        started = time.perf_counter()
        with np.errstate(all="ignore"):
            for k, op in enumerate(message.ops):
                if message.snapshot == k:
                    memory = self.engine.memory()
                work = self._do(op, own, message.start + k, message.patience)
                gradients += work.gradients
        if message.snapshot == len(message.ops):
            memory = self.engine.memory()
        seconds = time.perf_counter() - started - self.waited
        self.done, self.answered = message.start + len(message.ops), (message.start, len(message.ops))
        finite = all(bool(np.isfinite(V).all()) for V in self.mixed)
        self.reply = Reply(work.up, gradients, seconds, memory, len(self.mixed), finite, work.sizes, work.steps)
        return self.reply

    def _do(self, op: Op, vectors: list[Array], index: int, patience: float) -> Work:
        members = np.arange(len(self.clients)) if op.members is None else op.members
        half = self.halves[op.half]
        down = tuple(u for v in op.vectors for u in (self.mixed if v == MIXED else (vectors[v],)))
        if op.verb == "tell":
            self.engine.tell(half, members, down)
            return Work((), 0)
        if op.exchange == 0:  # a round begins: ``rewind`` may come back to this point
            self.marked = (op.round, index, self.engine.memory())
        look(self.halted)
        request = Request(half, members, op.round, op.K, down, op.own, op.exchange, 0, op.first, op.asked, self.halted)
        work = self.engine.run(request)
        if op.verb == "run":
            return work
        self.mixed = self._gossip(work.up, index, patience)
        return Work((), work.gradients)

    def rewind(self, round: int) -> tuple[int, Vectors] | None:
        """Go back to where this round began for its clients, if it did: the next operation there, and the memory."""
        self.halted.clear()
        began, index, memory = self.marked
        if began != round:
            return None if self.done < 0 else (self.done, self.engine.memory())
        self.engine.kept = {k: v.copy() for k, v in memory.items()}
        self.done, self.answered, self.reply = index, (-1, 0), None
        return index, memory

    # -- gossip --------------------------------------------------------------------------------------------------------
    def connect(
        self,
        run: str,
        epoch: int,
        part: GraphRows,
        takes: Sequence[int],
        gives: Mapping[int, Indices],
        peers: Mapping[int, Any],
    ) -> None:
        """Who hears whom: the rows to post to each peer, and the peers whose rows are needed, in their order."""
        with self.post:
            self.epoch, self.part, self.takes, self.gives, self.peers = epoch, part, list(takes), gives, peers
            self.letters = {k: v for k, v in self.letters.items() if k[0] == run and k[1] >= epoch}

    def _gossip(self, up: tuple[Array, ...], index: int, patience: float) -> tuple[Array, ...]:
        """What each vector's rows become; a letter holds all of them side by side."""
        U = np.concatenate(up, axis=1)
        for peer, rows in self.gives.items():
            self.peers[peer].mail.remote(self.run, self.epoch, index, self.number, U[rows])
        key = (self.run, self.epoch, index)
        started = time.perf_counter()
        with self.post:
            self.waits = True
            heard_all = self.post.wait_for(lambda: self._heard_all(key), timeout=patience)
            self.waits = False
            if not heard_all or self.broken == key[:2]:
                raise Aborted(f"actor {self.number} did not hear from its peers")
            heard = self.letters.pop(key, {})
        self.waited += time.perf_counter() - started
        mixed = self.part.mix(U, np.concatenate([heard[p] for p in self.takes]) if self.takes else U[:0])
        ends = np.cumsum([V.shape[1] for V in up])
        return tuple(np.ascontiguousarray(V) for V in np.split(mixed, ends[:-1], axis=1))

    def _heard_all(self, key: tuple[str, int, int]) -> bool:
        return self.broken == key[:2] or len(self.letters.get(key, {})) == len(self.takes)

    @ray.method(concurrency_group="mail")
    def mail(self, run: str, epoch: int, index: int, sender: int, rows: Array) -> None:
        """Rows from a peer; they may come before this actor gets there itself."""
        with self.post:
            self.letters.setdefault((run, epoch, index), {})[sender] = np.array(rows)
            self.post.notify_all()

    @ray.method(concurrency_group="mail")
    def abort(self, run: str, epoch: int) -> None:
        """Wait for no more letters of this epoch."""
        with self.post:
            self.broken = (run, epoch)
            self.post.notify_all()

    @ray.method(concurrency_group="mail")
    def halt(self) -> None:
        """Break off the message at work, and any other, until ``rewind``."""
        self.halted.set()

    @ray.method(concurrency_group="mail")
    def is_waiting(self) -> bool:
        """Whether the actor waits for its peers' letters, and does nothing itself."""
        return self.waits

    @ray.method(concurrency_group="mail")
    def where(self) -> tuple[int, str]:
        """The process and the node, also while the actor is at work."""
        return os.getpid(), str(ray.get_runtime_context().get_node_id())


def write_mark(name: str, client: int | None) -> None:
    """Note at the cluster's head which client is being loaded: an actor that dies of it can say no more."""
    with suppress(Exception):  # without the head there is only no such note
        if name and client is None:
            internal_kv._internal_kv_del(name)
        elif name:
            internal_kv._internal_kv_put(name, str(client), overwrite=True)


def read_mark(name: str) -> str | None:
    """The client that was noted, if any."""
    said = internal_kv._internal_kv_get(name)
    return said.decode() if said else None


def actor_class() -> Any:
    """The Ray actor: never restarted by Ray, which would forget h; mail is taken in while a message is worked on.

    Ray keeps no list of its calls (``ray list tasks``): every round has one, and the list takes memory of every actor.
    """
    options = {"max_restarts": 0, "max_task_retries": 0, "enable_task_events": False}
    return ray.remote(concurrency_groups={"mail": 1}, **options)(ActorWorker)
