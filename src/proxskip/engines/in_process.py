"""Engines whose clients are in this process: everything but the client itself is written here, once."""

from __future__ import annotations

from typing import Any

import numpy as np

from proxskip.interfaces import Engine, Request, SettleHalf, Size, Work, look
from proxskip.links.rows import RowStore
from proxskip.problems.federated import Problem
from proxskip.types import Indices, Vectors

SMALL_MEMORY = 1 << 14
"""Numbers that the clients remember, all together, up to which a copy of them in every round costs nothing."""


class NearEngine(Engine):
    """Write ``client``, and you have an engine.

    With ``together = False`` halves are run one client after another on ``(d,)`` vectors, with ``together = True`` once
    for the whole cohort on ``(c, d)`` stacks.
    """

    name = "near"
    rewinds = True
    together = False
    atomic = False
    """Whether ``run`` changes what the clients remember only after the last of them has finished."""
    store: RowStore | None = None
    """Where the rows are, if only clients that have taken part have one."""
    marks = False
    """Whether this round can be taken back."""
    marked: tuple[Indices, Vectors] | None = None
    """Its cohort, and their rows as they were when it began."""
    handed: dict[Any, Any]
    """With a store, what is handed on within this round: stacks by name, or what a client has by its place."""

    def __init__(self) -> None:
        self.kept: Vectors = {}

    def client(self, members: Indices, request: Request, place: int) -> Any:
        """A ``interfaces.Client`` for these members (one, unless ``together``), at this place among the cohort."""
        raise NotImplementedError(
            f"{type(self).__name__} has no clients: define client(self, members, request, place)."
        )

    def open(self, problem: Problem, memory: Vectors, seed: int) -> None:
        """Keep the problem and the initial memory."""
        self.problem, self.seed, self.store = problem, seed, None
        self.kept = {k: v.copy() for k, v in memory.items()}

    def keep_rows(self, store: RowStore) -> None:
        """Keep what the clients remember in this store."""
        self.store, self.kept = store, store.arrays

    def run(self, request: Request) -> Work:
        """Run the half on the cohort, and keep what it remembers."""
        at = self._places(request.cohort)
        if self.together:
            client = self.client(request.cohort, request, 0)
            own: Any = {k: v[:, None] for k, v in request.own.items()}
            up, memory = request.half(client, self._of(at), request.K, *request.down, **own)
            sizes = client.sizes(up) if client.used_codec else ()
            return Work(self._store(at, up, memory), client.gradients, sizes, client.taken)
        rows, gradients, taken, kept, clients = [], 0, [], [], []
        same, halt, half, down, cohort = (
            isinstance(request.K, int),
            request.halt,
            request.half,
            request.down,
            request.cohort,
        )
        for j, i in enumerate(at.tolist()):
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
        for i, memory in zip(at.tolist(), kept, strict=True):
            self._keep(i, memory)
        coded: Any = ()
        if any(c.used_codec for c in clients):
            each = [c.sizes(up) for c, up in zip(clients, rows, strict=True)]
            coded = tuple(map(Size.total, zip(*each, strict=True)))
        up = tuple(np.stack(column) for column in zip(*rows, strict=True))
        return Work(up, gradients, coded, np.array(taken, dtype=np.int64))

    def tell(self, half: SettleHalf, cohort: Indices, outcome: tuple[Any, ...]) -> None:
        """Run the half on the cohort with the outcome."""
        request, at = Request(half, cohort, 0), self._places(cohort)  # type: ignore[arg-type]
        if self.together:
            self._store(at, (), half(self.client(cohort, request, 0), self._of(at), *outcome))
            return
        for j, i in enumerate(at.tolist()):
            client = self.client(cohort[j : j + 1], request, j)
            self._keep(i, half(client, self._of_one(i), *(v if v.ndim == 1 else v[j] for v in outcome)))

    def memory(self) -> Vectors:
        """A copy of what the clients remember; views of a store."""
        if self.store is not None:
            return {k: self.store.view(k) for k in self.kept}  # type: ignore[misc]
        return {k: v.copy() for k, v in self.kept.items()}

    def mark(self, several: bool) -> None:
        """Copy the rows that change, unless they cannot change before the last piece of local work is over."""
        if self.store is not None:
            self.store.mark(several or not self.atomic)
            return
        small = sum(v.size for v in self.kept.values()) <= SMALL_MEMORY
        self.marks, self.marked = several or small or not self.atomic, None

    def rewind(self) -> None:
        """The memory as it was at the beginning of the round."""
        if self.store is not None:
            self.store.rewind()
            return
        if self.marked is None:
            return
        at, rows = self.marked
        if self._is_whole(at):
            self.kept = rows
            return
        for k, v in rows.items():
            self.kept[k][at] = v

    # -- memory --------------------------------------------------------------------------------------------------------
    def _of_one(self, i: int) -> Vectors:
        found = {k: v[i].copy() for k, v in self.kept.items()}
        return found if self.store is None else found | self.handed.get(i, {})

    def _places(self, cohort: Indices) -> Indices:
        """Where the rows of these clients are, which are about to change."""
        if self.store is None:
            if self.marks and self.marked is None:  # a round's first cohort; others in it are part of this one
                every = self._is_whole(cohort)
                self.marked = cohort, {k: v.copy() if every else v[cohort] for k, v in self.kept.items()}
            return cohort
        if cohort is not self.store.admitted[0]:
            self.handed = {}
        return self.store.admit(cohort)

    def _is_whole(self, at: Indices) -> bool:
        """Whether these are all rows, in their order."""
        return self.store is None and len(at) == self.problem.n

    def _of(self, at: Indices) -> Any:
        everyone = self._is_whole(at)
        found = {k: v if everyone else v[at] for k, v in self.kept.items()}
        return found if self.store is None else found | self.handed

    def _hands_on(self, name: str) -> bool:
        """Whether this is not kept: the store has rows only for what lasts."""
        return self.store is not None and name not in self.kept

    def _keep(self, i: int, memory: Vectors) -> None:
        for k, v in memory.items():
            if self._hands_on(k):
                self.handed.setdefault(i, {})[k] = v
            else:
                self.kept[k][i] = v

    def _store(self, at: Indices, up: Any, memory: Any) -> tuple[Any, ...]:
        """Keep what a stack remembers; what goes up, with one row for each member."""
        shape = (len(at), self.problem.d)
        for k, v in memory.items():
            if self._hands_on(k):
                self.handed[k] = np.broadcast_to(v, shape)
            elif self._is_whole(at) and v.shape == shape:
                self.kept[k] = v
            else:
                self.kept[k][at] = v
        return tuple(u if u.shape == shape else np.broadcast_to(u, shape) for u in up)
