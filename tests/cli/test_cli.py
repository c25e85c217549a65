"""The command line: what it computes, what it refuses, what it writes, and how it ends."""

from __future__ import annotations

import csv
import io
import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest

import proxskip as ps
from proxskip.cli import commands, demo_command, reproduce_command
from proxskip.cli import parser as cli_parser
from proxskip.core.method import flags as parameters_of
from proxskip.experiments import flags as run_flags
from proxskip.experiments import settings as cli_build
from proxskip.experiments.paper_table import table1
from proxskip.methods.registry import METHODS
from proxskip.results.fields import STATUS_WORDS
from proxskip.running import progress as cli_progress
from support.comparing import bits
from support.pages import Terminal

EASY = ["--data", "digits", "--l2-relative", "0.1", "--clients", "5"]


SUMMARY = """method data samples d clients split engine seed L smoothness mu kappa weights lambda gamma p K tau q cohort graph
    delta zeta rounds iterations exchanges floats_up floats_down grad_evals prox_evals seconds f f_star gap grad_norm
    sum_h lyapunov lyapunov_bound status success message versions data_sha256"""


@pytest.fixture
def refused(call):
    """Run a command that must be refused: one sentence on stderr, nothing on stdout, exit code 2."""

    def run(*argv: str) -> str:
        code, out, err = call(*argv)
        lines = [line for line in err.splitlines() if not line.startswith("reading ")]
        assert (code, out, len(lines)) == (2, "", 1), (code, out, err)
        assert lines[0].startswith("proxskip: ")
        return lines[0]

    return run


@pytest.fixture
def tiny(tmp_path):
    rng = np.random.default_rng(0)
    rows = (f"{1 + k % 2} 1:{rng.normal():.3f} 2:{rng.normal():.3f} 3:1" for k in range(12))
    path = tmp_path / "tiny.svm"
    path.write_text("\n".join(rows) + "\n")
    return str(path)


# -- run ---------------------------------------------------------------------------------------------------------------
def test_run_writes_a_folder_and_is_the_library_run(call, tmp_path):
    out = tmp_path / "runs" / "a"
    code, text, _ = call("run", "scaffnew", *EASY, "--rounds", "12", "--seed", "3", "--out", out)
    assert code == 0
    assert {p.name for p in out.iterdir()} >= {"spec.json", "summary.json", "trace.csv", "x.npy", "checkpoint"}
    assert set(SUMMARY.split()) <= set(json.loads((out / "summary.json").read_text()))
    parts = ("digits", "1,797 rows", "logistic loss", "gamma L = 1 ", "p = ", "12 rounds", "f - f* =", "limit of 12")
    assert [part for part in (*parts, str(out)) if part not in text] == []
    problem = ps.split(ps.Logistic(*ps.datasets.load("digits"), l2_relative=0.1), clients=5, by="label")
    result = ps.run(ps.Scaffnew.theory(problem), problem, rounds=12, seed=3)
    assert np.array_equal(np.load(out / "x.npy"), result.x)


def test_json_is_all_there_is_on_stdout_and_quiet_says_nothing(call):
    code, out, _ = call("run", "gd", *EASY, "--rounds", "3", "--json")
    assert (code, json.loads(out)["status"]) == (0, "LIMIT")
    assert call("run", "gd", *EASY, "--rounds", "3", "--quiet") == (0, "", "")


def test_labels_are_mapped_and_reported(call, tiny):
    flags = ("run", "gd", "--data", tiny, "--clients", "3", "--rounds", "3")
    assert "1 became -1, 2 became +1" in call(*flags)[1]
    summary = json.loads(call(*flags, "--json")[1])
    assert (summary["labels"], summary["data"]) == ({"1": -1, "2": 1}, "tiny.svm")
    assert re.fullmatch("[0-9a-f]{64}", summary["data_sha256"])


