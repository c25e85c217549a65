"""The reproduction: runs shared, stopped and continued, claims that can fail, and a folder that is nobody else's."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import proxskip as ps
from proxskip.cli import parser as cli_parser
from proxskip.cli import reproduce_command
from proxskip.experiments import bench as bench_module
from proxskip.experiments import claims, curves, figure, panel, reproduce, search
from proxskip.experiments import settings as build
from proxskip.experiments.bench import Bench
from proxskip.experiments.curves import Curves, curve
from proxskip.experiments.figures import PAPER, experiment
from proxskip.experiments.reproduce import bench_of, command_of
from proxskip.report import figures
from proxskip.report.figures import Claim, Experiment, Series
from proxskip.results import description
from proxskip.running.tune import Candidate, grid
from support.tiers import thinned

pytestmark = [pytest.mark.long, pytest.mark.xdist_group("reproduce")]

FIGURES = ("fig1a", "fig1b", "fig1c", "fig2a", "fig2b", "fig2c")
SMALL: dict[str, dict[str, Any]] = {
    "fig1a": {"powers": [-1, 1, 8], "steps": [2, 4], "most_steps": 10, "rungs": [[3, 2], [6, 2]], "rounds": 8, "local_gd_rounds": 5,
              "tradeoff_rounds": 6, "seeds": 3},
    "fig1b": {"K": 4, "p": 0.25, "rounds": 12, "theorem_rounds": 6},
    "fig1c": {"inverse_p": [2, 4], "rounds": [20, 12], "last_inverse_p": 8, "last_rounds": 6, "seeds": 3},
    "fig2a": {"powers": [-1, 0], "K": 3, "p": 1 / 3, "rungs": [[2, 1]], "rounds": 4, "seeds": 2},
    "fig2b": {"K": 3, "p": 1 / 3, "rounds": 4, "seeds": 2},
    "fig2c": {"clients": [1, 2, 3], "most": 3, "rounds": 6, "decaying_rounds": 4, "seeds": 2},
}  # fmt: skip
"""Values with which the figures take a moment."""


def little(folder: Path) -> str:
    """An svmlight file of 80 rows."""
    rng = np.random.Generator(np.random.Philox(1))
    A, b = rng.standard_normal((80, 5)), np.where(rng.random(80) < 0.5, -1, 1)
    lines = [f"{y} " + " ".join(f"{j + 1}:{v:.4f}" for j, v in enumerate(a)) for a, y in zip(A, b, strict=True)]
    path = folder / "little.svm"
    path.write_text("\n".join(lines) + "\n")
    return str(path)


def use_small_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Quick runs of the figures take these values."""
    monkeypatch.setattr(reproduce, "experiment", lambda name: replace(experiment(name), quick=SMALL.get(name, {})))


