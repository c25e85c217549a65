"""The clients' data in the layouts of the kernels: ``Tiles`` for sparse gradients of most rows, else ``Rows``.

Each client is cut into *blocks* of rows. Its gradient is the sum of the blocks' gradients in order, whether one thread
computes them all (``descend``) or several share them (``spread``), so the bytes are the same. ``pack`` chooses the
layout.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from copy import copy
from functools import partial
from typing import NamedTuple, TypeAlias
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt
import scipy

from proxskip.engines.cpu import kernels
from proxskip.engines.cpu.kernels import (
    ENTRIES_PER_TILE,
    NO_PICKS,
    ROWS_PER_TILE,
    Anchors,
    Drawing,
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
from proxskip.problems.glm import Softmax
from proxskip.problems.linear_model import LinearModel
from proxskip.problems.packed import Packed
from proxskip.support.compiling import compiling
from proxskip.types import AnyArray, Array, Indices, Matrix, is_sparse

RangeTask: TypeAlias = Callable[[int, int], None]
"""``f(lo, hi)`` works on members, blocks or rows lo to hi - 1."""
BlockTasks: TypeAlias = tuple[Array, Callable[[int, int], float], Callable[[int, int, int], None]]
"""The loads of blocks, what draws a member's minibatch, and what sums the gradients of a range of blocks."""
MIN_ENTRIES_PER_COLUMN = 4.0
"""With fewer entries per column and client, scattering rows is faster than gathering columns."""
MAX_ROWS_PER_BLOCK = 1 << 14
"""Rows of a block of tiles: their slopes stay in the cache, and 16 bits number them."""
MIN_BATCH_SHARE = 0.4
"""The share of rows from which a minibatch is a full gradient whose other rows have weight zero."""
LOSSES = {"logistic": kernels.LOGISTIC, "squared": kernels.SQUARED, "softmax": kernels.SOFTMAX}
"""The losses that the kernels know."""
ENTRIES_PER_BLOCK = 1 << 20
"""About how many entries a block of ``Rows`` has; clients with several blocks may use several threads."""

Tilings: TypeAlias = tuple[AnyArray, AnyArray, AnyArray, AnyArray, AnyArray, AnyArray]
"""By row, and then by column: where each group or column begins, its indices, its values."""

_packed_before: WeakKeyDictionary[Problem, tuple[int, Tiles | Rows | None]] = WeakKeyDictionary()
"""The layouts of problems that are still in use, with the number of the first client."""


def pack(problem: Problem, number0: int = 0) -> Tiles | Rows | None:
    """The layout for this problem, kept for its next run; None unless its clients are linear models of one kind.

    Args:
        number0: the number of its first client, where the problem is a part of one with more clients.
    """
    if problem not in _packed_before or _packed_before[problem][0] != number0:
        clients = problem.clients
        has_kernel = isinstance(clients, Packed) and clients.store.has_kernels and clients.has_even_rows()
        _packed_before[problem] = number0, _packed(problem, number0) if has_kernel else None
    return _packed_before[problem][1]


def _packed(problem: Problem, number0: int) -> Tiles | Rows:
    store = store_of(problem)
    rows = int(problem.rows_each.sum())
    most_rows = problem.batch is None or problem.batch * problem.n >= MIN_BATCH_SHARE * rows
    dense_columns = entries_of(problem) >= MIN_ENTRIES_PER_COLUMN * problem.n * problem.d
    # tiles would copy data on disk into memory
    tiled = is_sparse(store.A) and not isinstance(store, Softmax) and not _is_mapped(problem)
    kind = Tiles if tiled and most_rows and dense_columns else Rows
    shards = kind(problem, number0)
    with compiling(kernels.block_sums):
        shards.call_each_kernel()
    return shards


def entries_of(problem: Problem) -> int:
    """Entries that a pass over the data reads."""
    store = store_of(problem)
    if isinstance(store, Softmax) and not is_sparse(store.A):  # read as sparse rows
        return int(np.count_nonzero(store.A))
    return int(store.A.size)  # of a sparse matrix, the entries that it stores


