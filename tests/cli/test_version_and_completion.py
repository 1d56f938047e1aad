"""`tacit --version` and shell completion answer without torch."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from importlib.metadata import version

import pytest

RUN = "import sys; from tacit.cli import main; sys.argv = ['tacit', *sys.argv[1:]]; main()"


def answer(*arguments: str, **environment: str) -> str:
    """The output of the command in a process of its own, in which importing torch or matplotlib is an error."""
    forbid = "import sys; sys.modules.update(dict.fromkeys(['torch', 'matplotlib', 'ray'], None)); "
    command = [sys.executable, "-c", forbid + RUN, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, **environment})
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_version_names_what_matters() -> None:
    lines = dict(line.split(" ", 1) for line in answer("--version").splitlines())
    assert list(lines) == ["tacit", "python", "torch", "numpy", "scipy", "platform"]
    assert lines["torch"] == version("torch")
    assert lines["python"] == platform.python_version()


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_offers_commands_and_options(shell: str) -> None:
    def offered(words: list[str], unfinished: str) -> str:
        line = " ".join(["tacit", *words, unfinished])
        asked = {"COMP_WORDS": line, "COMP_CWORD": str(len(words) + 1)}
        typed = {"_TYPER_COMPLETE_ARGS": line, "_TYPER_COMPLETE_FISH_ACTION": "get-args"}
        return answer(**asked, **typed, _TACIT_COMPLETE=f"complete_{shell}")

    assert "explore" in offered([], "ex")
    assert "--into" in offered(["explore"], "--i")


def test_the_package_runs_as_a_module() -> None:
    done = subprocess.run([sys.executable, "-m", "tacit", "--version"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("tacit ")
