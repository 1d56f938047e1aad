"""Outputs of a model whose backward pass the penalty has already run, so that a second one fails with a sentence."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree

from tacit._util.errors import InputError


def refusing_backward(outputs: Any) -> Any:
    """The same outputs; `backward` of a loss made of one of their tensors is refused."""
    return _pytree.tree_map_only(Tensor, _refuse, outputs)


def _refuse(tensor: Tensor) -> Tensor:
    return _Used.apply(tensor.detach().requires_grad_()) if tensor.requires_grad else tensor


class _Used(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor) -> Tensor:
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, factor: Tensor) -> Tensor:
        raise InputError(
            "a loss was made of outputs that the penalised compute_loss returned; their backward pass has already run. "
            "Make it inside compute_loss, of the outputs of super().compute_loss(…, return_outputs=True)."
        )
