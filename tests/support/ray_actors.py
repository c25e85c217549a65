"""What the tests of the Ray engine share: callbacks that act during a run, kills of actors, and shards in files."""

import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import ray
import scipy.sparse

import proxskip as ps
from proxskip.engines.ray.engine import RayEngine
from support.problems import data


class Watch:
    """What happens at the start of a run and at its records."""

    def __init__(self, start: Any = lambda: None, record: Any = lambda step: None) -> None:
        self.start, self.record = start, record

    def on_run_start(self, config: Any) -> None:
        self.start()

    def on_record(self, step: int, metrics: Any) -> None:
        self.record(step)


def kill(engine: RayEngine, actor: int) -> None:
    pid, _ = ray.get(engine.pool.handles[actor].where.remote(), timeout=60)
    os.kill(pid, signal.SIGKILL)


def from_file(folder: Path, l2: float = 0.05) -> Any:
    """What loads one of four shards of one class each from a file."""
    A, b = data()
    for k, rows in enumerate(np.array_split(np.argsort(b, kind="stable"), 4)):
        np.savez(folder / f"part-{k}.npz", A=A[rows], b=b[rows])

    def load_shard(i: int) -> Any:
        with np.load(folder / f"part-{i}.npz") as part:
            return ps.Logistic(scipy.sparse.csr_matrix(part["A"]), part["b"], l2=l2, classes=np.unique(b))

    return load_shard
