"""Fashion-MNIST's own files: read, checked, standardised."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import tacit
from tacit.studies.fashion_mnist import FILES, load_fashion_mnist


def test_the_files_give_the_published_sets(data_dir: Path) -> None:
    data = load_fashion_mnist(data_dir / "fashion-mnist")
    assert data.train_inputs.shape == (60_000, 784)
    assert data.test_inputs.shape == (10_000, 784)
    assert np.bincount(data.train_targets).tolist() == [6000] * 10
    assert data.train_targets[:10].tolist() == [9, 0, 0, 3, 0, 2, 7, 2, 5, 5]
    assert abs(float(data.train_inputs.mean(dtype="float64"))) < 1e-6
    assert float(data.train_inputs.std(dtype="float64")) == pytest.approx(1, abs=1e-6)


def test_a_file_with_other_bytes_is_refused(tmp_path: Path) -> None:
    for name in FILES:
        (tmp_path / name).write_bytes(b"not it")
    with pytest.raises(tacit.InputError, match="SHA-256"):
        load_fashion_mnist(tmp_path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(tacit.InputError, match=r"train-images-idx3-ubyte\.gz cannot be read"):
        load_fashion_mnist(tmp_path)
