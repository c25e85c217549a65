"""All that this package uses of numba beyond its documented interface, seen in numba 0.59.1 and 0.68.1.

* The option ``_nrt`` of ``njit``: no reference counts of arrays. Without it kernels are slower, and right.
* ``numba.core.event``: the event ``numba:compiler_lock``, which starts and ends with every compilation. Without it
  the seconds of a run include compilations, and processes that compile at the same time do not wait for each other.
* ``overloads[types].fndesc.mangled_name``: the name of a function's code within the assembly of ``inspect_llvm``.
* The calling convention: a function takes a place for its result and one for an exception, then its arguments; an
  array is seven numbers or more (``passed``); it returns an int, 0 if all is well. Where a function does not take
  as many arguments as that, ``machine_code`` leaves the kernel to numba.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

RESULT_AND_EXCEPTION = (ctypes.c_void_p, ctypes.c_void_p)
"""Passed before the arguments."""
DESTRUCTOR = "define void @NRT_MemInfo_call_dtor(ptr %0) { ret void }"
"""Numba calls it to free its own arrays; here all arrays are the caller's."""


def njit(function: Callable[..., Any], options: dict[str, Any], borrows: bool, folder: Path | None = None) -> Any:
    """``numba.njit``, which keeps the function's code in this folder.

    Args:
        borrows: without reference counts.
    """
    import numba
    from numba.core.options import DefaultOptions

    if borrows and hasattr(DefaultOptions, "_nrt"):
        options = options | {"_nrt": False}
    known = numba.config.CACHE_DIR
    try:
        numba.config.CACHE_DIR = known if folder is None else str(folder)
        return numba.njit(**options)(function)
    finally:
        numba.config.CACHE_DIR = known


@cache
def listen(starts: Callable[[], None], ends: Callable[[], None]) -> None:
    """Call these when a compilation, or the loading of a function, starts and ends."""
    try:
        from numba.core import event
    except ImportError:
        return

    class Listener(event.Listener):  # type: ignore[misc]
        def on_start(self, event: Any) -> None:
            starts()

        def on_end(self, event: Any) -> None:
            ends()

    event.register("numba:compiler_lock", Listener())


def code_name(compiled: Any, types: tuple[Any, ...]) -> str:
    """The name of a function's code within its assembly."""
    name: str = compiled.overloads[types].fndesc.mangled_name
    return name


def passed(args: Sequence[Any]) -> Iterator[tuple[Any, Any]]:
    """Types and values of the arguments as compiled code takes them.

    An array is passed as no owner (two words), size, item size, address, shape and strides.
    """
    for a in args:
        if isinstance(a, np.ndarray):
            yield from 2 * [(ctypes.c_void_p, None)]
            yield from ((ctypes.c_int64, v) for v in (a.size, a.itemsize))
            yield ctypes.c_void_p, a.__array_interface__["data"][0]
            yield from ((ctypes.c_int64, v) for v in (*a.shape, *a.strides))
        elif isinstance(a, tuple):
            yield from passed(a)
        else:
            yield ctypes.c_int64 if isinstance(a, int | np.integer) else ctypes.c_double, a
