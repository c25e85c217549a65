"""What clients remember: on the device where it fits, otherwise on the host, moved while the device computes."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping
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
LONG_ROW = 1 << 18
"""Bytes of a row from which it pays to move rows one by one, straight from and to where they are kept."""
SHARE_OF_HOST = 0.4
"""Of the host's free memory, what may be locked for such moves."""
LEAST_SHARE, SHARES = 64, 4
"""A cohort on the host is moved in this many shares, but none of fewer members: the first can begin early."""


class Shelf:
    """One row for each client and name."""

    def __init__(self, family: Any, device: torch.device, memory: Vectors, n: int, on_host: bool | None) -> None:
        self.family, self.device, self.n = family, device, n
        row = family.D * torch.finfo(family.dtype).bits // 8
        free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else None
        # what is remembered is there twice: as the half reads it, and as it returns it
        stacks = 2 * len(memory) + STACKS_AT_WORK
        self.fit = n if free is None else max(1, int(SHARE_OF_DEVICE * free / (row * stacks)))
        self.on_host = self.fit < n if on_host is None else on_host
        self.stream = torch.cuda.Stream(device) if device.type == "cuda" and self.on_host else None
        home = torch.device("cpu") if self.on_host else device
        self.direct = self.stream is not None and row >= LONG_ROW and row * n * len(memory) <= SHARE_OF_HOST * _free()
        self.kept: Stacks = {k: self._home(v, home) for k, v in memory.items()}
        self.on_card: dict[str, tuple[Indices, torch.Tensor]] = {}
        self.coming: list[tuple[str, Indices, torch.Tensor, Any]] = []
        self.read: set[str] = set(memory)
        self.undo: list[tuple[Indices, Stacks]] | None = None

    def _home(self, v: Any, home: torch.device) -> torch.Tensor:
        out = torch.zeros((self.n, self.family.D), dtype=self.family.dtype, device=home, pin_memory=self.direct)
        if np.any(v):
            for lo in range(0, self.n, 1024):  # piece by piece: the layout has gaps, and a copy of all may not fit
                piece = torch.tensor(v[lo : lo + 1024]).to(self.device, self.family.dtype)
                out[lo : lo + 1024] = self.family.inside(piece).to(home)
        return out

    # -- out -----------------------------------------------------------------------------------------------------------
    def shares(self, cohort: Indices) -> Iterator[tuple[slice, Any]]:
        """The cohort's rows on the device, all at once or share by share, the next one on its way."""
        if not self.on_host:
            yield slice(0, len(cohort)), self._rows(cohort)
            return
        size = min(self.fit, max(LEAST_SHARE, -(-len(cohort) // SHARES)))
        places = [slice(lo, min(lo + size, len(cohort))) for lo in range(0, len(cohort), size)]
        shares = [OnTheWay(self, cohort[place]) for place in places]
        wanted, self.read = tuple(self.read), set()  # what the last half has read, this one may read too
        for k, place in enumerate(places):
            # the next share sets out before this one is computed
            for share in shares[k : k + 2]:
                share.start(wanted)
            yield place, shares[k]
            shares[k].drop()

    def _rows(self, cohort: Indices) -> Stacks:
        if len(cohort) == self.n:
            return dict(self.kept)
        at = torch.as_tensor(cohort).to(self.device)
        return {k: v.index_select(0, at) for k, v in self.kept.items()}

    def load(self, name: str, members: Indices) -> tuple[torch.Tensor, Any]:
        """Rows from the host by a stream of their own, and when they are there; the newest may be on the device yet."""
        if self.direct:
            return self._moved(name, members)
        # where the newest rows are on the card as well, nobody has to wait for their copies (see ``newest``)
        self._arrived((name,) if self.spills else ())
        rows = self.kept[name].index_select(0, torch.as_tensor(members))
        if self.stream is None:
            return rows.to(self.device), None
        with torch.cuda.stream(self.stream):
            # only a copy from locked memory runs beside the computation
            moved = rows.pin_memory().to(self.device, non_blocking=True)
            ready = torch.cuda.Event()
            ready.record(self.stream)
        return moved, ready

    def _moved(self, name: str, members: Indices) -> tuple[torch.Tensor, Any]:
        """Row by row from where they are locked: the stream keeps the order of moves, so that they are the newest."""
        assert self.stream is not None
        with torch.cuda.stream(self.stream):
            out = torch.empty((len(members), self.family.D), dtype=self.family.dtype, device=self.device)
            for j, i in enumerate(members.tolist()):
                out[j].copy_(self.kept[name][i], non_blocking=True)
            ready = torch.cuda.Event()
            ready.record(self.stream)
        return out, ready

    def _put(self, name: str, members: Indices, rows: torch.Tensor) -> None:
        """And back."""
        assert self.stream is not None
        # the rows must have been computed before they leave
        self.stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(self.stream):
            for j, i in enumerate(members.tolist()):
                self.kept[name][i].copy_(rows[j], non_blocking=True)
            # and may not be given to somebody else by the allocator before they have left
            rows.record_stream(self.stream)

    def newest(self, name: str, members: Indices, stack: torch.Tensor) -> torch.Tensor:
        """The stack with those rows that the last cohort has changed, which need not be on the host yet."""
        if self.direct:
            return stack
        whose, rows = self.on_card.get(name, (np.zeros(0, np.int64), stack))
        _, mine, theirs = np.intersect1d(members, whose, assume_unique=True, return_indices=True)
        if not len(mine):
            return stack
        at, of = (torch.as_tensor(v).to(self.device) for v in (mine, theirs))
        return stack.index_copy_(0, at, rows.index_select(0, of))

    # -- and back ------------------------------------------------------------------------------------------------------
    @property
    def spills(self) -> bool:
        """Whether a cohort may be larger than the device, so that nothing of it stays there."""
        return self.on_host and self.fit < self.n

    def aside(self, v: torch.Tensor) -> torch.Tensor:
        """A stack off the device where that may be too small for the cohort; it is copied while the device goes on."""
        return self._copied(v)[0] if self.spills else v

    def _copied(self, v: torch.Tensor) -> tuple[torch.Tensor, Any]:
        """A copy on the host, and when it is there."""
        if self.stream is None or v.device.type == "cpu":
            return v.cpu(), None
        self.stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(self.stream):
            out = torch.empty(v.shape, dtype=v.dtype, pin_memory=True)
            out.copy_(v, non_blocking=True)
            v.record_stream(self.stream)
            ready = torch.cuda.Event()
            ready.record(self.stream)
        return out, ready

    def _arrived(self, names: Collection[str]) -> None:
        """Put what has come from the device into its place, and wait for what has these names."""
        left = []
        for name, members, rows, ready in self.coming:
            # still under way and not asked for: it is looked at next time
            if ready is not None and name not in names and not ready.query():
                left.append((name, members, rows, ready))
                continue
            if ready is not None:
                ready.synchronize()
            self.kept[name].index_copy_(0, torch.as_tensor(members), rows)
        self.coming = left

    def store(self, cohort: Indices, kept: Kept) -> None:
        """Keep what a half returned, once all of it is computed or under way."""
        names = list(kept[0][1])
        if self.spills and self.stream is not None:
            self.stream.synchronize()  # what was put aside, and what goes up, is on the host now
        if self.undo is not None:
            self.undo.append((cohort, self._before(cohort, names)))
        if self.on_host:
            self._arrived(names)  # of the last cohort, while the device computes this one
        for k in names:
            stacks = [v[k] for _, v in kept]
            if self.on_host:
                if not self.spills:
                    # the next cohort may read these rows before their copies have reached the host
                    self.on_card[k] = (cohort, torch.cat(stacks) if len(stacks) > 1 else stacks[0])
                for s, v in kept:
                    if self.direct:
                        self._put(k, cohort[s], v[k])
                    else:
                        self.coming.append((k, cohort[s], *self._copied(v[k])))
            elif len(cohort) == self.n:
                # everybody's rows are new: they take the place of the old ones without a copy
                self.kept[k] = stacks[0].contiguous()
            else:
                self.kept[k].index_copy_(0, torch.as_tensor(cohort).to(self.device), stacks[0])

    def _before(self, cohort: Indices, names: list[str]) -> Stacks:
        if not self.on_host and len(cohort) == self.n:
            # references will do: ``store`` puts new tensors in their place, and does not write into these
            return {k: self.kept[k] for k in names}
        at = torch.as_tensor(cohort)
        kept = self.all()
        return {k: kept[k].index_select(0, at.to(kept[k].device)) for k in names}

    # -- all of it -----------------------------------------------------------------------------------------------------
    def all(self) -> Stacks:
        """Everything that is remembered."""
        self._arrived(self.kept)
        if self.stream is not None:
            self.stream.synchronize()
        return self.kept

    def mark(self, several: bool) -> None:
        """A round begins; with several exchanges, what they overwrite is kept until the next one."""
        self.undo = [] if several else None

    def rewind(self) -> None:
        """What was remembered when the round began."""
        self.all()
        # the last exchange first, since two of them may have changed the same rows
        for cohort, stacks in reversed(self.undo or []):
            self.on_card = {}
            for k, v in stacks.items():
                if not self.on_host and len(cohort) == self.n:
                    self.kept[k] = v
                else:
                    self.kept[k].index_copy_(0, torch.as_tensor(cohort).to(v.device), v)


def _free() -> float:
    """Bytes of the host's memory that nobody uses."""
    return float(os.sysconf("SC_AVPHYS_PAGES")) * os.sysconf("SC_PAGE_SIZE")


class OnTheWay(Mapping[str, Any]):
    """A share of a cohort's memory: what is read comes to the device, if it is not there already."""

    def __init__(self, shelf: Shelf, members: Indices) -> None:
        self.shelf, self.members = shelf, members
        self.loads: dict[str, tuple[torch.Tensor, Any]] = {}
        self.stacks: Stacks = {}

    def start(self, names: tuple[str, ...]) -> None:
        """Begin to move these."""
        for k in names:
            if k not in self.loads and k not in self.stacks:
                self.loads[k] = self._found(k)

    def _found(self, name: str) -> tuple[torch.Tensor, Any]:
        known = self.shelf.on_card.get(name)
        if known is not None and np.array_equal(known[0], self.members):
            return known[1], None
        return self.shelf.load(name, self.members)

    def __getitem__(self, name: str) -> torch.Tensor:
        if name not in self.stacks:
            self.shelf.read.add(name)
            v, ready = self.loads.pop(name) if name in self.loads else self._found(name)
            if ready is not None:
                here = torch.cuda.current_stream(self.shelf.device)
                # the device waits for the rows, the host goes on
                here.wait_event(ready)
                v.record_stream(here)
            known = self.shelf.on_card.get(name)
            self.stacks[name] = v if known is not None and v is known[1] else self.shelf.newest(name, self.members, v)
        return self.stacks[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.shelf.kept)

    def __len__(self) -> int:
        return len(self.shelf.kept)

    def drop(self) -> None:
        """Its stacks are no longer needed."""
        self.loads, self.stacks = {}, {}
