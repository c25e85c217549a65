"""What a first mistake is told: one sentence that says what to do, in the words of whoever made it."""

from __future__ import annotations

import ast
import json
import math
import pickle
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import scipy.sparse

import proxskip as ps
from proxskip.cli import main
from proxskip.datasets import open_clients, write_clients
from proxskip.engines.cpu.engine import CpuEngine

PACKAGE = Path(ps.__file__).parent
RNG = np.random.default_rng(0)
A, Y = RNG.standard_normal((12, 3)), RNG.standard_normal(12)
B = np.sign(A[:, 0])
MODEL = ps.Logistic(A, B, l2=0.1)
PROBLEM = ps.split(MODEL, 3)
FLAT = ps.split(ps.Logistic(A, B, l2=0), 3)
DUAL = ps.Problem([MODEL]).with_psi(ps.prox.L1(0.1), np.eye(MODEL.d))
PIECE = scipy.sparse.csr_matrix(A), B, np.arange(12) // 4
TEXT_FEATURE = "age,city,label\n1,paris,yes\n2,rome,no\n"
TEXT_LABEL = "age,len,label\n1,2,yes\n2,4,no\n3,1,yes\n4,9,no\n"
ID = "id,age,label\nx1,3,0\nx2,4,1\n"
MIXED = "age,label\n1,yes\n2,3\n"


class Missing:
    """Like pandas' NA, which is neither equal to itself nor different."""

    def __repr__(self) -> str:
        return "<NA>"

    def __ne__(self, other: object) -> Any:
        return self

    def __bool__(self) -> bool:
        raise TypeError("boolean value of NA is ambiguous")


def function(**given: Any) -> Any:
    """One's own  .5 |x|^2,  but for what is given."""
    own = {"d": 3, "L": 1.0, "mu": 1.0, "value": lambda x: float(x @ x) / 2, "gradient": np.array}
    return SimpleNamespace(**own | given)


def own(**given: Any) -> ps.Problem:
    return ps.Problem([function(**given), function(**given)])


def table(folder: Path, text: str) -> str:
    (folder / "data.csv").write_text(text)
    return str(folder / "data.csv")


