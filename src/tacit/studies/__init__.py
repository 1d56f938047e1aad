"""Studies: many runs described by one file, trained in fleets, resumable, stored as rows a stranger can open.

`study.toml → RunSpec(hash) → fleet → rows on disk → summary`. Names are imported on first use, so that reading rows
needs no torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

_HOMES = {
    "RunSpec": "tacit.studies.spec",
    "Study": "tacit.studies.study",
    "load_study": "tacit.studies.study",
    "read_rows": "tacit.studies.store",
    "run": "tacit.studies.runner",
}

__all__ = ["RunSpec", "Study", "load_study", "read_rows", "run"]

if TYPE_CHECKING:
    from tacit.studies.runner import run
    from tacit.studies.spec import RunSpec
    from tacit.studies.store import read_rows
    from tacit.studies.study import Study, load_study


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'tacit.studies' has no attribute {name!r}")
