"""The rows of many minibatches at once, with the numbers of ``randomness.minibatch``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from proxskip.engines.cpu.drawing import Drawing
from proxskip.engines.cpu.minibatches import draw_rows, subset
from proxskip.on_demand.kernels import njit
from proxskip.types import Indices

Draw = Callable[[int, Any, int, Indices, Indices, int], torch.Tensor]
"""``draw(count, step0, round, clients, sizes, b)``: the rows of ``count`` steps as ``(count, c, b)``."""


@njit(nogil=True, cache=True)
def _fill(out: Any, seed: Any, round: int, clients: Any, step0: Any, sizes: Any, picks: Any, room: Any) -> None:
    steps, members, b = out.shape
    for j in range(members):
        for k in range(steps):
            # in the order of the draws where these are the rows, as in ``randomness``
            if 2 * b <= sizes[j]:
                subset(seed, clients[j], round, step0[j] + k, sizes[j], b, room[0], picks)
            else:
                draw_rows(seed, clients[j], round, step0[j] + k, 0, sizes[j], b, picks, room)
            for q in range(b):
                out[k, j, q] = picks[q]


def drawing(seed: int, device: torch.device) -> Draw:
    """Drawn by the processor and moved, while the device computes."""

    def draw(count: int, step0: Any, round: int, clients: Indices, sizes: Indices, b: int) -> torch.Tensor:
        # step0 is one number for all clients, or one for each
        first = np.array(np.broadcast_to(np.asarray(step0, dtype=np.int64), clients.shape))
        out, drawing = np.empty((count, len(clients), b), dtype=np.int64), Drawing(b, int(sizes.max()))
        _fill(out, np.uint64(seed), round, clients, first, sizes, drawing.picks(), drawing.room())
        rows = torch.as_tensor(out)
        # only a copy from locked memory runs beside the computation
        return (rows.pin_memory() if device.type == "cuda" else rows).to(device, non_blocking=True)

    return draw
