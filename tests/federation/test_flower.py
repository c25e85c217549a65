"""The Flower apps on a grid in this process: the cpu engine's bytes, memory on disk, deadlines, refusals."""

import json
import threading
import warnings
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import proxskip as ps

flwr = pytest.importorskip("flwr", reason="flwr is not installed")

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Error, Message, MetricRecord, RecordDict  # noqa: E402
from flwr.clientapp.mod import LocalDpMod, fixedclipping_mod, message_size_mod  # noqa: E402
from flwr.common.serde import recorddict_to_proto  # noqa: E402
from flwr.serverapp import Grid  # noqa: E402
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping  # noqa: E402

from proxskip import flower  # noqa: E402
from proxskip.flower import Federated, client_app, driver, from_arrays, from_svmlight, nodes  # noqa: E402
from proxskip.flower.envelope import wrap  # noqa: E402
from proxskip.types import GradientWarning  # noqa: E402
from support.grid import Clock, Here, app_of  # noqa: E402
from support.lockstep import CENTRAL, forms_of  # noqa: E402
from support.methods import NAMED, Row  # noqa: E402
from support.problems import WEIGHTS, OwnProx, few_steps, quadratics  # noqa: E402
from support.tiers import thinned  # noqa: E402

pytestmark = [pytest.mark.flower, pytest.mark.usefixtures("home")]
rows = NAMED["scaffnew"].rows


def scaffnew(problem: ps.Problem) -> ps.Scaffnew:
    return ps.Scaffnew(1 / problem.L_max, 0.4)


def quad_app(**options: Any) -> Any:
    return app_of(ps.Problem(quadratics(4)), **options)


def start(app: Any, method: Any = scaffnew, rounds: int = 3, hook: Any = None, **options: Any) -> Any:
    """A federation of four nodes, or on the grid that is given in the place of the app."""
    grid = app if isinstance(app, Grid) else Here(app, 4, hook or (lambda node, message: False))
    return Federated(method, 4, **options).start(grid, num_rounds=rounds)


def is_hello(message: Message) -> bool:
    return bool(message.metadata.group_id == "hello")


@pytest.mark.parametrize("row", thinned(CENTRAL[::3], 2))
def test_a_run_is_the_cpu_engines_bit_for_bit(row: Row, clock: Clock) -> None:
    """Of the methods in test_protocol some: here the same messages travel in Flower's."""
    problem = row.rows().with_batch(4 if row.claims("batch") else None)
    method, n = row.make(problem), problem.n
    given = {
        "weights": "rows" if row.weights else "equal",
        "psi": problem.psi,
        "batch": problem.batch,
        "allow_unsafe_step": True,
    }
    for closing, cohort in forms_of(row, problem):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ps.UnsafeStepWarning)
            run = Federated(method, n, closing=closing, cohort=row.cohort, seed=3, **given)
            out = run.start(Here(app_of(problem), n), num_rounds=12)
            judge = ps.run(method, problem, rounds=12, seed=3, cohort=cohort, allow_unsafe_step=True)
        assert np.array_equal(out.x, judge.x)
        assert out.summary["f"] == pytest.approx(judge.summary["f"], rel=1e-12)
        assert out.summary["grad_norm"] == pytest.approx(judge.summary["grad_norm"], rel=1e-9)
        if not row.name.startswith("5gcs-"):  # whose clients end their steps by themselves; the server knows the most
            assert out.summary["iterations"] == judge.summary["iterations"]


