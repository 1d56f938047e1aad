"""`tacit data`: what it lists and fetches, and that its help can be typed."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import typer
from archives import content, packed, published

from tacit import cli
from tacit.studies.data import files as data_files
from tacit.studies.data import published as data_sources
from tacit.studies.data.facts import DATASETS
from tacit.studies.data.published import PUBLISHED_DATASETS

GROUP = typer.main.get_command(cli.app).commands["data"]  # type: ignore[attr-defined]


@pytest.fixture(autouse=True)
def nowhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TACIT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("TACIT_OFFLINE", "1")
    monkeypatch.delenv("TACIT_DATA", raising=False)
    monkeypatch.setattr(data_files, "DEBIAN", tmp_path / "debian")
    monkeypatch.setattr(data_files, "CHECKOUT", tmp_path / "installed")
    monkeypatch.chdir(tmp_path)


def run(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    monkeypatch.setattr(sys, "argv", ["tacit", "data", *words])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    return int(ended.value.code or 0)


@pytest.mark.parametrize("command", ["list", "get", "verify"])
def test_every_example_in_the_help_parses(command: str) -> None:
    text = GROUP.commands[command].help
    lines = re.findall(r"`(tacit data [^`]+)`", text[text.index("Example") :])
    assert lines
    for line in lines:
        _, _, name, *words = shlex.split(line)
        assert name == command
        GROUP.commands[name].make_context(name, words)


def test_the_list_names_every_dataset_and_what_to_do(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "list") == 0
    shown = capsys.readouterr().out
    for name in DATASETS:
        assert f"{name}: " in shown
    assert "`tacit data get cifar10` fetches 170 MB\n" in shown
    assert "`tacit data get fashion_mnist` fetches 31 MB\n" in shown


def test_the_addresses_are_those_of_the_authors_first() -> None:
    hosts = {
        name: [file.addresses[0].split("/")[2] for file in source.files] for name, source in PUBLISHED_DATASETS.items()
    }
    assert set(hosts["fashion_mnist"]) == {"fashion-mnist.s3-website.eu-central-1.amazonaws.com"}
    assert hosts["cifar10"] == ["www.cs.toronto.edu"]
    for source in PUBLISHED_DATASETS.values():
        for file in source.files:
            assert len(file.addresses) > 1
            assert all(address.endswith(f"/{file.name}") for address in file.addresses)


def test_get_keeps_a_right_copy_wherever_it_lies(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Offline, so any request would fail."""
    raw = packed(b"labels")
    file = replace(published(raw, (content("labels", b"labels"),)), name="cifar-10-binary.tar.gz")
    monkeypatch.setitem(
        data_sources.PUBLISHED_DATASETS, "cifar10", replace(PUBLISHED_DATASETS["cifar10"], files=(file,))
    )
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "cifar-10-binary.tar.gz").write_bytes(raw)
    assert run(monkeypatch, "get", "cifar10") == 0
    assert "data/cifar-10-binary.tar.gz is here and as published" in capsys.readouterr().out
    (tmp_path / "data" / "cifar-10-binary.tar.gz").write_bytes(raw[:-1])
    assert run(monkeypatch, "get", "cifar10") == 2
    assert "TACIT_OFFLINE" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["get", "verify"])
@pytest.mark.parametrize(("name", "remedy"), [("imagenet", "use one of fashion_mnist, cifar10"), ("mnist1d", "made")])
def test_an_unknown_dataset_is_a_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: str, name: str, remedy: str
) -> None:
    assert run(monkeypatch, command, name) == 2
    assert remedy in capsys.readouterr().err


def test_fetching_and_checking_need_no_torch() -> None:
    code = "import sys, tacit.cli.data, tacit.studies.data.download; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
