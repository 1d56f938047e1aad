"""What the live page is told about a folder: progress, curves, killed processes, damage, figures with verdicts."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from made_folders import everything, finish, make_folder, rates_study, rows_of_fleet, train_a_part
from tacit.report import build_report, read_parts
from tacit.studies.describe.library import library_folder
from tacit.studies.describe.study import load_study
from tacit.studies.store.folder import ResultsFolder
from tacit.studies.store.status import folder_status
from tacit.studies.train.packing import Fleet
from tacit.watch.fleets import LAST_LINES, METRICS, MOST_PLACES, learning_curves
from tacit.watch.state import Answer, FolderState, answers


def read(state: FolderState, metric: str = "test_accuracy") -> dict[str, Any]:
    """The folder as the page gets it."""
    (folder,) = json.loads(json.dumps(state.progress(metric), allow_nan=False))["folders"]
    assert isinstance(folder, dict)
    return folder


def study_of(state: FolderState, metric: str = "test_accuracy") -> dict[str, Any]:
    (found,) = read(state, metric)["studies"]
    assert isinstance(found, dict)
    return found


def fleet_of(state: FolderState, fleet: Fleet, metric: str = "test_accuracy") -> dict[str, Any]:
    (found,) = [each for each in study_of(state, metric)["fleets"] if each["id"] == fleet.id]
    assert isinstance(found, dict)
    return found


@pytest.fixture
def made(tmp_path: Path) -> tuple[ResultsFolder, list[Fleet]]:
    folder, (fleets,) = make_folder(tmp_path / "runs", [rates_study(rates=20)])
    assert len(fleets) > 2
    return folder, fleets


def test_it_follows_a_folder_that_grows(made: tuple[ResultsFolder, list[Fleet]]) -> None:
    folder, fleets = made
    runs = sum(len(fleet.runs) for fleet in fleets)
    state = FolderState(folder.path)
    with folder.locked():
        first = study_of(state)
        assert (first["finished"], first["left"]) == (0, None)
        assert {fleet["state"] for fleet in first["fleets"]} == {"waiting"}

        train_a_part(folder, fleets[0], 0.5)
        fleet = fleet_of(state, fleets[0])
        assert (fleet["state"], fleet["done"], len(fleet["epochs"])) == ("under way", 0.5, 2)
        assert all(len(curve["values"]) == 2 for curve in fleet["curves"])

        finish(folder, fleets[0], diverged=1)
        assert fleet_of(state, fleets[0])["state"] == "finished"
        study = study_of(state)
        assert (study["finished"], study["diverged"]) == (len(fleets[0].runs), 1)
        assert study["done"] == pytest.approx(folder_status(folder.path)[0].studies[0].done, abs=1e-4)
        assert study["left"] > 0
        assert read(state)["running"]
        assert read(state)["text"] == "a process trains here"

        for fleet_left in fleets[1:]:
            finish(folder, fleet_left)
    last = study_of(state)
    assert (last["done"], last["finished"], last["left"]) == (1, runs, 0)
    assert read(state)["text"] == f"all runs are finished: `tacit report {folder.path}` writes the report"


@pytest.mark.parametrize("metric", METRICS)
def test_curves_are_those_of_the_metric_that_is_asked_for(metric: str, made: tuple[ResultsFolder, list[Fleet]]) -> None:
    folder, fleets = made
    finish(folder, fleets[0])
    train_a_part(folder, fleets[1], 0.5)
    state, rows = FolderState(folder.path), rows_of_fleet(folder, fleets[0].id)
    assert isinstance(rows, tuple)
    shown = [curve["values"] for curve in fleet_of(state, fleets[0], metric)["curves"]]
    assert sorted(shown) == [pytest.approx(each, rel=1e-3) for each in sorted(row["history"][metric] for row in rows)]
    assert len(fleet_of(state, fleets[1], metric)["curves"][0]["values"]) == 2


def test_answers_are_made_again_after_a_while_and_rest_when_they_take_long(monkeypatch: pytest.MonkeyPatch) -> None:
    now, made = 0.0, []

    def make() -> list[int]:
        nonlocal now
        now += 5.0 if len(made) == 1 else 0.0
        made.append(len(made))
        return made

    monkeypatch.setattr(time, "monotonic", lambda: now)
    answer = Answer(make)
    seen = []
    for asked in (10.0, 11.9, 12.1, 18.0, 31.9, 32.2):  # the second one takes 5 s: until 17.1, then 15 s of rest
        now = asked
        seen.append(json.loads(answer.text())[-1])
    assert seen == [0, 0, 1, 1, 1, 2]


def test_pages_that_ask_at_the_same_time_get_one_reading() -> None:
    made = []
    answer = Answer(lambda: (made.append(1), time.sleep(0.05)))
    threads = [threading.Thread(target=answer.text) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert made == [1]


def test_reading_changes_nothing_and_takes_no_lock_for_writing(
    made: tuple[ResultsFolder, list[Fleet]], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, fleets = made
    finish(folder, fleets[0])
    train_a_part(folder, fleets[1], 0.25)
    before, asked = everything(folder.path), []
    monkeypatch.setattr(fcntl, "flock", lambda handle, how: asked.append(how))
    state = FolderState(folder.path)
    read(state)
    state.figures()
    assert everything(folder.path) == before
    assert set(asked) == {fcntl.LOCK_SH | fcntl.LOCK_NB}


KILLED = """
import sys, time
from pathlib import Path
from tacit.studies.store.folder import ResultsFolder
with ResultsFolder(Path(sys.argv[1])).locked():
    print("locked", flush=True)
    time.sleep(60)
