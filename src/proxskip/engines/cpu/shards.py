"""The clients' data in the layouts that the kernels read: ``Tiles`` for sparse gradients of most rows, else ``Rows``.

Each client is cut into *blocks* of rows. Its gradient is the sum of the blocks' gradients in their order, whether one
thread computes them all (``descend``) or several threads share them (``spread``), so that the bytes are the same.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import scipy

from proxskip.engines.cpu import anchored, kernels
from proxskip.engines.cpu.drawing import Drawing
from proxskip.engines.cpu.kernels import NO_PICKS
from proxskip.engines.cpu.minibatches import draw_rows, weigh_rows
from proxskip.engines.cpu.tiles import ROWS_PER_TILE, row_tiles, width
from proxskip.engines.rows import merged_rows, ranges
from proxskip.problems.federated import Problem
from proxskip.problems.glm import LinearModel
from proxskip.problems.packed import Packed, stores_of
from proxskip.problems.softmax import Softmax
from proxskip.types import Array, Indices, is_sparse

RangeTask = Callable[[int, int], None]
ENTRIES_PER_TILE = 4
"""The kernels take the entries of a column four at a time, and rows eight at a time (``ROWS_PER_TILE``)."""
MIN_ENTRIES_PER_COLUMN = 4.0
"""With fewer entries per column and client, gathering columns costs more than scattering rows."""
MAX_ROWS_PER_BLOCK = 1 << 14
"""Rows of a block of tiles: their slopes stay in a core's cache, and 16 bits are enough to number them."""
MIN_BATCH_SHARE = 0.4
"""The share of a client's rows from which a minibatch is a full gradient whose other rows have weight zero."""
ENTRIES_PER_BLOCK = 1 << 20
"""Stored entries of a block of ``Rows``, about: a client of at least two blocks may be spread over threads."""


@dataclass(frozen=True, slots=True)
class Census:
    """What a client's layout depends on beyond its own shard; with it, a part of the clients is packed as in the whole.

    The choice of layout, the size of blocks and whether values are stored decide the order of a client's sums. Taken
    over all clients they are the same, to the byte, for one process and for several that each hold a few clients.
    """

    kind: str | None
    """What all clients have in common; None unless they are linear models of one kind."""
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
        """The census of all clients, from those of the parts."""
        kind = parts[0].kind if len({p.kind for p in parts}) == 1 else None
        clients, rows = sum(p.clients for p in parts), sum(p.rows for p in parts)
        return Census(kind, clients, rows, sum(p.entries for p in parts), all(p.unit for p in parts))


def pack(problem: Problem, census: Census | None = None, number0: int = 0) -> Tiles | Rows | None:
    """The layout that suits the problem; None unless its clients are linear models of one kind.

    Args:
        census: of all clients, where the problem holds only some of them.
        number0: the number of its first client among all.
    """
    census = census or Census.of(problem)
    if census.kind is None:
        return None
    first: Any = problem.clients[0]
    if _is_mapped(problem):  # tiles would be a second copy of the data, in memory
        return Rows(problem, census, number0)
    most_rows = problem.batch is None or problem.batch * census.clients >= MIN_BATCH_SHARE * census.rows
    if most_rows and is_sparse(first.A) and not isinstance(first, Softmax):  # noqa: SIM102
        if census.entries >= MIN_ENTRIES_PER_COLUMN * census.clients * problem.d:
            return Tiles(problem, census, number0)
    return Rows(problem, census, number0)


def _is_mapped(problem: Problem) -> bool:
    return isinstance(problem.clients, Packed) and problem.clients.mapped


def _all_ones(values: Any, at_once: int = 1 << 22) -> bool:
    """Whether all values are one, looking at some at a time: they may be more than fits into memory."""
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
    """The same shards with tau added to the coefficients of the l2 term: steps with a pull to zero."""
    other = copy(shards)
    other.reg = (shards.reg + tau).astype(shards.dtype)
    return other


