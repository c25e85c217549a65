"""One local optimizer for the stacked parameters of many clients, or one for each client."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from proxskip.types import InputError

Make = Callable[[list[Parameter]], Any]
"""A function of parameters that returns an optimizer, or several that share the parameters among them."""


def optimizers_of(make: Make, params: list[Parameter]) -> list[torch.optim.Optimizer]:
    """What ``make`` returns, as a list; refused unless every parameter is in exactly one of them."""
    if not callable(make):
        raise InputError("optimizer and outer are functions of parameters, such as lambda params: SGD(params, lr=0.1).")
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


class StackedMuon:
    """The step of ``torch.optim.Muon`` for the matrices of many clients at once, to the rounding of bfloat16."""

    def __init__(self, muon: Any) -> None:
        self.param_groups = muon.param_groups
        self.buffers: dict[int, Tensor] = {}

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def step(self) -> None:
        """Momentum, Newton and Schulz's iteration, decay, and the step."""
        for group in self.param_groups:
            lr, momentum = float(group["lr"]), group["momentum"]
            for q in group["params"]:
                if id(q) not in self.buffers:
                    self.buffers[id(q)] = torch.zeros_like(q.grad)
                buffer = self.buffers[id(q)]
                buffer.lerp_(q.grad, 1 - momentum)
                update = q.grad.lerp(buffer, momentum) if group["nesterov"] else buffer
                A, B = q.shape[-2:]
                rms = group["adjust_lr_fn"] == "match_rms_adamw"
                ratio = 0.2 * math.sqrt(max(A, B)) if rms else math.sqrt(max(1, A / B))
                q.mul_(1 - lr * group["weight_decay"])
                q.add_(_orthogonalized(update, group), alpha=-lr * ratio)


def _orthogonalized(update: Tensor, group: dict[str, Any]) -> Tensor:
    (a, b, c), is_tall = group["ns_coefficients"], update.shape[-2] > update.shape[-1]
    X = update.bfloat16()
    X = X.mT if is_tall else X
    X = X / X.norm(dim=(-2, -1), keepdim=True).clamp(min=group["eps"])
    for _ in range(group["ns_steps"]):
        gram = X @ X.mT
        X = torch.baddbmm(X, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), X, beta=a)
    return (X.mT if is_tall else X).to(update.dtype)


def _stacked(make: Make, parts: list[Tensor]) -> tuple[list[Parameter], list[Any]]:
    """Optimizers over stacked parameters, in the groups that ``make`` has for the parameters of one client."""
    single = [Parameter(v[0].clone()) for v in parts]
    optimizers = optimizers_of(make, single)
    params = [Parameter(v) for v in parts]
    if any(o.state for o in optimizers):  # such as Adagrad's, which is made before the first step
        return params, optimizers_of(make, params)
    stacked = {id(q): v for q, v in zip(single, params, strict=True)}
    for o in optimizers:
        for group in o.param_groups:
            group["params"] = [stacked[id(q)] for q in group["params"]]
    return params, [StackedMuon(o) if type(o) is getattr(torch.optim, "Muon", None) else o for o in optimizers]


class StackedOptimizer:
    """The local optimizers of all clients, on ``(c, ...)`` tensors that hold a parameter of each.

    An optimizer that acts entry by entry, such as SGD or AdamW, takes the step of all clients at once; that it does is
    tried out. So does Muon, by a step of ours. Others take it client by client.
    """

    def __init__(self, make: Make, parts: list[Tensor], by_entry: bool) -> None:
        self.parts, self.by_entry = parts, by_entry
        self.params: list[list[Parameter]]
        self.optimizers: list[list[Any]]
        if by_entry:
            params, optimizers = _stacked(make, parts)
            self.params, self.optimizers = [params], [optimizers]
        else:
            self.params = [[Parameter(v[i]) for v in parts] for i in range(len(parts[0]))]
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
    parts = [v.double() for v in parts]  # rounding to float32 would hide what differs in a small step

    def random(v: Tensor) -> Tensor:
        return torch.randn((2, *v.shape[1:]), generator=draw, dtype=torch.float64).to(v)

    start = [random(v) for v in parts]
    # short and long ones: a bound on their norm shows at the long ones alone
    gradients = [[scale * random(v) for v in parts] for scale in (1.0, 1e-3, 1e6)]
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
    muons = [o for o in optimizer.optimizers[0] if isinstance(o, StackedMuon)]
    # steps of Muon are about as long as lr, and rounded to bfloat16
    close += sum(0.1 * float(group["lr"]) for o in muons for group in o.param_groups)
    return all(torch.allclose(a, b, rtol=close, atol=close) for a, b in zip(*ends, strict=True))
