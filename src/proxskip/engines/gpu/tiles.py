"""Sparse matrices as the GPU reads them: tiles of 32 lanes, balanced over warps, built for all clients at once.

A warp of 32 lanes works on one tile at a time. A tile computes up to 32 outputs (margins of rows, or entries of the
gradient). An output with many entries is shared by 2, 4, ... 32 neighbouring lanes. A lane's entries come in packs that
lie 32 lanes wide, so that a warp reads them without bank conflicts; missing entries point at a zero. Plain numpy, and
nothing of it depends on a GPU.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse

from proxskip.engines.rows import merged_rows, ranges
from proxskip.types import Array, Indices

PACK = 4
"""Entries of a lane that are loaded at once."""
MAX_ENTRIES_UNTANGLED = 1 << 23
"""Entries up to which bank conflicts are ordered away; beyond, the data do not fit into shared memory anyway."""
MAX_SLOTS_UNTANGLED = 192
"""Entries per lane up to which a tile is untangled; the time grows with their square."""


@dataclass(frozen=True)
class ClientRows:
    """All clients' rows end to end: CSR, labels, and each row's share (weight) in its client's mean."""

    row0: Indices
    indptr: Indices
    indices: Indices
    values: Array
    labels: Array
    shares: Array
    numbers: Indices
    """Each row's number among its client's."""
    features: int

    @property
    def clients(self) -> int:
        """The number of clients."""
        return len(self.row0) - 1

    @property
    def unit(self) -> bool:
        """Whether every value is one, so that none needs to be stored."""
        return bool(np.all(self.values == 1.0))

    @staticmethod
    def of(models: list[Any], sizes: Indices) -> ClientRows:
        """From linear models that hold the rows of clients of these sizes; dense data become rows without gaps."""
        matrices = [f.A if scipy.sparse.issparse(f.A) else _full(f.A) for f in models]
        lengths = [np.diff(M.indptr) for M in matrices]
        return ClientRows(
            row0=_starts(sizes),
            indptr=_starts(np.concatenate(lengths)),
            indices=np.concatenate([M.indices for M in matrices]).astype(np.int64),
            values=np.concatenate([M.data for M in matrices]).astype(np.float64),
            labels=np.concatenate([f.b for f in models]).astype(np.float64),
            shares=np.concatenate([f.s for f in models]).astype(np.float64),
            numbers=ranges(np.zeros_like(sizes), sizes),
            features=int(matrices[0].shape[1]),
        )

    def merged(self) -> ClientRows:
        """Without empty rows (no gradient) and with equal rows of one client and label as one, their shares added."""
        owner, length = self.owner, np.diff(self.indptr)
        kept, live, group = merged_rows(self.indptr, self.indices, self.values, owner, self.labels)
        shares: Array = np.bincount(group, weights=self.shares[live], minlength=len(kept)).astype(np.float64)
        return self._take(kept, owner, length, shares)

    def sampled(self, batch: int) -> ClientRows:
        """Without empty rows, each with the share that it has in a minibatch; equal rows are drawn one by one."""
        length = np.diff(self.indptr)
        kept = np.flatnonzero(length)
        return self._take(kept, self.owner, length, np.full(len(kept), 1.0 / batch))

    @property
    def owner(self) -> Indices:
        """The client of each row."""
        return np.repeat(np.arange(self.clients), np.diff(self.row0))

    def _take(self, kept: Indices, owner: Indices, length: Indices, shares: Array) -> ClientRows:
        at = ranges(self.indptr[kept], length[kept])
        return ClientRows(
            row0=_starts(np.bincount(owner[kept], minlength=self.clients)),
            indptr=_starts(length[kept]),
            indices=self.indices[at],
            values=self.values[at],
            labels=self.labels[kept],
            shares=shares,
            numbers=self.numbers[kept],
            features=self.features,
        )


