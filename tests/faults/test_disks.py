"""Disks that fill up, refuse, forget or change what they hold: a sentence, and the same rows once they behave again.

Deaths at every single write, refusals of every kind and damaged rows are in tests/studies/execute/test_running.py and
test_folder.py; here are quotas, real file systems, cut files and clocks.
"""

from __future__ import annotations

import errno
import io
import os
import random
import shutil
import subprocess
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from in_process import InProcess, Listener, leftovers, rows_on_disk, study
from tacit._util.errors import TacitError
from tacit.studies import runner
from tacit.studies.data.facts import Data
from tacit.studies.progress import ProgressBar
from tacit.studies.store import writer as recorder
from tacit.studies.store.folder import ResultsFolder, read_rows
from tacit.studies.store.rows import read_meta
from tacit.studies.store.status import folder_status
from tacit.studies.train import checkpoint
from tacit.studies.train.checkpoint import DamagedCheckpointError
from tacit.studies.train.packing import pack
from tacit.studies.train.training import Training

SMALL = study(epochs=6)  # 24 minibatches: three checkpoints per fleet
FLEET = pack(SMALL.runs)[0]


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory, data: Data) -> dict[str, bytes]:
    """The rows of SMALL, never disturbed."""
    folder = tmp_path_factory.mktemp("straight")
    runner.run(SMALL, folder, executor=InProcess(data, checkpoint_every=10**9))
    return rows_on_disk(folder)


def goes_on(folder: Path, data: Data, straight: dict[str, bytes]) -> list[str]:
    """Run to the end: the same bytes, nothing left behind. What was said on the way."""
    heard = Listener()
    runner.run(SMALL, folder, executor=InProcess(data), watcher=heard)
    assert rows_on_disk(folder) == straight
    assert leftovers(folder) == []
    return heard.texts


# -- a full disk ------------------------------------------------------------------------------------------------------
class Quota(io.FileIO):
    """A file on a disk with a number of bytes left, shared by all files: a write takes what fits, then fails."""

    left = 0

    def write(self, content: Any) -> int:
        fits = bytes(content)[: Quota.left]
        Quota.left -= len(fits)
        if len(fits) < len(content):
            super().write(fits)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return super().write(fits)


