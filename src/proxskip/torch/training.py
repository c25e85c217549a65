"""Training a network on many virtual clients at once: what ``proxskip.torch.Scaffnew`` does on processes, in one."""

from __future__ import annotations

import copy
import dataclasses
import hashlib
import io
import time
import warnings
import zipfile
from collections.abc import Mapping, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.optim import Optimizer

from proxskip import theory
from proxskip.engines.torch.engine import TorchEngine
from proxskip.networks import Network
from proxskip.participation import Participation, as_participation
from proxskip.problems.federated import Problem
from proxskip.problems.torch_model import Function, Model, tensors_of
from proxskip.results import folder as folders
from proxskip.results import run_text
from proxskip.results.atomic import atomic_write
from proxskip.results.checkpoint import differences, in_words
from proxskip.results.result import Result, Status, Summary
from proxskip.results.trace import Trace
from proxskip.running.interrupts import signals_caught
from proxskip.running.listen import Record, check_callbacks, listening, tell_end, tell_record
from proxskip.running.progress import shown
from proxskip.support.randomness import stream
from proxskip.torch.flat_parameters import named_after
from proxskip.torch.optimizer import check_local, check_server_step
from proxskip.torch.settings import Schedule, Settings, State, rate_at
from proxskip.torch.stacked_optimizer import Make, optimizers_of
from proxskip.torch.trainer import Training
from proxskip.types import Array, Indices, InputError

Clients = Sequence[Any]
"""(inputs, targets), a dict of tensors, or a map-style Dataset of each client."""
Metrics = Mapping[str, Function]
COLUMNS = ("round", "local_steps", "grad_evals", "floats_up", "floats_down", "bytes_up", "bytes_down", "seconds", "f")
ENDS = ("status", "success", "message", "warnings", "rounds")
METHOD = "proxskip.torch.train"


@dataclass(frozen=True, eq=False, repr=False)
class Trained(Result):
    """What ``train`` returns.

    Args:
        module: a copy of the module with the trained weights, in eval mode; after a divergence, the best that were
            recorded. Call its ``train()`` before you train it on, for the sake of dropout and batch normalization.
        x: these weights as one vector.
        status, message: how it ended.
        trace: a record after every round, or every ``every`` rounds: costs, ``f`` (the mean loss of the clients on all
            their rows) and the metrics.
        h: the control variates, one row for each client; None where there are none.
        of_clients: numbers of each client as arrays with a row for each record: "f", and the metrics if every client
            has a test set of its own.
        buffers: the module's buffers that moved by their names, with a row for each client, or one for all.
        warnings: sentences about the run.
        settings: what ``train`` was called with, as far as it is plain.
    """

    module: torch.nn.Module = field(repr=False)
    x: Array = field(repr=False)
    status: Status
    message: str
    trace: Trace
    h: Array | None = field(repr=False)
    of_clients: Mapping[str, Array] = field(default_factory=dict, repr=False)
    buffers: Mapping[str, Tensor] = field(default_factory=dict, repr=False)
    warnings: tuple[str, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict, repr=False)
    axes = ("rounds", "f")

    @property
    def rounds(self) -> int:
        """Communication rounds done."""
        return int(self.trace["round"][-1])

    def rows(self) -> list[tuple[str, str]]:
        method = ("method", str(self.settings["method"]))
        return [method, *run_text.of_training(self.trace.last()), *super().rows()]

    @property
    def summary(self) -> Summary:
        """The settings, the status and the last record."""
        about = {**self.settings, "status": self.status.name, "success": False, "message": self.message}
        chosen = {"settings": [name for name in self.settings if name != "seed"]}
        end = {"warnings": list(self.warnings), "rounds": self.rounds, **self.trace.last()}
        return Summary(about | chosen | end)


