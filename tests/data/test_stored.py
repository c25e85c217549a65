"""Clients in a folder that is mapped into memory: the same problem as in memory, whatever the order of the rows."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse

import proxskip as ps
from proxskip.datasets.stored import Stored
from proxskip.engines.cpu.shards import Rows, pack
from proxskip.results.description import fingerprint

N, D, CLIENTS = 160, 9, 20


def rows(labels: int = 2) -> tuple[Any, Any, Any]:
    rng = np.random.default_rng(3)
    A = scipy.sparse.csr_matrix(np.where(rng.random((N, D)) < 0.4, rng.standard_normal((N, D)), 0.0))
    return A, rng.integers(0, labels, N), rng.permutation(np.arange(N) % 23 % CLIENTS)  # 7 to 14 rows each


def pieces(labels: int = 2, names: bool = False) -> list[tuple[Any, Any, Any]]:
    """Three pieces, with rows of all clients in each."""
    A, b, g = rows(labels)
    clients: Any = np.char.add("client-", np.char.zfill(g.astype(str), 3)) if names else g
    return [(A[part], b[part], clients[part]) for part in np.array_split(np.arange(N), 3)]


def same(a: Any, b: Any) -> bool:
    return np.asarray(a).tobytes() == np.asarray(b).tobytes()


@pytest.mark.parametrize(
    ("names", "weights", "batch"), [(False, "rows", None), (True, "equal", None), (True, "rows", 5)]
)
def test_a_folder_of_clients_is_the_problem_of_its_rows(tmp_path: Path, names: bool, weights: Any, batch: Any) -> None:
    ps.datasets.write_clients(tmp_path / "store", pieces(names=names))
    stored = ps.datasets.open_clients(tmp_path / "store", l2=0.1, weights=weights, batch=batch)
    A, b, g = rows()
    here = ps.split(ps.Logistic(A, b, l2=0.1), by="group", groups=g, weights=weights, batch=batch)
    assert isinstance(stored.clients, Stored)
    x = np.random.default_rng(0).standard_normal(D)
    for name in ("weights", "sizes", "N"):
        assert same(getattr(stored, name), getattr(here, name)), name
    for name in ("L_i", "mu_i", "L_average"):  # LAPACK has several ways to an eigenvalue
        assert np.allclose(getattr(stored, name), getattr(here, name), rtol=1e-12), name
    assert same(stored.client_gradients(x), here.client_gradients(x))
    assert np.isclose(stored.value(x), here.value(x), rtol=1e-14)
    assert same(stored.clients[7].A.toarray(), here.clients[7].A.toarray())  # type: ignore[attr-defined]
    assert batch is None or stored.es_A == pytest.approx(here.es_A, rel=1e-12)
    method = ps.Scaffnew(gamma=0.1, p=0.4)
    runs = [ps.run(method, p, rounds=5, seed=1, engine=e).x for p in (stored, here) for e in ("cpu", "reference")]
    assert all(np.allclose(x, runs[0], rtol=1e-11) for x in runs)


@pytest.mark.parametrize("batch", [None, 2])
def test_nothing_is_copied_into_memory(tmp_path: Path, batch: int | None) -> None:
    ps.datasets.write_clients(tmp_path / "store", pieces())
    problem = ps.datasets.open_clients(tmp_path / "store", l2=0.1, batch=batch)
    packed = pack(problem)
    assert isinstance(packed, Rows)
    clients: Any = problem.clients
    for name, held in (("data", packed.data.values), ("indices", packed.data.indices)):
        for v in (held, getattr(clients.store.A, name), getattr(problem.whole.A, name)):
            assert np.shares_memory(v, clients.files.arrays[name]), name
    assert all(isinstance(v, np.memmap) for v in clients.files.arrays.values())
    with pytest.raises(ValueError, match="read-only"):
        clients.store.A.data[0] += 1.0


def test_pieces_and_places_do_not_matter(tmp_path: Path) -> None:
    ps.datasets.write_clients(tmp_path / "one", lambda: iter(pieces()))
    ps.datasets.write_clients(tmp_path / "two", pieces()[::-1])
    one, two = (ps.datasets.open_clients(tmp_path / name, l2=0.1) for name in ("one", "two"))
    assert same(one.weights, two.weights)
    x = np.ones(one.d)
    assert np.allclose(one.client_gradients(x), two.client_gradients(x), rtol=1e-12, atol=1e-15)
    assert fingerprint(one) != fingerprint(two)  # the rows of a client are in another order
    assert fingerprint(one) == fingerprint(ps.datasets.open_clients(tmp_path / "one", l2=0.1))
    assert fingerprint(one) != fingerprint(ps.datasets.open_clients(tmp_path / "one", l2=0.2))


def test_softmax_and_least_squares_read_the_same_folder(tmp_path: Path) -> None:
    ps.datasets.write_clients(tmp_path / "store", pieces(labels=3))
    assert ps.datasets.open_clients(tmp_path / "store", ps.Softmax, l2=0.1).d == 3 * D
    assert ps.datasets.open_clients(tmp_path / "store", ps.LeastSquares, l2=0.1, batch=2).batch == 2
    with pytest.raises(ps.InputError, match="two classes"):
        ps.datasets.open_clients(tmp_path / "store", l2=0.1)


def test_pieces_that_change_between_their_two_readings_are_refused(tmp_path: Path) -> None:
    A, b, g = rows()
    turned = np.arange(N)[::-1]
    for k, second in enumerate((
        (A[turned], b, g),  # rows of other lengths
        (A, b, g[turned]),  # rows of other clients
        (A[1:], b[1:], g[1:]),
        tuple(np.concatenate([v, v[:1]]) if v is not A else scipy.sparse.vstack([A, A[:1]]) for v in (A, b, g)),
    )):  # fmt: skip
        readings = iter([[(A, b, g)], [second]])
        with pytest.raises(ps.InputError, match="differ when they are read again"):
            ps.datasets.write_clients(tmp_path / str(k), lambda readings=readings: next(readings))
        with pytest.raises(ps.InputError, match="holds no clients"):
            ps.datasets.open_clients(tmp_path / str(k))


def test_what_cannot_be_written_or_read_is_one_sentence(tmp_path: Path) -> None:
    A, b, g = rows()
    twice = scipy.sparse.csr_matrix((np.ones(2), [3, 3], np.append(0, np.full(N, 2))), shape=(N, D))
    for wrong, match in (
        ([], "no rows"),
        ([(A.toarray(), b, g)], r"piece 0 is not \(A, b, clients\)"),
        ([(A, np.where(b, np.nan, b), g)], "a label that is not a finite number"),
        ([(A, b, g * 0.5)], "use whole numbers or text"),
        ([(A, b[1:], g)], "160 rows"),
        ([(A, b, g), (A * np.inf, b, g)], "piece 1 has a value that is not finite"),
        ([(A, b, g), (A[:, :4], b, g)], "piece 1 has 4 features, and the first has 9"),
        ([(twice, b, g)], "two entries with the same index"),
    ):
        with pytest.raises(ps.InputError, match=match):
            ps.datasets.write_clients(tmp_path / "a", wrong)  # type: ignore[arg-type]
        assert not (tmp_path / "a").exists()
    with pytest.raises(ps.InputError, match="differ when they are read again"):
        ps.datasets.write_clients(tmp_path / "a", iter(pieces()))  # type: ignore[arg-type]
    with pytest.raises(ps.InputError, match="holds no clients"):
        ps.datasets.open_clients(tmp_path / "a")  # not finished
    ps.datasets.write_clients(tmp_path / "f", pieces())
    with pytest.raises(ps.InputError, match="already"):
        ps.datasets.write_clients(tmp_path / "f", pieces())
    about = tmp_path / "f" / "store.json"
    wrong_count = json.dumps(json.loads(about.read_text()) | {"rows": "160"})
    for text, match in ((wrong_count, r"is damaged \(store.json lacks rows"), ("[]", "another version")):
        about.write_text(text)
        with pytest.raises(ps.InputError, match=match):
            ps.datasets.open_clients(tmp_path / "f")


def with_entry(name: str, at: int, value: int) -> Any:
    def change(v: Any) -> Any:
        v[at] = value
        return v

    return name, change


DAMAGE = {
    "index too large": with_entry("indices", 5, D),
    "index negative": with_entry("indices", 0, -1),
    "rows that overlap": with_entry("indptr", 7, 0),
    "rows before": with_entry("indptr", 0, -4),
    "last row outside": with_entry("indptr", -1, 10**6),
    "clients outside": with_entry("row0", 3, 10**6),
    "an empty client": ("row0", lambda v: np.concatenate([v[:1], v[:-2], v[-1:]])),
    "indices with fractions": ("indices", lambda v: v.astype(float)),
    "rows with fractions": ("indptr", lambda v: v.astype(float)),
    "values of 32 bits": ("data", lambda v: v.astype(np.float32)),
    "values cut off": ("data", lambda v: v[:-1]),
    "labels as a table": ("b", lambda v: v[:, None]),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_folder_is_refused(damage: str, tmp_path: Path) -> None:
    """Products check no indices: one out of range would read or write other memory."""
    ps.datasets.write_clients(tmp_path / "store", pieces())
    name, change = DAMAGE[damage]
    path = tmp_path / "store" / f"{name}.npy"
    np.save(path, change(np.load(path)))
    with pytest.raises(ps.InputError, match=r"store is damaged \(.*\.npy .*\); write it again"):
        ps.datasets.open_clients(tmp_path / "store", l2=0.1)
    for content in (b"", b"no array", b"\x93NUMPY\x01\x00\x76\x00{"):
        path.write_bytes(content)
        with pytest.raises(ps.InputError, match="store is damaged"):
            ps.datasets.open_clients(tmp_path / "store")


def test_a_part_of_a_folder_is_checked_for_itself(tmp_path: Path) -> None:
    ps.datasets.write_clients(tmp_path / "store", pieces())
    clients: Any = ps.datasets.open_clients(tmp_path / "store", l2=0.1).clients
    path = tmp_path / "store" / "indices.npy"
    np.save(path, with_entry("indices", -1, -1)[1](np.load(path)))
    assert len(clients.part(0, 3)()) == 3
    with pytest.raises(ps.InputError, match="an index outside its 9 features"):
        clients.part(3, CLIENTS)()
