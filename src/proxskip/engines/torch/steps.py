"""Local steps of many clients at once: a step after another, or replays of a CUDA graph that holds one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Event
from typing import Any

import torch

from proxskip.randomness import dropout_word
from proxskip.seam import look

STEPS_AT_ONCE = 32
"""Steps whose minibatches are drawn together; between them a run can be interrupted."""
MOST_GRAPHS = 8
"""Graphs that are kept: a graph reads and writes fixed places, and stacks return to the same few of them."""


@contextmanager
def repeatable() -> Iterator[None]:
    """Convolutions by algorithms that give the same bytes every time; the user's choice of TF32 is kept."""
    cudnn = torch.backends.cudnn
    before = cudnn.deterministic, cudnn.benchmark
    cudnn.deterministic, cudnn.benchmark = True, False
    try:
        yield
    finally:
        cudnn.deterministic, cudnn.benchmark = before


@dataclass(slots=True)
class Drawn:
    """What the steps of some clients need besides the stacks, at fixed places."""

    members: torch.Tensor
    rows: torch.Tensor | None
    words: torch.Tensor
    step: torch.Tensor
    whole: Any

    @staticmethod
    def of(family: Any, members: torch.Tensor, batch: int | None) -> Drawn:
        """Places for a number of clients; without minibatches and dropout also what all steps share."""
        device = members.device
        shape = (STEPS_AT_ONCE, len(members), batch or 0)
        rows = None if batch is None else torch.zeros(shape, dtype=torch.int64, device=device)
        whole = family.batch(members, None, None) if batch is None else None
        words = torch.zeros(STEPS_AT_ONCE, dtype=torch.int64, device=device)
        return Drawn(members.clone(), rows, words, torch.zeros(1, dtype=torch.int64, device=device), whole)

    def batch(self, family: Any) -> Any:
        """Of the step whose number is in ``step``."""
        # the number of the step is on the device: a captured graph counts for itself
        word = self.words.index_select(0, self.step)[0]
        if self.rows is None:
            return family.keyed(self.whole, self.members, word) if family.is_random else self.whole
        return family.batch(self.members, self.rows.index_select(0, self.step)[0], word)


class StackedSteps:
    """Runs local steps on stacks, in place."""

    def __init__(self, family: Any, seed: int, draw: Any, batch: int | None, graphs: bool) -> None:
        self.family, self.seed, self.draw, self.batch = family, seed, draw, batch
        self.graphs: dict[Any, torch.cuda.CUDAGraph] = {}
        self.use_graphs, self.pool = graphs, None
        self.drawn: dict[Any, Drawn] = {}
        self.spare: dict[Any, tuple[torch.Tensor, torch.Tensor | None]] = {}

    def run(
        self, Y: Any, H: Any, gamma: Any, K: int, clients: Any, there: Any, round: int, step0: int, halt: Event | None
    ) -> None:
        """K times  y <- y - gamma (g(y) - h)  for every row of Y.

        Args:
            clients, there: the clients' numbers, here and on the device.
        """
        drawn = self._drawn(clients, there)
        graph = None
        with repeatable():
            for lo in range(0, K, STEPS_AT_ONCE):
                look(halt)
                count = min(STEPS_AT_ONCE, K - lo)
                self._fill(drawn, clients, count, round, step0 + lo)
                # a captured launch has gamma fixed as a number; a gamma for each client runs without graphs
                if self.use_graphs and isinstance(gamma, float) and graph is None:
                    graph, Y, H, back = self._graph(drawn, Y, H, gamma)
                # the minibatches that were drawn now begin at place zero again
                drawn.step.zero_()
                for _ in range(count):
                    if graph is not None:
                        graph.replay()
                    else:
                        self._step(drawn, Y, H, gamma)
        if graph is not None and back is not None:
            back.copy_(Y)

    def forget(self) -> None:
        """Give up everything that was prepared."""
        self.drawn.clear()
        self.graphs.clear()
        self.spare.clear()
        self.pool = None
        if torch.cuda.is_initialized():
            torch.cuda.empty_cache()

    def _step(self, drawn: Drawn, Y: Any, H: Any, gamma: Any) -> None:
        self.family.descend(Y, H, gamma, drawn.batch(self.family))
        drawn.step.add_(1)

    def _drawn(self, clients: Any, there: Any) -> Drawn:
        whole = self.batch is None
        key = clients.tobytes() if whole else len(clients)  # all rows of these very clients, or rows of any
        if key not in self.drawn:
            if whole and len(self.drawn) >= MOST_GRAPHS:
                self.forget()
            self.drawn[key] = Drawn.of(self.family, there, self.batch)
        found = self.drawn[key]
        if not whole:
            found.members.copy_(there)
        return found

    def _fill(self, drawn: Drawn, clients: Any, count: int, round: int, step0: int) -> None:
        """The minibatches and keys of the next steps."""
        if drawn.rows is not None and self.batch is not None:
            sizes = self.family.sizes[clients]
            drawn.rows[:count] = self.draw(count, step0, round, clients, sizes, self.batch)
        if self.family.is_random:  # numbered from one, as on the reference engine
            words = [dropout_word(self.seed, round, step0 + k + 1) for k in range(count)]
            drawn.words[:count] = torch.tensor(words).to(drawn.words.device)

    def _graph(self, drawn: Drawn, Y: Any, H: Any, gamma: float) -> tuple[Any, Any, Any, Any]:
        """A graph of one step, the stacks it works on, and where the result has to be copied, if elsewhere."""
        # everything that a captured launch has fixed
        key = (Y.data_ptr(), 0 if H is None else H.data_ptr(), id(drawn), gamma)
        if key not in self.graphs and len(self.graphs) >= MOST_GRAPHS:  # the stacks wander: work on fixed ones
            place = (Y.shape, H is None)
            if place not in self.spare:
                self.spare[place] = (torch.empty_like(Y), None if H is None else torch.empty_like(H))
            y, h = self.spare[place]
            y.copy_(Y)
            if h is not None:
                h.copy_(H)
            key = (y.data_ptr(), 0 if h is None else h.data_ptr(), id(drawn), gamma)
            if key not in self.graphs:
                if len(self.graphs) >= 2 * MOST_GRAPHS:  # another gamma in every round: nothing to keep
                    return None, Y, H, None
                self.graphs[key] = self._captured(drawn, y, h, gamma)
            return self.graphs[key], y, h, Y
        if key not in self.graphs:
            self.graphs[key] = self._captured(drawn, Y, H, gamma)
        return self.graphs[key], Y, H, None

    def _captured(self, drawn: Drawn, Y: Any, H: Any, gamma: float) -> torch.cuda.CUDAGraph:
        """Warm up on a copy, so that nothing is counted twice, and capture."""
        # a round before may have ended at the last place of those that are drawn together
        drawn.step.zero_()
        # first calls may allocate workspaces or compile kernels, which is not allowed while a graph is captured
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            copy = Y.clone()
            for _ in range(2):
                self._step(drawn, copy, H, gamma)
        torch.cuda.current_stream().wait_stream(side)
        del copy
        graph = torch.cuda.CUDAGraph()
        # one pool for all graphs: they run one after another, and their results lie outside of it
        with torch.cuda.graph(graph, pool=self.pool):
            self._step(drawn, Y, H, gamma)
        self.pool = self.pool or graph.pool()
        # the warm-up has counted its steps; a capture runs nothing
        drawn.step.zero_()
        return graph
