"""What the live page is told about a folder: progress, curves, killed drivers, damage, and only what changed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from made_folders import everything, finish, make_folder, rates_study, train_a_part
from tacit.report import build_report, read_parts
from tacit.studies.describe.library import library_folder
from tacit.studies.describe.study import load_study
from tacit.studies.store import lock
from tacit.studies.store.folder import ResultsFolder
from tacit.studies.store.status import folder_status
from tacit.studies.train.packing import Fleet
from tacit.watch.driver import SILENT_SECONDS, resume_command
from tacit.watch.fleets import LAST_LINES, MOST_PLACES, learning_curves
from tacit.watch.items import Items
from tacit.watch.observer import Observer
from tacit.watch.pace import Pace
from tacit.watch.scan import FolderScan


def read(observer: Observer, since: dict[str, Any] | None = None) -> dict[str, Any]:
    """Read the folder once, without threads, and ask as the page does."""
    observer.read()
    observer.judge()
    found = json.loads(observer.answer(since["instance"], since["version"]) if since else observer.answer())
    assert isinstance(found, dict)
    return found


def item(answer: dict[str, Any], kind: str, *, ending: str = "") -> dict[str, Any]:
    (found,) = [
        value for name, value in answer["items"].items() if name.startswith(f"{kind} ") and name.endswith(ending)
    ]
    return found


@pytest.fixture
def made(tmp_path: Path) -> tuple[ResultsFolder, list[Fleet]]:
    folder, (fleets,) = make_folder(tmp_path / "runs", [rates_study(rates=20)])
    assert len(fleets) > 2
    return folder, fleets


def test_it_follows_a_folder_that_grows(made: tuple[ResultsFolder, list[Fleet]]) -> None:
    folder, fleets = made
    runs = sum(len(fleet.runs) for fleet in fleets)
    observer = Observer(folder.path)
    with folder.locked():
        first = read(observer)
        assert item(first, "study")["finished"] == 0
        assert {value["state"] for name, value in first["items"].items() if name.startswith("fleet ")} == {"waiting"}

        train_a_part(folder, fleets[0], 0.5)
        second = read(observer, first)
        assert [name for name in second["items"] if name.startswith("fleet ")] == [
            f"fleet {folder.path} {fleets[0].id}"
        ]
        fleet = item(second, "fleet")
        assert (fleet["state"], fleet["done"], len(fleet["epochs"])) == ("under way", 0.5, 2)
        assert all(len(curve["test"]) == 2 for curve in fleet["curves"])

        finish(folder, fleets[0], diverged=1)
        third = read(observer, second)
        assert item(third, "fleet")["state"] == "finished"
        study = item(third, "study")
        assert (study["finished"], study["diverged"]) == (len(fleets[0].runs), 1)
        assert study["done"] == pytest.approx(folder_status(folder.path)[0].studies[0].done, abs=1e-4)
        assert item(third, "folder")["driver"] == "alive"
        assert f"process {os.getpid()}" in item(third, "folder")["text"]

        for fleet_left in fleets[1:]:
            finish(folder, fleet_left)
        last = read(observer, third)
    assert item(last, "study")["done"] == 1
    assert item(last, "study")["finished"] == runs
    assert item(last, "study")["left"] == 0


def test_nothing_new_is_an_empty_answer(made: tuple[ResultsFolder, list[Fleet]]) -> None:
    folder, fleets = made
    finish(folder, fleets[0])
    observer = Observer(folder.path)
    first = read(observer)
    again = read(observer, first)
    assert again["items"] == {}
    assert again["removed"] == []
    assert again["version"] == first["version"]


def test_reading_changes_nothing_and_takes_no_lock(
    made: tuple[ResultsFolder, list[Fleet]], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, fleets = made
    finish(folder, fleets[0])
    train_a_part(folder, fleets[1], 0.25)
    before = everything(folder.path)

    def refuse(*arguments: object) -> None:
        raise AssertionError("a lock was taken")

    monkeypatch.setattr(lock.fcntl, "flock", refuse)
    read(Observer(folder.path))
    assert everything(folder.path) == before


KILLED = """
import sys, time
from pathlib import Path
from tacit.studies.store.folder import ResultsFolder
with ResultsFolder(Path(sys.argv[1])).locked():
    print("locked", flush=True)
    time.sleep(60)
