"""What a person types and sees at a prompt: reprs, progress, sweeps, tuning, loading, plots."""

from __future__ import annotations

import csv
import html
import io
import os
import re
import signal
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from matplotlib import pyplot

import proxskip as ps
from proxskip.engines.reference import ReferenceEngine
from proxskip.problems.federated import Problem
from proxskip.running import many_runs, progress
from proxskip.running.sweep import draws
from proxskip.running.tune import grid, halve, rungs_of
from proxskip.support import display
from proxskip.types import InputError
from support.comparing import same
from support.methods import METHODS, Row
from support.pages import Terminal
from support.runs import run as run_row

pyplot.switch_backend("Agg")
PROBLEM = Problem(ps.random_quadratics(4, 3))
A, LABELS = np.random.default_rng(0).normal(size=(60, 5)), np.arange(60) % 2


def logistic(l2: float = 0.1) -> Problem:
    return ps.split(ps.Logistic(A, LABELS, l2=l2), clients=6, by="contiguous")


# -- how things look ---------------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def things() -> dict[str, Any]:
    problem = logistic()
    result = ps.run("scaffnew", problem, rounds=30)
    return {
        "problem": problem,
        "method": ps.Scaffnew.theory(problem),
        "result": result,
        "result without rows": ps.run("gd", ps.Problem(ps.random_quadratics(2, 3, L=1.0, mu=0.1)), rounds=3),
        "results": ps.Results([result, result]),
        "trace": result.trace,
        "minimum": ps.minimize(ps.LeastSquares(A, LABELS, l2=0.1), ps.prox.L1(0.01)),
        "plan": ps.plan(PROBLEM, tol=1e-3),
    }


def test_a_repr_has_a_few_short_lines_and_html_is_well_formed_and_has_no_script(things: dict[str, Any]) -> None:
    for name, thing in things.items():
        lines = repr(thing).splitlines()
        assert 1 <= len(lines) <= 16, name
        assert max(map(len, lines)) <= 160, name
        assert not re.search(" at 0x|None", repr(thing)), name
        root = ET.fromstring(thing._repr_html_())
        tags = {element.tag.rpartition("}")[2] for element in root.iter()}
        assert "table" in tags, name
        assert "script" not in tags, name
        assert not [a for e in root.iter() for a in e.attrib if a.startswith("on")], name
        assert ("svg" in tags) is (name in ("result", "result without rows", "trace", "minimum")), name


def test_every_result_has_the_same_parts(things: dict[str, Any]) -> None:
    for name in ("result", "minimum"):
        result = things[name]
        assert isinstance(result, ps.Result)
        assert result.success is (result.status is ps.Status.CONVERGED)
        assert (result.summary["status"], result.summary["message"]) == (result.status.name, result.message)
        assert repr(result).splitlines()[0].endswith(f": {result.status.name}, {result.message}")
        x, y = result.plot().lines[0].get_data()
        assert len(x) == len(y) == len(result.trace)
        mine = result.plot("iterations" if name == "result" else "nprox", y="seconds")
        assert mine.lines[0].get_ydata().tolist() == result.trace["seconds"].tolist()
    pyplot.close("all")


def test_a_sparkline_falls_where_the_numbers_fall_and_html_shows_text_as_text() -> None:
    picture = display.sparkline([1.0, 1e-3, 1e-6, np.nan, 0.0], "gap")
    heights = [float(point.split(",")[1]) for point in re.search('points="([^"]*)"', picture)[1].split()]  # type: ignore[index]
    assert len(heights) == 3  # what a logarithm cannot show is left out
    assert heights == sorted(heights)  # downwards on the screen
    assert heights[1] - heights[0] == pytest.approx(heights[2] - heights[1], abs=0.1)
    assert display.sparkline([np.nan, 1.0], "gap") == ""
    assert "<b>" not in display.html("<b>", [("<b>", "<b>")]) + display.table("<b>", ["<b>"], [["<b>"]], ["<b>"])
    assert "<b>" not in display.sparkline([1.0, 2.0], "<b>")


