"""The GPU engine: clients' memory on the card, all local steps of a round in one launch, the mean taken there too.

The client halves run unchanged on ``(c, d)`` stacks of CuPy arrays, and so does the server half unless it needs a prox:
the host draws K and launches, and reads vectors only when a record is due.
"""

from __future__ import annotations

import copy
import importlib
from typing import Any

import numpy as np
import scipy.sparse

from proxskip.engines import cuda
from proxskip.engines.fused import COLUMN, KEPT, NUMBER, STACK, VECTOR, Term, compute
from proxskip.engines.launch import NOTHING, Card, LocalSteps
from proxskip.links import SUM_BLOCK, Graph
from proxskip.problems.federated import Problem
from proxskip.problems.glm import LinearModel
from proxskip.seam import Array, ClientHalf, Indices, InputError, SettleHalf, Vectors


class Stack:
    """A whole cohort as one client: every vector is a ``(c, d)`` stack on the GPU."""

    def __init__(self, engine: GpuEngine, members: Indices, round: int) -> None:
        self.engine, self.members, self.round = engine, members, round
        self.gradients = 0

    def descend(self, x: Any, h: Any, gamma: Any, K: Any) -> Any:
        """K times  x <- x - gamma (g(x) - h),  for every member."""
        self.gradients += rows_taken(self.engine.problem, self.engine.rows, self.members, K)
        plain = self.engine.plain
        return Term(STACK, self.engine.descend(self.members, plain(x), plain(h), plain(gamma), K, self.round))

    def gradient(self, x: Any) -> Any:
        """The members' full gradients, one row each."""
        self.gradients += int(self.engine.rows[self.members].sum())
        return Term(STACK, self.engine.gradient(self.members, self.engine.plain(x)))

    def own(self, values: Any) -> Any:
        """The members' entries as a column."""
        return values if np.ndim(values) == 0 else Term(COLUMN, self.engine.column(values, self.members))


