"""The ledger against Table 1, and against a postman who counts every letter himself."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

import proxskip as ps
from conftest import METHODS, NAMED, Row, quadratics, thinned
from proxskip.engines.reference import ReferenceEngine
from proxskip.interfaces import Work
from proxskip.links.cohorts import Everyone
from proxskip.loop.ledger import Meter
from proxskip.loop.metered_exchange import Line
from proxskip.randomness import stream
from proxskip.theory import table1

R = 17
rows = pytest.mark.parametrize("row", METHODS, ids=lambda row: row.name)
some_rows = pytest.mark.parametrize("row", thinned(METHODS, 4))


class Postman(ReferenceEngine):
    """Counts vectors, steps and gradients where they happen, client by client."""

    def __init__(self) -> None:
        self.up = self.down = self.calls = self.steps = self.gradients = 0
        self.letters: dict[int, list[bytes]] = {}

    def run(self, request: Any) -> Any:
        cohort, K, down = request.cohort, request.K, request.down
        self.calls += 1
        for i in cohort:
            # what the client must be told now: this exchange's vectors, and an outcome it has not heard yet
            sent = [v.tobytes() for v in down]
            unheard = [v for v in self.letters.pop(int(i), []) if v not in sent]
            self.down += len(sent) + len(unheard)
        work = super().run(request)
        self.up += len(work.up) * len(cohort)
        self.gradients += work.gradients
        self.steps += int(np.sum(np.broadcast_to(K if work.steps is None else work.steps, (len(cohort),))))
        return work

    def tell(self, half: Any, cohort: Any, outcome: Any) -> None:
        if outcome[0].ndim == 1:  # a row each is gossip, which came along the edges
            for i in cohort:
                self.letters[int(i)] = [v.tobytes() for v in outcome]
        super().tell(half, cohort, outcome)


def ledger(row: Row, engine: Any = "reference", batch: int | None = None, **given: Any) -> dict[str, float]:
    """The last row of a run of R rounds on rows of data."""
    problem = row.rows()
    method = row.make(problem)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ps.UnsafeStepWarning)
        result = ps.run(method, problem.with_batch(batch), rounds=R, cohort=row.cohort, engine=engine, seed=2,
                        allow_unsafe_step=True, **given)  # fmt: skip
    return result.trace.last()


@rows
def test_ledger_counts_what_moves(row: Row) -> None:
    postman = Postman()
    last = ledger(row, postman)
    gossip = row.down == 0
    assert last["vectors_down"] == (0 if gossip else postman.down)
    assert last["vectors_up"] == (last["edge_messages"] if gossip else postman.up)
    assert last["exchanges"] == postman.calls
    assert last["grad_evals"] == postman.gradients
    assert last["local_steps"] == postman.steps


@rows
def test_ledger_is_table_one(row: Row) -> None:
    problem = row.rows()
    last = ledger(row)
    clients = row.cohort if isinstance(row.cohort, int) else problem.n
    if row.up is not None:
        assert last["vectors_up"] == R * clients * row.up
    if row.down is not None:
        assert last["vectors_down"] == R * clients * row.down
    if row.exchanges is not None:
        assert last["exchanges"] == R * row.exchanges
    assert last["prox_evals"] == (R if problem.psi is not None else 0)
    for way in ("down",) if row.masked else ("up", "down"):
        numbers = R * clients * row.numbers if way == "down" else 0
        sent = problem.d * last[f"vectors_{way}"] + numbers
        wanted = (sent, 8 * sent, 64 * sent)
        if way == "up" and row.coded is not None:
            wanted = tuple(R * k for k in row.coded(problem.d))  # type: ignore[assignment]
        assert (last[f"floats_{way}"], last[f"bytes_{way}"], last[f"bits_{way}"]) == wanted
    assert last["passes"] == last["grad_evals"] / problem.N


@some_rows
@pytest.mark.long
def test_gradients_are_counted_in_samples(row: Row) -> None:
    """Every client has 24 rows (96 where it is alone): steps times rows, and the anchors' full gradients."""
    problem = row.rows()
    last = ledger(row)
    each = 96 // problem.n
    if row.extra is None:
        assert last["grad_evals"] % each == 0
        assert last["grad_evals"] >= last["local_steps"] * each
        return
    per_round = R * 96 * row.extra
    if row.name == "s-local-gd-q":
        per_round = 96 * (last["exchanges"] - R)
    assert problem.sizes == [each] * problem.n
    assert last["grad_evals"] == last["local_steps"] * each + per_round
    if row.claims("batch"):
        noisy = ledger(row, batch=5)
        if row.name == "s-local-gd-q":
            per_round = 96 * (noisy["exchanges"] - R)
        assert noisy["grad_evals"] == noisy["local_steps"] * 5 + per_round


