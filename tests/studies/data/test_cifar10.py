"""CIFAR-10's archive: read as a stream, batch by batch; nothing is extracted."""

from __future__ import annotations

import contextlib
import tarfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from small_copies import RECORDS, own_members, packed, tar

from tacit._util.tensor_file import arrays_sha256
from tacit.studies.data import cifar10
from tacit.studies.data import load as load_module
from tacit.studies.data.cifar10 import ARCHIVE, BATCHES, CIFAR10, FOLDER
from tacit.studies.data.datasets import FACTS
from tacit.studies.data.facts import Data
from tacit.studies.data.files import DamagedCopyError, copies, read_copy
from tacit.studies.data.load import load

Read = Callable[[bytes], Data]


@pytest.fixture
def read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Read:
    """The arrays of a tar archive with batches of two records; DamagedCopyError when they are not RECORDS."""
    monkeypatch.setattr(cifar10, "BATCH_SIZE", 2)
    for name, raw in RECORDS.items():
        (tmp_path / name).write_bytes(raw)
    right = cifar10.decode([tmp_path / name for name in BATCHES])
    dataset = replace(CIFAR10, arrays_sha256=arrays_sha256(right.arrays))

    def read(raw: bytes) -> Data:
        (tmp_path / ARCHIVE).write_bytes(packed(raw, level=1))
        return read_copy(dataset, (tmp_path / ARCHIVE,))

    return read


def test_the_archive_gives_the_published_sets(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TACIT_DATA", str(data_dir))
    data, facts = load("cifar10"), FACTS["cifar10"]
    assert data.train_inputs.shape == (facts.train_size, *facts.shape)
    assert data.test_inputs.shape == (facts.test_size, *facts.shape)
    assert (data.train_inputs.dtype, data.train_targets.dtype) == (np.uint8, np.int64)
    assert np.bincount(data.train_targets).tolist() == [5000] * 10
    assert np.bincount(data.test_targets).tolist() == [1000] * 10
    for channel in range(3):
        counts = np.bincount(data.train_inputs[:, channel].ravel(), minlength=256).astype("float64")
        values = np.arange(256) / 255
        mean = (counts * values).sum() / counts.sum()
        deviation = np.sqrt((counts * (values - mean) ** 2).sum() / counts.sum())
        assert facts.mean[channel] == pytest.approx(mean, abs=5e-9)  # written with eight decimals
        assert facts.deviation[channel] == pytest.approx(deviation, abs=5e-9)


@pytest.mark.parametrize("name", ["fashion_mnist", "cifar10"])
def test_the_second_load_reads_no_published_file(data_dir: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv("TACIT_DATA", str(data_dir))
    load(name)
    monkeypatch.setattr(load_module, "read_or_fetch", lambda _: pytest.fail("read again"))
    load(name)


def test_batches_come_in_any_order_beside_others_and_land_in_their_own_places(read: Read) -> None:
    others = [(f"{FOLDER}/batches.meta.txt", b"names"), (f"{FOLDER}/readme.html", bytes(700))]
    data = read(tar([*reversed(own_members()), *others]))
    assert data.train_targets.tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
    assert data.test_targets.tolist() == [5, 5]


def test_names_count_only_exactly_and_are_never_paths(read: Read, tmp_path: Path) -> None:
    name = BATCHES[0]
    evil = [(f"../{FOLDER}/{name}", b"x"), ("/etc/passwd", b"x"), (f"./{FOLDER}/{name}", b"x"), (f"../{name}", b"x")]
    before = sorted(tmp_path.parent.rglob("*"))
    read(tar([*evil, *own_members()]))
    with pytest.raises(DamagedCopyError, match=rf"lacks {name}"):
        read(tar([*evil, *own_members()[1:]]))
    assert sorted(tmp_path.parent.rglob("*")) == sorted([*before, tmp_path / ARCHIVE])


def test_a_changed_longer_or_linked_batch_is_refused(read: Read) -> None:
    (name, raw), *rest = own_members()
    for changed in (raw[:-1] + b"x", raw + b"x", raw[:-1]):
        with pytest.raises(DamagedCopyError):
            read(tar([(name, changed), *rest]))
    with pytest.raises(DamagedCopyError):
        read(tar([(name, b""), *rest], kinds={name: tarfile.SYMTYPE}))


def test_a_changed_or_cut_archive_is_refused_or_gives_the_published_arrays(read: Read) -> None:
    whole = tar(own_members())
    for at in (*range(0, 1024, 7), *range(1024, len(whole), 997)):
        for raw in (whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :], whole[:at]):
            with contextlib.suppress(DamagedCopyError):
                read(raw)  # the changed byte is in padding or in a time


def test_colours_and_rows_are_where_the_format_puts_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cifar10, "BATCH_SIZE", 1)
    for name in BATCHES:
        raw = bytearray(cifar10.RECORD)
        raw[1 + 2 * 1024 + 5 * 32 + 7] = 200  # blue, row 5, column 7
        (tmp_path / name).write_bytes(raw)
    images = cifar10.decode([tmp_path / name for name in BATCHES]).test_inputs
    assert images[0, 2, 5, 7] == 200
    assert int(images.sum()) == 200


def test_the_archive_is_found_before_unpacked_batches(tmp_path: Path) -> None:
    folder = tmp_path / FOLDER
    folder.mkdir(parents=True)
    for name in BATCHES:
        (folder / name).write_bytes(b"")
    (found,) = copies(CIFAR10, tmp_path)
    assert len(found) == 6
    (tmp_path / ARCHIVE).write_bytes(b"")
    assert [len(copy) for copy in copies(CIFAR10, tmp_path)] == [1, 6]
