"""The GPU engine: clients' memory on the card, and one launch for a communication round.

Client halves run unchanged, once for a whole cohort, on vectors that only write down what is asked of them (``Term``),
and so does the server half unless it needs a prox. Nothing is launched before somebody has to know: the next exchange,
a record, a checkpoint. By then the local steps, the mean, and what server and clients make of it are known, and all of
it is one launch. The host draws K, and reads vectors only when a record is due.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from threading import Event
from typing import Any

import numpy as np

from proxskip.engines.gpu import cuda
from proxskip.engines.gpu.coded import read_there
from proxskip.engines.gpu.device import need_cupy, on_device
from proxskip.engines.gpu.fused import COLUMN, KEPT, STACK, VECTOR, Link, Output, Term, compute, whole
from proxskip.engines.gpu.launch import NOTHING, Card, LocalSteps, start
from proxskip.engines.gpu.limits import (
    SECONDS_BETWEEN_LOOKS,
    alike,
    entries_of,
    many,
    one_step0,
    only_full_gradients,
    only_plain_steps,
    rows_taken,
    steps_between_looks,
)
from proxskip.engines.local import Sender, key_of, pull_to_zero
from proxskip.links.codecs import Codec, Key
from proxskip.links.gossip import Mixer
from proxskip.links.graphs import Graph
from proxskip.links.sums import SUM_BLOCK
from proxskip.problems.federated import Problem
from proxskip.seam import Engine, Mixed, Request, SettleHalf, Work, look
from proxskip.types import Array, Indices, InputError, Vectors


class CardCohort(Sender):
    """A whole cohort as one client: every vector is a ``(c, d)`` stack on the GPU."""

    def __init__(self, engine: GpuEngine, members: Indices, request: Request) -> None:
        self.engine, self.members, self.request = engine, members, request
        self.own_terms = {k: Term(COLUMN, engine.column(v, members)) for k, v in request.own.items()}

    def keys(self, vector: int) -> Sequence[Key]:
        """One for each member."""
        return [key_of(self.request, self.engine.seed, int(i), j, vector) for j, i in enumerate(self.members)]

    def descend(self, x: Any, h: Any, gamma: Any, K: Any, *, pull: Any = None, momentum: Any = 0.0, **more: Any) -> Any:
        """The local steps of ``seam.Client.descend``, for every member.

        With momentum, or a pull to anything but zero, there is a launch for each step.
        """
        if more:
            only_plain_steps(more)
        if isinstance(momentum, (int, float)) and not momentum and (to_zero := pull_to_zero(pull)) is not None:
            return self._plain_steps(x, h, gamma, K, to_zero)
        if many(K):
            raise InputError('the gpu engine has one K for all steps with momentum or a pull; use engine="cpu".')
        y = before = Term.of(x)
        for k in range(int(K)):
            z = y + momentum * (y - before) if k else y
            shift = Term.of(h) if pull is None else h - pull[0] * (z - pull[1])
            before, y = y, self._plain_steps(z, shift, gamma, 1)
        return y

    def _plain_steps(self, x: Any, h: Any, gamma: Any, K: Any, pull: float = 0.0) -> Any:
        """K times  x <- x - gamma (g(x) - h + pull x)."""
        engine = self.engine
        self.gradients += rows_taken(engine.problem, engine.rows, engine.row_count, self.members, K)
        step0, self.step = self.step, self.step + (np.asarray(K) if many(K) else K)
        given = Term.of(x), Term.of(h), Term.of(gamma)
        return engine.descend(self.members, *given, K, self.request.round, step0, self.request.halt, pull)

    def read(self, v: Any, codec: Codec, keys: Sequence[Key]) -> Any:
        """What the server reads: it does not leave the card."""
        return read_there(self.engine.cupy, Term.of(v), codec, keys, self.engine.problem.d)

    def gradient(self, x: Any, where: Any = None) -> Any:
        """The members' full gradients, one row each; x itself where none is wanted."""
        wanted = np.ones(len(self.members), dtype=np.int64) if where is None else self._here(where)
        self.gradients += int(wanted @ self.engine.rows[self.members])
        return self.engine.gradient(self.members, Term.of(x), 1 if where is None else wanted)

    def _here(self, where: Any) -> Indices:
        """The numbers of a column that came with the request, as zeros and ones."""
        name = next(k for k, term in self.own_terms.items() if term is where)
        return np.asarray(self.request.own[name], dtype=bool).astype(np.int64)

    def own(self, values: Any) -> Any:
        """Everybody's entries, of which each client reads its own."""
        return Term(COLUMN, self.engine.column_of(values).reshape(-1, 1)) if many(values) else values


