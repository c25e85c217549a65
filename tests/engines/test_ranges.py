"""Client halves of large cohorts run on ranges of the members: the same bytes, whatever a half computes."""

import platform
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import proxskip as ps
from proxskip.core.engine import Request
from proxskip.engines.cpu import engine as cpu
from proxskip.engines.cpu.engine import CpuEngine
from proxskip.engines.reference import ReferenceEngine
from proxskip.types import Array, Vectors

NAMES = "abcdefghij"


FORMS: dict[str, Callable[[Any], Any]] = {
    "sums and multiples": lambda m: m["a"] + 0.5 * m["b"] - m["c"] / 3.0,
    "a number of each row": lambda m: m["a"] / np.linalg.norm(m["a"], axis=-1, keepdims=True),
    "one row for all": lambda m: np.broadcast_to(np.asarray(m["a"]).dtype.type(2.0), np.shape(m["a"])),
}


def in_ranges(monkeypatch: pytest.MonkeyPatch, numbers: int = 70) -> None:
    monkeypatch.setattr(cpu, "LARGE", 1)
    monkeypatch.setattr(cpu, "NUMBERS_PER_RANGE", numbers)


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
        work = engine.run(Request(local, cohort, round, K=2, down=(x,)))
        sums += engine.sums((w,), work.up)
        engine.tell(settle, cohort, (x,))
    engine.close()
    return [v.tobytes() for v in (*sums, *engine.memory().values())]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("members", [600, 350])
def test_a_half_may_do_anything_with_its_rows_however_large_the_cohort(form, members, monkeypatch) -> None:
    cohort = np.sort(np.random.default_rng(0).permutation(600)[:members])
    small = rounds_of(FORMS[form], cohort, 1)
    in_ranges(monkeypatch)
    for threads in (1, 2):
        assert rounds_of(FORMS[form], cohort, threads) == small


@pytest.mark.parametrize("form", FORMS)
def test_every_half_shares_the_threads_whatever_it_computes(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A half that uses any numpy function is divided as one of sums and multiples is, and runs once for each member."""
    in_ranges(monkeypatch)
    seen: list[list[int]] = []
    for threads in (1, 2, 3):
        sizes: list[int] = []

        def noted(m: Any, sizes: list[int] = sizes) -> Any:
            sizes.append(len(m["a"]))
            return FORMS[form](m)

        rounds_of(noted, np.arange(600), threads)
        seen.append(sorted(sizes))
    assert max(seen[0]) == 10
    # the form is used three times in the first half and once in the second, in two rounds
    assert sum(seen[0]) == 2 * 4 * 600
    assert seen[0] == seen[1] == seen[2]


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
        engine.spread(work, [(k, k + 1) for k in range(9)])
    assert not at_work
    assert not engine.abandoned.is_set()
    done: list[int] = []
    engine.spread(lambda lo, hi: done.append(lo), [(k, k + 1) for k in range(9)])
    engine.close()
    assert sorted(done) == list(range(9))


def test_stacks_that_may_come_back_are_not_used_again_in_the_same_round(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proxskip.engines.cpu.engine.LARGE", 1)
    monkeypatch.setattr("proxskip.engines.cpu.engine.NUMBERS_PER_RANGE", 6)
    problem = ps.Problem(ps.random_quadratics(8, 5, L=1.0, mu=0.05, seed=1))
    engine, start = CpuEngine(2), np.arange(40.0).reshape(8, 5)
    engine.open(problem, {"m": start}, 0)

    def grown(client: Any, memory: Any, K: int) -> Any:
        return (memory["m"],), {"m": memory["m"] + 1.0}

    for _ in range(3):
        engine.journal.begin()
        for exchange in range(4):
            engine.run(Request(grown, np.arange(8), 0, exchange=exchange))
        assert np.array_equal(engine.memory()["m"], start + 4.0)
        engine.journal.undo()
        assert np.array_equal(engine.memory()["m"], start)
    engine.close()


@pytest.mark.parametrize("batch", [4, None])
def test_a_half_may_descend_more_than_once_with_anchors_and_without(batch: int | None) -> None:
    """Steps are numbered on within the round, and so are their minibatches and coins."""
    A, b = np.random.default_rng(1).standard_normal((60, 4)), np.arange(60) % 2
    problem = ps.split(ps.Logistic(A, b, l2=0.1), clients=3, by="iid").with_batch(batch)

    def half(client: Any, m: Any, K: int, x: Any) -> Any:
        y, w, gw = client.descend(x, 0.0, 0.5, 3, anchor=(x, client.gradient(x), 0.4))
        y, w, gw = client.descend(y, 0.0, 0.5, 2, anchor=(w, gw, 0.4))
        return (client.descend(client.descend(y, 0.0, 0.5, 2), 0.0, 0.5, 3), w, gw), {}

    ends = []
    for engine in (ReferenceEngine(), CpuEngine(2)):
        engine.open(problem, {"h": np.zeros((3, 4))}, 7)
        work = engine.run(Request(half, np.arange(3), 5, 0, (np.ones(4),)))
        ends.append(([np.array(u) for u in work.up], work.gradients))
        engine.close()
    (found, count), (other, other_count) = ends
    assert count == other_count
    for u, v in zip(found, other, strict=True):
        assert np.abs(u - v).max() <= 1e-12


NEW_PAGES = """
import resource
import numpy as np
import scipy.sparse
import proxskip as ps

faults = []
round_of = ps.Scaffnew.round

def counted(self, server, exchange):
    faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt)
    return round_of(self, server, exchange)

ps.Scaffnew.round = counted
A = scipy.sparse.random(2000, 400, 0.01, "csr", rng=0)
problem = ps.split(ps.Logistic(A, np.arange(2000) % 2, l2=0.1), 1000)
ps.run(ps.Scaffnew(gamma=1e-3, p=0.5, K=1), problem, rounds=12, every=12, threads=1, progress=False)
print(int(np.median(np.diff(faults))))
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="it is glibc that returns freed memory")
def test_a_round_takes_its_stacks_from_memory_that_is_there() -> None:
    """A stack has 781 pages here; those of a round are not made anew by the system."""
    done = subprocess.run([sys.executable, "-c", NEW_PAGES], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 100
