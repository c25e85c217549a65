"""Which blocks work on which client, what lies where on the GPU, and the launch of all local steps of a round.

How a launch is chosen, once per problem:

* Full gradients read tiles. A client's blocks form a cluster, as large as lets all parallel clients be on the card at
  once, but with enough entries for each block; larger where the shards do not fit into shared memory otherwise.
* Where no cluster holds a client, or few clients have many entries each, its blocks are a share of the whole card and
  meet in global memory (``grid``). What does not fit into shared memory then stays in global memory: x and h if they
  alone are too large; the data if they do not fit beside them and z; and then z, if need be.
* Small minibatches go row by row, since every step reads other rows; so do many clients of a few rows each. A minibatch
  of many of a client's rows reads tiles, with weight zero for the other rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from proxskip.engines.gpu import cuda
from proxskip.engines.gpu.device import clusters_at_once
from proxskip.engines.gpu.tiles import ClientRows, Layout
from proxskip.problems.federated import Problem
from proxskip.problems.glm import LinearModel
from proxskip.problems.packed import has_even_rows, stores_of
from proxskip.problems.softmax import Softmax
from proxskip.types import InputError

CLUSTER_SIZES = (8, 6, 5, 4, 3, 2, 1)
"""Blocks that a cluster may have on every card with clusters."""
PROCESSORS_PER_PART = 16
"""Multiprocessors of one part of a card (a "GPC"): the blocks of a cluster are always on one part."""
MAX_ROWS_WITHOUT_TILES = 24
"""Mean number of rows per client up to which many clients are read row by row."""
ROWS_PER_CHUNK = 512
"""Rows whose margins and slopes a block holds at a time where it goes row by row."""
MIN_BATCH_SHARE = 0.05
"""The share of the clients' rows from which a minibatch reads tiles."""
REGISTERS_PER_PROCESSOR = 65536
MOST_THREADS = 896
"""Threads of a block that has warps for the draws: with more of them the registers do not suffice."""
STAGE = 32
"""Entries of a minibatch's row that are in shared memory when its step begins; the others are read from the card's."""
MOST_PLACES = 2**13
"""Places of a table of draws that has one for every row of a client."""
MOST_MARKS = 2**31 - 1
"""Steps after which a table of draws is made empty, unless its entries have room for fewer marks."""
PACK = 4
"""Entries of a lane that are loaded at once."""
NOTHING = np.uint64(0)
"""A null pointer."""


class Launches:
    """The number of launches in this process."""

    total = 0


def start(kernel: Any, blocks: tuple[int, ...], threads: tuple[int, ...], arguments: Any, shared: int = 0) -> None:
    """Launch a kernel and count it; all launches of the engine go through here."""
    Launches.total += 1
    kernel(blocks, threads, arguments, shared_mem=shared)


