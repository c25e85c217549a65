"""The Ray that the engines of this process use: a cluster they join, or one started here.

A Ray started here only listens on the loopback, and ends with the last engine that uses it. Ray's calls to its head
wait without a limit, so they run in a thread with a timeout.
"""

from __future__ import annotations

import gc
import os
import socket
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import TypeVar
from weakref import WeakSet

import ray

from proxskip.core.engine import Engine
from proxskip.engines.ray import private
from proxskip.support.cores import available_cores
from proxskip.support.time_limits import within
from proxskip.types import EngineError, InputError

T = TypeVar("T")

CONNECT_SECONDS = 10.0
"""The time limit for connecting to a cluster's port."""
SHUTDOWN_SECONDS = 20.0
"""The time that a Ray started here has to end before its processes are killed."""


class UnsafeClusterWarning(UserWarning):
    """Whoever reaches this Ray cluster can run code on it."""


class FullClusterWarning(UserWarning):
    """The cluster has fewer CPUs than the actors need."""


class Started:
    """The Ray started here with its engines, or the address that was joined."""

    def __init__(self) -> None:
        self.session: str | None = None
        self.users: WeakSet[Engine] = WeakSet()
        self.joined: tuple[str | None, str | None] = None, None

    def runs(self) -> bool:
        """Whether the Ray started here still runs."""
        return self.session is not None and self.session == session()


OURS = Started()


def session() -> str | None:
    """The Ray that this process has joined, as its address and job number; None without one."""
    if not ray.is_initialized():
        return None
    context = ray.get_runtime_context()
    return f"{context.gcs_address} {context.get_job_id()}"


def connect(address: str | None, user: Engine, cpus: int, seconds: float) -> None:
    """Join the cluster, or start Ray on this machine's loopback.

    Args:
        user: the calling engine.
        cpus: how many its actors need.
        seconds: how long to wait for the cluster.
    """
    address = None if address == "local" else address
    if ray.is_initialized():
        _same(address)
    else:
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # without it Ray warns of a future default
        quiet: dict[str, object] = {"log_to_driver": False, "logging_level": "ERROR"}
        if address is None:
            start_here(num_cpus=max(available_cores(), cpus), **quiet)
            OURS.session, OURS.users = session(), WeakSet()
        else:
            _join(address, quiet, seconds)
            OURS.joined = address, session()
    if OURS.runs():
        OURS.users.add(user)


def leave(user: Engine) -> None:
    """End the Ray started here, unless another engine uses it."""
    if user not in OURS.users:
        return
    OURS.users.discard(user)
    if not OURS.users and OURS.runs():
        with _tidily():
            _end(SHUTDOWN_SECONDS)


def _end(seconds: float) -> None:
    """End the Ray started here; kill its processes if it does not end by itself."""
    processes = private.Processes()
    processes.end_monitor()
    try:
        within(seconds, ray.shutdown, TimeoutError())
    except TimeoutError:
        processes.kill()


def _same(address: str | None) -> None:
    """Refuse any cluster but the one that this process has joined."""
    joined = ray.get_runtime_context().gcs_address
    if address in (None, "auto", joined) or OURS.joined == (address, session()):
        return
    raise InputError(
        f'this process already uses the Ray at "{joined}", not "{address}"; leave out address, or call ray.shutdown() '
        "first."
    )


def _join(address: str, quiet: dict[str, object], seconds: float) -> None:
    if "://" in address:
        raise InputError(f'Ray Client addresses such as "{address}" are not supported; use ray job submit.')
    host, _, port = address.rpartition(":")
    silent = TimeoutError(f"no answer within {seconds:g} seconds")
    try:
        if port.isdigit():  # otherwise Ray would try for minutes
            socket.create_connection((host.strip("[]"), int(port)), timeout=min(CONNECT_SECONDS, seconds)).close()
        with _tidily(), private.on_loopback() if is_loopback(host) else nullcontext():
            within(seconds, lambda: ray.init(address=address, **quiet), silent)
    except (OSError, RuntimeError, ValueError) as error:
        first = (str(error).strip().splitlines() or ["no answer"])[0].rstrip(".")
        raise InputError(f'no Ray cluster at "{address}" ({first}); start one with ray start.') from None


def ask_head(seconds: float, act: Callable[[], T], meanwhile: Callable[[], None] | None = None) -> T:
    """Call Ray's head, and give up in time, or when ``meanwhile`` raises."""
    silent = EngineError(f"the head of the Ray cluster did not answer within {seconds:.3g} seconds; check its machine.")
    return within(seconds, act, silent, meanwhile)


def machines(seconds: float) -> int:
    """The machines with CPUs for actors; at least one, since others may join."""
    nodes = ask_head(seconds, ray.nodes)
    return max(1, sum(1 for node in nodes if node["Alive"] and node["Resources"].get("CPU", 0) >= 1))


def cpus(seconds: float) -> float:
    """The cluster's CPUs."""
    return float(ask_head(seconds, ray.cluster_resources).get("CPU", 1))


def check_room(need: int, has: float) -> None:
    """Check that all actors fit: an error on a Ray started here, a warning on a cluster, which may grow."""
    if need <= has:
        return
    lack = f"the actors need {need} CPUs and the cluster has {has:.12g}"
    if OURS.runs():
        raise InputError(f"{lack}; use fewer actors, or shut down other engines first.")
    note = f"{lack}; some actors wait for machines to join, until the deadline."
    warnings.warn(note, FullClusterWarning, stacklevel=6)


@contextmanager
def _tidily() -> Iterator[None]:
    """Close files that Ray leaves open, without a warning for each."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        try:
            yield
        finally:
            gc.collect()


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach it."""
    return host.startswith("127.") or host in ("localhost", "::1")


def start_here(**options: object) -> None:
    """Start Ray on this machine's loopback, without dashboard and usage statistics."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        with _tidily():
            private.start_on_loopback(include_dashboard=False, **options)
    except EngineError:
        raise
    except Exception as error:  # a plain Exception if the machine is too busy
        first = (str(error).strip().splitlines() or ["no answer"])[0].rstrip(".")
        raise EngineError(f"Ray did not start on this machine ({first}); try again, or end other programs.") from None


def warn_if_exposed() -> None:
    """Warn if the cluster is reachable from other machines without token authentication."""
    gcs = ray.get_runtime_context().gcs_address
    host = gcs.rsplit(":", 1)[0].strip("[]")
    if is_loopback(host) or os.environ.get("RAY_AUTH_MODE") == "token":
        return
    note = (
        f"the Ray cluster at {gcs} has no token authentication: whoever reaches it can run code on its machines; set "
        "RAY_AUTH_MODE=token on all of them."
    )
    warnings.warn(note, UnsafeClusterWarning, stacklevel=6)
