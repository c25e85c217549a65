"""Kernels as files of machine code: the bytes of numba's, in a process without numba."""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import struct
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from proxskip.on_demand import kernels, machine_code, object_code

PLACED = sys.platform == "linux" and os.uname().machine in object_code._MACHINES
FAST = {"nogil": True, "error_model": "numpy", "fastmath": True}


def scaled_sum(x, y, how, out):  # type: ignore[no-untyped-def]
    """A kernel."""
    number, (shift,) = how
    for i in range(out.shape[0]):
        for k in range(x.shape[1]):
            out[i] += number * x[i, k] * y[k] + shift[k]


def total(x):  # type: ignore[no-untyped-def]
    """Returns something."""
    return x.sum()


def with_room(x, out):  # type: ignore[no-untyped-def]
    """Allocates."""
    room = np.zeros(x.shape[0])
    for i in range(x.shape[0]):
        room[i] = x[i] + out[i]
    out[:] = room[::-1]


def arguments(layout: Any = np.asarray) -> tuple[Any, ...]:
    rng = np.random.default_rng(0)
    return layout(rng.standard_normal((7, 5))), rng.standard_normal(5), (0.3, (rng.standard_normal(5),)), np.zeros(7)


# -- what a kernel's code depends on -----------------------------------------------------------------------------------
def test_types_are_told_apart_as_far_as_the_code_depends_on_them() -> None:
    x = np.zeros((4, 4))
    fixed = x.copy()
    fixed.flags.writeable = False
    kinds = [
        x,
        np.asfortranarray(x),
        x[::2],
        x.astype(np.float32),
        x[0],
        fixed,
        x.astype(np.int64),
        1,
        1.0,
        (1,),
        2**63,
    ]
    assert len({machine_code.types_of([k]) for k in kinds}) == len(kinds)
    assert machine_code.types_of([np.int64(3), np.float64(2.0)]) == machine_code.types_of([3, 2.0])


@pytest.mark.parametrize(
    "given", [True, np.float32(1.0), None, "x", [1], np.zeros(2, bool), np.zeros(2, ">f8"), (None,)]
)
def test_other_arguments_are_left_to_numba(given: Any) -> None:
    assert machine_code.types_of([1.0, given]) is None


# -- the code ----------------------------------------------------------------------------------------------------------
@pytest.mark.slow
def test_the_code_computes_what_numba_computes(tmp_path: Path) -> None:
    import numba

    for layout in (np.asarray, np.asfortranarray):
        args, known = arguments(layout), arguments(layout)
        numba.njit(**FAST)(scaled_sum)(*known)
        made = []

        def make(args: Any = args, made: list[int] = made) -> bytes:
            made.append(1)
            return machine_code.made_by_numba(scaled_sum, FAST, args)

        path = tmp_path / f"{layout.__name__}.o"
        act = machine_code.kept(path, args, make)
        assert act is not None
        act(args)
        assert args[-1].tobytes() == known[-1].tobytes()
        again = machine_code.kept(path, args, make)
        assert again is not None
        assert made == [1]
        path.write_bytes(path.read_bytes()[:-1])  # a damaged file is made anew
        machine_code.kept(path, args, make)
        assert made == [1, 1]


@pytest.mark.slow
@pytest.mark.parametrize(("kernel", "args"), [(total, [np.ones(3)]), (with_room, [np.ones(3), np.ones(3)])])
def test_kernels_that_return_or_allocate_are_not_kept(kernel: Any, args: Any, tmp_path: Path) -> None:
    assert machine_code.made_by_numba(kernel, FAST, args) == b""
    assert machine_code.kept(tmp_path / "none.o", args, lambda: b"") is None
    assert machine_code.kept(tmp_path / "none.o", args, lambda: 1 / 0) is None  # type: ignore[arg-type, return-value]


