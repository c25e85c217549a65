"""Written-down client halves: whatever their form, the bytes of numpy, in place, in sums and on several threads."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import proxskip as ps
from proxskip.engines.cpu import engine as cpu
from proxskip.engines.cpu.engine import CpuEngine
from proxskip.engines.cpu.lazy import Lazy, Sheet
from proxskip.interfaces import Request
from proxskip.links.sums import weighted_sum
from proxskip.types import Array, Vectors

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
    "a quotient": lambda h, x, r, s: h - (x - r) / s,
    "a multiple alone": lambda h, x, r, s: -(0.0 * h) * s,
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
@pytest.mark.parametrize(("c", "d"), [(1, 2), (33, 7), (287, 9), (513, 2100)])
@pytest.mark.parametrize("own", [False, True])
def test_results_and_sums_have_the_bytes_of_numpy(form: str, c: int, d: int, own: bool) -> None:
    h, x, row, column, members = operands(c, d)
    s = column if own else 0.3
    weights = tuple(np.random.default_rng(1).random((3, c)))
    expected = FORMS[form](h[members], x, row, s)
    sums = [weighted_sum(w, expected) for w in weights]
    assert same(CpuEngine(2).sum(weights[0], expected), sums[0])
    untouched, out = h.copy(), np.empty((c, d))
    for target, kept, rows in ((out, False, weights), (out, False, weights[:1]), (h, True, ())):  # the last in place
        assert h.tobytes() == untouched.tobytes()
        sheet = Sheet(d, members, rows)
        lazy = FORMS[form](Lazy.of(h, kept=True), Lazy.of(x), Lazy.of(row), s)
        sheet.store(lazy, target, kept)
        totals = sheet.sum(lazy) if rows else tuple
        work, pieces = sheet.work()
        for q in range(pieces):
            work(q, q + 1)
        assert all(same(total, known) for total, known in zip(totals(), sums, strict=False))
        assert len(totals()) == len(rows)
    assert same(out, expected)
    assert same(h[members], expected)
    others = np.setdiff1d(np.arange(2 * c), members)
    assert h[others].tobytes() == untouched[others].tobytes()


NAMES = "abcdefghij"


def ten(m: Any) -> Any:
    return m["a"] + m["b"] - m["c"] + m["d"] - m["e"] + m["f"] - m["g"] + m["h"] - m["i"] + m["j"]


MORE: dict[str, Callable[[Any], Any]] = {
    "ten arrays": ten,
    "an index": lambda m: m["a"] + m["b"][..., :1],
    "a function": lambda m: np.sqrt(np.abs(m["a"])),
    "an attribute": lambda m: m["a"].clip(-0.5, 0.5),
    "a norm": lambda m: m["a"] / np.linalg.norm(m["a"], axis=-1, keepdims=True),
    "a power": lambda m: m["a"] ** 2,
    "a sum with a number": lambda m: 2.0 - m["a"],
    "a product of vectors": lambda m: m["a"] * m["b"],
    "a choice": lambda m: np.where(np.arange(m["a"].shape[-1]) % 2, m["a"], m["b"]),
    "a comparison": lambda m: m["a"] * (m["a"] > m["b"]),
    "an equality": lambda m: m["a"] * (m["c"] == m["d"]),
    "a copy": lambda m: np.array(m["a"]),
    "one row for all": lambda m: np.broadcast_to(np.asarray(m["a"]).dtype.type(2.0), np.shape(m["a"])),
}


def rounds_of(form: Callable[[Any], Any], cohort: Array, threads: int) -> list[bytes]:
    """Two rounds on an engine, with the form in both halves: what comes up and what is remembered."""
    rng = np.random.default_rng(3)
    A, b = rng.standard_normal((1200, 7)), rng.choice([-1.0, 1.0], 1200)
    problem = ps.split(ps.Logistic(A, b, l2=0.1), 600)
    memory = {k: rng.standard_normal((600, 7)) for k in NAMES}
    w, x, engine = rng.random(len(cohort)), rng.standard_normal(7), CpuEngine(threads)

    def local(client: Any, m: Any, K: int, x: Array) -> tuple[tuple[Any, ...], Vectors]:
        y = client.descend(form(m), m["a"], 0.1, K)
        return (form(m) - y, 0.5 * m["b"]), {"a": y, "b": form(m), "c": m["d"], "d": m["d"]}

    def settle(client: Any, m: Any, x: Array) -> Vectors:
        return {"e": m["e"] + 0.5 * (x - m["a"]), "f": form(m), "g": m["h"]}

    engine.open(problem, memory, 0)
    sums: list[Any] = []
    for round in range(2):
        work = engine.run(Request(local, cohort, round, K=2, down=(x,), weights=(w,)))
        sums += engine.sums((w,), work.up)
        engine.tell(settle, cohort, (x,))
    engine.close()
    return [v.tobytes() for v in (*sums, *engine.memory().values())]


@pytest.mark.parametrize("form", MORE)
@pytest.mark.parametrize("members", [600, 350])
def test_a_half_may_do_anything_with_its_rows_however_large_the_cohort(form, members, monkeypatch) -> None:
    cohort = np.sort(np.random.default_rng(0).permutation(600)[:members])
    small = rounds_of(MORE[form], cohort, 1)
    monkeypatch.setattr(cpu, "LAZY", 1)
    for threads in (1, 2):
        assert rounds_of(MORE[form], cohort, threads) == small


def test_an_error_of_a_half_is_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu, "LAZY", 1)

    def fails(client: Any, m: Any, K: int) -> Any:
        raise TypeError("its own error")

    engine = CpuEngine(1)
    engine.open(ps.Problem(ps.random_quadratics(n=4, d=3)), {"h": np.ones((4, 3))}, 0)
    with pytest.raises(TypeError, match="its own error"):
        engine.run(Request(fails, np.arange(4), 0))
    assert np.array_equal(engine.memory()["h"], np.ones((4, 3)))


def test_an_interrupt_leaves_no_helper_at_work() -> None:
    engine, at_work, mine = CpuEngine(2), [], threading.get_ident()
    engine.pool = ThreadPoolExecutor(1)
    helper_is_here = threading.Event()

    def work(lo: int, hi: int) -> None:
        if threading.get_ident() == mine:
            helper_is_here.wait(20)
            raise KeyboardInterrupt
        at_work.append(lo)
        helper_is_here.set()
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