def test_a_quota_that_ends_within_any_file_is_a_sentence_and_changes_no_row(
    tmp_path: Path, data: Data, straight: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = open

    def with_quota(path: Any, mode: str = "r", **more: Any) -> Any:
        return Quota(path, "xb") if "x" in mode and "tmp" in str(path) else real(path, mode, **more)

    full = 0
    for number in range(12):  # from a part of the first file to more than the whole study
        folder, Quota.left = tmp_path / str(number), 125 * 2**number
        with monkeypatch.context() as patched:
            patched.setattr("builtins.open", with_quota)
            try:
                runner.run(SMALL, folder, executor=InProcess(data))
            except TacitError as error:
                full += "disk is full" in str(error)
                assert not list(folder.rglob("*.tmp"))
        goes_on(folder, data, straight)
    assert 4 <= full < 12


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of our own with 64 kB; needs the right to mount."""
    disk = tmp_path / "disk"
    disk.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(disk)], capture_output=True, check=False
    )
    if made.returncode:
        pytest.skip("no right to mount a file system here")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


def remount(disk: Path, options: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{options}", str(disk)], check=True)


def test_a_really_full_file_system_is_a_sentence_and_the_study_goes_on_with_more_space(
    small_disk: Path, data: Data, straight: dict[str, bytes]
) -> None:
    (small_disk / "others").write_bytes(bytes(48_000))
    with pytest.raises(TacitError, match="disk is full"):
        runner.run(SMALL, small_disk / "study", executor=InProcess(data))
    remount(small_disk, "size=1m")
    goes_on(small_disk / "study", data, straight)


def test_a_read_only_study_is_read_and_not_written(small_disk: Path, data: Data) -> None:
    remount(small_disk, "size=1m")
    folder = small_disk / "study"
    rows = runner.run(SMALL, folder, executor=InProcess(data))
    one = ResultsFolder(folder).rows_path(FLEET.id)
    one.rename(one.with_name("kept"))  # half of the study is to be done
    remount(small_disk, "ro")
    with pytest.raises(TacitError, match="cannot be written"):
        runner.run(SMALL, folder, executor=InProcess(data))
    assert folder_status(folder)[0].studies[0].fleets == {"waiting": 1}
    assert len(read_rows(folder)) == len(rows) / 2
    remount(small_disk, "rw")
    one.with_name("kept").rename(one)
    assert read_rows(folder) == rows


# -- clocks -----------------------------------------------------------------------------------------------------------
def test_a_clock_that_goes_backwards_changes_nothing(
    tmp_path: Path, data: Data, straight: dict[str, bytes], monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    now = datetime(2030, 1, 1, tzinfo=UTC)

    class Backwards(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> datetime:
            nonlocal now
            now -= timedelta(hours=1)
            return now

    monkeypatch.setattr(recorder, "datetime", Backwards)
    monkeypatch.setattr(time, "time", lambda: Backwards.now().timestamp())
    runner.run(SMALL, tmp_path, executor=InProcess(data), watcher=ProgressBar(line_seconds=0.0))
    assert rows_on_disk(tmp_path) == straight
    meta = read_meta(ResultsFolder(tmp_path).fleet_folder(FLEET.id))
    assert meta is not None
    assert meta["started"] > meta["ended"]  # the clock's word, and nothing is computed from it
    shares = [float(line.split(": ")[1].split("%")[0]) for line in capsys.readouterr().err.splitlines() if "%" in line]
    assert shares == sorted(shares)
    assert len(shares) > 4


def test_files_from_the_future_are_files(tmp_path: Path, data: Data, straight: dict[str, bytes]) -> None:
    folder = ResultsFolder(tmp_path)
    training = Training(FLEET, data)
    training.advance(until=8)
    with folder.locked():
        folder.open_for(SMALL)
        folder.write_checkpoint(FLEET.id, training.checkpoint())
    for path in tmp_path.rglob("*"):
        os.utime(path, (4e9, 4e9))
    assert goes_on(tmp_path, data, straight) == []


# -- cut and changed files --------------------------------------------------------------------------------------------
def test_a_checkpoint_cut_at_any_byte_is_refused(data: Data) -> None:
    training = Training(FLEET, data)
    training.advance(until=8)
    whole = training.checkpoint()
    for length in range(len(whole)):
        with pytest.raises(DamagedCheckpointError):
            checkpoint.decode(whole[:length])
        assert 0 <= checkpoint.share_done(whole[:length]) <= 1
    training.restore(whole)


CUTS = ["nothing", "in the length", "in the header", "after the header", "in an array", "without its last byte"]


@pytest.mark.parametrize("cut", CUTS)
def test_a_study_with_a_cut_checkpoint_says_so_and_ends_the_same(
    cut: str, tmp_path: Path, data: Data, straight: dict[str, bytes]
) -> None:
    training = Training(FLEET, data)
    training.advance(until=16)
    whole = training.checkpoint()
    header = 8 + int.from_bytes(whole[:8], "little")
    at = dict(zip(CUTS, (0, 5, header // 2, header, (header + len(whole)) // 2, len(whole) - 1), strict=True))[cut]
    folder = ResultsFolder(tmp_path)
    with folder.locked():
        folder.open_for(SMALL)
        folder.write_checkpoint(FLEET.id, whole[:at])
    folder_status(tmp_path)
    said = goes_on(tmp_path, data, straight)
    assert [FLEET.id in text and "checksum" in text for text in said] == [True]


@pytest.mark.parametrize("fleet", ["finished", "unfinished"])
def test_half_a_line_of_rows_is_noticed(fleet: str, tmp_path: Path, data: Data, straight: dict[str, bytes]) -> None:
    folder = ResultsFolder(tmp_path)
    if fleet == "finished":
        runner.run(SMALL, tmp_path, executor=InProcess(data))
        with folder.rows_path(FLEET.id).open("ab") as handle:
            handle.write(straight[FLEET.id][:100])
    else:
        with folder.locked():
            folder.open_for(SMALL)
            folder.begin(FLEET.id)
        folder.rows_path(FLEET.id).write_bytes(straight[FLEET.id][:100])
    damaged = folder.rows_path(FLEET.id).read_bytes()
    said = goes_on(tmp_path, data, straight)
    assert [FLEET.id in text and "trained again" in text for text in said] == [True]
    assert folder.rows_path(FLEET.id).with_name("rows.damaged.jsonl").read_bytes() == damaged


def test_a_worker_tells_of_an_empty_checkpoint(tmp_path: Path, straight: dict[str, bytes]) -> None:
    """In a process of its own: between the two, a checkpoint is bytes in a frame, and none is no bytes."""
    folder, heard = ResultsFolder(tmp_path), Listener()
    with folder.locked():
        folder.open_for(SMALL)
        folder.write_checkpoint(FLEET.id, b"")
    runner.run(SMALL, tmp_path, workers=1, watcher=heard)
    assert [FLEET.id in text and "starts over" in text for text in heard.texts] == [True]
    assert rows_on_disk(tmp_path).keys() == straight.keys()


def test_a_checkpoint_that_cannot_be_read_is_not_trained_over(
    tmp_path: Path, data: Data, straight: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, training, real = ResultsFolder(tmp_path), Training(FLEET, data), open
    training.advance(until=16)
    with folder.locked():
        folder.open_for(SMALL)
        folder.write_checkpoint(FLEET.id, training.checkpoint())
    path = folder.checkpoint_path(FLEET.id)
    before = path.read_bytes()

    def refuse(given: Any, *more: Any, **named: Any) -> Any:
        if str(given) == str(path):
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        return real(given, *more, **named)

    with monkeypatch.context() as patched:
        patched.setattr("builtins.open", refuse)
        with pytest.raises(TacitError, match="cannot be read"):
            runner.run(SMALL, tmp_path, executor=InProcess(data))
    assert path.read_bytes() == before
    assert goes_on(tmp_path, data, straight) == []


def test_one_changed_byte_in_any_file_is_noticed_or_harmless(
    tmp_path: Path, data: Data, straight: dict[str, bytes]
) -> None:
    """A bit flips in a file of a half-finished study; the study then ends with the same rows, or refuses and says how
    to go on. The same for a tail of zeros, which a power cut may leave."""
    draws = random.Random(7)
    training = Training(pack(SMALL.runs)[1], data)
    training.advance(until=8)
    made = ResultsFolder(tmp_path / "made")
    runner.run(SMALL, made.path, executor=InProcess(data))
    made.rows_path(training.fleet.id).unlink()
    with made.locked():
        made.write_checkpoint(training.fleet.id, training.checkpoint())
    for number in range(30):
        folder = ResultsFolder(tmp_path / str(number))
        shutil.copytree(made.path, folder.path)
        path = draws.choice(sorted(each for each in folder.path.rglob("*") if each.is_file() and each.name != "lock"))
        content = bytearray(path.read_bytes())
        at = draws.randrange(len(content))
        if number % 2:
            content[at] ^= 1 << draws.randrange(8)
        else:
            content[at:] = bytes(len(content) - at)
        path.write_bytes(content)
        try:
            goes_on(folder.path, data, straight)
        except TacitError as error:
            newer = "upgrade tacit" in str(error)  # a bit of the schema's number
            folder.study_path(SMALL.name).unlink()
            goes_on(folder.path, data, straight)
            assert newer


def test_a_temporary_file_that_a_crash_left_is_cleared_away(
    tmp_path: Path, data: Data, straight: dict[str, bytes]
) -> None:
    folder = ResultsFolder(tmp_path)
    with folder.locked():
        folder.open_for(SMALL)
        folder.begin(FLEET.id)
    for name in (".checkpoint.safetensors.tmp", ".rows.jsonl.tmp", ".meta.json.tmp"):
        (folder.fleet_folder(FLEET.id) / name).write_bytes(b"half")
    runner.run(SMALL, tmp_path, executor=InProcess(data, checkpoint_every=10**9))  # no checkpoint is written over it
    assert rows_on_disk(tmp_path) == straight
    assert leftovers(tmp_path) == []
