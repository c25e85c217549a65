"""The command line as people use it: help, tables as data, operators by text, completion, doctor."""

from __future__ import annotations

import contextlib
import csv
import gzip
import importlib.util
import json
import os
import pty
import re
import select
import shutil
import subprocess
import time
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import proxskip as ps
from proxskip.cli import main
from proxskip.cli.flags import parser
from proxskip.data.svmlight import DataError
from proxskip.data.tables import Named, open_npz, read_table
from proxskip.prox import parse as prox_text
from proxskip.types import InputError

RNG = np.random.default_rng(0)
X, Y, G = RNG.normal(size=(40, 3)), np.arange(40) % 2, np.arange(40) // 10
COLUMNS = ("a", "b", "c")


def call(capsys: Any, *argv: str) -> tuple[int, str, str]:
    code = main(list(argv))
    out, err = capsys.readouterr()
    return code, out, err


# -- help --------------------------------------------------------------------------------------------------------------
def test_bare_proxskip_prints_help(capsys: Any) -> None:
    code, out, err = call(capsys)
    assert (code, err) == (0, "")
    assert out.startswith("usage: proxskip")
    assert "proxskip run scaffnew" in out


# -- tables ------------------------------------------------------------------------------------------------------------
def write(path: Path, label: str = "label", columns: tuple[str, ...] = COLUMNS) -> Path:
    names, rows = [*columns, label, "site"], np.column_stack([X, Y, G])
    if path.suffix == ".csv":
        with path.open("w", newline="") as file:
            csv.writer(file).writerows([names, *[[repr(float(v)) for v in row] for row in rows]])
    elif path.suffix == ".npz":
        np.savez(path, **{name: rows[:, k] for k, name in enumerate(names)})
    else:
        import pyarrow
        import pyarrow.parquet

        pyarrow.parquet.write_table(pyarrow.table({name: rows[:, k] for k, name in enumerate(names)}), path)
    return path


PARQUET = pytest.param(
    ".parquet",
    marks=pytest.mark.skipif(importlib.util.find_spec("pyarrow") is None, reason="pyarrow is not installed"),
)
ENDINGS = [".csv", ".npz", PARQUET]


@pytest.mark.parametrize("ending", ENDINGS)
def test_tables_are_read_exactly(ending: str, tmp_path: Path) -> None:
    path = write(tmp_path / f"table{ending}")
    data = ps.datasets.load(path, group="site")
    assert np.array_equal(data.A, X)
    assert np.array_equal(data.b, Y)
    assert np.array_equal(data.group, G)  # type: ignore[arg-type]
    assert data.name == "table"
    some = ps.datasets.load(path, label="b", columns=["c", "a"])
    assert np.array_equal(some.A, X[:, [2, 0]])
    assert np.array_equal(some.b, X[:, 1])
    assert some.sha256 == data.sha256


@pytest.mark.parametrize("ending", ENDINGS)
def test_the_command_line_reads_tables_and_resumes_them(ending: str, tmp_path: Path, capsys: Any) -> None:
    path, out = write(tmp_path / f"table{ending}", label="ill"), tmp_path / "run"
    flags = ("--data", str(path), "--label", "ill", "--columns", "a,c", "--group", "site", "--split", "group")
    code, said, _ = call(capsys, "run", "scaffnew", *flags, "--rounds", "5", "--out", str(out), "--json")
    assert code == 0
    assert (json.loads(said)["d"], json.loads(said)["clients"], json.loads(said)["samples"]) == (2, 4, 40)
    code, said, _ = call(capsys, "resume", str(out), "--rounds", "8", "--json")
    assert code == 0
    model = ps.Logistic(X[:, [0, 2]], Y, l2=1e-4, l2_relative=True)
    wanted = ps.run("scaffnew", ps.split(model, by="group", groups=G), rounds=8)
    assert np.array_equal(np.load(out / "x.npy"), wanted.x)


def test_compressed_csv_and_the_matrix_of_an_npz(tmp_path: Path) -> None:
    plain = write(tmp_path / "table.csv")
    (tmp_path / "table.csv.gz").write_bytes(gzip.compress(plain.read_bytes()))
    assert np.array_equal(read_table(tmp_path / "table.csv.gz").A[:, :3], X)
    np.savez_compressed(tmp_path / "m.npz", X=X, y=Y)
    assert np.array_equal(read_table(tmp_path / "m.npz").A, X)


