"""The study folder: complete or absent files, one writer, nothing trusted without its checksum."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from made_folders import rows_of_fleet
from tacit._util.errors import TacitError
from tacit.report import read_parts
from tacit.studies import runner
from tacit.studies.describe.spec import LATER, MOST_EVALUATIONS, RunSpec, digest
from tacit.studies.describe.study import Study, parse_study
from tacit.studies.store import folder as folder_module
from tacit.studies.store import rows as rows_module
from tacit.studies.store.folder import ResultsFolder, read_rows
from tacit.studies.store.rows import MEASURED, MOST_BYTES, SERIES, Damage, read_meta
from tacit.studies.store.status import FolderStatus, folder_status
from tacit.studies.train.packing import CAPS, pack

STUDY = parse_study({"name": "s", "fixed": {"epochs": 2, "learning_rate": 0.1}, "grid": {"seed": [0, 1]}})
(FLEET,) = pack(STUDY.runs)


def study_status(folder: Path) -> FolderStatus:
    (found,) = folder_status(folder)
    return found


def row_of(run: RunSpec) -> dict[str, Any]:
    measured = {**dict.fromkeys(MEASURED, 0.5), "diverged_at": None}
    history = {name: [0.5] for name in SERIES}
    return {"run": run.hash, "spec": run.model_dump(), "status": "finished", **measured, "history": history}


ROWS = [{**row, "spec": {**LATER, **row["spec"]}} for row in map(row_of, STUDY.runs)]  # as they are read
IN_FLEET = [row_of(run) for run in FLEET.runs]


@pytest.fixture
def folder(tmp_path: Path) -> ResultsFolder:
    made = ResultsFolder(tmp_path / "study")
    with made.locked():
        made.open_for(STUDY)
        made.write_rows(FLEET.id, IN_FLEET, meta={"seconds": 1.0})
    return made


def test_rows_come_back_in_the_order_of_the_study(folder: ResultsFolder) -> None:
    assert read_rows(folder.path) == ROWS


def test_keys_of_a_later_version_are_not_stored_at_their_defaults_and_read_as_such(folder: ResultsFolder) -> None:
    stored = [json.loads(line) for line in folder.rows_path(FLEET.id).read_text().splitlines()]
    assert not any(set(LATER) & set(row["spec"]) for row in stored)
    assert all(row["spec"].items() >= LATER.items() for row in read_rows(folder.path))


def test_a_stored_study_is_the_study(folder: ResultsFolder) -> None:
    assert folder.studies() == [STUDY]


def test_the_checksum_of_the_rows_is_stored_beside_them(folder: ResultsFolder) -> None:
    meta = read_meta(folder.fleet_folder(FLEET.id))
    assert meta is not None
    assert len(meta["rows_sha256"]) == 64
    assert meta["seconds"] == 1.0


DAMAGES = [lambda text: text[:-1], lambda text: text.replace(b"0.5", b"0.6"), lambda text: b""]


@pytest.mark.parametrize("damage", DAMAGES, ids=["truncated", "changed", "empty"])
def test_damaged_rows_are_refused_with_a_sentence(damage: Any, folder: ResultsFolder) -> None:
    path = folder.rows_path(FLEET.id)
    path.write_bytes(damage(path.read_bytes()))
    assert isinstance(rows_of_fleet(folder, FLEET.id), Damage)
    with pytest.raises(TacitError, match="checksum"):
        read_rows(folder.path)


def without(key: str, row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name != key}


FIRST = IN_FLEET[0]
NOT_OURS: list[tuple[str, Any]] = [
    *[(f"without {key}", without(key, FIRST)) for key in ("run", "spec", "status", "updates", "full_loss", "history")],
    ("spec without a key", {**FIRST, "spec": without("order", FIRST["spec"])}),
    ("spec of another run", {**FIRST, "spec": {**FIRST["spec"], "width": 65}}),
    ("unknown status", {**FIRST, "status": "fine"}),
    ("accuracy is a word", {**FIRST, "best_test_accuracy": "high"}),
    ("history without a series", {**FIRST, "history": without("full_loss", FIRST["history"])}),
    ("history with a word", {**FIRST, "history": {**FIRST["history"], "epochs": ["one"]}}),
    ("not a table", [1, 2]),
]


@pytest.mark.parametrize("row", [row for _, row in NOT_OURS], ids=[what for what, _ in NOT_OURS])
def test_a_row_that_is_not_ours_is_damage_even_with_its_checksum(row: Any, folder: ResultsFolder) -> None:
    with folder.locked():
        folder.write_rows(FLEET.id, [row, *IN_FLEET[1:]], meta={})
    with pytest.raises(TacitError, match=r"in line 1.*trains those runs again"):
        read_rows(folder.path)
    assert study_status(folder.path).damaged == (str(folder.rows_path(FLEET.id)),)


@pytest.mark.parametrize("rows", [[], IN_FLEET[:1], IN_FLEET[::-1]], ids=["none", "one of two", "another order"])
def test_rows_of_other_runs_than_the_fleets_are_damage(rows: list[Any], folder: ResultsFolder) -> None:
    with folder.locked():
        folder.write_rows(FLEET.id, rows, meta={})
    assert isinstance(rows_of_fleet(folder, FLEET.id), Damage)


def test_damaged_rows_are_moved_aside_over_those_of_an_earlier_time(folder: ResultsFolder) -> None:
    path = folder.rows_path(FLEET.id)
    for content in (b"first", b"second"):
        path.write_bytes(content)
        with folder.locked():
            assert len(folder.move_damage_aside()) == 1
        assert not path.exists()
        assert path.with_name("rows.damaged.jsonl").read_bytes() == content
    assert rows_of_fleet(folder, FLEET.id) is None
    assert read_rows(folder.path) == []


def test_rows_with_as_many_evaluations_as_a_run_may_have_can_be_stored(folder: ResultsFolder) -> None:
    """The largest fleet, with numbers that take as many characters as they can."""
    history = {name: [0.0010000000000000002] * MOST_EVALUATIONS for name in SERIES}
    history["updates"] = [10**12] * MOST_EVALUATIONS
    history["full_loss"] = [1.2345678901234567e-100] * MOST_EVALUATIONS
    with folder.locked():
        folder.write_rows(FLEET.id, [{**FIRST, "history": history}] * max(CAPS), meta={})
    assert folder.rows_path(FLEET.id).stat().st_size > MOST_BYTES["rows.jsonl"] / 2  # the limit has its reason


def test_more_evaluations_are_refused_before_anything_is_trained() -> None:
    fixed = {"updates": 10**6, "learning_rate": 0.1, "evaluations": MOST_EVALUATIONS}
    parse_study({"name": "s", "fixed": fixed})
    with pytest.raises(TacitError, match=f"evaluations is {MOST_EVALUATIONS + 1}; expected at most {MOST_EVALUATIONS}"):
        parse_study({"name": "s", "fixed": {**fixed, "evaluations": MOST_EVALUATIONS + 1}})


def test_a_fleet_that_has_begun_is_under_way_while_a_process_is_at_work(tmp_path: Path) -> None:
    store = ResultsFolder(tmp_path)
    with store.locked():
        store.open_for(STUDY)
        assert study_status(tmp_path).studies[0].fleets == {"waiting": 1}
        store.begin(FLEET.id)
        assert study_status(tmp_path).studies[0].fleets == {"under way": 1}
    assert study_status(tmp_path).studies[0].fleets == {"waiting": 1}


def test_rows_without_their_meta_are_refused(folder: ResultsFolder) -> None:
    (folder.fleet_folder(FLEET.id) / "meta.json").unlink()
    with pytest.raises(TacitError, match=r"meta\.json"):
        read_rows(folder.path)


def test_a_second_study_is_a_second_view_on_the_same_rows(folder: ResultsFolder) -> None:
    other = parse_study({"name": "other", "fixed": {"epochs": 2, "learning_rate": 0.1}, "grid": {"seed": [1, 2]}})
    with folder.locked():
        (left,) = folder.open_for(other)
    assert [run.seed for run in left.runs] == [2]  # seed 1 has a row
    assert [study.name for study in folder.studies()] == ["other", "s"]
    assert read_rows(folder.path) == [ROWS[1], ROWS[0]]


def test_a_new_question_about_the_same_runs_is_the_same_study(folder: ResultsFolder) -> None:
    asked = Study.model_validate({**STUDY.model_dump(), "question": "why?"})
    with folder.locked():
        folder.open_for(asked)
    assert folder.studies()[0].question == "why?"
    assert read_rows(folder.path) == ROWS


def test_a_folder_from_a_newer_version_is_refused(folder: ResultsFolder) -> None:
    path = folder.study_path("s")
    path.write_text(json.dumps({**json.loads(path.read_text()), "schema": 3}))
    with pytest.raises(TacitError, match="schema 3"):
        folder.studies()
    with folder.locked(), pytest.raises(TacitError, match="schema 3"):
        folder.open_for(STUDY)


@pytest.mark.parametrize("content", ["", "{", "[]", '{"schema": 1}', '{"schema": 1, "study": 3}', "\x00"])
def test_a_damaged_study_json_is_a_sentence(content: str, folder: ResultsFolder) -> None:
    folder.study_path("s").write_text(content)
    with pytest.raises(TacitError, match=r"studies/s\.json"):
        read_rows(folder.path)


@pytest.mark.parametrize("wrong", [{"name": 3}, {"fixed": {"epochs": 0}}, {"summary": {"best": 9}}])
def test_a_study_json_that_is_no_study_comes_with_the_remedy(wrong: dict[str, Any], folder: ResultsFolder) -> None:
    path = folder.study_path("s")
    stored = json.loads(path.read_text())
    path.write_text(json.dumps({**stored, "study": {**stored["study"], **wrong}}))
    with pytest.raises(TacitError, match=r"remove s\.json and run the study file again"):
        read_rows(folder.path)


def test_a_changed_run_in_study_json_is_noticed(folder: ResultsFolder) -> None:
    path = folder.study_path("s")
    path.write_text(path.read_text().replace('"epochs": 2', '"epochs": 3'))
    with pytest.raises(TacitError, match="hash"):
        read_rows(folder.path)


@pytest.mark.parametrize(
    "listed", [3, [1, None], ["none such"], [f"{STUDY.runs[0].hash} {STUDY.runs[0].hash}"], ["", []]]
)
def test_a_packing_that_is_not_ours_is_never_an_accident(listed: Any, tmp_path: Path) -> None:
    """With a checksum that fits: another version, or a person, has written it."""
    folder = ResultsFolder(tmp_path)
    with folder.locked():
        folder.open_for(STUDY)
        path = folder.study_path("s")
        stored = {**json.loads(path.read_text()), "fleets": listed, "fleets_sha256": digest(listed)}
        path.write_text(json.dumps(stored))
        left = folder.open_for(STUDY)
    assert sorted(run.hash for fleet in left for run in fleet.runs) == sorted(run.hash for run in STUDY.runs)


def test_a_folder_that_is_no_study_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(TacitError, match="holds no study"):
        read_rows(tmp_path)
    with pytest.raises(TacitError, match="holds no study"):
        read_rows(tmp_path / "absent")


# -- disks that do not give --------------------------------------------------------------------------------------------
UNREADABLE = [errno.EIO, errno.ESTALE, errno.EACCES, errno.EMFILE]


def refuse_to_open(path: Path, code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    real = open

    def refuse(given: Any, *more: Any, **named: Any) -> Any:
        if str(given) == str(path):
            raise OSError(code, os.strerror(code))
        return real(given, *more, **named)

    monkeypatch.setattr("builtins.open", refuse)


def files(folder: ResultsFolder) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.path.rglob("*") if path.is_file() and path.name != "lock"}


@pytest.mark.parametrize("code", UNREADABLE, ids=errno.errorcode.get)
@pytest.mark.parametrize("name", ["rows.jsonl", "meta.json"])
def test_finished_rows_that_cannot_be_read_now_are_not_damaged(
    name: str, code: int, folder: ResultsFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, path = files(folder), folder.fleet_folder(FLEET.id) / name
    with monkeypatch.context() as patched:
        refuse_to_open(path, code, patched)
        for read in (lambda: runner.run(STUDY, folder.path), lambda: read_rows(folder.path)):
            with pytest.raises(TacitError, match=rf"{name} cannot be read \({os.strerror(code)}\); it was not changed"):
                read()
        with pytest.raises(TacitError, match="cannot be read"):
            read_parts([folder.path])
        seen = study_status(folder.path)
        assert (len(seen.unreadable), seen.damaged) == (1, ())
        assert f"problem: {path} cannot be read" in str(seen)
    assert files(folder) == before
    assert read_rows(folder.path) == ROWS


@pytest.mark.parametrize("code", UNREADABLE, ids=errno.errorcode.get)
def test_a_checkpoint_that_cannot_be_read_now_is_a_sentence(
    code: int, folder: ResultsFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.rows_path(FLEET.id).unlink()
    folder.write_checkpoint(FLEET.id, b"good")
    with monkeypatch.context() as patched:
        refuse_to_open(folder.checkpoint_path(FLEET.id), code, patched)
        with pytest.raises(TacitError, match=rf"cannot be read \({os.strerror(code)}\); it was not changed"):
            folder.read_checkpoint(FLEET.id)
        assert study_status(folder.path).studies[0].fleets == {"unreadable": 1}
    assert folder.read_checkpoint(FLEET.id) == b"good"


def test_a_folder_of_fleets_that_cannot_be_listed_is_not_an_empty_one(
    folder: ResultsFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Any) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(TacitError, match=r"cannot be read \(Input/output error\); it was not changed"):
        read_rows(folder.path)


def test_no_checkpoint_is_none_and_an_empty_file_is_something_else(folder: ResultsFolder) -> None:
    assert folder.read_checkpoint(FLEET.id) is None
    folder.write_checkpoint(FLEET.id, b"")
    assert folder.read_checkpoint(FLEET.id)  # executors take nothing for no checkpoint


def test_a_checkpoint_that_is_too_large_is_refused_when_written_and_when_read(
    folder: ResultsFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = folder.checkpoint_path(FLEET.id)
    monkeypatch.setattr(folder_module, "MOST_CHECKPOINT_BYTES", 10)
    folder.write_checkpoint(FLEET.id, b"ten bytes.")
    with pytest.raises(TacitError, match="has 11 bytes; expected at most 10"):
        folder.write_checkpoint(FLEET.id, b"eleven bytes"[:11])
    assert folder.read_checkpoint(FLEET.id) == b"ten bytes."
    path.write_bytes(b"eleven bytes"[:11])
    with pytest.raises(TacitError, match="has 11 bytes; expected at most 10; move it away"):
        folder.read_checkpoint(FLEET.id)


# -- links in a folder from other hands -------------------------------------------------------------------------------
@pytest.mark.parametrize("target", ["present", "absent"])
def test_a_lock_that_is_a_link_is_refused_and_nothing_is_written_through_it(
    target: str, folder: ResultsFolder, tmp_path: Path
) -> None:
    (tmp_path / "present").write_text("mine")
    (folder.path / "lock").unlink()
    (folder.path / "lock").symlink_to(tmp_path / target)
    with pytest.raises(TacitError, match="cannot be written"), folder.locked():
        raise AssertionError("it was locked")
    assert not folder.is_locked()
    assert (tmp_path / "present").read_text() == "mine"
    assert not (tmp_path / "absent").exists()


def test_a_lock_that_is_a_pipe_is_not_waited_for(folder: ResultsFolder) -> None:
    (folder.path / "lock").unlink()
    os.mkfifo(folder.path / "lock")
    assert not folder.is_locked()
    with folder.locked():
        assert folder.is_locked()


def test_a_temporary_file_that_is_a_link_is_replaced_and_not_followed(folder: ResultsFolder, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_text("mine")
    path = folder.checkpoint_path(FLEET.id)
    path.with_name(f".{path.name}.{os.getpid()}.tmp").symlink_to(tmp_path / "elsewhere")
    folder.write_checkpoint(FLEET.id, b"ours")
    assert (tmp_path / "elsewhere").read_text() == "mine"
    assert not path.is_symlink()
    assert path.read_bytes() == b"ours"


# -- disks that refuse ------------------------------------------------------------------------------------------------
def refuse_with(code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(handle: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "fsync", refuse)


REFUSALS = [
    (errno.ENOSPC, "disk is full"),
    (errno.EROFS, "cannot be written"),
    (errno.EACCES, "choose another place"),
    (errno.EIO, "cannot be written"),
]


@pytest.mark.parametrize("code,words", REFUSALS)
def test_a_disk_that_refuses_is_a_sentence_and_leaves_what_was_there(
    code: int, words: str, folder: ResultsFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = {path: path.read_bytes() for path in folder.path.rglob("*") if path.is_file()}
    refuse_with(code, monkeypatch)
    with pytest.raises(TacitError, match=words):
        folder.write_rows(FLEET.id, ROWS[:1], meta={})
    assert {path: path.read_bytes() for path in folder.path.rglob("*") if path.is_file()} == before


def test_a_folder_that_cannot_be_made_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(TacitError, match="cannot be written"), ResultsFolder(tmp_path / "file" / "study").locked():
        pass


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_really_full_disk_is_a_sentence(folder: ResultsFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    real = open
    monkeypatch.setattr("builtins.open", lambda path, mode="r", **more: real("/dev/full", "wb", **more))
    with pytest.raises(TacitError, match="disk is full"):
        folder.write_checkpoint(FLEET.id, b"x" * 10)


# -- one writer -------------------------------------------------------------------------------------------------------
HOLD = "import sys, time; from pathlib import Path; from tacit.studies.store.folder import ResultsFolder\n"
HOLD += "with ResultsFolder(Path(sys.argv[1])).locked(): print('held', flush=True); time.sleep(60)"


def test_a_second_process_is_refused_and_a_dead_one_does_not_block(folder: ResultsFolder) -> None:
    holder = subprocess.Popen([sys.executable, "-c", HOLD, str(folder.path)], stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(TacitError, match="in use by another process"), folder.locked():
            pass
        assert folder.is_locked()
    finally:
        holder.send_signal(signal.SIGKILL)
        holder.wait()
    assert not folder.is_locked()
    with folder.locked():
        assert folder.is_locked()


def test_a_reader_that_asks_for_an_instant_keeps_no_process_from_its_start(folder: ResultsFolder) -> None:
    """It has the lock while it asks; whoever begins to write tries again before it gives up."""
    with folder.locked():
        pass
    asking = os.open(folder.path / "lock", os.O_RDONLY)
    fcntl.flock(asking, fcntl.LOCK_SH)
    ended = threading.Timer(0.1, os.close, [asking])
    ended.start()
    with folder.locked():
        assert folder.is_locked()
    ended.join()


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP])
def test_a_file_system_without_locks_is_a_sentence(
    number: int, folder: ResultsFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_locks(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    with folder.locked():
        pass  # so that there is a file to lock
    monkeypatch.setattr(fcntl, "flock", no_locks)
    assert not folder.is_locked()
    with pytest.raises(TacitError, match="cannot be locked"), folder.locked():
        raise AssertionError("it was locked")


def test_what_a_killed_process_left_beside_finished_rows_is_removed_by_the_next_run(folder: ResultsFolder) -> None:
    folder.write_checkpoint(FLEET.id, b"as if killed between the rows and this")
    folder.write_failure(FLEET.id, {"error": "an earlier one", "attempts": 3})
    runner.run(STUDY, folder.path)
    assert sorted(path.name for path in folder.fleet_folder(FLEET.id).iterdir()) == ["meta.json", "rows.jsonl"]


def test_rows_that_were_stored_before_a_column_are_read_with_none_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows_module, "MEASURED_LATER", ("gradient_noise",))
    made = ResultsFolder(tmp_path / "study")
    with made.locked():
        made.open_for(STUDY)
        made.write_rows(FLEET.id, [{**IN_FLEET[0], "gradient_noise": 0.5}, *IN_FLEET[1:]], meta={})
    noises = [row["gradient_noise"] for row in read_rows(made.path)]
    assert sorted(noises, key=str) == [0.5, *[None] * (len(IN_FLEET) - 1)]


def test_a_column_that_is_no_number_is_damage(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows_module, "MEASURED_LATER", ("gradient_noise",))
    assert "gradient_noise" in (rows_module.row_problem({**IN_FLEET[0], "gradient_noise": "much"}, 1) or "")
