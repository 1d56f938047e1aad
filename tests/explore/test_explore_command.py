"""`tacit explore` writes its pages, or says in one sentence why not."""

from __future__ import annotations

import webbrowser
from pathlib import Path

import pytest

from tacit.explore import explore_page
from typed_commands import Typed


def test_into_writes_the_page(tmp_path: Path, typed: Typed) -> None:
    assert typed("explore", "--into", tmp_path / "sgd.html").code == 0
    assert (tmp_path / "sgd.html").read_text() == explore_page()


def test_without_into_it_opens_a_browser(monkeypatch: pytest.MonkeyPatch, typed: Typed) -> None:
    opened: list[str] = []
    monkeypatch.setattr(webbrowser, "open", lambda address: bool(opened.append(address)) or True)
    ended = typed("explore")
    assert ended.code == 0
    assert len(opened) == 1
    assert opened[0].startswith("file://")
    target = Path(ended.out.removeprefix("opened ").strip())
    assert target.read_text() == explore_page()


def test_the_collapse_of_stored_rows(tmp_path: Path, typed: Typed) -> None:
    stored = Path(__file__).parents[2] / "docs" / "results" / "fashion-mnist-small"
    if not list(stored.glob("studies/*.json")):
        pytest.skip("docs/results/fashion-mnist-small holds no study")
    assert typed("explore", "--rows", stored, "--into", tmp_path / "collapse.html").code == 0
    assert "fashion_mnist" in (tmp_path / "collapse.html").read_text()


@pytest.mark.parametrize("target", ["page.toml", "page", "file/page.html"])
def test_a_place_that_takes_no_page_is_one_sentence(target: str, tmp_path: Path, typed: Typed) -> None:
    (tmp_path / "file").write_text("not a folder")
    assert typed("explore", "--into", tmp_path / target).refusal()
