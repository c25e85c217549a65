"""Data sets by name: known ones are checked, missing ones say what to do, downloads leave no half file."""

from __future__ import annotations

import bz2
import gzip
import hashlib
import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
import requests

from proxskip.data import datasets, download
from proxskip.data.datasets import KNOWN, available, content_digest, fetch, load
from proxskip.data.svmlight import read_svmlight
from proxskip.types import InputError

TOY = b"".join(b"%d 1:%d 3:0.5 \n" % (1 - 2 * (i % 2), i + 1) for i in range(400))
VERIFIED = ["w8a", "mushrooms", "a1a", "heart_scale"]


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with nothing on it, two invented sets, and no patience; returns the cache folder."""
    monkeypatch.delenv("PROXSKIP_DATA", raising=False)
    monkeypatch.setenv("PROXSKIP_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(download, "RETRIES", 3)
    monkeypatch.setattr("pooch.core.time.sleep", lambda seconds: None)
    monkeypatch.setattr(download, "TIMEOUT", 2.0)
    packed = tmp_path / "packed"
    packed.write_bytes(TOY)
    data = read_svmlight(packed, n_features=5)
    labels = {-1.0: 200, 1.0: 200}
    toy = datasets.Known("toy", 400, 5, labels, hashlib.sha256(TOY).hexdigest(), content_digest(data))
    monkeypatch.setitem(KNOWN, "toy", toy)
    monkeypatch.setitem(KNOWN, "toy-rows", datasets.Known("toy_rows.bz2", 400, 5))
    return tmp_path / "cache"


@dataclass
class Server:
    """A small file server that misbehaves as told; each fault is used up by one request."""

    files: dict[str, bytes]
    faults: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    url: str = ""

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        self.asked.append(handler.path)
        fault, _, how = (self.faults.pop(0) if self.faults else "").partition(" ")
        body = b"" if fault in ("redirect", "status") else self.files[handler.path.strip("/")]
        handler.send_response(302 if fault == "redirect" else int(how) if fault == "status" else 200)
        if fault == "redirect":
            handler.send_header("Location", how)
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body[: int(how)] if fault == "cut" else body)


@pytest.fixture
def server() -> Iterator[Server]:
    script = Server({"toy": TOY, "toy_rows.bz2": bz2.compress(TOY)})

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            script.answer(self)

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        script.url = f"http://127.0.0.1:{http.server_port}"
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
    assert (data.name, data.sha256, content_digest(data)) == (name, known.sha256, known.content)
    assert data.A.shape == (known.rows, known.features)  # of which the file of a1a has fewer
    assert known.labels == dict(zip(*np.unique(data.b, return_counts=True), strict=True))
    assert known.size == len(gzip.decompress((proxskip_data / f"{name}.gz").read_bytes()))


def test_harmless_variants_of_a_known_set_load_equal(bare: Path, tmp_path: Path) -> None:
    (tmp_path / "toy").write_bytes(b"# copied\n" + TOY.replace(b" \n", b"\r\n"))
    variant = load("toy", data_dir=tmp_path)
    assert variant.sha256 != KNOWN["toy"].sha256
    assert content_digest(variant) == KNOWN["toy"].content
    assert variant.A.shape == (400, 5)


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("toy", TOY[: TOY.rindex(b"-1 ")], "other rows, labels or values"),
        ("toy", b"-1" + TOY[1:], "other rows, labels or values"),
        ("toy", TOY.replace(b"0.5", b"0.6", 1), "other rows, labels or values"),
        ("toy", TOY.replace(b" 3:", b" 2:", 1), "other rows, labels or values"),
        ("toy-rows", TOY + TOY[:12], "401 rows and 2 labels instead of 400"),  # a set without checksum
        ("toy-rows", TOY.replace(b"-1", b"1"), "400 rows and 1 labels instead of"),
    ],
)
def test_changed_contents_are_refused(bare: Path, tmp_path: Path, name: str, text: bytes, reason: str) -> None:
    (tmp_path / name).write_bytes(text)
    with pytest.raises(InputError, match=re.escape(reason)) as caught:
        load(name, data_dir=tmp_path)
    assert f"proxskip data fetch {name}" in str(caught.value)
    assert str(tmp_path / name) in str(caught.value)


@pytest.mark.parametrize("file", ["toy_rows", "toy_rows.gz", "toy_rows.bz2", "toy-rows", "toy-rows.gz"])
def test_folders_are_searched_in_order(bare: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str) -> None:
    folders = [bare, tmp_path / "env", tmp_path / "given"]
    monkeypatch.setenv("PROXSKIP_DATA", str(folders[1]))
    folders[2].mkdir()
    for value, folder in enumerate(folders, 2):
        folder.mkdir(exist_ok=True)
        write(folder / file, TOY.replace(b"0.5", b"%d" % value))
        assert load("toy-rows", data_dir=tmp_path / "given").A[0, 2] == value


def test_what_cannot_be_loaded_is_refused(bare: Path, tmp_path: Path) -> None:
    (tmp_path / "toy").write_bytes(b"1 6:1\n" + TOY)
    for name, folder, sentence in (
        ("digit", None, "did you mean 'digits'"),
        ("w8a", tmp_path / "missing", "is not a folder"),
        ("w8a", None, r"`proxskip data fetch w8a`, or set PROXSKIP_DATA .* w8a, plain or as \.gz"),
        ("toy", tmp_path, r"toy:1:3: .* n_features = 5"),
    ):
        with pytest.raises(InputError, match=sentence):
            load(name, data_dir=folder)


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
    path = fetch("toy", base_url=server.url, progress=lambda have, total: seen.append((have, total)))
    assert path == bare / "toy"
    assert path.read_bytes() == TOY
    assert path.stat().st_mode & 0o777 == 0o644
    assert left_in(bare) == ["toy"]
    assert seen[-1] == (len(TOY), len(TOY))
    assert load("toy").b.size == 400


def test_fetch_keeps_what_is_right_and_replaces_what_is_not(bare: Path, tmp_path: Path, server: Server) -> None:
    path = fetch("toy-rows", data_dir=tmp_path / "mine", base_url=server.url + "/")
    assert path == tmp_path / "mine" / "toy_rows.bz2"
    fetch("toy-rows", data_dir=tmp_path / "mine", base_url=server.url)
    assert len(server.asked) == 1
    path.write_bytes(b"damaged")
    fetch("toy-rows", data_dir=tmp_path / "mine", base_url=server.url)
    assert path.read_bytes() == bz2.compress(TOY)


@pytest.mark.parametrize("file", ["toy", "toy.gz", "toy.bz2"])
def test_fetch_takes_what_is_in_the_folder_of_the_environment(
    bare: Path, tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch, file: str
) -> None:
    monkeypatch.setenv("PROXSKIP_DATA", str(tmp_path))
    write(tmp_path / file, TOY)
    assert fetch("toy", base_url=server.url) == tmp_path / file
    assert not server.asked
    # who names a folder wants the file there
    assert fetch("toy", data_dir=tmp_path / "mine", base_url=server.url) == tmp_path / "mine" / "toy"
    assert len(server.asked) == 1
    # a wrong file would be used instead of what is fetched
    write(tmp_path / file, TOY.replace(b"0.5", b"0.6", 1))
    with pytest.raises(InputError, match=f"{file} is not toy: .*; remove it and run `proxskip data fetch toy`"):
        fetch("toy", base_url=server.url)
    assert len(server.asked) == 1


def test_a_cut_download_begins_again_and_a_redirect_within_the_host_is_followed(bare: Path, server: Server) -> None:
    server.files["moved/toy"] = TOY
    server.faults = ["cut 1000", "status 503", "cut 10", "redirect /moved/toy"]
    assert fetch("toy", base_url=server.url).read_bytes() == TOY
    assert server.asked == ["/toy"] * 4 + ["/moved/toy"]
    assert left_in(bare) == ["toy"]


CLOSED = "http://127.0.0.1:1"  # where nobody listens
ELSEWHERE = ("http://example.invalid/toy", "https://example.invalid/toy", "ftp://127.0.0.1/toy", "file:///etc/passwd")
NOT_HTTPS = ("http://example.invalid", "http://127.0.0.1.example.invalid", "ftp://127.0.0.1", "file:///tmp", "toy")


@pytest.mark.parametrize(
    ("faults", "url", "sentence", "asked"),
    [
        *(([f"cut {k}"] * 4, None, "could not be fetched", 4) for k in (0, 1, 17, 128, 500, 899)),
        *(([f"redirect {target}"], None, "refused|could not be fetched", 1) for target in ELSEWHERE),
        *(([], url, "only fetched over https", 0) for url in NOT_HTTPS),
        (["status 404"], None, "answered 404", 1),
        ([], CLOSED, r"network connection, or copy the file toy, plain or as \.gz or \.bz2, into", 0),
    ],
)
def test_what_cannot_be_fetched_leaves_nothing(
    bare: Path, server: Server, faults: list[str], url: str | None, sentence: str, asked: int
) -> None:
    server.faults = faults
    with pytest.raises(InputError, match=rf"\A.*(?:{sentence}).*\Z"):  # one line
        fetch("toy", base_url=url or server.url)
    assert left_in(bare) == []
    assert len(server.asked) == asked


def test_an_interrupted_download_leaves_nothing(bare: Path, server: Server) -> None:
    server.files["toy"] = TOY * 100

    def stop(have: int, total: int | None) -> None:
        if have > 100_000:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch("toy", base_url=server.url, progress=stop)
    assert left_in(bare) == []


def test_wrong_bytes_never_get_the_name_nor_replace_a_file(bare: Path, server: Server) -> None:
    bare.mkdir()
    (bare / "toy").write_bytes(b"old")
    for wrong in (TOY[:-20], TOY.replace(b"0.5", b"0.7", 1), b"<html>moved</html>", gzip.compress(TOY)[:-9]):
        server.files["toy"] = wrong
        with pytest.raises(InputError, match="is not toy and was thrown away"):
            fetch("toy", base_url=server.url)
        assert left_in(bare) == ["toy"]
        assert (bare / "toy").read_bytes() == b"old"
    # a set without checksum is read before it gets its name
    server.files["toy_rows.bz2"] = bz2.compress(TOY[:-40])
    with pytest.raises(InputError, match="rows and 2 labels instead of"):
        fetch("toy-rows", base_url=server.url)
    assert left_in(bare) == ["toy"]


def test_https_may_not_become_http() -> None:
    answer = requests.Response()
    answer.url, answer.status_code = "https://host.invalid/toy", 302
    answer.headers["Location"] = "http://host.invalid/toy"
    with pytest.raises(download._Refused, match="redirects to http://"):
        download._check_answer(answer)


def test_an_unwritable_folder_is_refused(bare: Path, tmp_path: Path, server: Server) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(InputError, match="cannot be written to"):
        fetch("toy", data_dir=tmp_path / "file", base_url=server.url)


@pytest.mark.parametrize("size", [None, len(TOY)])
def test_an_endless_download_is_refused(
    bare: Path, server: Server, monkeypatch: pytest.MonkeyPatch, size: int | None
) -> None:
    monkeypatch.setattr(download, "MAX_BYTES", 1000 if size is None else download.MAX_BYTES)
    monkeypatch.setitem(KNOWN, "toy", replace(KNOWN["toy"], size=size))
    server.files["toy"] = TOY + b"1 1:1\n" * 1000
    with pytest.raises(InputError, match=f"sends more than {size or 1000} bytes"):
        fetch("toy", base_url=server.url)
    assert left_in(bare) == []