@pytest.mark.parametrize(("text", "said"), [
    ("", "the file is empty"),
    ("a,label\n", "holds no rows"),
    ("a,label\n1,0\n2\n", "table.csv:3:1: 1 cells under 2 columns"),
    ("a,label\n1,0\nx,1\n", "table.csv:3:1: 'x' in the column 'a' is not a finite number"),
    ("a,label\n1,0\n1,\n", "table.csv:3:2: '' in the column 'label'"),
    ("a,label\nnan,0\n", "not a finite number"),
    ("a,label\n1,0\n\"2,1\n", "not CSV"),
    ("a,a,label\n1,2,0\n", "two columns"),
    ("a,c\n1,0\n", "--label NAME"),
    ("label\n1\n", "no column besides"),
])  # fmt: skip
def test_bad_csv_is_refused_with_its_place(text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "table.csv").write_text(text)
    with pytest.raises(InputError) as error:
        read_table(tmp_path / "table.csv")
    assert said in str(error.value)


def test_bad_tables_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "table.csv")
    with pytest.raises(InputError, match="no column 'z'; its columns are a, b, c"):
        read_table(path, Named("z"))
    with pytest.raises(InputError, match="feature and the label"):
        read_table(path, Named("a", ("a", "b")))
    with pytest.raises(InputError, match="label belongs to a CSV"):
        ps.datasets.load("digits", label="y")
    with pytest.raises(DataError, match="max_bytes"):
        read_table(path, max_bytes=1000)
    (tmp_path / "bad.csv").write_bytes(b"a,label\n\xff,1\n")
    with pytest.raises(DataError, match="UTF-8"):
        read_table(tmp_path / "bad.csv")
    (tmp_path / "bad.npz").write_bytes(b"PK")
    with pytest.raises(InputError, match="not an NPZ file"):
        read_table(tmp_path / "bad.npz")
    np.savez(tmp_path / "object.npz", X=X, y=np.array([{}] * 40, dtype=object))
    with pytest.raises(InputError, match="not an NPZ file"):
        read_table(tmp_path / "object.npz")


def test_an_npz_file_with_one_name_twice_or_more_bytes_than_it_has_is_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "good.npz", X=X, y=Y)
    with zipfile.ZipFile(tmp_path / "good.npz") as good, zipfile.ZipFile(tmp_path / "bad.npz", "w") as bad:
        for name in ("X.npy", "y.npy", "y.npy"):
            with (
                contextlib.nullcontext() if name not in bad.namelist() else pytest.warns(UserWarning, match="Duplicate")
            ):
                bad.writestr(name, good.read(name))
    with pytest.raises(InputError, match="two columns with the name 'y'"):
        read_table(tmp_path / "bad.npz")
    with pytest.raises(InputError, match=r"would hold .* bytes"), open_npz(tmp_path / "good.npz", 100):
        pass


@pytest.mark.slow
def test_tables_that_unpack_to_far_more_than_their_size_are_refused(tmp_path: Path) -> None:
    (tmp_path / "bomb.csv.gz").write_bytes(gzip.compress(b"a,label\n" + (b"1." + b"0" * 500 + b",0\n") * 2**16))
    with pytest.raises(DataError, match="times the size"):
        read_table(tmp_path / "bomb.csv.gz")
    np.savez_compressed(tmp_path / "bomb.npz", X=np.zeros((2**22, 2)), y=np.zeros(2**22))
    with pytest.raises(InputError, match="it is refused"):
        read_table(tmp_path / "bomb.npz")


@pytest.mark.skipif(importlib.util.find_spec("pyarrow") is None, reason="pyarrow is not installed")
def test_bad_parquet_is_refused(tmp_path: Path) -> None:
    import pyarrow
    import pyarrow.parquet

    for name, column, said in (("text", ["x", "y"], "give numbers"), ("null", [1.0, None], "1 empty cells")):
        pyarrow.parquet.write_table(pyarrow.table({"a": column, "y": [0, 1]}), tmp_path / f"{name}.parquet")
        with pytest.raises(InputError, match=said):
            read_table(tmp_path / f"{name}.parquet")
    (tmp_path / "bad.parquet").write_bytes(b"PAR1")
    with pytest.raises(InputError, match="not a Parquet file"):
        read_table(tmp_path / "bad.parquet")
    with pytest.raises(InputError, match="split it"):
        read_table(write(tmp_path / "big.parquet"), max_bytes=100)