@pytest.mark.parametrize("kind", ["poisson", "cox"])
def test_newton_on_models_of_the_clients_own_rows(kind: str, clock: Clock) -> None:
    rng = np.random.Generator(np.random.Philox(2))
    A, site = rng.standard_normal((80, 3)), np.arange(80) % 4
    model: Any = ps.Poisson(A, rng.poisson(900.0, 80), intercept=True, l2=0.1)
    if kind == "cox":
        model = ps.Cox(A, rng.integers(1, 9, 80), rng.random(80) < 0.7, l2=0.1)
    problem = ps.split(model, by="group", groups=site)
    out = start(app_of(problem), ps.Newton(), 10, weights="rows")
    assert np.array_equal(out.x, ps.run("newton", problem, rounds=10).x)
    assert np.linalg.norm(problem.gradient(out.x)) < 1e-9
    # ten rounds, and one measurement at the end
    assert out.summary["floats_up"] == 10 * 4 * (1 + problem.d * (problem.d + 3) // 2) + 4 * problem.d


def test_newton_is_refused_where_a_client_has_no_hessian(clock: Clock) -> None:
    class Bare:
        d, L, mu = 4, 1.0, 1.0

        def value(self, x: Any) -> float:
            return 0.5 * float(x @ x)

        def gradient(self, x: Any) -> Any:
            return x.copy()

    with pytest.raises(ps.InputError, match="newton needs the Hessian of every client"):
        start(client_app(lambda context: Bare()), ps.Newton())


@pytest.mark.parametrize("batch", [None, 4])
def test_the_theorems_parameters_from_what_the_clients_say(batch: int | None, clock: Clock) -> None:
    """L, mu and with minibatches A come from the clients; the parameters are those of a run with all data in one place."""
    problem = rows().with_batch(batch)
    out = start(app_of(problem), ps.Scaffnew.theory, 9, closing="everyone", batch=batch, seed=1)
    judge = ps.run(ps.Scaffnew.theory(problem), problem, rounds=9, seed=1)
    assert out.summary["gamma"] == pytest.approx(judge.summary["gamma"])
    assert np.allclose(out.x, judge.x, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize(
    ("make", "psi"), [(ps.Scaffnew.theory, None), (ps.FiveGCS.theory, None), (ps.FiveGCS.theory, ps.prox.L1(0.01))]
)
def test_cohorts_weights_and_the_tolerance(make: Any, psi: Any, clock: Clock) -> None:
    problem = ps.Problem(quadratics(4), WEIGHTS, psi=psi)
    options: dict[str, Any] = {"cohort": 3, "weights": WEIGHTS, "tol": 1e-5, "measure": 10, "psi": psi}
    out = start(app_of(problem), lambda p: make(p, cohort=3), 2000, **options)
    assert out.success
    assert out.summary["grad_norm"] <= 1e-5
    assert problem.solution is not None
    assert np.linalg.norm(out.x - problem.solution.x) <= 1e-3
    assert "reached the tolerance after" in str(out)
    assert sum(out.summary["participation"].values()) == 3 * out.summary["rounds"]


@pytest.mark.parametrize("on_disk", [True, False])
@pytest.mark.parametrize(("name", "upload"), [("scaffnew", "float32"), ("locodl", "float64"), ("scaffnew", "float64")])
def test_a_question_that_is_asked_again_has_the_same_answer(
    name: str, upload: str, on_disk: bool, clock: Clock
) -> None:
    """Byte for byte, from the disk as from the Context alone, and the run is that of one where nobody asks twice."""
    problem = rows()
    app = app_of(problem, on_disk=on_disk)
    again = 0

    def twice(message: Message, context: Context) -> Message:
        nonlocal again
        first: Message = app(message, context)
        if is_hello(message):
            return first
        second: Message = app(message, context)
        answers = [bytes(m.content["proxskip.bytes"]["message"].data) for m in (first, second)]
        assert answers[0] == answers[1]
        again += 1
        return second

    method = NAMED[name].make(problem)
    once, doubled = (start(one, method, 6, closing="everyone", upload=upload, seed=3) for one in (app, twice))
    assert again >= 24
    assert once.x.tobytes() == doubled.x.tobytes()


def test_arrays_come_back_in_their_shapes(clock: Clock) -> None:
    problem = ps.Problem(quadratics(4))
    start = ArrayRecord({"a": Array(np.ones((1, 2), np.float32)), "b": Array(np.zeros(problem.d - 2))})
    seen = []

    def evaluate(round: int, arrays: ArrayRecord) -> MetricRecord:
        seen.append((round, arrays["a"].numpy().shape))
        return MetricRecord({"round": round})

    out = Federated(scaffnew, 4).start(Here(app_of(problem), 4), start, num_rounds=3, evaluate_fn=evaluate)
    assert seen == [(r, (1, 2)) for r in range(4)]
    assert out.arrays["a"].numpy().dtype == np.float32
    assert np.allclose(np.concatenate([v.numpy().ravel() for v in out.arrays.values()]), out.x, rtol=1e-6)
    assert set(out.evaluate_metrics_serverapp) == {0, 1, 2, 3}


def test_what_is_sent_is_little_more_than_the_vectors(clock: Clock) -> None:
    """One vector each way a round; everything beside it, as Flower serialises it, within two percent of 160 kB.

    Of the step sizes, every client is told its own, so that messages do not grow with their number.
    """
    d, gammas = 20_000, (0.2, 0.3)
    problem = ps.Problem([ps.Quadratic(np.full(d, 1.0 + i), np.ones(d)) for i in range(2)])
    sizes, told = [], set()

    def weighed(message: Message, context: Context) -> Message:
        if not is_hello(message):
            told.add(json.loads(str(message.content["proxskip"]["words"]))["parameters"]["gamma"])
        reply: Message = app_of(problem)(message, context)
        sizes.extend(len(recorddict_to_proto(m.content).SerializeToString()) for m in (message, reply))
        return reply

    Federated(ps.Scaffnew(gammas, 0.5), 2, audit=0).start(Here(weighed, 2), num_rounds=5)
    assert sum(size > 8 * d for size in sizes) >= 2 * 2 * 5
    assert max(sizes) <= 1.02 * 8 * d
    assert told == {*gammas}
    with pytest.raises(ps.InputError, match="the settings of a message have"):
        wrap(None, {"gamma": [0.123456789] * 100_000})


# -- restarts ----------------------------------------------------------------------------------------------------------
class Restarting(Here):
    """Node 2's process starts anew before each of its messages from the 5th on; at the 9th its disk is spoilt."""

    def __init__(self, app: Any, home: Path, fault: str = "") -> None:
        super().__init__(app, 4, self.restart)
        self.home, self.fault, self.messages = home, fault, 0

    def restart(self, node: int, message: Message) -> bool:
        self.messages += node == 102
        if node == 102 and self.messages >= 5:
            self.contexts[102] = self.context(2, 4)
        for file in self.home.glob("*/client-2*") if node == 102 and self.messages == 9 else ():
            if self.fault == "wiped":
                file.unlink()
            elif self.fault == "cut short":
                file.write_bytes(file.read_bytes()[:-9])
        return False


def test_a_restarted_node_goes_on_from_its_disk(clock: Clock, home: Path) -> None:
    problem = rows()
    method = scaffnew(problem)
    out = start(Restarting(app_of(problem), home), method, 12, closing="everyone", seed=3)
    assert np.array_equal(out.x, ps.run(method, problem, rounds=12, seed=3).x)
    assert out.summary["counts"]["lost"] == 0


@pytest.mark.parametrize("fault", ["wiped", "cut short", "no disk"])
def test_a_lost_memory_is_reported_and_repaired(fault: str, clock: Clock, home: Path) -> None:
    on_disk = fault != "no disk"
    out = start(Restarting(app_of(rows(), on_disk=on_disk), home, fault), rounds=900, tol=1e-4, measure=20)
    assert out.success
    assert any("client-2 has lost its memory" in note for note in out.summary["warnings"])
    assert home.exists() == on_disk
    assert out.summary["counts"]["repaired"] == 1 if on_disk else out.summary["counts"]["lost"] > 1
    assert not on_disk or out.summary["sum_h"] <= 1e-12


def test_a_server_goes_on_from_its_folder(clock: Clock, tmp_path: Path) -> None:
    """Killed in the middle of a round."""
    problem = rows()
    method, app = scaffnew(problem), app_of(problem)

    class Killed(Exception): ...

    def kill(node: int, message: Message) -> bool:
        if message.metadata.group_id == "9" and node == 102:
            raise Killed
        return False

    options: dict[str, Any] = {"closing": "everyone", "seed": 3, "audit": 0}
    grid = Here(app, 4, kill)
    with pytest.raises(Killed):
        start(grid, method, 12, folder=tmp_path / "server", **options)
    grid.hook = lambda node, m: False
    out, whole = start(grid, method, 12, folder=tmp_path / "server", **options), start(app, method, 12, **options)
    assert np.array_equal(out.x, ps.run(method, problem, rounds=12, seed=3).x)
    for name in ("rounds", "vectors_up", "grad_evals", "passes"):
        assert out.summary[name] == whole.summary[name]
    assert out.summary["bytes_up"] == pytest.approx(
        whole.summary["bytes_up"], rel=0.01
    )  # numbers of tickets have digits
    for name in ("exchanges", "local_steps"):  # the round that was under way was asked for again
        assert whole.summary[name] <= out.summary[name] <= 2 * whole.summary[name]


def test_a_federation_has_a_result_as_a_run_has_and_its_folder_gives_it_back(clock: Clock, tmp_path: Path) -> None:
    problem = rows()
    method, folder = scaffnew(problem), tmp_path / "server"
    out = start(app_of(problem), method, 12, folder=folder, measure=1, tol=1e-300)
    alone = ps.run(method, problem, rounds=12)
    assert isinstance(out, ps.Result)
    assert (out.status, out.success, out.message) == (ps.Status.LIMIT, False, out.summary["message"])
    assert out.trace["round"].tolist() == alone.trace["round"].tolist()
    np.testing.assert_allclose(out.trace["grad_norm"], alone.trace["grad_norm"], rtol=1e-9)
    assert np.all(np.diff(out.trace["bytes_up"]) > 0)
    assert ps.plot([out], y="grad_norm").lines[0].get_ydata().tolist() == out.trace["grad_norm"].tolist()
    assert "x" in repr(out)
    assert "12 rounds" in repr(out)
    read = ps.load(folder)
    assert (read.status, read.message, read.warnings) == (out.status, out.message, out.warnings)
    assert np.array_equal(read.x, out.x)
    assert read.summary == json.loads(json.dumps(out.summary))
    assert read.participation.tolist() == list(out.summary["participation"].values())
    for column in out.trace.columns:
        np.testing.assert_array_equal(read.trace[column], out.trace[column])
    # what a client happened to do is no setting
    again = start(app_of(problem), method, 12, measure=1, tol=1e-300, audit=0)
    assert again.summary.settings == out.summary.settings


def test_a_federation_that_was_killed_is_loaded_as_it_stood(clock: Clock, tmp_path: Path) -> None:
    problem = rows()

    def kill(node: int, message: Message) -> bool:
        if message.metadata.group_id == "9":
            raise KeyboardInterrupt
        return False

    with pytest.raises(KeyboardInterrupt):
        start(Here(app_of(problem), 4, kill), scaffnew(problem), 12, folder=tmp_path / "server", audit=0, measure=1)
    read = ps.load(tmp_path / "server")
    assert read.status is ps.Status.INTERRUPTED
    assert 0 < read.rounds < 12
    whole = start(app_of(problem), scaffnew(problem), 12, folder=tmp_path / "server", audit=0, measure=1)
    assert whole.trace["round"].tolist() == list(range(13))


def test_a_round_closes_at_its_deadline_without_the_client_that_hangs(clock: Clock) -> None:
    out = start(quad_app(), hook=lambda node, m: node == 103 and not is_hello(m), deadline=30.0, audit=0)
    seconds = [float(m["seconds"]) for m in out.train_metrics_clientapp.values()]
    assert len(seconds) == 3
    assert all(30.0 <= s <= 33.0 for s in seconds)
    assert any("client-3 missed the deadline of round 0" in note for note in out.warnings)
    assert "the answer leaves out client-3" in out.warnings[-1]


def test_waiting_ends_with_those_who_are_missing(clock: Clock) -> None:
    said = r"3 of 5 clients after 20 s \(client-0, client-1, client-2\), missing partition 3, partition 4"
    with pytest.raises(ps.InputError, match=said):
        Federated(scaffnew, 5, wait=20.0).start(Here(quad_app(), 3), num_rounds=2)
    assert 20.0 <= clock.now <= 22.0


def test_an_error_reply_is_asked_again_within_the_deadline(clock: Clock) -> None:
    failed: set[str] = set()

    def flaky(node: int, message: Message) -> Any:
        ticket = message.metadata.group_id
        if node == 101 and ticket not in failed:
            failed.add(ticket)
            return Error(0, "<class 'IndexError'>:<'pop from empty list'>") if ticket == "hello" else Error(5, "Away")
        return False

    out = start(quad_app(), rounds=4, hook=flaky, deadline=60.0, closing="everyone")
    assert out.summary["rounds"] == 4
    assert out.summary["counts"]["void"] == 0


class Moving(Here):
    """Client 1 comes back as node 777 in the third exchange."""

    def __init__(self, app: Any) -> None:
        super().__init__(app, 4, self.move)

    def move(self, node: int, message: Message) -> bool:
        if message.metadata.group_id == "3" and 101 in self.contexts:
            self.contexts[777] = Context(7, 777, self.contexts.pop(101).node_config, RecordDict(), {})
        return False


def test_a_client_that_comes_back_as_another_node_is_known_by_its_partition(clock: Clock) -> None:
    out = start(Moving(quad_app()), rounds=8, deadline=60.0)
    assert out.summary["participation"]["client-1"] >= 7
    assert out.summary["counts"]["lost"] == 0


# -- refusals ----------------------------------------------------------------------------------------------------------
def test_clients_that_do_not_fit_are_refused_before_round_zero(clock: Clock) -> None:
    uneven = (*ps.Problem(quadratics(4)).clients[:3], ps.Quadratic(np.ones(5), np.ones(5)))
    with pytest.raises(ps.InputError, match="client-3 has 5 unknowns but client-0 has 4"):
        start(client_app(lambda context: uneven[int(context.node_config["partition-id"])]))
    with pytest.raises(ps.InputError, match="gamma"):
        start(quad_app(), ps.Scaffnew(100.0, 0.5))
    with pytest.raises(ps.InputError, match="ZeroDivisionError"):
        start(quad_app(), hook=lambda node, m: Error(2, "Traceback ...\nZeroDivisionError: division by zero"), wait=5.0)
    for config, said in (
        ({"partition-id": 1}, "two nodes claim to be partition 1"),
        ({"partition-id": 3, "name": "client-0"}, 'two clients have the name "client-0"'),
    ):
        grid = Here(quad_app(), 4)
        grid.contexts[103].node_config = config
        with pytest.raises(ps.InputError, match=said):
            start(grid)


def test_what_changes_updates_on_their_way_is_refused() -> None:
    for mod in (fixedclipping_mod, LocalDpMod(1.0, 1.0, 1.0, 1e-5)):
        with pytest.raises(ps.InputError, match="sum_i w_i h_i would not stay zero"):
            quad_app(mods=[mod])
    quad_app(mods=[message_size_mod])
    wrapped = DifferentialPrivacyServerSideFixedClipping(Federated(scaffnew, 4), 1.0, 1.0, 4)
    with pytest.raises(ps.InputError, match="runs its own rounds"):
        wrapped.configure_train(1, ArrayRecord(), ConfigRecord(), Here(quad_app(), 4))


@pytest.mark.parametrize("option", [{"upload": "float16"}, {"deadline": 0.0}, {"wait": float("inf")}, {"clients": 0}])
def test_settings_that_make_no_sense_are_refused(option: dict[str, Any]) -> None:
    with pytest.raises(ps.InputError, match=next(iter(option))):
        Federated(scaffnew, **({"clients": 4} | option))


@pytest.mark.parametrize("words", [None, "[" * 60_000, "{", "[]", '{"gradients": ' + "9" * 5000 + "}", "x" * (1 << 17)])
def test_replies_that_are_not_ours_are_counted_and_dropped(words: str | None, clock: Clock) -> None:
    """Bytes of another kind, or these words beside them."""
    app = quad_app()

    def forged(message: Message, context: Context) -> Message:
        reply: Message = app(message, context)
        if context.node_id == 102 and not is_hello(message):
            if words is None:
                reply.content["proxskip.bytes"]["message"] = Array("uint8", (9,), "numpy.ndarray", b"\x93NUMPY...")
            else:
                reply.content["proxskip"] = ConfigRecord({"words": words})
        return reply

    out = start(forged, deadline=5.0)
    assert out.summary["counts"]["damaged"] >= 3
    assert out.summary["participation"] == {"client-0": 3, "client-1": 3, "client-2": 0, "client-3": 3}


@pytest.mark.parametrize(
    "nonsense",
    [{"d": float("inf")}, {"mu": float("nan")}, {"name": "../x"}, {"L": "no"}, {"columns": 5}, {"classes": True}],
)
def test_a_stranger_who_talks_nonsense_stays_outside(nonsense: dict[str, Any], clock: Clock) -> None:
    """A node goes, and one comes that does not say who it is: the run goes on without both."""
    app = quad_app()
    unknown = dict.fromkeys(("name", "columns", "classes", "contradiction", "noise"))
    about = {"d": 3, "N": 1, "L": 1.0, "mu": 0.1, "partition": 1, "kind": "x", "l2": 0.0, "has_hessian": True}
    about |= unknown | {"least_rows": 0} | nonsense

    def stranger(message: Message, context: Context) -> Message:
        return Message(wrap(None, about), reply_to=message) if context.node_id == 777 else app(message, context)

    out = start(Moving(stranger), rounds=6, deadline=12.0)
    assert out.summary["rounds"] == 6
    assert out.summary["participation"]["client-1"] <= 3


@pytest.mark.parametrize("everybody", [True, False])
def test_an_app_that_always_fails_is_not_waited_for(everybody: bool, clock: Clock) -> None:
    """Neither an hour of deadlines nor thousands of messages, and the sentence has the reason."""

    def raises(node: int, message: Message) -> Any:
        fails = (everybody or node == 103) and not is_hello(message)
        return Error(2, "ValueError: no such file: part-3.svm") if fails else False

    grid = Here(quad_app(), 4, raises)
    summary = start(grid, deadline=600.0).summary
    assert clock.now < 200
    assert len(grid.sent) < 150
    if everybody:
        assert summary["status"] == "INTERRUPTED"
        assert "no such file: part-3.svm" in summary["message"]
    else:
        assert (summary["rounds"], summary["participation"]["client-3"]) == (3, 0)
        assert clock.now < 100


@pytest.mark.parametrize("call", thinned(["push_messages", "pull_messages", "get_node_ids"]))
def test_a_superlink_that_falls_silent_ends_the_run(
    call: str, clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Flower asks again without end; the run ends with what it has, and can go on from its folder."""
    monkeypatch.setattr(nodes, "MIN_TIMEOUT", 3.0)
    monkeypatch.setattr(driver, "SECONDS_BETWEEN_CHECKS", 1.0)
    stopped = threading.Event()

    class Stops(Here):
        def __getattribute__(self, name: str) -> Any:
            value = super().__getattribute__(name)
            silent = name == call and len(super().__getattribute__("sent")) >= 20
            return (lambda *args: stopped.wait(200)) if silent else value

    lost = lambda node, message: call == "get_node_ids" and message.metadata.group_id == "4"  # noqa: E731
    out = start(Stops(quad_app(), 4, lost), rounds=8, folder=tmp_path / "run", wait=3.0, deadline=3.0)
    stopped.set()
    assert out.summary["status"] == "INTERRUPTED"
    assert "the SuperLink did not answer within" in out.summary["message"]
    assert 0 < out.summary["rounds"] < 8
    assert start(quad_app(), rounds=8, folder=tmp_path / "run").summary["rounds"] == 8


def test_a_folder_of_another_run_is_refused(clock: Clock, tmp_path: Path) -> None:
    """The same run goes on with more rounds."""

    def go(rounds: int, app: Any = None, **options: Any) -> Any:
        return start(app or quad_app(), rounds=rounds, folder=tmp_path / "run", **options)

    go(2)
    for options, reason in (
        ({"weights": WEIGHTS}, "weights"), ({"closing": "everyone"}, "closing"), ({"upload": "float32"}, "itemsize"),
        ({"seed": 1}, "seed: saved 0, now 1"), ({"app": quad_app(noise=flower.Noise(1.0, 0.1))}, "noise"),
    ):  # fmt: skip
        with pytest.raises(ps.InputError, match=f"holds another run: .*{reason}"):
            go(4, **options)
    assert np.array_equal(go(4).x, start(quad_app(), rounds=4).x)


def test_oracles_from_arrays_and_files(tmp_path: Path) -> None:
    (tmp_path / "part.svm").write_text("+1 1:1\n-1 2:2\n")
    two = from_svmlight(tmp_path / "part.svm", features=5, l2=0.1)
    one = from_arrays(np.diag([1.0, 2.0, 0.0, 0.0, 0.0])[:2], np.array([1.0, -1.0]), l2=0.1)
    x = np.linspace(-0.2, 0.3, 5)
    assert np.allclose(one.gradient(x), two.gradient(x))


def test_a_client_may_lack_classes_but_not_have_others() -> None:
    """Labels mean the same on every client, also where a client has one class only."""
    rng = np.random.Generator(np.random.Philox(6))
    A, b = rng.standard_normal((30, 4)), np.repeat([0, 1, 2], 10)
    x = rng.standard_normal(12)
    whole = ps.split(ps.Softmax(A, b, l2=0.1), clients=3, by="label")
    for i in range(3):
        alone = from_arrays(A[b == i], b[b == i], loss="softmax", l2=0.1, classes=(0, 1, 2))
        assert np.array_equal(alone.gradient(x), whole.clients[i].gradient(x))
        assert alone.N == 10
    assert np.array_equal(from_arrays(A[:5], np.full(5, -1.0), l2=0.1).b, np.full(5, -1.0))
    for options, said in (
        ({"loss": "softmax", "classes": (0, 1)}, "label 2"),
        ({"loss": "hinge"}, "hinge"),
        ({"l2_relative": 0.1}, "its own lambda"),
    ):
        with pytest.raises(ps.InputError, match=said):
            from_arrays(A, b, **options)


@pytest.mark.torch
def test_a_network_trains_in_a_federation(clock: Clock) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    torch.manual_seed(0)
    centres = torch.tensor([[2.0, 0.0], [-2.0, 0.0], [0.0, 2.0]])

    def make(context: Context) -> Any:
        i = int(context.node_config["partition-id"])
        torch.manual_seed(10)
        module = torch.nn.Sequential(torch.nn.Linear(2, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
        inputs = centres[i] + 0.3 * torch.randn(30, 2)  # one class a client
        return flower.from_torch(module, torch.nn.functional.cross_entropy, inputs, torch.full((30,), i), l2=1e-3)

    net = make(Context(0, 0, {"partition-id": 0}, RecordDict(), {}))
    start = ArrayRecord({"x": Array(net.start())})
    out = Federated(ps.Scaffnew(0.2, 0.2), 3, batch=10, seed=1).start(Here(client_app(make), 3), start, num_rounds=40)
    assert (net.module_at(out.x)(centres).argmax(dim=1) == torch.arange(3)).all()
    assert out.summary["sum_h"] <= 1e-12


def shifted(f: Any) -> Any:
    """f with the gradient of another function, as a function of one's own."""
    return SimpleNamespace(value=f.value, gradient=lambda x: f.gradient(x) + 1.0, L=f.L, mu=f.mu, d=f.d)


@pytest.mark.parametrize("noise", [None, flower.Noise(10.0, 0.0)])
def test_a_site_whose_gradient_does_not_belong_to_its_value_is_named(noise: Any, clock: Clock) -> None:
    """Only the site can compare the two; one that adds noise does not tell, since that quotes its slopes."""
    clients = list(quadratics(4))
    clients[2] = shifted(clients[2])
    app = client_app(lambda context: clients[int(context.node_config["partition-id"])], noise=noise)
    if noise is not None:
        assert start(app, measure=None).status is ps.Status.LIMIT
        return
    with pytest.warns(GradientWarning, match=r"^client 2 \(client-2\): the gradient of f does not belong to its value"):
        out = start(app, rounds=2000, tol=1e-3, measure=20)
    assert (out.status, out.success) == (ps.Status.INEXACT, False)
    assert "which proves nothing: client 2 (client-2)" in out.message
    assert any("client 2 (client-2)" in note for note in out.warnings)


@pytest.mark.parametrize(
    ("psi", "doubt"),
    [
        (few_steps(0.5, 1), "is inexact, by about"),
        (OwnProx(lambda x, t: np.maximum(x - 0.05 * t, 0.0), ps.prox.L1(0.05)), "does not belong to its value"),
        (OwnProx(ps.prox.L1(0.05).prox, ps.prox.L1(0.05)), None),
    ],
)
def test_a_federation_does_not_converge_by_a_wrong_prox(psi: Any, doubt: str | None, clock: Clock) -> None:
    out = start(quad_app(), lambda p: ps.ProxGD(1 / p.L_max), 3000, psi=psi, tol=1e-6, measure=20)
    assert out.status is (ps.Status.CONVERGED if doubt is None else ps.Status.INEXACT)
    assert doubt is None or f"which proves nothing: the prox of OwnProx {doubt}" in out.message


def test_a_federation_goes_on_until_the_error_of_the_prox_fits_into_the_tolerance(clock: Clock) -> None:
    error, exact = 1e-4, ps.prox.L1(0.05)
    problem = ps.Problem(quadratics(4))
    off = np.full(problem.d, error / np.sqrt(problem.d)) / problem.L_average
    psi = OwnProx(lambda x, t: exact.prox(x, t) + off, exact)
    out = start(quad_app(), lambda p: ps.ProxGD(1 / p.L_max), 3000, psi=psi, tol=3 * error, measure=1)
    assert out.status is ps.Status.CONVERGED
    assert out.summary["grad_norm"] <= 2 * error


@pytest.mark.parametrize("some", [True, False])
def test_no_step_size_follows_from_an_L_that_is_not_known(some: bool, clock: Clock) -> None:
    """Neither where no client knows its L nor where one does not: the step would be that of the others."""
    clients = list(rows().clients)
    for f in clients[1:2] if some else clients:
        f.L_known = False
    app = client_app(lambda context: clients[int(context.node_config["partition-id"])])
    with pytest.raises(ps.InputError, match=r"client-1.* is unknown, so no step size follows"):
        start(app, lambda p: ps.LocalGD.theory(p, K=5))
    assert start(app, ps.LocalGD(0.01, 5)).summary["rounds"] == 3


@pytest.mark.usefixtures("own_methods")
@pytest.mark.parametrize("n", [2, 4])
def test_a_tuple_of_a_plugin_reaches_every_client_whole(n: int, clock: Clock) -> None:
    """Its entries are not one for each client, whether there are more of them than clients, fewer or as many."""

    @ps.core.register
    @dataclass(frozen=True)
    class Schedule(ps.core.Method):
        gamma: Any
        factors: tuple[float, ...] = (1.0, 0.5, 0.25)
        shares: tuple[float, ...] = ()
        about = ps.core.About(name="schedule")

        def round(self, server: Any, exchange: Any) -> Any:
            return {"x": exchange(self.local, server["x"], K=1)[0]}

        def local(self, client: Any, memory: Any, K: Any, x: Any) -> Any:
            for factor in self.factors:
                x = client.descend(x, 0.0, factor * client.own(self.shares) * client.own(self.gamma), K)
            return (client.send(x),), {}

    problem = ps.Problem(quadratics(n))
    gamma = tuple((0.5 + np.arange(n) / 10) / problem.L_max)
    for factors in ((1.0, 0.5, 0.25), tuple(0.9 ** np.arange(n)), (0.7,)):
        method = Schedule(gamma, factors, shares=tuple(1 / (2.0 + np.arange(n))))
        out = Federated(method, n, closing="everyone").start(Here(app_of(problem), n), num_rounds=5)
        assert out.x.tobytes() == ps.run(method, problem, rounds=5).x.tobytes()


# -- tables of standard errors -----------------------------------------------------------------------------------------
def patients(rows: int = 120) -> ps.Problem:
    """Times at four sites, one of them without an event."""
    rng = np.random.default_rng(2)
    A = rng.standard_normal((rows, 3))
    time = np.ceil(9 * rng.exponential(np.exp(-A @ [0.5, -0.3, 0.0])))
    site = np.arange(rows) % 4
    event = (rng.random(rows) > 0.2) & (site != 3)
    return ps.split(ps.Cox(A, time, event), by="group", groups=site)


@pytest.mark.parametrize(
    "method",
    [ps.Newton(), pytest.param(lambda p: ps.Scaffnew(gamma=1 / p.L, p=0.3), marks=pytest.mark.slow)],
    ids=["newton", "scaffnew"],
)
def test_a_table_of_a_federation_is_that_of_a_run(method: Any, clock: Clock) -> None:
    problem = patients()
    out = start(app_of(problem), method, 2000, weights="rows", tol=1e-10, measure=20, inference=True)
    assert out.success
    found, judge = (
        out.inference(level=0.9),
        ps.run(ps.Newton(), problem, tol=1e-12, rounds=30).inference(problem, level=0.9),
    )
    for name in ("estimate", "covariance", "low", "high"):
        np.testing.assert_allclose(getattr(found, name), getattr(judge, name), rtol=1e-7, atol=1e-9)
    assert repr(found).splitlines()[0] == "Cox regression: 120 rows on 4 clients; errors from the Hessian"
    assert [line.split() for line in repr(found).splitlines()] == [line.split() for line in repr(judge).splitlines()]


def test_a_folder_gives_the_table_of_its_federation_back(clock: Clock, tmp_path: Path) -> None:
    options = {"weights": "rows", "tol": 1e-10}
    asked, plain = (
        start(app_of(patients()), ps.Newton(), 40, inference=asks, folder=tmp_path / str(asks), **options)
        for asks in (True, False)
    )
    read = ps.load(tmp_path / "True")
    assert repr(read.inference(level=0.9)) == repr(asked.inference(level=0.9))
    assert plain.success
    with pytest.raises(ps.InputError, match="the rows are not in the result; pass the problem that was run"):
        ps.load(tmp_path / "False").inference()


def test_a_table_costs_one_more_exchange(clock: Clock) -> None:
    problem = patients()
    plain, told = (
        start(app_of(problem), ps.Newton(), 9, weights="rows", inference=inference) for inference in (False, True)
    )
    assert told.summary["exchanges"] == plain.summary["exchanges"] + 1
    assert np.array_equal(told.x, plain.x)
    with pytest.raises(ps.InputError, match="the clients were not asked for their Hessians"):
        plain.inference()


def test_a_table_is_in_the_folder_and_follows_the_rounds(clock: Clock, tmp_path: Path) -> None:
    """A run that ended is asked for again from its folder; with more rounds, the Hessians are those of the new x."""
    problem, given = patients(), {"weights": "rows", "inference": True, "folder": tmp_path / "run"}
    early, again = (start(app_of(problem), ps.Newton(), 2, **given) for _ in range(2))
    assert np.array_equal(early.information.hessian, again.information.hessian)
    assert again.summary["exchanges"] == early.summary["exchanges"]
    late = start(app_of(problem), ps.Newton(), 12, **given)
    np.testing.assert_allclose(late.information.hessian, 120 * problem.whole.hessian(late.x), rtol=1e-9, atol=1e-9)
    with pytest.raises(ps.InputError, match="standard errors away"):
        early.inference()
    late.inference()


@pytest.mark.parametrize("tol", [1e-2, 1e-10])
def test_classes_that_can_be_separated_have_no_table(tol: float, clock: Clock) -> None:
    rng = np.random.default_rng(2)
    label = np.arange(120) // 4 % 2
    column = np.where(label == 1, 1.0, -1.0) * rng.uniform(1, 2, 120)
    model = ps.Logistic(np.column_stack([rng.standard_normal(120), column]), label)
    problem = ps.split(model, by="group", groups=np.arange(120) % 4)
    out = start(app_of(problem), ps.Newton(), 40, weights="rows", tol=tol, inference=True)
    with pytest.raises(ps.InputError, match=r"standard errors away; .* grows for ever along x2, by which"):
        out.inference()


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"weights": "equal"}, 'weights="rows", so that every row counts the same'),
        ({"weights": "rows", "psi": ps.prox.L1(0.1)}, "no psi and no minibatches"),
    ],
)
def test_what_has_no_table_is_refused_before_the_first_round(options: Any, reason: str, clock: Clock) -> None:
    with pytest.raises(ps.InputError, match=reason):
        start(app_of(patients()), lambda p: ps.Scaffnew(gamma=1 / p.L, p=0.3), inference=True, **options)
    with pytest.raises(ps.InputError, match="inference=True needs clients that all have the same of squared, logistic"):
        start(quad_app(), inference=True, weights="rows")