_last_used: list[tuple[weakref.ref[Problem], LocalSteps]] = []
"""The problem that was opened last, and its data on the card, which stay there as long as the problem lives."""


def steps_on_card(problem: Problem, blocks: int | None, threads: int | None) -> LocalSteps:
    """The problem's data on the card; sent only once where runs of one problem follow each other, as in a sweep."""
    if _last_used and _last_used[0][0]() is problem and blocks is threads is None:
        return _last_used[0][1]
    _last_used.clear()
    steps = LocalSteps(problem, problem.n, blocks=blocks, threads=threads)
    if blocks is threads is None:
        _last_used.append((weakref.ref(problem, lambda _: _last_used.clear()), steps))
    return steps


class Steps(Exception):
    """A settle half asks for local steps, which must begin after everything before them has ended."""


@dataclass
class Step:
    """Local steps that wait for their launch."""

    local: LocalSteps
    x: Term
    h: Term
    gamma: Term
    K: Any
    out: Any
    how: dict[str, Any]


@dataclass
class PendingLaunch:
    """All that has been asked for and not been launched; ``memory`` is what the cohort remembers once it has been."""

    cohort: Indices
    memory: dict[str, Term]
    step: Step | None = None
    links: list[Link] = field(default_factory=list)
    vectors: list[Term] = field(default_factory=list)


