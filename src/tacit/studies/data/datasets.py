"""The datasets that come with tacit, by name."""

from __future__ import annotations

from tacit.studies.data.cifar10 import CIFAR10
from tacit.studies.data.facts import Data, Facts
from tacit.studies.data.fashion_mnist import FASHION_MNIST
from tacit.studies.data.mnist1d import MNIST1D, MNIST1D_16K

DATASETS = {dataset.name: dataset for dataset in (MNIST1D, MNIST1D_16K, FASHION_MNIST, CIFAR10)}
FACTS = {name: dataset.facts for name, dataset in DATASETS.items()}
PUBLISHED = [name for name, dataset in DATASETS.items() if dataset.urls]


def facts_of(dataset: str, data: Data) -> Facts:
    """The table's facts, or for a dataset of the user's own those of its arrays, which are used as they are."""
    if dataset in FACTS:
        return FACTS[dataset]
    classes = 1 + int(max(data.train_targets.max(), data.test_targets.max()))
    return Facts(data.train_inputs.shape[1:], classes, len(data.train_inputs), len(data.test_inputs))
