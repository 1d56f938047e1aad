"""Where a result comes from: versions, commit, machine. No names of people or hosts."""

from __future__ import annotations

import os
import platform
import subprocess
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any


@cache
def provenance() -> dict[str, Any]:
    return {
        "versions": {"python": platform.python_version(), **{name: package_version(name) for name in PACKAGES}},
        "commit": commit(),
        "machine": {"system": platform.system(), "architecture": platform.machine(), "processor": processor()}
        | {"cores": os.cpu_count()},
    }


PACKAGES = ("tacit", "torch", "numpy", "mnist1d", "safetensors")


def package_version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def commit() -> str | None:
    """The commit of the checkout this package runs from, `-dirty` when files differ from it; None when installed."""
    root = Path(__file__).parents[3]
    if not (root / ".git").exists():
        return None
    try:
        found = subprocess.run(
            ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=12"],
            capture_output=True, text=True, timeout=10, check=True,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return None
    return found.stdout.strip() or None


def processor() -> str:
    """The name of the processor, where the system gives one."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
