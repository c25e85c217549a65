"""What a first mistake is told: one sentence that says what to do, in the words of whoever made it."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import proxskip as ps
from proxskip.cli import main

PACKAGE = Path(ps.__file__).parent
RNG = np.random.default_rng(0)
A, Y = RNG.standard_normal((12, 3)), RNG.standard_normal(12)
B = np.sign(A[:, 0])
MODEL = ps.Logistic(A, B, l2=0.1)
PROBLEM = ps.split(MODEL, 3)
TEXT_FEATURE = "age,city,label\n1,paris,yes\n2,rome,no\n"
TEXT_LABEL = "age,len,label\n1,2,yes\n2,4,no\n3,1,yes\n4,9,no\n"
ID = "id,age,label\nx1,3,0\nx2,4,1\n"
MIXED = "age,label\n1,yes\n2,3\n"


def table(folder: Path, text: str) -> str:
    (folder / "data.csv").write_text(text)
    return str(folder / "data.csv")


@pytest.mark.parametrize(
    ("call", "says"),
    [
        # files and columns
        (lambda d: ps.datasets.load(d / "no.csv"), "there is no file {d}/no.csv; check the path."),
        (lambda d: ps.datasets.load("no.csv"), "there is no file no.csv; check the path."),
        (lambda d: ps.datasets.load("mushroom"), "there is no data set 'mushroom' (did you mean 'mushrooms'?)"),
        (lambda d: ps.datasets.load(table(d, TEXT_FEATURE)), "data.csv:2:2: 'paris' in the column 'city' is not a "
         "number; features must be numbers, choose them with columns=."),
        (lambda d: ps.datasets.load(table(d, ID)), "'x1' in the column 'id' is not a number; features must be numbers, "
         "choose them with columns=."),
        (lambda d: ps.datasets.load(table(d, MIXED)), "data.csv:3:2: '3' in the column 'label' is not a text, as those "
         "above it are; repair such rows."),
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
        (lambda d: ps.split(MODEL, by="group"), "split by group needs groups=, one for each row"),
        (lambda d: ps.split(MODEL), "the number of clients is missing; give clients=."),
        # keywords
        (lambda d: ps.run("gd", PROBLEM, round=3), "run has no keyword round=; did you mean rounds=?"),
        (lambda d: ps.run("gd", PROBLEM, num_rounds=3), "run has no keyword num_rounds=; did you mean rounds=?"),
        (lambda d: ps.run("gd", PROBLEM, colour=3), "run has no keyword colour=; its keywords are method, problem, "),
        (lambda d: ps.resume(d, PROBLEM, round=3), "resume has no keyword round=; did you mean rounds=?"),
        (lambda d: ps.sweep(["gd"], PROBLEM, seed=3), "sweep has no keyword seed=; did you mean seeds=?"),
        (lambda d: ps.tune("gd", PROBLEM, bugdet=3), "tune has no keyword bugdet=; did you mean budget=?"),
        (lambda d: ps.split(MODEL, n_clients=3), "split has no keyword n_clients=; did you mean clients=?"),
        (lambda d: ps.Scaffnew(gama=0.1, p=0.5), "Scaffnew has no keyword gama=; did you mean gamma=?"),
        (lambda d: ps.Scaffnew(lr=0.1, p=0.5), "Scaffnew has no keyword lr=; did you mean gamma=?"),
        (lambda d: ps.Scaffnew.theory(PROBLEM, own_step=True), "Scaffnew.theory has no keyword own_step=; did you mean "
         "own_steps=?"),
        (lambda d: ps.minimize(MODEL, toll=1.0), "minimize has no keyword toll=; did you mean tol=?"),
        (lambda d: ps.minimize(MODEL, maxiter=3), "minimize has no keyword maxiter=; did you mean max_iter=?"),
        # names of methods
        (lambda d: ps.run("fedprox", PROBLEM, rounds=1), 'method "fedprox" is not known. The methods are gd, '),
        (lambda d: ps.run("adam", PROBLEM, rounds=1), 'method "adam" is not known. The methods are gd, '),
        (lambda d: ps.run("skafnew", PROBLEM, rounds=1), 'method "skafnew" is not known; did you mean scaffnew? '),
    ],
)  # fmt: skip
def test_a_mistake_gets_one_sentence(call: Callable[[Path], Any], says: str, tmp_path: Path) -> None:
    with pytest.raises(ps.InputError, match=re.escape(says.replace("{d}", str(tmp_path)))):
        call(tmp_path)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("--data no.csv --clients 3 --rounds 1", "there is no file no.csv"),
        ("--data {d}/data.csv --clients 2 --rounds 1", "features must be numbers, choose them with --columns."),
        ("--data {d}/three.csv --clients 2 --rounds 1", "found 3; use --loss softmax."),
        ("--data digits --clients 2", "No stopping rule: give --rounds, --iterations, --seconds, --tol or --target."),
        ("--data digits --clients 2 --rounds 1 --gamma 9", "or pass --allow-unsafe-step."),
        ("--data digits --clients 2 --rounds 1 --out {d}", "or --force to overwrite it."),
    ],
)
def test_the_command_line_speaks_of_flags(words: str, says: str, tmp_path: Path, capsys: Any) -> None:
    table(tmp_path, TEXT_FEATURE)
    (tmp_path / "three.csv").write_text("age,label\n1,0\n2,1\n3,2\n")
    ps.run("gd", PROBLEM, rounds=1, out=tmp_path)
    assert main(["run", "gd", *words.format(d=tmp_path).split()]) == 2
    assert says in capsys.readouterr().err


def test_labels_and_groups_of_a_file_may_be_text(tmp_path: Path, capsys: Any) -> None:
    data = ps.datasets.load(table(tmp_path, TEXT_LABEL))
    assert data.b.tolist() == ["yes", "no", "yes", "no"]
    assert ps.Logistic(data.A, data.b).classes == ("no", "yes")
    flags = f"--data {tmp_path}/data.csv --l2 0.1 --clients 2 --rounds 3 --json".split()
    assert main(["run", "scaffnew", *flags]) == 0
    assert '"yes": 1' in capsys.readouterr().out
    data = ps.datasets.load(table(tmp_path, TEXT_LABEL), label="age", group="label")
    assert data.group is not None
    assert data.group.tolist() == [1, 0, 1, 0]


def test_no_message_of_the_library_names_a_flag() -> None:
    """Only the command line has flags; it puts them in the place of keywords."""
    for file in PACKAGE.rglob("*.py"):
        if "cli" in file.parts:
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
