"""Forged checkpoints with a correct seal: each is refused with a sentence or goes on; none ends in a traceback."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import proxskip as ps
from proxskip.results import checkpoint
from proxskip.types import EngineError, InputError

ODD: tuple[Any, ...] = (None, -1, 2**70, 1.5, "x", [], {}, True, float("nan"), {"__array__": "nothing"})


def leaves(data: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of every entry of nested data."""
    for key, v in data.items() if isinstance(data, dict) else ():
        yield (*path, key)
        yield from leaves(v, (*path, key))


def forged_meta(meta: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """With one entry changed, or missing."""
    for path in leaves(meta):
        for odd in (*ODD, "missing"):
            made = copy.deepcopy(meta)
            at = made
            for key in path[:-1]:
                at = at[key]
            if odd == "missing":
                del at[path[-1]]
            else:
                at[path[-1]] = odd
            yield made


def forged_arrays(arrays: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """With one array of another shape or type, filled with something else, or missing."""
    for name, v in arrays.items():
        yield {k: u for k, u in arrays.items() if k != name}
        for odd in (v[..., None], v.ravel()[:1], v[:0], v.astype("f4"), v.astype("u8"), np.full_like(v, -(2**40))):
            yield arrays | {name: odd}


@pytest.mark.parametrize("every", [pytest.param(29, id="some"), pytest.param(1, id="all", marks=pytest.mark.slow)])
def test_no_forged_checkpoint_ends_in_a_traceback(every: int, tmp_path: Path) -> None:
    problem = ps.Problem(ps.random_quadratics(3, 2, seed=1))
    ps.run(ps.Scaffnew.theory(problem), problem, rounds=4, out=tmp_path / "a", cohort=2)
    saved = checkpoint.load(tmp_path / "a")
    cases = [(saved.arrays, m) for m in forged_meta(saved.meta)]
    cases += [(a, saved.meta) for a in forged_arrays(dict(saved.arrays))]
    refused = 0
    for k, (arrays, meta) in enumerate(cases[::every]):
        folder = tmp_path / str(k)
        checkpoint.save(folder, arrays, meta)
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            try:
                ps.resume(folder, problem, rounds=6)
            except (InputError, EngineError) as error:
                refused += 1
                assert "\n" not in str(error)
    assert refused > len(cases[::every]) // 2


@pytest.mark.parametrize(("name", "later"), [("fista", "beta"), ("5gcs", "rho")])
def test_a_run_goes_on_without_a_parameter_that_came_later(name: str, later: str, tmp_path: Path) -> None:
    problem = ps.Problem(ps.random_quadratics(3, 2, seed=1))
    ps.run(name, problem, rounds=4, out=tmp_path / "new")
    saved = checkpoint.load(tmp_path / "new")
    meta = copy.deepcopy(dict(saved.meta))
    del meta["config"]["parameters"][later]
    checkpoint.save(tmp_path / "old", saved.arrays, meta)
    old, new = (ps.resume(tmp_path / which, problem, rounds=9) for which in ("old", "new"))
    assert np.array_equal(old.x, new.x)
    assert old.summary()["rounds"] == 9


def test_a_run_goes_on_that_did_not_use_a_retired_parameter(tmp_path: Path) -> None:
    problem = ps.Problem(ps.random_quadratics(3, 2, seed=1))
    ps.run(ps.FiveGCS.practical(problem), problem, rounds=4, out=tmp_path / "new")
    saved = checkpoint.load(tmp_path / "new")
    for auto in (False, True):
        meta = copy.deepcopy(dict(saved.meta))
        meta["config"]["parameters"]["auto"] = auto
        checkpoint.save(tmp_path / str(auto), saved.arrays, meta)
    assert ps.resume(tmp_path / "False", problem, rounds=9).summary()["rounds"] == 9
    with pytest.raises(InputError, match="no parameter auto"):
        ps.resume(tmp_path / "True", problem, rounds=9)
