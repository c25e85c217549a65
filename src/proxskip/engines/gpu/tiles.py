"""Sparse matrices as the GPU reads them: tiles of 32 lanes, balanced over warps, built for all clients at once.

A warp of 32 lanes works on one tile at a time. A tile computes up to 32 outputs (margins of rows, or entries of the
gradient); 2, 4, ... 32 neighbouring lanes share an output with many entries. A lane's entries come in packs that lie 32
lanes wide, so that a warp reads them without bank conflicts; padding points at a zero. Plain numpy, independent of a
GPU.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse

from proxskip.engines.sparse_rows import merged_rows, offsets, ranges
from proxskip.types import Array, Indices

PACK = 4
"""Entries that a lane loads at once."""
MAX_ENTRIES_UNTANGLED = 1 << 23
"""Entries up to which bank conflicts are avoided; more do not fit into shared memory anyway."""
MAX_SLOTS_UNTANGLED = 192
"""Entries per lane up to which a tile is untangled; the time grows with their square."""


@dataclass(frozen=True)
class ClientRows:
    """The rows of all clients end to end, with each row's client, label, weight in its client's mean, and number."""

    clients: int
    A: Any  # CSR
    owner: Indices
    labels: Array
    shares: Array
    numbers: Indices
    """Each row's number within its client."""

    @staticmethod
    def of(models: list[Any], sizes: Indices) -> ClientRows:
        """From linear models that hold the rows of clients of these sizes."""
        return ClientRows(
            clients=len(sizes),
            A=scipy.sparse.vstack([scipy.sparse.csr_matrix(f.A) for f in models], format="csr").astype(np.float64),
            owner=np.repeat(np.arange(len(sizes)), sizes),
            labels=np.concatenate([f.b for f in models]).astype(np.float64),
            shares=np.concatenate([f.s for f in models]).astype(np.float64),
            numbers=ranges(np.zeros_like(sizes), sizes),
        )

    @property
    def row0(self) -> Indices:
        """The first row of each client."""
        return np.searchsorted(self.owner, np.arange(self.clients + 1)).astype(np.int64)

    @property
    def unit(self) -> bool:
        """Whether every value is one, so none needs to be stored."""
        return bool(np.all(self.A.data == 1.0))

    def merged(self) -> ClientRows:
        """Without empty rows, and with equal rows of one client and label merged, their shares added."""
        A = self.A
        kept, live, group = merged_rows(A.indptr.astype(np.int64), A.indices, A.data, self.owner, self.labels)
        shares: Array = np.bincount(group, weights=self.shares[live], minlength=len(kept)).astype(np.float64)
        return self._take(kept, shares)

    def sampled(self, batch: int) -> ClientRows:
        """Without empty rows, each with its share in a minibatch; equal rows are drawn separately."""
        kept = np.flatnonzero(np.diff(self.A.indptr))
        return self._take(kept, np.full(len(kept), 1.0 / batch))

    def _take(self, kept: Indices, shares: Array) -> ClientRows:
        owner, labels, numbers = self.owner[kept], self.labels[kept], self.numbers[kept]
        return ClientRows(self.clients, self.A[kept], owner, labels, shares, numbers)


