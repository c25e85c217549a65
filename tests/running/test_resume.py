"""A resumed run is bitwise the run that was never interrupted; another run's checkpoint is refused with reasons."""

import hashlib
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import proxskip as ps
from proxskip.results import checkpoint, sealed
from proxskip.running.stop import Stop, Unproved
from proxskip.types import InputError
from support.comparing import same
from support.methods import METHODS, NAMED, Row
from support.problems import WEIGHTS, difference, quadratics
from support.tiers import thinned

R = 14


def cut_and_resume(
    path: Path, method: Any, problem: ps.Problem, cuts: list[int], rounds: int = R, **given: Any
) -> None:
    """Run straight; run to each cut and resume; compare."""
    straight = ps.run(method, problem, rounds=rounds, **given)
    ps.run(method, problem, rounds=cuts[0], out=path, checkpoint_every=1, **given)
    for cut in cuts[1:]:
        ps.resume(path, problem, rounds=cut)
    assert same(ps.resume(path, problem, rounds=rounds), straight)


@pytest.mark.parametrize("row", thinned(METHODS, 5))
@pytest.mark.long
def test_resume_is_bitwise_the_straight_run(row: Row, tmp_path: Path) -> None:
    problem = row.quadratic()
    method = row.make(problem)
    draw = np.random.Generator(np.random.Philox(len(row.name)))
    for k, (engine, every) in enumerate((("cpu", None), ("reference", 1), ("cpu", 3))):
        cuts = sorted(int(c) for c in draw.integers(0, R, size=k + 1))
        given = {"cohort": row.cohort, "seed": int(draw.integers(2**63)), "engine": engine, "every": every}
        cut_and_resume(tmp_path / str(k), method, problem, cuts, **given)


@pytest.mark.parametrize("name", ["scaffnew", "scaffnew-cohort", "scaffold-I", "sproxskip", "decentralized"])
@pytest.mark.long
def test_resume_with_minibatches(name: str, tmp_path: Path, quiet_steps: None) -> None:
    row = NAMED[name]
    problem = row.rows(sparse=True).with_batch(5)
    given: dict[str, Any] = {"cohort": row.cohort, "seed": 3, "allow_unsafe_step": True}
    cut_and_resume(tmp_path / "a", row.make(problem), problem, [4, 9], **given)


@pytest.mark.long
def test_resume_after_many_records(tmp_path: Path) -> None:
    """Beyond 100 rounds records get rarer; the one that only the cut made is not kept."""
    problem = ps.Problem(quadratics(3))
    cut_and_resume(tmp_path / "a", ps.Scaffnew(1 / problem.L_max, 0.3), problem, [101, 117, 203], rounds=310)


def test_resume_keeps_the_start_the_warnings_and_numbers_of_numpy(tmp_path: Path, quiet_steps: None) -> None:
    problem = ps.Problem(quadratics(4), WEIGHTS)
    h0 = np.arange(16.0).reshape(4, 4) / 10
    method = ps.Scaffnew((1.5 / problem.L_max,) * 4, 0.3, K=np.int64(3))
    cut_and_resume(tmp_path / "a", method, problem, [0, 5], x0=np.ones(4), h0=h0)


class Crash(Exception):
    def on_record(self, step: int, metrics: Any) -> None:
        if step == 8:
            raise self


@pytest.mark.parametrize("every", [1, 3])
@pytest.mark.parametrize("name", ["scaffnew-cohort", "scaffold", "splitskip", "decentralized"])
@pytest.mark.long
def test_a_crash_costs_only_the_rounds_since_the_last_checkpoint(name: str, every: int, tmp_path: Path) -> None:
    row = NAMED[name]
    problem = row.quadratic()
    method = row.make(problem)
    given: dict[str, Any] = {"rounds": R, "cohort": row.cohort}
    straight = ps.run(method, problem, **given)
    with pytest.raises(Crash):
        ps.run(method, problem, **given, out=tmp_path, checkpoint_every=every, callbacks=[Crash()])
    assert same(ps.resume(tmp_path, problem), straight)


def own(center: float) -> ps.Problem:
    """An oracle that is known by its numbers alone."""
    value, gradient = lambda x: float(np.sum((x - center) ** 2)), lambda x: 2.0 * (x - center)
    return ps.Problem([SimpleNamespace(L=2.0, mu=1.0, value=value, gradient=gradient)], d=50)


def quadratic() -> ps.Problem:
    return ps.Problem(quadratics(4), WEIGHTS)