@dataclass(frozen=True)
class LaneTiles:
    """Outputs of many slices as tiles; a slice is the part of a client that one thread block owns."""

    tiles: Any  # (tiles, 4) int32: first pack (in rows of 32), packs per lane, outputs << 3 | log2(lanes), first output
    tile0: Indices  # the first tile of each slice
    pack0: Indices  # the first pack of each slice, in rows of 32
    warps: Any  # (slices, warps + 1) int32: tiles warps[s, v] to warps[s, v + 1] - 1 of slice s are warp v's
    place: Indices  # the number of each output in its slice
    at: Indices  # the place of each entry among the packed ones
    size: int  # entries in all, blank ones included

    @staticmethod
    def of(slices: int, owner: Indices, length: Indices, warps: int, extra: float) -> LaneTiles:
        """Outputs with these owners and numbers of entries.

        Args:
            extra: what finishing a tile costs, in entries.
        """
        # lanes per output: a power of two, at most a warp, so that no lane has much more than its share of the slice
        total = np.bincount(owner, weights=length, minlength=slices)
        per_lane = np.maximum(np.ceil(total / (warps * 32 * PACK)), 1) * PACK
        log = np.clip(np.ceil(np.log2(np.maximum(length, 1) / per_lane[owner])), 0, 5).astype(np.int64)
        # by slice, then by lanes, then by length: outputs of a tile have the same number of lanes and are about equally
        # long, so that few entries are blank
        order = np.lexsort((-length, -log, owner))
        o_owner, o_log, o_length = owner[order], log[order], length[order]
        begin = np.searchsorted(o_owner, np.arange(slices + 1))
        place = np.empty(len(order), dtype=np.int64)
        place[order] = np.arange(len(order)) - begin[o_owner]
        # an output opens a tile where its group (slice, lanes) begins or the tile before is full
        key = o_owner * 8 + o_log
        fresh = np.concatenate([[True], key[1:] != key[:-1]]) if len(key) else np.zeros(0, bool)
        within = np.arange(len(key)) - np.maximum.accumulate(np.where(fresh, np.arange(len(key)), 0))
        opens = within % (32 >> o_log) == 0
        first = np.flatnonzero(opens)
        tile_of = np.cumsum(opens) - 1
        count = np.diff(np.append(first, len(key)))
        # a tile is as deep as its first output, the longest, needs
        packs = -(-o_length[first] // (PACK << o_log[first]))
        t_owner, t_log = o_owner[first], o_log[first]
        warp, final = _schedule(slices, t_owner, packs * PACK + extra + 3 * t_log, warps)
        # tiles lie in the order in which the warps read them
        start = _starts(packs[final])
        pack0 = start[np.searchsorted(t_owner[final], np.arange(slices + 1))]
        tile0 = np.searchsorted(t_owner[final], np.arange(slices + 1))
        where = np.empty(len(final), dtype=np.int64)
        where[final] = start[:-1]
        columns = (where - pack0[t_owner], packs, (count << 3) | t_log, place[order[first]])
        table = np.stack(columns, axis=1)[final].astype(np.int32)
        # entry k of an output: lane k mod T of its lanes, then pack by pack
        k = ranges(np.zeros(len(order), dtype=np.int64), length)
        o = np.repeat(np.arange(len(order)), length)
        t = np.empty(len(order), dtype=np.int64)
        t[order] = tile_of
        in_tile = np.empty(len(order), dtype=np.int64)
        in_tile[order] = within % (32 >> o_log)
        lane = (in_tile[o] << log[o]) + (k & ((1 << log[o]) - 1))
        deep = k >> log[o]
        at = ((where[t[o]] + deep // PACK) * 32 + lane) * PACK + deep % PACK
        counts = np.bincount(t_owner * warps + warp, minlength=slices * warps).reshape(slices, warps)
        ends = np.concatenate([np.zeros((slices, 1), dtype=np.int64), np.cumsum(counts, axis=1)], axis=1)
        return LaneTiles(table, tile0, pack0, ends.astype(np.int32), place, at, int(start[-1]) * 32 * PACK)

    def extents(self) -> list[Indices]:
        """For each slice: its first tile, number of tiles, first pack and number of packs."""
        return [self.tile0[:-1], np.diff(self.tile0), self.pack0[:-1], np.diff(self.pack0)]

    def packed(self, entries: Any, fill: Any, kind: Any) -> Any:
        """The entries in their places, ``fill`` elsewhere."""
        out = np.full(self.size, 0, dtype=kind)
        out[:] = fill
        out[self.at] = entries
        return out


@dataclass(frozen=True)
class Layout:
    """Every client cut into ``G`` slices of rows, each as tiles by rows and tiles by columns."""

    G: int
    rows: LaneTiles
    columns: LaneTiles
    row_idx: Any
    col_idx: Any
    row_val: Any
    col_val: Any
    labels: Array
    shares: Array
    numbers: Any
    colmap: Any
    meta: Any

    @staticmethod
    def of(data: ClientRows, G: int, warps: int, unit: bool, kind: Any) -> Layout:
        """Deal each client's rows to its G slices, and build both kinds of tiles.

        The longest rows go first, to slices 0, 1, ... G-1, G-1, ... 0, 0, ..., for about equal numbers of entries.
        """
        length, owner, F = np.diff(data.indptr), data.owner, data.features
        order = np.lexsort((-length, owner))
        rank = np.empty(len(order), dtype=np.int64)
        rank[order] = np.arange(len(order)) - data.row0[owner[order]]
        turn, step = rank // G % 2, rank % G
        slice_of = owner * G + np.where(turn == 0, step, G - 1 - step)
        S = data.clients * G
        # a row's output costs a slope, a column's little more than the store
        rows = LaneTiles.of(S, slice_of, length, warps, extra=12.0)
        m = np.bincount(slice_of, minlength=S)
        b0 = _starts(-(-m // 4) * 4)
        entry_row = np.repeat(np.arange(len(length)), length)
        entry_slice, entry_place = slice_of[entry_row], rows.place[entry_row]
        cell = entry_slice * F + data.indices  # every column of every slice is an output
        # entries by slice, column and place: rows in the order of their places, then a counting sort by cells
        by_place = np.lexsort((rows.place, slice_of))
        at = ranges(data.indptr[by_place], length[by_place])
        line = scipy.sparse.csr_matrix((at, cell[at], np.array([0, len(at)])), shape=(1, S * F))
        by_column = line.tocsc().data
        c_length = np.bincount(cell, minlength=S * F)
        columns = LaneTiles.of(S, np.repeat(np.arange(S), F), c_length, warps, extra=4.0)
        narrow = np.uint16 if max(F, int(m.max(initial=0))) < 2**16 - 1 else np.uint32
        # a row's missing entries read x[F] = 0; a column's read z[m] = 0 of their own slice
        blank = np.repeat(m, np.diff(columns.pack0) * 32 * PACK)
        # colmap: which column the outputs of the column tiles are; padded so that each slice's begins at 16 bytes
        padded = -(-F // 8) * 8
        colmap = np.zeros((S, padded), dtype=narrow)
        colmap[np.repeat(np.arange(S), F), columns.place] = np.tile(np.arange(F), S)
        labels, shares, numbers = np.zeros(int(b0[-1])), np.zeros(int(b0[-1])), np.zeros(int(b0[-1]), np.uint32)
        labels[b0[slice_of] + rows.place] = data.labels
        shares[b0[slice_of] + rows.place] = data.shares
        numbers[b0[slice_of] + rows.place] = data.numbers
        meta = np.stack([*rows.extents(), *columns.extents(), b0[:-1], m], axis=1)
        row_idx, row_val = rows.packed(data.indices, F, narrow), rows.packed(data.values, 0, kind)
        col_idx = columns.packed(entry_place[by_column], blank, narrow)
        col_val = columns.packed(data.values[by_column], 0, kind)
        # the banks of shared memory, side by side, hold 128 bytes: 32 floats or 16 doubles
        if max(row_idx.size, col_idx.size) <= MAX_ENTRIES_UNTANGLED:
            for tiles, idx, val in ((rows, row_idx, row_val), (columns, col_idx, col_val)):
                order = untangle(_absolute(tiles), tiles.tiles[:, 1], idx, 128 // np.dtype(kind).itemsize)
                idx[:], val[:] = idx[order], val[order]
        return Layout(
            G=G,
            rows=rows,
            columns=columns,
            row_idx=row_idx,
            col_idx=col_idx,
            row_val=None if unit else row_val,
            col_val=None if unit else col_val,
            labels=labels.astype(kind),
            shares=shares.astype(kind),
            numbers=numbers,
            colmap=colmap,
            meta=meta.astype(np.int64),
        )

    def data_bytes(self, real: int, columns_of_rows: int) -> Indices:
        """Bytes of each slice in shared memory: tiles, indices, values, colmap, and what each row has."""
        index = self.row_idx.itemsize
        t, p, m = self.meta[:, [1, 5]], self.meta[:, [3, 7]], self.meta[:, 9]
        cell = index + (0 if self.row_val is None else real)
        tail = columns_of_rows * -(-m // 4) * 4 * real + self.colmap.shape[1] * index
        return np.asarray(t.sum(axis=1) * 16 + p.sum(axis=1) * 32 * PACK * cell + tail + 16 * 9, dtype=np.int64)


def _absolute(tiles: LaneTiles) -> Indices:
    """The first pack of every tile, counted over all slices."""
    return np.asarray(np.repeat(tiles.pack0[:-1], np.diff(tiles.tile0)) + tiles.tiles[:, 0], dtype=np.int64)


def untangle(pack0: Indices, packs: Any, idx: Any, banks: int) -> Indices:
    """An order of each lane's entries in which lanes that read together seldom meet in a bank of shared memory.

    In slot j all lanes of a warp read the address of their j-th entry together; those in the same bank wait for each
    other, unless the address is the same. The order of a lane's entries is free. Greedy, all tiles of one depth at a
    time: slot after slot and lane after lane, take the entry whose bank is least used in this slot. The answer permutes
    ``idx`` (and the values with it).
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


def _starts(counts: Any) -> Indices:
    """0, and the sums of the first 1, 2, ... counts."""
    return np.concatenate([[0], np.cumsum(np.asarray(counts, dtype=np.int64))]).astype(np.int64)


def _full(A: Array) -> Any:
    """A dense matrix as CSR with every entry stored, zeros too."""
    N, F = A.shape
    every = np.tile(np.arange(F), N)
    return scipy.sparse.csr_matrix((np.ascontiguousarray(A).ravel(), every, np.arange(N + 1) * F), shape=(N, F))


def _schedule(slices: int, owner: Indices, cost: Array, warps: int) -> tuple[Indices, Indices]:
    """The warp of each tile, and the order of the tiles by (slice, warp).

    The costliest tiles go first, to warps 0, 1, ... and back, so that all warps of a slice have about the same to do.
    """
    order = np.lexsort((-cost, owner))
    begin = np.searchsorted(owner[order], np.arange(slices))
    rank = np.empty(len(order), dtype=np.int64)
    rank[order] = np.arange(len(order)) - begin[owner[order]]
    turn, step = rank // warps % 2, rank % warps
    warp = np.where(turn == 0, step, warps - 1 - step)
    return warp, np.lexsort((rank, warp, owner))