@some_rows
@pytest.mark.long
def test_evaluation_is_off_the_meter(row: Row) -> None:
    often, seldom = ledger(row, every=1), ledger(row, every=R)
    assert {k: v for k, v in often.items() if k != "seconds"} == pytest.approx(
        {k: v for k, v in seldom.items() if k != "seconds"}, nan_ok=True, abs=0, rel=0
    )


@some_rows
@pytest.mark.long
def test_both_engines_keep_the_same_ledger(row: Row) -> None:
    counts = list(ps.run(ps.GD(1.0), ps.Problem([ps.Quadratic([1.0], [1.0])]), rounds=0).trace.columns)
    counts = counts[: counts.index("seconds")]
    a, b = ledger(row), ledger(row, "cpu")
    assert [a[k] for k in counts] == [b[k] for k in counts]


def test_local_steps() -> None:
    """A fixed K is K; steps of its own for each client count each, and iterations are the longest."""
    last = ledger(NAMED["scaffold"])
    assert (last["iterations"], last["local_steps"]) == (4 * R, 4 * R * 4)
    last = ledger(NAMED["fedlin-own"])
    assert (last["iterations"], last["local_steps"]) == (4 * R, (1 + 2 + 3 + 4) * R)
    last = ledger(NAMED["scaffnew"])
    assert last["local_steps"] == 4 * last["iterations"]


@pytest.mark.parametrize(
    ("name", "title"),
    [
        ("gd", "GD"),
        ("accelerated", "accelerated GD"),
        ("local-gd", "LocalGD"),
        ("scaffold-I", "Scaffold"),
        ("s-local-gd", "S-Local-GD"),
        ("fedlin", "FedLin"),
        ("scaffnew", "Scaffnew, p = 1/sqrt(kappa)"),
    ],
)
def test_the_papers_table_agrees_with_the_meter(name: str, title: str) -> None:
    problem = NAMED[name].rows()
    table = {r.method: r for r in table1.table1(problem.L, problem.mu, 1e-6, problem.n, d=problem.d)}[title]
    last = ledger(NAMED[name])
    assert last["floats_up"] == R * problem.n * (table.floats_per_round or 0)
    assert last["exchanges"] == R * table.exchanges_per_round


def test_scaffold_two_with_everybody_needs_one_vector_each_way() -> None:
    last = ledger(NAMED["scaffold"])
    assert last["vectors_up"] == last["vectors_down"] == 4 * R


def test_s_local_gd_pays_for_the_anchor_only_when_it_moves() -> None:
    last = ledger(NAMED["s-local-gd-q"])
    moved = last["exchanges"] - R
    assert 1 <= moved < R
    assert last["vectors_up"] == last["vectors_down"] == 4 * (R + moved)


@pytest.mark.parametrize(
    ("name", "edges", "vectors"),
    [
        ("decentralized", 4, 1),
        ("decentralized-path", 3, 1),
        ("decentralized-psd", 3, 1),
        ("extra", 4, 1),
        ("extra-psd", 3, 1),
        ("diging", 4, 2),
        ("diging-complete", 6, 2),
    ],
)
def test_gossip_costs_its_vectors_along_each_edge_both_ways(name: str, edges: int, vectors: int) -> None:
    last = ledger(NAMED[name])
    assert last["edge_messages"] == last["vectors_up"] == vectors * 2 * edges * R
    assert last["exchanges"] == last["iterations"] == R or name.startswith("decentralized")
    assert last["vectors_down"] == last["prox_evals"] == 0


