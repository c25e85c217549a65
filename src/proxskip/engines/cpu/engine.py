"""The CPU engine: the whole cohort as one stack, its local steps spread over threads, compiled where they can be."""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from types import FunctionType, MethodType
from typing import Any

import numpy as np

from proxskip.cores import available_cores
from proxskip.engines.cpu import kernels
from proxskip.engines.cpu.cohort import Cohort
from proxskip.engines.cpu.lazy import Lazy, Sheet, Summed, as_stack
from proxskip.engines.cpu.shards import Census, RangeTask, Rows, Tiles, pack, with_pull
from proxskip.engines.cpu.thread_team import Help, Helpers
from proxskip.engines.in_process import NearEngine
from proxskip.engines.local import OneClient, Sender, no_half
from proxskip.engines.sparse_rows import balanced, even, tapered
from proxskip.interfaces import BrokenOff, Request, SettleHalf, Work, look
from proxskip.links.sums import SUM_BLOCK, sum_in_order
from proxskip.problems.clients import checked_gradient, value_and_gradient
from proxskip.problems.federated import Problem
from proxskip.types import Array, Indices, InputError, Vectors

LAZY = 1 << 18
"""Entries of a cohort's stack from which its halves are computed in one kernel, see ``engines.cpu.lazy``."""

# Threads are started one after another. On t of them what takes one W takes W / t + c t, least for t = sqrt(W / c).
ENTRIES_PER_START = 3e4
"""Entries of a matrix, or numbers of a stack, that a thread takes in the time c that starting one takes."""
ENTRIES_PER_PIECE = 2.5e5
"""Entries of the smallest piece, when pieces get smaller and smaller: those who finish early take another one."""
SHORT_WORK = 2e7
"""Entries, about, of one call of a kernel (a few hundredths of a second), before a thread looks for interrupts."""
SECONDS_BETWEEN_LOOKS = 0.05
"""How long a thread should work on one member before it looks again."""


