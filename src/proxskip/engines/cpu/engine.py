"""The CPU engine: a whole cohort as one stack, its local steps spread over threads and compiled where possible."""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import cache, partial
from types import FunctionType, MethodType
from typing import Any

import numpy as np

from proxskip import theory
from proxskip.compiling import compiling
from proxskip.cores import available_cores
from proxskip.engines.cpu import kernels
from proxskip.engines.cpu.cohort import Cohort
from proxskip.engines.cpu.kernels import Anchors, Steps
from proxskip.engines.cpu.lazy import Lazy, Sheet, as_stack
from proxskip.engines.cpu.shards import Census, RangeTask, Rows, Tiles, pack, with_pull
from proxskip.engines.in_process import NearEngine
from proxskip.engines.local import Sender
from proxskip.engines.sparse_rows import balanced, pieces
from proxskip.interfaces import BrokenOff, Request, SettleHalf, Work, look
from proxskip.links.sums import SUM_BLOCK, sum_in_order
from proxskip.problems.clients import checked_gradient, value_and_gradient
from proxskip.problems.federated import Problem
from proxskip.types import Array, Indices, Vectors

LAZY = 1 << 18
"""Numbers in a cohort's stack from which one kernel computes its halves; see ``engines.cpu.lazy``."""

# Starting t threads takes c t, so that work W takes W / t + c t, least for t = sqrt(W / c).
ENTRIES_PER_START = 3e4
"""Matrix entries or stack numbers that a thread processes in the time c."""
ENTRIES_PER_PIECE = 2.5e5
"""Entries of the smallest piece of work."""
SHORT_WORK = 2e7
"""Entries of one kernel call (some 10 ms), after which a thread checks for interrupts."""


