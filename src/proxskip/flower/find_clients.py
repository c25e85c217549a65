"""Finding the clients: who is connected, who it is, and who is missing, with a time limit on every wait."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from logging import WARNING
from typing import Any

from flwr.app import Message, MessageType
from flwr.serverapp import Grid
from flwr.supercore import log

from proxskip.flower.envelope import HELLO, unwrap, wrap
from proxskip.flower.remote_client import RemoteClient
from proxskip.types import InputError

BROKEN = (1, 2, 7, 8)
"""Error codes of an app that cannot be loaded or that raised: waiting does not help."""
SLACK = 5.0
"""Seconds that a message outlives its deadline: Flower's simulation knows nothing of one that has expired."""


PATIENCE = 600.0


class SuperLinkSilent(InputError):
    """The SuperLink does not answer."""


class Mailbox:
    """Messages to nodes and their replies, until all have come or the time is over.

    Args:
        pause: seconds between two looks.
        clock, sleep: for tests.
    """

    def __init__(
        self,
        grid: Grid,
        pause: float,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.grid, self.pause, self.clock, self.sleep = grid, pause, clock, sleep
        self.patience = PATIENCE
        """Seconds that a call to the SuperLink may take."""
        self.calls: queue.SimpleQueue[Callable[[], Any] | None] = queue.SimpleQueue()
        self.done: queue.SimpleQueue[tuple[Any, BaseException | None]] = queue.SimpleQueue()
        threading.Thread(target=self._work, daemon=True).start()

    def _work(self) -> None:
        while (call := self.calls.get()) is not None:
            try:
                self.done.put((call(), None))
            except BaseException as error:  # handed to whoever waits
                self.done.put((None, error))

    def _call(self, call: Callable[[], Any]) -> Any:
        """What ``call`` gives, within ``patience``: Flower itself asks a SuperLink that is silent without end."""
        self.calls.put(call)
        try:
            value, error = self.done.get(timeout=self.patience)
        except queue.Empty:
            raise SuperLinkSilent(f"the SuperLink has not answered for {self.patience:.0f} s.") from None
        if error is not None:
            raise error
        return value

    def close(self) -> None:
        """No calls any more."""
        self.calls.put(None)

    def nodes(self) -> set[int]:
        """Who is connected."""
        return self._call(lambda: set(self.grid.get_node_ids()))  # type: ignore[no-any-return]

    def push(self, messages: Iterable[Message]) -> dict[str, int]:
        """Send, and remember which message went to which node."""
        out: dict[str, int] = {}
        for message in messages:
            for key in self._call(partial(self._push, message)):
                out[key] = message.metadata.dst_node_id
        return out

    def _push(self, message: Message) -> list[str]:
        return list(self.grid.push_messages([message]))

    def pull(self, waiting: dict[str, int]) -> list[tuple[int, Message]]:
        """What has come; those are no longer waited for."""
        found = []
        for reply in self._call(lambda: list(self.grid.pull_messages(list(waiting)))):
            node = waiting.pop(reply.metadata.reply_to_message_id, None)
            if node is not None:
                found.append((node, reply))
        return found


def find(
    post: Mailbox, clients: int, wait: float, batch: int | None, limit: int, known: Sequence[RemoteClient] = ()
) -> list[RemoteClient]:
    """All clients in the order of their partitions; InputError with those that are missing when the wait is over."""
    end = post.clock() + wait
    found: dict[int, RemoteClient] = {}
    asked: set[int] = set()
    waiting: dict[str, int] = {}
    trouble, broken = "", 0
    while True:
        new = sorted(post.nodes() - asked)
        ttl = max(1.0, end - post.clock()) + SLACK
        waiting |= post.push(hello(node, batch, ttl) for node in new)
        asked |= set(new)
        for node, reply in post.pull(waiting):
            if reply.has_error():
                broken += reply.error.code in BROKEN
                trouble = (
                    f"; node {node} said: {str(reply.error.reason or reply.error.code).strip().splitlines()[-1][:200]}"
                )
                continue
            remote = RemoteClient.of(node, len(found), unwrap(reply.content, limit)[1])
            if remote.partition in found:
                raise InputError(f"two nodes say that they are partition {remote.partition}; give each its own.")
            found[remote.partition] = remote
        if len(found) >= clients:
            if len(asked) > len(found):
                log(WARNING, "\t%d nodes are connected: the run goes on without those that have not said who they are",
                    len(asked))  # fmt: skip
            return [found[k] for k in sorted(found)]
        if post.clock() >= end or (broken and len(found) + broken >= clients):
            have = ", ".join(found[k].name for k in sorted(found)) or "nobody"
            missing = ", ".join(f"partition {k}" for k in range(clients) if k not in found)
            if found and 0 not in found:  # they count from another number
                missing = f"{clients - len(found)} more"
            waited = wait - max(0.0, end - post.clock())
            count = f"have {len(found)} of {clients} clients after {waited:.0f} s ({have})"
            raise InputError(f"{count}, missing {missing}{trouble}.")
        post.sleep(min(post.pause, max(0.0, end - post.clock())))


def hello(node: int, batch: int | None, ttl: float) -> Message:
    """The message that asks a node who it is."""
    return Message(wrap(None, {"batch": batch}), node, f"{MessageType.QUERY}.{HELLO}", ttl=ttl, group_id="hello")


def moved(post: Mailbox, remotes: Sequence[RemoteClient], asked: dict[str, int]) -> list[Message]:
    """Hellos to nodes that nobody knows, if a client is gone: it may have come back as another node."""
    there = post.nodes()
    known = {r.node for r in remotes}
    if known <= there:
        return []
    return [hello(node, None, 60.0) for node in sorted(there - known - set(asked.values()))]


def renewed(remotes: Sequence[RemoteClient], node: int, words: dict[str, Any], there: set[int]) -> list[RemoteClient]:
    """The clients after a node that nobody knew has said who it is; it takes the place of one that is gone."""
    new = RemoteClient.of(node, len(remotes), words)
    out = list(remotes)
    for k, old in enumerate(remotes):
        same = (old.partition, old.d, old.noise) == (new.partition, new.d, new.noise)
        if same and old.node not in there:
            out[k] = new
    return out
