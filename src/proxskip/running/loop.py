"""The loop of a run: a round, what is due after it, and the verdict that ends it.

``Loop`` owns what changes from round to round: the number of the round, the server's vectors and x. What clients
remember belongs to the engine, counts belong to the exchange, and measurements to the records.
"""

from __future__ import annotations

import threading
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from threading import Event
from typing import Self
from weakref import WeakValueDictionary

import numpy as np

from proxskip.core.engine import BrokenOff, Engine, EngineLost
from proxskip.core.method import Claims
from proxskip.problems import gradient_check
from proxskip.results import description
from proxskip.results.checkpoint import Checkpoint, CheckpointError
from proxskip.results.folder import Folder, State
from proxskip.results.journal import NUMBERS, RowsState
from proxskip.results.result import RunResult, Status, Summary
from proxskip.running import sparse_memory
from proxskip.running.interrupts import signals_caught
from proxskip.running.ledger import Ledger
from proxskip.running.listen import Record, listening, tell_record
from proxskip.running.metered_exchange import MeteredExchange
from proxskip.running.promise import Promise, draws_cohorts
from proxskip.running.records import Records, Snapshot, measured, residual
from proxskip.running.run_spec import RunSpec
from proxskip.running.simulated_time import Void
from proxskip.running.stop import Verdict
from proxskip.running.verdicts import verdict_on
from proxskip.running.watch import RunWatch, advice, at_start, not_finite
from proxskip.support.sums import weighted_sum
from proxskip.types import AnyArray, Array, EngineError, EngineInUse, GradientWarning, InputError, Stack, Vectors

MOST_LOSSES = 5
"""How often an engine may lose machines since one snapshot before the run gives up."""
_IN_USE: WeakValueDictionary[int, Engine] = WeakValueDictionary()
"""Engines in use, by id."""
_CLAIM = threading.Lock()


