"""One run of the Strategy: the protocol's state, the messages under way, and the deadlines."""

from __future__ import annotations

import hashlib
import math
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from logging import INFO, WARNING
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, Message, MessageType, MetricRecord
from flwr.serverapp.strategy import Result as FlowerResult

from proxskip.flower import messages, nodes, tables
from proxskip.flower.envelope import log, unwrap, wrap
from proxskip.flower.messages import Ask
from proxskip.flower.nodes import FederatedClient
from proxskip.flower.server import Server
from proxskip.flower.tickets import Purpose, ServerState
from proxskip.methods.built_in import BUILT_IN
from proxskip.problems.information import Information
from proxskip.results import checkpoint, description, inference, run_text
from proxskip.results.inference import Inference
from proxskip.results.load import FEDERATION, INFORMATION
from proxskip.results.result import Result, Status, Summary
from proxskip.results.trace import Trace
from proxskip.running.ledger import Ledger
from proxskip.running.records import COLUMNS
from proxskip.types import Array as Vector
from proxskip.types import InputError

MAX_ERRORS = 3
"""Errors of a client's app in one exchange after which the server stops waiting for it."""
SECONDS_BETWEEN_CHECKS = 5.0
MOST_NAMES = 1_000
"""With more clients, what is known of each of them by name does not fit into a checkpoint's header."""


class MessageLedger(Ledger):
    """The ledger of a run, written as messages leave and arrive; bytes include headers."""

    def asked(self, asks: Sequence[Ask]) -> None:
        """Count the start of an exchange."""
        self.exchanges += bool(asks)
        self.iterations += max((a.K for a in asks), default=0)
        self.local_steps += sum(a.K for a in asks)

    def sent(self, raw: bytes, d: int) -> None:
        """Count a message to a client, of a problem in d unknowns."""
        vectors, floats = messages.contents(raw, d)
        self.bytes_down += len(raw)
        self.vectors_down += vectors
        self.floats_down += floats

    def answered(self, raw: bytes, gradients: object, d: int) -> None:
        """Count an answer."""
        vectors, floats = messages.contents(raw, d)
        self.bytes_up += len(raw)
        self.vectors_up += vectors
        self.floats_up += floats
        # the number comes from the client, so it may be anything
        self.grad_evals += gradients if isinstance(gradients, int) and 0 <= gradients < 2**53 else 0

    def measured(self, s: ServerState, N: int) -> dict[str, float]:
        """A row as in a run's trace: the costs, and the server's measurements."""
        row = dict.fromkeys(COLUMNS, math.nan) | self.row()
        for way in ("up", "down"):
            row[f"bits_{way}"] = 8 * row[f"bytes_{way}"]
        known = {"round": s.round, "passes": self.grad_evals / N, "f": s.f, "grad_norm": s.grad_norm, "sum_h": s.sum_h}
        return row | known


@dataclass(repr=False, eq=False)
class FederationResult(Result, FlowerResult):
    """What a federation returns: a result as that of ``run``, and what Flower's strategies return.

    ``proxskip.load`` gives it back from the strategy's folder, without Flower's parts.

    Args:
        arrays: the solution in the shapes of ``initial_arrays``; without these, one array x.
        train_metrics_clientapp: for each round, how many clients it counted and its seconds.
        evaluate_metrics_clientapp: empty, since clients evaluate nothing.
        evaluate_metrics_serverapp: for each round, what ``evaluate_fn`` returned.
        x: the solution as one vector.
        status, message: how it ended.
        trace: what was recorded: the costs, and where clients were asked for gradients, f and the gradient norm.
        summary: the method, the status, the costs and more, by name.
        warnings: sentences about what happened, such as repairs.
        state: the server's last state, as its folder has it.
        information: what the clients said of their Hessians at the end, if they were asked.
    """

    x: Vector = field(default_factory=lambda: np.zeros(0))
    status: Status = Status.INTERRUPTED
    message: str = ""
    trace: Trace = field(default_factory=lambda: Trace(COLUMNS))
    summary: Summary = field(default_factory=Summary)
    warnings: tuple[str, ...] = ()
    state: ServerState | None = None
    information: Information | None = None
    axes = ("rounds", "grad_norm")

    def inference(self, *, level: float = 0.95) -> Inference:
        """The coefficients' standard errors, p-values and intervals: those of a fit to the rows of all clients.

        Args:
            level: of the intervals.
        """
        if self.information is None and self.status not in (Status.CONVERGED, Status.LIMIT, Status.PRECISION):
            raise InputError(f"there is no table, because the run ended early: {self.message}")
        if self.information is None:
            raise InputError("the clients were not asked for their Hessians: pass Federated(..., inference=True).")
        loss, clients = str(self.summary["loss"]), int(self.summary["clients"])
        return inference.of(self.information, loss, clients, None, level=level, robust=False, penalized=False)

    def rows(self) -> list[tuple[str, str]]:
        return [("method", str(self.summary["method"])), *run_text.rows(self.summary), *super().rows()]