@pytest.fixture
def data(tmp_path: Path) -> str:
    return little(tmp_path)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A reproduction of all figures, and what was said meanwhile."""
    folder = tmp_path_factory.mktemp("made")
    bench, said = bench_of(little(folder), folder / "report", quick=True), []
    with pytest.MonkeyPatch.context() as monkeypatch:
        use_small_figures(monkeypatch)
        report = reproduce.make_report(FIGURES, bench, lambda *what: said.append(what))
    return SimpleNamespace(out=bench.out, report=report, said=said)


def without_times(found: Any) -> Any:
    """A JSON value without seconds and what follows from the command."""
    if isinstance(found, dict):
        return {k: without_times(v) for k, v in found.items() if k not in ("seconds", "command", "jobs")}
    return [without_times(v) for v in found] if isinstance(found, list) else found


def results(out: Path) -> Any:
    return json.loads((out / "results.json").read_text())


# -- the pipeline ------------------------------------------------------------------------------------------------------
def test_every_figure_ends_in_a_report(made: Any) -> None:
    report, said, out = made.report, made.said, made.out
    assert [e.id for e in report.experiments] == list(FIGURES)
    assert figures.from_json(results(out)) == figures.from_json(json.loads(json.dumps(figures.to_json(report))))
    for e in report.experiments:
        assert (out / "figures" / f"{e.id}.png").read_bytes().startswith(b"\x89PNG")
        assert (out / "figures" / f"{e.id}.pdf").read_bytes().startswith(b"%PDF")
        assert (out / "figures" / f"{e.id}.svg").read_bytes().startswith(b"<?xml")
        assert (out / "figures" / f"{e.id}.csv").read_text("utf-8").startswith("panel,curve,")
        assert e.sentence
        assert e.parameters
        assert f"reproduce {e.id} --data" in e.command
        assert all(len(s.y) == len(x) > 1 for p in e.panels for s in p.series for x in s.x.values())
    page = (out / "index.html").read_text()
    assert all(e.title in page for e in report.experiments)
    assert {c.verdict for c in report.claims} <= {"REPORTED", "INCONCLUSIVE"}
    assert {c.experiment for c in report.claims} == set(FIGURES)
    shares = [done for _, done in said]
    assert shares == sorted(shares)
    assert (shares[0], shares[-1]) == (0.0, 1.0)
    words = " ".join(text for text, _ in said)
    assert all(part in words for part in ("fig1a: tuning FedLin", "fig1b: Scaffold (2 of 7)", "fig2c: M = 3 (3 of 3)"))


def test_the_grid_and_the_winner_are_recorded(made: Any) -> None:
    report = made.report
    grid, winners = (next(t for t in report.experiments[0].tables if t.id == id) for id in ("tuned-grid", "tuned"))
    assert {"gamma L = 0.5", "gamma L = 2", "gamma L = 256"} <= set(grid.columns[2:])
    assert {2, 4} <= {row[1] for row in grid.rows if row[0] == "FedLin"}
    cells = [str(cell) for row in grid.rows for cell in row[2:]]
    assert sum("*" in cell for cell in cells) == len(winners.rows) == 7
    assert not any(way in grid.note for way in ("larger steps", "smaller steps", "fewer local steps"))
    drawn = {s.label: s.about for s in report.experiments[0].panels[0].series}
    for row in winners.rows:
        assert row[1] == pytest.approx(drawn[str(row[0])]["gamma"])


def test_a_grid_grows_towards_its_winner() -> None:
    tried = grid(ps.Scaffold, 2.0, [-1, 0, 1], [30, 100])
    for c in tried:
        c.gaps[5] = None if c.times == 2.0 else 1.0 / c.steps
    at = {(c.times, c.steps): c for c in tried}
    assert search.ends(tried, at[1.0, 100]) == ["more local steps"]
    new = search.beyond(tried, at[1.0, 100], 2.0, 1000)
    assert {(c.times, c.steps) for c in new} == {(t, 300) for t in (0.25, 0.5, 1.0, 2.0)}
    assert all(c.flags == {"gamma": c.times / 2.0, "K": 300} for c in new)
    corner = search.beyond(tried, at[2.0, 30], 2.0, 1000)
    assert {(c.times, c.steps) for c in corner} == {(4.0, 30), (4.0, 100)} | {(t, 10) for t in (1.0, 2.0, 4.0, 8.0)}
    assert search.beyond(tried, at[1.0, 100], 2.0, 100) == []
    for c in new:
        c.gaps[5] = 1.0
    note = search.grid_table("g", {"scaffold": [*tried, *new]}, {"scaffold": at[1.0, 100]}).note
    assert "Scaffold diverges at the next larger step: its limit of stability ends the grid." in note
    note = search.grid_table("g", {"scaffold": tried}, {"scaffold": at[1.0, 100]}).note
    assert "The winner of Scaffold lies at an end of the grid, towards more local steps." in note


def test_methods_with_coins_have_bands(made: Any) -> None:
    fig1a, fig1c = made.report.experiments[0], made.report.experiments[2]
    for s in (*fig1a.panels[0].series, *fig1c.panels[0].series):
        drawn = s.method in ("scaffnew", "s-local-gd")
        assert (s.low is not None, s.about.get("seeds")) == ((True, 3) if drawn else (False, None)), s.label
        assert s.low is None or all(a <= b <= c for a, b, c in zip(s.low, s.y, s.high or [], strict=True))


def test_a_seed_that_arrived_stays_there() -> None:
    """The median goes on until most seeds have arrived; a seed that only ended at its limit ends the comparison."""

    def kept(rounds: int, status: str, rate: float) -> Any:
        r = np.arange(rounds + 1.0)
        table = ps.Trace.from_arrays({"round": r, "gap": np.exp(-rate * r), "exchanges": 2 * r})
        return SimpleNamespace(trace=table, status=ps.Status[status], success=status == "CONVERGED", summary={})

    runs = [kept(6, "CONVERGED", 3.0), kept(9, "CONVERGED", 2.0), kept(20, "LIMIT", 0.1)]
    s = curves.of_runs(curve("scaffnew"), runs, axes=("rounds", "exchanges"))
    assert s.x["rounds"] == list(range(10))
    assert s.x["exchanges"] == [2 * r for r in range(10)]
    assert s.y == [pytest.approx(float(np.exp(-2.0 * r))) for r in range(10)]
    assert s.low is not None
    assert s.low[9] == s.low[6]
    stopped = [kept(6, "LIMIT", 3.0), *runs[1:]]
    assert curves.of_runs(curve("scaffnew"), stopped, axes=("rounds",)).x["rounds"] == list(range(7))


@pytest.mark.slow
def test_two_calls_keep_each_others_experiments(data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use_small_figures(monkeypatch)
    monkeypatch.setattr(reproduce, "draw", lambda *about: None)
    bench, whole, called = bench_of(data, tmp_path / "r", quick=True), reproduce._one, []

    def one(made: Any, *about: Any) -> None:
        called.append(made.id)
        if made.id == "fig1b":
            reproduce.make_report(["fig1c"], bench)  # by another call, while this one runs
        whole(made, *about)

    monkeypatch.setattr(reproduce, "_one", one)
    reproduce.make_report(["fig1b"], bench)
    assert called == ["fig1b", "fig1c"]
    assert [e["id"] for e in results(bench.out)["experiments"]] == ["fig1b", "fig1c"]


# -- stop and continue -------------------------------------------------------------------------------------------------
def start(out: Path, data: str, *more: str, jobs: int = 1) -> subprocess.Popen[str]:
    words = f"-m proxskip reproduce fig1b --quick --jobs {jobs}".split()
    words = [sys.executable, *words, "--data", data, "--out", str(out), *more]
    return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def stop(out: Path, data: str, count: int, how: signal.Signals, jobs: int = 1) -> tuple[int, str]:
    """How it ends, and what it says, when it is sent this signal after it has begun so many runs."""
    process = start(out, data, jobs=jobs)
    while process.poll() is None and len(list(out.glob("runs/*/spec.json"))) < count:
        time.sleep(0.005)
    process.send_signal(how)
    _, err = process.communicate(timeout=120)
    return process.returncode, err


@pytest.mark.slow
@pytest.mark.parametrize("jobs", thinned([2, 1], 1, 2))
def test_stopped_and_killed_and_continued_it_gives_the_same_results(data: str, tmp_path: Path, jobs: int) -> None:
    whole = tmp_path / "whole"
    for attempt in range(10):  # on a busy machine it may be over before the signal comes
        parts = tmp_path / f"parts-{attempt}"
        # so many have begun that one has ended
        ended, err = stop(parts, data, 3 * jobs - 1, signal.SIGINT, jobs)
        if ended == 0:
            continue
        assert ended == 130
        assert "interrupted; to continue, run: proxskip reproduce" in err
        assert not (parts / "results.json").exists()
        done = {p.parent.name: p.stat().st_mtime_ns for p in (parts / "runs").glob("*/summary.json")}
        ended, _ = stop(parts, data, 9, signal.SIGKILL, jobs)
        if ended == 0:
            continue
        assert ended == -signal.SIGKILL
        break
    else:
        pytest.fail("it was over too soon, ten times")
    for out in (parts, whole):
        process = start(out, data, "--json", jobs=jobs if out == parts else 1)
        text, err = process.communicate(timeout=240)
        assert process.returncode == 0, err
        assert without_times(json.loads(text)) == without_times(results(out))
    assert without_times(results(parts)) == without_times(results(whole))
    assert results(parts)["experiments"][0]["seconds"] > 0
    finished = [name for name in done if json.loads((parts / "runs" / name / "summary.json").read_text())]
    kept = [n for n in finished if (parts / "runs" / n / "summary.json").stat().st_mtime_ns == done[n]]
    assert len(kept) >= 1  # what was finished before the first stop was not made again


def test_a_second_signal_to_end_does_not_disturb_the_first() -> None:
    """``timeout`` sends two."""
    before, undisturbed = signal.getsignal(signal.SIGTERM), False
    with contextlib.suppress(KeyboardInterrupt), reproduce_command._terminated():
        try:
            signal.raise_signal(signal.SIGTERM)
        finally:
            signal.raise_signal(signal.SIGTERM)
            undisturbed = True
    assert undisturbed
    assert signal.getsignal(signal.SIGTERM) == before


def test_an_interrupted_run_goes_on(data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = curve("scaffnew", rounds=40)
    straight = Bench(tmp_path / "a", data).runs([job])[0]

    def interrupt(text: str) -> None:
        if "round 17" in text:
            os.kill(os.getpid(), signal.SIGINT)

    bench = Bench(tmp_path / "b", data, say=interrupt)
    with pytest.raises(KeyboardInterrupt):
        bench.runs([job])
    (folder,) = (tmp_path / "b" / "runs").iterdir()
    assert json.loads((folder / "summary.json").read_text())["status"] == "INTERRUPTED"
    again = Bench(tmp_path / "b", data)
    monkeypatch.setattr("proxskip.running.many_runs.run", None)  # only resume may be called
    resumed = again.runs([job])[0]
    np.testing.assert_array_equal(resumed.x, straight.x)
    np.testing.assert_array_equal(resumed.trace["gap"], straight.trace["gap"])


# -- the bench ---------------------------------------------------------------------------------------------------------
def test_a_run_is_found_by_its_content(data: str, tmp_path: Path) -> None:
    def job(**flags: Any) -> Any:
        return curve("gd", "a", **{"rounds": 3, **flags})

    same = [job(), job(gamma=None, l2_relative=1e-4)]
    others = [job(gamma=0.01), job(decay=0.1), job(l2=1e-3), job(l2_relative=1e-3), job(clients=5)]
    others += [job(rounds=4), job(every=2), replace(job(), seed=1)]
    bench = Bench(tmp_path, data)
    for jobs, folders in ((same, 1), (others, 9)):
        bench.runs(jobs)
        assert len(list((tmp_path / "runs").glob("gd-*"))) == folders


def test_variants_of_a_problem_are_the_problems_of_their_flags(data: str, tmp_path: Path) -> None:
    bench = Bench(tmp_path, data)
    for flags in ({}, {"smoothness": "average"}, {"batch": 2}, {"smoothness": "average", "batch": 3, "clients": 4}):
        found, (wanted, _) = bench.problem(**flags), build.problem_of(bench.spec(**flags))
        assert description.identity(found) == description.identity(wanted)
        for name in ("L", "mu", "es_A", "es_C"):
            assert getattr(found, name) == pytest.approx(getattr(wanted, name), rel=1e-12), name


def test_spread_is_refused_for_another_loss(data: str, tmp_path: Path) -> None:
    bench = Bench(tmp_path, data)
    assert np.ptp(bench.problem(spread=4.0).L_i) > 0
    with pytest.raises(ps.InputError, match="spread= scales the clients of a logistic loss"):
        bench.problem(spread=4.0, loss="squared")


def test_a_decaying_step_is_the_formulas() -> None:
    """Round k has gamma_k in the steps and in the update of h, and a resumed run too."""
    problem = ps.Problem(ps.random_quadratics(3, 4, seed=1))
    x, gammas = np.zeros(4), [1 / (2.0 + 0.3 * k) for k in range(6)]
    for gamma in gammas:
        x = x - gamma * problem.gradient(x)
    found = ps.run(ps.Decaying(ps.GD(0.5), 0.3), problem, rounds=6)
    np.testing.assert_allclose(found.x, x, rtol=1e-12)
    h, x = np.zeros((3, 4)), np.zeros(4)
    for gamma in gammas:
        xhat = np.tile(x, (3, 1))
        for _ in range(2):
            xhat = xhat - gamma * (np.stack([f.gradient(v) for f, v in zip(problem.clients, xhat, strict=True)]) - h)
        x = np.mean(xhat - gamma / 0.5 * h, axis=0)
        h = h + 0.5 / gamma * (x - xhat)
    found = ps.run(ps.Decaying(ps.Scaffnew(0.5, 0.5, K=2), 0.3), problem, rounds=6)
    np.testing.assert_allclose(found.x, x, rtol=1e-10)
    np.testing.assert_allclose(found.h, h, rtol=1e-8, atol=1e-12)


def test_candidates_that_blow_up_are_cut(data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(tmp_path, data)
    problem = bench.problem(loss="squared")
    tried = [Candidate("gd", g, 1, {"gamma": g / problem.L_average}) for g in (1.0, 1e6)]
    good, bad = bench.final_gaps({"loss": "squared"}, tried, 80)
    assert bad is None
    assert good is not None
    method = bench.method("gd", problem, **tried[0].flags)
    assert good == pytest.approx(ps.run(method, problem, rounds=80).summary["gap"])
    monkeypatch.setattr(bench_module, "run_task", None)
    assert bench.final_gaps({"loss": "squared"}, tried, 80) == [good, None]


def test_a_gap_far_below_zero_has_not_arrived() -> None:
    gap = np.array([2.0, 0.5, 0.1])
    assert figures.first_below(range(3), gap, 1.0) == 1
    assert figures.first_below(range(3), gap - 9.0, 1.0) is None


def test_flags_default_as_on_the_command_line() -> None:
    top, _ = cli_parser.parser("0")
    parsed = build.with_lambda(top.parse_args(["run", "gd", "--data", "digits", "--rounds", "1"]))
    flags = build.flags(data="digits", rounds=1)
    assert vars(flags) == {k: vars(parsed)[k] for k in vars(flags)}
    with pytest.raises(ps.InputError, match="roundz is not a flag"):
        build.flags(roundz=3)


@pytest.mark.parametrize("name", PAPER)
def test_a_quick_run_is_a_smaller_one(name: str) -> None:
    made = experiment(name)
    assert set(made.values(quick=True)) == set(made.values(quick=False))
    full, quick = made.share
    assert quick < full


# -- claims ------------------------------------------------------------------------------------------------------------
def falling(
    method: str, rate: float, rounds: int = 2000, floor: float = 0.0, exchanges: int = 1, **about: Any
) -> Series:
    """f - f* = exp(-rate r) + floor, recorded in every tenth round."""
    r = [float(k) for k in range(0, rounds + 1, 10)]
    x = {"rounds": r, "iterations": [100 * k for k in r]}
    x |= {"exchanges": [exchanges * k for k in r], "floats": [exchanges * 600 * k for k in r]}
    return Series(method, x, [float(np.exp(-rate * k)) + floor for k in r], method, about={"status": "limit", **about})


class Given(Bench):
    """A bench whose curves are given, one list for each call of ``run``."""

    def __init__(self, data: str, quick: bool, *drawn: list[Series]) -> None:
        super().__init__(Path("nowhere"), "digits", quick=quick)
        self.data, self.drawn = data, iter(drawn)

    def _measured(self, *asked: Any) -> Curves:
        drawn = [replace(s, about={"gamma": 1.0, **s.about}) for s in next(self.drawn)]
        return Curves(tuple(drawn), (1.0,) * len(drawn))

    def _searched(self, id: str, asked: Any, rules: Any) -> Any:
        return asked, search.grid_table(id, {}, {})

    def problem(self, **flags: Any) -> Any:
        return SimpleNamespace(batch=None, l2=1e-4, L_average=1.0, L_i=np.ones(3), sizes=[5000])


def judged(id: str, asserted: bool, *drawn: list[Series], quick: bool = False) -> list[Claim]:
    """The claims of an experiment on these curves, on the paper's data or on other data."""
    _, found = experiment(id).make(Given("w8a" if asserted else "other", quick, *drawn))
    return found


