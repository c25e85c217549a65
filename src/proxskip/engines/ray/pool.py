"""The actors of one problem: started with their shards, called with a deadline, and replaced where they were lost."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from threading import Event
from typing import Any

import ray
from ray.exceptions import (
    ActorUnavailableError,
    GetTimeoutError,
    ObjectLostError,
    OutOfMemoryError,
    RayActorError,
    RayError,
    RaySystemError,
    RayTaskError,
    WorkerCrashedError,
)

from proxskip.core.engine import BrokenOff, EngineLost
from proxskip.engines.ray.cluster import ask_head, session
from proxskip.engines.ray.heartbeat import Heartbeat
from proxskip.engines.ray.worker import actor_class
from proxskip.types import Array, EngineError, InputError

LOST_ACTOR_ERRORS = (RayActorError, ObjectLostError, WorkerCrashedError, OutOfMemoryError, RaySystemError)
"""Ray's errors for a lost actor, or a lost result of one."""
ENDED = "its process ended"
"""The cause if the machine still runs."""
HALT_SECONDS = 5.0
"""How long the driver waits for actors that were told to break off."""
REACH_SECONDS = 2.0
"""How long a machine may take to accept a connection before it counts as lost."""
MIN_STORE_BYTES = 1 << 16
"""Bytes from which a vector goes once into the object store, instead of into each message."""
UNLOADED = "did not load its shards"
UNSTARTED = "did not start"
SECONDS_BETWEEN_LOOKS = 0.25
"""How often a waiting driver checks for an interrupt."""


