"""Training a network on many virtual clients at once: what ``proxskip.torch.Scaffnew`` does on processes, in one."""

from __future__ import annotations

import copy
import io
import time
import warnings
import zipfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from proxskip import theory
from proxskip.engines.torch.engine import TorchEngine
from proxskip.engines.torch.network_objective import weighted_losses
from proxskip.engines.torch.stacked_functions import Networks, Parts, portions
from proxskip.engines.torch.stacked_steps import StackedSteps, repeatable
from proxskip.links.cohorts import as_participation
from proxskip.links.network import Network
from proxskip.loop.listen import Record, check_callbacks, listening, tell_end, tell_record
from proxskip.loop.progress import shown
from proxskip.problems.federated import Problem
from proxskip.problems.torch_model import Model
from proxskip.randomness import stream
from proxskip.results import folder
from proxskip.results.atomic import atomic_write
from proxskip.results.checkpoint import in_words
from proxskip.results.result import Result, Status, Summary
from proxskip.results.trace import Trace
from proxskip.torch.flat_parameters import local_steps
from proxskip.torch.optimizer import check_settings
from proxskip.torch.stacked_optimizer import Make, StackedOptimizer, acts_by_entry, optimizers_of
from proxskip.torch.wire import check_codec, decode, encode
from proxskip.types import Array, Indices, InputError

Clients = Sequence[tuple[Tensor, Tensor]]
COLUMNS = ("round", "local_steps", "grad_evals", "floats_up", "floats_down", "bytes_up", "bytes_down", "seconds", "f")


@dataclass(frozen=True, eq=False, repr=False)
class Trained(Result):
    """What ``train`` returns.

    Args:
        module: a copy of the module with the trained weights; after a divergence, the best that were recorded.
        x: these weights as one vector.
        status, message: how it ended.
        trace: a record after every round, or every ``every`` rounds: costs, ``f`` (the mean loss of the clients on all
            their rows) and the metrics.
        h: the control variates, one row for each client.
        warnings: sentences about the run.
        settings: what ``train`` was called with, as far as it is plain.
    """

    module: torch.nn.Module = field(repr=False)
    x: Array = field(repr=False)
    status: Status
    message: str
    trace: Trace
    h: Array = field(repr=False)
    warnings: tuple[str, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict, repr=False)
    axes = ("rounds", "f")

    @property
    def rounds(self) -> int:
        """Communication rounds done."""
        return int(self.trace["round"][-1])

    @property
    def summary(self) -> Summary:
        """The settings, the status and the last record."""
        about = {**self.settings, "status": self.status.name, "success": False, "message": self.message}
        return Summary({**about, "warnings": list(self.warnings), "rounds": self.rounds, **self.trace.last()})


