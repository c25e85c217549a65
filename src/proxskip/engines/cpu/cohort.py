"""A cohort on the CPU engine: all its members as one client."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from proxskip.engines.cpu.lazy import Lazy, as_stack, numbers
from proxskip.engines.cpu.lazy_kernels import KEPT, LINE
from proxskip.engines.local import OneClient, Sender, key_of, pull_to_zero, pulled_steps
from proxskip.interfaces import Anchor, Pull, Request, look
from proxskip.links.codecs import Key
from proxskip.types import Array, Indices


class Cohort(Sender):
    """A whole cohort as one client: every vector is a ``(c, d)`` stack."""

    def __init__(self, engine: Any, members: Indices, request: Request) -> None:
        self.engine, self.members, self.request = engine, members, request

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
        x0, H = np.atleast_2d(self.plain(x)), as_stack(self.plain(h), shape)
        plain = type(momentum) is float and momentum == 0.0 and until is None
        if anchor is not None and pull is None and plain and engine.has_anchors():
            held = self.plain(anchor[0]), self.plain(anchor[1]), np.array(numbers(anchor[2], shape[0]))
            return engine.descend_anchored(self.members, x0, H, gammas, steps, held, self, self.request)
        if engine.shards is None or anchor is not None or until is not None:
            return self._one_by_one(np.broadcast_to(x0, shape), H, gammas, steps, pull, momentum, anchor, until)
        batch, to_zero = engine.problem.batch, pull_to_zero(pull)
        self.gradients += batch * int(steps.sum()) if batch else int(steps @ engine.rows[self.members])
        if plain and to_zero is not None:
            round, halt, first = self.request.round, self.request.halt, self.step
            self.step = first + (K if isinstance(K, int) else steps)
            return engine.descend(self.members, x0, H, gammas, steps, round, first, halt, to_zero)
        near = None if pull is None else (pull[0], self.plain(pull[1]))
        return pulled_steps(self._one_step, np.array(np.broadcast_to(x0, shape)), H, gammas, steps, near, momentum)

    def _one_step(self, z: Array, H: Array, gammas: Array, active: Indices) -> Array:
        halt, step0 = self.request.halt, self.step
        look(halt)
        self.step = self.step + active
        y: Array = self.engine.descend(self.members, z, H, gammas, active, self.request.round, step0, halt)
        return y

    def _one_by_one(
        self, X: Array, H: Array, gammas: Array, K: Indices, pull: Any, momentum: Any, anchor: Any, until: Any
    ) -> Any:
        """Steps without a kernel: member by member, as on the reference engine, spread over threads."""
        e, n, first = self.engine, len(X), np.broadcast_to(self.step, (len(X),))
        clients = [OneClient(e.problem, int(i), e.seed, self.request, j, e.number0) for j, i in enumerate(self.members)]
        # compute lazy vectors now: the threads below cannot wait for each other
        options: dict[str, Any] = {"momentum": numbers(momentum, n)}
        if pull is not None:
            centres = np.broadcast_to(self.plain(pull[1]), X.shape)
            options["pull"] = list(zip(numbers(pull[0], n), centres, strict=True))
        if anchor is not None:
            w, gw = (np.broadcast_to(self.plain(v), X.shape) for v in anchor[:2])
            options["anchor"] = list(zip(w, gw, numbers(anchor[2], n), strict=True))
        if until is not None:
            options["until"] = numbers(until, n)
        ends: list[Any] = [None] * n

        def one(j: int, _: int) -> None:
            clients[j].step = int(first[j])
            mine = {name: v[j] for name, v in options.items()}
            ends[j] = clients[j].descend(X[j].copy(), H[j], float(gammas[j]), int(K[j]), **mine)

        e.each(one, n)
        self.gradients += sum(c.gradients for c in clients)
        self.step = np.array([c.step for c in clients])
        if until is not None:
            self.had_criterion = True
            return np.stack([y for y, _ in ends]), np.array([[steps] for _, steps in ends], dtype=np.int64)
        if anchor is not None:
            return tuple(np.stack([np.broadcast_to(end[k], X.shape[1:]) for end in ends]) for k in range(3))
        return np.stack(ends)

    def plain(self, v: Any) -> Any:
        """A vector as an array; computes a lazy one."""
        if not isinstance(v, Lazy):
            return v
        if v.kind == KEPT:
            at = self.engine.rows_of(self.members)
            return v.value if self.engine._is_whole(at) else v.value[at]
        return v.value if v.kind != LINE else self.engine.compute(v, self.members)

    def gradient(self, x: Array, where: Any = None) -> Array:
        x = np.broadcast_to(self.plain(x), (len(self.members), self.engine.problem.d))
        wanted = np.ones(len(x), bool) if where is None else np.broadcast_to(np.ravel(where), (len(x),)) != 0
        self.gradients += int(self.engine.rows[self.members[wanted]].sum())
        gradients: Array = self.engine.gradients(self.members, x, wanted, self.request.halt)
        return gradients

    def own(self, values: Any) -> Any:
        numbers = self.engine.number0 + self.members
        if isinstance(values, tuple):
            return np.array([values[i] for i in numbers.tolist()])[:, None]
        if np.ndim(values) == 0:
            return values
        mine = np.asarray(values)[numbers]
        return mine if mine.ndim == 2 else mine[:, None]
