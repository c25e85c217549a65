"""The torch engine owes what every engine owes: the reference's way, the same bytes every time, counts and resume."""

from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import proxskip as ps
from proxskip.support.randomness import minibatch
from support import methods
from support.comparing import bits, close, near
from support.methods import NAMED, Row
from support.problems import quadratics
from support.tiers import thinned

torch = pytest.importorskip("torch", reason="torch is not installed")
from proxskip.engines.torch.client_memory import ClientMemory  # noqa: E402
from proxskip.engines.torch.engine import TorchEngine  # noqa: E402
from proxskip.engines.torch.stacked_functions import Networks, family_of  # noqa: E402
from proxskip.engines.torch.stacked_steps import MOST_GRAPHS, STEPS_BEFORE_CAPTURE, StackedSteps, minibatches  # noqa: E402
from proxskip.torch import Model  # noqa: E402

METHODS = [row for row in methods.METHODS if "newton" not in row.name]  # this engine has no Hessians

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("quiet_steps")]
DEVICES = [
    "cpu",
    pytest.param("cuda", marks=[pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no card")]),
]


@pytest.fixture(autouse=True)
def full_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    """Convolutions in float32 on a card, whose default is TF32."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)


HOW = {"seed": 4, "every": 1, "allow_unsafe_step": True}


def check(method: Any, problem: ps.Problem, engine: Any, tol: float, rounds: int = 3, cohort: Any = None) -> None:
    a, b = (ps.run(method, problem, rounds=rounds, engine=e, cohort=cohort, **HOW) for e in (engine, "reference"))
    near(a, b, tol)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("row", thinned(METHODS, 30))
def test_every_method_takes_the_references_way(row: Row, device: str) -> None:
    problem = row.rows()
    check(row.make(problem), problem, TorchEngine(device), 1e-12, 6, row.cohort)


@pytest.mark.parametrize("row", thinned([r for r in METHODS if r.claims("batch")], 30))
def test_every_method_draws_the_references_minibatches(row: Row) -> None:
    problem = row.rows(sparse=True).with_batch(6)
    check(row.make(problem), problem, "torch", 1e-12, 3, row.cohort)


@pytest.mark.parametrize("batch", [5, pytest.param(None, marks=pytest.mark.slow)])
@pytest.mark.parametrize("loss", thinned(["softmax", "logistic", "squared"]))
def test_every_loss_and_clients_of_different_sizes(loss: str, batch: int | None) -> None:
    row = NAMED["scaffnew-weighted"]
    problem = row.rows(loss).with_batch(batch)
    check(row.make(problem), problem, TorchEngine("cpu", clients_at_once=3), 1e-12, 6)


@pytest.mark.parametrize("row", thinned(METHODS, 60))
def test_every_run_resumes(row: Row, tmp_path: Path) -> None:
    problem = row.quadratic()
    given: dict[str, Any] = {"engine": "torch", "cohort": row.cohort, **HOW}
    whole = ps.run(row.make(problem), problem, rounds=6, **given)
    ps.run(row.make(problem), problem, rounds=3, out=tmp_path / "run", **given)
    assert bits(ps.resume(tmp_path / "run", problem, rounds=6)) == bits(whole)


def small(kind: str = "mlp", dropout: float = 0.0) -> Any:
    """A network for 1 x 6 x 6 images of 3 classes; smooth, so that the last bits of a machine stay last bits."""
    torch.manual_seed(1)
    nn = torch.nn
    first = {"mlp": [nn.Flatten(), nn.Linear(36, 20)], "cnn": [nn.Conv2d(1, 5, 3), nn.Flatten(), nn.Linear(80, 20)]}
    return nn.Sequential(*first[kind], nn.GELU(), nn.Dropout(dropout), nn.Linear(20, 3))


def networks(kind="mlp", dtype=torch.float32, n=3, dropout=0.0, rows=14, **given) -> ps.Problem:
    """Clients that share a module, each with images of its own."""
    module, made = small(kind, dropout).to(dtype), torch.Generator().manual_seed(2)
    sizes = [rows] * n if isinstance(rows, int) else rows
    data = [(torch.randn(m, 1, 6, 6, generator=made), torch.randint(0, 3, (m,), generator=made)) for m in sizes]
    loss = torch.nn.functional.cross_entropy
    return ps.Problem([Model(module, loss, a.to(dtype) + 0.2 * i, b, **given) for i, (a, b) in enumerate(data)])


SCAFFNEW = ps.Scaffnew(0.05, 0.1, K=10)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("cohort", [2, pytest.param(None, marks=pytest.mark.slow)])
@pytest.mark.parametrize("batch", [4, pytest.param(None, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", ["cnn", pytest.param("mlp", marks=pytest.mark.slow)])
def test_networks_take_the_references_way(kind: str, batch: int | None, cohort: int | None, device: str) -> None:
    """Five rounds of ten steps by clients of different sizes: to 1e-4 in float32 and to 1e-10 in float64."""
    for dtype, tol in ((torch.float32, 1e-4), (torch.float64, 1e-10)):
        problem = networks(kind, dtype, rows=[14, 9, 14], dropout=0.3, l2=1e-3).with_batch(batch)
        check(SCAFFNEW, problem, TorchEngine(device), tol, 5, cohort)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("how", thinned([{"keep_on_host": True}, {}, {"clients_at_once": 2}, {"graphs": False}]))
def test_the_same_bytes_every_time(how: dict[str, Any], device: str) -> None:
    problem = networks("cnn", dropout=0.2).with_batch(4)
    a, b = (ps.run(SCAFFNEW, problem, rounds=3, engine=TorchEngine(device, **how), cohort=2, **HOW) for _ in range(2))
    assert bits(a) == bits(b)
    near(a, ps.run(SCAFFNEW, problem, rounds=3, engine="reference", cohort=2, **HOW), 1e-4)


def out_of_memory(act: Any, needs: Any, most: int, seen: list[int]) -> Any:
    """A device without room for more than this much."""

    def short(*given: Any) -> Any:
        seen.append(needs(*given))
        if seen[-1] > most:
            raise torch.OutOfMemoryError("no room")
        return act(*given)

    return short


@pytest.mark.slow
def test_fewer_clients_at_once_where_memory_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    """The device has room for two clients: the engine finds out, and the run is the one with two at once."""
    problem = networks("mlp", n=7).with_batch(4)
    wanted = ps.run(SCAFFNEW, problem, rounds=3, engine=TorchEngine("cpu", clients_at_once=2), **HOW)
    engine, asked, picked = TorchEngine("cpu", clients_at_once=7), [], []
    steps = out_of_memory(StackedSteps.run, lambda steps, Y, *more: len(Y), 2, asked)
    losses = out_of_memory(Networks.losses_at, lambda family, flat, there, picks, *more: picks.numel(), 5, picked)
    monkeypatch.setattr(StackedSteps, "run", steps)
    monkeypatch.setattr(Networks, "losses_at", losses)
    found = ps.run(SCAFFNEW, problem, rounds=3, engine=engine, **HOW)
    assert found.x.tobytes() == wanted.x.tobytes()
    assert all(found.memory[k].tobytes() == v.tobytes() for k, v in wanted.memory.items())
    assert (asked[:3], max(asked[3:])) == ([7, 4, 2], 2)
    assert close(found.trace["f"], wanted.trace["f"], 1e-5)
    assert picked[-1] <= 5


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("spills", [True, pytest.param(False, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("method", "cohort"),
    [
        (ps.Scaffnew(0.05, 0.5, K=2), None),
        pytest.param(ps.Scaffold(0.05, 2), 2, marks=pytest.mark.slow),
        pytest.param(ps.FedLin(0.05, 2), None, marks=pytest.mark.slow),
    ],
)
def test_memory_on_the_host_changes_nothing(method, cohort, spills, device, monkeypatch) -> None:
    """A cohort that does not fit on the device goes through it share by share."""

    class Small(ClientMemory):
        def __init__(self, *given: Any) -> None:
            super().__init__(*given)
            self.fit, self.spills = 2, True

    if spills:
        monkeypatch.setattr("proxskip.engines.torch.engine.ClientMemory", Small)
    problem = networks(dtype=torch.float64).with_batch(4)
    check(method, problem, TorchEngine(device, keep_on_host=True), 1e-10, 4, cohort)


@pytest.mark.filterwarnings("ignore:mkldnn_matmul")  # on processors without bfloat16
def test_bfloat16_works_locally_and_h_is_float32() -> None:
    problem = networks(dtype=torch.bfloat16).with_batch(4)
    a, b = (ps.run(SCAFFNEW, problem, rounds=1, engine=e, **HOW) for e in ("torch", "reference"))
    assert np.abs(a.x - b.x).max() < 0.05 * np.abs(b.x).max()
    assert np.array_equal(a.h, a.h.astype(np.float32))  # float32, and finer than bfloat16
    assert not np.array_equal(a.h, torch.tensor(a.h).bfloat16().double().numpy())


class Using(torch.nn.Module):  # type: ignore[misc]
    """A layer, used in some way, with a constant that is frozen or a buffer."""

    def __init__(self, forward: Any, layer: Any = None, factor: float = 1.0, frozen: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.using, self.layer, constant = forward, layer or torch.nn.Linear(3, 2), torch.full((3,), factor)
        self.factor = torch.nn.Parameter(constant, requires_grad=False) if frozen else torch.nn.Buffer(constant)

    def forward(self, x: Any) -> Any:
        return self.using(self.layer, x * self.factor)


def scaled(factor: float, frozen: bool) -> Any:
    return Using(lambda layer, x: layer(x), factor=factor, frozen=frozen)


LSTM = Using(lambda cells, x: cells(x[..., None])[0][:, -1], torch.nn.LSTM(1, 2, batch_first=True))
MSE, L1 = torch.nn.functional.mse_loss, torch.nn.functional.l1_loss


@pytest.mark.parametrize(
    ("modules", "losses", "says"),
    [
        ((scaled(1.0, True),) * 2, (MSE, L1), "a different module, loss or l2"),
        ((scaled(2.0, True), scaled(3.0, True)), (MSE, MSE), "other buffers or frozen parameters"),
        ((scaled(2.0, False), scaled(3.0, False)), (MSE, MSE), "other buffers or frozen parameters"),
        ((LSTM,), (MSE,), "cannot batch this module"),
        ((Using(lambda layer, x: layer(x) * (x.data_ptr() > 0)),), (MSE,), "cannot batch this module"),
        ((Using(lambda layer, x: layer(x) * bool(x.sum() > 0)),) * 2, (MSE, MSE), r'cannot batch .*engine="cpu"'),
    ],
)
def test_networks_that_it_cannot_stack_get_a_sentence(modules: Any, losses: Any, says: str) -> None:
    """Each works for one client at a time."""
    rows = torch.ones(2, 3), torch.ones(2, 2)
    problem = ps.Problem([Model(module, loss, *rows) for module, loss in zip(modules, losses, strict=True)])
    with pytest.raises(ps.InputError, match=says):
        ps.run(ps.LocalGD(0.1, 2), problem, rounds=1, engine="torch")
    ps.run(ps.LocalGD(0.1, 2), problem, rounds=1, engine="reference")


@pytest.mark.parametrize("frozen", [True, False], ids=["frozen", "buffer"])
def test_constants_that_all_clients_share(frozen: bool) -> None:
    rows = torch.ones(2, 3), torch.ones(2, 2)
    check(ps.LocalGD(0.1, 2), ps.Problem([Model(scaled(2.0, frozen), MSE, *rows) for _ in range(2)]), "torch", 1e-6, 2)


def test_what_is_no_network_and_no_device_gets_a_sentence() -> None:
    class Mine:
        L, mu, d = 1.0, 1.0, 2
        value, gradient = staticmethod(lambda x: float(x @ x) / 2), staticmethod(lambda x: x)

    with pytest.raises(ps.InputError, match="these are Mine"):
        ps.run(ps.GD(0.1), ps.Problem([Mine()]), rounds=1, engine="torch")
    with pytest.raises(ps.InputError, match='no device "nonsense"'):
        TorchEngine("nonsense")
    with pytest.raises(ps.InputError, match="unknowns"):
        ps.Problem([Model(torch.nn.Linear(k, 2), MSE, torch.ones(2, k), torch.ones(2, 2)) for k in (3, 2)])


def test_a_rule_that_reads_x_in_every_round_is_refused_with_advice_that_helps() -> None:
    problem = ps.Problem(quadratics(1))
    for method, instead, advised in [
        (ps.Fista.theory(problem), "take accelerated if mu is known", ps.Accelerated.theory(problem)),
        (ps.APDA(2.0), "give balance=False", ps.APDA(2.0, balance=False)),
    ]:
        with pytest.raises(ps.InputError, match=f'has to read x in every round; {instead}, or use engine="cpu"'):
            ps.run(method, problem, rounds=9, engine="torch")
        check(advised, problem, "torch", 1e-12, 9)
        check(method, problem, "cpu", 1e-12, 9)


def imitate_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a CPU the step that is captured is put aside, and made at each replay."""
    monkeypatch.setattr(StackedSteps, "_captured", lambda steps, one: SimpleNamespace(replay=one))
    for name in ("Stream", "current_stream"):
        monkeypatch.setattr(torch.cuda, name, lambda: SimpleNamespace(wait_stream=lambda other: None))
    monkeypatch.setattr(torch.cuda, "stream", lambda given: nullcontext())


@pytest.mark.parametrize("device", DEVICES)
def test_graphs_survive_more_cohorts_than_are_kept(device, monkeypatch) -> None:
    """With full gradients each cohort has inputs of its own, and all are dropped when there are too many."""
    if device == "cpu":
        imitate_graphs(monkeypatch)
    problem = NAMED["scaffnew"].rows()
    there = torch.device(device)
    family = family_of(problem, there)
    plain, graphs = (StackedSteps(family, 3, None, there, use_graphs) for use_graphs in (False, True))
    cohorts = [np.array([i, j]) for i in range(problem.n) for j in range(problem.n) if i != j][: MOST_GRAPHS + 1]
    assert len(cohorts) == MOST_GRAPHS + 1
    for round in range(10 * len(cohorts)):
        members = cohorts[round // 5 % len(cohorts)]
        start = torch.full((2, problem.d), 1.0 + round, dtype=family.dtype, device=there)
        expected, Y = (steps.run(start, None, 0.5 / problem.L, 4, members, round, 0, None) for steps in (plain, graphs))
        assert close(Y.cpu().numpy(), expected.cpu().numpy(), 1e-12), round


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("batch", [None, 4])
@pytest.mark.parametrize("K", [1, 31, 32, 33, 64])
def test_graphs_take_the_same_steps_wherever_the_last_ones_ended(K, batch, device, monkeypatch) -> None:
    """32 steps have their minibatches drawn together; one graph serves stacks at all places."""
    if device == "cpu":
        imitate_graphs(monkeypatch)
    problem = NAMED["scaffnew"].rows().with_batch(batch)
    there, members = torch.device(device), np.arange(problem.n)
    family = family_of(problem, there)
    plain, graphs = (StackedSteps(family, 3, batch, there, use_graphs) for use_graphs in (False, True))
    start = torch.ones((problem.n, problem.d), dtype=family.dtype, device=there)
    for round in range(3):
        expected, Y = (steps.run(start, None, 0.5 / problem.L, K, members, round, 0, None) for steps in (plain, graphs))
        assert close(Y.cpu().numpy(), expected.cpu().numpy(), 1e-12)
    assert len(graphs.graphs) == (3 * K > STEPS_BEFORE_CAPTURE)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("K", thinned([32, 31, 64]))
def test_two_exchanges_a_round_and_steps_that_fill_all_that_is_drawn(K: int, device: str) -> None:
    problem = NAMED["fedlin"].rows()
    check(ps.FedLin.theory(problem, K=K), problem, TorchEngine(device), 1e-11, 12)


@pytest.mark.parametrize("device", DEVICES)
def test_rows_are_those_of_the_reference(device: str) -> None:
    clients, sizes = np.array([0, 3, 70000]), np.array([9, 64, 5000])
    for seed in (0, 7, 2**40 + 3):
        for b in (4, 8):  # at most half of the rows of each, and most of the first client's
            found = minibatches(seed, 5, clients, 11, sizes, b, 3, torch.device(device)).cpu().numpy()
            for k in range(3):
                for j, i in enumerate(clients):
                    assert np.array_equal(found[k, j], minibatch(seed, int(i), 5, 11 + k, int(sizes[j]), b))
