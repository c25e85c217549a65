"""Real kills on real Ray: workers, drivers and nodes, each run compared bit for bit with one that nobody disturbed.

    python tests/chaos_ray.py                      100 worker kills, 20 driver kills, 10 node removals
    python tests/chaos_ray.py --workers 20 --drivers 3 --nodes 2

Part of ``make chaos``. Prints the counts and the longest recovery, and exits with 1 if any x differs.
"""

from __future__ import annotations

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
from pathlib import Path
from typing import Any

for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[variable] = "1"
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
warnings.simplefilter("ignore")

import ray  # noqa: E402
from ray.cluster_utils import Cluster  # noqa: E402

import proxskip as ps  # noqa: E402
from conftest import NAMED  # noqa: E402
from proxskip.engines.ray import RayEngine  # noqa: E402
from proxskip.engines.ray_pool import on_loopback, start_here  # noqa: E402

METHODS = ("scaffnew", "scaffnew-cohort", "scaffold-I", "decentralized", "s-local-gd-q", "scaffnew-psi")
KILLS_A_RUN = 4


class Watcher:
    """Something that happens while a run goes on: ``act(engine, rng)`` so many times, each after the last was mended.

    ``longest`` is the longest time from the deed to the end of its mending, in seconds.
    """

    def __init__(self, engine: RayEngine, act: Any, times: int, seed: int, pause: tuple[float, float]) -> None:
        self.engine, self.act, self.times, self.pause = engine, act, times, pause
        self.rng, self.over, self.done = random.Random(seed), threading.Event(), 0
        self.longest = 0.0
        self.thread = threading.Thread(target=self.go, daemon=True)

    def on_run_start(self, config: Any) -> None:
        self.thread.start()

    def on_record(self, step: int, metrics: Any) -> None:
        while self.engine.__dict__.get("later"):
            self.engine.__dict__["later"].pop()()
        if self.done >= self.times and step > 20:
            return
        time.sleep(0.05)  # the run outlasts what happens to it

    def on_run_end(self, result: Any) -> None:
        self.over.set()
        self.thread.join(60)

    def go(self) -> None:
        while self.done < self.times and not self.over.wait(self.rng.uniform(*self.pause)):
            seen, began = len(self.engine.recoveries), time.monotonic()
            if self.act(self.engine, self.rng):
                self.done += 1
                while len(self.engine.recoveries) == seen and time.monotonic() < began + 60 and not self.over.is_set():
                    time.sleep(0.01)
                if len(self.engine.recoveries) > seen:  # otherwise the run ended before it needed the dead one
                    self.longest = max(self.longest, time.monotonic() - began)


def kill_a_worker(engine: RayEngine, rng: random.Random) -> bool:
    try:
        pid, _ = ray.get(rng.choice(list(engine.pool.handles)).where.remote(), timeout=30)
        os.kill(pid, signal.SIGKILL)
        return True
    except Exception:
        return False


def result_of(name: str, engine: Any, seed: int, watcher: Any = (), rounds: int = 400) -> ps.Result:
    row = NAMED[name]
    problem = row.rows(sparse=True)
    return ps.run(
        row.make(problem), problem, rounds=rounds, cohort=row.cohort, engine=engine, seed=seed, every=2,
        allow_unsafe_step=True, callbacks=watcher,
    )  # fmt: skip


def same(a: ps.Result, b: ps.Result) -> bool:
    return a.x.tobytes() == b.x.tobytes() and all(a.memory[k].tobytes() == b.memory[k].tobytes() for k in b.memory)


def workers(kills: int) -> tuple[int, int, float]:
    """(kills, runs with another x, longest recovery)."""
    start_here(num_cpus=4, log_to_driver=False, logging_level="ERROR")
    engine = RayEngine(3, stay=True, snapshot_every=9)
    done, wrong, worst, seed = 0, 0, 0.0, 0
    while done < kills:
        name = METHODS[seed % len(METHODS)]
        watcher = Watcher(engine, kill_a_worker, min(KILLS_A_RUN, kills - done), seed, (0.01, 0.4))
        result = result_of(name, engine, seed, (watcher,))
        done, worst = done + watcher.done, max(worst, watcher.longest)
        good = same(result, result_of(name, "cpu", seed))
        wrong, seed = wrong + (not good), seed + 1
        print(
            f"  {name}: {watcher.done} kills, x {'the same' if good else 'DIFFERENT'}, {watcher.longest:.1f} s",
            flush=True,
        )
        if seed > 10 * kills + 100:
            raise SystemExit("the kills do not happen; the machine is too slow for this script.")
    engine.shutdown()
    ray.shutdown()
    return done, wrong, worst


