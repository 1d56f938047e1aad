"""Running a study: the same bytes however it is run, stopped, killed or damaged."""

from __future__ import annotations

import errno
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from in_process import InProcess, Listener, rows_on_disk, wait_for
from tacit._util.errors import TacitError
from tacit.studies import runner
from tacit.studies.data.facts import Data
from tacit.studies.describe.study import Study, parse_study
from tacit.studies.execute.executor import FleetsFailedError, FleetTask, MessageHandler
from tacit.studies.execute.local import LocalExecutor
from tacit.studies.store.folder import ResultsFolder
from tacit.studies.store.rows import read_meta
from tacit.studies.store.status import folder_status
from tacit.studies.train.packing import pack
from tacit.studies.train.training import Training


def study(**fixed: Any) -> Study:
    small = {"train_size": 256, "batch_size": 16, "width": 16, "depth": 2, "evaluations": 3, **fixed}
    grid = {"learning_rate": [0.05, 0.2, 1e5], "strength": [0.0, 0.05], "seed": [0, 1]}
    return parse_study({"name": "small", "fixed": small, "grid": grid})


SMALL = study(epochs=8)


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory, data: Data) -> dict[str, bytes]:
    """The rows of SMALL, never interrupted."""
    folder = tmp_path_factory.mktemp("straight")
    runner.run(SMALL, folder, executor=InProcess(data, checkpoint_every=10**9))
    return rows_on_disk(folder)


# -- what comes back ----------------------------------------------------------------------------------------------
def test_every_run_gets_one_row_in_the_order_of_the_study(tmp_path: Path, data: Data) -> None:
    rows = runner.run(SMALL, tmp_path, executor=InProcess(data))
    assert [row["run"] for row in rows] == [run.hash for run in SMALL.runs]
    assert {row["status"] for row in rows if row["spec"]["learning_rate"] == 1e5} == {"diverged"}
    assert {row["status"] for row in rows if row["spec"]["learning_rate"] < 1} == {"finished"}


def test_a_finished_study_trains_nothing_again(tmp_path: Path, data: Data) -> None:
    rows = runner.run(SMALL, tmp_path, executor=InProcess(data))

    class Refuses(InProcess):
        def run(self, tasks: Sequence[FleetTask], watch: MessageHandler) -> None:
            assert not tasks

    assert runner.run(SMALL, tmp_path, executor=Refuses(data)) == rows


def test_an_executor_of_an_unknown_name_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(TacitError, match="local"):
        runner.run(SMALL, tmp_path, executor="cloud")


# -- dying at exact places ----------------------------------------------------------------------------------------
class Death(BaseException):
    """Nothing may catch it, as nothing catches SIGKILL."""


