"""The paper's figures, tables and claims, by one call."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from proxskip.report.figures import ReproductionReport


def reproduce(
    experiments: str | Sequence[str] = (),
    *,
    data: str = "digits",
    out: str | Path = "report",
    quick: bool = False,
    engine: str = "cpu",
    jobs: int = 1,
    threads: int | None = None,
    data_dir: str | None = None,
    progress: bool | None = None,
) -> ReproductionReport:
    """Reproduce the paper's figures and tables, and check its claims, as `proxskip reproduce` does.

    Args:
        experiments: the name of one, such as "fig1b", or of several, or Python files with figures of your own; all of
            the paper's if not given.
        data: the data set, by name or path.
        out: the folder of the report; a second call finds there what the first has computed.
        quick: shorter runs.
        engine: "cpu", "gpu" or "reference".
        jobs: processes that share the runs.
        threads: threads of the engine; by default one per core.
        data_dir: a folder with data sets, where to look first.
        progress: whether to show progress on stderr; by default in a terminal or a notebook.
    """
    from proxskip.experiments.reproduce import ReproductionOptions
    from proxskip.experiments.reproduce import reproduce as run_all
    from proxskip.running.progress import OverallProgress, is_wanted

    names = [experiments] if isinstance(experiments, str) else experiments
    options = ReproductionOptions(data, Path(out), quick, engine, threads, data_dir, jobs=jobs)
    with OverallProgress(quiet=not is_wanted(progress)) as overall:
        return run_all(names, options, overall)