def train(
    module: torch.nn.Module, loss: Function, clients: Clients, optimizer: Make, *, p: float | None = None,
    period: int | None = None, epochs: float | None = None, batch: int | None = None,
    control: str = "gradient", correct: str = "inside",
    chi: float | None = None, mix: float | None = None, pull: float = 0.0, state: State | None = None,
    schedule: Schedule | None = None, outer: Make | None = None, codec: str = "float32", share: float | None = None,
    weights: str = "equal", normalize: bool = False, buffers: str | None = None, seed: int = 0, cohort: Any = None,
    rounds: int | None = None, seconds: float | None = None, every: int = 1, test: Any = None,
    metrics: Metrics | None = None, device: str | torch.device | None = None,
    clients_at_once: int | None = None, together: bool | None = None, callbacks: Sequence[Any] = (),
    progress: bool | None = None, network: Network | str | None = None, out: str | Path | None = None,
) -> Trained:  # fmt: skip
    """Train a module on virtual clients, all of them at once on one device.

    In a round every client takes K local steps from the common point x, and x moves to the mean of where they end:

        local step   y <- one step of ``optimizer`` with the gradient  g - h + pull (y - x)
        average      x <- x + mean (y - x),  or ``outer`` applied to the gradient  x - mean y
        then         h is learned as ``control`` says

    ``proxskip.torch.recipe`` has the settings of published methods by name.

    Args:
        module: any module, of which a copy is trained; see ``Model``, and ``buffers`` for batch normalization.
        loss: ``loss(outputs, targets)``, a mean over the rows; of dicts, ``loss(module, batch)``.
        clients: the data of each client: (inputs, targets), as from ``split``; a dict of tensors with one row per
            sample; or a map-style Dataset whose items are pairs or dicts, which is read once, at the beginning.
        optimizer: a function of parameters that returns the local optimizer, such as
            ``lambda params: torch.optim.AdamW(params, lr=3e-3)``; it may return several that share the parameters.
        p, period, epochs: communicate after each step with probability p, after every ``period`` steps, or after some
            passes of each client over its own rows.
        batch: rows of a minibatch, or all of a client that has fewer; all rows if not given.
        control: how h is learned, c being the mean of a client's gradients in a round: "gradient" (h = c - mean c; any
            optimizer, two vectors a round), "step" (the same read off y - x; one vector), "dual" (h -= pull (y - x) and
            x -= mean h / pull), "momentum" (h is the same for all: the gradient becomes (1 - mix) g + mix m, with m the
            last global step over K lr) or "none".
        correct: where h acts: "inside" the gradient, or "after" the optimizer's step, as y += lr h (with momentum
            y -= lr mix m), for "step" and "momentum". Inside, these two need SGD without momentum.
        chi: damps what h learns. By default 1 with full gradients, and 0.1 with minibatches, whose noise h repeats: it
            is then a moving mean of what some ten rounds teach.
        mix: see ``control``.
        pull: see above; 0 for none.
        state: what becomes of the local optimizers' memory (momentum, moments) after a round: "kept" by each client,
            "reset", or "shared" (averaged over the clients, which is sent and counted); or a dict of these by the names
            that PyTorch has, such as {"exp_avg_sq": "shared"}, which resets the others. By default it is kept where
            everybody takes part, and reset on cohorts.
        schedule: a function of the round, from 0 on, that returns a factor of the local learning rates; of a scheduler
            of PyTorch, ``every_round`` makes one.
        outer: a function of parameters that returns the optimizer of the outer step, as in DiLoCo.
        codec: "float32", "bfloat16", "natural", or "top-k": the ``share`` of the entries that are largest, of all that
            was not sent yet (error feedback).
        weights: "equal", or "rows": clients weigh as much as they have rows, in every mean and in ``f``.
        normalize: with unequal numbers of steps, scale what each client moved to their mean, as FedNova does.
        buffers: of a module that moves its buffers, such as the running means of batch normalization: "mean" averages
            them with the parameters (and counts them), "local" leaves each client its own. Where the module is
            evaluated it is in eval mode, and ``metrics`` on a common test set use the mean.
        seed: random seed.
        cohort: who takes part in a round, as in ``proxskip.run``.
        rounds, seconds: when to stop.
        every: rounds between records.
        test: data for the metrics, which need them, in the form of a client's; or a list of such, one for each client,
            whose weighted mean is then recorded.
        metrics: ``{"accuracy": f}`` with ``f(outputs, targets)``, a mean over the rows; of dicts, ``f(module, batch)``.
            Each is a column of the trace.
        device: "cuda" if there is one, otherwise "cpu".
        clients_at_once: clients whose gradients are computed at once, if not as many as fit.
        together: whether one optimizer steps for all clients, on stacks of their parameters, which is right where each
            entry goes its own way. By default it does for the optimizers of PyTorch of which this is known, such as SGD
            and AdamW (not for classes derived from them, nor with step hooks); others step client by client, with a
            warning.
        callbacks, progress: as in ``proxskip.run``.
        network: a Network without losses, or the name of one: the trace gains ``sim_seconds``, the time over it.
        out: a new folder for the trace, the summary and the weights (``weights.npz``, an array for each name of the
            module's state), which ``proxskip.load`` and ``proxskip.plot`` read. ``resume`` goes on from it.
    """
    settings = Settings(
        p, period, epochs, control, correct, chi, mix, pull, state, batch, weights, normalize, buffers, codec, share,
        theory.whole_seed(seed),
    )  # fmt: skip
    limits = Limits(rounds, seconds)
    limits.check(schedule)
    theory.whole("every", every)
    check_callbacks(callbacks)
    run = _built(
        module, loss, clients, optimizer, settings, outer, schedule, cohort, test, metrics, device, clients_at_once,
        together, network, every,
    )  # fmt: skip
    if out is not None and folders.has_begun(Path(out)):
        raise InputError(f"{out} already holds a run; choose another folder, or go on with proxskip.torch.resume.")
    keep = None if out is None else folders.create(out, run.config, False, None)
    with closing(keep) if keep else nullcontext():
        return run.go(limits, callbacks, progress, keep)