class Pool:
    """Actors over ranges of clients.

    Args:
        bounds: actor a holds clients bounds[a] to bounds[a + 1] - 1.
        cores: threads of each actor; None for all cores of its machine.
        cpus: what Ray sets aside for each actor.
        deadline: the time limit of a call in seconds.
        names: what a client's data are called in messages; None if they have no name.
    """

    def __init__(
        self, bounds: list[int], cores: int | None, cpus: int, deadline: float, names: Callable[[int], str] | None
    ) -> None:
        self.bounds = bounds
        self.cores = cores
        self.cpus = cpus
        self.deadline = deadline
        self.names = names
        self.handles: list[Any] = [None] * (len(bounds) - 1)
        self.machines: dict[int, str] = {}
        """The machine of each actor."""
        self.avoided: set[str] = set()
        """Machines that have failed; Ray may believe for some seconds that they live."""
        self.actor = actor_class()
        self.session = session()
        self.heartbeat = Heartbeat()
        self.supply: tuple[str, Callable[[int], tuple[object, ...]]] = ("take", lambda a: (0, []))
        """The call that gives actor a its shards."""
        self.digests: list[str] | None = None
        """The digest of each client's data, once known."""

    @property
    def all(self) -> range:
        """The actors' numbers."""
        return range(len(self.handles))

    def is_there(self) -> bool:
        """Whether the actors' Ray still runs."""
        return self.session == session()

    def clients(self, a: int) -> str:
        """An actor's clients in words, with the name of the first one's data."""
        lo, hi = self.bounds[a], self.bounds[a + 1]
        name = "" if self.names is None else self.names(lo)
        if hi == lo + 1:
            return f"client {lo} ({name})" if name else f"client {lo}"
        return f"clients {lo} to {hi - 1} ({name}, ...)" if name else f"clients {lo} to {hi - 1}"

    # -- actors and their shards ---------------------------------------------------------------------------------------
    def fill(self, who: Iterable[int] = ()) -> dict[int, Any]:
        """Start the actors that are missing, and give them and ``who`` their shards; returns their answers."""
        missing = [a for a in self.all if self.handles[a] is None]
        if missing:
            self._start(missing)
        verb, arguments = self.supply
        try:
            answers = self.ask(verb, arguments, sorted({*missing, *who}), UNLOADED)
            if verb == "load":
                self._check_digests(answers)
        except BaseException:
            for a in missing:  # without its shards an actor is of no use
                self.drop(a)
            raise
        return answers

    def _start(self, who: Iterable[int]) -> None:
        """Start these actors without their data, on machines that have not failed, and wait until they run."""
        options: dict[str, Any] = {"num_cpus": self.cpus, "scheduling_strategy": "SPREAD"}
        if self.avoided:
            options["label_selector"] = {"ray.io/node-id": f"!in({','.join(sorted(self.avoided))})"}
        make = self.actor.options(**options)
        handles = ask_head(self.deadline, lambda: {a: make.remote(self.cores) for a in who}, self.heartbeat.enquire)
        for a, handle in handles.items():
            self.handles[a] = handle
        try:
            places = self.ask("where", lambda a: (), who, UNSTARTED)
        except BaseException:
            for a in who:
                self.drop(a)
            raise
        self.machines |= {a: machine for a, (_, machine) in places.items()}

    def adopt(self, other: Pool) -> None:
        """Take over another pool's actors, and end those not needed."""
        self.avoided = other.avoided
        for a in range(min(len(self.handles), len(other.handles))):
            self.handles[a], other.handles[a] = other.handles[a], None
            self.machines[a] = other.machines.get(a, "")
        other.close()

    def drop(self, a: int) -> None:
        """End an actor, if it still exists."""
        handle, self.handles[a] = self.handles[a], None
        if handle is not None and self.is_there():  # another Ray may have an actor of the same number
            with suppress(Exception):
                ray.kill(handle)

    def close(self) -> None:
        for a in self.all:
            self.drop(a)

    def _check_digests(self, loaded: Mapping[int, Any]) -> None:
        """Refuse shards that have changed since the problem was made."""
        for a, facts in loaded.items():
            for i, fact in enumerate(facts, self.bounds[a]):
                if self.digests is not None and fact.digest != self.digests[i]:
                    name = "" if self.names is None else f" ({self.names(i)})"
                    raise EngineError(
                        f"the data of client {i}{name} have changed, so its actor cannot be replaced; load the shards "
                        "again."
                    )

    # -- calls ---------------------------------------------------------------------------------------------------------
    def ask(
        self, verb: str, arguments: Callable[[int], tuple[object, ...]], who: Iterable[int], what: str,
        halt: Event | None = None,
    ) -> dict[int, Any]:  # fmt: skip
        """Call these actors and collect their answers; raises ``EngineLost`` if some are lost, and drops them.

        Args:
            what: what a late actor failed to do, in words.
            halt: set if the run is interrupted.
        """
        if not ray.is_initialized():  # a remote call would start a new Ray
            raise EngineError("Ray was shut down while the engine was using it; start the run again.")
        missing = {a: ENDED for a in who if self.handles[a] is None}
        if missing:
            raise self.lost(missing)
        self.heartbeat.check_processes()
        until = time.monotonic() + self.deadline
        waiting = {getattr(self.handles[a], verb).remote(*arguments(a)): a for a in who}
        answers: dict[int, Any] = {}
        dead: dict[int, str] = {}
        while waiting and not dead:
            pause = min(max(0.0, until - time.monotonic()), SECONDS_BETWEEN_LOOKS)
            ready, _ = ray.wait(list(waiting), num_returns=len(waiting), timeout=pause)
            for ref in ready:
                a = waiting.pop(ref)
                try:
                    answers[a] = ray.get(ref, timeout=max(1.0, until - time.monotonic()))
                except LOST_ACTOR_ERRORS as error:
                    dead[a] = reason(error)
                except RayError as error:
                    raise self._failure(a, error, what) from None
            if waiting and not dead:
                self._watch(waiting, until, what, halt)
        if dead:
            self._halt(waiting)
            raise self.lost(dead)
        return answers

    def _watch(self, waiting: Mapping[ray.ObjectRef, int], until: float, what: str, halt: Event | None) -> None:
        """While waiting: check Ray, interrupts and the deadline."""
        self.heartbeat.enquire()
        if halt is not None and halt.is_set():
            self._halt(waiting)
            raise BrokenOff
        if time.monotonic() >= until:
            raise self._late(min(waiting.values()), what)

    def _halt(self, waiting: Mapping[ray.ObjectRef, int]) -> None:
        """Let these actors break off what they do, and wait until they have."""
        refs = [*waiting, *(self.handles[a].halt.remote() for a in waiting.values())]
        if refs:
            ray.wait(refs, num_returns=len(refs), timeout=HALT_SECONDS)

    # -- what went wrong -----------------------------------------------------------------------------------------------
    def lost(self, causes: Mapping[int, str]) -> EngineLost:
        """Forget these actors, avoid the machines that failed with them, and say which and why."""
        for a in causes:
            self.drop(a)
        self.avoided |= self._unreachable({self.machines[a] for a in causes if a in self.machines})
        first = min(causes)
        others = f" and {len(causes) - 1} more" if len(causes) > 1 else ""
        return EngineLost(f"the actor with {self.clients(first)}{others} was lost ({causes[first]})")

    def _unreachable(self, machines: set[str]) -> set[str]:
        """Those of these machines that Ray has given up, or that accept no connection."""
        nodes = ask_head(self.deadline, ray.nodes, self.heartbeat.check_processes)
        return {n["NodeID"] for n in nodes if n["NodeID"] in machines and not (n["Alive"] and _accepts(n))}

    def _failure(self, a: int, error: RayError, what: str) -> Exception:
        """An error of the client itself, or of Ray, in one sentence."""
        if isinstance(error, GetTimeoutError):
            return self._late(a, what)
        if not isinstance(error, RayTaskError):
            return EngineError(f"{self.clients(a)} failed with {last_line(error)}.")
        if isinstance(error.cause, (InputError, BrokenOff)):
            return error.cause
        text = " ".join(f"{type(error.cause).__name__}: {error.cause}".split()).rstrip(".")
        return EngineError(f"{self.clients(a)} failed with {text}.")

    def _late(self, a: int, what: str) -> EngineError:
        sentence = f"the actor with {self.clients(a)} {what} within {self.deadline:g} seconds"
        remedy = "use fewer actors, or add machines" if what == UNSTARTED else "check its machine"
        return EngineError(f"{sentence}; {remedy}, or set a longer deadline.")


