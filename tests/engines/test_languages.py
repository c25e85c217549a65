"""What is written once for each language, Python, numba, CUDA and torch, is the same: bit by bit, as it is integers."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import proxskip
from proxskip.engines.cpu import kernels
from proxskip.support import randomness
from support.tiers import draws

ONES = 0xFFFFFFFF
KNOWN = [
    ((0, 0, 0, 0), 0, (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((ONES,) * 4, (ONES << 32) | ONES, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0x299F31D0 << 32) | 0xA4093822,
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]
"""The known answers of Random123 (Salmon et al., 2011): counter, key, words."""
WORD = st.integers(0, ONES)
KEYS = st.tuples(st.integers(0, 2**63 - 1), *3 * [st.integers(0, 2**20)])
"""Seed, client, round and step."""


def compiled(counter: tuple[int, ...], seed: int) -> tuple[int, ...]:
    words = kernels.philox(*np.array(counter, np.uint32), np.uint64(seed))
    return tuple(int(w) for w in words)


@pytest.mark.parametrize(("counter", "key", "answer"), KNOWN)
def test_philox_has_the_known_answers(counter: Any, key: int, answer: Any) -> None:
    assert randomness.philox4x32(counter, key) == answer
    assert compiled(counter, key) == answer


@settings(max_examples=draws(60))
@given(counter=st.tuples(WORD, WORD, WORD, WORD), seed=st.integers(0, 2**64 - 1))
def test_philox_of_arrays_and_compiled_is_that_of_numbers(counter: Any, seed: int) -> None:
    words = randomness.philox4x32(counter, seed)
    assert compiled(counter, seed) == words
    for k in range(4):  # any word of the counter may be an array
        several: Any = [*counter]
        several[k] = np.array([counter[k], 0, ONES], np.uint64)
        assert tuple(int(w[0]) for w in randomness.philox4x32(tuple(several), seed)) == words


@pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler")
def test_philox_of_cuda_is_that_of_numbers(tmp_path: Path) -> None:
    """The text of the kernel, compiled for the processor."""
    folder = Path(proxskip.__file__).parent / "engines" / "gpu"
    texts = [f.read_text() for f in sorted(folder.iterdir()) if f.suffix in (".py", ".cu")]
    text = next(t[t.index("__device__ void philox(") :] for t in texts if "__device__ void philox(" in t)
    body = text[: text.index("\n}\n") + 3]
    types = "typedef unsigned int u32; typedef unsigned long long u64;\n#define __device__\n#define __forceinline__\n"
    call = 'extern "C" void words_of(u32* c, u64 key, u32* words) { philox(c[0], c[1], c[2], c[3], key, words); }'
    (tmp_path / "philox.cpp").write_text(types + body + call)
    subprocess.run(["g++", "-shared", "-fPIC", "-o", "philox.so", "philox.cpp"], check=True, cwd=tmp_path)
    library = ctypes.CDLL(str(tmp_path / "philox.so"))
    for counter, key, answer in KNOWN:
        c, words = np.array(counter, np.uint32), np.zeros(4, np.uint32)
        library.words_of(ctypes.c_void_p(c.ctypes.data), ctypes.c_uint64(key), ctypes.c_void_p(words.ctypes.data))
        assert tuple(words.tolist()) == answer


@settings(max_examples=draws(60))
@given(key=KEYS)
def test_compiled_coins_are_the_plain_ones(key: Any) -> None:
    assert kernels.coin(*key) == randomness.anchor_coin(*key)


@settings(max_examples=draws(200))
@given(key=KEYS, size=st.integers(1, 5000), share=st.floats(0.0, 1.0))
def test_compiled_minibatches_are_the_plain_ones(key: Any, size: int, share: float) -> None:
    b = max(1, int(share * size))
    plain = randomness.minibatch(*key, size, b)
    out, room = kernels.room_for(b, size)
    kernels.draw_rows(*key, 0, size, b, out, room)
    # read in the order of the rows, unless they are few of many
    in_order = size <= kernels.ROWS_PER_PICK * b
    assert np.array_equal(np.sort(plain) if in_order else plain, out[:b])
    assert not room[0].any()  # ready for the next draw
    assert len(set(plain.tolist())) == b
    assert plain.min() >= 0
    assert plain.max() < size
