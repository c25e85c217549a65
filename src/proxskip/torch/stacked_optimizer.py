"""One local optimizer for the stacked parameters of many clients, or one for each client."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from proxskip.types import InputError

Make = Callable[[list[Parameter]], Any]
"""A function of parameters that returns an optimizer, or several that share the parameters among them."""
STEPS_TO_COMPARE = 3


def optimizers_of(make: Make, params: list[Parameter]) -> list[torch.optim.Optimizer]:
    """What ``make`` returns, as a list; refused unless every parameter is in exactly one of them."""
    answer = make(params)
    optimizers = list(answer) if isinstance(answer, Sequence) else [answer]
    if not all(isinstance(o, torch.optim.Optimizer) for o in optimizers):
        raise InputError(
            "optimizer must return a torch.optim.Optimizer, or a list of them, over the parameters it gets."
        )
    theirs = [id(q) for o in optimizers for group in o.param_groups for q in group["params"]]
    if sorted(theirs) != sorted(map(id, params)):
        raise InputError("optimizer must return an optimizer over all the parameters that it gets, each of them once.")
    return optimizers


class StackedOptimizer:
    """The local optimizers of all clients, on ``(c, ...)`` tensors that hold a parameter of each.

    An optimizer that acts entry by entry, such as SGD or AdamW, takes the step of all clients at once; that it does is
    tried out. Others, such as Muon, take it client by client.
    """

    def __init__(self, make: Make, parts: list[Tensor], by_entry: bool) -> None:
        self.parts, self.by_entry = parts, by_entry
        rows = [parts] if by_entry else [[v[i] for v in parts] for i in range(len(parts[0]))]
        self.params = [[Parameter(v) for v in row] for row in rows]
        self.optimizers = [optimizers_of(make, params) for params in self.params]
        for group in self._groups():
            if parts[0].is_cuda and "capturable" in group:
                group["capturable"] = True  # so that a CUDA graph may hold a step

    def _groups(self) -> list[dict[str, Any]]:
        return [group for many in self.optimizers for o in many for group in o.param_groups]

    def step(self, gradients: list[Tensor]) -> None:
        """One step of all clients."""
        rows = [gradients] if self.by_entry else [[g[i] for g in gradients] for i in range(len(gradients[0]))]
        for params, row, optimizers in zip(self.params, rows, self.optimizers, strict=True):
            for q, g in zip(params, row, strict=True):
                q.grad = g
            for optimizer in optimizers:
                optimizer.step()

    def learning_rates(self) -> list[float]:
        """Of each parameter."""
        rates = {id(q): float(g["lr"]) for o in self.optimizers[0] for g in o.param_groups for q in g["params"]}
        return [rates[id(q)] for q in self.params[0]]

    def order(self) -> list[int]:
        """The parameters in the order of the optimizer's groups, in which ``proxskip.torch.Scaffnew`` sends them."""
        place = {id(q): k for k, q in enumerate(self.params[0])}
        return [place[id(q)] for o in self.optimizers[0] for g in o.param_groups for q in g["params"]]


def acts_by_entry(make: Make, parts: list[Tensor]) -> bool:
    """Whether two clients stacked take the same steps as two apart, on random values and gradients."""
    draw = torch.Generator().manual_seed(0)

    def random(v: Tensor) -> Tensor:
        return torch.randn((2, *v.shape[1:]), generator=draw, dtype=torch.float64).to(v)

    start = [random(v) for v in parts]
    gradients = [[random(v) for v in parts] for _ in range(STEPS_TO_COMPARE)]
    ends = []
    for by_entry in (False, True):
        values = [v.clone() for v in start]
        try:
            optimizer = StackedOptimizer(make, values, by_entry)
            for g in gradients:
                optimizer.step([v.clone() for v in g])
        except Exception:
            if not by_entry:
                raise
            return False
        ends.append(values)
    close = 100 * torch.finfo(parts[0].dtype).eps
    return all(torch.allclose(a, b, rtol=close, atol=close) for a, b in zip(*ends, strict=True))
