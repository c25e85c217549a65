"""The ledger of a run, and the meter that writes it: what each exchange moved, for all clients together.

A message to a client holds this exchange's vectors and the outcome of an earlier round that the client has not heard; a
vector needed for both is sent once. So Scaffnew with all clients costs one vector each way a round, on cohorts at most
two down. x0 is part of the first message.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from proxskip.core.engine import Mixed, Work
from proxskip.core.gossip import Mixer
from proxskip.support.rows import Journal
from proxskip.types import AnyArray, Array, Counts, Indices, Stack

Whom: TypeAlias = slice | Indices
"""Which clients: the numbers of a cohort, or all of them."""


@dataclass
class Ledger:
    """Totals over all clients since the run began."""

    exchanges: int = 0
    vectors_up: int = 0
    vectors_down: int = 0
    floats_up: int = 0
    floats_down: int = 0
    bytes_up: int = 0
    bytes_down: int = 0
    bits_up: int = 0
    bits_down: int = 0
    edge_messages: int = 0
    iterations: int = 0
    local_steps: int = 0
    grad_evals: int = 0
    prox_evals: int = 0
    seconds: float = 0.0

    def row(self) -> dict[str, float]:
        return dict(vars(self))


class Meter:
    """Counts every exchange in the ledger, and tracks which outcome each client has yet to hear."""

    def __init__(self, n: int, d: int, journal: Journal) -> None:
        self.d, self.journal = d, journal
        self.ledger = Ledger()
        # a client hears an outcome with its next message, which is when it is counted
        self.owed = np.zeros(n, dtype=np.int64)
        """The number of the outcome that each client has yet to hear; 0 for none."""
        self.outcomes = 0
        self.outcome: tuple[Stack, ...] = ()
        """The last outcome."""
        self.participated = np.zeros(n, dtype=np.int64)
        """The rounds each client took part in."""

    def count(self, whom: Whom, c: int, K: Counts, down: tuple[Stack, ...], numbers: int, work: Work) -> None:
        """Count one exchange with c clients: their steps, vectors and numbers sent down, and vectors sent up."""
        self._count_steps(K, c, work.gradients, work.steps)
        vectors = int(np.sum(self.vectors_down(whom, down)))
        floats = vectors * _length(down, self.d) + numbers * c
        self.ledger.vectors_down += vectors
        self.ledger.floats_down += floats
        self.ledger.bytes_down += floats * 8
        self.ledger.bits_down += floats * 64
        self.journal.write(self.owed, whom, 0)
        for k in range(len(work.up)):
            size = work.sizes[k] if work.sizes else None
            floats = int(work.up[k].shape[-1]) * c
            self._count_up(c, *(size or (64 * floats, 8 * floats, floats)))
        self.ledger.exchanges += 1

    def count_gossip(self, n: int, K: int, mixed: Mixed, links: Mixer) -> None:
        """Count one exchange of n clients along edges."""
        self._count_steps(K, n, mixed.gradients, None)
        messages, floats = mixed.vectors * links.messages, mixed.vectors * links.floats(self.d)
        self.ledger.edge_messages += messages
        self._count_up(messages, floats * 64, floats * 8, floats)
        self.ledger.exchanges += 1

    def settled(self, whom: Whom, outcome: tuple[Stack, ...]) -> None:
        """Note that these clients have yet to hear this outcome."""
        self.outcomes += 1
        self.outcome = outcome
        self.journal.write(self.owed, whom, self.outcomes)

    def vectors_down(self, whom: Whom, down: tuple[Stack, ...]) -> Indices:
        """Vectors in the message to each of these clients: the exchange's, and an outcome not yet heard."""
        owed, (fresh, late) = self.owed[whom], self._owed_vectors(down)
        return len(down) + np.where(owed == 0, 0, np.where(owed == self.outcomes, fresh, late))

    def bytes_down(self, whom: Whom, down: tuple[Stack, ...], numbers: int) -> Array:
        """Bytes of the message to each of these clients."""
        return np.float64(8.0) * (self.vectors_down(whom, down) * _length(down, self.d) + numbers)

    def _owed_vectors(self, down: tuple[Stack, ...]) -> tuple[int, int]:
        """Vectors of the last outcome that are not sent anyway, and those of an older outcome."""
        # x+ of the last round is usually the x of this one, and is sent once
        repeated = [any(o is v or _equal(o, v) for v in down) for o in self.outcome]
        # older outcomes are not kept, but have as many vectors as the last one
        return repeated.count(False), max(1, len(self.outcome))

    def _count_steps(self, K: Counts, c: int, gradients: int, taken: Indices | None) -> None:
        steps = K if taken is None else taken
        self.ledger.grad_evals += gradients
        self.ledger.local_steps += steps * c if isinstance(steps, int) else int(steps.sum())
        self.ledger.iterations += steps if isinstance(steps, int) else int(steps.max())

    def _count_up(self, vectors: int, bits: int, octets: int, floats: int) -> None:
        self.ledger.vectors_up += vectors
        self.ledger.floats_up += floats
        self.ledger.bytes_up += octets
        self.ledger.bits_up += bits

    # -- undoing a round, and checkpoints ------------------------------------------------------------------------------
    def begin(self, whom: Whom) -> None:
        """A round with these clients begins."""
        self.before = Ledger(**vars(self.ledger)), self.outcomes, self.outcome
        self.journal.write(self.participated, whom, self.participated[whom] + 1)

    def only(self, asked: Indices, counted: Indices) -> None:
        """Of the clients that were asked, only these take part."""
        self.journal.write(self.participated, asked, self.participated[asked] - 1)
        self.journal.write(self.participated, counted, self.participated[counted] + 1)

    def undo(self) -> None:
        """Take back the totals of the round; its journal takes back the numbers of each client."""
        self.ledger, self.outcomes, self.outcome = self.before

    def state(self, fetch: Callable[[Stack], Array]) -> dict[str, Any]:
        """What a resumed run needs; ``fetch`` turns a server vector into a numpy array."""
        arrays: dict[str, AnyArray] = {"owed": self.owed.copy(), "participated": self.participated.copy()}
        arrays |= {f"outcome{k}": fetch(v) for k, v in enumerate(self.outcome)}
        return {"arrays": arrays, "meta": {"ledger": self.ledger.row(), "outcomes": self.outcomes}}

    def restore(self, arrays: Mapping[str, AnyArray], meta: Mapping[str, Any]) -> None:
        self.owed, self.participated = arrays["owed"].copy(), arrays["participated"].copy()
        self.outcome = tuple(arrays[k] for k in sorted(k for k in arrays if k.startswith("outcome")))
        self.ledger, self.outcomes = Ledger(**meta["ledger"]), int(meta["outcomes"])


def _length(down: tuple[Stack, ...], d: int) -> int:
    """Numbers in a vector that goes down."""
    return int(down[0].shape[0]) if down else d


def _equal(a: Stack, b: Stack) -> bool:
    return isinstance(a, np.ndarray) and isinstance(b, np.ndarray) and np.array_equal(a, b)