def resume(
    folder: str | Path, module: torch.nn.Module, loss: Function, clients: Clients, optimizer: Make, *,
    rounds: int | None = None, seconds: float | None = None, schedule: Schedule | None = None,
    outer: Make | None = None, cohort: Any = None, test: Any = None, metrics: Metrics | None = None,
    device: str | torch.device | None = None, clients_at_once: int | None = None, together: bool | None = None,
    callbacks: Sequence[Any] = (), progress: bool | None = None, network: Network | str | None = None,
) -> Trained:  # fmt: skip
    """Continue a training from its folder, also after it was killed; on a CPU the result is bitwise identical.

    Args:
        folder: what ``train`` got as ``out``. Numbers and words that ``train`` got are read from it.
        module, loss, clients, optimizer, schedule, outer, cohort, test, metrics, network: as ``train`` got them, since
            functions and objects are not in the folder.
        rounds, seconds: when to stop, counted from the beginning.
        device, clients_at_once, together, callbacks, progress: as in ``train``.
    """
    limits = Limits(rounds, seconds)
    limits.check(schedule)
    check_callbacks(callbacks)
    with closing(folders.reopen(Path(folder))) as keep:
        saved = keep.config
        if saved.get("method") != METHOD:
            raise InputError(f"{folder} holds no training but a run of {saved.get('method')}; use proxskip.resume.")
        run = _built(
            module, loss, clients, optimizer, Settings(**saved["settings"]), outer, schedule, cohort, test, metrics,
            device, clients_at_once, together, network, int(saved["every"]),
        )  # fmt: skip
        changes = differences(saved, run.config)
        if changes:
            raise InputError("this folder belongs to another training: " + "; ".join(changes) + ".")
        run.load(keep)
        run.check_loss()
        return run.go(limits, callbacks, progress, keep)


