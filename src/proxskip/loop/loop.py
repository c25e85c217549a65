"""The loop, written once: draw, exchange, settle, measure, stop, checkpoint."""

from __future__ import annotations

import signal
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from threading import Event
from types import FrameType
from typing import Any, Protocol

import numpy as np

from proxskip.links.cohorts import Given, Participation
from proxskip.links.sums import weighted_sum
from proxskip.loop import measure
from proxskip.loop.line import Ledger, Line
from proxskip.loop.stop import Stop
from proxskip.loop.watch import RunWatch
from proxskip.problems.federated import Problem
from proxskip.results import description, folder
from proxskip.results.checkpoint import CheckpointError
from proxskip.results.result import Result, Status
from proxskip.results.trace import Trace
from proxskip.seam import BrokenOff, Engine, Method
from proxskip.types import Array, InputError, Vectors

COLUMNS = (
    "round",
    *(f for f in Ledger.__dataclass_fields__),
    *("passes", "f", "gap", "grad_norm", "sum_h", "lyapunov", "lyapunov_bound"),
)


class Callback(Protocol):
    """What may listen to a run."""

    def on_run_start(self, config: dict[str, Any]) -> None: ...
    def on_record(self, step: int, metrics: dict[str, float]) -> None: ...
    def on_run_end(self, result: Result) -> None: ...


