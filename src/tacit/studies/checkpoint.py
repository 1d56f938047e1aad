"""A checkpoint as bytes: tensors and a JSON state in one safetensors file, with a checksum over both.

One file, so that one rename replaces it whole: tensors and counters of different moments never meet.
"""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

from tacit._errors import InputError

if TYPE_CHECKING:
    import numpy as np

FORMAT = "1"


class DamagedCheckpointError(InputError):
    """The bytes are not a checkpoint that was written whole."""


def encode(arrays: dict[str, np.ndarray], state: dict[str, Any]) -> bytes:
    from safetensors.numpy import save

    text = json.dumps(state, sort_keys=True)
    return save(arrays, metadata={"format": FORMAT, "state": text, "sha256": _digest(arrays, text)})


def decode(content: bytes) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """The arrays and the state, or DamagedCheckpointError."""
    from safetensors import SafetensorError
    from safetensors.numpy import load

    try:
        metadata = _metadata(content)
        arrays = load(content)
        if metadata["sha256"] == _digest(arrays, metadata["state"]):
            return arrays, json.loads(metadata["state"])
    except (SafetensorError, ValueError, KeyError, TypeError):
        pass
    raise DamagedCheckpointError("the checkpoint does not match its checksum.")


def peek(content: bytes) -> dict[str, Any]:
    """The state alone, unchecked: good enough to show progress, not to go on from."""
    try:
        found = json.loads(_metadata(content)["state"])
    except (ValueError, KeyError, TypeError):
        return {}
    return found if isinstance(found, dict) else {}


def _metadata(content: bytes) -> dict[str, str]:
    """safetensors: eight bytes of length, then a JSON header whose `__metadata__` maps strings to strings."""
    length = int.from_bytes(content[:8], "little")
    return json.loads(content[8 : 8 + length])["__metadata__"]


def _digest(arrays: dict[str, np.ndarray], text: str) -> str:
    digest = hashlib.sha256(f"{FORMAT}\n{text}\n".encode())
    for name in sorted(arrays):
        digest.update(json.dumps([name, str(arrays[name].dtype), list(arrays[name].shape)]).encode())
        digest.update(arrays[name].tobytes())
    return digest.hexdigest()
