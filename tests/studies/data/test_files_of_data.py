"""Copies of datasets: found in any layout, the named folder first; the damaged refused, the missing explained."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
from archives import content, packed

from tacit import InputError, cli
from tacit.studies.data import cifar10, fashion_mnist
from tacit.studies.data import files as data_files
from tacit.studies.data import load as load_module
from tacit.studies.data.cache import arrays_sha256, write_arrays
from tacit.studies.data.facts import ARRAYS, Data
from tacit.studies.data.files import Copy, copies, incomplete, locate
from tacit.studies.data.load import load

IDX = {
    "train-images-idx3-ubyte": bytes([0, 0, 8, 3, 0, 0, 0, 2, 0, 0, 0, 28, 0, 0, 0, 28]) + bytes(2 * 784),
    "train-labels-idx1-ubyte": bytes([0, 0, 8, 1, 0, 0, 0, 2, 3, 4]),
    "t10k-images-idx3-ubyte": bytes([0, 0, 8, 3, 0, 0, 0, 1, 0, 0, 0, 28, 0, 0, 0, 28]) + bytes([7]) * 784,
    "t10k-labels-idx1-ubyte": bytes([0, 0, 8, 1, 0, 0, 0, 1, 5]),
}


@pytest.fixture(autouse=True)
def nowhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No copies but those that a test makes, and no network."""
    monkeypatch.setenv("TACIT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("TACIT_OFFLINE", "1")
    monkeypatch.delenv("TACIT_DATA", raising=False)
    monkeypatch.setattr(data_files, "DEBIAN", tmp_path / "debian")
    monkeypatch.setattr(data_files, "CHECKOUT", tmp_path / "installed")
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fashion-MNIST with two training images and one test image."""
    contents = tuple(content(name, raw) for name, raw in IDX.items())
    monkeypatch.setattr(fashion_mnist, "CONTENTS", contents)
    data = fashion_mnist.decode(list(IDX.values()))
    arrays = {name: np.ascontiguousarray(getattr(data, name)) for name in ARRAYS}
    monkeypatch.setitem(load_module.DECODED, "fashion_mnist", arrays_sha256(arrays))


def lay(folder: Path, *, ending: str = ".gz", level: int = 9) -> Path:
    folder.mkdir(parents=True)
    for name, raw in IDX.items():
        (folder / f"{name}{ending}").write_bytes(packed(raw, level=level) if ending else raw)
    return folder


def folder_found(data_dir: Path | None = None) -> Path:
    found = locate("fashion_mnist", data_dir)
    assert found is not None
    return found.files[0].parent


@pytest.mark.parametrize("ending", [".gz", ""])
@pytest.mark.parametrize("place", ["fashion-mnist", "FashionMNIST/raw", "."])
def test_a_copy_in_any_layout_is_read(
    tiny: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, ending: str
) -> None:
    lay(tmp_path / "mine" / "x" / place, ending=ending)
    monkeypatch.setenv("TACIT_DATA", str(tmp_path / "mine" / "x"))
    data = load("fashion_mnist")
    assert data.train_inputs.shape == (2, 1, 28, 28)
    assert data.test_targets.tolist() == [5]
    assert data.train_inputs.flags.writeable


def test_torchvisions_data_in_this_folder_and_debians_are_found(tiny: None, tmp_path: Path) -> None:
    debian = lay(tmp_path / "debian" / "fashion-mnist", level=1)
    assert folder_found() == debian
    lay(Path("data") / "FashionMNIST" / "raw")
    assert folder_found() == Path("data") / "FashionMNIST" / "raw"


def test_the_named_folder_comes_first_and_a_whole_copy_before_a_part(
    tiny: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    named, other = lay(tmp_path / "named" / "fashion-mnist"), lay(tmp_path / "debian" / "fashion-mnist")
    monkeypatch.setenv("TACIT_DATA", str(tmp_path / "named"))
    assert folder_found() == named
    assert folder_found(tmp_path / "debian") == other
    (named / "t10k-labels-idx1-ubyte.gz").unlink()
    assert folder_found() == other


def test_cifars_archive_is_found_before_its_unpacked_batches(tmp_path: Path) -> None:
    folder = tmp_path / "root" / cifar10.FOLDER
    folder.mkdir(parents=True)
    for each in cifar10.CONTENTS:
        (folder / each.name).write_bytes(b"")
    (found,) = copies("cifar10", tmp_path / "root")
    assert len(found.files) == 6
    (tmp_path / "root" / "cifar-10-binary.tar.gz").write_bytes(b"")
    assert [len(copy.files) for copy in copies("cifar10", tmp_path / "root")] == [1, 6]


def test_unpacked_batches_are_checked_and_the_wrong_one_named(tmp_path: Path) -> None:
    files = tuple(tmp_path / each.name for each in cifar10.CONTENTS)
    for path in files:
        path.write_bytes(b"short")
    with pytest.raises(InputError, match=r"data_batch_1\.bin holds 5 bytes.*tacit data get cifar10"):
        data_files.read(Copy("cifar10", files))


@pytest.mark.parametrize("name", ["fashion_mnist", "cifar10"])
def test_without_data_the_command_that_gets_it_is_named(name: str) -> None:
    with pytest.raises(InputError, match=f"`tacit data get {name}`"):
        load(name)


def test_a_study_without_data_says_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    study = tmp_path / "study.toml"
    study.write_text(
        'schema = 1\nname = "s"\n[fixed]\ndataset = "cifar10"\nlearning_rate = 0.1\nupdates = 2\nevaluations = 1\n'
        "train_size = 64\nbatch_size = 32\nwidth = 4\ndepth = 1\n"
    )
    monkeypatch.setattr(sys, "argv", ["tacit", "run", str(study), "--into", str(tmp_path / "out"), "--workers", "1"])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    shown = capsys.readouterr().err
    assert ended.value.code == 2
    assert "`tacit data get cifar10`" in shown
    assert "Traceback" not in shown


def test_an_incomplete_or_pickled_copy_is_mentioned(tiny: None, tmp_path: Path) -> None:
    (lay(tmp_path / "a" / "fashion-mnist") / "t10k-labels-idx1-ubyte.gz").unlink()
    assert "lacks t10k-labels-idx1-ubyte.gz" in incomplete("fashion_mnist", tmp_path / "a")
    (tmp_path / "a" / "cifar-10-batches-py").mkdir()
    assert "pickled" in incomplete("cifar10", tmp_path / "a")


def test_a_file_that_changes_is_refused_though_the_cache_is_right(
    tiny: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TACIT_DATA", str(tmp_path / "named"))
    path = lay(tmp_path / "named" / "fashion-mnist") / "train-labels-idx1-ubyte.gz"
    load("fashion_mnist")
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(InputError, match=r"train-labels-idx1-ubyte\.gz ends too early"):
        load("fashion_mnist")


def test_the_remedy_for_a_damaged_copy_works_though_another_folder_has_a_right_one(
    tiny: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fetching alone would find the other copy right and leave the damaged one to be found first, for ever."""
    monkeypatch.setenv("TACIT_DATA", str(tmp_path / "named"))
    path = lay(tmp_path / "named" / "fashion-mnist") / "train-labels-idx1-ubyte.gz"
    lay(tmp_path / "debian" / "fashion-mnist")
    path.write_bytes(b"x")
    with pytest.raises(InputError, match="remove it and run `tacit data get fashion_mnist`"):
        load("fashion_mnist")
    path.unlink()
    assert len(load("fashion_mnist").train_inputs) == 2


def test_the_cache_alone_is_enough_and_a_wrong_one_is_not_used(
    tiny: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TACIT_DATA", str(tmp_path / "named"))
    lay(tmp_path / "named" / "fashion-mnist")
    before = load("fashion_mnist")
    shutil.rmtree(tmp_path / "named")
    assert (load("fashion_mnist").test_inputs == before.test_inputs).all()
    changed = Data(before.train_inputs + np.uint8(1), before.train_targets, before.test_inputs, before.test_targets)
    write_arrays(tmp_path / "cache" / "fashion_mnist.safetensors", changed)  # consistent in itself, but not it
    with pytest.raises(InputError, match="tacit data get"):
        load("fashion_mnist")


def test_only_a_checkout_looks_beside_itself(tmp_path: Path) -> None:
    beside = tmp_path / "shared" / "datasets"
    assert beside not in data_files.roots()
    (tmp_path / "installed").mkdir()
    (tmp_path / "installed" / "pyproject.toml").write_text("")
    assert data_files.roots()[-1] == beside
