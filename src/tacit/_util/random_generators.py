"""One seed, many independent named generators."""

from __future__ import annotations

import hashlib

import torch

from tacit._util.errors import InputError

STREAMS = ("init", "order", "augment", "probe", "dropout", "draw", "labels")


def derive_seed(seed: int, stream: str, *counters: int) -> int:
    """A 63-bit seed for one named stream, the same on every machine.

    Hashing keeps the streams independent: seeds 0 and 1 share nothing, nor do epochs 0 and 1 of one seed.
    """
    if stream not in STREAMS:
        raise InputError(f"random stream {stream!r} is unknown; use one of {', '.join(STREAMS)}.")
    text = "/".join(["tacit", str(int(seed)), stream, *[str(int(counter)) for counter in counters]])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def generator(seed: int, stream: str, *counters: int, device: torch.device | str = "cpu") -> torch.Generator:
    """A fresh torch generator for one named stream of one seed.

    Counters (an epoch, say) select an independent sub-stream, so that work can resume at any epoch
    without a stored generator state.
    """
    made = torch.Generator(device=device)
    made.manual_seed(derive_seed(seed, stream, *counters))
    return made
