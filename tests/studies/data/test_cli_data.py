"""`tacit data`: what it lists, fetches and checks, and that its help can be typed."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from small_copies import lay, no_copies, small_fashion

from tacit import cli
from tacit.studies.data import datasets
from tacit.studies.data.datasets import DATASETS, PUBLISHED
from typed_commands import Typed

GROUP = typer.main.get_command(cli.app).commands["data"]  # type: ignore[attr-defined]


@pytest.fixture(autouse=True)
def nowhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    no_copies(monkeypatch, tmp_path)
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("command", ["list", "get"])
def test_every_example_in_the_help_parses(command: str) -> None:
    text = GROUP.commands[command].help
    lines = re.findall(r"`(tacit data [^`]+)`", text[text.index("Example") :])
    assert lines
    for line in lines:
        _, _, name, *words = shlex.split(line)
        assert name == command
        GROUP.commands[name].make_context(name, words)


def test_the_list_names_every_dataset_and_what_to_do(typed: Typed) -> None:
    ended = typed("data", "list")
    assert ended.code == 0
    shown = ended.out
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


def test_get_keeps_a_right_copy_wherever_it_lies(small_copy: Path, typed: Typed) -> None:
    """Offline, so any request would fail."""
    ended = typed("data", "get", "fashion_mnist")
    assert ended.code == 0
    assert "data/fashion-mnist is here and as published" in ended.out
    path = small_copy / "fashion-mnist" / "train-labels-idx1-ubyte.gz"
    path.write_bytes(path.read_bytes()[:-1])
    ended = typed("data", "get", "fashion_mnist")
    assert ended.code == 2
    assert "TACIT_OFFLINE" in ended.err


def test_the_data_beside_the_checkout_is_right(data_dir: Path, typed: Typed) -> None:
    ended = typed("data", "get", "--check", "--data-dir", data_dir)
    assert ended.code == 0
    assert [line.split()[0] for line in ended.out.splitlines()] == ["right"] * len(PUBLISHED)


def test_check_names_a_damaged_copy_and_the_right_ones(small_copy: Path, typed: Typed) -> None:
    right = lay(small_copy / "FashionMNIST" / "raw")
    path = small_copy / "fashion-mnist" / "train-labels-idx1-ubyte.gz"
    path.write_bytes(path.read_bytes()[:-9])
    shown = typed("data", "get", "--check", "fashion_mnist")
    assert shown.code == 2
    assert f"right  {right} is fashion_mnist as published" in shown.out
    assert f"WRONG  {path.parent} cannot be read: {path.name} is not a whole IDX file" in shown.out
    assert f"not as published: {path.parent}. Remove" in shown.err


def test_check_names_a_missing_file(small_copy: Path, typed: Typed) -> None:
    (small_copy / "fashion-mnist" / "t10k-labels-idx1-ubyte.gz").unlink()
    ended = typed("data", "get", "--check", "--data-dir", small_copy)
    assert ended.code == 2
    assert "lacks t10k-labels-idx1-ubyte.gz" in ended.out


def test_check_of_an_empty_folder_is_a_sentence(tmp_path: Path, typed: Typed) -> None:
    assert "tacit data get fashion_mnist cifar10" in typed("data", "get", "--check", "--data-dir", tmp_path).refusal()


@pytest.mark.parametrize("check", [[], ["--check"]])
@pytest.mark.parametrize(("name", "remedy"), [("imagenet", "use one of fashion_mnist, cifar10"), ("mnist1d", "made")])
def test_an_unknown_dataset_is_a_sentence(check: list[str], name: str, remedy: str, typed: Typed) -> None:
    assert remedy in typed("data", "get", name, *check).refusal()


def test_fetching_and_checking_need_no_torch() -> None:
    code = "import sys, tacit.cli.data, tacit.studies.data.files; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