def test_the_repr_of_a_problem_computes_nothing() -> None:
    problem = logistic()
    repr(problem), problem._repr_html_()
    assert not {"L_i", "solution", "mu"} & problem.__dict__.keys()
    assert f"{problem.L_max:.4g}" in repr(problem)  # once it is known, it is shown


def test_a_frame_has_the_columns_of_the_trace(things: dict[str, Any]) -> None:
    pytest.importorskip("pandas", reason="pandas is not installed")
    trace = things["trace"]
    frame = trace.to_frame()
    assert list(frame.columns) == list(trace.columns)
    np.testing.assert_array_equal(frame["gap"].to_numpy(), trace["gap"])


# -- progress ----------------------------------------------------------------------------------------------------------
def test_progress_of_run_sweep_minimize_and_tune_reaches_the_terminal_and_no_pipe(monkeypatch: Any) -> None:
    for pause in ("SECONDS_BEFORE_FIRST", "SECONDS_BETWEEN_UPDATES", "SECONDS_BETWEEN_LINES"):
        monkeypatch.setattr(progress, pause, 0.0)
    A = np.diag([1.0, 2.0, 4.0])
    acts = {
        "scaffnew": lambda how: ps.run("scaffnew", PROBLEM, rounds=20, progress=how),
        "2/2 scaffnew, seed 1": lambda how: ps.sweep(["scaffnew"], PROBLEM, rounds=20, seeds=2, progress=how),
        "certificate": lambda how: ps.minimize(ps.LeastSquares(A, np.ones(3)), ps.prox.L1(0.1), progress=how),
        "tuning gd": lambda how: ps.tune("gd", PROBLEM, budget=100, progress=how),
    }
    for words, act in acts.items():
        for screen, how, shown in (
            *((Terminal, how, shown) for how, shown in ((True, True), (None, True), (False, False))),
            *((io.StringIO, how, shown) for how, shown in ((True, True), (None, False))),
        ):
            monkeypatch.setattr(sys, "stderr", screen())
            act(how)
            assert (words in sys.stderr.getvalue()) is shown, (words, how)
            assert ("\r" in sys.stderr.getvalue()) is (shown and screen is Terminal), (words, how)
            assert progress._ON_SCREEN == []

    class ZMQInteractiveShell: ...

    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=ZMQInteractiveShell))
    ps.run("gd", PROBLEM, rounds=20)
    assert "\rgd: round" in sys.stderr.getvalue()  # a notebook, which is no terminal, shows it too
    monkeypatch.setattr(progress, "_ON_SCREEN", [object()])  # one line at a time
    assert not progress.is_wanted(None)


# -- sweep, compare, load ----------------------------------------------------------------------------------------------
def test_a_loaded_result_is_the_one_that_was_returned(tmp_path: Path) -> None:
    made = ps.run("scaffnew", logistic(), rounds=20, cohort=3, out=tmp_path / "a")
    found = ps.load(tmp_path / "a")
    assert isinstance(found, ps.Result)
    assert same(made, found)
    assert np.array_equal(made.trace["seconds"], found.trace["seconds"])
    warm = ps.run("scaffnew", logistic(), rounds=5, warm=found)  # it can be gone on with like any other
    assert warm.rounds == 5


