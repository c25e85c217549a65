"""The torch engine: client halves on stacks of all clients, on a CPU, a CUDA GPU or another device."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from proxskip import theory
from proxskip.core.engine import Engine, Request, Size, Work, look
from proxskip.core.exchange import SettleHalf, checked_answer
from proxskip.core.gossip import Mixer
from proxskip.engines.torch.client_memory import ClientMemory, MembersMemory, Stacks
from proxskip.engines.torch.cohort import DeviceCohort, column
from proxskip.engines.torch.network_objective import WholeNetwork
from proxskip.engines.torch.stacked_functions import Networks, family_of
from proxskip.engines.torch.stacked_steps import StackedSteps
from proxskip.problems.federated import Problem
from proxskip.support.randomness import dropout_word
from proxskip.support.sums import weighted_sum
from proxskip.types import Array, Counts, Indices, InputError, Vectors

UNKNOWNS_ON_A_CPU = 1 << 22
"""Unknowns of the clients computed at once on a CPU, where more gain nothing; at least 32 clients."""


class TorchEngine(Engine):
    """All clients' local steps at once by PyTorch, in CUDA graphs on a GPU; the same bytes in every run.

    What clients remember is in the precision of their functions: float64, or float32 for modules in float32 and below.

    Args:
        device: "cuda" if there is one, otherwise "cpu"; any device of PyTorch.
        clients_at_once: clients of one step, if not as many as fit; they share the device's memory.
        keep_on_host: keep what clients remember on the host; by default where it does not fit on the device.
        graphs: False to launch each operation by itself on a GPU.
    """

    name = "torch"

    def __init__(
        self,
        device: str | torch.device | None = None,
        clients_at_once: int | None = None,
        keep_on_host: bool | None = None,
        graphs: bool = True,
    ) -> None:
        name = device or ("cuda" if torch.cuda.is_available() else "cpu")
        try:
            # an empty tensor resolves the device ("cuda" is "cuda:0"), and fails if it does not exist
            self.device = torch.zeros(0, device=name).device
        except (RuntimeError, AssertionError) as error:
            raise InputError(f'PyTorch has no device "{name}" ({str(error).splitlines()[0]}); use "cpu".') from None
        if clients_at_once is not None:
            theory.whole("clients_at_once", clients_at_once)
        self.clients_at_once, self.keep_on_host, self.graphs = clients_at_once, keep_on_host, graphs
        self.far = False

    def open(self, problem: Problem, memory: Vectors, seed: int) -> None:
        self.problem, self.seed, self.far = problem, seed, problem.psi is None
        self.family: Any = family_of(problem, self.device)
        self.zero = torch.zeros((), dtype=self.family.dtype, device=self.device)
        graphs = self.graphs and self.device.type == "cuda"
        self.steps: Any = StackedSteps(self.family, seed, problem.batch, self.device, graphs)
        most = max(32, UNKNOWNS_ON_A_CPU // problem.d) if self.device.type == "cpu" else problem.n
        self.at_once = self.clients_at_once or most
        self.remembered: Any = ClientMemory(
            memory, (problem.n, problem.d), self.family.dtype, self.device, self.keep_on_host
        )

    # -- vectors on the device -----------------------------------------------------------------------------------------
    def is_far(self) -> bool:
        """Unless there is a prox, which numpy computes."""
        return self.far

    def rounding(self) -> float:
        return float(torch.finfo(self.family.dtype).eps)

    def place(self, v: Tensor | npt.ArrayLike) -> Tensor:
        return v if isinstance(v, Tensor) else torch.tensor(v).to(self.device, self.family.dtype)

    def fetch(self, v: Tensor | npt.ArrayLike) -> Array:
        return np.asarray(v.to("cpu", torch.float64) if isinstance(v, Tensor) else v)

    def wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def word(self, round: int, step: Counts) -> Tensor | None:
        """The dropout word of a local step (numbered from one); None without dropout."""
        if not self.family.is_random or not np.any(step):
            return None
        numbers = np.unique(step)
        if len(numbers) > 1:
            raise InputError('with dropout the torch engine needs one K for all clients; use engine="cpu".')
        return torch.tensor(dropout_word(self.seed, round, int(numbers[0]))).to(self.device)

    def each_group(self, client: DeviceCohort, compute: Callable[[slice], None]) -> None:
        """``compute(places)`` for groups of members, with fewer at once each time the device runs out of memory."""
        while True:
            try:
                for lo in range(0, len(client.members), self.at_once):
                    look(client.request.halt)
                    compute(slice(lo, lo + self.at_once))
                return
            except torch.OutOfMemoryError:
                if self.at_once == 1 and not self.steps.use_graphs:
                    raise
                if self.at_once > 1:
                    self.at_once = -(-min(self.at_once, len(client.members)) // 2)
                else:  # graphs keep the memory of all groups: try without them
                    self.at_once, self.steps.use_graphs = len(client.members), False
                self.steps.forget()

    # -- run and tell --------------------------------------------------------------------------------------------------
    def run(self, request: Request) -> Work:
        """The whole cohort in one call of the half, or in shares if the device is too small."""
        down = [self.place(v) for v in request.down]
        ups, sizes, taken, gradients, kept = [], [], [], 0, []
        for places in self.remembered.shares(request.cohort):
            members = request.cohort[places]
            client = DeviceCohort(self, members, request, places.start)
            # per-client inputs are cut at the same places
            own = {k: column(v[places], self.zero) for k, v in request.own.items()}
            K = request.K if isinstance(request.K, int) else request.K[places]
            answer = request.half(client, self._memory_of(members), K, *down, **own)
            up, new = checked_answer(request.half, answer)
            kept.append((members, self._aside(client, new)))
            ups.append([self.remembered.aside(client.stack(v)) for v in up])
            gradients += client.gradients
            sizes.append(client.sizes(up) if client.used_codec else (None,) * len(up))
            if client.had_criterion:
                taken.append(np.broadcast_to(np.ravel(client.step), members.shape))
        # only after the last share, so that an interrupt changes no memory
        for members, new in kept:
            self.remembered.store(members, new)
        whole = tuple(torch.cat(pieces) if len(pieces) > 1 else pieces[0] for pieces in zip(*ups, strict=True))
        steps = np.concatenate(taken) if taken else None
        return Work(whole, gradients, tuple(map(Size.total, zip(*sizes, strict=True))), steps)

    def tell(self, half: SettleHalf, cohort: Indices, outcome: tuple[Any, ...]) -> None:
        request = Request(half, cohort, 0)  # type: ignore[arg-type]
        for places in self.remembered.shares(cohort):
            members = cohort[places]
            client = DeviceCohort(self, members, request, places.start)
            # a vector for all members stays one
            told = [self.place(v[places] if isinstance(v, np.ndarray) and v.ndim > 1 else v) for v in outcome]
            self.remembered.store(members, self._aside(client, half(client, self._memory_of(members), *told)))

    def _memory_of(self, members: Indices) -> MembersMemory:
        return MembersMemory(self.remembered, members)

    def _aside(self, client: DeviceCohort, new: Stacks) -> Stacks:
        return {k: self.remembered.aside(client.stack(v)) for k, v in new.items()}

    def sum(self, w: Array, U: Tensor) -> Tensor | Array:
        """``sum_j w_j U_j``; by numpy in client order on a CPU in double precision."""
        # the same function as the numpy engines, so the same bytes
        if self.device.type == "cpu" and self.family.dtype == torch.float64:
            total = self.place(weighted_sum(w, self.fetch(U)))
        else:
            # in one pass on the device, without storing weighted rows
            total = torch.mv(U.t(), torch.tensor(w).to(U)).to(self.device)
        return total if self.far else self.fetch(total)

    def mix(self, graph: Mixer, U: Tensor) -> Array:
        return graph.mix(self.fetch(U))

    # -- memory --------------------------------------------------------------------------------------------------------
    def memory(self) -> Vectors:
        return {k: np.array(self.fetch(v)) for k, v in self.remembered.stacks.items()}

    def close(self) -> None:
        self.family = self.steps = self.remembered = None
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def judge(self, problem: Problem) -> Problem:
        """Networks are evaluated on the device, all clients at once."""
        if not isinstance(self.family, Networks) or problem.knows_L:
            return problem
        return replace(problem, whole=WholeNetwork(self))
