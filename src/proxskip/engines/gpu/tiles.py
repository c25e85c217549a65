"""Sparse matrices as the GPU reads them: tiles of 32 lanes, balanced over warps, built for all clients at once.

A warp of 32 lanes works on one tile at a time. A tile computes up to 32 outputs (margins of rows, or entries of the
gradient); 2, 4, ... 32 neighbouring lanes share an output with many entries. A lane's entries come in packs that lie 32
lanes wide, so that a warp reads them without bank conflicts; padding points at a zero. Plain numpy, independent of a
GPU.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import scipy.sparse

from proxskip.engines.sparse_rows import merged_rows, offsets, ranges
from proxskip.problems.linear_model import LinearModel
from proxskip.types import AnyArray, Array, Flags, Indices, Matrix

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
    A: Matrix
    """In CSR."""
    owner: Indices
    labels: Array
    shares: Array
    numbers: Indices
    """Each row's number within its client."""

    @staticmethod
    def of(store: LinearModel, sizes: Indices) -> ClientRows:
        """From a linear model that holds the rows of clients of these sizes."""
        return ClientRows(
            clients=len(sizes),
            A=scipy.sparse.csr_matrix(store.A, dtype=np.float64),
            owner=np.repeat(np.arange(len(sizes)), sizes),
            labels=np.asarray(store.b, dtype=np.float64),
            shares=np.asarray(store.s, dtype=np.float64),
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
        owner = self.owner[kept]
        labels = self.labels[kept]
        numbers = self.numbers[kept]
        return ClientRows(self.clients, self.A[kept], owner, labels, shares, numbers)


class Outputs(NamedTuple):
    """The outputs, sorted by slice, by lanes and from the longest on, and cut into tiles."""

    order: Indices
    """The number of each among the rows of the matrix."""
    owner: Indices
    """Its slice."""
    log: Indices
    """The logarithm to base 2 of the lanes that share it."""
    length: Indices
    """Its entries."""
    opens: Flags
    """Whether it is the first of its tile."""
    number: Indices
    """Its number in its tile."""


class TileList(NamedTuple):
    """The tiles in the order of their outputs."""

    owner: Indices
    """The slice of each."""
    log: Indices
    """The logarithm to base 2 of the lanes per output."""
    first: Indices
    """The place of its first output among the sorted ones."""
    outputs: Indices
    """How many it has."""
    packs: Indices
    """How many each of its lanes reads."""


def lanes_of_outputs(length: Indices, owner: Indices, slices: int, warps: int) -> Indices:
    """The logarithm of the lanes of each output: no lane has much more than its share of the slice's entries."""
    entries = np.bincount(owner, weights=length, minlength=slices)
    share_of_lane = np.maximum(np.ceil(entries / (warps * 32 * PACK)), 1) * PACK
    lanes = np.maximum(length, 1) / share_of_lane[owner]
    return np.asarray(np.clip(np.ceil(np.log2(lanes)), 0, 5), dtype=np.int64)


def sorted_outputs(length: Indices, owner: Indices, log: Indices) -> Outputs:
    """Outputs of a tile have the same number of lanes and, since neighbours are about equally long, little padding."""
    order = np.lexsort((-length, -log, owner))
    owner, log = owner[order], log[order]
    # an output opens a tile where its group (slice and lanes) begins, or where the tile before is full
    group = owner * 8 + log
    everything = np.arange(len(order))
    begins = np.ones(len(order), dtype=np.bool_)
    begins[1:] = group[1:] != group[:-1]
    begin_of_group = np.maximum.accumulate(np.where(begins, everything, 0))
    number = (everything - begin_of_group) % (32 >> log)
    return Outputs(order, owner, log, length[order], number == 0, number)


def tiles_of_outputs(outputs: Outputs) -> TileList:
    """A tile is as deep as its first output, the longest, needs."""
    first = np.flatnonzero(outputs.opens)
    log = outputs.log[first]
    packs = -(-outputs.length[first] // (PACK << log))
    count = np.diff(np.append(first, len(outputs.order)))
    return TileList(outputs.owner[first], log, first, count, packs)


def places_of_entries(outputs: Outputs, pack0: Indices) -> Indices:
    """Where each entry of the matrix lies among the packed ones; ``pack0`` is the first pack of each tile.

    Entry k of an output with T lanes goes to lane k mod T, and in a lane one pack is filled after the other.
    """
    tile = _scattered(outputs.order, np.cumsum(outputs.opens) - 1)
    log, number = _scattered(outputs.order, outputs.log), _scattered(outputs.order, outputs.number)
    length = _scattered(outputs.order, outputs.length)
    output = np.repeat(np.arange(len(length)), length)
    k = ranges(np.zeros_like(length), length)
    log = log[output]
    lanes = 1 << log
    lane, depth = number[output] * lanes + k % lanes, k >> log
    pack = pack0[tile[output]] + depth // PACK
    return np.asarray((pack * 32 + lane) * PACK + depth % PACK)


@dataclass(frozen=True)
class LaneTiles:
    """Sparse sums (*outputs*) of many slices as tiles; a slice is a thread block's part of a client.

    From the rows of a matrix to what the warps read::

        outputs          o0 o1 o2 o3 ...        the rows of the matrix, each of one slice
                         |   lanes_of_outputs: how many lanes share each
        sorted outputs   o2 o0 | o3 o1 ...      by slice, lanes and length
                         |   tiles_of_outputs: up to 32 lanes each
        tiles            t0    | t1 ...
                         |   _schedule: dealt to the warps of their slice
        packs            in the order in which the warps read them; places_of_entries fills them
    """

    tiles: AnyArray
    """(tiles, 4) int32: first pack (in rows of 32), packs per lane, outputs << 3 | log2(lanes), first output."""
    tile0: Indices
    """The first tile of each slice."""
    pack0: Indices
    """The first pack of each slice, in rows of 32."""
    warps: AnyArray
    """(slices, warps + 1) int32: tiles warps[s, v] to warps[s, v + 1] - 1 of slice s are warp v's."""
    place: Indices
    """The number of each output in its slice."""
    idx: AnyArray
    """Which number each packed entry reads."""
    val: AnyArray
    """The factors of the packed entries."""

    @staticmethod
    def of(
        slices: int,
        owner: Indices,
        outputs: Matrix,
        blank: Indices,
        warps: int,
        extra: float,
        index: npt.DTypeLike,
        kind: npt.DTypeLike,
    ) -> LaneTiles:
        """The rows of the CSR matrix ``outputs``, which belong to the slices ``owner``.

        Args:
            blank: for each slice, the index of a zero, for padding.
            extra: the cost of finishing a tile, in entries.
        """
        length = np.diff(outputs.indptr).astype(np.int64)
        ordered = sorted_outputs(length, owner, lanes_of_outputs(length, owner, slices, warps))
        first_of_slice = np.searchsorted(ordered.owner, np.arange(slices + 1))
        place = _scattered(ordered.order, np.arange(len(length)) - first_of_slice[ordered.owner])
        tiles = tiles_of_outputs(ordered)
        cost = np.asarray(tiles.packs * PACK + extra + 3 * tiles.log, dtype=np.float64)
        warp, final = _schedule(slices, tiles.owner, cost, warps)
        start = offsets(tiles.packs[final])
        first_pack = _scattered(final, start[:-1])
        tile0 = np.searchsorted(tiles.owner[final], np.arange(slices + 1))
        pack0 = start[tile0]
        columns = (
            first_pack - pack0[tiles.owner],
            tiles.packs,
            (tiles.outputs << 3) | tiles.log,
            place[ordered.order[tiles.first]],
        )
        table = np.stack(columns, axis=1)[final].astype(np.int32)
        idx = np.repeat(blank, np.diff(pack0) * 32 * PACK).astype(index)
        val = np.zeros(len(idx), dtype=kind)
        at = places_of_entries(ordered, first_pack)
        idx[at], val[at] = outputs.indices, outputs.data
        if len(idx) <= MAX_ENTRIES_UNTANGLED:
            # the banks of shared memory, side by side, hold 128 bytes: 32 floats or 16 doubles
            untangled = untangle(first_pack[final], tiles.packs[final], idx, 128 // val.itemsize)
            idx, val = idx[untangled], val[untangled]
        return LaneTiles(table, tile0, pack0, _ends_of_warps(slices, warps, tiles.owner, warp), place, idx, val)


def _ends_of_warps(slices: int, warps: int, owner: Indices, warp: Indices) -> AnyArray:
    """Where the tiles of each warp of each slice begin and end."""
    counts = np.bincount(owner * warps + warp, minlength=slices * warps).reshape(slices, warps)
    ends = np.zeros((slices, warps + 1), dtype=np.int32)
    ends[:, 1:] = np.cumsum(counts, axis=1)
    return ends


@dataclass(frozen=True)
class Layout:
    """Every client cut into slices of rows, each tiled by rows and by columns."""

    rows: LaneTiles
    columns: LaneTiles
    labels: Array
    shares: Array
    numbers: AnyArray
    colmap: AnyArray
    """Which column each output of the column tiles is; padded so that each slice's begins at 16 bytes."""
    meta: Indices
    """Of each slice: first tile, tiles, first pack and packs, by rows and by columns; first row, rows."""

    @staticmethod
    def of(data: ClientRows, G: int, warps: int, kind: npt.DTypeLike) -> Layout:
        """Deal each client's rows to its G slices, and build both kinds of tiles."""
        F, S = data.A.shape[1], data.clients * G
        slice_of = _dealt(data, G)
        m = np.bincount(slice_of, minlength=S)
        index = np.uint16 if max(F, int(m.max(initial=0))) < 2**16 - 1 else np.uint32
        # a row's output costs a slope, a column's little more than the store; blank entries of a row read x[F] = 0,
        # those of a column z[m] = 0 of their own slice
        rows = LaneTiles.of(S, slice_of, data.A, np.full(S, F), warps, 12.0, index, kind)
        by_column = _columns_of_slices(data.A, slice_of, rows.place, m)
        slice_of_column = np.repeat(np.arange(S), F)
        columns = LaneTiles.of(S, slice_of_column, by_column, m, warps, 4.0, index, kind)
        colmap = np.zeros((S, _multiple(F, 8)), dtype=index)
        colmap[slice_of_column, columns.place] = np.tile(np.arange(F), S)
        row0 = offsets(_multiple(m, 4))
        at, room = row0[slice_of] + rows.place, int(row0[-1])
        labels = _put(np.zeros(room, dtype=kind), at, data.labels)
        shares = _put(np.zeros(room, dtype=kind), at, data.shares)
        numbers = _put(np.zeros(room, dtype=np.uint32), at, data.numbers)
        extents = [v for t in (rows, columns) for v in (t.tile0[:-1], np.diff(t.tile0), t.pack0[:-1], np.diff(t.pack0))]
        meta = np.stack([*extents, row0[:-1], m], axis=1).astype(np.int64)
        return Layout(rows, columns, labels, shares, numbers, colmap, meta)

    def data_bytes(self, unit: bool, numbers_of_rows: int) -> Indices:
        """Bytes of each slice in shared memory: tiles, indices, values unless all are one, colmap, and row data."""
        index, real = self.colmap.itemsize, self.rows.val.itemsize
        tiles = self.meta[:, [1, 5]].sum(axis=1)
        packs = self.meta[:, [3, 7]].sum(axis=1)
        m = self.meta[:, 9]
        entries = packs * 32 * PACK * (index + (0 if unit else real))
        of_rows = numbers_of_rows * _multiple(m, 4) * real
        return np.asarray(tiles * 16 + entries + of_rows + self.colmap.shape[1] * index + 16 * 9, dtype=np.int64)


def _dealt(data: ClientRows, G: int) -> Indices:
    """The slice of each row.

    The longest rows of a client go first, to slices 0, 1, ... G-1, G-1, ... 0, 0, ..., to balance the entries.
    """
    order = np.lexsort((-np.diff(data.A.indptr), data.owner))
    rank = _scattered(order, np.arange(len(order)) - data.row0[data.owner[order]])
    return np.asarray(data.owner * G + _back_and_forth(rank, G))


def _columns_of_slices(A: Matrix, slice_of: Indices, place: Indices, rows_of_slice: Indices) -> Matrix:
    """A CSR matrix with a row for every column of every slice, whose entries are at the places of the slice's rows."""
    F, S = A.shape[1], len(rows_of_slice)
    row = np.repeat(np.arange(A.shape[0]), np.diff(A.indptr))
    cells = slice_of[row] * F + A.indices
    shape = S * F, max(1, int(rows_of_slice.max(initial=0)))
    columns = scipy.sparse.csr_matrix((A.data, (cells, place[row])), shape=shape)
    columns.sort_indices()
    return columns


def _multiple(v: Any, of: int) -> Any:
    """v, rounded up to a multiple."""
    return -(-v // of) * of


def _put(room: AnyArray, at: Indices, values: AnyArray) -> AnyArray:
    """``room`` with the values at these places."""
    room[at] = values
    return room


def untangle(pack0: Indices, packs: Indices, idx: AnyArray, banks: int) -> Indices:
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


def _scattered(order: Indices, values: AnyArray) -> Indices:
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
