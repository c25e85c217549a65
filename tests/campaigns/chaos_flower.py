"""Real SuperNodes killed, wiped and stopped while Scaffnew runs: `make chaos` prints what came of it.

    python tests/campaigns/chaos_flower.py [--kills 20] [--wipes 10] [--stops 1] [--a-run 5] [--seed 0] [--tol 1e-4]

Several kills share a run, since a deployed round takes seconds. Every run must reach the tolerance with the sum of the
h at zero; every wipe must be named; rounds without the stopped process must close at their deadline within ten percent.
"""

import argparse
import importlib.machinery
import importlib.util
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Self

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # for campaigns and support

from campaigns.chaos import tell

APP = Path(__file__).resolve().parents[2] / "examples" / "flower"


def script() -> Any:
    """The example's own script as a module."""
    loader = importlib.machinery.SourceFileLoader("federation", str(APP / "federation"))
    spec = importlib.util.spec_from_loader("federation", loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


def one_at_a_time(act: Any, lock: Any) -> Any:
    def guarded(*given: Any) -> Any:
        with lock:
            return act(*given)

    return guarded


class Federation:
    """One deployment and one run in it."""

    def __init__(self, given: argparse.Namespace, deadline: float) -> None:
        self.home = Path(tempfile.mkdtemp(prefix="chaos-flower-"))
        os.environ["PROXSKIP_FEDERATION"] = str(self.home / "fed")
        self.module = script()
        lock = threading.RLock()  # two nodes are started at once, and its list of processes is one file
        for name in ("processes", "remember"):
            setattr(self.module, name, one_at_a_time(getattr(self.module, name), lock))
        self.module.up("127.0.0.1", given.nodes, False, False)
        words = [f"rounds={given.rounds}", f"tol={given.tol}", "l2=0.05", "seed=1", "measure=6"]
        words += [f"deadline={deadline}", "wait=300.0"]
        log = (self.home / "run.log").open("wb")
        self.run = subprocess.Popen([sys.executable, str(APP / "federation"), "run", *words], stdout=log, stderr=log)

    def log(self) -> str:
        return (self.home / "run.log").read_text(errors="replace")

    def closed(self) -> list[tuple[int, int, float]]:
        """The rounds in its log: number, clients, seconds."""
        lines = re.findall(r"round (\d+) of \d+: (\d+) clients, ([\d.]+) s", self.log())
        return [(int(r), int(n), float(t)) for r, n, t in lines]

    def wait_for(self, times: int, seconds: float, said: str = "") -> None:
        """Until so many rounds are done (or the log has said this so often), the run is over, or the time is."""
        end = time.monotonic() + seconds
        while time.monotonic() < end and self.run.poll() is None:
            if (self.log().count(said) if said else len(self.closed())) >= times:
                return
            time.sleep(0.5)

    def signal(self, i: int, sign: signal.Signals) -> None:
        """To a SuperNode and all that it started."""
        for pid in self.module.members(f"node-{i}"):
            os.kill(pid, sign)

    def finish(self, seconds: float) -> dict[str, Any]:
        """The result's summary, empty where there is none."""
        try:
            self.run.wait(seconds)
        except subprocess.TimeoutExpired:
            self.run.kill()
        result = self.module.HOME / "result.json"
        return json.loads(result.read_text())["summary"] if result.exists() else {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        """Everything stopped, and the logs kept where something went wrong."""
        if self.run.poll() is None:
            self.run.kill()
        self.module.down()
        if (self.module.HOME / "result.json").exists():
            shutil.rmtree(self.home, ignore_errors=True)


def kills(given: argparse.Namespace, count: int, wipe: bool, seed: int) -> tuple[int, bool, int]:
    """So many kills in one run: done, whether it held, and lost memories reported."""
    rng, done = random.Random(seed), 0
    with Federation(given, 45.0) as fed:
        fed.wait_for(2, 300.0)
        while done < count and fed.run.poll() is None:
            # two at once, but one wiped disk at a time: of two lost h only the sum is known to the others
            who = rng.sample(range(given.nodes), 1 if wipe else min(2, count - done))
            with ThreadPoolExecutor() as hands:
                list(hands.map(lambda i: fed.module.restart(i, wipe), who))
            done += len(who)
            if wipe:  # the next wipe must find a memory that is whole again
                fed.wait_for(done, 300.0, "has its h again")
            fed.wait_for(len(fed.closed()) + 3, 180.0)
        s = fed.finish(given.limit)
    named = sum("has lost its memory" in note for note in s.get("warnings", []))
    whole = bool(s) and s["counts"]["recentred"] == 0 and s["counts"]["audits"] > 0 and s["sum_h"] <= 1e-11
    held = whole and bool(s.get("success")) and (named >= done or not wipe)
    print(f"  {done} kills{' with the disk wiped' if wipe else ''}: {'held' if held else 'WRONG'}, {s.get('status')} in "
          f"{s.get('rounds')} rounds, gradient norm {s.get('grad_norm')}, sum h {s.get('sum_h')}, {named} reported lost, "
          f"counts {s.get('counts')}", flush=True)  # fmt: skip
    return done, held, named


def stopped(given: argparse.Namespace, deadline: float = 30.0) -> bool:
    """One SuperNode stopped for some rounds: they close at their deadline, and the run goes on and reaches the tolerance."""
    with Federation(given, deadline) as fed:
        fed.wait_for(2, 300.0)
        before = len(fed.closed())
        fed.signal(1, signal.SIGSTOP)
        fed.wait_for(before + 3, 5 * deadline)
        fed.signal(1, signal.SIGCONT)
        without = [t for r, n, t in fed.closed() if before < r <= before + 3 and n == given.nodes - 1]
        s = fed.finish(given.limit)
    held = (
        bool(without) and all(deadline <= t + 0.05 and t <= 1.1 * deadline for t in without) and bool(s.get("success"))
    )
    print(f"  stopped: {'held' if held else 'WRONG'}, rounds without it took {', '.join(f'{t:.1f}' for t in without)} s of "
          f"{deadline:g}, then {s.get('status')} in {s.get('rounds')} rounds, sum h {s.get('sum_h')}",
          flush=True)  # fmt: skip
    return held


def main() -> int:
    """Print the counts; the exit code says whether everything held."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("kills", 20), ("wipes", 10), ("a-run", 5), ("nodes", 5), ("rounds", 90), ("stops", 1),
                          ("seed", 0)):  # fmt: skip
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--tol", type=float, default=1e-4)
    parser.add_argument("--limit", type=float, default=1800.0, help="seconds that a run may take")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # the federation is taken down
    runs: list[tuple[int, bool, int]] = []
    for wipe, total in ((False, given.kills), (True, given.wipes)):
        left = total
        while left > 0 and len(runs) < 40:
            runs.append(kills(given, min(given.a_run, left), wipe, given.seed + len(runs)))
            left -= runs[-1][0]
    held = [stopped(given) for _ in range(given.stops)]
    wrong = [ok for _, ok, _ in runs].count(False) + held.count(False)
    more = {"runs": len(runs)} | ({"losses reported": sum(named for _, _, named in runs)} if given.wipes else {})
    return tell(sum(done for done, _, _ in runs) + len(held), wrong, **more)


if __name__ == "__main__":
    sys.exit(main())
