"""The arrays of a dataset that a study can name: from the cache, made, read from published files, or fetched."""

from __future__ import annotations

from tacit._errors import InputError
from tacit.studies.data import download, download_bar, files, mnist1d
from tacit.studies.data.cache import cache_folder, read_arrays, write_arrays
from tacit.studies.data.facts import DATASETS, PUBLISHED, Data
from tacit.studies.data.files import Copy

# SHA-256 of the decoded arrays (`arrays_sha256`): a cached copy is known to be right without the published files.
DECODED = {
    "fashion_mnist": "fda0f63dc0ebe536d3b3e8f47554f2b3859e48b4adc19763c2aad8cf095149c4",
    "cifar10": "ff821c75bcf52214a9d04a3f966b43d155f53e09cbaa395bfb4ae57bb866e137",
}


def load(name: str) -> Data:
    """The arrays of one dataset: from the cache, or made or read now and put there.

    Images come from the first copy of their files that is found (`files.roots`), with every byte checked against
    the published SHA-256. The cache is used only while that copy's files keep their size and time, so a file that
    changes is read, and refused if damaged, before anything is trained on.
    """
    if name not in DATASETS:
        raise InputError(f"dataset={name!r} is unknown; use one of {', '.join(DATASETS)}.")
    if name in PUBLISHED:
        return _load_published(name)
    cached = cache_folder() / f"{name}-{mnist1d.recipe()}.safetensors"
    data = read_arrays(cached)
    if data is None:
        data = mnist1d.MAKERS[name]()
        write_arrays(cached, data)
    return data


def _load_published(name: str) -> Data:
    cached = cache_folder() / f"{name}.safetensors"
    copy = files.locate(name)
    if copy is None:
        data = read_arrays(cached, sha256=DECODED[name])
        if data is not None:
            return data
        copy = _fetched(name)
    source = copy.fingerprint()
    data = read_arrays(cached, source=source, sha256=DECODED[name])
    if data is None:
        data = files.read(copy)
        write_arrays(cached, data, source=source)
    return data


def _fetched(name: str) -> Copy:
    """First use: fetch the files, or say what to do."""
    found = files.incomplete(name)
    try:
        download.fetch(name, watch=download_bar.Bar())
    except InputError as error:
        where = f" ({found})" if found else ""
        raise InputError(
            f"dataset {name} is not here{where}: run `tacit data get {name}`, or set TACIT_DATA to a folder with it. "
            f"Now {str(error).rstrip('.')}."
        ) from None
    copy = files.locate(name)
    assert copy is not None
    return copy


def load_fashion_mnist() -> Data:
    """All images as rows of 784 numbers, standardised together by the training set's mean and standard deviation.

    Studies standardise each image by itself, on the device; this is for measurements that want plain rows.
    """
    data = load("fashion_mnist")
    rows = [images.reshape(len(images), -1).astype("float32") / 255 for images in (data.train_inputs, data.test_inputs)]
    train, test = mnist1d.standardise(*rows)
    return Data(train, data.train_targets, test, data.test_targets)
