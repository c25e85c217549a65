"""The actors of one problem: made, asked within a deadline, and made again when they die."""

from __future__ import annotations

import time
import uuid
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
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
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from proxskip.engines.ray.cluster import ask_head, is_crowded, room, session
from proxskip.engines.ray.heartbeat import Heartbeat
from proxskip.engines.ray.worker import Aborted, Lost, actor_class, read_mark
from proxskip.seam import BrokenOff
from proxskip.types import Array, EngineError, InputError

LOST_ACTOR_ERRORS = (RayActorError, ObjectLostError, WorkerCrashedError, OutOfMemoryError, RaySystemError)
"""What Ray raises when an actor, or the object that it returned, is lost."""
ENDED = "its process ended"
"""Why an actor died whose machine is still well."""
MAX_DEATHS = 5
"""How often one actor may die in one call before the run gives up."""
ENQUIRY_SECONDS = 5.0
"""How long before the deadline, at most, the driver begins to ask which actors work and which wait for others."""
MIN_STORE_BYTES = 1 << 16
"""Bytes from which a vector is put into the object store once, instead of into the message to each actor."""
SECONDS_BETWEEN_LOOKS = 0.25
"""How long the driver waits for actors before it looks whether the run was interrupted."""
UNLOADED = "did not load its shards"
"""What an error says of an actor whose shards take too long to load."""
UNSTARTED = "did not start"
"""What an error says of an actor for which there is no room."""


