"""Laws of sums over clients, of mixing matrices, of the graphs by name, and of links that wake and fail at random."""

import pickle
from dataclasses import replace

import networkx as nx
import numpy as np
import pytest
import scipy.sparse
from hypothesis import given, settings
from hypothesis import strategies as st

import proxskip as ps
from proxskip.core.gossip import RandomLinks
from proxskip.graphs import Graph, as_graph, from_matrix, graph, mixing_matrix
from proxskip.support.sums import weighted_sum
from proxskip.types import InputError
from support.tiers import draws


def metropolis(adjacency):
    """The textbook formula, entry by entry."""
    n, degree = len(adjacency), adjacency.sum(axis=1)
    W = np.zeros((n, n))
    for i in range(n):
        for j in range(n):
            if i != j and adjacency[i, j]:
                W[i, j] = 1 / (1 + max(degree[i], degree[j]))
        W[i, i] = 1 - W[i].sum()
    return W


@given(st.sampled_from([0, 1, 2, 6, 200]), st.sampled_from([0, 1, 5, 33]), st.integers(0, 2**32))
def test_weighted_sum_is_the_sum_in_client_order_whatever_the_layout(n, d, seed):
    rng = np.random.default_rng(seed)
    w, U = rng.standard_normal(n), rng.standard_normal((n, d)) * 10.0 ** rng.integers(-8, 8, (n, 1))
    expected = np.zeros(d)
    for i in range(n):
        expected += w[i] * U[i]
    for layout in (U, np.asfortranarray(U), np.repeat(U, 2, axis=1)[:, ::2]):
        assert np.array_equal(weighted_sum(w, layout), expected)
    with pytest.raises(InputError, match=rf"\({n + 1},\) and \({n}, {d}\)"):
        weighted_sum(np.ones(n + 1), U)


@pytest.mark.parametrize(
    ("name", "network"),
    [
        *(("ring", nx.cycle_graph(n)) for n in (2, 3, 4, 16)),
        *(("path", nx.path_graph(n)) for n in (2, 3, 9)),
        *(("star", nx.star_graph(n)) for n in (1, 2, 9)),
        *(("hypercube", nx.hypercube_graph(k)) for k in (1, 2, 5)),
        *(("complete", nx.complete_graph(n)) for n in (2, 3, 49)),
        # as square as they can be
        *(("grid", nx.grid_2d_graph(a, b)) for a, b in ((2, 2), (2, 3), (3, 5), (4, 6), (5, 6))),
        *(("torus", nx.grid_2d_graph(a, b, periodic=True)) for a, b in ((2, 2), (2, 3), (3, 3), (3, 5), (4, 6))),
    ],
)
def test_named_graphs_are_those_of_networkx(name, network):
    W = metropolis(nx.to_numpy_array(network, nodelist=sorted(network)))
    for psd, wanted in ((False, W), (True, (np.eye(len(W)) + W) / 2)):
        g = graph(name, len(W), psd=psd)
        np.testing.assert_allclose(g.W, wanted, atol=1e-15)
        eigenvalues = np.sort(np.linalg.eigvals(wanted).real)
        assert (g.name, g.n, g.delta) == (name, len(W), pytest.approx(1 - eigenvalues[-2], abs=1e-12))
        assert g.lmax == pytest.approx(1 - eigenvalues[0], abs=1e-12)


@pytest.mark.parametrize("n", [2, 3, 7, 49, 100])
def test_the_complete_graph_is_exactly_the_mean(n):
    g = graph("complete", n)
    assert (1 / n == g.W).all()
    X = np.random.default_rng(n).standard_normal((n, 4))
    assert np.array_equal(g.mix(X), np.tile(weighted_sum(np.full(n, 1 / n), X), (n, 1)))


