"""The main loop of a run: draw, exchange, settle, measure, stop, checkpoint."""

from __future__ import annotations

import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from threading import Event
from types import FrameType
from typing import Any, Protocol
from weakref import WeakValueDictionary

import numpy as np

from proxskip.interfaces import BrokenOff, Claims, Engine, EngineLost
from proxskip.links.cohorts import Given
from proxskip.links.sums import weighted_sum
from proxskip.loop import measure, sparse_memory, watch
from proxskip.loop.audit import Audit
from proxskip.loop.ledger import Ledger
from proxskip.loop.listen import Record, listening, tell_end, tell_record
from proxskip.loop.metered_exchange import MeteredExchange
from proxskip.loop.run_spec import RunSpec
from proxskip.loop.simulated_time import SIM_COLUMNS, Void
from proxskip.problems import gradient_check
from proxskip.problems.federated import Problem
from proxskip.results import description, folder
from proxskip.results.checkpoint import CheckpointError
from proxskip.results.journal import NUMBERS, RowsState
from proxskip.results.result import RunResult, Status, Summary
from proxskip.results.trace import Trace
from proxskip.types import Array, EngineError, EngineInUse, GradientWarning, InputError, Vectors

MAX_UNPROVED = 20
"""Records at which rounding may leave a tolerance undecided before the run ends."""
MOST_LOSSES = 5
"""How often an engine may lose machines since one snapshot before the run gives up."""
COLUMNS = (
    "round",
    *(f for f in Ledger.__dataclass_fields__),
    *("passes", "f", "gap", "grad_norm", "sum_h", "lyapunov", "lyapunov_bound"),
)


def columns_of(problem: Problem, timed: bool = False) -> tuple[str, ...]:
    """The columns of a run's trace, with simulated times if ``timed``; the clients' metrics come last."""
    columns = COLUMNS + (SIM_COLUMNS if timed else ())
    taken = [name for name in problem.metrics if name in columns]
    if taken:
        raise InputError(f"the metric {taken[0]} has the name of a trace column; rename it.")
    return columns + problem.metrics


