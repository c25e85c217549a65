"""Object files of kernels, put into memory without a linker and without LLVM, whose library takes 5 MB of a process.

Only what LLVM emits for a kernel on Linux is understood (ELF, the large code model), on AArch64 and x86-64: sections of
code and constants, and a few kinds of relocations, among them calls of the C library. With anything else, and on every
other machine, nothing is placed, and llvmlite loads the file.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import struct
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

_AARCH64, _X86_64 = 183, 62
_PROGBITS, _SYMTAB, _RELA, _NOBITS = 1, 2, 4, 8
_WRITE, _ALLOC = 1, 2
_UNWINDING = ".eh_frame"  # kernels raise nothing
_MACHINES = {"aarch64": _AARCH64, "x86_64": _X86_64}
_STUBS = {
    _AARCH64: struct.pack("<II", 0x58000050, 0xD61F0200),  # ldr x16, from after this; br x16
    _X86_64: bytes((0xFF, 0x25, 0, 0, 0, 0)),  # jmp to what is after this
}
"""Jumps to an address that follows: functions of the C library are too far away for a call."""
_ROOM = 16


class _Unknown(Exception):
    """Something that is not understood."""


@dataclass(frozen=True, slots=True)
class _Section:
    name: str
    kind: int
    flags: int
    start: int
    size: int
    link: int
    info: int
    align: int


class _Object:
    """An object file and its tables."""

    def __init__(self, code: bytes) -> None:
        self.code = code
        kind, self.machine = struct.unpack_from("<HH", code, 16)
        if code[:6] != b"\x7fELF\x02\x01" or kind != 1 or self.machine != _MACHINES.get(os.uname().machine):
            raise _Unknown
        (table,) = struct.unpack_from("<Q", code, 40)
        size, count, names = struct.unpack_from("<HHH", code, 58)
        raw = [struct.unpack_from("<IIQQQQIIQQ", code, table + k * size) for k in range(count)]
        at = raw[names][4]
        self.sections = [_Section(self.text(at + r[0]), r[1], r[2], *r[4:9]) for r in raw]
        symbols = next(s for s in self.sections if s.kind == _SYMTAB)
        strings = self.sections[symbols.link].start
        self.symbols = [
            (self.text(strings + name), section, value)
            for name, _, section, value in struct.iter_unpack("<IHHQ8x", self._bytes(symbols))
        ]

    def text(self, at: int) -> str:
        """The string that begins there."""
        return self.code[at : self.code.index(b"\0", at)].decode()

    def _bytes(self, s: _Section) -> bytes:
        return self.code[s.start : s.start + s.size]

    def laid_out(self) -> tuple[dict[int, int], int]:
        """Where each section that is needed goes, and how much room all of them take."""
        places, end = {}, 0
        for k, s in enumerate(self.sections):
            if not s.flags & _ALLOC or s.name == _UNWINDING:
                continue
            if s.flags & _WRITE or s.kind not in (_PROGBITS, _NOBITS):
                raise _Unknown
            places[k] = end = -(-end // max(1, s.align)) * max(1, s.align)
            end += s.size
        return places, end

    def relocations(self, places: dict[int, int]) -> Iterator[tuple[int, int, int, int]]:
        """Of the sections in these places: where, of which kind, to which symbol, and what is added."""
        for s in self.sections:
            if s.kind == _RELA and s.info in places:
                for at, info, more in struct.iter_unpack("<QQq", self._bytes(s)):
                    yield places[s.info] + at, info & 0xFFFFFFFF, info >> 32, more

    def fill(self, room: Any, places: dict[int, int]) -> None:
        """Copy the sections to their places."""
        for k, at in places.items():
            if self.sections[k].kind == _PROGBITS:
                room[at : at + self.sections[k].size] = self._bytes(self.sections[k])


def placed(code: bytes, entry: str) -> tuple[int, Any] | None:
    """The address of a function of an object file, and the memory to keep; None if the file is not understood."""
    with suppress(_Unknown, OSError, AttributeError, ValueError, StopIteration, struct.error):
        return _placed(_Object(code), entry)
    return None


def _placed(made: _Object, entry: str) -> tuple[int, Any]:
    places, end = made.laid_out()
    first = -(-end // _ROOM) * _ROOM
    outside = {k: name for k, (name, section, _) in enumerate(made.symbols) if name and section == 0}
    room = mmap.mmap(-1, first + _ROOM * len(outside) + 1, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    base = ctypes.addressof(ctypes.c_char.from_buffer(room))
    made.fill(room, places)
    library, where = ctypes.CDLL(None), dict[int, int]()
    for j, (k, name) in enumerate(outside.items()):
        address = ctypes.cast(getattr(library, name), ctypes.c_void_p).value
        stub, at = _STUBS[made.machine] + struct.pack("<Q", address), first + _ROOM * j
        room[at : at + len(stub)] = stub
        where[k] = base + at
    for k, (_, section, value) in enumerate(made.symbols):
        if section in places:
            where[k] = base + places[section] + value
    for at, kind, symbol, more in made.relocations(places):
        if symbol not in where:
            raise _Unknown
        _RELOCATE[made.machine](room, base, at, kind, where[symbol] + more)
    _seal(room, base, made.machine)
    return next(where[k] for k, (name, _, _) in enumerate(made.symbols) if name == entry and k in where), room


def _relocate_x86_64(room: Any, base: int, at: int, kind: int, target: int) -> None:
    """Write an address where the code needs it; of functions and constants alike, with this code model."""
    if kind != 1:  # R_X86_64_64
        raise _Unknown
    struct.pack_into("<Q", room, at, target)


def _relocate_aarch64(room: Any, base: int, at: int, kind: int, target: int) -> None:
    """Write an address, or the distance to it, where the code needs it."""
    away = target - base - at
    if kind == 257:  # ABS64
        struct.pack_into("<Q", room, at, target)
    elif kind in (282, 283) and abs(away) < 1 << 27:  # JUMP26, CALL26
        (word,) = struct.unpack_from("<I", room, at)
        struct.pack_into("<I", room, at, word & 0xFC000000 | away >> 2 & 0x3FFFFFF)
    elif 263 <= kind <= 269:  # MOVW_UABS_G0 to G3
        (word,) = struct.unpack_from("<I", room, at)
        part = target >> 16 * ((kind - 263) // 2) & 0xFFFF
        struct.pack_into("<I", room, at, word & ~(0xFFFF << 5) | part << 5)
    else:
        raise _Unknown


_RELOCATE = {_AARCH64: _relocate_aarch64, _X86_64: _relocate_x86_64}


def _seal(room: Any, base: int, machine: int) -> None:
    """Make the code executable, and no longer writable."""
    protect = ctypes.CDLL(None, use_errno=True).mprotect
    protect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    if protect(base, len(room), mmap.PROT_READ | mmap.PROT_EXEC):
        raise OSError(ctypes.get_errno(), "mprotect")
    if machine == _X86_64:
        return
    # the caches of code do not see what was written
    clear = ctypes.CDLL("libgcc_s.so.1")["__clear_cache"]
    clear.argtypes, clear.restype = [ctypes.c_void_p, ctypes.c_void_p], None
    clear(base, base + len(room))
