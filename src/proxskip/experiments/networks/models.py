"""The networks: an MLP, a small CNN and a language model of one attention block, each as a function of one vector."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from proxskip.experiments.networks.data import CONTEXT, LETTERS


class StackedLinear(nn.Linear):  # type: ignore[misc]
    """A linear layer, or one for each of several networks: then weight and bias have a first dimension for them."""

    def forward(self, x: Tensor) -> Tensor:
        """x @ W^T + b; of the inputs the last dimension but one counts the rows."""
        return x @ self.weight.mT + self.bias.unsqueeze(-2)


class StackedNorm(nn.LayerNorm):  # type: ignore[misc]
    """Layer normalization, in the same way."""

    def forward(self, x: Tensor) -> Tensor:
        """Mean 0 and variance 1 along the last dimension, scaled and shifted."""
        plain = F.layer_norm(x, self.normalized_shape, eps=self.eps)
        return plain * self.weight.unsqueeze(-2) + self.bias.unsqueeze(-2)


class DigitsMLP(nn.Module):  # type: ignore[misc]
    """64-32-32-10."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = StackedLinear(64, 32), StackedLinear(32, 32), StackedLinear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        return self.c(F.relu(self.b(F.relu(self.a(x)))))


class DigitsCNN(nn.Module):  # type: ignore[misc]
    """Two convolutions of 3 x 3 with stride 2 and 8 and 16 channels, and a linear layer.

    Convolutions are products with the patches: stacked networks then multiply stacked matrices, which is fast.
    """

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = StackedLinear(9, 8), StackedLinear(72, 16), StackedLinear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        z = F.relu(_convolution(x.unflatten(-1, (8, 8, 1)), self.a))
        return self.c(F.relu(_convolution(z, self.b)).flatten(-3))


def _convolution(x: Tensor, layer: StackedLinear) -> Tensor:
    """3 x 3 with stride 2 and a margin of zeros, by nine shifted copies; channels come last."""
    side = x.shape[-2]
    padded = F.pad(x, (0, 0, 1, 1, 1, 1))
    # every second pixel of each shift is the stride of two; the channels of all nine lie side by side
    shifted = [padded[..., i : i + side : 2, j : j + side : 2, :] for i in range(3) for j in range(3)]
    patches = torch.cat(shifted, dim=-1)
    return layer(patches.flatten(-4, -2)).unflatten(-2, patches.shape[-4:-1])


class LanguageModel(nn.Module):  # type: ignore[misc]
    """One block of causal attention with two heads, and one of two linear layers, of width 32."""

    WIDTH, HEADS = 32, 2

    def __init__(self) -> None:
        super().__init__()
        w = self.WIDTH
        self.letters = nn.Parameter(0.1 * torch.randn(len(LETTERS), w))
        self.places = nn.Parameter(torch.zeros(CONTEXT, w))
        self.before, self.between, self.last = StackedNorm(w), StackedNorm(w), StackedNorm(w)
        self.qkv, self.out = StackedLinear(w, 3 * w), StackedLinear(w, w)
        self.up, self.down = StackedLinear(w, 2 * w), StackedLinear(2 * w, w)
        self.logits = StackedLinear(w, len(LETTERS))

    def forward(self, x: Tensor) -> Tensor:
        """Logits of the next character, at every place."""
        shape = x.shape[-2:]
        # letters arrive as floating-point numbers, like all inputs here, and become rows with a single one
        chosen = (x.flatten(-2)[..., None] == torch.arange(len(LETTERS), device=x.device)).to(self.letters.dtype)
        # between the layers all places of all rows are rows of one matrix
        z = ((chosen @ self.letters).unflatten(-2, shape) + self.places.unsqueeze(-3)).flatten(-3, -2)
        z = z + self.out(self._attention(self.qkv(self.before(z)), shape))
        z = z + self.down(F.relu(self.up(self.between(z))))
        return self.logits(self.last(z)).unflatten(-2, shape)

    def _attention(self, qkv: Tensor, shape: torch.Size) -> Tensor:
        split = (*shape, 3, self.HEADS, self.WIDTH // self.HEADS)
        # (..., b, t, 3, heads, width) to three of (..., b, heads, t, width)
        q, k, v = (part.transpose(-3, -2) for part in qkv.unflatten(-1, split[2:]).unflatten(-4, shape).unbind(-3))
        scores = q @ k.mT / math.sqrt(split[-1])
        # True above the diagonal: no place sees the characters after it
        later = torch.ones(shape[1], shape[1], dtype=torch.bool, device=qkv.device).triu(1)
        weights = scores.masked_fill(later, float("-inf")).softmax(-1)
        return (weights @ v).transpose(-3, -2).flatten(-2).flatten(-3, -2)


MODELS: dict[str, Any] = {"mlp": DigitsMLP, "cnn": DigitsCNN, "text": LanguageModel}


class VectorNetwork:
    """A network whose parameters are one vector, so that those of many clients are the rows of a matrix."""

    def __init__(self, name: str) -> None:
        # making a module draws its initial parameters, which must not move the caller's generator
        with torch.random.fork_rng(devices=[]):
            self.module = MODELS[name]()
        self.name = name
        self.shapes = {k: v.shape for k, v in self.module.named_parameters()}
        self.sizes = [v.numel() for v in self.module.parameters()]
        self.d = sum(self.sizes)

    def start(self, seed: int) -> Tensor:
        """Initial parameters, PyTorch's own for this seed."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            fresh = MODELS[self.name]()
        return torch.cat([v.detach().reshape(-1) for v in fresh.parameters()])

    def logits(self, theta: Tensor, inputs: Tensor) -> Tensor:
        """What the networks with these parameters, (runs, d), say of their inputs, (runs, b, ...)."""
        parts = zip(self.shapes.items(), theta.split(self.sizes, dim=-1), strict=True)
        return functional_call(self.module, {k: part.unflatten(-1, shape) for (k, shape), part in parts}, (inputs,))

    def gradient(self, theta: Tensor, inputs: Tensor, targets: Tensor) -> Tensor:
        """The gradient of each network's mean cross-entropy."""
        at = theta.detach().requires_grad_(True)
        # no network depends on the parameters of another, so one sum has all gradients
        (found,) = torch.autograd.grad(_losses(self.logits(at, inputs), targets).sum(), at)
        return found

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def judge(self, theta: Tensor, inputs: Tensor, targets: Tensor) -> Tensor:
        """Loss and accuracy of each network."""
        logits = self.logits(theta, inputs)
        right = (logits.argmax(-1) == targets).to(logits.dtype).flatten(1).mean(1)
        return torch.stack([_losses(logits, targets), right], dim=1)


def _losses(logits: Tensor, targets: Tensor) -> Tensor:
    """The mean cross-entropy of each network."""
    # the digits have one target per row and the text one per place: both become a list
    each = F.cross_entropy(logits.flatten(0, -2), targets.flatten(), reduction="none")
    return each.view(len(logits), -1).mean(1)
