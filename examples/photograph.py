"""Deblurring a photograph of 256 x 256 pixels with the isotropic total variation.

    min_x  1/2 |K x K' - b|^2 + mu/2 |x|^2 + lam TV(x)

The prox is an optimization problem of its own, with 130,000 dual variables. Its inner solver starts where it ended and
stops at an accuracy that follows that of the iterates, so that FISTA's many proxes are cheap and APDA's few are not.
``minimize`` finds that out by itself. The picture is "camera" of scikit-image, every second pixel each way averaged.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import race
from deblurring import Blur
from matplotlib.figure import Figure
from skimage.data import camera

from proxskip.prox import TV2D


def solve(small: bool = False) -> tuple[race.Race, np.ndarray]:
    """The race, and the picture."""
    k = 8 if small else 2
    side = 512 // k
    picture = camera().reshape(side, k, side, k).mean(axis=(1, 3)) / 255.0
    f = Blur(picture, width=1.5, noise=3e-3, mu=1e-4)
    psi = TV2D(3e-4, picture.shape, threads=1)
    methods = {"auto": ("auto", {}), "FISTA with restart": ("fista-restart", {}), "APDA": ("apda", {"seconds": 30})}
    title = f"Deblurring with the isotropic total variation, {side} x {side}"
    tol = (1e-3 if small else 1e-4) * race.start(f, psi, f.b)
    return race.Race(title, f, psi, f.b, methods, tol, {"seconds": 90}).run(), picture


def conclusion(found: tuple[race.Race, np.ndarray]) -> str:
    """What was chosen, and what it cost."""
    done, picture = found
    best = done.results["auto"]
    before, after = (np.linalg.norm(x - picture) / np.linalg.norm(picture) for x in (done.f.b, best.x))
    chosen = ", ".join(f"{name} from round {k}" for k, name in best.choices[:-1])
    return (
        f"auto took {best.seconds:.1f} s: {chosen}. The error fell from {before:.1%} to {after:.1%}. A prox cost FISTA "
        f"{done.cost('FISTA with restart'):.0f} gradients and APDA {done.cost('APDA'):.0f}."
    )


def draw(found: tuple[race.Race, np.ndarray], out: Path) -> None:
    """The pictures, and the curves."""
    done, picture = found
    figure = Figure(figsize=(9.5, 6.2), layout="constrained")
    top, bottom = figure.subfigures(2, 1, height_ratios=(1.25, 1))
    shown = (("original", picture), ("blurred, with noise", done.f.b), ("recovered", done.results["auto"].x))
    for ax, (title, image) in zip(top.subplots(1, 3), shown, strict=True):
        error = np.linalg.norm(image - picture) / np.linalg.norm(picture)
        ax.imshow(image, cmap="gray", vmin=0, vmax=1)
        ax.set_title(title if error == 0 else f"{title}: error {error:.1%}", fontsize=9)
        ax.axis("off")
    done.curves(bottom.subplots(1, 2, sharey=True))
    figure.suptitle(done.title, fontsize=11)
    race.save(figure, out)


def main() -> None:
    o = race.arguments(__doc__, "photograph")
    found = solve(o.small)
    print(found[0].table(), conclusion(found), sep="\n")
    draw(found, o.out)


if __name__ == "__main__":
    main()