def test_sites_whose_columns_differ_are_refused(clock: Clock) -> None:
    pandas = pytest.importorskip("pandas")
    A, y = np.random.default_rng(0).standard_normal((40, 2)), np.arange(40) % 2
    names = [["age", "dose"], ["age", "dose"], ["dose", "age"], ["age", "dose"]]
    clients = [ps.Logistic(pandas.DataFrame(A, columns=n), y) for n in names]
    app = client_app(lambda context: clients[int(context.node_config["partition-id"])])
    with pytest.raises(ps.InputError, match=r"client-2 has the columns \('dose', 'age'\) but client-0 has"):
        start(app, ps.Newton())


def test_sites_whose_classes_differ_are_refused(clock: Clock) -> None:
    A, y = np.random.default_rng(0).standard_normal((40, 2)), np.arange(40) % 2
    clients = [ps.Logistic(A, labels) for labels in (y, y.astype(float), y + 1, y)]
    app = client_app(lambda context: clients[int(context.node_config["partition-id"])])
    with pytest.raises(ps.InputError, match=r"client-2 has the classes \(1, 2\) but client-0 has \(0, 1\)"):
        start(app, ps.Newton())


@pytest.mark.parametrize(
    ("rows", "least", "refused"),
    [(36, None, "sends no Hessian of fewer than 10"), (40, None, None), (36, 9, None), (40, 11, "answers nothing")],
)
def test_a_small_site_sends_no_hessian(rows: int, least: int | None, refused: str | None, clock: Clock) -> None:
    """With three unknowns ten rows are enough, unless the site says otherwise; gradients are sent by default."""
    app = app_of(patients(rows), least_rows=least)
    if refused is None:
        assert start(app, ps.Newton(), 2).summary["rounds"] == 2
    elif least is None:
        grid = Here(app, 4)
        for method, options in (ps.Newton(), {}), (ps.Scaffnew(gamma=0.1, p=0.3), {"inference": True}):
            with pytest.raises(ps.InputError, match=f"client-0 has 9 rows, and {refused}"):
                Federated(method, 4, weights="rows", **options).start(grid, num_rounds=2)
        assert all(map(is_hello, grid.sent))  # it is refused before any work
        assert start(app, lambda p: ps.Scaffnew(gamma=1 / p.L, p=0.3), 2).summary["rounds"] == 2
    else:
        with pytest.raises(ps.InputError, match=f"this site has 10 rows, and {refused} with fewer than 11"):
            start(app, ps.Newton(), 2)


