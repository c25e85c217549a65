"""The clients' data in the layouts of the kernels: ``Tiles`` for sparse gradients of most rows, else ``Rows``.

Each client is cut into *blocks* of rows. Its gradient is the sum of the blocks' gradients in order, whether one thread
computes them all (``descend``) or several share them (``spread``), so the bytes are the same. ``pack`` chooses the
layout.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import scipy

from proxskip.compiling import compiling
from proxskip.engines.cpu import kernels
from proxskip.engines.cpu.kernels import (
    ENTRIES_PER_TILE,
    NO_PICKS,
    ROWS_PER_TILE,
    Anchors,
    Draws,
    RowData,
    Steps,
    TileData,
    draw_rows,
    room_for,
    weigh_rows,
)  # fmt: skip
from proxskip.engines.sparse_rows import merged_rows, offsets, ranges
from proxskip.problems.federated import Problem
from proxskip.problems.glm import LinearModel, Softmax
from proxskip.problems.packed import Packed, stores_of
from proxskip.types import Array, Indices, is_sparse

RangeTask = Callable[[int, int], None]
MIN_ENTRIES_PER_COLUMN = 4.0
"""With fewer entries per column and client, scattering rows is faster than gathering columns."""
MAX_ROWS_PER_BLOCK = 1 << 14
"""Rows of a block of tiles: their slopes stay in the cache, and 16 bits number them."""
MIN_BATCH_SHARE = 0.4
"""The share of rows from which a minibatch is a full gradient whose other rows have weight zero."""
ENTRIES_PER_BLOCK = 1 << 20
"""About how many entries a block of ``Rows`` has; clients with several blocks may use several threads."""


@dataclass(frozen=True, slots=True)
class Census:
    """What a client's layout depends on beyond its own shard.

    The layout, the size of blocks and whether values are stored decide the order of a client's sums. Counted over all
    clients, they give the same bytes in one process and in several that each hold some clients.
    """

    kind: str | None
    """The common kind; None unless all clients are linear models of one kind."""
    clients: int
    rows: int
    entries: int
    unit: bool
    """Every stored value is one."""

    @staticmethod
    def of(problem: Problem) -> Census:
        """Counted over the problem's clients."""
        if not _are_alike(problem):
            return Census(None, problem.n, 0, 0, False)
        models = stores_of(problem.clients)
        first = models[0]
        sparse, C = is_sparse(first.A), isinstance(first, Softmax)
        entries = sum(f.A.nnz if sparse else np.count_nonzero(f.A) if C else f.A.size for f in models)
        common = hashlib.sha256(first.reg.tobytes()).hexdigest()
        unit = sparse and all(_all_ones(f.A.data) for f in models)
        return Census(
            f"{type(first).__name__} {first.dtype} {sparse} {common}",
            problem.n, sum(f.N for f in models), int(entries), unit,
        )  # fmt: skip

    @staticmethod
    def merged(parts: Sequence[Census]) -> Census:
        """The census of all clients, from those of parts."""
        kind = parts[0].kind if len({p.kind for p in parts}) == 1 else None
        clients, rows = sum(p.clients for p in parts), sum(p.rows for p in parts)
        return Census(kind, clients, rows, sum(p.entries for p in parts), all(p.unit for p in parts))


def pack(problem: Problem, census: Census | None = None, number0: int = 0) -> Tiles | Rows | None:
    """The layout for this problem, kept for its next run; None unless its clients are linear models of one kind.

    Args:
        census: of all clients, if the problem holds only some.
        number0: the number of its first client among all.
    """
    key, shards = problem.layout or (None, None)
    if key != (census, number0):
        shards = _packed(problem, census or Census.of(problem), number0)
        problem.__dict__["layout"] = (census, number0), shards
    return shards


