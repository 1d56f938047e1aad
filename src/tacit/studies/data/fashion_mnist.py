"""Fashion-MNIST from the four IDX files that its authors publish, packed or not."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tacit.studies.data.facts import Data, Dataset, Facts

if TYPE_CHECKING:
    import numpy as np

FILES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
MOST = 1 << 26  # bytes of a file, unpacked; the largest has 47 million


def read_idx(path: Path) -> np.ndarray:
    """An IDX file of unsigned bytes: two zero bytes, the type, the number of axes, their lengths, the entries."""
    import numpy as np

    try:
        with gzip.open(path) if path.suffix == ".gz" else open(path, "rb") as stream:
            raw = stream.read(MOST)
        begin = 4 + 4 * raw[3]
        lengths = np.frombuffer(raw[4:begin], dtype=">u4")
        return np.frombuffer(raw[begin:], dtype=np.uint8).reshape(lengths).copy()  # writable, as torch wants it
    except (OSError, EOFError, zlib.error, ValueError, IndexError) as error:
        raise ValueError(f"{path.name} is not a whole IDX file: {error}") from None


def decode(paths: Sequence[Path]) -> Data:
    """Images (N, 1, 28, 28) in uint8 and their class numbers, from the files in the order of FILES."""
    train, train_labels, test, test_labels = (read_idx(path) for path in paths)
    return Data(train[:, None], train_labels.astype("int64"), test[:, None], test_labels.astype("int64"))


FASHION_MNIST = Dataset(
    "fashion_mnist",
    Facts((1, 28, 28), 10, 60_000, 10_000, "per_image"),
    decode,
    arrays_sha256="fda0f63dc0ebe536d3b3e8f47554f2b3859e48b4adc19763c2aad8cf095149c4",
    urls=(
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",  # linked from the authors' page
        "https://github.com/zalandoresearch/fashion-mnist/raw/master/data/fashion/",  # the authors' repository
        "https://storage.googleapis.com/tensorflow/tf-keras-datasets/",  # the copy that Keras fetches
    ),
    size=30_878_645,
    folders=("fashion-mnist", "FashionMNIST/raw", ""),  # ours and Debian's, torchvision's
    layouts=(tuple(f"{name}.gz" for name in FILES), FILES),
    homepage="https://github.com/zalandoresearch/fashion-mnist",
    terms="MIT licence, © 2017 Zalando SE; Xiao, Rasul, Vollgraf, arXiv:1708.07747",
)
