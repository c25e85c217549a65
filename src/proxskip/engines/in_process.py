"""The base of engines whose clients are in this process: everything but the client itself."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from proxskip.core.engine import Engine, Request, Size, Work, look
from proxskip.core.exchange import SettleHalf, checked_answer
from proxskip.engines.local import Sender
from proxskip.problems.federated import Problem
from proxskip.support.rows import MemoryRows
from proxskip.types import Array, Indices, InputError, Vectors


class Remembered(dict[str, Array]):
    """What clients remember, by name."""

    def __missing__(self, name: str) -> Array:
        known = f"only {', '.join(self)}" if self else "nothing"
        raise InputError(f'clients remember {known}, and not "{name}"; name it in remembers= of the method\'s about.')


class NearEngine(Engine):
    """Define ``client``, and you have an engine.

    With ``together = False`` a half runs once per client on ``(d,)`` vectors, with ``together = True`` once for the
    whole cohort on ``(c, d)`` stacks.
    """

    name = "near"
    rewinds = True
    has_hessians = True
    together = False

    def __init__(self) -> None:
        self.kept: Vectors = Remembered()
        """What the clients remember, one row per client."""

    def client(self, members: Indices, request: Request, place: int) -> Sender:
        """A ``core.Client`` for these members (one, unless ``together``), at this place in the cohort."""
        raise NotImplementedError(
            f"{type(self).__name__} has no clients; define client(self, members, request, place)."
        )

    def open(self, problem: Problem, memory: Vectors, seed: int) -> None:
        self.problem = problem
        self.seed = seed
        self.journal.begin()
        self.kept = Remembered((k, v.copy()) for k, v in memory.items())

    def run(self, request: Request) -> Work:
        return self._run_together(request) if self.together else self._run_one_by_one(request)

    def _run_together(self, request: Request) -> Work:
        cohort = request.cohort
        client = self.client(cohort, request, 0)
        own = {k: v[:, None] for k, v in request.own.items()}
        answer = request.half(client, self._of(cohort), request.K, *request.down, **own)
        up, memory = checked_answer(request.half, answer)
        return self._work(client, cohort, up, memory)

    def _work(self, client: Sender, cohort: Indices, up: Sequence[Array], memory: Vectors) -> Work:
        """Keep what the cohort remembers; returns what the half did."""
        sizes = client.sizes(up) if client.used_codec else ()
        steps = np.asarray(client.step) if client.had_criterion else None
        return Work(self._store(cohort, up, memory), client.gradients, sizes, steps)

    def _run_one_by_one(self, request: Request) -> Work:
        clients = []
        rows = []
        memories = []
        taken = []
        for j, i in enumerate(request.cohort.tolist()):
            client = self.client(request.cohort[j : j + 1], request, j)
            own = {k: float(v[j]) for k, v in request.own.items()}
            K = request.K if isinstance(request.K, int) else int(request.K[j])
            look(request.halt)
            answer = request.half(client, self._of_one(i), K, *request.down, **own)
            up, memory = checked_answer(request.half, answer)
            clients.append(client)
            rows.append(up)
            memories.append(memory)
            taken.append(client.step if client.had_criterion else K)
        for i, memory in zip(request.cohort.tolist(), memories, strict=True):
            self._keep(i, memory)
        coded: tuple[Size | None, ...] = ()
        if any(c.used_codec for c in clients):
            each = [c.sizes(up) for c, up in zip(clients, rows, strict=True)]
            coded = tuple(map(Size.total, zip(*each, strict=True)))
        up = tuple(np.stack(column) for column in zip(*rows, strict=True))
        return Work(up, sum(c.gradients for c in clients), coded, np.array(taken, dtype=np.int64))

    def tell(self, half: SettleHalf, cohort: Indices, outcome: tuple[Array, ...]) -> None:
        request = Request(half, cohort, 0)  # type: ignore[arg-type]
        if self.together:
            self._store(cohort, (), half(self.client(cohort, request, 0), self._of(cohort), *outcome))
            return
        for j, i in enumerate(cohort.tolist()):
            client = self.client(cohort[j : j + 1], request, j)
            self._keep(i, half(client, self._of_one(i), *(v if v.ndim == 1 else v[j] for v in outcome)))

    def memory(self) -> Vectors:
        return {k: v.copy() for k, v in self.kept.items()}

    # -- memory --------------------------------------------------------------------------------------------------------
    def _of_one(self, i: int) -> Vectors:
        return Remembered((k, np.array(v[i])) for k, v in self.kept.items())

    def _is_everyone(self, cohort: Indices) -> bool:
        return len(cohort) == self.problem.n

    def _of(self, cohort: Indices) -> Vectors:
        if self._is_everyone(cohort):
            return Remembered((k, np.asarray(v)) for k, v in self.kept.items())
        return Remembered((k, np.asarray(v)[cohort]) for k, v in self.kept.items())

    def _keep(self, i: int, memory: Vectors) -> None:
        for k, v in memory.items():
            self._write(k, i, v)

    def _write(self, name: str, at: int | Indices, values: Array) -> None:
        """Overwrite rows, such that the journal can bring the old ones back."""
        rows = self.kept[name]
        self.journal.write(rows, at, values)
        if isinstance(rows, MemoryRows) and rows.written is not None:
            self.journal.write(rows.written, at, True)

    def _store(self, cohort: Indices, up: Sequence[Array], memory: Vectors) -> tuple[Array, ...]:
        """Keep a stack's memory; returns what goes up, with one row per member."""
        shape = (len(cohort), self.problem.d)
        for k, v in memory.items():
            if self._is_everyone(cohort) and v.shape == shape and not isinstance(self.kept[k], MemoryRows):
                # each name needs its own writable array
                own = v.flags.owndata and v.flags.carray and all(v is not u for u in self.kept.values())
                self.journal.write(self.kept, k, v if own else np.array(v, order="C"))
            else:
                self._write(k, cohort, v)
        return tuple(u if u.shape == shape else np.broadcast_to(u, (len(cohort), u.shape[-1])) for u in up)
