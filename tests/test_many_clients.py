"""Many clients on cohorts: rows of memory for those who took part, in memory or in files, saved in parts; draws in O(c)."""

import itertools
import math
import shutil
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import scipy.stats

import proxskip as ps
from conftest import METHODS, Row, thinned
from proxskip.links import rows
from proxskip.links.cohorts import Bernoulli, Uniform
from proxskip.links.rows import RowStore, RowView
from proxskip.links.sums import largest, weighted_sum
from proxskip.loop import sparse_memory
from proxskip.randomness import FEW_CLIENTS, stream, subset
from proxskip.results import folder, journal, sealed
from proxskip.results.checkpoint import CheckpointError

pytestmark = pytest.mark.filterwarnings("ignore")
ROUNDS = 12
ON_COHORTS = [row for row in METHODS if row.cohort is not None]
NOT_COMPUTED = {"seconds", "lyapunov", "lyapunov_bound"}
NO_ROOM, PLENTY = 0, 1 << 30


ByRows = Callable[[int | None], None]


@pytest.fixture
def by_rows(monkeypatch: pytest.MonkeyPatch) -> ByRows:
    """Keep rows however few clients there are, this many bytes of them in memory; None for whole arrays."""

    def set_limit(limit: int | None) -> None:
        monkeypatch.setattr(sparse_memory, "LARGEST_WHOLE", PLENTY if limit is None else 0)
        monkeypatch.setattr(rows, "LIMIT", PLENTY if limit is None else limit)

    return set_limit


def problem_of(n: int = 12, d: int = 5, weights: Any = None) -> ps.Problem:
    return ps.Problem(ps.random_quadratics(n=n, d=d, L=1.0, mu=0.1, seed=2), weights)


def same(a: ps.Result, b: ps.Result) -> None:
    """Bitwise, but for the clock and for what a store of rows does not compute."""
    assert a.x.tobytes() == b.x.tobytes()
    lasting = set(a.memory) & set(b.memory)
    assert set(a.memory) ^ set(b.memory) <= set(ps.authoring.METHODS[a.summary["method"]].about.passing)
    for k in lasting:
        assert a.memory[k].tobytes() == b.memory[k].tobytes(), k
    assert (a.h is None and b.h is None) or np.array_equal(np.asarray(a.h), np.asarray(b.h))
    assert np.array_equal(a.participation, b.participation)
    for k in set(a.trace.columns) - NOT_COMPUTED:
        assert a.trace[k].tobytes() == b.trace[k].tobytes(), k
    assert a.status is b.status


@pytest.mark.parametrize("row", thinned(ON_COHORTS, 2))
@pytest.mark.parametrize("engine", ["cpu", "reference"])
def test_rows_of_those_who_took_part_give_the_bytes_of_all_rows(
    row: Row, engine: str, tmp_path: Path, by_rows: ByRows
) -> None:
    problem = row.quadratic()
    method, x0 = row.make(problem), np.ones(problem.d)
    given: dict[str, Any] = {"cohort": row.cohort, "engine": engine, "seed": 3, "x0": x0, "allow_unsafe_step": True}
    whole = ps.run(method, problem, rounds=ROUNDS, **given)
    by_rows(PLENTY)
    same(ps.run(method, problem, rounds=ROUNDS, **given), whole)
    by_rows(NO_ROOM)
    ps.run(method, problem, rounds=7, **given, out=tmp_path / "a", checkpoint_every=1)
    same(ps.resume(tmp_path / "a", problem, rounds=ROUNDS), whole)
    same(ps.load(tmp_path / "a"), whole)  # type: ignore[arg-type]


def test_large_cohorts_and_own_steps_and_minibatches_have_the_same_bytes(
    monkeypatch: pytest.MonkeyPatch, by_rows: ByRows
) -> None:
    """The cpu engine runs halves on ranges of members, with the rows of those who took part."""
    monkeypatch.setattr("proxskip.engines.cpu.engine.LARGE", 1)
    monkeypatch.setattr("proxskip.engines.cpu.engine.NUMBERS_PER_RANGE", 12)
    rng = np.random.default_rng(0)
    A, b = rng.standard_normal((120, 6)), np.where(rng.random(120) < 0.5, -1.0, 1.0)
    problem = ps.split(ps.Logistic(A, b, l2=0.1), clients=15).with_batch(3)
    method = ps.Scaffnew.theory(problem, own_steps=True, cohort=4)
    for cohort in (4, 0.3, [[1, 2], [0, 7, 14], list(range(15))]):
        given: dict[str, Any] = {"rounds": ROUNDS, "cohort": cohort, "seed": 1, "every": 3}
        by_rows(None)
        whole = ps.run(method, problem, **given)
        by_rows(2000)
        same(ps.run(method, problem, **given), whole)