def train(
    module: torch.nn.Module, loss: Callable[..., Any], clients: Clients, optimizer: Make, *, p: float | None = None,
    period: int | None = None, control: str = "gradient", batch: int | None = None, outer: Make | None = None,
    chi: float = 1.0, codec: str = "float32", seed: int = 0, cohort: Any = None, rounds: int | None = None,
    seconds: float | None = None, every: int = 1, test: tuple[Any, Any] | None = None,
    metrics: Mapping[str, Callable[..., Any]] | None = None, device: str | torch.device | None = None,
    clients_at_once: int | None = None, together: bool | None = None, callbacks: Sequence[Any] = (),
    progress: bool | None = None, network: Network | str | None = None, out: str | Path | None = None,
) -> Trained:  # fmt: skip
    """Train a module on virtual clients, all of them at once on one device.

    It takes the steps that ``proxskip.torch.Scaffnew`` takes on as many processes under torchrun: local steps of an
    optimizer with the gradient g - h, then an average, and the new h.

    Args:
        module: any module without batch normalization, of which a copy is trained; see ``Model``.
        loss: ``loss(outputs, targets)``, a mean over the rows.
        clients: (inputs, targets) of each client, as from ``split``.
        optimizer: a function of parameters that returns the local optimizer, such as
            ``lambda params: torch.optim.AdamW(params, lr=3e-3)``; it may return several that share the parameters.
        p, period: communicate after each step with probability p, or after every ``period`` steps.
        control: how h is learned: "gradient" (two vectors a round; any optimizer), "step" (one vector; SGD without
            momentum), "anchor" (as FedLin, from full gradients at the common point; two vectors) or "none".
        batch: rows of a minibatch; all rows if not given.
        outer: a function of parameters that returns the optimizer of the outer step, as in DiLoCo.
        chi, codec: see ``Scaffnew``.
        seed: of everything that is drawn.
        cohort: who takes part in a round, as in ``proxskip.run``; their optimizers then begin anew in every round.
        rounds, seconds: when to stop.
        every: rounds between records.
        test: (inputs, targets) for the metrics, which need it.
        metrics: ``{"accuracy": f}`` with ``f(outputs, targets)``, a mean over the rows; each is a column of the trace.
        device: "cuda" if there is one, otherwise "cpu".
        clients_at_once: clients whose gradients are computed at once, if not as many as fit.
        together: whether one optimizer steps for all clients, on stacks of their parameters, which is right where each
            entry goes its own way. By default it does for the optimizers of PyTorch of which this is known, such as SGD
            and AdamW (not for classes derived from them); others step client by client, with a warning.
        callbacks, progress: as in ``proxskip.run``.
        network: a Network without losses, or the name of one: the trace gains ``sim_seconds``, the time over it.
        out: a new folder for the trace, the summary and the weights (``weights.npz``, an array for each name of the
            module's state). ``proxskip.load`` and ``proxskip.plot`` read it. A training that was broken off is not
            resumed: begin it again, in another folder.
    """
    if rounds is None and seconds is None:
        raise InputError("No stopping rule: pass rounds= or seconds=.")
    rounds = None if rounds is None else theory.whole("rounds", rounds)
    seconds = None if seconds is None else theory.positive("seconds", seconds)
    theory.whole("every", every)
    check_callbacks(callbacks)
    check_codec(codec)
    if not isinstance(module, torch.nn.Module):
        raise InputError("module must be a torch.nn.Module.")
    if metrics and (test is None or not isinstance(metrics, Mapping) or not all(map(callable, metrics.values()))):
        raise InputError('metrics need test=(inputs, targets), and are a dict of functions such as {"accuracy": f}.')
    place = TorchEngine(device, clients_at_once).device
    module = copy.deepcopy(module).to(place)
    problem = _problem(module, loss, clients, batch, test, metrics, place)
    weights = [q for q in module.parameters() if q.requires_grad]
    for local in optimizers_of(optimizer, weights):
        check_settings(local, p, period, control, chi, seed, ("step", "gradient", "none", "anchor"))
    if outer is not None:
        optimizers_of(outer, weights)
    participation = as_participation(cohort)
    participation.check(problem.n)
    network = Network.named(network) if isinstance(network, str) else network
    if network is not None:
        network.check(problem.n)
        if not network.reliable:
            raise InputError("train takes a network on which every client answers in every round; use proxskip.run.")
    state = Training(problem, optimizer, p, period, control, outer, chi, codec, seed, place, clients_at_once, together)
    settings: dict[str, Any] = {"method": _optimizer_names(optimizer, weights), "control": control}
    settings |= {"p": p} if period is None else {"period": period}
    rates = [float(group["lr"]) for local in optimizers_of(optimizer, weights) for group in local.param_groups]
    settings |= {"lr": rates[0] if len(set(rates)) == 1 else rates, "d": problem.d}
    settings |= {"batch": batch, "clients": problem.n, "chi": chi, "codec": codec}
    settings |= {"cohort": None if cohort is None else str(cohort), "seed": seed}
    settings |= {
        "outer": outer and _optimizer_names(outer, weights),
        "network": network and (network.name or "a Network"),
    }
    taken = {*COLUMNS, *settings, "sim_seconds", "status", "success", "message", "warnings", "rounds"} & {
        *(metrics or ())
    }
    if taken:
        raise InputError(f"the metric {min(taken)} has the name of a trace column or of a setting; rename it.")
    config = {"stop": {"rounds": rounds, "seconds": seconds}, **settings}
    # under a name that no method has, so that nobody resumes it
    described = config | {"method": "proxskip.torch.train", "parameters": {}, "optimizer": settings["method"]}
    if out is not None and folder.has_begun(Path(out)):
        raise InputError(f"{out} already holds a run; choose another folder.")
    keep = None if out is None else folder.create(out, described, False, None)
    with closing(keep) if keep else nullcontext(), shown("train", progress) as bars:
        result = _Run(state, participation, rounds, seconds, every, (*callbacks, *bars), config, network).go()
        if keep is not None:
            _write(keep, result, state)
    return result


