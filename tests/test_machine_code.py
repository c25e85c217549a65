"""Kernels as files of machine code: the bytes of numba's, in a process without numba."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from filelock import FileLock, Timeout

from proxskip.lazy import code_cache, compilation, machine_code, numba_internals

FAST = {"nogil": True, "error_model": "numpy", "fastmath": True}


def total(x):  # type: ignore[no-untyped-def]
    return x.sum()


def with_room(x, out):  # type: ignore[no-untyped-def]
    room = np.zeros(x.shape[0])
    for i in range(x.shape[0]):
        room[i] = x[i] + out[i]
    out[:] = room[::-1]


def said_by(program: str, *words: str, **variables: Any) -> str:
    """What a process of its own prints."""
    environment = os.environ | {name: str(value) for name, value in variables.items()}
    given = [sys.executable, "-c", program, *words]
    return subprocess.run(given, env=environment, capture_output=True, text=True, check=True).stdout


def test_types_are_told_apart_as_far_as_the_code_depends_on_them() -> None:
    x = np.zeros((4, 4))
    fixed = x.copy()
    fixed.flags.writeable = False
    kinds = [x, np.asfortranarray(x), x[::2], x.astype(np.float32), x[0], fixed, x.astype(int), 1, 1.0, (1,), 2**63]
    assert len({machine_code.types_of([k]) for k in kinds}) == len(kinds)
    assert machine_code.types_of([np.int64(3), np.float64(2.0)]) == machine_code.types_of([3, 2.0])


@pytest.mark.parametrize(
    "given", [True, np.float32(1.0), None, "x", [1], np.zeros(2, bool), np.zeros(2, ">f8"), (None,)]
)
def test_other_arguments_are_left_to_numba(given: Any) -> None:
    assert machine_code.types_of([1.0, given]) is None


@pytest.mark.slow
@pytest.mark.parametrize(("kernel", "args"), [(total, [np.ones(3)]), (with_room, [np.ones(3), np.ones(3)])])
def test_kernels_that_return_or_allocate_are_not_kept(kernel: Any, args: Any, tmp_path: Path) -> None:
    assert machine_code.made_by_numba(kernel, FAST, False, args) == b""
    assert machine_code.kept(tmp_path / "none.o", args, lambda: b"") is None
    assert machine_code.kept(tmp_path / "none.o", args, lambda: 1 / 0) is None  # type: ignore[arg-type, return-value]


CLIENT = """
import json, sys
import numpy as np
import proxskip as ps
from proxskip.lazy.compilation import without_numba
if sys.argv[1] == "lean":
    without_numba()
from proxskip.protocol.worker import Worker
rng = np.random.default_rng(1)
A = rng.standard_normal((90, 6)) * (rng.random((90, 6)) < 0.6)
said = []
for sparse in (False, True):
    for model in (ps.Logistic, ps.Softmax):
        for batch in (None, 7):
            rows = A
            if sparse:
                import scipy.sparse
                rows = scipy.sparse.csr_matrix(A)
            f = model(rows, (A[:, 0] > 0).astype(int), l2=0.1)
            x = np.full(f.d, 0.1)
            said.append(Worker(f, 3, 5, batch).descend(x, 0.5 * x, 0.2, 9).tobytes().hex())
print(json.dumps([said, [name in sys.modules for name in ("numba", "llvmlite")]]))
"""


@pytest.mark.slow
def test_a_client_without_numba_has_the_bytes_of_one_with_it(tmp_path: Path) -> None:
    """And a process that compiles those of one that loads what was compiled."""
    ways = ("numba", "numba", "lean", "lean")
    (compiled, _), (cached, _), (first, makes), (second, loads) = (
        json.loads(said_by(CLIENT, how, NUMBA_CACHE_DIR=tmp_path)) for how in ways
    )
    assert compiled == cached == first == second
    assert makes == [True, True]
    assert loads == [False, True]


def about(mode: int, user: int, group: int) -> Any:
    return SimpleNamespace(st_mode=mode, st_uid=user, st_gid=group)


ME, OTHER, TEAM = 1000, 1001, 50
SITE, CLONE = about(0o755, 0, 0), about(0o775, ME, TEAM)


@pytest.mark.parametrize(
    ("place", "program", "safe"),
    [
        (about(0o755, ME, TEAM), SITE, True),
        (about(0o755, 0, 0), SITE, True),  # root may change everything anyway
        (about(0o755, OTHER, OTHER), SITE, False),
        (about(0o777, ME, ME), SITE, False),
        (about(0o775, ME, TEAM), SITE, False),
        (about(0o775, ME, ME), SITE, True),  # a group of one user
        (about(0o775, ME, TEAM), CLONE, True),  # the team may change the program too
        (about(0o775, ME, OTHER), CLONE, False),
        (about(0o777, ME, TEAM), CLONE, False),
        (about(0o777, 0, 0), about(0o777, 0, 0), True),  # Windows, which says this of every folder
    ],
)
def test_code_is_trusted_where_only_those_write_who_could_change_the_program(place, program, safe, monkeypatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: ME, raising=False)
    assert code_cache.is_safe(place, program) is safe


@pytest.mark.skipif(os.name == "nt", reason="needs the modes of POSIX")
def test_code_is_neither_read_from_nor_written_to_a_folder_of_everybody(tmp_path: Path, monkeypatch: Any) -> None:
    """The files hold machine code, and numba's also pickles."""
    cache = tmp_path / "cache"
    cache.mkdir(mode=0o700)
    monkeypatch.setattr(code_cache, "_PROGRAM", tmp_path)
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(cache))
    folder: Any = code_cache.folder_of([__file__])
    for open_to_all in (cache, folder):
        open_to_all.chmod(0o777)
        with pytest.warns(UserWarning, match="other users can write to .*, so compiled code is not cached"):
            assert code_cache.folder_of([__file__]) is None
        with pytest.warns(UserWarning, match="other users can write to"):
            assert compilation.njit(cache=True)(total)(np.ones(3)) == 3.0
        open_to_all.chmod(0o700)
    assert list(folder.iterdir()) == []
    assert compilation.njit(cache=True)(total)(np.ones(3)) == 3.0
    assert list(folder.rglob("*.nbi"))