@pytest.mark.parametrize("moment", ["before the file is written", "before the rename", "after the rename"])
def test_dying_at_every_write_changes_no_byte(
    moment: str, tmp_path: Path, data: Data, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Die at the n-th write, go on to the end: for every n until the study has no n-th write."""
    tiny, executor = study(epochs=2), InProcess(data)
    runner.run(tiny, tmp_path / "straight", executor=executor)
    write, replace = ResultsFolder.write, os.replace
    left = 0

    def dying_write(self: ResultsFolder, path: Path, content: bytes) -> None:
        nonlocal left
        left -= 1
        if left == 0 and moment == "before the file is written":
            raise Death
        write(self, path, content)

    def dying_replace(source: Path, target: Path) -> None:
        if left == 0 and moment == "before the rename":
            raise Death
        replace(source, target)
        if left == 0 and moment == "after the rename":
            raise Death

    monkeypatch.setattr(ResultsFolder, "write", dying_write)
    monkeypatch.setattr(os, "replace", dying_replace)
    for number in itertools.count(1):
        left, folder = number, tmp_path / str(number)
        try:
            runner.run(tiny, folder, executor=executor)
            break
        except Death:
            heard = Listener()
            runner.run(tiny, folder, executor=executor, watcher=heard)
            assert heard.texts == []  # a death is not damage: every file is old or new
        assert rows_on_disk(folder) == rows_on_disk(tmp_path / "straight")
    assert number > 10  # the study itself, checkpoints, metas, rows


@pytest.mark.parametrize("writes", [1, 4, 9])
def test_a_disk_that_fills_up_is_a_sentence_and_the_study_goes_on_later(
    writes: int, tmp_path: Path, data: Data, straight: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    left = writes

    def filling_up(handle: int) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", filling_up)
        with pytest.raises(TacitError, match="disk is full"):
            runner.run(SMALL, tmp_path, executor=InProcess(data))
    runner.run(SMALL, tmp_path, executor=InProcess(data))
    assert rows_on_disk(tmp_path) == straight


# -- damage -------------------------------------------------------------------------------------------------------
DAMAGES = ["truncated", "changed", "emptied", "meta gone", "rows of another fleet", "a key gone"]


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_rows_are_trained_again_with_a_message(
    damage: str, tmp_path: Path, data: Data, straight: dict[str, bytes]
) -> None:
    runner.run(SMALL, tmp_path, executor=InProcess(data))
    one, two = sorted(straight)[:2]
    path = tmp_path / "fleets" / one / "rows.jsonl"
    text = path.read_bytes()
    if damage == "truncated":
        path.write_bytes(text[: len(text) // 2])
    elif damage == "changed":
        path.write_bytes(text.replace(b'"finished"', b'"diverged"', 1))
    elif damage == "emptied":
        path.write_bytes(b"")
    elif damage == "meta gone":
        path.with_name("meta.json").unlink()
    elif damage == "a key gone":  # with a checksum that fits: another version, or a hand
        folder = ResultsFolder(tmp_path)
        rows = [json.loads(line) for line in text.splitlines()]
        rows[0].pop("status")
        with folder.locked():
            folder.write_rows(one, rows, meta={})
    else:
        for name in ("rows.jsonl", "meta.json"):
            path.with_name(name).write_bytes((tmp_path / "fleets" / two / name).read_bytes())
    heard = Listener()
    runner.run(SMALL, tmp_path, executor=InProcess(data), watcher=heard)
    assert [one in said and "trained again" in said for said in heard.texts] == [True]
    assert rows_on_disk(tmp_path) == straight


def test_a_damaged_checkpoint_starts_over_and_says_so(tmp_path: Path, data: Data, straight: dict[str, bytes]) -> None:
    fleet = pack(SMALL.runs)[0]
    training = Training(fleet, data)
    training.advance(until=50)
    content = bytearray(training.checkpoint())
    content[-5] ^= 1
    folder = ResultsFolder(tmp_path)
    with folder.locked():
        folder.write_checkpoint(fleet.id, bytes(content))
    heard = Listener()
    runner.run(SMALL, tmp_path, executor=InProcess(data), watcher=heard)
    assert len(heard.texts) == 1
    assert "checksum" in heard.texts[0]
    assert rows_on_disk(tmp_path) == straight


# -- real processes -----------------------------------------------------------------------------------------------
LONG = study(epochs=1000)  # some seconds of training, on a fast machine too


def start(folder: Path, *, workers: int = 2) -> subprocess.Popen[bytes]:
    """The study LONG in a process of its own, with a checkpoint every twentieth of a second."""
    code = (
        "import sys, json; from tacit.studies import runner; from tacit.studies.describe.study import parse_study\n"
        "try: runner.run(parse_study(json.loads(sys.argv[1])), sys.argv[2], workers=int(sys.argv[3]),"
        " checkpoint_seconds=0.05)\n"
        "except KeyboardInterrupt: sys.exit(130)"
    )
    return subprocess.Popen([sys.executable, "-c", code, LONG.model_dump_json(), str(folder), str(workers)])


@pytest.fixture(scope="module")
def long_rows(tmp_path_factory: pytest.TempPathFactory, data: Data) -> dict[str, bytes]:
    """The rows of LONG, from one worker that was left in peace."""
    folder = tmp_path_factory.mktemp("long")
    runner.run(LONG, folder, workers=1)
    return rows_on_disk(folder)


def test_a_study_killed_at_a_dozen_random_moments_ends_with_the_same_bytes(
    tmp_path: Path, long_rows: dict[str, bytes]
) -> None:
    """Two workers here, one in the fixture: the same bytes, so workers don't matter either."""
    began = time.monotonic()
    assert start(tmp_path / "whole").wait(timeout=300) == 0
    whole = time.monotonic() - began
    assert rows_on_disk(tmp_path / "whole") == long_rows
    draws, kills, resumed = random.Random(2021), 0, 0
    folders = (tmp_path / str(number) for number in itertools.count())
    folder = next(folders)
    while kills < 12:
        resumed += bool(list(folder.glob("fleets/*/checkpoint.safetensors")))
        process = start(folder)
        try:
            process.wait(timeout=draws.uniform(0, whole))  # no machine is so fast that every new folder ends before
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            process.wait()
            kills += 1
        else:  # finished between two kills: compare, and begin another. In a finished folder nothing can be killed.
            assert process.returncode == 0
            assert rows_on_disk(folder) == long_rows
            folder = next(folders)
    assert resumed  # some were killed while they trained
    assert start(folder).wait(timeout=120) == 0
    assert rows_on_disk(folder) == long_rows


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_and_sigterm_store_checkpoints_that_the_study_goes_on_from(
    sent: signal.Signals, tmp_path: Path, long_rows: dict[str, bytes]
) -> None:
    process = start(tmp_path)
    wait_for(lambda: list(tmp_path.glob("fleets/*/checkpoint.safetensors")))
    process.send_signal(sent)
    assert process.wait(timeout=60) == 130
    assert len(rows_on_disk(tmp_path)) < len(long_rows)
    assert start(tmp_path).wait(timeout=120) == 0
    assert rows_on_disk(tmp_path) == long_rows


class Killer(Listener):
    """Kills the worker of a fleet that tells of progress, a number of times; after a new checkpoint, or before."""

    def __init__(self, executor: LocalExecutor, times: int, *, after_checkpoint: bool = True) -> None:
        super().__init__()
        self.executor, self.times, self.after_checkpoint = executor, times, after_checkpoint
        self.went_on_from_checkpoint = False

    def advanced(self, done: float) -> None:
        for each in self.executor._pool:
            self.went_on_from_checkpoint |= each.task is not None and each.task.checkpoint is not None
            due = self.times and (each.checkpoint is not None or not self.after_checkpoint)
            if due and each.task is not None and each.process.poll() is None:
                each.process.kill()
                each.process.wait()  # on a busy machine it would be found alive, and be killed a second time
                self.times -= 1


def test_a_killed_worker_is_reported_and_its_fleet_goes_on(tmp_path: Path, long_rows: dict[str, bytes]) -> None:
    with LocalExecutor(2) as executor:
        killer = Killer(executor, times=2)
        runner.run(LONG, tmp_path, executor=executor, workers=2, watcher=killer, checkpoint_seconds=0.05)
    assert killer.went_on_from_checkpoint
    assert len(killer.texts) == 2
    assert all("killed by signal 9" in text and "last checkpoint" in text for text in killer.texts)
    assert rows_on_disk(tmp_path) == long_rows
    metas = [read_meta(ResultsFolder(tmp_path).fleet_folder(fleet.id)) for fleet in pack(LONG.runs)]
    assert all(meta is not None and meta["cpu_seconds"] > 0 for meta in metas)


def test_a_fleet_that_loses_three_workers_is_reported_failed_and_can_be_tried_again(tmp_path: Path) -> None:
    with LocalExecutor(1) as executor:
        killer = Killer(executor, times=3, after_checkpoint=False)  # with new checkpoints it would be tried on and on
        # A worker that reports progress rarely could end before it is killed: one run is short on a fast machine.
        executor.progress_seconds = 0.01
        one = parse_study({**study(epochs=1000).model_dump(), "grid": [{"learning_rate": [0.05]}]})
        (fleet,) = pack(one.runs)
        with pytest.raises(FleetsFailedError, match=f"1 of 1 fleet failed .{fleet.id}."):
            runner.run(one, tmp_path, executor=executor, watcher=killer, checkpoint_seconds=3600)
        assert len(killer.texts) == 3
        failure = ResultsFolder(tmp_path).failure(fleet.id)
        assert failure is not None
        assert (failure["attempts"], failure["error"]) == (3, "its worker was killed by signal 9")
        runner.run(one, tmp_path, executor=executor)
    assert ResultsFolder(tmp_path).failure(fleet.id) is None
    assert list(rows_on_disk(tmp_path)) == [fleet.id]


def test_an_exception_in_training_fails_its_fleet_three_times_and_the_others_finish(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data: Data
) -> None:
    """A worker's own `sitecustomize` makes training raise for one fleet: nothing of ours is told beforehand."""
    victim, other = pack(SMALL.runs)[:2]
    (tmp_path / "sitecustomize.py").write_text(
        "from tacit.studies.train.training import Training\n"
        "before = Training.advance\n"
        "def advance(self, **options):\n"
        f"    if self.fleet.id == {victim.id!r}: raise MemoryError('no room for this fleet')\n"
        "    before(self, **options)\n"
        "Training.advance = advance\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    heard, folder = Listener(), tmp_path / "out"
    with pytest.raises(FleetsFailedError, match=victim.id):
        runner.run(SMALL, folder, workers=1, watcher=heard)
    assert [("failure 1 of 3" in t, "failure 2 of 3" in t, "left out" in t) for t in heard.texts] == [
        (True, False, False), (False, True, False), (False, False, True),
    ]  # fmt: skip
    failure = ResultsFolder(folder).failure(victim.id)
    assert failure is not None
    assert failure["error"].endswith("MemoryError: no room for this fleet\n")  # the whole traceback
    assert other.id in rows_on_disk(folder)
    assert len(rows_on_disk(folder)) == len(pack(SMALL.runs)) - 1
    assert f"failed: fleet {victim.id}, 3 failures, the last: MemoryError: no room" in str(folder_status(folder)[0])


def test_a_worker_ends_when_its_study_is_gone() -> None:
    parent = (
        "import os, sys, subprocess; from tacit.studies.execute.local import _start\n"
        "print(_start().process.pid, flush=True); sys.stdin.read()"
    )
    process = subprocess.Popen([sys.executable, "-c", parent], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    pid = int(process.stdout.readline())
    process.send_signal(signal.SIGKILL)
    process.wait()
    wait_for(lambda: not alive(pid), seconds=30)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"
    except FileNotFoundError:
        return False


def test_wrong_numbers_of_workers_are_a_sentence() -> None:
    for wrong in (0, -1, True, 1.5):
        with pytest.raises(TacitError, match="workers"):
            LocalExecutor(wrong)  # type: ignore[arg-type]
