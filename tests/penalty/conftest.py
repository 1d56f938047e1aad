"""The workers of the distributed tests, run once for all of them."""

from __future__ import annotations

import os

import pytest

from distributed_results import Results, run_once


@pytest.fixture(scope="session")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    base = tmp_path_factory.getbasetemp()
    return run_once((base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "distributed-workers")