def drivers(kills: int) -> tuple[int, int, float]:
    """A run from the command line, killed at a random moment and resumed, until it is through."""
    flags = ["--data", "digits", "--clients", "6", "--rounds", "1500", "--every", "3", "--quiet"]
    command = [sys.executable, "-m", "proxskip"]
    rng, done, wrong, worst = random.Random(1), 0, 0, 0.0
    with tempfile.TemporaryDirectory() as folder:
        plain = Path(folder) / "plain"
        subprocess.run([*command, "run", "scaffnew", *flags, "--out", str(plain)], check=True)
        trial = 0
        while done < kills:
            out, trial, killed = Path(folder) / f"run{trial}", trial + 1, 0
            argv = [
                *command,
                "run",
                "scaffnew",
                *flags,
                "--out",
                str(out),
                "--engine",
                "ray",
                "--actors",
                "2",
                "--checkpoint-every",
                "2",
            ]
            while True:
                driver = subprocess.Popen(argv, stderr=subprocess.DEVNULL)
                until = time.monotonic() + 120
                while driver.poll() is None and time.monotonic() < until and not (out / "checkpoint").exists():
                    time.sleep(0.02)
                begun = time.monotonic()
                if killed < 3 and done + killed < kills:
                    time.sleep(rng.uniform(0.0, 12.0))
                    if driver.poll() is None:
                        driver.kill()
                        killed += 1
                driver.wait()
                worst = max(worst, 0.0 if killed == 0 else time.monotonic() - begun)
                if driver.returncode == 0:
                    break
                argv = [*command, "resume", str(out), "--actors", "2", "--quiet"]
                if not (out / "checkpoint").exists():
                    argv = [
                        *command,
                        "run",
                        "scaffnew",
                        *flags,
                        "--out",
                        str(out),
                        "--force",
                        "--engine",
                        "ray",
                        "--actors",
                        "2",
                        "--checkpoint-every",
                        "2",
                    ]
            good = (out / "x.npy").read_bytes() == (plain / "x.npy").read_bytes()
            done, wrong = done + killed, wrong + (not good)
            print(
                f"  scaffnew from the command line: {killed} kills, x {'the same' if good else 'DIFFERENT'}", flush=True
            )
    return done, wrong, worst


def nodes(removals: int) -> tuple[int, int, float]:
    """Two nodes besides the driver's: one is killed at a random moment, and another added, while a run goes on."""
    done, wrong, worst = 0, 0, 0.0
    about = {
        "num_cpus": 3,
        "object_store_memory": 100 * 2**20,
        "include_dashboard": False,
        "node_ip_address": "127.0.0.1",
    }
    with on_loopback():
        cluster = Cluster(initialize_head=True, head_node_args={**about, "num_cpus": 0})
        held = [cluster.add_node(**about) for _ in range(2)]
        ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")

        def remove(engine: RayEngine, rng: random.Random) -> bool:
            cluster.remove_node(held.pop(rng.randrange(len(held))), allow_graceful=False)
            engine.__dict__["later"] = [lambda: held.append(cluster.add_node(**about))]  # Ray wants the main thread
            return True

        for seed in range(removals):
            name = METHODS[seed % len(METHODS)]
            engine = RayEngine(3, snapshot_every=9, deadline=120)
            watcher = Watcher(engine, remove, 1, seed, (0.1, 1.5))
            result = result_of(name, engine, seed, (watcher,), rounds=300)
            recoveries = result.summary()["cluster"]["recoveries"]
            done, worst = done + watcher.done, max(worst, watcher.longest)
            good = same(result, result_of(name, "cpu", seed, rounds=300))
            wrong += not good
            print(
                f"  {name}: a node removed, {len(recoveries)} actors rebuilt, x {'the same' if good else 'DIFFERENT'}, "
                f"{watcher.longest:.1f} s",
                flush=True,
            )
        ray.shutdown()
        cluster.shutdown()
    return done, wrong, worst


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for what, many in (("workers", 100), ("drivers", 20), ("nodes", 10)):
        options.add_argument(f"--{what}", type=int, default=many, help=f"default: {many}")
    o = options.parse_args()
    told, failed = [], 0
    for what, act, many in (
        ("worker kills", workers, o.workers),
        ("driver kills", drivers, o.drivers),
        ("node removals", nodes, o.nodes),
    ):
        if many == 0:
            continue
        print(f"{what}:", flush=True)
        began = time.monotonic()
        done, wrong, worst = act(many)
        failed += wrong
        longest = f", longest recovery {worst:.1f} s" if act is not drivers else ""
        told.append(f"{what}: {done}, runs with another x: {wrong}{longest} ({time.monotonic() - began:.0f} s in all)")
    print("\n".join(told))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
