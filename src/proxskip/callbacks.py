"""Ready-made callbacks: TensorBoard, MLflow, Weights & Biases, and a stopping rule of your own.

Pass them to ``run`` as ``callbacks=[...]``. Each needs its package only when it is made. A callback of your own is a
class with any of ``on_run_start(config)``, ``on_record(step, metrics)``, ``on_run_end(result)`` and
``on_run_error(error)``; ``Callback`` has all four, doing nothing.
"""

from __future__ import annotations

import importlib
import math
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from proxskip.results.result import RunResult, Status
from proxskip.running.listen import Callback, Record
from proxskip.types import InputError

__all__ = ["Callback", "MLflow", "Record", "StopWhen", "TensorBoard", "WandB"]

FAILED = (Status.DIVERGED, Status.CORRUPTED)
"""Ends that a tracker shows as failures."""
MLFLOW_TEXT, MLFLOW_PARAMS = 500, 100
"""The longest value, and the most parameters, that MLflow takes at once."""


class StopWhen(Callback):
    """Stop the run (status STOPPED) at the first record that meets the condition.

    Args:
        condition: of a record, such as ``lambda r: r["gap"] < 1e-3`` or one that looks at ``r.x``.
        reason: for the result's message.

    >>> import proxskip as ps
    >>> problem = ps.Problem(ps.random_quadratics(4, 3))
    >>> soon = ps.callbacks.StopWhen(lambda r: r["local_steps"] > 100, "enough steps")
    >>> result = ps.run("gd", problem, rounds=1000, callbacks=[soon])
    >>> result.status.name, result.message
    ('STOPPED', 'stopped by a callback after 26 rounds: enough steps.')
    """

    def __init__(self, condition: Callable[[Record], Any], reason: str = "") -> None:
        if not callable(condition):
            raise InputError("StopWhen needs a function of a record, such as lambda r: r['gap'] < 1e-3.")
        self.condition, self.reason = condition, reason

    def on_record(self, step: int, metrics: Record) -> None:
        if self.condition(metrics):
            raise StopIteration(self.reason)


class TensorBoard(Callback):
    """Write every record to event files of TensorBoard; look at them with ``tensorboard --logdir DIR``.

    Args:
        logdir: a folder; give each run its own.
    """

    def __init__(self, logdir: str | Path) -> None:
        self.logdir = str(logdir)
        self._make = _package("tensorboard.summary", "tensorboard").Writer
        self._writer: Any = None

    def on_run_start(self, config: dict[str, Any]) -> None:
        self._writer = self._make(self.logdir)

    def on_record(self, step: int, metrics: Record) -> None:
        for name, value in _finite(metrics).items():
            self._writer.add_scalar(name, value, step)

    def on_run_end(self, result: RunResult) -> None:
        self._close()

    def on_run_error(self, error: BaseException) -> None:
        self._close()

    def _close(self) -> None:
        if self._writer is not None:
            self._writer.close()


class MLflow(Callback):
    """Log a run to MLflow: its configuration as parameters, its records as metrics, and how it ended as tags.

    Args:
        experiment: the experiment's name; MLflow's default if not given.
        name: the run's name.
        uri: where MLflow keeps its runs, such as ``sqlite:///mlflow.db``; its own setting if not given.
    """

    def __init__(self, experiment: str | None = None, name: str | None = None, uri: str | None = None) -> None:
        self.experiment, self.name = experiment, name
        # a client of its own: the global run of MLflow, which others may use, is left alone
        self._client = _package("mlflow.tracking", "mlflow").MlflowClient(uri)
        self._entities = _package("mlflow.entities", "mlflow")
        self.run_id: str | None = None

    def on_run_start(self, config: dict[str, Any]) -> None:
        about = "Default" if self.experiment is None else self.experiment
        experiment = self._client.get_experiment_by_name(about)
        id = self._client.create_experiment(about) if experiment is None else experiment.experiment_id
        self.run_id = self._client.create_run(id, run_name=self.name or config["method"]).info.run_id
        params = [self._entities.Param(key, str(value)[:MLFLOW_TEXT]) for key, value in flat(config).items()]
        self._client.log_batch(self.run_id, params=params[:MLFLOW_PARAMS])

    def on_record(self, step: int, metrics: Record) -> None:
        now = int(1000 * time.time())
        # in one batch: a call for each number would take a second for a record
        batch = [self._entities.Metric(name, value, now, step) for name, value in _finite(metrics).items()]
        self._client.log_batch(self.run_id, metrics=batch)

    def on_run_end(self, result: RunResult) -> None:
        status = "FINISHED"
        if result.status is Status.INTERRUPTED:
            status = "KILLED"
        elif result.status in FAILED:
            status = "FAILED"
        self._end(status, result.status.name, result.message)

    def on_run_error(self, error: BaseException) -> None:
        if self.run_id is not None:
            self._end("FAILED", "ERROR", f"{type(error).__name__}: {error}")

    def _end(self, status: str, own_status: str, message: str) -> None:
        try:
            self._client.set_tag(self.run_id, "proxskip.status", own_status)
            self._client.set_tag(self.run_id, "proxskip.message", message[:MLFLOW_TEXT])
        finally:
            self._client.set_terminated(self.run_id, status)


class WandB(Callback):
    """Log a run to Weights & Biases.

    Args:
        project: the project; ``options`` go to ``wandb.init``, such as ``mode="offline"``, ``dir`` or ``name``.
    """

    def __init__(self, project: str = "proxskip", **options: Any) -> None:
        self._wandb = _package("wandb", "wandb")
        self.project, self.options = project, options
        self._run: Any = None

    def on_run_start(self, config: dict[str, Any]) -> None:
        self._run = self._wandb.init(
            **{"project": self.project, "config": config, "reinit": "create_new"} | self.options
        )

    def on_record(self, step: int, metrics: Record) -> None:
        self._run.log(_finite(metrics), step=step)

    def on_run_end(self, result: RunResult) -> None:
        failed = result.status in FAILED or result.status is Status.INTERRUPTED
        self._end(result.status.name, result.message, int(failed))

    def on_run_error(self, error: BaseException) -> None:
        if self._run is not None:
            self._end("ERROR", f"{type(error).__name__}: {error}", 1)

    def _end(self, status: str, message: str, exit_code: int) -> None:
        self._run.summary["status"] = status
        self._run.summary["message"] = message
        self._run.finish(exit_code=exit_code)


def _package(module: str, package: str) -> Any:
    """A module of an optional package, or one sentence that says how to get it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise InputError(f"this callback needs {package} ({error}); install it with pip install {package}.") from None


def _finite(metrics: Mapping[str, float]) -> dict[str, float]:
    return {k: float(v) for k, v in metrics.items() if math.isfinite(v)}


def flat(config: Mapping[str, Any], under: str = "") -> dict[str, Any]:
    """A nested configuration by dotted names, without what was not given."""
    entries: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, Mapping):
            entries |= flat(value, f"{under}{key}.")
        elif value is not None:
            entries[f"{under}{key}"] = value
    return entries