def _is_mapped(problem: Problem) -> bool:
    return isinstance(problem.clients, Packed) and problem.clients.mapped


def store_of(problem: Problem) -> LinearModel:
    """The linear model that holds the rows of all clients, which are packed."""
    assert isinstance(problem.clients, Packed)
    return problem.clients.store


def all_ones(values: AnyArray, at_once: int = 1 << 22) -> bool:
    """Whether all values are one, read in blocks because they may exceed the memory."""
    return all(bool(np.all(values[k : k + at_once] == 1.0)) for k in range(0, len(values), at_once))


def writable(v: AnyArray, dtype: npt.DTypeLike) -> AnyArray:
    """v, or a copy, as the C array that kernels take: for one that is read-only numba would compile again."""
    return v if v.dtype == dtype and v.flags.carray else np.array(v, dtype, order="C")


def with_pull(shards: Rows | Tiles, tau: float) -> Rows | Tiles:
    """The same shards with tau added to the l2 term, for steps with a pull to zero."""
    other = copy(shards)
    other.data = shards.data._replace(reg=(shards.data.reg + tau).astype(shards.dtype))
    return other


class Shards(ABC):
    """Base of both layouts: ``data`` for the kernels, minibatches, and ``work``, the cost of a step."""

    data: RowData | TileData
    work: Array
    most_blocks: int

    def __init__(self, problem: Problem, model: LinearModel, number0: int) -> None:
        sizes = problem.rows_each
        self.dtype = model.dtype
        self.d = problem.d
        self.number0 = number0
        self.batch = problem.batch or 0
        self.loss = LOSSES[model.loss]
        self.reg = model.reg.astype(self.dtype)
        self.most_rows, self.place = int(sizes.max()), NO_PICKS
        self.row0 = offsets(sizes)

    @abstractmethod
    def descend(self, lo: int, hi: int, steps: Steps, draws: Draws) -> None:
        """Take all steps of the members lo to hi - 1."""

    @abstractmethod
    def block_counts(self, cohort: Indices) -> Indices:
        """The number of blocks of each member."""

    @abstractmethod
    def _by_blocks(self, steps: Steps, draws: Draws, owner: Indices, starts: Indices, parts: Array) -> BlockTasks:
        """For ``spread``: the loads of the blocks, ``draw(j, number)`` for a minibatch, ``add(k, lo, hi)`` for sums."""

    def _drawing(self) -> Drawing:
        return room_for(self.batch, self.most_rows, self.place)

    def draws(self, seed: int, round: int, step0: int | Indices, members: int) -> Draws:
        """The keys of the members' minibatches; ``step0`` is one number, or one per member."""
        return Draws(self.batch, seed, round, self.number0, np.full(members, step0, np.int64))

    def call_each_kernel(self) -> None:
        """Call every kernel that a run may call, with arguments of the types of a run, so that all are compiled."""
        steps, draws = self._no_steps(), self.draws(0, 0, 0, 1)
        self.descend(0, 1, steps, draws)
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
        X = steps.X
        K = steps.K
        counts = self.block_counts(steps.clients)
        owner, starts = np.repeat(np.arange(len(counts)), counts), offsets(counts)
        parts, total = np.empty((len(owner), self.d), self.dtype), np.empty(self.d, self.dtype)
        x = np.append(X, np.zeros((len(X), 1), self.dtype), axis=1)  # with the zero that tiles read
        loads, draw, add = self._by_blocks(steps._replace(X=x), draws, owner, starts, parts)
        factor = np.ones(len(X), self.dtype)
        for k in range(int(K.max())):
            for j in np.flatnonzero(k < K) if self.batch else ():
                factor[j] = draw(int(j), int(draws.step0[j]) + k)
            share(partial(add, k), loads)
            kernels.step_by_parts(k, starts, parts, factor, x, steps, self.data.reg, total)
        X[:] = x[:, :-1]


def _kind_of_rows(store: LinearModel) -> int:
    if isinstance(store, Softmax):
        return kernels.SOFTMAX
    return kernels.SPARSE if is_sparse(store.A) else kernels.DENSE