class Loop:
    """One run, as a context manager: it claims the engine, and releases it with the folder.

    Call ``start`` or ``restore``, and then ``go``.
    """

    server: dict[str, Stack]
    """The server's vectors, where the engine wants them."""
    x: Array
    """The last communicated x that was looked at."""
    exchange: MeteredExchange
    records: Records
    watch: RunWatch

    def __init__(self, spec: RunSpec, folder: Folder | None = None) -> None:
        assert spec.engine is not None
        self.spec = spec
        self.engine = spec.engine
        self.method = spec.method
        self.problem = spec.problem
        self.folder = folder
        """Where checkpoints and the result are written to."""
        self.config = spec.plain()
        self.clock = spec.clock()
        self.round = 0
        self.is_large = False
        """Whether most clients' memory is never written to, and too large to be treated as a whole."""
        self.seen: Snapshot | None = None
        """At the last record or checkpoint; where the engine cannot undo a round, the run goes back there."""
        self.saved = 0
        """The round of the last checkpoint."""
        self.interrupted = Event()
        self.broken_off: int | None = None
        """The round that was broken off, if the engine could not undo it."""
        self.stopped: str | None = None
        """Why a callback ended the run; may be empty."""
        self.contradiction: str | None = None
        """Why the gradients of a client prove nothing."""
        self.recoveries: list[dict[str, object]] = []
        """What the engine lost, and from where the run went on."""
        self.events: list[str] = []
        """What happened on the way, in sentences."""

    def __enter__(self) -> Self:
        with _CLAIM:
            if id(self.engine) in _IN_USE:  # two runs would overwrite each other's memory
                raise EngineInUse("this engine is in use by another run; give each concurrent run its own engine.")
            _IN_USE[id(self.engine)] = self.engine
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.engine.close()
        finally:
            _IN_USE.pop(id(self.engine), None)
            if self.folder is not None:
                self.folder.close()

    @property
    def ledger(self) -> Ledger:
        return self.exchange.ledger

    @property
    def is_measured(self) -> bool:
        """Whether the last record is of this round."""
        return self.records.round == self.round

    @property
    def notes(self) -> tuple[str, ...]:
        """The warnings of the result."""
        repaired = [] if self.records.repaired is None else [self.records.repaired]
        return (*self.spec.unsafe, *self.spec.uncovered, *self.events, *repaired)

    # -- the loop ------------------------------------------------------------------------------------------------------
    def go(self, callbacks: Sequence[object]) -> RunResult:
        """Run rounds until a rule of ``verdicts`` ends the run."""
        with listening(callbacks, self.config), signals_caught(self.interrupted), np.errstate(all="ignore"):
            while True:
                try:
                    self._record_and_save(callbacks)
                    verdict = self._verdict(callbacks) or self._run_round()
                    if verdict is not None:
                        return self._written(self._result(verdict))
                except EngineLost as lost:
                    self._recover(lost)

    def _record_and_save(self, callbacks: Sequence[object]) -> None:
        """Do what is due before the next round."""
        if self.records.round < self.round and self.spec.is_recorded(self.round):
            self._record(callbacks)
        if self.folder is not None and self.saved < self.round and self.folder.due(self.round):
            self.folder.save(self.state())
            self.saved = self.round

    def _verdict(self, callbacks: Sequence[object]) -> Verdict | None:
        """What ends the run here. A run ends with a record, and that may show more."""
        verdict = verdict_on(self)
        if verdict is not None and not self.is_measured:
            self._record(callbacks)
            verdict = verdict_on(self) or verdict
        return verdict

    def _run_round(self) -> Verdict | None:
        """Run a round; returns a verdict if it lost x."""
        if self.engine.rewinds:
            self.seen = None  # not needed to go back, and perhaps large
        self.exchange.begin(self.round)
        began = time.perf_counter()
        try:
            server = self.method.round(self.server, self.exchange)
        except BrokenOff:
            self._break_off()
            return None
        except Void:  # too few clients answered over the network: the next attempt may ask others
            self.exchange.undo(void=True)
            return None
        self.ledger.seconds += time.perf_counter() - began
        if not isinstance(server, dict):
            raise InputError(f'round of {self.method.name} must return the server\'s vectors by name, as {{"x": x}}.')
        self.server = server
        self.round += 1
        if self.clock is not None:
            self.clock.committed()
        return self._take_in_x()

    def _take_in_x(self) -> Verdict | None:
        """Look at the new x, and keep it if it is finite.

        An x on a device, or one that is an average over the clients, is expensive: it is only looked at if a record is
        due, and meanwhile ``self.x`` stays that of the last record.
        """
        is_at_hand = "x" in self.server and not self.exchange.far
        x = self.x
        if is_at_hand or self.spec.is_recorded(self.round):
            self.exchange.wait()
            x = self._answer()
        if not self.exchange.finite or not np.isfinite(x).all():
            return not_finite(self.round)
        self.x = x
        return None

    def _record(self, callbacks: Sequence[object]) -> None:
        """Measure the communicated x, off the ledger and off the clock."""
        seen = self._see()
        self.x = self._answer()
        row = self.records.add(seen, self.x, self._costs())
        why = tell_record(callbacks, self.round, Record(row, self.x))
        if self.stopped is None:
            self.stopped = why

    # -- start and restore ---------------------------------------------------------------------------------------------
    def start(self, x0: Array, h0: Array | None, dual: Vectors) -> None:
        """Set up the state before the first round.

        Args:
            h0: None means zeros.
            dual: vectors of the server that it does not begin with by itself.
        """
        self.is_large = sparse_memory.is_large(self.spec, h0)
        self.x0 = x0
        self.h0 = h0
        self.x = x0
        memory = sparse_memory.start_rows(self.spec, x0, h0)
        self._open(memory)
        server = self.method.start(self.problem, x0) | dual
        self.server = {name: self.exchange.place(v) for name, v in server.items()}
        self._begin(server, memory)

    def restore(self, saved: Checkpoint, rows: RowsState | None) -> None:
        """Set up the state of a checkpoint.

        Args:
            rows: the clients' memory, if it lies in parts.
        """
        arrays, meta = saved.arrays, saved.meta
        self.is_large = rows is not None
        self.x0, self.h0 = arrays["x0"], arrays.get("h0")
        self.round = self.saved = int(meta["round"])
        server, remembered, counts = (_part(arrays, name) for name in ("server.", "memory.", "line."))
        if rows is not None:
            remembered, counts = dict(rows.memory), counts | dict(rows.numbers)
        took_part = np.flatnonzero(counts["participated"])
        memory = sparse_memory.restored_rows(self.spec, self.x0, self.h0, remembered, took_part)
        self._open(memory)
        self.server = self.exchange.restore(server, counts, meta["line"])
        if self.clock is not None:
            self.clock.restore(meta["clock"])
        if saved.note:
            self.events.append(saved.note)
        self._begin(server, memory)
        self.x = self._answer()
        self.records.restore(arrays, meta)
        self.records.prove(self.x, server)

    def _open(self, memory: Vectors) -> None:
        """Open the engine and the exchange."""
        self._open_engine(memory)
        if self.is_large:
            self.events += sparse_memory.left_out(self.method, self.problem)
        spec = self.spec
        self.exchange = MeteredExchange(self.engine, self.problem, spec.seed, spec.asked, self.clock, self.interrupted)

    def _begin(self, server: Vectors, memory: Vectors) -> None:
        """What is left to do once the engine is open, even if it loses machines meanwhile."""
        if not self.engine.rewinds:
            self._keep(server, memory)
        self._surviving(self._prepare)
        self.contradiction = gradient_check.of_clients(self.problem.clients, self.x0)
        if self.contradiction is not None:
            warnings.warn(self.contradiction, GradientWarning, stacklevel=4)
            self.events.append(self.contradiction)

    def _prepare(self) -> None:
        """What the run is judged by; the engine computes it where the clients are."""
        spec, problem = self.spec, self.engine.judge(self.problem)
        # no theorem covers a step of which nobody knows whether it is too long
        claims = self.method.claims(problem) if problem.knows_L else Claims()
        if self.is_large:
            claims = replace(claims, lyapunov=Claims().lyapunov)
        self.records = Records(spec, problem, Promise.of(spec, claims), self.engine.rounding())
        self.watch = RunWatch.knowing_nothing()
        if problem.knows_L:
            start = at_start(problem, self.x0, self.h0, in_blocks=self.is_large)
            first = residual(problem, self.x0, self.method.start(problem, self.x0))
            # a run stands still while clients are away for hours
            is_steady = spec.network is None or spec.network.available == 1.0
            must_fall = spec.stop.has_tolerance or (claims.zeta is not None and draws_cohorts(spec))
            self.watch = RunWatch.of(self.method, problem, start, first, is_steady and must_fall)

    def keep_in(self, folder: Folder) -> None:
        """Write checkpoints and results to this folder."""
        self.folder = folder
        self._surviving(lambda: folder.begin(self.state()))

    # -- going back ----------------------------------------------------------------------------------------------------
    def _break_off(self) -> None:
        """Go back to the start of the round, or to the last record or checkpoint."""
        if self.engine.rewinds:
            self.exchange.undo()
            return
        self.broken_off = self.round
        self._go_back()

    def _go_back(self) -> None:
        """Go back to the last record or checkpoint; the clients' memory is the engine's."""
        seen = self.seen
        assert seen is not None
        self.round = seen.round
        self.server = self.exchange.restore(seen.server, **seen.counts)
        if self.clock is not None and seen.clock is not None:
            self.clock.restore(seen.clock)
        self.x = self._answer()

    def _surviving(self, act: Callable[[], None]) -> None:
        """Do it; if the engine loses machines meanwhile, open it anew, go back, and do it again."""
        while True:
            try:
                return act()
            except EngineLost as lost:
                self._recover(lost)

    def _recover(self, lost: EngineLost) -> None:
        """Give the engine the clients' memory of the last record or checkpoint, and go on from there."""
        seen, began = self.seen, time.monotonic()
        assert seen is not None
        if sum(r["from_round"] == seen.round for r in self.recoveries) == MOST_LOSSES:
            raise _given_up(lost, f"since round {seen.round}") from None
        recovery = {"round": self.round, "from_round": seen.round, "cause": str(lost)}
        spent = self.ledger.seconds
        self._open_engine(seen.memory)
        self._go_back()
        self.ledger.seconds = spent
        self.recoveries.append(recovery | {"seconds": time.monotonic() - began})
        self.events.append(f"{lost} in round {recovery['round']}; the run went on from round {seen.round}.")

    def _open_engine(self, memory: Vectors) -> None:
        """Open the engine; again if machines are lost meanwhile, but not for ever."""
        for _ in range(MOST_LOSSES + 1):
            try:
                return self.engine.open(self.problem, memory, self.spec.seed)
            except EngineLost as error:
                lost = error
        raise _given_up(lost, "while it began")

    # -- snapshots -----------------------------------------------------------------------------------------------------
    def _see(self) -> Snapshot:
        """The snapshot after this round, taken once."""
        if self.seen is None or self.seen.round != self.round:
            self.exchange.wait()
            server = {name: self.exchange.fetch(v) for name, v in self.server.items()}
            return self._keep(server, self.engine.memory())
        return self.seen

    def _keep(self, server: Vectors, memory: Vectors) -> Snapshot:
        """Keep this server and memory as the snapshot after this round."""
        clock = None if self.clock is None else self.clock.state()
        counts = self.exchange.meter.state(self.exchange.fetch)
        self.seen = Snapshot(self.round, server, memory, counts, clock)
        return self.seen

    def _answer(self) -> Array:
        """The communicated x."""
        if "x" in self.server:
            return self.exchange.fetch(self.server["x"])
        return weighted_sum(self.problem.weights, self._see().memory["x"])

    def _costs(self) -> dict[str, float]:
        """The counts so far, as columns of the trace."""
        row = self.ledger.row()
        row |= {"round": self.round, "passes": row["grad_evals"] / (self.problem.N or self.problem.n)}
        if self.clock is not None:
            row |= self.clock.row()
        return row

    # -- checkpoints and the result ------------------------------------------------------------------------------------
    def state(self, result: RunResult | None = None) -> State:
        """Everything that a resumed run needs, with the result, or what it is so far."""
        seen = self._see()
        counts = dict(seen.counts["arrays"])
        arrays, meta = self.records.state()
        arrays |= _named("server.", seen.server) | {"x0": self.x0}
        rows = None
        if self.is_large:
            rows = RowsState(seen.memory, {name: counts.pop(name) for name in NUMBERS})
        else:
            arrays |= _named("memory.", seen.memory)
            arrays["h0"] = np.zeros((self.problem.n, self.problem.d)) if self.h0 is None else self.h0
        arrays |= _named("line.", counts)
        meta |= {"round": self.round, "line": seen.counts["meta"]}
        if self.clock is not None:
            meta["clock"] = self.clock.state()
        if result is None:
            return State(self._answer(), self._summary_so_far(), arrays, meta, rows)
        return State(result.x, result.summary, arrays, meta, rows)

    def _summary_so_far(self) -> Summary:
        """The summary of a run that has not ended, without measurements where this round has no record."""
        message = f"not ended: this is the checkpoint after {self.round} rounds; continue it with proxskip.resume."
        return self._summary(self._row(), Verdict(Status.INTERRUPTED, message))

    def _row(self) -> dict[str, float]:
        """What is known of this round: the record if there is one, and the costs so far."""
        row = dict.fromkeys(self.records.trace.columns, np.nan)
        if self.is_measured:
            row = self.records.row
        return row | self._costs()

    def _summary(self, row: dict[str, float], verdict: Verdict, cluster: dict[str, object] | None = None) -> Summary:
        zeta = self.records.promise.zeta
        return description.summary(self.config, self.problem, row, *verdict, zeta, self.notes, cluster)

    def _result(self, verdict: Verdict) -> RunResult:
        trace, best = self.records.trace, self.records.best
        if verdict.status is Status.DIVERGED and best is not None:
            self.x = best.x
            verdict = Verdict(Status.DIVERGED, advice(self.method, self.round, best.f, best.round))
        seen, row = self._see(), self._row()
        better = None
        if self.is_measured and verdict.status is not Status.CONVERGED:
            better = self.method.better_than(row["f"], seen.server)
        if better is not None:
            self.x = better
        if better is not None or not self.is_measured:  # the record is not of the returned x, or there is none
            row |= measured(self.records.problem, self.x)
        cluster, happened = self.engine.report()
        self.events += happened
        if cluster is not None:
            cluster["recoveries"] = self.recoveries
        summary = self._summary(row, verdict, cluster)
        first = {name: float(trace[name][0]) for name in ("grad_norm", "gap")}
        floor = description.cohort_floor(self.config, first)
        if floor is not None:
            summary["forecast"] = floor
        h = self.method.controls(seen.server, seen.memory)
        took_part = self.exchange.meter.participated.copy()
        return RunResult(self.x, *verdict, trace, h, seen.server, seen.memory, took_part, summary, self.notes)

    def _written(self, result: RunResult) -> RunResult:
        """Write the result to the folder; if that fails, warn and return it anyway."""
        if self.folder is None:
            return result
        try:
            self.folder.finish(result.trace, self.state(result))
        except CheckpointError as error:
            note = f"{error} The result is only in memory."
            warnings.warn(note, UserWarning, stacklevel=4)
            self.events.append(note)
            result.summary["warnings"] = list(self.notes)
            return replace(result, warnings=self.notes)
        return result


def _named(prefix: str, arrays: Mapping[str, AnyArray]) -> dict[str, AnyArray]:
    return {prefix + name: v for name, v in arrays.items()}


def _part(arrays: Mapping[str, AnyArray], prefix: str) -> dict[str, AnyArray]:
    """The inverse of ``_named``."""
    return {name.removeprefix(prefix): v for name, v in arrays.items() if name.startswith(prefix)}


def _given_up(lost: EngineLost, when: str) -> EngineError:
    return EngineError(f"{lost}, {MOST_LOSSES + 1} times {when}; its machine may be short of memory.")