# -- operators ---------------------------------------------------------------------------------------------------------
EXAMPLES = {
    "l1": "l1:0.5", "l2": "l2:0.5", "squared-l2": "squared-l2:0.5", "elastic-net": "elastic-net:0.5,1",
    "huber": "huber:0.5,1", "group": "group:0.5,2", "tv": "tv:0.5,0.1", "tv2d": "tv2d:0.5,2x2",
    "nuclear": "nuclear:0.5,2x2", "nonnegative": "nonnegative", "box": "box:-1,1", "simplex": "simplex:2",
    "l1-ball": "l1-ball:2", "l2-ball": "l2-ball", "nuclear-ball": "nuclear-ball:1,2x2",
    "spectral-ball": "spectral-ball:1,2x2", "psd": "psd:2", "consensus": "consensus:2", "singleton": "singleton",
    "zero": "zero",
}  # fmt: skip


@pytest.mark.parametrize("name", [n for n in prox_text.FORMS if n != "tv2d"])
def test_every_operator_by_its_text(name: str) -> None:
    psi = prox_text.parse(EXAMPLES[name], 4)
    prox_text.check(EXAMPLES[name])
    x = np.array([2.0, -1.0, 0.5, 3.0])
    y = psi.prox(x, 0.7)
    z = y + 0.01 * RNG.normal(size=4)
    # y minimizes psi + |. - x|^2 / (2 t): no worse than points near it and than x itself
    value = psi(y) + np.sum((y - x) ** 2) / 1.4
    assert np.isfinite(psi(y))
    assert value <= psi(z) + np.sum((z - x) ** 2) / 1.4 + 1e-9
    assert value <= psi(x) + 1e-9
    assert repr(prox_text.parse(EXAMPLES[name], 4)) == repr(psi)


def test_texts_become_the_right_operators() -> None:
    assert prox_text.parse("l1:1e-3", 5) == ps.prox.L1(1e-3)
    assert prox_text.parse("group:0.1,2", 4) == ps.prox.GroupL1(0.1, (2, 2))
    assert prox_text.parse("nuclear:0.5,2x3", 6) == ps.prox.NuclearNorm(0.5, (2, 3))
    assert repr(prox_text.parse("tv2d:0.5,2x2", 4)) == repr(ps.prox.TV2D(0.5, (2, 2)))
    both = prox_text.parse("l1:1e+0+nonnegative", 2)
    assert isinstance(both, ps.prox.Sum)
    np.testing.assert_allclose(both.prox(np.array([3.0, -4.0]), 1.0), [2.0, 0.0], atol=1e-6)