@dataclass(frozen=True)
class Limits:
    """When to stop."""

    rounds: int | None
    seconds: float | None

    def __post_init__(self) -> None:
        if self.rounds is None and self.seconds is None:
            raise InputError("No stopping rule: pass rounds= or seconds=.")
        if self.rounds is not None:
            theory.whole("rounds", self.rounds)
        if self.seconds is not None:
            theory.positive("seconds", self.seconds)

    def check(self, schedule: Schedule | None) -> None:
        """Refuse a schedule that gives no factor for one of the rounds."""
        for round in range(self.rounds or 1):
            rate_at(schedule, round)

    def reached(self, round: int, seconds: float) -> str | None:
        """The limit that is reached, in a sentence."""
        if self.rounds is not None and round >= self.rounds:
            return f"reached the limit of {self.rounds} rounds."
        if self.seconds is not None and seconds >= self.seconds:
            return f"reached the limit of {self.seconds:g} seconds."
        return None


# -- check and build ---------------------------------------------------------------------------------------------------
def _built(
    module: torch.nn.Module, loss: Function, clients: Clients, optimizer: Make, settings: Settings,
    outer: Make | None, schedule: Schedule | None, cohort: Any, test: Any, metrics: Metrics | None,
    device: str | torch.device | None,
    clients_at_once: int | None, together: bool | None, network: Network | str | None, every: int,
) -> Run:  # fmt: skip
    """Check all that was given, and make a run of it that has not begun."""
    if not isinstance(module, torch.nn.Module):
        raise InputError("module must be a torch.nn.Module.")
    if metrics and (test is None or not isinstance(metrics, Mapping) or not all(map(callable, metrics.values()))):
        raise InputError('metrics need test=, and are a dict of functions such as {"accuracy": f}.')
    place = TorchEngine(device, clients_at_once).device
    module = copy.deepcopy(module).to(place)
    problem = _problem(module, loss, clients, settings, test, metrics, place)
    weights = [q for q in module.parameters() if q.requires_grad]
    locals = optimizers_of(optimizer, weights)
    for local in locals:
        check_local(local)
    settings.check_optimizers(locals)
    check_server_step(settings.control, outer is not None)
    participation = as_participation(cohort)
    participation.check(problem.n)
    settings.check_cohort(cohort is None)
    network = Network.named(network) if isinstance(network, str) else network
    if network is not None:
        network.check(problem.n)
        if not network.reliable:
            raise InputError("train takes a network on which every client answers in every round; use proxskip.run.")
    training = Training(problem, optimizer, settings, outer, schedule, place, clients_at_once, together)
    about = {
        "data": hashlib.sha256(b"".join(f.fingerprint() for f in problem.clients)).hexdigest(),  # type: ignore[attr-defined]
        "optimizer": _described(locals),
        "outer": None if outer is None else _described(optimizers_of(outer, weights)),
        "schedule": None if schedule is None else [rate_at(schedule, round) for round in range(4)],
        "cohort": None if cohort is None else str(cohort),
        "network": network and (network.name or "a Network"),
        "metrics": sorted(metrics or ()),
    }
    summary = _summary(settings, about, locals, problem)
    taken = {*COLUMNS, *ENDS, "sim_seconds", *summary} & {*(metrics or ())}
    if taken:
        raise InputError(f"the metric {min(taken)} has the name of a trace column or of a setting; rename it.")
    config = {"method": METHOD, "parameters": {}, "every": every, "settings": dataclasses.asdict(settings), **about}
    return Run(training, participation, network, config, summary)


def _summary(settings: Settings, about: dict[str, Any], locals: list[Optimizer], problem: Problem) -> dict[str, Any]:
    """The settings as a summary shows them, without those that say nothing."""
    rates = [float(group["lr"]) for local in locals for group in local.param_groups]
    given = {name: v for name, v in dataclasses.asdict(settings).items() if v is not None}
    return {
        "method": " + ".join(type(local).__name__ for local in locals),
        "lr": rates[0] if len(set(rates)) == 1 else rates,
        "d": problem.d,
        "clients": problem.n,
        **given,
        **{name: about[name] for name in ("outer", "cohort", "network")},
    }


def _described(optimizers: list[Optimizer]) -> str:
    """Optimizers by their classes and numbers."""
    return "; ".join(
        f"{type(o).__name__}({', '.join(f'{k}={v}' for k, v in group.items() if k != 'params')})"
        for o in optimizers
        for group in o.param_groups
    )


