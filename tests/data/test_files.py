"""Files of data: svmlight, CSV and NPZ are read exactly, or refused in one sentence."""

from __future__ import annotations

import bz2
import csv
import gzip
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_matrix
from sklearn.datasets import load_svmlight_file

import proxskip as ps
from proxskip.datasets.files import Dataset, read_svmlight
from proxskip.types import InputError
from support.tiers import draws

RNG = np.random.default_rng(0)
X, Y, G = RNG.normal(size=(40, 3)), np.arange(40) % 2, np.arange(40) // 10


def load(path: Path, text: str, **columns: Any) -> Dataset:
    path.write_text(text, encoding="utf-8")
    return ps.datasets.load(path, **columns)


# -- svmlight ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("name", "pack"), [("toy", bytes), ("toy.gz", gzip.compress), ("toy.bz2", bz2.compress)])
def test_svmlight_becomes_a_csr_matrix_and_its_raw_labels(tmp_path: Path, name: str, pack: Any) -> None:
    (tmp_path / name).write_bytes(pack(b"# comment\n+1 1:0.5 3:2\n\n-1 2:-1e-3 3:0\r\n"))
    data = ps.datasets.load(tmp_path / name)
    A, b = data
    assert isinstance(A, csr_matrix)
    assert A.toarray().tolist() == [[0.5, 0, 2], [0, -0.001, 0]]
    assert A.nnz == 3  # without the zero
    assert b.tolist() == [1, -1]
    assert data.name == "toy"
    assert read_svmlight(tmp_path / name, n_features=5).A.shape == (2, 5)


@pytest.mark.parametrize(("text", "said"), [
    ("", "holds no rows"),
    ("# only a comment\n", "holds no rows"),
    ("1 1:nan\n", "holds nan or infinity"),
    ("inf 1:1\n", "holds nan or infinity"),
    ("1 1:\n", "is not an svmlight file"),
    ("1 0:1\n", "is not an svmlight file"),
    ("1 2:1 2:3\n", "is not an svmlight file"),
    ("1 2:1 1:3\n", "is not an svmlight file"),
    ("a,b,label\n1,2,0\n", "tables need the ending .csv or .npz"),
])  # fmt: skip
def test_bad_svmlight_is_one_sentence(text: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=rf"\A[^\n]*{re.escape(said)}[^\n]*\Z"):
        load(tmp_path / "file", text)


@pytest.mark.parametrize("name", ["w8a", "a1a"])
def test_real_sets_equal_what_scikit_learn_reads(proxskip_data: Path, name: str) -> None:
    A, b = load_svmlight_file(str(proxskip_data / f"{name}.gz"))
    data = read_svmlight(proxskip_data / f"{name}.gz")
    assert (data.A != A).nnz == 0
    assert np.array_equal(data.b, b)


# -- tables ------------------------------------------------------------------------------------------------------------
def written(path: Path, label: str = "label") -> Path:
    names, rows = ["a", "b", "c", label, "site"], np.column_stack([X, Y, G])
    if path.suffix == ".csv":
        with path.open("w", newline="") as file:
            csv.writer(file).writerows([names, *[[repr(float(v)) for v in row] for row in rows]])
    else:
        np.savez(path, **{name: rows[:, k] for k, name in enumerate(names)})
    return path


@pytest.mark.parametrize("ending", [".csv", ".npz"])
def test_tables_are_read_exactly(ending: str, tmp_path: Path) -> None:
    path = written(tmp_path / f"table{ending}")
    data = ps.datasets.load(path, group="site")
    assert np.array_equal(data.A, X)
    assert np.array_equal(data.b, Y)
    assert np.array_equal(data.group, G)  # type: ignore[arg-type]
    assert data.name == "table"
    some = ps.datasets.load(path, label="b", columns=["c", "a"])
    assert np.array_equal(some.A, X[:, [2, 0]])
    assert np.array_equal(some.b, X[:, 1])
    assert some.sha256 == data.sha256


@pytest.mark.parametrize("ending", [".csv", ".npz"])
def test_the_command_line_reads_tables_and_resumes_them(ending: str, tmp_path: Path, call: Any) -> None:
    path, out = written(tmp_path / f"table{ending}", label="ill"), tmp_path / "run"
    flags = ("--data", path, "--label", "ill", "--columns", "a,c", "--group", "site", "--split", "group")
    assert call("run", "scaffnew", *flags, "--rounds", "5", "--out", out)[0] == 0
    assert call("resume", out, "--rounds", "8")[0] == 0
    model = ps.Logistic(X[:, [0, 2]], Y, l2_relative=1e-4)
    wanted = ps.run("scaffnew", ps.split(model, by="group", groups=G), rounds=8)
    assert np.array_equal(np.load(out / "x.npy"), wanted.x)


