"""Logistic regression over shards that lie on a cluster's machines; the driver of `ray job submit`.

    ray job submit --working-dir examples/ray -- python train.py '/mnt/data/part-*.svm' --features 300 --out /mnt/runs/a

Started again with the same --out it goes on from the last checkpoint, bit for bit.
"""

from __future__ import annotations

import argparse
import glob
import sys
from pathlib import Path

import proxskip as ps
from proxskip.datasets.files import read_svmlight


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("shards", help="a pattern of svmlight files, one per client, seen by every machine")
    options.add_argument("--out", type=Path, required=True, help="the run folder, on storage that outlives the driver")
    options.add_argument("--features", type=int, required=True, help="of all files together")
    options.add_argument("--classes", type=float, nargs=2, default=(-1.0, 1.0), help="the two labels")
    options.add_argument("--l2", type=float, default=1e-4)
    options.add_argument("--tol", type=float, default=1e-6)
    options.add_argument("--address", default="auto", help="of the cluster; default: the one this machine belongs to")
    options.add_argument("--actors", type=int, default=None, help="default: one a CPU")
    o = options.parse_args()
    engine = ps.RayEngine(o.actors, o.address)
    files = sorted(glob.glob(o.shards))

    def load_shard(i: int) -> ps.Logistic:
        A, b = read_svmlight(files[i], n_features=o.features)
        return ps.Logistic(A, b, l2=o.l2, classes=o.classes)

    problem = engine.load(load_shard, n=len(files))
    if (o.out / "checkpoint").exists():
        result = ps.resume(o.out, problem, engine=engine)
    else:
        result = ps.run(ps.Scaffnew.theory(problem), problem, tol=o.tol, engine=engine, out=o.out)
    print(result.summary)
    for line in result.warnings:
        print(line, file=sys.stderr)
    engine.shutdown()
    return 0 if result.success else 3


if __name__ == "__main__":
    sys.exit(main())