@pytest.mark.parametrize(
    ("make", "other", "says"),
    [
        (quadratic, lambda p: ps.Problem(quadratics(4, seed=99), WEIGHTS), "fingerprint"),
        (quadratic, lambda p: ps.Problem(p.clients, (4.0, 3.0, 2.0, 1.0)), "fingerprint"),
        (quadratic, lambda p: ps.Problem(p.clients), "weights"),
        (quadratic, lambda p: ps.Problem(p.clients[:3], WEIGHTS[:3]), "clients"),
        (quadratic, lambda p: p.with_psi(ps.prox.L1(0.1)), "psi"),
        (quadratic, lambda p: ps.Problem(p.clients, WEIGHTS, smoothness="average"), "smoothness"),
        (NAMED["scaffnew"].rows, lambda p: p.with_batch(5), "batch"),
        (NAMED["scaffnew"].rows, lambda p: NAMED["scaffnew"].rows(dtype="float32"), "dtype"),
        (NAMED["scaffnew"].rows, lambda p: NAMED["scaffnew"].rows(loss="squared"), "loss"),
        (NAMED["splitskip"].quadratic, lambda p: p.with_psi(p.psi, -difference(p.d)), "D"),
        (lambda: own(1.0), lambda p: own(2.0), "fingerprint"),
    ],
    ids=["data", "order", "weights", "clients", "psi", "L", "batch", "dtype", "loss", "D", "own"],
)
def test_another_problem_is_refused_with_the_difference(
    make: Any, other: Any, says: str, tmp_path: Path, quiet_steps: None
) -> None:
    problem = make()
    method = ps.Scaffnew(0.3 / problem.L_max, 0.3) if problem.D is None else ps.SplitSkip.theory(problem)
    ps.run(method, problem, rounds=3, out=tmp_path, seed=1)
    with pytest.raises(InputError, match=f"another run.*{says}"):
        ps.resume(tmp_path, other(problem), rounds=5)
    assert ps.resume(tmp_path, problem, rounds=5).rounds == 5


def test_a_folder_without_a_run_is_refused_and_one_with_a_run_is_not_overwritten(tmp_path: Path) -> None:
    problem = ps.Problem(quadratics(2))
    with pytest.raises(InputError, match="not a run folder"):
        ps.resume(tmp_path / "nowhere", problem)
    ps.run(ps.GD(1.0), problem, rounds=3, out=tmp_path)
    with pytest.raises(InputError, match="already holds a run"):
        ps.run(ps.GD(1.0), problem, rounds=4, out=tmp_path)
    assert ps.resume(tmp_path, problem).rounds == 3


# -- what a run remembers of its records --------------------------------------------------------------------------------
class FallsThenGrows:
    """Along one axis it falls, along the other the steps are too long; nobody knows its L."""

    L_known, L, mu, d, curvature = False, 1.0, None, 2, np.array([0.1, 4.0])

    def value(self, x: Any) -> float:
        return 0.5 * float(x @ (self.curvature * x))

    def gradient(self, x: Any) -> Any:
        return self.curvature * x


def test_a_run_that_diverges_after_it_was_resumed_returns_the_best_x_of_all_records(tmp_path: Path) -> None:
    problem = ps.Problem([FallsThenGrows()])
    given: dict[str, Any] = {"x0": np.array([10.0, 1e-6])}
    straight = ps.run(ps.GD(1.0), problem, rounds=2000, **given)
    assert straight.status is ps.Status.DIVERGED
    best = int(straight.trace["round"][np.nanargmin(straight.trace["f"])])
    ps.run(ps.GD(1.0), problem, rounds=best + 30, out=tmp_path, **given)
    assert same(ps.resume(tmp_path, problem, rounds=2000), straight)


def test_records_that_rounding_left_open_are_counted_over_the_whole_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Stop, "unproved", lambda *_: Unproved("rounding leaves it open", False))
    problem = quadratic()
    straight = ps.run("scaffnew", problem, rounds=500, tol=1e-3)
    assert straight.status is ps.Status.PRECISION
    ps.run("scaffnew", problem, rounds=straight.rounds - 8, tol=1e-3, out=tmp_path)
    assert same(ps.resume(tmp_path, problem, rounds=500), straight)


# -- warm starts, and a user's own parts -------------------------------------------------------------------------------
def test_resume_with_a_users_own_psi(tmp_path: Path) -> None:
    class Mine:
        def __call__(self, x):
            return float(np.abs(x).sum())

        def prox(self, x, t):
            return np.sign(x) * np.maximum(np.abs(x) - t, 0.0)

    f = ps.Quadratic([1.0, 2.0], [3.0, -1.0])
    ps.run(ps.ProxSkip(0.4, 0.5), ps.Problem([f], psi=Mine()), rounds=3, out=tmp_path / "a")
    assert ps.resume(tmp_path / "a", ps.Problem([f], psi=Mine()), rounds=6).rounds == 6
    assert json.loads((tmp_path / "a" / "spec.json").read_text())["stop"]["rounds"] == 6