def verdicts(found: list[Claim]) -> dict[str, str]:
    return {c.id: c.verdict for c in found}


def broken(s: Series) -> Series:
    return replace(s, y=[*s.y[:3], float("nan"), *s.y[4:]])


SLOW = [falling(m, 2e-3) for m in ("local-gd", "scaffold", "fedlin", "s-local-gd")]
SHORT = [falling(s.method, 2e-3, 300) for s in SLOW]
FAST = falling("scaffnew", 0.05)


@pytest.mark.parametrize(
    ("drawn", "fast", "slow"),
    [
        ([FAST, *SLOW], "PASS", "PASS"),
        ([falling("scaffnew", 1e-4, floor=-2.0), *SLOW], "FAIL", "PASS"),
        ([falling("scaffnew", 0.03, 300), *SHORT], "INCONCLUSIVE", "INCONCLUSIVE"),
        ([FAST, falling("local-gd", 0.1, 300, 1e-2, status="stalled"), *SLOW[1:]], "PASS", "PASS"),
        ([FAST, falling("local-gd", 2e-3, 300, status="diverged"), *SLOW[1:]], "PASS", "FAIL"),
        ([FAST, broken(SLOW[0]), *SLOW[1:]], "PASS", "FAIL"),
        # three curves are short and one of them is below 1e-3 to its end: more rounds cannot change that
        ([FAST, falling("local-gd", 0.1, 300), *SHORT[1:]], "PASS", "FAIL"),
    ],
)
def test_figure_1b_is_judged_by_its_curves(drawn: list[Series], fast: str, slow: str) -> None:
    found = judged("fig1b", True, drawn, drawn)
    assert verdicts(found) == {"fig1b-fast": fast, "fig1b-slow": slow}
    assert all("300 rounds" in c.note for c in found if c.verdict == "INCONCLUSIVE")


