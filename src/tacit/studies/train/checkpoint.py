"""A checkpoint as bytes: the tensors of a fleet and its state, in one file with a checksum over both."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tacit._util import tensor_file
from tacit._util.errors import TacitError

if TYPE_CHECKING:
    import numpy as np


class DamagedCheckpointError(TacitError):
    """The bytes are not a checkpoint that was written whole."""


def encode(arrays: Mapping[str, np.ndarray], state: Mapping[str, Any]) -> bytes:
    return tensor_file.encode(arrays, state)


def decode(content: bytes) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """The arrays and the state, or DamagedCheckpointError."""
    try:
        return tensor_file.decode(content)
    except ValueError:
        raise DamagedCheckpointError("the checkpoint does not match its checksum.") from None


def peek_file(path: Path) -> dict[str, Any]:
    """The state in a file, unchecked. Only the header is read: the tensors may be gigabytes."""
    with open(path, "rb") as opened:
        start = opened.read(8)
        length = int.from_bytes(start, "little")
        return tensor_file.peek(start + opened.read(length)) if length < os.fstat(opened.fileno()).st_size else {}


def share_done(content: bytes) -> float:
    """The share of its work that a checkpoint says is done, from 0 to 1; 0 where it says nothing of the kind."""
    return share_in(tensor_file.peek(content))


def share_in(state: Mapping[str, Any]) -> float:
    """`share_done` of a state that `peek_file` gave."""
    return min(max(float(state.get("done", 0.0)), 0.0), 1.0)