class FederationRun:
    """One run of the protocol over Flower's Grid; ``go`` runs it to the end."""

    def __init__(
        self,
        strategy: Any,
        server: Server,
        remotes: list[FederatedClient],
        mailbox: nodes.Mailbox,
        deadline: float,
        evaluate: Callable[[int, ArrayRecord], MetricRecord | None] | None,
        initial: ArrayRecord | None,
    ) -> None:
        self.server, self.remotes, self.mailbox, self.deadline = server, remotes, mailbox, deadline
        self.folder, self.evaluate, self.initial = strategy.folder, evaluate, initial
        self.limit = strategy.limit
        self.costs, self.trace, self.began = MessageLedger(), Trace(COLUMNS), time.perf_counter()
        self.round_metrics: dict[int, MetricRecord] = {}
        self.evaluations: dict[int, MetricRecord] = {}
        self.before = 0.0  # seconds before the last restart
        self.places = {r.node: k for k, r in enumerate(remotes)}
        self.last_error = ""
        self.errors: dict[int, int] = {}
        self.closed = mailbox.clock()  # when the last round was closed
        self.x0 = None if initial is None else _flat(initial)
        self.rows = int(server.problem.rows_each.sum())
        self.config = description.config(
            server.method, server.problem, {}, server.seed, "flower", server.cohort, {}, fingerprinted=False
        )
        first = remotes[0]
        told = {"samples": self.rows, "lambda": first.l2, "loss": first.kind, "batch": strategy.batch}
        self.config["problem"] |= told
        sent = {name: self.config[name] for name in ("method", "parameters", "seed")}
        self.words: dict[str, Any] = sent | {"batch": strategy.batch, "itemsize": server.itemsize}

    @property
    def state(self) -> ServerState:
        """The server's state."""
        return self.server.state

    def go(self) -> FederationResult:
        """Run exchange after exchange, until the protocol is over."""
        asks = self._begin()
        self._evaluated(self.state.round)
        try:
            while not self.state.over:
                self._record()
                asks = self._ticket(asks)
        except nodes.SuperLinkSilent as error:
            # the state on disk is unchanged, so the run can be resumed
            self.state.verdict = Status.INTERRUPTED, f"round {self.state.round}: {error}"
        return self._finish()

    def _begin(self) -> list[Ask]:
        """Begin a new run, or restore the one in the folder."""
        if self.folder is None or not (self.folder / FEDERATION).exists():
            asks = self.server.begin(secrets.token_bytes(16), self.x0)
            self._save()
            return asks
        saved = checkpoint.load(self.folder, name=FEDERATION)
        different = checkpoint.differences(saved.meta["config"], self._identity())
        if different:
            raise InputError(f"{self.folder} holds another run: {'; '.join(different)}; choose another folder.")
        asks = self.server.restore(saved.arrays, saved.meta["state"])
        self.costs = MessageLedger(**saved.meta["costs"])
        self.trace = Trace.from_arrays(saved.arrays, "trace.")
        self.before = self.costs.seconds
        log(INFO, "\tresuming the run in %s at round %d", self.folder, self.state.round)
        self._save()
        return asks

    def _save(self) -> None:
        """Write the server's state, if there is a folder."""
        if self.folder is None:
            return
        self._update_seconds()
        arrays, state = self.server.save()
        summary = self._summary()
        if self.server.problem.n > MOST_NAMES:
            summary |= {"participation": None, "noise": None}
        meta: dict[str, Any] = {
            "config": self._identity(),
            "state": state,
            "costs": vars(self.costs),
            "summary": summary,
        }
        if INFORMATION in self.state.vectors:
            meta["columns"] = list(tables.names(self.remotes, self.server.problem.d))
        checkpoint.save(self.folder, arrays | self.trace.to_arrays("trace."), meta, name=FEDERATION)

    def _identity(self) -> dict[str, Any]:
        """What must not change where a run is resumed."""
        server = self.server
        parameters = {k: _short(repr(v)) for k, v in self.words["parameters"].items()}
        # by name: a client that reconnects as another node keeps its weight
        weights = {n: float(w) for n, w in zip(server.names, server.problem.weights, strict=True)}
        each: dict[str, Any] = {"names": list(server.names), "weights": weights, "noise": self._noise()}
        if len(weights) > MOST_NAMES:
            each = {k: _short(repr(v)) for k, v in each.items()}
        of_the_run = {"parameters": parameters, "cohort": self.config["cohort"], "closing": server.closing}
        return self.words | of_the_run | each | {"psi": self.config["problem"]["psi"]}

    def _update_seconds(self) -> None:
        self.costs.seconds = self.before + time.perf_counter() - self.began

    def _handle(self, event: Callable[..., list[Ask]], *arguments: Any) -> list[Ask]:
        """Pass an event to the server; its new state is on disk before any message is sent."""
        state = self.state
        ticket, round, notes, participated = state.ticket, state.round, len(state.notes), state.participated.copy()
        asks = event(*arguments)
        if state.ticket != ticket or state.over:
            self._save()
        for note in state.notes[notes:]:
            log(WARNING, "\t%s", note)
        if state.round > round:
            self._round_done(int(np.count_nonzero(state.participated != participated)))
        return asks

    def _round_done(self, cohort: int) -> None:
        """Log the round, and add its time and cohort to Flower's metrics."""
        now, r = self.mailbox.clock(), self.state.round
        seconds, self.closed = now - self.closed, now
        self.round_metrics[r] = MetricRecord({"clients": cohort, "seconds": seconds})
        log(INFO, "\tround %d of %d: %d clients, %.1f s", r, self.server.rounds, cohort, seconds)
        self._evaluated(r)

    # -- one exchange --------------------------------------------------------------------------------------------------
    def _ticket(self, asks: list[Ask]) -> list[Ask]:
        """One exchange: send, collect answers until all are there or the deadline is reached, and close."""
        ticket, exchange = self.state.ticket, self._exchange()
        end = self.mailbox.clock() + self.deadline
        waiting, hellos = self.mailbox.push(self._message(ask, end) for ask in asks), dict[str, int]()
        self.costs.asked(asks)
        next_check, pause = self.mailbox.clock() + SECONDS_BETWEEN_CHECKS, self.mailbox.pause
        self.errors = {}
        while True:
            next_asks = [ask for node, reply in self.mailbox.pull(waiting) for ask in self._reply(node, reply)]
            if self.state.over or (self.state.ticket, self._exchange()) != (ticket, exchange):
                return next_asks
            if self.mailbox.clock() >= end or self._hopeless():
                return self._handle(self.server.deadline, ticket, exchange)
            # look for clients that reconnected as another node, and ask again those that failed
            if self.mailbox.clock() >= next_check:
                next_check = self.mailbox.clock() + SECONDS_BETWEEN_CHECKS
                connected = self.mailbox.nodes()
                self._welcome(hellos, connected)
                waiting |= self._again(waiting, connected, end)
            self.mailbox.sleep(min(pause, max(0.0, end - self.mailbox.clock())))
            pause = min(1.25 * pause, max(nodes.LONGEST_PAUSE, self.mailbox.pause))

    def _exchange(self) -> int:
        """The number of the exchange under way."""
        return 0 if self.server.under_way is None else self.server.under_way.exchange

    def _hopeless(self) -> bool:
        """Whether all clients without an answer have failed several times."""
        ticket = self.server.under_way
        left = [] if ticket is None else ticket.missing
        return bool(left) and all(self.errors.get(i, 0) >= MAX_ERRORS for i in left)

    def _message(self, ask: Ask, end: float) -> Message:
        ttl = max(1.0, end - self.mailbox.clock()) + nodes.EXTRA_TTL
        raw = messages.encode(ask, self.limit)
        self.costs.sent(raw, self.server.problem.d)
        words = self.words | {"client": ask.client, "run": ask.run.hex(), "parameters": self._parameters_of(ask.client)}
        node = self.remotes[ask.client].node
        return Message(wrap(raw, words), node, MessageType.TRAIN, ttl=ttl, group_id=str(ask.ticket))

    def _parameters_of(self, client: int) -> dict[str, Any]:
        """The parameters that this client needs: its own step size, not those of all clients."""
        # in other packages' methods a list other than gamma may mean anything, so it travels unchanged
        each = type(self.server.method) in BUILT_IN
        parameters: dict[str, Any] = self.words["parameters"]
        own = {k: v[client] if isinstance(v, list) and (each or k == "gamma") else v for k, v in parameters.items()}
        if own.get("own_steps"):
            own["own_steps"] = False  # the step that it would choose is in gamma
        return own

    def _reply(self, node: int, reply: Message) -> list[Ask]:
        """Pass a reply to the protocol; an error counts as no answer, an unreadable reply as a damaged one."""
        # a late reply of a node that its client no longer uses
        i = self.places.get(node)
        if i is None:
            return []
        if reply.has_error():
            reason = nodes.last_line(reply)
            log(WARNING, "\t%s: error %s %s", self.server.names[i], reply.error.code, reason)
            if reply.error.code in nodes.APP_ERRORS:
                self.errors[i] = self.errors.get(i, 0) + 1
                self.last_error = f"{self.server.names[i]} reported: {reason}"
            return []
        try:
            raw, words = unwrap(reply.content, self.limit)
        except InputError as error:
            log(WARNING, "\t%s: %s", self.server.names[i], error)
            return self._handle(self.server.arrived, b"", i)
        if raw is None:
            return []
        self.costs.answered(raw, words.get("gradients"), self.server.problem.d)
        return self._handle(self.server.arrived, raw, i)

    def _again(self, waiting: dict[str, int], connected: set[int], end: float) -> dict[str, int]:
        """Ask again clients whose message failed, or that reconnected as another node."""
        free = connected - set(waiting.values())
        asks = self.server.again()
        return self.mailbox.push(self._message(a, end) for a in asks if self.remotes[a.client].node in free)

    def _welcome(self, hellos: dict[str, int], connected: set[int]) -> None:
        """If a client is gone, ask the unknown nodes who they are: it may have reconnected as one of them.

        Args:
            hellos: the nodes that were asked, by message.
        """
        known = {r.node for r in self.remotes}
        if not known <= connected:
            unknown = sorted(connected - known - set(hellos.values()))
            hellos |= self.mailbox.push(nodes.hello(node, None, 60.0) for node in unknown)
        for node, reply in self.mailbox.pull(hellos):
            if reply.has_error():
                continue
            try:
                new = FederatedClient.of(node, len(self.remotes), unwrap(reply.content, self.limit)[1])
            except InputError as error:
                log(WARNING, "\tnode %s is not accepted: %s", node, error)
                continue
            for k, old in enumerate(self.remotes):
                if (old.partition, old.d, old.noise) == (new.partition, new.d, new.noise) and old.node not in connected:
                    self.remotes[k] = new
            self.places = {r.node: k for k, r in enumerate(self.remotes)}

    # -- the result ----------------------------------------------------------------------------------------------------
    def _arrays(self) -> ArrayRecord:
        x = self.state.vectors["x"]
        if self.initial is None:
            return ArrayRecord({"x": Array(x)})
        arrays, at = {}, 0
        for k, v in self.initial.items():
            like = v.numpy()
            arrays[k] = Array(x[at : at + like.size].reshape(like.shape).astype(like.dtype))
            at += like.size
        return ArrayRecord(arrays)

    def _evaluated(self, round: int) -> None:
        if self.evaluate is None:
            return
        metrics = self.evaluate(round, self._arrays())
        if metrics is not None:
            self.evaluations[round] = metrics

    def _noise(self) -> dict[str, Any]:
        return {r.name: None if r.noise is None else [r.noise.clip, r.noise.std] for r in self.remotes}

    def _record(self, over: bool = False) -> None:
        """Add the last round to the trace when the next one begins, or the run is over: by then it was measured."""
        ticket, s = self.server.under_way, self.state
        if not over and (ticket is None or ticket.purpose is not Purpose.ROUND):
            return
        last = self.trace.last()["round"] if len(self.trace) else -1
        step = max(1, -(-s.round // 100))
        if s.round == last or (s.round % step and not over):
            return
        self._update_seconds()
        row = self.costs.measured(s, self.rows)
        if s.measured != s.round:
            row |= {"f": math.nan, "grad_norm": math.nan}
        self.trace.append(row)

    def _summary(self) -> Summary:
        """The content of summary.json; null for what the server does not know."""
        server, s, remotes = self.server, self.state, self.remotes
        row = self.costs.measured(s, self.rows)
        notes = (*server.unsafe, *s.notes)
        summary = description.summary(self.config, server.problem, row, *server.verdict(), None, notes)
        if not all(r.L_known for r in remotes):
            summary |= {"smoothness": "unknown", "kappa": None}
        rounds_of = dict(zip(server.names, s.participated.tolist(), strict=True))
        summary |= {"closing": server.closing, "participation": rounds_of, "counts": dict(vars(s.counts))}
        summary["settings"].append("closing")
        noise = self._noise()
        summary["noise"] = {"clients": noise, "releases": s.ticket} if any(noise.values()) else None
        return summary

    def _finish(self) -> FederationResult:
        self._record(over=True)
        self._update_seconds()
        status, message = self.server.verdict()
        if status is not Status.INTERRUPTED:  # the state on disk is one from which the run can go on
            self._save()
        s, summary = self.state, self._summary()
        if status is Status.INTERRUPTED and self.last_error:
            message += f" {self.last_error}"
            summary["message"] = message
        log(INFO, "\t%s", message)
        means, told = s.vectors.get(INFORMATION), None
        if means is not None:
            told = inference.pooled(means, s.vectors["x"], self.rows, tables.names(self.remotes, len(s.vectors["x"])))
        return FederationResult(
            arrays=self._arrays(),
            train_metrics_clientapp=self.round_metrics,
            evaluate_metrics_serverapp=self.evaluations,
            x=s.vectors["x"],
            status=status,
            message=message,
            trace=self.trace,
            summary=summary,
            warnings=tuple(summary["warnings"]),
            state=s,
            information=told,
        )


def _short(text: str) -> str:
    """The text; of a long one the beginning and the sha256."""
    return text if len(text) <= 1_000 else f"{text[:40]}... ({hashlib.sha256(text.encode()).hexdigest()})"


def _flat(arrays: ArrayRecord) -> Vector:
    """All arrays as one vector."""
    return np.concatenate([np.asarray(v.numpy(), dtype=np.float64).ravel() for v in arrays.values()])
