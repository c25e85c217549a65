"""Real kills on real Ray: workers, drivers and nodes, each run compared with one that nobody disturbed.

    python tests/campaigns/chaos_ray.py                      100 worker kills, 20 driver kills, 10 node removals
    python tests/campaigns/chaos_ray.py --workers 20 --drivers 3 --nodes 2

Part of ``make chaos``. Prints the counts and the longest recovery, and exits with 1 if any x differs by more than 1e-12
or a recovery took longer than it may. What happened too late to disturb its run does not count, and is done again in another one.
"""

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[variable] = "1"
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
warnings.simplefilter("ignore")

import numpy as np  # noqa: E402
import ray  # noqa: E402
import scipy.sparse  # noqa: E402
from ray.cluster_utils import Cluster  # noqa: E402

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # for campaigns and support

import proxskip as ps  # noqa: E402
from campaigns.chaos import tell  # noqa: E402
from proxskip.engines.ray.cluster import start_here  # noqa: E402
from proxskip.engines.ray.engine import RayEngine  # noqa: E402
from proxskip.engines.ray.private import on_loopback  # noqa: E402
from support.comparing import close  # noqa: E402
from support.methods import NAMED  # noqa: E402
from support.problems import data  # noqa: E402

METHODS = ("scaffnew", "scaffnew-cohort", "scaffold-I", "decentralized", "s-local-gd-q", "scaffnew-psi")
KILLS_A_RUN, DRIVER_KILLS_A_RUN = 4, 3
ROUNDS = 120
ROWS = 40_000
"""So many that the actors are at work for most of a round."""
RECORD_EVERY = 20
"""Rounds from one record to the next; after a loss the run goes on from a record."""
LONGEST = {"workers": 15.0, "drivers": 15.0, "nodes": 10.0}
"""Seconds to the end of the recovery, from a kill, or from when Ray itself takes a removed node for dead."""


class Found(NamedTuple):
    """How often something was killed, the runs that went wrong, and the seconds of the longest recovery.

    Args:
        after_notice: those since Ray itself knew.
    """

    done: int
    wrong: int
    longest: float = 0.0
    after_notice: float = 0.0


class Watcher:
    """Does ``act(engine, rng)`` at some random times of a run, each after the last deed was mended.

    Args:
        seconds: about how long a run takes that nobody disturbs; 0 for doing nothing.
        is_noticed: whether Ray itself knows of all deeds.
    """

    def __init__(
        self, engine: RayEngine, act: Callable[[RayEngine, random.Random], bool], times: int, seed: int, seconds: float,
        is_noticed: Callable[[], bool] = lambda: True,
    ) -> None:  # fmt: skip
        self.engine, self.act, self.is_noticed, self.rng = engine, act, is_noticed, random.Random(seed)
        when = sorted(self.rng.uniform(0.0, seconds) for _ in range(times))
        self.pauses = [b - a for a, b in zip([0.0, *when], when, strict=False)]
        self.over, self.thread = threading.Event(), threading.Thread(target=self.go, daemon=True)
        self.done = self.in_vain = 0
        self.longest = self.longest_after_notice = self.took = 0.0

    def on_run_start(self, config: Any) -> None:
        self.began = time.monotonic()
        self.thread.start()

    def on_run_end(self, result: Any) -> None:
        self.took = time.monotonic() - self.began
        self.over.set()
        self.thread.join(60)

    def go(self) -> None:
        """The longest times to the end of the mending, from the deed and from when Ray knows of it."""
        for pause in self.pauses:
            if self.over.wait(pause):
                return
            seen, began = self.mended(), time.monotonic()
            if not self.act(self.engine, self.rng):
                continue
            noticed = None
            while self.mended() == seen and not self.over.is_set():  # the engine's deadline ends it
                if noticed is None and self.is_noticed():
                    noticed = time.monotonic()
                time.sleep(0.01)
            if self.mended() > seen:
                ended = time.monotonic()
                self.done += 1
                self.longest = max(self.longest, ended - began)
                after = 0.0 if noticed is None else ended - noticed  # the engine may know of it first
                self.longest_after_notice = max(self.longest_after_notice, after)
            else:
                self.in_vain += 1

    def mended(self) -> int:
        """How often the engine was opened."""
        return OPENED.get(id(self.engine), 0)


