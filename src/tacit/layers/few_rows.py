"""A few rows times a large matrix: what a wide layer at a small batch size spends its time on.

BLAS is built for square shapes. On a CPU it reaches only half its speed when one side is a minibatch, and cutting the
matrix into eight slabs, one product each, gets most of it back (4096 x 4096, 2 threads, milliseconds, plain → cut:
16 rows 9.6 → 6.3 for x Wᵀ and 9.4 → 7.1 for x W; 64 rows 27.7 → 14.7 and 22.2 → 17.2). The sums are the same up to the
order of additions.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

SLABS = 8
MOST_ROWS = 128  # measured up to 64; beyond some hundred rows BLAS needs no help
LEAST_ELEMENTS = 2**20  # smaller matrices fit the cache, and the extra calls cost more than they save


def linear(inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x Wᵀ + b, as `F.linear`; few rows times a large matrix are cut along the outputs."""
    if weight.numel() < LEAST_ELEMENTS or weight.shape[0] % SLABS or not _gains(inputs, weight):
        return F.linear(inputs, weight, bias)
    count = inputs.shape[0]
    slabs = torch.bmm(inputs.expand(SLABS, *inputs.shape), weight.view(SLABS, -1, weight.shape[1]).mT)
    outputs = slabs.transpose(0, 1).reshape(count, weight.shape[0])
    return outputs if bias is None else outputs.add_(bias)


def product(rows: Tensor, weight: Tensor) -> Tensor:
    """x W; few rows times a large matrix are cut along the sum."""
    if weight.numel() < LEAST_ELEMENTS or weight.shape[0] % SLABS or not _gains(rows, weight):
        return rows @ weight
    slabs = rows.view(rows.shape[0], SLABS, -1).transpose(0, 1)
    return torch.bmm(slabs, weight.view(SLABS, -1, weight.shape[1])).sum(0)


def _gains(rows: Tensor, weight: Tensor) -> bool:
    """Whether the product of these rows with a large matrix is faster in slabs."""
    return (
        weight.device.type == "cpu"
        and rows.dim() == 2
        and rows.shape[0] <= MOST_ROWS
        and weight.is_contiguous()
        and rows.is_contiguous()
    )
