"""Scaffnew around any PyTorch optimizer: local steps with a control variate, then one all-reduce."""

from __future__ import annotations

import warnings
from collections import namedtuple
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch import Tensor
from torch.optim import Optimizer

from proxskip.torch.flat_parameters import (
    FlatParameters,
    check_shards,
    complete,
    digest,
    local,
    named_after,
    shard_of,
)
from proxskip.torch.rule import news
from proxskip.torch.settings import Settings, State
from proxskip.torch.wire import Part, SynchronizationError, Wire, slices
from proxskip.types import InputError

VECTORS = {"step": ("h",), "gradient": ("h", "c"), "dual": ("h", "mean_h"), "momentum": ("h",), "none": ()}
"""The vectors that a rank needs besides x, for each way of learning h."""
BEGIN_AT_ZERO = (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW)
"""Optimizers whose memory is zero when they begin."""
Groups = list[dict[str, Any]]
"""Parameter groups of an optimizer."""


_Note = namedtuple("_Note", "astray settings shapes loaded rank ranks rounds place x")
"""What a rank tells the others in ``meet``, in numbers."""


class ScaffnewOptimizer(Optimizer):  # type: ignore[misc]
    """Local steps of an optimizer, each shifted by a learned control variate h, and an average now and then.

    K. Mishchenko, G. Malinovsky, S. Stich, P. Richtarik, ProxSkip, ICML 2022, arXiv:2202.09357. With y the parameters
    of this rank, x the last common point and g the gradient that ``backward`` left:

        local step   y  <- one step of ``optim`` with the gradient  g - h + pull (y - x)
        then, after K of them,
        average      x+  = x + mean (y - x),  or  ``outer`` applied to the gradient  x - mean y
        "step"       h  += chi (p/lr) (mean y - y)         one vector; for plain SGD, with p = 1/K where K is fixed
        "gradient"   h  += chi (c - mean c - h),  c the mean of g    two vectors; for any optimizer
        "dual"       h  -= chi pull (y - x),  x+ -= mean h / pull   two vectors, one is sent; for any optimizer
        "momentum"   h is the same on all ranks, see ``train``       one vector
        "none"       h   = 0                               LocalSGD or, with ``outer``, DiLoCo: for comparison

    The sum of h over the ranks stays zero, except with "dual" and "momentum". Call ``step()`` once per local step, on
    every rank; it communicates by itself. x and h are changed together, after the all-reduce has succeeded.

    Args:
        optim: the local optimizer.
        p: communicate after each step with this probability, drawn from ``seed`` alike on all ranks.
        period: or communicate after every ``period`` steps. Give one of the two.
        control: how h is learned.
        correct, mix, pull: as in ``train``: where h acts, the weight of the last global step with "momentum", and the
            strength of the pull towards x.
        state: what becomes of the local optimizer's memory after a round: "kept", "reset" (of SGD, Adam and AdamW),
            "shared" (averaged over the ranks), or a dict of these by the names that PyTorch has; see ``train``.
        outer: an optimizer over the same parameters, for the outer step of DiLoCo (Douillard et al., 2023,
            arXiv:2311.08105).
        chi: damps the update of h: 1 is the paper's, and right with full gradients. If not given, it is 0.1, as in
            ``train`` with minibatches.
        seed: the same on all ranks.
        group: the process group to average over; all ranks if not given.
        codec: "float32" (or float64 for such parameters), "bfloat16" (2 bytes) or "natural" (9 bits), for what is sent:
            y - x, and c - h. With full gradients both go to zero at a solution, so that the rounding does too. The
            first is an all-reduce in buckets; the others gather the payloads of all ranks, so that from 5 ranks on
            bfloat16 brings more bytes to a rank than float32 in a ring, and natural from 8 on: see ``bytes_received``.
            "top-k", for ``control="none"``, sends the ``share`` of the entries that are largest, of all that was not
            sent yet (error feedback).
        share: see ``codec``.
        buffers: tensors that are averaged, in full precision, whenever the parameters are: ``module.buffers()`` for
            batch normalization, whose running means would otherwise differ between the ranks. Integers stay.
    """

    def __init__(
        self,
        optim: Optimizer,
        *,
        p: float | None = None,
        period: int | None = None,
        control: str = "step",
        correct: str = "inside",
        outer: Optimizer | None = None,
        chi: float | None = None,
        mix: float | None = None,
        pull: float = 0.0,
        state: State = "kept",
        seed: int = 0,
        group: dist.ProcessGroup | None = None,
        codec: str = "float32",
        share: float | None = None,
        buffers: Iterable[Tensor] = (),
    ) -> None:
        check_local(optim)
        self._given = Settings(
            p=p, period=period, control=control, correct=correct, chi=chi, mix=mix, pull=pull, state=state, seed=seed,
            codec=codec, share=share,
        )  # fmt: skip
        self._given.check_optimizers([optim])
        damped = any(group.get("dampening") for group in optim.param_groups)
        if self._given.resets and (damped or type(optim) not in BEGIN_AT_ZERO):
            raise InputError('state="reset" takes Adam, AdamW and SGD without dampening, whose memory begins at zero.')
        check_server_step(control, outer is not None)
        _check_outer(optim, outer)
        self.optim, self.outer, self.control = optim, outer, control
        super().__init__(optim.param_groups, optim.defaults)
        self.wire = Wire(group, codec, share, seed)
        self.flat = FlatParameters(optim, VECTORS[control] + (("error",) if codec == "top-k" else ()))
        check_shards(self.flat.params, self.wire.ranks, self.wire.ranks[self.wire.rank])
        self.weight = -mix if mix is not None else 1.0
        """Of h in a step: with "momentum" it is the last global step, which is added."""
        self.buffers = [v for v in buffers if v.is_floating_point()]
        self._settings = str(self._given)
        self._met = self._loaded = False
        self._whose = (self.wire.rank, self.wire.n)

    # learning rates and state live in the local optimizer, where schedulers and checkpoints reach them
    @property
    def param_groups(self) -> Groups:
        """Those of the local optimizer."""
        groups: Groups = self.optim.param_groups
        return groups

    @param_groups.setter
    def param_groups(self, value: Groups) -> None:
        """Ignored: the base class sets its own."""

    @property
    def state(self) -> dict[Tensor, dict[str, Any]]:
        """That of the local optimizer."""
        state: dict[Tensor, dict[str, Any]] = self.optim.state
        return state

    @state.setter
    def state(self, value: dict[Tensor, dict[str, Any]]) -> None:
        """Ignored: the base class sets its own."""

    @property
    def rounds(self) -> int:
        """Communications so far."""
        return self.flat.round

    @property
    def steps(self) -> int:
        """Local steps so far, those of rounds before this rank joined among them: where a scheduler has to stand."""
        return sum(map(self._given.local_steps, range(self.rounds))) + self.flat.local_step

    @property
    def synchronized(self) -> bool:
        """Whether the parameters (and ``buffers``) of all ranks are equal now, as after the last step of a round."""
        return self.flat.local_step == 0

    @property
    def bytes_sent(self) -> int:
        """The payload that this rank has sent."""
        return self.wire.bytes_sent

    @property
    def bytes_received(self) -> int:
        """What it received for that, if the backend works in a ring: with a codec, the payloads of all other ranks."""
        return self.wire.bytes_received

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Refused: the ranks would not agree on what they average."""
        if any(param_group is g for g in self.optim.param_groups):
            return  # the base class adds the groups of the local optimizer one by one
        raise InputError("parameters cannot be added later; create the optimizer again with all of them.")

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.optim.zero_grad(set_to_none)

    def __getstate__(self) -> NoReturn:
        """Refused: a copy would lose the process group and the parameters."""
        raise InputError("the optimizer cannot be pickled or copied; save what its state_dict() returns.")

    # -- steps ---------------------------------------------------------------------------------------------------------
    @torch.no_grad()  # type: ignore[untyped-decorator]
    def step(self, closure: Callable[[], Any] | None = None, skip_nonfinite: bool = False) -> Any:
        """One local step, and the average if it is due.

        Args:
            skip_nonfinite: leave the step out if a gradient is not finite. With a GradScaler call
                ``scaler.unscale_(optimizer)``, ``optimizer.step(skip_nonfinite=True)`` and ``scaler.update()``; its own
                ``step`` would not come to the average.
        """
        self._given.check_optimizers([self.optim])  # a scheduler may have turned momentum on
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        if self._is_for_show():
            self._make_state()
            return loss
        if not self._met:
            self.meet()
        stepped, given = not skip_nonfinite or self._finite(), self._given
        if stepped:
            inside = 0.0 if given.correct == "after" else self.weight
            share = 1.0 - (given.mix or 0.0) if inside else 1.0
            self.flat.shift(share, inside, given.pull)
            self.optim.step()
            if given.correct == "after":
                self.flat.shift_after(self.param_groups, self.weight)
        self.flat.count(self.param_groups, stepped)
        if self.flat.local_step >= self._given.local_steps(self.rounds):
            self._average()
        return loss

    def _is_for_show(self) -> bool:
        """Whether this is the step of zero with which torch.distributed.checkpoint makes an optimizer's state."""
        gradients = (q.grad for q in self.flat.params if q.grad is not None)
        empty = not self.state and all(float(g["lr"]) == 0.0 for g in self.param_groups)
        return empty and not any(bool(local(g).any()) for g in gradients)

    def _make_state(self) -> None:
        """Let both optimizers make their state by a step of zero."""
        self.optim.step()
        if self.outer is None:
            return
        rates = [group["lr"] for group in self.outer.param_groups]
        for group in self.outer.param_groups:
            group["lr"] = 0.0
        self.outer.step()
        for group, lr in zip(self.outer.param_groups, rates, strict=True):
            group["lr"] = lr

    def _finite(self) -> bool:
        gradients = [q.grad for q in self.flat.params if q.grad is not None]
        return all(bool(torch.isfinite(local(g)).all()) for g in gradients)

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def _average(self) -> None:
        """Communicate; nothing is changed before the last check."""
        f = self.flat
        self._compare_rates()
        if _trainable(self.optim) - {id(q) for q in f.params}:
            raise InputError("parameters were unfrozen after creation; create the optimizer again to average them too.")
        vectors: list[Part] = [self._moved]
        if self.control == "gradient":
            vectors.append(self._mean_gradient)
        means, sents = self.wire.average(vectors, f.x, f.round)
        if not all(bool(torch.isfinite(m).all()) for m in means):
            raise SynchronizationError(
                f"the average of round {f.round} is not finite, so a rank diverged; the round was not committed. Use a "
                "smaller learning rate or chi."
            )
        others = self._others()
        mean_others = self._mean_of(others)
        if self.control != "none":
            self._learn(means, sents)
        if len(f.error):
            f.error.copy_(self._moved(slice(0, f.size)) - sents[0](slice(0, f.size)))
        for v, mean in zip(others, mean_others, strict=True):
            v.copy_(mean)
        self._reset()
        self._move(means[0])
        f.round += 1
        f.restart()

    def _moved(self, s: slice) -> Tensor:
        """How far the parameters moved in this round, with what was not sent before."""
        moved = self.flat.flat(s).sub_(self.flat.x[s])
        return moved.add_(self.flat.error[s]) if len(self.flat.error) else moved

    def _mean_gradient(self, s: slice) -> Tensor:
        """The mean gradient less h."""
        return self.flat.c[s] / max(self.flat.taken, 1) - self.flat.h[s]

    def _over_steps(self, s: slice) -> Tensor:
        """1 / (K lr)."""
        return self.flat.over_lr(s).mul_(self._given.p or 1.0 / self.flat.local_step)

    def _learn(self, means: list[Tensor], sents: list[Part]) -> None:
        h, chi = self.flat.h, self._given.damping(minibatches=True)
        for s in slices(self.flat.size):
            # a copy, since ``news`` uses up what was sent
            sent, mean = [part(s).clone() for part in sents], [m[s] for m in means]
            h[s].add_(news(self.control, h[s], sent, mean, self._over_steps(s), self._given.pull), alpha=chi)
        if self.control == "dual":
            self.flat.mean_h.add_(means[0], alpha=-chi * self._given.pull)

    def _others(self) -> list[Tensor]:
        """What is averaged besides the parameters: buffers, and memory of the local optimizer that is shared."""
        return [*self.buffers, *(v for name, v in self._memory() if self._given.rule_of(name) == "shared")]

    def _memory(self) -> Iterator[tuple[str, Tensor]]:
        """What the local optimizer remembers of each entry, by its name."""
        for q in self.flat.params:
            for name, v in sorted(self.state.get(q, {}).items()):
                if isinstance(v, Tensor) and v.shape == q.shape:
                    yield name, local(v)

    def _reset(self) -> None:
        """Forget what is not kept for the next round; with "reset" for all of it the counts of steps, too."""
        for name, v in self._memory():
            if self._given.rule_of(name) == "reset":
                v.zero_()
        if self._given.resets:
            for state in self.state.values():
                if "step" in state:
                    state["step"].zero_()

    def _mean_of(self, tensors: list[Tensor]) -> list[Tensor]:
        """Their means over the ranks, by one all-reduce."""
        if not tensors:
            return []
        joined = torch.cat([v.reshape(-1).to(self.flat.x.dtype) for v in tensors])
        parts = self.wire.mean(joined).split([v.numel() for v in tensors])
        return [part.view_as(v) for part, v in zip(parts, tensors, strict=True)]

    def _compare_rates(self) -> None:
        """Refuse learning rates that differ between ranks: h would not sum to zero, or x would differ."""
        outer = [] if self.outer is None else [float(g["lr"]) for g in self.outer.param_groups]
        mine = torch.tensor([*self.flat.mean_lrs(), *outer], dtype=torch.float64, device=self.flat.x.device)
        if any(not torch.equal(other, mine) for other in self.wire.gather(mine)):
            raise InputError(
                "the ranks have different learning rates, or they resumed at different steps; use the same schedule on "
                "all of them, and load the checkpoints of one step."
            )

    def _move(self, mean: Tensor) -> None:
        f = self.flat
        if self.control == "dual":
            f.x.sub_(f.mean_h, alpha=1.0 / self._given.pull)
        if self.outer is None:
            f.x += mean
            f.put(f.x)
            return
        f.put(f.x)
        gradients = [q.grad for q in f.params]
        for q, part in zip(f.params, f.views(mean.neg_()), strict=True):
            q.grad = torch.zeros_like(q)
            local(q.grad).copy_(part)
        self.outer.step()
        for q, g in zip(f.params, gradients, strict=True):
            q.grad = g
        f.x.copy_(f.flat(slice(0, f.size)))

    # -- who is there --------------------------------------------------------------------------------------------------
    @torch.no_grad()  # type: ignore[untyped-decorator]
    def meet(self) -> None:
        """Compare notes with the other ranks, and repair what differs; the first ``step`` calls it.

        If all ranks continue from their own states of one round, nothing changes. Otherwise all take over the x of the
        rank that is furthest (the first of several) and begin a round there: ranks without a state or with an older
        one, with other parameters, or with states saved by other ranks or another number of them. Each rank keeps its h
        (a new one has none), minus the mean, so that h sums to zero again; with "dual" the mean is what is adapted.
        """
        notes = self._notes(astray=not self._met and not self._is_ready())
        # raised on all ranks, or the others would wait for the one that raises
        if any(note.astray for note in notes):
            raise InputError(
                "the parameters of a rank do not match its checkpoint; also load the model's state of the same rank "
                "and step."
            )
        settings, shapes = {note.settings for note in notes}, {note.shapes for note in notes}
        for different, what in ((settings, "settings of the optimizer"), (shapes, "shapes of the parameters")):
            if len(different) > 1:
                raise InputError(f"the {what} differ between the ranks; use the same everywhere.")
        self._met = True
        loaded = [note.loaded for note in notes]
        everyone = {(r, self.wire.n) for r in range(self.wire.n)} == {(note.rank, note.ranks) for note in notes}
        one_round = len({(note.loaded, note.place) for note in notes}) == 1
        one_x = len({note.x for note in notes}) == 1
        if everyone and one_round and one_x and (not any(loaded) or self._sums_to_zero()):
            return
        if self.outer is not None and not one_round:
            self.outer.state.clear()  # its momentum must be the same on all ranks
        self._take_over([2 * note.rounds + note.loaded for note in notes])
        if any(loaded) and not self._loaded:
            warnings.warn(
                f"rank {self.wire.rank} joins at round {self.rounds} without a state of its own; the control variates "
                "of all ranks were adapted.",
                stacklevel=3,
            )
        elif all(loaded) and self.wire.rank == 0:
            warnings.warn(
                f"the checkpoints do not match these {self.wire.n} ranks; all begin a round at the same x, and the "
                "control variates of all ranks were adapted.",
                stacklevel=3,
            )
        self._loaded, self._whose = True, (self.wire.rank, self.wire.n)

    def _is_ready(self) -> bool:
        """Prepare to begin or continue; False if the parameters do not belong to the loaded state."""
        f = self.flat
        if not self._loaded and not f.round and not f.local_step:
            f.x.copy_(f.flat(slice(0, f.size)))  # the model may have new weights
        return not self._loaded or f.stands_where_saved()

    def _notes(self, astray: bool) -> list[_Note]:
        """The notes of all ranks in order; the same on all of them."""
        f, outer = self.flat, None if self.outer is None else len(self.outer.param_groups)
        mine = _Note(
            astray=int(astray),
            settings=digest(f"{self._settings} {outer}"),
            shapes=digest(str((f.shapes, f.groups, f.x.dtype, [shard_of(q) for q in f.params], len(self.buffers)))),
            loaded=int(self._loaded),
            rank=self._whose[0],
            ranks=self._whose[1],
            rounds=self.rounds,
            place=digest(str((f.round, f.local_step))),
            x=digest(f.x),
        )
        sent = torch.tensor(mine, dtype=torch.int64, device=f.x.device)
        return [_Note(*v.tolist()) for v in self.wire.gather(sent)]

    def _sums_to_zero(self) -> bool:
        """Whether h less its known mean does, up to rounding; with "momentum" h is the same on all ranks."""
        if self.control == "momentum":
            return True
        h = self.flat.h
        total, size = self.wire.sum(h.clone()), self.wire.sum(h.abs()).norm()
        if self.control == "dual":
            total -= self.wire.n * self.flat.mean_h
        wrong = int(total.norm() > torch.finfo(h.dtype).eps ** 0.5 * size)
        # all ranks must agree, because collective calls follow
        answers = self.wire.gather(torch.tensor([wrong], device=h.device))
        return not any(int(v) for v in answers)

    def _take_over(self, how_far: list[int]) -> None:
        """Put all ranks at the x of the furthest one, at the beginning of a round, with h summing to zero."""
        # the furthest rank has seen every committed round
        leader, f = how_far.index(max(how_far)), self.flat
        f.round = int(self.wire.spread(torch.tensor([f.round], device=f.x.device), leader))
        self.wire.spread(f.x, leader)
        if self.control == "momentum":
            self.wire.spread(f.h, leader)
        elif self.control == "dual":
            f.mean_h.copy_(self.wire.sum(f.h.clone()) / self.wire.n)
        else:
            f.h -= self.wire.sum(f.h.clone()) / self.wire.n
        f.restart()
        f.put(f.x)

    # -- checkpoints ---------------------------------------------------------------------------------------------------
    def state_dict(self) -> dict[str, Any]:
        """Everything of this rank besides the parameters; every rank saves its own.

        It has the form that PyTorch has for optimizers, so that torch.distributed.checkpoint takes it. The state of a
        parameter holds that of the local optimizer, of ``outer`` (with names that begin with "outer.") and the parts
        of x, h and the like (that begin with "scaffnew."). Numbers are in the first group.
        """
        packed: dict[str, Any] = self.optim.state_dict()
        numbers = {
            "settings": self._settings,
            "rank": self.wire.rank,
            "ranks": self.wire.n,
            "outer": None if self.outer is None else _without("params", self.outer.param_groups),
        }
        places = {q: k for k, q in enumerate(_all(self.optim))}
        state = {k: dict(v) for k, v in packed["state"].items()}
        for q, own in self.flat.states():
            state.setdefault(places[q], {}).update({f"scaffnew.{name}": v for name, v in own.items()})
            if self.outer is not None:
                state[places[q]].update({f"outer.{name}": v for name, v in self.outer.state[q].items()})
        f = self.flat
        saved_at = f.digest() if f.local_step else 0
        own_numbers = f.of_this_rank([saved_at, self.wire.bytes_sent, self.wire.bytes_received])
        state[places[f.params[0]]]["scaffnew.numbers"] = own_numbers
        first, *others = packed["param_groups"]
        return {"state": state, "param_groups": [{**first, "scaffnew": numbers | self.flat.numbers()}, *others]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """What ``state_dict`` gave; load the model's parameters as well. The run continues bit for bit."""
        groups = state_dict.get("param_groups") if isinstance(state_dict, dict) else None
        if not groups or "scaffnew" not in groups[0]:
            raise InputError("the checkpoint is from another optimizer; load what this one's state_dict returned.")
        complete(state_dict, "state")
        numbers = groups[0]["scaffnew"]
        complete(numbers, "settings", "rank", "ranks", "outer")
        if numbers["settings"] != self._settings or (numbers["outer"] is None) != (self.outer is None):
            raise InputError(
                f"the checkpoint has other settings ({numbers['settings']}) than this optimizer "
                f"({self._settings}); create it with the same."
            )
        names = [name for group in groups for name in group["params"]]
        own = _all(self.optim)
        if len(names) != len(own):
            raise InputError(f"the checkpoint has {len(names)} parameters but this optimizer {len(own)}; load its own.")
        states = {q: state_dict["state"].get(name, {}) for name, q in zip(names, own, strict=True)}
        # check everything before anything changes
        ours = {q: named_after("scaffnew.", v) for q, v in states.items()}
        self.flat.check(ours, numbers)
        complete(ours[self.flat.params[0]], "numbers")
        of_rank = ours[self.flat.params[0]]["numbers"]
        inner = [{k: v for k, v in states[q].items() if not k.startswith(("scaffnew.", "outer."))} for q in own]
        _load(self.optim, "optim", inner, _without("scaffnew", groups))
        if self.outer is not None:
            theirs = [named_after("outer.", states[q]) for q in _all(self.outer)]
            _load(self.outer, "outer", theirs, numbers["outer"])
        self._whose = int(numbers["rank"]), int(numbers["ranks"])
        self.flat.load(ours, numbers)
        saved_at, sent, received = local(of_rank).tolist()
        self.flat.saved_at = int(saved_at)
        self.wire.bytes_sent, self.wire.bytes_received = int(sent), int(received)
        self._met, self._loaded = False, True


def _all(optimizer: Optimizer) -> list[Tensor]:
    """An optimizer's parameters in the order of its groups, in which PyTorch numbers them."""
    return [q for group in optimizer.param_groups for q in group["params"]]


def _without(left_out: str, groups: Groups) -> Groups:
    return [{name: v for name, v in group.items() if name != left_out} for group in groups]


def _load(optimizer: Optimizer, name: str, states: list[dict[str, Any]], groups: Groups) -> None:
    """Let an optimizer go on from the states of its parameters in order, and from the settings of its groups."""
    saved = optimizer.state_dict()["param_groups"]
    try:
        numbered = [{**group, "params": own["params"]} for group, own in zip(groups, saved, strict=True)]
        optimizer.load_state_dict({"state": {k: v for k, v in enumerate(states) if v}, "param_groups": numbered})
    except (AttributeError, KeyError, RuntimeError, TypeError, ValueError) as error:
        raise InputError(f"the {name} of the checkpoint does not match this optimizer ({error}).") from None


def check_local(optim: Any) -> None:
    """Refuse what cannot take local steps."""
    if not isinstance(optim, Optimizer) or isinstance(optim, (ScaffnewOptimizer, torch.optim.LBFGS)):
        raise InputError(f"{type(optim).__name__} cannot be the local optimizer; use one that takes single steps.")


def _trainable(optim: Optimizer) -> set[int]:
    return {id(q) for group in optim.param_groups for q in group["params"] if q.requires_grad}


def check_server_step(control: str, has_outer: bool) -> None:
    """Refuse an outer optimizer where the step of x has a form of its own."""
    if has_outer and control == "dual":
        raise InputError('control="dual" has a step of its own at the server; leave outer= out.')


def _check_outer(optim: Optimizer, outer: Optimizer | None) -> None:
    """Refuse an outer optimizer over other parameters."""
    if outer is optim:
        raise InputError("outer is the local optimizer itself; create another one over the same parameters.")
    if outer is not None and _trainable(outer) != _trainable(optim):
        raise InputError("outer has other parameters than the local optimizer; create it over the same ones.")
