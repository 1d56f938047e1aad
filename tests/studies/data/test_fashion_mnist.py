"""Fashion-MNIST's own files: read, checked, standardised."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from small_copies import packed

from tacit.studies.data import fashion_mnist
from tacit.studies.data.datasets import FACTS
from tacit.studies.data.fashion_mnist import FASHION_MNIST, FILES, read_idx
from tacit.studies.data.files import DamagedCopyError, read_copy
from tacit.studies.data.load import load


def test_the_files_give_the_published_sets(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TACIT_DATA", str(data_dir))
    data, facts = load("fashion_mnist"), FACTS["fashion_mnist"]
    assert data.train_inputs.shape == (facts.train_size, *facts.shape)
    assert data.test_inputs.shape == (facts.test_size, *facts.shape)
    assert (data.train_inputs.dtype, data.train_targets.dtype) == (np.uint8, np.int64)
    assert np.bincount(data.train_targets).tolist() == [6000] * 10
    assert data.train_targets[:10].tolist() == [9, 0, 0, 3, 0, 2, 7, 2, 5, 5]


def test_a_file_with_other_bytes_is_refused_by_name(tmp_path: Path) -> None:
    files = tuple(tmp_path / name for name in FILES)
    for path in files:
        path.write_bytes(b"not it")
    with pytest.raises(DamagedCopyError, match="train-images-idx3-ubyte is not a whole IDX file"):
        read_copy(FASHION_MNIST, files)


@pytest.mark.parametrize(
    "raw", [b"", b"\0\0", b"\0\0\x08\xff", b"\0\0\x09\x01\0\0\0\x02a", b"\0\0\x08\x01\0\0\0\x02a", b"\0\0\x08\x03"]
)
def test_what_is_no_idx_file_is_refused(raw: bytes, tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(raw)
    with pytest.raises(ValueError, match="x is not a whole IDX file"):
        read_idx(tmp_path / "x")


def test_no_more_is_unpacked_than_the_largest_file_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fashion_mnist, "MOST", 1000)
    (tmp_path / "x.gz").write_bytes(packed(bytes([0, 0, 8, 1, 0, 0, 16, 0]) + bytes(4096)))
    with pytest.raises(ValueError, match=r"x\.gz is not a whole IDX file: cannot reshape array of size 992"):
        read_idx(tmp_path / "x.gz")
