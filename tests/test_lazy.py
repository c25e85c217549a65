"""Written-down client halves: whatever their form, the bytes of numpy, in place, in sums and on several threads."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from proxskip.engines.cpu.engine import CpuEngine
from proxskip.engines.cpu.helpers import Help, Helpers
from proxskip.engines.cpu.lazy import Lazy, Sheet
from proxskip.links.sums import SUM_BLOCK, weighted_sum
from proxskip.types import Array

FORMS: dict[str, Callable[[Any, Any, Any, Any], Any]] = {
    "a leaf": lambda h, x, r, s: h,
    "a plus b": lambda h, x, r, s: h + x,
    "a plus multiple": lambda h, x, r, s: h + s * x,
    "a minus multiple": lambda h, x, r, s: x - h * s,
    "a minus its multiple": lambda h, x, r, s: h - s * h,
    "a multiple of a sum": lambda h, x, r, s: h + s * (x + r),
    "a plus difference": lambda h, x, r, s: h + s * (r - x),
    "a minus difference": lambda h, x, r, s: h - s * (x - r),
    "a plus difference to itself": lambda h, x, r, s: h + s * (x - h),
    "a plus difference of lines": lambda h, x, r, s: x + s * ((h + x) - (r - h)),
    "a plus difference to a number": lambda h, x, r, s: h + s * (x - 2.0),
    "a row plus difference": lambda h, x, r, s: r + (h - x) * s,
}


def operands(c: int, d: int, seed: int = 0) -> tuple[Array, Array, Array, Array, Any]:
    """h of more clients than there are members, x, a row, a column; members. Half of the columns are of any numbers."""
    rng = np.random.default_rng(seed)
    h, x, row, column = (rng.standard_normal(shape) for shape in ((2 * c, d), (c, d), (d,), (c, 1)))
    for v in (h, x):
        at = (rng.random(v.shape) < 0.02) & (np.arange(d) >= d // 2)
        v[at] = rng.choice([np.nan, np.inf, -np.inf, -0.0, 5e-324, 1e308], int(at.sum()))
    return h, x, row, column, np.sort(rng.permutation(2 * c)[:c])


def same(a: Array, b: Array) -> bool:
    """The same bytes; of NaN, which has many, the places."""
    real = ~np.isnan(a)
    return bool(np.array_equal(real, ~np.isnan(b)) and a[real].tobytes() == b[real].tobytes())


@np.errstate(all="ignore")
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("c", "d"), [(1, 2), (33, 7), (SUM_BLOCK + 31, 9), (2 * SUM_BLOCK + 1, 3)])
@pytest.mark.parametrize("own", [False, True])
def test_results_and_sums_have_the_bytes_of_numpy(form: str, c: int, d: int, own: bool) -> None:
    h, x, row, column, members = operands(c, d)
    s = column if own else 0.3
    weights = tuple(np.random.default_rng(1).random((3, c)))
    expected = FORMS[form](h[members], x, row, s)
    totals = [weighted_sum(w, expected) for w in weights]
    untouched, out = h.copy(), np.empty((c, d))

    def written() -> Any:
        return FORMS[form](Lazy.of(h, kept=True), Lazy.of(x), Lazy.of(row), s)

    for rows in (weights[:1], weights):
        sheet = Sheet(d, members, rows)
        summed = sheet.sum(written())
        sheet.store(written(), out, kept=False)
        work = sheet.work()
        for q in range(-(-c // SUM_BLOCK)):
            work(q, q + 1)
        assert same(out, expected)
        assert all(same(found, total) for found, total in zip(summed.sums, totals, strict=False))
        assert h.tobytes() == untouched.tobytes()
    sheet = Sheet(d, members)
    sheet.store(written(), h, kept=True)  # in place
    for lo in range(0, c, 50):
        sheet.work()(lo, min(lo + 50, c))
    assert same(h[members], expected)
    others = np.setdiff1d(np.arange(2 * c), members)
    assert h[others].tobytes() == untouched[others].tobytes()


@np.errstate(all="ignore")
def test_a_sum_is_of_what_was_there_before_the_same_program_changes_it() -> None:
    h, x, row, _, members = operands(300, 5)
    w = np.random.default_rng(1).random(300)
    sent, kept = x - 0.3 * h[members], h[members] + 0.7 * (row - x)
    total = weighted_sum(w, sent)
    sheet, before = Sheet(5, members, (w,)), Lazy.of(h, kept=True)
    summed = sheet.sum(Lazy.of(x) - 0.3 * before)
    sheet.store(before + 0.7 * (Lazy.of(row) - x), h, kept=True)
    sheet.work()(0, 2)
    assert same(summed.sums[0], total)
    assert same(h[members], kept)


# -- the threads -------------------------------------------------------------------------------------------------------
def test_nobody_waits_for_a_helper_that_comes_too_late() -> None:
    helpers, busy = Helpers(1), threading.Event()

    def long() -> None:
        busy.wait(20)

    helpers.call(Help(long), 1)
    engine, done = CpuEngine(2), []
    engine.pool = helpers
    engine._spread(lambda lo, hi: done.append(lo), [(0, 1), (1, 2), (2, 3)])
    assert done == [0, 1, 2]
    busy.set()
    engine.close()
    assert not any(thread.is_alive() for thread in helpers.threads)


def test_an_interrupt_leaves_no_helper_at_work() -> None:
    engine, at_work, mine = CpuEngine(2), [], threading.get_ident()
    engine.pool = Helpers(1)
    there = threading.Event()

    def work(lo: int, hi: int) -> None:
        if threading.get_ident() == mine:
            there.wait(20)
            raise KeyboardInterrupt
        at_work.append(lo)
        there.set()
        while not engine.abandoned.is_set():
            time.sleep(0.001)
        time.sleep(0.05)
        at_work.remove(lo)

    with pytest.raises(KeyboardInterrupt):
        engine._spread(work, [(k, k + 1) for k in range(9)])
    assert not at_work
    assert not engine.abandoned.is_set()
    done: list[int] = []
    engine._spread(lambda lo, hi: done.append(lo), [(k, k + 1) for k in range(9)])
    engine.close()
    assert sorted(done) == list(range(9))


def test_what_ends_a_helper_ends_the_work_too() -> None:
    engine, mine, gone = CpuEngine(2), threading.get_ident(), threading.Event()
    engine.pool = Helpers(1)

    def work(lo: int, hi: int) -> None:
        if threading.get_ident() == mine:
            gone.wait(20)
        else:
            gone.set()
            raise SystemExit(3)

    with pytest.raises(SystemExit):
        engine._spread(work, [(0, 1), (1, 2)])
    engine.close()


def test_helpers_end_with_the_engine_that_is_forgotten() -> None:
    helpers = Helpers(2)
    threads = helpers.threads
    del helpers
    gc.collect()
    for thread in threads:
        thread.join(20)
    assert not any(thread.is_alive() for thread in threads)
