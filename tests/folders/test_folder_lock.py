"""A run folder has one writer; what the disk refuses is said in one sentence, and no result is lost for it."""

import contextlib
import errno
import os
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest

import proxskip as ps
from proxskip.results import atomic, folder
from proxskip.results.checkpoint import CheckpointError
from proxskip.results.lock import NAME, held
from proxskip.types import InputError

PID = f"{NAME}.pid"
PROBLEM = ps.Problem(ps.random_quadratics(4, 3, seed=1))


def run_again(folder: Path | None) -> ps.Result:
    return ps.run(ps.GD.theory(PROBLEM), PROBLEM, rounds=2, out=folder, force=True)


def resume(folder: Path) -> ps.Result:
    return ps.resume(folder, PROBLEM, rounds=5)


def test_a_second_writer_is_refused_with_the_number_of_the_first(tmp_path: Path) -> None:
    folder = tmp_path / "a"
    run_again(folder)
    before = (folder / "checkpoint").read_bytes()
    with held(folder):
        for act in (run_again, resume):
            with pytest.raises(InputError, match=f"is being written by process {os.getpid()}; wait for it"):
                act(folder)
    assert (folder / "checkpoint").read_bytes() == before
    assert resume(folder).rounds == 5
    assert not (folder / NAME).exists()


@pytest.mark.parametrize("command", ["run gd", "run gd --seeds 2", "sweep gd scaffnew"])
def test_force_does_not_get_around_a_live_lock(command: str, tmp_path: Path, call: Any) -> None:
    with held(tmp_path):
        code, _, err = call(
            *command.split(), "--data", "digits", "--rounds", 2, "--out", tmp_path, "--force", "--quiet"
        )
    assert (code, f"process {os.getpid()}" in err) == (2, True)
    assert [p.name for p in tmp_path.iterdir() if p.name != NAME] == []


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
def test_the_lock_of_a_process_that_is_gone_is_taken_over(tmp_path: Path) -> None:
    pid = os.fork()
    if not pid:
        with held(tmp_path):
            os._exit(0)  # as if it had been killed: nothing is cleaned up
    assert os.waitpid(pid, 0)[1] == 0
    assert (tmp_path / PID).read_text() == str(pid)
    (tmp_path / PID).write_text(str(os.getppid()))  # a number that another process has by now changes nothing
    with held(tmp_path):
        assert (tmp_path / PID).read_text() == str(os.getpid())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
def test_of_many_processes_one_at_a_time_holds_the_lock(tmp_path: Path) -> None:
    counter, processes, times = tmp_path / "counter", 3, 20
    counter.write_text("0")
    children = []
    for _ in range(processes):
        children.append(os.fork())
        if not children[-1]:
            left = times
            try:
                while left:
                    with contextlib.suppress(InputError), held(tmp_path):
                        counter.write_text(str(int(counter.read_text()) + 1))
                        left -= 1
            finally:
                os._exit(left)
    assert [os.waitpid(pid, 0)[1] for pid in children] == [0] * processes
    assert counter.read_text() == str(processes * times)
    assert list(tmp_path.iterdir()) == [counter]


@pytest.mark.parametrize("place", ["link", "dangling link", "hard link", "data", "folder"])
def test_no_other_file_is_taken_for_a_lock(place: str, tmp_path: Path) -> None:
    """A folder that was unpacked from an archive may hold a link to any file of the user's."""
    folder, mine = tmp_path / "a", tmp_path / "mine"
    run_again(folder)
    lock = folder / NAME
    precious = "precious" * (1 if place == "hard link" else 1000)
    mine.write_text(precious)
    {
        "link": lambda: lock.symlink_to(mine),
        "dangling link": lambda: lock.symlink_to(tmp_path / "new"),
        "hard link": lambda: lock.hardlink_to(mine),
        "data": lambda: lock.write_bytes(mine.read_bytes()),
        "folder": lock.mkdir,
    }[place]()
    for act in (run_again, resume):
        with pytest.raises(InputError, match="is not a lock file but a link or other data; move it away"):
            act(folder)
    assert mine.read_text() == precious
    assert place != "data" or lock.read_text() == mine.read_text()
    assert not (tmp_path / "new").exists()


def test_the_number_of_the_process_is_not_written_through_a_link(tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.write_text("precious")
    (tmp_path / PID).symlink_to(mine)
    with held(tmp_path):
        assert (tmp_path / PID).read_text() == str(os.getpid())
    assert mine.read_text() == "precious"


def test_an_interruption_while_f_star_is_found_leaves_no_folder(tmp_path: Path) -> None:
    where = mock.patch("proxskip.running.loop.Loop._prepare", side_effect=KeyboardInterrupt)
    with where, pytest.raises(KeyboardInterrupt):
        run_again(tmp_path / "a")
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize("writes", range(8))
def test_a_full_disk_never_loses_a_result(writes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    left = iter(range(writes))

    def limited(path: Path, mode: str) -> Any:
        if next(left, None) is None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        return open(path, mode)

    whole = run_again(None)
    monkeypatch.setattr(atomic, "open", limited, raising=False)
    if writes < 2:  # not even the first checkpoint and spec.json: the run does not begin
        with pytest.raises(CheckpointError, match="No space left on device"):
            run_again(tmp_path / "a")
    elif writes == 7:
        assert run_again(tmp_path / "a").warnings == ()
    else:
        with pytest.warns(UserWarning, match=r"No space left on device; .* The result is only in memory"):
            result = run_again(tmp_path / "a")
        assert np.array_equal(result.x, whole.x)
        assert "only in memory" in result.warnings[-1]


def test_checkpoints_are_seldom_and_cost_a_small_share_of_the_time(tmp_path: Path, monkeypatch: Any) -> None:
    now = 0.0
    monkeypatch.setattr(folder.time, "monotonic", lambda: now)
    kept = folder.Folder(tmp_path, {})
    times: list[float] = []

    def saved(seconds: float) -> None:
        nonlocal now
        now += seconds

    for cost in (0.0, 100.0):
        monkeypatch.setattr(folder.checkpoint, "save", lambda *_, cost=cost, **__: saved(cost))
        begun, times = now, []
        while now < begun + 36_000:
            now += 1.0
            if kept.due(1):
                times.append(now)
                kept.save(folder.State(np.zeros(2), {}, {}, {}))
        pauses = np.diff(times)
        assert pauses.min() >= folder.SECONDS_BETWEEN_CHECKPOINTS
        assert len(times) * cost <= 1.1 * folder.SHARE_OF_CHECKPOINTS * 36_000 + cost
        assert len(times) > 2