@pytest.mark.long
@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ("gd --engine reference --every 2", lambda q: ps.GD.theory(q)),
        ("local-gd --gamma figure --K 7", lambda q: ps.LocalGD.theory(q, K=7, figure=True)),
        ("scaffold --gamma 0.01 --K 3 --option I", lambda q: ps.Scaffold(0.01, 3, option="I")),
        ("scaffold --K 3 --eta-g 2 --gamma figure", lambda q: ps.Scaffold(1 / (6 * q.L), 3, 2.0)),
        ("s-local-gd --p 0.25 --gamma figure", lambda q: ps.SLocalGD.theory(q, p=0.25, figure=True)),
        ("scaffnew --gamma figure", lambda q: ps.Scaffnew.theory(q, figure=True)),
        ("scaffnew --gamma theory --p theory", lambda q: ps.Scaffnew.theory(q)),
        ("scaffnew --gamma theory --K 4", lambda q: ps.Scaffnew.theory(q, K=4)),
        ("scaffnew --K 4", lambda q: ps.Scaffnew(1 / q.L, 0.25, 4)),
        ("scaffnew --K 4 --p 0.5", lambda q: ps.Scaffnew(1 / q.L, 0.5, 4)),
        ("scaffnew --gamma 0.1", lambda q: ps.Scaffnew(0.1, ps.theory.best_p(0.1, q.mu))),
        ("scaffnew --own-steps", lambda q: ps.Scaffnew.theory(q, own_steps=True)),
        ("scaffnew --cohort 0.5", lambda q: ps.Scaffnew.theory(q, cohort=0.5)),
        ("proxskip --psi elastic-net:0.01,0.1 --K 3", lambda q: ps.ProxSkip(1 / q.L, 1 / 3, 3)),
        ("splitskip --psi l1:0.01 --l2-relative 1", lambda q: ps.SplitSkip.theory(q)),
        ("splitskip --psi l1:0.01 --D identity --l2-relative 1 --K 2", lambda q: None),
        ("scaffnew --loss softmax --split dirichlet --alpha 2", lambda q: ps.Scaffnew.theory(q)),
        ("gd --l2 0.1 --intercept --dtype float32 --split contiguous", lambda q: ps.GD.theory(q)),
    ],
)
def test_flags_make_the_method_they_name(call, flags, expected):
    """And it runs: each line goes through the whole command for two rounds."""
    few = [] if flags.split()[0] in ("proxskip", "sproxskip", "splitskip") else ["--clients", "5"]
    argv = ["run", *flags.split(), "--data", "digits", *few, "--rounds", "2", "--quiet"]
    if "--l2" not in flags:
        argv += ["--l2-relative", "0.1"]
    o = commands._parse(argv)
    problem, _ = cli_build.problem_of(cli_build.spec_of([o.method], o))
    made, wanted = cli_build.method_of(o.method, o, problem), expected(problem)
    if wanted is not None:
        assert type(made) is type(wanted)
        for name, value in asdict(wanted).items():
            exact = value is None or isinstance(value, str)
            assert getattr(made, name) == (value if exact else pytest.approx(value, rel=1e-15)), name
    assert call(*argv)[0] == 0


@pytest.mark.parametrize(
    ("argv", "holds"),
    [
        ("run decentralized-scaffnew --graph torus", lambda s: (s["weights"], s["clients"]) == ("equal", 20)),
        ("run gd --split group", lambda s: s["clients"] == 10),
        ("run scaffnew --p 0.1 --smoothness average", lambda s: s["gamma"] == 1 / s["L_average"] > 1 / s["L_max"]),
        ("run scaffnew --clients 5 --own-steps --batch 8", lambda s: (len(s["gamma"]), s["warnings"]) == (5, [])),
        ("sweep gd local-gd scaffnew --K 3", lambda runs: [s["K"] for s in runs] == [None, 3, 3]),
    ],
)
def test_what_flags_mean(call, argv, holds):
    code, out, err = call(*argv.split(), "--data", "digits", "--l2-relative", "0.1", "--rounds", "2", "--json")
    assert code == 0, err
    assert holds(json.loads(out))


@pytest.mark.long
def test_seeds_make_folders_a_table_and_a_band(call, tmp_path):
    out, figure = tmp_path / "a", tmp_path / "band.png"
    code, text, _ = call("run", "scaffnew", *EASY, "--rounds", "5", "--seed", "4", "--seeds", "3", "--out", out)
    assert (code, "seed 5" in text, "median of 3" in text) == (0, True, True)
    found = [json.loads((out / f"seed-{k}" / "summary.json").read_text()) for k in (4, 5, 6)]
    assert [s["seed"] for s in found] == [4, 5, 6]
    assert found[0]["iterations"] != found[1]["iterations"]
    assert call("plot", out, "--out", figure)[0] == 0
    assert figure.stat().st_size > 10_000