def _packed(problem: Problem, census: Census, number0: int) -> Tiles | Rows | None:
    if census.kind is None:
        return None
    first: Any = problem.clients[0]
    most_rows = problem.batch is None or problem.batch * census.clients >= MIN_BATCH_SHARE * census.rows
    dense_columns = census.entries >= MIN_ENTRIES_PER_COLUMN * census.clients * problem.d
    # tiles would copy data on disk into memory
    tiled = is_sparse(first.A) and not isinstance(first, Softmax) and not _is_mapped(problem)
    kind = Tiles if tiled and most_rows and dense_columns else Rows
    shards = kind(problem, census, number0)
    with compiling(kernels.block_sums):
        shards.call_each_kernel()
    return shards


def _is_mapped(problem: Problem) -> bool:
    return isinstance(problem.clients, Packed) and problem.clients.mapped


def _all_ones(values: Any, at_once: int = 1 << 22) -> bool:
    """Whether all values are one, read in blocks because they may exceed the memory."""
    return all(bool(np.all(values[k : k + at_once] == 1.0)) for k in range(0, len(values), at_once))


def _are_alike(problem: Problem) -> bool:
    if isinstance(problem.clients, Packed):
        return problem.clients.has_even_rows()
    first = problem.clients[0]
    return isinstance(first, LinearModel) and all(_alike(f, first) for f in problem.clients)


def _alike(f: Any, first: LinearModel) -> bool:
    return (
        type(f) is type(first)
        and f.has_rows
        and f.dtype == first.dtype
        and np.array_equal(f.reg, first.reg)
        and np.ptp(f.s) == 0
        and is_sparse(f.A) == is_sparse(first.A)
    )


def with_pull(shards: Rows | Tiles, tau: float) -> Rows | Tiles:
    """The same shards with tau added to the l2 term, for steps with a pull to zero."""
    other = copy(shards)
    other.data = shards.data._replace(reg=(shards.data.reg + tau).astype(shards.dtype))
    return other


class Shards:
    """Base of both layouts: ``data`` for the kernels, minibatches, and ``work``, the cost of a step."""

    data: Any
    work: Array
    most_blocks: int
    _by_blocks: Any
    block_counts: Any
    descend: Any

    def __init__(self, problem: Problem, model: LinearModel, number0: int) -> None:
        sizes = problem.rows_each
        self.dtype, self.d, self.number0, self.batch = model.dtype, problem.d, number0, problem.batch or 0
        self.loss = kernels.LOGISTIC if model.loss == "logistic" else kernels.SQUARED
        self.reg = model.reg.astype(self.dtype)
        self.most_rows, self.place = int(sizes.max()), NO_PICKS
        self.row0 = offsets(sizes)

    def _drawing(self) -> tuple[Any, Any]:
        return room_for(self.batch, self.most_rows, self.place)

    def draws(self, seed: int, round: int, step0: int | Indices, members: int) -> Draws:
        """The keys of the members' minibatches; ``step0`` is one number, or one per member."""
        return Draws(self.batch, seed, round, self.number0, np.full(members, step0, np.int64))

    def call_each_kernel(self) -> None:
        """Call every kernel that a run may call, with arguments of the types of a run, so that all are compiled."""
        steps, draws = self._no_steps(), self.draws(0, 0, 0, 1)
        self.descend(steps, draws)(0, 1)
        if self.most_blocks > 1:
            one_step_of_length_zero = steps._replace(K=np.ones(1, np.int64))
            self.spread(one_step_of_length_zero, draws, lambda task, loads: task(0, 1))

    def _no_steps(self) -> Steps:
        point = np.zeros((1, self.d), self.dtype)
        return Steps(np.zeros(1, np.int64), point, point, point, np.zeros(1, self.dtype), np.zeros(1, np.int64))

    def spread(self, steps: Steps, draws: Draws, share: Callable[[RangeTask, Array], None]) -> None:
        """All steps from X into X, with the blocks of all members spread over threads; the sums of ``descend``.

        Args:
            share: calls a task for ranges of blocks with these loads.
        """
        X, K, counts = steps.X, steps.K, self.block_counts(steps.clients)
        owner, starts = np.repeat(np.arange(len(counts)), counts), offsets(counts)
        parts, total = np.empty((len(owner), self.d), self.dtype), np.empty(self.d, self.dtype)
        x = np.append(X, np.zeros((len(X), 1), self.dtype), axis=1)  # with the zero that tiles read
        loads, draw, add = self._by_blocks(steps._replace(X=x), draws, owner, starts, parts)
        factor = np.ones(len(X), self.dtype)
        for k in range(int(K.max())):
            for j in np.flatnonzero(k < K) if self.batch else ():
                factor[j] = draw(int(j), int(draws.step0[j]) + k)
            share(partial(add, k), loads)
            kernels.step_by_parts(k, starts, K, parts, factor, x, steps.gamma, self.data.reg, steps.H, total)
        X[:] = x[:, :-1]


