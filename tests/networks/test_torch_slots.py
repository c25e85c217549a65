"""Each setting of ``train`` against a loop over clients that shares no code with it."""

import random

import pytest

import proxskip as ps
from proxskip.support.randomness import minibatch

torch = pytest.importorskip("torch")
from proxskip.torch import every_round, train  # noqa: E402
from proxskip.torch.rule import DAMPED  # noqa: E402

pytestmark = pytest.mark.torch
N, K, LR = 4, 3, 0.05


class Quadratic(torch.nn.Module):
    """Its loss is |A (y - c)|^2 / 2 on the rows (A, c) of a client."""

    def __init__(self):
        super().__init__()
        self.y = torch.nn.Parameter(torch.linspace(-1, 1, 5, dtype=torch.float64))

    def forward(self, rows):
        return self.y - rows


def squares(outputs, A):
    return 0.5 * ((A * outputs) ** 2).sum(1).mean()


def quadratics():
    draw = torch.Generator().manual_seed(2)
    sizes = (3, 5, 2, 4)
    return [
        (
            torch.randn(r, 5, generator=draw, dtype=torch.float64),
            torch.rand(r, 5, generator=draw, dtype=torch.float64) + 0.5,
        )
        for r in sizes
    ]


def errors(outputs, targets):
    return ((outputs - targets) ** 2).mean()


