"""The worked example of docs/studies.md does what the page says: own model, own data, run, resume, report, table."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tacit.studies import read_rows

PAGE = Path(__file__).parents[2] / "docs" / "studies.md"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, text in re.findall(r"```\w+ title=(\S+)\n(.*?)```", PAGE.read_text(), flags=re.DOTALL):
        (tmp_path / name).write_text(text)
    return tmp_path


def commands() -> list[list[str]]:
    block = re.search(r"```console\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
    assert block is not None
    return [line.removeprefix("$ tacit ").split() for line in block[1].splitlines()]


def tacit(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    code = "import sys; sys.argv[0] = 'tacit'; from tacit.cli import main; main()"
    return subprocess.run([sys.executable, "-c", code, *words], cwd=folder, capture_output=True, text=True, check=False)


def test_every_command_of_the_page_works_in_turn(folder: Path) -> None:
    printed = ""
    for words in commands():
        done = tacit(folder, *words)
        assert done.returncode == 0, f"tacit {' '.join(words)}: {done.stderr}"
        printed += done.stdout
    assert "imports stripes:load from" in printed
    assert len(read_rows(folder / "runs" / "stripes")) == 6
    assert (folder / "stripes.csv").read_text().count("\n") == 7
    assert "noisy stripes" in (folder / "runs" / "stripes" / "report.html").read_text()


def test_a_killed_study_of_an_own_model_ends_with_the_rows_of_one_that_was_not_killed(folder: Path) -> None:
    tacit(folder, "run", "stripes.toml", "epochs=12", "--into", "whole", "--workers", "1")
    code = "from tacit.cli import main; main()"
    words = ["run", "stripes.toml", "epochs=12", "--into", "killed", "--workers", "1"]
    running = subprocess.Popen([sys.executable, "-c", code, *words], cwd=folder, stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and not list((folder / "killed").glob("fleets/*/rows.jsonl")):
        assert running.poll() is None, "the study ended before it could be killed"
        time.sleep(0.02)
    os.kill(running.pid, signal.SIGKILL)
    running.wait()
    done = tacit(folder, *words)
    assert done.returncode == 0, done.stderr
    assert read_rows(folder / "killed") == read_rows(folder / "whole")
