"""The least precise numbers that a computation makes: a model in float64 may have float32 inside."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode


class CoarsestUnit(TorchFunctionMode):
    """While active, `unit` is the largest rounding unit among the differentiable results of torch functions."""

    def __init__(self) -> None:
        super().__init__()
        self.unit = 0.0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if isinstance(result, Tensor) and result.is_floating_point() and result.requires_grad:
            self.unit = max(self.unit, torch.finfo(result.dtype).eps)
        return result
