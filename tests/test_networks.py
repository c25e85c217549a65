"""The experiments with networks: fair settings, costs that count only where they last, ties, and a short run."""

import itertools
import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from proxskip import Status, experiments
from proxskip.cli import main

pytest.importorskip("torch", reason="torch is not installed")
from proxskip.experiments import networks

pytestmark = pytest.mark.torch


@pytest.mark.parametrize("split", ["sorted", "iid"])
def test_a_split_deals_out_the_digits_and_a_seed_draws_its_own(split: str) -> None:
    task = networks.digits("mlp", split, 3)
    assert sum(len(y) for _, y in task.clients) + len(task.held_out[1]) >= 1796
    assert len(task.held_out[1]) % 2 == 0
    assert {len(y) for _, y in task.clients} <= {134, 135}, "minibatches of 32 rows are drawn from every client"
    labels = [len(set(y.tolist())) for _, y in task.clients]
    assert max(labels) <= 3 if split == "sorted" else min(labels) == 10
    assert not np.array_equal(task.held_out[0], networks.digits("mlp", split, 4).held_out[0])


@pytest.mark.parametrize("quick", [True, False])
@pytest.mark.parametrize("name", list(experiments.NETWORKS))
def test_every_method_tries_as_many_settings_with_the_same_factors(name: str, quick: bool) -> None:
    preset = experiments.preset(name, quick)
    tried = [networks.settings_of(form, preset) for form in networks.FORMS]
    assert len({len(set(settings)) for settings in tried}) == 1
    assert len({tuple(K for _, K in settings) for settings in tried}) == 1, "the period is among them"
    factors = [[b / a for a, b in itertools.pairwise(r)] for r in preset["rates"].values()]
    assert np.allclose(factors, 3.0, rtol=0.12)
    assert quick or len(preset["periods"]) > 1


PRESET = {"target": 0.95, "slack": 0.01, "seeds": 5}


def chosen(name: str, test: Any, factor: float = 1.0) -> Any:
    cost = np.tile(np.arange(np.shape(test)[1]) * factor, (len(test), 1))
    curves = {"test": np.array(test), "rounds": cost, "bytes": cost, "gradients": cost}
    return networks.Chosen(networks.BY_NAME[name], 0.1, 4, curves, PRESET | {"seeds": len(test)}, False)


def arriving(name: str, rounds: list[float]) -> Any:
    return chosen(name, [np.where(np.arange(101) >= r, 0.96, 0.5) for r in rounds])


def test_a_seed_has_arrived_only_if_it_stays_within_a_point_and_medians_say_how_many_did() -> None:
    stays, dips = [0.5, 0.95, 0.942, 0.97, 0.941], [0.5, 0.95, 0.939, 0.97, 0.96]
    leaves, diverges = [0.5, 0.95, 0.96, 0.97, 0.93], [0.5, 0.95, 0.96, 0.97, math.nan]
    assert chosen("fedlin", [stays, dips, leaves, diverges]).costs("rounds") == [1, 3, math.inf, math.inf]
    r = arriving("local-sgd", [10, 20, math.inf, 30, 5])
    assert (r.cost("rounds"), r.said("rounds")) == (20, "20 (4 of 5)")
    assert arriving("local-sgd", [math.inf] * 5).said("rounds") == "never"


def test_the_choice_is_made_on_validation_rows_alone() -> None:
    good = np.stack([np.ones((3, 4)), np.zeros((3, 4))])
    good[0, 0, 1] = math.nan
    preset = {"rates": {"sgd": [0.1, 0.2]}, "periods": [4]}
    assert networks.choose(networks.FORMS[0], {"validation": good[::-1], "test": good}, preset).lr == 0.2


def everybody(default: list[float], **given: list[float]) -> dict[str, Any]:
    named = {k.replace("_", "-"): v for k, v in given.items()}
    return {f.name: arriving(f.name, named.get(f.name, default)) for f in networks.FORMS}


