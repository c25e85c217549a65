"""The actors of one problem: made, asked within a deadline, and made again when they die."""

from __future__ import annotations

import gc
import os
import socket
import time
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
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

from proxskip.engines.cpu import available_cores
from proxskip.engines.ray_worker import Aborted, Lost, actor_class
from proxskip.seam import Array, EngineError, InputError

GONE = (RayActorError, ObjectLostError, WorkerCrashedError, OutOfMemoryError, RaySystemError)
"""What Ray says when an actor, or the object that it returned, is no more."""
ENDED = "its process ended"
"""Why an actor died whose machine is as well as before."""
DEATHS = 5
"""Times that one actor may die in one call before the run gives up."""
ENQUIRY = 5.0
"""Seconds before the deadline, at most, when the driver begins to ask who works and who waits for others."""
LARGE = 1 << 16
"""Bytes from which a vector is put into the object store once, instead of into the message to each actor."""


class UnsafeClusterWarning(UserWarning):
    """Whoever reaches this Ray cluster can run code on it."""


class Died(Exception):
    """Some actors are no more."""

    def __init__(self, who: Mapping[int, str]) -> None:
        super().__init__(f"actors {sorted(who)} died")
        self.who = dict(who)


# -- the cluster -------------------------------------------------------------------------------------------------------
def connect(address: str | None) -> bool:
    """Join the cluster, or start Ray on this machine's loopback; whether it was started here."""
    if ray.is_initialized():
        return False
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # without it Ray warns about a future default
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    if address is None:
        start_here(num_cpus=available_cores(), **quiet)
        return True
    _join(address, quiet)
    return False


@contextmanager
def _tidily() -> Iterator[None]:
    """Ray leaves files open behind the processes it starts; they are closed here, without a warning for each."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        try:
            yield
        finally:
            gc.collect()


def _join(address: str, quiet: dict[str, Any]) -> None:
    if "://" in address:
        raise InputError(f'"{address}" is a Ray Client address; run the driver on the cluster with ray job submit.')
    host, _, port = address.rpartition(":")
    try:
        if port.isdigit():  # Ray itself would knock for minutes
            socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()
        with _tidily(), on_loopback() if is_loopback(host) else nullcontext():
            ray.init(address=address, **quiet)
    except (OSError, RuntimeError, ValueError) as error:
        first = (str(error).strip().splitlines() or ["no answer"])[0].rstrip(".")
        raise InputError(f'there is no Ray cluster at "{address}" ({first}); start one with ray start.') from None


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach it."""
    return host.startswith("127.") or host in ("localhost", "::1")


@contextmanager
def on_loopback() -> Iterator[None]:
    """Let Ray take 127.0.0.1 as it is.

    Where it expects clusters it takes that for the machine's outer address, and with any other address its servers
    listen on all interfaces. Where it expects none (RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER=0) it keeps to the loopback.
    """
    constants = ray._private.ray_constants
    clusters, constants.ENABLE_RAY_CLUSTER = constants.ENABLE_RAY_CLUSTER, False
    try:
        yield
    finally:
        constants.ENABLE_RAY_CLUSTER = clusters