# -- exit codes --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("argv", "code", "part"),
    [
        ("scaffnew {} --tol 1e-6", 0, "CONVERGED"),
        ("scaffnew {} --tol 1e-12 --rounds 3", 3, "without reaching the tolerance"),
        ("scaffnew {} --target 1e-14 --rounds 3", 3, ""),
        ("gd {} --loss squared --gamma 3 --allow-unsafe-step --rounds 500", 4, "DIVERGED"),
        ("local-gd {} --K 5 --gamma figure --tol 1e-10 --rounds 2000", 5, "STALLED"),
        ("5gcs {} --psi l1:0.001 --cohort 3 --rounds 2", 0, "tau_i from "),
    ],
)
def test_exit_codes(call, argv, code, part):
    got, out, err = call("run", *argv.format(" ".join(EASY)).split())
    assert got == code
    assert part in out
    assert code != 4 or err.splitlines()[-1].startswith("warning: gamma = 3 ")


def test_a_tolerance_that_proves_nothing_was_not_reached(call, tmp_path):
    """The column x separates the classes, so the likelihood has no maximum."""
    rows = [f"{x},{int(x > 0)}" for x in (-4, -3, -2, -1, 1, 2, 3, 4)]
    (tmp_path / "separated.csv").write_text("x,y\n" + "\n".join(rows))
    data = ["--data", tmp_path / "separated.csv", "--label", "y", "--clients", "2", "--split", "iid"]
    code, out, _ = call("run", "newton", *data, "--l2", "0", "--tol", "1e-4", "--rounds", "100")
    assert (code, "INEXACT" in out, "grows for ever" in out) == (3, True, True)


def test_every_status_has_an_exit_code():
    for status in ps.Status:
        result = ps.run(ps.GD(0.1), ps.Problem(ps.random_quadratics(2, 2)), rounds=0)
        assert commands.exit_code(replace(result, status=status), has_tolerance=True) in range(131)


def test_the_worst_run_of_a_sweep_counts(call):
    flags = (*EASY, "--K", "5", "--gamma", "figure", "--tol", "1e-4", "--rounds", "2000", "--quiet")
    assert call("sweep", "scaffnew", "local-gd", *flags)[0] == 5
    assert [commands.worst(codes) for codes in ([0, 3, 130, 4, 5], [0, 3, 4, 5], [0, 3])] == [130, 4, 3]


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (RuntimeError("boom"), 1, r"Traceback.*unexpected RuntimeError: boom"),
        (OSError(28, "No space left", "runs/a/x.npy"), 1, r"^proxskip: runs/a/x\.npy: No space left\.\n$"),
        (KeyboardInterrupt(), 130, r"^proxskip: interrupted\.\n$"),
    ],
)
def test_what_nobody_expected_has_a_code(call, monkeypatch, error, code, said):
    def broken(o: object) -> int:
        raise error

    monkeypatch.setitem(commands._COMMANDS, "theory", broken)
    got, _, err = call("theory", "--L", "1", "--mu", "0.1")
    assert got == code
    assert re.search(said, err, re.DOTALL)


def test_exit_130_when_interrupted_and_then_it_resumes(call, tmp_path, monkeypatch):
    def impatient(self: object, step: int, metrics: object) -> None:
        if step == 10:
            os.kill(os.getpid(), signal.SIGINT)

    with monkeypatch.context() as patch:
        patch.setattr(cli_progress.Progress, "on_record", impatient)
        code, text, _ = call("run", "scaffnew", *EASY, "--rounds", "50", "--out", tmp_path / "a")
    assert (code, "INTERRUPTED" in text) == (130, True)
    assert call("resume", tmp_path / "a", "--rounds", "20", "--quiet")[0] == 0


# -- resume ------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("flags", ["scaffnew --cohort 3", "scaffold --batch 2", "decentralized-scaffnew"])
@pytest.mark.long
def test_a_resumed_run_is_the_run_never_interrupted(call, tmp_path, tiny, flags):
    argv = (
        "run",
        *flags.split(),
        "--l2-relative",
        "0.1",
        "--clients",
        "4",
        "--split",
        "iid",
        "--quiet",
        "--data",
        tiny,
    )
    for rounds, name in (("140", "whole"), ("33", "cut")):
        assert call(*argv, "--rounds", rounds, "--out", tmp_path / name)[0] == 0
    assert call("resume", tmp_path / "cut", "--rounds", "140", "--quiet")[0] == 0
    assert bits(ps.load(tmp_path / "whole")) == bits(ps.load(tmp_path / "cut"))