SHORT_2, SHORT_4 = (2000, 60, 2000, 2000), (2000, 2000, 2000, 60)


@pytest.mark.parametrize(
    ("rates", "rounds", "best", "ends"),
    [
        ((0.01, 0.05, 0.1, 0.02), 2000, "PASS", "PASS"),
        ((0.01, 0.05, 0.1, 0.07), 2000, "PASS", "FAIL"),
        ((0.004, 0.05, 0.1, 0.004), 200, "PASS", "INCONCLUSIVE"),
        ((0.004, 0.05, 0.1, 0.004), 50, "INCONCLUSIVE", "INCONCLUSIVE"),
        # an open curve decides nothing where the others have decided already
        ((0.01, 0.1, 0.1, 0.02), SHORT_2, "PASS", "PASS"),
        ((0.1, 0.01, 0.01, 0.1), SHORT_4, "FAIL", "INCONCLUSIVE"),
        ((0.1, 0.1, 0.05, 0.15), SHORT_2, "INCONCLUSIVE", "FAIL"),
        ((0.2, 0.1, 0.12, 0.01), SHORT_4, "FAIL", "FAIL"),
    ],
)
def test_figure_1c_is_judged_by_its_curves(rates: Any, rounds: Any, best: str, ends: str) -> None:
    drawn = [falling("scaffnew", r, int(k)) for r, k in zip(rates, np.broadcast_to(rounds, 4), strict=True)]
    drawn = [replace(s, label=f"1/p = {k}", about={**s.about, "inverse_p": k}) for k, s in enumerate(drawn)]
    assert verdicts(judged("fig1c", True, drawn[:-1], drawn[-1:])) == {"fig1c-best": best, "fig1c-ends": ends}
    for lost in (replace(drawn[-1], about={"status": "diverged", "inverse_p": 9}), broken(drawn[-1])):
        assert verdicts(judged("fig1c", True, drawn[:-1], [lost])) == {"fig1c-best": "FAIL", "fig1c-ends": "FAIL"}


