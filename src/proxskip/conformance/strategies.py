"""Strategies of Flower on clients in this process, by ``configure_train`` and ``aggregate_train``."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from flwr.app import Array as FlowerArray
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

from proxskip.conformance import laws
from proxskip.conformance.laws import ConformanceReport, Law, ObservedRun
from proxskip.problems.federated import Problem
from proxskip.types import Array, InputError

Client = Callable[[Message, Context], Message]
MakeClient = Callable[[Callable[[Array], Array], float, int], Client]


def check_strategy(
    strategy: Callable[[], Any], client: MakeClient | None, clients: int, period: int, lr: float, rounds: int,
    tol: float,
) -> ConformanceReport:  # fmt: skip
    """See ``proxskip.conformance.check_strategy``."""
    make = client or gradient_descent
    unlike, alike = laws.unlike_clients(clients), laws.like_clients(clients)
    run = _Federation(unlike, make, lr, period).observe(strategy(), rounds)
    same = _Federation(alike, make, lr, period).observe(strategy(), rounds)
    checked: list[Law] = [laws.sign(run), laws.like(same, tol)]
    # with some clients only, nobody sees the corrections of the others
    checked += [laws.total(run), laws.controls(run, tol)] if run.corrections else []
    return ConformanceReport((*checked, laws.fixed_point(run, tol)))


def gradient_descent(gradient: Callable[[Array], Array], lr: float, period: int) -> Client:
    """A client that takes ``period`` steps of gradient descent from the point that it gets, and returns its own."""

    def train(message: Message, context: Context) -> Message:
        (key, record) = next(iter(message.content.array_records.items()))
        (name, array) = next(iter(record.items()))
        y = array.numpy()
        for _ in range(period):
            y = y - lr * gradient(y)
        numbers = MetricRecord({"num-examples": 1})
        return Message(RecordDict({key: ArrayRecord({name: FlowerArray(y)}), "metrics": numbers}), reply_to=message)

    return train


class _Federation(Grid):  # type: ignore[misc]
    """Clients whose gradient calls are written down, as a grid that only knows who there is."""

    def __init__(self, problem: Problem, make: MakeClient, lr: float, period: int) -> None:
        self.problem, self.lr = problem, lr
        self.calls: dict[int, list[Array]] = {}
        self.clients = {1 + i: make(self._oracle(i), lr, period) for i in range(problem.n)}
        self.contexts = {k: Context(1, k, {"partition-id": k - 1}, RecordDict(), {}) for k in self.clients}

    def _oracle(self, i: int) -> Callable[[Array], Array]:
        def gradient(y: Array) -> Array:
            y = np.array(y, dtype=np.float64)
            self.calls.setdefault(i, []).append(y)
            return self.problem.clients[i].gradient(y)

        return gradient

    def observe(self, strategy: Any, rounds: int) -> ObservedRun:
        """Rounds from zero."""
        x, corrections = np.zeros(self.problem.d), []
        points = [x]
        with _in_a_task(), np.errstate(all="ignore"):
            for r in range(1, 1 + rounds):
                self.calls = {}
                arrays = ArrayRecord({"x": FlowerArray(x)})
                asked = strategy.configure_train(r, arrays, ConfigRecord(), self)
                arrays, _ = strategy.aggregate_train(r, self.send_and_receive(asked))
                if arrays is None:
                    raise InputError("the strategy returned no arrays, so it did not accept the replies of the client.")
                x = next(iter(arrays.values())).numpy().astype(np.float64)
                corrections += self._corrections(points[-1])
                points.append(x)
        return ObservedRun(self.problem, points, corrections)

    def _corrections(self, x: Array) -> list[Array]:
        """h_i of a first local step from x, read off the points at which gradients were asked for."""
        # the gradient at x and the one after it are both needed, of every client
        if any(len(self.calls.get(i, ())) < 2 for i in range(self.problem.n)):
            return []
        # the last call at x is the first local step's, also where a gradient at x is taken for the control variates
        firsts = []
        for i in range(self.problem.n):
            at = [k for k, y in enumerate(self.calls[i][:-1]) if np.array_equal(y, x)]
            if not at:
                return []
            firsts.append(self.calls[i][at[-1] + 1])
        return [self.problem.client_gradients(x) + (np.array(firsts) - x) / self.lr]

    # -- the interface of Flower ---------------------------------------------------------------------------------------
    def get_node_ids(self) -> Iterable[int]:
        """All clients are there."""
        return list(self.clients)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        """Every client answers at once."""
        return [self._answer(m) for m in messages]

    def _answer(self, message: Message) -> Message:
        node = message.metadata.dst_node_id
        return self.clients[node](message, self.contexts[node])

    def set_run(self, run: Any) -> None:
        """Nothing to set."""

    @property
    def run(self) -> None:
        """There is none."""

    def create_message(self, *args: Any, **given: Any) -> Message:
        """As ``Message``."""
        return Message(*args, **given)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Refused."""
        raise InputError("strategies are checked by configure_train and aggregate_train, which push no messages.")

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Refused."""
        raise InputError("strategies are checked by configure_train and aggregate_train, which pull no messages.")


@contextmanager
def _in_a_task() -> Iterator[None]:
    """Messages can be made only inside a task of Flower (seen in 1.41); its log is kept to warnings."""
    task = TaskIdentity
    try:
        before = task.task_id, task.run_id, task.node_id
    except RuntimeError:  # this is none
        before = None, None, None
    logger = logging.getLogger("flwr")
    level = logger.level
    task.task_id = task.run_id = task.node_id = 1
    logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        task.task_id, task.run_id, task.node_id = before
        logger.setLevel(level)