def test_verdicts_need_every_seed_and_the_rest_are_ties() -> None:
    never, slow, fast = [math.inf] * 5, [30.0] * 5, [10.0] * 5
    mixed = [9.0, 9.0, 9.0, 9.0, 11.0]
    hard = everybody(slow, adamw_h=fast, local_adamw=never, diloco_adamw=never)
    easy = everybody(fast, local_adamw=[5.0] * 5, diloco_adamw=[5.0] * 5, adamw_h=[6.0] * 5)
    runs = {"sorted": hard, "iid": easy}
    verdicts = {c.id: c.verdict for c in networks.judged("mlp", runs, True)}
    assert {k for k, v in verdicts.items() if v == "PASS"} >= {
        "mlp-adamw", "mlp-rounds", "mlp-bytes", "mlp-gradients", "mlp-alike",
    }  # fmt: skip
    assert verdicts["mlp-scaffnew-local-sgd"] == "INCONCLUSIVE", "equal is a tie"
    rounds, *_ = networks.where_it_helps(runs)
    assert rounds.startswith(
        "In rounds, the best method with h beats the best without it on sorted labels, and loses to"
    )
    assert rounds.endswith("on iid.")

    close = everybody(slow, adamw_h=fast, diloco_sgd=mixed, scaffnew=[40.0] * 5)
    claims = {c.id: c for c in networks.judged("mlp", {"sorted": close, "iid": hard}, True)}
    assert claims["mlp-adamw"].verdict == "FAIL", "it arrives without h"
    assert (claims["mlp-rounds"].verdict, claims["mlp-rounds"].note) == ("INCONCLUSIVE", "a tie")
    assert claims["mlp-scaffnew-local-sgd"].verdict == "FAIL"
    assert claims["mlp-alike"].verdict == "FAIL"
    assert networks.gains_table({"sorted": close}).rows[0][-1] == "0.90, a tie"
    assert {c.verdict for c in networks.judged("mlp", {"sorted": hard}, False)} == {"REPORTED", "INCONCLUSIVE"}


def test_an_interrupted_training_is_not_kept_as_one_that_diverged(monkeypatch: Any) -> None:
    key = {"model": "mlp", "split": "iid", "method": "local-sgd", "engine": "reference", "metric": "accuracy"}
    key |= {"seeds": 1, "rounds": 2, "batch": 4, "settings": [(0.1, 2)]}
    interrupted = SimpleNamespace(status=Status.INTERRUPTED)
    monkeypatch.setattr(networks, "train", lambda *_, **__: interrupted)
    with pytest.raises(KeyboardInterrupt):
        networks.curves_of(None, key)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["mlp", "--networks"], "give no names"),
        (["--family", "--networks"], "give no names"),
        (["--networks", "--data", "w8a"], "leave out --data"),
        (["--networks", "--threads", "2"], "give --jobs in place of --threads"),
        (["--networks", "--quick"], 'networks need PyTorch; install it with: pip install "proxskip[torch]"'),
    ],
)
def test_what_networks_cannot_do_is_refused(words, sentence, capsys, tmp_path, monkeypatch) -> None:
    if "PyTorch" in sentence:
        monkeypatch.setattr("proxskip.experiments.reproduce.importlib.util.find_spec", lambda name: None)
    assert main(["reproduce", *words, "--out", str(tmp_path / "out")]) == 2
    assert sentence in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_a_small_run_writes_the_page_and_processes_change_no_bit(tmp_path: Path, monkeypatch: Any) -> None:
    preset = experiments.preset
    short = {"rounds": 1, "periods": [1], "batch": 2, "seeds": 1}

    def shortened(name: str, quick: bool = False) -> dict[str, Any]:
        entries = preset(name, quick)
        return entries | (short if name in experiments.NETWORKS else {})

    monkeypatch.setattr(experiments, "preset", shortened)

    def made(jobs: int) -> dict[str, Any]:
        call = ["reproduce", "--networks", "--quick", "--out", str(tmp_path / f"out{jobs}"), "--quiet"]
        assert main([*call, "--jobs", str(jobs)]) == 0
        content = json.loads((tmp_path / f"out{jobs}" / "results.json").read_text("utf-8"))
        timed = ("seconds", "command")
        return {e["id"]: {k: v for k, v in e.items() if k not in timed} for e in content["experiments"]}

    alone = made(1)
    assert set(alone) == set(experiments.NETWORKS)
    assert alone == made(2)
    out = tmp_path / "out1"
    page = (out / "index.html").read_text("utf-8")
    assert "Control variates on networks" in page
    assert "In rounds, the best method with h" in page
    assert {p.name for p in (out / "figures").glob("*.png")} == {"mlp.png", "cnn.png"}
    kept = {p.name: p.stat().st_mtime_ns for p in (out / "cache").glob("cnn-*")}
    assert len(kept) == len(networks.FORMS)
    made(1)
    assert kept == {p.name: p.stat().st_mtime_ns for p in (out / "cache").glob("cnn-*")}, "trained twice"
