"""The content of one all-reduce: plain or encoded vectors, with their bytes counted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from proxskip import theory
from proxskip.support.randomness import codec_words
from proxskip.types import InputError

CODECS = ("float32", "bfloat16", "natural", "top-k")
Part = Callable[[slice], Tensor]
"""A vector of which a slice is made at a time."""
BUCKET = 1 << 23
"""Numbers of a vector that are made and sent at once."""
_SIGN, _EXPONENT, _MANTISSA = 0x80000000, 0xFF, 0x7FFFFF
"""Parts of a float32; the exponent once it is shifted down by 23 bits."""


class SynchronizationError(RuntimeError):
    """The ranks could not be averaged, and nothing of the round was committed."""


class Wire:
    """Averages flat vectors over the ranks of a group.

    With "float32" the sum is an all-reduce, in buckets. The other codecs gather every rank's payload and add up in the
    order of the ranks, so that no sum is ever rounded to few bits.

    Args:
        group: a process group; None for all ranks, or this process alone where none was initialized.
        bytes_sent: the payload of this rank so far; what the backend adds or repeats is not counted.
        bytes_received: what this rank received if the backend works in a ring: of n ranks, an all-reduce of v bytes
            brings 2 v (n - 1)/n to each, and gathering payloads of v bytes brings v (n - 1).
    """

    def __init__(self, group: dist.ProcessGroup | None, codec: str, share: float | None, seed: int) -> None:
        check_codec(codec, share)
        self.group, self.codec, self.share, self.seed = group, codec, share, seed
        self.bytes_sent = self.bytes_received = 0
        alone = not (dist.is_available() and dist.is_initialized())
        self.n = 1 if alone else dist.get_world_size(group)
        self.rank = 0 if alone else dist.get_rank(group)
        if self.rank < 0:
            raise InputError("this rank is not in the group; pass a group that it belongs to.")

    def average(self, vectors: list[Part], like: Tensor, round: int) -> tuple[list[Tensor], list[Part]]:
        """The mean of each vector over the ranks, and this rank's own vectors as the others read them.

        Args:
            vectors: functions that give a slice of a vector.
            like: a tensor of a vector's length, dtype and device.
            round: keys the random rounding of "natural".
        """
        if self.codec == "float32":
            return [self._mean_in_buckets(part, torch.empty_like(like)) for part in vectors], vectors
        size = len(like)
        flat = torch.cat([part(slice(0, size)) for part in vectors])
        if self.codec == "top-k":
            assert self.share is not None
            payload = pack_largest(flat, self.share)
        else:
            payload = encode(flat, self.codec, self.seed, self.rank, round)
        self.bytes_sent += payload.numel()
        self.bytes_received += payload.numel() * (self.n - 1)
        mean = torch.zeros_like(flat)
        for other in self.gather(payload):
            mean += decode(other, self.codec, flat)
        mean /= self.n
        sent = decode(payload, self.codec, flat).split(size)
        return list(mean.split(size)), [v.__getitem__ for v in sent]

    def _mean_in_buckets(self, part: Part, mean: Tensor) -> Tensor:
        """The mean of a vector, of which each slice travels while the next one is made."""
        waiting: list[Any] = []
        with _sentence():
            for s in slices(len(mean)):
                mean[s] = part(s)
                if self.n > 1:
                    waiting.append(dist.all_reduce(mean[s], group=self.group, async_op=True))
            for work in waiting:
                work.wait()
        self._count(mean)
        return mean.div_(self.n)

    def _count(self, v: Tensor) -> None:
        size = v.numel() * v.element_size()
        self.bytes_sent += size
        self.bytes_received += 2 * size * (self.n - 1) // self.n

    def ranks(self) -> list[int]:
        """The ranks of the group, by their numbers among all."""
        if not (dist.is_available() and dist.is_initialized()):
            return [0]
        return list(dist.get_process_group_ranks(self.group or dist.group.WORLD))

    def mean(self, v: Tensor) -> Tensor:
        """The mean of v over the ranks, by an all-reduce that is counted."""
        self._count(v)
        return self.sum(v.clone()).div_(self.n)

    def gather(self, v: Tensor) -> list[Tensor]:
        """Every rank's v, in order."""
        if self.n == 1:
            return [v]
        everyone = [torch.empty_like(v) for _ in range(self.n)]
        with _sentence():
            dist.all_gather(everyone, v, group=self.group)
        return everyone

    def spread(self, v: Tensor, source: int) -> Tensor:
        """Rank ``source``'s v, on all ranks."""
        if self.n > 1:
            with _sentence():
                dist.broadcast(v, group=self.group, group_src=source)
        return v

    def sum(self, v: Tensor) -> Tensor:
        """The sum of v over the ranks, in place."""
        if self.n > 1:
            with _sentence():
                dist.all_reduce(v, group=self.group)
        return v


