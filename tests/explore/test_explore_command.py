"""`tacit explore` writes its pages, or says in one sentence why not."""

from __future__ import annotations

import sys
import webbrowser
from pathlib import Path

import pytest

from tacit.cli import main
from tacit.explore import explore_page


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["tacit", "explore", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0)


def test_into_writes_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(monkeypatch, "--into", str(tmp_path / "sgd.html")) == 0
    assert (tmp_path / "sgd.html").read_text() == explore_page()


def test_without_into_it_opens_a_browser(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    opened: list[str] = []
    monkeypatch.setattr(webbrowser, "open", lambda address: bool(opened.append(address)) or True)
    assert run(monkeypatch) == 0
    assert len(opened) == 1
    assert opened[0].startswith("file://")
    target = Path(capsys.readouterr().out.removeprefix("opened ").strip())
    assert target.read_text() == explore_page()


def test_the_collapse_of_stored_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stored = Path(__file__).parents[2] / "docs" / "results" / "fashion-mnist-small"
    if not list(stored.glob("studies/*.json")):
        pytest.skip("docs/results/fashion-mnist-small holds no study")
    assert run(monkeypatch, "--rows", str(stored), "--into", str(tmp_path / "collapse.html")) == 0
    assert "fashion_mnist" in (tmp_path / "collapse.html").read_text()


@pytest.mark.parametrize("target", ["page.toml", "page", "file/page.html"])
def test_a_place_that_takes_no_page_is_one_sentence(
    target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("not a folder")
    assert run(monkeypatch, "--into", str(tmp_path / target)) == 2
    message = capsys.readouterr().err
    assert message.startswith("tacit: ")
    assert message.count("\n") == 1
