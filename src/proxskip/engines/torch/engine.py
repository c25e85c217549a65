"""The torch engine: client halves on stacks of all clients, on the processor, a CUDA card, or another device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from proxskip.engines.torch import draws
from proxskip.engines.torch.cohort import DeviceCohort
from proxskip.engines.torch.device_vectors import DeviceVectors, column
from proxskip.engines.torch.families import Networks, family_of, groups
from proxskip.engines.torch.shelf import Shelf
from proxskip.engines.torch.steps import StackedSteps, repeatable
from proxskip.engines.torch.whole import WholeNetwork
from proxskip.links.gossip import Mixer
from proxskip.links.sums import weighted_sum
from proxskip.problems.federated import Problem
from proxskip.randomness import dropout_word
from proxskip.seam import Engine, Request, SettleHalf, Size, Work
from proxskip.types import Array, Indices, InputError, Vectors

CLIENTS_ON_A_PROCESSOR = 32
"""Clients at once on a processor, where more of them gain nothing."""


class TorchEngine(Engine):
    """All clients' local steps at once by PyTorch, in CUDA graphs on a card; the same bytes in every run.

    What clients remember is in the precision of their functions: float64, or float32 for modules in float32 and below.

    Args:
        device: "cuda" if there is one, otherwise "cpu"; any device of PyTorch.
        clients_at_once: clients of one step, if not as many as fit; they share the device's memory.
        keep_on_host: keep what clients remember on the host, and move it while the device computes; by default where
            it does not fit on the device.
        graphs: False to launch every operation by itself on a card.
    """

    name = "torch"

    def __init__(
        self,
        device: str | torch.device | None = None,
        clients_at_once: int | None = None,
        keep_on_host: bool | None = None,
        graphs: bool = True,
    ) -> None:
        found = device or ("cuda" if torch.cuda.is_available() else "cpu")
        try:
            # an empty tensor fills in the device's number ("cuda" is "cuda:0"), and fails where there is no such device
            self.device = torch.zeros(0, device=found).device
        except (RuntimeError, AssertionError) as error:
            raise InputError(f'PyTorch has no device "{found}" here: {str(error).splitlines()[0]}') from None
        if clients_at_once is not None and clients_at_once < 1:
            raise InputError(f"clients_at_once = {clients_at_once} must be at least 1.")
        self.clients_at_once, self.keep_on_host, self.graphs = clients_at_once, keep_on_host, graphs
        self.repeatable, self.far = repeatable, False

    def open(self, problem: Problem, memory: Vectors, seed: int) -> None:
        """Bring the data to the device, and what clients remember there or to the host."""
        self.problem, self.seed, self.far = problem, seed, problem.psi is None
        self.family: Any = family_of(problem, self.device)
        self.zero = torch.zeros((), dtype=self.family.dtype, device=self.device)
        self.draw = draws.drawing(seed, self.device)
        graphs = self.graphs and self.device.type == "cuda"
        self.steps: Any = StackedSteps(self.family, seed, self.draw, problem.batch, graphs)
        self.at_once = self.clients_at_once or (CLIENTS_ON_A_PROCESSOR if self.device.type == "cpu" else problem.n)
        self.shelf: Any = Shelf(self.family, self.device, memory, problem.n, self.keep_on_host)
        self.numbers: dict[bytes, torch.Tensor] = {}
        self.weights: tuple[bytes, Any] = (b"", None)

    # -- where vectors are ---------------------------------------------------------------------------------------------
    def is_far(self) -> bool:
        """The server's vectors stay on the device; a prox is computed by numpy, so its argument has to come down."""
        return self.far

    def rounding(self) -> float:
        """That of the family's precision."""
        return float(torch.finfo(self.family.dtype).eps)

    def there(self, v: Any) -> DeviceVectors:
        """A vector or stack on the device."""
        if isinstance(v, DeviceVectors):
            return v
        moved = torch.tensor(v).to(self.device, self.family.dtype)
        return DeviceVectors(self.problem.d, self.family.inside(moved))

    def here(self, v: torch.Tensor) -> Array:
        """And back."""
        return np.asarray(self.family.outside(v).to("cpu", torch.float64).numpy())

    def place(self, v: Array) -> Any:
        """A vector of the server's on the device."""
        return self.there(v)

    def fetch(self, v: Any) -> Array:
        """And back."""
        return self.here(v.tensor) if isinstance(v, DeviceVectors) else np.asarray(v)

    def wait(self) -> None:
        """Until the device has done all it was asked for."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def on_device(self, members: Indices) -> torch.Tensor:
        """The clients' numbers there; sent once as long as they stay the same."""
        key = members.tobytes()
        if key not in self.numbers:
            # cohorts that are drawn anew in every round would fill it without end
            if len(self.numbers) > 64:
                self.numbers.clear()
            self.numbers[key] = torch.as_tensor(np.ascontiguousarray(members)).to(self.device)
        return self.numbers[key]

    def word(self, round: int, step: Any) -> Any:
        """The word of dropout of a local step (numbered from one); None where there is none."""
        if not self.family.is_random or not np.any(step):
            return None
        numbers = np.unique(step)
        if len(numbers) > 1:
            raise InputError('dropout on the torch engine needs one K for all clients; use engine="cpu".')
        return torch.tensor(dropout_word(self.seed, round, int(numbers[0]))).to(self.device)

    def groups(self, members: Indices, whole: bool, most: int | None = None) -> list[Indices]:
        """The places of the members that are computed at once, no more than ``most``."""
        apart = whole and isinstance(self.family, Networks) and not self.family.equal
        return groups(members, self.family.sizes, min(self.at_once, most or self.at_once), apart)

    # -- the two verbs -------------------------------------------------------------------------------------------------
    def run(self, request: Request) -> Work:
        """The whole cohort in one call of the half, or share by share where its memory is on the host."""
        down = [self.there(v) for v in request.down]
        ups, sizes, taken, gradients, kept = [], [], [], 0, []
        for places, memory in self.shelf.shares(request.cohort):
            members = request.cohort[places]
            client = DeviceCohort(self, members, request, places.start)
            # every share sees its own part of what is given per client, cut at the same places
            own = {k: column(v[places], self.zero) for k, v in request.own.items()}
            K = request.K if np.ndim(request.K) == 0 else request.K[places]
            out: Any = request.half(client, self._written(memory), K, *down, **own)
            up, new = out
            kept.append((places, self._aside(client, new)))
            ups.append([self._off_device(client, v) for v in up])
            gradients += client.gradients
            sizes.append(client.sizes(up) if client.used_codec else (None,) * len(up))
            taken.append(client.taken)
        # only after the last share: a run that is interrupted before it has changed nothing that is remembered
        self.shelf.store(request.cohort, kept)
        counted = None if taken[0] is None else np.concatenate(
            [np.broadcast_to(np.ravel(t), (s.stop - s.start,)) for t, (s, _) in zip(taken, kept, strict=True)]
        )  # fmt: skip
        counts = [places.stop - places.start for places, _ in kept]
        shares = tuple(Shares(pieces, counts) for pieces in zip(*ups, strict=True))
        return Work(shares, gradients, tuple(map(Size.total, zip(*sizes, strict=True))), counted)

    def tell(self, half: SettleHalf, cohort: Indices, outcome: tuple[Any, ...]) -> None:
        """Likewise; what is told to each member is cut into the same shares."""
        request, kept = Request(half, cohort, 0), []  # type: ignore[arg-type]
        for places, memory in self.shelf.shares(cohort):
            client = DeviceCohort(self, cohort[places], request, places.start)
            # what is told to all members alike stays one vector, which every share reads
            rows = [self.there(v[places] if isinstance(v, np.ndarray) and v.ndim > 1 else v) for v in outcome]
            new = half(client, self._written(memory), *rows)
            kept.append((places, self._aside(client, new)))
        self.shelf.store(cohort, kept)

    def _aside(self, client: DeviceCohort, new: Any) -> dict[str, torch.Tensor]:
        return {k: self.shelf.aside(client.stack(v)) for k, v in new.items()}

    def _off_device(self, client: DeviceCohort, v: Any) -> Any:
        """What goes up, off the device where that may be too small for the whole cohort."""
        if not self.shelf.spills:
            return v
        return DeviceVectors(self.problem.d, self.shelf.aside(client.stack(v)))

    def _written(self, memory: Any) -> Any:
        return WrittenMemory(memory, self.problem.d)

    def local_steps(self, client: DeviceCohort, x: DeviceVectors, h: Any, gamma: Any, K: int) -> torch.Tensor:
        """K plain steps of these members from x, as a new stack."""
        no_h = isinstance(h, (int, float)) and h == 0
        H = None if no_h else client.stack(h)
        return self.as_fits(lambda: self._stepped(client, x.tensor, H, gamma, K), len(client.members))

    def as_fits(self, act: Callable[[], Any], count: int) -> Any:
        """``act()`` on ``count`` clients, with fewer of them at once as long as the device's memory is too small.

        What the steps need besides the stacks is not known before they are tried.
        """
        while True:
            try:
                return act()
            except torch.OutOfMemoryError:
                if self.at_once == 1 and not self.steps.use_graphs:
                    raise
                if self.at_once > 1:
                    self.at_once = -(-min(self.at_once, count) // 2)
                else:  # the graphs of many groups keep the memory of all: as many clients as fit without them
                    self.at_once, self.steps.use_graphs = count, False
                self.steps.forget()

    def _stepped(self, client: DeviceCohort, x: Any, H: Any, gamma: Any, K: int) -> torch.Tensor:
        members, request = client.members, client.request
        Y = torch.empty((len(members), self.family.D), dtype=self.family.dtype, device=self.device)
        Y.copy_(x)
        for g in self.groups(members, self.problem.batch is None):
            run = slice(int(g[0]), int(g[-1]) + 1)
            together = run.stop - run.start == len(g)  # a view of these rows, where they stand together
            at: Any = run if together else torch.as_tensor(g).to(self.device)
            y, k = Y[at], gamma if isinstance(gamma, float) else gamma[at] if len(gamma) > 1 else gamma
            there = self.on_device(members[g])
            self.steps.run(
                y, None if H is None else H[at].contiguous(), k, K, members[g], there, request.round, client.step,
                request.halt,
            )  # fmt: skip
            if not together:
                Y[at] = y
        return Y

    def sum(self, w: Array, U: Any) -> Any:
        """``sum_j w_j U_j``; by numpy, in client order, where the rows are there in double precision."""
        # by the same function as the engines on numpy, and so with the same rounding
        if self.device.type == "cpu" and self.family.dtype == torch.float64:
            total = self.there(weighted_sum(w, self.fetch_rows(U)))
        else:
            total = DeviceVectors(self.problem.d, U.mean(self._weights(w)))
        return total if self.far else self.fetch(total)

    def _weights(self, w: Array) -> torch.Tensor:
        if w.tobytes() != self.weights[0]:
            self.weights = w.tobytes(), torch.tensor(w).to(self.device, self.family.dtype)
        found: torch.Tensor = self.weights[1]
        return found

    def fetch_rows(self, U: Any) -> Array:
        """What came up, one row for each member."""
        rows = (np.broadcast_to(self.here(p.tensor), (c, p.d)) for p, c in zip(U.pieces, U.counts, strict=True))
        return np.concatenate(list(rows))

    def mix(self, graph: Mixer, U: Any) -> Any:
        """One gossip step, here."""
        return graph.mix(self.fetch_rows(U) if isinstance(U, Shares) else U)

    # -- what is remembered --------------------------------------------------------------------------------------------
    def memory(self) -> Vectors:
        """A copy of what the clients remember."""
        stacks = self.shelf.all()
        found = {k: self.here(v) for k, v in stacks.items()}
        # on the host, what is in double precision and in its order is seen where it is kept
        return {k: a.copy() if a.ctypes.data == stacks[k].data_ptr() else a for k, a in found.items()}

    def mark(self, several: bool) -> bool:
        """A round changes what is remembered only after its last step; with several exchanges, keep a copy."""
        self.shelf.mark(several)
        return True

    def rewind(self) -> None:
        """What was remembered when the round began."""
        self.shelf.rewind()

    def close(self) -> None:
        """Give the device's memory back."""
        self.family = self.steps = self.shelf = None
        self.numbers = {}
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def judge(self, problem: Problem) -> Problem:
        """Networks are evaluated on the device, all clients at once."""
        if not isinstance(self.family, Networks) or problem.knows_L:
            return problem
        judged = replace(problem, whole=WholeNetwork(self))
        # ``by_client`` is a cached property: its value is put into the cache, so that f is evaluated as a whole
        judged.__dict__["by_client"] = False
        return judged


class WrittenMemory(dict[str, Any]):
    """A cohort's memory as a half sees it; what is not read is not fetched."""

    def __init__(self, memory: Any, d: int) -> None:
        super().__init__()
        self.memory, self.d = memory, d

    def __missing__(self, name: str) -> DeviceVectors:
        self[name] = found = DeviceVectors(self.d, self.memory[name])
        return found


class Shares:
    """What came up, share by share."""

    def __init__(self, pieces: Sequence[DeviceVectors], counts: Sequence[int]) -> None:
        self.pieces, self.counts = pieces, counts

    @property
    def shape(self) -> tuple[int, ...]:
        """One row for each member."""
        return (sum(self.counts), self.pieces[0].d)

    def mean(self, w: torch.Tensor) -> torch.Tensor:
        """sum_j w_j (row j)."""
        parts = zip(self.pieces, w.split(list(self.counts)), strict=True)
        return sum(p.mean(some) for p, some in parts)
