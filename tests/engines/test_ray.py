"""The Ray engine: the way of the cpu engine for any number of actors, whoever is killed, and sentences for the rest."""

import os
import random
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import scipy.sparse

import proxskip as ps
from proxskip.engines.cpu.engine import CpuEngine
from proxskip.methods import registry
from proxskip.types import EngineError, GradientWarning
from support.comparing import bits, near
from support.methods import METHODS, NAMED, Row
from support.pages import code_of
from support.problems import data, quadratics
from support.runs import run as run_each
from support.tiers import RAY_WARNS, thinned

ray = pytest.importorskip("ray", reason="Ray is not installed: pip install 'proxskip[ray]'")

from proxskip.engines.ray.cluster import FullClusterWarning, start_here, warn_if_exposed  # noqa: E402
from proxskip.engines.ray.engine import RayEngine  # noqa: E402
from proxskip.engines.ray.pool import Pool  # noqa: E402
from support.ray_actors import Watch, from_file, kill  # noqa: E402

pytestmark = [pytest.mark.usefixtures("ray_here"), RAY_WARNS]


Engines = Callable[[int], RayEngine]


@pytest.fixture(scope="module")
def engines(ray_here: None) -> Iterator[Engines]:
    """One engine whose processes are used again for every test, with as many actors as asked."""
    engine = RayEngine(1, stay=True, deadline=120)

    def with_actors(actors: int) -> RayEngine:
        engine.actors, engine.holds = actors, None
        return engine

    yield with_actors
    engine.shutdown()


run = partial(run_each, every=3)


@pytest.mark.parametrize("row", thinned(METHODS, 24, 6))
def test_every_method_takes_the_cpu_engines_way(row: Row, engines: Engines) -> None:
    """On one, two or three actors, by turns."""
    actors = 1 + METHODS.index(row) % 3
    problem = row.rows(sparse=actors != 2)
    near(run(row, problem, engines(actors)), run(row, problem), 1e-12)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "loss", "sparse", "dtype", "batch"),
    [
        *((r.name, "logistic", True, "float64", 6) for r in [r for r in METHODS if r.claims("batch")][::6]),
        ("scaffnew-weighted", "squared", True, "float64", None),
        ("scaffnew-weighted", "softmax", False, "float64", None),
        ("scaffnew-weighted", "softmax", True, "float64", 5),
        ("scaffnew", "logistic", True, "float32", None),
    ],
)
def test_every_kind_of_client_takes_the_cpu_engines_way(
    name: str, loss: str, sparse: bool, dtype: str, batch: int | None, engines: Engines
) -> None:
    """Rows of a minibatch are drawn by the client's number among all, not by its place in an actor."""
    row = NAMED[name]
    problem = row.rows(loss, sparse, dtype).with_batch(batch)
    tol = 1e-12 if dtype == "float64" else 1e-5
    near(run(row, problem, engines(3), rounds=4), run(row, problem, rounds=4), tol)


def test_a_run_is_repeated_bit_for_bit(engines: Engines) -> None:
    row = NAMED["scaffnew-cohort"]
    problem = row.rows(sparse=True).with_batch(6)
    assert bits(run(row, problem, engines(2))) == bits(run(row, problem, engines(2)))


@pytest.mark.usefixtures("own_methods")
def test_a_method_that_was_loaded_from_a_file(engines: Engines, tmp_path: Path) -> None:
    """The actors cannot import it by its name; the class travels to them."""
    (tmp_path / "damped_scaffnew.py").write_text(code_of("authoring.md", 0))
    (kind,) = registry.load_plugin(tmp_path / "damped_scaffnew.py")
    problem = ps.Problem(quadratics(5))
    method = kind.theory(problem)
    a = ps.run(method, problem, rounds=8, cohort=3, engine=engines(2), out=tmp_path / "run")
    near(a, ps.run(method, problem, rounds=8, cohort=3), 1e-12)
    resumed = ps.resume(tmp_path / "run", problem, rounds=12, engine=engines(2))
    near(resumed, ps.run(method, problem, rounds=12, cohort=3), 1e-12)
    with pytest.raises(ps.InputError, match="engine"):
        ps.resume(tmp_path / "run", problem, engine=CpuEngine(), rounds=20)


class Odd(Exception):
    """Cannot be unpickled."""

    def __init__(self, a: str, b: str) -> None:
        super().__init__(f"{a} {b}")


class Moody:
    """A client whose value takes its time, or that fails or sleeps from some gradient on, where it was sent to."""

    L, mu, d = 1.0, 0.5, 2

    def __init__(self, mood: str = "", after: int = 0, seconds: float = 0.0) -> None:
        self.mood, self.left, self.seconds, self.home = mood, after, seconds, os.getpid()

    def value(self, x: Any) -> float:
        time.sleep(self.seconds)
        return 0.5 * float((x - 1.0) @ (x - 1.0))

    def gradient(self, x: Any) -> Any:
        self.left -= os.getpid() != self.home
        if self.left < 0 and self.mood == "fails":
            raise ZeroDivisionError("the data are gone")
        if self.left < 0 and self.mood == "fails oddly":
            raise Odd("sensor", "broken")
        if self.left < 0 and self.mood == "sleeps":
            time.sleep(600)
        return x - 1.0


