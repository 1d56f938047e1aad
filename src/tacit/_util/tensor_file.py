"""Arrays and facts about them in one safetensors file, with a checksum over both.

One file, so that one rename replaces it whole: arrays and counters of different moments never meet. Checkpoints, final
parameters and the cache of datasets are such files.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tacit._util.parsing import parse_json

if TYPE_CHECKING:
    import numpy as np

KEY = "tacit"  # the only key of the metadata: safetensors writes several in no fixed order


def encode(arrays: Mapping[str, np.ndarray], facts: Mapping[str, Any]) -> bytes:
    """The bytes of the file: equal arrays and facts have equal bytes."""
    from safetensors.numpy import save

    text = json.dumps({"facts": facts, "sha256": _checksum(arrays, facts)}, sort_keys=True)
    return save(dict(arrays), metadata={KEY: text})


def decode(content: bytes) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """The arrays and the facts; ValueError when the bytes are not a file that `encode` wrote."""
    from safetensors import SafetensorError
    from safetensors.numpy import load

    try:
        stored, arrays = _metadata(content), load(content)
        facts, right = stored["facts"], stored["sha256"] == _checksum(arrays, stored["facts"])
    except (SafetensorError, KeyError, TypeError, OverflowError) as error:
        raise ValueError(f"is not a file of tensors that tacit wrote: {error}") from None
    if not right:
        raise ValueError("does not match its checksum")
    return arrays, facts


def peek(content: bytes) -> dict[str, Any]:
    """The facts of a file, or of its beginning with the whole header, unchecked; empty where they cannot be read."""
    try:
        facts = _metadata(content)["facts"]
    except (ValueError, KeyError, TypeError):
        return {}
    return facts if isinstance(facts, dict) else {}


def arrays_sha256(arrays: Mapping[str, np.ndarray]) -> str:
    """SHA-256 of names, types, shapes and entries, in the order of the mapping."""
    import numpy as np

    digest = hashlib.sha256()
    for name, array in arrays.items():
        digest.update(json.dumps([name, str(array.dtype), list(array.shape)]).encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


def _checksum(arrays: Mapping[str, np.ndarray], facts: Mapping[str, Any]) -> str:
    text = json.dumps(facts, sort_keys=True) + arrays_sha256(dict(sorted(arrays.items())))
    return hashlib.sha256(text.encode()).hexdigest()


def _metadata(content: bytes) -> dict[str, Any]:
    """safetensors: eight bytes of length, then a JSON header whose `__metadata__` maps strings to strings."""
    header = content[8 : 8 + int.from_bytes(content[:8], "little")]
    return parse_json(parse_json(header)["__metadata__"][KEY].encode())