def _problem(
    module: torch.nn.Module,
    loss: Function,
    clients: Clients,
    settings: Settings,
    test: Any,
    metrics: Metrics | None,
    device: torch.device,
) -> Problem:
    """The clients as oracles, on the device; refused where they cannot be trained."""
    if not isinstance(clients, Sequence) or not clients:
        raise InputError("clients must be a list with the data of each client; proxskip.torch.split makes it.")
    tests = test if _one_for_each(test, len(clients)) else [test] * len(clients)
    moved = {id(data): None if data is None else tensors_of(data, device) for data in tests}
    models = []
    for i, (data, own_test) in enumerate(zip(clients, tests, strict=True)):
        try:
            tensors, own = tensors_of(data, device), moved[id(own_test)]
            models.append(
                Model(module, loss, tensors, metrics=metrics, test=own, may_move=settings.buffers is not None)
            )
        except InputError as error:
            raise InputError(f"client {i}: {error}") from None
    rows_of_each = np.array([f.N for f in models], dtype=np.float64)
    return Problem(models, rows_of_each if settings.weights == "rows" else np.ones(len(models)))


def _one_for_each(test: Any, count: int) -> bool:
    """Whether there is a test set for each client, and not one for all."""
    if not isinstance(test, list) or any(isinstance(data, Tensor) for data in test):
        return False
    if len(test) != count:
        raise InputError(f"test has {len(test)} test sets for {count} clients; give one for each, or one for all.")
    return True


