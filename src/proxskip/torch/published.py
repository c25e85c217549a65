"""Published local methods by name, as settings of ``proxskip.torch.train``."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.optim import SGD, Adam, AdamW, Optimizer

from proxskip.torch.stacked_optimizer import Make
from proxskip.types import InputError

Recipe = dict[str, Any]


def recipe(name: str, **settings: Any) -> Recipe:
    """The keywords of ``train`` that make it a published method, without period, batch, rounds and seed.

    The defaults train the example of the README; choose ``lr`` (and ``outer_lr``) for your own problem. AdamW and Muon
    without h share their memory by default, since they fail there if each client keeps its own; ``state="kept"`` is
    what was published of DiLoCo, MuLoCo and SparseLoCo.

    Args:
        name: one of ``recipes()``.
        settings: numbers of the method in place of its defaults, such as ``lr=0.01``, ``momentum=0.9`` or ``mu=0.1``.

    >>> recipe("fedprox", mu=0.01)["pull"]
    0.01
    """
    if name not in RECIPES:
        raise InputError(f'there is no recipe "{name}"; the recipes are {", ".join(RECIPES)}.')
    make, _ = RECIPES[name]
    known = inspect.signature(make).parameters
    for setting in settings:
        if setting not in known:
            raise InputError(f"the recipe {name} has no setting {setting}; it has {', '.join(known)}.")
    return make(**settings)


def recipes() -> dict[str, str]:
    """The names of all recipes, with their references."""
    return {name: reference for name, (_, reference) in RECIPES.items()}


def _sgd(lr: float, momentum: float = 0.0) -> Make:
    return partial(SGD, lr=lr, momentum=momentum)


def _nesterov(lr: float) -> Make:
    return partial(SGD, lr=lr, momentum=0.9, nesterov=True)


def _averaged(optimizer: Make, **more: Any) -> Recipe:
    """Local steps and an average, without h."""
    return {"optimizer": optimizer, "control": "none", **more}


def _fedavg(lr: float = 0.3, momentum: float = 0.0) -> Recipe:
    return _averaged(_sgd(lr, momentum), state="reset")


def _fedavgm(lr: float = 0.3, momentum: float = 0.9, outer_lr: float = 0.3) -> Recipe:
    return _averaged(_sgd(lr), outer=_sgd(outer_lr, momentum))


def _fedprox(lr: float = 0.3, mu: float = 0.01, momentum: float = 0.0) -> Recipe:
    return _averaged(_sgd(lr, momentum), state="reset", pull=mu)


def _fedadam(lr: float = 0.1, outer_lr: float = 0.03, eps: float = 1e-3) -> Recipe:
    return _averaged(_sgd(lr), outer=partial(Adam, lr=outer_lr, betas=(0.9, 0.99), eps=eps))


class Yogi(Optimizer):  # type: ignore[misc]
    """Adam with second moments that move by the sign of what is new (Zaheer et al., 2018)."""

    def __init__(
        self, params: Iterable[Tensor], lr: float, betas: tuple[float, float] = (0.9, 0.99), eps: float = 1e-3
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps})

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def step(self, closure: None = None) -> None:
        """m + (1 - a)(g - m); v - (1 - b) sign(v - g^2) g^2; x - lr m / (sqrt(v) + eps)."""
        for group in self.param_groups:
            a, b = group["betas"]
            for q in group["params"]:
                if q.grad is None:
                    continue
                state, square = self.state[q], q.grad * q.grad
                if not state:
                    state["m"], state["v"] = torch.zeros_like(q), torch.full_like(q, group["eps"] ** 2)
                state["m"].lerp_(q.grad, 1 - a)
                state["v"].sub_((state["v"] - square).sign() * square, alpha=1 - b)
                q.addcdiv_(state["m"], state["v"].sqrt().add_(group["eps"]), value=-group["lr"])


def _fedyogi(lr: float = 0.1, outer_lr: float = 0.03, eps: float = 1e-3) -> Recipe:
    return _averaged(_sgd(lr), outer=partial(Yogi, lr=outer_lr, eps=eps))


def _fednova(lr: float = 0.3, momentum: float = 0.0) -> Recipe:
    return _averaged(_sgd(lr, momentum), state="reset", normalize=True, weights="rows")


def _scaffold(lr: float = 0.3, momentum: float = 0.0, chi: float | None = None) -> Recipe:
    return {
        "optimizer": _sgd(lr, momentum), "control": "step", "correct": "after", "state": "reset", "chi": chi,
    }  # fmt: skip


def _fedcm(lr: float = 1.0, mix: float = 0.9) -> Recipe:
    return {"optimizer": _sgd(lr), "control": "momentum", "mix": mix}


def _feddyn(lr: float = 0.1, mu: float = 0.1) -> Recipe:
    return {"optimizer": _sgd(lr), "control": "dual", "pull": mu, "chi": 1.0}


def _adamw(lr: float = 3e-3, weight_decay: float = 0.01) -> Make:
    return partial(AdamW, lr=lr, weight_decay=weight_decay)


def _local_adamw(lr: float = 3e-3, weight_decay: float = 0.01, state: str = "shared") -> Recipe:
    return _averaged(_adamw(lr, weight_decay), state=state)


def _fedadamw(lr: float = 3e-3, mix: float = 0.5, weight_decay: float = 0.01) -> Recipe:
    return {
        "optimizer": _adamw(lr, weight_decay), "control": "momentum", "mix": mix, "correct": "after",
        "state": {"exp_avg": "reset", "exp_avg_sq": "shared"},
    }  # fmt: skip


def _adamw_h(lr: float = 3e-3, weight_decay: float = 0.01) -> Recipe:
    return {"optimizer": _adamw(lr, weight_decay), "control": "gradient"}


def _muon(lr: float, params: list[Parameter]) -> list[Optimizer]:
    """Muon for the matrices, AdamW for the rest."""
    if not hasattr(torch.optim, "Muon"):
        raise InputError("this PyTorch has no Muon; PyTorch 2.9 and later have it.")
    matrices, others = [q for q in params if q.ndim == 2], [q for q in params if q.ndim != 2]
    optimizers: list[Optimizer] = [torch.optim.Muon(matrices, lr=lr)] if matrices else []
    return optimizers + ([AdamW(others, lr=lr)] if others else [])


def _local_muon(lr: float = 0.02, state: str = "shared") -> Recipe:
    return _averaged(partial(_muon, lr), state=state)


def _fedmuon(lr: float = 0.02) -> Recipe:
    return {"optimizer": partial(_muon, lr), "control": "gradient"}


def _diloco(lr: float = 3e-3, outer_lr: float = 0.7, state: str = "shared") -> Recipe:
    return _averaged(_adamw(lr), state=state, outer=_nesterov(outer_lr))


def _muloco(lr: float = 0.02, outer_lr: float = 0.7, state: str = "shared") -> Recipe:
    return _averaged(partial(_muon, lr), state=state, outer=_nesterov(outer_lr))


def _sparseloco(lr: float = 3e-3, outer_lr: float = 0.8, share: float = 0.05, state: str = "shared") -> Recipe:
    return _averaged(_adamw(lr), codec="top-k", share=share, state=state, outer=_sgd(outer_lr))


RECIPES: dict[str, tuple[Callable[..., Recipe], str]] = {
    "fedavg": (_fedavg, "McMahan et al., 2017, arXiv:1602.05629"),
    "fedavgm": (_fedavgm, "Hsu, Qi, Brown, 2019, arXiv:1909.06335"),
    "fedprox": (_fedprox, "Li et al., 2020, arXiv:1812.06127"),
    "fedadam": (_fedadam, "Reddi et al., 2021, arXiv:2003.00295"),
    "fedyogi": (_fedyogi, "Reddi et al., 2021, arXiv:2003.00295"),
    "fednova": (_fednova, "Wang et al., 2020, arXiv:2007.07481"),
    "scaffold": (_scaffold, "Karimireddy et al., 2020, arXiv:1910.06378, as in NIID-Bench, arXiv:2102.02079"),
    "fedcm": (_fedcm, "Xu et al., 2021, arXiv:2106.10874"),
    "feddyn": (_feddyn, "Acar et al., 2021, arXiv:2111.04263"),
    "local-adamw": (_local_adamw, "AdamW of Loshchilov, Hutter, 2019, arXiv:1711.05101; shared moments: 2505.22549"),
    "fedadamw": (_fedadamw, "FedAdamW, 2025, arXiv:2510.27486"),
    "adamw+h": (_adamw_h, "the rule of FAdamGC, 2025, arXiv:2502.02727"),
    "local-muon": (_local_muon, "Muon of Jordan et al., 2024, in local steps"),
    "fedmuon": (_fedmuon, "the rule of FedMuon, 2025, arXiv:2509.26337"),
    "diloco": (_diloco, "Douillard et al., 2023, arXiv:2311.08105"),
    "muloco": (_muloco, "MuLoCo: DiLoCo with Muon inside, 2025, arXiv:2505.23725"),
    "sparseloco": (_sparseloco, "SparseLoCo, 2025, arXiv:2508.15706"),
}