def test_records_are_off_the_clock(engines: Engines) -> None:
    problem = ps.Problem([Moody(seconds=0.2), Moody(seconds=0.2)])
    problem.__dict__["solution"] = None
    seen: list[float] = []
    watch = Watch(record=lambda step: seen.append(time.perf_counter()))
    result = ps.run(ps.Scaffnew(0.5, 0.5), problem, rounds=4, every=1, engine=engines(2), callbacks=(watch,))
    clock = result.trace["seconds"]
    assert len(clock) == len(seen) == 5
    assert clock[-1] - clock[0] <= seen[-1] - seen[0] - 4 * 0.2


def test_a_round_of_scaffnew_is_one_call_to_each_actor(engines: Engines, monkeypatch: Any) -> None:
    engine, problem = engines(2), NAMED["scaffnew"].rows()
    calls: list[tuple[str, int]] = []
    ask = Pool.ask

    def watched(self: Pool, verb: str, arguments: Any, who: Any, *more: Any) -> Any:
        calls.append((verb, len(list(who))))
        return ask(self, verb, arguments, who, *more)

    monkeypatch.setattr(Pool, "ask", watched)
    run(NAMED["scaffnew"], problem, engine, rounds=20, every=20)
    assert calls.count(("step", 2)) == 20
    assert [verb for verb, _ in calls if verb not in ("step", "evaluate", "where", "take")] == ["begin", "memory"]


# -- shards that live where they are loaded ----------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("batch", [None, 4])
def test_shards_from_files(tmp_path: Path, batch: int | None, engines: Engines) -> None:
    engine = engines(3)
    problem = engine.load(from_file(tmp_path), n=4, batch=batch)
    here = problem.here()
    assert [f.N for f in here.clients] == problem.sizes == [24, 24, 24, 24]
    assert (problem.mu, problem.d) == (here.mu, here.d)
    assert problem.L_max == pytest.approx(here.L_max, rel=1e-12)
    method = ps.Scaffnew.theory(problem)
    a, b = (ps.run(method, p, rounds=12, seed=3, every=2, engine=e) for p, e in ((problem, engine), (here, "cpu")))
    near(a, b, 1e-12)
    with pytest.raises(ps.InputError, match="is in a Ray actor"):
        ps.run(method, problem, rounds=1, engine="reference", seed=3)
    if batch is None:
        return
    for actor in range(3):  # shards are read again where an actor is replaced
        kill(engine, actor)
    again = ps.run(method, problem, rounds=12, seed=3, every=2, engine=engine)
    near(again, b, 1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["poisson", "cox"])
def test_shards_of_statistical_models(kind: str, engines: Engines) -> None:
    """They count by their rows, also where there is no L; the table needs the rows themselves."""
    rng = np.random.Generator(np.random.Philox(2))
    A, site = rng.standard_normal((90, 3)), np.repeat(np.arange(3), [50, 25, 15])
    y, event = rng.integers(1, 9, 90), rng.random(90) < 0.7

    def load_shard(i: int) -> Any:
        rows = site == i
        return ps.Poisson(A[rows], y[rows]) if kind == "poisson" else ps.Cox(A[rows], y[rows], event[rows])

    engine = engines(2)
    problem = engine.load(load_shard, n=3)
    assert problem.sizes == [50, 25, 15]
    result = ps.run("newton", problem, tol=1e-9, rounds=20, engine=engine)
    assert result.success
    near(result, ps.run("newton", problem.here(), tol=1e-9, rounds=20), 1e-12)
    with pytest.raises(ps.InputError, match="the rows are in Ray's actors; load all of them"):
        result.inference(problem)
    assert result.inference(problem.here()).rows == 90


@pytest.mark.slow
def test_a_sharded_run_is_resumed_only_on_the_same_data(tmp_path: Path, engines: Engines) -> None:
    engine, load_shard = engines(2), from_file(tmp_path)
    problem = engine.load(load_shard, n=4)
    method = ps.Scaffnew.theory(problem)
    ps.run(method, problem, rounds=5, engine=engine, out=tmp_path / "run")
    straight = ps.run(method, problem, rounds=9, engine=engine)
    resumed = ps.resume(tmp_path / "run", problem, engine=engine, rounds=9)
    assert resumed.x.tobytes() == straight.x.tobytes()
    other = engine.load(lambda i: load_shard(3 - i), n=4)
    with pytest.raises(ps.InputError, match="fingerprint"):
        ps.resume(tmp_path / "run", other, engine=engine, rounds=12)