def _accepts(node: Mapping[str, Any]) -> bool:
    """Whether the Ray of this machine accepts a connection."""
    try:
        socket.create_connection((node["NodeManagerAddress"], node["NodeManagerPort"]), REACH_SECONDS).close()
    except OSError:
        return False
    return True


class Parcel:
    """The vectors of one call: small ones travel in the message, large ones through the object store."""

    def __init__(self) -> None:
        self.sent: dict[int, tuple[Array, Any]] = {}  # keeping the vector keeps its id unique

    def of(self, v: Array) -> Any:
        """The vector, or a reference to it."""
        if v.nbytes < MIN_STORE_BYTES:
            return v
        if id(v) not in self.sent:
            self.sent[id(v)] = (v, ray.put(v))
        return self.sent[id(v)][1]


def reason(error: BaseException) -> str:
    """Why an actor died, in a few words."""
    text = " ".join(str(error).split())
    if isinstance(error, OutOfMemoryError):
        return "it was killed for memory"
    if isinstance(error, ActorUnavailableError):
        return "it could not be reached"
    for sign, words in (("node", "its machine was lost"), ("worker process", ENDED)):
        if f"its {sign} has died" in text:
            return words
    return text[:120] or ENDED


def last_line(error: BaseException) -> str:
    """The last line of an error's message, which names the cause."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[-1] if lines else type(error).__name__)[:200].rstrip(".")