def test_random_graphs_follow_their_seed_and_their_number():
    assert np.array_equal(graph("erdos-renyi:0.4", 15, seed=5).W, graph("erdos-renyi:0.4", 15, seed=5).W)
    assert not np.array_equal(graph("erdos-renyi:0.4", 15, seed=5).W, graph("erdos-renyi:0.4", 15, seed=6).W)
    assert graph("erdos-renyi:1", 6).edges == 15
    assert graph("ring", 6).edges == 6
    assert (np.count_nonzero(graph("regular:3", 12, seed=1).W, axis=1) == 4).all()
    assert all(graph("erdos-renyi:0.25", 10, seed=s).delta > 0 for s in range(20))
    sizes = {"erdos-renyi": (2, 5, 30), "erdos-renyi:0.3": (10, 20), "regular": (5, 6, 20), "regular:3": (4, 10)}
    for name, n in ((name, n) for name, ns in sizes.items() for n in ns):
        W = graph(name, n, seed=3).W
        np.testing.assert_allclose(W, metropolis((W > 0) & ~np.eye(n, dtype=bool)), atol=1e-15)
        np.testing.assert_allclose(graph(name, n, seed=3, psd=True).W, (np.eye(n) + W) / 2, atol=1e-15)


@settings(max_examples=draws(60))
@given(st.integers(2, 9), st.integers(1, 5), st.integers(0, 2**32))
def test_mixing_sums_over_neighbours_in_order_to_the_last_bit(n, d, seed):
    rng = np.random.default_rng(seed)
    g = graph(f"erdos-renyi:{rng.uniform(0.5, 1):.3f}", n, seed=seed)
    X = rng.standard_normal((n, d)) * 10.0 ** rng.integers(-8, 8, (n, 1))
    Y = g.mix(X)
    assert np.array_equal(g.mix(np.asfortranarray(X)), Y)
    for i in range(n):
        heard = np.flatnonzero(g.W[i])
        assert np.array_equal(Y[i], weighted_sum(g.W[i, heard], X[heard]))
        row = slice(g.indptr[i], g.indptr[i + 1])
        assert np.array_equal(g.indices[row], heard)
        assert np.array_equal(g.weights[row], g.W[i, heard])


def test_what_a_client_does_not_hear_cannot_reach_it():
    X = np.ones((8, 2))
    X[4] = np.nan
    assert np.isnan(graph("ring", 8).mix(X)).all(axis=1).tolist() == [i in (3, 4, 5) for i in range(8)]
    with pytest.raises(InputError, match="mixes 8 rows"):
        graph("ring", 8).mix(X[1:])


def test_a_graph_is_read_only_and_survives_a_pickle():
    mine = np.full((3, 3), 1 / 3)
    g = from_matrix(mine)
    mine[0, 0] = 7
    assert g.W[0, 0] == 1 / 3
    for array in (g.W, g.weights, g.indices, g.indptr):
        assert not array.flags.writeable
    copy, X = pickle.loads(pickle.dumps(g)), np.arange(6.0).reshape(3, 2)
    assert (copy.delta, copy.edges) == (g.delta, g.edges)
    assert np.array_equal(copy.mix(X), g.mix(X))


@settings(max_examples=draws(60))
@given(st.integers(2, 10), st.integers(0, 2**32))
def test_metropolis_weights_match_the_textbook(n, seed):
    network = nx.gnp_random_graph(n, 0.6, seed=seed)
    W = mixing_matrix(network)
    np.testing.assert_allclose(W, metropolis(nx.to_numpy_array(network)), atol=1e-15)
    np.testing.assert_allclose(mixing_matrix(network, psd=True), (np.eye(n) + W) / 2, atol=1e-15)


def test_clients_are_the_nodes_by_number_where_nodes_are_numbers():
    network = nx.Graph([(3, 1), (1, 2), (2, 0)])
    W = mixing_matrix(network)
    assert {(i, j) for i, j in np.argwhere(np.triu(W, k=1))} == {(0, 2), (1, 2), (1, 3)}
    named = mixing_matrix(nx.Graph([("d", "b"), ("b", "c"), ("c", "a")]))
    assert {(i, j) for i, j in np.argwhere(np.triu(named, k=1))} == {(0, 1), (1, 2), (2, 3)}


