"""Real SuperNodes killed, wiped and stopped while Scaffnew runs: `make chaos` prints what came of it.

    python tests/chaos_flower.py [--kills 20] [--wipes 10] [--a-run 5] [--nodes 5] [--tol 1e-4]

Several kills share a run, since a deployed round takes seconds. Every run must reach the tolerance with the sum of the
h at zero; every wipe must be named; the round of the stopped process must close at its deadline within ten percent.
"""

from __future__ import annotations

import argparse
import importlib.machinery
import importlib.util
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

APP = Path(__file__).resolve().parents[1] / "examples" / "flower"


def script(home: Path) -> Any:
    """The example's own script, with its home elsewhere."""
    os.environ["PROXSKIP_FEDERATION"] = str(home)
    loader = importlib.machinery.SourceFileLoader("federation", str(APP / "federation"))
    spec = importlib.util.spec_from_loader("federation", loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


class Federation:
    """One deployment and one run in it."""

    def __init__(self, given: argparse.Namespace, deadline: float) -> None:
        self.home = Path(tempfile.mkdtemp(prefix="chaos-flower-"))
        self.module, self.given = script(self.home / "fed"), given
        self.module.up("127.0.0.1", given.nodes, False, False)
        words = [f"rounds={given.rounds}", f"tol={given.tol}", "measure=6", f"deadline={deadline}", "wait=300.0"]
        log = (self.home / "run.log").open("wb")
        self.run = subprocess.Popen(
            [sys.executable, str(APP / "federation"), "run", *words], stdout=log, stderr=log, env=dict(os.environ)
        )

    def rounds(self) -> int:
        """How many rounds its log has."""
        text = (self.home / "run.log").read_text(errors="replace")
        return text.count(" clients, ") - text.count("with ")

    def wait_for(self, rounds: int, seconds: float) -> bool:
        """Until so many rounds are done, the run is over, or the time is."""
        end = time.monotonic() + seconds
        while time.monotonic() < end and self.run.poll() is None:
            if self.rounds() >= rounds:
                return True
            time.sleep(0.5)
        return False

    def signal(self, i: int, sign: signal.Signals) -> None:
        """To a SuperNode and all that it started."""
        for pid in self.module.members(f"node-{i}"):
            os.kill(pid, sign)

    def restart(self, i: int, wipe: bool) -> None:
        """Kill, maybe wipe the memory, start until it is let in again."""
        self.module.restart(i, wipe)

    def finish(self, seconds: float) -> dict[str, Any]:
        """The result, and everything stopped."""
        try:
            self.run.wait(seconds)
        except subprocess.TimeoutExpired:
            self.run.kill()
        result = self.module.HOME / "result.json"
        found = json.loads(result.read_text()) if result.exists() else {"summary": {}, "seconds": []}
        self.module.down()
        if result.exists():
            shutil.rmtree(self.home, ignore_errors=True)
        return found


def kills(given: argparse.Namespace, count: int, wipe: bool, seed: int) -> tuple[int, int, int, int]:
    """So many kills in one run: done, runs that reached the tolerance, lost memories reported, sums intact."""
    rng, fed, done = random.Random(seed), Federation(given, 45.0), 0
    fed.wait_for(2, 300.0)
    for _ in range(count):
        if fed.run.poll() is not None:
            break
        fed.restart(rng.randrange(given.nodes), wipe)
        done += 1
        fed.wait_for(fed.rounds() + 3, 180.0)
    s = fed.finish(given.limit)["summary"]
    named = sum("has lost its memory" in note for note in s.get("warnings", []))
    good = bool(s) and s["counts"]["recentred"] == 0 and (s["sum_h"] or 0.0) <= 1e-11
    print(f"  {done} kills{' with the disk wiped' if wipe else ''}: {s.get('status')} in {s.get('rounds')} rounds, "
          f"gradient norm {s.get('grad_norm')}, sum h {s.get('sum_h')}, {named} reported lost, counts {s.get('counts')}",
          flush=True)  # fmt: skip
    return done, int(bool(s.get("success"))), named, int(good)


def stopped(given: argparse.Namespace, deadline: float = 30.0) -> bool:
    """One SuperNode stopped for a round: it closes at its deadline, and the run goes on."""
    fed = Federation(given, deadline)
    fed.wait_for(2, 300.0)
    before = fed.rounds()
    fed.signal(1, signal.SIGSTOP)
    fed.wait_for(before + 2, 4 * deadline)
    fed.signal(1, signal.SIGCONT)
    found = fed.finish(given.limit)
    longest = max(found["seconds"], default=float("nan"))
    ok = deadline <= longest <= 1.1 * deadline and bool(found["summary"].get("success"))
    print(f"  stopped: the longest round took {longest:.1f} s of {deadline:g}, then {found['summary'].get('status')}")
    return ok


def main() -> int:
    """Print the counts; the exit code says whether everything held."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("kills", 20), ("wipes", 10), ("a-run", 5), ("nodes", 5), ("rounds", 90), ("stops", 1)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--tol", type=float, default=1e-4)
    parser.add_argument("--limit", type=float, default=1800.0, help="seconds that a run may take")
    given = parser.parse_args()
    runs: list[tuple[bool, tuple[int, int, int, int]]] = []
    for wipe, total in ((False, given.kills), (True, given.wipes)):
        while sum(r[0] for w, r in runs if w == wipe) < total and len(runs) < 40:
            left = total - sum(r[0] for w, r in runs if w == wipe)
            runs.append((wipe, kills(given, min(given.a_run, left), wipe, len(runs))))
    ok = all(r[1] and r[3] for _, r in runs)
    for wipe in (False, True):
        mine = [r for w, r in runs if w == wipe]
        done, reached, named, good = (sum(column) for column in zip(*mine, strict=True)) if mine else (0, 0, 0, 0)
        print(f"{done} SuperNode kills{' with the disk wiped' if wipe else ''} in {len(mine)} runs: {reached} reached the "
              f"tolerance, {good} with the sum intact, {named} losses reported")  # fmt: skip
    held = [stopped(given) for _ in range(given.stops)]
    print(f"{sum(held)} of {len(held)} stopped processes: the round closed at its deadline within ten percent")
    return int(not (ok and all(held)))


if __name__ == "__main__":
    sys.exit(main())
