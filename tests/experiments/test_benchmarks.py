"""The benchmarks: each can be loaded, a run loses no other's results, libraries and trees are compared, and MNIST is read."""

from __future__ import annotations

import gzip
import hashlib
import importlib
import json
import struct
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import proxskip as ps
from proxskip import InputError

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def runner(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("run")


@pytest.mark.torch
@pytest.mark.parametrize("name", sorted(path.stem for path in BENCHMARKS.glob("*.py")))
def test_a_script_finds_all_that_it_imports(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as missing:
        if missing.name is None or missing.name.startswith("proxskip"):
            raise
        pytest.skip(f"needs {missing.name}")


def test_a_run_replaces_its_own_part_and_loses_no_other(runner: ModuleType, tmp_path: Path) -> None:
    page = tmp_path / "new" / "RESULTS.md"
    runner.put(page, "machine A, 2 cores", "engine", "### Steps\n\n| a |\n|---|\n| 1 |")
    runner.put(page, "machine B, 16 cores", "engine", "### Steps\n\n| b |")
    runner.put(page, "machine A, 2 cores", "noise", "### Noise")
    runner.put(page, "machine A, 2 cores", "engine", "### Steps\n\n| c |")
    sections = runner.sections_of(page.read_text(encoding="utf-8"))
    assert sections["machine B, 16 cores"] == {"engine": "### Steps\n\n| b |"}
    assert sections["machine A, 2 cores"]["engine"] == "### Steps\n\n| c |"
    assert "### Noise" in sections["machine A, 2 cores"]["noise"]


def test_the_page_that_is_here_is_read_and_written_whole_and_every_part_is_a_script(runner: ModuleType) -> None:
    text = (BENCHMARKS / "RESULTS.md").read_text(encoding="utf-8")
    assert runner.page_of(runner.sections_of(text)) == text
    assert {command[0] for command in runner.PARTS.values()} <= {p.name for p in BENCHMARKS.glob("*.py")}
    assert runner.PARTS.keys() >= runner.QUICK | runner.NEEDS.keys()


# -- same_bytes.py -----------------------------------------------------------------------------------------------------
OLD = {
    "cpu/gd/x": np.array([[1.0, 2.0], [3.0, np.nan]]),
    "cpu/gd/message": np.frombuffer(b"as asked", np.uint8),
    "cpu/scaffnew/x": np.zeros(3),
    "protocol/scaffnew/rounds": np.array(7),
}
RAISED, MISSING = np.frombuffer(b"ValueError: no", np.uint8), "cpu/scaffnew: x is missing in the new tree."


@pytest.mark.parametrize(
    ("new", "said"),
    [
        ({"cpu/gd/column": np.ones(2), "gpu/gd/x": np.ones(1)}, []),  # new fields are no difference
        (
            {"cpu/gd/x": np.array([[1.0, 2.0], [np.nextafter(3.0, 4.0), np.nan]])},
            ["cpu/gd: x | 1 of 4 numbers, first at [1, 0]"],
        ),
        ({"cpu/scaffnew/x": np.array([0.0, -0.0, 0.0])}, ["cpu/scaffnew: x | 1 of 3 numbers, first at [1]"]),
        (
            {"cpu/gd/message": np.frombuffer(b"as usual", np.uint8)},
            ['cpu/gd: message | is "as asked" in the old tree and "as usual"'],
        ),
        (
            {"protocol/scaffnew/rounds": np.array(7.0)},
            ["protocol/scaffnew: rounds | is int64 () in the old tree and float64 ()"],
        ),
        ({"cpu/scaffnew/x": None}, [MISSING]),
        (
            {"cpu/scaffnew/x": None, "cpu/scaffnew/error": RAISED},
            [MISSING, "cpu/scaffnew: the new tree raised ValueError: no"],
        ),
    ],
)
def test_one_byte_is_named(new: dict[str, Any], said: list[str], tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import same_bytes

    for name, arrays in (("old", OLD), ("new", OLD | new)):
        np.savez(tmp_path / f"{name}.npz", **{k: v for k, v in arrays.items() if v is not None})
    tallies = same_bytes.compare(*(same_bytes.load(tmp_path / f"{k}.npz") for k in ("old", "new")))
    assert "| all | 3 | 4 | 16 |" in "\n".join(same_bytes.report(tallies))
    lines = [line for t in tallies.values() for line in t.different]
    assert len(lines) == len(said)
    for line, words in zip(lines, said, strict=True):
        begin, _, rest = words.partition("| ")
        assert line.startswith(begin)
        assert rest in line


# -- compare.py --------------------------------------------------------------------------------------------------------
@pytest.fixture
def comparison(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("compare")


SCRIPT = """
import library
# the user's code: logistic
x = library.start()

# a comment
watch(x)
# end
forgotten = 1
# the user's code: logistic network
x = x.step()
x = x.step()
# end
"""


def test_the_lines_of_a_task_are_those_between_its_marks_but_not_those_for_the_judge(comparison: ModuleType) -> None:
    assert [comparison.lines_of(SCRIPT, task) for task in ("logistic", "network")] == [3, 2]


def test_every_run_of_the_comparison_has_a_script_with_lines_to_count(comparison: ModuleType) -> None:
    for name, peer in comparison.PEERS.items():
        source = (BENCHMARKS / "compare" / f"with_{name}.py").read_text(encoding="utf-8")
        for problem, methods in peer.methods.items():
            task = "network" if problem == "network" else "logistic"
            assert isinstance(methods, str) or comparison.lines_of(source, task) > 1


def test_the_judge_finds_the_minimum_and_gives_zero_a_gap_of_one(comparison: ModuleType) -> None:
    problem = comparison.logistic("digits", 20, 20, 1e-2)
    pairs = zip(problem["rows"], problem["labels"], strict=True)
    ours = ps.Problem([ps.Logistic(A, b, l2=problem["l2"], classes=(-1, 1)) for A, b in pairs])
    assert np.allclose(comparison.errors(problem, np.array([np.zeros(64), ours.solution.x])), [1, 0], atol=1e-12)
    assert np.isclose(problem["best"], ours.solution.f, rtol=1e-12)
    assert {len(set(labels)) for labels in problem["labels"]} == {1, 2}, "nearly all clients have one label"


def test_the_judge_of_the_network_counts_wrong_answers(comparison: ModuleType) -> None:
    problem = comparison.network()
    always_three = np.zeros(64 * 64 + 64 + 64 * 10 + 10)
    always_three[-7] = 1.0
    wrong = comparison.errors(problem, np.array([always_three, problem["x0"]]))
    assert wrong[0] == np.mean(problem["test_labels"] != 3)
    assert wrong[1] > 0.8, "untrained"


def test_the_table_says_what_was_not_reached_and_who_was_not_run(comparison: ModuleType) -> None:
    never = dict.fromkeys(("rounds", "seconds", "floats"))
    reached = {"rounds": 7, "seconds": 0.5, "floats": 8960}
    rows = [
        {"name": "proxskip", "method": "b", "start": 1.0, "least": 0.25, "lines": 3} | never,
        {"name": "torch", "method": "a", "start": 2.0, "least": 1e-9, "lines": 12} | reached,
    ]
    text = comparison.table(rows, {"fedjax": "pip: no"}, 100)
    assert text.splitlines()[2:] == [
        "| plain PyTorch | a | 7 | 0.5 | 2 | 8,960 | 1e-09 | 12 |",
        "| proxskip | b | - | - | 1 | - | 0.25 | 3 |",
        "| FedJAX | not run: pip: no | | | | | | |",
    ]
    first = comparison.ahead({"digits": rows}).splitlines()[-1]
    assert "**plain PyTorch 7** (proxskip -)" in first
    assert "| proxskip 1 |" in first
    assert "| proxskip 3 |" in first


# -- MNIST and NIID-Bench ----------------------------------------------------------------------------------------------
HEADER = b"\0\0\x08\x02" + struct.pack(">2I", 2, 3)


@pytest.fixture
def read_idx(monkeypatch: Any) -> Any:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("mnist").read_idx


@pytest.mark.parametrize("name", ["a", "a.gz"])
def test_idx_files_are_read_plain_and_compressed(name: str, tmp_path: Path, read_idx: Any) -> None:
    content = HEADER + bytes(range(6))
    sha256 = hashlib.sha256(content).hexdigest()
    (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    assert read_idx(tmp_path / name, sha256).tolist() == [[0, 1, 2], [3, 4, 5]]
    with pytest.raises(InputError, match="another checksum"):
        read_idx(tmp_path / name, "0" * 64)


@pytest.mark.parametrize("content", [gzip.compress(HEADER)[:-9], b"<html>please log in</html>"], ids=["cut", "page"])
def test_a_damaged_download_is_one_sentence(content: bytes, tmp_path: Path, read_idx: Any) -> None:
    (tmp_path / "a.gz").write_bytes(content)
    with pytest.raises(InputError, match=r"cannot be read .*; remove it"):
        read_idx(tmp_path / "a.gz", "0" * 64)


@pytest.fixture
def niid(monkeypatch: Any) -> Any:
    pytest.importorskip("torch")
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("niid")


def result_of(method: str, split: str, steps: int, *ends: float, chi: float | None = None) -> dict[str, Any]:
    """A made-up result: each seed is at 50, two points above its end, and there."""
    rounds = [[50.0] * len(ends), [v + 2 for v in ends], [*ends]]
    return {
        "method": method, "split": split, "steps": steps, "chi": chi, "rounds": 2, "quick": False, "seconds": 1.0,
        "ms_a_step": 1.0, "test": rounds, "held": [] if steps == 0 else rounds[1:],
    }  # fmt: skip


@pytest.mark.torch
@pytest.mark.parametrize(
    ("result", "row"),
    [
        (
            result_of("FedAvg", "labels-2", 0, 93.0, 95.0, 94.0),
            "| two labels | 10 epochs | FedAvg |  | 96.00 ± 0.82 | 95.0, 97.0, 96.0 | 93.0, 95.0, 94.0 | 96.86 ± 0.30 | met |",
        ),
        (
            result_of("SCAFFOLD", "labels-2", 0, 93.0),
            "| two labels | 10 epochs | SCAFFOLD | 1.0 | 95.00 ± 0.00 | 95.0 | 93.0 | 96.92 ± 0.52 | 1.92 lower |",
        ),
        (
            result_of("FedProx", "labels-1", 0, 23.1),
            "| one label | 10 epochs | FedProx |  | 50.00 ± 0.00 | 50.0 | 23.1 | 51.79 ± 26.75 | met |",
        ),
        (
            result_of("AdamW + h", "labels-1", 94, 60.0, chi=0.3),
            "| one label | 94 | AdamW + h | 0.3 | 62.00 ± 0.00 | 62.0 | 60.0 |  |  |",
        ),
        (
            result_of("momentum + h", "iid", 20, 60.0),
            "| iid | 20 | momentum + h | default | 62.00 ± 0.00 | 62.0 | 60.0 |  |  |",
        ),
        (
            {**result_of("SCAFFOLD", "labels-1", 0, 9.8), "test": [[10.0], [9.8]]},
            "| one label | 10 epochs | SCAFFOLD | 1.0 | 10.00 ± 0.00 | 10.0 | 9.8 | 9.93 | both at chance |",
        ),
    ],
)
def test_a_cell_is_judged_by_the_best_round_of_each_seed(result: Any, row: str, niid: Any) -> None:
    """It is met within one point or one published deviation, and not judged at chance."""
    assert niid.line_of(result) == row


@pytest.mark.torch
def test_who_wins_and_ties_at_94_steps_is_run_with_937(niid: Any, tmp_path: Path, capsys: Any) -> None:
    results = [
        result_of("FedAvg", "labels-2", 94, 90.0, 92.0),
        result_of("AdamW", "labels-2", 94, 91.0, 91.2),
        result_of("momentum + h", "labels-2", 94, 91.5, 92.5),
        result_of("AdamW + h", "labels-2", 94, 99.0, 99.0, chi=0.3),
        result_of("FedAvg", "labels-2", 20, 95.0, 95.0),
        result_of("FedAvg", "iid", 0, 99.0, 99.0),
    ]
    assert niid.winners(results) == [
        "two labels, 20 steps: FedAvg, 95.0 on the test set",
        "two labels, 94 steps: momentum + h, 92.0 on the test set; ties: FedAvg",
    ]
    assert [tuple(cell)[:3] for cell in niid.cells("long", False, results)] == [
        ("momentum + h", "labels-2", 937), ("FedAvg", "labels-2", 937),
    ]  # fmt: skip
    assert {cell.split for cell in niid.cells("short", False, [])} == set(niid.SPLITS)
    out = tmp_path / "niid.jsonl"
    out.write_text("".join(json.dumps({**r, "rounds": 50}) + "\n" for r in results))
    asked = ["--split", "labels-2", "--steps", "94", "--part", "short", "--minutes", "0", "--out", str(out)]
    assert len(niid.main([*asked, "--method", "FedAvg"])) == 1
    assert "not run" not in capsys.readouterr().out
    assert len(niid.main(asked)) == 3
    assert "not run: AdamW + h, two labels, 94 steps" in capsys.readouterr().out


@pytest.mark.torch
def test_the_published_table_of_the_page_is_made_from_the_results_beside_the_script(niid: Any) -> None:
    results = niid.read(niid.KEPT)
    page = (BENCHMARKS.parent / "docs" / "niid-bench.md").read_text(encoding="utf-8")
    part = niid.published_part(results)
    assert f"<!-- published: begin -->\n{part}\n<!-- published: end -->" in page, "print it with --minutes 0"
    verdicts = [line.split(" | ")[-1] for line in part.splitlines() if "10 epochs |" in line]
    met, cells = sum(v == "met |" for v in verdicts), niid.cells("published", False, results)
    assert f"{len(verdicts)} of the {len(cells)} cells were run. {met} are met" in page
    ends = {(r["method"], r["split"]): np.mean(r["test"][-1]) for r in results if r["steps"] == 0}
    for method, split, end in [
        ("FedAvg", "labels-1", 52.5),
        ("FedProx", "labels-1", 65.5),
        ("SCAFFOLD", "labels-2", 96.8),
    ]:
        assert f"{ends[method, split]:.1f}" == f"{end}"


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.release
def test_the_table_of_niid_bench_in_its_quick_form(tmp_path: Path, niid: Any, capsys: Any) -> None:
    out = tmp_path / "niid.jsonl"
    results = {(r["method"], r["split"]): r["test"][-1][0] for r in niid.main(["--quick", "--out", str(out)])}
    assert results["FedAvg", "iid"] >= 85
    assert results["AdamW + h", "labels-2"] >= 10 + results["AdamW", "labels-2"]
    assert len(out.read_text().splitlines()) == len(results)
    assert "| two labels | 10 | AdamW + h |" in capsys.readouterr().out
    assert len(niid.main(["--quick", "--minutes", "0", "--out", str(out)])) == len(results), "they were kept"


def test_two_reports_are_compared_in_every_number_and_verdict(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    same_numbers = importlib.import_module("same_numbers")
    curve = {"label": "gd", "x": {"rounds": [0.0, 1.0], "seconds": [0.0, 0.5]}, "y": [0.25, 1e-17], "low": None}
    report = {
        "about": {"seconds": 3.0, "L_max": 1.5, "data": "digits"},
        "claims": [{"id": "fewer", "verdict": "PASS", "numbers": {"ratio": 0.5}}],
        "experiments": [{"id": "fig1a", "panels": [{"id": "theory", "series": [curve]}]}],
    }

    def compared(**changes: Any) -> list[str]:
        """The differences after these changes of the claim and of the curve's y."""
        other = json.loads(json.dumps(report))
        other["about"]["seconds"] = 9.0
        other["claims"][0] |= {k: v for k, v in changes.items() if k != "y"}
        other["experiments"][0]["panels"][0]["series"][0] |= {k: v for k, v in changes.items() if k == "y"}
        found: list[str] = same_numbers.differences(report, other)
        return found

    assert compared() == compared(y=[0.25 * (1 + 1e-10), -1e-16]) == []
    assert compared(verdict="FAIL") == ["/claims/fewer/verdict was PASS, and is FAIL."]
    assert compared(numbers={"ratio": 0.5 + 1e-8}) == ["/claims/fewer/numbers/ratio was 0.5, and is 0.50000001."]
    assert compared(numbers={"share": 0.5}) == [
        "/claims/fewer/numbers/ratio is missing.",
        "/claims/fewer/numbers/share is new.",
    ]
    assert compared(y=[0.25]) == ["/experiments/fig1a/panels/theory/series/gd/y/1 is missing."]
    for name in ("old", "new"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "results.json").write_text(json.dumps(report))
    assert same_numbers.main([str(tmp_path / "old"), str(tmp_path / "new")]) == 0
    report["about"]["L_max"] = None
    (tmp_path / "new" / "results.json").write_text(json.dumps(report))
    assert same_numbers.main([str(tmp_path / "old"), str(tmp_path / "new")]) == 1
    assert "/about/L_max was 1.5, and is None." in capsys.readouterr().out