def fig1a(tradeoff: list[Series] | None = None, quick: bool = False, **given: float) -> dict[str, str]:
    rates = {"scaffnew": 0.1, "scaffold": 0.09, "fedlin": 0.08, "s-local-gd": 0.05, "local-gd": 1e-3}
    rates |= {name.replace("_", "-"): rate for name, rate in given.items()}
    tuned = [falling(m, r, exchanges=2 if m in ("fedlin", "s-local-gd") else 1) for m, r in rates.items()]
    biased = [falling("local-gd", g, floor=g, gamma_L=g) for g in (0.01, 0.02, 0.04)]
    return verdicts(judged("fig1a", True, tuned, tradeoff or biased, quick=quick))


def test_figure_1a_is_judged_by_its_curves() -> None:
    assert set(fig1a().values()) == {"PASS"}
    assert fig1a(scaffold=0.05)["fig1a-alike"] == "FAIL"
    assert fig1a(scaffold=0.005)["fig1a-alike"] == "FAIL"  # never there, in far more rounds than Scaffnew needs
    assert fig1a(local_gd=0.2)["fig1a-ahead"] == "FAIL"
    assert fig1a(fedlin=0.15)["fig1a-exchanges"] == "FAIL"
    # neither gets there, and FedLin does, at less than the cost that they had
    late = fig1a(scaffnew=1e-3, scaffold=1e-3, fedlin=0.1)
    assert [late[f"fig1a-{k}"] for k in ("ahead", "alike", "exchanges")] == ["FAIL", "INCONCLUSIVE", "FAIL"]
    arrived = [falling("local-gd", 0.02, gamma_L=0.01), falling("local-gd", 2e-3, gamma_L=0.02)]
    assert fig1a(tradeoff=arrived)["fig1a-biased"] == "FAIL"
    unbiased = [falling("local-gd", 0.1, gamma_L=g) for g in (0.01, 0.02)]
    assert fig1a(tradeoff=unbiased)["fig1a-biased"] != "PASS"
    upside_down = [falling("local-gd", 0.1, floor=0.1 - g, gamma_L=g) for g in (0.01, 0.02, 0.04)]
    assert fig1a(tradeoff=upside_down)["fig1a-biased"] == "FAIL"
    assert fig1a(quick=True)["fig1a-alike"] == "REPORTED"  # nothing is promised at another accuracy


def test_figure_2c_is_judged_by_its_curves() -> None:
    def found(*floors: float, rate: float = 0.1) -> dict[str, str]:
        drawn = [falling("scaffnew", rate, floor=v, clients=k + 1) for k, v in enumerate(floors)]
        return verdicts(judged("fig2c", True, drawn, drawn, drawn))

    assert found(3e-3, 2e-3, 1e-3) == {"fig2c-floor": "PASS", "fig2c-speedup": "REPORTED", "fig2c-total": "REPORTED"}
    assert found(3e-3, 1e-3, 2e-3)["fig2c-floor"] == "FAIL"
    assert found(3e-3, 2e-3, -1e-3)["fig2c-floor"] == "FAIL"
    assert found(3e-3, 2e-3, 1.9e-3)["fig2c-floor"] == "FAIL"  # hardly lower
    assert found(3e-3, 2e-3, 1e-9, rate=5e-3)["fig2c-floor"] == "PASS"  # the last one still falls, and is the lowest
    assert found(1e-9, 2e-9, 3e-9, rate=5e-3)["fig2c-floor"] == "INCONCLUSIVE"  # all of them still fall


def test_a_sentence_says_whether_it_was_seen() -> None:
    shown = Experiment("fig1b", "", "It falls.", {}, "")

    def sentence(*given: Any) -> str:
        found = [Claim(f"c{k}", "fig1b", "It must.", v, f"It does {k}.") for k, v in enumerate(given)]
        return claims.with_findings(shown, found)[0].sentence

    assert sentence("PASS", "REPORTED") == "It falls. It does 0."
    assert sentence("INCONCLUSIVE", "PASS") == "It does 1."
    assert sentence("INCONCLUSIVE") == "The runs are too short to show anything."
    assert sentence("PASS", "FAIL") == "It does 0. This does not hold here: It must."
    for holds, note in ((True, "holds here"), (False, "does not hold here"), (None, "")):
        reported = Claim("c", "fig1b", "It must.", "REPORTED", "It does.", holds=holds)
        e, (claim,) = claims.with_findings(shown, [reported])
        assert claim.note == note
        assert ("It falls." in e.sentence) == (holds is not False)
        assert ("This does not hold here: It must." in e.sentence) == (holds is False)