def test_a_run_on_a_shard_with_the_gradient_of_another_function_proves_nothing(engines: Engines) -> None:
    def load_shard(i: int) -> Any:
        f = ps.Quadratic(np.ones(3), np.full(3, float(i)))
        return SimpleNamespace(value=f.value, gradient=lambda x: f.gradient(x) + (i == 1), L=1.0, mu=1.0, d=3)

    engine = engines(2)
    problem = engine.load(load_shard, n=3)
    with pytest.warns(GradientWarning, match=r"^client 1 \(load_shard\(1\)\): the gradient of f"):
        res = ps.run(ps.GD(1.0), problem, tol=1e-8, rounds=50, engine=engine)
    assert res.status is ps.Status.INEXACT


@pytest.mark.slow
@pytest.mark.parametrize("batch", [None, 3])
def test_clients_in_a_folder_take_the_cpu_engines_way(
    tmp_path: Path, batch: int | None, engines: Engines, monkeypatch: Any
) -> None:
    A, b = data(rows=640, features=40)
    ps.datasets.write_clients(tmp_path / "store", [(scipy.sparse.csr_matrix(A), b, np.arange(640) % 80)])
    problem = ps.datasets.open_clients(tmp_path / "store", l2=0.1, batch=batch)
    engine, row = engines(3), NAMED["scaffnew-cohort"]
    near(run(row, problem, engine), run(row, problem), 1e-12)
    kill(engine, 1)  # the one that takes its place opens the folder again
    near(run(row, problem, engine), run(row, problem), 1e-12)
    sent = engine.pool.supply[1](0)
    assert len(ray.cloudpickle.dumps(sent)) < 1000, "data went through the driver"
    engine.holds = None
    folder, _, *others = sent[1].args
    monkeypatch.setattr(problem.clients, "part", lambda lo, hi: partial(sent[1].func, folder, "other", *others))
    with pytest.raises(ps.InputError, match="holds other clients"):
        run(row, problem, engine)


# -- the cluster -------------------------------------------------------------------------------------------------------
def test_a_network_that_loses_clients_is_refused(engines: Engines) -> None:
    with pytest.raises(ps.InputError, match=r'the engine "ray" cannot undo a void round'):
        ps.run("gd", ps.Problem(quadratics(3)), rounds=1, engine=engines(2), network="mobile")


def test_a_ray_that_does_not_start_is_one_sentence(monkeypatch: Any) -> None:
    def too_late(*_: Any, **__: Any) -> None:
        raise Exception("The current node timed out during startup.\nMore.")

    monkeypatch.setattr(ray, "init", too_late)
    with pytest.raises(EngineError, match=r"^Ray did not start on this machine \(The current node timed out"):
        start_here()


@pytest.mark.parametrize(
    ("gcs", "mode", "warned"),
    [
        ("127.0.0.2:6379", None, False),
        ("localhost:6379", None, False),
        ("[::1]:6379", None, False),
        ("10.0.0.5:6379", None, True),
        ("10.0.0.5:6379", "disabled", True),
        ("head.example.org:6379", "token", False),
    ],
)
def test_a_cluster_without_token_is_warned_about(gcs: str, mode: str | None, warned: bool, monkeypatch: Any) -> None:
    monkeypatch.setattr(ray, "get_runtime_context", lambda: SimpleNamespace(gcs_address=gcs))
    monkeypatch.setenv("RAY_AUTH_MODE", mode or "")
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        warn_if_exposed()
    assert ["RAY_AUTH_MODE=token" in str(w.message) for w in told] == [True] * warned


def test_the_example_cluster_is_one_for_rays_launcher() -> None:
    """Checked by Ray's own schema; its start commands ask for the token."""
    util = pytest.importorskip("ray.autoscaler._private.util")
    file = Path(__file__).parents[2] / "examples" / "ray" / "cluster.yaml"
    made = util.prepare_config(pytest.importorskip("yaml").safe_load(file.read_text()))
    util.validate_config(made)
    for who in ("head", "worker"):
        assert "RAY_AUTH_MODE=token" in made[f"{who}_start_ray_commands"][-1]


def test_nothing_listens_beyond_loopback() -> None:
    psutil = pytest.importorskip("psutil")
    bound = set()
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            bound |= {c.laddr.ip for c in process.net_connections("tcp") if c.status == psutil.CONN_LISTEN}
    assert bound
    assert bound <= {"127.0.0.1", "::ffff:127.0.0.1", "::1"}


@pytest.mark.parametrize("option", [{"actors": 0}, {"cores": 0}, {"deadline": 0.0}, {"deadline": float("inf")}])
def test_bad_options_are_refused(option: dict[str, Any]) -> None:
    with pytest.raises(ps.InputError, match=next(iter(option))):
        RayEngine(**option)


