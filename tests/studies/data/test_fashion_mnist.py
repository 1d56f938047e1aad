"""Fashion-MNIST's own files: read, checked, standardised."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import tacit
from tacit.studies.data import files as data_files
from tacit.studies.data.facts import DATASETS
from tacit.studies.data.fashion_mnist import CONTENTS, parse_idx
from tacit.studies.data.files import Copy
from tacit.studies.data.load import load
from tacit.studies.data.streams import UnreadableError


def test_the_files_give_the_published_sets(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TACIT_DATA", str(data_dir))
    data, facts = load("fashion_mnist"), DATASETS["fashion_mnist"]
    assert data.train_inputs.shape == (facts.train_size, *facts.shape)
    assert data.test_inputs.shape == (facts.test_size, *facts.shape)
    assert (data.train_inputs.dtype, data.train_targets.dtype) == (np.uint8, np.int64)
    assert np.bincount(data.train_targets).tolist() == [6000] * 10
    assert data.train_targets[:10].tolist() == [9, 0, 0, 3, 0, 2, 7, 2, 5, 5]


def test_a_file_with_other_bytes_is_refused_by_name(tmp_path: Path) -> None:
    files = tuple(tmp_path / each.name for each in CONTENTS)
    for path in files:
        path.write_bytes(b"not it")
    with pytest.raises(tacit.InputError, match=r"train-images-idx3-ubyte holds 6 bytes.*tacit data get fashion_mnist"):
        data_files.read(Copy("fashion_mnist", files))


@pytest.mark.parametrize(
    "raw", [b"", b"\0\0", b"\0\0\x08\xff", b"\0\0\x09\x01\0\0\0\x01a", b"\0\0\x08\x01\0\0\0\x02a", b"\0\0\x08\x03"]
)
def test_what_is_no_idx_file_is_refused(raw: bytes) -> None:
    with pytest.raises(UnreadableError):
        parse_idx(raw)