@pytest.mark.parametrize("shifted", [False, True])
def test_sums_over_a_view_have_the_bytes_of_the_array(shifted: bool, by_rows: ByRows) -> None:
    by_rows(4000)
    n, d = 1500, 3
    rng = np.random.default_rng(5)
    x0 = rng.standard_normal(d)
    store = RowStore.of(["h", "x"], n, x0)
    for _ in range(6):
        some = np.sort(rng.choice(n, 60, replace=False))
        at = store.admit(some)
        store.arrays["h"][at] = rng.standard_normal((60, d))
    assert np.array_equal(np.asarray(store.view("x")), np.tile(x0, (n, 1)))
    w = rng.random(n)
    for name in ("h", "x"):
        view: Any = store.view(name) - rng.standard_normal(d) if shifted else store.view(name)
        dense = np.asarray(view)
        assert weighted_sum(w, view).tobytes() == weighted_sum(w, dense).tobytes()
        assert largest(view) == largest(dense) == largest(store.view(name) - 0.0) or shifted
        assert np.array_equal(view[7], dense[7])
        assert np.array_equal(view[[3, 900]], dense[[3, 900]])
    store.arrays["h"][store.place[some[0]], 1] = np.nan
    for view in (store.view("h"), store.view("h") - 0.0):
        assert np.isnan(largest(view))
        assert np.isnan(weighted_sum(w, view)[1])
    assert store.files  # the limit was reached
    assert store.used == len(store.view("h").clients) < 6 * 60


def test_a_round_that_is_broken_off_leaves_the_rows_as_they_were(by_rows: ByRows) -> None:
    by_rows(NO_ROOM)
    store = RowStore.of(["h"], 9, np.zeros(2))
    at = store.admit(np.array([1, 4]))
    store.arrays["h"][at] = 1.0
    before = np.asarray(store.view("h"))
    store.mark(True)
    cohort = np.array([4, 5])
    for value in (2.0, 3.0):  # two exchanges of one round
        at = store.admit(cohort)
        store.arrays["h"][at] = value
    store.rewind()
    assert np.array_equal(np.asarray(store.view("h")), before)


def test_a_large_run_keeps_rows_without_being_asked_and_says_what_it_leaves_out(by_rows: ByRows) -> None:
    by_rows(PLENTY)
    problem = problem_of()
    method = ps.Scaffnew.theory(problem, cohort=3)
    result = ps.run(method, problem, rounds=5, cohort=3)
    assert isinstance(result.h, RowView)
    assert np.isnan(result.trace["lyapunov"]).all()
    assert any("Lyapunov" in note for note in result.warnings)
    assert isinstance(ps.run(method, problem, rounds=2).h, np.ndarray)  # with everybody
    warm = ps.run(method, problem, rounds=5, cohort=3, warm=result)
    assert isinstance(warm.h, np.ndarray)  # rows that are not zero are all kept


def test_a_lost_update_is_found_in_a_store_of_rows(monkeypatch: pytest.MonkeyPatch, by_rows: ByRows) -> None:
    by_rows(PLENTY)
    problem, told = problem_of(), RowStore.admit

    def losing(self: RowStore, clients: Any) -> Any:
        at = told(self, clients)
        if self.used > 8:
            self.arrays["h"][at[0]] += 1.0
        return at

    monkeypatch.setattr(RowStore, "admit", losing)
    result = ps.run(ps.Scaffnew.theory(problem, cohort=3), problem, rounds=30, cohort=3)
    assert result.status is ps.Status.CORRUPTED


# -- parts of checkpoints ----------------------------------------------------------------------------------------------
def run_in_parts(path: Path, rounds: int = 8, n: int = 40, **more: Any) -> tuple[Any, ps.Problem]:
    problem = problem_of(n)
    method = ps.Scaffnew.theory(problem, cohort=4)
    given: dict[str, Any] = {"rounds": rounds, "cohort": 4, "out": path, "checkpoint_every": 1}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sparse_memory, "LARGEST_WHOLE", 0)
        ps.run(method, problem, **(given | more))
    return method, problem