@pytest.mark.parametrize(
    ("call", "says"),
    [
        # files and columns
        (lambda d: ps.datasets.load(d / "no.csv"), "there is no file {d}/no.csv; check the path."),
        (lambda d: ps.datasets.load("mushroom"), "there is no data set 'mushroom' (did you mean 'mushrooms'?)"),
        (lambda d: ps.datasets.load(table(d, TEXT_FEATURE)), "data.csv has 'paris' in the column 'city', which is not a "
         "number; features must be numbers: choose them with columns="),
        (lambda d: ps.datasets.load(table(d, ID)), "data.csv has 'x1' in the column 'id', which is not a number"),
        (lambda d: ps.datasets.load(table(d, MIXED)), "the column 'label' has numbers, and 'yes' in row 1; write all or "
         "none as numbers."),
        (lambda d: ps.datasets.load(table(d, "a,b1\n1,0\n")), "say which has the labels with label=."),
        (lambda d: ps.Logistic([["a", 1.0], ["b", 2.0]], [0, 1]), "features must be numbers"),
        # labels
        (lambda d: ps.Logistic(A, Y), "not classes; use LeastSquares."),
        (lambda d: ps.Softmax(A, Y), "not classes; use LeastSquares."),
        (lambda d: ps.Logistic(A, np.arange(12) % 3), "needs two classes of labels but found 3; use Softmax."),
        (lambda d: ps.LeastSquares(A, ["a", "b"] * 6), "least squares needs numbers"),
        # clients
        (lambda d: ps.split(MODEL, groups=np.arange(12) % 3), 'groups= needs by="group", but by is "label".'),
        (lambda d: ps.split(MODEL, 3, "iid", groups=np.arange(12) % 3), 'groups= needs by="group", but by is "iid".'),
        (lambda d: ps.split(MODEL), "the number of clients is missing; give clients=."),
        # what would be dropped, mixed or drawn anew in silence
        (lambda d: ps.minimize(PROBLEM.with_psi(ps.prox.L1(0.1))), "minimize takes the smooth part alone"),
        (lambda d: ps.minimize(PROBLEM.with_batch(2)), "minimize takes the smooth part alone"),
        (lambda d: ps.Logistic(A, [None, "a"] * 6), "some labels are missing"),
        (lambda d: ps.Logistic(A, np.array([np.nan, "a"] * 6, dtype=object)), "some labels are missing"),
        (lambda d: ps.Logistic(A, np.array([Missing(), "a"] * 6)), "some labels are missing"),
        (lambda d: ps.Logistic(A + 1j, B), "A is complex"),
        (lambda d: ps.split(MODEL, 3, "iid", seed=None), "seed = None must be a whole number"),
        (lambda d: ps.random_quadratics(3, 2, seed=1.5), "seed = 1.5 must be a whole number"),
        (lambda d: ps.random_quadratics(3, 2, mu=2.0), "mu = 2 is larger than L = 1"),
        (lambda d: ps.random_quadratics(3, 2, mu=0), "mu = 0 must be"),
        (lambda d: [ps.sweep(["gd"], PROBLEM, rounds=k, out=d / "s") for k in (9, 3)], "holds a run that went on "
         "after these limits were reached; choose another folder, or overwrite it."),
        (lambda d: [ps.sweep(["gd"], PROBLEM, rounds=3, out=d / "s", seeds=k) for k in (1, 2)], "gd holds another run"),
        (lambda d: [ps.sweep(["gd"], PROBLEM, rounds=3, out=d / "s", seeds=k) for k in (2, 1)], "seed-0 holds another "
         "run, which would be mixed with these; choose another folder."),
        (lambda d: ps.load(d / "nothing"), "not a folder"),
        (lambda d: ps.load(d), "holds no run"),
        (lambda d: ps.sweep(["gd"], PROBLEM, rounds=3, seeds=[1, 1]), "occurs twice"),
        (lambda d: ps.run("gd", PROBLEM, rounds=1, out=""), 'out = "" is no folder'),
        (lambda d: ps.sweep(["gd"], PROBLEM, rounds=1, out=table(d, ID)), "data.csv: File exists"),
        # arguments of another kind
        (lambda d: ps.run("gd", PROBLEM, rounds=1, x0="abc"), "x0 must be real numbers"),
        (lambda d: ps.participation.Bernoulli(2), "the probability 2 of a cohort must lie in (0, 1]."),
        (lambda d: ps.participation.Uniform(0), "a cohort of 0 clients cannot be drawn; give at least 1."),
        (lambda d: ps.run("gd", PROBLEM, rounds=1, x0=[1j, 0, 0]), "x0 must be real numbers, not [1j, 0, 0]."),
        (lambda d: ps.run("scaffnew", PROBLEM, rounds=1, h0="abc"), "h0 must be real numbers"),
        (lambda d: ps.run("gd", PROBLEM, rounds=1, warm="x"), "warm must be a result of run."),
        (lambda d: ps.run("gd", PROBLEM, rounds=1, threads="2"), "threads = '2' must be a whole number"),
        (lambda d: ps.run("gd", PROBLEM, rounds=1, threads=-3), "threads = -3 must be a whole number of at least 1"),
        (lambda d: ps.run("gd", PROBLEM, rounds=1, threads=2, engine=CpuEngine(2)), "an engine that is an object has its own threads"),
        (lambda d: ps.run("gd", PROBLEM, rounds=1, cohort=[[0.5, 1]]), "cohort 0 = [0.5, 1.0] must hold the numbers"),
        (lambda d: ps.run("gd", PROBLEM, tol=float("inf")), "tol = inf must be positive and finite."),
        (lambda d: PROBLEM.personalized(0.5, np.full((3, 3), np.nan)), "own must be finite numbers."),
        (lambda d: ps.run(ps.Decaying(ps.APDA(1.0), 0.1), ps.Problem([MODEL]), rounds=1), "apda chooses its step size in "
         "every round itself; leave out decay."),
        (lambda d: ps.run(ps.Decaying(ps.PDHG(0.1, 0.1), 0.1), DUAL, rounds=1), "pdhg chooses its step size"),
        (lambda d: ps.run("gd", PROBLEM, rounds=1, callbacks=ps.callbacks.Callback()), "callbacks must be a list"),
        (lambda d: PROBLEM.with_batch(2.5), "batch = 2.5 must be a whole number of at least 1."),
        (lambda d: ps.Problem(MODEL), "clients must be a list; for one function write Problem([f])."),
        (lambda d: (write_clients(d / "c", [PIECE]), open_clients(d / "c", "logistic")), "model must be a class"),
        (lambda d: ps.Decaying("gd", 0.1), "Decaying takes a method object"),
        (lambda d: ps.tune(ps.Decaying(ps.GD(0.5), 0.1), PROBLEM), "tune cannot search with a falling step size"),
        (lambda d: ps.Decaying(ps.Decaying(ps.GD(0.5), 0.1), 0.1), "already decays"),
        (lambda d: ps.tune("scaffnew", PROBLEM, budget=10), "too small"),
        (lambda d: ps.tune("scaffnew", PROBLEM, powers=[]), "nothing to search"),
        (lambda d: ps.tune("scaffnew", PROBLEM, steps=[0]), "steps = 0 must be a whole number of at least 1."),
        (lambda d: PROBLEM.personalized([0.5, 0.2]), "one number, or one for each of 3 clients."),
        (lambda d: ps.Tamuna.theory(ps.Problem([MODEL])), "tamuna needs at least two clients in a round."),
        (lambda d: ps.plot(ps.minimize(MODEL)), 'y = "gap" cannot be drawn; choose one of the columns iteration, ngrad'),
        (lambda d: ps.plot(3), "cannot plot int; give results of run, or run folders."),
        (lambda d: ps.plot([]), "no results to plot."),
        (lambda d: ps.plot({"a": []}), 'no results for "a".'),
        (lambda d: ps.plot(ps.run("gd", PROBLEM, rounds=3), y="loss"), 'y = "loss" cannot be drawn; choose one of the '
         "columns round"),
        (lambda d: ps.plan(PROBLEM, network="moblie"), 'network "moblie" is not known'),
        (lambda d: ps.Scaffnew.theory(ps.split(ps.Logistic(A, B, l2=0.1, intercept=True), 3)), "p is chosen by mu, which is "
         "unknown here; give p or K, or l2 > 0 without an intercept."),
        (lambda d: ps.run("local-gd", FLAT, rounds=1), "K is chosen by mu, which is unknown here; give K, or l2 > 0"),
        (lambda d: ps.run("5gcs", FLAT, rounds=1), "gamma is chosen by mu, which is unknown here; give gamma, or l2 > 0."),
        (lambda d: ps.SLocalGD(p=0), "p = 0 must lie in (0, 1]."),
        (lambda d: ps.SLocalGD.theory(PROBLEM, p=0), "p = 0 must lie in (0, 1]."),
        (lambda d: ps.FedLin.theory(PROBLEM, K=0), "K = 0 must be a whole number of at least 1"),
        (lambda d: ps.PDHG.theory(DUAL, tau=0.0), "tau = 0.0 must be positive and finite."),
        (lambda d: ps.SplitSkip.theory(DUAL, tau=0.0), "tau = 0.0 must be positive and finite."),
        (lambda d: ps.DecentralizedScaffnew.theory(PROBLEM, tau=0.0), "tau = 0.0 must be positive and finite."),
        (lambda d: ps.RandomGossip(p_e=0), "p_e = 0 must lie in (0, 1]."),
        (lambda d: ps.run(ps.FiveGCS(tau=(1.0, 2.0)), PROBLEM, rounds=1), "tau must be one positive number, or one for "
         "each of the 3 clients."),
        (lambda d: ps.FiveGCS(tau=0), "tau = 0 must be positive and finite."),
        (lambda d: ps.Scaffnew(0.1, own_steps=True), "own_steps=True chooses gamma_i = 1/L_i; leave out gamma"),
        # functions of one's own
        (lambda d: ps.run("gd", own(value=lambda x: "text"), rounds=1), "the value of client 0 is 'text'; it must be one "
         "number."),
        (lambda d: ps.run("gd", own(value=lambda x: x), rounds=1), "the value of client 0 is array("),
        (lambda d: own(value=lambda x: "text").solution, "the value of client 0 is 'text'; it must be one number."),
        (lambda d: ps.run("gd", own(gradient=lambda x: "text"), rounds=1), "the gradient of client 0 holds what is no "
         "number"),
        (lambda d: own(L=10**400), "client 0 says L = 1000"),
        (lambda d: own(L="large"), "client 0 says L = 'large'; it must be a positive number."),
        (lambda d: ps.minimize(function(L=10**400)), "L = inf must be positive and finite."),
        (lambda d: ps.Logistic(A, B, l2=10**400), "l2 = 1000"),
        (lambda d: ps.prox.Box("a", 1.0), "Box needs numbers, not lo = 'a'."),
        (lambda d: ps.prox.TV2D("a", (2, 2)), "TV2D needs a finite lam >= 0, not lam = a."),
        # names of methods
        (lambda d: ps.run("fedprox", PROBLEM, rounds=1), 'method "fedprox" is not known. The methods are gd, '),
        (lambda d: ps.sweep("adam", PROBLEM, rounds=1), 'method "adam" is not known. The methods are gd, '),
    ],
)  # fmt: skip
def test_a_mistake_gets_one_sentence(call: Callable[[Path], Any], says: str, tmp_path: Path) -> None:
    with pytest.raises(ps.InputError, match=re.escape(says.replace("{d}", str(tmp_path)))):
        call(tmp_path)