def test_resume_takes_new_limits_and_answers_with_their_code(call, tmp_path):
    call("run", "scaffnew", *EASY, "--rounds", "5", "--out", tmp_path / "a", "--quiet")
    code, out, _ = call("resume", tmp_path / "a", "--rounds", "3", "--json")
    assert code == 0
    assert "nothing to do: the run already has 5 rounds, more than the limit of 3" in json.loads(out)["message"]
    assert "reached the limit of 5 rounds" in call("resume", tmp_path / "a", "--rounds", "5", "--json")[1]
    assert call("resume", tmp_path / "a", "--tol", "1e-13", "--rounds", "6", "--quiet")[0] == 3
    assert call("resume", tmp_path / "a", "--tol", "1e-7", "--rounds", "5000", "--quiet")[0] == 0


def test_resume_refuses_what_it_cannot_resume(call, refused, tmp_path, tiny):
    assert "nothing to resume" in refused("resume", tmp_path / "missing")
    (tmp_path / "empty").mkdir()
    assert "there is no checkpoint" in refused("resume", tmp_path / "empty")
    call("run", "gd", "--data", tiny, "--clients", "3", "--rounds", "4", "--out", tmp_path / "a", "--quiet")
    Path(tiny).write_text(Path(tiny).read_text().replace("3:1", "3:2"))
    assert re.search("belongs to another run.*data_sha256", refused("resume", tmp_path / "a", "--rounds", "9"))
    call("run", "scaffnew", *EASY, "--rounds", "2", "--seeds", "2", "--out", tmp_path / "many", "--quiet")
    assert "holds 2 runs" in refused("resume", tmp_path / "many")
    ps.run("gd", ps.Problem(ps.random_quadratics(3, 4)), rounds=2, out=tmp_path / "library")
    assert "was made in Python" in refused("resume", tmp_path / "library")


# -- bad input ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("argv", "part"),
    [
        ("run scafnew {easy} --rounds 3", "is not known; did you mean scaffnew?"),
        ("run scaffnew {easy} --rounds 3 --p half", "neither a number nor theory"),
        ("run scaffnew {easy} --rounds 3 --gamma 1", "or pass allow_unsafe_step=True."),
        ("run gd {easy}", "there is no stopping rule: give --rounds, --iterations, --seconds, --tol or --target."),
        ("run gd --data {d}/text.csv --clients 2 --rounds 1", "features must be numbers: choose them with columns="),
        ("run gd {easy} --rounds 3 --tau 1", "gd does not take --tau"),
        ("sweep gd accelerated {easy} --rounds 3 --K 3", "none of gd, accelerated takes --K"),
        ("sweep gd gd {easy} --rounds 3", "occurs twice"),
        ("run scaffnew {easy} --rounds 3 --own-steps --gamma 0.1", "leave out --gamma"),
        ("run scaffnew {easy} --rounds many", "not a whole number"),
        ("run scaffnew {easy} --round 3", "did you mean --rounds?"),
        ("run scaffnew {easy} --client 3", "did you mean --clients?"),
        ("run scaffnew {easy} --sead 3", "did you mean --seed?"),
        ("demo --foo", "unknown argument --foo; see `proxskip demo --help`."),
        ("demo --outt x", "did you mean --out?"),
        ("run sgd {easy} --rounds 3", 'method "sgd" is not known. The methods are'),
        ("run gd {easy} --rounds 3 --network mobile:deadlin=3", "a network has no number 'deadlin'"),
        ("run scaffnew --rounds 3", "required: --data"),
        ("run scaffnew {easy} --rounds 3 --cohort 1.5", "a probability below 1"),
        ("run proxskip {easy} --rounds 3", "unknown argument --clients"),
        ("sweep proxskip gd {easy} --rounds 3", "a single function"),
        ("run splitskip --data digits --rounds 3", "needs --psi"),
        ("run scaffnew --data digits --l2-relative 0 --p 0.1 --target 1e-3", "needs the solution"),
        ("run scaffnew --data breast-cancer --split group --rounds 3", "needs groups=, one for each row"),
        ("run scaffnew {easy} --rounds 3 --data-dir /no/such/folder --data w8a", "is not a folder"),
        ("data", "required: list|fetch"),
        ("data fetch digits", "nothing to fetch"),
        ("data fetch w8", "did you mean 'w8a'?"),
        ("plot one other", "several folders make one figure; say where it goes with --out FILE"),
        ("plan {easy} --tol 1e-3 --psi l7:1", "not known"),
        ("run gd {easy} --rounds 3 --network mobile:patience=1.5", "'1.5' is not a whole number"),
        ("run gd {easy} --rounds 3 --network mobile:deadline", "is not of the form key=value"),
        ("sweep gd scaffnew {easy} --rounds 3 --x sim_seconds", "--network"),
        ("nonsense", "there is no command 'nonsense'"),
        ("tun scaffnew", "there is no command 'tun'"),
        ("run gd {easy} --l2 0.1 --rounds 3", "give one of the two"),
        ("run gd --data runs/p=0.1/x.csv --rounds 1", "there is no file runs/p=0.1/x.csv; check the path."),
    ],
)
def test_bad_input_gets_one_sentence(refused, tmp_path, argv, part):
    (tmp_path / "text.csv").write_text("age,city,label\n1,paris,yes\n2,rome,no\n")
    assert part in refused(*argv.format(easy=" ".join(EASY), d=tmp_path).split())


