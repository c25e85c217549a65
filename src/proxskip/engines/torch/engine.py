"""The torch engine: client halves on stacks of all clients, on the processor, a CUDA card, or another device."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from proxskip.engines.torch.client_memory import ClientMemory, MembersMemory
from proxskip.engines.torch.cohort import DeviceCohort, column
from proxskip.engines.torch.families import Networks, family_of, groups
from proxskip.engines.torch.steps import StackedSteps
from proxskip.engines.torch.whole import WholeNetwork
from proxskip.links.gossip import Mixer
from proxskip.links.sums import weighted_sum
from proxskip.problems.federated import Problem
from proxskip.randomness import dropout_word
from proxskip.seam import Engine, Request, SettleHalf, Size, Work, look
from proxskip.types import Array, Indices, InputError, Vectors

UNKNOWNS_ON_A_PROCESSOR = 1 << 22
"""Unknowns of all clients at once on a processor, where more of them gain nothing; but at least 32 clients."""


class TorchEngine(Engine):
    """All clients' local steps at once by PyTorch, in CUDA graphs on a card; the same bytes in every run.

    What clients remember is in the precision of their functions: float64, or float32 for modules in float32 and below.

    Args:
        device: "cuda" if there is one, otherwise "cpu"; any device of PyTorch.
        clients_at_once: clients of one step, if not as many as fit; they share the device's memory.
        keep_on_host: keep what clients remember on the host; by default where it does not fit on the device.
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
        name = device or ("cuda" if torch.cuda.is_available() else "cpu")
        try:
            # an empty tensor fills in the device's number ("cuda" is "cuda:0"), and fails where there is no such device
            self.device = torch.zeros(0, device=name).device
        except (RuntimeError, AssertionError) as error:
            raise InputError(f'PyTorch has no device "{name}" here: {str(error).splitlines()[0]}') from None
        if clients_at_once is not None and clients_at_once < 1:
            raise InputError(f"clients_at_once = {clients_at_once} must be at least 1.")
        self.clients_at_once, self.keep_on_host, self.graphs = clients_at_once, keep_on_host, graphs
        self.far = False

    def open(self, problem: Problem, memory: Vectors, seed: int) -> None:
        """Bring the data to the device, and what clients remember there or to the host."""
        self.problem, self.seed, self.far = problem, seed, problem.psi is None
        self.family: Any = family_of(problem, self.device)
        self.zero = torch.zeros((), dtype=self.family.dtype, device=self.device)
        graphs = self.graphs and self.device.type == "cuda"
        self.steps: Any = StackedSteps(self.family, seed, problem.batch, self.device, graphs)
        most = max(32, UNKNOWNS_ON_A_PROCESSOR // problem.d) if self.device.type == "cpu" else problem.n
        self.at_once = self.clients_at_once or most
        self.remembered: Any = ClientMemory(
            memory, (problem.n, problem.d), self.family.dtype, self.device, self.keep_on_host
        )

    # -- where vectors are ---------------------------------------------------------------------------------------------
    def is_far(self) -> bool:
        """The server's vectors stay on the device; a prox is computed by numpy, so its argument has to come down."""
        return self.far

    def rounding(self) -> float:
        """That of the family's precision."""
        return float(torch.finfo(self.family.dtype).eps)

    def place(self, v: Any) -> torch.Tensor:
        """A vector or stack on the device."""
        return v if isinstance(v, torch.Tensor) else torch.tensor(v).to(self.device, self.family.dtype)

    def fetch(self, v: Any) -> Array:
        """And back."""
        return np.asarray(v.to("cpu", torch.float64) if isinstance(v, torch.Tensor) else v)

    def wait(self) -> None:
        """Until the device has done all it was asked for."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def word(self, round: int, step: Any) -> Any:
        """The word of dropout of a local step (numbered from one); None where there is none."""
        if not self.family.is_random or not np.any(step):
            return None
        numbers = np.unique(step)
        if len(numbers) > 1:
            raise InputError('dropout on the torch engine needs one K for all clients; use engine="cpu".')
        return torch.tensor(dropout_word(self.seed, round, int(numbers[0]))).to(self.device)

    def each_group(self, client: DeviceCohort, all_rows: bool, compute: Callable[[Any], None]) -> None:
        """``compute(places)`` for groups of members, with fewer at once as long as the device's memory is too small.

        What the steps need besides the stacks is not known before they are tried. ``places`` is a slice, or the numbers
        of the members of equal sizes where all rows are read.
        """
        equal = all_rows and self.family.needs_equal_sizes
        while True:
            try:
                for places in groups(client.members, self.family.sizes, self.at_once, equal):
                    look(client.request.halt)
                    compute(places)
                return
            except torch.OutOfMemoryError:
                if self.at_once == 1 and not self.steps.use_graphs:
                    raise
                if self.at_once > 1:
                    self.at_once = -(-min(self.at_once, len(client.members)) // 2)
                else:  # the graphs of many groups keep the memory of all: as many clients as fit without them
                    self.at_once, self.steps.use_graphs = len(client.members), False
                self.steps.forget()

    # -- the two verbs -------------------------------------------------------------------------------------------------
    def run(self, request: Request) -> Work:
        """The whole cohort in one call of the half, or share by share where the device is too small for it."""
        down = [self.place(v) for v in request.down]
        ups, sizes, taken, gradients, kept = [], [], [], 0, []
        for places in self.remembered.shares(request.cohort):
            members = request.cohort[places]
            client = DeviceCohort(self, members, request, places.start)
            # every share sees its own part of what is given per client, cut at the same places
            own = {k: column(v[places], self.zero) for k, v in request.own.items()}
            K = request.K if np.ndim(request.K) == 0 else request.K[places]
            answer: Any = request.half(client, self._memory_of(members), K, *down, **own)
            up, new = answer
            kept.append((members, self._aside(client, new)))
            ups.append([self.remembered.aside(client.stack(v)) for v in up])
            gradients += client.gradients
            sizes.append(client.sizes(up) if client.used_codec else (None,) * len(up))
            if client.taken is not None:
                taken.append(np.broadcast_to(np.ravel(client.taken), members.shape))
        # only after the last share: a run that is interrupted before it has changed nothing that is remembered
        for members, new in kept:
            self.remembered.store(members, new)
        whole = tuple(torch.cat(pieces) if len(pieces) > 1 else pieces[0] for pieces in zip(*ups, strict=True))
        steps = np.concatenate(taken) if taken else None
        return Work(whole, gradients, tuple(map(Size.total, zip(*sizes, strict=True))), steps)

    def tell(self, half: SettleHalf, cohort: Indices, outcome: tuple[Any, ...]) -> None:
        """Likewise; what is told to each member is cut into the same shares."""
        request = Request(half, cohort, 0)  # type: ignore[arg-type]
        for places in self.remembered.shares(cohort):
            members = cohort[places]
            client = DeviceCohort(self, members, request, places.start)
            # what is told to all members alike stays one vector, which every share reads
            told = [self.place(v[places] if isinstance(v, np.ndarray) and v.ndim > 1 else v) for v in outcome]
            self.remembered.store(members, self._aside(client, half(client, self._memory_of(members), *told)))

    def _memory_of(self, members: Indices) -> Any:
        return MembersMemory(self.remembered, members)

    def _aside(self, client: DeviceCohort, new: Any) -> dict[str, torch.Tensor]:
        return {k: self.remembered.aside(client.stack(v)) for k, v in new.items()}

    def sum(self, w: Array, U: Any) -> Any:
        """``sum_j w_j U_j``; by numpy, in client order, where the rows are there in double precision."""
        # by the same function as the engines on numpy, and so with the same rounding
        if self.device.type == "cpu" and self.family.dtype == torch.float64:
            total = self.place(weighted_sum(w, self.fetch(U)))
        else:
            # where the stack is, in one read of it: the weighted rows are never stored
            total = torch.mv(U.t(), torch.tensor(w).to(U)).to(self.device)
        return total if self.far else self.fetch(total)

    def mix(self, graph: Mixer, U: Any) -> Any:
        """One gossip step, by numpy."""
        return graph.mix(self.fetch(U))

    # -- what is remembered --------------------------------------------------------------------------------------------
    def memory(self) -> Vectors:
        """A copy of what the clients remember."""
        return {k: np.array(self.fetch(v)) for k, v in self.remembered.stacks.items()}

    def close(self) -> None:
        """Give the device's memory back."""
        self.family = self.steps = self.remembered = None
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
