"""The rows of many minibatches at once, with the numbers of ``randomness.minibatch``: compiled here, or on the card."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from proxskip.engines.cpu.drawing import Drawing
from proxskip.engines.cpu.minibatches import draw_rows, subset
from proxskip.on_demand.kernels import njit
from proxskip.types import Indices

MASK32 = 0xFFFFFFFF
_CARD = """
template <typename T> T minibatch_number(T i, T step, T round, T client, T m, T n, T low_seed, T high_seed) {
  auto philox = [&](unsigned int c0, unsigned int more, unsigned int* out) {
    unsigned int c1 = (unsigned int)step, c2 = (unsigned int)round, c3 = (unsigned int)client;
    unsigned int k0 = (unsigned int)low_seed, k1 = (unsigned int)high_seed + more;
    for (int j = 0; j < 10; ++j) {
      unsigned long long p0 = 0xD2511F53ull * c0, p1 = 0xCD9E8D57ull * c2;
      c0 = (unsigned int)(p1 >> 32) ^ c1 ^ k0; c1 = (unsigned int)p1;
      c2 = (unsigned int)(p0 >> 32) ^ c3 ^ k1; c3 = (unsigned int)p0;
      k0 += 0x9E3779B9u; k1 += 0xBB67AE85u;
    }
    out[0] = c0; out[1] = c1; out[2] = c2; out[3] = c3;
  };
  unsigned int words[4], blocks = ((unsigned int)n + 3u) / 4u, side = (unsigned int)(m - n + i) + 1u;
  philox((unsigned int)i % blocks, 0u, words);
  unsigned long long product = (unsigned long long)words[(unsigned int)i / blocks] * side;
  unsigned int least = (0u - side) % side;
  for (unsigned int attempt = 0; (unsigned int)product < least; ++attempt) {
    if (attempt % 4 == 0) philox(0x40000000u | (unsigned int)i, attempt / 4, words);
    product = (unsigned long long)words[attempt % 4] * side;
  }
  return (T)(product >> 32);
}
"""
"""The number from which Floyd's algorithm makes draw i of a minibatch."""

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


def here(seed: int, device: torch.device) -> Draw:
    """Drawn by the processor and moved."""

    def draw(count: int, step0: Any, round: int, clients: Indices, sizes: Indices, b: int) -> torch.Tensor:
        # step0 is one number for all clients, or one for each
        first = np.array(np.broadcast_to(np.asarray(step0, dtype=np.int64), clients.shape))
        out, drawing = np.empty((count, len(clients), b), dtype=np.int64), Drawing(b, int(sizes.max()))
        _fill(out, np.uint64(seed), round, clients, first, sizes, drawing.picks(), drawing.room())
        return torch.as_tensor(out).to(device, non_blocking=True)

    return draw


def on_card(seed: int, device: torch.device) -> Draw:
    """Drawn by the card, with the same numbers; by the processor where the rows that are left out would be drawn."""
    kernel = torch.cuda.jiterator._create_jit_fn(_CARD)
    plain = here(seed, device)
    # the two halves of the seed are the key of Philox
    words = [torch.tensor(v, device=device) for v in (seed & MASK32, seed >> 32)]
    known: dict[str, Any] = {}

    def there(name: str, v: Any) -> torch.Tensor:
        """The clients' numbers and sizes stay the same for many rounds, and are sent once."""
        key = np.asarray(v, dtype=np.int64)
        if name not in known or not np.array_equal(known[name][0], key):
            known[name] = key.copy(), torch.as_tensor(key).to(device)
        found: torch.Tensor = known[name][1]
        return found

    def draw(count: int, step0: Any, round: int, clients: Indices, sizes: Indices, b: int) -> torch.Tensor:
        if 2 * b > int(sizes.min()):
            return plain(count, step0, round, clients, sizes, b)
        first = there("first", step0).reshape(1, -1, 1)
        # numbers of rows, steps and clients broadcast to (count, c, b): one launch draws them all
        steps = first + torch.arange(count, device=device).reshape(-1, 1, 1)
        q, r = torch.arange(b, device=device), torch.full((), round, device=device, dtype=torch.int64)
        who, m = there("clients", clients).reshape(1, -1, 1), there("sizes", sizes).reshape(1, -1, 1)
        return resolved(kernel(q, steps, r, who, m, torch.full_like(r, b), *words), m)

    return draw


def resolved(numbers: torch.Tensor, m: torch.Tensor) -> torch.Tensor:
    """Floyd's algorithm for many minibatches at once: rows from numbers, of which the i-th is any of 0..m-n+i.

    Draw i takes its number, or the last row m - n + i if that number was drawn already: an earlier draw had the same
    number, or the number is the last row of an earlier draw which took it. The latter is followed from draw to draw.
    """
    n = numbers.shape[-1]
    draws = torch.arange(n, device=numbers.device)
    last = m - n + draws
    sorted_, order = torch.sort(numbers, dim=-1, stable=True)
    again = torch.zeros_like(sorted_, dtype=torch.bool)
    again[..., 1:] = sorted_[..., 1:] == sorted_[..., :-1]
    again = torch.empty_like(again).scatter_(-1, order, again)
    earlier = numbers - (m - n)
    link = torch.where(again | (earlier < 0), draws, earlier)  # to itself where the answer is known
    takes_last = again | (numbers == last)
    for _ in range(max(1, n).bit_length()):  # each time all links go twice as far
        link = link.gather(-1, link)
    return torch.where(takes_last.gather(-1, link), last, numbers)


def fastest(seed: int, device: torch.device) -> Draw:
    """On the card where it draws the same numbers, which is tried; here otherwise."""
    plain = here(seed, device)
    if device.type != "cuda":
        return plain
    clients, sizes = np.arange(3), np.array([20, 64, 1000])
    try:
        card = on_card(seed, device)
        same = torch.equal(card(2, 5, 9, clients, sizes, 6), plain(2, 5, 9, clients, sizes, 6))
    except RuntimeError:
        return plain
    return card if same else plain
