"""The ledger against Table 1, and against a postman who counts every letter himself."""

import warnings
from typing import Any

import numpy as np
import pytest

import proxskip as ps
from proxskip.core.engine import Work
from proxskip.engines.reference import ReferenceEngine
from proxskip.experiments import paper_table
from proxskip.participation import Everyone
from proxskip.running.ledger import Meter
from proxskip.running.metered_exchange import MeteredExchange
from proxskip.support.rows import Journal
from support.methods import METHODS, NAMED, Row
from support.problems import quadratics
from support.tiers import thinned

R = 17
UNITS = ("floats", "bytes", "bits")
rows = pytest.mark.parametrize("row", METHODS, ids=lambda row: row.name)
some_rows = pytest.mark.parametrize("row", thinned(METHODS, 4))


class Postman(ReferenceEngine):
    """Counts vectors, steps and gradients where they happen, client by client."""

    def __init__(self) -> None:
        self.up = self.down = self.calls = self.steps = self.iterations = self.gradients = 0
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
        steps = np.broadcast_to(K if work.steps is None else work.steps, (len(cohort),))
        self.steps += int(np.sum(steps))
        self.iterations += int(np.max(steps))
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
def test_the_ledger_is_table_one_and_counts_what_moves(row: Row) -> None:
    problem, postman = row.rows(), Postman()
    last = ledger(row, postman)
    gossip = row.down == 0
    assert last["vectors_down"] == (0 if gossip else postman.down)
    assert last["vectors_up"] == (last["edge_messages"] if gossip else postman.up)
    assert last["exchanges"] == postman.calls
    assert last["grad_evals"] == postman.gradients
    assert (last["local_steps"], last["iterations"]) == (postman.steps, postman.iterations)
    clients = row.cohort if isinstance(row.cohort, int) else problem.n
    for count, wanted in (("vectors_up", row.up), ("vectors_down", row.down)):
        assert wanted is None or last[count] == R * clients * wanted
    assert row.exchanges is None or last["exchanges"] == R * row.exchanges
    assert last["prox_evals"] == (R if problem.psi is not None else 0)
    assert last["passes"] == last["grad_evals"] / problem.N
    down, up = problem.d * last["vectors_down"] + R * clients * row.numbers, problem.d * last["vectors_up"]
    coded = (up, 8 * up, 64 * up) if row.coded is None else tuple(R * k for k in row.coded(problem.d))
    assert [last[f"{unit}_down"] for unit in UNITS] == [down, 8 * down, 64 * down]
    assert row.masked or [last[f"{unit}_up"] for unit in UNITS] == [*coded]


@some_rows
@pytest.mark.long
def test_gradients_are_counted_in_samples(row: Row) -> None:
    """Every client has 24 rows (96 where it is alone): steps times rows, and the anchors' full gradients."""
    problem = row.rows()
    each = 96 // problem.n
    assert problem.sizes == [each] * problem.n
    for batch in (None, 5) if row.claims("batch") and row.extra is not None else (None,):
        last = ledger(row, batch=batch)
        steps = last["local_steps"] * (batch or each)
        if row.extra is None:
            assert last["grad_evals"] % each == 0
            assert last["grad_evals"] >= steps
        else:
            anchors = last["exchanges"] - R if row.name == "s-local-gd-q" else R * row.extra
            assert last["grad_evals"] == steps + 96 * anchors


@some_rows
@pytest.mark.long
def test_neither_evaluation_nor_the_engine_changes_the_ledger(row: Row) -> None:
    often, seldom, cpu = ledger(row, every=1), ledger(row, every=R), ledger(row, "cpu")
    del often["seconds"], seldom["seconds"]
    assert often == pytest.approx(seldom, nan_ok=True, abs=0, rel=0)
    counts = list(cpu)[: list(cpu).index("seconds")]
    assert "bits_down" in counts
    assert [cpu[k] for k in counts] == [often[k] for k in counts]


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
    table = {r.method: r for r in paper_table.table1(problem.L, problem.mu, 1e-6, problem.n, d=problem.d)}[title]
    last = ledger(NAMED[name])
    assert last["floats_up"] == R * problem.n * (table.floats_per_round or 0)
    assert last["exchanges"] == R * table.exchanges_per_round


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


def test_weights_that_may_change_are_scaled_anew() -> None:
    engine, problem = ReferenceEngine(), ps.Problem(quadratics(4))
    engine.open(problem, {}, 3)
    line = MeteredExchange(engine, problem, 3, Everyone())
    w = np.array([1.0, 2.0, 3.0, 4.0])
    assert line._shares(None)[0].tolist() == [0.25] * 4
    for _ in range(2):
        assert np.array_equal(line._shares(w)[0], w / w.sum())
        w *= [2.0, 1.0, 1.0, 1.0]
    line.cohort = np.array([1, 3])
    assert np.array_equal(line._shares(w)[0], [2 / 6, 4 / 6])


def test_an_outcome_is_heard_once_by_whoever_takes_part_next() -> None:
    """Clients 0 and 1 hear it with their next message, client 2 with its own, much later; client 3 was told nothing."""
    meter, x = Meter(4, 3, Journal()), np.zeros(3)
    meter.settled(np.array([0, 1, 2]), (x,))
    work = Work((np.zeros((2, 3)),), 2)
    expected = 0
    for cohort, message, vectors in (
        ([0, 1], x + 1, 4),  # the message and the outcome
        ([0, 1], x + 2, 2),  # the outcome is no news to them
        ([1, 3], x, 2),
        ([2, 3], x, 2),  # the message is the outcome itself
        ([2, 3], x + 1, 2),
    ):
        meter.count(np.array(cohort), 2, 1, (message,), 0, work)
        expected += vectors
        assert meter.ledger.vectors_down == expected, cohort
        assert meter.ledger.bytes_down == expected * 3 * 8
    meter.settled(np.array([2]), (x + 5,))
    assert meter.vectors_down(np.array([1, 2]), (x,)).tolist() == [1, 2]
    meter.settled(np.array([1]), (x,))  # client 2 has an older one to hear, which is not the last one
    assert meter.vectors_down(np.array([1, 2]), (x,)).tolist() == [1, 2]


def test_a_round_that_does_not_count_leaves_no_trace_in_the_meter() -> None:
    journal, x = Journal(), np.zeros(3)
    meter = Meter(4, 3, journal)
    meter.settled(slice(None), (x,))
    before = str(meter.state(np.asarray))
    journal.begin()
    meter.begin(slice(None))
    meter.count(slice(None), 4, 2, (x,), 0, Work((np.zeros((4, 3)),), 5))
    meter.settled(slice(None), (x + 1,))
    assert str(meter.state(np.asarray)) != before
    journal.undo()
    meter.undo()
    assert str(meter.state(np.asarray)) == before