def test_labels_and_groups_of_a_file_may_be_text(tmp_path: Path, capsys: Any) -> None:
    data = ps.datasets.load(table(tmp_path, TEXT_LABEL))
    assert data.b.tolist() == ["yes", "no", "yes", "no"]
    assert ps.Logistic(data.A, data.b).classes == ("no", "yes")
    flags = f"--data {tmp_path}/data.csv --l2-relative 0.1 --clients 2 --rounds 3 --json".split()
    assert main(["run", "scaffnew", *flags]) == 0
    assert '"yes": 1' in capsys.readouterr().out
    data = ps.datasets.load(table(tmp_path, TEXT_LABEL), label="age", group="label")
    assert data.group is not None
    assert data.group.tolist() == [1, 0, 1, 0]


def test_no_message_of_the_library_names_a_flag() -> None:
    """Only the command line has flags, and what reads its settings."""
    for file in PACKAGE.rglob("*.py"):
        if "cli" in file.parts or file.name in ("settings.py", "flags.py"):
            continue
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call) and re.search("Error|warn", ast.unparse(node.func)):
                text = " ".join(
                    n.value for n in ast.walk(node) if isinstance(n, ast.Constant) and isinstance(n.value, str)
                )
                assert not re.search(r"(?<![\w-])--[a-z]", text), f"{file.name}:{node.lineno}: {text}"