def test_sweeps_are_loaded_in_their_order(tmp_path: Path) -> None:
    methods = [ps.Scaffnew(0.5, 0.5), "gd", ps.Scaffnew(0.1, 0.5)]
    swept = ps.sweep(methods, logistic(), rounds=8, seeds=[2, 10], out=tmp_path / "sweep")
    found = ps.load(tmp_path / "sweep")
    assert isinstance(found, ps.Results)
    assert [r.summary["seed"] for r in found] == [2, 10, 2, 2, 10]  # gradient descent draws nothing
    assert all(same(a, b) for a, b in zip(swept, found, strict=True))
    compared = ps.sweep(["scaffnew", "fedlin", "gd"], logistic(), rounds=8, out=tmp_path / "methods")
    assert [r.summary["method"] for r in ps.load(tmp_path / "methods")] == ["scaffnew", "fedlin", "gd"]  # type: ignore[union-attr]
    assert all(same(a, ps.run(a.summary["method"], logistic(), rounds=8)) for a in compared)
    with pytest.raises(InputError, match="belongs to another run: seed: saved 0, now 3"):
        ps.sweep(["gd"], logistic(), rounds=8, seeds=[3], out=tmp_path / "methods")
    assert len(ps.sweep(["gd"], logistic(), rounds=8, seeds=[3], out=tmp_path / "methods", force=True)) == 1


def interrupt_in(run: int) -> Any:
    """Ctrl-C in the tenth round of this run."""
    begun = []

    def on_record(self: Any, step: int, metrics: Any) -> None:
        if step == 0:
            begun.append(step)
        if step == 10 and len(begun) == run:
            os.kill(os.getpid(), signal.SIGINT)

    return on_record


def test_an_interrupted_sweep_goes_on_where_it_stood(tmp_path: Path, monkeypatch: Any) -> None:
    """Finished runs are read, the interrupted one is resumed, and the others are run; the same for ``tune``."""
    what: dict[str, Any] = {"rounds": 20, "seeds": 2, "out": tmp_path / "out"}
    whole = ps.sweep(["scaffnew", "gd"], logistic(), rounds=20, seeds=2)
    with monkeypatch.context() as patch:
        patch.setattr(progress.Progress, "on_record", interrupt_in(2))
        part = ps.sweep(["scaffnew", "gd"], logistic(), progress=True, **what)
    assert [r.status.name for r in part] == ["LIMIT", "INTERRUPTED"]
    first = (tmp_path / "out" / "scaffnew" / "seed-0" / "summary.json").stat().st_mtime_ns
    rest = ps.sweep(["scaffnew", "gd"], logistic(), **what)
    assert all(same(a, b) for a, b in zip(whole, rest, strict=True))
    assert (tmp_path / "out" / "scaffnew" / "seed-0" / "summary.json").stat().st_mtime_ns == first
    for word, other in {"x0": np.ones(5), "every": 3, "network": ps.Network(gradient=1e-3)}.items():
        with pytest.raises(InputError, match=f"holds a run with another {word}"):
            ps.sweep(["scaffnew", "gd"], logistic(), **what | {word: other})
    # more rounds go on from the end
    longer = ps.sweep(["scaffnew", "gd"], logistic(), **what | {"rounds": 30})
    assert np.array_equal(longer[0].x, ps.run("scaffnew", logistic(), rounds=30).x)


def test_tuning_goes_on_where_it_stood(tmp_path: Path, monkeypatch: Any) -> None:
    calls: list[int] = []
    kept = many_runs.run

    def run(*given: Any, **more: Any) -> Any:
        calls.append(1)
        if len(calls) == 5:
            raise KeyboardInterrupt
        return kept(*given, **more)

    monkeypatch.setattr(many_runs, "run", run)
    given: dict[str, Any] = {"budget": 100, "powers": range(-3, 1), "out": tmp_path}
    with pytest.raises(KeyboardInterrupt):
        ps.tune("gd", logistic(), **given)
    found = ps.tune("gd", logistic(), **given)
    assert len(calls) == 4 + 1 + 2  # four candidates, the one that was interrupted, and the two of the second rung
    assert found.method == ps.tune("gd", logistic(), **given | {"out": None}).method


def test_what_cannot_be_loaded_is_refused(tmp_path: Path) -> None:
    ps.run("gd", PROBLEM, rounds=3, out=tmp_path / "a")
    for name in ("checkpoint", "checkpoint.previous"):
        raw = (tmp_path / "a" / name).read_bytes()
        (tmp_path / "a" / name).write_bytes(raw[:-1] + bytes([raw[-1] ^ 1]))
    with pytest.raises(InputError, match="sha256 is wrong"):
        ps.load(tmp_path / "a")
    (tmp_path / "b").mkdir()
    with pytest.raises(InputError, match="holds no run"):
        ps.load(tmp_path / "b")


