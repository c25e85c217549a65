"""The server's checks: each update before it is used, the sum of the h, and the gradient at x."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from proxskip.codecs import Codec, Key
from proxskip.codecs.contract import Encoded
from proxskip.core.dry_run import IdleClient, Route, Trip
from proxskip.core.method import Method
from proxskip.flower import halves
from proxskip.flower.messages import Answer
from proxskip.flower.server_half import Call
from proxskip.flower.tickets import Outcome, ServerState, Ticket
from proxskip.problems import accuracy, prox_check
from proxskip.problems.federated import Problem
from proxskip.problems.oracles import knows_L
from proxskip.results.result import Status
from proxskip.running.audit import allowed, rounded_scale
from proxskip.running.stop import Stop
from proxskip.running.watch import RunWatch, grown, start_of
from proxskip.support.sums import weighted_sum
from proxskip.types import Array, InputError, Vectors


def read(answer: Answer, round: int, route: Route, key: Key) -> tuple[tuple[Array, ...], str | None]:
    """The decoded vectors of an answer, and the reason to reject them: None for sound ones."""
    if len(answer.up) != len(route):
        return (), f"it holds {len(answer.up)} vectors instead of {len(route)}"
    vectors: list[Array] = []
    for k, (sent, trip) in enumerate(zip(answer.up, route, strict=True)):
        vector = _decoded(k, sent, trip, key)
        if isinstance(vector, str):
            return (), vector
        vectors.append(vector)
    if answer.round != round:
        return (), f"it says round {answer.round}"
    for k, v in enumerate(vectors):
        bad = np.flatnonzero(~np.isfinite(v))
        if len(bad):
            return (), f"entry {bad[0]} of vector {k} is {v[bad[0]]}"
    return tuple(vectors), None if math.isfinite(answer.value) else f"its value is {answer.value}"


def _decoded(k: int, sent: Array | Encoded, trip: Trip, key: Key) -> Array | str:
    """Vector k as the server reads it, or what is wrong with it."""
    if trip.codec is None:
        if isinstance(sent, Encoded):
            return f"the {len(sent)} bytes of vector {k} are in the wrong format"
        if len(sent) != trip.length:
            return f"vector {k} has {len(sent)} numbers instead of {trip.length}"
        return sent
    if not isinstance(sent, Encoded):
        return f"the {8 * len(sent)} bytes of vector {k} are in the wrong format"
    mine = replace(key, vector=trip.number)
    expected = -(-trip.codec.bits(trip.length, mine) // 8)
    if len(sent) != expected:
        return f"vector {k} has {len(sent)} bytes instead of {expected}"
    return trip.codec.decode(sent, trip.length, mine)


def route_of(method: Method, call: Call, d: int, wire_codec: Codec | None) -> Route:
    """How the vectors of this exchange travel, from running the half on a client that does nothing."""
    half = halves.allowed(method).get(call.half)
    if half is None:
        raise InputError(
            f'{method.name} asks its clients for "{call.half}", which a message cannot name; define it as a public '
            "method with the arguments (self, client, memory, ...)."
        )
    zeros = {k: np.zeros(d) for k in method.remembers}
    idle = IdleClient(wire_codec)
    return idle.route(half, zeros, 1, call.down, call.numbers(0))


def excess(method: Method, problem: Problem, server: Vectors, cohort: Sequence[int], H: Array) -> Array:
    """sum_i w_i h_i over these clients minus its target: zero, or Scaffold's c."""
    target: Array = np.asarray(method.known_sum(problem, server))
    return weighted_sum(problem.weights[list(cohort)], H) - target