def test_features_are_standardized_on_request() -> None:
    rng = np.random.default_rng(0)
    raw = Dataset(
        np.column_stack([1e6 + rng.normal(size=50), 1e-3 * rng.normal(size=50), np.full(50, 0.1)]), np.ones(50)
    )
    A = raw.standardized().A
    np.testing.assert_allclose(A.mean(axis=0), 0.0, atol=1e-9)
    np.testing.assert_allclose(np.mean(A**2, axis=0), [1, 1, 0], rtol=1e-9)
    for k in range(2):  # each feature is an affine function of what it was
        np.testing.assert_allclose(np.abs(np.corrcoef(A[:, k], raw.A[:, k])[0, 1]), 1.0, rtol=1e-9)
    sparse = Dataset(csr_matrix(np.diag([2.0, 4.0, 0.0])), np.ones(3)).standardized().A
    assert isinstance(sparse, csr_matrix)
    np.testing.assert_allclose(sparse.toarray(), np.diag([np.sqrt(3), np.sqrt(3), 0.0]), rtol=1e-15)


@pytest.mark.filterwarnings("always:lambda")
def test_raw_features_are_warned_about_and_standardized(tmp_path: Path, call: Any) -> None:
    rng = np.random.default_rng(0)
    A = rng.normal(size=(60, 3)) * [1e4, 1.0, 1e-2]
    np.savez(tmp_path / "raw.npz", X=A, y=np.sign(A[:, 1]))
    command = ("run", "gd", "--data", tmp_path / "raw.npz", "--rounds", "1", "--clients", "2", "--json")
    code, _, err = call(*command)
    assert code == 0
    assert "outweighs the loss in most features" in err
    code, out, err = call(*command, "--standardize")
    assert "outweighs" not in err
    again = ps.Logistic(*ps.datasets.load(tmp_path / "raw.npz").standardized(), l2_relative=1e-4)
    assert json.loads(out)["lambda"] == again.l2
    assert "outweighs" not in call("run", "gd", "--data", "digits", "--rounds", "1", "--clients", "2")[2]


def test_compressed_csv_and_the_matrix_of_an_npz(tmp_path: Path) -> None:
    (tmp_path / "table.csv.gz").write_bytes(gzip.compress(written(tmp_path / "table.csv").read_bytes()))
    assert np.array_equal(ps.datasets.load(tmp_path / "table.csv.gz").A[:, :3], X)
    np.savez_compressed(tmp_path / "m.npz", X=X, y=Y, other=np.zeros(7))
    assert np.array_equal(ps.datasets.load(tmp_path / "m.npz").A, X)


cells = st.floats(allow_nan=False, allow_infinity=False).map(repr) | st.integers(-(2**60), 2**60).map(str)
words = st.text("abé ,\"'#", min_size=1).filter(lambda text: text.strip() == text)


@settings(max_examples=draws(100))
@given(
    rows=st.lists(st.tuples(cells, words, cells, words), min_size=1, max_size=8), ends=st.sampled_from(["\n", "\r\n"])
)
def test_what_the_csv_module_writes_is_read_exactly(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str, ...]], ends: str
) -> None:
    path = tmp_path_factory.mktemp("csv") / "t.csv"
    with path.open("w", newline="", encoding="utf-8-sig") as file:  # as Excel writes it
        csv.writer(file, lineterminator=ends).writerows([("a", "label", "b", "site"), *rows])
    data = ps.datasets.load(path, group="site")
    assert data.A.tolist() == [[float(a), float(b)] for a, _, b, _ in rows]
    assert data.b.tolist() == [label for _, label, _, _ in rows]
    assert [data.group_names[k] for k in data.group] == [site for _, _, _, site in rows]  # type: ignore[union-attr]


