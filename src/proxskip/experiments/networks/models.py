"""The networks: an MLP, a small CNN and a language model of one attention block, each as a function of one vector."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from proxskip.experiments.networks.data import CONTEXT, LETTERS


class DigitsMLP(nn.Module):  # type: ignore[misc]
    """64-32-32-10."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(64, 32), nn.Linear(32, 32), nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        return self.c(F.relu(self.b(F.relu(self.a(x)))))


class DigitsCNN(nn.Module):  # type: ignore[misc]
    """Two convolutions of 3 x 3 with stride 2 and 8 and 16 channels, and a linear layer.

    Convolutions are products with the patches: stacked networks then multiply stacked matrices, which is fast.
    """

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(9, 8), nn.Linear(72, 16), nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        x = F.relu(_convolution(x.view(-1, 8, 8, 1), self.a))
        x = F.relu(_convolution(x, self.b))
        return self.c(x.flatten(1))


def _convolution(x: Tensor, layer: nn.Linear) -> Tensor:
    """3 x 3 with stride 2 and a margin of zeros, by nine shifted copies; channels come last."""
    side = x.shape[-2]
    padded = F.pad(x, (0, 0, 1, 1, 1, 1))
    # every second pixel of each shift is the stride of two; the channels of all nine lie side by side
    shifted = [padded[:, i : i + side : 2, j : j + side : 2] for i in range(3) for j in range(3)]
    return layer(torch.cat(shifted, dim=-1))


class LanguageModel(nn.Module):  # type: ignore[misc]
    """One block of causal attention with two heads, and one of two linear layers, of width 32."""

    WIDTH, HEADS = 32, 2

    def __init__(self) -> None:
        super().__init__()
        w = self.WIDTH
        self.letters = nn.Parameter(0.1 * torch.randn(len(LETTERS), w))
        self.places = nn.Parameter(torch.zeros(CONTEXT, w))
        self.before, self.between, self.last = nn.LayerNorm(w), nn.LayerNorm(w), nn.LayerNorm(w)
        self.qkv, self.out = nn.Linear(w, 3 * w), nn.Linear(w, w)
        self.up, self.down, self.logits = nn.Linear(w, 2 * w), nn.Linear(2 * w, w), nn.Linear(w, len(LETTERS))

    def forward(self, x: Tensor) -> Tensor:
        """Logits of the next character, at every place."""
        # letters arrive as floating-point numbers, like all inputs here, and become rows with a single one
        chosen = (x[..., None] == torch.arange(len(LETTERS), device=x.device)).to(self.letters.dtype)
        z = chosen @ self.letters + self.places
        z = z + self.out(self._attention(self.before(z)))
        z = z + self.down(F.relu(self.up(self.between(z))))
        return self.logits(self.last(z))

    def _attention(self, z: Tensor) -> Tensor:
        b, t, w = z.shape
        q, k, v = (part.view(b, t, self.HEADS, -1).transpose(1, 2) for part in self.qkv(z).chunk(3, dim=-1))
        scores = q @ k.transpose(-1, -2) / math.sqrt(w / self.HEADS)
        # True above the diagonal: no place sees the characters after it
        later = torch.ones(t, t, dtype=torch.bool, device=z.device).triu(1)
        weights = scores.masked_fill(later, float("-inf")).softmax(-1)
        return (weights @ v).transpose(1, 2).reshape(b, t, w)


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
        """What the network with these parameters says."""
        parts = zip(self.shapes.items(), theta.split(self.sizes), strict=True)
        return functional_call(self.module, {k: part.view(shape) for (k, shape), part in parts}, (inputs,))

    def loss(self, theta: Tensor, inputs: Tensor, targets: Tensor) -> Tensor:
        """The mean cross-entropy."""
        # the digits have one target per row and the text one per place: both become a list
        return F.cross_entropy(self.logits(theta, inputs).flatten(0, -2), targets.flatten())

    def judge(self, theta: Tensor, inputs: Tensor, targets: Tensor) -> Tensor:
        """Loss and accuracy."""
        logits = self.logits(theta, inputs).flatten(0, -2)
        right = (logits.argmax(-1) == targets.flatten()).to(logits.dtype).mean()
        return torch.stack([F.cross_entropy(logits, targets.flatten()), right])
