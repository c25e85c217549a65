"""Compiled kernels as files of machine code, which a process can load and call without numba.

Numba takes 0.6 s of CPU time and 30 MB before its first function runs, most of the cost of a process per Flower message
or of a Ray actor. This module keeps the machine code that numba made once on this machine, and llvmlite loads it: the
same code, and the same bytes.

Only kernels that return and allocate nothing can be kept. Files are named by what the code depends on besides its
sources (``code_cache``): the types of its arguments, and the CPU.
"""

from __future__ import annotations

import ctypes
import hashlib
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from proxskip.lazy import code_cache, numba_internals

_ENTRY = "proxskip_kernel"
_FEW_BYTES = 64


def types_of(args: Sequence[Any]) -> str | None:
    """The types of the arguments, as text; None if one cannot be passed."""
    words = [_type_of(a) for a in args]
    return None if None in words else ",".join(map(str, words))


def _type_of(a: Any) -> str | None:
    """As far as numba distinguishes types."""
    if type(a) is np.ndarray and a.dtype.isnative and a.dtype.kind in "iuf" and a.flags.aligned:
        layout = "C" if a.flags.c_contiguous else "F" if a.flags.f_contiguous else "A"
        return f"{a.dtype.kind}{a.itemsize}{layout}{a.ndim}{'' if a.flags.writeable else 'r'}"
    if isinstance(a, tuple):
        within = types_of(a)
        kind = "" if type(a) is tuple else type(a).__name__
        return None if within is None else f"{kind}({within})"
    if type(a) in (int, np.int64):
        return "int" if -(2**63) <= a < 2**63 else "uint" if 0 <= a < 2**64 else None
    return "float" if type(a) in (float, np.float64) else None


# -- files -------------------------------------------------------------------------------------------------------------
def file_name(name: str, types: str) -> str:
    """The name of the file with a kernel's code."""
    return f"{name}-{hashlib.sha256(f'{_processor()}|{types}'.encode()).hexdigest()[:32]}.o"


@cache
def _processor() -> str:
    import llvmlite.binding as llvm

    return f"{llvm.get_host_cpu_name()} {llvm.get_host_cpu_features().flatten()}"


def kept(path: Path | None, args: Sequence[Any], make: Callable[[], bytes]) -> Callable[[Sequence[Any]], None] | None:
    """The kernel in this file, compiled first if needed; None if it would not work outside numba."""
    code = None if path is None else code_cache.read(path)
    if code is None:
        with code_cache.compiler_lock():  # one of several processes compiles, the others wait
            code = None if path is None else code_cache.read(path)
            if code is None:
                code = make()
                if path is not None:
                    code_cache.write(path, code)
    return loaded(code, args) if code else None


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


def made_by_numba(function: Callable[..., Any], options: dict[str, Any], borrows: bool, args: Sequence[Any]) -> bytes:
    """The machine code of a kernel for such arguments, without numba's Python wrapper.

    Empty for a kernel that returns something, allocates, or can fail: it would not work outside numba.
    """
    import llvmlite.binding as llvm
    import numba

    types = tuple(numba.typeof(a) for a in args)
    compiled = numba_internals.njit(function, options | {"cache": False}, borrows)
    compiled.compile(types)
    if compiled.overloads[types].signature.return_type != numba.none:
        return b""
    module = llvm.parse_assembly(compiled.inspect_llvm(types))
    module.link_in(llvm.parse_assembly(numba_internals.DESTRUCTOR))
    entry = module.get_function(numba_internals.code_name(compiled, types))
    expected = len(numba_internals.RESULT_AND_EXCEPTION) + len(list(numba_internals.passed(args)))
    if len(list(entry.arguments)) != expected:
        return b""
    for symbol in (*module.functions, *module.global_variables):
        if symbol.name == entry.name:
            symbol.name = _ENTRY
        elif not symbol.is_declaration:
            symbol.linkage = "internal"
    passes = llvm.create_new_module_pass_manager()
    passes.add_global_dead_code_eliminate_pass()
    passes.run(module, llvm.create_pass_builder(_target(), llvm.create_pipeline_tuning_options(speed_level=0)))
    outside = [f.name for f in module.functions if f.is_declaration and not f.name.startswith("llvm.")]
    if any(llvm.address_of_symbol(name) is None or name.startswith(("Py", "NRT_", "numba_")) for name in outside):
        return b""
    code: bytes = _target().emit_object(module)
    return code


_engines: list[Any] = []  # code lives as long as its engine


def loaded(code: bytes, args: Sequence[Any]) -> Callable[[Sequence[Any]], None]:
    """The code as a function of such arguments; it releases the GIL."""
    import llvmlite.binding as llvm

    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), _target())
    engine.add_object_file(llvm.ObjectFileRef.from_data(code))
    engine.finalize_object()
    _engines.append(engine)
    types = (kind for kind, _ in numba_internals.passed(args))
    signature = ctypes.CFUNCTYPE(ctypes.c_int, *numba_internals.RESULT_AND_EXCEPTION, *types)
    call = signature(engine.get_function_address(_ENTRY))

    def act(args: Sequence[Any]) -> None:
        result, problem = ctypes.create_string_buffer(_FEW_BYTES), ctypes.create_string_buffer(_FEW_BYTES)
        values = (value for _, value in numba_internals.passed(args))
        if status := call(ctypes.addressof(result), ctypes.addressof(problem), *values):
            raise RuntimeError(f"a kernel failed with status {status}")

    return act