def test_a_run_is_never_overwritten_without_force(call, refused, tmp_path):
    out = tmp_path / "a"
    common = ("scaffnew", *EASY, "--quiet", "--out", out)
    assert call("run", *common, "--rounds", "2")[0] == 0
    x = (out / "x.npy").read_bytes()
    for again in (("run", *common), ("run", *common, "--seeds", "2"), ("sweep", "gd", *common)):
        assert re.search("already holds a run.* or --force to overwrite it", refused(*again, "--rounds", "4"))
    assert (out / "x.npy").read_bytes() == x
    for seeds in ("3", "2"):
        assert call("run", *common, "--rounds", "2", "--seeds", seeds, "--force")[0] == 0
    assert sorted(p.name for p in out.iterdir()) == ["seed-0", "seed-1", "sweep.json"]
    (tmp_path / "file").touch()
    assert "is a file" in refused("run", "gd", *EASY, "--rounds", "2", "--out", tmp_path / "file")


def test_bad_input_leaves_nothing_behind_and_with_force_the_old_run(call, refused, tmp_path):
    good = ("run", "scaffnew", *EASY, "--rounds", "2", "--quiet", "--out", tmp_path / "a")
    bad = ("--batch 5000", "--data nosuch", "--gamma -1", "--gamma 1", "--cohort 9", "--engine abacus")
    for flags in bad:
        refused(*good, *flags.split())
    assert list(tmp_path.iterdir()) == []
    assert call(*good)[0] == 0
    before = (tmp_path / "a" / "x.npy").read_bytes()
    for flags in bad:
        refused(*good, "--force", *flags.split())
        assert (tmp_path / "a" / "x.npy").read_bytes() == before


# -- sweep, theory, data, plot -----------------------------------------------------------------------------------------
@pytest.mark.long
def test_sweep_writes_its_files_and_a_table_and_they_are_plotted(call, tmp_path):
    out, figure = tmp_path / "c", tmp_path / "sub" / "figure.png"
    code, text, _ = call("sweep", "scaffnew", "gd", *EASY, "--rounds", "12", "--out", out)
    assert code == 0
    assert {p.name for p in out.iterdir()} == {
        *("scaffnew", "gd", "sweep.json", "results.csv", "sweep.png", "sweep.pdf")
    }
    with open(out / "results.csv", newline="") as file:
        assert [row["method"] for row in csv.DictReader(file)] == ["scaffnew", "gd"]
    parts = ("rounds", "exchanges", "floats", "passes", "seconds", "status", "sweep.png")
    assert [part for part in parts if part not in text] == []
    flags = ("--x", "local_steps", "--y", "grad_norm", "--title", "two", "--out", figure)
    code, text, _ = call("plot", out, *flags)
    assert (code, str(figure) in text) == (0, True)
    assert figure.read_bytes().startswith(b"\x89PNG")
    assert figure.with_suffix(".pdf").read_bytes().startswith(b"%PDF")


