"""A whole cohort of the CPU engine as one client, its vectors as stacks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from proxskip.engines.cpu.lazy import Lazy, as_stack, numbers
from proxskip.engines.cpu.lazy_kernels import KEPT, LINE
from proxskip.engines.local import Sender, key_of, pull_to_zero, pulled_steps
from proxskip.interfaces import Anchor, Pull, Request, look
from proxskip.links.codecs import Key
from proxskip.types import Array, Indices


class Cohort(Sender):
    """A whole cohort as one client: every vector is a ``(c, d)`` stack."""

    def __init__(self, engine: Any, members: Indices, request: Request) -> None:
        self.engine, self.members, self.request = engine, members, request

    def keys(self, vector: int) -> Sequence[Key]:
        """One for each member."""
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
        """The local steps of ``interfaces.Client.descend``, for every member."""
        engine, shape = self.engine, (len(self.members), self.engine.problem.d)
        steps = np.full(shape[0], K, dtype=np.int64)
        gammas = np.full(shape[0], gamma if type(gamma) is float else np.ravel(gamma), dtype=np.float64)
        x0 = np.atleast_2d(self.plain(x))
        H = as_stack(self.plain(h), shape)
        no_momentum = type(momentum) is float and momentum == 0.0
        more = pull_to_zero(pull) if pull is None or engine.shards is not None else None
        plain = more is not None and anchor is None and until is None and no_momentum
        if anchor is not None and pull is None and no_momentum and until is None and engine.has_anchors():
            held = self._held(anchor)
            return engine.descend_anchored(self.members, x0, H, gammas, steps, held, self, self.request)
        if not plain and (engine.shards is None or anchor is not None or until is not None):
            return self._one_by_one(np.broadcast_to(x0, shape), H, gammas, steps, pull, momentum, anchor, until)
        batch = engine.problem.batch
        self.gradients += batch * int(steps.sum()) if batch else int(steps @ engine.rows[self.members])
        if plain:
            round, halt, first = self.request.round, self.request.halt, self.step
            self.step = first + (K if isinstance(K, int) else steps)
            return engine.descend(self.members, x0, H, gammas, steps, round, first, halt, more or 0.0)
        near = None if pull is None else (pull[0], self.plain(pull[1]))
        return pulled_steps(self._one_step, np.array(np.broadcast_to(x0, shape)), H, gammas, steps, near, momentum)

    def _held(self, anchor: Anchor) -> tuple[Array, Array, Array]:
        """New arrays of w, gw and q, one row or number for each member."""
        shape = (len(self.members), self.engine.problem.d)
        w, gw = (np.array(np.broadcast_to(self.plain(v), shape), order="C") for v in anchor[:2])
        return w, gw, np.array(numbers(anchor[2], shape[0]))

    def _one_step(self, z: Array, H: Array, gammas: Array, active: Indices) -> Array:
        halt = self.request.halt
        look(halt)
        out: Array = self.engine.descend(self.members, z, H, gammas, active, self.request.round, self.step, halt)
        self.step = self.step + active
        return out

    def _one_by_one(
        self, X: Array, H: Array, gammas: Array, K: Indices, pull: Any, momentum: Any, anchor: Any, until: Any
    ) -> Any:
        """Work for which there is no kernel: member after member, as on the reference engine, spread over threads."""
        shape, first = X.shape, np.broadcast_to(self.step, (len(X),))
        clients = [self.engine.one(int(i), self.request, j) for j, i in enumerate(self.members)]
        out: list[Any] = [None] * len(X)
        # written-down vectors are computed here: the threads below could not wait for others to do it
        near = None if pull is None else (numbers(pull[0], shape[0]), np.broadcast_to(self.plain(pull[1]), shape))
        held = None if anchor is None else tuple(np.broadcast_to(self.plain(v), shape) for v in anchor[:2])
        moved = None if anchor is None else numbers(anchor[2], shape[0])
        momenta = numbers(momentum, shape[0])
        ends = None if until is None else numbers(until, shape[0])

        def one(j: int, _: int) -> None:
            c = clients[j]
            c.step = int(first[j])
            out[j] = c.descend(
                X[j].copy(), H[j], float(gammas[j]), int(K[j]),
                pull=None if near is None else (near[0][j], near[1][j]), momentum=momenta[j],
                anchor=None if held is None or moved is None else (held[0][j], held[1][j], moved[j]),
                until=None if ends is None else ends[j],
            )  # fmt: skip

        self.engine.each(one, len(X))
        self.gradients += sum(c.gradients for c in clients)
        self.step = np.array([c.step for c in clients])
        if until is not None:
            self.had_criterion = True
            return np.stack([y for y, _ in out]), np.array([[steps] for _, steps in out], dtype=np.int64)
        if anchor is not None:
            return tuple(np.stack([np.broadcast_to(o[k], shape[1:]) for o in out]) for k in range(3))
        return np.stack(out)

    def plain(self, v: Any) -> Any:
        """A vector that is already there as it is; one that is written down, computed."""
        if not isinstance(v, Lazy):
            return v
        if v.kind == KEPT:
            at = self.engine.rows_of(self.members)
            return v.value if self.engine._is_whole(at) else v.value[at]
        if v.kind != LINE:
            return v.value
        out = np.empty((len(self.members), self.engine.problem.d))
        self.engine.compute(v, out, self.members)
        return out

    def gradient(self, x: Array, where: Any = None) -> Array:
        """The members' full gradients, one row each; zeros where they are not wanted."""
        x = np.broadcast_to(self.plain(x), (len(self.members), self.engine.problem.d))
        wanted = np.ones(len(x), bool) if where is None else np.broadcast_to(np.ravel(where), (len(x),)) != 0
        self.gradients += int(self.engine.rows[self.members[wanted]].sum())
        gradients: Array = self.engine.gradients(self.members, x, wanted, self.request.halt)
        return gradients

    def own(self, values: Any) -> Any:
        """The members' entries as a column, or their rows."""
        values = self.engine.as_array(values) if isinstance(values, tuple) else values
        if isinstance(values, float) or np.ndim(values) == 0:
            return values
        mine = np.asarray(values)[self.engine.number0 + self.members]
        return mine if mine.ndim == 2 else mine[:, None]
