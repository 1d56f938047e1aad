"""Rows drawn from a batch: a function of the seed, the worker and the call alone, so that only counters are stored."""

from __future__ import annotations

import torch
from torch import Tensor

from tacit._random import generator


def drawn_rows(rows: int, count: int, *, seed: int, worker: int = 0, call: int) -> Tensor:
    """`count` of the numbers 0 … rows − 1 without repetition, in random order: the start of a permutation."""
    return torch.randperm(rows, generator=generator(seed, "draw", worker, call))[:count]