def audited(
    method: Method, problem: Problem, names: Sequence[str], state: ServerState, ticket: Ticket
) -> tuple[Status, str] | None:
    """With all available h: restore the lost ones, or check the sum and set it to zero.

    Returns how the run ends if a client does not follow the protocol.
    """
    others = ticket.asked
    H = np.array([ticket.answers[i].up[0] for i in others]).reshape(-1, problem.d)
    total = excess(method, problem, state.vectors, others, H)
    state.audited = state.tried = state.round
    if state.lost:
        _restore(method, problem, names, state, total)
        return None
    size, now = float(np.abs(total).max()), rounded_scale(method, state.round, state.vectors["x"], H)
    state.counts.audits += 1
    state.sum_h, state.void, state.scale = size, 0, max(state.scale, now)
    if size <= allowed(state.scale, state.round):
        state.recentred = False
        return None
    name = method.about.summed
    what = "sum_i w_i h_i" if name == "h" else f"sum_i w_i {name}_i - {name}"
    # once may be a fault that is now repaired; twice is a client that does not follow the protocol
    if state.recentred:
        reason = f"{what} is {size:.3g} again after it was set to zero: a client does not follow the protocol."
        return Status.CORRUPTED, reason
    state.counts.recentred += 1
    state.note(f"{what} was {size:.3g} after round {state.round}; set to zero.")
    state.count(ticket.answers, others, Outcome(halves.RECENTRE, (total,)))
    state.recentred, state.scale = True, now
    return None


def _restore(method: Method, problem: Problem, names: Sequence[str], state: ServerState, total: Array) -> None:
    """Give the clients that lost their h what is missing from the sum of the others."""
    lost = sorted(state.lost)
    # exact for one client; several share the missing part, which keeps the sum right
    state.adopt(lost, -total / float(problem.weights[lost].sum()))
    for i in lost:
        state.note(f"{names[i]} has its {method.about.summed} again.")
    state.counts.repaired += len(lost)
    state.lost, state.tried = set(), -1


def measured(
    method: Method, problem: Problem, stop: Stop, state: ServerState, ticket: Ticket
) -> tuple[Status, str] | None:
    """The gradient norm (with psi the prox-gradient residual) and the value at x, of all clients.

    The measurement of x0 sets the norm above which the run counts as diverged, if L and mu are known. Returns how the
    run ends if the norm has grown beyond that.
    """
    (g,) = ticket.means[-1].vectors
    state.measured, state.grad_norm, state.f = state.round, math.nan, math.nan
    if len(ticket.asked) < problem.n:
        return None
    x = state.vectors["x"]
    G = np.array([ticket.answers[i].up[0] for i in ticket.asked])
    f = float(sum(problem.weights[i] * ticket.answers[i].value for i in ticket.asked))
    # rounding of the gradients, relative to the terms that cancel in their sum
    sizes = np.array([float(np.linalg.norm(row)) for row in G])
    L = problem.L_max if all(map(knows_L, problem.clients)) else 0.0
    size = float(problem.weights[list(ticket.asked)] @ sizes) + L * float(np.linalg.norm(x))
    residual = accuracy.Bounded(float(np.linalg.norm(g)), accuracy.ASSUMED_ULPS * accuracy.UNIT * size)
    probed = None
    if problem.psi is not None:
        probed = prox_check.of_operator(problem.psi)
        residual = accuracy.prox_residual(probed or problem.psi.prox, x, g, residual.error, 1.0 / problem.L_average)
        f += float(problem.psi(x))
    state.grad_norm, state.f = residual.value, f
    if state.round == 0 and problem.mu is not None and problem.knows_L:
        state.ceiling = RunWatch.of(method, problem, start_of(problem, G, None), residual.value).blown_up
    if residual.value > state.ceiling:
        return grown(residual.value, state.round)
    hidden = 0.0
    if probed is not None and stop.tol is not None and stop.reached({"grad_norm": residual.most}):
        hidden, doubt = probed.spoils, probed.doubt(stop.tol, stop.tol)
        if doubt is not None:
            return stop.converged(state.round, doubt)
    state.reached = state.reached or stop.reached({"grad_norm": residual.most + hidden})
    is_below_rounding = stop.tol is not None and stop.tol < residual.error
    state.at_rounding = is_below_rounding and residual.value <= residual.error
    return None
