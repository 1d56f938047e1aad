"""Finished work is keyed by run: more seeds, another packing or a second study train only what is new."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from in_process import InProcess, Listener, rows_on_disk, study
from tacit._util.errors import TacitError
from tacit.studies import runner
from tacit.studies.data.facts import Data
from tacit.studies.describe.study import Study, load_study, parse_study
from tacit.studies.execute.executor import FleetTask, MessageHandler
from tacit.studies.plan import make_plan
from tacit.studies.store.folder import ResultsFolder, read_rows
from tacit.studies.store.status import folder_status
from tacit.studies.train import packing
from tacit.studies.train.packing import pack
from tacit.studies.train.training import Training


class Counting(InProcess):
    """Remembers which runs were trained."""

    def __init__(self, data: Data) -> None:
        super().__init__(data)
        self.trained: list[str] = []

    def run(self, tasks: Sequence[FleetTask], watch: MessageHandler) -> None:
        self.trained += [run.hash for task in tasks for run in task.fleet.runs]
        super().run(tasks, watch)


def with_seeds(seeds: str) -> Study:
    return load_study(study(epochs=2), overrides=[f"seeds={seeds}"])


def lines(folder: Path) -> dict[str, bytes]:
    """The bytes of every row in a folder, by its run."""
    found: dict[str, bytes] = {}
    for content in rows_on_disk(folder).values():
        for line in content.splitlines():
            run = json.loads(line)["run"]
            assert run not in found, "a run was trained twice"
            found[run] = line
    return found


def test_more_seeds_train_only_the_new_ones(tmp_path: Path, data: Data) -> None:
    few, many = with_seeds("0:3"), with_seeds("0:8")
    runner.run(few, tmp_path, executor=InProcess(data))
    before, executor = lines(tmp_path), Counting(data)
    plan = make_plan(many, tmp_path)
    assert sum(len(fleet.runs) for fleet in plan.fleets) == len(many.runs) - len(few.runs)
    rows = runner.run(many, tmp_path, executor=executor)
    assert [row["run"] for row in rows] == [run.hash for run in many.runs]
    assert set(executor.trained) == {run.hash for run in many.runs} - {run.hash for run in few.runs}
    assert len(executor.trained) == len(set(executor.trained))
    assert before.items() <= lines(tmp_path).items()  # the same bytes


def test_fewer_seeds_are_a_narrower_view_and_train_nothing(tmp_path: Path, data: Data) -> None:
    runner.run(with_seeds("0:3"), tmp_path, executor=InProcess(data))
    executor = Counting(data)
    rows = runner.run(with_seeds("0:2"), tmp_path, executor=executor)
    assert executor.trained == []
    assert {row["spec"]["seed"] for row in rows} == {0, 1}


def test_another_packing_trains_nothing_again(tmp_path: Path, data: Data, monkeypatch: pytest.MonkeyPatch) -> None:
    small = with_seeds("0:6")
    runner.run(small, tmp_path, executor=InProcess(data))
    before = {fleet.id for fleet in pack(small.runs)}
    monkeypatch.setattr(packing, "CAPS", range(3, 2, -1))
    assert not before & {fleet.id for fleet in pack(small.runs)}  # the constant does change every fleet
    executor, folder = Counting(data), lines(tmp_path)
    runner.run(small, tmp_path, executor=executor)
    assert executor.trained == []
    assert lines(tmp_path) == folder


def test_a_fleet_goes_on_from_its_checkpoint_though_the_packing_has_changed(
    tmp_path: Path, data: Data, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = with_seeds("0:6")
    runner.run(small, tmp_path / "straight", executor=InProcess(data))

    class Dies(InProcess):
        def run(self, tasks: Sequence[FleetTask], watch: MessageHandler) -> None:
            super().run(tasks[:1], watch)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        runner.run(small, tmp_path / "stopped", executor=Dies(data))
    folder = ResultsFolder(tmp_path / "stopped")
    (left,) = folder.unfinished(small)
    training = Training(left, data)
    training.advance(until=4)
    with folder.locked():
        folder.write_checkpoint(left.id, training.checkpoint())
    monkeypatch.setattr(packing, "CAPS", range(3, 2, -1))
    heard = Listener()
    runner.run(small, folder.path, executor=InProcess(data), watcher=heard)
    assert heard.texts == []
    assert rows_on_disk(folder.path) == rows_on_disk(tmp_path / "straight")


def test_a_second_study_trains_only_what_it_does_not_share(tmp_path: Path, data: Data) -> None:
    first = with_seeds("0:2")
    second = parse_study({**with_seeds("1:4").model_dump(), "name": "second"})
    runner.run(first, tmp_path, executor=InProcess(data))
    executor, before = Counting(data), lines(tmp_path)
    rows = runner.run(second, tmp_path, executor=executor)
    shared = {run.hash for run in first.runs} & {run.hash for run in second.runs}
    assert shared
    assert set(executor.trained) == {run.hash for run in second.runs} - shared
    assert [row["run"] for row in rows] == [run.hash for run in second.runs]
    assert all(lines(tmp_path)[run] == before[run] for run in shared)
    assert [found.study.name for found in folder_status(tmp_path)[0].studies] == ["second", "small"]
    assert len(read_rows(tmp_path)) == len(first.runs) + len(second.runs) - len(shared)


def test_runs_of_a_half_finished_study_that_another_study_trains_leave_its_fleets(tmp_path: Path, data: Data) -> None:
    """The second study trains a part of a fleet that the first has recorded: the rest is packed anew."""
    first, second = with_seeds("0:4"), parse_study({**with_seeds("2:3").model_dump(), "name": "second"})
    folder = ResultsFolder(tmp_path)
    with folder.locked():
        recorded = folder.open_for(first)
        folder.begin(recorded[0].id)
    runner.run(second, tmp_path, executor=InProcess(data))
    executor = Counting(data)
    runner.run(first, tmp_path, executor=executor)
    assert set(executor.trained) == {run.hash for run in first.runs} - {run.hash for run in second.runs}
    assert not folder.fleet_folder(recorded[0].id).exists()  # it was begun, and is no fleet any more
    lines(tmp_path)  # no run twice


def test_two_studies_at_the_same_time_in_one_folder_are_refused_with_a_sentence(tmp_path: Path, data: Data) -> None:
    other = parse_study({**with_seeds("1:4").model_dump(), "name": "second"})
    with (
        ResultsFolder(tmp_path).locked(),
        pytest.raises(TacitError, match=r"in use by another process; .* or choose another folder"),
    ):
        runner.run(other, tmp_path, executor=InProcess(data))
