"""Data sets by name: known ones are checked, missing ones say what to do, downloads leave no half file."""

from __future__ import annotations

import bz2
import gzip
import hashlib
import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from proxskip import datasets
from proxskip.datasets import KNOWN, available, fetch, load
from proxskip.types import InputError

TOY = b"".join(b"%d 1:%d 3:0.5 \n" % (1 - 2 * (i % 2), i + 1) for i in range(400))
VERIFIED = ["w8a", "mushrooms", "a1a", "heart_scale"]


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with nothing on it, two invented sets, and no patience; returns the cache folder."""
    monkeypatch.delenv("PROXSKIP_DATA", raising=False)
    monkeypatch.setenv("PROXSKIP_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setattr(datasets, "RETRIES", 3)
    monkeypatch.setattr("pooch.core.time.sleep", lambda seconds: None)
    monkeypatch.setitem(KNOWN, "toy", datasets.Known("toy", 400, 5, None, hashlib.sha256(TOY).hexdigest()))
    monkeypatch.setitem(KNOWN, "toy-rows", datasets.Known("toy_rows.bz2", 400, 5))
    return tmp_path / "cache"


@dataclass
class Server:
    """A small file server that misbehaves as told; each fault is used up by one request."""

    files: dict[str, bytes]
    faults: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        self.asked.append(handler.path)
        fault, _, how = (self.faults.pop(0) if self.faults else "").partition(" ")
        body = b"" if fault == "status" else self.files[handler.path.strip("/")]
        handler.send_response(int(how) if fault == "status" else 200)
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body[: int(how)] if fault == "cut" else body)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    script = Server({"toy": TOY, "toy_rows.bz2": bz2.compress(TOY)})

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            script.answer(self)

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        monkeypatch.setattr(datasets, "BASE_URL", f"http://127.0.0.1:{http.server_port}/")
        yield script
        http.shutdown()
        thread.join()


def write(path: Path, text: bytes) -> None:
    path.write_bytes({".gz": gzip.compress, ".bz2": bz2.compress}.get(path.suffix, bytes)(text))


def left_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


# -- load --------------------------------------------------------------------------------------------------------------
def test_two_sets_are_embedded(bare: Path) -> None:
    digits = load("digits")
    assert (digits.A.shape, digits.A.min(), digits.A.max()) == ((1797, 64), 0, 1)
    assert sorted(set(digits.group)) == list(range(10))  # type: ignore[arg-type]
    assert np.array_equal(digits.b, np.where(digits.group % 2 == 0, 1, -1))  # type: ignore[operator]
    A, b = load("breast-cancer")
    assert A.shape == (569, 30)
    assert np.allclose([A.mean(axis=0), A.std(axis=0)], [[0], [1]])
    assert set(b.tolist()) == {-1, 1}


@pytest.mark.parametrize("name", VERIFIED)
def test_a_real_set_is_what_the_table_says(proxskip_data: Path, name: str) -> None:
    data, known = load(name, data_dir=proxskip_data), KNOWN[name]
    assert (data.name, data.sha256) == (name, known.sha256)
    assert data.A.shape == (known.rows, known.features)  # of which the file of a1a has fewer
    assert known.labels == dict(zip(*np.unique(data.b, return_counts=True), strict=True))
    assert known.size == len(gzip.decompress((proxskip_data / f"{name}.gz").read_bytes()))


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("toy", TOY[: TOY.rindex(b"-1 ")], "its checksum is another one"),
        ("toy", TOY.replace(b"0.5", b"0.6", 1), "its checksum is another one"),
        ("toy", b"<html>please log in</html>", "is not an svmlight file"),
        ("toy", b"1 6:1\n" + TOY, "is not an svmlight file"),  # it has five features
        ("toy-rows", TOY + TOY[:12], "401 rows and 2 labels instead of 400"),  # a set without checksum
        ("toy-rows", TOY.replace(b"-1", b"1"), "400 rows and 1 labels instead of"),
    ],
)
def test_changed_contents_are_refused(bare: Path, tmp_path: Path, name: str, text: bytes, reason: str) -> None:
    (tmp_path / name).write_bytes(text)
    for act in (load, fetch):
        with pytest.raises(InputError, match=re.escape(reason)) as caught:
            act(name, data_dir=tmp_path)
        assert f"remove it and run `proxskip data fetch {name}`" in str(caught.value)
        assert str(tmp_path / name) in str(caught.value)
        assert (tmp_path / name).read_bytes() == text  # nothing is replaced


@pytest.mark.parametrize("file", ["toy_rows", "toy_rows.gz", "toy_rows.bz2", "toy-rows", "toy-rows.gz"])
def test_folders_are_searched_in_order(bare: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str) -> None:
    folders = [bare, tmp_path / "env", tmp_path / "given"]
    monkeypatch.setenv("PROXSKIP_DATA", str(folders[1]))
    folders[2].mkdir()
    for value, folder in enumerate(folders, 2):
        folder.mkdir(exist_ok=True)
        write(folder / file, TOY.replace(b"0.5", b"%d" % value))
        assert load("toy-rows", data_dir=tmp_path / "given").A[0, 2] == value


@pytest.mark.parametrize(("name", "folder", "sentence"), [
    ("digit", None, "did you mean 'digits'"),
    ("w8a", "missing", "is not a folder"),
    ("w8a", None, r"`proxskip data fetch w8a`, or set PROXSKIP_DATA .* w8a, plain or as \.gz"),
    (None, None, 'needs a name such as "digits", or the path of a file, not None'),
    ("here.csv", None, "there is no file here.csv"),
])  # fmt: skip
def test_what_cannot_be_loaded_is_refused(bare: Path, tmp_path: Path, name: Any, folder: Any, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        load(name, data_dir=folder and tmp_path / folder)


def test_a_known_set_has_no_columns(bare: Path) -> None:
    with pytest.raises(InputError, match="belong to a CSV or NPZ file, which digits is not"):
        load("digits", label="y")


def test_available_lists_every_set(bare: Path) -> None:
    bare.mkdir()
    (bare / "toy").write_bytes(b"not read")
    rows = {row.name: row for row in available()}
    assert rows["digits"][:7] == ("digits", 1797, 64, "embedded", True, None, 8 * 1797 * 64)
    assert rows["toy"][:5] == ("toy", 400, 5, "cached", True)
    assert rows["covtype"][:6] == ("covtype", 581_012, 54, "not downloaded", False, None)
    assert set(rows) == {"digits", "breast-cancer", *KNOWN}


# -- fetch -------------------------------------------------------------------------------------------------------------
def test_fetch_puts_the_checked_file_into_the_cache(bare: Path, server: Server) -> None:
    seen: list[tuple[int, int | None]] = []
    path = fetch("toy", progress=lambda have, total: seen.append((have, total)))
    assert path == bare / "toy"
    assert path.read_bytes() == TOY
    assert path.stat().st_mode & 0o777 == 0o644
    assert left_in(bare) == ["toy"]
    assert seen[-1] == (len(TOY), len(TOY))
    assert load("toy").b.size == 400


def test_fetch_takes_the_given_folder_and_asks_once(bare: Path, tmp_path: Path, server: Server) -> None:
    for _ in range(2):
        assert fetch("toy-rows", data_dir=tmp_path / "mine") == tmp_path / "mine" / "toy_rows.bz2"
    assert len(server.asked) == 1


@pytest.mark.parametrize("file", ["toy", "toy.gz", "toy.bz2"])
def test_fetch_takes_what_is_in_the_folder_of_the_environment(
    bare: Path, tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch, file: str
) -> None:
    monkeypatch.setenv("PROXSKIP_DATA", str(tmp_path))
    write(tmp_path / file, TOY)
    assert fetch("toy") == tmp_path / file
    assert not server.asked
    # who names a folder wants the file there
    assert fetch("toy", data_dir=tmp_path / "mine") == tmp_path / "mine" / "toy"
    assert len(server.asked) == 1


def test_a_cut_download_begins_again(bare: Path, server: Server) -> None:
    server.faults = ["cut 1000", "status 503", "cut 10"]
    assert fetch("toy").read_bytes() == TOY
    assert server.asked == ["/toy"] * 4
    assert left_in(bare) == ["toy"]


@pytest.mark.parametrize("fault", ["cut 0", "cut 1", "cut 899", "status 404"])
def test_what_cannot_be_fetched_leaves_nothing(bare: Path, server: Server, fault: str) -> None:
    server.faults = [fault] * 4
    with pytest.raises(InputError, match=r"\Atoy could not be fetched .*; try again, or fetch it by hand.*\Z"):
        fetch("toy")
    assert left_in(bare) == []


def test_without_a_network_the_sentence_says_where_to_put_the_file(bare: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(datasets, "BASE_URL", "http://127.0.0.1:1/")  # where nobody listens
    with pytest.raises(InputError, match=r"by hand, plain or as \.gz or \.bz2, into .* or a folder named by PROX"):
        fetch("toy")


def test_an_interrupted_download_leaves_nothing(bare: Path, server: Server) -> None:
    def stop(have: int, total: int | None) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch("toy", progress=stop)
    assert left_in(bare) == []


@pytest.mark.parametrize("wrong", [TOY[:-20], TOY.replace(b"0.5", b"0.7", 1), b"<html>moved</html>"])
def test_wrong_bytes_never_get_the_name(bare: Path, server: Server, wrong: bytes) -> None:
    server.files = {"toy": wrong, "toy_rows.bz2": bz2.compress(wrong[:-40])}
    with pytest.raises(InputError, match="is not toy: its checksum is another one, so it was thrown away"):
        fetch("toy")
    with pytest.raises(InputError):  # a set without checksum is read
        fetch("toy-rows")
    assert left_in(bare) == []


@pytest.mark.parametrize("body", [bz2.compress(TOY)[:-9], b"<html>please log in</html>"])
def test_a_damaged_download_says_what_is_wrong(bare: Path, server: Server, body: bytes) -> None:
    server.files["toy_rows.bz2"] = body
    with pytest.raises(InputError, match=r"toy_rows\.bz2 cannot be read"):
        fetch("toy-rows")
    assert left_in(bare) == []


def test_an_unwritable_folder_is_refused(bare: Path, tmp_path: Path, server: Server) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(InputError, match="cannot be written to"):
        fetch("toy", data_dir=tmp_path / "file")
