"""The actors of one problem: started, called with a deadline, and rebuilt when they die."""

from __future__ import annotations

import time
from collections import Counter
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

from proxskip.engines.ray.cluster import ask_head, session
from proxskip.engines.ray.heartbeat import Heartbeat
from proxskip.engines.ray.worker import Lost, actor_class
from proxskip.interfaces import BrokenOff
from proxskip.types import Array, EngineError, InputError

LOST_ACTOR_ERRORS = (RayActorError, ObjectLostError, WorkerCrashedError, OutOfMemoryError, RaySystemError)
"""Ray's errors for a lost actor, or a lost result of one."""
ENDED = "its process ended"
"""The cause if the machine still runs."""
MAX_DEATHS = 5
"""Deaths of one actor in one call after which the run gives up."""
HALT_SECONDS = 5.0
"""How long the driver waits for actors that were told to break off."""
MIN_STORE_BYTES = 1 << 16
"""Bytes from which a vector goes once into the object store, instead of into each message."""
UNLOADED = "did not load its shards"
UNSTARTED = "did not start"
SECONDS_BETWEEN_LOOKS = 0.25
"""How often a waiting driver checks for an interrupt."""


class Died(Exception):
    """Some actors were lost: the causes, empty for one that is alive but out of step."""

    def __init__(self, causes: Mapping[int, str]) -> None:
        super().__init__(f"actors {sorted(causes)} died")
        self.causes = dict(causes)