def test_files_for_people_are_not_read_back(tmp_path: Path) -> None:
    """Nothing but the sealed checkpoint is: a damaged x.npy would be another answer, and a pipe would never end."""
    made = ps.run("gd", PROBLEM, rounds=3, out=tmp_path)
    raw = (tmp_path / "x.npy").read_bytes()
    (tmp_path / "x.npy").write_bytes(raw[:-1] + bytes([raw[-1] ^ 1]))
    (tmp_path / "summary.json").unlink()
    os.mkfifo(tmp_path / "summary.json")
    assert same(ps.load(tmp_path), made)  # type: ignore[arg-type]


def test_a_sweep_by_force_leaves_no_older_run_behind(tmp_path: Path) -> None:
    ps.sweep(["scaffnew", "gradskip"], PROBLEM, rounds=3, seeds=2, out=tmp_path)
    (tmp_path / "gradskip" / "seed-1" / "notes.txt").write_text("mine")
    ps.sweep(["scaffnew"], PROBLEM, rounds=4, seeds=1, out=tmp_path, force=True)
    found = ps.load(tmp_path)
    assert [(r.summary["method"], r.rounds) for r in found] == [("scaffnew", 4)]  # type: ignore[union-attr]
    assert [p.name for p in (tmp_path / "gradskip" / "seed-1").iterdir()] == ["notes.txt"]
    assert not (tmp_path / "gradskip" / "seed-0").exists()


@pytest.mark.parametrize("link", ["scaffnew", "scaffnew/seed-1"])
def test_a_sweep_does_not_write_through_a_link(link: str, tmp_path: Path) -> None:
    elsewhere, out = tmp_path / "elsewhere", tmp_path / "out"
    ps.sweep("scaffnew", PROBLEM, rounds=3, seeds=2, out=elsewhere)
    before = {p: p.read_bytes() for p in elsewhere.rglob("*") if p.is_file()}
    (out / link).parent.mkdir(parents=True)
    (out / link).symlink_to(elsewhere / link)
    with pytest.raises(InputError, match=f"{link} leads out of .*; remove it"):
        ps.sweep(ps.Scaffnew, PROBLEM, rounds=4, seeds=2, out=out, force=True)
    assert {p: p.read_bytes() for p in elsewhere.rglob("*") if p.is_file()} == before


@pytest.mark.parametrize("looser", [{"tol": 1e-2}, {"target": 1e-2}, {"tol": 1e-6, "iterations": 20}, {"rounds": 10}])
def test_runs_that_went_beyond_the_limits_of_now_are_refused(looser: dict[str, Any], tmp_path: Path) -> None:
    """They are not the runs that ``run`` would make."""
    first = ps.sweep("scaffnew", PROBLEM, tol=1e-6, out=tmp_path)
    with pytest.raises(InputError, match="went on after these limits were reached"):
        ps.sweep("scaffnew", PROBLEM, **looser, out=tmp_path)
    tighter = ps.sweep("scaffnew", PROBLEM, tol=1e-9, out=tmp_path)
    assert tighter[0].rounds > first[0].rounds
    assert np.array_equal(tighter[0].x, ps.run("scaffnew", PROBLEM, tol=1e-9).x)