class GpuEngine:
    """Clients on one GPU; the same bytes in every run.

    Args:
        blocks: thread blocks for each client; chosen for the card if not given.
        threads: threads of a block, likewise.
    """

    name = "gpu"

    def __init__(self, blocks: int | None = None, threads: int | None = None) -> None:
        self.cupy = need_cupy()
        self.card = Card.here()
        self.blocks, self.threads = blocks, threads

    def open(self, problem: Problem, memory: Vectors, seed: int) -> None:
        """Bring data and memory to the card."""
        self.problem, self.seed = problem, seed
        self.far = problem.psi is None  # a prox is computed by numpy, so its argument has to come down
        self.rows = np.array([getattr(f, "N", 1) for f in problem.clients], dtype=np.int64)
        self.kept = {k: self.cupy.asarray(np.ascontiguousarray(v)) for k, v in memory.items()}
        self.local: LocalSteps | None = None
        self.whole: LocalSteps | None = None
        self.oracles: list[Any] = []
        if LocalSteps.fit(problem):
            self.local = LocalSteps(problem, problem.n, blocks=self.blocks, threads=self.threads)
            self.whole = None if problem.batch else self.local
        else:
            self.oracles = [on_device(f) for f in problem.clients]
        self.twins: list[tuple[Array, Any]] = []
        self.columns: dict[int, tuple[Any, Any]] = {}
        self.chosen: tuple[bytes, Any] = (b"", None)
        self.weights: tuple[Array, Any] = (np.zeros(0), None)

    # -- what client halves ask for ------------------------------------------------------------------------------------
    def descend(self, members: Indices, x: Any, h: Any, gamma: Any, K: Any, round: int) -> Any:
        """All local steps of all members in one launch."""
        if self.local is None:
            return self._descend_any(members, x, h, gamma, K)
        xp, c = self.cupy, len(members)
        many = np.ndim(K) > 0
        return self.local.descend(
            c,
            self._stack(x),
            None if np.ndim(h) == 0 and float(h) == 0.0 else self._stack(h),
            xp.ascontiguousarray(gamma, dtype=np.float64).ravel() if np.ndim(gamma) else float(gamma),
            xp.asarray(np.asarray(K, dtype=np.int32)) if many else int(K),
            members=self._members(members),
            order=xp.asarray(np.argsort(-np.asarray(K), kind="stable").astype(np.int32)) if many else None,
            seed=self.seed,
            round=round,
        )

    def gradient(self, members: Indices, x: Any) -> Any:
        """The members' full gradients."""
        if self.local is None:
            X = self.cupy.broadcast_to(x, (len(members), self.problem.d))
            return self.cupy.stack([self._oracle(int(i), X[j]) for j, i in enumerate(members)])
        if self.whole is None:
            self.whole = LocalSteps(self.problem, self.problem.n, full=True, data=self.local.data)
        return self.whole.descend(
            len(members), self._stack(x), None, 1.0, 1, members=self._members(members), want_gradient=True
        )

    def _descend_any(self, members: Indices, x: Any, h: Any, gamma: Any, K: Any) -> Any:
        xp, shape = self.cupy, (len(members), self.problem.d)
        X, H = xp.empty(shape), xp.broadcast_to(xp.asarray(h), shape)
        X[...] = xp.asarray(x)
        gammas = xp.broadcast_to(xp.asarray(gamma).ravel(), shape[:1])
        steps = np.broadcast_to(np.asarray(K), shape[:1])
        for j, i in enumerate(members):
            for _ in range(int(steps[j])):
                X[j] = X[j] - gammas[j] * (self._oracle(int(i), X[j]) - H[j])
        return X

    def _oracle(self, i: int, x: Any) -> Any:
        try:
            return self.cupy.asarray(self.oracles[i].gradient(x))
        except (TypeError, ValueError) as problem:
            raise InputError(
                f"the gradient of client {i} ({type(self.oracles[i]).__name__}) does not work on CuPy arrays "
                f'({problem}); use engine="cpu", or write it with operators and methods of the array it is given.'
            ) from problem

    # -- the engine's two verbs ----------------------------------------------------------------------------------------
    def run(
        self, half: ClientHalf, cohort: Indices, round: int, K: Any, down: tuple[Array, ...]
    ) -> tuple[tuple[Any, ...], int]:
        """The whole cohort in one call of the half; what comes up stays on the card."""
        client: Any = Stack(self, cohort, round)
        self.cohort = cohort
        up, memory = half(client, self._of(cohort), K, *(Term.of(self.there(v)) for v in down))
        return self._compute(cohort, up, memory), client.gradients

    def tell(self, half: SettleHalf, cohort: Indices, outcome: tuple[Array, ...]) -> None:
        """The whole cohort in one call of the half."""
        client: Any = Stack(self, cohort, 0)
        self.cohort = cohort
        self._compute(cohort, (), half(client, self._of(cohort), *(Term.of(self.there(v)) for v in outcome)))

    def _of(self, cohort: Indices) -> Any:
        return {k: Term(KEPT, v) for k, v in self.kept.items()}

    def _compute(self, cohort: Indices, up: Any, memory: Any) -> tuple[Any, ...]:
        """All that the half wrote down, in one launch."""
        c, d, everyone = len(cohort), self.problem.d, len(cohort) == self.problem.n
        outputs: list[tuple[Term, Any, bool]] = []
        sent = []
        for term in map(Term.of, up):
            if term.kind == STACK or (term.kind == KEPT and everyone):
                sent.append(term.value)
            else:
                sent.append(self.cupy.empty((c, d)))
                outputs.append((term, sent[-1], False))
        fresh: dict[str, Any] = {}
        for name, term in ((k, Term.of(v)) for k, v in memory.items()):
            if term.kind == STACK and everyone and not any(term.value is v for v in fresh.values()):
                fresh[name] = term.value
            else:
                outputs.append((term, self.kept[name], True))
        if outputs:
            compute(outputs, c, d, self._members(cohort))
        self.kept |= fresh
        return tuple(sent)

    def plain(self, v: Any) -> Any:
        """A term as an array, computed if it has to be (once: the term becomes a leaf)."""
        if not isinstance(v, Term):
            return v
        cohort = self.cohort
        if v.kind in (NUMBER, VECTOR, COLUMN, STACK) or (v.kind == KEPT and len(cohort) == self.problem.n):
            return v.value
        out = self.cupy.empty((len(cohort), self.problem.d))
        compute([(v, out, False)], len(cohort), self.problem.d, self._members(cohort))
        v.kind, v.value, v.operator = STACK, out, ""
        return out

    def sum(self, w: Array, U: Any) -> Array:
        """``sum_j w_j U_j`` on the card, with the bytes of ``links.weighted_sum``."""
        if not np.array_equal(w, self.weights[0]):
            self.weights = np.array(w), self.cupy.asarray(w)
        out = self._block_sums(self.weights[1], U, SUM_BLOCK)
        if len(out) > 1:
            out = self._block_sums(NOTHING, out, len(out))
        if self.far:
            return out.reshape(-1)  # type: ignore[no-any-return]
        host: Array = out.get()[0]
        self.twins = [*self.twins[-3:], (host, out.reshape(-1))]
        return host

    def _block_sums(self, w: Any, U: Any, block: int) -> Any:
        n, d = U.shape
        blocks = -(-n // block)
        out = self.cupy.empty((blocks, d))
        arguments = (w, U, np.int32(n), np.int32(d), np.int32(block), out)
        cuda.server("block_sums")((-(-d // 64), blocks), (64,), arguments)
        return out

    def place(self, v: Array) -> Any:
        """A vector of the server's on the card."""
        return self.cupy.asarray(v)

    def fetch(self, v: Any) -> Array:
        """And back."""
        return np.asarray(self.cupy.asnumpy(v))

    def wait(self) -> None:
        """Until the card has done all it was told."""
        self.cupy.cuda.get_current_stream().synchronize()

    def mix(self, graph: Graph, U: Any) -> Any:
        """One gossip step on the card."""
        n, d = U.shape
        out = self.cupy.empty((n, d))
        lists = [self.column_of(graph.indptr), self.column_of(graph.indices), self.column_of(graph.weights)]
        arguments = (*lists, U, np.int32(n), np.int32(d), out)
        cuda.server("mix")((-(-d // 64), n), (64,), arguments)
        return out

    def memory(self) -> Vectors:
        """A copy of what the clients remember."""
        return {k: self.cupy.asnumpy(v) for k, v in self.kept.items()}

    def close(self) -> None:
        """Give the card's memory back."""
        self.local = self.whole = None
        self.kept, self.twins, self.columns, self.oracles = {}, [], {}, []
        self.cupy.get_default_memory_pool().free_all_blocks()

    # -- between host and card -----------------------------------------------------------------------------------------
    def there(self, v: Any) -> Any:
        """v on the card; a mean that was just taken there is not sent again."""
        if not isinstance(v, np.ndarray):
            return v
        return (
            next((there for here, there in self.twins if here is v), None) if self._known(v) else self.cupy.asarray(v)
        )

    def _known(self, v: Array) -> bool:
        return any(here is v for here, _ in self.twins)

    def column(self, values: Any, members: Indices) -> Any:
        """The members' numbers as a column on the card."""
        column = self.column_of(values).reshape(-1, 1)
        return column if len(members) == self.problem.n else column[self._members(members)]

    def column_of(self, values: Any) -> Any:
        """A sequence on the card, sent once."""
        if id(values) not in self.columns:
            if len(self.columns) > 64:
                self.columns.clear()
            self.columns[id(values)] = values, self.cupy.asarray(np.asarray(values))
        return self.columns[id(values)][1]

    def _members(self, members: Indices) -> Any:
        if len(members) == self.problem.n:
            return None
        key = members.tobytes()
        if key != self.chosen[0]:
            self.chosen = key, self.cupy.asarray(members.astype(np.int32))
        return self.chosen[1]

    def _stack(self, v: Any) -> Any:
        v = self.cupy.asarray(v, dtype=np.float64)
        return self.cupy.ascontiguousarray(self.cupy.broadcast_to(v, (self.problem.d,)) if v.ndim == 0 else v)


def rows_taken(problem: Problem, rows: Indices, members: Indices, K: Any) -> int:
    """Rows that K steps (a number, or one for each member) differentiate."""
    if np.ndim(K):
        return int(np.sum(np.asarray(K) * (problem.batch or rows[members])))
    everyone = len(members) == len(rows)
    return int(K) * (
        problem.batch * len(members) if problem.batch else int((rows if everyone else rows[members]).sum())
    )


def need_cupy() -> Any:
    """CuPy with a GPU behind it, or a sentence that says what is missing."""
    try:
        cupy = importlib.import_module("cupy")
    except ImportError:
        raise InputError(
            'engine "gpu" needs CuPy, which is not installed; run  pip install "proxskip[gpu]"  '
            '(for CUDA 13: pip install cupy-cuda13x), or use engine="cpu".'
        ) from None
    try:
        found = cupy.cuda.runtime.getDeviceCount()
    except cupy.cuda.runtime.CUDARuntimeError as error:
        raise InputError(f'engine "gpu" finds no usable NVIDIA GPU ({error}); use engine="cpu".') from None
    if not found:
        raise InputError('engine "gpu" finds no NVIDIA GPU on this machine; use engine="cpu".')
    return cupy


def on_device(oracle: Any) -> Any:
    """The oracle with its arrays on the card."""
    cupy = importlib.import_module("cupy")
    if isinstance(oracle, LinearModel):
        raise InputError("clients of different losses or dtypes do not run on the GPU together; make them alike.")
    moved = copy.copy(oracle)
    for name, value in list(getattr(oracle, "__dict__", {}).items()):
        if isinstance(value, np.ndarray):
            moved.__dict__[name] = cupy.asarray(value)
        elif scipy.sparse.issparse(value):
            sparse = importlib.import_module("cupyx.scipy.sparse")
            moved.__dict__[name] = sparse.csr_matrix(value)
    return moved