class Pool:
    """Actors over ranges of clients.

    Args:
        bounds: actor a holds clients bounds[a] to bounds[a + 1] - 1.
        cores: CPUs per actor.
        deadline: the time limit of a call in seconds.
        names: what a client's data are called in messages; None if they have no name.
    """

    def __init__(self, bounds: list[int], cores: int, deadline: float, names: Callable[[int], str] | None) -> None:
        self.bounds, self.cores, self.deadline, self.names = bounds, cores, deadline, names
        self.handles: list[Any] = [None] * (len(bounds) - 1)
        self.actor = actor_class()
        self.session = session()
        self.heartbeat = Heartbeat()
        self.data: list[tuple[str, Callable[[int], tuple[Any, ...]]]] = []
        """The calls that gave the actors their shards, repeated for new actors."""
        self.digests: list[str] | None = None
        """The digest of each client's data, once known."""
        self.run: Any = None
        """The run whose memory the actors hold (an ``ActorSession``): it restores new actors."""
        self.halt: Event | None = None
        """Set when the run is interrupted; None during calls that cannot be broken off."""
        self.recoveries: list[dict[str, Any]] = []
        """Actors that were lost and rebuilt since the last run."""

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
        numbers = f"client {lo}" if hi == lo + 1 else f"clients {lo} to {hi - 1}"
        return numbers if self.names is None else f"{numbers} ({self.names(lo)}{', ...' if hi > lo + 1 else ''})"

    # -- processes -----------------------------------------------------------------------------------------------------
    def start(self, who: Iterable[int], until: float) -> None:
        """Start these actors without their data, replacing old ones, and wait until they run."""
        who = sorted(who)
        for a in who:
            self.drop(a)
        make = self.actor.options(num_cpus=self.cores)
        seconds = until - time.monotonic()
        handles = ask_head(seconds, lambda: [make.remote(self.cores) for _ in who], self.heartbeat.enquire)
        for a, handle in zip(who, handles, strict=True):
            self.handles[a] = handle
        self.gather(submit_all(lambda a: self.handles[a].where.remote(), who), until, UNSTARTED)

    def adopt(self, other: Pool) -> None:
        """Take over another pool's actors, and end those not needed."""
        for a in range(min(len(self.handles), len(other.handles))):
            self.handles[a], other.handles[a] = other.handles[a], None
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

    # -- data ----------------------------------------------------------------------------------------------------------
    def supply(self, verb: str, arguments: Callable[[int], tuple[Any, ...]]) -> list[Any]:
        """Give every actor its data by this call; returns the answers for all clients."""
        answers = self.call(self._giving(verb, arguments), self.all, UNLOADED)
        self.data.append((verb, arguments))
        return [v for a in self.all for v in answers[a] or ()]

    def _giving(self, verb: str, arguments: Callable[[int], tuple[Any, ...]]) -> Callable[[int], Any]:
        return lambda a: getattr(self.handles[a], verb).remote(*arguments(a))

    def rebuild(self, lost: Mapping[int, str], until: float) -> None:
        """Replace dead actors, give them their data, and let the run restore them; on failure keep none of them."""
        new = [a for a, cause in lost.items() if cause or self.handles[a] is None]
        try:
            if new:
                self.start(new, until)
            for verb, arguments in self.data:
                answers = self.gather(submit_all(self._giving(verb, arguments), new), until, UNLOADED)
                if verb == "load":
                    self._check_digests(answers)
            if self.run is not None:
                self.run.restore(lost, until)
        except BaseException:
            for a in new:
                self.drop(a)
            raise

    def _check_digests(self, built: Mapping[int, Any]) -> None:
        """Refuse shards that have changed since the problem was made."""
        for a, facts in built.items():
            for i, fact in enumerate(facts, self.bounds[a]):
                if self.digests is not None and fact.digest != self.digests[i]:
                    name = "" if self.names is None else f" ({self.names(i)})"
                    raise EngineError(
                        f"the data of client {i}{name} have changed, so its actor cannot be rebuilt; load the shards "
                        "again."
                    )

    # -- calls ---------------------------------------------------------------------------------------------------------
    def call(self, submit: Callable[[int], Any], who: Iterable[int], what: str) -> dict[int, Any]:
        """Call these actors; missing and lost ones are rebuilt and called again.

        Args:
            what: what a late actor failed to do, in words.
        """
        who, deaths, began = list(who), Counter[int](), 0.0
        answers: dict[int, Any] = {}
        lost = {a: "" for a in who if self.handles[a] is None}
        while True:
            try:
                if lost:
                    self.rebuild(lost, time.monotonic() + self.deadline)
                    self._record(lost, time.monotonic() - began)
                    lost, began = {}, 0.0
                refs = submit_all(submit, [a for a in who if a not in answers])
                return self.gather(refs, time.monotonic() + self.deadline, what, answers)
            except Died as died:
                self._count(deaths, died.causes)
                began = began or time.monotonic()
                lost |= {a: cause or lost.get(a, "") for a, cause in died.causes.items()}
                for a in lost:  # a rebuilt actor has not done this call
                    answers.pop(a, None)

    def _record(self, lost: Mapping[int, str], seconds: float) -> None:
        when = {"round": None if self.run is None else self.run.round, "seconds": seconds}
        died = sorted(a for a, cause in lost.items() if cause)
        self.recoveries += [{"actor": a, "clients": self.clients(a), **when, "cause": lost[a]} for a in died]

    def _count(self, deaths: Counter[int], causes: Mapping[int, str]) -> None:
        """Count deaths in one call; an actor that is only out of step counts if none died."""
        for a in [a for a, cause in causes.items() if cause] or causes:
            deaths[a] += 1
            if deaths[a] > MAX_DEATHS:
                raise EngineError(
                    f"the actor with {self.clients(a)} died {deaths[a]} times in one call "
                    f"({causes[a] or 'cause unknown'}); its machine may be short of memory."
                ) from None

    def gather(
        self, refs: Mapping[int, Any], until: float, what: str, answers: dict[int, Any] | None = None
    ) -> dict[int, Any]:
        """Collect all answers; raises ``Died`` if actors were lost, once all others have answered."""
        self.heartbeat.check_processes()
        answers = {} if answers is None else answers
        waiting = {ref: a for a, ref in refs.items()}
        dead: dict[int, str] = {}
        while waiting:
            pause = min(max(0.0, until - time.monotonic()), SECONDS_BETWEEN_LOOKS)
            ready, _ = ray.wait(list(waiting), num_returns=len(waiting), timeout=pause)
            for ref in ready:
                a = waiting.pop(ref)
                try:
                    answers[a] = ray.get(ref, timeout=max(1.0, until - time.monotonic()))
                except RayError as error:
                    dead[a] = self._cause(a, error, what)
            if waiting:
                self._wait(waiting, until, what)
        if dead:
            raise Died(dead)
        return answers

    def _wait(self, waiting: Mapping[Any, int], until: float, what: str) -> None:
        """While waiting: check Ray, interrupts and the deadline."""
        self.heartbeat.enquire()
        if self.halt is not None and self.halt.is_set():
            refs = [*waiting, *(self.handles[a].halt.remote() for a in waiting.values())]
            ray.wait(refs, num_returns=len(refs), timeout=HALT_SECONDS)
            raise BrokenOff
        if time.monotonic() >= until:
            raise self.late(waiting.values(), what)

    def _cause(self, a: int, error: RayError, what: str) -> str:
        """Why an actor was lost; empty if it is only out of step. Any other error ends the run."""
        if isinstance(error, RayTaskError):
            if isinstance(error.cause, (Lost, BrokenOff)):
                return ""
            raise self.failed(a, error) from None
        if isinstance(error, LOST_ACTOR_ERRORS):
            return reason(error)
        if isinstance(error, GetTimeoutError):
            raise self.late([a], what) from None
        raise EngineError(f"{self.clients(a)} failed with {last_line(error)}.") from None

    def failed(self, a: int, error: RayTaskError) -> Exception:
        """An error of the client itself, in one sentence."""
        if isinstance(error.cause, InputError):
            return error.cause
        text = " ".join(f"{type(error.cause).__name__}: {error.cause}".split()).rstrip(".")
        return EngineError(f"{self.clients(a)} failed with {text}.")

    def late(self, who: Iterable[int], what: str) -> EngineError:
        """The error for actors that miss the deadline; it names the first."""
        sentence = f"the actor with {self.clients(min(who))} {what} within {self.deadline:g} seconds"
        remedy = "use fewer actors, or add machines" if what == UNSTARTED else "check its machine"
        return EngineError(f"{sentence}; {remedy}, or set a longer deadline.")


def submit_all(submit: Callable[[int], Any], who: Iterable[int]) -> dict[int, Any]:
    """Submit a call to each of these actors."""
    if not ray.is_initialized():  # a remote call would start a new Ray
        raise EngineError("Ray was shut down while the engine was using it; start the run again.")
    return {a: submit(a) for a in who}


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
