"""The methods that are compared, what each of them sends, and the settings that each may try."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Literal

SGD = (0.0125, 0.025, 0.05, 0.1, 0.2, 0.4, 0.8, 1.6)
ADAM = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1)


@dataclass(frozen=True, slots=True)
class TriedForm:
    """A setting of a method.

    Args:
        lr: the step size of the local steps.
        outer: the step size of the server, on x - mean y; 1 takes the mean.
        chi: damps the update of h, for control = "step".
    """

    lr: float
    outer: float = 1.0
    chi: float = 1.0

    @property
    def words(self) -> str:
        """As tables print it."""
        more = [f"{name} {v:g}" for name, v in (("outer", self.outer), ("chi", self.chi)) if v != 1.0]
        return ", ".join([f"lr {self.lr:g}", *more])


@dataclass(frozen=True, slots=True)
class Form:
    """A method: local steps of an optimizer, shifted by h, and what happens between the clients.

    Args:
        inner: the local optimizer; AdamW's moments stay with the client.
        control: how h is learned. "step" and "gradient" as in ``proxskip.torch.Scaffnew``; "anchor" is FedLin's
            h_i = grad f_i(x) - grad f(x), with the full gradients at the beginning of the round.
        momentum: Nesterov's, at the server.
        drawn: whether K ~ Geom(1/K) is drawn, as in Scaffnew's theory, or fixed.
        server: the server's step sizes that may be tried.
        damping: the chi that may be tried.
    """

    name: str
    title: str
    inner: Literal["sgd", "adamw"] = "sgd"
    control: Literal["none", "step", "gradient", "anchor"] = "none"
    momentum: float = 0.0
    drawn: bool = False
    server: tuple[float, ...] = (1.0,)
    damping: tuple[float, ...] = (1.0,)

    @property
    def vectors(self) -> int:
        """Vectors that a client sends in a round; it receives as many."""
        return 2 if self.control in ("gradient", "anchor") else 1

    def candidates(self, most: int) -> list[TriedForm]:
        """The same number for every method: all step sizes, or half as many with two settings of something else."""
        other = [(o, c) for o in self.server for c in self.damping]
        rates = ADAM if self.inner == "adamw" else SGD
        # the middle of the range first, for those who may try few
        count = most // len(other)
        spread = _spread(rates, count)
        return [TriedForm(lr, o, c) for lr, (o, c) in itertools.product(spread, other)]


def _spread(rates: tuple[float, ...], count: int) -> list[float]:
    """This many of them: every one, every second one, or those around the middle."""
    if count >= len(rates):
        return list(rates)
    if 2 * count >= len(rates):
        return list(rates[1::2][:count])
    middle = len(rates) // 2
    return list(rates[middle - count // 2 : middle - count // 2 + count])


FORMS = (
    Form("local-sgd", "LocalSGD"),
    Form("diloco-sgd", "DiLoCo (SGD)", momentum=0.9, server=(0.7, 0.3)),
    Form("local-adamw", "local AdamW", "adamw"),
    Form("diloco-adamw", "DiLoCo (AdamW)", "adamw", momentum=0.9, server=(0.7, 0.3)),
    Form("scaffold", "Scaffold", control="step", server=(1.0, 0.5)),
    Form("fedlin", "FedLin", control="anchor"),
    Form("scaffnew", "Scaffnew (fixed K)", control="step", damping=(1.0, 0.3)),
    Form("scaffnew-drawn", "Scaffnew (drawn K)", control="step", drawn=True, damping=(1.0, 0.3)),
    Form("scaffnew-gradient", "Scaffnew (gradient)", control="gradient"),
    Form("scaffnew-outer", "Scaffnew + Nesterov", control="step", momentum=0.9, server=(0.7,), damping=(1.0, 0.3)),
    Form("adamw-h", "AdamW + h", "adamw", control="gradient"),
)
"""Scaffold is option II with everybody, which is Scaffnew with fixed K and a step size at the server."""
BY_NAME = {form.name: form for form in FORMS}
WITH_H = tuple(form.name for form in FORMS if form.control != "none")
WITHOUT_H = tuple(form.name for form in FORMS if form.control == "none")