def test_models_and_methods_show_what_they_are() -> None:
    assert repr(MODEL) == "Logistic(12 rows, 3 features, l2=0.1)"
    assert repr(ps.LeastSquares(A, Y, intercept=True)) == "LeastSquares(12 rows, 3 features and an intercept, l2=0)"
    assert repr(ps.Softmax(A, np.arange(12) % 4)) == "Softmax(12 rows, 3 features, l2=0, 4 classes)"
    assert repr(ps.Quadratic(np.array([1.0, 4.0]), np.ones(2))) == "Quadratic(2 unknowns, L=4, mu=1)"
    assert repr(ps.Scaffnew(0.5, 0.25)) == "Scaffnew(gamma=0.5, p=0.25)"
    assert eval(repr(ps.Scaffnew(0.5, 0.25)), vars(ps)) == ps.Scaffnew(0.5, 0.25)
    many = repr(ps.Scaffnew(tuple(np.linspace(0.1, 0.9, 1000)), 0.25))
    assert len(many) < 120
    assert "1000 values" in many


def test_what_holds_already_is_said_and_not_divided_by(tmp_path: Path, capsys: Any) -> None:
    """x0 = 0 is optimal for labels that say nothing, or reaches a loose tolerance."""
    assert "nothing has to be run" in str(ps.plan(PROBLEM, tol=10.0))
    rows = "".join(f"{a},{b},{y}\n" for a, b in ((1, 2), (2, 1)) for y in "xy")
    words = "--clients 2 --l2-relative 0.1 --tol 1e-3 --network mobile --quiet"
    assert main(["sweep", "gd", "scaffnew", "--data", table(tmp_path, "a,b,label\n" + rows), *words.split()]) == 0


