"""Plans and launches local steps on the GPU: which blocks work on which client, and what lies where.

How a launch is chosen, once per problem:

* Full gradients read tiles. A client's blocks form a cluster, as large as possible with all clients on the GPU at once
  and enough entries per block; larger if the shards do not fit into shared memory otherwise.
* If no cluster holds a client, or few clients have many entries each, a client's blocks are a share of the whole GPU
  and meet in global memory (``grid``). Global memory then holds what does not fit: x and h, the data, and z, in this
  order.
* Small minibatches, and many clients with few rows each, are read row by row. A minibatch of many rows reads tiles,
  with weight zero for the other rows.

A separate launch draws the minibatches of up to ``STEPS_DRAWN`` steps in advance.
"""

from __future__ import annotations

import copy
import weakref
from functools import cached_property
from threading import Event
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from proxskip.core.engine import look
from proxskip.engines.gpu import cuda
from proxskip.engines.gpu.cuda import NULL, CardArray
from proxskip.engines.gpu.device import Card
from proxskip.engines.gpu.tiles import PACK, ClientRows, Layout
from proxskip.problems.federated import Problem
from proxskip.problems.glm import Softmax
from proxskip.problems.packed import Packed
from proxskip.types import AnyArray, Column, Counts, Indices, InputError

MAX_ROWS_WITHOUT_TILES = 24
"""The mean number of rows per client up to which many clients are read row by row."""
ROWS_PER_CHUNK = 512
"""Rows whose slopes a block holds at a time when it reads row by row."""
MIN_BATCH_SHARE = 0.05
"""The share of rows from which a minibatch reads tiles."""
STEPS_DRAWN = 128
"""Steps whose minibatches are drawn together, unless they exceed ``DRAWN_BYTES``."""
DRAWN_BYTES = 1 << 28
DRAWING_THREADS, MASK_BYTES = 128, 40 * 1024
"""Of a block that draws: its threads, and the most shared memory for one bit per row."""
LAUNCH_SECONDS = 0.05
"""About how long launches may take between two checks for an interrupt."""
STEP_SECONDS, ENTRIES_PER_SECOND = 5e-6, 1e11
"""The estimated time of a local step: the first, plus entries over the second."""
StepArguments: TypeAlias = tuple[CardArray, int, CardArray]
"""K as the kernel takes it: an array or null, a number, and the order in which clients begin."""


