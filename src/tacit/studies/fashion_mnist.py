"""Fashion-MNIST from the four IDX files that its authors publish, each checked by its SHA-256."""

from __future__ import annotations

import gzip
import hashlib
import os
from pathlib import Path
from typing import TYPE_CHECKING

from tacit._errors import InputError
from tacit.studies.datasets import Data, standardise

if TYPE_CHECKING:
    import numpy as np

FILES = {
    "train-images-idx3-ubyte.gz": "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
    "train-labels-idx1-ubyte.gz": "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
    "t10k-images-idx3-ubyte.gz": "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
    "t10k-labels-idx1-ubyte.gz": "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
}


def folder() -> Path:
    """The folder `fashion-mnist` in TACIT_DATA, or in ../shared/datasets beside the checkout or the current folder."""
    checkout = Path(__file__).parents[3]
    named = os.environ.get("TACIT_DATA")
    places = [Path(named)] if named else [base.parent / "shared" / "datasets" for base in (checkout, Path.cwd())]
    for place in places:
        if (place / "fashion-mnist").is_dir():
            return place / "fashion-mnist"
    raise InputError(
        "no Fashion-MNIST here; expected a folder fashion-mnist with the four IDX files. "
        "Set TACIT_DATA to the folder that holds it."
    )


def load_fashion_mnist(where: Path | None = None) -> Data:
    """60,000 training and 10,000 test images as rows of 784 standardised numbers, and their class numbers."""
    where = where or folder()
    arrays = {name: _read(where / name, digest) for name, digest in FILES.items()}
    train, test = arrays["train-images-idx3-ubyte.gz"], arrays["t10k-images-idx3-ubyte.gz"]
    inputs = standardise(*[images.reshape(len(images), -1).astype("float32") / 255 for images in (train, test)])
    labels = [arrays[name].astype("int64") for name in ("train-labels-idx1-ubyte.gz", "t10k-labels-idx1-ubyte.gz")]
    return Data(inputs[0], labels[0], inputs[1], labels[1])


def _read(path: Path, digest: str) -> np.ndarray:
    """One IDX file: two zero bytes, a type (8 is unsigned bytes), the number of axes, their lengths, the bytes."""
    import numpy as np

    try:
        packed = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}; expected Fashion-MNIST's own file.") from error
    found = hashlib.sha256(packed).hexdigest()
    if found != digest:
        raise InputError(f"{path.name} has SHA-256 {found[:12]}…; expected {digest[:12]}…. Fetch it again.")
    raw = gzip.decompress(packed)
    axes = raw[3]
    lengths = [int.from_bytes(raw[4 + 4 * axis : 8 + 4 * axis], "big") for axis in range(axes)]
    return np.frombuffer(raw, dtype=np.uint8, offset=4 + 4 * axes).reshape(lengths)