def start_here(**options: Any) -> None:
    """Start Ray on this machine, listening on the loopback alone, without dashboard and usage statistics."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    with _tidily(), on_loopback():
        ray.init("local", include_dashboard=False, _node_ip_address="127.0.0.1", **options)


def exposed(gcs: str, environment: Mapping[str, str]) -> str | None:
    """A warning where the cluster listens beyond this machine without token authentication."""
    host = gcs.rsplit(":", 1)[0].strip("[]")
    if is_loopback(host) or environment.get("RAY_AUTH_MODE") == "token":
        return None
    return (
        f"the Ray cluster at {gcs} is not local and has no token authentication: whoever reaches it can run code on "
        "all its machines; set RAY_AUTH_MODE=token on every one of them."
    )


def shutdown_quietly() -> None:
    """End the Ray that was started here."""
    with _tidily():
        ray.shutdown()


# -- the actors --------------------------------------------------------------------------------------------------------
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
        self.data: list[tuple[str, Callable[[int], tuple[Any, ...]]]] = []
        """The calls that give an actor its shards, in their order; done again for one that takes another's place."""

    @property
    def all(self) -> range:
        """The actors' numbers."""
        return range(len(self.handles))

    def clients(self, a: int) -> str:
        """An actor's clients, in words, with the name of the first one's data."""
        lo, hi = self.bounds[a], self.bounds[a + 1]
        told = f"client {lo}" if hi == lo + 1 else f"clients {lo} to {hi - 1}"
        if self.names is None:
            return told
        return f"{told} ({self.names(lo)}{', ...' if hi > lo + 1 else ''})"

    def start(self, who: Iterable[int], away: Collection[str] = ()) -> None:
        """Make these actors, anew if there were some, without their data.

        Args:
            away: machines to keep away from if others have room: one that was lost counts as alive for some ten
                seconds more, and an actor that is sent there waits for as long.
        """
        others = [n["NodeID"] for n in ray.nodes() if self._is_open(n, away)] if away else []
        for k, a in enumerate(sorted(who)):
            options: dict[str, Any] = {"num_cpus": self.cores}
            if self.memory is not None:
                options["memory"] = self.memory
            if others:
                node = others[k % len(others)]
                options["scheduling_strategy"] = NodeAffinitySchedulingStrategy(node, True, _spill_on_unavailable=True)
            self.drop(a)
            self.handles[a] = self.made.options(**options).remote(a, self.cores, self.memory)

    def _is_open(self, node: Mapping[str, Any], away: Collection[str]) -> bool:
        return node["Alive"] and node["NodeID"] not in away and node["Resources"].get("CPU", 0) >= self.cores

    def adopt(self, other: Pool) -> None:
        """Take another pool's actors, as many as are needed, and end the rest."""
        for a in other.all:
            if a < len(self.handles):
                self.handles[a], other.handles[a] = other.handles[a], None
        other.close()

    def drop(self, a: int) -> None:
        """End an actor, if it is still there."""
        handle, self.handles[a] = self.handles[a], None
        if handle is not None and ray.is_initialized():
            ray.kill(handle)

    def close(self) -> None:
        """End all."""
        for a in self.all:
            self.drop(a)

    def supply(self, who: Collection[int], until: float) -> dict[str, dict[int, Any]]:
        """Give these actors their shards; what each call answered."""
        found = {}
        for verb, arguments in self.data:
            found[verb] = self.gather(self.give(verb, arguments, who), until, "did not start")
        return found

    def give(self, verb: str, arguments: Callable[[int], tuple[Any, ...]], who: Iterable[int]) -> dict[int, Any]:
        """One of the calls that give these actors their shards."""
        return submit_all(lambda a: getattr(self.handles[a], verb).remote(*arguments(a)), who)

    def refill(self, dead: Mapping[int, str]) -> set[int]:
        """New processes with their shards in the place of dead ones."""
        gone = set(dead)
        for _ in range(DEATHS):
            try:
                self.start(gone)
                self.supply(gone, time.monotonic() + self.deadline)
                return gone
            except Died as end:
                gone |= set(end.who)
        raise EngineError(f"the actor with {self.clients(min(gone))} died again and again while it was loaded.")

    def gather(
        self, refs: Mapping[int, Any], until: float, what: str, on_death: Callable[[list[int]], None] | None = None
    ) -> dict[int, Any]:
        """All answers, or ``Died`` when no more can come.

        Args:
            what: what the actors that do not answer in time did not do, in words.
            on_death: told at the first death which actors are still at work.
        """
        try:
            try:
                return self._all(refs, until - min(ENQUIRY, self.deadline / 4))
            except GetTimeoutError:
                asked = {a: self.handles[a].is_waiting.remote() for a in refs}
                return self._all(refs, until)
        except GetTimeoutError:
            ready, _ = ray.wait(list(refs.values()), num_returns=len(refs), timeout=0)
            slow = [a for a, ref in refs.items() if ref not in ready] or list(refs)
            raise self.late([a for a in slow if not self._waits(asked[a])] or slow, what) from None
        except RayError:
            return self._one_by_one(refs, until, what, on_death)

    @staticmethod
    def _all(refs: Mapping[int, Any], until: float) -> dict[int, Any]:
        return dict(zip(refs, ray.get(list(refs.values()), timeout=max(0.0, until - time.monotonic())), strict=True))

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
            ready, _ = ray.wait(list(waiting), timeout=max(0.0, until - time.monotonic()))
            if not ready:
                raise self.late(waiting.values(), what)
            a = waiting.pop(ready[0])
            try:
                answers[a] = ray.get(ready[0], timeout=max(1.0, until - time.monotonic()))
            except RayTaskError as error:
                if not isinstance(error.cause, (Aborted, Lost)):
                    raise self.failed(a, error) from None
                dead.setdefault(a, "")  # alive, but not where it should be
            except GONE as error:
                first = not any(dead.values())
                dead[a] = reason(error)
                if first and on_death is not None:
                    on_death(list(waiting.values()))
            except GetTimeoutError:
                raise self.late([a], what) from None
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
        """Nobody answered in time."""
        a = sorted(who)[0]
        said = f"the actor with {self.clients(a)} {what} within {self.deadline:g} seconds"
        has, free = ray.cluster_resources().get("CPU", 0.0), ray.available_resources().get("CPU", 0.0)
        if what == "did not start" and free < self.cores:
            return EngineError(
                f"{said}: it needs {self.cores} CPU and {free:g} of the cluster's {has:g} are free; "
                "use fewer actors, or add machines."
            )
        return EngineError(f"{said}; look at its machine, or give a longer deadline.")

    def call(
        self,
        submit: Callable[[int], Any],
        who: Iterable[int],
        what: str,
        mend: Callable[[dict[int, str]], set[int]],
        on_death: Callable[[list[int]], None] | None = None,
    ) -> dict[int, Any]:
        """Ask these actors; the dead are mended and asked again, with all others that were set back for it."""
        answers: dict[int, Any] = {}
        asked, deaths = set(who), dict.fromkeys(self.all, 0)
        left = set(asked)
        while left:
            until = time.monotonic() + self.deadline
            refs = submit_all(submit, sorted(left))
            try:
                answers |= self.gather(refs, until, what, on_death)
                left = set()
            except Died as end:
                for a in end.who:
                    deaths[a] += 1
                    if deaths[a] > DEATHS:
                        raise EngineError(
                            f"the actor with {self.clients(a)} died {deaths[a]} times in one call "
                            f"({end.who[a] or 'cause unknown'}); its machine may be short of memory."
                        ) from None
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


def submit_all(submit: Callable[[int], Any], who: Iterable[int]) -> dict[int, Any]:
    """Ask each of these actors; an object store that is full here ends the run."""
    try:
        return {a: submit(a) for a in who}
    except (ObjectStoreFullError, OutOfDiskError):
        raise EngineError("the object store of the driver's machine is full; give Ray more of it.") from None


class Parcel:
    """Vectors of one call: small ones travel in the message, large ones once through the object store."""

    def __init__(self) -> None:
        self.sent: dict[int, tuple[Array, Any]] = {}

    def of(self, v: Array) -> Any:
        """What to hand to an actor's call."""
        if v.nbytes < LARGE:
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
