"""Callbacks: what they hear, how they end a run, and the ready ones against the real packages, offline."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import pytest

import proxskip as ps
from proxskip import callbacks
from proxskip.callbacks import Callback, MLflow, Record, StopWhen, TensorBoard, WandB
from proxskip.types import InputError
from support.tiers import needs

PROBLEM = ps.Problem(ps.random_quadratics(4, 3))


def test_a_record_gives_x_as_a_copy_when_asked() -> None:
    seen: list[np.ndarray] = []

    class Mine(Callback):
        def on_record(self, step: int, metrics: Record) -> None:
            seen.append(metrics.x)
            assert metrics["f"] == pytest.approx(PROBLEM.value(metrics.x))
            metrics.x[:] = 1e9  # a copy: the run goes on undisturbed

    result = ps.run("gd", PROBLEM, rounds=5, callbacks=[Mine()])
    assert np.array_equal(result.x, ps.run("gd", PROBLEM, rounds=5).x)
    assert np.array_equal(seen[-1], result.x)


def test_a_callback_may_stop_the_run(tmp_path: Path) -> None:
    stop = StopWhen(lambda r: np.linalg.norm(r.x) > 0 and r["round"] >= 3, "far enough")
    result = ps.run("scaffnew", PROBLEM, rounds=50, callbacks=[stop], out=tmp_path / "a")
    assert (result.status, result.rounds, result.success) == (ps.Status.STOPPED, 3, False)
    assert result.message == "stopped by a callback after 3 rounds: far enough."
    on = ps.resume(tmp_path / "a", PROBLEM)
    assert np.array_equal(on.x, ps.run("scaffnew", PROBLEM, rounds=50).x)
    # a tolerance that holds is success even there
    result = ps.run("gd", PROBLEM, tol=1e-6, callbacks=[StopWhen(lambda r: r["grad_norm"] <= 1e-6)])
    assert result.status is ps.Status.CONVERGED


def test_all_callbacks_hear_the_record_at_which_one_stops() -> None:
    heard: list[int] = []
    bare = SimpleNamespace(on_record=lambda step, metrics: heard.append(step))  # no base class, one of the methods
    ps.run("gd", PROBLEM, rounds=50, callbacks=[StopWhen(lambda r: r["round"] >= 2), bare, Callback()])
    assert heard == [0, 1, 2]


class Diary(Callback):
    """Writes down what it hears; raises where it is told to."""

    def __init__(self, raises: str = "", error: BaseException | None = None) -> None:
        self.raises, self.error = raises, error or OSError("the tracker is away")
        self.heard: list[str] = []
        self.errors: list[BaseException] = []

    def _hear(self, what: str) -> None:
        self.heard += [what] if what not in self.heard else []
        if what == self.raises:
            raise self.error

    def on_run_start(self, config: dict[str, Any]) -> None:
        self._hear("start")

    def on_record(self, step: int, metrics: Record) -> None:
        self._hear("record")

    def on_run_end(self, result: ps.Result) -> None:
        self._hear("end")

    def on_run_error(self, error: BaseException) -> None:
        self.errors.append(error)
        self._hear("error")


@pytest.mark.parametrize("error", [OSError("away"), KeyboardInterrupt()])
@pytest.mark.parametrize(("raises", "one", "other"), [
    ("start", ["start", "error"], []),  # the other one has opened nothing yet
    ("record", ["start", "record", "error"], ["start", "error"]),
    ("end", ["start", "record", "end"], ["start", "record", "end"]),
])  # fmt: skip
def test_every_callback_that_heard_the_start_hears_the_end_or_the_error(
    raises: str, one: list[str], other: list[str], error: BaseException
) -> None:
    broken, whole = Diary(raises, error), Diary()
    if raises == "record" and isinstance(error, KeyboardInterrupt):
        pytest.skip("Ctrl-C in a round ends the run with a result")
    with pytest.raises(type(error)):
        ps.run("gd", PROBLEM, rounds=3, callbacks=[broken, whole])
    assert (broken.heard, whole.heard) == (one, other)
    assert all(heard is error for heard in broken.errors + whole.errors)


def test_callbacks_hear_that_the_run_raised() -> None:
    class Broken:
        L, mu, d = 1.0, 0.5, 2
        broken = False

        def value(self, x: Any) -> float:
            return float((x - 1.0) @ (x - 1.0)) / 2

        def gradient(self, x: Any) -> Any:
            if self.broken:
                raise ZeroDivisionError("in the gradient")
            return x - 1.0

    f, diary = Broken(), Diary()
    breaks = SimpleNamespace(on_record=lambda step, metrics: setattr(f, "broken", True))
    with pytest.raises(ZeroDivisionError):
        ps.run("gd", ps.Problem([f]), rounds=100, callbacks=[diary, breaks])
    assert diary.heard == ["start", "record", "error"]


class FakeMLflow:
    """The calls of MlflowClient that decide how a run of MLflow looks."""

    def __init__(self) -> None:
        self.tags: dict[str, str] = {}
        self.ended: list[str] = []

    def set_tag(self, run_id: str, key: str, value: str) -> None:
        self.tags[key] = value

    def set_terminated(self, run_id: str, status: str) -> None:
        self.ended.append(status)


@pytest.mark.parametrize(("status", "shown"), [
    ("CONVERGED", "FINISHED"), ("LIMIT", "FINISHED"), ("STOPPED", "FINISHED"),
    ("DIVERGED", "FAILED"), ("CORRUPTED", "FAILED"), ("INTERRUPTED", "KILLED"),
])  # fmt: skip
def test_mlflow_shows_how_the_run_ended(status: str, shown: str) -> None:
    listen, client = MLflow.__new__(MLflow), FakeMLflow()
    listen._client, listen.run_id = client, "1"
    listen.on_run_end(SimpleNamespace(status=ps.Status[status], message="why"))  # type: ignore[arg-type]
    assert client.ended == [shown]
    assert client.tags == {"proxskip.status": status, "proxskip.message": "why"}


def test_mlflow_ends_its_run_if_the_run_raises() -> None:
    listen, client = MLflow.__new__(MLflow), FakeMLflow()
    listen._client, listen.run_id = client, None
    listen.on_run_error(OSError("before there was a run"))
    assert client.ended == []
    listen.run_id = "1"
    listen.on_run_error(OSError("disk full"))
    assert client.ended == ["FAILED"]
    assert client.tags["proxskip.message"] == "OSError: disk full"


@pytest.mark.parametrize("kind", [TensorBoard, WandB])
def test_tensorboard_and_wandb_close_what_they_opened_if_the_run_raises(kind: Any, monkeypatch: Any) -> None:
    package = mock.MagicMock()
    monkeypatch.setattr(callbacks, "_package", lambda module, name: package)
    opened = package.Writer.return_value if kind is TensorBoard else package.init.return_value
    ended = opened.close if kind is TensorBoard else opened.finish
    listen = kind("here")
    listen.on_run_error(OSError("before there was a run"))
    ended.assert_not_called()
    with pytest.raises(OSError, match="disk full"):
        ps.run("gd", PROBLEM, rounds=3, callbacks=[listen, Diary("record", OSError("disk full"))])
    ended.assert_called_once()
    if kind is WandB:
        assert ended.call_args.kwargs == {"exit_code": 1}
        assert mock.call("status", "ERROR") in opened.summary.__setitem__.call_args_list


@pytest.mark.parametrize(("make", "package"), [
    (lambda: TensorBoard("x"), "tensorboard"), (lambda: MLflow(), "mlflow"), (lambda: WandB(), "wandb"),
    (lambda: ps.run("gd", PROBLEM, rounds=1).trace.to_frame(), "pandas"),
])  # fmt: skip
def test_a_missing_package_is_one_sentence(make: Any, package: str, monkeypatch: Any) -> None:
    for name in [n for n in sys.modules if n.split(".")[0] == package]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(InputError, match=f"pip install {package}"):
        make()


@needs("tensorboard")
def test_tensorboard_reads_the_records(tmp_path: Path) -> None:
    result = ps.run("gd", PROBLEM, rounds=8, callbacks=[TensorBoard(tmp_path / "tb")])
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(tmp_path / "tb"))
    found.Reload()
    events = found.Tensors("gap") if "gap" in found.Tags()["tensors"] else found.Scalars("gap")
    values = [e.value if hasattr(e, "value") else e.tensor_proto.float_val[0] for e in events]
    assert [e.step for e in events] == result.trace["round"].tolist()
    np.testing.assert_allclose(values, result.trace["gap"], rtol=1e-6)


@needs("mlflow")
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_mlflow_keeps_parameters_metrics_and_the_end(tmp_path: Path) -> None:
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    listen = MLflow("quadratics", "first", uri)
    result = ps.run("scaffnew", PROBLEM, rounds=4, callbacks=[listen])
    from mlflow.tracking import MlflowClient

    client = MlflowClient(uri)
    kept = client.get_run(str(listen.run_id))
    assert (kept.info.status, kept.data.params["method"]) == ("FINISHED", "scaffnew")
    assert float(kept.data.params["parameters.p"]) == result.summary["p"]
    history = sorted(client.get_metric_history(str(listen.run_id), "gap"), key=lambda m: m.step)
    np.testing.assert_allclose([m.value for m in history], result.trace["gap"], rtol=1e-12)
    assert kept.data.tags["proxskip.status"] == "LIMIT"
    assert client.get_experiment_by_name("quadratics") is not None


def log_records(data: bytes) -> list[bytes]:
    """The records of a file of less than one block of 32 KiB: after 7 bytes, each with a header of 7 bytes."""
    found, at = [], 7
    while at + 7 <= min(len(data), 2**15):
        length = int.from_bytes(data[at + 4 : at + 6], "little")
        found += [data[at + 7 : at + 7 + length]] if data[at + 6] == 1 else []  # whole records only
        at += 7 + length
    return found


@needs("wandb")
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_wandb_writes_an_offline_run(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("WANDB_SILENT", "true")
    listen = WandB("quadratics", mode="offline", dir=str(tmp_path))
    result = ps.run("gd", PROBLEM, rounds=4, callbacks=[listen])
    (written,) = tmp_path.glob("wandb/offline-run-*/*.wandb")
    from wandb.proto import wandb_internal_pb2

    gaps: list[float] = []
    summary: dict[str, str] = {}
    for part in log_records(written.read_bytes()):
        record = wandb_internal_pb2.Record()
        record.ParseFromString(part)
        row = {item.key or item.nested_key[0]: item.value_json for item in record.history.item}
        gaps += [float(row["gap"])] if "gap" in row else []
        summary |= {item.key: item.value_json for item in record.summary.update}
    np.testing.assert_allclose(gaps, result.trace["gap"], rtol=1e-12)
    assert summary["status"] == '"LIMIT"'
