"""The actors of one problem: made, asked within a deadline, and made again when they die."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from threading import Event
from typing import Any

import ray
from ray.exceptions import (
    ActorUnavailableError,
    GetTimeoutError,
    ObjectLostError,
    ObjectStoreFullError,
    OutOfDiskError,
    OutOfMemoryError,
    RayActorError,
    RayError,
    RaySystemError,
    RayTaskError,
    WorkerCrashedError,
)

from proxskip.engines.ray import private
from proxskip.engines.ray.cluster import ask_head, room, session
from proxskip.engines.ray.heartbeat import Heartbeat
from proxskip.engines.ray.worker import Lost, actor_class
from proxskip.interfaces import BrokenOff
from proxskip.types import Array, EngineError, InputError

LOST_ACTOR_ERRORS = (RayActorError, ObjectLostError, WorkerCrashedError, OutOfMemoryError, RaySystemError)
"""What Ray raises when an actor, or the object that it returned, is lost."""
ENDED = "its process ended"
"""Why an actor died whose machine is still well."""
MAX_DEATHS = 5
"""How often one actor may die in one call before the run gives up."""
HALT_SECONDS = 5.0
"""How long the driver waits, at most, for actors that were told to break off."""
ROOM_SECONDS = 5.0
"""How long the driver asks, at most, what is free in the cluster, for the sentence of an error."""
MIN_STORE_BYTES = 1 << 16
"""Bytes from which a vector is put into the object store once, instead of into the message to each actor."""
SECONDS_BETWEEN_LOOKS = 0.25
"""How long the driver waits for actors before it looks whether the run was interrupted."""
UNSTARTED = "did not start"
"""What an error says of an actor for which there is no room."""


class Died(Exception):
    """Some actors were lost.

    Args:
        who: why, with an empty string for one that is alive but out of step.
        answers: what the others answered.
    """

    def __init__(self, who: Mapping[int, str], answers: Mapping[int, Any] | None = None) -> None:
        super().__init__(f"actors {sorted(who)} died")
        self.who, self.answers = dict(who), dict(answers or {})


class Pool:
    """Actors over ranges of clients.

    Args:
        bounds: actor a holds the clients from bounds[a] to bounds[a + 1] - 1.
        names: what a client's data are called, for messages; None where they have no name.
        deadline: seconds after which a call that was not answered is given up.
    """

    def __init__(
        self, bounds: list[int], cores: int, memory: int | None, deadline: float, names: Callable[[int], str] | None
    ) -> None:
        self.bounds, self.deadline, self.names = bounds, deadline, names
        self.cores, self.memory = cores, memory
        self.handles: list[Any] = [None] * (len(bounds) - 1)
        self.nodes: dict[int, str] = {}
        """The machine of each actor that has begun a run."""
        self.actor = actor_class()
        self.session = session()
        self.heartbeat = Heartbeat()
        self.data: list[tuple[str, Callable[[int], tuple[Any, ...]]]] = []
        """The calls that give an actor its shards, in order; repeated for an actor that takes another's place."""
        self.supplied = dict.fromkeys(self.all, 0)
        """How many of these calls each actor has had."""
        self.digests: list[str] | None = None
        """The digest of every client's data, once known."""
        self.halt: Event | None = None
        """Set when the run is interrupted; None while actors do what cannot be broken off."""
        self.rebuilt: list[dict[str, Any]] = []
        """Actors that were lost and rebuilt before a run."""

    @property
    def all(self) -> range:
        """The actors' numbers."""
        return range(len(self.handles))

    def is_there(self) -> bool:
        """Whether the Ray that the actors were made in still runs."""
        return self.session == session()

    def clients(self, a: int) -> str:
        """An actor's clients, in words, with the name of the first one's data."""
        lo, hi = self.bounds[a], self.bounds[a + 1]
        numbers = f"client {lo}" if hi == lo + 1 else f"clients {lo} to {hi - 1}"
        return numbers if self.names is None else f"{numbers} ({self.names(lo)}{', ...' if hi > lo + 1 else ''})"

    # -- processes -----------------------------------------------------------------------------------------------------
    def start(self, who: Iterable[int], away: Collection[str] = (), until: float | None = None) -> None:
        """Make these actors, anew if there were some, without their data.

        Args:
            until: when to give up, if the cluster's head does not answer; by default after ``deadline``.
            away: machines to keep away from if others have room: one that was lost counts as alive for some ten
                seconds more, and an actor that is sent there waits for as long.
        """
        who = sorted(who)
        for a in who:
            self.drop(a)
        seconds = self.deadline if until is None else until - time.monotonic()
        handles = ask_head(seconds, lambda: self._make(who, away), self.heartbeat.enquire)
        for a, handle in zip(who, handles, strict=True):
            self.handles[a], self.supplied[a] = handle, 0

    def _make(self, who: Sequence[int], away: Collection[str]) -> list[Any]:
        others = [n["NodeID"] for n in ray.nodes() if self._is_open(n, away)] if away else []
        options: dict[str, Any] = {"num_cpus": self.cores}
        if self.memory is not None:
            options["memory"] = self.memory
        handles = []
        for k, a in enumerate(who):
            where = {"scheduling_strategy": private.prefer(others[k % len(others)])} if others else {}
            handles.append(self.actor.options(**options, **where).remote(a, self.cores))
        return handles

    def _is_open(self, node: Mapping[str, Any], away: Collection[str]) -> bool:
        return node["Alive"] and node["NodeID"] not in away and node["Resources"].get("CPU", 0) >= self.cores

    def adopt(self, other: Pool) -> None:
        """Take another pool's actors, as many as are needed, and end the rest."""
        for a in range(min(len(self.handles), len(other.handles))):
            self.handles[a], other.handles[a] = other.handles[a], None
        other.close()

    def drop(self, a: int) -> None:
        """End an actor, if it is still there."""
        handle, self.handles[a] = self.handles[a], None
        if handle is not None and self.is_there():  # another Ray may have an actor of the same number
            with suppress(Exception):
                ray.kill(handle)

    def close(self) -> None:
        """End all actors."""
        for a in self.all:
            self.drop(a)

    # -- data ----------------------------------------------------------------------------------------------------------
    def supply(self, who: Collection[int], until: float) -> dict[str, dict[int, Any]]:
        """Give these actors the shards that they do not have yet; what each call answered.

        If that fails, none of them is kept.
        """
        answers = {}
        try:
            # first wait until all have started, so that an error tells a lack of room from slow loading
            self.gather(submit_all(lambda a: self.handles[a].where.remote(), who), until, UNSTARTED)
            for k, (verb, arguments) in enumerate(self.data):
                some = [a for a in who if self.supplied[a] <= k]
                refs = submit_all(lambda a: getattr(self.handles[a], verb).remote(*arguments(a)), some)  # noqa: B023
                what = "did not take its clients" if verb == "take" else "did not load its shards"
                answers[verb] = self.gather(refs, until, what)
                self.supplied |= dict.fromkeys(some, k + 1)
            self.compare(answers.get("load", {}))
        except BaseException:
            for a in who:
                self.drop(a)
            raise
        return answers

    def compare(self, built: Mapping[int, Any]) -> None:
        """Refuse shards that are not those that the problem was made of."""
        for a, facts in built.items():
            for i, fact in enumerate(facts, self.bounds[a]):
                if self.digests is not None and fact.digest != self.digests[i]:
                    name = "" if self.names is None else f" ({self.names(i)})"
                    raise EngineError(
                        f"the data of client {i}{name} are not those that were loaded at first, so its actor cannot be "
                        "rebuilt; load the shards again."
                    )

    def persist(
        self, act: Callable[[dict[int, str], float], None], when: str, dead: Mapping[int, str], round: int | None = None
    ) -> tuple[set[int], list[dict[str, Any]]]:
        """Mend lost actors, again with all of them if more die of it; who was lost, and a record of each that died.

        Args:
            act: mends the actors that it is told, with the causes of their deaths, within its second argument.
            when: the words of an error for actors that die too often.
            round: of the run; None before it.
        """
        began, lost, tally = time.perf_counter(), dict(dead), Tally(self, when, dead)
        while True:
            try:
                act(lost, tally.until)
                break
            except Died as end:
                tally.add(end.who)
                lost |= {a: why or lost.get(a, "") for a, why in end.who.items()}
        died = {"round": round, "seconds": time.perf_counter() - began}
        records = [{"actor": a, "clients": self.clients(a), **died, "cause": lost[a]} for a in sorted(lost) if lost[a]]
        return set(lost), records

    def refill(self, dead: Mapping[int, str]) -> set[int]:
        """Put new processes with their shards in the place of dead ones."""

        def act(lost: Mapping[int, str], until: float) -> None:
            self.start(lost, until=until)
            self.supply(lost, until)

        lost, records = self.persist(act, "while it was loaded", dead)
        self.rebuilt += records
        return lost

    # -- calls ---------------------------------------------------------------------------------------------------------
    def call(
        self,
        submit: Callable[[int], Any],
        who: Iterable[int],
        what: str,
        mend: Callable[[dict[int, str]], set[int]],
    ) -> dict[int, Any]:
        """Ask these actors; the lost are mended and asked again.

        Args:
            mend: replaces the lost actors, and returns all that have to be asked again.
        """
        answers: dict[int, Any] = {}
        left, tally = set(who), Tally(self, "in one call")
        while left:
            refs = submit_all(submit, sorted(left))
            try:
                answers |= self.gather(refs, time.monotonic() + self.deadline, what)
                left = set()
            except Died as end:
                tally.add(end.who)
                answers |= end.answers
                left = (left - set(answers)) | (mend(end.who) & left)
        return answers

    def gather(self, refs: Mapping[int, Any], until: float, what: str) -> dict[int, Any]:
        """All answers; ``Died`` if actors were lost, once all others have answered.

        Args:
            what: what the actors that do not answer in time did not do, in words.
        """
        self.heartbeat.look()
        waiting = {ref: a for a, ref in refs.items()}
        answers: dict[int, Any] = {}
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
            raise Died(dead, answers)
        return answers

    def _wait(self, waiting: Mapping[Any, int], until: float, what: str) -> None:
        """Between two looks for answers: see that Ray lives, that the run goes on, and that there is time left."""
        self.heartbeat.enquire()
        if self.halt is not None and self.halt.is_set():
            refs = [*waiting, *(self.handles[a].halt.remote() for a in waiting.values())]
            ray.wait(refs, num_returns=len(refs), timeout=HALT_SECONDS)
            raise BrokenOff
        if time.monotonic() >= until:
            raise self.late(waiting.values(), what)

    def _cause(self, a: int, error: RayError, what: str) -> str:
        """Why an actor was lost; empty for one that is alive but out of step. Any other error ends the run."""
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
        """An error of the client's own, in one sentence."""
        if isinstance(error.cause, InputError):
            return error.cause
        if isinstance(error.cause, ObjectStoreFullError):
            return EngineError(f"the object store of the machine with {self.clients(a)} is full; give Ray more of it.")
        text = " ".join(f"{type(error.cause).__name__}: {error.cause}".split()).rstrip(".")
        return EngineError(f"{self.clients(a)} failed with {text}.")

    def late(self, who: Iterable[int], what: str) -> EngineError:
        """The error for actors that did not answer in time; it names the first."""
        said = f"the actor with {self.clients(min(who))} {what} within {self.deadline:g} seconds"
        if what == UNSTARTED and (lacks := self._lacks()):
            return EngineError(f"{said}: {lacks}; use fewer actors, or add machines.")
        return EngineError(f"{said}; check its machine, or give a longer deadline.")

    def _lacks(self) -> str | None:
        """What an actor needs and the cluster does not have free, in words."""
        try:
            has, free = room(ROOM_SECONDS)
        except EngineError:
            return None
        for name, need in (("CPU", self.cores), ("memory", self.memory or 0)):
            unit, left = "CPU" if name == "CPU" else "bytes of memory", free.get(name, 0.0)
            if left < need:
                return f"it needs {need} {unit} and {left:.12g} of the cluster's {has.get(name, 0.0):.12g} are free"
        return None


