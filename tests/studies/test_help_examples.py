"""Every example in the help of a command can be typed: it parses, and the files it names exist."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import typer

from tacit import cli
from tacit.studies.describe.library import SCALES, datasets, library
from typed_commands import Typed

ROOT = Path(__file__).parents[2]
COMMANDS = ("demo", "run", "check", "status", "export", "reproduce", "report")
TREE = typer.main.get_command(cli.app)


def examples(command: str) -> list[str]:
    help_text = TREE.commands[command].help or ""  # type: ignore[attr-defined]
    return re.findall(r"`(tacit [^`]+)`", help_text[help_text.index("Example") :])


EXAMPLES = [line for command in COMMANDS for line in examples(command)]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_an_example(command: str) -> None:
    assert any(line.startswith(f"tacit {command}") for line in examples(command))


@pytest.mark.parametrize("line", EXAMPLES)
def test_an_example_parses_and_names_what_exists(line: str) -> None:
    _, command, *words = shlex.split(line)
    TREE.commands[command].make_context(command, [*words])  # type: ignore[attr-defined]
    for word in words:
        if word.endswith(".toml"):
            assert (ROOT / word).is_file()
    if command in ("status", "report") and words:  # folders that other commands make
        names = {f"{dataset}-{scale}" for dataset in datasets() for scale in SCALES} | {*library("mnist1d", "quick")}
        assert words[0].removeprefix("runs/") in names


@pytest.mark.parametrize("line", [line for line in EXAMPLES if line.startswith("tacit run") or "--list" in line])
def test_an_example_runs(line: str, monkeypatch: pytest.MonkeyPatch, typed: Typed) -> None:
    words = [*shlex.split(line), *(["--dry-run"] if line.startswith("tacit run") and "--dry-run" not in line else [])]
    monkeypatch.chdir(ROOT)
    ended = typed(*words[1:])
    assert ended.code == 0
    assert "runs" in ended.out