class LocalSteps:
    """All clients' data on the GPU, with their local steps and gradients.

    Args:
        blocks: thread blocks per client; by default chosen for the GPU, as are
        threads: threads per block, and
        grid: whether the blocks of a client meet in global memory.
    """

    def __init__(
        self, problem: Problem, blocks: int | None = None, threads: int | None = None, grid: bool | None = None
    ) -> None:
        assert isinstance(problem.clients, Packed)
        store = problem.clients.store
        self.card = Card.here()
        self.kind = np.dtype(store.dtype)
        self.real_bytes = self.kind.itemsize
        self.Q = store.C if isinstance(store, Softmax) else 1
        self.F, self.d = int(store.A.shape[1]), problem.d
        self.loss = cuda.LOSSES[store.loss]
        self.batch = int(problem.batch or 0)
        if self.batch and not problem.clients.has_even_rows():
            raise InputError('the gpu engine needs rows of equal weight for minibatches; use engine="cpu".')
        self.n = problem.n
        self.data = ClientRows.of(store, problem.rows_each)
        self.unit = self.data.unit
        self.reg = store.reg
        self.options = blocks, threads, grid
        self._plan()

    @staticmethod
    def fit(problem: Problem) -> bool:
        """Whether all clients are linear models of one kind that has kernels."""
        return isinstance(problem.clients, Packed) and problem.clients.store.has_kernels

    @cached_property
    def full(self) -> LocalSteps:
        """The same clients without minibatches."""
        other = copy.copy(self)
        other.batch = 0
        other._plan()
        return other

    # -- planning ------------------------------------------------------------------------------------------------------
    def _plan(self) -> None:
        self.plan: dict[str, int | CardArray] = {}  # the fields of ``Plan``: sizes, and arrays on the GPU
        self.constants: dict[str, int | str] = {"X_GLOBAL": 0, "DATA_GLOBAL": 0, "Z_GLOBAL": 0}
        rows = len(self.data.labels)
        few_rows = rows <= MAX_ROWS_WITHOUT_TILES * self.n and self.n >= 4 * self.card.processors
        small = 0 < self.batch * self.n < MIN_BATCH_SHARE * rows
        self.by_rows = few_rows or small
        if self.by_rows:
            self._plan_rows(*self.options)
        else:
            self._plan_tiles(*self.options)
        self._send("row0", self.data.row0)
        self._send("reg", self.reg)
        self.plan |= {"F": self.F, "Q": self.Q, "reg_stride": 0}
        self.plan |= {"batch": self.batch, "mask_words": -(-int(np.diff(self.data.row0).max()) // 32)}
        self.constants |= {
            "REAL": "double" if self.real_bytes == 8 else "float",
            "UNIT": int(self.unit),
            "LOSS": self.loss,
            "MINIBATCHES": int(self.batch > 0),
            "THREADS": self.threads,
            "CLUSTER": 1 if self.grid else self.group_size,
            "GRID": int(self.grid),
            "PACK": PACK,
        }
        self.kernel = cuda.local_steps("rows" if self.by_rows else "tiles", self.grid, self.constants)
        if self.shared > 48 * 1024 - 512:
            # problems of one shape share a kernel
            most = max(self.shared, self.kernel.max_dynamic_shared_size_bytes)
            self.kernel.max_dynamic_shared_size_bytes = most
        self.table = _plan_table(self.plan)

    def _state(self, cluster: int) -> int:
        """Bytes of x, h and reg in a block's shared memory, and of its two inboxes in a cluster."""
        inbox = _up(2 * cluster * self.d * self.real_bytes) if cluster > 1 else 0
        return _up(self.Q * (self.F + 1) * self.real_bytes) + 2 * _up(self.d * self.real_bytes) + inbox

    def _plan_rows(self, blocks: int | None, threads: int | None, grid: bool | None) -> None:
        """Row by row: at least 64 rows of a step per block, and about eight threads per row."""
        sizes = np.diff(self.data.row0)
        rows = self.batch or max(1, int(sizes.mean()))
        C = blocks or max(1, min(self.card.blocks(self.n), rows // 64))
        limit, gradient = self.card.shared - 64, self.d * self.real_bytes
        # starts, lengths and slopes of a chunk of rows; one gradient must fit beside them
        chunk = min(ROWS_PER_CHUNK, self.batch or int(sizes.max()))
        fixed = _up(chunk * 8) + _up(chunk * 4) + _up(self.Q * chunk * self.real_bytes)
        self.grid = self._state(C) + fixed + gradient > limit if grid is None else grid
        self.threads = threads or _power(rows // C * 8, 64, 512)
        self.group_size = C
        if self.grid:
            self._meet_in_global_memory(max(1, self.card.processors // self.n))
        state = self._state(1 if self.grid else C)
        warps = self.threads // 32
        if self.grid and state + fixed + gradient > limit:
            self.constants["X_GLOBAL"] = 1
            self.shared = fixed
            writers = warps
            self._scratch("sums_global", self.groups * self.group_size * writers * self.d)
        else:
            # as many warps as fit get their own gradient
            writers = max(1, min(warps, (limit - fixed - state) // gradient))
            self.shared = fixed + state + _up(writers * gradient)
        self.plan |= {"chunk": chunk, "writers": writers}
        index = np.uint16 if self.F < 2**16 - 1 else np.uint32
        self._set_index(index)
        self._send("indptr", self.data.A.indptr.astype(np.int64))
        self._send("indices", self.data.A.indices.astype(index))
        self._send("values", np.zeros(1) if self.unit else self.data.A.data.astype(self.kind))
        self._send("labels", self.data.labels.astype(self.kind))
        self._send("shares", self.data.shares.astype(self.kind))

    def _plan_tiles(self, blocks: int | None, threads: int | None, grid: bool | None) -> None:
        """Tiles: the smallest group of blocks that holds a client in shared memory, larger if the GPU has room."""
        data = self.data.sampled(self.batch) if self.batch else self.data.merged()
        nnz = max(1, int(np.diff(data.A.indptr[data.row0]).max()))
        mean = max(1, data.A.nnz // self.n)
        limit = self.card.shared
        C = blocks or min(self.card.blocks(self.n), max(1, mean // 512))
        # an estimate: every entry is stored twice, by rows and by columns, with some 15 % padding; a row has its
        # weight, perhaps its label, and Q slopes
        cell = (2 if self.F < 2**16 - 1 else 4) + (0 if self.unit else self.real_bytes)
        rows = int(np.diff(data.row0).max())
        about = 2.3 * nnz * cell + rows * ((2 if self.loss else 1) + self.Q) * self.real_bytes
        sizes = [c for c in (C, 2, 4, 8) if c == C or (c > C and self.card.clusters)]
        sizes = [c for c in sizes if blocks or self._state(c) + about / c <= limit]
        # few large clients: clusters of eight would leave more than half of the GPU idle
        idle = self.n * 8 < self.card.processors // 2 and mean > 2**17
        if grid or (grid is None and idle):
            sizes = []
        # the smallest cluster that holds a client; 0: the client's blocks meet in global memory
        for C in (*sizes, 0):
            self.grid, self.group_size = C == 0, C or blocks or max(1, self.card.processors // self.n)
            # about 26 entries or rows of the largest client per thread
            self.threads = threads or min(512, max(128, -(-max(nnz, rows) // (self.group_size * 26 * 128)) * 128))
            layout = Layout.of(data, self.group_size, self.threads // 32, self.kind)
            m = layout.meta[:, 9]
            slices = layout.data_bytes(self.unit, 1 if self.loss == 0 else 2)
            slices = slices + (4 * m + 32 if self.batch else 0)  # the rows' numbers
            z = _up(1) + (m + 1) * self.Q * self.real_bytes
            self.shared = self._state(max(C, 1)) + int((slices + z).max())
            if self.shared <= limit:
                break
            if blocks is not None and not self.grid:
                raise InputError(f"{blocks} blocks per client cannot hold its shard; leave points blocks.")
        if self.grid:
            self._meet_in_global_memory(self.group_size)
            self._fit_grid(slices, z, m)
        self._send_layout(layout)

    def _fit_grid(self, slices: Indices, z: Indices, m: Indices) -> None:
        """Move what does not fit to global memory: x and h, then the data, then z."""
        limit, state = self.card.shared, self._state(1)
        if state > limit:
            self.constants["X_GLOBAL"], state = 1, 0
        self.shared = state + int((slices + z).max())
        if self.shared > limit:
            self.constants["DATA_GLOBAL"], self.shared = 1, state + int(z.max())
        if self.shared > limit:
            self.constants["Z_GLOBAL"], self.shared = 1, state
            self.plan["z_stride"] = stride = int((m.max() + 1) * self.Q)
            self._scratch("z_global", self.groups * self.group_size * stride)

    def _meet_in_global_memory(self, G: int) -> None:
        """Groups of G blocks that fit on the GPU at once, and where the blocks of each meet."""
        import cupy  # type: ignore[import-not-found]

        self.group_size = G
        self.groups = max(1, min(self.n, self.card.processors // G))
        self.plan |= {"group_size": G, "groups": self.groups}
        self._scratch("parts", self.groups * G * self.d)
        self._scratch("x_global", self.groups * self.Q * (self.F + 1))
        self._scratch("h_global", self.groups * 2 * self.d)
        self.plan["counters"] = cupy.zeros(self.groups + 1, dtype=np.uint32)

    # -- data on the GPU -----------------------------------------------------------------------------------------------
    def _send_layout(self, layout: Layout) -> None:
        self._set_index(layout.colmap.dtype)
        for name, tiles in (("row", layout.rows), ("col", layout.columns)):
            self._send(f"{name}_tiles", tiles.tiles)
            self._send(f"{name}_warps", tiles.warps)
            self._send(f"{name}_idx", tiles.idx)
            self._send(f"{name}_val", np.zeros(1) if self.unit else tiles.val)
        self._send("meta", layout.meta)
        self._send("colmap", layout.colmap)
        self._send("row_labels", layout.labels)
        # the signs of the weights are the labels of the logistic loss
        self._send("row_weights", layout.shares * layout.labels if self.loss == 0 else layout.shares)
        if self.batch:
            self._send("numbers", layout.numbers)

    def _set_index(self, kind: npt.DTypeLike) -> None:
        self.constants["INDEX"] = "unsigned short" if np.dtype(kind).itemsize == 2 else "unsigned int"

    def _send(self, name: str, array: AnyArray) -> None:
        """Send an array to the GPU, as the plan's field of this name."""
        import cupy

        # padded, because the kernels load 16 bytes at a time
        raw = np.ascontiguousarray(array).view(np.uint8).ravel()
        room = cupy.zeros(raw.size + 64, dtype=np.uint8)
        if raw.size:
            room[: raw.size].set(raw)
        self.plan[name] = room

    def _scratch(self, name: str, items: int) -> None:
        """Memory on the GPU for what does not fit into shared memory, or what blocks exchange."""
        import cupy

        self.plan[name] = cupy.zeros(max(1, items), dtype=self.kind)

    # -- the launches --------------------------------------------------------------------------------------------------
    def descend(
        self, count: int, X: CardArray, H: CardArray | None, gamma: float | CardArray, K: Counts, *,
        members: CardArray | None = None, seed: int = 0, round: int = 0,
        step0: int = 0, pull: float = 0.0, halt: Event | None = None,
    ) -> CardArray:  # fmt: skip
        """K times  x <- x - gamma (g(x) - h + pull x)  for ``count`` clients; arrays are on the GPU.

        A step depends only on x and its number, so the bytes do not depend on how steps are divided among launches.
        ``halt`` is checked between launches.

        Args:
            X: (d,) for all clients, or (count, d); H likewise, or None for zero.
            gamma: a number, or an array with one each; K likewise, but on the host.
            members: whose data (int32); all clients in order if None.
            step0: the number of the first step among the round's minibatches.
            pull: added to the clients' l2 terms.
        """
        import cupy

        most = int(np.max(K)) if many(K) else int(K)
        between_looks = self._steps_between_looks(count)
        size = min(between_looks, self._steps_drawn(count)) if self.batch else between_looks
        points, looked = cupy.empty((count, self.d)), 0
        steps = _longest_first(K)
        for done in range(0, max(most, 1), size):
            if done >= looked + between_looks:
                cupy.cuda.get_current_stream().synchronize()
                looked = done
            look(halt)
            now = min(size, most - done)
            drawn = self._draw(count, members, seed, round, step0 + done, now) if self.batch and now else NULL
            self._launch(points, points if done else X, H, gamma, steps, members, (done, now), pull, drawn)
        return points

    def gradient(self, count: int, X: CardArray, wanted: Counts, *, members: CardArray | None = None) -> CardArray:
        """The full gradients of ``count`` clients at X; X itself where ``wanted`` is 0."""
        steps = self.full if self.batch else self
        return steps.step_gradient(count, X, wanted, members=members)

    def step_gradient(
        self, count: int, X: CardArray, wanted: Counts, *,
        members: CardArray | None = None, seed: int = 0, round: int = 0, step: int = 0,
    ) -> CardArray:  # fmt: skip
        """The gradients of one local step at X, with the minibatches of this step; X itself where ``wanted`` is 0."""
        import cupy

        points = cupy.empty((count, self.d))
        drawn = self._draw(count, members, seed, round, step, 1) if self.batch else NULL
        self._launch(points, X, None, 1.0, _longest_first(wanted), members, (0, 1), drawn=drawn, want_gradient=True)
        return points

    def _launch(
        self, points: CardArray, X: CardArray, H: CardArray | None, gamma: float | CardArray, steps: StepArguments,
        members: CardArray | None, part: tuple[int, int],
        pull: float = 0.0, drawn: CardArray = NULL, want_gradient: bool = False,
    ) -> None:  # fmt: skip
        """Launch ``descend``; ``part`` is the number of steps done, and the most that this launch takes."""
        count = len(points)
        Ks, K, order = steps
        gammas, gamma1 = (gamma, 0.0) if many(gamma) else (NULL, gamma)
        x_stride, h_stride = (0 if v is None or v.ndim == 1 else self.d for v in (X, H))
        groups = self.groups if self.grid else count
        arguments = (
            self.table, X, np.int64(x_stride), NULL if H is None else H, np.int64(h_stride), gammas,
            np.float64(gamma1), Ks, np.int32(K), np.int32(part[0]), np.int32(part[1]),
            NULL if members is None else members, order, np.int32(count), np.int32(want_gradient), np.float64(pull),
            drawn, points,
        )  # fmt: skip
        self.kernel((groups * self.group_size,), (self.threads,), arguments, shared_mem=self.shared)

    def _draw(self, count: int, members: CardArray | None, seed: int, round: int, step: int, steps: int) -> CardArray:
        """The minibatches of these steps: lists of rows if read row by row, masks for tiles."""
        import cupy

        words = self.plan["mask_words"]
        in_shared = 4 * words <= MASK_BYTES
        rows: CardArray = cupy.empty((steps, count, self.batch, 2), dtype=np.int64) if self.by_rows else NULL
        masks: CardArray = NULL if self.by_rows and in_shared else cupy.empty((steps, count, words), dtype=np.uint32)
        arguments = (
            self.plan["row0"], self.plan.get("indptr", NULL), NULL if members is None else members,
            np.int64(self.batch), np.uint64(seed), np.uint32(round), np.uint32(step), rows, masks, np.int32(words),
            np.int32(in_shared),
        )  # fmt: skip
        shared = 4 * words if in_shared else 0
        cuda.kernel("draw", "draw")((count, steps), (DRAWING_THREADS,), arguments, shared_mem=shared)
        return rows if self.by_rows else masks

    def _steps_drawn(self, count: int) -> int:
        bytes_of_step: int = count * (16 * self.batch * self.by_rows + 4 * self.plan["mask_words"])
        return max(1, min(STEPS_DRAWN, DRAWN_BYTES // bytes_of_step))

    def _steps_between_looks(self, count: int) -> int:
        entries = self.data.A.nnz * count / self.n
        return max(1, int(LAUNCH_SECONDS / (STEP_SECONDS + entries / ENTRIES_PER_SECOND)))

    def describe(self) -> str:
        """The launch in a few words."""
        blocks = f"{'grid' if self.grid else 'cluster'} of {self.group_size} x {self.threads} threads"
        where = "global" if self.constants["DATA_GLOBAL"] else "shared"
        return f"{blocks}, {'rows' if self.by_rows else 'tiles'} in {where} memory, {self.shared} bytes per block"


_last_used: list[tuple[weakref.ref[Problem], LocalSteps]] = []
"""The last problem, and its data on the GPU, which stay there as long as the problem lives."""


def steps_on_card(problem: Problem) -> LocalSteps:
    """The problem's data on the GPU; sent once for consecutive runs, as in a sweep."""
    if _last_used and _last_used[0][0]() is problem:
        return _last_used[0][1]
    _last_used.clear()
    steps = LocalSteps(problem)
    _last_used.append((weakref.ref(problem, lambda _: _last_used.clear()), steps))
    return steps


def many(v: Column) -> bool:
    """Whether it has an entry per member."""
    return not isinstance(v, (int, float)) and np.ndim(v) > 0


def _plan_table(plan: dict[str, int | CardArray]) -> CardArray:
    """``Plan`` on the GPU: sizes, and addresses of arrays; 0 for unused fields."""
    import cupy

    fields = cuda.plan_fields()
    assert plan.keys() <= set(fields)
    numbers = {name: v if isinstance(v, int) else v.data.ptr for name, v in plan.items()}
    return cupy.asarray(np.array([numbers.get(name, 0) for name in fields], dtype=np.int64))


def _longest_first(K: Counts) -> StepArguments:
    """K as kernel arguments: an array or null, a number, and the order in which clients begin."""
    if not many(K):
        return NULL, int(K), NULL
    import cupy

    order = np.argsort(-np.asarray(K), kind="stable")
    return cupy.asarray(np.asarray(K, dtype=np.int32)), 0, cupy.asarray(order.astype(np.int32))


def _up(bytes_: int) -> int:
    """Rounded up to 16 bytes, as the kernel's ``Room`` does."""
    return -(-bytes_ // 16) * 16


def _power(v: int, low: int, high: int) -> int:
    """The next power of two, within [low, high]."""
    return int(min(high, max(low, 1 << max(0, (int(v) - 1).bit_length()))))