"""


def test_a_killed_driver_is_told_with_the_command_that_resumes(made: tuple[ResultsFolder, list[Fleet]]) -> None:
    folder, fleets = made
    train_a_part(folder, fleets[0], 0.5)
    command = [sys.executable, "-c", KILLED, str(folder.path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as driver:
        assert driver.stdout is not None
        driver.stdout.readline()
        observer = Observer(folder.path)
        alive = read(observer)
        assert item(alive, "folder")["driver"] == "alive"
        assert item(alive, "fleet", ending=fleets[0].id)["state"] == "under way"
        driver.send_signal(signal.SIGKILL)
        # Not waited for yet: a process that has ended is dead, also before its parent has noticed.
        os.waitid(os.P_PID, driver.pid, os.WEXITED | os.WNOWAIT)
        gone = read(observer, alive)
    text = item(gone, "folder")["text"]
    runs = sum(len(fleet.runs) for fleet in fleets)
    assert text.startswith(f"no driver is alive, {runs} runs remain: ")
    assert f"--into {folder.path}" in text
    assert item(gone, "fleet", ending=fleets[0].id)["state"] == "stopped"


def test_a_driver_that_ended_by_itself_leaves_no_name(made: tuple[ResultsFolder, list[Fleet]]) -> None:
    folder, _ = made
    with folder.locked():
        assert folder.lock_holder() == lock.Holder(os.getpid(), *(folder.path / "lock").read_text().split()[1:])
    assert folder.lock_holder() is None


def test_a_process_with_the_number_of_a_dead_driver_is_not_taken_for_it(
    made: tuple[ResultsFolder, list[Fleet]],
) -> None:
    folder, _ = made
    with folder.locked():
        process, machine, started = (folder.path / "lock").read_text().split()
    assert lock.Holder(int(process), machine, started).lives is True
    assert lock.Holder(int(process), machine, f"{int(started) - 1}").lives is False


def test_a_process_that_the_system_hides_is_asked_for_by_a_signal(monkeypatch: pytest.MonkeyPatch) -> None:
    def of_another_user(process: int, number: int) -> None:
        raise PermissionError

    def gone(process: int, number: int) -> None:
        raise ProcessLookupError

    monkeypatch.setattr(lock, "_start_of", lambda process: None)
    for answer, lives in ((of_another_user, True), (gone, False)):
        monkeypatch.setattr(os, "kill", answer)
        assert lock.Holder(12, started="345").lives is lives


def test_the_command_that_resumes_names_a_study_of_tacit(tmp_path: Path) -> None:
    study = load_study(library_folder() / "mnist1d" / "quick" / "orders.toml")
    assert resume_command(tmp_path, [study]) == f"`tacit run mnist1d/quick/orders --into {tmp_path}` resumes"
    assert resume_command(tmp_path, [study, study]) == f"the same `tacit reproduce … --into {tmp_path}` resumes"
    changed = load_study(study, overrides=["seed=90"])
    assert resume_command(tmp_path, [changed]) == f"the same `tacit run … --into {tmp_path}` resumes"


def test_a_driver_of_another_machine_is_alive_while_it_writes(made: tuple[ResultsFolder, list[Fleet]]) -> None:
    folder, fleets = made
    train_a_part(folder, fleets[0], 0.5)
    (folder.path / "lock").write_text("12 another.machine 345\n")
    observer = Observer(folder.path)
    first = read(observer)
    assert item(first, "folder")["text"] == "process 12 on another.machine trains here"
    for path in [folder.path / "lock", *folder.path.glob("fleets/*")]:
        facts = path.stat()
        os.utime(path, (facts.st_atime, facts.st_mtime - SILENT_SECONDS - 5))
    text = item(read(observer, first), "folder")["text"]
    assert "has written nothing for more than 3 min; if it is gone" in text


LOCKS = ["", "words\n", "12", "0\n", "9999999999 here 1\n", "9999999999\n", "99999999999999999999\n", "\0" * 300]


@pytest.mark.parametrize("content", LOCKS)
def test_any_lock_file_is_read(content: str, made: tuple[ResultsFolder, list[Fleet]]) -> None:
    folder, _ = made
    (folder.path / "lock").write_text(content)
    assert item(read(Observer(folder.path)), "folder")["driver"] in ("gone", "alive")


def test_pipes_and_links_in_place_of_files_keep_nobody_waiting(made: tuple[ResultsFolder, list[Fleet]]) -> None:
    folder, fleets = made
    for fleet in fleets[:3]:
        folder.begin(fleet.id)
    os.mkfifo(folder.checkpoint_path(fleets[0].id))
    os.mkfifo(folder.rows_path(fleets[1].id))
    os.mkfifo(folder.failure_path(fleets[2].id))
    (folder.path / "lock").unlink()
    os.mkfifo(folder.path / "lock")
    answer = read(Observer(folder.path))
    assert item(answer, "fleet", ending=fleets[0].id)["state"] == "unreadable"
    assert any("is not a regular file" in text for text in item(answer, "folder")["problems"])
    assert item(answer, "folder")["driver"] == "gone"


def test_a_damaged_file_is_named_and_the_rest_is_shown(made: tuple[ResultsFolder, list[Fleet]]) -> None:
    folder, fleets = made
    for fleet in fleets[:2]:
        finish(folder, fleet)
    rows = folder.rows_path(fleets[0].id)
    rows.write_bytes(rows.read_bytes()[:-2])
    (folder.path / "studies" / "broken.json").write_text("{")
    answer = read(Observer(folder.path))
    problems = item(answer, "folder")["problems"]
    assert any(str(rows) in text and "checksum" in text for text in problems)
    assert any("broken.json is damaged" in text for text in problems)
    assert item(answer, "study")["finished"] == len(fleets[1].runs)


def test_a_failed_fleet_has_its_last_lines(made: tuple[ResultsFolder, list[Fleet]]) -> None:
    folder, fleets = made
    error = "\n".join(f"line {k}" for k in range(40)) + "\nRuntimeError: <b>out of memory</b>\n"
    folder.begin(fleets[0].id)
    folder.write_failure(fleets[0].id, {"error": error, "attempts": 3, "ended": "today"})
    fleet = item(read(Observer(folder.path)), "fleet", ending=fleets[0].id)
    assert fleet["state"] == "failed"
    assert fleet["failure"]["attempts"] == 3
    assert len(fleet["failure"]["lines"]) == LAST_LINES
    assert fleet["failure"]["lines"][-1] == "RuntimeError: <b>out of memory</b>"


HISTORIES: list[Any] = [
    None, 3, [], [None], [{"epochs": 1, "test_accuracy": "x"}], [{"epochs": [1, None], "test_accuracy": [[], 1]}] * 4,
    [{"epochs": [1e308, 2], "test_accuracy": [1e308, True]}] * 4,
]  # fmt: skip


@pytest.mark.parametrize("history", HISTORIES, ids=str)
def test_any_history_of_a_checkpoint_is_shown_or_left_out(history: Any, tmp_path: Path) -> None:
    from tacit.studies.train import checkpoint

    folder, ((fleet, *_),) = make_folder(tmp_path, [rates_study(rates=1)])
    folder.begin(fleet.id)
    folder.write_checkpoint(fleet.id, checkpoint.encode({}, {"done": 0.5, "history": history}))
    shown = item(read(Observer(tmp_path)), "fleet")
    assert shown["done"] == 0.5


def test_long_curves_are_thinned_and_end_with_the_last_number() -> None:
    history = {"epochs": [float(k) for k in range(1000)], "test_accuracy": [k / 1000 for k in range(1000)]}
    found = learning_curves([{"seed": 0}], [history])
    assert 30 < len(found["epochs"]) <= MOST_PLACES
    assert (found["epochs"][-1], found["curves"][0]["test"][-1]) == (999.0, 0.999)


def test_verdicts_are_those_of_the_report(tmp_path: Path) -> None:
    studies = [rates_study("a", figures={"mine": {"x": "learning_rate"}}), rates_study("b", rates=2)]
    folder, fleets = make_folder(tmp_path, studies)
    for each in fleets:
        for fleet in each:
            finish(folder, fleet)
    answer = read(Observer(tmp_path))
    report = build_report(read_parts([tmp_path]))
    shown = {name.rsplit(" ", 1)[1]: value for name, value in answer["items"].items() if name.startswith("figure ")}
    assert set(shown) == {figure.id for figure in report.figures} == {"mine", "b"}
    for figure in report.figures:
        assert shown[figure.id]["caption"] == figure.caption
        assert shown[figure.id]["runs"] == figure.runs
    assert item(answer, "figures")["rows"] == len(report.rows)


def test_code_that_a_folder_names_is_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "hostile_figure.py").write_text("raise SystemExit('run')")
    monkeypatch.chdir(tmp_path)
    folder, ((fleet, *_),) = make_folder(
        tmp_path / "runs", [rates_study(figures={"mine": {"figure": "hostile_figure:x"}})]
    )
    finish(folder, fleet)
    judged = item(read(Observer(folder.path)), "figures")
    assert judged["problem"] == ""
    assert "code of your own" in judged["absent"]["mine"]


def test_a_figure_that_fails_leaves_the_progress(
    made: tuple[ResultsFolder, list[Fleet]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(parts: object) -> None:
        raise ZeroDivisionError("by zero")

    monkeypatch.setattr("tacit.watch.figures.figures_of", fail)
    answer = read(Observer(made[0].path))
    assert "ZeroDivisionError: by zero" in item(answer, "figures")["problem"]
    assert item(answer, "study")["finished"] == 0


def test_a_folder_without_a_study_is_waited_for(tmp_path: Path) -> None:
    observer = Observer(tmp_path)
    first = read(observer)
    assert "holds no study yet" in first["items"]["root"]["problem"]
    make_folder(tmp_path, [rates_study()])
    second = read(observer, first)
    assert second["items"]["root"]["problem"] == ""
    assert item(second, "study")["name"] == "rates"


def test_several_folders_inside_one(tmp_path: Path) -> None:
    for name in ("one", "two"):
        make_folder(tmp_path / name, [rates_study(name)])
    answer = read(Observer(tmp_path))
    assert {value["path"] for name, value in answer["items"].items() if name.startswith("folder ")} == {
        str(tmp_path / "one"),
        str(tmp_path / "two"),
    }


def test_files_that_did_not_change_are_not_read_again(
    made: tuple[ResultsFolder, list[Fleet]], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, fleets = made
    finish(folder, fleets[0])
    finish(folder, fleets[2])
    folder.rows_path(fleets[2].id).write_bytes(b"damaged")
    train_a_part(folder, fleets[1], 0.5)
    observer = Observer(folder.path)
    first = read(observer)
    opened: list[str] = []
    really = open

    def noted(path: Any, *rest: Any, **more: Any) -> Any:
        opened.append(str(path))
        return really(path, *rest, **more)

    monkeypatch.setattr("builtins.open", noted)
    read(observer, first)
    assert [path for path in opened if not path.endswith("lock")] == []


def test_a_page_of_an_earlier_server_gets_everything() -> None:
    items = Items()
    items.replace("group", {"a": "1", "b": "2"})
    for instance, version in (("", 0), ("00000000", 1), (items.instance, 5), (items.instance, 0)):
        found = json.loads(f"{{{items.since(instance, version)}}}")
        assert (found["whole"], found["items"]) == (True, {"a": 1, "b": 2})


def test_items_that_went_are_named_once_they_went() -> None:
    items = Items()
    items.replace("group", {"a": "1", "b": "2"})
    before = items.version
    assert items.replace("group", {"a": "1"})
    assert not items.replace("group", {"a": "1"})
    found = json.loads(f"{{{items.since(items.instance, before)}}}")
    assert (found["items"], found["removed"]) == ({}, ["b"])
    items.replace("group", {"a": "1", "b": "2"})
    assert json.loads(f"{{{items.since(items.instance, before)}}}")["items"] == {"b": 2}


def test_the_pace_of_a_model_says_nothing_about_another(made: tuple[ResultsFolder, list[Fleet]]) -> None:
    folder, fleets = made
    finish(folder, fleets[0])
    scan = FolderScan(folder)
    scan.items()
    assert list(scan._pace("mlp").finished) == [fleets[0].id]
    assert not scan._pace("wide_resnet").finished


def test_time_left_comes_from_finished_fleets_then_from_those_under_way() -> None:
    pace = Pace("mlp")
    assert pace.seconds_left([100.0], workers=1, under_way={})[1]  # rough: nothing was seen
    pace.seen("a", 0.1, now=0.0)
    pace.seen("a", 0.2, now=10.0)
    # 10 % of 1,000 million operations in 10 s: 10 million a second.
    assert pace.seconds_left([500.0], workers=1, under_way={"a": 1000.0}) == (pytest.approx(50.0), False)
    pace.ended("b", cost=1000.0, seconds=10.0)
    assert pace.seconds_left([500.0, 500.0], workers=2, under_way={"a": 1000.0}) == (
        pytest.approx(5.0),
        False,
    )