# -- run and write -----------------------------------------------------------------------------------------------------
class Run:
    """Rounds, records and the end of a training."""

    def __init__(
        self, training: Training, participation: Participation, network: Network | None, config: dict[str, Any],
        settings: dict[str, Any],
    ) -> None:  # fmt: skip
        self.training, self.participation, self.network = training, participation, network
        self.config, self.settings = config, settings
        more = () if network is None else ("sim_seconds",)
        self.trace = Trace(COLUMNS + more + tuple(training.model.metrics))
        self.spent = self.simulated = 0.0
        self.of_clients: dict[str, list[Array]] = {}
        self.best_f, self.best_round = np.inf, 0
        self.best_x, self.best_buffers = training.vector(), training.common_buffers()
        self.notes: list[str] = []
        if not training.by_entry:
            self._note(
                "the optimizer is not known to act entry by entry, so it steps client by client; pass together=True if "
                "it does."
            )
        if training.family.apart:
            self._note("PyTorch cannot batch this module, so that gradients are computed client by client.")

    def _note(self, sentence: str) -> None:
        self.notes.append(sentence)
        warnings.warn(sentence, stacklevel=5)

    def go(
        self, limits: Limits, callbacks: Sequence[Any], progress: bool | None, keep: folders.Folder | None
    ) -> Trained:
        """Until a limit, a divergence, a callback or the user ends it; the first Ctrl-C lets the round end."""
        interrupted, config = Event(), {"stop": dataclasses.asdict(limits), **self.settings}
        with shown("train", progress) as bars, signals_caught(interrupted):
            heard = (*callbacks, *bars)
            with listening(heard, config):
                end = self._record(heard) if not len(self.trace) else None
                if keep is not None:
                    keep.begin(self._snapshot(Status.INTERRUPTED, "not finished."))
                reached = limits.reached(self.training.round, self.spent)
                if end is None and reached:
                    end = Status.LIMIT, reached
                while end is None:
                    end = self._round(limits, heard, interrupted, keep)
                result = self._result(*end)
                if keep is not None:
                    _write_weights(keep.path, result.module)
                    keep.finish(self.trace, self._snapshot(*end))
            tell_end(heard, result)
        return result

    def _round(
        self, limits: Limits, heard: Sequence[Any], interrupted: Event, keep: folders.Folder | None
    ) -> tuple[Status, str] | None:
        training, began = self.training, time.perf_counter()
        seed = training.settings.seed
        members = self.participation.draw(stream(seed, training.round, "cohort"), training.problem.n, training.round)
        before = training.local_steps, training.bytes_up
        finite = training.go_round(members)
        if training.device.type == "cuda":
            torch.cuda.synchronize(training.device)
        self.spent += time.perf_counter() - began
        if not finite:
            return Status.DIVERGED, self._advice(training.round + 1)
        K = (training.local_steps - before[0]) // len(members)
        self._go_over_network(members, K, (training.bytes_up - before[1]) / len(members))
        end: tuple[Status, str] | None = None
        reached = limits.reached(training.round, self.spent)
        if reached:
            end = Status.LIMIT, reached
        elif interrupted.is_set():
            end = Status.INTERRUPTED, f"interrupted after round {training.round}."
        if end is None and training.round % self.config["every"]:
            return None
        end = self._record(heard) or end
        if keep is not None and end is None and keep.due(training.round):
            keep.save(self._snapshot(Status.INTERRUPTED, "not finished."))
        return end

    def _go_over_network(self, members: Indices, K: int, up: float) -> None:
        """Simulated time: the slowest member's steps and ways."""
        if self.network is None:
            return
        training = self.training
        traits = self.network.traits(training.settings.seed, members)
        share = self.network.server / len(members)
        down = training.problem.d * training.x.element_size() * (2 if training.control == "gradient" else 1)
        ways = down / np.minimum(traits.down, share) + up / np.minimum(traits.up, share)
        self.simulated += float(np.max(2 * traits.latency + ways + K * traits.gradient))

    def _record(self, heard: Sequence[Any]) -> tuple[Status, str] | None:
        """Measure and tell; why the training ends, if it does."""
        numbers, of_clients = self.training.measured()
        numbers["seconds"] = self.spent
        for name, values in of_clients.items():
            self.of_clients.setdefault(name, []).append(values)
        if self.network is not None:
            numbers["sim_seconds"] = self.simulated
        x, round = self.training.vector(), self.training.round
        self.trace.append(numbers)
        if not np.isfinite(numbers["f"]) and not round:
            return Status.DIVERGED, f"the loss is {numbers['f']} at the start; check the clients' data."
        if not np.isfinite(numbers["f"]):
            return Status.DIVERGED, self._advice(round)
        if numbers["f"] < self.best_f:
            self.best_f, self.best_round = numbers["f"], round
            self.best_x, self.best_buffers = x, self.training.common_buffers()
        why = tell_record(heard, round, Record(numbers, x))
        if why is None:
            return None
        reason = f": {why.rstrip('.')}." if why else "."
        return Status.STOPPED, f"stopped by a callback after {round} rounds{reason}"

    def _advice(self, at: int) -> str:
        ways = ["a smaller learning rate"]
        if self.training.settings.p is not None:
            ways.append("period= in place of p=")
        if self.training.control in ("step", "gradient"):
            ways.append(f"chi= below {self.training.chi:.2g}")
        return (
            f"diverged in round {at}: use {' or '.join(ways)}. The module is the best that was "
            f"recorded, of round {self.best_round} (f = {self.best_f:.4g})."
        )

    def _result(self, status: Status, message: str) -> Trained:
        training = self.training
        x, common = training.vector(), training.common_buffers()
        if status is Status.DIVERGED:
            x, common = self.best_x, self.best_buffers
        module = training.model.module_at(x).eval()
        names = training.model.moving
        for name, v in zip(names, common, strict=True):
            module.get_buffer(name).copy_(v)
        h = training.h.to("cpu", torch.float64).numpy() if len(training.h) == training.problem.n else None
        of_clients = {name: np.array(rows) for name, rows in self.of_clients.items()}
        buffers = dict(zip(names, training.buffers, strict=True))
        return Trained(
            module, x, status, message, self.trace, h, of_clients, buffers, tuple(self.notes), self.settings
        )  # fmt: skip

    # -- the folder --------------------------------------------------------------------------------------------------
    def _snapshot(self, status: Status, message: str) -> folders.State:
        """All of this moment, as a checkpoint holds it."""
        result = self._result(status, message)
        arrays: dict[str, Any] = {"x0": np.asarray(self.training.model.start()), "server.x": result.x}
        arrays |= {"line.participated": self.training.participated.copy(), **self.trace.to_arrays("trace.")}
        arrays |= {f"of_clients.{name}": rows for name, rows in result.of_clients.items()}
        if result.h is not None:
            arrays["memory.h"] = result.h
        state = self.training.saved() | {name: getattr(self, name) for name in NUMBERS}
        state |= {f"best.buffers.{k}": v for k, v in enumerate(self.best_buffers)}
        state["best.x"] = torch.from_numpy(self.best_x)
        kept, meta = _packed(state)
        return folders.State(result.x, result.summary, arrays | kept, meta)

    def load(self, keep: folders.Folder) -> None:
        """Go on from the folder's checkpoint."""
        assert keep.checkpoint is not None
        arrays = keep.checkpoint.arrays
        state = _unpacked(arrays, keep.checkpoint.meta, self.training.device)
        self.training.load(state)
        self.trace = Trace.from_arrays(arrays, "trace.")
        self.of_clients = {name: list(rows) for name, rows in named_after("of_clients.", arrays).items()}
        for name in NUMBERS:
            setattr(self, name, state[name])
        self.best_x = state["best.x"].numpy()
        self.best_buffers = [state[f"best.buffers.{k}"] for k in range(len(self.best_buffers))]
        if keep.checkpoint.note is not None:
            self._note(keep.checkpoint.note)

    def check_loss(self) -> None:
        """Refuse another loss than the one whose value the last record has."""
        last = self.trace.last()
        if last["round"] != self.training.round:  # a training that diverged has no record of where it stands
            return
        f = self.training.measured()[0]["f"]
        rounding = torch.finfo(self.training.dtype).eps ** 0.5  # sums differ a little from device to device
        if abs(f - last["f"]) > rounding * (1.0 + abs(last["f"])):
            raise InputError(
                f"the loss is {f:.6g} where this training recorded {last['f']:.6g}; pass the loss that train got."
            )


