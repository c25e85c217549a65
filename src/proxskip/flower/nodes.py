"""The clients from the server's side: which nodes are connected, which client each one is, and its constants."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from logging import WARNING
from typing import Any

import numpy as np
from flwr.app import Message, MessageType
from flwr.serverapp import Grid

from proxskip.flower.envelope import HELLO, log, unwrap, wrap
from proxskip.flower.noise import Noise
from proxskip.problems.federated import Problem
from proxskip.support.time_limits import within
from proxskip.types import Array, InputError, Label, Prox

APP_ERRORS = (1, 2, 7, 8)
"""Flower's error codes for an app that cannot be loaded or raised: waiting does not help."""
LONGEST_PAUSE = 0.5
"""The longest pause between two polls, in seconds."""
EXTRA_TTL = 5.0
"""Seconds a message lives beyond its deadline: Flower's simulation forgets expired messages."""
MIN_TIMEOUT = 30.0
"""The shortest time limit of a call to the SuperLink, in seconds."""
MAX_SENTENCE = 300
"""How much of a client's sentence is kept."""
UNKNOWN_L = 1e-9
"""Stands for an unknown L: it allows every step size, with a warning."""
DECLARED: dict[str, Callable[[Any], Any]] = {
    "name": str,
    "partition": int,
    "d": int,
    "N": int,
    "L": float,
    "mu": float,
    "kind": lambda text: str(text)[:32],
    "l2": float,
    "has_hessian": bool,
    "columns": lambda names: tuple(map(str, names)),
    "classes": tuple,
    "contradiction": lambda text: str(text)[:MAX_SENTENCE],
    "least_rows": int,
}
"""What a node says of itself, beside its noise, and how it is read; None for what it does not know."""
ALIKE = {
    "d": ("{} unknowns", "the same model"),
    "columns": ("the columns {}", "the same, in the same order"),
    "classes": ("the classes {}", "all of them, with classes="),
    "l2": ("lambda = {}", "the same"),
}
"""What must be the same for all clients, in words, and what to do where it is not."""
_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,63}")


class SuperLinkSilent(InputError):
    """The SuperLink did not answer in time."""