def test_what_is_reported_on_other_data_is_judged_all_the_same() -> None:
    """A curve that contradicts the claim is REPORTED with holds = False."""
    for rate, holds in ((0.05, True), (1e-4, False)):
        drawn = [*SLOW, falling("scaffnew", rate)]
        assert judged("fig1b", False, drawn, drawn)[0].holds is holds
    drawn = [falling("scaffnew", r, inverse_p=1 / r) for r in (0.01, 0.05, 0.1, 0.2)]
    assert [c.holds for c in judged("fig1c", False, drawn[:-1], drawn[-1:])] == [False, False]
    tuned = [falling(m, 0.1) for m in ("scaffnew", "scaffold", "fedlin", "s-local-gd", "local-gd")]
    biased = [falling("local-gd", 0.1, floor=0.1 - g, gamma_L=g) for g in (0.01, 0.02)]
    found = judged("fig1a", False, tuned, biased)
    assert [c.holds for c in found] == [True, True, False, False]
    assert found[0].id == "fig1a-ahead"  # it names the rounds of all local methods
    for ahead, holds in ((0.2, True), (0.01, False)):
        drawn = [falling("fedlin", 0.02), falling("scaffnew", ahead)]
        for id, wanted in (("fig2b", holds), ("fig2a", None)):
            found = judged(id, True, drawn, drawn)
            assert {(c.verdict, c.holds) for c in found} == {("REPORTED", wanted)}


@pytest.mark.parametrize(("ends", "holds"), [((1e-4, 0.9e-4), False), ((1e-4, 1e-5), True)])
def test_a_linear_speedup_is_told_from_none(ends: tuple[float, float], holds: bool) -> None:
    drawn = [falling("scaffnew", 1.0, floor=v, clients=M) for M, v in zip((1, 10), ends, strict=True)]
    finding = claims.speedup(drawn, 0.5)
    assert finding.holds is holds
    assert "a linear speedup would give 10." in finding.measured


def test_a_p_that_does_not_get_there_is_drawn_where_its_rounds_end() -> None:
    rates = {10: 0.02, 30: 0.1, 100: 0.001}
    drawn = [falling("scaffnew", r, inverse_p=k) for k, r in rates.items()]
    (panel,) = curves.rounds_against("needed", drawn, 1e-6, "inverse_p", "1/p")
    reached, short = panel.series
    assert reached.x["inverse_p"] == [10, 30]
    assert (short.x["inverse_p"], short.y) == ([100], [2000])
    assert short.label.startswith("not reached")


def test_commands_that_are_shown_can_be_run(tmp_path: Path) -> None:
    bench = bench_of("w8a", tmp_path, True, "gpu", data_dir="my data")
    assert command_of(bench, ["fig1b"]).endswith(f"--quick --engine gpu --data-dir 'my data' --out {tmp_path}")


# -- the command -------------------------------------------------------------------------------------------------------
@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Any:
    """An experiment that runs nothing and claims what it is told."""

    def install(*given: str) -> None:
        holds = {"PASS": True, "FAIL": False, "INCONCLUSIVE": None, "REPORTED": True}

        @figure("title", shows="It shows.")
        def fig1b(bench: Bench, K: int = 3) -> Any:
            for k, verdict in enumerate(given):
                found = claims.Finding(holds[verdict], "It does.", reported=verdict == "REPORTED")
                yield claims.claim(f"c{k}", "It must.", found)

        fig1b.function.__module__ = "proxskip.experiments.figure1"
        monkeypatch.setattr(reproduce, "experiment", lambda name: fig1b)

    return install


def test_exit_codes(fake: Any, data: str, tmp_path: Path, call: Any) -> None:
    fake("PASS", "FAIL", "REPORTED")
    words = ("reproduce", "fig1b", "--data", data, "--out", tmp_path / "r")
    code, text, _ = call(*words)
    assert code == 0
    assert all(word in text for word in ("passed", "FAILED", "measured, no claim", "It must.", "index.html"))
    assert text.index("passed") < text.index("FAILED") < text.index("measured, no claim")
    code, _, err = call(*words, "--strict", "--quiet")
    assert (code, err) == (6, "proxskip: 1 of 3 claims failed: c1.\n")
    fake("PASS", "INCONCLUSIVE")
    assert call(*words, "--strict", "--quiet")[0] == 0


def test_a_folder_of_something_else_is_refused(fake: Any, data: str, tmp_path: Path, call: Any) -> None:
    fake("PASS")
    out = tmp_path / "r"
    assert call("reproduce", "fig1b", "--data", data, "--out", out, "--quiet")[0] == 0
    before = results(out)
    for words in (("--data", "digits"), ("--data", data, "--quick"), ("--data", data, "--engine", "reference")):
        code, _, err = call("reproduce", "fig1b", *words, "--out", out)
        assert code == 2
        assert "holds another reproduction" in err
    Path(data).write_text(Path(data).read_text().replace("1:", "1:1", 1))
    code, _, err = call("reproduce", "fig1b", "--data", data, "--out", out)
    assert (code, "data_sha256" in err) == (2, True)
    assert results(out) == before
    other = tmp_path / "other"
    (other / "runs").mkdir(parents=True)
    code, _, err = call("reproduce", "fig1b", "--data", data, "--out", other)
    assert (code, "no reproduction" in err) == (2, True)
    code, _, err = call("reproduce", "fig1b", "--data", data, "--out", data)
    assert (code, "is a file" in err) == (2, True)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["fig9"], 'there is no experiment "fig9"'),
        (["fig1a", "--family"], "give no names"),
        (["nowhere.py"], "there is no file nowhere.py."),
        (["fig1b", "--data", "nowhere"], "there is no data set 'nowhere'"),
        *([] if importlib.util.find_spec("cupy") else [(["fig1b", "--engine", "gpu"], "needs CuPy")]),
    ],
)
def test_bad_input_leaves_nothing_behind(words: list[str], said: str, tmp_path: Path, call: Any) -> None:
    code, _, err = call("reproduce", *words, "--out", tmp_path / "r")
    assert (code, said in err) == (2, True)
    assert list(tmp_path.iterdir()) == []


