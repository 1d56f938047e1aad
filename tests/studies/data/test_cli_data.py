"""`tacit data`: what it lists, fetches and checks, and that its help can be typed."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from small_copies import lay, small_fashion

from tacit import cli
from tacit.studies.data import datasets
from tacit.studies.data import files as data_files
from tacit.studies.data.datasets import DATASETS, PUBLISHED

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


@pytest.mark.parametrize("command", ["list", "get"])
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
    hosts = {name: DATASETS[name].urls[0].split("/")[2] for name in PUBLISHED}
    assert hosts == {
        "fashion_mnist": "fashion-mnist.s3-website.eu-central-1.amazonaws.com",
        "cifar10": "www.cs.toronto.edu",
    }
    for name in PUBLISHED:
        assert len(DATASETS[name].urls) > 1
        assert all(url.endswith("/") for url in DATASETS[name].urls)


@pytest.fixture
def small_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder ./data with a Fashion-MNIST of three images."""
    monkeypatch.setitem(datasets.DATASETS, "fashion_mnist", small_fashion(tmp_path / "unpacked"))
    return lay(tmp_path / "data" / "fashion-mnist").parent


def test_get_keeps_a_right_copy_wherever_it_lies(
    small_copy: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Offline, so any request would fail."""
    assert run(monkeypatch, "get", "fashion_mnist") == 0
    assert "data/fashion-mnist is here and as published" in capsys.readouterr().out
    path = small_copy / "fashion-mnist" / "train-labels-idx1-ubyte.gz"
    path.write_bytes(path.read_bytes()[:-1])
    assert run(monkeypatch, "get", "fashion_mnist") == 2
    assert "TACIT_OFFLINE" in capsys.readouterr().err


def test_the_data_beside_the_checkout_is_right(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "get", "--check", "--data-dir", str(data_dir)) == 0
    shown = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in shown] == ["right"] * len(PUBLISHED)


def test_check_names_a_damaged_copy_and_the_right_ones(
    small_copy: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    right = lay(small_copy / "FashionMNIST" / "raw")
    path = small_copy / "fashion-mnist" / "train-labels-idx1-ubyte.gz"
    path.write_bytes(path.read_bytes()[:-9])
    assert run(monkeypatch, "get", "--check", "fashion_mnist") == 2
    shown = capsys.readouterr()
    assert f"right  {right} is fashion_mnist as published" in shown.out
    assert f"WRONG  {path.parent} cannot be read: {path.name} is not a whole IDX file" in shown.out
    assert f"not as published: {path.parent}. Remove" in shown.err


def test_check_names_a_missing_file(
    small_copy: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (small_copy / "fashion-mnist" / "t10k-labels-idx1-ubyte.gz").unlink()
    assert run(monkeypatch, "get", "--check", "--data-dir", str(small_copy)) == 2
    assert "lacks t10k-labels-idx1-ubyte.gz" in capsys.readouterr().out


def test_check_of_an_empty_folder_is_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "get", "--check", "--data-dir", str(tmp_path)) == 2
    assert "tacit data get fashion_mnist cifar10" in capsys.readouterr().err


@pytest.mark.parametrize("check", [[], ["--check"]])
@pytest.mark.parametrize(("name", "remedy"), [("imagenet", "use one of fashion_mnist, cifar10"), ("mnist1d", "made")])
def test_an_unknown_dataset_is_a_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], check: list[str], name: str, remedy: str
) -> None:
    assert run(monkeypatch, "get", name, *check) == 2
    assert remedy in capsys.readouterr().err


def test_fetching_and_checking_need_no_torch() -> None:
    code = "import sys, tacit.cli.data, tacit.studies.data.files; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
