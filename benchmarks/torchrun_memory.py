"""Memory and time of ``proxskip.torch.Scaffnew`` on one GPU, for a network of 124 M parameters.

    python benchmarks/torchrun_memory.py                on an accelerator
    python benchmarks/torchrun_memory.py --layers 1     a smaller one, also on a CPU (without the figures of memory)

Bytes a parameter on the device beyond those of the parameters, their gradients and the local AdamW: what stays between
steps, and the most within a step and a round.
"""

from __future__ import annotations

import argparse
import time

import torch
from torch import nn

from proxskip.torch import Scaffnew

WIDTH, WORDS = 768, 50257
SETTINGS = {
    "none": {"control": "none"},
    "none, top-k 1 %": {"control": "none", "codec": "top-k", "share": 0.01},
    "none, bfloat16": {"control": "none", "codec": "bfloat16"},
    "gradient": {"control": "gradient", "chi": 0.1},
}


def network(layers: int) -> nn.Module:
    """GPT-2's smallest shape: 12 layers of width 768 and 50,257 words are 124 M parameters."""
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
        blocks = [
            nn.TransformerEncoderLayer(WIDTH, 12, 4 * WIDTH, dropout=0.0, batch_first=True, norm_first=True)
            for _ in range(layers)
        ]
        return nn.Sequential(nn.Embedding(WORDS, WIDTH), *blocks)


def held() -> float:
    return float(torch.cuda.memory_allocated()) if torch.cuda.is_available() else 0.0


def measured(layers: int, settings: dict[str, object] | None, period: int = 4, rounds: int = 3) -> list[float]:
    """Bytes held between steps, the most at any time, and seconds of a round's last step and of another step."""
    torch.manual_seed(0)
    module = network(layers)
    inner = torch.optim.AdamW(module.parameters(), lr=1e-4, foreach=False)
    optimizer = inner if settings is None else Scaffnew(inner, period=period, **settings)  # type: ignore[arg-type]
    device = next(module.parameters()).device
    words, times = torch.randint(0, WORDS, (1, 16), device=device), []
    for k in range(period * rounds):
        optimizer.zero_grad(set_to_none=False)
        module(words).square().mean().backward()
        if k == 2 * period and torch.cuda.is_available():
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
        began = time.perf_counter()
        optimizer.step()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        times.append(time.perf_counter() - began)
    most = float(torch.cuda.max_memory_allocated()) if torch.cuda.is_available() else 0.0
    return [held(), most, times[-1], times[-2]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=12)
    layers = parser.parse_args().layers
    d = sum(q.numel() for q in network(layers).parameters())
    torch.cuda.empty_cache()
    held_alone, most_alone, _, step = measured(layers, None)
    print(f"{d / 1e6:.1f} M parameters, AdamW alone: {1e3 * step:.1f} ms a step")
    print("| setting | bytes a parameter between steps | at most | ms a step | ms with the average |")
    print("|---|---|---|---|---|")
    for name, settings in SETTINGS.items():
        torch.cuda.empty_cache()
        held_now, most, average, other = measured(layers, settings)
        stays, peak = (held_now - held_alone) / d, (most - most_alone) / d
        print(f"| {name} | {stays:.2f} | {peak:.2f} | {1e3 * other:.1f} | {1e3 * average:.1f} |", flush=True)


if __name__ == "__main__":
    main()