class CpuEngine(NearEngine):
    """Clients on threads. The same trajectory, bit for bit, for any number of threads."""

    name = "cpu"
    together = True
    atomic = True

    def __init__(self, threads: int | None = None) -> None:
        if threads is not None and threads < 1:
            raise InputError(f"threads = {threads} must be at least 1.")
        self.threads = threads or available_cores()
        self.pool: Helpers | None = None
        self.abandoned = threading.Event()  # set while threads are to leave work that nobody waits for any more
        self.weights: tuple[Array, ...] = ()  # with which the request under way wants sums of what goes up

    def open(
        self, problem: Problem, memory: Vectors, seed: int, number0: int = 0, census: Census | None = None
    ) -> None:
        """Pack the shards for the kernels, where there is one for them, and compile it before the clock runs.

        Args:
            number0, census: where these are only some of a problem's clients, the number of the first among all, and
                the census of all.
        """
        super().open(problem, memory, seed)
        self.number0 = number0
        self.rows = problem.rows_each
        self.shards = pack(problem, census, number0)
        # oracles of unknown make may share buffers, so they run one after another unless they say that they need not
        self.shareable = problem.is_thread_safe
        self.buffers: dict[int, Array] = {}
        self.spare: Array | None = None
        self.writes_down = False  # whether the half under way gets vectors that are yet to be computed
        self.on_stacks: set[Any] = set()  # the code of halves that do more than + - * /
        self.arrays: dict[int, tuple[Any, Array]] = {}  # by the id of what they are made from, which is kept with them
        if self.threads > 1 and self.pool is None:
            self.pool = Helpers(self.threads - 1)
        if self.shards is not None:
            # a step costs the entries of its rows and those of x; by how much the latter can matter
            self.overhead = 1.0 + problem.d / float(self.shards.work.min())
            nothing = np.zeros((1, problem.d))
            self.descend(np.zeros(1, np.int64), nothing, nothing, np.zeros(1), np.zeros(1, np.int64), 0)

    def run(self, request: Request) -> Work:
        """The half on the whole cohort; of what goes up, only the sums if nothing else is wanted."""
        self.weights = request.weights
        try:
            work: Work = self._written_down(request.half, request.cohort, partial(super().run, request))
            return work
        finally:
            self.weights = ()

    def tell(self, half: SettleHalf, cohort: Indices, outcome: tuple[Any, ...]) -> None:
        """The half on the whole cohort."""
        self._written_down(half, cohort, partial(super().tell, half, cohort, outcome))

    def _written_down(self, half: Callable[..., Any], cohort: Indices, act: Callable[[], Any]) -> Any:
        """Run a half; that of a large cohort is written down, or is run again on plain stacks if it cannot be."""
        code, d = _code_of(half), self.problem.d
        # a stack of single numbers reads as a column
        self.writes_down = d > 1 and len(cohort) * d >= LAZY and code not in self.on_stacks
        if self.writes_down:
            with suppress(TypeError, AttributeError):  # nothing has changed; if it was another error, it comes again
                return act()
            self.on_stacks.add(code)
            self.writes_down = False
        return act()

    def client(self, members: Indices, request: Request, place: int) -> Cohort:
        """The whole cohort."""
        return Cohort(self, members, request)

    def one(self, i: int, request: Request, place: int) -> OneClient:
        """One member by itself, for work without a kernel."""
        return OneClient(self.problem, i, self.seed, request, place, self.number0)

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
        """All local steps of all members, from x0 (a row each, or one for all), as a new stack.

        Each member is on one thread, or large ones' blocks of rows on all. Minibatches are numbered from step0 on (one
        number, or one per member). ``BrokenOff`` soon after ``halt`` is set. ``pull`` is added to the l2 term.
        """
        X = self._room((len(members), self.problem.d))
        if self.shards is None:
            X[...] = x0
            return self._descend_any(members, X, H, gamma, K, Request(no_half, members, round, halt=halt), step0)
        shards = self.shards if pull == 0.0 else with_pull(self.shards, pull)
        kind = shards.dtype
        x0, H, gamma = (np.ascontiguousarray(v, dtype=kind) for v in (x0, H, gamma))
        X = X if kind == X.dtype else np.empty(X.shape, kind)
        load = K * shards.work[members]
        if self._by_blocks(shards, members, load, K):

            def share(task: RangeTask, loads: Array) -> None:
                look(halt)
                self._spread(task, tapered(loads, self.threads, ENTRIES_PER_PIECE))

            X[...] = x0
            shards.spread(members, X, H, gamma, K, self.seed, round, share, step0)
        else:
            total = float(load.sum())
            threads = self._threads_for(total)
            if total * self.overhead <= SHORT_WORK:
                work = shards.descend(members, x0, X, H, gamma, K, self.seed, round, step0)
            else:
                work = self._in_calls(shards, members, x0, X, H, gamma, K, round, step0, halt)
            self._spread(work, tapered(load, threads, ENTRIES_PER_PIECE), threads)
        return X.astype(np.float64, copy=False)

    def _by_blocks(self, shards: Rows | Tiles, members: Indices, load: Array, K: Indices) -> bool:
        """Whether threads share the members' blocks: better balanced, but they wait for each other at every step."""
        if self.threads == 1 or shards.most_blocks == 1:
            return False
        whole = max(load[lo:hi].sum() for lo, hi in balanced(load, self.threads))
        shared = load.sum() / min(self.threads, shards.block_counts(members).sum())
        return bool(shared + K.max() * self.threads * ENTRIES_PER_START < whole)

    def _in_calls(
        self, shards: Rows | Tiles, members: Indices, x0: Array, X: Array, H: Array, gamma: Array, K: Indices,
        round: int, step0: Any, halt: threading.Event | None,
    ) -> RangeTask:  # fmt: skip
        """``f(lo, hi)`` does all steps of members lo to hi-1 in calls of about SHORT_WORK, and looks between them.

        The steps of a member depend on its x and their number alone, so that the bytes are those of one call.
        """
        seed = self.seed
        whole = shards.descend(members, x0, X, H, gamma, K, seed, round, step0)
        load = K * (shards.work[members] + X.shape[1])
        ends = np.append(0.0, np.cumsum(load))

        def steps(j: int, done: int, count: int) -> None:
            some, start = np.full(len(K), count, np.int64), x0 if done == 0 else X
            shards.descend(members, start, X, H, gamma, some, seed, round, step0 + done)(j, j + 1)

        def work(lo: int, hi: int) -> None:
            while lo < hi:
                self._look(halt)
                if load[lo] > SHORT_WORK:
                    self._timed_calls(partial(steps, lo), int(K[lo]), SHORT_WORK * K[lo] / load[lo], halt)
                    lo += 1
                else:
                    last = int(np.searchsorted(ends, ends[lo] + SHORT_WORK, side="right")) - 1
                    last = min(hi, max(lo + 1, last))
                    whole(lo, last)
                    lo = last

        return work

    def _timed_calls(
        self, steps: Callable[[int, int], None], K: int, guess: float, halt: threading.Event | None
    ) -> None:
        """``steps(done, count)`` until K are done, each call of about SECONDS_BETWEEN_LOOKS."""
        done, count = 0, max(1, int(guess))
        while done < K:
            self._look(halt)
            began = time.perf_counter()
            count = min(count, K - done)
            steps(done, count)
            done += count
            took = time.perf_counter() - began
            count = max(1, int(count * min(4.0, SECONDS_BETWEEN_LOOKS / max(took, 1e-9))))

    def _look(self, halt: threading.Event | None) -> None:
        look(halt)
        if self.abandoned.is_set():
            raise BrokenOff

    def has_anchors(self) -> bool:
        """Whether there is a kernel for the steps of L-SVRG: for minibatches that are read row by row."""
        return isinstance(self.shards, Rows) and self.shards.batch > 0

    def descend_anchored(
        self, members: Indices, x0: Array, H: Array, gamma: Array, K: Indices, anchor: Any, count: Sender,
        request: Request,
    ) -> tuple[Array, Array, Array]:  # fmt: skip
        """The steps with the gradients of L-SVRG, counted."""
        assert isinstance(self.shards, Rows)
        kind, round, halt = self.shards.dtype, request.round, request.halt
        X = np.array(np.broadcast_to(x0, (len(members), self.problem.d)), dtype=kind, order="C")
        H, gamma = np.ascontiguousarray(H, dtype=kind), np.ascontiguousarray(gamma, dtype=kind)
        w, gw = (np.ascontiguousarray(v, dtype=kind) for v in anchor[:2])
        moved = np.zeros(len(members), np.int64)
        shards, load, most = self.shards, K * self.shards.work[members], int(K.max())
        held = w, gw, anchor[2]

        def steps(done: int, number: int) -> None:
            some, first = np.clip(K - done, 0, number), count.step + done
            work = shards.descend_anchored(members, X, H, gamma, some, held, moved, self.seed, round, first)
            self._spread(work, balanced(load, self.threads))

        self._timed_calls(steps, most, most * SHORT_WORK / max(float(load.sum()), 1.0), halt)
        count.gradients += int(np.sum(2 * self.shards.batch * K + moved * self.rows[members]))
        count.step = count.step + K
        return X.astype(np.float64, copy=False), w.astype(np.float64, copy=False), gw.astype(np.float64, copy=False)

    def _descend_any(
        self, members: Indices, X: Array, H: Array, gamma: Array, K: Indices, request: Request, step0: Any
    ) -> Array:
        first = None if isinstance(step0, int) and step0 == 0 else np.broadcast_to(step0, (len(members),))

        def one(j: int, _: int) -> None:
            client = OneClient(self.problem, int(members[j]), self.seed, request, j, self.number0)
            if first is not None:
                client.step = int(first[j])
            X[j] = client.descend(X[j].copy(), H[j], float(gamma[j]), int(K[j]))

        self.each(one, len(members))
        return X

    def each(self, work: Any, n: int, numbers: float = math.inf) -> None:
        """``work(j, j + 1)`` for each of n members, who read so many numbers; on threads if their oracles allow it."""

        def quietly(j: int, k: int) -> None:
            with np.errstate(all="ignore"):  # a thread does not inherit the loop's
                work(j, k)

        threads = min(self.threads, n) if math.isinf(numbers) else self._threads_for(numbers)
        self._spread(quietly, [(j, j + 1) for j in range(n)], threads if self.shareable else 1)

    def gradients(self, members: Indices, X: Array, wanted: Any, halt: threading.Event | None) -> Array:
        """The full gradient of each member at its row of X; zeros where it is not wanted."""
        out, at = np.zeros(X.shape), np.flatnonzero(wanted)

        def one(k: int, _: int) -> None:
            self._look(halt)
            j = at[k]
            i = int(members[j])
            out[j] = checked_gradient(self.problem.clients[i], X[j], self.number0 + i)

        self.each(one, len(at), self._entries(members[at]))
        return out

    def _entries(self, members: Indices) -> float:
        """Entries of the members' matrices; infinitely many where nobody knows."""
        return math.inf if self.shards is None else float(self.shards.work[members].sum())

    def judge(self, problem: Problem) -> Problem:
        """The open problem with the values and gradients of its clients computed on threads."""
        if self.shards is None or not problem.by_client:
            return problem
        from proxskip.problems.sharded import Elsewhere  # not before: a worker never needs it

        return Elsewhere.of(problem, self)

    def evaluate(self, x: Array, clients: Any) -> tuple[list[float], Array]:
        """f_i(x) and grad f_i(x) of every client."""
        values, gradients = [0.0] * len(clients), np.empty((len(clients), len(x)))

        def one(j: int, _: int) -> None:
            values[j], gradients[j] = value_and_gradient(clients[j], x, j)

        self.each(one, len(clients), self._entries(np.arange(len(clients))))
        return values, gradients

    def _share(self, work: Any, n: int, numbers: float) -> None:
        """``work(lo, hi)`` for ranges of n rows, together this many numbers, on as many threads as that is worth."""
        self._spread(work, even(n, self._threads_for(numbers)))

    def _spread(self, work: Any, ranges: list[tuple[int, int]], threads: int | None = None) -> None:
        """``work(lo, hi)`` for all ranges, on this thread and others, each of which takes the next one that is left."""
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

        helped = Help(go)
        try:
            if self.pool is not None:
                self.pool.call(helped, len(ranges[1 : threads or self.threads]))
            go()
            helped.wait()
        except BaseException:  # an interrupt: the others must not go on unseen
            self.abandoned.set()
            todo.clear()
            helped.wait()
            self.abandoned.clear()
            raise
        if helped.failed:
            raise helped.failed[0]
        if failed:  # ranges are taken in their order, so that this is the first that fails, whoever does it
            raise failed[min(failed)]

    def _threads_for(self, work: float) -> int:
        """Threads that are worth it for this many entries of a matrix or numbers of a stack."""
        return max(1, min(self.threads, int(math.sqrt(work / ENTRIES_PER_START))))

    def keeps_rows(self) -> bool:
        """It can."""
        return True

    def as_array(self, values: tuple[float, ...]) -> Array:
        """A parameter with a number for each client, made an array once."""
        if id(values) not in self.arrays:
            if len(self.arrays) > 8:  # a step size that decays is a new one in every round
                self.arrays.clear()
            self.arrays[id(values)] = values, np.asarray(values)
        return self.arrays[id(values)][1]

    def rows_of(self, members: Indices) -> Indices:
        """Where the rows of these members are."""
        return members if self.store is None else self.store.place[members]

    def _of(self, at: Indices) -> Any:
        if self.writes_down:
            memory = {k: Lazy.of(v, kept=True) for k, v in self.kept.items()}
            return memory if self.store is None else memory | {k: Lazy.of(v) for k, v in self.handed.items()}
        return super()._of(at)

    def _store(self, at: Indices, up: Any, memory: Any) -> tuple[Any, ...]:
        """Do what the half wrote down: what goes up into sums or buffers, what is remembered into its place."""
        shape = (len(at), self.problem.d)
        threads, blocks = self._threads_for(shape[0] * shape[1]), -(-shape[0] // SUM_BLOCK)
        weights = self.weights if blocks >= threads else ()  # a block is summed by one thread
        sheet, ready = Sheet(shape[1], at, weights), {}  # type: Sheet, dict[int, Any]
        for k, v in enumerate(up):
            if isinstance(v, Lazy):
                ready[k] = sheet.sum(v) if weights else self._buffer(k, shape)
                if not weights:
                    sheet.store(v, ready[k], kept=False)
        handed = {name: np.empty(shape) for name, v in memory.items() if isinstance(v, Lazy) and self._hands_on(name)}
        for name, v in memory.items():
            if isinstance(v, Lazy):
                sheet.store(v, handed[name] if name in handed else self.kept[name], kept=name not in handed)
        if sheet.lines:
            self._spread(sheet.work(), even(sheet.pieces, threads))
        if handed:
            self.handed |= handed
        for name, v in memory.items():
            if not isinstance(v, Lazy):
                self._take(at, name, v, shape)
        return tuple(ready[k] if k in ready else np.ascontiguousarray(as_stack(v, shape)) for k, v in enumerate(up))

    def _take(self, at: Indices, name: str, v: Array, shape: tuple[int, int]) -> None:
        if self._hands_on(name):
            self.handed[name] = as_stack(v, shape)
        elif self._is_whole(at) and v.shape == shape:
            # each has an array of its own, since they are written to
            own = v.flags.owndata and v.flags.carray and all(v is not u for u in self.kept.values())
            self.spare, self.kept[name] = self.kept[name], v if own else np.array(v, order="C")
        else:
            self.kept[name][at] = v

    def _buffer(self, k: int, shape: tuple[int, int]) -> Array:
        """A stack that is used again in every round: what goes up is read before the next exchange."""
        if k not in self.buffers or self.buffers[k].shape != shape:
            self.buffers[k] = np.empty(shape)
        return self.buffers[k]

    def _room(self, shape: tuple[int, int]) -> Array:
        """A stack to write to: a large one that is no longer needed, where there is one."""
        spare, self.spare = self.spare, None
        fits = spare is not None and spare.shape == shape and shape[0] * shape[1] >= LAZY
        return spare if fits and spare is not None else np.empty(shape)

    def compute(self, v: Lazy, out: Array, members: Indices) -> None:
        """One written-down stack at once."""
        sheet = Sheet(out.shape[1], self.rows_of(members))
        sheet.store(v, out, kept=False)
        self._share(sheet.work(), sheet.pieces, out.size)

    def sum(self, w: Array, U: Array) -> Array:
        """Block after block, the blocks spread over threads."""
        blocks = np.empty((-(-len(U) // SUM_BLOCK), U.shape[1]))
        w, U = np.ascontiguousarray(w), np.ascontiguousarray(U)
        self._share(lambda lo, hi: kernels.block_sums(lo, hi, w, U, SUM_BLOCK, blocks), len(blocks), U.size)
        return sum_in_order(blocks)

    def sums(self, rows: Sequence[Array], up: Sequence[Any]) -> tuple[Any, ...]:
        """Those that ``run`` has taken, and the others."""
        return tuple(s for U in up for s in (U.sums if isinstance(U, Summed) else (self.sum(w, U) for w in rows)))

    def close(self) -> None:
        """End the threads."""
        if self.pool is not None:
            self.pool.close()
            self.pool = None


def _code_of(half: Any) -> Any:
    """What stays the same where a method makes its half anew in every round."""
    while isinstance(half, partial):
        half = half.func
    return half.__code__ if isinstance(half, (FunctionType, MethodType)) else type(half)
