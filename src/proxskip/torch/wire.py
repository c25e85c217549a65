"""The content of one all-reduce: plain or encoded vectors, with their bytes counted."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from proxskip import theory
from proxskip.codecs.contract import Key
from proxskip.codecs.numbers import Natural
from proxskip.types import InputError

CODECS = ("float32", "bfloat16", "natural", "top-k")
Part = Callable[[slice], Tensor]
"""A vector of which a slice is made at a time."""
BUCKET = 1 << 23
"""Numbers of a vector that are made and sent at once."""
NATURAL_BLOCK = 1 << 16
"""Numbers that are compressed at once, since each takes some 60 bytes meanwhile; their bytes are whole."""


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
        self.ranks = [0] if alone else list(dist.get_process_group_ranks(group or dist.group.WORLD))
        """The ranks of the group, by their numbers among all."""
        self.n = len(self.ranks)
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
        payload = encode(flat, self.codec, self.share, self.seed, self.rank, round)
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


def encode(v: Tensor, codec: str, share: float | None, seed: int, rank: int, round: int) -> Tensor:
    """v as bytes: "bfloat16", "top-k", or "natural" with random rounding keyed by seed, rank and round."""
    if codec == "bfloat16":
        return v.to(torch.bfloat16).view(torch.uint8)
    if codec == "top-k":
        assert share is not None
        k = max(1, int(np.rint(share * v.numel())))
        places = v.abs().topk(k).indices
        return torch.cat([v[places].view(torch.uint8), places.to(torch.int32).view(torch.uint8)])
    message = bytearray()
    for number, some in enumerate(v.split(NATURAL_BLOCK)):
        single = some.to("cpu", torch.float32).numpy().astype(np.float64)
        message += Natural().encode(single, Key(seed, round, rank, vector=number))
    return torch.frombuffer(message, dtype=torch.uint8).to(v.device)


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
    data = payload.cpu().numpy()
    read = torch.empty_like(like)
    begin = 0
    for some in read.split(NATURAL_BLOCK):
        key = Key(0, 0, 0)  # reading needs none
        end = begin + math.ceil(Natural().bits(some.numel(), key) / 8)
        some.copy_(torch.from_numpy(Natural().decode(data[begin:end].tobytes(), some.numel(), key)))
        begin = end
    return read


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