def test_loops_and_parallel_edges_change_nothing():
    plain = nx.cycle_graph(5)
    odd = nx.MultiGraph(plain)
    odd.add_edges_from([(0, 0), (0, 1), (3, 3)])
    assert np.array_equal(mixing_matrix(odd), mixing_matrix(plain))


def test_as_graph_takes_every_form():
    swap = as_graph([[0.0, 1.0], [1.0, 0.0]], 2)  # negative eigenvalues are no reason to refuse
    assert (swap.delta, swap.lmax, swap.edges) == (pytest.approx(2), pytest.approx(2), 1)
    assert as_graph(RING, 6) is RING
    for form in ("ring", nx.cycle_graph(6), RING.W, RING.W.tolist(), scipy.sparse.csr_array(RING.W)):
        assert np.array_equal(as_graph(form, 6).W, RING.W)
    assert np.array_equal(as_graph("erdos-renyi:0.5", 9, seed=4).W, graph("erdos-renyi:0.5", 9, seed=4).W)


RING = graph("ring", 6)


@pytest.mark.parametrize(
    ("form", "n", "sentence"),
    [
        ("rng", 5, "there is no graph 'rng'; use ring, path"),
        ("ring:3", 5, "takes no number"),
        ("grid", 13, "prime number of clients such as 13"),
        ("hypercube", 12, "a power of two"),
        ("ring", 1, "at least two clients, not 1"),
        ("regular:3", 5, "degree 3"),
        ("regular:2.5", 8, "degree 2.5"),
        ("regular:1", 8, "none of 100 draws.*degree of 3"),
        ("erdos-renyi:0.001", 20, "none of 100 draws.*0.15"),
        ("erdos-renyi:0", 8, r"\(0, 1\], not 0"),
        ("erdos-renyi:", 8, "must be a number"),
        (nx.DiGraph([(0, 1), (1, 0)]), 8, "undirected"),
        *((form, 8, "has 6 nodes but there are 8") for form in (RING, nx.cycle_graph(6), RING.W)),
        *(
            (form, 8, "a name, a networkx graph or a real matrix")
            for form in (None, object(), [[1, 2], [3]], np.eye(2) * 1j, [["a", "b"], ["c", "d"]], {})
        ),
    ],
)
def test_names_and_forms_that_cannot_be_built_say_why(form, n, sentence):
    with pytest.raises(InputError, match=sentence):
        as_graph(form, n)


def changed(*entries):
    """The mixing matrix of a ring of five with other entries."""
    W = graph("ring", 5).W.copy()
    for i, j, value in entries:
        W[i, j] = value
    return W


@pytest.mark.parametrize(
    ("W", "sentence"),
    [
        (np.ones((2, 3)), r"square.*\(2, 3\)"),
        (3.0, r"square.*\(\)"),
        (np.ones((0, 0)), "at least two clients, not 0"),
        (changed((1, 2, np.nan)), r"W\[1, 2\] = nan.*finite"),
        (changed((0, 2, -0.1), (2, 0, -0.1)), r"W\[0, 2\] = -0.1.*negative"),
        (changed((3, 2, 0.25)), r"not symmetric.*0\.0?.*8\.33e-02 apart"),
        (changed((3, 3, 0.36)), "row 3 .* sums to 1.0266"),
        (changed((0, 0, 1e308), (0, 1, 1e308), (1, 0, 1e308)), "row 0 .* sums to inf"),
        (np.eye(4), "not connected: its 4 parts would"),
    ],
)
def test_a_matrix_that_cannot_mix_is_refused_with_its_numbers(W, sentence):
    for build in (from_matrix, lambda W: Graph("direct", W)):
        with pytest.raises(InputError, match=sentence):
            build(W)


HALF, PATH = np.full((2, 2), 0.5), np.array([[0.5, 0.5, 0.0], [0.5, 0.0, 0.5], [0.0, 0.5, 0.5]])


