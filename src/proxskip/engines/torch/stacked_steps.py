"""Local steps of many clients at once: one by one, or as replays of a CUDA graph."""

from __future__ import annotations

import platform
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Event
from typing import Any

import numpy as np
import torch
from numba import njit
from torch import Tensor

from proxskip.core.engine import look
from proxskip.engines.cpu.kernels import draw_rows, room_for, subset
from proxskip.engines.torch.stacked_functions import Parts
from proxskip.support.randomness import dropout_word
from proxskip.types import Counts, Indices

STEPS_AT_ONCE = 32
"""Steps whose minibatches are drawn together; a run can be interrupted in between."""
MOST_GRAPHS = 8
"""The most graphs, and inputs of groups of clients, that are kept."""
STEPS_BEFORE_CAPTURE = 3
SLOW_ONEDNN = platform.machine() in ("aarch64", "arm64")
"""Where oneDNN multiplies small matrices that are transposed views six times slower than PyTorch's own products do."""


@contextmanager
def repeatable() -> Iterator[None]:
    """Convolutions by deterministic algorithms, and no slow products; the user's choice of TF32 is kept."""
    cudnn, onednn = torch.backends.cudnn, torch.backends.mkldnn
    before = cudnn.deterministic, cudnn.benchmark, onednn.enabled
    cudnn.deterministic, cudnn.benchmark, onednn.enabled = True, False, onednn.enabled and not SLOW_ONEDNN
    try:
        yield
    finally:
        cudnn.deterministic, cudnn.benchmark, onednn.enabled = before


@njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def _fill(rows: Any, seed: Any, round: int, clients: Any, step0: Any, sizes: Any, picks: Any, room: Any) -> None:
    steps, members, most = rows.shape
    for j in range(members):
        b = min(most, sizes[j])
        for k in range(steps):
            # in the order drawn, as in ``randomness``
            if 2 * b <= sizes[j]:
                subset(seed, clients[j], round, step0[j] + k, sizes[j], b, room[0], picks)
            else:
                draw_rows(seed, clients[j], round, step0[j] + k, 0, sizes[j], b, picks, room)
            for q in range(b):
                rows[k, j, q] = picks[q]


def minibatches(
    seed: int, round: int, clients: Indices, step0: Counts, sizes: Indices, b: int, count: int, device: torch.device
) -> Tensor:
    """The rows of ``count`` steps as ``(count, c, b)``, the same as ``randomness.minibatch``.

    The CPU draws them while the device computes. A client with fewer than b rows takes all of them, and the rest of its
    places is zero.

    Args:
        step0: the number of the first step, one for all clients or one each.
    """
    first = np.array(np.broadcast_to(np.asarray(step0, dtype=np.int64), clients.shape))
    rows = np.zeros((count, len(clients), b), dtype=np.int64)
    _fill(rows, np.uint64(seed), round, clients, first, sizes, *room_for(b, int(sizes.max())))
    drawn = torch.as_tensor(rows)
    # only a copy from pinned memory overlaps with computation
    return (drawn.pin_memory() if device.type == "cuda" else drawn).to(device, non_blocking=True)


@dataclass(slots=True)
class StepInputs:
    """Inputs of the next steps of some clients, at fixed addresses that a graph can read.

    Args:
        members: the clients' numbers.
        rows: minibatches of the next steps, ``(STEPS_AT_ONCE, c, b)``; None for all rows.
        words: dropout words, one per step.
        step: the current step's place in both; on the device, so that a captured graph can advance it.
        whole: the data of these clients, without minibatches.
    """

    members: Tensor
    rows: Tensor | None
    words: Tensor
    step: Tensor
    whole: Any

    def batch(self, family: Any) -> Any:
        """The data of the current step."""
        word = self.words.index_select(0, self.step)[0]
        if self.rows is None:
            return family.keyed(self.whole, self.members, word) if family.is_random else self.whole
        return family.batch(self.members, self.rows.index_select(0, self.step)[0], word)


