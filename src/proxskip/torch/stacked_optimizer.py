"""One local optimizer for the stacked parameters of many clients, or one for each client."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.optim import Optimizer

from proxskip.types import InputError

Make = Callable[[list[Parameter]], Optimizer | Sequence[Optimizer]]
"""A function of parameters that returns an optimizer, or several that share the parameters among them."""


def optimizers_of(make: Make, params: list[Parameter]) -> list[Optimizer]:
    """What ``make`` returns, as a list; refused unless every parameter is in exactly one of them."""
    if not callable(make):
        raise InputError("optimizer and outer are functions of parameters, such as lambda params: SGD(params, lr=0.1).")
    answer = make(params)
    optimizers = list(answer) if isinstance(answer, Sequence) else [answer]
    if any(isinstance(o, torch.optim.LBFGS) for o in optimizers):
        raise InputError("LBFGS calls the loss itself, several times a step; use an optimizer that takes single steps.")
    if not all(isinstance(o, Optimizer) for o in optimizers):
        raise InputError(
            "optimizer must return a torch.optim.Optimizer, or a list of them, over the parameters it gets."
        )
    theirs = [id(q) for o in optimizers for group in o.param_groups for q in group["params"]]
    if sorted(theirs) != sorted(map(id, params)):
        raise InputError("optimizer must return an optimizer over all the parameters that it gets, each of them once.")
    return optimizers


def _stacked(make: Make, parts: list[Tensor]) -> tuple[list[Parameter], list[Optimizer]]:
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
    return params, optimizers


BY_ENTRY = {
    getattr(torch.optim, name)
    for name in ("SGD", "Adam", "AdamW", "Adamax", "NAdam", "RAdam", "Adagrad", "Adadelta", "RMSprop", "Rprop", "ASGD")
}
"""Optimizers of PyTorch in which each entry goes its own way: a stack of clients takes the steps of single clients.

Subclasses are not among them, since what they add, such as clipping by norm, may join entries.
"""


class StackedOptimizer:
    """The local optimizers of all clients, on ``(c, ...)`` tensors that hold a parameter of each.

    An optimizer that acts entry by entry, such as SGD or AdamW, takes the step of all clients at once; others take it
    client by client.
    """

    def __init__(self, make: Make, parts: list[Tensor], by_entry: bool) -> None:
        self.parts, self.by_entry = parts, by_entry
        self.params: list[list[Parameter]]
        self.optimizers: list[list[Optimizer]]
        if by_entry:
            params, optimizers = _stacked(make, parts)
            self.params, self.optimizers = [params], [optimizers]
        else:
            self.params = [[Parameter(v[i]) for v in parts] for i in range(len(parts[0]))]
            self.optimizers = [optimizers_of(make, params) for params in self.params]
        for group in self._groups():
            if parts[0].is_cuda and "capturable" in group:
                group["capturable"] = True  # so that a CUDA graph may hold a step
        self.rates = [group["lr"] for group in self._groups()]

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
        return self.setting("lr")

    def setting(self, name: str) -> list[float]:
        """A number of each parameter's group."""
        values = {id(q): float(g[name]) for o in self.optimizers[0] for g in o.param_groups for q in g["params"]}
        return [values[id(q)] for q in self.params[0]]

    def scale_rates(self, factor: float) -> None:
        """Set all learning rates to this multiple of what they were at first."""
        for group, rate in zip(self._groups(), self.rates, strict=True):
            group["lr"] = rate * factor

    # -- what the optimizers remember --------------------------------------------------------------------------------
    def states(self) -> Iterator[tuple[int, int, Parameter, dict[str, Any]]]:
        """The state of each parameter, with the numbers of its row of optimizers and of the parameter."""
        for i, (params, optimizers) in enumerate(zip(self.params, self.optimizers, strict=True)):
            for o in optimizers:
                for k, q in enumerate(params):
                    if q in o.state:
                        yield i, k, q, o.state[q]

    def settle(self, rule_of: Callable[[str], str], weights: Tensor) -> int:
        """Reset or average what is remembered of each entry, by its name; the numbers that a client sends for it."""
        alike: dict[tuple[int, str], list[Tensor]] = {}
        for _, k, q, state in self.states():
            for name, v in state.items():
                if isinstance(v, Tensor) and v.shape == q.shape:
                    alike.setdefault((k, name), []).extend(v if self.by_entry else [v])
        sent = 0
        for (_, name), rows in alike.items():
            if rule_of(name) == "kept":
                continue
            mean = torch.zeros_like(rows[0])
            if rule_of(name) == "shared":
                sent += mean.numel()
                for w, v in zip(weights.tolist(), rows, strict=True):
                    mean.add_(v, alpha=w)
            for v in rows:
                v.copy_(mean)
        return sent

    def adopt(self, other: StackedOptimizer) -> None:
        """Go on where another one stands, whose clients all remember the same."""
        known = {k: (q, state) for i, k, q, state in other.states() if i == 0}
        for i, params in enumerate(self.params):
            for k, (q, state) in known.items():
                self._remembered(i, k).update(
                    {name: _resized(v, q.shape, params[k]) if isinstance(v, Tensor) else v for name, v in state.items()}
                )

    def saved(self, name: str) -> dict[str, Any]:
        """All that is remembered, by names that begin with this one."""
        return {
            f"{name}.{i}.{k}.{what}": v for i, k, _, state in self.states() for what, v in state.items()
        }  # fmt: skip

    def load(self, name: str, saved: Mapping[str, Any]) -> None:
        """Remember what ``saved`` gave."""
        for key, v in saved.items():
            if not key.startswith(f"{name}."):
                continue
            i, k, what = key[len(name) + 1 :].split(".", 2)
            self._remembered(int(i), int(k))[what] = v

    def _remembered(self, i: int, k: int) -> dict[str, Any]:
        """What is remembered of parameter k by the one of the optimizers in row i that has it."""
        q = self.params[i][k]
        (owner,) = (o for o in self.optimizers[i] if any(q is v for g in o.param_groups for v in g["params"]))
        state: dict[str, Any] = owner.state[q]
        return state

    def order(self) -> list[int]:
        """The parameters in the order of the optimizer's groups, in which ``proxskip.torch.Scaffnew`` sends them."""
        place = {id(q): k for k, q in enumerate(self.params[0])}
        return [place[id(q)] for o in self.optimizers[0] for g in o.param_groups for q in g["params"]]


def _resized(v: Tensor, old: torch.Size, q: Parameter) -> Tensor:
    """A copy of what is remembered of a parameter, for another number of clients."""
    if v.shape != old or v.shape == q.shape:
        return v.clone()
    return v[:1].expand(q.shape).clone()


def acts_by_entry(make: Make, params: list[Parameter]) -> bool:
    """Whether all optimizers are of a class of which this is known, with nothing added to their steps."""
    return all(type(o) in BY_ENTRY and not _has_more(o) for o in optimizers_of(make, params))


def _has_more(optimizer: Optimizer) -> bool:
    """Whether ``make`` gave it hooks, which may join entries as a subclass may, or a step of its own."""
    added = [v for name, v in vars(optimizer).items() if name not in ("defaults", "state", "param_groups")]
    return any(callable(v) or (isinstance(v, dict) and v) for v in added)
