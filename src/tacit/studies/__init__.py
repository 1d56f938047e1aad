"""Studies: many runs described by one file, trained in fleets, resumable, stored as rows of JSON.

`study.toml → RunSpec(hash) → fleet → rows on disk → summary`. Names are imported on first use, so that reading rows
needs no torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

_HOMES = {
    "RunSpec": "tacit.studies.describe.spec",
    "Study": "tacit.studies.describe.study",
    "load_study": "tacit.studies.describe.study",
    "read_rows": "tacit.studies.store.folder",
    "records": "tacit.studies.tabular",
    "run": "tacit.studies.runner",
}

__all__ = ["RunSpec", "Study", "load_study", "read_rows", "records", "run"]

if TYPE_CHECKING:
    from tacit.studies.describe.spec import RunSpec
    from tacit.studies.describe.study import Study, load_study
    from tacit.studies.runner import run
    from tacit.studies.store.folder import read_rows
    from tacit.studies.tabular import records


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'tacit.studies' has no attribute {name!r}")


def __dir__() -> list[str]:
    """The public names; the rooms (`data`, `describe`, `train`, …) are imported by their full name."""
    return [*__all__, "__doc__"]