class StackedSteps:
    """Runs local steps of many clients on shared tensors.

    Args:
        batch: rows of a minibatch; None for all rows.
        graphs: capture steps in CUDA graphs.
    """

    def __init__(self, family: Any, seed: int, batch: int | None, device: torch.device, graphs: bool) -> None:
        self.family, self.seed, self.batch, self.device, self.use_graphs = family, seed, batch, device, graphs
        self.forget()

    def forget(self) -> None:
        """Drop all prepared inputs and graphs."""
        self.inputs: dict[Any, StepInputs] = {}
        self.graphs: dict[Any, Any] = {}
        self.eager: Counter[Any] = Counter()
        self.places: dict[Any, tuple[Parts, Parts | None]] = {}
        self.pool: Any = None
        if torch.cuda.is_initialized():
            torch.cuda.empty_cache()

    def run(
        self, X: Tensor, H: Tensor | None, gamma: Tensor | float, K: int, clients: Indices, round: int, step0: int,
        halt: Event | None,
    ) -> Tensor:  # fmt: skip
        """K times  y <- y - gamma (g(y) - h)  from every row of X, as a new stack; H is None for h = 0."""
        family, key = self.family, None
        # before a place is read: room for new inputs may be made by forgetting all places and graphs
        self._inputs_of(clients)
        y, h = family.parts(X), None if H is None else family.parts(H)
        # a graph fixes gamma as a number; one gamma per client runs without graphs
        if self.use_graphs and isinstance(gamma, float):
            key = (len(X), H is None, gamma)
            kept_y, kept_h = self.places.setdefault(key[:2], (y, h))
            for place, v in zip((*kept_y, *(kept_h or ())), (*y, *(h or ())), strict=True):
                place.copy_(v)
            y, h = kept_y, kept_h
        self.repeat(lambda batch: family.descend(y, h, gamma, batch), key, K, clients, round, step0, halt)
        end: Tensor = family.stack(y)
        return end

    def repeat(
        self, step: Callable[[Any], None], key: Any, K: int, clients: Indices, round: int, step0: int,
        halt: Event | None = None,
    ) -> None:  # fmt: skip
        """K times ``step(batch)`` with the clients' next minibatches.

        Args:
            key: steps with one key use the same tensors, so a graph may replay them; None for no graph.
        """
        inputs = self._inputs_of(clients)
        key = None if key is None or not self.use_graphs else (id(inputs), key)

        def one() -> None:
            step(inputs.batch(self.family))
            inputs.step.add_(1)

        with repeatable():
            for lo in range(0, K, STEPS_AT_ONCE):
                look(halt)
                count = min(STEPS_AT_ONCE, K - lo)
                self._draw(inputs, clients, count, round, step0 + lo)
                for _ in range(count):
                    self._replayed(key, one)

    def _replayed(self, key: Any, one: Callable[[], None]) -> None:
        """A step by its graph; the first ones run without, because they may allocate or compile."""
        if key is None or (
            key not in self.graphs and len(self.graphs) >= MOST_GRAPHS
        ):  # such as a new gamma each round
            one()
            return
        if self.eager[key] < STEPS_BEFORE_CAPTURE:
            self.eager[key] += 1
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                one()
            torch.cuda.current_stream().wait_stream(side)
            return
        if key not in self.graphs:
            self.graphs[key] = self._captured(one)
        self.graphs[key].replay()

    def _captured(self, one: Callable[[], None]) -> Any:
        graph = torch.cuda.CUDAGraph()
        # graphs can share a pool: they run in turn, and their results lie outside of it
        with torch.cuda.graph(graph, pool=self.pool):
            one()
        self.pool = self.pool or graph.pool()
        return graph

    def _inputs_of(self, clients: Indices) -> StepInputs:
        members = torch.as_tensor(np.ascontiguousarray(clients)).to(self.device)
        # full gradients: inputs of these clients; minibatches: any clients
        key = clients.tobytes() if self.batch is None else len(clients)
        if key not in self.inputs:
            if len(self.inputs) >= MOST_GRAPHS:
                self.forget()
            shape = (STEPS_AT_ONCE, len(clients), self.batch or 0)
            zeros = torch.zeros(shape, dtype=torch.int64, device=self.device)
            rows, whole = (None, self.family.batch(members, None, None)) if self.batch is None else (zeros, None)
            words = torch.zeros(STEPS_AT_ONCE, dtype=torch.int64, device=self.device)
            self.inputs[key] = StepInputs(members.clone(), rows, words, torch.zeros_like(words[:1]), whole)
        self.inputs[key].members.copy_(members)
        return self.inputs[key]

    def _draw(self, inputs: StepInputs, clients: Indices, count: int, round: int, step0: int) -> None:
        """The minibatches and dropout words of the next steps, from place zero."""
        if self.batch is not None and inputs.rows is not None:
            sizes = self.family.sizes[clients]
            inputs.rows[:count] = minibatches(self.seed, round, clients, step0, sizes, self.batch, count, self.device)
        if self.family.is_random:  # numbered from one
            words = [dropout_word(self.seed, round, step0 + k + 1) for k in range(count)]
            inputs.words[:count] = torch.tensor(words).to(self.device)
        inputs.step.zero_()