@dataclass(frozen=True)
class LaneTiles:
    """Sparse sums (*outputs*) of many slices as tiles; a slice is a thread block's part of a client."""

    tiles: Any  # (tiles, 4) int32: first pack (in rows of 32), packs per lane, outputs << 3 | log2(lanes), first output
    tile0: Indices  # the first tile of each slice
    pack0: Indices  # the first pack of each slice, in rows of 32
    warps: Any  # (slices, warps + 1) int32: tiles warps[s, v] to warps[s, v + 1] - 1 of slice s are warp v's
    place: Indices  # the number of each output in its slice
    idx: Any  # the packed entries: which number is read, ...
    val: Any  # ... and its factor

    @staticmethod
    def of(
        slices: int, owner: Indices, outputs: Any, blank: Indices, warps: int, extra: float, index: Any, kind: Any
    ) -> LaneTiles:
        """The rows of the CSR matrix ``outputs``, which belong to the slices ``owner``.

        Args:
            blank: for each slice, the index of a zero, for padding.
            extra: the cost of finishing a tile, in entries.
        """
        length = np.diff(outputs.indptr).astype(np.int64)
        # lanes per output: a power of two, so that no lane has much more than its share of the slice
        total = np.bincount(owner, weights=length, minlength=slices)
        per_lane = np.maximum(np.ceil(total / (warps * 32 * PACK)), 1) * PACK
        log = np.clip(np.ceil(np.log2(np.maximum(length, 1) / per_lane[owner])), 0, 5).astype(np.int64)
        # by slice, lanes and length: outputs of a tile have the same number of lanes and need little padding
        order = np.lexsort((-length, -log, owner))
        o_owner, o_log, o_length = owner[order], log[order], length[order]
        place = _scattered(order, np.arange(len(order)) - np.searchsorted(o_owner, np.arange(slices + 1))[o_owner])
        # an output opens a tile where its group (slice, lanes) begins or the tile before is full
        key = o_owner * 8 + o_log
        fresh = np.concatenate([[True], key[1:] != key[:-1]]) if len(key) else np.zeros(0, bool)
        within = np.arange(len(key)) - np.maximum.accumulate(np.where(fresh, np.arange(len(key)), 0))
        opens = within % (32 >> o_log) == 0
        first = np.flatnonzero(opens)
        count = np.diff(np.append(first, len(key)))
        # a tile is as deep as its first output, the longest, needs
        packs = -(-o_length[first] // (PACK << o_log[first]))
        t_owner, t_log = o_owner[first], o_log[first]
        # tiles lie in the order in which the warps read them
        warp, final = _schedule(slices, t_owner, packs * PACK + extra + 3 * t_log, warps)
        start = offsets(packs[final])
        tile0 = np.searchsorted(t_owner[final], np.arange(slices + 1))
        pack0 = start[tile0]
        where = _scattered(final, start[:-1])
        columns = (where - pack0[t_owner], packs, (count << 3) | t_log, place[order[first]])
        counts = np.bincount(t_owner * warps + warp, minlength=slices * warps).reshape(slices, warps)
        ends = np.concatenate([np.zeros((slices, 1), dtype=np.int64), np.cumsum(counts, axis=1)], axis=1)
        # entry k of an output: lane k mod T of its T lanes, then pack by pack
        tile, in_tile = _scattered(order, np.cumsum(opens) - 1), _scattered(order, within % (32 >> o_log))
        o, k = np.repeat(np.arange(len(order)), length), ranges(np.zeros(len(order), dtype=np.int64), length)
        lane, depth = (in_tile[o] << log[o]) + (k & ((1 << log[o]) - 1)), k >> log[o]
        at = ((where[tile[o]] + depth // PACK) * 32 + lane) * PACK + depth % PACK
        idx = np.repeat(blank, np.diff(pack0) * 32 * PACK).astype(index)
        val = np.zeros(len(idx), dtype=kind)
        idx[at], val[at] = outputs.indices, outputs.data
        if len(idx) <= MAX_ENTRIES_UNTANGLED:
            # the banks of shared memory, side by side, hold 128 bytes: 32 floats or 16 doubles
            untangled = untangle(where[final], packs[final], idx, 128 // val.itemsize)
            idx, val = idx[untangled], val[untangled]
        table = np.stack(columns, axis=1)[final].astype(np.int32)
        return LaneTiles(table, tile0, pack0, ends.astype(np.int32), place, idx, val)


@dataclass(frozen=True)
class Layout:
    """Every client cut into slices of rows, each tiled by rows and by columns."""

    rows: LaneTiles
    columns: LaneTiles
    labels: Array
    shares: Array
    numbers: Any
    colmap: Any  # which column each output of the column tiles is; padded so that each slice's begins at 16 bytes
    meta: Any  # of each slice: first tile, tiles, first pack and packs, by rows and by columns; first row, rows

    @staticmethod
    def of(data: ClientRows, G: int, warps: int, kind: Any) -> Layout:
        """Deal each client's rows to its G slices, and build both kinds of tiles.

        The longest rows go first, to slices 0, 1, ... G-1, G-1, ... 0, 0, ..., to balance the entries.
        """
        A, owner, F, S = data.A, data.owner, data.A.shape[1], data.clients * G
        length = np.diff(A.indptr)
        order = np.lexsort((-length, owner))
        rank = _scattered(order, np.arange(len(order)) - data.row0[owner[order]])
        slice_of = owner * G + _back_and_forth(rank, G)
        m = np.bincount(slice_of, minlength=S)
        index = np.uint16 if max(F, int(m.max(initial=0))) < 2**16 - 1 else np.uint32
        # a row's output costs a slope, a column's little more than the store; blank entries of a row read x[F] = 0,
        # those of a column z[m] = 0 of their own slice
        rows = LaneTiles.of(S, slice_of, A, np.full(S, F), warps, 12.0, index, kind)
        # every column of every slice is an output, which reads the slopes of rows by their places
        entry_row = np.repeat(np.arange(len(length)), length)
        cells = slice_of[entry_row] * F + A.indices
        by_column = scipy.sparse.csr_matrix(
            (A.data, (cells, rows.place[entry_row])), shape=(S * F, max(1, int(m.max(initial=0))))
        )
        by_column.sort_indices()
        columns = LaneTiles.of(S, np.repeat(np.arange(S), F), by_column, m, warps, 4.0, index, kind)
        colmap = np.zeros((S, -(-F // 8) * 8), dtype=index)
        colmap[np.repeat(np.arange(S), F), columns.place] = np.tile(np.arange(F), S)
        row0 = offsets(-(-m // 4) * 4)
        labels, shares = np.zeros(int(row0[-1]), dtype=kind), np.zeros(int(row0[-1]), dtype=kind)
        numbers, at = np.zeros(int(row0[-1]), dtype=np.uint32), row0[slice_of] + rows.place
        labels[at], shares[at], numbers[at] = data.labels, data.shares, data.numbers
        extents = [v for t in (rows, columns) for v in (t.tile0[:-1], np.diff(t.tile0), t.pack0[:-1], np.diff(t.pack0))]
        meta = np.stack([*extents, row0[:-1], m], axis=1).astype(np.int64)
        return Layout(rows, columns, labels, shares, numbers, colmap, meta)

    def data_bytes(self, unit: bool, numbers_of_rows: int) -> Indices:
        """Bytes of each slice in shared memory: tiles, indices, values unless all are one, colmap, and row data."""
        index, real = self.colmap.itemsize, self.rows.val.itemsize
        tiles, packs, m = self.meta[:, [1, 5]].sum(axis=1), self.meta[:, [3, 7]].sum(axis=1), self.meta[:, 9]
        entries = packs * 32 * PACK * (index + (0 if unit else real))
        of_rows = numbers_of_rows * -(-m // 4) * 4 * real
        return np.asarray(tiles * 16 + entries + of_rows + self.colmap.shape[1] * index + 16 * 9, dtype=np.int64)


def untangle(pack0: Indices, packs: Any, idx: Any, banks: int) -> Indices:
    """Order each lane's entries so that lanes rarely read the same bank of shared memory at once.

    In slot j all lanes of a warp read their j-th entry together; those in one bank wait for each other, unless the
    address is the same. Greedily, slot by slot and lane by lane, take the entry whose bank is least used. Returns a
    permutation of ``idx`` (and of the values).
    """
    order = np.arange(idx.size)
    lanes = min(32, banks)
    for deep in np.unique(packs):
        if not 0 < deep * PACK <= MAX_SLOTS_UNTANGLED:
            continue
        first = pack0[packs == deep]
        D, n = int(deep) * PACK, len(first) * 32 // lanes
        # [tile, pack, lane, entry] -> [group of lanes that read together, lane, slot]
        at = (first[:, None] * 32 * PACK + np.arange(32 * D)).reshape(-1, int(deep), 32, PACK)
        at = at.transpose(0, 2, 1, 3).reshape(n, lanes, D).copy()
        home = at.copy()
        address = idx[at].astype(np.int64)
        who = np.arange(n)
        for j in range(D - 1):
            # for each bank: how many addresses of it this slot reads, and the last of them
            load = np.zeros((n, banks), dtype=np.int64)
            held = np.full((n, banks), -1, dtype=np.int64)
            for lane in range(lanes):
                options = address[:, lane, j:]
                bank = options % banks
                again = held[who[:, None], bank] == options
                best = j + np.argmin(np.where(again, 0, 2 * load[who[:, None], bank] + 1), axis=1)
                # swap the chosen entry into slot j
                for a in (address, at):
                    chosen = a[who, lane, best]
                    a[who, lane, best] = a[:, lane, j]
                    a[:, lane, j] = chosen
                chosen = address[:, lane, j]
                new = held[who, chosen % banks] != chosen
                load[who, chosen % banks] += new
                held[who, chosen % banks] = np.where(new, chosen, held[who, chosen % banks])
        order[home] = at
    return order


def _scattered(order: Indices, values: Any) -> Indices:
    """The array whose entry order[j] is values[j]."""
    scattered = np.empty(len(order), dtype=np.int64)
    scattered[order] = values
    return scattered


def _back_and_forth(rank: Indices, hands: int) -> Indices:
    """The hand that gets the card of this rank, if hands take turns 0, 1, ... h-1, h-1, ... 0, 0, ..."""
    turn, hand = rank // hands % 2, rank % hands
    return np.where(turn == 0, hand, hands - 1 - hand)


def _schedule(slices: int, owner: Indices, cost: Array, warps: int) -> tuple[Indices, Indices]:
    """The warp of each tile, and the order of the tiles by (slice, warp).

    The costliest tiles are dealt first, to balance the warps of a slice.
    """
    order = np.lexsort((-cost, owner))
    rank = _scattered(order, np.arange(len(order)) - np.searchsorted(owner[order], np.arange(slices))[owner[order]])
    warp = _back_and_forth(rank, warps)
    return warp, np.lexsort((rank, warp, owner))
