"""A grid of Flower whose nodes are in this process, and time that passes only when somebody sleeps."""

from collections.abc import Callable, Iterable
from typing import Any

from flwr.app import Context, Error, Message, RecordDict
from flwr.serverapp import Grid

import proxskip as ps
from proxskip.flower import client_app


class Clock:
    """Time that passes only when somebody sleeps."""

    now = 0.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += max(seconds, 1e-3)


class Here(Grid):
    """Nodes in this process; what fails is what a test says.

    Args:
        hook: ``hook(node, message)`` before a node works: True loses the message, an Error is the reply.
    """

    def __init__(self, app: Any, n: int, hook: Callable[[int, Message], Any] = lambda node, m: False) -> None:
        self.app, self.hook = app, hook
        self.contexts = {100 + i: self.context(i, n) for i in range(n)}
        self.replies: dict[str, Message] = {}
        self.sent: list[Message] = []

    def context(self, i: int, n: int) -> Context:
        return Context(7, 100 + i, {"partition-id": i, "num-partitions": n}, RecordDict(), {})

    def set_run(self, run: Any) -> None: ...
    @property
    def run(self) -> Any: ...
    def create_message(self, *args: Any, **options: Any) -> Message:
        raise NotImplementedError

    def get_node_ids(self) -> Iterable[int]:
        return list(self.contexts)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        keys = []
        for m in messages:
            self.sent.append(m)
            keys.append(key := str(len(self.sent)))
            node = m.metadata.dst_node_id
            m.metadata.__dict__["_message_id"] = key
            m.metadata.__dict__["_run_id"] = 7
            what = self.hook(node, m)
            if isinstance(what, Error):
                self.replies[key] = Message(what, reply_to=m)
            elif not what and node in self.contexts:
                self.replies[key] = self.app(m, self.contexts[node])
        return keys

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return [self.replies.pop(k) for k in list(message_ids) if k in self.replies]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        raise NotImplementedError


def app_of(problem: ps.Problem, **options: Any) -> Any:
    return client_app(lambda context: problem.clients[int(context.node_config["partition-id"])], **options)
