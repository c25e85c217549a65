"""`proxskip plan`: choose a method and p by pilots on the problem itself."""

from __future__ import annotations

from argparse import Namespace
from dataclasses import asdict, replace
from typing import Any

from proxskip.cli import output
from proxskip.cli.runs import DONE, NOT_REACHED
from proxskip.experiments import settings
from proxskip.links.network import Network
from proxskip.loop.progress import stage
from proxskip.planner import plan
from proxskip.planning.forecast import Plan
from proxskip.problems.federated import Problem
from proxskip.prox import parse as prox_text
from proxskip.types import InputError


def run(o: Namespace) -> int:
    """Run the pilots and print the plan; exit code 0 if some method is expected to reach eps, otherwise 3."""
    check(o)
    problem, _ = settings.problem_of(settings.spec_of(["scaffnew"], o))
    forecast = _forecast(problem, o)
    if o.json:
        output.as_json(as_data(forecast))
    elif not o.quiet:
        print(forecast)
    return DONE if forecast.best.seconds < float("inf") else NOT_REACHED


def check(o: Namespace) -> None:
    """Refuse one function, and a wrong psi, before any work."""
    if o.clients == 1 or o.D is not None:
        raise InputError(
            "plan is for clients; for one function use proxskip.minimize, which chooses its method while it runs."
        )
    if o.psi is not None:
        prox_text.check(o.psi)


def _forecast(problem: Problem, o: Namespace) -> Plan:
    with stage("pilots", o.quiet or o.json):
        given = {"latency": o.latency, "bandwidth": o.bandwidth, "up": o.bandwidth_up, "speed": o.client_speed}
        given["gradient"] = o.gradient_seconds
        # what is not given keeps the numbers of the named network, or the defaults
        network = replace(o.network or Network(), **{k: v for k, v in given.items() if v is not None})
        return plan(problem, eps=o.eps, seed=o.seed, pilot=o.pilot, network=network, threads=o.threads)


def as_data(forecast: Plan) -> dict[str, Any]:
    """The plan as plain data."""
    return {
        "best": forecast.best.label,
        "sentence": forecast.sentence,
        "eps": forecast.eps,
        "call": "exchange",
        "pilot_seconds": forecast.pilot_seconds,
        "rows": [asdict(row) for row in forecast.rows],
    }