def test_the_result_says_where_the_time_went(engines: Engines) -> None:
    about = run(NAMED["scaffnew"], NAMED["scaffnew"].rows(), engines(2)).summary["cluster"]
    assert about["actors"] == 2
    assert about["rounds_per_second"] > 0
    shares = [about[f"share_{k}"] for k in ("local", "waiting", "communication")]
    assert min(shares) >= 0
    assert sum(shares) == pytest.approx(1.0)


# -- on other numbers of actors, and faults: last in the file, so that processes are seldom started anew ---------------


def test_newton_goes_on_from_its_folder(engines: Engines, tmp_path: Path) -> None:
    """Cut at each round of its search, and resumed on more actors."""
    rng = np.random.Generator(np.random.Philox(1))
    A = rng.standard_normal((200, 3))
    model = ps.Poisson(A, rng.poisson(5e4 * np.exp(A @ [0.5, 0.3, -0.2])), intercept=True)
    problem, cuts = ps.split(model, 5, by="iid"), (1, 3, 6)
    for rounds in cuts:
        part = ps.run("newton", problem, rounds=rounds, engine=engines(2), out=tmp_path / str(rounds))
        near(part, ps.run("newton", problem, rounds=rounds), 1e-10)
    whole = ps.run("newton", problem, rounds=9)
    for rounds in cuts:
        near(ps.resume(tmp_path / str(rounds), problem, rounds=9, engine=engines(3)), whole, 1e-10)


class Killer(threading.Thread):
    """Kills workers at random moments of a run, whatever they are doing: one of them, or all."""

    def __init__(self, engine: RayEngine, everyone: bool, seed: int) -> None:
        super().__init__(daemon=True)
        self.engine, self.everyone, self.rng = engine, everyone, random.Random(seed)
        self.killed, self.over = 0, threading.Event()

    def on_run_start(self, config: Any) -> None:
        self.start()

    def on_run_end(self, result: Any) -> None:
        self.over.set()
        self.join(60)

    def on_record(self, step: int, metrics: Any) -> None:
        while step >= 100 and self.killed == 0:  # the run must outlast the first kill
            time.sleep(0.01)

    def run(self) -> None:
        while self.killed < 2 and not self.over.wait(self.rng.uniform(0.0, 0.5)):
            actors = range(len(self.engine.pool.handles))
            for actor in actors if self.everyone else [self.rng.choice(actors)]:
                with suppress(Exception):  # it is being replaced
                    kill(self.engine, actor)
                    self.killed += 1


@pytest.mark.parametrize("name", thinned(["scaffnew", "scaffnew-cohort"]))
def test_killed_workers_change_nothing(name: str, engines: Engines) -> None:
    row, everyone = NAMED[name], name == "scaffnew-cohort"
    problem = row.rows(sparse=True).with_batch(6)
    engine = engines(3)
    killer = Killer(engine, everyone, seed=len(name))
    result = run(row, problem, engine, rounds=120, every=5, callbacks=(killer,))
    assert killer.killed > 0
    near(result, run(row, problem, rounds=120, every=5), 1e-12)
    recoveries = result.summary["cluster"]["recoveries"]
    assert recoveries
    assert all(0 <= r["round"] - r["from_round"] <= 5 for r in recoveries)
    assert len([w for w in result.warnings if "the run went on from round" in w]) == len(recoveries)


@pytest.mark.slow
def test_no_room_for_an_actor() -> None:
    problem = NAMED["scaffnew"].rows()
    warned = r"^the actors need 100 CPUs and the cluster has 6; some actors wait for mach"
    said = r"^the actor with clients 0 to 3 did not start within 8 seconds; use fewer"
    with pytest.warns(FullClusterWarning, match=warned), pytest.raises(EngineError, match=said):
        run(NAMED["scaffnew"], problem, RayEngine(1, cores=100, deadline=8))


@pytest.mark.parametrize("mood", thinned(["fails", "fails oddly", "sleeps"]))
def test_a_client_that_does_not_answer(mood: str, engines: Engines) -> None:
    sentence = {
        "fails": r"^client 1 failed with ZeroDivisionError: the data are gone\.$",
        "fails oddly": r"^client 1 failed with [^\n]*sensor broken\.$",
        "sleeps": r"^the actor with client 1 did not (finish round \d+|answer) within 8 seconds; check its machine",
    }[mood]
    problem = ps.Problem([Moody(), Moody(mood, 60)])
    engine = engines(3)
    impatient = Watch(start=lambda: setattr(engine.pool, "deadline", 8.0))
    with pytest.raises(EngineError, match=sentence):
        ps.run(ps.Scaffnew(0.5, 0.5), problem, rounds=1000, engine=engine, callbacks=(impatient,))
    assert engine.pool is None  # no actor is left behind