def test_the_end_says_what_ended_it() -> None:
    limited = ps.minimize(MODEL, ps.prox.L1(0.01), max_prox=5, method="fista")
    assert "limit of 5 proxes" in limited.message
    assert limited.nprox <= 5
    nowhere = SimpleNamespace(d=3, L=1.0, mu=0.1, value=lambda x: 0.0, gradient=lambda x: [np.nan] * 3)
    diverged = ps.run(ps.GD(0.5), ps.Problem([nowhere, nowhere]), rounds=3)
    assert "at x0; check the clients" in diverged.message


def test_what_users_write_is_taken() -> None:
    """Numbers and arrays of numpy, names, one method, labels of a data frame."""
    for method, given, same in (
        ("scaffnew", np.float32(0.5), 0.5),
        ("scaffnew", ps.participation.Bernoulli(np.float32(0.5)), 0.5),
        ("5gcs", np.full(3, 0.5), [0.5, 0.5, 0.5]),
    ):
        x, y = (ps.run(method, PROBLEM, rounds=3, cohort=cohort, seed=4).x.tolist() for cohort in (given, same))
        assert x == y
    assert [r.rounds for r in ps.sweep("scaffnew", PROBLEM, rounds=2, seeds=np.arange(2))] == [2, 2]
    assert ps.plan(PROBLEM, tol=0.1, network="datacenter").best.seconds > 0
    labels = np.array([3, 7] * 6, dtype=object)
    assert ps.Logistic(A, labels).classes == (3, 7)
    results = ps.sweep(["gd"], PROBLEM, rounds=1)
    assert results[0] in results
    assert "method" in repr(ps.Results([]))
    assert pickle.loads(pickle.dumps(ps.sweep)) is ps.sweep


def test_a_folder_keeps_infinite_speeds_odd_names_and_the_engine(tmp_path: Path) -> None:
    network = ps.Network(bandwidth=10.0, up=math.inf, gradient=0.1, latency=0.0)
    settings: dict[str, Any] = {"network": network, "spec": {"my notes": 1}}
    whole = ps.run("gd", PROBLEM, rounds=8, **settings)
    ps.run("gd", PROBLEM, rounds=4, out=tmp_path / "a", **settings)
    assert json.loads((tmp_path / "a" / "spec.json").read_text())["spec"] == {"my notes": 1}
    resumed = ps.resume(tmp_path / "a", PROBLEM, rounds=8, engine="cpu")
    assert resumed.trace["sim_seconds"][-1] == whole.trace["sim_seconds"][-1]


def test_a_misspelt_method_is_told_the_right_one_alone() -> None:
    with pytest.raises(ps.InputError) as caught:
        ps.run("scafnew", PROBLEM, rounds=1)
    assert str(caught.value) == 'method "scafnew" is not known; did you mean scaffnew?'