def test_a_site_needs_more_rows_than_unknowns_to_send_a_hessian(clock: Clock) -> None:
    rng = np.random.default_rng(1)
    A, y = rng.standard_normal((4 * 15, 15)), rng.standard_normal(60)
    start(app_of(ps.split(ps.LeastSquares(A[:, :14], y), 4, by="contiguous")), ps.Newton(), 2)
    with pytest.raises(ps.InputError, match="client-0 has 15 rows, and sends no Hessian of fewer than 16"):
        start(app_of(ps.split(ps.LeastSquares(A, y), 4, by="contiguous")), ps.Newton(), 2)


def test_a_small_site_sends_no_hessian_whatever_the_server_asks(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proxskip.flower.tables.check_rows", lambda remotes: None)
    with pytest.raises(ps.InputError, match="this site has 9 rows, and sends no Hessian of fewer than 10"):
        start(app_of(patients(36)), ps.Newton(), 2)


def test_a_run_without_its_clients_has_no_table_and_says_so(clock: Clock) -> None:
    def fails(node: int, message: Message) -> Any:
        return False if is_hello(message) else Error(2, "ValueError: no such file: part-3.svm")

    out = Federated(ps.Newton(), 4, weights="rows", inference=True).start(Here(app_of(patients()), 4, fails))
    with pytest.raises(ps.InputError, match=r"the run ended early: have 0 of 4 clients.*no such file: part-3\.svm"):
        out.inference()
