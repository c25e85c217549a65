"""The CPU engine: a whole cohort as one stack, its local steps spread over threads and compiled where possible."""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import cache

import numpy as np

from proxskip import theory
from proxskip.core.engine import Request, Size, Work
from proxskip.core.exchange import SettleHalf, checked_answer
from proxskip.engines.cpu import kernels
from proxskip.engines.cpu.cohort import Cohort, threads_for
from proxskip.engines.cpu.shards import RangeTask, pack, writable
from proxskip.engines.in_process import NearEngine, Remembered
from proxskip.engines.sparse_rows import balanced
from proxskip.problems.clients import value_and_gradient
from proxskip.problems.federated import Problem
from proxskip.support.compiling import compiling
from proxskip.support.cores import available_cores
from proxskip.support.sums import SUM_BLOCK, sum_in_order
from proxskip.types import Array, Counts, Indices, Oracle, Vectors

LARGE = 1 << 20
"""Numbers in a cohort's stack from which a half runs on ranges of the members, each on one thread."""
NUMBERS_PER_RANGE = 1 << 17
"""Numbers in the stack of a range: the vectors of a half stay in the cache."""
ENTRIES_PER_RANGE = 5e6
"""Entries of the local steps of a range: many threads find work, and Python takes little of the time."""
LARGEST_BLOCK = (1 << 25) - (1 << 15)
"""Bytes of the largest block of memory from which glibc learns how much to keep (32 MB with its header)."""