class Tally:
    """How often each actor died in one undertaking, and when that has to end.

    Args:
        when: when they died, in words, for the error.
        dead: the actors that have died already, and why.
    """

    def __init__(self, pool: Pool, when: str, dead: Mapping[int, str] | None = None) -> None:
        self.pool, self.when = pool, when
        self.deaths = Counter(a for a, why in (dead or {}).items() if why)
        self.until = time.monotonic() + pool.deadline

    def add(self, who: Mapping[int, str]) -> None:
        """Count these; an actor that is alive but out of step counts only if none died."""
        for a in [a for a, why in who.items() if why] or who:
            self.deaths[a] += 1
            if self.deaths[a] > MAX_DEATHS:
                raise EngineError(
                    f"the actor with {self.pool.clients(a)} died {self.deaths[a]} times {self.when} "
                    f"({who[a] or 'cause unknown'}); its machine may be short of memory."
                ) from None


def submit_all(submit: Callable[[int], Any], who: Iterable[int]) -> dict[int, Any]:
    """Ask each of these actors."""
    if not ray.is_initialized():  # a remote call would start a new Ray
        raise EngineError("Ray was shut down while the engine was using it; start the run again.")
    with _into_store():
        return {a: submit(a) for a in who}


@contextmanager
def _into_store() -> Iterator[None]:
    """A full object store on the driver's machine ends the run with a sentence."""
    try:
        yield
    except (ObjectStoreFullError, OutOfDiskError):
        raise EngineError("the object store of the driver's machine is full; give Ray more of it.") from None


def put(value: Any) -> Any:
    """A reference to the value in the object store."""
    with _into_store():
        return ray.put(value)


class Parcel:
    """Vectors of one call: small ones travel in the message, large ones once through the object store."""

    def __init__(self) -> None:
        self.sent: dict[int, tuple[Array, Any]] = {}  # with the vector itself, so that its id is not given to another

    def of(self, v: Array) -> Any:
        """The vector, or a reference to it, to hand to an actor's call."""
        if v.nbytes < MIN_STORE_BYTES:
            return v
        if id(v) not in self.sent:
            self.sent[id(v)] = (v, put(v))
        return self.sent[id(v)][1]


def reason(error: BaseException) -> str:
    """Why an actor died, as far as Ray knows, in a few words."""
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
