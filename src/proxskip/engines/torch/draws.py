"""The rows of many minibatches at once, with the numbers of ``randomness.minibatch``: compiled here, or on the card."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from proxskip.compiled import njit
from proxskip.engines.cpu.minibatches import minibatch
from proxskip.types import Indices

MASK32 = 0xFFFFFFFF
_CARD = """
template <typename T> T minibatch_row(T q, T step, T round, T client, T m, T low_seed, T high_seed) {
  unsigned int keys[12];
  for (int block = 0; block < 3; ++block) {
    unsigned int c0 = block, c1 = (unsigned int)step, c2 = (unsigned int)round, c3 = (unsigned int)client;
    unsigned int k0 = (unsigned int)low_seed, k1 = (unsigned int)high_seed;
    for (int i = 0; i < 10; ++i) {
      unsigned long long p0 = 0xD2511F53ull * c0, p1 = 0xCD9E8D57ull * c2;
      c0 = (unsigned int)(p1 >> 32) ^ c1 ^ k0; c1 = (unsigned int)p1;
      c2 = (unsigned int)(p0 >> 32) ^ c3 ^ k1; c3 = (unsigned int)p0;
      k0 += 0x9E3779B9u; k1 += 0xBB67AE85u;
    }
    keys[4 * block] = c0; keys[4 * block + 1] = c1; keys[4 * block + 2] = c2; keys[4 * block + 3] = c3;
  }
  int bits = 6;
  while ((1ll << bits) < (long long)m) ++bits;
  int low = bits / 2;
  unsigned int low_mask = (1u << low) - 1u, high_mask = (1u << (bits - low)) - 1u, v = (unsigned int)q;
  do {
    unsigned int half[2] = {v & low_mask, v >> low};
    for (int k = 0; k < 12; ++k) {
      unsigned int u = (half[k & 1] ^ keys[k]) * 0x9E3779B1u;
      u = (u ^ (u >> 15)) * 0x85EBCA77u;
      half[1 - (k & 1)] ^= (u ^ (u >> 13)) & (k & 1 ? low_mask : high_mask);
    }
    v = (half[1] << low) | half[0];
  } while ((long long)v >= (long long)m);
  return (T)v;
}
"""
"""One number of a minibatch; the other forms are in ``randomness`` and ``engines.cpu.minibatches``."""

Draw = Callable[[int, Any, int, Indices, Indices, int], torch.Tensor]
"""``draw(count, step0, round, clients, sizes, b)``: the rows of ``count`` steps as ``(count, c, b)``."""


@njit(nogil=True, cache=True)
def _fill(out: Any, seed: Any, round: int, clients: Any, step0: Any, sizes: Any, words: Any, keys: Any) -> None:
    steps, members, b = out.shape
    for j in range(members):
        for k in range(steps):
            # four rows of scratch for ``minibatch``; the fifth takes its result
            room = (keys, words[0], words[1], words[2], words[3])
            minibatch(seed, clients[j], round, step0[j] + k, sizes[j], 0, b, words[4], room)
            for q in range(b):
                out[k, j, q] = words[4, q]


def here(seed: int, device: torch.device) -> Draw:
    """Drawn by the processor and moved."""

    def draw(count: int, step0: Any, round: int, clients: Indices, sizes: Indices, b: int) -> torch.Tensor:
        # step0 is one number for all clients, or one for each
        first = np.array(np.broadcast_to(np.asarray(step0, dtype=np.int64), clients.shape))
        out = np.empty((count, len(clients), b), dtype=np.int64)
        words, keys = np.empty((5, b), dtype=np.uint32), np.empty(12, dtype=np.uint64)
        _fill(out, np.uint64(seed), round, clients, first, sizes, words, keys)
        return torch.as_tensor(out).to(device, non_blocking=True)

    return draw


def on_card(seed: int, device: torch.device) -> Draw:
    """Drawn by the card in one launch, with the same numbers."""
    kernel = torch.cuda.jiterator._create_jit_fn(_CARD)
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
        first = there("first", step0).reshape(1, -1, 1)
        # numbers of rows, steps and clients broadcast to (count, c, b): one launch draws them all
        steps = first + torch.arange(count, device=device).reshape(-1, 1, 1)
        q, r = torch.arange(b, device=device), torch.full((), round, device=device, dtype=torch.int64)
        who, m = there("clients", clients).reshape(1, -1, 1), there("sizes", sizes).reshape(1, -1, 1)
        found: torch.Tensor = kernel(q, steps, r, who, m, *words)
        return found

    return draw


def fastest(seed: int, device: torch.device) -> Draw:
    """On the card where it draws the same numbers, which is tried; here otherwise."""
    plain = here(seed, device)
    if device.type != "cuda":
        return plain
    # sizes below, at and above 2^6, the smallest set of numbers that is permuted
    clients, sizes = np.arange(3), np.array([7, 64, 1000])
    try:
        card = on_card(seed, device)
        same = torch.equal(card(2, 5, 9, clients, sizes, 6), plain(2, 5, 9, clients, sizes, 6))
    except RuntimeError:
        return plain
    return card if same else plain
