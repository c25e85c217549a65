"""The plain settings of a training: what is not a function or an object, and so is kept in its folder."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from proxskip import theory
from proxskip.problems.torch_model import in_a_sentence
from proxskip.torch.rule import CONTROLS, DAMPED
from proxskip.torch.wire import check_codec
from proxskip.types import InputError

STATES = ("kept", "reset", "shared")
BUFFERS = ("mean", "local")
Schedule = Callable[[int], float]
State = str | Mapping[str, str]


@dataclass(frozen=True)
class Settings:
    """See ``proxskip.torch.train``, which says what these are."""

    p: float | None = None
    period: int | None = None
    epochs: float | None = None
    control: str = "gradient"
    correct: str = "inside"
    chi: float | None = None
    mix: float | None = None
    pull: float = 0.0
    state: State | None = None
    batch: int | None = None
    weights: str = "equal"
    normalize: bool = False
    buffers: str | None = None
    codec: str = "float32"
    share: float | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if sum(v is not None for v in (self.p, self.period, self.epochs)) != 1:
            raise InputError(
                "pass one of p=, the probability of communicating, and period=, the number of local steps (or epochs= "
                "of train, passes of each client over its own rows)."
            )
        if self.epochs is not None:
            theory.positive("epochs", self.epochs)
        if self.p is not None:
            theory.probability("p", self.p)
        if self.period is not None:
            theory.whole("period", self.period)
        if self.batch is not None:
            theory.whole("batch", self.batch)
        theory.whole_seed(self.seed)
        theory.nonnegative("pull", self.pull)
        if self.chi is not None and theory.nonnegative("chi", self.chi) > 1:
            raise InputError(f"chi = {self.chi} must be between 0 and 1.")
        check_codec(self.codec, self.share)
        self._check_words()
        self._check_combinations()

    def _check_words(self) -> None:
        words = {"control": CONTROLS, "correct": ("inside", "after"), "weights": ("equal", "rows")}
        for name, known in words.items():
            if getattr(self, name) not in known:
                raise InputError(f'{name} = "{getattr(self, name)}" is not known; use {", ".join(known)}.')
        if self.buffers not in (None, *BUFFERS):
            raise InputError(f'buffers = "{self.buffers}" is not known; use {", ".join(BUFFERS)}.')
        states = self.state.values() if isinstance(self.state, Mapping) else [self.state or "kept"]
        for state in states:
            if state not in STATES:
                raise InputError(f'state = "{state}" is not known; use {", ".join(STATES)}, or a dict of them by name.')

    def _check_combinations(self) -> None:
        """Refuse what contradicts itself, and what was not tested together."""
        if self.correct == "after" and self.control not in ("step", "momentum"):
            raise InputError('correct="after" goes with control="step" or "momentum" only.')
        if self.control == "dual" and not self.pull:
            raise InputError('control="dual" is learned from the pull; pass pull=, such as 0.1.')
        if (self.mix is not None) != (self.control == "momentum"):
            raise InputError('mix=, the weight of the last global step, and control="momentum" go together.')
        if self.mix is not None and theory.probability("mix", self.mix) == 1.0:
            raise InputError("mix = 1 leaves nothing of the gradients; choose it below 1.")
        if self.codec != "float32" and self.control in ("dual", "momentum"):
            raise InputError(f'control="{self.control}" was not tested with codecs; leave codec= out.')
        if self.codec == "top-k" and self.control != "none":
            raise InputError('codec="top-k" was tested with control="none" alone.')
        if self.chi is not None and self.control == "none":
            raise InputError("chi damps h, and without control there is none; leave it out.")
        if self.normalize and (self.control != "none" or self.pull or self.codec != "float32"):
            raise InputError('normalize=True was tested with control="none" alone, without pull= and codec=.')
        if self.epochs is not None and (self.control in ("dual", "momentum") or self.codec != "float32"):
            raise InputError('epochs= was tested with control="none", "gradient" and "step", without codec=.')
        if self.epochs is not None and self.state not in (None, "reset"):
            raise InputError('with epochs= the clients take unequally many steps, and state= must be "reset".')

    def check_optimizers(self, optimizers: list[torch.optim.Optimizer]) -> None:
        """Refuse local optimizers from whose steps no gradient can be read, where one has to be."""
        if self.normalize and not all(type(o) is torch.optim.SGD for o in optimizers):
            raise InputError("normalize=True knows what the steps of SGD weigh; use torch.optim.SGD.")
        if self.control not in ("step", "momentum"):
            return
        for o in optimizers:
            check_steps(o, self.control, self.correct)

    def check_cohort(self, everybody: bool) -> None:
        """Refuse states that are kept by clients which may be away."""
        whole = self.state == "kept" or (isinstance(self.state, Mapping) and "kept" in self.state.values())
        if whole and not everybody:
            raise InputError('state="kept" needs all clients in every round; use "reset" or "shared" with cohort=.')

    @property
    def resets(self) -> bool:
        """Whether the local optimizers begin anew in every round."""
        return self.state == "reset" or self.epochs is not None

    def local_steps(self, round: int) -> int:
        """Those of a round, drawn or fixed; the same for all clients."""
        if self.p is None:
            assert self.period is not None
            return self.period
        key = np.random.Philox(key=self.seed, counter=[0, 0, round, 0])
        return int(np.random.Generator(key).geometric(self.p))

    def rule_of(self, name: str) -> str:
        """What becomes of the memory of this name after a round."""
        if isinstance(self.state, Mapping):
            return self.state.get(name, "reset")
        return self.state or "kept"

    def damping(self, minibatches: bool) -> float:
        """chi, or its default."""
        if self.chi is not None:
            return float(self.chi)
        return DAMPED if minibatches and self.control != "momentum" else 1.0


def check_steps(optimizer: torch.optim.Optimizer, control: str, correct: str = "inside") -> None:
    """Refuse an optimizer whose steps are not lr times a gradient, where h acts inside them."""
    plain = type(optimizer) is torch.optim.SGD
    if correct == "inside" and not (plain and not any(g["momentum"] or g["maximize"] for g in optimizer.param_groups)):
        more = ', or correct="after"' if control == "momentum" else ""
        raise InputError(
            f'control="{control}" needs SGD without momentum, also with a scheduler (OneCycleLR: '
            f'cycle_momentum=False); use control="gradient" with {type(optimizer).__name__}{more}.'
        )


def rate_at(schedule: Schedule | None, round: int) -> float:
    """The factor of the learning rates in a round."""
    if schedule is None:
        return 1.0
    with in_a_sentence(f"schedule, a function of the round, gives no factor for round {round}"):
        factor = schedule(round)
    if not isinstance(factor, (int, float, np.floating)) or not math.isfinite(factor) or factor < 0:
        raise InputError(
            f"the schedule gives {factor!r} for round {round}; return a factor of the learning rate from 0 on."
        )
    return float(factor)


def every_round(make: Callable[[Optimizer], LRScheduler]) -> Schedule:
    """A scheduler of PyTorch as ``schedule`` of ``train``: it takes a step after every round.

    Args:
        make: a function of an optimizer, whose learning rate is 1, that returns the scheduler.

    >>> schedule = every_round(lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 2))
    >>> [schedule(round) for round in range(4)]
    [1.0, 1.0, 0.1, 0.1]
    """
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    scheduler = make(optimizer)
    factors: list[float] = []

    def factor(round: int) -> float:
        while len(factors) <= round:
            factors.append(float(optimizer.param_groups[0]["lr"]))
            optimizer.step()
            scheduler.step()
        return factors[round]

    return factor