@dataclass(frozen=True)
class Card:
    """The properties of a GPU on which the launch depends; ``shared`` is in bytes per block."""

    name: str
    processors: int
    shared: int
    clusters: bool

    @staticmethod
    def here() -> Card:
        """The current device."""
        import cupy  # type: ignore[import-not-found]

        device = cupy.cuda.Device()
        a = device.attributes
        name = cupy.cuda.runtime.getDeviceProperties(device.id)["name"].decode()
        clusters = int(device.compute_capability) >= 90
        # a little less than there is: the kernels have static shared memory too
        return Card(name, a["MultiProcessorCount"], a["MaxSharedMemoryPerBlockOptin"] - 256, clusters)

    def blocks(self, n: int) -> int:
        """The largest cluster of which n are on the card at the same time."""
        if not self.clusters:
            return 1
        parts = max(1, self.processors // PROCESSORS_PER_PART)
        most = {c: min(parts * (PROCESSORS_PER_PART // c), self.processors // c) for c in CLUSTER_SIZES}
        return next((c for c in CLUSTER_SIZES if n <= most[c]), 1)


class LocalSteps:
    """All clients' data on the GPU, and ``descend``: one launch for all the steps of a round.

    Args:
        parallel: how many clients a launch usually has, to choose the number of blocks for each.
        full: full gradients although the problem has minibatches.
    """

    def __init__(
        self,
        problem: Problem,
        parallel: int,
        full: bool = False,
        blocks: int | None = None,
        threads: int | None = None,
        grid: bool | None = None,
        data: ClientRows | None = None,
    ) -> None:
        models = stores_of(problem.clients)
        first = models[0]
        self.card = Card.here()
        self.kind = np.dtype(first.dtype)
        self.r = self.kind.itemsize
        self.Q = first.C if isinstance(first, Softmax) else 1
        self.F, self.d = int(first.A.shape[1]), problem.d
        self.loss = cuda.LOSSES[first.loss]
        self.batch = 0 if full else problem.batch or 0
        if self.batch and not has_even_rows(problem.clients):
            raise InputError('the gpu engine draws minibatches of rows of equal weight only; use engine="cpu".')
        self.n = problem.n
        self.data = data or ClientRows.of(models, problem.rows_each)
        self.unit = self.data.unit
        few_rows = len(self.data.labels) <= MAX_ROWS_WITHOUT_TILES * self.n and self.n >= 4 * self.card.processors
        small = self.batch * self.n < MIN_BATCH_SHARE * len(self.data.labels)
        self.by_rows = few_rows or (self.batch > 0 and small)
        self.writers = 0
        self.reg = np.stack([f.reg for f in models])
        if np.all(self.reg == self.reg[0]):
            self.reg = self.reg[:1]
        self.parallel = max(1, parallel)
        self.asked = blocks, threads, grid
        self.kept: dict[str, Any] = {}
        self.draws_global = False
        if self.by_rows:
            self._plan_rows()
        else:
            self._plan_tiles()

    @staticmethod
    def fit(problem: Problem) -> bool:
        """Whether every client is a linear model of the same loss and type, so that one kernel serves all."""
        models = stores_of(problem.clients)
        first = models[0]
        return isinstance(first, LinearModel) and all(type(f) is type(first) and f.dtype == first.dtype for f in models)

    # -- who works on what ---------------------------------------------------------------------------------------------
    def _state(self, cluster: int) -> int:
        """Bytes of x, h and reg in a block's shared memory, and of its two inboxes in a cluster of several blocks."""
        inbox = _up(2 * cluster * self.d * self.r) if cluster > 1 else 0
        return _up(self.Q * (self.F + 1) * self.r) + 2 * _up(self.d * self.r) + inbox

    def _plan_draws(self) -> int:
        """The numbers of a step's draws and their table; their bytes in shared memory.

        A table with a place for every row has no collisions; where that is too large, it is twice as large as needed.
        """
        if not self.batch:
            return 0
        sizes = np.diff(self.data.row0)
        most = max(1, int(np.minimum(self.batch, sizes - self.batch).max()))
        table = _power(int(sizes.max()), 32, 2**31)
        table = table if table <= MOST_PLACES else _power(2 * most, 32, 2**31)
        bits = max(1, (most - 1).bit_length())
        marks = min(MOST_MARKS, 2 ** (32 - bits) - 1)
        # tiles ask of every row whether it is drawn
        taken = 0 if self.by_rows else int(sizes.max())
        self.kept |= {"most_draws": most, "table_size": table, "taken": taken, "bits": bits, "marks": marks}
        return _up(4 * most) + _up(4 * table) + _up(4 * taken)

    def _place_draws(self, draws: int, room: int) -> int:
        """The bytes that the draws take of the shared memory that is left: where they do not fit, none."""
        self.draws_global = draws > room
        if self.draws_global:
            import cupy

            items = self.groups * sum(self.kept[name] for name in ("most_draws", "table_size", "taken"))
            self.kept["drawg"] = cupy.zeros(items, dtype=np.uint32)
        return 0 if self.draws_global else draws

    def _add_drawers(self) -> int:
        """Warps that draw the next rows while the others do the step; none where blocks share the draws."""
        if not self.batch or self.grid:
            return 0
        warps = max(0, min(-(-int(self.kept["most_draws"]) // 32), (MOST_THREADS - self.threads) // 32))
        self.threads += 32 * warps
        return warps

    def _staged(self, rows: int, index: int) -> int:
        """Bytes of a block's rows of a small minibatch that is read before its step begins; 0 if it is not small."""
        sizes = np.diff(self.data.row0)
        if not self.batch or rows > ROWS_PER_CHUNK or 2 * self.batch > int(sizes.min()):
            return 0
        entry = index + (0 if self.unit else self.r)
        turns = 2 * (_up(rows * 8) + _up(rows * 4) + _up(rows * self.r))
        return turns + _up(self.Q * rows * self.r) + _up(rows * STAGE * entry) + 32

    def _plan_rows(self) -> None:
        """Row by row. A block has at least 64 rows of a batch, and about eight threads per row."""
        blocks, threads, grid = self.asked
        mean = self.batch or max(1, len(self.data.labels) // self.n)
        C = blocks or max(1, min(self.card.blocks(self.parallel), mean // 64))
        limit = self.card.shared - 64
        # starts, lengths and slopes of a chunk of rows; at least one gradient must fit beside them and the state
        fixed = _up(ROWS_PER_CHUNK * 8) + _up(ROWS_PER_CHUNK * 4) + _up(self.Q * ROWS_PER_CHUNK * self.r)
        draws = self._plan_draws()
        chunk, narrow = ROWS_PER_CHUNK, np.uint16 if self.F < 2**16 - 1 else np.uint32
        staged = self._staged(-(-self.batch // C), np.dtype(narrow).itemsize)
        if staged and not grid and self._state(C) + staged + draws + self.d * self.r <= limit:
            chunk, fixed = -(-self.batch // C), staged
        else:
            staged = 0
        if grid is None:
            grid = self._state(C) + fixed + draws + self.d * self.r > limit
        self.threads = threads or _power(mean // C * 8, 64, 512)
        warps = self.threads // 32
        self.grid, self.G, self.whole_x = grid, C, not grid
        drawers = self._add_drawers() if staged else 0
        if grid:
            self._count_groups(max(1, self.card.processors // self.parallel))
        fixed += self._place_draws(draws, limit - fixed if grid else draws)
        if grid:
            self.whole_x = self._state(1) + fixed + self.d * self.r <= limit
        # as many warps write gradients of their own as these fit into shared memory
        room = limit - fixed - self._state(1 if grid else C)
        self.writers = max(1, min(warps, room // (self.d * self.r))) if self.whole_x else warps
        used = fixed + (self._state(1 if grid else C) + _up(self.writers * self.d * self.r) if self.whole_x else 0)
        self.shared, self.kept["chunk"] = used, chunk
        put = self._put
        put("row0", self.data.row0)
        put("indptr", self.data.indptr)
        put("indices", self.data.indices.astype(narrow))
        put("values", np.zeros(1) if self.unit else self.data.values.astype(self.kind))
        put("labels", self.data.labels.astype(self.kind))
        put("shares", self.data.shares.astype(self.kind))
        if not self.whole_x:
            self._scratch("privg", self.groups * self.G * self.writers * self.d)
        self._finish(narrow, ROWS=1, DG=0, ZG=0, STAGED=int(staged > 0), DRAWERS=drawers)

    def _plan_tiles(self) -> None:
        """Tiles: the smallest group of blocks that holds a client in shared memory, larger where the card has room."""
        blocks, threads, grid = self.asked
        data = self.data.sampled(self.batch) if self.batch else self.data.merged()
        draws = self._plan_draws()
        nnz = max(1, int(np.diff(data.indptr[data.row0]).max()))
        mean = max(1, len(data.indices) // self.n)
        limit = self.card.shared
        C = blocks or min(self.card.blocks(self.parallel), max(1, mean // 512))
        # an estimate, before the layout is built: every entry is stored twice, by rows and by columns, with some 15 %
        # for blank entries; a row has its weight, perhaps its label, and Q slopes
        cell = (2 if self.F < 2**16 - 1 else 4) + (0 if self.unit else self.r)
        rows = int(np.diff(data.row0).max())
        about = 2.3 * nnz * cell + rows * ((2 if self.loss else 1) + self.Q) * self.r

        def fits(c: int) -> bool:
            return bool(self._state(c) + draws + about / c <= limit)

        # 9 stands for no cluster: the client's blocks meet in global memory
        if blocks is None and not fits(C):
            C = next((c for c in (1, 2, 4, 8) if c > C and fits(c) and (c == 1 or self.card.clusters)), 9)
        # few large clients: clusters of eight would leave more than half of the card idle
        idle = self.parallel * 8 < self.card.processors // 2 and mean > 2**17
        self.grid = (C > 8 or idle) if grid is None else grid
        # build the layout, and again with larger groups while it does not fit
        while True:
            self.G = blocks or (max(1, self.card.processors // self.parallel) if self.grid else C)
            # about 26 entries or rows of the largest client per thread
            self.threads = threads or min(512, max(128, -(-max(nnz, rows) // (self.G * 26 * 128)) * 128))
            layout = Layout.of(data, self.G, self.threads // 32, PACK, self.unit, self.kind)
            bytes_, m = layout.data_bytes(PACK, self.r, 1 if self.loss == 0 else 2), layout.meta[:, 9]
            bytes_ = bytes_ + (4 * m + 32 if self.batch else 0)  # the rows' numbers
            z = _up(1) + (m + 1) * self.Q * self.r
            self.shared = self._state(1 if self.grid else C) + draws + int((bytes_ + z).max())
            if self.grid or self.shared <= limit:
                break
            if blocks is not None:
                raise InputError(f"{blocks} blocks per client do not hold its shard; leave the number open.")
            C = next((c for c in (2, 4, 8) if c > C), 9)
            self.grid = C > 8 or not self.card.clusters
        drawers = self._add_drawers()
        # what stays in global memory, see the top of this module
        data_global = z_global = False
        self.whole_x = True
        if self.grid:
            self._count_groups(self.G)
            # first what the draws need, then x and h, then the rows
            draws = self._place_draws(draws, limit // 4)
            self.whole_x = self._state(1) + draws <= limit
            state = draws + (self._state(1) if self.whole_x else 0)
            data_global = state + int((bytes_ + z).max()) > limit
            z_global = data_global and state + int(z.max()) > limit
            self.shared = state + (0 if z_global else int(z.max())) + (0 if data_global else int(bytes_.max()))
            if z_global:
                stride = int((m.max() + 1) * self.Q)
                self._scratch("zg", self.groups * self.G * stride)
                self.kept["zstride"] = stride
        self._upload(layout)
        self._finish(layout.row_idx.dtype, ROWS=0, DG=int(data_global), ZG=int(z_global), STAGED=0, DRAWERS=drawers)

    def _count_groups(self, G: int) -> None:
        """Groups of G blocks that are on the card at once, and where the blocks of each meet."""
        self.G = G
        self.groups = max(1, min(self.parallel, self.card.processors // G))
        self._scratch("part", self.groups * G * self.d)
        self._scratch("xg", self.groups * self.Q * (self.F + 1))
        self._scratch("hg", self.groups * 2 * self.d)

    def _upload(self, layout: Layout) -> None:
        put = self._put
        put("meta", layout.meta)
        put("row_tiles", layout.rows.tiles)
        put("col_tiles", layout.columns.tiles)
        put("row_idx", layout.row_idx)
        put("col_idx", layout.col_idx)
        put("row_val", np.zeros(1) if layout.row_val is None else layout.row_val)
        put("col_val", np.zeros(1) if layout.col_val is None else layout.col_val)
        put("b", layout.labels)
        # the logistic loss's labels, +1 and -1, are the signs of the weights
        put("w", layout.shares * layout.labels if self.loss == 0 else layout.shares)
        put("colmap", layout.colmap)
        if self.batch:
            put("numbers", layout.numbers)
            put("row0", self.data.row0)
        put("row_warps", layout.rows.warps)
        put("col_warps", layout.columns.warps)

    # -- what lies where -----------------------------------------------------------------------------------------------
    def _put(self, name: str, array: Any) -> None:
        """Send an array to the card, for the plan's entry of this name."""
        import cupy

        # a little longer than the data: the kernels load 16 bytes at a time
        raw = np.ascontiguousarray(array).view(np.uint8).ravel()
        room = cupy.zeros(raw.size + 64, dtype=np.uint8)
        room[: raw.size].set(raw) if raw.size else None
        self.kept[name] = room

    def _scratch(self, name: str, items: int) -> None:
        """Room on the card for what does not fit into shared memory, or what blocks exchange."""
        import cupy

        self.kept[name] = cupy.zeros(max(1, items), dtype=self.kind)

    def _finish(self, narrow: Any, **macros: int) -> None:
        """The plan (the table of sizes and addresses that the kernel reads) and the macros it is compiled with."""
        import cupy

        if not self.grid:
            self.groups = 0
        self.room = max(self.shared, 8 * cuda.STAGED_NUMBERS)  # shared memory of a launch that ends with the means
        self._put("reg", self.reg)
        self.counters = cupy.zeros(self.groups + 2, dtype=np.uint32)  # one per group; then all blocks: arrived, left
        self.kernels: dict[cuda.Round, tuple[Any, int]] = {}
        numbers = {
            "F": self.F,
            "Q": self.Q,
            "reg_stride": self.d if len(self.reg) > 1 else 0,
            "batch": self.batch,
            "writers": self.writers,
            "G": self.G,
            "groups": self.groups,
            "counters": self.counters.data.ptr,
        }
        table = {k: v if isinstance(v, int) else v.data.ptr for k, v in self.kept.items()} | numbers
        self.plan = cupy.asarray(np.array([table.get(k, 0) for k in cuda.PLAN], dtype=np.int64))
        self.macros = {
            "REAL": "double" if self.r == 8 else "float",
            "INDEX": "unsigned short" if np.dtype(narrow).itemsize == 2 else "unsigned int",
            "UNIT": int(self.unit),
            "LOSS": self.loss,
            "CL": 1 if self.grid else self.G,
            "GRID": int(self.grid),
            "SG": int(not self.whole_x),
            "THREADS": self.threads,
            "PACK": PACK,
            "BLOCKS": self._blocks_together(),
            "DRAW": int(self.batch > 0),
            "STAGE": STAGE,
            "DRAWG": int(self.draws_global),
            **macros,
        }

    def _blocks_together(self) -> int:
        """Blocks that a multiprocessor should hold in a launch that needs all of its blocks at once."""
        wanted = -(-self.parallel * self.G // self.card.processors)
        # what shared memory, registers (56 per thread) and the hardware allow
        room = min((self.card.shared + 1280) // (self.room + 1024), REGISTERS_PER_PROCESSOR // (self.threads * 56), 32)
        return 1 if self.grid else max(1, min(wanted, room))

    def kernel(self, round: cuda.Round) -> tuple[Any, int]:
        """The compiled kernel, and how many clients it has on the card at once (0 where that is unknown)."""
        if round not in self.kernels:
            # a cooperative launch fails, instead of waiting for ever, unless all its blocks are on the card at once;
            # for clusters the driver is asked instead
            cooperative = self.grid or (bool(round.ends) and self.G == 1)
            found = cuda.module(round, cooperative, tuple((k, str(v)) for k, v in self.macros.items()))
            if self.room > 48 * 1024 - 512:
                found.max_dynamic_shared_size_bytes = max(self.room, found.max_dynamic_shared_size_bytes)
            self.kernels[round] = found, self._at_once(found) if round.ends else 0
        return self.kernels[round]

    def _at_once(self, kernel: Any) -> int:
        """Clients, each with its group of blocks, that are on the card at the same time."""
        import cupy

        if self.grid:
            return self.groups
        if self.G > 1:
            return clusters_at_once(kernel.kernel.ptr, self.G, self.threads, self.room)
        one = cupy.cuda.driver.occupancyMaxActiveBlocksPerMultiprocessor(kernel.kernel.ptr, self.threads, self.room)
        return int(one) * self.card.processors

    # -- the launch ----------------------------------------------------------------------------------------------------
    def descend(self, count: int, X: Any, H: Any, gamma: Any, K: Any, **how: Any) -> Any:
        """K times  x <- x - gamma (g(x) - h)  for ``count`` clients; arrays live on the GPU.

        Args:
            X: (d,) for all clients, or (count, d); H likewise, or None for zero.
            gamma, K: a number, or an array with one for each.
            how: as for ``launch``.
        """
        import cupy

        out = cupy.empty((count, self.d))
        strides = [np.int64(0 if v is None or v.ndim == 1 else self.d) for v in (X, H)]
        arrays = (X, strides[0], NOTHING if H is None else H, strides[1], *_one_or_many(gamma, np.float64))
        self.launch(cuda.STEPS, arrays, count, K, out, **how)
        return out

    def launch(
        self,
        code: cuda.Round,
        given: Any,
        count: int,
        K: Any,
        out: Any,
        *,
        members: Any = None,
        order: Any = None,
        seeds: Any = None,
        seed: int = 0,
        rounds: Any = None,
        round: int = 0,
        step0: Any = 0,
        want_gradient: bool = False,
        pull: float = 0.0,
    ) -> None:
        """``descend`` into ``out`` with whatever else ``code`` says; a whole round needs its blocks at once.

        Args:
            members: whose data (int32); all clients in order if None.
            order: who begins first (int32); those with many steps should.
            seeds, rounds: one for each (uint64, uint32), in place of ``seed`` and ``round``.
            step0: the number of the first step among the round's minibatches; one for all, or one for each (uint32).
            want_gradient: with K = 1, the gradient at X in place of the step; with K = 0 X itself.
            pull: added to the clients' l2 terms, as a pull to zero.
        """
        if want_gradient and self.batch:
            raise ValueError("full gradients are taken by a kernel without minibatches.")
        # a whole round: no more groups than are on the card at once, each with several clients in turn
        kernel, most = self.kernel(code)
        groups = self.groups if self.grid else min(count, most) if code.ends else count
        whose, first, keys, numbers = (NOTHING if v is None else v for v in (members, order, seeds, rounds))
        arguments = (
            self.plan, *given, *_one_or_many(K, np.int32), whose, first, out, np.int32(count), np.int32(want_gradient),
            keys, np.uint64(seed), numbers, np.uint32(round), *_one_or_many(step0, np.uint32), np.float64(pull),
        )  # fmt: skip
        start(kernel, (groups * self.G,), (self.threads,), arguments, self.room if code.ends else self.shared)

    def describe(self) -> str:
        """The launch in a few words."""
        how = "grid" if self.grid else "cluster"
        where = "global" if self.macros["DG"] else "shared"
        kind = "rows" if self.by_rows else "tiles"
        return f"{how} of {self.G} x {self.threads} threads, {kind} in {where} memory, {self.shared} bytes per block"


def _one_or_many(v: Any, kind: Any) -> tuple[Any, Any]:
    """The two arguments (an array on the card, a number) of which a kernel uses the array if there is one."""
    return (NOTHING, kind(v)) if isinstance(v, (int, float)) or np.ndim(v) == 0 else (v, kind(0))


def _up(bytes_: int) -> int:
    """Rounded up to 16, as the kernel's ``take`` does."""
    return -(-bytes_ // 16) * 16


def _power(v: int, low: int, high: int) -> int:
    """The next power of two, within [low, high]."""
    return int(min(high, max(low, 1 << max(0, (int(v) - 1).bit_length()))))