class Rows:
    """Rows of all clients end to end, dense or CSR; client i has rows row0[i] to row0[i + 1] - 1."""

    def __init__(self, problem: Problem, census: Census, number0: int = 0) -> None:
        models = stores_of(problem.clients)
        first = models[0]
        self.number0, self.unit, self.mapped = number0, census.unit, _is_mapped(problem)
        self.dtype, self.batch = first.dtype, problem.batch or 0
        self.loss = kernels.LOGISTIC if first.loss == "logistic" else kernels.SQUARED
        self.C = first.C if isinstance(first, Softmax) else 0
        sizes = problem.rows_each
        self.row0 = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        self.b = joined([f.b for f in models]).astype(self.dtype, copy=False)
        self.share = 1.0 / (np.full_like(sizes, self.batch) if self.batch else sizes)
        self.drawing = Drawing(self.batch, int(sizes.max()))
        self.reg = first.reg.astype(self.dtype)
        sparse = is_sparse(first.A)
        self.kind = kernels.SOFTMAX if self.C else kernels.SPARSE if sparse else kernels.DENSE
        # one kernel serves all kinds, so the arrays of the other kinds are there too, without entries
        self.dense = np.zeros((0, 0), self.dtype) if self.kind else joined([f.A for f in models])
        matrices = [scipy.sparse.csr_matrix(f.A) for f in models] if self.kind else []
        self.sparse = self._rows(matrices) if matrices else _no_rows(self.dtype)
        # what a step of each client costs, for balancing the threads
        entries = np.diff(self.sparse[0].astype(np.int64)[self.row0]) if self.kind else sizes * problem.d
        self.work = entries.astype(np.float64) * max(1, self.C) + 1.0
        entries_per_row = max(1.0, float(census.entries) / max(1, census.rows))
        self.per_block = max(1, int(ENTRIES_PER_BLOCK / entries_per_row))
        self.most_blocks = int(self.block_counts(np.arange(problem.n)).max())

    def _rows(self, matrices: list[Any]) -> tuple[Any, Any, Any]:
        indptr, indices, values = _stacked(matrices)
        if self.batch and self.kind == kernels.SPARSE and not self.mapped:
            indptr, indices, values = self._by_length(indptr, indices, values)
        if not self.C and self.unit:  # the kernels for one margin per row need no values that are all one
            values = values[:0]
        narrow = indices.view(f"u{indices.itemsize}") if self.mapped else _narrow(indices, matrices[0].shape[1])
        return indptr.astype(np.uint64), narrow, values.astype(self.dtype, copy=False)

    def _by_length(self, indptr: Indices, indices: Any, values: Any) -> tuple[Indices, Any, Any]:
        """Each client's rows sorted by length: loops over the entries of neighbours then end where it is expected."""
        length = np.diff(indptr)
        owner = np.repeat(np.arange(len(self.row0) - 1), np.diff(self.row0))
        order = np.lexsort((length, owner))
        place = np.empty(len(order), np.uint32)
        place[order] = np.arange(len(order)) - self.row0[owner]
        self.drawing = replace(self.drawing, place=place)
        self.b = self.b[order]
        entry = ranges(indptr[order], length[order])
        return np.concatenate([[0], np.cumsum(length[order])]), indices[entry], values[entry]

    def descend(
        self, cohort: Indices, X0: Array, X: Array, H: Array, gamma: Array, K: Indices, seed: int, round: int,
        step0: int | Indices = 0,
    ) -> RangeTask:  # fmt: skip
        """``f(lo, hi)`` does all the steps of members lo to hi-1, from X0 (one row per member, or one for all) into X.

        Args:
            step0: the number of the first step among the round's minibatches: one for all members, or one per member.
        """
        first_step, d = _per_member(step0, len(cohort)), X.shape[1]

        def work(lo: int, hi: int) -> None:
            kernels.descend_rows(
                lo, hi, cohort, X0, X, H, gamma, K, self.row0, self.share, self.kind, self.dense, self.sparse, self.b,
                self.reg, self.loss, self.C, self.batch, seed, round, self.per_block, self.number0, self._buffers(d),
                first_step,
            )  # fmt: skip

        return work

    def descend_anchored(
        self, cohort: Indices, X: Array, H: Array, gamma: Array, K: Indices, anchor: tuple[Array, Array, Array],
        moved: Indices, seed: int, round: int, step0: int | Indices,
    ) -> RangeTask:  # fmt: skip
        """The same with the gradients of L-SVRG; X and the anchors are changed in their place."""
        data = self.kind, self.dense, self.sparse, self.b, self.loss, self.C
        first_step = _per_member(step0, len(cohort))

        def work(lo: int, hi: int) -> None:
            g, part, picks, p, room = self._buffers(X.shape[1])
            buffers = g, np.empty_like(g), part, picks, NO_PICKS, p, room
            anchored.descend_anchored(
                lo, hi, cohort, X, H, gamma, K, *anchor, moved, self.row0, self.share, data, self.reg, self.batch, seed,
                round, self.per_block, self.number0, buffers, first_step,
            )  # fmt: skip

        return work

    def _buffers(self, d: int) -> tuple[Any, ...]:
        g = np.empty((2, d), self.dtype)
        return g[0], g[1], self.drawing.picks(), np.empty(max(1, self.C)), self.drawing.room()

    def spread(
        self, cohort: Indices, X: Array, H: Array, gamma: Array, K: Indices, seed: int, round: int,
        share: Callable[[RangeTask, Array], None], step0: int | Indices = 0,
    ) -> None:  # fmt: skip
        """All the steps of the members together, their blocks of rows spread over threads; the sums of ``descend``.

        Args:
            share: calls a task for ranges of blocks, of which it is told the loads.
        """
        first, m = self.row0[cohort], np.diff(self.row0)[cohort]
        taken = np.full_like(m, self.batch) if self.batch else m
        counts = self.block_counts(cohort)
        owner, starts = _owners(counts)
        parts, total = np.empty((len(owner), X.shape[1]), self.dtype), np.empty(X.shape[1], self.dtype)
        picks, room = np.stack([self.drawing.picks() for _ in cohort]), self.drawing.room()
        numbers, one = _per_member(step0, len(cohort)), np.ones(len(cohort), self.dtype)
        factor = self.share[cohort]
        for k in range(int(K.max())):
            for j in np.flatnonzero(k < K) if self.batch else ():
                who, number = self.number0 + int(cohort[j]), int(numbers[j]) + k
                draw_rows(seed, who, round, number, int(first[j]), int(m[j]), self.batch, picks[j], room)

            def blocks(lo: int, hi: int, k: int = k) -> None:
                kernels.sum_rows(
                    lo, hi, k, owner, starts, K, X, taken, factor, picks, first, self.kind, self.dense, self.sparse,
                    self.b, self.loss, self.C, np.empty(max(1, self.C)), parts,
                )  # fmt: skip

            share(blocks, (taken / counts)[owner])
            kernels.step_by_parts(k, starts, K, parts, one, X, gamma, self.reg, H, total)

    def block_counts(self, cohort: Indices) -> Indices:
        """The number of blocks of rows of each member."""
        taken = np.full_like(cohort, self.batch) if self.batch else np.diff(self.row0)[cohort]
        counts: Indices = np.maximum(1, taken // self.per_block)
        return counts


class Tiles:
    """Sparse rows sorted by length in groups of eight, and columns in fours; equal rows merged, empty ones left out.

    ``blocks[i]`` is the first block of client i, ``groups[u]`` the first group of eight rows of block u. A *slot* is
    the place of a row among all groups, and ``b`` and ``scale`` are in the order of slots. Every matrix entry is stored
    twice: in the order of the rows for the margins (``row_data``), of the columns for the gradient (``column_data``).
    """

    def __init__(self, problem: Problem, census: Census | None = None, number0: int = 0) -> None:
        models = stores_of(problem.clients)
        first = models[0]
        self.dtype, self.d, self.number0, self.batch = first.dtype, problem.d, number0, problem.batch or 0
        self.loss = kernels.LOGISTIC if first.loss == "logistic" else kernels.SQUARED
        self.reg = first.reg.astype(self.dtype)
        indptr, indices, values = _stacked([f.A for f in models])
        sizes = problem.rows_each
        self.drawing = Drawing(self.batch, int(sizes.max()))
        owner = np.repeat(np.arange(problem.n), sizes)
        b = joined([f.b for f in models])
        # rows that count: without entries a row's gradient is zero, and equal rows become one of their joint weight
        kept, live, group = merged_rows(indptr, indices, values, owner, b)
        count = np.bincount(group, minlength=len(kept))
        length = np.diff(indptr)[kept]
        # by client, then by length: the eight rows of a group are about equally long, so that little is filled up
        order = np.lexsort((kept, length, owner[kept]))
        kept, count, length, owner = kept[order], count[order], length[order], owner[kept[order]]
        unit = bool(np.all(values == 1.0)) if census is None else census.unit
        entry = ranges(indptr[kept], length)
        indices, values = indices[entry], values[entry]
        # each client's rows cut into blocks, each block's rows into groups of eight
        of_client = np.bincount(owner, minlength=problem.n)
        place = np.arange(len(kept)) - np.repeat(np.cumsum(of_client) - of_client, of_client)
        own_blocks = np.maximum(1, -(-of_client // MAX_ROWS_PER_BLOCK))
        self.most_blocks = int(own_blocks.max())
        self.blocks = np.concatenate([[0], np.cumsum(own_blocks)]).astype(np.int64)
        block, place = self.blocks[owner] + place // MAX_ROWS_PER_BLOCK, place % MAX_ROWS_PER_BLOCK
        of_block = np.bincount(block, minlength=int(self.blocks[-1]))
        self.groups = np.concatenate([[0], np.cumsum(-(-of_block // ROWS_PER_TILE))]).astype(np.int64)
        slot = ROWS_PER_TILE * self.groups[block] + place
        # slots that no row fills have the weight zero
        self.b, self.scale = np.ones((2, ROWS_PER_TILE * self.groups[-1]), self.dtype)
        self.scale[:] = 0.0
        self.b[slot], self.scale[slot] = b[kept], count / sizes[owner]
        stored = None if unit else values
        self.row_data = row_tiles(slot, int(self.groups[-1]), length, indices, stored, self.d, self.dtype)
        self.column_data = self._column_tiles(block, place, length, indices, values, unit)
        # the largest |a_r|^2, a bound on the margins: see ``kernels.block_tiles``
        self.longest = float(np.add.reduceat(values**2, np.cumsum(length) - length).max()) if len(kept) else 0.0
        self.room = int(np.diff(self.groups).max()) * ROWS_PER_TILE + 1
        self.work = np.bincount(owner, weights=length, minlength=problem.n) + 1.0
        self.row0 = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        if self.batch:
            self.place = self._places(slot[np.argsort(order)][group], live)
            self.count = np.zeros(len(self.b), self.dtype)
            self.count[slot] = count

    def _places(self, slot: Indices, live: Indices) -> Any:
        """Which slot of its client stands for each row; for rows without entries one past the last, which is unused."""
        first = ROWS_PER_TILE * self.groups[self.blocks]
        self.most = int(np.diff(first).max())
        of = np.searchsorted(self.row0, live, side="right") - 1
        place = np.full(int(self.row0[-1]), self.most, np.uint32)
        place[live] = slot - first[of]
        return place

    def _column_tiles(
        self, block: Indices, place: Indices, length: Indices, indices: Any, values: Any, unit: bool
    ) -> tuple[Any, Any, Any]:
        """(First line of each column of each block, rows in their block, values), a line per four entries of a column.

        Blank entries read the z after the block's last, which is zero.
        """
        column = np.repeat(block, length) * self.d + indices
        count = np.bincount(column, minlength=int(self.blocks[-1]) * self.d)
        start = np.concatenate([[0], np.cumsum(-(-count // ENTRIES_PER_TILE))])
        order = np.argsort(column, kind="stable")  # rows stay in order within a column
        at = ENTRIES_PER_TILE * np.repeat(start[:-1], count) + ranges(np.zeros_like(count), count)
        room = ROWS_PER_TILE * np.diff(self.groups)
        rows = np.repeat(np.repeat(room, self.d), ENTRIES_PER_TILE * np.diff(start)).astype(width(int(room.max())))
        rows[at] = np.repeat(place, length)[order]
        if unit:
            stored = np.zeros(0, self.dtype)
        else:
            stored = np.zeros(rows.shape, self.dtype)
            stored[at] = values[order]
        return start.astype(np.uint64), rows.reshape(-1, ENTRIES_PER_TILE), stored.reshape(-1, ENTRIES_PER_TILE)

    def descend(
        self, cohort: Indices, X0: Array, X: Array, H: Array, gamma: Array, K: Indices, seed: int, round: int,
        step0: int | Indices = 0,
    ) -> RangeTask:  # fmt: skip
        """``f(lo, hi)`` does all the steps of members lo to hi-1, from X0 (one row per member, or one for all) into X.

        Args:
            step0: the number of the first step among the round's minibatches: one for all members, or one per member.
        """
        first_step = _per_member(step0, len(cohort))

        def work(lo: int, hi: int) -> None:
            kernels.descend_tiles(
                lo, hi, cohort, X0, X, H, gamma, K, self.blocks, self.groups, self.row_data, self.column_data, self.b,
                self.scale, self.reg, self.loss, self.longest, self._buffers(), *self._draw(seed, round),
                first_step,
            )  # fmt: skip

        return work

    def _draw(self, seed: int, round: int) -> tuple[Any, ...]:
        """The arguments of ``minibatches.weigh_rows`` from ``row0`` on: what a minibatch is drawn by, and buffers."""
        if not self.batch:
            nothing = np.zeros(0, self.dtype)
            return self.row0, NO_PICKS, nothing, 0, seed, round, self.number0, nothing, NO_PICKS, self.drawing.room()
        given = self.row0, self.place, self.count, self.batch, seed, round, self.number0
        return *given, np.empty(self.most + 1, self.dtype), self.drawing.picks(), self.drawing.room()

    def _buffers(self) -> tuple[Any, ...]:
        # ``power`` is ``bits`` read as doubles: see ``kernels.slopes``
        bits, g = np.zeros(self.room, np.int64), np.empty((2, self.d), self.dtype)
        x, z = np.empty(self.d + 1, self.dtype), np.empty(self.room, self.dtype)
        return x, z, g[0], g[1], bits, bits.view(np.float64)

    def spread(
        self, cohort: Indices, X: Array, H: Array, gamma: Array, K: Indices, seed: int, round: int,
        share: Callable[[RangeTask, Array], None], step0: int | Indices = 0,
    ) -> None:  # fmt: skip
        """As ``Rows.spread``."""
        counts = self.block_counts(cohort)
        owner, starts = _owners(counts)
        block, load = ranges(self.blocks[cohort], counts), np.diff(self.row_data[0][self.groups].astype(np.float64))
        parts, total = np.empty((len(owner), self.d), self.dtype), np.empty(self.d, self.dtype)
        Y = np.append(X, np.zeros((len(X), 1), self.dtype), axis=1)
        *given, weights, picks, room = self._draw(seed, round)
        # a minibatch's weights are those of one client alone, from its first group on
        own = np.empty((len(cohort) if self.batch else 0, len(weights)), self.dtype)
        at = self.groups[self.blocks[cohort]] if self.batch else np.zeros_like(cohort)
        numbers, factor = _per_member(step0, len(cohort)), np.ones(len(cohort), self.dtype)
        for k in range(int(K.max())):
            for j in np.flatnonzero(k < K) if self.batch else ():
                slots = [ROWS_PER_TILE * int(self.groups[self.blocks[cohort[j] + e]]) for e in (0, 1)]
                factor[j] = weigh_rows(int(cohort[j]), int(numbers[j]) + k, *slots, *given, own[j], picks, room)

            def blocks(lo: int, hi: int, k: int = k) -> None:
                kernels.sum_tiles(
                    lo, hi, k, owner, block, at, K, Y, self.groups, self.row_data, self.column_data, self.b, self.scale,
                    own, self.loss, self.longest, self._buffers(), parts,
                )  # fmt: skip

            share(blocks, load[block])
            kernels.step_by_parts(k, starts, K, parts, factor, Y, gamma, self.reg, H, total)
        X[:] = Y[:, :-1]

    def block_counts(self, cohort: Indices) -> Indices:
        """The number of blocks of rows of each member."""
        return np.diff(self.blocks)[cohort]


def _owners(counts: Indices) -> tuple[Indices, Indices]:
    """Whose each of all blocks is, and each member's first one."""
    return np.repeat(np.arange(len(counts)), counts), np.concatenate([[0], np.cumsum(counts)])


def _per_member(step0: int | Indices, members: int) -> Indices:
    """The number of each member's first step, as the kernels read it."""
    out = np.empty(members, np.int64)
    out[:] = step0
    return out


def _stacked(matrices: list[Any]) -> tuple[Indices, Any, Any]:
    """CSR arrays of all rows end to end."""
    sizes = np.concatenate([np.diff(M.indptr) for M in matrices]).astype(np.int64)
    indptr = np.concatenate([[0], np.cumsum(sizes)])
    return indptr, joined([M.indices for M in matrices]), joined([M.data for M in matrices])


def joined(arrays: list[Any]) -> Any:
    """The arrays end to end; a single one, which may be large, is not copied."""
    return np.ascontiguousarray(arrays[0]) if len(arrays) == 1 else np.concatenate(arrays)


def _narrow(indices: Any, d: int) -> Any:
    return indices.astype(width(d))


def _no_rows(dtype: Any) -> tuple[Any, Any, Any]:
    return np.zeros(1, np.uint64), np.zeros(0, np.uint16), np.zeros(0, dtype)