OPENED: dict[int, int] = {}


class Counted(RayEngine):
    """Counts how often it was opened: once a run, and after every loss."""

    def open(self, *given: Any) -> None:
        super().open(*given)
        OPENED[id(self)] = OPENED.get(id(self), 0) + 1


def kill_a_worker(engine: RayEngine, rng: random.Random) -> bool:
    try:
        pid, _ = ray.get(rng.choice(list(engine.pool.handles)).where.remote(), timeout=30)
        os.kill(pid, signal.SIGKILL)
        return True
    except Exception:
        return False


@cache
def problem_of(name: str) -> ps.Problem:
    row = NAMED[name]
    A, b = data(rows=ROWS, features=40)
    whole = ps.Logistic(scipy.sparse.csr_matrix(A), b, l2_relative=0.02)
    cut = ps.split(whole, clients=row.clients, by="label", weights="rows" if row.weights else "equal")
    return cut.with_psi(row.psi) if row.psi else cut


def result_of(name: str, engine: Any, seed: int, watcher: Any = ()) -> Any:
    row, problem = NAMED[name], problem_of(name)
    return ps.run(
        row.make(problem), problem, rounds=ROUNDS, cohort=row.cohort, engine=engine, seed=seed, every=RECORD_EVERY,
        allow_unsafe_step=True, callbacks=watcher,
    )  # fmt: skip


def many(
    times: int, a_run: int, first: int, engine_for: Callable[[], RayEngine],
    act: Callable[[RayEngine, random.Random], bool], is_noticed: Callable[[], bool] = lambda: True,
) -> Found:  # fmt: skip
    """Runs of all methods in turn until ``act`` was done so often."""
    done, wrong, worst, worst_after, seconds = 0, 0, 0.0, 0.0, {}  # type: int, int, float, float, dict[str, float]
    for seed in range(first, first + 3 * times + 10):
        if done >= times:
            return Found(done, wrong, worst, worst_after)
        name = METHODS[seed % len(METHODS)]
        if name not in seconds:
            quiet = Watcher(engine := engine_for(), act, 0, seed, 0.0)
            share = 1.0 - result_of(name, engine, seed, (quiet,)).summary["cluster"]["share_communication"]
            seconds[name] = quiet.took
            print(f"  {name}: {quiet.took:.1f} s if undisturbed, {share:.0%} of it local work", flush=True)
        watcher = Watcher(engine := engine_for(), act, min(a_run, times - done), seed, seconds[name], is_noticed)
        result = result_of(name, engine, seed, (watcher,))
        done, worst = done + watcher.done, max(worst, watcher.longest)
        worst_after = max(worst_after, watcher.longest_after_notice)
        lost = result.summary["cluster"]["recoveries"]
        redone = max((r["round"] - r["from_round"] for r in lost), default=0)
        good = close(result.x, result_of(name, "cpu", seed).x, 1e-12) and redone <= RECORD_EVERY
        wrong += not good
        print(
            f"  {name}: {watcher.done} times (and {watcher.in_vain} too late), {len(lost)} recoveries, up to "
            f"{redone} rounds redone, x {'the same' if good else 'DIFFERENT'}, {watcher.longest:.1f} s, of them "
            f"{watcher.longest_after_notice:.1f} s since Ray knew",
            flush=True,
        )
    raise SystemExit(f"only {done} of {times} happened in time; the machine is too slow for this script.")


def workers(kills: int, first: int) -> Found:
    start_here(num_cpus=4, log_to_driver=False, logging_level="ERROR")
    engine = Counted(3, stay=True)
    found = many(kills, KILLS_A_RUN, first, lambda: engine, kill_a_worker)
    engine.shutdown()
    ray.shutdown()
    return found