def test_large_parts_are_divided(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counts = []
    for k, size in enumerate((journal.PART_BYTES, 300)):
        monkeypatch.setattr(journal, "PART_BYTES", size)
        path = tmp_path / str(k)
        method, problem = run_in_parts(path, checkpoint_every=5)
        counts.append(len(folder.read(path).checkpoint.meta["parts"]["name"]))  # type: ignore[union-attr]
        same(ps.resume(path, problem, rounds=12), ps.run(method, problem, rounds=12, cohort=4))
    assert counts[0] < counts[1]


@pytest.mark.parametrize("name", ["write_part", "save", "remove_parts"])
def test_a_crash_while_saving_leaves_a_folder_that_resumes_bitwise(tmp_path: Path, name: str) -> None:
    class Killed(BaseException): ...

    where: Any = folder if name == "remove_parts" else folder.checkpoint
    act, calls = getattr(where, name), itertools.count()

    def killed(*args: Any, **given: Any) -> Any:
        if next(calls) == 6:
            raise Killed
        return act(*args, **given)

    with mock.patch.object(where, name, killed), pytest.raises(Killed):
        run_in_parts(tmp_path / "a", rounds=20)
    problem = problem_of(40)
    method = ps.Scaffnew.theory(problem, cohort=4)
    same(ps.resume(tmp_path / "a", problem, rounds=20), ps.run(method, problem, rounds=20, cohort=4))
    kept = ("checkpoint", "checkpoint.previous")
    listed = [set(sealed.read(tmp_path / "a" / name).meta["parts"]["name"]) for name in kept]
    assert {p.name for p in journal.parts_in(tmp_path / "a")} == set.union(*listed)


@pytest.mark.parametrize("harm", ["other", "gone", "bit"])
def test_a_damaged_part_is_noticed_and_the_generation_before_is_taken(tmp_path: Path, harm: str) -> None:
    method, problem = run_in_parts(tmp_path / "a", checkpoint_every=3)
    newest = sorted(journal.parts_in(tmp_path / "a"))[-1]
    raw = newest.read_bytes()
    if harm == "gone":
        newest.unlink()
    elif harm == "other":
        shutil.copy(sorted(journal.parts_in(tmp_path / "a"))[0], newest)
    else:
        newest.write_bytes(raw[:100] + bytes([raw[100] ^ 1]) + raw[101:])
    found = ps.load(tmp_path / "a")
    assert (found.rounds, found.status) == (6, ps.Status.INTERRUPTED)  # type: ignore[union-attr]
    assert newest.name in found.warnings[-1]  # type: ignore[union-attr]
    resumed = ps.resume(tmp_path / "a", problem, rounds=12)
    assert any(newest.name in note for note in resumed.warnings)
    same(resumed, ps.run(method, problem, rounds=12, cohort=4))
    (tmp_path / "a" / "checkpoint").unlink()  # the one that was taken is still there, and not the damaged one
    assert ps.load(tmp_path / "a").rounds == 6  # type: ignore[union-attr]
    for p in journal.parts_in(tmp_path / "a"):
        p.unlink()
    with pytest.raises(CheckpointError, match="missing"):
        ps.resume(tmp_path / "a", problem, rounds=14)


def test_force_removes_the_parts_of_an_older_run_and_no_file_of_the_user_with_such_a_name(tmp_path: Path) -> None:
    mine = {name: f"what I know of {name}" for name in ("memory.2024", "memory.00000001", "memory.²", "memory.md")}
    for name, text in mine.items():
        (tmp_path / name).write_text(text)
    for force in (False, True):
        run_in_parts(tmp_path, rounds=3, force=force)
        assert journal.parts_in(tmp_path)
        assert {name: (tmp_path / name).read_text() for name in mine} == mine
    problem = problem_of(40)
    ps.run(ps.GD.theory(problem), problem, rounds=2, out=tmp_path, force=True)
    assert not journal.parts_in(tmp_path)
    assert {name: (tmp_path / name).read_text() for name in mine} == mine


@pytest.mark.parametrize(("n", "c"), [(6, 1), (5, 3), (5, 2), (4, 4)])
def test_every_subset_is_equally_likely(n: int, c: int) -> None:
    draws = 200 * math.comb(n, c)
    found: dict[tuple[int, ...], int] = dict.fromkeys(itertools.combinations(range(n), c), 0)
    for r in range(draws):
        found[tuple(subset(stream(8, r, "cohort"), n, c).tolist())] += 1
    if len(found) > 1:
        assert scipy.stats.chisquare(list(found.values())).pvalue > 1e-4


def test_bernoulli_cohorts_of_many_clients_have_the_right_mean() -> None:
    sizes = [len(Bernoulli(0.02).draw(stream(5, r, "cohort"), FEW_CLIENTS, r)) for r in range(250)]
    assert abs(np.mean(sizes) - 200) < 5 * math.sqrt(200 / 250)


def test_a_draw_costs_what_the_cohort_costs() -> None:
    """Numbers of all clients would take 8 MB."""
    tracemalloc.start()
    try:
        Uniform(100).draw(stream(1, 0, "cohort"), 100 * FEW_CLIENTS, 0)
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()


def test_small_problems_draw_from_a_permutation() -> None:
    for n in (8, FEW_CLIENTS - 1):
        drawn = np.sort(stream(9, 41, "cohort").permutation(n)[:5])
        assert np.array_equal(Uniform(5).draw(stream(9, 41, "cohort"), n, 41), drawn)
