"""Logistic regression over shards that lie on a cluster's machines; the driver of `ray job submit`.

    ray job submit --working-dir examples/ray -- python train.py '/mnt/data/part-*.svm' --out /mnt/runs/a

Started again with the same --out it goes on from the last checkpoint, bit for bit.
"""

from __future__ import annotations

import argparse
import glob
import sys
from pathlib import Path

import proxskip as ps


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("shards", help="a pattern of svmlight or npz files, one per client, seen by every machine")
    options.add_argument("--out", type=Path, required=True, help="the run folder, on storage that outlives the driver")
    options.add_argument("--l2", type=float, default=1e-4)
    options.add_argument("--tol", type=float, default=1e-6)
    options.add_argument("--address", default="auto", help="of the cluster; default: the one this machine belongs to")
    options.add_argument("--actors", type=int, default=None, help="default: one a CPU")
    o = options.parse_args()
    engine = ps.RayEngine(o.actors, o.address)
    problem = engine.load(sorted(glob.glob(o.shards)), ps.Logistic, l2=o.l2)
    if (o.out / "checkpoint").exists():
        result = ps.resume(o.out, problem, engine=engine)
    else:
        result = ps.run(ps.Scaffnew.theory(problem), problem, tol=o.tol, engine=engine, out=o.out)
    print(result.summary())
    for line in result.warnings:
        print(line, file=sys.stderr)
    engine.shutdown()
    return 0 if result.success else 3


if __name__ == "__main__":
    sys.exit(main())
