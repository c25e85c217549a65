"""The server's checks: each update before it is used, the sum of the h, and the gradient at x."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from proxskip.interfaces import Method
from proxskip.interfaces.dry_run import IdleClient, Route
from proxskip.links.codecs import Codec, Key
from proxskip.links.sums import weighted_sum
from proxskip.loop.audit import allowed, rounded_scale
from proxskip.loop.stop import Stop
from proxskip.loop.watch import RunWatch, grown, start_of
from proxskip.problems import accuracy
from proxskip.problems.federated import Problem
from proxskip.problems.oracles import knows_L
from proxskip.protocol import allowed_halves
from proxskip.protocol.replay import Call
from proxskip.protocol.state import Outcome, ServerState
from proxskip.protocol.wire import Answer
from proxskip.results.result import Status
from proxskip.types import Array, InputError

GROWTH, SPREAD = 1e3, 1e6
"""An upload is rejected if it exceeds these multiples of the largest before it and of the median of the others."""
DIVERGED = 1e12
"""How far |x| may grow before the run counts as diverged."""


def size(up: Sequence[Array]) -> float:
    """The norm of an upload; infinite if it overflows."""
    with np.errstate(over="ignore"):
        return max((float(np.linalg.norm(v)) for v in up), default=0.0)


def out_of_proportion(state: ServerState) -> dict[int, str]:
    """The clients whose upload is far larger than all uploads before and most others now, with the reason."""
    assert state.call is not None
    sizes = {i: size(reply.up) for i, reply in state.answers.items()}
    before, all_sizes = state.sizes.get(state.call.half, 0.0), np.array(list(sizes.values()))
    reasons = {}
    for k, (i, mine) in enumerate(sizes.items()):
        if mine > GROWTH * before:
            with np.errstate(over="ignore"):
                now = float(np.median(np.delete(all_sizes, k))) if len(sizes) > 1 else 0.0
            if 0 < max(GROWTH * before, SPREAD * now) < mine:
                reasons[i] = (
                    f"its upload has norm {mine:.3g}, the others {now:.3g}, and none before exceeded {before:.3g}"
                )
    return reasons


def diverges(state: ServerState, x: Array) -> str | None:
    """The message if this x has diverged, else None."""
    norm, first = size([x]), state.first_x
    if state.round and first > 0 and norm > DIVERGED * first:
        return f"|x| grew from {first:.3g} to {norm:.3g} by round {state.round}; use a smaller gamma."
    return None


def read(answer: Answer, round: int, route: Route, d: int, key: Key) -> tuple[tuple[Array, ...], str | None]:
    """The decoded vectors of an answer, and the reason to reject them: None for sound ones."""
    if len(answer.up) != len(route):
        return (), f"it holds {len(answer.up)} vectors instead of {len(route)}"
    vectors: list[Any] = []
    for k, (v, (codec, number)) in enumerate(zip(answer.up, route, strict=True)):
        if isinstance(v, bytes) is (codec is None):
            return (), f"the {len(v) * (1 if codec is None else 8)} bytes of vector {k} are in the wrong format"
        if isinstance(v, bytes) and codec is not None:
            mine = replace(key, vector=number)
            if len(v) != -(-codec.bits(d, mine) // 8):
                return (), f"vector {k} has {len(v)} bytes instead of {-(-codec.bits(d, mine) // 8)}"
            vectors.append(codec.decode(v, d, mine))
        else:
            vectors.append(v)
    if answer.round != round:
        return (), f"it says round {answer.round}"
    for k, v in enumerate(vectors):
        bad = np.flatnonzero(~np.isfinite(v))
        if len(bad):
            return (), f"entry {bad[0]} of vector {k} is {v[bad[0]]}"
    return tuple(vectors), None if math.isfinite(answer.value) else f"its value is {answer.value}"


def route_of(method: Method, call: Call, d: int, wire_codec: Codec | None) -> Route:
    """How the vectors of this exchange travel, from running the half on a client that does nothing."""
    half = allowed_halves.allowed(method).get(call.half)
    if half is None:
        raise InputError(
            f'{method.name} asks its clients for "{call.half}", which a message cannot name; define it as a public '
            "method with the arguments (self, client, memory, ...)."
        )
    zeros = {k: np.zeros(d) for k in method.remembers}
    idle = IdleClient(wire_codec)
    return idle.route(half, zeros, 1, call.down, call.numbers(0))


def excess(method: Method, problem: Problem, state: ServerState, cohort: Sequence[int], H: Array) -> Array:
    """sum_i w_i h_i over these clients minus its target: zero, or Scaffold's c."""
    target: Array = np.asarray(method.known_sum(problem, state.vectors))
    return weighted_sum(problem.weights[list(cohort)], H) - target