class CpuEngine(NearEngine):
    """Clients on threads, with the same bytes for any number of threads."""

    name = "cpu"
    together = True

    def __init__(self, threads: int | None = None) -> None:
        self.threads = available_cores() if threads is None else theory.whole("threads", threads)
        self.pool: ThreadPoolExecutor | None = None
        self.abandoned = threading.Event()  # tells threads to leave work that nobody waits for

    def open(self, problem: Problem, memory: Vectors, seed: int, number0: int = 0) -> None:
        """Pack the shards for the kernels, and compile before the clock runs.

        Args:
            number0: for a part of a problem's clients, the number of the first one.
        """
        super().open(problem, memory, seed)
        self.used: dict[int | str, Array] = {}  # stacks of earlier rounds, by place in ``up`` or name, to be used again
        self.number0 = number0
        self.rows = problem.rows_each
        self.shards = pack(problem, number0)
        # unknown oracles may share buffers, so they run in turn unless they declare otherwise
        self.shareable = problem.is_thread_safe
        if self.threads > 1 and self.pool is None:
            self.pool = ThreadPoolExecutor(self.threads - 1, "proxskip")
        _make_sums_ready()
        _have_freed_memory_kept()

    def client(self, members: Indices, request: Request, place: int = 0, threads: int | None = None) -> Cohort:
        return Cohort(self, members, request, threads or self.threads)

    # -- halves --------------------------------------------------------------------------------------------------------
    def run(self, request: Request) -> Work:
        cohort = request.cohort
        ranges = self._ranges(cohort, request.K)
        if len(ranges) > 1:
            return self._run_in_ranges(request, ranges)
        client = self.client(cohort, request)
        own = {name: v[:, None] for name, v in request.own.items()}
        answer = request.half(client, self._of(cohort), request.K, *request.down, **own)
        up, memory = checked_answer(request.half, answer)
        return self._work(client, cohort, up, memory)

    def _run_in_ranges(self, request: Request, ranges: list[tuple[int, int]]) -> Work:
        """Run a half on ranges of the cohort, which share the threads."""
        cohort = request.cohort
        clients: dict[int, Cohort] = {}
        sizes: dict[int, tuple[Size | None, ...]] = {}

        def half(lo: int, hi: int) -> tuple[Sequence[Array], Vectors]:
            part = part_of(request, lo, hi)
            client = self.client(part.cohort, part, threads=1)
            own = {name: v[:, None] for name, v in part.own.items()}
            answer = request.half(client, self._of_range(cohort, lo, hi), part.K, *part.down, **own)
            up, memory = checked_answer(request.half, answer)
            clients[lo] = client
            sizes[lo] = client.sizes(up) if client.used_codec else ()
            return up, memory

        up, memory = self._on_ranges(half, ranges, len(cohort))
        totals = tuple(map(Size.total, zip(*(sizes[lo] for lo, _ in ranges), strict=True)))
        steps = None
        if clients[0].had_criterion:
            steps = np.concatenate([np.asarray(clients[lo].step) for lo, _ in ranges])
        return Work(self._keep_all(cohort, up, memory), sum(c.gradients for c in clients.values()), totals, steps)

    def tell(self, half: SettleHalf, cohort: Indices, outcome: tuple[Array, ...]) -> None:
        ranges = self._ranges(cohort, 0)
        if len(ranges) == 1:
            super().tell(half, cohort, outcome)
            return
        request = Request(half, cohort, 0)  # type: ignore[arg-type]

        def settle(lo: int, hi: int) -> tuple[Sequence[Array], Vectors]:
            part = part_of(request, lo, hi)
            mine = (v if v.ndim == 1 else v[lo:hi] for v in outcome)
            return (), half(self.client(part.cohort, part, threads=1), self._of_range(cohort, lo, hi), *mine)

        _, memory = self._on_ranges(settle, ranges, len(cohort))
        self._keep_all(cohort, (), memory)

    def _ranges(self, cohort: Indices, K: Counts) -> list[tuple[int, int]]:
        """The ranges of a cohort on which a half with K local steps runs: all members at once, unless they are many.

        They do not depend on the number of threads.
        """
        numbers = len(cohort) * self.problem.d
        blocks_are_shared = self.shards is not None and self.shards.most_blocks > 1
        in_turn = self.shards is None and not self.shareable
        if numbers < LARGE or blocks_are_shared or in_turn:
            return [(0, len(cohort))]
        entries_of_a_step = self.problem.d if self.shards is None else self.shards.work[cohort]
        entries = np.broadcast_to(K * entries_of_a_step, len(cohort))
        parts = max(numbers / NUMBERS_PER_RANGE, entries.sum() / ENTRIES_PER_RANGE)
        return balanced(entries + float(self.problem.d), math.ceil(parts))

    def _on_ranges(
        self, half: Callable[[int, int], tuple[Sequence[Array], Vectors]], ranges: list[tuple[int, int]], c: int
    ) -> tuple[list[Array], Vectors]:
        """What a half returns, from its results on ranges."""
        lock = threading.Lock()
        stacks: dict[int | str, Array] = {}

        def put(name: int | str, v: Array, lo: int, hi: int) -> None:
            with lock:
                if name not in stacks:
                    stacks[name] = self._room_for(name, (c, v.shape[-1]))
            stacks[name][lo:hi] = v

        def work(lo: int, hi: int) -> None:
            with np.errstate(all="ignore"):  # threads do not inherit it
                up, memory = half(lo, hi)
            for k, v in enumerate(up):
                put(k, v, lo, hi)
            for name, v in memory.items():
                put(name, v, lo, hi)

        self.spread(work, ranges)
        up = [stacks[k] for k in sorted(k for k in stacks if isinstance(k, int))]
        self.used |= dict(enumerate(up))
        return up, {name: v for name, v in stacks.items() if isinstance(name, str)}

    def _room_for(self, name: int | str, shape: tuple[int, int]) -> Array:
        """A large stack that is no longer used, or a new one, whose memory the system would have to clear."""
        old = self.used.pop(name, None)
        if old is None or old.shape != shape or self.journal.holds(old):
            return np.empty(shape)
        return old

    def _keep_all(self, cohort: Indices, up: Sequence[Array], memory: Vectors) -> tuple[Array, ...]:
        before = dict(self.kept)
        sent = self._store(cohort, up, memory)
        for name in memory.keys() & self.kept.keys():
            self.used[name] = before[name] if self.kept[name] is memory[name] else memory[name]
        return sent

    def _of_range(self, cohort: Indices, lo: int, hi: int) -> Vectors:
        """The memory of the members lo to hi - 1 of the cohort."""
        if self._is_everyone(cohort):
            return Remembered((name, np.asarray(v)[lo:hi]) for name, v in self.kept.items())
        return Remembered((name, np.asarray(v)[cohort[lo:hi]]) for name, v in self.kept.items())

    # -- oracles -------------------------------------------------------------------------------------------------------
    def each(self, work: RangeTask, n: int, numbers: float = math.inf, threads: int | None = None) -> None:
        """``work(j, j + 1)`` for each of n members that read so many numbers; on threads if the oracles allow it."""

        def quietly(j: int, k: int) -> None:
            with np.errstate(all="ignore"):  # threads do not inherit it
                work(j, k)

        most = threads or self.threads
        threads = min(most, n) if math.isinf(numbers) else threads_for(numbers, most)
        if threads > 1 and self.shareable:
            self.spread(quietly, [(j, j + 1) for j in range(n)], threads)
        else:
            quietly_in_turn(work, n)

    def entries(self, members: Indices) -> float:
        """Entries of the members' matrices; infinite if unknown."""
        return math.inf if self.shards is None else float(self.shards.work[members].sum())

    def judge(self, problem: Problem) -> Problem:
        if self.shards is None or not problem.by_client:
            return problem
        return problem.evaluated_by(self)

    def evaluate(self, x: Array, clients: Sequence[Oracle]) -> tuple[list[float], Array]:
        """f_i(x) and grad f_i(x) of every client."""
        values, gradients = [0.0] * len(clients), np.empty((len(clients), len(x)))

        def one(j: int, _: int) -> None:
            values[j], gradients[j] = value_and_gradient(clients[j], x, j)

        self.each(one, len(clients), self.entries(np.arange(len(clients))))
        return values, gradients

    def _share(self, work: RangeTask, n: int, numbers: float) -> None:
        """``work(lo, hi)`` for ranges of n rows with this many numbers, on as many threads as is worthwhile."""
        parts = threads_for(numbers, self.threads)
        self.spread(work, [(k * n // parts, (k + 1) * n // parts) for k in range(parts)])

    def spread(self, work: RangeTask, ranges: list[tuple[int, int]], threads: int | None = None) -> None:
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

    def sum(self, w: Array, U: Array) -> Array:
        blocks = np.empty((-(-len(U) // SUM_BLOCK), U.shape[1]))
        w, U = writable(w, np.float64), writable(U, np.float64)
        self._share(lambda lo, hi: kernels.block_sums(lo, hi, w, U, SUM_BLOCK, blocks), len(blocks), U.size)
        return sum_in_order(blocks)

    def close(self) -> None:
        if self.pool is not None:
            self.pool.shutdown()
            self.pool = None


@cache
def _make_sums_ready() -> None:
    with compiling(kernels.block_sums):
        kernels.block_sums(0, 0, np.zeros(1), np.zeros((1, 1)), SUM_BLOCK, np.zeros((1, 1)))


@cache
def _have_freed_memory_kept() -> None:
    """Have the C library keep the memory of stacks that are freed, up to 64 MB, for those of the next operation.

    By itself glibc returns it to the system, whose new pages take longer than the operation. It keeps twice the size of
    the largest block that was ever freed; this one is never written to, and so never takes memory.
    """
    np.empty(LARGEST_BLOCK, np.uint8)


def quietly_in_turn(work: Callable[[int, int], None], n: int) -> None:
    """``work(j, j + 1)`` for each of n members on this thread."""
    with np.errstate(all="ignore"):
        for j in range(n):
            work(j, j + 1)


def part_of(request: Request, lo: int, hi: int) -> Request:
    """The request to members lo to hi-1; itself if these are all."""
    members = len(request.cohort)
    if lo == 0 and hi == members:
        return request
    K = request.K if isinstance(request.K, int) else request.K[lo:hi]
    own = {name: v[lo:hi] for name, v in request.own.items()}
    asked = members if request.asked is None else request.asked
    return Request(
        request.half, request.cohort[lo:hi], request.round, K, request.down, own, request.exchange, request.attempt,
        request.first + lo, asked, request.halt,
    )  # fmt: skip