@pytest.mark.parametrize(("text", "said"), [
    ("", "is empty"),
    ("a,label\n", "holds no rows"),
    ("a,label\n1,0\n2\n", "line 3 of {file} has 1 cells under 2 columns"),
    ("a,label\n1,0\n2,5,1\n", "line 3 of {file} has 3 cells under 2 columns"),
    ("a,label\n1,0\nParis,1\n", "line 3 of {file} has 'Paris' in the column 'a', which is not a number"),
    ("a,label\n1,0\n,1\n", "line 3 of {file} has '' in the column 'a'"),
    ("a,label\n1,0\n1,\n", "the column 'label' has '' in row 2; fill or leave out such rows"),
    ("a,label\n1,NA\n1,0\n1,1\n", "the column 'label' has 'NA' in row 1"),
    ("a,label\n1,0\n1,no\n", "the column 'label' has numbers, and 'no' in row 2"),
    ("a,label\nnan,0\n", "'a' holds nan or infinity"),
    ("a,label\n1,inf\n", "'label' holds infinity"),
    ("a,a,label\n1,2,0\n", "two columns"),
    ("label\n1\n", "no column besides"),
    ("a;label\n1;0\n", "are separated by semicolons; save it with commas"),
    ("a\tlabel\n1\t0\n", "are separated by tabs"),
    ("1,0\n2,1\n", "the first line of {file} holds numbers; write the names of the columns above it"),
    ("a,z\n1,0\n", "has no column label, target, y, b, class; say which has the labels with label="),
])  # fmt: skip
def test_bad_csv_is_one_sentence(text: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    with pytest.raises(InputError, match=rf"\A[^\n]*{re.escape(said.format(file=path))}[^\n]*\Z"):
        load(path, text)


def test_latin_1_is_refused(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_bytes("é,label\n1,0\n".encode("latin-1"))
    with pytest.raises(InputError, match=r"is not text in UTF-8 .*; save it as UTF-8"):
        ps.datasets.load(tmp_path / "t.csv")


@pytest.mark.parametrize(("columns", "said"), [
    ({"label": "z"}, "has no column 'z'; its columns are a, b, label"),
    ({"columns": ["a", "label"]}, "cannot be a feature and the label"),
    ({"columns": "ab"}, 'columns is a list of names, such as ["ab"]'),
    ({"group": "site"}, "has no column 'site'"),
])  # fmt: skip
def test_a_wrong_name_of_a_column_is_one_sentence(columns: Any, said: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=re.escape(said)):
        load(tmp_path / "t.csv", "a,b,label\n1,2,0\n", **columns)


@pytest.mark.parametrize(("arrays", "said"), [
    ({"X": X, "y": np.array([{}] * 40, dtype=object)}, "damaged, or not an NPZ file of numbers"),
    ({"X": X, "y": Y[:5]}, "do not have one entry per row"),
    ({"X": X}, "has no column label"),
    ({"X": X.astype("U9"), "y": Y}, "features are numbers"),
    ({"X": np.where(X > 2, np.nan, X), "y": Y}, "nan or infinity"),
    ({"X": X[None], "y": Y}, "is 3-D"),
])  # fmt: skip
def test_bad_npz_is_one_sentence(arrays: Any, said: str, tmp_path: Path) -> None:
    np.savez(tmp_path / "t.npz", **arrays)
    with pytest.raises(InputError, match=re.escape(said)):
        ps.datasets.load(tmp_path / "t.npz")


@pytest.mark.parametrize("name", ["t.npz", "t.csv.gz", "t.gz"])
def test_damaged_files_are_one_sentence(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(b"PK\x03\x04 or <html>")
    with pytest.raises(InputError, match=r"\A[^\n]*\Z"):
        ps.datasets.load(tmp_path / name)


@pytest.mark.parametrize("ending", [".tsv", ".json", ".parquet", ".xlsx", ".npy"])
def test_other_formats_are_named(ending: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=rf"has the ending {re.escape(ending)}, and proxskip reads svmlight, .csv and"):
        load(tmp_path / f"table{ending}", "a\tlabel\n1\t0\n")


# -- labels and groups -------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("ending", [".csv", ".npz"])
def test_ids_above_two_to_the_53_stay_apart(ending: str, tmp_path: Path) -> None:
    ids = [2**53 + 1, 2**53, 2**53 + 1, 7]
    path = tmp_path / f"t{ending}"
    if ending == ".csv":
        rows = "".join(f"{k},{id},{k % 2}\n" for k, id in enumerate(ids))
        data = load(path, "a,id,label\n" + rows, label="id", columns=["a"], group="id")
    else:
        np.savez(path, a=np.arange(4.0), id=np.array(ids))
        data = ps.datasets.load(path, label="id", columns=["a"], group="id")
    assert data.group.tolist() == [2, 1, 2, 0]  # type: ignore[union-attr]
    assert data.group_names == ("7", "9007199254740992", "9007199254740993")
    assert data.b.tolist() == [str(id) for id in ids]


def test_groups_are_in_the_order_of_numbers_or_of_the_alphabet(tmp_path: Path) -> None:
    for ids, names in (
        (["10", "9", "-1"], ("-1", "9", "10")),
        (["1.5", "1e-3"], ("1e-3", "1.5")),
        (["b", "a", "10"], ("10", "a", "b")),
    ):
        rows = "".join(f"1,{id},0\n" for id in ids)
        data = load(tmp_path / "t.csv", "a,site,label\n" + rows, group="site")
        assert data.group_names == names
        assert [names[k] for k in data.group] == ids  # type: ignore[union-attr]


def test_a_data_set_is_shown_in_a_few_short_lines(tmp_path: Path) -> None:
    rows = "".join(f"{k},{'no' if k % 3 else 'yes'},hospital-{k}\n" for k in range(500))
    data = load(tmp_path / "t.csv", "a,label,site\n" + rows, group="site")
    assert repr(data).splitlines()[:2] == ["Dataset t: 500 rows, 1 features", "  labels  no, yes"]
    assert "hospital-0" in repr(data)
    assert len(repr(data)) < 300
    assert "500 rows" in data._repr_html_()


def test_a_column_that_numbers_the_rows_is_not_a_feature_without_a_word(tmp_path: Path) -> None:
    text = ",a,label\n0,5,1\n1,7,0\n"  # as pandas writes it
    with pytest.warns(UserWarning, match="the column '' of .* is used as a feature"):
        load(tmp_path / "t.csv", text)
    assert load(tmp_path / "t.csv", text, columns=["a"]).A.tolist() == [[5], [7]]
