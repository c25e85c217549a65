"""The engine of docs/adding-an-engine.md, which stands outside the package, owes what every engine owes."""

from functools import cache
from pathlib import Path
from typing import Any

import pytest

import proxskip as ps
from proxskip.engines.in_process import NearEngine
from support.comparing import bits, same
from support.methods import METHODS, NAMED, Row
from support.pages import code_of
from support.runs import ROUNDS, run

pytestmark = pytest.mark.long


@cache
def kind() -> Any:
    """The class as the page has it."""
    names: dict[str, Any] = {"__name__": "own_engine"}
    exec(compile(code_of("adding-an-engine.md", 0), "docs/adding-an-engine.md", "exec", dont_inherit=True), names)
    return names["ThreadsEngine"]


@pytest.mark.parametrize("row", METHODS[::3], ids=lambda row: row.name)
def test_methods_take_the_references_way(row: Row) -> None:
    problem = row.rows()
    assert bits(run(row, problem, kind()())) == bits(run(row, problem, "reference"))


@pytest.mark.parametrize("row", [r for r in METHODS if r.claims("batch")][::10], ids=lambda row: row.name)
@pytest.mark.long
def test_some_methods_draw_the_references_minibatches(row: Row) -> None:
    problem = row.rows(sparse=True).with_batch(6)
    assert bits(run(row, problem, kind()(), 3)) == bits(run(row, problem, "reference", 3))


@pytest.mark.parametrize("row", METHODS[::4], ids=lambda row: row.name)
def test_some_runs_resume(row: Row, tmp_path: Path) -> None:
    problem = row.quadratic()
    whole = run(row, problem, kind()())
    run(row, problem, kind()(), 3, out=tmp_path / "run")
    resumed = ps.resume(tmp_path / "run", problem, rounds=ROUNDS, engine=kind()())
    assert same(resumed, whole)
    assert resumed.summary["engine"] == "threads"


def test_resume_without_the_engine_says_what_is_missing(tmp_path: Path) -> None:
    run(NAMED["scaffnew"], NAMED["scaffnew"].quadratic(), kind()(), 3, out=tmp_path / "run")
    with pytest.raises(ps.InputError, match='engine "threads" is not known'):
        ps.resume(tmp_path / "run", NAMED["scaffnew"].quadratic(), rounds=5)


def test_an_engine_without_clients_says_what_to_define() -> None:
    with pytest.raises(NotImplementedError, match="define client"):
        run(NAMED["scaffnew"], NAMED["scaffnew"].quadratic(), NearEngine())
