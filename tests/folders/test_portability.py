"""Windows and macOS lack some modules and functions of Linux; a run, its resumption and a prox do without them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

HIDE = """
import mmap, os, sys, warnings
for module in ("fcntl", "resource", "grp", "pwd", "termios"):
    sys.modules[module] = None
for name in ("sched_getaffinity", "posix_fallocate", "posix_fadvise", "geteuid", "pread", "pwrite", "fork", "fchmod"):
    if hasattr(os, name):
        delattr(os, name)
for name in [name for name in dir(mmap) if name.startswith("MADV_")]:
    delattr(mmap, name)
"""
WORK = """
warnings.filterwarnings("error")
warnings.filterwarnings("ignore", message=".*soft file lock")  # filelock has no other without fcntl; on Windows it has
import numpy as np
import proxskip as ps
out = sys.argv[1]
problem = ps.Problem(ps.random_quadratics(4, 3, seed=1))
for engine in ("reference", "cpu"):
    whole = ps.run("scaffnew", problem, rounds=9, engine=engine, threads=2 if engine == "cpu" else None)
    ps.run("scaffnew", problem, rounds=4, engine=engine, out=f"{out}/{engine}")
    assert np.array_equal(ps.resume(f"{out}/{engine}", problem, rounds=9).x, whole.x)
x = np.random.default_rng(0).standard_normal((200, 200))  # large enough for threads
y = ps.prox.TV2D(0.1, x.shape, tolerance=1e-3).prox(x.ravel(), 1.0)
assert np.isfinite(y).all() and not np.array_equal(y, x.ravel())
assert not [name for name in os.listdir(f"{out}/cpu") if name.startswith(".")]
print("done")
"""


@pytest.mark.skipif(sys.platform == "win32", reason="hides what Windows does not have")
def test_runs_resume_and_proxes_work_without_what_linux_alone_has(tmp_path: Path) -> None:
    said = subprocess.run(
        [sys.executable, "-c", HIDE + WORK, str(tmp_path)], capture_output=True, text=True, env=dict(os.environ)
    )
    assert said.returncode == 0, said.stderr
    assert said.stdout.endswith("done\n")