def _write(keep: folder.Folder, result: Trained, state: Training) -> None:
    """The run folder of a training; the weights come first, since the summary says that all is there."""
    buffer = io.BytesIO()
    # a module may add other objects to its state
    named = {k: v for k, v in result.module.state_dict().items() if isinstance(v, Tensor)}
    arrays = {k: v.detach().cpu() for k, v in named.items()}
    # numpy has no bfloat16
    plain = {k: (v.float() if v.dtype == torch.bfloat16 else v).numpy() for k, v in arrays.items()}
    with zipfile.ZipFile(buffer, "w") as archive:  # np.savez refuses the name "file"
        for name, v in plain.items():
            with archive.open(f"{name}.npy", "w") as entry:
                np.lib.format.write_array(entry, v, allow_pickle=False)
    with in_words(keep.path):
        atomic_write(keep.path / "weights.npz", buffer.getvalue())
    vectors: dict[str, Any] = {"x0": np.asarray(state.model.start()), "server.x": result.x, "memory.h": result.h}
    vectors |= {"line.participated": state.participated} | result.trace.to_arrays("trace.")
    keep.finish(result.trace, folder.State(result.x, result.summary, vectors, {"round": result.rounds}))


def _problem(
    module: Any, loss: Any, clients: Clients, batch: int | None, test: Any, metrics: Any, device: torch.device
) -> Problem:
    """The clients as oracles, on the device; refused where they cannot be trained."""
    if not isinstance(clients, Sequence) or not clients or not all(map(_is_pair, clients)):
        raise InputError("clients must be a list with (inputs, targets) of each client; proxskip.torch.split makes it.")
    if test is not None and not (_is_pair(test) and len(test[0]) == len(test[1]) > 0):
        raise InputError("test must be (inputs, targets), with a target for each input.")
    moved: Any = None if test is None else tuple(torch.as_tensor(v).to(device) for v in test)
    if moved and not (moved[1].is_floating_point() or moved[1].dtype == torch.bool):
        moved = moved[0], moved[1].long()  # as Model does with the clients' own
    models = []
    for pair in clients:
        inputs, targets = (torch.as_tensor(v).to(device) for v in pair)
        models.append(Model(module, loss, inputs, targets, metrics=metrics, test=moved))
    problem = Problem(models)
    return problem if batch is None else problem.with_batch(batch)


def _is_pair(values: Any) -> bool:
    return isinstance(values, (tuple, list)) and len(values) == 2


def _optimizer_names(make: Make, params: list[Any]) -> str:
    return " + ".join(type(optimizer).__name__ for optimizer in optimizers_of(make, params))


