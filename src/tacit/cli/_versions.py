"""What `tacit --version` prints: the versions that matter in a bug report, read without importing anything heavy."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version

PACKAGES = ("torch", "numpy", "scipy")


def versions_text() -> str:
    """`tacit 0.1.0` on the first line, then Python, the packages that decide numbers, and the platform."""
    lines = [f"tacit {_version('tacit')}", f"python {platform.python_version()}"]
    lines += [f"{name} {_version(name)}" for name in PACKAGES]
    return "\n".join([*lines, f"platform {platform.platform()}"])


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"