class Died(Exception):
    """Some actors were lost; ``who`` says why, with an empty string for one that is alive but out of step."""

    def __init__(self, who: Mapping[int, str]) -> None:
        super().__init__(f"actors {sorted(who)} died")
        self.who = dict(who)


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
        self.made = actor_class()
        self.session = session()
        self.heartbeat = Heartbeat()
        self.marks: dict[int, str] = {}
        """The name under which each actor notes which client it loads, so that an error can say which one it was."""
        self.data: list[tuple[str, Callable[[int], tuple[Any, ...]]]] = []
        """The calls that give an actor its shards, in order; repeated for an actor that takes another's place."""
        self.digests: list[str] | None = None
        """The digest of every client's data, once known."""
        self.halt: Event | None = None
        """Set when the run was interrupted; None while actors do what cannot be broken off."""
        self.halted: set[int] = set()
        """The actors that were told so."""
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
        told = f"client {lo}" if hi == lo + 1 else f"clients {lo} to {hi - 1}"
        if self.names is None:
            return told
        return f"{told} ({self.names(lo)}{', ...' if hi > lo + 1 else ''})"

    def client(self, i: int) -> str:
        """One client, in words, with the name of its data."""
        return f"client {i}" if self.names is None else f"client {i} ({self.names(i)})"

    def loading(self, a: int) -> int | None:
        """The client whose shard an actor is about to load, or was when it died."""
        with suppress(Exception):
            said = ask_head(ENQUIRY_SECONDS, lambda: read_mark(self.marks[a]))
            return int(said) if said else None
        return None

    def start(self, who: Iterable[int], away: Collection[str] = (), until: float | None = None) -> None:
        """Make these actors, anew if there were some, without their data.

        Args:
            until: when to give up, if the cluster's head does not answer; by default after ``deadline``.
            away: machines to keep away from if others have room: one that was lost counts as alive for some ten
                seconds more, and an actor that is sent there waits for as long.
        """
        who = sorted(who)
        self.marks |= {a: f"proxskip {uuid.uuid4().hex}" for a in who}
        for a in who:
            self.drop(a)
        seconds = self.deadline if until is None else until - time.monotonic()
        made = ask_head(seconds, lambda: self._make(who, away), self.heartbeat.enquire)
        for a, handle in zip(who, made, strict=True):
            self.handles[a] = handle

    def _make(self, who: Sequence[int], away: Collection[str]) -> list[Any]:
        others = [n["NodeID"] for n in ray.nodes() if self._is_open(n, away)] if away else []
        made = []
        for k, a in enumerate(who):
            options: dict[str, Any] = {"num_cpus": self.cores}
            if self.memory is not None:
                options["memory"] = self.memory
            if others:
                # a preference: where that machine has no room, Ray may choose another
                node = others[k % len(others)]
                options["scheduling_strategy"] = NodeAffinitySchedulingStrategy(node, True, _spill_on_unavailable=True)
            made.append(self.made.options(**options).remote(a, self.cores, self.memory, self.marks[a]))
        return made

    def _is_open(self, node: Mapping[str, Any], away: Collection[str]) -> bool:
        return node["Alive"] and node["NodeID"] not in away and node["Resources"].get("CPU", 0) >= self.cores

    def adopt(self, other: Pool) -> None:
        """Take another pool's actors, as many as are needed, and end the rest."""
        for a in other.all:
            if a < len(self.handles):
                self.handles[a], other.handles[a] = other.handles[a], None
                self.marks[a] = other.marks[a]
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

    def supply(self, who: Collection[int], until: float) -> dict[str, dict[int, Any]]:
        """Give these actors their shards; what each call answered. If that fails, none of them is kept."""
        found = {}
        try:
            # first wait until all have started, so that an error tells a lack of room from slow loading
            self.gather(submit_all(lambda a: self.handles[a].where.remote(), who), until, UNSTARTED)
            for verb, arguments in self.data:
                what = "did not take its clients" if verb == "take" else UNLOADED
                found[verb] = self.gather(self.give(verb, arguments, who), until, what)
            self.compare(found.get("build", {}))
        except BaseException:
            for a in who:
                self.drop(a)
            raise
        return found

    def compare(self, built: Mapping[int, Any]) -> None:
        """Refuse shards that are not those that the problem was made of."""
        if self.digests is None:
            return
        for i, known in ((i, f) for a, facts in built.items() for i, f in enumerate(facts, self.bounds[a])):
            if known.digest != self.digests[i]:
                raise EngineError(
                    f"the data of {self.client(i)} are not those that were loaded at first, so its actor cannot be "
                    "rebuilt; load the shards again."
                )

    def give(self, verb: str, arguments: Callable[[int], tuple[Any, ...]], who: Iterable[int]) -> dict[int, Any]:
        """One of the calls that give these actors their shards."""
        return submit_all(lambda a: getattr(self.handles[a], verb).remote(*arguments(a)), who)

    def refill(self, dead: Mapping[int, str]) -> set[int]:
        """Put new processes with their shards in the place of dead ones."""
        began, gone, tally = time.perf_counter(), dict(dead), Tally(self, "while it was loaded", dead)
        while True:
            try:
                self.start(gone, until=tally.until)
                self.supply(gone, tally.until)
                break
            except Died as end:  # more died meanwhile, or again
                tally.add(end.who)
                gone |= end.who
        seconds = time.perf_counter() - began
        for a, why in sorted(gone.items()):
            self.rebuilt.append(recovery(self, a, None, seconds, why))
        return set(gone)

    def gather(
        self, refs: Mapping[int, Any], until: float, what: str, on_death: Callable[[list[int]], None] | None = None
    ) -> dict[int, Any]:
        """All answers; ``Died`` if actors were lost, once all others have answered.

        Args:
            what: what the actors that do not answer in time did not do, in words.
            on_death: told at the first death, or when it is given up, which actors are still at work.
        """
        self.heartbeat.look()
        try:
            # shortly before the deadline, ask who is only waiting for others: the error should name those who are slow
            try:
                return self._all(refs, until - min(ENQUIRY_SECONDS, self.deadline / 4), on_death)
            except GetTimeoutError:
                asked = {a: self.handles[a].is_waiting.remote() for a in refs}
                return self._all(refs, until, on_death)
        except GetTimeoutError:
            ready, _ = ray.wait(list(refs.values()), num_returns=len(refs), timeout=0)
            slow = [a for a, ref in refs.items() if ref not in ready] or list(refs)
            end = self.late([a for a in slow if not self._waits(asked[a])] or slow, what)
            _tell(on_death, slow)
            raise end from None
        except RayError:  # something failed: find out what, actor by actor
            return self._one_by_one(refs, until, what, on_death)

    def _all(
        self, refs: Mapping[int, Any], until: float, on_death: Callable[[list[int]], None] | None
    ) -> dict[int, Any]:
        while True:
            left = max(0.0, until - time.monotonic())
            try:
                found = ray.get(list(refs.values()), timeout=min(left, SECONDS_BETWEEN_LOOKS))
                return dict(zip(refs, found, strict=True))
            except GetTimeoutError:
                self.heartbeat.enquire()
                if self.halt is not None and self.halt.is_set():
                    self._break_off(refs, on_death)
                if left <= SECONDS_BETWEEN_LOOKS:
                    raise

    def _break_off(self, refs: Mapping[int, Any], on_death: Callable[[list[int]], None] | None) -> None:
        """Let these actors leave what they are at, which they do at their next look."""
        self.halted = set(refs)
        for a in refs:
            self.handles[a].halt.remote()
        _tell(on_death, refs)
        ray.wait(list(refs.values()), num_returns=len(refs), timeout=ENQUIRY_SECONDS)
        raise BrokenOff

    @staticmethod
    def _waits(ref: Any) -> bool:
        """Whether an actor has said that it waits for others; one that does not answer has not."""
        with suppress(RayError):
            return bool(ray.get(ref, timeout=0))
        return False

    def _one_by_one(
        self, refs: Mapping[int, Any], until: float, what: str, on_death: Callable[[list[int]], None] | None
    ) -> dict[int, Any]:
        waiting, answers, dead = {ref: a for a, ref in refs.items()}, {}, {}  # type: Any, dict[int, Any], dict[int, str]
        while waiting:
            left = max(0.0, until - time.monotonic())
            ready, _ = ray.wait(list(waiting), timeout=min(left, SECONDS_BETWEEN_LOOKS))
            if not ready and left > SECONDS_BETWEEN_LOOKS:
                self.heartbeat.enquire()
                continue
            if not ready:
                _tell(on_death, waiting.values())
                raise self.late(waiting.values(), what)
            a = waiting.pop(ready[0])
            try:
                answers[a] = ray.get(ready[0], timeout=max(1.0, until - time.monotonic()))
            except RayTaskError as error:
                if not isinstance(error.cause, (Aborted, Lost)):
                    _tell(on_death, waiting.values())
                    raise self.failed(a, error) from None
                dead.setdefault(a, "")  # alive, but out of step, or broken off by another's loss
            except LOST_ACTOR_ERRORS as error:
                first = not any(dead.values())  # the listener is told once
                dead[a] = reason(error)
                if first:
                    _tell(on_death, waiting.values())
            except GetTimeoutError:
                _tell(on_death, waiting.values())
                raise self.late([a], what) from None
            except RayError as error:
                _tell(on_death, waiting.values())
                raise EngineError(f"{self.clients(a)} failed with {last_line(error)}.") from None
        if dead:
            raise Died(dead)
        return answers

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
        a = sorted(who)[0]
        said, advice = f"the actor with {self.clients(a)} {what}", "check its machine, or give a longer deadline"
        if what == UNLOADED and (i := self.loading(a)) is not None:
            said = f"the shard of {self.client(i)} was not loaded"
        if what == UNSTARTED and (lacks := self._lacks()):
            return EngineError(f"{said} within {self.deadline:g} seconds: {lacks}; use fewer actors, or add machines.")
        return EngineError(f"{said} within {self.deadline:g} seconds; {advice}.")

    def _lacks(self) -> str | None:
        """What an actor needs and the cluster does not have free, in words."""
        try:
            has, free = room(ENQUIRY_SECONDS)
        except EngineError:
            return None
        if not is_crowded(ENQUIRY_SECONDS):
            return None
        for name, need in (("CPU", self.cores), ("memory", self.memory or 0)):
            unit, left = "CPU" if name == "CPU" else "bytes of memory", free.get(name, 0.0)
            if left < need:
                return f"it needs {need} {unit} and {left:.12g} of the cluster's {has.get(name, 0.0):.12g} are free"
        return None

    def call(
        self,
        submit: Callable[[int], Any],
        who: Iterable[int],
        what: str,
        mend: Callable[[dict[int, str]], set[int]],
        on_death: Callable[[list[int]], None] | None = None,
    ) -> dict[int, Any]:
        """Ask these actors; the lost are mended and asked again, with all others that were set back for it.

        Args:
            mend: replaces the lost actors, and returns all that have to be asked again.
        """
        answers: dict[int, Any] = {}
        asked, tally = set(who), Tally(self, "in one call")
        left = set(asked)
        while left:
            until = time.monotonic() + self.deadline
            refs = submit_all(submit, sorted(left))
            try:
                answers |= self.gather(refs, until, what, on_death)
                left = set()
            except Died as end:
                tally.add(end.who)
                # keep what the others answered, except of those that mending sets back
                answers |= self._ready(refs, end.who)
                back = mend(end.who)
                left = (left - set(answers)) | (back & asked)
                answers = {a: v for a, v in answers.items() if a not in left}
        return answers

    @staticmethod
    def _ready(refs: Mapping[int, Any], dead: Mapping[int, str]) -> dict[int, Any]:
        """The answers of those that are not dead; one that is lost meanwhile is asked for again."""
        found = {}
        for a in refs.keys() - dead.keys():
            with suppress(RayError):
                found[a] = ray.get(refs[a], timeout=60)
        return found


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
                i = self.pool.loading(a)
                at = self.when if i is None else f"while it loaded {self.pool.client(i)}"
                raise EngineError(
                    f"the actor with {self.pool.clients(a)} died {self.deaths[a]} times {at} "
                    f"({who[a] or 'cause unknown'}); its machine may be short of memory."
                ) from None