class GpuEngine(Engine):
    """Clients on one GPU; the same bytes in every run.

    Args:
        blocks: thread blocks for each client; chosen for the card if not given.
        threads: threads of a block, likewise.
    """

    name = "gpu"

    def __init__(self, blocks: int | None = None, threads: int | None = None) -> None:
        self.cupy = need_cupy()
        self.card = Card.here()
        self.blocks, self.threads, self.far = blocks, threads, False

    def is_far(self) -> bool:
        """Whether the server's vectors stay on the card."""
        return self.far

    def open(self, problem: Problem, memory: Vectors, seed: int) -> None:
        """Bring data and memory to the card."""
        self.problem, self.seed = problem, seed
        self.far = problem.psi is None  # a prox is computed by numpy, so its argument has to come down
        self.rows, self.entries = problem.rows_each, entries_of(problem)
        self.row_count = int(self.rows.sum())
        self.kept = {k: self.cupy.asarray(np.ascontiguousarray(v)) for k, v in memory.items()}
        self.local: LocalSteps | None = None
        self.whole, self.oracles = self.local, []  # type: LocalSteps | None, list[Any]
        if LocalSteps.fit(problem):
            self.local = steps_on_card(problem, self.blocks, self.threads)
            self.whole = None if problem.batch else self.local
        else:
            only_full_gradients(problem)
            self.oracles = [on_device(f) for f in problem.clients]
        self.pending: PendingLaunch | None = None
        self.grown: list[Term] = []  # vectors of the server's that have become long
        self.settling = self.several = False
        self.marked: dict[str, Any] | None = None
        self.twins: list[Any] = []
        self.columns: dict[int, tuple[Any, Any]] = {}
        self.chosen = self.weights = (b"", None)

    # -- what client halves ask for ------------------------------------------------------------------------------------
    def descend(
        self, members: Indices, x: Term, h: Term, gamma: Term, K: Any, round: int, step0: Any = 0,
        halt: Event | None = None, pull: float = 0.0,
    ) -> Term:  # fmt: skip
        """All local steps of all members, in the launch to come; of long work all but the last part at once."""
        if self.local is None:
            return Term(STACK, self._descend_any(members, x, h, gamma, K, halt, pull))
        how: dict[str, Any] = {"members": self._members(members), "seed": self.seed, "round": round}
        if pull:
            how["pull"] = pull
        if many(step0) or step0:
            how["step0"] = one_step0(step0)
        how |= {"order": self._longest_first(K)} if many(K) else {}
        count = steps_between_looks(self.entries * len(members) / self.problem.n)
        if not self.settling and (int(np.max(K)) if many(K) else K) > count:
            x, K, how = self._ahead(self.local, members, x, h, gamma, K, how, count, halt)
        if many(K):
            K = self.cupy.asarray(np.asarray(K, dtype=np.int32))
        return self._ask(self.local, members, x, h, gamma, K, how)

    def _ahead(
        self, local: LocalSteps, members: Indices, x: Term, h: Term, gamma: Term, K: Any, how: dict[str, Any],
        count: int, halt: Event | None,
    ) -> tuple[Term, Any, dict[str, Any]]:  # fmt: skip
        """Launch parts of long work, the first of ``count`` steps, and look between them: x there, and what is left.

        A step depends on x and on its number alone, so that the bytes are those of one launch.
        """
        assert self.pending is not None
        if self.pending.step is not None:
            self._launch(self.pending.step)
            self.pending.step = None
        first, most, done = int(how.get("step0", 0)), int(np.max(K)), 0
        while most - done > count:
            look(halt)
            part: Any = count
            if np.ndim(K):
                part = self.cupy.asarray(np.clip(np.asarray(K) - done, 0, count).astype(np.int32))
            out, began = self.cupy.empty((len(members), self.problem.d)), time.perf_counter()
            self._launch(Step(local, x, h, gamma, part, out, how | {"step0": first + done}))
            self.cupy.cuda.get_current_stream().synchronize()
            took = time.perf_counter() - began
            x, done = Term(STACK, out), done + count
            count = max(1, int(count * min(4.0, SECONDS_BETWEEN_LOOKS / max(took, 1e-9))))
        look(halt)
        left = np.maximum(np.asarray(K) - done, 0) if np.ndim(K) else K - done
        return x, left, how | {"step0": first + done}

    def _longest_first(self, K: Any) -> Any:
        """The order in which the members begin."""
        return self.cupy.asarray(np.argsort(-np.asarray(K), kind="stable").astype(np.int32))

    def gradient(self, members: Indices, x: Term, wanted: Any = 1) -> Term:
        """The members' full gradients, likewise; x where ``wanted`` is 0."""
        if self.local is None:
            X = self.cupy.broadcast_to(self.plain(x), (len(members), self.problem.d))
            some = np.broadcast_to(wanted, len(members))
            rows = [self._oracle(int(i), X[j]) if some[j] else X[j] for j, i in enumerate(members)]
            return Term(STACK, self.cupy.stack(rows))
        if self.whole is None:
            self.whole = LocalSteps(self.problem, self.problem.n, full=True, data=self.local.data)
        how: dict[str, Any] = {"members": self._members(members), "want_gradient": True}
        if np.ndim(wanted):
            how["order"], wanted = self._longest_first(wanted), self.cupy.asarray(wanted.astype(np.int32))
        return self._ask(self.whole, members, x, Term.of(0.0), Term.of(1.0), wanted, how)

    def _ask(
        self, local: LocalSteps, members: Indices, x: Term, h: Term, gamma: Term, K: Any, how: dict[str, Any]
    ) -> Term:
        if self.settling:
            raise Steps
        assert self.pending is not None
        if self.pending.step is not None:  # a half with two of them: the first goes ahead
            self._launch(self.pending.step)
        out = self.cupy.empty((len(members), self.problem.d))
        self.pending.step = Step(local, x, h, gamma, K, out, how)
        return Term(STACK, out)

    def _descend_any(
        self, members: Indices, x: Term, h: Term, gamma: Term, K: Any, halt: Event | None = None, pull: float = 0.0
    ) -> Any:
        xp, shape = self.cupy, (len(members), self.problem.d)
        X, H = xp.empty(shape), xp.broadcast_to(xp.asarray(self.plain(h)), shape)
        X[...] = xp.asarray(self.plain(x))
        gammas = xp.broadcast_to(xp.asarray(self.plain(gamma)), shape)
        steps = np.broadcast_to(np.asarray(K), shape[:1])
        for j, i in enumerate(members):
            for _ in range(int(steps[j])):
                look(halt)
                shift = H[j] - pull * X[j] if pull else H[j]  # no launch for nothing
                X[j] = X[j] - gammas[j] * (self._oracle(int(i), X[j]) - shift)
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
    def run(self, request: Request) -> Work:
        """The whole cohort in one call of the half; what comes up stays on the card."""
        cohort = request.cohort
        there = [Term.of(self.there(v)) for v in request.down]
        now = self.pending
        mark = self.several and request.exchange == 0
        if now is None or now.step is not None or now.links or mark or not alike(now.cohort, cohort):
            self.flush(there)
            self.marked = {k: v.copy() for k, v in self.kept.items()} if mark else self.marked
            now = self.pending = PendingLaunch(cohort, self._remembered())
        for v in there:
            if v.operator:
                self.plain(v)
        client: Any = CardCohort(self, cohort, request)
        up, memory = request.half(client, dict(now.memory), request.K, *there, **client.own_terms)
        now.memory |= {k: Term.of(v) for k, v in memory.items()}
        return Work(tuple(map(Term.of, up)), client.gradients, client.sizes(up) if client.used_codec else ())

    def column(self, values: Array, cohort: Indices) -> Any:
        """A column of everybody's entries, of which each member of the cohort reads its own."""
        full = np.zeros(self.problem.n)
        full[cohort] = values
        return self.cupy.asarray(full).reshape(-1, 1)

    def gossip(self, request: Request, graph: Mixer) -> Mixed:
        """As any engine, on the card; whether all is finite is seen at the next record."""
        work = self.run(request)
        rows = tuple(self.mix(graph, U) for U in work.up)
        return Mixed(rows, work.gradients, len(rows), True)

    def tell(self, half: SettleHalf, cohort: Indices, outcome: tuple[Array, ...]) -> None:
        """The whole cohort in one call of the half."""
        there = [Term.of(self.there(v)) for v in outcome]
        if self.pending is None or not alike(self.pending.cohort, cohort):
            self.flush(there)
            self.pending = PendingLaunch(cohort, self._remembered())
        client: Any = CardCohort(self, cohort, Request(half, cohort, 0))  # type: ignore[arg-type]
        try:
            self.settling = True
            memory = half(client, dict(self.pending.memory), *there)
        except Steps:
            self.settling = False
            self.flush(there)
            self.pending = PendingLaunch(cohort, self._remembered())
            memory = half(client, dict(self.pending.memory), *there)
        finally:
            self.settling = False
        self.pending.memory |= {k: Term.of(v) for k, v in memory.items()}
        self.pending.vectors += there

    def _remembered(self) -> dict[str, Term]:
        return {k: Term(KEPT, v) for k, v in self.kept.items()}

    # -- the launch ----------------------------------------------------------------------------------------------------
    def flush(self, needed: Sequence[Term] = ()) -> None:
        """Launch what is pending; vectors of the server's that are ``needed``, or long, are stored with it."""
        now = self.pending
        if now is None:
            return
        outputs, fresh = self._stores(now)
        vectors = {id(v): v for v in (*now.vectors, *needed, *self.grown) if v.operator and v.flat}
        self.grown.clear()
        rooms = [(v, self.cupy.empty(self.problem.d)) for v in vectors.values()]
        outputs += [(v, room, False) for v, room in rooms]
        if now.step is not None:
            outputs = self._launch(now.step, now.links, outputs)
        for several in (True, False) if outputs else ():  # what no launch of local steps took along
            some = [o for o in outputs if (o[1].ndim > 1) is several]
            if some:
                c = len(now.cohort) if several else 1
                compute(some, c, self.problem.d, self._members(now.cohort) if several else None)
        for v, room in rooms:
            v.become(VECTOR, room)
        self.kept |= fresh
        self.pending = None

    def _stores(self, now: PendingLaunch) -> tuple[list[Output], dict[str, Any]]:
        """What has to be written into memory, and what takes a name's place as it is."""
        everyone = len(now.cohort) == self.problem.n
        outputs: list[Output] = []
        fresh: dict[str, Any] = {}
        for name, term in now.memory.items():
            if term.kind == STACK and everyone and not any(term.value is v for v in fresh.values()):
                fresh[name] = term.value
            elif term.value is not self.kept[name]:
                outputs.append((term, self.kept[name], True))
        return outputs, fresh

    def _launch(self, step: Step, links: Sequence[Link] = (), outputs: Sequence[Output] = ()) -> list[Output]:
        """Local steps and, if the card can hold all of their blocks at once, everything after them; what is left."""
        c = len(step.out)
        code, given = whole(step.x, step.h, step.gamma, links, outputs)
        left: list[Output] = []
        if code.ends and not step.local.kernel(code)[1]:
            code, given = whole(step.x, step.h, step.gamma)
            left = list(outputs)
        step.local.launch(code, given, c, step.K, step.out, **step.how)
        if links and not code.ends:
            for link in links:
                self._link(link)
        return left

    def plain(self, v: Any) -> Any:
        """A term as an array, computed if it has to be (once: the term becomes a leaf)."""
        cohort = self.pending.cohort if self.pending is not None else None
        everyone = cohort is None or len(cohort) == self.problem.n
        if not v.operator and (v.kind not in (KEPT, COLUMN) or everyone):
            return v.value
        c = 1 if v.flat else self.problem.n if cohort is None else len(cohort)
        out = self.cupy.empty((c, self.problem.d))
        compute([(v, out, False)], c, self.problem.d, None if cohort is None else self._members(cohort))
        v.become(*((VECTOR, out[0]) if v.flat else (STACK, out)))
        return v.value

    def sum(self, w: Array, U: Any) -> Any:
        """``sum_j w_j U_j`` on the card, with the bytes of ``links.weighted_sum``."""
        return self.sums([w], [U])[0]

    def sums(self, rows: Sequence[Array], up: Sequence[Any]) -> tuple[Any, ...]:
        """As any engine, and flushed once: what a launch stores changes what terms stand for."""
        found = [self._join(self._sum(w, U)) for U in up for w in rows]
        if self.far:
            return tuple(Term(VECTOR, out, grown=self.grown) for out in found)
        self.flush()
        hosts = tuple(self.fetch(out) for out in found)
        self.twins = [*self.twins[-3:], *zip(hosts, found, strict=True)]
        return hosts

    def _sum(self, w: Array, U: Any) -> Link:
        if w.tobytes() != self.weights[0]:
            self.weights = w.tobytes(), self.cupy.asarray(w)
        c, d = len(w), self.problem.d if isinstance(U, Term) else U.shape[1]
        blocks = -(-c // SUM_BLOCK)
        room = self.cupy.empty((blocks, d)) if blocks > 1 else NOTHING
        return Link(Term.of(U), self.cupy.empty(d), w=self.weights[1], parts=room)

    def mix(self, graph: Mixer, U: Any) -> Any:
        """One gossip step on the card."""
        if not isinstance(graph, Graph):
            raise InputError('the gpu engine gossips along a fixed graph, one step per round; use engine="cpu".')
        lists = self.column_of(graph.indptr), self.column_of(graph.indices), self.column_of(graph.weights)
        return self._join(Link(Term.of(U), self.cupy.empty(tuple(U.shape)), lists=lists))

    def _join(self, link: Link) -> Any:
        """With the local steps that wait, or at once."""
        if self.pending is not None and self.pending.step is not None:
            self.pending.links.append(link)
        else:
            self._link(link)
        return link.out

    def _link(self, link: Link) -> None:
        U = self.plain(link.up)
        n, d = U.shape
        if link.lists is not None:
            start(cuda.server("mix"), (-(-d // 64), n), (64,), (*link.lists, U, np.int32(n), np.int32(d), link.out))
        elif n <= SUM_BLOCK:
            self._block_sums(link.w, U, SUM_BLOCK, link.out)
        else:
            self._block_sums(link.w, U, SUM_BLOCK, link.parts)
            self._block_sums(NOTHING, link.parts, len(link.parts), link.out)

    def _block_sums(self, w: Any, U: Any, block: int, out: Any) -> None:
        (n, d), kernel = U.shape, cuda.server("block_sums")
        start(kernel, (-(-d // 64), -(-n // block)), (64,), (w, U, np.int32(n), np.int32(d), np.int32(block), out))

    def place(self, v: Array) -> Any:
        """A vector of the server's on the card."""
        return Term(VECTOR, self.cupy.asarray(v), grown=self.grown)

    def fetch(self, v: Any) -> Array:
        """And back."""
        if isinstance(v, Term):
            self.flush([v])
            v = self.plain(v)
        return np.asarray(self.cupy.asnumpy(v))

    def wait(self) -> None:
        """Until the card has done all it was asked for."""
        self.flush()
        self.cupy.cuda.get_current_stream().synchronize()

    def memory(self) -> Vectors:
        """A copy of what the clients remember."""
        self.flush()
        return {k: self.cupy.asnumpy(v) for k, v in self.kept.items()}

    def mark(self, several: bool) -> bool:
        """Copy the memory on the card when the first exchange begins, if others may follow it in this round."""
        self.several, self.marked = several, None
        return True

    def rewind(self) -> None:
        """The memory as it was at the beginning of the round; an exchange that is broken off has changed nothing."""
        self.grown.clear()
        if self.marked is not None:
            self.kept, self.pending = self.marked, None

    def close(self) -> None:
        """Give the card's memory back, except for the data of the problem."""
        self.local = self.whole = self.pending = None
        self.kept, self.twins, self.columns, self.oracles = {}, [], {}, []
        self.cupy.get_default_memory_pool().free_all_blocks()

    # -- between host and card -----------------------------------------------------------------------------------------
    def there(self, v: Any) -> Any:
        """v on the card; a mean that was just taken there is not sent again."""
        if not isinstance(v, np.ndarray):
            return v
        found = next((there for here, there in self.twins if here is v), None)
        return self.cupy.asarray(v) if found is None else found

    def column_of(self, values: Any) -> Any:
        """A sequence of everybody's numbers on the card, sent once."""
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
