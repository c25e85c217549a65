"""Compiled kernels as files of machine code, which a process can load and call without numba.

Numba takes 0.6 s of CPU time and 30 MB before its first function runs, even one that it finds in its cache. For the
processes that a federation starts for every message, and for the many actors of a cluster, this is most of what they
cost. So these take the machine code that numba made, once on every machine, from a file, and llvmlite loads it. It is
the same code: what it computes has the same bytes.

Only kernels that return nothing and allocate nothing can be kept. Files lie where numba keeps its own cache, and are
named by everything that the code depends on: the kernel's source, the types of its arguments, the processor, and the
versions of numba and llvmlite. Where others may write, nothing is read or written.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import stat
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from proxskip.version import __version__

_UNCALLED = "define void @NRT_MemInfo_call_dtor(ptr %0) { ret void }"
"""What numba calls when it frees an array of its own; the arrays here are the caller's."""
_ENTRY = "proxskip_kernel"
_ABOUT_CPU = ("flags", "Features", "model", "cpu family", "stepping", "CPU ")
_FEW_BYTES = 64
_PROGRAM = Path(__file__).parent


# -- arguments ---------------------------------------------------------------------------------------------------------
def types_of(args: Sequence[Any]) -> str | None:
    """What the code of a kernel depends on, of its arguments; None if there is one that cannot be passed."""
    words = [_type_of(a) for a in args]
    return None if None in words else ",".join(map(str, words))


def _type_of(a: Any) -> str | None:
    """As far as numba tells types apart."""
    if type(a) is np.ndarray and a.dtype.isnative and a.dtype.kind in "iuf" and a.flags.aligned:
        layout = "C" if a.flags.c_contiguous else "F" if a.flags.f_contiguous else "A"
        return f"{a.dtype.kind}{a.itemsize}{layout}{a.ndim}{'' if a.flags.writeable else 'r'}"
    if type(a) is tuple:
        within = types_of(a)
        return None if within is None else f"({within})"
    if type(a) in (int, np.int64):
        return "int" if -(2**63) <= a < 2**63 else "uint" if 0 <= a < 2**64 else None
    return "float" if type(a) in (float, np.float64) else None


def _flat(args: Sequence[Any]) -> Iterator[Any]:
    """The arguments as numba's functions take them: an array is no owner, size, item size, address, shape, strides."""
    for a in args:
        if isinstance(a, np.ndarray):
            yield from (None, None, a.size, a.itemsize, a.__array_interface__["data"][0], *a.shape, *a.strides)
        elif isinstance(a, tuple):
            yield from _flat(a)
        else:
            yield a


def _c_types(args: Sequence[Any]) -> Iterator[Any]:
    for a in args:
        if isinstance(a, np.ndarray):
            yield from (ctypes.c_void_p, ctypes.c_void_p, *2 * [ctypes.c_int64], ctypes.c_void_p)
            yield from 2 * a.ndim * [ctypes.c_int64]
        elif isinstance(a, tuple):
            yield from _c_types(a)
        else:
            yield ctypes.c_int64 if isinstance(a, int | np.integer) else ctypes.c_double


# -- files -------------------------------------------------------------------------------------------------------------
@cache
def _platform() -> str:
    return f"{version('numba')} {version('llvmlite')} {_processor()} {os.name}"


def _processor() -> str:
    """What the processor can do, as the system or else LLVM says."""
    with suppress(OSError):
        lines = {line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith(_ABOUT_CPU)}
        if any(line.lower().startswith(("flags", "features")) for line in lines):
            return "|".join(sorted(lines))
    import llvmlite.binding as llvm

    return f"{llvm.get_host_cpu_name()} {llvm.get_host_cpu_features().flatten()}"


@cache
def _source(file: str) -> bytes:
    return Path(file).read_bytes()


def file_of(name: str, sources: Sequence[str], types: str) -> Path:
    """Where the code of a kernel lies, or would."""
    said = hashlib.sha256(f"{_platform()}|{__version__}|{name}|{types}".encode())
    for file in sources:
        said.update(_source(file))
    return _folder(sources[0]) / f"{name}-{said.hexdigest()[:32]}.o"


@cache
def _folder(source: str) -> Path:
    if given := os.environ.get("NUMBA_CACHE_DIR"):
        return Path(given)
    beside = Path(source).parent / "__pycache__"
    with suppress(OSError):
        beside.mkdir(exist_ok=True)
    return beside if os.access(beside, os.W_OK) else Path.home() / ".cache" / "proxskip"


def kept(path: Path, args: Sequence[Any], make: Callable[[], bytes]) -> Callable[[Sequence[Any]], None] | None:
    """The kernel in this file, which is made first if it is not there; None if it would not work outside numba."""
    with suppress(OSError):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    code = _shared(path, make) if may_keep_code(path.parent) else make()
    return loaded(code, args) if code else None


def _shared(path: Path, make: Callable[[], bytes]) -> bytes:
    code = _read(path)
    if code is None:
        with alone(path.with_suffix(".lock")):
            code = _read(path)
            if code is None:
                code = make()
                _write(path, code)
    return code