class Mailbox:
    """Sends messages to nodes and fetches their replies; no call to the SuperLink takes longer than ``timeout``.

    Args:
        pause: seconds between two polls.
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
        self.timeout = MIN_TIMEOUT

    def _call(self, call: Callable[[], Any]) -> Any:
        """The result of ``call``; Flower itself waits forever for a silent SuperLink."""
        silent = SuperLinkSilent(f"the SuperLink did not answer within {self.timeout:.0f} s; check that it runs.")
        return within(self.timeout, call, silent)

    def nodes(self) -> set[int]:
        return self._call(lambda: set(self.grid.get_node_ids()))  # type: ignore[no-any-return]

    def push(self, messages: Iterable[Message]) -> dict[str, int]:
        """Send messages; returns the node of each message id."""
        nodes: dict[str, int] = {}
        for message in messages:
            for key in self._call(lambda: list(self.grid.push_messages([message]))):  # noqa: B023
                nodes[key] = message.metadata.dst_node_id
        return nodes

    def pull(self, waiting: dict[str, int]) -> list[tuple[int, Message]]:
        """The replies so far; they are removed from ``waiting``."""
        replies = self._call(lambda: list(self.grid.pull_messages(list(waiting))))
        nodes = [waiting.pop(reply.metadata.reply_to_message_id, None) for reply in replies]
        return [(node, reply) for node, reply in zip(nodes, replies, strict=True) if node is not None]


@dataclass(frozen=True, slots=True)
class FederatedClient:
    """A client as the server sees it: its constants, without a way to evaluate its function.

    Args:
        node: the id of its node in Flower; another one after it has connected again.
        name: from the node's settings, or such as "client-3".
        partition: its number among the clients, from the node's ``partition-id``.
        d: the number of unknowns.
        N: the number of its rows.
        L: the smoothness constant; a tiny number if it is unknown.
        mu: the strong convexity constant; None if it is unknown.
        kind: its loss, such as "logistic", or the class of its function.
        l2: the coefficient lambda of  lambda/2 |x|^2.
        L_known: whether the client knows its L.
        has_hessian: whether its function has a Hessian.
        columns: the names of its unknowns; None if it knows none.
        noise: what it adds to its uploads; None for nothing.
        contradiction: how its gradient and its value contradict each other; None if they do not.
        least_rows: with fewer rows it sends no Hessian.
        classes: the labels that its function tells apart; None if it knows none.
    """

    node: int
    name: str
    partition: int
    d: int
    N: int
    L: float
    mu: float | None
    kind: str
    l2: float
    L_known: bool
    has_hessian: bool
    columns: tuple[str, ...] | None = None
    noise: Noise | None = None
    contradiction: str | None = None
    least_rows: int = 0
    classes: tuple[Label, ...] | None = None

    def value(self, x: Array) -> float:
        raise InputError(f"{self.name} is a remote client; only it can evaluate its function.")

    def gradient(self, x: Array) -> Array:
        raise InputError(f"{self.name} is a remote client; only it can evaluate its gradient.")

    @staticmethod
    def of(node: int, place: int, words: dict[str, Any]) -> FederatedClient:
        """The client that its node declared, checked.

        Args:
            node: the id of its node.
            place: its partition, if the node has none.
            words: what the node declared.
        """
        try:
            told: dict[str, Any] = {
                name: None if words[name] is None else read(words[name]) for name, read in DECLARED.items()
            }
            if None in (told["d"], told["N"], told["kind"], told["l2"]):
                raise ValueError("d, N, kind and l2 are needed")
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise InputError(f"node {node} did not identify itself ({error}); run the same app everywhere.") from None
        L_known = told["L"] is not None
        if told["partition"] is None:
            told["partition"] = place
        told["name"] = told["name"] or f"client-{told['partition']}"
        told["L"] = told["L"] or UNKNOWN_L  # zero where there is no event to learn from
        told["mu"] = told["mu"] if L_known else None
        noise = Noise.of(words.get("noise"), told["name"])
        client = FederatedClient(node, L_known=L_known, noise=noise, **told)
        client._check()
        return client

    def _check(self) -> None:
        """Refuse what no client can be."""
        if not _NAME.fullmatch(self.name):
            raise InputError(f"node {self.node} has an invalid name: use 1 to 64 of A-Z a-z 0-9 . _ -.")
        is_finite = math.isfinite(self.L) and math.isfinite(self.l2)
        is_convex = self.mu is None or 0.0 <= self.mu < math.inf
        is_sized = self.d > 0 and self.N > 0 and 0 <= self.partition < 2**31
        if not (is_finite and is_convex and is_sized and self.L > 0):
            raise InputError(
                f"{self.name} declares L = {self.L}, mu = {self.mu}, d = {self.d}, rows = {self.N}, partition = "
                f"{self.partition}; L, d and rows must be positive, and mu and partition not negative."
            )


class RemoteProblem(Problem):
    """The problem of all clients, as far as the server knows it."""

    @cached_property
    def solution(self) -> None:
        """Unknown: the server has no data."""
        return None


def as_problem(remotes: Sequence[FederatedClient], weights: str | Sequence[float], psi: Prox | None) -> Problem:
    """The problem of all clients, as far as the server knows it."""
    first = remotes[0]
    for r in remotes:
        for name, (words, advice) in ALIKE.items():
            own, other = getattr(r, name), getattr(first, name)
            if own != other:
                raise InputError(
                    f"{r.name} has {words.format(own)} but {first.name} has {other}; give every client {advice}."
                )
    if isinstance(weights, str):
        if weights not in ("equal", "rows"):
            raise InputError(f'weights = "{weights}" must be "equal", "rows", or one number per client.')
        w = [float(r.N) if weights == "rows" else 1.0 for r in remotes]
    else:
        w = [float(v) for v in weights]
    info = {"data": "the clients' own data", "split": "the federation"}
    return RemoteProblem(list(remotes), np.array(w), psi=psi, d=first.d, info=info)


class RollCall:
    """Asks the nodes, as they connect, which client each of them is.

    Args:
        mailbox: to reach the nodes.
        clients: how many are expected.
        wait: seconds in which all of them must have answered.
        batch: rows of a minibatch, on which their constants depend.
        limit: the largest message in bytes.
    """

    def __init__(self, mailbox: Mailbox, clients: int, wait: float, batch: int | None, limit: int) -> None:
        self.mailbox, self.clients, self.wait, self.batch, self.limit = mailbox, clients, wait, batch, limit
        self.end = mailbox.clock() + wait
        self.known: dict[int, FederatedClient] = {}
        self.greeted: set[int] = set()
        self.waiting: dict[str, int] = {}
        self.broken = 0
        self.trouble = ""

    def take(self) -> list[FederatedClient]:
        """All clients in the order of their partitions; InputError that names the missing ones."""
        pause = self.mailbox.pause
        while True:
            self._greet()
            self._hear()
            if len(self.known) >= self.clients:
                break
            # a node whose app cannot be loaded will not become a client by waiting
            hopeless = self.broken and len(self.known) + self.broken >= self.clients
            if hopeless or self.mailbox.clock() >= self.end:
                raise InputError(self._who_is_missing())
            self.mailbox.sleep(min(pause, max(0.0, self.end - self.mailbox.clock())))
            pause = min(1.25 * pause, max(LONGEST_PAUSE, self.mailbox.pause))
        if len(self.greeted) > len(self.known):
            log(WARNING, "\t%d nodes are connected: starting without the unknown ones", len(self.greeted))
        return [self.known[k] for k in sorted(self.known)]

    def _greet(self) -> None:
        """Ask the nodes that have connected since who they are."""
        new = sorted(self.mailbox.nodes() - self.greeted)
        ttl = max(1.0, self.end - self.mailbox.clock()) + EXTRA_TTL
        self.waiting |= self.mailbox.push(hello(node, self.batch, ttl) for node in new)
        self.greeted |= set(new)

    def _hear(self) -> None:
        """Take in the answers so far."""
        for node, reply in self.mailbox.pull(self.waiting):
            if not reply.has_error():
                client = FederatedClient.of(node, len(self.known), unwrap(reply.content, self.limit)[1])
                if client.partition in self.known:
                    raise InputError(f"two nodes claim to be partition {client.partition}; give each its own.")
                self.known[client.partition] = client
                continue
            self.trouble = f"; node {node} said: {last_line(reply) or reply.error.code}"
            if reply.error.code in APP_ERRORS:
                self.broken += 1
            else:  # the app did not run: Flower's simulation loses actors under load, for example
                self.greeted.discard(node)

    def _who_is_missing(self) -> str:
        have = ", ".join(self.known[k].name for k in sorted(self.known)) or "nobody"
        missing = ", ".join(f"partition {k}" for k in range(self.clients) if k not in self.known)
        if self.known and 0 not in self.known:  # partitions are not numbered from zero
            missing = f"{self.clients - len(self.known)} more"
        waited = self.wait - max(0.0, self.end - self.mailbox.clock())
        count = f"have {len(self.known)} of {self.clients} clients after {waited:.0f} s ({have}), missing {missing}"
        return f"{count}{self.trouble}; give wait= more seconds if they connect later."


def last_line(reply: Message) -> str:
    """The last line of a node's error, which names the cause; may be empty."""
    return (str(reply.error.reason or "").strip().splitlines() or [""])[-1][:200]


def hello(node: int, batch: int | None, ttl: float) -> Message:
    """The message that asks a node to identify itself."""
    return Message(wrap(None, {"batch": batch}), node, f"{MessageType.QUERY}.{HELLO}", ttl=ttl, group_id="hello")
