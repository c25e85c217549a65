"""The base of engines whose clients are in this process: everything but the client itself."""

from __future__ import annotations

from typing import Any

import numpy as np

from proxskip.interfaces import Engine, Request, SettleHalf, Size, Work, look
from proxskip.links.rows import RowStore
from proxskip.problems.federated import Problem
from proxskip.types import Indices, Vectors


class NearEngine(Engine):
    """Define ``client``, and you have an engine.

    With ``together = False`` a half runs once per client on ``(d,)`` vectors, with ``together = True`` once for the
    whole cohort on ``(c, d)`` stacks.
    """

    name = "near"
    rewinds = True
    together = False
    atomic = False
    """Whether ``run`` changes the clients' memory only after the last one has finished."""
    store: RowStore | None = None
    """Holds the rows, if only clients that have taken part have one."""
    marks = False
    """Whether this round can be undone."""
    marked: tuple[Indices, Vectors] | None = None
    """The round's cohort, and their rows at its beginning."""
    handed: dict[Any, Any]
    """With a store, vectors that only live within this round: stacks by name, or dicts by a client's place."""

    def __init__(self) -> None:
        self.kept: Vectors = {}

    def client(self, members: Indices, request: Request, place: int) -> Any:
        """A ``interfaces.Client`` for these members (one, unless ``together``), at this place in the cohort."""
        raise NotImplementedError(
            f"{type(self).__name__} has no clients; define client(self, members, request, place)."
        )

    def open(self, problem: Problem, memory: Vectors, seed: int) -> None:
        self.problem, self.seed, self.store, self.handed = problem, seed, None, {}
        self.kept = {k: v.copy() for k, v in memory.items()}

    def keep_rows(self, store: RowStore) -> None:
        self.store, self.kept = store, store.arrays

    def run(self, request: Request) -> Work:
        at = self._places(request.cohort)
        if self.together:
            client = self.client(request.cohort, request, 0)
            own: Any = {k: v[:, None] for k, v in request.own.items()}
            up, memory = request.half(client, self._of(at), request.K, *request.down, **own)
            sizes = client.sizes(up) if client.used_codec else ()
            return Work(self._store(at, up, memory), client.gradients, sizes, client.taken)
        clients, rows, memories, taken = [], [], [], []
        for j, i in enumerate(at.tolist()):
            client = self.client(request.cohort[j : j + 1], request, j)
            own = {k: float(v[j]) for k, v in request.own.items()}
            K: Any = request.K if isinstance(request.K, int) else int(request.K[j])
            look(request.halt)
            up, memory = request.half(client, self._of_one(i), K, *request.down, **own)
            clients.append(client)
            rows.append(up)
            memories.append(memory)
            taken.append(K if client.taken is None else client.taken)
        for i, memory in zip(at.tolist(), memories, strict=True):
            self._keep(i, memory)
        coded: Any = ()
        if any(c.used_codec for c in clients):
            each = [c.sizes(up) for c, up in zip(clients, rows, strict=True)]
            coded = tuple(map(Size.total, zip(*each, strict=True)))
        up = tuple(np.stack(column) for column in zip(*rows, strict=True))
        return Work(up, sum(c.gradients for c in clients), coded, np.array(taken, dtype=np.int64))

    def tell(self, half: SettleHalf, cohort: Indices, outcome: tuple[Any, ...]) -> None:
        request, at = Request(half, cohort, 0), self._places(cohort)  # type: ignore[arg-type]
        if self.together:
            self._store(at, (), half(self.client(cohort, request, 0), self._of(at), *outcome))
            return
        for j, i in enumerate(at.tolist()):
            client = self.client(cohort[j : j + 1], request, j)
            self._keep(i, half(client, self._of_one(i), *(v if v.ndim == 1 else v[j] for v in outcome)))

    def memory(self) -> Vectors:
        if self.store is not None:
            return {k: self.store.view(k) for k in self.kept}  # type: ignore[misc]
        return {k: v.copy() for k, v in self.kept.items()}

    def mark(self, several: bool) -> None:
        """Copy the rows that may change before the last piece of local work is done."""
        if self.store is not None:
            self.store.mark(several or not self.atomic)
            return
        self.marks, self.marked = several or not self.atomic, None

    def rewind(self) -> None:
        if self.store is not None:
            self.store.rewind()
        elif self.marked is not None:
            members, rows = self.marked
            for k, v in rows.items():
                self.kept[k][members] = v

    # -- memory --------------------------------------------------------------------------------------------------------
    def _of_one(self, i: int) -> Vectors:
        handed: Vectors = self.handed.get(i, {})
        return {k: v[i].copy() for k, v in self.kept.items()} | handed

    def _places(self, cohort: Indices) -> Indices:
        """Where the rows of these clients are, before they change."""
        if self.store is None:
            if self.marks and self.marked is None:  # later cohorts of the round are part of this one
                self.marked = cohort, {k: v[cohort] for k, v in self.kept.items()}
            return cohort
        if cohort is not self.store.admitted[0]:
            self.handed = {}
        return self.store.admit(cohort)

    def _is_whole(self, at: Indices) -> bool:
        """Whether these are all rows in order."""
        return self.store is None and len(at) == self.problem.n

    def _of(self, at: Indices) -> Any:
        everyone = self._is_whole(at)
        return {k: v if everyone else v[at] for k, v in self.kept.items()} | self.handed

    def _hands_on(self, name: str) -> bool:
        """Whether this vector only lives within the round."""
        return self.store is not None and name not in self.kept

    def _keep(self, i: int, memory: Vectors) -> None:
        for k, v in memory.items():
            if self._hands_on(k):
                self.handed.setdefault(i, {})[k] = v
            else:
                self.kept[k][i] = v

    def _store(self, at: Indices, up: Any, memory: Any) -> tuple[Any, ...]:
        """Keep a stack's memory; returns what goes up, with one row per member."""
        shape = (len(at), self.problem.d)
        for k, v in memory.items():
            if self._hands_on(k):
                self.handed[k] = v if v.shape == shape else np.broadcast_to(v, shape)
            elif self._is_whole(at) and v.shape == shape:
                # each name needs its own writable array
                own = v.flags.owndata and v.flags.carray and all(v is not u for u in self.kept.values())
                self.kept[k] = v if own else np.array(v, order="C")
            else:
                self.kept[k][at] = v
        return tuple(u if u.shape == shape else np.broadcast_to(u, shape) for u in up)
