"""Cox's model of breast cancer patients in six regions, exactly, beside the published results of federated training.

    python benchmarks/tcga_brca.py --fetch        # download two files (140 kB), check them, and print the table
    python benchmarks/tcga_brca.py --folder DIR   # they are here

The data are Fed-TCGA-BRCA of FLamby (J. Ogier du Terrail et al., FLamby: Datasets and Benchmarks for Cross-Silo
Federated Learning in Realistic Healthcare Settings, 2022, arXiv:2210.04620): 866 patients to train and 222 to test, 39
covariates. They are not part of this repository.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import os
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import proxskip as ps
from proxskip.sklearn.statistics import concordance

SOURCE = "https://raw.githubusercontent.com/owkin/FLamby/edacf54d5211520583b0133d55ac39b6fda8324b/flamby/datasets/fed_tcga_brca"
PATIENTS, SPLIT = "brca.csv", "train_test_split.csv"
FILES = {
    PATIENTS: (f"{SOURCE}/{PATIENTS}", "07cb53423f7d579d33cfdbf2cba57b2aee75318b85866c68ce39a75b1f1ba020"),
    SPLIT: (
        f"{SOURCE}/dataset_creation_scripts/{SPLIT}",
        "1249c6543a4060ff0fdaf8510fc37017755836db6c9fc5e6af96057c36510990",
    ),
}
"""Where each file is from, and its sha256."""
PUBLISHED = {"pooled": 0.704, "FedAvg": 0.735, "Scaffold": 0.699, "FedAdam, the best": 0.842}
"""C-indices of FLamby's own benchmark."""


class Patients(NamedTuple):
    """The patients whose part is known: covariates, times, events, the region of each, and who is for testing."""

    names: tuple[str, ...]
    A: Any
    time: Any
    event: Any
    region: Any
    is_test: Any


def load(folder: Path) -> Patients:
    """The patients from the two files in a folder, which must be those of the benchmark."""
    for name, (url, sha256) in FILES.items():
        if not (folder / name).exists():
            sys.exit(f"not here: {folder / name}; run with --fetch, or save {url} there.")
        if hashlib.sha256((folder / name).read_bytes()).hexdigest() != sha256:
            sys.exit(f"{folder / name} is another file than that of the benchmark; remove it and run with --fetch.")
    return read(folder)


def read(folder: Path) -> Patients:
    """The same without a look at the checksums."""
    with (folder / SPLIT).open(newline="") as file:
        parts = {row["pid"]: row["fold2"] for row in csv.DictReader(file)}
    with (folder / PATIENTS).open(newline="") as file:
        _, *names, _, _ = head = next(rows := csv.reader(file))
        if head[0] != "pid" or head[-2:] != ["E", "T"]:
            sys.exit(f"{folder / PATIENTS} does not have the columns pid, ..., E, T.")
        known = [row for row in rows if row[0] in parts]
    numbers = np.array([[float(cell) for cell in row[1:]] for row in known])
    folds = [parts[row[0]].split("_") for row in known]
    return Patients(
        tuple(names), numbers[:, :-2], numbers[:, -1], numbers[:, -2],
        np.array([int(region) for _, region in folds]), np.array([fold == "test" for fold, _ in folds]),
    )  # fmt: skip


def fetch(folder: Path) -> None:
    """Download what is missing; a file gets its name once its checksum is right."""
    import pooch

    for name, (url, sha256) in FILES.items():
        pooch.retrieve(url, known_hash=sha256, fname=name, path=folder)


def main() -> None:
    """Print the C-index of the exact minimizer for several penalties, and what was published."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path(os.environ.get("PROXSKIP_DATA", ".")) / "tcga_brca")
    parser.add_argument("--fetch", action="store_true", help="download the files into the folder")
    given = parser.parse_args()
    if given.fetch:
        fetch(given.folder)
    patients = load(given.folder)
    train, test = ~patients.is_test, patients.is_test
    print(
        f"{np.count_nonzero(train)} patients to train in 6 regions, {np.count_nonzero(test)} to test, d = {patients.A.shape[1]}"
    )
    print(f"{'l2':>8} {'rounds':>7} {'C-index':>8} {'mean of the regions':>20}")
    for l2 in (1e-6, 1e-5, 1e-4, 1e-3, 1e-2):
        model = ps.Cox(patients.A[train], patients.time[train], patients.event[train], l2=l2)
        problem = ps.split(model, by="group", groups=patients.region[train])
        result = ps.run("newton", problem, tol=1e-8, rounds=50, progress=False)
        risk = patients.A @ result.x
        each = [
            concordance(patients.time[k], patients.event[k], risk[k])
            for k in (test & (patients.region == i) for i in range(6))
        ]
        together = concordance(patients.time[test], patients.event[test], risk[test])
        print(f"{l2:8.0e} {result.rounds:7d} {together:8.3f} {np.nanmean(each):20.3f}")
    print("published: " + ", ".join(f"{name} {value:.3f}" for name, value in PUBLISHED.items()))


if __name__ == "__main__":
    main()
