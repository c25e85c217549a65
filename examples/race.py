"""What the examples share: one problem, several methods, a table, and curves over seconds and over proxes."""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

import proxskip as ps
from proxskip.methods.registry import METHODS
from proxskip.support.palette import CYCLE

OTHERS = {"auto": CYCLE[0], "papc": CYCLE[1], "ProxSGD": CYCLE[2]}
"""Color, dashes and marker of what is no method of its own."""
AXES = {"seconds": "seconds", "nprox": "prox evaluations", "ngrad": "gradients"}


@dataclass
class Race:
    """A problem and what each method took on it; ``methods`` holds for every label a method and its options."""

    title: str
    f: Any
    psi: Any
    x0: Any
    methods: Mapping[str, tuple[str, dict[str, Any]]]
    tol: float
    common: dict[str, Any] = field(default_factory=dict)
    results: dict[str, Any] = field(default_factory=dict)
    gradient_seconds: float = math.nan
    prox_seconds: dict[str, float] = field(default_factory=dict)

    def run(self) -> Race:
        """Every method until the certificate is ``tol`` or its time is up; to be read with ``table``."""
        print(self.title, flush=True)
        self.gradient_seconds = seconds_of_a_gradient(self.f, self.x0)
        for label, (method, more) in self.methods.items():
            options = {"method": method, "tol": self.tol, **self.common, **more}
            with timed(self.psi) as spent:
                r = ps.minimize(self.f, self.psi, self.x0, **options)
            self.results[label], self.prox_seconds[label] = r, float(np.mean(spent))
            print(f"  {label}: {r.message}", flush=True)
        return self

    def cost(self, label: str) -> float:
        """What a prox of this method cost on average, in gradients."""
        return self.prox_seconds[label] / self.gradient_seconds

    def faster(self, than: str, label: str) -> str:
        """How many times faster ``label`` is; a lower bound where the other one did not arrive."""
        a, b = self.results[than], self.results[label]
        if not b.success:
            return "nan"
        return ("more than " if not a.success else "") + f"{a.seconds / b.seconds:.1f}"

    def table(self) -> str:
        """What each method took, and what a prox cost it."""
        width = max(map(len, self.results)) + 2
        head = f"{'certificate':>12}{'proxes':>9}{'gradients':>11}{'seconds':>9}{'prox/gradient':>15}"
        lines = [
            f"{label:{width}}{r.certificate:12.1e}{r.nprox:9,d}{r.ngrad:11,d}{r.seconds:9.2f}{self.cost(label):15.0f}"
            for label, r in self.results.items()
        ]
        return "\n".join(["", " " * width + head, *lines, ""])

    def curves(self, axes: Sequence[Any], xs: Sequence[str] = ("seconds", "nprox")) -> None:
        """The certificate over seconds and over proxes, and one legend."""
        seen: dict[str, int] = {}
        for label, r in self.results.items():
            method = self.methods[label][0]
            seen[method] = seen.get(method, -1) + 1
            style = look(method, seen[method]) | {"markevery": spread(len(r.trace["certificate"])), "label": label}
            for ax, x in zip(axes, xs, strict=True):
                ax.loglog(np.maximum(r.trace[x], 1e-4), r.trace["certificate"], **style)
        for ax, x in zip(axes, xs, strict=True):
            ax.axhline(self.tol, color="#AAAAAA", linewidth=0.8, linestyle=(0, (1, 2)))
            dress(ax, AXES[x])
        axes[0].set_ylabel("certificate")
        axes[-1].legend(frameon=False, fontsize=9, loc="lower left")


def look(method: str, before: int = 0) -> dict[str, Any]:
    """How a line of this method is drawn; ``before``: how many others of the method the figure has."""
    own = None if method in OTHERS else METHODS[method.removesuffix("-restart")].about.style
    color, dashes, marker = OTHERS[method] if own is None else (own.color, own.dashes, own.marker)
    dashes = (dashes, "--", ":")[before] if dashes == "-" else dashes
    width = 2.4 if "skip" in method and before == 0 else 1.5
    face = color if before == 0 else "white"
    style = {"color": color, "linestyle": dashes, "marker": marker if before < 2 else "*", "markerfacecolor": face}
    return style | {"linewidth": width, "markersize": 5.0}


def spread(points: int) -> int:
    """About eight markers along a line."""
    return max(1, points // 8)


def seconds_of_a_gradient(f: Any, x: Any, count: int = 100) -> float:
    """Of a call of f.gradient: the least of five means."""
    means = []
    for _ in range(5):
        begin = time.perf_counter()
        for _ in range(count):
            f.gradient(x)
        means.append((time.perf_counter() - begin) / count)
    return min(means)


@contextmanager
def timed(psi: Any) -> Iterator[list[float]]:
    """The seconds of every prox of psi's class within the block."""
    kind, spent = type(psi), []
    plain = kind.prox

    def prox(self: Any, x: Any, t: float) -> Any:
        begin = time.perf_counter()
        y = plain(self, x, t)
        spent.append(time.perf_counter() - begin)
        return y

    kind.prox = prox
    try:
        yield spent
    finally:
        kind.prox = plain


def start(f: Any, psi: Any, x0: Any) -> float:
    """The certificate at x0, which tolerances are relative to."""
    x0 = np.asarray(x0, dtype=np.float64)
    step = np.reshape(x0 - np.reshape(f.gradient(x0), x0.shape) / f.L, x0.shape)
    return float(np.linalg.norm(x0 - psi.prox(step, 1 / f.L)) * f.L)


def arguments(text: str, name: str, size: str | None = None) -> argparse.Namespace:
    """--small for a run of seconds, --out for the picture, --size where the example has one."""
    parser = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true", help="a size that takes seconds")
    parser.add_argument("--out", type=Path, default=Path(name + ".png"), help=f"the picture; default: {name}.png")
    if size is not None:
        parser.add_argument("--size", type=int, help=size)
    return parser.parse_args()


def dress(ax: Any, xlabel: str) -> None:
    """A light grid, no box."""
    ax.set_xlabel(xlabel)
    ax.grid(True, color="#DDDDDD", linewidth=0.6)
    ax.spines[["top", "right"]].set_visible(False)


def save(figure: Figure, path: Path) -> None:
    """Write the picture and say where it is."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110, metadata={"Software": "proxskip"})
    print(f"written: {path}")