class CpuEngine(NearEngine):
    """Clients on threads, with the same bytes for any number of threads."""

    name = "cpu"
    together = True
    atomic = True
    weights: tuple[Array, ...] = ()
    """The weights of the request under way."""

    def __init__(self, threads: int | None = None) -> None:
        self.threads = available_cores() if threads is None else theory.whole("threads", threads)
        self.pool: ThreadPoolExecutor | None = None
        self.abandoned = threading.Event()  # tells threads to leave work that nobody waits for

    def open(
        self, problem: Problem, memory: Vectors, seed: int, number0: int = 0, census: Census | None = None
    ) -> None:
        """Pack the shards for the kernels, and compile before the clock runs.

        Args:
            number0, census: for a part of a problem's clients, the number of the first one, and the census of all.
        """
        super().open(problem, memory, seed)
        self.number0 = number0
        self.rows = problem.rows_each
        self.shards = pack(problem, census, number0)
        # unknown oracles may share buffers, so they run in turn unless they declare otherwise
        self.shareable = problem.is_thread_safe
        self.writes_down = False  # whether the half under way gets lazy vectors
        self.on_stacks: set[Any] = set()  # code of halves that use more than + - * /
        if self.threads > 1 and self.pool is None:
            self.pool = ThreadPoolExecutor(self.threads - 1, "proxskip")
        _make_sums_ready()

    def run(self, request: Request) -> Work:
        self.weights = request.weights
        work: Work = self._written_down(request.half, request.cohort, partial(super().run, request))
        return work

    def tell(self, half: SettleHalf, cohort: Indices, outcome: tuple[Any, ...]) -> None:
        self._written_down(half, cohort, partial(super().tell, half, cohort, outcome))

    def _written_down(self, half: Callable[..., Any], cohort: Indices, act: Callable[[], Any]) -> Any:
        """Run a half; for a large cohort on lazy vectors, or again on plain stacks if it does not support them."""
        code, d = _code_of(half), self.problem.d
        # a stack of single numbers reads as a column
        self.writes_down = d > 1 and len(cohort) * d >= LAZY and code not in self.on_stacks
        if self.writes_down:
            with suppress(TypeError, AttributeError):  # nothing has changed yet; any other error comes again
                return act()
            self.on_stacks.add(code)
            self.writes_down = False
        return act()

    def client(self, members: Indices, request: Request, place: int) -> Cohort:
        return Cohort(self, members, request)

    def descend(
        self,
        members: Indices,
        x0: Array,
        H: Array,
        gamma: Array,
        K: Indices,
        round: int,
        step0: Any = 0,
        halt: threading.Event | None = None,
        pull: float = 0.0,
    ) -> Array:
        """All local steps of all members from x0 (a row each, or one for all), as a new stack.

        Each member is on one thread, or large ones' blocks of rows on all. Minibatches are numbered from step0 (one
        number, or one per member). Raises ``BrokenOff`` soon after ``halt`` is set. ``pull`` is added to the l2 term.
        """
        assert self.shards is not None
        shards = self.shards if pull == 0.0 else with_pull(self.shards, pull)
        members = np.require(members, np.int64, ["C", "W"])
        x0, H, gamma = (np.require(v, shards.dtype, ["C", "W"]) for v in (x0, H, gamma))
        X = np.empty((len(members), self.problem.d), shards.dtype)
        if self._by_blocks(shards, members, K):

            def share(task: RangeTask, loads: Array) -> None:
                look(halt)
                self._spread(task, pieces(loads, self.threads, ENTRIES_PER_PIECE))

            X[...] = x0
            draws = shards.draws(self.seed, round, step0, len(members))
            shards.spread(Steps(members, X, X, H, gamma, K), draws, share)
        else:

            def steps(done: int, count: Indices) -> RangeTask:
                draws = shards.draws(self.seed, round, step0 + done, len(members))
                return shards.descend(Steps(members, X if done else x0, X, H, gamma, count), draws)

            self._in_calls(steps, members, K, halt)
        return X.astype(np.float64, copy=False)

    def _by_blocks(self, shards: Rows | Tiles, members: Indices, K: Indices) -> bool:
        """Whether threads share the members' blocks: better balanced, but they wait for each other in every step."""
        if self.threads == 1 or shards.most_blocks == 1:
            return False
        load = K * shards.work[members]
        whole = max(load[lo:hi].sum() for lo, hi in balanced(load, self.threads))
        shared = load.sum() / min(self.threads, shards.block_counts(members).sum())
        return bool(shared + K.max() * self.threads * ENTRIES_PER_START < whole)

    def _in_calls(
        self, steps: Callable[[int, Indices], RangeTask], members: Indices, K: Indices, halt: threading.Event | None
    ) -> None:
        """All steps of the members on threads, in calls of about SHORT_WORK with a check for interrupts in between.

        A step depends only on x and its number, so the bytes are those of one call.

        Args:
            steps: ``steps(done, count)`` is a task that takes the next count[j] steps of member j.
        """
        assert self.shards is not None
        cost = self.shards.work[members] + self.problem.d
        load = K * cost
        total = float(load.sum())

        def work(lo: int, hi: int) -> None:
            for a, b in balanced(load[lo:hi], 1 + int(load[lo:hi].sum() / SHORT_WORK)):
                most = max(1, int(SHORT_WORK / cost[lo + a : lo + b].sum()))
                for done in range(0, max(1, int(K[lo + a : lo + b].max())), most):
                    self._look(halt)
                    steps(done, np.clip(K - done, 0, most))(lo + a, lo + b)

        threads = self._threads_for(total)
        self._spread(steps(0, K) if total <= SHORT_WORK else work, pieces(load, threads, ENTRIES_PER_PIECE), threads)

    def _look(self, halt: threading.Event | None) -> None:
        look(halt)
        if self.abandoned.is_set():
            raise BrokenOff

    def has_anchors(self) -> bool:
        """Whether there is a kernel for L-SVRG: only for minibatches read row by row."""
        return isinstance(self.shards, Rows) and self.shards.batch > 0

    def descend_anchored(
        self, members: Indices, x0: Array, H: Array, gamma: Array, K: Indices, anchor: Any, count: Sender,
        request: Request,
    ) -> tuple[Array, Array, Array]:  # fmt: skip
        """Local steps with L-SVRG's gradients, counted."""
        assert isinstance(self.shards, Rows)
        shards, shape, moved = self.shards, (len(members), self.problem.d), np.zeros(len(members), np.int64)
        X, w, gw = (np.array(np.broadcast_to(v, shape), dtype=shards.dtype, order="C") for v in (x0, *anchor[:2]))
        members = np.require(members, np.int64, ["C", "W"])
        H, gamma = (np.require(v, shards.dtype, ["C", "W"]) for v in (H, gamma))
        anchors, first = Anchors(w, gw, anchor[2], moved), count.step

        def steps(done: int, some: Indices) -> RangeTask:
            draws = shards.draws(self.seed, request.round, first + done, len(members))
            return shards.descend_anchored(Steps(members, X, X, H, gamma, some), anchors, draws)

        self._in_calls(steps, members, K, request.halt)
        count.gradients += int(np.sum(2 * shards.batch * K + moved * self.rows[members]))
        count.step = first + K
        return X.astype(np.float64, copy=False), w.astype(np.float64, copy=False), gw.astype(np.float64, copy=False)

    def each(self, work: Any, n: int, numbers: float = math.inf) -> None:
        """``work(j, j + 1)`` for each of n members that read so many numbers; on threads if the oracles allow it."""

        def quietly(j: int, k: int) -> None:
            with np.errstate(all="ignore"):  # threads do not inherit it
                work(j, k)

        threads = min(self.threads, n) if math.isinf(numbers) else self._threads_for(numbers)
        self._spread(quietly, [(j, j + 1) for j in range(n)], threads if self.shareable else 1)

    def gradients(self, members: Indices, X: Array, wanted: Any, halt: threading.Event | None) -> Array:
        """The full gradient of each member at its row of X; zeros where it is not wanted."""
        gradients, at = np.zeros(X.shape), np.flatnonzero(wanted)

        def one(k: int, _: int) -> None:
            self._look(halt)
            j = at[k]
            i = int(members[j])
            gradients[j] = checked_gradient(self.problem.clients[i], X[j], self.number0 + i)

        self.each(one, len(at), self._entries(members[at]))
        return gradients

    def _entries(self, members: Indices) -> float:
        """Entries of the members' matrices; infinite if unknown."""
        return math.inf if self.shards is None else float(self.shards.work[members].sum())

    def judge(self, problem: Problem) -> Problem:
        if self.shards is None or not problem.by_client:
            return problem
        from proxskip.problems.sharded import Elsewhere  # a worker never needs it

        return Elsewhere.of(problem, self)

    def evaluate(self, x: Array, clients: Any) -> tuple[list[float], Array]:
        """f_i(x) and grad f_i(x) of every client."""
        values, gradients = [0.0] * len(clients), np.empty((len(clients), len(x)))

        def one(j: int, _: int) -> None:
            values[j], gradients[j] = value_and_gradient(clients[j], x, j)

        self.each(one, len(clients), self._entries(np.arange(len(clients))))
        return values, gradients

    def _share(self, work: Any, n: int, numbers: float) -> None:
        """``work(lo, hi)`` for ranges of n rows with this many numbers, on as many threads as is worthwhile."""
        parts = self._threads_for(numbers)
        self._spread(work, [(k * n // parts, (k + 1) * n // parts) for k in range(parts)])

    def _spread(self, work: Any, ranges: list[tuple[int, int]], threads: int | None = None) -> None:
        """``work(lo, hi)`` for all ranges, on this thread and others, each taking the next range."""
        todo, failed = deque(ranges), {}

        def go() -> None:
            with suppress(IndexError):  # none is left
                while True:
                    lo, hi = todo.popleft()
                    try:
                        work(lo, hi)
                    except Exception as error:
                        failed[lo] = error
                        todo.clear()

        helpers: list[Future[None]] = []

        def ends_of_helpers() -> list[BaseException | None]:
            return [helper.exception() for helper in helpers if not helper.cancel()]  # waits for those that began

        try:
            if self.pool is not None:
                helpers += [self.pool.submit(go) for _ in ranges[1 : threads or self.threads]]
            go()
            errors = ends_of_helpers()
        except BaseException:  # an interrupt: stop the other threads too
            self.abandoned.set()
            todo.clear()
            ends_of_helpers()
            self.abandoned.clear()
            raise
        for error in errors:
            if error is not None:
                raise error
        if failed:  # the first failure, whichever thread had it
            raise failed[min(failed)]

    def _threads_for(self, work: float) -> int:
        """The number of threads that is worthwhile for this many entries or numbers."""
        return max(1, min(self.threads, int(math.sqrt(work / ENTRIES_PER_START))))

    def keeps_rows(self) -> bool:
        return True

    def rows_of(self, members: Indices) -> Indices:
        return members if self.store is None else self.store.place[members]

    def _of(self, at: Indices) -> Any:
        if self.writes_down:
            handed = {k: Lazy.of(v) for k, v in self.handed.items()}
            return {k: Lazy.of(v, kept=True) for k, v in self.kept.items()} | handed
        return super()._of(at)

    def _store(self, at: Indices, up: Any, memory: Any) -> tuple[Any, ...]:
        """Run the half's program: what goes up into sums or stacks, memory into its place."""
        shape = (len(at), self.problem.d)
        threads = self._threads_for(shape[0] * shape[1])
        one_each = -(-shape[0] // SUM_BLOCK) >= threads  # a block is summed by one thread
        weights = self.weights if up and one_each else ()
        sheet, sent = Sheet(shape[1], at, weights), list(up)
        for k, v in enumerate(up):
            if isinstance(v, Lazy) and weights:
                sent[k] = sheet.sum(v)
            elif isinstance(v, Lazy):
                sent[k] = np.empty(shape)
                sheet.store(v, sent[k], kept=False)
        lazy = {name: v for name, v in memory.items() if isinstance(v, Lazy)}
        handed = {name: np.empty(shape) for name in lazy if self._hands_on(name)}
        for name, v in lazy.items():
            sheet.store(v, handed[name] if name in handed else self.kept[name], kept=name not in handed)
        if sheet.lines:
            self._share(*sheet.work(), shape[0] * shape[1])
        self.handed |= handed
        super()._store(at, (), {name: v for name, v in memory.items() if name not in lazy})
        return tuple(v if callable(v) else np.ascontiguousarray(as_stack(v, shape)) for v in sent)

    def compute(self, v: Lazy, members: Indices) -> Array:
        """Compute one lazy stack now."""
        stack = np.empty((len(members), self.problem.d))
        sheet = Sheet(self.problem.d, self.rows_of(members))
        sheet.store(v, stack, kept=False)
        self._share(*sheet.work(), stack.size)
        return stack

    def sum(self, w: Array, U: Array) -> Array:
        blocks = np.empty((-(-len(U) // SUM_BLOCK), U.shape[1]))
        w, U = (np.require(v, np.float64, ["C", "W"]) for v in (w, U))
        self._share(lambda lo, hi: kernels.block_sums(lo, hi, w, U, SUM_BLOCK, blocks), len(blocks), U.size)
        return sum_in_order(blocks)

    def sums(self, rows: Sequence[Array], up: Sequence[Any]) -> tuple[Any, ...]:
        return tuple(s for U in up for s in (U() if callable(U) else (self.sum(w, U) for w in rows)))

    def close(self) -> None:
        if self.pool is not None:
            self.pool.shutdown()
            self.pool = None


@cache
def _make_sums_ready() -> None:
    with compiling(kernels.block_sums):
        kernels.block_sums(0, 0, np.zeros(1), np.zeros((1, 1)), SUM_BLOCK, np.zeros((1, 1)))


def _code_of(half: Any) -> Any:
    """A key that stays the same if a method makes its half anew in every round."""
    while isinstance(half, partial):
        half = half.func
    return half.__code__ if isinstance(half, (FunctionType, MethodType)) else type(half)
