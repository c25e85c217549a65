"""Everything used of Ray beyond its public interface, as of Ray 2.55.

``ray._private.worker._global_node``       the processes started here: ``dead_processes``, ``kill_monitor``,
                                           ``kill_all_processes``. Without it only the head knows whether Ray lives, and
                                           only ``ray.shutdown`` ends it.
``ray._private.ray_constants``             ``ENABLE_RAY_CLUSTER``, see ``on_loopback``. Without it Ray is not started
                                           here, because it might listen on all interfaces.
``ray.init(_node_ip_address=)``            the loopback. The same.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import ray

from proxskip.types import EngineError


def _node() -> Any:
    with suppress(AttributeError):
        return ray._private.worker._global_node
    return None


def ended_processes() -> list[str]:
    """The kinds of processes started here that have ended."""
    with suppress(AttributeError):
        return [str(kind) for kind, _ in _node().dead_processes()]
    return []


class Processes:
    """The processes started here; make it before ``ray.shutdown``, which forgets them."""

    def __init__(self) -> None:
        self.node = _node()

    def end_monitor(self) -> None:
        """End the autoscaler, which would take a second to end by itself."""
        with suppress(Exception):
            self.node.kill_monitor(check_alive=False)

    def kill(self) -> None:
        with suppress(AttributeError):
            self.node.kill_all_processes(check_alive=False, allow_graceful=False)


@contextmanager
def on_loopback() -> Iterator[None]:
    """Let Ray accept 127.0.0.1.

    If it expects clusters, it replaces 127.0.0.1 by the machine's outer address, and its servers listen on all
    interfaces. Otherwise (RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER=0) it keeps to the loopback.
    """
    # Ray reads that variable at import, so its constant is set here
    try:
        constants = ray._private.ray_constants
        clusters = constants.ENABLE_RAY_CLUSTER
    except AttributeError:
        raise EngineError(
            f"Ray {ray.__version__} cannot be kept to the loopback; install Ray 2.55, or start a cluster yourself and "
            "pass its address."
        ) from None
    constants.ENABLE_RAY_CLUSTER = False
    try:
        yield
    finally:
        constants.ENABLE_RAY_CLUSTER = clusters


def start_on_loopback(**options: object) -> None:
    """``ray.init`` with all servers on the loopback."""
    with on_loopback():
        ray.init("local", _node_ip_address="127.0.0.1", **options)
