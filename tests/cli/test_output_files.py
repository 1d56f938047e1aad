"""A file that cannot be written, or settings that cannot work, are one sentence and exit code 2, never a traceback."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tacit.cli import main

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


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["tacit", *arguments])
    try:
        main()
    except SystemExit as ended:
        return int(ended.code or 0)
    return 0


def is_one_sentence(message: str) -> bool:
    return message.startswith("tacit: ") and message.count("\n") == 1 and "Traceback" not in message


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with a file where a folder is expected, a folder where a file is expected, and a small study."""
    (tmp_path / "file").write_text("not a folder")
    (tmp_path / "folder.json").mkdir()
    (tmp_path / "folder.png").mkdir()
    (tmp_path / "study.toml").write_text(STUDY)
    return tmp_path


COMMANDS = {
    "measure into a folder": ("measure", "--width", "4", "--depth", "1", "--train-size", "32", "--json", "folder.json"),
    "measure below a file": ("measure", "--width", "4", "--depth", "1", "--train-size", "32", "--json", "file/a.json"),
    "measure where no folder is": ("measure", "--train-size", "32", "--json", "nowhere/a.json"),
    "advise into a folder": (
        *("advise", "--learning-rate", "0.1", "--batch-size", "8", "--new-batch-size", "16", "--width", "4"),
        *("--train-size", "32", "--json", "folder.json"),
    ),
    "bench into a folder": ("bench", "--quick", "--json", "folder.json"),
    "bench below a file": ("bench", "--quick", "--json", "file/a.json"),
    "verify into a folder": ("verify", "--problem", "quadratic", "--json", "folder.json"),
    "verify below a file": ("verify", "--problem", "quadratic", "--json", "file/a.json"),
    "picture into a folder": ("verify", "--picture", "folder.png"),
    "picture below a file": ("verify", "--picture", "file/a.png"),
    "a model larger than the machine": ("measure", "--width", "1000000", "--train-size", "32"),
    "a depth larger than the machine": ("measure", "--depth", "100000000", "--train-size", "32"),
    "a study into a file": ("run", "study.toml", "--into", "file"),
    "a study into its own file": ("run", "study.toml", "--into", "study.toml"),
    "a study below a file": ("run", "study.toml", "--into", "file/runs"),
    "a plan into a file": ("run", "study.toml", "--into", "study.toml", "--dry-run"),
    "figures into a file": ("reproduce", "--figure", "1b", "--into", "study.toml"),
    "figures planned into a file": ("reproduce", "--dry-run", "--into", "study.toml"),
    "a report of a file": ("report", "study.toml"),
    "rows from a file": ("explore", "--rows", "study.toml"),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_what_cannot_be_written_is_one_sentence(
    name: str, place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(place)
    code = run(monkeypatch, *COMMANDS[name])
    message = capsys.readouterr().err
    assert is_one_sentence(message), message
    assert code == 2
    assert (place / "study.toml").read_text() == STUDY
