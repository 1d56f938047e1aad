"""The cache of decoded arrays: one safetensors file per dataset, trusted by its SHA-256 alone."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from tacit._errors import TacitError
from tacit._files import replacing
from tacit.studies.data.facts import ARRAYS, Data

if TYPE_CHECKING:
    import numpy as np


def cache_folder() -> Path:
    """Where made data is kept: TACIT_CACHE, or `tacit` in the user's cache folder."""
    if os.environ.get("TACIT_CACHE"):
        return Path(os.environ["TACIT_CACHE"])
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "tacit"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA", Path.home())) / "tacit"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tacit"


def read_arrays(path: Path, *, source: str | None = None, sha256: str | None = None) -> Data | None:
    """The cached arrays; None when there are none, or when the file is not what was written, or of another source."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(str(path), framework="np") as opened:
            facts = opened.metadata() or {}
            if source is not None and facts.get("source") != source:
                return None
            arrays = {name: opened.get_tensor(name) for name in ARRAYS}
            return Data(**arrays) if (sha256 or facts.get("sha256")) == arrays_sha256(arrays) else None
    except (OSError, SafetensorError, KeyError):
        return None


def write_arrays(path: Path, data: Data, *, source: str | None = None) -> None:
    """Best effort: without a writable cache the data is made anew by each process."""
    import numpy as np
    from safetensors import SafetensorError
    from safetensors.numpy import save_file

    arrays = {name: np.ascontiguousarray(getattr(data, name)) for name in ARRAYS}
    facts = {"sha256": arrays_sha256(arrays)} | ({"source": source} if source else {})
    with contextlib.suppress(TacitError, SafetensorError), replacing(path) as temporary:
        save_file(arrays, temporary, metadata=facts)


def arrays_sha256(arrays: dict[str, np.ndarray]) -> str:
    digest = hashlib.sha256()
    for name in ARRAYS:
        digest.update(json.dumps([name, str(arrays[name].dtype), list(arrays[name].shape)]).encode())
        digest.update(arrays[name].data)
    return digest.hexdigest()