def drivers(kills: int, first: int) -> Found:
    """A run from the command line, killed at random moments and resumed, until it is through."""
    command = [sys.executable, "-m", "proxskip"]
    flags = ["scaffnew", "--data", "digits", "--clients", "6", "--rounds", "2500", "--every", "500", "--quiet"]
    ray_flags = ["--engine", "ray", "--actors", "2", "--checkpoint-every", "50"]
    rng, done, wrong = random.Random(first), 0, 0

    def go(words: list[str], kill_after: float | None = None) -> int:
        driver = subprocess.Popen([*command, *words], stderr=subprocess.DEVNULL)
        try:
            code = driver.wait(kill_after)
        except subprocess.TimeoutExpired:
            driver.kill()
            code = driver.wait()
        if code not in (0, -signal.SIGKILL):
            raise SystemExit(f"proxskip {' '.join(words)} ended with {code}.")
        return code

    with tempfile.TemporaryDirectory() as folder:
        plain, quiet = Path(folder) / "plain", Path(folder) / "quiet"
        go(["run", *flags, "--out", str(plain)])
        began = time.monotonic()
        driver = subprocess.Popen([*command, "run", *flags, "--out", str(quiet), *ray_flags])
        while not (quiet / "spec.json").exists() and driver.poll() is None:
            time.sleep(0.02)
        starting = time.monotonic() - began
        driver.wait()
        left_at_start = time.monotonic() - began - starting
        for trial in range(3 * kills + 10):
            if done >= kills:
                return Found(done, wrong)
            out, killed = Path(folder) / f"run{trial}", 0
            left, words = left_at_start, ["run", *flags, "--out", str(out), *ray_flags]
            while not (out / "x.npy").exists():
                wanted = killed < DRIVER_KILLS_A_RUN and done + killed < kills
                after = rng.uniform(0.0, left)
                go(words, starting + after if wanted else None)
                if (out / "x.npy").exists():
                    break  # too late, if it was killed at all
                if (out / "spec.json").exists():
                    left -= after if words[0] == "run" else 0.0
                    killed, words = killed + 1, ["resume", str(out), "--actors", "2", "--quiet"]
                else:  # too early
                    starting, words = 1.5 * starting, ["run", *flags, "--out", str(out), "--force", *ray_flags]
            good = close(np.load(out / "x.npy"), np.load(plain / "x.npy"), 1e-12)
            done, wrong = done + killed, wrong + (not good)
            said = f"{killed} kills, x {'the same' if good else 'DIFFERENT'}"
            print(f"  scaffnew from the command line: {said}", flush=True)
    raise SystemExit(f"only {done} of {kills} kills happened in time; the machine is too slow for this script.")


def nodes(removals: int, first: int) -> Found:
    """Two nodes besides the driver's: one with actors is killed while a run goes on, another added before the next."""
    about = {"num_cpus": 3, "object_store_memory": 100 * 2**20, "include_dashboard": False}
    about |= {"node_ip_address": "127.0.0.1"}
    with on_loopback():
        cluster = Cluster(initialize_head=True, head_node_args={**about, "num_cpus": 0})
        held: list[Any] = []
        removed: set[str] = set()

        def engine() -> RayEngine:
            while len(held) < 2:
                held.append(cluster.add_node(**about))
            if not ray.is_initialized():
                ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
            return Counted(3, deadline=120)

        def remove(engine: RayEngine, rng: random.Random) -> bool:
            machines = {machine for _, machine in ray.get([h.where.remote() for h in engine.pool.handles], timeout=60)}
            used = [node for node in held if node.node_id in machines]
            if not used:
                return False
            node = rng.choice(used)
            held.remove(node)
            removed.add(node.node_id)
            cluster.remove_node(node, allow_graceful=False)
            return True

        def all_dead() -> bool:
            return removed <= {node["NodeID"] for node in ray.nodes() if not node["Alive"]}

        found = many(removals, 1, first, engine, remove, all_dead)
        ray.shutdown()
        cluster.shutdown()
    return found


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for what, default in (("workers", 100), ("drivers", 20), ("nodes", 10)):
        options.add_argument(f"--{what}", type=int, default=default, help=f"default: {default}")
    options.add_argument("--first", type=int, default=0, help="number of the first seed")
    o = options.parse_args()
    done, wrong, more = 0, 0, {}  # type: int, int, dict[str, float]
    for act, times in ((workers, o.workers), (drivers, o.drivers), (nodes, o.nodes)):
        if times:
            print(f"{act.__name__}:", flush=True)
            found = act(times, o.first)
            done, wrong = done + found.done, wrong + found.wrong + (found.after_notice > LONGEST[act.__name__])
            if found.longest:
                more["most seconds to recover"] = round(found.longest, 1)
            if act is nodes:
                more["since Ray knew"] = round(found.after_notice, 1)
    return tell(done, wrong, **more)


if __name__ == "__main__":
    sys.exit(main())