def recovery(pool: Pool, a: int, round: int | None, seconds: float, why: str) -> dict[str, Any]:
    """The record of an actor that was lost and rebuilt; ``round`` is None before a run."""
    return {"actor": a, "clients": pool.clients(a), "round": round, "seconds": seconds, "cause": why}


def _tell(listener: Callable[[list[int]], None] | None, who: Iterable[int]) -> None:
    if listener is not None:
        listener(list(who))


def submit_all(submit: Callable[[int], Any], who: Iterable[int]) -> dict[int, Any]:
    """Ask each of these actors; a full object store on the driver's machine ends the run."""
    if not ray.is_initialized():  # a remote call would start a new Ray
        raise EngineError("Ray was shut down while the engine was using it; start the run again.")
    try:
        return {a: submit(a) for a in who}
    except (ObjectStoreFullError, OutOfDiskError):
        raise EngineError("the object store of the driver's machine is full; give Ray more of it.") from None


class Parcel:
    """Vectors of one call: small ones travel in the message, large ones once through the object store."""

    def __init__(self) -> None:
        self.sent: dict[int, tuple[Array, Any]] = {}  # with the vector itself, so that its id is not given to another

    def of(self, v: Array) -> Any:
        """The vector, or a reference to it, to hand to an actor's call."""
        if v.nbytes < MIN_STORE_BYTES:
            return v
        if id(v) not in self.sent:
            self.sent[id(v)] = (v, ray.put(v))
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