def test_theory_prints_table_1(call):
    given = ("theory", "--L", "1", "--mu", "1e-4", "--eps", "1e-6", "--n", "20")
    code, out, _ = call(*given, "--d", "300", "--G2", "0.1", "--json")
    assert (code, json.loads(out)) == (0, [asdict(r) for r in table1(1.0, 1e-4, 1e-6, 20, 300, 0.1)])
    _, out, _ = call(*given, "--p", "0.05")
    parts = ("Scaffnew, p = 0.05", "138,155", "1,382", "sqrt(kappa) log(1/eps)", "better than GD?", "--G2")
    assert [part for part in parts if part not in out] == []


def test_data_list(call, tmp_path):
    code, out, _ = call("data", "list")
    assert code == 0
    assert all(part in out for part in ("digits", "w8a", "embedded", "Licenses", "3.5 MB"))
    rows = {row["name"]: row for row in json.loads(call("data", "list", "--json", "--data-dir", tmp_path)[1])}
    assert rows["digits"]["where"] == "embedded"
    assert (rows["w8a"]["labels"], rows["w8a"]["size"]) == ({"-1": 48270, "1": 1479}, 3_478_238)


def test_data_fetch_reports_where_it_is(call, monkeypatch, tmp_path):
    def fetched(name, *, data_dir, progress):
        progress(10, 100)
        return Path(data_dir) / name

    monkeypatch.setattr(ps.datasets, "fetch", fetched)
    assert call("data", "fetch", "w8a", "--data-dir", tmp_path)[:2] == (0, f"w8a is at {tmp_path / 'w8a'}.\n")
    assert json.loads(call("data", "fetch", "w8a", "--data-dir", tmp_path, "--json")[1])["name"] == "w8a"


# -- progress ----------------------------------------------------------------------------------------------------------
def shown(stream: io.StringIO, rounds: int, stop: dict[str, float], quiet: bool = False) -> str:
    """What a run of so many rounds shows before it ends."""
    with cli_progress.Progress("scaffnew", quiet=quiet, stream=stream) as progress:
        progress.on_run_start({"stop": stop})
        for r in range(rounds):
            record = {"round": r, "iterations": 10.0 * r, "seconds": 0.1 * r, "gap": 10.0**-r, "grad_norm": 1.0}
            progress.on_record(r, record)
        return stream.getvalue()


def test_progress_is_lines_where_nobody_looks_and_written_over_where_somebody_does(monkeypatch):
    assert shown(io.StringIO(), 12, {"rounds": 20}) == ""  # it has taken no time
    ticks = iter(range(0, 10_000, 2))
    monkeypatch.setattr(cli_progress.time, "monotonic", lambda: float(next(ticks)))
    assert shown(io.StringIO(), 12, {"rounds": 20}, quiet=True) == ""
    lines = shown(io.StringIO(), 12, {"rounds": 20, "tol": 1e-9}).splitlines()
    assert 3 <= len(lines) <= 4
    assert re.fullmatch(r"scaffnew: round \d+/20, f - f\* 1\.0e-\d\d, 0\.\d+ rounds/s, \d+ s left", lines[0])
    stream = Terminal()
    text = shown(stream, 5, {"iterations": 200})
    assert "scaffnew: round 4" in text
    assert text.endswith(" left")
    assert stream.getvalue().endswith("\r")


def test_bare_proxskip_prints_help_and_its_version(call):
    for argv in ([], ["run", "--help"], ["reproduce", "--help"]):
        code, out, err = call(*argv)
        assert (code, err) == (0, "")
        assert out.startswith("usage: proxskip")
        assert [line for line in cli_parser.EXIT_CODES.splitlines() if line not in out] == []
    assert call("--version")[:2] == (0, f"proxskip {ps.__version__}\n")


@pytest.mark.parametrize("name", list(METHODS))
def test_the_help_of_a_method_has_its_flags_alone_and_fits_on_sixty_lines(call, monkeypatch, name):
    for columns in (80, 100):
        monkeypatch.setenv("COLUMNS", str(columns))
        code, out, _ = call("run", name, "--help")
        usage, *lines = out.splitlines()
        assert (code, usage[:7]) == (0, "usage: ")
        assert len(lines) < 60
        assert max(map(len, lines)) <= columns
    shown = set(re.findall(r"^  (--[\w-]+)", out, re.MULTILINE))
    kind = METHODS[name]
    parameters = {flag.flag for flag in run_flags.all_parameters()}
    assert shown & parameters == {"--" + flag.replace("_", "-") for flag in parameters_of(kind)}
    for what in ("cohort", "batch", "clients", "psi", "D"):
        assert (f"--{what}" in shown) == (what in kind.about.handles), what
    assert {"--data", "--rounds", "--tol", "--out", "--plugin"} < shown


