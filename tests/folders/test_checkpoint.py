"""Laws of checkpoints: what was saved comes back bit by bit, or is refused; crashes change neither."""

import contextlib
import errno
import hashlib
import io
import itertools
import json
import math
import os
import re
import struct
import tempfile
import time
import tracemalloc
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import proxskip as ps
from proxskip.results import atomic, checkpoint, sealed
from proxskip.results.atomic import atomic_write_json
from proxskip.results.checkpoint import CheckpointError, differences, load, save
from proxskip.results.plain import canonical
from proxskip.types import InputError
from support.tiers import draws

quick = settings(max_examples=draws(60), suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture
def tmp_path(tmp_path: Path) -> Iterator[Path]:
    """In memory where there is such a folder: these tests write some 50,000 files."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else tmp_path) as folder:
        yield Path(folder)


def state(round_: int, d: int = 5) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    rng = np.random.default_rng(round_)
    arrays = {
        "x": rng.standard_normal(d),
        "h": rng.standard_normal((3, d)),
        "steps": rng.integers(-5, 5, 4),
        "counter": rng.integers(0, 2**63, 2).astype(np.uint64),
        "wire": rng.standard_normal(3).astype(np.float32),
        "none": np.empty((0, d)),
        "scalar": np.array(0.1 * round_),
    }
    return arrays, {"round": round_, "method": {"p": 0.1, "name": "Scaffnew"}, "best": math.inf}


def put(folder: Path, round_: int, **kwargs: Any) -> bytes:
    return save(folder, *state(round_), **kwargs).read_bytes()


def exact(arrays: Mapping[str, np.ndarray]) -> list[Any]:
    return [(k, a.dtype, a.shape, a.tobytes()) for k, a in arrays.items()]


def same_as(found: checkpoint.Checkpoint, round_: int) -> bool:
    arrays, meta = state(round_)
    return found.meta == meta and exact(found.arrays) == exact(arrays)


def with_seal(body: bytes) -> bytes:
    return body + hashlib.sha256(body).digest()


def build(header: Any, data: bytes = b"", version: int = 2, length: int | None = None) -> bytes:
    """A file with a right sha256 around whatever header is given."""
    raw = header if isinstance(header, bytes) else canonical(header)
    prefix = struct.pack("<8sII", b"PROXSKIP", version, len(raw) if length is None else length)
    return with_seal(prefix + raw + data)


def litter(folder: Path) -> list[str]:
    return [p.name for p in folder.iterdir() if p.name.endswith(".tmp")]


# -- round trip and format ---------------------------------------------------------------------------------------------
bits = st.tuples(
    st.sampled_from(["<f8", ">f8", "<i8", ">i8", "<u8", ">u8", "<f4", ">f4", "|u1"]),
    st.lists(st.integers(0, 4), max_size=4),
    st.integers(0, 2**32),
    st.sampled_from(["C", "F", "strided"]),
)


@quick
@given(specs=st.lists(bits, max_size=5), names=st.lists(st.text(max_size=8), min_size=5, max_size=5, unique=True))
def test_every_bit_pattern_round_trips(tmp_path: Path, specs: Any, names: list[str]) -> None:
    arrays = {}
    for name, (dtype, shape, seed, layout) in zip(names, specs, strict=False):
        count = math.prod(shape) * np.dtype(dtype).itemsize
        array = np.frombuffer(np.random.default_rng(seed).bytes(count), dtype=dtype).reshape(shape)
        if layout == "F":
            array = np.asfortranarray(array).reshape(shape)
        elif layout == "strided" and shape:
            array = np.repeat(array, 2, axis=0)[::2]
        arrays[name] = array
    data = save(tmp_path, arrays, {}).read_bytes()
    assert save(tmp_path, arrays, {}).read_bytes() == data
    found = load(tmp_path).arrays
    assert exact(found) == exact({k: v.astype(v.dtype.newbyteorder("=")) for k, v in arrays.items()})
    assert all(v.flags.writeable and v.flags.c_contiguous for v in found.values())


@quick
@given(specs=st.lists(st.integers(0, 40), max_size=4), cut=st.integers(0, 10**6), bit=st.integers(0, 7))
def test_bytes_are_opened_as_files_are(specs: list[int], cut: int, bit: int) -> None:
    arrays = {f"a{k}": np.random.default_rng(k).standard_normal(size) for k, size in enumerate(specs)}
    data = b"".join(sealed.seal(arrays, {"k": specs}))
    opened = sealed.unseal(data)
    assert exact(opened.arrays) == exact(arrays)
    assert (opened.meta, opened.sha256) == ({"k": specs}, data[-32:].hex())
    place = cut % len(data)
    changed = bytearray(data)
    changed[place] ^= 1 << bit
    for other in (data[:place], bytes(changed), data + b"0"):
        with pytest.raises(sealed.Damaged, match="is damaged"):
            sealed.unseal(other)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**200), 2**200) | st.floats() | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=12,
)


@quick
@given(meta=st.dictionaries(st.text(max_size=5), json_values, max_size=5))
def test_meta_round_trips_with_nan_infinity_and_signed_zero(tmp_path: Path, meta: dict[str, Any]) -> None:
    save(tmp_path, {}, meta)
    found = load(tmp_path).meta
    assert canonical(found) == canonical(meta)
    assert differences(meta, found) == []


def test_bytes_on_disk_are_little_endian_and_without_holes(tmp_path: Path) -> None:
    arrays = {"x": np.array([1.5, -2.0], dtype=">f8"), "k": np.array(7, dtype=">i8")}
    header = b'{"arrays":[["x","<f8",[2]],["k","<i8",[]]],"meta":{"a":2,"b":1}}'
    assert save(tmp_path, arrays, {"b": 1, "a": 2}).read_bytes() == build(header, struct.pack("<ddq", 1.5, -2.0, 7))


def test_other_dtypes_and_meta_that_json_would_change_are_refused(tmp_path: Path) -> None:
    for dtype in ("bool", "int32", "float16", "complex128", "object", "U3", "M8[s]", "longdouble"):
        with pytest.raises(InputError, match="array 'x' has dtype"):
            save(tmp_path, {"x": np.zeros(2, dtype=dtype)}, {})
    loop: list[Any] = []
    loop.append(loop)
    bad = [{1: 2}, {"a": np.ones(2)}, {"a": {1, 2}}, {"a": b"x"}, {"a": Path("x")}, {"a": "\ud800"}, {"a": 1j}]
    for meta in [*bad, {"\ud800": 1}, {"a": 10**5000}, {"a": loop}, {"a": object()}, {"a": np.longdouble(1)}]:
        with pytest.raises(InputError):
            save(tmp_path, {}, meta)
    with pytest.raises(InputError, match="cannot hold"):
        save(tmp_path, {1j: np.ones(2)}, {})  # type: ignore[dict-item]
    with pytest.raises(InputError, match="use arrays"):
        save(tmp_path, {}, {"a": "x" * sealed.HEADER_LIMIT})
    assert not list(tmp_path.iterdir())
    save(tmp_path, {}, {"a": (np.float32(0.1), np.int64(3), np.bool_(True))})
    assert load(tmp_path).meta == {"a": [float(np.float32(0.1)), 3, True]}


# -- C1, C2: damage at rest --------------------------------------------------------------------------------------------
def test_cut_at_every_byte_or_longer(tmp_path: Path) -> None:
    older, newer = put(tmp_path, 1), put(tmp_path, 2)
    path, previous = tmp_path / "checkpoint", tmp_path / "checkpoint.previous"
    for data in [*(newer[:size] for size in range(len(newer))), newer + b"\0", newer + newer, newer + newer[-32:]]:
        path.write_bytes(data)
        previous.write_bytes(older)
        found = load(tmp_path)
        assert found.generation == "previous"
        assert same_as(found, 1)
        assert f"{path} is damaged: " in str(found.note)
        assert str(previous) in str(found.note)
        previous.write_bytes(data)
        with pytest.raises(CheckpointError, match=rf"{path} is damaged: .*; {previous} is damaged: "):
            load(tmp_path)
    with pytest.raises(CheckpointError, match="there is no checkpoint"):
        load(tmp_path / "missing")


def test_another_version_is_named_and_not_gone_behind(tmp_path: Path) -> None:
    put(tmp_path, 1)
    data = bytearray(put(tmp_path, 2)[:-32])
    data[8] = 9
    (tmp_path / "checkpoint").write_bytes(with_seal(bytes(data)))
    with pytest.raises(CheckpointError, match="has format 9, and this release reads format 2: use the release"):
        load(tmp_path)
    (tmp_path / "checkpoint").write_bytes(bytes(data) + bytes(32))  # the same byte, but by damage
    assert load(tmp_path).generation == "previous"


@pytest.mark.parametrize(("code", "sentence"), [(errno.EIO, None), (errno.EACCES, "cannot be read: Permission denied")])
def test_unreadable_is_not_gone_behind_but_a_bad_disk_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, sentence: str | None
) -> None:
    put(tmp_path, 1)
    put(tmp_path, 2)

    def fail(path: Path, *how: Any, **more: Any) -> Any:
        if path.name == "checkpoint":
            raise OSError(code, os.strerror(code))
        return open(path, *how, **more)

    monkeypatch.setattr(sealed, "open", fail, raising=False)
    with pytest.raises(CheckpointError, match=sentence) if sentence else contextlib.nullcontext():
        assert load(tmp_path).generation == "previous"


# -- C3, A11: crashes in save ------------------------------------------------------------------------------------------
class Crash(BaseException):
    """The process is gone."""


class FaultyOs:
    """``os`` and ``open`` whose k-th operation fails; after a crash every further one fails too."""

    def __init__(self, k: int, mode: str) -> None:
        self.k, self.mode, self.failed = k, mode, ""
        self.log: list[str] = []

    def __getattr__(self, name: str) -> Any:
        real = getattr(os, name)
        return self.wrap(name, real) if name in ("open", "fsync", "replace", "unlink") else real

    def patch(self, patched: pytest.MonkeyPatch) -> None:
        patched.setattr(atomic, "os", self)
        patched.setattr(atomic, "open", self.wrap("open", lambda *how: WatchedFile(self, *how)), raising=False)

    def wrap(self, name: str, real: Any) -> Any:
        def operation(*args: Any) -> Any:
            self.log.append(name)
            if len(self.log) < self.k or (self.mode == "disk full" and len(self.log) > self.k):
                return real(*args)
            if len(self.log) == self.k:
                self.failed = name
                if name == "write" and self.mode in ("half", "disk full"):
                    real(args[0][: len(args[0]) // 2])
                elif self.mode == "after" and hasattr(opened := real(*args), "close"):
                    opened.close()
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)) if self.mode == "disk full" else Crash

        return operation


class WatchedFile(io.FileIO):
    """A file without a buffer whose writes somebody watches."""

    def __init__(self, watcher: Any, path: Path, mode: str) -> None:
        super().__init__(path, mode)
        self.write = watcher.wrap("write", super().write)  # type: ignore[method-assign]


def on_disk(folder: Path) -> tuple[Any, Any]:
    """The rounds held by the two generations; None for a missing one, "damaged" otherwise."""
    rounds = []
    for name in ("checkpoint", "checkpoint.previous"):
        try:
            rounds.append(sealed.read(folder / name).meta["round"])
        except sealed.Damaged as damage:
            rounds.append(None if "missing" in str(damage) else "damaged")
    return rounds[0], rounds[1]


# what lies there before save(3), and what may lie there after a crash
STARTS = {
    "empty": {(None, None), (3, None)},
    "one": {(2, None), (None, 2), (3, 2)},
    "two": {(2, 1), (None, 2), (3, 2)},
    "rotten": {("damaged", 1), (3, 1)},
}


def start(folder: Path, kind: str) -> None:
    folder.mkdir()
    if kind in ("two", "rotten"):
        put(folder, 1)
    if kind != "empty":
        put(folder, 2)
    if kind == "rotten":
        (folder / "checkpoint").write_bytes(b"PROXSKIP rotten")


@pytest.mark.parametrize("kind", STARTS)
@pytest.mark.parametrize("mode", ["before", "after", "half", "disk full"])
def test_crash_at_every_operation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str, kind: str) -> None:
    seen = set()
    for k in itertools.count(1):
        folder = tmp_path / str(k)
        start(folder, kind)
        faulty = FaultyOs(k, mode)
        finished = False
        with monkeypatch.context() as patched:
            faulty.patch(patched)
            try:
                put(folder, 3)
                finished = True
            except Crash:
                assert mode != "disk full"
            except CheckpointError as error:
                assert mode == "disk full"
                assert re.search(r"cannot write .*checkpoint: No space left on device", str(error))
        after = on_disk(folder)
        seen.add(after)
        assert after in STARTS[kind], (k, faulty.failed)
        assert not finished or after[0] == 3
        if after != (None, None):
            assert same_as(load(folder), after[0] if isinstance(after[0], int) else after[1])
        if mode == "disk full" and faulty.failed != "unlink":
            assert litter(folder) == [], (k, faulty.failed)
        put(folder, 4)  # and life goes on
        assert same_as(load(folder), 4)
        if not faulty.failed:
            break
    assert k > 8
    assert seen == STARTS[kind]


def test_bytes_are_synced_before_they_get_their_name_and_names_before_save_returns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So a power loss leaves the old or the new state, as a crash does."""
    put(tmp_path, 1)
    watching = FaultyOs(10**9, "before")
    with monkeypatch.context() as patched:
        watching.patch(patched)
        put(tmp_path, 2)
    assert "write" not in watching.log[watching.log.index("fsync") :]
    order = " ".join(name for name in watching.log if name != "write")
    assert order == "open fsync replace replace open fsync"


def test_what_a_killed_saver_left_is_removed_later(tmp_path: Path) -> None:
    old, young = tmp_path / ".checkpoint.00.tmp", tmp_path / ".checkpoint.previous.11.tmp"
    for path in (old, young):
        path.write_bytes(b"half")
    os.utime(old, (time.time() - 4000,) * 2)
    put(tmp_path, 1)
    assert litter(tmp_path) == [young.name]


def test_umask_decides_who_may_read(tmp_path: Path) -> None:
    put(tmp_path, 1)
    (tmp_path / "plain").touch()
    assert (tmp_path / "checkpoint").stat().st_mode == (tmp_path / "plain").stat().st_mode


# -- C6: hostile files -------------------------------------------------------------------------------------------------
BIG = 2**61
HOSTILE: dict[str, bytes] = {
    "empty": b"",
    "prefix cut": with_seal(b"PROXSKIP"),
    "other magic": with_seal(b"\x93NUMPY\x01\x00" + bytes(40)),
    "header longer than the file": build(b"{}", length=2**20),
    "header of 2 MiB": build({"arrays": [], "meta": {"a": "x" * 2**21}}),
    "header empty": build(b""),
    "header not utf-8": build(b"\xff\xfe{}"),
    "header not json": build(b"{arrays"),
    "header nested": build(b"[" * 500_000),
    "integer of 5000 digits": build(b'{"arrays":[],"meta":{"a":' + b"9" * 5000 + b"}}"),
    "meta a list": build({"arrays": [], "meta": []}),
    "bytes without an array": build({"arrays": [], "meta": {}}, bytes(8)),
}
ENTRIES: dict[str, list[Any]] = {
    "not a list": [3],
    "name twice": [["x", "<f8", [1]], ["x", "<f8", [1]]],
    "object": [["x", "|O", [2]]],
    "big-endian": [["x", ">f8", [2]]],
    "dtype a list": [["x", [["a", "<f8"]], [2]]],
    "shape doubly negative": [["x", "<f8", [-1, -2]]],
    "shape float": [["x", "<f8", [2.0]]],
    "shape true": [["x", "<f8", [True, 2]]],
    "shape overflows to 16 bytes": [["x", "<f8", [BIG + 2]]],
    "65 dimensions": [["x", "<f8", [1] * 64 + [2]]],
    "40 GB declared": [["x", "<f8", [5 * 10**9]]],
    "too small": [["x", "<f8", [1]]],
    "beyond the end": [["x", "<f8", [3]]],
}
HOSTILE |= {f"array: {k}": build({"arrays": v, "meta": {}}, bytes(16)) for k, v in ENTRIES.items()}


def peak_of_loading(folder: Path) -> int:
    """The bytes that loading a checkpoint, or refusing it, takes at most."""
    tracemalloc.start()
    try:
        with contextlib.suppress(CheckpointError):
            load(folder)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_file_with_a_right_sha256(tmp_path: Path, case: str) -> None:
    path = tmp_path / "checkpoint"
    path.write_bytes(HOSTILE[case])
    with pytest.raises(CheckpointError, match=re.escape(str(path))) as caught:
        load(tmp_path)
    assert peak_of_loading(tmp_path) < 2 * len(HOSTILE[case]) + (
        64 * 10**6 if len(HOSTILE[case]) > 10**5 else 5 * 10**5
    )
    assert len(str(caught.value)) < 600


def test_loading_takes_little_more_than_the_file(tmp_path: Path) -> None:
    save(tmp_path, {"x": np.ones(2_000_000), "y": np.ones(2_000_000)}, {})
    assert peak_of_loading(tmp_path) < 32_000_000 + 4_000_000


def test_things_that_are_not_files(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "checkpoint")
    (tmp_path / "checkpoint.previous").mkdir()
    with pytest.raises(CheckpointError, match=r"not a regular file.*Is a directory"):
        load(tmp_path)
    (tmp_path / "other").mkdir()
    (tmp_path / "file").write_text("in the way")
    for folder, name in ((tmp_path, "other"), (tmp_path / "file", "checkpoint")):
        with pytest.raises(CheckpointError, match="cannot write"):
            put(folder, 1, name=name)
    assert litter(tmp_path) == []


@pytest.mark.parametrize(
    ("saved", "wanted", "sentences"),
    [
        ({"n": 20, "d": 3}, {"n": 21, "d": 4}, ["n: saved 20, now 21", "d: saved 3, now 4"]),
        ({"m": {"p": 0.1, "gamma": 1}}, {"m": {"p": 0.2, "gamma": 1}}, ["m.p: saved 0.1, now 0.2"]),
        ({"a": 1}, {}, ["a: saved 1, now absent"]),
        ({}, {"a": 1}, ["a: not saved, now 1"]),
        ({"a": [1, 2]}, {"a": np.array([1, 2])}, []),
        ({"a": [1, 2]}, {"a": [1, 3]}, ["a: saved [1, 2], now [1, 3]"]),
        ({"a": math.nan}, {"a": np.float64("nan")}, []),
        ({"a": math.nan}, {"a": 0.0}, ["a: saved nan, now 0.0"]),
        ({"a": 1}, {"a": 1.0}, []),
        ({"a": 0.1}, {"a": math.nextafter(0.1, 1)}, ["a: saved 0.1, now 0.10000000000000002"]),
        ({"a": {"b": 1}}, {"a": 1}, ["a: saved {'b': 1}, now 1"]),
        ({"a": 99 * "x" + "A"}, {"a": 99 * "x" + "B"}, [f"a: saved ...{30 * 'x'}A', now ...{30 * 'x'}B'"]),
    ],
)
def test_differences(saved: Any, wanted: Any, sentences: list[str]) -> None:
    assert differences(saved, wanted) == sentences


def test_json_is_standard_ordered_and_takes_numpy(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    scalars = [np.float32(0.5), np.int64(3), np.bool_(True), np.uint8(1), np.float64("nan")]
    atomic_write_json(path, {"z": math.inf, "a": scalars, "m": {"y": np.array([[1.0, -math.inf]]), "b": (1, None)}})

    found = json.loads(path.read_text())
    assert found == {"z": None, "a": [0.5, 3, True, 1, None], "m": {"y": [[1.0, None]], "b": [1, None]}}
    assert list(found) == ["z", "a", "m"]
    assert list(found["m"]) == ["y", "b"]


UNSAFE = ["", ".", "..", ".hidden", "a/b", "../a", "a\\b", "a b", "a\n", "\na", "ä", "a\0", "C:", "A" * 65, "~", "٣"]


@pytest.mark.parametrize("name", [*UNSAFE, None, 3, b"a"])
def test_unsafe_names(name: Any, tmp_path: Path) -> None:
    for act in (lambda: put(tmp_path, 1, name=name), lambda: load(tmp_path, name=name)):
        with pytest.raises(InputError, match="cannot be a name"):
            act()
    assert not list(tmp_path.iterdir())


UNSAFE_CODE = re.compile(r"""
    \b(import|from)\ +(_pickle|c?[pP]ickle|marshal|dill|cloudpickle|shelve)\b | ["'](pickle|marshal)["'] | read_pickle |
    (np|numpy|format)(?<!json)(?<!checkpoint)\.(load|read_array)\b(?!\(.*(allow_pickle=False|mmap_mode="r")\)) |
    allow_pickle=True
""", re.VERBOSE)  # fmt: skip


def test_no_module_runs_code_from_files() -> None:
    """None imports pickle or its kin, or calls a numpy reader that could unpickle."""
    modules = sorted(Path(ps.__file__).parent.rglob("*.py"))
    assert len(modules) > 100
    assert UNSAFE_CODE.search("import pickle")
    assert UNSAFE_CODE.search("np.load(path)")
    assert [str(path) for path in modules if UNSAFE_CODE.search(path.read_text(encoding="utf-8"))] == []
