"""The modules of docs/site that need nothing but the package: those that the tests look into."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


def site_module(name: str) -> ModuleType:
    """docs/site/NAME.py, imported from its file: docs is not a package."""
    location = importlib.util.spec_from_file_location(f"site_{name}", DOCS / "site" / f"{name}.py")
    assert location is not None
    assert location.loader is not None
    module = importlib.util.module_from_spec(location)
    sys.modules[module.__name__] = module  # dataclasses look their module up
    location.loader.exec_module(module)
    return module
