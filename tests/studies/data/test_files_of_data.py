"""Copies of datasets: found in any layout, the named folder first; the damaged not used, the missing explained."""

from __future__ import annotations

import contextlib
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from small_copies import lay, no_copies, small_fashion

from tacit import InputError
from tacit.studies.data import datasets
from tacit.studies.data import files as data_files
from tacit.studies.data.cache import write_cached
from tacit.studies.data.datasets import DATASETS
from tacit.studies.data.facts import Dataset
from tacit.studies.data.files import DamagedCopyError, locate, place, read_copy
from tacit.studies.data.load import load
from typed_commands import Typed

CHECKOUT = data_files.CHECKOUT  # before a test replaces it


@pytest.fixture(autouse=True)
def nowhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    no_copies(monkeypatch, tmp_path)
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Dataset:
    """Fashion-MNIST with two training images and one test image."""
    dataset = small_fashion(tmp_path / "unpacked")
    monkeypatch.setitem(datasets.DATASETS, "fashion_mnist", dataset)
    return dataset


def folder_found(data_dir: Path | None = None) -> Path:
    found = locate(DATASETS["fashion_mnist"], data_dir)
    assert found is not None
    return place(found)


@pytest.mark.parametrize("ending", [".gz", ""])
@pytest.mark.parametrize("place", ["fashion-mnist", "FashionMNIST/raw", "."])
def test_a_copy_in_any_layout_is_read(
    tiny: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, ending: str
) -> None:
    lay(tmp_path / "mine" / "x" / place, ending=ending)
    monkeypatch.setenv("TACIT_DATA", str(tmp_path / "mine" / "x"))
    data = load("fashion_mnist")
    assert data.train_inputs.shape == (2, 1, 28, 28)
    assert data.test_targets.tolist() == [5]
    assert data.train_inputs.flags.writeable


def test_torchvisions_data_in_this_folder_and_debians_are_found(tiny: Dataset, tmp_path: Path) -> None:
    debian = lay(tmp_path / "debian" / "fashion-mnist", level=1)
    assert folder_found() == debian
    lay(Path("data") / "FashionMNIST" / "raw")
    assert folder_found() == Path("data").absolute() / "FashionMNIST" / "raw"


def test_the_named_folder_comes_first_and_a_whole_copy_before_a_part(
    tiny: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    named, other = lay(tmp_path / "named" / "fashion-mnist"), lay(tmp_path / "debian" / "fashion-mnist")
    monkeypatch.setenv("TACIT_DATA", str(tmp_path / "named"))
    assert folder_found() == named
    assert folder_found(tmp_path / "debian") == other
    (named / "t10k-labels-idx1-ubyte.gz").unlink()
    assert folder_found() == other


@pytest.mark.parametrize("name", ["fashion_mnist", "cifar10"])
def test_without_data_the_command_that_gets_it_is_named(name: str) -> None:
    with pytest.raises(InputError, match=f"`tacit data get {name}`"):
        load(name)


def test_a_study_without_data_says_how_to_get_it(tmp_path: Path, typed: Typed) -> None:
    study = tmp_path / "study.toml"
    study.write_text(
        'schema = 1\nname = "s"\n[fixed]\ndataset = "cifar10"\nlearning_rate = 0.1\nupdates = 2\nevaluations = 1\n'
        "train_size = 64\nbatch_size = 32\nwidth = 4\ndepth = 1\n"
    )
    ended = typed("run", study, "--into", tmp_path / "out", "--workers", 1)
    assert ended.code == 2
    assert "`tacit data get cifar10`" in ended.err
    assert "Traceback" not in ended.err


def test_an_incomplete_copy_and_the_pickled_version_are_mentioned(
    tiny: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TACIT_DATA", str(tmp_path / "a"))
    (lay(tmp_path / "a" / "fashion-mnist") / "t10k-labels-idx1-ubyte.gz").unlink()
    with pytest.raises(InputError, match=r"a/fashion-mnist lacks t10k-labels-idx1-ubyte\.gz.*pickled versions"):
        load("fashion_mnist")


def test_a_damaged_copy_is_named_and_not_used_and_the_next_right_one_is(
    tiny: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("TACIT_DATA", str(tmp_path / "named"))
    path = lay(tmp_path / "named" / "fashion-mnist") / "train-labels-idx1-ubyte.gz"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(InputError, match=r"train-labels-idx1-ubyte\.gz is not a whole.*`tacit data get fashion_mnist`"):
        load("fashion_mnist")
    lay(tmp_path / "debian" / "fashion-mnist")
    assert len(load("fashion_mnist").train_inputs) == 2
    assert f"{path.name} is not a whole IDX file" in caplog.text


def test_a_changed_or_cut_file_is_refused_or_gives_the_published_arrays(tiny: Dataset, tmp_path: Path) -> None:
    """Every byte of every file: what is read has the published hash, or is not read."""
    folder = lay(tmp_path / "copy")
    copy = tuple(folder / name for name in tiny.layouts[0])
    for path in copy:
        whole = path.read_bytes()
        for at in range(len(whole)):
            path.write_bytes(whole[:at])
            with pytest.raises(DamagedCopyError):
                read_copy(tiny, copy)
            path.write_bytes(whole[:at] + bytes([whole[at] ^ 4]) + whole[at + 1 :])
            with contextlib.suppress(DamagedCopyError):
                read_copy(tiny, copy)  # the changed byte is in gzip's header
        path.write_bytes(whole)


def test_the_cache_alone_is_enough_and_a_wrong_one_is_not_used(
    tiny: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TACIT_DATA", str(tmp_path / "named"))
    lay(tmp_path / "named" / "fashion-mnist")
    before = load("fashion_mnist")
    shutil.rmtree(tmp_path / "named")
    assert (load("fashion_mnist").test_inputs == before.test_inputs).all()
    write_cached(tiny, replace(before, train_inputs=before.train_inputs + np.uint8(1)))  # whole, but not it
    with pytest.raises(InputError, match="tacit data get"):
        load("fashion_mnist")


def test_only_a_checkout_looks_beside_itself(tmp_path: Path) -> None:
    assert Path(__file__).is_relative_to(CHECKOUT)
    beside = tmp_path / "shared" / "datasets"
    assert beside not in data_files.roots()
    (tmp_path / "installed").mkdir()
    (tmp_path / "installed" / "pyproject.toml").write_text("")
    assert data_files.roots()[-1] == beside