NUMBERS = ("spent", "simulated", "best_f", "best_round")


def _packed(state: Mapping[str, Tensor | float]) -> tuple[dict[str, Array], dict[str, Any]]:
    """Tensors as arrays, and besides them the numbers and what the tensors were."""
    arrays, numbers, tensors = {}, {}, {}
    for name, v in state.items():
        if isinstance(v, Tensor):
            wide = torch.float64 if v.is_floating_point() else torch.int64
            kind = v.dtype if v.dtype in (torch.float32, torch.float64) else wide
            arrays[f"state.{name}"] = v.detach().to("cpu", kind).numpy().copy()
            tensors[name] = [str(v.dtype).removeprefix("torch."), "cpu" if v.device.type == "cpu" else "device"]
        else:
            numbers[name] = v
    return arrays, {"numbers": numbers, "tensors": tensors}


def _unpacked(arrays: Mapping[str, Array], meta: Mapping[str, Any], device: torch.device) -> dict[str, Any]:
    """What ``_packed`` was given."""
    state = dict(meta["numbers"])
    for name, (kind, where) in meta["tensors"].items():
        v = torch.from_numpy(arrays[f"state.{name}"].copy())
        state[name] = v.to(device if where == "device" else "cpu", getattr(torch, kind))
    return state


def _write_weights(path: Path, module: torch.nn.Module) -> None:
    """The module's state as an array for each name, without pickle."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:  # np.savez refuses the name "file"
        for name, v in module.state_dict().items():
            if not isinstance(v, Tensor):  # a module may add other objects to its state
                continue
            plain = v.detach().cpu()
            if plain.dtype == torch.bfloat16:  # which numpy has not
                plain = plain.float()
            with archive.open(f"{name}.npy", "w") as entry:
                np.lib.format.write_array(entry, plain.numpy(), allow_pickle=False)
    with in_words(path):
        atomic_write(path / "weights.npz", buffer.getvalue())
