"""Engines whose clients are in this process: everything but the client itself is written here, once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from proxskip.links.sums import weighted_sum
from proxskip.problems.federated import Problem
from proxskip.problems.packed import Packed
from proxskip.seam import Engine, Request, SettleHalf, Size, Work, look
from proxskip.types import Array, Indices, Vectors

SMALL_MEMORY = 1 << 14
"""Numbers that the clients remember, all together, up to which a copy of them in every round costs nothing."""


class NearEngine(Engine):
    """Write ``client``, and you have an engine.

    With ``together = False`` halves are run one client after another on ``(d,)`` vectors, with ``together = True`` once
    for the whole cohort on ``(c, d)`` stacks.
    """

    name = "near"
    together = False
    atomic = False
    """Whether ``run`` changes what the clients remember only after the last of them has finished."""

    def __init__(self) -> None:
        self.kept: Vectors = {}
        self.marked: Vectors | None = None

    def client(self, members: Indices, request: Request, place: int) -> Any:
        """A ``seam.Client`` for these members (one, unless ``together``), at this place among the cohort."""
        raise NotImplementedError(
            f"{type(self).__name__} has no clients: define client(self, members, request, place)."
        )

    def open(self, problem: Problem, memory: Vectors, seed: int) -> None:
        """Keep the problem and the initial memory."""
        self.problem, self.seed = problem, seed
        self.kept = {k: v.copy() for k, v in memory.items()}

    def run(self, request: Request) -> Work:
        """Run the half on the cohort, and keep what it remembers."""
        if self.together:
            client = self.client(request.cohort, request, 0)
            own: Any = {k: v[:, None] for k, v in request.own.items()}
            up, memory = request.half(client, self._of(request.cohort), request.K, *request.down, **own)
            sizes = client.sizes(up) if client.used_codec else ()
            return Work(self._store(request.cohort, up, memory), client.gradients, sizes, client.taken)
        rows, gradients, taken, kept, clients = [], 0, [], [], []
        same, halt, half, down, cohort = (
            isinstance(request.K, int),
            request.halt,
            request.half,
            request.down,
            request.cohort,
        )
        for j, i in enumerate(cohort.tolist()):
            client = self.client(cohort[j : j + 1], request, j)
            own = {k: float(v[j]) for k, v in request.own.items()} if request.own else {}
            K: Any = request.K if same else int(request.K[j])
            look(halt)
            up, memory = half(client, self._of_one(i), K, *down, **own)
            clients.append(client)
            kept.append(memory)
            rows.append(up)
            gradients += client.gradients
            taken.append(K if client.taken is None else client.taken)
        for i, memory in zip(cohort.tolist(), kept, strict=True):
            self._keep(i, memory)
        coded: Any = ()
        if any(c.used_codec for c in clients):
            each = [c.sizes(up) for c, up in zip(clients, rows, strict=True)]
            coded = tuple(map(Size.total, zip(*each, strict=True)))
        up = tuple(np.stack(column) for column in zip(*rows, strict=True))
        return Work(up, gradients, coded, np.array(taken, dtype=np.int64))

    def tell(self, half: SettleHalf, cohort: Indices, outcome: tuple[Any, ...]) -> None:
        """Run the half on the cohort with the outcome."""
        request = Request(half, cohort, 0)  # type: ignore[arg-type]
        if self.together:
            self._store(cohort, (), half(self.client(cohort, request, 0), self._of(cohort), *outcome))
            return
        for j, i in enumerate(cohort.tolist()):
            client = self.client(cohort[j : j + 1], request, j)
            self._keep(i, half(client, self._of_one(i), *(v if v.ndim == 1 else v[j] for v in outcome)))

    def expect(self, cohort: Callable[[], Indices]) -> None:
        """Have the rows of the next cohort read, if they are on disk."""
        if isinstance(self.problem.clients, Packed):
            self.problem.clients.expect(cohort)

    def sum(self, w: Array, U: Array) -> Array:
        """In client order."""
        return weighted_sum(w, U)

    def memory(self) -> Vectors:
        """A copy of what the clients remember."""
        return {k: v.copy() for k, v in self.kept.items()}

    def close(self) -> None:
        """Nothing to give back."""

    def mark(self, several: bool) -> bool:
        """Copy the memory, unless it cannot change before the last piece of local work is over."""
        small = sum(v.size for v in self.kept.values()) <= SMALL_MEMORY
        self.marked = self.memory() if several or small or not self.atomic else None
        return True

    def rewind(self) -> None:
        """The memory as it was at the beginning of the round."""
        self.kept = self.kept if self.marked is None else self.marked

    # -- memory --------------------------------------------------------------------------------------------------------
    def _of_one(self, i: int) -> Vectors:
        return {k: v[i].copy() for k, v in self.kept.items()}

    def _of(self, cohort: Indices) -> Any:
        everyone = len(cohort) == self.problem.n
        return {k: v if everyone else v[cohort] for k, v in self.kept.items()}

    def _keep(self, rows: Any, memory: Vectors) -> None:
        for k, v in memory.items():
            self.kept[k][rows] = v

    def _store(self, cohort: Indices, up: Any, memory: Any) -> tuple[Any, ...]:
        """Keep what a stack remembers; what goes up, with one row for each member."""
        shape = (len(cohort), self.problem.d)
        for k, v in memory.items():
            if len(cohort) == self.problem.n and v.shape == shape:
                self.kept[k] = v
            else:
                self.kept[k][cohort] = v
        return tuple(u if u.shape == shape else np.broadcast_to(u, shape) for u in up)