class Rows(Shards):
    """The rows of all clients end to end, dense or CSR; client i has rows row0[i] to row0[i + 1] - 1."""

    def __init__(self, problem: Problem, census: Census, number0: int = 0) -> None:
        models = stores_of(problem.clients)
        first, sizes = models[0], problem.rows_each
        super().__init__(problem, first, number0)
        self.unit, self.mapped = census.unit, _is_mapped(problem)
        C = first.C if isinstance(first, Softmax) else 0
        self.b = joined([f.b for f in models]).astype(self.dtype, copy=False)
        kind = kernels.SOFTMAX if C else kernels.SPARSE if is_sparse(first.A) else kernels.DENSE
        # one kernel serves all kinds; the arrays of the others are empty
        dense = np.zeros((0, 0), self.dtype) if kind else joined([f.A for f in models])
        sparse = np.zeros(1, np.uint64), np.zeros(0, np.uint16), np.zeros(0, self.dtype)  # type: tuple[Any, Any, Any]
        if kind:
            sparse = self._sparse([scipy.sparse.csr_matrix(f.A) for f in models], kind)
        share = 1.0 / (np.full_like(sizes, self.batch) if self.batch else sizes)
        entries_per_row = max(1.0, float(census.entries) / max(1, census.rows))
        per_block = max(1, int(ENTRIES_PER_BLOCK / entries_per_row))
        self.data = RowData(kind, dense, *sparse, self.b, self.loss, C, self.row0, share, self.reg, per_block)
        # the cost of a step, to balance the threads
        entries = np.diff(sparse[0].astype(np.int64)[self.row0]) if kind else sizes * problem.d
        self.work = entries.astype(np.float64) * max(1, C) + 1.0
        self.most_blocks = int(self.block_counts(np.arange(problem.n)).max())

    def _sparse(self, matrices: list[Any], kind: int) -> tuple[Any, Any, Any]:
        indptr, indices, values = stacked(matrices)
        if self.batch and kind == kernels.SPARSE and not self.mapped:
            indptr, indices, values = self._by_length(indptr, indices, values)
        if kind == kernels.SPARSE and self.unit:  # values that are all one are not stored
            values = values[:0]
        columns = matrices[0].shape[1]
        narrow = indices.view(f"u{indices.itemsize}") if self.mapped else indices.astype(width(columns))
        return indptr.astype(np.uint64), narrow, values.astype(self.dtype, copy=False)

    def _by_length(self, indptr: Indices, indices: Any, values: Any) -> tuple[Indices, Any, Any]:
        """Sort each client's rows by length, so that branch prediction works for neighbouring rows."""
        length = np.diff(indptr)
        owner = np.repeat(np.arange(len(self.row0) - 1), np.diff(self.row0))
        order = np.lexsort((length, owner))
        self.place = np.empty(len(order), np.uint32)
        self.place[order] = np.arange(len(order)) - self.row0[owner]
        self.b = self.b[order]
        entry = ranges(indptr[order], length[order])
        return offsets(length[order]), indices[entry], values[entry]

    def descend(self, steps: Steps, draws: Draws) -> RangeTask:
        """``f(lo, hi)`` takes all steps of members lo to hi-1."""
        return lambda lo, hi: kernels.descend_rows(lo, hi, steps, self.data, draws, self._buffers())

    def call_each_kernel(self) -> None:
        super().call_each_kernel()
        if self.batch:
            steps = self._no_steps()
            anchors = Anchors(steps.X, steps.X, np.zeros(1), np.zeros(1, np.int64))
            self.descend_anchored(steps, anchors, self.draws(0, 0, 0, 1))(0, 1)

    def descend_anchored(self, steps: Steps, anchors: Anchors, draws: Draws) -> RangeTask:
        """The same with L-SVRG's gradients; X and the anchors are changed in place."""

        def work(lo: int, hi: int) -> None:
            g, part, picks, p, room = self._buffers()
            buffers = g, np.empty_like(g), part, picks, NO_PICKS, p, room
            kernels.descend_anchored(lo, hi, steps, anchors, self.data, draws, buffers)

        return work

    def _buffers(self) -> tuple[Any, ...]:
        g = np.empty((2, self.d), self.dtype)
        picks, room = self._drawing()
        return g[0], g[1], picks, np.empty(max(1, self.data.C)), room

    def _by_blocks(self, steps: Steps, draws: Draws, owner: Indices, starts: Indices, parts: Array) -> Any:
        """For ``spread``: the loads of the blocks, ``draw(j, number)`` for a minibatch, ``add(k, lo, hi)`` for sums."""
        cohort, X, K = steps.clients, steps.X, steps.K
        first, m = self.row0[cohort], np.diff(self.row0)[cohort]
        taken = np.full_like(m, self.batch) if self.batch else m
        one_minibatch, room = self._drawing()
        picks, factor = np.tile(one_minibatch, (len(cohort), 1)), self.data.share[cohort]

        def draw(j: int, number: int) -> float:
            who = self.number0 + int(cohort[j])
            draw_rows(draws.seed, who, draws.round, number, int(first[j]), int(m[j]), self.batch, picks[j], room)
            return 1.0

        def add(k: int, lo: int, hi: int) -> None:
            p = np.empty(max(1, self.data.C))
            kernels.sum_rows(lo, hi, k, owner, starts, K, X, taken, factor, picks, first, self.data, p, parts)

        return (taken / np.diff(starts))[owner], draw, add

    def block_counts(self, cohort: Indices) -> Indices:
        """The number of blocks of each member."""
        taken = np.full_like(cohort, self.batch) if self.batch else np.diff(self.row0)[cohort]
        counts: Indices = np.maximum(1, taken // self.data.per_block)
        return counts


class Tiles(Shards):
    """Sparse rows sorted by length in groups of eight, and columns in fours; equal rows merged, empty ones left out.

    How the rows of the data get to their slots, for two clients::

        rows of the data     a b c d e f g h i j k l | m n ...      owner[r] is the client of row r
                             |   merged_rows: c = a and h = f; e has no entries
        kept rows            a b d f g i j k l | m n ...            kept, ascending; row live[k] became kept[group[k]]
                             |   sorted by client, then by length
        tiled rows           d a k b j f i g l | n m ...            rows[q], which stands for count[q] rows
                             |   cut into blocks, blocks into groups of eight, the last filled up with blanks
        slots                d a k b j f i g   l . . . . . . . | n m . . .
                             '--- group 0 --'  '--- group 1 --'  '- group 2

    ``blocks[i]`` is the first block of client i, ``groups[u]`` the first group of block u. A *slot* is a place in
    the last line, and ``b`` and ``scale`` are in this order; ``place`` is a row's number in its block. Every matrix
    entry is stored twice: by slots for the margins, by columns for the gradient.
    """

    def __init__(self, problem: Problem, census: Census | None = None, number0: int = 0) -> None:
        models = stores_of(problem.clients)
        first, n, sizes = models[0], problem.n, problem.rows_each
        super().__init__(problem, first, number0)
        matrix = indptr, indices, values = stacked([f.A for f in models])
        b, owner, length = joined([f.b for f in models]), np.repeat(np.arange(n), sizes), np.diff(indptr)
        unit = bool(np.all(values == 1.0)) if census is None else census.unit
        # drop empty rows, and merge equal rows with their weights added
        kept, live, group = merged_rows(indptr, indices, values, owner, b)
        # by client, then by length: rows of a group are about equally long and need little padding
        order = np.lexsort((length[kept], owner[kept]))
        rows, count = kept[order], np.bincount(group, minlength=len(kept))[order]
        client, of_client = owner[rows], np.bincount(owner[rows], minlength=n)
        self.blocks = offsets(np.maximum(1, -(-of_client // MAX_ROWS_PER_BLOCK)))
        self.most_blocks = int(np.diff(self.blocks).max())
        number = np.arange(len(rows)) - np.repeat(offsets(of_client)[:-1], of_client)  # among those of its client
        block, place = self.blocks[client] + number // MAX_ROWS_PER_BLOCK, number % MAX_ROWS_PER_BLOCK
        of_block = np.bincount(block, minlength=int(self.blocks[-1]))
        self.groups = offsets(-(-of_block // ROWS_PER_TILE))
        slot = ROWS_PER_TILE * self.groups[block] + place
        # empty slots have weight zero
        labels, scale = np.ones((2, ROWS_PER_TILE * self.groups[-1]), self.dtype)
        scale[:] = 0.0
        labels[slot], scale[slot] = b[rows], count / sizes[client]
        tiles = self._tiles(rows, slot, block, place, length[rows], matrix, unit)
        # the largest |a_r|^2, a bound on the margins: see ``kernels.block_tiles``
        squares = length if unit else np.add.reduceat(values**2, indptr[live]) if len(live) else np.zeros(1)
        longest = float(squares.max())
        by_slot: tuple[Any, ...] = labels, scale, self.loss, longest, self.reg
        self.data = TileData(self.blocks, self.groups, *tiles, *by_slot)
        self.room = int(np.diff(self.groups).max()) * ROWS_PER_TILE + 1
        self.work = np.asarray(np.bincount(client, weights=length[rows], minlength=n) + 1.0, dtype=np.float64)
        self.most = int(np.diff(ROWS_PER_TILE * self.groups[self.blocks]).max())
        self.tiled: tuple[Any, ...] = self.row0, NO_PICKS, np.zeros(0, self.dtype)  # for ``kernels.weigh_rows``
        if self.batch:
            standing = np.zeros(len(labels), self.dtype)
            standing[slot] = count
            self.tiled = self.row0, self._places(slot[np.argsort(order)][group], live), standing

    def _tiles(
        self, rows: Indices, slot: Indices, block: Indices, place: Indices, length: Indices, matrix: Any, unit: bool
    ) -> tuple[Any, ...]:
        """Both tilings: (first line of each group, or of each column of each block; indices; values), a line per tile.

        Padding of a row has index d, padding of a column the row after the block's last; x and z are zero there. Values
        that are all one are not stored.
        """
        indptr, indices, values = matrix
        longest = np.zeros(int(self.groups[-1]), np.int64)
        np.maximum.at(longest, slot // ROWS_PER_TILE, length)
        columns = np.repeat(block * self.d, length) + indices[ranges(indptr[rows], length)]
        entries = np.bincount(columns, minlength=int(self.blocks[-1]) * self.d)
        row_start, column_start = offsets(longest), offsets(-(-entries // ENTRIES_PER_TILE))
        blank = ROWS_PER_TILE * np.diff(self.groups)
        by_row = np.full((row_start[-1], ROWS_PER_TILE), self.d, width(self.d))
        by_column = np.empty((column_start[-1], ENTRIES_PER_TILE), width(int(blank.max())))
        by_column[:] = np.repeat(np.repeat(blank, self.d), np.diff(column_start))[:, None]
        stored = [np.zeros((0 if unit else len(u), u.shape[1]), self.dtype) for u in (by_row, by_column)]
        where = place, indptr, indices, values, self.d, row_start, (by_row, stored[0])
        tilings = *where, ENTRIES_PER_TILE * column_start[:-1], (by_column, stored[1])
        with compiling(kernels.fill_tiles):
            kernels.fill_tiles(rows[:0], slot, block, *tilings)
        kernels.fill_tiles(rows, slot, block, *tilings)
        return row_start.astype(np.uint64), by_row, stored[0], column_start.astype(np.uint64), by_column, stored[1]

    def _places(self, slot: Indices, live: Indices) -> Any:
        """The slot of each row within its client; for empty rows one past the last, which is unused."""
        first = ROWS_PER_TILE * self.groups[self.blocks]
        client = np.searchsorted(self.row0, live, side="right") - 1
        place = np.full(int(self.row0[-1]), self.most, np.uint32)
        place[live] = slot - first[client]
        return place

    def descend(self, steps: Steps, draws: Draws) -> RangeTask:
        return lambda lo, hi: kernels.descend_tiles(
            lo, hi, steps, self.data, draws, self.tiled, self._buffers(), self._drawn()
        )

    def _drawn(self) -> tuple[Any, ...]:
        """Buffers for a minibatch: the weights of its rows, and those for drawing."""
        room = np.empty(self.most + 1 if self.batch else 0, self.dtype)
        return room, *self._drawing()

    def _buffers(self) -> tuple[Any, ...]:
        # ``power`` is ``bits`` read as doubles: see ``kernels.slopes``
        bits, g = np.zeros(self.room, np.int64), np.empty((2, self.d), self.dtype)
        x, z = np.empty(self.d + 1, self.dtype), np.empty(self.room, self.dtype)
        return x, z, g[0], g[1], bits, bits.view(np.float64)

    def _by_blocks(self, steps: Steps, draws: Draws, owner: Indices, starts: Indices, parts: Array) -> Any:
        cohort, X, K, first = steps.clients, steps.X, steps.K, self.groups[self.blocks]
        block = ranges(self.blocks[cohort], np.diff(starts))
        weights, picks, room = self._drawn()
        # a minibatch's weights are one client's, from its first group on
        own = np.empty((len(cohort) if self.batch else 0, len(weights)), self.dtype)
        at = first[cohort] if self.batch else np.zeros_like(cohort)

        def draw(j: int, number: int) -> Any:
            lo, hi = (ROWS_PER_TILE * first[cohort[j] : cohort[j] + 2]).tolist()
            return weigh_rows(int(cohort[j]), number, lo, hi, self.tiled, draws, own[j], picks, room)

        def add(k: int, lo: int, hi: int) -> None:
            kernels.sum_tiles(lo, hi, k, owner, block, at, K, X, self.data, own, self._buffers(), parts)

        return np.diff(self.data.row_start[self.groups].astype(np.float64))[block], draw, add

    def block_counts(self, cohort: Indices) -> Indices:
        return np.diff(self.blocks)[cohort]


def stacked(matrices: list[Any]) -> tuple[Indices, Any, Any]:
    """The CSR arrays of all rows end to end."""
    indptr = offsets(np.concatenate([np.diff(M.indptr) for M in matrices]))
    return indptr, joined([M.indices for M in matrices]), joined([M.data for M in matrices])


def joined(arrays: list[Any]) -> Any:
    """The arrays end to end; a single one is not copied."""
    return np.ascontiguousarray(arrays[0]) if len(arrays) == 1 else np.concatenate(arrays)


def width(largest: int) -> Any:
    """The narrowest unsigned type for indices up to ``largest``: reading them limits the kernels' speed."""
    return np.uint16 if largest < 2**16 else np.uint32