def audited(method: Method, problem: Problem, names: Sequence[str], state: ServerState) -> ServerState:
    """With all available h: restore the lost ones, or check the sum and set it to zero."""
    others = state.asked
    H = np.array([state.answers[i].up[0] for i in others]).reshape(-1, problem.d)
    total = excess(method, problem, state, others, H)
    state = state.but(audited=state.round, tried=state.round)
    name = method.about.summed
    if state.lost:
        # exact for one client; several share the missing part, which keeps the sum right
        h = -total / float(problem.weights[sorted(state.lost)].sum())
        state = state.adopt(sorted(state.lost), h)
        for i in sorted(state.lost):
            state = state.note(f"{names[i]} has its {name} again.")
        return state.count("repaired", len(state.lost)).but(lost=frozenset(), tried=-1)
    size, now = float(np.abs(total).max()), rounded_scale(method, state.round, state.vectors["x"], H)
    state = state.count("audits").but(sum_h=size, void=0, scale=max(state.scale, now))
    if size <= allowed(state.scale, state.round):
        return state.but(broken=False)
    what = "sum_i w_i h_i" if name == "h" else f"sum_i w_i {name}_i - {name}"
    # once may be a fault that is now repaired; twice is a client that does not follow the protocol
    if state.broken:
        reason = f"{what} is {size:.3g} again after it was set to zero: a client does not follow the protocol."
        return state.fail((Status.CORRUPTED, reason))
    state = state.count("recentred").note(f"{what} was {size:.3g} after round {state.round}; set to zero.")
    return state.commit(others, Outcome(allowed_halves.RECENTRE, (total,))).but(broken=True, scale=now)


def measured(method: Method, problem: Problem, stop: Stop, state: ServerState) -> ServerState:
    """The gradient norm (with psi the prox-gradient residual) and the value at x, of all clients.

    The measurement of x0 sets the norm above which the run counts as diverged, if L and mu are known.
    """
    (g,) = state.means[-1].vectors
    if len(state.asked) < problem.n:
        return state.but(measured=state.round, grad_norm=math.nan, f=math.nan)
    f = float(sum(problem.weights[i] * state.answers[i].value for i in state.asked))
    x = state.vectors["x"]
    # rounding of the gradients, relative to the terms that cancel in their sum
    sizes = [float(np.linalg.norm(state.answers[i].up[0])) for i in state.asked]
    L = problem.L_max if all(map(knows_L, problem.clients)) else 0.0
    size = float(problem.weights[list(state.asked)] @ np.array(sizes)) + L * float(np.linalg.norm(x))
    residual = accuracy.Bounded(float(np.linalg.norm(g)), accuracy.ASSUMED_ULPS * accuracy.UNIT * size)
    if problem.psi is not None:
        residual = accuracy.prox_residual(problem.psi.prox, x, g, residual.error, 1.0 / problem.L_global)
        f += float(problem.psi(x))
    norm = residual.value
    state = state.but(measured=state.round, grad_norm=norm, f=f)
    if state.round == 0 and problem.mu is not None:
        G = np.array([state.answers[i].up[0] for i in state.asked])
        state = state.but(ceiling=RunWatch.of(method, problem, start_of(problem, G, None), norm).blown_up)
    if norm > state.ceiling:
        return state.fail(grown(norm, state.round))
    # the norm is at the level of rounding, and the tolerance is below it
    hopeless = stop.tol is not None and stop.tol < residual.error and norm <= residual.error
    return state.but(reached=state.reached or stop.reached({"grad_norm": residual.most}), at_rounding=hopeless)
