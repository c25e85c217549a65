"""A network's parameters as one vector, with its control variate and its place in the round."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import torch
from torch import Tensor

from proxskip.types import InputError

try:
    from torch.distributed.tensor import DTensor
except ImportError:  # a build without torch.distributed has no sharded parameters
    DTensor = None


class FlatParameters:
    """The trainable parameters of an optimizer.

    ``x`` is the last common point, ``h`` the control variate and ``c`` the sum of raw gradients since x, each one flat
    vector in float32 (float64 if one of the parameters is), whatever the precision of the local work.
    """

    def __init__(self, optim: Any) -> None:
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
        self.x = self.flat()
        self.h, self.c = torch.zeros_like(self.x), torch.zeros_like(self.x)
        self.round = self.local_step = self.taken = 0
        self.lr_sum: dict[int, float] = dict.fromkeys(self.groups, 0.0)
        self.saved_at: int | None = None

    def flat(self) -> Tensor:
        """The parameters as one new vector."""
        parts = [local(q).detach().reshape(-1) for q in self.params]
        precise = torch.float64 if any(v.dtype == torch.float64 for v in parts) else torch.float32
        return torch.cat([v.to(precise) for v in parts])

    def views(self, v: Tensor) -> list[Tensor]:
        """Each parameter's part of a flat vector, in its shape."""
        return [part.view(s) for part, s in zip(v.split(self.sizes), self.shapes, strict=True)]

    def put(self, v: Tensor) -> None:
        for q, part in zip(self.params, self.views(v), strict=True):
            local(q).copy_(part)

    def stands_at_x(self) -> bool:
        """Whether the parameters equal x, in their precision."""
        pairs = ((local(q), part) for q, part in zip(self.params, self.views(self.x), strict=True))
        return all(torch.equal(q, part.to(q.dtype)) for q, part in pairs)

    def stands_where_saved(self) -> bool:
        """Whether the parameters belong to the loaded state."""
        return digest(self.flat()) == self.saved_at if self.local_step else self.stands_at_x()

    def shift(self, keep_raw: bool) -> None:
        """Subtract h from the gradients, and add the raw ones to c if needed."""
        for q, h, c in zip(self.params, self.views(self.h), self.views(self.c), strict=True):
            if not q.requires_grad:
                continue  # frozen later: it stays, and so does its h
            if q.grad is None:
                q.grad = torch.zeros_like(q)  # unused in this step: a zero gradient, but h still acts
            g = local(q.grad)
            if g.is_sparse:
                raise InputError("a gradient is sparse; create the embedding with sparse=False.")
            if keep_raw:
                c += g
            g -= h.to(g.dtype)

    def count(self, groups: list[dict[str, Any]], stepped: bool) -> None:
        """Count a local step with the current learning rates."""
        self.local_step += 1
        self.taken += stepped
        for g in self.lr_sum:
            self.lr_sum[g] += float(groups[g]["lr"])

    def mean_lrs(self) -> list[float]:
        """The mean learning rate of each group over this round's local steps."""
        return [s / self.local_step for s in self.lr_sum.values()]

    def over_lr(self, v: Tensor) -> Tensor:
        """v / lr with each group's mean learning rate; 0 where that is 0."""
        mean = dict(zip(self.lr_sum, self.mean_lrs(), strict=True))
        parts = zip(v.split(self.sizes), self.groups, strict=True)
        return torch.cat([part / mean[g] if mean[g] else torch.zeros_like(part) for part, g in parts])

    def restart(self) -> None:
        """Begin a round at x."""
        self.c.zero_()
        self.local_step = self.taken = 0
        self.lr_sum = dict.fromkeys(self.lr_sum, 0.0)

    # -- checkpoints ---------------------------------------------------------------------------------------------------
    def state(self) -> dict[str, Any]:
        """Everything but the parameters, as tensors and numbers."""
        numbers = {"round": self.round, "local_step": self.local_step, "taken": self.taken}
        numbers["saved_at"] = digest(self.flat()) if self.local_step else 0
        lrs = torch.tensor(list(self.lr_sum.values()), dtype=torch.float64)
        return {"x": self.x.clone(), "h": self.h.clone(), "c": self.c.clone(), "lr_sum": lrs, **numbers}

    def check(self, state: Any) -> None:
        """Refuse a state that ``load`` cannot take."""
        complete(state, "x", "h", "c", "lr_sum", "round", "local_step", "taken")
        sizes = {"x": self.x.numel(), "h": self.x.numel(), "c": self.x.numel(), "lr_sum": len(self.lr_sum)}
        for name, size in sizes.items():
            saved = state[name]
            if not isinstance(saved, Tensor) or saved.shape != (size,):
                count = saved.numel() if isinstance(saved, Tensor) else "no"
                raise InputError(f"the saved {name} has {count} numbers but this network has {size}; load its own.")

    def load(self, state: dict[str, Any]) -> None:
        for name in ("x", "h", "c"):
            getattr(self, name).copy_(state[name])
        self.round, self.local_step, self.taken = (int(state[k]) for k in ("round", "local_step", "taken"))
        self.lr_sum = dict(zip(self.lr_sum, state["lr_sum"].tolist(), strict=True))
        self.saved_at = state.get("saved_at")


def local_steps(seed: int, round: int, p: float | None, period: int | None) -> int:
    """The local steps of a round, drawn or fixed; the same on all ranks."""
    if p is None:
        assert period is not None
        return period
    key = np.random.Philox(key=seed, counter=[0, 0, round, 0])
    return int(np.random.Generator(key).geometric(p))


def complete(state: Any, *names: str) -> None:
    """Refuse a state that lacks one of these."""
    missing = [name for name in names if not isinstance(state, dict) or name not in state]
    if missing:
        raise InputError(f"the checkpoint lacks {missing[0]}; load everything that state_dict returned.")


def digest(*parts: Tensor | str) -> int:
    """A number that differs if the parts do."""
    whole = hashlib.sha256()
    for v in parts:
        whole.update(v.encode() if isinstance(v, str) else v.cpu().view(torch.uint8).numpy())
    return int.from_bytes(whole.digest()[:7], "little")


def shard_of(v: Tensor) -> list[tuple[int, int]]:
    """Which part of a parameter this rank has: place and count for each dimension of the mesh that cuts it."""
    if DTensor is None or not isinstance(v, DTensor):
        return []
    place = v.device_mesh.get_coordinate()
    cut = [k for k, kind in enumerate(v.placements) if not kind.is_replicate()]
    return [(place[k], v.device_mesh.size(k)) for k in cut]


def check_shards(params: list[Tensor], ranks: list[int], me: int) -> None:
    """Refuse to average one part of a parameter with another part of it, which would destroy both."""
    for v in params:
        if DTensor is None or not isinstance(v, DTensor):
            continue
        for k, kind in enumerate(v.placements):
            others = {*torch.distributed.get_process_group_ranks(v.device_mesh.get_group(k))} - {me}
            shared = sorted(others & {*ranks})
            if shared and not kind.is_replicate():
                raise InputError(
                    f"the ranks {shared} hold other shards of the same parameters, which cannot be averaged with those "
                    "of this rank; pass group=, a group with one rank of each sharded copy."
                )


def local(v: Tensor) -> Tensor:
    """This rank's part of a tensor: all of it, unless FSDP has sharded it."""
    return v.to_local() if DTensor is not None and isinstance(v, DTensor) else v