_IN_USE: WeakValueDictionary[int, Engine] = WeakValueDictionary()
"""Engines in use, by id."""
_CLAIM = threading.Lock()


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Server, clients and counts after one and the same round."""

    round: int
    server: Vectors
    memory: Vectors
    counts: dict[str, Any]
    """As ``Meter.state`` gives it."""
    clock: dict[str, Any] | None


class Interruption(Protocol):
    """An event that is set when somebody wants an end."""

    def set(self) -> None: ...
    def is_set(self) -> bool: ...


class Loop:
    """One run: its state between rounds."""

    def __init__(self, spec: RunSpec) -> None:
        assert spec.engine is not None
        self.spec, self.engine = spec, spec.engine
        self.method, self.problem, self.stop = spec.method, spec.problem, spec.stop
        self.notes = [*spec.unsafe, *spec.uncovered]
        self.config = spec.plain()
        self.clock = spec.clock()
        self.trace = Trace(columns_of(self.problem, self.clock is not None))
        self.round = 0
        self.psi0: float | None = None
        self.best: tuple[float, int, Array] | None = None
        self.interrupted = Event()
        self.audit = Audit()
        self.corrupted: str | None = None
        self.stopped: str | None = None  # why a callback ended the run; may be empty
        self.unproved: set[int] = set()  # rounds of records at which rounding left the tolerance undecided
        self.keep: folder.Folder | None = None
        self.large = False  # most clients' memory is never written to, and too large to be treated as a whole
        self.seen: Snapshot | None = None  # at the last record or checkpoint
        self.saved = 0  # the round of the last checkpoint
        self.recoveries: list[dict[str, Any]] = []  # what an engine lost, and from where the run went on
        self.broken: int | None = None  # the round that was broken off, if the engine cannot undo it

    @contextmanager
    def closed_on_error(self) -> Iterator[None]:
        """Release the engine if the run cannot begin, unless another run uses it."""
        try:
            yield
        except EngineInUse:
            if self.keep is not None:
                self.keep.close()
            raise
        except BaseException:
            self.close()
            raise

    def _open(self, memory: Vectors) -> None:
        """Open the engine for this run alone: two runs would overwrite each other's memory."""
        with _CLAIM:
            if id(self.engine) in _IN_USE:
                raise EngineInUse("this engine is in use by another run; give each concurrent run its own engine.")
            _IN_USE[id(self.engine)] = self.engine
        spec = self.spec
        self._open_engine(memory)
        if self.large:
            self.notes += sparse_memory.left_out(self.method, self.problem)
        self.exchange = MeteredExchange(self.engine, self.problem, spec.seed, spec.asked, self.clock, self.interrupted)

    def _open_engine(self, memory: Vectors) -> None:
        """Open the engine; again if machines are lost meanwhile, but not for ever."""
        for _ in range(MOST_LOSSES + 1):
            try:
                return self.engine.open(self.problem, memory, self.spec.seed)
            except EngineLost as error:
                lost = error
        raise _given_up(lost, "while it began")

    def keep_in(self, keep: folder.Folder) -> None:
        """Write checkpoints and results to this folder."""
        self.keep = keep
        self._surviving(lambda: keep.begin(self.state()))

    def close(self) -> None:
        """Release the engine and the folder."""
        try:
            self.engine.close()
        finally:
            _IN_USE.pop(id(self.engine), None)
            if self.keep is not None:
                self.keep.close()

    # -- start and restore ---------------------------------------------------------------------------------------------
    def start(self, x0: Array, h0: Array | None, dual: Vectors) -> None:
        """Set up the state before the first round; h0 = None means zeros."""
        self.large = sparse_memory.is_large(self.spec, h0)
        memory = sparse_memory.start_rows(self.spec, x0, h0)
        self._open(memory)
        server = self.method.start(self.problem, x0) | dual
        self.server = {k: self.exchange.place(v) for k, v in server.items()}
        self.x0, self.h0 = x0, h0
        self.x = self.good = x0
        if not self.engine.rewinds:
            self._saw(server, memory)
        self._surviving(self._prepare_watch)

    def restore(self, saved: Any, rows: RowsState | None = None) -> None:
        """Set up the state of a checkpoint; ``rows`` is the clients' memory if it lies in parts."""

        def part(name: str) -> dict[str, Any]:
            return {k[len(name) :]: v for k, v in saved.arrays.items() if k.startswith(name)}

        self.x0, self.h0 = saved.arrays["x0"], saved.arrays.get("h0")
        self.large, counts, remembered = rows is not None, part("line."), part("memory.")
        if rows is not None:
            counts, remembered = counts | dict(rows.numbers), dict(rows.memory)
        took_part = np.flatnonzero(counts["participated"])
        memory = sparse_memory.restored_rows(self.spec, self.x0, self.h0, remembered, took_part)
        self._open(memory)
        server = part("server.")
        self.exchange.meter.restore(counts, saved.meta["line"])
        self._place(server)
        if self.clock is not None:
            self.clock.restore(saved.meta["clock"])
        # an uninterrupted run has no record there
        self.trace = self._scheduled(Trace.from_arrays(part("trace.")))
        self.round, self.psi0 = int(saved.meta["round"]), saved.meta["psi0"]
        self.saved = self.round
        self.audit.scale = float(saved.meta["scale"])
        if saved.meta["best"] is not None:
            f, round = saved.meta["best"]
            self.best = float(f), int(round), saved.arrays["best"]
        # as in the trace, a record that was only made because the run ended there does not count
        self.unproved = {r for r in saved.meta["unproved"] if self._is_recorded(r)}
        if not self.engine.rewinds:
            self._saw(server, memory)
        self.x = self.good = self._answer()
        if saved.note:
            self.notes.append(saved.note)
        self._surviving(self._prepare_watch)

    def _place(self, server: Vectors) -> None:
        """Move the server's vectors to where the engine wants them."""
        self.server = {k: self.exchange.place(v) for k, v in server.items()}
        meter = self.exchange.meter
        # the server's own objects, so that a vector sent for two reasons is counted once, as before
        meter.outcome = tuple(
            next((self.server[k] for k, v in server.items() if np.array_equal(o, v)), o) for o in meter.outcome
        )

    def _check_gradients(self) -> None:
        """Compare the gradients of a user's own functions with their values; without agreement nothing is proved."""
        self.contradiction = gradient_check.of_clients(self.problem.clients, self.x0)
        if self.contradiction is not None and self.contradiction not in self.notes:
            warnings.warn(self.contradiction, GradientWarning, stacklevel=5)
            self.notes.append(self.contradiction)

    def _prepare_watch(self) -> None:
        self._check_gradients()
        self.judged = self.engine.judge(self.problem)
        if self.problem.knows_L:
            residual0 = measure.residual(self.judged, self.x0, self.method.start(self.problem, self.x0))
            start = watch.at_start(self.judged, self.x0, self.h0, in_blocks=self.large)
            self.watch = watch.RunWatch.of(self.method, self.judged, start, residual0)
        else:
            self.watch = watch.RunWatch.knowing_nothing()
        self.claims = self.method.claims(self.judged)
        if self.large:
            self.claims = replace(self.claims, lyapunov=Claims().lyapunov)
        # the theorem needs random cohorts, not those of a list or what a network leaves
        network = self.spec.network
        drawn = not isinstance(self.spec.asked, Given) and (network is None or network.reliable)
        self.claimed = self.claims.zeta if drawn else None
        # a run stands still while clients are away for hours
        self.judges_level = network is None or network.available == 1.0
        self.zeta = None if self.spec.unsafe else self.claimed
        noisy = self.problem.batch is not None and self.zeta is not None and self.claims.ball
        self.noise = float(np.max(self.method.gamma)) ** 2 * self.problem.es_C / self.zeta if noisy else 0.0  # type: ignore[operator]

    # -- the loop ------------------------------------------------------------------------------------------------------
    def go(self, callbacks: Sequence[Any]) -> RunResult:
        """Run rounds until a stopping rule holds."""
        try:
            with listening(callbacks, self.config):
                with np.errstate(all="ignore"), signals_caught(self.interrupted):
                    result = self._surviving(lambda: self._rounds(callbacks))
                result = result if self.keep is None else self._kept(self.keep, result)
        finally:
            self.close()
        tell_end(callbacks, result)
        return result

    def _kept(self, keep: folder.Folder, result: RunResult) -> RunResult:
        """Write the result; if that fails, warn and return it anyway."""
        try:
            keep.finish(result.trace, self.state(result))
        except CheckpointError as error:
            note = f"{error} The result is only in memory."
            warnings.warn(note, UserWarning, stacklevel=5)
            self.notes.append(note)
            result.summary["warnings"] = list(self.notes)
            return replace(result, warnings=tuple(self.notes))
        return result

    def _rounds(self, callbacks: Sequence[Any]) -> RunResult:
        """Record and save what is due, judge, and run the next round, until a verdict ends the run."""
        while True:
            if self._is_due():
                self._record(callbacks)
            if self.keep is not None and self.saved < self.round and self.keep.due(self.round):
                self.keep.save(self.state())
                self.saved = self.round
            verdict = self._verdict()
            if verdict is not None and self.trace.last()["round"] < self.round:
                self._record(callbacks)
                verdict = self._verdict() or verdict
            if verdict is None:
                verdict = self._next_round()
            if verdict is not None:
                return self._result(*verdict)

    def _is_due(self) -> bool:
        """Whether there should be a record after this round, and is none."""
        last = self.trace.last()["round"] if len(self.trace) else -1
        return last < self.round and self._is_recorded(self.round)

    def _next_round(self) -> tuple[Status, str] | None:
        """Run a round; a verdict if it cannot be one of the run."""
        if self.engine.rewinds:
            self.seen = None  # not needed to break off a round, and perhaps large
        self.exchange.begin(self.round)
        try:
            self.server = self.exchange.timed(self.method.round, self.server, self.exchange)
        except BrokenOff:
            self._break_off()
            return None
        except Void:
            return self._void()
        self.round += 1
        if self.clock is not None:
            self.clock.committed()
        return None if self.looks_finite(self._is_recorded(self.round)) else watch.not_finite(self.round)

    # -- going back ----------------------------------------------------------------------------------------------------
    def _break_off(self) -> None:
        """Go back to the start of the round, or to the last record or checkpoint."""
        if self.engine.rewinds:
            return self.exchange.undo()
        self.broken = self.round
        self.exchange.far = False  # the run ends here, with the vectors of the snapshot
        self._go_back()

    def _go_back(self) -> None:
        """To the last record or checkpoint."""
        seen = self.seen
        assert seen is not None
        self.round = seen.round
        self.exchange.meter.restore(**seen.counts)
        self._place(seen.server)
        if self.clock is not None and seen.clock is not None:
            self.clock.restore(seen.clock)
        self.x = self.good = self._answer()

    def _surviving(self, act: Callable[[], Any]) -> Any:
        """Do it; if the engine loses machines meanwhile, open it anew, go back, and do it again."""
        while True:
            try:
                return act()
            except EngineLost as lost:
                self._recover(lost)

    def _recover(self, lost: EngineLost) -> None:
        """Give the engine the clients' memory of the last record or checkpoint, and go on from there."""
        assert self.seen is not None
        began, where = time.monotonic(), {"round": self.round, "from_round": self.seen.round}
        if sum(r["from_round"] == self.seen.round for r in self.recoveries) == MOST_LOSSES:
            raise _given_up(lost, f"since round {self.seen.round}") from None
        spent = self.exchange.ledger.seconds
        self._open_engine(self.seen.memory)
        self._go_back()
        self.exchange.ledger.seconds = spent
        self.recoveries.append(where | {"cause": str(lost), "seconds": time.monotonic() - began})
        self.notes.append(f"{lost} in round {where['round']}; the run went on from round {self.seen.round}.")

    def _void(self) -> tuple[Status, str] | None:
        """Nobody is counted in this attempt; returns the verdict after too many of them in a row."""
        self.exchange.undo(void=True)
        assert self.clock is not None
        verdict = self.clock.given_up(self.round)
        if verdict is not None and self.trace.last()["round"] < self.round:
            self._record(())
        return verdict

    def looks_finite(self, due: bool) -> bool:
        """Take in the new x, an expensive one only if a record is due; False if it is not finite."""
        # x lies on a device, or would have to be averaged over the clients
        if not due and (self.exchange.far or "x" not in self.server):
            return self.exchange.finite  # x stays that of the last record
        self.exchange.wait()
        self.x = self._answer()
        if self.exchange.finite and np.isfinite(self.x).all():
            self.good = self.x
            return True
        self.x = self.good
        return False

    def _verdict(self) -> tuple[Status, str] | None:
        """Whether and why to stop here. Tolerances are only judged at records, and a run ends with a record."""
        row = self.trace.last()
        fresh = row["round"] == self.round
        if fresh and self.watch.diverged(row["grad_norm"]):
            return watch.grown(row["grad_norm"], self.round)
        if self.corrupted is not None:
            return Status.CORRUPTED, self.corrupted
        if fresh and self.stop.reached(row) and (verdict := self._proof()) is not None:
            return verdict
        judged = (self.stop.has_tolerance or self.claimed is not None) and self.judges_level
        if fresh and judged and self.watch.is_level(self.trace):
            y = self.exchange.fetched(self.server).get("y") if self.problem.D is not None else None
            if not self.watch.is_rounding(row["grad_norm"], self.x, y):
                window = self.watch.window or 0.0
                return Status.STALLED, (
                    f"the gradient norm {row['grad_norm']:.3g} did not decrease over the last {window:.0f} iterations, "
                    "where a factor of 12 was expected; use a smaller gamma, or a method without bias."
                )
            if self.stop.has_tolerance:
                return Status.PRECISION, (
                    f"the gradient norm {row['grad_norm']:.3g} is at the level of rounding and no longer decreases; a "
                    "smaller tolerance cannot be reached."
                )
        if self.interrupted.is_set():
            more = "; resume it from its folder." if self.keep else "."
            if self.broken is not None and self.broken > self.round:
                last = f"the result is that of the last record or checkpoint, after {self.round} rounds"
                return Status.INTERRUPTED, f"interrupted in round {self.broken + 1}; {last}{more}"
            return Status.INTERRUPTED, f"interrupted after {self.round} rounds{more}"
        if self.stopped is not None:
            why = f": {self.stopped.rstrip('.')}." if self.stopped else "."
            return Status.STOPPED, f"stopped by a callback after {self.round} rounds{why}"
        return self.stop.exhausted(self.round, self.exchange.ledger)

    def _proof(self) -> tuple[Status, str] | None:
        """CONVERGED if the tolerances hold despite rounding, PRECISION if that cannot be known, None to go on."""
        y = self.exchange.fetched(self.server).get("y")
        with np.errstate(all="ignore"):
            missed = self.stop.unproved(self.judged, self.x, y)
        if missed is None:
            status, sentence = self.stop.converged(self.round)
            if self.contradiction is None:
                return status, sentence
            return Status.INEXACT, f"{sentence.removesuffix('.')}, which proves nothing: {self.contradiction}"
        self.unproved.add(self.round)
        if not missed.hopeless and len(self.unproved) < MAX_UNPROVED:
            return None
        return Status.PRECISION, f"{missed.sentence} after {self.round} rounds."

    def _scheduled(self, trace: Trace) -> Trace:
        """The trace without a last record that was only made because the run ended there."""
        last = int(trace.last()["round"]) if len(trace) else 0
        kept = len(trace) - (0 if self._is_recorded(last) else 1)
        return Trace.from_arrays({k: v[:kept] for k, v in trace.to_arrays().items()})

    def _is_recorded(self, r: int) -> bool:
        return r % (self.spec.every or max(1, -(-r // 100))) == 0

    def _see(self) -> Snapshot:
        """The snapshot after this round, taken once."""
        if self.seen is None or self.seen.round != self.round:
            self.exchange.wait()
            self._saw(self.exchange.fetched(self.server), self.engine.memory())
        assert self.seen is not None
        return self.seen

    def _saw(self, server: Vectors, memory: Vectors) -> None:
        """Keep this server and memory as the snapshot after this round."""
        clock = None if self.clock is None else self.clock.state()
        counts = self.exchange.meter.state(self.exchange.fetch)
        self.seen = Snapshot(self.round, server, memory, counts, clock)

    def _record(self, callbacks: Sequence[Any]) -> None:
        """Evaluate at the communicated x, off the meter and off the clock."""
        seen = self._see()
        server, memory = seen.server, seen.memory
        self.x = self._answer()
        excess = self.method.excess(self.judged, self.x, server, memory)
        row = self._costs() | measure.measure(self.claims, self.judged, self.x, server, memory, excess)
        # a resumed run keeps the value of its own start
        if self.psi0 is None and self.round == 0 and np.isfinite(row["lyapunov"]):
            self.psi0 = row["lyapunov"]
        if self.zeta is not None and self.psi0 is not None:
            done = row["round" if self.claims.per_round else "iterations"]
            row["lyapunov_bound"] = (1.0 - self.zeta) ** done * self.psi0 + self.noise
        self.trace.append(row)
        # Without L a step that is too large shows only later. A resumed run makes no record where the run before it
        # ended, so such a record is not among those that are compared.
        lowest = np.inf if self.best is None else self.best[0]
        if not self.problem.knows_L and self._is_recorded(self.round) and row["f"] < lowest:
            self.best = row["f"], self.round, self.x.copy()
        self._look_at_sum(server, memory, excess)
        why = tell_record(callbacks, self.round, Record(row, self.x))
        self.stopped = why if self.stopped is None else self.stopped

    def _look_at_sum(self, server: Vectors, memory: Vectors, excess: float | None) -> None:
        """Audit: a wrong sum of h ends the run, or is noted if the method repairs it."""
        unit = self.engine.rounding()
        breach = self.audit.breach(self.method, self.x, server, memory, excess, self.round, unit)
        if breach is None:
            return
        what = "sum_i w_i h_i" if self.problem.psi is None else "the sum of the h_i plus a subgradient of psi"
        what = what if "h" in self.method.remembers else "sum_i w_i v_i - v"
        fault = f"{what} is {breach[0]:.3g} after round {self.round}, but rounding explains at most {breach[1]:.3g}"
        if self.method.about.heals and self.exchange.everyone:
            if not any("repairs" in note for note in self.notes):
                self.notes.append(f"{fault}: an update was lost, applied twice or changed; the method repairs that.")
            return
        self.corrupted = f"{fault}: an update was lost, applied twice or changed, so the answer would be wrong."

    def _costs(self) -> dict[str, float]:
        """The ledger so far, as columns of the trace."""
        row = self.exchange.ledger.row()
        passes = row["grad_evals"] / (self.problem.N or self.problem.n)
        timed = {} if self.clock is None else self.clock.row()
        return row | {"round": self.round, "passes": passes} | timed

    def _answer(self) -> Array:
        if "x" in self.server:
            return self.exchange.fetch(self.server["x"])
        return weighted_sum(self.problem.weights, self._see().memory["x"])

    # -- checkpoints and the result ------------------------------------------------------------------------------------
    def state(self, result: RunResult | None = None) -> folder.State:
        """Everything that a resumed run needs, with the result, or what it is so far."""
        seen, rows = self._see(), None
        counts = dict(seen.counts["arrays"])
        arrays = {f"server.{k}": v for k, v in seen.server.items()}
        if self.large:
            rows = RowsState(seen.memory, {k: counts.pop(k) for k in NUMBERS})
        else:
            arrays |= {f"memory.{k}": v for k, v in seen.memory.items()}
            arrays["h0"] = np.zeros((self.problem.n, self.problem.d)) if self.h0 is None else self.h0
        arrays |= {f"line.{k}": v for k, v in counts.items()}
        arrays |= {f"trace.{k}": v for k, v in self.trace.to_arrays().items()}
        arrays["x0"] = self.x0
        meta = {"round": self.round, "psi0": self.psi0, "scale": self.audit.scale, "line": seen.counts["meta"]}
        meta |= {"best": None, "unproved": sorted(self.unproved)}
        if self.best is not None:
            meta["best"] = self.best[:2]
            arrays["best"] = self.best[2]
        meta |= {} if self.clock is None else {"clock": self.clock.state()}
        if result is None:
            return folder.State(self._answer(), self._summary_so_far(), arrays, meta, rows)
        return folder.State(result.x, result.summary, arrays, meta, rows)

    def _summary_so_far(self) -> Summary:
        """The summary of a run that has not ended, without measurements where this round has no record."""
        row = dict.fromkeys(self.trace.columns, np.nan)
        if len(self.trace) and self.trace.last()["round"] == self.round:
            row = self.trace.last()
        message = f"not ended: this is the checkpoint after {self.round} rounds; continue it with proxskip.resume."
        return description.summary(
            self.config, self.problem, row | self._costs(), Status.INTERRUPTED, message, self.zeta, tuple(self.notes)
        )

    def _result(self, status: Status, message: str) -> RunResult:
        if status is Status.DIVERGED and self.best is not None:
            self.x = self.best[2]
            message = watch.advice(self.method, self.round, *self.best[:2])
        seen, row = self._see(), self.trace.last()
        if row["round"] != self.round:  # a failed round has no record: measure at the returned x
            row = dict.fromkeys(self.trace.columns, np.nan) | self._costs() | measure.at_point(self.judged, self.x)
        if self.clock is not None:  # void attempts since the last record take time too
            row |= self.clock.row()
        h = self.method.controls(seen.server, seen.memory)
        cluster, happened = self.engine.report()
        self.notes += happened
        if cluster is not None:
            cluster["recoveries"] = self.recoveries
        about = description.summary(
            self.config, self.problem, row, status, message, self.zeta, tuple(self.notes), cluster
        )
        first = {k: float(self.trace[k][0]) for k in ("grad_norm", "gap")}
        if (floor := description.cohort_floor(self.config, first)) is not None:
            about["forecast"] = floor
        return RunResult(
            self.x, status, message, self.trace, h, seen.server, seen.memory,
            self.exchange.meter.participated.copy(), about, tuple(self.notes),
        )  # fmt: skip


def _given_up(lost: EngineLost, when: str) -> EngineError:
    return EngineError(f"{lost}, {MOST_LOSSES + 1} times {when}; its machine may be short of memory.")


@contextmanager
def signals_caught(interrupted: Interruption) -> Iterator[None]:
    """The first SIGINT or SIGTERM sets the event, a second one ends the program; only in the main thread."""

    def caught(number: int, frame: FrameType | None) -> None:
        if interrupted.is_set():
            raise KeyboardInterrupt
        interrupted.set()

    old: dict[signal.Signals, Any] = {}
    if threading.current_thread() is threading.main_thread():
        for which in (signal.SIGINT, signal.SIGTERM):
            # a handler that was not installed from Python reads as None and could not be put back: it stays
            if signal.getsignal(which) is not None:
                old[which] = signal.signal(which, caught)
    try:
        yield
    finally:
        for which, handler in old.items():
            signal.signal(which, handler)
