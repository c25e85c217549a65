"""Many clients on cohorts: memory for the rows of those who took part alone, saved in parts; draws in O(c)."""

import itertools
import math
import mmap
import shutil
import tracemalloc
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import scipy.stats

import proxskip as ps
from proxskip.engines.in_process import NearEngine
from proxskip.participation import Bernoulli, Uniform
from proxskip.results import folder, journal, sealed
from proxskip.results.checkpoint import CheckpointError
from proxskip.running import sparse_memory
from proxskip.support.randomness import FEW_CLIENTS, stream, subset
from proxskip.support.rows import Journal, MemoryRows, zero_rows
from proxskip.support.sums import largest, weighted_sum
from support.methods import METHODS, Row
from support.tiers import thinned

pytestmark = pytest.mark.filterwarnings("ignore")
ROUNDS = 12
ON_COHORTS = [row for row in METHODS if row.cohort is not None]
NOT_COMPUTED = {"seconds", "lyapunov", "lyapunov_bound"}


@pytest.fixture
def always_large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs on cohorts are treated as those with very many clients, however few there are."""
    monkeypatch.setattr(sparse_memory, "LARGEST_WHOLE", 0)


def problem_of(n: int = 12, d: int = 5, weights: Any = None) -> ps.Problem:
    return ps.Problem(ps.random_quadratics(n=n, d=d, L=1.0, mu=0.1, seed=2), weights)


def same(a: ps.Result, b: ps.Result) -> None:
    """Bitwise, but for the clock and for what a store of rows does not compute."""
    assert a.x.tobytes() == b.x.tobytes()
    assert a.memory.keys() == b.memory.keys()
    for k in a.memory:
        assert a.memory[k].tobytes() == b.memory[k].tobytes(), k
    assert (a.h is None and b.h is None) or np.array_equal(np.asarray(a.h), np.asarray(b.h))
    assert np.array_equal(a.participation, b.participation)
    for k in set(a.trace.columns) - NOT_COMPUTED:
        assert a.trace[k].tobytes() == b.trace[k].tobytes(), k
    assert a.status is b.status


@pytest.mark.parametrize("row", thinned(ON_COHORTS, 2))
@pytest.mark.parametrize("engine", ["cpu", "reference"])
@pytest.mark.parametrize("start", [0.0, 1.0])
def test_a_large_run_has_the_bytes_of_a_small_one(
    row: Row, engine: str, start: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = row.quadratic()
    method, x0 = row.make(problem), np.full(problem.d, start)
    given: dict[str, Any] = {"cohort": row.cohort, "engine": engine, "seed": 3, "x0": x0, "allow_unsafe_step": True}
    whole = ps.run(method, problem, rounds=ROUNDS, **given)
    ps.run(method, problem, rounds=7, **given, out=tmp_path / "small")
    same(ps.resume(tmp_path / "small", problem, rounds=ROUNDS), whole)
    monkeypatch.setattr(sparse_memory, "LARGEST_WHOLE", 0)
    same(ps.run(method, problem, rounds=ROUNDS, **given), whole)
    ps.run(method, problem, rounds=7, **given, out=tmp_path / "large", checkpoint_every=1)
    same(ps.resume(tmp_path / "large", problem, rounds=ROUNDS), whole)
    same(ps.load(tmp_path / "large"), whole)  # type: ignore[arg-type]


def test_large_cohorts_and_own_steps_and_minibatches_have_the_same_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cpu engine runs halves on ranges of members, with the rows of those who took part."""
    monkeypatch.setattr("proxskip.engines.cpu.engine.LARGE", 1)
    monkeypatch.setattr("proxskip.engines.cpu.engine.NUMBERS_PER_RANGE", 12)
    rng = np.random.default_rng(0)
    A, b = rng.standard_normal((120, 6)), np.where(rng.random(120) < 0.5, -1.0, 1.0)
    problem = ps.split(ps.Logistic(A, b, l2=0.1), clients=15).with_batch(3)
    method = ps.Scaffnew.theory(problem, own_steps=True, cohort=4)
    for cohort in (4, 0.3, [[1, 2], [0, 7, 14], list(range(15))]):
        given: dict[str, Any] = {"rounds": ROUNDS, "cohort": cohort, "seed": 1, "every": 3}
        monkeypatch.setattr(sparse_memory, "LARGEST_WHOLE", 1 << 28)
        whole = ps.run(method, problem, **given)
        monkeypatch.setattr(sparse_memory, "LARGEST_WHOLE", 0)
        same(ps.run(method, problem, **given), whole)


