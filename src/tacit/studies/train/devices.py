"""The device that runs train on: chosen by one rule, so that a study file never names one."""

from __future__ import annotations

import os
from collections.abc import Sequence

import torch

from tacit._util.errors import InputError

KINDS = ("cuda", "mps", "cpu")  # in the order of `auto`


def choose(wanted: str | None = None, *, kinds: Sequence[str] = KINDS) -> torch.device:
    """`wanted` or TACIT_DEVICE (`auto`, `cpu`, `mps`, `cuda`, `cuda:1`), or the first of `kinds` that is there.

    On CUDA, float32 means float32: TF32 is off unless TACIT_TF32=1, and convolutions are chosen to be repeatable.
    """
    wanted = wanted or os.environ.get("TACIT_DEVICE", "").strip() or "auto"
    device = torch.device(automatic(kinds)) if wanted == "auto" else _named(wanted, kinds)
    if device.type == "cuda":
        tf32 = os.environ.get("TACIT_TF32") == "1"
        torch.set_float32_matmul_precision("high" if tf32 else "highest")
        torch.backends.cudnn.allow_tf32 = tf32
        torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = True, False
    return device


def automatic(kinds: Sequence[str] = KINDS) -> str:
    return next(kind for kind in kinds if available(kind))


def available(kind: str) -> bool:
    if kind == "cuda":
        return torch.cuda.is_available()
    return kind == "cpu" or (kind == "mps" and torch.backends.mps.is_available())


def prefers_channels_last(device: torch.device) -> bool:
    """Whether convolutions are faster with the channels of a pixel side by side: oneDNN and cuDNN, not MPS."""
    return device.type in ("cpu", "cuda")


def describe(device: torch.device) -> str:
    """`cpu`, or the kind and the name of the card."""
    return f"cuda ({torch.cuda.get_device_name(device)})" if device.type == "cuda" else device.type


def _named(wanted: str, kinds: Sequence[str]) -> torch.device:
    try:
        device = torch.device(wanted)
    except RuntimeError:
        device = None
    if device is None or device.type not in kinds:
        raise InputError(f"the device is {wanted!r}; expected auto, {', '.join(kinds)} or a numbered one as cuda:0.")
    if not available(device.type):
        raise InputError(
            f"the device is {wanted!r} (--device or TACIT_DEVICE) and torch finds none on this machine; "
            f"use auto or {', '.join(kind for kind in kinds if available(kind))}."
        )
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise InputError(f"the device is {wanted!r}; this machine has {torch.cuda.device_count()} CUDA devices.")
    return device
