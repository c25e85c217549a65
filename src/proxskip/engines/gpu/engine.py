"""The GPU engine: the clients' memory, data and vectors on one GPU.

Client halves run once for a whole cohort on CuPy arrays (``device_cohort``), and so does the server half unless it
needs a prox. A round is one launch for the local steps (``launch``) and a few small ones for the halves. The host draws
K, launches, and reads vectors only for a record or a checkpoint.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from proxskip.core.engine import Engine, Mixed, Request, Work
from proxskip.core.exchange import SettleHalf, checked_answer
from proxskip.core.gossip import Mixer
from proxskip.engines.gpu.cuda import CardArray, mixed, weighted_sum
from proxskip.engines.gpu.device import need_cupy
from proxskip.engines.gpu.device_cohort import CardCohort
from proxskip.engines.gpu.launch import LocalSteps, steps_on_card
from proxskip.graphs import Graph
from proxskip.problems.federated import Problem
from proxskip.types import Array, Indices, InputError, Vectors

MOST_SENT = 64
"""The most sequences kept by ``sent_once``."""


class GpuEngine(Engine):
    """Clients on one GPU; the same bytes in every run."""

    name = "gpu"

    def __init__(self) -> None:
        self.cupy = need_cupy()
        self.far = False

    def is_far(self) -> bool:
        return self.far

    def open(self, problem: Problem, memory: Vectors, seed: int) -> None:
        self.problem = problem
        self.seed = seed
        self.rows = problem.rows_each
        self.far = problem.psi is None  # numpy computes the prox, so x has to come down
        self.kept = {k: self.cupy.array(v) for k, v in memory.items()}
        if not LocalSteps.fit(problem):
            raise InputError(
                "the gpu engine only runs linear models (Logistic, LeastSquares, Softmax) of one loss and dtype; use "
                'engine="cpu", or "torch" for torch modules.'
            )
        self.steps: LocalSteps | None = steps_on_card(problem)
        self.sent: dict[int, tuple[npt.ArrayLike, CardArray]] = {}
        self.members: tuple[Indices | None, CardArray] = None, None

    # -- run and tell --------------------------------------------------------------------------------------------------
    def run(self, request: Request) -> Work:
        cohort = request.cohort
        client = CardCohort(self, cohort, request)
        down = [self.place(v) for v in request.down]
        answer = request.half(client, self._memory_of(cohort), request.K, *down, **client.own_columns)
        up, memory = checked_answer(request.half, answer)
        self._keep(cohort, memory)
        sizes = client.sizes(up) if client.used_codec else ()
        steps = np.asarray(client.step) if client.had_criterion else None
        return Work(tuple(up), client.gradients, sizes, steps)

    def tell(self, half: SettleHalf, cohort: Indices, outcome: tuple[Array, ...]) -> None:
        client = CardCohort(self, cohort, Request(half, cohort, 0))  # type: ignore[arg-type]
        self._keep(cohort, half(client, self._memory_of(cohort), *(self.place(v) for v in outcome)))

    def _memory_of(self, cohort: Indices) -> dict[str, CardArray]:
        return {k: self.rows_of(v, cohort) for k, v in self.kept.items()}

    def _keep(self, cohort: Indices, memory: Vectors) -> None:
        shape = len(cohort), self.problem.d
        for name, v in memory.items():
            rows = v if v.shape == shape else self.cupy.broadcast_to(v, shape)
            if shape[0] < self.problem.n:
                self.kept[name][self.numbers(cohort)] = rows
            elif rows is not v or any(v is other for k, other in self.kept.items() if k != name):
                self.kept[name] = self.cupy.array(rows)  # no two names share an array: cohorts write in place
            else:
                self.kept[name] = rows

    def gossip(self, request: Request, graph: Mixer) -> Mixed:
        """On the GPU; whether all rows are finite shows at the next record."""
        work = self.run(request)
        rows = tuple(self.mix(graph, U) for U in work.up)
        return Mixed(rows, work.gradients, len(rows), True)

    def mix(self, graph: Mixer, U: CardArray) -> CardArray:
        if not isinstance(graph, Graph):
            raise InputError('the gpu engine only gossips along a fixed graph; use engine="cpu".')
        indptr, indices, weights = (self.sent_once(v) for v in (graph.indptr, graph.indices, graph.weights))
        return mixed(indptr, indices, weights, self.dense(U))

    def sum(self, w: Array, U: CardArray) -> CardArray:
        if U.ndim == 1:  # every member sent the same
            U = self.cupy.broadcast_to(U, (len(w), len(U)))
        total = weighted_sum(self.sent_once(w), self.dense(U))
        return total if self.far else self.fetch(total)

    def memory(self) -> Vectors:
        return {k: self.cupy.asnumpy(v) for k, v in self.kept.items()}

    def close(self) -> None:
        """Release the GPU's memory, except for the problem's data."""
        self.steps = None
        self.kept = {}
        self.sent = {}
        self.members = (None, None)
        self.cupy.get_default_memory_pool().free_all_blocks()

    # -- between host and GPU ------------------------------------------------------------------------------------------
    def place(self, v: Array | CardArray) -> CardArray:
        return self.cupy.asarray(v) if isinstance(v, np.ndarray) else v

    def fetch(self, v: CardArray) -> Array:
        return np.asarray(self.cupy.asnumpy(v))

    def wait(self) -> None:
        self.cupy.cuda.get_current_stream().synchronize()

    def dense(self, v: CardArray) -> CardArray:
        """Contiguous rows, as the kernels read them."""
        return v if v.flags.c_contiguous else self.cupy.ascontiguousarray(v)

    def sent_once(self, values: npt.ArrayLike) -> CardArray:
        """A sequence of all clients' numbers on the GPU, sent once per object."""
        if id(values) not in self.sent:
            if len(self.sent) > MOST_SENT:  # weights of cohorts are new in every round
                self.sent.clear()
            self.sent[id(values)] = values, self.cupy.asarray(np.asarray(values))
        return self.sent[id(values)][1]

    def numbers(self, members: Indices) -> CardArray | None:
        """The members' numbers on the GPU; None for everyone."""
        if len(members) == self.problem.n:
            return None
        if self.members[0] is not members:
            self.members = members, self.cupy.asarray(members.astype(np.int32))
        return self.members[1]

    def rows_of(self, v: CardArray, members: Indices) -> CardArray:
        """The members' rows; the array itself if they are everyone."""
        numbers = self.numbers(members)
        return v if numbers is None else v.take(numbers, axis=0)
