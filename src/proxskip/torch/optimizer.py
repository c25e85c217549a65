"""Scaffnew around any PyTorch optimizer: local steps with a control variate, then one all-reduce."""

from __future__ import annotations

import warnings
from collections import namedtuple
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from proxskip import theory
from proxskip.torch.flat_parameters import (
    FlatParameters,
    check_shards,
    complete,
    digest,
    local,
    local_steps,
    shard_of,
)
from proxskip.torch.rule import learn, to_send
from proxskip.torch.wire import SynchronizationError, Wire
from proxskip.types import InputError

CONTROLS = ("step", "gradient", "none")


_Note = namedtuple("_Note", "astray settings shapes loaded rank ranks rounds place x")
"""What a rank tells the others in ``meet``, in numbers."""


class ScaffnewOptimizer(Optimizer):  # type: ignore[misc]
    """Local steps of an optimizer, each shifted by a learned control variate h, and an average now and then.

    K. Mishchenko, G. Malinovsky, S. Stich, P. Richtarik, ProxSkip, ICML 2022, arXiv:2202.09357. With y the parameters
    of this rank, x the last common point and g the gradient that ``backward`` left:

        local step   y  <- one step of ``optim`` with the gradient  g - h
        then, after K of them,
        average      x+  = x + mean (y - x),  or  ``outer`` applied to the gradient  x - mean y
        "step"       h  += chi (p/lr) (mean y - y)         one vector; for plain SGD, with p = 1/K where K is fixed
        "gradient"   h  += chi (c - mean c - h),  c the mean of g    two vectors; for any optimizer
        "none"       h   = 0                               LocalSGD or, with ``outer``, DiLoCo: for comparison

    The sum of h over the ranks stays zero. Call ``step()`` once per local step, on every rank; it communicates by
    itself. x and h are changed together, after the all-reduce has succeeded.

    Args:
        optim: the local optimizer.
        p: communicate after each step with this probability, drawn from ``seed`` alike on all ranks.
        period: or communicate after every ``period`` steps. Give one of the two.
        control: how h is learned.
        outer: an optimizer over the same parameters, for the outer step of DiLoCo (Douillard et al., 2023,
            arXiv:2311.08105).
        chi: damps the update of h: 1 is the paper's, and right with full gradients; with minibatches, whose noise h
            repeats, smaller ones such as 0.3 (the default of ``train``) are more stable.
        seed: the same on all ranks.
        group: the process group to average over; all ranks if not given.
        codec: "float32" (or float64 for such parameters), "bfloat16" (2 bytes) or "natural" (9 bits), for what is sent:
            y - x, and c - h. With full gradients both go to zero at a solution, so that the rounding does too. The
            first is one all-reduce; the others gather the payloads of all ranks, so that from 5 ranks on bfloat16
            brings more bytes to a rank than float32 in a ring, and natural from 8 on: see ``bytes_received``.
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
        outer: Optimizer | None = None,
        chi: float = 1.0,
        seed: int = 0,
        group: Any = None,
        codec: str = "float32",
        buffers: Iterable[Tensor] = (),
    ) -> None:
        check_settings(optim, p, period, control, chi, seed)
        _check_outer(optim, outer)
        self.optim, self.outer = optim, outer
        self.p, self.period, self.control, self.chi, self.seed = p, period, control, float(chi), int(seed)
        super().__init__(optim.param_groups, optim.defaults)
        self.wire = Wire(group, codec, seed)
        self.flat = FlatParameters(optim)
        ranks = self.wire.ranks()
        check_shards(self.flat.params, ranks, ranks[self.wire.rank])
        self.buffers = [v for v in buffers if v.is_floating_point()]
        self._settings = f"{p} {period} {control} {chi} {seed} 1 {codec}"  # the 1 is 0.2's number of fragments
        self._met = self._loaded = False
        self._whose = (self.wire.rank, self.wire.n)

    # learning rates and state live in the local optimizer, where schedulers and checkpoints reach them
    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """Those of the local optimizer."""
        groups: list[dict[str, Any]] = self.optim.param_groups
        return groups

    @param_groups.setter
    def param_groups(self, value: Any) -> None:
        """Ignored: the base class sets its own."""

    @property
    def state(self) -> Any:
        """That of the local optimizer."""
        return self.optim.state

    @state.setter
    def state(self, value: Any) -> None:
        """Ignored: the base class sets its own."""

    @property
    def rounds(self) -> int:
        """Communications so far."""
        return self.flat.round

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

    def __getstate__(self) -> Any:
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
        if self.control == "step":
            _check_plain(self.optim)  # a scheduler may have turned momentum on
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        if not self._met:
            self.meet()
        stepped = not skip_nonfinite or self._finite()
        if stepped:
            self.flat.shift(keep_raw=self.control == "gradient")
            self.optim.step()
        self.flat.count(self.param_groups, stepped)
        if self.flat.local_step >= local_steps(self.seed, self.flat.round, self.p, self.period):
            self._average()
        return loss

    def _finite(self) -> bool:
        gradients = [q.grad for q in self.flat.params if q.grad is not None]
        return all(bool(torch.isfinite(local(g)).all()) for g in gradients)

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def _average(self) -> None:
        """Communicate; nothing is changed before the last check."""
        f = self.flat
        vectors = to_send(self.control, f.flat() - f.x, f.c / max(f.taken, 1), f.h)
        self._compare_rates()
        if _trainable(self.optim) - {id(q) for q in f.params}:
            raise InputError("parameters were unfrozen after creation; create the optimizer again to average them too.")
        means, sents = self.wire.average(vectors, f.round)
        if not all(bool(torch.isfinite(m).all()) for m in means):
            raise SynchronizationError(
                f"the average of round {f.round} is not finite, so a rank diverged; the round was not committed. Use a "
                "smaller learning rate or chi."
            )
        buffers = self._mean_buffers()
        over_steps = f.over_lr(torch.ones_like(f.x)) * (self.p or 1.0 / f.local_step)
        learn(self.control, f.h, sents, means, self.chi, over_steps, 0.0)
        for v, mean in zip(self.buffers, buffers, strict=True):
            v.copy_(mean)
        self._move(means[0])
        f.round += 1
        f.restart()

    def _mean_buffers(self) -> list[Tensor]:
        if not self.buffers:
            return []
        joined = torch.cat([v.reshape(-1).to(self.flat.x.dtype) for v in self.buffers])
        parts = self.wire.mean(joined).split([v.numel() for v in self.buffers])
        return [part.view_as(v) for part, v in zip(parts, self.buffers, strict=True)]

    def _compare_rates(self) -> None:
        """Refuse learning rates that differ between ranks: h would not sum to zero, or x would differ."""
        outer = [] if self.outer is None else [float(g["lr"]) for g in self.outer.param_groups]
        mine = torch.tensor([*self.flat.mean_lrs(), *outer], dtype=torch.float64, device=self.flat.x.device)
        if any(not torch.equal(other, mine) for other in self.wire.gather(mine)):
            raise InputError("the ranks have different learning rates; use the same schedule on all of them.")

    def _move(self, mean: Tensor) -> None:
        f = self.flat
        if self.outer is None:
            f.x += mean
            f.put(f.x)
            return
        f.put(f.x)
        gradients = [q.grad for q in f.params]
        for q, part in zip(f.params, f.views(-mean), strict=True):
            q.grad = torch.zeros_like(q)
            local(q.grad).copy_(part)
        self.outer.step()
        for q, g in zip(f.params, gradients, strict=True):
            q.grad = g
        f.x.copy_(f.flat())

    # -- who is there --------------------------------------------------------------------------------------------------
    @torch.no_grad()  # type: ignore[untyped-decorator]
    def meet(self) -> None:
        """Compare notes with the other ranks, and repair what differs; the first ``step`` calls it.

        If all ranks continue from their own states of one round, nothing changes. Otherwise all take over the x of the
        rank that is furthest (the first of several) and begin a round there: ranks without a state or with an older
        one, with other parameters, or with states saved by other ranks or another number of them. Each rank keeps its h
        (a new one has none), minus the mean, so that h sums to zero again.
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
                f"rank {self.wire.rank} joins at round {self.rounds} with a zero control variate; those of all ranks "
                "were shifted to sum to zero.",
                stacklevel=3,
            )
        elif all(loaded) and self.wire.rank == 0:
            warnings.warn(
                f"the checkpoints do not match these {self.wire.n} ranks; all begin a round at the same x, with the "
                "control variates shifted to sum to zero.",
                stacklevel=3,
            )
        self._loaded, self._whose = True, (self.wire.rank, self.wire.n)

    def _is_ready(self) -> bool:
        """Prepare to begin or continue; False if the parameters do not belong to the loaded state."""
        f = self.flat
        if not self._loaded and not f.round and not f.local_step:
            f.x.copy_(f.flat())  # the model may have new weights
        elif f.local_step and f.saved_at is None:
            # a state of 0.2 has no digest of its parameters, but knows x
            f.restart()
            f.put(f.x)
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
        """Whether h does, up to rounding."""
        h = self.flat.h
        total, size = self.wire.sum(h.clone()).norm(), self.wire.sum(h.abs()).norm()
        wrong = int(total > torch.finfo(h.dtype).eps ** 0.5 * size)
        # all ranks must agree, because collective calls follow
        answers = self.wire.gather(torch.tensor([wrong], device=h.device))
        return not any(int(v) for v in answers)

    def _take_over(self, how_far: list[int]) -> None:
        """Put all ranks at the x of the furthest one, at the beginning of a round, with h summing to zero."""
        # the furthest rank has seen every committed round
        leader, f = how_far.index(max(how_far)), self.flat
        f.round = int(self.wire.spread(torch.tensor([f.round], device=f.x.device), leader))
        self.wire.spread(f.x, leader)
        f.h -= self.wire.sum(f.h.clone()) / self.wire.n
        f.restart()
        f.put(f.x)

    # -- checkpoints ---------------------------------------------------------------------------------------------------
    def state_dict(self) -> dict[str, Any]:
        """Everything of this rank besides the parameters, in tensors and numbers; every rank saves its own."""
        return {
            "settings": self._settings,
            "optim": self.optim.state_dict(),
            "outer": None if self.outer is None else self.outer.state_dict(),
            "fragments": [self.flat.state()],
            "bytes_sent": self.wire.bytes_sent,
            "rank": self.wire.rank,
            "ranks": self.wire.n,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """What ``state_dict`` gave; load the model's parameters as well. The run goes on bit by bit."""
        if not isinstance(state_dict, dict) or "settings" not in state_dict:
            raise InputError("the checkpoint is from another optimizer; load what this one's state_dict returned.")
        complete(state_dict, "optim", "outer", "fragments", "bytes_sent")
        if state_dict["settings"] != self._settings or (state_dict["outer"] is None) != (self.outer is None):
            raise InputError(
                f"the checkpoint has other settings ({state_dict['settings']}) than this optimizer "
                f"({self._settings}); create it with the same."
            )
        if len(state_dict["fragments"]) != 1:
            raise InputError(f"the checkpoint has {len(state_dict['fragments'])} fragments, and only 1 is supported.")
        # check everything before anything changes
        (saved,) = state_dict["fragments"]
        self.flat.check(saved)
        for optim, name in ((self.optim, "optim"), (self.outer, "outer")):
            if optim is None:
                continue
            try:
                optim.load_state_dict(state_dict[name])
            except (AttributeError, KeyError, RuntimeError, TypeError, ValueError) as error:
                raise InputError(f"the {name} of the checkpoint does not match this optimizer ({error}).") from None
        self.wire.bytes_sent = int(state_dict["bytes_sent"])
        self._whose = state_dict.get("rank", self.wire.rank), state_dict.get("ranks", self.wire.n)
        self.flat.load(saved)
        self._met, self._loaded = False, True


def check_local(optim: Any) -> None:
    """Refuse what cannot take local steps."""
    if not isinstance(optim, Optimizer) or isinstance(optim, (ScaffnewOptimizer, torch.optim.LBFGS)):
        raise InputError(f"{type(optim).__name__} cannot be the local optimizer; use one that takes single steps.")


def check_settings(optim: Any, p: float | None, period: int | None, control: str, chi: float, seed: int) -> None:
    """Refuse settings that cannot work."""
    check_local(optim)
    if (p is None) == (period is None):
        raise InputError("pass either p=, the probability of communicating, or period=, the number of local steps.")
    if p is not None:
        theory.probability("p", p)
    if period is not None:
        theory.whole("period", period)
    if control not in CONTROLS:
        raise InputError(f'control = "{control}" is not known; use {", ".join(CONTROLS)}.')
    if theory.nonnegative("chi", chi) > 1:
        raise InputError(f"chi = {chi} must be between 0 and 1.")
    theory.whole_seed(seed)
    if control == "step":
        _check_plain(optim)
    if control == "none" and chi != 1.0:
        raise InputError("chi damps h, and without control there is none; leave it out.")


def _check_plain(optim: Any) -> None:
    if type(optim) is not torch.optim.SGD or any(g["momentum"] or g["maximize"] for g in optim.param_groups):
        raise InputError(
            'control="step" needs SGD without momentum, also with a scheduler (OneCycleLR: cycle_momentum=False); use '
            f'control="gradient" with {type(optim).__name__}.'
        )


def _trainable(optim: Any) -> set[int]:
    return {id(q) for group in optim.param_groups for q in group["params"] if q.requires_grad}


def _check_outer(optim: Any, outer: Any) -> None:
    """Refuse an outer optimizer over other parameters."""
    if outer is optim:
        raise InputError("outer is the local optimizer itself; create another one over the same parameters.")
    if outer is not None and _trainable(outer) != _trainable(optim):
        raise InputError("outer has other parameters than the local optimizer; create it over the same ones.")