# -- a figure of one's own ---------------------------------------------------------------------------------------------
MINE = """
from proxskip.experiments import claims, curve, figure, panel, table

@figure("Local steps on small data", shows="Scaffnew needs fewer rounds.", quick={"rounds": 10})
def mine(bench, rounds=40, eps=0.2):
    problem = {"l2_relative": 0.1, "clients": 4}
    L = bench.smoothness(**problem)
    first = bench.run(
        [
            "gd",
            *(curve("scaffold", f"Scaffold, K = {K}", K=K) for K in (2, 4)),
            curve("scaffnew", gamma=1 / (2 * L), target=1e-8),
        ],
        rounds=rounds, p=0.25, K=4, **problem,
    )
    as_long = curve("scaffnew", "as long as gd", p=1 / 2, rounds=int(first["gd"].x["rounds"][-1]))
    runs = first + bench.run([as_long], **problem)
    yield panel("theory", f"steps by theory, {rounds} rounds", runs)
    yield table("theory", "steps by theory", runs, eps)
    yield bench.constants(**problem)
    reached = claims.reaches(runs["Scaffnew"], eps, within=40)
    yield claims.claim("mine-reaches", f"Scaffnew reaches {eps:g} within 40 rounds.", reached)
    never = claims.stays_above(runs["gd"], 0.5, after=40)
    yield claims.claim("mine-never", "Gradient descent stays above 0.5.", never)
    yield claims.claim("mine-ends", "Where they end.", claims.ends(runs, "steps by theory"))
"""


def test_a_figure_is_a_function(data: str, tmp_path: Path, call: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    mine, out = tmp_path / "mine.py", tmp_path / "r"
    mine.write_text(MINE)
    code, text, _ = call("reproduce", mine, "--data", data, "--out", out)
    assert code == 0
    assert "3 claims: 1 passed, 1 FAILED, 1 measured, with no claim for this data." in text
    found = results(out)
    (e,) = found["experiments"]
    (panel,) = e["panels"]
    assert (e["id"], e["title"]) == ("mine", "Local steps on small data")
    assert panel["title"] == "steps by theory, 40 rounds"
    labels = ["gradient descent", "Scaffold, K = 2", "Scaffold, K = 4", "Scaffnew", "as long as gd"]
    assert [s["label"] for s in panel["series"]] == labels
    assert [s["about"].get("K") for s in panel["series"]] == [None, 2, 4, None, None]
    assert [s["about"].get("p") for s in panel["series"]] == [None, None, None, 0.25, 0.5]
    assert panel["series"][4]["x"]["rounds"][-1] == 40
    problem = Bench(tmp_path, data).problem(l2_relative=0.1, clients=4)
    assert panel["series"][3]["about"]["gamma"] == pytest.approx(0.5 / problem.L_average)
    assert (e["parameters"]["rounds"], e["parameters"]["lambda"]) == (40, pytest.approx(problem.l2))
    assert found["claims"][0]["text"] == "Scaffnew reaches 0.2 within 40 rounds."
    assert e["command"].startswith(f"proxskip reproduce {mine} --data")
    # the page is of this figure alone, which chooses its own problem
    assert found["about"]["command"] == e["command"]
    assert "lambda" not in found["about"]
    monkeypatch.setattr(reproduce, "draw", lambda *about: None)
    assert ps.reproduce(str(mine), data=data, out=tmp_path / "q", quick=True).experiments[0].parameters["rounds"] == 10


OWN = """
from dataclasses import dataclass, replace
from proxskip.core import About, register
from proxskip import Scaffnew

@register
@dataclass(frozen=True, slots=True)
class Damped{0}(Scaffnew):
    about = replace(Scaffnew.about, name="damped-{0}", title="Damped {0}", other_names=())
"""
WITH_OWN = (
    OWN.format("here")
    + """
from proxskip.experiments import claims, curve, figure, panel

@figure("Methods of my own")
def own(bench):
    runs = bench.run(["gd", curve("damped-here", gamma=0.1, p=0.5), curve("damped-there", gamma=0.1, p=0.5)], rounds=6)
    best, grid = bench.tune("grid", ["damped-here"], powers=[-1, 0], rungs=[[2, 1]], p=0.5, rounds=4)
    yield panel("p", "both", runs + bench.run(best))
    yield grid
"""
)


@pytest.mark.usefixtures("own_methods")
def test_methods_of_ones_own_run_in_several_processes(data: str, tmp_path: Path, call: Any) -> None:
    """One is in the file of the figure, and one in a plugin."""
    (tmp_path / "own.py").write_text(WITH_OWN)
    (tmp_path / "there.py").write_text(OWN.format("there"))
    # of the engines that take no threads=, which are shared among processes
    words = ["--data", data, "--plugin", tmp_path / "there.py", "--engine", "reference", "--quiet"]
    for jobs in ("1", "2"):
        code, _, err = call("reproduce", tmp_path / "own.py", *words, "--jobs", jobs, "--out", tmp_path / jobs)
        assert code == 0, err
    one, two = (results(tmp_path / jobs) for jobs in ("1", "2"))
    assert without_times(one)["experiments"][0]["panels"] == without_times(two)["experiments"][0]["panels"]
    (e,) = two["experiments"]
    assert f"--plugin {tmp_path / 'there.py'}" in e["command"]
    assert two["title"] == "Methods of my own"


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("@figure(", "@figur(", "line 4: NameError: name 'figur' is not defined."),
        ("for K in (2, 4)", "for K in (2, 4", "line 13: SyntaxError: closing parenthesis"),
        ('quick={"rounds"', 'quick={"round"', "line 4: round of quick is no parameter of mine, which has rounds, eps."),
        ("rounds=40,", "rounds,", "line 4: the parameter rounds of mine has no value; give it a default."),
        ("rounds=rounds,", "rounds=-1,", "line 8: rounds = -1 must be "),
        ('"gd",', '"gd2",', 'line 8: method "gd2" is not known; did you mean gd?'),
        ("target=1e-8", "K_=3", "line 8: scaffnew takes no K_=; it may have "),
        ("target=1e-8", "seeds=3", "line 8: all curves of a call share seeds=; give it to bench.run."),
        ("K=4, **", "speed=4, **", "line 8: no curve takes speed=."),
        ("K=4, **", "l2_relativ=4, **", "line 8: no curve takes l2_relativ=; did you mean l2_relative=?"),
        ("[as_long]", "as_long", "line 17: a bench takes a list of curves"),
        ('"mine-never"', '"mine-reaches"', 'two claims of mine have the id "mine-reaches"; give each its own.'),
        ("mine(bench, ", "mine(", "line 4: the first parameter of mine is the bench, and has no default"),
        ('{rounds} rounds", runs)', '{rounds} rounds")', "line 18: TypeError: panel() missing"),
        ('"theory", f"steps', '"theory", runs, f"steps', "line 18: panel theory takes its title first, then its"),
        ("Scaffold, K = {K}", "Scaffold", 'line 8: two curves have the label "Scaffold"; give each its own.'),
        ("p=0.25", "p=25", "line 8: p = 25 must lie in (0, 1]"),
        ('runs["Scaffnew"]', 'runs["scaffnow"]', 'line 21: there is no curve "scaffnow"; there are gradient descent,'),
        ('runs["Scaffnew"]', 'runs["scaffold"]', "line 21: 2 curves are of scaffold; give a label, or use of("),
        ("within=40", "within=40, colour=3", "line 21: TypeError: reaches() got an unexpected keyword argument"),
        ("    yield table(", "    yield str(runs) or (", "mine yields str; yield panels, tables and claims."),
        ("def mine(", "def fig1b(", "mine.py has a figure fig1b, as there is already; give it another name."),
        ("def mine(", "mine = 3\n    if 0:\n        (", "mine.py, line"),
    ],
)
def test_a_mistake_in_a_figure_is_a_sentence_before_any_work(
    old: str, new: str, said: str, data: str, tmp_path: Path, call: Any
) -> None:
    assert old in MINE
    (tmp_path / "mine.py").write_text(MINE.replace(old, new, 1))
    code, _, err = call("reproduce", tmp_path / "mine.py", "--data", data, "--out", tmp_path / "r")
    assert code == 2
    assert said in err
    assert "mine.py" in err
    assert not (tmp_path / "r").exists()