@pytest.mark.parametrize(
    ("sentence", "W", "fault", "refused", "taken"),
    [
        ("not symmetric", HALF, [[-1, 1], [0, 0]], (1e-11, 1e-3), (0.0, 1e-14)),
        ("sums to", HALF, [[0, 0], [0, 1]], (1e-11, 1e-3), (0.0, 1e-14)),
        ("negative", PATH, [[1, 0, -1], [0, 0, 0], [-1, 0, 1]], (1e-11, 1e-3), (0.0, 1e-14)),
        ("almost disconnected", np.eye(2), [[-0.5, 0.5], [0.5, -0.5]], (1e-14, 1e-13), (1e-11, 1e-3)),
    ],
)
def test_only_what_rounding_explains_is_forgiven(sentence, W, fault, refused, taken):
    for size in refused:
        with pytest.raises(InputError, match=sentence):
            from_matrix(W + size * np.array(fault))
    for size in taken:
        g = from_matrix(W + size * np.array(fault))
        assert g.delta == pytest.approx(1 - np.sort(np.linalg.eigvals(g.W).real)[-2], abs=1e-12)


# links that wake and fail at random
PROBLEM = ps.Problem(ps.random_quadratics(6, 4, mu=0.1, seed=1))


def test_links_wake_as_often_as_they_should_and_carry_what_they_should():
    d, k, p = 5, 2, 0.3
    links = RandomLinks(RING, p, k)
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
    assert np.all(np.abs(awake[np.triu(RING.W, k=1) > 0] / rounds - p) < spread)
    assert np.ptp(often) < 0.1 * often.mean()
    unbiased = X + p * k / d * (RING.mix(X) - X)
    assert np.abs(mean - unbiased).max() < 0.1 * np.abs(unbiased - X).max()


def test_links_that_fail_are_counted_and_survive_a_run_folder(tmp_path):
    method = ps.DecentralizedScaffnew.theory(PROBLEM, graph="ring,failing:0.3")
    assert method.graph.failure == 0.3
    ps.run(method, PROBLEM, rounds=20, out=tmp_path / "a")
    straight = ps.run(method, PROBLEM, rounds=40)
    assert ps.resume(tmp_path / "a", PROBLEM, rounds=40).x.tobytes() == straight.x.tobytes()
    sent = straight.trace.last()["edge_messages"]
    assert abs(sent / (40 * 12) - 0.7) < 5 * np.sqrt(0.21 / 240)
    assert straight.trace.last()["floats_up"] == 4 * sent
    assert ps.run(method, PROBLEM, tol=1e-9, rounds=20_000).success


def test_a_link_of_random_gossip_is_awake_if_it_wakes_and_does_not_fail():
    awake, failing, rounds = 0.5, 0.4, 200
    method = ps.RandomGossip.theory(PROBLEM, graph=RING.failing(failing), p_e=awake)
    sent = ps.run(method, PROBLEM, rounds=rounds).trace.last()["edge_messages"]
    share = awake * (1 - failing)
    assert abs(sent / (rounds * 12) - share) < 5 * np.sqrt(share * (1 - share) / (rounds * 6))
    # what sleeps costs what it costs in the theorem
    assert method.omega == pytest.approx(1 / share - 1)


def test_links_that_cannot_be_are_refused():
    for call, said in (
        (lambda: RING.failing(1.0), "must lie in"),
        (lambda: ps.DecentralizedScaffnew.theory(PROBLEM, graph=RING.failing(0.6)), "use random-gossip"),
        (lambda: ps.run(ps.EXTRA.theory(PROBLEM, graph=RING.failing(0.1)), PROBLEM, rounds=1), "does not tolerate"),
        (lambda: ps.run(ps.RandomGossip(0.1, 0.1, RING, 0.5, omega=0.0), PROBLEM, rounds=1), "omega = 0 must be"),
        (lambda: ps.run(replace(ps.RandomGossip.theory(PROBLEM), tau=99.0), PROBLEM, rounds=1), "at most"),
    ):
        with pytest.raises(ps.InputError, match=said):
            call()
