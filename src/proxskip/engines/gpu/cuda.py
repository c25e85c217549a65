"""Compiles the CUDA sources beside this file at run time, for the shape of the problem.

Local steps consist of ``common.cu``, ``group.cu`` (the thread blocks of one client), ``tiles.cu`` or ``rows.cu`` (how a
client's data are read) and ``descend.cu`` (the kernel), in this order. ``draw.cu`` draws minibatches, and ``server.cu``
does the server's sums with the bytes of the CPU. CuPy caches the compiled code.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any, TypeAlias

import numpy as np

from proxskip.support.sums import SUM_BLOCK

THREADS = 64
"""Threads per block of the server's kernels."""
LOSSES = {"logistic": 0, "squared": 1, "softmax": 2}
NULL = np.uint64(0)
"""A null pointer, as an argument of a kernel."""
CardArray: TypeAlias = Any
"""An array on the GPU, or a null pointer instead of one: CuPy has no types."""
Kernel: TypeAlias = Any
"""A compiled kernel of CuPy:  ``kernel(grid, block, arguments)``."""


@cache
def source(*names: str) -> str:
    """The text of these files, one after another."""
    return "".join((files(__package__) / f"{name}.cu").read_text(encoding="utf-8") for name in names)


@cache
def plan_fields() -> tuple[str, ...]:
    """The fields of ``Plan`` in order, eight bytes each."""
    (body,) = re.findall(r"struct Plan \{(.*?)\n\};", source("common"), re.DOTALL)
    declared = re.findall(r"([^;{}]+);", re.sub(r"//.*", "", body))
    return tuple(re.findall(r"\w+", one)[-1] for text in declared for one in text.split(","))


def local_steps(layout: str, cooperative: bool, constants: Mapping[str, int | str]) -> Kernel:
    """The kernel ``descend`` for this layout ("tiles" or "rows") and these constants of ``common.cu``.

    Args:
        cooperative: whether the blocks meet in global memory: such a launch fails, instead of hanging, unless all its
            blocks fit on the GPU at once.
    """
    options = tuple(f"-D{name}={value}" for name, value in constants.items())
    return _compiled(("common", "group", layout, "descend"), "descend", cooperative, options)


def kernel(file: str, name: str) -> Kernel:
    """A kernel that does not depend on the problem."""
    return _compiled((file,), name, False, ())


@cache
def _compiled(parts: tuple[str, ...], name: str, cooperative: bool, options: tuple[str, ...]) -> Kernel:
    import cupy  # type: ignore[import-not-found]

    module = cupy.RawModule(
        code=source(*parts),
        options=("-std=c++17", *options),
        backend="nvrtc",
        enable_cooperative_groups=cooperative,
    )
    function = module.get_function(name)
    # all on-chip memory as shared memory, as for the local steps: a change stalls the GPU
    function.preferred_shared_memory_carveout = 100
    return function


def weighted_sum(w: CardArray, U: CardArray) -> CardArray:
    """``sum_i w_i U_i`` in the order of ``support.sums.weighted_sum``."""
    import cupy

    (n, d), total = U.shape, cupy.empty(U.shape[1])
    if n <= SUM_BLOCK:
        _block_sums(w, U, n, total)
    else:
        blocks = cupy.empty((-(-n // SUM_BLOCK), d))
        _block_sums(w, U, SUM_BLOCK, blocks)
        _block_sums(NULL, blocks, len(blocks), total)
    return total


def _block_sums(w: CardArray, U: CardArray, block: int, sums: CardArray) -> None:
    n, d = U.shape
    arguments = w, U, np.int32(n), np.int32(d), np.int32(block), sums
    kernel("server", "block_sums")((-(-d // THREADS), -(-n // block)), (THREADS,), arguments)


def mixed(indptr: CardArray, indices: CardArray, weights: CardArray, U: CardArray) -> CardArray:
    """One gossip step: row i becomes ``sum_j W_ij U_j`` over the neighbours j of i."""
    import cupy

    n, d = U.shape
    mixed_rows = cupy.empty((n, d))
    arguments = indptr, indices, weights, U, np.int32(n), np.int32(d), mixed_rows
    kernel("server", "mix")((-(-d // THREADS), n), (THREADS,), arguments)
    return mixed_rows
