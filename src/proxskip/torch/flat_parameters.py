"""A network's parameters as one vector, with what goes with it and its place in the round."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from proxskip.types import InputError

try:
    from torch.distributed.tensor import DTensor, Shard
except ImportError:  # a build without torch.distributed has no sharded parameters

    class DTensor:  # type: ignore[no-redef]
        """A stand-in, of which nothing is an instance."""


VECTORS = ("x", "h", "mean_h", "c", "error")
"""The vectors that ``FlatParameters`` may keep."""


class FlatParameters:
    """The trainable parameters of an optimizer as one vector, of which slices are made where they are needed.

    ``x`` is the last common point, ``h`` the control variate, ``mean_h`` its mean over the ranks where that is not
    zero, ``c`` the sum of raw gradients since x, and ``error`` what top-k has not sent yet: each one flat vector in
    float32 (float64 if one of the parameters is), whatever the precision of the local work, and empty where the
    settings do not need it.
    """

    def __init__(self, optim: Optimizer, needed: Sequence[str]) -> None:
        trainable = [(q, g) for g, group in enumerate(optim.param_groups) for q in group["params"] if q.requires_grad]
        if not trainable:
            raise InputError("the local optimizer has no trainable parameters; pass it the model's parameters.")
        self.params, self.groups = [q for q, _ in trainable], [g for _, g in trainable]
        devices = {q.device for q in self.params}
        if len(devices) > 1:
            raise InputError(f"the parameters are on {len(devices)} devices; use one device per process.")
        if any(q.is_complex() for q in self.params):
            raise InputError("a parameter is complex; replace it by two real ones.")
        self.shapes = [local(q).shape for q in self.params]
        self.sizes = [s.numel() for s in self.shapes]
        self.size = sum(self.sizes)
        is_precise = any(q.dtype == torch.float64 for q in self.params)
        self.dtype = torch.float64 if is_precise else torch.float32
        self.x = self.flat(slice(0, self.size))
        self.h, self.mean_h, self.c, self.error = (
            self.x.new_zeros(self.size if v in needed else 0) for v in VECTORS[1:]
        )
        self.round = self.local_step = self.taken = 0
        self.lr_sum: dict[int, float] = dict.fromkeys(self.groups, 0.0)
        self.saved_at: int | None = None

    def _pieces(self, s: slice) -> Iterator[tuple[int, int, int]]:
        """The parameters of which a slice of the vector consists: their number, and from where to where."""
        at = 0
        for k, size in enumerate(self.sizes):
            start, stop = max(s.start - at, 0), min(s.stop - at, size)
            if start < stop:
                yield k, start, stop
            at += size

    def flat(self, s: slice) -> Tensor:
        """A slice of the parameters as a new vector."""
        parts = (local(self.params[k]).detach().reshape(-1)[a:b] for k, a, b in self._pieces(s))
        return torch.cat([v.to(self.dtype) for v in parts])

    def views(self, v: Tensor) -> list[Tensor]:
        """Each parameter's part of a flat vector, in its shape."""
        return [part.view(s) for part, s in zip(v.split(self.sizes), self.shapes, strict=True)]

    def put(self, v: Tensor) -> None:
        for q, part in zip(self.params, self.views(v), strict=True):
            local(q).copy_(part)

    def digest(self) -> int:
        """A number for the parameters as they are."""
        return digest(*(local(q).detach() for q in self.params))

    def stands_where_saved(self) -> bool:
        """Whether the parameters belong to the loaded state: to its digest, or at the end of a round to x."""
        if self.local_step:
            return self.digest() == self.saved_at
        pairs = ((local(q), part) for q, part in zip(self.params, self.views(self.x), strict=True))
        return all(torch.equal(q, part.to(q.dtype)) for q, part in pairs)

    def shift(self, share: float, weight: float, pull: float) -> None:
        """Turn the gradients into  share (g + pull (y - x)) - weight h,  and add the raw ones to c where it is kept."""
        none: list[None] = [None] * len(self.params)
        h, c = (self.views(v) if len(v) else none for v in (self.h, self.c))
        for q, x, shift, total in zip(self.params, self.views(self.x), h, c, strict=True):
            if not q.requires_grad:
                continue  # frozen later: it stays, and so does its h
            if q.grad is None:
                q.grad = torch.zeros_like(q)  # unused in this step: a zero gradient, but h still acts
            g = local(q.grad)
            if g.is_sparse:
                raise InputError("a gradient is sparse; create the embedding with sparse=False.")
            if total is not None:
                total += g
            if pull:
                g.add_((local(q) - x).to(g.dtype), alpha=pull)
            if shift is not None and weight:
                g.mul_(share).sub_(shift.to(g.dtype), alpha=weight)

    def shift_after(self, groups: list[dict[str, Any]], weight: float) -> None:
        """y + weight lr h."""
        for q, g, shift in zip(self.params, self.groups, self.views(self.h), strict=True):
            if q.requires_grad:
                local(q).add_(shift.to(q.dtype), alpha=weight * float(groups[g]["lr"]))

    def count(self, groups: list[dict[str, Any]], stepped: bool) -> None:
        """Count a local step with the current learning rates."""
        self.local_step += 1
        self.taken += stepped
        for g in self.lr_sum:
            self.lr_sum[g] += float(groups[g]["lr"])

    def mean_lrs(self) -> list[float]:
        """The mean learning rate of each group over this round's local steps."""
        return [s / self.local_step for s in self.lr_sum.values()]

    def over_lr(self, s: slice) -> Tensor:
        """1 / lr with each group's mean learning rate, on a slice of the vector; 0 where that is 0."""
        mean = dict(zip(self.lr_sum, self.mean_lrs(), strict=True))
        inverse = {g: 1.0 / lr if lr else 0.0 for g, lr in mean.items()}
        return torch.cat([self.x.new_full((b - a,), inverse[self.groups[k]]) for k, a, b in self._pieces(s)])

    def restart(self) -> None:
        """Begin a round at x."""
        self.c.zero_()
        self.local_step = self.taken = 0
        self.lr_sum = dict.fromkeys(self.lr_sum, 0.0)

    # -- checkpoints ---------------------------------------------------------------------------------------------------
    def states(self) -> Iterator[tuple[Tensor, dict[str, Tensor]]]:
        """Each parameter with its parts of the vectors, which are sharded as it is."""
        kept = {name: self.views(getattr(self, name)) for name in VECTORS if len(getattr(self, name))}
        for k, q in enumerate(self.params):
            yield q, {name: like(q, views[k]) for name, views in kept.items()}

    def numbers(self) -> dict[str, Any]:
        """The state besides the vectors, as far as all shards of a copy have the same."""
        counts = {"round": self.round, "local_step": self.local_step, "taken": self.taken}
        return counts | {"lr_sum": list(self.lr_sum.values())}

    def of_this_rank(self, numbers: list[int]) -> Tensor:
        """Numbers of this rank as a vector, of which torch.distributed.checkpoint saves that of every shard."""
        v, q = torch.tensor(numbers, dtype=torch.float64), self.params[0]
        if not isinstance(q, DTensor):
            return v
        return DTensor.from_local(v.to(self.x.device), q.device_mesh, [Shard(0)] * q.device_mesh.ndim, run_check=False)

    def check(self, states: dict[Tensor, dict[str, Tensor]], numbers: dict[str, Any]) -> None:
        """Refuse a state that ``load`` cannot take."""
        complete(numbers, *self.numbers())
        for q, own in self.states():
            complete(states[q], *own)
            for name, v in own.items():
                saved = states[q][name]
                if not isinstance(saved, Tensor) or saved.shape != v.shape:
                    found = tuple(saved.shape) if isinstance(saved, Tensor) else "no"
                    raise InputError(f"the saved {name} of a parameter has {found} numbers, not {tuple(v.shape)}.")

    def load(self, states: dict[Tensor, dict[str, Tensor]], numbers: dict[str, Any]) -> None:
        for q, own in self.states():
            for name, v in own.items():
                local(v).copy_(local(states[q][name]))
        self.round, self.local_step, self.taken = (int(numbers[k]) for k in ("round", "local_step", "taken"))
        self.lr_sum = dict(zip(self.lr_sum, numbers["lr_sum"], strict=True))