class Rows(Shards):
    """The rows of all clients end to end, dense or CSR; client i has rows row0[i] to row0[i + 1] - 1."""

    data: RowData

    def __init__(self, problem: Problem, number0: int = 0) -> None:
        store, sizes = store_of(problem), problem.rows_each
        super().__init__(problem, store, number0)
        self.mapped = _is_mapped(problem)
        C = store.C if isinstance(store, Softmax) else 0
        self.b = np.asarray(store.b, dtype=self.dtype)
        kind = _kind_of_rows(store)
        # one kernel serves all kinds; the arrays of the others are empty
        dense = np.zeros((0, 0), self.dtype)
        sparse = np.zeros(1, np.uint64), np.zeros(0, np.uint16), np.zeros(0, self.dtype)  # type: tuple[AnyArray, AnyArray, AnyArray]
        if kind == kernels.DENSE:
            dense = np.ascontiguousarray(store.A)
        else:
            sparse = self._sparse(scipy.sparse.csr_matrix(store.A), kind)
        share = 1.0 / (np.full_like(sizes, self.batch) if self.batch else sizes)
        entries_per_row = max(1.0, entries_of(problem) / max(1, int(sizes.sum())))
        per_block = max(1, int(ENTRIES_PER_BLOCK / entries_per_row))
        self.data = RowData(kind, dense, *sparse, self.b, self.loss, C, self.row0, share, self.reg, per_block)
        # the cost of a step, to balance the threads
        entries = np.diff(sparse[0].astype(np.int64)[self.row0]) if kind else sizes * problem.d
        self.work = entries.astype(np.float64) * max(1, C) + 1.0
        self.most_blocks = int(self.block_counts(np.arange(problem.n)).max())

    def _sparse(self, A: Matrix, kind: int) -> tuple[AnyArray, AnyArray, AnyArray]:
        indptr = A.indptr.astype(np.int64)
        indices = A.indices
        values = A.data
        if self.batch and kind == kernels.SPARSE and not self.mapped:
            indptr, indices, values = self._by_length(indptr, indices, values)
        if kind == kernels.SPARSE and all_ones(values):  # they are not stored
            values = values[:0]
        narrow = indices.view(f"u{indices.itemsize}") if self.mapped else indices.astype(width(A.shape[1]))
        return indptr.astype(np.uint64), narrow, values.astype(self.dtype, copy=False)

    def _by_length(self, indptr: Indices, indices: AnyArray, values: AnyArray) -> tuple[Indices, AnyArray, AnyArray]:
        """Sort each client's rows by length, so that branch prediction works for neighbouring rows."""
        length = np.diff(indptr)
        owner = np.repeat(np.arange(len(self.row0) - 1), np.diff(self.row0))
        order = np.lexsort((length, owner))
        self.place = np.empty(len(order), np.uint32)
        self.place[order] = np.arange(len(order)) - self.row0[owner]
        self.b = self.b[order]
        entry = ranges(indptr[order], length[order])
        return offsets(length[order]), indices[entry], values[entry]

    def descend(self, lo: int, hi: int, steps: Steps, draws: Draws) -> None:
        kernels.descend_rows(lo, hi, steps, self.data, draws, self._buffers())

    def call_each_kernel(self) -> None:
        super().call_each_kernel()
        if self.batch:
            steps = self._no_steps()
            anchors = Anchors(steps.X, steps.X, np.zeros(1), np.zeros(1, np.int64))
            self.descend_anchored(0, 1, steps, self.draws(0, 0, 0, 1), anchors)

    def descend_anchored(self, lo: int, hi: int, steps: Steps, draws: Draws, anchors: Anchors) -> None:
        """The same with L-SVRG's gradients; X and the anchors are changed in place."""
        g, part, picks, p, room = self._buffers()
        buffers = g, np.empty_like(g), part, picks, NO_PICKS, p, room
        kernels.descend_anchored(lo, hi, steps, anchors, self.data, draws, buffers)

    def _buffers(self) -> tuple[AnyArray, AnyArray, AnyArray, Array, tuple[AnyArray, AnyArray]]:
        g = np.empty((2, self.d), self.dtype)
        picks, room = self._drawing()
        return g[0], g[1], picks, np.empty(max(1, self.data.C)), room

    def _by_blocks(self, steps: Steps, draws: Draws, owner: Indices, starts: Indices, parts: Array) -> BlockTasks:
        cohort = steps.clients
        X = steps.X
        K = steps.K
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
        taken = np.full_like(cohort, self.batch) if self.batch else np.diff(self.row0)[cohort]
        counts: Indices = np.maximum(1, taken // self.data.per_block)
        return counts


class DataRows(NamedTuple):
    """The rows of all clients end to end, as the data have them."""

    indptr: Indices
    indices: AnyArray
    values: AnyArray
    b: AnyArray
    owner: Indices
    """The client of each row."""
    length: Indices


class KeptRows(NamedTuple):
    """The rows that are left when empty ones are dropped and equal ones merged."""

    rows: Indices
    """Their numbers in the data, ascending."""
    live: Indices
    """The rows of the data that are not empty."""
    group: Indices
    """Row live[k] of the data became kept row group[k]."""


class TiledRows(NamedTuple):
    """The kept rows, sorted by client and then by length."""

    order: Indices
    """The number of each among the kept rows."""
    rows: Indices
    """Its number in the data."""
    client: Indices
    stands_for: Indices
    """How many rows of the data became this one."""


class Slots(NamedTuple):
    """The blocks and groups, and where each tiled row is."""

    blocks: Indices
    """The first block of each client, and the end of the last."""
    groups: Indices
    """The first group of each block, and the end of the last."""
    block: Indices
    """The block of each tiled row."""
    place: Indices
    """Its number in the block."""
    slot: Indices

    @property
    def number(self) -> int:
        """All slots, the empty ones included."""
        return ROWS_PER_TILE * int(self.groups[-1])


def rows_of_the_data(store: LinearModel, sizes: Indices) -> DataRows:
    """The first line of the picture in ``Tiles``."""
    indptr = store.A.indptr.astype(np.int64)
    owner = np.repeat(np.arange(len(sizes)), sizes)
    return DataRows(indptr, store.A.indices, store.A.data, store.b, owner, np.diff(indptr))


def kept_rows(data: DataRows) -> KeptRows:
    """The second line."""
    return KeptRows(*merged_rows(data.indptr, data.indices, data.values, data.owner, data.b))


def tiled_rows(data: DataRows, kept: KeptRows) -> TiledRows:
    """The third line: rows of a group are about equally long, and need little padding."""
    order = np.lexsort((data.length[kept.rows], data.owner[kept.rows]))
    rows = kept.rows[order]
    stands_for = np.bincount(kept.group, minlength=len(kept.rows))[order]
    return TiledRows(order, rows, data.owner[rows], stands_for)


def slots_of(tiled: TiledRows, clients: int) -> Slots:
    """The last line."""
    rows_of_client = np.bincount(tiled.client, minlength=clients)
    first_of_client = offsets(rows_of_client)[:-1]
    number_in_client = np.arange(len(tiled.rows)) - first_of_client[tiled.client]
    blocks = offsets(np.maximum(1, -(-rows_of_client // MAX_ROWS_PER_BLOCK)))
    block = blocks[tiled.client] + number_in_client // MAX_ROWS_PER_BLOCK
    place = number_in_client % MAX_ROWS_PER_BLOCK
    rows_of_block = np.bincount(block, minlength=int(blocks[-1]))
    groups = offsets(-(-rows_of_block // ROWS_PER_TILE))
    return Slots(blocks, groups, block, place, ROWS_PER_TILE * groups[block] + place)


def largest_square(data: DataRows, kept: KeptRows, unit: bool) -> float:
    """The largest |a_r|^2, a bound on the margins: see ``kernels.block_tiles``."""
    if unit:
        return float(data.length.max())
    if not len(kept.live):
        return 0.0
    return float(np.add.reduceat(data.values**2, data.indptr[kept.live]).max())


class Tiles(Shards):
    """Sparse rows sorted by length in groups of eight, and columns in fours; equal rows merged, empty ones left out.

    How the rows of the data get to their slots, for two clients::

        rows of the data     a b c d e f g h i j k l | m n ...
                             |   merged_rows: c = a and h = f; e has no entries
        kept rows            a b d f g i j k l | m n ...
                             |   sorted by client, then by length
        tiled rows           d a k b j f i g l | n m ...
                             |   cut into blocks, blocks into groups of eight, the last filled up with blanks
        slots                d a k b j f i g   l . . . . . . . | n m . . .
                             '--- group 0 --'  '--- group 1 --'  '- group 2

    A function named after each line makes it from the one before. A *slot* is a place in the last line, and ``b`` and
    ``scale`` of ``kernels.TileData`` are in this order. Every matrix entry is stored twice: by slots for the margins,
    by columns for the gradient.
    """

    data: TileData

    def __init__(self, problem: Problem, number0: int = 0) -> None:
        store = store_of(problem)
        n = problem.n
        sizes = problem.rows_each
        super().__init__(problem, store, number0)
        data = rows_of_the_data(store, sizes)
        kept = kept_rows(data)
        tiled = tiled_rows(data, kept)
        slots = slots_of(tiled, n)
        unit = all_ones(data.values)
        # an empty slot has a label like any other, and weight zero
        labels, scale = np.ones(slots.number, self.dtype), np.zeros(slots.number, self.dtype)
        labels[slots.slot] = data.b[tiled.rows]
        scale[slots.slot] = tiled.stands_for / sizes[tiled.client]
        self.blocks, self.groups = slots.blocks, slots.groups
        tilings = self._by_row_and_by_column(data, tiled, slots, unit)
        longest = largest_square(data, kept, unit)
        self.data = TileData(self.blocks, self.groups, *tilings, labels, scale, self.loss, longest, self.reg)
        self.most_blocks = int(np.diff(self.blocks).max())
        self.most_slots = int(np.diff(ROWS_PER_TILE * self.groups[self.blocks]).max())
        self.room = int(np.diff(self.groups).max()) * ROWS_PER_TILE + 1
        entries = np.bincount(tiled.client, weights=data.length[tiled.rows], minlength=n)
        self.work = np.asarray(entries + 1.0, dtype=np.float64)
        # for ``kernels.weigh_rows``
        self.tiled: tuple[Indices, AnyArray, AnyArray] = self.row0, NO_PICKS, np.zeros(0, self.dtype)
        if self.batch:
            standing_for = np.zeros(slots.number, self.dtype)
            standing_for[slots.slot] = tiled.stands_for
            self.tiled = self.row0, self._slot_of_each_row(kept, tiled, slots), standing_for

    def _by_row_and_by_column(self, data: DataRows, tiled: TiledRows, slots: Slots, unit: bool) -> Tilings:
        """Both tilings: (first line of each group, or of each column of each block; indices; values), a line per tile.

        Padding of a row has index d, padding of a column the row after the block's last; x and z are zero there. Values
        that are all one are not stored.
        """
        rows, d = tiled.rows, self.d
        length = data.length[rows]
        longest_of_group = np.zeros(int(slots.groups[-1]), np.int64)
        np.maximum.at(longest_of_group, slots.slot // ROWS_PER_TILE, length)
        row_start = offsets(longest_of_group)
        column_of_block = np.repeat(slots.block * d, length) + data.indices[ranges(data.indptr[rows], length)]
        entries = np.bincount(column_of_block, minlength=int(slots.blocks[-1]) * d)
        column_start = offsets(-(-entries // ENTRIES_PER_TILE))
        after_the_last = ROWS_PER_TILE * np.diff(slots.groups)
        by_row = np.full((row_start[-1], ROWS_PER_TILE), d, width(d))
        by_column = np.empty((column_start[-1], ENTRIES_PER_TILE), width(int(after_the_last.max())))
        by_column[:] = np.repeat(np.repeat(after_the_last, d), np.diff(column_start))[:, None]
        values_by_row = np.zeros((0 if unit else len(by_row), ROWS_PER_TILE), self.dtype)
        values_by_column = np.zeros((0 if unit else len(by_column), ENTRIES_PER_TILE), self.dtype)
        matrix = data.indptr, data.indices, data.values
        next_entry = ENTRIES_PER_TILE * column_start[:-1]
        arguments = (
            slots.slot, slots.block, slots.place, *matrix, d, row_start, (by_row, values_by_row), next_entry,
            (by_column, values_by_column),
        )  # fmt: skip
        with compiling(kernels.fill_tiles):
            kernels.fill_tiles(rows[:0], *arguments)
        kernels.fill_tiles(rows, *arguments)
        starts = row_start.astype(np.uint64), column_start.astype(np.uint64)
        return starts[0], by_row, values_by_row, starts[1], by_column, values_by_column

    def _slot_of_each_row(self, kept: KeptRows, tiled: TiledRows, slots: Slots) -> AnyArray:
        """The slot of each row of the data within its client; for empty rows one past the last, which is unused."""
        slot_of_kept = np.empty(len(kept.rows), np.int64)
        slot_of_kept[tiled.order] = slots.slot
        slot = np.full(int(self.row0[-1]), self.most_slots, np.uint32)
        client = np.searchsorted(self.row0, kept.live, side="right") - 1
        first_of_client = ROWS_PER_TILE * self.groups[self.blocks]
        slot[kept.live] = slot_of_kept[kept.group] - first_of_client[client]
        return slot

    def descend(self, lo: int, hi: int, steps: Steps, draws: Draws) -> None:
        kernels.descend_tiles(lo, hi, steps, self.data, draws, self.tiled, self._buffers(), self._drawn())

    def _drawn(self) -> tuple[AnyArray, AnyArray, tuple[AnyArray, AnyArray]]:
        """Buffers for a minibatch: the weights of its rows, and those for drawing."""
        room = np.empty(self.most_slots + 1 if self.batch else 0, self.dtype)
        return room, *self._drawing()

    def _buffers(self) -> tuple[AnyArray, ...]:
        # ``power`` is ``bits`` read as doubles: see ``kernels.slopes``
        bits, g = np.zeros(self.room, np.int64), np.empty((2, self.d), self.dtype)
        x, z = np.empty(self.d + 1, self.dtype), np.empty(self.room, self.dtype)
        return x, z, g[0], g[1], bits, bits.view(np.float64)

    def _by_blocks(self, steps: Steps, draws: Draws, owner: Indices, starts: Indices, parts: Array) -> BlockTasks:
        cohort = steps.clients
        X = steps.X
        K = steps.K
        first = self.groups[self.blocks]
        block = ranges(self.blocks[cohort], np.diff(starts))
        weights, picks, room = self._drawn()
        # a minibatch's weights are one client's, from its first group on
        own = np.empty((len(cohort) if self.batch else 0, len(weights)), self.dtype)
        at = first[cohort] if self.batch else np.zeros_like(cohort)

        def draw(j: int, number: int) -> float:
            lo, hi = (ROWS_PER_TILE * first[cohort[j] : cohort[j] + 2]).tolist()
            return float(weigh_rows(int(cohort[j]), number, lo, hi, self.tiled, draws, own[j], picks, room))

        def add(k: int, lo: int, hi: int) -> None:
            kernels.sum_tiles(lo, hi, k, owner, block, at, K, X, self.data, own, self._buffers(), parts)

        return np.diff(self.data.row_start[self.groups].astype(np.float64))[block], draw, add

    def block_counts(self, cohort: Indices) -> Indices:
        return np.diff(self.blocks)[cohort]


def width(largest: int) -> npt.DTypeLike:
    """The narrowest unsigned type for indices up to ``largest``: reading them limits the kernels' speed."""
    return np.uint16 if largest < 2**16 else np.uint32