@pytest.mark.skipif(os.name == "nt", reason="needs the modes of POSIX")
def test_a_file_that_others_may_write_a_link_and_a_damaged_file_are_replaced(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(machine_code, "loaded", lambda code, args: code)
    monkeypatch.setattr(code_cache, "_PROGRAM", tmp_path)
    tmp_path.chmod(0o700)
    forged = tmp_path / "forged.o"
    for name in ("forged.o", "kernel.o", "cut.o"):
        code_cache.write(tmp_path / name, b"forged")
    (tmp_path / "kernel.o").chmod(0o666)
    (tmp_path / "link.o").symlink_to(forged)
    (tmp_path / "cut.o").write_bytes(forged.read_bytes()[:-1])
    for name in ("kernel.o", "link.o", "cut.o"):
        assert machine_code.kept(tmp_path / name, [], lambda: b"true") == b"true"
        assert not (tmp_path / name).is_symlink()
        assert code_cache.read(tmp_path / name) == b"true"
    assert code_cache.read(forged) == b"forged"


def test_without_a_folder_to_write_to_every_process_compiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "file" / "cache"))
    assert code_cache.folder_of([__file__]) is None
    with code_cache.compiler_lock.__wrapped__():  # nobody waits
        pass


@pytest.mark.skipif(os.name == "nt", reason="needs the modes of POSIX")
def test_locks_follow_no_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = tmp_path / "mine"
    mine.write_text("precious")
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    (tmp_path / "proxskip-kernels.lock").symlink_to(mine)
    with code_cache.compiler_lock.__wrapped__():
        pass
    assert mine.read_text() == "precious"


@pytest.mark.slow
def test_a_kernel_is_compiled_anew_when_one_that_it_calls_has_changed(tmp_path: Path) -> None:
    """Numba looks at the caller's file alone, and would go on with the old code."""
    (tmp_path / "caller.py").write_text(
        "from called import inner\nfrom proxskip.lazy.compilation import njit\n\n\n"
        "@njit(cache=True)\ndef outer(x):\n    return inner(x) + 1.0\n"
    )

    def said(factor: float) -> float:
        (tmp_path / "called.py").write_text(
            "from proxskip.lazy.compilation import njit\n\n\n"
            f"@njit(cache=True)\ndef inner(x):\n    return x * {factor:.1f}\n"
        )
        path, program = os.pathsep.join([str(tmp_path), *sys.path]), "from caller import outer; print(outer(1.0))"
        return float(said_by(program, PYTHONPATH=path, NUMBA_CACHE_DIR=tmp_path / "cache"))

    assert [said(2.0), said(5.0), said(5.0)] == [3.0, 6.0, 6.0]


def test_processes_compile_kernels_one_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Numba numbers its files without a lock, so that two processes may write the same one."""
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    lock = code_cache.compiler_lock.__wrapped__()
    monkeypatch.setattr(code_cache, "compiler_lock", lambda: lock)
    other, held = FileLock(tmp_path / "proxskip-kernels.lock", timeout=0), []

    from numba.core import event

    class Listener(event.Listener):  # type: ignore[misc]
        def on_start(self, event: Any) -> None:
            try:
                with other:
                    held.append(False)
            except Timeout:
                held.append(True)

        on_end = on_start

    with event.install_listener("numba:compile", Listener()):
        assert compilation.njit()(total)(np.ones(3)) == 3.0
    assert len(held) >= 2
    assert all(held)
    with other:
        pass


def test_private_parts_of_numba_are_used_in_one_module() -> None:
    """They change between its releases without notice."""
    private = re.compile(r"numba\.(?!config\b)(core|np|targets|runtime)\b|\b_nrt\b|\.fndesc\b|mangled_name")
    root = Path(code_cache.__file__).parents[1]
    users = [f.name for f in root.rglob("*.py") if private.search(f.read_text())]
    assert users == ["numba_internals.py"]
    assert "0.59.1 and 0.68.1" in str(numba_internals.__doc__)  # the ends of the range that ran these tests


@pytest.mark.parametrize("where", ["terminal", "notebook"])
def test_somebody_who_waits_hears_once_that_kernels_are_compiled(
    where: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    class ZMQInteractiveShell: ...

    tmp_path.chmod(0o700)
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(sys.stderr, "isatty", lambda: where == "terminal", raising=False)
    if where == "notebook":
        monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=ZMQInteractiveShell))
    for said in (1, 0):  # in a second process the code is kept
        compilation._announce.cache_clear()
        for _ in range(2):
            assert compilation.njit(cache=True)(total)(np.ones(3)) == 3.0
        assert capsys.readouterr().err.count("compiling kernels, once on this machine (10 to 20 seconds)") == said
