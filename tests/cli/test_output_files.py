"""A file that cannot be written, or settings that cannot work, are one sentence and exit code 2, never a traceback."""

from __future__ import annotations

from pathlib import Path

import pytest

from made_folders import finish, make_folder, rates_study
from typed_commands import Typed

STUDY = """
name = "tiny"
[fixed]
train_size = 64
batch_size = 16
width = 4
depth = 1
epochs = 1
evaluations = 1
[grid]
learning_rate = [0.1]
seed = [0]
"""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with a file where a folder is expected, folders where files are expected, a study and its rows."""
    (tmp_path / "file").write_text("not a folder")
    (tmp_path / "folder.json").mkdir()
    (tmp_path / "folder.png").mkdir()
    (tmp_path / "folder.html").mkdir()
    (tmp_path / "study.toml").write_text(STUDY)
    (tmp_path / "posed.py").write_text("def make():\n    raise AssertionError('measured before the file was tried')\n")
    folder, ((fleet, *_),) = make_folder(tmp_path / "runs", [rates_study(rates=2)])
    finish(folder, fleet)
    return tmp_path


COMMANDS = {
    "measure into a folder": ("measure", "--problem", "posed:make", "--json", "folder.json"),
    "measure below a file": ("measure", "--problem", "posed:make", "--json", "file/a.json"),
    "measure where no folder is": ("measure", "--problem", "posed:make", "--json", "nowhere/a.json"),
    "advise into a folder": (
        *("advise", "--problem", "posed:make", "--learning-rate", "0.1", "--batch-size", "8"),
        *("--new-batch-size", "16", "--json", "folder.json"),
    ),
    "bench into a folder": ("bench", "--quick", "--json", "folder.json"),
    "bench below a file": ("bench", "--quick", "--json", "file/a.json"),
    "verify into a folder": ("verify", "--problem", "quadratic", "--json", "folder.json"),
    "verify below a file": ("verify", "--problem", "quadratic", "--json", "file/a.json"),
    "picture into a folder": ("verify", "--picture", "folder.png"),
    "picture below a file": ("verify", "--picture", "file/a.png"),
    "a study into a file": ("run", "study.toml", "--into", "file"),
    "a study into its own file": ("run", "study.toml", "--into", "study.toml"),
    "a study below a file": ("run", "study.toml", "--into", "file/runs"),
    "a plan into a file": ("run", "study.toml", "--into", "study.toml", "--dry-run"),
    "figures into a file": ("reproduce", "--figure", "1b", "--into", "study.toml"),
    "figures planned into a file": ("reproduce", "--dry-run", "--into", "study.toml"),
    "a report of a file": ("report", "study.toml"),
    "rows from a file": ("explore", "--rows", "study.toml"),
    "a study of wide models": ("run", "study.toml", "width=100000", "depth=4", "--into", "wide"),
    "a report into a folder": ("report", "runs", "--out", "folder.html"),
    "a report below a file": ("report", "runs", "--out", "file/a.html"),
    "a report that exports into a file": ("report", "runs", "--export", "file"),
    "a table into a folder": ("export", "runs", "--csv", "folder.json"),
    "a table below a file": ("export", "runs", "--csv", "file/a.csv"),
    "a page where nothing can be written": ("explore", "--into", "/proc/a.html"),
    "numbers where nothing can be written": ("verify", "--problem", "quadratic", "--json", "/proc/a.json"),
    "a study copied below a file": ("studies", "copy", "mnist1d/quick/rates", "--into", "file"),
    "a file packed": ("pack", "study.toml"),
    "the status of a file": ("status", "study.toml"),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_what_cannot_be_written_is_one_sentence(
    name: str, place: Path, monkeypatch: pytest.MonkeyPatch, typed: Typed
) -> None:
    if "/proc/" in " ".join(COMMANDS[name]) and not Path("/proc/self").exists():
        pytest.skip("no /proc here: a folder that not even an administrator can write to")
    monkeypatch.chdir(place)
    assert typed(*COMMANDS[name]).refusal()
    assert (place / "study.toml").read_text() == STUDY
    assert (place / "file").read_text() == "not a folder"
    assert not (place / "runs" / "report.html").exists(), "a part was written before the command was refused"
