"""`tacit watch` as a process: its address, its end, and its errors in one sentence."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
import urllib.request
import webbrowser
from pathlib import Path

import pytest

from in_process import wait_for
from made_folders import make_folder, rates_study
from typed_commands import Typed

RUN = "import sys; sys.modules['torch'] = None; from tacit.cli import main; main()"  # importing torch is an error


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_it_serves_until_it_is_stopped(number: int, code: int, tmp_path: Path) -> None:
    make_folder(tmp_path / "runs", [rates_study()])
    command = [sys.executable, "-c", RUN, "watch", str(tmp_path / "runs"), "--port", "0", "--no-open"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        first = process.stdout.readline()
        address = re.match(r"(http://127\.0\.0\.1:\d+/) shows .*; Ctrl-C ends it\.", first)
        assert address, first
        with urllib.request.urlopen(f"{address[1]}state?test_accuracy", timeout=30) as answer:
            assert b'"rates"' in answer.read()
        process.send_signal(number)
        _, errors = process.communicate(timeout=30)
    assert process.returncode == code
    assert errors == "stopped.\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["file"], "'file' is a file; expected a folder"),
        (["runs", "--port", "PORT"], "port PORT is in use; choose another with --port"),
    ],
)
def test_what_cannot_be_watched_is_one_sentence(
    arguments: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, typed: Typed
) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "runs").mkdir()
    monkeypatch.chdir(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        ended = typed("watch", *(port if each == "PORT" else each for each in arguments))
    assert ended.refusal().startswith(f"tacit: {message.replace('PORT', port)}")


@pytest.fixture
def stopped_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from tacit.watch.server import WatchServer

    def stop(server: WatchServer, poll_interval: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(WatchServer, "serve_forever", stop)


def test_a_folder_that_does_not_exist_yet_is_waited_for(tmp_path: Path, stopped_at_once: None, typed: Typed) -> None:
    ended = typed("watch", tmp_path / "runs", "--port", 0, "--no-open")
    assert f"shows {tmp_path / 'runs'}, which does not exist yet; Ctrl-C ends it." in ended.out


def test_open_opens_the_address(
    tmp_path: Path, stopped_at_once: None, monkeypatch: pytest.MonkeyPatch, typed: Typed
) -> None:
    opened: list[str] = []
    monkeypatch.setattr(webbrowser, "open", lambda address: bool(opened.append(address)))
    for option in ("--no-open", "--open"):
        assert typed("watch", tmp_path, "--port", 0, option).code == 130
    wait_for(lambda: opened, seconds=10)  # by a thread
    assert len(opened) == 1
