"""Pictures of which method is fastest over which network: docs/network-<name>.png, one for each named network.

    python benchmarks/network_time.py docs

Logistic regression on the digits, 10 clients split by label with equal weights, to a gradient norm of 1e-4.
"""

from __future__ import annotations

import argparse
import warnings
from pathlib import Path
from typing import Any

import proxskip as ps
from proxskip.networks import NAMED
from proxskip.support.display import duration
from proxskip.support.palette import BLACK, BLUE, GREEN, GREY, ORANGE

EPS = 1e-4
MAX_ROUNDS = 2_000
STEPS = (1, 2, 4, 8, 16, 32, 64)
"""Mean local steps 1/p of the second panel."""
LOOKS = ((GREY, "-", "s"), (BLUE, "--", "P"), (GREEN, "-.", "X"), (ORANGE, "-", "o"), (BLACK, ":", "v"))
"""Color, dashes and marker of each racer."""


def problem() -> ps.Problem:
    """The digits, with a condition number at which local steps matter."""
    A, b = ps.datasets.load("digits")
    return ps.split(ps.Logistic(A, b, l2_relative=3e-3), clients=10, by="label", weights="equal")


def simulated(method: Any, f: ps.Problem, network: ps.Network, cohort: int | None = None) -> ps.Result:
    """The run itself, over the network."""
    return ps.run(method, f, tol=EPS, rounds=MAX_ROUNDS, cohort=cohort, network=network, progress=False)


def picture(name: str, out: Path) -> None:
    """The race over one network, and the time to the tolerance against the number of local steps."""
    from matplotlib.figure import Figure

    f, network = problem(), ps.Network.named(name)
    best = ps.Scaffnew.theory(f)
    racers = {
        "gradient descent": (ps.GD.theory(f), None),
        "Nesterov": (ps.Accelerated.theory(f), None),
        "5GCS, two steps": (ps.FiveGCS.theory(f, figure=True), None),
        f"Scaffnew, p = {best.p:.2g}": (best, None),
        "Scaffnew, cohorts of 5": (ps.Scaffnew.theory(f, cohort=5), 5),
    }
    found = {label: simulated(method, f, network, cohort) for label, (method, cohort) in racers.items()}
    figure = Figure(figsize=(11.5, 4.7), layout="constrained")
    left, right = figure.subplots(1, 2)
    for (label, r), (color, dashes, marker) in zip(found.items(), LOOKS, strict=True):
        style = {"color": color, "linestyle": dashes, "marker": marker, "markevery": 0.12, "markersize": 5}
        # the start is at time zero, which a logarithmic axis does not have
        left.loglog(r.trace["sim_seconds"][1:], r.trace["grad_norm"][1:], label=label, **style)
    left.axhline(EPS, color="#999999", lw=0.8)
    left.set(xlabel="simulated seconds", ylabel="gradient norm at the communicated x")
    left.set_title("the race", fontsize=10)
    left.legend(fontsize=9, edgecolor="none", ncols=3, loc="upper center", bbox_to_anchor=(0.5, -0.14))
    times = [simulated(ps.Scaffnew(best.gamma, 1 / k), f, network).summary for k in STEPS]
    reached = [(k, s["sim_seconds"]) for k, s in zip(STEPS, times, strict=True) if s["success"]]
    right.loglog(*zip(*reached, strict=True), "o-", color=ORANGE, label="Scaffnew with this 1/p")
    for (label, r), (color, dashes, marker) in zip(found.items(), LOOKS, strict=True):
        if r.success and not label.startswith("Scaffnew, p"):
            seconds = [r.summary["sim_seconds"]] * len(STEPS)
            right.loglog(STEPS, seconds, dashes, color=color, marker=marker, markersize=5, label=label)
    right.set(xlabel="local steps per round, 1/p", ylabel=f"simulated seconds to {EPS:g}")
    right.set_title("where local steps pay", fontsize=10)
    right.legend(fontsize=9, edgecolor="none", ncols=3, loc="upper center", bbox_to_anchor=(0.5, -0.14))
    figure.suptitle(f"Network {name}: digits, 10 clients", fontsize=11)
    figure.savefig(out / f"network-{name}.png", dpi=110)
    print(f"{out / f'network-{name}.png'}: " + ", ".join(f"1/p = {k}: {duration(t)}" for k, t in reached), flush=True)


def main() -> None:
    """The pictures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where the pictures go")
    parser.add_argument("names", nargs="*", default=list(NAMED), help="networks; default: all that have a name")
    o = parser.parse_args()
    warnings.simplefilter("ignore")
    for name in o.names:
        picture(name, o.folder)


if __name__ == "__main__":
    main()