def test_wrong_sweeps_are_refused_before_any_work(tmp_path: Path) -> None:
    ps.run(ps.Scaffnew(0.1, 0.5), PROBLEM, rounds=3, seed=1, out=tmp_path / "scaffnew" / "seed-1")
    with pytest.raises(InputError, match="belongs to another run"):
        ps.sweep(["gd", "scaffnew"], PROBLEM, rounds=3, seeds=2, out=tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["scaffnew"]
    with pytest.raises(InputError, match="an engine object serves one run at a time"):
        ps.sweep(["gd"], PROBLEM, rounds=3, seeds=2, jobs=2, engine=ReferenceEngine())  # type: ignore[arg-type]


def test_a_model_is_the_problem_of_one_client() -> None:
    model = ps.Logistic(A, LABELS, l2=0.1)
    (result,) = ps.sweep(["gd"], model, tol=1e-6)
    assert result.success
    assert result.summary["clients"] == 1
    assert ps.tune("gd", model, budget=100).method.name == "gd"


@pytest.mark.parametrize("row", METHODS, ids=lambda row: row.name)
def test_what_draws_nothing_runs_once(row: Row) -> None:
    """And with what draws, another seed gives another x."""
    problem = row.quadratic()
    method = row.make(problem)
    runs = [run_row(row, problem, rounds=12, seed=seed).x for seed in (0, 1)]
    swept = ps.sweep(method, problem, rounds=2, seeds=2, cohort=row.cohort, allow_unsafe_step=True)
    assert draws(method, problem, row.cohort) is (len(swept) == 2)
    assert np.array_equal(*runs) is (len(swept) == 1)


def test_minibatches_networks_and_code_of_others_may_draw() -> None:
    method = ps.GD(0.1)
    assert not draws(method, PROBLEM)
    assert draws(method, logistic().with_batch(2))
    assert draws(method, PROBLEM, cohort=2)
    assert draws(method, PROBLEM, network="mobile")

    class Own(ps.GD): ...

    class OwnFunction(ps.Quadratic): ...

    assert draws(Own(0.1), PROBLEM)
    assert draws(method, ps.Problem([OwnFunction(np.eye(3), np.ones(3))]))
    assert draws(ps.EXTRA(0.1, "ring,failing:0.1"), PROBLEM)


# -- tune --------------------------------------------------------------------------------------------------------------
def test_halving_keeps_the_best_and_spends_the_budget() -> None:
    for n in (1, 2, 3, 4, 9, 24, 100):
        rungs = rungs_of(n, 4000)
        spent = sum(count * rounds for count, rounds, _ in rungs)
        assert 0.9 * 4000 <= spent <= 4000
        assert [count for count, _, _ in rungs][1:] == [keep for _, _, keep in rungs][:-1]
        assert rungs[-1][2] == 1
        assert [rounds for _, rounds, _ in rungs] == sorted(rounds for _, rounds, _ in rungs)
    candidates = grid(ps.GD, 1.0, range(9), [1])
    left = halve(candidates, [(10, 3), (30, 1)], lambda asked, rounds: [abs(c.times - 8.0) for c in asked])
    (best,) = left
    assert best.times == 8.0
    assert [len(c.gaps) for c in candidates].count(2) == 3
    both = [*grid(ps.GD, 1.0, range(9), [1]), *grid(ps.Scaffnew, 1.0, range(9), [1, 10])]
    left = halve(both, [(10, 3)], lambda asked, rounds: [abs(c.times - 8.0) for c in asked])
    assert [(c.method, c.times, c.steps) for c in left[:3]] == [("gd", 8.0, 1), ("gd", 4.0, 1), ("gd", 2.0, 1)]
    assert [(c.method, c.times, c.steps) for c in left[3:5]] == [("scaffnew", 8.0, 1), ("scaffnew", 8.0, 10)]
    with pytest.raises(InputError, match="at least 72"):  # 24, 8 and 3 candidates, a round each
        rungs_of(24, 71)
    assert rungs_of(24, 72)[0] == (24, 1, 8)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::proxskip.UnsafeStepWarning")
def test_tune_finds_a_step_that_beats_the_others_of_its_grid() -> None:
    problem = logistic(1e-2)
    found = ps.tune("scaffnew", problem, budget=600, powers=range(-3, 2), steps=[2, 8])
    gaps = {
        (k, K): ps.run(ps.Scaffnew(2.0**k / problem.L_average, 1 / K), problem, rounds=40, allow_unsafe_step=True)
        for k in range(-3, 2)
        for K in (2, 8)
        if 2.0**k / problem.L_average < 1 / problem.L_max
    }
    best = min(r.summary["gap"] for r in gaps.values())
    assert ps.run(found.method, problem, rounds=40, allow_unsafe_step=True).summary["gap"] <= max(10 * best, 1e-12)
    assert found.rounds <= 600
    assert len(found.candidates) == 10
    assert "Scaffnew, gamma = " in repr(found)


@pytest.mark.filterwarnings("ignore::proxskip.UnsafeStepWarning")
def test_tune_takes_the_fewest_rounds_to_a_target_and_the_median_of_its_seeds() -> None:
    problem, L = logistic(0.1), logistic(0.1).L_average
    grid_of = {"powers": range(-2, 1), "steps": [1, 4]}
    found = ps.tune("scaffnew", problem, budget=540, seeds=3, target=1e-4, **grid_of)
    rounds = min(found.best.gaps)
    for c in found.candidates:
        runs = [
            ps.run(ps.Scaffnew(c.times / L, 1 / c.steps), problem, rounds=rounds, target=1e-4, seed=seed, every=1,
                   allow_unsafe_step=True)
            for seed in range(3)
        ]  # fmt: skip
        assert c.gaps[rounds] == np.median([run.summary["gap"] for run in runs])
        assert c.needed[rounds] == np.median([run.rounds if run.success else np.inf for run in runs])
    ran_longest = [c for c in found.candidates if max(c.gaps) == max(found.best.gaps)]
    assert found.best.needed[max(found.best.gaps)] == min(c.needed[max(c.gaps)] for c in ran_longest)
    assert "to 0.0001" in repr(found)


def test_tune_says_where_its_grid_ends() -> None:
    found = ps.tune("local-gd", logistic(0.1), budget=60, powers=[-6, -5], steps=[1, 2])
    times, steps, cells = found.grid()
    assert (times, steps) == ([2.0**-6, 2.0**-5], [1, 2])
    assert [[c is not None and (c.times, c.steps) for c in row] for row in cells] == [
        [(t, K) for K in steps] for t in times
    ]
    assert "The best gamma L = 0.03125 lies at an end of the grid; try more powers." in repr(found)
    assert "The best number of local steps, 2, lies at an end of the grid; try more steps." in repr(found)
    ax = found.plot()
    assert [t.get_text() for t in ax.get_xticklabels()] == ["1", "2"]
    marked = [t.get_position() for t in ax.texts if t.get_text().endswith("*")]
    assert marked == [(1, 1)]
    pyplot.close("all")


def test_tune_keeps_the_other_parameters_of_a_method() -> None:
    found = ps.tune(ps.Scaffold(0.1, 5, option="I"), logistic(), budget=200, steps=[5])
    assert found.method.option == "I"  # type: ignore[attr-defined]


# -- tables ------------------------------------------------------------------------------------------------------------
def test_a_sweep_prints_one_line_for_each_setting_with_what_differs() -> None:
    methods = [ps.Scaffnew(0.5, 0.5), ps.Scaffnew(0.25, 0.5), "gd"]
    swept = ps.sweep(methods, logistic(), rounds=20, seeds=3)
    lines = repr(swept).splitlines()
    assert lines[0] == "7 results"
    assert [re.split(" {2,}", line)[0] for line in lines[2:]] == [
        "Scaffnew, gamma = 0.5", "Scaffnew, gamma = 0.25", "gradient descent",
    ]  # fmt: skip


def test_a_table_counts_to_the_first_record_that_is_good_enough(tmp_path: Path) -> None:
    swept = ps.sweep([ps.Scaffnew(0.5, 0.5), "gd"], logistic(), rounds=60, seeds=3, out=tmp_path)
    table = swept.table(1e-3)
    for row, runs in zip(table.rows, (swept[:3], swept[3:]), strict=True):
        rounds = [
            next(k for k, gap in enumerate(r.trace["gap"]) if gap <= 1e-3) for r in runs
        ]  # every round is recorded
        bits = [r.trace["bits_up"][k] + r.trace["bits_down"][k] for r, k in zip(runs, rounds, strict=True)]
        assert (row["seeds"], row["reached"]) == (len(runs), len(runs))
        assert [row["rounds"], row["rounds min"], row["rounds max"]] == [np.median(rounds), min(rounds), max(rounds)]
        assert [row["bits"], row["bits min"], row["bits max"]] == [np.median(bits), min(bits), max(bits)]
    assert [row["seeds"] for row in table.rows] == [3, 1]  # gradient descent draws nothing
    with pytest.raises(ps.InputError, match="eps = 'a' is not a number"):
        swept.table("a")
    never = swept.table(1e-300, y="grad_norm")
    assert [row["reached"] for row in never.rows] == [0, 0]
    assert repr(never).splitlines()[-1].split()[-3:] == ["-", "-", "-"]
    bits = [f"{table.rows[0][name]:,.0f}" for name in ("bits", "bits min", "bits max")]
    for shown in (repr(table), table.to_latex()):
        assert "{} ({} to {})".format(*bits) in shown
    latex = table.to_latex().splitlines()
    assert len(latex) == 5 + len(table.rows) + 1
    assert all(line.count("&") == 4 and line.endswith(r" \\") for line in (latex[2], *latex[4:6]))
    assert ET.fromstring(table._repr_html_()) is not None
    with open(tmp_path / "results.csv", newline="") as file:
        kept = list(csv.DictReader(file))
    assert [(row["method"], int(row["seed"]), float(row["f"])) for row in kept] == [
        (r.summary["method"], r.summary["seed"], r.summary["f"]) for r in swept
    ]


def test_every_table_goes_to_csv_and_latex_with_its_remarks_in_a_notebook(
    things: dict[str, Any], tmp_path: Path
) -> None:
    tuned = ps.tune("gd", PROBLEM, budget=100)
    tables = {
        "results": things["results"],
        "plan": things["plan"],
        "tuned": tuned,
        "costs": things["results"].table(1e-3),
    }
    for name, table in tables.items():
        table.to_csv(tmp_path / name)
        with open(tmp_path / name, newline="") as file:
            kept = list(csv.DictReader(file))
        assert len(kept) == len(table.records()), name
        for row, record in zip(kept, table.records(), strict=True):
            assert {k: v for k, v in record.items() if isinstance(v, float)} == {
                k: float(row[k]) for k, v in record.items() if isinstance(v, float)
            }, name
        head, *_, last = table.to_latex().splitlines()
        assert (head[:17], last) == (r"\begin{tabular}{l", r"\end{tabular}"), name
    assert len(tuned.records()) == len(tuned.candidates) > len(repr(tuned).splitlines()) - 2
    assert things["plan"].sentence in repr(things["plan"])
    assert things["plan"].sentence in html.unescape(things["plan"]._repr_html_())


def test_tables_are_frames_of_pandas(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    swept = ps.sweep(["scaffnew", "gd"], logistic(), rounds=30, seeds=2, out=tmp_path)
    read = pandas.read_csv(tmp_path / "results.csv")
    assert read["rounds"].tolist() == swept.to_frame()["rounds"].tolist() == [30] * 3
    # some versions of pandas round what they read to a neighbor
    assert read["gap"].tolist() == pytest.approx([r.summary["gap"] for r in swept], rel=1e-15)
    assert swept.table(1e-2).to_frame()["setting"].tolist() == ["Scaffnew", "gradient descent"]


# -- plot --------------------------------------------------------------------------------------------------------------
def legend(ax: Any) -> list[str]:
    return [text.get_text() for text in ax.get_legend().get_texts()]


def test_lines_are_labelled_by_what_differs_and_seeds_are_bands(tmp_path: Path) -> None:
    problem = logistic()
    runs = ps.sweep([ps.Scaffnew(0.5, 0.5), ps.Scaffnew(0.25, 0.5), "gd"], problem, rounds=20, seeds=3, out=tmp_path)
    ax = ps.plot(runs)
    assert legend(ax) == ["Scaffnew, gamma = 0.5", "Scaffnew, gamma = 0.25", "gradient descent"]
    assert len(ax.lines) == 3
    assert len(ax.collections) == 2  # gradient descent draws nothing, and has no band
    middle = np.median([r.trace["gap"] for r in runs[:3]], axis=0)
    np.testing.assert_allclose(ax.lines[0].get_ydata(), middle, rtol=1e-9)
    _, mine = pyplot.subplots()
    assert ps.plot(tmp_path, x="floats", y="grad_norm", ax=mine) is mine
    assert legend(mine) == legend(ax)
    assert legend(ps.plot({"one": runs[0], "many": runs[3:6]})) == ["one", "many"]
    assert legend(ps.plot(runs[0])) == ["Scaffnew"]
    axes = ps.plot(runs[0], y="f")  # any column is drawn
    assert axes.lines[0].get_ydata().tolist() == runs[0].trace["f"].tolist()
    assert axes.get_yscale() == "linear"
    pyplot.close("all")


def test_a_line_is_drawn_as_its_user_wants() -> None:
    runs = ps.sweep([ps.Scaffnew(0.5, 0.5), ps.Scaffnew(0.25, 0.5), "gd"], logistic(), rounds=20, seeds=2)
    wanted = {"scaffnew": {"c": "black"}, "Scaffnew, gamma = 0.25": {"ls": ":", "label": "ours"}}
    ax = ps.plot(runs, style=wanted)
    assert legend(ax) == ["Scaffnew, gamma = 0.5", "ours", "gradient descent"]
    assert [line.get_color() for line in ax.lines[:2]] == ["black", "black"]
    assert [line.get_markerfacecolor() for line in ax.lines[:2]] == ["black", "black"]
    assert ax.lines[1].get_linestyle() == ":"
    assert ax.lines[2].get_color() != "black"
    assert ax.collections[0].get_facecolor()[0, :3].tolist() == [0, 0, 0]
    with pytest.raises(InputError, match="style has 'sgd', which is no line; there are Scaffnew,"):
        ps.plot(runs, style={"sgd": {}})
    pyplot.close("all")


def test_the_summary_says_what_is_a_setting() -> None:
    """Runs with other metrics, other costs and other constants are seeds of one setting."""
    runs = [ps.run("scaffnew", PROBLEM, rounds=20 + k, seed=k) for k in range(2)]
    assert runs[0].summary.settings == runs[1].summary.settings
    assert {"seed", "rounds", "L", "mu", "status"}.isdisjoint(runs[0].summary.settings)
    for k, run in enumerate(runs):
        run.summary["my own note"] = k
    assert len(ps.plot(runs).lines) == 1
    pyplot.close("all")
    found = [ps.minimize(ps.random_quadratics(1, 3, L=L)[0], ps.prox.L1(0.1), method="fista") for L in (1.0, 2.0)]
    assert found[0].summary.settings.keys() & {"L", "mu", "fun", "certificate"} == set()


def test_different_problems_are_warned_about() -> None:
    a, b = (ps.run("gd", logistic(l2), rounds=5) for l2 in (0.1, 0.2))
    with pytest.warns(UserWarning, match="different problems .*lambda") as caught:
        ax = ps.plot([a, b])
    assert caught[0].filename == __file__
    assert [f"lambda = {l2}" in label for l2, label in zip((0.1, 0.2), legend(ax), strict=True)] == [True, True]
    with pytest.warns(UserWarning, match=r"different problems .*f\*"):
        ps.plot([ps.run("gd", Problem(ps.random_quadratics(4, 3, seed=s)), rounds=5) for s in (0, 1)])
    pyplot.close("all")
