"""A cache of their own for the tests of faults, and a study that trains in a second or two."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tacit.studies.datasets import Data, load


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    before = os.environ.get("TACIT_CACHE")
    os.environ["TACIT_CACHE"] = str(tmp_path_factory.mktemp("cache"))
    yield
    if before is None:
        del os.environ["TACIT_CACHE"]
    else:
        os.environ["TACIT_CACHE"] = before


@pytest.fixture(scope="session")
def data(own_cache: None) -> Data:
    return load("mnist1d")
