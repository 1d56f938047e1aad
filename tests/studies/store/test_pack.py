"""Packed rows: the same rows in one file per study, in bytes that do not depend on when they were packed."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from in_process import InProcess, Listener, study
from tacit._util.errors import TacitError
from tacit.report import read_parts
from tacit.studies import runner
from tacit.studies.data.facts import Data
from tacit.studies.describe.study import load_study, parse_study
from tacit.studies.store.folder import ResultsFolder, read_rows
from tacit.studies.store.pack import pack_results
from tacit.studies.store.status import folder_status

FIRST = load_study(study(epochs=2), overrides=["seeds=0:2"])
SECOND = parse_study({**load_study(FIRST, overrides=["seeds=1:3"]).model_dump(), "name": "second"})


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, data: Data) -> Path:
    folder = tmp_path_factory.mktemp("made")
    runner.run(FIRST, folder, executor=InProcess(data))
    runner.run(SECOND, folder, executor=InProcess(data))
    return folder


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "results"))


def files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file() and path.name != "lock")


def test_packing_leaves_two_files_per_study_and_changes_no_row(folder: Path) -> None:
    before, metas = read_rows(folder), [part.metas for part in read_parts([folder])]
    done = pack_results(folder)
    assert done.rows == len(before)
    expected = ["packed/second.jsonl.gz", "packed/small.jsonl.gz", "studies/second.json", "studies/small.json"]
    assert files(folder) == expected
    assert read_rows(folder) == before
    assert [part.metas for part in read_parts([folder])] == metas
    assert all(found.done == 1 for found in folder_status(folder)[0].studies)


def test_packing_twice_changes_no_byte(folder: Path) -> None:
    pack_results(folder)
    before = {name: (folder / name).read_bytes() for name in files(folder)}
    pack_results(folder)
    assert {name: (folder / name).read_bytes() for name in files(folder)} == before


def test_a_packed_folder_is_gone_on_with_and_packed_again(folder: Path, data: Data) -> None:
    pack_results(folder)
    wider = load_study(FIRST, overrides=["seeds=0:4"])
    rows = runner.run(wider, folder, executor=InProcess(data))
    assert len(rows) == len(wider.runs)
    before = read_rows(folder)
    assert any(name.startswith("fleets/") for name in files(folder))
    pack_results(folder)
    assert not any(name.startswith("fleets/") for name in files(folder))
    assert sorted(read_rows(folder), key=str) == sorted(before, key=str)


def test_rows_of_no_study_are_kept(folder: Path) -> None:
    pack_results(folder)
    every = len(ResultsFolder(folder).contents().rows)
    narrow = load_study(FIRST, overrides=["seeds=0"])
    results = ResultsFolder(folder)
    with results.locked():
        results.open_for(narrow)
    pack_results(folder)
    assert len(ResultsFolder(folder).contents().rows) == every


@pytest.mark.parametrize("damage", ["cut", "changed", "emptied"])
def test_a_damaged_packed_file_is_refused_and_its_runs_are_trained_again(damage: str, folder: Path, data: Data) -> None:
    before = read_rows(folder)
    pack_results(folder)
    path = folder / "packed" / "small.jsonl.gz"
    content = path.read_bytes()
    middle = len(content) // 2
    changed = content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]
    path.write_bytes({"cut": content[:middle], "changed": changed, "emptied": b""}[damage])
    with pytest.raises(TacitError, match=r"small\.jsonl\.gz .*trains those runs again"):
        read_rows(folder)
    with pytest.raises(TacitError, match="before you pack"):
        pack_results(folder)
    heard = Listener()
    runner.run(FIRST, folder, executor=InProcess(data), watcher=heard)
    assert [text.endswith("the file is kept as small.jsonl.gz.damaged.") for text in heard.texts] == [True]
    without_fleet = [{key: value for key, value in row.items() if key != "fleet"} for row in before]
    again = [{key: value for key, value in row.items() if key != "fleet"} for row in read_rows(folder)]
    assert again == without_fleet


class Death(BaseException):
    """Nothing may catch it, as nothing catches SIGKILL."""


def test_dying_anywhere_while_packing_loses_no_row(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, real = read_rows(folder), {name: getattr(os, name) for name in ("replace", "unlink", "rmdir")}
    for number in range(100):
        left, copy = number, tmp_path / str(number)
        shutil.copytree(folder, copy)

        def dying(name: str) -> Any:
            def act(*words: Any, **more: Any) -> Any:
                nonlocal left
                left -= 1
                if left < 0:
                    raise Death
                return real[name](*words, **more)

            return act

        with monkeypatch.context() as patched:
            for name in real:
                patched.setattr(os, name, dying(name))
            try:
                pack_results(copy)
            except Death:
                pass
            else:
                break
        assert read_rows(copy) == before
        pack_results(copy)
        assert read_rows(copy) == before
    assert 8 < number < 99
