"""A cohort on the CPU engine: all its members as one client."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from proxskip.engines.local import OneClient, Sender, key_of, pull_to_zero, pulled_steps
from proxskip.interfaces import Anchor, Pull, Request, look
from proxskip.links.codecs import Key
from proxskip.types import Array, Indices


class Cohort(Sender):
    """A whole cohort, or a range of its members, as one client: every vector is a ``(c, d)`` stack.

    Args:
        threads: how many its work may use.
    """

    def __init__(self, engine: Any, members: Indices, request: Request, threads: int) -> None:
        self.engine, self.members, self.request, self.threads = engine, members, request, threads

    def keys(self, vector: int) -> Sequence[Key]:
        e, number0 = self.engine, self.engine.number0
        return [key_of(self.request, e.seed, number0 + int(i), j, vector) for j, i in enumerate(self.members)]

    def descend(
        self,
        x: Array,
        h: Array | float,
        gamma: Any,
        K: Any,
        *,
        pull: Pull | None = None,
        momentum: Any = 0.0,
        anchor: Anchor | None = None,
        until: Any = None,
    ) -> Any:
        engine, shape = self.engine, (len(self.members), self.engine.problem.d)
        steps = np.full(shape[0], K, dtype=np.int64)
        gammas = np.full(shape[0], gamma if type(gamma) is float else np.ravel(gamma), dtype=np.float64)
        x0, H = np.atleast_2d(x), as_stack(h, shape)
        plain = type(momentum) is float and momentum == 0.0 and until is None
        if anchor is not None and pull is None and plain and engine.has_anchors():
            held = anchor[0], anchor[1], np.array(numbers(anchor[2], shape[0]))
            return engine.descend_anchored(self.members, x0, H, gammas, steps, held, self, self.request, self.threads)
        if engine.shards is None or anchor is not None or until is not None:
            return self._one_by_one(np.broadcast_to(x0, shape), H, gammas, steps, pull, momentum, anchor, until)
        batch, to_zero = engine.problem.batch, pull_to_zero(pull)
        self.gradients += batch * int(steps.sum()) if batch else int(steps @ engine.rows[self.members])
        if plain and to_zero is not None:
            round, halt, first = self.request.round, self.request.halt, self.step
            self.step = first + (K if isinstance(K, int) else steps)
            return engine.descend(self.members, x0, H, gammas, steps, round, first, halt, to_zero, threads=self.threads)
        return pulled_steps(self._one_step, np.array(np.broadcast_to(x0, shape)), H, gammas, steps, pull, momentum)

    def _one_step(self, z: Array, H: Array, gammas: Array, active: Indices) -> Array:
        halt, step0 = self.request.halt, self.step
        look(halt)
        self.step = self.step + active
        round = self.request.round
        y: Array = self.engine.descend(self.members, z, H, gammas, active, round, step0, halt, threads=self.threads)
        return y

    def _one_by_one(
        self, X: Array, H: Array, gammas: Array, K: Indices, pull: Any, momentum: Any, anchor: Any, until: Any
    ) -> Any:
        """Steps without a kernel: member by member, as on the reference engine, spread over threads."""
        e, n = self.engine, len(X)
        first = self.step if np.ndim(self.step) else [self.step] * n
        clients = [OneClient(e.problem, int(i), e.seed, self.request, j, e.number0) for j, i in enumerate(self.members)]
        options: dict[str, Any] = {}
        if type(momentum) is not float or momentum != 0.0:
            options["momentum"] = numbers(momentum, n)
        if pull is not None:
            centres = np.broadcast_to(pull[1], X.shape)
            options["pull"] = list(zip(numbers(pull[0], n), centres, strict=True))
        if anchor is not None:
            w, gw = (np.broadcast_to(v, X.shape) for v in anchor[:2])
            options["anchor"] = list(zip(w, gw, numbers(anchor[2], n), strict=True))
        if until is not None:
            options["until"] = numbers(until, n)
        ends: list[Any] = [None] * n

        def one(j: int, _: int) -> None:
            clients[j].step = int(first[j])
            mine = {name: v[j] for name, v in options.items()}
            ends[j] = clients[j].descend(X[j].copy(), H[j], float(gammas[j]), int(K[j]), **mine)

        e.each(one, n, threads=self.threads)
        self.gradients += sum(c.gradients for c in clients)
        self.step = np.array([c.step for c in clients])
        if until is not None:
            self.had_criterion = True
            return np.stack([y for y, _ in ends]), np.array([[steps] for _, steps in ends], dtype=np.int64)
        if anchor is not None:
            return tuple(np.stack([np.broadcast_to(end[k], X.shape[1:]) for end in ends]) for k in range(3))
        return np.stack(ends)

    def gradient(self, x: Array, where: Any = None) -> Array:
        x = np.broadcast_to(x, (len(self.members), self.engine.problem.d))
        wanted = np.ones(len(x), bool) if where is None else np.broadcast_to(np.ravel(where), (len(x),)) != 0
        self.gradients += int(self.engine.rows[self.members[wanted]].sum())
        gradients: Array = self.engine.gradients(self.members, x, wanted, self.request.halt, self.threads)
        return gradients

    def own(self, values: Any) -> Any:
        numbers = self.engine.number0 + self.members
        if isinstance(values, tuple):
            return np.array([values[i] for i in numbers.tolist()])[:, None]
        if np.ndim(values) == 0:
            return values
        mine = np.asarray(values)[numbers]
        return mine if mine.ndim == 2 else mine[:, None]


def as_stack(v: Array | float, shape: tuple[int, int]) -> Array:
    """v with a row per member; one that has them is not touched, because numpy's views take microseconds."""
    return v if isinstance(v, np.ndarray) and v.shape == shape else np.broadcast_to(v, shape)


def numbers(v: Any, members: int) -> list[float]:
    """One number per member, from a number or a column."""
    return [float(u) for u in np.broadcast_to(np.ravel(v), (members,))]
