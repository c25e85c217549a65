"""Forged checkpoints with a correct seal: each is refused with a sentence or goes on; none ends in a traceback."""

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

PROBLEM = ps.Problem(ps.random_quadratics(3, 2, seed=1))
ODD: tuple[Any, ...] = (None, -1, 2**70, 1.5, "x", [], {}, True, float("nan"), {"__array__": "nothing"})


def forged_meta(meta: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """With one entry at any depth changed, or missing."""
    for key, value in meta.items():
        yield {k: v for k, v in meta.items() if k != key}
        yield from (meta | {key: odd} for odd in ODD)
        if isinstance(value, dict):
            yield from (meta | {key: forged} for forged in forged_meta(value))


def forged_arrays(arrays: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """With one array of another shape or type, filled with something else, or missing."""
    for name, v in arrays.items():
        yield {k: u for k, u in arrays.items() if k != name}
        for odd in (v[..., None], v.ravel()[:1], v[:0], v.astype("f4"), v.astype("u8"), np.full_like(v, -(2**40))):
            yield arrays | {name: odd}


@pytest.mark.parametrize("every", [pytest.param(29, id="some"), pytest.param(1, id="all", marks=pytest.mark.slow)])
def test_no_forged_checkpoint_ends_in_a_traceback(every: int, tmp_path: Path) -> None:
    ps.run(ps.Scaffnew.theory(PROBLEM), PROBLEM, rounds=4, out=tmp_path / "a", cohort=2)
    saved = checkpoint.load(tmp_path / "a")
    cases = [(saved.arrays, m) for m in forged_meta(saved.meta)]
    cases += [(a, saved.meta) for a in forged_arrays(dict(saved.arrays))]
    refused = 0
    for k, (arrays, meta) in enumerate(cases[::every]):
        checkpoint.save(tmp_path / str(k), arrays, meta)
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            try:
                ps.resume(tmp_path / str(k), PROBLEM, rounds=6)
            except (InputError, EngineError) as error:
                refused += 1
                assert "\n" not in str(error)
    assert refused > len(cases[::every]) // 2


@pytest.mark.parametrize(
    ("name", "changed", "refusal"),
    [
        ("fista", {"beta": "missing"}, None),  # a parameter that came later
        ("5gcs", {"rho": "missing"}, None),
        ("5gcs", {"auto": False}, None),  # one that is retired, not used and used
        ("5gcs", {"auto": True}, "no parameter auto"),
    ],
)
def test_parameters_of_an_older_version(name: str, changed: Any, refusal: str | None, tmp_path: Path) -> None:
    ps.run(name, PROBLEM, rounds=4, out=tmp_path / "new")
    saved = checkpoint.load(tmp_path / "new")
    meta = copy.deepcopy(dict(saved.meta))
    parameters = meta["config"]["parameters"] | changed
    meta["config"]["parameters"] = {k: v for k, v in parameters.items() if v != "missing"}
    checkpoint.save(tmp_path / "old", saved.arrays, meta)
    if refusal:
        with pytest.raises(InputError, match=refusal):
            ps.resume(tmp_path / "old", PROBLEM, rounds=9)
        return
    old, new = (ps.resume(tmp_path / which, PROBLEM, rounds=9) for which in ("old", "new"))
    assert np.array_equal(old.x, new.x)
    assert old.rounds == 9