def test_the_help_of_a_flag_says_what_it_takes_and_what_it_is_without_it():
    names = ("PROBLEM", "PARAMETERS", "STEPPING", "STOPPING", "RUNNING", "OUTPUT", "TUNING")
    kept = 0
    for flag in itertools.chain(*(getattr(run_flags, name) for name in names)):
        assert flag.text
        if not flag.help:
            assert set(flag.choices) <= set(re.findall(r"[\w-]+", flag.text)), flag.name
        if flag.default is not None and not flag.switch:
            said = re.search(r"([\w-]+) \(default\)|default: (\S+)$", flag.text)
            assert said, flag.name
            word = said[1] or said[2]
            assert (flag.type(word) if flag.type else word) == flag.default, flag.name
            kept += 1
    assert kept > 8


@pytest.mark.parametrize(("word", "meant"), [("theory", None), ("figure", "figure"), ("0.25", 0.25)])
def test_a_step_size_is_the_theorems_the_figures_or_a_number(word, meant):
    assert commands._parse(["run", "scaffnew", "--data", "digits", "--gamma", word]).gamma == meant


def test_tune_prints_the_grid_and_keeps_its_heat_map(call, refused, tmp_path):
    base = ("tune", "scaffnew", *EASY, "--powers", "-1", "0", "--steps", "2,4", "--budget", "80")
    code, out, _ = call(*base, "--out", tmp_path / "a")
    assert code == 0
    assert re.search(r"gamma L +2 +4\b", out)
    assert re.search(r"Tuned: Scaffnew, gamma = 0\.\d{1,6}, p = 0\.\d{1,4}; 4 candidates", out)  # four digits
    assert (tmp_path / "a" / "tune.png").stat().st_size > 0
    found = json.loads(call(*base, "--json")[1])
    once, thrice = (json.loads(call(*base, "--seeds", n, "--json")[1]) for n in "13")
    assert found == once != thrice
    assert str(tmp_path / "a" / "tune.png") in out
    problem = ps.split(ps.Logistic(*ps.datasets.load("digits"), l2_relative=0.1), clients=5, by="label")
    best = ps.tune("scaffnew", problem, budget=80, powers=[-1, 0], steps=[2, 4]).method
    assert (found["parameters"]["gamma"], found["parameters"]["p"]) == (best.gamma, best.p)
    for flags, said in (
        (("--steps", "2,x"), "argument --steps: 'x' is not a whole number"),
        (("--powers", "3"), "argument --powers: expected 2 arguments"),
        (("--powers", "3", "1"), "give at least one power and one number of steps"),
        (("--p", "0.1"), "tune searches --p itself"),
        (("--rounds", "3"), "unknown argument --rounds"),
    ):
        assert said in refused(*base, *flags)


def test_every_flag_of_the_documentation_is_a_flag():
    page = Path(__file__).parents[2] / "docs" / "command-line.md"
    _, subcommands = cli_parser.parser(ps.__version__)
    known = {flag for parser in subcommands.values() for flag in parser.flags()}
    told = set(re.findall(r"`(--[\w-]+)", page.read_text("utf-8")))
    assert told - known - {"--help"} == set()
    assert len(told) > 20


def test_lambda_is_given_or_a_share_of_the_smoothness(call):
    base = ("run", "gd", "--data", "digits", "--clients", "5", "--rounds", "1", "--json")
    A, b = ps.datasets.load("digits")
    L0 = ps.Logistic(A, b).L
    for flags, lam in (((), 1e-4 * L0), (("--l2", "0.3"), 0.3), (("--l2-relative", "0.3"), 0.3 * L0)):
        assert json.loads(call(*base, *flags)[1])["lambda"] == pytest.approx(lam, rel=1e-12)


def test_as_a_module_with_a_closed_pipe():
    env = os.environ | {"PYTHONPATH": str(Path(ps.__file__).parents[1])}
    command = [sys.executable, "-m", "proxskip", "data", "list"]
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        process.stdout.close()
        assert "Traceback" not in process.stderr.read()
    assert process.returncode == 1


def test_no_escape_sequence_reaches_the_terminal(call):
    for name in ("\x1b[31mred", "a\x07b", "\x9b2J", "x\u202ey"):
        code, out, err = call("run", "gd", "--data", f"/nowhere/{name}", "--rounds", "1")
        assert code == 2
        assert all(c.isprintable() or c == "\n" for c in out + err)