# -- codecs ------------------------------------------------------------------------------------------------------------
def check_codec(codec: str, share: float | None = None) -> None:
    """Refuse an unknown one, and a share of entries where all are sent."""
    if codec not in CODECS:
        raise InputError(f'codec = "{codec}" is not known; use {", ".join(CODECS)}.')
    if (codec == "top-k") != (share is not None):
        raise InputError('share=, the share of the entries that are sent, and codec="top-k" go together.')
    if share is not None:
        theory.probability("share", share)


def slices(size: int) -> list[slice]:
    """The buckets of a vector."""
    return [slice(lo, min(size, lo + BUCKET)) for lo in range(0, size, BUCKET)]


def pack_largest(v: Tensor, share: float) -> Tensor:
    """The largest entries and their places, as bytes."""
    k = max(1, round(share * v.numel()))
    places = v.abs().topk(k).indices
    return torch.cat([v[places].view(torch.uint8), places.to(torch.int32).view(torch.uint8)])


def encode(v: Tensor, codec: str, seed: int, rank: int, round: int) -> Tensor:
    """v as bytes: "bfloat16", or "natural" with random rounding keyed by seed, rank and round.

    Natural compression (Horvath et al., 2019, arXiv:1905.10988) sends sign and exponent, randomly rounded. The mantissa
    is the probability of the next power of two, so it is unbiased; zeros stay zeros, and subnormal numbers become 0 or
    the smallest normal one. NaN is read as infinity.
    """
    if codec == "bfloat16":
        return v.to(torch.bfloat16).view(torch.uint8)
    bits = v.float().view(torch.int32)
    words = codec_words(v.numel(), "rounding", seed, round, 1 + rank)
    draw = (words >> np.uint64(41)).astype(np.int32)  # 23 bits, as many as the mantissa has
    up = (bits & _MANTISSA) > torch.from_numpy(draw).to(v.device)
    # inf and nan have the largest exponent, and both are read as inf
    exponent = (((bits >> 23) & _EXPONENT) + up).clamp(max=_EXPONENT)
    return torch.cat([exponent.to(torch.uint8), _packed(bits < 0)])


def decode(payload: Tensor, codec: str, like: Tensor) -> Tensor:
    """The vector that ``encode`` wrote, with this length and dtype."""
    if codec == "bfloat16":
        return payload.view(torch.bfloat16).to(like.dtype)
    if codec == "top-k":
        k = payload.numel() // (like.element_size() + 4)
        values, places = payload.split([k * like.element_size(), 4 * k])
        v = torch.zeros_like(like)
        v[places.view(torch.int32).long()] = values.view(like.dtype)
        return v
    d = like.numel()
    bits = payload[:d].to(torch.int64) << 23
    negative = _unpacked(payload[d:], d)
    return torch.where(negative, bits - _SIGN, bits).to(torch.int32).view(torch.float32).to(like.dtype)


def _packed(flags: Tensor) -> Tensor:
    """Eight flags in a byte."""
    padded = torch.nn.functional.pad(flags.to(torch.uint8), (0, -flags.numel() % 8)).view(-1, 8)
    weights = torch.tensor([1, 2, 4, 8, 16, 32, 64, 128], dtype=torch.uint8, device=flags.device)
    return (padded * weights).sum(1, dtype=torch.uint8)


def _unpacked(packed: Tensor, d: int) -> Tensor:
    places = torch.arange(8, dtype=torch.uint8, device=packed.device)
    return ((packed[:, None] >> places) & 1).bool().view(-1)[:d]


@contextmanager
def _sentence() -> Iterator[None]:
    """Turn a backend's error about a missing rank into one sentence."""
    try:
        yield
    except (RuntimeError, OSError) as error:
        raise SynchronizationError(
            "the ranks could not be averaged: a rank died, hangs or left. This round was not committed; restart from "
            f"the last checkpoint ({str(error).splitlines()[0][:200]})."
        ) from error
