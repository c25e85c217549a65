"""Links that wake and fail at random: how often, what they carry, what is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import proxskip as ps
from proxskip.links.gossip import RandomLinks


def test_links_wake_as_often_as_they_should_and_carry_what_they_should() -> None:
    graph, d, k, p = ps.graphs.graph("ring", 6), 5, 2, 0.3
    links = RandomLinks(graph, p, k)
    X = np.arange(30.0).reshape(6, 5) ** 1.5
    awake, often, mean, rounds = np.zeros((6, 6)), np.zeros(d), np.zeros_like(X), 3000
    for r in range(rounds):
        drawn = links.draw(1, r, d)
        assert (drawn.mask.sum(axis=1) == k).all()
        assert (drawn.messages, drawn.floats(d)) == (2 * len(drawn.i), 2 * k * len(drawn.i))
        awake[drawn.i, drawn.j] += 1
        often += drawn.mask.sum(axis=0)
        mixed = drawn.mix(X)
        still = np.setdiff1d(np.arange(6), [*drawn.i, *drawn.j])
        assert mixed[still].tobytes() == X[still].tobytes()
        assert np.allclose(mixed.sum(axis=0), X.sum(axis=0), rtol=1e-14)
        mean += mixed / rounds
    spread = 5 * np.sqrt(p * (1 - p) / rounds)
    assert np.all(np.abs(awake[np.triu(graph.W, k=1) > 0] / rounds - p) < spread)
    assert np.ptp(often) < 0.1 * often.mean()
    unbiased = X + p * k / d * (graph.mix(X) - X)
    assert np.abs(mean - unbiased).max() < 0.1 * np.abs(unbiased - X).max()


def test_links_that_fail_are_counted_and_survive_a_run_folder(tmp_path: Path) -> None:
    problem = ps.Problem(ps.random_quadratics(6, 4, mu=0.1, seed=1))
    method = ps.DecentralizedScaffnew.theory(problem, "ring,failing:0.3")
    assert method.graph.failure == 0.3
    ps.run(method, problem, rounds=20, out=tmp_path / "a")
    straight = ps.run(method, problem, rounds=40)
    assert ps.resume(tmp_path / "a", problem, rounds=40).x.tobytes() == straight.x.tobytes()
    sent = straight.trace.last()["edge_messages"]
    assert abs(sent / (40 * 12) - 0.7) < 5 * np.sqrt(0.21 / 240)
    assert straight.trace.last()["floats_up"] == 4 * sent
    assert ps.run(method, problem, tol=1e-9, rounds=20_000).success


def test_links_that_cannot_be_are_refused() -> None:
    problem = ps.Problem(ps.random_quadratics(6, 4, mu=0.1, seed=1))
    ring = ps.graphs.graph("ring", 6)
    for call, said in (
        (lambda: ring.failing(1.0), "must lie in"),
        (lambda: ps.DecentralizedScaffnew.theory(problem, ring.failing(0.6)), "use random-gossip"),
        (lambda: ps.run(ps.EXTRA.theory(problem, ring.failing(0.1)), problem, rounds=1), "does not tolerate"),
        (lambda: ps.run(ps.RandomGossip(0.1, 0.1, ring, 0.5), problem, rounds=1), "omega = 0 must be"),
        (lambda: ps.run(replace(ps.RandomGossip.theory(problem), tau=99.0), problem, rounds=1), "at most"),
    ):
        with pytest.raises(ps.InputError, match=said):
            call()