def test_sums_leave_out_the_rows_that_nobody_wrote() -> None:
    n, d = 1500, 3
    rng = np.random.default_rng(5)
    rows, w = MemoryRows.zeros(n, d), rng.random(n)
    assert not np.any(weighted_sum(w, rows))
    assert largest(rows) == 0.0
    for _ in range(6):
        some = np.sort(rng.choice(n, 60, replace=False))
        rows.fill_rows(some, rng.standard_normal((60, d)))
    dense = np.array(rows)
    assert np.allclose(weighted_sum(w, rows), weighted_sum(w, dense), rtol=0, atol=1e-12)
    assert largest(rows) == largest(dense)
    shifted = rows - 1.0  # an array like any other
    assert weighted_sum(w, shifted).tobytes() == weighted_sum(w, dense - 1.0).tobytes()
    assert np.array_equal(rows.copy(), dense)
    assert np.array_equal(np.flatnonzero(rows.copy().written), np.flatnonzero(dense.any(axis=1)))
    rows.fill_rows(some[:1], np.full((1, d), np.nan))
    assert np.isnan(largest(rows))
    assert np.isnan(weighted_sum(w, rows)).all()


def test_what_a_round_has_changed_is_taken_back() -> None:
    journal, named, array = Journal(), {"h": np.ones(2)}, np.arange(6.0).reshape(3, 2)
    before, first = array.copy(), named["h"]
    for round_of in range(2):
        journal.begin()
        journal.write(array, np.array([0, 2]), -1.0)
        journal.write(array, 2, 7.0)
        journal.write(array, slice(None), array * (2.0 + round_of))
        journal.write(named, "h", np.zeros(2))
        assert not np.array_equal(array, before)
        journal.undo()
        assert np.array_equal(array, before)
        assert named["h"] is first


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="Linux says how much memory a process has")
def test_only_pages_that_are_written_to_take_memory() -> None:
    """A million rows of 300 numbers are 2.4 GB; 2,000 of them lie on at most twice as many pages."""

    def resident() -> int:
        status = Path("/proc/self/status").read_text()
        return next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("RssAnon"))

    before = resident()
    rows = zero_rows(1_000_000, 300)
    some = np.random.default_rng(0).choice(1_000_000, 2000, replace=False)
    rows[some] = 1.0
    assert resident() - before < 100e6
    assert rows[some].min() == 1.0
    assert not rows[:100].any() or np.any(some < 100)


def test_rows_work_without_what_only_linux_has(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MAP_PRIVATE", "MAP_ANONYMOUS", "MADV_NOHUGEPAGE"):
        monkeypatch.delattr(mmap, name, raising=False)
    rows = zero_rows(30, 4)
    assert rows.shape == (30, 4)
    assert not rows.any()
    rows[3] = 1.0
    assert rows.sum() == 4.0


@pytest.mark.usefixtures("always_large")
def test_a_large_run_says_what_it_leaves_out() -> None:
    problem = problem_of()
    method = ps.Scaffnew.theory(problem, cohort=3)
    result = ps.run(method, problem, rounds=5, cohort=3)
    assert np.isnan(result.trace["lyapunov"]).all()
    assert any("Lyapunov" in note for note in result.warnings)
    everyone = ps.run(method, problem, rounds=2)
    warm = ps.run(method, problem, rounds=5, cohort=3, warm=result)  # an h that is not zero is kept whole
    assert not np.isnan(everyone.trace["lyapunov"][0])
    assert not np.isnan(warm.trace["lyapunov"][0])


@pytest.mark.usefixtures("always_large")
def test_a_lost_update_is_found_in_a_large_run(monkeypatch: pytest.MonkeyPatch) -> None:
    problem, write = problem_of(), NearEngine._write

    def losing(self: NearEngine, name: str, at: Any, values: Any) -> None:
        write(self, name, at, values)
        if name == "h" and self.kept["h"].written.sum() > 8:  # type: ignore[attr-defined]
            self.kept["h"][at[0]] += 1.0

    monkeypatch.setattr(NearEngine, "_write", losing)
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
