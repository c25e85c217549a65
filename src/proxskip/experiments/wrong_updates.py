"""Updates that look harmless and are wrong, beside the right ones: lazy h, top-k without error feedback, large chi."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from proxskip.experiments import claims
from proxskip.experiments.family_savings import plain_curve, plain_panel
from proxskip.experiments.workspace import Workspace
from proxskip.links.codecs import Key, RandK
from proxskip.methods import LoCoDL, Scaffnew, Tamuna
from proxskip.problems.federated import Problem
from proxskip.problems.quadratic import random_quadratics
from proxskip.report.figures import Claim, Experiment, Panel, Series
from proxskip.run import run as run_method
from proxskip.seam import Client
from proxskip.types import Array, UnsafeStepWarning, Vectors


@dataclass(frozen=True, slots=True)
class LazyScaffnew(Scaffnew):
    """The mistake of two public codes: h is updated when the client comes back, with the server's model of that day."""

    about = replace(Scaffnew.about, name="lazy-h", title="lazy h", remembers=("h", "xhat", "seen"))

    def settle(self, client: Client, memory: Vectors, x: Array) -> Vectors:
        """Nothing but that the client took part."""
        return {"seen": 0.0 * memory["xhat"] + 1.0}

    def local_in_cohort(self, client: Client, memory: Vectors, K: int, x: Array) -> tuple[tuple[Array, ...], Vectors]:
        """The update that was due, too late; then the local steps."""
        eta = self.p * (self.chi or 1.0)
        h = memory["h"] + memory["seen"] * (eta / client.own(self.gamma)) * (x - memory["xhat"])
        xhat = client.descend(x, h, client.own(self.gamma), K)
        return (xhat,), {"xhat": xhat, "h": h}


class UnauditedScaffnew(LazyScaffnew):
    """The same, for those who do not look whether the h add up; a run of the former ends as CORRUPTED."""

    def excess(self, problem: Problem, x: Array, server: Vectors, memory: Vectors) -> float | None:
        """Nobody looks."""
        return None


@dataclass(frozen=True)
class TopK(RandK):
    """The k largest entries, which claims to be unbiased and is not: no error feedback makes up for the rest."""

    unbiased = True

    def decode(self, data: bytes, d: int, key: Key) -> Array:
        """As sent."""
        return np.frombuffer(data).copy()

    def encode(self, v: Array, key: Key) -> bytes:
        """All entries, with zeros for the others."""
        out = np.zeros(len(v))
        largest = np.argsort(-np.abs(v), kind="stable")[: self.k]
        out[largest] = v[largest]
        return out.tobytes()


class UncheckedScaffnew(Scaffnew):
    """Scaffnew with any codec, which ``check`` refuses."""

    def check(self, problem: Problem, insist: bool = False) -> list[str]:
        """Nothing is refused."""
        return []


CASES: dict[str, tuple[str, str]] = {
    "lazy-h": ("cohorts of 3 of 6 clients", "Scaffnew with lazy h stalls on cohorts, where the right update does not."),
    "top-k": ("2 of 8 entries", "Top-k without error feedback stalls, where LoCoDL with as many numbers does not."),
    "chi": ("2 owners for each coordinate, 3 clients", "TAMUNA with chi above its bound diverges; at its bound not."),
}
"""For each mistake: its setting, and what is claimed."""
LABELS = {"lazy-h": ("Scaffnew", "lazy h"), "top-k": ("LoCoDL, rand-2", "Scaffnew, top-2"),
          "chi": ("TAMUNA, chi at its bound", "TAMUNA, chi = 2.5")}  # fmt: skip


def heterogeneous(n: int = 6) -> Problem:
    """Quadratics with kappa = 100 and different solutions."""
    return Problem(random_quadratics(n, 8, L=1.0, mu=0.01, seed=0))


def pair(workspace: Workspace, asked: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The right method and the wrong one, for as many rounds; of lazy h also the run that is audited."""
    name, cohort, audited = asked["case"], None, []
    problem = heterogeneous(3 if name == "chi" else 6)
    right: Any
    wrong: Any
    if name == "lazy-h":
        right, wrong, cohort = Scaffnew(1.0, 0.1), UnauditedScaffnew(1.0, 0.1), 3
        audited = [LazyScaffnew(1.0, 0.1)]
    elif name == "top-k":
        right, wrong = LoCoDL.theory(problem, "rand-2"), UncheckedScaffnew(1 / problem.L_max, 0.1, codec=TopK(2))
    else:
        right = Tamuna.theory(problem, s=2)
        wrong = replace(right, chi=2.5)
    given: dict[str, Any] = {"rounds": asked["rounds"], "cohort": cohort, "every": 10, "allow_unsafe_step": True}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UnsafeStepWarning)  # the warnings are right
        return [plain_curve(run_method(m, problem, **given), ("rounds",)) for m in (right, wrong, *audited)]


def judged(name: str, right: Mapping[str, Any], wrong: Mapping[str, Any], *audited: Mapping[str, Any]) -> Claim:
    """The wrong one stays a million times farther from the solution, or diverges; an audited run notices it."""
    good, bad = (None if c["gap"][-1] is None else abs(c["gap"][-1]) for c in (right, wrong))
    lost = wrong["status"] == "diverged" or bad is None or bad > 1e-3
    said = f"{claims.number(good)} against {'divergence' if wrong['status'] == 'diverged' else claims.number(bad)}"
    ok = lost and good is not None and good < 1e-9
    for found in audited:
        ok &= found["status"] == "corrupted"
        said += f"; the audit of a run ends it after {found['rounds']} rounds"
    return claims.claim(f"wrong-{name}", CASES[name][1], ok, said, {"right": good, "wrong": bad})


def run(workspace: Workspace) -> tuple[Experiment, list[Claim]]:
    """One panel for each mistake."""
    asked = workspace.preset
    jobs = [{"case": name, "rounds": asked["chi_rounds" if name == "chi" else "rounds"]} for name in CASES]
    panels: list[Panel] = []
    found: list[Claim] = []
    for name, curves in zip(CASES, workspace.cached_values("wrong", jobs, pair, 1.0), strict=True):
        drawn = [
            Series(label, c["x"], c["gap"], about={"status": c["status"]})
            for label, c in zip(LABELS[name], curves, strict=False)
        ]
        heading = f"{LABELS[name][1]}: {CASES[name][0]}"
        panels.append(plain_panel(name, heading, drawn, "rounds", {"rounds": "communication rounds"}))
        found.append(judged(name, *curves))
    experiment = workspace.experiment("wrong", {k: asked[k] for k in ("rounds", "chi_rounds")}, panels)
    return claims.with_findings(experiment, found)
