"""Fashion-MNIST from the four IDX files that its authors publish, packed by anybody: the contents are checked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tacit.studies.data.facts import Data
from tacit.studies.data.streams import Content, UnreadableError

if TYPE_CHECKING:
    import numpy as np

# SHA-256 of the unpacked files: gzip headers differ between the authors' copy and Debian's, their contents don't.
CONTENTS = (
    Content("train-images-idx3-ubyte", 47_040_016, "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888"),
    Content("train-labels-idx1-ubyte", 60_008, "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9"),
    Content("t10k-images-idx3-ubyte", 7_840_016, "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b"),
    Content("t10k-labels-idx1-ubyte", 10_008, "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34"),
)
UNSIGNED_BYTES = 8  # IDX's number for the type of an entry


def parse_idx(raw: bytes) -> np.ndarray:
    """An IDX file of unsigned bytes: two zero bytes, the type, the number of axes, their lengths, the entries."""
    import numpy as np

    axes = raw[3] if len(raw) >= 4 else 0
    begin = 4 + 4 * axes
    if raw[:3] != bytes([0, 0, UNSIGNED_BYTES]) or not 1 <= axes <= 3 or len(raw) < begin:
        raise UnreadableError("is not an IDX file of unsigned bytes")
    lengths = [int.from_bytes(raw[at : at + 4], "big") for at in range(4, begin, 4)]
    entries = 1
    for length in lengths:
        entries *= length
    if len(raw) - begin != entries:
        raise UnreadableError(f"has {len(raw) - begin:,} entries; its header promises {entries:,}")
    return np.frombuffer(raw, dtype=np.uint8, offset=begin).reshape(lengths).copy()  # writable, as torch wants it


def decode(raw: Sequence[bytes]) -> Data:
    """The four files' bytes, in the order of CONTENTS, as images (N, 1, 28, 28) in uint8 and their class numbers."""
    train, train_labels, test, test_labels = (parse_idx(each) for each in raw)
    return Data(train[:, None], train_labels.astype("int64"), test[:, None], test_labels.astype("int64"))