@pytest.mark.slow
def test_large_graphs_and_many_own_steps_fit_a_checkpoint(tmp_path: Path) -> None:
    n = 230
    problem = ps.Problem([ps.Quadratic([1.0, 0.5], [float(i), 1.0]) for i in range(n)])
    gossip = ps.DecentralizedScaffnew.theory(problem, graph="complete")
    for name, method in (("a", gossip), ("b", ps.Scaffnew.theory(problem, own_steps=True))):
        cut_and_resume(tmp_path / name, method, problem, [3], rounds=6)


def test_splitskip_takes_its_own_dual_and_nobody_elses() -> None:
    f = ps.Quadratic(np.array([1.0, 2.0, 4.0]), np.array([3.0, -1.0, 0.5]))
    problem = ps.Problem([f], psi=ps.prox.L1(0.3), D=np.eye(3))
    cold = ps.run(ps.SplitSkip.theory(problem), problem, tol=1e-12, rounds=5000)
    again = ps.run(ps.SplitSkip.theory(problem), problem, tol=1e-12, rounds=5000, warm=cold)
    assert again.rounds == 0
    other = ps.run(ps.Accelerated.theory(ps.Problem([f])), ps.Problem([f]), rounds=5)
    mixed = ps.run(ps.SplitSkip.theory(problem), problem, tol=1e-12, rounds=5000, warm=other)
    assert np.allclose(mixed.x, cold.x, atol=1e-10)
    with pytest.raises(ps.InputError, match="h is -D'y"):
        ps.run(ps.SplitSkip.theory(problem), problem, rounds=1, warm=cold, h0=np.ones((1, 3)))


def test_warm_start_from_a_method_with_controls_to_one_without() -> None:
    problem = NAMED["scaffnew"].rows()
    first = ps.run(ps.Scaffnew.theory(problem), problem, rounds=20)
    assert ps.run(ps.GD.theory(problem), problem, rounds=1, warm=first).trace["gap"][0] == first.trace["gap"][-1]


@pytest.mark.parametrize("change", ["shape", "type", "missing", "more"])
def test_a_state_that_no_run_of_this_problem_has_is_refused(change: str, tmp_path: Path) -> None:
    problem = quadratic()
    ps.run("scaffnew", problem, rounds=3, out=tmp_path)
    saved = checkpoint.load(tmp_path)
    h = saved.arrays["memory.h"]
    other = {"shape": h[:, 1:], "type": h.astype("f4"), "missing": None, "more": h}[change]
    name = "memory.v" if change == "more" else "memory.h"
    arrays = {k: v for k, v in (saved.arrays | {name: other}).items() if v is not None}
    checkpoint.save(tmp_path, arrays, saved.meta)
    with pytest.raises(InputError, match=f"another version of proxskip wrote it: {name} is"):
        ps.resume(tmp_path, problem, rounds=6)


def test_whoever_changes_a_checkpoint_raises_its_version(tmp_path: Path) -> None:
    problem = quadratic()
    ps.run("scaffnew", problem, rounds=3, out=tmp_path)
    saved = checkpoint.load(tmp_path)
    arrays = {name for name in saved.arrays if not name.startswith("trace.")}
    assert (sealed.VERSION, arrays, set(saved.meta)) == (
        2,
        {
            "h0", "line.outcome0", "line.owed", "line.participated", "memory.h", "memory.xhat", "server.x", "x", "x0",
        },
        {"best", "config", "line", "psi0", "round", "scale", "summary", "unproved"},
    )  # fmt: skip


def test_folders_of_older_releases_are_refused_in_a_sentence(tmp_path: Path) -> None:
    problem = quadratic()
    ps.run("gd", problem, rounds=3, out=tmp_path)
    data = bytearray((tmp_path / "checkpoint").read_bytes()[:-32])
    data[8] = 1  # the number of the format, in 0.1 to 0.3
    (tmp_path / "checkpoint").write_bytes(data + hashlib.sha256(data).digest())
    for act in (lambda: ps.load(tmp_path), lambda: ps.resume(tmp_path, problem, rounds=9)):
        with pytest.raises(InputError, match="has format 1, and this release reads format 2: use the release of prox"):
            act()


@pytest.mark.parametrize("engine", ["cpu", "reference"])
def test_numbers_of_numpy_are_those_of_python_from_the_start(engine: str, tmp_path: Path) -> None:
    problem = ps.Problem(quadratics(4))
    method = ps.Scaffnew(np.float32(0.1), np.float32(0.3), K=np.int64(3), chi=np.float32(0.7))
    assert [type(v) for v in method.parameters().values()][:4] == [float, float, int, float]
    own = ps.Scaffnew(tuple(np.float32([0.1, 0.2, 0.3, 0.1])), np.float64(0.3))
    assert {type(gamma) for gamma in own.gamma} == {float}
    for name, each in (("one", method), ("own", own)):
        cut_and_resume(tmp_path / name, each, problem, [3], engine=engine)
