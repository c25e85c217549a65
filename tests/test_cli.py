"""The command line: what it computes, what it refuses, what it writes, and how it ends."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import proxskip as ps
from conftest import Terminal, bits
from proxskip.cli import commands, output
from proxskip.cli import flags as cli_flags
from proxskip.experiments import settings as cli_build
from proxskip.loop import progress as cli_progress
from proxskip.report import plots
from proxskip.results.run_text import STATUS_WORDS
from proxskip.theory.table1 import table1

EASY = ["--data", "digits", "--l2", "0.1", "--clients", "5"]


def words(text: str) -> list[str]:
    return text.split()


SUMMARY = words(
    """method data samples d clients split engine seed L L_kind mu kappa weights lambda gamma p K tau q cohort graph
    delta zeta rounds iterations exchanges floats_up floats_down grad_evals prox_evals seconds f f_star gap grad_norm
    sum_h lyapunov lyapunov_bound status success message versions data_sha256"""
)


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


def python(*argv: str, **more) -> subprocess.Popen[str]:
    env = os.environ | {"PYTHONPATH": str(Path(ps.__file__).parents[1])}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen([sys.executable, *argv], env=env, **pipes, **more)


@pytest.fixture
def tiny(tmp_path):
    """Twelve rows with labels 1 and 2."""
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
    assert {p.name for p in out.iterdir()} >= set(words("spec.toml summary.json trace.csv x.npy checkpoint"))
    summary = json.loads((out / "summary.json").read_text())
    assert set(SUMMARY) <= set(summary)
    assert (summary["method"], summary["rounds"], summary["clients"]) == ("scaffnew", 12, 5)
    parts = ("digits", "1,797 rows", "logistic loss", "gamma L = 1 ", "p = ", "12 rounds", "f - f* =", "limit of 12")
    assert [part for part in (*parts, str(out)) if part not in text] == []
    assert "labels" not in text
    spec = tomllib.loads((out / "spec.toml").read_text())["spec"]
    assert (spec["data"], spec["l2"], spec["clients"]) == ("digits", 0.1, 5)
    problem = ps.split(ps.Logistic(*ps.datasets.load("digits"), l2=0.1, l2_relative=True), clients=5, by="label")
    result = ps.run(ps.Scaffnew.theory(problem), problem, rounds=12, seed=3)
    assert np.array_equal(np.load(out / "x.npy"), result.x)


def test_json_is_all_there_is_on_stdout_and_quiet_says_nothing(call):
    code, out, _ = call("run", "gd", *EASY, "--rounds", "3", "--json")
    assert (code, json.loads(out)["status"]) == (0, "LIMIT")
    assert set(SUMMARY) <= set(json.loads(out))
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
        ("gd", lambda q: ps.GD.theory(q)),
        ("gd --engine reference --every 2", lambda q: ps.GD.theory(q)),
        ("local-gd --gamma figure --K 7", lambda q: ps.LocalGD.paper_figure(q, 7)),
        ("scaffold --gamma 0.01 --K 3 --option I", lambda q: ps.Scaffold(0.01, 3, option="I")),
        ("scaffold --K 3 --eta-g 2 --gamma figure", lambda q: ps.Scaffold(1 / (6 * q.L), 3, 2.0)),
        ("fedlin --gamma figure", lambda q: ps.FedLin.paper_figure(q)),
        ("s-local-gd --q 0.5", lambda q: ps.SLocalGD.theory(q, q=0.5)),
        ("s-local-gd --p 0.25 --gamma figure", lambda q: ps.SLocalGD.paper_figure(q, 0.25)),
        ("scaffnew", lambda q: ps.Scaffnew.theory(q)),
        ("scaffnew --gamma theory --p theory", lambda q: ps.Scaffnew.theory(q)),
        ("scaffnew --gamma figure", lambda q: ps.Scaffnew.paper_figure(q)),
        ("scaffnew --p 0.5", lambda q: ps.Scaffnew(1 / q.L, 0.5)),
        ("scaffnew --K 4", lambda q: ps.Scaffnew(1 / q.L, 0.25, 4)),
        ("scaffnew --K 4 --p 0.5", lambda q: ps.Scaffnew(1 / q.L, 0.5, 4)),
        ("scaffnew --gamma 0.1", lambda q: ps.Scaffnew(0.1, ps.theory.best_p(0.1, q.mu))),
        ("scaffnew --own-steps", lambda q: ps.Scaffnew.theory(q, own_steps=True)),
        ("scaffnew --cohort 3", lambda q: ps.Scaffnew.theory(q, cohort=3)),
        ("scaffnew --cohort 0.5", lambda q: ps.Scaffnew.theory(q, cohort=0.5)),
        ("scaffnew --batch 8", lambda q: ps.Scaffnew.theory(q)),
        ("decentralized-scaffnew --K 5", lambda q: None),
        ("proxskip --psi l1:0.01", lambda q: ps.ProxSkip.theory(q)),
        ("proxskip --psi elastic-net:0.01,0.1 --K 3", lambda q: ps.ProxSkip(1 / q.L, 1 / 3, 3)),
        ("sproxskip --batch 50", lambda q: ps.SProxSkip.theory(q)),
        ("proxgd --psi nonnegative", lambda q: ps.ProxGD.theory(q)),
        ("scaffnew --psi box:-1,1", lambda q: ps.Scaffnew.theory(q)),
        ("splitskip --psi l1:0.01 --l2 1", lambda q: ps.SplitSkip.theory(q)),
        ("splitskip --psi l1:0.01 --D identity --l2 1 --K 2", lambda q: None),
        ("scaffnew --loss squares --split iid", lambda q: ps.Scaffnew.theory(q)),
        ("scaffnew --loss softmax --split dirichlet --alpha 2", lambda q: ps.Scaffnew.theory(q)),
        ("gd --no-l2-relative --intercept --dtype float32 --split contiguous", lambda q: ps.GD.theory(q)),
    ],
)
def test_flags_make_the_method_they_name(call, flags, expected):
    """And it runs: each line goes through the whole command for two rounds."""
    few = [] if flags.split()[0] in ("proxskip", "sproxskip", "splitskip") else ["--clients", "5"]
    argv = ["run", *flags.split(), "--data", "digits", *few, "--rounds", "2", "--quiet"]
    if "--l2 " not in flags:
        argv += ["--l2", "0.1"]
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
        (
            "run decentralized-scaffnew --graph torus",
            lambda s: (
                (s["weights"], s["clients"]) == ("equal", 20)
                and s["tau"] == pytest.approx(s["p"] / (s["gamma"] * ps.graphs.graph("torus", 20).lmax))
            ),
        ),
        ("run gd --split group", lambda s: s["clients"] == 10),
        (
            "run scaffnew --p 0.1 --L global",
            lambda s: s["L_kind"] == "global" and s["gamma"] == 1 / s["L_global"] > 1 / s["L_max"],
        ),
        ("run scaffnew --clients 5 --own-steps --batch 8", lambda s: (len(s["gamma"]), s["warnings"]) == (5, [])),
        (
            "compare gd local-gd scaffnew --K 3",
            lambda runs: [s["K"] for s in runs] == [None, 3, 3] and runs[2]["p"] == pytest.approx(1 / 3),
        ),
    ],
)
def test_what_flags_mean(call, argv, holds):
    code, out, err = call(*argv.split(), "--data", "digits", "--l2", "0.1", "--rounds", "2", "--json")
    assert code == 0, err
    assert holds(json.loads(out))


@pytest.mark.long
def test_seeds_make_folders_a_table_and_a_band(call, tmp_path):
    out = tmp_path / "a"
    code, text, _ = call("run", "scaffnew", *EASY, "--rounds", "5", "--seed", "4", "--seeds", "3", "--out", out)
    assert code == 0
    assert sorted(p.name for p in out.iterdir()) == ["seed-4", "seed-5", "seed-6"]
    assert "seed 5" in text
    assert "median of 3" in text
    many = json.loads(call("run", "scaffnew", *EASY, "--rounds", "5", "--seeds", "2", "--json")[1])
    assert [s["seed"] for s in many] == [0, 1]
    assert many[0]["iterations"] != many[1]["iterations"]
    figure = tmp_path / "band.png"
    assert call("plot", out, "--out", figure)[0] == 0
    assert figure.stat().st_size > 10_000


# -- exit codes --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("argv", "code", "part"),
    [
        ("scaffnew {} --tol 1e-6", 0, "CONVERGED"),
        ("scaffnew {} --tol 1e-12 --rounds 3", 3, "without reaching the tolerance"),
        ("scaffnew {} --target 1e-14 --rounds 3", 3, ""),
        ("gd {} --loss squares --gamma 3 --allow-unsafe-step --rounds 500", 4, "DIVERGED"),
        ("local-gd {} --K 5 --gamma figure --tol 1e-10 --rounds 2000", 5, "STALLED"),
    ],
)
def test_exit_codes(call, argv, code, part):
    got, out, err = call("run", *argv.format(" ".join(EASY)).split())
    assert got == code
    assert part in out
    assert code != 4 or err.splitlines()[-1].startswith("warning: gamma = 3 ")


def test_the_worst_run_of_a_comparison_counts(call):
    flags = (*EASY, "--K", "5", "--gamma", "figure", "--tol", "1e-4", "--rounds", "2000", "--quiet")
    assert call("compare", "scaffnew", "local-gd", *flags)[0] == 5
    assert [commands.worst(codes) for codes in ([0, 3, 130, 4, 5], [0, 3, 4, 5], [0, 3])] == [130, 4, 3]
    ends = [s for s in ps.Status if s is not ps.Status.INEXACT]  # which only minimize knows
    assert set(STATUS_WORDS) == {s.name for s in ends}
    codes = [commands.exit_code(SimpleNamespace(status=s), True) for s in ends]
    assert all(commands.worst([code]) == code for code in codes)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (RuntimeError("boom"), r"Traceback.*unexpected RuntimeError: boom"),
        (OSError(28, "No space left", "runs/a/x.npy"), r"^proxskip: runs/a/x\.npy: No space left\.\n$"),
    ],
)
def test_exit_1_for_what_nobody_expected(call, monkeypatch, error, said):
    def broken(o: object) -> int:
        raise error

    monkeypatch.setitem(commands._COMMANDS, "theory", broken)
    code, _, err = call("theory", "--L", "1", "--mu", "0.1")
    assert code == 1
    assert re.search(said, err, re.DOTALL)


@pytest.mark.long
def test_exit_130_when_interrupted_and_then_it_resumes_bitwise(call, tmp_path):
    flags = ("--data", "digits", "--l2", "1e-3", "--clients", "5", "--seed", "1")
    out = tmp_path / "a"
    argv = ("run", "scaffnew", *flags, "--rounds", "1000000", "--checkpoint-every", "5", "--out", str(out))
    process = python("-m", "proxskip", *argv)
    until = time.monotonic() + 120
    while not (out / "checkpoint.previous").exists() and process.poll() is None and time.monotonic() < until:
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    text, err = process.communicate(timeout=120)
    assert process.returncode == 130, err
    assert "INTERRUPTED" in text
    done = json.loads((out / "summary.json").read_text())["rounds"]
    assert call("resume", str(out), "--rounds", str(done + 7), "--quiet")[0] == 0
    call("run", "scaffnew", *flags, "--rounds", str(done + 7), "--out", tmp_path / "b", "--quiet")
    assert bits(ps.load(out)) == bits(ps.load(tmp_path / "b"))


def test_ctrl_c_before_the_first_round(call, monkeypatch):
    def impatient(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli_build, "problem_of", impatient)
    assert call("run", "gd", *EASY, "--rounds", "3") == (130, "", "proxskip: interrupted.\n")


# -- resume ------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("flags", ["scaffnew", "scaffnew --cohort 3", "scaffold --batch 2", "decentralized-scaffnew"])
@pytest.mark.parametrize("known", [True, False])
@pytest.mark.long
def test_a_resumed_run_is_the_run_never_interrupted(call, tmp_path, tiny, flags, known):
    data = ("--data", "digits" if known else tiny, "--l2", "0.1", "--clients", "4", "--split", "iid", "--quiet")
    for rounds, name in (("140", "whole"), ("33", "cut")):
        assert call("run", *flags.split(), *data, "--rounds", rounds, "--out", tmp_path / name)[0] == 0
    code, out, _ = call("resume", tmp_path / "cut", "--rounds", "140", "--json", "--quiet")
    assert (code, json.loads(out)["rounds"]) == (0, 140)
    assert bits(ps.load(tmp_path / "whole")) == bits(ps.load(tmp_path / "cut"))


def test_resume_takes_new_limits_and_answers_with_their_code(call, tmp_path):
    call("run", "scaffnew", *EASY, "--rounds", "5", "--out", tmp_path / "a", "--quiet")
    code, out, _ = call("resume", tmp_path / "a", "--rounds", "3", "--json")
    assert code == 0
    assert "nothing to do: the run already has 5 rounds, more than the limit of 3" in json.loads(out)["message"]
    assert call("resume", tmp_path / "a", "--quiet")[0] == 0
    assert call("resume", tmp_path / "a", "--tol", "1e-13", "--rounds", "6", "--quiet")[0] == 3
    code, out, _ = call("resume", tmp_path / "a", "--tol", "1e-7", "--rounds", "5000")
    assert code == 0
    assert "CONVERGED" in out


def test_resume_refuses_what_it_cannot_resume(call, refused, tmp_path, tiny):
    assert "nothing to resume" in refused("resume", tmp_path / "missing")
    (tmp_path / "empty").mkdir()
    assert "there is no checkpoint" in refused("resume", tmp_path / "empty")
    call("run", "gd", "--data", tiny, "--clients", "3", "--rounds", "4", "--out", tmp_path / "a", "--quiet")
    Path(tiny).write_text(Path(tiny).read_text().replace("3:1", "3:2"))
    sentence = refused("resume", tmp_path / "a", "--rounds", "9")
    assert "belongs to another run" in sentence
    assert "data_sha256" in sentence
    Path(tiny).unlink()
    assert "there is no file" in refused("resume", tmp_path / "a")
    call("run", "scaffnew", *EASY, "--rounds", "2", "--seeds", "2", "--out", tmp_path / "many", "--quiet")
    assert "holds 2 runs" in refused("resume", tmp_path / "many")
    problem = ps.Problem(ps.random_quadratics(3, 4))
    ps.run(ps.GD.theory(problem), problem, rounds=2, out=tmp_path / "library")
    assert "was made in Python" in refused("resume", tmp_path / "library")
    path = tmp_path / "library" / "checkpoint"
    path.write_bytes(path.read_bytes()[:100])
    (tmp_path / "library" / "checkpoint.previous").unlink(missing_ok=True)
    assert "checkpoint" in refused("resume", tmp_path / "library")


# -- bad input ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("argv", "part"),
    [
        ("run scafnew {easy} --rounds 3", "did you mean scaffnew?"),
        ("run scaffnew --data digitss --rounds 3", "did you mean 'digits'?"),
        ("run scaffnew --data no/such/file --rounds 3", "there is no file"),
        ("run scaffnew {easy} --rounds 3 --p 0", "must be positive"),
        ("run scaffnew {easy} --rounds 3 --p nan", "must be positive"),
        ("run scaffnew {easy} --rounds 3 --p 1.5", "must lie in (0, 1]"),
        ("run scaffnew {easy} --rounds 3 --p half", "neither a number nor theory"),
        ("run scaffnew {easy} --rounds 3 --gamma inf", "must be positive"),
        ("run scaffnew {easy} --rounds 3 --gamma big", "neither a number nor theory nor figure"),
        ("run scaffnew {easy} --rounds 3 --gamma 1", "is too large: scaffnew can diverge"),
        ("run gd {easy} --rounds 3 --tau 1", "gd does not take --tau"),
        ("run scaffnew {easy} --rounds 3 --eta-g 2", "which is for scaffold"),
        ("compare gd accelerated {easy} --rounds 3 --K 3", "none of gd, accelerated takes --K"),
        ("compare gd gd {easy} --rounds 3", "occurs twice"),
        ("run scaffnew {easy} --rounds 3 --own-steps --gamma 0.1", "leave out --gamma"),
        ("run scaffnew {easy}", "No stopping rule: give --rounds, --iterations, --seconds, --tol or --target."),
        ("run scaffnew {easy} --rounds many", "not a whole number"),
        ("run scaffnew {easy} --rounds -1", "rounds"),
        ("run scaffnew {easy} --tol 0", "must be positive"),
        ("run scaffnew {easy} --round 3", "did you mean --rounds?"),
        ("run scaffnew {easy} --rounds 3 --xyzzy", "see `proxskip run --help`"),
        ("run scaffnew --rounds 3", "required: --data"),
        ("run scaffnew --data digits --clients 1798 --rounds 3", "choose from 1 to 1797"),
        ("run scaffnew --data digits --clients 0 --rounds 3", "clients"),
        ("run scaffnew {easy} --rounds 3 --cohort 1", "h could never learn"),
        ("run scaffnew {easy} --rounds 3 --cohort 6", "cannot be drawn from 5 clients"),
        ("run scaffnew {easy} --rounds 3 --cohort 1.5", "a probability below 1"),
        ("run gd {easy} --rounds 3 --cohort 3", "needs all clients in every round"),
        ("run scaffnew {easy} --rounds 3 --batch 1000", "larger than client 0's"),
        ("run accelerated {easy} --rounds 3 --batch 3", "needs full gradients"),
        ("run decentralized-scaffnew {easy} --rounds 3 --weights rows", "equally weighted"),
        ("run decentralized-scaffnew {easy} --rounds 3 --graph rng", "there is no graph 'rng'"),
        ("run decentralized-scaffnew {easy} --rounds 3 --graph torus", "prime number of clients such as 5"),
        ("run decentralized-scaffnew {easy} --rounds 3 --tau 1e9", "tau = 1e+09 is too large"),
        ("run scaffnew --data digits --l2 0 --rounds 3", "mu is unknown"),
        ("run scaffnew --data digits --l2 -1 --rounds 3", "l2"),
        ("run proxskip {easy} --rounds 3", "a single function"),
        ("run gd {easy} --rounds 3 --psi l1:0.1", "no prox step"),
        ("run proxgd {easy} --rounds 3 --psi l1", "write l1:LAM"),
        ("run splitskip --data digits --rounds 3", "needs --psi"),
        ("run scaffold {easy} --rounds 3 --option III", "invalid choice"),
        ("run scaffnew --data digits --l2 0 --p 0.1 --target 1e-3", "needs the solution"),
        ("run scaffnew --data breast-cancer --split group --rounds 3", "needs --group, one for each row"),
        ("run scaffnew {easy} --rounds 3 --threads 0", "threads"),
        ("run scaffnew {easy} --rounds 3 --data-dir /no/such/folder --data w8a", "is not a folder"),
        ("theory --L 1 --mu 2", "mu = 2 is larger than L = 1"),
        ("theory --L 1 --mu 0.1 --eps 2", "eps"),
        ("theory --L 1", "required: --mu"),
        ("data fetch digits", "nothing to fetch"),
        ("data fetch w8", "did you mean 'w8a'?"),
        ("plot no/such/folder --out a.png", "is not a folder"),
        ("nonsense", "invalid choice"),
    ],
)
def test_bad_input_gets_one_sentence(refused, argv, part):
    assert part in refused(*argv.format(easy=" ".join(EASY)).split())


@pytest.mark.parametrize(
    ("content", "part"),
    [
        ("1 1:1\n2 1:2\n3 2:1\n", "two classes"),
        ("1 1:1\n-1 1:nan\n", ":2:4: "),
        ("1 1:1\n-1 1:1\n", "20 clients cannot share 2 rows"),
        ("", ""),
    ],
)
def test_bad_files_are_named_with_line_and_reason(refused, tmp_path, content, part):
    path = tmp_path / "data.svm"
    path.write_text(content)
    assert part in refused("run", "scaffnew", "--data", path, "--rounds", "3")


def test_unsafe_steps_are_refused_warned_about_or_wanted(call, refused):
    common = ("run", "scaffnew", *EASY, "--rounds", "2", "--p", "0.5", "--quiet", "--gamma")
    assert "can diverge" in refused(*common, "1")
    for gamma, more in (("1", ["--allow-unsafe-step"]), ("1", ["--L", "global"]), ("0.5", [])):
        code, _, err = call(*common, gamma, *more)
        assert (code, err.count("\n")) == (0, 1)
        assert err.startswith(f"warning: gamma = {gamma} (")


def test_a_run_is_never_overwritten_without_force(call, refused, tmp_path):
    out = tmp_path / "a"
    common = ("scaffnew", *EASY, "--quiet", "--out", out)
    assert call("run", *common, "--rounds", "2")[0] == 0
    x = (out / "x.npy").read_bytes()
    for again in (("run", *common), ("run", *common, "--seeds", "2"), ("compare", "gd", *common)):
        assert "already holds a run" in refused(*again, "--rounds", "4")
    assert (out / "x.npy").read_bytes() == x
    assert call("run", *common, "--rounds", "4", "--force")[0] == 0
    assert json.loads((out / "summary.json").read_text())["rounds"] == 4
    assert call("run", *common, "--rounds", "2", "--seeds", "3", "--force")[0] == 0
    assert call("run", *common, "--rounds", "2", "--seeds", "2", "--force")[0] == 0
    assert sorted(p.name for p in out.iterdir()) == ["seed-0", "seed-1"]
    file = tmp_path / "file"
    file.write_text("")
    assert "is a file" in refused("run", "gd", *EASY, "--rounds", "2", "--out", file)


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
    problem = ps.Problem(ps.random_quadratics(4, 3))
    ps.run(ps.Scaffnew.theory(problem), problem, rounds=2, out=tmp_path / "b")
    with pytest.raises(ps.InputError, match="x0"):
        ps.run(ps.Scaffnew.theory(problem), problem, rounds=2, out=tmp_path / "b", force=True, x0=[1.0])
    assert (tmp_path / "b" / "summary.json").exists()


def test_what_each_client_has_for_itself_is_printed_as_a_range(call):
    code, out, err = call("run", "5gcs", *words("--data digits --clients 4 --psi l1:0.001 --cohort 3 --rounds 2"))
    assert code == 0, err
    assert re.search(r"tau_i from [\d.e-]+ to [\d.e-]+, beta_i from [\d.]+ to [\d.]+, K = \d+, cohort = uniform 3", out)


# -- compare, theory, data, plot ---------------------------------------------------------------------------------------
@pytest.mark.long
def test_compare_writes_its_files_and_a_table_and_they_are_plotted(call, tmp_path):
    out = tmp_path / "c"
    code, text, _ = call("compare", "scaffnew", "gd", "accelerated", *EASY, "--rounds", "12", "--out", out)
    assert code == 0
    names = {"scaffnew", "gd", "accelerated", "compare.json", "compare.png", "compare.pdf"}
    assert {p.name for p in out.iterdir()} == names
    assert [s["method"] for s in json.loads((out / "compare.json").read_text())] == ["scaffnew", "gd", "accelerated"]
    columns = words("rounds exchanges floats passes seconds status accelerated compare.png")
    assert [part for part in columns if part not in text] == []
    assert call("resume", out / "gd", "--rounds", "15", "--quiet")[0] == 0
    figure = tmp_path / "sub" / "figure.png"
    code, text, _ = call("plot", out, "--x", "local-steps", "--y", "grad_norm", "--title", "two", "--out", figure)
    assert code == 0
    assert figure.read_bytes().startswith(b"\x89PNG")
    assert figure.with_suffix(".pdf").read_bytes().startswith(b"%PDF")
    assert str(figure) in text


@pytest.mark.long
def test_compare_with_seeds_shows_the_band(call, tmp_path):
    code, text, _ = call("compare", "scaffnew", "gd", *EASY, "--rounds", "9", "--seeds", "3", "--out", tmp_path / "c")
    assert code == 0
    assert "range over 3 seeds" in text
    assert " to " in text
    assert len(json.loads((tmp_path / "c" / "compare.json").read_text())) == 6
    assert (tmp_path / "c" / "scaffnew" / "seed-2" / "trace.csv").exists()


def test_theory_prints_table_1(call):
    code, out, _ = call(*words("theory --L 1 --mu 1e-4 --eps 1e-6 --n 20 --d 300 --G2 0.1 --json"))
    assert (code, json.loads(out)) == (0, [asdict(r) for r in table1(1.0, 1e-4, 1e-6, 20, 300, 0.1)])
    code, out, _ = call(*words("theory --L 1 --mu 1e-4 --eps 1e-6 --n 20 --p 0.05"))
    assert code == 0
    for part in ("Scaffnew, p = 0.05", "138,155", "1,382", "sqrt(kappa) log(1/eps)", "better than GD?", "--G2"):
        assert part in out


def test_data_list(call, tmp_path):
    code, out, _ = call("data", "list")
    assert code == 0
    assert all(part in out for part in ("digits", "w8a", "embedded", "Licenses", "3.5 MB"))
    rows = {row["name"]: row for row in json.loads(call("data", "list", "--json", "--data-dir", tmp_path)[1])}
    assert next(iter(rows)) == "digits"
    assert rows["digits"]["where"] == "embedded"
    assert (rows["w8a"]["labels"], rows["w8a"]["size"]) == ({"-1": 48270, "1": 1479}, 3_478_238)
    assert rows["w8a"]["url"].startswith("https://")
    assert all(row["page"].startswith("https://") for row in rows.values())


def test_data_fetch_reports_where_it_is(call, monkeypatch, tmp_path):
    def fetched(name, *, data_dir, progress):
        progress(10, 100)
        return Path(data_dir) / name

    monkeypatch.setattr(ps.datasets, "fetch", fetched)
    assert call("data", "fetch", "w8a", "--data-dir", tmp_path)[:2] == (0, f"w8a is at {tmp_path / 'w8a'}.\n")
    assert json.loads(call("data", "fetch", "w8a", "--data-dir", tmp_path, "--json")[1])["name"] == "w8a"


# -- progress ----------------------------------------------------------------------------------------------------------
def record(round: int) -> dict[str, float]:
    return {"round": round, "iterations": 10.0 * round, "seconds": 0.1 * round, "gap": 10.0**-round, "grad_norm": 1.0}


@pytest.fixture
def late(monkeypatch):
    """A clock that moves two seconds a look."""
    ticks = iter(range(0, 10_000, 2))
    monkeypatch.setattr(cli_progress.time, "monotonic", lambda: float(next(ticks)))


def shown(stream: io.StringIO, rounds: int, stop: dict[str, float], quiet: bool = False) -> str:
    """What a run of so many rounds shows before it ends."""
    with cli_progress.Progress("scaffnew", quiet=quiet, stream=stream) as progress:
        progress.on_run_start({"stop": stop})
        for r in range(rounds):
            progress.on_record(r, record(r))
        assert progress.has_tolerance == ("tol" in stop)
        return stream.getvalue()


def test_progress_is_lines_where_nobody_looks_and_written_over_where_somebody_does(late):
    lines = shown(io.StringIO(), 12, {"rounds": 20, "tol": 1e-9}).splitlines()
    assert 3 <= len(lines) <= 4
    assert re.fullmatch(r"scaffnew: round \d+/20, f - f\* 1\.0e-\d\d, 0\.\d+ rounds/s, \d+ s left", lines[0])
    stream = Terminal()
    text = shown(stream, 5, {"iterations": 200})
    assert "scaffnew: round 4" in text
    assert text.endswith(" left")
    assert stream.getvalue().endswith("\r")


def test_progress_is_silent_when_short_or_quiet(late, monkeypatch):
    assert shown(io.StringIO(), 12, {"rounds": 20}, quiet=True) == ""
    monkeypatch.setattr(cli_progress.time, "monotonic", lambda: 0.0)
    assert shown(io.StringIO(), 4, {"rounds": 20}) == ""


def test_fraction_is_that_of_the_nearest_limit():
    progress = cli_progress.Progress("x", stream=io.StringIO())
    progress.stop = {"rounds": 100, "iterations": 50, "seconds": None}
    assert progress.fraction(record(2)) == pytest.approx(0.4)
    progress.stop = {"tol": 1e-3}
    assert progress.fraction(record(2)) is None
    assert [cli_progress.clock(s) for s in (3, 75, 3700)] == ["3 s", "1:15 min", "1:01 h"]


@pytest.mark.parametrize(("methods", "turned"), [(2, True), (9, False)])
def test_a_narrow_terminal_cuts_no_number(methods, turned, monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setenv("TERM", "dumb")  # no codes for bold text
    monkeypatch.setattr(sys, "stdout", Terminal())
    head = ["method", *(f"column {k}" for k in range(8))]
    output.print_table("", head, [[f"m{j}", *(f"{j}{k}1,234" for k in range(8))] for j in range(methods)])
    text = sys.stdout.getvalue()
    assert all(f"{j}{k}1,234" in text for j in range(methods) for k in range(8))
    assert (max(map(len, text.splitlines())) <= 60) is turned


# -- help and imports --------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "command", ["", "run", "compare", "resume", "theory", "data", "data fetch", "plot", "reproduce"]
)
def test_help_teaches(call, command):
    code, out, err = call(*command.split(), "--help")
    assert (code, err) == (0, "")
    assert out.startswith("usage: proxskip")
    if command in ("", "run", "compare", "resume", "reproduce"):
        assert [line for line in cli_flags.EXIT_CODES.splitlines() if line not in out] == []
        assert "example" in out


def test_bare_proxskip_prints_help_and_its_version(call):
    code, out, err = call()
    assert (code, err) == (0, "")
    assert out.startswith("usage: proxskip")
    assert "proxskip run scaffnew" in out
    assert call("--version")[:2] == (0, f"proxskip {ps.__version__}\n")


def test_as_a_module_with_a_closed_pipe():
    process = python("-m", "proxskip", "data", "list")
    assert process.stdout
    assert process.stderr
    process.stdout.close()
    assert "Traceback" not in process.stderr.read()
    process.stderr.close()
    assert process.wait(timeout=120) == 1


# -- the paper's data --------------------------------------------------------------------------------------------------
@pytest.mark.paper
@pytest.mark.slow
def test_w8a_as_in_the_paper(call, tmp_path, proxskip_data):
    flags = words("--data w8a --clients 20 --split label --weights rows --L global --p 0.01 --rounds 400 --quiet")
    code, _, err = call("run", "scaffnew", *flags, "--data-dir", proxskip_data, "--out", tmp_path / "a")
    assert code == 0
    assert err.startswith("warning: gamma = ")
    summary = json.loads((tmp_path / "a" / "summary.json").read_text())
    assert summary["f_star"] == pytest.approx(0.137417763410536, abs=1e-11)
    assert summary["gap"] < 2e-7
    assert summary["gamma"] == 1 / summary["L_global"]
    trace = ps.load(tmp_path / "a").trace
    assert trace["gap"][trace["round"] == 200][0] < 2e-5


def test_no_escape_sequence_reaches_the_terminal(call):
    for name in ("\x1b[31mred", "a\x07b", "\x9b2J", "x\u202ey"):
        code, out, err = call("run", "gd", "--data", f"/nowhere/{name}", "--rounds", "1")
        assert code == 2
        assert all(c.isprintable() or c == "\n" for c in out + err)


@pytest.mark.long
@pytest.mark.parametrize("command", [("compare", "gd", "scaffnew"), ("run", "scaffnew", "--seeds", "2")], ids=str)
def test_an_interrupted_command_goes_on(call, tmp_path, command):
    argv = (*command, "--data", "digits", "--clients", "3", "--rounds", "6", "--json", "--out", tmp_path / "a")
    code, whole, _ = call(*argv)
    assert code == 0
    shutil.rmtree(tmp_path / "a" / ("scaffnew" if command[0] == "compare" else "seed-1"))  # it never began
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


def test_a_plot_of_different_data_sets_names_them(call, tmp_path):
    for name in ("digits", "breast-cancer"):
        call("run", "gd", "--data", name, "--clients", "3", "--rounds", "3", "--out", str(tmp_path / name))
    labels = [c.label for c in plots.curves_of([tmp_path / "digits", tmp_path / "breast-cancer"])]
    assert all(name in label for name, label in zip(("digits", "breast-cancer"), labels, strict=True))
