"""A test of any optimizer that takes local steps and an outer step now and then, such as DiLoCo's."""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import Parameter
from torch.optim import Optimizer

from proxskip.torch.wire import Wire

UNKNOWNS, ROUNDS = 7, 6
Make = Callable[[list[Parameter]], Optimizer]


def check_outer_steps(
    make: Make, inner: Make, outer: Make | None, period: int,
    group: dist.ProcessGroup | None = None,
) -> list[str]:  # fmt: skip
    """What is wrong with an optimizer whose rounds should be those of DiLoCo, in sentences; none if nothing is.

    Call it on every rank of a process group. Each rank minimizes a quadratic of its own, once with the optimizer and
    once with a plain loop that shares no code with it: ``period`` steps of ``inner``, the mean of y over the ranks, and
    a step of ``outer`` with the gradient x - mean y. They are compared after every round; in the middle of the rounds
    the optimizer is made anew and loads the state of the old one, between two rounds.

    Args:
        make: a function of parameters that returns the optimizer. Its ``step()`` is called once per local step, and it
            averages by itself; ``state_dict`` and ``load_state_dict`` hold all that it remembers.
        inner, outer: functions of parameters that return the local and the outer optimizer as they should be; without
            ``outer``, x is the mean of y.
        period: local steps in a round.
        group: the process group; all ranks if not given.
    """
    wire = Wire(group, "float32", None, 0)
    draw = torch.Generator().manual_seed(17 + wire.rank)
    H = torch.rand(UNKNOWNS, generator=draw, dtype=torch.float64) + 0.5
    c = torch.randn(UNKNOWNS, generator=draw, dtype=torch.float64)
    q = Parameter(torch.zeros(UNKNOWNS, dtype=torch.float64))
    tested, expected = make([q]), _Plain(inner, outer, wire)
    for round in range(ROUNDS):
        if round == ROUNDS // 2:
            tested, q = _made_anew(make, tested, q)
        x = expected.x.detach().clone()
        _descend(q, tested, H, c, period)
        expected.go_round(H, c, period)
        wrong = _difference(q.detach(), x, expected.x.detach(), wire, resumed=round >= ROUNDS // 2)
        if wrong:
            return [f"round {round}: {wrong}"]
    return []


def _descend(q: Parameter, optimizer: Optimizer, H: Tensor, c: Tensor, steps: int) -> None:
    for _ in range(steps):
        optimizer.zero_grad()
        (0.5 * H * (q - c) ** 2).sum().backward()
        optimizer.step()


def _made_anew(make: Make, old: Optimizer, q: Parameter) -> tuple[Optimizer, Parameter]:
    """Another optimizer over a copy of the parameters, with the state of the old one."""
    other = Parameter(q.detach().clone())
    optimizer = make([other])
    optimizer.load_state_dict(copy.deepcopy(old.state_dict()))
    return optimizer, other


class _Plain:
    """DiLoCo in a few lines."""

    def __init__(self, inner: Make, outer: Make | None, wire: Wire) -> None:
        self.x = Parameter(torch.zeros(UNKNOWNS, dtype=torch.float64))
        self.y = Parameter(self.x.detach().clone())
        self.inner, self.outer, self.wire = inner([self.y]), outer([self.x]) if outer else None, wire

    def go_round(self, H: Tensor, c: Tensor, period: int) -> None:
        self.y.data.copy_(self.x.data)
        _descend(self.y, self.inner, H, c, period)
        mean = torch.stack(self.wire.gather(self.y.detach().clone())).mean(0)
        if self.outer is None:
            self.x.data.copy_(mean)
            return
        self.x.grad = self.x.detach() - mean
        self.outer.step()


def _difference(found: Tensor, x: Tensor, expected: Tensor, wire: Wire, resumed: bool) -> str | None:
    """How the step of a round differs from what it should be."""
    others = wire.gather(found.clone())
    if any(not torch.equal(other, others[0]) for other in others):
        return "the parameters differ between the ranks after the average."
    step, right = found - x, expected - x
    if (step - right).norm() <= 1e-9 * right.norm():
        return None
    scale = float(step @ right / (right @ right))
    if (step - scale * right).norm() <= 1e-6 * right.norm():
        sign = "has the wrong sign" if scale < 0 else "has the wrong scale"
        return f"the step of x {sign}: it is {scale:.4g} times what it should be."
    if resumed:
        return "the step of x is wrong after a resume: state_dict lacks something, such as the outer optimizer's state."
    return "the step of x is another one than that of local steps, an average and the outer optimizer."
