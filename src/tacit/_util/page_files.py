"""Pages that come with the package: HTML files that include their styles and scripts, put together as one text."""

from __future__ import annotations

import re
from importlib import resources

_INCLUDE = re.compile(r"^/\* include ([\w.-]+) \*/$", re.MULTILINE)


def page_text(package: str, name: str) -> str:
    """The file `name` of a package, with every line `/* include FILE */` replaced by that file."""
    return _INCLUDE.sub(lambda found: _read(package, found[1]), _read(package, name))


def _read(package: str, name: str) -> str:
    return (resources.files(package) / name).read_text(encoding="utf-8")
