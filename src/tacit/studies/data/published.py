"""What was published: the files of each dataset, their addresses, and the wrappers known around the same contents."""

from __future__ import annotations

from dataclasses import dataclass

from tacit.studies.data import cifar10, fashion_mnist
from tacit.studies.data.streams import Content

ARCHIVE = "cifar-10-binary.tar.gz"


@dataclass(frozen=True)
class Wrapper:
    """A packed file that is known byte for byte, and whose it is.

    `fixed`: a file of the same length is this one, changed. Not so for packers that only write another time.
    """

    origin: str
    size: int
    sha256: str
    fixed: bool = True


@dataclass(frozen=True)
class Published:
    """One file to fetch: what must be in it, how it is packed where it is known, and where it can be had."""

    name: str
    contents: tuple[Content, ...]
    wrappers: tuple[Wrapper, ...]
    addresses: tuple[str, ...]

    @property
    def size(self) -> int:
        """Bytes of the authors' own file."""
        return self.wrappers[0].size

    @property
    def limit(self) -> int:
        """Bytes at which a download is no longer taken for this file, however it is packed."""
        return max(wrapper.size for wrapper in self.wrappers) * 11 // 10 + 1024


@dataclass(frozen=True)
class PublishedDataset:
    """One dataset: the folder it has in our own layout, its files, and whom to thank."""

    folder: str
    files: tuple[Published, ...]
    homepage: str
    terms: str


def _fashion(number: int, authors: tuple[int, str], debian: tuple[int, str]) -> Published:
    content = fashion_mnist.CONTENTS[number]
    name = f"{content.name}.gz"
    bases = (
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",  # linked from the authors' page
        "https://github.com/zalandoresearch/fashion-mnist/raw/master/data/fashion/",  # the authors' repository
        "https://storage.googleapis.com/tensorflow/tf-keras-datasets/",  # the copy that Keras fetches
    )
    wrappers = (Wrapper("by its authors", *authors), Wrapper("by Debian", *debian, fixed=False))
    return Published(name, (content,), wrappers, tuple(base + name for base in bases))


PUBLISHED_DATASETS = {
    "fashion_mnist": PublishedDataset(
        folder="fashion-mnist",
        files=(
            _fashion(
                0,
                (26_421_880, "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84"),
                (26_421_856, "b0564c3eedabfbf835052cff8503ea422014ce006caf5b757f851416ee8300c7"),
            ),
            _fashion(
                1,
                (29_515, "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845"),
                (29_491, "0ae29f65d86684f32d1b9c85147786c547b9c6aebcaf235f0400a0cce308b056"),
            ),
            _fashion(
                2,
                (4_422_102, "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073"),
                (4_422_079, "cc1d090a38ace84dfa1aa66e3ada7c336ef481a96936906477e6dd344da56eaa"),
            ),
            _fashion(
                3,
                (5_148, "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5"),
                (5_125, "8d3605d196f4be44669e46906da9733c8131fef761fdbfec72c424d5222f1a05"),
            ),
        ),
        homepage="https://github.com/zalandoresearch/fashion-mnist",
        terms="MIT licence, © 2017 Zalando SE; Xiao, Rasul, Vollgraf, arXiv:1708.07747",
    ),
    "cifar10": PublishedDataset(
        folder="cifar-10",
        files=(
            Published(
                ARCHIVE,
                cifar10.CONTENTS,
                (
                    Wrapper(
                        *("by its authors", 170_052_171),
                        "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
                    ),
                    Wrapper(  # the copy that this project's own tests read
                        *("without times and owners", 170_037_208),
                        "f5cb5d87c2517c83f1e9d2c1139f2a212fb8fca8389d34220e429d2f144bfef0",
                    ),
                ),
                (
                    f"https://www.cs.toronto.edu/~kriz/{ARCHIVE}",
                    # Two public copies of the same archive: Swift for TensorFlow's, and MindSpore's tutorials'.
                    f"https://storage.googleapis.com/s4tf-hosted-binaries/datasets/CIFAR10/{ARCHIVE}",
                    f"https://mindspore-website.obs.cn-north-4.myhuaweicloud.com/notebook/datasets/{ARCHIVE}",
                ),
            ),
        ),
        homepage="https://www.cs.toronto.edu/~kriz/cifar.html",
        terms="no formal licence; cite Krizhevsky, Learning Multiple Layers of Features from Tiny Images, 2009",
    ),
}