def test_a_figure_that_yields_nothing_is_refused() -> None:
    with pytest.raises(ps.InputError, match="mine yields nothing; write yield before each of its panels"):

        @figure("Local steps")
        def mine(bench: Bench) -> Any:
            return panel("p", "steps", bench.run(["gd"], rounds=2))


def test_a_figure_whose_claims_are_not_yielded_says_so_in_place_of_a_table(
    data: str, tmp_path: Path, call: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reproduce, "draw", lambda *about: None)
    (tmp_path / "mine.py").write_text(MINE.replace("yield claims.claim(", "claims.claim("))
    code, text, _ = call("reproduce", tmp_path / "mine.py", "--data", data, "--out", tmp_path / "r", "--quick")
    assert code == 0
    assert "Nothing is claimed; in a figure of your own, write yield before each of its claims." in text
    assert "verdict" not in text
    assert "0 claims" not in text


def test_a_file_without_a_figure_is_refused(tmp_path: Path, call: Any) -> None:
    (tmp_path / "mine.py").write_text("x = 3\n")
    code, _, err = call("reproduce", tmp_path / "mine.py", "--out", tmp_path / "r")
    assert (code, "mine.py defines no figure; put @figure(...) above a function of bench." in err) == (2, True)


@pytest.mark.parametrize(
    ("kind", "arguments", "rates", "holds"),
    [
        (claims.ratio, {"eps": 1e-6, "at_most": 0.5}, (0.1, 0.05), True),
        (claims.ratio, {"eps": 1e-6, "below": 0.5}, (0.1, 0.05), False),
        (claims.ratio, {"eps": 1e-6, "at_least": 0.5}, (0.1, 0.05), True),
        (claims.ratio, {"eps": 1e-6, "above": 0.5}, (0.1, 0.05), False),
        (claims.ratio, {"eps": 1e-6, "at_least": 2}, (1e-4, 0.05), True),  # never within 2,000 rounds
        (claims.ratio, {"eps": 1e-6, "at_most": 100}, (1e-4, 0.05), None),
        (claims.floor_above, {"value": 1e-3, "eps": 1e-6}, (1e-4, 0.05), True),
        (claims.floor_above, {"value": 1e-3, "eps": 1e-6}, (0.1, 0.05), False),
        (claims.floor_above, {"value": 1e-3, "eps": 1e-6}, (1e-4, 1e-4), None),
    ],
)
def test_kinds_of_claims(kind: Any, arguments: dict[str, Any], rates: tuple[float, ...], holds: bool | None) -> None:
    """The first curve compared with the second."""
    first, second = (replace(falling("scaffnew", r), label=name) for name, r in zip("ab", rates, strict=True))
    if kind is claims.ratio:
        found = kind(first, second, **arguments)
    else:
        found = kind(first, exact=second, **arguments)
    assert found.holds is holds
    asserted = claims.claim("x", "It does.", found, ["this"])
    assert asserted.verdict("this") == {True: "PASS", False: "FAIL", None: "INCONCLUSIVE"}[holds]
    assert asserted.verdict("that") == ("INCONCLUSIVE" if holds is None else "REPORTED")


def test_the_best_of_several_curves_is_compared() -> None:
    a, b = (replace(falling("scaffnew", r), label=name) for name, r in (("a", 0.05), ("b", 0.1)))
    assert claims.ratio([a, b], b, 1e-6, at_most=1, best=True).holds is True
    assert claims.ratio([a, b], b, 1e-6, at_most=1).holds is False
    assert claims.ratio([a, b], [a, b], 1e-6, at_most=0.5, best=True).holds is False
