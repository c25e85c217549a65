"""What clients remember: on the device where it fits, otherwise on the host, moved while the device computes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from proxskip.types import Indices, Vectors

Stacks = dict[str, torch.Tensor]
Kept = list[tuple[slice, Stacks]]
"""Places in the cohort, and the stacks of these members."""

SHARE_OF_DEVICE = 0.6
"""Of the free memory, what stacks may take; the rest is for the local steps."""
STACKS_AT_WORK = 5
"""Stacks that local steps need besides what is remembered: y, gradients, and what is computed from them."""
LEAST_SHARE, SHARES = 64, 4
"""A cohort on the host is moved in so many shares, but none of fewer members: the first can begin early."""


class Shelf:
    """One row for each client and name."""

    def __init__(self, family: Any, device: torch.device, memory: Vectors, n: int, on_host: bool | None) -> None:
        self.family, self.device, self.n = family, device, n
        self.names = tuple(memory)
        row = family.D * torch.finfo(family.dtype).bits // 8
        free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else None
        self.fit = (
            n if free is None else max(1, int(SHARE_OF_DEVICE * free / (row * (2 * len(memory) + STACKS_AT_WORK))))
        )
        self.on_host = self.fit < n if on_host is None else on_host
        self.stream = torch.cuda.Stream(device) if device.type == "cuda" and self.on_host else None
        home = torch.device("cpu") if self.on_host else device
        self.kept: Stacks = {k: self._home(v, home) for k, v in memory.items()}
        self.cached: tuple[bytes, Kept] = (b"", [])
        self.undo: list[tuple[Indices, Stacks]] | None = None

    def _home(self, v: Any, home: torch.device) -> torch.Tensor:
        out = torch.zeros((self.n, self.family.D), dtype=self.family.dtype, device=home)
        if np.any(v):
            for lo in range(0, self.n, 1024):  # piece by piece: the layout has gaps, and a copy of all may not fit
                piece = torch.as_tensor(v[lo : lo + 1024]).to(self.device, self.family.dtype)
                out[lo : lo + 1024] = self.family.inside(piece).to(home)
        return out

    # -- out -----------------------------------------------------------------------------------------------------------
    def shares(self, cohort: Indices) -> Iterator[tuple[slice, Stacks]]:
        """The cohort's rows on the device, all at once or share by share, the next one on its way."""
        if self.cached[0] == cohort.tobytes():
            yield from self.cached[1]
            return
        if not self.on_host:
            yield slice(0, len(cohort)), self._rows(cohort)
            return
        size = min(self.fit, max(LEAST_SHARE, -(-len(cohort) // SHARES)))
        places = [slice(lo, min(lo + size, len(cohort))) for lo in range(0, len(cohort), size)]
        coming = self._load(cohort[places[0]])
        for k, place in enumerate(places):
            stacks, ready = coming
            if k + 1 < len(places):
                coming = self._load(cohort[places[k + 1]])
            if ready is not None:
                torch.cuda.current_stream(self.device).wait_event(ready)
                for v in stacks.values():
                    v.record_stream(torch.cuda.current_stream(self.device))
            yield place, stacks

    def _rows(self, cohort: Indices) -> Stacks:
        if len(cohort) == self.n:
            return dict(self.kept)
        at = torch.as_tensor(cohort).to(self.device)
        return {k: v.index_select(0, at) for k, v in self.kept.items()}

    def _load(self, members: Indices) -> tuple[Stacks, Any]:
        """Rows from the host, by a stream of their own."""
        at = torch.as_tensor(members)
        rows = {k: v.index_select(0, at) for k, v in self.kept.items()}
        if self.stream is None:
            return {k: v.to(self.device) for k, v in rows.items()}, None
        with torch.cuda.stream(self.stream):
            moved = {k: v.pin_memory().to(self.device, non_blocking=True) for k, v in rows.items()}
            ready = torch.cuda.Event()
            ready.record(self.stream)
        return moved, ready

    # -- and back ------------------------------------------------------------------------------------------------------
    @property
    def spills(self) -> bool:
        """Whether a cohort may be larger than the device, so that nothing of it stays there."""
        return self.on_host and self.stream is not None and self.fit < self.n

    def aside(self, v: torch.Tensor) -> torch.Tensor:
        """A stack off the device where that may be too small for the cohort; it is copied while the device goes on."""
        if not self.spills or self.stream is None:
            return v
        self.stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(self.stream):
            out = torch.empty(v.shape, dtype=v.dtype, pin_memory=True)
            out.copy_(v, non_blocking=True)
            v.record_stream(self.stream)
        return out

    def store(self, cohort: Indices, kept: Kept) -> None:
        """Keep what a half returned, once all of it is there."""
        names = list(kept[0][1])
        if self.undo is not None:
            self.undo.append((cohort, self._before(cohort, names)))
        if self.stream is not None:
            self.stream.synchronize()
        if not self.on_host and len(kept) == 1 and len(cohort) == self.n:
            for k in names:
                v = kept[0][1][k]
                self.kept[k] = v if v.is_contiguous() else v.contiguous()
            return
        self._remember(cohort, kept)
        for places, stacks in kept:
            at = torch.as_tensor(cohort[places]).to(self.kept[names[0]].device) if names else None
            for k, v in stacks.items():
                self.kept[k].index_copy_(0, at, v.to(self.kept[k].device))

    def _remember(self, cohort: Indices, kept: Kept) -> None:
        """The cohort's rows stay on the device for the next half, where they fit: it is mostly for the same cohort."""
        if not self.on_host or self.spills:
            return
        key = cohort.tobytes()
        old = dict(enumerate(self.cached[1])) if self.cached[0] == key else {}
        self.cached = (
            key,
            [
                (places, (old[j][1] if j in old else self._loaded(cohort[places])) | v)
                for j, (places, v) in enumerate(kept)
            ],
        )

    def _loaded(self, members: Indices) -> Stacks:
        stacks, ready = self._load(members)
        if ready is not None:
            ready.synchronize()
        return stacks

    def _before(self, cohort: Indices, names: list[str]) -> Stacks:
        if not self.on_host and len(cohort) == self.n:
            return {k: self.kept[k] for k in names}
        at = torch.as_tensor(cohort)
        return {k: self.kept[k].index_select(0, at.to(self.kept[k].device)) for k in names}

    # -- all of it -----------------------------------------------------------------------------------------------------
    def all(self) -> Stacks:
        """Everything that is remembered."""
        return self.kept

    def mark(self, several: bool) -> None:
        """A round begins; with several exchanges, what they overwrite is kept until the next one."""
        self.undo = [] if several else None

    def rewind(self) -> None:
        """What was remembered when the round began."""
        self.cached = (b"", [])
        for cohort, stacks in reversed(self.undo or []):
            for k, v in stacks.items():
                if not self.on_host and len(cohort) == self.n:
                    self.kept[k] = v
                else:
                    self.kept[k].index_copy_(0, torch.as_tensor(cohort).to(v.device), v)