@pytest.mark.long
@pytest.mark.parametrize("command", [("sweep", "gd", "scaffnew"), ("run", "scaffnew", "--seeds", "2")], ids=str)
def test_an_interrupted_command_goes_on(call, tmp_path, command):
    argv = (*command, "--data", "digits", "--clients", "3", "--rounds", "6", "--json", "--out", tmp_path / "a")
    code, whole, _ = call(*argv)
    assert code == 0
    shutil.rmtree(tmp_path / "a" / ("scaffnew" if command[0] == "sweep" else "seed-1"))  # it never began
    code, again, _ = call(*argv, "--continue")
    assert code == 0
    kept = ("method", "seed", "rounds", "gap")
    assert [[s[k] for k in kept] for s in json.loads(again)] == [[s[k] for k in kept] for s in json.loads(whole)]


def test_only_the_same_command_goes_on(call, refused, tmp_path):
    flags = ("--data", "digits", "--clients", "3", "--rounds", "6", "--out", tmp_path / "a")
    assert call("run", "scaffnew", "--p", "0.2", *flags)[0] == 0
    kept = {p.name: p.read_bytes() for p in (tmp_path / "a").iterdir()}
    for changed, sentence in (
        ("gd", "method: saved 'scaffnew', now 'gd'"),
        ("scaffnew --p 0.3", "parameters.p: saved 0.2, now 0.3"),
        ("scaffnew --p 0.2 --seed 4", "seed: saved 0, now 4"),
        ("scaffnew --p 0.2 --force", "--force"),
    ):
        assert sentence in refused("run", *changed.split(), *flags, "--continue")
    assert "--out" in refused("run", "scaffnew", "--p", "0.2", *flags[:-2], "--continue")
    assert {p.name: p.read_bytes() for p in (tmp_path / "a").iterdir()} == kept


def test_data_list_is_quiet(call):
    assert call("data", "list", "--quiet")[:2] == (0, "")


def test_a_group_column_needs_the_split_by_group(call, tmp_path):
    (tmp_path / "t.csv").write_text("a,label,site\n1,0,x\n2,1,x\n3,0,y\n4,1,y\n")
    given = ("run", "gd", "--data", tmp_path / "t.csv", "--clients", "2", "--rounds", "1", "--group", "site")
    code, _, err = call(*given)
    assert code == 2
    assert "is the column of groups" in err
    assert call(*given, "--split", "group")[0] == 0


# -- the demo ----------------------------------------------------------------------------------------------------------
@pytest.mark.long
def test_scaffnew_wins_the_race():
    laps = demo_command.race(rounds=30)
    done, state = next(laps)
    assert (done, list(state)) == (demo_command.LAP, ["Scaffnew"])  # the first picture
    assert state["Scaffnew"].summary["engine"] == "reference"  # which compiles nothing
    *_, (done, state) = laps
    gaps = {title: demo_command.gap(result) for title, result in state.items()}
    assert done == 30
    assert len(gaps) == 4
    assert all(10 * gaps["Scaffnew"] < gap for title, gap in gaps.items() if title != "Scaffnew")
    assert "After 30 rounds" in demo_command.words(done, state)


@pytest.mark.slow
def test_the_command_runs_the_race(capsys):
    assert commands.main(["demo", "--race"]) == 0
    out = capsys.readouterr().out
    assert f"round {demo_command.ROUNDS}" in out
    assert f"After {demo_command.ROUNDS} rounds" in out


@pytest.mark.long
def test_after_the_race_comes_the_quick_report(monkeypatch, tmp_path):
    asked = []
    monkeypatch.setattr(demo_command, "race", lambda: iter(()))
    monkeypatch.setattr(demo_command, "_show", lambda frames: None)

    def reproduce(names, options, progress):
        asked.append(options)
        raise KeyboardInterrupt

    monkeypatch.setattr(reproduce_command, "make_report", reproduce)
    assert commands.main(["demo", "--out", str(tmp_path / "d")]) == 130
    assert asked[0].quick
    assert asked[0].out == tmp_path / "d"


def test_only_a_run_that_a_callback_ended_is_called_stopped() -> None:
    assert [status for status, word in STATUS_WORDS.items() if "stopped" in word] == ["STOPPED"]