CLIENT = """
import json, sys
import numpy as np
import proxskip as ps
from proxskip.on_demand.kernels import without_numba
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
    def said(how: str) -> Any:
        environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path)}
        out = subprocess.run([sys.executable, "-c", CLIENT, how], capture_output=True, check=True, env=environment)
        return json.loads(out.stdout)

    (known, _), (first, makes), (second, loads) = said("numba"), said("lean"), said("lean")
    assert known == first == second
    assert makes == [True, True]
    assert loads == [False, not PLACED]


@pytest.mark.long
@pytest.mark.skipif(not PLACED, reason="llvmlite loads the kernels of this machine")
def test_what_is_not_understood_is_left_to_llvm(monkeypatch: pytest.MonkeyPatch) -> None:
    args, known = arguments(), arguments()
    code = machine_code.made_by_numba(scaled_sum, FAST, args)
    found = object_code.placed(code, "proxskip_kernel")
    assert found is not None
    assert object_code.placed(code, "another") is None
    for wrong in (
        b"",
        code[:200],
        code[: len(code) // 2],
        b"\xcf\xfa\xed\xfe" + code[4:],
        code[:18] + b"\0" + code[19:],
    ):
        assert object_code.placed(wrong, "proxskip_kernel") is None
    machine_code.loaded(code, args)(args)
    monkeypatch.setattr(machine_code, "placed", lambda code, entry: None)
    machine_code.loaded(code, known)(known)
    assert args[-1].tobytes() == known[-1].tobytes()


CALLS_AND_CONSTANTS = """
@numbers = private constant [4 x double] [double 0.5, double 1.5, double 2.5, double 3.5]
declare double @exp(double)
define i32 @proxskip_kernel(ptr %result, ptr %problem, i64 %k, ptr %out) {
  %at = getelementptr double, ptr @numbers, i64 %k
  %x = load double, ptr %at
  %y = call double @exp(double %x)
  store double %y, ptr %out
  ret i32 0
}
"""


@pytest.mark.long
@pytest.mark.parametrize("machine", object_code._MACHINES)
def test_code_of_each_machine_is_placed(machine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It runs on such a machine alone, but the addresses in it can be seen on any."""
    import llvmlite.binding as llvm

    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    try:
        target = llvm.Target.from_triple(f"{machine}-unknown-linux-gnu")
    except RuntimeError:
        pytest.skip("this LLVM makes no code for it")
    made = target.create_target_machine(jit=True, codemodel="jitdefault")
    code = made.emit_object(llvm.parse_assembly(CALLS_AND_CONSTANTS))
    monkeypatch.setattr(object_code.os, "uname", lambda: SimpleNamespace(machine=machine))
    monkeypatch.setattr(object_code, "_seal", lambda *given: None)
    found = object_code.placed(code, "proxskip_kernel")
    assert found is not None
    entry, room = found
    base = ctypes.addressof(ctypes.c_char.from_buffer(room))
    placed, stub = bytes(room), object_code._STUBS[object_code._MACHINES[machine]]
    exp = stub + struct.pack("<Q", ctypes.cast(ctypes.CDLL(None).exp, ctypes.c_void_p).value)
    numbers = placed.index(struct.pack("<4d", 0.5, 1.5, 2.5, 3.5))
    assert base <= entry < base + len(room)
    assert exp in placed
    if machine == "x86_64":
        assert struct.pack("<Q", base + placed.index(exp)) in placed
        assert struct.pack("<Q", base + numbers) in placed


# -- numba's own cache -------------------------------------------------------------------------------------------------
@pytest.mark.slow
def test_a_kernel_is_compiled_anew_when_one_that_it_calls_has_changed(tmp_path: Path) -> None:
    """Numba looks at the caller's file alone, and would go on with the old code."""
    (tmp_path / "caller.py").write_text(
        "from called import inner\nfrom proxskip.on_demand.kernels import njit\n\n\n"
        "@njit(cache=True)\ndef outer(x):\n    return inner(x) + 1.0\n"
    )

    def said(factor: float) -> float:
        (tmp_path / "called.py").write_text(
            "from proxskip.on_demand.kernels import njit\n\n\n"
            f"@njit(cache=True)\ndef inner(x):\n    return x * {factor:.1f}\n"
        )
        out = subprocess.run(
            [sys.executable, "-c", "from caller import outer; print(outer(1.0))"], check=True, capture_output=True,
            env=os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])},
        )  # fmt: skip
        return float(out.stdout)

    assert [said(2.0), said(5.0), said(5.0)] == [3.0, 6.0, 6.0]
    assert (tmp_path / "__pycache__" / "proxskip-kernels.lock").exists()


def test_processes_use_the_cache_one_at_a_time(tmp_path: Path) -> None:
    """Numba numbers its files without a lock, so that two processes may write the same one."""
    with (tmp_path / "proxskip-kernels.lock").open("w") as other:
        with kernels._lock(tmp_path), kernels._lock(tmp_path), pytest.raises(BlockingIOError):  # not for itself
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