"""


def test_a_killed_process_is_told_with_the_command_that_resumes(made: tuple[ResultsFolder, list[Fleet]]) -> None:
    folder, fleets = made
    train_a_part(folder, fleets[0], 0.5)
    state = FolderState(folder.path)
    command = [sys.executable, "-c", KILLED, str(folder.path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert read(state)["running"]
        assert fleet_of(state, fleets[0])["state"] == "under way"
        process.send_signal(signal.SIGKILL)
        # Not waited for yet: a process that has ended has no lock, also before its parent has noticed.
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        text = read(state)["text"]
    runs = sum(len(fleet.runs) for fleet in fleets)
    assert text.startswith(f"no process trains here, {runs} runs remain: ")
    assert f"--into {folder.path}" in text
    assert fleet_of(state, fleets[0])["state"] == "stopped"


def test_the_command_that_resumes_names_a_study_of_tacit(tmp_path: Path) -> None:
    study = load_study(library_folder() / "mnist1d" / "quick" / "orders.toml")
    other = load_study(library_folder() / "mnist1d" / "quick" / "rates.toml")
    changed = load_study(study, overrides=["seed=90"])
    expected = {
        f"`tacit run mnist1d/quick/orders --into {tmp_path / '0'}` resumes": [study],
        f"the same `tacit reproduce … --into {tmp_path / '1'}` resumes": [study, other],
        f"the same `tacit run … --into {tmp_path / '2'}` resumes": [changed],
    }
    for number, (text, studies) in enumerate(expected.items()):
        make_folder(tmp_path / str(number), studies)
        assert read(FolderState(tmp_path / str(number)))["text"].endswith(text)


def test_a_damaged_file_is_named_and_the_rest_is_shown(made: tuple[ResultsFolder, list[Fleet]]) -> None:
    folder, fleets = made
    for fleet in fleets[:2]:
        finish(folder, fleet)
    rows = folder.rows_path(fleets[0].id)
    rows.write_bytes(rows.read_bytes()[:-2])
    (folder.path / "studies" / "broken.json").write_text("{")
    state = FolderState(folder.path)
    problems = read(state)["problems"]
    assert any(str(rows) in text and "checksum" in text for text in problems)
    assert any("broken.json is damaged" in text for text in problems)
    assert study_of(state)["finished"] == len(fleets[1].runs)


def test_a_failed_fleet_has_its_last_lines(made: tuple[ResultsFolder, list[Fleet]]) -> None:
    folder, fleets = made
    error = "\n".join(f"line {k}" for k in range(40)) + "\nRuntimeError: <b>out of memory</b>\n"
    folder.begin(fleets[0].id)
    folder.write_failure(fleets[0].id, {"error": error, "attempts": 3, "ended": "today"})
    fleet = fleet_of(FolderState(folder.path), fleets[0])
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
    shown = fleet_of(FolderState(tmp_path), fleet)
    assert shown["done"] == 0.5


def test_long_curves_are_thinned_and_end_with_the_last_number() -> None:
    history = {"epochs": [float(k) for k in range(1000)], "test_accuracy": [k / 1000 for k in range(1000)]}
    found = learning_curves([{"seed": 0}], [history], "test_accuracy")
    assert 30 < len(found["epochs"]) <= MOST_PLACES
    assert (found["epochs"][-1], found["curves"][0]["values"][-1]) == (999.0, 0.999)


def test_verdicts_are_those_of_the_report(tmp_path: Path) -> None:
    studies = [rates_study("a", figures={"mine": {"x": "learning_rate"}}), rates_study("b", rates=2)]
    folder, fleets = make_folder(tmp_path, studies)
    for each in fleets:
        for fleet in each:
            finish(folder, fleet)
    judged = FolderState(tmp_path).figures()[str(tmp_path)]
    report = build_report(read_parts([tmp_path]))
    shown = {figure["id"]: figure for figure in judged["figures"]}
    assert set(shown) == {figure.id for figure in report.figures} == {"mine", "b"}
    for figure in report.figures:
        assert shown[figure.id]["caption"] == figure.caption
        assert shown[figure.id]["runs"] == figure.runs
    assert judged["rows"] == len(report.rows)


def test_figures_are_made_again_only_for_new_rows(
    made: tuple[ResultsFolder, list[Fleet]], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, fleets = made
    built = []
    monkeypatch.setattr("tacit.watch.figures.figures_of", lambda status: built.append(status) or ([], {}))
    state = FolderState(folder.path)
    for step in (lambda: None, lambda: None, lambda: finish(folder, fleets[0]), lambda: None):
        step()
        state.figures()
    assert len(built) == 2


def test_figures_that_need_other_studies_are_named_beside_those_and_not_for_one_study(tmp_path: Path) -> None:
    studies = [rates_study("a", figures={"1a": {}, "mine": {"x": "learning_rate"}}), rates_study("b", rates=2)]
    for number, kept in ((1, studies[:1]), (2, studies)):
        folder, ((fleet, *_), *_) = make_folder(tmp_path / str(number), kept)
        finish(folder, fleet)
        judged = FolderState(folder.path).figures()[str(folder.path)]
        assert "mine" in [figure["id"] for figure in judged["figures"]]
        assert ("1a" in judged["absent"]) is (number == 2)


def test_code_that_a_folder_names_is_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "hostile_figure.py").write_text("raise SystemExit('run')")
    monkeypatch.chdir(tmp_path)
    folder, ((fleet, *_),) = make_folder(
        tmp_path / "runs", [rates_study(figures={"mine": {"figure": "hostile_figure:x"}})]
    )
    finish(folder, fleet)
    judged = FolderState(folder.path).figures()[str(folder.path)]
    assert judged["problem"] == ""
    assert "code of your own" in judged["absent"]["mine"]


def test_a_figure_that_fails_leaves_the_progress(
    made: tuple[ResultsFolder, list[Fleet]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(status: object) -> None:
        raise ZeroDivisionError("by zero")

    monkeypatch.setattr("tacit.watch.figures.figures_of", fail)
    state = FolderState(made[0].path)
    assert "ZeroDivisionError: by zero" in state.figures()[str(made[0].path)]["problem"]
    assert study_of(state)["finished"] == 0


def test_a_folder_without_a_study_is_waited_for(tmp_path: Path) -> None:
    state = FolderState(tmp_path / "runs")
    assert "runs does not exist yet" in state.progress("test_accuracy")["problem"]
    (tmp_path / "runs").mkdir()
    assert "runs holds no study yet" in state.progress("test_accuracy")["problem"]
    assert state.figures() == {}
    make_folder(tmp_path / "runs", [rates_study()])
    assert state.progress("test_accuracy")["problem"] == ""
    assert study_of(state)["name"] == "rates"


def test_a_server_that_is_away_leaves_what_was_read_before(
    made: tuple[ResultsFolder, list[Fleet]], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, _ = made
    state = FolderState(folder.path)
    read(state)

    def away(path: Any) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "scandir", away)
    found = state.progress("test_accuracy")
    assert "cannot be read" in found["problem"]
    assert [study["name"] for study in found["folders"][0]["studies"]] == ["rates"]


def test_several_folders_inside_one(tmp_path: Path) -> None:
    for name in ("one", "two"):
        make_folder(tmp_path / name, [rates_study(name)])
    found = FolderState(tmp_path).progress("test_accuracy")["folders"]
    assert [folder["path"] for folder in found] == [str(tmp_path / "one"), str(tmp_path / "two")]


def test_files_that_did_not_change_are_not_read_again(
    made: tuple[ResultsFolder, list[Fleet]], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, fleets = made
    finish(folder, fleets[0])
    finish(folder, fleets[2])
    folder.rows_path(fleets[2].id).write_bytes(b"damaged")
    train_a_part(folder, fleets[1], 0.5)
    state = FolderState(folder.path)
    read(state)
    opened: list[str] = []
    really = open

    def noted(path: Any, *rest: Any, **more: Any) -> Any:
        opened.append(str(path))
        return really(path, *rest, **more)

    monkeypatch.setattr("builtins.open", noted)
    read(state)
    assert [path for path in opened if not path.endswith("lock")] == []


def test_time_left_comes_from_what_this_study_has_trained(tmp_path: Path) -> None:
    folder, (fleets,) = make_folder(tmp_path, [rates_study(rates=20)])
    state, costs = FolderState(tmp_path), [fleet.cost for fleet in fleets]
    assert study_of(state)["left"] is None  # nothing was trained yet
    with folder.locked():
        train_a_part(folder, fleets[0], 0.5, cpu_seconds=8.0)
        left = sum(costs) - costs[0] / 2
        assert study_of(state)["left"] == pytest.approx(left * 16 / costs[0], rel=0.06)  # two digits are shown
        finish(folder, fleets[0], seconds=4.0)
        left = sum(costs[1:])
        assert study_of(state)["left"] == pytest.approx(left * 4 / costs[0], rel=0.06)


def test_a_page_can_ask_for_progress_by_metric_and_for_figures(made: tuple[ResultsFolder, list[Fleet]]) -> None:
    found = answers(made[0].path)
    assert list(found) == ["/state?test_accuracy", "/state?train_accuracy", "/state?full_loss", "/figures"]
    assert all(isinstance(json.loads(answer.text()), dict) for answer in found.values())