@pytest.mark.parametrize(("text", "said"), [
    ("l3:1", "is not known; use l1:LAM"), ("l1", "write l1:LAM"), ("l1:x", "not a number"), ("l1:1,2", "has 2 numbers"),
    ("nuclear:1,4", "needs a shape such as 28x28"), ("group:1,1.5", "whole number"), ("group:1,3", "do not divide"),
    ("tv2d:1,3x3", "another number of unknowns"), ("l1:-1", "lam"), ("l1:1+l9:2", "is not known"),
])  # fmt: skip
def test_wrong_texts_are_refused(text: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        prox_text.parse(text, 4)


@pytest.mark.slow
def test_the_command_line_takes_the_operators(tmp_path: Path, capsys: Any) -> None:
    path = write(tmp_path / "table.csv")  # four features: the groups too
    for psi in ("tv:0.01", "group:0.01,2", "nuclear:0.01,2x2"):
        code, out, err = call(
            capsys, "run", "proxskip", "--data", str(path), "--rounds", "3", "--psi", psi, "--p", "0.5", "--json"
        )
        assert code == 0, err
        assert json.loads(out)["prox_evals"] > 0


# -- completion --------------------------------------------------------------------------------------------------------
ASK = """
source {script}
ask() {{ COMP_WORDS=("$@"); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); COMPREPLY=(); _shtab_proxskip; echo "${{COMPREPLY[*]}}"; }}
ask proxskip ru
ask proxskip run scaffn
ask proxskip run scaffnew --engine r
ask proxskip run scaffnew --data digi
ask proxskip run scaffnew --check
ask proxskip plot {folder}/a
"""


def test_bash_completes(tmp_path: Path, capsys: Any) -> None:
    code, out, _ = call(capsys, "completion", "bash")
    assert code == 0
    (tmp_path / "script").write_text(out)
    (tmp_path / "a.png").touch()
    ask = ASK.format(script=tmp_path / "script", folder=tmp_path)
    done = subprocess.run(["bash", "-c", ask], capture_output=True, text=True, timeout=60, check=True)
    said = [line.split() for line in done.stdout.splitlines()]
    assert said == [
        ["run"], ["scaffnew", "scaffnew-vr"], ["ray", "reference"], ["digits"], ["--checkpoint-every"],
        [f"{tmp_path}/a.png"],
    ]  # fmt: skip


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_the_other_shells_get_every_command_and_flag(shell: str, tmp_path: Path, capsys: Any) -> None:
    _, out, _ = call(capsys, "completion", shell)
    for name, command in parser("0")[1].items():
        assert name in out
        for flag in command._option_string_actions:
            assert (flag if shell == "zsh" else f"-l {flag[2:]} ") in out or not flag.startswith("--")


def shell_and_script(shell: str, folder: Path, capsys: Any) -> tuple[str, Path]:
    """The shell's program, and its completion script as a file."""
    if (program := shutil.which(shell)) is None:
        pytest.skip(f"{shell} is not installed")
    script = folder / "script"
    script.write_text(call(capsys, "completion", shell)[1])
    (folder / "a.png").touch()
    return program, script


@pytest.mark.shells
def test_fish_completes(tmp_path: Path, capsys: Any) -> None:
    program, script = shell_and_script("fish", tmp_path, capsys)
    typed = ["ru", "run scaffn", "run scaffnew --engine r", "run scaffnew --data digi", f"run scaffnew --data {tmp_path}/a",
             "run scaffnew --check", f"plot {tmp_path}/a"]  # fmt: skip
    asked = "".join(
        f'complete -C "proxskip {words}" | string split -f 1 \\t | string join " "; echo .;' for words in typed
    )
    done = subprocess.run(
        [program, "--no-config", "-c", f"source {script}; {asked}"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert [said.split() for said in done.stdout.split(".\n")[:-1]] == [
        ["run"], ["scaffnew", "scaffnew-vr"], ["ray", "reference"], ["digits"], [f"{tmp_path}/a.png"],
        ["--checkpoint-every"], [f"{tmp_path}/a.png"],
    ]  # fmt: skip


@pytest.mark.slow
@pytest.mark.shells
def test_zsh_completes(tmp_path: Path, capsys: Any) -> None:
    """A person's keys in a terminal: the words, Tab, and then the line is printed instead of run."""
    program, script = shell_and_script("zsh", tmp_path, capsys)
    ours, theirs = pty.openpty()
    env = os.environ | {"TERM": "dumb", "HOME": str(tmp_path), "ZDOTDIR": str(tmp_path)}
    process = subprocess.Popen(
        [program, "-f", "-i"], stdin=theirs, stdout=theirs, stderr=theirs, env=env, start_new_session=True
    )
    os.close(theirs)

    def read_until(pattern: str) -> str:
        said, end = "", time.monotonic() + 60
        while not (found := re.search(pattern, said)) and time.monotonic() < end:
            if select.select([ours], [], [], 1.0)[0]:
                said += os.read(ours, 65536).decode("utf-8", "replace")
        assert found, said
        return found[1]

    try:
        os.write(ours, f'cd {tmp_path}; eval "$(<{script})"; print rea""dy\n'.encode())
        read_until(r"\n(ready)")
        for typed, wanted in (
            ("ru", "run"), ("run scaffnew-", "run scaffnew-vr"), ("run scaffnew --engine re", "run scaffnew --engine reference"),
            ("run scaffnew --data digi", "run scaffnew --data digits"), ("run gd --checkp", "run gd --checkpoint-every"),
            ("run gd --data a.p", "run gd --data a.png"), ("plot a.p", "plot a.png"),
        ):  # fmt: skip
            os.write(ours, f'proxskip {typed}\t\x01print -r -- "<\x05>"\n'.encode())
            assert read_until(r"\n<(.*?)>").strip() == f"proxskip {wanted}"
    finally:
        process.kill()
        process.wait()
        os.close(ours)


# -- doctor and data ---------------------------------------------------------------------------------------------------
@pytest.mark.slow
def test_the_doctor_says_what_works(capsys: Any) -> None:
    code, out, _ = call(capsys, "doctor", "--json")
    assert code == 0
    found = {row["what"]: row for row in json.loads(out)}
    assert {"proxskip", "engine cpu", "engine gpu", "engine ray", "flwr", "data sets"} <= found.keys()
    assert found["engine cpu"]["works"]
    assert found["numpy"]["here"] == np.__version__
    assert found["pandas"]["works"] is (importlib.util.find_spec("pandas") is not None)


def test_the_list_of_data_says_size_and_license(capsys: Any) -> None:
    code, out, _ = call(capsys, "data", "list")
    assert code == 0
    assert "license" in out
    assert "3.5 MB" in out  # w8a
    rows = {row["name"]: row for row in json.loads(call(capsys, "data", "list", "--json")[1])}
    assert all(row["page"].startswith("https://") for row in rows.values())
    assert rows["w8a"]["size"] == 3_478_238