def test_splitskip_sends_what_changes() -> None:
    """x up; D'(y+ - y) down with the next message, so the last one is not sent; x0 is where everybody starts."""
    last = ledger(NAMED["splitskip"])
    assert last["vectors_up"] == R
    assert last["vectors_down"] == R - 1


def test_a_late_outcome_costs_a_vector() -> None:
    """Scaffnew on cohorts: x down, and the outcome of the last round one took part in where it is another vector."""
    problem = ps.Problem(quadratics(4))
    cohorts = [[0, 1], [0, 1], [2, 3], [0, 2], [1, 3]]
    # round 0: 2 new; 1: both heard x with the message; 2: 2 new; 3: client 0 is late; 4: 1 and 3 are late
    expected = np.cumsum([2, 2, 2, 3, 4])
    method = ps.Scaffnew(1 / problem.L_max, 0.5)
    trace = ps.run(method, problem, rounds=5, cohort=cohorts, every=1).trace
    assert trace["vectors_down"].tolist() == [0, *expected]
    assert trace["vectors_up"].tolist() == [0, 2, 4, 6, 8, 10]


# -- what the line keeps between rounds --------------------------------------------------------------------------------
def line_of_four() -> Line:
    engine, problem = ReferenceEngine(), ps.Problem(quadratics(4))
    engine.open(problem, {}, 3)
    return Line(engine, problem, 3, Everyone())


def test_weights_that_may_change_are_scaled_anew() -> None:
    line, w = line_of_four(), np.array([1.0, 2.0, 3.0, 4.0])
    fixed = w.copy()
    fixed.setflags(write=False)
    assert line._shares(fixed) is line._shares(fixed)
    assert line._shares(None)[0].tolist() == [0.25] * 4
    for _ in range(2):
        assert np.array_equal(line._shares(w)[0], w / w.sum())
        w *= [2.0, 1.0, 1.0, 1.0]
    line.cohort = np.array([1, 3])
    assert np.array_equal(line._shares(w)[0], [2 / 6, 4 / 6])


def test_a_message_holds_the_outcome_that_its_client_has_not_heard() -> None:
    meter, x, y = Meter(4, 3), np.zeros(3), np.ones(3)
    assert meter.vectors_down(slice(None), (x,)).tolist() == [1, 1, 1, 1]
    meter.settled(slice(None), (x, y))
    assert meter.vectors_down(slice(None), (x,)).tolist() == [2, 2, 2, 2]
    meter.count(np.array([1]), 1, 2, (x,), 0, Work((x[None],), 5))
    assert meter.vectors_down(slice(None), (x,)).tolist() == [2, 1, 2, 2]
    assert (meter.ledger.vectors_down, meter.ledger.vectors_up, meter.ledger.local_steps) == (2, 1, 2)
    meter.settled(np.array([1, 2]), (x,))
    # clients 0 and 3 owe an older outcome, which is not kept: it has as many vectors as the last
    assert meter.vectors_down(slice(None), (x,)).tolist() == [2, 1, 1, 2]
    assert meter.vectors_down(np.array([0, 2]), (y,)).tolist() == [2, 2]
    assert meter.bytes_down(np.array([0, 2]), (y,), 1).tolist() == [56.0, 56.0]


def test_a_round_that_does_not_count_leaves_no_trace_in_the_meter() -> None:
    meter, x = Meter(4, 3), np.zeros(3)
    meter.settled(slice(None), (x,))
    before = str(meter.state(np.asarray))
    undo = meter.mark(slice(None))
    meter.participated += 1
    meter.count(slice(None), 4, 2, (x,), 0, Work((np.zeros((4, 3)),), 5))
    meter.settled(slice(None), (x + 1,))
    assert str(meter.state(np.asarray)) != before
    undo()
    assert str(meter.state(np.asarray)) == before


def test_the_generator_of_a_round_is_that_of_its_number_also_in_a_second_attempt() -> None:
    line = line_of_four()
    for round in (0, 1, 1, 5):
        line.begin(round)
        expected = stream(3, round, "server")
        assert [line.rng.random() for _ in range(3)] == [expected.random() for _ in range(3)]
