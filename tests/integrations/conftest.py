"""With TACIT_NO_SKIPS=1 a skipped test is a failure: in the environment of the trainers nothing may be missing."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

NO_SKIPS = os.environ.get("TACIT_NO_SKIPS") == "1"


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: Any) -> Iterator[Any]:
    """A module whose `importorskip` skips it."""
    return _failed_if_skipped((yield))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: Any, call: Any) -> Iterator[Any]:
    return _failed_if_skipped((yield))


def _failed_if_skipped(report: Any) -> Any:
    if NO_SKIPS and report.outcome == "skipped" and not hasattr(report, "wasxfail"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        report.outcome, report.longrepr = "failed", f"TACIT_NO_SKIPS=1 allows no skipped test. {reason}"
    return report
