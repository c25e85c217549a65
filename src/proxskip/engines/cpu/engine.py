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
from proxskip.core.engine import BrokenOff, Request, Size, Work, look
from proxskip.core.exchange import SettleHalf
from proxskip.engines.cpu import kernels
from proxskip.engines.cpu.cohort import Cohort
from proxskip.engines.cpu.kernels import Anchors, Steps
from proxskip.engines.cpu.shards import RangeTask, Rows, Tiles, pack, with_pull
from proxskip.engines.in_process import NearEngine
from proxskip.engines.sparse_rows import balanced, pieces
from proxskip.problems.clients import checked_gradient, expansion, expansion_length, value_and_gradient
from proxskip.problems.federated import Problem
from proxskip.support.compiling import compiling
from proxskip.support.cores import available_cores
from proxskip.support.sums import SUM_BLOCK, sum_in_order
from proxskip.types import Array, Counts, Flags, Indices, Oracle, Vectors

LARGE = 1 << 19
"""Numbers in a cohort's stack from which a half runs on ranges of the members, each on one thread."""
NUMBERS_PER_RANGE = 1 << 17
"""Numbers in the stack of a range: the vectors of a half stay in the cache."""
ENTRIES_PER_RANGE = 5e6
"""Entries of the local steps of a range: many threads find work, and Python takes little of the time."""

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

    def client(self, members: Indices, request: Request, place: int = 0, threads: int | None = None) -> Cohort:
        return Cohort(self, members, request, threads or self.threads)

    # -- halves --------------------------------------------------------------------------------------------------------
    def run(self, request: Request) -> Work:
        cohort = request.cohort
        ranges = self._ranges(cohort, request.K)
        clients: dict[int, Cohort] = {}
        sizes: dict[int, tuple[Size | None, ...]] = {}

        def half(lo: int, hi: int) -> tuple[Sequence[Array], Vectors]:
            part = part_of(request, lo, hi)
            client = self.client(part.cohort, part, threads=self._threads_in(ranges))
            own = {name: v[:, None] for name, v in part.own.items()}
            up, memory = request.half(client, self._of_range(cohort, lo, hi), part.K, *part.down, **own)
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
        request = Request(half, cohort, 0)  # type: ignore[arg-type]

        def settle(lo: int, hi: int) -> tuple[Sequence[Array], Vectors]:
            part = part_of(request, lo, hi)
            client = self.client(part.cohort, part, threads=self._threads_in(ranges))
            mine = (v if v.ndim == 1 else v[lo:hi] for v in outcome)
            return (), half(client, self._of_range(cohort, lo, hi), *mine)

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

    def _threads_in(self, ranges: list[tuple[int, int]]) -> int:
        """The threads that the work of one range may use."""
        return self.threads if len(ranges) == 1 else 1

    def _on_ranges(
        self, half: Callable[[int, int], tuple[Sequence[Array], Vectors]], ranges: list[tuple[int, int]], c: int
    ) -> tuple[list[Array], Vectors]:
        """What a half returns, from its results on ranges; several ranges share the threads."""
        if len(ranges) == 1:
            up, memory = half(*ranges[0])
            return list(up), memory
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

        self._spread(work, ranges)
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
        if len(cohort) * self.problem.d >= LARGE:
            for name in memory.keys() & self.kept.keys():
                self.used[name] = before[name] if self.kept[name] is memory[name] else memory[name]
        return sent

    def _of_range(self, cohort: Indices, lo: int, hi: int) -> Vectors:
        """The memory of the members lo to hi - 1 of the cohort."""
        if self._is_everyone(cohort):
            return {name: np.asarray(v)[lo:hi] for name, v in self.kept.items()}
        return {name: np.asarray(v)[cohort[lo:hi]] for name, v in self.kept.items()}

    # -- local steps ---------------------------------------------------------------------------------------------------
    def descend(
        self,
        members: Indices,
        x0: Array,
        H: Array,
        gamma: Array,
        K: Indices,
        round: int,
        step0: Counts = 0,
        halt: threading.Event | None = None,
        pull: float = 0.0,
        threads: int | None = None,
        only_gradient: bool = False,
    ) -> Array:
        """All local steps of all members from x0 (a row each, or one for all), as a new stack.

        Each member is on one thread, or large ones' blocks of rows on all. Minibatches are numbered from step0 (one
        number, or one per member). Raises ``BrokenOff`` soon after ``halt`` is set. ``pull`` is added to the l2 term.
        With ``only_gradient`` a step replaces x by the gradient there.
        """
        assert self.shards is not None
        threads = threads or self.threads
        shards = self.shards if pull == 0.0 else with_pull(self.shards, pull)
        members = np.require(members, np.int64, ["C", "W"])
        x0, H, gamma = (np.require(v, shards.dtype, ["C", "W"]) for v in (x0, H, gamma))
        X = np.empty((len(members), self.problem.d), shards.dtype)
        if self._by_blocks(shards, members, K, threads):

            def share(task: RangeTask, loads: Array) -> None:
                look(halt)
                self._spread(task, pieces(loads, threads, ENTRIES_PER_PIECE), threads)

            X[...] = x0
            draws = shards.draws(self.seed, round, step0, len(members))
            shards.spread(Steps(members, X, X, H, gamma, K, only_gradient), draws, share)
        else:

            def steps(done: int, count: Indices) -> RangeTask:
                draws = shards.draws(self.seed, round, step0 + done, len(members))
                return shards.descend(Steps(members, X if done else x0, X, H, gamma, count, only_gradient), draws)

            self._in_calls(steps, members, K, halt, threads)
        return X.astype(np.float64, copy=False)

    def step_gradients(
        self, members: Indices, X: Array, wanted: Flags, round: int, number: Counts,
        halt: threading.Event | None = None, threads: int | None = None,
    ) -> Array:  # fmt: skip
        """The gradient of each member's local step of this number at its row of X, where it is wanted."""
        unused, K = np.zeros(len(members)), np.asarray(wanted, dtype=np.int64)
        return self.descend(members, X, X, unused, K, round, number, halt, threads=threads, only_gradient=True)

    def _by_blocks(self, shards: Rows | Tiles, members: Indices, K: Indices, threads: int) -> bool:
        """Whether threads share the members' blocks: better balanced, but they wait for each other in every step."""
        if threads == 1 or shards.most_blocks == 1:
            return False
        load = K * shards.work[members]
        whole = max(load[lo:hi].sum() for lo, hi in balanced(load, threads))
        shared = load.sum() / min(threads, shards.block_counts(members).sum())
        return bool(shared + K.max() * threads * ENTRIES_PER_START < whole)

    def _in_calls(
        self, steps: Callable[[int, Indices], RangeTask], members: Indices, K: Indices, halt: threading.Event | None,
        threads: int,
    ) -> None:  # fmt: skip
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

        threads = min(threads, self._threads_for(total))
        task = steps(0, K) if total <= SHORT_WORK else work
        if threads == 1:
            task(0, len(K))
        else:
            self._spread(task, pieces(load, threads, ENTRIES_PER_PIECE), threads)

    def _look(self, halt: threading.Event | None) -> None:
        look(halt)
        if self.abandoned.is_set():
            raise BrokenOff

    def has_anchors(self) -> bool:
        """Whether there is a kernel for L-SVRG: only for minibatches read row by row."""
        return isinstance(self.shards, Rows) and self.shards.batch > 0

    def descend_anchored(
        self, members: Indices, x0: Array, H: Array, gamma: Array, K: Indices, anchor: tuple[Array, Array, Array],
        request: Request, first: Counts, threads: int,
    ) -> tuple[tuple[Array, Array, Array], Indices]:  # fmt: skip
        """Local steps with L-SVRG's gradients, numbered from ``first`` on; also how often each anchor moved."""
        assert isinstance(self.shards, Rows)
        shards = self.shards
        shape = (len(members), self.problem.d)
        moved = np.zeros(len(members), np.int64)
        X, w, gw = (np.array(np.broadcast_to(v, shape), dtype=shards.dtype, order="C") for v in (x0, *anchor[:2]))
        members = np.require(members, np.int64, ["C", "W"])
        H, gamma = (np.require(v, shards.dtype, ["C", "W"]) for v in (H, gamma))
        anchors, K = Anchors(w, gw, anchor[2], moved), np.require(K, np.int64, ["C", "W"])

        def steps(done: int, some: Indices) -> RangeTask:
            draws = shards.draws(self.seed, request.round, first + done, len(members))
            return shards.descend_anchored(Steps(members, X, X, H, gamma, some), anchors, draws)

        self._in_calls(steps, members, K, request.halt, threads)
        ends = (v.astype(np.float64, copy=False) for v in (X, w, gw))
        return tuple(ends), moved  # type: ignore[return-value]

    def expansions(self, members: Indices, X: Array, halt: threading.Event | None, threads: int | None = None) -> Array:
        """Value, gradient and Hessian of each member at its row of X."""
        rows = np.empty((len(members), expansion_length(X.shape[1])))

        def one(j: int, _: int) -> None:
            self._look(halt)
            i = int(members[j])
            rows[j] = expansion(self.problem.clients[i], X[j], self.number0 + i)

        self.each(one, len(members), self._entries(members) * X.shape[1], threads)
        return rows

    def each(self, work: RangeTask, n: int, numbers: float = math.inf, threads: int | None = None) -> None:
        """``work(j, j + 1)`` for each of n members that read so many numbers; on threads if the oracles allow it."""

        def quietly(j: int, k: int) -> None:
            with np.errstate(all="ignore"):  # threads do not inherit it
                work(j, k)

        most = threads or self.threads
        threads = min(most, n if math.isinf(numbers) else self._threads_for(numbers))
        if threads > 1 and self.shareable:
            self._spread(quietly, [(j, j + 1) for j in range(n)], threads)
        else:
            quietly_in_turn(work, n)

    def gradients(
        self, members: Indices, X: Array, wanted: Flags, halt: threading.Event | None, threads: int | None = None
    ) -> Array:
        """The full gradient of each member at its row of X; zeros where it is not wanted."""
        gradients, at = np.zeros(X.shape), np.flatnonzero(wanted)

        def one(k: int, _: int) -> None:
            self._look(halt)
            j = at[k]
            i = int(members[j])
            gradients[j] = checked_gradient(self.problem.clients[i], X[j], self.number0 + i)

        self.each(one, len(at), self._entries(members[at]), threads)
        return gradients

    def _entries(self, members: Indices) -> float:
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

        self.each(one, len(clients), self._entries(np.arange(len(clients))))
        return values, gradients

    def _share(self, work: RangeTask, n: int, numbers: float) -> None:
        """``work(lo, hi)`` for ranges of n rows with this many numbers, on as many threads as is worthwhile."""
        parts = self._threads_for(numbers)
        self._spread(work, [(k * n // parts, (k + 1) * n // parts) for k in range(parts)])

    def _spread(self, work: RangeTask, ranges: list[tuple[int, int]], threads: int | None = None) -> None:
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

    def sum(self, w: Array, U: Array) -> Array:
        blocks = np.empty((-(-len(U) // SUM_BLOCK), U.shape[1]))
        w, U = (np.require(v, np.float64, ["C", "W"]) for v in (w, U))
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
