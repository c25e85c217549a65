"""The clients' memory: on the device if it fits, otherwise on the host."""

from __future__ import annotations

import torch

from proxskip.types import Indices, Vectors

Stacks = dict[str, torch.Tensor]

SHARE_OF_DEVICE = 0.6
"""The share of free memory for stacks; local steps need the rest."""
STACKS_AT_WORK = 5
"""Stacks that local steps need besides the memory: y, gradients and temporaries."""


class ClientMemory:
    """One row per client and name.

    Args:
        on_host: keep the rows on the host; None for only if they do not fit on the device.
    """

    def __init__(
        self, memory: Vectors, shape: tuple[int, int], dtype: torch.dtype, device: torch.device, on_host: bool | None
    ) -> None:
        n, d = shape
        self.device = device
        # the memory exists twice: as the half reads it, and as it returns it
        client_bytes = d * dtype.itemsize * (2 * len(memory) + STACKS_AT_WORK)
        free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else client_bytes * n / SHARE_OF_DEVICE
        self.fit = max(1, round(SHARE_OF_DEVICE * free / client_bytes))
        self.on_host = self.fit < n if on_host is None else on_host
        self.spills = self.on_host and self.fit < n
        home = torch.device("cpu") if self.on_host else device
        self.stacks: Stacks = {name: torch.empty(shape, dtype=dtype, device=home) for name in memory}
        for name, v in memory.items():
            for lo in range(0, n, 1024):  # in pieces: a second copy may not fit
                self.stacks[name][lo : lo + 1024] = torch.tensor(v[lo : lo + 1024])

    def shares(self, cohort: Indices) -> list[slice]:
        """The cohort in parts that fit on the device."""
        size = self.fit if self.on_host else len(cohort)
        return [slice(lo, min(lo + size, len(cohort))) for lo in range(0, len(cohort), size)]

    def load(self, name: str, members: Indices) -> torch.Tensor:
        """The members' rows on the device."""
        rows = self.stacks[name]
        if len(members) < len(rows):
            rows = rows.index_select(0, torch.as_tensor(members).to(rows.device))
        if rows.device == self.device:
            return rows
        return rows.pin_memory().to(self.device, non_blocking=True)

    def aside(self, v: torch.Tensor) -> torch.Tensor:
        """A stack that waits for the other shares; on the host if the device may be too small for all."""
        return v.cpu() if self.spills else v

    def store(self, members: Indices, stacks: Stacks) -> None:
        """Keep the memory that a half returned for these members."""
        for name, v in stacks.items():
            kept = self.stacks[name]
            if len(members) == len(kept):
                self.stacks[name] = v.to(kept.device).contiguous()
            else:
                kept.index_copy_(0, torch.as_tensor(members).to(kept.device), v.to(kept.device))


class MembersMemory(Stacks):
    """The memory of some members as a half sees it; rows are moved when first read."""

    def __init__(self, memory: ClientMemory, members: Indices) -> None:
        super().__init__()
        self.memory, self.members = memory, members

    def __missing__(self, name: str) -> torch.Tensor:
        self[name] = rows = self.memory.load(name, self.members)
        return rows
