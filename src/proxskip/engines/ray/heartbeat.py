"""Checks that Ray itself lives: without its head or raylet no actor answers, and none can be rebuilt."""

from __future__ import annotations

import time

import ray

from proxskip.engines.ray import private
from proxskip.support.time_limits import within
from proxskip.types import EngineError

SECONDS_BETWEEN_LOOKS = 1.0
"""How often processes started here are checked."""
SECONDS_BETWEEN_ENQUIRIES = 5.0
"""How often a cluster's head is asked while actors do not answer."""
HEAD_SECONDS = 30.0
"""The head's time limit; Ray itself ends the driver after 60."""
NEEDED = {"gcs_server": "head (gcs_server)", "raylet": "raylet"}
"""The processes of Ray that a run needs."""


class Heartbeat:
    """Watches Ray's own processes, at little cost."""

    def __init__(self) -> None:
        self.next_look, self.next_enquiry = 0.0, time.monotonic() + SECONDS_BETWEEN_ENQUIRIES
        self.me = ray.get_runtime_context().get_node_id()

    def check_processes(self) -> None:
        """Raise an error if a process of the Ray started here has ended."""
        now = time.monotonic()
        if now < self.next_look:
            return
        self.next_look = now + SECONDS_BETWEEN_LOOKS
        for kind in private.ended_processes():
            if kind in NEEDED:
                raise lost(f"its {NEEDED[kind]} has ended")

    def enquire(self) -> None:
        """While waiting: also ask the head whether this machine's raylet lives."""
        self.check_processes()
        if time.monotonic() < self.next_enquiry:
            return
        silent = lost(f"its head did not answer for {HEAD_SECONDS:g} seconds")
        nodes = within(HEAD_SECONDS, ray.nodes, silent, self.check_processes)
        if any(n["NodeID"] == self.me and not n["Alive"] for n in nodes):
            raise lost("the raylet of this machine has ended")
        self.next_enquiry = time.monotonic() + SECONDS_BETWEEN_ENQUIRIES


def lost(what: str) -> EngineError:
    """The error that blames Ray, not an actor."""
    return EngineError(f"lost Ray: {what}, so no actor can answer; restart Ray and resume the run.")
