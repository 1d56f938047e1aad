"""Processes that die, starve, stall or come twice: the same rows, and the exit codes that batch systems read.

A dozen SIGKILLs of the driver, SIGKILLs of workers, fleets that fail three times, Ctrl-C and SIGTERM from Python are
in tests/studies/execute/test_running.py; a lost Ray worker, node and driver in test_ray_executor.py. An out-of-memory
killer's SIGKILL is any other SIGKILL; here is the allocation that fails.
"""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from in_process import InProcess, Listener, leftovers, rows_on_disk, wait_for
from tacit.studies import runner
from tacit.studies.data.facts import Data
from tacit.studies.describe.study import load_study
from tacit.studies.execute.executor import FleetsFailedError, Worker
from tacit.studies.execute.local import LocalExecutor, _Process
from tacit.studies.store.folder import ResultsFolder

STUDY = """
name = "small"
[fixed]
train_size = 256
batch_size = 16
width = 16
depth = 2
epochs = 150
evaluations = 3
[grid]
learning_rate = [0.05, 0.2, 1e5]
strength = [0.0, 0.05]
"""
DRIVE = """
import sys
from tacit.studies import runner
runner.CHECKPOINT_SECONDS = 0.1
runner.run.__kwdefaults__["checkpoint_seconds"] = 0.1
from tacit.cli import main
main()
"""


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("study") / "small.toml"
    path.write_text(STUDY)
    return path


@pytest.fixture(scope="module")
def straight(file: Path, data: Data, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The rows of a process that nothing happened to."""
    folder = tmp_path_factory.mktemp("straight")
    runner.run(file, folder, executor=InProcess(data, checkpoint_every=10**9))
    return rows_on_disk(folder)


class Striker(Listener):
    """Calls `strike` with the process of a worker that has sent a checkpoint, once."""

    def __init__(self, executor: LocalExecutor, strike: Callable[[int], None]) -> None:
        super().__init__()
        self.executor, self.strike, self.struck = executor, strike, False

    def advanced(self, done: float) -> None:
        for worker in self.executor._pool:
            assert isinstance(worker, _Process)
            if not self.struck and worker.task is not None and worker.checkpoint is not None:
                self.struck = True
                self.strike(worker.process.pid)


def struck(file: Path, folder: Path, strike: Callable[[int], None]) -> Striker:
    with LocalExecutor(1) as executor:
        striker = Striker(executor, strike)
        runner.run(file, folder, executor=executor, watcher=striker, checkpoint_seconds=0.05)
    assert striker.struck
    return striker


@pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="needs Linux, to limit another process")
def test_a_worker_out_of_memory_is_reported_and_its_fleet_goes_on(
    file: Path, straight: dict[str, bytes], tmp_path: Path
) -> None:
    def starve(pid: int) -> None:
        """Its memory may not grow any more, and half of what it has may not be had again: an allocation fails."""
        size = int(Path(f"/proc/{pid}/statm").read_text().split()[0]) * resource.getpagesize()
        resource.prlimit(pid, resource.RLIMIT_AS, (size // 2, size // 2))

    said = struck(file, tmp_path, starve).texts
    assert len(said) == 1
    assert "(failure 1 of 3)" in said[0]  # of this fleet, or of the next one when this one was just done
    assert rows_on_disk(tmp_path) == straight


@pytest.mark.slow
def test_a_worker_that_stands_still_for_a_while_changes_nothing(
    file: Path, straight: dict[str, bytes], tmp_path: Path
) -> None:
    def stall(pid: int) -> None:
        os.kill(pid, signal.SIGSTOP)
        time.sleep(1.5)  # longer than the driver waits for a word
        os.kill(pid, signal.SIGCONT)

    assert struck(file, tmp_path, stall).texts == []
    assert rows_on_disk(tmp_path) == straight


# -- as a batch system does it --------------------------------------------------------------------------------------
def tacit_run(file: Path, folder: Path, *more: str) -> subprocess.Popen[str]:
    words = ["run", str(file), "--into", str(folder), "--workers", "1", *more]
    return subprocess.Popen([sys.executable, "-c", DRIVE, *words], stderr=subprocess.PIPE, text=True)


def under_way(folder: Path) -> bool:
    return bool(list(folder.glob("fleets/*/checkpoint.safetensors")))


def test_a_preempted_study_ends_with_143_and_goes_on_to_the_same_rows(
    file: Path, straight: dict[str, bytes], tmp_path: Path
) -> None:
    process = tacit_run(file, tmp_path)
    wait_for(lambda: under_way(tmp_path))
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 143
    assert "Traceback" not in err
    assert len(rows_on_disk(tmp_path)) < len(straight)
    assert under_way(tmp_path)
    assert tacit_run(file, tmp_path).wait(timeout=300) == 0
    assert rows_on_disk(tmp_path) == straight
    assert leftovers(tmp_path) == []


@pytest.mark.slow
def test_a_batch_system_that_does_not_wait_for_last_checkpoints_loses_none(
    file: Path, straight: dict[str, bytes], tmp_path: Path
) -> None:
    process = tacit_run(file, tmp_path)
    wait_for(lambda: under_way(tmp_path))
    process.send_signal(signal.SIGTERM)
    process.kill()
    process.communicate(timeout=60)
    assert under_way(tmp_path)
    assert tacit_run(file, tmp_path).wait(timeout=300) == 0
    assert rows_on_disk(tmp_path) == straight
    assert leftovers(tmp_path) == []


def test_of_three_drivers_at_once_one_trains_and_the_others_are_refused(
    file: Path, straight: dict[str, bytes], tmp_path: Path
) -> None:
    first = tacit_run(file, tmp_path, "epochs=100000")  # it does not end by itself
    wait_for(lambda: (tmp_path / "studies").exists())
    others = [tacit_run(file, tmp_path) for _ in range(2)]
    said = [other.communicate(timeout=120)[1] for other in others]
    first.kill()
    first.communicate(timeout=60)
    assert [other.returncode for other in others] == [2, 2]
    assert all("in use by another process; wait for it to end" in text for text in said)
    assert load_study(file, overrides=["epochs=100000"]) in ResultsFolder(tmp_path).studies()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_drivers_that_race_for_one_folder_end_with_one_set_of_rows(
    seed: int, file: Path, straight: dict[str, bytes], tmp_path: Path
) -> None:
    racing = [tacit_run(file, tmp_path) for _ in range(4)]
    codes = []
    for each in racing:
        each.communicate(timeout=600)
        codes.append(each.returncode)
    assert 0 in codes
    assert set(codes) <= {0, 2}
    assert rows_on_disk(tmp_path) == straight


@pytest.mark.parametrize("times,ends_well", [(2, True), (3, False)])
def test_workers_killed_while_they_start_are_replaced_twice(
    times: int, ends_well: bool, file: Path, straight: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with LocalExecutor(1) as executor:
        real, left = executor._start, times

        def start() -> Worker:
            nonlocal left
            worker = real()
            assert isinstance(worker, _Process)
            if left:
                left -= 1
                worker.process.kill()
            return worker

        monkeypatch.setattr(executor, "_start", start)
        if ends_well:
            runner.run(file, tmp_path, executor=executor)
            assert rows_on_disk(tmp_path) == straight
        else:
            with pytest.raises(FleetsFailedError, match="1 of 2 fleets failed"):
                runner.run(file, tmp_path, executor=executor)
            assert len(rows_on_disk(tmp_path)) == 1