def may_keep_code(folder: Path) -> bool:
    """Whether a folder is safe for code that will run; a warning where it is not."""
    try:
        if _is_safe(os.stat(folder), os.stat(_PROGRAM)):
            return True
    except OSError:  # a folder that is not there and cannot be made: nothing is kept
        return False
    warnings.warn(
        f"{folder} may be written by other users, so no compiled code is kept there, and every process compiles anew; "
        "take their right to write, or set NUMBA_CACHE_DIR to a folder of your own.",
        stacklevel=2,
    )
    return False


def _is_safe(about: os.stat_result, program: os.stat_result) -> bool:
    """Whether only those may write to a file or folder who could also change the program."""
    user = os.geteuid() if hasattr(os, "geteuid") else about.st_uid
    # many systems give every user a group of the same number, and this group the right to write
    groups = {about.st_uid} | ({program.st_gid} if program.st_mode & stat.S_IWGRP else set())
    return (
        about.st_uid in (0, user, program.st_uid)
        and not about.st_mode & ~program.st_mode & stat.S_IWOTH
        and (not about.st_mode & stat.S_IWGRP or about.st_gid in groups)
    )


def _read(path: Path) -> bytes | None:
    """The code, if it is there, whole, and of nobody else."""
    with suppress(OSError):
        if path.is_symlink() or not _is_safe(os.stat(path), os.stat(_PROGRAM)):
            return None
        found = path.read_bytes()
        if hashlib.sha256(found[32:]).digest() == found[:32]:
            return found[32:]
    return None


def _write(path: Path, code: bytes) -> None:
    """All of it or nothing, since others may read meanwhile."""
    with suppress(OSError):  # without the file the next process compiles again
        with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as part:
            part.write(hashlib.sha256(code).digest() + code)
        os.replace(part.name, path)


@contextmanager
def alone(lock: Path) -> Iterator[None]:
    """Of many processes that start together one compiles, and the others wait for it, where files can be locked."""
    from filelock import FileLock, SoftFileLock

    with ExitStack() as held:
        # a lock that is only a file would be left behind by a process that is killed
        if FileLock is not SoftFileLock:
            with suppress(OSError):
                held.enter_context(FileLock(lock, poll_interval=0.01))
        yield


# -- code --------------------------------------------------------------------------------------------------------------
@cache
def _target() -> Any:
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    return llvm.Target.from_default_triple().create_target_machine(
        cpu=llvm.get_host_cpu_name(), features=llvm.get_host_cpu_features().flatten(), opt=3, jit=True,
        codemodel="jitdefault",
    )  # fmt: skip


def made_by_numba(function: Callable[..., Any], options: dict[str, Any], args: Sequence[Any]) -> bytes:
    """The machine code of a kernel for such arguments, without what numba needs to call it from Python.

    Empty for a kernel that returns something, allocates, or can fail: its code would not work outside numba.
    """
    import llvmlite.binding as llvm
    import numba

    types = tuple(numba.typeof(a) for a in args)
    compiled = numba.njit(**{k: v for k, v in options.items() if k != "cache"})(function)
    compiled.compile(types)
    found = compiled.overloads[types]
    if found.signature.return_type != numba.none:
        return b""
    module = llvm.parse_assembly(compiled.inspect_llvm(types))
    module.link_in(llvm.parse_assembly(_UNCALLED))
    for made in (*module.functions, *module.global_variables):
        if made.name == found.fndesc.mangled_name:
            made.name = _ENTRY
        elif not made.is_declaration:
            made.linkage = "internal"
    passes = llvm.create_new_module_pass_manager()
    passes.add_global_dead_code_eliminate_pass()
    passes.run(module, llvm.create_pass_builder(_target(), llvm.create_pipeline_tuning_options(speed_level=0)))
    outside = [f.name for f in module.functions if f.is_declaration and not f.name.startswith("llvm.")]
    if any(llvm.address_of_symbol(name) is None or name.startswith(("Py", "NRT_", "numba_")) for name in outside):
        return b""
    code: bytes = _target().emit_object(module)
    return code


def _by_llvm(code: bytes) -> tuple[int, Any]:
    """The address of the kernel, and what it lives in."""
    import llvmlite.binding as llvm

    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), _target())
    engine.add_object_file(llvm.ObjectFileRef.from_data(code))
    engine.finalize_object()
    return engine.get_function_address(_ENTRY), engine


_loaded: list[Any] = []  # code lives as long as what it is in


def loaded(code: bytes, args: Sequence[Any]) -> Callable[[Sequence[Any]], None]:
    """The code as a function of such arguments; the GIL is released while it runs."""
    address, keep = _by_llvm(code)
    _loaded.append(keep)
    # numba's functions take a place for the result and one for an exception first, and return zero if all is well
    kind = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, *_c_types(args))
    call = kind(address)

    def act(args: Sequence[Any]) -> None:
        result, problem = ctypes.create_string_buffer(_FEW_BYTES), ctypes.create_string_buffer(_FEW_BYTES)
        if status := call(ctypes.addressof(result), ctypes.addressof(problem), *_flat(args)):
            raise RuntimeError(f"a kernel failed with status {status}")

    return act