def complete(state: Any, *names: str) -> None:
    """Refuse a state that lacks one of these."""
    missing = [name for name in names if not isinstance(state, dict) or name not in state]
    if missing:
        raise InputError(f"the checkpoint lacks {missing[0]}; load everything that state_dict returned.")


def named_after(prefix: str, state: dict[str, Any]) -> dict[str, Any]:
    """The part whose names begin so, without that."""
    return {name.removeprefix(prefix): v for name, v in state.items() if name.startswith(prefix)}


def digest(*parts: Tensor | str) -> int:
    """A number that differs if the parts do."""
    whole = hashlib.sha256()
    for v in parts:
        whole.update(v.encode() if isinstance(v, str) else v.cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
    return int.from_bytes(whole.digest()[:6], "little")  # which a float64 holds


def shard_of(v: Tensor) -> list[tuple[int, int]]:
    """Which part of a parameter this rank has: place and count for each dimension of the mesh that cuts it."""
    if not isinstance(v, DTensor):
        return []
    place = v.device_mesh.get_coordinate()
    cut = [k for k, kind in enumerate(v.placements) if not kind.is_replicate()]
    return [(place[k], v.device_mesh.size(k)) for k in cut]


def check_shards(params: list[Tensor], ranks: list[int], me: int) -> None:
    """Refuse to average one part of a parameter with another part of it, which would destroy both."""
    for v in (v for v in params if isinstance(v, DTensor)):
        for k, kind in enumerate(v.placements):
            others = {*torch.distributed.get_process_group_ranks(v.device_mesh.get_group(k))} - {me}
            shared = sorted(others & {*ranks})
            if shared and not kind.is_replicate():
                raise InputError(
                    f"the ranks {shared} hold other shards of the same parameters, which cannot be averaged with those "
                    "of this rank; pass group=, a group with one rank of each sharded copy."
                )


def like(q: Tensor, v: Tensor) -> Tensor:
    """A vector's part of a parameter, sharded as the parameter is."""
    if not isinstance(q, DTensor):
        return v
    return DTensor.from_local(v, q.device_mesh, q.placements, run_check=False, shape=q.shape, stride=q.stride())


def local(v: Tensor) -> Tensor:
    """This rank's part of a tensor: all of it, unless FSDP has sharded it."""
    return v.to_local() if isinstance(v, DTensor) else v
