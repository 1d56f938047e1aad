"""A checkpoint as bytes: tensors and a JSON state in one safetensors file, with a checksum over both.

One file, so that one rename replaces it whole: tensors and counters of different moments never meet.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tacit._errors import TacitError
from tacit._parsing import MEGABYTE, open_regular, parse_json

if TYPE_CHECKING:
    import numpy as np

FORMAT = "1"
MOST_HEADER = 64 * MEGABYTE  # the state with the history of every run, twice escaped


class DamagedCheckpointError(TacitError):
    """The bytes are not a checkpoint that was written whole."""


def encode(arrays: dict[str, np.ndarray], state: dict[str, Any]) -> bytes:
    from safetensors.numpy import save

    text = json.dumps(state, sort_keys=True)
    return save(arrays, metadata={"format": FORMAT, "state": text, "sha256": arrays_sha256(arrays, text)})


def decode(content: bytes) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """The arrays and the state, or DamagedCheckpointError."""
    from safetensors import SafetensorError
    from safetensors.numpy import load

    try:
        metadata = read_metadata(content)
        arrays = load(content)
        if metadata["sha256"] == arrays_sha256(arrays, metadata["state"]):
            state = parse_json(metadata["state"].encode())
            if isinstance(state, dict):
                return arrays, state
    except (SafetensorError, ValueError, KeyError, TypeError, AttributeError, OverflowError):
        pass
    raise DamagedCheckpointError("the checkpoint does not match its checksum.")


def peek(content: bytes) -> dict[str, Any]:
    """The state alone, unchecked: good enough to show progress, not to go on from."""
    try:
        found = parse_json(read_metadata(content)["state"].encode())
    except (ValueError, KeyError, TypeError, AttributeError):
        return {}
    return found if isinstance(found, dict) else {}


def peek_file(path: Path) -> dict[str, Any]:
    """`peek` of a file, of which only the header is read: its tensors may be gigabytes."""
    with open_regular(path) as (opened, size):
        length = int.from_bytes(opened.read(8), "little")
        if length > min(MOST_HEADER, size - 8):
            return {}
        opened.seek(0)
        return peek(opened.read(8 + length))


@dataclass(frozen=True)
class Frame:
    """What a checkpoint of one fleet must look like: its arrays, its runs, where evaluations are."""

    arrays: dict[str, tuple[tuple[int, ...], str]]  # shape and type by name
    runs: int
    minibatches: int
    evaluations: frozenset[int]
    series: tuple[str, ...]


def check(arrays: dict[str, np.ndarray], state: dict[str, Any], frame: Frame) -> None:
    """DamagedCheckpointError unless training can go on from these: a right checksum says who wrote, not what."""
    found = {name: (array.shape, str(array.dtype)) for name, array in arrays.items()}
    position: Any = state.get("position")
    diverged_at, history = state.get("diverged_at"), state.get("history")
    if found == frame.arrays and isinstance(diverged_at, list) and isinstance(history, list):
        lengths = {len(diverged_at), len(history), frame.runs}
        seen = sum(at <= position for at in frame.evaluations) if _is_count(position, frame.minibatches) else -1
        pairs = zip(diverged_at, history, strict=False)
        if len(lengths) == 1 and seen >= 0 and all(_is_seen(*pair, seen, frame.series) for pair in pairs):
            return
    raise DamagedCheckpointError("the checkpoint does not fit its fleet.")


def _is_seen(at: Any, history: Any, seen: int, names: tuple[str, ...]) -> bool:
    """Whether one run's history has a number for every evaluation so far, or for those before it diverged."""
    if not (at is None or _is_count(at)) or not isinstance(history, dict) or set(history) != set(names):
        return False
    lists = list(history.values())
    if not all(isinstance(each, list) and len(each) == len(lists[0]) for each in lists):
        return False
    numbers = all(isinstance(value, int | float) and not isinstance(value, bool) for each in lists for value in each)
    return numbers and (len(lists[0]) == seen if at is None else len(lists[0]) <= seen)


def _is_count(value: Any, most: float = math.inf) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= most


def share_done(content: bytes) -> float:
    """The share of its work that a checkpoint says is done, from 0 to 1; 0 where it says nothing of the kind."""
    return share_in(peek(content))


def share_in(state: Mapping[str, Any]) -> float:
    """`share_done` of a state that `peek` or `peek_file` gave."""
    found = state.get("done")
    return min(max(float(found), 0.0), 1.0) if isinstance(found, int | float) else 0.0


def cpu_seconds_in(state: Mapping[str, Any]) -> float:
    """CPU time that a checkpoint says was spent; 0 where it does not say, as in version 0.1."""
    found = state.get("cpu_seconds")
    if isinstance(found, bool) or not isinstance(found, int | float) or not math.isfinite(found):
        return 0.0
    return max(float(found), 0.0)


def read_metadata(content: bytes) -> dict[str, str]:
    """safetensors: eight bytes of length, then a JSON header whose `__metadata__` maps strings to strings."""
    length = int.from_bytes(content[:8], "little")
    if length > min(MOST_HEADER, len(content) - 8):
        raise ValueError("the header is longer than the file")
    return parse_json(content[8 : 8 + length])["__metadata__"]


def arrays_sha256(arrays: dict[str, np.ndarray], text: str) -> str:
    digest = hashlib.sha256(f"{FORMAT}\n{text}\n".encode())
    for name in sorted(arrays):
        digest.update(json.dumps([name, str(arrays[name].dtype), list(arrays[name].shape)]).encode())
        digest.update(arrays[name].tobytes())
    return digest.hexdigest()