class Training:
    """The state of a training between rounds: x, h, the parameters of all clients and their optimizers."""

    def __init__(
        self, problem: Problem, optimizer: Make, p: float | None, period: int | None, control: str, outer: Make | None,
        chi: float, codec: str, seed: int, device: torch.device, at_once: int | None, together: bool | None = None,
    ) -> None:  # fmt: skip
        self.problem, self.make, self.p, self.period, self.control = problem, optimizer, p, period, control
        self.chi, self.codec, self.seed, self.device = float(chi), codec, int(seed), device
        self.family = Networks(problem, device)
        self.model: Model = self.family.model
        self.dtype = self.model.torch_dtype
        self.steps = StackedSteps(self.family, self.seed, problem.batch, device, device.type == "cuda")
        self.x = torch.as_tensor(self.model.start()).to(device, self.family.dtype)
        self.h = torch.zeros((problem.n, problem.d), dtype=self.family.dtype, device=device)
        self.at_once = at_once or problem.n
        self.outer = None if outer is None else StackedOptimizer(outer, self._copies(1), False)
        weights = [torch.nn.Parameter(v[0]) for v in self._copies(1)]
        self.by_entry = acts_by_entry(optimizer, weights) if together is None else together
        self.members: Indices = np.zeros(0, dtype=np.int64)
        self.y: Parts = []
        self.round = self.local_steps = self.grad_evals = self.vectors = self.bytes_up = 0
        self.participated = np.zeros(problem.n, dtype=np.int64)

    def _copies(self, c: int) -> Parts:
        """The parameters of c clients that stand at x."""
        return [v.to(self.dtype) for v in self.family.parts(self.x.expand(c, -1))]

    def _join(self, members: Indices) -> None:
        """Let these clients take part, at x; their optimizers go on only where everybody takes part."""
        # a view of everybody's rows where all take part
        self.mine: Any = slice(None) if len(members) == self.problem.n else torch.as_tensor(members).to(self.device)
        if len(members) == self.problem.n == len(self.members):
            for v, x in zip(self.y, self.family.views(self.x), strict=True):
                v.copy_(x.expand_as(v))
        else:
            self.members, self.y = members, self._copies(len(members))
            self.optimizer = StackedOptimizer(self.make, self.y, self.by_entry)
            self.shift = self.family.parts(self.h[self.mine])
            self.raw = [torch.zeros_like(h) for h in self.shift] if self.control == "gradient" else []
            self.steps.forget()
        self._load_shift()
        for c in self.raw:
            c.zero_()

    def _load_shift(self) -> None:
        for v, h in zip(self.shift, self.family.views(self.h[self.mine]), strict=True):
            v.copy_(h)

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def go_round(self, members: Indices) -> bool:
        """A round of these clients; False where the average is not finite, and nothing was changed."""
        K = local_steps(self.seed, self.round, self.p, self.period)
        self._join(members)
        if self.control == "anchor":
            self._anchor()
        key = "train" if len(members) == self.problem.n and self.by_entry else None
        self.steps.repeat(self._step, key, K, members, self.round, 0)
        vectors = [self.family.stack(self.y).to(self.x.dtype).sub_(self.x)]
        if self.control == "gradient":
            vectors.append(self.family.stack(self.raw).div_(K).sub_(self.h[self.mine]))
        sent = self._sent(vectors)
        means = [v.mean(0) for v in sent]
        if not all(bool(torch.isfinite(m).all()) for m in means):
            return False
        if self.control == "gradient":
            self.h[self.mine] += sent[1].sub_(means[1])
        elif self.control == "step":
            rate = self.chi * (1.0 / K if self.p is None else self.p)
            self.h[self.mine] -= sent[0].sub_(means[0]).mul_(rate * self._over_lr())
        self._move(means[0])
        rows = self.problem.batch * len(members) if self.problem.batch else int(self.family.sizes[members].sum())
        self.round, self.local_steps = self.round + 1, self.local_steps + K * len(members)
        self.grad_evals += rows * K
        self.vectors += len(members) * (len(vectors) + (self.control == "anchor"))
        self.participated[members] += 1
        return True

    def _step(self, batch: Any) -> None:
        """A local step of all members."""
        gradients = self._gradient(batch)
        for c, g in zip(self.raw, gradients, strict=False):
            c.add_(g)
        if self.control != "none":
            gradients = [g - h.to(g.dtype) for g, h in zip(gradients, self.shift, strict=True)]
        self.optimizer.step(gradients)

    def _gradient(self, batch: Any) -> Parts:
        """With fewer clients at once as long as the device's memory is too small."""
        parts = [v.detach() for v in self.y]
        while True:
            try:
                return self.family.gradient(parts, portions(batch, self.at_once))
            except torch.OutOfMemoryError:
                if self.at_once == 1:
                    raise
                self.at_once = -(-min(self.at_once, len(self.members)) // 2)

    def _anchor(self) -> None:
        """FedLin's h: the full gradients at x, less their mean."""
        batch = self.family.batch(torch.as_tensor(self.members).to(self.device), None, None)
        with repeatable():
            G = self.family.stack(self._gradient(batch)).to(self.x.dtype)
        self.h[self.mine] = G - G.mean(0)
        self._load_shift()
        self.grad_evals += int(self.family.sizes[self.members].sum())
        self.bytes_up += G.numel() * G.element_size()

    def _sent(self, vectors: list[Tensor]) -> list[Tensor]:
        """What the server reads of each member's vectors."""
        if self.codec == "float32":
            self.bytes_up += sum(v.numel() * v.element_size() for v in vectors)
            return vectors
        order = self._columns()
        joined = torch.cat([v[:, order] for v in vectors], dim=1)
        read = torch.empty_like(joined)
        for row, i in enumerate(self.members.tolist()):
            payload = encode(joined[row], self.codec, self.seed, i, self.round)
            read[row] = decode(payload, self.codec, joined[row])
            self.bytes_up += payload.numel()
        back = torch.argsort(order)
        return [v[:, back] for v in read.split(self.problem.d, dim=1)]

    def _columns(self) -> Tensor:
        """The unknowns in the order in which the optimizer has its parameters."""
        columns = torch.arange(self.problem.d, device=self.device).split(self.family.numels)
        return torch.cat([columns[k] for k in self.optimizer.order()])

    def _over_lr(self) -> Tensor:
        """1 / lr of each unknown; 0 where that is 0: nothing moved there."""
        rates = [1.0 / lr if lr else 0.0 for lr in self.optimizer.learning_rates()]
        sizes = torch.tensor(self.family.numels, device=self.device)
        return torch.tensor(rates, dtype=self.x.dtype, device=self.device).repeat_interleave(sizes)

    def _move(self, mean: Tensor) -> None:
        if self.outer is None:
            self.x = self.x + mean
            return
        for v, x in zip(self.outer.parts, self.family.views(self.x[None]), strict=True):
            v.copy_(x)
        self.outer.step([g.to(self.dtype) for g in self.family.parts(-mean[None])])
        self.x = self.family.stack(self.outer.parts)[0].to(self.x.dtype)

    # -- records -------------------------------------------------------------------------------------------------------
    def vector(self) -> Array:
        """x, here."""
        x: Array = self.x.to("cpu", torch.float64, copy=True).numpy()
        return x

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def measured(self) -> dict[str, float]:
        """The numbers of a record, without the time."""
        f = sum(float(part) for part in weighted_losses(self.family, self.x, self.problem.weights, self.at_once))
        floats = float(self.vectors * self.problem.d)
        costs: dict[str, float] = {"round": self.round, "local_steps": self.local_steps, "grad_evals": self.grad_evals}
        costs |= {"floats_up": floats, "floats_down": floats}
        costs |= {"bytes_up": self.bytes_up, "bytes_down": floats * self.x.element_size()}
        return {**costs, "f": f, **self.model.measure(self.vector())}


class _Run:
    """Rounds, records and the end of a training."""

    def __init__(
        self, state: Training, participation: Any, rounds: int | None, seconds: float | None, every: int,
        callbacks: Sequence[Any], config: dict[str, Any], network: Network | None,
    ) -> None:  # fmt: skip
        self.state, self.participation, self.rounds, self.seconds, self.every = (
            state, participation, rounds, seconds, every
        )  # fmt: skip
        self.callbacks, self.config, self.spent, self.network, self.simulated = callbacks, config, 0.0, network, 0.0
        more = () if network is None else ("sim_seconds",)
        self.trace = Trace(COLUMNS + more + tuple(state.model.metrics))
        self.best: tuple[float, int, Array] = (np.inf, 0, state.vector())
        self.notes: list[str] = []
        if not state.by_entry:
            self.notes.append(
                "the optimizer is not known to act entry by entry, so it steps client by client; pass together=True if "
                "it does."
            )
            warnings.warn(self.notes[0], stacklevel=4)

    def go(self) -> Trained:
        """Until a limit, a divergence, a callback or the user ends it."""
        with listening(self.callbacks, self.config):
            end = self._record()
            try:
                while end is None:
                    end = self._round()
            except KeyboardInterrupt:
                end = Status.INTERRUPTED, f"interrupted in round {self.state.round + 1}."
                if self.trace["round"][-1] < self.state.round:
                    self._record()
            result = self._result(*end)
        tell_end(self.callbacks, result)
        return result

    def _round(self) -> tuple[Status, str] | None:
        state, began = self.state, time.perf_counter()
        members = self.participation.draw(stream(state.seed, state.round, "cohort"), state.problem.n, state.round)
        before = state.local_steps, state.bytes_up
        finite = state.go_round(members)
        if state.device.type == "cuda":
            torch.cuda.synchronize(state.device)
        self.spent += time.perf_counter() - began
        if not finite:
            return Status.DIVERGED, self._advice(state.round + 1)
        K = (state.local_steps - before[0]) // len(members)
        self._go_over_network(members, K, (state.bytes_up - before[1]) / len(members))
        end = None
        if self.rounds is not None and state.round >= self.rounds:
            end = Status.LIMIT, f"reached the limit of {self.rounds} rounds."
        elif self.seconds is not None and self.spent >= self.seconds:
            end = Status.LIMIT, f"reached the limit of {self.seconds:g} seconds."
        recorded = self._record() if end is not None or state.round % self.every == 0 else None
        return recorded or end

    def _go_over_network(self, members: Indices, K: int, up: float) -> None:
        """Simulated time: the slowest member's steps and ways; an anchor takes an exchange of its own, and a pass."""
        if self.network is None:
            return
        problem, traits = self.state.problem, self.network.traits(self.state.seed, members)
        share = self.network.server / len(members)
        vector = problem.d * self.state.x.element_size()

        def exchange(down: float, up: float, gradients: float) -> float:
            ways = down / np.minimum(traits.down, share) + up / np.minimum(traits.up, share)
            return float(np.max(2 * traits.latency + ways + gradients * traits.gradient))

        if self.state.control == "anchor":
            rows = self.state.family.sizes.mean()
            self.simulated += exchange(vector, vector, max(1.0, rows / problem.batch) if problem.batch else 1.0)
            up -= vector
        self.simulated += exchange(vector * (2 if self.state.control == "gradient" else 1), up, K)

    def _record(self) -> tuple[Status, str] | None:
        """Measure and tell; why the training ends, if it does."""
        numbers = self.state.measured() | {"seconds": self.spent}
        numbers |= {} if self.network is None else {"sim_seconds": self.simulated}
        x = self.state.vector()
        self.trace.append(numbers)
        if not np.isfinite(numbers["f"]) and not self.state.round:
            return Status.DIVERGED, f"the loss is {numbers['f']} at the start; check the clients' data."
        if not np.isfinite(numbers["f"]):
            return Status.DIVERGED, self._advice(self.state.round)
        if numbers["f"] < self.best[0]:
            self.best = numbers["f"], self.state.round, x
        why = tell_record(self.callbacks, self.state.round, Record(numbers, x))
        return None if why is None else (Status.STOPPED, why or "a callback ended it.")

    def _advice(self, at: int) -> str:
        ways = ["a smaller learning rate"]
        ways += ["period= in place of p="] if self.state.p is not None else []
        ways += ["chi below 1"] if self.state.control == "step" and self.state.chi == 1.0 else []
        f, round, _ = self.best
        return (
            f"diverged in round {at}: use {' or '.join(ways)}. The module is the best that was "
            f"recorded, of round {round} (f = {f:.4g})."
        )

    def _result(self, status: Status, message: str) -> Trained:
        x = self.best[2] if status is Status.DIVERGED else self.state.vector()
        module = self.state.model.module_at(x)
        h = self.state.h.to("cpu", torch.float64).numpy()
        settings = {k: v for k, v in self.config.items() if k != "stop"}
        return Trained(module, x, status, message, self.trace, h, tuple(self.notes), settings)
