"""Whether Ray itself lives: without its head or its raylet no actor answers, and none can be made again."""

from __future__ import annotations

import time

import ray

from proxskip.engines.ray import private
from proxskip.timeouts import within
from proxskip.types import EngineError

SECONDS_BETWEEN_LOOKS = 1.0
"""How often the processes that were started here are looked at."""
SECONDS_BETWEEN_ENQUIRIES = 5.0
"""How often the head of a cluster is asked, while actors do not answer."""
HEAD_SECONDS = 30.0
"""How long the head may take; Ray itself ends the driver after 60."""
NEEDED = {"gcs_server": "head (gcs_server)", "raylet": "raylet"}
"""Ray's processes without which a run cannot go on; when an agent ends that the raylet needs, the raylet ends too."""


class Heartbeat:
    """Looks after Ray's own processes, at little cost while all is well."""

    def __init__(self) -> None:
        self.next_look, self.next_enquiry = 0.0, time.monotonic() + SECONDS_BETWEEN_ENQUIRIES
        self.me = ray.get_runtime_context().get_node_id()

    def look(self) -> None:
        """Raise an error if one of Ray's processes that were started here has ended."""
        now = time.monotonic()
        if now < self.next_look:
            return
        self.next_look = now + SECONDS_BETWEEN_LOOKS
        for kind in private.ended_processes():
            if kind in NEEDED:
                raise lost(f"its {NEEDED[kind]} has ended")

    def enquire(self) -> None:
        """``look``, and ask the head whether this machine's raylet lives; for a driver that waits."""
        self.look()
        if time.monotonic() < self.next_enquiry:
            return
        silent = lost(f"its head did not answer for {HEAD_SECONDS:g} seconds")
        nodes = within(HEAD_SECONDS, ray.nodes, silent, self.look)
        if any(n["NodeID"] == self.me and not n["Alive"] for n in nodes):
            raise lost("the raylet of this machine has ended")
        self.next_enquiry = time.monotonic() + SECONDS_BETWEEN_ENQUIRIES


def lost(what: str) -> EngineError:
    """The error that names Ray, and not an actor."""
    return EngineError(f"Ray was lost: {what}, so no actor can answer; start Ray again, and resume the run.")