class Loop:
    """One run: its state between rounds, and nothing that the state does not determine."""

    def __init__(
        self,
        method: Method,
        problem: Problem,
        stop: Stop,
        seed: int,
        participation: Participation,
        engine: Engine,
        every: int | None,
        notes: list[str],
    ) -> None:
        if every is not None and every < 1:
            raise InputError(f"every = {every} must be at least 1.")
        self.method, self.problem, self.stop, self.seed = method, problem, stop, seed
        self.engine, self.every, self.notes = engine, every, list(notes)
        self.unsafe = bool(notes)
        self.line = Line(engine, problem, seed, participation)
        self.trace = Trace(COLUMNS)
        self.round = 0
        self.psi0: float | None = None
        self.interrupted = Event()
        self.config: dict[str, Any] = {}
        self.keep: folder.Folder | None = None

    @contextmanager
    def closed_on_error(self) -> Iterator[None]:
        """Give threads and machines back if the run cannot begin."""
        try:
            yield
        except BaseException:
            self._close()
            raise

    def _close(self) -> None:
        self.engine.close()
        if self.keep is not None:
            self.keep.close()

    # -- where it begins -----------------------------------------------------------------------------------------------
    def start(self, x0: Array, h0: Array, dual: Vectors) -> None:
        """The state before the first round."""
        n, d = self.problem.n, self.problem.d
        memory = {k: np.zeros((n, d)) for k in self.method.remembers}
        if "h" in memory:
            memory["h"] = h0
        if "x" in memory:
            memory["x"] = np.tile(x0, (n, 1))
        self.server = self.method.start(self.problem, x0)
        self.server |= dual
        self.engine.open(self.problem, memory, self.seed)
        self.line = Line(self.engine, self.problem, self.seed, self.line.cohorts)
        self.server = {k: self.line.place(v) for k, v in self.server.items()}
        self.x0, self.h0 = x0, h0
        self.x = self.good = x0
        self._prepare_watch()

    def restore(self, saved: Any) -> None:
        """The state of a checkpoint."""

        def part(name: str) -> dict[str, Any]:
            return {k[len(name) :]: v for k, v in saved.arrays.items() if k.startswith(name)}

        self.engine.open(self.problem, part("memory."), self.seed)
        self.line = Line(self.engine, self.problem, self.seed, self.line.cohorts)
        self.server = {k: self.line.place(v) for k, v in part("server.").items()}
        self.line.restore(part("line."), saved.meta["line"])
        held = part("server.").items()
        self.line.outcome = tuple(
            next((self.server[k] for k, v in held if np.array_equal(o, v)), o) for o in self.line.outcome
        )
        self.trace = self._scheduled(Trace.from_arrays(_with_bits(part("trace."))))
        self.round, self.psi0 = int(saved.meta["round"]), saved.meta["psi0"]
        self.x0, self.h0 = saved.arrays["x0"], saved.arrays["h0"]
        self.x = self.good = self._answer(self.engine.memory())
        if saved.note:
            self.notes.append(saved.note)
        self._prepare_watch()

    def _prepare_watch(self) -> None:
        self.judged = self.engine.judge(self.problem)
        residual0 = measure.residual(self.judged, self.x0, self.method.start(self.problem, self.x0))
        self.watch = RunWatch.of(self.method, self.judged, self.x0, self.h0, residual0)
        self.claims = self.method.claims(self.judged)
        self.claimed = None if isinstance(self.line.cohorts, Given) else self.claims.zeta
        self.zeta = None if self.unsafe else self.claimed
        noisy = self.problem.batch is not None and self.zeta is not None
        self.noise = float(np.max(self.method.gamma)) ** 2 * self.problem.es_C / self.zeta if noisy else 0.0  # type: ignore[operator]

    # -- the loop ------------------------------------------------------------------------------------------------------
    def go(self, callbacks: Sequence[Callback]) -> Result:
        """Rounds until something says stop."""
        try:
            for c in callbacks:
                c.on_run_start(self.config)
            result = self._ended(callbacks)
        finally:
            self._close()
        for c in callbacks:
            c.on_run_end(result)
        return result

    def _ended(self, callbacks: Sequence[Callback]) -> Result:
        self.line.interrupted = self.interrupted
        restore = self._catch_signals()
        try:
            with np.errstate(all="ignore"):
                status, message = self._rounds(callbacks)
        finally:
            restore()
        with np.errstate(all="ignore"):
            result = self._result(status, message)
        return result if self.keep is None else self._kept(self.keep, result)

    def _kept(self, keep: folder.Folder, result: Result) -> Result:
        """Write the result; where that fails it is returned all the same, with a warning."""
        try:
            keep.finish(result, self.state())
        except CheckpointError as error:
            note = f"{error} The result is in memory alone."
            warnings.warn(note, UserWarning, stacklevel=5)
            self.notes.append(note)
            result.about["warnings"] = list(self.notes)
            return replace(result, warnings=tuple(self.notes))
        return result

    def _rounds(self, callbacks: Sequence[Callback]) -> tuple[Status, str]:
        if len(self.trace) == 0:
            self._record(callbacks)
        while True:
            verdict = self._verdict()
            if verdict is not None:
                if self.trace.last()["round"] < self.round:
                    self._record(callbacks)
                    verdict = self._verdict() or verdict
                return verdict
            self.line.begin(self.round)
            try:
                self.server = self.line.timed(self.method.round, self.server, self.line)
            except BrokenOff:
                self.line.undo()
                continue
            self.round += 1
            due = self._is_recorded(self.round)
            if not self.looks_finite(due):
                lost = f"the iterate of round {self.round} is not finite; the last finite x seen is returned."
                return Status.DIVERGED, lost
            if due:
                self._record(callbacks)
            if self.keep is not None and self.keep.due(self.round):
                self.keep.save(self.state())

    def looks_finite(self, due: bool) -> bool:
        """Take in the new x, a dear one only when a record is due; False, and x as seen last, if it is not finite."""
        if due or not self._x_is_dear():
            self.line.timed(self.line.wait)
            self.x = self._answer(None)
        if self.line.finite and np.isfinite(self.x).all():
            self.good = self.x
            return True
        self.x = self.good
        return False

    def _x_is_dear(self) -> bool:
        """Whether it lies elsewhere, or would have to be put together from the clients'."""
        return self.line.far or "x" not in self.server

    def _verdict(self) -> tuple[Status, str] | None:
        """Stop here? Tolerances are judged at records only, and a record is made before a run ends."""
        row = self.trace.last()
        fresh = row["round"] == self.round
        if fresh and self.watch.diverged(row["grad_norm"]):
            return (
                Status.DIVERGED,
                f"the gradient norm grew to {row['grad_norm']:.3g} by round {self.round}; take a smaller gamma.",
            )
        if fresh and self.stop.reached(row):
            return Status.CONVERGED, f"the tolerance holds after {self.round} rounds."
        if fresh and (self.stop.asked or self.claimed is not None) and self.watch.stalled(self.trace, self.x):
            window = self.watch.window or 0.0
            return Status.STALLED, (
                f"the gradient norm {row['grad_norm']:.3g} has not fallen over the last {window:.0f} iterations, "
                "in which it should have fallen by a factor of 12; take a smaller gamma, or a method without bias."
            )
        if self.interrupted.is_set():
            return (
                Status.INTERRUPTED,
                f"interrupted after {self.round} rounds" + ("; resume it from its folder." if self.keep else "."),
            )
        limit = self.stop.limit(self.round, self.line.ledger)
        if limit is None:
            return None
        if self.stop.rounds is not None and self.round > self.stop.rounds:  # resumed with a limit that is behind it
            asked = f"{self.stop.rounds} were asked for"
            return Status.MAX_ROUNDS, f"nothing was done: the run has had {self.round} rounds already, and {asked}."
        missed = " without reaching the tolerance" if self.stop.asked else ", as asked"
        return Status.MAX_ROUNDS, f"stopped {limit}{missed}."

    def _scheduled(self, trace: Trace) -> Trace:
        """Without the last record if it was made only because the run ended there."""
        last = int(trace.last()["round"]) if len(trace) else 0
        kept = len(trace) - (0 if self._is_recorded(last) else 1)
        return Trace.from_arrays({k: v[:kept] for k, v in trace.to_arrays().items()})

    def _is_recorded(self, r: int) -> bool:
        return r % (self.every or max(1, -(-r // 100))) == 0

    def _record(self, callbacks: Sequence[Callback]) -> None:
        """Evaluate at the communicated x: off the meter and off the clock."""
        self.line.timed(self.line.wait)
        memory, server = self.engine.memory(), self.line.fetched(self.server)
        self.x = self._answer(memory)
        row = self._costs() | measure.measure(self.method, self.claims, self.judged, self.x, server, memory)
        if self.psi0 is None and self.round == 0 and np.isfinite(row["lyapunov"]):
            self.psi0 = row["lyapunov"]
        if self.zeta is not None and self.psi0 is not None:
            row["lyapunov_bound"] = (1.0 - self.zeta) ** row["iterations"] * self.psi0 + self.noise
        self.trace.append(row)
        heard = row | self.engine.pulse()
        for c in callbacks:
            c.on_record(self.round, heard)

    def _costs(self) -> dict[str, float]:
        """The ledger so far, as columns of the trace."""
        row = self.line.ledger.row()
        passes = row["grad_evals"] / (self.problem.N or self.problem.n)
        return row | {"round": self.round, "passes": passes}

    def _answer(self, memory: Vectors | None) -> Array:
        if "x" in self.server:
            return self.line.fetch(self.server["x"])
        return weighted_sum(self.problem.weights, (memory or self.engine.memory())["x"])

    # -- where it ends -------------------------------------------------------------------------------------------------
    def state(self) -> folder.State:
        """All that a resumed run needs."""
        line = self.line.state()
        arrays = {f"server.{k}": v for k, v in self.line.fetched(self.server).items()}
        arrays |= {f"memory.{k}": v for k, v in self.engine.memory().items()}
        arrays |= {f"line.{k}": v for k, v in line["arrays"].items()}
        arrays |= {f"trace.{k}": v for k, v in self.trace.to_arrays().items()}
        arrays |= {"x0": self.x0, "h0": self.h0}
        return folder.State(arrays, {"round": self.round, "psi0": self.psi0, "line": line["meta"]})

    def _result(self, status: Status, message: str) -> Result:
        memory = self.engine.memory()
        row = self.trace.last()
        if row["round"] != self.round:  # a round that did not end well has no record: say what holds at the returned x
            row = dict.fromkeys(COLUMNS, np.nan) | self._costs() | measure.at_point(self.judged, self.x)
        server = self.line.fetched(self.server)
        h = self.method.controls(server, memory)
        cluster, happened = self.engine.report()
        self.notes += happened
        about = description.summary(
            self.config, self.problem, row, status, message, self.zeta, tuple(self.notes), cluster
        )
        return Result(
            self.x, status, bool(about["success"]), message, self.trace, h, server, memory,
            self.line.participated.copy(), tuple(self.notes), about,
        )  # fmt: skip

    def _catch_signals(self) -> Callable[[], None]:
        """The first SIGINT or SIGTERM ends the run and breaks off a long round; a second one ends it at once."""
        if threading.current_thread() is not threading.main_thread():
            return lambda: None

        def caught(number: int, frame: FrameType | None) -> None:
            if self.interrupted.is_set():
                raise KeyboardInterrupt
            self.interrupted.set()

        old = {s: signal.signal(s, caught) for s in (signal.SIGINT, signal.SIGTERM)}

        def restore() -> None:
            for s, handler in old.items():
                signal.signal(s, handler)

        return restore


def _with_bits(columns: dict[str, Any]) -> dict[str, Any]:
    """A trace's columns; version 0.1 counted no bits, and every number had 64."""
    missing = {f"bits_{way}": 8 * columns[f"bytes_{way}"] for way in ("up", "down") if f"bits_{way}" not in columns}
    return {k: (columns | missing)[k] for k in COLUMNS} if missing else columns