def plain_loop(module, loss, clients, make, rounds, *, control="none", after=False, chi=1.0, mix=0.0, pull=0.0,
               state="kept", rate=lambda r: 1.0, outer=None, share=None, w=None, shared=(), reset=(), epochs=None,
               batch=None, normalize=None, cohorts=None, rounded=False, nets=None, buffers="local"):  # fmt: skip
    """Client after client, in vectors; ``state`` for all of an optimizer's memory, or names of what is shared, reset.

    ``normalize`` is the momentum whose steps FedNova weighs, ``cohorts`` are the clients of each round, and ``rounded``
    says whether messages are in bfloat16. ``nets`` are the clients' modules, whose buffers are left as they are in the
    end.
    """
    weights = torch.full((N,), 1 / N, dtype=torch.float64) if w is None else w
    flat = torch.nn.utils.parameters_to_vector
    put = torch.nn.utils.vector_to_parameters
    nets = [module() for _ in range(N)] if nets is None else nets
    x = flat(nets[0].parameters()).detach().clone()
    optimizers = [make(list(net.parameters())) for net in nets]
    top = torch.nn.Parameter(x.clone())
    outside = outer([top]) if outer else None
    h = [torch.zeros_like(x) for _ in range(N)]
    last, left = torch.zeros_like(x), [torch.zeros_like(x) for _ in range(N)]
    steps = [K if epochs is None else -(-epochs * len(X) // min(batch, len(X))) for X, _ in clients]
    for r in range(rounds):
        ends, raws = [], []
        members = range(N) if cohorts is None else cohorts[r]
        w = [float(weights[i] / sum(weights[j] for j in members)) for i in members]
        for i in members:
            net, (inputs, targets) = nets[i], clients[i]
            put(x.clone(), net.parameters())
            if state == "reset":
                optimizers[i] = make(list(net.parameters()))
            for group in optimizers[i].param_groups:
                group["lr"] = LR * rate(r)
            raw = torch.zeros_like(x)
            for k in range(steps[i]):
                rows = slice(None) if batch is None else minibatch(0, i, r, k, len(inputs), min(batch, len(inputs)))
                net.zero_grad()
                loss(net(inputs[rows]), targets[rows]).backward()
                g = torch.cat([q.grad.reshape(-1) for q in net.parameters()])
                raw += g / steps[i]
                g = g + pull * (flat(net.parameters()).detach() - x)
                if control == "momentum" and not after:
                    g = (1 - mix) * g + mix * last
                elif not after:
                    g = g - h[i]
                start = 0
                for q in net.parameters():
                    q.grad = g[start : start + q.numel()].view_as(q).clone()
                    start += q.numel()
                optimizers[i].step()
                if after:
                    correction = -mix * last if control == "momentum" else h[i]
                    put(flat(net.parameters()).detach() + LR * rate(r) * correction, net.parameters())
            ends.append(flat(net.parameters()).detach().clone())
            raws.append(raw)
        if buffers == "mean":
            for name, v in nets[0].named_buffers():
                middle = sum(a * nets[i].get_buffer(name) for a, i in zip(w, members, strict=True))
                for net in nets:
                    net.get_buffer(name).copy_(middle if v.is_floating_point() else middle.round())
        moved = [y - x for y in ends]
        if share is not None:
            for place, i in enumerate(members):
                due = left[i] + moved[place]
                kept = sorted(range(len(due)), key=lambda k: -abs(float(due[k])))[: max(1, round(share * len(due)))]
                moved[place] = torch.zeros_like(due)
                moved[place][kept] = due[kept]
                left[i] = due - moved[place]
        if rounded:
            moved = [v.to(torch.bfloat16).double() for v in moved]
        if normalize is not None:  # momentum repeats each gradient in all steps that follow
            a = [sum(sum(normalize**j for j in range(k + 1)) for k in range(steps[i])) for i in members]
            whole = sum(u * v for u, v in zip(w, a, strict=True))
            moved = [m * whole / v for m, v in zip(moved, a, strict=True)]
        mean = sum(a * v for a, v in zip(w, moved, strict=True))
        scales = [1 / (steps[i] * LR * rate(r)) for i in members]
        scale = scales[0]
        if control in ("gradient", "step"):
            slopes = [-a * m for a, m in zip(scales, moved, strict=True)]
            if control == "gradient":
                slopes = [raw - h[i] for i, raw in zip(members, raws, strict=True)]
                slopes = [v.to(torch.bfloat16).double() if rounded else v for v in slopes]
            middle = sum(a * v for a, v in zip(w, slopes, strict=True))
            for i, g in zip(members, slopes, strict=True):
                h[i] = h[i] + chi * (g - middle)
        elif control == "dual":
            for i, m in zip(members, moved, strict=True):
                h[i] = h[i] - chi * pull * m
            mean = mean - sum(a * v for a, v in zip(weights, h, strict=True)) / pull
        elif control == "momentum":
            last = last + chi * (-scale * mean - last)
        if outside is None:
            x = x + mean
        else:
            with torch.no_grad():
                top.copy_(x)
            top.grad = -mean
            outside.step()
            x = top.detach().clone()
        for k in range(len(list(nets[0].parameters()))):
            states = [o.state[o.param_groups[0]["params"][k]] for o in optimizers]
            alike = {"step": states[members[0]]["step"]} if "step" in states[members[0]] else {}
            for name in (*shared, *reset):
                alike[name] = sum(a * states[i][name] for a, i in zip(w, members, strict=True)) * (name in shared)
            for one in states:  # also those of the next cohort
                one.update({name: v.clone() for name, v in alike.items()})
    return x


def sgd(q):
    return torch.optim.SGD(q, LR)


def heavy(q):
    return torch.optim.SGD(q, LR, momentum=0.9)


def adamw(q):
    return torch.optim.AdamW(q, LR, weight_decay=0.1)


def nesterov(q):
    return torch.optim.SGD(q, 0.7, momentum=0.5, nesterov=True)


def halving(r):
    return 0.5**r


ROWS = torch.tensor([3, 5, 2, 4], dtype=torch.float64) / 14
SLOTS = {
    "none": (sgd, {"control": "none"}, {}),
    "gradient": (adamw, {"control": "gradient", "chi": 1.0}, {"control": "gradient"}),
    "gradient, damped": (heavy, {"control": "gradient", "chi": 0.2}, {"control": "gradient", "chi": 0.2}),
    "step": (sgd, {"control": "step", "chi": 0.5}, {"control": "step", "chi": 0.5}),
    "step after": (
        heavy, {"control": "step", "correct": "after", "chi": 0.4, "state": "reset"},
        {"control": "step", "after": True, "chi": 0.4, "state": "reset"},
    ),
    "dual": (sgd, {"control": "dual", "pull": 0.4}, {"control": "dual", "pull": 0.4}),
    "momentum": (sgd, {"control": "momentum", "mix": 0.7}, {"control": "momentum", "mix": 0.7}),
    "momentum after": (
        adamw, {"control": "momentum", "mix": 0.3, "correct": "after", "chi": 0.8},
        {"control": "momentum", "mix": 0.3, "after": True, "chi": 0.8},
    ),
    "pull": (adamw, {"control": "none", "pull": 0.3}, {"pull": 0.3}),
    "reset": (heavy, {"control": "none", "state": "reset"}, {"state": "reset"}),
    "kept": (heavy, {"control": "none", "state": "kept"}, {}),
    "shared": (heavy, {"control": "none", "state": "shared"}, {"shared": ["momentum_buffer"]}),
    "shared and reset": (
        adamw, {"control": "none", "state": {"exp_avg": "reset", "exp_avg_sq": "shared"}},
        {"shared": ["exp_avg_sq"], "reset": ["exp_avg"]},
    ),
    "schedule": (sgd, {"control": "step", "chi": 1.0, "schedule": halving}, {"control": "step", "rate": halving}),
    "scheduler": (
        heavy, {"control": "none", "schedule": every_round(lambda o: torch.optim.lr_scheduler.StepLR(o, 2, 0.3))},
        {"rate": lambda r: 0.3 ** (r // 2)},
    ),
    "outer": (adamw, {"control": "gradient", "chi": 1.0, "outer": nesterov}, {"control": "gradient", "outer": nesterov}),
    "top-k": (sgd, {"control": "none", "codec": "top-k", "share": 0.4}, {"share": 0.4}),
    "rows": (adamw, {"control": "gradient", "chi": 1.0, "weights": "rows"}, {"control": "gradient", "w": ROWS}),
    "rows, dual": (sgd, {"control": "dual", "pull": 0.4, "weights": "rows"}, {"control": "dual", "pull": 0.4, "w": ROWS}),
    "rows, shared": (
        heavy, {"control": "none", "state": "shared", "weights": "rows"}, {"shared": ["momentum_buffer"], "w": ROWS},
    ),
    "epochs": (heavy, {"control": "none", "epochs": 2, "batch": 2}, {"epochs": 2, "batch": 2, "state": "reset"}),
    "epochs, gradient": (
        adamw, {"control": "gradient", "epochs": 2, "batch": 2, "chi": 0.5, "weights": "rows"},
        {"control": "gradient", "epochs": 2, "batch": 2, "chi": 0.5, "w": ROWS, "state": "reset"},
    ),
    "epochs, step after": (
        heavy, {"control": "step", "correct": "after", "epochs": 2, "batch": 2, "chi": 0.5},
        {"control": "step", "after": True, "epochs": 2, "batch": 2, "chi": 0.5, "state": "reset"},
    ),
    "normalized": (
        sgd, {"control": "none", "epochs": 2, "batch": 2, "normalize": True, "weights": "rows"},
        {"epochs": 2, "batch": 2, "normalize": 0.0, "w": ROWS, "state": "reset"},
    ),
    "normalized, momentum": (
        heavy, {"control": "none", "epochs": 2, "batch": 2, "normalize": True, "state": "reset"},
        {"epochs": 2, "batch": 2, "normalize": 0.9, "state": "reset"},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", list(SLOTS))
@pytest.mark.parametrize("together", [True, False])
def test_each_slot_is_its_plain_loop(name, together):
    """On one tensor; the test of batch normalization takes every slot on the layers of a network."""
    (make, given, plain), clients = SLOTS[name], quadratics()
    length = {} if "epochs" in given else {"period": K}
    how = {**length, "rounds": 4, "device": "cpu", "together": together}
    if together:
        result = train(Quadratic(), squares, clients, make, **how, **given)
    else:
        with pytest.warns(UserWarning, match="client by client"):
            result = train(Quadratic(), squares, clients, make, **how, **given)
    expected = plain_loop(Quadratic, squares, clients, make, 4, **plain)
    assert (torch.tensor(result.x) - expected).abs().max() <= 1e-10
    assert result.trace["f"][-1] != result.trace["f"][0]
    steps = 3 + 5 + 2 + 4 if "epochs" in given else N * K
    assert result.trace["local_steps"][-1] == 4 * steps


MAKERS = {"sgd": sgd, "heavy": heavy, "adamw": adamw}
MEMORY = {"sgd": (), "heavy": ("momentum_buffer",), "adamw": ("exp_avg", "exp_avg_sq")}
COHORTS = [[0, 2], [1, 2, 3], [3], [0, 1]]
CHOICES = {
    "optimizer": list(MAKERS), "control": ["none", "gradient", "step", "dual", "momentum"],
    "correct": ["inside", "after"], "chi": [None, 0.3], "pull": [0.0, 0.3], "state": [None, "kept", "reset", "shared", {"exp_avg_sq": "shared"}],
    "schedule": [None, halving], "outer": [None, nesterov], "codec": ["float32", "bfloat16", "top-k"],
    "weights": ["equal", "rows"], "epochs": [None, 2], "normalize": [False, True], "cohort": [None, COHORTS],
}  # fmt: skip


def plain_words(chosen):
    """The keywords of ``plain_loop`` for these of ``train``."""
    memory, some = MEMORY[chosen["optimizer"]], isinstance(chosen["state"], dict)
    shared = [name for name in memory if chosen["state"] == "shared" or (some and name in chosen["state"])]
    away, begins_anew = chosen["cohort"] is not None, chosen["epochs"] or chosen["state"] == "reset"
    default = 1.0 if chosen["batch"] is None or chosen["control"] == "momentum" else DAMPED
    return {
        **{name: chosen[name] for name in ("control", "pull", "outer", "epochs", "mix", "share")},
        "after": chosen["correct"] == "after", "chi": chosen["chi"] or default,
        "state": "reset" if begins_anew or (away and chosen["state"] is None) else "kept",
        "shared": shared, "reset": [name for name in memory if some and name not in shared], "rate": chosen["schedule"] or (lambda r: 1.0),
        "w": ROWS if chosen["weights"] == "rows" else None, "batch": chosen["batch"], "cohorts": chosen["cohort"],
        "rounded": chosen["codec"] == "bfloat16",
        "normalize": {"sgd": 0.0, "heavy": 0.9}[chosen["optimizer"]] if chosen["normalize"] else None,
    }  # fmt: skip


@pytest.mark.parametrize("number", range(8))
def test_slots_that_are_taken_together_are_their_plain_loop(number):
    """Settings drawn slot by slot: what ``train`` does not refuse is right."""
    draw, accepted = random.Random(number), 0
    while accepted < 12:
        chosen = {name: draw.choice(values) for name, values in CHOICES.items()}
        chosen["mix"] = 0.6 if chosen["control"] == "momentum" else None
        chosen["share"] = 0.4 if chosen["codec"] == "top-k" else None
        chosen["batch"] = 2 if chosen["epochs"] else draw.choice([None, 2])
        chosen["period"] = None if chosen["epochs"] else K
        cohort = None if chosen["cohort"] is None else ps.participation.Given(chosen["cohort"])
        given = chosen | {"optimizer": MAKERS[chosen["optimizer"]], "cohort": cohort}
        try:
            result = train(Quadratic(), squares, quadratics(), rounds=4, device="cpu", **given)
        except ps.InputError:
            continue
        accepted += 1
        expected = plain_loop(Quadratic, squares, quadratics(), given["optimizer"], 4, **plain_words(chosen))
        assert (torch.tensor(result.x) - expected).abs().max() <= 1e-10, chosen


def normalized():
    torch.manual_seed(0)
    layers = torch.nn.Linear(5, 4, bias=False), torch.nn.BatchNorm1d(4), torch.nn.Tanh(), torch.nn.Linear(4, 5)
    return torch.nn.Sequential(*layers).double()


NORMALIZED = SLOTS | {
    "in portions": (heavy, {"control": "none", "clients_at_once": 2}, {}),
    "batches": (heavy, {"control": "none", "batch": 4}, {"batch": 4}),
    "apart": (heavy, {"control": "none", "together": False}, {}),
    "cohorts": (heavy, {"control": "none", "cohort": COHORTS}, {"cohorts": COHORTS, "state": "reset"}),
    "cohorts, rows": (
        adamw, {"control": "gradient", "chi": 0.5, "weights": "rows", "cohort": COHORTS},
        {"control": "gradient", "chi": 0.5, "w": ROWS, "cohorts": COHORTS, "state": "reset"},
    ),
    "rounded": (heavy, {"control": "none", "codec": "bfloat16"}, {"rounded": True}),
}  # fmt: skip


@pytest.mark.parametrize("name", list(NORMALIZED))
@pytest.mark.filterwarnings("ignore:the optimizer is not known")
def test_batch_normalization_is_its_plain_loop(name):
    """Running means and counts of batches are averaged with the parameters, or stay with each client."""
    make, given, plain = NORMALIZED[name]
    clients, sent = quadratics(), {}
    settings = {} if "epochs" in given else {"period": K}
    settings |= {**given, "rounds": 3, "device": "cpu"}
    if "cohort" in given:
        settings["cohort"] = ps.participation.Given(COHORTS)
    w = ROWS if given.get("weights") == "rows" else torch.full((N,), 1 / N, dtype=torch.float64)
    for buffers in ("mean", "local"):
        result = train(normalized(), errors, clients, make, buffers=buffers, **settings)
        nets = [normalized() for _ in range(N)]
        x = plain_loop(normalized, errors, clients, make, 3, nets=nets, buffers=buffers, **plain)
        # two rows give the first layer gradients near zero, by which AdamW divides
        assert (torch.tensor(result.x) - x).abs().max() <= 1e-9
        assert set(result.buffers) == {"1.running_mean", "1.running_var", "1.num_batches_tracked"}
        for buffer, v in result.buffers.items():
            expected = torch.stack([net.get_buffer(buffer) for net in nets])
            assert (v - expected).abs().max() <= 1e-9
            assert len(v) == (1 if buffers == "mean" else N)
            common = torch.tensordot(w, expected.double(), dims=1)
            common = common if v.is_floating_point() else common.round()
            assert (result.module.get_buffer(buffer) - common).abs().max() <= 1e-9
        for net in nets:
            torch.nn.utils.vector_to_parameters(x, net.parameters())
            net.eval()
        losses = [errors(net(X), y).item() for net, (X, y) in zip(nets, clients, strict=True)]
        assert result.of_clients["f"][-1] == pytest.approx(losses, rel=1e-9)
        sent[buffers] = result.trace["floats_up"][-1]
    senders = sum(len(members) for members in COHORTS[:3]) if "cohort" in given else 3 * N
    assert sent["mean"] - sent["local"] == 9 * senders


@pytest.mark.parametrize("name", ["gradient", "step", "step after", "rows"])
def test_h_sums_to_zero(name):
    make, given, _ = SLOTS[name]
    result = train(Quadratic(), squares, quadratics(), make, period=K, rounds=5, device="cpu", **given)
    w = ROWS.numpy() if given.get("weights") == "rows" else 1 / N
    assert abs((w * result.h.T).sum(1)).max() <= 1e-12 < abs(result.h).max()


@pytest.mark.parametrize("name", ["step", "dual"])
def test_with_full_gradients_h_finds_the_solution_and_nothing_else_does(name):
    given, clients = SLOTS[name][1], quadratics()
    ends = [
        train(Quadratic(), squares, clients, sgd, period=K, rounds=250, every=250, device="cpu", **settings)
        for settings in (given, {"control": "none"})
    ]
    H = [(A * A).mean(0) for _, A in clients]
    b = [(A * A * c).mean(0) for c, A in clients]
    solution = sum(b) / sum(H)
    assert (torch.tensor(ends[0].x) - solution).abs().max() <= 1e-6
    assert (torch.tensor(ends[1].x) - solution).abs().max() > 1e-4


def test_clients_with_few_rows_have_smaller_minibatches():
    """With a batch that only some clients fill, the others take all their rows."""
    clients = quadratics()
    found = train(Quadratic(), squares, clients, sgd, period=K, rounds=4, batch=4, control="none", device="cpu")
    assert found.trace["grad_evals"][-1] == 4 * K * (3 + 4 + 2 + 4)
    whole = train(Quadratic(), squares, clients, sgd, period=K, rounds=4, batch=99, control="none", device="cpu")
    assert (torch.tensor(whole.x) - plain_loop(Quadratic, squares, clients, sgd, 4)).abs().max() <= 1e-12


def test_the_chosen_chi_is_a_tenth_with_minibatches_and_one_with_full_gradients():
    given = {"period": K, "rounds": 3, "device": "cpu"}

    def learned(**more):
        return train(Quadratic(), squares, quadratics(), adamw, **given, **more).h

    assert (learned(batch=2) == learned(batch=2, chi=DAMPED)).all()
    assert (learned() == learned(chi=1.0)).all()
    assert not (learned(batch=2) == learned(batch=2, chi=1.0)).all()


EPOCHS = {"period": None, "epochs": 1}
APART = [
    ({"control": "gradient", "correct": "after"}, 'correct="after" goes with control="step" or "momentum" only'),
    ({"control": "dual"}, "is learned from the pull"),
    ({"control": "dual", "pull": 0.1, "outer": nesterov}, "a step of its own at the server"),
    ({"control": "momentum"}, "mix=, the weight of the last global step, .* go together"),
    ({"control": "none", "mix": 0.5}, "mix=, the weight of the last global step, .* go together"),
    ({"control": "momentum", "mix": 1.0}, "mix = 1 leaves nothing of the gradients"),
    ({"control": "momentum", "mix": 0.5, "codec": "natural"}, 'control="momentum" was not tested with codecs'),
    ({"control": "dual", "pull": 0.1, "codec": "bfloat16"}, 'control="dual" was not tested with codecs'),
    ({"control": "step", "codec": "top-k", "share": 0.1}, 'codec="top-k" was tested with control="none" alone'),
    ({"control": "none", "codec": "top-k"}, 'share=, .* and codec="top-k" go together'),
    ({"control": "none", "chi": 0.5}, "chi damps h, and without control there is none"),
    ({"control": "step", "normalize": True}, 'normalize=True was tested with control="none" alone'),
    ({"control": "none", "normalize": True, "pull": 0.1}, 'normalize=True was tested with control="none" alone'),
    ({"control": "none", "normalize": True, "optimizer": adamw}, "knows what the steps of SGD weigh"),
    ({"control": "dual", "pull": 0.1, **EPOCHS}, "epochs= was tested with"),
    ({"control": "none", "codec": "natural", **EPOCHS}, "epochs= was tested with"),
    ({"control": "none", "state": "kept", **EPOCHS}, 'state= must be "reset"'),
    ({"control": "none", "state": "kept", "cohort": 2}, 'state="kept" needs all clients in every round'),
    ({"control": "none", "state": {"exp_avg": "mine"}}, 'state = "mine" is not known'),
    ({"control": "step", "optimizer": heavy}, 'control="step" needs SGD without momentum'),
    ({"control": "none", "buffers": "sum"}, 'buffers = "sum" is not known'),
    ({"control": "none", "epochs": 1}, "pass one of p="),
]


@pytest.mark.parametrize(("given", "words"), APART, ids=[words[:40] for _, words in APART])
def test_what_contradicts_itself_or_was_not_tested_together_is_refused(given, words):
    settings = {"optimizer": sgd, "period": K, "rounds": 2, "device": "cpu", **given}
    with pytest.raises(ps.InputError, match=words):
        train(Quadratic(), squares, quadratics(), settings.pop("optimizer"), **settings)
